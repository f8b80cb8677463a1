"""This module records where each iteration of a dataset begins, how many items it has yielded, and which epoch its
DataLoader workers have.

A dataset has an :class:`IterationState`, and an :class:`Iteration` counts the items of one iteration. An iteration
begins at ``start``. Only the end of an epoch, ``set_epoch`` and ``load_state_dict`` move ``start``. So if an iteration
stops early, the next iteration begins at the same place. ``place`` is after the last item that the latest iteration
yielded. Workers of a DataLoader iterate copies of the dataset, and the original does not see their items. So the place
becomes unknown when workers begin an iteration, or when a copy is sent to another process. The place is known again
after this process iterates the dataset; until then, a request for the place is an error.

Torch's DataLoader does not tell workers the epoch. So workers that are started for each epoch would repeat the first
epoch, and persistent workers would miss ``set_epoch``. A new dataset makes an :class:`EpochBoard`: an unnamed file that
its workers inherit or receive. The board has the start of the next iteration, which the main process publishes, and the
latest epoch of the workers of each process. The first worker of an iteration takes the next epoch, and notes it for the
other workers of this iteration. These find the note by the facts in :class:`Beginning`. Each access reads or writes the
whole file under a lock. This module does not know what is iterated."""

from __future__ import annotations

import os
import pickle
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fcntl import LOCK_EX, LOCK_UN, lockf
from itertools import chain, islice
from operator import length_hint
from typing import Any, NamedTuple

from wdscli.loader.place.ranks import in_worker, worker_info
from wdscli.loader.place.state import Place, check_topology

NOTES = 64
"""The number of iterations that a board keeps, and of processes that started workers."""


class Beginning(NamedTuple):
    """What a worker knows of an iteration that it begins. All workers of an iteration have the first three numbers in
    common: ``parent`` is the process that started the worker, ``seed`` is torch's seed without the worker's number, and
    ``time`` is the number of iterations that the worker has begun. ``birth`` is the number that multiprocessing gave to
    the worker's process, without the worker's number. It is the same for all ``workers`` if no other process was
    started between them."""

    parent: int
    seed: int
    time: int
    birth: int
    workers: int
    worker: int

    @classmethod
    def of_worker(cls, worker: Any, time: int) -> Beginning:
        """Return the beginning of iteration ``time`` in this worker. ``worker`` is torch's worker information."""
        from multiprocessing import current_process, parent_process

        parent = parent_process()
        pid = None if parent is None else parent.pid
        number = current_process().name.rpartition("-")[2].rpartition(":")[2]
        process_number = int(number) if number.isdecimal() else 0  # a program may change such a name
        seed, birth = worker.seed - worker.id, process_number - worker.id
        return cls(pid or 0, seed, time, birth, worker.num_workers, worker.id)

    def may_join(self, other: Beginning) -> bool:
        """Return whether both may be workers of the same iteration."""
        return (self.parent, self.seed, self.time) == (other.parent, other.seed, other.time)


class _OfProcess(NamedTuple):
    """The published start of a process, and the latest iteration that its workers have begun since: its epoch, or None,
    and its number of workers."""

    start: Place
    epoch: int | None = None
    workers: int = 1


@dataclass
class _Contents:
    """The contents of a board. ``notes`` has the iterations by what the first worker of each knew: the epoch, and the
    workers that have begun it. A process that was forked from ``maker``, which made the board, begins at the start of
    ``maker`` until it publishes a start of its own."""

    maker: int
    processes: dict[int, _OfProcess]
    notes: dict[Beginning, tuple[int, set[int]]] = field(default_factory=dict)

    def of_process(self, process: int) -> _OfProcess:
        """Return the published start and the workers' latest iteration of a process."""
        return self.processes.get(process) or _OfProcess(self.processes[self.maker].start)

    def set_process(self, process: int, now: _OfProcess) -> None:
        """Change the facts of a process. The board keeps the processes that were changed last, and ``maker``."""
        self.processes.pop(process, None)
        self.processes[process] = now
        if len(self.processes) > NOTES:
            del self.processes[next(number for number in self.processes if number != self.maker)]

    def add(self, begun: Beginning, epoch: int) -> None:
        """Note the epoch of an iteration."""
        self.notes.pop(begun, None)
        self.notes[begun] = epoch, {begun.worker}
        if len(self.notes) > NOTES:
            del self.notes[next(iter(self.notes))]
        self.set_process(begun.parent, _OfProcess(self.of_process(begun.parent).start, epoch, begun.workers))

    def joined(self, begun: Beginning) -> int | None:
        """Return the epoch of the iteration that another worker has begun, or None if this worker is the first."""
        alike = [first for first in reversed(self.notes) if first.may_join(begun)]
        near = (first for first in alike if abs(first.birth - begun.birth) < begun.workers)
        # If other threads started processes between the workers, their births differ by more than that. The
        # iterations that this worker has already begun are others with the same seed.
        new = (first for first in alike if begun.worker not in self.notes[first][1])
        first = next(chain(near, new), None)
        if first is None:
            return None
        epoch, workers = self.notes[first]
        workers.add(begun.worker)
        return epoch


