"""This package runs tasks: in this process, in local processes, or on an engine such as Dask.

:func:`make_executor` makes a ``concurrent.futures.Executor`` for each of these, and :func:`run_tasks` is the loop. A
bounded window of tasks is in flight. Results come in the order of the tasks, so that the output does not depend on jobs
or engine. Engines are found by name (:func:`~wdscli.executors.tasks.find_engine`).

This package does not know what a task does. Tasks are top-level functions of one picklable argument. They may be run
twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wdscli.errors import UsageError
from wdscli.executors.local import MIN_PARALLEL_BYTES as MIN_PARALLEL_BYTES
from wdscli.executors.local import MIN_SCANNED_BYTES as MIN_SCANNED_BYTES
from wdscli.executors.local import WorkerStopped as WorkerStopped
from wdscli.executors.local import default_jobs as default_jobs
from wdscli.executors.local import defer_signals as defer_signals
from wdscli.executors.local import local_executor
from wdscli.executors.local import separate_executor as separate_executor
from wdscli.executors.local import tick_of_task as tick_of_task
from wdscli.executors.local import useful_jobs as useful_jobs
from wdscli.executors.tasks import LostWorkerError as LostWorkerError
from wdscli.executors.tasks import copying_worth as copying_worth
from wdscli.executors.tasks import open_engine as open_engine
from wdscli.executors.tasks import run_shard_tasks as run_shard_tasks
from wdscli.executors.tasks import run_tasks as run_tasks
from wdscli.executors.tasks import run_together as run_together
from wdscli.executors.tasks import useful_shard_jobs as useful_shard_jobs
from wdscli.executors.tasks import useful_together as useful_together
from wdscli.executors.tasks import workers_of as workers_of

if TYPE_CHECKING:
    from concurrent.futures import Executor


def make_executor(jobs: int | None = None, engine: str | None = None) -> Executor:
    """Return an executor for ``jobs`` tasks at the same time (None: one per processor). With 1 job, tasks run in this
    process. ``engine`` is the URL of an engine. It runs as many tasks at the same time as it has workers.

    The caller must shut the executor down, by a ``with`` block. Raises UsageError, and EngineError for an engine that
    cannot be reached.
    """
    if engine is not None:
        return open_engine(engine)
    jobs = default_jobs() if jobs is None else jobs
    if jobs < 1:
        raise UsageError(f"--jobs must be at least 1, not {jobs}")
    return local_executor(jobs)
