"""Where iterations of a dataset begin, where the latest of them is, and how its processes tell each other.

What it is: :class:`Standing`, which a dataset has. How: iterations begin at ``start``, which only the end of an epoch,
``set_epoch`` and ``load_state_dict`` move; so an iteration that is left early and begun again begins where it began
before. ``place`` is behind the last thing that the latest iteration gave. Workers of a DataLoader iterate copies, and
the original does not see what they gave: once workers have begun an iteration, or copies were sent away, and nothing
was iterated here since, the place is not known, and asking for it is an error rather than a wrong answer.

Which epochs workers began is written on a :class:`Board`, some numbers in shared memory without a name, which a
dataset has from the beginning and shares with its workers. Why: torch's DataLoader says nothing of epochs to its
workers. Workers that are started for each epoch would repeat the first one, and workers that stay alive would not hear
of ``set_epoch``. How: the process writes where to begin. The first worker of an iteration takes the epoch after the
latest one that was begun and writes it down for the other workers of the same iteration. They find it by the seed that
torch gave them, by how often they have begun, and by multiprocessing's number of their process. The board is locked
while they look. It must not know what is iterated.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

from wdscli.loader.place.ranks import in_worker, worker_info
from wdscli.loader.place.state import Place

ROWS = 64
"""Iterations that are remembered."""
TURN, EPOCH, BATCH, ITEM, WORLD, WORKERS, LATEST, NOTED, CREW, HEAD = range(10)
SEED, BIRTH, TIME, OF, WHO, PARENT = range(6)
ROW = 6
SIZE = 8 * (HEAD + ROW * ROWS)
NONE = -1
MASK_BITS = 62
"""Workers with higher numbers are not marked in a row."""


class Begun(NamedTuple):
    """An iteration, as one of ``workers`` knows it: ``birth`` is multiprocessing's number of the first worker's
    process, ``time`` how often the workers have begun, ``worker`` which of them this is. ``parent`` is the process that
    started them, 0 for the one that made the board: a process that was forked from that may start workers too."""

    seed: int
    birth: int
    time: int
    workers: int
    worker: int = 0
    parent: int = 0


class _Pages:
    """The nameless file of this process, with one page for each board."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.file = _nameless_file()
        self._numbers = count()
        self._free: list[int] = []

    def take(self) -> int:
        """The offset of a page of zeros. It needs no lock, which a fork could find taken."""
        try:
            return self._free.pop()
        except IndexError:
            page = next(self._numbers) * mmap.ALLOCATIONGRANULARITY
            os.pwrite(self.file, b"\0", page + SIZE - 1)
            return page

    def give_back(self, page: int) -> None:
        """The page may be used again."""
        os.pwrite(self.file, bytes(SIZE), page)
        self._free.append(page)


_pages: list[_Pages] = []


def _pages_of_process() -> _Pages:
    if not _pages or _pages[0].process != os.getpid():
        _pages[:] = [_Pages()]
    return _pages[0]


