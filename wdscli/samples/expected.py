"""Whether a member is still what an index or plan says: its name and size, by the headers in front of its payload.

What it is: the check of every payload that is read by an index or a plan. How: nearly always the headers in front
of the payload are enough (:func:`says`); all other cases, with members of no sample in between, are decided by the
exact scanner (:func:`is_there`). It must not know where expectations come from.
"""

from __future__ import annotations

from typing import NamedTuple

from wdscli.errors import DataError
from wdscli.model import to_text
from wdscli.samples.keys import split_name
from wdscli.tar import KIND_MASK, ByteSource, Columns, Scanner, core
from wdscli.tar.header import BLOCK, checksum_is_right

FRONT_BYTES = 1 << 16
"""Bytes between two members of a sample that are read together with the next header."""
_LOOK_BYTES = 1 << 12


def says(headers: bytes, name: bytes, size: int) -> bool:
    """Whether these blocks, all of them, are the headers of a regular member of this name and size. False also when
    the exact scanner is needed.

    >>> from wdscli.tar import build_header
    >>> says(build_header(b"a.txt", 5), b"a.txt", 5), says(build_header(b"a.txt", 5), b"a.txt", 6)
    (True, False)
    """
    if core.CORE is not None:
        return bool(core.CORE.says(headers, name, size))
    return (
        len(headers) == BLOCK
        and checksum_is_right(headers)
        and headers.startswith(name + b"\0")
        and headers[124:136] == b"%011o\0" % size
        and headers[156] in b"0\0"
        # No prefix, which would precede the name.
        and not headers[345]
    )


def is_there(source: ByteSource, head: int, offset: int, name: bytes, size: int) -> bool:
    """Whether the headers from byte ``head`` on, with members of no sample among them, lead to a regular member of
    this name whose payload begins at ``offset`` and has ``size`` bytes. Raises InputError."""
    columns = _walk(source, head, offset)
    if columns is None or (columns.offsets[-1:], columns.sizes[-1:]) != ([offset], [size]):
        return False
    return columns.names[-1] == name and not columns.flags[-1] & KIND_MASK and _are_of_no_sample(columns, -1)


def holds_no_sample(source: ByteSource, begin: int, end: int) -> bool:
    """Whether no member of a sample begins between two bytes; a header or the end of the archive is expected at the
    first. Raises InputError."""
    columns = _walk(source, begin, end)
    return columns is not None and _are_of_no_sample(columns, len(columns.names))


def _are_of_no_sample(columns: Columns, count: int) -> bool:
    names, flags = columns.names[:count], columns.flags[:count]
    return all(flag & KIND_MASK or split_name(name) is None for name, flag in zip(names, flags))


class Expected(NamedTuple):
    """A member according to an index; the headers that lead to it begin at byte ``head``."""

    head: int
    offset: int
    name: bytes
    size: int

    @property
    def first(self) -> int:
        """The first byte of the read that gets the payload with its headers."""
        return max(self.head, self.offset - FRONT_BYTES)

    def payload(self, source: ByteSource) -> bytes:
        """The payload, read with the headers in front of it. Raises DataError ``stale-index`` unless they have this
        name and size, InputError."""
        data = source.read_at(self.first, self.offset + self.size - self.first)
        self._want(source, data)
        return data[self.offset - self.first :]

    def check(self, source: ByteSource) -> None:
        """Check the headers as :meth:`payload` does, without reading the payload."""
        self._want(source, source.read_at(self.first, self.offset - self.first))

    def is_confirmed(self, source: ByteSource, data: bytes) -> bool:
        """Whether the headers match. ``data`` was read from ``first`` on. Raises InputError."""
        headers = data[: self.offset - self.first]
        is_all = self.first == self.head and len(headers) == self.offset - self.first
        return (is_all and says(headers, self.name, self.size)) or is_there(source, *self)

    def _want(self, source: ByteSource, data: bytes) -> None:
        if not self.is_confirmed(source, data):
            raise DataError(
                "the index is stale: the payload has another header",
                code="stale-index",
                shard=source.name,
                offset=self.head,
                member=to_text(self.name),
                hint="rebuild the index with `wds index`",
            )


def _walk(source: ByteSource, begin: int, end: int) -> Columns | None:
    """The members whose headers lie between two bytes; None if they are no tar."""
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
