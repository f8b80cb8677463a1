"""From pictures to payloads: arrays, tensors and Pillow's images as the format that the field's extension names.

What it is: :func:`encode_image`. Arrays are (height, width) or (height, width, 1, 3 or 4); uint8, or floats from 0 to
1, which are rounded to the nearest of 256 steps (webdataset rounds down, so that pictures grow darker each time);
tensors are taken the same way, or with the channels in front as (1, 3 or 4, height, width). JPEG is written with
quality 100, as webdataset does, WebP without loss; ``jpg`` of a picture with transparency is an error and not a
surprise. It must not know of samples.
"""

from __future__ import annotations

import io
import sys
from typing import Any

from wdscli.codecs.parts import INSTALL_IMAGES, needed
from wdscli.errors import UsageError

IMAGE_FORMATS = {
    "bmp": "BMP",
    "gif": "GIF",
    "image": "JPEG",
    "img": "JPEG",
    "jpeg": "JPEG",
    "jpg": "JPEG",
    "pbm": "PPM",
    "pgm": "PPM",
    "png": "PNG",
    "ppm": "PPM",
    "tif": "TIFF",
    "tiff": "TIFF",
    "webp": "WEBP",
}
"""Pillow's names. ``image`` and ``img`` are webdataset's, and JPEG there too."""
MODES = {"pbm": "1", "pgm": "L", "ppm": "RGB"}
OPTIONS: dict[str, dict[str, Any]] = {"JPEG": {"quality": 100}, "WEBP": {"lossless": True}}
SLACK = 0.001
"""How far floats may lie outside of 0 to 1."""


def encode_image(picture: Any, kind: str) -> bytes:
    """``picture`` as the type that the extension ``kind`` names. Raises UsageError for values that are no picture, or
    none that this type can hold."""
    image_module = needed("PIL.Image", f"a field of type {kind}", INSTALL_IMAGES)
    if not isinstance(picture, image_module.Image):
        picture = image_module.fromarray(_bytes(_array(picture)))
    if kind == "pbm" and picture.mode == "L":
        picture = picture.convert("1", dither=0)
    form, mode = IMAGE_FORMATS[kind], MODES.get(kind, picture.mode)
    if picture.mode != mode:
        raise UsageError(f"{kind} holds pictures of mode {mode}, not {picture.mode}")
    stream = io.BytesIO()
    try:
        picture.save(stream, form, **OPTIONS.get(form, {}))
    except (OSError, ValueError) as error:
        raise UsageError(f"{kind} cannot hold a picture of mode {picture.mode}: {error}") from error
    return stream.getvalue()


def _array(picture: Any) -> Any:
    """Channels last."""
    import numpy

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


def _bytes(array: Any) -> Any:
    """uint8 of rows that lie one after the other."""
    import numpy

    if array.dtype.kind == "f":
        if array.size and not (array.min() > -SLACK and array.max() < 1 + SLACK):
            raise UsageError(
                f"a picture of floats has values from 0 to 1, not {array.min()} to {array.max()}"
            )
        array = numpy.rint(numpy.clip(array, 0, 1) * 255).astype(numpy.uint8)
    if array.dtype != numpy.uint8:
        raise UsageError(f"a picture is uint8, or floats from 0 to 1, not {array.dtype}")
    return numpy.ascontiguousarray(array)
