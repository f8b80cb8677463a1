"""A set of files made: what :mod:`wdscli.run.execute` does for samples that lie in no shard yet.

What it is: :func:`run_packed` for a whole set, :func:`pack_some` for some of its shards, :func:`stored_tasks` for those
of a plan file. How: each shard is one :class:`~wdscli.create.packing.PackTask`, which writes and leaves a receipt as
the task of a reordering does. It must not know how files were found.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from wdscli.create.packing import PackTask, pack, unpacked_task
from wdscli.errors import DataError
from wdscli.executors import make_executor, run_tasks, useful_jobs, workers_of
from wdscli.model import ShardInfo
from wdscli.plan.plan import ReorderPlan
from wdscli.plan.planfile import mark_of
from wdscli.plan.request import PlanMark
from wdscli.progress import QUIET, Progress
from wdscli.run.execute import ReorderReport, check_made, claimed, finish_plan, make_once
from wdscli.run.receipts import Witness
from wdscli.run.resume import Kept, begin
from wdscli.run.unchanged import check_replaceable, leave_mark
from wdscli.shards.writing import ShardSettings
from wdscli.storage import is_local, local_path, remove

WORTH_PROCESSES_BYTES = 400_000_000
BYTES_PER_MEMBER = 13_000
"""To open a file costs as much as to copy so many bytes."""
Tasks = Callable[[int], PackTask]
"""What makes a shard, by its number."""


def stored_tasks(plan: ReorderPlan) -> Tasks:
    """The tasks of a plan that was read from a file."""
    parcel = plan.parcel
    assert parcel is not None

    def task(number: int) -> PackTask:
        data = parcel(number)
        try:
            return unpacked_task(data, plan.planned[number].address, plan.request.settings)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"the plan does not say what task {number} is made of", code="bad-plan"
            ) from error

    return task


def run_packed(plan: ReorderPlan, tasks: Tasks, *, progress: Progress = QUIET) -> ReorderReport:
    """Make the shards that are not there yet, then their manifest. Raises what a task raises."""
    mark = mark_of(plan)
    if plan.request.if_changed:
        check_replaceable(plan.parts[0].output, plan.operation)
    with claimed(plan, mark):
        kept = younger(plan, tasks, begin(plan, mark, progress))
        if plan.request.stamp:
            leave_mark(plan.parts[0].output)
        missing = [number for number in range(len(plan.planned)) if number not in kept.shards]
        made = dict(zip(missing, pack_some(plan, tasks, mark, missing, kept, progress), strict=True))
        return finish_plan(plan, {**kept.shards, **made}, kept)


def pack_some(
    plan: ReorderPlan, tasks: Tasks, mark: PlanMark, numbers: Sequence[int], kept: Kept, progress: Progress
) -> list[ShardInfo]:
    """Make some of the shards, by their numbers. Raises what a task raises."""
    request, planned = plan.request, [plan.planned[number] for number in numbers]
    progress.start("writing shards", sum(shard.size for shard in planned), "bytes")
    # What other processes can take off the largest shard's task is all that there is to win; one where starting a
    # process would take longer than the work.
    work = [shard.size + BYTES_PER_MEMBER * shard.members for shard in planned]
    jobs = useful_jobs(request.jobs, len(work), sum(work) - max(work, default=0), WORTH_PROCESSES_BYTES)
    if any(part.output.pattern.is_stream for part in plan.parts):
        jobs = 1
    is_here = jobs == 1 and request.engine is None
    written = []
    with make_executor(jobs, request.engine) as executor:
        results = run_tasks(
            executor,
            pack_once,
            (_task(plan, tasks(number), mark, number, kept, is_here) for number in numbers),
            # A task has its files' names, so that few are made before they are needed.
            window=workers_of(executor) + 1,
            advance=progress.advance,
            amount=lambda info: info.tar_bytes,
        )
        for info, shard in zip(results, planned, strict=True):
            check_made(plan, info, shard)
            written.append(info)
    progress.finish()
    return written


class PackOnce(NamedTuple):
    """A shard to be made once, the witness that leaves its receipt, and the command that is run when it has its
    name."""

    pack: PackTask
    witness: Witness
    post: str | None


def pack_once(task: PackOnce) -> ShardInfo:
    """Raises what :func:`~wdscli.create.packing.pack` raises, and EngineError when the command that follows fails."""
    given = task.pack

    def made(settings: ShardSettings) -> ShardInfo:
        return pack(given._replace(settings=settings))

    return make_once(given.address, given.settings, made, task.witness, task.post)


def _task(
    plan: ReorderPlan, task: PackTask, mark: PlanMark, number: int, kept: Kept, is_here: bool
) -> PackOnce:
    request = plan.request
    if not is_here:
        task = task.portable(holds_all=request.engine is not None)
    witness = Witness(mark, number, posted=request.post is None)
    settings = request.settings._replace(
        witness=witness.leave,
        # Only a shard of ours is replaced unasked.
        force=request.settings.force or number in kept.again,
        # Other machines may know the claim's folder by other numbers.
        ticket=plan.parts[0].output.settings.ticket if request.engine is None else None,
    )
    return PackOnce(task._replace(settings=settings), witness, request.post)


def younger(plan: ReorderPlan, tasks: Tasks, kept: Kept) -> Kept:
    """Of the shards that are there those that are younger than all of their files, as make has it; the others are made
    again. A file of the same size may hold something else by now."""
    old = set()
    for number in kept.shards:
        shard = plan.planned[number].address
        if is_local(shard) and _is_newer(tasks(number), os.stat(local_path(shard)).st_mtime_ns):
            old.add(number)
    if not old:
        return kept
    shards = {number: info for number, info in kept.shards.items() if number not in old}
    manifest = plan.parts[0].output.manifest_address
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
