"""This module takes the values of samples that an order needs, and keeps them.

:class:`Extract` takes a byte string of each sample during the survey of its shard. :class:`Values` keeps the byte
strings of all samples in scratch space. One mapped file has all bytes, and two more have the places and the lengths.
This module does not know what the values mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from wdscli.arrays import I64, U8, U32, Rows, blocks_of, numpy
from wdscli.ordering import WORD_BYTES, order_of_values
from wdscli.plan.table import Growing, moved_up
from wdscli.samples import SampleBatch
from wdscli.samples.grouping import SampleAt
from wdscli.selection.named import Named
from wdscli.selection.reading import MemberReader
from wdscli.shards.index import Index

VALUES_PER_BLOCK = 1 << 14
"""How many values are Python objects at the same time."""


class Extract:
    """Takes the value of each sample that an order needs, other than the sample's place. Surveys run in other
    processes, so extracts are picklable. A subclass defines :meth:`value`, or :meth:`values` if that is faster."""

    @property
    def payload_fields(self) -> frozenset[bytes]:
        """The fields whose payloads :meth:`values` may read. They have their names in the inputs."""
        return frozenset()

    def using(self, names: frozenset[str]) -> Extract:
        """Return the extract for a shard with an index that stores exact values with these names."""
        return self

    @property
    def named(self) -> Sequence[Named]:
        """The names that the user typed. Some sample must have each of them."""
        return ()

    @property
    def shapes(self) -> list[tuple[bytes, ...]]:
        """For a join: the lists of fields to which the numbers in values refer."""
        return []

    def values(
        self, batch: SampleBatch, rows: Sequence[int], shard: str, payload_of: MemberReader
    ) -> list[bytes]:
        """Return one value for each of the ``rows`` of ``batch``. ``shard`` is the input's address. ``payload_of(row,
        field)`` reads a payload of the batch. Raises DataError that names shard, byte and member."""
        return [self.value(SampleAt(batch, row, shard, payload_of)) for row in rows]

    def value(self, sample: SampleAt) -> bytes:
        """Return the value of one sample."""
        raise NotImplementedError

    def values_of_index(self, index: Index) -> PackedValues | None:
        """Return the values of all samples of an index if no sample is special. Return None if :meth:`values` must be
        called instead."""
        return None


class PackedValues(NamedTuple):
    """Values in a compact form for transport: their lengths, and their joined bytes."""

    lengths: U32
    data: U8

    @classmethod
    def of(cls, values: Sequence[bytes]) -> PackedValues:
        """Pack values."""
        lengths: U32 = numpy.fromiter(map(len, values), numpy.uint32, len(values))
        return cls(lengths, numpy.frombuffer(b"".join(values), numpy.uint8))


class RowBlock(NamedTuple):
    """Some rows of a survey, with the values of their samples if an order needs values."""

    rows: Rows
    values: PackedValues


class GrowingValues:
    """Collects values while they are found. ``folder`` is for their files; None means TMPDIR."""

    def __init__(self, folder: str | None = None) -> None:
        self._lengths = Growing(folder)
        self._starts = Growing(folder)
        self._data = Growing(folder)
        self._size = 0

    def append(self, packed: PackedValues) -> None:
        """Add values. Raises OutputError."""
        ends = numpy.cumsum(packed.lengths, dtype=numpy.int64) + self._size
        self._lengths.append(packed.lengths)
        self._starts.append(ends - packed.lengths)
        self._data.append(packed.data)
        self._size += len(packed.data)

    def values(self) -> Values:
        """Return all values. No value can be added afterwards."""
        # Eight bytes must also follow the last value.
        self._data.append(bytes(WORD_BYTES))
        return Values(
            numpy.frombuffer(self._starts.mapped(), dtype=numpy.int64),
            numpy.frombuffer(self._lengths.mapped(), dtype=numpy.uint32),
            self._data.mapped(),
        )


class Values:
    """A byte string for each row of a table. In ``data``, eight spare bytes follow the last value."""

    def __init__(self, starts: I64, lengths: U32, data: memoryview) -> None:
        self.starts = starts
        self.lengths = lengths
        self.data = data

    @property
    def total(self) -> int:
        """The number of values."""
        return len(self.starts)

    def part(self, first: int, end: int) -> list[bytes]:
        """Return the values of the rows ``first`` to ``end - 1``."""
        begins = self.starts[first:end].tolist()
        lengths = self.lengths[first:end].tolist()
        if not begins:
            return []
        base, stop = min(begins), max(map(int.__add__, begins, lengths))
        if stop - base <= 2 * sum(lengths):
            data = bytes(self.data[base:stop])
            return [data[begin - base : begin - base + size] for begin, size in zip(begins, lengths)]
        return [bytes(self.data[begin : begin + size]) for begin, size in zip(begins, lengths)]

    def blocks(self) -> Iterator[list[bytes]]:
        """Yield lists of some thousands of values each."""
        for block in blocks_of(self.total, VALUES_PER_BLOCK):
            yield self.part(block.start, block.stop)

    def __iter__(self) -> Iterator[bytes]:
        """Yield all values."""
        return chain.from_iterable(self.blocks())

    def order(self) -> I64:
        """Return the rows sorted by their values. Rows with equal values stay in their order."""
        return order_of_values(self.starts, self.lengths, self.data)

    def words(self, rows: Any, place: int) -> U32:
        """For values that are lists of 32-bit numbers, return the number at ``place`` for some rows."""
        words = numpy.frombuffer(self.data, dtype=numpy.uint32, count=len(self.data) // 4)
        numbers: U32 = words[(self.starts[rows] >> 2) + place]
        return numbers

    def first(self, count: int) -> Values:
        """Return the first ``count`` values, or all values if there are fewer."""
        return Values(self.starts[:count], self.lengths[:count], self.data)

    def taken(self, rows: I64) -> Values:
        """Return the values of some rows, in the given order."""
        return Values(self.starts[rows], self.lengths[rows], self.data)

    def behind(self, size: int) -> Values:
        """Return all values without their first ``size`` bytes."""
        return Values(self.starts + size, self.lengths - self.lengths.dtype.type(size), self.data)

    def without(self, gone: Sequence[int] | I64) -> Values:
        """Return all values except those of the rows ``gone``, which are in ascending order. This object must not be
        used again."""
        return Values(moved_up(self.starts, gone), moved_up(self.lengths, gone), self.data)

    def fixed(self, width: int) -> U8:
        """Return a copy of the first ``width`` bytes of each value. No value may be shorter."""
        prefixes: U8 = numpy.empty((self.total, width), dtype=numpy.uint8)
        words = numpy.ndarray(
            (max(0, len(self.data) - width + 1),), dtype=f"V{width}", buffer=self.data, strides=(1,)
        )
        for part in blocks_of(self.total):
            prefixes[part] = words[self.starts[part]].view(numpy.uint8).reshape(-1, width)
        return prefixes
