"""The rules of ``--keys``, ``--keys-from`` and ``--not-keys-from``: which keys, and with ``--on`` which values, are
selected.

:class:`KeySelection` is the rule for keys, and :class:`ListedValues` the rule for the values of an expression. A file
lists keys or values (:mod:`wdscli.selection.keyfiles`), or is a set, whose samples have them (:func:`listed_values`).
This module does not know how a set is read: the caller passes :data:`ReadSet`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from wdscli.errors import UsageError
from wdscli.samples.grouping import SampleAt
from wdscli.selection.named import MissingName, SeenNames, listed
from wdscli.selection.near import NearHashes, checked_bits, hash_of
from wdscli.storage import addresses_of, base_name, is_local, is_stream, local_path
from wdscli.text import to_bytes, to_text

if TYPE_CHECKING:
    from wdscli.selection.where import Value

ReadSet: TypeAlias = "Callable[[str, Value | None], Iterator[bytes]]"
"""Yields the values of the samples of a set, or with None their keys. Samples without a value are left out."""
_MAGIC = frozenset("*?[")
_SHOWN = 3
_COLUMN = re.compile(r"\s*([\w.-]+)\s*=(?!=)(.*)", re.DOTALL)
_SET = re.compile(r"\.tar(\.(gz|bz2|xz|zst|lz4))?$|manifest\.json$|[*{]|::")


def column_and_value(text: str, option: str = "--on") -> tuple[str, Value]:
    """Parse ``EXPR`` or ``COLUMN=EXPR``. Raises UsageError.

    >>> column, value = column_and_value("url = json.src")
    >>> column, value.text, column_and_value("json.a == 1")[0]
    ('url', 'json.src', 'key')
    """
    from wdscli.selection.where import Value

    match = _COLUMN.fullmatch(text)
    column, text = (match[1], match[2]) if match else ("key", text)
    is_key = text.strip() == "key"
    return column, Value("key", option) if is_key else Value.of_payloads(text.strip(), option)


def is_set(address: str) -> bool:
    """Return whether an address names shards, and not a list of keys."""
    if is_stream(address):
        return False
    is_folder = address.endswith("/") or (is_local(address) and os.path.isdir(local_path(address)))
    return is_folder or _SET.search(base_name(address)) is not None


def _value_list(values: Iterable[bytes], near: int | None) -> Container[bytes]:
    """Return the values of some files: hashes with ``--near``."""
    if near is None:
        return frozenset(values)
    hashes = NearHashes(near)
    for value in values:
        hashes.add(hash_of(value, "--on"))
    return hashes


class KeySelection(NamedTuple):
    """The rule for keys. If ``exact`` or ``globs`` are given, a selected key is in ``exact`` or matches one of
    ``globs``. If files are given, it is in ``listed``. It must not be in ``left_out``. ``sources`` and
    ``sources_left_out`` are the files' addresses. ``any_glob`` matches all globs together."""

    exact: frozenset[bytes] = frozenset()
    globs: tuple[tuple[bytes, re.Pattern[str]], ...] = ()
    any_glob: re.Pattern[str] | None = None
    listed: dict[bytes, None] | None = None
    sources: tuple[str, ...] = ()
    left_out: dict[bytes, None] | None = None
    sources_left_out: tuple[str, ...] = ()

    @classmethod
    def parse(
        cls,
        keys: Sequence[str],
        keys_from: str | Sequence[str] | None,
        not_keys_from: str | Sequence[str] | None = None,
        read_set: ReadSet | None = None,
    ) -> KeySelection:
        """Parse the options. ``read_set`` reads the keys of sets. Raises UsageError, InputError, DataError."""
        from fnmatch import translate

        if any(not key for key in keys):
            raise UsageError("--keys is empty", hint="--keys 'n01/*'")
        sources, left_out = sources_of(keys_from, not_keys_from)
        globs = [key for key in dict.fromkeys(keys) if not _MAGIC.isdisjoint(key)]
        return cls(
            exact=frozenset(to_bytes(key) for key in keys if _MAGIC.isdisjoint(key)),
            globs=tuple((to_bytes(key), re.compile(translate(key))) for key in globs),
            any_glob=re.compile("|".join(map(translate, globs))) if globs else None,
            listed=None if keys_from is None else dict.fromkeys(listed_values(sources, None, read_set)),
            sources=sources,
            left_out=dict.fromkeys(listed_values(left_out, None, read_set)) if left_out else None,
            sources_left_out=left_out,
        )

    @property
    def files(self) -> tuple[str, ...]:
        """The addresses of all files of keys."""
        return *self.sources, *self.sources_left_out

    @property
    def is_narrow(self) -> bool:
        """Whether the rule has keys to select, not only keys to leave out."""
        return bool(self.exact or self.globs or self.listed is not None)

    def selects(self, key: bytes) -> bool:
        """Return whether the rule selects a key."""
        return self.matches(key, set()) and not self.leaves_out(key, set())

    def matches(self, key: bytes, matched: set[bytes]) -> bool:
        """Return whether ``--keys`` and ``--keys-from`` select ``key``. The keys and globs that match are added to
        ``matched``."""
        is_listed = self.listed is None or key in self.listed
        if self.listed is not None and is_listed:
            matched.add(key)
        if not self.exact and self.any_glob is None:
            return is_listed
        is_exact = key in self.exact
        if is_exact:
            matched.add(key)
        text = to_text(key) if self.any_glob is not None else ""
        if self.any_glob is None or self.any_glob.match(text) is None:
            return is_exact and is_listed
        for glob, pattern in self.globs:
            if glob not in matched and pattern.match(text):
                matched.add(glob)
        return is_listed

    def leaves_out(self, key: bytes, matched: set[bytes]) -> bool:
        """Return whether ``key`` must be left out. If so, it is added to ``matched``."""
        if self.left_out is None or key not in self.left_out:
            return False
        matched.add(key)
        return True

    def missing_names(self, matched: set[bytes], seen_names: SeenNames) -> list[MissingName]:
        """Return the keys and globs that match no sample, and the key files that contain no key of a sample."""
        missing_names = []
        like = f"keys are {listed([to_text(key) for key in seen_names.keys], ', ')}"
        if missing := sorted(self.exact - matched):
            close = dict.fromkeys(
                similar_key for key in missing[:_SHOWN] for similar_key in seen_names.similar_keys(key)
            )
            hint = f"did you mean {listed(list(close), ' or ')}?" if close else like
            if any(b"," in key for key in missing):
                hint = f"repeat the option for several keys: --keys a --keys b; {hint}"
            names = listed([to_text(key) for key in missing], " or ")
            noun = "key" if len(missing) == 1 else "keys"
            missing_names.append(MissingName(f"no sample has the {noun} {names} for --keys", hint))
        if globs := [to_text(glob) for glob, _ in self.globs if glob not in matched]:
            missing_names.append(
                MissingName(f"no sample has a key like {listed(globs, ' or ')} for --keys", like)
            )
        if self.listed is not None and matched.isdisjoint(self.listed):
            files = " and ".join(self.sources)
            missing_names.append(MissingName(f"no sample has a key of {files} for --keys-from", like))
        return missing_names


