"""This module records where each iteration of a dataset begins, and how many items it has yielded.

A dataset has an :class:`IterationState`, and an :class:`Iteration` counts the items of one iteration. An iteration
begins at ``start``. Only the end of an epoch, ``set_epoch`` and ``load_state_dict`` move ``start``. So if an iteration
stops early, the next iteration begins at the same place. ``place`` is after the last item that the latest iteration
yielded. Workers of a DataLoader iterate copies of the dataset, and the original does not see their items. So the place
becomes unknown when workers begin an iteration, or when a copy is sent to another process. The place is known again
after this process iterates the dataset; until then, a request for the place is an error.

The epochs of workers are in :mod:`~wdscli.loader.place.epoch_board`. This module does not know what is iterated."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import length_hint
from typing import Any

from wdscli.loader.place.epoch_board import Beginning, EpochBoard
from wdscli.loader.place.ranks import in_worker, worker_info
from wdscli.loader.place.state import Place, check_topology


class Iteration:
    """A running iteration from ``start`` on. As long as no newer iteration begins, the dataset's place is after the
    last item that this iteration yielded. ``is_by_worker`` is true if an epoch is longer with more workers."""

    def __init__(self, state: IterationState, start: Place, place: Place, is_by_worker: bool) -> None:
        self._state, self.start, self._place = state, start, place
        self._is_by_worker = is_by_worker
        self._numbers, self._following, self._step = range(0), iter(()), 1
        """The numbers of a list of items, and an iterator of this list, which counts the yielded items."""

    @property
    def place(self) -> Place:
        """The place after the last yielded item. A place is made only on request, because making a place takes longer
        than yielding a sample."""
        yielded = len(self._numbers) - length_hint(self._following)
        if not yielded:
            return self._place
        return self.start._replace(batch=self._numbers[yielded - 1] + self._step, item=0)

    def of_samples(self, samples: Iterable[tuple[range, list[Any]]], step: int, end: int) -> Iterator[Any]:
        """Yield the items of ``samples``, which are pairs (numbers, items). The numbers are ``step`` apart, and below
        ``end``."""
        self._step, last = step, end - step
        try:
            for numbers, items in samples:
                before = bisect_left(numbers, last)
                self._begin(numbers, iter(items))
                if before < len(numbers):
                    yield from islice(self._following, before)
                    self.over()
                yield from self._following
            self._finish()
        finally:
            self._begin(range(0), iter(()))

    def _begin(self, numbers: range, items: Iterator[Any]) -> None:
        """Yield ``items`` next."""
        self._place = self.place
        self._numbers, self._following = numbers, items

    def of_units(self, units: Iterable[Any], step: int, ended: Callable[[int], bool]) -> Iterator[Any]:
        """Yield the items of ``units``. The numbers of the units are ``step`` apart. ``ended(number)`` returns whether
        the epoch has no unit with this or a higher number. The epoch is complete after its last item, even if the
        caller requests no further item."""
        start = self.start
        for unit in units:
            number, items = unit.number, unit.items
            after = start._replace(batch=number + step, item=0)
            for row in range(start.item if number == start.batch else 0, len(items)):
                is_last = row + 1 == len(items)
                place = self._place = after if is_last else start._replace(batch=number, item=row + 1)
                if is_last and ended(place.batch):
                    self.over()
                yield items[row]
            self._place = after
        self._finish()

    def of_items(self, items: Iterable[Any]) -> Iterator[Any]:
        """Skip the items before the start position, and yield the rest. ``items`` are the items of the whole epoch."""
        self._place = self.start
        for number, item in enumerate(islice(items, self.start.item, None), self.start.item + 1):
            self._place = self.start._replace(item=number)
            yield item
        self._finish()

    def until(self, items: Iterator[Any], last: int | None) -> Iterator[Any]:
        """Yield ``items`` of an epoch. Mark the epoch as finished after ``last`` items; with None, the length is
        unknown."""
        if last is None or self.start.batch or self.start.worker is not None:
            return items
        return self._until(items, last)

    def _until(self, items: Iterator[Any], last: int) -> Iterator[Any]:
        for number, item in enumerate(items, self.start.item + 1):
            if number == last:
                self.over()
            yield item

    def over(self) -> None:
        """Make the next iteration begin the next epoch, even if this iteration has not ended."""
        if self._state.latest is self:
            self._state.start = Place(self.start.epoch + 1)

    def _finish(self) -> None:
        """Mark the epoch as finished. The place of a worker stays at the end of the epoch until its next iteration,
        because other workers may not have finished the epoch."""
        if self._state.latest is self:
            place = self.place
            self._state.start = following = Place(place.epoch + 1)
            if place.worker is None:
                place = following._replace(topology=place.topology if self._is_by_worker else None)
            self._place, self._numbers = place, range(0)


class IterationState:
    """Has the start of a dataset's next iteration, and the place of its latest iteration."""

    latest: Iteration | None = None
    _board: EpochBoard | None = None

    def __init__(self, start: Place | None = None) -> None:
        self._times = 0
        self.move(start or Place())

    def move(self, start: Place) -> None:
        """Make the next iteration begin at ``start``, in this process and in workers."""
        self._start = self._place = start
        self._moved, self.latest = in_worker(), None
        self._followed = self._sent = False
        self._publish()

    def _publish(self) -> None:
        """Write the start position to the board, for the workers of this process."""
        if in_worker():
            return
        if self._board is None:
            self._board = EpochBoard.made(self._start)
        else:
            self._board.publish(self._start)

    @property
    def start(self) -> Place:
        """The start of the next iteration, whether this process or workers iterate."""
        latest = self._latest_of_workers
        return self._start if latest is None else Place(latest[0] + 1)

    @start.setter
    def start(self, start: Place) -> None:
        self._start = start
        self._publish()

    @property
    def begun(self) -> Place:
        """The start of the workers' latest iteration, or ``start`` if there was none."""
        latest = self._latest_of_workers
        return self._start if latest is None or latest[0] == self._start.epoch else Place(latest[0])

    @property
    def _latest_of_workers(self) -> tuple[int, int] | None:
        """The epoch and the number of workers of the latest iteration by workers of this process."""
        return None if self._board is None else self._board.latest()

    @property
    def workers(self) -> int:
        """The number of workers of the latest iteration."""
        latest = self._latest_of_workers
        return 1 if latest is None else latest[1]

    def next_start(self) -> Place:
        """Return the start of an iteration that begins now. All workers of an iteration get the same start."""
        worker = worker_info()
        if worker is None or self._board is None:
            if self._latest_of_workers is not None:
                self.start = self.start
            return self._start
        self._times += 1
        loaded = self._start if self._moved else None  # a state was loaded in this worker
        self._moved = False
        return self._board.start_of(Beginning.of_worker(worker, self._times), loaded)

    def begin(
        self, start: Place | None = None, topology: tuple[int, int] | None = None, is_by_worker: bool = False
    ) -> Iteration:
        """Return a new iteration, which becomes the latest iteration. Raises UsageError if ``start`` needs other
        numbers of ranks or workers than ``topology``."""
        start = start or self.start
        check_topology(start, topology)
        self.latest = Iteration(self, start._replace(topology=topology), start, is_by_worker)
        self._followed = True
        return self.latest

    @property
    def place(self) -> Place:
        """The place after the last item that the latest iteration yielded."""
        return self._place if self.latest is None else self.latest.place

    @property
    def is_known(self) -> bool:
        """Whether ``place`` is exact. A place is not exact if other processes may have iterated copies of the
        dataset."""
        return self._followed or not (self._sent or self._latest_of_workers is not None)

    def copy(self) -> IterationState:
        """Return the state for another dataset that begins at the same place."""
        new = IterationState(self.start)
        new._place, new._followed = self.place, self._followed
        new._sent = self._sent or self._latest_of_workers is not None
        return new

    def __getstate__(self) -> dict[str, Any]:
        self._sent = True
        if in_worker() or not _is_spawning():
            return {"start": self.start}
        return {"start": self._start, "board": self._board}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["start"])  # type: ignore[misc]
        self._board = state.get("board", self._board)


def _is_spawning() -> bool:
    """Return whether an object is being pickled for a process that is being started."""
    context = sys.modules.get("multiprocessing.context")
    return context is not None and context.get_spawning_popen() is not None
