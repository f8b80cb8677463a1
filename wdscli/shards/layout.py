"""The layout of a view's shard: a tar file whose headers follow from an index, and whose payloads lie in other shards.

What it is: :func:`laid_out`, which makes a :class:`Layout` of samples from some base shards, and
:class:`ViewSource`, the bytes of such a shard as a :class:`~wdscli.storage.Source`. How: the layout is an index
(:class:`~wdscli.shards.index.Index`) with one more pair of columns, the base and the first byte of each member. A
member that its base holds in canonical form is read with its header, and neighbours are one run, read by one call. The
headers of all other members are made from the index. So the bytes are those that a command would have written. It must
not know where a view is stored, nor what chose the samples."""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

from wdscli.arrays import I64, Mask, numpy
from wdscli.errors import DataError
from wdscli.selection.layers import Shape
from wdscli.shards.index import COLUMNS, FORMAT, VERSION, Index, digest_of
from wdscli.storage import Source
from wdscli.storage.local import reason
from wdscli.tar import END_OF_ARCHIVE, Form, build_header
from wdscli.tar.header import BLOCK, NAME_BYTES, ONE_BLOCK_SIZE

FEW_RUNS = 16
"""Runs of a read for which arrays do not pay off."""
VIEWS_PER_READ = 512
"""Places that one call of ``preadv`` fills; the kernel takes twice as many."""


Arrange: TypeAlias = "Callable[[dict[int, Shape]], Sequence[tuple[bytes, int, int]]]"
"""From the fields that a sample has in each set to its members: name, set, and number there."""
Renamed: TypeAlias = "Mapping[int, bytes]"
"""New keys, by the number of a sample."""


class Layer:
    """The samples that one base shard gives to a layout: its index, the rows to take, -1 for a sample without a part
    here, and the set (from 0) that it belongs to. ``codes`` are the numbers of its fields in the index of the layout,
    -1 for those that no sample has."""

    def __init__(self, base: int, index: Index, rows: I64, of_set: int = 0) -> None:
        self.base = base
        self.index = index
        self.rows = rows
        self.of_set = of_set
        self.codes: list[int] = []
        self.table: Any = None
        """What a reader of samples has made of ``index``."""

    @cached_property
    def row_list(self) -> list[int]:
        """``rows`` as a list."""
        found: list[int] = self.rows.tolist()
        return found


class Layout:
    """A shard of a view. ``index`` is its index; ``bases`` and ``sources`` have one number a member: its
    base and the first byte of its payload there. ``is_whole`` marks members that the base holds with the same header
    and padding. ``layers`` are empty if samples are not their parts as they are."""

    def __init__(
        self, index: Index, bases: I64, sources: I64, is_whole: Mask, layers: Sequence[Layer]
    ) -> None:
        self.index = index
        self.layers = layers
        offsets: I64 = index.member_offsets.astype(numpy.int64)
        sizes: I64 = index.member_sizes.astype(numpy.int64)
        ends: I64 = offsets + (sizes + 511 & -512)
        begins: I64 = numpy.append(0, ends)[:-1]
        self.end = int(ends[-1]) if len(ends) else 0
        # A run is one range of a base: members of one base in canonical form that lie side by side, or one payload.
        shifts = sources - offsets
        is_next: Mask = is_whole[1:] & is_whole[:-1] & (bases[1:] == bases[:-1]) & (shifts[1:] == shifts[:-1])
        firsts: I64 = numpy.append(0, numpy.flatnonzero(~is_next) + 1)[: len(offsets)]
        lasts: I64 = numpy.append(firsts[1:], len(offsets))[: len(firsts)] - 1
        whole = is_whole[firsts]
        # Lists: a reader of single samples takes single numbers.
        self.run_bases: list[int] = bases[firsts].tolist()
        self.run_shifts: list[int] = shifts[firsts].tolist()
        self.run_begins: list[int] = numpy.where(whole, begins[firsts], offsets[firsts]).tolist()
        self.run_ends: list[int] = numpy.where(whole, ends[lasts], offsets[firsts] + sizes[firsts]).tolist()
        made: I64 = numpy.flatnonzero(~is_whole)
        self.made: list[int] = made.tolist()
        self.made_begins: list[int] = begins[made].tolist()
        self.made_ends: list[int] = offsets[made].tolist()

    @property
    def size(self) -> int:
        """Bytes of the shard, its end included."""
        return self.end + len(END_OF_ARCHIVE)

    def header(self, member: int) -> bytes:
        """The header blocks of a member."""
        index = self.index
        row = int(numpy.searchsorted(index.member_ends, member, "right"))
        name = index.key(row) + b"." + index.fields[int(index.member_fields[member])]
        return build_header(name, int(index.member_sizes[member]), index.form)


