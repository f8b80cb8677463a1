"""This module records where each iteration of a dataset begins, and how many items it has yielded.

A dataset has an :class:`IterationState`, and an :class:`Iteration` counts the items of one iteration. An iteration
begins at ``start``. Only the end of an epoch, ``set_epoch`` and ``load_state_dict`` move ``start``. So if an iteration
stops early, the next iteration begins at the same place. ``place`` is after the last item that the latest iteration
yielded. Workers of a DataLoader iterate copies of the dataset, and the original does not see their items. So the place
becomes unknown when workers begin an iteration, or when a copy is sent to another process. The place is known again
after this process iterates the dataset; until then, a request for the place is an error.

An :class:`EpochBoard` is a few numbers in unnamed shared memory: the epochs that workers have begun. A new dataset
makes a board and shares it with its workers, because torch's DataLoader does not tell workers the epoch. Without a
board, workers that are started for each epoch would repeat the first epoch, and persistent workers would miss
``set_epoch``. The main process writes the start of the next iteration. The first worker of an iteration takes the epoch
after the latest one, and writes it for the other workers of this iteration. The other workers find this entry by the
seed from torch, the number of iterations that they have begun, and the number that multiprocessing gives to their
process. A lock protects the board while a worker does this. This module does not know what is iterated."""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count, islice
from typing import Any, NamedTuple

from wdscli.loader.place.ranks import in_worker, worker_info
from wdscli.loader.place.state import Place, check_topology

ROWS = 64
"""The number of iterations that the board keeps."""
TURN, EPOCH, BATCH, ITEM, WORLD, WORKERS, LATEST, NOTED, CREW, HEAD = range(10)
SEED, BIRTH, TIME, OF, WHO, PARENT = range(6)
ROW = 6
SIZE = 8 * (HEAD + ROW * ROWS)
NONE = -1
MASK_BITS = 62
"""The largest number of workers that a row can mark one by one, as bits."""


class Begun(NamedTuple):
    """An iteration that begins in one worker; ``workers`` is the number of workers. ``seed`` is torch's seed. ``birth``
    is the number that multiprocessing gave to the process of the first worker. ``time`` is the number of iterations
    that the workers have begun. ``worker`` is the number of this worker. ``parent`` is 0 if the process that made the
    board started the workers. If a fork of that process started the workers, ``parent`` is the fork's process id."""

    seed: int
    birth: int
    time: int
    workers: int
    worker: int = 0
    parent: int = 0


