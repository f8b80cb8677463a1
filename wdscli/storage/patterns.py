"""This module expands patterns. A pattern is one text for the shards of an input, or for the numbered shards of an
output.

:func:`expand` returns the addresses of an input. It splits ``a::b``, reads ``@list``, expands braces and globs, and
lists a folder. The name of an existing file is always taken literally. In a folder or a glob, side files (indexes,
manifests, checksums) are excluded by their suffix, unless the glob contains that suffix.

:class:`OutputPattern` makes the names of an output. A printf field (``out-%06d.tar``) gives as many names as needed.
Braces (``out-{0000..0127}.tar``) give exactly their names. Any other text is one name. The caller replaces a
placeholder in braces (``{part}``).

``braceexpand`` and ``glob`` are imported only if their characters occur. This module opens no shard, and does not know
manifests.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from wdscli.errors import InputError, InputNotFoundError, UsageError
from wdscli.storage.addresses import (
    PIPE,
    STREAM,
    check_pipe,
    is_local,
    is_stream,
    is_web,
    listed_address,
    local_path,
    natural,
    range_hint,
    split_folder,
)
from wdscli.storage.kinds import meant_address
from wdscli.units import whole_number

SIDE_FILES = (
    ".wdx", ".idx", ".index", ".json", ".jsonl", ".yaml", ".md5", ".sha256", ".tmp", ".part", ".parquet", ".csv",
)  # fmt: skip
"""The suffixes of side files, which are not shards."""
# ``::`` inside [...] does not separate: http://[::1]/ contains a network address, not two shards.
_JOIN = r"::(?![^\[]*\])"
_GLOB = r"[*?\[]"
_INNER_STARS = r"(?<![^/])\*\*(?=[^/*])|(?<=[^/*])\*\*+"
_SEQUENCE = r"\{([0-9]+)\.\.([0-9]+)\}"
_RANGE = r"\{(-?[0-9]+)\.\.(-?[0-9]+)(?:\.\.(-?[0-9]+))?\}"
MAX_NAMES = 10_000_000
"""The largest number of names from braces, and of numbered shards."""
NAME = "{name}"
"""The placeholder in an output for the name of the input shard without its suffix."""
_BRACES = r"\{[^{}]*(?:,|\.\.)[^{}]*\}"
"""Matches braces that expand to several names, unlike ``{part}``."""


class Words:
    """The folders and globs in the inputs, with their listings. They show whether a missing or new shard also belongs
    to an input."""

    def __init__(self) -> None:
        self.names: dict[str, list[str]] = {}
        """All names in the listed folders, by the folder's address with its last slash."""
        self._globs: dict[str, list[str]] = {}

    def add(self, pattern: str) -> None:
        """Add a glob, or the glob of a folder: ``folder/*.tar*``."""
        self._globs[pattern] = _parts_of(pattern)

    def cover(self, address: str) -> str:
        """Return the first glob that matches a shard's address, so that the shard would be one of the inputs. Return an
        empty text if there is no such glob."""
        if not is_shard_name(address):
            return ""
        parts = _parts_of(address)
        return next((pattern for pattern, glob in self._globs.items() if _is_like(parts, glob)), "")


def _parts_of(address: str) -> list[str]:
    """Return the parts of an address or a glob. A local path is made absolute, so that all names of a folder match."""
    return (os.path.abspath(local_path(address)) if is_local(address) else address).split("/")


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
    """Return the shard addresses of ``address``, in order. The folders and globs in it are added to ``words``.

    A path, ``-`` or URL is one address. ``a.tar::b.tar`` are two addresses. ``x-{000..041}.tar`` or ``{a,b}`` are
    expanded like in a shell. A glob gives its shards, and so does a folder; on an object store, a folder needs its last
    slash. They are in natural order (``img2`` before ``img10``), without hidden files and side files. ``@list.txt``
    (``@-``: standard input) has one address per line; blank lines and ``#`` comments are skipped. ``@list.json`` has a
    list in JSON. Relative addresses in a list begin at the current folder, or at the folder of a downloaded list. In
    ``pipe:CMD``, only ``{000..041}`` is expanded, because the shell expands the rest.

    :mod:`~wdscli.storage.addresses` defines which addresses a downloaded list may name; ``trust_addresses`` allows
    more. Without ``pipes``, commands are refused. Raises InputError if nothing matches.
    """
    further = partial(expand, words=words, trust_addresses=trust_addresses, pipes=pipes)
    if not address:
        raise UsageError("an input needs a name", hint="a path, a folder, a glob, a URL, - or pipe:CMD")
    if address.startswith("@"):
        check_pipe(address[1:], pipes=pipes)
        lines = _listed(address, trust_addresses)
        shards = [shard for line in lines for shard in further(line)]
        for shard in shards:
            # Check again, because the line may have contained braces.
            listed_address(address[1:], shard, trusted=trust_addresses)
        return shards
    if address.startswith(PIPE):
        check_pipe(address, pipes=pipes)
        return _sequences(address)
    if address == STREAM or (is_local(address) and os.path.exists(local_path(address))):
        is_folder = address != STREAM and os.path.isdir(local_path(address))
        return _folder(address, words) if is_folder else [address]
    parts = re.split(_JOIN, address)
    if len(parts) > 1:
        return [shard for part in parts if part for shard in further(part)]
    if has_braces(address):
        return [shard for name in expand_braces(address, InputError) for shard in _pattern(name, words)]
    return _pattern(address, words)


