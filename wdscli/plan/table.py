"""This module has the table of a plan: a row and a value for each sample, in mapped scratch files.

A row is a packed record of numbers (:func:`row_type`); a plan file has the same bytes. :class:`Growing` has bytes that
are appended first and mapped later. :class:`PlanTable` has the rows, with their columns by name.
:class:`OrderedSamples` has rows in output order. :class:`JoinedParts` has the further parts of joined samples: the rows
of each set except the first. :func:`in_turn` puts the parts of each joined sample next to each other.
:func:`headers_of` makes a 32-bit hash of a sample's headers, by which the copier recognizes the sample.

A value is a byte string that an order needs. An :class:`Extract` takes it during the survey of a shard, and
:class:`Values` has the values of all samples. One file has all bytes, and two more have the places and the lengths.

A row is in memory only while it is in use. Sorts use only one or two columns of numbers. The same algorithms serve
small and large sets. This module does not know where rows come from, how partners were found, or how rows and values
are used.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, BinaryIO, NamedTuple

from xxhash import xxh3_64_intdigest

from wdscli.arrays import I64, U8, U32, U64, Mask, Rows, SampleArrays, blocks_of, distinct, numpy, spread
from wdscli.errors import DataError, failing
from wdscli.ordering import WORD_BYTES, order_of_values
from wdscli.samples import SampleBatch
from wdscli.samples.grouping import SampleAt
from wdscli.samples.keys import hashes_of_joined
from wdscli.selection.layers import OnConflict
from wdscli.selection.named import Named
from wdscli.selection.reading import MemberReader
from wdscli.shards.index import Index
from wdscli.text import to_text

HELD_BYTES = 1 << 20
"""Fewer bytes than this stay in memory, without a file."""
SENT_ROWS = 1 << 10
"""A table of at most this many rows is sent to another process by value."""
VALUES_PER_BLOCK = 1 << 14
"""How many values are Python objects at the same time."""
RENAMED = 0b1000000
"""The mark of a sample that gets a new key."""
CHANGED = RENAMED
"""The mark of a joined sample with a dropped or renamed field. It has the same bit as RENAMED, because a join gives no
sample a new key."""
MISSING_SHARD = 0xFFFFFFFF
"""The shard of a placeholder row, for a missing part of a joined sample."""


def row_type() -> numpy.dtype[numpy.void]:
    """Return the record type for one sample of a plan: 49 little-endian bytes, in memory, scratch files and plan files.

    ``key`` is the XXH3-64 of the (new) key. ``start`` and ``length`` are the sample's bytes in the input shard, and
    ``out`` is its length in the output. ``shard`` and ``place`` say where the sample comes from. Both count from 0, and
    ``place`` also counts unselected samples. ``members`` is the number of members in the output. ``mark`` says why the
    sample cannot be copied unchanged; 0 means that it can. ``headers`` is the :func:`headers_of` of the sample in its
    input; 0 means unknown.
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
    """Return an empty array of rows."""
    return numpy.empty(0, dtype=row_type())


class Growing:
    """Bytes that are appended first and mapped later. Few bytes stay in memory; more bytes go to a temporary file
    without a name, which the system removes when the process ends. ``folder`` is for the file; None means TMPDIR."""

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
        hint = "choose a folder with more free space: --tmp DIR, or the variable TMPDIR"
        with failing("write scratch space", hint):
            if self._file is None:
                from tempfile import TemporaryFile

                self._file = TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed once it is mapped
                self._file.write(self._held)
                self._held = bytearray()
            self._file.write(view)

    def append_rows(self, rows: Rows) -> None:
        """Add rows. Raises OutputError."""
        self.append(rows.view("u1"))

    def table(self) -> PlanTable:
        """Return all rows, if only rows were added. Nothing can be appended afterwards. Raises OutputError."""
        data, file = self.shared()
        return PlanTable(numpy.frombuffer(data, dtype=row_type()), None if file is None else Origin(file, 0))

    def mapped(self) -> memoryview:
        """Return all bytes, writable. Nothing can be appended afterwards. Raises OutputError."""
        return self.shared()[0]

    def shared(self) -> tuple[memoryview, BinaryIO | None]:
        """Return all bytes, writable, and their file. Other processes can open the file while it is open here. Raises
        OutputError."""
        if self._file is None:
            return memoryview(self._held), None
        with failing("map scratch space"):
            self._file.flush()
            return memoryview(mmap.mmap(self._file.fileno(), 0)), self._file


