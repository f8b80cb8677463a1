"""Resizing of pictures: by ``decode("rgb8", size=224, crop=224)``, and by ``wds map --resize``.

What it is: :class:`Fit` for pixels that a loader decodes, and :class:`Recoding` for pictures that are written
again.

:class:`Fit`: the arguments and shapes are those of torchvision's ``Resize(size)`` and ``CenterCrop(crop)``. A JPEG
is first decoded to 1/2, 1/4 or 1/8 of its size, the smallest that is not below the target (DCT scaling, which skips
most of the decoding). The rest is bilinear: by OpenCV if it is installed and both sides shrink to no less than
half, where a bilinear filter needs nothing more; else by Pillow, whose filter covers all pixels (antialiased).

:class:`Recoding`: sizes, modes and rounding are img2dataset's. Pictures are turned upright by their EXIF
orientation. Pillow's JPEG decoder gives a half, a quarter or an eighth of the size at once, at least twice the
target, and Lanczos does the rest. Transparency becomes white in formats without it.

It must not know where pixels come from.
"""

from __future__ import annotations

import io
from functools import cache
from importlib import import_module
from typing import Any, Literal, NamedTuple, TypeAlias

from wdscli.arrays import numpy
from wdscli.errors import DataError, UsageError

Size: TypeAlias = "int | tuple[int, int]"
"""A number, or height and width."""
FACTORS = (8, 4, 2)
"""Factors by which libjpeg-turbo and Pillow reduce JPEGs while they decode, in less time."""
MOST_BILINEAR = 2
"""The largest factor at which a bilinear filter of four pixels still uses every pixel."""
ResizeMode = Literal["keep_ratio", "keep_ratio_largest", "center_crop", "border", "no"]
DEFAULT_QUALITY = 95
_ORIENTATION = 0x0112
_WHITE = (255, 255, 255)
_SIXTEEN_BITS = ("PNG", "PPM")
"""Formats whose grey of more than 8 bits Pillow returns, or returned, as 32-bit numbers below 65536."""


class Fit(NamedTuple):
    """A target ``size``: height and width, or a number for the shorter side (the longer keeps the proportions);
    then ``crop``, the middle: height and width or a number for both.

    >>> Fit(224).target(300, 400), Fit((224, 200)).target(300, 400), Fit(crop=(2, 3)).target(300, 400)
    ((224, 298), (224, 200), (300, 400))
    >>> Fit(100).factor(300, 400), Fit(crop=100).factor(300, 400)
    (2, 1)
    """

    size: Size | None = None
    crop: Size | None = None

    def target(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of such a picture before it is cropped."""
        if self.size is None:
            return height, width
        if not isinstance(self.size, int):
            return self.size
        longer = int(self.size * max(height, width) / min(height, width))
        return (self.size, longer) if height <= width else (longer, self.size)

    def factor(self, height: int, width: int) -> int:
        """The factor by which a JPEG of this height and width may be decoded smaller."""
        high, wide = self.target(height, width)
        return next((factor for factor in FACTORS if height >= factor * high and width >= factor * wide), 1)

    def array(self, pixels: Any, height: int, width: int) -> Any:
        """Resize and crop ``pixels``, decoded from a picture of this height and width. Raises DataError."""
        high, wide = self.target(height, width)
        if pixels.shape[:2] != (high, wide):
            opencv = _opencv()
            if (
                opencv is not None
                and pixels.shape[0] <= MOST_BILINEAR * high
                and pixels.shape[1] <= MOST_BILINEAR * wide
            ):
                # Exact: the same pixels on every processor.
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
        """The same for one of Pillow's images, by Pillow alone."""
        from PIL import Image

        high, wide = self.target(height, width)
        if image.size != (wide, high):
            image = image.resize((wide, high), Image.Resampling.BILINEAR)
        if self.crop is None:
            return image
        top, left, bottom, right = self._middle(high, wide)
        return image.crop((left, top, right, bottom))

    def _middle(self, high: int, wide: int) -> tuple[int, int, int, int]:
        """Top, left, bottom and right of ``crop``. Raises DataError when the picture is smaller."""
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
    """The target of these arguments; None for none. Raises UsageError for an invalid size."""
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
    """OpenCV, or None if it is not installed or lacks a library of the system."""
    try:
        return import_module("cv2")
    except ImportError:
        return None


class Recoding(NamedTuple):
    """A target of ``size`` pixels. ``keep_ratio`` sets the shorter side, ``keep_ratio_largest`` the longer one.
    ``center_crop`` sets the shorter one and cuts a square from the middle. ``border`` sets the longer one and pads
    with white to a square. ``no`` keeps the size. With ``only_if_bigger`` a picture that is small enough keeps its
    bytes, unless its format changes."""

    size: int
    mode: ResizeMode
    only_if_bigger: bool
    quality: int | None

    def payload(self, image: Any, data: bytes, old: str, new: str) -> bytes:
        """The payload in the format ``new`` of an ``image`` that was opened from ``data``, in ``old``; both are
        Pillow's names. Raises DataError for a picture that the format cannot hold."""
        from PIL import Image, ImageOps

        turned = image.getexif().get(_ORIENTATION, 1) in (5, 6, 7, 8)
        width, height = reversed(image.size) if turned else image.size
        wanted = self._wanted(width, height)
        if wanted is None and new == old and self.only_if_bigger:
            return data
        if wanted is not None:
            # The decoder keeps at least twice the size, and Lanczos makes it exact.
            image.draft(None, (2 * wanted[1], 2 * wanted[0]) if turned else (2 * wanted[0], 2 * wanted[1]))
        image = _flat(ImageOps.exif_transpose(image), image.format, new)
        if wanted is not None:
            image = self._square(image.resize(wanted, Image.Resampling.LANCZOS))
        lossy = {"quality": DEFAULT_QUALITY if self.quality is None else self.quality}
        stream = io.BytesIO()
        image.save(stream, new, **(lossy if new in ("JPEG", "WEBP") else {}))
        return stream.getvalue()

    def _wanted(self, width: int, height: int) -> tuple[int, int] | None:
        """The size before a square is cut or padded; None to keep the own size."""
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
    """The image in a mode that can be resized and that the format can hold: 8 bits of grey, RGB, or RGBA with
    transparency. ``old`` is its old format."""
    from PIL import Image

    if image.mode in ("L", "RGB"):
        return image
    if image.mode == "1":
        return image.convert("L")
    if image.mode.startswith("I;16") or (image.mode == "I" and old in _SIXTEEN_BITS):
        # Pillow would turn all values above 255 to white.
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
