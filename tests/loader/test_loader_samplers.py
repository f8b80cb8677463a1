"""ShardSampler: the loader's own order for a table, the same for any ranks, from any place; and tables in torch."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
from awkward_sets import write_awkward
from indexing import index
from loader_sets import oracle, write_set

from wdscli.errors import UsageError
from wdscli.loader import IndexedDataset, ShardSampler, WebDataset


@pytest.fixture
def table(tmp_path: Path) -> IndexedDataset:
    return IndexedDataset(write_set(tmp_path, count=103, per_shard=8, image=5))


def keys(samples: Any) -> list[str]:
    return [one["__key__"] for one in samples]


def keys_and_classes(samples: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """A collate function that other processes can load."""
    return [(one["__key__"], int(one["cls"])) for one in samples]


def numbers_of(sample: dict[str, Any]) -> tuple[int, int]:
    return int(sample["__key__"][-4:]), int(sample["cls"])


class TestOrder:
    @pytest.mark.parametrize("shuffle", ["window", "blocks", "shards", "full", "none"])
    @pytest.mark.parametrize("epoch", [0, 5])
    def test_that_of_webdataset(self, tmp_path: Path, shuffle: Any, epoch: int) -> None:
        names = write_awkward(tmp_path / "in")
        index(names)
        table = IndexedDataset(names)
        data = WebDataset(names, shuffle=shuffle, seed=7, window=2)
        data.set_epoch(epoch)
        sampler = ShardSampler(table, shuffle=shuffle, seed=7, window=2)
        sampler.set_epoch(epoch)
        assert keys(table.__getitems__(list(sampler))) == keys(data)

    @pytest.mark.parametrize("world", [1, 2, 3, 5])
    @pytest.mark.parametrize("batch", [None, 4])
    def test_the_same_for_any_ranks(self, table: IndexedDataset, world: int, batch: int | None) -> None:
        whole = list(ShardSampler(table, seed=1))
        ranks = [
            ShardSampler(table, seed=1, rank=rank, world_size=world, tail="uneven", batch_size=batch)
            for rank in range(world)
        ]
        found = [list(one) for one in ranks]
        assert [len(one) for one in found] == [len(one) for one in map(list, ranks)]
        flat = [list(chain.from_iterable(one)) if batch else one for one in found]
        assert [flat[place % world][place // world] for place in range(len(whole))] == whole

    def test_epochs_differ_and_come_one_behind_the_other(self, table: IndexedDataset) -> None:
        sampler = ShardSampler(table)
        first, second = list(sampler), list(sampler)
        assert sorted(first) == sorted(second) == list(range(103))
        assert first != second
        sampler.set_epoch(0)
        assert list(sampler) == first
        assert list(ShardSampler(table, seed=1)) != first

    def test_what_is_read_in_a_while_lies_near(self, tmp_path: Path) -> None:
        table = IndexedDataset(write_set(tmp_path, count=2000, per_shard=20, image=1))
        order = list(ShardSampler(table, window=8))
        near = [len({number // 20 for number in order[at : at + 200]}) for at in range(0, 2000, 200)]
        assert max(near) <= 32
        full = list(ShardSampler(table, shuffle="full"))
        assert min(len({number // 20 for number in full[at : at + 200]}) for at in range(0, 2000, 200)) > 64

    @pytest.mark.parametrize(
        "view",
        [
            lambda table: table[90:10:-3],
            lambda table: table.subset([5, 3, 99, 42, 3, 17]),
            lambda table: table.select("cls == 1"),
            lambda table: table.select("cls == 1")[::2],
            lambda table: table[0:0],
        ],
    )
    def test_of_views(self, table: IndexedDataset, view: Callable[[IndexedDataset], IndexedDataset]) -> None:
        shown = view(table)
        for shuffle in ("window", "blocks", "shards", "full", "none"):
            order = list(ShardSampler(shown, shuffle=shuffle, window=2))  # type: ignore[arg-type]
            assert sorted(order) == list(range(len(shown)))
        in_order = keys(shown.__getitems__(list(ShardSampler(shown, shuffle="none"))))
        assert in_order == sorted(in_order, key=table.number)


class TestLength:
    @pytest.mark.parametrize("tail", ["drop", "pad", "uneven"])
    @pytest.mark.parametrize("batch", [None, 1, 7, 200])
    @pytest.mark.parametrize("world", [1, 4])
    def test_it_is_true(self, table: IndexedDataset, tail: Any, batch: int | None, world: int) -> None:
        ranks = [
            ShardSampler(table, tail=tail, batch_size=batch, rank=rank, world_size=world)
            for rank in range(world)
        ]
        found = [list(one) for one in ranks]
        assert [len(one) for one in ranks] == [len(one) for one in found]
        seen = list(chain.from_iterable(chain.from_iterable(one) if batch else one for one in found))
        if tail == "drop":
            assert len(set(seen)) == len(seen) == 103 // (world * (batch or 1)) * world * (batch or 1)
        else:
            assert set(seen) == set(range(103))
        if tail != "uneven":
            assert len({len(one) for one in found}) == 1

    def test_what_cannot_be_meant(self, table: IndexedDataset) -> None:
        for how in ({"batch_size": 0}, {"tail": "some"}, {"shuffle": "yes"}, {"window": 0}, {"rank": 1}):
            with pytest.raises(UsageError):
                list(ShardSampler(table, **how))  # type: ignore[arg-type]
        for wrong in ({"batch_size": "4"}, {"seed": "s"}, {"rank": 3, "world_size": 2}):
            with pytest.raises(UsageError):
                ShardSampler(table, **wrong)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="needs an IndexedDataset, not a list"):
            ShardSampler([1, 2])  # type: ignore[arg-type]
        sampler = ShardSampler(table, batch_size=4)
        with pytest.raises(UsageError, match="epoch='x'"):
            sampler.set_epoch("x")  # type: ignore[arg-type]
        for taken in (-1, len(sampler) + 1):
            with pytest.raises(UsageError, match="the iteration had"):
                sampler.state_dict(taken)
        assert sampler.state_dict(len(sampler))["epoch"] == 1


class TestState:
    def test_of_single_samples_by_other_ranks(self, table: IndexedDataset) -> None:
        whole = list(ShardSampler(table, seed=1))
        sampler = ShardSampler(table, seed=1, rank=0, world_size=2)
        list(islice(sampler, 4))
        alone = ShardSampler(table, seed=1)
        alone.load_state_dict(sampler.state_dict())
        assert list(alone) == whole[8:]

    def test_from_any_batch_by_any_ranks(self, table: IndexedDataset) -> None:
        whole = list(ShardSampler(table, batch_size=12, seed=3))
        for stop in range(len(whole)):
            sampler = ShardSampler(table, batch_size=12, seed=3)
            running = iter(sampler)
            assert [next(running) for _ in range(stop)] == whole[:stop]
            state = json.loads(json.dumps(sampler.state_dict()))
            assert len(json.dumps(state)) < 1000
            ranks = []
            for rank in range(3):
                again = ShardSampler(table, batch_size=4, seed=3, rank=rank, world_size=3, tail="uneven")
                again.load_state_dict(state)
                ranks.append(list(again))
            for number, batch in enumerate(whole[stop:]):
                parts = [one[number] if number < len(one) else [] for one in ranks]
                assert [parts[at % 3][at // 3] for at in range(len(batch))] == batch

    def test_the_next_epoch_follows(self, table: IndexedDataset) -> None:
        sampler = ShardSampler(table, batch_size=12)
        first, second = list(sampler), list(sampler)
        sampler.set_epoch(0)
        running = iter(sampler)
        next(running)
        again = ShardSampler(table, batch_size=12)
        again.load_state_dict(sampler.state_dict())
        assert list(again) == first[1:]
        assert list(again) == second

    def test_behind_the_last_batch(self, table: IndexedDataset) -> None:
        sampler = ShardSampler(table, batch_size=12)
        list(sampler)
        again = ShardSampler(table, batch_size=12)
        again.load_state_dict(sampler.state_dict())
        assert list(again) == list(sampler)

    def test_one_who_reads_ahead_says_what_was_taken(self, table: IndexedDataset) -> None:
        whole = list(ShardSampler(table, batch_size=12))
        sampler = ShardSampler(table, batch_size=12)
        list(sampler)
        for taken in (0, 1, 5, len(whole)):
            again = ShardSampler(table, batch_size=12)
            again.load_state_dict(sampler.state_dict(taken=taken))
            assert list(again)[: len(whole) - taken] == (whole[taken:] or list(sampler)[:0])

    def test_what_was_taken_of_a_later_epoch(self, table: IndexedDataset) -> None:
        sampler = ShardSampler(table, batch_size=12)
        _, second = list(sampler), list(sampler)
        again = ShardSampler(table, batch_size=12)
        again.load_state_dict(sampler.state_dict(taken=2))
        assert list(again) == second[2:]

    def test_an_epoch_that_is_set_while_another_runs(self, table: IndexedDataset) -> None:
        sampler = ShardSampler(table)
        running = iter(sampler)
        next(running)
        sampler.set_epoch(5)
        list(running)
        wanted = ShardSampler(table)
        wanted.set_epoch(5)
        assert list(sampler) == list(wanted)

    def test_of_something_else(self, table: IndexedDataset) -> None:
        state = ShardSampler(table, batch_size=12).state_dict()
        for other in (
            ShardSampler(table, batch_size=12, seed=1),
            ShardSampler(table, batch_size=12, window=3),
            ShardSampler(table, batch_size=12, shuffle="full"),
            ShardSampler(table, batch_size=11),
            ShardSampler(table[1:], batch_size=12),
            ShardSampler(table.select("cls == 1"), batch_size=12),
        ):
            with pytest.raises(UsageError):
                other.load_state_dict(state)
            other.load_state_dict(state, force=True)
        with pytest.raises(UsageError):
            ShardSampler(table).load_state_dict({})
        with pytest.raises(UsageError):
            ShardSampler(table[2:]).load_state_dict(ShardSampler(table[1:-1]).state_dict())

    def test_pickled(self, table: IndexedDataset) -> None:
        sampler = ShardSampler(table[::2], batch_size=5)
        next(iter(sampler))
        assert list(pickle.loads(pickle.dumps(sampler))) == list(sampler)


class TestTorch:
    @pytest.mark.exhaustive(sample=False)
    @pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
    def test_a_map_style_dataset(self, table: IndexedDataset, start: str) -> None:
        data = pytest.importorskip("torch.utils.data")
        table[0]
        loader = data.DataLoader(
            table,
            batch_size=16,
            shuffle=True,
            num_workers=1 if start == "spawn" else 2,
            collate_fn=keys_and_classes,
            multiprocessing_context=start,
        )
        true = [(one["__key__"], int(one["cls"])) for one in table]
        found = list(loader)
        assert len(found) == len(loader) == 7
        assert sorted(chain.from_iterable(found)) == sorted(true)
        assert list(chain.from_iterable(found)) != true

    def test_stages_and_torchs_own_batches(self, table: IndexedDataset) -> None:
        torch = pytest.importorskip("torch")
        loader = torch.utils.data.DataLoader(table.map(numbers_of), batch_size=50)
        numbers, classes = next(iter(loader))
        assert numbers.tolist() == list(range(50))
        assert classes.tolist() == [number % 3 for number in range(50)]

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("workers", [0, 2])
    def test_samplers(self, table: IndexedDataset, workers: int) -> None:
        data = pytest.importorskip("torch.utils.data")
        true = [keys(table.__getitems__(batch)) for batch in ShardSampler(table, batch_size=16)]
        by_batch = data.DataLoader(
            table, batch_sampler=ShardSampler(table, batch_size=16), num_workers=workers, collate_fn=keys
        )
        one_by_one = data.DataLoader(
            table, sampler=ShardSampler(table), batch_size=16, num_workers=workers, collate_fn=keys
        )
        assert list(by_batch) == list(one_by_one) == true
        assert list(by_batch) != true

    def test_subsets_by_torch(self, table: IndexedDataset) -> None:
        data = pytest.importorskip("torch.utils.data")
        assert keys(data.Subset(table, [5, 2])) == keys([table[5], table[2]])

    def test_resumed_in_a_dataloader(self, table: IndexedDataset) -> None:
        data = pytest.importorskip("torch.utils.data")
        true = [keys(table.__getitems__(batch)) for batch in ShardSampler(table, batch_size=16)]
        sampler = ShardSampler(table, batch_size=16)
        running = iter(data.DataLoader(table, batch_sampler=sampler, num_workers=2, collate_fn=keys))
        begun = [next(running) for _ in range(3)]
        state = sampler.state_dict(taken=3)
        again = ShardSampler(table, batch_size=16)
        again.load_state_dict(state)
        rest = list(data.DataLoader(table, batch_sampler=again, num_workers=1, collate_fn=keys))
        assert begun + rest == true

    @pytest.mark.exhaustive
    @pytest.mark.filterwarnings("ignore:'set_vital'")
    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize("by_batch", [True, False])
    def test_torchdatas_stateful_dataloader(
        self, table: IndexedDataset, workers: int, by_batch: bool
    ) -> None:
        stateful = pytest.importorskip("torchdata.stateful_dataloader")

        def loader() -> Any:
            how = {"batch_sampler": ShardSampler(table, batch_size=16)}
            if not by_batch:
                how = {"sampler": ShardSampler(table), "batch_size": 16}  # type: ignore[dict-item]
            return stateful.StatefulDataLoader(table, num_workers=workers, collate_fn=keys, **how)

        true = [keys(table.__getitems__(batch)) for batch in ShardSampler(table, batch_size=16)]
        first = loader()
        running = iter(first)
        begun = [next(running) for _ in range(3)]
        again = loader()
        again.load_state_dict(first.state_dict())
        assert begun + list(again) == true


class TestOthers:
    def test_what_wids_gives(self, tmp_path: Path) -> None:
        """wids, webdataset's table, over the same manifest: the same samples by the same numbers."""
        wids = pytest.importorskip("wids")
        names = write_set(tmp_path)
        shards = [{"url": name, "nsamples": 5} for name in names[:-1]] + [{"url": names[-1], "nsamples": 3}]
        theirs = wids.ShardListDataset(shards, keep=True, transformations=[])
        ours = IndexedDataset(names)
        assert len(theirs) == len(ours)
        for number, true in enumerate(oracle(names)):
            sample = theirs[number]
            assert sample["__key__"] == true["__key__"]
            payloads = {name[1:]: value.getvalue() for name, value in sample.items() if name[0] == "."}
            assert payloads == {name: true[name] for name in ("cls", "jpg", "json")}
            assert ours[number] == true
