"""Columns that wait in a temporary file until they are wanted as a whole.

What it is: :class:`Waiting`, one file without a name for all columns of a builder, and :class:`Column`, what lies there
followed by what is still in memory. How: pieces are appended as they come and noted by their place. It must not know
what columns mean.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import IO, NamedTuple, TypeAlias

from wdscli.errors import OutputError

Buffer: TypeAlias = bytes | memoryview
PIECE = 1 << 20
"""Bytes read at a time."""


class Piece(NamedTuple):
    """A stretch of a file: its descriptor, first byte and bytes."""

    descriptor: int
    start: int
    length: int

    def read(self) -> Iterator[bytes]:
        """Its bytes, some at a time. Raises OutputError."""
        at, end = self.start, self.start + self.length
        while at < end:
            data = os.pread(self.descriptor, min(PIECE, end - at), at)
            if not data:
                raise OutputError("a temporary file has lost what was written to it")
            at += len(data)
            yield data


class Column(NamedTuple):
    """The pieces of one column that lie in a file, and its end."""

    waiting: Sequence[Piece]
    rest: Buffer

    @property
    def length(self) -> int:
        """Bytes of the whole."""
        return sum(piece.length for piece in self.waiting) + len(self.rest)

    def pieces(self) -> Iterator[Buffer]:
        """The column piece by piece."""
        for piece in self.waiting:
            yield from piece.read()
        yield self.rest

    def whole(self) -> Buffer:
        """The column in memory; a view where nothing had to wait."""
        return b"".join(self.pieces()) if self.waiting else self.rest


class Waiting:
    """A temporary file below TMPDIR, made with the first piece; it goes with this object."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._pieces: dict[str, list[Piece]] = {}
        self._end = 0

    def put(self, name: str, data: Buffer) -> None:
        """Append to a column. Raises OutputError."""
        if not len(data):
            return
        try:
            if self._file is None:
                from tempfile import TemporaryFile

                self._file = TemporaryFile(buffering=0)  # noqa: SIM115 - it is open as long as this is in use
            rest = memoryview(data)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            raise OutputError(
                f"cannot write a temporary file: {error.strerror}", hint="TMPDIR names another folder for it"
            ) from error
        self._pieces.setdefault(name, []).append(Piece(self._file.fileno(), self._end, len(data)))
        self._end += len(data)

    def count(self, name: str, width: int) -> int:
        """How many numbers of ``width`` bytes of a column wait."""
        return sum(piece.length for piece in self._pieces.get(name, ())) // width

    def pieces_of(self, name: str) -> list[Piece]:
        return self._pieces.get(name, [])
