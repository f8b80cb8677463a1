"""The index of a shard, ``.wds/<shard name>.wdx``: where every sample and every member lies.

What it is: one msgpack map whose values are plain numbers, strings and packed little-endian arrays, so that loading is
``frombuffer``, not parsing. The layout is documented in ``man/wdscli-index.5``. How it stays true: ``digest`` is an
XXH3-64 over the packed columns, which say what the headers say (names, places, sizes). It proves that the file is whole,
and a scan of the shard gives the same digest or the index is stale. At every use, :func:`find_index` compares the shard's
size, its age where both are local files, and three headers; what a command then copies is checked as it is copied.

It must not know how shards are written or which command asks.
"""

from __future__ import annotations

import sys
from array import array
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from wdscli.errors import DataError
from wdscli.model import FieldTotals, to_text
from wdscli.samples import SampleBatch
from wdscli.tar import CANONICAL, Form

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

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


class IndexBuilder:
    """Gathers the columns of one shard while it is written or scanned."""

    def __init__(self) -> None:
        self.keys = bytearray()
        self.key_ends = array("Q")
        self.starts = array("Q")
        self.lengths = array("Q")
        self.member_ends = array("Q")
        self.marks = bytearray()
        self.member_fields = array("I")
        self.member_offsets = array("Q")
        self.member_sizes = array("Q")
        self._field_ids: dict[bytes, int] = {}
        self._counts: list[int] = []
        self._bytes: list[int] = []

    @property
    def samples(self) -> int:
        return len(self.key_ends)

    @property
    def members(self) -> int:
        return len(self.member_fields)

    def field_id(self, field: bytes) -> int:
        """The number of a field's name; a new one for a name not seen before."""
        known = self._field_ids.get(field)
        if known is None:
            known = self._field_ids[field] = len(self._field_ids)
            self._counts.append(0)
            self._bytes.append(0)
        return known

    def add_batch(self, batch: SampleBatch) -> None:
        """Whole samples whose places are those of this shard."""
        self._add_samples(batch)
        ids, counts, totals = self._field_ids, self._counts, self._bytes
        add = self.member_fields.append
        for field, size in zip(batch.fields, batch.sizes):
            try:
                number = ids[field]
            except KeyError:
                number = self.field_id(field)
            add(number)
            counts[number] += 1
            totals[number] += size
        self.member_offsets.extend(batch.offsets)
        self.member_sizes.extend(batch.sizes)

    def _add_samples(self, batch: SampleBatch) -> None:
        keys, firsts, starts = batch.keys, batch.firsts, batch.starts
        end, ends = len(self.keys), []
        for key in keys:
            end += len(key)
            ends.append(end)
        self.keys += b"".join(keys)
        self.key_ends.extend(ends)
        begins = [starts[first] for first in firsts[:-1]]
        offsets, sizes = batch.offsets, batch.sizes
        self.starts.extend(begins)
        self.lengths.extend(
            [
                (offsets[last - 1] + sizes[last - 1] + 511 & -512) - begin
                for last, begin in zip(firsts[1:], begins)
            ]
        )
        shift = len(self.member_fields)
        self.member_ends.extend([last + shift for last in firsts[1:]])
        self.marks += bytes(batch.marks)

    def add_sample(self, key: bytes, start: int, members: list[tuple[bytes, int, int]], end: int) -> None:
        """One canonical sample: members are (field, payload's byte, payload bytes), ``end`` the byte after it."""
        self.keys += key
        self.key_ends.append(len(self.keys))
        self.starts.append(start)
        self.lengths.append(end - start)
        self.marks.append(0)
        for field, offset, size in members:
            number = self.field_id(field)
            self.member_fields.append(number)
            self.member_offsets.append(offset)
            self.member_sizes.append(size)
            self._counts[number] += 1
            self._bytes[number] += size
        self.member_ends.append(len(self.member_fields))

    def totals(self) -> dict[str, FieldTotals]:
        """Count and bytes of every field, in order of first appearance."""
        return {
            to_text(field): FieldTotals(self._counts[number], self._bytes[number])
            for field, number in self._field_ids.items()
        }

    def columns(self) -> dict[str, bytes]:
        """The packed columns, little-endian."""
        packed = {name: _packed(getattr(self, name)) for name in COLUMNS}
        return {"fields": b"\0".join(self._field_ids), "keys": bytes(self.keys), **packed}

    def digest(self) -> str:
        """See :func:`digest_of`."""
        return digest_of(self.columns())

    def to_bytes(
        self, *, shard: str, size: int, form: Form = CANONICAL, ignored: dict[str, int] | None = None
    ) -> bytes:
        """The whole index file. ``size`` is the shard's size in bytes, ``shard`` its file name."""
        import msgpack

        columns = self.columns()
        head = {
            "format": FORMAT,
            "version": VERSION,
            "shard": shard,
            "size": size,
            "samples": self.samples,
            "members": self.members,
            "mtime": form.mtime,
            "long_names": form.long_names,
            "ignored": dict(sorted((ignored or {}).items())),
            "digest": digest_of(columns),
        }
        data: bytes = msgpack.packb({**head, **columns}, use_bin_type=True)
        return data


