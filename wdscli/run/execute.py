"""A plan, executed: one task an output shard, and then the manifests.

What it is: :func:`run_plan`, and :func:`reorder`, which plans and runs; :func:`make_shard` is what runs in a worker.
How: tasks are pure functions of one argument and run wherever an executor runs them, also twice; a bounded window of
them is in flight. A shard is copied out of ranges of inputs, made of transformed samples, or packed of files
(:mod:`wdscli.run.pack`). At the end the samples, members and bytes that were written are compared with those that were
planned and those that were read, and only then the manifests are written. It must not know why samples are reordered.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeAlias

from wdscli.copy.copier import GatherTask, gather
from wdscli.copy.spill import SpillLayout, spill
from wdscli.create.packing import PackTask
from wdscli.errors import DataError, EngineError, WdsError
from wdscli.executors import (
    default_jobs,
    make_executor,
    run_tasks,
    separate_executor,
    useful_jobs,
    useful_together,
)
from wdscli.model import Later, ShardInfo
from wdscli.plan.cut import PlannedShard
from wdscli.plan.inputs import is_of_this_process
from wdscli.plan.join.joined import JoinCounts
from wdscli.plan.orders import Order
from wdscli.plan.plan import ReorderPlan, sum_counts
from wdscli.plan.planfile import mark_of
from wdscli.plan.request import PlanMark, Request
from wdscli.plan.scratch import Scratch, held_near
from wdscli.plan.strategy import check_scratch, limits_for
from wdscli.progress import QUIET, Progress
from wdscli.run.kept_plan import finished_set, inputs_to_hold, keep_plan, note_of_inputs, plan_of_run
from wdscli.run.pack import pack_some, younger
from wdscli.run.receipts import ShardTask, Witness, make_shard
from wdscli.run.resume import Kept, begin, tidy
from wdscli.run.unchanged import check_replaceable, stamped, tidy_set
from wdscli.selection import Selection
from wdscli.shards.claims import Claim, claim_address
from wdscli.shards.manifest import Manifest
from wdscli.shards.reading import find_index
from wdscli.storage import is_stream
from wdscli.storage.blocks import kind_of_name
from wdscli.transform.shards import check_transformed, lost_calls_named, transform_folder, write_slices
from wdscli.transform.slices import KEPT, SliceResult, Slices, SliceTask, Totals, transform_slice
from wdscli.transform.transform import Transform

Wrap: TypeAlias = "Callable[[int, GatherTask, Callable[[Any], Later[ShardInfo]]], ShardTask]"
"""From the number of a shard, and what makes it of what, to the task that makes it once."""


@dataclass(frozen=True, slots=True)
class ReorderReport:
    """What was done. ``samples_in`` = ``samples`` + all of ``dropped``; ``manifests`` describe what was
    written, one a part. ``payload_bytes`` are those in members, without headers and padding, and with ``members`` the
    same as what was read where whole samples come once and all."""

    operation: str
    samples_in: int
    samples: int
    members: int
    bytes_in: int
    bytes_out: int
    dropped: dict[str, int]
    ignored: dict[str, int]
    strategy: str
    parts: tuple[str, ...]
    manifests: tuple[Manifest, ...]
    joined: JoinCounts | None = None
    kept: int = 0
    """Shards of an earlier run."""
    members_in: int = 0
    payload_bytes_in: int = 0
    payload_bytes: int = 0
    is_unchanged: bool = False
    """Nothing was done, because nothing has changed since the set was made."""

    @property
    def manifest(self) -> Manifest:
        """The manifest of an output that has no parts."""
        return self.manifests[0]

    @property
    def shards(self) -> int:
        """Shards written."""
        return sum(len(manifest.shards) for manifest in self.manifests)


def reorder(
    request: Request,
    order: Order,
    *,
    progress: Progress = QUIET,
    planned: Callable[[ReorderPlan], None] = lambda plan: None,
) -> ReorderReport:
    """Plan and run; ``planned`` is called once the plan is made, and may refuse it. Raises UsageError, InputError,
    DataError, OutputError, EngineError."""
    request, done = looked_at(request, order)
    if done is not None:
        return done
    with Scratch(request.tmp) as scratch:
        plan = plan_of_run(request, order, scratch, progress)
        planned(plan)
        return run_plan(plan, progress=progress)


def looked_at(
    request: Request, order: Order, *, dry_run: bool = False
) -> tuple[Request, ReorderReport | None]:
    """The request as it is to be carried out, and the report where all is there already. Raises UsageError, InputError
    for what ``--if-changed`` cannot look at."""
    if request.if_changed:
        found = stamped(request, order, dry_run=dry_run)
        report = replace(_report_of(order.operation, found.standing), is_unchanged=True)
        return found.request, report if found.standing else None
    # With ``--resume``: what was written tells of these options and of all samples of the inputs.
    done = finished_set(request, order)
    if done is not None and not dry_run:
        tidy_set(done.output, done.manifest)
    if done is None:
        return request, None
    return request, replace(_report_of(order.operation, {"": done.manifest}), bytes_in=done.bytes_in)


def _report_of(operation: str, parts: Mapping[str, Manifest]) -> ReorderReport:
    """The report of sets that are there, in which all samples of the inputs are."""
    manifests = tuple(parts.values())
    payload_bytes = sum(payload_bytes_of(shard) for one in manifests for shard in one.shards)
    samples, members = sum(one.samples for one in manifests), sum(one.members for one in manifests)
    return ReorderReport(
        operation=operation,
        samples_in=samples,
        samples=samples,
        members=members,
        bytes_in=0,
        bytes_out=sum(one.size_bytes for one in manifests),
        dropped={},
        ignored={},
        strategy="gather",
        parts=tuple(parts),
        manifests=manifests,
        kept=sum(len(one.shards) for one in manifests),
        members_in=members,
        payload_bytes_in=payload_bytes,
        payload_bytes=payload_bytes,
    )


def run_plan(plan: ReorderPlan, *, progress: Progress = QUIET) -> ReorderReport:
    """Make the shards, then the manifests. Raises what a task raises; shards that are whole stay, without a
    manifest."""
    mark = mark_of(plan)
    for part in plan.parts if plan.request.if_changed else ():
        check_replaceable(part.output, plan.operation)
    with claimed(plan, mark):
        kept = younger(plan, begin(plan, mark, progress))
        missing = [task for task in range(len(plan.planned)) if task not in kept.shards]
        if missing and plan.mark is None:
            keep_plan(plan)
        totals = Totals()
        made = dict(zip(missing, run_some(plan, mark, missing, kept, progress, totals), strict=True))
        return finish_plan(plan, {**kept.shards, **made}, kept, totals)


@contextmanager
def claimed(plan: ReorderPlan, mark: PlanMark) -> Iterator[None]:
    """Until the block ends nobody else writes this output; but who runs a stored plan may do so several times at once.
    Raises OutputError when another run is writing it."""
    with Claim.take(claim_address(plan.request.output), mark.text if plan.is_stored else "") as claim:
        for part in plan.parts:
            part.output.hold(claim)
        try:
            yield
        finally:
            for part in plan.parts if not plan.is_stored else ():
                part.output.withdraw()


def run_some(
    plan: ReorderPlan,
    mark: PlanMark,
    numbers: Sequence[int],
    kept: Kept,
    progress: Progress,
    totals: Totals | None = None,
) -> list[ShardInfo]:
    """Make some of the shards, by their numbers. ``totals`` adds up what a transform leaves out. Raises what a task
    raises."""
    written: list[ShardInfo] = []
    if not numbers:
        return written
    wrap = partial(_shard_task, plan, mark, kept)
    if plan.transform is not None:
        made = _transform_some(plan, numbers, wrap, totals or Totals(), progress)
    elif plan.parcel is not None:
        made = pack_some(plan, numbers, wrap, progress)
    else:
        made = _copy_some(plan, numbers, wrap, progress)
    with closing(made):
        for number, info in zip(numbers, made, strict=True):
            check_made(plan, info, plan.planned[number])
            written.append(info)
    return written


def _copy_some(
    plan: ReorderPlan, numbers: Sequence[int], wrap: Wrap, progress: Progress
) -> Generator[ShardInfo]:
    """The shards, out of ranges of the inputs."""
    planned = [plan.planned[number] for number in numbers]
    held = sum(0 if rows.order is None else rows.order.nbytes for rows in plan.row_lists)
    limits = limits_for(plan.request.memory, plan.request.jobs, held)
    if plan.strategy == "spill":
        check_scratch(plan.request)
    # The tasks of a first pass are others; an output that is one stream is written by this process.
    tasks = len(planned) if plan.strategy == "gather" else limits.jobs
    size = sum(shard.size for shard in planned)
    jobs = min(limits.jobs, useful_jobs(plan.request.jobs, tasks, size))
    with (
        Scratch(plan.request.tmp) as scratch,
        held_near(inputs_to_hold(plan, numbers), scratch, progress, whole=True),
        _executor(plan, jobs) as executor,
    ):
        spilled = None
        if plan.strategy == "spill":
            spilled = spill(plan, planned, executor, scratch, limits, progress)
        progress.start("writing", size, "bytes")
        results = run_tasks(
            executor,
            make_shard,
            (wrap(number, _gather_task(plan, number, spilled), gather) for number in numbers),
            advance=progress.advance,
            amount=lambda info: info.tar_bytes,
            together=useful_together(executor, [shard.address for shard in planned], size),
        )
        for info, shard in zip(results, planned, strict=True):
            yield info
            if spilled is not None:
                spilled.release(shard)
            how = ", copied by the store" if info.is_copy else ""
            progress.note(f"{shard.address}: {info.samples} samples, {info.size_bytes} bytes{how}")
        progress.finish()
        if spilled is not None:
            for one in plan.inputs:
                one.confirm()


def _transform_some(
    plan: ReorderPlan, numbers: Sequence[int], wrap: Wrap, totals: Totals, progress: Progress
) -> Generator[ShardInfo]:
    """The same where samples are transformed: slices of shards are tasks, and this process writes what they make, so
    that all processors are busy whatever the shape of the set."""
    transform = Transform(**plan.transform or {})
    samples = sum(plan.planned[number].samples for number in numbers)
    jobs = min(plan.request.jobs or default_jobs(), -(-samples // transform.batch) or 1)
    with (
        transform_folder(plan.request) as folder,
        lost_calls_named(folder),
        _transform_executor(plan, transform, jobs) as executor,
    ):
        is_here = any(map(is_of_this_process, [plan.request.tmp or "", *plan.shards.addresses]))
        slices, tasks = Slices(transform, folder), dict[int, GatherTask]()
        progress.start("mapping", samples, "samples")

        def all_slices() -> Iterator[SliceTask]:
            for number in numbers:
                tasks[number] = _gather_task(plan, number, None)
                for one in slices.of(number, tasks[number]):
                    yield one.held() if is_here else one

        def heard() -> Iterator[SliceResult]:
            for result in run_tasks(executor, transform_slice, all_slices()):
                slices.heard(result)
                totals.add(result)
                progress.advance(result.taken)
                yield result

        def shard_tasks() -> Iterator[ShardTask]:
            for number, results in groupby(heard(), key=attrgetter("shard")):
                yield wrap(number, tasks.pop(number), partial(write_slices, results))

        with make_executor(1) as here:
            for info in run_tasks(here, make_shard, shard_tasks()):
                progress.note(f"{info.name}: {info.samples} samples, {info.size_bytes} bytes")
                yield info
        progress.finish()
    for failure in totals.failures:
        progress.warn(failure)
    if kept_as_they_were := totals.counts.get(KEPT):
        progress.warn(f"kept {kept_as_they_were} samples as they were, because their calls failed")


def _transform_executor(plan: ReorderPlan, transform: Transform, jobs: int) -> Executor:
    if transform.kind != "python" or plan.request.engine is not None:
        return _executor(plan, jobs)
    return plan.workers or separate_executor(jobs)


def _executor(plan: ReorderPlan, jobs: int) -> Executor:
    return make_executor(1 if plan.stays_here else jobs, plan.request.engine)


def _gather_task(plan: ReorderPlan, number: int, spilled: SpillLayout | None) -> GatherTask:
    """What is copied into shard ``number`` of a plan: its own samples, and the inputs that these lie in. ``spilled``
    must live until it has run."""
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


def _shard_task(
    plan: ReorderPlan,
    mark: PlanMark,
    kept: Kept,
    number: int,
    given: GatherTask | PackTask,
    make: Callable[[Any], Later[ShardInfo]],
) -> ShardTask:
    """What makes shard ``number`` of a plan, once."""
    request = plan.request
    witness = Witness(mark, number, posted=request.post is None)
    settings = request.settings._replace(
        witness=witness.leave,
        # Only a shard of ours is replaced unasked.
        force=request.settings.force or number in kept.again,
        # Other machines may know the claim's folder by other numbers.
        ticket=plan.parts[plan.planned[number].part].output.settings.ticket
        if request.engine is None
        else None,
    )
    return ShardTask(given._replace(settings=settings), make, witness, request.post)


def finish_plan(
    plan: ReorderPlan, shards: Mapping[int, ShardInfo], kept: Kept, totals: Totals | None = None
) -> ReorderReport:
    """Write the manifests that are not there yet. ``shards`` has what was made or kept, by the number of the task;
    ``totals`` what a transform left out."""
    written = [shards[task] for task in range(len(plan.planned))]
    if plan.transform is None:
        _check_whole(plan, written)
    else:
        check_transformed(plan, totals or Totals(), is_all=not kept.shards)
    of_parts: list[list[ShardInfo]] = [[] for _ in plan.parts]
    for info, shard in zip(written, plan.planned, strict=True):
        of_parts[shard.part].append(info)
    for part in plan.parts:
        part.output.note = note_of_inputs(plan)
    manifests = [
        kept.manifests[number] if number in kept.manifests else part.output.finish(infos, **plan.made)
        for number, (part, infos) in enumerate(zip(plan.parts, of_parts, strict=True))
    ]
    tidy(plan)
    return ReorderReport(
        operation=plan.operation,
        samples_in=plan.counts.samples_in,
        samples=sum(manifest.samples for manifest in manifests),
        members=sum(manifest.members for manifest in manifests),
        bytes_in=plan.counts.bytes_in,
        bytes_out=sum(manifest.size_bytes for manifest in manifests),
        dropped=plan.counts.dropped if totals is None else sum_counts([plan.counts.dropped, totals.dropped]),
        ignored=plan.counts.ignored,
        strategy=plan.strategy,
        parts=tuple(part.name for part in plan.parts),
        manifests=tuple(manifests),
        joined=None if plan.joined is None else plan.joined.counts,
        kept=len(kept.shards),
        members_in=plan.counts.members_in,
        payload_bytes_in=plan.counts.payload_bytes_in,
        payload_bytes=sum(map(payload_bytes_of, written)),
    )


def payload_bytes_of(info: ShardInfo) -> int:
    """What is in the members of a shard."""
    return sum(total.size_bytes for total in info.fields.values())


def _check_whole(plan: ReorderPlan, written: Sequence[ShardInfo]) -> None:
    """What was written must be what was read, but for what was counted as left out, and what was asked to change."""
    if plan.joined is not None:
        return
    samples = sum(info.samples for info in written) + sum(plan.counts.dropped.values())
    pairs = [("samples", plan.counts.samples_in, samples)]
    if not (plan.counts.dropped or plan.request.selection.changes_members):
        pairs.append(("members", plan.counts.members_in, sum(info.members for info in written)))
        pairs.append(("payload bytes", plan.counts.payload_bytes_in, sum(map(payload_bytes_of, written))))
    for what, wanted, found in pairs:
        if found != wanted:
            raise _mistake(plan, f"{found} {what} were written or counted, {wanted} were read")


def check_made(plan: ReorderPlan, info: ShardInfo, shard: PlannedShard) -> None:
    """What was written must be what was planned: samples, members and bytes."""
    if plan.transform is not None:
        return
    size = info.size_bytes
    if kind_of_name(shard.address):
        # A receipt does not say it of a compressed shard.
        size = shard.size if info.tar_bytes < 0 else info.tar_bytes
    found = (info.samples, info.members, size)
    wanted = (shard.samples, shard.members, shard.size)
    if found != wanted:
        raise _mistake(
            plan,
            f"{info.name} has {found[0]} samples, {found[1]} members, {found[2]} bytes; "
            f"planned were {wanted[0]}, {wanted[1]}, {wanted[2]}",
        )


def _mistake(plan: ReorderPlan, message: str) -> WdsError:
    """The error of shards that are not what was planned: that of an index that the plan may have gone by and that does
    not say what its shard's headers say, or, where there is none, of a mistake of ours."""
    for one in plan.inputs:
        if not one.copy and not is_stream(one.address):
            with one.open() as source:
                complaints: list[str] = []
                find_index(one.address, source, complaints.append, whole=True)
            if complaints:
                return DataError(
                    "its index is stale: it does not say what the headers say",
                    code="stale-index",
                    shard=one.address,
                    hint="make the index again with `wds index`",
                )
    return EngineError(message, hint="this is a mistake in wdscli; please report it")
