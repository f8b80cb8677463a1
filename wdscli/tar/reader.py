"""Members of an archive: a file read by jumps, or a stream read to its end.

What it is: the loop that feeds a :class:`~wdscli.tar.scan.Scanner`. How: it reads one buffer at the scanner's
position. For small members the buffers are large and adjacent. For large members it reads a few KiB at each header
and skips the payloads (or, with payloads, reads each one from its place). The compiled core reads the headers of a
plain file. It must not know where bytes come from: a source is any object with the five names of
:class:`ByteSource`, and optionally ``fd``, the descriptor of a plain file, and ``expect``, which announces the next
reads.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, Protocol

from wdscli.errors import DataError
from wdscli.model import Member
from wdscli.tar.columns import Columns, cut
from wdscli.tar.header import BLOCK, CANONICAL, Form, padded
from wdscli.tar.scan import Scanner

CHUNK_BYTES = 1 << 18
FIRST_CHUNK_BYTES = 1 << 16
JUMP_CHUNK_BYTES = 1 << 12
HOP_MEMBERS = 1 << 11
LARGE_STRIDE_BYTES = 1 << 14
"""Members of this size are read header by header: a read of 4 KiB costs less than copying 16 KiB."""


NEAR_STRIDE_BYTES = 1 << 16
"""With members up to this size, a remote source is read whole, and ahead."""


class ByteSource(Protocol):
    """Bytes by offset. ``size`` is their number, None for a stream that has not ended; ``seekable`` says whether
    offsets may go back and jump.

    ``read_at(offset, length)`` returns ``length`` bytes, fewer only at the end. A source that is not seekable gets
    ascending offsets and skips the bytes between them. ``read_some`` may return fewer bytes, but none only at the
    end.
    """

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int | None: ...

    @property
    def seekable(self) -> bool: ...

    def read_at(self, offset: int, length: int) -> bytes: ...

    def read_some(self, offset: int, length: int) -> bytes: ...


class BytesSource:
    """Bytes in memory as a source.

    >>> BytesSource(b"abcdef").read_at(2, 3)
    b'cde'
    """

    seekable = True

    def __init__(self, data: bytes, name: str = "memory") -> None:
        self.name = name
        self.size = len(data)
        self._data = data

    def read_at(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]

    read_some = read_at


class Window:
    """The members whose headers lie in one buffer, and their payloads.

    ``columns`` are the members; ``buffer`` holds the archive's bytes from ``base`` on. Payloads of a stream must be
    read in order, before the next window.
    """

    __slots__ = ("base", "buffer", "columns", "source")

    def __init__(self, source: ByteSource, buffer: bytes, base: int, columns: Columns) -> None:
        self.source = source
        self.buffer = buffer
        self.base = base
        self.columns = columns

    def payload(self, row: int) -> bytes:
        """The payload of one member. Raises DataError ``truncated`` when the source ends too early."""
        offset, size = self.columns.offsets[row], self.columns.sizes[row]
        at = offset - self.base
        if at >= 0 and at + padded(size) <= len(self.buffer):
            return self.buffer[at : at + size]
        return self._beyond(row, at, offset, size)

    def _beyond(self, row: int, at: int, offset: int, size: int) -> bytes:
        """A payload that is not in the buffer with all of its padding. For a stream the padding is read too, which
        proves that the member is whole; the scan of a file compares its size instead."""
        data = self.buffer[at : at + padded(size)] if at >= 0 else b""
        if len(data) < size and self.source.seekable:
            data = self.source.read_at(offset, size)
        elif not self.source.seekable:
            rest = self.source.read_at(offset + len(data), padded(size) - len(data))
            if len(data) >= size:
                self.buffer += rest
            data += rest
        if len(data) < (size if self.source.seekable else padded(size)):
            raise cut(self.source.name, self.columns, row, len(data))
        return data[:size]


def scan(
    source: ByteSource,
    *,
    form: Form = CANONICAL,
    payloads: bool = False,
    chunk: int = CHUNK_BYTES,
    first: int = 0,
) -> Iterator[Window]:
    """Yield the members of ``source``, one window at a time; ``chunk`` bounds the memory.

    With ``payloads`` the windows are prepared for :meth:`Window.payload` on every row. ``form`` is the canonical
    form that decides FOREIGN. Raises DataError (after the members before the trouble) and the errors of the source.

    >>> from wdscli.tar import END_OF_ARCHIVE, build_header
    >>> source = BytesSource(build_header(b"a.txt", 5) + b"hello".ljust(512, b"\\0") + END_OF_ARCHIVE)
    >>> [(window.columns.names[0], window.payload(0)) for window in scan(source, payloads=True)]
    [(b'a.txt', b'hello')]
    """
    return walk(source, new_scanner(source, form, first), payloads=payloads, chunk=chunk)


def new_scanner(source: ByteSource, form: Form = CANONICAL, first: int = 0) -> Scanner:
    """A scanner for the archive that begins at byte ``first`` of ``source``."""
    return Scanner(source.name, limit=source.size if source.seekable else None, form=form, first=first)


def walk(
    source: ByteSource, scanner: Scanner, *, payloads: bool = False, chunk: int = CHUNK_BYTES
) -> Iterator[Window]:
    """:func:`scan` with the caller's scanner, which shows the position after an error."""
    if source.seekable:
        return _jump(source, scanner, chunk, payloads)
    return _stream(source, scanner, chunk, payloads)


