"""Mixes of any shape in any world: batches are those of an oracle that is written with lists, as many on every rank,
and a state continues exactly with other ranks and workers."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Any, NamedTuple
from unittest import mock

import numpy
import pytest
from loader_cases import Numbers, by_the_book

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

    def made(self, size: int | None, **ranks: Any) -> Any:
        """The dataset; of batches of ``size`` unless that is None."""
        if not self.parts:
            source: Any = Numbers((self.length,), seed=self.number)
            data: Any = PositionDataset(source, tail=self.tail, **ranks).map(Tag(self.number))
        else:
            parts = [part.made(size if self.per == "batch" else None, **ranks) for part in self.parts]
            rules: Any = {"per": self.per, "stop": self.stop, "seed": self.seed, "tail": self.tail}
            data = wds.mix(list(zip(parts, self.weights)), **rules, **ranks)
        return data if size is None or self.per == "batch" else data.listed(size, self.partial)

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

    def _runs(self, epoch: int, run: int, world: int, tail: Any) -> Iterator[list[Any]]:
        lines = [part.line(epoch, world, tail) for part in self.parts]
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
        order = by_the_book(quotas_of(self.weights), lengths, self.stop, self.seed)
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
    case = some_case(rng)
    epoch, world, workers = rng.randrange(3), rng.choice(WORLDS), rng.randint(1, 4)
    ranks = [case.made(WHOLE // world, rank=rank, world_size=world) for rank in range(world)]
    try:
        expected = case.batches(epoch, world)
    except TooFewError:
        with pytest.raises(UsageError, match=r"of the mix has (no|\d+) samples"):
            list(ranks[0])
        return
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
