"""Fields of a sample: found by name, and what is said when they are not there.

It must not know what a stage does with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from warnings import warn

from wdscli.errors import DataError, UsageError


class FieldError(DataError, ValueError, KeyError):
    """A field that is not there, or not once. Also a ValueError and a KeyError, for code that catches those."""


class Label(str):
    """The value of a field that a mix adds: no payload, so nothing is decoded."""

    __slots__ = ()


def getfirst(
    a: Mapping[str, Any], keys: str | Sequence[str], default: Any = None, missing_is_error: bool = True
) -> Any:
    """The value of the first of ``"jpg;png"`` that is there. Raises FieldError, which is a ValueError."""
    return first_of(a, alternatives(keys), missing_is_error, default)


def first_of(item: Mapping[str, Any], names: Sequence[str], must: bool = True, default: Any = None) -> Any:
    for name in names:
        if name in item:
            return item[name]
    if must:
        raise missing(item, ";".join(names))
    return default


def alternatives(names: str | Sequence[str]) -> list[str]:
    return names.split(";") if isinstance(names, str) else list(names)


def wanted_fields(fields: Any, known: Iterable[str] | None = None) -> list[str] | None:
    """What ``fields=`` names: a list of names, or text with commas between them; None for all. ``known`` are those that
    the set has, where that was counted: warns when no sample has any of them. Raises UsageError for what are no names.
    """
    if fields is None:
        return None
    given: Any = fields.split(",") if isinstance(fields, str) else fields
    names: list[Any] = list(given) if isinstance(given, Iterable) else [None]
    if not all(isinstance(name, str) and name for name in names):
        raise UsageError(f"fields={fields!r}: fields are named by text", hint='fields=["jpg", "json"]')
    have = sorted(known or ())
    if names and have and not {name.lower() for name in names} & {name.lower() for name in have}:
        warn(f"no sample has a field {' or '.join(names)}; there are {', '.join(have)}", stacklevel=3)
    return names


def want_dict(item: Any, stage: str) -> Any:
    if not isinstance(item, (dict, Mapping)):
        raise TypeError(f"{stage}() wants samples that are dicts, not {type(item).__name__}")
    return item


def want_callable(function: Any, where: str) -> None:
    if not callable(function):
        raise TypeError(f"{where}: {function!r} is no function")


def named(item: Mapping[str, Any]) -> str:
    return f'sample "{item["__key__"]}"' if "__key__" in item else "a sample"


def url_of(item: Mapping[str, Any]) -> str | None:
    return item.get("__url__")


def missing(item: Mapping[str, Any], wanted: str) -> FieldError:
    there = ", ".join(name for name in item if not name.startswith("__")) or "none"
    return FieldError(
        f'no field "{wanted}" in {named(item)}, which has {there}', code="missing-field", shard=url_of(item)
    )


def several(item: Mapping[str, Any], wanted: str) -> FieldError:
    return FieldError(
        f'several fields are "{wanted}" in {named(item)}', code="duplicate-field", shard=url_of(item)
    )