class Board:
    """One dataset's, of process ``process``, which made it: a page of a file without a name. Pickled only while a
    process is started that gets it."""

    def __init__(self, process: int, file: int, page: int, pages: _Pages | None = None) -> None:
        self.process = process
        self._file, self._page, self._pages = file, page, pages
        self._numbers = memoryview(mmap.mmap(file, SIZE, offset=page)).cast("q")

    @classmethod
    def made(cls) -> Board:
        """A new one of this process. Raises OSError."""
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
        # Where the interpreter ends, os may be gone before.
        if self._pages is None:
            close(self._file)
        elif self.process == pid():
            self._pages.give_back(self._page)

    @property
    def is_mine(self) -> bool:
        """Whether this process made it."""
        return self.process == os.getpid()

    @property
    def turn(self) -> int:
        """How often the start was published."""
        return int(self._numbers[TURN])

    @property
    def latest(self) -> int | None:
        """The epoch of the iteration that workers began last, None when none was begun since :meth:`tell`."""
        found = int(self._numbers[LATEST])
        return None if found == NONE else found

    @property
    def crew(self) -> int:
        """The workers of the iteration that was begun last."""
        return int(self._numbers[CREW]) or 1

    def tell(self, start: Place) -> None:
        """Publish where to begin from now on."""
        for place, number in enumerate([*start[:3], *(start.topology or (NONE, NONE)), NONE], EPOCH):
            self._numbers[place] = number
        self._numbers[TURN] += 1

    def told(self) -> Place:
        """The start position published last."""
        epoch, batch, item, world, workers = self._numbers[EPOCH:LATEST]
        return Place(epoch, batch, item, topology=None if world == NONE else (world, workers))

    def epoch_of(self, begun: Begun, first: int) -> int:
        """The epoch of an iteration: ``first`` for the first one."""
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
        """The row that another worker of the iteration has written."""
        numbers, wanted = self._numbers, (begun.seed, begun.time, begun.parent)
        rows = [
            row
            for row in self._rows()
            if (numbers[row + SEED], numbers[row + TIME], numbers[row + PARENT]) == wanted
        ]
        for row in rows:
            if abs(int(self._numbers[row + BIRTH]) - begun.birth) < begun.workers:
                return row
        # Other threads have started processes between the workers. The row is of another iteration with the same seed
        # if this worker is in it already.
        bit = _bit(begun)
        return next((row for row in rows if bit and not self._numbers[row + WHO] & bit), None)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # A lock of the process: it ends with the process, and a fork does not have it.
        try:
            from fcntl import LOCK_EX, LOCK_UN, lockf
        except ImportError:  # no such system forks, and its workers begin seconds apart
            yield
            return
        lockf(self._file, LOCK_EX, SIZE, self._page)
        try:
            yield
        finally:
            lockf(self._file, LOCK_UN, SIZE, self._page)

    def note(self, begun: Begun, epoch: int) -> None:
        """An iteration is of ``epoch``."""
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


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("wdscli")
    from tempfile import mkstemp

    file, path = mkstemp()
    os.unlink(path)
    return file


def _received(process: int, file: Any, page: int) -> Board:
    return Board(process, file.detach(), page)


class Cursor:
    """The place behind sample ``number`` of an iteration from ``start`` on by one of ``workers``; -1 for none yet. A
    number is set for each sample, a :class:`Place` is made when somebody asks."""

    __slots__ = ("_start", "_workers", "number")

    def __init__(self, start: Place, workers: int) -> None:
        self._start, self._workers = start, workers
        self.number = -1

    @property
    def place(self) -> Place:
        """Where it is."""
        if self.number < 0:
            return self._start
        return self._start._replace(batch=self.number + self._workers, item=0)


