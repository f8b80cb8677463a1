"""Runs a plan: one task per output shard, and then the manifests.

What it is: :func:`run_plan`, and :func:`reorder`, which plans and runs. How: shards that exist already are kept
(:mod:`wdscli.run.existing`), the others are made by tasks (:mod:`wdscli.run.tasks`), which are functions of one
argument and may run twice. At the end the samples, members and bytes written are compared with those planned and those
read, and only then the manifests are written. It must not know why samples are reordered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from wdscli.errors import DataError, EngineError, WdsError
from wdscli.executors import (
    run_tasks,
)
from wdscli.model import PendingCommit, ShardInfo
from wdscli.plan.cut import PlannedShard
from wdscli.plan.join.joined import JoinCounts
from wdscli.plan.orders import Order
from wdscli.plan.plan import ReorderPlan, sum_counts
from wdscli.plan.planfile import mark_of
from wdscli.plan.request import PlanMark, Request
from wdscli.plan.scratch import Scratch
from wdscli.progress import QUIET, Progress
from wdscli.run.existing import Existing, check_replaceable, find_existing, find_finished, tidy
from wdscli.run.input_versions import note_of_inputs
from wdscli.run.plan_cache import keep_plan, plan_of_run
from wdscli.run.receipts import ReceiptWriter, ShardTask, make_shard
from wdscli.run.tasks import tasks_of
from wdscli.shards.claims import OutputLock, lock_address
from wdscli.shards.manifest import Manifest
from wdscli.shards.reading import find_index
from wdscli.shown import shown
from wdscli.storage import is_stream
from wdscli.storage.blocks import kind_of_name
from wdscli.transform.shards import check_transformed
from wdscli.transform.slices import Totals


@dataclass(frozen=True, slots=True)
class ReorderReport:
    """What was read and written. ``samples_in`` = ``samples`` + all of ``dropped``; ``manifests`` describe the output,
    one a part. Payload bytes are those in members, without headers and padding. ``kept`` counts shards of an earlier
    run. ``is_unchanged`` means that nothing was done, because ``--if-changed`` found the set up to date."""

    operation: str
    samples_in: int
    members_in: int
    payload_bytes_in: int
    bytes_in: int
    dropped: dict[str, int]
    ignored: dict[str, int]
    strategy: str
    parts: tuple[str, ...]
    manifests: tuple[Manifest, ...]
    joined: JoinCounts | None = None
    kept: int = 0
    is_unchanged: bool = False

    @property
    def manifest(self) -> Manifest:
        """The manifest of an output that has no parts."""
        return self.manifests[0]

    @property
    def shards(self) -> int:
        return sum(len(manifest.shards) for manifest in self.manifests)

    @property
    def samples(self) -> int:
        return sum(manifest.samples for manifest in self.manifests)

    @property
    def members(self) -> int:
        return sum(manifest.members for manifest in self.manifests)

    @property
    def payload_bytes(self) -> int:
        return sum(map(_payload_bytes, self.manifests))

    @property
    def bytes_out(self) -> int:
        return sum(manifest.size_bytes for manifest in self.manifests)


def _payload_bytes(manifest: Manifest) -> int:
    return sum(map(payload_bytes_of, manifest.shards))


def reorder(
    request: Request,
    order: Order,
    *,
    progress: Progress = QUIET,
    planned: Callable[[ReorderPlan], None] = lambda plan: None,
) -> ReorderReport:
    """Plan and run; ``planned`` is called with the plan and may refuse it. Raises UsageError, InputError, DataError,
    OutputError, EngineError."""
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
    """The request to carry out, and the report if the whole set exists already. Raises UsageError and InputError for
    inputs that ``--if-changed`` cannot check."""
    request, found = find_finished(request, order, dry_run=dry_run)
    if found is None:
        return request, None
    manifests = tuple(found.manifests.values())
    report = ReorderReport(
        operation=order.operation,
        samples_in=sum(one.samples for one in manifests),
        bytes_in=found.bytes_in,
        dropped={},
        ignored={},
        strategy="gather",
        parts=found.parts,
        manifests=manifests,
        kept=sum(len(one.shards) for one in manifests),
        members_in=sum(one.members for one in manifests),
        payload_bytes_in=sum(map(_payload_bytes, manifests)),
        is_unchanged=request.stamp is not None,
    )
    return request, report


def run_plan(plan: ReorderPlan, *, progress: Progress = QUIET) -> ReorderReport:
    """Make the shards, then the manifests. Raises the errors of tasks; whole shards stay, without a manifest."""
    mark = mark_of(plan)
    for part in plan.parts if plan.request.if_changed else ():
        check_replaceable(part.output, plan.operation)
    with claimed(plan, mark):
        kept = find_existing(plan, mark, progress)
        missing = [task for task in range(len(plan.planned)) if task not in kept.shards]
        if missing and plan.mark is None:
            keep_plan(plan)
        totals = Totals()
        made = dict(zip(missing, run_some(plan, mark, missing, kept, progress, totals), strict=True))
        return finish_plan(plan, {**kept.shards, **made}, kept, totals)


@contextmanager
def claimed(plan: ReorderPlan, mark: PlanMark) -> Iterator[None]:
    """Hold the output lock. Several runs of one stored plan may share it. Raises OutputError if another run is writing
    the output."""
    with OutputLock.take(lock_address(plan.request.output), mark.text if plan.is_stored else "") as claim:
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
    kept: Existing,
    progress: Progress,
    totals: Totals | None = None,
) -> list[ShardInfo]:
    """Make some shards, by number. ``totals`` counts the samples that a transform leaves out. Raises the errors of
    tasks."""
    if not numbers:
        return []
    written = []
    with tasks_of(plan, numbers, totals or Totals(), progress) as work:
        made = run_tasks(
            work.executor,
            make_shard,
            (_shard_task(plan, mark, kept, number, *task) for number, task in zip(numbers, work.tasks)),
            window=work.window,
            advance=work.advance,
            amount=lambda info: info.tar_bytes,
            together=work.together,
        )
        with closing(made):
            for number, info in zip(numbers, made, strict=True):
                shard = plan.planned[number]
                check_made(plan, info, shard)
                written.append(info)
                if work.release is not None:
                    work.release(shard)
                how = ", copied by the store" if info.is_copy else ""
                progress.note(f"{shown(shard.address)}: {info.samples} samples, {info.size_bytes} bytes{how}")
        progress.finish()
    return written


def _shard_task(
    plan: ReorderPlan,
    mark: PlanMark,
    kept: Existing,
    number: int,
    given: Any,
    make: Callable[[Any], PendingCommit[ShardInfo]],
) -> ShardTask:
    """The task that makes shard ``number`` of a plan and leaves its receipt."""
    request = plan.request
    witness = ReceiptWriter(mark, number, posted=request.post is None)
    settings = request.settings._replace(
        witness=witness.leave,
        # Without --force only this plan's own shards are replaced.
        force=request.settings.force or number in kept.again,
        # The lock's folder may have another inode number on other machines.
        ticket=plan.parts[plan.planned[number].part].output.settings.ticket
        if request.engine is None
        else None,
    )
    return ShardTask(given._replace(settings=settings), make, witness, request.post)


def finish_plan(
    plan: ReorderPlan, shards: Mapping[int, ShardInfo], kept: Existing, totals: Totals | None = None
) -> ReorderReport:
    """Write the missing manifests. ``shards`` are those made or kept, by task; ``totals`` counts what a transform left
    out. Raises DataError and EngineError if they are not what was planned."""
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
        bytes_in=plan.counts.bytes_in,
        dropped=plan.counts.dropped if totals is None else sum_counts([plan.counts.dropped, totals.dropped]),
        ignored=plan.counts.ignored,
        strategy=plan.strategy,
        parts=tuple(part.name for part in plan.parts),
        manifests=tuple(manifests),
        joined=None if plan.joined is None else plan.joined.counts,
        kept=len(kept.shards),
        members_in=plan.counts.members_in,
        payload_bytes_in=plan.counts.payload_bytes_in,
    )


def payload_bytes_of(info: ShardInfo) -> int:
    """Bytes in the members of a shard, without headers and padding."""
    return sum(total.size_bytes for total in info.fields.values())


def _check_whole(plan: ReorderPlan, written: Sequence[ShardInfo]) -> None:
    """Compare what was written with what was read, except samples left out and members that the selection changes.
    Raises EngineError or DataError."""
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
    """Compare samples, members and bytes of a shard with the plan. Raises EngineError or DataError."""
    if plan.transform is not None:
        return
    size = info.size_bytes
    if kind_of_name(shard.address):
        # A receipt does not have the tar bytes of a compressed shard.
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
    """The error of shards that differ from the plan: of a stale index that the plan may have used, else of a bug in
    wdscli."""
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
