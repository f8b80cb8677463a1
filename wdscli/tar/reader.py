"""This module reads the members of an archive. In a file it can skip payloads, it reads a stream to its end, and it
continues after damage.

:func:`scan` feeds a :class:`~wdscli.tar.scan.Scanner` with one buffer after the other, at the scanner's position. For
small members, the buffers are large and adjacent. For large members, it reads a few KiB at each header, and skips the
payloads. If payloads are wanted, it reads each payload from its place. The compiled core reads the headers of an
uncompressed file.

:func:`scan_salvaging` is a ``scan`` that reports errors, and continues at the next header, which :func:`next_header`
finds. The blocks of an archive are at multiples of 512 from its first byte, and checksum and magic identify a header. A
payload that is itself a tar contains headers too. They count as members only if the payload's own header is lost.

This module does not know where bytes come from. A source is any object with the five attributes of :class:`ByteSource`.
Three more are optional: ``fd``, the descriptor of an uncompressed file; ``expect``, which announces the next reads; and
``check_members``, which gets the members of each window and may raise an error. The size of a chunk limits the memory,
for files and streams.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from wdscli.errors import DataError, InputError
from wdscli.tar.header import BLOCK, CANONICAL, Form, checksum_is_right, padded, parse_block, parse_number
from wdscli.tar.scan import Columns, Scanner, cut
from wdscli.text import to_text

if TYPE_CHECKING:
    from wdscli.model import Member

CHUNK_BYTES = 1 << 18
FIRST_CHUNK_BYTES = 1 << 16
JUMP_CHUNK_BYTES = 1 << 12
HOP_MEMBERS = 1 << 11
LARGE_STRIDE_BYTES = 1 << 14
"""Members of at least this size are read header by header, because a read of 4 KiB costs less than copying 16 KiB."""
NEAR_STRIDE_BYTES = 1 << 16
"""With members up to this size, a remote source is read completely, and in advance."""
#: Matches a checksum field of any tar: digits, perhaps with blanks before them, and NUL, blank or both at the end.
_CHECKSUM = rb" {0,5}[0-7]{1,7}[\0 ]"
_CHECKSUM_END = rb"[\0 ]"
MAX_SEARCHED_BYTES = 1 << 32
"""How many bytes of an endless stream are searched for the next header."""
_EXTENDED = (b"x", b"X", b"L", b"K")
_EXTENDED_NAMES = (b"PaxHeader", b"././@LongLink")
_LAST_CODES = frozenset(("truncated", "corrupt", "no-end-of-archive"))


class ByteSource(Protocol):
    """The interface for reading bytes by offset. ``size`` is the number of bytes; it is None for a stream that has not
    ended. ``seekable`` says whether reads may be in any order.

    ``read_at(offset, length)`` returns ``length`` bytes, or fewer only at the end. If a source is not seekable, offsets
    rise, and it skips the bytes between reads. ``read_some`` may return fewer bytes, but returns no bytes only at the
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
    """The members with headers in one buffer, and their payloads.

    ``columns`` are the members. ``buffer`` has the archive's bytes from ``base``. The payloads of a stream must be read
    in order, before the next window.
    """

    __slots__ = ("base", "buffer", "columns", "source")

    def __init__(self, source: ByteSource, buffer: bytes, base: int, columns: Columns) -> None:
        self.source = source
        self.buffer = buffer
        self.base = base
        self.columns = columns

    def payload(self, row: int) -> bytes:
        """Return the payload of one member. Raises DataError ``truncated`` if the source ends too early."""
        offset, size = self.columns.offsets[row], self.columns.sizes[row]
        begin = offset - self.base
        if begin >= 0 and begin + padded(size) <= len(self.buffer):
            return self.buffer[begin : begin + size]
        return self._beyond(row, begin, offset, size)

    def _beyond(self, row: int, begin: int, offset: int, size: int) -> bytes:
        """Return a payload if it, or its padding, is not completely in the buffer. For a stream, the padding is read
        too, which proves that the member is complete. For a file, the scan compares the file's size instead."""
        data = self.buffer[begin : begin + padded(size)] if begin >= 0 else b""
        if len(data) < size and self.source.seekable:
            data = self.source.read_at(offset, size)
        elif not self.source.seekable:
            missing_bytes = self.source.read_at(offset + len(data), padded(size) - len(data))
            if len(data) >= size:
                self.buffer += missing_bytes
            data += missing_bytes
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
    """Yield the members of ``source``, one window at a time. ``chunk`` limits the memory.

    With ``payloads``, :meth:`Window.payload` can be called for every row. ``form`` is the canonical form, which decides
    the flag FOREIGN. Raises the errors of the source. Raises DataError for damage, after all members before it are
    yielded.

    >>> from wdscli.tar import END_OF_ARCHIVE, build_header
    >>> source = BytesSource(build_header(b"a.txt", 5) + b"hello".ljust(512, b"\\0") + END_OF_ARCHIVE)
    >>> [(window.columns.names[0], window.payload(0)) for window in scan(source, payloads=True)]
    [(b'a.txt', b'hello')]
    """
    return walk(source, new_scanner(source, form, first), payloads=payloads, chunk=chunk)


