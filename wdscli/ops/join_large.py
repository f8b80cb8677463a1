"""Samples of several sets brought together on disc: what a join is when its plan is larger than its share of memory.

What it is: :func:`stored_rows` and :func:`sorted_by_key`, which write the rows of one set down, and
:func:`match_stored`, which matches those of all. How: the sets are sorted by the hashes of their keys and gone through
side by side, as many hashes at a time as memory holds; what is found is sorted back into the order of the output. Of
the blocks that members take, only those of fields that may have to give way travel along. What remains in memory is the
list of shapes of each set.

It must not know how samples were surveyed, nor where they are written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from wdscli.ops.beside import NOBODY
from wdscli.ops.external import BLOCK, Stored, sort_records, store
from wdscli.ops.join_held import Found, Trouble, parts_of
from wdscli.ops.join_measure import Measured
from wdscli.ops.join_survey import SetSurvey, Taken, shapes_of
from wdscli.ops.joined import CHANGED
from wdscli.ops.large import StoredOrdered, StoredSamples
from wdscli.ops.layout import OnConflict, Shape, suffixed
from wdscli.ops.matching import JoinKind, match
from wdscli.ops.rows import Ordered, Samples, row_type
from wdscli.ops.scratch import Scratch

if TYPE_CHECKING:
    from wdscli.errors import DataError
    from wdscli.ops.external import Records
    from wdscli.ops.matching import Bools
    from wdscli.ops.rows import I64, U32, U64, Rows

SET_BITS = 48
"""An output sample's rank: the set of its first part above so many bits, its place in that set below."""
LEAST_AT_ONCE = 1 << 10


class ByKey(NamedTuple):
    """One set on disc, in the order of the hashes. ``contested`` are the fields whose blocks its records have."""

    records: Stored
    shapes: list[Shape]
    contested: dict[bytes, int]


class Contested(NamedTuple):
    """The blocks that contested fields take, in place of :class:`~wdscli.ops.join_survey.Lengths`."""

    fields: dict[bytes, int]
    records: Records

    def blocks(self, rows: I64, field: bytes, member: int, is_renamed: bool) -> I64:
        """Those of one field of some samples."""
        import numpy

        column = self.records["renamed" if is_renamed else "plain"][:, self.fields[field]]
        blocks: I64 = column[rows].astype(numpy.int64)
        return blocks


def stored_rows(taken: Sequence[Taken], first_shard: int, scratch: Scratch, limit: int) -> StoredSamples:
    """The rows of one set in a file; its shards count from ``first_shard``. Raises OutputError."""

    def rows() -> Iterator[Rows]:
        for number, one in enumerate(taken, first_shard):
            for some in one.survey.blocks():
                some["shard"] = number
                yield some
            one.survey.let_go()

    stored = store(rows(), row_type(), scratch.new_path("rows"))
    return StoredSamples(stored, 0, stored.total, scratch.new_path, limit)


def contested_fields(shapes: Sequence[Sequence[Shape]]) -> list[dict[bytes, int]]:
    """For each set the fields whose names another set has, or may give to a field of its own, with numbers."""
    fields = [{field for shape in of_set for field in shape} for of_set in shapes]
    names = [own | {suffixed(field, number) for field in own} for number, own in enumerate(fields)]
    found = []
    for number, own in enumerate(fields):
        elsewhere = set().union(*(names[other] for other in range(len(names)) if other != number))
        found.append({field: at for at, field in enumerate(sorted(own & elsewhere))})
    return found


def sorted_by_key(
    samples: StoredSamples, taken: Sequence[Taken], gone: Sequence[int], contested: dict[bytes, int]
) -> ByKey:
    """One set without the rows ``gone``, which rise, in the order of its hashes. Raises OutputError."""
    shapes, numbers = shapes_of(taken)
    kind = _kind(len(contested))
    blocks = _records(samples, taken, gone, contested, shapes, numbers)
    return ByKey(sort_records(blocks, kind, _key_of, samples.new_path, samples.limit), shapes, contested)


def _kind(contested: int) -> Any:
    import numpy

    size = (max(1, contested),)
    return numpy.dtype(
        [
            ("row", row_type()),
            ("at", "<u8"),
            ("shape", "<u4"),
            ("plain", "<u4", size),
            ("renamed", "<u4", size),
        ]
    )


def _key_of(records: Any) -> Any:
    return records["row"]["key"]


