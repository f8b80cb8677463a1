"""This module decodes, resizes and encodes pictures.

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
    ===========================  =====================================================================

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
OpenCV's filter is used. Otherwise Pillow's filter is used, which covers all pixels (antialiasing).

:class:`Recoding` resizes pictures and encodes them again, for ``wds map --resize``. Sizes, modes and rounding are the
same as in img2dataset. Pictures are turned upright by their EXIF orientation. Pillow's JPEG decoder directly gives 1/2,
1/4 or 1/8 of the size, but at least twice the target, and a Lanczos filter does the rest. In formats without
transparency, transparent pixels become white.

:func:`encode_image` accepts arrays of shape (height, width) or (height, width, 1, 3 or 4). The values are uint8, or
floats from 0 to 1, which are rounded to the nearest of 256 steps. (webdataset rounds down, so that pictures get darker
each time.) Tensors may also have the channels first: (1, 3 or 4, height, width). JPEG is written with quality 100, as
in webdataset, and WebP without loss. To encode a picture with transparency as ``jpg`` is an error.

This module does not know samples.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import Any, Literal, NamedTuple, TypeAlias

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
ResizeMode = Literal["keep_ratio", "keep_ratio_largest", "center_crop", "border", "no"]
DEFAULT_QUALITY = 95
_ORIENTATION = 0x0112
_WHITE = (255, 255, 255)
_SIXTEEN_BITS = ("PNG", "PPM")
"""Formats with grey of 16 bits that some versions of Pillow return as 32-bit numbers below 65536."""


FIRST_FORMATS = ("JPEG", "PNG", "PPM", "GIF", "BMP")
"""Formats that Pillow supports without loading all plugins. The most frequent formats come first."""
NEVER = frozenset({"BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF"})
"""Formats that are never opened, because Pillow decodes them with other programs, or cannot decode them."""
EXTENSIONS = names_of("image")
IMAGE_OPTIONS: dict[str, dict[str, Any]] = {"JPEG": {"quality": 100}, "WEBP": {"lossless": True}}
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

    def image(self, image: Any, height: int, width: int) -> Any:
        """Resize and crop a Pillow image, with Pillow alone. Raises DataError."""
        from PIL import Image

        high, wide = self.target(height, width)
        if image.size != (wide, high):
            image = image.resize((wide, high), Image.Resampling.BILINEAR)
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
    is_size = len(numbers) in (1, 2) and all(type(one) is int and one > 0 for one in numbers)
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


class Recoding(NamedTuple):
    """Resizes pictures to ``size`` pixels. Mode ``keep_ratio`` resizes the shorter side to ``size``, and
    ``keep_ratio_largest`` the longer side. ``center_crop`` resizes the shorter side and cuts a square from the middle.
    ``border`` resizes the longer side and pads the picture with white to a square. ``no`` keeps the size. With
    ``only_if_bigger``, a picture that is small enough keeps its bytes, unless its format changes."""

    size: int
    mode: ResizeMode
    only_if_bigger: bool
    quality: int | None

    def payload(self, image: Any, data: bytes, old: str, new: str) -> bytes:
        """Return the resized ``image``, encoded in the format ``new``. The image was opened from ``data``, which has
        the format ``old``. Formats have Pillow's names. Raises DataError for a picture that the format cannot hold."""
        from PIL import Image, ImageOps

        turned = image.getexif().get(_ORIENTATION, 1) in (5, 6, 7, 8)
        width, height = reversed(image.size) if turned else image.size
        wanted = self._wanted(width, height)
        if wanted is None and new == old and self.only_if_bigger:
            return data
        if wanted is not None:
            # The decoder reduces the picture to at least twice the size, and the Lanczos filter does the rest.
            image.draft(None, (2 * wanted[1], 2 * wanted[0]) if turned else (2 * wanted[0], 2 * wanted[1]))
        image = _flat(ImageOps.exif_transpose(image), image.format, new)
        if wanted is not None:
            image = self._square(image.resize(wanted, Image.Resampling.LANCZOS))
        lossy = {"quality": DEFAULT_QUALITY if self.quality is None else self.quality}
        stream = io.BytesIO()
        image.save(stream, new, **(lossy if new in ("JPEG", "WEBP") else {}))
        return stream.getvalue()

    def _wanted(self, width: int, height: int) -> tuple[int, int] | None:
        """Return width and height before the picture is cut or padded to a square, or None to keep its size."""
        side = max(width, height) if self.mode in ("keep_ratio_largest", "border") else min(width, height)
        if self.mode == "no" or (self.only_if_bigger and side <= self.size):
            return None
        scale = self.size / side
        return max(1, round(width * scale)), max(1, round(height * scale))

    def _square(self, image: Any) -> Any:
        from PIL import Image

        (width, height), side = image.size, self.size
        if self.mode == "center_crop":
            left, top = (width - side) // 2, (height - side) // 2
            return image.crop((left, top, left + side, top + side))
        if self.mode == "border":
            white = 255 if image.mode == "L" else _WHITE if image.mode == "RGB" else (*_WHITE, 255)
            canvas = Image.new(image.mode, (side, side), white)
            canvas.paste(image, ((side - width) // 2, (side - height) // 2))
            return canvas
        return image


def _flat(image: Any, old: str, new: str) -> Any:
    """Convert the image to a mode that can be resized and that the format ``new`` can hold: 8 bits of grey, RGB, or
    RGBA with transparency. ``old`` is its old format."""
    from PIL import Image

    if image.mode in ("L", "RGB"):
        return image
    if image.mode == "1":
        return image.convert("L")
    if image.mode.startswith("I;16") or (image.mode == "I" and old in _SIXTEEN_BITS):
        # Pillow's own conversion makes all values above 255 white.
        return image.convert("I").point(lambda value: value * (1 / 257) + 0.5).convert("L")
    if image.mode in ("I", "F"):
        raise DataError(
            f"a picture of mode {image.mode} has no defined maximum brightness; scale it to 8 bits first (--python)"
        )
    if "A" not in image.mode and "transparency" not in image.info:
        return image.convert("RGB")
    image = image.convert("RGBA")
    if new in ("PNG", "WEBP", "TIFF", "GIF"):
        return image
    canvas = Image.new("RGB", image.size, _WHITE)
    canvas.paste(image, mask=image.getchannel("A"))
    return canvas


class Spec(NamedTuple):
    """The decoded form of a picture. ``kind`` is numpy, torch or pil. ``mode`` is a mode of Pillow."""

    kind: str
    is_float: bool
    mode: str


def _specs() -> dict[str, Spec]:
    modes = {"l": "L", "rgb": "RGB", "rgba": "RGBA"}
    found = {"pil": Spec("pil", False, "RGB"), "torch": Spec("torch", True, "RGB")}
    for name, mode in modes.items():
        found[f"pil{name}"] = Spec("pil", False, mode)
        for prefix, kind in (("", "numpy"), ("torch", "torch")):
            found[f"{prefix}{name}8"] = Spec(kind, False, mode)
            found[f"{prefix}{name}"] = Spec(kind, True, mode)
    return found


SPECS = _specs()


class Images(ByExtension):
    """A handler for :meth:`WebDataset.decode` that decodes fields of these extensions to the form ``imagespec``.
    ``size`` and ``crop`` work like torchvision's ``Resize(size)`` and ``CenterCrop(crop)``. ``jpeg="pillow"`` uses only
    Pillow, which is slower, but gives the same pixels on every machine with the same version of Pillow. Raises
    UsageError for an unknown spec, an invalid size, or a missing package."""

    def __init__(
        self,
        imagespec: str,
        extensions: Iterable[str] = EXTENSIONS,
        *,
        jpeg: str = "auto",
        size: Size | None = None,
        crop: Size | None = None,
    ) -> None:
        if imagespec not in SPECS:
            raise UsageError(f'no such image spec: "{imagespec}"; known: {", ".join(sorted(SPECS))}')
        if jpeg not in ("auto", "pillow"):
            raise UsageError(f'jpeg= must be "auto" or "pillow", not "{jpeg}"')
        self.spec, self.fit = SPECS[imagespec], fitted(size, crop)
        names = frozenset(name.lower() for name in extensions)
        super().__init__(dict.fromkeys(names, self._decode), limited=names)
        needed("PIL.Image", f'decode("{imagespec}")', INSTALL_IMAGES)
        if self.spec.kind == "torch":
            needed("torch", f'decode("{imagespec}")', "torch")
        self.uses_simplejpeg = jpeg == "auto" and self.spec.mode == "RGB" and _simplejpeg()

    def _decode(self, data: bytes, limit: int) -> Any:
        spec = self.spec
        array = _fast(data, limit, self.fit) if self.uses_simplejpeg else None
        if spec.kind == "pil":
            return self._by_pillow(data, limit) if array is None else _image_of(array, data, limit)
        if array is None:
            array = numpy.array(self._by_pillow(data, limit))
        if spec.kind == "torch" and array.ndim == 3:
            array = array.transpose(2, 0, 1)
        return _finished(array, spec)

    def _by_pillow(self, data: bytes, limit: int) -> Any:
        """Return a Pillow image in the mode and size of this handler."""
        image = opened_image(data, limit)
        width, height = image.size
        if self.fit is not None:
            high, wide = self.fit.target(height, width)
            check_size(high * wide * len(self.spec.mode), limit)
            image.draft(None, (wide, high))
        image = image.convert(self.spec.mode)
        return image if self.fit is None else self.fit.image(image, height, width)


def _finished(array: Any, spec: Spec) -> Any:
    """Return a contiguous array, or for torch a tensor, of uint8 or of floats from 0 to 1."""
    if spec.is_float:
        array = numpy.divide(array, numpy.float32(255), dtype=numpy.float32, order="C")
    array = numpy.ascontiguousarray(array)
    if spec.kind == "numpy":
        return array
    import torch

    return torch.from_numpy(array)


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
            others = [name for name in Image.ID if name not in NEVER and name not in FIRST_FORMATS]
            image = Image.open(stream, formats=others)
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
    stream = io.BytesIO()
    try:
        picture.save(stream, form, **IMAGE_OPTIONS.get(form, {}))
    except (OSError, ValueError) as error:
        raise UsageError(f"{kind} cannot hold a picture of mode {picture.mode}: {error}") from error
    return stream.getvalue()


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
    """Return the picture as a contiguous array of uint8."""
    if array.dtype.kind == "f":
        if array.size and not (array.min() > -FLOAT_SLACK and array.max() < 1 + FLOAT_SLACK):
            raise UsageError(
                f"the values of a float picture must be from 0 to 1, not {array.min()} to {array.max()}"
            )
        array = numpy.rint(numpy.clip(array, 0, 1) * 255).astype(numpy.uint8)
    if array.dtype != numpy.uint8:
        raise UsageError(f"a picture must be uint8, or floats from 0 to 1, not {array.dtype}")
    return numpy.ascontiguousarray(array)


imagehandler = Images
"""webdataset's name for :class:`Images`."""
