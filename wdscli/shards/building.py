"""The columns of an index while its shard is written or scanned.

What it is: :class:`IndexBuilder`, which takes samples one by one, by the batch or as arrays, and gives the bytes of the
file. How: whole columns are packed ten times faster than single numbers. An index takes some ninety bytes for each tiny
sample: what is more than a few MB of it waits in a temporary file, so that the memory that writes a shard does not grow
with its samples. What the columns mean is said in :mod:`wdscli.shards.index`, which reads them. It must not know where
samples come from.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from wdscli.errors import DataError
from wdscli.model import FieldTotals, to_text
from wdscli.samples import SampleBatch, new_batch
from wdscli.shards.waiting import Column, Waiting
from wdscli.tar import CANONICAL, Form

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

Buffer: TypeAlias = bytes | memoryview

FORMAT = "wdscli-index"
VERSION = 1
FOLDER = ".wds"
SUFFIX = ".wdx"

#: column -> array typecode: Q u64, I u32, B u8; in the order in which the digest takes them
COLUMNS = {
    "key_ends": "Q",
    "starts": "Q",
    "lengths": "Q",
    "member_ends": "Q",
    "marks": "B",
    "member_fields": "I",
    "member_offsets": "Q",
    "member_sizes": "Q",
}
_NOT_DIGESTED = {"marks"}
SEAL = b"\xa4seal\xc4\x08"
"""How msgpack writes the key ``seal`` and the head of eight bytes: what stands before the file's last eight."""
_PENDING = 512
HELD = 2 << 20
"""Bytes of columns that are kept in memory."""


class Packed(NamedTuple):
    """Canonical samples as arrays. One number a sample: bytes of its key (``keys`` has them one behind the other), its
    first byte, its bytes, its members; one a member: the place of its field in ``fields``, byte and bytes of the
    payload."""

    keys: bytes
    key_lengths: NDArray[numpy.int64]
    starts: NDArray[numpy.int64]
    lengths: NDArray[numpy.int64]
    counts: NDArray[numpy.int64]
    fields: list[bytes]
    codes: NDArray[numpy.int64]
    offsets: NDArray[numpy.int64]
    sizes: NDArray[numpy.int64]


