"""The engine behind ``shuffle``: survey, order, cut, gather.

What it is: :func:`make_plan`, which works on metadata alone, and :func:`run_plan`, which makes one task an output
shard. How: each input shard is surveyed once (in parallel when nothing is counted across shards), repeated keys are
found over all of them, the order and the cut come from ``plan.py``, the bytes from ``gather.py``. At the end the
samples, members and bytes that were written are compared with those that were planned. It must not know why samples
are reordered.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from wdscli.errors import EngineError, UsageError
from wdscli.executors import default_jobs, make_executor, run_tasks
from wdscli.model import ShardInfo
from wdscli.ops.gather import GatherTask, gather
from wdscli.ops.plan import Cuts, Plan, Samples, cut, gather_samples, oversized
from wdscli.ops.preserve import check_preserve
from wdscli.ops.rekey import DEFAULT, Rekey
from wdscli.ops.repeats import renamed, repeated_error, repeated_rows, without
from wdscli.ops.scratch import Input, Scratch, is_ours_alone, is_read_once, refused
from wdscli.ops.survey import Survey, SurveyTask, new_survey, survey
from wdscli.progress import QUIET, Progress
from wdscli.selection import Selection, SelectionState
from wdscli.selection.choice import OnError
from wdscli.shards.inputs import ShardSet, fingerprint_of, open_set
from wdscli.shards.manifest import Manifest
from wdscli.shards.output import OutputSet, ShardSettings
from wdscli.storage import is_local
from wdscli.storage.addresses import local_path

if TYPE_CHECKING:
    from wdscli.ops.plan import I64

OnDuplicate = Literal["error", "skip", "rekey"]
Order = Callable[[Samples], "I64"]

HEADERS_WORTH = 16 << 20
SMALL_BYTES = 64 << 20
"""Below this many bytes of output, starting processes costs more than they bring."""


class Request(NamedTuple):
    """What is asked of the engine, apart from order: the inputs, the output and the options all such commands share."""

    inputs: Sequence[str]
    output: str
    settings: ShardSettings = ShardSettings()
    cuts: Cuts = Cuts()
    selection: Selection = Selection()
    on_error: OnError = "stop"
    on_duplicate: OnDuplicate = "error"
    rekey: str | None = None
    preserve: bool = False
    """Keep the headers of members as they are."""
    jobs: int | None = None
    use_index: bool = True
    tmp: str | None = None
    """Where inputs that can be read only once are copied to; None for TMPDIR."""
    selection_text: Mapping[str, Any] | None = None
    """The selection as it was asked for, to be told in the manifest."""


@dataclass(frozen=True, slots=True)
class ReorderPlan:
    """What would be done: ``plan`` (samples in output order and cuts) and the counts on the way to it.

    ``dropped`` counts samples of the inputs that are not written, by reason; ``ignored`` members that belong to no
    sample, by reason; ``oversized`` samples larger than the limit for a shard, which get one of their own.
    """

    request: Request
    shards: ShardSet
    inputs: tuple[Input, ...]
    output: OutputSet
    plan: Plan
    rekey: Rekey | None
    samples_in: int
    bytes_in: int
    dropped: dict[str, int]
    ignored: dict[str, int]
    oversized: int
    strategy: str = "gather"

    @property
    def reason(self) -> str:
        """Why this strategy."""
        copies = sum(1 for one in self.inputs if one.copy)
        if not copies:
            return "all inputs can be read at any place"
        return f"{copies} of {len(self.inputs)} inputs copied first, because they can be read only once"

    @property
    def samples(self) -> int:
        """Samples to be written."""
        return self.plan.samples.total

    @property
    def counts(self) -> list[int]:
        """Samples of each output shard."""
        return [end - first for first, end in pairwise([0, *self.plan.ends])]

    @property
    def sizes(self) -> list[int]:
        """Bytes of each output shard."""
        return self.plan.sizes()


@dataclass(frozen=True, slots=True)
class ReorderReport:
    """What was done. ``samples_in`` = ``samples`` + all of ``dropped``; ``manifest`` describes what was written."""

    operation: str
    samples_in: int
    samples: int
    members: int
    bytes_in: int
    bytes_out: int
    dropped: dict[str, int]
    ignored: dict[str, int]
    strategy: str
    manifest: Manifest


def make_plan(
    request: Request, order: Order, scratch: Scratch | None = None, *, progress: Progress = QUIET
) -> ReorderPlan:
    """Survey the inputs, order and cut. Reads headers or indexes only, and writes nothing but copies of inputs that can
    be read only once; these go to ``scratch``, which must live until the plan has run.

    Raises UsageError, InputError, DataError, OutputError.
    """
    if request.preserve:
        check_preserve(request.selection, request.rekey, request.on_duplicate)
    shards = open_set(request.inputs)
    if request.selection.reads_stdin and "-" in shards.addresses:
        raise UsageError("standard input cannot hold both keys and a shard", hint="--keys-from FILE")
    output = OutputSet(request.output, request.settings)
    output.check(shards.addresses)
    cuts = _cuts(request.cuts, output)
    rekey = Rekey.parse(request.rekey) if request.rekey is not None else None
    state = request.selection.new_state(request.on_error)
    template = SurveyTask(
        Input(""),
        request.settings.form,
        request.selection,
        rekey if request.on_duplicate != "rekey" else None,
        request.use_index,
        request.on_error,
        request.preserve,
    )
    tasks = _survey_tasks(shards.addresses, template, scratch)
    surveys = _surveys(tasks, state, request.jobs, progress)
    inputs = tuple(map(Input, shards.addresses, [found.copy for found in surveys]))
    for message in [*_warnings(surveys), *request.selection.remarks(state)]:
        progress.warn(message)
    samples = gather_samples(surveys)
    dropped = sum_counts([state.dropped, *(found.dropped for found in surveys)])
    samples, rekey = _without_repeats(samples, inputs, template, request.on_duplicate, rekey, dropped)
    written = samples.total
    samples = samples.take(order(samples))
    return ReorderPlan(
        request=request,
        shards=shards,
        inputs=inputs,
        output=output,
        plan=Plan(samples, cut(samples.out_lengths, cuts)),
        rekey=rekey,
        samples_in=written + sum(dropped.values()),
        bytes_in=sum(found.size_bytes for found in surveys),
        dropped=dict(sorted(dropped.items())),
        ignored=sum_counts([found.ignored for found in surveys]),
        oversized=oversized(samples.out_lengths, cuts),
    )


def _cuts(cuts: Cuts, output: OutputSet) -> Cuts:
    """The cuts that go with the output's pattern: a single file is one shard."""
    if output.pattern.single:
        if cuts != Cuts() and cuts.shards != 1:
            raise UsageError(
                f"{output.pattern.text} is one shard and cannot be cut",
                hint="name the shards: -o out-%06d.tar",
            )
        return Cuts(shards=1)
    return cuts.checked(output.pattern.count)


