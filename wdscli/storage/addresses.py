"""This module knows the syntax of addresses, and which addresses a document may name.

An address is a path, ``-``, ``pipe:CMD`` or ``scheme://...``. This module knows these kinds, the file name in an
address, and the addresses of other files in the same folder. It uses only text and one regular expression, without
``urllib``, because every command imports it.

It also has the rules for addresses in documents. :func:`shard_address` checks the shards of a manifest.
:func:`listed_address` checks the lines of a list and the cells of a table. :func:`check_pipe` checks commands:

- A downloaded manifest or list may name files in and below its folder, and URLs of its own scheme and host. Other names
are refused unless the caller trusts the document: a path of this machine, ``..``, standard input, another host.
Commands are always refused.
- A local manifest may also use ``..`` and URLs, because `wds index -o` writes them. It must not use an absolute path,
standard input or a command.
- A local list is trusted like the command line.
- A local table is data. It may name any file and URL, but it may name a command only if the caller trusts it.

This module opens nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any
from weakref import WeakValueDictionary

from wdscli.errors import InputError, UsageError
from wdscli.units import whole_number

STREAM = "-"
PIPE = "pipe:"
_SCHEME_MARKS = str.maketrans("", "", "+.-")
"""Removes what a scheme may have besides letters and digits."""
_DIGITS = r"([0-9]+)"
# Matches two numbers with other characters between them, and at least one bracket.
_RANGE = r"(?:([{(\[])\s*)?([0-9]+)\s*(?:\.{1,3}|-|:|,|\u2026|to)\s*([0-9]+)(?:\s*([)}\]]))?"
_HALF_RANGE = r"\{(?:[0-9]+\.\.|\.\.[0-9]+)\}"


def _split_scheme(address: str) -> tuple[str, str]:
    """Return the part before ``://`` in lower case, and the part after it. A path has an empty scheme."""
    word, mark, path = address.partition("://")
    if mark and word.isascii() and word[:1].isalpha() and word.translate(_SCHEME_MARKS).isalnum():
        return word.lower(), path
    return "", address


def scheme(address: str) -> str:
    """Return the part before ``://`` in lower case. A path gives ``file``, and a stream gives ``-`` or ``pipe``."""
    if address == STREAM:
        return STREAM
    if address.startswith(PIPE):
        return "pipe"
    return _split_scheme(address)[0] or "file"


OPENERS: dict[str, Callable[[str], Any]] = {}
"""Functions of the calling program that open addresses, by scheme. Each returns a file object, which is read once."""


def is_local(address: str) -> bool:
    """Return whether ``address`` names a file of this machine (a path or ``file://``)."""
    return scheme(address) in ("file", "local")


def is_stream(address: str) -> bool:
    """Return whether ``address`` is ``-`` or ``pipe:CMD``. Streams have no folder, and can be read or written only
    once."""
    return address == STREAM or address.startswith(PIPE)


def has_folder(address: str) -> bool:
    """Return whether an input can have other files in its folder. A stream, and an address that :data:`OPENERS` open,
    cannot."""
    return not is_stream(address) and scheme(address) not in OPENERS


def is_web(address: str) -> bool:
    """Return whether ``address`` is on a web server. Web servers can be read, but not listed or written."""
    return scheme(address) in ("http", "https")


def local_path(address: str) -> str:
    """Return the path of a local address."""
    path = _split_scheme(address)[1]
    folder = _folder.get()
    return os.path.join(folder, path) if folder and path else path


_folder: ContextVar[str] = ContextVar("folder", default="")


def relative_to(folder: str) -> AbstractContextManager[None]:
    """In the block, resolve relative paths from ``folder`` instead of the current folder. The text of addresses does
    not change.

    This is for tasks on other machines. Several of them may run in one process, so a task cannot change the process's
    current folder.
    """
    from wdscli.threads import holding

    return holding(_folder, folder)


