"""From what a user writes for an input to the addresses of shards, in order.

What it is: :func:`expand`. How: ``a::b`` is taken apart, ``@list`` read, braces and globs expanded, a folder
listed; a name that is there as it stands is always taken literally. ``braceexpand`` and ``glob`` are imported
when their characters occur. It must not open a shard, nor know manifests: a folder's or a glob's side files
(indexes, manifests, checksums) are left out by their suffix, unless the glob asks for that suffix.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from wdscli.errors import InputError, InputNotFoundError, UsageError
from wdscli.storage.addresses import (
    PIPE,
    STREAM,
    is_local,
    is_stream,
    local_path,
    natural,
    range_hint,
    scheme,
)
from wdscli.storage.trust import check_pipe, listed_address

SIDE_FILES = (".wdx", ".idx", ".index", ".json", ".jsonl", ".yaml", ".md5", ".sha256", ".tmp", ".part")
"""What lies beside shards and is none."""
# Not inside [...]: http://[::1]/ holds an address of the network, not two shards.
_JOIN = re.compile(r"::(?![^\[]*\])")
_GLOB = re.compile(r"[*?\[]")
_SEQUENCE = re.compile(r"\{([0-9]+)\.\.([0-9]+)\}")
_RANGE = re.compile(r"\{(-?[0-9]{1,999})\.\.(-?[0-9]{1,999})(?:\.\.(-?[0-9]{1,999}))?\}")
MAX_NAMES = 10_000_000
"""Names that braces may stand for, and shards that may be asked for."""
BRACES = re.compile(r"\{[^{}]*(?:,|\.\.)[^{}]*\}")
"""Braces that stand for several names; ``{part}`` does not."""


class Words:
    """The folders and globs that addresses were expanded from, and what was listed on the way: whoever knows what else
    should lie there can tell whether it was meant too."""

    def __init__(self) -> None:
        self.names: dict[str, list[str]] = {}
        """All names in the folders that were listed, by the folder's address with its last slash."""
        self._globs: list[list[str]] = []

    def add(self, pattern: str) -> None:
        """A glob that was given, or what a folder stands for: ``folder/*.tar*``."""
        self._globs.append(pattern.split("/"))

    def cover(self, address: str) -> bool:
        """Whether a shard of this address would have been one of those that were named."""
        parts = address.split("/")
        return is_shard_name(address) and any(_is_like(parts, glob) for glob in self._globs)


def _is_like(parts: Sequence[str], glob: Sequence[str]) -> bool:
    from fnmatch import fnmatchcase

    if not glob or not parts:
        return not glob and not parts
    if glob[0] == "**":
        return _is_like(parts, glob[1:]) or _is_like(parts[1:], glob)
    return (parts[0] == glob[0] or fnmatchcase(parts[0], glob[0])) and _is_like(parts[1:], glob[1:])


def expand(
    address: str, words: Words | None = None, *, trust_addresses: bool = False, pipes: bool = True
) -> list[str]:
    """The shard addresses that ``address`` stands for, in order. ``words`` is told which folders and globs were met.

    A path, ``-`` or URL stands for itself. ``a.tar::b.tar`` are two; ``x-{000..041}.tar`` (or ``{a,b}``) are
    what the shell would make of it; a glob (also on an object store) and a folder (on one: with its last
    slash) give what they hold, ``img2`` before ``img10``, hidden files and side files left out; ``@list.txt``
    (``@-``: standard input) has one address a line, blank lines and ``#`` comments left out, relative ones
    meant from the current folder as with ``tar -T``, or in a list that was fetched from its own. In ``pipe:CMD``
    only ``{000..041}`` is expanded, the rest is the shell's. A list that was fetched may name what
    :mod:`~wdscli.storage.trust` says, with ``trust_addresses`` more; without ``pipes`` no command is taken.
    Raises InputError when nothing matches.
    """
    return _expanded(address, words, trust_addresses, pipes)


def _expanded(address: str, words: Words | None, trusted: bool, pipes: bool) -> list[str]:
    if not address:
        raise UsageError("an input needs a name", hint="a path, a folder, a glob, a URL, - or pipe:CMD")
    if address.startswith("@"):
        check_pipe(address[1:], pipes=pipes)
        return [
            shard
            for line in _listed(address, trusted)
            for shard in _checked(address[1:], _expanded(line, words, trusted, pipes), trusted)
        ]
    if address.startswith(PIPE):
        check_pipe(address, pipes=pipes)
        return _sequences(address)
    if address == STREAM or _is_there(address):
        return _folder(address, words) if _is_folder(address) else [address]
    parts = _JOIN.split(address)
    if len(parts) > 1:
        return [shard for part in parts if part for shard in _expanded(part, words, trusted, pipes)]
    if BRACES.search(address):
        return [shard for name in expand_braces(address, InputError) for shard in _pattern(name, words)]
    return _pattern(address, words)


def _pattern(address: str, words: Words | None) -> list[str]:
    """An address without braces: a glob, a remote folder, or one shard."""
    if has_glob(address):
        if words is not None:
            words.add(address)
        return _globbed(address)
    return _folder(address, words) if not is_local(address) and address.endswith("/") else [address]


def has_glob(address: str) -> bool:
    """Whether ``address`` has a wildcard. In a web address ``?`` begins the query, ``[`` may hold the host."""
    kind = scheme(address)
    if kind in ("http", "https"):
        return "*" in address.partition("?")[0]
    return bool(_GLOB.search(address))


