"""``merge --join``: the fields of several sets beside each other, by key, whatever the order of either.

What it is: :class:`Join`, which plans in place of an order, and :func:`join`. How: each set is surveyed as ever; a
table becomes a shard in scratch space first. Samples are matched by the XXH3-64 of their keys; the task that copies
them proves by name that partners belong together (:mod:`wdscli.copy.joined`). What a joined sample will be is decided
for each combination of fields, of which there are few, so that the bytes of all output samples are known exactly from
sums over arrays. It must not know how shards are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from wdscli.errors import DataError, UsageError
from wdscli.model import to_text
from wdscli.plan.absent import check_empty, check_named
from wdscli.plan.cut import oversized
from wdscli.plan.jobs import useful_jobs
from wdscli.plan.join.in_turn import OneByOne
from wdscli.plan.join.keys import JoinKind, twice
from wdscli.plan.join.layout import OnConflict
from wdscli.plan.join.match import Found, Trouble, match_sets
from wdscli.plan.join.parts import JoinCounts, Joined, TableShard, collision
from wdscli.plan.join.survey import CollectedSets, JoinSurveyTask, survey_sets
from wdscli.plan.limiting import REASON as LIMIT
from wdscli.plan.limiting import parts_in
from wdscli.plan.memory import check_fits, limits_for
from wdscli.plan.orders import VALUED_BYTES
from wdscli.plan.outputs import Outputs
from wdscli.plan.plan import counted, open_sets, planned_shards, shaping_options, sum_counts
from wdscli.plan.reach import ALONE, STORED, away, check_reach
from wdscli.plan.repeats import repeated_error, repeated_rows
from wdscli.plan.request import ReorderPlan, Request
from wdscli.plan.scratch import Input, Scratch, Stamp, folder_of_scratch
from wdscli.plan.strategy import Choice, choose
from wdscli.plan.survey import Survey, SurveyTask, samples_at
from wdscli.plan.surveying import bytes_of, survey_tasks
from wdscli.plan.table import Ordered, PlanTable
from wdscli.progress import QUIET, Progress
from wdscli.selection import Selection, SelectionState
from wdscli.shards.inputs import fingerprint_of, missing_samples
from wdscli.storage import base_name

if TYPE_CHECKING:
    from wdscli.plan.table import I64


class JoinedTable(Protocol):
    """A table that is joined as one more set: :class:`~wdscli.create.join_table.Table`."""

    @property
    def address(self) -> str:
        """Its files as one text."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Its files."""

    @property
    def key(self) -> str:
        """Its column of keys."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Its fields, as they were asked for."""

    def write_shard(
        self,
        address: str,
        on_duplicate: Literal["error", "skip"],
        progress: Progress,
        *,
        trust_addresses: bool = False,
    ) -> TableShard:
        """Write its rows as a shard. Raises UsageError, InputError, OutputError, DataError."""


class Join(NamedTuple):
    """How sets are joined. ``on_conflict`` None is ``error`` between sets of shards and ``right`` for a table, which
    is the last set."""

    kind: JoinKind = "inner"
    on_conflict: OnConflict | None = None
    table: JoinedTable | None = None

    @property
    def operation(self) -> str:
        return "merge"

    def options(self) -> dict[str, Any]:
        """The options that shape the result, for the manifest."""
        given: dict[str, Any] = {"join": self.kind}
        if self.on_conflict is not None:
            given["on_conflict"] = self.on_conflict
        if self.table is not None:
            table = self.table
            names = [base_name(address) for address in table.addresses]
            given |= {
                "table": names[0] if len(names) == 1 else names,
                "key": table.key,
                "field": list(table.fields),
            }
        return given

    def plan(
        self, request: Request, scratch: Scratch | None = None, *, progress: Progress = QUIET
    ) -> ReorderPlan:
        """Survey the sets, match, and cut. Reads headers or indexes only, and writes nothing but copies of inputs that
        can be read only once, of the table, and rows that memory cannot hold, to ``scratch``, which must live until
        the plan has run.

        Raises UsageError, InputError, DataError, OutputError.
        """
        return _Planner(self, request, scratch, progress).plan()


