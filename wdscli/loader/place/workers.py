"""How a worker of WebLoader ends in good order, and the pipe through which its batches go.

What it is: :func:`begin`, called first in each worker that WebLoader starts, and :func:`widen`, called in the main
process. Why: a worker that ends waits until all that it made has been taken. The trainer may be gone by then, killed by
a scheduler or for want of memory; or it may be waiting for this worker's end after Ctrl-C, which every process of a
terminal receives. And torch's worker looks at its parent process, which with the context "forkserver" is not the
trainer, and only between batches. How: Ctrl-C is left to the main process, which then ends its workers; and a thread
ends the worker some seconds after its trainer. It must not know what is in a batch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

PIPE_BYTES = 1 << 20
"""What Linux gives anybody."""
LOOK_SECONDS = 2.0
"""Between looks whether the trainer is there."""
GRACE_SECONDS = 6.0
"""For a worker to end by itself when the trainer is gone: torch's looks every 5 seconds."""


def begin() -> None:
    """Leave Ctrl-C to the trainer, and end this worker when the trainer has ended. In the main thread of a worker."""
    import signal
    from threading import Thread

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_follow, args=(_alone(),), name="wdscli-trainer", daemon=True).start()


def widen(batches: Any) -> None:
    """Batches of up to a megabyte travel through one pipe of 64 KiB, and a worker that writes a larger one sleeps until
    the main process has read the beginning, again and again; with a pipe that holds a batch, text comes half as fast
    again. ``batches`` is torch's iterator. Where the system has no such pipes to give, nothing changes."""
    try:
        from fcntl import F_GETPIPE_SZ, F_SETPIPE_SZ, fcntl

        file = batches._worker_result_queue._writer.fileno()
        if fcntl(file, F_GETPIPE_SZ) < PIPE_BYTES:
            fcntl(file, F_SETPIPE_SZ, PIPE_BYTES)
    except (ImportError, AttributeError, OSError, ValueError):
        pass


def _alone() -> Callable[[], bool]:
    """What tells whether the trainer has ended."""
    from multiprocessing import parent_process
    from multiprocessing.connection import wait

    trainer: Any = parent_process()
    if trainer is None:
        return lambda: False
    # The sentinel of a fork is no good: workers that were forked after it hold it open, too.
    if trainer.pid == os.getppid():
        return lambda: os.getppid() != trainer.pid
    return lambda: bool(wait([trainer.sentinel], timeout=0)) or not _is_there(trainer.pid)


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's
        pass
    return True


def _follow(is_alone: Callable[[], bool]) -> None:
    """End this process when the trainer has ended, whatever it waits for."""
    while not is_alone():
        time.sleep(LOOK_SECONDS)
    time.sleep(GRACE_SECONDS)
    os._exit(1)
