"""Pictures in another size and format, as img2dataset makes them.

What it is: every field whose last extension is a picture's is decoded, turned upright by its EXIF orientation, resized
and written anew. ``keep_ratio`` makes the shorter side as long as asked, ``keep_ratio_largest`` the longer one,
``center_crop`` the shorter one and then cuts a square from the middle, ``border`` the longer one and then pads with
white to a square; ``no`` changes the format alone. How: Pillow, whose JPEG decoder gives a half, a quarter or an eighth
of the size at once, at least twice what is wanted, and Lanczos from there. Transparency becomes white where a format
has none. With ``only_if_bigger`` a picture that is small enough stays as it is, byte for byte, unless its format
changes. It must not know where samples come from.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import partial
from typing import Any

from wdscli.codecs.decode_images import opened_image
from wdscli.codecs.kinds import find
from wdscli.codecs.limits import MAX_DECODED_BYTES
from wdscli.codecs.parts import INSTALL_IMAGES, extension, needed
from wdscli.model import to_bytes, to_text
from wdscli.transform.transform import Call, CallError, Made, Taken, Transform, checked, of_field

DEFAULT_QUALITY = 95
_ORIENTATION = 0x0112
_WHITE = (255, 255, 255)
_SIXTEEN_BITS = ("PNG", "PPM")
"""Formats whose grey of more than 8 bits Pillow gives as 32-bit numbers below 65536, or did."""


def call_of(transform: Transform, folder: str) -> Call:
    """What resizes. Raises UsageError where Pillow is missing."""
    needed("PIL.Image", "--resize", INSTALL_IMAGES)
    return partial(_resized, transform)


def _resized(transform: Transform, samples: Sequence[Taken]) -> list[Made]:
    made = []
    for sample in samples:
        fields, names = [], set()
        for raw, payload in sample.fields:
            field, data = _field(transform, to_text(raw), payload)
            if field in names:
                raise CallError(f"two fields would be named {field}")
            names.add(field)
            fields.append((to_bytes(field), data))
        made.append(checked(sample.key, fields))
    return made


def _field(transform: Transform, name: str, payload: bytes) -> tuple[str, bytes]:
    """A field's new name and payload; what is no picture stays as it is."""
    kind = extension(name)
    if not find(kind).pillow:
        return name, payload
    new = transform.format or kind
    if find(new).pillow != find(kind).pillow:
        name = name[: len(name) - len(kind)] + new
    with of_field(name):
        return name, _picture(transform, payload, kind, new)


def _picture(transform: Transform, payload: bytes, kind: str, new: str) -> bytes:
    image = opened_image(payload, MAX_DECODED_BYTES)
    turned = image.getexif().get(_ORIENTATION, 1) in (5, 6, 7, 8)
    width, height = reversed(image.size) if turned else image.size
    wanted = _wanted(transform, width, height)
    same_format = find(new).pillow == find(kind).pillow
    if wanted is None and same_format and transform.only_if_bigger:
        return payload
    if wanted is not None:
        # The decoder never goes below twice the size, which Lanczos then makes exact.
        image.draft(None, (2 * wanted[1], 2 * wanted[0]) if turned else (2 * wanted[0], 2 * wanted[1]))
    from PIL import Image, ImageOps

    image = _flat(ImageOps.exif_transpose(image), image.format, new)
    if wanted is not None:
        image = _square(transform, image.resize(wanted, Image.Resampling.LANCZOS))
    return _written(image, new, transform.quality)


def _wanted(transform: Transform, width: int, height: int) -> tuple[int, int] | None:
    """The size before a square is cut or padded; None for a picture that keeps its own."""
    side = max(width, height) if transform.mode in ("keep_ratio_largest", "border") else min(width, height)
    if transform.mode == "no" or (transform.only_if_bigger and side <= transform.size):
        return None
    scale = transform.size / side
    return max(1, round(width * scale)), max(1, round(height * scale))


def _square(transform: Transform, image: Any) -> Any:
    from PIL import Image

    (width, height), side = image.size, transform.size
    if transform.mode == "center_crop":
        left, top = (width - side) // 2, (height - side) // 2
        return image.crop((left, top, left + side, top + side))
    if transform.mode == "border":
        white = 255 if image.mode == "L" else _WHITE if image.mode == "RGB" else (*_WHITE, 255)
        canvas = Image.new(image.mode, (side, side), white)
        canvas.paste(image, ((side - width) // 2, (side - height) // 2))
        return canvas
    return image


def _flat(image: Any, form: str, kind: str) -> Any:
    """In a mode that can be resized and that the format holds: 8 bits of grey, RGB, or RGBA where it has transparency.
    ``form`` is the format that it had."""
    from PIL import Image

    if image.mode in ("L", "RGB"):
        return image
    if image.mode == "1":
        return image.convert("L")
    if image.mode.startswith("I;16") or (image.mode == "I" and form in _SIXTEEN_BITS):
        # To Pillow all that is above 255 would be white.
        return image.convert("I").point(lambda value: value * (1 / 257) + 0.5).convert("L")
    if image.mode in ("I", "F"):
        raise CallError(
            f"a picture of mode {image.mode} does not say which number is white; scale it to 8 bits first (--python)"
        )
    if "A" not in image.mode and "transparency" not in image.info:
        return image.convert("RGB")
    image = image.convert("RGBA")
    if find(kind).pillow in ("PNG", "WEBP", "TIFF", "GIF"):
        return image
    canvas = Image.new("RGB", image.size, _WHITE)
    canvas.paste(image, mask=image.getchannel("A"))
    return canvas


def _written(image: Any, kind: str, quality: int | None) -> bytes:
    form, stream = find(kind).pillow, io.BytesIO()
    lossy = {"quality": DEFAULT_QUALITY if quality is None else quality} if form in ("JPEG", "WEBP") else {}
    image.save(stream, form, **lossy)
    return stream.getvalue()
