"""Reading on after damage: the next header, and the members of a damaged archive.

What it is: :func:`next_header` searches every block for something that can only be a header; :func:`scan_salvaging`
is a ``scan`` that reports errors and continues after them. How: the blocks of an archive lie at multiples of 512
from its first byte, whatever happened to some of them, and checksum and magic identify a header. A chunk bounds the
memory, for files and streams.

Its limit: a payload that is itself a tar has headers too. They are taken for members only where the header that
would skip them is lost.

It must not know samples, files or networks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from wdscli.errors import DataError, InputError
from wdscli.model import to_text
from wdscli.tar.header import BLOCK, CANONICAL, Form, checksum_is_right, parse_block, parse_number
from wdscli.tar.reader import CHUNK_BYTES, ByteSource, Window, new_scanner, walk
from wdscli.tar.scan import Scanner

#: A checksum as any tar writes it: digits, perhaps blanks before them, ended by NUL, blank or both.
_CHECKSUM = re.compile(rb" {0,5}[0-7]{1,7}[\0 ]")
_CHECKSUM_END = re.compile(rb"[\0 ]")
MAX_SEARCHED_BYTES = 1 << 32
"""Bytes of an endless stream that are searched for the next header."""
_EXTENDED = (b"x", b"X", b"L", b"K")
_EXTENDED_NAMES = (b"PaxHeader", b"././@LongLink")
_LAST_CODES = frozenset(("truncated", "corrupt", "no-end-of-archive"))


def next_header(source: ByteSource, offset: int, *, first: int = 0) -> int | None:
    """The first byte from ``offset`` on with a header, or None. Only multiples of 512 from ``first`` count.

    A header has the right checksum and the magic of POSIX or GNU; one without magic (Unix v7) must be plausible in
    every other field. A source that is not seekable has been read beyond that byte.

    >>> from wdscli.tar import BytesSource, build_header
    >>> next_header(BytesSource(bytes(1024) + build_header(b"a.txt", 5)), 100)
    1024
    """
    found, _, _ = _find(source, offset, first)
    return found


def _find(source: ByteSource, offset: int, first: int) -> tuple[int | None, int, bytes]:
    """:func:`next_header`, and the place and bytes of the last read."""
    base = begin = first + (offset - first + BLOCK - 1) // BLOCK * BLOCK
    while True:
        if not source.seekable and base - begin > MAX_SEARCHED_BYTES:
            raise InputError(
                f"cannot read {source.name} to its end: no header in {MAX_SEARCHED_BYTES} bytes after byte {begin}",
                hint="it may not be a tar; store it as a file to search all of it",
            )
        buffer = source.read_at(base, CHUNK_BYTES)
        # Two bytes exclude most blocks: a name is not empty, a checksum ends with NUL or a blank.
        for match in _CHECKSUM_END.finditer(buffer[155::BLOCK]):
            at = match.start() * BLOCK
            if buffer[at] and _CHECKSUM.match(buffer, at + 148) and is_plausible(buffer[at : at + BLOCK]):
                return base + at, base, buffer
        if len(buffer) < CHUNK_BYTES:
            return None, base, buffer
        base += len(buffer)


def is_plausible(block: bytes) -> bool:
    """Whether a block can only be a header."""
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
    """Unix v7: the block ends with the link name; all numbers are octal, and nothing follows a name's NUL."""
    for at, end in ((100, 108), (108, 116), (116, 124), (136, 148)):
        parse_number(block[at:end], "header")
    unused = block[257:] + block[len(name) : 100]
    return block[156:157] in b"\x00012" and not unused.strip(b"\0") and to_text(name).isprintable()


def scan_salvaging(
    source: ByteSource,
    report: Callable[[DataError], None],
    *,
    form: Form = CANONICAL,
    payloads: bool = False,
    chunk: int = CHUNK_BYTES,
) -> Iterator[Window]:
    """Yield the members of a damaged archive, one window at a time; each error goes to ``report``.

    After an error it continues at the next header; after ``data-after-end`` with the following archive. It omits
    members whose payload is truncated, and members whose extended header is damaged, because that had their name or
    size (this is reported too). A truncated archive ends there. Errors of the source other than DataError are
    raised; so is ``truncated`` by :meth:`Window.payload`, for a stream with ``payloads``.

    >>> from wdscli.tar import END_OF_ARCHIVE, BytesSource, build_header
    >>> damaged = build_header(b"a", 0) + b"?" * 512 + build_header(b"c", 0) + END_OF_ARCHIVE
    >>> errors: list[DataError] = []
    >>> [name for window in scan_salvaging(BytesSource(damaged), errors.append) for name in window.columns.names]
    [b'a', b'c']
    >>> [(error.code, error.offset) for error in errors]
    [('bad-checksum', 512)]
    """
    source = source if source.seekable else _Held(source)
    scanner: Scanner | None = new_scanner(source, form)
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
            if error.code in _LAST_CODES:
                return
            if isinstance(source, _Held) and window is not None:
                source.hold(window.base, window.buffer)
            scanner, orphan = _resume(source, scanner, error)


def _resume(source: ByteSource, scanner: Scanner, error: DataError) -> tuple[Scanner | None, bool]:
    """A scanner at the next header after ``error``, and whether its first member has lost its extended header."""
    first, offset, orphan = scanner.first, scanner.position, False
    if scanner.ended and error.offset is not None:
        # The first byte that is not zero may begin a header.
        offset = error.offset
    elif error.code != "data-after-end":
        orphan = _is_extended(source.read_at(offset, BLOCK))
        offset += BLOCK
    found, base, buffer = _find(source, offset, first)
    if isinstance(source, _Held):
        source.hold(base, buffer)
    if found is None:
        return None, False
    following = new_scanner(source, scanner.form, found)
    if error.code != "data-after-end":
        scanner.extensions.clear()
        following.extensions = scanner.extensions
    return following, orphan


def _is_extended(block: bytes) -> bool:
    """Whether a damaged block is, or was, an extended header; the next header alone would then be wrong."""
    return block[156:157] in _EXTENDED or any(name in block[:100] for name in _EXTENDED_NAMES)


def _orphan(shard: str, window: Window) -> DataError:
    """Remove the first member, and return the error that says so."""
    names, starts, *others = window.columns
    name, start = names.pop(0), starts.pop(0)
    for column in others:
        column.pop(0)
    return DataError(
        "member skipped: the extended header with its name or size is damaged",
        code="bad-extended-header",
        shard=shard,
        offset=start,
        member=to_text(name),
    )


class _Held:
    """A stream that can be read again from the bytes that its reader still holds."""

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
        """Keep ``held``, the last read bytes from ``base`` on, to be read again."""
        if base + len(held) >= self._base + len(self._held):
            self._base, self._held = base, held

    def read_some(self, offset: int, length: int) -> bytes:
        at = offset - self._base
        if 0 <= at < len(self._held):
            return self._held[at : at + length]
        return self._source.read_some(offset, length)

    def read_at(self, offset: int, length: int) -> bytes:
        at = offset - self._base
        if not 0 <= at < len(self._held):
            return self._source.read_at(offset, length)
        data = self._held[at : at + length]
        if len(data) < length:
            data += self._source.read_at(offset + len(data), length - len(data))
        return data
