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
from wdscli.selection.named import Absence, Sightings, listed
from wdscli.storage import addresses_of, read_all

_MAGIC = frozenset("*?[")
_FOLLOWED_AT_MOST = 64
_SHOWN = 3


class Glob(NamedTuple):
    """One glob over keys."""

    text: bytes
    pattern: re.Pattern[str]


class KeyRule(NamedTuple):
    """A key matches when it is one of ``exact`` or like one of ``globs`` (if any were given) and one of
    ``listed`` (if files were given). ``sources`` are the files' addresses; ``any_glob`` is all globs together."""

    exact: frozenset[bytes] = frozenset()
    globs: tuple[Glob, ...] = ()
    any_glob: re.Pattern[str] | None = None
    listed: dict[bytes, None] | None = None
    sources: tuple[str, ...] = ()

    @classmethod
    def parse(cls, keys: Sequence[str], keys_from: str | Sequence[str] | None) -> KeyRule:
        if any(not key for key in keys):
            raise UsageError("--keys is empty", hint="--keys 'n01/*'")
        sources = addresses_of(keys_from, "--keys-from")
        globs = [key for key in dict.fromkeys(keys) if not _MAGIC.isdisjoint(key)]
        return cls(
            exact=frozenset(to_bytes(key) for key in keys if _MAGIC.isdisjoint(key)),
            globs=tuple(Glob(to_bytes(key), re.compile(translate(key))) for key in globs),
            any_glob=re.compile("|".join(map(translate, globs))) if globs else None,
            listed=None if keys_from is None else {key: None for one in sources for key in read_keys(one)},
            sources=sources,
        )

    def matches(self, key: bytes, found: set[bytes]) -> bool:
        """Whether ``key`` is selected; what names it, here or in a file, goes into ``found``."""
        is_listed = self.listed is None or key in self.listed
        if self.listed is not None and is_listed:
            found.add(key)
        if not self.exact and self.any_glob is None:
            return is_listed
        is_exact = key in self.exact
        if is_exact:
            found.add(key)
        text = to_text(key) if self.any_glob is not None else ""
        if self.any_glob is None or self.any_glob.match(text) is None:
            return is_exact and is_listed
        for glob in self.globs:
            if glob.text not in found and glob.pattern.match(text) is not None:
                found.add(glob.text)
        return is_listed

    def look(self, keys: Sequence[bytes], found: set[bytes], sightings: Sightings) -> None:
        """Take note of keys that may be near those that were not found so far."""
        missing = self.exact - found if len(self.exact) <= _FOLLOWED_AT_MOST else ()
        sightings.see_keys(keys, missing)

    def unseen(self, found: set[bytes]) -> list[bytes]:
        """The keys of the files that are not in ``found``, in the files' order."""
        return [key for key in self.listed or () if key not in found]

    def absences(self, found: set[bytes], sightings: Sightings) -> list[Absence]:
        """The keys and globs that no sample has, and files of which none has any."""
        absences = []
        like = f"keys are {listed([to_text(key) for key in sightings.keys], ', ')}"
        if missing := sorted(self.exact - found):
            close = dict.fromkeys(near for key in missing[:_SHOWN] for near in sightings.near_keys(key))
            hint = f"did you mean {listed(list(close), ' or ')}?" if close else like
            if any(b"," in key for key in missing):
                hint = f"several keys are several options: --keys a --keys b; {hint}"
            names = listed([to_text(key) for key in missing], " or ")
            noun = "key" if len(missing) == 1 else "keys"
            absences.append(Absence(f"no sample has the {noun} {names} for --keys", hint))
        if globs := [to_text(glob.text) for glob in self.globs if glob.text not in found]:
            absences.append(Absence(f"no sample has a key like {listed(globs, ' or ')} for --keys", like))
        if self.listed is not None and found.isdisjoint(self.listed):
            files = " and ".join(self.sources)
            absences.append(Absence(f"no sample has a key of {files} for --keys-from", like))
        return absences


def read_keys(address: str) -> dict[bytes, None]:
    """The keys of a file: one a line, bytes as they are but for a carriage return at the end; blank lines do
    not count. A dict, because it keeps the order of the lines."""
    lines = read_all(address).split(b"\n")
    return dict.fromkeys(key for key in (line.removesuffix(b"\r") for line in lines) if key.strip())
