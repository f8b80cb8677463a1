"""The index of a shard, ``.wds/<shard name>.wdx``: where every sample and every member lies.

What it is: one msgpack map whose values are plain numbers, strings and packed little-endian arrays, so that loading is
``frombuffer``, not parsing. The layout is documented in wdscli-index(5). How it stays true: ``digest`` is an XXH3-64
over the packed columns, which say what the headers say (names, places, sizes): a scan of the shard gives the same
digest or the index is stale. The last value, ``seal``, is an XXH3-64 over every byte of the file before it, so that a
file that is cut or changed anywhere is refused. At every use, :func:`find_index` compares the shard's size, its version
where the store tells one, its age where both are local files, and some headers; the header in front of every payload is
compared when that is read.

It must not know how shards are written or which command asks.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from wdscli.errors import DataError
from wdscli.model import FieldTotals, to_text
from wdscli.samples import RAGGED, SampleBatch
from wdscli.shards.building import (
    COLUMNS,
    FOLDER,
    FORMAT,
    SEAL,
    SUFFIX,
    VERSION,
    IndexBuilder,
    Packed,
    digest_of,
)
from wdscli.tar import END_OF_ARCHIVE, Form

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

__all__ = [
    "COLUMNS",
    "FOLDER",
    "FORMAT",
    "Index",
    "IndexBuilder",
    "Packed",
    "SUFFIX",
    "VERSION",
    "check_seal",
    "digest_of",
    "parse_index",
]


class Index:
    """A loaded index: columns as numpy arrays without copying.

    ``key_ends starts lengths member_ends`` have one number a sample, ``member_fields member_offsets member_sizes``
    one a member; sample ``i`` has the members ``member_ends[i - 1]`` (0 for the first) to ``member_ends[i]``, and its
    key is ``keys[key_ends[i - 1]:key_ends[i]]``. All offsets and sizes are bytes.
    """

    def __init__(self, raw: dict[str, Any], name: str) -> None:
        import numpy

        self.name = name
        self.shard: str = str(raw["shard"])
        self.size, self.samples, self.members = map(_natural, (raw["size"], raw["samples"], raw["members"]))
        self.form = _form(raw["mtime"], raw["long_names"])
        self.ignored: dict[str, int] = {
            str(reason): _natural(count) for reason, count in raw["ignored"].items()
        }
        self.digest: str = raw["digest"]
        self.etag = _text(raw.get("etag", ""))
        """The version of the shard that it was made from, where a store told it."""
        self.seen = ""
        """The version that the shard had when the index was found."""
        self.fields: list[bytes] = raw["fields"].split(b"\0") if self.members else []
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

    def gaps(self) -> tuple[NDArray[numpy.uint64], NDArray[numpy.uint64]]:
        """(begins, ends) of what belongs to no sample: what lies before the first, between two, and behind the last but
        for the end of the archive, unless there is nothing but that."""
        import numpy

        begins: NDArray[numpy.uint64] = numpy.append(numpy.uint64(0), self.starts + self.lengths)
        ends: NDArray[numpy.uint64] = numpy.append(self.starts, numpy.uint64(self.size))
        some = ends > begins
        some[-1] = self.size - int(begins[-1]) > len(END_OF_ARCHIVE)
        return begins[some], ends[some]

    def totals(self) -> dict[str, FieldTotals]:
        """Count and bytes of every field."""
        import numpy

        counts = numpy.bincount(self.member_fields, minlength=len(self.fields))
        found = {}
        for number, field in enumerate(self.fields):
            size = int(self.member_sizes[self.member_fields == number].sum())
            found[to_text(field)] = FieldTotals(int(counts[number]), size)
        return found


def _form(mtime: Any, long_names: Any) -> Form:
    if _natural(mtime) >= 8**11 or long_names not in ("pax", "gnu"):
        raise ValueError(f"an impossible form, {mtime!r} {long_names!r}")
    return Form(mtime, long_names)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} where a text belongs")
    return value


def _natural(number: Any) -> int:
    if not isinstance(number, int) or not 0 <= number < 1 << 62:
        raise ValueError(f"{number!r} where a number belongs")
    return number


def parse_index(data: bytes, name: str) -> Index:
    """An index from a file's bytes. Raises DataError ``stale-index`` for anything that is not a whole index."""
    import msgpack

    try:
        check_seal(data)
        raw = msgpack.unpackb(data, raw=False, unicode_errors="surrogateescape")
        if raw["format"] != FORMAT or raw["version"] != VERSION:
            raise ValueError(f"another format or version ({raw['format']!r} {raw['version']!r})")
        if digest_of(raw) != raw["digest"]:
            raise ValueError("its digest is not that of its columns")
        index = Index(raw, name)
        _check_columns(index)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, msgpack.UnpackException) as error:
        raise DataError(
            f"{name} is not a whole index: {error}", code="stale-index", hint="make it again with `wds index`"
        ) from None
    return index


