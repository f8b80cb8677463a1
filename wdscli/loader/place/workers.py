"""How a worker of WebLoader ends after its trainer, and the pipe for its batches.

What it is: :func:`install_worker_cleanup`, called first in each worker that WebLoader starts, and :func:`widen_pipe`,
called in the main process. Why: a worker that ends waits until all its batches were received. The trainer may have been
killed by a scheduler or for lack of memory; or it may be waiting for this worker's end after Ctrl-C, which every
process of a terminal receives. And torch's worker checks its parent process, which with the context "forkserver" is not
the trainer, and only between batches. How: the worker ignores Ctrl-C, and the main process ends its workers; a thread
ends the worker some seconds after its trainer. It must not know what is in a batch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

PIPE_BYTES = 1 << 20
"""The most that Linux allows without privileges."""
LOOK_SECONDS = 2.0
"""Between checks of the trainer."""
GRACE_SECONDS = 6.0
"""For a worker to end by itself after its trainer: torch checks every 5 seconds."""


def install_worker_cleanup() -> None:
    """Ignore Ctrl-C in this worker, and end it after its trainer. Called in the main thread."""
    import signal
    from threading import Thread

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_follow, args=(_trainer_ended(),), name="wdscli-trainer", daemon=True).start()


def widen_pipe(batches: Any) -> None:
    """Enlarge the pipe of torch's iterator ``batches``, if the system allows it. Its 64 KiB make a worker wait for the
    main process several times for each batch; with a pipe that holds a batch, text arrives 1.5 times as fast."""
    try:
        from fcntl import F_GETPIPE_SZ, F_SETPIPE_SZ, fcntl

        file = batches._worker_result_queue._writer.fileno()
        if fcntl(file, F_GETPIPE_SZ) < PIPE_BYTES:
            fcntl(file, F_SETPIPE_SZ, PIPE_BYTES)
    except (ImportError, AttributeError, OSError, ValueError):
        pass


def _trainer_ended() -> Callable[[], bool]:
    """Return a function that says whether the trainer has ended."""
    from multiprocessing import parent_process
    from multiprocessing.connection import wait

    trainer: Any = parent_process()
    if trainer is None:
        return lambda: False
    # The sentinel of a fork does not work: workers that were forked later hold it open, too.
    if trainer.pid == os.getppid():
        return lambda: os.getppid() != trainer.pid
    return lambda: bool(wait([trainer.sentinel], timeout=0)) or not is_running(trainer.pid)


def is_running(pid: int) -> bool:
    """Whether a process exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's process
        pass
    return True


def _follow(has_ended: Callable[[], bool]) -> None:
    """End this process after the trainer, even while it waits for something."""
    while not has_ended():
        time.sleep(LOOK_SECONDS)
    time.sleep(GRACE_SECONDS)
    os._exit(1)
