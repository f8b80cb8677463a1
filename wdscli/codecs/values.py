"""This module decodes payloads to values and encodes values to payloads, by the last extension of the field.

    ====================================  ========================================  =================================
    field                                 decoded                                   encoded
    ====================================  ========================================  =================================
    ``txt text transcript``               str, of UTF-8                             UTF-8 (also ``html htm``)
    ``cls cls2 index inx id``             int                                       ASCII (also ``class count``)
    ``json jsn``                          the value                                 json.dumps, keys in the order given
    ``npy``                               numpy array, with the file's shape, type  a numpy array
    ``npz``                               dict of numpy arrays                      a dict of arrays, compressed
    ``msgpack mp msg``, ``cbor``          the value (cbor2 or cbor)                 the value (cbor2)
    ``pth``                               torch.load(weights_only=True,             torch.save
                                          map_location="cpu")
    ``ten tb tenbin``                     list of numpy arrays                      an array or a list of arrays
    ``pyd pickle pkl``                    refused                                   refused, unless named
    ``jpg jpeg png ppm pgm pbm ...``      by :class:`~wdscli.codecs.images.Images`  by encode_image
    ====================================  ========================================  =================================

Loading a pickle runs the code in it, and payloads may come from people whom you do not trust. So pickles are loaded
only by ``decode("pickle")``. Pickles inside npy, npz and pth are not loaded either.

:func:`encode_field` is the one place where a value becomes the payload of a field: for the writers (by
:func:`make_encoder`, which has webdataset's signature), for ``map --python``, and for the cells of tables
(:mod:`~wdscli.codecs.cells`). It writes bytes unchanged, and compresses fields with the extension ``.gz``. Text is
written as UTF-8. As in webdataset, text in fields of unknown type is written as UTF-8 too. In a ``json`` field, text
must be JSON. A value that the field's decoder could not give back is an error, and so is text for sound, film, pictures
and arrays, because it is usually the name of a file. The same value always gives the same bytes, because archives and
compression store no time. Tensors are accepted like arrays.

webdataset's tensor bundles (``.ten``, ``.tb``) have several arrays in one payload. All numbers of the format are int64,
little-endian. A length is compared with the remaining bytes before it is used:

    bundle:  for each array a header chunk, then a data chunk
    chunk:   "~TenBin~", length in bytes, that many bytes, zeros up to a multiple of 64 bytes
    header:  8 bytes type ("f4", "u1", ... and zeros), 8 bytes for the user, number of dimensions, the dimensions

numpy and torch are imported when a payload needs them. This module does not know samples.
"""

from __future__ import annotations

import io
import json
import re
import struct
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from functools import lru_cache, partial
from math import prod
from typing import TYPE_CHECKING, Any

from wdscli.arrays import numpy
from wdscli.codecs.handlers import MAX_DECODED_BYTES, ByExtension, Decode, check_zip, held_extension, needed
from wdscli.codecs.images import encode_image
from wdscli.codecs.kinds import KINDS, FieldKind, by_form, find, names_of
from wdscli.errors import DataError, UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Encode = Callable[[Any], Any]
Payload = (bytes, bytearray, memoryview)
GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff"
"""The gzip header of RFC 1952 for: deflate, no name, no time, best compression, unknown system."""
NUMBERS = names_of("integer", "number")
PICKLES = names_of("pickle")
_MAX_DIGITS = 400
"""The most digits of a whole number in scientific notation that is written in full."""
_MAX_FILE_NAME_BYTES = 1024
_FILE_NAME = re.compile(r"[/\\]|\.\w{1,11}$")
"""Matches text that names a file: it has a slash, or an extension."""
_SHOWN_CHARACTERS = 40
_BUNDLE_MAGIC = b"~TenBin~"
_BUNDLE_TYPES = {b"f2", b"f4", b"f8", b"i1", b"i2", b"i4", b"i8", b"u1", b"u2", b"u4", b"u8"}
_MAX_DIMENSIONS = 9
_ALIGNED_BYTES = 64


def decode_npy(data: bytes) -> Any:
    """Return the array, which is writable. Raises DataError or ValueError for an invalid payload, and for an array of
    objects, because that is a pickle."""
    header = _npy_header(bytes(data[: _npy_start(data)]))
    if header is None:
        return numpy.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    start, dtype, shape, is_fortran = header
    count = prod(shape)
    if len(data) - start < count * dtype.itemsize:
        raise DataError(
            f"{len(data) - start} bytes are too few for an array of shape {shape} and type {dtype}"
        )
    flat = numpy.frombuffer(data, dtype, count, start)
    return flat.reshape(shape[::-1]).copy().transpose() if is_fortran else flat.reshape(shape).copy()


