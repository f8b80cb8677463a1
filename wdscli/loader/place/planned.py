"""This module makes the list of an epoch's planned batches, and finds the batches of one rank in it.

:mod:`wdscli.loader.order.batches` plans the batches of each window of an epoch; the list has the batches of all
windows. A window is planned when one of its batches is needed, so an epoch begins after one window is planned. A state
has a mark: the number of a window, the number of its first batch, and a digest of its values. So a resumed run also
plans only one window, and refuses the state if the values changed. To find a batch, the windows between it and the
nearest mark are planned, forwards or backwards. Only the length of an epoch needs the plans of all windows.

:class:`PlannedBatches` are a part of the list (:class:`ListPart`). ``slice`` chooses steps of an epoch; a step has a
batch for each rank. ``with_epoch(batches=n)`` makes one endless list of all epochs, and cuts it after every n steps.
The module does not know how values are found, nor how samples are read.
"""

from __future__ import annotations

import warnings
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from copy import copy
from itertools import count, takewhile
from json import dumps
from typing import Any, NamedTuple

from xxhash import xxh3_64_hexdigest

from wdscli.arrays import F64, I64, numpy
from wdscli.errors import DataError, InputError, UsageError
from wdscli.loader.order.batches import Misfit, Planned, Rule, planned, reason_of_misfit
from wdscli.loader.order.order import ENDLESS, PLANNED, key
from wdscli.loader.order.source import (
    Addresses,
    EpochReader,
    Keys,
    Passes,
    PositionSource,
    Slice,
    SourceView,
    ValueFact,
)
from wdscli.loader.place.cuts import Cut, Epochs, EpochSlice
from wdscli.loader.place.ranks import EpochBatches, Fill, Share, Tail
from wdscli.threads import ForkLock

HELD = 16
"""The number of planned windows that are kept. Reading ahead may be some windows ahead of the consumer."""
HINT = 'leave out such samples with where= or on_error="skip"'
HINT_OF_PACKS = (
    "leave out such samples with where= or packed(drop=True), or shorten them with packed(truncate=True)"
)
HINT_OF_NO_BATCH = "partial=True yields batches that are not full; a larger window= has more full batches"
MAX_EMPTY_WINDOWS = 1000
"""In an endless list, the search for a batch ends after so many windows without one."""
NOTHING: Mapping[tuple[str, str], int] = {}
PLANS = 4
"""The number of epochs whose plans are kept."""


class PlannedWindow(NamedTuple):
    """A planned window. ``digest`` identifies the values of its samples. ``left_out`` counts by shard and
    reason the samples that fit into no batch."""

    plan: Planned
    digest: str
    left_out: Mapping[tuple[str, str], int]


