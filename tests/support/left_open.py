"""What a call leaves open in this process."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path


def left_open() -> tuple[int, str]:
    """The open descriptors of this process, and its child processes, zombies too."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    return len(os.listdir("/proc/self/fd")), children.read_text()


def leaves_nothing(action: Callable[[], object]) -> bool:
    """Whether ``action`` leaves neither descriptors nor processes. Threads of earlier tests may close theirs
    meanwhile, so it is tried again: what it forgets, it forgets each time."""
    for _ in range(5):
        gc.collect()  # what earlier tests forgot is closed now and not later
        before = left_open()
        action()
        if left_open() == before:
            return True
    return False
