"""The parts of joined samples as one list of rows: all parts of the first sample, then those of the second, and so on.

What it is: :func:`in_turn`, such a list of a whole plan, by which a first pass spills part by part, or of one task; and
:class:`OneByOne`, the lists one behind the other, to look at how samples lie in the inputs. It must not know why
samples are joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from wdscli.plan.table import Ordered, PlanTable, row_type

if TYPE_CHECKING:
    from wdscli.plan.table import I64, Rows


def in_turn(lists: Sequence[Ordered]) -> Ordered:
    """The rows of all lists, which are of one length, in turn."""
    import numpy

    if len(lists) == 1:
        return lists[0]
    if any(one.samples is not lists[0].samples for one in lists):
        return _beside_each_other(lists)
    order: I64 = numpy.empty((lists[0].total, len(lists)), dtype=numpy.int64)
    for number, one in enumerate(lists):
        order[:, number] = numpy.arange(one.total) if one.order is None else one.order
    return Ordered(lists[0].samples, order.reshape(-1))


def _beside_each_other(lists: Sequence[Ordered]) -> Ordered:
    """The same of lists over different tables, in memory."""
    import numpy

    rows: Rows = numpy.empty((lists[0].total, len(lists)), dtype=row_type())
    for number, one in enumerate(lists):
        rows[:, number] = one.part(0, one.total).rows
    return Ordered(PlanTable(rows.reshape(-1)))


class OneByOne(Ordered):
    """Several lists, one behind the other."""

    __slots__ = ("_lists",)

    def __init__(self, lists: Sequence[Ordered]) -> None:
        super().__init__(lists[0].samples, lists[0].order)
        self._lists = lists

    @property
    def total(self) -> int:
        return sum(one.total for one in self._lists)

    def part(self, first: int, end: int) -> PlanTable:
        import numpy

        found, before = [], 0
        for one in self._lists:
            low, high = max(first - before, 0), min(end - before, one.total)
            if low < high:
                found.append(one.part(low, high).rows)
            before += one.total
        return PlanTable(numpy.concatenate(found) if found else numpy.empty(0, dtype=row_type()))