def _pattern(address: str, words: Words | None) -> list[str]:
    """Expand an address without braces: a glob, a folder, or one shard."""
    if has_glob(address):
        if words is not None:
            for glob in whole_stars(address):
                words.add(glob)
        return _globbed(address)
    return _folder(address, words) if _is_folder(address) else [address]


def _is_folder(address: str) -> bool:
    """Return whether an address is a folder. A store needs a request for this, unless the name looks like a shard or a
    manifest."""
    if is_local(address):
        return os.path.isdir(local_path(address))
    name = split_folder(address)[1]
    if not name or is_web(address) or ".tar" in name or name.endswith(".json"):
        return address.endswith("/")
    from wdscli.storage.remote import is_remote_folder

    return is_remote_folder(address)


def has_braces(text: str) -> bool:
    """Return whether a text has braces with alternatives or a range."""
    return bool(re.search(_BRACES, text))


def has_glob(address: str) -> bool:
    """Return whether ``address`` has a wildcard. In a web address, ``?`` begins the query, and ``[`` may be part of the
    host."""
    if is_web(address):
        return "*" in address.partition("?")[0]
    return bool(re.search(_GLOB, address))


def _listed(address: str, trusted: bool) -> list[str]:
    """Yield the addresses in an ``@list``, without blank lines and comments."""
    from wdscli.storage.opening import read_all

    name = address[1:]
    if not name:
        raise UsageError("@ needs the name of a list", hint="@shards.txt, or @- for standard input")
    if is_local(name) and os.path.lexists(address) and not os.path.lexists(local_path(name)):
        hint = f"@ begins the name of a list; the file of this name is ./{address}"
        raise InputError(f"cannot read {name}: no such file", hint=hint)
    text = read_all(name).removeprefix(b"\xef\xbb\xbf")  # some Windows text files begin with it
    lines = _json_list(name, text)
    if lines is None:
        lines = [os.fsdecode(line).strip() for line in text.split(b"\n")]
        lines = [line for line in lines if line and not line.startswith("#")]
    for line in lines:
        if line.startswith("@"):
            raise InputError(f"{name} names another list, {line}", hint="a list holds addresses, not lists")
    if not lines:
        raise InputError(
            f"no shard matches {address}: the list is empty", hint="write one address on each line"
        )
    return [listed_address(name, line, trusted=trusted) for line in lines]


def _json_list(name: str, text: bytes) -> list[str] | None:
    """Return the addresses in a list in JSON, or None if the text is no JSON. Raises InputError for other JSON in a
    file with the suffix ``.json``."""
    import json

    lines: Any = None
    with suppress(ValueError, RecursionError):
        lines = json.loads(text) if text.lstrip()[:1] == b"[" or name.endswith(".json") else None
    if isinstance(lines, list) and all(isinstance(line, str) and line for line in lines):
        return lines
    if name.endswith(".json"):
        raise InputError(
            f"{name} is no JSON list of addresses", hint='["train-000000.tar", "train-000001.tar"]'
        )
    return None


