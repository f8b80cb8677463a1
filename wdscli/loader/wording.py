"""Options of wds as arguments of functions: what they may be, and their errors in the words of code.

It must not know what is selected by them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from wdscli.errors import DataError, UsageError


def texts(keys: str | Sequence[str] | None) -> list[str] | None:
    """``keys=`` as a list. Raises UsageError."""
    if keys is None or isinstance(keys, str):
        return None if keys is None else [keys]
    found: list[Any] = list(keys) if isinstance(keys, Iterable) else [None]
    if not all(isinstance(key, str) for key in found):
        raise UsageError(f"keys={keys!r}: keys are text", hint='keys=["n01/*", "n02/img7"]')
    if not found:
        raise UsageError("keys= is empty", hint="None keeps all keys")
    return found


@contextmanager
def in_code() -> Iterator[None]:
    """Errors that name options of wds name arguments instead."""
    try:
        yield
    except (DataError, UsageError) as error:
        error.message = argument(error.message)
        error.hint = None if error.hint is None else argument(error.hint)
        raise


def argument(text: str) -> str:
    """``text`` with arguments in the place of options.

    >>> argument("--where is empty"), argument("--keys 'n01/*'"), argument("pass over them with --on-error skip")
    ('where is empty', "keys='n01/*'", 'pass over them with on_error="skip"')
    """
    text = re.sub(r"--on-error (\w+)", r'on_error="\1"', text)
    text = re.sub(r"--(where|keys) (?=')", r"\1=", text)
    return re.sub(r"--(where|keys)\b(?!-)", r"\1", text).replace("--keys-from", "keys_from")
