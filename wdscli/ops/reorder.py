"""The engine behind ``split``, ``merge``, ``shuffle`` and ``sort``, first half: survey, order, cut.

What it is: :func:`make_plan`, which works on metadata alone (``running.py`` then runs the plan). How: each input shard
is surveyed once (in parallel when nothing is counted across shards), repeated keys are found over all of them, an
:class:`~wdscli.ops.orders.Order` arranges the samples, and ``plan.py`` cuts. It must not know why samples are
reordered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from wdscli.errors import UsageError
from wdscli.ops.absent import check_empty, check_named
from wdscli.ops.beside import Joined
from wdscli.ops.duplicates import Duplicates
from wdscli.ops.large import (
    Found,
    StoredSamples,
    arranged_on_disc,
    bounded,
    can_be_external,
    check_memory,
    is_too_large,
    stored_samples,
)
from wdscli.ops.limiting import REASON as LIMIT
from wdscli.ops.limiting import first_of_order, first_of_pool, first_on_disc, reading_selection
from wdscli.ops.memory import limits_for
from wdscli.ops.orders import Order, Part, Planner, Pool
from wdscli.ops.outputs import FIELD, Outputs
from wdscli.ops.plan import Cuts, cut, measure, oversized
from wdscli.ops.preserve import check_preserve
from wdscli.ops.reach import ALONE, STORED, away, check_reach
from wdscli.ops.rekey import DEFAULT, Rekey
from wdscli.ops.repeats import renamed, repeated_error, repeated_rows
from wdscli.ops.rounds import Naming, in_rounds
from wdscli.ops.rows import Ordered
from wdscli.ops.scratch import Input, Scratch, Stamp
from wdscli.ops.sifting import without_duplicates, without_repeated_keys
from wdscli.ops.strategy import Choice, Strategy, choose
from wdscli.ops.survey import Survey, SurveyTask, gather_samples
from wdscli.ops.surveying import survey_tasks, surveys_of
from wdscli.progress import QUIET, Progress
from wdscli.selection import Selection, SelectionState
from wdscli.selection.choice import OnError
from wdscli.shards.inputs import (
    ShardSet,
    fingerprint_of,
    known_samples,
    missing_samples,
    say_missing,
    whole_set,
)
from wdscli.shards.output import OutputSet, ShardSettings

if TYPE_CHECKING:
    from wdscli.ops.external import Stored
    from wdscli.ops.receipts import PlanMark

OnDuplicate = Literal["error", "skip", "rekey"]


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
    strategy: Strategy = "auto"
    memory: int | None = None
    """Bytes that all processes together may have resident; None for what the machine has to spare."""
    engine: str | None = None
    """Where tasks run: ``dask://HOST:PORT`` or another engine's URL; None for this machine, with ``jobs``."""
    post: str | None = None
    """A shell command to run for each shard once it has its name; ``{}`` in it is the shard."""
    resume: bool = False
    """Keep the shards that an earlier run of the same plan has made."""
    allow_empty: bool = False
    """Names that no sample has, and an output without samples, are no errors."""
    trust_addresses: bool = False
    """Whether manifests and fetched lists may name any shard."""
    plan_file: str | None = None
    """Where the plan is to be stored instead of being run; then it can hold nothing that only this process has."""


class PlannedShard(NamedTuple):
    """One shard to be made: samples ``first`` to ``end`` of the output order. ``part`` counts from 0, and ``number``
    the shard in its part; ``size`` is in bytes."""

    address: str
    part: int
    number: int
    first: int
    end: int
    size: int
    members: int

    @property
    def samples(self) -> int:
        return self.end - self.first


class PlannedPart(NamedTuple):
    """One set to be made; its name is empty where there is no ``{part}``."""

    name: str
    output: OutputSet


