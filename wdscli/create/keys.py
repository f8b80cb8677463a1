"""The rules that make a key and a field of a file's path.

What it is: ``first-dot`` (webdataset's own rule), ``last-dot``, and a regular expression. How: a rule returns key and
field of a path, or the reason why it has none. With the last two a key may have dots in its last part. Readers would
split it at the first dot, so dots are written as ``_``. The rule remembers renamed keys, to report them and to refuse
two keys that become one: the first ten thousand as text, the others as hashes. It must not open files.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable

from wdscli.errors import DataError, UsageError
from wdscli.model import to_bytes, to_text
from wdscli.samples import check_name, is_dunder
from wdscli.selection.expressions import Expression

FIRST_DOT = "first-dot"
LAST_DOT = "last-dot"
REMEMBERED_KEYS = 10_000
"""Keys that are remembered as text."""


class KeyRule:
    """``first-dot``, ``last-dot`` or a regular expression that matches the whole path and has the groups
    ``key`` and ``field``, or just two groups.

    >>> KeyRule("last-dot").split(b"n01/img.v2.jpg")
    (b'n01/img_v2', b'jpg')
    >>> KeyRule("first-dot").split(b"n01/README")
    'no-field'
    """

    def __init__(self, text: str = FIRST_DOT) -> None:
        self.text = text
        self.is_first_dot = text == FIRST_DOT
        self._found: dict[bytes, bytes] = {}
        self._seed = int.from_bytes(os.urandom(8), "little")
        """A secret, so that names with equal hashes cannot be constructed."""
        self._hashed = array("Q")
        """For each further key, the hashes of the written and of the found key."""
        self._pattern = None if text in (FIRST_DOT, LAST_DOT) else _compile(text)

    def split(self, path: bytes) -> tuple[bytes, bytes] | str:
        """Key and field of a relative path, or the reason why it is part of no sample: ``hidden``,
        ``appledouble``, ``dunder``, ``no-field``, ``no-match``. Raises DataError when two keys become one."""
        base = path.rfind(b"/") + 1
        if path.startswith(b".", base):
            return "appledouble" if path.startswith(b"._", base) else "hidden"
        if path.startswith(b"__") and is_dunder(path):
            return "dunder"
        found = self._match(path, base)
        if isinstance(found, str) or self.is_first_dot:
            return found
        key, field = found
        return self.written(key), field

    def _match(self, path: bytes, base: int) -> tuple[bytes, bytes] | str:
        if self._pattern is not None:
            match = self._pattern.fullmatch(to_text(path))
            named = {"key", "field"} <= set(self._pattern.groupindex)
            key, field = (
                ("", "") if match is None else match.group("key", "field") if named else match.groups()
            )
            return (to_bytes(key), to_bytes(field)) if key and field else "no-match"
        dot = path.find(b".", base) if self.is_first_dot else path.rfind(b".", base)
        if dot <= base or dot + 1 == len(path):
            return "no-field"
        return path[:dot], path[dot + 1 :]

    def written(self, key: bytes) -> bytes:
        """``key`` without dots in its last part, so that every reader parses it back. Raises DataError if another key
        becomes the same."""
        base = key.rfind(b"/") + 1
        new = key[:base] + key[base:].replace(b".", b"_")
        old = self._found.get(new)
        if old is not None and old != key:
            raise _one_key(f'the keys "{to_text(old)}" and "{to_text(key)}"', new)
        if len(self._found) < REMEMBERED_KEYS:
            self._found[new] = key
        elif old is None:
            self._hashed.extend((self._hash(new), self._hash(key)))
        return new

    def _hash(self, key: bytes) -> int:
        from xxhash import xxh3_64_intdigest

        return xxh3_64_intdigest(key, self._seed)

    @property
    def renamed(self) -> dict[bytes, bytes]:
        """Written keys that differ from the found ones, with the latter; only remembered ones."""
        return {new: old for new, old in self._found.items() if new != old}

    def count_renamed(self, keys: Callable[[], Iterable[bytes]]) -> int:
        """The number of renamed keys; call it once, at the end. ``keys`` returns the written ones, for the message of
        the DataError that is raised if two keys became one."""
        known, hashed = len(self.renamed), self._hashed
        self._hashed = array("Q")
        if not hashed:
            return known
        import numpy

        pairs = numpy.unique(numpy.frombuffer(hashed, numpy.uint64).reshape(-1, 2), axis=0)
        written, counts = numpy.unique(pairs[:, 0], return_counts=True)
        # A written key with two different found keys is an error.
        twice = dict(zip(written[counts > 1].tolist(), counts[counts > 1].tolist()))
        new = b""
        for new in {key for key in keys() if self._hash(key) in twice} if twice else ():
            twice[self._hash(new)] -= 1
        if any(missing > 0 for missing in twice.values()):
            raise _one_key("two keys", new)
        return known + int((pairs[:, 0] != pairs[:, 1]).sum())


def _one_key(which: str, new: bytes) -> DataError:
    return DataError(
        f'{which} would both be written as "{to_text(new)}"',
        code="duplicate-key",
        hint="rename one of them, or choose another --key-rule",
    )


def _compile(text: str) -> Expression[str]:
    try:
        pattern = Expression(text, "--key-rule")
    except UsageError as error:
        error.hint = "use first-dot, last-dot or a regular expression with groups for key and field"
        raise
    if not {"key", "field"} <= set(pattern.groupindex) and pattern.groups != 2:
        raise UsageError(
            f'--key-rule "{text}" has no groups for key and field',
            hint=r"for example '(?P<key>.*)-(?P<field>[^-]*\.png)', or just two groups",
        )
    return pattern


def check_written(key: bytes, field: bytes, path: str = "") -> None:
    """Raise DataError, which names the path, unless ``key.field`` is safe and reads back as this key and field."""
    try:
        check_name(key, field)
    except UsageError as error:
        where = f"{path}: " if path else ""
        raise DataError(where + error.message, code="unsafe-name", hint=error.hint) from None
