"""This module reads facts from headers of payloads: the size of a picture or film, the shape of an array, the length of
a sound or film. It also finds sound and film that are not whole.

These functions decode nothing. They read only the parts of a payload that they need
(:class:`~wdscli.codecs.handlers.PartialPayload`). They recognize a format by the first bytes of the payload, not by the
name of the field. Pillow reads pictures of other formats. :func:`check_container` walks through the parts of a
container of sound or film and compares the lengths that they state with the bytes of the payload. So a payload that was
cut off is found without a decoder. Some containers state no length, because a program wrote them as a stream; their
headers are checked all the same. The module does not know samples or names of fields.
"""

from __future__ import annotations

import io
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from wdscli.arrays import numpy
from wdscli.codecs.handlers import HEAD_BYTES, INSTALL_IMAGES, Payload, needed
from wdscli.errors import DataError

_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_WITHOUT_LENGTH = frozenset([0x01, *range(0xD0, 0xD8)])


class PictureSize(NamedTuple):
    """The width and height in pixels of a stored picture. An orientation in EXIF is not applied."""

    width: int
    height: int


def picture_size(data: Payload) -> PictureSize:
    """Return the size of a picture. Raises ValueError if its header is damaged or its format unknown, and UsageError if
    Pillow is needed and not installed."""
    for begin, read in _PICTURES.items():
        if data.startswith(begin):
            size = PictureSize(*_whole_header(read, data))
            if min(size) < 1:
                raise ValueError("its header says that it is empty")
            return size
    if (film := film_of(data)) is None:
        return _by_pillow(data)
    if film.size is None:
        raise ValueError("it has no pictures")
    return film.size


def _unpack_at(layout: str, data: Payload, offset: int) -> tuple[Any, ...]:
    """Unpack numbers at an offset. Raises struct.error if the payload ends before."""
    return struct.unpack(layout, data[offset : offset + struct.calcsize(layout)])


def _whole_header(read: Callable[[Payload], Any], data: Payload) -> Any:
    """Call ``read`` with the data. Raises ValueError if a header in the data ends too early."""
    try:
        return read(data)
    except (struct.error, IndexError):
        raise ValueError("its header is truncated") from None


def _png(data: Payload) -> Any:
    if data[12:16] != b"IHDR":
        raise ValueError("it does not begin with an image header")
    return _unpack_at(">II", data, 16)


def _jpeg(data: Payload) -> Any:
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
            return _unpack_at(">HH", data, offset + 5)[::-1]
        elif marker in (0xD9, 0xDA):
            raise ValueError("it has no JPEG frame")
        else:
            offset += 2 + max(2, _unpack_at(">H", data, offset + 2)[0])


def _webp(data: Payload) -> Any:
    kind = data[12:16]
    if data[8:12] != b"WEBP" or kind not in (b"VP8 ", b"VP8L", b"VP8X"):
        raise ValueError("it is not a WebP file")
    if kind == b"VP8X":
        return [int.from_bytes(data[offset : offset + 3], "little") + 1 for offset in (24, 27)]
    if kind == b"VP8 ":
        return [side & 0x3FFF for side in _unpack_at("<HH", data, 26)]
    bits = _unpack_at("<I", data, 21)[0]
    return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1


_PICTURES: dict[bytes, Callable[[Payload], Any]] = {
    b"\x89PNG\r\n\x1a\n": _png,
    b"\xff\xd8": _jpeg,
    b"GIF8": lambda data: _unpack_at("<HH", data, 6),
    b"RIFF": _webp,
}


def _by_pillow(data: Payload) -> PictureSize:
    from wdscli.codecs.images import opened_image

    needed("PIL", "a picture of this format", INSTALL_IMAGES)
    try:
        return PictureSize(*opened_image(bytes(data), sys.maxsize).size)
    except DataError as error:
        raise ValueError(error.message) from None
    except Exception as error:  # Pillow's plugins raise many kinds of errors
        raise ValueError(f"it is not a picture: {error}") from None


def array_shape(data: Payload) -> list[int]:
    """Return the shape of an array in NumPy's format npy. Raises ValueError for other data."""
    file = io.BytesIO(data[:HEAD_BYTES])  # numpy reads no longer header
    form = numpy.lib.format
    try:
        version = form.read_magic(file)
        # Versions 2 and 3 differ only in how names are encoded.
        read = form.read_array_header_1_0 if version == (1, 0) else form.read_array_header_2_0
        shape = read(file)[0]
    except Exception as error:
        raise ValueError(f"it is not an array in the format npy: {error}") from None
    return [int(length) for length in shape]


