"""What a process and the workers of its DataLoaders tell each other: from where on, and how far epochs have come.

What it is: :class:`Board`, some numbers in memory that a process shares with its workers, made when the first of them
is started; nothing is left of it when they have ended. Why: torch's DataLoader tells its workers nothing. Those that
are started anew would begin the epoch that the process began with, again and again, and those that stay alive would
not hear of ``set_epoch``. How: the process writes where to begin. The first worker of an iteration takes the epoch
behind the latest one that was begun and writes it down for the others of the same iteration, who find it by what all
of them know: when the first of them was started, the seed that torch gave them, and how often they have begun. The
file is locked while they look. It must not know what an epoch is made of.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

ROWS = 32
"""Iterations that are remembered."""
TURN, EPOCH, BATCH, ITEM, WORLD, WORKERS, LATEST, NOTED, HEAD = range(9)
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

    def __del__(self) -> None:
        os.close(self._file)

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

    def tell(self, epoch: int, batch: int, item: int, topology: tuple[int, int] | None) -> None:
        """Where to begin from now on."""
        for place, number in enumerate([epoch, batch, item, *(topology or (NONE, NONE)), NONE], EPOCH):
            self._numbers[place] = number
        self._numbers[TURN] += 1

    def told(self) -> tuple[int, int, int, tuple[int, int] | None]:
        """What :meth:`tell` was told."""
        epoch, batch, item, world, workers = self._numbers[EPOCH:LATEST]
        return epoch, batch, item, None if world == NONE else (world, workers)

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
