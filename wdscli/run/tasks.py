"""The tasks of a plan, one for each of its shards: copied, packed of files, or made of transformed samples.

What it is: :func:`tasks_of`, which opens the executor that a plan needs and gives :class:`ShardTasks`. How: every
shard is one call of a function with one argument, made when it is needed. The three kinds differ in what happens
before: a copy may spill first, a transform runs slices of shards elsewhere and writes their results here. It must not
know receipts, or whether a shard is there already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from wdscli.copy.copier import GatherTask, gather
from wdscli.copy.spill import SpillLayout, spill
from wdscli.create.packing import PackTask, pack, unpacked_task
from wdscli.errors import DataError
from wdscli.executors import (
    default_jobs,
    make_executor,
    run_tasks,
    separate_executor,
    useful_jobs,
    useful_together,
    workers_of,
)
from wdscli.model import PendingCommit, ShardInfo
from wdscli.plan.cut import PlannedShard
from wdscli.plan.inputs import is_of_this_process
from wdscli.plan.plan import ReorderPlan
from wdscli.plan.scratch import Scratch, hold_remote_shards
from wdscli.plan.strategy import check_scratch, limits_for
from wdscli.progress import Progress
from wdscli.selection import Selection
from wdscli.transform.shards import lost_calls_named, transform_folder, write_slices
from wdscli.transform.slices import KEPT, SliceResult, Slices, SliceTask, Totals, transform_slice
from wdscli.transform.transform import Transform

PROCESSES_FOR_BYTES = 400_000_000
"""Processes are started to pack at least this many bytes of files."""
BYTES_PER_MEMBER = 13_000
"""Opening a file costs as much as copying this many bytes."""


class ShardTasks(NamedTuple):
    """Tasks of one shard each, in order: the argument, which has ``address`` and ``settings``, and the function that
    makes the shard. ``advance`` gets the bytes written; ``release`` is called with each shard that is made."""

    executor: Executor
    tasks: Iterator[tuple[Any, Callable[[Any], PendingCommit[ShardInfo]]]]
    advance: Callable[[int], object] | None
    window: int | None = None
    together: int = 1
    release: Callable[[PlannedShard], object] | None = None


def tasks_of(
    plan: ReorderPlan, numbers: Sequence[int], totals: Totals, progress: Progress
) -> AbstractContextManager[ShardTasks]:
    """The tasks of some shards, by number, in a block that must run them all. ``totals`` counts what a transform leaves
    out. Raises what opening inputs and executors raises."""
    if plan.transform is not None:
        return _transforming(plan, numbers, totals, progress)
    return (_copying if plan.parcel is None else _packing)(plan, numbers, progress)


@contextmanager
def _copying(plan: ReorderPlan, numbers: Sequence[int], progress: Progress) -> Iterator[ShardTasks]:
    """Shards copied out of byte ranges of the inputs."""
    planned = [plan.planned[number] for number in numbers]
    size = sum(shard.size for shard in planned)
    held = sum(0 if rows.order is None else rows.order.nbytes for rows in plan.row_lists)
    limits, spilled = limits_for(plan.request.memory, plan.request.jobs, held), None
    if plan.strategy == "spill":
        check_scratch(plan.request)
    # The first pass of a spill has other tasks; an output that is one stream is written by this process.
    tasks = len(planned) if plan.strategy == "gather" else limits.jobs
    jobs = min(limits.jobs, useful_jobs(plan.request.jobs, tasks, size))
    with (
        Scratch(plan.request.tmp) as scratch,
        hold_remote_shards(_inputs_to_hold(plan, numbers), scratch, progress, whole=True),
        _executor(plan, jobs) as executor,
    ):
        if plan.strategy == "spill":
            spilled = spill(plan, planned, executor, scratch, limits, progress)
        progress.start("writing", size, "bytes")
        yield ShardTasks(
            executor,
            ((_gather_task(plan, number, spilled), gather) for number in numbers),
            progress.advance,
            together=useful_together(executor, [shard.address for shard in planned], size),
            release=None if spilled is None else spilled.release,
        )
        for one in plan.inputs if spilled is not None else ():
            one.confirm()


def _inputs_to_hold(plan: ReorderPlan, numbers: Sequence[int]) -> list[str]:
    """The addresses that some tasks of a kept plan read, if copies of them are worth it; none for other plans."""
    if not plan.brings:
        return []
    shards = [plan.planned[number] for number in numbers]
    needed = {one for shard in shards for one in plan.ordered.slice(shard.first, shard.end).shard_numbers()}
    return [plan.inputs[number].address for number in sorted(needed)]


def _gather_task(plan: ReorderPlan, number: int, spilled: SpillLayout | None) -> GatherTask:
    """The samples of a shard, and the inputs that contain them. ``spilled`` must live until the task has run."""
    shard, request = plan.planned[number], plan.request
    samples = plan.ordered.slice(shard.first, shard.end)
    beside = None if plan.joined is None else plan.joined.part(shard.first, shard.end)
    if request.engine is not None:
        samples, beside = samples.held(), beside and beside.held()
    used = samples.shard_numbers() if beside is None else beside.inputs(samples)
    return GatherTask(
        shard.address,
        request.settings,
        {number: plan.inputs[number] for number in used},
        samples,
        Selection(field_rule=request.selection.field_rule),
        plan.rekey,
        None if spilled is None else spilled.spilled(shard),
        beside,
    )


@contextmanager
def _packing(plan: ReorderPlan, numbers: Sequence[int], progress: Progress) -> Iterator[ShardTasks]:
    """Shards packed of files."""
    request, planned = plan.request, [plan.planned[number] for number in numbers]
    size = sum(shard.size for shard in planned)
    progress.start("writing shards", size, "bytes")
    # Other processes can only take work off the largest shard's task, and starting one takes time too.
    work = [shard.size + BYTES_PER_MEMBER * shard.members for shard in planned]
    jobs = useful_jobs(request.jobs, len(work), sum(work) - max(work), PROCESSES_FOR_BYTES)
    is_here = request.engine is None and (jobs == 1 or plan.stays_here)

    def tasks() -> Iterator[tuple[PackTask, Callable[[PackTask], PendingCommit[ShardInfo]]]]:
        for number in numbers:
            task = pack_task(plan, number)
            yield task if is_here else task.portable(holds_all=request.engine is not None), pack

    with _executor(plan, jobs) as executor:
        yield ShardTasks(
            executor,
            tasks(),
            progress.advance,
            # A task has its files' names, so only a few are made before they are needed.
            workers_of(executor) + 1,
            useful_together(executor, [shard.address for shard in planned], size),
        )


def pack_task(plan: ReorderPlan, number: int) -> PackTask:
    """The task that packs one shard, as ``create`` made it or as a plan file has it. Raises DataError."""
    assert plan.parcel is not None
    parcel = plan.parcel(number)
    if isinstance(parcel, PackTask):
        return parcel
    try:
        return unpacked_task(parcel, plan.planned[number].address, plan.request.settings)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"the plan does not say what task {number} is made of", code="bad-plan") from error


@contextmanager
def _transforming(
    plan: ReorderPlan, numbers: Sequence[int], totals: Totals, progress: Progress
) -> Iterator[ShardTasks]:
    """Shards made of transformed samples. Slices of shards are tasks, and this process writes their results, so that
    all processors are busy whatever the shape of the set."""
    transform = Transform(**plan.transform or {})
    samples = sum(plan.planned[number].samples for number in numbers)
    jobs = min(plan.request.jobs or default_jobs(), -(-samples // transform.batch) or 1)
    with (
        transform_folder(plan.request) as folder,
        lost_calls_named(folder),
        _transform_executor(plan, transform, jobs) as executor,
        make_executor(1) as here,
    ):
        is_here = any(map(is_of_this_process, [plan.request.tmp or "", *plan.shards.addresses]))
        slices, tasks = Slices(transform, folder), dict[int, GatherTask]()
        progress.start("mapping", samples, "samples")

        def all_slices() -> Iterator[SliceTask]:
            for number in numbers:
                tasks[number] = _gather_task(plan, number, None)
                for one in slices.of(number, tasks[number]):
                    yield one.held() if is_here else one

        def results() -> Iterator[SliceResult]:
            for result in run_tasks(executor, transform_slice, all_slices()):
                slices.adapt(result)
                totals.add(result)
                progress.advance(result.taken)
                yield result

        by_shard = groupby(results(), key=attrgetter("shard"))
        yield ShardTasks(
            here, ((tasks.pop(number), partial(write_slices, some)) for number, some in by_shard), None
        )
    for failure in totals.failures:
        progress.warn(failure)
    if unchanged := totals.counts.get(KEPT):
        progress.warn(f"kept {unchanged} samples as they were, because their calls failed")


def _transform_executor(plan: ReorderPlan, transform: Transform, jobs: int) -> Executor:
    if transform.kind != "python" or plan.request.engine is not None:
        return _executor(plan, jobs)
    return plan.workers or separate_executor(jobs)


def _executor(plan: ReorderPlan, jobs: int) -> Executor:
    return make_executor(1 if plan.stays_here else jobs, plan.request.engine)
