"""Threads that wait for other machines, for which the end of a process does not wait; and locks that survive a fork.

What it is: :class:`DaemonPool`, an executor as concurrent.futures has one, of daemon threads. Why: Python's own waits
at the end of a process, and at every way out of its block, until each thread has done what it does, and a thread that
asks a server which does not answer does that for minutes: Ctrl-C would end nothing. And :class:`ForkLock`, a lock that
is open in a process that was forked while another thread held it. It must not know what is waited for.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from math import inf
from threading import Condition, Lock, Thread
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

PATIENCE_SECONDS = 2.0
"""How long who is done with something waits for threads that may wait for another machine."""

Given = ParamSpec("Given")
Result = TypeVar("Result")


def end(threads: Iterable[Thread], most_seconds: float = PATIENCE_SECONDS) -> None:
    """Wait for daemon threads that have been asked to end, so long at most: then they end by themselves. Where Python
    is being taken apart they never do, and nothing is waited for."""
    until = time.monotonic() + most_seconds
    for thread in threads:
        if sys.is_finalizing():
            return
        thread.join(None if until == inf else max(0, until - time.monotonic()))


class _Works:
    """What threads do, one work after the other; they refer to this and not to their pool, so that a pool that is
    forgotten ends them."""

    def __init__(self) -> None:
        self.changed = Condition()
        self.waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self.idle = 0
        self.is_closed = False

    def run(self) -> None:
        """Work until there is nothing more and the pool is closed."""
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
        if sys.is_finalizing():  # daemon threads stand still, whatever they hold
            return
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()


class DaemonPool(Executor):
    """At most ``threads`` threads, named ``name``. Who leaves its block because of an interrupt, or because nobody
    takes more of what a generator gives, does not wait long. For one process; a fork makes another."""

    def __init__(self, threads: int, name: str) -> None:
        self._most, self._name = threads, name
        self._works = _Works()
        self._threads: list[Thread] = []

    def submit(
        self, function: Callable[Given, Result], /, *args: Given.args, **kwargs: Given.kwargs
    ) -> Future[Result]:
        """Have ``function`` called by a thread. Raises RuntimeError when the pool is closed."""
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
        """Take no more works; ``wait`` for those that were taken, ``most_seconds`` at most."""
        if cancel_futures:
            with suppress(IndexError):
                while True:
                    self._works.waiting.popleft()[0].cancel()
        self._works.close()
        if wait:
            end(self._threads, most_seconds)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        seconds = inf if error is None or isinstance(error, Exception) else PATIENCE_SECONDS
        self.shutdown(cancel_futures=error is not None, most_seconds=seconds)

    def __del__(self) -> None:
        self._works.close()


class ForkLock:
    """A lock that is open in a process that was forked while another thread held it."""

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
        """Whether a thread of this process holds it."""
        return self._mine().locked()

    def __enter__(self) -> None:
        self._mine().acquire()

    def __exit__(self, *error: object) -> None:
        if self.locked():  # a process that was forked inside the block has not taken it
            self.release()
