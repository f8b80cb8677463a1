"""Values of samples that options can name: a field, a place in its JSON, a match in the key, or the key itself.

There are :class:`FieldValue` (``cls``, ``json.user.id``), :class:`KeyValue` (a regular expression over the key) and
:class:`WholeKey`. :func:`field_and_path` and :func:`at_path` are for places in JSON. It must not know what the values
are for.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from wdscli.errors import UsageError
from wdscli.model import to_bytes, to_text
from wdscli.selection.expressions import Expression
from wdscli.selection.named import Named, Path
from wdscli.selection.numbers import Numbers
from wdscli.selection.sample import SampleAt

_IN_JSON = re.compile(r"((?:[^.\[]+\.)*?json)([.\[].*)", re.DOTALL)
_STEP = re.compile(r"""\.([^.\[\]"']+)|\[(-?[0-9]{1,9})\]|\["([^"]*)"\]|\['([^']*)'\]""")

_PATH_HINT = "a field (cls, seg.png) or a place in JSON (json.width, json.box[0])"


class Absent(Exception):
    """There is nothing at the path."""


def field_and_path(text: str, purpose: str, hint: str = _PATH_HINT) -> tuple[str, Path | None]:
    """A field, and the path into its JSON, which begins after the first part that is ``json``. ``purpose`` begins the
    message of the UsageError for any other text.

    >>> field_and_path("json.boxes[0]", "cannot sort by"), field_and_path("seg.png", "cannot sort by")
    (('json', ('boxes', 0)), ('seg.png', None))
    """
    match = _IN_JSON.fullmatch(text)
    if match is None:
        if not text or "/" in text:
            raise UsageError(f'{purpose} "{text}"', hint=hint)
        return text, None
    steps: list[str | int] = []
    at = 0
    while at < len(match[2]):
        step = _STEP.match(match[2], at)
        if step is None:
            raise UsageError(
                f'{purpose} "{text}": a path has no "{match[2][at:]}"',
                hint='write a path as json.a.b, json.a[0] or json["a name"]',
            )
        steps.append(int(step[2]) if step[2] else step[step.lastindex or 0])
        at = step.end()
    return match[1], tuple(steps)


def at_path(document: Any, path: Path) -> Any:
    """The value at a path. A name is the name of an object's member or, if it has only digits, a position in an array.
    Raises Absent, also for null."""
    for step in path:
        if isinstance(document, list) and (isinstance(step, int) or (step.isdecimal() and len(step) < 10)):
            place = int(step)
            if not -len(document) <= place < len(document):
                raise Absent
            document = document[place]
        elif isinstance(document, dict) and step in document:
            document = document[step]
        else:
            raise Absent
    if document is None:
        raise Absent
    return document


def stored_at(sample: SampleAt, field: bytes, path: Path | None) -> Numbers | None:
    """The stored values of a place in JSON; None if the sample's index does not have them."""
    values = sample.batch.values
    return values.get(stored_name(field, path)) if values else None


@lru_cache(1 << 10)
def stored_name(field: bytes, path: Path | None) -> str:
    """The name under which an index stores a place in JSON; empty if it cannot be stored. (In an expression of
    ``--where``, digits in quotes are no place in a list.)"""
    if field != b"json" or not path or any(isinstance(step, str) and step.isdecimal() for step in path):
        return ""
    from wdscli.selection.language import place_name

    return place_name(path)


_PLAIN = re.compile(r"[\w-]+(\.[\w-]+)*")
"""A text that can only be the name of a field, not a pattern."""


@dataclass(frozen=True)
class Value:
    """A value of samples that an option names. ``text`` is the typed text."""

    text: str

    @property
    def payload_fields(self) -> frozenset[bytes]:
        """The fields whose payloads are read."""
        return frozenset()

    def named(self, purpose: str) -> list[Named]:
        """The names that some sample must have."""
        return []

    def of(self, sample: SampleAt) -> bytes | None:
        """The value of one sample, None if it has none. Raises DataError ``undecodable``."""
        raise NotImplementedError


@dataclass(frozen=True)
class FieldValue(Value):
    """A field's payload, or the value at a ``path`` in its JSON."""

    field: bytes
    path: Path | None = None

    @classmethod
    def parse(cls, text: str, option: str) -> FieldValue:
        """``FIELD``, or ``json.PATH`` (``json.a.b``, ``json.a[0]``, ``json["a name"]``). Raises UsageError.

        >>> FieldValue.parse("json.user.id", "--by")
        FieldValue(text='json.user.id', field=b'json', path=('user', 'id'))
        """
        field, path = field_and_path(text, f"{option}: no field:")
        return cls(text, to_bytes(field), path)

    @property
    def payload_fields(self) -> frozenset[bytes]:
        return frozenset([self.field])

    def named(self, purpose: str) -> list[Named]:
        return [Named(self.text, purpose, (to_text(self.field),), self.path)]

    def of(self, sample: SampleAt) -> bytes | None:
        stored = stored_at(sample, self.field, self.path)
        if stored is not None:
            import json

            number = stored.at(sample.batch.index + sample.row)
            return None if number is None else json.dumps(number).encode()
        if self.field not in sample.fields:
            return None
        payload = sample.payload(self.field)
        if self.path is None:
            return payload.strip() or None
        try:
            return _at_path(payload, self.path)
        except (ValueError, RecursionError) as error:
            text = f"{to_text(self.field)} cannot be decoded: {error}"
            hint = "leave out such samples: --on-error skip"
            raise sample.error(text, "undecodable", self.field, hint) from None


@dataclass(frozen=True)
class KeyValue(Value):
    """The match of a pattern in the key: its first group, or the whole match if it has no group."""

    pattern: Expression[str]

    @classmethod
    def parse(cls, text: str, option: str) -> KeyValue:
        """A regular expression. Raises UsageError."""
        return cls(text, Expression(text, option))

    def of(self, sample: SampleAt) -> bytes | None:
        match = self.pattern.search(to_text(sample.key))
        if match is None:
            return None
        found = match[1] if self.pattern.groups else match[0]
        return to_bytes(found).strip() or None if found is not None else None


@dataclass(frozen=True)
class WholeKey(Value):
    """The key itself."""

    text: str = "key"

    def of(self, sample: SampleAt) -> bytes | None:
        return sample.key


def field_or_pattern(text: str, option: str) -> FieldValue | KeyValue:
    """Parse ``FIELD`` (letters, digits, ``_``, ``-``, and dots between them), ``json.PATH``, or else a regular
    expression over the key. Raises UsageError.

    >>> type(field_or_pattern("seg.png", "--group-by")).__name__, type(field_or_pattern("^p[0-9]+", "")).__name__
    ('FieldValue', 'KeyValue')
    """
    if not text:
        raise UsageError(f"{option} is empty", hint=f"{option} json.patient, or {option} '^p[0-9]+'")
    with suppress(UsageError):
        if _PLAIN.fullmatch(text) or field_and_path(text, option)[1] is not None:
            return FieldValue.parse(text, option)
    return KeyValue.parse(text, option)


def _at_path(payload: bytes, path: Path) -> bytes | None:
    """Text as it is; any other value as compact JSON. Raises ValueError, RecursionError."""
    import json

    try:
        value: Any = at_path(json.loads(payload), path)
    except Absent:
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass").strip() or None
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")
