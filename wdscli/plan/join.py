"""``merge --join``: match samples of several sets by key, and combine their fields.

:class:`Join` is an order. Its samples have a row in each of several sets, which follow each other in the plan's table.
Each set has its own column of row numbers. :func:`match` finds partners by the XXH3-64 of keys. :class:`Shapes` is the
extract of a join. :class:`JoinedSizes` computes the bytes and members of all joined samples before anything is copied.

Different keys may have equal XXH3-64. A second hash, with a secret random seed, distinguishes them.

A table first becomes a shard in scratch space, and then is treated like the other sets. A set must not contain a key
twice. Sorted hashes of one set are looked up in the sorted hashes of another, a whole array at a time. So ten million
keys take seconds. The *shape* of a sample is its list of fields; a set has few shapes. A survey takes the number of
each sample's shape. If fields may conflict, it also takes the blocks of each member. Conflicts are decided once for
each combination of shapes. Bytes and members are sums over arrays, corrected for fields that are dropped or renamed.
The copier checks by name that partners belong together (:mod:`wdscli.copy.copier`). This module does not know names, or
how shards are written.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, ClassVar, Literal

from xxhash import xxh3_64_intdigest

from wdscli.arrays import I64, U32, U64, Mask, Rows, numpy, runs
from wdscli.errors import DataError, UsageError
from wdscli.ordering import order_of_hashes, repeated
from wdscli.plan.duplicates import Pairs, repeated_error, repeated_keys
from wdscli.plan.inputs import Input, TableShard
from wdscli.plan.orders import VALUED_BYTES, Arrangement, Look, Order, SurveyedSamples
from wdscli.plan.request import Request
from wdscli.plan.scratch import Scratch
from wdscli.plan.survey import SurveyTask, out_length
from wdscli.plan.table import (
    CHANGED,
    MISSING_SHARD,
    Extract,
    JoinCounts,
    JoinedParts,
    OrderedSamples,
    PackedValues,
    PlanTable,
    blocks_of_keys,
    row_type,
)
from wdscli.progress import Progress
from wdscli.samples import SampleBatch
from wdscli.samples.grouping import SampleAt
from wdscli.selection import Selection
from wdscli.selection.layers import JoinedMembers, OnConflict, Shape, Slot, lay_out, suffixed
from wdscli.selection.named import MissingName
from wdscli.selection.reading import MemberReader
from wdscli.shards.index import Index
from wdscli.shards.view import is_view
from wdscli.storage import addresses_of, base_name
from wdscli.tar import Form
from wdscli.tar.header import BLOCK
from wdscli.text import to_text

JoinKind = Literal["inner", "left", "outer"]
LARGEST_BYTES = 1 << 40
"""The largest payload whose blocks can be counted in 32 bits."""
HASH_WORDS = 2
"""How many 32-bit numbers a second hash has."""
NO_PARTNER = "no-partner"
"""The reason for leaving out a sample because another set lacks its key."""
second_hash = xxh3_64_intdigest
"""The second hash, of a key and a seed. It distinguishes keys with equal XXH3-64."""


@dataclass(frozen=True)
class JoinedTable:
    """A table that is joined like one more set. It has files, a key column, and fields, as in the options.
    :class:`~wdscli.create.join_table.TableSet` reads its rows."""

    files: str | tuple[str, ...]
    key: str
    fields: tuple[str, ...]
    json_rest: bool = False
    """Whether the remaining columns are added to the JSON objects of the earlier sets."""
    on: str = ""
    """The expression whose value in a sample is the key of its row. If it is empty, the sample's key is."""
    has_lists: bool = False
    """Whether rows with the same key become lists."""
    on_conflict: ClassVar[OnConflict] = "right"
    """The default policy for a field that the earlier sets have."""
    noun: ClassVar[str] = "table"
    hint: ClassVar[str] = "make a set of the table first: wds create --from; or share a folder: --tmp DIR"

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the files. Raises UsageError if standard input is named twice."""
        return addresses_of(self.files, "--table")

    def write_shard(self, address: str, request: Request, progress: Progress, look: Look) -> TableShard:
        """Write the rows as a shard at ``address``. ``look`` reads the earlier sets for ``json_rest``. The request's
        ``on_error`` and ``on_duplicate`` decide about bad rows and repeated keys. Raises UsageError for a missing
        column, DataError with the places of bad rows, InputError, and OutputError."""
        raise NotImplementedError


@dataclass(frozen=True)
class Join(Order):
    """How sets are joined. If ``on_conflict`` is None, it means ``error`` for sets of shards, and ``right`` for a
    table. The table is the last set."""

    kind: JoinKind = "inner"
    on_conflict: OnConflict | None = None
    table: JoinedTable | None = None
    operation = "merge"
    bytes_per_sample = VALUED_BYTES
    is_join = True

    @property
    def may_keep_names(self) -> bool:
        # An outer join has keys that are in no shard of the first set.
        return self.kind != "outer"

    def options(self) -> dict[str, Any]:
        """Return the options that change the result, for the manifest."""
        options: dict[str, Any] = {"join": self.kind, "on_conflict": self.on_conflict}
        if (table := self.table) is not None:
            names = list(map(base_name, table.addresses))
            options |= {"table": names[0] if len(names) == 1 else names, "key": table.key}
            options |= {"field": list(table.fields), "json_rest": table.json_rest or None}
            options |= {"on": table.on or None, "on_duplicate": "list" if table.has_lists else None}
        return {name: value for name, value in options.items() if value is not None}

    @property
    def placeholder(self) -> Rows:
        row: Rows = numpy.zeros(1, dtype=row_type())
        row["shard"] = MISSING_SHARD
        return row

    def other_files(self) -> Sequence[str]:
        if self.table is None:
            return ()
        if any("=@" in field for field in self.table.fields):
            raise UsageError(
                "--if-changed does not check the files that a table names",
                hint="leave out --if-changed, or make shards of them first: wds create --from",
            )
        return self.table.addresses

    def check_request(self, request: Request, addresses: Sequence[str]) -> None:
        """Raise UsageError for options that contradict each other; ``addresses`` are the shards of all inputs."""
        if len(request.inputs) + (self.table is not None) < 2:
            raise UsageError(
                "a join needs two sets, or a table",
                hint="each argument is one set: wds merge --join inner 'images-*.tar' 'captions-*.tar' -o OUT",
            )
        if request.rekey is not None or request.on_duplicate == "rekey":
            raise UsageError(
                "a join matches by key, so it cannot give new keys",
                hint="give new keys afterwards: wds cat --rekey FORMAT",
            )
        if self.table is not None and self.table.json_rest and self.on_conflict not in (None, "right"):
            raise UsageError(
                f"--json-rest and --on-conflict {self.on_conflict} exclude each other: "
                "--json-rest changes the field json",
                hint="leave out --on-conflict; by default a table's fields replace fields of the same name",
            )
        selection = request.selection
        if self.kind == "outer" and (selection.where is not None or selection.span is not None):
            raise UsageError(
                "--where and --slice select samples of the first set, but an outer join keeps all samples",
                hint="select first with wds cat, or use --join left",
            )
        if selection.draw is not None and selection.draw.is_open:
            raise UsageError(
                f"--sample {selection.draw.text} works on one set, but a join has several",
                hint="use a share (--sample 10%), or sample each set first with wds cat --sample",
            )
        is_taken = selection.reads_stdin or "-" in addresses
        if self.table is not None and "-" in self.table.addresses and is_taken:
            raise UsageError(
                "standard input can be only one input: a table, shards or keys", hint="--table FILE"
            )

    def policies(self, sets: int) -> tuple[OnConflict, ...]:
        """Return the policy of each of ``sets`` sets for a field that already exists."""
        default: list[OnConflict] = ["error"] * sets
        if self.table is not None:
            default[-1] = self.table.on_conflict
        return tuple(self.on_conflict or policy for policy in default)

    def templates(self, template: SurveyTask, request: Request, sets: int) -> list[SurveyTask]:
        """Return the survey task for the shards of each set. Samples are selected in the first set; the later sets are
        matched by key."""
        policies = self.policies(sets)
        has_lengths = any(policy != "error" for policy in policies[1:])
        chosen = request.selection
        if self.kind != "left" or request.on_duplicate == "skip":
            chosen = chosen._replace(limit=None)
        later_selection = Selection(key_rule=chosen.key_rule, field_rule=chosen.field_rule, draw=chosen.draw)
        templates, seed = [], int.from_bytes(os.urandom(8), "little")
        for of_set in range(len(policies)):
            selection = later_selection if of_set else chosen
            extract = Shapes(selection, template.form, of_set, has_lengths, seed)
            templates.append(template._replace(selection=selection, extract=extract, of_set=of_set))
        return templates

    def table_shard(
        self, request: Request, scratch: Scratch | None, number: int, progress: Progress, look: Look
    ) -> tuple[Input, TableShard] | None:
        """Return the table as input ``number``, with its rows written to a shard, and the facts about the table."""
        if (table := self.table) is None:
            return None
        address = "::".join(table.addresses)
        if scratch is None or is_view(request.output):
            reader = "the tasks" if scratch is None else "a view"
            raise UsageError(
                f"{reader} cannot read the {table.noun} {address}: its copy is in local scratch space",
                hint=table.hint,
            )
        place = scratch.place(number)
        shard = table.write_shard(place, request, progress, look)
        return Input(address, place, stamp=shard.stamp), shard

    def repeated(self, surveyed: SurveyedSamples, request: Request) -> Pairs:
        """Return the rows that repeat a key in their set. Raises DataError if repeated keys are an error."""
        table, reader = surveyed.samples, surveyed.reader
        is_error = request.on_duplicate == "error"
        rows, firsts = list[I64](), list[I64]()
        for first, end in _bounds(surveyed):
            set_table = table.part(first, end)
            pairs = repeated_keys(set_table, reader, first_only=is_error)
            if len(pairs.rows) and is_error:
                hint = "a join needs each key once in a set: --on-duplicate skip leaves out later ones"
                raise repeated_error(set_table, reader, pairs, hint=hint)
            rows.append(pairs.rows + first)
            firsts.append(pairs.firsts + first)
        return Pairs(numpy.concatenate(rows), numpy.concatenate(firsts))

    def arrange(self, surveyed: SurveyedSamples) -> Arrangement:
        """Return the rows of first parts in output order, and the rows of each later set. The rows of first parts then
        have the sizes of the joined samples. Raises DataError."""
        table = surveyed.samples
        policies = self.policies(surveyed.total_sets)
        sets = [
            SetRows(surveyed, first, end, set_number)
            for set_number, (first, end) in enumerate(_bounds(surveyed))
        ]
        rows = match_exactly(sets, self.kind)
        measured = JoinedSizes(policies, sets, rows)
        if measured.trouble is not None:
            sample, error = measured.trouble
            raise self._conflict(surveyed, sets, [int(column[sample]) for column in rows], error)
        totals: list[int] = [of_set.samples.total for of_set in sets]
        matched = int(numpy.logical_and.reduce([column >= 0 for column in rows]).sum())
        used = int(sum((column >= 0).sum() for column in rows))
        own, later_parts = _own_and_later_parts(table, sets, rows)
        table.out_lengths[own] = measured.lengths
        table.members[own] = measured.members
        table.marks[own] |= numpy.where(measured.changed, CHANGED, 0).astype(numpy.uint8)
        left, partners = sum(totals) - used, used - len(own)
        counts = JoinCounts(
            matched,
            tuple(total - matched for total in totals),
            partners,
            measured.replaced,
            measured.left_out,
            measured.renamed,
            self.kind,
            measured.conflicts,
        )
        return Arrangement(
            own,
            dropped={NO_PARTNER: left} if left else {},
            joined=JoinedParts(later_parts, tuple(surveyed.sets), policies, counts),
            absent=self._absent(surveyed) if any(totals) and self.kind != "outer" and not partners else None,
        )

    def _absent(self, surveyed: SurveyedSamples) -> MissingName:
        """Return the description of a join that matches no key. For a table, it is an error."""
        if self.table is None or self.table.noun == "set":
            what = "key" if self.table is None else f"value of {self.table.on}"
            hint = "each argument is one set, so quote patterns; `wds ls` lists keys"
            total = surveyed.total_sets
            return MissingName(f"no {what} is in all {total} sets", hint, needed=self.table is not None)
        ends = [(first, end) for first, end in _bounds(surveyed) if first < end]
        firsts = [to_text(surveyed.reader.key(surveyed.samples.part(first, end), 0)) for first, end in ends]
        unlike = f': the table has "{firsts[-1]}", the set has "{firsts[0]}"' if len(firsts) > 1 else ""
        return MissingName(
            f'no sample has a key of the column "{self.table.key}"{unlike}',
            f"the column is compared with {self.table.on}; `wds ls --count` lists its values"
            if self.table.on
            else "--key-column names the column with the keys of the samples; `wds ls` lists the keys",
        )

    def _conflict(
        self, surveyed: SurveyedSamples, sets: Sequence[SetRows], rows: Sequence[int], error: DataError
    ) -> DataError:
        """Return the error for a sample with conflicting fields. It names the key and the places of the parts."""
        parts = [of_set.samples.part(row, row + 1) for of_set, row in zip(sets, rows) if row >= 0]
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


def _own_and_later_parts(
    table: PlanTable, sets: Sequence[SetRows], rows: list[I64]
) -> tuple[I64, tuple[OrderedSamples, ...]]:
    """Return the row of each sample's first part, and for each later set the rows of its parts, as row numbers of the
    table. A missing part is -1, the table's last row, which is a placeholder. ``rows`` is emptied."""
    own: I64 = numpy.full(len(rows[0]), -1, dtype=numpy.int64)
    later_parts: list[OrderedSamples] = []
    for of_set in sets:
        column = rows.pop(0)
        numpy.add(column, of_set.first, out=column, where=column >= 0)
        is_own = (own < 0) & (column >= 0)
        own[is_own] = column[is_own]
        if of_set is not sets[0]:
            column[is_own] = -1
            later_parts.append(OrderedSamples(table, column))
    return own, tuple(later_parts)


