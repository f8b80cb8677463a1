"""A plan, executed: one task an output shard, and then the manifests.

What it is: :func:`run_plan`, and :func:`reorder`, which plans and runs; :func:`make_shard` is what runs in a worker.
How: tasks are pure functions of one argument and run wherever an executor runs them, also twice; a bounded window of
them is in flight. At the end the
samples, members and bytes that were written are compared with those that were planned and those that were read, and
only then the manifests are written. It must not know why samples are reordered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from wdscli.copy.copier import GatherTask, gather
from wdscli.copy.spill import SpillLayout, spill
from wdscli.errors import DataError, EngineError, OutputExistsError, WdsError
from wdscli.executors import default_jobs, make_executor, run_tasks, useful_jobs
from wdscli.model import ShardInfo
from wdscli.plan.cut import PlannedShard
from wdscli.plan.inputs import is_of_this_process
from wdscli.plan.join.joined import JoinCounts
from wdscli.plan.orders import Order
from wdscli.plan.plan import ReorderPlan, sum_counts
from wdscli.plan.planfile import mark_of
from wdscli.plan.request import PlanMark, Request
from wdscli.plan.scratch import Scratch
from wdscli.plan.strategy import check_scratch, limits_for
from wdscli.progress import QUIET, Progress
from wdscli.run.kept_plan import bring, finished_set, keep_plan, note_of_inputs, plan_of_run
from wdscli.run.post_hook import run_post
from wdscli.run.receipts import Witness, check_shard, read_receipt
from wdscli.run.resume import Kept, begin, tidy
from wdscli.run.unchanged import check_replaceable, leave_mark, stamped
from wdscli.selection import Selection
from wdscli.shards.claims import Claim, claim_address
from wdscli.shards.manifest import Manifest
from wdscli.shards.reading import find_index
from wdscli.shards.writing import ShardSettings
from wdscli.storage import is_stream
from wdscli.storage.blocks import kind_of_name
from wdscli.transform.shards import check_transformed, transform_folder, write_slices
from wdscli.transform.slices import KEPT, SliceResult, Slices, SliceTask, Totals, transform_slice
from wdscli.transform.transform import Transform


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
    if not request.if_changed:
        return request, finished_before(request, order)
    found = stamped(request, order, dry_run=dry_run)
    return found.request, unchanged_report(order.operation, found.standing) if found.standing else None


def unchanged_report(operation: str, standing: Mapping[str, Manifest]) -> ReorderReport:
    """The report of sets that did not have to be made."""
    manifests = tuple(standing.values())
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
        parts=tuple(standing),
        manifests=manifests,
        kept=sum(len(one.shards) for one in manifests),
        members_in=members,
        payload_bytes_in=payload_bytes,
        payload_bytes=payload_bytes,
        is_unchanged=True,
    )


def finished_before(request: Request, order: Order) -> ReorderReport | None:
    """What ``--resume`` finds of a set that is complete, by manifests and sizes alone: the one that was written tells
    of these options and of all samples of the inputs. None where that cannot be told so, and where all files are of
    this machine."""
    found = finished_set(request, order)
    if found is None:
        return None
    manifest = found.manifest
    payload_bytes = sum(map(payload_bytes_of, manifest.shards))
    return ReorderReport(
        operation=order.operation,
        samples_in=manifest.samples,
        samples=manifest.samples,
        members=manifest.members,
        bytes_in=found.bytes_in,
        bytes_out=manifest.size_bytes,
        dropped={},
        ignored={},
        strategy="gather",
        parts=("",),
        manifests=(manifest,),
        kept=len(manifest.shards),
        members_in=manifest.members,
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
        kept = begin(plan, mark, progress)
        for part in plan.parts if plan.request.stamp else ():
            leave_mark(part.output)
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
        yield


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
    if plan.transform is not None:
        transform = Transform(**plan.transform)
        return _transform_some(plan, mark, numbers, kept, transform, totals or Totals(), progress)
    planned = [plan.planned[number] for number in numbers]
    held = sum(0 if rows.order is None else rows.order.nbytes for rows in plan.row_lists)
    limits = limits_for(plan.request.memory, plan.request.jobs, held)
    if plan.strategy == "spill":
        check_scratch(plan.request)
    # The tasks of a first pass are others; an output that is one stream is written by this process.
    tasks = len(planned) if plan.strategy == "gather" else limits.jobs
    size = sum(shard.size for shard in planned)
    jobs = min(limits.jobs, useful_jobs(plan.request.jobs, tasks, size))
    with Scratch(plan.request.tmp) as scratch, _executor(plan, jobs) as executor:
        plan, spilled = bring(plan, numbers, scratch, executor), None
        if plan.strategy == "spill":
            spilled = spill(plan, planned, executor, scratch, limits, progress)
        progress.start("writing", size, "bytes")
        results = run_tasks(
            executor,
            make_shard,
            (_task(plan, mark, number, kept, spilled) for number in numbers),
            advance=progress.advance,
            amount=lambda info: info.tar_bytes,
        )
        for info, shard in zip(results, planned, strict=True):
            check_made(plan, info, shard)
            written.append(info)
            if spilled is not None:
                spilled.release(shard)
            how = ", copied by the store" if info.is_copy else ""
            progress.note(f"{shard.address}: {info.samples} samples, {info.size_bytes} bytes{how}")
        progress.finish()
        if spilled is not None:
            for one in plan.inputs:
                one.confirm()
    return written


def _transform_some(
    plan: ReorderPlan,
    mark: PlanMark,
    numbers: Sequence[int],
    kept: Kept,
    transform: Transform,
    totals: Totals,
    progress: Progress,
) -> list[ShardInfo]:
    """The same where samples are transformed: slices of shards are tasks, and this process writes what they make, so
    that all processors are busy whatever the shape of the set."""
    samples = sum(plan.planned[number].samples for number in numbers)
    jobs = min(plan.request.jobs or default_jobs(), -(-samples // transform.batch) or 1)
    written: list[ShardInfo] = []
    with transform_folder(plan.request) as folder, _executor(plan, jobs) as executor:
        slices, tasks = Slices(transform, folder), dict[int, ShardTask]()
        progress.start("mapping", samples, "samples")

        def all_slices() -> Iterator[SliceTask]:
            for number in numbers:
                tasks[number] = _task(plan, mark, number, kept, None)
                yield from slices.of(number, tasks[number].gather)

        def heard() -> Iterator[SliceResult]:
            for result in run_tasks(executor, transform_slice, all_slices()):
                slices.heard(result)
                totals.add(result)
                progress.advance(result.taken)
                yield result

        for number, results in groupby(heard(), key=attrgetter("shard")):
            written.append(make_shard(tasks.pop(number), partial(write_slices, results)))
            progress.note(
                f"{written[-1].name}: {written[-1].samples} samples, {written[-1].size_bytes} bytes"
            )
        progress.finish()
    for failure in totals.failures:
        progress.warn(failure)
    if kept_as_they_were := totals.counts.get(KEPT):
        progress.warn(f"kept {kept_as_they_were} samples as they were, because their calls failed")
    return written


def _executor(plan: ReorderPlan, jobs: int) -> Executor:
    addresses = [plan.request.output, plan.request.tmp or "", *plan.shards.addresses]
    stays_here = any(part.output.pattern.is_stream for part in plan.parts)
    return make_executor(
        1 if stays_here or any(map(is_of_this_process, addresses)) else jobs, plan.request.engine
    )


class ShardTask(NamedTuple):
    """What a worker does for one shard: it makes it, with a witness that leaves the receipt, and runs the command
    ``post`` for it once it has its name."""

    gather: GatherTask
    witness: Witness
    post: str | None = None


def _task(
    plan: ReorderPlan, mark: PlanMark, number: int, kept: Kept, spilled: SpillLayout | None
) -> ShardTask:
    """What makes shard ``number`` of a plan: its own samples, and the inputs that these lie in. ``spilled`` must live
    until it has run."""
    shard, request = plan.planned[number], plan.request
    samples = plan.ordered.slice(shard.first, shard.end)
    beside = None if plan.joined is None else plan.joined.part(shard.first, shard.end)
    if request.engine is not None:
        samples, beside = samples.held(), beside and beside.held()
    used = samples.shard_numbers() if beside is None else beside.inputs(samples)
    witness = Witness(mark, number, posted=request.post is None)
    settings = request.settings._replace(
        witness=witness.leave,
        # Only a shard of ours is replaced unasked.
        force=request.settings.force or number in kept.again,
        # Other machines may know the claim's folder by other numbers.
        ticket=plan.parts[shard.part].output.settings.ticket if request.engine is None else None,
    )
    task = GatherTask(
        shard.address,
        settings,
        {number: plan.inputs[number] for number in used},
        samples,
        Selection(field_rule=request.selection.field_rule),
        plan.rekey,
        None if spilled is None else spilled.spilled(shard),
        beside,
    )
    return ShardTask(task, witness, request.post)


def make_shard(task: ShardTask, make: Callable[[GatherTask], ShardInfo] | None = None) -> ShardInfo:
    """Make one shard of a plan, once (:func:`make_once`), by the copier unless something else is named."""
    given, chosen = task.gather, make or gather

    def made(settings: ShardSettings) -> ShardInfo:
        return chosen(given._replace(settings=settings))

    return make_once(given.address, given.settings, made, task.witness, task.post)


def make_once(
    address: str,
    settings: ShardSettings,
    make: Callable[[ShardSettings], ShardInfo],
    witness: Witness,
    post: str | None,
) -> ShardInfo:
    """Make one shard, once: a task may be run twice (a scheduler that lost a worker, an array job that was sent again),
    so a shard that is there already is a success when an earlier attempt of the same plan has made it, and an error
    when anybody else has. Raises what ``make`` raises, and EngineError when the command that follows fails; the shard
    stays."""
    try:
        info = run_post(post, address, make(settings))
    except OutputExistsError:
        receipt = read_receipt(address)
        if receipt is None or receipt.mark != witness.mark:
            raise
        state = check_shard(receipt.check(address, settings.form))
        if state == "other":
            raise
        if state == "whole" and receipt.posted:
            return receipt.shard
        info = run_post(post, address, make(settings._replace(force=True)))
    if not witness.posted:
        settings.check_folder(address)
        witness.done(address)
    return info


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
        samples_in=plan.samples_in,
        samples=sum(manifest.samples for manifest in manifests),
        members=sum(manifest.members for manifest in manifests),
        bytes_in=plan.bytes_in,
        bytes_out=sum(manifest.size_bytes for manifest in manifests),
        dropped=plan.dropped if totals is None else sum_counts([plan.dropped, totals.dropped]),
        ignored=plan.ignored,
        strategy=plan.strategy,
        parts=tuple(part.name for part in plan.parts),
        manifests=tuple(manifests),
        joined=None if plan.joined is None else plan.joined.counts,
        kept=len(kept.shards),
        members_in=plan.members_in,
        payload_bytes_in=plan.payload_bytes_in,
        payload_bytes=sum(map(payload_bytes_of, written)),
    )


def payload_bytes_of(info: ShardInfo) -> int:
    """What is in the members of a shard."""
    return sum(total.size_bytes for total in info.fields.values())


def _check_whole(plan: ReorderPlan, written: Sequence[ShardInfo]) -> None:
    """What was written must be what was read, but for what was counted as left out, and what was asked to change."""
    if plan.joined is not None:
        return
    samples = sum(info.samples for info in written) + sum(plan.dropped.values())
    pairs = [("samples", plan.samples_in, samples)]
    if not (plan.dropped or plan.request.selection.changes_members):
        pairs.append(("members", plan.members_in, sum(info.members for info in written)))
        pairs.append(("payload bytes", plan.payload_bytes_in, sum(map(payload_bytes_of, written))))
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
