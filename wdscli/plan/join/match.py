"""Samples of several sets brought together.

What it is: :func:`match_sets`, and :class:`Found`, what it says. How: the rows of all sets lie in one table, and each
set's column of the output is an order over it. It must not know how samples were surveyed, nor where they are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from wdscli.plan.join.keys import JoinKind, match
from wdscli.plan.join.measure import Measured
from wdscli.plan.join.parts import CHANGED
from wdscli.plan.table import Ordered, PlanTable

if TYPE_CHECKING:
    from wdscli.errors import DataError
    from wdscli.plan.join.layout import OnConflict
    from wdscli.plan.join.survey import SetSurvey
    from wdscli.plan.table import I64


class Trouble(NamedTuple):
    """The first sample whose fields cannot be beside each other: why, and its parts, each with the number of its
    set."""

    error: DataError
    parts: list[tuple[int, PlanTable]]


class Found(NamedTuple):
    """What came together. ``lists`` are the rows in output order: first parts, then those of each later set. ``used``
    counts rows of all sets that went into a sample, ``totals`` those that each set has."""

    lists: list[Ordered]
    matched: int
    used: int
    totals: tuple[int, ...]
    replaced: int
    left_out: int
    renamed: int


def match_sets(
    table: PlanTable, surveys: Sequence[SetSurvey], kind: JoinKind, policies: Sequence[OnConflict]
) -> Found | Trouble:
    """The samples in output order. ``table`` has the rows of all sets, and last the one that stands for nobody; rows
    of first parts say afterwards what the joined samples will be."""
    import numpy

    rows = match([of_set.samples.keys for of_set in surveys], kind)
    measured = Measured(policies, surveys, rows)
    if measured.trouble is not None:
        row, error = measured.trouble
        return Trouble(error, parts_of(surveys, rows, row))
    own: I64 = numpy.full(len(rows[0]), -1, dtype=numpy.int64)
    others: list[Ordered] = []
    for number, column in enumerate(rows):
        there = numpy.where(column >= 0, column + surveys[number].first, -1)
        is_own = (own < 0) & (there >= 0)
        own[is_own] = there[is_own]
        if number:
            others.append(Ordered(table, numpy.where(is_own, -1, there)))
    table.out_lengths[own] = measured.lengths
    table.members[own] = measured.members
    table.marks[own] |= numpy.where(measured.changed, CHANGED, 0).astype(numpy.uint8)
    return Found(
        [Ordered(table, own), *others],
        matched=int(numpy.logical_and.reduce([column >= 0 for column in rows]).sum()),
        used=sum(int((column >= 0).sum()) for column in rows),
        totals=tuple(of_set.samples.total for of_set in surveys),
        replaced=measured.replaced,
        left_out=measured.left_out,
        renamed=measured.renamed,
    )


def parts_of(surveys: Sequence[SetSurvey], rows: Sequence[I64], row: int) -> list[tuple[int, PlanTable]]:
    """The parts of one output sample."""
    return [
        (number, surveys[number].samples.take([int(column[row])]))
        for number, column in enumerate(rows)
        if column[row] >= 0
    ]
