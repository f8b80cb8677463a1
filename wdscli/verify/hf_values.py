"""Whether Hugging Face datasets can read the values of a shard: integers, text, and the types inside JSON.

What it is: :class:`HfValues`, which takes the windows of a shard. How: datasets (its ``webdataset`` builder, 5.2)
infers one Arrow type for each place inside a JSON field from the first five samples of the first shard. It converts
every later value to that type, and fails where it cannot. :func:`type_of` and :func:`merged` infer these types as
Arrow does. A value of another type is an error here even if a conversion succeeds (2.5 becomes 2 where the first five
have whole numbers), because the reader then gets another value than the file holds. Conversions without a loss are
accepted.

A type is None (only nulls so far), ``"int"``, ``"float"``, ``"bool"``, ``"text"``, ``[type]`` of a list's elements,
or ``{key: type}``. This module must not know how members are grouped or findings are shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

from wdscli.codecs.handlers import MAX_DECODED_BYTES
from wdscli.codecs.kinds import find
from wdscli.model import to_text
from wdscli.samples import split_name
from wdscli.tar import KIND_MASK, REGULAR, Window
from wdscli.verify.findings import Ledger

HF_FIRST_SAMPLES = 5
_MAX_NUMBER_BYTES = 64
_MAX_PLACES = 1 << 12
"""Dropped places of a shard that are reported once each; further ones are reported at each sample."""
_MAX_INT = (1 << 63) - 1
_MAX_EXACT_INT = 1 << 53
"""A float holds all whole numbers up to this one."""

Type: TypeAlias = "str | list[Any] | dict[str, Any] | None"
_NOUNS = {None: "null", "int": "whole numbers", "float": "fractions", "bool": "true or false", "text": "text"}


class TypeClash(Exception):
    """A value has another type than earlier values at its place."""


class HfValues:
    """Checks the payloads of one shard. ``types`` are those of JSON fields by name, from the first shard; None for
    the first shard itself, whose first samples set them."""

    def __init__(self, ledger: Ledger, types: dict[bytes, Type] | None) -> None:
        self.types: dict[bytes, Type] = {} if types is None else types
        self._ledger = ledger
        self._samples_left = HF_FIRST_SAMPLES if types is None else -1
        self._key: bytes | None = None
        self._dropped: set[str] = set()
        self._checks = {"json": self._json, "integer": self._integer, "text": self._text}

    def add(self, window: Window) -> None:
        """Check the members of the next window."""
        columns = window.columns
        for row, name in enumerate(columns.names):
            if columns.flags[row] & KIND_MASK != REGULAR:
                continue
            if self._samples_left >= 0:
                self._count(name)
            check = self._checks.get(find(to_text(name[name.rfind(b".") + 1 :].lower())).form)
            if check is not None:
                check(window, row)

    def _count(self, name: bytes) -> None:
        """Count the first samples."""
        parts = split_name(name)
        if parts is not None and parts[0] != self._key:
            self._key = parts[0]
            self._samples_left -= 1

    def _add(self, code: str, message: str, window: Window, row: int, hint: str | None = None) -> None:
        columns, text = window.columns, f"Hugging Face datasets: {message}"
        self._ledger.add(code, text, offset=columns.starts[row], member=columns.names[row], hint=hint)

    def _integer(self, window: Window, row: int) -> None:
        if window.columns.sizes[row] > _MAX_NUMBER_BYTES or not _is_integer(window.payload(row)):
            self._add("hf-not-an-integer", "the payload is not an integer of 64 bits", window, row)

    def _text(self, window: Window, row: int) -> None:
        if self._is_small(window, row):
            try:
                window.payload(row).decode()
            except UnicodeDecodeError as error:
                self._add("hf-undecodable", f"the text is not UTF-8 at its byte {error.start}", window, row)

    def _json(self, window: Window, row: int) -> None:
        if not self._is_small(window, row):
            return
        parts = split_name(window.columns.names[row])
        field = parts[1] if parts is not None else b""
        try:
            value = json.loads(window.payload(row))
            if self._samples_left >= 0 or field in self.types:
                self._typed(field, value, window, row)
        except TypeClash as clash:
            self._add("hf-mixed-types", str(clash), window, row)
        except (ValueError, RecursionError) as error:
            self._add("hf-undecodable", f"the JSON cannot be read: {error}"[:200], window, row)

    def _is_small(self, window: Window, row: int) -> bool:
        size = window.columns.sizes[row]
        if size > MAX_DECODED_BYTES:
            hint = "keep data of this size out of JSON and text fields"
            self._add("unchecked", f"the payload has {size} bytes and was not decoded", window, row, hint)
        return size <= MAX_DECODED_BYTES

    def _typed(self, field: bytes, value: Any, window: Window, row: int) -> None:
        """Compare a value with the field's types; the first samples add to them."""
        place, dropped = to_text(field), set[str]()
        if self._samples_left >= 0:
            self.types[field] = merged(self.types.get(field), type_of(value, place), place)
        check_value(self.types[field], value, place, dropped)
        for lost in sorted(dropped - self._dropped):
            if len(self._dropped) < _MAX_PLACES:
                self._dropped.add(lost)
            self._add("hf-dropped-field", f"{lost} is in none of the first five samples", window, row)


