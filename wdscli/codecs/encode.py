"""From values to payloads: the encoders of a writer, by field.

What it is: :func:`make_encoder`, with webdataset's signature, and :data:`ENCODERS`, by last extension.

    ==============================================  =========================================================
    ``cls cls2 class count id index inx``           the number in ASCII
    ``txt text transcript html htm``                UTF-8
    ``json jsn``                                    JSON as json.dumps writes it, keys in the order given
    ``npy``, ``npz``                                a numpy array; a dict of arrays, compressed
    ``msgpack mp msg``, ``cbor``                    anything these can say
    ``pth``                                         torch.save
    ``ten tb tenbin``                               an array or a list of arrays (webdataset's tensor bundle)
    ``jpg jpeg png ppm pgm pbm tif tiff webp ...``  a picture: see :func:`encode_image`
    ``... .gz``                                     any of these, compressed
    ``pyd pickle``                                  refused, unless ``"pickle"`` is named
    ==============================================  =========================================================

Bytes are written unchanged under any name. Text is written as UTF-8, also in fields of no known type, as webdataset
does; in a ``json`` field it must be JSON, and other types (npy, msgpack, png, ...) encode it as a value. Pictures are
arrays of (height, width) or (height, width, 1, 3 or 4): uint8, or floats from 0 to 1, which are rounded to the
nearest of 256 steps (webdataset rounds down, so that pictures get darker each time). Tensors may also have the
channels first, (1, 3 or 4, height, width). JPEG is written with quality 100, as webdataset does, WebP without loss;
``jpg`` of a picture with transparency is an error.

The same value always gives the same bytes: archives and compression store no time. Tensors are accepted like arrays. It
must not know how samples are written.
"""

from __future__ import annotations

import io
import json
import struct
import sys
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from wdscli.arrays import numpy
from wdscli.codecs.kinds import KINDS, by_form, find, names_of
from wdscli.codecs.parts import INSTALL_IMAGES, held_extension, needed
from wdscli.codecs.tenbin import encode_tensors
from wdscli.errors import UsageError

Encode = Callable[[Any], Any]
Payload = (bytes, bytearray, memoryview)
GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff"
"""RFC 1952: deflate, no name, no time, best compression, unknown system."""
NUMBERS = names_of("integer", "number")
TEXTS = names_of("text", "markup") | NUMBERS
"""Types in which text is stored as text."""
IMAGE_OPTIONS: dict[str, dict[str, Any]] = {"JPEG": {"quality": 100}, "WEBP": {"lossless": True}}
FLOAT_SLACK = 0.001
"""Tolerance for floats outside of 0 to 1."""


def encode_number(value: Any) -> bytes:
    """``str`` of a number; also of an array or tensor with one element."""
    if not isinstance(value, (int, str)) and hasattr(value, "item"):
        value = value.item()
    return str(value).encode("ascii")


def encode_text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise UsageError(f"text must be str, not {type(value).__name__}")
    return value.encode("utf-8")


def encode_json(value: Any) -> bytes:
    """JSON in ASCII. Text must already be JSON. Raises UsageError, also for NaN and infinity, which JSON cannot
    hold."""
    if not isinstance(value, str):
        try:
            return json.dumps(value, allow_nan=False).encode("ascii")
        except ValueError as error:
            hint = "JSON has no NaN and no infinity: use None, or an npy or msgpack field"
            raise UsageError(f"json cannot hold it: {error}", hint=hint) from error
    try:
        json.loads(value, parse_constant=_refuse_constant)
    except ValueError as error:
        raise UsageError(
            f"text in a json field must be JSON: {error}",
            hint="use json.dumps(text), or a txt field",
        ) from error
    return value.encode("utf-8")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def numpy_dumps(value: Any) -> bytes:
    """An array as npy. Raises UsageError for arrays of objects, which would be pickled."""
    stream = io.BytesIO()
    array = as_array(value)
    if array.dtype.hasobject:
        raise UsageError(
            f"an array of {array.dtype} would be a pickle", hint="numbers, or text of fixed length"
        )
    numpy.lib.format.write_array(stream, array, allow_pickle=False)
    return stream.getvalue()


