"""Where code written for webdataset would see a difference, and nobody would tell it: webdataset is the oracle."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from typing import Any

import pytest

import wdscli.loader as ours
from wdscli.errors import UsageError
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
            with pytest.raises(UsageError, match="no exact place behind shuffle"):
                one.state_dict()
            with pytest.raises(UsageError, match="no exact place behind shuffle"):
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


class TestMixesOfAnythingElse:
    def test_shares_are_exact(self, url: str) -> None:
        endless = ours.DataPipeline(lambda: iter(int, 1))
        mixed = ours.mix([(endless, 1), (data(ours, url).decode().map(lambda s: 1).compose(iter), 2)])
        found = list(mixed)
        assert sum(found) == COUNT
        assert all(sum(found[first : first + 3]) == 2 for first in range(0, len(found) - 3, 3))

    @pytest.mark.parametrize(
        ("stop", "counts"),
        [("first", {6, 7}), ("all", {COUNT * 2 + 3}), ("repeat", {COUNT * 4, COUNT * 4 + 1})],
    )
    def test_when_an_epoch_ends(self, url: str, stop: Any, counts: set[int]) -> None:
        mixed = ours.mix([data(ours, url).compose(doubled), range(3)], stop=stop, seed=1)
        assert len(list(mixed)) in counts

    def test_epochs_differ_and_datasets_follow(self, url: str) -> None:
        shuffled = ours.WebDataset(url, shuffle="window").compose(iter)
        mixed = ours.mix([shuffled, lambda: iter(())], stop="all")
        epochs = [keys(mixed) for _ in range(2)]
        assert sorted(epochs[0]) == sorted(epochs[1]) == keys(data(ours, url))
        assert epochs[0] != epochs[1]
        mixed.set_epoch(0)
        assert keys(mixed) == epochs[0]

    def test_stages_workers_and_labels(self, url: str) -> None:
        mixed = ours.mix({"a": (data(ours, url).compose(iter), 1), "b": (data(ours, url), 1)}, label="from")
        batches = pickle.loads(pickle.dumps(mixed)).to_tuple("__key__", "from").batched(6)
        found = [pair for batch in ours.WebLoader(batches, num_workers=2) for pair in zip(*batch)]
        assert len(found) == len(set(found)) == 2 * COUNT
        assert "without an exact place" in repr(mixed)
        with pytest.raises(UsageError, match="no exact place in a mix of plain"):
            mixed.state_dict()

    def test_what_is_refused(self, url: str) -> None:
        with pytest.raises(UsageError, match="share nothing"):
            ours.mix([range(3), data(ours, url)], rank=0, world_size=1)
        with pytest.raises(UsageError, match="set 0 gives int"):
            list(ours.mix([range(3), data(ours, url)], label="from"))

    def test_webdatasets_mixes(self, url: str) -> None:
        for make in (
            lambda wds: wds.RoundRobin([data(wds, url).compose(doubled), range(5)], longest=True),
            lambda wds: wds.RandomMix([data(wds, url).compose(doubled), range(5)], longest=True),
        ):
            found, wanted = (list(make(wds)) for wds in (ours, theirs))
            assert len(found) == len(wanted) == 2 * COUNT + 5
