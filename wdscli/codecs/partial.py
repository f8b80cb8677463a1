"""Payloads that are read in part. A header is a small part of a film or sound, and may be at its end.

A :class:`PartialPayload` has the operations of bytes that readers of headers use. It keeps the parts that it has read.
In a set of fields to read, :class:`HeadOf` is a field whose first bytes are needed, and perhaps further parts. This
module does not know headers, or where payloads are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from struct import calcsize, unpack
from typing import Any

HEAD_BYTES = 1 << 14
"""How many bytes of a payload are read first, and at least at any other place. Larger payloads are read in parts."""
_TAIL_BYTES = 1 << 16
"""How many bytes are searched together from the end. A page of Ogg is smaller."""


class HeadOf(bytes):
    """A field whose head is needed: a slash and its name. No name of a field begins with a slash.

    >>> HeadOf(b"mp4"), sorted(whole_names([HeadOf(b"mp4"), b"json"]))
    (b'/mp4', [b'json', b'mp4'])
    """

    def __new__(cls, field: bytes) -> HeadOf:
        return super().__new__(cls, b"/" + field)


def whole_names(fields: Iterable[bytes]) -> frozenset[bytes]:
    """Return the names of fields, also of the fields whose head is needed."""
    return frozenset(field[1:] if isinstance(field, HeadOf) else field for field in fields)


class PartialPayload:
    """A payload of ``size`` bytes that begins with ``head``. ``read(offset, length)`` returns other parts, and
    ``read_all()`` the whole payload. Both may raise InputError and DataError."""

    def __init__(
        self, head: bytes, size: int, read: Callable[[int, int], bytes], read_all: Callable[[], bytes]
    ) -> None:
        self._size, self._read, self._read_all = size, read, read_all
        self._offsets, self._parts = [0], [head]

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return self._read_all()

    def __getitem__(self, place: Any) -> Any:
        if not isinstance(place, slice):
            if not -self._size <= place < self._size:
                raise IndexError(place)
            return self._part(place % self._size, place % self._size + 1)[0]
        first, end, _ = place.indices(self._size)
        return self._part(first, end) if end > first else b""

    def _part(self, first: int, end: int) -> bytes:
        number = bisect_right(self._offsets, first) - 1
        offset, part = self._offsets[number], self._parts[number]
        if end > offset + len(part):
            length = min(max(end - first, HEAD_BYTES), self._size - first)
            offset, part = first, self._read(first, length)
            number = bisect_right(self._offsets, first)
            self._offsets.insert(number, offset)
            self._parts.insert(number, part)
        return part[first - offset : end - offset]

    def startswith(self, prefix: bytes | tuple[bytes, ...], start: int = 0) -> bool:
        longest = len(prefix) if isinstance(prefix, bytes) else max(map(len, prefix))
        return bool(self[start : start + longest].startswith(prefix))

    def rfind(self, wanted: bytes, first: int, end: int) -> int:
        """Return the last place of some bytes between ``first`` and ``end``, or -1."""
        end = min(end, self._size)
        while end - first >= len(wanted):
            begin = max(first, end - _TAIL_BYTES)
            place = self[begin:end].rfind(wanted)
            if place >= 0:
                return begin + int(place)
            if begin == first:
                break
            end = begin + len(wanted) - 1
        return -1


Payload = bytes | PartialPayload


def unpack_at(layout: str, data: Payload, offset: int) -> tuple[Any, ...]:
    """Unpack numbers at an offset. Raises struct.error if the payload ends before."""
    return unpack(layout, data[offset : offset + calcsize(layout)])
