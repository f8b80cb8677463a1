"""This module has the one table of what a field's name says about its payload.

:data:`TABLE` has a row for each kind of field. :func:`find` gives the row of an extension. Rows are plain data. The
column ``form`` names the data format. The modules that decode and encode have one function for each form, and
:func:`by_form` assigns it to all names of the form. So a new name of a known format is one word here, and a new format
is a row here and a function there. Importing this module loads no decoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal, NamedTuple, TypeVar

Value = TypeVar("Value")
PictureFormat = Literal["jpg", "png", "webp"]
"""The formats that ``map --format`` writes."""


class Kind(NamedTuple):
    """A kind of field. The columns after ``form`` describe only the kinds that have them."""

    names: str
    """Extensions in lower case, with blanks between them. The first is the usual one."""
    form: str = ""
    """The data format. Names without one are not decoded. ``number`` and ``markup`` are encoded only."""
    container: str = ""
    """FFmpeg's container, for PyAV. Without one soundfile decodes audio; that of video is its name."""
    pillow: str = ""
    """Pillow's name of the format that pictures of this name are written in."""
    mode: str = ""
    """The only mode that such a picture can have."""
    packages: str = ""
    """Optional packages that can decode it, the recommended one first."""
    begins: tuple[bytes, ...] = ()
    """One of these must be the beginning of bytes that a table's cell gives for this kind."""
    signs: tuple[tuple[int, bytes], ...] = ()
    """Offset and bytes by which ``create`` recognizes a payload whose name says nothing."""
    card: str = ""
    """How the report shows it: ``text``, ``number``, ``json``, ``array``, ``image``, or the media type in a browser."""
    is_cuttable: bool = False
    """Whether browsers play the beginning of a file that was cut."""
    role: str = ""
    """What the report takes it for: a sample's ``class`` or ``caption``. Earlier rows are preferred."""
    is_text: bool = False
    """Whether JSON Lines and TSV have it as text."""
    hf: bool = False
    """Whether Hugging Face datasets decodes it. It knows values by the names that webdataset decodes."""


_image = partial(Kind, form="image", card="image")
_audio = partial(Kind, form="audio")
_video = partial(Kind, form="video")
_MP3 = ((0, b"ID3"), (0, b"\xff\xfb"), (0, b"\xff\xf3"), (0, b"\xff\xf2"))
_NPY = b"\x93NUMPY"
_PNG = b"\x89PNG\r\n\x1a\n"
_PNM = (b"P1", b"P2", b"P3", b"P4", b"P5", b"P6")
_TEN = b"~TenBin~"
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")