def _is_there(address: str) -> bool:
    return is_local(address) and os.path.exists(local_path(address))


def _is_folder(address: str) -> bool:
    return not is_stream(address) and os.path.isdir(local_path(address))


def _checked(name: str, shards: list[str], trusted: bool) -> list[str]:
    """What a line of a list has become, looked at once more: it may have held braces."""
    for shard in shards:
        listed_address(name, shard, trusted=trusted)
    return shards


def _listed(address: str, trusted: bool) -> list[str]:
    """The addresses in the lines of an ``@list`` that say something."""
    from wdscli.storage.opening import read_all

    name = address[1:]
    if not name:
        raise UsageError("@ needs the name of a list", hint="@shards.txt, or @- for standard input")
    lines = [os.fsdecode(line).strip() for line in read_all(name).split(b"\n")]
    lines = [line for line in lines if line and not line.startswith("#")]
    for line in lines:
        if line.startswith("@"):
            raise InputError(f"{name} names another list, {line}", hint="a list holds addresses, not lists")
    if not lines:
        raise InputError(f"no shard matches {address}: the list is empty")
    return [listed_address(name, line, trusted=trusted) for line in lines]


def _sequences(command: str) -> list[str]:
    """``{000..041}`` in a command, which may have braces of its own (``awk '{print $1, $2}'``)."""
    match = _SEQUENCE.search(command)
    if not match:
        return [command]
    low, high = match[1], match[2]
    first, last = int(low), int(high)
    width = max(len(low), len(high)) if low.startswith("0") or high.startswith("0") else 0
    numbers = range(first, last + 1) if first <= last else range(first, last - 1, -1)
    before, after = command[: match.start()], command[match.end() :]
    check_count(command, UsageError)
    return [f"{before}{number:0{width}d}{rest}" for number in numbers for rest in _sequences(after)]


def check_count(text: str, error: type[InputError] | type[UsageError]) -> None:
    """Raise ``error`` for braces that stand for more names than any set has, before any of these is made."""
    total = 1
    for first, last, step in _RANGE.findall(text):
        total *= abs(int(last) - int(first)) // max(1, abs(int(step or 1))) + 1
        if total > MAX_NAMES:
            raise error(f"{text} stands for more than {MAX_NAMES} names", hint="are the numbers right?")


def expand_braces(text: str, error: type[InputError] | type[UsageError]) -> list[str]:
    """What the shell would make of ``text``'s braces. Raises ``error`` when they do not pair."""
    from braceexpand import braceexpand

    check_count(text, error)
    # A backslash is a character of the name here, as it is without braces.
    try:
        return list(braceexpand(text, escape=False))
    except ValueError as unbalanced:
        raise error(f"cannot expand {text}: its braces do not pair", hint=range_hint(text)) from unbalanced


def _globbed(address: str) -> list[str]:
    if is_local(address):
        found = _glob_local(address)
    else:
        from wdscli.storage.remote import glob_remote

        found = glob_remote(address)
    kept = [name for name in found if is_shard_name(name) or address.endswith(_suffix(name))]
    if not kept:
        raise InputNotFoundError(f"no shard matches {address}", hint=_why_none(address))
    return sorted(kept, key=natural)


def _glob_local(address: str) -> list[str]:
    from glob import glob

    path = local_path(address)
    scheme_part = address[: len(address) - len(path)]
    return [scheme_part + name for name in glob(path, recursive=True) if not os.path.isdir(name)]


def _why_none(address: str) -> str | None:
    """A range that was meant, or whether the folder before the first wildcard is the trouble."""
    meant = range_hint(address)
    if meant or not is_local(address):
        return meant
    path = local_path(address)
    match = _GLOB.search(path)
    folder = os.path.dirname(path[: match.start()] if match else path)
    if folder and not os.path.isdir(folder):
        return f"there is no folder {folder}"
    return None


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1] or name


def is_shard_name(name: str) -> bool:
    """Whether a file found in passing may be a shard: neither hidden nor a side file."""
    base = name.rpartition("/")[2]
    return not base.startswith(".") and not base.endswith(SIDE_FILES)


def _folder(address: str, words: Words | None) -> list[str]:
    """The ``*.tar*`` of one folder, not of those below it."""
    from wdscli.storage.opening import list_folder

    prefix = address if address.endswith("/") else address + "/"
    there = list_folder(address)
    if words is not None:
        words.names[prefix] = there
        words.add(f"{prefix}*.tar*")
    names = [name for name in there if ".tar" in name and is_shard_name(name)]
    names = [name for name in names if not _is_folder_in(prefix, name)]
    if not names:
        raise InputNotFoundError(
            f"no shard matches {address}: no *.tar file in this folder", hint=_below(prefix)
        )
    return [prefix + name for name in sorted(names, key=natural)]


def _is_folder_in(prefix: str, name: str) -> bool:
    return is_local(prefix) and os.path.isdir(local_path(prefix + name))


def _below(prefix: str) -> str | None:
    """Where the shards may be instead, when a folder has only folders."""
    if not is_local(prefix):
        return None
    path = local_path(prefix)
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir() and any(".tar" in name for name in os.listdir(entry.path)):
                return f"try '{prefix}*/*.tar'"
    return None