_PCM_LIKE = (1, 3, 6, 7, 0xFFFE)
"""The codes of WAVE formats in which a block is a frame: PCM, float, A-law, mu-law, and the extensible form of
these."""
_STREAMED_BYTES = 0x7FFF_F000
"""Programs that write WAVE or AVI to a pipe state this length, or a longer one, or 0."""
_END_OF_STREAM = 4
"""The flag of the last page of an Ogg stream."""
_MP3_FRAME_BYTES = 1441
"""The size of the longest frame of MP3."""
_KBITS = {
    3: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    2: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
"""The rates of MP3 in kilobits per second, for MPEG 1 and for MPEG 2 and 2.5."""
_ASF_HEADER = bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c")
_ASF_DATA = bytes.fromhex("3626b2758e66cf11a6d900aa0062ce6c")
_EBML, _SEGMENT = b"\x1aE\xdf\xa3", b"\x18\x53\x80\x67"
_BOXES = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot")
"""The kinds of the first box of MP4 and QuickTime."""
_PICTURE_BRANDS = (b"avi", b"hei", b"hev", b"mif", b"msf")
"""The first letters after ``ftyp`` of pictures that have boxes too: AVIF and HEIF."""
_UNCHECKED = (
    b"FORM",
    b".snd",
    b"caff",
    b"RIFX",
    b"ADIF",
    b"\xff\xf1",
    b"\xff\xf9",
    b"\xff\xd8",
    b"\0\0\1",
    b"\0\0\0\1",
)
"""The first bytes of formats that are not checked: AIFF, AU, CAF, big-endian WAVE, AAC, JPEG, MPEG, H.264."""
_PACKET_BYTES = 188
"""The size of a packet of an MPEG transport stream. Each packet begins with the letter G."""
_MAX_JUNK_BYTES = 1 << 12
"""How many bytes there may be between a tag and the first frame of an MP3."""


class Wave(NamedTuple):
    """The facts in the headers of a WAVE file. ``frame_bytes`` is the size of a block. ``stated_bytes`` is the length
    of the sound, or None if the file was written as a stream. ``has_bytes`` is what the payload has of it."""

    code: int
    rate: int
    frame_bytes: int
    stated_bytes: int | None
    has_bytes: int

    @property
    def needs_decoder(self) -> bool:
        """Whether the sound is compressed. Any bytes are sound otherwise."""
        return self.code not in _PCM_LIKE


def wave_of(data: Payload) -> Wave | None:
    """Return the headers of a WAVE file, or None for other data. Raises ValueError for a damaged header."""
    is_wave = data[:4] in (b"RIFF", b"RF64") and data[8:12] == b"WAVE"
    return _whole_header(_wave, data) if is_wave else None


def _wave(data: Payload) -> Wave:
    offset, code, rate, frame_bytes, long_bytes = 12, 0, 0, 0, 0
    while data[offset : offset + 4] != b"data":
        size = _unpack_at("<I", data, offset + 4)[0]
        if data[offset : offset + 4] == b"fmt ":
            code, _, rate, _, frame_bytes = _unpack_at("<HHIIH", data, offset + 8)
        elif data[offset : offset + 4] == b"ds64":
            long_bytes = _unpack_at("<Q", data, offset + 16)[0]
        offset += 8 + size + (size & 1)
    stated, has_bytes = _unpack_at("<I", data, offset + 4)[0], len(data) - offset - 8
    if data[:4] == b"RF64" and long_bytes:
        stated = long_bytes
    elif stated >= _STREAMED_BYTES or (not stated and has_bytes):
        stated = None
    if not rate or not frame_bytes:
        raise ValueError("its header has no rate of samples")
    return Wave(code, rate, frame_bytes, stated, has_bytes)


def seconds(data: Payload) -> float:
    """Return the length in seconds that the header of a sound or film states: WAV, FLAC, Ogg (Vorbis, Opus), MP3, MP4
    or QuickTime. Raises ValueError for other formats, for damaged headers, and for headers without a length."""
    if (wave := wave_of(data)) is not None:
        if wave.needs_decoder:
            raise ValueError(f"seconds() cannot read WAVE files of format {wave.code}")
        # If a recording was cut off or streamed, its header states more bytes than the payload has.
        stated = wave.has_bytes if wave.stated_bytes is None else wave.stated_bytes
        return float(min(stated, wave.has_bytes) // wave.frame_bytes / wave.rate)
    begin = data[:4]
    if begin == b"fLaC":
        return float(_whole_header(_flac_seconds, data))
    if begin == b"OggS":
        return float(_whole_header(_ogg_seconds, data))
    if _is_mp3(data):
        return float(_whole_header(_mp3_seconds, data))
    if (film := film_of(data)) is None:
        raise ValueError("seconds() reads wav, flac, ogg, opus, mp3, m4a, mp4 and mov")
    if film.seconds is None:
        raise ValueError("its header does not give its duration")
    return film.seconds


def _flac_seconds(data: Payload) -> float:
    bits = int.from_bytes(data[18:26], "big")
    rate, frames = bits >> 44, bits & (1 << 36) - 1
    if len(data) < 26 or not rate or not frames:
        raise ValueError("its header does not give its duration")
    return float(frames / rate)


def _ogg_seconds(data: Payload) -> float:
    packet = data[27 + data[26] : HEAD_BYTES]
    if packet.startswith(b"\x01vorbis"):
        rate, skipped = _unpack_at("<I", packet, 12)[0], 0
    elif packet.startswith(b"OpusHead"):
        rate, skipped = 48_000, _unpack_at("<H", packet, 10)[0]
    else:
        raise ValueError("in Ogg files, seconds() reads only Vorbis and Opus")
    serial, offset = data[14:18], len(data)
    while (offset := data.rfind(b"OggS", 0, offset)) >= 0:
        # A page in which no packet ends has -1 as its number of frames. The mark "OggS" may also be a part of a packet.
        if len(data) >= offset + 27 and data[offset + 14 : offset + 18] == serial and data[offset + 4] == 0:
            frames = _unpack_at("<q", data, offset + 6)[0]
            if frames >= 0 and rate:
                return float(max(0, frames - skipped) / rate)
    raise ValueError("no page of the Ogg file gives its duration")


class _Mp3Frame(NamedTuple):
    """The first frame of an MP3. ``tag`` is the offset of a Xing or Info tag in it, which counts frames and bytes."""

    begin: int
    rate: int
    samples: int
    kbits: int
    tag: int


def _is_mp3(data: Payload) -> bool:
    return data[:3] == b"ID3" or (data[:1] == b"\xff" and data[1:2] >= b"\xe0")


def _after_tag(data: Payload) -> int:
    """Return the offset of the first byte after an ID3 tag."""
    if not data.startswith(b"ID3"):
        return 0
    size = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(reversed(bytes(data[6:10]))))
    return 10 + size + (10 if data[5] & 0x10 else 0)


def _mp3_frame(data: Payload, begin: int) -> _Mp3Frame:
    first, second, third, fourth = data[begin : begin + 4] if len(data) >= begin + 4 else b"\0\0\0\0"
    version, layer, rate_code = second >> 3 & 3, second >> 1 & 3, third >> 2 & 3
    if first != 0xFF or second < 0xE0 or version == 1 or layer != 1 or rate_code == 3 or third >> 4 == 15:
        raise ValueError("it does not begin with an MP3 frame")
    is_mono = fourth >> 6 == 3
    side_bytes = (17 if is_mono else 32) if version == 3 else (9 if is_mono else 17)
    rate = (44_100, 48_000, 32_000)[rate_code] >> {3: 0, 2: 1, 0: 2}[version]
    kbits = _KBITS[3 if version == 3 else 2][third >> 4]
    return _Mp3Frame(begin, rate, 1152 if version == 3 else 576, kbits, begin + 4 + side_bytes)


def _mp3_seconds(data: Payload) -> float:
    frame, frames = _mp3_frame(data, _after_tag(data)), 0
    tag = data[frame.tag : frame.tag + 16]
    if tag[:4] in (b"Xing", b"Info") and _unpack_at(">I", tag, 4)[0] & 1:
        frames = _unpack_at(">I", tag, 8)[0]
    elif data[frame.begin + 36 : frame.begin + 40] == b"VBRI":
        frames = _unpack_at(">I", data, frame.begin + 50)[0]
    if not frames:
        raise ValueError("its header does not give its duration (it has no Xing, Info or VBRI tag)")
    return float(frames * frame.samples / frame.rate)


def check_container(data: Payload) -> bool:
    """Check the headers of a sound or film, and the lengths that they state. Return False for an unknown format. Raises
    ValueError for a damaged header, and for a payload that has fewer bytes than its headers state.

    >>> check_container(b"words"), check_container(b".snd...")
    (False, True)
    """
    for is_format, check in _FORMATS:
        if is_format(data):
            _whole_header(check, data)
            return True
    return data.startswith(_UNCHECKED) or data[: _PACKET_BYTES + 1 : _PACKET_BYTES] == b"GG"


def _cut_off(what: str, stated: int, left: int) -> ValueError:
    return ValueError(
        f"it is cut off: {what} has {stated} bytes according to its header, but {left} are left"
    )


def _check_wave(data: Payload) -> None:
    wave = _wave(data)
    stated = wave.stated_bytes
    if stated is not None and stated // wave.frame_bytes > wave.has_bytes // wave.frame_bytes:
        raise _cut_off("the sound", stated, wave.has_bytes)


def _check_avi(data: Payload) -> None:
    stated, left = _unpack_at("<I", data, 4)[0], len(data) - 8
    if data[12:16] != b"LIST" or data[20:24] != b"hdrl":
        raise ValueError("it has no AVI header")
    if left < stated < _STREAMED_BYTES:
        raise _cut_off("the film", stated, left)


def _check_flac(data: Payload) -> None:
    offset, is_last = 4, False
    while not is_last:
        is_last, kind = bool(data[offset] & 0x80), data[offset] & 0x7F
        size = int.from_bytes(data[offset + 1 : offset + 4], "big")
        if offset == 4 and (kind, size) != (0, 34):
            raise ValueError("it has no FLAC header")
        offset += 4 + size
    block, least_bytes = _unpack_at(">H", data, 10)[0], int.from_bytes(data[12:15], "big")
    frames = int.from_bytes(data[18:26], "big") & (1 << 36) - 1
    if not block or int.from_bytes(data[18:26], "big") >> 44 == 0:
        raise ValueError("its header has no rate of samples")
    left, least_bytes = max(0, len(data) - offset), least_bytes * (frames // block)
    if frames and left < max(least_bytes, 2):
        raise _cut_off("the sound", least_bytes, left)
    if left and not (data[offset] == 0xFF and data[offset + 1] >> 2 == 0x3E):
        raise ValueError(f"there is no FLAC frame at byte {offset}")


def _check_ogg(data: Payload) -> None:
    offset, flags = 0, 0
    while offset < len(data):
        if data[offset : offset + 4] != b"OggS":
            if flags & _END_OF_STREAM:  # other bytes may follow the stream, such as a tag
                return
            raise ValueError(f"there is no Ogg page at byte {offset}")
        flags, segments = data[offset + 5], data[offset + 26]
        size = 27 + segments + sum(data[offset + 27 : offset + 27 + segments])
        if offset + size > len(data):
            raise _cut_off(f"the page at byte {offset}", size, len(data) - offset)
        offset += size


def _check_mp3(data: Payload) -> None:
    begin = _after_tag(data)
    if begin and data.startswith((b"fLaC", *_UNCHECKED), begin):
        check_container(data[begin:])
        return
    junk = data[begin : begin + _MAX_JUNK_BYTES].find(b"\xff") if begin else 0
    frame = _mp3_frame(data, begin + max(0, junk))
    tag, left = frame.tag, len(data) - frame.begin
    first_frame_bytes = frame.samples // 8 * 1000 * frame.kbits // frame.rate
    if data[tag : tag + 4] in (b"Xing", b"Info") and _unpack_at(">I", data, tag + 4)[0] & 2:
        stated = _unpack_at(">I", data, tag + 8 + 4 * (data[tag + 7] & 1))[0]
        if stated > left + _MP3_FRAME_BYTES:  # some programs count a frame more
            raise _cut_off("the sound", stated, left)
    elif left < first_frame_bytes:
        raise _cut_off("the first frame", first_frame_bytes, left)


class Film(NamedTuple):
    """The facts in the box ``moov`` of an MP4 or QuickTime file. ``seconds`` is None if the header does not state the
    length, as for a film in fragments. ``size`` is the size of the first track with pictures, before it is turned; it
    is None for a sound."""

    seconds: float | None
    size: PictureSize | None


def film_of(data: Payload) -> Film | None:
    """Return the facts of an MP4 or QuickTime file, or None for other data. The box ``moov`` may be anywhere. Raises
    ValueError if it is damaged or missing."""
    is_film = data[4:8] in _BOXES and not data.startswith(_PICTURE_BRANDS, 8)
    return _whole_header(_film, data) if is_film else None


def _film(data: Payload) -> Film:
    moov = _first(data, b"moov")
    header = _first(data, b"moov", b"mvhd")
    if moov is None or header is None:
        raise ValueError("it has no header (a box moov)")
    # Version 1 has times of 64 bits. A length of 0, or of ones, is unknown.
    is_long = data[header.begin] == 1
    rate, length = _unpack_at(">IQ" if is_long else ">II", data, header.begin + (20 if is_long else 12))
    is_stated = rate and length and length != (1 << (64 if is_long else 32)) - 1
    tracks = (track for track in _boxes(data, moov) if track.kind == b"trak")
    sizes = filter(None, (_track_size(data, track) for track in tracks))
    return Film(length / rate if is_stated else None, next(sizes, None))


def _track_size(data: Payload, track: _Box) -> PictureSize | None:
    """Return the size of a track's pictures, from the description of its samples."""
    is_video = _first(data, b"mdia", b"minf", b"vmhd", inside=track)
    table = _first(data, b"mdia", b"minf", b"stbl", b"stsd", inside=track)
    if is_video is None or table is None or table.end < table.begin + 44:
        return None
    # The table begins with version, flags and a count. The first description has its size after 32 bytes.
    size = PictureSize(*_unpack_at(">HH", data, table.begin + 8 + 32))
    if min(size) < 1:
        raise ValueError("its header says that it is empty")
    return size


class _Box(NamedTuple):
    """The kind of a box of MP4, and the byte range of its content."""

    kind: bytes
    begin: int
    end: int


def _first(data: Payload, *kinds: bytes, inside: _Box | None = None) -> _Box | None:
    """Return the first box at the end of a path of boxes, or None."""
    for kind in kinds:
        inside = next((box for box in _boxes(data, inside) if box.kind == kind), None)
        if inside is None:
            return None
    return inside


def _boxes(data: Payload, inside: _Box | None = None) -> Iterator[_Box]:
    """Yield the boxes of an MP4, or those inside a box. Raises ValueError for a box that is cut off."""
    offset, end = (0, len(data)) if inside is None else (inside.begin, inside.end)
    while offset + 8 <= end:
        size, kind, begin = _unpack_at(">I", data, offset)[0], data[offset + 4 : offset + 8], offset + 8
        if size == 1:
            size, begin = _unpack_at(">Q", data, offset + 8)[0], offset + 16
        elif size == 0:  # the box ends at the end of the file
            size = end - offset
        if size < begin - offset:
            raise ValueError(f"the box at byte {offset} has {size} bytes")
        if offset + size > end:
            raise _cut_off(f"the box {kind.decode('latin-1')!r} at byte {offset}", size, end - offset)
        yield _Box(kind, begin, offset + size)
        offset += size


def _check_mp4(data: Payload) -> None:
    if not {b"moov", b"moof"} & {box.kind for box in _boxes(data)}:
        raise ValueError("it has no header (a box moov)")


def _check_matroska(data: Payload) -> None:
    offset = 0
    while data[offset : offset + 4] != _SEGMENT:
        name_bytes = 9 - data[offset].bit_length()
        size, offset = _ebml_size(data, offset + name_bytes)
        if size is None or offset + size > len(data):
            raise ValueError("its header is truncated")
        offset += size
    size, offset = _ebml_size(data, offset + 4)
    if size is not None and offset + size > len(data):
        raise _cut_off("the film", size, len(data) - offset)


def _ebml_size(data: Payload, offset: int) -> tuple[int | None, int]:
    """Return the size of an EBML element, None for a stream, and the offset of its content."""
    width = 9 - data[offset].bit_length()
    if width > 8:
        raise ValueError(f"there is no size at byte {offset}")
    size = int.from_bytes(data[offset : offset + width], "big") & (1 << 7 * width) - 1
    return (None if size == (1 << 7 * width) - 1 else size), offset + width


def _check_asf(data: Payload) -> None:
    header_bytes = _unpack_at("<Q", data, 16)[0]
    if data[header_bytes : header_bytes + 16] != _ASF_DATA:
        raise ValueError("its header is truncated")
    stated, left = _unpack_at("<Q", data, header_bytes + 16)[0], len(data) - header_bytes
    if stated > left:
        raise _cut_off("the content", stated, left)


_FORMATS: tuple[tuple[Callable[[Payload], bool], Callable[[Payload], Any]], ...] = (
    (lambda data: data[:4] in (b"RIFF", b"RF64") and data[8:12] == b"WAVE", _check_wave),
    (lambda data: data[:4] == b"RIFF" and data[8:12] == b"AVI ", _check_avi),
    (lambda data: data[:4] == b"fLaC", _check_flac),
    (lambda data: data[:4] == b"OggS", _check_ogg),
    (lambda data: data[:3] == b"ID3" or (_is_mp3(data) and data[1] >> 1 & 3 == 1), _check_mp3),
    (lambda data: data[4:8] in _BOXES, _check_mp4),
    (lambda data: data[:4] == _EBML, _check_matroska),
    (lambda data: data[:16] == _ASF_HEADER, _check_asf),
)
"""The formats that are checked: a test of the first bytes, and the check."""
