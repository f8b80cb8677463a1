"""The headers of many small samples at once: what :class:`~wdscli.tar.scan.Scanner` finds, found by arrays.

What it is: :class:`Walker`, for a buffer in which samples lie one behind the other at known places. How: the first
headers of all samples are looked at together, then the second ones, and so on, a table of blocks at a time; each must
be canonical, its checksum right, its key the first one's, and the first one's hash that of the plan. It has no errors
of its own: what is not plain (other headers, long names, pax, anything wrong) is left to the exact path, whole.

It must not know where the bytes come from or go to.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from wdscli.samples.keys import split_name
from wdscli.shards.index import SampleArrays
from wdscli.tar import Form
from wdscli.tar.header import BLOCK, CANONICAL_MIDDLE, CANONICAL_TAIL, byte_sum

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    from wdscli.plan.table import I64, U8, U64

WORTH_SAMPLES = 48
"""Fewer samples are walked faster one by one."""
MEMBERS_AT_MOST = 64
NAME_BYTES = 100


class Walker:
    """Walks buffers of samples of one form. ``hash_key`` is what the plan keeps of a key."""

    def __init__(self, form: Form, hash_key: Callable[[bytes], int]) -> None:
        import numpy

        head = bytes(NAME_BYTES) + CANONICAL_MIDDLE + bytes(12) + form.mtime_field + bytes(8)
        self._template = numpy.frombuffer(head + CANONICAL_TAIL, dtype=numpy.uint8)
        self._sum = byte_sum(CANONICAL_MIDDLE + form.mtime_field + CANONICAL_TAIL) + 8 * 32
        self._hash_key = hash_key
        self._ones: NDArray[numpy.float32] = numpy.ones(NAME_BYTES, dtype=numpy.float32)
        powers = 8.0 ** numpy.arange(10, -1, -1)
        self._check_powers = powers[5:]
        # A number, and the sum of its digits.
        self._size_powers = numpy.column_stack((powers, numpy.ones(11)))
        places = numpy.arange(BLOCK)
        behind = ((places >= places[:, None]) * numpy.uint8(255)).astype(numpy.uint8)
        self._behind: U64 = behind.view(numpy.uint64)
        """Row by row: ones in the bytes of a block that lie behind so many."""

    def walk(self, view: memoryview, begins: I64, keys: U64) -> SampleArrays | None:
        """The samples that begin at the bytes ``begins`` of ``view``, the first at 0, and fill it; ``keys`` has the
        hashes of their keys. None unless all of them are plain and as planned."""
        import numpy

        if (keys[1:] == keys[:-1]).any():
            return None
        blocks = numpy.frombuffer(view, dtype=numpy.uint8).reshape(-1, BLOCK)
        at = begins >> 9
        ends: I64 = numpy.append(at[1:], len(blocks))
        alive: I64 = numpy.arange(len(at))
        names: _Names | None = None
        levels: list[_Level] = []
        while len(alive):
            found = self._headers(blocks[at])
            if found is None or len(levels) == MEMBERS_AT_MOST:
                return None
            table, sizes = found
            if names is None:
                names = _names_of(table)
                if names is None or not self._are_planned(names, keys):
                    return None
            fields = names.fields(table, alive)
            if fields is None:
                return None
            levels.append(_Level(alive, at, sizes, fields))
            at = at + 1 + (sizes + 511 >> 9)
            going = at < ends
            if not going.all():
                if (at > ends).any():
                    return None
                alive, at, ends = alive[going], at[going], ends[going]
        return None if names is None else _packed(begins, len(view), names.keys, levels)

    def _headers(self, rows: U8) -> tuple[U8, I64] | None:
        """The names (100 bytes each) and payload bytes of blocks, all of which must be canonical headers of regular
        members without a prefix."""
        import numpy

        words, template = rows.view(numpy.uint32), self._template.view(numpy.uint32)
        longs, long_template = rows.view(numpy.uint64), self._template.view(numpy.uint64)
        same = (
            (longs[:, 20:] == long_template[20:]).all()
            and (words[:, 39] == template[39]).all()
            and (words[:, 25:31] == template[25:31]).all()
            and (words[:, 34:37] == template[34:37]).all()
        )
        # "%011o\0" and "%06o\0 "
        if not same or rows[:, 135].any() or rows[:, 154].any() or (rows[:, 155] != 32).any():
            return None
        size = rows[:, 124:135] - numpy.uint8(48)
        check = rows[:, 148:154] - numpy.uint8(48)
        if (size > 7).any() or (check > 7).any():
            return None
        numbers = size.astype(numpy.float64) @ self._size_powers
        names = numpy.ascontiguousarray(rows[:, :NAME_BYTES])
        sums = names.astype(numpy.float32) @ self._ones + numbers[:, 1] + (11 * 48 + self._sum)
        if not (sums == check.astype(numpy.float64) @ self._check_powers).all():
            return None
        return names, numbers[:, 0].astype(numpy.int64)

    def _are_planned(self, names: _Names, keys: U64) -> bool:
        """Whether keys have the planned hashes."""
        import numpy

        found = numpy.frombuffer(array("Q", map(self._hash_key, names.keys)), dtype=numpy.uint64)
        return bool((found == keys).all())

    def has_dirty_padding(self, view: memoryview, packed: SampleArrays) -> bool:
        """Whether anything but zeros lies behind a payload."""
        import numpy

        used = packed.sizes & 511
        lasts = (packed.offsets + packed.sizes) >> 9
        if not used.all():
            some = used > 0
            used, lasts = used[some], lasts[some]
        blocks = numpy.frombuffer(view, dtype=numpy.uint64).reshape(-1, BLOCK // 8)
        return bool((blocks[lasts] & self._behind[used]).any())


class _Level(NamedTuple):
    """One member of each of ``samples``: its header's block, its payload's bytes, its field."""

    samples: I64
    at: I64
    sizes: I64
    fields: Sequence[bytes]
    """One a member, or only one for all."""


class _Names:
    """The names of first members, and what they say of the other members' names.

    ``dot`` is where all keys end, 0 when they have unlike lengths: then names are taken one by one.
    """

    def __init__(self, first: U8, dot: int, keys: list[bytes]) -> None:
        self._first = first
        self._dot = dot
        self.keys = keys

    def fields(self, table: U8, samples: I64) -> Sequence[bytes] | None:
        """The fields of one member of each of ``samples``, only one when all have the same; None unless the names in
        ``table`` have the keys of their samples."""
        dot = self._dot
        if not dot or not (table[:, dot:] == table[0, dot:]).all():
            return self._fields_one_by_one(table, samples)
        same = self._first if len(samples) == len(self._first) else self._first[samples]
        field = _text(table[0, dot + 1 :])
        if not field or b"/" in field or not (table[:, : dot + 1] == same[:, : dot + 1]).all():
            return None
        return [field]

    def _fields_one_by_one(self, table: U8, samples: I64) -> Sequence[bytes] | None:
        texts = _texts(table)
        fields = []
        for text, sample in zip(texts, samples.tolist(), strict=True):
            key = self.keys[sample]
            if text[: len(key)] != key or text[len(key) : len(key) + 1] != b".":
                return None
            fields.append(text[len(key) + 1 :])
        together = b"".join(fields)
        if not all(fields) or b"/" in together or 0 in together:
            return None
        return fields[:1] if fields.count(fields[0]) == len(fields) else fields


def _names_of(table: U8) -> _Names | None:
    """The names of first members; None when one has no key, by the key rule (:mod:`wdscli.samples.keys`)."""
    texts = _texts(table)
    parts = split_name(texts[0])
    if parts is None or 0 in parts[0]:
        return None
    key = parts[0]
    dot, slash = len(key), key.rfind(b"/")
    # When all have dot and last slash where the first one has them, and no other behind that slash.
    inner = table[:, slash + 1 : dot]
    if (
        (table[:, dot] == 0x2E).all()
        and (slash < 0 or (table[:, slash] == 0x2F).all())
        and not ((inner == 0x2E) | (inner == 0x2F)).any()
        and (table[:, :dot] != 0).all()
        and not (table[:, dot + 1 :] == 0x2F).any()
        and (table[:, 0] != 0x5F).all()
    ):
        import numpy

        keys: list[bytes] = numpy.ascontiguousarray(table[:, :dot]).view(f"S{dot}")[:, 0].tolist()
        return _Names(table, dot, keys)
    both = [split_name(text) for text in texts]
    keys = [pair[0] for pair in both if pair is not None]
    if len(keys) < len(both) or 0 in b"".join(keys):
        return None
    return _Names(table, 0, keys)


def _texts(table: U8) -> list[bytes]:
    """Rows as Python has them, without the zeros at their end."""
    found: list[bytes] = table.view(f"S{table.shape[1]}")[:, 0].tolist()
    return found


def _text(row: U8) -> bytes:
    """What stands before the zeros at a row's end; nothing when there are zeros inside too."""
    text: bytes = row.tobytes().rstrip(b"\0")
    return b"" if 0 in text else text


