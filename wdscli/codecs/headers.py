"""This module reads facts from headers of payloads: the size of a picture, the length of a sound, the shape of an
array.

These functions read a few bytes of a payload and decode nothing. The functions recognize a format by the first bytes of
the payload, not by the name of the field. Pillow reads pictures of other formats. The module does not know samples.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from struct import unpack_from
from typing import Any, NamedTuple

from wdscli.arrays import numpy
from wdscli.codecs.handlers import INSTALL_IMAGES, needed
from wdscli.errors import DataError

_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_WITHOUT_LENGTH = frozenset([0x01, *range(0xD0, 0xD8)])
_PCM_LIKE = (1, 3, 6, 7, 0xFFFE)
"""The codes of WAVE formats in which a block is a frame: PCM, float, A-law, mu-law, and the extensible form of
these."""


class PictureSize(NamedTuple):
    """The width and height in pixels of a stored picture. An orientation in EXIF is not applied."""

    width: int
    height: int


def picture_size(data: bytes) -> PictureSize:
    """Return the size of a picture. Raises ValueError if its header is damaged or its format unknown, and UsageError if
    Pillow is needed and not installed."""
    for begin, read in _PICTURES.items():
        if data.startswith(begin):
            size = PictureSize(*_read(read, data))
            if min(size) < 1:
                raise ValueError("its header says that it is empty")
            return size
    return _by_pillow(data)


def _read(read: Callable[[bytes], Any], data: bytes) -> Any:
    """Call ``read`` with the data. Raises ValueError if the header ends too early."""
    from struct import error

    try:
        return read(data)
    except (error, IndexError):
        raise ValueError("its header is truncated") from None


def _png(data: bytes) -> Any:
    if data[12:16] != b"IHDR":
        raise ValueError("it does not begin with an image header")
    return unpack_from(">II", data, 16)


def _jpeg(data: bytes) -> Any:
    at = 2
    while True:
        if data[at] != 0xFF:
            raise ValueError(f"it has no JPEG marker at byte {at}")
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
        elif marker in _WITHOUT_LENGTH:
            at += 2
        elif marker in _START_OF_FRAME:
            return unpack_from(">HH", data, at + 5)[::-1]
        elif marker in (0xD9, 0xDA):
            raise ValueError("it has no JPEG frame")
        else:
            at += 2 + max(2, unpack_from(">H", data, at + 2)[0])


def _webp(data: bytes) -> Any:
    kind = data[12:16]
    if data[8:12] != b"WEBP" or kind not in (b"VP8 ", b"VP8L", b"VP8X"):
        raise ValueError("it is not a WebP file")
    if kind == b"VP8X":
        return [int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27)]
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


def seconds(data: bytes) -> float:
    """Return the length in seconds that the header of a sound states. The sound may be WAV, FLAC, Ogg (Vorbis, Opus) or
    MP3. Raises ValueError for other formats, for damaged headers, and for headers without a length."""
    begin = data[:4]
    if begin in (b"RIFF", b"RF64") and data[8:12] == b"WAVE":
        found = _read(_wav, data)
    elif begin == b"fLaC":
        found = _read(_flac, data)
    elif begin == b"OggS":
        found = _read(_ogg, data)
    elif begin[:3] == b"ID3" or (begin[:1] == b"\xff" and begin[1:2] >= b"\xe0"):
        found = _read(_mp3, data)
    else:
        raise ValueError("seconds() reads wav, flac, ogg, opus and mp3")
    return float(found)


def _wav(data: bytes) -> float:
    at, form, rate, block = 12, 0, 0, 0
    while data[at : at + 4] != b"data":
        size = unpack_from("<I", data, at + 4)[0]
        if data[at : at + 4] == b"fmt ":
            form, _, rate, _, block = unpack_from("<HHIIH", data, at + 8)
        at += 8 + size + (size & 1)
    if form not in _PCM_LIKE or not rate or not block:
        raise ValueError(f"seconds() cannot read WAVE files of format {form}")
    # If a recording was cut off or streamed, its header states more bytes than the payload has.
    size = min(unpack_from("<I", data, at + 4)[0], len(data) - at - 8)
    return float(size // block / rate)


def _flac(data: bytes) -> float:
    bits = int.from_bytes(data[18:26], "big")
    rate, frames = bits >> 44, bits & (1 << 36) - 1
    if len(data) < 26 or not rate or not frames:
        raise ValueError("its header does not give its duration")
    return float(frames / rate)


def _ogg(data: bytes) -> float:
    packet = data[27 + data[26] :]
    if packet.startswith(b"\x01vorbis"):
        rate, skipped = unpack_from("<I", packet, 12)[0], 0
    elif packet.startswith(b"OpusHead"):
        rate, skipped = 48_000, unpack_from("<H", packet, 10)[0]
    else:
        raise ValueError("in Ogg files, seconds() reads only Vorbis and Opus")
    serial, at = data[14:18], len(data)
    while (at := data.rfind(b"OggS", 0, at)) >= 0:
        # A page in which no packet ends has -1 as its number of frames. The mark "OggS" may also be a part of a packet.
        if len(data) >= at + 27 and data[at + 14 : at + 18] == serial and data[at + 4] == 0:
            frames = unpack_from("<q", data, at + 6)[0]
            if frames >= 0 and rate:
                return float(max(0, frames - skipped) / rate)
    raise ValueError("no page of the Ogg file gives its duration")


def _mp3(data: bytes) -> float:
    at = 0
    if data.startswith(b"ID3"):
        size = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(reversed(data[6:10])))
        at = 10 + size + (10 if data[5] & 0x10 else 0)
    first, second, third, fourth = data[at : at + 4] if len(data) >= at + 4 else b"\0\0\0\0"
    version, layer, rate_code = second >> 3 & 3, second >> 1 & 3, third >> 2 & 3
    if first != 0xFF or second < 0xE0 or version == 1 or layer != 1 or rate_code == 3:
        raise ValueError("it does not begin with an MP3 frame")
    is_mono = fourth >> 6 == 3
    rate = (44_100, 48_000, 32_000)[rate_code] >> {3: 0, 2: 1, 0: 2}[version]
    side_bytes = (17 if is_mono else 32) if version == 3 else (9 if is_mono else 17)
    tag, frames = data[at + 4 + side_bytes :][:16], 0
    if tag[:4] in (b"Xing", b"Info") and unpack_from(">I", tag, 4)[0] & 1:
        frames = unpack_from(">I", tag, 8)[0]
    elif data[at + 36 : at + 40] == b"VBRI":
        frames = unpack_from(">I", data, at + 50)[0]
    if not frames:
        raise ValueError("its header does not give its duration (it has no Xing, Info or VBRI tag)")
    return float(frames * (1152 if version == 3 else 576) / rate)


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
