"""This module decodes and encodes pictures.

:class:`Images` is a handler for one of :data:`SPECS`, under webdataset's names:

    ===========================  =====================================================================
    ``l8``                       numpy uint8, (height, width)
    ``rgb8``, ``rgba8``          numpy uint8, (height, width, 3 or 4)
    ``l``, ``rgb``, ``rgba``     numpy float32 from 0 to 1, the same shapes
    ``torchl8``, ``torchl``      torch uint8 or float32, (height, width)
    ``torchrgb8``, ...           torch uint8, (3 or 4, height, width)
    ``torchrgb``, ...            torch float32 from 0 to 1, (3 or 4, height, width)
    ``torch``                    ``torchrgb``
    ``pill``, ``pil``,           Pillow's images of mode L, RGB, RGB, RGBA
    ``pilrgb``, ``pilrgba``
    ``stored``, ``torchstored``  the values in the file, as an array or a tensor: uint8, uint16, int32 or
                                 float32; palette indexes; bool for pictures of 1 bit
    ``pilstored``                Pillow's image in the mode of the file
    ===========================  =====================================================================

The last two rows are new. All other forms have 8 bits a colour, or floats made from 8 bits. Pillow would clip gray of
16 bits and of floats to 255 for them. Such a picture is an error whose hint names the form ``stored``. Colours of 16
bits lose their lower half, because Pillow reads only 8 bits of them; this is a warning, and ``stored`` reads all bits
with OpenCV.

Pillow decodes and converts. If simplejpeg is installed, it decodes JPEGs of three components to ``rgb8``, ``rgb``,
``pil`` and their torch variants. simplejpeg gives the same pixels as Pillow, because both use libjpeg-turbo, in about
half the time. Pillow decodes the pictures that simplejpeg refuses. ``imagehandler(spec, jpeg="pillow")`` uses neither
simplejpeg nor OpenCV. As with ``PIL.Image.open``, an orientation in EXIF is not applied; Pillow's images keep it for
``ImageOps.exif_transpose``. The arrays are writable. Formats that Pillow decodes with other programs (EPS with
Ghostscript) are never opened, under any name.

:class:`Fit` resizes pictures that a loader decodes, for ``decode("rgb8", size=224, crop=224)``. The arguments and
shapes are those of torchvision's ``Resize(size)`` and ``CenterCrop(crop)``. A JPEG is first decoded to 1/2, 1/4 or 1/8
of its size, the smallest of these that is not below the target (DCT scaling, which skips most of the decoding). A
bilinear filter then resizes the picture to the target. If OpenCV is installed, and no side shrinks to less than half,
OpenCV's filter is used. Otherwise Pillow's filter is used, which covers all pixels (antialiasing). A mean of palette
indexes, bits or stored values would be a value that the picture does not have. So pictures of :data:`NEAREST_MODES`,
and all pictures in the form ``stored``, are resized by the nearest pixel.

:func:`encode_image` accepts arrays of shape (height, width) or (height, width, 1, 3 or 4). The values are uint8, or
floats from 0 to 1, which are rounded to the nearest of 256 steps. Arrays of shape (height, width) may also be uint16 or
bool, if the format has gray of 16 bits or pictures of 1 bit. (webdataset rounds down, so that pictures get darker
each time.) Tensors may also have the channels first: (1, 3 or 4, height, width). JPEG is written with quality 100, as
in webdataset, and WebP without loss. To encode a picture with transparency as ``jpg`` is an error.

This module does not know samples.
"""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

from wdscli.arrays import numpy
from wdscli.codecs.handlers import INSTALL_IMAGES, MAX_DECODED_BYTES, ByExtension, check_size, needed
from wdscli.codecs.kinds import find, names_of
from wdscli.errors import DataError, UsageError