def laid_out(
    name: str,
    layers: Sequence[Layer],
    form: Form,
    arrange: Arrange | None = None,
    keys: Renamed | None = None,
) -> Layout:
    """The shard ``name`` with the samples of some layers side by side, or with the fields that ``arrange`` says. A
    sample has the key of its first part, or the one in ``keys``. Raises DataError if a base has changed."""
    total = len(layers[0].rows) if layers else 0
    names, lengths = _names(layers, total, keys or {})
    fields: dict[bytes, int] = {}
    columns: list[list[I64]] = [[numpy.empty(0, dtype=numpy.int64)] for _ in range(7)]
    for layer in layers:
        for column, values in zip(columns, _members(layer, fields, keys or {}), strict=True):
            column.append(values)
    members = [numpy.concatenate(column) for column in columns]
    order: I64 = numpy.argsort(members[0], kind="stable")
    members = [column[order] for column in members]
    if arrange is not None:
        members = _arranged(members, fields, arrange)
    sample, code, size, base, source, is_whole, _ = members
    texts, code = _by_appearance(list(fields), code, layers)
    widths: I64 = numpy.array([len(field) for field in texts] or [0], dtype=numpy.int64)
    header: I64 = numpy.full(len(sample), BLOCK, dtype=numpy.int64)
    longs = numpy.flatnonzero((lengths[sample] + 1 + widths[code] > NAME_BYTES) | (size >= ONE_BLOCK_SIZE))
    key_ends = numpy.cumsum(lengths)
    for at in longs.tolist():
        row = int(sample[at])
        key = names[int(key_ends[row] - lengths[row]) : int(key_ends[row])]
        header[at] = len(build_header(key + b"." + texts[int(code[at])], int(size[at]), form))
    blocks = header + (size + 511 & -512)
    ends = numpy.cumsum(blocks)
    counts = numpy.bincount(sample, minlength=total)
    member_ends = numpy.cumsum(counts)
    starts = numpy.append(0, ends)[member_ends - counts]
    stops = numpy.append(0, ends)[member_ends]
    columns_of = {
        "key_ends": key_ends,
        "starts": starts,
        "lengths": stops - starts,
        "member_ends": member_ends,
        "marks": numpy.zeros(total, dtype=numpy.uint8),
        "member_fields": code,
        "member_offsets": ends - blocks + header,
        "member_sizes": size,
    }
    raw = {
        "format": FORMAT,
        "version": VERSION,
        "shard": name,
        "size": (int(ends[-1]) if len(ends) else 0) + len(END_OF_ARCHIVE),
        "samples": total,
        "members": len(sample),
        "mtime": form.mtime,
        "long_names": form.long_names,
        "ignored": {},
        "fields": b"\0".join(texts),
        "keys": names,
        **{
            column: values.astype({"Q": "<u8", "I": "<u4", "B": "u1"}[COLUMNS[column]]).tobytes()
            for column, values in columns_of.items()
        },
    }
    raw["digest"] = digest_of(raw)
    plain = layers if arrange is None and not keys else ()
    return Layout(Index(raw, name), base, source, is_whole.astype(bool), plain)


def _by_appearance(fields: list[bytes], code: I64, layers: Sequence[Layer]) -> tuple[list[bytes], I64]:
    """The fields in the order of their first members, as a writer numbers them, and the members' numbers among them."""
    found, firsts = numpy.unique(code, return_index=True)
    order: list[int] = found[numpy.argsort(firsts)].tolist()
    table: I64 = numpy.full(len(fields) + 1, -1, dtype=numpy.int64)
    table[order] = numpy.arange(len(order))
    for layer in layers:
        layer.codes = table[layer.codes].tolist()
    return [fields[number] for number in order], table[code]


