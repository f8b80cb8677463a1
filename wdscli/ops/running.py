"""The engine, second half: a plan becomes shards and manifests.

What it is: :func:`run_plan`, one task an output shard, and :func:`reorder`, which plans and runs. How: tasks are pure
functions of one argument and run wherever an executor runs them; a bounded window of them is in flight. At the end the
samples, members and bytes that were written are compared with those that were planned, and only then the manifests are
written. It must not know why samples are reordered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wdscli.errors import EngineError
from wdscli.executors import make_executor, run_tasks
from wdscli.model import ShardInfo
from wdscli.ops.beside import JoinCounts
from wdscli.ops.gather import GatherTask, gather
from wdscli.ops.memory import Limits, limits_for
from wdscli.ops.orders import Order, Planner
from wdscli.ops.reorder import PlannedShard, ReorderPlan, Request, make_plan, useful_jobs
from wdscli.ops.scratch import Scratch
from wdscli.ops.spill import spill
from wdscli.progress import QUIET, Progress
from wdscli.selection import Selection
from wdscli.shards.inputs import fingerprint_of
from wdscli.shards.manifest import Manifest

if TYPE_CHECKING:
    from concurrent.futures import Executor


@dataclass(frozen=True, slots=True)
class ReorderReport:
    """What was done. ``samples_in`` + ``repeated`` = ``samples`` + all of ``dropped``; ``manifests`` describe what was
    written, one a part."""

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
    repeated: int = 0
    """Samples that came again, under new keys."""

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
    for part in plan.parts:
        part.output.begin(plan.shards.addresses)
    written = _run_tasks(plan, progress)
    _compare(plan, written)
    return finish_plan(plan, written)


def _run_tasks(plan: ReorderPlan, progress: Progress) -> list[ShardInfo]:
    written: list[ShardInfo] = []
    limits = limits_for(plan.request.memory, plan.request.jobs)
    is_stream = any(part.output.pattern.is_stream for part in plan.parts)
    # The tasks of a first pass are others; an output that is one stream is written by this process.
    tasks = len(plan.planned) if plan.strategy == "gather" else limits.jobs
    jobs = min(limits.jobs, useful_jobs(plan.request.jobs, tasks, plan.size_bytes))
    with Scratch(plan.request.tmp) as scratch, make_executor(1 if is_stream else jobs) as executor:
        tasks_of_shards = gather_tasks(plan, plan.planned, executor, scratch, limits, progress)
        progress.start("writing", plan.size_bytes, "bytes")
        for info in run_tasks(executor, gather, tasks_of_shards, window=2 * jobs):
            written.append(info)
            progress.advance(info.size_bytes)
            progress.note(f"{info.name}: {info.samples} samples, {info.size_bytes} bytes")
        progress.finish()
    return written


def gather_tasks(
    plan: ReorderPlan,
    shards: Sequence[PlannedShard],
    executor: Executor,
    scratch: Scratch,
    limits: Limits,
    progress: Progress,
) -> Iterator[GatherTask]:
    """One task for each of ``shards``, some of those that are planned. When samples are spilled, that has been done
    when this returns; ``scratch`` and the executor must live until the tasks have run."""
    if plan.strategy != "spill":
        return (gather_task(plan, shard) for shard in shards)
    places = spill(plan, shards, executor, scratch, limits, progress)
    return (
        gather_task(plan, shard)._replace(spilled=spilled)
        for shard, spilled in zip(shards, places, strict=True)
    )


def gather_task(plan: ReorderPlan, shard: PlannedShard) -> GatherTask:
    """What makes one shard: its own samples, and the inputs that these lie in."""
    import numpy

    samples = plan.ordered.part(shard.first, shard.end)
    beside = None if plan.joined is None else plan.joined.part(shard.first, shard.end)
    used = samples.shards if beside is None else beside.inputs(samples)
    return GatherTask(
        shard.address,
        plan.request.settings,
        {
            number: plan.inputs[number]
            for number in numpy.flatnonzero(numpy.bincount(used)).tolist()
        },
        samples,
        Selection(field_rule=plan.request.selection.field_rule),
        plan.rekey,
        plan.request.preserve,
        beside=beside,
    )


def finish_plan(plan: ReorderPlan, written: Sequence[ShardInfo]) -> ReorderReport:
    """Write the manifests. ``written`` has what each task returned, in the order of ``plan.planned``."""
    fingerprints = [fingerprint_of(plan.shards)]
    of_parts: list[list[ShardInfo]] = [[] for _ in plan.parts]
    for info, shard in zip(written, plan.planned, strict=True):
        of_parts[shard.part].append(info)
    manifests = []
    for part, infos in zip(plan.parts, of_parts, strict=True):
        manifests.append(
            part.output.finish(
                infos, operation=plan.operation, options=plan.options, seed=plan.seed, inputs=fingerprints
            )
        )
    return ReorderReport(
        operation=plan.operation,
        samples_in=plan.samples_in,
        samples=sum(manifest.samples for manifest in manifests),
        members=sum(manifest.members for manifest in manifests),
        bytes_in=plan.bytes_in,
        bytes_out=sum(manifest.size_bytes for manifest in manifests),
        dropped=plan.dropped,
        repeated=plan.repeated,
        ignored=plan.ignored,
        strategy=plan.strategy,
        parts=tuple(part.name for part in plan.parts),
        manifests=tuple(manifests),
        joined=None if plan.joined is None else plan.joined.counts,
    )


def _compare(plan: ReorderPlan, written: Sequence[ShardInfo]) -> None:
    """What was written must be what was planned, shard by shard: samples, members and bytes."""
    for info, shard in zip(written, plan.planned, strict=True):
        found = (info.samples, info.members, info.size_bytes)
        wanted = (shard.samples, shard.members, shard.size)
        if found != wanted:
            raise EngineError(
                f"{info.name} has {found[0]} samples, {found[1]} members, {found[2]} bytes; "
                f"planned were {wanted[0]}, {wanted[1]}, {wanted[2]}",
                hint="this is a mistake in wdscli; please report it",
            )