def _npy_start(data: bytes) -> int:
    """Return the offset of the numbers in an npy payload, according to its header."""
    width = 2 if data[6:7] == b"\x01" else 4
    return 8 + width + int.from_bytes(data[8 : 8 + width], "little")


@lru_cache(maxsize=256)
def _npy_header(header: bytes) -> tuple[int, Any, tuple[int, ...], bool] | None:
    """Parse a header. Return the offset of the numbers, their type, the shape, and whether they are in Fortran's order.
    Return None if numpy itself must decode the payload: objects, types without a size, invalid headers. Results are
    cached, because parsing takes longer than copying a small array, and most headers of a set are equal."""
    from numpy.lib import format as npy

    stream = io.BytesIO(header)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    try:
        shape, is_fortran, dtype = readers[npy.read_magic(stream)](stream)  # type: ignore[no-untyped-call,unused-ignore]
    except (KeyError, ValueError):
        return None
    if dtype.hasobject or not dtype.itemsize:
        return None
    return len(header), dtype, shape, is_fortran


def decode_npz(data: bytes, limit: int = MAX_DECODED_BYTES) -> dict[str, Any]:
    """Return the arrays by name. Raises DataError if the arrays have more than ``limit`` bytes together."""
    check_zip(data, limit)
    with io.BytesIO(data) as stream:
        arrays = numpy.load(stream, allow_pickle=False)
        if not hasattr(arrays, "files"):
            raise DataError("it is one array, not an archive of arrays")
        return dict(arrays)


def decode_msgpack(data: bytes) -> Any:
    """Return the value. Text becomes str, and binary data become bytes."""
    import msgpack

    return msgpack.unpackb(data)


def decode_cbor(data: bytes) -> Any:
    """Return the value, decoded by the package cbor or cbor2."""
    try:
        import cbor  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        cbor = needed("cbor2", "a cbor field", "cbor2")
    return cbor.loads(data)


def decode_torch(data: bytes, limit: int = MAX_DECODED_BYTES) -> Any:
    """Return the value that ``torch.save`` wrote. Only tensors and plain containers are allowed. A compressed payload,
    which torch does not write, may have at most ``limit`` bytes when it is decompressed. Raises DataError."""
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
    """Load a pickle, which runs the code in it."""
    import pickle

    return pickle.loads(data)


def refuse_pickle(data: bytes) -> Any:
    """Raise UsageError, because pickles need an explicit decoder."""
    raise UsageError(
        "loading a pickle runs its code, so it needs an explicit decoder",
        hint='use decode("pickle") for data you trust; or skip the field with fields=[...] or only=[...]',
    )


def encode_tensors(arrays: Sequence[NDArray[Any]]) -> bytes:
    """Return a bundle of the arrays. Raises UsageError for a type or a number of dimensions that the format cannot
    hold."""
    parts: list[bytes] = []
    for array in arrays:
        kind = array.dtype.str[1:].encode("ascii")
        if kind not in _BUNDLE_TYPES or array.ndim > _MAX_DIMENSIONS:
            raise UsageError(
                f"a tensor bundle cannot hold {array.dtype} with {array.ndim} dimensions",
                hint="it holds numbers of 1 to 8 bytes, and up to 9 dimensions; use npy for other arrays",
            )
        header = struct.pack(f"<8s8sq{array.ndim}q", kind, b"", array.ndim, *array.shape)
        little = numpy.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        parts += _chunk(header), _chunk(little.tobytes())
    return b"".join(parts)


def _chunk(data: bytes) -> bytes:
    return _BUNDLE_MAGIC + struct.pack("<q", len(data)) + data + bytes(-len(data) % _ALIGNED_BYTES)


def decode_tensors(data: bytes) -> list[NDArray[Any]]:
    """Return the arrays in a bundle. Each array has its own memory. Raises DataError for other data."""
    arrays = []
    chunks = _chunks(memoryview(data))
    for header in chunks:
        kind, shape = _tensor_header(header)
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
        if data[offset : offset + 8] != _BUNDLE_MAGIC or len(data) < offset + 16:
            raise DataError(f"the tensor bundle has no chunk at byte {offset}")
        (length,) = struct.unpack_from("<q", data, offset + 8)
        offset += 16
        if not 0 <= length <= len(data) - offset:
            raise DataError(f"a chunk has {length} bytes, but only {len(data) - offset} are left")
        yield data[offset : offset + length]
        offset += length + -length % _ALIGNED_BYTES


