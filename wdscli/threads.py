"""This module has daemon threads that wait for other machines, locks that survive a fork, and caches of threads.

:class:`DaemonPool` is an executor of daemon threads with the interface of concurrent.futures. Python's own pools wait
for their threads when a process ends and when their block is left. So a thread whose server does not answer would block
Ctrl-C for minutes. :class:`WriteBehind` writes buffers in a second thread. :class:`ForkLock` is a lock that is open in
a forked process even if another thread of the parent held it. :class:`Recent` is a cache of bounded size.
:func:`holding` sets a context variable in a block.
"""

from __future__ import annotations

import os
import sys
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from math import inf
from threading import Condition, Lock, Thread
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

PATIENCE_SECONDS = 2.0
"""The longest wait for threads that may themselves wait for another machine."""

Given = ParamSpec("Given")
Result = TypeVar("Result")
Key = TypeVar("Key")
Value = TypeVar("Value")


@contextmanager
def holding(variable: ContextVar[Value], value: Value) -> Iterator[None]:
    """In the block, a context variable has another value."""
    before = variable.set(value)
    try:
        yield
    finally:
        variable.reset(before)


def end(threads: Iterable[Thread], most_seconds: float = PATIENCE_SECONDS) -> None:
    """Wait at most ``most_seconds`` for daemon threads that are about to end. Do not wait while the interpreter shuts
    down, because the threads then never end."""
    until = time.monotonic() + most_seconds
    for thread in threads:
        if sys.is_finalizing():
            return
        thread.join(None if until == inf else max(0, until - time.monotonic()))


class _Works:
    """The work queue of a pool. Its threads refer to the queue and not to the pool, so that they end when the pool is
    forgotten."""

    def __init__(self) -> None:
        self.changed = Condition()
        self.waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self.idle = 0
        self.is_closed = False

    def run(self) -> None:
        """Do the queued work until the pool is closed and the queue is empty."""
        while True:
            with self.changed:
                self.idle += 1
                self.changed.wait_for(lambda: self.waiting or self.is_closed)
                self.idle -= 1
                if not self.waiting:
                    return
                future, work = self.waiting.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)
            del future, work

    def close(self) -> None:
        if sys.is_finalizing():  # daemon threads are frozen then, with the locks that they hold
            return
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()


class DaemonPool(Executor):
    """At most ``threads`` daemon threads, named ``name``. If an interrupt or the end of a generator leaves the block of
    the pool, it waits only for a short time. A pool belongs to one process; a fork needs its own pool."""

    def __init__(self, threads: int, name: str) -> None:
        self._most, self._name = threads, name
        self._works = _Works()
        self._threads: list[Thread] = []

    def submit(
        self, function: Callable[Given, Result], /, *args: Given.args, **kwargs: Given.kwargs
    ) -> Future[Result]:
        """Call ``function`` in a thread. Raises RuntimeError if the pool is closed."""
        future: Future[Result] = Future()
        works = self._works
        with works.changed:
            if works.is_closed:
                raise RuntimeError("the pool is closed")
            works.waiting.append((future, partial(function, *args, **kwargs)))
            if works.idle < len(works.waiting) and len(self._threads) < self._most:
                thread = Thread(target=works.run, name=f"{self._name}_{len(self._threads)}", daemon=True)
                thread.start()
                self._threads.append(thread)
            works.changed.notify()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False, most_seconds: float = inf) -> None:
        """Accept no more work; with ``wait``, wait up to ``most_seconds`` for what was accepted."""
        if cancel_futures:
            with suppress(IndexError):
                while True:
                    self._works.waiting.popleft()[0].cancel()
        self._works.close()
        if wait:
            end(self._threads, most_seconds)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        seconds = inf if error is None or isinstance(error, Exception) else PATIENCE_SECONDS
        self.shutdown(cancel_futures=error is not None, most_seconds=seconds)

    def __del__(self) -> None:
        self._works.close()


class WriteBehind:
    """Passes bytes to ``write`` in their order. A second thread writes the buffers that the caller lends, one at a
    time, while the caller fills another buffer. The thread starts with the first of them.

    There are at most two buffers: one that is written, and the :meth:`spare` one. An error of ``write`` is raised once,
    by the next call of any method but :meth:`stop`. Call :meth:`close` or :meth:`stop` last; both end the thread.
    """

    def __init__(self, write: Callable[[Any], object]) -> None:
        self._write = write
        self._spare = self._lent = memoryview(b"")
        self._writing: Future[object] | None = None
        self._pool: DaemonPool | None = None

    def spare(self, size: int) -> memoryview:
        """Return a buffer of ``size`` bytes that may be filled. Its old contents may be lost."""
        if len(self._spare) < size:
            self._spare = memoryview(bytearray(size))
        return self._spare[:size]

    def lend(self, data: memoryview) -> None:
        """Write ``data``, the filled part of the spare buffer, maybe after this call."""
        self.wait()
        if self._pool is None:
            self._pool = DaemonPool(1, "wdscli-write")
        self._spare, self._lent = self._lent, self._spare
        self._writing = self._pool.submit(self._write, data)

    def write(self, data: Any, /) -> None:
        """Write ``data`` before this call returns."""
        self.wait()
        self._write(data)

    def wait(self) -> None:
        """Wait until all bytes are written."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """Wait until all bytes are written, then end the thread."""
        try:
            self.wait()
        finally:
            self.stop()

    def stop(self) -> None:
        """End the thread after its last write, and ignore its error."""
        if self._pool is not None:
            self._pool.shutdown()


class ForkLock:
    """A lock that is open in a forked process even if another thread of the parent held it."""

    def __init__(self) -> None:
        self._of_process: dict[int, Lock] = {}

    def _mine(self) -> Lock:
        process = os.getpid()
        return self._of_process.get(process) or self._of_process.setdefault(process, Lock())

    def acquire(self) -> None:
        self._mine().acquire()

    def release(self) -> None:
        self._mine().release()

    def locked(self) -> bool:
        """Return whether a thread of this process holds it."""
        return self._mine().locked()

    def __enter__(self) -> None:
        self._mine().acquire()

    def __exit__(self, *error: object) -> None:
        if self.locked():  # a process that was forked inside the block does not hold it
            self.release()


class Recent(OrderedDict[Key, Value]):
    """A least-recently-used cache for any thread. The sizes of its values, by ``size``, add up to at most about
    ``most``; it keeps at least one value."""

    def __init__(self, most: int, size: Callable[[Value], int] = lambda value: 1) -> None:
        super().__init__()
        self._most, self._size = most, size
        self._held = 0

    def used(self, key: Key) -> Value | None:
        """Return the value of a key, or None."""
        try:
            self.move_to_end(key)
            return self[key]
        except KeyError:  # absent, or just dropped by another thread
            return None

    def keep(self, key: Key, value: Value) -> Value:
        """Keep and return the value of a key; drop other values if necessary."""
        size = self._size(value)
        self.forget(key)
        self[key] = value
        self._held += size
        while self._held > self._most and len(self) > 1:
            with suppress(KeyError):
                size = self._size(self.popitem(last=False)[1])
                self._held -= size
        return value

    def forget(self, key: Key) -> None:
        """Drop the value of a key."""
        with suppress(KeyError):
            size = self._size(self.pop(key))
            self._held -= size

    def clear(self) -> None:
        super().clear()
        self._held = 0
