"""What joined samples will be: the bytes and members of each, known before anything is copied.

What it is: :class:`Measured`. How: what becomes of the fields is decided once for each combination of fields, of which
there are few; bytes and members are sums over arrays, corrected where a field gives way or gets another name. It must
not know how samples were matched, nor where they are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from wdscli.errors import DataError
from wdscli.plan.join.layout import Layout, OnConflict, Shape, Slot, lay_out
from wdscli.plan.join.survey import SetSurvey
from wdscli.tar.header import BLOCK

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    from wdscli.plan.table import I64

    Bools: TypeAlias = NDArray[numpy.bool_]


class Measured:
    """The bytes and members of all output samples, and the fields that gave way; a combination of fields at a time.

    ``rows`` has, for each set, the row that each output sample takes of it, -1 for none. ``trouble`` is the first
    output sample whose fields cannot be beside each other, and why.
    """

    def __init__(
        self, policies: Sequence[OnConflict], surveys: Sequence[SetSurvey], rows: Sequence[I64]
    ) -> None:
        import numpy

        self.surveys = surveys
        self.rows = rows
        total = len(rows[0])
        self.lengths: I64 = numpy.zeros(total, dtype=numpy.int64)
        self.members: I64 = numpy.zeros(total, dtype=numpy.int64)
        self.changed: Bools = numpy.zeros(total, dtype=numpy.bool_)
        self.replaced = self.left_out = self.renamed = 0
        for of_set, column in zip(surveys, rows, strict=True):
            there = column >= 0
            self.lengths[there] += of_set.samples.out_lengths[column[there]].astype(numpy.int64)
            self.members[there] += of_set.samples.members[column[there]]
        self.trouble: tuple[int, DataError] | None = None
        for chosen in self._combinations():
            parts = [
                of_set.shapes[int(of_set.shape_of[column[chosen[0]]])] if column[chosen[0]] >= 0 else None
                for of_set, column in zip(surveys, rows, strict=True)
            ]
            try:
                self._add(chosen, parts, lay_out(parts, policies))
            except DataError as error:
                if self.trouble is None or int(chosen[0]) < self.trouble[0]:
                    self.trouble = int(chosen[0]), error

    def _combinations(self) -> list[I64]:
        """Output samples, those together whose parts have the same fields; each group in output order."""
        import numpy

        kinds: I64 = numpy.zeros(len(self.rows[0]), dtype=numpy.int64)
        for of_set, column in zip(self.surveys, self.rows, strict=True):
            shapes: I64 = numpy.zeros(len(column), dtype=numpy.int64)
            there = column >= 0
            shapes[there] = of_set.shape_of[column[there]].astype(numpy.int64) + 1
            kinds = kinds * (len(of_set.shapes) + 1) + shapes
            if len(of_set.shapes) > 0:
                kinds = numpy.unique(kinds, return_inverse=True)[1].reshape(-1)
        if not len(kinds):
            return []
        order = numpy.argsort(kinds, kind="stable")
        bounds: I64 = numpy.flatnonzero(numpy.diff(kinds[order])) + 1
        return list(numpy.split(order, bounds))

    def _add(self, chosen: I64, parts: Sequence[Shape | None], layout: Layout) -> None:
        """Samples of one combination."""
        if layout.is_plain:
            return
        self.changed[chosen] = True
        self.members[chosen] = len(layout.slots)
        for slot in layout.out:
            self.lengths[chosen] -= self._blocks(chosen, parts, slot, False) * BLOCK
        for slot in layout.renamed:
            more = self._blocks(chosen, parts, slot, True)
            self.lengths[chosen] += (more - self._blocks(chosen, parts, slot, False)) * BLOCK
        self.replaced += layout.replaced * len(chosen)
        self.left_out += (len(layout.out) - layout.replaced) * len(chosen)
        self.renamed += len(layout.renamed) * len(chosen)

    def _blocks(self, chosen: I64, parts: Sequence[Shape | None], slot: Slot, is_renamed: bool) -> I64:
        """The blocks of one member of a part, for each of some output samples."""
        lengths = self.surveys[slot.part].lengths
        assert lengths is not None
        return lengths.blocks(self.rows[slot.part][chosen], slot.member, is_renamed)