def _packed(column: array[int] | bytearray) -> bytes:
    if isinstance(column, bytearray):
        return bytes(column)
    if sys.byteorder == "big":
        column = array(column.typecode, column)
        column.byteswap()
    return column.tobytes()


def digest_of(columns: dict[str, bytes]) -> str:
    """XXH3-64 (hexadecimal) over what the headers say: field names, keys and every packed column but ``marks``, each
    preceded by its length as eight little-endian bytes."""
    from xxhash import xxh3_64

    digest = xxh3_64()
    for name in ("fields", "keys", *COLUMNS):
        if name not in _NOT_DIGESTED:
            digest.update(len(columns[name]).to_bytes(8, "little"))
            digest.update(columns[name])
    return digest.hexdigest()


class Index:
    """A loaded index: columns as numpy arrays without copying.

    ``key_ends starts lengths member_ends`` have one number a sample, ``member_fields member_offsets member_sizes`` one a
    member; sample ``i`` has the members ``member_ends[i - 1]`` (0 for the first) to ``member_ends[i]``, and its key is
    ``keys[key_ends[i - 1]:key_ends[i]]``. All offsets and sizes are bytes.
    """

    def __init__(self, raw: dict[str, Any], name: str) -> None:
        import numpy

        self.name = name
        self.shard: str = raw["shard"]
        self.size: int = raw["size"]
        self.samples: int = raw["samples"]
        self.members: int = raw["members"]
        self.form = Form(raw["mtime"], raw["long_names"])
        self.ignored: dict[str, int] = raw["ignored"]
        self.digest: str = raw["digest"]
        self.fields: list[bytes] = raw["fields"].split(b"\0") if raw["fields"] else []
        self.keys: bytes = raw["keys"]
        self._columns: dict[str, NDArray[numpy.uint64]] = {
            column: numpy.frombuffer(raw[column], dtype="<u" + {"Q": "8", "I": "4", "B": "1"}[code])
            for column, code in COLUMNS.items()
        }

    def __getattr__(self, column: str) -> NDArray[numpy.uint64]:
        try:
            return self.__dict__["_columns"][column]
        except KeyError:
            raise AttributeError(column) from None

    def key(self, row: int) -> bytes:
        """The key of one sample."""
        return self.keys[int(self.key_ends[row - 1]) if row else 0 : int(self.key_ends[row])]

    def batch(self, first: int = 0, end: int | None = None) -> SampleBatch:
        """Samples ``first`` to ``end`` as the columns that a scan would give."""
        end = self.samples if end is None else min(end, self.samples)
        key_at = [0 if first == 0 else int(self.key_ends[first - 1]), *self.key_ends[first:end].tolist()]
        low = 0 if first == 0 else int(self.member_ends[first - 1])
        firsts = [0, *(self.member_ends[first:end] - low).tolist()]
        high = low + firsts[-1]
        offsets = self.member_offsets[low:high].tolist()
        starts = [offset - 512 for offset in offsets]
        for row, at in zip(self.starts[first:end].tolist(), firsts):
            starts[at] = row
        marks = self.marks[first:end].tolist()
        return SampleBatch(
            first,
            [self.keys[a:b] for a, b in pairwise(key_at)],
            firsts,
            [self.fields[number] for number in self.member_fields[low:high].tolist()],
            starts,
            offsets,
            self.member_sizes[low:high].tolist(),
            [0] * (high - low),
            marks,
        )

    def totals(self) -> dict[str, FieldTotals]:
        """Count and bytes of every field."""
        import numpy

        counts = numpy.bincount(self.member_fields, minlength=len(self.fields))
        found = {}
        for number, field in enumerate(self.fields):
            size = int(self.member_sizes[self.member_fields == number].sum())
            found[to_text(field)] = FieldTotals(int(counts[number]), size)
        return found


def parse_index(data: bytes, name: str) -> Index:
    """An index from a file's bytes. Raises DataError ``stale-index`` for anything that is not a whole index."""
    import msgpack

    try:
        raw = msgpack.unpackb(data, raw=False, max_str_len=1 << 20)
        if raw["format"] != FORMAT or raw["version"] != VERSION:
            raise ValueError("another format or version")
        if digest_of(raw) != raw["digest"]:
            raise ValueError("its digest is not that of its columns")
        index = Index(raw, name)
        if not _is_consistent(index):
            raise ValueError("its columns do not fit each other")
    except (ValueError, KeyError, TypeError, AttributeError, msgpack.UnpackException) as error:
        raise DataError(
            f"{name} is not a whole index: {error}", code="stale-index", hint="make it again with `wds index`"
        ) from None
    return index


def _is_consistent(index: Index) -> bool:
    n, m = index.samples, index.members
    if any(
        len(index._columns[name]) != (m if name.startswith("member_") and name != "member_ends" else n)
        for name in COLUMNS
    ):
        return False
    last_key = int(index.key_ends[-1]) if n else 0
    last_member = int(index.member_ends[-1]) if n else 0
    fields_fit = not m or int(index.member_fields.max()) < len(index.fields)
    return last_key == len(index.keys) and last_member == m and fields_fit