def _noun(kind: Type) -> str:
    if isinstance(kind, dict):
        return "objects"
    return "lists" if isinstance(kind, list) else _NOUNS[kind]


def _clash(place: str, value: Any, kind: Type) -> TypeClash:
    has = _noun({} if isinstance(value, dict) else [] if isinstance(value, list) else "text")
    if not isinstance(value, (dict, list, str)):
        has = json.dumps(value)[:24]
    return TypeClash(f"{place} has {has}, but earlier values are {_noun(kind)}")


def type_of(value: Any, place: str) -> Type:
    """The Arrow type of one sample's value. Raises TypeClash when the elements of a list have no common type."""
    if isinstance(value, dict):
        for key in value:
            key.encode()
        return {key: type_of(one, f"{place}.{key}") for key, one in value.items()}
    if isinstance(value, list):
        kind: Type = None
        for one in value:
            kind = merged(kind, type_of(one, f"{place}[]"), f"{place}[]", numbers=True)
        return [kind]
    if isinstance(value, str):
        value.encode()
        return "text"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int) and not -_MAX_INT - 1 <= value <= _MAX_INT:
        raise ValueError(f"{place} is a number of more than 64 bits")
    return None if value is None else type(value).__name__


def merged(one: Type, other: Type, place: str, *, numbers: bool = False) -> Type:
    """The common type of two samples, or of two elements of a list, which with ``numbers`` may mix whole numbers and
    fractions. Raises TypeClash."""
    if one is None or other is None or one == other:
        return one if other is None else other
    if isinstance(one, dict) and isinstance(other, dict):
        both = dict(one)
        for key, kind in other.items():
            both[key] = merged(one.get(key), kind, f"{place}.{key}", numbers=numbers)
        return both
    if isinstance(one, list) and isinstance(other, list):
        return [merged(one[0], other[0], f"{place}[]", numbers=numbers)]
    if numbers and (one, other) in (("int", "float"), ("float", "int")):
        return "float"
    raise TypeClash(f"{place} has {_noun(other)}, but earlier values are {_noun(one)}")


def check_value(kind: Type, value: Any, place: str, dropped: set[str]) -> None:
    """Raise TypeClash for a value that datasets cannot read as ``kind``, or changes. Dropped keys are added to
    ``dropped``."""
    _check_stored(kind, _encoded(kind, value, place, dropped), place)


def _encoded(kind: Type, value: Any, place: str, dropped: set[str]) -> Any:
    """The value as datasets writes it (its ``encode_nested_example``): objects get all expected keys and lose others.
    Elements of a list stay as they are when the first one that is neither null nor empty would."""
    if isinstance(kind, dict) and isinstance(value, dict):
        dropped.update(f"{place}.{key}" for key in value.keys() - kind.keys())
        return {key: _encoded(one, value.get(key), f"{place}.{key}", dropped) for key, one in kind.items()}
    if isinstance(kind, list) and isinstance(value, list) and value:
        first = next((one for one in value if _is_filled(one, kind[0])), value[-1])
        if _encoded(kind[0], first, place, set()) != first:
            return [_encoded(kind[0], one, f"{place}[]", dropped) for one in value]
    is_exact = kind == "float" and type(value) is int and abs(value) <= _MAX_INT and float(value) == value
    return float(value) if is_exact else value


def _is_filled(value: Any, kind: Type) -> bool:
    if isinstance(value, list) and isinstance(kind, list):
        return bool(value) and _is_filled(value[0], kind[0])
    return value is not None


def _check_stored(kind: Type, value: Any, place: str) -> None:
    """Raise TypeClash for a value that Arrow cannot convert to ``kind`` without a loss."""
    if isinstance(kind, dict) and isinstance(value, dict):
        for key, one in value.items():
            if key not in kind:
                raise TypeClash(f"{place} has the key {json.dumps(key)}, which earlier lists do not have")
            _check_stored(kind[key], one, f"{place}.{key}")
    elif isinstance(kind, list) and isinstance(value, list):
        for one in value:
            _check_stored(kind[0], one, f"{place}[]")
    elif value is not None and not (isinstance(kind, str) and _FITS[kind](value)):
        raise _clash(place, value, kind)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.encode() or True)


def _is_whole(value: Any) -> bool:
    if isinstance(value, float):
        return value.is_integer() and abs(value) <= _MAX_EXACT_INT
    return type(value) is int and -_MAX_INT - 1 <= value <= _MAX_INT


def _is_fraction(value: Any) -> bool:
    return isinstance(value, float) or (type(value) is int and abs(value) <= _MAX_EXACT_INT)


_FITS: dict[str, Callable[[Any], bool]] = {
    "int": _is_whole,
    "float": _is_fraction,
    "bool": lambda value: isinstance(value, bool),
    "text": _is_text,
}


def _is_integer(payload: bytes) -> bool:
    try:
        return abs(int(payload)) <= _MAX_INT
    except ValueError:
        return False
