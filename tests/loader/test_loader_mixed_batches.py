"""Mixes of packs and of batches of several sizes: curricula, shares of length, and the same batches in any world."""

from __future__ import annotations

import json
import random
from collections import Counter
from fractions import Fraction
from itertools import islice
from math import lcm
from typing import Any

import numpy
import pytest
from loader_cases import Numbers, World, _shares, everything, key, value_of

from wdscli.errors import UsageError
from wdscli.loader import mix
from wdscli.loader.dataset import PositionDataset
from wdscli.loader.order.batches import Rule, planned
from wdscli.loader.order.order import PLANNED

LENGTH = "40"
COUNTS = {"a": (13, 0, 1, 30, 7), "b": (50, 20), "c": (9,)}
POINTS = [(0, {"a": 1, "b": 0, "c": 0}), (10, {"a": 1, "b": 1, "c": 0}), (25, {"a": 2, "b": 3, "c": 1})]
PLAIN = {"a": 5, "b": 2, "c": 1}
LISTS: dict[str, Any] = {"collation_fn": list}


def member(name: str, kind: str, balance: Any = False, window: int = 32) -> PositionDataset:
    data = PositionDataset(Numbers(COUNTS[name], seed=ord(name)))
    if kind == "packs":
        return data.packed(100, LENGTH, window=window, balance=balance, also={"7": 30}, **LISTS)
    if kind == "long packs":
        return data.packed(200, LENGTH, window=window, balance=balance, max_samples=9, **LISTS)
    if kind == "budget":
        return data.batched(budget=150, length=LENGTH, window=window, balance=balance, **LISTS)
    if kind == "cells":
        how: dict[str, Any] = {"bucket": [LENGTH, "7"], "buckets": [[8, 20], [3, 5]], "same_bucket": balance}
        return data.batched(6, window=window, **how, **LISTS)
    return data.batched({"five": 5, "three": 3}[kind], **LISTS)


KINDS = ["packs", "long packs", "budget", "cells", "five", "three"]


def mixed_of(kinds: dict[str, str], balance: Any = False, points: Any = POINTS, **how: Any) -> Any:
    """A function that makes the mix for a rank."""

    def make(**share: Any) -> Any:
        parts: dict[str, Any] = {name: member(name, kind, balance) for name, kind in kinds.items()}
        if isinstance(points, dict):
            return mix({name: (part, points[name]) for name, part in parts.items()}, per="batch", **share)
        return mix(parts, per="batch", weights=points, **share)

    return make


def test_any_world_has_the_same_list_and_resumes_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    for case in range(10):
        check_world(monkeypatch, case)


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("case", range(100, 300))
def test_many_worlds(monkeypatch: pytest.MonkeyPatch, case: int) -> None:
    check_world(monkeypatch, case)


