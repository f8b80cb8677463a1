"""This module has the table of a plan: one packed record a sample, in a mapped scratch file. A plan file has the same
bytes.

:func:`row_type` is the record. :class:`Growing` holds bytes that are appended and then mapped. :class:`PlanTable` holds
the rows with their columns by name, and :class:`Ordered` holds rows in output order. :class:`Joined` has the further
parts of joined samples: the rows of each set but the first. :func:`in_turn` returns all parts of the first sample, then
those of the second, and so on. :func:`order_of_hashes` is the sort of most orders. :func:`headers_of` gives 32 bits of
a sample's headers, by which the copier recognizes it.

A row is in memory only while it is in use. Sorts work on a column or two of numbers, and no algorithm has a second form
for large sets. This module does not know where rows come from, how partners were found, or what is done with the rows.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

from xxhash import xxh3_64_intdigest

from wdscli.arrays import I64, U8, U32, U64, Mask, Rows, numpy
from wdscli.errors import DataError, OutputError
from wdscli.model import to_text
from wdscli.samples import SampleBatch
from wdscli.selection.layers import OnConflict

ROWS_PER_BLOCK = 1 << 18
"""Rows that a pass over all rows handles together."""
HELD_BYTES = 1 << 20
"""Fewer bytes than this stay in memory instead of a file."""
SENT_ROWS = 1 << 10
"""A table of at most this many rows is sent to another process by value."""
RENAMED = 0b1000000
"""The mark of a sample that gets a new key."""
CHANGED = RENAMED
"""The mark of a joined sample with a field that gives way or gets another name. (A join renames no sample.)"""
MISSING_SHARD = 0xFFFFFFFF
"""The shard of a placeholder row, for a missing part of a joined sample."""


def row_type() -> numpy.dtype[numpy.void]:
    """How one sample of a plan is packed, in memory, in scratch files and in plan files: 49 little-endian bytes.

    ``key`` is the XXH3-64 of its (new) key; ``start`` and ``length`` are the bytes of its run in the input shard,
    ``out`` the bytes it takes in the output; ``shard`` and ``place`` are its origin (both from 0, the place counted
    before selection); ``members`` is the number of members it will have, and ``mark`` says why it cannot be copied
    unchanged (0: it can). ``headers`` is :func:`headers_of` of the sample in its input, 0 if unknown.
    """
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


def no_rows() -> Rows:
    """An empty array of rows."""
    return numpy.empty(0, dtype=row_type())


def blocks_of(total: int, size: int = 0, first: int = 0) -> Iterator[slice]:
    """Yield slices of ``size`` rows, :data:`ROWS_PER_BLOCK` for 0, from row ``first`` to ``total``."""
    size = size or ROWS_PER_BLOCK
    for at in range(first, total, size):
        yield slice(at, min(at + size, total))


class Growing:
    """Bytes that are appended first and mapped then: in memory while they are few, else in a temporary file without a
    name, which the system removes with the process. ``folder`` is for the file, None for TMPDIR."""

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder
        self._held = bytearray()
        self._file: BinaryIO | None = None

    def append(self, data: Any) -> None:
        """Add the bytes of a buffer or an array. Raises OutputError."""
        view = memoryview(data).cast("B") if len(data) else b""
        if self._file is None and len(self._held) + len(view) <= HELD_BYTES:
            self._held += view
            return
        try:
            if self._file is None:
                from tempfile import TemporaryFile

                self._file = TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed once it is mapped
                self._file.write(self._held)
                self._held = bytearray()
            self._file.write(view)
        except OSError as error:
            raise OutputError(
                f"cannot write scratch space: {error.strerror}",
                hint="choose a folder with more space: --tmp DIR, or TMPDIR",
            ) from error

    def mapped(self) -> memoryview:
        """All bytes, writable. Nothing can be appended afterwards. Raises OutputError."""
        return self.shared()[0]

    def shared(self) -> tuple[memoryview, BinaryIO | None]:
        """All bytes, writable, and their file, which other processes can open while it is open. Raises OutputError."""
        if self._file is None:
            return memoryview(self._held), None
        try:
            self._file.flush()
            return memoryview(mmap.mmap(self._file.fileno(), 0)), self._file
        except OSError as error:
            raise OutputError(f"cannot map scratch space: {error.strerror}") from error


class GrowingTable:
    """A table to which rows are added."""

    def __init__(self, folder: str | None = None) -> None:
        self._rows = Growing(folder)

    def append(self, rows: Rows) -> None:
        """Add rows. Raises OutputError."""
        self._rows.append(rows.view("u1") if len(rows) else b"")

    def table(self) -> PlanTable:
        """All rows. None can be added afterwards."""
        data, file = self._rows.shared()
        return PlanTable(numpy.frombuffer(data, dtype=row_type()), None if file is None else Origin(file, 0))


class Origin(NamedTuple):
    """Where the rows of a table lie: a file, and the number of rows before the first."""

    file: BinaryIO
    first: int

    @property
    def path(self) -> str:
        """The path by which other processes of this machine open the unnamed file; empty if they cannot."""
        path = f"/proc/{os.getpid()}/fd/{self.file.fileno()}"
        return path if os.path.exists(path) else ""


def _column(name: str) -> Any:
    """A column of a table's rows."""
    return property(lambda table: table.rows[name])


