"""Ctrl-C where Python would lose it: around a fork, and while a DataLoader that nobody refers to ends its workers.

What it is: :func:`later`, a context in which signals wait, and the same around each fork of a process that has torch.
Why: Python passes over an exception in what it calls around a fork and in a finalizer, KeyboardInterrupt included. The
fork of a process that has torch takes milliseconds, and a signal that comes meanwhile is answered right behind it, in
the callbacks: training went on as if nobody had pressed anything, and what such a callback unlocks stayed locked. How:
handlers written in Python are put aside; what came is sent again, by a thread, a moment after they are back. Only the
main thread answers signals, so others are left alone. It must not know what is interrupted.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)
AGAIN_SECONDS = 0.01
"""After which the main thread has left the callbacks of a fork."""

_aside: dict[signal.Signals, Any] = {}
"""The handlers."""
_came: set[tuple[int, signal.Signals]] = set()
"""And the process that each came to."""
_depth = 0


@contextmanager
def later() -> Iterator[None]:
    """In the block SIGINT and SIGTERM wait, where they have handlers written in Python."""
    _put_aside()
    try:
        yield
    finally:
        _put_back()


def around_forks() -> None:
    """The same around each fork, and around the callbacks that were registered before."""
    os.register_at_fork(before=_before_fork, after_in_parent=_put_back, after_in_child=_begin_anew)


def _note(number: int, _: object) -> None:
    _came.add((os.getpid(), signal.Signals(number)))


def _before_fork() -> None:
    if "torch.utils.data" in sys.modules:
        _put_aside()


def _put_aside() -> None:
    global _depth
    if not _answers():
        return
    _depth += 1
    for number in SIGNALS if _depth == 1 else ():
        _until_done(partial(_replace, number))


def _replace(number: signal.Signals) -> None:
    handler = signal.getsignal(number)
    if callable(handler) and handler is not _note:
        _aside[number] = handler
        signal.signal(number, _note)


def _put_back() -> None:
    global _depth
    if not _answers() or not _depth:
        return
    _depth -= 1
    if not _depth:
        _restore()


def _begin_anew() -> None:
    """In a process that was forked: what came before was for the other one."""
    global _depth
    _depth = 0
    _restore()


def _restore() -> None:
    for number, handler in _aside.items():
        if signal.getsignal(number) is _note:
            _until_done(partial(signal.signal, number, handler))
    _aside.clear()
    mine = tuple(number for process, number in _came if process == os.getpid())
    _came.clear()
    if mine:
        start_new_thread(_send_again, (threading.main_thread().ident, mine))


def _until_done(change: Callable[[], object]) -> None:
    """Change a handler, although the one before or the one for another signal may raise."""
    while True:
        try:
            change()
            return
        except KeyboardInterrupt:
            _note(signal.SIGINT, None)
        except SystemExit:
            _note(signal.SIGTERM, None)


def _answers() -> bool:
    return threading.current_thread() is threading.main_thread()


def _send_again(thread: int | None, numbers: tuple[signal.Signals, ...]) -> None:
    time.sleep(AGAIN_SECONDS)
    for number in numbers:
        if hasattr(signal, "pthread_kill"):  # which ends what the main thread waits for, too
            signal.pthread_kill(thread or 0, number)
        else:
            signal.raise_signal(number)