def _bounds(surveyed: SurveyedSamples) -> list[tuple[int, int]]:
    """Return the first row and the end of each set in the table."""
    return list(pairwise(accumulate(surveyed.counts_of_sets(), initial=0)))


def match_exactly(sets: Sequence[SetRows], kind: JoinKind) -> list[I64]:
    """Call :func:`match` with the hashes of keys. If different keys have equal hashes, also use second hashes."""
    hashes: list[U64] = [of_set.samples.keys for of_set in sets]
    rows = match(hashes, kind)
    shared = [repeated(set_hashes)[1] for set_hashes in hashes]  # each set has a key only once by now
    seconds = [of_set.second_hashes() for of_set in sets]
    first: U64 = numpy.zeros(len(rows[0]), dtype=numpy.uint64)
    is_known: Mask = numpy.zeros(len(first), dtype=bool)
    for column, of_set, second in zip(rows, hashes, seconds, strict=True):
        rows_with_part = numpy.flatnonzero(column >= 0)
        second_hashes = second[column[rows_with_part]]
        differs = is_known[rows_with_part] & (first[rows_with_part] != second_hashes)
        shared.append(of_set[column[rows_with_part[differs]]])
        first[rows_with_part], is_known[rows_with_part] = second_hashes, True
    doubtful = numpy.unique(numpy.concatenate(shared))
    if not len(doubtful):
        return rows
    pairs = zip(hashes, seconds, strict=True)
    return match(
        [
            numpy.where(numpy.isin(set_hashes, doubtful), set_seconds, set_hashes)
            for set_hashes, set_seconds in pairs
        ],
        kind,
    )