@dataclass(frozen=True, slots=True)
class ReorderPlan:
    """What would be done: the samples in output order, the shards they go to, and the counts on the way.

    ``dropped`` counts samples of the inputs that are not written, by reason; ``ignored`` members that belong to no
    sample, by reason; ``oversized`` samples larger than the limit for a shard, which get one of their own.
    """

    request: Request
    operation: str
    seed: int | None
    options: Mapping[str, Any]
    shards: ShardSet
    inputs: Sequence[Input]
    parts: tuple[PlannedPart, ...]
    planned: tuple[PlannedShard, ...]
    ordered: Ordered
    rekey: Rekey | None
    samples_in: int
    bytes_in: int
    dropped: dict[str, int]
    ignored: dict[str, int]
    oversized: int
    strategy: str = "gather"
    reason: str = "as the plan says"
    """Why this strategy."""
    fingerprint_in: str | None = None
    """That of the input set, for the manifest."""
    mark: PlanMark | None = None
    """The plan's own fingerprint, when it is known."""
    is_stored: bool = False
    """The plan was read from a file: others may run tasks of it at the same time."""
    joined: Joined | None = None
    """The further parts of samples that are joined."""
    duplicates: Duplicates | None = None
    """What was left out because it repeats others, where that was asked for."""
    repeated: int = 0
    """How many of the samples come again, under new keys."""
    members_in: int = 0
    """Members of all samples that were read."""
    payload_bytes_in: int = 0
    """What is in these."""

    @property
    def samples(self) -> int:
        """Samples to be written."""
        return self.ordered.total

    @property
    def row_lists(self) -> list[Ordered]:
        """All rows of the plan in output order: one list, or with a join one for each set."""
        return [self.ordered, *(self.joined.others if self.joined is not None else ())]

    @property
    def made(self) -> dict[str, Any]:
        """How the output is made, as its manifest tells it."""
        return {
            "operation": self.operation,
            "options": self.options,
            "seed": self.seed,
            "inputs": [self.fingerprint_in],
        }

    @property
    def size_bytes(self) -> int:
        """Bytes to be written, all shards together."""
        return sum(shard.size for shard in self.planned)


