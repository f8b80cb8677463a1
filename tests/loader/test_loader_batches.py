"""Mixes of any shape in any world: batches are those of an oracle that is written with lists, as many on every rank,
and a state continues exactly with other ranks and workers."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from itertools import accumulate, islice
from typing import Any, NamedTuple
from unittest import mock

import numpy
import pytest
from loader_cases import Numbers, by_step, by_the_book, drawn_places

import wdscli.loader as wds
from wdscli.errors import UsageError
from wdscli.loader.dataset import PositionDataset
from wdscli.loader.order.schedule import quotas_of

WHOLE = 8
"""Samples of a global batch."""
WORLDS = (1, 2, 4, 8)
GAP = object()
"""In the place of a sample that a short batch in the middle lacks."""


class TooFewError(Exception):
    """A set has less than must come of it."""


class Tag(NamedTuple):
    """Tells the samples of a set from those of others."""

    of: int

    def __call__(self, number: int) -> tuple[int, int]:
        return self.of, number


class Case(NamedTuple):
    """What a mix is made of, or a set where it has no parts."""

    number: int
    length: int = 0
    parts: tuple[Case, ...] = ()
    weights: tuple[int, ...] = ()
    per: str = "sample"
    stop: str = "all"
    seed: int | None = None
    tail: Any = None
    partial: bool = True
    amounts: tuple[Any, ...] = ()
    """Of each set the ``repeat=`` of a mix, a float, or its ``choose=``, an int."""
    points: tuple[Any, ...] = ()
    """Its ``weights=``, weights as a tuple."""
    steps: int = 0
    """Global batches of an epoch then."""

    def made(self, size: int | None, **ranks: Any) -> Any:
        """The dataset; of batches of ``size`` unless that is None."""
        if not self.parts:
            source: Any = Numbers((self.length,), seed=self.number)
            data: Any = PositionDataset(source, tail=self.tail, **ranks).map(Tag(self.number))
        else:
            parts = [part.made(size if self.per == "batch" else None, **ranks) for part in self.parts]
            rules: Any = {"per": self.per, "seed": self.seed, "tail": self.tail, **ranks}
            if self.amounts or self.points:
                data = wds.mix(parts, **self.rules_by_name(), **rules)
            else:
                data = wds.mix(list(zip(parts, self.weights)), stop=self.stop, **rules)
        if size is not None and self.per != "batch":
            data = data.listed(size, self.partial)
        return data.with_epoch(batches=self.steps) if self.points else data

    def rules_by_name(self) -> dict[str, Any]:
        """The arguments for amounts and points."""
        if self.points:
            return {
                "weights": [
                    (step, {str(at): weight for at, weight in enumerate(weights)})
                    for step, weights in self.points
                ]
            }
        named = [(str(at), amount) for at, amount in enumerate(self.amounts)]
        return {
            "repeat": {name: amount for name, amount in named if isinstance(amount, float)},
            "choose": {name: amount for name, amount in named if isinstance(amount, int)},
        }

    def ending(self, outer: Any) -> str:
        """The tail that counts."""
        tail = self.tail or outer or "even"
        return tail if self.per == "batch" or self.partial or tail == "pad" else "drop"

    def line(self, epoch: int, world: int, tail: Any = None) -> list[Any]:
        """All samples of an epoch, in order."""
        if not self.parts:
            reader = Numbers((self.length,), seed=self.number).reader(epoch)
            return [(self.number, one) for one in reader.read(numpy.arange(self.length))]
        if self.per == "sample":
            return [one for run in self._runs(epoch, 1, 1, "uneven") for one in run]
        runs = self._runs(epoch, WHOLE, world, self.tail or tail)
        return [one for run in runs for one in [*run, *[GAP] * (WHOLE - len(run))]]

    def _line_of(self, at: int, epoch: int, world: int, tail: Any) -> list[Any]:
        """All samples of a set in an epoch of this mix."""
        part = self.parts[at]
        if not self.amounts:
            return part.line(epoch, world, tail)
        amount, length = self.amounts[at], len(part.line(0, world, tail))
        total = round(Fraction(amount) * length) if isinstance(amount, float) else amount
        if total and not length:
            raise TooFewError
        passes = max(1, -(-total // length)) if length else 1
        line: list[Any] = []
        for number in range(passes):
            one, left = part.line(epoch * passes + number, world, tail), total - len(line)
            seed = (part.seed or 0) if part.parts else part.number
            places = range(length) if left >= length else drawn_places(length, left, seed, epoch)
            line += [one[place] for place in places]
        return line

    def _steps_of(self, epoch: int, run: int, world: int, tail: Any) -> Iterator[list[Any]]:
        """The runs of an epoch of which the weights change."""
        lengths = [len(part.line(0, world, tail)) for part in self.parts]
        if 0 in lengths:
            raise TooFewError
        endless = [_Endless(part, length, world, tail) for part, length in zip(self.parts, lengths)]
        size = WHOLE // run
        for number, place in by_step(self.points, size, self.seed, epoch * self.steps, self.steps):
            yield [endless[number].at(at) for at in range(place * run, (place + 1) * run)]

    def _runs(self, epoch: int, run: int, world: int, tail: Any) -> Iterator[list[Any]]:
        if self.points:
            yield from self._steps_of(epoch, run, world, tail)
            return
        lines = [self._line_of(at, epoch, world, tail) for at in range(len(self.parts))]
        weights: Any = [max(1, len(line)) for line in lines] if self.amounts else self.weights
        if self.stop == "all":
            cuts = [
                cut(line, run, world, part.ending(tail) if run > 1 else "even")
                for line, part in zip(lines, self.parts)
            ]
            lengths = [len(one) for one in cuts]
        else:
            up = 0 if self.stop == "first" else run - 1
            lengths = [(len(line) + up) // run for line in lines]
        if self.stop != "all" and 0 in lengths:
            raise TooFewError
        order = by_the_book(quotas_of(weights), lengths, self.stop, self.seed)
        if self.stop == "all":
            yield from (cuts[number][place] for number, place in order)
            return
        taken = [sum(number == one for number, _ in order) * run for one in range(len(lines))]
        endless = [_Endless(part, len(line), world, tail) for part, line in zip(self.parts, lines)]
        for number, place in order:
            first = epoch * taken[number] + place * run
            yield [endless[number].at(at) for at in range(first, first + run)]

    def batches(self, epoch: int, world: int) -> list[list[Any]]:
        """The global batches of an epoch, as they are to be."""
        line = self.line(epoch, world)
        found = cut(line, WHOLE, world, "uneven" if self.per == "batch" else self.ending(None))
        return [[one for one in batch if one is not GAP] for batch in found]

    @property
    def is_uneven(self) -> bool:
        """Whether ranks may have different numbers of batches."""
        if self.per == "sample":
            return self.tail == "uneven" and self.partial
        return any(part._replace(tail=part.tail or self.tail).is_uneven for part in self.parts)


class _Endless:
    """The epochs of a set, end to end."""

    def __init__(self, part: Case, length: int, world: int, tail: Any) -> None:
        self.length = length
        self.line = cache(lambda epoch: part.line(epoch, world, tail))

    def at(self, place: int) -> Any:
        return self.line(place // self.length)[place % self.length]


def cut(line: list[Any], whole: int, world: int, tail: str) -> list[list[Any]]:
    """``line`` in batches of ``whole``, its end as man wdscli-loader says."""
    more = {"pad": -len(line) % whole, "even": -len(line) % world}.get(tail, 0)
    line = [*line, *(line[at % len(line)] for at in range(more))]
    batches = [line[at : at + whole] for at in range(0, len(line), whole)]
    return [one for one in batches if tail != "drop" or len(one) == whole]


def some_case(
    rng: random.Random, depth: int = 0, per: str = "", stops: Any = ("first", "all", "repeat")
) -> Case:
    """A mix, or inside one a set."""
    number = rng.randrange(1 << 30)
    partial, tail = rng.random() < 0.7, rng.choice([None, None, "even", "drop", "pad", "uneven"])
    if depth and (depth > 1 or rng.random() < 0.7):
        tail = tail if per == "batch" and rng.random() < 0.3 else None
        return Case(number, rng.randrange(3, 70), tail=tail, partial=partial)
    inner = rng.choice(["batch", "sample"]) if per != "sample" else "sample"
    parts = tuple(some_case(rng, depth + 1, inner) for _ in range(rng.randint(1, 3)))
    weights = tuple(rng.randint(1, 5) for _ in parts)
    seed = rng.choice([None, 0, 7])
    tail = tail if per != "sample" else None
    return Case(number, 0, parts, weights, inner, rng.choice(stops), seed, tail, partial)


def of_rank(data: Any, workers: int, state: Any, epoch: int) -> dict[int, list[Any]]:
    """{number: batch} of what a rank's workers make together."""
    if state is not None:
        data.load_state_dict(state)
    else:
        data.set_epoch(epoch)
    start, found = data._state.start, {}
    for worker in range(workers):
        with mock.patch("wdscli.loader.dataset.find_worker", lambda worker=worker: (worker, workers)):
            begin = start._replace(batch=start.batch + worker)
            for unit in data._units(begin, data._share()):
                assert unit.number not in found, "two workers made a batch"
                if unit.items:
                    [found[unit.number]] = unit.items
    return dict(sorted(found.items()))


