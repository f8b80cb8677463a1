"""This module has the loop over tasks. Results come in the order of the tasks. The number of tasks in flight is
limited.

:func:`run_tasks` is the loop, for any executor. The number of tasks in flight depends on the executor's size. The loop
collects progress while it waits for the oldest task. A task in this process reports progress by a call. A task in
another process adds to its counter in shared memory. A task on another machine reports only at its end.

Engines run tasks on other machines. :func:`open_engine` makes an executor from a URL. The URL's scheme is the engine's
name among the entry points of the group ``wdscli.executors``. The entry point is called with the URL and returns a
``concurrent.futures.Executor``. The class :class:`Engine` wraps this executor. Relative paths mean the same in its
tasks, its workers must have the same version of wdscli, and it separates failures of tasks from failures of the engine.

This module does not know what a task does, and does not know any engine.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, wait
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeVar

from wdscli import __version__
from wdscli.errors import (
    MORE_FILES,
    EngineError,
    InputNotFoundError,
    UsageError,
    WdsError,
    ran_out_of_files,
    ran_out_of_memory,
)
from wdscli.executors.local import (
    AT_ONCE,
    HELD_BYTES,
    MIN_COPIED_BYTES,
    MIN_PACKED_BYTES,
    MIN_PARALLEL_BYTES,
    SLOTS,
    Tick,
    default_jobs,
    local_executor,
    result_of,
    run_counted,
    run_reporting,
    useful_jobs,
)
from wdscli.model import PendingCommit
from wdscli.progress import FEW_SHARDS, Progress
from wdscli.shown import cause_of
from wdscli.storage import is_local, is_stream, known_sizes, relative_to
from wdscli.storage.blocks import kind_of_name
from wdscli.storage.opening import size_hint

if TYPE_CHECKING:
    from concurrent.futures import Future

    from wdscli.storage.retry import Network

Task = TypeVar("Task")
Result = TypeVar("Result")

POLL_SECONDS = 0.2
ENGINES = "wdscli.executors"
"""The group of entry points that are engines."""


class LostWorkerError(EngineError):
    """A worker process of this machine ended in the middle of its work."""


def workers_of(executor: Executor) -> int:
    """Return how many tasks an executor runs at the same time. This is its attribute ``workers``, or the attribute of
    Python's pools."""
    return getattr(executor, "workers", 0) or getattr(executor, "_max_workers", 0) or default_jobs()


