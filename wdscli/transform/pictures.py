"""Change the pictures of samples: resize them, encode them in another format, or rename them by their content.

Each picture field is opened as an :class:`OpenedPicture`, which reads only the header, and then encoded again. Sizes,
modes and rounding are the same as in img2dataset. Pillow's JPEG decoder directly gives 1/2, 1/4 or 1/8 of the size, but
at least twice the target, and a Lanczos filter does the rest.

A picture may be a mask or a depth map, whose numbers are values and not brightness:

- A mean of two values would be a value that the picture does not have. So palette indexes, bits, gray of 16 bits and
  floats are resized by the nearest pixel and keep their mode, unless they become a JPEG. A mask in gray of 8 bits looks
  like a photo, so the user has to name its field in ``nearest``. Such a field also keeps its format.
- If a sample has several pictures, a picture in a format without loss may be such a mask. So the user has to choose the
  fields, by ``only`` or ``nearest``. (A JPEG or WebP is taken for a photo.)
- Pictures of a sample belong together, pixel by pixel. So they are turned upright by their EXIF orientation only if all
  pictures of the sample are changed and have the same orientation. Otherwise each keeps its orientation in EXIF.
- A format that cannot hold a picture's mode gets the nearest mode that it can hold, and a :class:`Remark`. Gray of 16
  bits and floats are an error instead, because 8 bits would lose their values.

In formats without transparency, transparent pixels become white.

To rename by content, a ``jpg`` that holds PNG or WebP becomes ``png`` or ``webp``. Payloads, keys and the order of
fields stay. :func:`wdscli.codecs.cells.held_picture` says which format a payload has. This module does not know shards.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from wdscli.codecs.cells import held_picture
from wdscli.codecs.handlers import INSTALL_IMAGES, MAX_DECODED_BYTES, extension, needed
from wdscli.codecs.images import (
    HELD_MODES,
    NEAREST_MODES,
    SIXTEEN_BIT_FORMATS,
    has_16_bit_colours,
    has_wide_values,
    is_transparent,
    mode_words,
    opened_image,
)
from wdscli.codecs.kinds import find
from wdscli.errors import DataError, UsageError, shard_words
from wdscli.text import to_bytes, to_text
from wdscli.transform.transform import (
    Call,
    CallError,
    InputSample,
    OutputSample,
    Remark,
    Transform,
    checked,
    is_listed,
    of_field,
)

DEFAULT_QUALITY = 95
PHOTO_FORMATS = ("JPEG", "WEBP")
"""Formats with loss, by Pillow's names. A mask is hardly ever stored in them."""
_SIDEWAYS = (5, 6, 7, 8)
_ORIENTATION = 0x0112
_UPRIGHT = 1
_EXIF_FORMATS = ("JPEG", "PNG", "TIFF", "WEBP")
_WHITE = (255, 255, 255)


def call_of(transform: Transform, folder: str, remarks: Counter[Remark]) -> Call:
    """Return the function that changes or renames pictures, and counts what the user may not expect in ``remarks``.
    Raises UsageError if Pillow is missing."""
    is_renaming = transform.kind == "rename-by-content"
    if not is_renaming:
        needed("PIL.Image", "--resize", INSTALL_IMAGES)
    change = partial(_renamed if is_renaming else _changed, transform, remarks)
    return lambda samples: [change(sample) for sample in samples]


def _changed(transform: Transform, remarks: Counter[Remark], sample: InputSample) -> OutputSample:
    fields = [(to_text(field), payload) for field, payload in sample.fields]
    chosen = chosen_pictures(transform, sample, [field for field, _ in fields])
    opened: dict[str, OpenedPicture] = {}
    for field, payload in fields:
        if field not in chosen:
            continue
        if not find(_new_kind(transform, field)).pillow:
            remarks[Remark(field, f"unchanged, because wds map cannot write {extension(field)}")] += 1
            continue
        with of_field(field):
            opened[field] = OpenedPicture(transform, field, payload)
    orientations = {picture.orientation for picture in opened.values()}
    is_each_changed = not any(picture.keeps_bytes for picture in opened.values()) and not any(
        find(extension(field)).is_picture for field, _ in fields if field not in opened
    )
    is_turned = len(orientations) == 1 and is_each_changed
    changed: dict[bytes, bytes] = {}
    for field, payload in fields:
        name = opened[field].new_field if field in opened else field
        if to_bytes(name) in changed:
            raise CallError(f"two fields would be named {name}")
        if field in opened:
            with of_field(field):
                payload = opened[field].encoded(is_turned, partial(_count, remarks, field))
        changed[to_bytes(name)] = payload
    return checked(sample.key, list(changed.items()))


