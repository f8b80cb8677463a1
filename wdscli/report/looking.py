"""The payloads of drawn samples: classes, lengths of captions, sizes of pictures, and cards for the contact sheet.

What it is: :func:`look_into`, a task for the drawn samples of one shard, and :class:`Looked`, its result: counts,
and the classes of each sample. How: a payload is read with its headers, in the order of the shard, so that
unseekable streams (a ``.tar.gz``) are read once. Payloads that cannot be decoded are counted by field and are no
error: `verify --decode` says what is wrong. Names decide what a field means: :data:`CLASSES`, :data:`CAPTIONS`.

It must not know about other shards.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from wdscli.codecs.handlers import MAX_DECODED_BYTES, held_extension, inflate
from wdscli.codecs.kinds import KINDS, find
from wdscli.errors import DataError, StorageError
from wdscli.look.show import picture_size
from wdscli.model import to_text
from wdscli.report.cards import Card, make_card
from wdscli.report.drawing import Drawn, DrawnMember
from wdscli.samples.reading import Expected
from wdscli.storage import Source, open_source

Counted = TypeVar("Counted")

CLASSES = tuple(name for name, kind in KINDS.items() if kind.role == "class")
"""Extensions of fields, and top-level names in JSON, of a sample's class; the first that a set has is used."""
CAPTIONS = tuple(name for name, kind in KINDS.items() if kind.role == "caption")
MAX_VALUE_BYTES = 1 << 20
"""A larger class, text or JSON is not read."""
MAX_CLASS_CHARACTERS = 100
MAX_SOURCES = 200
"""The most names in JSON that are counted."""
HEADER_BYTES = 1 << 13
MAX_HEADER_BYTES = 1 << 18
"""Bytes of a picture that are read for its size: first the smaller number, then this one."""


class LookTask(NamedTuple):
    """The drawn samples of one shard, by place. Samples with a rank up to ``pictured`` have their pictures
    measured, those up to ``carded`` become cards, each with at most ``card_bytes`` of pictures and sound; 0 means
    none."""

    address: str
    samples: tuple[Drawn, ...]
    pictured: int
    carded: int
    card_bytes: int


class Looked(NamedTuple):
    """The results. ``classes`` has the place, the key and the classes of each sample. The rest are counts:
    ``characters`` and ``words`` of texts, ``pictures`` by width and height, ``names`` of JSON by field, name and
    type, ``unread`` payloads by field that cannot be decoded."""

    address: str
    classes: list[tuple[int, bytes, tuple[tuple[str, str], ...]]]
    characters: dict[str, Counter[int]]
    words: dict[str, Counter[int]]
    pictures: dict[str, Counter[tuple[int, int]]]
    names: Counter[tuple[str, str, str]]
    unread: Counter[str]
    cards: list[tuple[int, Card]]

    def add(self, other: Looked) -> None:
        """Add the results of another shard, except the classes."""
        _add_counts(self.characters, other.characters)
        _add_counts(self.words, other.words)
        _add_counts(self.pictures, other.pictures)
        for name, count in other.names.items():
            if name in self.names or len(self.names) < MAX_SOURCES:
                self.names[name] += count
        self.unread.update(other.unread)
        self.cards.extend(other.cards)


def _add_counts(mine: dict[str, Counter[Counted]], theirs: Mapping[str, Counter[Counted]]) -> None:
    for source, counts in theirs.items():
        mine.setdefault(source, Counter()).update(counts)


def new_looked(address: str = "") -> Looked:
    """An empty result."""
    return Looked(address, [], {}, {}, {}, Counter(), Counter(), [])


def look_into(task: LookTask) -> Looked:
    """Read the drawn samples of one shard. Raises InputError."""
    import warnings

    found = new_looked(task.address)
    with open_source(task.address) as source, warnings.catch_warnings():
        # Pillow warns about large and odd pictures.
        warnings.simplefilter("ignore")
        if source.seekable:
            source.expect([span for one in task.samples for span in _spans(one, task)])
        for one in task.samples:
            _Sample(source, one, task, found).look()
    return found


def _spans(one: Drawn, task: LookTask) -> list[tuple[int, int]]:
    """The bytes to read of a sample."""
    spans = []
    for member in one.members:
        expected, end = member.expected, member.expected.offset + member.expected.size
        if one.rank > task.carded and not _is_value(member):
            if one.rank > task.pictured or not _is_picture(member):
                continue
            end = min(end, expected.offset + HEADER_BYTES)
        spans.append((expected.first, end))
    return spans


