"""Epochs that are not the source's own: ``with_epoch``, ``repeat``, and one that never ends.

What it is: :class:`Span`, a source whose epochs are stretches of the epochs of another, laid end to end. How: positions
are counted on through the epochs of the source, each of which keeps its own order, so nothing comes twice before all
has come once, and a state stays exact. It must not know what a sample is, nor who reads.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, TypeAlias

from wdscli.errors import UsageError
from wdscli.loader.read.failures import instead
from wdscli.loader.read.source import EpochReader, PositionSource

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    I64: TypeAlias = NDArray[numpy.int64]

ENDLESS = 1 << 62
"""Positions of an epoch that never ends."""
OPEN_EPOCHS = 2
"""Epochs of the source whose readers are kept: batches lie across the end of one and the beginning of the next."""


class Span:
    """Epochs of ``passes`` epochs of a source, None for no end, cut off at ``positions``, None for no cut.

    When there is a cut and no other end, the next epoch goes on where the last was cut; with ``passes`` it begins with
    the next epoch of the source. ``told`` is what a state must share: plain values.
    """

    def __init__(
        self, source: PositionSource, passes: int | None, positions: int | None, told: list[Any]
    ) -> None:
        self.source = source
        self.passes = passes
        self.positions = positions
        self._told = told

    def identity(self) -> dict[str, Any]:
        return {**self.source.identity(), "epoch length": self._told}

    def length(self, epoch: int) -> int:
        limit = ENDLESS if self.positions is None else self.positions
        if self.passes is None:
            return limit if self.source.length(0) else 0
        first = epoch * self.passes
        return min(limit, sum(self.source.length(first + number) for number in range(self.passes)))

    def reader(self, epoch: int) -> EpochReader:
        if self.passes is not None:
            return _SpanReader(self.source, epoch * self.passes, 0)
        if self.positions is None:
            return _SpanReader(self.source, epoch, 0)
        return _SpanReader(self.source, 0, epoch * self.positions)


class _SpanReader:
    """Positions counted from ``skipped`` positions behind the beginning of epoch ``first`` of the source."""

    def __init__(self, source: PositionSource, first: int, skipped: int) -> None:
        self._source = source
        self._first = first
        self._skipped = skipped
        self._ends: list[int] = []
        self._readers: OrderedDict[int, EpochReader] = OrderedDict()

    def read(self, positions: I64) -> list[Any]:
        """The samples at some positions, in their order."""
        import numpy

        if not len(positions):
            return []
        places = positions + self._skipped
        self._measure(int(places.max()))
        numbers = numpy.searchsorted(numpy.array(self._ends, dtype=numpy.int64), places, side="right")
        found: list[Any] = [None] * len(places)
        for number in numpy.unique(numbers).tolist():
            rows = numpy.flatnonzero(numbers == number)
            begin = self._ends[number - 1] if number else 0
            for row, sample in zip(rows.tolist(), self._reader(number).read(places[rows] - begin)):
                found[row] = sample
        return found

    def instead(self, position: int, step: int) -> Any:
        """A sample of the same epoch of the source."""
        place = position + self._skipped
        self._measure(place)
        number = bisect_right(self._ends, place)
        begin = self._ends[number - 1] if number else 0
        return instead(self._reader(number), place - begin, step, self._ends[number] - begin)

    def _measure(self, place: int) -> None:
        """Know the ends of epochs up to the one that ``place`` is in."""
        while not self._ends or self._ends[-1] <= place:
            length = self._source.length(self._first + len(self._ends))
            if not length:
                raise UsageError("an epoch without samples cannot be repeated")
            self._ends.append((self._ends[-1] if self._ends else 0) + length)

    def _reader(self, number: int) -> EpochReader:
        reader = self._readers.get(number)
        if reader is None:
            reader = self._readers[number] = self._source.reader(self._first + number)
            if len(self._readers) > OPEN_EPOCHS:
                self._readers.popitem(last=False)[1].close()
        self._readers.move_to_end(number)
        return reader

    def close(self) -> None:
        """Let go of files."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
