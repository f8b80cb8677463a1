"""``run``: carry out a stored plan, or some of its tasks.

:func:`run_tasks_of` runs some tasks, and :func:`finish` writes the manifest. :func:`run_all` runs all missing tasks and
writes the manifest. :func:`states` lists the tasks. Each task leaves a receipt beside its shard, so that independent
processes can share a plan. The last step reads the receipts and writes the manifest that one command would have
written. This module does not know what starts the tasks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from wdscli.errors import EngineError, UsageError
from wdscli.plan.plan import ReorderPlan
from wdscli.progress import QUIET, Progress
from wdscli.run.execute import ReorderReport, finish_plan, locked, run_plan, run_some
from wdscli.run.existing import done_tasks, find_shards, run_of
from wdscli.units import whole_number

_NAMED_AT_MOST = 12
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_SHARE = re.compile(r"([0-9]+)/([0-9]+)")


class TaskState(NamedTuple):
    """The state of one task. ``state`` is ``done`` or ``missing``, according to the shard's name and the receipt."""

    task: int
    address: str
    samples: int
    size_bytes: int
    state: str


class TasksReport(NamedTuple):
    """The result. ``written`` counts new shards, and ``kept`` counts shards that already existed. Samples and bytes are
    totals of both."""

    written: int
    kept: int
    samples: int
    size_bytes: int


def parse_tasks(text: str, total: int) -> list[int]:
    """Return the task numbers that a text names: ``7`` or ``0-9,12``. ``K/N`` names K, K+N, K+2N, ... below ``total``.

    >>> parse_tasks("0-2,5", 8), parse_tasks("1/3", 8), parse_tasks("9/10", 8)
    ([0, 1, 2, 5], [1, 4, 7], [])
    """
    share = _SHARE.fullmatch(text.strip())
    if share is not None:
        first, step = whole_number(share[1]), whole_number(share[2])
        if first >= step:
            raise UsageError(
                f"--task {text}: the parts are counted from 0", hint=f"0/{step} to {step - 1}/{step}"
            )
        return list(range(first, total, step))
    tasks: set[int] = set()
    for word in text.split(","):
        match = _RANGE.fullmatch(word.strip())
        if match is None:
            raise UsageError(
                f'--task "{text}" is not a list of tasks', hint="use --task 7, --task 0-9,12 or --task 3/16"
            )
        first, last = whole_number(match[1]), whole_number(match[2] or match[1])
        if last >= total or first > last:
            raise UsageError(
                f"--task {word.strip()}: the plan has {total} tasks",
                hint=f"its tasks are 0 to {total - 1}; K/N is part K of N equal parts" if total else None,
            )
        tasks.update(range(first, last + 1))
    return sorted(tasks)


def run_tasks_of(plan: ReorderPlan, tasks: Sequence[int], *, progress: Progress = QUIET) -> TasksReport:
    """Make the shards of some tasks. A shard of an earlier attempt is checked by reading it, and kept.

    Raises what :func:`~wdscli.run.execute.run_plan` raises.
    """
    run = run_of(plan, progress)
    with locked(run):
        kept = find_shards(run, tasks)
        missing = [task for task in tasks if task not in kept.shards]
        written = run_some(run, missing, kept)
    whole = [*written, *kept.shards.values()]
    return TasksReport(
        len(written),
        len(kept.shards),
        sum(info.samples for info in whole),
        sum(info.size_bytes for info in whole),
    )


run_all = run_plan
"""Make all missing shards, then the manifests."""


def finish(plan: ReorderPlan, address: str, *, progress: Progress = QUIET) -> ReorderReport:
    """Write the manifests after all tasks are done. Raises EngineError if a task is not done, and OutputExistsError.

    This function checks shards by receipt and size. :func:`run_all` also reads the shards.
    """
    run, contents = run_of(plan, progress), plan.contents
    every = range(len(contents.shards))
    with locked(run):
        for output in contents.outputs:
            output.check(contents.addresses, may_exist=True)
        kept = find_shards(run, every, reading=False)
        missing = [task for task in every if task not in kept.shards]
        if missing:
            raise EngineError(
                f"{len(missing)} of {len(every)} tasks are not done: {_named(missing)}",
                hint=f"wds run {address} --task {_named(missing)}"
                if len(missing) <= _NAMED_AT_MOST
                else f"wds run {address} does all of them; wds run {address} -n lists them",
            )
        for task in every:
            run.maker.check_shard(task, kept.shards[task])
        return finish_plan(run, kept.shards, kept)


def _named(tasks: Sequence[int]) -> str:
    """Return task numbers as ranges: ``0-3,7``."""
    ranges: list[list[int]] = []
    for task in tasks:
        if ranges and ranges[-1][1] == task - 1:
            ranges[-1][1] = task
        else:
            ranges.append([task, task])
    words = [f"{first}-{last}" if last > first else f"{first}" for first, last in ranges]
    return ",".join(words[:_NAMED_AT_MOST]) + (",..." if len(words) > _NAMED_AT_MOST else "")


def states(plan: ReorderPlan) -> list[TaskState]:
    """Return all tasks and their states."""
    done = done_tasks(run_of(plan))
    return [
        TaskState(task, shard.address, shard.samples, shard.size_bytes, "done" if task in done else "missing")
        for task, shard in enumerate(plan.contents.shards)
    ]
