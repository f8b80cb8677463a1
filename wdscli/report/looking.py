"""This module reads the payloads of drawn samples: classes, lengths of captions, sizes of pictures, and cards for the
contact sheet.

:class:`SmallestRanks` takes the pages of a listing, and keeps the samples with the smallest hashes of their keys
(XXH3-64 with the seed). So the rank of a sample depends only on its key, not on the order of shards or the number of
processes. At most twice the drawn samples are in memory.

:func:`look_into` is the task for the drawn samples of one shard, and returns :class:`PayloadFacts`. A payload is read
with its headers, in the order of the shard, so that unseekable streams (a ``.tar.gz``) are read once. The size of a
picture comes from the values ``width(FIELD)`` and ``height(FIELD)`` of the index, if it stores them. Payloads that
cannot be decoded are counted by field, but are no error; `verify --decode` reports them. Names decide what a field
means: :data:`CLASSES`, :data:`CAPTIONS`.

:func:`make_card` shows each field in a form that a browser understands. Pictures are decoded and encoded again, small
enough for the card, so that only their pixels reach the page. SVG is embedded unchanged as an image, where browsers run
no script of it. Sound is embedded unchanged, or shortened if its format permits. Film is embedded only if it is small.
Text and JSON become excerpts. Of other payloads, the type, the shape or the first bytes are shown.

This module does not know other shards, or how a page is made.
"""

from __future__ import annotations

import io
import json
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple, TypeAlias, TypeVar

from xxhash import xxh3_64_intdigest

from wdscli.codecs.handlers import MAX_DECODED_BYTES, held_extension, inflate
from wdscli.codecs.images import opened_image
from wdscli.codecs.kinds import KINDS, FieldKind, find
from wdscli.errors import DataError, StorageError
from wdscli.look.listing import Page
from wdscli.look.unpack import cut, excerpt, guessed_text, picture_size, visible
from wdscli.samples.reading import ExpectedMember
from wdscli.shards.index import Index
from wdscli.shards.proof import find_index
from wdscli.storage import Source, is_local, open_source
from wdscli.tar import KIND_MASK, REGULAR
from wdscli.text import to_text

Counted = TypeVar("Counted")

CLASSES = tuple(name for name, kind in KINDS.items() if kind.role == "class")
"""Field extensions, and top-level names in JSON, that contain a sample's class. The first of them that a set has is
used."""
CAPTIONS = tuple(name for name, kind in KINDS.items() if kind.role == "caption")
MAX_VALUE_BYTES = 1 << 20
"""If a class, text or JSON is larger than this, it is not read."""
MAX_CLASS_CHARACTERS = 100
MAX_COUNTED = 10_000
"""The most names in JSON that are counted, by type. The page shows the most frequent of them."""
PROBE_BYTES = 1 << 12
"""The bytes of a payload that decide whether a field with an unknown name has texts."""
HEADER_BYTES = 1 << 13
MAX_HEADER_BYTES = 1 << 18
"""How many bytes of a picture are read to find its size. First the smaller number is read, then the larger."""
SIDES_PIXELS = (400, 256, 160, 96, 48)
"""The possible lengths of a picture's longer side on the page. The first length that fits is used."""
QUALITY = 80
MAX_CAPTION_CHARACTERS = 280
MAX_CARD_CHARACTERS, MAX_PARTS = 10_000, 40
"""Limits for one card: the characters of all its excerpts together, and the number of fields."""
_PIXELATED = 64


class DrawnSample(NamedTuple):
    """One drawn sample. ``rank`` is its hash, and ``place`` is its place in the shard. A member has its field's name in
    the selection, and the place of its payload under the name in the shard."""

    rank: int
    shard: str
    place: int
    key: bytes
    members: tuple[tuple[bytes, ExpectedMember], ...]


