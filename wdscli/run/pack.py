"""Shards of files: what :mod:`wdscli.run.execute` does where samples lie in no shard yet.

What it is: :func:`pack_some`, which makes shards, each by one :class:`~wdscli.create.packing.PackTask`, and
:func:`younger`, which shards of an earlier run may be kept. It must not know how files were found.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Any

from wdscli.create.packing import PackTask, pack, unpacked_task
from wdscli.errors import DataError
from wdscli.executors import make_executor, run_tasks, useful_jobs, useful_together, workers_of
from wdscli.model import Later, ShardInfo
from wdscli.plan.plan import ReorderPlan
from wdscli.plan.planfile import shaping
from wdscli.progress import Progress
from wdscli.run.receipts import ShardTask, make_shard
from wdscli.run.resume import Kept
from wdscli.storage import is_local, local_path, remove

WORTH_PROCESSES_BYTES = 400_000_000
BYTES_PER_MEMBER = 13_000
"""To open a file costs as much as to copy so many bytes."""


def _task(plan: ReorderPlan, number: int) -> PackTask:
    """The task of one shard, as it was made here, or as a plan file holds it."""
    assert plan.parcel is not None
    parcel = plan.parcel(number)
    if isinstance(parcel, PackTask):
        return parcel
    try:
        return unpacked_task(parcel, plan.planned[number].address, plan.request.settings)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"the plan does not say what task {number} is made of", code="bad-plan") from error


def pack_some(
    plan: ReorderPlan,
    numbers: Sequence[int],
    wrap: Callable[[int, PackTask, Callable[[Any], Later[ShardInfo]]], ShardTask],
    progress: Progress,
) -> Generator[ShardInfo]:
    """Make some of the shards, by their numbers; ``wrap`` makes a task one that is carried out once. Raises what a task
    raises."""
    request, planned = plan.request, [plan.planned[number] for number in numbers]
    size = sum(shard.size for shard in planned)
    progress.start("writing shards", size, "bytes")
    # What other processes can take off the largest shard's task is all that there is to win; one where starting a
    # process would take longer than the work.
    work = [shard.size + BYTES_PER_MEMBER * shard.members for shard in planned]
    jobs = useful_jobs(request.jobs, len(work), sum(work) - max(work), WORTH_PROCESSES_BYTES)
    jobs = 1 if plan.stays_here else jobs

    def task(number: int) -> ShardTask:
        given = _task(plan, number)
        if jobs > 1 or request.engine is not None:
            given = given.portable(holds_all=request.engine is not None)
        return wrap(number, given, pack)

    with make_executor(jobs, request.engine) as executor:
        # A task has its files' names, so that few are made before they are needed.
        yield from run_tasks(
            executor,
            make_shard,
            map(task, numbers),
            window=workers_of(executor) + 1,
            advance=progress.advance,
            amount=lambda info: info.tar_bytes,
            together=useful_together(executor, [shard.address for shard in planned], size),
        )
    progress.finish()


def younger(plan: ReorderPlan, kept: Kept) -> Kept:
    """Of the shards that are there those that are younger than all of their files, as make has it; the others are made
    again. A file of the same size may hold something else by now."""
    if plan.parcel is None:
        return kept
    old = set()
    for number in kept.shards:
        shard = plan.planned[number].address
        if is_local(shard) and _is_newer(_task(plan, number), os.stat(local_path(shard)).st_mtime_ns):
            old.add(number)
    if not old:
        return kept
    shards = {number: info for number, info in kept.shards.items() if number not in old}
    manifest = plan.parts[0].output.manifest_address
    if plan.mark is not None:
        plan.parts[0].output.declare(plan.mark.text, shaping(plan), replaces=True)
    if kept.manifests and manifest is not None:
        remove(manifest)
    return Kept(shards, kept.again | old, {})


def _is_newer(task: PackTask, than_ns: int) -> bool:
    """Whether one of a shard's local files was written, or got its name, after a moment."""
    for number in task.members:
        place = task.files.place(number)
        # One that is gone since says nothing against a shard that is there.
        with suppress(FileNotFoundError):
            if isinstance(place, bytes) and os.stat(place).st_ctime_ns > than_ns:
                return True
    return False
