"""Payloads decoded as their field says, only to see whether they can be (``--decode``).

What it is: :class:`Decoder`, and one small function a format. How: the last part of a field's name chooses the
decoder, ``.gz`` at its end is taken off first; what has no decoder here is passed over. What a payload can make us hold
is bounded: a gzip stream is counted while it is decoded, and images beyond Pillow's limit of pixels are refused.

It must not know where payloads come from. Nothing here unpickles.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

from wdscli.errors import UsageError
from wdscli.model import to_text
from wdscli.samples import split_name
from wdscli.tar import KIND_MASK, REGULAR, Window
from wdscli.verify.findings import Ledger

_FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "DIB", "TIFF", "PPM")
"""What Pillow may take a payload for. Left to itself it would hand PostScript to an interpreter."""
MAX_INFLATED = 1 << 30
"""Bytes that a gzip payload may become; more is taken for a bomb."""
_OBJECT = re.compile(r" ?<[^>]* object at 0x[0-9a-f]+>")
IMAGES = frozenset(("jpg", "jpeg", "png", "gif", "webp", "bmp", "tif", "tiff", "ppm", "pgm", "pbm", "pnm"))


class Decoder:
    """Decodes the payloads of whole windows and reports those that are not what their field says. Raises UsageError at
    the first image when Pillow is missing."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: dict[bytes, Callable[[bytes], object] | None] = {}

    def check(self, window: Window) -> None:
        """Every payload of a window that has a decoder."""
        columns = window.columns
        for row, name in enumerate(columns.names):
            if columns.flags[row] & KIND_MASK != REGULAR:
                continue
            parts = split_name(name)
            decode = None if parts is None else self._decoder(parts[1])
            if decode is None:
                continue
            reason = why_undecodable(decode, window.payload(row))
            if reason is not None:
                message = f"cannot be decoded: {reason}"
                self._ledger.add("undecodable", message, offset=columns.starts[row], member=to_text(name))

    def why_not(self, field: bytes, payload: bytes) -> str | None:
        """Why one payload cannot be decoded; None when it can, or nobody here knows how."""
        decode = self._decoder(field)
        return None if decode is None else why_undecodable(decode, payload)

    def _decoder(self, field: bytes) -> Callable[[bytes], object] | None:
        if field not in self._known:
            if len(self._known) > 1 << 12:
                self._known.clear()
            self._known[field] = decode = find_decoder(to_text(field))
            if decode is _image and find_spec("PIL") is None:
                raise UsageError("--decode needs Pillow for images", hint="pip install 'wdscli[images]'")
        return self._known[field]


def find_decoder(field: str) -> Callable[[bytes], object] | None:
    """What decodes payloads of a field, or None."""
    parts = field.lower().split(".")
    if parts[-1] == "gz":
        inner = _DECODERS.get(parts[-2]) if len(parts) > 1 else None
        return lambda payload: _inflated(payload, inner)
    return _DECODERS.get(parts[-1])


def why_undecodable(decode: Callable[[bytes], object], payload: bytes) -> str | None:
    """Why a payload cannot be decoded, in a few words, or None when it can."""
    try:
        decode(payload)
    except (MemoryError, RecursionError) as error:
        return type(error).__name__
    except Exception as error:
        # Decoders raise whatever they like at broken data: struct.error, SyntaxError (Pillow), zlib.error, KeyError ...
        text = " ".join(_OBJECT.sub("", str(error)).split())
        return text[:120] or type(error).__name__
    return None


def _json(payload: bytes) -> object:
    import json

    return json.loads(payload)


def _integer(payload: bytes) -> object:
    return int(payload)


def _text(payload: bytes) -> object:
    return payload.decode("utf-8")


def _npy(payload: bytes) -> object:
    import io

    import numpy

    stream = io.BytesIO(payload)
    read_array: Any = numpy.lib.format.read_array
    value = read_array(stream, allow_pickle=False)
    if stream.read(1):
        raise ValueError("bytes follow the array")
    return value


def _npz(payload: bytes) -> object:
    import io
    import zipfile

    import numpy

    with zipfile.ZipFile(io.BytesIO(payload)) as archive:
        total = sum(entry.file_size for entry in archive.infolist())
    if total > MAX_INFLATED:
        raise ValueError(f"its arrays have {total} bytes")
    with numpy.load(io.BytesIO(payload), allow_pickle=False) as arrays:
        return [arrays[name].shape for name in arrays.files]


def _msgpack(payload: bytes) -> object:
    import msgpack

    return msgpack.unpackb(payload, strict_map_key=False)


def _image(payload: bytes) -> object:
    import io
    import warnings

    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Beyond twice MAX_IMAGE_PIXELS Pillow raises; between the two it warns, which is no fault of the data.
        with Image.open(io.BytesIO(payload), formats=_formats()) as image:
            image.load()
            return image.size


@cache
def _formats() -> tuple[str, ...]:
    """Those of _FORMATS that this Pillow was built with."""
    from PIL import Image

    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def _inflated(payload: bytes, inner: Callable[[bytes], object] | None) -> object:
    """What a gzip payload holds, decoded by ``inner``; without one its bytes are counted and let go."""
    import zlib

    kept: list[bytes] = []
    total, rest = 0, payload
    while rest:
        stream = zlib.decompressobj(wbits=31)
        while not stream.eof:
            data = stream.decompress(rest, 1 << 20)
            rest = stream.unused_data if stream.eof else stream.unconsumed_tail
            total += len(data)
            if total > MAX_INFLATED:
                raise ValueError(f"becomes more than {MAX_INFLATED} bytes")
            if inner is not None:
                kept.append(data)
            if not stream.eof and not data and not rest:
                raise ValueError("the gzip stream is cut")
        # gzip's own format: zeros may follow, or another stream.
        rest = rest.lstrip(b"\0")
    if not payload:
        raise ValueError("no gzip stream")
    return None if inner is None else inner(b"".join(kept))


_DECODERS: dict[str, Callable[[bytes], object]] = {
    "json": _json,
    "jsn": _json,
    "cls": _integer,
    "txt": _text,
    "text": _text,
    "npy": _npy,
    "npz": _npz,
    "mp": _msgpack,
    "msg": _msgpack,
    "msgpack": _msgpack,
    **dict.fromkeys(sorted(IMAGES), _image),
}
