"""Tasks in this process, or in processes of this machine.

What it is: :func:`local_executor`. How: processes are spawned, never forked, so that a task gets nothing from its
parent but its arguments and can run on another machine just as well. After an error or Ctrl-C the workers are ended at
once, and each discards the file that it was writing. Tasks count their progress in shared memory
(:mod:`wdscli.executors.ticks`).

It must not know what a task does.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from wdscli.errors import UsageError
from wdscli.executors.later import LaterResults, result_of
from wdscli.executors.ticks import run_reporting
from wdscli.model import PendingCommit

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

    from wdscli.storage.retry import Network, Traffic

PATIENCE_SECONDS = 5.0
"""How long a worker may take to clean up before it is killed."""
USER_CODE_PATIENCE_SECONDS = 1.0
"""The same for a worker that runs a user's code, which has no output open."""
SLOTS = 1024
"""Most tasks in flight; each has its own counter."""
MIN_PARALLEL_BYTES = 64 << 20
"""To copy fewer bytes than this, starting processes takes longer than they save."""


def default_jobs() -> int:
    """The processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


def useful_jobs(jobs: int | None, tasks: int, size_bytes: int, worth_bytes: int = MIN_PARALLEL_BYTES) -> int:
    """The number of processes: ``jobs`` (None: one per processor, or 1 for less than ``worth_bytes`` of work), at most
    one per task. Raises UsageError.

    >>> useful_jobs(8, 3, 0), useful_jobs(None, 3, 1000)
    (3, 1)
    """
    if jobs is None and size_bytes < worth_bytes:
        return 1
    wanted = default_jobs() if jobs is None else jobs
    if wanted < 1:
        raise UsageError(f"--jobs must be at least 1, not {wanted}")
    return max(1, min(wanted, tasks))


def local_executor(jobs: int) -> Executor:
    """An executor for ``jobs`` tasks at a time; with 1 job tasks run in this process, when they are submitted."""
    return _serial() if jobs == 1 else _processes(jobs, PATIENCE_SECONDS)


def separate_executor(jobs: int | None) -> Executor:
    """Worker processes (None: one per processor) for a user's code, which may end or change its process; tasks never
    run in this one."""
    return _processes(default_jobs() if jobs is None else jobs, USER_CODE_PATIENCE_SECONDS)


def _serial() -> Executor:
    from concurrent.futures import Executor, Future

    class SerialExecutor(Executor):
        """Runs each task when it is submitted, while earlier ones commit."""

        runs_here = True
        workers = 1

        def __init__(self) -> None:
            self._later = LaterResults()

        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            self._later.make_room()
            future: Future[Any] = Future()
            try:
                result = fn(*args, **kwargs)
                if isinstance(result, PendingCommit) and result.waits:
                    return self._later.begin(result)
                future.set_result(result_of(result))
            except Exception as error:
                self._later.wait()  # errors of earlier tasks are raised first
                future.set_exception(error)
            return future

        def __exit__(self, *error: object) -> None:
            self._later.settle()

    return SerialExecutor()


def _processes(jobs: int, patience_seconds: float) -> Executor:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context
    from multiprocessing.resource_tracker import ensure_running

    from wdscli.storage.retry import network

    context = get_context("spawn")

    class Processes(ProcessPoolExecutor):
        """A pool that does not wait for its workers when the block is left by an exception."""

        ends_its_workers = True

        def __init__(self, counters: Any) -> None:
            self.workers, self.counters = jobs, counters
            super().__init__(jobs, mp_context=context, initializer=_prepare_worker, initargs=(counters,))

        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            # The pool starts its workers here.
            ensure_running()
            with _start_workers():
                return super().submit(_in_worker, network(), fn, *args, **kwargs)

        def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
            if kind is None:
                self.shutdown(wait=True)
            else:
                _abandon(self, patience_seconds)

    # An interrupt while a lock is being made would leave its file in /dev/shm.
    ensure_running()
    with _start_workers():
        return Processes(context.RawArray("Q", SLOTS))


def is_stuck() -> bool:
    """Whether a pool did not end although its workers are gone; a usual exit of Python would wait for it forever."""
    return _stuck


_stuck = False


def _abandon(pool: Any, patience_seconds: float) -> None:
    """End a pool without waiting for its tasks."""
    global _stuck
    manager = getattr(pool, "_executor_manager_thread", None)
    _stop(dict(getattr(pool, "_processes", None) or {}).values(), patience_seconds)
    _hang_up(pool)
    pool.shutdown(wait=False, cancel_futures=True)
    if manager is not None:
        # Its workers are gone. Some versions of Python still wait for them.
        manager.join(PATIENCE_SECONDS)
        _stuck = _stuck or manager.is_alive()


@contextmanager
def defer_signals() -> Iterator[None]:
    """Handle Ctrl-C and SIGTERM after the block, so that a process that the block starts is not forgotten. Only the
    main thread handles signals."""
    from threading import current_thread, main_thread

    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM) if current_thread() is main_thread() else ()
    handlers = {number: signal.getsignal(number) for number in numbers}
    handlers = {
        number: handler for number, handler in handlers.items() if handler not in (None, signal.SIG_IGN)
    }
    for number in handlers:
        signal.signal(number, lambda arrived, _: came.append(arrived))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


@contextmanager
def _start_workers() -> Iterator[None]:
    """A block that starts workers, which inherit the signal mask: SIGINT must not reach one before it is ready. The
    mask alone does not protect this process: the kernel then gives the signal to another thread, and Python raises in
    the main one."""
    with defer_signals():
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _stop(workers: Iterable[Any], patience_seconds: float) -> None:
    """End workers now: by SIGTERM, so that each removes its partial files, then by SIGKILL."""
    workers = list(workers)
    for worker in workers:
        with suppress(OSError, ValueError):
            worker.terminate()
    deadline = time.monotonic() + patience_seconds
    for worker in workers:
        with suppress(OSError, ValueError, AssertionError):
            worker.join(max(0.0, deadline - time.monotonic()))
            if worker.is_alive():
                worker.kill()


def _hang_up(pool: Any) -> None:
    """Close our copies of the workers' ends of the pipes, so that the pool's threads see that they are closed. A worker
    may have ended in the middle of a message, or left one unread."""
    with suppress(OSError, AttributeError):
        pool._result_queue._writer.close()
    with suppress(OSError, AttributeError):
        if not _closes_its_calls(pool):
            pool._call_queue._reader.close()


def _closes_its_calls(pool: Any) -> bool:
    """Whether the pool's own thread closes the other pipe, as in newer versions of Python. Closing it here too would
    close a descriptor twice."""
    from concurrent.futures import process

    manager = getattr(process, "_ExecutorManagerThread", None)
    code = getattr(getattr(manager, "terminate_broken", None), "__code__", None)
    return hasattr(pool._call_queue, "_terminate_broken") or "_reader" in getattr(code, "co_names", ())


class Stopped(BaseException):
    """Raised in a worker by SIGTERM, so that its open outputs are discarded. Code that catches every BaseException must
    raise this one again."""


_counters: Any = None
_start_folder: str | None = None
"""The folder where this worker was started; None if it is gone."""


def run_counted(slot: int, function: Callable[[Any], Any], task: Any) -> Any:
    """Call ``function(task)`` in a worker; its progress is counted in memory shared with the parent."""

    def count(amount: int) -> None:
        _counters[slot] += amount

    return run_reporting(count, function, task)


def _prepare_worker(counters: Any) -> None:
    """Set up a worker. Ctrl-C reaches every process of the terminal's group; only the parent handles it and ends the
    workers. A worker ends with its parent. What it prints goes to standard error, because standard input and output
    carry the parent's data."""
    from multiprocessing import parent_process
    from threading import Thread

    global _counters, _start_folder
    _counters = counters
    with suppress(OSError):
        _start_folder = os.getcwd()
    _leave_data_streams()
    # Not SIG_IGN, which the commands of a worker would inherit: Ctrl-C must end these.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGTERM, _end_worker)
    signal.signal(signal.SIGALRM, _end_worker)
    sys.unraisablehook = _raise_again
    warnings.showwarning = _say_warning
    parent = parent_process()
    if parent is not None:
        Thread(target=_follow, args=(parent,), daemon=True).start()