def split_folder(address: str) -> tuple[str, str]:
    """Split an address into the part up to its last slash, slash included, and the file name. The query of a web
    address is removed."""
    if is_web(address):
        address = re.split("[?#]", address, maxsplit=1)[0]
    cut = address.rfind("/") + 1
    return address[:cut], address[cut:]


def sibling(address: str, name: str) -> str:
    """Return the address of the file ``name``, which may contain slashes, in the same folder.

    >>> sibling("s3://bucket/train-000000.tar", ".wds/train-000000.tar.wdx")
    's3://bucket/.wds/train-000000.tar.wdx'
    """
    if is_stream(address):
        raise UsageError(f"{address} has no folder in which to look for {name}")
    return split_folder(address)[0] + name


class HeldBytes:
    """Bytes in memory with an address. While this object exists, every reader in this process finds the bytes at this
    address. If the object is pickled, the other process gets the bytes too."""

    def __init__(self, address: str, data: bytes) -> None:
        self.address, self.data = address, data

    def __reduce__(self) -> tuple[Any, tuple[str, bytes]]:
        return hold, (self.address, self.data)


HELD: WeakValueDictionary[str, HeldBytes] = WeakValueDictionary()


def hold(address: str, data: bytes) -> HeldBytes:
    """Make bytes readable at an address that contains their digest. The caller must keep the result while they are
    needed."""
    held = HELD.get(address)
    if held is None:
        held = HELD[address] = HeldBytes(address, data)
    return held


TRUSTED: set[str] = set()
"""The trusted views, whose bases may have any address. Tasks send these views to their workers."""
VIEW_SUFFIX = ".json"


def view_of(address: str) -> tuple[str, str] | None:
    """Split the address ``VIEW.json/NAME`` of a view's shard into the view's address and the shard's name. Return None
    for any other address. A local folder may also have such a name."""
    if f"{VIEW_SUFFIX}/" not in address or is_stream(address):
        return None
    view, _, name = address.partition(f"{VIEW_SUFFIX}/")
    view += VIEW_SUFFIX
    if not name or (is_local(address) and view not in HELD and not os.path.isfile(local_path(view))):
        return None
    return view, name


def base_name(address: str) -> str:
    """Return the file name in an address. The name of ``-`` is ``stdin``. A pipe has a short name that is
    always the same.

    >>> base_name("https://example.org/a/train-000000.tar?token=7")
    'train-000000.tar'
    """
    if address == STREAM:
        return "stdin"
    if address.startswith(PIPE):
        from zlib import crc32

        return f"pipe-{crc32(address.encode('utf-8', 'surrogateescape')):08x}"
    return split_folder(address.rstrip("/"))[1] or address


def natural(name: str) -> tuple[list[str | int], str]:
    """Return a sort key that puts ``img2`` before ``img10``. If the keys of two texts are equal, the texts themselves
    decide."""
    parts: list[str | int] = list(re.split(_DIGITS, name))
    parts[1::2] = [whole_number(digits) for digits in re.findall(_DIGITS, name)]
    return parts, name


def addresses_of(value: str | Sequence[str] | None, option: str) -> tuple[str, ...]:
    """Return the address or addresses in an option. Raises UsageError if standard input is named twice."""
    addresses = () if value is None else (value,) if isinstance(value, str) else tuple(value)
    if addresses.count(STREAM) > 1:
        raise UsageError(f"{option} names standard input twice", hint=f"{option} FILE")
    return addresses


def same_file(address: str, other_address: str) -> bool:
    """Return whether two addresses name the same existing file. Remote addresses are compared as text."""
    if is_local(address) and is_local(other_address):
        try:
            return os.path.samefile(local_path(address), local_path(other_address))
        except OSError:
            return os.path.abspath(local_path(address)) == os.path.abspath(local_path(other_address))
    return address == other_address and not is_stream(address)


def range_hint(address: str) -> str | None:
    """Return a hint for a missing address that looks like a mistyped range of numbers: ``{0.4}``, ``{0-4}``,
    ``{0..4``."""
    if re.search(_HALF_RANGE, address):
        return "a range in braces has two ends: {00000..00041}"
    meant = re.sub(_RANGE, lambda m: f"{{{m[2]}..{m[3]}}}" if m[1] or m[4] else m[0], address)
    return f"did you mean '{meant}'?" if meant != address else None