class SmallestRanks:
    """The ``limit`` samples with the smallest ranks so far."""

    def __init__(self, limit: int, seed: int = 0) -> None:
        self._limit = limit
        self._seed = seed % (1 << 64)
        self._kept: list[DrawnSample] = []
        self._worst = 1 << 64

    def look(self, page: Page) -> None:
        """Add the samples of a page."""
        seed, worst, batch = self._seed, self._worst, page.batch
        for row, key in enumerate(batch.keys):
            rank = xxh3_64_intdigest(key, seed)
            if rank < worst:
                self._kept.append(_drawn(page, row, rank))
        if len(self._kept) > 2 * self._limit:
            self._prune()

    def _prune(self) -> None:
        self._kept.sort(key=order)
        del self._kept[self._limit :]
        # Two samples with the same key have the same rank. Their order is decided later.
        self._worst = self._kept[-1].rank + 1 if self._kept else 0

    def drawn(self) -> list[DrawnSample]:
        """Return the samples, the smallest rank first."""
        self._prune()
        return self._kept


Order: TypeAlias = tuple[int, str, int]


def order(sample: DrawnSample) -> Order:
    """Return the place of a sample in the order of ranks. Samples with the same key have the same rank."""
    return sample.rank, sample.shard, sample.place


def _drawn(page: Page, row: int, rank: int) -> DrawnSample:
    batch = page.batch
    key, first, end = batch.keys[row], batch.firsts[row], batch.firsts[row + 1]
    members = tuple(
        (
            batch.fields[member],
            ExpectedMember(
                batch.starts[member],
                batch.offsets[member],
                key + b"." + page.stored[member],
                batch.sizes[member],
            ),
        )
        for member in range(first, end)
        if batch.flags[member] & KIND_MASK == REGULAR
    )
    return DrawnSample(rank, page.shard, page.places[row], key, members)


class LookTask(NamedTuple):
    """The drawn samples of one shard, by place. Pictures are measured in the samples up to ``pictured`` in the order of
    ranks. The samples up to ``carded`` become cards. A card has at most ``card_bytes`` of pictures and sound; 0 means
    none."""

    address: str
    samples: tuple[DrawnSample, ...]
    pictured: Order
    carded: Order
    card_bytes: int


class PayloadFacts:
    """The results. ``classes`` has the place, the key and the classes of each sample. The rest are counts:
    ``characters`` and ``words`` of texts, ``pictures`` by width and height, ``names`` of JSON by field, name and
    type, ``unread`` payloads by field that cannot be decoded."""

    def __init__(self) -> None:
        self.classes: list[tuple[int, bytes, tuple[tuple[str, str], ...]]] = []
        self.characters: dict[str, Counter[int]] = {}
        self.words: dict[str, Counter[int]] = {}
        self.pictures: dict[str, Counter[tuple[int, int]]] = {}
        self.names: Counter[tuple[str, str, str]] = Counter()
        self.unread: Counter[str] = Counter()
        self.cards: list[tuple[int, Card]] = []

    def add(self, shard_facts: PayloadFacts) -> None:
        """Add the results of another shard, except the classes."""
        _add_counts(self.characters, shard_facts.characters)
        _add_counts(self.words, shard_facts.words)
        _add_counts(self.pictures, shard_facts.pictures)
        for name, count in shard_facts.names.items():
            if name in self.names or len(self.names) < MAX_COUNTED:
                self.names[name] += count
        self.unread.update(shard_facts.unread)
        self.cards.extend(shard_facts.cards)


def _add_counts(mine: dict[str, Counter[Counted]], theirs: Mapping[str, Counter[Counted]]) -> None:
    for source, counts in theirs.items():
        mine.setdefault(source, Counter()).update(counts)


def look_into(task: LookTask) -> PayloadFacts:
    """Read the drawn samples of one shard. Raises InputError."""
    import warnings

    with open_source(task.address) as source, warnings.catch_warnings():
        # Pillow warns about large and odd pictures.
        warnings.simplefilter("ignore")
        # The index of a remote shard costs a request.
        index = find_index(task.address, source) if is_local(task.address) else None
        looker = _Looker(source, task, index)
        if source.seekable:
            source.expect([span for sample in task.samples for span in looker.spans(sample)])
        for sample in task.samples:
            looker.look(sample)
    return looker.facts