def is_dense(source: ByteSource) -> bool:
    """Whether the first headers lie so close together that reading headers means reading nearly everything."""
    scanner = new_scanner(source)
    try:
        scanner.feed(source.read_at(0, FIRST_CHUNK_BYTES), 0)
    except DataError:
        return False
    return scanner.position <= NEAR_STRIDE_BYTES * len(scanner.take().names)


def _fed(
    source: ByteSource, scanner: Scanner, buffer: bytes, base: int, seen: int | None
) -> Iterator[Window]:
    """Feed one buffer; the members before an error are yielded before it is raised."""
    try:
        scanner.feed(buffer, base)
    except DataError:
        yield Window(source, buffer, base, scanner.take(seen))
        raise
    yield Window(source, buffer, base, scanner.take(seen))


def _jump(source: ByteSource, scanner: Scanner, chunk: int, payloads: bool) -> Iterator[Window]:
    descriptor: int | None = getattr(source, "fd", None)
    length, hopping = min(chunk, FIRST_CHUNK_BYTES), not payloads
    # Reading all of a remote source is cheaper than a request for each header, unless members are large.
    expect: Any = getattr(source, "expect", None)
    was_expected = expect is None or descriptor is not None
    is_here = False
    while True:
        base = scanner.position
        if hopping and descriptor is not None:
            scanner.hop(descriptor, HOP_MEMBERS)
            if scanner.position > base:
                yield Window(source, b"", base, scanner.take())
                continue
        want = max(length, scanner.wanted)
        buffer = source.read_at(base, want)
        for window in _fed(source, scanner, buffer, base, None):
            found = len(window.columns.names)
            yield window
        stride = (scanner.position - base) // found if found else 0
        if not was_expected and found and (stride <= NEAR_STRIDE_BYTES or payloads):
            was_expected = is_here = True
            expect(((base, source.size),))
        is_large = stride > LARGE_STRIDE_BYTES and not is_here
        hopping = is_large or not payloads
        length = JUMP_CHUNK_BYTES if is_large else chunk
        if len(buffer) < want:
            scanner.finish(base + len(buffer))
            return


def _stream(source: ByteSource, scanner: Scanner, chunk: int, payloads: bool) -> Iterator[Window]:
    base, buffer = scanner.position, b""
    while True:
        buffer = buffer[scanner.position - base :] if scanner.position < base + len(buffer) else b""
        base = scanner.position
        buffer, whole = _filled(source, buffer, base, scanner.wanted, chunk)
        end = base + len(buffer)
        if not (buffer or source.size is None):
            # The stream ended before this byte.
            end = source.size
        yield from _fed(source, scanner, buffer, base, None if payloads else end)
        if not whole:
            scanner.finish(end)
            return


def _filled(source: ByteSource, buffer: bytes, base: int, wanted: int, chunk: int) -> tuple[bytes, bool]:
    """``buffer`` with the stream's next bytes, at least ``wanted`` in all; False when the stream ended earlier."""
    parts, length, more = [buffer] if buffer else [], len(buffer), True
    while more and length < wanted:
        part = source.read_some(base + length, chunk)
        parts.append(part)
        length += len(part)
        more = bool(part)
    return b"".join(parts), more


def members(source: ByteSource) -> Iterator[Member]:
    """Yield the members of ``source`` as records. Raises the errors of :func:`scan`.

    >>> from wdscli.tar import END_OF_ARCHIVE, build_header
    >>> list(members(BytesSource(build_header(b"a.txt", 0) + END_OF_ARCHIVE)))
    [Member(name='a.txt', kind='regular', start=0, offset=512, size=0)]
    """
    for window in scan(source):
        for row in range(len(window.columns.names)):
            yield window.columns.member(row)


class Globals:
    """The records of a shard's pax global headers, by the byte from which they apply; one pass over its headers."""

    def __init__(self, source: ByteSource) -> None:
        self._places: list[int] = []
        self._records: list[dict[bytes, bytes]] = []
        self._scanner = Scanner(source.name)
        end = 0
        for window in scan(source):
            _, starts, offsets, sizes, _ = window.columns
            for start, offset, size in zip(starts, offsets, sizes, strict=True):
                # Extended headers lie in front of a member's own block: before its start, or after it.
                if offset - BLOCK > end:
                    self._look(source, end, start)
                    self._look(source, start, offset - BLOCK)
                end = offset + padded(size)

    def _look(self, source: ByteSource, start: int, end: int) -> None:
        if start >= end:
            return
        scanner = self._scanner
        scanner.position = start
        scanner.extensions.clear()
        scanner.feed(source.read_at(start, end - start), start)
        scanner.take()
        scanner.extensions.clear()
        if not self._records or scanner.globals != self._records[-1]:
            self._places.append(end)
            self._records.append(dict(scanner.globals))

    def before(self, start: int) -> dict[bytes, bytes]:
        """The records in effect at byte ``start``."""
        at = bisect_right(self._places, start)
        return self._records[at - 1] if at else {}