NO_PIPE = "WDSCLI_NO_PIPE"
_AUTHORITY = r"[A-Za-z][A-Za-z0-9+.\-]*://([^/?#]*)"
PORTS = {"http": ":80", "https": ":443"}
_HINT = "if you trust it: --trust-addresses, or trust_addresses=True in code"


def shard_address(manifest: str, name: str, *, trusted: bool = False) -> str:
    """Return the address of the shard with the name ``name`` in the manifest at ``manifest``. Raises InputError for a
    name that is not allowed."""
    if name.startswith(PIPE):
        raise _refused(
            manifest,
            name,
            "a command",
            "pipe: works on the command line, in code, and in lists on this machine",
        )
    is_path = is_local(name)
    is_absolute = not is_path or name.startswith(("/", "file:", "local:"))
    if not trusted and (what := _why_not(manifest, name, is_path, is_absolute)):
        raise _refused(manifest, name, what, _HINT)
    if is_absolute:
        return name
    # Object stores do not resolve "..".
    while not is_local(manifest) and name.startswith("../") and manifest.count("/") > 3:
        manifest, name = split_folder(manifest)[0][:-1], name[3:]
    return sibling(manifest, name)


def listed_address(document: str, name: str, *, trusted: bool = False, is_cell: bool = False) -> str:
    """Return the address that a line of the document at ``document`` names, or with ``is_cell``, a cell of a table.
    Raises InputError for a name that is not allowed.

    A relative name in a downloaded document is relative to the document. A relative name in a local document is
    relative to the current folder. A document from standard input or a command may name anything except commands.
    """
    is_local_document = is_local(document)
    if not (is_local_document or is_stream(document)):
        return shard_address(document, name, trusted=trusted)
    if name.startswith(PIPE) and not trusted and (is_cell or not is_local_document):
        raise _refused(document, name, "a command", _HINT)
    return name


def check_pipe(address: str, *, pipes: bool = True) -> None:
    """Raise UsageError for a command if commands are forbidden by ``pipes=False`` or by WDSCLI_NO_PIPE in the
    environment."""
    if not address.startswith(PIPE):
        return
    if not pipes:
        raise UsageError(
            f"{address} is not run: pipes=False", hint="leave pipes=False out, or name a file or a URL"
        )
    if os.environ.get(NO_PIPE, "") not in ("", "0"):
        raise UsageError(
            f"{address} is not run: {NO_PIPE} is set", hint=f"unset {NO_PIPE}, or name a file or a URL"
        )


def _why_not(document: str, name: str, is_path: bool, is_absolute: bool) -> str:
    """Return the reason why a name is not allowed. It is empty if the name is allowed."""
    if name == "-":
        return "standard input"
    if is_path and is_absolute:
        return "a path of this machine"
    # fsspec reads a::b as an address inside another address.
    if "::" in name:
        return "one address inside another"
    # `wds index -o` writes such names if the manifest is in another folder than its shards.
    if is_local(document):
        return ""
    plain = name
    if "%" in name:
        from urllib.parse import unquote

        plain = unquote(name)
    if ".." in re.split(r"[/\\]", plain):
        return "a file outside its folder"
    if not is_path and _origin(name) != _origin(document):
        return "another machine, or another bucket"
    return ""


def _origin(address: str) -> tuple[str, str]:
    """Return the scheme and the host, or for a store the bucket, without login and default port."""
    authority = re.match(_AUTHORITY, address)
    kind = scheme(address)
    host = authority[1] if authority else ""
    # Some programs read a backslash as a slash, so the host is uncertain. Return the whole address instead.
    host = host.rpartition("@")[2].lower() if "\\" not in host else address
    return kind, host.removesuffix(PORTS.get(kind, "\0"))


def _refused(document: str, name: str, what: str, hint: str) -> InputError:
    return InputError(f"{document} must not contain {what}: {name}", hint=hint)
