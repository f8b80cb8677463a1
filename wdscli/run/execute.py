"""This module runs a plan: one task per output shard, and then the manifests.

:func:`reorder` makes a plan and runs it; :func:`run_plan` runs a plan. Existing shards are kept
(:mod:`wdscli.run.existing`). The tasks of a :class:`~wdscli.copy.maker.Maker` make the missing shards. A task is a
function of one argument, and may run twice. At the end, the maker compares the shards with the plan and with the totals
that were read. The manifests are written after this check.

If inputs are remote, the plan is kept in ``.wds/``, next to the receipts, until the manifest exists
(:func:`keep_plan`). So ``--resume`` needs no second survey. :func:`plan_of_run` uses a kept plan if the options are the
same and every input has the same size and version. Otherwise it surveys the inputs again.

:func:`run_tasks_of` runs some tasks of a stored plan, and :func:`finish` writes the manifest after all of them. Each
task leaves a receipt beside its shard, so that independent processes can share a plan. The last step reads the receipts
and writes the manifest that one command would have written.

This module does not know why samples are reordered, how shards are made, or what starts the tasks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from wdscli.copy.maker import Maker, payload_bytes_of
from wdscli.errors import EngineError, UsageError, WdsError
from wdscli.executors import run_together, useful_together
from wdscli.model import PendingCommit, ShardInfo
from wdscli.plan.cut import Outputs
from wdscli.plan.inputs import is_ours_alone
from wdscli.plan.orders import InputOrder, Order
from wdscli.plan.plan import Counts, ReorderPlan, make_plan, provenance_of, sum_counts
from wdscli.plan.planfile import ROW_BYTES, absolute_output, load_plan, write_plan
from wdscli.plan.request import PlanMark, Request
from wdscli.plan.scratch import Scratch
from wdscli.plan.table import JoinCounts
from wdscli.progress import QUIET, Progress
from wdscli.run.digests import same_inputs, shaping_mark
from wdscli.run.existing import (
    Existing,
    Run,
    check_replaceable,
    find_existing,
    find_shards,
    find_unchanged_sets,
    run_of,
    tidy,
    tidy_set,
)
from wdscli.run.receipts import Receipt, ShardTask, leave_receipt, make_shard
from wdscli.shards.inputs import open_sets
from wdscli.shards.locks import OutputLock, lock_address, receipt_address
from wdscli.shards.manifest import Manifest
from wdscli.shards.view import is_view
from wdscli.shards.writing import OutputSet
from wdscli.shown import shown
from wdscli.storage import exists, is_local
from wdscli.units import whole_number

MAX_SHARE = 20
"""A plan is kept if its size times this number is at most the size of the inputs."""
_NAMED_AT_MOST = 12
"""How many ranges of tasks a message names."""
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_SHARE = re.compile(r"([0-9]+)/([0-9]+)")


@dataclass(frozen=True, slots=True)
class ReorderReport(Counts):
    """The totals of input and output. ``samples_in`` = ``samples`` + the sum of ``dropped``. ``manifests`` describe the
    output, one manifest for each part. Payload bytes do not include headers and padding. ``kept`` counts shards of an
    earlier run. ``is_unchanged`` means that nothing was done, because ``--if-changed`` found the set up to date."""

    operation: str
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
    """Make a plan and run it. ``planned`` is called with the plan before it runs, and may raise an error to refuse it.
    Raises UsageError, InputError, DataError, OutputError, EngineError."""
    request, unchanged = unchanged_run(request, order)
    if unchanged is not None:
        return unchanged
    with Scratch(request.tmp) as scratch:
        plan = plan_of_run(request, order, scratch, progress)
        planned(plan)
        return run_plan(plan, progress=progress)


def unchanged_run(
    request: Request, order: Order, *, dry_run: bool = False
) -> tuple[Request, ReorderReport | None]:
    """Return the request to carry out, and a report if ``--if-changed`` finds the whole set up to date. Raises
    UsageError and InputError for inputs that ``--if-changed`` cannot check."""
    request, finished = find_unchanged_sets(request, order)
    if not finished:
        return request, None
    for output, manifest in finished if not dry_run else ():
        tidy_set(output, manifest)
    outputs, manifests = zip(*finished)
    samples = sum(manifest.samples for manifest in manifests)
    members = sum(manifest.members for manifest in manifests)
    counts = Counts(samples, samples, members, sum(map(_payload_bytes, manifests)), 0, {}, {}, 0)
    report = ReorderReport(
        **asdict(counts),
        operation=order.operation,
        strategy="gather",
        parts=tuple(output.part for output in outputs),
        manifests=manifests,
        kept=sum(len(manifest.shards) for manifest in manifests),
        is_unchanged=True,
    )
    return request, report


def run_plan(plan: ReorderPlan, maker: Maker | None = None, *, progress: Progress = QUIET) -> ReorderReport:
    """Make the shards, then the manifests. Raises the errors of tasks; finished shards then stay, without a manifest. A
    view has no tasks, and is written directly."""
    if is_view(plan.request.output):
        from wdscli.views.writing import write_views

        return _report(plan, plan.counts, write_views(plan))
    run = run_of(plan, progress, maker)
    for output in plan.contents.outputs if plan.request.if_changed else ():
        check_replaceable(output, plan.provenance.operation)
    with locked(run):
        if run.maker.rolls:
            from wdscli.run.rolling import write_rolled

            return finish_plan(*write_rolled(run, _shard_task))
        kept = find_existing(run)
        missing = [task for task in range(len(plan.contents.shards)) if task not in kept.shards]
        if missing and plan.mark is None:
            keep_plan(plan, run.mark)
        new_shards = dict(zip(missing, run_some(run, missing, kept), strict=True))
        return finish_plan(run, {**kept.shards, **new_shards}, kept)


@contextmanager
def locked(run: Run) -> Iterator[None]:
    """Hold the output lock. Several runs of the same stored plan may share it. Raises OutputError if another run is
    writing the output."""
    plan = run.plan
    with OutputLock.take(lock_address(plan.request.output), run.mark.text if plan.is_stored else "") as claim:
        for output in plan.contents.outputs:
            output.hold(claim)
        try:
            yield
        finally:
            for output in plan.contents.outputs if not plan.is_stored else ():
                output.withdraw()


def run_some(run: Run, numbers: Sequence[int], kept: Existing) -> list[ShardInfo]:
    """Make some shards, by number. Raises the errors of tasks."""
    if not numbers:
        return []
    written, progress, planned = [], run.progress, [run.contents.shards[number] for number in numbers]
    addresses, size = [shard.address for shard in planned], sum(shard.size_bytes for shard in planned)
    with run.maker.tasks(numbers, progress) as work:
        results = run_together(
            work.executor,
            make_shard,
            (_shard_task(run, kept, number, *task) for number, task in zip(numbers, work.tasks)),
            useful_together(work.executor, addresses, size),
            lambda info: info.tar_bytes,
            window=work.window,
            advance=work.advance,
        )
        try:
            with closing(results):
                for number, shard, info in zip(numbers, planned, results, strict=True):
                    run.maker.check_shard(number, info)
                    written.append(info)
                    if work.release is not None:
                        work.release(shard)
                    how = ", copied by the store" if info.is_copy else ""
                    progress.note(
                        f"{shown(shard.address)}: {info.samples} samples, {info.size_bytes} bytes{how}"
                    )
        except KeyboardInterrupt as interrupt:
            interrupt.args = (_finished_text(run, len(kept.shards) + len(written)),)
            raise
        progress.finish()
    return written


def _finished_text(run: Run, finished: int) -> str:
    """Return what an interrupted run says about its shards. The text is empty if the run cannot continue."""
    contents = run.contents
    is_lost = contents.outputs[0].manifest_address is None or any(map(is_ours_alone, contents.addresses))
    if not finished or is_lost:
        return ""
    how = "run the plan again" if run.plan.is_stored else "continue with --resume"
    return f"{finished} of {len(contents.shards)} shards are finished; {how}"


def _shard_task(
    run: Run, kept: Existing, number: int, maker_task: Any, make: Callable[[Any], PendingCommit[ShardInfo]]
) -> ShardTask:
    """Return the task that makes shard ``number`` of a plan and writes its receipt."""
    request, contents = run.plan.request, run.contents
    output = contents.outputs[0 if run.maker.rolls else contents.shards[number].part]
    settings = request.settings._replace(
        witness=partial(leave_receipt, partial(Receipt, run.mark, number, request.post is None)),
        # Without --force only this plan's own shards are replaced.
        force=request.settings.force or number in kept.again,
        # On other machines, the lock's folder may have another inode number.
        ticket=output.settings.ticket if request.engine is None else None,
    )
    return ShardTask(maker_task._replace(settings=settings), make, run.mark, request.post)


def finish_plan(run: Run, shards: Mapping[int, ShardInfo], kept: Existing) -> ReorderReport:
    """Write the missing manifests. ``shards`` are all made or kept shards, by task. Raises DataError and EngineError if
    they differ from the plan."""
    plan, contents = run.plan, run.contents
    run.maker.check_set([shards[task] for task in range(len(contents.shards))], has_made_all=not kept.shards)
    manifests = tuple(
        kept.manifests.get(number)
        or output.finish([shards[task] for task in own], **plan.provenance._asdict())
        for number, (output, own) in enumerate(zip(contents.outputs, contents.shards_of_outputs))
    )
    tidy(plan)
    counts = replace(
        plan.counts,
        samples=sum(manifest.samples for manifest in manifests),
        dropped=sum_counts([plan.counts.dropped, run.maker.dropped()]),
    )
    return _report(plan, counts, manifests, len(kept.shards))


def _report(plan: ReorderPlan, counts: Counts, manifests: Sequence[Manifest], kept: int = 0) -> ReorderReport:
    joined = plan.contents.joined
    return ReorderReport(
        **asdict(counts),
        operation=plan.provenance.operation,
        strategy=plan.choice.strategy,
        parts=tuple(output.part for output in plan.contents.outputs),
        manifests=tuple(manifests),
        joined=None if joined is None else joined.counts,
        kept=kept,
    )


def plan_of_run(request: Request, order: Order, scratch: Scratch, progress: Progress) -> ReorderPlan:
    """Return the plan for a run that follows immediately. Raises the errors of :func:`~wdscli.plan.plan.make_plan`."""
    output = _output_to_resume(request)
    if output is None or output.manifest_address is None:
        return make_plan(request, order, scratch, brings=True, progress=progress)
    # A new survey reports the fault, if the kept plan or the inputs have one.
    with suppress(WdsError):
        if order.is_repeatable and (kept := _kept_plan(request, order, output)) is not None:
            return kept
    # A complete set needs no payloads, so its inputs are not copied.
    return make_plan(request, order, scratch, brings=not exists(output.manifest_address), progress=progress)


def _output_to_resume(request: Request) -> OutputSet | None:
    """Return the output of a resumed run, or None if it is a stream or has several parts."""
    if not request.resume:
        return None
    outputs = Outputs(request.output, request.settings, may_exist=True)
    return None if outputs.is_stream or outputs.has_parts else outputs.set_of()


def keep_plan(plan: ReorderPlan, mark: PlanMark) -> None:
    """At the beginning of a run, store its plan if a survey would cost more. If the plan cannot be stored, continue
    without it."""
    contents = plan.contents
    manifest = contents.outputs[0].manifest_address
    is_far = not all(map(is_local, contents.addresses))
    is_known = all(source.stamp is not None and source.stamp.version for source in contents.inputs)
    is_small = plan.samples * ROW_BYTES * MAX_SHARE <= plan.counts.bytes_in
    if manifest is None or not (plan.is_repeatable and is_far and is_known and is_small):
        return
    contents = replace(contents, inputs=[source._replace(copy="") for source in contents.inputs])
    with suppress(WdsError):
        write_plan(replace(plan, contents=contents), mark, receipt_address(manifest), force=True)


def _kept_plan(request: Request, order: Order, output: OutputSet) -> ReorderPlan | None:
    """Return the plan that an earlier run has kept for ``output``, if options and inputs are the same. Raises
    WdsError."""
    if request.engine is not None or output.manifest_address is None:
        return None
    kept = load_plan(receipt_address(output.manifest_address), trust_addresses=True)
    shards, _ = open_sets(request.inputs, request.on_error, trust_addresses=request.trust_addresses)
    inputs = same_inputs(kept.contents.inputs, shards.addresses)
    if inputs is None or kept.request.output != absolute_output(request.output):
        return None
    contents = replace(
        kept.contents,
        outputs=(output,),
        shards=tuple(shard._replace(address=output.address(shard.number)) for shard in kept.contents.shards),
        inputs=inputs,
    )
    plan = replace(
        kept,
        request=request,
        provenance=provenance_of(request, order, shards)._replace(classes=kept.provenance.classes),
        contents=contents,
        choice=kept.choice._replace(reason="reusing the interrupted run's plan"),
        is_stored=False,
        is_repeatable=True,
        brings=not isinstance(order, InputOrder),
    )
    return plan if kept.mark is not None and shaping_mark(plan) == kept.mark.options else None


# Some tasks of a stored plan.


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


def run_tasks_of(
    plan: ReorderPlan, tasks: Sequence[int], *, progress: Progress = QUIET
) -> tuple[list[ShardInfo], list[ShardInfo]]:
    """Make the shards of some tasks. Return the new shards, and the shards that already existed. A shard of an earlier
    attempt is checked by reading it, and kept.

    Raises what :func:`run_plan` raises.
    """
    run = run_of(plan, progress)
    with locked(run):
        kept = find_shards(run, tasks)
        missing = [task for task in tasks if task not in kept.shards]
        return run_some(run, missing, kept), [*kept.shards.values()]


def finish(plan: ReorderPlan, address: str, *, progress: Progress = QUIET) -> ReorderReport:
    """Write the manifests after all tasks are done. Raises EngineError if a task is not done, and OutputExistsError.

    This function checks shards by receipt and size. :func:`run_plan` also reads the shards.
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