def match(sets: Sequence[U64], kind: JoinKind) -> list[I64]:
    """Return, for each set, the row that each output sample takes from it, or -1.

    Output samples have the order of the first set. With ``outer``, the unmatched samples of the second set follow, in
    the order of that set, and so on.

    >>> import numpy
    >>> a, b = numpy.array([5, 3, 9], dtype="u8"), numpy.array([9, 4, 5], dtype="u8")
    >>> [rows.tolist() for rows in match([a, b], "outer")]
    [[0, 1, 2, -1], [2, -1, 0, 1]]
    >>> [rows.tolist() for rows in match([a, b], "inner")]
    [[0, 2], [2, 0]]
    """
    keys = sets[0]
    rows: list[I64] = [numpy.arange(len(keys), dtype=numpy.int64)]
    for hashes in sets[1:]:
        partners = find(keys, hashes)
        has_partner = partners >= 0
        if kind == "inner":
            keys, rows = keys[has_partner], [column[has_partner] for column in rows]
            partners = partners[has_partner]
        elif kind == "outer":
            alone: Mask = numpy.ones(len(hashes), dtype=numpy.bool_)
            alone[partners[has_partner]] = False
            unmatched_rows: I64 = numpy.flatnonzero(alone).astype(numpy.int64)
            keys = numpy.concatenate((keys, hashes[unmatched_rows]))
            nothing: I64 = numpy.full(len(unmatched_rows), -1, dtype=numpy.int64)
            rows = [numpy.concatenate((column, nothing)) for column in rows]
            partners = numpy.concatenate((partners, unmatched_rows))
        rows.append(partners)
    return rows


