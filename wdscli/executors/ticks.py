"""How a task tells how far it has come, without knowing who listens.

What it is: :func:`tick_of_task`, which a task asks for once and calls with the units that it has done since, and
:func:`run_reporting`, by which whoever runs a task listens. How: in a context variable, because tasks of several
threads may share a process. Where nobody listens a tick is a call of nothing. It must not know what the units are.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeAlias

Tick: TypeAlias = Callable[[int], object]


def _nobody(_: int) -> None:
    """Nobody listens."""


_tick: ContextVar[Tick] = ContextVar("tick", default=_nobody)


def tick_of_task() -> Tick:
    """What the running task calls as it goes on. To be called a few times a second, not for each sample."""
    return _tick.get()


def run_reporting(tick: Tick, function: Callable[[Any], Any], task: Any) -> Any:
    """``function(task)``, heard by ``tick``."""
    before = _tick.set(tick)
    try:
        return function(task)
    finally:
        _tick.reset(before)