class _Pages:
    """The unnamed file of this process, with one page for each board."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.file = _unnamed_file()
        self._numbers = count()
        self._free: list[int] = []

    def take(self) -> int:
        """Return the offset of a page of zeros. No lock is used, because a fork could inherit a lock in the locked
        state."""
        try:
            return self._free.pop()
        except IndexError:
            page = next(self._numbers) * mmap.ALLOCATIONGRANULARITY
            os.pwrite(self.file, b"\0", page + SIZE - 1)
            return page

    def give_back(self, page: int) -> None:
        """Clear a page for the next board."""
        os.pwrite(self.file, bytes(SIZE), page)
        self._free.append(page)


_pages: list[_Pages] = []


def _pages_of_process() -> _Pages:
    if not _pages or _pages[0].process != os.getpid():
        _pages[:] = [_Pages()]
    return _pages[0]


class EpochBoard:
    """The board of one dataset: a page of an unnamed file. ``process`` is the id of the process that made the board. A
    board can be pickled only while a process is being started, for that process."""

    def __init__(self, process: int, file: int, page: int, pages: _Pages | None = None) -> None:
        self.process = process
        self._file, self._page, self._pages = file, page, pages
        self._numbers = memoryview(mmap.mmap(file, SIZE, offset=page)).cast("q")

    @classmethod
    def made(cls) -> EpochBoard:
        """Return a new board of this process. Raises OSError."""
        pages = _pages_of_process()
        board = cls(pages.process, pages.file, pages.take(), pages)
        board._numbers[LATEST] = NONE
        for row in range(HEAD, HEAD + ROW * ROWS, ROW):
            board._numbers[row + TIME] = NONE
        return board

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.reduction import DupFd

        return _received, (self.process, DupFd(self._file), self._page)

    def __del__(self, close: Callable[[int], None] = os.close, pid: Callable[[], int] = os.getpid) -> None:
        # At the interpreter's end the functions of os may be deleted, so close and pid are default arguments.
        if self._pages is None:
            close(self._file)
        elif self.process == pid():
            self._pages.give_back(self._page)

    @property
    def is_mine(self) -> bool:
        """Whether this process made the board."""
        return self.process == os.getpid()

    @property
    def turn(self) -> int:
        """The number of start positions that were published."""
        return int(self._numbers[TURN])

    @property
    def latest(self) -> int | None:
        """The epoch of the workers' latest iteration, or None if they have begun no iteration since :meth:`publish`."""
        epoch = int(self._numbers[LATEST])
        return None if epoch == NONE else epoch

    @property
    def workers(self) -> int:
        """The number of workers in the workers' latest iteration."""
        return int(self._numbers[CREW]) or 1

    def publish(self, start: Place) -> None:
        """Publish the start of the next iteration."""
        for place, number in enumerate([*start[:3], *(start.topology or (NONE, NONE)), NONE], EPOCH):
            self._numbers[place] = number
        self._numbers[TURN] += 1

    def published(self) -> Place:
        """Return the start position that was published last."""
        epoch, batch, item, world, workers = self._numbers[EPOCH:LATEST]
        return Place(epoch, batch, item, topology=None if world == NONE else (world, workers))

    def epoch_of(self, begun: Begun, first: int) -> int:
        """Return the epoch of the iteration that a worker begins. The first iteration after :meth:`publish` has epoch
        ``first``."""
        with self._locked():
            row = self._row_of(begun)
            if row is not None:
                self._numbers[row + WHO] |= _bit(begun)
                return int(self._numbers[row + OF])
            latest = self._latest(begun.parent)
            epoch = first if latest is None else latest + 1
            self._write(begun, epoch)
            return epoch

    def _latest(self, parent: int) -> int | None:
        if not parent:
            return self.latest
        mine = [row for row in self._rows() if self._numbers[row + PARENT] == parent]
        return max((int(self._numbers[row + OF]) for row in mine), default=None)

    def _rows(self) -> Iterator[int]:
        rows = range(HEAD, HEAD + ROW * ROWS, ROW)
        return (row for row in rows if self._numbers[row + TIME] != NONE)

    def _row_of(self, begun: Begun) -> int | None:
        """Return the row that another worker of this iteration has written, or None if this worker is the first."""
        numbers, wanted = self._numbers, (begun.seed, begun.time, begun.parent)
        rows = [
            row
            for row in self._rows()
            if (numbers[row + SEED], numbers[row + TIME], numbers[row + PARENT]) == wanted
        ]
        for row in rows:
            if abs(int(self._numbers[row + BIRTH]) - begun.birth) < begun.workers:
                return row
        # If other threads started processes between the workers, the numbers of the processes differ by more than the
        # number of workers. A row that already marks this worker belongs to another iteration with the same seed.
        bit = _bit(begun)
        return next((row for row in rows if bit and not self._numbers[row + WHO] & bit), None)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # A lock of a file: it is released when the process ends, and a forked process does not inherit it.
        try:
            from fcntl import LOCK_EX, LOCK_UN, lockf
        except ImportError:  # systems without it do not fork, and their workers begin seconds apart
            yield
            return
        lockf(self._file, LOCK_EX, SIZE, self._page)
        try:
            yield
        finally:
            lockf(self._file, LOCK_UN, SIZE, self._page)

    def note(self, begun: Begun, epoch: int) -> None:
        """Write the epoch of an iteration."""
        with self._locked():
            self._write(begun, epoch)

    def _write(self, begun: Begun, epoch: int) -> None:
        row = HEAD + ROW * (self._numbers[NOTED] % ROWS)
        self._numbers[NOTED] += 1
        self._numbers[row + TIME] = NONE
        self._numbers[row + OF] = epoch
        self._numbers[row + SEED], self._numbers[row + BIRTH] = begun.seed, begun.birth
        self._numbers[row + WHO], self._numbers[row + PARENT] = _bit(begun), begun.parent
        self._numbers[row + TIME] = begun.time
        if not begun.parent:
            self._numbers[CREW] = begun.workers
            self._numbers[LATEST] = epoch


def _bit(begun: Begun) -> int:
    return 1 << begun.worker if begun.workers <= MASK_BITS else 0


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("wdscli")
    from tempfile import mkstemp

    file, path = mkstemp()
    os.unlink(path)
    return file


def _received(process: int, file: Any, page: int) -> EpochBoard:
    return EpochBoard(process, file.detach(), page)


