"""What a worker of torch's DataLoader does for its own good end, and for the pipe through which its batches go.

What it is: :func:`settle`, called in a worker below torch's worker loop, as often as is convenient. How: the queue of
batches and the event that says that no more are wanted are found where torch's worker loop keeps them; where they are
not found nothing changes. Why: a worker that ends waits until all that it made has been taken. Whoever was to take it
may be gone, killed by a scheduler or for want of memory; or be waiting for this worker's end, as after Ctrl-C, which
every process of a terminal hears of. And torch's worker looks at its parent process, which with the context
"forkserver" is not the trainer, and only between batches. It must not know what is in a batch.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

PIPE_BYTES = 1 << 20
"""What Linux gives anybody."""
LOOK_SECONDS = 2.0
"""Between looks whether the trainer is there."""
GRACE_SECONDS = 6.0
"""For a worker to end by itself when the trainer is gone: torch's looks every 5 seconds."""


@cache
def settle() -> None:
    """Make the pipe of this worker wide, and let it end when the trainer has ended."""
    found = _of_torch()
    if found is None:
        return
    from multiprocessing.util import Finalize
    from threading import Thread

    queue, is_done = found
    is_alone = _alone()
    _widen(queue)
    # Python's own, which waits for the queue, has priority -5.
    Finalize(None, _send_rest, (queue, lambda: is_done() or is_alone()), exitpriority=0)
    Thread(target=_follow, args=(is_alone, queue), name="wdscli-trainer", daemon=True).start()


def _of_torch() -> tuple[Any, Callable[[], bool]] | None:
    """Of torch's worker loop, the queue of batches and whether no more are wanted."""
    frame: Any = sys._getframe()
    while frame is not None and frame.f_code.co_name != "_worker_loop":
        frame = frame.f_back
    try:
        return frame.f_locals["data_queue"], frame.f_locals["done_event"].is_set
    except (AttributeError, KeyError):
        return None


def _widen(queue: Any) -> None:
    """Batches of up to a megabyte travel through one pipe of 64 KiB, and whoever writes a larger one sleeps until the
    main process has read the beginning, again and again; with a pipe that holds a batch, text comes half as fast again.
    Where the system has no such pipes to give, nothing changes."""
    try:
        from fcntl import F_GETPIPE_SZ, F_SETPIPE_SZ, fcntl

        file = queue._writer.fileno()
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


def _send_rest(queue: Any, is_in_vain: Callable[[], bool]) -> None:
    """Wait, as Python would, until the other process has got what was put into ``queue``, unless it will not."""
    queue.close()
    thread = getattr(queue, "_thread", None)
    while thread is not None and thread.is_alive():
        if is_in_vain():
            queue.cancel_join_thread()
            return
        thread.join(0.05)


def _follow(is_alone: Callable[[], bool], queue: Any) -> None:
    """End this process when the trainer has ended, whatever it waits for."""
    while not is_alone():
        time.sleep(LOOK_SECONDS)
    time.sleep(GRACE_SECONDS)
    os._exit(1)
