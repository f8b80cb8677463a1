"""Pictures to Pillow's images, numpy arrays or torch tensors, under webdataset's names.

What it is: :class:`Images`, a handler for one of :data:`SPECS`.

    ===========================  =====================================================================
    ``l8``                       numpy uint8, (height, width)
    ``rgb8``, ``rgba8``          numpy uint8, (height, width, 3 or 4)
    ``l``, ``rgb``, ``rgba``     numpy float32 from 0 to 1, the same shapes
    ``torchl8``, ``torchl``      torch uint8 or float32, (height, width)
    ``torchrgb8``, ...           torch uint8, (3 or 4, height, width); without the 8 float32 from 0 to 1
    ``torch``                    ``torchrgb``
    ``pill``, ``pil``,           Pillow's images of mode L, RGB, RGB, RGBA
    ``pilrgb``, ``pilrgba``
    ===========================  =====================================================================

How: Pillow decodes and converts. If simplejpeg is installed, it decodes JPEGs of three components to ``rgb8``,
``rgb``, ``pil`` and their torch variants: the same pixels (both are libjpeg-turbo) in about half the time.
``imagehandler(spec, jpeg="pillow")`` uses neither it nor OpenCV. Pillow decodes the pictures that simplejpeg refuses.
With ``size`` and ``crop`` pictures are resized (:mod:`~wdscli.codecs.resize`), JPEGs while they are decoded. An
orientation in EXIF is not applied, as with ``PIL.Image.open``; Pillow's images keep it (``ImageOps.exif_transpose``).
Arrays may be changed. Formats that Pillow decodes with other programs (EPS with Ghostscript) are never opened, under
any name. It must not know samples.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any, NamedTuple

from wdscli.arrays import numpy
from wdscli.codecs.kinds import names_of
from wdscli.codecs.limits import MAX_DECODED_BYTES, check_size
from wdscli.codecs.parts import INSTALL_IMAGES, ByExtension, needed
from wdscli.codecs.resize import Fit, Size, fitted
from wdscli.errors import DataError, UsageError

FIRST_FORMATS = ("JPEG", "PNG", "PPM", "GIF", "BMP")
"""Formats that Pillow supports without loading all plugins, most frequent first."""
NEVER = frozenset({"BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF"})
"""Formats that Pillow decodes with other programs, or knows only by name."""
EXTENSIONS = names_of("image")


class Spec(NamedTuple):
    """The decoded form of a picture: ``kind`` is numpy, torch or pil, ``mode`` is Pillow's."""

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
    """A handler for :meth:`WebDataset.decode` that decodes fields of these extensions as ``imagespec``. ``size``
    and ``crop`` are torchvision's ``Resize(size)`` and ``CenterCrop(crop)``. ``jpeg="pillow"`` uses Pillow alone,
    which is slower but gives the same pixels on every machine with the same Pillow. Raises UsageError for an
    unknown spec or invalid size, and for missing packages."""

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
            raise UsageError(f'no such image spec: "{imagespec}"; there are {", ".join(sorted(SPECS))}')
        if jpeg not in ("auto", "pillow"):
            raise UsageError(f'jpeg is "auto" or "pillow", not "{jpeg}"')
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
        """Pillow's image in mode and size of this."""
        image = opened_image(data, limit)
        width, height = image.size
        if self.fit is not None:
            high, wide = self.fit.target(height, width)
            check_size(high * wide * len(self.spec.mode), limit)
            image.draft(None, (wide, high))
        image = image.convert(self.spec.mode)
        return image if self.fit is None else self.fit.image(image, height, width)


def _finished(array: Any, spec: Spec) -> Any:
    """The array as uint8 or as floats from 0 to 1, contiguous in memory."""
    if spec.is_float:
        array = numpy.divide(array, numpy.float32(255), dtype=numpy.float32, order="C")
    array = numpy.ascontiguousarray(array)
    if spec.kind == "numpy":
        return array
    import torch

    return torch.from_numpy(array)


def open_image(data: bytes, limit: int = MAX_DECODED_BYTES) -> Any:
    """Pillow's image of a payload, decoded. Raises DataError for other data and for more than ``limit`` bytes of
    pixels, and Pillow's errors for a broken picture."""
    image = opened_image(data, limit)
    image.load()
    return image


def opened_image(data: bytes, limit: int) -> Any:
    """:func:`open_image` with only its header read."""
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
        raise DataError("it has more pixels than Pillow accepts (twice PIL.Image.MAX_IMAGE_PIXELS)") from None
    check_size(image.width * image.height * _pixel_bytes(image), max(limit, len(data)))
    return image


def _pixel_bytes(image: Any) -> int:
    """Bytes per pixel in an array."""
    return len(image.getbands()) * {"I": 4, "F": 4}.get(image.mode, 2 if ";16" in image.mode else 1)


def _simplejpeg() -> bool:
    """Whether simplejpeg is installed and gives the same pixels as Pillow."""
    from importlib.util import find_spec

    from PIL import features

    return find_spec("simplejpeg") is not None and bool(features.check("libjpeg_turbo"))


def _fast(data: bytes, limit: int, fit: Fit | None) -> Any:
    """(height, width, 3) of a JPEG in YCbCr; None for other data and broken pictures."""
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
        # These minimal sides make simplejpeg choose this factor.
        factor = fit.factor(height, width)
        least = {"min_height": -(-height // factor), "min_width": -(-width // factor)}
        array = simplejpeg.decode_jpeg(data, min_factor=factor, **least)
    except ValueError:
        return None
    return fit.array(array, height, width)


def _image_of(array: Any, data: bytes, limit: int) -> Any:
    """Pillow's image of these pixels, with the payload's metadata: EXIF, colour profile, resolution."""
    from PIL import Image

    image = Image.fromarray(array)
    image.info = opened_image(data, limit).info
    return image


imagehandler = Images
"""webdataset's name."""