def find(wanted: U64, hashes: U64) -> I64:
    """Return the place of each wanted hash in ``hashes``, or -1 if it is missing."""
    if not len(hashes):
        return numpy.full(len(wanted), -1, dtype=numpy.int64)
    # Both arrays are sorted, so that the lookups go through memory in order.
    order, sorted_hashes = _rising(hashes)
    rows, rising = _rising(wanted)
    places = numpy.searchsorted(sorted_hashes, rising)
    numpy.minimum(places, len(sorted_hashes) - 1, out=places)
    matches: I64 = numpy.empty(len(wanted), dtype=numpy.int64)
    matches[rows] = numpy.where(sorted_hashes[places] == rising, order[places], -1)
    return matches


def _rising(hashes: U64) -> tuple[I64, U64]:
    """Return the rows sorted by hash, and the sorted hashes."""
    # A column of a table is not contiguous in memory.
    column = numpy.ascontiguousarray(hashes)
    order = order_of_hashes(len(column), column.__getitem__)
    return order, column[order]


class Shapes(Extract):
    """An extract of 32-bit numbers. First come the number of the sample's shape in ``shapes`` and the two halves of the
    key's second hash. With ``has_lengths``, the lengths of all members follow, in blocks of 512 bytes, header included.
    The lengths come twice, because a longer name may need a longer header: with the member's own name, and with the
    name that has this set's suffix."""

    def __init__(self, selection: Selection, form: Form, of_set: int, has_lengths: bool, seed: int) -> None:
        self.has_lengths = has_lengths
        self._selection = selection
        self._form = form
        self._of_set = of_set
        self._seed = seed
        self._numbers: dict[Shape, int] = {}

    @property
    def shapes(self) -> list[Shape]:
        """The shapes seen so far."""
        return list(self._numbers)

    def _number(self, shape: Shape) -> int:
        return self._numbers.setdefault(shape, len(self._numbers))

    def _hashes(self, keys: Iterable[bytes]) -> U32:
        """Return the second hashes of keys, one hash per row."""
        hashes = array("Q", [second_hash(key, self._seed) for key in keys])
        return numpy.frombuffer(hashes, "u4").reshape(-1, HASH_WORDS)

    def values_of_index(self, index: Index) -> PackedValues | None:
        """Return the values of all samples of an index, if all samples have equal fields in equal order; otherwise
        None."""
        count, total = index.samples, index.members
        if self._selection.changes_members or not count or total % count:
            return None
        width = total // count
        numbers = index.member_fields[:width]
        ends = numpy.arange(width, total + 1, width)
        if (index.member_ends != ends).any() or (index.member_fields.reshape(-1, width) != numbers).any():
            return None
        shape = tuple(index.fields[number] for number in numbers.tolist())
        longest = int(numpy.diff(index.key_ends, prepend=numpy.uint64(0)).max())
        words = self._alike(shape, longest, index.member_sizes, count)
        if words is None:
            return None
        for first, keys in blocks_of_keys(index):
            words[first : first + len(keys), 1 : 1 + HASH_WORDS] = self._hashes(keys)
        lengths: U32 = numpy.full(count, words.shape[1] * words.itemsize, dtype=numpy.uint32)
        return PackedValues(lengths, words.reshape(-1).view(numpy.uint8))

    def values(
        self, batch: SampleBatch, rows: Sequence[int], shard: str, payload_of: MemberReader
    ) -> list[bytes]:
        """Return the values of some samples of a batch. Raises DataError for a payload that is too large."""
        count, total = len(batch.keys), len(batch.fields)
        if not self._selection.changes_members and count == len(rows) and count and not total % count:
            width = total // count
            shape = tuple(batch.fields[:width])
            if batch.fields == list(shape) * count and batch.firsts == list(range(0, total + 1, width)):
                words = self._alike(shape, max(map(len, batch.keys)), batch.sizes, count)
                if words is not None:
                    words[:, 1 : 1 + HASH_WORDS] = self._hashes(batch.keys)
                    return [row.tobytes() for row in words]
        return [self._value(batch, row, shard) for row in rows]

    def _alike(self, shape: Shape, longest_key: int, sizes: Sequence[int] | U64, count: int) -> U32 | None:
        """Return the numbers of samples with the same shape, one row per sample. The places for second hashes are not
        filled. Return None if a member may need a header of more than one block."""
        leading = 1 + HASH_WORDS
        words: U32 = numpy.empty((count, leading + 2 * len(shape) * self.has_lengths), dtype=numpy.uint32)
        words[:, 0] = self._number(shape)
        if self.has_lengths:
            longest = longest_key + 1 + max(len(suffixed(field, self._of_set)) for field in shape)
            if longest > 100 or int(max(sizes)) >= 1 << 33:
                return None
            blocks = numpy.asarray(sizes, dtype=numpy.uint64) + numpy.uint64(2 * BLOCK - 1) >> numpy.uint64(9)
            middle = leading + len(shape)
            words[:, leading:middle] = words[:, middle:] = blocks.reshape(count, -1)
        return words

    def _value(self, batch: SampleBatch, row: int, shard: str) -> bytes:
        second = self._hashes([batch.keys[row]])[0].tolist()
        if not (self._selection.changes_members or self.has_lengths):
            shape = tuple(batch.fields[batch.firsts[row] : batch.firsts[row + 1]])
            return array("I", [self._number(shape), *second]).tobytes()
        plan = self._selection.plan_of(batch, row, shard)
        words = [self._number(tuple(field for _, field in plan)), *second]
        if self.has_lengths:
            words += [self._blocks(batch, row, place, field, shard) for place, field in plan]
            renamed = [(place, suffixed(field, self._of_set)) for place, field in plan]
            words += [self._blocks(batch, row, place, field, shard) for place, field in renamed]
        return array("I", words).tobytes()

    def _blocks(self, batch: SampleBatch, row: int, place: int, field: bytes, shard: str) -> int:
        """Return the number of blocks of one member with the name ``field``."""
        member = batch.firsts[row] + place
        size = batch.sizes[member]
        if size > LARGEST_BYTES:
            text = f"a payload of {size} bytes is too large for --on-conflict"
            raise SampleAt(batch, row, shard).error(text, "too-large", batch.fields[member])
        return out_length([(batch.keys[row] + b"." + field, size)], self._form) // BLOCK