class IndexBuilder:
    """Gathers the columns of one shard while it is written or scanned.

    Samples that come one by one are kept as a batch until there are some hundreds, because whole columns are packed ten
    times faster than single numbers.
    """

    def __init__(self) -> None:
        self._keys = bytearray()
        self._key_ends = array("Q")
        self._starts = array("Q")
        self._lengths = array("Q")
        self._member_ends = array("Q")
        self._marks = bytearray()
        self._member_fields = array("I")
        self._member_offsets = array("Q")
        self._member_sizes = array("Q")
        self._field_ids: dict[bytes, int] = {}
        self._counts: list[int] = []
        self._bytes: list[int] = []
        self._pending = new_batch()
        self._waiting = Waiting()

    @property
    def samples(self) -> int:
        return self._waiting.count("marks", 1) + len(self._marks) + len(self._pending.keys)

    @property
    def members(self) -> int:
        return self._members + len(self._pending.fields)

    @property
    def _members(self) -> int:
        return self._waiting.count("member_fields", 4) + len(self._member_fields)

    @property
    def _key_bytes(self) -> int:
        return self._waiting.count("keys", 1) + len(self._keys)

    def add_batch(self, batch: SampleBatch) -> None:
        """Whole samples whose places are those of this shard."""
        self._settle()
        self._add(batch)

    def add_packed(self, packed: Packed, shift: int) -> None:
        """Samples as arrays, whose places count from byte ``shift`` of this shard."""
        import numpy

        self._settle()
        _extend(self._key_ends, packed.key_lengths.cumsum() + self._key_bytes)
        self._keys += packed.keys
        _extend(self._starts, packed.starts + shift)
        _extend(self._lengths, packed.lengths)
        _extend(self._member_ends, packed.counts.cumsum() + self._members)
        self._marks += bytes(len(packed.starts))
        ids = self._ids_of(packed)
        _extend(self._member_fields, ids)
        _extend(self._member_offsets, packed.offsets + shift)
        _extend(self._member_sizes, packed.sizes)
        counts = numpy.bincount(ids)
        # Exact: a float holds every whole number up to 2^53.
        totals = numpy.bincount(ids, packed.sizes)
        for number in numpy.flatnonzero(counts).tolist():
            self._counts[number] += int(counts[number])
            self._bytes[number] += int(totals[number])
        self._relieve()

    def _ids_of(self, packed: Packed) -> NDArray[numpy.int64]:
        """The number of each member's field. New fields are numbered in the order in which they come."""
        import numpy

        codes, fields = packed.codes, packed.fields
        if any(field not in self._field_ids for field in fields):
            firsts = {code: numpy.argmax(codes == code) for code in range(len(fields))}
            for code in sorted(firsts, key=firsts.__getitem__):
                self._field_id(fields[code])
        ids: NDArray[numpy.int64] = numpy.array([self._field_id(field) for field in fields])
        return ids[codes]

    def add_sample(
        self, key: bytes, start: int, fields: Sequence[bytes], offsets: Sequence[int], sizes: Sequence[int]
    ) -> None:
        """One canonical sample that begins at byte ``start``; a number per member in ``offsets`` and ``sizes``."""
        pending = self._pending
        pending.keys.append(key)
        pending.starts.append(start)
        pending.fields.extend(fields)
        pending.offsets.extend(offsets)
        pending.sizes.extend(sizes)
        pending.firsts.append(len(pending.fields))
        if len(pending.keys) >= _PENDING:
            self._settle()

    def _settle(self) -> None:
        """The samples that came one by one, into the columns. Their ``starts`` have one number a sample."""
        pending = self._pending
        if pending.keys:
            self._pending = new_batch()
            pending.marks.extend([0] * len(pending.keys))
            self._add(pending, pending.starts)

    def _add(self, batch: SampleBatch, begins: list[int] | None = None) -> None:
        keys, firsts = batch.keys, batch.firsts
        if begins is None:
            begins = list(map(batch.starts.__getitem__, firsts[:-1]))
        self._key_ends.fromlist(list(accumulate(map(len, keys), initial=self._key_bytes))[1:])
        self._keys += b"".join(keys)
        self._starts.fromlist(begins)
        offsets, sizes = batch.offsets, batch.sizes
        self._lengths.fromlist(
            [
                (offsets[end - 1] + sizes[end - 1] + 511 & -512) - begin
                for end, begin in zip(islice(firsts, 1, None), begins)
            ]
        )
        shift = self._members
        self._member_ends.fromlist([end + shift for end in islice(firsts, 1, None)])
        self._marks += bytes(batch.marks)
        self._add_fields(batch)
        self._member_offsets.fromlist(offsets)
        self._member_sizes.fromlist(sizes)
        self._relieve()

    def _relieve(self) -> None:
        """Let columns wait in a file once they are large."""
        if len(self._keys) + 33 * len(self._marks) + 20 * len(self._member_fields) < HELD:
            return
        for name in ("keys", *COLUMNS):
            column = getattr(self, "_" + name)
            self._waiting.put(name, _packed(column))
            fresh = type(column)() if isinstance(column, bytearray) else array(column.typecode)
            setattr(self, "_" + name, fresh)

    def _add_fields(self, batch: SampleBatch) -> None:
        """Nearly always all samples of a batch have the fields of its first, in its order: whole columns at a time."""
        fields, sizes, count = batch.fields, batch.sizes, len(batch.keys)
        width = batch.firsts[1] if count else 0
        if count > 1 and fields[:width] * count == fields:
            ids = [self._field_id(field) for field in fields[:width]]
            self._member_fields.extend(array("I", ids) * count)
            for place, number in enumerate(ids):
                self._counts[number] += count
                self._bytes[number] += sum(sizes[place::width])
            return
        known, counts, totals = self._field_ids, self._counts, self._bytes
        numbers = []
        for field, size in zip(fields, sizes):
            try:
                number = known[field]
            except KeyError:
                number = self._field_id(field)
            numbers.append(number)
            counts[number] += 1
            totals[number] += size
        self._member_fields.fromlist(numbers)

    def _field_id(self, field: bytes) -> int:
        """The number of a field's name; a new one for a name not seen before."""
        known = self._field_ids.get(field)
        if known is None:
            known = self._field_ids[field] = len(self._field_ids)
            self._counts.append(0)
            self._bytes.append(0)
        return known

    def totals(self) -> dict[str, FieldTotals]:
        """Count and bytes of every field, in order of first appearance."""
        self._settle()
        return {
            to_text(field): FieldTotals(self._counts[number], self._bytes[number])
            for field, number in self._field_ids.items()
        }

    def columns(self) -> dict[str, Buffer]:
        """The packed columns, little-endian. Views, where they can be: nothing may be added while they are held."""
        return {name: column.whole() for name, column in self._columns().items()}

    def _columns(self) -> dict[str, Column]:
        self._settle()
        found = {"fields": Column([], b"\0".join(self._field_ids))}
        for name in ("keys", *COLUMNS):
            found[name] = Column(self._waiting.pieces_of(name), _packed(getattr(self, "_" + name)))
        return found

    def digest(self) -> str:
        """See :func:`digest_of`."""
        return _digest(self._columns())

    def to_bytes(
        self,
        *,
        shard: str,
        size: int,
        form: Form = CANONICAL,
        ignored: dict[str, int] | None = None,
        etag: str = "",
    ) -> bytes:
        """The whole index file. ``size`` is the shard's size in bytes, ``shard`` its file name, ``etag`` its version
        where the store tells one."""
        return b"".join(self.pieces(shard=shard, size=size, form=form, ignored=ignored, etag=etag))

    def pieces(
        self,
        *,
        shard: str,
        size: int,
        form: Form = CANONICAL,
        ignored: dict[str, int] | None = None,
        etag: str = "",
    ) -> Iterator[Buffer]:
        """:meth:`to_bytes` piece by piece: an index is large where samples are small, and is not held twice."""
        import msgpack
        from xxhash import xxh3_64

        for field in self._field_ids:
            if b"\0" in field:
                raise DataError(
                    "no index can hold a field with a NUL in its name",
                    code="unsafe-name",
                    shard=shard,
                    member=to_text(field),
                    hint="save the other samples with `wds verify --repair -o OUT`",
                )
        columns = self._columns()
        whole = {
            "format": FORMAT,
            "version": VERSION,
            "shard": shard,
            "size": size,
            "samples": self.samples,
            "members": self.members,
            "mtime": form.mtime,
            "long_names": form.long_names,
            "ignored": dict(sorted((ignored or {}).items())),
            **({"etag": etag} if etag else {}),
            "digest": _digest(columns),
            **columns,
        }
        packer = msgpack.Packer(unicode_errors="surrogateescape")
        seal = xxh3_64()
        for piece in _pieces_of(whole, packer):
            seal.update(piece)
            yield piece
        yield seal.digest()