def _sequences(command: str) -> list[str]:
    """Expand ``{000..041}`` in a command, which may have other braces (``awk '{print $1, $2}'``)."""
    match = re.search(_SEQUENCE, command)
    if not match:
        return [command]
    low, high = match[1], match[2]
    first, last = whole_number(low), whole_number(high)
    width = max(len(low), len(high)) if low.startswith("0") or high.startswith("0") else 0
    numbers = range(first, last + 1) if first <= last else range(first, last - 1, -1)
    before, after = command[: match.start()], command[match.end() :]
    check_count(command, UsageError)
    return [f"{before}{number:0{width}d}{ending}" for number in numbers for ending in _sequences(after)]


def check_count(text: str, error: type[InputError] | type[UsageError]) -> None:
    """Before braces are expanded, raise ``error`` if they have more names than any set."""
    total = 1
    for first, last, step in re.findall(_RANGE, text):
        total *= abs(whole_number(last) - whole_number(first)) // max(1, abs(whole_number(step or "1"))) + 1
        if total > MAX_NAMES:
            raise error(
                f"{text} expands to more than {MAX_NAMES} names", hint="check the numbers in the braces"
            )


def expand_braces(text: str, error: type[InputError] | type[UsageError]) -> list[str]:
    """Expand the braces of ``text`` like a shell. Raises ``error`` if a brace has no partner."""
    from braceexpand import braceexpand

    check_count(text, error)
    # A backslash is a normal character, like in a name without braces.
    try:
        return list(braceexpand(text, escape=False))
    except ValueError as unbalanced:
        raise error(f"cannot expand {text}: its braces do not pair", hint=range_hint(text)) from unbalanced


def matching(address: str) -> list[str]:
    """Return the addresses that match a glob, in any order, without local folders."""
    if not is_local(address):
        from wdscli.storage.remote import glob_remote

        return list({name for pattern in whole_stars(address) for name in glob_remote(pattern)})
    from glob import glob

    path = local_path(address)
    prefix = address[: len(address) - len(path)]
    names = {name for path in whole_stars(path) for name in glob(path, recursive=True)}
    return [prefix + name for name in names if not _is_other_folder(name)]


def whole_stars(pattern: str) -> list[str]:
    """Return globs that together match what one glob matches, in which every ``**`` is a whole name. ``**`` inside a
    name also matches slashes, as in git.

    >>> whole_stars("a/**.tar"), whole_stars("a/**/b"), whole_stars("x**y.tar")
    (['a/**/*.tar'], ['a/**/b'], ['x*y.tar', 'x*/**/*y.tar'])
    """
    match = re.search(_INNER_STARS, pattern)
    if match is None:
        return [pattern]
    before, after = pattern[: match.start()], pattern[match.end() :]
    if not before or before.endswith("/"):
        return [before + "**/" + glob for glob in whole_stars("*" + after)]
    return [before + joint + glob for glob in whole_stars("*" + after) for joint in ("", "*/**/")]


def _globbed(address: str) -> list[str]:
    names = matching(address)
    kept = [
        name for name in names if is_shard_name(name) or address.endswith(os.path.splitext(name)[1] or name)
    ]
    if not kept:
        raise InputNotFoundError(f"no shard matches {address}", hint=_why_none(address))
    return sorted(kept, key=natural)


def _why_none(address: str) -> str | None:
    """Return a hint for a glob without matches: a missing folder, the shards in the folder, or a mistyped range."""
    if not is_local(address):
        return range_hint(address)
    path = local_path(address)
    match = re.search(_GLOB, path)
    folder = os.path.dirname(path[: match.start()] if match else path)
    if folder and not os.path.isdir(folder):
        return f"there is no folder {folder}"
    names = sorted((name for name in os.listdir(folder or ".") if _is_tar(name)), key=natural)
    if names and "{" not in path and ".." not in path:
        # A range in brackets is one character: [0-2] matches 0, 1 or 2.
        return f"the folder has {names[0]}" + (f" to {names[-1]}" if len(names) > 1 else "")
    return range_hint(address)


def is_shard_name(name: str) -> bool:
    """Return whether a listed file may be a shard. Hidden files and side files are not shards."""
    base = name.rpartition("/")[2]
    return not base.startswith(".") and not base.endswith(SIDE_FILES)