class EpochBoard:
    """The board of a dataset, in an unnamed file. A board can be pickled only while a process is being started, for
    that process."""

    def __init__(self, file: int) -> None:
        self._file = file

    @classmethod
    def made(cls, start: Place) -> EpochBoard:
        """Return a new board, with the start of this process's next iteration. Raises OSError."""
        board = cls(_unnamed_file())
        board._write(_Contents(os.getpid(), {os.getpid(): _OfProcess(start)}))
        return board

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.reduction import DupFd

        return _received, (DupFd(self._file),)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # At the interpreter's end the functions of os may be deleted, so close is a default argument.
        close(self._file)

    def _write(self, contents: _Contents) -> None:
        os.pwrite(self._file, pickle.dumps(contents), 0)

    @contextmanager
    def _read(self) -> Iterator[_Contents]:
        """Hold the lock of the board, and read it."""
        # A lock of a file is released when the process ends, and a forked process does not inherit it.
        lockf(self._file, LOCK_EX)
        try:
            yield pickle.loads(os.pread(self._file, os.fstat(self._file).st_size, 0))
        finally:
            lockf(self._file, LOCK_UN)

    def publish(self, start: Place) -> None:
        """Publish the start of the next iteration of this process and its workers."""
        with self._read() as contents:
            contents.set_process(os.getpid(), _OfProcess(start))
            self._write(contents)

    def latest(self) -> tuple[int, int] | None:
        """Return the epoch and the number of workers of the latest iteration by workers of this process, or None if
        they have begun no iteration since :meth:`publish`."""
        with self._read() as contents:
            mine = contents.of_process(os.getpid())
        return None if mine.epoch is None else (mine.epoch, mine.workers)

    def start_of(self, begun: Beginning, known: Place | None = None) -> Place:
        """Return the start of the iteration that this worker begins: ``known`` if the worker knows it. Otherwise it is
        the published start, and after it the beginning of the epoch that follows the latest one. All workers of an
        iteration get the same start."""
        with self._read() as contents:
            published = contents.of_process(begun.parent)
            epoch = known.epoch if known else contents.joined(begun)
            if known or epoch is None:
                following = published.start.epoch if published.epoch is None else published.epoch + 1
                epoch = following if epoch is None else epoch
                contents.add(begun, epoch)
            self._write(contents)
        return known or (published.start if epoch == published.start.epoch else Place(epoch))


def _unnamed_file() -> int:
    with suppress(AttributeError, OSError):  # not every system has such files
        return os.memfd_create("wdscli")
    from tempfile import TemporaryFile

    with TemporaryFile() as file:
        return os.dup(file.fileno())


def _received(file: Any) -> EpochBoard:
    return EpochBoard(file.detach())


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
    def begun(self) -> tuple[Place, int]:
        """The start of the workers' latest iteration and the number of its workers. If there was none, the start of the
        next iteration, and 1."""
        epoch, workers = self._latest_of_workers or (self._start.epoch, 1)
        return (self._start if epoch == self._start.epoch else Place(epoch)), workers

    @property
    def _latest_of_workers(self) -> tuple[int, int] | None:
        """The epoch and the number of workers of the latest iteration by workers of this process."""
        return None if self._board is None else self._board.latest()

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
        self, start: Place, topology: tuple[int, int] | None = None, is_by_worker: bool = False
    ) -> Iteration:
        """Return a new iteration, which becomes the latest iteration. Raises UsageError if ``start`` needs other
        numbers of ranks or workers than ``topology``."""
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
