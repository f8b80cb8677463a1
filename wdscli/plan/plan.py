"""This module makes the plan of ``split``, ``merge``, ``shuffle`` and ``sort`` in three steps: survey, order, cut.

:func:`make_plan` uses only metadata, and returns a :class:`ReorderPlan`. First, each input shard is surveyed once. Then
repeated keys are found over all shards. An :class:`~wdscli.plan.orders.Order` arranges the samples, which are cut into
shards last. Each of these steps is a method of :class:`_Planning`. For a join, each set has its own survey template,
its own list of repeats and its own column of rows. This module does not know why samples are reordered.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

from wdscli.arrays import I64, numpy
from wdscli.errors import UsageError
from wdscli.executors.local import available
from wdscli.plan.cut import FIELD, Cuts, Outputs, PlannedShard, Sizes, names_of, planned_shards
from wdscli.plan.duplicates import (
    DIGEST_BYTES,
    DUPLICATE,
    HINT,
    JOIN_HINT,
    KEY,
    Dedup,
    Digests,
    Duplicates,
    LeftOutSamples,
    Pairs,
    Rereader,
    rename,
    repeated_error,
    repeated_keys,
)
from wdscli.plan.inputs import Input
from wdscli.plan.names import DEFAULT, Rekey, check_empty, check_named
from wdscli.plan.orders import (
    LIMIT,
    VALUED_BYTES,
    Order,
    SurveyedSamples,
    first_arranged,
    first_to_arrange,
    is_in_input_order,
)
from wdscli.plan.request import PlanMark, Request, check_view
from wdscli.plan.scratch import NO_ROOM, Room, Scratch, folder_of_scratch
from wdscli.plan.strategy import AS_PLANNED, Choice, check_fits, check_reach, choose, is_away, limits_for
from wdscli.plan.survey import SurveyedRows, SurveyTask, hash_key, survey, survey_shards, survey_task
from wdscli.plan.table import MISSING_SHARD, Extract, JoinedParts, OrderedSamples, PlanTable, no_rows
from wdscli.progress import QUIET, Progress
from wdscli.selection import Selection, SelectionState
from wdscli.selection.draw import DRAWN
from wdscli.shards.index import Check
from wdscli.shards.inputs import (
    ShardSet,
    check_mixing,
    classes_of,
    fingerprint_of,
    known_samples,
    missing_samples,
    open_sets,
    parents_of,
    without_index,
)
from wdscli.shards.manifest import Manifest, Provenance
from wdscli.shards.view import MISSING, is_view, refuse_view, shards_of_view
from wdscli.shards.writing import OutputSet
from wdscli.storage import is_local
from wdscli.storage.opening import at_once, current_version, listed_version, size_hint
from wdscli.storage.patterns import NAME
from wdscli.storage.scatter import REQUEST_BYTES

DUPLICATE_KEY = "duplicate-key"
"""The reason for leaving out samples that repeat a key."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of a plan: the samples to write, and the samples, members, payload bytes and other bytes read.

    ``dropped`` counts omitted samples by reason. ``ignored`` counts members that belong to no sample, by reason.
    ``oversized`` counts samples that are larger than the limit of a shard; each gets its own shard.
    """

    samples: int
    samples_in: int
    members_in: int
    payload_bytes_in: int
    bytes_in: int
    dropped: dict[str, int]
    ignored: dict[str, int]
    oversized: int


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of an output's shards: rows of inputs in output order, and the beginning and end of each shard.
    Samples that do not come from shards have no rows here."""

    outputs: tuple[OutputSet, ...]
    """The output set of each part."""
    shards: tuple[PlannedShard, ...]
    inputs: Sequence[Input] = ()
    ordered: OrderedSamples = field(default_factory=lambda: OrderedSamples(PlanTable(no_rows())))
    joined: JoinedParts | None = None
    """The further rows of joined samples."""
    rekey: Rekey | None = None

    @property
    def row_lists(self) -> list[OrderedSamples]:
        """All rows in output order: one list, or for a join one list per set."""
        return [self.ordered, *(self.joined.later_parts if self.joined is not None else ())]

    def taken(self, first: int, end: int) -> list[tuple[I64, I64]]:
        """Return, for each set, the input and the place of each sample from ``first`` to ``end - 1`` of the output. If
        a set lacks a sample, both are :data:`MISSING`."""
        columns = []
        for ordered in self.row_lists:
            inputs, places = (
                ordered.column(name, first, end).astype(numpy.int64) for name in ("shard", "place")
            )
            places[inputs == MISSING_SHARD] = inputs[inputs == MISSING_SHARD] = MISSING
            columns.append((inputs, places))
        if self.joined is not None:
            # If a sample has no part in the first set, its first row comes from another set.
            first_inputs, first_places = columns[0]
            owners: I64 = numpy.array(self.joined.sets, dtype=numpy.int64)[first_inputs]
            for set_number, (inputs, places) in enumerate(columns[1:], 1):
                is_own = owners == set_number
                inputs[is_own], places[is_own] = first_inputs[is_own], first_places[is_own]
            first_places[owners != 0] = first_inputs[owners != 0] = MISSING
        return columns

    @property
    def shards_of_outputs(self) -> list[list[int]]:
        """The shard numbers of each output set."""
        numbers: list[list[int]] = [[] for _ in self.outputs]
        for number, shard in enumerate(self.shards):
            numbers[shard.part].append(number)
        return numbers

    @property
    def addresses(self) -> list[str]:
        """The addresses of the inputs."""
        return [shard.address for shard in self.inputs]

    @property
    def is_stream(self) -> bool:
        """Whether some shard has no name under which it can be read again."""
        return any(output.pattern.is_stream for output in self.outputs)