def encode_npz(value: Any) -> bytes:
    """A dict of arrays. numpy writes no time into the archive: its entries are of 1980."""
    if not isinstance(value, Mapping):
        raise UsageError(f"npz takes a dict of arrays, not {type(value).__name__}")
    arrays = {str(name): as_array(array) for name, array in value.items()}
    if any(array.dtype.hasobject for array in arrays.values()):
        raise UsageError("an array of objects would be a pickle")
    stream = io.BytesIO()
    numpy.savez_compressed(stream, **arrays)  # type: ignore[arg-type,unused-ignore]
    return stream.getvalue()


def encode_msgpack(value: Any) -> bytes:
    import msgpack

    return bytes(msgpack.packb(value))


def encode_cbor(value: Any) -> bytes:
    return bytes(needed("cbor2", "a cbor field", "cbor2").dumps(value))


def torch_dumps(value: Any) -> bytes:
    """The bytes that ``torch.save`` writes."""
    stream = io.BytesIO()
    needed("torch", "a pth field", "torch").save(value, stream)
    return stream.getvalue()


def encode_bundle(value: Any) -> bytes:
    return encode_tensors([as_array(one) for one in (value if isinstance(value, (list, tuple)) else [value])])


def encode_pickle(value: Any) -> bytes:
    import pickle

    return pickle.dumps(value)


def refuse_pickle(value: Any) -> bytes:
    raise UsageError(
        "reading a pickle runs its code, so it is written only by an explicit encoder",
        hint='use json, msgpack, npy, npz or pth; or encoder="pickle"',
    )


def as_array(value: Any) -> Any:
    """The numpy array of an array or a tensor. Raises UsageError for other values."""
    if isinstance(value, (numpy.ndarray, numpy.generic)):
        return numpy.asarray(value)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    raise UsageError(
        f"the value must be an array or a tensor, not {type(value).__name__}", hint="numpy.asarray(value)"
    )


def encode_image(picture: Any, kind: str) -> bytes:
    """``picture`` as the type of the extension ``kind``. Raises UsageError for a value that is no picture, or that
    this type cannot hold."""
    image_module = needed("PIL.Image", f"a field of type {kind}", INSTALL_IMAGES)
    if not isinstance(picture, image_module.Image):
        picture = image_module.fromarray(_picture_bytes(_picture_array(picture)))
    if kind == "pbm" and picture.mode == "L":
        picture = picture.convert("1", dither=0)
    form, mode = find(kind).pillow, find(kind).mode or picture.mode
    if picture.mode != mode:
        raise UsageError(f"{kind} holds pictures of mode {mode}, not {picture.mode}")
    stream = io.BytesIO()
    try:
        picture.save(stream, form, **IMAGE_OPTIONS.get(form, {}))
    except (OSError, ValueError) as error:
        raise UsageError(f"{kind} cannot hold a picture of mode {picture.mode}: {error}") from error
    return stream.getvalue()