def useful_shard_jobs(
    jobs: int | None, addresses: Sequence[str], worth_bytes: int, *, waits: bool = False
) -> int:
    """Return :func:`~wdscli.executors.local.useful_jobs` for tasks with one shard each. A remote shard of unknown size
    is worth a process. So are four small remote shards, because each request takes time."""
    sizes = (
        size_hint(address) or 0
        if is_local(address)
        else max(size_hint(address) or worth_bytes, worth_bytes // 4)
        for address in addresses
    )
    waits = waits or not all(map(is_local, addresses))
    return useful_jobs(jobs, len(addresses), sum(sizes), worth_bytes, waits=waits)


def copying_worth(*addresses: str) -> int:
    """Return how many bytes are worth a process that copies shards with such addresses."""
    if any(map(kind_of_name, addresses)):
        return MIN_PACKED_BYTES
    return MIN_COPIED_BYTES if all(map(is_local, addresses)) else MIN_PARALLEL_BYTES


def useful_together(executor: Executor, addresses: Sequence[str], size_bytes: int) -> int:
    """Return how many tasks one worker gets together, if each task writes a shard. The number is larger than 1 if
    workers wait for a store, but small enough to keep all workers busy. ``size_bytes`` is the size of all shards."""
    if any(map(is_local, addresses)) or not addresses:
        return 1
    count = len(addresses)
    return max(1, min(AT_ONCE, count // (4 * workers_of(executor)), count * HELD_BYTES // max(size_bytes, 1)))


def run_tasks(
    executor: Executor,
    function: Callable[[Task], Result | PendingCommit[Result]],
    tasks: Iterable[Task],
    *,
    window: int | None = None,
    advance: Tick | None = None,
    amount: Callable[[Result], int] | None = None,
) -> Generator[Result]:
    """Yield the results of ``function`` for ``tasks``, in their order. At most ``window`` tasks are in flight (None:
    enough to keep the executor busy). In this process, pending commits do not count.

    ``advance`` is called with the units of finished work. A task may report its units while it runs
    (:func:`~wdscli.executors.local.tick_of_task`). ``amount`` returns the total units of a result.

    The first failure, in the order of tasks, is raised, and tasks that have not begun are cancelled. WdsError and
    BrokenPipeError are raised unchanged, other exceptions as EngineError.
    """
    flying: deque[Future[Result]] = deque()
    meter = _Meter(executor, advance, amount)
    try:
        for task in tasks:
            flying.append(_submitted(executor, *meter.call(function, task)))
            limit = SLOTS if meter.is_here else window or 2 * workers_of(executor) + 2
            while len(flying) >= min(limit, SLOTS) or (flying and flying[0].done()):
                yield meter.take(_result(executor, flying.popleft(), meter))
        while flying:
            yield meter.take(_result(executor, flying.popleft(), meter))
    finally:
        _cancel(executor, flying)


def run_together(
    executor: Executor,
    function: Callable[[Task], Result | PendingCommit[Result]],
    tasks: Iterable[Task],
    together: int,
    amount: Callable[[Result], int],
    **options: Any,
) -> Generator[Result]:
    """Do the same as :func:`run_tasks`, which has the ``options``. Another worker gets ``together`` tasks at the same
    time, and waits for their commits."""
    if together == 1 or getattr(executor, "runs_here", False):
        yield from run_tasks(executor, function, tasks, amount=amount, **options)
        return
    remaining = iter(tasks)
    batches = iter(lambda: list(islice(remaining, together)), [])
    some: Any = partial(_run_some, function)
    results = run_tasks(executor, some, batches, amount=lambda done: sum(map(amount, done)), **options)
    yield from chain.from_iterable(results)


def _cancel(executor: Executor, flying: Iterable[Future[Any]]) -> None:
    """Cancel the tasks in flight. A broken pool fails on cancelled futures, and the pools of wdscli end with their
    block anyway."""
    if not getattr(executor, "ends_its_workers", False):
        for future in flying:
            future.cancel()


def _run_some(function: Callable[[Task], Result | PendingCommit[Result]], tasks: list[Task]) -> list[Result]:
    with local_executor(1) as executor:
        return list(run_tasks(executor, function, tasks))


def run_shard_tasks(
    executor: Executor,
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    progress: Progress,
    what: str,
    addresses: Sequence[str],
) -> Iterator[Result]:
    """Yield the results of ``function`` for tasks with one shard each, as a stage ``what`` of ``progress``. The stage
    counts bytes if the sizes are known without a request. Otherwise it counts bytes without a total for few shards, and
    shards for many. Tasks report bytes of their shard. A compressed shard counts only when it is done."""
    sizes, is_packed = known_sizes(addresses), any(map(kind_of_name, addresses))
    is_few = len(addresses) <= FEW_SHARDS and not any(map(is_stream, addresses))
    counts_shards = sizes is None and (is_packed or not is_few)
    amounts = iter(sizes if sizes is not None else [int(counts_shards)] * len(addresses))
    if counts_shards:
        progress.start(what, len(addresses), "shards")
    else:
        progress.start(what, None if sizes is None else sum(sizes), "bytes")
    if counts_shards or is_packed:
        for result in run_tasks(executor, function, tasks):
            progress.advance(next(amounts))
            yield result
    else:
        yield from run_tasks(
            executor, function, tasks, advance=progress.advance, amount=lambda _: next(amounts)
        )
    progress.finish()


class _Meter:
    """Adds up the progress of the tasks in flight. ``_reported`` has the units already reported for each task, the
    oldest first."""

    def __init__(self, executor: Executor, advance: Tick | None, amount: Callable[[Any], int] | None) -> None:
        self._advance = advance
        self._amount = amount
        self.is_here = bool(getattr(executor, "runs_here", False))
        self.counters = getattr(executor, "counters", None) if advance is not None else None
        self._reported: deque[int] = deque()
        self._next = 0

    def call(self, function: Callable[[Any], Any], task: Any) -> tuple[Any, ...]:
        """Return the function and the arguments to submit for the next task."""
        slot = self._next % SLOTS
        self._next += 1
        self._reported.append(0)
        if self._advance is None:
            return function, task
        if self.is_here:
            return run_reporting, self._hear, function, task
        if self.counters is None:
            return function, task
        self.counters[slot] = 0
        return run_counted, slot, function, task

    def _hear(self, amount: int) -> None:
        """Receive progress of the last submitted task, which runs in this process."""
        assert self._advance is not None
        self._reported[-1] += amount
        self._advance(amount)

    def poll(self) -> None:
        """Report the progress of tasks in other processes."""
        first, counters = self._next - len(self._reported), self.counters or ()
        for place, before in enumerate(self._reported):
            new = counters[(first + place) % SLOTS] - before
            if new > 0 and self._advance is not None:
                self._reported[place] = before + new
                self._advance(new)

    def take(self, result: Result) -> Result:
        """When the oldest task is done, report the units that it has not reported itself."""
        before = self._reported.popleft()
        if (
            self._advance is not None
            and self._amount is not None
            and (unreported := self._amount(result) - before) > 0
        ):
            self._advance(unreported)
        return result


def _submitted(executor: Executor, function: Callable[..., Any], *args: Any) -> Future[Any]:
    try:
        return executor.submit(function, *args)
    except BrokenExecutor:
        raise _lost_worker() from None


def _result(executor: Executor, future: Future[Result], meter: _Meter) -> Result:
    try:
        # Collect progress while waiting.
        while meter.counters is not None and not wait([future], POLL_SECONDS).done:
            meter.poll()
        return future.result()
    except (WdsError, BrokenPipeError):
        raise
    except BrokenExecutor:
        raise _lost_worker() from None
    except Exception as error:
        explain = getattr(executor, "explain", task_failed)
        raise explain(error) from cause_of(error)


def task_failed(error: Exception) -> EngineError:
    """Return the error for an exception that no task should raise."""
    if ran_out_of_memory(error):
        hint = "try fewer at a time with -j, or allow more (ulimit -v)"
        return EngineError("a task ran out of memory", hint=hint)
    if ran_out_of_files(error):
        return EngineError("a task has too many open files", hint=MORE_FILES)
    return EngineError(
        f"a task failed: {type(error).__name__}: {error}",
        hint="this is a mistake in wdscli; the same command with --debug shows where",
    )


def _lost_worker() -> LostWorkerError:
    return LostWorkerError(
        "a worker process ended abruptly", hint="it may have been killed for lack of memory: use a smaller -j"
    )


def find_engine(url: str) -> Callable[[str], Executor]:
    """Return the function that makes the executor for a URL. Raises UsageError for an unknown engine."""
    from importlib.metadata import entry_points

    name, points = url.partition("://")[0], entry_points(group=ENGINES)
    for point in points:
        if point.name == name:
            factory: Callable[[str], Executor] = point.load()
            return factory
    schemes = ", ".join(f"{scheme}://" for scheme in sorted({point.name for point in points})) or "none"
    raise UsageError(f'no engine "{name}"', hint=f"installed: {schemes}; other engines need another package")


def open_engine(url: str) -> Executor:
    """Return an executor for the engine at ``url``. Raises UsageError, EngineError."""
    factory = find_engine(url)
    try:
        return Engine(url, factory(url))
    except WdsError:
        raise
    except Exception as error:
        raise EngineError(
            f"cannot reach {url}: {_first_line(str(error)) or type(error).__name__}",
            hint="check that its scheduler is running and that this is its address",
        ) from cause_of(error)


class Engine(Executor):
    """An engine's executor. Its errors become EngineErrors. ``workers`` is the number of tasks that it runs at the same
    time."""

    def __init__(self, url: str, inner: Executor) -> None:
        self.url = url
        self._inner = inner
        self._folder = os.getcwd()

    @property
    def workers(self) -> int:
        return workers_of(self._inner)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        from wdscli.storage.retry import network

        try:
            settings = (__version__, self._folder, network())
            return self._inner.submit(run_elsewhere, *settings, fn, *args, **kwargs)
        except WdsError:
            raise
        except Exception as error:
            raise self.explain(error) from cause_of(error)

    def explain(self, error: Exception) -> EngineError:
        """Return the error for an engine that lost a task. Errors raised by tasks are already converted on the
        worker."""
        reason = _first_line(str(error))
        what = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
        if isinstance(error, CancelledError):
            what = "the connection to its scheduler is lost or has cancelled a task"
        return EngineError(
            f"the engine {self.url} failed: {what}",
            hint="read the logs of its scheduler and workers; workers need the same wdscli and the same paths",
        )

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        # All results have arrived, so errors of an engine while it closes do not matter.
        with suppress(Exception):
            self._inner.shutdown(wait, cancel_futures=cancel_futures)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.shutdown(wait=kind is None, cancel_futures=kind is not None)


def run_elsewhere(
    version: str, folder: str, patience: Network, function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Run one task on a worker. Relative paths begin in ``folder``."""
    from wdscli.storage.retry import using

    if version != __version__:
        raise EngineError(
            f"a worker has wdscli {__version__}, but this machine has {version}",
            hint="install the same version everywhere",
        )
    try:
        with relative_to(folder), using(patience):
            return result_of(function(*args, **kwargs))
    except WdsError as error:
        if isinstance(error, InputNotFoundError):
            from socket import gethostname

            error.hint = f"it is missing on {gethostname()}: give a folder that all workers share, or s3://"
        # Remove the context of the error, because Dask would pickle it too. It may contain a whole request, or be
        # impossible to pickle.
        error.__context__ = None
        raise
    except Exception as error:
        raise task_failed(error) from cause_of(error)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
