"""This module loads numpy when the first array is made. It has types of arrays, samples as arrays, columns in
temporary files, and the operations on arrays that indexes need.

Modules that need numpy only sometimes use ``numpy`` from here instead of the package. Loading numpy takes longer than a
small command runs, so it is loaded at the first use of an attribute. A :class:`Column` keeps its last numbers in memory
and the others in a file (:class:`Backing`).
"""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeAlias

from wdscli.errors import OutputError, failing

if TYPE_CHECKING:
    import numpy as numpy
    from numpy.typing import NDArray
else:

    class _Numpy:
        def __getattr__(self, name: str) -> Any:
            import numpy

            attribute = self.__dict__[name] = getattr(numpy, name)
            return attribute

    numpy = _Numpy()

F64: TypeAlias = "NDArray[numpy.float64]"
U8: TypeAlias = "NDArray[numpy.uint8]"
U16: TypeAlias = "NDArray[numpy.uint16]"
U32: TypeAlias = "NDArray[numpy.uint32]"
U64: TypeAlias = "NDArray[numpy.uint64]"
I64: TypeAlias = "NDArray[numpy.int64]"
Mask: TypeAlias = "NDArray[numpy.bool_]"
Rows: TypeAlias = "NDArray[numpy.void]"
Buffer: TypeAlias = bytes | memoryview
_READ_BYTES = 1 << 20
ROWS_PER_BLOCK = 1 << 18
"""The number of rows that a pass over all rows handles together."""


class SampleArrays(NamedTuple):
    """Canonical samples as arrays. ``keys`` has all keys, joined. Four arrays have one number per sample: the length of
    its key, its first byte, its length, and its number of members. Three arrays have one number per member: the number
    of its field in ``fields``, and the first byte and the length of its payload."""

    keys: bytes
    key_lengths: I64
    starts: I64
    lengths: I64
    counts: I64
    fields: list[bytes]
    codes: I64
    offsets: I64
    sizes: I64


class Piece(NamedTuple):
    """A range of a file: its descriptor, first byte and length in bytes."""

    descriptor: int
    start: int
    length: int

    def read(self) -> Iterator[bytes]:
        """Yield its bytes in pieces. Raises OutputError."""
        position, end = self.start, self.start + self.length
        while position < end:
            data = os.pread(self.descriptor, min(_READ_BYTES, end - position), position)
            if not data:
                raise OutputError("a temporary file was truncated by another program")
            position += len(data)
            yield data


class Column:
    """A growing column: its first numbers in a file, the last ones in memory as ``held``."""

    def __init__(self, code: str) -> None:
        self.held = array(code)
        self._waiting: list[Piece] = []

    def __len__(self) -> int:
        return self.size_bytes // self.held.itemsize

    @property
    def size_bytes(self) -> int:
        return sum(piece.length for piece in self._waiting) + len(self.held) * self.held.itemsize

    def wait(self, scratch: Backing) -> None:
        """Move the numbers in memory to a file. Raises OutputError."""
        if self.held:
            self._waiting.append(scratch.put(self._packed()))
            self.held = array(self.held.typecode)

    def _packed(self) -> Buffer:
        held = self.held
        if sys.byteorder == "big":
            held = array(held.typecode, held)
            held.byteswap()
        return memoryview(held).cast("B")

    def pieces(self) -> Iterator[Buffer]:
        """Yield the whole column, little-endian."""
        for piece in self._waiting:
            yield from piece.read()
        yield self._packed()

    def whole(self) -> Buffer:
        """The column in memory; a view if it is not in a file."""
        return b"".join(self.pieces()) if self._waiting else self._packed()


