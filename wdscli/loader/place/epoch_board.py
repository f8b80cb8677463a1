"""This module has the epochs that a dataset shares with its DataLoader workers.

Workers iterate copies of the dataset, and torch's DataLoader does not tell workers the epoch. So workers that are
started for each epoch would repeat the first epoch, and persistent workers would miss ``set_epoch``. A new dataset
makes an :class:`EpochBoard`: an unnamed file that its workers inherit or receive. The board has the start of the next
iteration, which the main process publishes, and the latest epoch of the workers of each process. The first worker of an
iteration takes the next epoch, and notes it for the other workers of this iteration. These find the note by the facts
in :class:`Beginning`. Each access reads or writes the whole file under a lock. This module does not know what is
iterated."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fcntl import LOCK_EX, LOCK_UN, lockf
from typing import Any, NamedTuple

from wdscli.loader.place.state import Place

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
        process_number = (
            int(number) if number.isdecimal() else 0
        )  # a program may change the names of processes
        seed, birth = worker.seed - worker.id, process_number - worker.id
        return cls(pid or 0, seed, time, birth, worker.num_workers, worker.id)


@dataclass
class _Note:
    """An iteration of workers: what its first worker knew, its epoch, and the workers that have begun it."""

    first: Beginning
    epoch: int
    begun_by: set[int]

    def may_include(self, other: Beginning) -> bool:
        """Return whether a worker may belong to this iteration."""
        mine = self.first
        return (mine.parent, mine.seed, mine.time) == (other.parent, other.seed, other.time)


class _OfProcess(NamedTuple):
    """The published start of a process, and the latest iteration that its workers have begun since: its epoch, or None,
    and its number of workers."""

    start: Place
    epoch: int | None = None
    workers: int = 1


@dataclass
class _Contents:
    """The contents of a board. A process that was forked from ``maker``, which made the board, begins at the start of
    ``maker`` until it publishes a start of its own."""

    maker: int
    processes: dict[int, _OfProcess]
    notes: list[_Note] = field(default_factory=list)

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
        self.notes = [*self.notes[1 - NOTES :], _Note(begun, epoch, {begun.worker})]
        now = self.of_process(begun.parent)._replace(epoch=epoch, workers=begun.workers)
        self.set_process(begun.parent, now)

    def note_of(self, begun: Beginning) -> _Note | None:
        """Return the note that another worker of this iteration has made, or None if this worker is the first."""
        notes = [note for note in reversed(self.notes) if note.may_include(begun)]
        for note in notes:
            if abs(note.first.birth - begun.birth) < begun.workers:
                return note
        # If other threads started processes between the workers, their births differ by more than that. The
        # iterations that this worker has already begun are others with the same seed.
        return next((note for note in notes if begun.worker not in note.begun_by), None)


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
            parents = contents.of_process(begun.parent)
            note = None if known else contents.note_of(begun)
            if note is not None:
                epoch = note.epoch
                note.begun_by.add(begun.worker)
            else:
                following = parents.start.epoch if parents.epoch is None else parents.epoch + 1
                epoch = known.epoch if known else following
                contents.add(begun, epoch)
            self._write(contents)
        return known or (parents.start if epoch == parents.start.epoch else Place(epoch))


def _unnamed_file() -> int:
    with suppress(AttributeError, OSError):  # not every system has such files
        return os.memfd_create("wdscli")
    from tempfile import TemporaryFile

    with TemporaryFile() as file:
        return os.dup(file.fileno())


def _received(file: Any) -> EpochBoard:
    return EpochBoard(file.detach())
