"""Tasks for worker processes. A worker imports this module, and not a file of tests with pytest."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from threading import Thread
from typing import Any

from wdscli import executors
from wdscli.errors import DataError, OutputExistsError
from wdscli.executors import make_executor, tick_of_task


def double(number: int) -> int:
    time.sleep(0.02 * (number % 3))
    return 2 * number


def whoami(_: int) -> tuple[int, str, str, Any]:
    from multiprocessing import get_start_method, parent_process

    parent = parent_process()
    secret = getattr(executors, "_secret_of_the_parent", None)
    return os.getpid(), get_start_method(), "" if parent is None else "child", secret


def fails(number: int) -> int:
    if number == 3:
        raise DataError("broken", code="truncated", shard="a.tar", offset=512, member="x.jpg", hint="mend it")
    if number == 4:
        raise OutputExistsError("there already", hint="--force")
    if number == 5:
        raise KeyError("mistake")
    if number == 6:
        raise MemoryError
    if number == 7:
        raise BrokenPipeError(32, "Broken pipe")
    return number


def die(number: int) -> int:
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
    return number


def linger(path: str) -> int:
    """Writes its process, then waits; a file beside it says that the way out was walked."""
    try:
        Path(path).write_text(str(os.getpid()))
        time.sleep(60)
    finally:
        Path(path + ".left").touch()
    return 0


class Slow:
    def __init__(self, path: str) -> None:
        self.path = path

    def __del__(self) -> None:
        Path(self.path).write_text(str(os.getpid()))
        time.sleep(60)


def finalizes(path: str) -> None:
    slow = Slow(path)
    del slow
    linger(path)


def leave_a_thread(number: int) -> int:
    Thread(target=time.sleep, args=(3600,)).start()
    return number


def chatter(size: int) -> bytes:
    return bytes(size)


def count(number: int) -> int:
    tick = tick_of_task()
    for _ in range(number):
        time.sleep(0.05)
        tick(1)
    return number + 2


if __name__ == "__main__":
    with make_executor(2) as pool:
        pool.submit(linger, sys.argv[1]).result()
