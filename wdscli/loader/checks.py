"""Arguments that training code gives, looked at when they are given and not when the first batch is wanted.

It must not know what they are for.
"""

from __future__ import annotations

from operator import index
from typing import Any

from wdscli.errors import UsageError
from wdscli.units import parse_size


def want_whole(name: str, value: Any, least: int | None = None, hint: str | None = None) -> int:
    """``value`` as an int: one of Python's, numpy's or torch's, or 1e6. Raises UsageError for anything else, and for
    less than ``least``."""
    try:
        number = int(value) if isinstance(value, float) and value.is_integer() else index(value)
    except TypeError:
        raise UsageError(f"{name}={value!r} is no whole number", hint=hint) from None
    if least is not None and number < least:
        raise UsageError(f"{name}={number}: at least {least} is wanted", hint=hint)
    return number


def want_word(name: str, value: Any, words: tuple[str, ...]) -> None:
    """Raises UsageError for what is none of ``words``."""
    if value not in words:
        *others, last = (f'"{one}"' for one in words)
        raise UsageError(f"{name}={value!r} is not known", hint=f"{', '.join(others)} or {last}")


def want_size(name: str, value: Any) -> int:
    """Bytes, as a number or as text like ``"256MB"``. Raises UsageError."""
    if isinstance(value, str):
        return parse_size(value)
    return want_whole(name, value, 0, hint=f'{name}="256MB", or 0 for none')