def _count(remarks: Counter[Remark], field: str, change: str) -> None:
    remarks[Remark(field, change)] += 1


def _new_kind(transform: Transform, field: str) -> str:
    """Return the new extension of a picture. A field of masks keeps its format."""
    keeps_format = transform.format is None or is_listed(field, transform.nearest)
    return extension(field) if keeps_format else transform.format or ""


def chosen_pictures(transform: Transform, sample: InputSample, fields: Sequence[str]) -> list[str]:
    """Return the fields of a sample whose pictures are changed. Raises UsageError if one of several pictures may be a
    mask, and the user has chosen no fields."""
    pictures = [field for field in fields if find(extension(field)).is_picture]
    if transform.only:
        return [field for field in pictures if is_listed(field, transform.only)]
    photos = [field for field in pictures if find(extension(field)).pillow in PHOTO_FORMATS]
    unclear = [field for field in pictures if field not in photos and not is_listed(field, transform.nearest)]
    if len(pictures) == 1 or not unclear:
        return pictures
    by_nearest = f"; or for a mask: --resize {transform.size},nearest={unclear[-1]}" if transform.size else ""
    raise UsageError(
        f'sample "{to_text(sample.key)}" of {shard_words(sample.shard)} has several pictures, and one may be a mask: '
        f"{', '.join(pictures)}",
        hint=f"name the pictures to change: --only {','.join(photos or unclear[:1])}{by_nearest}",
    )


def _renamed(transform: Transform, remarks: Counter[Remark], sample: InputSample) -> OutputSample:
    """Return a sample whose pictures have the names of their formats. Raises CallError if another field has such a
    name."""
    fields: list[tuple[bytes, bytes]] = []
    taken = {field for field, _ in sample.fields}
    for field, payload in sample.fields:
        name = to_text(field)
        if held := held_picture(name, payload):
            new_name = name[: name.rfind(".") + 1] + held
            field = to_bytes(new_name)
            if field in taken:
                raise CallError(f"it holds {held}, but the sample already has a field {new_name}", field=name)
            taken.add(field)
            remarks[Remark(name, f"renamed to {new_name}")] += 1
        fields.append((field, payload))
    return checked(sample.key, fields)