def _records(
    samples: StoredSamples,
    taken: Sequence[Taken],
    gone: Sequence[int],
    contested: dict[bytes, int],
    shapes: Sequence[Shape],
    numbers: Sequence[U32],
) -> Iterator[Records]:
    """The samples of one set, in its order."""
    import numpy

    widths: I64 = numpy.array([len(shape) for shape in shapes], dtype=numpy.int64)
    members = _members(shapes, contested)
    without: I64 = numpy.asarray(gone, dtype=numpy.int64)
    at = 0
    for one, mine in zip(taken, numbers, strict=True):
        begin = 0
        for first in range(0, one.shape_of.total, BLOCK):
            shape_of = mine[one.shape_of.read(first, first + BLOCK)]
            records: Any = numpy.zeros(len(shape_of), dtype=_kind(len(contested)))
            records["row"] = samples.part(at, at + len(shape_of)).rows
            records["at"] = numpy.arange(at, at + len(shape_of))
            records["shape"] = shape_of
            ends = numpy.cumsum(widths[shape_of])
            if one.plain.total and contested:
                places = (ends - widths[shape_of])[:, None] + members[shape_of]
                there = members[shape_of] >= 0
                for name, words in (("plain", one.plain), ("renamed", one.renamed)):
                    blocks = words.read(begin, begin + int(ends[-1]))
                    records[name] = numpy.where(there, blocks[numpy.where(there, places, 0)], 0)
            begin += int(ends[-1])
            low, high = int(without.searchsorted(at)), int(without.searchsorted(at + len(shape_of)))
            yield numpy.delete(records, without[low:high] - at)
            at += len(shape_of)


def _members(shapes: Sequence[Shape], contested: dict[bytes, int]) -> I64:
    """For each shape, which member each contested field is, -1 where it has none."""
    import numpy

    found: I64 = numpy.full((len(shapes), max(1, len(contested))), -1, dtype=numpy.int64)
    for number, shape in enumerate(shapes):
        for member, field in enumerate(shape):
            if field in contested:
                found[number, contested[field]] = member
    return found


def twice_stored(found: ByKey) -> Samples | None:
    """Two samples of one hash, if there are any."""
    for first in range(0, found.records.total, BLOCK):
        rows = found.records.read(first, first + BLOCK + 1)["row"]
        keys = rows["key"]
        same = keys[1:] == keys[:-1]
        if same.any():
            at = int(same.argmax())
            return Samples(rows[at : at + 2].copy())
    return None


class _Front:
    """A sorted set while it is gone through: the records that were read and not yet taken."""

    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self._at = 0
        self.records = stored.read(0, 0)

    @property
    def has_more(self) -> bool:
        """Whether some are still on disc."""
        return self._at < self._stored.total

    def fill(self, wanted: int) -> None:
        """Have at least half of ``wanted`` at hand, as far as there are any."""
        import numpy

        if 2 * len(self.records) < wanted and self.has_more:
            end = min(self._stored.total, self._at + wanted - len(self.records))
            self.records = numpy.concatenate((self.records, self._stored.read(self._at, end)))
            self._at = end

    def take(self, bound: U64 | None) -> Records:
        """Those whose hashes are at most ``bound``; None for all."""
        keys = self.records["row"]["key"]
        count = len(keys) if bound is None else int(keys.searchsorted(bound, side="right"))
        taken, self.records = self.records[:count], self.records[count:]
        return taken