class PlanTable:
    """Samples of a plan, one row each (:func:`row_type`). The columns are writable views of the rows. A large table is
    sent to another process of this machine as a path, which that process maps."""

    __slots__ = ("origin", "rows")

    shards: U32 = _column("shard")
    places: U32 = _column("place")
    starts: U64 = _column("start")
    lengths: U64 = _column("length")
    out_lengths: U64 = _column("out")
    members: U32 = _column("members")
    marks: U8 = _column("mark")
    keys: U64 = _column("key")
    headers: U32 = _column("headers")

    def __init__(self, rows: Rows, origin: Origin | None = None) -> None:
        self.rows = rows
        self.origin = origin

    def __reduce__(self) -> tuple[Any, ...]:
        if self.origin is not None and self.total > SENT_ROWS and (path := self.origin.path):
            return _opened, (path, self.origin.first, self.total)
        return PlanTable, (self.rows,)

    def held(self) -> PlanTable:
        """A copy in memory, for processes of other machines."""
        return PlanTable(self.rows)

    @property
    def total(self) -> int:
        """The number of rows."""
        return len(self.rows)

    def take(self, rows: I64 | list[int]) -> PlanTable:
        """A copy in memory of some rows, in this order."""
        return PlanTable(self.rows[rows])

    def apart(self, rows: I64) -> PlanTable:
        """A copy of some rows as a table of its own, for any number of rows."""
        kept = GrowingTable()
        for part in blocks_of(len(rows)):
            kept.append(self.rows[rows[part]])
        return kept.table()

    def part(self, first: int, end: int) -> PlanTable:
        """Rows ``first`` to ``end``, as a view."""
        origin = self.origin and self.origin._replace(first=self.origin.first + first)
        return PlanTable(self.rows[first:end], origin)

    def without(self, gone: Sequence[int] | I64) -> PlanTable:
        """All rows but ``gone``, which rise. The others move up in the same space, so this table must not be used
        again."""
        return PlanTable(moved_up(self.rows, gone), self.origin)

    def repeated(self) -> tuple[I64, U64]:
        """The rows whose hash occurs more than once, sorted by hash and then by row; and their hashes."""
        # Usually no hash repeats, and one sorted copy shows this.
        ordered = numpy.sort(self.keys)
        again = numpy.unique(ordered[1:][ordered[1:] == ordered[:-1]])
        del ordered
        if not len(again):
            return numpy.empty(0, dtype=numpy.int64), again
        found: list[I64] = []
        for part in blocks_of(self.total):
            keys = self.keys[part]
            near = numpy.minimum(again.searchsorted(keys), len(again) - 1)
            found.append(numpy.flatnonzero(again[near] == keys) + part.start)
        rows: I64 = numpy.concatenate(found)
        rows = rows[numpy.argsort(self.keys[rows], kind="stable")]
        return rows, self.keys[rows]