class Standing:
    """Where iterations of a dataset begin, and where the latest of them is."""

    _board: Board | None = None

    def __init__(self, start: Place | None = None) -> None:
        self._latest = self._times = 0
        self._cursor: Cursor | None = None
        self._turn = 0
        """Of the board, when it was read last."""
        self._start = self._origin = start or Place()
        self.move(self._start)

    def move(self, start: Place) -> None:
        """Begin at ``start`` from now on."""
        if not in_worker():
            self._take_board()
        self.start = self.place = start
        self._moved = in_worker()
        self._followed = self._sent = False
        self._latest += 1

    def _take_board(self) -> None:
        """Have a board of this process. After a fork the board is still the parent's."""
        if self._board is None or not self._board.is_mine:
            self._board = Board.made()
            self._tell(self._board)

    @property
    def start(self) -> Place:
        """Where the next iteration begins, whoever makes it."""
        latest = self._latest_of_workers
        return self._start if latest is None else Place(latest + 1)

    @start.setter
    def start(self, start: Place) -> None:
        self._start = start
        if self._board is not None and self._board.is_mine:
            self._tell(self._board)

    @property
    def begun(self) -> Place:
        """Where the latest iteration of workers began, ``start`` when there was none."""
        latest = self._latest_of_workers
        return self._start if latest in (None, self._start.epoch) else Place(latest)

    @property
    def _latest_of_workers(self) -> int | None:
        return self._board.latest if self._board is not None and self._board.is_mine else None

    @property
    def crew(self) -> int:
        """How many workers made the latest iteration."""
        return 1 if self._board is None or self._latest_of_workers is None else self._board.crew

    def _tell(self, board: Board) -> None:
        self._origin = self._start
        board.tell(self._start)
        self._turn = board.turn

    def begins(self) -> Place:
        """Where an iteration begins that begins now; in a worker, where all that began it do."""
        worker = worker_info()
        if worker is None or self._board is None or self._board.is_mine:
            if self._latest_of_workers is not None:
                self.start = self.start
            return self._start
        self._times += 1
        # Without the worker's number both are the same for all that were started together.
        seed, birth = worker.seed - worker.id, _process_number() - worker.id
        parent = _parent()
        parent = 0 if parent == self._board.process else parent
        begun = Begun(seed, birth, self._times, worker.num_workers, worker.id, parent)
        if self._moved:  # a state was loaded in this worker
            self._moved = False
            self._board.note(begun, self._start.epoch)
            return self._start
        if self._board.turn != self._turn:
            self._origin, self._turn = self._board.told(), self._board.turn
        epoch = self._board.epoch_of(begun, self._origin.epoch)
        return self._origin if epoch == self._origin.epoch else Place(epoch)

    def begin(self, place: Place | None = None) -> int:
        """A new iteration, which is the one that counts from now on; its number."""
        self.place = place or self.start
        self._followed = True
        self._latest += 1
        return self._latest

    @property
    def place(self) -> Place:
        """Behind the last thing that the latest iteration gave."""
        return self._place if self._cursor is None else self._cursor.place

    @place.setter
    def place(self, place: Place) -> None:
        self._place, self._cursor = place, None

    def follow(self, iteration: int, cursor: Cursor) -> None:
        """Iteration ``iteration`` is where ``cursor`` is."""
        if iteration == self._latest:
            self._cursor = cursor

    def at(self, iteration: int, place: Place) -> None:
        """Iteration ``iteration`` has come to ``place``."""
        if iteration == self._latest:
            self.place = place

    def over(self, iteration: int, epoch: int) -> None:
        """Iteration ``iteration`` has given the last of ``epoch``: the next one is of the next, whether this one is
        asked for more or not."""
        if iteration == self._latest:
            self.start = Place(epoch + 1)

    def finish(self, iteration: int, start: Place, place: Place) -> None:
        """Iteration ``iteration`` has come to the end of its epoch: the next one begins at ``start``, and until then
        this is at ``place``."""
        if iteration == self._latest:
            self.start, self.place = start, place

    @property
    def is_known(self) -> bool:
        """Whether ``place`` is true: False when it may be copies that are iterated."""
        return self._followed or not (self._sent or self._latest_of_workers is not None)

    def copy(self) -> Standing:
        """The standing of another dataset that begins at the same place."""
        new = Standing(self.start)
        new.place, new._followed = self.place, self._followed
        new._sent = self._sent or self._latest_of_workers is not None
        return new

    def __getstate__(self) -> dict[str, Any]:
        if in_worker() or not _is_spawning():
            self._sent = True
            return {"start": self.start}
        self._take_board()
        self._sent = True
        return {"start": self._origin, "board": self._board, "turn": self._turn}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["start"])  # type: ignore[misc]
        self._board, self._turn = state.get("board", self._board), state.get("turn", self._turn)


def _is_spawning() -> bool:
    """Whether a process is being started, which gets what is pickled."""
    context = sys.modules.get("multiprocessing.context")
    return context is not None and context.get_spawning_popen() is not None


def _parent() -> int:
    """The process that started this one."""
    from multiprocessing import parent_process

    parent = parent_process()
    return 0 if parent is None or parent.pid is None else parent.pid


def _process_number() -> int:
    """multiprocessing's number of this process among all that its parent has made, which is in its name; 0 where the
    name was changed."""
    from multiprocessing import current_process

    number = current_process().name.rpartition("-")[2].rpartition(":")[2]
    return int(number) if number.isdecimal() else 0
