"""What the tar tests share: sources over bytes, ways to scan them, and header blocks made by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from wdscli.errors import DataError
from wdscli.tar import CANONICAL, ByteSource, Form, scan
from wdscli.tar.header import byte_sum


class FileSource:
    """Bytes that can be read anywhere."""

    seekable = True

    def __init__(self, data: bytes, name: str = "x.tar") -> None:
        self.data = data
        self.name = name
        self.size = len(data)
        self.bytes_read = 0

    def read_at(self, offset: int, length: int) -> bytes:
        data = self.data[offset : offset + length]
        self.bytes_read += len(data)
        return data

    read_some = read_at


class StreamSource:
    """Bytes that can be read once, in pieces that end at ``cuts``; complains of a reader that goes back."""

    seekable = False

    def __init__(self, data: bytes, cuts: Iterable[int] = (), name: str = "x.tar") -> None:
        self.data = data
        self.name = name
        self.size: int | None = None
        self.cuts = sorted(set(cuts))
        self.position = 0

    def read_some(self, offset: int, length: int) -> bytes:
        assert offset >= self.position, "a stream cannot go back"
        end = offset + length
        for cut in self.cuts:
            if cut > offset:
                end = min(end, cut)
                break
        return self._read(offset, end)

    def read_at(self, offset: int, length: int) -> bytes:
        assert offset >= self.position, "a stream cannot go back"
        return self._read(offset, offset + length)

    def _read(self, offset: int, end: int) -> bytes:
        data = self.data[offset:end]
        self.position = offset + len(data)
        if not data:
            self.size = len(self.data)
        return data


class SparseSource:
    """A huge file of which only some pieces are not zeros; hands out no more than a few MiB at once."""

    seekable = True

    def __init__(self, pieces: Sequence[tuple[int, bytes]], size: int, name: str = "huge.tar") -> None:
        self.pieces = pieces
        self.size = size
        self.name = name

    def read_at(self, offset: int, length: int) -> bytes:
        assert length <= 1 << 22, "nobody reads a huge payload by accident"
        data = bytearray(max(0, min(length, self.size - offset)))
        for start, piece in self.pieces:
            low, high = max(start, offset), min(start + len(piece), offset + len(data))
            if low < high:
                data[low - offset : high - offset] = piece[low - start : high - start]
        return bytes(data)

    read_some = read_at


class Row(NamedTuple):
    """One member as a scan gives it."""

    name: bytes
    start: int
    offset: int
    size: int
    flag: int


class Outcome(NamedTuple):
    """All that a scan gave: members, and the error's code, offset and member if it raised one."""

    rows: list[Row]
    error: tuple[str, int | None, str | None] | None

    @property
    def names(self) -> list[bytes]:
        return [row.name for row in self.rows]

    @property
    def sizes(self) -> list[int]:
        return [row.size for row in self.rows]


def outcome(
    source: ByteSource, *, form: Form = CANONICAL, payloads: bool = False, chunk: int = 1 << 20
) -> Outcome:
    """Scan to the end or to the first error; with ``payloads`` every payload is read too."""
    rows: list[Row] = []
    try:
        for window in scan(source, form=form, payloads=payloads, chunk=chunk):
            for number, row in enumerate(zip(*window.columns)):
                if payloads:
                    assert len(window.payload(number)) == row[3]
                rows.append(Row(*row))
    except DataError as error:
        code = error.code if error.shard == source.name else f"{error.code} in {error.shard}"
        return Outcome(rows, (code, error.offset, error.member))
    return Outcome(rows, None)


def scanned(data: bytes, form: Form = CANONICAL) -> Outcome:
    return outcome(FileSource(data), form=form)


def payloads_of(data: bytes) -> list[bytes]:
    return [
        window.payload(row)
        for window in scan(FileSource(data), payloads=True)
        for row in range(len(window.columns.names))
    ]


def with_checksum(block: bytes | bytearray, form: bytes = b"%06o\0 ") -> bytes:
    """``block`` with its checksum made right."""
    fixed = bytearray(block)
    fixed[148:156] = b" " * 8
    fixed[148:156] = form % byte_sum(bytes(fixed))
    return bytes(fixed)


def patched(block: bytes, at: int, new: bytes) -> bytes:
    """``block`` with ``new`` at byte ``at`` and the checksum made right."""
    return with_checksum(block[:at] + new + block[at + len(new) :])


def archive(*parts: bytes) -> bytes:
    """Blocks, payloads (padded here) and the end of archive."""
    return b"".join(part.ljust((len(part) + 511) & -512, b"\0") for part in parts) + bytes(1024)