class Backing:
    """A temporary file in TMPDIR, created with the first piece and deleted with this object."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._end = 0

    def put(self, data: Buffer) -> Piece:
        """Append bytes. Raises OutputError."""
        with failing("write a temporary file", "set the variable TMPDIR to a folder with more free space"):
            if self._file is None:
                from tempfile import TemporaryFile

                self._file = TemporaryFile(buffering=0)  # noqa: SIM115 - it is open as long as this is in use
            unwritten = memoryview(data)
            while unwritten:
                unwritten = unwritten[self._file.write(unwritten) :]
        piece = Piece(self._file.fileno(), self._end, len(data))
        self._end += piece.length
        return piece


def steps(ends: U64 | I64) -> I64:
    """Return the difference between each end and the end before; the first end is compared with 0. This is faster than
    numpy.diff."""
    differences: I64 = ends.astype(numpy.int64)
    differences[1:] = differences[1:] - differences[:-1]
    return differences


def blocks_of(total: int, size: int = 0, first: int = 0) -> Iterator[slice]:
    """Yield slices of ``size`` rows, from row ``first`` to ``total - 1``. A ``size`` of 0 means
    :data:`ROWS_PER_BLOCK`."""
    size = size or ROWS_PER_BLOCK
    for begin in range(first, total, size):
        yield slice(begin, min(begin + size, total))


def edges(apart: Mask, total: int) -> I64:
    """Return the first row of each run in ``total`` rows, and ``total``. ``apart`` says for each row, except row 0,
    whether a run begins there."""
    firsts: I64 = numpy.concatenate(([0], apart.nonzero()[0] + 1, [total]))
    return firsts[: total + 1]


def distinct(numbers: NDArray[Any]) -> Any:
    """Return the different numbers, in rising order. numpy.unique would load numpy.ma, which takes as long as a small
    command."""
    ordered = numpy.sort(numbers)
    return ordered[edges(ordered[1:] != ordered[:-1], len(ordered))[:-1]]


def runs(numbers: NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Yield the first row and the end of each run of equal numbers."""
    bounds = [0, *((numbers[1:] != numbers[:-1]).nonzero()[0] + 1).tolist(), len(numbers)]
    return pairwise(bounds[: len(numbers) + 1])


def spread(firsts: I64 | int, counts: I64) -> I64:
    """Return ranges of whole numbers after each other: ``counts[0]`` numbers that begin with ``firsts[0]``, and so
    on."""
    shifts: I64 = (firsts - counts.cumsum() + counts).repeat(counts)
    return shifts + numpy.arange(len(shifts))


def joined_keys(texts: Sequence[bytes], owners: I64, begins: I64, ends: I64) -> bytes:
    """Join keys. Each key is a slice, from ``begins`` to ``ends``, of the text with the number in ``owners``. If keys
    have different lengths, neighbouring slices are taken together."""
    width = int(ends[0] - begins[0]) if len(ends) else 0
    if width > 0 and (ends - begins == width).all():
        before: I64 = numpy.array([*accumulate(map(len, texts), initial=0)])
        text = b"".join(texts)
        every = numpy.ndarray((len(text) - width + 1,), f"V{width}", text, strides=(1,))
        return bytes(every[begins + before[owners]])
    apart: Mask = (owners[1:] != owners[:-1]) | (begins[1:] != ends[:-1])
    bounds = edges(apart, len(owners))
    firsts, lasts = bounds[:-1], bounds[1:] - 1
    pieces = zip(owners[firsts].tolist(), begins[firsts].tolist(), ends[lasts].tolist())
    return b"".join([texts[owner][begin:end] for owner, begin, end in pieces])


def msgpack_pieces(whole: Mapping[str, Any], packer: Any, added_entries: int = 0) -> Iterator[Buffer]:
    """Yield the pieces of a msgpack map: its head, then its names and values, which may be columns. The head counts
    ``added_entries`` entries, which the caller adds."""
    yield packer.pack_map_header(len(whole) + added_entries)
    for name, value in whole.items():
        yield packer.pack(name)
        if isinstance(value, Column):
            yield _msgpack_head(value.size_bytes)
            yield from value.pieces()
        else:
            yield packer.pack(value)


def _msgpack_head(length: int) -> bytes:
    """Return msgpack's head of a byte string: bin 8, bin 16 or bin 32."""
    if length < 1 << 8:
        return b"\xc4" + length.to_bytes(1, "big")
    if length < 1 << 16:
        return b"\xc5" + length.to_bytes(2, "big")
    return b"\xc6" + length.to_bytes(4, "big")
