"""The values that an order needs of samples: where they are taken from, how they are kept, and how they are sorted.

:class:`Extract` takes a byte string of each sample during the survey of its shard. :class:`Values` holds the byte
strings of all samples in scratch space, and :meth:`Values.order` sorts the rows by them. This module does not know what
the values mean.

How values lie: one after the other in a mapped file, their places and lengths in two more. How they are sorted: as
whole numbers, by the eight bytes after the bytes that all have in common; equal numbers by the next eight bytes, and so
on. A value that ends is padded with zeros. Of two equal numbers one may end there: it is a prefix of the other, and
comes first. Only values that both continue are compared further. Equal values stay in the order of their rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from wdscli.arrays import I64, U8, U32, U64, Mask, Rows, numpy
from wdscli.plan.table import ROWS_PER_BLOCK, Growing, blocks_of, moved_up
from wdscli.samples import SampleBatch
from wdscli.selection.named import Named
from wdscli.selection.reading import Payloads
from wdscli.selection.sample import SampleAt
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
        self._data = data

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
            data = bytes(self._data[base:stop])
            return [data[at - base : at - base + size] for at, size in zip(begins, lengths)]
        return [bytes(self._data[at : at + size]) for at, size in zip(begins, lengths)]

    def blocks(self) -> Iterator[list[bytes]]:
        """Yield all values, some thousands at a time."""
        for some in blocks_of(self.total, VALUES_PER_BLOCK):
            yield self.part(some.start, some.stop)

    def __iter__(self) -> Iterator[bytes]:
        """Yield all values."""
        return chain.from_iterable(self.blocks())

    def words(self, rows: Any, place: int) -> U32:
        """The 32-bit number at ``place`` of the values of some rows, if values are lists of such numbers."""
        words = numpy.frombuffer(self._data, dtype=numpy.uint32, count=len(self._data) // 4)
        found: U32 = words[(self.starts[rows] >> 2) + place]
        return found

    def first(self, count: int) -> Values:
        """The first ``count`` values, or all."""
        return Values(self.starts[:count], self.lengths[:count], self._data)

    def taken(self, rows: I64) -> Values:
        """The values of some rows, in their order."""
        return Values(self.starts[rows], self.lengths[rows], self._data)

    def behind(self, size: int) -> Values:
        """All values without their first ``size`` bytes."""
        return Values(self.starts + size, self.lengths - self.lengths.dtype.type(size), self._data)

    def without(self, gone: Sequence[int] | I64) -> Values:
        """All values but those of the rows ``gone``, which rise. This object must not be used again."""
        return Values(moved_up(self.starts, gone), moved_up(self.lengths, gone), self._data)

    def fixed(self, width: int) -> U8:
        """A copy of the first ``width`` bytes of each value. No value may be shorter."""
        found: U8 = numpy.empty((self.total, width), dtype=numpy.uint8)
        words = numpy.ndarray(
            (max(0, len(self._data) - width + 1),), dtype=f"V{width}", buffer=self._data, strides=(1,)
        )
        for part in blocks_of(self.total):
            found[part] = words[self.starts[part]].view(numpy.uint8).reshape(-1, width)
        return found

    def order(self) -> I64:
        """The rows sorted by their values as bytes; equal values in the order of the rows."""
        return _Ordering(self, self._data).order()


class _Ordering:
    """The state of one call of :meth:`Values.order`."""

    def __init__(self, values: Values, data: memoryview) -> None:
        self.starts, self.lengths = values.starts, values.lengths
        # A number begins at every byte.
        count = max(0, len(data) - WORD_BYTES + 1)
        self._words = numpy.ndarray((count,), dtype=">u8", buffer=data, strides=(1,))
        ones = (1 << 64) - 1
        masks = [ones ^ (ones >> 8 * size) for size in range(WORD_BYTES + 1)]
        self._masks: U64 = numpy.array(masks, dtype=numpy.uint64)

    def order(self) -> I64:
        total = len(self.starts)
        depth = self._common()
        words: U64 = numpy.empty(total, dtype=numpy.uint64)
        for part in blocks_of(total):
            words[part] = self._words_at(part, depth)
        order: I64 = numpy.argsort(words, kind="stable").astype(numpy.int64, copy=False)
        tied: Mask = numpy.zeros(total, dtype=bool)
        for part in blocks_of(total, first=1):
            some = words[order[part.start - 1 : part.stop]]
            tied[part] = some[1:] == some[:-1]
        del words
        self._settle(order, tied, depth)
        while tied.any():
            depth += WORD_BYTES
            self._refine(order, tied, depth)
            self._settle(order, tied, depth)
        return order

    def _common(self) -> int:
        """The length of the common prefix of all values, in bytes, rounded down to whole words."""
        depth = 0
        shortest = int(self.lengths.min()) if len(self.lengths) else 0
        while depth + WORD_BYTES <= shortest:
            wanted = self._words_at(numpy.zeros(1, dtype=numpy.int64), depth)[0]
            for rows in blocks_of(len(self.starts)):
                if (self._words_at(rows, depth) != wanted).any():
                    return depth
            depth += WORD_BYTES
        return depth

    def _words_at(self, rows: Any, depth: int) -> U64:
        """The eight bytes at ``depth`` of the values of some rows, zeros after their end."""
        left = self.lengths[rows].astype(numpy.int64) - depth
        # Values that have ended may read anywhere.
        places = numpy.where(left > 0, self.starts[rows] + depth, 0)
        words: U64 = self._words[places].astype(numpy.uint64)
        words &= self._masks[numpy.clip(left, 0, WORD_BYTES)]
        return words

    def _refine(self, order: I64, tied: Mask, depth: int) -> None:
        """Sort runs of ties by the bytes at ``depth``; mark those that still tie."""
        for first, end in _runs_of_ties(tied):
            words = self._words_at(order[first:end], depth)
            _sort_run(order, tied, first, end, words)

    def _settle(self, order: I64, tied: Mask, depth: int) -> None:
        """Sort runs of ties by length where values end within the word at ``depth``; such values tie no longer."""
        for first, end in _runs_of_ties(tied):
            left = self.lengths[order[first:end]].astype(numpy.int64) - depth
            ends = numpy.clip(left, 0, WORD_BYTES + 1).astype(numpy.uint8)
            ends = _sort_run(order, tied, first, end, ends)
            tied[first + 1 : end] &= ends[1:] > WORD_BYTES


def _sort_run(order: I64, tied: Mask, first: int, end: int, by: Any) -> Any:
    """Sort the rows at places ``first`` to ``end`` by a number of each, within each run of ties. Returns the sorted
    numbers."""
    own = tied[first + 1 : end]
    # Often they are sorted already, or all equal.
    if not ((by[1:] >= by[:-1]) | ~own).all():
        group = numpy.cumsum(~tied[first:end], dtype=numpy.uint32)
        sequence = numpy.lexsort((by, group)) if group[-1] > group[0] else numpy.argsort(by, kind="stable")
        order[first:end] = order[first:end][sequence]
        by = by[sequence]
    own &= by[1:] == by[:-1]
    return by


def _runs_of_ties(tied: Mask) -> Iterator[tuple[int, int]]:
    """Yield ranges of places. A range is about a block long, and longer if necessary, so that it does not divide equal
    values. A place is
    tied if it ties with the place before it."""

    total, at = len(tied), 0
    while at < total:
        # From the place before the next tie ...
        ahead = tied[at : at + ROWS_PER_BLOCK]
        step = int(ahead.argmax())
        if not ahead[step]:
            at += len(ahead)
            continue
        first = at + step - 1
        # ... to the first that does not tie, a block further on.
        end = first + ROWS_PER_BLOCK
        while end < total:
            behind = tied[end : end + ROWS_PER_BLOCK]
            step = int(behind.argmin())
            if not behind[step]:
                end += step
                break
            end += len(behind)
        end = min(end, total)
        yield first, end
        at = end
