"""A wide pipe from the workers of torch's DataLoader to the main process.

What it is: :func:`widen`. Why: batches of up to a megabyte travel through one pipe of 64 KiB, and whoever writes a
larger one sleeps until the main process has read the beginning, again and again; with a pipe that holds a batch, text
comes half as fast again. How: the queue is found where torch's worker loop keeps it; where it is not found, or the
system has no such pipes to give, nothing changes. It must not know what travels.
"""

from __future__ import annotations

import sys
from typing import Any

WANTED = 1 << 20
"""Bytes: what Linux gives anybody."""


def widen() -> None:
    """Make the pipe of this worker process wide; to be called below torch's worker loop, as often as is convenient."""
    try:
        from fcntl import F_GETPIPE_SZ, F_SETPIPE_SZ, fcntl

        file = _queue()._writer.fileno()
        if fcntl(file, F_GETPIPE_SZ) < WANTED:
            fcntl(file, F_SETPIPE_SZ, WANTED)
    except (ImportError, AttributeError, OSError, ValueError):
        pass


def _queue() -> Any:
    """The queue that torch's worker loop puts batches into, None outside of one."""
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name != "_worker_loop":
        frame = frame.f_back  # type: ignore[assignment]
    return None if frame is None else frame.f_locals.get("data_queue")