@pytest.mark.parametrize("number", range(120))
def test_any_mix_in_any_world(number: int) -> None:
    rng = random.Random(number)
    check_case(some_case(rng), rng)


def some_amounts(rng: random.Random) -> Case:
    """A mix with amounts of its sets, or with weights that change."""
    case = some_case(rng, stops=("all",))
    if rng.random() < 0.5:
        amounts = tuple(
            # Whole batches cannot be cut.
            rng.choice([1.0, 2.0])
            if part.parts and part.per == "batch"
            else rng.choice([rng.randint(1, 90), rng.choice([0.25, 0.5, 1.0, 1.5, 2.75])])
            for part in case.parts
        )
        return case._replace(amounts=amounts)
    ends = [rng.randint(0, 4), *(rng.randint(1, 1200) for _ in range(rng.randrange(3)))]
    points = [(step, tuple(rng.choice([0, 1, 2, 5, 0.3]) for _ in case.parts)) for step in accumulate(ends)]
    points = [(step, weights if any(weights) else (1,) * len(weights)) for step, weights in points]
    last = points[-1][0] + rng.randint(1, 40), tuple(rng.choice([1, 3]) for _ in case.parts)
    return case._replace(points=(*points, last), steps=rng.randint(1, 30))


@pytest.mark.parametrize("number", range(50))
def test_any_amounts_and_changing_weights_in_any_world(number: int) -> None:
    rng = random.Random(1000 + number)
    check_case(some_amounts(rng), rng)


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(750))
def test_many_amounts_and_changing_weights(number: int) -> None:
    rng = random.Random(2000 + number)
    check_case(some_amounts(rng), rng)


