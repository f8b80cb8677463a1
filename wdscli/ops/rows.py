"""The rows of a plan: one packed record a sample, in memory, in scratch files and in plan files alike.

What it is: :func:`row_type`, the record; :class:`Samples`, rows with their columns by name; :class:`Ordered`, rows in
output order; and :func:`headers_of`, what a row keeps of a sample's headers. It must not know where rows come from or
what is done with them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from xxhash import xxh3_64_intdigest

from wdscli.samples import SampleBatch

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    U8: TypeAlias = NDArray[numpy.uint8]
    U32: TypeAlias = NDArray[numpy.uint32]
    U64: TypeAlias = NDArray[numpy.uint64]
    I64: TypeAlias = NDArray[numpy.int64]
    Rows: TypeAlias = NDArray[numpy.void]


def row_type() -> numpy.dtype[numpy.void]:
    """How one sample of a plan is packed, in memory and in scratch files: 49 little-endian bytes.

    ``key`` is the XXH3-64 of its (new) key; ``start`` and ``length`` are the run's place in its input shard in bytes,
    ``out`` the bytes it takes in the output; ``shard`` and ``place`` say where it comes from (both from 0, the place
    counted before selection); ``members`` how many it will have, and ``mark`` what keeps it from being copied as it
    stands (0: nothing). ``headers`` is what :func:`headers_of` says of it as it lies in its input,
    0 where nobody knows.
    """
    import numpy

    return numpy.dtype(  # type: ignore[return-value,unused-ignore]
        [
            ("key", "<u8"),
            ("start", "<u8"),
            ("length", "<u8"),
            ("out", "<u8"),
            ("shard", "<u4"),
            ("place", "<u4"),
            ("members", "<u4"),
            ("mark", "u1"),
            ("headers", "<u4"),
        ]
    )


def stored_type() -> numpy.dtype[numpy.void]:
    """The same in plan files, 45 bytes: all but ``headers``, which are known again only while a plan is at hand."""
    import numpy

    kinds = [(name, row_type()[name]) for name in row_type().names or () if name != "headers"]
    return numpy.dtype(kinds)  # type: ignore[no-any-return,unused-ignore]


def stored_rows(rows: Rows) -> Rows:
    """Rows as plan files have them."""
    import numpy

    stored: Rows = numpy.empty(len(rows), dtype=stored_type())
    for name in stored.dtype.names or ():
        stored[name] = rows[name]
    return stored


def are_those(found: U32, planned: U32) -> NDArray[numpy.bool_]:
    """Of which samples the headers are those that were planned, as far as that is known."""
    same: NDArray[numpy.bool_] = (found == planned) | (planned == 0)
    return same


def headers_of(names: U64, sizes: U64, counts: I64) -> U32:
    """For each sample 32 bits of the fields and sizes of its members, in their order, by which it is known again while
    it is copied. ``names`` are the XXH3-64 of the members' fields; sample i has ``counts[i]`` members.

    All modulo 2^64: member j (from 0) of a sample gives x = (name ^ size * 0x9E3779B97F4A7C15) * 0xBF58476D1CE4E5B9,
    then (x ^ x >> 32) * (2 * j + 1); the upper half of their sum is taken, but 1 for 0.
    """
    import numpy

    if not len(counts):
        return numpy.empty(0, dtype=numpy.uint32)
    firsts = numpy.cumsum(counts) - counts
    mixed = names ^ sizes * numpy.uint64(0x9E3779B97F4A7C15)
    mixed *= numpy.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> numpy.uint64(32)
    odd = 2 * (numpy.arange(len(names)) - firsts.repeat(counts)) + 1
    mixed *= odd.astype(numpy.uint64)
    sums: U64 = numpy.add.reduceat(mixed, firsts)
    return numpy.maximum(sums >> numpy.uint64(32), numpy.uint64(1)).astype(numpy.uint32)


class _FieldHashes(dict[bytes, int]):
    """XXH3-64 of fields; a set has few."""

    __slots__ = ()

    def __missing__(self, field: bytes) -> int:
        if len(self) >= 1 << 12:
            self.clear()
        found = self[field] = xxh3_64_intdigest(field)
        return found


_FIELD_HASHES = _FieldHashes()


def hashes_of(fields: Sequence[bytes]) -> U64:
    """The XXH3-64 of fields."""
    import numpy

    return numpy.frombuffer(array("Q", map(_FIELD_HASHES.__getitem__, fields)), dtype=numpy.uint64)


def headers_of_batch(batch: SampleBatch) -> U32:
    """:func:`headers_of` of the samples of a batch."""
    import numpy

    first, end = batch.firsts[0], batch.firsts[-1]
    sizes = numpy.array(batch.sizes[first:end], dtype=numpy.uint64)
    return headers_of(hashes_of(batch.fields[first:end]), sizes, numpy.diff(batch.firsts))


class Samples:
    """Samples of a plan, one row each (:func:`row_type`). The columns are views: what is set in them is set in the
    rows."""

    __slots__ = ("rows",)

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    @property
    def total(self) -> int:
        """How many there are."""
        return len(self.rows)

    @property
    def shards(self) -> U32:
        return self.rows["shard"]

    @property
    def places(self) -> U32:
        return self.rows["place"]

    @property
    def starts(self) -> U64:
        return self.rows["start"]

    @property
    def lengths(self) -> U64:
        return self.rows["length"]

    @property
    def out_lengths(self) -> U64:
        return self.rows["out"]

    @property
    def members(self) -> U32:
        return self.rows["members"]

    @property
    def marks(self) -> U8:
        return self.rows["mark"]

    @property
    def keys(self) -> U64:
        return self.rows["key"]

    @property
    def headers(self) -> U32:
        return self.rows["headers"]

    def take(self, rows: I64 | list[int]) -> Samples:
        """Some samples, in the order of ``rows``; a copy."""
        return Samples(self.rows[rows])

    def part(self, first: int, end: int) -> Samples:
        """Samples ``first`` to ``end``; a view."""
        return Samples(self.rows[first:end])

    def without(self, rows: Sequence[int]) -> Samples:
        """All samples but these."""
        import numpy

        return Samples(numpy.delete(self.rows, rows))

    def parts(self, size: int = 1 << 14) -> Iterator[Samples]:
        """All samples, some at a time."""
        for first in range(0, self.total, size):
            yield self.part(first, min(first + size, self.total))

    def repeated(self) -> tuple[I64, U64]:
        """The rows whose hashes others have too, in the order of these, equal ones in their own; and the hashes."""
        import numpy

        # Usually no hash comes twice, and one sorted copy is all that it takes to know.
        ordered = numpy.sort(self.keys)
        again = ordered[1:][ordered[1:] == ordered[:-1]]
        del ordered
        if not len(again):
            return numpy.empty(0, dtype=numpy.int64), again
        rows: I64 = numpy.flatnonzero(numpy.isin(self.keys, again))
        rows = rows[numpy.argsort(self.keys[rows], kind="stable")]
        return rows, self.keys[rows]

    def changeable(self) -> Samples:
        """The same samples, for :meth:`put`."""
        return Samples(self.rows.copy())

    def put(self, rows: Sequence[int], changed: Samples) -> None:
        """Replace some rows."""
        self.rows[rows] = changed.rows

    def shard_numbers(self) -> list[int]:
        """The input shards that they come from, in rising order."""
        import numpy

        found: set[int] = set()
        for part in self.parts(1 << 18):
            found.update(numpy.flatnonzero(numpy.bincount(part.shards)).tolist())
        return sorted(found)


class Ordered:
    """The samples of a plan in output order: rows in any order, and the order over them.

    ``order`` is None when the rows lie in output order already.
    """

    __slots__ = ("order", "samples")

    def __init__(self, samples: Samples, order: I64 | None = None) -> None:
        self.samples = samples
        self.order = order

    @property
    def total(self) -> int:
        return self.samples.total if self.order is None else len(self.order)

    def part(self, first: int, end: int) -> Samples:
        """Samples ``first`` to ``end`` of the output."""
        if self.order is None:
            return self.samples.part(first, end)
        return self.samples.take(self.order[first:end])

    def column(self, name: str, first: int, end: int) -> U64:
        """One column (see :func:`row_type`) of samples ``first`` to ``end``."""
        values: U64 = self.samples.rows[name]
        return values[first:end] if self.order is None else values[self.order[first:end]]

    def blocks(self, size: int = 1 << 18) -> Iterator[Samples]:
        """All samples in output order, some at a time."""
        for first in range(0, self.total, size):
            yield self.part(first, min(first + size, self.total))

    def out_lengths(self) -> U64:
        """The column ``out`` in output order."""
        lengths = self.samples.out_lengths
        return lengths if self.order is None else lengths[self.order]
