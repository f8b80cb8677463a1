"""Tasks in this process, or in processes of this machine.

What it is: :func:`local_executor`. How: processes are spawned, never forked, so that a task sees nothing of its parent
but its arguments, which is what lets the same task run on another machine. When the work is given up, by an error or by
Ctrl-C, the workers are told to end at once; each discards what it was writing. How far a task has come is counted in
memory that the processes share (:mod:`wdscli.executors.ticks`).

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
from wdscli.model import Later

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

    from wdscli.storage.retry import Network, Traffic

PATIENCE_SECONDS = 5.0
"""How long a worker that was told to end may take to clean up."""
USER_CODE_PATIENCE_SECONDS = 1.0
"""The same for a worker that runs a user's code, which holds nothing of ours open."""
SLOTS = 1024
"""At most so many tasks in flight: each has a counter of its own."""
WORTH_BYTES = 64 << 20
"""Below this many bytes to be copied, starting processes costs more than they bring."""


def default_jobs() -> int:
    """The processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


def useful_jobs(jobs: int | None, tasks: int, size_bytes: int, worth_bytes: int = WORTH_BYTES) -> int:
    """As many as were asked for (None: one a processor, when there are ``worth_bytes`` to do), never more than there
    are tasks. Raises UsageError.

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
    """Worker processes (None: one a processor) for code of a user's, which may end or change its process: tasks never
    run in this one."""
    return _processes(default_jobs() if jobs is None else jobs, USER_CODE_PATIENCE_SECONDS)


def _serial() -> Executor:
    from concurrent.futures import Executor, Future

    class SerialExecutor(Executor):
        """Runs each task when it is submitted, while the ends of some before it are waited for."""

        runs_here = True
        workers = 1

        def __init__(self) -> None:
            self._later = LaterResults()

        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            self._later.make_room()
            future: Future[Any] = Future()
            try:
                result = fn(*args, **kwargs)
                if isinstance(result, Later) and result.waits:
                    return self._later.begin(result)
                future.set_result(result_of(result))
            except Exception as error:
                self._later.wait()  # their errors come first, and no task follows
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
            # Workers are started here, and inherit the mask: Ctrl-C must not reach one that is not ready for it.
            ensure_running()
            with _start_workers():
                return super().submit(_in_worker, network(), fn, *args, **kwargs)

        def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
            if kind is None:
                self.shutdown(wait=True)
                return
            manager = getattr(self, "_executor_manager_thread", None)
            _stop(dict(getattr(self, "_processes", None) or {}).values(), patience_seconds)
            _hang_up(self)
            self.shutdown(wait=False, cancel_futures=True)
            if manager is not None:
                # Its workers are gone, so it has nothing to wait for; a Python that forgets this must not hold us.
                manager.join(PATIENCE_SECONDS)
                _note_stuck(manager)

    # A lock has a name in /dev/shm until somebody takes it away, and is known to nobody while it is being made.
    ensure_running()
    with _start_workers():
        return Processes(context.RawArray("Q", SLOTS))


def is_stuck() -> bool:
    """Whether a pool whose workers are gone did not end: leaving Python in the usual way would wait for it forever."""
    return _stuck


_stuck = False


def _note_stuck(manager: Any) -> None:
    global _stuck
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
    """End workers now: each is asked to, so that it leaves nothing half-written, and killed when it does not."""
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
    """Close our copies of the workers' ends of the pipes, so that the pool's threads see that nobody is there: a worker
    may have ended in the middle of a message, or left one unread."""
    with suppress(OSError, AttributeError):
        pool._result_queue._writer.close()
    with suppress(OSError, AttributeError):
        if not _closes_its_calls(pool):
            pool._call_queue._reader.close()


def _closes_its_calls(pool: Any) -> bool:
    """Whether the pool's own thread closes the other pipe once its workers are gone, as newer Pythons do: closing it
    here too, at the same time, would close a descriptor twice."""
    from concurrent.futures import process

    manager = getattr(process, "_ExecutorManagerThread", None)
    code = getattr(getattr(manager, "terminate_broken", None), "__code__", None)
    return hasattr(pool._call_queue, "_terminate_broken") or "_reader" in getattr(code, "co_names", ())


class Stopped(BaseException):
    """Raised in a worker that was told to end, so that whatever it has open is discarded on the way out. Code that
    catches every BaseException lets this one through."""


_counters: Any = None
_start_folder: str | None = None
"""Where this worker was started; None where that folder is gone."""


def run_counted(slot: int, function: Callable[[Any], Any], task: Any) -> Any:
    """``function(task)`` in a worker, which counts how far it has come in memory that the parent looks at."""

    def count(amount: int) -> None:
        _counters[slot] += amount

    return run_reporting(count, function, task)


def _prepare_worker(counters: Any) -> None:
    """Ctrl-C reaches every process of the terminal's group; the parent alone answers it and ends the others. A parent
    that dies without a word takes its workers with it. Standard input and output belong to the parent's data: what a
    worker prints goes to standard error."""
    from multiprocessing import parent_process
    from threading import Thread

    global _counters, _start_folder
    _counters = counters
    with suppress(OSError):
        _start_folder = os.getcwd()
    _leave_data_streams()
    # A handler, where SIG_IGN would be handed on to the commands that a worker starts: Ctrl-C ends these.
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
    # Between tasks nothing of ours is open, and the pool's own code would take an exception for a result.
    os._exit(1)


def _raise_again(args: Any) -> None:
    """Python passes over an exception that comes in a finalizer: the order to end must not be lost there."""
    if issubclass(args.exc_type, Stopped):
        signal.setitimer(signal.ITIMER_REAL, 0.01)
    else:
        sys.__unraisablehook__(args)


def _follow(parent: Any) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


_busy = False


def _say_warning(message: Warning | str, *_: object, **__: object) -> None:
    """As the command itself does."""
    with suppress(OSError):
        sys.stderr.write(f"warning: {message}\n")


class FromWorker(NamedTuple):
    """The result of a task in a worker, and what the worker's traffic was since its last task."""

    result: Any
    traffic: Traffic


def _in_worker(patience: Network, function: Callable[..., Any], *args: Any, **kwargs: Any) -> FromWorker:
    """One task in a worker, in the folder where the worker was started, whatever the tasks before did."""
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
    # Only now the frames of the task are gone, and with them what they had open.
    os._exit(1)
