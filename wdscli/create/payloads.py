"""This module has the payloads that are not files: lines of lists, values of tables, and the output of commands.

:class:`SourcePayloads` keeps small payloads in memory up to a limit, and other payloads in one temporary file. So
memory does not grow with a table, and tasks in other processes can read the payloads. The file is created at the first
use, and removed at the end of the block.

:func:`read_recipe` reads a list like tarp's recipes. A line is ``name<TAB>source``, or ``name source`` with blanks
between them. The source is ``text:...`` (the rest of the line), ``file:PATH``, ``pipe:CMD``, a path, or any address.
Blank lines and lines that begin with ``#`` are ignored. A name may contain blanks if a TAB follows it. Paths are
relative to the current folder. A list may come from a pipe, because it is read line by line.

This module does not know how samples are ordered.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import IO, NamedTuple, TypeVar

from wdscli.create.delimited import RowPlace, refuse_row
from wdscli.create.files import (
    Files,
    Inline,
    KeyRule,
    Place,
    StoredPayload,
    cannot_read,
    check_written,
    describe_place,
)
from wdscli.create.left_out import EmptyCellError, LeftOut
from wdscli.create.walk import OwnOutputs
from wdscli.errors import DataError, InputError, OutputError, UsageError, WdsError, empty_stream
from wdscli.progress import QUIET, Progress
from wdscli.storage import is_local, is_stream, local_path, open_source
from wdscli.storage.addresses import listed_address
from wdscli.storage.ends import PIECE_BYTES
from wdscli.storage.local import write_all
from wdscli.storage.opening import at_once
from wdscli.storage.streams import stream_of
from wdscli.text import to_text

Row = TypeVar("Row")
_ROWS_AHEAD = 64
_SMALL_BYTES = 256
_MAX_IN_MEMORY_BYTES = 1 << 24
_HINT = "set the variable TMPDIR to a folder with more free space"
_BLANKS = re.compile(rb"[ \t]+")
_PROGRESS_LINES = 256


class NamedSource(NamedTuple):
    """An address in a list or table, the name of this list or table, and for a table the column."""

    address: str
    where: str
    column: str = ""

    def resolved(self, trusted: bool) -> str:
        """Return the address relative to the current folder. Raises InputError if the list or table must not name
        it."""
        return listed_address(self.where, self.address, trusted=trusted, is_cell=bool(self.column))


class SourcePayloads:
    """Use it as a context manager around planning and writing. ``left_out`` decides about sources that cannot be
    read."""

    outputs: OwnOutputs | None = None
    """The command's own outputs, which cannot be payloads."""

    def __init__(self, trust_addresses: bool = False, left_out: LeftOut | None = None) -> None:
        self.left_out = left_out or LeftOut()
        self._trusts = trust_addresses
        from xxhash import xxh3_128

        self._digest = xxh3_128()
        self._in_memory = 0
        self._sizes: dict[str, int | InputError | None] = {}
        """The sizes of remote payloads, or the error; None for a stream."""
        self._scratch: IO[bytes] | None = None
        self._end = 0

    def keep(self, payload: bytes) -> Place:
        """Store bytes, and return their place."""
        self._digest.update(b"%d:" % len(payload))
        self._digest.update(payload)
        if len(payload) <= _SMALL_BYTES and self._in_memory < _MAX_IN_MEMORY_BYTES:
            self._in_memory += len(payload) + 64
            return Inline(payload)
        file, place = self._file(), self._end
        self._append(file, payload)
        return StoredPayload(file.name, place)

    @property
    def digest(self) -> str:
        """Return a digest of all stored payloads, because they have no time of change."""
        return self._digest.hexdigest()

    def of_member(
        self, key: bytes, field: bytes, named: NamedSource, place: RowPlace | None = None
    ) -> tuple[int, Place] | None:
        """Return size and place of a member's payload, or None if the member is left out. Streams and the output of
        commands are read here, because their size is unknown. Raises InputError."""
        try:
            return self._located(named)
        except InputError as error:
            self.left_out.lose(key, field, named.address, error, place)
        return None

    def ahead(self, rows: Iterable[Row], named: Callable[[Row], Iterable[NamedSource]]) -> Iterator[Row]:
        """Yield the rows, and request the sizes of remote payloads in advance, several at the same time. Errors are
        raised later, by :meth:`of_member`."""
        coming, failure = iter(rows), None
        while failure is None:
            batch: list[Row] = []
            try:
                for row in islice(coming, _ROWS_AHEAD):
                    batch.append(row)
            except WdsError as error:
                failure = error
            if not batch and failure is None:
                return
            self._ask(dict.fromkeys(source for row in batch for source in named(row)))
            yield from batch
        raise failure

    def _ask(self, addresses: Iterable[NamedSource]) -> None:
        remote = []
        for named in addresses:
            with suppress(WdsError):
                address = named.resolved(self._trusts)
                if not (is_stream(address) or is_local(address)):
                    remote.append(address)
        self._sizes = dict(zip(remote, at_once(_size_at, remote))) if len(remote) > 1 else {}

    def _located(self, named: NamedSource) -> tuple[int, Place]:
        address = self._address(named)
        size = self._sizes.pop(address, None)
        if isinstance(size, InputError):
            raise size
        if size is not None:
            return size, address
        with open_source(address, decompress=False) as source:
            if source.size is not None and source.seekable:
                path = os.fsencode(address.removeprefix("file://")) if is_local(address) else address
                return source.size, path
            file, begin = self._file(), self._end
            while data := source.read_some(self._end - begin, PIECE_BYTES):
                self._digest.update(data)
                self._append(file, data)
            return self._end - begin, StoredPayload(file.name, begin)

    def _address(self, named: NamedSource) -> str:
        """Return the address of a payload. Raises InputError, and UsageError for one of the command's own outputs."""
        if not named.address:
            raise EmptyCellError(f'column "{named.column}" is empty, so it names no file')
        if named.address == "-":
            raise InputError("standard input cannot be a payload", hint="name a file, or pipe:CMD")
        address = named.resolved(self._trusts)
        if self.outputs is not None and is_local(address):
            self.outputs.refuse(os.fsencode(local_path(address)))
        return address

    def _file(self) -> IO[bytes]:
        if self._scratch is None:
            from tempfile import NamedTemporaryFile

            try:
                self._scratch = NamedTemporaryFile(prefix="wdscli-", buffering=0)  # noqa: SIM115 - see __exit__
            except OSError as error:
                raise OutputError(f"cannot make a temporary file: {error}", hint=_HINT) from None
        return self._scratch

    def _append(self, file: IO[bytes], data: bytes) -> None:
        try:
            write_all(file.fileno(), data)
        except OSError as error:
            raise OutputError(f"cannot write {file.name}: {error}", hint=_HINT) from None
        self._end += len(data)

    def __enter__(self) -> SourcePayloads:
        return self

    def __exit__(self, *_: object) -> None:
        self.left_out.close()
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None