class _Planner:
    """One call of :meth:`Join.plan`."""

    def __init__(self, how: Join, request: Request, scratch: Scratch | None, progress: Progress) -> None:
        self.how = how
        self.request = request
        self.scratch = None if away(request) else scratch
        self.folder = scratch
        self.progress = progress
        self.shards, sets = open_sets(request, progress)
        self.total_sets = len(request.inputs) + (how.table is not None)
        _check(how, request, self.total_sets)
        if request.selection.reads_stdin and "-" in self.shards.addresses:
            raise UsageError("standard input cannot hold both keys and a shard", hint="--keys-from FILE")
        if (
            how.table is not None
            and "-" in how.table.addresses
            and _reads_stdin(request, self.shards.addresses)
        ):
            raise UsageError(
                "standard input cannot hold both a table and something else", hint="--table FILE"
            )
        self.outputs = Outputs(request.output, request.settings, may_exist=request.resume)
        check_reach(request, self.shards.addresses, is_stream=self.outputs.is_stream)
        self.outputs.check(None, self.shards.addresses)
        self.cuts = self.outputs.cuts(request.cuts)
        self.sets = [*sets, *([len(request.inputs)] if how.table is not None else [])]
        default: list[OnConflict] = ["error"] * len(request.inputs)
        if how.table is not None:
            default.append("right")
        self.policies = tuple(how.on_conflict or policy for policy in default)
        self.with_lengths = any(policy != "error" for policy in self.policies[1:])
        self.dropped: dict[str, int] = {}
        self.table_bytes = 0

    def plan(self) -> ReorderPlan:
        request = self.request
        found_in, tasks, states = self._survey()
        self.inputs = tuple(
            task.task.input._replace(
                copy=task.task.input.copy or found.copy,
                stamp=task.task.input.stamp or Stamp(found.size_bytes, found.version),
            )
            for task, found in zip(tasks, found_in, strict=True)
        )
        self._tell(found_in, states)
        self.dropped = sum_counts(
            [self.dropped, missing_samples(self.shards.missing)]
            + [state.dropped for state in states]
            + [found.dropped for found in found_in]
        )
        samples_in = sum(found.total for found in found_in) + sum(self.dropped.values())
        check_fits(self.collected.total, VALUED_BYTES, self.limits)
        ordered, joined = self._joined()
        check_empty(
            ordered.total, request.selection, request.on_error, self.dropped, allow=request.allow_empty
        )
        parts, planned = planned_shards(
            self.outputs, None, ordered, self.cuts, self.shards.addresses, self.how.operation
        )
        choice = choose(
            self.request.strategy, self.inputs, OneByOne([ordered, *joined.others]), self.request.tmp
        )
        if away(self.request):
            choice = Choice("gather", STORED if self.request.plan_file is not None else ALONE)
        return ReorderPlan(
            request=self.request,
            operation=self.how.operation,
            seed=None,
            options={**self.how.options(), **shaping_options(self.request)},
            shards=self.shards,
            inputs=self.inputs,
            parts=parts,
            planned=planned,
            ordered=ordered,
            rekey=None,
            samples_in=samples_in,
            bytes_in=self.table_bytes
            + sum(found.size_bytes for found in found_in[: len(self.shards.addresses)]),
            dropped=dict(sorted(self.dropped.items())),
            ignored=sum_counts([found.ignored for found in found_in]),
            oversized=oversized(ordered, self.cuts),
            strategy=choice.strategy,
            reason=choice.reason,
            joined=joined,
            fingerprint_in=fingerprint_of(self.shards),
            members_in=sum(found.members for found in found_in),
            payload_bytes_in=sum(found.payload_bytes for found in found_in),
        )

    def _survey(self) -> tuple[list[Survey], list[JoinSurveyTask], list[SelectionState]]:
        """All sets, the table among them."""
        request = self.request
        self.templates = [self._template(number) for number in range(self.total_sets)]
        limits = self.limits = limits_for(request.memory, request.jobs)
        if limits.warning:
            self.progress.warn(limits.warning)
        plain = survey_tasks(self.shards.addresses, self.templates[0], self.scratch, limits)
        if request.on_error == "skip":
            plain = counted(plain, self.shards)
        table = self.how.table
        if table is not None:
            plain.append(self.templates[-1]._replace(input=self._table_input(table, len(plain))))
        tasks = [
            JoinSurveyTask(
                task._replace(selection=self.templates[number].selection), number, self.with_lengths
            )
            for task, number in zip(plain, self.sets, strict=True)
        ]
        states = [template.selection.new_state(request.on_error) for template in self.templates]
        groups = [[task for task in tasks if task.number == number] for number in range(self.total_sets)]
        size = bytes_of([task.task for task in tasks])
        jobs = useful_jobs(request.jobs, sum(map(len, groups)), size)
        self.collected = CollectedSets(self.total_sets, folder_of_scratch(self.folder))
        jobs = min(limits.jobs, jobs)
        found = survey_sets(groups, states, jobs, request.engine, self.progress, self.collected.take)
        return found, tasks, states

    @property
    def is_read_to_the_limit(self) -> bool:
        """Whether the samples of the first set are those that come out."""
        return self.how.kind == "left" and self.request.on_duplicate != "skip"

    def _template(self, number: int) -> SurveyTask:
        """What is asked of the shards of one set. Samples are chosen in the first; of the others those come that have
        a key of theirs."""
        request, selection = self.request, self.request.selection
        if not self.is_read_to_the_limit:
            selection = selection._replace(limit=None)
        if number:
            selection = Selection(key_rule=selection.key_rule, field_rule=selection.field_rule)
        return SurveyTask(
            Input(""), request.settings.form, selection, None, request.use_index, request.on_error
        )

    def _table_input(self, table: JoinedTable, number: int) -> Input:
        """The table as an input: its rows, copied to a shard."""
        if self.scratch is None:
            raise UsageError(
                f"{table.address} is a table, and becomes a shard in scratch space, which the tasks would not find",
                hint="make it a set first, wds create --from-table, or with an engine name a --tmp that all share",
            )
        place = self.scratch.place(number)
        skip = self.request.on_duplicate == "skip"
        made = table.write_shard(
            place, "skip" if skip else "error", self.progress, trust_addresses=self.request.trust_addresses
        )
        self.dropped = made.dropped
        self.table_bytes = made.size_bytes
        return Input(table.address, place, stamp=made.stamp)

    def _tell(self, surveys: Sequence[Survey], states: Sequence[SelectionState]) -> None:
        """Warnings of the surveys, and what the selection has to remark: keys that no set has."""
        together = self.templates[0].selection.new_state()
        for state in states:
            together.merge_names(state)
        together.seen, together.kept, together.done = states[0].seen, states[0].kept, states[0].done
        warnings = [message for found in surveys for message in found.warnings]
        for message in [*warnings, *self.request.selection.remarks(together)]:
            self.progress.warn(message)
        absences = self.request.selection.absences(together)
        check_named(absences, allow=self.request.allow_empty, progress=self.progress)

    def _repeats(self, samples: PlanTable, number: int) -> I64:
        """The rows of a set that repeat the key of another. Raises DataError where that is an error."""
        template = self.templates[number]
        is_error = self.request.on_duplicate == "error"
        pairs = repeated_rows(samples, self.inputs, template, first_only=is_error)
        count = len(pairs.rows)
        if count and is_error:
            error = repeated_error(samples, self.inputs, template, pairs)
            error.hint = (
                "a join needs each key once in a set: leave out the later ones with --on-duplicate skip"
            )
            raise error
        if count:
            self.dropped["duplicate-key"] = self.dropped.get("duplicate-key", 0) + count
        return pairs.rows

    def _collision(self, both: PlanTable, number: int) -> DataError:
        """The error of two samples of a set whose keys have one hash."""
        one, other = (self.key_of(both, row, number) for row in range(2))
        return collision(one, other, self.inputs[int(both.shards[1])].address, int(both.starts[1]))

    def key_of(self, samples: PlanTable, row: int, number: int) -> bytes:
        """The key of one sample of a set, read again."""
        task = self.templates[number]._replace(input=self.inputs[int(samples.shards[row])])
        batch, at = next(samples_at(task, [int(samples.places[row])]))
        return batch.keys[at]

    def _joined(self) -> tuple[Ordered, Joined]:
        """The samples in output order."""
        table, sets = self.collected.surveys()
        for number, one in enumerate(sets):
            if len(rows := self._repeats(one.samples, number)):
                one = sets[number] = one.without(rows)
            if (both := twice(one.samples.keys)) is not None:
                raise self._collision(one.samples.take(list(both)), number)
        found = match_sets(table, sets, self.how.kind, self.policies)
        if isinstance(found, Trouble):
            raise self._conflict(found)
        counts = self._counts(found)
        limit = self.request.selection.limit
        if limit is not None and limit < found.lists[0].total:
            lists = [one.first(limit) for one in found.lists]
            used = parts_in(lists)
            self.dropped[LIMIT] = found.used - used
            found, counts = found._replace(lists=lists), counts._replace(partners=used - limit)
        ordered, *others = found.lists
        return ordered, Joined(tuple(others), tuple(self.sets), self.policies, counts)

    def _conflict(self, found: Trouble) -> DataError:
        """The error with the samples' key and places."""
        error = found.error
        addresses = [self.inputs[int(place.shards[0])].address for _, place in found.parts]
        key = self.key_of(found.parts[0][1], 0, found.parts[0][0])
        number, place = found.parts[-1]
        is_table = self.how.table is not None and number == self.total_sets - 1
        return DataError(
            f'sample "{to_text(key)}" {error.message}: {", ".join(addresses)}',
            code=error.code,
            shard=None if is_table else addresses[-1],
            offset=None if is_table else int(place.starts[0]),
            hint=error.hint,
        )

    def _counts(self, found: Found) -> JoinCounts:
        """What came together, and what did not."""
        total, made = sum(found.totals), found.lists[0].total
        if total > found.used:
            self.dropped["no-partner"] = total - found.used
        if not made and total:
            self.progress.warn(
                f"no key is in all {len(found.totals)} sets: each argument is one set, so that patterns need quotes"
            )
        return JoinCounts(
            found.matched,
            tuple(count - found.matched for count in found.totals),
            found.used - made,
            found.replaced,
            found.left_out,
            found.renamed,
        )


def _reads_stdin(request: Request, addresses: Sequence[str]) -> bool:
    return request.selection.reads_stdin or "-" in addresses


def _check(how: Join, request: Request, sets: int) -> None:
    """Raise UsageError for what cannot be meant."""
    if sets < 2:
        raise UsageError(
            "a join needs two sets, or a table",
            hint="each argument is one set: wds merge --join inner 'images-*.tar' 'captions-*.tar' -o OUT",
        )
    if request.rekey is not None or request.on_duplicate == "rekey":
        raise UsageError(
            "a join keeps keys, by which it matches", hint="wds cat --rekey gives new ones afterwards"
        )
    selection = request.selection
    chooses = selection.where is not None or selection.span is not None
    if how.kind == "outer" and chooses:
        raise UsageError(
            "--where and --slice choose among the samples of the first set, and an outer join takes all",
            hint="select first, with wds cat, or join with --join left",
        )
