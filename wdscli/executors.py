"""Where tasks run: in this process, or in processes of this machine. Each is a ``concurrent.futures.Executor``.

What it is: two factories and one loop. How: processes are spawned, never forked, so that a task sees nothing of its
parent but its arguments, which is what lets the same task run on another machine. A bounded window of tasks is in
flight, and results come out in the order of the tasks, so that the number of jobs cannot show in any output.

It must not know what a task does. Tasks are top-level functions of one picklable argument.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from wdscli.errors import EngineError, UsageError

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

Task = TypeVar("Task")
Result = TypeVar("Result")


def default_jobs() -> int:
    """The processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


def make_executor(jobs: int | None = None) -> Executor:
    """An executor for ``jobs`` tasks at a time (None: one a processor); with 1 job tasks run in this process.

    The caller shuts it down (``with``).
    """
    jobs = default_jobs() if jobs is None else jobs
    if jobs < 1:
        raise UsageError(f"--jobs must be at least 1, not {jobs}")
    return _serial() if jobs == 1 else _processes(jobs)


def _serial() -> Executor:
    from concurrent.futures import Executor, Future

    class SerialExecutor(Executor):
        """Runs each task when it is submitted."""

        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            future: Future[Any] = Future()
            try:
                future.set_result(fn(*args, **kwargs))
            except Exception as error:
                future.set_exception(error)
            return future

    return SerialExecutor()


def _processes(jobs: int) -> Executor:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_leave_interrupts_to_the_parent)


def _leave_interrupts_to_the_parent() -> None:
    """Ctrl-C reaches every process of the terminal's group; the parent alone answers it and ends the others."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)


def run_tasks(
    executor: Executor, function: Callable[[Task], Result], tasks: Iterable[Task], *, window: int | None = None
) -> Iterator[Result]:
    """``function`` over ``tasks``, results in the order of the tasks, at most ``window`` tasks in flight.

    The first failure (in order) is raised and what is not yet running is cancelled: a WdsError as it is, anything else
    as EngineError.
    """
    from collections import deque

    window = window or 2 * default_jobs() + 2
    flying: deque[Future[Result]] = deque()
    source = iter(tasks)
    try:
        for task in source:
            flying.append(executor.submit(function, task))
            if len(flying) >= window or flying[0].done():
                yield _result(flying.popleft())
        while flying:
            yield _result(flying.popleft())
    finally:
        for future in flying:
            future.cancel()


def _result(future: Future[Result]) -> Result:
    from concurrent.futures.process import BrokenProcessPool

    try:
        return future.result()
    except BrokenProcessPool:
        raise EngineError(
            "a worker process ended abruptly",
            hint="it may have been killed for memory: try fewer with -j, or -j 1",
        ) from None
