"""Payloads that are values: numbers, text, JSON, arrays, tensors; by the last extension of the field.

What it is: :data:`basichandlers`, webdataset's defaults, and :data:`pickles`, which has to be asked for by name.

    ====================================  ===================================================================
    ``txt text transcript``               str, of UTF-8
    ``cls cls2 index inx id``             int
    ``json jsn``                          what json makes of it
    ``npy``                               numpy array, with shape and type of the file
    ``npz``                               dict of numpy arrays
    ``msgpack mp msg``                    what msgpack makes of it
    ``cbor``                              what cbor2 (or cbor) makes of it, optional
    ``pth``                               what torch.load(weights_only=True, map_location="cpu") makes of it
    ``ten tb tenbin``                     list of numpy arrays (webdataset's tensor bundle)
    ``pyd pickle pkl``                    refused
    ====================================  ===================================================================

A payload can come from anyone, and a pickle runs what it likes when it is loaded: none is, wherever it hides (npy, npz,
pth), unless ``decode("pickle")`` names it. numpy and torch are imported when a payload needs them. This module must not
know of samples.
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
    """One array, which may be changed. Arrays of objects are pickles, and an error."""
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
    """Where the numbers of an npy payload begin, as its header says."""
    width = 2 if data[6:7] == b"\x01" else 4
    return 8 + width + int.from_bytes(data[8 : 8 + width], "little")


class _NpyHeader(NamedTuple):
    """Where the numbers of an npy payload begin, their type and shape, and whether columns come first."""

    start: int
    dtype: Any
    shape: tuple[int, ...]
    is_fortran: bool


@lru_cache(maxsize=256)
def _npy_header(header: bytes) -> _NpyHeader | None:
    """What a header says; None for what is left to numpy: objects, types of no size, and what is no header. To read
    one takes longer than to copy a small array, and those of one set are mostly the same."""
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
    """Arrays by name, of ``limit`` bytes together at most."""
    check_zip(data, limit)
    with io.BytesIO(data) as stream:
        found = numpy.load(stream, allow_pickle=False)
        if not hasattr(found, "files"):
            raise DataError("one array, not an archive of arrays")
        return dict(found)


def decode_msgpack(data: bytes) -> Any:
    """What msgpack makes of it: text as str, bytes as bytes."""
    import msgpack

    return msgpack.unpackb(data)


def decode_cbor(data: bytes) -> Any:
    """What cbor2 makes of it, or the older cbor package."""
    try:
        import cbor  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        cbor = needed("cbor2", "a cbor field", "cbor2")
    return cbor.loads(data)


def decode_torch(data: bytes, limit: int = MAX_DECODED_BYTES) -> Any:
    """What ``torch.save`` wrote, as long as it is tensors and plain containers of them; one that is compressed, which
    torch does not do, of ``limit`` bytes at most."""
    torch = needed("torch", "a pth field", "torch")
    check_zip(data, limit)
    try:
        return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except Exception as error:
        raise DataError(
            f"torch.load(weights_only=True) refuses it: {str(error).partition(chr(10))[0]}",
            hint='if you trust who made it, name a function of your own: decode(handle_extension("pth", f))',
        ) from error


def decode_pickle(data: bytes) -> Any:
    """Whatever the pickle makes, and does."""
    import pickle

    return pickle.loads(data)


def refuse_pickle(data: bytes) -> Any:
    """Raises UsageError: nobody asked for it."""
    raise UsageError(
        "a pickle can run any program and is loaded only by an explicit decode",
        hint='decode("pickle") if you trust who made it; fields=[...] or only=[...] leave it alone',
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
"""webdataset's name for the defaults, as a handler."""
pickles = ByExtension(dict.fromkeys(PICKLES, decode_pickle))
"""``decode("pickle")``: whoever names it trusts who made the data."""
