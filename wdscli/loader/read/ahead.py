"""A thread that reads blocks before they are asked for.

What it is: :class:`Ahead`. How: one thread reads block after block, in order, and puts them into a queue whose bytes
are bounded; remote shards are read by several requests at a time below it. An exception takes the place of its block
and is the last thing in the queue. Leaving the context stops the thread and waits for it, so that nobody reads from
what is closed next. It must not know what is in a block.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any

from wdscli.loader.read.meter import METER, Times

if TYPE_CHECKING:
    from wdscli.loader.read.reading import Agenda, Block
    from wdscli.loader.read.source import EpochReader

PARTS = 4
"""Agenda that a full budget has."""


class Ahead:
    """The blocks of ``agenda`` as ``reader`` reads them, at most about ``budget`` bytes of them ahead."""

    def __init__(self, reader: EpochReader, agenda: Agenda, budget: int, times: Times) -> None:
        self._reader, self._agenda = reader, agenda
        self._budget, self._times = budget, times
        self._ready: deque[tuple[Block | None, Any, int]] = deque()
        self._held = 0
        """Bytes of blocks that were read and are not done with."""
        self._largest = 0
        self._changed = Condition()
        self._stopped = False
        self._thread = Thread(target=self._run, name="wdscli-ahead", daemon=True)

    def __enter__(self) -> Ahead:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._thread.join()

    def __iter__(self) -> Iterator[tuple[Block, list[Any]]]:
        """(block, samples). Raises what the reader raised."""
        while True:
            block, found, size = self._taken()
            if block is None:
                return
            if isinstance(found, BaseException):
                raise found
            self._times.bytes += size
            self._times.samples += len(found)
            yield block, found
            del found
            with self._changed:
                self._held -= size
                self._changed.notify_all()

    def _taken(self) -> tuple[Block | None, Any, int]:
        begin = time.perf_counter()
        with self._changed:
            while not self._ready:
                self._changed.wait()
            taken = self._ready.popleft()
        self._times.reading += time.perf_counter() - begin
        return taken

    def _run(self) -> None:
        while self._has_room():
            block = self._agenda.next()
            if block is None:
                self._put(None, None, 0)
                return
            before = METER.bytes
            try:
                found: Any = self._reader.read(block.positions)
            except BaseException as error:
                self._put(block, error, 0)
                return
            size = METER.bytes - before
            self._agenda.learn(len(found), size, max(1, self._budget // PARTS))
            self._put(block, found, size)

    def _has_room(self) -> bool:
        """Whether another block is wanted; waits until that is known."""
        with self._changed:
            while not self._stopped and self._held + self._largest > self._budget and self._held:
                self._changed.wait()
            return not self._stopped

    def _put(self, block: Block | None, found: Any, size: int) -> None:
        with self._changed:
            self._ready.append((block, found, size))
            self._held += size
            self._largest = max(self._largest, size)
            self._changed.notify_all()