def _folder(address: str, words: Words | None) -> list[str]:
    """Return the files ``*.tar*`` of one folder. If it has none, return the files of all folders below it, which are
    the parts of a set."""
    from wdscli.storage.opening import list_folder

    prefix = address if address.endswith("/") else address + "/"
    listed = list_folder(address)
    if words is not None:
        words.names[prefix] = listed
        words.add(f"{prefix}*.tar*")
    shards = [prefix + name for name in sorted(filter(_is_tar, listed), key=natural)]
    shards = [shard for shard in shards if not _is_other_folder(shard)]
    if shards:
        return shards
    parts = _folders_below(prefix)
    if not parts:
        raise InputNotFoundError(
            f"no shard matches {address}: no *.tar file in this folder, or in a folder below it",
            hint=_view_in(prefix) or ("make shards of its files with `wds create`" if listed else None),
        )
    return [shard for part in parts for shard in _folder(part, words)]


def _is_other_folder(address: str) -> bool:
    """Return whether an address is a local folder. A folder with the name of a shard is kept, because a shard may have
    been replaced by it: to open it is an error."""
    return (
        is_local(address) and re.search(_WHOLE_SUFFIX, address) is None and os.path.isdir(local_path(address))
    )


def _folders_below(prefix: str) -> list[str]:
    """Return the folders with shards below a folder, in natural order, without hidden folders. Raises InputError."""
    if is_local(prefix):
        path = local_path(prefix)
        scheme = prefix[: len(prefix) - len(path)]
        folders = []
        for folder, names_below, names in os.walk(path):
            names_below[:] = [name for name in names_below if not name.startswith(".")]
            if folder != path and any(map(_is_tar, names)):
                folders.append(scheme + folder)
        return sorted(folders, key=natural)
    from wdscli.storage.remote import glob_remote

    shards = [address for address in glob_remote(f"{prefix}**/*.tar*") if _is_tar(address)]
    is_hidden = re.compile(r"/\.[^/]*/").search
    return sorted(
        {shard.rpartition("/")[0] for shard in shards if not is_hidden(shard[len(prefix) - 1 :])}, key=natural
    )


def _is_tar(name: str) -> bool:
    return ".tar" in name.rpartition("/")[2] and is_shard_name(name)


def _view_in(prefix: str) -> str | None:
    """Return a hint for a folder without shards that has a file that may be a view."""
    if not is_local(prefix):
        return None
    views = sorted(name for name in os.listdir(local_path(prefix)) if name.endswith(".json"))
    return f"to read a view or manifest, name its file: {prefix}{views[0]}" if views else None


_ODD = r"%(?!0?[0-9]*d)"
_FIELD = r"%0?[0-9]*d"
_TAR_SUFFIX = r"\.tar(\.[A-Za-z0-9]+)?$|\.t[a-z0-9]z2?$|\.tzst$"
_WHOLE_SUFFIX = r"\.(tar(\.(gz|bz2|xz|zst|lz4))?|tgz)$"
_JOINTS = "-_."
MAX_DIGITS = 200
"""The most digits of a shard's number. No file system has longer names."""


def plain_name(name: str) -> str:
    """Return a shard's file name without its suffixes.

    >>> plain_name("train-000000.v1.tar.zst"), plain_name("a.tgz"), plain_name("b")
    ('train-000000.v1', 'a', 'b')
    """
    return re.sub(_TAR_SUFFIX, "", name) or name


def _check_suffix(text: str) -> None:
    """Raise UsageError if a file name does not have the suffix of a shard."""
    if text.endswith(".Z"):
        raise UsageError(
            f"cannot write {text}: few programs read files of compress(1)", hint="name it .tar.gz or .tar.zst"
        )
    if text.endswith((".zip", ".7z", ".rar")):
        hint = "name it .tar or .tar.zst"
    elif text.endswith((".parquet", ".csv", ".tsv", ".jsonl")):
        hint = f"wds cat SHARDS --to {text} writes a table"
    elif text.endswith((".jpg", ".jpeg", ".png", ".webp", ".txt", ".npy", ".wav", ".mp3", ".mp4")):
        hint = f"wds cat SHARDS --to raw --keys KEY --fields {text.rpartition('.')[2]} -o {text}"
    else:
        return
    raise UsageError(f"cannot write {text}: shards are tar archives", hint=hint)


