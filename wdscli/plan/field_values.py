"""One value of a sample, as text: a field's payload, a place in its JSON, or what a pattern finds in its key.

What it is: :class:`FieldValue` (``cls``, ``json.user.id``) and :class:`KeyValue` (a regular expression over the key).
Both say which payloads they need and give the value of one sample, None when it is missing: no such field, no such
place, JSON's null, no match, or nothing but white space. It must not know what values are for.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, TypeAlias

from wdscli.errors import DataError, UsageError
from wdscli.model import to_bytes, to_text
from wdscli.plan.json_paths import Absent, Path, at_path, field_and_path, is_path
from wdscli.plan.survey import PayloadOf
from wdscli.samples import SampleBatch
from wdscli.selection.expressions import Expression
from wdscli.selection.named import Named

_PLAIN = re.compile(r"[\w-]+(\.[\w-]+)*")
"""What can only be a field's name, and no pattern that anybody would write."""


class FieldValue(NamedTuple):
    """A field's payload, or what lies at a ``path`` in its JSON. ``text`` is as it was typed."""

    text: str
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
        """What some sample must have."""
        return [Named(self.text, purpose, (to_text(self.field),), self.path)]

    def of(self, batch: SampleBatch, row: int, shard: str, payload_of: PayloadOf) -> bytes | None:
        """The value of one sample. Raises DataError ``undecodable``."""
        try:
            at = batch.fields.index(self.field, batch.firsts[row], batch.firsts[row + 1])
        except ValueError:
            return None
        payload = payload_of(row, self.field)
        if self.path is None:
            return payload.strip() or None
        try:
            return _at_path(payload, self.path)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"{to_text(self.field)} cannot be decoded: {error}",
                code="undecodable",
                shard=shard,
                offset=batch.starts[at],
                member=to_text(batch.keys[row] + b"." + self.field),
                hint="pass over such samples with --on-error skip",
            ) from None


class KeyValue(NamedTuple):
    """What a pattern finds in the key: its first group, or all of the match where it has no group."""

    text: str
    pattern: Expression[str]

    @classmethod
    def parse(cls, text: str, option: str) -> KeyValue:
        """A regular expression. Raises UsageError."""
        return cls(text, Expression(text, option))

    @property
    def payload_fields(self) -> frozenset[bytes]:
        return frozenset()

    def named(self, purpose: str) -> list[Named]:
        return []

    def of(self, batch: SampleBatch, row: int, shard: str, payload_of: PayloadOf) -> bytes | None:
        """The value of one sample."""
        match = self.pattern.search(to_text(batch.keys[row]))
        if match is None:
            return None
        found = match[1] if self.pattern.groups else match[0]
        return to_bytes(found).strip() or None if found is not None else None


class WholeKey(NamedTuple):
    """The key itself."""

    text: str = "key"

    @property
    def payload_fields(self) -> frozenset[bytes]:
        return frozenset()

    def named(self, purpose: str) -> list[Named]:
        return []

    def of(self, batch: SampleBatch, row: int, shard: str, payload_of: PayloadOf) -> bytes | None:
        """The value of one sample."""
        return batch.keys[row]


Value: TypeAlias = FieldValue | KeyValue | WholeKey


def field_or_pattern(text: str, option: str) -> FieldValue | KeyValue:
    """``FIELD`` for what reads like a name (letters, digits, ``_``, ``-``, and dots between them), ``json.PATH`` for
    what reads like one, a regular expression over the key for anything else. Raises UsageError.

    >>> type(field_or_pattern("seg.png", "--group-by")).__name__, type(field_or_pattern("^p[0-9]+", "")).__name__
    ('FieldValue', 'KeyValue')
    """
    if _PLAIN.fullmatch(text) or is_path(text):
        return FieldValue.parse(text, option)
    if not text:
        raise UsageError(f"{option} is empty", hint=f"{option} json.patient, or {option} '^p[0-9]+'")
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