def _is_value(member: DrawnMember) -> bool:
    kind = find(held_extension(to_text(member.field))[0])
    return member.expected.size <= MAX_VALUE_BYTES and bool(kind.role or kind.form == "json")


def _is_picture(member: DrawnMember) -> bool:
    return find(held_extension(to_text(member.field))[0]).form == "image"


class _Sample:
    """One drawn sample that is read."""

    def __init__(self, source: Source, drawn: Drawn, task: LookTask, found: Looked) -> None:
        self.source, self.drawn, self.task, self.found = source, drawn, task, found
        self.classes: list[tuple[str, str]] = []
        self.texts: list[tuple[str, str]] = []

    def look(self) -> None:
        """Read the wanted payloads, in the order of the shard, and add the results."""
        drawn, task = self.drawn, self.task
        payloads: list[tuple[str, int, bytes | None]] = []
        for member in drawn.members:
            field, size = to_text(member.field), member.expected.size
            is_whole = drawn.rank <= task.carded or _is_value(member)
            data = self._payload(field, member.expected) if is_whole else None
            if data is not None and _is_value(member):
                self._value(field, data)
            if drawn.rank <= task.pictured and _is_picture(member) and (data is not None or not is_whole):
                self._picture(field, member.expected, data)
            payloads.append((field, size, data))
        self.found.classes.append((drawn.place, drawn.key, tuple(self.classes)))
        if drawn.rank <= task.carded:
            card = make_card(
                drawn.key, drawn.place, payloads, self.classes, self.texts, task.card_bytes, task.address
            )
            self.found.cards.append((drawn.rank, card))

    def _payload(self, field: str, expected: Expected) -> bytes | None:
        """A payload; None if it is too large to decode or missing."""
        if expected.size > MAX_DECODED_BYTES:
            return None
        try:
            data = expected.payload(self.source)
            if held_extension(field)[1]:
                return inflate(data)
        except StorageError:
            raise
        except Exception:
            self.found.unread[field] += 1
            return None
        return data

    def _value(self, field: str, data: bytes) -> None:
        kind = find(held_extension(field)[0])
        try:
            if kind.form == "json":
                self._json(field, json.loads(data))
                return
            text = data.decode("utf-8").strip()
        except (ValueError, RecursionError):
            self.found.unread[field] += 1
            return
        if kind.role == "class" and len(text) <= MAX_CLASS_CHARACTERS:
            self.classes.append((field, text))
        elif kind.role == "caption":
            self._text(field, text)

    def _json(self, field: str, value: Any) -> None:
        if not isinstance(value, Mapping):
            self._name(field, "", value)
            return
        for name, one in value.items():
            self._name(field, str(name), one)
        for name in CLASSES:
            one = value.get(name)
            if isinstance(one, (str, int)) and len(str(one)) <= MAX_CLASS_CHARACTERS:
                self.classes.append((f"{field}: {name}", str(one)))
        for name in CAPTIONS:
            if isinstance(value.get(name), str):
                self._text(f"{field}: {name}", value[name].strip())

    def _name(self, field: str, name: str, value: Any) -> None:
        names = self.found.names
        place = (field, name, _TYPES.get(type(value), "null"))
        if place in names or len(names) < MAX_SOURCES:
            names[place] += 1

    def _text(self, source: str, text: str) -> None:
        self.texts.append((source, text))
        self.found.characters.setdefault(source, Counter())[len(text)] += 1
        self.found.words.setdefault(source, Counter())[len(text.split())] += 1

    def _picture(self, field: str, expected: Expected, data: bytes | None) -> None:
        size = None
        if data is not None:
            size = picture_size(data)
        else:
            whole = min(expected.size, MAX_HEADER_BYTES)
            first = min(expected.size, HEADER_BYTES) if self.source.seekable else whole
            with suppress(DataError):
                for length in dict.fromkeys((first, whole)):
                    size = size or picture_size(self.source.read_at(expected.offset, length))
        if size is None:
            self.found.unread[field] += 1
        else:
            self.found.pictures.setdefault(field, Counter())[size] += 1


_TYPES = {bool: "true or false", int: "number", float: "number", str: "text", list: "list", dict: "object"}
