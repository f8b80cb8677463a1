"""Batches by values: buckets, budgets and packs. In any world every sample comes once, every rank has as many batches,
and a run that is killed goes on exactly, with other ranks and workers."""

from __future__ import annotations

import io
import json
import random
import warnings
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy
import pytest
from indexing import index
from loader_cases import RAGGED, Numbers, World, drawn_world, everything, value_of

import wdscli.loader as wds
from wdscli.errors import DataError, InputError, UsageError
from wdscli.loader import mix
from wdscli.loader.dataset import PositionDataset
from wdscli.loader.order import packs as packing
from wdscli.loader.order.batches import NO_BUDGET, WINDOW, Misfit, Rule, planned, rule_of_batches
from wdscli.shards import ShardWriter

LONGEST = "40"
"""Values are from 1 to 40."""
COUNTS = (13, 0, 1, 30, 7, 19, 2, 25, 4, 60, 33)
CELLS = {((0, 20), (0, 4)): 7, ((0, 20), (4, 8)): 3, ((20, 41), (0, 2)): 2, ((20, 41), (2, 8)): 5}
KINDS = [
    "buckets",
    "ranges",
    "grid",
    "cells",
    "budget",
    "budget within",
    "packs",
    "small packs",
    "packs in sequence",
    "packs within",
    "packs in sequence within",
]
EDGES = [8, 20, 33]


def planned_dataset(kind: str, window: int = 64, **how: Any) -> Any:
    """A function that makes a dataset of one rank, whose batches are lists of numbers."""
    words = ("same_bucket", "partial", "truncate", "drop", "balance")
    more = {name: how.pop(name) for name in words if name in how}
    source = how.pop("source", None)

    def make(**share: Any) -> PositionDataset:
        data = source() if source else PositionDataset(Numbers(COUNTS, seed=5), **how)
        if share:
            data = data._with(_rank=share["rank"], _world=share["world_size"])
        if kind == "buckets":
            return data.batched(6, bucket=LONGEST, buckets=EDGES, window=window, collation_fn=None, **more)
        if kind == "ranges":
            sizes = {(0, 20): 7, (20, 33): 3, (33, 41): 2}
            return data.batched(bucket=LONGEST, buckets=sizes, window=window, collation_fn=None, **more)
        if kind == "grid":
            how_bucketed: dict[str, Any] = {"bucket": [LONGEST, "7"], "buckets": [[8, 20], [3, 5, 6]]}
            return data.batched(6, **how_bucketed, window=window, collation_fn=None, **more)
        if kind == "cells":
            return data.batched(
                bucket=[LONGEST, "7"], buckets=CELLS, window=window, collation_fn=None, **more
            )
        if "budget" in kind:
            limits: dict[str, Any] = {"budget": 100, "length": LONGEST, "max_samples": 9}
            if kind == "budget within":
                limits["also"] = {"7": 15}
            return data.batched(**limits, window=window, collation_fn=None, **more)
        if kind == "small packs":
            more["max_samples"] = 5
        if "in sequence" in kind:
            more.update(max_samples=7, order="kept")
        if kind.endswith("within"):
            more["also"] = {"7": 15, "3": 12}
        return data.packed(100, LONGEST, window=window, collation_fn=list, **more)

    return make


def check_batch(kind: str, batch: list[int]) -> None:
    values = [value_of(number, LONGEST) for number in batch]
    if kind in ("grid", "cells"):
        [(first, second)] = {cell_of(kind, number) for number in batch}
        assert len(batch) <= (
            6 if kind == "grid" else {(0, 0): 7, (0, 1): 3, (1, 0): 2, (1, 1): 5}[first, second]
        )
        return
    if kind in ("buckets", "ranges"):
        edges = EDGES if kind == "buckets" else [20, 33]
        [bucket] = {sum(value >= edge for edge in edges) for value in values}
        assert len(batch) <= (6 if kind == "buckets" else (7, 3, 2)[bucket])
    elif "budget" in kind:
        assert len(batch) * max(values) <= 100
        assert len(batch) <= 9
    else:
        assert sum(values) <= 100
        assert len(batch) <= (5 if kind == "small packs" else 7 if "in sequence" in kind else 100)
    if kind.endswith("within"):
        assert sum(value_of(number, "7") for number in batch) <= 15
    if kind.startswith("packs") and kind.endswith("within"):
        assert sum(value_of(number, "3") for number in batch) <= 12


def cell_of(kind: str, number: int) -> tuple[int, int]:
    """The bucket of a sample by two numbers."""
    first, second = value_of(number, LONGEST), value_of(number, "7")
    if kind == "grid":
        return (first >= 8) + (first >= 20), (second >= 3) + (second >= 5) + (second >= 6)
    return int(first >= 20), int(second >= (2 if first >= 20 else 4))


def list_of_batches(ranks: list[list[list[int]]]) -> list[list[int]]:
    """The list that the ranks share: rank r has batches r, w + r, 2w + r, ..."""
    return [batch for step in zip(*ranks) for batch in step]