class SetRows:
    """The samples of one set, by its number: the rows ``first`` to ``end - 1`` of the table."""

    def __init__(self, surveyed: SurveyedSamples, first: int, end: int, set_number: int) -> None:
        assert surveyed.values is not None
        self.first = first
        self.samples = surveyed.samples.part(first, end)
        self._values = surveyed.values
        numbers: dict[Shape, int] = {}
        self._numbers: dict[int, U32] = {}
        for number, of_set in enumerate(surveyed.sets):
            if of_set == set_number:
                of_shard = [numbers.setdefault(shape, len(numbers)) for shape in surveyed.shapes[number]]
                self._numbers[number] = numpy.array(of_shard, dtype=numpy.uint32)
        self.shapes = list(numbers)

    def second_hashes(self) -> U64:
        """The second hash of each sample's key."""
        rows: Any = slice(self.first, self.first + self.samples.total)
        return numpy.stack([self._values.words(rows, 1), self._values.words(rows, 2)], 1).view("u8")[:, 0]

    def shape_of(self) -> U32:
        """Return the number of each sample's shape."""
        shape_numbers = self._values.words(slice(self.first, self.first + self.samples.total), 0)
        numbered = list(self._numbers)
        ends: list[int] = self.samples.shards.searchsorted(numbered, side="right").tolist()
        for first, end, numbers in zip([0, *ends], ends, self._numbers.values()):
            shape_numbers[first:end] = numbers[shape_numbers[first:end]]
        return shape_numbers

    def shape(self, row: int) -> Shape:
        """Return the shape of one sample."""
        number = self._numbers[int(self.samples.shards[row])][self._values.words(self.first + row, 0)]
        return self.shapes[int(number)]

    def blocks(self, rows: I64, place: int) -> I64:
        """Return the number of blocks of one member, for some samples of one shape. ``place`` is the place in the
        extract's list."""
        return self._values.words(rows + self.first, 1 + HASH_WORDS + place).astype(numpy.int64)