def _picture_array(picture: Any) -> Any:
    """The picture with its channels last."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(picture, torch.Tensor):
        array = picture.detach().cpu().numpy()
        if array.ndim == 3 and array.shape[0] in (1, 3, 4) and array.shape[2] not in (1, 3, 4):
            array = array.transpose(1, 2, 0)
    elif isinstance(picture, numpy.ndarray):
        array = picture
    else:
        raise UsageError(f"a picture is an array, a tensor or a Pillow image, not {type(picture).__name__}")
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim != 2 and (array.ndim != 3 or array.shape[2] not in (3, 4)):
        raise UsageError(
            f"a picture has the shape (height, width) or (height, width, 1, 3 or 4), not {tuple(array.shape)}"
        )
    return array


def _picture_bytes(array: Any) -> Any:
    """The picture as contiguous uint8."""
    if array.dtype.kind == "f":
        if array.size and not (array.min() > -FLOAT_SLACK and array.max() < 1 + FLOAT_SLACK):
            raise UsageError(
                f"a picture of floats has values from 0 to 1, not {array.min()} to {array.max()}"
            )
        array = numpy.rint(numpy.clip(array, 0, 1) * 255).astype(numpy.uint8)
    if array.dtype != numpy.uint8:
        raise UsageError(f"a picture is uint8, or floats from 0 to 1, not {array.dtype}")
    return numpy.ascontiguousarray(array)


_BY_FORM: dict[str, Encode] = {
    "bundle": encode_bundle,
    "cbor": encode_cbor,
    "integer": encode_number,
    "json": encode_json,
    "markup": encode_text,
    "msgpack": encode_msgpack,
    "npy": numpy_dumps,
    "npz": encode_npz,
    "number": encode_number,
    "pickle": refuse_pickle,
    "text": encode_text,
    "torch": torch_dumps,
}
ENCODERS: dict[str, Encode] = {
    **by_form(_BY_FORM),
    **{name: partial(encode_image, kind=name) for name, kind in KINDS.items() if kind.pillow},
}
"""Functions of a value by extension."""
WITH_PICKLES: dict[str, Encode] = {**ENCODERS, **by_form({"pickle": encode_pickle})}


def gzipped(data: Any) -> bytes:
    """``data`` as a gzip stream, with a header that is the same in every version of Python."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    body = deflate.compress(data) + deflate.flush()
    return GZIP_HEADER + body + struct.pack("<II", zlib.crc32(data), len(data) & 0xFFFFFFFF)


def encode_field(value: Any, field: str, encoders: Mapping[str, Encode] = ENCODERS) -> Any:
    """The payload of one field. Raises UsageError for values that its type cannot hold, and for values other than
    bytes in a field of no known type."""
    name, packed = held_extension(field)
    if isinstance(value, str) and (name in TEXTS or name not in encoders):
        value = value.encode("utf-8")
    elif not isinstance(value, Payload):
        encode = encoders.get(name)
        if encode is None:
            raise UsageError(
                f"there is no encoder for {type(value).__name__} as {name}",
                hint="use a field of a known type (image.png, label.cls, data.json, x.npy), or bytes",
            )
        value = encode(value)
    return gzipped(value) if packed else value


class Encoder:
    """Encodes the fields of a sample by extension; ``__like_this__`` are left unchanged. Raises UsageError that
    names key and field."""

    def __init__(self, encoders: Mapping[str, Encode] = ENCODERS) -> None:
        self._encoders = encoders

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        return {field: self._value(sample, field, value) for field, value in sample.items()}

    def _value(self, sample: Mapping[str, Any], field: str, value: Any) -> Any:
        if field.startswith("_"):
            return value
        try:
            return encode_field(value, field, self._encoders)
        except Exception as error:
            known = isinstance(error, UsageError)
            why = str(error) if known else f"{type(error).__name__}: {error}"
            raise UsageError(
                f'field "{field}" of sample "{sample.get("__key__")}" cannot be encoded: {why}',
                hint=error.hint if isinstance(error, UsageError) else None,
            ) from error


def make_encoder(spec: bool | str | Mapping[str, Encode] | Encode | None = True) -> Encode:
    """A function of a sample. ``True`` encodes by extension, ``"pickle"`` pickles too, ``False`` and None change
    nothing, a dict has encoders by extension, and a function is used as it is. Raises UsageError."""
    if spec is None or spec is False:
        return dict
    if spec is True:
        return Encoder()
    if spec == "pickle":
        return Encoder(WITH_PICKLES)
    if isinstance(spec, Mapping):
        return Encoder(spec)
    if callable(spec):
        return spec
    raise UsageError(
        f"no such encoder: {spec!r}", hint='True, False, "pickle", a dict by extension, or a function'
    )
