"""This module has the index of a shard, ``.wds/<shard name>.wdx``: the place of every sample and every member.

An index is one msgpack map of numbers, strings and packed little-endian arrays (wdscli-index(5)). So loading an array
is a call of ``frombuffer``, without parsing. :class:`Index` is a loaded index. :class:`IndexBuilder` collects an index
while a shard is written or scanned. An index has about ninety bytes per small sample. All but the last few MB are kept
in a temporary file, so that a writer's memory does not grow with the number of samples.

An index is verified in several ways. ``digest`` is an XXH3-64 over the packed columns, which contain the facts of the
headers: names, places, sizes. If a scan of the shard gives another digest, the index is stale. ``seal``, the last
value, is an XXH3-64 over all earlier bytes of the file. So a truncated or changed file is refused. At every use,
:mod:`wdscli.shards.proof` compares the index with the shard.

This module does not know where samples come from, how shards are written or which command runs.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from enum import IntEnum
from itertools import accumulate, chain, pairwise
from typing import Any

from wdscli.arrays import (
    I64,
    U64,
    Backing,
    Buffer,
    Column,
    SampleArrays,
    joined_keys,
    msgpack_pieces,
    numpy,
    spread,
    steps,
)
from wdscli.errors import DataError
from wdscli.model import Facts, FieldTotals
from wdscli.samples import RAGGED, SampleBatch, new_batch
from wdscli.samples.reading import ExpectedMember
from wdscli.schema import check
from wdscli.selection.values import Numbers, pack_numbers, unpack_numbers
from wdscli.shards.locks import FOLDER, SUFFIX
from wdscli.storage import base_name, sibling
from wdscli.tar import CANONICAL, END_OF_ARCHIVE, Form, padded
from wdscli.tar.header import MTIMES
from wdscli.tar.writer import Places
from wdscli.text import to_text


class Check(IntEnum):
    """How many headers of a shard are compared before its index is used."""

    SOME = 0
    """Some headers, for callers that compare the header of each payload that they read."""
    ALL_LOCAL = 1
    """All headers of a local shard, unless nothing touched it after its index was written. For callers that give
    answers from the index alone."""
    ALL = 2
    """All headers, whatever this costs."""


class Index:
    """A loaded index: columns as numpy arrays without copying.

    ``key_ends starts lengths member_ends`` have one number per sample. ``member_fields member_offsets member_sizes``
    have one number per member. Sample ``i`` has the members from ``member_ends[i - 1]`` to before ``member_ends[i]``,
    and its key is ``keys[key_ends[i - 1]:key_ends[i]]``. For the first sample, both begin at 0. All offsets and sizes
    are in bytes.

    :attr:`values` has the stored values by name. A name is an expression in its normal form
    (:func:`wdscli.selection.values.value_names`). Each entry is an int64 or float64 array with one number per sample. A
    missing number is ``MISSING`` of :mod:`wdscli.selection.values`, or NaN.
    """

    def __init__(self, raw: dict[str, Any], name: str, *, has_columns: bool = True) -> None:
        self.name = name
        self.shard: str = raw["shard"]
        self.size: int = raw["size"]
        self.samples: int = raw["samples"]
        self.members: int = raw["members"]
        self.form = Form(raw["mtime"], raw["long_names"])
        self.ignored: dict[str, int] = raw["ignored"]
        self.digest: str = raw["digest"]
        self.version: str = raw.get("etag", "")
        """The version of the shard that the index was made from, if the store has versions."""
        self.noted = ""
        """The version of the shard when both were written, if the store keeps it with the index."""
        self.compared = ""
        """The version whose checksum in the store was compared with :attr:`checksums`."""
        self.checksum = ""
        """The checksum of that version, as manifests write it, if it is kept too."""
        self.checksums: Mapping[str, str] = raw.get("checksums", {})
        """The checksums of the shard's file, in the form of :mod:`wdscli.tar.crc`."""
        self.unproven = frozenset[str]()
        """The names of stored values that were left out, because the payloads are not proven."""
        self.fields: list[bytes] = raw["fields"].split(b"\0") if self.members else []
        self.keys: bytes = raw["keys"]
        self.mark_bytes: bytes = raw["marks"]
        if not has_columns:
            return
        self._columns: dict[str, U64] = {
            column: numpy.frombuffer(raw[column], dtype=_DTYPES[code]) for column, code in COLUMNS.items()
        }
        self.numbers: dict[str, Numbers] = unpack_numbers(raw)

    @property
    def values(self) -> dict[str, Any]:
        """The stored values by name, as arrays with one number per sample."""
        return {name: numbers.array for name, numbers in self.numbers.items()}

    @property
    def exact(self) -> dict[str, Numbers]:
        """The stored values that can be used instead of reading the payload."""
        return {name: numbers for name, numbers in self.numbers.items() if numbers.exact}

    def __getattr__(self, column: str) -> U64:
        try:
            return self.__dict__["_columns"][column]
        except KeyError:
            raise AttributeError(column) from None

    def key(self, row: int) -> bytes:
        """Return the key of one sample."""
        return self.keys[int(self.key_ends[row - 1]) if row else 0 : int(self.key_ends[row])]

    def member(self, number: int) -> ExpectedMember:
        """Return a member with the place of its headers."""
        row = int(numpy.searchsorted(self.member_ends, number, "right"))
        head = int(self.starts[row])
        if number and (not row or number > int(self.member_ends[row - 1])):
            head = int(self.member_offsets[number - 1]) + padded(int(self.member_sizes[number - 1]))
        name = self.key(row) + b"." + self.fields[int(self.member_fields[number])]
        return ExpectedMember(head, int(self.member_offsets[number]), name, int(self.member_sizes[number]))

    @classmethod
    def of(
        cls,
        shard: str,
        size: int,
        form: Form,
        fields: Sequence[bytes],
        keys: bytes,
        columns: Mapping[str, I64],
    ) -> Index:
        """Return the index of a shard with these columns."""
        raw: dict[str, Any] = {
            "shard": shard,
            "size": size,
            "samples": len(columns["starts"]),
            "members": len(columns["member_sizes"]),
            "mtime": form.mtime,
            "long_names": form.long_names,
            "ignored": {},
            "fields": b"\0".join(fields),
            "keys": keys,
            **{
                name: columns[name].astype("<i8" if code == "Q" else _DTYPES[code], copy=False).view("u1")
                for name, code in COLUMNS.items()
            },
        }
        return cls({**raw, "digest": digest_of(raw)}, shard)

    def has(self, first: int, samples: SampleArrays) -> bool:
        """Return whether the samples from number ``first`` have these keys, fields and sizes."""
        end = first + len(samples.counts)
        low, high = ((int(self.member_ends[row - 1]) if row else 0) for row in (first, end))
        begin, key_ends = int(self.key_ends[first - 1]) if first else 0, self.key_ends.view("i8")[first:end]
        numbers = {field: number for number, field in enumerate(self.fields)}
        codes: I64 = numpy.array([numbers.get(field, -1) for field in samples.fields], dtype=numpy.int64)
        return (
            samples.keys == self.keys[begin : int(key_ends[-1])]
            and numpy.array_equal(samples.key_lengths, numpy.diff(key_ends, prepend=begin))
            and numpy.array_equal(samples.counts.cumsum() + low, self.member_ends.view("i8")[first:end])
            and numpy.array_equal(codes[samples.codes], self.member_fields[low:high])
            and numpy.array_equal(samples.sizes, self.member_sizes[low:high])
        )

    def renamed(self, shard: str) -> Index:
        """Return the same index for a shard with this name and an unknown version."""
        renamed = copy(self)
        renamed.name = renamed.shard = shard
        renamed.version = renamed.noted = renamed.checksum = ""
        return renamed

    def without_values(self) -> Index:
        """Return the same index without stored values and checksums, which depend on the payloads."""
        plain = copy(self)
        plain.unproven = frozenset(self.numbers)
        plain.numbers, plain.checksums = {}, {}
        return plain

    def part(self, rows: I64) -> Index:
        """Return an index of only some samples, without digest."""
        part = copy(self)
        counts = steps(self.member_ends)[rows]
        members = spread(self.member_ends.view("i8")[rows] - counts, counts)
        ends: I64 = self.key_ends.view("i8")[rows]
        begins: I64 = numpy.append(0, self.key_ends.view("i8"))[rows]
        part._columns = {
            name: column[members if name in _PER_MEMBER else rows] for name, column in self._columns.items()
        }
        part._columns["key_ends"] = (ends - begins).cumsum().view("u8")
        part._columns["member_ends"] = counts.cumsum().view("u8")
        part.keys = joined_keys([self.keys], numpy.zeros_like(ends), begins, ends)
        part.samples, part.members, part.digest = len(rows), len(members), ""
        part.numbers = {
            name: Numbers(column.array[rows], column.exact) for name, column in self.numbers.items()
        }
        return part

    @property
    def memory_bytes(self) -> int:
        """The approximate size of the index in memory."""
        return 64 * self.samples + 20 * self.members + len(self.keys)

    def batch(self, first: int = 0, end: int | None = None) -> SampleBatch:
        """Return the samples ``first`` to ``end - 1`` as the columns that a scan would return. If a sample is RAGGED,
        the members between its members count as headers."""
        end = self.samples if end is None else min(end, self.samples)
        low = 0 if first == 0 else int(self.member_ends[first - 1])
        firsts = [0, *(self.member_ends[first:end] - low).tolist()]
        high = low + firsts[-1]
        offsets, sizes = (column.view("i8")[low:high] for column in (self.member_offsets, self.member_sizes))
        starts: I64 = numpy.append(0, offsets + (sizes + 511 & -512))[:-1]
        starts[firsts[:-1]] = self.starts[first:end]
        return SampleBatch(
            first,
            self.keys_of(first, end),
            firsts,
            list(map(self.fields.__getitem__, self.member_fields[low:high].tolist())),
            starts.tolist(),
            offsets.tolist(),
            sizes.tolist(),
            [0] * (high - low),
            self.marks[first:end].tolist(),
            self.exact,
        )

    def keys_of(self, first: int, end: int) -> list[bytes]:
        begin, ends = int(self.key_ends[first - 1]) if first else 0, self.key_ends.view("i8")[first:end]
        count, width = end - first, int(ends[0]) - begin if end > first else 0
        if width and numpy.array_equal(ends, begin + width * numpy.arange(1, count + 1)):
            equally_long: list[bytes] = numpy.frombuffer(self.keys, f"V{width}", count, begin).tolist()
            return equally_long
        keys = self.keys
        return [keys[key_start:key_end] for key_start, key_end in pairwise([begin, *ends.tolist()])]

    def gaps(self) -> tuple[U64, U64]:
        """Return (begins, ends) of the ranges that belong to no sample: before the first sample, between two samples,
        and after the last sample. The end of the archive alone is not such a range."""
        begins: U64 = numpy.append(numpy.uint64(0), self.starts + self.lengths)
        ends: U64 = numpy.append(self.starts, numpy.uint64(self.size))
        is_gap = ends > begins
        is_gap[-1] = self.size - int(begins[-1]) > len(END_OF_ARCHIVE)
        return begins[is_gap], ends[is_gap]

    @property
    def is_canonical(self) -> bool:
        """Whether these samples, in this order and in canonical form, are the whole shard, together with the end of the
        archive."""
        ends = self.lengths.cumsum()
        is_full = int(ends[-1:].sum()) + len(END_OF_ARCHIVE) == self.size
        return is_full and not self.marks.any() and numpy.array_equal(self.starts, ends - self.lengths)

    def facts(self) -> Facts:
        """Return the facts of the shard, for its entry in a manifest."""
        return Facts(self.samples, self.members, self.digest, self.totals())

    def totals(self) -> dict[str, FieldTotals]:
        """Return count and bytes of every field."""
        counts = numpy.bincount(self.member_fields, minlength=len(self.fields))
        totals = {}
        for number, field in enumerate(self.fields):
            size = int(self.member_sizes[self.member_fields == number].sum())
            totals[to_text(field)] = FieldTotals(int(counts[number]), size)
        return totals