def check_case(case: Case, rng: random.Random) -> None:
    """The batches of a mix are the oracle's, in any world and from any state."""
    epoch, world, workers = rng.randrange(3), rng.choice(WORLDS), rng.randint(1, 4)
    try:
        expected = case.batches(epoch, world)
    except TooFewError:
        with pytest.raises(UsageError, match=r"of the mix has (no|\d+) samples"):
            list(case.made(WHOLE // world, rank=0, world_size=world))
        return
    ranks = [case.made(WHOLE // world, rank=rank, world_size=world) for rank in range(world)]
    for rank, data in enumerate(ranks):
        mine = {at: part for at, one in enumerate(expected) if (part := one[rank::world])}
        assert of_rank(data, workers, None, epoch) == mine
        if not case.is_uneven:
            assert len(mine) == len(data) == len(expected)
        data.set_epoch(epoch)
        assert list(data) == list(mine.values())
    # Anywhere on, in another world.
    taken = rng.randint(0, len(expected))
    ranks[0].set_epoch(epoch)
    for _ in islice(ranks[0], len([one for one in expected[:taken] if one])):
        pass
    state = json.loads(json.dumps(ranks[0].state_dict()))
    world, workers = rng.choice(WORLDS), rng.randint(1, 4)
    following, first = case.batches(state["epoch"], world), state["next"]
    for rank in range(world):
        data = case.made(WHOLE // world, rank=rank, world_size=world)
        mine = {at: part for at, one in enumerate(following) if at >= first and (part := one[rank::world])}
        assert of_rank(data, workers, state, 0) == mine
