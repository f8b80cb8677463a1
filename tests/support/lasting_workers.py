"""Worker processes that outlast a command, for tests that run many commands with ``-j`` in this process.

To start a process takes as long as the rest of a small command. Tasks run in these as in any others; what a test wants
to know of their start and their end, it must not ask here. They are where and as their first command was: use absolute
paths.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any

import pytest

from wdscli import executors


@contextmanager
def lasting_workers() -> Iterator[None]:
    """Until the block ends, whoever asks for as many local processes as another did before gets the same ones. A
    command that fails takes its own with it."""
    pools: dict[int, Executor] = {}
    start = executors.local_executor

    def local_executor(jobs: int) -> Executor:
        if jobs == 1:
            return start(jobs)
        if jobs not in pools:
            pools[jobs] = pool = start(jobs)
            leave = type(pool).__exit__

            def stay(self: Any, kind: Any, error: Any, trace: Any) -> None:
                if kind is not None:
                    del pools[jobs]
                    leave(self, kind, error, trace)

            pool.__class__ = type("Lasting", (type(pool),), {"__exit__": stay})
        return pools[jobs]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executors, "local_executor", local_executor)
        try:
            yield
        finally:
            for pool in pools.values():
                pool.shutdown()
