"""This module has the places of values in fields: their names, and the walk to them.

A place is a field, or a path in a field that holds a document: JSON, msgpack or CBOR (:func:`parse_place`). Options of
all commands and the loader name places in the same way, alone or in an expression. The field ends with the first part
of the name that is the extension of a document, or with ``gz`` after it. A step by name into a list gives the values of
all its elements (:class:`EachValue`). :func:`field_value` decodes a payload by the name of its field.

This module does not know expressions, nor where payloads come from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from wdscli.codecs.handlers import held_extension, inflate
from wdscli.codecs.kinds import find, names_of
from wdscli.text import to_bytes

Path: TypeAlias = tuple[str | int, ...]

PAYLOADS = ("json", "cls", "txt")
OTHER_NAMES = ("key", "shard", "index", "size", "fields")
"""Names that are no fields. A field with such a name is written ``.size``, or ``field("size")`` in an expression."""
NAMES = (*OTHER_NAMES, *PAYLOADS)
MAX_DOCUMENT_BYTES = 1 << 26
"""The limit for a decompressed document."""

_DOCUMENTS = names_of("json", "msgpack", "cbor")
_NAME = r"[\w\udc80-\udcff][\w\udc80-\udcff:@$-]*"
_STEP = rf"""\.({_NAME})|\[(-?[0-9]{{1,9}})\]|\["([^"]*)"\]|\['([^']*)'\]"""
_PLACE = rf"""\.?({_NAME}(?:\.{_NAME})*)((?:{_STEP})*)"""
_CONSTANT = r"[0-9][0-9._]*([eE][0-9]+)?|None|True|False|and|for|if|in|is|not|or"
_DECIMAL = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?"
_DECIMAL_DIGITS = 16


class Absent(Exception):
    """The sample or the document lacks the value."""


class Place(NamedTuple):
    """A field, or a place in its document."""

    field: bytes
    path: Path = ()

    @property
    def is_packed(self) -> bool:
        """Whether the field is compressed."""
        return self.field.endswith(b".gz")


class EachValue(list[Any]):
    """The values of a step by name into a list: one for each element that has the name."""


class FloatText(str):
    """The text of a fraction in JSON, with all its digits. The class distinguishes it from a string."""

    __slots__ = ()

    @property
    def number(self) -> float:
        return float(self)

    @property
    def is_exact(self) -> bool:
        """Whether a float has all digits of the text."""
        from decimal import Decimal

        shortest = repr(self.number)
        return shortest == self or Decimal(shortest) == Decimal(self)


def is_document(field: str) -> bool:
    """Return whether a field holds a document with places."""
    return held_extension(field)[0] in _DOCUMENTS


def field_and_steps(names: list[str]) -> tuple[str, list[str]]:
    """Split names with dots between them into a field and the steps in its document.

    >>> field_and_steps(["info", "json", "w"]), field_and_steps(["a", "json", "gz"]), field_and_steps(["seg", "png"])
    (('info.json', ['w']), ('a.json.gz', []), ('seg.png', []))
    """
    end = next((place for place, name in enumerate(names, 1) if name.lower() in _DOCUMENTS), len(names))
    end += names[end : end + 1] == ["gz"]
    return ".".join(names[:end]), names[end:]


def is_reserved(names: list[str]) -> bool:
    """Return whether names with dots between them begin with a name that is no field, or with a text."""
    return names[0] in OTHER_NAMES or (names[0] in ("cls", "txt") and names[1:] not in ([], ["gz"]))


def parse_place(text: str) -> Place | None:
    """Return the place that a whole text names, or None if the text may be another expression. A minus sign belongs to
    a name, except between places of ``json``, ``cls`` and ``txt``.

    >>> parse_place("info.json.boxes[0]['a b']"), parse_place(".size"), parse_place("json.a-json.b")
    (Place(field=b'info.json', path=('boxes', 0, 'a b')), Place(field=b'size', path=()), None)
    """
    match = re.fullmatch(_PLACE, text)
    if match is None or re.fullmatch(_CONSTANT, text):
        return None
    names = match[1].split(".")
    operands = [re.split(r"[.\[]", operand)[0] for operand in text.split("-")]
    if not text.startswith(".") and (is_reserved(names) or (operands[1:] and {*operands} <= {*NAMES})):
        return None
    field, steps = field_and_steps(names)
    path: list[str | int] = [*steps]
    for step in re.finditer(_STEP, match[2]):
        path.append(int(step[2]) if step[2] else step[step.lastindex or 0])
    return None if path and not is_document(field) else Place(to_bytes(field), tuple(path))


