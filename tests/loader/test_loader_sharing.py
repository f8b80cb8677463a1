"""Who sees what is what the code says: splitters, epochs that are counted in each worker, sets of a mix, and those who
deal out samples themselves, as accelerate does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
from loader_cases import Cls, make_set

import wdscli.loader as wds
from wdscli.errors import UsageError

torch_data = pytest.importorskip("torch.utils.data")

COUNT = 40


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_set(tmp_path_factory.mktemp("set"), COUNT, 10)


@pytest.fixture
def second_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")


def loaded(data: Any, workers: int) -> Any:
    return torch_data.DataLoader(data, batch_size=None, num_workers=workers)


class TestSplitters:
    def test_without_one_every_rank_sees_all(self, url: str, second_of_two: None) -> None:
        everything = list(range(COUNT))
        assert list(wds.WebDataset(url, nodesplitter=None).map(Cls())) == everything
        pipeline = wds.DataPipeline(
            wds.SimpleShardList(shards(url)), wds.split_by_worker, wds.tarfile_to_samples(), wds.map(Cls())
        )
        assert list(pipeline) == list(chain(*loaded(pipeline.listed(4), 2))) == everything

    def test_with_one_ranks_share(self, url: str, second_of_two: None) -> None:
        pipeline = wds.DataPipeline(
            wds.SimpleShardList(shards(url)),
            wds.split_by_node,
            wds.split_by_worker,
            wds.tarfile_to_samples(),
            wds.map(Cls()),
        )
        for data in (
            wds.WebDataset(url).map(Cls()),
            wds.WebDataset(url, nodesplitter=wds.split_by_node).map(Cls()),
            wds.WebDataset(url, nodesplitter=None).compose(wds.split_by_node).map(Cls()),
            pipeline,
        ):
            assert list(data) == list(range(1, COUNT, 2))

    def test_single_node_only_is_an_error_with_several(
        self, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = wds.WebDataset(url, nodesplitter=wds.single_node_only)
        assert len(list(data)) == COUNT
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        pipeline = wds.DataPipeline(
            wds.SimpleShardList(shards(url)), wds.single_node_only, wds.tarfile_to_samples()
        )
        for one in (data, pipeline):
            with pytest.raises(UsageError, match="2 ranks") as caught:
                list(one)
            assert "nodesplitter" in (caught.value.hint or "")

    @pytest.mark.exhaustive(sample=False)
    @pytest.mark.parametrize(
        "loader", [loaded, lambda data, workers: wds.WebLoader(data, num_workers=workers)]
    )
    def test_without_a_workersplitter_every_worker_gives_all(
        self, url: str, loader: Callable[[Any, int], Any]
    ) -> None:
        data = wds.WebDataset(url, workersplitter=None).map(Cls())
        assert Counter(chain(*loader(data.listed(4), 2))) == dict.fromkeys(range(COUNT), 2)
        assert list(chain(*loader(data.listed(4), 0))) == list(range(COUNT))
        pipeline = wds.DataPipeline(
            wds.SimpleShardList(shards(url)), wds.tarfile_to_samples(), wds.map(Cls()), wds.listed(4)
        )
        assert Counter(chain(*loader(pipeline, 2))) == dict.fromkeys(range(COUNT), 2)

    @pytest.mark.parametrize("workers", [0, 2])
    def test_splitters_of_ones_own_are_obeyed(self, url: str, workers: int, second_of_two: None) -> None:
        def every_second(src: Any) -> Any:
            return (shard for number, shard in enumerate(src) if number % 2)

        data = wds.WebDataset(shards(url), nodesplitter=every_second, shardshuffle=False).map(Cls())
        assert sorted(chain(*loaded(data.listed(3), workers))) == [*range(10, 20), *range(30, 40)]
        whole = wds.WebDataset(shards(url), nodesplitter=None, workersplitter=every_second).map(Cls())
        assert Counter(chain(*loaded(whole.listed(3), workers))) == dict.fromkeys(
            [*range(10, 20), *range(30, 40)], max(1, workers)
        )
        assert "every_second" not in repr(data)
        assert "without an exact place" in repr(data)
        for use in (data.state_dict, lambda: data.load_state_dict({"wdscli": 1, "epoch": 0, "next": 0})):
            with pytest.raises(
                UsageError, match="cannot save a position if shards are split by every_second"
            ):
                use()
        again = (
            wds.WebDataset(shards(url), nodesplitter=every_second, resampled=True).map(Cls()).with_epoch(30)
        )
        assert len(list(again)) == 30
        both = {"nodesplitter": None, "workersplitter": every_second}
        mixed = wds.WebDataset(shards(url), shardshuffle=True, **both).map(Cls())
        assert len({tuple(mixed) for _ in range(8)}) == 2, "shards in another order in some epochs"
        with pytest.raises(UsageError, match="where"):
            wds.WebDataset(shards(url), nodesplitter=every_second, where="cls > 3")
        with pytest.raises(UsageError, match=r"'x\.tar', but a shard is"):
            list(wds.WebDataset(shards(url), nodesplitter=lambda src: ["x.tar"]))

    def test_an_endless_set_is_dealt_out_in_any_case(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        seen = []
        for rank in "01":
            monkeypatch.setenv("RANK", rank)
            monkeypatch.setenv("WORLD_SIZE", "2")
            data = wds.WebDataset(url, resampled=True, nodesplitter=None).map(Cls()).with_epoch(20)
            seen += list(data)
        assert sorted(seen) == list(range(COUNT))

    def test_a_rank_that_is_given_and_no_split(self, url: str) -> None:
        with pytest.raises(UsageError, match="nodesplitter"):
            wds.WebDataset(url, nodesplitter=None, rank=0, world_size=2)

    def test_over_shards_and_other_things_they_take_every_second(self, second_of_two: None) -> None:
        assert list(wds.split_by_node(range(5))) == [1, 3]
        assert list(wds.split_by_worker(range(5))) == [0, 1, 2, 3, 4]
        assert list(wds.non_empty(range(2))) == [0, 1]
        with pytest.raises(ValueError, match="no items"):
            list(wds.non_empty([]))
        with pytest.raises(UsageError):
            list(wds.single_node_only([1]))


def shards(url: str) -> list[str]:
    return sorted(map(str, Path(url).parent.glob("*.tar")))


class TestEpochsOfEachWorker:
    @pytest.mark.exhaustive
    @pytest.mark.parametrize("workers", [0, 1, 2])
    def test_an_epoch_is_counted_in_each_worker(self, url: str, workers: int) -> None:
        each = max(1, workers)
        data = wds.WebDataset(url, resampled=True).map(Cls()).listed(2)
        loader = loaded(data.with_epoch(5), workers)
        assert (len(loader), len(list(loader))) == (5, 5 * each), "a dataset does not know of workers"
        assert len(list(wds.WebLoader(data.with_epoch(5), num_workers=workers))) == 5 * each
        assert len(list(loaded(data.compose(same).with_epoch(5), workers))) == 5 * each
        assert len(list(loaded(data.repeat(nbatches=5), workers))) == 5 * each
        mixed = wds.mix([data.with_epoch(3), data.with_epoch(3)], stop="all", per="batch")
        assert len(list(loaded(mixed, workers))) == 6 * each

    @pytest.mark.exhaustive(sample=False)
    @pytest.mark.parametrize("workers", [0, 2])
    def test_over_the_whole_it_is_counted_by_name(self, url: str, workers: int) -> None:
        data = wds.WebDataset(url, shuffle="window").map(Cls())
        for cut in (data.listed(5).with_epoch(batches=8), data.listed(5).with_epoch(samples=COUNT)):
            for loader in (loaded(cut, workers), wds.WebLoader(cut, num_workers=workers)):
                assert sorted(chain(*loader)) == list(range(COUNT))
        assert len(list(loaded(data.compose(same).with_epoch(batches=7), workers))) == 7
        assert len(list(loaded(data.compose(same).with_epoch(samples=30), workers))) == 30

    def test_samples_are_those_of_all_ranks(self, url: str) -> None:
        ranks = [
            list(wds.WebDataset(url, rank=rank, world_size=2).map(Cls()).listed(5).with_epoch(samples=30))
            for rank in range(2)
        ]
        assert [len(batches) for batches in ranks] == [3, 3]
        assert sorted(chain(*chain(*ranks))) == list(range(30))

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("workers", [0, 2])
    def test_a_webloader_makes_batches_of_the_samples_of_an_epoch(self, url: str, workers: int) -> None:
        loader = wds.WebLoader(
            wds.WebDataset(url).map(Cls()).with_epoch(30), batch_size=5, num_workers=workers
        )
        sizes = [len(batch) for batch in loader]
        assert sizes == [5] * 6 * max(1, workers)
        assert len(loader) == len(sizes)
        real = torch_data.DataLoader(wds.WebDataset(url).map(Cls()).with_epoch(30), 5, num_workers=workers)
        assert sum(len(batch) for batch in real) == sum(sizes)

    @pytest.mark.exhaustive
    def test_a_state_goes_on_with_as_many_workers(self, url: str) -> None:
        def made() -> Any:
            return wds.WebDataset(url, shuffle="window").map(Cls()).listed(4).with_epoch(3)

        begun, known = made(), [list(loader) for loader in [loaded(made(), 2)] for _ in range(3)]
        given = list(islice(loaded(begun, 2), 4))
        state = begun.state_dict(batches=4)
        resumed, other = made(), made()
        resumed.load_state_dict(state)
        loader = loaded(resumed, 2)
        assert given + list(loader) == known[0]
        assert list(loader) == known[1]
        other.load_state_dict(state)
        with pytest.raises(UsageError, match="2 workers") as caught:
            list(other)
        assert "batches=" in (caught.value.hint or "")
        exact = wds.WebLoader(made(), num_workers=2)
        assert [list(exact) for _ in range(3)] == known
        with pytest.raises(UsageError, match="epoch length"):
            wds.WebLoader(made(), num_workers=1).load_state_dict(exact.state_dict())

    def test_lengths_that_cannot_be_meant(self, url: str) -> None:
        data = wds.WebDataset(url)
        for wrong in (
            {"samples": 3, "batches": 2},
            {"nsamples": 3, "samples": 3},
            {"samples": 0},
            {"batches": "x"},
        ):
            with pytest.raises(UsageError):
                data.with_epoch(**wrong)
        with pytest.raises(UsageError):
            wds.WebLoader(data).unbatched().with_epoch(samples=3)


def same(items: Any) -> Any:
    yield from items


class TestMixes:
    def test_sets_of_a_mix_keep_their_ranks(self, url: str) -> None:
        def of(rank: int) -> Any:
            return wds.WebDataset(url, rank=rank, world_size=2).map(Cls())

        seen = [list(wds.mix([of(rank), of(rank)], stop="all")) for rank in range(2)]
        assert Counter(chain(*seen)) == dict.fromkeys(range(COUNT), 2)
        mixed = wds.mix([of(1), of(1)], stop="all", rank=1, world_size=2)
        assert list(mixed) == seen[1]
        for wrong in (
            lambda: wds.mix([of(0), of(1)]),
            lambda: wds.mix([of(0), wds.WebDataset(url)]),
            lambda: wds.mix([of(0), of(0)], rank=1, world_size=2),
        ):
            with pytest.raises(UsageError, match="different ranks"):
                wrong()

    def test_sets_of_a_mix_keep_their_split(self, url: str, second_of_two: None) -> None:
        alone = wds.WebDataset(url, nodesplitter=None).map(Cls())
        assert Counter(wds.mix([alone, alone], stop="all")) == dict.fromkeys(range(COUNT), 2)
        with pytest.raises(UsageError, match="split"):
            wds.mix([alone, wds.WebDataset(url).map(Cls())])