class Iteration:
    """A running iteration from ``start`` on. As long as no newer iteration begins, the dataset's place is after the
    last item that this iteration yielded. ``is_by_worker`` is true if an epoch is longer with more workers."""

    def __init__(self, state: IterationState, start: Place, place: Place, is_by_worker: bool) -> None:
        self._state, self.start, self._place = state, start, place
        self._is_by_worker = is_by_worker
        self._number, self._step = NONE, 1

    @property
    def place(self) -> Place:
        """The place after the last yielded item. A place is made only on request, because making a place takes longer
        than yielding a sample."""
        if self._number == NONE:
            return self._place
        return self.start._replace(batch=self._number + self._step, item=0)

    def of_samples(self, samples: Iterable[tuple[int, Any]], step: int, end: int) -> Iterator[Any]:
        """Yield the items of ``samples``, which are pairs (number, item). The numbers are ``step`` apart, and below
        ``end``."""
        self._step, last = step, end - step
        for number, item in samples:
            self._number = number
            if number >= last:
                self.over()
            yield item
        self._finish()

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
            self._place, self._number = place, NONE


class IterationState:
    """Has the start of a dataset's next iteration, and the place of its latest iteration."""

    latest: Iteration | None = None
    _board: EpochBoard | None = None

    def __init__(self, start: Place | None = None) -> None:
        self._times = 0
        self._turn = 0
        """The board's :attr:`~EpochBoard.turn` when this process last read the board."""
        self.move(start or Place())

    def move(self, start: Place) -> None:
        """Make the next iteration begin at ``start``, in this process and in workers."""
        self._start = self._place = start
        self._moved, self.latest = in_worker(), None
        self._followed = self._sent = False
        if not in_worker():
            self._publish()

    def _publish(self) -> None:
        """Write the start position to a board of this process. A forked process makes a new board, because the
        inherited board belongs to its parent."""
        if self._board is None or not self._board.is_mine:
            self._board = EpochBoard.made()
        self._origin = self._start
        self._board.publish(self._start)
        self._turn = self._board.turn

    @property
    def start(self) -> Place:
        """The start of the next iteration, whether this process or workers iterate."""
        latest = self._latest_of_workers
        return self._start if latest is None else Place(latest + 1)

    @start.setter
    def start(self, start: Place) -> None:
        self._start = start
        if self._board is not None and self._board.is_mine:
            self._publish()

    @property
    def begun(self) -> Place:
        """The start of the workers' latest iteration, or ``start`` if there was none."""
        latest = self._latest_of_workers
        return self._start if latest in (None, self._start.epoch) else Place(latest)

    @property
    def _latest_of_workers(self) -> int | None:
        return self._board.latest if self._board is not None and self._board.is_mine else None

    @property
    def workers(self) -> int:
        """The number of workers of the latest iteration."""
        return 1 if self._board is None or self._latest_of_workers is None else self._board.workers

    def next_start(self) -> Place:
        """Return the start of an iteration that begins now. All workers of an iteration get the same start."""
        worker = worker_info()
        if worker is None or self._board is None or self._board.is_mine:
            if self._latest_of_workers is not None:
                self.start = self.start
            return self._start
        self._times += 1
        # After the worker's number is subtracted, seed and birth are equal for all workers that were started together.
        seed, birth = worker.seed - worker.id, _process_number() - worker.id
        parent = _parent()
        parent = 0 if parent == self._board.process else parent
        begun = Begun(seed, birth, self._times, worker.num_workers, worker.id, parent)
        if self._moved:  # a state was loaded in this worker
            self._moved = False
            self._board.note(begun, self._start.epoch)
            return self._start
        if self._board.turn != self._turn:
            self._origin, self._turn = self._board.published(), self._board.turn
        epoch = self._board.epoch_of(begun, self._origin.epoch)
        return self._origin if epoch == self._origin.epoch else Place(epoch)

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
        if not in_worker() and _is_spawning():
            if self._board is None or not self._board.is_mine:
                self._publish()
            self._sent = True
            return {"start": self._origin, "board": self._board, "turn": self._turn}
        self._sent = True
        return {"start": self.start}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["start"])  # type: ignore[misc]
        self._board, self._turn = state.get("board", self._board), state.get("turn", self._turn)


def _is_spawning() -> bool:
    """Return whether an object is being pickled for a process that is being started."""
    context = sys.modules.get("multiprocessing.context")
    return context is not None and context.get_spawning_popen() is not None


def _parent() -> int:
    """Return the id of the process that started this process, or 0 if multiprocessing does not know it."""
    from multiprocessing import parent_process

    parent = parent_process()
    return 0 if parent is None or parent.pid is None else parent.pid


def _process_number() -> int:
    """Return the number that multiprocessing gave to this process, which is part of the process's name. If the name was
    changed, return 0."""
    from multiprocessing import current_process

    number = current_process().name.rpartition("-")[2].rpartition(":")[2]
    return int(number) if number.isdecimal() else 0
