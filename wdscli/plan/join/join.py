"""``merge --join``: the fields of several sets beside each other, by key, whatever the order of either.

What it is: :class:`Join`, an order whose samples have a row in each of several sets: in the plan's table the sets lie
one behind the other, and each has its own column of rows. How: a table becomes a shard in scratch space first, and then
is a set like the others. Samples are matched by the XXH3-64 of their keys; the task that copies them proves by name
that partners belong together (:mod:`wdscli.copy.copier`). It must not know how shards are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Literal, Protocol

from wdscli.errors import DataError, UsageError
from wdscli.model import to_text
from wdscli.plan.duplicates import repeated_error, repeated_keys
from wdscli.plan.inputs import Input
from wdscli.plan.join.joined import (
    CHANGED,
    NOBODY,
    JoinCounts,
    Joined,
    OnConflict,
    TableShard,
    collision,
)
from wdscli.plan.join.match import JoinKind, Measured, SetRows, Shapes, match
from wdscli.plan.orders import VALUED_BYTES, Arranged, Order, Surveyed
from wdscli.plan.request import Request
from wdscli.plan.scratch import Scratch
from wdscli.plan.survey import SurveyTask
from wdscli.plan.table import Ordered, row_type
from wdscli.progress import Progress
from wdscli.selection import Selection
from wdscli.storage import base_name

if TYPE_CHECKING:
    from wdscli.plan.table import I64, Rows

NO_PARTNER = "no-partner"
"""Why samples whose key another set lacks are left out."""


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


@dataclass(frozen=True)
class Join(Order):
    """How sets are joined. ``on_conflict`` None is ``error`` between sets of shards and ``right`` for a table, which
    is the last set."""

    kind: JoinKind = "inner"
    on_conflict: OnConflict | None = None
    table: JoinedTable | None = None
    operation = "merge"
    bytes_per_sample = VALUED_BYTES

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

    def check(self, request: Request, addresses: Sequence[str]) -> None:
        """Raise UsageError for what cannot be meant; ``addresses`` are the shards of all inputs."""
        if len(request.inputs) + (self.table is not None) < 2:
            raise UsageError(
                "a join needs two sets, or a table",
                hint="each argument is one set: wds merge --join inner 'images-*.tar' 'captions-*.tar' -o OUT",
            )
        if request.rekey is not None or request.on_duplicate == "rekey":
            raise UsageError(
                "a join keeps keys, by which it matches", hint="wds cat --rekey gives new ones afterwards"
            )
        selection = request.selection
        if self.kind == "outer" and (selection.where is not None or selection.span is not None):
            raise UsageError(
                "--where and --slice choose among the samples of the first set, and an outer join takes all",
                hint="select first, with wds cat, or join with --join left",
            )
        is_taken = selection.reads_stdin or "-" in addresses
        if self.table is not None and "-" in self.table.addresses and is_taken:
            raise UsageError(
                "standard input cannot hold both a table and something else", hint="--table FILE"
            )

    def policies(self, sets: int) -> tuple[OnConflict, ...]:
        """What is done, in each of so many sets, about a field that is there already."""
        default: list[OnConflict] = ["error"] * sets
        if self.table is not None:
            default[-1] = "right"
        return tuple(self.on_conflict or policy for policy in default)

    def templates(self, template: SurveyTask, request: Request, sets: int) -> list[SurveyTask]:
        """What is asked of the shards of each of so many sets. Samples are chosen in the first; of the others those
        come that have a key of theirs."""
        policies = self.policies(sets)
        has_lengths = any(policy != "error" for policy in policies[1:])
        chosen = request.selection
        if self.kind != "left" or request.on_duplicate == "skip":
            chosen = chosen._replace(limit=None)
        others = Selection(key_rule=chosen.key_rule, field_rule=chosen.field_rule)
        found = []
        for of_set in range(len(policies)):
            selection = others if of_set else chosen
            extract = Shapes(selection, template.form, of_set, has_lengths)
            found.append(template._replace(selection=selection, extract=extract, of_set=of_set))
        return found

    def table_shard(
        self, request: Request, scratch: Scratch | None, number: int, progress: Progress
    ) -> tuple[Input, TableShard]:
        """The table as input ``number``: its rows, copied to a shard; and what became of it."""
        table = self.table
        assert table is not None
        if scratch is None:
            raise UsageError(
                f"{table.address} is a table, and becomes a shard in scratch space, which the tasks would not find",
                hint="make it a set first, wds create --from-table, or with an engine name a --tmp that all share",
            )
        place = scratch.place(number)
        skip = request.on_duplicate == "skip"
        made = table.write_shard(
            place, "skip" if skip else "error", progress, trust_addresses=request.trust_addresses
        )
        return Input(table.address, place, stamp=made.stamp), made

    def repeated(self, surveyed: Surveyed, request: Request) -> I64:
        """The rows that repeat the key of another of their set. Raises DataError where that is an error."""
        import numpy

        table, reader, gone = surveyed.samples, surveyed.reader, []
        is_error = request.on_duplicate == "error"
        for first, end in _bounds(surveyed):
            of_set = table.part(first, end)
            pairs, comparison = repeated_keys(of_set, reader, first_only=is_error)
            if len(pairs.rows) and is_error:
                hint = (
                    "a join needs each key once in a set: leave out the later ones with --on-duplicate skip"
                )
                raise repeated_error(of_set, reader, pairs, hint=hint)
            if comparison.collision is not None:
                one, other = comparison.collision
                shard = reader.inputs[int(of_set.shards[other])].address
                keys = reader.key(of_set, one), reader.key(of_set, other)
                raise collision(*keys, shard, int(of_set.starts[other]))
            gone.append(pairs.rows + first)
        return numpy.concatenate(gone)

    def arrange(self, surveyed: Surveyed) -> Arranged:
        """The rows of the first parts in output order, and those of each later set. Rows of first parts say afterwards
        what the joined samples will be. Raises DataError."""
        import numpy

        table = surveyed.samples
        policies = self.policies(surveyed.total_sets)
        sets = [
            SetRows(surveyed, first, end, [at for at, number in enumerate(surveyed.sets) if number == place])
            for place, (first, end) in enumerate(_bounds(surveyed))
        ]
        rows = match([of_set.samples.keys for of_set in sets], self.kind)
        measured = Measured(policies, sets, rows)
        if measured.trouble is not None:
            at, error = measured.trouble
            raise self._conflict(surveyed, sets, [int(column[at]) for column in rows], error)
        made = len(rows[0])
        totals: list[int] = [of_set.samples.total for of_set in sets]
        matched = int(numpy.logical_and.reduce([column >= 0 for column in rows]).sum())
        used = int(sum((column >= 0).sum() for column in rows))
        own: I64 = numpy.full(made, -1, dtype=numpy.int64)
        others: list[Ordered] = []
        for of_set in sets:
            column = rows.pop(0)
            numpy.add(column, of_set.first, out=column, where=column >= 0)
            is_own = (own < 0) & (column >= 0)
            own[is_own] = column[is_own]
            if of_set is not sets[0]:
                # The last row stands for nobody.
                column[is_own] = -1
                others.append(Ordered(table, column))
        table.out_lengths[own] = measured.lengths
        table.members[own] = measured.members
        table.marks[own] |= numpy.where(measured.changed, CHANGED, 0).astype(numpy.uint8)
        counts = JoinCounts(
            matched,
            tuple(total - matched for total in totals),
            used - made,
            measured.replaced,
            measured.left_out,
            measured.renamed,
        )
        remark = f"no key is in all {len(sets)} sets: each argument is one set, so that patterns need quotes"
        left = sum(totals) - used
        return Arranged(
            own,
            dropped={NO_PARTNER: left} if left else {},
            joined=Joined(tuple(others), tuple(surveyed.sets), policies, counts),
            remark=remark if not made and any(totals) else "",
        )

    def _conflict(
        self, surveyed: Surveyed, sets: Sequence[SetRows], rows: Sequence[int], error: DataError
    ) -> DataError:
        """The error of a sample whose fields cannot be beside each other, with its key and places."""
        parts = [
            of_set.samples.part(row, row + 1) for of_set, row in zip(sets, rows, strict=True) if row >= 0
        ]
        addresses = [surveyed.reader.inputs[int(part.shards[0])].address for part in parts]
        key = surveyed.reader.key(parts[0], 0)
        is_table = self.table is not None and rows[-1] >= 0
        return DataError(
            f'sample "{to_text(key)}" {error.message}: {", ".join(addresses)}',
            code=error.code,
            shard=None if is_table else addresses[-1],
            offset=None if is_table else int(parts[-1].starts[0]),
            hint=error.hint,
        )


def nobody() -> Rows:
    """The row that stands for a part that is not there."""
    import numpy

    row: Rows = numpy.zeros(1, dtype=row_type())
    row["shard"] = NOBODY
    return row


def _bounds(surveyed: Surveyed) -> list[tuple[int, int]]:
    """The first row and the end of each set, which lie one behind the other."""
    return list(pairwise(accumulate(surveyed.counts_of_sets(), initial=0)))
