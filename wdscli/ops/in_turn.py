"""The parts of joined samples as one list of rows: all parts of the first sample, then those of the second, and so on.

What it is: :func:`in_turn`, such a list of a whole plan, by which a first pass spills part by part;
:class:`PartsInTurn`, that of one task; and :class:`OneByOne`, the lists one behind the other, to look at how samples
lie in the inputs. It must not know why samples are joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from wdscli.ops.table import Ordered, PlanTable, row_type

if TYPE_CHECKING:
    from wdscli.ops.table import I64, Rows


class PartsInTurn(PlanTable):
    """The rows of several lists of one length in turn. Columns and ``rows`` make all of them; use :meth:`part`."""

    __slots__ = ("_lists",)

    def __init__(self, lists: Sequence[PlanTable]) -> None:
        self._lists = lists

    @property
    def total(self) -> int:
        return self._lists[0].total * len(self._lists)

    @property
    def rows(self) -> Rows:
        return self.part(0, self.total).rows

    def part(self, first: int, end: int) -> PlanTable:
        import numpy

        width, end = len(self._lists), min(end, self.total)
        low, high = first // width, -(-end // width)
        rows: Rows = numpy.empty((high - low, width), dtype=row_type())
        for number, one in enumerate(self._lists):
            rows[:, number] = one.part(low, high).rows
        return PlanTable(rows.reshape(-1)[first - low * width : end - low * width])


def in_turn(lists: Sequence[Ordered]) -> Ordered:
    """The rows of all lists, which are of one length and over the same samples, in turn."""
    import numpy

    if len(lists) == 1:
        return lists[0]
    order: I64 = numpy.empty((lists[0].total, len(lists)), dtype=numpy.int64)
    for number, one in enumerate(lists):
        order[:, number] = numpy.arange(one.total) if one.order is None else one.order
    return Ordered(lists[0].samples, order.reshape(-1))


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