def parse_index(data: bytes, name: str, *, has_columns: bool = True) -> Index:
    """Parse a file's bytes; without ``has_columns``, the index has no columns, and needs no numpy. Raises DataError
    ``stale-index`` for a file that is truncated, changed or of another format."""
    import msgpack
    from xxhash import xxh3_64

    try:
        if data[-8 - len(SEAL) : -8] != SEAL or xxh3_64(memoryview(data)[:-8]).digest() != data[-8:]:
            raise ValueError("it is truncated, changed or of another format")
        raw: dict[str, Any] = msgpack.unpackb(data, raw=False, unicode_errors="surrogateescape")
        check(raw, _FIELDS)
        if digest_of(raw) != raw["digest"]:
            raise ValueError("its digest does not match its columns")
        index = Index(raw, name, has_columns=has_columns)
        if has_columns:
            _check_columns(index)
    except (ValueError, msgpack.UnpackException) as error:
        hint = "rebuild it with `wds index`"
        raise DataError(f"{name} is not a valid index: {error}", code="stale-index", hint=hint) from None
    return index


def _check_columns(index: Index) -> None:
    """Raise ValueError unless every number points to a possible place. Even a file with a correct seal may be crafted.
    Samples must follow each other in the shard, members must be inside their sample, and both must be in order."""
    samples, members, columns = index.samples, index.members, index._columns
    if any(len(columns[name]) != (members if name in _PER_MEMBER else samples) for name in COLUMNS):
        raise ValueError("its columns have different lengths")
    if any(len(column) and int(column.max()) >= 1 << 62 for column in columns.values()):
        raise ValueError("it has an impossible number")
    if not samples:
        if members or index.keys:
            raise ValueError("it has members without a sample")
        return
    ends, member_ends = index.key_ends.view("i8"), index.member_ends.view("i8")
    starts, lengths = index.starts.view("i8"), index.lengths.view("i8")
    offsets, sizes = index.member_offsets.view("i8"), index.member_sizes.view("i8")
    counts = steps(member_ends)
    if counts.min() < 1 or member_ends[-1] != members:
        raise ValueError("its members are not in order")
    if steps(ends).min() < 0 or ends[-1] != len(index.keys):
        raise ValueError("its keys are not in order")
    if int(index.member_fields.max()) >= len(index.fields):
        raise ValueError("a member has an unknown field")
    sample_ends = starts + lengths
    if (starts[1:] < sample_ends[:-1]).any() or lengths.min() < 512 or sample_ends[-1] > index.size:
        raise ValueError("its samples overlap or lie outside the shard")
    if (offsets < starts.repeat(counts) + 512).any() or (offsets + sizes > sample_ends.repeat(counts)).any():
        raise ValueError("a member lies outside its sample")
    if (offsets & 511).any() or ((starts | lengths) & 511).any():
        raise ValueError("an offset or a length is not a multiple of 512")
    _check_gaps(index, starts, sample_ends)


