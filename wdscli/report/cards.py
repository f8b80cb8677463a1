"""One sample on the page: its class and caption, and each field in a form that a browser shows.

What it is: :func:`make_card`. How: pictures are decoded and encoded again, small enough for the card, so that only
their pixels reach the page. SVG is embedded unchanged as an image, where browsers run no script of it. Sound is
embedded unchanged, or cut where its format permits; film only if it is small. Text and JSON become excerpts; other
payloads are shown by type, shape or first bytes. It must not know how a page is made.
"""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Sequence
from typing import Any, NamedTuple

from wdscli.codecs.handlers import MAX_DECODED_BYTES, held_extension
from wdscli.codecs.images import opened_image
from wdscli.codecs.kinds import Kind, find
from wdscli.look.show import cut, excerpt, visible
from wdscli.model import to_text

SIDES_PIXELS = (400, 256, 160, 96, 48)
"""The longer side of a picture on the page: the first that has room."""
QUALITY = 80
MAX_CAPTION_CHARACTERS = 280
MAX_CARD_CHARACTERS, MAX_PARTS = 10_000, 40
"""Of one card: of all its excerpts together, and how many fields it shows."""
_PIXELATED = 64


class Uri(str):
    """A picture or sound as a data URI: text of any length."""

    __slots__ = ()


class Part(NamedTuple):
    """One field: ``kind`` is ``image``, ``audio``, ``video``, ``text`` or ``note``. The first three have bytes in
    ``uri``; ``text`` is an excerpt, or the reason why the payload is not shown."""

    field: str
    kind: str
    size_bytes: int
    text: str = ""
    uri: Uri = Uri("")
    width: int = 0
    height: int = 0
    is_clear: bool = False
    """Whether a picture is transparent."""

    @property
    def is_tiny(self) -> bool:
        """Whether a picture is so small that single pixels should be visible."""
        return 0 < max(self.width, self.height) <= _PIXELATED


class Card(NamedTuple):
    """One sample. ``label`` is its class, ``caption`` its first text; both may be empty."""

    key: str
    shard: str
    place: int
    label: str
    caption: str
    parts: tuple[Part, ...]


def make_card(
    key: bytes,
    place: int,
    payloads: Sequence[tuple[str, int, bytes | None]],
    classes: Sequence[tuple[str, str]],
    texts: Sequence[tuple[str, str]],
    room_bytes: int,
    shard: str,
) -> Card:
    """A card of a sample's fields: name, bytes, payload (None: unreadable). Pictures, sound and film share
    ``room_bytes``; without room only their names are shown."""
    media = sum(_is_media(find(held_extension(field)[0])) for field, _, _ in payloads)
    parts: list[Part] = []
    left = MAX_CARD_CHARACTERS
    for field, size, data in payloads[:MAX_PARTS]:
        part = _part(field, size, data, room_bytes // max(1, media))
        parts.append(part._replace(text=cut(part.text, max(left, 1))))
        left -= len(part.text)
    if len(payloads) > MAX_PARTS:
        size = sum(size for _, size, _ in payloads[MAX_PARTS:])
        parts.append(Part(f"and {len(payloads) - MAX_PARTS} more", "note", size))
    label = classes[0][1] if classes else ""
    caption = cut(texts[0][1], MAX_CAPTION_CHARACTERS) if texts else ""
    return Card(to_text(key), shard, place, label, caption, tuple(parts))


def _is_media(kind: Kind) -> bool:
    return kind.card.startswith(("image", "audio", "video"))


def field_type(field: str) -> str:
    """A field's type in one word, by its name; empty if unknown."""
    return find(held_extension(field)[0]).card.partition("/")[0]


def _part(field: str, size: int, data: bytes | None, room: int) -> Part:
    """One field; any payload is shown somehow."""
    if data is None:
        return Part(field, "note", size, "cannot be read")
    kind = find(held_extension(field)[0])
    card, _, mime = kind.card.partition("/")
    try:
        if _is_media(kind) and not room:
            return Part(field, "note", size, card)
        if card == "video" or mime == "svg+xml":
            return _as_it_is(field, card, kind.card, data, room)._replace(is_clear=card == "image")
        if card == "image":
            return _image(field, size, data, room)
        if card == "audio":
            return _sound(field, kind, data, room)
        text, is_text = excerpt(kind, data)
    except Exception as error:
        # Decoders raise any error at broken data.
        return Part(field, "note", size, f"not what its name says: {type(error).__name__}")
    return Part(field, "text" if is_text else "note", size, text)


def _uri(kind: str, data: bytes) -> Uri:
    return Uri(f"data:{kind};base64,{b64encode(data).decode('ascii')}")


def _as_it_is(field: str, kind: str, mime: str, data: bytes, room: int) -> Part:
    if len(data) > room:
        return Part(field, "note", len(data), f"{kind}, too large for this page")
    return Part(field, kind, len(data), uri=_uri(mime, data))


def _image(field: str, size: int, data: bytes, room: int) -> Part:
    from PIL.Image import Resampling

    image = opened_image(data, MAX_DECODED_BYTES)
    width, height = image.size
    # Decode a JPEG no larger than needed.
    image.draft(None, (2 * SIDES_PIXELS[0], 2 * SIDES_PIXELS[0]))
    image.load()
    shown = visible(image)
    for side in SIDES_PIXELS:
        small = shown.copy()
        small.thumbnail((side, side), Resampling.LANCZOS)
        mime, encoded = _encoded(small, keep=small.size == shown.size and max(small.size) <= _PIXELATED)
        if len(encoded) <= room:
            is_clear = shown.mode == "RGBA"
            return Part(field, "image", size, "", _uri(mime, encoded), width, height, is_clear)
    return Part(field, "note", size, "image, too large for this page")


def _encoded(image: Any, *, keep: bool) -> tuple[str, bytes]:
    """PNG if every pixel is to ``keep``, else WebP, or JPEG if Pillow lacks WebP."""
    from PIL import features

    stream = io.BytesIO()
    if keep:
        image.save(stream, "PNG", optimize=True)
        return "image/png", stream.getvalue()
    if features.check("webp"):
        image.save(stream, "WEBP", quality=QUALITY, method=4)
        return "image/webp", stream.getvalue()
    image.convert("RGB").save(stream, "JPEG", quality=QUALITY)
    return "image/jpeg", stream.getvalue()


def _sound(field: str, kind: Kind, data: bytes, room: int) -> Part:
    if len(data) <= room:
        return Part(field, "audio", len(data), uri=_uri(kind.card, data))
    if kind.card == "audio/wav":
        cut = _first_seconds(data, room)
        return Part(field, "audio", len(data), "the beginning", _uri(kind.card, cut))
    if kind.is_cuttable:
        return Part(field, "audio", len(data), "the beginning", _uri(kind.card, data[:room]))
    return Part(field, "note", len(data), "audio, too large for this page")


def _first_seconds(data: bytes, room: int) -> bytes:
    """The beginning of a WAV file, as far as there is room."""
    import wave

    stream = io.BytesIO()
    with wave.open(io.BytesIO(data)) as sound, wave.open(stream, "wb") as cut:
        cut.setnchannels(sound.getnchannels())
        cut.setsampwidth(sound.getsampwidth())
        cut.setframerate(sound.getframerate())
        frame_bytes = sound.getnchannels() * sound.getsampwidth()
        cut.writeframes(sound.readframes(max(1, (room - 64) // frame_bytes)))
    return stream.getvalue()