def new_scanner(source: ByteSource, form: Form = CANONICAL, first: int = 0) -> Scanner:
    """Return a scanner for the archive that begins at byte ``first`` of ``source``."""
    return Scanner(source.name, limit=source.size if source.seekable else None, form=form, first=first)


def walk(
    source: ByteSource, scanner: Scanner, *, payloads: bool = False, chunk: int = CHUNK_BYTES
) -> Iterator[Window]:
    """Do the work of :func:`scan` with the caller's scanner. After an error, the scanner shows the position."""
    walk_by = _jump if source.seekable else _stream
    windows = walk_by(source, scanner, chunk, payloads)
    check: Callable[[Columns], None] | None = getattr(source, "check_members", None)
    return windows if check is None else _checked(windows, check)


def _checked(windows: Iterator[Window], check: Callable[[Columns], None]) -> Iterator[Window]:
    for window in windows:
        check(window.columns)
        yield window


def is_dense(source: ByteSource) -> bool:
    """Return whether the first headers are so close together that reading headers means reading nearly all bytes."""
    scanner = new_scanner(source)
    try:
        scanner.feed(source.read_at(0, FIRST_CHUNK_BYTES), 0)
    except DataError:
        return False
    return scanner.position <= NEAR_STRIDE_BYTES * len(scanner.take().names)


def _fed(
    source: ByteSource, scanner: Scanner, buffer: bytes, base: int, fed_bytes: int | None
) -> Iterator[Window]:
    """Feed one buffer. The members before an error are yielded before the error is raised."""
    try:
        scanner.feed(buffer, base)
    except DataError:
        yield Window(source, buffer, base, scanner.take(fed_bytes))
        raise
    yield Window(source, buffer, base, scanner.take(fed_bytes))


def _jump(source: ByteSource, scanner: Scanner, chunk: int, payloads: bool) -> Iterator[Window]:
    descriptor: int | None = getattr(source, "fd", None)
    length, hopping = min(chunk, FIRST_CHUNK_BYTES), not payloads
    # Reading a whole remote source is faster than one request per header, unless members are large.
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
            member_count = len(window.columns.names)
            yield window
        stride = (scanner.position - base) // member_count if member_count else 0
        if not was_expected and member_count and (stride <= NEAR_STRIDE_BYTES or payloads):
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
    """Add the stream's next bytes to ``buffer``, until there are at least ``wanted`` bytes. Return all bytes, and False
    if the stream ended earlier."""
    parts, length, has_more = [buffer] if buffer else [], len(buffer), True
    while has_more and length < wanted:
        part = source.read_some(base + length, chunk)
        parts.append(part)
        length += len(part)
        has_more = bool(part)
    return b"".join(parts), has_more


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
    """The records of a shard's pax global headers. The key of a header's records is the first byte to which they apply.
    This needs one pass over all headers."""

    def __init__(self, source: ByteSource) -> None:
        self._places: list[int] = []
        self._records: list[dict[bytes, bytes]] = []
        self._scanner = Scanner(source.name)
        end = 0
        for window in scan(source):
            _, starts, offsets, sizes, _ = window.columns
            for start, offset, size in zip(starts, offsets, sizes, strict=True):
                # A global header may be before the start of a member, or among the member's extended headers.
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
        """Return the records that apply at byte ``start``."""
        count = bisect_right(self._places, start)
        return self._records[count - 1] if count else {}


