"""The engine behind ``split``, ``merge``, ``shuffle`` and ``sort``, first half: survey, order, cut.

What it is: :func:`make_plan`, which works on metadata alone (``running.py`` then runs the plan). How: each input shard
is surveyed once (in parallel when nothing is counted across shards), repeated keys are found over all of them, an
:class:`~wdscli.plan.orders.Order` arranges the samples, and ``plan.py`` cuts. It must not know why samples are
reordered.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from wdscli.errors import UsageError
from wdscli.plan.absent import check_empty, check_named
from wdscli.plan.cut import Cuts, cut, measure, oversized
from wdscli.plan.dedup import without_duplicates
from wdscli.plan.limiting import REASON as LIMIT
from wdscli.plan.limiting import first_of_order, first_of_pool, reading_selection
from wdscli.plan.memory import check_fits, limits_for
from wdscli.plan.orders import Order, Part, Planner
from wdscli.plan.outputs import FIELD, Outputs
from wdscli.plan.reach import ALONE, STORED, away, check_reach
from wdscli.plan.rekey import DEFAULT, Rekey
from wdscli.plan.repeats import renamed, repeated_error, repeated_rows
from wdscli.plan.request import OnDuplicate, PlannedPart, PlannedShard, ReorderPlan, Request
from wdscli.plan.scratch import Input, Scratch, Stamp, folder_of_scratch
from wdscli.plan.strategy import Choice, choose
from wdscli.plan.survey import Collected, Survey, SurveyTask
from wdscli.plan.surveying import survey_tasks, surveys_of
from wdscli.plan.table import Ordered
from wdscli.plan.values import Pool
from wdscli.progress import QUIET, Progress
from wdscli.selection import SelectionState
from wdscli.shards.inputs import (
    ShardSet,
    fingerprint_of,
    known_samples,
    missing_samples,
    say_missing,
    whole_set,
)


def make_plan(
    request: Request, order: Order | Planner, scratch: Scratch | None = None, *, progress: Progress = QUIET
) -> ReorderPlan:
    """Survey the inputs, order and cut. Reads headers or indexes only, and writes nothing but copies of inputs that can
    be read only once; these go to ``scratch``, which must live until the plan has run.

    Raises UsageError, InputError, DataError, OutputError.
    """
    if isinstance(order, Planner):
        return order.plan(request, scratch, progress=progress)
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
        extract=order.extract,
    )
    limits = limits_for(request.memory, request.jobs)
    if limits.warning:
        progress.warn(limits.warning)
    near = None if away(request) else scratch
    tasks = survey_tasks(shards.addresses, template, near, limits)
    if request.on_error == "skip":
        tasks = counted(tasks, shards)
    collected = Collected(folder_of_scratch(scratch), has_values=order.extract is not None)
    surveys = surveys_of(tasks, state, request.jobs, request.engine, limits.jobs, progress, collected.take)
    inputs = tuple(
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
    total = sum(collected.totals)
    samples_in = total + sum(dropped.values())
    check_fits(total, order.bytes_per_sample, limits)
    pool = Pool(collected.table(), collected.values(), sets)
    there = set[bytes]().union(*(found.sightings.fields for found in surveys))
    pool, duplicates = without_duplicates(order.dedup, pool, there, inputs, template, dropped, progress)
    pool, rekey = _without_repeats(pool, inputs, template, request.on_duplicate, rekey, dropped)
    pool, cut_off = first_of_pool(order, pool, limit)
    arranged, behind = first_of_order(order.arrange(pool), pool.samples.total, limit)
    ordered = Ordered(pool.samples, arranged.order)
    if cut_off + behind:
        dropped[LIMIT] = cut_off + behind
    for reason, count in arranged.dropped.items():
        dropped[reason] = dropped.get(reason, 0) + count
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
) -> tuple[Pool, Rekey | None]:
    """The samples without repeated keys, by the policy; and the format by which workers make new keys."""
    pairs = repeated_rows(pool.samples, inputs, template, first_only=on_duplicate == "error")
    if not len(pairs.rows):
        return pool, rekey
    if on_duplicate == "skip":
        dropped["duplicate-key"] = len(pairs.rows)
        return pool.without(pairs.rows), rekey
    if on_duplicate == "rekey":
        rekey = rekey or Rekey(DEFAULT)
        samples = renamed(pool.samples, inputs, template, pairs.rows.tolist(), rekey)
        return pool._replace(samples=samples), rekey
    raise repeated_error(pool.samples, inputs, template, pairs)


def sum_counts(parts: Sequence[dict[str, int]]) -> dict[str, int]:
    """Counts by reason, added up and sorted by reason."""
    total: dict[str, int] = {}
    for part in parts:
        for reason, count in part.items():
            total[reason] = total.get(reason, 0) + count
    return dict(sorted(total.items()))


def shaping_options(request: Request, preserve: bool = False) -> dict[str, Any]:
    """The options that shape the result, as the manifest tells them; those left at their default are not named."""
    given: dict[str, Any] = {
        "max_count": request.cuts.max_count,
        "max_size": request.cuts.max_size,
        "shards": request.cuts.shards,
        "divisible_by": request.cuts.divisible_by,
        "on_duplicate": None if request.on_duplicate == "error" else request.on_duplicate,
        "rekey": request.rekey,
        "preserve": preserve or None,
        "mtime": request.settings.form.mtime or None,
        "long_names": None if request.settings.form.long_names == "pax" else request.settings.form.long_names,
        **(request.selection_text or {}),
    }
    return {name: value for name, value in given.items() if value is not None}