def _pieces_of(whole: Mapping[str, Any], packer: Any) -> Iterator[Buffer]:
    """A map's head, its names and values, and the head of the seal, which comes last."""
    yield packer.pack_map_header(len(whole) + 1)
    for name, value in whole.items():
        yield packer.pack(name)
        if isinstance(value, Column):
            yield _bin_head(value.length)
            yield from value.pieces()
        else:
            yield packer.pack(value)
    yield SEAL


def _bin_head(length: int) -> bytes:
    """What msgpack writes before so many bytes: bin 8, bin 16 or bin 32."""
    if length < 1 << 8:
        return b"\xc4" + length.to_bytes(1, "big")
    if length < 1 << 16:
        return b"\xc5" + length.to_bytes(2, "big")
    return b"\xc6" + length.to_bytes(4, "big")


def _extend(column: array[int], numbers: NDArray[numpy.int64]) -> None:
    """Append an array's numbers."""
    column.frombytes(numbers.astype("u8" if column.typecode == "Q" else "u4").tobytes())


def _packed(column: array[int] | bytearray) -> Buffer:
    if isinstance(column, array) and sys.byteorder == "big":
        column = array(column.typecode, column)
        column.byteswap()
    return memoryview(column).cast("B")


def digest_of(columns: Mapping[str, Buffer]) -> str:
    """XXH3-64 (hexadecimal) over what the headers say: field names, keys and every packed column but ``marks``, each
    preceded by its length as eight little-endian bytes."""
    return _digest({name: Column([], columns[name]) for name in ("fields", "keys", *COLUMNS)})


def _digest(columns: Mapping[str, Column]) -> str:
    from xxhash import xxh3_64

    digest = xxh3_64()
    for name in ("fields", "keys", *COLUMNS):
        if name not in _NOT_DIGESTED:
            digest.update(columns[name].length.to_bytes(8, "little"))
            for piece in columns[name].pieces():
                digest.update(piece)
    return digest.hexdigest()