class Ordered:
    """The samples of a plan in output order: rows in any order, and an array of row numbers.

    ``order`` is None if the rows are in output order already.
    """

    __slots__ = ("order", "samples")

    def __init__(self, samples: PlanTable, order: I64 | None = None) -> None:
        self.samples = samples
        self.order = order

    @property
    def total(self) -> int:
        return self.samples.total if self.order is None else len(self.order)

    def slice(self, first: int, end: int) -> Ordered:
        """Samples ``first`` to ``end`` of the output, without a copy of their rows."""
        if self.order is None:
            return Ordered(self.samples.part(first, end))
        return Ordered(self.samples, self.order[first:end])

    def held(self) -> Ordered:
        """A copy of the rows in memory, for processes of other machines."""
        return Ordered(self.part(0, self.total).held())

    def part(self, first: int, end: int) -> PlanTable:
        """The rows of samples ``first`` to ``end`` of the output."""
        if self.order is None:
            return self.samples.part(first, end)
        return self.samples.take(self.order[first:end])

    def column(self, name: str, first: int, end: int) -> U64:
        """One column (see :func:`row_type`) of samples ``first`` to ``end``."""
        values: U64 = self.samples.rows[name]
        return values[first:end] if self.order is None else values[self.order[first:end]]

    def blocks_of(self, name: str) -> Iterator[tuple[int, U64]]:
        """Yield one column of all samples, a block at a time, each with the place of its first."""
        # Random access is faster in a contiguous column.
        rows = self.samples.rows[name]
        column: U64 = rows if self.order is None else numpy.ascontiguousarray(rows)
        for part in blocks_of(self.total):
            yield part.start, column[part if self.order is None else self.order[part]]

    def blocks(self) -> Iterator[PlanTable]:
        """Yield all samples in output order, a block at a time."""
        for part in blocks_of(self.total):
            yield self.part(part.start, part.stop)

    def sum_of(self, name: str, first: int = 0, end: int | None = None) -> int:
        """The sum of a column of samples ``first`` to ``end``, None for the last."""
        parts = blocks_of(self.total if end is None else end, first=first)
        return sum(int(self.column(name, part.start, part.stop).sum()) for part in parts)

    def shard_numbers(self) -> list[int]:
        """The input shards of the samples, in rising order."""
        found: set[int] = set()
        for part in blocks_of(self.total):
            found.update(numpy.unique(self.column("shard", part.start, part.stop)).tolist())
        return sorted(found)


