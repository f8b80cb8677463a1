"""Going on after damage: where the next header lies, and the members of an archive that is broken in places.

What it is: :func:`next_header`, which looks at every block for something that can only be a header, and
:func:`scan_salvaging`, a ``scan`` that reports trouble and goes on behind it. How: the blocks of an archive lie at
multiples of 512 from its first byte, whatever happened to some of them, and a header says of itself by its checksum and
magic that it is one. Memory is bounded by a chunk, for files and for streams.

What it cannot know: a payload that is itself a tar has headers too. They are taken for members only where the header
that would have passed over them is lost.

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
"""Of a stream, which may have no end, for the next header behind damage."""
_EXTENDED = (b"x", b"X", b"L", b"K")
_EXTENDED_NAMES = (b"PaxHeader", b"././@LongLink")
_LAST_CODES = frozenset(("truncated", "corrupt", "no-end-of-archive"))


def next_header(source: ByteSource, offset: int, *, first: int = 0) -> int | None:
    """The first byte from ``offset`` on where a header lies, or None. Only multiples of 512 from ``first`` count.

    A header has the right checksum and the magic of POSIX or GNU; one without magic (Unix v7) must be plausible
    in every other field. A source that is not seekable has been read to somewhere behind that byte.

    >>> from wdscli.tar import BytesSource, build_header
    >>> next_header(BytesSource(bytes(1024) + build_header(b"a.txt", 5)), 100)
    1024
    """
    found, _, _ = _find(source, offset, first)
    return found


def _find(source: ByteSource, offset: int, first: int) -> tuple[int | None, int, bytes]:
    """:func:`next_header`, and the place and bytes of what was read last."""
    base = begin = first + (offset - first + BLOCK - 1) // BLOCK * BLOCK
    while True:
        if not source.seekable and base - begin > MAX_SEARCHED_BYTES:
            raise InputError(
                f"cannot read {source.name} to its end: no header in {MAX_SEARCHED_BYTES} bytes behind byte {begin}",
                hint="is it a tar at all? Of a file any number of bytes is searched",
            )
        buffer = source.read_at(base, CHUNK_BYTES)
        # Most blocks are told by two bytes: a name has a first one, a checksum ends with NUL or a blank.
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
    """The members that can be had from a damaged archive, a window at a time, each trouble handed to ``report``.

    After trouble it goes on at the next header; after ``data-after-end`` with the archive that follows. Not among the
    members: one whose payload is cut, and one whose extended header is damaged, because its name or size was there (it
    is reported too). An archive that is cut ends there. Errors of the source other than DataError are raised; so is
    ``truncated`` by :meth:`Window.payload`, for a stream with ``payloads``.

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
    """A scanner at the next header behind ``error``, and whether what it finds first has lost its extended header."""
    first, offset, orphan = scanner.first, scanner.position, False
    if scanner.ended and error.offset is not None:
        # The first byte that is not zero: that of a header, if a header is there.
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
    """Whether a damaged block is, or was, the extended header of one member, which is then not what its own says."""
    return block[156:157] in _EXTENDED or any(name in block[:100] for name in _EXTENDED_NAMES)


def _orphan(shard: str, window: Window) -> DataError:
    """Take the first member away; the error that says so."""
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
    """A stream that can go back by as much as its reader still holds."""

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
        """``held``, the bytes from ``base`` on that were read last, may be read again."""
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
