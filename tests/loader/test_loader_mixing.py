"""Mixes: exact shares in every block, where they end, the same for any ranks and workers, and gone on with anywhere."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any
from unittest import mock

import numpy
import pytest
from loader_cases import Cls, Even, by_the_book, make_set
from loader_sets import write_set

import wdscli.loader as wds
from wdscli.errors import DataError, UsageError, WdsError
from wdscli.loader.mixing import Mixed
from wdscli.loader.order.schedule import LARGEST, Changing, Schedule, quotas_of, shares_of
from wdscli.loader.place.ranks import Share
from wdscli.loader.place.state import Place
from wdscli.loader.stages.flow import BatchStage as Batch

Sets = Callable[..., list[wds.WebDataset]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("mix")
    for name, number, per_shard in ("a", 23, 5), ("b", 11, 4), ("c", 7, 7):
        write_set(path / name, number, per_shard, image=40, prefix=name)
    return path


@pytest.fixture
def sets(folder: Path) -> Sets:
    """Datasets a, b and c of 23, 11 and 7 samples, which come out as "a0", "a1", ..."""

    def make(names: str = "abc", *, named: bool = True, **how: Any) -> list[wds.WebDataset]:
        found = [wds.WebDataset(f"{folder}/{name}/{name}-manifest.json", **how) for name in names]
        return [one.map(Name(name)) for name, one in zip(names, found)] if named else found

    return make


class Name:
    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, sample: dict[str, Any]) -> str:
        return f"{self.name}{json.loads(sample['json'])['width']}"


class TestWeights:
    @pytest.mark.parametrize(
        ("weights", "quotas"),
        [
            ([0.7, 0.3], (7, 3)),
            ([70, 30], (7, 3)),
            ([1 / 3, 2 / 3], (1, 2)),
            ([0.1, 0.2, 0.7], (1, 2, 7)),
            (["1/6", Fraction(1, 2), 2], (1, 3, 12)),
            ([5], (1,)),
            ([1e-3, 1], (1, 1000)),
            ([numpy.float32(0.7), numpy.float32(0.3)], (7, 3)),
            ([numpy.int64(7), Decimal("3")], (7, 3)),
        ],
    )
    def test_are_whole_numbers(self, weights: list[Any], quotas: tuple[int, ...]) -> None:
        assert quotas_of(weights) == quotas

    def test_that_are_too_fine_are_rounded_and_none_to_nothing(self) -> None:
        weights = [1281167, 14197122, 1]
        quotas = quotas_of(weights)
        assert sum(quotas) == LARGEST
        assert quotas[2] == 1
        shares = [weight / sum(weights) for weight in weights]
        assert max(abs(q / LARGEST - share) for q, share in zip(quotas, shares)) < 2 / LARGEST

    @pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf"), "much", None])
    def test_that_are_none(self, weight: Any) -> None:
        with pytest.raises(UsageError, match="weight"):
            quotas_of([1, weight])


class TestSchedule:
    @pytest.mark.parametrize("quotas", [(7, 3), (1, 1, 1), (5, 4, 2), (1, 97), (6, 4, 9)])
    def test_every_block_has_its_quotas_and_every_set_its_order(self, quotas: tuple[int, ...]) -> None:
        schedule = Schedule(quotas, [1000 * quota for quota in quotas], seed=5)
        block = sum(quotas)
        found, samples = schedule.locate(numpy.arange(20 * block))
        for first in range(0, len(found), block):
            assert numpy.bincount(found[first : first + block]).tolist() == list(quotas)
        for number in range(len(quotas)):
            assert (samples[found == number] == numpy.arange(20 * quotas[number])).all()
        orders = {tuple(found[first : first + block]) for first in range(0, len(found), block)}
        assert len(orders) > 1

    def test_the_order_is_pinned(self) -> None:
        found, samples = Schedule([7, 3], [100, 100], seed=0).locate(numpy.arange(20))
        assert found.tolist() == [0, 0, 0, 0, 1, 1, 0, 1, 0, 0, 1, 0, 1, 0, 0, 1, 0, 0, 0, 0]
        assert samples.tolist() == [0, 1, 2, 3, 0, 1, 4, 2, 5, 6, 3, 7, 4, 8, 9, 5, 10, 11, 12, 13]

    @pytest.mark.parametrize("seed", [None, 0, 1, 77])
    @pytest.mark.parametrize("stop", ["first", "all", "repeat"])
    @pytest.mark.parametrize(
        ("quotas", "lengths"),
        [
            ((7, 3), (23, 11)),
            ((1, 1, 1), (5, 2, 3)),
            ((2, 4, 6), (9, 1, 4)),
            ((3, 3), (6, 6)),
            ((1, 50), (3, 7)),
            ((4,), (9,)),
            ((2, 3, 4, 5), (8, 9, 10, 31)),
        ],
    )
    def test_is_that_of_the_book(self, quotas: Any, lengths: Any, stop: Any, seed: int | None) -> None:
        schedule = Schedule(quotas, lengths, stop=stop, seed=seed)
        expected = by_the_book(quotas, lengths, stop, seed)
        assert schedule.length == len(expected)
        found, samples = schedule.locate(numpy.arange(schedule.length))
        assert list(zip(found.tolist(), samples.tolist())) == expected
        assert schedule.taken == numpy.bincount(found, minlength=len(quotas)).tolist()
        # Any positions in any order.
        some = numpy.random.default_rng(1).permutation(schedule.length)
        found, samples = schedule.locate(some)
        assert list(zip(found.tolist(), samples.tolist())) == [expected[at] for at in some.tolist()]

    def test_far_positions_are_found_at_once(self) -> None:
        schedule = Schedule([3, 2], [10**12, 10**12], stop="all")
        assert schedule.length == 2 * 10**12
        found, samples = schedule.locate(numpy.arange(10**12, 10**12 + 1000))
        assert Counter(found.tolist()) == {0: 600, 1: 400}
        assert samples[found == 0][0] == 6 * 10**11

    def test_empty_sets(self) -> None:
        with pytest.raises(UsageError, match="set 1 of the mix has no samples"):
            Schedule([1, 1], [3, 0])
        assert Schedule([1, 1], [3, 0], stop="all").length == 3

    def test_no_such_stop(self) -> None:
        with pytest.raises(UsageError, match="stop='last' is not one of"):
            Schedule([1], [1], stop="last")  # type: ignore[arg-type]


def units(data: Any, workers: int, first: int, epoch: int, share: Share) -> dict[int, list[Any]]:
    """What each of a rank's batches from ``first`` on is, made by so many workers."""
    found: dict[int, list[Any]] = {}
    for worker in range(workers):
        with mock.patch("wdscli.loader.dataset.find_worker", lambda asked=(worker, workers): asked):
            for unit in data._units(
                Place(epoch, first + worker), share._replace(worker=worker, workers=workers)
            ):
                assert unit.number not in found, "two workers made a batch"
                found[unit.number] = unit.items
    return found


