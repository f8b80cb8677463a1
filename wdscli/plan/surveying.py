"""Surveys of all inputs: which of them run where.

What it is: :func:`survey_tasks` and :func:`surveys_of`, between the engine and the task of one shard. How: in this
process when samples are counted across shards, when only it can read an input, or when there is little to do; else
wherever tasks run. It must not know what surveys are for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, TypeVar

from wdscli.executors import make_executor, run_tasks
from wdscli.plan.jobs import WORTH_BYTES, useful_jobs
from wdscli.plan.memory import LEAST_TASK, Limits
from wdscli.plan.scratch import Input, Scratch, is_of_this_process, is_ours_alone, is_read_once, refused
from wdscli.plan.survey import Survey, SurveyTask, survey
from wdscli.progress import Progress
from wdscli.selection import SelectionState
from wdscli.shards.index import index_address
from wdscli.storage import is_local
from wdscli.storage.addresses import local_path

if TYPE_CHECKING:
    from concurrent.futures import Executor

Task = TypeVar("Task")
Found = TypeVar("Found")

HEADERS_WORTH = 16 << 20
"""What a remote input is taken to cost."""


INDEX_COST = 6
"""Bytes of memory for each byte of an index file, while it is read and made into rows."""


def survey_tasks(
    addresses: Sequence[str], template: SurveyTask, scratch: Scratch | None, limits: Limits
) -> list[SurveyTask]:
    """One task a shard, each with a place for a copy, and for rows that are too many to be held."""
    if scratch is None:
        for address in filter(is_read_once, addresses):
            raise refused(address)
        return [template._replace(input=Input(address)) for address in addresses]
    return [
        _within(
            template._replace(
                input=Input(address),
                spool=scratch.place(number),
                overflow=scratch.path_of(f"survey-{number}"),
            ),
            limits,
        )
        for number, address in enumerate(addresses)
    ]


def _within(task: SurveyTask, limits: Limits) -> SurveyTask:
    """The same survey, which does without an index that takes more memory than there is for it."""
    if not limits.given or not is_local(task.address):
        return task
    try:
        size = os.stat(local_path(index_address(task.address))).st_size
    except OSError:
        return task
    return task._replace(use_index=False) if size * INDEX_COST > LEAST_TASK + limits.task else task


def surveys_of(
    tasks: Sequence[SurveyTask],
    state: SelectionState,
    jobs: int | None,
    engine: str | None,
    most: int,
    progress: Progress,
    take: Callable[[Survey], None],
) -> list[Survey]:
    """One survey a shard, whose rows ``take`` has been given as they came, in order. In this process when samples are
    counted across shards, or when there is little to do. A shard that comes after all that may be selected is not
    opened. At most ``most`` processes, whatever ``jobs``."""
    addresses = [task.address for task in tasks]
    # What only this process can read, no worker can.
    alone = any(is_ours_alone(one) or is_of_this_process(one) for one in addresses) or not all(
        task.selection.is_trivial for task in tasks
    )
    size = bytes_of(tasks)
    alone = alone or (size < WORTH_BYTES and all(map(_has_index, tasks)))
    workers = 1 if alone else min(most, useful_jobs(jobs, len(tasks), size))
    is_here = alone or (workers == 1 and engine is None)
    executor = None if is_here else make_executor(workers, engine)
    found = []
    for one in of_each(
        tasks, lambda task: Survey() if state.done else survey(task, state), survey, executor, progress
    ):
        take(one)
        found.append(one)
    return found


def of_each(
    tasks: Sequence[Task],
    here: Callable[[Task], Found],
    there: Callable[[Task], Found],
    executor: Executor | None,
    progress: Progress,
) -> Iterator[Found]:
    """What is found of each shard, in order: by ``here`` in this process, or by ``there`` wherever ``executor`` runs
    it. Raises what they raise."""
    progress.start("reading headers", len(tasks), "shards")
    with executor or nullcontext():
        for one in map(here, tasks) if executor is None else run_tasks(executor, there, tasks):
            yield one
            progress.advance(1)
    progress.finish()


def bytes_of(tasks: Sequence[SurveyTask]) -> int:
    """The bytes of local inputs, or of their indexes, a cheap guess at how much there is to do; remote ones count as
    much."""
    total = 0
    for task in tasks:
        if not is_local(task.address):
            total += HEADERS_WORTH
            continue
        address = index_address(task.address) if _has_index(task) else task.address
        with suppress(OSError):
            total += os.stat(local_path(address)).st_size
    return total


def _has_index(task: SurveyTask) -> bool:
    """Whether a local shard's index is all that a survey has to read, as far as can be told without opening it."""
    reads_payloads = task.extract is not None and bool(task.extract.payload_fields)
    if reads_payloads or not task.use_index or task.on_error == "skip" or not is_local(task.address):
        return False
    return os.path.exists(local_path(index_address(task.address)))
