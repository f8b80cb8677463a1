"""Whether a member is still what somebody says of it: its name and size, by the header in front of its payload.

What it is: the check that stands between an index, or a plan, and every payload that is handed out by it. How: nearly
always one block in front of the payload says it all, and a few slices of that block are compared, not parsed
(:func:`says`, :func:`are_harmless`); whatever else there is, pax and GNU headers, long names, members of no sample, is
read by the exact scanner (:func:`is_there`). It must not know where expectations come from.
"""

from __future__ import annotations

from typing import NamedTuple

from wdscli.errors import DataError
from wdscli.model import to_text
from wdscli.samples.keys import split_name
from wdscli.tar import KIND_MASK, ByteSource, Columns, Scanner
from wdscli.tar.extensions import is_harmless
from wdscli.tar.header import BLOCK, padded, parse_number

FRONT_BYTES = 1 << 16
"""What may lie between two members of a sample and is read together with the header behind it."""
_LOOK_BYTES = 1 << 12
_CACHED_SIZES = 1 << 15


class _SizeFields(dict[int, bytes]):
    """Sizes to header fields; few of them are met often."""

    __slots__ = ()

    def __missing__(self, size: int) -> bytes:
        if len(self) >= _CACHED_SIZES:
            self.clear()
        field = self[size] = b"%011o\0" % size
        return field


_SIZE_FIELDS = _SizeFields()


def says(data: bytes, at: int, name: bytes, size: int) -> bool:
    """Whether the block at byte ``at`` of ``data`` is the header of a regular member of this size and name, which is
    given with a zero behind it. False where it takes more than a look at this block to know."""
    return (
        data.startswith(name, at)
        and (data[at + 124 : at + 136] == _SIZE_FIELDS[size] or _is_size(data[at + 124 : at + 136], size))
        and data[at + 156] in b"0\0"
        # No prefix, which would come before the name.
        and not data[at + 345]
    )


def _is_size(field: bytes, size: int) -> bool:
    """Whether a size field that is not written as we write it has this value."""
    try:
        return parse_number(field, "size") == size
    except DataError:
        return False


def are_harmless(front: bytes) -> bool:
    """Whether what stands in front of a header's block, if anything, is one pax header that changes neither name nor
    size. False where it takes more than a look to know."""
    if not front:
        return True
    try:
        size = parse_number(front[124:136], "size")
    except DataError:
        return False
    return (
        front[156:157] == b"x"
        and len(front) == BLOCK + padded(size)
        and is_harmless(front[BLOCK : BLOCK + size])
    )


def is_there(source: ByteSource, head: int, offset: int, name: bytes, size: int) -> bool:
    """Whether the headers that begin at byte ``head``, where members of no sample may lie too, lead to a regular member
    of this name whose payload begins at ``offset`` and has ``size`` bytes. Raises InputError."""
    columns = _walk(source, head, offset)
    if columns is None or (columns.offsets[-1:], columns.sizes[-1:]) != ([offset], [size]):
        return False
    return columns.names[-1] == name and not columns.flags[-1] & KIND_MASK and _are_of_no_sample(columns, -1)


def holds_no_sample(source: ByteSource, begin: int, end: int) -> bool:
    """Whether nothing that belongs to a sample begins between two bytes, at the first of which a header, or the end of
    the archive, is expected. Raises InputError."""
    columns = _walk(source, begin, end)
    return columns is not None and _are_of_no_sample(columns, len(columns.names))


def _are_of_no_sample(columns: Columns, count: int) -> bool:
    names, flags = columns.names[:count], columns.flags[:count]
    return all(flag & KIND_MASK or split_name(name) is None for name, flag in zip(names, flags))


class Expected(NamedTuple):
    """A member as an index has it: the headers that lead to it begin at byte ``head``."""

    head: int
    offset: int
    name: bytes
    size: int

    def payload(self, source: ByteSource) -> bytes:
        """The payload, read with the headers in front of it. Raises DataError ``stale-index`` unless they say this name
        and size, InputError."""
        first = max(self.head, self.offset - FRONT_BYTES)
        data = source.read_at(first, self.offset + self.size - first)
        self._check(source, data, first)
        return data[self.offset - first :]

    def check(self, source: ByteSource) -> None:
        """Raise DataError ``stale-index`` as :meth:`payload` does, where the payload is read by itself."""
        first = max(self.head, self.offset - FRONT_BYTES)
        self._check(source, source.read_at(first, self.offset - first), first)

    def _check(self, source: ByteSource, data: bytes, first: int) -> None:
        block = self.offset - BLOCK - first
        is_told = (
            len(data) >= block + BLOCK
            and says(data, block, self.name + b"\0", self.size)
            and first == self.head
            and are_harmless(data[:block])
        )
        if not is_told and not is_there(source, *self):
            raise DataError(
                "its index is stale: another header is in front of the payload",
                code="stale-index",
                shard=source.name,
                offset=self.head,
                member=to_text(self.name),
                hint="make the index again with `wds index`",
            )


def _walk(source: ByteSource, begin: int, end: int) -> Columns | None:
    """The members whose headers lie between two bytes; None for what is no tar."""
    scanner = Scanner(first=begin)
    try:
        while scanner.position < end and not scanner.ended:
            at, wanted = scanner.position, scanner.wanted
            scanner.feed(source.read_at(at, min(max(_LOOK_BYTES, wanted), end - at)), at)
            if (scanner.position, scanner.wanted) == (at, wanted):
                return None
    except DataError:
        return None
    return scanner.take()