def world_of(make: Callable[..., Any], batch: int, world: int, workers: int, first: int, epoch: int) -> Any:
    """The samples of each global batch, in its order."""
    ranks = []
    for rank in range(world):
        data = make(batch // world, rank=rank, world_size=world)
        ranks.append(units(data, workers, first, epoch, Share(rank, world)))
    assert len({tuple(sorted(one)) for one in ranks}) == 1
    found = {}
    for number in ranks[0]:
        rows = [[item for one in rank[number] for item in one] for rank in ranks]
        found[number] = [row[at] for at in range(batch) for row in rows if at < len(row)]
    return found


class TestTopologies:
    @pytest.mark.exhaustive(sample=False)
    @pytest.mark.parametrize("stop", ["first", "all", "repeat"])
    @pytest.mark.parametrize("shuffle", ["none", "window", "blocks"])
    def test_the_global_batches_are_the_same(self, sets: Sets, stop: Any, shuffle: Any) -> None:
        def make(size: int, **share: Any) -> Any:
            parts = list(zip(sets(shuffle=shuffle, seed=3), [0.5, 0.3, 0.2]))
            return wds.mix(parts, stop=stop, seed=1, tail="uneven", **share).listed(size)

        for epoch in range(3):
            expected = world_of(make, 8, 1, 1, 0, epoch)
            for world in (1, 2, 4, 8):
                for workers in (1, 2, 3, 5):
                    first = (3 * world + workers) % len(expected)
                    found = world_of(make, 8, world, workers, first, epoch)
                    assert found == {number: expected[number] for number in range(first, len(expected))}

    def test_all_gives_every_sample_once(self, sets: Sets) -> None:
        data = wds.mix(list(zip(sets(shuffle="window"), [5, 2, 2])), stop="all")
        for _ in range(3):
            found = list(data)
            assert len(found) == len(data) == len(set(found)) == 41

    @pytest.mark.exhaustive(sample=False)
    @pytest.mark.parametrize("how", [{}, {"num_workers": 2}])
    def test_real_workers_and_a_state_of_others(self, sets: Sets, how: Any) -> None:
        pytest.importorskip("torch")

        def make() -> Any:
            return wds.mix(list(zip(sets(shuffle="window"), [3, 2, 1])), stop="repeat").listed(4)

        expected = list(make())
        loader = wds.WebLoader(make(), **how)
        some = list(islice(loader, 3))
        state = json.loads(json.dumps(loader.state_dict()))
        for workers in (0, 3):
            other = wds.WebLoader(make(), num_workers=workers)
            other.load_state_dict(state)
            assert some + list(other) == expected


class TestEpochs:
    @pytest.mark.parametrize("stop", ["first", "repeat"])
    def test_sets_go_on_where_they_were_left(self, sets: Sets, stop: Any) -> None:
        """Without a shuffle a set is a circle, and its samples come in turn through all epochs."""
        data = wds.mix(list(zip(sets(), [1, 1, 1])), stop=stop)
        lengths = {"a": 23, "b": 11, "c": 7}
        circles = {name: cycle(range(length)) for name, length in lengths.items()}
        per_epoch = {len(data)}
        for _ in range(5):
            for item in data:
                assert int(item[1:]) == next(circles[item[0]])
            per_epoch.add(len(data))
        assert len(per_epoch) == 1

    def test_a_shorter_set_goes_on_in_its_next_epochs_order(self, sets: Sets) -> None:
        parts = sets(shuffle="full")
        data = wds.mix(list(zip(parts, [1, 1, 1])), stop="repeat")
        found = [item for _ in range(3) for item in data if item[0] == "c"]
        alone = sets("c", shuffle="full")[0]
        passes = [list(alone) for _ in range(1 + len(found) // 7)]
        assert found == [item for one in passes for item in one][: len(found)]
        assert passes[0] != passes[1]

    def test_every_sample_of_the_longest_comes(self, sets: Sets) -> None:
        data = wds.mix(list(zip(sets(shuffle="window"), [1, 1, 1])), stop="repeat")
        assert {item for item in data if item[0] == "a"} == {f"a{number}" for number in range(23)}

    def test_set_epoch_finds_what_iterating_comes_to(self, sets: Sets) -> None:
        data, other = (wds.mix(list(zip(sets(shuffle="window"), [3, 1, 1]))) for _ in range(2))
        epochs = [list(data) for _ in range(4)]
        other.set_epoch(3)
        assert list(other) == epochs[3]

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("workers", [0, 2, 3])
    def test_a_set_whose_epoch_counts_items_of_each_worker(self, sets: Sets, workers: int) -> None:
        pytest.importorskip("torch")
        a, b, _ = sets()
        times = max(1, workers)
        data = wds.mix([a.with_epoch(4), b], stop="all").listed(3)
        loader = wds.WebLoader(data, num_workers=workers)
        found = [item for batch in loader for item in batch]
        assert sorted(found) == sorted([*(f"a{n}" for n in range(4 * times)), *(f"b{n}" for n in range(11))])
        assert len(loader) == -(-len(found) // 3)
        other = wds.WebLoader(wds.mix([a.with_epoch(4), b], stop="all").listed(3), num_workers=workers + 2)
        with pytest.raises(UsageError, match="epoch length of set 0"):
            other.load_state_dict(loader.state_dict())

    def test_a_set_whose_epoch_counts_items_of_each_rank(self, sets: Sets) -> None:
        """With other ranks such a mix is another one, and a state is of these ranks."""

        def make(world: int) -> Any:
            a, b, _ = sets()
            return wds.mix([a.with_epoch(batches=4), b], stop="all", rank=0, world_size=world).listed(
                4 // world
            )

        with pytest.raises(UsageError, match="another length of set 0: 4, but this loader has 8"):
            make(2).load_state_dict(make(1).state_dict())

    def test_stages_of_positions_behind_a_mix(self, sets: Sets) -> None:
        data = wds.mix(list(zip(sets(), [2, 1, 1])), stop="all")
        assert list(data.slice(3, 20, 4)) == list(data)[3:20:4]
        data.set_epoch(0)
        wanted = [*islice((x for _ in range(2) for x in data), 60)]
        data.set_epoch(0)
        assert [*data.with_epoch(60)] == wanted


class TestState:
    def test_from_any_batch(self, sets: Sets) -> None:
        def make() -> Mixed:
            parts = sets(shuffle="window", seed=2)
            parts[0] = parts[0].select(lambda item: item[-1] != "3")
            return wds.mix(list(zip(parts, [5, 3, 2])), stop="repeat", seed=9).listed(3)

        whole = make()
        expected = [*whole, *whole]
        for stopped in range(0, len(expected), 3):
            data = make()
            given = list(islice((batch for _ in range(2) for batch in data), stopped))
            state = json.loads(json.dumps(data.state_dict()))
            assert len(json.dumps(state)) < 1000
            other = make()
            other.load_state_dict(state)
            while other.epoch < 2:
                given += list(other)
            assert given == expected

    def test_of_fifty_sets_is_small(self, folder: Path) -> None:
        address = f"{folder}/c/c-manifest.json"
        parts = [wds.WebDataset(address, seed=number, shuffle="window") for number in range(50)]
        data = wds.mix([(part, 1 + number) for number, part in enumerate(parts)], stop="all")
        assert len(json.dumps(data.state_dict())) < 1000
        other = wds.mix([(part, 2 + number) for number, part in enumerate(parts)], stop="all")
        with pytest.raises(UsageError, match="another mix"):
            other.load_state_dict(data.state_dict())
        nested = wds.mix([data, parts[0].with_epoch(5), wds.mix(parts[:9])])
        assert len(json.dumps(nested.state_dict())) < 1000

    def test_of_another_mix_is_refused_by_name(self, sets: Sets) -> None:
        a, b, c = sets()
        state = wds.mix({a: 2, b: 1}).state_dict()
        for other, what in [
            (wds.mix({a: 1, b: 1}), "another weight of set 0: 2, but this loader has 1"),
            (wds.mix({a: 2, c: 1}), "other data of set 1"),
            (wds.mix({a: 2, b: 1, c: 1}), "another number of sets: 2, but this loader has 3"),
            (wds.mix([(wds.mix([a, b]), 2), b]), "another fingerprint of set 0|other data of set 0"),
            (wds.mix({a: 2, b: 1}, seed=1), "another seed"),
            (wds.mix({a: 2, b: 1}, stop="all"), "another stop"),
            (wds.mix({a: 2, b: 1}).batched(2), "saved with batches of"),
            (a, "with a mix, but this loader has one set"),
        ]:
            with pytest.raises(UsageError, match=what):
                other.load_state_dict(state)
        with pytest.raises(UsageError, match="with one set, but this loader has a mix"):
            wds.mix({a: 2, b: 1}).load_state_dict(a.state_dict())
        deep, deeper = (wds.mix([wds.mix({a: weight, b: 1}), c]) for weight in (2, 3))
        with pytest.raises(UsageError, match="another weight of set 0 of set 0: 2, but this loader has 3"):
            deeper.load_state_dict(deep.state_dict())
        wds.mix({a: 1, b: 1}).load_state_dict(state, force=True)

    def test_pickles_small(self, sets: Sets) -> None:
        data = wds.mix(list(zip(sets(), [3, 2, 1])), stop="all").listed(2)
        expected = list(data)
        data.set_epoch(0)
        packed = pickle.dumps(data)
        assert len(packed) < 8000
        assert list(pickle.loads(packed)) == expected


class TestStages:
    def test_of_a_set_are_for_its_samples(self, sets: Sets) -> None:
        a, b, _ = sets()
        found = list(wds.mix({a.map(str.upper): 1, b.select(lambda x: x != "b3"): 1}, stop="all"))
        assert [item for item in found if item[0] == "A"] == [f"A{number}" for number in range(23)]
        assert [item for item in found if item[0] == "b"] == [f"b{n}" for n in range(11) if n != 3]

    def test_what_a_set_leaves_out_is_counted(self, sets: Sets) -> None:
        a, b, _ = sets(named=False)
        data = wds.mix([a, b.select(lambda sample: sample["cls"] != b"0")], stop="all")
        assert len(list(data)) == 23 + 7
        [dropped] = {json.dumps(sorted(one.items())) for one in [data.stats()["dropped"]]}
        assert sum(n for shard in data.stats()["dropped"].values() for n in shard.values()) == 4, dropped
        assert sum(number for _, _, number in data._take_tally()[0]) == 4
        assert data.stats()["dropped"] == {}

    def test_that_cannot_be_exact_are_refused(self, sets: Sets) -> None:
        a, b, _ = sets()
        with pytest.raises(
            UsageError, match=r"a WebDataset with a generator in compose\(\) cannot be mixed"
        ) as error:
            wds.mix([a.compose(lambda items: items), b])
        assert "wds.RandomMix" in str(error.value.hint)
        for plain in range(3), iter, lambda: iter(()), wds.DataPipeline(lambda: iter(range(3))):
            with pytest.raises(UsageError, match="cannot be mixed") as error:
                wds.mix([plain, b])
            assert "wds.RandomMix" in str(error.value.hint)
        with pytest.raises(UsageError, match="batches cannot be mixed"):
            wds.mix([a.batched(3), b])
        with pytest.raises(UsageError, match="mcached"):
            wds.mix([a, b]).mcached()

    def test_a_set_may_be_sliced_and_thinned(self, sets: Sets) -> None:
        a, b, _ = sets()
        found = list(wds.mix([a.slice(5, 9), b.rsample(0.5)], stop="all"))
        assert [item for item in found if item[0] == "a"] == ["a5", "a6", "a7", "a8"]
        assert len([item for item in found if item[0] == "b"]) == 6

    def test_a_shuffle_of_the_mix(self, sets: Sets) -> None:
        """Sets that are shuffled already stay in their shares; others are shuffled together."""
        shuffled = wds.mix(sets(shuffle="window"), stop="all")
        assert list(shuffled.shuffle(100)) == list(wds.mix(sets(shuffle="window"), stop="all"))
        plain = wds.mix(sets(), stop="all")
        found = list(plain.shuffle(100))
        assert found != list(wds.mix(sets(), stop="all"))
        assert sorted(found) == sorted(plain)

    def test_labels(self, folder: Path, sets: Sets) -> None:
        address = f"{folder}/a/a-manifest.json"
        _, b, c = sets(named=False)
        inner = wds.mix({"bee": (b, 1), "sea": (c, 1)}, label="__set__")
        found = Counter(one["__set__"] for one in wds.mix({address: 1, "in": (inner, 1)}, label="__set__"))
        assert set(found) == {address, "in/bee", "in/sea"}
        other = wds.mix([b, inner], label="set")
        assert {(one["set"], one.get("__set__")) for one in other} == {
            ("0", None),
            ("1", "bee"),
            ("1", "sea"),
        }
        assert all("__set__" not in one for one in wds.mix([b, c]))
        with pytest.raises(UsageError, match=r'label="json": sample "n00/img0000" has a field of this name'):
            list(wds.mix({address: 1}, label="json"))
        for label in ("__key__", "__url__", "", 5):
            with pytest.raises(UsageError, match="cannot be the name of a new field"):
                wds.mix([b, c], label=label)  # type: ignore[arg-type]


class TestAmounts:
    def test_a_set_is_repeated_and_another_chosen_from(self, sets: Sets) -> None:
        a, b, c = sets(shuffle="window")
        data = wds.mix({"a": a, "b": b, "c": c}, repeat={"a": 1.5, "c": 0.5}, choose={"b": 4})
        epochs = [list(data) for _ in range(20)]
        for found in epochs:
            assert Counter(item[0] for item in found) == {"a": 34, "b": 4, "c": 4}
            assert Counter(Counter(item for item in found if item[0] == "a").values()) == {1: 12, 2: 11}
            assert len({item for item in found if item[0] == "b"}) == 4
            assert len({item for item in found if item[0] == "c"}) == 4
            assert len(data) == len(found)
        twice = [{item for item, times in Counter(found).items() if times == 2} for found in epochs]
        assert twice[0] != twice[1]
        assert set.union(*twice) == {f"a{number}" for number in range(23)}
        chosen = [{item for item in found if item[0] == "b"} for found in epochs]
        assert chosen[0] != chosen[1]
        assert set.union(*chosen) == {f"b{number}" for number in range(11)}

    def test_more_than_all_are_whole_passes_and_a_part(self, sets: Sets) -> None:
        found = Counter(wds.mix(sets("bc"), choose={"0": 25}, repeat={"1": 3}))
        assert Counter(times for item, times in found.items() if item[0] == "b") == {2: 8, 3: 3}
        assert {times for item, times in found.items() if item[0] == "c"} == {3}
        assert Counter(wds.mix(sets("bc"), repeat={})) == Counter(wds.mix(sets("bc"), stop="all"))

    def test_of_addresses_with_labels(self, folder: Path) -> None:
        addresses = {name: f"{folder}/{name}/{name}-manifest.json" for name in "ab"}
        data = wds.mix(addresses, choose={"a": 5}, label="of", shuffle="window")
        assert Counter(sample["of"] for sample in data) == {"a": 5, "b": 11}

    def test_packs_of_a_mix_with_amounts(self, sets: Sets) -> None:
        def made() -> Any:
            a, b, _ = sets(shuffle="window", named=False)
            mixed = wds.mix({"a": a, "b": b}, repeat={"a": 1.5}, choose={"b": 4})
            return mixed.packed(300, "len(json)", collation_fn=list)

        with pytest.warns(UserWarning, match="reading payloads"):
            first = made()
        with pytest.warns(UserWarning, match="reading payloads"):
            second = made()
        whole, part = list(first), list(islice(second, 2))
        assert sum(map(len, whole)) == 38
        assert whole[:2] == part

    def test_a_state_of_other_amounts_is_refused(self, sets: Sets) -> None:
        state = wds.mix(sets("ab"), choose={"0": 4}).state_dict()
        wds.mix(sets("ab"), choose={"0": 4}).load_state_dict(state)
        with pytest.raises(UsageError, match="of set 0"):
            wds.mix(sets("ab"), choose={"0": 5}).load_state_dict(state)

    def test_usage(self, folder: Path, sets: Sets) -> None:
        a, b, _ = sets()
        for how, what in [
            ({"repeat": {"x": 2}}, "repeat= names a set that the mix does not have: x"),
            ({"choose": {"x": 2}}, "choose= names a set that the mix does not have: x"),
            ({"choose": {"a": 2}, "repeat": {"a": 2}}, "both name the set a"),
            ({"choose": {"a": 0}}, "must be at least 1"),
            ({"choose": {"a": 1.5}}, "not a whole number"),
            ({"repeat": {"a": 0}}, "a repeat= of 0"),
            ({"repeat": {"a": "much"}}, "is not a repeat="),
            ({"repeat": {"a": 2}, "stop": "first"}, "cannot be combined"),
            ({"repeat": {"a": 2}, "weights": [(0, {"a": 1, "b": 1})]}, "cannot be combined"),
        ]:
            with pytest.raises(UsageError, match=what):
                wds.mix({"a": a, "b": b}, **how)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="set a of the mix has a weight"):
            wds.mix({"a": (a, 2), "b": (b, 1)}, repeat={"a": 2})
        with pytest.raises(UsageError, match="needs a name"):
            wds.mix({a: 2, b: 1}, repeat={"a": 2})
        with pytest.raises(UsageError, match="7 cannot be mixed"):
            wds.mix({"a": a, "b": 7}, repeat={"a": 2})
        with pytest.raises(UsageError, match="has no end"):
            wds.mix({"a": sets("a")[0].repeat(), "b": b}, choose={"a": 2})
        with pytest.raises(UsageError, match="has no samples"):
            wds.mix({"a": a.slice(0), "b": b}, choose={"a": 2})
        inner = wds.mix([part.listed(2) for part in sets("bc")], per="batch", stop="all")
        assert len(wds.mix({"a": a.listed(2), "b": inner}, repeat={"b": 2}, per="batch")) == 12 + 2 * 10
        with pytest.raises(UsageError, match="mix of whole batches"):
            wds.mix({"a": a.listed(2), "b": inner}, choose={"b": 5}, per="batch")
        stream = wds.WebDataset([f"pipe:cat {folder}/a/a-000000.tar"])
        with pytest.raises(UsageError, match="need sets with random access"):
            wds.mix({"a": stream, "b": b}, repeat={"b": 2})


class TestChangingWeights:
    WEIGHTS: Any = ((0, {"a": 1, "b": 0}), (20, {"a": 1, "b": 1}), (40, {"a": 0, "b": 3}))

    def shares(self, batches: list[list[str]]) -> list[int]:
        return [sum(item[0] == "b" for item in batch) for batch in batches]

    def test_shares_change_linearly_and_sets_repeat_in_their_own_orders(self, sets: Sets) -> None:
        a, b, _ = sets(shuffle="window", seed=3)
        data = wds.mix({"a": a, "b": b}, weights=self.WEIGHTS).listed(10)
        batches = list(islice(data, 60))
        found = self.shares(batches)
        assert found[0] == 0
        assert all(
            abs(count - (step / 4 if step < 20 else 5 + (step - 20) / 4)) < 1
            for step, count in enumerate(found[:40])
        )
        assert abs(sum(found[:40]) - 195) <= 3
        assert found[40:] == [10] * 20
        for part in (sets("a", shuffle="window", seed=3)[0], sets("b", shuffle="window", seed=3)[0]):
            name = next(iter(part))[0]
            line = [item for batch in batches for item in batch if item[0] == name]
            alone = part.with_epoch(len(line))
            assert line == list(alone)
        with pytest.raises(TypeError, match="is unknown"):
            len(data)

    def test_steps_are_counted_through_all_epochs(self, sets: Sets) -> None:
        def made(steps: int) -> Any:
            a, b, _ = sets(shuffle="window")
            return (
                wds.mix({"a": a, "b": b}, weights=self.WEIGHTS, seed=None)
                .listed(10)
                .with_epoch(batches=steps)
            )

        short = made(7)
        assert len(short) == 7
        assert [batch for _ in range(6) for batch in short] == list(made(42))

    def test_whole_batches(self, sets: Sets) -> None:
        a, b, _ = (part.listed(2) for part in sets())
        data = wds.mix({"a": a, "b": b}, weights=self.WEIGHTS, per="batch").with_epoch(batches=60)
        found = list(data)
        assert all(len({item[0] for item in batch}) == 1 for batch in found)
        kinds = "".join(batch[0][0] for batch in found)
        assert kinds[0] == "a"
        assert abs(kinds[:40].count("b") - 20) <= 3
        assert set(kinds[40:]) == {"b"}

    def test_the_order_is_pinned(self) -> None:
        points = ((0, shares_of([1, 0, 0])), (4, shares_of([1, 1, 2])))
        found, samples = Changing(points, 6, 0).locate(numpy.arange(30))
        assert found.tolist() == [
            0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 1, 0, 0, 2, 0, 0, 2, 1, 2, 0, 0, 2, 2, 1, 2, 0, 2, 0,
        ]  # fmt: skip
        for number in range(3):
            assert (samples[found == number] == numpy.arange((found == number).sum())).all()

    def test_equal_shares_are_exact_over_1024_steps_and_far_steps_cost_little(self) -> None:
        schedule = Changing(((10, shares_of([1, 2])), (1_000_000, shares_of([5, 3]))), 64, 7)
        far = 64 * 1024 * 10**9
        found, samples = schedule.locate(numpy.arange(far, far + 64 * 1024))
        assert numpy.bincount(found).tolist() == [40960, 24576]
        assert samples[found == 1].tolist() == list(
            range(int(samples[found == 1][0]), int(samples[found == 1][0]) + 24576)
        )
        begin, _ = schedule.locate(numpy.arange(0, 640))
        assert abs((begin == 1).sum() - 640 * 2 / 3) <= 2

    @pytest.mark.exhaustive
    def test_real_workers_resume_with_another_number(self, sets: Sets) -> None:
        pytest.importorskip("torch")

        def loader(workers: int) -> Any:
            a, b, _ = sets(shuffle="window")
            data = wds.mix({"a": a, "b": b}, weights=self.WEIGHTS)
            return wds.WebLoader(data, batch_size=4, num_workers=workers, collate_fn=list)

        first = loader(2)
        given = list(islice(first, 9))
        again = loader(0)
        again.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert given + list(islice(again, 9)) == list(islice(loader(0), 18))

    def test_a_state_of_other_weights_is_refused(self, sets: Sets) -> None:
        a, b, _ = sets()
        state = wds.mix({"a": a, "b": b}, weights=self.WEIGHTS).listed(4).state_dict()
        with pytest.raises(UsageError, match="another schedule"):
            wds.mix({"a": a, "b": b}, weights=self.WEIGHTS[:2]).listed(4).load_state_dict(state)
        with pytest.raises(UsageError, match="batches of 4 samples"):
            wds.mix({"a": a, "b": b}, weights=self.WEIGHTS).listed(5).load_state_dict(state)

    def test_usage(self, sets: Sets) -> None:
        a, b, _ = sets()
        both = {"a": a, "b": b}
        for weights, what in [
            ([], "weights= is empty"),
            ({"a": 1, "b": 2}, "not a list of steps"),
            ([{"a": 1, "b": 2}], "not a list of steps"),
            ([(0, {"a": 1})], "weights of step 0 has no set b"),
            ([(0, {"a": 1, "b": 1, "x": 2})], "does not have: x"),
            ([(5, {"a": 1, "b": 1}), (5, {"a": 1, "b": 2})], "step 5 is listed after step 5"),
            ([(-1, {"a": 1, "b": 1})], "must be at least 0"),
            ([(0, {"a": 0, "b": 0})], "all weights of a step are 0"),
            ([(0, {"a": -1, "b": 2})], "a weight of -1"),
            ([(0, {"a": 1, "b": 0})], "set b of the mix has the weight 0 at all steps"),
            ([(0, {"a": 1, "b": 1}), (1 << 50, {"a": 1, "b": 2})], "too many steps"),
        ]:
            with pytest.raises(UsageError, match=what):
                list(wds.mix(both, weights=weights).listed(4))  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="the same known size"):
            list(wds.mix(both, weights=self.WEIGHTS))
        with pytest.raises(UsageError, match="the same known size"):
            wds.mix(both, weights=self.WEIGHTS).packed(100, "len(json)")
        with pytest.raises(UsageError, match="cannot follow a mix whose weights change"):
            wds.mix(both, weights=self.WEIGHTS).shuffle(10)


class TestNested:
    def test_shares_multiply(self, sets: Sets) -> None:
        a, b, c = sets()
        inner = wds.mix({b: 2, c: 1}, stop="repeat")
        found = list(wds.mix({a: 1, inner: 1}, stop="first"))[:24]
        assert Counter(item[0] for item in found) == {"a": 12, "b": 8, "c": 4}

    def test_is_resumed_and_shared(self, sets: Sets) -> None:
        def make(size: int, **share: Any) -> Any:
            a, b, c = sets(shuffle="window")
            inner = wds.mix({b.map(str.upper): 2, c: 1}, stop="repeat", seed=4)
            return wds.mix({a: 1, inner: 2}, stop="all", tail="uneven", **share).listed(size)

        expected = world_of(make, 4, 1, 1, 0, 1)
        assert world_of(make, 4, 2, 3, 2, 1) == {n: expected[n] for n in range(2, len(expected))}


class TestPerBatch:
    def make(self, sets: Sets, size: int, **how: Any) -> Any:
        parts = [part.listed(size) for part in sets(shuffle="window")]
        return wds.mix(list(zip(parts, [3, 2, 1])), per="batch", tail="uneven", **how)

    @pytest.mark.parametrize("stop", ["first", "all", "repeat"])
    def test_global_batches_are_of_one_set(self, sets: Sets, stop: Any) -> None:
        def make(size: int, **share: Any) -> Any:
            return self.make(sets, size, stop=stop, **share)

        expected = world_of(make, 4, 1, 1, 0, 1)
        assert all(len({item[0] for item in batch}) == 1 for batch in expected.values())
        for world, workers in (2, 1), (4, 3), (1, 2):
            assert world_of(make, 4, world, workers, 1, 1) == {
                n: expected[n] for n in range(1, len(expected))
            }

    def test_shares_are_of_batches(self, sets: Sets) -> None:
        found = [batch[0][0] for batch in self.make(sets, 2, stop="repeat")]
        for first in range(0, len(found) - 6, 6):
            assert Counter(found[first : first + 6]) == {"a": 3, "b": 2, "c": 1}

    def test_all_gives_every_sample_once_and_short_last_batches(self, sets: Sets) -> None:
        data = self.make(sets, 4, stop="all")
        batches = list(data)
        assert len(batches) == 6 + 3 + 2
        assert sorted(item for batch in batches for item in batch) == sorted(
            f"{name}{n}" for name, length in (("a", 23), ("b", 11), ("c", 7)) for n in range(length)
        )
        assert Counter(map(len, batches)) == {4: 8, 3: 3}

    def test_each_set_has_its_own_stages(self, sets: Sets) -> None:
        a, b, _ = sets()
        parts = [
            a.batched(3, collation_fn=tuple).map(lambda batch: ("A", *batch)),
            b.listed(3, partial=False),
        ]
        found = list(wds.mix(parts, per="batch", stop="all"))
        assert found.count(("A", "a0", "a1", "a2")) == 1
        assert [batch for batch in found if isinstance(batch, list)] == [
            ["b0", "b1", "b2"],
            ["b3", "b4", "b5"],
            ["b6", "b7", "b8"],
        ]
        spread = [a.listed(3).unlisted(), b.listed(3)]
        assert {type(one) for one in wds.mix(spread, per="batch")} == {str, list}

    def test_nested(self, sets: Sets) -> None:
        def make(size: int, **share: Any) -> Any:
            a, b, c = (part.listed(size) for part in sets())
            inner = wds.mix([b, c], per="batch", stop="repeat")
            return wds.mix([a, inner], per="batch", tail="uneven", **share)

        expected = world_of(make, 4, 1, 1, 0, 0)
        assert all(len({item[0] for item in batch}) == 1 for batch in expected.values())
        assert world_of(make, 4, 2, 1, 0, 0) == expected

    @pytest.mark.parametrize("tail", [None, "drop", "pad", "uneven"])
    def test_every_set_ends_as_the_tail_says(self, sets: Sets, tail: Any) -> None:
        """Of 23, 11 and 7 samples in global batches of 8 the last have 7, 3 and 7."""
        counts, given = [], []
        for rank in range(8):
            parts = [part.listed(1) for part in sets(shuffle="window")]
            data = wds.mix(parts, per="batch", stop="all", rank=rank, world_size=8, tail=tail)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                mine = [item for [item] in data]
            counts.append(len(mine))
            given += mine
            if tail == "uneven":
                with pytest.raises(TypeError, match="different lengths"):
                    len(data)
            else:
                assert len(data) == len(mine)
        if tail == "uneven":
            assert counts == [6, 6, 6, 5, 5, 5, 5, 3]
        else:
            assert len(set(counts)) == 1
        assert len(given) == {None: 48, "pad": 48, "drop": 24, "uneven": 41}[tail]
        assert len(set(given)) == (24 if tail == "drop" else 41)

    def test_a_tail_of_a_set_is_its_own(self, sets: Sets) -> None:
        a = sets("a", tail="drop")[0]
        [b] = sets("b")
        found = [
            len(batch) for batch in wds.mix([a.listed(8), b.listed(8)], per="batch", stop="all", tail="pad")
        ]
        assert sorted(found) == [8] * 4
        assert len(list(wds.mix([a, b], stop="all").listed(8))) == 34 // 8
        with pytest.raises(UsageError, match="differ in tail=: drop, pad"):
            wds.mix([a, *sets("b", tail="pad")], stop="all")
        assert len(list(wds.mix([a, *sets("b", tail="pad")], stop="all", tail="uneven").listed(8))) == 5

    def test_state_of_another_tail(self, sets: Sets) -> None:
        a, b, _ = (part.listed(4) for part in sets())
        state = wds.mix([a, b], per="batch", stop="all").state_dict()
        wds.mix([a, b], per="batch", stop="all", tail="pad").load_state_dict(state)
        with pytest.raises(UsageError, match="another tail of set 0: None, but this loader has 'drop'"):
            wds.mix([a, b], per="batch", stop="all", tail="drop").load_state_dict(state)

    def test_a_slice_of_a_sets_batches_is_the_same_for_any_ranks(self, sets: Sets) -> None:
        def make(size: int, **share: Any) -> Any:
            a, b, c = (part.listed(size) for part in sets(shuffle="window"))
            inner = wds.mix([b, c], per="batch", stop="all").slice(1, None)
            parts = [a.slice(1, 3), inner, c.with_epoch(batches=2), b.repeat(2)]
            return wds.mix(parts, per="batch", stop="all", tail="uneven", **share)

        expected = world_of(make, 4, 1, 1, 0, 1)
        assert world_of(make, 4, 2, 3, 2, 1) == {n: expected[n] for n in range(2, len(expected))}
        assert world_of(make, 4, 4, 1, 0, 1) == expected

    def test_what_cannot_be_is_refused(self, sets: Sets) -> None:
        a, b, _ = sets()
        with pytest.raises(UsageError, match="shuffle\\(\\) cannot follow a mix of whole batches"):
            wds.mix([a.batched(2), b.batched(2)], per="batch").shuffle(10)
        with pytest.raises(UsageError, match="is not a multiple of the global batch of 2"):
            list(wds.mix([a.batched(2), b.batched(2)], per="batch").with_epoch(samples=5))
        with pytest.raises(
            UsageError, match="set 1 of the mix has 11 samples, fewer than a global batch of 12"
        ):
            list(wds.mix([a.batched(12), b.batched(12)], per="batch"))
        with pytest.raises(UsageError, match="needs datasets of batches"):
            wds.mix([a.batched(3), b], per="batch")
        with pytest.raises(UsageError, match="per='epoch' is not one of"):
            wds.mix([a, b], per="epoch")  # type: ignore[arg-type]

    def test_the_batch_stage_is_the_sets_own(self, sets: Sets) -> None:
        data = self.make(sets, 4)
        assert isinstance(data.pipeline.batch, Batch)
        assert data.pipeline.batch.size == 4


class TestWebdatasetsNames:
    @pytest.mark.parametrize("longest", [False, True])
    @pytest.mark.parametrize("names", ["abc", "cba", "bac", "cb", "aabc"])
    def test_round_robin_is_webdatasets(self, sets: Sets, names: str, longest: bool) -> None:
        webdataset = pytest.importorskip("webdataset")
        parts = sets(names)
        theirs = webdataset.RoundRobin([list(part) for part in sets(names)], longest=longest)
        assert list(wds.RoundRobin(parts, longest=longest)) == list(theirs)

    def test_random_mix(self, sets: Sets) -> None:
        a, b, _ = sets()
        assert list(wds.RandomMix([a, b], [0.7, 0.3])) == list(wds.mix({a: 7, b: 3}, stop="first"))
        assert list(wds.RandomMix([a, b], longest=True)) == list(wds.mix([a, b], stop="all"))
        assert len(list(wds.RandomMix([a, b], probs=[1, 1], longest=True))) == 34
        assert list(wds.RandomMix([a, b], seed=1)) != list(wds.RandomMix([a, b], seed=2))
        with pytest.raises(UsageError, match="1 probabilities for 2 datasets"):
            wds.RandomMix([a, b], [1])


class TestErrors:
    def test_usage(self, folder: Path, sets: Sets) -> None:
        a, b, _ = sets()
        with pytest.raises(UsageError, match="a mix needs at least one set"):
            wds.mix({})
        with pytest.raises(UsageError, match="weight of 0"):
            wds.mix({a: 1, b: 0})
        with pytest.raises(UsageError, match=r"stop=.* is not one of"):
            wds.mix([a, b], stop="last")  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="set none of the mix has no samples"):
            len(wds.mix({"all": (a, 1), "none": (b.slice(0), 1)}))
        for sets_without in (f"{folder}/a", a, None, 5):
            with pytest.raises(UsageError, match="needs several sets"):
                wds.mix(sets_without)
        for value in (a, [f"{folder}/a"], (a, 1, 2)):
            with pytest.raises(UsageError, match="a set of the mix, 'x', has no weight"):
                wds.mix({"x": value})
        with pytest.raises(UsageError, match="is not a weight"):
            wds.mix({"x": f"{folder}/a"})
        with pytest.raises(UsageError, match="a WebLoader cannot be mixed"):
            wds.mix([wds.WebLoader(a)])
        with pytest.raises(UsageError, match=r"mix\(shuffle=\) needs addresses of shards"):
            wds.mix([a, b], shuffle="window")
        with pytest.raises(UsageError, match="7 cannot be mixed"):
            wds.mix([a, 7])
        with pytest.raises(UsageError, match="must be a string"):
            wds.mix([a, [1, 2]])
        with pytest.raises(WdsError, match="no such file"):
            wds.mix({f"{folder}/nothing.tar": 1})

    def test_addresses_take_options(self, folder: Path) -> None:
        addresses = [f"{folder}/{name}/{name}-manifest.json" for name in "ab"]
        plain = [one["json"] for one in wds.mix(addresses, stop="all")]
        mixed = [one["json"] for one in wds.mix(addresses, stop="all", shuffle="window")]
        assert plain != mixed
        assert sorted(plain) == sorted(mixed)
        lists = wds.mix([([addresses[0], addresses[1]], 1)])
        assert len(lists) == 34
        together = wds.mix(addresses, stop="all", batch_size=8, rank=0, world_size=2)
        assert together.state_dict()["batch"] == 16

    @pytest.mark.parametrize("policy", ["raise", "skip", "substitute"])
    def test_a_broken_shard_is_what_its_set_says(self, folder: Path, tmp_path: Path, policy: Any) -> None:
        shards = write_set(tmp_path / "x", 12, 4, prefix="x")
        good = wds.WebDataset(f"{folder}/b/b-manifest.json").map(Name("b"))
        broken = wds.WebDataset(shards, on_error=policy).map(Name("x"))
        path = Path(shards[1])
        path.write_bytes(path.read_bytes()[:2000])
        data = wds.mix([good, broken], stop="all")
        if policy == "raise":
            with pytest.raises(DataError):
                list(data)
            return
        with pytest.warns(UserWarning, match="skipped"):
            found = list(data)
        assert [item for item in found if item[0] == "b"] == [f"b{number}" for number in range(11)]
        others = [item for item in found if item[0] == "x"]
        lost = 12 - len(set(others))
        assert lost > 0
        assert len(others) == (12 if policy == "substitute" else 12 - lost)
        assert sum(n for one in data.stats()["dropped"].values() for n in one.values()) == lost


class TestStreams:
    @pytest.fixture
    def parts(self, folder: Path, sets: Sets) -> Callable[[], list[Any]]:
        """a and b as streams, c as it is."""

        def make() -> list[Any]:
            streams = []
            for name in "ab":
                shards = sorted(folder.glob(f"{name}/{name}-*.tar"))
                streams.append(wds.WebDataset([f"pipe:cat {shard}" for shard in shards]).map(Name(name)))
            return [*streams, *sets("c")]

        return make

    @pytest.mark.parametrize("stop", ["first", "all", "repeat"])
    @pytest.mark.parametrize("quotas", [(1, 1, 1), (4, 2, 1)])
    def test_shares_are_those_of_places(self, parts: Any, sets: Sets, stop: Any, quotas: Any) -> None:
        streamed = list(wds.mix(list(zip(parts(), quotas)), stop=stop, seed=3))
        placed = list(wds.mix(list(zip(sets(), quotas)), stop=stop, seed=3))
        assert streamed[: len(placed)] == placed
        assert len(streamed) - len(placed) <= (sum(quotas) if stop == "repeat" else 0)

    def test_round_robin(self, parts: Any, sets: Sets) -> None:
        for longest in False, True:
            assert list(wds.RoundRobin(parts(), longest)) == list(wds.RoundRobin(sets(), longest))

    def test_every_sample_once_for_any_ranks(self, parts: Any) -> None:
        for world in 1, 2, 3, 6:
            found = []
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("wdscli.loader.streams.warnings.warn", lambda *_, **__: None)
                for rank in range(world):
                    found += list(wds.mix(parts(), stop="all", rank=rank, world_size=world).shuffle(5))
            assert len(found) == len(set(found)) == 41

    @pytest.mark.exhaustive
    def test_goes_on_from_anywhere_and_refuses_others(self, parts: Any) -> None:
        def make() -> Any:
            return wds.mix(list(zip(parts(), [3, 1, 1])), stop="repeat", label=None).listed(3)

        data = make()
        expected = [*data, *data]
        for stopped in range(0, len(expected), 5):
            data = make()
            given = list(islice((one for _ in range(2) for one in data), stopped))
            state = json.loads(json.dumps(data.state_dict()))
            other = make()
            other.load_state_dict(state)
            while other.epoch < 2:
                given += list(other)
            assert given == expected
        data = wds.mix(parts(), rank=0, world_size=3).listed(1)
        with pytest.warns(UserWarning, match="ranks may see"):
            next(iter(data))
        other = make()
        other.load_state_dict(data.state_dict(), force=True)
        with pytest.raises(UsageError, match=r"was saved by \(3, 1\) ranks and workers"):
            list(other)

    def test_a_set_that_repeats_by_itself(self, parts: Any) -> None:
        a, b, c = parts()
        found = list(wds.mix([a.repeat(), b.with_epoch(4), c.slice(3)], stop="all").with_epoch(60))
        assert len(found) == 60
        assert [item for item in found if item[0] == "b"] == [f"b{n}" for n in range(4)]
        assert len([item for item in found if item[0] == "c"]) == 3

    def test_labels_and_what_is_refused(self, parts: Any) -> None:
        a, b, _ = parts()
        assert {one["of"] for one in wds.mix({"x": (raw(a), 1), "y": (raw(b), 2)}, label="of")} == {"x", "y"}
        with pytest.raises(UsageError, match='per="batch" needs sets'):
            wds.mix([a.listed(2), b.listed(2)], per="batch")
        with pytest.raises(UsageError, match='tail="pad" needs sets'):
            wds.mix([a, b], tail="pad")
        with pytest.raises(TypeError, match="is unknown"):
            len(wds.mix([a, b]))


def raw(data: Any) -> Any:
    """Without the stages."""
    return wds.WebDataset(data.source.addresses)


@pytest.mark.exhaustive
def test_fifty_sets_do_not_use_up_the_files_of_a_process(tmp_path: Path) -> None:
    """Every set would hold all of its shards open, 600 in all, where a process may have 256."""
    for number in range(20):
        write_set(tmp_path / f"{number}", 60, 2, image=10, prefix="s")
    script = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import wdscli.loader as wds
data = wds.mix([f"{tmp_path}/{{n}}/s-manifest.json" for n in range(20)], shuffle="full", stop="all")
print(len({{(one["__url__"], one["__key__"]) for one in data}}))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "1200", done.stderr


class TestTables:
    """What can be looked at by number and key is mixed too, with what was chosen of it."""

    def test_a_table_and_views_of_it(self, tmp_path: Path) -> None:
        url = make_set(tmp_path / "a", 20, 6)
        table = wds.IndexedDataset(url).map(Cls())
        found = list(
            wds.mix([table[:10:2], table.select("cls >= 17"), table.select(keys="n001?")], stop="all")
        )
        assert sorted(found) == sorted([0, 2, 4, 6, 8, 17, 18, 19, *range(10, 20)])
        assert list(wds.mix([table])) == list(range(20))
        for world in (2, 3):
            ranks = [
                list(wds.mix([table, table[::2]], stop="all", rank=rank, world_size=world))
                for rank in range(world)
            ]
            assert Counter(chain(*ranks)) == Counter(chain(range(20), range(0, 20, 2)))

    def test_it_is_shuffled_by_the_mix_and_goes_on_at_a_state(self, tmp_path: Path) -> None:
        url = make_set(tmp_path / "a", 20, 6)

        def made() -> Any:
            return wds.mix(
                [wds.IndexedDataset(url).map(Cls()), wds.WebDataset(url).map(Cls())], stop="all"
            ).shuffle()

        data, other = made().listed(4), made().listed(4)
        whole = list(data)
        assert sorted(chain(*whole)) == sorted([*range(20)] * 2) != list(chain(*whole))
        list(islice(other, 3))
        resumed = made().listed(4)
        resumed.load_state_dict(other.state_dict())
        assert list(resumed) == whole[3:]
        with pytest.raises(UsageError, match="other data"):
            wds.mix([wds.IndexedDataset(url)[::2], wds.WebDataset(url)], stop="all").shuffle().listed(
                4
            ).load_state_dict(other.state_dict())

    def test_select_and_slice_of_sets(self, tmp_path: Path) -> None:
        url = make_set(tmp_path / "a", 20, 6)
        data = wds.WebDataset(url).map(Cls())
        found = list(
            wds.mix(
                [wds.WebDataset(url, keys="n001?").map(Cls()), data.slice(3), data.select(Even())], stop="all"
            )
        )
        assert sorted(found) == sorted([*range(10, 20), 0, 1, 2, *range(0, 20, 2)])