def _packed(begins: I64, end: int, keys: list[bytes], levels: Sequence[_Level]) -> SampleArrays:
    """Levels as columns, members in the order in which they lie."""
    import numpy

    count = len(begins)
    counts: I64 = numpy.ones(count, dtype=numpy.int64)
    for level in levels[1:]:
        counts[level.samples] += 1
    firsts = counts.cumsum() - counts
    total = int(counts.sum())
    offsets: I64 = numpy.empty(total, dtype=numpy.int64)
    sizes: I64 = numpy.empty(total, dtype=numpy.int64)
    codes: I64 = numpy.empty(total, dtype=numpy.int64)
    known: dict[bytes, int] = {}
    for number, level in enumerate(levels):
        places = firsts[level.samples] + number
        offsets[places] = (level.at + 1) * BLOCK
        sizes[places] = level.sizes
        ids = [known.setdefault(field, len(known)) for field in level.fields]
        codes[places] = ids[0] if len(ids) == 1 else ids
    lengths = numpy.append(begins[1:], end) - begins
    key_lengths: NDArray[numpy.int64] = numpy.fromiter(map(len, keys), dtype=numpy.int64, count=count)
    return SampleArrays(
        b"".join(keys), key_lengths, begins, lengths, counts, list(known), codes, offsets, sizes
    )
