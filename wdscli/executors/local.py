"""Run tasks in this process, or in processes of this machine.

:func:`local_executor` makes the executor. Worker processes are spawned, never forked. A task gets only its arguments
from its parent, so it could also run on another machine. After an error or Ctrl-C, the workers end immediately, and
each worker discards the file that it was writing.

A task reports its progress by :func:`tick_of_task`. Worker processes count progress in shared memory. A task may return
a :class:`~wdscli.model.PendingCommit`, which is called to commit the output and get the result. :class:`LaterResults`
calls the pending commits of one worker in threads, while the worker begins its next tasks.

This module also finds out how many processors and how much memory are available. It does not know what a task does.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from queue import Empty, SimpleQueue
from threading import Semaphore, Thread, current_thread, main_thread
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from wdscli.errors import UsageError
from wdscli.model import PendingCommit
from wdscli.threads import holding

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from wdscli.storage.retry import Network


Result = TypeVar("Result")
Tick: TypeAlias = Callable[[int], object]

PATIENCE_SECONDS = 5.0
"""A worker may take this long to clean up before it is killed."""
USER_CODE_PATIENCE_SECONDS = 1.0
"""The same time for a worker that runs a user's code. Such a worker has no open output."""
SLOTS = 1024
"""The most tasks in flight. Each has its own counter."""
MIN_PARALLEL_BYTES = 320 << 20
"""A process copies this many bytes while another one starts, which takes 0.3 s of processor time."""
MIN_COPIED_BYTES = 1 << 30
"""The same for copies from files to files. A process writes these by a second thread, so it is faster."""
MIN_PACKED_BYTES = 8 << 20
"""The same for bytes to compress or to unpack."""
MIN_SCANNED_BYTES = 1 << 29
"""The same for bytes of shards whose headers are read or whose checksums are computed."""
AT_ONCE = 8
"""The most pending commits in one worker."""
HELD_BYTES = 64 << 20
"""The most bytes that pending commits may keep in memory when another task begins."""
SETTLE_SECONDS = 3.0
"""Must be shorter than the time that a worker gets to clean up."""
_ROOT = "/sys/fs/cgroup"
_GROUPS = (
    ("", "memory.max", "memory.current", "inactive_file"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""The files of control groups, version 2 and version 1. Each entry has the controller, the limit, the memory in use,
and the cache that can be freed."""
_UNLIMITED_BYTES = 1 << 60
_MALLOC_OPTIONS = {-1: 32 << 20, -3: 8 << 20}
"""M_TRIM_THRESHOLD, the free bytes that a process keeps, and M_MMAP_THRESHOLD, the size of the blocks that it always
returns to the system."""
pool_sizes: list[int] = []
"""At each start of a worker, the number of workers in its pool."""


def _ignore(_: int) -> None:
    """Receive the progress of tasks without a listener."""


_tick: ContextVar[Tick] = ContextVar("tick", default=_ignore)


def tick_of_task() -> Tick:
    """Return the function by which the running task reports progress. Call it a few times a second, not for each
    sample."""
    return _tick.get()


def run_reporting(tick: Tick, function: Callable[[Any], Any], task: Any) -> Any:
    """Call ``function(task)``, and report its progress to ``tick``."""
    with holding(_tick, tick):
        return function(task)


def default_jobs() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


def available() -> int:
    """Return the bytes of memory that are available without swapping, in the machine or in this process's control
    group."""
    return min(_machine(), *(_group(*names) for names in _GROUPS))


def keep_freed_memory() -> None:
    """Let this process keep some freed memory for its next arrays. Otherwise the system takes it back and clears it for
    each shard, which takes as long as the work on the shard. Only for the processes of a command: the setting holds
    until the process ends. It exists only in the GNU C library."""
    import ctypes

    with suppress(AttributeError, OSError):
        change = ctypes.CDLL(None).mallopt
        for option, size_bytes in _MALLOC_OPTIONS.items():
            change(option, size_bytes)


def _machine() -> int:
    with suppress(OSError, ValueError, StopIteration), open("/proc/meminfo", encoding="ascii") as file:
        return 1024 * next(int(line.split()[1]) for line in file if line.startswith("MemAvailable"))
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return 1 << 30


def _group(controller: str, limit: str, use: str, cache: str, root: str = "") -> int:
    """Return the bytes left in the control group, or None if it has no limit."""
    root = root or _ROOT
    left = _UNLIMITED_BYTES
    for folder in _folders_of(controller, root):
        with suppress(OSError, ValueError):
            most = int(_read(folder, limit))
            idle = sum(
                int(line.split()[1])
                for line in _read(folder, "memory.stat").splitlines()
                if line.startswith(cache + " ")
            )
            left = min(left, max(0, most - int(_read(folder, use)) + idle))
    return left


def _folders_of(controller: str, root: str) -> list[str]:
    """Return the folders of this process's group and of its parents, because each may have a limit. In a container, the
    group's own folder is the root."""
    path = "/"
    with suppress(OSError), open("/proc/self/cgroup", encoding="utf-8") as file:
        for line in file:
            _, names, place = line.rstrip("\n").split(":", 2)
            if controller in names.split(","):
                path = place
    parts = [part for part in path.split("/") if part]
    base = os.path.join(root, controller) if controller else root
    return [os.path.join(base, *parts[:count]) for count in range(len(parts), -1, -1)]


def _read(folder: str, name: str) -> str:
    with open(os.path.join(folder, name), encoding="ascii") as file:
        return file.read()


def useful_jobs(
    jobs: int | None,
    tasks: int,
    size_bytes: int,
    worth_bytes: int = MIN_PARALLEL_BYTES,
    *,
    waits: bool = False,
) -> int:
    """Return the number of processes: one per ``worth_bytes`` bytes of work, but at most one per task, and at most
    ``jobs`` (None: one per processor). If tasks wait for a store or another program (``waits``), or WDSCLI_JOBS is
    ``exact``, little work does not reduce ``jobs``. Raises UsageError.

    >>> useful_jobs(8, 3, 0, waits=True), useful_jobs(None, 3, 1000)
    (3, 1)
    """
    if jobs is not None and jobs < 1:
        raise UsageError(f"--jobs must be at least 1, not {jobs}")
    most = min(jobs or default_jobs(), tasks)
    if jobs is not None and (waits or os.environ.get("WDSCLI_JOBS") == "exact"):
        return max(1, most)
    return max(1, min(most, size_bytes // worth_bytes))


def result_of(result: Result | PendingCommit[Result]) -> Result:
    """Return the result of a task, after its commit."""
    return result.result() if isinstance(result, PendingCommit) else result


class LaterResults:
    """The pending commits of a worker, the oldest first."""

    def __init__(self) -> None:
        self._under_way: list[tuple[Future[Any], PendingCommit[Any]]] = []

    def begin(self, later: PendingCommit[Result]) -> Future[Result]:
        from wdscli.storage.opening import begun

        future = begun(later.result)
        self._under_way.append((future, later))
        return future

    def make_room(self) -> None:
        """Wait until another task may begin. The number and the bytes of pending commits are limited."""
        if self._under_way:
            self.wait(0)  # forget finished ones
        while len(self._under_way) >= AT_ONCE or self._held_bytes() > HELD_BYTES:
            self.wait(any_of_them=True)

    def _held_bytes(self) -> int:
        return sum(later.held_bytes for _, later in self._under_way)

    def wait(self, timeout_seconds: float | None = None, *, any_of_them: bool = False) -> None:
        """Wait until all commits have ended, or only one."""
        futures = [future for future, _ in self._under_way]
        ended = wait(futures, timeout_seconds, FIRST_COMPLETED if any_of_them else ALL_COMPLETED).done
        self._under_way = [(future, commit) for future, commit in self._under_way if future not in ended]

    def settle(self) -> None:
        """After an error or Ctrl-C, wait some seconds for the commits, and then discard the rest."""
        try:
            self.wait(SETTLE_SECONDS)
        finally:
            for _, later in self._under_way:
                later.discard()


def local_executor(jobs: int) -> Executor:
    """Return an executor for ``jobs`` tasks at the same time. With 1 job, tasks run in this process, when they are
    submitted."""
    return SerialExecutor() if jobs == 1 else Processes(jobs, PATIENCE_SECONDS)


def separate_executor(jobs: int | None) -> Executor:
    """Return an executor for a user's code, which may end or change its process. Tasks never run in this process. If
    ``jobs`` is None, there is one worker per processor."""
    return Processes(default_jobs() if jobs is None else jobs, USER_CODE_PATIENCE_SECONDS)


class SerialExecutor(Executor):
    """Runs each task when it is submitted. Earlier tasks may commit at the same time."""

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


class Processes(Executor):
    """An executor of at most ``workers`` spawned processes. Each worker has a pipe, and a thread in this process that
    sends one task at a time. If an exception leaves the block, the workers end without finishing their tasks.

    Python's own pool is not used, because its semaphores are files. They stay in ``/dev/shm`` when the whole process
    group is killed.
    """

    ends_its_workers = True

    def __init__(self, workers: int, patience_seconds: float) -> None:
        from multiprocessing import get_context

        self._context = get_context("spawn")
        self._patience_seconds = patience_seconds
        self.workers = workers
        self.counters = self._context.RawArray("Q", SLOTS)
        self._calls: SimpleQueue[tuple[Future[Any], Any] | None] = SimpleQueue()
        self._idle = Semaphore(0)
        self._started: list[tuple[Any, Thread]] = []
        self._is_broken = self._is_closing = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        from wdscli.storage.retry import network

        if self._is_broken:
            raise BrokenExecutor
        if not self._idle.acquire(blocking=False) and len(self._started) < self.workers:
            self._start()
        future: Future[Any] = Future()
        self._calls.put((future, (network(), fn, args, kwargs)))
        if self._is_broken:  # the pool broke in the meantime
            self._drain(BrokenExecutor())
        return future

    def _start(self) -> None:
        """Start one more worker."""
        from multiprocessing.resource_tracker import ensure_running

        ensure_running()  # this must come before the block, which unblocks signals
        with _start_workers():
            parent_end, worker_end = self._context.Pipe()
            worker = self._context.Process(target=_work, args=(worker_end, self.counters))
            worker.start()
            worker_end.close()
            thread = Thread(target=self._serve, args=(parent_end,), daemon=True)
            self._started.append((worker, thread))
            pool_sizes.append(len(self._started))
            thread.start()
        Thread(target=self._watch, args=(worker,), daemon=True).start()

    def _watch(self, worker: Any) -> None:
        """Break the pool if a worker is lost between tasks. The other workers then end too, and no task waits."""
        from multiprocessing.connection import wait

        wait([worker.sentinel])
        if not self._is_closing:
            self._break()
            for started, _ in self._started:
                with suppress(OSError, ValueError):
                    started.terminate()

    def _break(self) -> None:
        """Let all tasks fail that no worker has begun, and accept no more tasks."""
        self._is_broken = True
        self._drain(BrokenExecutor())

    def _serve(self, pipe: Connection) -> None:
        """Send tasks to one worker until the pool is closed or the worker is lost."""
        with pipe:
            while (call := self._calls.get()) is not None:
                future, work = call
                if future.set_running_or_notify_cancel():
                    try:
                        self._run(pipe, future, work)
                    except (EOFError, OSError):
                        future.set_exception(BrokenExecutor())
                        self._break()
                        return
                self._idle.release()
                del call, future, work

    @staticmethod
    def _run(pipe: Connection, future: Future[Any], work: Any) -> None:
        """Let a worker do one task. Raises EOFError and OSError if the worker is lost."""
        from wdscli.storage.retry import count_traffic

        try:
            data = pickle.dumps(work)
        except Exception as error:
            future.set_exception(error)
            return
        pipe.send_bytes(data)
        data = pipe.recv_bytes()
        try:
            is_done, result, details = pickle.loads(data)
        except Exception as error:
            future.set_exception(error)
            return
        if is_done:
            count_traffic(**details._asdict())
            future.set_result(result)
        else:
            result.__cause__ = RemoteTraceback(details)
            future.set_exception(result)

    def _drain(self, error: BaseException | None = None) -> None:
        """Remove the tasks that no worker has begun. They get the error, or are cancelled."""
        with suppress(Empty):
            while (call := self._calls.get_nowait()) is not None:
                if error is None:
                    call[0].cancel()
                if call[0].set_running_or_notify_cancel():
                    call[0].set_exception(error)
            self._calls.put(None)  # the end marker for another worker

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._is_closing = True
        if cancel_futures:
            self._drain()
        for _ in self._started:
            self._calls.put(None)
        for worker, thread in self._started if wait else ():
            thread.join()
            worker.join(PATIENCE_SECONDS)
        if wait:  # a thread of a user's function may keep its worker
            _stop([worker for worker, _ in self._started], self._patience_seconds)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            self._is_closing = True
            self._drain()
            _stop([worker for worker, _ in self._started], self._patience_seconds)
        self.shutdown(wait=kind is None)


class RemoteTraceback(Exception):
    """The traceback of an error in a worker, as text."""


@contextmanager
def defer_signals() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until after the block, so that a process started in the block is not forgotten. Only the
    main thread handles signals."""
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
    """A block in which workers are started. SIGINT must not reach a worker before it is ready, so SIGINT is masked, and
    workers inherit the mask. The mask does not protect this process: the kernel gives the signal to another thread, and
    Python raises KeyboardInterrupt in the main thread. So signals are also delayed."""
    with defer_signals():
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _stop(workers: Iterable[Any], patience_seconds: float) -> None:
    """End workers now. First send SIGTERM, so that each worker removes its partial files, and later SIGKILL."""
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
                worker.join(patience_seconds)


class WorkerStopped(BaseException):
    """Raised in a worker by SIGTERM, so that its open outputs are discarded. Code that catches every BaseException must
    raise Stopped again."""


_counters: Any = None
_start_folder: str | None = None
"""The folder in which this worker was started, or None if it no longer exists."""


def run_counted(slot: int, function: Callable[[Any], Any], task: Any) -> Any:
    """Call ``function(task)`` in a worker, and count its progress in memory shared with the parent."""

    def count(amount: int) -> None:
        _counters[slot] += amount

    return run_reporting(count, function, task)


def _prepare_worker(counters: Any) -> None:
    """Set up a worker. Ctrl-C reaches every process of the terminal, but only the parent handles it, and ends the
    workers. A worker ends with its parent. A worker's output goes to standard error, because standard input and output
    are for the parent's data."""
    from multiprocessing import parent_process

    global _counters, _start_folder
    _counters = counters
    with suppress(OSError):
        _start_folder = os.getcwd()
    _leave_data_streams()
    keep_freed_memory()
    # Do not use SIG_IGN. A worker's commands would inherit it, but Ctrl-C must end them.
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
        raise WorkerStopped
    # Between tasks, no output is open. An exception would be sent as the result of a task.
    os._exit(1)


def _raise_again(args: Any) -> None:
    """Python ignores exceptions in finalizers, so raise Stopped again a moment later."""
    if issubclass(args.exc_type, WorkerStopped):
        signal.setitimer(signal.ITIMER_REAL, 0.01)
    else:
        sys.__unraisablehook__(args)


def _follow(parent: Any) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


_busy = False


def _say_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning in the same form as the command."""
    with suppress(OSError):
        sys.stderr.write(f"warning: {message}\n")


def _work(pipe: Connection, counters: Any) -> None:
    """Do the tasks from the pipe until it is closed. This is the main function of a worker."""
    _prepare_worker(counters)
    with suppress(EOFError, OSError):
        while True:
            pipe.send_bytes(_outcome(pipe.recv_bytes()))
    # As at the end of the main process: no last garbage collection.
    gc.freeze()


def _outcome(data: bytes) -> bytes:
    """Do one task. After success, return True, the result, and the network traffic since the last task. After a
    failure, return False, the error, and the traceback as text."""
    from wdscli.storage.retry import take_traffic

    try:
        patience, function, args, kwargs = pickle.loads(data)
        result = _in_worker(patience, function, *args, **kwargs)
        return pickle.dumps((True, result, take_traffic()))
    except BaseException as error:
        return _failure(error)


def _failure(error: BaseException) -> bytes:
    """Return the outcome of a failed task. A RuntimeError replaces an error that cannot be pickled."""
    from traceback import format_exception

    text = "\n" + "".join(format_exception(error))
    try:
        return pickle.dumps((False, error, text))
    except Exception as pickle_error:
        return pickle.dumps((False, RuntimeError(str(pickle_error)), text))


def _in_worker(patience: Network, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run one task in a worker, in the folder where the worker was started."""
    from wdscli.storage.retry import using

    global _busy
    if _start_folder is not None:
        with suppress(OSError):
            os.chdir(_start_folder)
    with suppress(WorkerStopped), using(patience):
        try:
            _busy = True
            result = result_of(function(*args, **kwargs))
            _busy = False
            return result
        except Exception:
            _busy = False
            raise
    # Only now have the task's frames ended, and closed their outputs.
    os._exit(1)