Size: TypeAlias = "int | tuple[int, int]"
"""A size in pixels: one number, or height and width."""
FACTORS = (8, 4, 2)
"""The factors by which libjpeg-turbo and Pillow can reduce a JPEG while they decode it, which saves time."""
MOST_BILINEAR = 2
"""The largest factor of reduction at which a bilinear filter of four pixels still uses every pixel."""
NEAREST_MODES = ("1", "P", "PA")
"""Pillow's modes in which a mean of two values is no value between them: bits and palette indexes."""
SIXTEEN_BIT_FORMATS = ("PNG", "PPM")
"""Formats with gray of 16 bits that some versions of Pillow return as 32-bit numbers below 65536."""
_MODE_WORDS = {
    "1": "1 bit",
    "F": "floats",
    "I": "gray of 32 bits",
    "L": "gray",
    "LA": "gray with transparency",
    "P": "a palette",
    "PA": "a palette with transparency",
    "RGBA": "RGB with transparency",
}

FIRST_FORMATS = ("JPEG", "PNG", "PPM", "GIF", "BMP")
"""Formats that Pillow supports without loading all plugins. The most frequent formats come first."""
NEVER = frozenset({"BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF"})
"""Formats that are never opened, because Pillow decodes them with other programs, or cannot decode them."""
EXTENSIONS = names_of("image")
IMAGE_OPTIONS: dict[str, dict[str, Any]] = {"JPEG": {"quality": 100}, "WEBP": {"lossless": True}}
HELD_MODES = {
    "BMP": ("1", "L", "P", "RGB"),
    "GIF": ("L", "P"),
    "JPEG": ("L", "RGB"),
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I;16B"),
    "PPM": ("1", "L", "RGB", "I;16", "I;16B"),
    "TIFF": ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "I;16", "I;16B", "I", "F"),
    "WEBP": ("RGB", "RGBA"),
}
"""Pillow's modes that each written format keeps. Pillow converts some other modes without a word, and clips them."""
FLOAT_SLACK = 0.001
"""The largest accepted distance of a float from the range 0 to 1."""