def _survey_tasks(
    addresses: Sequence[str], template: SurveyTask, scratch: Scratch | None
) -> list[SurveyTask]:
    """One task a shard, each with a place for a copy."""
    if scratch is None:
        for address in filter(is_read_once, addresses):
            raise refused(address)
        return [template._replace(input=Input(address)) for address in addresses]
    return [
        template._replace(input=Input(address), spool=scratch.place(number))
        for number, address in enumerate(addresses)
    ]


def _surveys(
    tasks: Sequence[SurveyTask],
    state: SelectionState,
    jobs: int | None,
    progress: Progress,
) -> list[Survey]:
    """One survey a shard. In this process when samples are counted across shards, or when there is little to do. A
    shard that comes after all that may be selected is not opened."""
    addresses = [task.address for task in tasks]
    progress.start("reading headers", len(tasks), "shards")
    found: list[Survey] = []
    # What only this process can read, no worker can.
    alone = any(map(is_ours_alone, addresses)) or not all(task.selection.is_trivial for task in tasks)
    workers = 1 if alone else _useful_jobs(jobs, len(tasks), _bytes_of(addresses))
    if workers == 1:
        for task in tasks:
            found.append(new_survey() if state.done else survey(task, state))
            progress.advance(1)
    else:
        with make_executor(workers) as executor:
            for one in run_tasks(executor, survey, tasks, window=2 * workers):
                found.append(one)
                progress.advance(1)
    progress.finish()
    return found


def _bytes_of(addresses: Sequence[str]) -> int:
    """The bytes of local inputs, a cheap guess at how much there is to do; remote ones count as much."""
    total = 0
    for address in addresses:
        try:
            total += os.stat(local_path(address)).st_size if is_local(address) else HEADERS_WORTH
        except OSError:
            continue
    return total


def _useful_jobs(jobs: int | None, tasks: int, size_bytes: int) -> int:
    """How many processes pay for their start: none for little work, never more than there are tasks."""
    wanted = default_jobs() if jobs is None else jobs
    if jobs is None and size_bytes < SMALL_BYTES:
        return 1
    return max(1, min(wanted, tasks))


