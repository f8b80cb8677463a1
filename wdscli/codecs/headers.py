"""This module reads facts from headers of payloads: the size of a picture, the shape of an array.

These functions read a few bytes of a payload and decode nothing. The functions recognize a format by the first bytes of
the payload, not by the name of the field. Pillow reads pictures of other formats. For sound and film, see
:mod:`~wdscli.codecs.containers`. The module does not know samples.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from struct import unpack_from
from typing import Any, NamedTuple

from wdscli.arrays import numpy
from wdscli.codecs.handlers import INSTALL_IMAGES, needed, whole_header
from wdscli.errors import DataError

_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_WITHOUT_LENGTH = frozenset([0x01, *range(0xD0, 0xD8)])


class PictureSize(NamedTuple):
    """The width and height in pixels of a stored picture. An orientation in EXIF is not applied."""

    width: int
    height: int


def picture_size(data: bytes) -> PictureSize:
    """Return the size of a picture. Raises ValueError if its header is damaged or its format unknown, and UsageError if
    Pillow is needed and not installed."""
    for begin, read in _PICTURES.items():
        if data.startswith(begin):
            size = PictureSize(*whole_header(read, data))
            if min(size) < 1:
                raise ValueError("its header says that it is empty")
            return size
    return _by_pillow(data)


def _png(data: bytes) -> Any:
    if data[12:16] != b"IHDR":
        raise ValueError("it does not begin with an image header")
    return unpack_from(">II", data, 16)


def _jpeg(data: bytes) -> Any:
    offset = 2
    while True:
        if data[offset] != 0xFF:
            raise ValueError(f"it has no JPEG marker at byte {offset}")
        marker = data[offset + 1]
        if marker == 0xFF:
            offset += 1
        elif marker in _WITHOUT_LENGTH:
            offset += 2
        elif marker in _START_OF_FRAME:
            return unpack_from(">HH", data, offset + 5)[::-1]
        elif marker in (0xD9, 0xDA):
            raise ValueError("it has no JPEG frame")
        else:
            offset += 2 + max(2, unpack_from(">H", data, offset + 2)[0])


def _webp(data: bytes) -> Any:
    kind = data[12:16]
    if data[8:12] != b"WEBP" or kind not in (b"VP8 ", b"VP8L", b"VP8X"):
        raise ValueError("it is not a WebP file")
    if kind == b"VP8X":
        return [int.from_bytes(data[offset : offset + 3], "little") + 1 for offset in (24, 27)]
    if kind == b"VP8 ":
        return [side & 0x3FFF for side in unpack_from("<HH", data, 26)]
    bits = unpack_from("<I", data, 21)[0]
    return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1


_PICTURES: dict[bytes, Callable[[bytes], Any]] = {
    b"\x89PNG\r\n\x1a\n": _png,
    b"\xff\xd8": _jpeg,
    b"GIF8": lambda data: unpack_from("<HH", data, 6),
    b"RIFF": _webp,
}


def _by_pillow(data: bytes) -> PictureSize:
    from wdscli.codecs.images import opened_image

    needed("PIL", "a picture of this format", INSTALL_IMAGES)
    try:
        return PictureSize(*opened_image(data, sys.maxsize).size)
    except DataError as error:
        raise ValueError(error.message) from None
    except Exception as error:  # Pillow's plugins raise many kinds of errors
        raise ValueError(f"it is not a picture: {error}") from None


def array_shape(data: bytes) -> list[int]:
    """Return the shape of an array in NumPy's format npy. Raises ValueError for other data."""
    file = io.BytesIO(data)
    form = numpy.lib.format
    try:
        version = form.read_magic(file)
        # Versions 2 and 3 differ only in how names are encoded.
        read = form.read_array_header_1_0 if version == (1, 0) else form.read_array_header_2_0
        shape = read(file)[0]
    except Exception as error:
        raise ValueError(f"it is not an array in the format npy: {error}") from None
    return [int(length) for length in shape]