_DONE: dict[OnConflict, str] = {"left": "left out", "right": "replaced", "suffix": "renamed"}
"""For each policy, the word that reports what happened to a field that an earlier set has."""


class JoinedSizes:
    """Computes the bytes and members of all output samples, and counts dropped and renamed fields. It handles one
    combination of shapes at a time.

    ``rows`` has, for each set, the row that each output sample takes from it, or -1. ``trouble`` is the first output
    sample with conflicting fields, and the error.
    """

    def __init__(self, policies: Sequence[OnConflict], sets: Sequence[SetRows], rows: Sequence[I64]) -> None:
        self._sets = sets
        self._rows = rows
        total = len(rows[0])
        self.lengths: I64 = numpy.zeros(total, dtype=numpy.int64)
        self.members: U32 = numpy.zeros(total, dtype=numpy.uint32)
        self.changed: Mask = numpy.zeros(total, dtype=bool)
        self.replaced = self.left_out = self.renamed = 0
        self.conflicts: dict[str, dict[str, int]] = {}
        for of_set, column in zip(sets, rows, strict=True):
            has_part: Any = slice(None) if (column >= 0).all() else column >= 0
            self.lengths[has_part] += of_set.samples.out_lengths[column[has_part]].astype(numpy.int64)
            self.members[has_part] += of_set.samples.members[column[has_part]]
        self.trouble: tuple[int, DataError] | None = None
        for chosen, parts in self._combinations():
            try:
                self._add(chosen, parts, lay_out(parts, policies))
            except DataError as error:
                if self.trouble is None or int(chosen[0]) < self.trouble[0]:
                    self.trouble = int(chosen[0]), error

    def _combinations(self) -> Iterator[tuple[I64, list[Shape | None]]]:
        """Yield groups of output samples with the same fields in all parts. Each group is in output order, and comes
        with these fields."""
        kinds: I64 = numpy.zeros(len(self.lengths), dtype=numpy.int64)
        most = 1
        for of_set, column in zip(self._sets, self._rows, strict=True):
            if most > 1 << 31:
                kinds = numpy.unique(kinds, return_inverse=True)[1].reshape(-1)
                most = len(kinds)
            if len(of_set.shapes) < 2:
                shapes: Any = column >= 0
            else:
                shapes = numpy.where(column >= 0, of_set.shape_of()[column].astype(numpy.int64) + 1, 0)
            kinds = kinds * (len(of_set.shapes) + 1) + shapes
            most *= len(of_set.shapes) + 1
        if not len(kinds):
            return
        groups = [numpy.arange(len(kinds))]
        if (kinds != kinds[0]).any():
            order = numpy.argsort(kinds, kind="stable")
            groups = [order[first:end] for first, end in runs(kinds[order])]
        for chosen in groups:
            rows = (int(column[chosen[0]]) for column in self._rows)
            yield chosen, [None if row < 0 else of_set.shape(row) for of_set, row in zip(self._sets, rows)]

    def _add(self, chosen: I64, parts: Sequence[Shape | None], layout: JoinedMembers) -> None:
        """Add the samples with one combination of shapes."""
        if layout.is_plain:
            return
        self.changed[chosen] = True
        self.members[chosen] = len(layout.slots)
        for slot in layout.out:
            self.lengths[chosen] -= self._blocks(chosen, slot, 0) * BLOCK
        for slot in layout.renamed:
            width = len(parts[slot.part] or ())
            extra_blocks = self._blocks(chosen, slot, width) - self._blocks(chosen, slot, 0)
            self.lengths[chosen] += extra_blocks * BLOCK
        self.replaced += layout.replaced * len(chosen)
        self.left_out += (len(layout.out) - layout.replaced) * len(chosen)
        self.renamed += len(layout.renamed) * len(chosen)
        for field, policy in sorted(layout.conflicts):
            counts, done = self.conflicts.setdefault(to_text(field), {}), _DONE[policy]
            counts[done] = counts.get(done, 0) + len(chosen)

    def _blocks(self, chosen: I64, slot: Slot, width: int) -> I64:
        """Return the number of blocks of one member, for each of some output samples. ``width`` is the distance to the
        chosen list of lengths in the values."""
        return self._sets[slot.part].blocks(self._rows[slot.part][chosen], width + slot.member)
