"""This module reads cells of a table as the values of fields, in the way that the field's extension says.

:func:`cell_payload` reads a cell, and :func:`~wdscli.codecs.values.encode_field` encodes its value. A cell of CSV can
only be text, so text for a type that holds values must be JSON. A cell of JSON Lines, Parquet or Arrow may also be a
number, a list, an object or bytes. Bytes are copied if they begin as their type requires. Other values become text in
fields of text, and in fields of unknown type. NaN is a missing value. :class:`TypedList` is a list that keeps the type
of its numbers.

This module does not know tables, rows or samples.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from wdscli.arrays import numpy
from wdscli.codecs.handlers import extension, held_extension
from wdscli.codecs.kinds import KINDS, FieldKind, find
from wdscli.codecs.values import ENCODERS, check_content, encode_field, shown_value
from wdscli.errors import DataError, UsageError
from wdscli.text import to_bytes, to_text

_SIGNS = [(name, offset, magic) for name, kind in KINDS.items() for offset, magic in kind.signs]
_SCALARS = ("", "integer", "number", "text", "markup")
"""The formats that cannot hold NaN, so that it is a missing value."""


class TypedList(list[Any]):
    """A list of numbers, or of lists of numbers. ``dtype`` is the name of their numpy type, such as ``float32``."""

    def __init__(self, values: list[Any], dtype: str) -> None:
        super().__init__(values)
        self.dtype = dtype


_QUOTED = re.compile('"[^"]*"')


def delimiter_of(header: str) -> str:
    """Return the delimiter of a CSV, by its header: a comma, or without a comma the most frequent of ``;``, TAB and
    ``|``.

    >>> [delimiter_of(header) for header in ("a,b;c", '"a,b";c', "a|b", "a")]
    [',', ';', '|', ',']
    """
    outside = _QUOTED.sub("", header)
    most = max(";\t|", key=outside.count)
    return most if "," not in outside and most in outside else ","


def extension_of(data: bytes) -> str:
    """Return the extension for the first bytes of a file, such as a picture or a sound, or empty text for unknown
    bytes.

    >>> extension_of(b"\\x89PNG\\r\\n\\x1a\\n..."), extension_of(b"words")
    ('png', '')
    """
    return next((name for name, offset, magic in _SIGNS if data.startswith(magic, offset)), "")


def is_json(field: str) -> bool:
    """Return whether a field holds JSON that is not compressed.

    >>> is_json("captions.json"), is_json("txt"), is_json("json.gz")
    (True, False, False)
    """
    name, is_packed = held_extension(field)
    return find(name).form == "json" and not is_packed


def held_picture(field: str, data: bytes) -> str:
    """Return the extension of the picture in these bytes if the field has the name of another format of pictures, or
    else empty text.

    >>> held_picture("jpg", b"\\x89PNG\\r\\n\\x1a\\n..."), held_picture("txt", b"\\x89PNG\\r\\n\\x1a\\n...")
    ('png', '')
    """
    kind = find(extension(field))
    if kind.form != "image" or not kind.signs or data.startswith(kind.begins):
        return ""
    held = find(extension_of(data))
    return held.names.split()[0] if held.form == "image" and held is not kind else ""


def cell_payload(value: Any, column: str, field: str) -> bytes | None:
    """Return the payload of ``field`` for a cell of ``column`` that is not empty. Return None for a missing value: NaN
    in a field of text or numbers. Raises DataError ``bad-value``, which names the column and the field, and UsageError
    for a missing package.

    >>> cell_payload("[1, 2]", "x", "json"), cell_payload("7.0", "x", "cls")
    (b'[1, 2]', b'7')
    """
    try:
        name, _ = held_extension(field)
        kind = find(name)
        if isinstance(value, bytes) and kind.form == "integer":
            value = to_text(value)
        if isinstance(value, bytes):
            return _as_it_stands(value, field)
        if isinstance(value, float) and math.isnan(value) and kind.form in _SCALARS and not kind.is_binary:
            return None
        return bytes(encode_field(_value_of(value, name, kind), field))
    except Exception as error:
        if isinstance(error, UsageError) and isinstance(error.__cause__, ImportError):
            raise
        is_explained = isinstance(error, (UsageError, DataError))
        raise DataError(
            f'column "{column}" cannot be written as {field}: {error if is_explained else _line(error)}',
            code="bad-value",
            hint=error.hint if isinstance(error, (UsageError, DataError)) else None,
        ) from None


def _as_it_stands(data: bytes, field: str) -> bytes:
    name = extension(field)
    kind = find(name)
    check_content(data, name, kind)
    if not data.startswith(kind.begins or b""):
        raise UsageError(
            f"its first bytes are not those of {name}: {data[:8]!r}",
            hint="choose a field name that fits the content of the column",
        )
    return data


def _value_of(value: Any, name: str, kind: FieldKind) -> Any:
    """Return the value of a cell, which is not bytes, for the encoder of the type ``name``."""
    if kind.form == "npy":
        return _numbers(value)
    if kind.form == "npz":
        value = _parsed(value)
        return {key: _numbers(part) for key, part in value.items()} if isinstance(value, Mapping) else value
    if kind.form == "bundle":
        return _numbers(value)
    if kind.pillow:
        return value if isinstance(value, str) else _pixels(value)
    if hasattr(value, "tolist"):
        value = value.tolist()
    if kind.form == "json":
        return _json(value)
    if kind.form in ("text", "markup") or (name not in ENCODERS and not kind.is_binary):
        return _text(value, kind)
    return list(value) if isinstance(value, TypedList) else value


def _json(value: Any) -> bytes:
    """Return a value as JSON. Text must be JSON, and is kept. If it has NaN or infinite numbers, they become null."""
    if not isinstance(value, str):
        return json_bytes(value)
    constants: list[str] = []
    value_read = _parsed(value, constants)
    return json_bytes(value_read) if constants else to_bytes(value)


def _text(value: Any, kind: FieldKind) -> bytes:
    if isinstance(value, str):
        return to_bytes(value)
    if kind.form and isinstance(value, (list, Mapping)):
        what = "list" if isinstance(value, list) else "an object"
        raise UsageError(f"text is not {what}", hint="use a json field: --column json=COLUMN")
    if isinstance(value, Decimal) or (isinstance(value, float) and not math.isfinite(value)):
        return to_bytes(str(value))
    return to_bytes(value.isoformat()) if hasattr(value, "isoformat") else json_bytes(value)


def _parsed(value: Any, constants: list[str] | None = None) -> Any:
    """Parse text as JSON. Other values are returned unchanged. With ``constants``, NaN and infinite numbers are added
    to this list, and become None."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value, parse_constant=None if constants is None else constants.append)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{shown_value(value)} is not JSON: {error}",
            hint="if the column contains file names: --column EXT=@COLUMN; for any text, use a txt field",
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


def merged_json(payload: bytes, columns: bytes) -> bytes:
    """Return a JSON object, updated with the members of another object. Raises DataError for values that are no
    objects."""
    try:
        document = json.loads(payload)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise DataError(
            "the field json is not a JSON object, so no columns can be added to it",
            code="bad-value",
            hint="write the column to another field: --column meta.json=COLUMN",
        )
    return json_bytes(document | json.loads(columns))


def _finite(value: Any) -> Any:
    """Return the value with None in place of NaN and infinite numbers."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
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
        raise UsageError(
            f"{shown_value(value)} is not an array of numbers", hint="use a json field for any value"
        )
    return array.astype(value.dtype) if isinstance(value, TypedList) else array


def _pixels(value: Any) -> Any:
    """Return the array of a picture's values; whole numbers become uint8. Raises UsageError."""
    array = _numbers(value)
    if array.dtype.kind in "iu" and array.dtype != numpy.uint8:
        if array.size and not (array.min() >= 0 and array.max() <= 255):
            raise UsageError(f"pixels must be 0 to 255, not {array.min()} to {array.max()}")
        array = array.astype(numpy.uint8)
    return array


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