@pytest.mark.parametrize("first", [0, 17])
def test_any_world_has_the_same_list_and_resumes_exactly(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """A hundred random worlds, in two tests, which the fast tier runs both."""
    for case in range(first, first + 17):
        check_world(monkeypatch, case, 3)


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("case", range(40, 240))
def test_many_worlds(monkeypatch: pytest.MonkeyPatch, case: int) -> None:
    check_world(monkeypatch, case, 10)


MIXED = (13, 20, 7), (30,), (3, 3, 10)


def _mixed(seed: int) -> Any:
    sets = [PositionDataset(Numbers(counts, seed=seed + at)) for at, counts in enumerate(MIXED)]
    return mix({f"s{at}": (one, at + 1) for at, one in enumerate(sets)}, stop="all", seed=seed)


def check_world(monkeypatch: pytest.MonkeyPatch, case: int, times: int) -> None:
    draw = random.Random(case)
    for _ in range(times):
        kind = draw.choice(KINDS)
        tail = draw.choice(["even", "even", "drop", "pad", "uneven"])
        window = draw.choice([16, 50, 64, 1000])
        is_mix = draw.random() < 0.3
        counts, order = draw.choice([RAGGED, RAGGED, COUNTS]), "blocks" if case % 3 == 2 else "window"
        how: dict[str, Any] = {
            "source": lambda counts=counts, order=order, tail=tail: PositionDataset(
                Numbers(counts, 5, order), tail=tail
            )
        }
        if is_mix:
            seed = draw.randrange(9)
            how = {"source": lambda seed=seed, tail=tail: _mixed(seed)._with(_tail=tail)}
        make = planned_dataset(kind, window, **how)
        epoch = draw.randrange(3)
        alone = make(rank=0, world_size=1)
        alone.set_epoch(epoch)
        count, whole = len(alone), list(alone)
        assert count == len(whole)
        for batch in whole:
            check_batch(kind, batch)
        if is_mix:
            line = [number for part in MIXED for number in everything(part)]
        else:
            line = everything(counts)
        assert Counter(one for batch in whole for one in batch) == Counter(line)
        world, workers = drawn_world(draw)
        ranks = [World(monkeypatch, world, workers).of_rank(make, rank, epoch=epoch) for rank in range(world)]
        compare(ranks, whole, whole, tail, world)
        # Resumed at any batch, in another world.
        at = draw.randrange(len(ranks[0]) + 1) if ranks[0] else 0
        if ranks[0]:
            check_moved(make, epoch, ranks[0], at, draw.randrange(len(ranks[0]) + 3), world)
        first = make(rank=0, world_size=world)
        first.set_epoch(epoch)
        assert len(first) == len(ranks[0])
        items = iter(first)
        assert list(islice(items, at)) == ranks[0][:at]
        state = json.loads(json.dumps(first.state_dict()))
        assert len(json.dumps(state)) < 1024
        if at == len(ranks[0]):
            assert not list(items)
            state = first.state_dict()
            assert (state["epoch"], state["next"]) == (epoch + 1, 0)
            continue
        done = at * world
        world, workers = drawn_world(draw)
        again = World(monkeypatch, world, workers)
        rest = [again.of_rank(make, rank, state, epoch) for rank in range(world)]
        compare(rest, whole[done:], whole, tail, world)


def check_moved(make: Any, epoch: int, batches: list[Any], taken: int, skipped: int, world: int) -> None:
    """Rank 0 continues at a batch that it is moved to; ``batches`` are all its batches of the epoch."""
    data = make(rank=0, world_size=world)
    if taken < len(batches):
        data.seek(epoch, taken)
        assert list(data) == batches[taken:]
    data.set_epoch(epoch)
    assert list(islice(iter(data), taken)) == batches[:taken]
    if taken + skipped < len(batches):
        data.skip(skipped)
        assert list(data) == batches[taken + skipped :]
        return
    fresh = make(rank=0, world_size=world)
    fresh.set_epoch(epoch + 1)
    following, left = list(fresh), taken + skipped - len(batches)
    if left < len(following):
        data.skip(skipped)
        assert data.epoch == epoch + 1
        assert list(data) == following[left:]


def compare(ranks: list[Any], left: list[Any], whole: list[Any], tail: str, world: int) -> None:
    """The ranks share what is ``left`` of the list ``whole`` by the rules of ``tail``."""
    if tail == "drop":
        left = left[: len(left) // world * world]
    elif tail != "uneven":
        left = left + [whole[at % len(whole)] for at in range(-len(left) % world)]
    assert ranks == [left[rank::world] for rank in range(world)]


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_ranks_have_the_same_bucket_at_each_step(monkeypatch: pytest.MonkeyPatch, world: int) -> None:
    make = planned_dataset("buckets", 200, same_bucket=True)
    ranks = [World(monkeypatch, world, 2).of_rank(make, rank) for rank in range(world)]
    assert {len(batches) for batches in ranks} == {len(make(rank=0, world_size=world))}
    for step in zip(*ranks):
        for batch in step:
            check_batch("buckets", batch)
        check_batch("buckets", [batch[0] for batch in step][:6])
    given = Counter(one for batches in ranks for batch in batches for one in batch)
    assert set(given) == set(everything(COUNTS))
    # Only a bucket with fewer samples than ranks repeats some.
    assert sum(given.values()) - len(given) < world * 2


def test_groups_of_one_bucket_resume_with_a_part_of_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    make = planned_dataset("buckets", 200, same_bucket=4)
    alone = list(make(rank=0, world_size=1))
    ranks = [World(monkeypatch, 4, 0).of_rank(make, rank) for rank in range(4)]
    assert list_of_batches(ranks) == alone
    with pytest.raises(UsageError, match="not a multiple of the number of ranks, 3"):
        len(make(rank=0, world_size=3))


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["budget", "packs", "small packs", "budget within", "packs within"])
@pytest.mark.parametrize("window", [20, 64, 1000])
def test_balanced_batches_resume_with_a_part_of_the_ranks(
    monkeypatch: pytest.MonkeyPatch, kind: str, window: int
) -> None:
    make = planned_dataset(kind, window, balance=4)
    alone = list(make(rank=0, world_size=1))
    assert not len(alone) % 4
    for batch in alone:
        check_batch(kind, batch)
    assert {sample for batch in alone for sample in batch} == set(everything(COUNTS))
    ranks = [World(monkeypatch, 4, 1).of_rank(make, rank) for rank in range(4)]
    assert list_of_batches(ranks) == alone
    first = make(rank=0, world_size=4)
    batches = iter(first)
    for _ in range(3):
        next(batches)
    state = json.loads(json.dumps(first.state_dict()))
    rest = [World(monkeypatch, 2, 2).of_rank(make, rank, state) for rank in range(2)]
    assert list_of_batches(rest) == alone[12:]
    with pytest.raises(UsageError, match="balance=4 is not a multiple of the number of ranks, 3"):
        len(make(rank=0, world_size=3))


def steps_of(plan: Any, values: Any, world: int) -> list[list[Any]]:
    """The values of each batch of each step."""
    batches = numpy.split(values[plan.rows], plan.ends[:-1])
    return [batches[first : first + world] for first in range(0, len(batches), world)]


@pytest.mark.parametrize(
    ("kind", "world"), [("budget", 2), ("budget", 8), ("packed", 2), ("packed", 8), ("packed", 64)]
)
def test_ranks_have_equal_work_in_a_step(kind: Any, world: int) -> None:
    draw = numpy.random.default_rng(world)
    values = draw.lognormal(5.5, 1, 40_000).clip(1, 4096).astype(int).astype(float)
    rule = Rule(kind, "x", 4096 if kind == "packed" else 16_384)
    plan, alone = planned(values, rule._replace(together=world), 7), planned(values, rule, 7)
    assert sorted(plan.rows.tolist()) == list(range(len(values)))
    assert (plan.cells <= plan.room).all()
    steps = steps_of(plan, values, world)
    assert {len(step) for step in steps} == {world}
    assert len(plan.ends) - len(alone.ends) < world
    power = 2 if kind == "packed" else 1
    work = numpy.array(
        [[(batch**power).sum() if power == 2 else batch.max() for batch in step] for step in steps]
    )
    worse = work.max(1) > 1.1 * work.mean(1)
    assert worse.sum() <= max(2, 0.01 * len(steps)), work[worse]
    # As an oracle would do it: the batches in the order of their work, cut into steps; a last step has what is left.
    steps_by_work = sorted(map(sorted, work.tolist()))
    overlaps = sum(before[-1] > after[0] for before, after in pairwise(steps_by_work))
    assert overlaps <= 2 * bool(len(alone.ends) % world)


@pytest.mark.parametrize("lengths", [[4096] * 9, [4000, 96] * 9, [1], [9, 9], [3000] * 7 + [1000] * 30])
def test_balanced_packs_of_few_samples(lengths: list[int]) -> None:
    """Samples are repeated only if every pack has one sample."""
    values = numpy.array(lengths, dtype=float)
    plan = planned(values, Rule("packed", "x", 4096, together=8), 3)
    assert set(plan.rows.tolist()) == set(range(len(lengths)))
    assert not len(plan.ends) % 8
    assert (plan.used <= 4096).all()
    counts = numpy.diff([0, *plan.ends])
    assert counts.min() >= 1
    assert len(plan.rows) == len(lengths) or counts.max() == 1


@pytest.mark.parametrize("most", [0, 3, 40])
def test_packs_in_sequence_as_a_loop_fills_them(most: int) -> None:
    lengths = numpy.random.default_rng(most).integers(1, 300, 2000)
    packs: list[list[int]] = [[]]
    for row, length in enumerate(lengths):
        if sum(lengths[packs[-1]]) + length > 1000 or (most and len(packs[-1]) == most):
            packs.append([])
        packs[-1].append(row)
    plan = planned(lengths.astype(float), Rule("packed", "x", 1000, most=most, in_sequence=True), 1)
    assert [rows.tolist() for rows in numpy.split(plan.rows, plan.ends[:-1])] == packs


def oracle_of_buckets(values: list[float], edges: list[float], size: int) -> list[list[int]]:
    """As a program would do it that has a list for each bucket."""
    waiting: dict[int, list[int]] = {}
    done = []
    for row, value in enumerate(values):
        bucket = sum(value >= edge for edge in edges)
        waiting.setdefault(bucket, []).append(row)
        if len(waiting[bucket]) == size:
            done.append(waiting.pop(bucket))
    return done + list(waiting.values())


@pytest.mark.parametrize("seed", range(5))
def test_buckets_as_the_oracle_fills_them(seed: int) -> None:
    values = numpy.random.default_rng(seed).lognormal(0, 0.5, 3000)
    rule = Rule("bucket", "x", edges=(0.6, 0.8, 1.25, 1.6), sizes=(64,) * 5)
    found = planned(values, rule, seed)
    batches = [rows.tolist() for rows in numpy.split(found.rows, found.ends[:-1])]
    assert sorted(batches) == sorted(oracle_of_buckets(values.tolist(), [0.6, 0.8, 1.25, 1.6], 64))


@pytest.mark.parametrize("seed", range(3))
def test_buckets_of_two_numbers_as_the_oracle_fills_them(seed: int) -> None:
    draw = numpy.random.default_rng(seed)
    values = numpy.array([draw.lognormal(2, 1, 3000), draw.integers(0, 120, 3000)])
    rule = rule_of_batches(16, True, WINDOW, (["x", "y"], [[5, 10, 20], [50, 100]], False), NO_BUDGET)
    assert rule is not None
    plan = planned(values, rule, seed)
    batches = [rows.tolist() for rows in numpy.split(plan.rows, plan.ends[:-1])]
    cells = [sum(x >= e for e in (5, 10, 20)) * 3 + sum(y >= e for e in (50, 100)) for x, y in values.T]
    assert sorted(batches) == sorted(oracle_of_buckets(cells, list(range(1, 12)), 16))


@pytest.mark.parametrize("world", [1, 3])
def test_ranks_have_the_same_cell_at_each_step(monkeypatch: pytest.MonkeyPatch, world: int) -> None:
    make = planned_dataset("grid", 200, same_bucket=True)
    ranks = [World(monkeypatch, world, 2).of_rank(make, rank) for rank in range(world)]
    for step in zip(*ranks):
        assert len({cell_of("grid", number) for batch in step for number in batch}) == 1
    assert {number for batches in ranks for batch in batches for number in batch} == set(everything(COUNTS))


@pytest.mark.parametrize(
    "buckets",
    [
        [1, 2],
        [[1, 2]],
        [[1, 2], [3], [4]],
        [[2, 1], [3]],
        [[1], ["a"]],
        {(0, 5): 4},
        {((0, 5), (3, 3)): 4},
        {((0, 5), (0, 3)): 0},
        {((0, 5), (0, 3)): 4, ((4, 6), (2, 9)): 4},
        {((0, 5), "03"): 4},
    ],
)
def test_buckets_of_two_numbers_that_are_none(buckets: Any) -> None:
    with pytest.raises(UsageError):
        PositionDataset(Numbers()).batched(bucket=["1", "2"], buckets=buckets)
    with pytest.raises(UsageError):
        PositionDataset(Numbers()).batched(bucket=["1", 2], buckets=[[1], [2]])


def test_a_sample_outside_all_cells_is_named_and_the_state_needs_the_same_cells() -> None:
    data = PositionDataset(Numbers(COUNTS, seed=5))
    few = {ranges: size for ranges, size in CELLS.items() if ranges[0] == (0, 20)}
    with pytest.raises(DataError, match=r"40 = \d+, 7 = \d is in no bucket"):
        list(data.batched(bucket=[LONGEST, "7"], buckets=few))
    state = data.batched(bucket=[LONGEST, "7"], buckets=CELLS).state_dict()
    with pytest.raises(UsageError, match="another batches"):
        data.batched(bucket=[LONGEST, "7"], buckets={**CELLS, ((20, 41), (2, 8)): 6}).load_state_dict(state)
    with pytest.raises(UsageError, match="another batches"):
        data.batched(bucket=[LONGEST, "6"], buckets=CELLS).load_state_dict(state)


@pytest.mark.parametrize("same", [False, 2])
def test_ranges_with_full_batches_only(same: bool | int) -> None:
    batches = list(planned_dataset("ranges", same_bucket=same, partial=False)())
    assert {len(batch) for batch in batches} == {7, 3, 2}
    for batch in batches:
        check_batch("ranges", batch)
        assert len(batch) == {0: 7, 1: 3, 2: 2}[sum(value_of(batch[0], LONGEST) >= edge for edge in [20, 33])]


def test_windows_that_never_have_a_full_batch(tmp_path: Path) -> None:
    with ShardWriter(f"{tmp_path}/a.tar") as writer:
        for number in range(5):
            writer.write(f"{number}", {"bin": bytes(number)})
    batches = wds.WebDataset(f"{tmp_path}/a.tar").batched(
        9, bucket="size.bin", buckets=[250], partial=False, window=4
    )
    assert list(batches) == []
    with pytest.raises(InputError, match="windows have no batch"):
        next(iter(batches.with_epoch(batches=2)))


def first_fit_decreasing(lengths: list[int], size: int, most: int = 1 << 30) -> int:
    """The packs of the textbook's method; first fit by a tree of the rooms would give as many."""
    rooms: list[int] = []
    counts: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = (number for number, room in enumerate(rooms) if room >= length and counts[number] < most)
        number = next(fitting, len(rooms))
        if number == len(rooms):
            rooms.append(size)
            counts.append(0)
        rooms[number] -= length
        counts[number] += 1
    return len(rooms)


DRAWS = {
    "lognormal": lambda draw, count: draw.lognormal(numpy.log(600) - 0.5, 1, count),
    "narrow": lambda draw, count: draw.lognormal(numpy.log(600) - 0.125, 0.5, count),
    "thirds": lambda draw, count: draw.uniform(1000, 1800, count),
    "uniform": lambda draw, count: draw.uniform(1, 4096, count),
    "equal": lambda draw, count: numpy.full(count, 1366),
    "tiny": lambda draw, count: draw.lognormal(3, 1, count),
    "long": lambda draw, count: draw.uniform(2100, 4096, count),
}


@pytest.mark.parametrize("name", DRAWS)
def test_packs_are_as_few_as_first_fit_decreasing_makes(name: str) -> None:
    values = numpy.clip(DRAWS[name](numpy.random.default_rng(3), 6000).astype(int), 1, 4096)
    found = planned(values.astype(float), Rule("packed", "x", 4096), 0)
    assert sorted(found.rows.tolist()) == list(range(6000))
    assert (found.used <= 4096).all()
    assert len(found.ends) <= 1.02 * first_fit_decreasing(values.tolist(), 4096) + 1
    if name == "lognormal":
        assert found.used.sum() / found.room.sum() >= 0.98


@pytest.mark.parametrize("most", [2, 3, 4, 7, 30])
@pytest.mark.parametrize("name", ["lognormal", "uniform", "tiny", "thirds"])
def test_packs_with_a_largest_number_of_samples(name: str, most: int) -> None:
    values = numpy.clip(DRAWS[name](numpy.random.default_rng(5), 3000).astype(int), 1, 4096)
    plan = planned(values.astype(float), Rule("packed", "x", 4096, most=most), 0)
    assert sorted(plan.rows.tolist()) == list(range(3000))
    assert (plan.used <= 4096).all()
    assert numpy.diff([0, *plan.ends]).max() <= most
    assert len(plan.ends) <= 1.02 * first_fit_decreasing(values.tolist(), 4096, most) + 1


def first_fit_decreasing_within(amounts: Any, limits: list[float]) -> int:
    """As :func:`first_fit_decreasing`, with several sums; the samples with the largest share of a limit come first."""
    rooms: list[Any] = []
    shares = amounts / numpy.array(limits)[:, None]
    for row in (-shares.max(axis=0)).argsort(kind="stable"):
        room = next((room for room in rooms if (room >= amounts[:, row]).all()), None)
        if room is None:
            rooms.append(room := numpy.array(limits, dtype=float))
        room -= amounts[:, row]
    return len(rooms)


PICTURES = {
    "few": lambda draw, lengths: draw.integers(0, 3, len(lengths)),
    "as many": lambda draw, lengths: draw.poisson(2.6, len(lengths)).clip(0, 18),
    "too many": lambda draw, lengths: draw.integers(0, 7, len(lengths)),
    "in long texts": lambda draw, lengths: lengths // 250,
    "in short texts": lambda draw, lengths: ((4096 - lengths) * 6 * draw.random(len(lengths))) // 4096,
}


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.parametrize("most", [0, 8])
def test_packs_with_a_second_sum(name: str, most: int) -> None:
    draw = numpy.random.default_rng(11)
    lengths = draw.lognormal(numpy.log(600) - 0.5, 1, 2000).clip(1, 4096).astype(int)
    amounts = numpy.array([lengths, PICTURES[name](draw, lengths)], dtype=float)
    plan = planned(amounts, Rule("packed", "x", 4096, most=most, also=(("y", 18),)), 0)
    assert sorted(plan.rows.tolist()) == list(range(2000))
    packs = numpy.split(plan.rows, plan.ends[:-1])
    assert all(
        (amounts[:, pack].sum(axis=1) <= [4096, 18]).all() and len(pack) <= (most or 2000) for pack in packs
    )
    counted, limits = (
        (amounts, [4096, 18]) if not most else (numpy.vstack([amounts, [1] * 2000]), [4096, 18, most])
    )
    assert len(packs) <= 1.02 * first_fit_decreasing_within(counted, limits) + 1


def test_packs_with_a_second_sum_are_dealt_in_few_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many samples do not wait for few packs: each turn sorts, and a window had 2,800 turns."""
    draw, turns = numpy.random.default_rng(0), [0]
    lengths = numpy.minimum(draw.lognormal(6, 0.8, 65_536).astype(int) + 1, 4096).astype(float)
    pictures = numpy.minimum(draw.poisson(1.2, 65_536), 12).astype(float)
    by_share = packing._by_share
    monkeypatch.setattr(packing, "_by_share", lambda shares: (turns.append(0), by_share(shares))[1])
    of_row = packing.in_packs(lengths, 4096, 0, [(pictures, 12)])
    assert len(turns) < 300
    assert int(of_row.max()) < 1.03 * lengths.sum() / 4096


def test_packs_in_sequence_and_budgets_with_a_second_sum_as_a_loop_fills_them() -> None:
    draw = numpy.random.default_rng(12)
    amounts = numpy.array([draw.integers(1, 300, 2000), draw.integers(0, 5, 2000)], dtype=float)
    by_length = sorted(range(2000), key=lambda row: (amounts[0, row], row), reverse=True)
    for kind, rows in (("packed", range(2000)), ("budget", by_length)):
        batches: list[list[int]] = [[]]
        for row in rows:
            batch = [*batches[-1], row]
            used = max(amounts[0, batch]) * len(batch) if kind == "budget" else amounts[0, batch].sum()
            if used > 1000 or amounts[1, batch].sum() > 9:
                batches.append([])
            batches[-1].append(row)
        rule = Rule(kind, "x", 1000, in_sequence=kind == "packed", also=(("y", 9),))  # type: ignore[arg-type]
        plan = planned(amounts, rule, 1)
        planned_batches = sorted(batch.tolist() for batch in numpy.split(plan.rows, plan.ends[:-1]))
        assert planned_batches == sorted(map(sorted, batches))


@pytest.mark.exhaustive
def test_windows_pack_as_well_as_the_whole_set() -> None:
    values = numpy.clip(numpy.random.default_rng(4).lognormal(5.9, 1, 20_000).astype(int), 1, 4096)
    packs = sum(
        len(planned(part.astype(float), Rule("packed", "x", 4096), 0).ends) for part in numpy.split(values, 4)
    )
    assert packs <= 1.02 * first_fit_decreasing(values.tolist(), 4096)


def test_fractions_are_packed_too() -> None:
    values = numpy.random.default_rng(5).uniform(0.1, 29.9, 2000)
    found = planned(values, Rule("packed", "x", 30), 0)
    assert (found.used <= 30 * (1 + 1e-9)).all()
    assert sorted(found.rows.tolist()) == list(range(2000))
    batches = planned(values, Rule("budget", "x", 120.5), 0)
    assert (batches.cells <= 120.5).all()


def test_values_without_a_place() -> None:
    def misfit(values: Any, rule: Rule) -> str:
        with pytest.raises(Misfit) as caught:
            planned(numpy.array(values), rule, 0)
        assert caught.value.row == 1
        return str(caught.value)

    assert misfit([1, 50], Rule("packed", "x", 40)) == "x = 50 is more than 40, the size of a pack"
    assert misfit([1, 50], Rule("budget", "x", 40)) == "x = 50 is more than the budget of 40"
    assert misfit([1, float("nan")], Rule("budget", "x", 40)) == "x is missing or not a number"
    assert misfit([1, -1], Rule("packed", "x", 40)) == "x = -1 is below 0"
    assert misfit([1, 9], Rule("bucket", "x", edges=(0, 5), sizes=(0, 4, 0))) == "x = 9 is in no bucket"
    within = Rule("packed", "x", 40, also=(("y", 3),))
    assert misfit([[1, 1], [3, 4]], within) == "y = 4 is more than 3, the largest sum in a batch"
    assert misfit([[1, 1], [3, float("nan")]], within) == "y is missing or not a number"
    assert misfit([[1, 41], [3, 4]], within) == "x = 41 is more than 40, the size of a pack"


def test_samples_with_too_much_of_a_second_sum_are_left_out_and_counted() -> None:
    data = PositionDataset(Numbers(COUNTS, seed=5))
    with pytest.raises(DataError, match=r"7 = [67] is more than 5, the largest sum in a batch"):
        list(data.packed(90, LONGEST, also={"7": 5}))
    fitting = [number for number in everything(COUNTS) if value_of(number, "7") <= 5]
    dropping = data.packed(90, LONGEST, also={"7": 5}, drop=True, collation_fn=list)
    assert sorted(number for pack in dropping for number in pack) == fitting
    dropped = dropping.stats()["dropped"]
    assert sum(reasons["packed(90): 7: too large"] for reasons in dropped.values()) == 194 - len(fitting)


def test_a_state_of_other_second_sums_is_an_error() -> None:
    def data(**how: Any) -> Any:
        return PositionDataset(Numbers(COUNTS, seed=5)).packed(90, LONGEST, collation_fn=list, **how)

    state = data(also={"7": 20, "5": 30}).state_dict()
    data(also={"5": 30, "7": 20}).load_state_dict(state)
    for how in ({}, {"also": {"7": 21, "5": 30}}, {"also": {"7": 20}}):
        with pytest.raises(UsageError, match="another batches"):
            data(**how).load_state_dict(state)


def test_too_long_samples_are_an_error_with_their_key_or_left_out_and_counted() -> None:
    data = PositionDataset(Numbers(COUNTS, seed=5))
    with pytest.raises(DataError, match="is more than 30, the size of a pack") as caught:
        list(data.packed(30, LONGEST))
    key = caught.value.member
    assert value_of(int(str(key)), LONGEST) > 30
    short = [one for one in everything(COUNTS) if value_of(one, LONGEST) <= 30]
    dropping = data.packed(30, LONGEST, drop=True, collation_fn=list)
    assert sorted(one for batch in dropping for one in batch) == short
    long = Counter(f"shard {one // 1000}" for one in everything(COUNTS) if value_of(one, LONGEST) > 30)
    dropped = dropping.stats()["dropped"]
    assert dropped == {shard: {"packed(30): too long": count} for shard, count in long.items()}
    shortened = PositionDataset(Numbers(COUNTS, seed=5)).packed(30, LONGEST, truncate=True, collation_fn=list)
    assert sorted(one for batch in shortened for one in batch) == everything(COUNTS)
    stats = shortened.stats()
    assert stats["truncated"] == long.total()
    excess = sum(max(0, value_of(one, LONGEST) - 30) for one in everything(COUNTS))
    assert stats["truncated_length"] == excess
    assert stats["dropped"] == {}


def test_samples_too_long_for_any_batch_are_counted_once_in_all_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Windows of 8 samples, of which some have no batch at all.
    counts: Counter[str] = Counter()
    for rank in range(2):
        data = PositionDataset(Numbers(COUNTS, seed=5), rank=rank, world_size=2, tail="uneven")
        data = data.packed(9, LONGEST, drop=True, window=8, collation_fn=list).map(lambda pack: pack)
        assert all(sum(value_of(one, LONGEST) for one in pack) <= 9 for pack in data)
        for reasons in data.stats()["dropped"].values():
            counts.update(reasons)
    long = sum(value_of(one, LONGEST) > 9 for one in everything(COUNTS))
    assert counts == {"packed(9): too long": long}


def test_fill_and_padding_are_counted() -> None:
    data = planned_dataset("budget", 1000)(rank=0, world_size=1)
    batches = list(data)
    values = [[value_of(one, LONGEST) for one in batch] for batch in batches]
    cells = sum(len(batch) * max(batch) for batch in values)
    stats = data.stats()
    assert stats["fill"] == pytest.approx(cells / (100 * len(batches)))
    assert stats["padding"] == pytest.approx(1 - sum(map(sum, values)) / cells)
    assert "fill" not in PositionDataset(Numbers()).batched(4).stats()


def test_epochs_differ_and_seeds_differ() -> None:
    make = planned_dataset("packs")
    data = make()
    first, second = list(data), list(data)
    assert first != second
    other = PositionDataset(Numbers(COUNTS, seed=6)).packed(100, LONGEST, window=64, collation_fn=list)
    assert list(other) != first


def test_only_one_window_is_planned_to_begin_and_to_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    windows: list[int] = []

    def counted(values: Any, *how: Any) -> Any:
        windows.append(len(values))
        return planned(values, *how)

    monkeypatch.setattr("wdscli.loader.place.planned.planned", counted)
    counts = [100] * 20
    data = PositionDataset(Numbers(counts, seed=5)).packed(100, LONGEST, window=100, collation_fn=list)
    items = iter(data)
    given = list(islice(items, 300))
    state = data.state_dict()
    windows.clear()
    again = PositionDataset(Numbers(counts, seed=5)).packed(100, LONGEST, window=100, collation_fn=list)
    again.load_state_dict(state)
    assert next(iter(again)) == next(items)
    assert len(windows) <= 3
    assert given
    # Batches on both sides of the state's place are found from there.
    for number in (240, 299, 301, 360):
        windows.clear()
        seen = PositionDataset(Numbers(counts, seed=5)).packed(100, LONGEST, window=100, collation_fn=list)
        seen.load_state_dict(state)
        keys = seen.keys(0, number)
        assert len(windows) <= 5
        assert keys == data.keys(0, number)
        assert seen.find(keys[0], 0) == (number, 0)
        assert len(windows) <= 6


def test_an_epoch_of_a_hundred_million_samples_opens_at_once() -> None:
    class Long(Numbers):
        def length(self, epoch: int) -> int:
            return 10**8

        def reader(self, epoch: int) -> Any:
            return self

        def read(self, positions: Any) -> list[Any]:
            return positions.tolist()  # type: ignore[no-any-return]

        def about(self, positions: Any, fact: Any) -> Any:
            return positions % 4000 + 1

        waits = jumps = False

        def close(self) -> None:
            pass

    data: Any = PositionDataset(Long()).packed(4096, "1", collation_fn=list)
    assert sum(position % 4000 + 1 for position in next(iter(data))) <= 4096


def test_arguments_that_do_not_belong_together() -> None:
    data = PositionDataset(Numbers())
    for how in (
        {"bucket": "1"},
        {"budget": 5},
        {"bucket": "1", "buckets": [3], "length": "1"},
        {"budget": 5, "length": "1", "same_bucket": True},
        {"bucket": "1", "buckets": [3, 2]},
        {"bucket": "1", "buckets": {(0, 5): 4, (3, 6): 4}},
        {"budget": 0, "length": "1"},
        {"budget": 9, "length": "1", "partial": False},
        {"budget": 9, "length": "1"},
        {"bucket": "1", "buckets": {(0, 5): 4}},
        {"max_samples": 3},
        {"balance": True},
        {"bucket": "1", "buckets": [3], "balance": True},
        {"budget": 5, "length": "1", "max_samples": 0},
        {"same_bucket": True},
        {"window": 9},
        {"also": {"1": 3}},
        {"bucket": "1", "buckets": [3], "also": {"1": 3}},
        {"budget": 5, "length": "1", "also": {"1": 0}},
    ):
        with pytest.raises(UsageError):
            data.batched(4, **how)  # type: ignore[arg-type]
    for how in (
        {"truncate": True, "drop": True},
        {"order": "no"},
        {"order": "kept", "balance": 2},
        {"max_samples": 0},
        {"also": "1"},
        {"also": {"1": "3"}},
        {"also": {3: 3}},
        {"also": {"1": float("nan")}},
    ):
        with pytest.raises(UsageError):
            data.packed(9, "1", **how)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        data.batched(3).packed(9, "1")
    with pytest.raises(UsageError, match="substitute"):
        PositionDataset(Numbers(), on_error="substitute").packed(9, "1")
    with pytest.raises(UsageError, match="samples=n"):
        list(data.packed(9, "1").unlisted().with_epoch(3))
    with pytest.raises(UsageError, match="after with_epoch"):
        list(data.packed(9, "1").slice(2).with_epoch(3))


def test_a_state_of_other_batches_is_an_error() -> None:
    data = PositionDataset(Numbers(COUNTS))
    state = data.packed(100, LONGEST, collation_fn=list).state_dict()
    with pytest.raises(UsageError, match="batches"):
        data.packed(90, LONGEST, collation_fn=list).load_state_dict(state)
    with pytest.raises(UsageError, match="batches"):
        data.batched(4).load_state_dict(state)


@pytest.mark.parametrize("kind", ["table", "index", "mix"])
def test_a_state_of_other_values_is_an_error(
    tokens: str, tmp_path_factory: pytest.TempPathFactory, kind: str
) -> None:
    lengths = tmp_path_factory.mktemp("tables") / "lengths.csv"
    rows = {f"n{number:03d}": value_of(number, "30") for number in range(120)}

    def data() -> Any:
        how = {} if kind == "index" else {"values": str(lengths)}
        whole: Any = wds.WebDataset(tokens, shuffle="window", seed=2, **how)
        if kind == "mix":
            whole = mix({"a": whole, "b": PositionDataset(Numbers((50,)))}, repeat={})
        value = {"a": "json.tokens", "b": "30"} if kind == "mix" else "json.tokens"
        return whole.packed(64, value, window=40, collation_fn=list)

    if kind == "index":
        index([tokens], values=["json.tokens"], checksum="none", force=True)
    else:
        write_table(lengths, rows, "json.tokens")
    taking = data()
    items = iter(taking)
    taken = list(islice(items, 12))
    state = json.loads(json.dumps(taking.state_dict()))
    assert len(json.dumps(state)) < 1024
    again = data()
    again.load_state_dict(state)
    assert list(again) == list(items)
    assert taken
    if kind == "index":
        for path in Path(tokens).glob("*.tar"):
            # Payloads of equal size, so that the set is the same by its headers.
            content = path.read_bytes()
            path.write_bytes(content.replace(b'{"tokens": 1', b'{"tokens": 2'))
        index([tokens], values=["json.tokens"], checksum="none", force=True)
    else:
        write_table(lengths, {key: 31 - value for key, value in rows.items()}, "json.tokens")
    with pytest.raises(UsageError, match=r"other values of .*json.tokens"):
        data().load_state_dict(state)
    forced = data()
    forced.load_state_dict(state, force=True)
    assert list(forced)
    # Before the first batch nothing was taken.
    data().load_state_dict(data().state_dict())
    data().load_state_dict({**{name: part for name, part in state.items() if name != "mark"}, "next": 0})


def test_epochs_of_a_number_of_samples_continue() -> None:
    data = PositionDataset(Numbers(COUNTS, seed=3)).packed(100, LONGEST, collation_fn=list)
    data = data.with_epoch(samples=97)
    line = [one for _ in range(4) for batch in data for one in batch]
    assert len(line) == 4 * 97
    assert sorted(line[:194]) == sorted(set(line[:194]))


def test_dropped_samples_leave_smaller_batches() -> None:
    whole = list(planned_dataset("packs")())
    data = PositionDataset(Numbers(COUNTS, seed=5)).select(lambda number: number % 2 == 0)
    odd = list(data.packed(100, LONGEST, window=64, collation_fn=list))
    evens = [[one for one in batch if one % 2 == 0] for batch in whole]
    assert odd == [batch for batch in evens if batch]


@pytest.fixture
def tokens(tmp_path: Path) -> str:
    """A set of 120 samples in three shards: ``json.tokens`` numbers of an array."""
    with ShardWriter(str(tmp_path / "in-%06d.tar"), max_count=40) as writer:
        for number in range(120):
            length = value_of(number, "30")
            array = io.BytesIO()
            numpy.save(array, numpy.full(length, number, dtype=numpy.int32))
            fields = {"json": json.dumps({"tokens": length}).encode(), "npy": array.getvalue()}
            writer.write(f"n{number:03d}", fields)
    return str(tmp_path)


def numbers_in(pack: Any) -> list[int]:
    return [int(pack["npy"][first]) for first in pack["cu_seqlens"][:-1]]


def test_values_come_from_the_indexes_or_once_from_payloads(tokens: str) -> None:
    def packs(**how: Any) -> list[Any]:
        data = wds.WebDataset(tokens, shuffle="window", seed=2, **how).decode()
        return list(data.packed(64, "json.tokens"))

    with pytest.warns(UserWarning, match="reading payloads for json.tokens") as said:
        read = packs()
    assert len(said) == 1
    index([tokens], values=["json.tokens"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stored = packs()
        few = packs(where="json.tokens < 20")
    assert [numbers_in(pack) for pack in stored] == [numbers_in(pack) for pack in read]
    assert sorted(number for pack in stored for number in numbers_in(pack)) == list(range(120))
    short = [number for number in range(120) if value_of(number, "30") < 20]
    assert sorted(number for pack in few for number in numbers_in(pack)) == short
    for pack in stored:
        ends = pack["cu_seqlens"].tolist()
        assert ends[-1] == len(pack["npy"]) <= 64
        for first, end in pairwise(ends):
            assert pack["position_ids"][first:end].tolist() == list(range(end - first))
            assert len(set(pack["npy"][first:end].tolist())) == 1


def test_truncated_packs_have_shortened_arrays(tokens: str) -> None:
    index([tokens], values=["json.tokens"])
    packs = list(wds.WebDataset(tokens).decode().packed(12, "json.tokens", truncate=True))
    assert max(len(pack["npy"]) for pack in packs) == 12
    assert sorted(number for pack in packs for number in numbers_in(pack)) == list(range(120))


def test_a_length_that_is_not_that_of_the_arrays_is_an_error(tokens: str) -> None:
    index([tokens], values=["json.tokens", "json.tokens / 4"])
    with pytest.raises(DataError, match="must give the length of the arrays"):
        list(wds.WebDataset(tokens).decode().packed(16, "json.tokens / 4"))


def test_tuples_and_tensors_are_packed(tokens: str) -> None:
    torch = pytest.importorskip("torch")
    index([tokens], values=["json.tokens"])
    data = wds.WebDataset(tokens).decode("torch").to_tuple("npy", "__key__")
    arrays, keys, positions, ends = next(iter(data.map_tuple(torch.as_tensor).packed(64, "json.tokens")))
    assert isinstance(arrays, torch.Tensor)
    assert len(arrays) == len(positions) == ends[-1]
    assert len(keys) == len(ends) - 1


def test_a_mix_has_an_expression_for_each_set(tokens: str) -> None:
    index([tokens], values=["json.tokens"])
    sets = {name: (wds.WebDataset(tokens), 1) for name in "ab"}
    mixed = mix(sets, stop="all")
    packs = list(mixed.packed(64, {"a": "json.tokens", "b": "json.tokens * 2"}, collation_fn=list))
    assert sum(map(len, packs)) == 240
    with pytest.raises(UsageError, match="no expression for the set b"):
        mixed.packed(64, {"a": "json.tokens"})
    with pytest.raises(UsageError, match="only for a mix"):
        list(wds.WebDataset(tokens).packed(64, {"a": "json.tokens"}))


@pytest.mark.parametrize("stop", ["first", "all", "repeat"])
@pytest.mark.parametrize("kind", ["buckets", "packs"])
def test_mixes_of_every_end_are_planned(stop: Any, kind: str) -> None:
    def mixed() -> Any:
        sets = [PositionDataset(Numbers((13 + at, 40), seed=at)) for at in range(3)]
        return mix([(one, at + 1) for at, one in enumerate(sets)], stop=stop, seed=4)

    data, plain = planned_dataset(kind, source=mixed)(), mixed()
    for _ in range(2):
        batches = list(data)
        for batch in batches:
            check_batch(kind, batch)
        assert Counter(one for batch in batches for one in batch) == Counter(plain)


def test_samples_that_fail_leave_smaller_batches_and_are_counted(tokens: str) -> None:
    index([tokens], values=["json.tokens"])
    data = wds.WebDataset(tokens, shuffle="window", seed=2, on_error="skip")
    whole = [[one["__key__"] for one in pack] for pack in data.packed(64, "json.tokens", collation_fn=list)]

    def fails(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["__key__"].endswith("7"):
            raise ValueError("damaged")
        return sample

    left = [[key for key in pack if not key.endswith("7")] for pack in whole]
    for stages in (
        lambda data: data.map(fails, handler=wds.ignore_and_continue),
        lambda data: data.select(lambda sample: not sample["__key__"].endswith("7")),
        lambda data: data.map(lambda sample: None if sample["__key__"].endswith("7") else sample),
    ):
        again = stages(wds.WebDataset(tokens, shuffle="window", seed=2, on_error="skip"))
        again = again.packed(64, "json.tokens", collation_fn=list)
        assert [[one["__key__"] for one in pack] for pack in again] == [pack for pack in left if pack]
        stats = again.stats()
        assert sum(count for shard in stats["dropped"].values() for count in shard.values()) == 12
        assert 0.8 < stats["fill"] <= 1
        assert stats["padding"] == 0


def test_payloads_that_cannot_be_decoded_leave_smaller_packs(tokens: str) -> None:
    index([tokens], values=["json.tokens"])
    shard = next(Path(tokens).glob("*0.tar"))
    content = shard.read_bytes()
    shard.write_bytes(content.replace(b"\x93NUMPY", b"damage", 3))
    data = wds.WebDataset(tokens, shuffle="window", seed=2, on_error="skip").decode()
    found = [number for pack in data.packed(64, "json.tokens") for number in numbers_in(pack)]
    assert len(found) == len(set(found)) == 117
    assert sum(count for one in data.stats()["dropped"].values() for count in one.values()) == 3


def write_table(path: Path, rows: dict[str, Any], column: str = "tokens") -> str:
    """A table of numbers by key, as the name of the file says."""
    if path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow.parquet import write_table as write

        write(pyarrow.table({"key": list(rows), column: list(rows.values())}), path)
    elif path.suffix == ".csv":
        path.write_text("".join(f"{key},{number}\n" for key, number in {"key": column, **rows}.items()))
    else:
        path.write_text("".join(json.dumps({"key": key, column: n}) + "\n" for key, n in rows.items()))
    return str(path)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_values_come_from_a_table_where_the_index_has_none(
    tokens: str, tmp_path_factory: pytest.TempPathFactory, ending: str
) -> None:
    rows = {f"n{number:03d}": value_of(number, "30") for number in range(120)}
    table = write_table(tmp_path_factory.mktemp("tables") / f"lengths.{ending}", {"other": 3, **rows})

    def packs(length: str, **how: Any) -> list[Any]:
        data = wds.WebDataset(tokens, shuffle="window", seed=2, **how).decode()
        return [numbers_in(pack) for pack in data.packed(64, length)]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = packs("tokens", values=table)
        assert packs("json.tokens", values=table) == found
        index([tokens], values=["json.tokens"])
        assert packs("json.tokens") == found
        # The index comes first.
        Path(table).unlink()
        assert packs("json.tokens", values=table) == found


def test_a_key_that_the_table_lacks_is_an_error(
    tokens: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = {f"n{number:03d}": number + 1 for number in range(120) if number != 77}
    table = write_table(tmp_path_factory.mktemp("tables") / "lengths.csv", rows)
    with pytest.raises(DataError, match=r"lengths.csv has no number for the key") as caught:
        wds.WebDataset(tokens, values=table).packed(200, "tokens")
    assert caught.value.member == "n077"
    kept = wds.WebDataset(tokens, values=table, where="key != 'n077'").packed(
        200, "tokens", collation_fn=list
    )
    assert sum(map(len, kept)) == 119
    nothing = write_table(Path(table).with_name("others.csv"), {"x": 1})
    with pytest.raises(DataError, match=r"no sample has tokens in .*others.csv"):
        wds.WebDataset(tokens, values=nothing).packed(200, "tokens")
    with pytest.raises(UsageError, match="pipe"):
        wds.WebDataset(tokens, values="pipe:cat x.csv", pipes=False)
    with pytest.raises(InputError):
        wds.WebDataset(tokens, values=str(Path(table).with_name("none.csv"))).packed(200, "tokens")


def test_a_table_needs_a_column_for_each_sum(tokens: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    rows = {f"n{number:03d}": value_of(number, "30") for number in range(120)}
    folder = tmp_path_factory.mktemp("tables")
    table = write_table(folder / "lengths.csv", rows)
    with pytest.warns(UserWarning, match="gives the same numbers for json.tokens and json.images"):
        wds.WebDataset(tokens, values=table).packed(64, "json.tokens", also={"json.images": 70})
    both = folder / "both.csv"
    both.write_text("key,tokens,images\n" + "".join(f"{key},{n},{n % 3}\n" for key, n in rows.items()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = wds.WebDataset(tokens, values=str(both)).packed(
            64, "tokens", also={"images": 3}, collation_fn=list
        )
        packs = [[rows[sample["__key__"]] for sample in pack] for pack in data]
    assert sum(map(len, packs)) == 120
    assert all(sum(pack) <= 64 and sum(n % 3 for n in pack) <= 3 for pack in packs)


def test_each_set_of_a_mix_has_its_own_table(tokens: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("tables")
    keys = [f"n{number:03d}" for number in range(120)]
    tables = [write_table(folder / f"{n}.csv", dict.fromkeys(keys, n)) for n in (10, 30)]
    parts = {str(at): wds.WebDataset(tokens, values=table) for at, table in enumerate(tables)}
    packs = list(mix(parts, repeat={}, label="set").packed(60, "tokens", collation_fn=list))
    assert all(sum(10 if one["set"] == "0" else 30 for one in pack) <= 60 for pack in packs)
    assert sum(map(len, packs)) == 240


def test_values_that_are_none(tokens: str) -> None:
    data = wds.WebDataset(tokens)
    with pytest.raises(DataError, match="no sample has"), pytest.warns(UserWarning, match="reading"):
        data.packed(64, "json.nothing")
    for text in ("json.a, json.b", "key"):
        with pytest.raises(UsageError):
            data.packed(64, text)


@pytest.mark.exhaustive
def test_workers_of_another_number_resume_packs(tokens: str) -> None:
    pytest.importorskip("torch")
    index([tokens], values=["json.tokens"])

    def loader(workers: int) -> Any:
        data = wds.WebDataset(tokens, shuffle="window", seed=2).decode().packed(64, "json.tokens")
        return wds.WebLoader(data, num_workers=workers)

    whole = [numbers_in(pack) for pack in loader(0)]
    first = loader(2)
    given = [numbers_in(pack) for pack in islice(iter(first), 7)]
    again = loader(1)
    again.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert given + [numbers_in(pack) for pack in again] == whole
    with pytest.raises(UsageError):
        wds.WebLoader(wds.WebDataset(tokens)).packed(64, "json.tokens")


def test_a_table_of_samples_takes_values_by_key_too(
    tokens: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = {f"n{number:03d}": value_of(number, "30") for number in range(120)}
    table = write_table(tmp_path_factory.mktemp("tables") / "lengths.csv", rows)
    data = wds.IndexedDataset(tokens, values=table).in_order()
    packs = [[one["__key__"] for one in pack] for pack in data.packed(64, "tokens", collation_fn=list)]
    assert sorted(key for pack in packs for key in pack) == sorted(rows)
    assert max(sum(rows[key] for key in pack) for pack in packs) <= 64