def _warnings(surveys: Sequence[Survey]) -> list[str]:
    return [warning for found in surveys for warning in found.warnings]


def _without_repeats(
    samples: Samples,
    inputs: Sequence[Input],
    template: SurveyTask,
    on_duplicate: OnDuplicate,
    rekey: Rekey | None,
    dropped: dict[str, int],
) -> tuple[Samples, Rekey | None]:
    """The samples without repeated keys, by the policy; and the format by which workers make new keys."""
    pairs = repeated_rows(samples, inputs, template, first_only=on_duplicate == "error")
    if not pairs:
        return samples, rekey
    rows = [row for row, _ in pairs]
    if on_duplicate == "skip":
        dropped["duplicate-key"] = len(rows)
        return without(samples, rows), rekey
    if on_duplicate == "rekey":
        rekey = rekey or Rekey(DEFAULT)
        return renamed(samples, inputs, template, rows, rekey), rekey
    raise repeated_error(samples, inputs, template, pairs[0])


def sum_counts(parts: Sequence[dict[str, int]]) -> dict[str, int]:
    """Counts by reason, added up and sorted by reason."""
    total: dict[str, int] = {}
    for part in parts:
        for reason, count in part.items():
            total[reason] = total.get(reason, 0) + count
    return dict(sorted(total.items()))


def run_plan(
    planned: ReorderPlan,
    operation: str,
    *,
    seed: int | None = None,
    options: dict[str, Any],
    progress: Progress = QUIET,
) -> ReorderReport:
    """Make the shards, then the manifest. Raises what a task raises; shards that are whole stay, without a manifest."""
    planned.output.begin(planned.shards.addresses)
    total = sum(planned.sizes)
    progress.start("writing", total, "bytes")
    written: list[ShardInfo] = []
    jobs = (
        1
        if planned.output.pattern.is_stream
        else _useful_jobs(planned.request.jobs, len(planned.plan.ends), total)
    )
    with make_executor(jobs) as executor:
        for info in run_tasks(executor, gather, _tasks(planned), window=2 * jobs):
            written.append(info)
            progress.advance(info.size_bytes)
            progress.note(f"{info.name}: {info.samples} samples, {info.size_bytes} bytes")
    progress.finish()
    _compare(planned, written)
    manifest = planned.output.finish(
        written, operation=operation, options=options, seed=seed, inputs=[fingerprint_of(planned.shards)]
    )
    return ReorderReport(
        operation=operation,
        samples_in=planned.samples_in,
        samples=manifest.samples,
        members=manifest.members,
        bytes_in=planned.bytes_in,
        bytes_out=manifest.size_bytes,
        dropped=planned.dropped,
        ignored=planned.ignored,
        strategy=planned.strategy,
        manifest=manifest,
    )


def _tasks(planned: ReorderPlan) -> Iterator[GatherTask]:
    """One task a shard. Each gets all inputs, and only its own samples."""
    for number, samples in enumerate(planned.plan.shards()):
        yield GatherTask(
            planned.output.address(number),
            planned.request.settings,
            planned.inputs,
            samples,
            Selection(field_rule=planned.request.selection.field_rule),
            planned.rekey,
            planned.request.preserve,
        )


def _compare(planned: ReorderPlan, written: Sequence[ShardInfo]) -> None:
    """What was written must be what was planned, shard by shard: samples and bytes."""
    for info, count, size in zip(written, planned.counts, planned.sizes, strict=True):
        if (info.samples, info.size_bytes) != (count, size):
            raise EngineError(
                f"{info.name} has {info.samples} samples in {info.size_bytes} bytes, planned were {count} in {size}",
                hint="this is a mistake in wdscli; please report it",
            )


def shaping_options(request: Request) -> dict[str, Any]:
    """The options that shape the result, as the manifest tells them; those left at their default are not named."""
    given: dict[str, Any] = {
        "max_count": request.cuts.max_count,
        "max_size": request.cuts.max_size,
        "shards": request.cuts.shards,
        "on_duplicate": None if request.on_duplicate == "error" else request.on_duplicate,
        "rekey": request.rekey,
        "preserve": request.preserve or None,
        "mtime": request.settings.form.mtime or None,
        "long_names": None if request.settings.form.long_names == "pax" else request.settings.form.long_names,
        **(request.selection_text or {}),
    }
    return {name: value for name, value in given.items() if value is not None}