def _check_gaps(index: Index, starts: I64, ends: I64) -> None:
    """Raise ValueError unless every gap can be a member that was counted as ignored. A pax global header is also a gap,
    but then the next sample is not canonical."""
    apart = starts != numpy.append(0, ends[:-1])
    gaps = int((apart & (index.marks == 0)).sum()) + int((index.marks & RAGGED != 0).sum())
    if gaps > sum(index.ignored.values()):
        raise ValueError("the gaps between its samples need more ignored members than it lists")


_PER_MEMBER = ("member_fields", "member_offsets", "member_sizes")

FORMAT = "wdscli-index"
VERSION = 1

#: column -> array typecode (Q u64, I u32, B u8), in the order in which the digest takes the columns
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
_DTYPES = {"Q": "<u8", "I": "<u4", "B": "u1"}
_COUNT = range(1 << 62)
_FIELDS = {
    "format": (FORMAT,),
    "version": (VERSION,),
    "shard": str,
    **dict.fromkeys(("size", "samples", "members"), _COUNT),
    "mtime": MTIMES,
    "long_names": ("pax", "gnu"),
    "ignored": {...: _COUNT},
    "etag?": str,
    "checksums?": {...: str},
    "values?": object,
    "digest": str,
    **dict.fromkeys(("fields", "keys", *COLUMNS), bytes),
}
"""See :mod:`wdscli.schema` for the form of this table."""
_NOT_DIGESTED = {"marks"}
SEAL = b"\xa4seal\xc4\x08"
"""The bytes before the seal, which is the last eight bytes of the file: msgpack's key ``seal``, and msgpack's head of
an eight-byte string."""
_PENDING_SAMPLES = 512
HELD_BYTES = 2 << 20
"""How many bytes of columns are kept in memory."""


