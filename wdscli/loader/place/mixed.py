"""This module makes the list of batches of a mix whose sets have batches of several sizes, such as packs.

Each set has a list of batches without end: its epochs follow each other, and no window has samples of two epochs. The
list of the mix has groups of batches, and a group comes from one set. A group has a batch for each rank, or more if the
sets have ``balance=n`` or ``same_bucket=n``. :class:`~wdscli.loader.order.schedule.Changing` chooses the set of each
group. A group counts with the length of its batches: the budget, the size of a pack, or the batch size. So shares are
shares of length, and a step of weights that change is a group.

Position p of set i is the position ``p * sets + i`` of the mix. A mark has the marks of all sets. The module does not
know how values are found, nor how samples are read."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from json import dumps
from math import lcm
from typing import Any

from xxhash import xxh3_128_hexdigest

from wdscli.arrays import I64, numpy
from wdscli.errors import UsageError
from wdscli.loader.order.batches import Rule
from wdscli.loader.order.order import ENDLESS, PLANNED
from wdscli.loader.order.schedule import TURNS, Changing, shares_of
from wdscli.loader.order.source import Passes, PositionSource
from wdscli.loader.place.cuts import Cut, Epochs
from wdscli.loader.place.planned import Plan, Plans
from wdscli.loader.place.ranks import Fill, Share, Tail

FACTS_BYTES = 300
"""The largest size of the sets' rules in a state. A state has only a digest of larger rules."""
DIGITS = 4
"""The number of digits of each digest in a mark, because a state is small."""


