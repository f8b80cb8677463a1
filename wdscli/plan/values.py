"""What an order wants to know of each sample, as byte strings in scratch space; and their order.

What it is: :class:`Values`, a byte string a sample, and :meth:`Values.order`, the rows in the order of these. How: the
strings lie one behind the other in a mapped file, their places and lengths in two more. They are ordered by a prefix
of eight bytes, as whole numbers, behind the bytes that all have in common; where prefixes tie, by the next eight bytes,
and so on. Values of one length and content stay in the order of their rows. It must not know what the values stand for.

Bytes that end are followed by zeros in such a number. Of two that tie, one that ends there is a beginning of the other,
so that the shorter comes first, and only strings that both go on are looked at again.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from wdscli.plan.table import ROWS_PER_BLOCK, Growing, PlanTable, moved_up

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    from wdscli.plan.table import I64, U32, U64, Mask

WORD_BYTES = 8
VALUES_PER_BLOCK = 1 << 14
"""Values that are objects of Python together."""


class Packed(NamedTuple):
    """Some values on their way: their lengths, and their bytes one behind the other."""

    lengths: array[int]
    data: bytes

    @classmethod
    def of(cls, values: Sequence[bytes]) -> Packed:
        """Values as they were found."""
        return cls(array("I", map(len, values)), b"".join(values))


class GrowingValues:
    """Values while they are found. ``folder`` is where their files lie, None for TMPDIR."""

    def __init__(self, folder: str | None = None) -> None:
        self._lengths = Growing(folder)
        self._starts = Growing(folder)
        self._data = Growing(folder)
        self._size = 0

    def append(self, packed: Packed) -> None:
        """Add values. Raises OutputError."""
        import numpy

        lengths: U32 = numpy.frombuffer(packed.lengths, dtype=numpy.uint32)
        ends = numpy.cumsum(lengths, dtype=numpy.int64) + self._size
        self._lengths.append(lengths)
        self._starts.append(ends - lengths)
        self._data.append(packed.data)
        self._size += len(packed.data)

    def values(self) -> Values:
        """All of them; none is appended any more."""
        import numpy

        # So that the last value too is followed by a whole number.
        self._data.append(bytes(WORD_BYTES))
        return Values(
            numpy.frombuffer(self._starts.mapped(), dtype=numpy.int64),
            numpy.frombuffer(self._lengths.mapped(), dtype=numpy.uint32),
            self._data.mapped(),
        )


class Values:
    """A byte string for each row of a table. ``data`` ends in eight bytes that belong to none."""

    def __init__(self, starts: I64, lengths: U32, data: memoryview) -> None:
        self.starts = starts
        self.lengths = lengths
        self._data = data

    @property
    def total(self) -> int:
        """How many there are."""
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
        """All values, some thousand at a time."""
        for first in range(0, self.total, VALUES_PER_BLOCK):
            yield self.part(first, first + VALUES_PER_BLOCK)

    def first(self, count: int) -> Values:
        """The first so many, or all."""
        return Values(self.starts[:count], self.lengths[:count], self._data)

    def without(self, gone: Sequence[int] | I64) -> Values:
        """All values but those of the rows ``gone``, which rise; these values are of no use any more."""
        return Values(moved_up(self.starts, gone), moved_up(self.lengths, gone), self._data)

    def fixed(self, width: int) -> NDArray[numpy.uint8]:
        """The bytes of all values as rows of ``width`` bytes, which is the length of each that is not empty; a copy."""
        import numpy

        there: Any = numpy.flatnonzero(self.lengths)
        found: NDArray[numpy.uint8] = numpy.empty((len(there), width), dtype=numpy.uint8)
        words = numpy.ndarray(
            (max(0, len(self._data) - width + 1),), dtype=f"V{width}", buffer=self._data, strides=(1,)
        )
        for first in range(0, len(there), ROWS_PER_BLOCK):
            some = words[self.starts[there[first : first + ROWS_PER_BLOCK]]]
            found[first : first + len(some)] = some.view(numpy.uint8).reshape(-1, width)
        return found

    def order(self) -> I64:
        """The rows in the order of their values as bytes; equal values in the order of the rows."""
        return _Ordering(self.starts, self.lengths, self._data).order()


class _Ordering:
    """One call of :meth:`Values.order`."""

    def __init__(self, starts: I64, lengths: U32, data: memoryview) -> None:
        import numpy

        self.starts = starts
        self.lengths = lengths
        # A number begins at every byte.
        count = max(0, len(data) - WORD_BYTES + 1)
        self._words = numpy.ndarray((count,), dtype=">u8", buffer=data, strides=(1,))
        ones = (1 << 64) - 1
        masks = [ones ^ (ones >> 8 * size) for size in range(WORD_BYTES + 1)]
        self._masks: U64 = numpy.array(masks, dtype=numpy.uint64)

    def order(self) -> I64:
        import numpy

        total = len(self.starts)
        depth = self._common()
        words: U64 = numpy.empty(total, dtype=numpy.uint64)
        for first in range(0, total, ROWS_PER_BLOCK):
            words[first : first + ROWS_PER_BLOCK] = self._words_at(
                slice(first, first + ROWS_PER_BLOCK), depth
            )
        order: I64 = numpy.argsort(words, kind="stable").astype(numpy.int64, copy=False)
        tied: Mask = numpy.zeros(total, dtype=bool)
        for first in range(1, total, ROWS_PER_BLOCK):
            some = words[order[first - 1 : first + ROWS_PER_BLOCK]]
            tied[first : first + ROWS_PER_BLOCK] = some[1:] == some[:-1]
        del words
        self._settle(order, tied, depth)
        while tied.any():
            depth += WORD_BYTES
            self._refine(order, tied, depth)
            self._settle(order, tied, depth)
        return order

    def _common(self) -> int:
        """How many bytes all values have in common at their beginnings, in whole words."""
        import numpy

        depth = 0
        shortest = int(self.lengths.min()) if len(self.lengths) else 0
        while depth + WORD_BYTES <= shortest:
            wanted = self._words_at(numpy.zeros(1, dtype=numpy.int64), depth)[0]
            for first in range(0, len(self.starts), ROWS_PER_BLOCK):
                rows = slice(first, first + ROWS_PER_BLOCK)
                if (self._words_at(rows, depth) != wanted).any():
                    return depth
            depth += WORD_BYTES
        return depth

    def _words_at(self, rows: Any, depth: int) -> U64:
        """The eight bytes at ``depth`` of the values of some rows, zeros where they have ended."""
        import numpy

        left = self.lengths[rows].astype(numpy.int64) - depth
        # Who has ended reads anywhere.
        places = numpy.where(left > 0, self.starts[rows] + depth, 0)
        words: U64 = self._words[places].astype(numpy.uint64)
        words &= self._masks[numpy.clip(left, 0, WORD_BYTES)]
        return words

    def _refine(self, order: I64, tied: Mask, depth: int) -> None:
        """Order the runs of ties by what follows at ``depth``; mark those that tie still."""
        for first, end in _runs_of_ties(tied):
            words = self._words_at(order[first:end], depth)
            _sort_run(order, tied, first, end, words)

    def _settle(self, order: I64, tied: Mask, depth: int) -> None:
        """Order the runs of ties by length where strings end within the word at ``depth``, which settles them."""
        import numpy

        for first, end in _runs_of_ties(tied):
            left = self.lengths[order[first:end]].astype(numpy.int64) - depth
            ends = numpy.clip(left, 0, WORD_BYTES + 1).astype(numpy.uint8)
            ends = _sort_run(order, tied, first, end, ends)
            tied[first + 1 : end] &= ends[1:] > WORD_BYTES


def _sort_run(order: I64, tied: Mask, first: int, end: int, by: Any) -> Any:
    """Order the rows at places ``first`` to ``end`` by a number of each, within each run of ties; returns the numbers
    in this order."""
    import numpy

    own = tied[first + 1 : end]
    # Often they are in order as they are, or all the same.
    if not ((by[1:] >= by[:-1]) | ~own).all():
        group = numpy.cumsum(~tied[first:end], dtype=numpy.uint32)
        sequence = numpy.lexsort((by, group)) if group[-1] > group[0] else numpy.argsort(by, kind="stable")
        order[first:end] = order[first:end][sequence]
        by = by[sequence]
    own &= by[1:] == by[:-1]
    return by


def _runs_of_ties(tied: Mask) -> Iterator[tuple[int, int]]:
    """Stretches of places that hold whole runs of ties, about a block long unless a run is longer. A place is tied when
    it ties with the one before it."""

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


class Pool(NamedTuple):
    """The selected samples of all inputs, in input order.

    ``values`` has what the order's ``extract`` took of each, None without one. ``sets`` has, for each input shard, the
    number of the input (an argument of the command, from 0) that named it.
    """

    samples: PlanTable
    values: Values | None
    sets: Sequence[int]

    def counts_of_sets(self, sets: int) -> list[int]:
        """How many samples each input has."""
        import numpy

        of_shard: I64 = numpy.zeros(len(self.sets), dtype=numpy.int64)
        for part in self.samples.parts(ROWS_PER_BLOCK):
            of_shard += numpy.bincount(part.shards, minlength=len(self.sets))
        counts: I64 = numpy.zeros(sets, dtype=numpy.int64)
        numpy.add.at(counts, list(self.sets), of_shard)
        found: list[int] = counts.tolist()
        return found

    def first(self, count: int) -> Pool:
        """The first so many, or all."""
        values = None if self.values is None else self.values.first(count)
        return self._replace(samples=self.samples.first(count), values=values)

    def without(self, gone: Sequence[int] | I64) -> Pool:
        """All samples but these rows, which rise; this pool is of no use any more."""
        values = None if self.values is None else self.values.without(gone)
        return self._replace(samples=self.samples.without(gone), values=values)