class OpenedPicture:
    """A picture whose header was read. Formats have Pillow's names. Raises DataError or Pillow's errors for a payload
    that is not a picture."""

    def __init__(self, transform: Transform, field: str, payload: bytes) -> None:
        kind, new_kind = extension(field), _new_kind(transform, field)
        self.transform, self.payload = transform, payload
        self.image = opened_image(payload, MAX_DECODED_BYTES)
        self.format = find(new_kind).pillow
        is_new_format = self.format != find(kind).pillow
        self.new_field = field[: len(field) - len(kind)] + new_kind if is_new_format else field
        # Pillow may decode the picture to find its orientation, and then no longer knows its bits.
        self.words = mode_words(self.image) + " of 16 bits" * has_16_bit_colours(self.image)
        has_values = self.image.mode in NEAREST_MODES or has_wide_values(self.image)
        is_named = is_listed(field, transform.nearest)
        self.by_nearest = is_named or (has_values and self.format != "JPEG")
        self.target = self._target(*self.image.size)
        self.keeps_bytes = transform.only_if_bigger and self.target is None and not is_new_format
        self.orientation = self.image.getexif().get(_ORIENTATION, _UPRIGHT)

    def _target(self, width: int, height: int) -> tuple[int, int] | None:
        """Return width and height before the picture is cut or padded to a square, or None to keep its size."""
        transform = self.transform
        is_by_longer = transform.mode in ("keep_ratio_largest", "border")
        side = max(width, height) if is_by_longer else min(width, height)
        if transform.mode == "no" or (transform.only_if_bigger and side <= transform.size):
            return None
        scale = transform.size / side
        return max(1, round(width * scale)), max(1, round(height * scale))

    def encoded(self, is_turned: bool, remark: Callable[[str], object]) -> bytes:
        """Return the payload of the changed picture. A change of its mode is said to ``remark``. Raises DataError for a
        picture that the format cannot hold."""
        from PIL import ImageOps
        from PIL.Image import Exif, Resampling

        if self.keeps_bytes:
            return self.payload
        image, target = self.image, self.target
        if target is not None and not self.by_nearest:
            # The decoder reduces the picture to at least twice the size, and the Lanczos filter does the rest.
            image.draft(None, (2 * target[0], 2 * target[1]))
        old_format = image.format
        image = _held(ImageOps.exif_transpose(image) if is_turned else image, old_format, self.format)
        if mode_words(image) != self.words:
            remark(f"changed from {self.words} to {mode_words(image)}")
        if target is not None:
            is_sideways = is_turned and self.orientation in _SIDEWAYS
            resampling = Resampling.NEAREST if self.by_nearest else Resampling.LANCZOS
            image = self._square(image.resize(target[::-1] if is_sideways else target, resampling))
        options = self._options()
        if not is_turned and self.orientation != _UPRIGHT and self.format in _EXIF_FORMATS:
            exif = options["exif"] = Exif()
            exif[_ORIENTATION] = self.orientation
        stream = io.BytesIO()
        image.save(stream, self.format, **options)
        return stream.getvalue()

    def _options(self) -> dict[str, Any]:
        """Return the options for Pillow."""
        if self.format == "WEBP" and self.by_nearest:
            return {"lossless": True}
        quality = self.transform.quality
        is_lossy = self.format in PHOTO_FORMATS
        return {"quality": DEFAULT_QUALITY if quality is None else quality} if is_lossy else {}

    def _square(self, image: Any) -> Any:
        from PIL import Image

        (width, height), side = image.size, self.transform.size
        if self.transform.mode == "center_crop":
            left, top = (width - side) // 2, (height - side) // 2
            return image.crop((left, top, left + side, top + side))
        if self.transform.mode == "border":
            white = _white(image)
            canvas = Image.new(image.mode, (side, side), white)
            if image.mode == "P":
                canvas = image.resize((side, side), Image.Resampling.NEAREST)  # which keeps the palette
                canvas.paste(white, (0, 0, side, side))
            canvas.paste(image, ((side - width) // 2, (side - height) // 2))
            return canvas
        return image


def _held(image: Any, old_format: str, new_format: str) -> Any:
    """Convert an image to a mode that its new format can hold. Raises DataError for values above 255."""
    from PIL import Image

    held = HELD_MODES[new_format]
    if image.mode == "I" and old_format in SIXTEEN_BIT_FORMATS:
        image = image.convert("I;16")
    if image.mode in held:
        return image
    if has_wide_values(image):
        raise DataError(
            f"{new_format} cannot hold {mode_words(image)}",
            hint="leave the field unchanged (--only names the fields to change), or scale it to 8 bits with --python",
        )
    if image.mode == "1" and "L" in held:
        return image.convert("L")
    if is_transparent(image):
        image = image.convert("RGBA")
        if "RGBA" in held:
            return image
        canvas = Image.new("RGB", image.size, _WHITE)
        canvas.paste(image, mask=image.getchannel("A"))
        image = canvas
    return image.convert("RGB") if "RGB" in held else image.convert("RGB").quantize()


def _white(image: Any) -> int | tuple[int, ...]:
    """Return white in the mode of an image, or the palette's index of the colour next to white. Raises DataError."""
    if image.mode == "P":
        colours = image.getpalette("RGB")
        distances = [
            sum((255 - level) ** 2 for level in colours[first : first + 3])
            for first in range(0, len(colours), 3)
        ]
        return distances.index(min(distances))
    if image.mode in ("I", "F"):
        raise DataError(
            f"a picture of {mode_words(image)} has no white for the mode border", hint="use center_crop"
        )
    whites: dict[str, int | tuple[int, ...]] = {
        "1": 1,
        "L": 255,
        "LA": (255, 255),
        "RGB": _WHITE,
        "RGBA": (*_WHITE, 255),
    }
    return whites.get(image.mode, (1 << 16) - 1)
