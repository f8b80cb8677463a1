"""``--keys`` and ``--keys-from``: samples by key.

A glob is matched against the whole key, case counts, and ``*`` matches ``/`` too, as in Python's fnmatch and
in find's ``-path``. The lines of a key file are compared byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import translate
from typing import NamedTuple

from wdscli.errors import UsageError
from wdscli.model import to_bytes, to_text
from wdscli.storage import addresses_of, read_all

_MAGIC = frozenset("*?[")


class KeyRule(NamedTuple):
    """A key matches when it is one of ``exact`` or like one of ``globs`` (if any were given) and one of
    ``listed`` (if files were given). ``sources`` are the files' addresses."""

    exact: frozenset[bytes] = frozenset()
    globs: re.Pattern[str] | None = None
    listed: dict[bytes, None] | None = None
    sources: tuple[str, ...] = ()

    @classmethod
    def parse(cls, keys: Sequence[str], keys_from: str | Sequence[str] | None) -> KeyRule:
        if any(not key for key in keys):
            raise UsageError("--keys is empty", hint="--keys 'n01/*'")
        sources = addresses_of(keys_from, "--keys-from")
        plain = [key for key in keys if _MAGIC.isdisjoint(key)]
        globs = [translate(key) for key in keys if not _MAGIC.isdisjoint(key)]
        return cls(
            exact=frozenset(map(to_bytes, plain)),
            globs=re.compile("|".join(globs)) if globs else None,
            listed=None if keys_from is None else {key: None for one in sources for key in read_keys(one)},
            sources=sources,
        )

    def matches(self, key: bytes, found: set[bytes]) -> bool:
        """Whether ``key`` is selected; if the file names it, it goes into ``found``."""
        if self.listed is not None:
            if key not in self.listed:
                return False
            found.add(key)
        if not self.exact and self.globs is None:
            return True
        return key in self.exact or (self.globs is not None and self.globs.match(to_text(key)) is not None)

    def unseen(self, found: set[bytes]) -> list[bytes]:
        """The keys of the file that are not in ``found``, in the file's order."""
        return [key for key in self.listed or () if key not in found]


def read_keys(address: str) -> dict[bytes, None]:
    """The keys of a file: one a line, bytes as they are but for a carriage return at the end; blank lines do
    not count. A dict, because it keeps the order of the lines."""
    lines = read_all(address).split(b"\n")
    return dict.fromkeys(key for key in (line.removesuffix(b"\r") for line in lines) if key.strip())