def _tensor_header(header: memoryview) -> tuple[str, tuple[int, ...]]:
    if len(header) < 24:
        raise DataError("the header of a tensor is truncated")
    kind, _, dimensions = struct.unpack_from("<8s8sq", header)
    kind = kind.rstrip(b"\0")
    if (
        kind not in _BUNDLE_TYPES
        or not 0 <= dimensions <= _MAX_DIMENSIONS
        or len(header) < 24 + 8 * dimensions
    ):
        raise DataError(f"the header of a tensor is invalid: type {kind!r}, {dimensions} dimensions")
    shape: tuple[int, ...] = struct.unpack_from(f"<{dimensions}q", header, 24)
    if any(size < 0 for size in shape):
        raise DataError(f"a tensor has the impossible shape {shape}")
    return kind.decode("ascii"), shape


_LIMITED: dict[str, Decode] = {"npz": decode_npz, "torch": decode_torch}
"""The decoders that take a limit in bytes, by form."""
_DECODE: dict[str, Decode] = {
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
DEFAULTS = by_form(_DECODE)

basichandlers = ByExtension(DEFAULTS, limited=names_of(*_LIMITED))
"""The default handlers, under webdataset's name."""
pickles = ByExtension(dict.fromkeys(PICKLES, decode_pickle))
"""The handler for ``decode("pickle")``, which is only for data from a trusted source."""


def encode_integer(value: Any) -> bytes:
    """Return a whole number as text that ``int`` reads. Raises UsageError like :func:`encode_number`, and for fractions
    and other text."""
    data = encode_number(value)
    try:
        int(data)
    except ValueError:
        raise _not_a_number(value, "a whole number") from None
    return data


def encode_number(value: Any) -> bytes:
    """Return a number as text. Whole numbers have no decimal point, because readers parse them with ``int``. The number
    may also be text, or an array or tensor with one element. Text that is no number is kept. Raises UsageError for
    other values, such as None and NaN."""
    if not isinstance(value, (int, str)) and hasattr(value, "item"):
        value = value.item()
    if value is None or isinstance(value, bool):
        raise _not_a_number(value)
    if isinstance(value, int):
        return b"%d" % value
    text = str(value)
    try:
        number = Decimal(value if isinstance(value, float) else text)
    except InvalidOperation:
        if isinstance(value, str):
            return text.encode("utf-8")
        raise _not_a_number(value) from None
    if not number.is_finite():
        raise _not_a_number(value)
    is_long_form = "." in text or "e" in text.lower()
    if is_long_form and number.adjusted() < _MAX_DIGITS and number == number.to_integral_value():
        return b"%d" % int(number)
    return text.encode("utf-8")


def _not_a_number(value: Any, what: str = "a number") -> UsageError:
    hint = "use a txt field for any text, or a json field for any value"
    if value is None:
        hint = "leave the field out of samples that have no value"
    elif isinstance(value, str):
        hint = (
            "write the number of a class; `wds create --column cls=COLUMN` numbers names; txt takes any text"
        )
    return UsageError(f"{shown_value(value)} is not {what}", hint=hint)


def shown_value(value: Any) -> str:
    """Return a value as short text for a message."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


def encode_text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise UsageError(f"text must be str, not {type(value).__name__}")
    return value.encode("utf-8")


def encode_json(value: Any) -> bytes:
    """Return a value as JSON in ASCII. A value that is text must already be JSON, and is kept. Raises UsageError for
    values that JSON cannot hold, such as NaN and infinity."""
    if not isinstance(value, str):
        try:
            return json.dumps(value, allow_nan=False).encode("ascii")
        except ValueError as error:
            hint = "JSON has no NaN and no infinity: use None, or an npy or msgpack field"
            raise UsageError(f"it cannot be written as JSON: {error}", hint=hint) from error
    try:
        json.loads(value, parse_constant=_refuse_constant)
    except ValueError as error:
        raise UsageError(
            f"text in a json field must be JSON: {error}", hint="use json.dumps(text), or a txt field"
        ) from error
    return value.encode("utf-8")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def numpy_dumps(value: Any) -> bytes:
    """Return an array as npy. Raises UsageError for an array of objects, because it would be pickled."""
    stream = io.BytesIO()
    array = as_array(value)
    if array.dtype.hasobject:
        raise UsageError(
            f"an array of {array.dtype} could only be written as a pickle",
            hint="use numbers, or text of fixed length",
        )
    numpy.lib.format.write_array(stream, array, allow_pickle=False)
    return stream.getvalue()


def encode_npz(value: Any) -> bytes:
    """Return a dict of arrays as npz. The bytes do not depend on the time, because numpy writes the year 1980 for all
    entries."""
    if not isinstance(value, Mapping):
        raise UsageError(f"npz takes a dict of arrays, not {type(value).__name__}")
    arrays = {str(name): as_array(array) for name, array in value.items()}
    if any(array.dtype.hasobject for array in arrays.values()):
        raise UsageError("an array of objects could only be written as a pickle")
    stream = io.BytesIO()
    numpy.savez_compressed(stream, **arrays)  # type: ignore[arg-type,unused-ignore]
    return stream.getvalue()


def encode_msgpack(value: Any) -> bytes:
    import msgpack

    return _readable(bytes(msgpack.packb(value)), decode_msgpack, "use text as keys, or a json field")


def encode_cbor(value: Any) -> bytes:
    data = bytes(needed("cbor2", "a cbor field", "cbor2").dumps(value))
    return _readable(data, decode_cbor, "use a json or msgpack field")


def encode_torch(value: Any) -> bytes:
    data = torch_dumps(value)
    if _is_plain(value, sys.modules["torch"].Tensor):
        return data
    hint = "use tensors (torch.from_numpy(array)) in plain containers, or an npy or npz field"
    return _readable(data, decode_torch, hint)


def _is_plain(value: Any, tensor: type) -> bool:
    """Return whether a value has only tensors, numbers and text, so that reading it back, which is slow, tells
    nothing."""
    if type(value) is dict:
        return all(_is_plain(part, tensor) for pair in value.items() for part in pair)
    if type(value) in (list, tuple):
        return all(_is_plain(part, tensor) for part in value)
    return value is None or type(value) in (tensor, bool, int, float, str)


def _readable(data: bytes, decode: Decode, hint: str) -> bytes:
    """Return ``data``, which encodes a value. Raises UsageError if ``decode`` cannot read it."""
    try:
        decode(data)
    except Exception as error:
        why = error.message if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
        raise UsageError(f"decode() could not read the value: {why}", hint=hint) from error
    return data


def torch_dumps(value: Any) -> bytes:
    """Return the bytes that ``torch.save`` writes."""
    stream = io.BytesIO()
    needed("torch", "a pth field", "torch").save(value, stream)
    return stream.getvalue()


def encode_bundle(value: Any) -> bytes:
    return encode_tensors(
        [as_array(part) for part in (value if isinstance(value, (list, tuple)) else [value])]
    )


def encode_pickle(value: Any) -> bytes:
    import pickle

    return pickle.dumps(value)


def refuse_to_pickle(value: Any) -> bytes:
    raise UsageError(
        "reading a pickle runs its code, so writing one needs an explicit encoder",
        hint='use json, msgpack, npy, npz or pth; or encoder="pickle"',
    )


def as_array(value: Any) -> Any:
    """Return an array or a tensor as a numpy array. Raises UsageError for other values."""
    if isinstance(value, (numpy.ndarray, numpy.generic)):
        return numpy.asarray(value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    raise UsageError(
        f"the value must be an array or a tensor, not {type(value).__name__}", hint="numpy.asarray(value)"
    )


_ENCODE: dict[str, Encode] = {
    "bundle": encode_bundle,
    "cbor": encode_cbor,
    "integer": encode_integer,
    "json": encode_json,
    "markup": encode_text,
    "msgpack": encode_msgpack,
    "npy": numpy_dumps,
    "npz": encode_npz,
    "number": encode_number,
    "pickle": refuse_to_pickle,
    "text": encode_text,
    "torch": encode_torch,
}
ENCODERS: dict[str, Encode] = {
    **by_form(_ENCODE),
    **{name: partial(encode_image, kind=name) for name, kind in KINDS.items() if kind.pillow},
}
"""The encoders by extension: functions that convert a value to a payload."""
WITH_PICKLES: dict[str, Encode] = {**ENCODERS, **by_form({"pickle": encode_pickle})}


def gzipped(data: Any) -> bytes:
    """Return ``data`` as a gzip stream with a header that is the same in every version of Python."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    body = deflate.compress(data) + deflate.flush()
    return GZIP_HEADER + body + struct.pack("<II", zlib.crc32(data), len(data) & 0xFFFFFFFF)


def encode_field(value: Any, field: str, encoders: Mapping[str, Encode] = ENCODERS) -> Any:
    """Return the payload of one field. Raises UsageError for values that its type cannot hold, and for values that the
    field's decoder could not give back. In a field of unknown type, only text and bytes are allowed."""
    name, packed, kind = _type_of(field)
    encode = encoders.get(name)
    if isinstance(value, Payload):
        if kind.is_binary and len(value) <= _MAX_FILE_NAME_BYTES:
            check_content(value, name, kind)
    elif isinstance(value, str) and kind.is_binary and encode is ENCODERS.get(name):
        value = value.encode("utf-8")
        _refuse_text(value, name, kind)
    elif encode is not None:
        value = encode(value)
    elif isinstance(value, str):
        value = value.encode("utf-8")
    else:
        raise UsageError(
            f"there is no encoder for {type(value).__name__} as {name}",
            hint="use a field of a known type (image.png, label.cls, data.json, x.npy), or bytes",
        )
    return gzipped(value) if packed else value


@lru_cache(maxsize=1024)
def _type_of(field: str) -> tuple[str, bool, FieldKind]:
    """Return the extension of a field's content, whether the content is compressed, and the kind of the content."""
    name, packed = held_extension(field)
    return name, packed, find(name)


def check_content(payload: Any, name: str, kind: FieldKind) -> None:
    """Raise UsageError if these bytes are the name of a file, but the type ``name`` of this kind is never text."""
    if not kind.is_binary or not 0 < len(payload) <= _MAX_FILE_NAME_BYTES:
        return
    with suppress(UnicodeDecodeError):
        text = bytes(payload).decode("utf-8")
        if text.isprintable() and _FILE_NAME.search(text):
            _refuse_text(bytes(payload), name, kind)


def _refuse_text(text: bytes, name: str, kind: FieldKind) -> None:
    """Raise UsageError, unless the text begins as a payload of this kind, such as a picture of numbers (``P1``)."""
    signs = [*((0, begin) for begin in kind.begins), *kind.signs]
    if not any(text.startswith(sign, offset) for offset, sign in signs):
        raise UsageError(
            f"{shown_value(text.decode('utf-8'))} is text, not {name}",
            hint="write the content of a file, not its name: --column EXT=@COLUMN; in Python, its bytes",
        )


def encode_sample(sample: Mapping[str, Any], encoders: Mapping[str, Encode] = ENCODERS) -> dict[str, Any]:
    """Encode the fields of a sample by extension. Fields with a leading underscore, such as ``__key__``, stay
    unchanged. Raises UsageError, which names the key and the field."""
    encoded: dict[str, Any] = {}
    for field, value in sample.items():
        try:
            encoded[field] = value if field.startswith("_") else encode_field(value, field, encoders)
        except Exception as error:
            is_explained = isinstance(error, UsageError)
            why = str(error) if is_explained else f"{type(error).__name__}: {error}"
            raise UsageError(
                f'field "{field}" of sample "{sample.get("__key__")}" cannot be encoded: {why}',
                hint=error.hint if isinstance(error, UsageError) else None,
            ) from error
    return encoded


def make_encoder(spec: bool | str | Mapping[str, Encode] | Encode | None = True) -> Encode:
    """Return a function that encodes the fields of a sample. For ``True``, the function encodes by extension; for
    ``"pickle"``, the function also writes pickles; for ``False`` or None, the function changes nothing. If ``spec`` is
    a dict, it has encoders by extension. If ``spec`` is a function, it is returned unchanged. Raises UsageError."""
    if spec is None or spec is False:
        return dict
    if spec is True:
        return encode_sample
    if spec == "pickle":
        return partial(encode_sample, encoders=WITH_PICKLES)
    if isinstance(spec, Mapping):
        return partial(encode_sample, encoders=spec)
    if callable(spec):
        return spec
    raise UsageError(
        f"no such encoder: {spec!r}",
        hint='use True, False, "pickle", a function, or a dict from extensions to functions',
    )