def _leave_data_streams() -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout = sys.stderr


def _end_worker(*_: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if _busy:
        raise Stopped
    # Between tasks no output is open, and the pool's code would send an exception as a result.
    os._exit(1)


def _raise_again(args: Any) -> None:
    """Python ignores exceptions in finalizers; raise Stopped again a moment later."""
    if issubclass(args.exc_type, Stopped):
        signal.setitimer(signal.ITIMER_REAL, 0.01)
    else:
        sys.__unraisablehook__(args)


def _follow(parent: Any) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


_busy = False


def _say_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning as the command does."""
    with suppress(OSError):
        sys.stderr.write(f"warning: {message}\n")


class FromWorker(NamedTuple):
    """The result of a task in a worker, and the worker's network traffic since its last task."""

    result: Any
    traffic: Traffic


def _in_worker(patience: Network, function: Callable[..., Any], *args: Any, **kwargs: Any) -> FromWorker:
    """Run one task in a worker, in the folder where the worker was started."""
    from wdscli.storage.retry import take_traffic, using

    global _busy
    if _start_folder is not None:
        with suppress(OSError):
            os.chdir(_start_folder)
    with suppress(Stopped), using(patience):
        try:
            _busy = True
            result = result_of(function(*args, **kwargs))
            _busy = False
            return FromWorker(result, take_traffic())
        except Exception:
            _busy = False
            raise
    # Only now the task's frames are gone, and its outputs closed.
    os._exit(1)
