"""The form in which new members are written, from what a user asks for.

What it is: the rule that the modification time is what was asked for, else SOURCE_DATE_EPOCH, else 0. It must
not know any command.
"""

from __future__ import annotations

import os
from typing import Literal

from wdscli.errors import UsageError
from wdscli.tar import Form

_END = 1 << 33


def make_form(mtime: int | None = None, long_names: Literal["pax", "gnu"] = "pax") -> Form:
    """The form with this mtime (whole seconds); None is SOURCE_DATE_EPOCH where it is set, else 0."""
    if mtime is not None:
        return Form(_checked(mtime, "--mtime"), long_names)
    text = os.environ.get("SOURCE_DATE_EPOCH", "").strip()
    if not text:
        return Form(0, long_names)
    if not (text.isascii() and text.isdecimal()):
        raise UsageError(f'SOURCE_DATE_EPOCH is not a number of seconds: "{text}"')
    return Form(_checked(int(text), "SOURCE_DATE_EPOCH"), long_names)


def _checked(seconds: int, name: str) -> int:
    # A ustar header holds eleven octal digits.
    if not 0 <= seconds < _END:
        raise UsageError(f"{name} must be 0 to {_END - 1} seconds, not {seconds}")
    return seconds