def _side_by_side(sets: Sequence[ByKey], limit: int) -> Iterator[list[Records]]:
    """The records of all sets, those of equal hashes together."""
    fronts = [_Front(one.records) for one in sets]
    row = row_type().itemsize
    each = sum(one.records.kind.itemsize + 2 * row + 64 for one in sets)
    wanted = max(LEAST_AT_ONCE, limit // (3 * each))
    while True:
        for front in fronts:
            front.fill(wanted)
        # No hash comes twice in a set, so all that is on disc is greater than the last one at hand.
        lasts = [front.records["row"]["key"][-1] for front in fronts if front.has_more]
        taken = [front.take(min(lasts) if lasts else None) for front in fronts]
        if not any(map(len, taken)):
            return
        yield taken


class _Matching:
    """The state of one :func:`match_stored`."""

    def __init__(self, sets: Sequence[ByKey], kind: JoinKind, policies: Sequence[OnConflict]) -> None:
        import numpy

        self.sets = sets
        self.kind = kind
        self.policies = policies
        self.record = numpy.dtype([("rank", "<u8"), ("rows", row_type(), (len(sets),))])
        self.matched = self.used = self.replaced = self.left_out = self.renamed = 0
        self.trouble: tuple[int, Trouble] | None = None

    def blocks(self, limit: int) -> Iterator[Records]:
        """Output samples, in the order of their hashes."""
        for taken in _side_by_side(self.sets, limit):
            yield self._block(taken)

    def _block(self, taken: Sequence[Records]) -> Records:
        import numpy

        surveys = [
            SetSurvey(Samples(some["row"]), one.shapes, some["shape"], Contested(one.contested, some), [])
            for one, some in zip(self.sets, taken, strict=True)
        ]
        rows = match([some["row"]["key"] for some in taken], self.kind)
        ranks = _ranks(taken, rows)
        order = numpy.argsort(ranks)
        ranks, rows = ranks[order], [column[order] for column in rows]
        measured = Measured(self.policies, surveys, rows)
        if measured.trouble is not None:
            at, error = measured.trouble
            self._note(int(ranks[at]), error, surveys, rows, at)
        self._count(measured)
        made: Any = numpy.empty(len(ranks), dtype=self.record)
        made["rank"], made["rows"] = ranks, _side_rows(taken, rows)
        made["rows"]["out"][:, 0] = measured.lengths
        made["rows"]["members"][:, 0] = measured.members
        made["rows"]["mark"][:, 0] |= numpy.where(measured.changed, CHANGED, 0).astype(numpy.uint8)
        return made

    def _note(
        self, rank: int, error: DataError, surveys: Sequence[SetSurvey], rows: Sequence[I64], at: int
    ) -> None:
        """Remember the trouble that comes first in the output."""
        if self.trouble is None or rank < self.trouble[0]:
            self.trouble = rank, Trouble(error, parts_of(surveys, rows, at))

    def _count(self, measured: Measured) -> None:
        import numpy

        there = [column >= 0 for column in measured.rows]
        self.matched += int(numpy.logical_and.reduce(there).sum())
        self.used += sum(int(one.sum()) for one in there)
        self.replaced += measured.replaced
        self.left_out += measured.left_out
        self.renamed += measured.renamed


def _ranks(taken: Sequence[Records], rows: Sequence[I64]) -> U64:
    """The place in the output of each sample, among all of them: by its first part."""
    import numpy

    ranks: U64 = numpy.zeros(len(rows[0]), dtype=numpy.uint64)
    for number in reversed(range(len(rows))):
        there = rows[number] >= 0
        ranks[there] = taken[number]["at"][rows[number][there]] + numpy.uint64(number << SET_BITS)
    return ranks


def _side_rows(taken: Sequence[Records], rows: Sequence[I64]) -> Rows:
    """For each output sample its first part, then that of each later set; where there is none, nobody."""
    import numpy

    made: Rows = numpy.zeros((len(rows[0]), len(rows)), dtype=row_type())
    made["shard"] = NOBODY
    placed: Bools = numpy.zeros(len(rows[0]), dtype=bool)
    for number, column in enumerate(rows):
        there = column >= 0
        own, other = there & ~placed, there & placed
        placed |= there
        made[own, 0] = taken[number]["row"][column[own]]
        if number:
            made[other, number] = taken[number]["row"][column[other]]
    return made


def match_stored(
    sets: Sequence[ByKey], kind: JoinKind, policies: Sequence[OnConflict], scratch: Scratch, limit: int
) -> Found | Trouble:
    """The samples in output order. Removes the files of ``sets``. Raises OutputError."""
    state = _Matching(sets, kind, policies)
    by_rank = sort_records(state.blocks(limit), state.record, _rank_of, scratch.new_path, limit)
    totals = tuple(one.records.total for one in sets)
    for one in sets:
        os.unlink(one.records.path)
    if state.trouble is not None:
        return state.trouble[1]
    lists = [_column(by_rank, number, scratch, limit) for number in range(len(sets))]
    os.unlink(by_rank.path)
    return Found(
        lists,
        matched=state.matched,
        used=state.used,
        totals=totals,
        replaced=state.replaced,
        left_out=state.left_out,
        renamed=state.renamed,
    )


def _rank_of(records: Any) -> Any:
    return records["rank"]


def _column(by_rank: Stored, number: int, scratch: Scratch, limit: int) -> Ordered:
    """One list of rows out of those that lie side by side."""
    import numpy

    blocks = (numpy.ascontiguousarray(some["rows"][:, number]) for some in by_rank.blocks())
    stored = store(blocks, row_type(), scratch.new_path("parts"))
    return StoredOrdered(StoredSamples(stored, 0, stored.total, scratch.new_path, limit))
