"""Where tasks run: in this process, or in processes of this machine. Each is a ``concurrent.futures.Executor``.

What it is: two factories and one loop. How: processes are spawned, never forked, so that a task sees nothing of its
parent but its arguments, which is what lets the same task run on another machine. A bounded window of tasks is in
flight, and results come out in the order of the tasks, so that the number of jobs cannot show in any output. When the
work is given up, by an error or by Ctrl-C, the workers are told to end at once; each discards what it was writing.

It must not know what a task does. Tasks are top-level functions of one picklable argument.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from wdscli.errors import EngineError, UsageError, WdsError

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

Task = TypeVar("Task")
Result = TypeVar("Result")

PATIENCE_SECONDS = 5.0
"""How long a worker that was told to end may take to clean up."""


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
    from multiprocessing.resource_tracker import ensure_running

    class Processes(ProcessPoolExecutor):
        """A pool that does not wait for its workers when the block is left by an exception."""

        ends_its_workers = True

        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            # Workers are started here, and inherit the mask: Ctrl-C must not reach one that is not ready for it.
            ensure_running()
            with _interrupts_held():
                return super().submit(_in_worker, fn, *args, **kwargs)

        def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
            if kind is None:
                self.shutdown(wait=True)
                return
            manager = getattr(self, "_executor_manager_thread", None)
            _stop(dict(getattr(self, "_processes", None) or {}).values())
            _hang_up(self)
            self.shutdown(wait=False, cancel_futures=True)
            if manager is not None:
                # Its workers are gone, so it has nothing to wait for; a Python that forgets this must not hold us.
                manager.join(PATIENCE_SECONDS)
                _note_stuck(manager)

    return Processes(jobs, mp_context=get_context("spawn"), initializer=_prepare_worker)


def is_stuck() -> bool:
    """Whether a pool whose workers are gone did not end: leaving Python in the usual way would wait for it forever."""
    return _stuck


_stuck = False


def _note_stuck(manager: Any) -> None:
    global _stuck
    _stuck = _stuck or manager.is_alive()


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C is answered after the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _stop(workers: Iterable[Any]) -> None:
    """End workers now: each is asked to, so that it leaves nothing half-written, and killed when it does not."""
    workers = list(workers)
    for worker in workers:
        with suppress(OSError, ValueError):
            worker.terminate()
    deadline = time.monotonic() + PATIENCE_SECONDS
    for worker in workers:
        with suppress(OSError, ValueError, AssertionError):
            worker.join(max(0.0, deadline - time.monotonic()))
            if worker.is_alive():
                worker.kill()


def _hang_up(pool: Any) -> None:
    """Close our copies of the workers' ends of the pipes, so that the pool's threads see that nobody is there: a worker
    may have ended in the middle of a message, or left one unread."""
    with suppress(OSError, AttributeError):
        pool._result_queue._writer.close()
    with suppress(OSError, AttributeError):
        # Newer Pythons do this one themselves, at the same time.
        if not hasattr(pool._call_queue, "_terminate_broken"):
            pool._call_queue._reader.close()


class _Stopped(BaseException):
    """Raised in a worker that was told to end, so that whatever it has open is discarded on the way out."""


def _prepare_worker() -> None:
    """Ctrl-C reaches every process of the terminal's group; the parent alone answers it and ends the others. A parent
    that dies without a word takes its workers with it."""
    from multiprocessing import parent_process
    from threading import Thread

    # A handler, where SIG_IGN would be handed on to the commands that a worker starts: Ctrl-C ends these.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGTERM, _end_worker)
    signal.signal(signal.SIGALRM, _end_worker)
    sys.unraisablehook = _raise_again
    parent = parent_process()
    if parent is not None:
        Thread(target=_follow, args=(parent,), daemon=True).start()


def _end_worker(*_: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if _busy:
        raise _Stopped
    # Between tasks nothing of ours is open, and the pool's own code would take an exception for a result.
    os._exit(1)


def _raise_again(args: Any) -> None:
    """Python passes over an exception that comes in a finalizer: the order to end must not be lost there."""
    if issubclass(args.exc_type, _Stopped):
        signal.setitimer(signal.ITIMER_REAL, 0.01)
    else:
        sys.__unraisablehook__(args)


def _follow(parent: Any) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


_busy = False


def _in_worker(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """One task in a worker."""
    global _busy
    with suppress(_Stopped):
        try:
            _busy = True
            result = function(*args, **kwargs)
            _busy = False
            return result
        except Exception:
            _busy = False
            raise
    # Only now the frames of the task are gone, and with them what they had open.
    os._exit(1)


def run_tasks(
    executor: Executor,
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    *,
    window: int | None = None,
) -> Iterator[Result]:
    """``function`` over ``tasks``, results in the order of the tasks, at most ``window`` tasks in flight.

    The first failure (in order) is raised and what is not yet running is cancelled: a WdsError and a BrokenPipeError as
    they are, anything else as EngineError.
    """
    from collections import deque

    window = window or 2 * default_jobs() + 2
    flying: deque[Future[Result]] = deque()
    try:
        for task in tasks:
            flying.append(_submitted(executor, function, task))
            if len(flying) >= window or flying[0].done():
                yield _result(flying.popleft())
        while flying:
            yield _result(flying.popleft())
    finally:
        # A pool that breaks chokes on futures that were cancelled, and ours is ended with its block.
        if not getattr(executor, "ends_its_workers", False):
            for future in flying:
                future.cancel()


def _submitted(executor: Executor, function: Callable[[Task], Result], task: Task) -> Future[Result]:
    from concurrent.futures import BrokenExecutor

    try:
        return executor.submit(function, task)
    except BrokenExecutor:
        raise _lost_worker() from None


def _result(future: Future[Result]) -> Result:
    from concurrent.futures import BrokenExecutor

    try:
        return future.result()
    except (WdsError, BrokenPipeError):
        raise
    except BrokenExecutor:
        raise _lost_worker() from None
    except MemoryError as error:
        raise EngineError("a task ran out of memory", hint="try fewer at a time with -j") from error
    except Exception as error:
        raise EngineError(
            f"a task failed: {type(error).__name__}: {error}",
            hint="this is a mistake in wdscli; the same command with --debug shows where",
        ) from error


def _lost_worker() -> EngineError:
    return EngineError(
        "a worker process ended abruptly",
        hint="it may have been killed for memory: try fewer with -j, or -j 1",
    )