def check_world(monkeypatch: pytest.MonkeyPatch, case: int) -> None:
    draw = random.Random(case)
    kinds = {name: draw.choice(KINDS) for name in COUNTS}
    if len(set(kinds.values())) == 1 and kinds["a"] in ("five", "three"):
        kinds["a"] = "packs"
    points = draw.choice([POINTS, PLAIN])
    group = draw.choice([4, 12])
    first, second = (draw.choice([world for world in (1, 2, 3, 4, 6, 12) if not group % world]) for _ in "ab")
    balances = any(kind in ("packs", "long packs", "budget", "cells") for kind in kinds.values())
    if not balances:
        second = first
    batches, epoch = draw.choice([3, 6]), draw.randrange(3)
    make_all = mixed_of(kinds, group, points)

    def make(**share: Any) -> Any:
        world = share["world_size"]
        return make_all(**share).with_epoch(batches=batches * (12 // world if balances else 1))

    alone = make(rank=0, world_size=1 if balances else first)
    alone.set_epoch(epoch)
    whole = list(alone)
    if not balances:
        whole = [
            batch
            for step in zip(*(of_rank(make, rank, first, epoch) for rank in range(first)))
            for batch in step
        ]
    workers = draw.randint(0, 3)
    ranks = [World(monkeypatch, first, workers).of_rank(make, rank, epoch=epoch) for rank in range(first)]
    assert ranks == [whole[rank::first] for rank in range(first)]
    taken = draw.randrange(len(ranks[0]) * first // lcm(first, second) + 1) * lcm(first, second) // first
    data = make(rank=0, world_size=first)
    data.set_epoch(epoch)
    items = iter(data)
    assert list(islice(items, taken)) == ranks[0][:taken]
    state = json.loads(json.dumps(data.state_dict()))
    assert len(json.dumps(state)) < 1024
    if taken < len(ranks[0]):
        resumed = World(monkeypatch, second, draw.randint(0, 3))
        rest = [resumed.of_rank(make, rank, state, epoch) for rank in range(second)]
        assert rest == [whole[taken * first + rank :: second] for rank in range(second)]
        data.seek(epoch, taken)
        assert list(data) == ranks[0][taken:]
        keys = data.keys(epoch, taken)
        assert keys == [str(number) for number in ranks[0][taken]]
        if not case % 5:
            batch, rank = data.find(keys[0], epoch)
            assert int(keys[0]) in ranks[rank][batch]


def of_rank(make: Any, rank: int, world: int, epoch: int) -> list[Any]:
    data = make(rank=rank, world_size=world)
    data.set_epoch(epoch)
    return list(data)


def list_of_set(name: str, number: int, rule: Rule, seed: int, passes: int) -> list[list[int]]:
    """The list of a set, written apart from the loader: each epoch is planned by itself."""
    batches = []
    for epoch in range(passes):
        data = PositionDataset(Numbers(COUNTS[name], seed=ord(name)))
        data.set_epoch(epoch)
        samples = numpy.array(list(data))
        windows = -(-len(samples) // rule.window)
        for window in range(windows):
            first, end = (len(samples) * at // windows for at in (window, window + 1))
            part = samples[first:end]
            values = numpy.array([value_of(sample, LENGTH) for sample in part.tolist()], dtype=float)
            of_window = key(seed, PLANNED, 0, number, epoch * windows + window)
            plan = planned(values, rule, of_window)
            batches += [part[rows].tolist() for rows in numpy.split(plan.rows, plan.ends[:-1])]
    return batches


@pytest.mark.parametrize("world", [1, 3])
def test_a_curriculum_of_packs_as_it_is_written_in_the_page(world: int) -> None:
    sizes = {"a": 100, "b": 200}
    rules = {name: Rule("packed", LENGTH, size, window=32) for name, size in sizes.items()}
    points = [(0, {"a": 1, "b": 0}), (10, {"a": 1, "b": 1}), (25, {"a": 1, "b": 3})]
    parts = {
        name: PositionDataset(Numbers(COUNTS[name], seed=ord(name))).packed(
            size, LENGTH, window=32, collation_fn=list
        )
        for name, size in sizes.items()
    }
    ranks = [
        list(islice(mix(parts, per="batch", weights=points, seed=8, rank=rank, world_size=world), 60))
        for rank in range(world)
    ]
    listed = [batch for step in zip(*ranks) for batch in step]
    lists = {name: iter(list_of_set(name, n, rules[name], 8, 40)) for n, name in enumerate(sizes)}
    in_steps = [
        (step, [Fraction(weights[name]) / size for name, size in sizes.items()]) for step, weights in points
    ]
    expected: list[list[int]] = []
    for step in range(60):
        share_of_a = _shares(in_steps, step)[0]
        is_a = share_of_a > Fraction(633 * step % 1024, 1024)
        expected += islice(lists["a" if is_a else "b"], world)
    assert listed == expected


@pytest.mark.exhaustive
def test_shares_are_of_length() -> None:
    """Weights of 1 and 1 give both sets as many tokens, though one has packs of twice the size."""
    kinds = {"a": "packs", "b": "long packs"}
    parts = {
        name: member(name, kind).map(lambda pack, name=name: (name, pack)) for name, kind in kinds.items()
    }
    weights = [(0, {"a": 1, "b": 1})]
    counts = Counter(name for name, _ in islice(iter(mix(parts, per="batch", weights=weights)), 1024 * 3))
    assert abs(counts["b"] - 1024) <= 2
    plain = mix({name: (part, 3 if name == "b" else 1) for name, part in parts.items()}, per="batch")
    counts = Counter(name for name, _ in islice(iter(plain), 1024))
    assert abs(counts["b"] - 1024 * 3 / 5) <= 1
    parts = {"a": member("a", "five"), "b": member("b", "three")}
    sizes = Counter(map(len, islice(iter(mix([*parts.values()], per="batch")), 1024)))
    assert abs(sizes[5] * 5 - sizes[3] * 3) <= 8
    # A batch counts as 1 if the sets measure different things.
    parts = {"a": member("a", "five"), "b": member("b", "packs").map(lambda pack: ["pack"])}
    counts = Counter(len(batch) for batch in islice(iter(mix([*parts.values()], per="batch")), 1024))
    assert counts == {5: 512, 1: 512}


@pytest.mark.parametrize("kind", KINDS)
def test_every_epoch_of_a_set_comes_as_a_whole(kind: str) -> None:
    kinds = {"a": kind, "b": "long packs"}
    batches = list(islice(mixed_of(kinds, points={"a": 3, "b": 1})(), 400))
    numbers = set(everything(COUNTS["a"]))
    mine = [sample for batch in _of_a(kinds, len(batches)) for sample in batch]
    for first in range(0, len(mine) - len(numbers), len(numbers)):
        assert set(mine[first : first + len(numbers)]) == numbers


def _of_a(kinds: dict[str, str], count: int) -> list[list[int]]:
    parts = {
        name: member(name, kind).map(lambda pack, name=name: (name, pack)) for name, kind in kinds.items()
    }
    data = mix({name: (part, 3 if name == "a" else 1) for name, part in parts.items()}, per="batch")
    return [batch for name, batch in islice(iter(data), count) if name == "a"]


def test_changed_values_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    make = mixed_of({"a": "packs", "b": "budget", "c": "five"}, points=PLAIN)
    data = make()
    list(islice(iter(data), 30))
    state = json.loads(json.dumps(data.state_dict()))
    make().load_state_dict(state)
    for damage in ([], [1, 2, 3], [["x", {}, None]] * 3, None):
        make().load_state_dict({**state, "mark": damage})
    state["mark"][0][2] = "zzzz"
    with pytest.raises(UsageError, match="other values of 40 or 7 or 40"):
        make().load_state_dict(state)
    with pytest.raises(UsageError, match="another batches"):
        mixed_of({"a": "long packs", "b": "budget", "c": "five"}, points=PLAIN)().load_state_dict(state)


def test_what_cannot_be_mixed() -> None:
    parts = {"a": member("a", "packs"), "b": member("b", "five")}
    for how in ({"stop": "first"}, {"stop": "all"}, {"repeat": {"a": 2}}, {"choose": {"a": 9}}):
        with pytest.raises(UsageError, match="has no end"):
            mix(parts if "stop" not in how else [*parts.values()], per="batch", **how)
    with pytest.raises(UsageError, match="set a of the mix has a slice"):
        mix({**parts, "a": parts["a"].slice(3)}, per="batch", weights=[(0, {"a": 1, "b": 1})])
    with pytest.raises(UsageError, match="set 0 is a mix of packs"):
        mix([mix([*parts.values()], per="batch"), parts["a"]], per="batch")
    whole = mix([*parts.values()], per="batch")
    with pytest.raises(UsageError, match="cannot count the samples"):
        list(whole.with_epoch(samples=100))
    with pytest.raises(TypeError, match="unknown"):
        len(mix([*parts.values()], per="batch"))
    with pytest.raises(UsageError, match="balance=4 is not a multiple of the number of ranks, 3"):
        mix([member("a", "packs", 4), parts["b"]], per="batch", rank=0, world_size=3).keys(0, 0)
    empty = PositionDataset(Numbers((0,))).packed(100, LENGTH)
    with pytest.raises(UsageError, match="set 1 of the mix has no samples"):
        list(mix([parts["a"], empty], per="batch"))
