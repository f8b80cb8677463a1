"""Where code written for webdataset would see a difference, and nobody would tell it: webdataset is the oracle."""

from __future__ import annotations

import random
from collections.abc import Iterator
from glob import glob
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import wdscli.loader as ours
from wdscli.errors import UsageError
from wdscli.loader.order.order import SHARDS, key
from wdscli.ordering import mix
from wdscli.shards import ShardWriter

theirs = pytest.importorskip("webdataset")
torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")

COUNT = 24


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("set")
    with ShardWriter(f"{folder}/s-%06d.tar", max_count=6) as writer:
        for number in range(COUNT):
            writer.write(f"{number:03d}", {"cls": b"%d" % number, "txt": b"a" * (number % 3 + 1)})
    return f"{folder}/s-{{000000..000003}}.tar"


def data(wds: Any, url: str) -> Any:
    return wds.WebDataset(url, shardshuffle=False)


def keys(samples: Any) -> list[str]:
    return [sample["__key__"] for sample in samples]


def doubled(source: Any) -> Iterator[Any]:
    for sample in source:
        yield sample
        yield sample


class TestDiceOfOnesOwn:
    @pytest.mark.parametrize("initial", [3, 100])
    def test_they_give_the_same_order(self, url: str, initial: int) -> None:
        found, wanted = (
            keys(data(wds, url).shuffle(8, initial=initial, rng=random.Random(5))) for wds in (ours, theirs)
        )
        assert found == wanted != sorted(found)

    def test_they_go_on_in_the_next_epoch_and_behind_batches(self, url: str) -> None:
        shuffled = data(ours, url).decode().to_tuple("cls").shuffle(8, rng=random.Random(1)).batched(5)
        epochs = [[int(n) for (numbers,) in shuffled for n in numbers] for _ in range(2)]
        assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(COUNT))
        assert epochs[0] != epochs[1]

    def test_workers_share_the_samples(self, url: str) -> None:
        shuffled = data(ours, url).shuffle(8, rng=random.Random(1))
        assert sorted(keys(ours.WebLoader(shuffled, batch_size=None, num_workers=2))) == keys(data(ours, url))

    def test_there_is_no_state_and_it_says_why(self, url: str) -> None:
        shuffled = data(ours, url).shuffle(8, rng=random.Random(1))
        loader = ours.WebLoader(data(ours, url).listed(4)).shuffle(3, rng=random.Random(1))
        assert "without an exact place" in repr(shuffled)
        for one in (shuffled, loader):
            with pytest.raises(UsageError, match="position after shuffle"):
                one.state_dict()
            with pytest.raises(UsageError, match="position after shuffle"):
                one.load_state_dict(data(ours, url).state_dict())


class TestAStatementOfItsOwn:
    def test_it_changes_what_it_is_called_on(self, url: str) -> None:
        lengths = []
        for wds in (ours, theirs):
            one = data(wds, url)
            one.with_length(7)
            two = data(wds, url)
            two.with_epoch(5)
            three = data(wds, url)
            three.repeat(2)
            loader = wds.WebLoader(data(wds, url), batch_size=None)
            loader.with_epoch(3)
            plain = wds.DataPipeline(lambda: iter(range(9)))
            plain.with_epoch(4)
            lengths.append([len(one), *(len(list(each)) for each in (two, three, loader, plain))])
        assert lengths == [[7, 5, 2 * COUNT, 3, 4]] * 2

    def test_the_result_is_the_dataset(self, url: str) -> None:
        for wds in (ours, theirs):
            one = data(wds, url)
            assert one.with_epoch(5) is one
            assert one.with_length(4) is one
            assert one.repeat(2) is one
            loader = wds.WebLoader(one)
            assert loader.with_epoch(3) is loader

    def test_the_dataset_of_a_loader_stays_as_it_is(self, url: str) -> None:
        one = data(ours, url).listed(1)
        loader = ours.WebLoader(one).with_epoch(3)
        assert (len(list(loader)), len(list(one))) == (3, COUNT)


