"""This module finds the exact payloads of hard links and sparse files, which samples cannot have as members.

A hard link has the payload of an earlier member. GNU tar and Python's tarfile take the last member before the link that
has the link's target as its name; so does :func:`link_targets`. A sparse file stores only its data, and a map of the
places of the data. :func:`extents_of` reads the map in all of GNU tar's formats: the old header, and pax 0.0, 0.1 and
1.0. A map that readers could understand in different ways gives no payload.

A payload is a list of extents, so that nothing is read here except headers and maps. Their size is limited. The caller
must limit the bytes of all payloads together, because a few bytes can name a hole of any length.

This module does not know samples, and does not know who reads the payloads.

Reference: GNU tar 1.34 manual, "Storing Sparse Files", "Basic Tar Format".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from wdscli.errors import DataError
from wdscli.tar.header import (
    BLOCK,
    GLOBAL,
    KIND_MASK,
    LINK,
    MAX_EXTENDED_SIZE,
    MAX_SIZE,
    REGULAR,
    SPARSE,
    padded,
    parse_number,
    parse_size,
    pax_records,
)
from wdscli.tar.reader import ByteSource, Window
from wdscli.tar.scan import TYPEFLAGS, Columns

HOLE = -1
"""The offset of an extent of zeros."""
_ENTRY_BYTES = 24
_OLD_ENTRIES = 386
"""The place of the four entries in the header of an old sparse file."""


class Extent(NamedTuple):
    """Adjacent bytes of a payload: their offset in the archive, or HOLE for zeros, and their number."""

    offset: int
    length: int


class MemberPlace(NamedTuple):
    """A member that has bytes: the columns of its row, without its name."""

    start: int
    offset: int
    size: int
    flag: int


def place_of(columns: Columns, row: int) -> MemberPlace:
    """Return the place of a member."""
    return MemberPlace(columns.starts[row], columns.offsets[row], columns.sizes[row], columns.flags[row])


def link_targets(
    source: ByteSource, windows: Iterable[Window], targets: frozenset[bytes]
) -> dict[int, MemberPlace]:
    """Return the members that hard links mean, by the offset of the link. ``windows`` are all members of ``source``,
    and ``targets`` are the names that its links have (:func:`linked_names`)."""
    latest: dict[bytes, MemberPlace | None] = {}
    by_link: dict[int, MemberPlace] = {}
    for window in windows:
        columns = window.columns
        for row, name in enumerate(columns.names):
            place: MemberPlace | None = place_of(columns, row)
            if columns.flags[row] & KIND_MASK == LINK:
                target = _target(source, place_of(columns, row))
                place = None if target is None else latest.get(target)
                if place is not None:
                    by_link[columns.starts[row]] = place
            elif columns.flags[row] & KIND_MASK not in (REGULAR, SPARSE):
                place = None
            if name in targets:
                latest[name] = place
    return by_link


def linked_names(source: ByteSource, windows: Iterable[Window]) -> frozenset[bytes]:
    """Return the names of the members that the hard links of a shard mean."""
    names = (
        _target(source, place_of(window.columns, row))
        for window in windows
        for row, flag in enumerate(window.columns.flags)
        if flag & KIND_MASK == LINK
    )
    return frozenset(name for name in names if name is not None)


def extents_of(source: ByteSource, place: MemberPlace) -> tuple[Extent, ...] | None:
    """Return the payload of a regular or sparse member. Return None if its map is unclear or too large."""
    if place.flag & KIND_MASK == REGULAR:
        return (Extent(place.offset, place.size),)
    if place.flag & GLOBAL:
        return None
    try:
        return _laid_out(*_map_of(source, place))
    except (DataError, ValueError):
        return None


def _target(source: ByteSource, link: MemberPlace) -> bytes | None:
    """Return the name that a hard link means, or None for a symbolic link."""
    try:
        block, records, long_name = _headers(source, link)
    except DataError:
        return None
    if block[156:157] != b"1" or link.flag & GLOBAL:
        return None
    return dict(records).get(b"linkpath") or long_name or block[157:257].partition(b"\0")[0]


def _headers(source: ByteSource, place: MemberPlace) -> tuple[bytes, list[tuple[bytes, bytes]], bytes]:
    """Return the member's own header with the blocks after it, its pax records in order, and GNU's long link name."""
    blocks = source.read_at(place.start, place.offset - place.start)
    records: list[tuple[bytes, bytes]] = []
    block_offset, long_name = 0, b""
    while (typeflag := blocks[block_offset + 156 : block_offset + 157]) in TYPEFLAGS:
        size = parse_size(blocks[block_offset + 124 : block_offset + 136])
        data = blocks[block_offset + BLOCK : block_offset + BLOCK + size]
        if typeflag in b"xX":
            records += pax_records(data)
        elif typeflag == b"K":
            long_name = data.partition(b"\0")[0]
        block_offset += BLOCK + padded(size)
    return blocks[block_offset:], records, long_name


def _map_of(source: ByteSource, place: MemberPlace) -> tuple[list[int], int, int, int]:
    """Return the numbers of a sparse map (offset and length of each piece of data), the size of the file, and the place
    and the size of the stored data. Raises DataError and ValueError."""
    blocks, records, _ = _headers(source, place)
    named = dict(records)
    if blocks[156:157] == b"S":
        return list(_old_numbers(blocks)), parse_size(blocks[483:495]), place.offset, place.size
    if b"GNU.sparse.major" in named:
        if (named[b"GNU.sparse.major"], named.get(b"GNU.sparse.minor")) != (b"1", b"0"):
            raise ValueError("an unknown format")
        numbers, length = _stored_map(source, place)
        return (
            numbers,
            _number(named.get(b"GNU.sparse.realsize", b"")),
            place.offset + length,
            place.size - length,
        )
    text = named.get(b"GNU.sparse.map")
    keywords = (b"GNU.sparse.offset", b"GNU.sparse.numbytes")
    numbers = [_number(number) for number in text.split(b",")] if text else []
    if text is None:
        entries = [(keyword, value) for keyword, value in records if keyword in keywords]
        if [keyword for keyword, _ in entries] != [*keywords] * (len(entries) // 2):
            raise ValueError("offsets and lengths do not alternate")
        numbers = [_number(value) for _, value in entries]
    if len(numbers) != 2 * _number(named.get(b"GNU.sparse.numblocks", b"")):
        raise ValueError("another number of entries")
    return numbers, _number(named.get(b"GNU.sparse.size", b"")), place.offset, place.size


def _old_numbers(blocks: bytes) -> Iterator[int]:
    """Yield the numbers of an old sparse file's header and of the blocks after it. An entry without a length ends the
    map."""
    entries = [_OLD_ENTRIES + _ENTRY_BYTES * number for number in range(4)]
    for begin in range(BLOCK, len(blocks), BLOCK):
        entries += range(begin, begin + 21 * _ENTRY_BYTES, _ENTRY_BYTES)
    for entry in entries:
        if not blocks[entry + 12]:
            return
        yield parse_number(blocks[entry : entry + 12], "sparse offset")
        yield parse_number(blocks[entry + 12 : entry + 24], "sparse length")


def _stored_map(source: ByteSource, place: MemberPlace) -> tuple[list[int], int]:
    """Return the numbers of a map at the beginning of a payload (pax 1.0), and the length of its blocks."""
    lines = source.read_at(place.offset, min(place.size, MAX_EXTENDED_SIZE)).split(b"\n")
    end = 1 + 2 * _number(lines[0])
    # The last line of the map must end in these bytes, too.
    if end >= len(lines):
        raise ValueError("the map is too large, or its end is missing")
    return [_number(line) for line in lines[1:end]], padded(sum(map(len, lines[:end])) + end)


def _number(text: bytes) -> int:
    if not text.isdigit() or len(text) > 19 or int(text) > MAX_SIZE:
        raise ValueError("no size")
    return int(text)


def _laid_out(numbers: list[int], size: int, offset: int, stored: int) -> tuple[Extent, ...]:
    """Return the extents of a sparse file of ``size`` bytes. ``stored`` bytes of it are stored at ``offset``. Raises
    ValueError unless the pieces rise, fit, and are all the stored bytes."""
    extents: list[Extent] = []
    position, end = 0, offset + stored
    for begin, length in zip(numbers[::2], numbers[1::2], strict=True):
        # GNU tar stores each piece in whole blocks, and tarfile stores it in bytes: only whole blocks are the same.
        if not position <= begin <= begin + length <= size or (length and (end - stored - offset) % BLOCK):
            raise ValueError("pieces overlap, or do not fit")
        if begin > position:
            extents.append(Extent(HOLE, begin - position))
        if length:
            extents.append(Extent(offset, length))
        offset, position = offset + length, begin + length
    if offset != end:
        raise ValueError("other bytes are stored than the map has")
    if size > position:
        extents.append(Extent(HOLE, size - position))
    return tuple(extents)
