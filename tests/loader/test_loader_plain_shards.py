"""Plain pipelines that shuffle shards, or other things, before they split them: nothing is lost and nothing comes twice
across ranks and workers, and each epoch has another order. webdataset's workers shuffle by random states of their own,
and lose samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import pytest
from tiers import EXHAUSTIVE

import wdscli.loader as wds
from wdscli.loader.compat.utils import pytorch_worker_info
from wdscli.shards import ShardWriter

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")

SHARDS, EACH = 13, 3
EVERYTHING = Counter(range(SHARDS * EACH))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("set")
    with ShardWriter(f"{folder}/%05d.tar", max_count=EACH) as writer:
        for number in range(SHARDS * EACH):
            writer.write(f"{number:05d}", {"cls": b"%d" % number})
    return f"{folder}/{{00000..{SHARDS - 1:05d}}}.tar"


def number_of(sample: Any) -> int:
    return int(sample["cls"])


def skipper(shards: Iterable[Any], missing: str) -> Iterator[Any]:
    """Leaves shards out, as DALLE2's does those that have no embeddings."""
    return (shard for shard in shards if not shard["url"].endswith(missing))


known_shards = wds.pipelinefilter(skipper)


def checked(samples: Iterable[Any]) -> Iterator[Any]:
    for sample in samples:
        assert "cls" in sample
        yield sample


class Embedded(wds.DataPipeline[Any], wds.FluidInterface):
    """DALLE2-pytorch's ImageEmbeddingDataset: a class that appends its stages one by one."""

    def __init__(self, urls: str, *shuffles: Any) -> None:
        super().__init__()
        self.append(wds.SimpleShardList(urls))
        for stage in shuffles:
            self.append(stage)
        self.append(known_shards(missing="none.tar"))
        self.append(wds.split_by_node)
        self.append(wds.split_by_worker)
        self.append(wds.tarfile_to_samples(handler=wds.ignore_and_continue))
        self.append(checked)
        self.append(wds.map(number_of))


def by_rank(source: Iterable[Any]) -> Iterator[Any]:
    """A splitter of the user's own, of ranks and workers at once."""
    rank, world, worker, workers = pytorch_worker_info()
    return islice(source, rank + world * worker, None, world * workers)


def read(urls: Iterable[str]) -> Iterator[int]:
    for address in urls:
        yield from map(number_of, wds.WebDataset(address, nodesplitter=None, workersplitter=None))


def own_splitter(url: str) -> Any:
    stages = [wds.tarfile_to_samples(), wds.map(number_of)]
    return wds.DataPipeline(wds.SimpleShardList(url), wds.shuffle(100), by_rank, *stages)


def own_reader(url: str) -> Any:
    urls = wds.SimpleShardList(url).urls
    return wds.DataPipeline(
        lambda: iter(urls), wds.shuffle(100), wds.split_by_node, wds.split_by_worker, read
    )


def samples(url: str) -> Any:
    return wds.DataPipeline(
        range(SHARDS * EACH), wds.shuffle(10), wds.shuffle(8), wds.split_by_node, wds.split_by_worker
    )


def of_the_base(url: str) -> Any:
    class Own(wds.WebDataset[Any]):
        def __init__(self) -> None:
            super(wds.WebDataset, self).__init__()
            for stage in (wds.SimpleShardList(url), wds.shuffle(100), by_rank, wds.tarfile_to_samples()):
                self.append(stage)
            self.append(wds.map(number_of))

    return Own()


def methods(url: str) -> Any:
    return (
        wds.FluidWrapper(wds.SimpleShardList(url))
        .shuffle(100)
        .compose(by_rank, wds.tarfile_to_samples())
        .map(number_of)
    )


MAKES: dict[str, Callable[[str], Any]] = {
    "shuffle": lambda url: Embedded(url, wds.filters.shuffle(1000)),
    "small buffer": lambda url: Embedded(url, wds.shuffle(5, initial=2)),
    "twice": lambda url: Embedded(url, wds.shuffle(5), wds.shuffle(3)),
    "detshuffle": lambda url: Embedded(url, wds.detshuffle(1000)),
    "a splitter of one's own": own_splitter,
    "a reader of one's own": own_reader,
    "samples": samples,
    "a base without shards": of_the_base,
    "methods": methods,
    "a buffer of samples": lambda url: Embedded(url, wds.shuffle(1000)).shuffle(4),
}


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Iterator[int]]:
    def each(world: int) -> Iterator[int]:
        monkeypatch.setenv("WORLD_SIZE", str(world))
        for rank in range(world):
            monkeypatch.setenv("RANK", str(rank))
            yield rank

    return each


