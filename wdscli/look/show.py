"""Samples for people: ``wds ls --show``, and the excerpts that the report's cards show too.

:func:`show` reads the selected samples of a set. :func:`excerpt` describes a payload in words; :func:`picture_size` and
:func:`visible` are for pictures. The name of a field decides how its payload is shown. Sound, film and payloads above
the limit are not read, and of text only the beginning. This module does not know terminals or pages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from wdscli.codecs import headers
from wdscli.codecs.handlers import MAX_DECODED_BYTES, held_extension, inflate
from wdscli.codecs.kinds import Kind, find
from wdscli.errors import UsageError
from wdscli.look.picking import SampleReader
from wdscli.look.unpack import SelectedMember, SelectedSample, selected_samples
from wdscli.model import to_text
from wdscli.selection.named import class_name
from wdscli.shards.inputs import classes_of

MAX_TEXT_CHARACTERS = 1200
MAX_JSON_BYTES = 1 << 20
_HEX_BYTES = 48
_FAINT_LEVELS = 64
"""A grey picture with fewer levels is a mask or an index and looks black; it is stretched."""


class ShownField(NamedTuple):
    """A field: ``text`` is an excerpt, or the type, shape or size of what it holds; ``picture`` are the bytes of an
    image, else empty."""

    field: str
    size_bytes: int
    text: str
    picture: bytes = b""


def show(picker: SampleReader) -> Iterator[tuple[SelectedSample, list[ShownField]]]:
    """The selected samples and their fields. Raises InputError, DataError."""
    classes = classes_of(picker.set) or ()
    for sample in selected_samples(picker):
        fields = [_field(part) for part in sample.parts]
        names = [class_name(one.text, classes) if one.field == "cls" else None for one in fields]
        yield (
            sample,
            [one._replace(text=f"{one.text} ({name})") if name else one for one, name in zip(fields, names)],
        )


def _field(part: SelectedMember) -> ShownField:
    name = to_text(part.field)
    extension, is_packed = held_extension(name)
    kind = find(extension)
    media = kind.card.partition("/")[0] or kind.form
    if media in ("audio", "video") or part.size > MAX_DECODED_BYTES:
        return ShownField(name, part.size, media or "too large to show")
    is_text = not is_packed and media not in ("image", "json", "array")
    data = next(part.pieces(), b"") if is_text else part.whole()
    try:
        data = inflate(data) if is_packed else data
        if kind.form != "image":
            return ShownField(name, part.size, excerpt(kind, data)[0])
    except Exception as error:
        # Decoders raise any error at broken data.
        return ShownField(name, part.size, f"not what its name says: {type(error).__name__}")
    size = picture_size(data)
    if size is None:
        return ShownField(name, part.size, "a picture of unknown size")
    return ShownField(name, part.size, f"{size[0]} × {size[1]} pixels", data)


def excerpt(kind: Kind, data: bytes) -> tuple[str, bool]:
    """What a payload holds, in words, and whether this is text from the payload: JSON with line breaks, text, the type
    and shape of arrays, or the first bytes. Raises any error at broken data."""
    if kind.card == "json":
        return (text_excerpt(data) if len(data) > MAX_JSON_BYTES else _json(data)), True
    if kind.form in ("npy", "npz"):
        return _arrays(data), False
    if kind.card in ("text", "number"):
        return text_excerpt(data), True
    text = _guessed(data)
    return (text, True) if text else (data[:_HEX_BYTES].hex(" ") + " …" * (len(data) > _HEX_BYTES), False)


def text_excerpt(data: bytes) -> str:
    """The beginning of a text."""
    return cut(data[: 4 * MAX_TEXT_CHARACTERS + 4].decode("utf-8", "replace").strip(), MAX_TEXT_CHARACTERS)


def _json(data: bytes) -> str:
    return cut(json.dumps(json.loads(data), ensure_ascii=False, indent=2), MAX_TEXT_CHARACTERS)


def _arrays(data: bytes) -> str:
    """Type and shape of an array, or of each array in an archive."""
    from wdscli.codecs.values import decode_npy, decode_npz

    if data[:2] == b"PK":
        arrays = decode_npz(data, MAX_DECODED_BYTES)
        return ", ".join(f"{name}: {_array(array)}" for name, array in list(arrays.items())[:8])
    return _array(decode_npy(data))


def _array(array: Any) -> str:
    return f"{array.dtype} {' × '.join(map(str, array.shape)) or 'number'}"


def _guessed(data: bytes) -> str:
    """An excerpt of a payload of unknown type, if it is text."""
    head = data[: 4 * MAX_TEXT_CHARACTERS]
    try:
        text = head.decode("utf-8") if len(head) == len(data) else head[:-4].decode("utf-8", "ignore")
    except UnicodeDecodeError:
        return ""
    return cut(text, MAX_TEXT_CHARACTERS) if all(c.isprintable() or c in "\n\r\t" for c in text) else ""


def cut(text: str, characters: int) -> str:
    """A text of at most so many characters."""
    return text if len(text) <= characters else text[: characters - 1].rstrip() + "…"


def picture_size(data: bytes) -> tuple[int, int] | None:
    """Width and height by the header of a picture, which may be truncated; None for other data, and without Pillow for
    rare formats."""
    try:
        return headers.picture_size(data)
    except (ValueError, UsageError):
        return None


def visible(image: Any) -> Any:
    """An image of Pillow in a mode that is shown: L, RGB or RGBA, with faint greys stretched."""
    if image.mode in ("1", "RGB", "RGBA"):
        return image.convert("L") if image.mode == "1" else image
    if image.mode == "L" or image.mode.startswith(("I", "F")):
        if image.mode != "L":
            image = image.convert("F")
        low, high = image.getextrema()
        if image.mode == "L" and high - low >= _FAINT_LEVELS:
            return image
        scale = 255 / (high - low) if high > low else 0.0
        return image.point(lambda value: value * scale - low * scale).convert("L")
    has_alpha = "A" in image.mode or "transparency" in image.info
    return image.convert("RGBA" if has_alpha else "RGB")