def _is_picture(field: str) -> bool:
    return _kind_of(field).form == "image"


def _kind_of(field: str) -> FieldKind:
    """Return the kind of a field after decompression."""
    return find(held_extension(field)[0])


class _Looker:
    """Reads the drawn samples of an open shard. ``index`` is the shard's index, if it is known."""

    def __init__(self, source: Source, task: LookTask, index: Index | None) -> None:
        self.facts = PayloadFacts()
        self._source, self._task, self._index = source, task, index
        self._text_fields = self._find_text_fields()
        self._classes: list[tuple[str, str]] = []
        self._texts: list[tuple[str, str]] = []

    def _find_text_fields(self) -> frozenset[str]:
        """Return the fields without a known format that have texts. The first payload of a field that is not empty
        decides. In a stream, all such fields may have texts, because all bytes of a stream are read."""
        probed: dict[str, bool] = {}
        for raw, expected in chain.from_iterable(sample.members for sample in self._task.samples):
            field = to_text(raw)
            if field in probed or not expected.size or not _kind_of(field).may_be_text:
                continue
            probed[field] = True
            if self._source.seekable and not held_extension(field)[1]:
                with suppress(DataError):
                    head = expected.payload(self._source, PROBE_BYTES)
                    probed[field] = bool(guessed_text(head, is_whole=len(head) == expected.size))
        return frozenset(field for field, is_text in probed.items() if is_text)

    def spans(self, sample: DrawnSample) -> Iterator[tuple[int, int]]:
        """Yield the byte ranges of a sample that must be read."""
        rank = order(sample)
        for raw, expected in sample.members:
            field, end = to_text(raw), expected.offset + expected.size
            if rank <= self._task.carded or self._is_value(field, expected.size):
                yield expected.first, end
            elif (
                rank <= self._task.pictured and _is_picture(field) and not self._stored_size(sample, expected)
            ):
                yield expected.first, min(end, expected.offset + HEADER_BYTES)

    def _stored_size(self, sample: DrawnSample, expected: ExpectedMember) -> tuple[int, int] | None:
        """The stored size of a picture; None without one."""
        # Damage that is left out moves the samples after it.
        index = self._index
        if index is None or sample.place >= index.samples or index.key(sample.place) != sample.key:
            return None
        name = to_text(expected.name.removeprefix(sample.key + b"."))
        sides = (index.exact.get(f"{side}({name})") for side in ("width", "height"))
        width, height = (None if side is None else side.at(sample.place) for side in sides)
        return None if width is None or height is None else (int(width), int(height))

    def _is_value(self, field: str, size: int) -> bool:
        kind = _kind_of(field)
        is_read = bool(kind.role) or kind.form == "json" or field in self._text_fields
        return is_read and size <= MAX_VALUE_BYTES

    def look(self, drawn: DrawnSample) -> None:
        """Read the wanted payloads of a sample, in the order of the shard, and add the results."""
        task, rank = self._task, order(drawn)
        self._classes, self._texts = [], []
        payloads: list[tuple[str, int, bytes | None]] = []
        for raw, expected in drawn.members:
            field, size = to_text(raw), expected.size
            is_value = self._is_value(field, size)
            is_whole = rank <= task.carded or is_value
            data = self._payload(field, expected) if is_whole else None
            if data is not None and is_value:
                self._value(field, data)
            if rank <= task.pictured and _is_picture(field) and (data is not None or not is_whole):
                self._picture(field, drawn, expected, data)
            payloads.append((field, size, data))
        self.facts.classes.append((drawn.place, drawn.key, tuple(self._classes)))
        if rank <= task.carded:
            card = make_card(drawn, payloads, self._classes, self._texts, task.card_bytes, task.address)
            self.facts.cards.append((drawn.rank, card))

    def _payload(self, field: str, expected: ExpectedMember) -> bytes | None:
        """Return a payload, or None if it is missing or too large to decode."""
        if expected.size > MAX_DECODED_BYTES:
            return None
        try:
            data = expected.payload(self._source)
            if held_extension(field)[1]:
                return inflate(data)
        except StorageError:
            raise
        except Exception:
            self.facts.unread[field] += 1
            return None
        return data

    def _value(self, field: str, data: bytes) -> None:
        kind = _kind_of(field)
        try:
            if kind.form == "json":
                self._json(field, json.loads(data))
                return
            text = data.decode("utf-8").strip()
        except (ValueError, RecursionError):
            # A name without a meaning promises no text.
            if not kind.may_be_text:
                self.facts.unread[field] += 1
            return
        if kind.role == "class" and len(text) <= MAX_CLASS_CHARACTERS:
            self._classes.append((field, text))
        elif kind.role == "caption" or (kind.may_be_text and (not text or guessed_text(data))):
            self._text(field, text)

    def _json(self, field: str, value: Any) -> None:
        if not isinstance(value, Mapping):
            self._name(field, "", value)
            return
        for name, inner in value.items():
            self._name(field, str(name), inner)
        for name in CLASSES:
            inner = value.get(name)
            if isinstance(inner, (str, int)) and len(str(inner)) <= MAX_CLASS_CHARACTERS:
                self._classes.append((f"{field}: {name}", str(inner)))
        for name in CAPTIONS:
            if isinstance(value.get(name), str):
                self._text(f"{field}: {name}", value[name].strip())

    def _name(self, field: str, name: str, value: Any) -> None:
        names = self.facts.names
        place = (field, name, _TYPES.get(type(value), "null"))
        if place in names or len(names) < MAX_COUNTED:
            names[place] += 1

    def _text(self, source: str, text: str) -> None:
        self._texts.append((source, text))
        self.facts.characters.setdefault(source, Counter())[len(text)] += 1
        self.facts.words.setdefault(source, Counter())[len(text.split())] += 1

    def _picture(self, field: str, drawn: DrawnSample, expected: ExpectedMember, data: bytes | None) -> None:
        size = self._stored_size(drawn, expected)
        if size is None and data is not None:
            size = picture_size(data)
        elif size is None:
            lengths = [HEADER_BYTES] if self._source.seekable and expected.size > HEADER_BYTES else []
            with suppress(DataError):
                for length in [*lengths, MAX_HEADER_BYTES]:
                    size = size or picture_size(expected.payload(self._source, length))
        if size is None:
            self.facts.unread[field] += 1
        else:
            self.facts.pictures.setdefault(field, Counter())[size] += 1