def _names(layers: Sequence[Layer], total: int, renamed: Renamed) -> tuple[bytes, I64]:
    """The keys of all samples, one after the other, and their lengths. Raises DataError if two parts of a sample have
    different keys."""
    keys: list[bytes | None] = [None] * total
    for layer in layers:
        ends: list[int] = layer.index.key_ends.tolist()
        begins, text = [0, *ends], layer.index.keys
        for at, row in enumerate(layer.row_list):
            if row >= 0:
                key = text[begins[row] : ends[row]]
                if keys[at] is None:
                    keys[at] = key
                elif keys[at] != key:
                    raise DataError(
                        f"sample {row} is not the one that the view joins",
                        code="changed",
                        shard=layer.index.shard,
                        hint="the shard was changed after the view was made: make the view again",
                    )
    found = [renamed.get(at, key or b"") for at, key in enumerate(keys)]
    return b"".join(found), numpy.fromiter(map(len, found), dtype=numpy.int64, count=total)


def _members(layer: Layer, fields: dict[bytes, int], renamed: Renamed) -> list[I64]:
    """The members that a layer adds: number of the sample, of the field, bytes, base, first byte there, whether the
    base holds them in canonical form, and the set."""
    index = layer.index
    member_ends: I64 = index.member_ends.astype(numpy.int64)
    at: I64 = numpy.flatnonzero(layer.rows >= 0)
    rows = layer.rows[at]
    counts = numpy.diff(member_ends, prepend=0)[rows]
    firsts = member_ends[rows] - counts
    shifts = firsts - (numpy.cumsum(counts) - counts)
    members = numpy.arange(int(counts.sum())) + shifts.repeat(counts)
    layer.codes = [fields.setdefault(name, len(fields)) for name in index.fields]
    table: I64 = numpy.array(layer.codes or [0], dtype=numpy.int64)
    is_whole = index.marks[rows] == 0
    if renamed:
        is_whole &= ~numpy.isin(at, list(renamed))
    return [
        at.repeat(counts),
        table[index.member_fields[members]],
        index.member_sizes[members].astype(numpy.int64),
        numpy.full(len(members), layer.base, dtype=numpy.int64),
        index.member_offsets[members].astype(numpy.int64),
        is_whole.repeat(counts).astype(numpy.int64),
        numpy.full(len(members), layer.of_set, dtype=numpy.int64),
    ]


def _arranged(members: list[I64], fields: dict[bytes, int], arrange: Arrange) -> list[I64]:
    """The members that each sample has by ``arrange``, in their order and under their names."""
    sample, code, of_set = members[0], members[1], members[6]
    names, known = list(fields), dict[bytes, tuple[list[int], list[int]]]()
    both = numpy.stack((of_set, code), axis=1)
    bounds = [0, *(numpy.flatnonzero(sample[1:] != sample[:-1]) + 1).tolist(), len(sample)]
    taken: list[int] = []
    codes: list[int] = []
    for low, high in pairwise(bounds):
        shape = both[low:high].tobytes()
        if shape not in known:
            parts: dict[int, list[bytes]] = {}
            firsts: dict[int, int] = {}
            for at in range(low, high):
                part = int(of_set[at])
                firsts.setdefault(part, at - low)
                parts.setdefault(part, []).append(names[int(code[at])])
            slots = arrange({part: tuple(some) for part, some in parts.items()})
            known[shape] = (
                [firsts[part] + member for _, part, member in slots],
                [fields.setdefault(field, len(fields)) for field, _, _ in slots],
            )
        places, new = known[shape]
        taken += [low + place for place in places]
        codes += new
    found = [column[taken] for column in members]
    found[5] &= found[1] == codes
    found[1] = numpy.array(codes, dtype=numpy.int64)
    return found