def list_of_set(source: PositionSource, rule: Rule | int, key: Sequence[int], room: int, skips: bool) -> Plan:
    """Return the list of all epochs of a set from an epoch on. ``rule`` is a rule or a batch size. ``key`` ends with
    the epoch and the set's number. The list has at most ``room`` positions."""
    length = min(room, source.length(0))
    passes = room // length
    if isinstance(rule, int):
        return EqualList(rule, passes * length)
    reader = Passes(source, None, None, []).reader(key[-2])
    plan = Plan(rule, passes * length, key, reader, skips)
    plan.windows = passes * -(-length // rule.window)
    return plan


class EqualList(Plan):
    """A list of batches of ``size`` positions."""

    def __init__(self, size: int, length: int) -> None:
        self._size, self.length = size, length

    def has(self, number: int) -> bool:
        return True

    @property
    def typical(self) -> int:
        return self._size

    def mark(self, number: int) -> list[Any]:
        return [0, 0, ""]

    def noted(self, mark: Any) -> bool:
        return True

    def positions(self, number: int) -> I64:
        return numpy.arange(number * self._size, (number + 1) * self._size, dtype=numpy.int64)

    def fill(self, number: int) -> None:
        return None

    def find(self, position: int) -> int:
        return position // self._size

    def positions_of(self, number: int) -> range:
        return range(number * self._size, (number + 1) * self._size)


class MixedPlan(Plan):
    """The list of a mix of ``lists``, in groups of ``group`` batches. It has the methods of a plan."""

    def __init__(self, schedule: Changing, lists: Sequence[Plan], group: int) -> None:
        self._schedule, self.lists, self._group = schedule, lists, group
        self.length, self.windows = ENDLESS, 1
        self._turn: tuple[int, I64, I64] | None = None

    def _located(self, number: int) -> tuple[int, int]:
        """Return the set of batch ``number``, and the batch's number in the list of the set."""
        run, within = divmod(number, self._group)
        turn, step = divmod(run, TURNS)
        kept = self._turn  # one read, because several threads may use the list
        if kept is None or kept[0] != turn:
            runs: I64 = numpy.arange(turn * TURNS, (turn + 1) * TURNS, dtype=numpy.int64)
            kept = self._turn = turn, *self._schedule.locate(runs)
        return int(kept[1][step]), int(kept[2][step]) * self._group + within

    def _next_batches(self, number: int) -> list[int]:
        """Return the number of each set's first batch that is not before batch ``number``."""
        run, within = divmod(number, self._group)
        numbers = [taken * self._group for taken in self._schedule.before(run)]
        numbers[self._located(number)[0]] += within
        return numbers

    def has(self, number: int) -> bool:
        which, batch = self._located(number)
        return self.lists[which].has(batch)

    @property
    def typical(self) -> int:
        return max(batches.typical for batches in self.lists)

    def positions(self, number: int) -> I64:
        which, batch = self._located(number)
        return self.lists[which].positions(batch) * len(self.lists) + which

    def fill(self, number: int) -> Fill | None:
        which, batch = self._located(number)
        return self.lists[which].fill(batch)

    def find(self, position: int) -> int | None:
        place, which = divmod(position, len(self.lists))
        batch = self.lists[which].find(place)
        run = None if batch is None else self._schedule.find(which, batch // self._group)
        return None if batch is None or run is None else run * self._group + batch % self._group

    def positions_of(self, number: int) -> range:
        ranges = [
            batches.positions_of(batch) for batches, batch in zip(self.lists, self._next_batches(number))
        ]
        first, stop = min(each.start for each in ranges), max(each.stop for each in ranges)
        return range(first * len(self.lists), stop * len(self.lists))

    def mark(self, number: int) -> list[Any]:
        marks = (
            batches.mark(batch) if batch else list[Any]((0, 0, ""))
            for batches, batch in zip(self.lists, self._next_batches(number))
        )
        return [[window, first, digest[:DIGITS]] for window, first, digest in marks]

    def noted(self, mark: Any) -> bool:
        marks: list[Any] = mark if isinstance(mark, list) and len(mark) == len(self.lists) else []
        return all(batches.noted(of_set) for batches, of_set in zip(self.lists, marks))


class MixedPlans(Plans):
    """The latest lists of a mix. ``batches`` has the plans or the batch size of each set. ``points`` are pairs (step,
    shares of the sets)."""

    name = 'mix(per="batch")'

    def __init__(self, batches: Sequence[Plans | int], points: Sequence[tuple[int, Sequence[int]]]) -> None:
        rules = [plans.rule for plans in batches if isinstance(plans, Plans)]
        super().__init__(rules[0] if rules else Rule("packed", ""))
        self._batches = tuple(batches)
        lengths = _lengths(batches)
        self._points = [
            (step, shares_of([Fraction(share) / length for share, length in zip(shares, lengths)]))
            for step, shares in points
        ]

    @property
    def measured(self) -> str:
        return " or ".join(plans.measured for plans in self._batches if isinstance(plans, Plans))

    def rules(self, world: int) -> list[Rule | int]:
        """Return the rule or the batch size of each set, for ``world`` ranks. Raises UsageError."""
        return [plans if isinstance(plans, int) else plans.of_world(world) for plans in self._batches]

    def _group(self, world: int) -> int:
        return lcm(world, *(rule.together for rule in self.rules(world) if isinstance(rule, Rule)))

    def cut(self, source: PositionSource, cuts: Sequence[Cut], share: Share, tail: Tail) -> PositionSource:
        if any(isinstance(cut, Epochs) and cut.samples for cut in cuts):
            raise UsageError(
                f"with_epoch(samples=) cannot count the samples of {self.name}", hint="with_epoch(batches=n)"
            )
        return super().cut(source, cuts, share, tail)

    def _made(self, source: PositionSource, epoch: int, world: int) -> Plan:
        base: Any = source.base()
        base.schedule()  # raises UsageError for a set without samples
        sources = [mixed_set.source for mixed_set in base.sets]
        lists = []
        for number, (set_source, rule) in enumerate(zip(sources, self.rules(world))):
            plans = self._batches[number]
            skips = isinstance(plans, Plans) and plans.skips
            of_list = base.seed, PLANNED, epoch, number
            lists.append(list_of_set(set_source, rule, of_list, ENDLESS // len(sources), skips))
        return MixedPlan(Changing(self._points, 1, None), lists, self._group(world))

    def facts(self, world: int) -> list[Any]:
        rules = [rule if isinstance(rule, int) else rule.identity() for rule in self.rules(world)]
        text = dumps(rules)
        return [
            "mix",
            self._group(world),
            rules if len(text) <= FACTS_BYTES else xxh3_128_hexdigest(text.encode()),
        ]


def _lengths(batches: Sequence[Plans | int]) -> list[Fraction]:
    """Return the length of a batch of each set. If the sets measure different things, each batch counts as 1."""
    measured: list[tuple[str, float]] = []
    for plans in batches:
        if isinstance(plans, int):
            measured.append(("samples", plans))
        elif plans.rule.kind != "bucket":
            measured.append(("length", plans.rule.size))
        else:
            sizes = {size for size in plans.rule.sizes if size}
            measured.append(("samples", sizes.pop()) if len(sizes) == 1 else ("several", 0))
    units = {unit for unit, _ in measured}
    has_unit = len(units) == 1 and units != {"several"}
    return [Fraction(length) if has_unit else Fraction(1) for _, length in measured]
