"""Where iterations of a dataset begin, where the latest of them is, and how its processes tell each other.

What it is: :class:`Standing`, which a dataset has. How: iterations begin at ``start``, which only the end of an epoch,
``set_epoch`` and ``load_state_dict`` move; so an iteration that is left early and begun again begins where it began
before. ``place`` is behind the last thing that the latest iteration gave. Workers of a DataLoader iterate copies, and
what they gave nobody tells the original: when copies were made (by a fork, by pickling) and nothing was iterated here
since, the place is not known, and asking for it is an error rather than a wrong answer.

Which epochs workers began is told by a :class:`Board`, some numbers in memory that a process shares with its workers,
made when the first of them is started; nothing is left of it when they have ended. Why: torch's DataLoader tells its
workers nothing. Those that are started anew would begin the epoch that the process began with, again and again, and
those that stay alive would not hear of ``set_epoch``. How: the process writes where to begin. The first worker of an
iteration takes the epoch behind the latest one that was begun and writes it down for the others of the same iteration,
who find it by what all of them know: when the first of them was started, the seed that torch gave them, and how often
they have begun. The file is locked while they look. It must not know what is iterated.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock, local
from typing import Any, NamedTuple
from weakref import WeakSet

from wdscli.loader.place.interrupts import around_forks
from wdscli.loader.place.ranks import in_worker, worker_info
from wdscli.loader.place.state import Place

ROWS = 32
"""Iterations that are remembered."""
TURN, EPOCH, BATCH, ITEM, WORLD, WORKERS, LATEST, NOTED, CREW, HEAD = range(10)
SEED, BIRTH, TIME, OF = range(4)
SIZE = 8 * (HEAD + 4 * ROWS)
NONE = -1


class Begun(NamedTuple):
    """An iteration, as one of ``workers`` knows it: ``birth`` counts what the thread that started them had started
    before the first of them, ``time`` how often they have begun."""

    seed: int
    birth: int
    time: int
    workers: int


class Board:
    """One dataset's, of process ``process``, which made it, in a file without a name. Pickled only while a process is
    started that gets it."""

    def __init__(self, process: int, file: int) -> None:
        self.process = process
        self._file = file
        self._numbers = memoryview(mmap.mmap(file, SIZE)).cast("q")

    @classmethod
    def made(cls) -> Board:
        """A new one of this process. Raises OSError."""
        file = _nameless_file()
        os.ftruncate(file, SIZE)
        board = cls(os.getpid(), file)
        board._numbers[LATEST] = NONE
        for row in range(ROWS):
            board._numbers[HEAD + 4 * row + TIME] = NONE
        return board

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing.reduction import DupFd

        return _received, (self.process, DupFd(self._file))

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self._file)  # where the interpreter ends, os may be gone before

    @property
    def is_mine(self) -> bool:
        """Whether this process made it."""
        return self.process == os.getpid()

    @property
    def turn(self) -> int:
        """How often it was said where to begin."""
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
        """Where to begin from now on."""
        for place, number in enumerate([*start[:3], *(start.topology or (NONE, NONE)), NONE], EPOCH):
            self._numbers[place] = number
        self._numbers[TURN] += 1

    def told(self) -> Place:
        """What :meth:`tell` was told."""
        epoch, batch, item, world, workers = self._numbers[EPOCH:LATEST]
        return Place(epoch, batch, item, topology=None if world == NONE else (world, workers))

    def epoch_of(self, begun: Begun, first: int) -> int:
        """The epoch of an iteration: ``first`` for the first one."""
        with self._locked():
            latest = self.latest
            for row in range(HEAD, HEAD + 4 * ROWS, 4):
                seed, birth, time, epoch = self._numbers[row : row + 4]
                # What else the thread starts may come in between the workers.
                if (seed, time) == (begun.seed, begun.time) and abs(birth - begun.birth) < begun.workers:
                    return int(epoch)
            epoch = first if latest is None else latest + 1
            self._write(begun, epoch)
            return epoch

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # A lock of the process: one that dies lets go of it, and one that is forked does not have it.
        try:
            from fcntl import LOCK_EX, LOCK_UN, lockf
        except ImportError:  # no such system forks, and its workers begin seconds apart
            yield
            return
        lockf(self._file, LOCK_EX)
        try:
            yield
        finally:
            lockf(self._file, LOCK_UN)

    def note(self, begun: Begun, epoch: int) -> None:
        """An iteration is of ``epoch``."""
        with self._locked():
            self._write(begun, epoch)

    def _write(self, begun: Begun, epoch: int) -> None:
        row = HEAD + 4 * (self._numbers[NOTED] % ROWS)
        self._numbers[NOTED] += 1
        self._numbers[row + TIME] = NONE
        self._numbers[row + OF] = epoch
        self._numbers[row + SEED], self._numbers[row + BIRTH] = begun.seed, begun.birth
        self._numbers[row + TIME] = begun.time
        self._numbers[CREW] = begun.workers
        self._numbers[LATEST] = epoch


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("wdscli")
    from tempfile import mkstemp

    file, path = mkstemp()
    os.unlink(path)
    return file


def _received(process: int, file: Any) -> Board:
    return Board(process, file.detach())


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
    _turn = 0
    """Of the board, when it was heard last."""
    _birth: int | None = None
    """What the thread that sent this copy had started before, when it was sent."""

    def __init__(self, start: Place | None = None) -> None:
        self._latest = self._times = 0
        _standings.add(self)
        self._cursor: Cursor | None = None
        self.move(start or Place())

    def move(self, start: Place) -> None:
        """Begin at ``start`` from now on."""
        self.start = self.place = start
        self._moved = in_worker()
        self._followed = self._sent = False
        self._forks = _forks[0]
        self._latest += 1

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

    def shared(self) -> Board:
        """What workers that are started from now on read and write."""
        with _sharing[0]:
            if self._board is None or not self._board.is_mine:
                board = Board.made()
                self._tell(board)
                self._board = board
            return self._board

    def begins(self) -> Place:
        """Where an iteration begins that begins now; in a worker, where all that began it do."""
        worker = worker_info()
        if worker is None or self._board is None or self._board.is_mine:
            if self._latest_of_workers is not None:
                self.start = self.start
            return self._start
        self._times += 1
        birth = _started() if self._birth is None else self._birth
        # The seed less the worker's number is the same for all that were started together.
        begun = Begun(worker.seed - worker.id, birth - worker.id, self._times, worker.num_workers)
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
        forked = _forks[0] > max(self._forks, _forks_before[0]) and "torch.utils.data" in sys.modules
        return self._followed or not (self._sent or forked)

    def copy(self) -> Standing:
        """The standing of another dataset that begins at the same place."""
        new = Standing(self.start)
        new.place, new._followed, new._sent, new._forks = self.place, self._followed, self._sent, self._forks
        return new

    def __getstate__(self) -> dict[str, Any]:
        self._sent = True
        if not _is_spawning() or in_worker():
            return {"_start": self.start}
        board, birth = self.shared(), _started()
        _of_thread.started = birth + 1
        return {"_start": self._origin, "_board": board, "_turn": self._turn, "_birth": birth}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_start"])  # type: ignore[misc]
        self._origin = self._start
        self.__dict__.update(state)


def _is_spawning() -> bool:
    """Whether a process is being started, which gets what is pickled."""
    context = sys.modules.get("multiprocessing.context")
    return context is not None and context.get_spawning_popen() is not None


_standings: WeakSet[Standing] = WeakSet()
_forks = [0]
"""How often this process was forked, and its parents before they made it, ..."""
_forks_before = [0]
"""... which is this part of it."""

_sharing = [Lock()]
_of_thread = local()


def _started() -> int:
    """What this thread has forked and sent to others; in a process that was forked, what the one who did it had."""
    return int(getattr(_of_thread, "started", 0))


def _note_fork() -> None:
    _forks[0] += 1
    _of_thread.started = _started() + 1


def _note_birth() -> None:
    _sharing[0] = Lock()  # of a thread that is not here
    _forks_before[0] = _forks[0]


def _share() -> None:
    """Whatever is forked may be a worker."""
    if "torch.utils.data" in sys.modules and not in_worker():
        with suppress(OSError):
            for standing in list(_standings):
                standing.shared()


os.register_at_fork(before=_share, after_in_parent=_note_fork, after_in_child=_note_birth)
# Last, for what is registered last surrounds the others.
around_forks()