def epochs(make: Callable[[], Any], how: str, count: int = 3, **options: Any) -> list[list[int]]:
    """What some epochs give, with new iterations or ``set_epoch``."""
    data = make()
    kind = wds.WebLoader if how == "WebLoader" else torch.utils.data.DataLoader
    loader = data if how == "itself" else kind(data, batch_size=None, **options)
    found = []
    for epoch in range(count):
        if how == "set_epoch":
            data.set_epoch(epoch)
        found.append([int(number) for number in loader])
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("name", MAKES)
def test_nothing_is_lost_and_nothing_comes_twice(
    name: str, world: int, workers: int, url: str, ranks: Callable[[int], Iterator[int]]
) -> None:
    every = [epochs(lambda: MAKES[name](url), "DataLoader", 2, num_workers=workers) for _ in ranks(world)]
    together = [[number for part in parts for number in part] for parts in zip(*every)]
    assert [Counter(one) for one in together] == [EVERYTHING] * 2
    assert together[0] != together[1]


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize(
    ("how", "options"),
    [
        ("itself", {}),
        ("set_epoch", {"num_workers": 2}),
        *(
            pytest.param(how, {"num_workers": 2, **more}, marks=EXHAUSTIVE)
            for how, more in [
                ("set_epoch", {"persistent_workers": True}),
                ("DataLoader", {"persistent_workers": True}),
                ("DataLoader", {"persistent_workers": True, "multiprocessing_context": "spawn"}),
                ("WebLoader", {}),
            ]
        ),
    ],
)
def test_however_epochs_are_begun(
    how: str, options: dict[str, Any], url: str, ranks: Callable[[int], Iterator[int]]
) -> None:
    def make() -> Any:
        return Embedded(url, wds.shuffle(1000))

    world = 1 if "multiprocessing_context" in options else 2  # each process that is spawned takes seconds
    every = [epochs(make, how, **options) for _ in ranks(world)]
    together = [[number for part in parts for number in part] for parts in zip(*every)]
    assert [Counter(one) for one in together] == [EVERYTHING] * 3
    assert len({tuple(one) for one in together}) == 3


def test_an_epoch_that_was_named_comes_again(url: str) -> None:
    data = Embedded(url, wds.shuffle(1000))
    first, second = epochs(lambda: data, "set_epoch", 2)
    data.set_epoch(0)
    assert [list(data), list(data)] == [first, second]
    twice = Embedded(url, wds.shuffle(1000)).repeat(2)
    passes = [*twice, *twice]
    parts = [passes[at : at + SHARDS * EACH] for at in range(0, len(passes), SHARDS * EACH)]
    assert parts[:2] == [first, second]
    assert len({tuple(part) for part in parts}) == 4


def test_a_part_of_the_shards_is_the_same_in_all_workers(url: str) -> None:
    loader = torch.utils.data.DataLoader(Embedded(url, wds.rsample(0.5)), batch_size=None, num_workers=3)
    seen = [Counter(map(int, loader)) for _ in range(4)]
    assert all(max(one.values()) == 1 and len(one) % EACH == 0 for one in seen)
    assert len({frozenset(one) for one in seen}) > 1


def test_a_shard_list_with_a_seed_of_its_own_is_the_same_in_all_ranks(url: str) -> None:
    assert list(wds.SimpleShardList(url, seed=True)) == list(wds.SimpleShardList(url, seed=True))
    spec = {"datasets": [{"shards": url, "choose": 4}]}
    assert list(wds.MultiShardSample(spec)) == list(wds.MultiShardSample(spec))


def test_buffers_of_samples_may_differ_in_workers() -> None:
    """Nothing splits here, so each worker has all of it, and none the same batch as another."""
    data = wds.DataPipeline(range(100), wds.shuffle(50))
    found = [int(one) for one in torch.utils.data.DataLoader(data, batch_size=None, num_workers=2)]
    assert sorted(found[::2]) == sorted(found[1::2]) == list(range(100))
    assert found[::2] != found[1::2]
