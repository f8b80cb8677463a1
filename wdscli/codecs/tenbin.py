"""This module has webdataset's tensor bundles (``.ten``, ``.tb``): several arrays in one payload.

:func:`encode_tensors` makes a bundle and :func:`decode_tensors` reads it. All numbers of the format are int64,
little-endian:

    bundle:  for each array a header chunk, then a data chunk
    chunk:   "~TenBin~", length in bytes, that many bytes, zeros up to a multiple of 64 bytes
    header:  8 bytes type ("f4", "u1", ... and zeros), 8 bytes for the user, number of dimensions, the dimensions

A length is compared with the remaining bytes before it is used. This module does not know the names of fields.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from wdscli.arrays import numpy
from wdscli.errors import DataError, UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAGIC = b"~TenBin~"
TYPES = {b"f2", b"f4", b"f8", b"i1", b"i2", b"i4", b"i8", b"u1", b"u2", b"u4", b"u8"}
MAX_DIMENSIONS = 9
ALIGNED_BYTES = 64


def encode_tensors(arrays: Sequence[NDArray[Any]]) -> bytes:
    """Return a bundle of the arrays. Raises UsageError for a type or a number of dimensions that the format cannot
    hold."""
    parts: list[bytes] = []
    for array in arrays:
        kind = array.dtype.str[1:].encode("ascii")
        if kind not in TYPES or array.ndim > MAX_DIMENSIONS:
            raise UsageError(
                f"a tensor bundle cannot hold {array.dtype} with {array.ndim} dimensions",
                hint="it holds numbers of 1 to 8 bytes, and up to 9 dimensions; use npy for other arrays",
            )
        header = struct.pack(f"<8s8sq{array.ndim}q", kind, b"", array.ndim, *array.shape)
        little = numpy.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        parts += _chunk(header), _chunk(little.tobytes())
    return b"".join(parts)


def _chunk(data: bytes) -> bytes:
    return MAGIC + struct.pack("<q", len(data)) + data + bytes(-len(data) % ALIGNED_BYTES)


def decode_tensors(data: bytes) -> list[NDArray[Any]]:
    """Return the arrays in a bundle. Each array has its own memory. Raises DataError for other data."""
    arrays = []
    chunks = _chunks(memoryview(data))
    for header in chunks:
        kind, shape = _header(header)
        payload = next(chunks, None)
        dtype = numpy.dtype("<" + kind)
        if payload is None or len(payload) != prod(shape) * dtype.itemsize:
            held = "no" if payload is None else len(payload)
            raise DataError(f"a tensor of shape {shape} and type {kind} has {held} bytes")
        arrays.append(numpy.frombuffer(payload, dtype).reshape(shape).copy())
    return arrays


def _chunks(data: memoryview) -> Iterator[memoryview]:
    offset = 0
    while offset < len(data):
        if data[offset : offset + 8] != MAGIC or len(data) < offset + 16:
            raise DataError(f"the tensor bundle has no chunk at byte {offset}")
        (length,) = struct.unpack_from("<q", data, offset + 8)
        offset += 16
        if not 0 <= length <= len(data) - offset:
            raise DataError(f"a chunk has {length} bytes, but only {len(data) - offset} are left")
        yield data[offset : offset + length]
        offset += length + -length % ALIGNED_BYTES


def _header(header: memoryview) -> tuple[str, tuple[int, ...]]:
    if len(header) < 24:
        raise DataError("the header of a tensor is truncated")
    kind, _, dimensions = struct.unpack_from("<8s8sq", header)
    kind = kind.rstrip(b"\0")
    if kind not in TYPES or not 0 <= dimensions <= MAX_DIMENSIONS or len(header) < 24 + 8 * dimensions:
        raise DataError(f"the header of a tensor is invalid: type {kind!r}, {dimensions} dimensions")
    shape: tuple[int, ...] = struct.unpack_from(f"<{dimensions}q", header, 24)
    if any(size < 0 for size in shape):
        raise DataError(f"a tensor has the impossible shape {shape}")
    return kind.decode("ascii"), shape