def _opened(path: str, first: int, total: int) -> PlanTable:
    """Map the rows of a table of another process."""
    size = row_type().itemsize
    with open(path, "rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return PlanTable(numpy.frombuffer(data, dtype=row_type(), count=total, offset=first * size))


def moved_up(column: Any, gone: Sequence[int] | I64) -> Any:
    """An array without the places ``gone``, which rise. The others move up in the array's own space, a block at a time;
    the result is a view of it."""
    without: I64 = numpy.asarray(gone, dtype=numpy.int64)
    if not len(without):
        return column
    at = int(without[0])
    for part in blocks_of(len(column), first=at - at % ROWS_PER_BLOCK):
        low, high = without.searchsorted((part.start, part.stop)).tolist()
        kept: Any = numpy.delete(column[part], without[low:high] - part.start)
        start = part.start - low
        column[start : start + len(kept)] = kept
    return column[: len(column) - len(without)]


def order_of_hashes(total: int, hashes: Callable[[Any], U64]) -> I64:
    """The row numbers from 0 to ``total`` sorted by hash, then by row. ``hashes`` gives the hashes of a slice or an
    array of rows.

    One number a row is sorted, the upper bits of its hash and then the row: that is several times as fast as an argsort
    and takes half the memory. The few rows whose upper bits are equal are then compared by their whole hashes.
    """
    mask = numpy.uint64((1 << max(1, total - 1).bit_length()) - 1)
    packed: U64 = numpy.arange(total, dtype=numpy.uint64)
    for part in blocks_of(total):
        packed[part] |= hashes(part) & ~mask
    packed.sort()
    ties: list[I64] = []
    for part in blocks_of(total - 1):
        some = packed[part.start : part.stop + 1]
        ties.append(numpy.flatnonzero(some[1:] ^ some[:-1] <= mask) + part.start)
    packed &= mask
    order: I64 = packed.view(numpy.int64)
    if any(map(len, ties)):
        places = numpy.union1d(firsts := numpy.concatenate(ties), firsts + 1)
        # A run of ties begins where a place does not tie with the one before it.
        run = numpy.cumsum(~numpy.isin(places - 1, firsts))
        rows = order[places]
        order[places] = rows[numpy.lexsort((rows, hashes(rows), run))]
    return order


def are_those(found: U32, planned: U32) -> Mask:
    """Which samples have the planned headers; samples with unknown planned headers count as equal."""
    same: Mask = (found == planned) | (planned == 0)
    return same


def headers_of(names: U64, sizes: U64, counts: I64) -> U32:
    """For each sample 32 bits of the fields and sizes of its members, in their order. ``names`` are the XXH3-64 of the
    members' fields; sample i has ``counts[i]`` members.

    All modulo 2^64: member j (from 0) of a sample gives x = (name ^ size * 0x9E3779B97F4A7C15) * 0xBF58476D1CE4E5B9,
    then (x ^ x >> 32) * (2 * j + 1). The result is the upper half of their sum, but 1 for 0.
    """
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
    """A cache of the XXH3-64 of fields; a set has few fields."""

    __slots__ = ()

    def __missing__(self, field: bytes) -> int:
        if len(self) >= 1 << 12:
            self.clear()
        found = self[field] = xxh3_64_intdigest(field)
        return found


_FIELD_HASHES = _FieldHashes()


def hashes_of(fields: Sequence[bytes]) -> U64:
    """The XXH3-64 of fields."""
    return numpy.frombuffer(array("Q", map(_FIELD_HASHES.__getitem__, fields)), dtype=numpy.uint64)


def headers_of_batch(batch: SampleBatch) -> U32:
    """:func:`headers_of` of the samples of a batch."""
    members = slice(batch.firsts[0], batch.firsts[-1])
    sizes: U64 = numpy.array(batch.sizes[members], dtype=numpy.uint64)
    return headers_of(hashes_of(batch.fields[members]), sizes, numpy.diff(batch.firsts))


class JoinCounts(NamedTuple):
    """The result of a join. ``matched`` samples have a part of every set; ``unmatched`` counts, for each set, samples
    whose key another set lacks. ``partners`` samples were joined to an earlier one. Fields: ``replaced`` by those of a
    later set, ``left_out`` of a later set because the name was taken, ``renamed`` for the same reason. ``conflicts``
    counts the samples by field and by one of these words. ``kind`` is the value of --join."""

    matched: int
    unmatched: tuple[int, ...]
    partners: int
    replaced: int
    left_out: int
    renamed: int
    kind: str
    conflicts: dict[str, dict[str, int]]


class Joined(NamedTuple):
    """The further parts of samples in output order, all of a plan or those of one task: for each set but the first one
    row a sample, a row of the shard :data:`MISSING_SHARD` for a missing part. ``sets`` is the set (from 0) of each
    input; ``policies`` has one policy for each set. ``counts`` has the counts of the plan."""

    others: tuple[Ordered, ...]
    sets: tuple[int, ...]
    policies: tuple[OnConflict, ...]
    counts: JoinCounts

    def part(self, first: int, end: int) -> Joined:
        """The further parts of samples ``first`` to ``end`` of the output."""
        return self._replace(others=tuple(other.slice(first, end) for other in self.others))

    def held(self) -> Joined:
        """A copy with rows in memory, for processes of other machines."""
        return self._replace(others=tuple(other.held() for other in self.others))

    def inputs(self, samples: Ordered) -> list[int]:
        """The inputs that the task reads, in rising order; ``samples`` are the first parts."""
        found = {number for some in (samples, *self.others) for number in some.shard_numbers()}
        return sorted(found - {MISSING_SHARD})


def in_turn(lists: Sequence[Ordered]) -> Ordered:
    """The rows of all lists, which have equal lengths, in turn."""
    if len(lists) == 1:
        return lists[0]
    if any(one.samples is not lists[0].samples for one in lists):
        return _beside_each_other(lists)
    order: I64 = numpy.empty((lists[0].total, len(lists)), dtype=numpy.int64)
    for number, one in enumerate(lists):
        order[:, number] = numpy.arange(one.total) if one.order is None else one.order
    return Ordered(lists[0].samples, order.reshape(-1))


def _beside_each_other(lists: Sequence[Ordered]) -> Ordered:
    """:func:`in_turn` for lists over different tables, in memory."""
    rows: Rows = numpy.empty((lists[0].total, len(lists)), dtype=row_type())
    for number, one in enumerate(lists):
        rows[:, number] = one.part(0, one.total).rows
    return Ordered(PlanTable(rows.reshape(-1)))


def collision(one: bytes, other: bytes, shard: str, offset: int) -> DataError:
    """The error of two different keys with equal hashes."""
    return DataError(
        f'the keys "{to_text(one)}" and "{to_text(other)}" have the same XXH3-64 hash, so they cannot be matched',
        code="hash-collision",
        shard=shard,
        offset=offset,
        hint="leave one of them out (--keys), or rename it",
    )