class Origin(NamedTuple):
    """The place of a table's rows: a file, and the number of rows in the file before the first row."""

    file: BinaryIO
    first: int

    @property
    def path(self) -> str:
        """The path by which other processes of this machine can open the unnamed file. It is empty if they cannot."""
        path = f"/proc/{os.getpid()}/fd/{self.file.fileno()}"
        return path if os.path.exists(path) else ""


def _column(name: str) -> Any:
    """Return a property for a column of a table's rows."""
    return property(lambda table: table.rows[name])


class PlanTable:
    """Samples of a plan, one row each (:func:`row_type`). The columns are writable views of the rows. Pickling a large
    table sends only a path to another process of this machine, which maps the file."""

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
        """Return a copy in memory, for processes of other machines."""
        return PlanTable(self.rows)

    @property
    def total(self) -> int:
        """The number of rows."""
        return len(self.rows)

    def take(self, rows: I64 | list[int]) -> PlanTable:
        """Return a copy in memory of some rows, in the given order."""
        # Indexing an array of records copies field by field, which takes 20 times as long.
        return PlanTable(self.rows.take(rows))

    def apart(self, rows: I64) -> PlanTable:
        """Return a copy of some rows as a separate table. Many rows go to a file."""
        kept = Growing()
        for part in blocks_of(len(rows)):
            kept.append_rows(self.rows.take(rows[part]))
        return kept.table()

    def part(self, first: int, end: int) -> PlanTable:
        """Return the rows ``first`` to ``end - 1``, without copying them."""
        origin = self.origin and self.origin._replace(first=self.origin.first + first)
        return PlanTable(self.rows[first:end], origin)

    def without(self, gone: Sequence[int] | I64) -> PlanTable:
        """Return all rows except ``gone``, which are in ascending order. The remaining rows move up in the same memory,
        so this table must not be used again."""
        return PlanTable(moved_up(self.rows, gone), self.origin)


class OrderedSamples:
    """The samples of a plan in output order: a table of rows in any order, and an array of row numbers.

    ``order`` is None if the rows are already in output order.
    """

    __slots__ = ("order", "samples")

    def __init__(self, samples: PlanTable, order: I64 | None = None) -> None:
        self.samples = samples
        self.order = order

    @property
    def total(self) -> int:
        return self.samples.total if self.order is None else len(self.order)

    def slice(self, first: int, end: int) -> OrderedSamples:
        """Return the samples ``first`` to ``end - 1`` of the output, without copying their rows."""
        if self.order is None:
            return OrderedSamples(self.samples.part(first, end))
        return OrderedSamples(self.samples, self.order[first:end])

    def held(self) -> OrderedSamples:
        """Return a copy with the rows in memory, for processes of other machines."""
        return OrderedSamples(self.part(0, self.total).held())

    def part(self, first: int, end: int) -> PlanTable:
        """Return the rows of the samples ``first`` to ``end - 1`` of the output."""
        if self.order is None:
            return self.samples.part(first, end)
        return self.samples.take(self.order[first:end])

    def column(self, name: str, first: int, end: int) -> U64:
        """Return one column (see :func:`row_type`) of the samples ``first`` to ``end - 1``."""
        values: U64 = self.samples.rows[name]
        return values[first:end] if self.order is None else values[self.order[first:end]]

    def blocks_of(self, name: str) -> Iterator[tuple[int, U64]]:
        """Yield one column of all samples in blocks, each with the place of its first sample."""
        # Copy the column first: random access is faster in few bytes.
        rows = self.samples.rows[name]
        column: U64 = rows if self.order is None else _narrowed(rows)
        for part in blocks_of(self.total):
            yield part.start, column[part] if self.order is None else column.take(self.order[part])

    def blocks(self) -> Iterator[PlanTable]:
        """Yield all samples in output order, in blocks."""
        for part in blocks_of(self.total):
            yield self.part(part.start, part.stop)

    def sum_of(self, name: str, first: int = 0, end: int | None = None) -> int:
        """Return the sum of a column over the samples ``first`` to ``end - 1``. If ``end`` is None, include the last
        sample."""
        parts = blocks_of(self.total if end is None else end, first=first)
        return sum(int(self.column(name, part.start, part.stop).sum()) for part in parts)

    def shard_numbers(self) -> list[int]:
        """The input shards of the samples, in rising order."""
        numbers: set[int] = set()
        for part in blocks_of(self.total):
            numbers.update(distinct(self.column("shard", part.start, part.stop)).tolist())
        return sorted(numbers)