class Plan:
    """The list of batches of an epoch of ``length`` positions. Several threads may use the list. ``reader`` finds the
    values. The call that first plans a window raises the errors of ``reader``, and DataError for a sample that fits
    into no batch, unless ``skips`` is set. A window is planned with the key ``key(*of_epoch, window)``. Raises
    InputError if many windows of an endless list have no batch."""

    def __init__(
        self, rule: Rule, length: int, of_epoch: Sequence[int], reader: EpochReader, skips: bool = False
    ) -> None:
        self.rule, self._of_epoch, self._reader, self._skips = rule, of_epoch, reader, skips
        self.length = length
        self.windows = -(-length // rule.window)
        self._firsts = {0: 0}
        """The number of the first batch of each counted window."""
        self._held: OrderedDict[int, PlannedWindow] = OrderedDict()
        self._current = 0
        """The window that had the latest requested batch."""
        self._lock = ForkLock()

    def noted(self, mark: Any) -> bool:
        """Note the mark in a state: its window, the number of the window's first batch, and the beginning of the digest
        of the window's values. A value that is not a mark is ignored. Return False if the values of the window differ.
        Raises UsageError for a window that does not exist."""
        window, first, digest = mark if isinstance(mark, list) and len(mark) == 3 else (0, 0, None)
        if not (type(window) is type(first) is int and isinstance(digest, str)):
            return True
        if not (0 <= window <= self.windows and 0 <= first < 1 << 62):
            raise UsageError(
                f"this is not the state of a wdscli loader: it has the window {window} of {self.windows}"
            )
        if window < self.windows and digest and not self.digest(window).startswith(digest):
            return False
        if 0 < window < self.windows:
            self._firsts.setdefault(window, first)
        return True

    def mark(self, number: int) -> list[Any]:
        """Return the mark for batch ``number``: its window, the number of the window's first batch, and the digest of
        the window's values."""
        with self._lock:
            self._find(number)
            return [self._current, self._firsts[self._current], self._window(self._current).digest]

    def digest(self, window: int) -> str:
        """Return the digest of the values of a window, which is not planned for this."""
        with self._lock:
            return self._held[window].digest if window in self._held else _digest(self._values(window))

    def has(self, number: int) -> bool:
        """Return whether the list has a batch with this number."""
        with self._lock:
            return self._find(number)

    @property
    def typical(self) -> int:
        """The approximate number of samples in a batch."""
        with self._lock:
            plan = self._window(max(0, self._current)).plan if self.windows else None
            return max(1, len(plan.rows) // max(1, len(plan.ends))) if plan else 1

    @property
    def total(self) -> int:
        """The number of batches in the epoch. All windows are planned once to count them. Raises UsageError for an
        endless epoch."""
        if self.length >= ENDLESS:
            raise UsageError(
                "an endless epoch has no last batch, so its batches cannot be counted",
                hint="with_epoch(batches=n) or slice(n)",
            )
        with self._lock:
            return self._first(self.windows)

    def positions(self, number: int) -> I64:
        """Return the positions of batch ``number``, which must be in the list."""
        with self._lock:
            plan, place = self._place(number)
            first = int(plan.ends[place - 1]) if place else 0
            return plan.rows[first : int(plan.ends[place])] + self._first_position(self._current)

    def fill(self, number: int) -> Fill | None:
        """Return how full batch ``number`` is, which must be in the list. None means that it has no values."""
        with self._lock:
            plan, place = self._place(number)
            columns = plan.used, plan.cells, plan.room, plan.shortened, plan.cut_off
            used, cells, room, shortened, cut_off = (float(column[place]) for column in columns)
            left_out = self._left_out(self._current, place) if place in (0, len(plan.ends) - 1) else NOTHING
            return Fill(used, cells, room, int(shortened), cut_off, left_out)

    def _place(self, number: int) -> tuple[Planned, int]:
        """Return the plan of the window that has a batch, and the batch's place in it."""
        self._find(number)
        return self._window(self._current).plan, number - self._firsts[self._current]

    def _left_out(self, window: int, place: int) -> Mapping[tuple[str, str], int]:
        """Return the counts for batch ``place`` of a window. The first batch has the counts of the window. A window
        without batches counts with the batch before it, or else with the first batch of the list."""
        windows = [window] if place == 0 else []
        if place == 0 and self._firsts[window] == 0:
            windows += range(window)
        if place == len(self._window(window).plan.ends) - 1:
            following = range(window + 1, self.windows)
            windows += takewhile(lambda later: not len(self._window(later).plan.ends), following)
        return sum((Counter(self._window(counted).left_out) for counted in windows), Counter())

    def find(self, position: int) -> int | None:
        """Return the number of the first batch that has this position, or None if its sample was left out."""
        with self._lock:
            window = ((position + 1) * self.windows - 1) // self.length
            number, plan = self._first(window), self._window(window).plan
            rows = (plan.rows == position - self._first_position(window)).nonzero()[0]
            return number + int(plan.ends.searchsorted(rows[0], "right")) if len(rows) else None

    def positions_of(self, number: int) -> range:
        """Return the positions of the window that has batch ``number``, which must be in the list."""
        with self._lock:
            self._find(number)
            return range(self._first_position(self._current), self._first_position(self._current + 1))

    def _find(self, number: int) -> bool:
        """Set ``_current`` to the window of a batch. Return whether the list has the batch."""
        if not self._firsts.get(self._current, ENDLESS) <= number < self._firsts.get(self._current + 1, 0):
            self._current = max(window for window, first in self._firsts.items() if first <= number)
            after = min((window for window, first in self._firsts.items() if first > number), default=0)
            if after and self._firsts[after] - number < number - self._firsts[self._current]:
                while self._first(after - 1) > number:
                    after -= 1
                self._current = after - 1
        without_batch = 0
        while self._current < self.windows and number >= self._first(self._current + 1):
            self._current += 1
            is_empty = self._firsts[self._current] == self._firsts[self._current - 1]
            without_batch = without_batch + 1 if is_empty else 0
            if self.length >= ENDLESS and without_batch == MAX_EMPTY_WINDOWS:
                raise InputError(f"{without_batch} windows have no batch", hint=HINT_OF_NO_BATCH)
        has_batch = self._current < self.windows
        self._current = min(self._current, self.windows - 1)
        return has_batch

    def _first(self, window: int) -> int:
        """Return the number of the first batch of ``window``, counted from the nearest known window."""
        by_distance = (number for step in count() for number in (window - step, window + step))
        near = next(number for number in by_distance if number in self._firsts)
        for before in range(near, window):
            self._firsts[before + 1] = self._firsts[before] + len(self._window(before).plan.ends)
        for after in range(near, window, -1):
            self._firsts[after - 1] = self._firsts[after] - len(self._window(after - 1).plan.ends)
        return self._firsts[window]

    def _first_position(self, window: int) -> int:
        return self.length * window // self.windows

    def _positions(self, window: int) -> I64:
        return numpy.arange(self._first_position(window), self._first_position(window + 1), dtype=numpy.int64)

    def _values(self, window: int) -> F64:
        """Return the values of a window: a row for each expression."""
        positions = self._positions(window)
        columns = [self._reader.about(positions, ValueFact(value)) for value in self.rule.expressions]
        return numpy.array(columns, dtype=float)

    def _window(self, window: int) -> PlannedWindow:
        if window not in self._held:
            self._held[window] = self._planned(window)
            if len(self._held) > HELD:
                self._held.popitem(last=False)
        self._held.move_to_end(window)
        return self._held[window]

    def _planned(self, window: int) -> PlannedWindow:
        values, positions = self._values(window), self._positions(window)
        try:
            plan = planned(values, self.rule, key(*self._of_epoch, window), self._skips)
        except Misfit as error:
            [sample] = self._reader.about(positions[error.row : error.row + 1], Keys())
            hint = HINT_OF_PACKS if self.rule.kind == "packed" else HINT
            raise DataError(str(error), code="misfit", member=sample, hint=hint) from None
        if not len(plan.left_out):
            return PlannedWindow(plan, _digest(values), NOTHING)
        shards = self._reader.about(positions[plan.left_out], Addresses())
        reasons = (reason_of_misfit(values[:, row], self.rule) for row in plan.left_out)
        return PlannedWindow(plan, _digest(values), Counter(zip(shards, reasons)))


def _digest(values: F64) -> str:
    return xxh3_64_hexdigest(values.astype("<f8").tobytes())


class ListPart(NamedTuple):
    """A part of the list of batches: ``length`` batches from batch ``first`` on (None: all batches to the end of the
    list). With ``step`` > 1, the part has only every ``step``-th step of the ranks."""

    first: int = 0
    length: int | None = None
    step: int = 1


def _in_steps(batches: int, step: int, world: int) -> int:
    """Return how many of ``batches`` batches are in every ``step``-th step of ``world`` ranks."""
    whole, last_batches = divmod(batches, step * world)
    return whole * world + min(last_batches, world)


WHOLE_LIST = ListPart()


class PlannedBatches(EpochBatches):
    """The batches of one rank and worker in a ``part`` of a plan. In each step, the ranks take the next ``world``
    batches of the list, one batch each. A batch of a rank has the number of the step's first batch in the part, so
    numbers are ``world`` apart. With ``varies``, the list may have another length in other epochs."""

    whole = 0  # a state fits any number of ranks

    def __init__(
        self, plan: Plan, share: Share, tail: Tail = "even", part: ListPart = WHOLE_LIST, varies: bool = False
    ) -> None:
        self.plan, self.share, self.tail = plan, share, tail
        self.length, self.stride = plan.length, share.world
        self._part, self._varies = part, varies

    @property
    def typical(self) -> int:
        return self.plan.typical

    @property
    def is_endless(self) -> bool:
        return self._part.length is None and self.plan.length >= ENDLESS

    def sliced(self, chosen: Slice) -> PlannedBatches:
        """Return a slice of the steps."""
        world, part = self.share.world, self._part
        start, stop, step = chosen.start or 0, chosen.stop, chosen.step or 1
        if start < 0 or (stop is not None and stop < 0):
            steps = chosen.range(ENDLESS if self.is_endless else self._steps)
            start, stop = steps.start, steps.stop
        total = None if part.length is None else _in_steps(max(0, part.length - start * world), step, world)
        if stop is not None:
            wanted = len(range(start, stop, step)) * world
            total = wanted if total is None else min(total, wanted)
        batches = copy(self)
        batches._part = ListPart(self._in_list(start * world), total, part.step * step)
        return batches

    def ended(self, number: int) -> bool:
        last = {"drop": self.share.world - 1, "uneven": self.share.rank}.get(self.tail, 0)
        return not self._has(number + last)

    @property
    def of_rank(self) -> int:
        missing = {"drop": 1 - self.share.world, "uneven": -self.share.rank}.get(self.tail, 0)
        return max(0, -(-(self._total + missing) // self.share.world))

    @property
    def varies(self) -> bool:
        return self._varies and (self._part.length is None or self._total < self._part.length)

    @property
    def _steps(self) -> int:
        """The number of steps of the ranks."""
        padding = 0 if self.tail == "drop" else self.share.world - 1
        return (self._total + padding) // self.share.world

    @property
    def _total(self) -> int:
        """The number of batches in the part."""
        first, counted, step = self._part
        if counted is not None and self.plan.length >= ENDLESS:
            return counted
        listed = _in_steps(max(0, self.plan.total - first), step, self.share.world)
        return listed if counted is None else min(listed, counted)

    def _in_list(self, number: int) -> int:
        """Return the number in the list of batch ``number`` of the part."""
        first, _, step = self._part
        if step == 1:
            return first + number
        steps, rank = divmod(number, self.share.world)
        return first + steps * step * self.share.world + rank

    def _has(self, number: int) -> bool:
        counted = self._part.length
        return (counted is None or number < counted) and self.plan.has(self._in_list(number))

    def several(self, numbers: range) -> tuple[I64, list[int]]:
        batches = [self.plan.positions(self._of_step(number)) for number in numbers if not self.ended(number)]
        return numpy.concatenate([numpy.empty(0, dtype=numpy.int64), *batches]), list(map(len, batches))

    @property
    def searched(self) -> range:
        first, counted, _ = self._part
        if (first, counted) == (0, None):
            return range(self.plan.length)
        if not self._has(0):
            return range(0)
        start, stop = self.plan.positions_of(first).start, self.plan.length
        if counted is not None and self._has(counted - 1):
            stop = self.plan.positions_of(self._in_list(counted - 1)).stop
        return range(start, stop)

    def find(self, position: int) -> tuple[int, int] | None:
        listed, world = self.plan.find(position), self.share.world
        if listed is None or listed < self._part.first:
            return None
        steps, place = divmod(listed - self._part.first, self._part.step * world)
        number = steps * world + place
        if place >= world or not self._has(number):
            return None
        step, rank = divmod(number, world)
        dropped = self.tail == "drop" and not self._has((step + 1) * world - 1)
        return None if dropped else (step, rank)

    def fill(self, number: int) -> Fill | None:
        return self.plan.fill(self._of_step(number))

    def mark(self, number: int) -> list[Any] | None:
        listed = self._in_list(number)
        return self.plan.mark(listed) if listed and self.plan.windows else None

    def _of_step(self, number: int) -> int:
        """Return the number in the list of the rank's batch in a step. If the part has no batch for the rank in the
        last step, return the number of a batch from the beginning of the part."""
        number += self.share.rank
        return self._in_list(number if self._has(number) else number % self._total)


class Plans:
    """The latest plans by ``rule``, and how cuts apply to them. Copies of a dataset share the plans."""

    def __init__(self, rule: Rule, skips: bool = False) -> None:
        self.rule, self.skips = rule, skips
        self._plans: OrderedDict[str, Plan] = OrderedDict()
        self._marks: dict[str, Any] = {}
        self._has_warned = False

    @property
    def name(self) -> str:
        """The text for this stage in the repr() of a dataset."""
        return self.rule.name

    def of_world(self, world: int) -> Rule:
        """Return the rule for ``world`` ranks. Raises UsageError if a group of batches cannot be divided among so many
        ranks."""
        if self.rule.together < 0:
            return self.rule._replace(together=world)
        if self.rule.together > 1 and self.rule.together % world:
            word = "same_bucket" if self.rule.kind == "bucket" else "balance"
            raise UsageError(
                f"{word}={self.rule.together} is not a multiple of the number of ranks, {world}",
                hint=f"{word}=True",
            )
        return self.rule

    def stride(self, share: Share) -> int:
        """Return the difference between the numbers of two neighbouring batches of a rank."""
        return share.world

    def cut(self, source: PositionSource, cuts: Sequence[Cut], share: Share, tail: Tail) -> PositionSource:
        """Return ``source`` with the cuts that count samples. :meth:`batches` applies the others. Raises UsageError for
        an impossible order of cuts."""
        for number, cut in enumerate(cuts):
            if isinstance(cut, EpochSlice):
                source = SourceView(source, cut.chosen) if cut.of == "samples" else source
            elif any(
                isinstance(earlier, EpochSlice) and earlier.of == "batches" for earlier in cuts[:number]
            ):
                raise UsageError(
                    f"with_epoch() and repeat() cannot follow slice() of the batches of {self.name}",
                    hint="call slice() last, after with_epoch() or repeat() without a number",
                )
            elif cut.counts_batches:
                counted = [cut.passes, cut.positions(share, 1), "batches"]
                source = Passes(source, cut.passes, None, counted)
            else:
                source = cut.of_source(source, share, 1)
        return source

    def batches(
        self, source: PositionSource, cuts: Sequence[Cut], epoch: int, share: Share, tail: Tail
    ) -> PlannedBatches:
        """Return the batches of an epoch of ``source``, which has the cuts that count samples. Raises UsageError."""
        number, part = _list_of(cuts, epoch, share)
        plan = self._plan(source, number, share.world)
        varies = plan.windows > 1 or not source.has_same_samples
        batches = PlannedBatches(plan, share, tail, part, varies)
        batches.source_epoch = number
        for cut in cuts:
            if isinstance(cut, EpochSlice) and cut.of == "batches":
                batches = batches.sliced(cut.chosen)
        return batches

    def _plan(self, source: PositionSource, epoch: int, world: int) -> Plan:
        name = self._name(source, epoch, world)
        if name not in self._plans:
            plan = self._plans[name] = self._made(source, epoch, world)
            plan.noted(self._marks.get(name))
            if len(self._plans) > PLANS:
                self._plans.popitem(last=False)
        return self._plans[name]

    def _name(self, source: PositionSource, epoch: int, world: int) -> str:
        return dumps([epoch, source.identity(), self.facts(world)], default=str)

    def _made(self, source: PositionSource, epoch: int, world: int) -> Plan:
        of_epoch = source.seed, PLANNED, epoch
        return Plan(self.of_world(world), source.length(epoch), of_epoch, source.reader(epoch), self.skips)

    def facts(self, world: int) -> list[Any]:
        """Return the facts of the batches for ``world`` ranks, as plain values."""
        return self.of_world(world).identity()

    def identity(self, cuts: Sequence[Cut], share: Share) -> dict[str, Any]:
        """Return the facts that must be the same in a saved state and here, as plain values. A number of steps counts
        as the number of their batches, so that a state fits other ranks with as many batches in all."""
        slices = []
        for cut in cuts:
            if isinstance(cut, EpochSlice) and cut.of == "batches":
                start, stop, step = cut.chosen
                bounds = [None if bound is None else bound * share.world for bound in (start, stop)]
                slices.append([*bounds, *([step, share.world] if step not in (None, 1) else [])])
        return {"batches": self.facts(share.world), **({"slices": slices} if slices else {})}

    def note(self, source: PositionSource, cuts: Sequence[Cut], epoch: int, share: Share, mark: Any) -> None:
        """Note the mark in a loaded state, for an epoch of a source. A value that is not a mark is ignored. Raises
        UsageError if the values of the mark's window differ."""
        number, _ = _list_of(cuts, epoch, share)
        plan = self._plan(source, number, share.world)
        if not plan.noted(mark):
            raise UsageError(
                f"the state has other values of {self.measured}, so samples would be lost or repeated",
                hint=f"restore the values, or begin epoch {epoch} again with set_epoch({epoch})",
            )
        self._marks[self._name(source, number, share.world)] = mark

    @property
    def measured(self) -> str:
        """The expressions whose values decide which samples are in a batch."""
        return " or ".join(map(str, self.rule.expressions))

    def warn_of_length(self, batches: EpochBatches) -> None:
        """Warn once if the epochs may differ in the number of their batches."""
        if batches.varies and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"other epochs of {self.name} may have some batches more or fewer: their samples, or the windows\n"
                f"of {self.rule.window:,} samples, differ; with_epoch(batches=n) makes all epochs equally long",
                stacklevel=3,
            )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_plans": OrderedDict()}


def _list_of(cuts: Sequence[Cut], epoch: int, share: Share) -> tuple[int, ListPart]:
    """Return the number of the epoch whose list has the batches of ``epoch``, and the part of the list."""
    for cut in cuts:
        if isinstance(cut, Epochs) and cut.counts_batches:
            counted = cut.positions(share, 1) or 0
            if cut.passes is None:
                return 0, ListPart(epoch * counted, counted)
            return epoch, ListPart(0, counted)
    return epoch, WHOLE_LIST
