"""How a task reports its progress.

What it is: :func:`tick_of_task`, the function that a task calls with the units done since the last call, and
:func:`run_reporting`, which runs a task with a listener. How: a context variable, because tasks of several threads may
share a process. Without a listener the function does nothing. It must not know what the units are.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeAlias

Tick: TypeAlias = Callable[[int], object]


def _ignore(_: int) -> None:
    """The listener of tasks that have none."""


_tick: ContextVar[Tick] = ContextVar("tick", default=_ignore)


def tick_of_task() -> Tick:
    """The function by which the running task reports progress. Call it a few times a second, not for each sample."""
    return _tick.get()


def run_reporting(tick: Tick, function: Callable[[Any], Any], task: Any) -> Any:
    """Call ``function(task)``; its progress goes to ``tick``."""
    before = _tick.set(tick)
    try:
        return function(task)
    finally:
        _tick.reset(before)
