"""This module makes the list of an epoch's planned batches, and finds the batches of one rank in it.

:mod:`wdscli.loader.order.batches` plans the batches of each window of an epoch; the list has the batches of all
windows. A window is planned when one of its batches is needed, so an epoch begins after one window is planned. A state
has a mark: the number of a window and the number of its first batch. So a resumed run also plans only one window. To
find a batch, the windows between it and the nearest mark are planned, forwards or backwards. Only the length of an
epoch needs the plans of all windows. The module does not know how values are found, nor how samples are read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import count
from json import dumps
from typing import Any, NamedTuple

from wdscli.arrays import I64, numpy
from wdscli.errors import DataError, UsageError
from wdscli.loader.order.batches import Misfit, Planned, Rule, planned
from wdscli.loader.order.order import ENDLESS, PLANNED, key
from wdscli.loader.order.source import EpochReader, Keys, PositionSource, Values
from wdscli.loader.place.ranks import Share, Tail
from wdscli.threads import ForkLock

HELD = 16
"""The number of planned windows that are kept. Reading ahead may be some windows ahead of the consumer."""
HINT = "leave out such samples with where="
HINT_OF_PACKS = (
    "leave out such samples with where= or packed(drop=True), or shorten them with packed(truncate=True)"
)
PLANS = 4
"""The number of epochs whose plans are kept."""


class Fill(NamedTuple):
    """How full a batch is. ``used``, ``cells`` and ``room`` are in the unit of the rule's value: the sum of the
    samples, this sum with padding, and the largest sum that fits. ``left_out`` counts samples that were too long."""

    used: float = 0
    cells: float = 0
    room: float = 0
    left_out: int = 0


class Plan:
    """The list of batches of an epoch of ``length`` positions. Several threads may use the list. ``reader`` finds the
    values. The call that first plans a window raises the errors of ``reader``, and DataError for a sample that fits
    into no batch. A window is planned with the key ``key(*of_epoch, window)``."""

    def __init__(self, rule: Rule, length: int, of_epoch: Sequence[int], reader: EpochReader) -> None:
        self._rule, self._of_epoch, self._reader = rule, of_epoch, reader
        self.length = length
        self._windows = -(-length // rule.window)
        self._firsts = {0: 0}
        """The number of the first batch of each counted window."""
        self._held: OrderedDict[int, Planned] = OrderedDict()
        self._at = 0
        self._lock = ForkLock()

    def note(self, window: int, first: int) -> None:
        """Note a mark: ``first`` is the number of the first batch of ``window``."""
        if 0 < window < self._windows and first >= 0:
            self._firsts.setdefault(window, first)

    def mark(self, number: int) -> list[int]:
        """Return the mark for batch ``number``: its window, and the number of the window's first batch."""
        with self._lock:
            self._find(number)
            return [self._at, self._firsts[self._at]]

    def has(self, number: int) -> bool:
        """Return whether the list has a batch with this number."""
        with self._lock:
            return self._find(number)

    @property
    def typical(self) -> int:
        """The approximate number of samples in a batch."""
        with self._lock:
            window = self._window(max(0, self._at)) if self._windows else None
            return max(1, len(window.rows) // max(1, len(window.ends))) if window else 1

    @property
    def total(self) -> int:
        """The number of batches in the epoch. All windows are planned once to count them. Raises UsageError for an
        endless epoch."""
        if self.length >= ENDLESS:
            raise UsageError(
                "an endless epoch has no last batch, so its batches cannot be counted",
                hint="with_epoch(samples=n)",
            )
        with self._lock:
            return self._first(self._windows)

    def batch(self, number: int) -> tuple[I64, Fill]:
        """Return the positions and the fill of batch ``number``, which must be in the list."""
        with self._lock:
            self._find(number)
            window, at = self._window(self._at), number - self._firsts[self._at]
            first = int(window.ends[at - 1]) if at else 0
            rows = window.rows[first : int(window.ends[at])] + self._first_position(self._at)
            left_out = 0 if at else window.left_out
            return rows, Fill(
                float(window.used[at]), float(window.cells[at]), float(window.room[at]), left_out
            )

    def find(self, position: int) -> int | None:
        """Return the number of the first batch that has this position, or None if its sample was left out."""
        with self._lock:
            window = ((position + 1) * self._windows - 1) // self.length
            number, plan = self._first(window), self._window(window)
            rows = (plan.rows == position - self._first_position(window)).nonzero()[0]
            if not len(rows):
                return None
            return number + int(plan.ends.searchsorted(rows[0], "right"))

    def _find(self, number: int) -> bool:
        """Set ``_at`` to the window of a batch. Return whether the list has the batch."""
        if not self._firsts.get(self._at, ENDLESS) <= number < self._firsts.get(self._at + 1, 0):
            self._at = max(window for window, first in self._firsts.items() if first <= number)
            after = min((window for window, first in self._firsts.items() if first > number), default=0)
            if after and self._firsts[after] - number < number - self._firsts[self._at]:
                while self._first(after - 1) > number:
                    after -= 1
                self._at = after - 1
        while self._at < self._windows and number >= self._first(self._at + 1):
            self._at += 1
        found = self._at < self._windows
        self._at = min(self._at, self._windows - 1)
        return found

    def _first(self, window: int) -> int:
        """Return the number of the first batch of ``window``, counted from the nearest known window."""
        near = next(one for step in count() for one in (window - step, window + step) if one in self._firsts)
        for before in range(near, window):
            self._firsts[before + 1] = self._firsts[before] + len(self._window(before).ends)
        for after in range(near, window, -1):
            self._firsts[after - 1] = self._firsts[after] - len(self._window(after - 1).ends)
        return self._firsts[window]

    def _first_position(self, window: int) -> int:
        return self.length * window // self._windows

    def _window(self, window: int) -> Planned:
        if window not in self._held:
            first, end = self._first_position(window), self._first_position(window + 1)
            positions: I64 = numpy.arange(first, end, dtype=numpy.int64)
            values = numpy.asarray(self._reader.about(positions, Values(self._rule.value)), dtype=float)
            try:
                self._held[window] = planned(values, self._rule, key(*self._of_epoch, window))
            except Misfit as misfit:
                [sample] = self._reader.about(positions[misfit.row : misfit.row + 1], Keys())
                hint = HINT_OF_PACKS if self._rule.kind == "packed" else HINT
                raise DataError(
                    f"{self._rule.value} {misfit}", code="misfit", member=sample, hint=hint
                ) from None
            if len(self._held) > HELD:
                self._held.popitem(last=False)
        self._held.move_to_end(window)
        return self._held[window]


class Plans:
    """The latest plans by ``rule``. Copies of a dataset share the plans."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self._plans: OrderedDict[str, Plan] = OrderedDict()
        self._marks: dict[str, tuple[int, int]] = {}

    def of_world(self, world: int) -> Rule:
        """Return the rule for ``world`` ranks. Raises UsageError if a group of batches cannot be divided among so many
        ranks."""
        if self.rule.together < 0:
            return self.rule._replace(together=world)
        if self.rule.together > 1 and self.rule.together % world:
            raise UsageError(
                f"same_bucket={self.rule.together} is not a multiple of the number of ranks, {world}",
                hint="same_bucket=True",
            )
        return self.rule

    def of(self, source: PositionSource, epoch: int, world: int) -> Plan:
        """Return the plan of an epoch of a source for ``world`` ranks. Raises UsageError."""
        rule = self.of_world(world)
        name = self._name(source, epoch, rule)
        if name not in self._plans:
            of_epoch = source.seed, PLANNED, epoch
            plan = self._plans[name] = Plan(rule, source.length(epoch), of_epoch, source.reader(epoch))
            if name in self._marks:
                plan.note(*self._marks[name])
            if len(self._plans) > PLANS:
                self._plans.popitem(last=False)
        return self._plans[name]

    def note(self, source: PositionSource, epoch: int, world: int, mark: Any) -> None:
        """Note the mark in a loaded state, for an epoch of a source. A value that is not a mark is ignored."""
        if isinstance(mark, list) and len(mark) == 2 and all(type(one) is int for one in mark):
            self._marks[self._name(source, epoch, self.of_world(world))] = mark[0], mark[1]
            self.of(source, epoch, world).note(*mark)

    @staticmethod
    def _name(source: PositionSource, epoch: int, rule: Rule) -> str:
        return dumps([epoch, source.identity(), rule.together], default=str)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plans": OrderedDict()}


class PlannedBatches(NamedTuple):
    """The batches of one rank and worker in a plan, with the methods of :class:`~wdscli.loader.place.ranks.Batches`. In
    each step, the ranks take the next ``world`` batches of the list, one batch each. A batch of a rank has the number
    of the step's first batch in the list, so numbers are ``stride`` apart.
    """

    plan: Plan
    share: Share
    tail: Tail = "even"

    @property
    def whole(self) -> int:
        """The size of a global batch in a state: 0 for planned batches, so that a state fits any number of ranks."""
        return 0

    @property
    def length(self) -> int:
        """The number of positions in the epoch."""
        return self.plan.length

    @property
    def stride(self) -> int:
        """The difference between the numbers of two neighbouring batches of a rank."""
        return self.share.world

    def numbers(self, first: int) -> range:
        """Return the numbers of this worker's batches from ``first`` on. The range also has numbers after the last
        batch."""
        return range(first, ENDLESS, self.share.world * self.share.workers)

    def ended(self, number: int) -> bool:
        """Return whether this rank has no batch with this or a higher number."""
        more = {"drop": self.share.world - 1, "uneven": self.share.rank}.get(self.tail, 0)
        return not self.plan.has(number + more)

    @property
    def of_rank(self) -> int:
        """The number of this rank's batches in an epoch. Raises UsageError for an endless epoch."""
        more = {"drop": 1 - self.share.world, "uneven": -self.share.rank}.get(self.tail, 0)
        return max(0, -(-(self.plan.total + more) // self.share.world))

    @property
    def batch(self) -> int:
        """The approximate number of samples in a batch."""
        return self.plan.typical

    def several(self, numbers: range) -> tuple[I64, list[int]]:
        """Return the positions of some batches, batch after batch, and the number of positions in each batch. Batches
        after the end of the epoch are left out."""
        found = [self._step(number)[0] for number in numbers if not self.ended(number)]
        return numpy.concatenate([numpy.empty(0, dtype=numpy.int64), *found]), list(map(len, found))

    def positions(self, number: int) -> I64:
        """Return the positions of batch ``number`` for this rank, in order."""
        return self.several(range(number, number + 1))[0]

    def find(self, position: int) -> tuple[int, int] | None:
        """Return (batch, rank) of a position, or None if no rank has the position."""
        number = self.plan.find(position)
        if number is None:
            return None
        step, rank = divmod(number, self.share.world)
        dropped = self.tail == "drop" and not self.plan.has((step + 1) * self.share.world - 1)
        return None if dropped else (step, rank)

    def fill(self, number: int) -> Fill:
        """Return how full batch ``number`` is."""
        return self._step(number)[1]

    def _step(self, number: int) -> tuple[I64, Fill]:
        """Return one batch of the rank. If the list has no batch for the rank in the last step, return a batch from the
        beginning of the list."""
        number += self.share.rank
        return self.plan.batch(number if self.plan.has(number) else number % self.plan.total)
