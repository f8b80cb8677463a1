"""The size that pictures are brought to: what ``decode("rgb8", size=224, crop=224)`` means, and how it is done.

What it is: :class:`Fit`. The arguments mean what they mean to torchvision's ``Resize(size)`` and ``CenterCrop(crop)``,
and give the same shapes. How: a JPEG is first decoded to 1/2, 1/4 or 1/8 of its size, the smallest that is not below
what is wanted (DCT scaling: most of the decoding is never done). What is left is bilinear: by OpenCV where it is
installed and both sides shrink to no less than half, where a bilinear filter needs nothing more; else by Pillow, whose
filter covers all pixels (antialiased). It must not know where pixels come from.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

from wdscli.errors import DataError, UsageError

Size: TypeAlias = "int | tuple[int, int]"
"""A number, or height and width."""
FACTORS = (8, 4, 2)
"""By which both libjpeg-turbo and Pillow decode JPEGs smaller at the cost of less, not of more."""
MOST_BILINEAR = 2
"""By how much a bilinear filter of four pixels may shrink a picture and look at every one of them."""


class Fit(NamedTuple):
    """Pictures of ``size``: height and width, or a number for the shorter side (the longer keeps the proportions); of
    these ``crop`` is the middle, height and width or a number for both.

    >>> Fit(224).target(300, 400), Fit((224, 200)).target(300, 400), Fit(crop=(2, 3)).target(300, 400)
    ((224, 298), (224, 200), (300, 400))
    >>> Fit(100).factor(300, 400), Fit(crop=100).factor(300, 400)
    (2, 1)
    """

    size: Size | None = None
    crop: Size | None = None

    def target(self, height: int, width: int) -> tuple[int, int]:
        """The height and width that a picture of these has before it is cropped."""
        if self.size is None:
            return height, width
        if not isinstance(self.size, int):
            return self.size
        longer = int(self.size * max(height, width) / min(height, width))
        return (self.size, longer) if height <= width else (longer, self.size)

    def factor(self, height: int, width: int) -> int:
        """By how much a JPEG of this height and width may be decoded smaller."""
        high, wide = self.target(height, width)
        return next((factor for factor in FACTORS if height >= factor * high and width >= factor * wide), 1)

    def array(self, pixels: Any, height: int, width: int) -> Any:
        """``pixels``, decoded of a picture of this height and width, in the size of this. Raises DataError."""
        import numpy

        high, wide = self.target(height, width)
        if pixels.shape[:2] != (high, wide):
            opencv = _opencv()
            if (
                opencv is not None
                and pixels.shape[0] <= MOST_BILINEAR * high
                and pixels.shape[1] <= MOST_BILINEAR * wide
            ):
                # Exact: the same pixels whatever the processor has.
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
        """The same of one of Pillow's images, by Pillow alone."""
        from PIL import Image

        high, wide = self.target(height, width)
        if image.size != (wide, high):
            image = image.resize((wide, high), Image.Resampling.BILINEAR)
        if self.crop is None:
            return image
        top, left, bottom, right = self._middle(high, wide)
        return image.crop((left, top, right, bottom))

    def _middle(self, high: int, wide: int) -> tuple[int, int, int, int]:
        """Top, left, bottom and right of what ``crop`` leaves. Raises DataError when there is not so much."""
        height, width = (self.crop, self.crop) if isinstance(self.crop, int) else self.crop or (high, wide)
        if height > high or width > wide:
            raise DataError(
                f"a picture of {high} x {wide} pixels has no middle of {height} x {width} (height x width)",
                code="undecodable",
                hint="with size= pictures are brought to one size before they are cropped",
            )
        top, left = round((high - height) / 2), round((wide - width) / 2)
        return top, left, top + height, left + width


def fitted(size: Any, crop: Any) -> Fit | None:
    """What these arguments ask for, None for pictures as they are. Raises UsageError for what is no size."""
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
            f"{name}={size!r} is no size", hint=f"{name}=224, or {name}=(HEIGHT, WIDTH), in pixels"
        )
    return numbers if len(numbers) == 2 else numbers[0]


@cache
def _opencv() -> Any:
    """OpenCV, or None where it is not installed or lacks a library of the system."""
    try:
        return import_module("cv2")
    except ImportError:
        return None