def _narrowed(column: U64) -> U64:
    """Return a copy of whole numbers in the smallest type that has all of them."""
    largest = max((int(column[part].max()) for part in blocks_of(len(column))), default=0)
    return column.astype(numpy.min_scalar_type(largest))


def _opened(path: str, first: int, total: int) -> PlanTable:
    """Map the rows of a table of another process."""
    size = row_type().itemsize
    with open(path, "rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return PlanTable(numpy.frombuffer(data, dtype=row_type(), count=total, offset=first * size))


def moved_up(column: Any, gone: Sequence[int] | I64) -> Any:
    """Return an array without the places ``gone``, which are in ascending order. The remaining elements move up in the
    array's own memory, in blocks. The result is a view of the array."""
    without: I64 = numpy.asarray(gone, dtype=numpy.int64)
    if not len(without):
        return column
    for part in blocks_of(len(column), first=int(without[0])):
        low, high = without.searchsorted((part.start, part.stop)).tolist()
        kept: Any = numpy.delete(column[part], without[low:high] - part.start)
        start = part.start - low
        column[start : start + len(kept)] = kept
    return column[: len(column) - len(without)]


def have_planned_headers(headers: U32, planned: U32) -> Mask:
    """Return, for each sample, whether it has the planned headers. If the planned headers are unknown, the answer is
    true."""
    same: Mask = (headers == planned) | (planned == 0)
    return same


def headers_of(names: U64, sizes: U64, counts: I64) -> U32:
    """Return, for each sample, a 32-bit hash of the fields and sizes of its members, in their order. ``names`` are the
    XXH3-64 of the members' fields. Sample i has ``counts[i]`` members.

    Arithmetic is modulo 2^64. For member j (from 0) of a sample, x = (name ^ size * 0x9E3779B97F4A7C15) *
    0xBF58476D1CE4E5B9, and the member's number is (x ^ x >> 32) * (2 * j + 1). The result is the upper half of the sum
    of these numbers. If it is 0, it becomes 1.
    """
    if not len(counts):
        return numpy.empty(0, dtype=numpy.uint32)
    mixed = names ^ sizes * numpy.uint64(0x9E3779B97F4A7C15)
    mixed *= numpy.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> numpy.uint64(32)
    if (counts == counts[0]).all():
        odd = 2 * numpy.arange(counts[0], dtype=numpy.uint64) + numpy.uint64(1)
        sums: U64 = mixed.reshape(len(counts), -1) @ odd
    else:
        mixed *= (2 * spread(0, counts) + 1).astype(numpy.uint64)
        sums = numpy.add.reduceat(mixed, numpy.cumsum(counts) - counts)
    return numpy.maximum(sums >> numpy.uint64(32), numpy.uint64(1)).astype(numpy.uint32)


class _FieldHashes(dict[bytes, int]):
    """A cache of the XXH3-64 of fields; a set has few fields."""

    __slots__ = ()

    def __missing__(self, field: bytes) -> int:
        if len(self) >= 1 << 12:
            self.clear()
        field_hash = self[field] = xxh3_64_intdigest(field)
        return field_hash


_FIELD_HASHES = _FieldHashes()


def hashes_of(fields: Sequence[bytes]) -> U64:
    """Return the XXH3-64 of fields."""
    return numpy.frombuffer(array("Q", map(_FIELD_HASHES.__getitem__, fields)), dtype=numpy.uint64)


def rows_of_arrays(samples: SampleArrays) -> Rows:
    """Return the rows of samples that are copied unchanged."""
    rows: Rows = numpy.zeros(len(samples.starts), dtype=row_type())
    rows["start"] = samples.starts
    rows["length"] = rows["out"] = samples.lengths
    rows["place"] = numpy.arange(len(samples.starts))
    rows["members"] = samples.counts
    names = hashes_of(samples.fields)[samples.codes]
    rows["headers"] = headers_of(names, samples.sizes.view(numpy.uint64), samples.counts)
    rows["key"] = hashes_of_joined(samples.keys, samples.key_lengths)
    return rows


def headers_of_batch(batch: SampleBatch) -> U32:
    """Return the :func:`headers_of` of the samples of a batch."""
    members = slice(batch.firsts[0], batch.firsts[-1])
    sizes: U64 = numpy.array(batch.sizes[members], dtype=numpy.uint64)
    return headers_of(hashes_of(batch.fields[members]), sizes, numpy.diff(batch.firsts))


class JoinCounts(NamedTuple):
    """The counts of a join. ``matched`` samples have a part from every set. ``unmatched`` counts, for each set, the
    samples with a key that another set lacks. ``partners`` counts samples that were joined to a sample of an earlier
    set. If two sets have the same field, the earlier field is ``replaced``, or the later field is ``left_out`` or
    ``renamed``. ``conflicts`` counts samples by field and by these words. ``kind`` is the value of --join."""

    matched: int
    unmatched: tuple[int, ...]
    partners: int
    replaced: int
    left_out: int
    renamed: int
    kind: str
    conflicts: dict[str, dict[str, int]]


class JoinedParts(NamedTuple):
    """The further parts of joined samples in output order, for a whole plan or for one task. Each set except the first
    has one row per sample. A missing part is a row with the shard :data:`MISSING_SHARD`. ``sets`` has the set number
    (from 0) of each input. ``policies`` has one policy for each set. ``counts`` has the counts of the plan."""

    later_parts: tuple[OrderedSamples, ...]
    sets: tuple[int, ...]
    policies: tuple[OnConflict, ...]
    counts: JoinCounts

    def part(self, first: int, end: int) -> JoinedParts:
        """Return the further parts of the samples ``first`` to ``end - 1`` of the output."""
        return self._replace(later_parts=tuple(ordered.slice(first, end) for ordered in self.later_parts))

    def held(self) -> JoinedParts:
        """Return a copy with the rows in memory, for processes of other machines."""
        return self._replace(later_parts=tuple(ordered.held() for ordered in self.later_parts))

    def inputs(self, samples: OrderedSamples) -> list[int]:
        """Return the numbers of the inputs that the task reads, in rising order. ``samples`` are the first parts."""
        numbers = {number for ordered in (samples, *self.later_parts) for number in ordered.shard_numbers()}
        return sorted(numbers - {MISSING_SHARD})


def in_turn(lists: Sequence[OrderedSamples]) -> OrderedSamples:
    """Return the first rows of all lists, then their second rows, and so on. The lists have equal lengths."""
    if len(lists) == 1:
        return lists[0]
    if any(ordered.samples is not lists[0].samples for ordered in lists):
        return _beside_each_other(lists)
    order: I64 = numpy.empty((lists[0].total, len(lists)), dtype=numpy.int64)
    for number, ordered in enumerate(lists):
        order[:, number] = numpy.arange(ordered.total) if ordered.order is None else ordered.order
    return OrderedSamples(lists[0].samples, order.reshape(-1))


def _beside_each_other(lists: Sequence[OrderedSamples]) -> OrderedSamples:
    """Do the work of :func:`in_turn` for lists of rows from different tables, in memory."""
    rows: Rows = numpy.empty((lists[0].total, len(lists)), dtype=row_type())
    for number, ordered in enumerate(lists):
        rows[:, number] = ordered.part(0, ordered.total).rows
    return OrderedSamples(PlanTable(rows.reshape(-1)))


def collision(key: bytes, equal_key: bytes, shard: str, offset: int) -> DataError:
    """Return the error for two different keys with equal hashes."""
    return DataError(
        f'the keys "{to_text(key)}" and "{to_text(equal_key)}" have the same XXH3-64 hash, so they cannot be matched',
        code="hash-collision",
        shard=shard,
        offset=offset,
        hint="leave one of them out (--keys), or rename it",
    )


# Values.


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


def blocks_of_keys(index: Index) -> Iterator[tuple[int, list[bytes]]]:
    """Yield all keys of an index in blocks, each with the place of its first key."""
    for part in blocks_of(index.samples, VALUES_PER_BLOCK):
        yield part.start, index.keys_of(part.start, part.stop)


def packed_keys(index: Index) -> PackedValues:
    """Return the keys of all samples of an index, in the form of an extract's values."""
    lengths: U32 = numpy.diff(index.key_ends, prepend=numpy.uint64(0)).astype(numpy.uint32)
    return PackedValues(lengths, numpy.frombuffer(index.keys, numpy.uint8))


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