def read_pieces(place: Place, size: int, buffer: memoryview | None = None) -> Iterator[bytes | memoryview]:
    """Yield a payload in pieces that are not larger than ``buffer``, which they may share. Raises InputError, DataError
    ``changed-while-read``."""
    done = 0
    for piece in _parts(place, size, buffer or memoryview(bytearray(min(size + 1, PIECE_BYTES)))):
        done += len(piece)
        if done > size:
            raise _changed(place, size, done)
        yield piece
    if done < size:
        raise _changed(place, size, done)


def payload_at(place: Place, size: int) -> bytes:
    """Return a whole payload. Raises InputError, DataError ``changed-while-read``."""
    if isinstance(place, Inline):
        return place.payload
    return b"".join(map(bytes, read_pieces(place, size)))


def _parts(place: Place, size: int, buffer: memoryview) -> Iterator[bytes | memoryview]:
    """Yield the pieces of a payload. If a file has grown, there is one more byte than planned. Pieces of files share
    ``buffer``."""
    done = 0
    if isinstance(place, Inline):
        yield place.payload
        return
    if isinstance(place, str):
        with open_source(place, decompress=False) as source:
            while data := source.read_some(done, min(len(buffer), size + 1 - done)):
                done += len(data)
                yield data
        return
    # In a scratch file, the next payload follows, so do not read one more byte.
    path, first, end = (
        (place.path, place.offset, size) if isinstance(place, StoredPayload) else (place, 0, size + 1)
    )
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while count := os.preadv(descriptor, [buffer[: end - done]], first + done):
                done += count
                yield buffer[:count]
        finally:
            os.close(descriptor)
    except OSError as error:
        raise cannot_read(place, error) from None