def next_header(source: ByteSource, offset: int, *, first: int = 0) -> int | None:
    """Return the first byte at or after ``offset`` where a header begins, or None. Only multiples of 512 from ``first``
    count.

    A header has the right checksum, and the magic of POSIX or GNU. A header without magic (Unix v7) must be plausible
    in every other field. After the call, a source that is not seekable has been read beyond the returned byte.

    >>> from wdscli.tar import BytesSource, build_header
    >>> next_header(BytesSource(bytes(1024) + build_header(b"a.txt", 5)), 100)
    1024
    """
    header_offset, _, _ = _find(source, offset, first)
    return header_offset


def _find(source: ByteSource, offset: int, first: int) -> tuple[int | None, int, bytes]:
    """Return the result of :func:`next_header`, and the place and bytes of the last read."""
    base = begin = first + (offset - first + BLOCK - 1) // BLOCK * BLOCK
    while True:
        if not source.seekable and base - begin > MAX_SEARCHED_BYTES:
            raise InputError(
                f"cannot read {source.name} to its end: no header in {MAX_SEARCHED_BYTES} bytes after byte {begin}",
                hint="the input may not be a tar; to search all of it, save it as a file",
            )
        buffer = source.read_at(base, CHUNK_BYTES)
        # Two bytes exclude most blocks: a name is not empty, and a checksum ends with NUL or a blank.
        for match in re.finditer(_CHECKSUM_END, buffer[155::BLOCK]):
            start = match.start() * BLOCK
            if (
                buffer[start]
                and re.match(_CHECKSUM, buffer[start + 148 : start + BLOCK])
                and is_plausible(buffer[start : start + BLOCK])
            ):
                return base + start, base, buffer
        if len(buffer) < CHUNK_BYTES:
            return None, base, buffer
        base += len(buffer)


def is_plausible(block: bytes) -> bool:
    """Return whether a block is surely a header."""
    if len(block) < BLOCK or not checksum_is_right(block):
        return False
    try:
        header = parse_block(block)
        if not header.name:
            return False
        # POSIX: magic "ustar" and NUL; GNU: magic and version together are "ustar  " and NUL.
        return block[257:263] == b"ustar\0" or header.is_gnu or _is_plausible_v7(block, header.name)
    except DataError:
        return False


def _is_plausible_v7(block: bytes, name: bytes) -> bool:
    """Return whether a block is a plausible Unix v7 header. The block ends with the link name, all numbers are octal,
    and only NULs follow a name's first NUL."""
    for begin, end in ((100, 108), (108, 116), (116, 124), (136, 148)):
        parse_number(block[begin:end], "header")
    unused = block[257:] + block[len(name) : 100]
    return block[156:157] in b"\x00012" and not unused.strip(b"\0") and to_text(name).isprintable()


