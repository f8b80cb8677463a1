"""Joined samples, as plans and their tasks know them: their further parts, and the members that come from these.

:class:`Joined` holds the rows of each set but the first, of a plan or of one of its tasks. :func:`in_turn` returns all
parts of the first sample, then those of the second, and so on. This module does not know how partners were found or how
they are copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wdscli.arrays import I64, Rows, numpy
from wdscli.errors import DataError
from wdscli.model import to_text
from wdscli.plan.inputs import Stamp
from wdscli.plan.survey import RENAMED
from wdscli.plan.table import Ordered, PlanTable, row_type
from wdscli.selection.layers import OnConflict

MISSING_SHARD = 0xFFFFFFFF
"""The shard of a placeholder row, for a missing part."""
CHANGED = RENAMED
"""The mark of a sample in which a field gives way or gets another name. (A join renames no sample.)"""


class TableShard(NamedTuple):
    """A table that became a shard: rows left out, by reason; the bytes that were read; and the stamp of its content, by
    which a run is resumed."""

    dropped: dict[str, int]
    size_bytes: int
    stamp: Stamp


class JoinCounts(NamedTuple):
    """The result of a join. ``matched`` samples have a part of every set; ``unmatched`` counts, for each set, samples
    whose key another set lacks. ``partners`` samples were joined to an earlier one. Fields: ``replaced`` by those of a
    later set, ``left_out`` of a later set because the name was taken, ``renamed`` for the same reason. ``conflicts``
    counts the samples by field and by one of these words. ``kind`` is the value of --join."""

    matched: int
    unmatched: tuple[int, ...]
    partners: int
    replaced: int
    left_out: int
    renamed: int
    kind: str
    conflicts: dict[str, dict[str, int]]


class Joined(NamedTuple):
    """The further parts of samples in output order, all of a plan or those of one task: for each set but the first one
    row a sample, a row of the shard :data:`MISSING_SHARD` for a missing part. ``sets`` is the set (from 0) of each
    input; ``policies`` has one policy for each set. ``counts`` has the counts of the plan."""

    others: tuple[Ordered, ...]
    sets: tuple[int, ...]
    policies: tuple[OnConflict, ...]
    counts: JoinCounts

    def part(self, first: int, end: int) -> Joined:
        """The further parts of samples ``first`` to ``end`` of the output."""
        return self._replace(others=tuple(other.slice(first, end) for other in self.others))

    def held(self) -> Joined:
        """A copy with rows in memory, for processes of other machines."""
        return self._replace(others=tuple(other.held() for other in self.others))

    def inputs(self, samples: Ordered) -> list[int]:
        """The inputs that the task reads, in rising order; ``samples`` are the first parts."""
        found = {number for some in (samples, *self.others) for number in some.shard_numbers()}
        return sorted(found - {MISSING_SHARD})


def in_turn(lists: Sequence[Ordered]) -> Ordered:
    """The rows of all lists, which have equal lengths, in turn."""
    if len(lists) == 1:
        return lists[0]
    if any(one.samples is not lists[0].samples for one in lists):
        return _beside_each_other(lists)
    order: I64 = numpy.empty((lists[0].total, len(lists)), dtype=numpy.int64)
    for number, one in enumerate(lists):
        order[:, number] = numpy.arange(one.total) if one.order is None else one.order
    return Ordered(lists[0].samples, order.reshape(-1))


def _beside_each_other(lists: Sequence[Ordered]) -> Ordered:
    """:func:`in_turn` for lists over different tables, in memory."""
    rows: Rows = numpy.empty((lists[0].total, len(lists)), dtype=row_type())
    for number, one in enumerate(lists):
        rows[:, number] = one.part(0, one.total).rows
    return Ordered(PlanTable(rows.reshape(-1)))


def collision(one: bytes, other: bytes, shard: str, offset: int) -> DataError:
    """The error of two different keys with equal hashes."""
    return DataError(
        f'the keys "{to_text(one)}" and "{to_text(other)}" have the same XXH3-64 hash, so they cannot be matched',
        code="hash-collision",
        shard=shard,
        offset=offset,
        hint="leave one of them out (--keys), or rename it",
    )