class ListedValues(NamedTuple):
    """The rule: a selected sample has a value in ``keep``, if this is not None, and none in ``leave_out``. ``files``
    are the addresses of the lists."""

    value: Value
    keep: Container[bytes] | None
    leave_out: Container[bytes] | None
    files: tuple[str, ...] = ()

    @classmethod
    def parse(
        cls,
        on: str,
        near: int | None,
        lists: tuple[str | Sequence[str] | None, str | Sequence[str] | None],
        read_set: ReadSet | None,
    ) -> ListedValues:
        """Parse ``--on`` and the values of ``--keys-from`` and ``--not-keys-from``. Raises UsageError, InputError,
        DataError."""
        if not any(lists):
            raise UsageError(
                "--on needs a list of values",
                hint="--keys-from FILE --on json.url, or --not-keys-from SET --on jpg",
            )
        (column, value), both = column_and_value(on), sources_of(*lists)
        if near is not None:
            checked_bits(near)
        keep, leave_out = [
            _value_list(listed_values(sources, value, read_set, column), near) if sources else None
            for sources in both
        ]
        return cls(value, keep, leave_out, both[0] + both[1])

    def reason_against(self, sample: SampleAt) -> str | None:
        """Return the reason to drop a sample, or None. A sample without a value is in no list. Raises DataError
        ``undecodable``."""
        value = self.value.of(sample)
        if value is None:
            return None if self.keep is None else "keys"
        if self.keep is not None and value not in self.keep:
            return "keys"
        return "not-keys" if self.leave_out is not None and value in self.leave_out else None


def sources_of(
    keys_from: str | Sequence[str] | None, not_keys_from: str | Sequence[str] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the addresses of both options. Raises UsageError if both read standard input."""
    sources = addresses_of(keys_from, "--keys-from")
    left_out = addresses_of(not_keys_from, "--not-keys-from")
    if "-" in sources and "-" in left_out:
        raise UsageError("standard input can hold only one list of keys", hint="--not-keys-from FILE")
    return sources, left_out


def listed_values(
    addresses: Sequence[str], value: Value | None, read_set: ReadSet | None, column: str = "key"
) -> Iterator[bytes]:
    """Yield the values of files and sets, or without ``value`` the keys. Raises InputError, DataError, UsageError."""
    from wdscli.selection.keyfiles import key_lines

    for address in addresses:
        if read_set is not None and is_set(address):
            yield from read_set(address, value)
        else:
            yield from key_lines(address, column)
