"""Documents from files: the fields, types and bounds of a format in one table, and one check of a document.

What it is: :func:`check`, for manifests, indexes, receipts and plans. How: a table has the form of the document.

    str, bool, float, bytes, dict   exactly this type; True is not a number
    int                             a whole number from 0 to 2^63 - 1
    range(low, end)                 a whole number, low <= number < end
    object                          any value
    (A, B)                          one of these tables or constants: ("pax", "gnu"), (str, None)
    [A, B]                          a list of exactly these two
    [A, ...]                        a list of any length
    {"name": A, "other?": B}        an object; ``other`` may be missing, and names without a table are ignored
    {...: A}                        an object with any names

It must not know any format.
"""

from __future__ import annotations

import json
from itertools import repeat
from typing import Any

_WORDS = {
    str: "text",
    bool: "true or false",
    float: "a fraction",
    bytes: "bytes",
    int: "a whole number from 0",
    dict: "an object",
    list: "a list",
}
_END = 1 << 63
_SHOWN = 60
"""Characters of a wrong value in a message."""


def check(value: Any, table: Any) -> None:
    """Raise ValueError unless a value fits its table: the message has the field's path, its value and what it must be.

    >>> check({"shards": [{"size": -1}]}, {"shards": [{"size": int}, ...]})
    Traceback (most recent call last):
    ...
    ValueError: shards.0.size is -1, not a whole number from 0
    """
    wrong = _wrong(value, table)
    if wrong:
        raise ValueError(wrong[1:] if wrong.startswith(".") else f"it{wrong}")


def _wrong(value: Any, table: Any) -> str:
    """The path of the first value that does not fit, and why; empty when all fit."""
    kind = type(value)
    if table is kind:
        return "" if kind is not int or 0 <= value < _END else _unlike(value, table)
    if type(table) is tuple:
        # The table of the value's kind names the wrong field inside it.
        inner = next((one for one in table if kind in (dict, list) and type(one) is kind), None)
        if inner is not None:
            return _wrong(value, inner)
        return "" if not all(_wrong(value, one) for one in table) else _unlike(value, table)
    if kind is dict and type(table) is dict:
        every = table.get(...)
        for name, inner in table.items() if every is None else zip(value, repeat(every)):
            key = name.removesuffix("?") if every is None else name
            if key not in value:
                if key == name:
                    return f" has no {key}"
            elif wrong := _wrong(value[key], inner):
                return f".{key}{wrong}"
        return ""
    if kind is list and type(table) is list and (table[-1] is ... or len(value) == len(table)):
        for at, one in enumerate(value):
            if wrong := _wrong(one, table[0 if table[-1] is ... else at]):
                return f".{at}{wrong}"
        return ""
    if type(table) is range:
        fits = kind is int and value in table
    else:
        fits = table is object or (kind is type(table) and value == table)
    return "" if fits else _unlike(value, table)


def _unlike(value: Any, table: Any) -> str:
    """Why one value does not fit, as the end of a sentence."""
    is_short = isinstance(value, (str, int, float, type(None)))
    found = json.dumps(value)[:_SHOWN] if is_short else _WORDS.get(type(value), "another value")
    return f" is {found}, not {_words(table)}"


def _words(table: Any) -> str:
    """What a table asks for, in words."""
    if type(table) is tuple:
        return " or ".join(map(_words, table))
    if type(table) is range:
        return f"a whole number from {table.start}" + (f" to {table.stop - 1}" if table.stop < _END else "")
    if type(table) is list and ... not in table:
        return f"a list of {len(table)}"
    kind = table if isinstance(table, type) else type(table)
    return _WORDS[kind] if kind is table or kind in (dict, list) else json.dumps(table)