class OutputPattern:
    """The names of the shards that a command writes.

    ``text`` is the given text. ``count`` is the exact number of shards if the text has braces; otherwise it is None.
    ``single`` says that all bytes go to one address: a file, ``-``, or ``pipe:`` without a field. ``is_stream`` says
    that they go to ``-``, a command or a device, which has no folder, no manifest and no final name.

    >>> pattern = OutputPattern.parse("out-%06d.tar")
    >>> pattern.address(7), pattern.count, pattern.prefix_address("manifest.json")
    ('out-000007.tar', None, 'out-manifest.json')
    """

    def __init__(self, text: str, parts: _Parts, names: list[str] | None, is_stream: bool) -> None:
        self.text = text
        self._parts = parts
        self._names = names
        self._known = dict.fromkeys(parts[:1] if names is None else names)
        self.count = None if names is None else len(names)
        self.single = parts.field is None and names is None
        self.is_stream = is_stream

    @classmethod
    def parse(cls, text: str) -> OutputPattern:
        """Parse a text. Raises UsageError for a text that cannot name shards."""
        if not text:
            raise UsageError("an output needs a name", hint="out-%06d.tar, out.tar, - or pipe:CMD")
        if is_stream(text):
            check_pipe(text)
            # In a command, only %d fields are replaced, because others belong to the command: date +%s.
            return cls(text, _parts(text, "%% is a percent sign"), None, is_stream=True)
        from wdscli.storage.opening import is_device

        _check_suffix(text)
        if is_local(text) and (meant := meant_address(text)):
            raise UsageError(f"{text} is a local path", hint=f"{meant} To write a local file, use ./{text}")
        if odd := re.search(_ODD, text.replace("%%", "\0\0")):
            raise UsageError(
                f"cannot read the % at character {odd.start() + 1} of {text} as a shard's number",
                hint="%06d is the shard's number, %% a percent sign",
            )
        parts, names = _parts(text, "use only one %06d"), None
        if has_braces(text):
            if parts.field is not None:
                hint = "use braces for an exact number of shards, or %06d for any number"
                raise UsageError(f"{text} has braces and a %d field", hint=hint)
            names = expand_braces(parts.before, UsageError)
            if len(set(names)) < len(names):
                raise UsageError(
                    f"{text} contains the same shard twice", hint="out-{0000..0127}.tar, or out-%06d.tar"
                )
        elif parts.field is None and text.endswith("/"):
            hint = f"name the shards in it: {text}%06d.tar, or to keep the shards' names {text}{NAME}.tar"
            raise UsageError(f"{text} is a folder's name", hint=hint)
        device = parts.field is None and names is None and is_device(parts.before)
        return cls(text, parts, names, device)

    @classmethod
    def of_names(cls, text: str, names: Sequence[str]) -> OutputPattern:
        """Return a pattern with one shard for each name. The name replaces :data:`NAME` in ``text``. Raises UsageError
        if ``text`` does not contain :data:`NAME` exactly once, has a field or braces, or is a command.

        >>> pattern = OutputPattern.of_names("out/{name}.tar.zst", ["train-0", "train-1"])
        >>> pattern.address(1), pattern.prefix_address("manifest.json")
        ('out/train-1.tar.zst', 'out/manifest.json')
        """
        if is_stream(text):
            raise UsageError(
                f"{NAME} cannot name shards that a command receives", hint=f"-o 'out/{NAME}.tar.zst'"
            )
        if text.endswith(NAME):
            raise UsageError(f"{text} has no suffix", hint=f"-o '{text}.tar'")
        pattern = cls.parse(text.replace(NAME, ""))
        if text.count(NAME) != 1 or not pattern.single or pattern.is_stream:
            raise UsageError(
                f"{text} needs {NAME} exactly once, and no other field or braces",
                hint=f"-o 'out/{NAME}.tar.zst'",
            )
        before, _, after = text.replace("%%", "%").partition(NAME)
        return cls(text, _Parts(before), [before + name + after for name in names], is_stream=False)

    def check_name(self) -> None:
        """Raise UsageError for a name without number and suffix, because the user probably meant a folder."""
        if self.single and not self.is_stream and "." not in split_folder(self.text)[1]:
            raise UsageError(
                f"{self.text} has neither a number nor a suffix, so it cannot name shards",
                hint=f"use -o {self.text}/%06d.tar for shards in a folder, or -o {self.text}.tar for one shard",
            )

    def address(self, index: int) -> str:
        """Return the address of shard ``index``, from 0. A single output has only shard 0."""
        if self._names is not None:
            if index >= len(self._names):
                raise UsageError(
                    f"{self.text} is for {len(self._names)} shards, but more are needed",
                    hint="use out-%06d.tar for any number of shards",
                )
            return self._names[index]
        before, field, after = self._parts
        if field is None:
            if index:
                raise UsageError(
                    f"{self.text} is for one shard, but more shards are needed",
                    hint="use out-%06d.tar for any number of shards",
                )
            return before
        return before + field % index + after

    def prefix_address(self, suffix: str) -> str:
        """Return the address of a file for the whole set, next to the shards: ``out-manifest.json`` for the suffix
        ``manifest.json``.

        The prefix is the file name before the shard's number, or without ``.tar``, and without trailing ``-_.``.
        """
        if self.is_stream:
            raise UsageError(f"{self.text} has no folder for {suffix}")
        before, field, _ = self._parts
        if self._names is not None:
            before = re.split(_BRACES, before, maxsplit=1)[
                0
            ]  # the braces were replaced by the names of inputs
        elif field is None:
            before = re.sub(_TAR_SUFFIX, "", before)
        folder, name = split_folder(before)
        name = name.rstrip(_JOINTS)
        return f"{folder}{name}-{suffix}" if name else folder + suffix

    def could_name(self, address: str) -> bool:
        """Return whether an address can be the address of a shard of this pattern. Addresses are compared as text.

        >>> pattern = OutputPattern.parse("out-%06d.tar")
        >>> pattern.could_name("out-000007.tar"), pattern.could_name("out-7.tar"), pattern.could_name("x.tar")
        (True, False, False)
        """
        before, field, after = self._parts
        if field is None:
            return address in self._known
        digits = address[len(before) : len(address) - len(after)]
        is_number = digits.isascii() and digits.isdigit()
        return is_number and address.startswith(before) and address.endswith(after) and self._is_own(digits)

    def number_of(self, address: str) -> int | None:
        """Return the number of the shard with this address. Return None if no shard of this pattern has it, or if the
        pattern has no field.

        >>> OutputPattern.parse("out-%06d.tar").number_of("out-000007.tar")
        7
        """
        before, field, after = self._parts
        if field is None or not self.could_name(address):
            return None
        return int(address[len(before) : len(address) - len(after)])

    def existing(self) -> list[str]:
        """Return the existing files that have addresses of this pattern, in natural order."""
        if self.is_stream:
            return []
        from wdscli.storage.opening import exists

        if self._parts.field is None:
            return [name for name in self._known if exists(name)]
        return sorted(self._numbered(), key=natural)

    def _numbered(self) -> list[str]:
        """Return the existing names that have a number where the pattern has the field. The field may be in a folder's
        name."""
        from wdscli.storage.opening import exists, list_folder

        folder, before = split_folder(self._parts.before)
        inside, slash, below = self._parts.after.partition("/")
        named = re.compile(re.escape(before) + r"([0-9]+)" + re.escape(inside), re.DOTALL)
        try:
            names = list_folder(folder, lambda name: named.fullmatch(name) is not None)
        except InputError:
            return []
        matches = [match for name in names if (match := named.fullmatch(name)) and self._is_own(match[1])]
        addresses = [folder + match[0] + slash + below for match in matches]
        return [address for address in addresses if exists(address)] if below else addresses

    def _is_own(self, digits: str) -> bool:
        return self._parts.field is not None and self._parts.field % int(digits) == digits


class _Parts(NamedTuple):
    """The text before and after the field for a shard's number. Without a field, the whole text is ``before``."""

    before: str
    field: str | None = None
    after: str = ""


def _parts(text: str, hint: str) -> _Parts:
    """Split a text at its field. ``%%`` is a percent sign. Any other ``%`` that begins no field stays unchanged."""
    fields = list(re.finditer(_FIELD, text.replace("%%", "\0\0")))
    if len(fields) > 1:
        raise UsageError(f"{text} has two fields for the shard's number", hint=hint)
    if not fields:
        return _Parts(text.replace("%%", "%"))
    start, end = fields[0].span()
    field = text[start:end]
    if len(field) > 8 or int(field.strip("%d") or 0) > MAX_DIGITS:
        raise UsageError(f"a shard's number of more than {MAX_DIGITS} digits: {text[:80]}", hint="use %06d")
    if field[1] in "123456789":
        raise UsageError(f"{field} in {text} writes names with blanks", hint=f"use %0{field[1:]}")
    return _Parts(text[:start].replace("%%", "%"), field, text[end:].replace("%%", "%"))