def _changed(place: Place, planned: int, actual: int) -> DataError:
    """Return the error for a file with another size than planned."""
    how = "grew" if actual > planned else "shrank"
    count = f"more than {planned}" if actual > planned else str(actual)
    return DataError(
        f"{describe_place(place)} {how} while it was read: {count} bytes instead of the planned {planned}",
        code="changed-while-read",
        hint="run the command again when no other program writes to it",
    )


def _size_at(address: str) -> int | InputError | None:
    """Return the size of a payload, None for a stream, or the error as a value."""
    try:
        with open_source(address, decompress=False) as source:
            return source.size if source.seekable else None
    except InputError as error:
        return error


def parse_line(line: bytes) -> tuple[bytes, bytes] | None:
    r"""Return the name and the source in a line of a list. Return None for a blank line and a comment. Raises DataError
    for a name without a source.

    >>> parse_line(b"a b.txt\ttext: hello\n"), parse_line(b"a.jpg   pictures/1.jpg")
    ((b'a b.txt', b'text: hello'), (b'a.jpg', b'pictures/1.jpg'))
    """
    text = line.removesuffix(b"\n").removesuffix(b"\r")
    if not text.strip() or text.lstrip().startswith(b"#"):
        return None
    if b"\t" in text:
        name, source = text.split(b"\t", 1)
        name, source = name.strip(b" "), source.lstrip(b" \t")
    else:
        name, *sources = _BLANKS.split(text.lstrip(b" "), maxsplit=1)
        source = sources[0] if sources else b""
    if not name or not source:
        raise DataError(
            f"a line has a name but no source: {to_text(text)[:80]!r}",
            code="bad-list",
            hint="use NAME<TAB>SOURCE, such as n01/img7.jpg<TAB>pictures/7.jpg; "
            r"for a list of paths: sed 's/.*/&\t&/'",
        )
    return name, source


def read_recipe(
    address: str, rule: KeyRule, files: Files, payloads: SourcePayloads, progress: Progress = QUIET
) -> None:
    """Add the members of a list. Raises InputError for a source that cannot be read, and DataError ``bad-list`` or
    ``unsafe-name`` for wrong lines. All errors have the line's number."""
    number = 0
    with open_source(address) as source:
        for number, text in payloads.ahead(enumerate(stream_of(source), 1), partial(_addresses, address)):
            place = RowPlace(address, 0, number)
            try:
                if (line := parse_line(text)) is not None:
                    name, where = line
                    key, field = _split(name, rule)
                    located = locate(key, field, where, payloads, place)
                    if located is not None:
                        files.add(key, field, *located)
            except UsageError as error:
                refuse_row(place, error)
            except WdsError as error:
                payloads.left_out.refuse(place, error)
            if number % _PROGRESS_LINES == 0:
                progress.advance(_PROGRESS_LINES)
    if not number and address == "-":
        raise empty_stream("bad-list")
    payloads.left_out.check_rows()


def _addresses(where: str, line: tuple[int, bytes]) -> Iterator[NamedSource]:
    """Return the address in a line, if it has an address."""
    if b"://" in line[1]:
        with suppress(WdsError):
            parsed = parse_line(line[1])
            if parsed is not None and not parsed[1].startswith((b"text:", b"pipe:")):
                yield NamedSource(os.fsdecode(parsed[1]), where)


def _split(name: bytes, rule: KeyRule) -> tuple[bytes, bytes]:
    parts = rule.split(name)
    if isinstance(parts, str):
        raise DataError(
            f'"{to_text(name)}" is part of no sample ({parts})',
            code="bad-list",
            hint="a name is a key, a dot and a field: n01/img7.jpg",
        )
    check_written(*parts)
    return parts


def locate(
    key: bytes, field: bytes, source: bytes, payloads: SourcePayloads, place: RowPlace
) -> tuple[int, Place] | None:
    """Return size and place of a member's source in a line of a list, or None to leave it out."""
    if source.startswith(b"text:"):
        payload = source[5:]
        return len(payload), payloads.keep(payload)
    if source.startswith(b"file:") and not source.startswith(b"file://"):
        source = source[5:]
        if not is_local(place.table):
            source = b"file://" + source
    return payloads.of_member(key, field, NamedSource(os.fsdecode(source), place.table), place)