def make_plan(
    request: Request, order: Order | Planner, scratch: Scratch | None = None, *, progress: Progress = QUIET
) -> ReorderPlan:
    """Survey the inputs, order and cut. Reads headers or indexes only, and writes nothing but copies of inputs that can
    be read only once; these go to ``scratch``, which must live until the plan has run.

    Raises UsageError, InputError, DataError, OutputError.
    """
    if isinstance(order, Planner):
        return order.plan(request, scratch, progress=progress)
    if request.preserve:
        check_preserve(request.selection, request.rekey, request.on_duplicate)
    shards, sets = open_sets(request, progress)
    if request.selection.reads_stdin and "-" in shards.addresses:
        raise UsageError("standard input cannot hold both keys and a shard", hint="--keys-from FILE")
    outputs = Outputs(request.output, request.settings, may_exist=request.resume)
    check_reach(request, shards.addresses, is_stream=outputs.is_stream)
    outputs.check(None, shards.addresses)
    cuts = outputs.cuts(request.cuts)
    rekey = Rekey.parse(request.rekey) if request.rekey is not None else None
    selection = reading_selection(request, order)
    limit = request.selection.limit if selection.limit is None else None
    state = selection.new_state(request.on_error)
    template = SurveyTask(
        Input(""),
        request.settings.form,
        selection,
        rekey if request.on_duplicate != "rekey" else None,
        request.use_index,
        request.on_error,
        request.preserve,
        extract=order.extract,
    )
    limits = limits_for(request.memory, request.jobs)
    if limits.warning:
        progress.warn(limits.warning)
    tasks = survey_tasks(shards.addresses, template, None if away(request) else scratch)
    if request.on_error == "skip":
        tasks = counted(tasks, shards)
    # Where an order needs all samples at once, they may as well stay where they are.
    room = scratch if can_be_external(order) and request.engine is None else None
    if room is not None:
        tasks = bounded(tasks, room, limits)
    surveys = surveys_of(tasks, state, request.jobs, request.engine, limits.jobs, progress)
    inputs: Sequence[Input] = tuple(
        Input(address, found.copy, stamp=Stamp(found.size_bytes, found.version))
        for address, found in zip(shards.addresses, surveys, strict=True)
    )
    for message in [
        *(message for found in surveys for message in found.warnings),
        *request.selection.remarks(state),
    ]:
        progress.warn(message)
    _check_names(request, order, state, surveys, progress)
    lost = missing_samples(shards.missing)
    dropped = sum_counts([lost, state.dropped, *(found.dropped for found in surveys)])
    samples_in = sum(found.total for found in surveys) + sum(dropped.values())
    is_large = is_too_large(surveys, order, limits)
    if is_large and room is not None:
        pool = Pool(stored_samples(surveys, room, limits.plan), None, sets)
    else:
        if is_large and (message := check_memory(surveys, order)) and limits.given:
            progress.warn(message)
        pool = _pool(surveys, sets, order)
    pool, duplicates = without_duplicates(order, pool, surveys, inputs, template, dropped, progress)
    pool, rekey, gone = _without_repeats(pool, inputs, template, request.on_duplicate, rekey, dropped)
    naming = Naming(inputs, template, rekey)
    found = Found(pool.samples, surveys, gone, sets, naming)
    pool, cut_off = first_of_pool(
        order, pool, limit, found.values if pool.values is None else lambda: [pool.values or []]
    )
    if isinstance(pool.samples, StoredSamples):
        ordered, arranged = arranged_on_disc(order, found._replace(samples=pool.samples))
        ordered, arranged, behind = first_on_disc(ordered, arranged, len(inputs), limit)
    else:
        arranged, behind = first_of_order(order.arrange(pool), pool.samples.total, limit)
        ordered = Ordered(pool.samples, arranged.order)
    if cut_off + behind:
        dropped[LIMIT] = cut_off + behind
    for reason, count in arranged.dropped.items():
        dropped[reason] = dropped.get(reason, 0) + count
    repeated = 0
    if arranged.rounds is not None:
        repeated = int((arranged.rounds > 0).sum())
        ordered, inputs = in_rounds(ordered, arranged.rounds, naming)
    elif arranged.again is not None:
        repeated, inputs = arranged.again
    check_empty(ordered.total, request.selection, request.on_error, dropped, allow=request.allow_empty)
    parts, planned = planned_shards(outputs, arranged.parts, ordered, cuts, shards.addresses, order.operation)
    choice = choose(request.strategy, inputs[: len(shards.addresses)], ordered, request.tmp)
    if away(request):
        choice = Choice("gather", STORED if request.plan_file is not None else ALONE)
    return ReorderPlan(
        request=request,
        operation=order.operation,
        seed=order.seed,
        options={**order.options(), **shaping_options(request)},
        shards=shards,
        inputs=inputs,
        parts=parts,
        planned=planned,
        ordered=ordered,
        rekey=rekey,
        samples_in=samples_in,
        bytes_in=sum(found.size_bytes for found in surveys),
        dropped=dict(sorted(dropped.items())),
        ignored=sum_counts([found.ignored for found in surveys]),
        oversized=oversized(ordered, cuts),
        strategy=choice.strategy,
        reason=choice.reason,
        fingerprint_in=fingerprint_of(shards),
        duplicates=duplicates,
        repeated=repeated,
        members_in=sum(found.members for found in surveys),
        payload_bytes_in=sum(found.payload_bytes for found in surveys),
    )


def _check_names(
    request: Request, order: Order, state: SelectionState, surveys: Sequence[Survey], progress: Progress
) -> None:
    """Raise DataError for what was named and no sample has."""
    for found in surveys:
        state.sightings.merge(found.sightings)
    named = () if order.extract is None else order.extract.named
    check_named(request.selection.absences(state, named), allow=request.allow_empty, progress=progress)


def open_sets(request: Request, progress: Progress = QUIET) -> tuple[ShardSet, list[int]]:
    """The shards of all inputs, and for each shard the number of the input that named it. Raises InputNotFoundError
    when some that a manifest lists are gone; with ``on_error="skip"`` says so, and ``missing`` has them."""
    trusted = request.trust_addresses
    each = [whole_set([text], request.on_error, trust_addresses=trusted) for text in request.inputs]
    missing = tuple(gone for one in each for gone in one.missing)
    if missing:
        progress.warn(say_missing(missing))
    sets = [number for number, one in enumerate(each) for _ in one.addresses]
    if len(each) == 1:
        return each[0], sets
    return ShardSet([address for one in each for address in one.addresses], None, missing=missing), sets


def counted(tasks: Sequence[SurveyTask], shards: ShardSet) -> list[SurveyTask]:
    """The tasks, each with how many samples its shard should have, as far as manifests tell."""
    known = known_samples(shards)
    return [task._replace(known=known.get(task.address, -1)) for task in tasks]