def scan_salvaging(
    source: ByteSource,
    report: Callable[[DataError], None],
    *,
    form: Form = CANONICAL,
    payloads: bool = False,
    chunk: int = CHUNK_BYTES,
    position: int = 0,
) -> Iterator[Window]:
    """Yield the members of a damaged archive, one window at a time. ``report`` is called with each error. A caller that
    has read the first members, which are whole, begins at byte ``position``.

    After an error, the scan continues at the next header; after ``data-after-end``, with the next archive. A member
    with a truncated payload is left out. A member with a damaged extended header is left out too, because its name or
    size is lost; this is also reported. A truncated archive ends at the truncation. Errors of the source are raised,
    except DataError. For a stream with ``payloads``, :meth:`Window.payload` raises ``truncated``.

    >>> from wdscli.tar import END_OF_ARCHIVE, BytesSource, build_header
    >>> damaged = build_header(b"a", 0) + b"?" * 512 + build_header(b"c", 0) + END_OF_ARCHIVE
    >>> errors: list[DataError] = []
    >>> [name for window in scan_salvaging(BytesSource(damaged), errors.append) for name in window.columns.names]
    [b'a', b'c']
    >>> [(error.code, error.offset) for error in errors]
    [('bad-checksum', 512)]
    """
    source = source if source.seekable else _Held(source)
    scanner: Scanner | None = (first_scanner := new_scanner(source, form))
    first_scanner.position = position
    orphan = False
    while scanner is not None:
        window = None
        try:
            for window in walk(source, scanner, payloads=payloads, chunk=chunk):
                if orphan and window.columns.names:
                    report(_orphan(source.name, window))
                    orphan = False
                yield window
            return
        except DataError as error:
            report(error)
            scanner, orphan = _resume(source, scanner, error, window)


def _resume(
    source: ByteSource, scanner: Scanner, error: DataError, window: Window | None
) -> tuple[Scanner | None, bool]:
    """Return a scanner at the next header after ``error``, and whether its first member has lost its extended header.
    Return None if no member can follow the error. ``window`` is the last window before the error."""
    if isinstance(source, _Held) and window is not None:
        source.hold(window.base, window.buffer)
    if error.code in _LAST_CODES:
        return None, False
    first, offset, orphan = scanner.first, scanner.position, False
    if scanner.ended and error.offset is not None:
        # A header may begin at the first byte that is not zero.
        offset = error.offset
    elif error.code != "data-after-end":
        orphan = _is_extended(source.read_at(offset, BLOCK))
        offset += BLOCK
    header_offset, base, buffer = _find(source, offset, first)
    if isinstance(source, _Held):
        source.hold(base, buffer)
    if header_offset is None:
        return None, False
    following = new_scanner(source, scanner.form, header_offset)
    if error.code != "data-after-end":
        scanner.extensions.clear()
        following.extensions = scanner.extensions
    return following, orphan


def _is_extended(block: bytes) -> bool:
    """Return whether a damaged block is, or was, an extended header. The next header without it would then be wrong."""
    return block[156:157] in _EXTENDED or any(name in block[:100] for name in _EXTENDED_NAMES)


def _orphan(shard: str, window: Window) -> DataError:
    """Remove the first member, and return an error for it."""
    names, starts, *remaining_columns = window.columns
    name, start = names.pop(0), starts.pop(0)
    for column in remaining_columns:
        column.pop(0)
    return DataError(
        "member skipped: the extended header with its name or size is damaged",
        code="bad-extended-header",
        shard=shard,
        offset=start,
        member=to_text(name),
    )


class _Held:
    """A stream with some earlier bytes in memory, which can be read again."""

    seekable = False

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._base = 0
        self._held = b""

    @property
    def name(self) -> str:
        return self._source.name

    @property
    def size(self) -> int | None:
        return self._source.size

    def hold(self, base: int, held: bytes) -> None:
        """Keep ``held``, the last read bytes, which begin at ``base``, so that they can be read again."""
        if base + len(held) >= self._base + len(self._held):
            self._base, self._held = base, held

    def read_some(self, offset: int, length: int) -> bytes:
        held_offset = offset - self._base
        if 0 <= held_offset < len(self._held):
            return self._held[held_offset : held_offset + length]
        return self._source.read_some(offset, length)

    def read_at(self, offset: int, length: int) -> bytes:
        held_offset = offset - self._base
        if not 0 <= held_offset < len(self._held):
            return self._source.read_at(offset, length)
        data = self._held[held_offset : held_offset + length]
        if len(data) < length:
            data += self._source.read_at(offset + len(data), length - len(data))
        return data