TABLE = (
    Kind("txt text", "text", card="text", role="caption", is_text=True, hf=True),
    Kind("caption", card="text", role="caption", is_text=True),
    Kind("transcript", "text", card="text", role="caption", is_text=True, hf=True),
    Kind("prompt", card="text", role="caption"),
    Kind("description title", role="caption"),
    Kind("cls cls2", "integer", card="number", role="class", is_text=True, hf=True),
    Kind("label", card="text", role="class"),
    Kind("class", "number", card="text", role="class", is_text=True),
    Kind("category class_name", role="class"),
    Kind("id index inx", "integer", card="number", is_text=True, hf=True),
    Kind("count", "number", is_text=True),
    Kind("html", "markup", card="text", is_text=True),
    Kind("htm", "markup", card="text"),
    Kind("csv md xml", card="text", is_text=True),
    Kind("tsv yaml yml", is_text=True),
    Kind("json jsn", "json", card="json", hf=True),
    Kind("mp msg", "msgpack", hf=True),
    Kind("msgpack", "msgpack"),
    Kind("cbor", "cbor", packages="cbor2 cbor", hf=True),
    Kind("npz", "npz", begins=(b"PK",), card="array", hf=True),
    Kind("pth", "torch", packages="torch", card="array", hf=True),
    Kind("ten tb", "bundle", begins=(_TEN,), card="array", hf=True),
    Kind("tenbin", "bundle", begins=(_TEN,), card="array"),
    Kind("pickle pkl pyd", "pickle"),
    Kind("gz", begins=(b"\x1f\x8b",)),
    _image("jpg jpeg", pillow="JPEG", begins=(b"\xff\xd8",), signs=((0, b"\xff\xd8\xff"),), hf=True),
    _image("png", pillow="PNG", begins=(_PNG,), signs=((0, _PNG),), hf=True),
    _image("webp", pillow="WEBP", begins=(b"RIFF",), signs=((8, b"WEBP"),), hf=True),
    _image("gif", pillow="GIF", begins=(b"GIF8",), signs=((0, b"GIF8"),), hf=True),
    _image("tif tiff", pillow="TIFF", begins=_TIFF, signs=((0, _TIFF[0]), (0, _TIFF[1])), hf=True),
    _image("pbm", pillow="PPM", mode="1", begins=_PNM, hf=True),
    _image("pgm", pillow="PPM", mode="L", begins=_PNM, hf=True),
    _image("ppm", pillow="PPM", mode="RGB", begins=_PNM, hf=True),
    Kind("image img", pillow="JPEG"),  # webdataset's names, and JPEG there too
    _image("apng blp bw cur dcx dds dib flc fli ftc ftu gbr icb icns ico iim im j2c j2k jfif jp2", hf=True),
    _image("jpc jpe jpf jpx msp pcd pcx pnm psd pxr ras rgb rgba sgi tga vda vst xbm xpm", hf=True),
    _image("avif avifs pfm qoi"),
    Kind("svg", card="image/svg+xml"),
    _audio("wav", signs=((8, b"WAVE"),), card="audio/wav", hf=True),
    _audio("flac", signs=((0, b"fLaC"),), card="audio/flac", is_cuttable=True, hf=True),
    _audio("mp3", signs=_MP3, card="audio/mpeg", is_cuttable=True, hf=True),
    _audio("ogg", signs=((0, b"OggS"),), card="audio/ogg", is_cuttable=True, hf=True),
    _audio("opus", container="ogg", card="audio/ogg", is_cuttable=True, hf=True),
    _audio("aac", container="aac", card="audio/aac", is_cuttable=True),
    _audio("m4a", container="mp4", card="audio/mp4"),
    _audio("wma", container="asf"),
    _video("mp4", signs=((4, b"ftyp"),), card="video/mp4", hf=True),
    _video("mkv", container="matroska", signs=((0, b"\x1aE\xdf\xa3"),), hf=True),
    _video("webm", card="video/webm"),
    _video("mov", card="video/mp4", hf=True),
    _video("ogv", container="ogg", card="video/ogg"),
    _video("avi", hf=True),
    _video("mpg", container="mpeg", hf=True),
    _video("h264 mjpeg"),
    _video("wmv", container="asf"),
    Kind("npy", "npy", begins=(_NPY,), signs=((0, _NPY),), card="array", hf=True),
    Kind("pdf", signs=((0, b"%PDF"),)),
    # Two bytes are a weak sign: the last one that is tried.
    _image("bmp", pillow="BMP", begins=(b"BM",), signs=((0, b"BM"),), hf=True),
    # Decoded by Hugging Face datasets alone.
    Kind(
        "aiff au avr caf htk ircam mat4 mat5 mpc2k nist paf pvf raw rf64 sd2 sds svx voc w64 wavex", hf=True
    ),
    Kind("bufr emf eps fit fits grib h5 hdf mpeg ps wmf wve xi", hf=True),
    Kind("glb ply stl", hf=True),
)
KINDS = {name: kind for kind in TABLE for name in kind.names.split()}
"""Rows by name."""
_UNKNOWN = Kind("")


def find(extension: str) -> Kind:
    """The row of an extension; an empty one for names that mean nothing.

    >>> find("opus").card, find("xyz").form
    ('audio/ogg', '')
    """
    return KINDS.get(extension, _UNKNOWN)


def names_of(*forms: str) -> frozenset[str]:
    """The names of some forms.

    >>> sorted(names_of("json", "cbor"))
    ['cbor', 'jsn', 'json']
    """
    return frozenset(name for name, kind in KINDS.items() if kind.form in forms)


def by_form(functions: Mapping[str, Value]) -> dict[str, Value]:
    """One value for each form, spread over the names of these forms.

    >>> by_form({"json": 1, "cbor": 2})
    {'json': 1, 'jsn': 1, 'cbor': 2}
    """
    return {name: functions[kind.form] for name, kind in KINDS.items() if kind.form in functions}
