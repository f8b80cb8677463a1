"""This module has the table that says what a field's name means for its payload.

:data:`TABLE` has a row for each kind of field. :func:`find` returns the row of an extension. Rows are plain data. The
column ``form`` names the data format. The modules that decode and encode have one function for each form, and
:func:`by_form` assigns the function to all names of the form. So a new name for a known format needs one word in this
table. A new format needs a row in this table and a function in those modules. Importing this module loads no decoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal, NamedTuple, TypeVar

Value = TypeVar("Value")
PictureFormat = Literal["jpg", "png", "webp"]
"""The formats that ``wds map --format`` writes."""


class FieldKind(NamedTuple):
    """A row of the table: a kind of field. Columns that have no meaning for a kind are empty."""

    names: str
    """The extensions in lower case, with blanks between them. The first extension is the most usual."""
    form: str = ""
    """The data format. Fields without a format are not decoded. The formats ``number`` and ``markup`` are only
    encoded."""
    container: str = ""
    """FFmpeg's name of the container, for PyAV. If the name is empty, soundfile decodes audio; for video, the extension
    is the container's name."""
    pillow: str = ""
    """Pillow's name of the format in which such pictures are written."""
    mode: str = ""
    """The only mode that such a picture can have."""
    packages: str = ""
    """Optional packages that can decode such fields. The recommended package is first."""
    begins: tuple[bytes, ...] = ()
    """If a cell of a table has bytes for this kind, they must begin with one of these."""
    signs: tuple[tuple[int, bytes], ...] = ()
    """Pairs of an offset and bytes at this offset. ``create`` recognizes a payload by them if its name says nothing."""
    card: str = ""
    """How the report shows the field: ``text``, ``number``, ``json``, ``array``, ``image``, or a media type for the
    browser."""
    is_cuttable: bool = False
    """Whether browsers can play the beginning of a file that was cut off."""
    role: str = ""
    """How the report uses the field: as a sample's ``class`` or ``caption``. Earlier rows of the table are
    preferred."""
    is_text: bool = False
    """Whether the field is written as text to JSON Lines and TSV."""
    hf: bool = False
    """Whether Hugging Face's library ``datasets`` decodes the field. The library decodes the same fields of data values
    as webdataset."""
    is_binary: bool = False
    """Whether text is never a payload of this kind, unless it begins with ``begins``: sound, film, pictures, arrays."""

    @property
    def is_picture(self) -> bool:
        """Whether Pillow reads or writes such payloads."""
        return self.form == "image" or bool(self.pillow)

    @property
    def may_be_text(self) -> bool:
        """Whether such a field may have text that is no class, caption or number. A name without a row may."""
        is_written_as_text = self.is_text and self.form not in ("integer", "number")
        return not self.role and (not self.names or self.card == "text" or is_written_as_text)


_binary = partial(FieldKind, is_binary=True)
_image = partial(_binary, form="image", card="image")
_audio = partial(_binary, form="audio")
_video = partial(_binary, form="video")
_MP3 = ((0, b"ID3"), (0, b"\xff\xfb"), (0, b"\xff\xf3"), (0, b"\xff\xf2"))
_NPY = b"\x93NUMPY"
_PNG = b"\x89PNG\r\n\x1a\n"
_PNM = (b"P1", b"P2", b"P3", b"P4", b"P5", b"P6")
_TEN = b"~TenBin~"
_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")