class TestBatchesOfALoader:
    @pytest.mark.exhaustive
    @pytest.mark.parametrize("workers", [0, 1])
    def test_without_a_size_there_is_one_in_each(self, url: str, workers: int) -> None:
        found, wanted = (
            list(wds.WebLoader(data(wds, url).decode().to_tuple("cls", "__key__"), num_workers=workers))
            for wds in (ours, theirs)
        )
        assert [[one.tolist(), list(name)] for one, name in found] == [
            [one.tolist(), list(name)] for one, name in wanted
        ]

    def test_of_what_is_no_dataset_of_shards_too(self) -> None:
        for make in (lambda wds: list(range(3)), lambda wds: wds.DataPipeline(lambda: iter(range(3)))):
            found, wanted = (list(wds.WebLoader(make(wds))) for wds in (ours, theirs))
            assert [one.tolist() for one in found] == [one.tolist() for one in wanted] == [[0], [1], [2]]

    def test_what_makes_batches_itself_is_left_as_it_is(self, url: str) -> None:
        for batches in (
            data(ours, url).listed(4),
            data(ours, url).compose(iter).listed(4),
            ours.DataPipeline(lambda: iter(range(COUNT)), ours.listed(4)),
        ):
            assert [len(batch) for batch in ours.WebLoader(batches)] == [4] * (COUNT // 4)

    def test_none_gives_samples(self, url: str) -> None:
        assert keys(ours.WebLoader(data(ours, url), batch_size=None)) == keys(data(ours, url))


def windows(source: Any) -> Iterator[tuple[int, ...]]:
    """What only neighbours in a shard make sense of."""
    held: list[int] = []
    for sample in source:
        held.append(int(sample["cls"]))
        if len(held) == 3:
            yield tuple(held)
            held = []


class TestGeneratorsOverNeighbours:
    PROGRAMS = {  # noqa: RUF012
        "a method": lambda wds, url: wds.WebDataset(url, shardshuffle=False).compose(windows),
        "shards shuffled": lambda wds, url: wds.WebDataset(url, shardshuffle=100).compose(windows),
        "behind stages": lambda wds, url: (
            wds.WebDataset(url, shardshuffle=100).decode().select(lambda sample: True).compose(windows)
        ),
        "a pipeline": lambda wds, url: wds.DataPipeline(
            wds.SimpleShardList(url),
            wds.split_by_node,
            wds.split_by_worker,
            wds.shuffle(10),
            wds.tarfile_to_samples(),
            windows,
        ),
    }

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize("name", PROGRAMS)
    def test_they_get_whole_shards(self, url: str, name: str, workers: int) -> None:
        found, wanted = (
            sorted(
                map(tuple, wds.WebLoader(self.PROGRAMS[name](wds, url), batch_size=None, num_workers=workers))
            )
            for wds in (ours, theirs)
        )
        assert found == wanted == [(first, first + 1, first + 2) for first in range(0, COUNT, 3)]

    def test_epochs_and_states(self, url: str) -> None:
        def made() -> Any:
            return ours.WebDataset(url, shardshuffle=100).compose(windows)

        one, other = made(), made()
        epochs = [list(one) for _ in range(2)]
        assert epochs[0] != epochs[1]
        assert "from front to back" in repr(one)
        begun = iter(other)
        assert [next(begun) for _ in range(3)] == epochs[0][:3]
        resumed = made()
        resumed.load_state_dict(other.state_dict())
        assert [list(resumed) for _ in range(2)] == [epochs[0][3:], epochs[1]]

    @pytest.mark.parametrize("how", [{"shuffle": "none"}, {"where": "index >= 0"}, {"tail": "drop"}])
    def test_what_is_said_in_our_words_is_exact(self, url: str, how: dict[str, Any]) -> None:
        ranks = [ours.WebDataset(url, **how).compose(iter) for _ in range(2)]
        assert all("from front to back" not in repr(one) for one in ranks)


def numbers(samples: Any) -> list[int]:
    return [int(sample["cls"]) for sample in samples]


def number_of(sample: Any) -> int:
    return int(sample["cls"])


def by_shards(seed: int, epoch: int) -> list[int]:
    """The order that ``shuffle="shards"`` is: shards by their key, samples as they lie."""
    order = sorted(range(4), key=lambda shard: mix(key(seed, epoch, SHARDS) ^ shard))
    return [6 * shard + place for shard in order for place in range(6)]


WHOLE: dict[str, Any] = {"shardshuffle": False, "nodesplitter": None, "workersplitter": None}


class TestTheOrderInAShard:
    @pytest.mark.parametrize("shardshuffle", [True, 100])
    def test_shards_that_are_shuffled_keep_it(self, url: str, shardshuffle: Any) -> None:
        data = ours.WebDataset(url, shardshuffle=shardshuffle, seed=3)
        named = ours.WebDataset(url, shuffle="shards", seed=3)
        for epoch in range(5):
            assert numbers(data) == numbers(named) == by_shards(3, epoch)
        assert len({tuple(by_shards(3, epoch)) for epoch in range(5)}) > 2
        found = numbers(theirs.WebDataset(url, shardshuffle=shardshuffle))
        assert [found[at : at + 6] == sorted(found[at : at + 6]) for at in range(0, COUNT, 6)] == [True] * 4

    def test_shuffle_mixes_samples_too(self, url: str) -> None:
        for how in ({"shardshuffle": True}, {"shuffle": "shards"}, {"resampled": True}):
            mixed = numbers(islice(ours.WebDataset(url, **how).shuffle(10), COUNT))
            assert mixed == numbers(ours.WebDataset(url, shuffle="window"))

    @pytest.mark.parametrize("workers", [0, 1, 3])
    @pytest.mark.parametrize("world", [1, 2])
    def test_ranks_and_workers_share_it(self, url: str, world: int, workers: int) -> None:
        for epoch in range(2):
            ranks = []
            for rank in range(world):
                data = ours.WebDataset(url, shuffle="shards", seed=1, rank=rank, world_size=world)
                data.set_epoch(epoch)
                ranks.append(list(ours.WebLoader(data.map(number_of).listed(3), num_workers=workers)))
            found = [n for batches in zip(*ranks) for samples in zip(*batches) for n in samples]
            assert found == by_shards(1, epoch)

    @pytest.mark.parametrize("how", [{"shuffle": "shards"}, {"resampled": True}])
    def test_streams_have_it_too(self, url: str, how: dict[str, Any]) -> None:
        pipes = [f"pipe:cat {path}" for path in sorted(glob(f"{Path(url).parent}/*.tar"))]
        data = ours.WebDataset(pipes, seed=2, **how)
        assert numbers(islice(data, COUNT)) == by_shards(2, 0)

    @pytest.mark.parametrize("how", [{"resampled": True}, {"mode": "resampled"}])
    def test_a_resampled_shard_keeps_it(self, how: dict[str, Any], tmp_path: Path) -> None:
        with ShardWriter(f"{tmp_path}/s-%d.tar") as writer:
            for number in range(40):
                writer.write(f"{number:03d}", {"cls": b"%d" % number})
        found, wanted = (
            numbers(islice(wds.WebDataset(f"{tmp_path}/s-0.tar", **how, **WHOLE), 100))
            for wds in (ours, theirs)
        )
        assert found == wanted == [*range(40), *range(40), *range(20)]

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("main", [{"shardshuffle": 100}, {"resampled": True, "nodesplitter": None}])
    @pytest.mark.parametrize("workers", [0, 2])
    def test_columns_in_shards_side_by_side_are_paired(
        self, url: str, main: dict[str, Any], workers: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The public recipe: for each shard a second set reads the shard of a column, resampled so that it never
        ends."""

        def paired(wds: Any) -> Any:
            def add_column(source: Any) -> Iterator[Any]:
                last, column = None, iter(())
                for sample in source:
                    if sample["__url__"] != last:
                        last = sample["__url__"]
                        column = iter(wds.WebDataset(last, resampled=True, **WHOLE))
                    yield sample["__key__"], next(column)["__key__"]

            data = wds.WebDataset(url, **main).compose(add_column)
            return torch.utils.data.DataLoader(data, batch_size=None, num_workers=workers)

        for wds in (ours, theirs):
            found = list(islice(paired(wds), COUNT))
            assert len(found) == COUNT
            assert all(one == other for one, other in found)

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("kind", ["indexed", "streamed", "mixed", "generator"])
    def test_a_resampled_set_without_splitters_is_whole_in_each_worker(self, url: str, kind: str) -> None:
        """And each has an order of its own, or a batch would have the same samples from all of them."""
        shards = sorted(glob(f"{Path(url).parent}/*.tar"))
        urls = [f"pipe:cat {path}" for path in shards] if kind == "streamed" else shards
        data = ours.WebDataset(urls, resampled=True, **WHOLE).map(number_of)
        if kind == "mixed":
            data = ours.RandomMix([data])
        elif kind == "generator":
            data = data.compose(iter)
        loader = torch.utils.data.DataLoader(data.with_epoch(2 * COUNT), batch_size=None, num_workers=2)
        for _ in range(2):
            found = list(loader)
            workers = found[::2], found[1::2]
            assert workers[0] != workers[1]
            for worker in workers:
                assert sorted(worker[:COUNT]) == sorted(worker[COUNT:]) == list(range(COUNT))
                assert all(
                    worker[at : at + 6] == sorted(worker[at : at + 6]) for at in range(0, 2 * COUNT, 6)
                )

    def test_ranks_of_such_a_set_have_orders_of_their_own(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found, states = [], []
        monkeypatch.setenv("WORLD_SIZE", "2")
        for rank in "01":
            monkeypatch.setenv("RANK", rank)
            data = ours.WebDataset(url, resampled=True, **WHOLE).map(number_of).with_epoch(COUNT)
            begun = iter(data)
            given = list(islice(begun, 10))
            states.append(data.state_dict())
            again = ours.WebDataset(url, resampled=True, **WHOLE).map(number_of).with_epoch(COUNT)
            again.load_state_dict(states[0])
            found.append([*given, *again])
        assert states[0] == states[1]
        assert found[0] != found[1]
        assert sorted(found[0]) == sorted(found[1]) == list(range(COUNT))
        monkeypatch.setenv("WORLD_SIZE", "1")
        monkeypatch.setenv("RANK", "0")
        with pytest.raises(UsageError, match="orders"):
            ours.WebDataset(url, resampled=True, **WHOLE).with_epoch(COUNT).load_state_dict(states[0])


class TestMixesOfAnythingElse:
    def test_webdatasets_mixes(self, url: str) -> None:
        for make in (
            lambda wds: wds.RoundRobin([data(wds, url).compose(doubled), range(5)], longest=True),
            lambda wds: wds.RandomMix([data(wds, url).compose(doubled), range(5)], longest=True),
        ):
            found, wanted = (list(make(wds)) for wds in (ours, theirs))
            assert len(found) == len(wanted) == 2 * COUNT + 5