def check_seal(data: bytes) -> None:
    """Raise ValueError unless the seal at the end of an index is that of all bytes before it."""
    from xxhash import xxh3_64

    if data[-8 - len(SEAL) : -8] != SEAL or xxh3_64(memoryview(data)[:-8]).digest() != data[-8:]:
        raise ValueError("it is cut, changed or of another format")


def _check_columns(index: Index) -> None:
    """Raise ValueError unless every number points to where it may: a file can be whole and still lie.

    Samples lie one behind the other in the shard, members inside their sample, keys and members in order.
    """
    import numpy

    n, m, columns = index.samples, index.members, index._columns
    if any(len(columns[name]) != (m if name in _PER_MEMBER else n) for name in COLUMNS):
        raise ValueError("its columns do not fit each other")
    if any(len(column) and int(column.max()) >= 1 << 62 for column in columns.values()):
        raise ValueError("a number in it is impossible")
    if not n:
        if m or index.keys:
            raise ValueError("it has members without a sample")
        return
    ends, member_ends = index.key_ends.view("i8"), index.member_ends.view("i8")
    starts, lengths = index.starts.view("i8"), index.lengths.view("i8")
    offsets, sizes = index.member_offsets.view("i8"), index.member_sizes.view("i8")
    counts = numpy.diff(member_ends, prepend=0)
    if counts.min() < 1 or member_ends[-1] != m:
        raise ValueError("its members are not in order")
    if numpy.diff(ends, prepend=0).min() < 0 or ends[-1] != len(index.keys):
        raise ValueError("its keys are not in order")
    if int(index.member_fields.max()) >= len(index.fields):
        raise ValueError("a member has a field that is not there")
    sample_ends = starts + lengths
    if (starts[1:] < sample_ends[:-1]).any() or lengths.min() < 512 or sample_ends[-1] > index.size:
        raise ValueError("its samples overlap or lie outside the shard")
    if (offsets < starts.repeat(counts) + 512).any() or (offsets + sizes > sample_ends.repeat(counts)).any():
        raise ValueError("a member lies outside its sample")
    if (offsets & 511).any() or ((starts | lengths) & 511).any():
        raise ValueError("a place in it is not that of a block")
    _check_gaps(index, starts, sample_ends)


def _check_gaps(index: Index, starts: NDArray[numpy.int64], ends: NDArray[numpy.int64]) -> None:
    """Raise ValueError unless every gap can be that of a member that was counted as ignored. A pax global header makes
    one too, but then what follows it is not canonical."""
    import numpy

    apart = starts != numpy.append(0, ends[:-1])
    gaps = int((apart & (index.marks == 0)).sum()) + int((index.marks & RAGGED != 0).sum())
    if gaps > sum(index.ignored.values()):
        raise ValueError("its samples do not adjoin, and it counts too few members between them")


_PER_MEMBER = ("member_fields", "member_offsets", "member_sizes")
