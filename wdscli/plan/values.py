"""This module knows the values that an order needs of samples: where they are taken from, and how they are kept.

:class:`Extract` takes a byte string of each sample during the survey of its shard. :class:`Values` holds the byte
strings of all samples in scratch space: one after the other in a mapped file, their places and lengths in two more.
This module does not know what the values mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from wdscli.arrays import I64, U8, U32, Rows, numpy
from wdscli.plan.table import Growing, blocks_of, moved_up
from wdscli.samples import SampleBatch
from wdscli.samples.grouping import SampleAt
from wdscli.selection.named import Named
from wdscli.selection.reading import Payloads
from wdscli.shards.index import Index

WORD_BYTES = 8
VALUES_PER_BLOCK = 1 << 14
"""Values that are Python objects at the same time."""


class Extract:
    """The value of each sample that an order needs besides the sample's place. Picklable: surveys run in other
    processes. A subclass defines :meth:`value`, or :meth:`values` if that is cheaper."""

    @property
    def payload_fields(self) -> frozenset[bytes]:
        """The fields (as the inputs name them) whose payloads :meth:`values` may read."""
        return frozenset()

    def using(self, names: frozenset[str]) -> Extract:
        """The extract for a shard whose batches have exact stored values of these names."""
        return self

    @property
    def named(self) -> Sequence[Named]:
        """The names that a user gave, which some sample must have."""
        return ()

    @property
    def shapes(self) -> list[tuple[bytes, ...]]:
        """The lists of fields that the values number, for a join."""
        return []

    def values(
        self, batch: SampleBatch, rows: Sequence[int], shard: str, payload_of: Payloads
    ) -> list[bytes]:
        """One value for each of ``rows`` of ``batch``. ``shard`` is the input's address; ``payload_of(row, field)``
        reads a payload of the batch. Raises DataError that names shard, byte and member."""
        return [self.value(SampleAt(batch, row, shard, payload_of)) for row in rows]

    def value(self, sample: SampleAt) -> bytes:
        """The value of one sample."""
        raise NotImplementedError

    def values_of_index(self, index: Index) -> Packed | None:
        """The values of all samples of an index without special samples; None if only :meth:`values` can give them."""
        return None


class Packed(NamedTuple):
    """Values on their way: their lengths, and their bytes one after the other."""

    lengths: U32
    data: U8

    @classmethod
    def of(cls, values: Sequence[bytes]) -> Packed:
        """Pack values."""
        lengths: U32 = numpy.fromiter(map(len, values), numpy.uint32, len(values))
        return cls(lengths, numpy.frombuffer(b"".join(values), numpy.uint8))


class RowBlock(NamedTuple):
    """Some rows of a survey with the values of their samples, or with no values if none are needed."""

    rows: Rows
    values: Packed


class GrowingValues:
    """Values while they are found. ``folder`` is for their files, None for TMPDIR."""

    def __init__(self, folder: str | None = None) -> None:
        self._lengths = Growing(folder)
        self._starts = Growing(folder)
        self._data = Growing(folder)
        self._size = 0

    def append(self, packed: Packed) -> None:
        """Add values. Raises OutputError."""
        ends = numpy.cumsum(packed.lengths, dtype=numpy.int64) + self._size
        self._lengths.append(packed.lengths)
        self._starts.append(ends - packed.lengths)
        self._data.append(packed.data)
        self._size += len(packed.data)

    def values(self) -> Values:
        """All values. None can be added afterwards."""
        # The last value too must be followed by eight bytes.
        self._data.append(bytes(WORD_BYTES))
        return Values(
            numpy.frombuffer(self._starts.mapped(), dtype=numpy.int64),
            numpy.frombuffer(self._lengths.mapped(), dtype=numpy.uint32),
            self._data.mapped(),
        )


class Values:
    """A byte string for each row of a table. After the last come eight spare bytes in ``data``."""

    def __init__(self, starts: I64, lengths: U32, data: memoryview) -> None:
        self.starts = starts
        self.lengths = lengths
        self.data = data

    @property
    def total(self) -> int:
        """The number of values."""
        return len(self.starts)

    def part(self, first: int, end: int) -> list[bytes]:
        """The values of rows ``first`` to ``end``."""
        begins = self.starts[first:end].tolist()
        lengths = self.lengths[first:end].tolist()
        if not begins:
            return []
        base, stop = min(begins), max(map(int.__add__, begins, lengths))
        if stop - base <= 2 * sum(lengths):
            data = bytes(self.data[base:stop])
            return [data[at - base : at - base + size] for at, size in zip(begins, lengths)]
        return [bytes(self.data[at : at + size]) for at, size in zip(begins, lengths)]

    def blocks(self) -> Iterator[list[bytes]]:
        """Yield all values, some thousands at a time."""
        for some in blocks_of(self.total, VALUES_PER_BLOCK):
            yield self.part(some.start, some.stop)

    def __iter__(self) -> Iterator[bytes]:
        """Yield all values."""
        return chain.from_iterable(self.blocks())

    def words(self, rows: Any, place: int) -> U32:
        """The 32-bit number at ``place`` of the values of some rows, if values are lists of such numbers."""
        words = numpy.frombuffer(self.data, dtype=numpy.uint32, count=len(self.data) // 4)
        found: U32 = words[(self.starts[rows] >> 2) + place]
        return found

    def first(self, count: int) -> Values:
        """The first ``count`` values, or all."""
        return Values(self.starts[:count], self.lengths[:count], self.data)

    def taken(self, rows: I64) -> Values:
        """The values of some rows, in their order."""
        return Values(self.starts[rows], self.lengths[rows], self.data)

    def behind(self, size: int) -> Values:
        """All values without their first ``size`` bytes."""
        return Values(self.starts + size, self.lengths - self.lengths.dtype.type(size), self.data)

    def without(self, gone: Sequence[int] | I64) -> Values:
        """All values but those of the rows ``gone``, which rise. This object must not be used again."""
        return Values(moved_up(self.starts, gone), moved_up(self.lengths, gone), self.data)

    def fixed(self, width: int) -> U8:
        """A copy of the first ``width`` bytes of each value. No value may be shorter."""
        found: U8 = numpy.empty((self.total, width), dtype=numpy.uint8)
        words = numpy.ndarray(
            (max(0, len(self.data) - width + 1),), dtype=f"V{width}", buffer=self.data, strides=(1,)
        )
        for part in blocks_of(self.total):
            found[part] = words[self.starts[part]].view(numpy.uint8).reshape(-1, width)
        return found