def _pool(surveys: Sequence[Survey], sets: Sequence[int], order: Order) -> Pool:
    values = None
    if order.extract is not None:
        values = [value for found in surveys for value in found.values or ()]
    return Pool(gather_samples(surveys), values, sets)


def planned_shards(
    outputs: Outputs,
    parts: Sequence[Part] | None,
    ordered: Ordered,
    cuts: Cuts,
    inputs: Sequence[str],
    operation: str,
) -> tuple[tuple[PlannedPart, ...], tuple[PlannedShard, ...]]:
    """The sets and shards to be made. Raises UsageError when the output's name does not fit the parts, and
    OutputExistsError."""
    if outputs.has_parts and parts is None:
        raise UsageError(
            f"{FIELD} in {outputs.text} stands for a part, and this {operation} makes none",
            hint="wds split --ratio, --by or --by-map make parts",
        )
    if parts is not None and not outputs.has_parts:
        raise UsageError(f"{outputs.text} names one set, and there are parts", hint=f"-o '{FIELD}-%06d.tar'")
    made: list[PlannedPart] = []
    shards: list[PlannedShard] = []
    begin = 0
    for number, part in enumerate(parts if parts is not None else [Part("", ordered.total)]):
        made.append(PlannedPart(part.name, outputs.set_of(part.name or "part")))
        blocks = (
            ordered.column("out", at, min(at + (1 << 18), begin + part.samples))
            for at in range(begin, begin + part.samples, 1 << 18)
        )
        ends = [begin + end for end in cut(blocks, part.samples, cuts)]
        sizes = measure(ordered, [begin, *ends])
        for at, ((first, end), (size, members)) in enumerate(
            zip(pairwise([begin, *ends]), sizes, strict=True)
        ):
            address = made[-1].output.address(at)
            shards.append(PlannedShard(address, number, at, first, end, size, members))
        begin += part.samples
    for part_made in made if outputs.has_parts else ():
        part_made.output.check(inputs, may_exist=outputs.may_exist)
    return tuple(made), tuple(shards)


def _without_repeats(
    pool: Pool,
    inputs: Sequence[Input],
    template: SurveyTask,
    on_duplicate: OnDuplicate,
    rekey: Rekey | None,
    dropped: dict[str, int],
) -> tuple[Pool, Rekey | None, Stored | None]:
    """The samples without repeated keys, by the policy; the format by which workers make new keys; and the rows that
    were taken out of those on disc."""
    samples = pool.samples
    if on_duplicate == "skip" and isinstance(samples, StoredSamples):
        pool, gone = without_repeated_keys(pool, samples, inputs, template)
        if gone.total:
            dropped["duplicate-key"] = gone.total
        return pool, rekey, gone
    pairs = repeated_rows(samples, inputs, template, first_only=on_duplicate == "error")
    if not pairs:
        return pool, rekey, None
    rows = [row for row, _ in pairs]
    if on_duplicate == "skip":
        dropped["duplicate-key"] = len(rows)
        return pool.without(rows), rekey, None
    if on_duplicate == "rekey":
        rekey = rekey or Rekey(DEFAULT)
        return pool._replace(samples=renamed(samples, inputs, template, rows, rekey)), rekey, None
    raise repeated_error(samples, inputs, template, pairs[0])


def sum_counts(parts: Sequence[dict[str, int]]) -> dict[str, int]:
    """Counts by reason, added up and sorted by reason."""
    total: dict[str, int] = {}
    for part in parts:
        for reason, count in part.items():
            total[reason] = total.get(reason, 0) + count
    return dict(sorted(total.items()))


def shaping_options(request: Request) -> dict[str, Any]:
    """The options that shape the result, as the manifest tells them; those left at their default are not named."""
    given: dict[str, Any] = {
        "max_count": request.cuts.max_count,
        "max_size": request.cuts.max_size,
        "shards": request.cuts.shards,
        "divisible_by": request.cuts.divisible_by,
        "on_duplicate": None if request.on_duplicate == "error" else request.on_duplicate,
        "rekey": request.rekey,
        "preserve": request.preserve or None,
        "mtime": request.settings.form.mtime or None,
        "long_names": None if request.settings.form.long_names == "pax" else request.settings.form.long_names,
        **(request.selection_text or {}),
    }
    return {name: value for name, value in given.items() if value is not None}
