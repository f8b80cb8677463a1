"""This module checks documents from files against a table of fields, types and bounds.

:func:`check` checks manifests, indexes, receipts, plans and jobs. A table has the form of the document. All values for
the same place in the table are checked together, because a manifest may have 100,000 shards.

    str, bool, float, bytes, dict   exactly this type; True is not a number
    int                             a whole number from 0 to 2^63 - 1
    range(low, end)                 a whole number, low <= number < end
    object                          any value
    (A, B)                          one of these tables or constants: ("pax", "gnu"), (str, None)
    [A, B]                          a list of exactly these two
    [A, ...]                        a list of any length
    {"name": A, "other?": B}        an object; ``other`` may be missing, and names without a table are ignored
    {...: A}                        an object with any names

An object may be :class:`PackedObject`, because a manifest with 300,000 entries would need 200 MB of dictionaries.

This module does not know any format.
"""

from __future__ import annotations

import json
import marshal
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

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
"""The most characters of a wrong value in a message."""
_PACKED_TOGETHER = 1 << 10
"""How many packed objects are unpacked for one check."""
Item = TypeVar("Item")


class PackedObject(bytes):
    """An object that :func:`packed` has packed. Bytes from a file must never become a Packed."""

    __slots__ = ()


def packed(value: dict[str, Any]) -> PackedObject:
    return PackedObject(marshal.dumps(value))


def unpacked(value: Any) -> Any:
    """Return a value, unpacked if it is packed."""
    return marshal.loads(value) if type(value) is PackedObject else value


class Records(Sequence[Item]):
    """The records that ``make`` returns for a list of objects, packed or not. Each access makes the record again."""

    def __init__(self, entries: list[Any], make: Callable[[Any], Item]) -> None:
        self._entries = entries
        self._make = make

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, index: Any) -> Any:
        return self._make(unpacked(self._entries[index]))

    def __iter__(self) -> Iterator[Item]:
        return map(self._make, map(unpacked, self._entries))


def check(value: Any, table: Any) -> None:
    """Raise ValueError unless a value fits its table. The message has the field's path, its value and the expected
    type.

    >>> check({"shards": [{"size": -1}]}, {"shards": [{"size": int}, ...]})
    Traceback (most recent call last):
    ...
    ValueError: shards.0.size is -1, not a whole number from 0
    """
    if not _fit([value], table):
        wrong = _wrong(value, table)
        raise ValueError(wrong[1:] if wrong.startswith(".") else f"it{wrong}")


def table_of(kind: Any) -> Any:
    """Return the table of a record that was stored as an object, or of one of its types.

    >>> table_of(Mapping[str, tuple[int, ...]]), table_of(Literal["pax", "gnu"] | None)
    ({Ellipsis: [<class 'int'>, Ellipsis]}, (('pax', 'gnu'), None))
    """
    origin, types = get_origin(kind), get_args(kind)
    if origin is Literal:
        return types
    if origin in (Union, UnionType):
        return tuple(map(table_of, types))
    if origin in (dict, Mapping):
        return {...: table_of(types[1])}
    if origin in (list, tuple, Sequence):
        return [table_of(types[0]), ...]
    if hints := get_type_hints(kind):
        return {name: table_of(hint) for name, hint in hints.items()}
    return None if kind is NoneType else kind


def _fit(values: Sequence[Any], table: Any) -> bool:
    """Return whether all values fit a table."""
    if type(table) is tuple:
        if any(_fit(values, alternative) for alternative in table):
            return True
        return len(values) > 1 and all(_fit([value], table) for value in values)
    kinds = set(map(type, values))
    if type(table) is dict and PackedObject in kinds:
        blocks = range(0, len(values), _PACKED_TOGETHER)
        return all(
            _fit([*map(unpacked, values[start : start + _PACKED_TOGETHER])], table) for start in blocks
        )
    if table is int:
        table = range(_END)
    if type(table) is range:
        return kinds <= {int} and (not values or (min(values) in table and max(values) in table))
    if isinstance(table, type):
        return table is object or kinds <= {table}
    if not kinds <= {type(table)}:
        return False
    if type(table) is dict:
        if ... in table:
            return _fit([entry for value in values for entry in value.values()], table[...])
        for name, inner in table.items():
            key = name.removesuffix("?")
            column = [value[key] for value in values if key in value]
            if (key == name and len(column) < len(values)) or not _fit(column, inner):
                return False
        return True
    if type(table) is list:
        if ... in table:
            return _fit([entry for value in values for entry in value], table[0])
        return all(len(value) == len(table) for value in values) and all(map(_fit, zip(*values), table))
    return all(value == table for value in values)


def _wrong(value: Any, table: Any) -> str:
    """Return the path of the first wrong value inside a value that does not fit, and why it is wrong."""
    value = unpacked(value)
    kind = type(value)
    if type(table) is tuple and kind in (dict, list):
        # The table of the value's kind names the wrong field inside it.
        table = next((alternative for alternative in table if type(alternative) is kind), table)
    if kind is dict and type(table) is dict:
        every = table.get(...)
        for name, inner in table.items() if every is None else zip(value, repeat(every)):
            key = name.removesuffix("?") if every is None else name
            if key not in value:
                if key == name:
                    return f" has no {key}"
            elif not _fit([value[key]], inner):
                return f".{key}{_wrong(value[key], inner)}"
    if kind is list and type(table) is list and (... in table or len(value) == len(table)):
        for position, (entry, inner) in enumerate(zip(value, repeat(table[0]) if ... in table else table)):
            if not _fit([entry], inner):
                return f".{position}{_wrong(entry, inner)}"
    return _unlike(value, table)


def _unlike(value: Any, table: Any) -> str:
    """Why one value does not fit, as the end of a sentence."""
    is_short = isinstance(value, (str, int, float, type(None)))
    text = json.dumps(value)[:_SHOWN] if is_short else _WORDS.get(type(value), "another value")
    return f" is {text}, not {_words(table)}"


def _words(table: Any) -> str:
    """Describe in words which values a table allows."""
    if type(table) is tuple:
        is_choice = len(table) > 2 and all(isinstance(alternative, str) for alternative in table)
        return f"one of {', '.join(table)}" if is_choice else " or ".join(map(_words, table))
    if type(table) is range:
        return f"a whole number from {table.start}" + (f" to {table.stop - 1}" if table.stop < _END else "")
    if type(table) is list and ... not in table:
        return f"a list of {len(table)}"
    kind = table if isinstance(table, type) else type(table)
    return _WORDS[kind] if kind is table or kind in (dict, list) else json.dumps(table)