class ViewSource(Source):
    """The bytes of a view's shard. ``open_base`` opens a base by its number; ``is_remote`` says whether some base is on
    a store. Owns the bases that it opens."""

    __slots__ = ("_is_remote", "_open", "_open_base", "layout")

    def __init__(
        self, name: str, layout: Layout, open_base: Callable[[int], Source], *, is_remote: bool
    ) -> None:
        super().__init__(name, size=layout.size, seekable=True)
        self._is_remote = is_remote
        self.layout = layout
        self._open_base = open_base
        self._open: dict[int, Source] = {}
        self.version = f"view:{layout.index.digest}"

    def base(self, number: int) -> Source:
        """A base, open. Raises InputError, DataError."""
        source = self._open.get(number)
        if source is None:
            source = self._open[number] = self._open_base(number)
        return source

    def read_at(self, offset: int, length: int) -> bytes:
        end = min(offset + length, self.layout.size)
        if end <= offset:
            return b""
        buffer = bytearray(end - offset)
        self._fill(memoryview(buffer), offset, end)
        return bytes(buffer)

    def read_into(self, offset: int, view: memoryview) -> int:
        end = min(offset + len(view), self.layout.size)
        if end <= offset:
            return 0
        view[: end - offset] = bytes(end - offset)
        self._fill(view[: end - offset], offset, end)
        return end - offset

    def _fill(self, view: memoryview, offset: int, end: int) -> None:
        """Put the bytes from ``offset`` to ``end`` into a buffer of zeros."""
        layout = self.layout
        first, last = bisect_right(layout.run_ends, offset), bisect_left(layout.run_begins, end)
        if last - first <= FEW_RUNS:
            for at in range(first, last):
                low, high = max(layout.run_begins[at], offset), min(layout.run_ends[at], end)
                start = low + layout.run_shifts[at]
                self._read(layout.run_bases[at], start, high - low, [view[low - offset : high - offset]])
        else:
            for lows, highs, base, start, total in self._ranges(offset, end):
                pairs = zip((lows - offset).tolist(), (highs - offset).tolist())
                self._read(base, start, total, [view[low:high] for low, high in pairs])
        first, last = bisect_right(layout.made_ends, offset), bisect_left(layout.made_begins, end)
        for at in range(first, last):
            begin, stop = layout.made_begins[at], layout.made_ends[at]
            header = layout.header(layout.made[at])
            low, high = max(begin, offset), min(stop, end)
            view[low - offset : high - offset] = header[low - begin : high - begin]

    def _ranges(self, offset: int, end: int) -> Iterator[tuple[I64, I64, int, int, int]]:
        """The ranges of bases that bytes ``offset`` to ``end`` take: for each range the first and the end byte of its
        pieces in this shard, the base, the first byte there, and the length."""
        layout = self.layout
        runs = slice(bisect_right(layout.run_ends, offset), bisect_left(layout.run_begins, end))
        if runs.start >= runs.stop:
            return
        columns = (layout.run_begins, layout.run_ends, layout.run_bases, layout.run_shifts)
        lows, highs, bases, shifts = (numpy.array(column[runs], dtype=numpy.int64) for column in columns)
        lows, highs = numpy.maximum(lows, offset), numpy.minimum(highs, end)
        starts = lows + shifts
        order = numpy.lexsort((starts, bases))
        lows, highs, bases, starts = lows[order], highs[order], bases[order], starts[order]
        lengths = highs - lows
        apart = (bases[1:] != bases[:-1]) | (starts[1:] != starts[:-1] + lengths[:-1])
        edges = [0, *(numpy.flatnonzero(apart) + 1).tolist(), len(lows)]
        for low, high in pairwise(edges):
            for some in range(low, high, VIEWS_PER_READ):
                these = slice(some, min(some + VIEWS_PER_READ, high))
                total = int(lengths[these].sum())
                yield lows[these], highs[these], int(bases[some]), int(starts[some]), total

    def _read(self, base: int, start: int, total: int, views: list[memoryview]) -> None:
        """Fill some buffers with one range of a base."""
        source = self.base(base)
        if source.fd is not None:
            try:
                if os.preadv(source.fd, views, start) == total:
                    return
            except OSError as error:
                raise DataError(f"cannot read {source.name}: {reason(error)}", code="changed") from error
        data = memoryview(source.read_at(start, total))
        if len(data) < total:
            raise DataError(
                "the shard ends before a payload of the view",
                code="changed",
                shard=source.name,
                offset=start + len(data),
                hint="the shard was changed after the view was made: make the view again",
            )
        for part in views:
            part[:], data = data[: len(part)], data[len(part) :]

    def expect(
        self, ranges: Iterable[tuple[int, int]], *, gap_bytes: int | None = None, keep: bool = False
    ) -> None:
        if not self._is_remote:
            return
        wanted: dict[int, list[tuple[int, int]]] = {}
        for begin, end in ranges:
            for _, _, base, start, total in self._ranges(begin, end):
                wanted.setdefault(base, []).append((start, start + total))
        for base, some in wanted.items():
            source = self.base(base)
            if source.fd is None:
                source.expect(some, gap_bytes=gap_bytes, keep=keep)

    def confirm(self) -> None:
        for source in self._open.values():
            source.confirm()

    def close(self) -> None:
        for source in self._open.values():
            source.close()
        self._open.clear()