def step_into(value: Any, step: Any) -> Any:
    """Return the value at one step: the name of an object's member, or a position in a list. A name that has only
    digits is a position in a list, and any other name gives the values of all elements. Raises Absent."""
    if isinstance(value, list) and type(step) is str:
        if not (step.isdecimal() and len(step) < 10):
            return _each(value, step)
        step = int(step)
    try:
        return value[step]
    except (LookupError, TypeError):
        raise Absent from None


def _each(elements: list[Any], name: str) -> EachValue:
    """Return the values of a name in the elements; raises Absent if there are elements, and none has the name. After
    another such step, the elements of lists in the list count as its elements."""
    if type(elements) is EachValue:
        inner = (element if isinstance(element, list) else [element] for element in elements)
        elements = list(chain.from_iterable(inner))
    values = EachValue(element[name] for element in elements if isinstance(element, dict) and name in element)
    if elements and not values:
        raise Absent
    return values


def class_number(text: str) -> int | None:
    """Return the number in a ``cls`` payload, by webdataset's rule, or None for text."""
    return int(text) if text.removeprefix("-").isdecimal() and len(text) < 100 else None


def class_name(value: object, classes: Sequence[str]) -> str | None:
    """Return the class name for a number, or for its text, if the class has a name."""
    number = class_number(str(value))
    return classes[number] if number is not None and 0 <= number < len(classes) else None


def field_value(field: str, payload: bytes) -> Any:
    """Decode a payload by the name of its field: a document, text, or the number in a text. ``txt`` is the text as it
    is. Other texts lose the white space at both ends, and an empty text becomes None. Captions are never numbers.
    Raises any error.

    >>> [field_value(*pair) for pair in (("cls", b"007"), ("score", b"0.50"), ("caption", b"7 "), ("a", b""))]
    [7, 0.5, '7', None]
    """
    return decoder_of(field)(payload)


@lru_cache(1 << 10)
def decoder_of(field: str, exact: bool = False) -> Callable[[bytes], Any]:
    """Return the function of :func:`field_value` for a field. With ``exact``, fractions in JSON are
    :class:`FloatText`."""
    name, is_packed = held_extension(field)
    decode = _plain_decoder(field, name, exact)
    return (lambda data: decode(inflate(data, MAX_DOCUMENT_BYTES))) if is_packed else decode


def unpacked(field: str, payload: bytes) -> bytes:
    """Decompress a payload if the name of its field ends in ``.gz``."""
    return inflate(payload, MAX_DOCUMENT_BYTES) if held_extension(field)[1] else payload


def _plain_decoder(field: str, name: str, exact: bool) -> Callable[[bytes], Any]:
    import json

    kind = find(name)
    if kind.form == "json":
        return _exact_json() if exact else json.loads
    if name in _DOCUMENTS:
        from wdscli.codecs.values import DEFAULTS

        return DEFAULTS[name]
    if field == "txt":
        return bytes.decode
    if kind.form == "text" or kind.role == "caption":
        return lambda data: data.decode().strip() or None
    return _class if kind.form == "integer" else _number_or_text


def _exact_json() -> Callable[[bytes], Any]:
    from json import JSONDecoder, detect_encoding

    decode = JSONDecoder(parse_float=FloatText).decode
    return lambda data: decode(data.decode(detect_encoding(data), "surrogatepass"))


def _class(payload: bytes) -> int | str | None:
    text = payload.decode().strip()
    number = class_number(text)
    return text or None if number is None else number


def _number_or_text(payload: bytes) -> float | str | None:
    text = payload.decode().strip()
    if len(text) > _DECIMAL_DIGITS or not re.fullmatch(_DECIMAL, text):
        return text or None
    return float(text) if "." in text else int(text)