_TYPES = {bool: "true or false", int: "number", float: "number", str: "text", list: "list", dict: "object"}


class Uri(str):
    """A picture or sound as a data URI, which may be a string of any length."""

    __slots__ = ()


class CardPart(NamedTuple):
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
    parts: tuple[CardPart, ...]


def make_card(
    drawn: DrawnSample,
    payloads: Sequence[tuple[str, int, bytes | None]],
    classes: Sequence[tuple[str, str]],
    texts: Sequence[tuple[str, str]],
    room_bytes: int,
    shard: str,
) -> Card:
    """Make a card from a sample's fields: name, size, payload (None: unreadable). Pictures, sound and film share
    ``room_bytes``. If nothing is left of it, only their names are shown."""
    media = sum(_is_media(_kind_of(field)) for field, _, _ in payloads)
    parts: list[CardPart] = []
    left = MAX_CARD_CHARACTERS
    for field, size, data in payloads[:MAX_PARTS]:
        part = _part(field, size, data, room_bytes // max(1, media))
        parts.append(part._replace(text=cut(part.text, max(left, 1))))
        left -= len(part.text)
    if len(payloads) > MAX_PARTS:
        size = sum(size for _, size, _ in payloads[MAX_PARTS:])
        parts.append(CardPart(f"and {len(payloads) - MAX_PARTS} more", "note", size))
    label = classes[0][1] if classes else ""
    # A caption comes before other texts.
    texts = sorted(texts, key=lambda named: ": " not in named[0] and not _kind_of(named[0]).role)
    caption = cut(texts[0][1], MAX_CAPTION_CHARACTERS) if texts else ""
    return Card(to_text(drawn.key), shard, drawn.place, label, caption, tuple(parts))


def _is_media(kind: FieldKind) -> bool:
    return kind.card.startswith(("image", "audio", "video"))


def field_type(field: str) -> str:
    """Return a field's type in one word, by its name. It is empty if unknown."""
    return _kind_of(field).card.partition("/")[0]


def _part(field: str, size: int, data: bytes | None, room: int) -> CardPart:
    """Make the part for one field. Any payload gives a part."""
    if data is None:
        return CardPart(field, "note", size, "cannot be read")
    kind = _kind_of(field)
    card, _, mime = kind.card.partition("/")
    try:
        if _is_media(kind) and not room:
            return CardPart(field, "note", size, card)
        if card == "video" or mime == "svg+xml":
            return _as_it_is(field, card, kind.card, data, room)._replace(is_clear=card == "image")
        if card == "image":
            return _image(field, size, data, room)
        if card == "audio":
            return _sound(field, kind, data, room)
        text, is_text = excerpt(kind, data)
    except Exception as error:
        # Decoders raise any error at broken data.
        return CardPart(field, "note", size, f"not what its name says: {type(error).__name__}")
    return CardPart(field, "text" if is_text else "note", size, text)


def _uri(kind: str, data: bytes) -> Uri:
    return Uri(f"data:{kind};base64,{b64encode(data).decode('ascii')}")


def _as_it_is(field: str, kind: str, mime: str, data: bytes, room: int) -> CardPart:
    if len(data) > room:
        return CardPart(field, "note", len(data), f"{kind}, too large for this page")
    return CardPart(field, kind, len(data), uri=_uri(mime, data))


def _image(field: str, size: int, data: bytes, room: int) -> CardPart:
    from PIL.Image import Resampling

    image = opened_image(data, MAX_DECODED_BYTES)
    width, height = image.size
    # Decode a JPEG only in the size that is needed.
    image.draft(None, (2 * SIDES_PIXELS[0], 2 * SIDES_PIXELS[0]))
    image.load()
    shown = visible(image)
    for side in SIDES_PIXELS:
        small = shown.copy()
        small.thumbnail((side, side), Resampling.LANCZOS)
        mime, encoded = _encoded(small, keep=small.size == shown.size and max(small.size) <= _PIXELATED)
        if len(encoded) <= room:
            is_clear = shown.mode == "RGBA"
            return CardPart(field, "image", size, "", _uri(mime, encoded), width, height, is_clear)
    return CardPart(field, "note", size, "image, too large for this page")


def _encoded(image: Any, *, keep: bool) -> tuple[str, bytes]:
    """Encode a picture as PNG if ``keep`` is true, which keeps every pixel. Otherwise encode it as WebP, or as JPEG if
    Pillow lacks WebP."""
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


def _sound(field: str, kind: FieldKind, data: bytes, room: int) -> CardPart:
    if len(data) <= room:
        return CardPart(field, "audio", len(data), uri=_uri(kind.card, data))
    if kind.card == "audio/wav":
        cut = _first_seconds(data, room)
        return CardPart(field, "audio", len(data), "the beginning", _uri(kind.card, cut))
    if kind.is_cuttable:
        return CardPart(field, "audio", len(data), "the beginning", _uri(kind.card, data[:room]))
    return CardPart(field, "note", len(data), "audio, too large for this page")


def _first_seconds(data: bytes, room: int) -> bytes:
    """Return the beginning of a WAV file that fits in the given bytes."""
    import wave

    stream = io.BytesIO()
    with wave.open(io.BytesIO(data)) as sound, wave.open(stream, "wb") as cut:
        cut.setnchannels(sound.getnchannels())
        cut.setsampwidth(sound.getsampwidth())
        cut.setframerate(sound.getframerate())
        frame_bytes = sound.getnchannels() * sound.getsampwidth()
        cut.writeframes(sound.readframes(max(1, (room - 64) // frame_bytes)))
    return stream.getvalue()
