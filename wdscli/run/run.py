"""The engine, second half: a plan becomes shards and manifests.

What it is: :func:`run_plan`, one task an output shard, and :func:`reorder`, which plans and runs. How: tasks are pure
functions of one argument and run wherever an executor runs them; a bounded window of them is in flight. At the end the
samples, members and bytes that were written are compared with those that were planned and those that were read, and
only then the manifests are written. It must not know why samples are reordered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from wdscli.copy.copier import GatherTask, gather
from wdscli.copy.spill import Layout, spill
from wdscli.errors import DataError, EngineError
from wdscli.executors import make_executor, run_tasks
from wdscli.model import ShardInfo
from wdscli.plan.jobs import useful_jobs
from wdscli.plan.join.parts import JoinCounts
from wdscli.plan.memory import limits_for
from wdscli.plan.orders import Order, Planner
from wdscli.plan.plan import make_plan
from wdscli.plan.planfile import mark_of
from wdscli.plan.reach import check_scratch
from wdscli.plan.request import PlanMark, PlannedShard, ReorderPlan, Request
from wdscli.plan.scratch import Scratch, is_of_this_process
from wdscli.progress import QUIET, Progress
from wdscli.run.making import Making, make
from wdscli.run.receipts import Witness
from wdscli.run.resuming import NOTHING, Kept, begin, tidy
from wdscli.selection import Selection
from wdscli.shards.claims import Claim, Ticket, claim_address
from wdscli.shards.find import find_index
from wdscli.shards.manifest import Manifest
from wdscli.storage import is_stream

if TYPE_CHECKING:
    from concurrent.futures import Executor


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
    """Shards that an earlier run had made."""
    members_in: int = 0
    payload_bytes_in: int = 0
    payload_bytes: int = 0

    @property
    def manifest(self) -> Manifest:
        """The manifest of an output that has no parts."""
        return self.manifests[0]

    @property
    def shards(self) -> int:
        """Shards written."""
        return sum(len(manifest.shards) for manifest in self.manifests)


def reorder(request: Request, order: Order | Planner, *, progress: Progress = QUIET) -> ReorderReport:
    """Plan and run. Raises UsageError, InputError, DataError, OutputError, EngineError."""
    with Scratch(request.tmp) as scratch:
        return run_plan(make_plan(request, order, scratch, progress=progress), progress=progress)


def run_plan(plan: ReorderPlan, *, progress: Progress = QUIET) -> ReorderReport:
    """Make the shards, then the manifests. Raises what a task raises; shards that are whole stay, without a
    manifest."""
    mark = mark_of(plan)
    with claimed(plan, mark):
        kept = begin(plan, mark, progress)
        return finish_plan(plan, _run_tasks(plan, mark, kept, progress), kept)


@contextmanager
def claimed(plan: ReorderPlan, mark: PlanMark) -> Iterator[None]:
    """Until the block ends nobody else writes this output; but who runs a stored plan may do so several times at once.
    Raises OutputError when another run is writing it."""
    with Claim.take(claim_address(plan.request.output), mark.text if plan.is_stored else "") as claim:
        for part in plan.parts:
            part.output.hold(claim)
        yield


def _run_tasks(plan: ReorderPlan, mark: PlanMark, kept: Kept, progress: Progress) -> list[ShardInfo]:
    """All shards, in order: those that are kept, and the others, made."""
    missing = [task for task in range(len(plan.planned)) if task not in kept.shards]
    made = dict(zip(missing, run_some(plan, mark, missing, kept, progress), strict=True))
    return [made[task] if task in made else kept.shards[task] for task in range(len(plan.planned))]


def run_some(
    plan: ReorderPlan, mark: PlanMark, numbers: Sequence[int], kept: Kept, progress: Progress
) -> list[ShardInfo]:
    """Make some of the shards, by their numbers. Raises what a task raises."""
    written: list[ShardInfo] = []
    if not numbers:
        return written
    planned = [plan.planned[number] for number in numbers]
    held = sum(0 if rows.order is None else rows.order.nbytes for rows in plan.row_lists)
    limits = limits_for(plan.request.memory, plan.request.jobs, held)
    is_stream = any(part.output.pattern.is_stream for part in plan.parts)
    if plan.strategy == "spill":
        check_scratch(plan.request)
    # The tasks of a first pass are others; an output that is one stream is written by this process.
    tasks = len(planned) if plan.strategy == "gather" else limits.jobs
    size = sum(shard.size for shard in planned)
    jobs = min(limits.jobs, useful_jobs(plan.request.jobs, tasks, size))
    with Scratch(plan.request.tmp) as scratch, _executor(plan, is_stream, jobs) as executor:
        spilled = None
        if plan.strategy == "spill":
            spilled = spill(plan, planned, executor, scratch, limits, progress)
        tasks_of_shards = gather_tasks(plan, planned, spilled)
        progress.start("writing", size, "bytes")
        makings = map(
            partial(_making, mark, kept, plan.request.post, _ticket(plan)), numbers, tasks_of_shards
        )
        results = run_tasks(
            executor, make, makings, advance=progress.advance, amount=lambda info: info.size_bytes
        )
        for info, shard in zip(results, planned, strict=True):
            check_made(plan, info, shard)
            written.append(info)
            if spilled is not None:
                spilled.release(shard)
            progress.note(f"{shard.address}: {info.samples} samples, {info.size_bytes} bytes")
        progress.finish()
        if spilled is not None:
            for one in plan.inputs:
                one.confirm()
    return written


def _executor(plan: ReorderPlan, is_stream: bool, jobs: int) -> Executor:
    ours = map(is_of_this_process, [plan.request.output, plan.request.tmp or "", *plan.shards.addresses])
    return make_executor(1 if is_stream or any(ours) else jobs, plan.request.engine)


def _ticket(plan: ReorderPlan) -> Ticket | None:
    """That of the claim, for tasks on this machine: others may know the folder by other numbers."""
    return plan.parts[0].output.settings.ticket if plan.parts and plan.request.engine is None else None


def _making(
    mark: PlanMark, kept: Kept, post: str | None, ticket: Ticket | None, number: int, task: GatherTask
) -> Making:
    """A task with its witness. Only a shard of ours is replaced unasked."""
    witness = Witness(mark, number, posted=post is None)
    force = task.settings.force or number in kept.again
    settings = task.settings._replace(witness=witness.leave, force=force, ticket=ticket)
    return Making(gather, task._replace(settings=settings), witness, post)


def gather_tasks(
    plan: ReorderPlan, shards: Sequence[PlannedShard], spilled: Layout | None = None
) -> Iterator[GatherTask]:
    """One task for each of ``shards``, some of those that are planned. ``spilled`` must live until they have run."""
    for shard in shards:
        task = gather_task(plan, shard)
        yield task if spilled is None else task._replace(spilled=spilled.spilled(shard))


def gather_task(plan: ReorderPlan, shard: PlannedShard) -> GatherTask:
    """What makes one shard: its own samples, and the inputs that these lie in."""
    samples = plan.ordered.slice(shard.first, shard.end)
    beside = None if plan.joined is None else plan.joined.part(shard.first, shard.end)
    if plan.request.engine is not None:
        samples, beside = samples.held(), beside and beside.held()
    used = samples.shard_numbers() if beside is None else beside.inputs(samples)
    return GatherTask(
        shard.address,
        plan.request.settings,
        {number: plan.inputs[number] for number in used},
        samples,
        Selection(field_rule=plan.request.selection.field_rule),
        plan.rekey,
        beside=beside,
    )


def finish_plan(plan: ReorderPlan, written: Sequence[ShardInfo], kept: Kept = NOTHING) -> ReorderReport:
    """Write the manifests that are not there yet. ``written`` has what each task returned, in the order of
    ``plan.planned``."""
    check_whole(plan, written)
    of_parts: list[list[ShardInfo]] = [[] for _ in plan.parts]
    for info, shard in zip(written, plan.planned, strict=True):
        of_parts[shard.part].append(info)
    manifests = []
    for number, (part, infos) in enumerate(zip(plan.parts, of_parts, strict=True)):
        there = kept.manifests.get(number)
        manifests.append(part.output.finish(infos, **plan.made) if there is None else there)
    tidy(plan)
    return ReorderReport(
        operation=plan.operation,
        samples_in=plan.samples_in,
        samples=sum(manifest.samples for manifest in manifests),
        members=sum(manifest.members for manifest in manifests),
        bytes_in=plan.bytes_in,
        bytes_out=sum(manifest.size_bytes for manifest in manifests),
        dropped=plan.dropped,
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


def check_whole(plan: ReorderPlan, written: Sequence[ShardInfo]) -> None:
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
            refuse_stale(plan)
            raise EngineError(
                f"{found} {what} were written or counted, {wanted} were read",
                hint="this is a mistake in wdscli; please report it",
            )


def refuse_stale(plan: ReorderPlan) -> None:
    """Raise DataError where an index that a plan may have gone by does not say what its shard's headers say."""
    for one in plan.inputs:
        if not one.copy and not is_stream(one.address):
            with one.open() as source:
                complaints: list[str] = []
                find_index(one.address, source, complaints.append, whole=True)
            if complaints:
                raise DataError(
                    "its index is stale: it does not say what the headers say",
                    code="stale-index",
                    shard=one.address,
                    hint="make the index again with `wds index`",
                )


def check_made(plan: ReorderPlan, info: ShardInfo, shard: PlannedShard) -> None:
    """What was written must be what was planned: samples, members and bytes."""
    found = (info.samples, info.members, info.size_bytes)
    wanted = (shard.samples, shard.members, shard.size)
    if found != wanted:
        refuse_stale(plan)
        raise EngineError(
            f"{info.name} has {found[0]} samples, {found[1]} members, {found[2]} bytes; "
            f"planned were {wanted[0]}, {wanted[1]}, {wanted[2]}",
            hint="this is a mistake in wdscli; please report it",
        )