@dataclass(frozen=True, slots=True)
class ReorderPlan:
    """A complete plan: the contents of the output, its description for the manifest, and the way to make its shards."""

    request: Request
    provenance: Provenance
    contents: Contents
    counts: Counts
    choice: Choice = AS_PLANNED
    mark: PlanMark | None = None
    """The plan's fingerprint, if it is already known."""
    is_stored: bool = False
    """Whether the plan was read from a file. Other runs may then work on its tasks at the same time."""
    is_repeatable: bool = False
    """Whether operation, options, seed and inputs completely decide the plan."""
    brings: bool = False
    """Whether remote inputs are downloaded before the first shard is made."""
    left_out: LeftOutSamples = field(default_factory=LeftOutSamples)
    """The samples left out by ``--dedup``, ``--on-duplicate skip`` and ``--on-error skip``."""
    transform: Mapping[str, Any] | None = None
    """The transform of each sample, as plain values. The planned sizes are the sizes before the transform."""
    parents: Sequence[tuple[str, Manifest | None]] = ()
    """For a view: the address of one shard, and the manifest, of each source set."""
    parcel: Callable[[int], bytes] | None = None
    """If samples do not come from shards: a function that returns the samples of a shard, by its number, as bytes for a
    plan file."""

    @property
    def samples(self) -> int:
        """The number of samples to write."""
        return self.counts.samples

    @property
    def size_bytes(self) -> int:
        """Bytes of all shards together."""
        return sum(shard.size_bytes for shard in self.contents.shards)


def make_plan(
    request: Request,
    order: Order,
    scratch: Scratch | None = None,
    *,
    brings: bool = False,
    progress: Progress = QUIET,
) -> ReorderPlan:
    """Survey the inputs, order the samples and cut them into shards. Only headers or indexes are read. Two things go to
    ``scratch``: copies of inputs that can be read only once, and rows that do not fit in memory. So ``scratch`` must
    exist until the plan has run. ``brings`` allows copies of remote inputs too, for a plan that runs immediately.

    Raises UsageError, InputError, DataError, OutputError.
    """
    planning = _Planning(request, order, scratch, brings, progress)
    planning.check_request()
    planning.survey()
    planning.check_surveys()
    planning.leave_out_repeats()
    planning.arrange()
    return planning.cut()


