"""Payloads that are values: numbers, text, JSON, arrays, tensors; by the last extension of the field.

What it is: :data:`basichandlers`, webdataset's defaults, and :data:`pickles`, which must be named.

    ====================================  ===================================================================
    ``txt text transcript``               str, of UTF-8
    ``cls cls2 index inx id``             int
    ``json jsn``                          the value
    ``npy``                               numpy array, with shape and type of the file
    ``npz``                               dict of numpy arrays
    ``msgpack mp msg``                    the value
    ``cbor``                              the value, by cbor2 or cbor (optional)
    ``pth``                               torch.load(weights_only=True, map_location="cpu")
    ``ten tb tenbin``                     list of numpy arrays (webdataset's tensor bundle)
    ``pyd pickle pkl``                    refused
    ====================================  ===================================================================

A payload can come from anyone, and loading a pickle runs its code. So none is loaded, not inside npy, npz or pth
either, except by ``decode("pickle")``. numpy and torch are imported when a payload needs them. This module must not
know samples.
"""

from __future__ import annotations

import io
import json
from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple

from wdscli.arrays import numpy
from wdscli.codecs.kinds import by_form, names_of
from wdscli.codecs.limits import MAX_DECODED_BYTES, check_zip
from wdscli.codecs.parts import ByExtension, Decode, needed
from wdscli.codecs.tenbin import decode_tensors
from wdscli.errors import DataError, UsageError

PICKLES = names_of("pickle")


def decode_npy(data: bytes) -> Any:
    """One array, which may be changed. Raises DataError or ValueError; arrays of objects are pickles and refused."""
    header = _npy_header(bytes(data[: _npy_start(data)]))
    if header is None:
        return numpy.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    start, dtype, shape, is_fortran = header
    count = prod(shape)
    if len(data) - start < count * dtype.itemsize:
        raise DataError(f"{len(data) - start} bytes where shape {shape} and type {dtype} need more")
    flat = numpy.frombuffer(data, dtype, count, start)
    return flat.reshape(shape[::-1]).copy().transpose() if is_fortran else flat.reshape(shape).copy()


def _npy_start(data: bytes) -> int:
    """The first byte of the numbers in an npy payload, according to its header."""
    width = 2 if data[6:7] == b"\x01" else 4
    return 8 + width + int.from_bytes(data[8 : 8 + width], "little")


class _NpyHeader(NamedTuple):
    """The header of an npy payload: first byte of the numbers, type, shape, and whether columns come first."""

    start: int
    dtype: Any
    shape: tuple[int, ...]
    is_fortran: bool


@lru_cache(maxsize=256)
def _npy_header(header: bytes) -> _NpyHeader | None:
    """Parse a header; None if numpy must decode the payload: objects, types without a size, invalid headers.
    Parsing takes longer than copying a small array, and the headers of a set are mostly equal."""
    from numpy.lib import format as npy

    stream = io.BytesIO(header)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    try:
        shape, is_fortran, dtype = readers[npy.read_magic(stream)](stream)  # type: ignore[no-untyped-call,unused-ignore]
    except (KeyError, ValueError):
        return None
    if dtype.hasobject or not dtype.itemsize:
        return None
    return _NpyHeader(len(header), dtype, shape, is_fortran)


def decode_npz(data: bytes, limit: int = MAX_DECODED_BYTES) -> dict[str, Any]:
    """Arrays by name, of at most ``limit`` bytes together."""
    check_zip(data, limit)
    with io.BytesIO(data) as stream:
        found = numpy.load(stream, allow_pickle=False)
        if not hasattr(found, "files"):
            raise DataError("it is one array, not an archive of arrays")
        return dict(found)


def decode_msgpack(data: bytes) -> Any:
    """The value: text as str, bytes as bytes."""
    import msgpack

    return msgpack.unpackb(data)


def decode_cbor(data: bytes) -> Any:
    """The value, by cbor2 or the older cbor package."""
    try:
        import cbor  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        cbor = needed("cbor2", "a cbor field", "cbor2")
    return cbor.loads(data)


def decode_torch(data: bytes, limit: int = MAX_DECODED_BYTES) -> Any:
    """The value that ``torch.save`` wrote, if it has only tensors and plain containers; a compressed one, which
    torch does not write, of at most ``limit`` bytes."""
    torch = needed("torch", "a pth field", "torch")
    check_zip(data, limit)
    try:
        return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except Exception as error:
        raise DataError(
            f"torch.load(weights_only=True) refuses it: {str(error).partition(chr(10))[0]}",
            hint='for data you trust, use your own function: decode(handle_extension("pth", f))',
        ) from error


def decode_pickle(data: bytes) -> Any:
    """The value of a pickle, which runs its code."""
    import pickle

    return pickle.loads(data)


def refuse_pickle(data: bytes) -> Any:
    """Raise UsageError: pickles need an explicit decoder."""
    raise UsageError(
        "loading a pickle runs its code, so it needs an explicit decoder",
        hint='use decode("pickle") for data you trust; or skip the field with fields=[...] or only=[...]',
    )


_LIMITED: dict[str, Decode] = {"npz": decode_npz, "torch": decode_torch}
"""Functions by form that take a limit in bytes."""
_BY_FORM: dict[str, Decode] = {
    "bundle": decode_tensors,
    "cbor": decode_cbor,
    "integer": int,
    "json": json.loads,
    "msgpack": decode_msgpack,
    "npy": decode_npy,
    "pickle": refuse_pickle,
    "text": partial(str, encoding="utf-8"),
    **_LIMITED,
}
DEFAULTS = by_form(_BY_FORM)

basichandlers = ByExtension(DEFAULTS, limited=names_of(*_LIMITED))
"""webdataset's name of the default handlers."""
pickles = ByExtension(dict.fromkeys(PICKLES, decode_pickle))
"""``decode("pickle")``: for data from a trusted source."""
