"""Globs over relative paths, as ``--include`` and ``--exclude`` mean them.

What it is: gitignore's reading of a pattern. One with no slash (but at its end) is matched against the last
part of a path, at any depth; one with a slash against the whole path. ``*`` and ``?`` stay within a part,
``**`` spans parts, ``[abc]`` and ``[!abc]`` are sets. How: each pattern becomes one regular expression over
bytes, so that names need be no UTF-8. It must not look at any file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from wdscli.model import to_bytes
from wdscli.selection.expressions import Expression


def translate(pattern: str) -> str:
    """The regular expression (over Latin-1 text of the bytes) that one glob means.

    >>> bool(re.fullmatch(translate("a/**/*.jpg"), "a/b/c.jpg")), bool(re.fullmatch(translate("*.jpg"), "b/c.jpg"))
    (True, True)
    """
    text = to_bytes(pattern).decode("latin-1").removesuffix("/")
    anchored = "/" in text
    body = "/".join(_part(part) for part in text.lstrip("/").split("/"))
    # "**/" is any number of whole folders, none included; a "**" at the end is everything below.
    body = body.replace("\0/", "(?:[^/]+/)*").replace("/\0", "/.+").replace("\0", ".*")
    return body if anchored else f"(?:.*/)?{body}"


def _part(part: str) -> str:
    """One part between slashes; ``**`` alone is marked with a NUL."""
    if part == "**":
        return "\0"
    out, at = [], 0
    while at < len(part):
        char = part[at]
        at += 1
        close = part.find("]", at + 1) if char == "[" else -1
        if char == "*":
            out.append("[^/]*")
        elif char == "?":
            out.append("[^/]")
        elif close > 0:
            inside = part[at:close]
            at = close + 1
            negated = inside[0] in "!^"
            # A set never matches the slash.
            out.append("(?!/)[" + "^" * negated + re.escape(inside[negated:]).replace(r"\-", "-") + "]")
        else:
            out.append(re.escape(char))
    return "".join(out)


class Globs:
    """Several globs; false when there are none."""

    def __init__(self, patterns: Sequence[str]) -> None:
        whole = "|".join(f"(?:{translate(pattern)})" for pattern in patterns)
        self._match = (
            Expression(whole.encode("latin-1"), "--include, --exclude", re.DOTALL).fullmatch
            if patterns
            else None
        )

    def __bool__(self) -> bool:
        return self._match is not None

    def match(self, path: bytes) -> bool:
        """Whether any of them matches."""
        return self._match is not None and self._match(path) is not None