TABLE = (
    FieldKind("txt text", "text", card="text", role="caption", is_text=True, hf=True),
    FieldKind("caption", card="text", role="caption", is_text=True),
    FieldKind("transcript", "text", card="text", role="caption", is_text=True, hf=True),
    FieldKind("prompt", card="text", role="caption"),
    FieldKind("description title", role="caption"),
    FieldKind("cls cls2", "integer", card="number", role="class", is_text=True, hf=True),
    FieldKind("label", card="text", role="class"),
    FieldKind("class", "number", card="text", role="class", is_text=True),
    FieldKind("category class_name", role="class"),
    FieldKind("id index inx", "integer", card="number", is_text=True, hf=True),
    FieldKind("count", "number", is_text=True),
    FieldKind("html", "markup", card="text", is_text=True),
    FieldKind("htm", "markup", card="text"),
    FieldKind("csv md xml", card="text", is_text=True),
    FieldKind("tsv yaml yml", is_text=True),
    FieldKind("json jsn", "json", card="json", hf=True),
    FieldKind("mp msg", "msgpack", hf=True),
    FieldKind("msgpack", "msgpack"),
    FieldKind("cbor", "cbor", packages="cbor2 cbor", hf=True),
    _binary("npz", "npz", begins=(b"PK",), card="array", hf=True),
    _binary("pth", "torch", packages="torch", card="array", hf=True),
    _binary("ten tb", "bundle", begins=(_TEN,), card="array", hf=True),
    _binary("tenbin", "bundle", begins=(_TEN,), card="array"),
    FieldKind("pickle pkl pyd", "pickle"),
    FieldKind("gz", begins=(b"\x1f\x8b",)),
    _image("jpg jpeg", pillow="JPEG", begins=(b"\xff\xd8",), signs=((0, b"\xff\xd8\xff"),), hf=True),
    _image("png", pillow="PNG", begins=(_PNG,), signs=((0, _PNG),), hf=True),
    _image("webp", pillow="WEBP", begins=(b"RIFF",), signs=((8, b"WEBP"),), hf=True),
    _image("gif", pillow="GIF", begins=(b"GIF8",), signs=((0, b"GIF8"),), hf=True),
    _image("tif tiff", pillow="TIFF", begins=_TIFF, signs=((0, _TIFF[0]), (0, _TIFF[1])), hf=True),
    _image("pbm", pillow="PPM", mode="1", begins=_PNM, hf=True),
    _image("pgm", pillow="PPM", mode="L", begins=_PNM, hf=True),
    _image("ppm", pillow="PPM", mode="RGB", begins=_PNM, hf=True),
    _binary("image img", pillow="JPEG"),  # webdataset also writes JPEG for these names
    _image("apng blp bw cur dcx dds dib flc fli ftc ftu gbr icb icns ico iim im j2c j2k jfif jp2", hf=True),
    _image("jpc jpe jpf jpx msp pcx pnm psd pxr ras rgb rgba sgi tga vda vst", hf=True),
    _image("pcd xbm xpm", hf=True, is_binary=False),  # a file pcd may also be a cloud of points as text
    _image("avif avifs pfm qoi"),
    FieldKind("svg", card="image/svg+xml"),
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
    _binary("npy", "npy", begins=(_NPY,), signs=((0, _NPY),), card="array", hf=True),
    FieldKind("pdf", signs=((0, b"%PDF"),)),
    # Two bytes are a weak sign, so this row comes after the other rows with signs.
    _image("bmp", pillow="BMP", begins=(b"BM",), signs=((0, b"BM"),), hf=True),
    # Only datasets, a library of Hugging Face, decodes these kinds.
    _binary(
        "aiff au avr caf htk ircam mat4 mat5 mpc2k nist paf pvf raw rf64 sd2 sds svx voc w64 wavex", hf=True
    ),
    _binary("bufr emf fit fits glb grib h5 hdf mpeg wmf wve xi", hf=True),
    FieldKind("eps ply ps stl", hf=True),
    # No reader decodes these kinds by their names.
    _binary("ckpt dcm exr hdf5 heic heif jxl nii pt safetensors"),
)
KINDS = {name: kind for kind in TABLE for name in kind.names.split()}
"""The rows of the table by extension."""
_UNKNOWN = FieldKind("")


def find(extension: str) -> FieldKind:
    """Return the row of an extension. Return an empty row for an unknown extension.

    >>> find("opus").card, find("xyz").form
    ('audio/ogg', '')
    """
    return KINDS.get(extension, _UNKNOWN)


def names_of(*forms: str) -> frozenset[str]:
    """Return the extensions of the given forms.

    >>> sorted(names_of("json", "cbor"))
    ['cbor', 'jsn', 'json']
    """
    return frozenset(name for name, kind in KINDS.items() if kind.form in forms)


def by_form(functions: Mapping[str, Value]) -> dict[str, Value]:
    """Convert a dict of values by form to a dict of values by extension.

    >>> by_form({"json": 1, "cbor": 2})
    {'json': 1, 'jsn': 1, 'cbor': 2}
    """
    return {name: functions[kind.form] for name, kind in KINDS.items() if kind.form in functions}