class Fit(NamedTuple):
    """A target size. ``size`` is height and width, or a number for the shorter side; then the longer side keeps the
    proportions. ``crop`` is the size of the middle part that is kept: height and width, or a number for both.

    >>> Fit(224).target(300, 400), Fit((224, 200)).target(300, 400), Fit(crop=(2, 3)).target(300, 400)
    ((224, 298), (224, 200), (300, 400))
    >>> Fit(100).factor(300, 400), Fit(crop=100).factor(300, 400)
    (2, 1)
    """

    size: Size | None = None
    crop: Size | None = None

    def target(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width of a picture after it was resized and before it is cropped."""
        if self.size is None:
            return height, width
        if not isinstance(self.size, int):
            return self.size
        longer = int(self.size * max(height, width) / min(height, width))
        return (self.size, longer) if height <= width else (longer, self.size)

    def factor(self, height: int, width: int) -> int:
        """Return the factor by which a JPEG of this height and width may be reduced while it is decoded."""
        high, wide = self.target(height, width)
        return next((factor for factor in FACTORS if height >= factor * high and width >= factor * wide), 1)

    def array(self, pixels: Any, height: int, width: int) -> Any:
        """Resize and crop ``pixels``, which were decoded from a picture of this height and width. Raises DataError."""
        high, wide = self.target(height, width)
        if pixels.shape[:2] != (high, wide):
            opencv = _opencv()
            if (
                opencv is not None
                and pixels.shape[0] <= MOST_BILINEAR * high
                and pixels.shape[1] <= MOST_BILINEAR * wide
            ):
                # INTER_LINEAR_EXACT gives the same pixels on every processor.
                pixels = opencv.resize(pixels, (wide, high), interpolation=opencv.INTER_LINEAR_EXACT)
            else:
                from PIL import Image

                image = Image.fromarray(pixels).resize((wide, high), Image.Resampling.BILINEAR)
                pixels = numpy.array(image)
        if self.crop is None:
            return pixels
        top, left, bottom, right = self._middle(high, wide)
        return numpy.ascontiguousarray(pixels[top:bottom, left:right])

    def image(self, image: Any, height: int, width: int, *, by_nearest: bool) -> Any:
        """Resize and crop a Pillow image, with Pillow alone. Raises DataError."""
        from PIL.Image import Resampling

        high, wide = self.target(height, width)
        if image.size != (wide, high):
            image = image.resize((wide, high), Resampling.NEAREST if by_nearest else Resampling.BILINEAR)
        if self.crop is None:
            return image
        top, left, bottom, right = self._middle(high, wide)
        return image.crop((left, top, right, bottom))

    def _middle(self, high: int, wide: int) -> tuple[int, int, int, int]:
        """Return top, left, bottom and right of the part that ``crop`` keeps. Raises DataError if the picture is
        smaller."""
        height, width = (self.crop, self.crop) if isinstance(self.crop, int) else self.crop or (high, wide)
        if height > high or width > wide:
            raise DataError(
                f"a picture of {high} x {wide} pixels cannot be cropped to {height} x {width} (height x width)",
                code="undecodable",
                hint="resize pictures with size= before they are cropped",
            )
        top, left = round((high - height) / 2), round((wide - width) / 2)
        return top, left, top + height, left + width


def fitted(size: Any, crop: Any) -> Fit | None:
    """Return the target for these arguments, or None if both are None. Raises UsageError for an invalid size."""
    if size is None and crop is None:
        return None
    return Fit(_checked("size", size), _checked("crop", crop))


def _checked(name: str, size: Any) -> Size | None:
    numbers = tuple(size) if isinstance(size, (tuple, list)) else (size,)
    is_size = len(numbers) in (1, 2) and all(type(side) is int and side > 0 for side in numbers)
    if size is None:
        return None
    if not is_size:
        raise UsageError(
            f"{name}={size!r} is not a size", hint=f"use {name}=224, or {name}=(HEIGHT, WIDTH), in pixels"
        )
    return numbers if len(numbers) == 2 else numbers[0]


@cache
def _opencv() -> Any:
    """Import OpenCV. Return None if OpenCV is not installed, or if a system library that it needs is missing."""
    try:
        return import_module("cv2")
    except ImportError:
        return None


class Spec(NamedTuple):
    """The decoded form of a picture. ``kind`` is numpy, torch or pil. ``mode`` is a mode of Pillow, or empty for the
    values in the file."""

    kind: str
    mode: str
    is_float: bool = False

    @property
    def stored(self) -> str:
        """The name of the form of this kind that has the values in the file."""
        return f"{self.kind.removeprefix('numpy')}stored"


def _specs() -> dict[str, Spec]:
    modes = {"l": "L", "rgb": "RGB", "rgba": "RGBA"}
    specs = {"pil": Spec("pil", "RGB"), "torch": Spec("torch", "RGB", is_float=True)}
    for name, mode in modes.items():
        specs[f"pil{name}"] = Spec("pil", mode)
        for prefix, kind in (("", "numpy"), ("torch", "torch")):
            specs[f"{prefix}{name}8"] = Spec(kind, mode)
            specs[f"{prefix}{name}"] = Spec(kind, mode, is_float=True)
    stored = [Spec(kind, "") for kind in ("numpy", "torch", "pil")]
    return {**specs, **{spec.stored: spec for spec in stored}}


SPECS = _specs()


class Images(ByExtension):
    """A handler for :meth:`WebDataset.decode` that decodes fields of these extensions to the form ``imagespec``.
    ``extensions`` may also be text with blanks between them, and ``"depth.png"`` matches only fields that end in both
    parts. ``size`` and ``crop`` work like torchvision's ``Resize(size)`` and ``CenterCrop(crop)``. ``jpeg="pillow"``
    uses only Pillow, which is slower, but gives the same pixels on every machine with the same version of Pillow.
    Raises UsageError for an unknown spec, an invalid size, or a missing package."""

    def __init__(
        self,
        imagespec: str,
        extensions: str | Iterable[str] = EXTENSIONS,
        *,
        jpeg: str = "auto",
        size: Size | None = None,
        crop: Size | None = None,
    ) -> None:
        if imagespec not in SPECS:
            raise UsageError(f'no such image spec: "{imagespec}"; known: {", ".join(sorted(SPECS))}')
        if jpeg not in ("auto", "pillow"):
            raise UsageError(f'jpeg= must be "auto" or "pillow", not "{jpeg}"')
        self.name, self.spec, self.fit = imagespec, SPECS[imagespec], fitted(size, crop)
        listed = extensions.split() if isinstance(extensions, str) else extensions
        names = frozenset(name.lower() for name in listed)
        super().__init__(dict.fromkeys(names, self._decode), limited=names)
        needed("PIL.Image", f'decode("{imagespec}")', INSTALL_IMAGES)
        if self.spec.kind == "torch":
            needed("torch", f'decode("{imagespec}")', "torch")
        self.uses_simplejpeg = jpeg == "auto" and self.spec.mode == "RGB" and _simplejpeg()

    def _decode(self, data: bytes, limit: int) -> Any:
        spec = self.spec
        array = _fast(data, limit, self.fit) if self.uses_simplejpeg else None
        if array is not None:
            return _image_of(array, data, limit) if spec.kind == "pil" else _finished(array, spec)
        image = opened_image(data, limit)
        if has_16_bit_colours(image):
            if spec.mode:
                warnings.warn(f'decode("{self.name}") {_LOSES_BITS}', stacklevel=2)
            else:
                return _finished(self._by_opencv(image, data, limit), spec)
        image = self._by_pillow(image, limit)
        return image if spec.kind == "pil" else _finished(numpy.array(image), spec)

    def _by_pillow(self, image: Any, limit: int) -> Any:
        """Return an opened image in the mode and size of this handler. Raises DataError for a mode with values above
        255."""
        width, height = image.size
        mode, fit = self.spec.mode, self.fit
        if mode and has_wide_values(image):
            stored = self.spec.stored
            raise DataError(
                f'it has {mode_words(image)}, which decode("{self.name}") would clip to 8 bits',
                code="undecodable",
                hint=f'decode("{stored}") gives its values; for depth.png alone: '
                f'decode(wds.imagehandler("{stored}", "depth.png"), "{self.name}")',
            )
        by_nearest = not mode or image.mode in NEAREST_MODES
        if fit is not None:
            high, wide = fit.target(height, width)
            check_size(high * wide * (len(mode) or _pixel_bytes(image)), limit)
            if not by_nearest:
                image.draft(None, (wide, high))
        image = image.convert(mode) if mode else _unscaled(image)
        return image if fit is None else fit.image(image, height, width, by_nearest=by_nearest)

    def _by_opencv(self, image: Any, data: bytes, limit: int) -> Any:
        """Return the values of a picture with colours of 16 bits, which Pillow cannot read."""
        if self.spec.kind == "pil":
            raise DataError(
                "Pillow has no images with 16 bits a colour",
                code="undecodable",
                hint='decode("stored") gives an array of uint16',
            )
        opencv = needed("cv2", "a picture with 16 bits a colour", "'wdscli[fast]'")
        (width, height), bands = image.size, len(image.getbands())
        check_size(height * width * bands * 2, max(limit, len(data)))
        array = opencv.imdecode(numpy.frombuffer(data, numpy.uint8), opencv.IMREAD_UNCHANGED)
        if array is None or array.shape != (height, width, bands):
            raise DataError("OpenCV cannot read its colours of 16 bits", code="undecodable")
        array = array[..., [2, 1, 0, 3][:bands]]
        if self.fit is None:
            return array
        fitted_bands = (self._fitted(array[..., band]) for band in range(bands))
        return numpy.dstack(list(fitted_bands))

    def _fitted(self, array: Any) -> Any:
        from PIL import Image

        assert self.fit is not None
        image = Image.fromarray(numpy.ascontiguousarray(array))
        return numpy.array(self.fit.image(image, *array.shape, by_nearest=True))


_LOSES_BITS = (
    "keeps the upper 8 of 16 bits a colour, because Pillow reads no more; "
    'decode("stored") gives all bits as uint16'
)


def _finished(array: Any, spec: Spec) -> Any:
    """Return a contiguous array, or for torch a tensor with the channels first. With ``spec.is_float``, 255 becomes
    1."""
    if spec.kind == "torch" and array.ndim == 3:
        array = array.transpose(2, 0, 1)
    if spec.is_float:
        array = numpy.divide(array, numpy.float32(255), dtype=numpy.float32, order="C")
    array = numpy.ascontiguousarray(array, array.dtype.newbyteorder("="))
    if spec.kind == "numpy":
        return array
    import torch

    return torch.from_numpy(array)


def has_wide_values(image: Any) -> bool:
    """Return whether the pixels of an image can have values above 255, or fractions."""
    return image.mode in ("I", "F") or image.mode.startswith("I;")


def is_transparent(image: Any) -> bool:
    """Return whether an image has transparent pixels, or may have some."""
    return image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info


def mode_words(image: Any) -> str:
    """Return words for the pixels of an image, such as "gray of 16 bits".

    >>> from PIL import Image
    >>> mode_words(Image.new("P", (1, 1))), mode_words(Image.new("I;16B", (1, 1))), mode_words(Image.new("RGB", (1, 1)))
    ('a palette', 'gray of 16 bits', 'RGB')
    """
    is_16_bits = image.mode.startswith("I;16") or (image.mode == "I" and image.format in SIXTEEN_BIT_FORMATS)
    return "gray of 16 bits" if is_16_bits else _MODE_WORDS.get(image.mode, image.mode)


def has_16_bit_colours(image: Any) -> bool:
    """Return whether an opened image has colours, or transparency, of 16 bits. Pillow keeps only their upper 8 bits."""
    if has_wide_values(image):
        return False
    return any(";16" in str(option) for option in _tile_options(image)) or (_maximum(image) or 0) > 255


def _tile_options(image: Any) -> tuple[Any, ...]:
    """Return how Pillow will decode an opened image, such as ``("RGB;16B",)``. It is empty for a decoded image."""
    options = image.tile[0][3] if image.tile else ()
    return options if isinstance(options, tuple) else (options,)


def _maximum(image: Any) -> int | None:
    """Return the largest value of an opened PGM or PPM if Pillow scales its values."""
    options = _tile_options(image)
    is_scaled = image.format == "PPM" and len(options) == 2 and isinstance(options[1], int)
    return options[1] if is_scaled else None


def _unscaled(image: Any) -> Any:
    """Return an opened image with the values in the file. Pillow scales a PGM or PPM to 255 or 65535, and returns some
    gray of 16 bits as numbers of 32 bits."""
    from PIL import Image

    maximum = _maximum(image)
    if image.mode == "I" and image.format in SIXTEEN_BIT_FORMATS:
        values = numpy.asarray(image) * ((maximum or 65535) / 65535)
        return Image.fromarray(numpy.rint(values).astype(numpy.uint16))
    if maximum not in (None, 255):
        return image.point(lambda value: round(value * maximum / 255))
    image.load()
    return image


def open_image(data: bytes, limit: int = MAX_DECODED_BYTES) -> Any:
    """Decode a payload to a Pillow image. Raises DataError for data that are not a picture, and for more than ``limit``
    bytes of pixels. Raises Pillow's errors for a broken picture."""
    image = opened_image(data, limit)
    image.load()
    return image


def opened_image(data: bytes, limit: int) -> Any:
    """Return a Pillow image like :func:`open_image`, but read only its header."""
    from PIL import Image, UnidentifiedImageError

    stream = io.BytesIO(data)
    try:
        try:
            image = Image.open(stream, formats=FIRST_FORMATS)
        except UnidentifiedImageError:
            Image.init()
            further_formats = [name for name in Image.ID if name not in NEVER and name not in FIRST_FORMATS]
            image = Image.open(stream, formats=further_formats)
    except UnidentifiedImageError:
        raise DataError("it is not an image of a supported format") from None
    except Image.DecompressionBombError:
        raise DataError(
            "it has too many pixels for Pillow (more than twice PIL.Image.MAX_IMAGE_PIXELS)"
        ) from None
    check_size(image.width * image.height * _pixel_bytes(image), max(limit, len(data)))
    return image


def _pixel_bytes(image: Any) -> int:
    """Return the number of bytes that a pixel has in an array."""
    return len(image.getbands()) * {"I": 4, "F": 4}.get(image.mode, 2 if ";16" in image.mode else 1)


def _simplejpeg() -> bool:
    """Return whether simplejpeg is installed and gives the same pixels as Pillow."""
    from importlib.util import find_spec

    from PIL import features

    return find_spec("simplejpeg") is not None and bool(features.check("libjpeg_turbo"))


def _fast(data: bytes, limit: int, fit: Fit | None) -> Any:
    """Decode a JPEG in YCbCr to an array of shape (height, width, 3). Return None for other data and broken
    pictures."""
    if data[:2] != b"\xff\xd8":
        return None
    import simplejpeg  # type: ignore[import-not-found,import-untyped,unused-ignore]

    try:
        height, width, colors, *_ = simplejpeg.decode_jpeg_header(data)
        if colors != "YCbCr":
            return None
        check_size(height * width * 3, limit)
        if fit is None:
            return simplejpeg.decode_jpeg(data)
        high, wide = fit.target(height, width)
        check_size(high * wide * 3, limit)
        # With these minimal sides, simplejpeg chooses the wanted factor.
        factor = fit.factor(height, width)
        least = {"min_height": -(-height // factor), "min_width": -(-width // factor)}
        array = simplejpeg.decode_jpeg(data, min_factor=factor, **least)
    except ValueError:
        return None
    return fit.array(array, height, width)


def _image_of(array: Any, data: bytes, limit: int) -> Any:
    """Return a Pillow image of these pixels, with the payload's metadata: EXIF, colour profile, resolution."""
    from PIL import Image

    image = Image.fromarray(array)
    image.info = opened_image(data, limit).info
    return image


def encode_image(picture: Any, kind: str) -> bytes:
    """Return ``picture`` encoded as the type of the extension ``kind``. Raises UsageError for a value that is not a
    picture, or that this type cannot hold."""
    image_module = needed("PIL.Image", f"a field of type {kind}", INSTALL_IMAGES)
    if not isinstance(picture, image_module.Image):
        picture = image_module.fromarray(_picture_bytes(_picture_array(picture)))
    if kind == "pbm" and picture.mode == "L":
        picture = picture.convert("1", dither=0)
    form, mode = find(kind).pillow, find(kind).mode or picture.mode
    if picture.mode != mode:
        raise UsageError(f"{kind} holds pictures of mode {mode}, not {picture.mode}")
    if has_wide_values(picture) and picture.mode not in HELD_MODES[form]:
        raise UsageError(
            f"{kind} cannot hold {mode_words(picture)}", hint="use png for 16 bits, tif for floats"
        )
    stream = io.BytesIO()
    try:
        picture.save(stream, form, **IMAGE_OPTIONS.get(form, {}))
    except (OSError, ValueError) as error:
        raise UsageError(f"{kind} cannot hold a picture of mode {picture.mode}: {error}") from error
    if form == "GIF" and picture.mode not in HELD_MODES[form] and not _has_pixels(stream, picture):
        raise UsageError(
            "gif cannot hold all colours of the picture: it has at most 256",
            hint="use png, or reduce the colours",
        )
    return stream.getvalue()


def _has_pixels(stream: io.BytesIO, picture: Any) -> bool:
    """Return whether an encoded picture has the pixels of ``picture``."""
    from PIL import Image

    return bool(Image.open(stream).convert(picture.mode).tobytes() == picture.tobytes())


def _picture_array(picture: Any) -> Any:
    """Return the picture as an array with its channels last."""
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
    """Return the picture as a contiguous array of uint8. An array of uint16 or bool with one channel keeps its type."""
    if array.dtype.kind == "f":
        if array.size and not (array.min() > -FLOAT_SLACK and array.max() < 1 + FLOAT_SLACK):
            raise UsageError(
                f"the values of a float picture must be from 0 to 1, not {array.min()} to {array.max()}"
            )
        array = numpy.rint(numpy.clip(array, 0, 1) * 255).astype(numpy.uint8)
    is_stored = array.ndim == 2 and array.dtype in (numpy.uint16, numpy.bool_)
    if array.dtype != numpy.uint8 and not is_stored:
        raise UsageError(
            f"a picture must be uint8, or floats from 0 to 1, or gray of uint16 or bool, not {array.dtype}"
        )
    return numpy.ascontiguousarray(array)


imagehandler = Images
"""webdataset's name for :class:`Images`."""
