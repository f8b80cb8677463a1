"""Samples of several sets brought together in memory: what a join is when its plan fits there.

What it is: :func:`match_held`, and :class:`Found`, what it says, as :mod:`wdscli.ops.join_large` does for plans on
disc. How: the rows of all sets lie in one array, and each set's column of the output is an order over it. It must not
know how samples were surveyed, nor where they are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from wdscli.ops.beside import NOBODY
from wdscli.ops.join_measure import Measured
from wdscli.ops.joined import CHANGED
from wdscli.ops.matching import JoinKind, match
from wdscli.ops.rows import Ordered, Samples, row_type

if TYPE_CHECKING:
    from wdscli.errors import DataError
    from wdscli.ops.join_survey import SetSurvey
    from wdscli.ops.layout import OnConflict
    from wdscli.ops.rows import I64, Rows


class Trouble(NamedTuple):
    """The first sample whose fields cannot be beside each other: why, and its parts, each with the number of its
    set."""

    error: DataError
    parts: list[tuple[int, Samples]]


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


def match_held(surveys: list[SetSurvey], kind: JoinKind, policies: Sequence[OnConflict]) -> Found | Trouble:
    """The samples in output order. Lets go of the surveys' own rows."""
    import numpy

    firsts = numpy.cumsum([0, *(of_set.samples.total for of_set in surveys)])
    pool = _pooled(surveys)
    rows = match([of_set.samples.keys for of_set in surveys], kind)
    measured = Measured(policies, surveys, rows)
    if measured.trouble is not None:
        row, error = measured.trouble
        return Trouble(error, parts_of(surveys, rows, row))
    own: I64 = numpy.full(len(rows[0]), -1, dtype=numpy.int64)
    others: list[Ordered] = []
    for number, column in enumerate(rows):
        there = numpy.where(column >= 0, column + firsts[number], -1)
        is_own = (own < 0) & (there >= 0)
        own[is_own] = there[is_own]
        if number:
            # The last row of the pool, which is -1, stands for nobody.
            others.append(Ordered(pool, numpy.where(is_own, -1, there)))
    pool.out_lengths[own] = measured.lengths
    pool.members[own] = measured.members
    pool.marks[own] |= numpy.where(measured.changed, CHANGED, 0).astype(numpy.uint8)
    return Found(
        [Ordered(pool, own), *others],
        matched=int(numpy.logical_and.reduce([column >= 0 for column in rows]).sum()),
        used=sum(int((column >= 0).sum()) for column in rows),
        totals=tuple(of_set.samples.total for of_set in surveys),
        replaced=measured.replaced,
        left_out=measured.left_out,
        renamed=measured.renamed,
    )


def parts_of(surveys: Sequence[SetSurvey], rows: Sequence[I64], row: int) -> list[tuple[int, Samples]]:
    """The parts of one output sample."""
    return [
        (number, surveys[number].samples.take([int(column[row])]))
        for number, column in enumerate(rows)
        if column[row] >= 0
    ]


def _pooled(surveys: list[SetSurvey]) -> Samples:
    """The rows of all sets, and behind them one that stands for nobody. The sets' own rows become views of these, one
    set at a time, so that no more than one is held twice."""
    import numpy

    pool: Rows = numpy.zeros(sum(of_set.samples.total for of_set in surveys) + 1, dtype=row_type())
    pool["shard"][-1] = NOBODY
    at = 0
    for number, of_set in enumerate(surveys):
        end = at + of_set.samples.total
        pool[at:end] = of_set.samples.rows
        surveys[number] = of_set._replace(samples=Samples(pool[at:end]))
        at = end
    return Samples(pool)