def index_address(address: str) -> str:
    """Return the address of a shard's index: ``.wds/<name>.wdx`` in the shard's folder."""
    return sibling(address, f"{FOLDER}/{base_name(address)}{SUFFIX}")


class IndexBuilder:
    """Collects the columns of one shard while it is written or scanned. Some hundred single samples are collected as a
    batch, because packing whole columns is ten times faster than packing single numbers."""

    def __init__(self) -> None:
        self._columns = {name: Column(code) for name, code in {"keys": "B", **COLUMNS}.items()}
        self._scratch = Backing()
        self._field_ids: dict[bytes, int] = {}
        self._counts: list[int] = []
        self._bytes: list[int] = []
        self.values: dict[str, Numbers] = {}
        """The values of all samples, by name; set them when all samples were added."""
        self._begin_batch()

    def _begin_batch(self) -> None:
        self._pending = pending = new_batch()
        self.places: Places = (pending.fields, pending.offsets, pending.sizes)

    @property
    def samples(self) -> int:
        return len(self._columns["marks"]) + len(self._pending.keys)

    @property
    def members(self) -> int:
        return len(self._columns["member_fields"]) + len(self._pending.fields)

    def add_batch(self, batch: SampleBatch) -> None:
        """Add complete samples with their places in this shard."""
        self._settle()
        self._add(batch)

    def add_arrays(self, samples: SampleArrays, shift: int) -> None:
        """Add samples as arrays. Their places count from byte ``shift`` of this shard."""
        self._settle()
        ids = self._ids_of(samples)
        added: dict[str, I64] = {
            "key_ends": samples.key_lengths.cumsum() + len(self._columns["keys"]),
            "starts": samples.starts + shift,
            "lengths": samples.lengths,
            "member_ends": samples.counts.cumsum() + len(self._columns["member_fields"]),
            "marks": numpy.zeros(len(samples.starts), dtype="i8"),
            "member_fields": ids,
            "member_offsets": samples.offsets + shift,
            "member_sizes": samples.sizes,
        }
        self._columns["keys"].held.frombytes(samples.keys)
        for name, numbers in added.items():
            held = self._columns[name].held
            held.frombytes(numbers.astype(f"u{held.itemsize}").tobytes())
        counts = numpy.bincount(ids)
        # This is exact, because a float can represent every whole number up to 2^53.
        totals = numpy.bincount(ids, samples.sizes)
        for number in numpy.flatnonzero(counts).tolist():
            self._counts[number] += int(counts[number])
            self._bytes[number] += int(totals[number])
        self._relieve()

    def _ids_of(self, samples: SampleArrays) -> I64:
        """Return the number of each member's field. New fields are numbered in the order of their first member."""
        codes, fields = samples.codes, samples.fields
        if any(field not in self._field_ids for field in fields):
            firsts = {code: numpy.argmax(codes == code) for code in range(len(fields))}
            for code in sorted(firsts, key=firsts.__getitem__):
                self._field_id(fields[code])
        ids: I64 = numpy.array([self._field_id(field) for field in fields])
        return ids[codes]

    def end_sample(self, key: bytes, start: int) -> None:
        """Add a sample with the members that were appended to :attr:`places` since the last sample."""
        pending = self._pending
        pending.keys.append(key)
        pending.starts.append(start)
        pending.firsts.append(len(pending.fields))
        if len(pending.keys) >= _PENDING_SAMPLES:
            self._settle()

    def _settle(self) -> None:
        """Move collected single samples into the columns. ``starts`` has one number per sample."""
        pending = self._pending
        if pending.keys:
            self._begin_batch()
            pending.marks.extend([0] * len(pending.keys))
            self._add(pending, pending.starts)

    def _add(self, batch: SampleBatch, begins: list[int] | None = None) -> None:
        keys, firsts, offsets, sizes = batch.keys, batch.firsts, batch.offsets, batch.sizes
        width = firsts[1] if keys else 1
        if firsts == [*range(0, len(offsets) + 1, width)]:
            tails, last_sizes = offsets[width - 1 :: width], sizes[width - 1 :: width]
            begins = begins or batch.starts[::width]
        else:
            tails, last_sizes = ([column[end - 1] for end in firsts[1:]] for column in (offsets, sizes))
            begins = begins or [batch.starts[first] for first in firsts[:-1]]
        keys_before, members_before = len(self._columns["keys"]), len(self._columns["member_fields"])
        columns = {name: column.held for name, column in self._columns.items()}
        columns["key_ends"].fromlist(list(accumulate(map(len, keys), initial=keys_before))[1:])
        columns["keys"].frombytes(b"".join(keys))
        columns["starts"].fromlist(begins)
        columns["lengths"].fromlist(
            [(offset + size + 511 & -512) - begin for offset, size, begin in zip(tails, last_sizes, begins)]
        )
        columns["member_ends"].fromlist([end + members_before for end in firsts[1:]])
        columns["marks"].fromlist(batch.marks)
        self._add_fields(batch, columns["member_fields"])
        columns["member_offsets"].fromlist(offsets)
        columns["member_sizes"].fromlist(sizes)
        self._relieve()

    def _relieve(self) -> None:
        """Move large columns to a file."""
        if sum(len(column.held) * column.held.itemsize for column in self._columns.values()) >= HELD_BYTES:
            for column in self._columns.values():
                column.wait(self._scratch)

    def _add_fields(self, batch: SampleBatch, column: array[int]) -> None:
        """Add the members' fields. Nearly always, all samples of a batch have the same fields in the same order as the
        first sample."""
        fields, sizes, count = batch.fields, batch.sizes, len(batch.keys)
        width = batch.firsts[1] if count else 0
        if count > 1 and fields[:width] * count == fields:
            ids = [self._field_id(field) for field in fields[:width]]
            column.extend(array("I", ids) * count)
            for place, number in enumerate(ids):
                self._counts[number] += count
                self._bytes[number] += sum(sizes[place::width])
            return
        field_ids, counts, totals = self._field_ids, self._counts, self._bytes
        for field, size in zip(fields, sizes):
            number = field_ids[field] if field in field_ids else self._field_id(field)
            column.append(number)
            counts[number] += 1
            totals[number] += size

    def _field_id(self, field: bytes) -> int:
        """Return the number of a field. A new field gets the next number."""
        field_id = self._field_ids.get(field)
        if field_id is None:
            field_id = self._field_ids[field] = len(self._field_ids)
            self._counts.append(0)
            self._bytes.append(0)
        return field_id

    def totals(self) -> dict[str, FieldTotals]:
        """Return count and bytes of every field, in the order of their first members."""
        self._settle()
        return {
            to_text(field): FieldTotals(self._counts[number], self._bytes[number])
            for field, number in self._field_ids.items()
        }

    def facts(self) -> Facts:
        """Return the facts of the shard, as :meth:`Index.facts`."""
        return Facts(self.samples, self.members, self.digest(), self.totals())

    def columns(self) -> dict[str, Buffer]:
        """Return the packed columns, little-endian. They may be views of memory, so add no samples while you use
        them."""
        self._settle()
        columns = {name: column.whole() for name, column in self._columns.items()}
        return {"fields": b"\0".join(self._field_ids), **columns}

    def digest(self) -> str:
        """Return the :func:`digest_of` of these columns."""
        self._settle()
        return digest_of({"fields": b"\0".join(self._field_ids), **self._columns})

    def index(self, address: str, size: int, ignored: dict[str, int], form: Form = CANONICAL) -> Index:
        """Return the index of the shard at ``address`` without making a file. Add no samples after this. Raises
        DataError."""
        raw = {**self._head(base_name(address), size, form, ignored), **self.columns()}
        index = Index({**raw, "keys": bytes(raw["keys"])}, address)
        index.numbers = self.values
        return index

    def to_bytes(self, **about: Any) -> bytes:
        """Return the whole file; see :meth:`pieces`."""
        return b"".join(self.pieces(**about))

    def _head(
        self,
        shard: str,
        size: int,
        form: Form = CANONICAL,
        ignored: dict[str, int] | None = None,
        version: str = "",
        checksums: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Return the facts for an index. ``shard`` is the shard's file name, ``size`` its size in bytes, ``version``
        its version in a store, ``checksums`` those of its file. Raises DataError for a field with a NUL."""
        for field in self._field_ids:
            if b"\0" in field:
                raise DataError(
                    "an index cannot hold a field with a NUL in its name",
                    code="unsafe-name",
                    shard=shard,
                    member=to_text(field),
                    hint="save the other samples with `wds repair SHARDS -o OUT`",
                )
        return {
            "format": FORMAT,
            "version": VERSION,
            "shard": shard,
            "size": size,
            "samples": self.samples,
            "members": self.members,
            "mtime": form.mtime,
            "long_names": form.long_names,
            "ignored": dict(sorted((ignored or {}).items())),
            **({"etag": version} if version else {}),
            **({"checksums": dict(checksums)} if checksums else {}),
            "digest": self.digest(),
        }

    def pieces(self, **about: Any) -> Iterator[Buffer]:
        """Yield the index file in pieces, because it is large for many small samples. The arguments are those of
        :meth:`_head`. Raises DataError."""
        import msgpack
        from xxhash import xxh3_64

        head = self._head(**about)
        whole = {
            **head,
            "fields": b"\0".join(self._field_ids),
            **self._columns,
            **pack_numbers(self.values, head["digest"]),
        }
        packer = msgpack.Packer(unicode_errors="surrogateescape")
        seal = xxh3_64()
        for piece in chain(msgpack_pieces(whole, packer, added_entries=1), (SEAL,)):
            seal.update(piece)
            yield piece
        yield seal.digest()


def digest_of(columns: Mapping[str, Buffer | Column]) -> str:
    """Return the XXH3-64 (hexadecimal) over the facts of the headers: field names, keys, and every packed column except
    ``marks``. Before each comes its length as eight little-endian bytes."""
    from xxhash import xxh3_64

    digest = xxh3_64()
    for name in ("fields", "keys", *COLUMNS):
        if name not in _NOT_DIGESTED:
            column = columns[name]
            length = column.size_bytes if isinstance(column, Column) else len(column)
            digest.update(length.to_bytes(8, "little"))
            for piece in column.pieces() if isinstance(column, Column) else (column,):
                digest.update(piece)
    return digest.hexdigest()