class _Planning:
    """The state of one call of :func:`make_plan`. Each step uses the results of the steps before it."""

    sets: list[int]
    """The set number of each input, from 0."""
    templates: list[SurveyTask]
    """The survey tasks: one for all shards, or for a join one for each set."""
    states: list[SelectionState]
    """The state of the selection, for each survey task."""
    surveyed: SurveyedSamples
    """The samples that remain."""
    ordered: OrderedSamples
    """The samples in output order."""

    def __init__(
        self, request: Request, order: Order, scratch: Scratch | None, brings: bool, progress: Progress
    ) -> None:
        self.request = request
        self.brings = brings
        self.order = order
        self.scratch = scratch
        self.progress = progress
        self.rekey: Rekey | None = None
        self.left_out = LeftOutSamples()
        self.dropped: dict[str, int] = {}
        self.bytes_of_table = 0

    def check_request(self) -> None:
        """Find the input shards, and refuse options that contradict each other."""
        request = self.request
        self.shards, self.sets = open_sets(
            request.inputs, request.on_error, self.progress.warn, trust_addresses=request.trust_addresses
        )
        addresses = self.shards.addresses
        classes = partial(classes_of, self.shards, joined=self.order.is_join)
        self.request = request._replace(selection=request.selection.with_classes(classes))
        self.order = self.order.with_classes(classes)
        self.order.check_request(request, addresses)
        self.dedup = Dedup.of(request)
        if self.dedup is not None and self.order.is_join:
            raise UsageError(
                "--dedup does not work with a join",
                hint="join the sets first, then use wds merge SET --dedup FIELD",
            )
        if request.selection.reads_stdin and "-" in addresses:
            raise UsageError("standard input cannot hold both keys and a shard", hint="--keys-from FILE")
        self.outputs = self._outputs(request)
        check_reach(request, addresses, is_stream=self.outputs.is_stream)
        self.outputs.check(None, addresses)
        first = None if self.outputs.is_stream or is_view(request.output) else self.outputs.first_address
        if first is not None:
            check_mixing(self.shards, first, force=request.settings.force, warn=self.progress.warn)
        self.cuts = self.outputs.cuts(request.cuts)
        if request.rekey is not None:
            self.rekey = Rekey.parse(request.rekey)

    def _outputs(self, request: Request) -> Outputs:
        """Return the output sets. With ``{name}``, a new shard gets the name of the first set's shard from which it is
        made. A view does the same if the order allows it. Raises UsageError."""
        text, keeps_shards = request.output, self.order.may_keep_names
        if is_view(text):
            if self.order.transform is not None:
                refuse_view(text)
            check_view(request)
            text = shards_of_view(text, keeps_shards=keeps_shards and request.cuts == Cuts())
        self.is_named = NAME in text
        if self.is_named and (request.cuts != Cuts() or not keeps_shards):
            mixes = f"this {self.order.operation} mixes their samples"
            why = mixes if request.cuts == Cuts() else "a new shard size needs new names"
            raise UsageError(
                f"{NAME} keeps the names of the input shards, but {why}",
                hint="number the shards: -o out-%06d.tar",
            )
        first = [address for address, of_set in zip(self.shards.addresses, self.sets) if not of_set]
        names = names_of(first if self.order.is_join else self.shards.addresses) if self.is_named else None
        return Outputs(text, request.settings, names=names, may_exist=request.resume)

    def survey(self) -> None:
        """Read the headers or indexes of all shards. First, write a joined table as a shard."""
        request = self.request
        self.limits = limits_for(request.memory, request.jobs)
        if self.limits.warning:
            self.progress.warn(self.limits.warning)
        self.total_sets = len(request.inputs)
        inputs = [Input(address) for address in self.shards.addresses]
        scratch, look = None if is_away(request) else self.scratch, partial(self._look, inputs)
        table = self.order.table_shard(request, scratch, len(inputs), self.progress, look)
        if table is not None:
            place, table_shard = table
            inputs.append(place)
            self.sets.append(self.total_sets)
            self.total_sets += 1
            self.bytes_of_table, self.dropped = table_shard.size_bytes, table_shard.dropped
            self.left_out = LeftOutSamples(rows=table_shard.report)
        self.templates = self._templates()
        self.states = [template.selection.new_state(request.on_error) for template in self.templates]
        self.collected = SurveyedRows(
            folder_of_scratch(self.scratch), has_values=self.templates[0].extract is not None
        )
        tasks = self._tasks(inputs, self.templates)
        self.surveys = survey_shards(tasks, self.states, request, self.limits, self.collected, self.progress)
        firsts = accumulate((shard_survey.end for shard_survey in self.surveys), initial=0)
        self.inputs = tuple(
            shard._replace(
                copy=shard.copy or shard_survey.copy,
                stamp=shard.stamp or shard_survey.stamp,
                is_packed=shard_survey.is_packed,
                first=first,
            )
            for shard, shard_survey, first in zip(inputs, self.surveys, firsts, strict=False)
        )

    def _tasks(self, inputs: Sequence[Input], templates: Sequence[SurveyTask]) -> list[SurveyTask]:
        """Return one task for each input, made from the template of its set."""
        request, tasks = self.request, []
        scratch, room = None if is_away(request) else self.scratch, self._room(templates)
        listed_samples = known_samples(self.shards) if request.on_error == "skip" else {}
        unindexed = without_index(self.shards) if request.use_index else frozenset[str]()
        listed = self._versions(inputs, unindexed, room)
        for number, (shard, of_set) in enumerate(zip(inputs, self.sets)):
            template = templates[of_set if self.order.is_join else 0]
            task = template._replace(
                input=shard,
                listed_samples=listed_samples.get(shard.address, -1),
                room=room if not (self.order.is_join and of_set) else room._replace(may_move=False),
                use_index=template.use_index and shard.address not in unindexed,
                listed=listed.get(shard.address),
            )
            tasks.append(task if shard.copy else survey_task(task, number, scratch, self.limits))
        return tasks

    def _look(self, inputs: list[Input], extract_of: Callable[[int, Selection], Extract]) -> None:
        """Read the selected samples of all inputs before the survey, with an extract for each set. If an input must be
        copied first, later steps read the copy too."""
        templates = [
            template._replace(extract=extract_of(number, template.selection))
            for number, template in enumerate(self._templates())
        ]
        states = [template.selection.new_state(self.request.on_error) for template in templates]
        self.progress.start("reading samples for the table", len(inputs), "shards")
        for number, (task, of_set) in enumerate(zip(self._tasks(inputs, templates), self.sets)):
            if not states[of_set].done:
                shard_survey = survey(task, states[of_set], lambda _: None)
                if shard_survey.copy:
                    inputs[number] = Input(task.address, shard_survey.copy, shard_survey.stamp)
            self.progress.advance(1)
        self.progress.finish()

    def _room(self, templates: Sequence[SurveyTask]) -> Room:
        """Return the disc space for copies of remote inputs. It is zero if nothing is copied, as for a view, or if
        workers run on other machines."""
        request, scratch = self.request, self.scratch
        is_wanted = self.brings and request.strategy != "gather" and request.engine is None
        is_wanted = is_wanted and not is_view(request.output)
        if not is_wanted or scratch is None or all(map(is_local, self.shards.addresses)):
            return NO_ROOM
        free = scratch.free_bytes()
        if free is None or any(template.selection.limit is not None for template in templates):
            return NO_ROOM
        takes_most = request.selection.takes_most
        # If inputs do not fit in memory, the spill strategy is better than copies. If inputs are read in order, an
        # index costs less than a copy, except for small shards.
        share = min(free, available()) // (2 * len(self.shards.addresses)) if takes_most else 0
        if is_in_input_order(self.order, request):
            share = min(share, REQUEST_BYTES)
        return Room(os.path.dirname(scratch.folder), free, takes_most, share, self._may_move())

    def _versions(
        self, inputs: Sequence[Input], unindexed: frozenset[str], room: Room
    ) -> dict[str, tuple[int, str] | None]:
        """Return size and version of indexed inputs. They come from a listing. A request may also be sent, if an
        unchanged shard may then be copied without reading it."""
        indexed = [shard.address for shard in inputs if not shard.copy and shard.address not in unindexed]
        listed = self.shards.listed
        versions = {address: listed_version(address) for address in indexed if address in listed}
        unlisted = [address for address in indexed if address not in listed] if room.may_move else []
        return versions | dict(zip(unlisted, at_once(current_version, unlisted)))

    def _may_move(self) -> bool:
        """Return whether some shard may stay unchanged, so that its store can copy it. Sizes and counts decide this
        before anything is read."""
        addresses = self.shards.addresses
        is_plain = is_in_input_order(self.order, self.request) and self.rekey is None
        is_plain = is_plain or (self.order.is_join and self.is_named)
        if not is_plain or any(map(is_local, [*addresses, self.request.output])):
            return False
        listed_samples = known_samples(self.shards)
        return self.is_named or self.cuts.may_keep(
            [listed_samples.get(address, -1) for address in addresses], list(map(size_hint, addresses))
        )

    def _templates(self) -> list[SurveyTask]:
        """Return the survey tasks: one for all shards, or for a join one for each set."""
        request = self.request
        template = SurveyTask(
            Input(""),
            request.settings.form,
            request.selection,
            self.rekey if request.on_duplicate != "rekey" else None,
            request.use_index,
            request.on_error,
            extract=self.order.extract if self.dedup is None else self.dedup.extract(self.order.extract),
            # A view is written from the indexes of its bases, without reading a sample.
            check=Check.ALL_LOCAL if is_view(request.output) else Check.SOME,
        )
        return self.order.templates(template, request, self.total_sets)

    def check_surveys(self) -> None:
        """Print the warnings of surveys. Raise an error for names that no sample has, and for a plan that does not fit
        in memory."""
        request, state = self.request, self.states[0]
        self.dropped = sum_counts(
            [self.dropped, missing_samples(self.shards.missing)]
            + [set_state.dropped for set_state in self.states]
            + [shard_survey.dropped for shard_survey in self.surveys]
        )
        for later_state in self.states[1:]:
            state.merge_names(later_state)
        warnings = [message for shard_survey in self.surveys for message in shard_survey.warnings]
        damage = tuple(message for shard_survey in self.surveys for message in shard_survey.damage)
        self.left_out = self.left_out._replace(damage=damage)
        for message in [*warnings, *damage, *request.selection.remarks(state)]:
            self.progress.warn(message)
        for shard_survey in self.surveys:
            state.seen_names.merge(shard_survey.seen_names)
        extract, bytes_per_sample = self.templates[0].extract, self.order.bytes_per_sample
        if isinstance(extract, Digests):
            bytes_per_sample = max(bytes_per_sample, VALUED_BYTES)
        named = () if extract is None else extract.named
        missing_names = request.selection.missing_names(state, named)
        check_named(missing_names, allow=request.allow_empty, progress=self.progress)
        total = sum(self.collected.totals)
        self.samples_in = total + sum(self.dropped.values())
        check_fits(total, bytes_per_sample, self.limits)
        self.surveyed = SurveyedSamples(
            self.collected.table(self.order.placeholder),
            self.collected.values(),
            self.sets,
            self.total_sets,
            Rereader(self.inputs, self.templates[0]),
            [shard_survey.shapes for shard_survey in self.surveys],
        )

    def leave_out_repeats(self) -> None:
        """Apply ``--dedup`` and ``--on-duplicate`` to samples with a repeated key or repeated payloads."""
        policy, surveyed = self.request.on_duplicate, self.surveyed
        reader = surveyed.reader
        if (pairs_of_sets := self.order.repeated(surveyed, self.request)) is not None:
            self._leave_out_repeated_keys(pairs_of_sets)
            return
        if self.dedup is not None:
            extract, digests = self.templates[0].extract, None
            if isinstance(extract, Digests):
                digests = surveyed.values
                order_values = (
                    None if digests is None or extract.order_extract is None else digests.behind(DIGEST_BYTES)
                )
                self.surveyed = surveyed._replace(values=order_values)
            set_fields = set[bytes]().union(
                *(shard_survey.seen_names.fields for shard_survey in self.surveys)
            )
            pairs, duplicates = self.dedup.find(surveyed.samples, digests, set_fields, reader, self.progress)
            self.left_out = self.left_out._replace(duplicates=(duplicates,))
            self._leave_out(DUPLICATE, pairs.rows)
        table = self.surveyed.samples
        pairs = repeated_keys(table, reader, first_only=policy == "error")
        if len(pairs.rows) and policy == "error":
            hint = JOIN_HINT if self.total_sets > 1 else HINT
            raise repeated_error(table, reader, pairs, hint=hint)
        if len(pairs.rows) and policy == "rekey":
            self.rekey = self.rekey or Rekey(DEFAULT)
            rename(table, reader, pairs.rows.tolist(), self.rekey)
        if policy == "skip":
            self._leave_out_repeated_keys(pairs)

    def _leave_out_repeated_keys(self, pairs: Pairs) -> None:
        """Leave out the samples that repeat a key, and keep their places for the report."""
        table, reader = self.surveyed.samples, self.surveyed.reader
        if len(pairs.rows):
            repeated = Duplicates((KEY,), table.apart(pairs.rows), table.apart(pairs.firsts), reader)
            self.left_out = self.left_out._replace(duplicates=(*self.left_out.duplicates, repeated))
        self._leave_out(DUPLICATE_KEY, pairs.rows)

    def _leave_out(self, reason: str, rows: I64) -> None:
        """Leave out the samples of these rows, which are in ascending order."""
        if len(rows):
            self.dropped[reason] = self.dropped.get(reason, 0) + len(rows)
            self.surveyed = self.surveyed.without(rows)

    def draw(self) -> None:
        """Leave out the samples that ``--sample N`` does not choose. All samples must be known before."""
        draw, surveyed = self.request.selection.draw, self.surveyed
        if draw is None or not draw.is_open:
            return
        table, hashes = surveyed.samples, surveyed.samples.keys
        if self.rekey is not None:
            # The choice depends on old keys, but rows have the hashes of new keys.
            keys = (hash_key(sample.key) for sample in surveyed.reader.samples(table, range(table.total)))
            hashes = numpy.fromiter(keys, numpy.uint64, table.total)
        if message := draw.lack(table.total):
            self.progress.warn(message)
        self._leave_out(DRAWN, draw.left_out(hashes))

    def arrange(self) -> None:
        """Arrange the samples in output order, and keep at most ``--limit`` samples."""
        request = self.request
        limit = request.selection.limit if self.templates[0].selection.limit is None else None
        self.draw()
        surveyed = first_to_arrange(self.order, self.surveyed, limit)
        cut_off = self.surveyed.samples.total - surveyed.samples.total
        self.arranged = first_arranged(self.order.arrange(surveyed), surveyed.samples.total, limit)
        if self.arranged.absent is not None:
            check_named([self.arranged.absent], allow=request.allow_empty, progress=self.progress)
        self.ordered = OrderedSamples(surveyed.samples, self.arranged.order)
        behind = {LIMIT: cut_off} if cut_off else {}
        self.dropped = sum_counts([self.dropped, behind, self.arranged.dropped])
        check_empty(
            self.ordered.total, request.selection, request.on_error, self.dropped, allow=request.allow_empty
        )

    def cut(self) -> ReorderPlan:
        """Cut the samples into shards, choose the strategy, and build the plan."""
        request, arranged = self.request, self.arranged
        self._check_parts()
        sizes = Sizes.of(self.ordered)
        ends = self._ends() if self.is_named else arranged.ends
        outputs, planned = planned_shards(self.outputs, arranged.parts, sizes, self.cuts, ends)
        for output in outputs if self.outputs.has_parts else ():
            output.check(self.shards.addresses, may_exist=self.outputs.may_exist)
        contents = Contents(outputs, planned, self.inputs, self.ordered, arranged.joined, self.rekey)
        provenance = provenance_of(request, self.order, self.shards)
        keeps_labels = self.order.keeps_labels and not request.selection.makes_labels
        classes = classes_of(self.shards, joined=self.order.is_join) if keeps_labels else None
        names = [output.part for output in outputs if output.part]
        return ReorderPlan(
            request,
            provenance._replace(
                inputs=provenance.inputs if self.inputs else (), classes=classes, parts=names
            ),
            contents,
            self._counts(sizes.oversized(self.cuts)),
            choose(request, self.inputs, contents.row_lists),
            left_out=self.left_out,
            is_repeatable=self.order.is_repeatable and request.is_repeatable and not self.rekey,
            transform=self.order.transform,
            parents=parents_of(self.shards) if is_view(request.output) else (),
        )

    def _ends(self) -> list[int]:
        """Return the ends of output shards that each have the samples of one shard of the first set."""
        shards = self.ordered.column("shard", 0, self.ordered.total)
        numbers: I64 = numpy.arange(len(self.outputs.names or ()))
        ends: list[int] = shards.searchsorted(numbers, side="right").tolist()
        return ends

    def _counts(self, oversized: int) -> Counts:
        """Return the counts of all steps."""
        surveys = self.surveys[: len(self.shards.addresses)]
        sizes = [shard_survey.stamp.size_bytes if shard_survey.stamp else 0 for shard_survey in surveys]
        return Counts(
            self.ordered.total,
            self.samples_in,
            sum(shard_survey.members for shard_survey in self.surveys),
            sum(shard_survey.payload_bytes for shard_survey in self.surveys),
            self.bytes_of_table + sum(sizes),
            self.dropped,
            sum_counts([shard_survey.ignored for shard_survey in self.surveys]),
            oversized,
        )

    def _check_parts(self) -> None:
        """Raise UsageError if the output's name does not fit the parts."""
        text, parts = self.outputs.text, self.arranged.parts
        if self.outputs.has_parts and parts is None:
            raise UsageError(
                f"{text} has {FIELD}, but this {self.order.operation} makes no parts",
                hint="make parts with wds split --ratio or --by",
            )
        if parts is not None and not self.outputs.has_parts:
            raise UsageError(
                f"{text} is for one set, but the output has several parts", hint=f"-o '{FIELD}-%06d.tar'"
            )


def sum_counts(parts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Add up counts by reason, and sort them by reason."""
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(sorted(total.items()))


def provenance_of(request: Request, order: Order, shards: ShardSet) -> Provenance:
    """Return the record of how a request's set is made, without classes and parts."""
    options = {**order.options(), **shaping_options(request)}
    fingerprints = [fingerprint_of(shards)]
    return Provenance(order.operation, options, order.seed, fingerprints, stamp=request.stamp)


def shaping_options(request: Request) -> dict[str, Any]:
    """Return the options for the manifest: those that change the result and are not at their default."""
    options: dict[str, Any] = {
        "dedup": Dedup.parse(request.dedup).names if request.dedup else None,
        "near": request.near,
        "max_count": request.cuts.max_count,
        "max_size": request.cuts.max_size,
        "shards": request.cuts.shards,
        "divisible_by": request.cuts.divisible_by,
        "on_duplicate": None if request.on_duplicate == "error" else request.on_duplicate,
        "rekey": request.rekey,
        "mtime": request.settings.form.mtime or None,
        "long_names": None if request.settings.form.long_names == "pax" else request.settings.form.long_names,
        **(request.selection_text or {}),
    }
    return {name: value for name, value in options.items() if value is not None}
