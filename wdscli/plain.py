"""Plain values, as JSON has them, made into typed records: how a format that a stranger may have written is checked.

What it is: :func:`read_as`. How: the type hints of a record say what each field must be, so that a format is described
once, by the record that is read. It must not know any format.
"""

from __future__ import annotations

from types import UnionType
from typing import Any, Literal, NewType, Union, get_args, get_origin, get_type_hints

Signed = NewType("Signed", int)
"""A whole number of any size; one that is typed ``int`` is at least 0 and less than 2^63."""


def read_as(kind: Any, value: Any, where: str = "") -> Any:
    """``value`` as a ``kind``: bool, int, float, str, None, Any, a Literal, ``X | None``, ``list[X]``,
    ``tuple[X, ...]``, ``tuple[X, Y]``, ``dict[str, X]``, or a named tuple of these, as an object or as a list.

    A field without a value is an error even where the record has a default; further names are ignored. Raises
    ValueError with the place, below ``where``, of the first value that does not fit.

    >>> read_as(tuple[int, str | None], [3, None])
    (3, None)
    >>> read_as(dict[str, list[int]], {"a": [1, "x"]})
    Traceback (most recent call last):
    ValueError: a.1
    """
    origin, options = get_origin(kind), get_args(kind)
    if kind is Any or (origin is Literal and type(value) is str and value in options):
        return value
    if origin in (Union, UnionType):
        return None if value is None else read_as(options[0], value, where)
    if origin in (list, tuple) and type(value) is list:
        kinds = options if origin is tuple and options[-1] is not ... else options[:1] * len(value)
        if len(kinds) == len(value):
            pairs = enumerate(zip(kinds, value))
            return origin(read_as(inner, one, f"{where}.{at}") for at, (inner, one) in pairs)
    elif origin is dict and type(value) is dict:
        return {name: read_as(options[1], one, f"{where}.{name}") for name, one in value.items()}
    elif hasattr(kind, "_fields"):
        if type(value) is list and len(value) == len(kind._fields):
            value = dict(zip(kind._fields, value))
        if type(value) is dict:
            if gone := [name for name in kind._fields if name not in value]:
                raise ValueError(f"{where}.{gone[0]}"[1:])
            hints = get_type_hints(kind)
            return kind(*(read_as(hints[name], value[name], f"{where}.{name}") for name in kind._fields))
    elif type(value) is getattr(kind, "__supertype__", kind) and (kind is not int or 0 <= value < 1 << 63):
        return value
    raise ValueError(where[1:] or "an object")
