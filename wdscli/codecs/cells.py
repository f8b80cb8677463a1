"""This module converts a cell of a table to the payload of a field, in the way that the field's extension says.

:func:`cell_payload` converts a cell. Bytes are copied if they begin as their type requires. Text is copied if the type
is text. For a type that holds values, text must be JSON, because a cell of CSV can only be text. The encoders of
:mod:`~wdscli.codecs.values` encode lists, objects and numbers. :class:`TypedList` is a list that keeps the type of its
numbers. A value that its type cannot hold is an error; it is never written as another type.

This module does not know tables, rows or samples.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from wdscli.arrays import numpy
from wdscli.codecs.handlers import extension, held_extension
from wdscli.codecs.kinds import KINDS, find
from wdscli.codecs.values import ENCODERS, NUMBERS, TEXTS, gzipped, numpy_dumps
from wdscli.errors import DataError, UsageError
from wdscli.model import to_bytes

_SHOWN_CHARACTERS = 40
_SIGNS = [(name, at, magic) for name, kind in KINDS.items() for at, magic in kind.signs]


class TypedList(list[Any]):
    """A list of numbers, or of lists of numbers. ``dtype`` is the name of their numpy type, such as ``float32``."""

    def __init__(self, values: list[Any], dtype: str) -> None:
        super().__init__(values)
        self.dtype = dtype


def extension_of(data: bytes) -> str:
    """Return the extension for the first bytes of a file, such as a picture or a sound, or empty text for unknown
    bytes.

    >>> extension_of(b"\\x89PNG\\r\\n\\x1a\\n..."), extension_of(b"words")
    ('png', '')
    """
    return next((name for name, at, magic in _SIGNS if data.startswith(magic, at)), "")


def cell_payload(value: Any, column: str, field: str) -> bytes:
    """Return the payload of ``field`` for a cell of ``column`` that is not empty. Raises DataError ``bad-value``, which
    names the column and the field, and UsageError for a missing package.

    >>> cell_payload("[1, 2]", "x", "json"), cell_payload(7, "x", "cls")
    (b'[1, 2]', b'7')
    """
    try:
        if isinstance(value, bytes):
            return _as_it_stands(value, field)
        name, packed = held_extension(field)
        data = _encoded(value, name)
        return gzipped(data) if packed else data
    except Exception as error:
        if isinstance(error, UsageError) and isinstance(error.__cause__, ImportError):
            raise
        known = isinstance(error, (UsageError, DataError))
        raise DataError(
            f'column "{column}" cannot be written as {field}: {error if known else _line(error)}',
            code="bad-value",
            hint=error.hint if isinstance(error, (UsageError, DataError)) else None,
        ) from None


def _as_it_stands(data: bytes, field: str) -> bytes:
    name = extension(field)
    if not data.startswith(find(name).begins or b""):
        raise UsageError(
            f"its first bytes are not those of {name}: {data[:8]!r}",
            hint="choose a field name that fits the content of the column",
        )
    return data


def _encoded(value: Any, name: str) -> bytes:
    """Return ``value``, which is not bytes, encoded as the type ``name``."""
    kind = find(name)
    if hasattr(value, "tolist") and kind.form not in ("npy", "bundle") and not kind.pillow:
        value = value.tolist()
    if name in NUMBERS:
        return _number(value)
    if name in TEXTS or name not in ENCODERS:
        return _text(value, name)
    if kind.form == "json":
        if not isinstance(value, str):
            return json_bytes(value)
        _parsed(value)
        return to_bytes(value)
    if kind.form == "npy":
        return numpy_dumps(_numbers(value))
    if kind.form == "npz":
        value = _parsed(value)
        if isinstance(value, Mapping):
            value = {key: _numbers(one) for key, one in value.items()}
    elif kind.form == "bundle":
        value = _numbers(value)
    elif kind.pillow:
        value = _pixels(value)
    return bytes(ENCODERS[name](list(value) if isinstance(value, TypedList) else value))


def _number(value: Any) -> bytes:
    """Return a number as text. A whole number has no decimal point, because readers parse it with ``int``."""
    if isinstance(value, (float, Decimal)) and math.isfinite(value) and value == int(value):
        value = int(value)
    text = value if isinstance(value, str) else str(value)
    try:
        if isinstance(value, (bool, list, Mapping)) or not math.isfinite(float(text)):
            raise ValueError
    except ValueError:
        raise UsageError(f"{_shown(value)} is not a number", hint="use a txt field for any text") from None
    return to_bytes(text)


def _text(value: Any, name: str) -> bytes:
    if isinstance(value, str):
        return to_bytes(value)
    if name in TEXTS and isinstance(value, (list, Mapping)):
        kind = "list" if isinstance(value, list) else "an object"
        raise UsageError(f"text is not {kind}", hint="use a json field: --column json=COLUMN")
    if isinstance(value, Decimal) or (isinstance(value, float) and not math.isfinite(value)):
        return to_bytes(str(value))
    return to_bytes(value.isoformat()) if hasattr(value, "isoformat") else json_bytes(value)


def _parsed(value: Any) -> Any:
    """Parse text as JSON. Other values are returned unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{_shown(value)} is not JSON: {error}", hint="use a txt field for any text"
        ) from None


def json_bytes(value: Any) -> bytes:
    """Return a value as JSON in UTF-8 without blanks. NaN and infinite numbers become null. Raises DataError for values
    that JSON cannot hold.

    >>> json_bytes({"n": 1.5, "none": float("nan")})
    b'{"n":1.5,"none":null}'
    """
    try:
        try:
            return to_bytes(_ENCODER.encode(value))
        except ValueError:
            return to_bytes(_ENCODER.encode(_finite(value)))
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"a value cannot be written as JSON: {error}", code="bad-table") from None


def _finite(value: Any) -> Any:
    """Return the value with None in place of NaN and infinite numbers."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _plain(value: Any) -> Any:
    """Convert values that have no JSON type: times to ISO 8601, durations to seconds, decimal numbers to int or
    float."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "total_seconds"):
        return value.total_seconds()
    if isinstance(value, Decimal):
        whole = value.is_finite() and value == value.to_integral_value()
        return int(value) if whole else float(value) if value.is_finite() else None
    if isinstance(value, bytes):
        raise TypeError("bytes need a --column of their own")
    return str(value)


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)


def _numbers(value: Any) -> Any:
    """Return the array for a number or for lists of numbers, which may also be JSON text. Raises UsageError."""
    value = _parsed(value)
    try:
        array = numpy.asarray(value)
    except ValueError:  # the lists have different lengths
        array = numpy.empty(0, object)
    if array.dtype.kind not in "biuf":
        raise UsageError(f"{_shown(value)} is not an array of numbers", hint="use a json field for any value")
    return array.astype(value.dtype) if isinstance(value, TypedList) else array


def _pixels(value: Any) -> Any:
    """Return the array of a picture's values; whole numbers become uint8. Raises UsageError."""
    if isinstance(value, str):
        raise UsageError(
            f"{_shown(value)} is text",
            hint="if the column contains file names, read the files: --column EXT=@COLUMN",
        )
    array = _numbers(value)
    if array.dtype.kind in "iu" and array.dtype != numpy.uint8:
        if array.size and not (array.min() >= 0 and array.max() <= 255):
            raise UsageError(f"pixels must be 0 to 255, not {array.min()} to {array.max()}")
        array = array.astype(numpy.uint8)
    return array


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
