"""This module knows the syntax of addresses, and which addresses a document may name.

An address is a path, ``-``, ``pipe:CMD`` or ``scheme://...``. This module knows these kinds, their file names and their
siblings. It works by text alone and one regular expression, without ``urllib``, because every command imports it.

It also has the rule for addresses in documents. :func:`shard_address` checks the shards of a manifest,
:func:`listed_address` the lines of a list and the cells of a table, :func:`check_pipe` commands:

- A downloaded manifest or list may name files next to and below it, and URLs of its own scheme and host. Other names (a
  path of this machine, ``..``, standard input, another host) are refused unless the caller trusts the document.
  Commands are always refused.
- A local manifest may also use ``..`` and URLs, as `wds index -o` writes them, but no absolute path, standard input or
  command.
- A local list is trusted like words of the command line.
- A local table is data: it may name any file and URL, but a command only if the caller trusts it.

This module opens nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakValueDictionary

from wdscli.errors import InputError, UsageError
from wdscli.units import whole_number

STREAM = "-"
PIPE = "pipe:"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://")
_DIGITS = re.compile(r"([0-9]+)")
# Two numbers with something between them, and at least one bracket.
_RANGE = re.compile(r"(?:([{(\[])\s*)?([0-9]+)\s*(?:\.{1,3}|-|:|,|\u2026|to)\s*([0-9]+)(?:\s*([)}\]]))?")
_HALF_RANGE = re.compile(r"\{(?:[0-9]+\.\.|\.\.[0-9]+)\}")


def scheme(address: str) -> str:
    """The part before ``://`` in lower case; ``file`` for a path, and ``-`` or ``pipe`` for a stream."""
    if address == STREAM:
        return STREAM
    if address.startswith(PIPE):
        return "pipe"
    match = _SCHEME.match(address)
    return match[1].lower() if match else "file"


OPENERS: dict[str, Callable[[str], Any]] = {}
"""A program's own functions that open addresses, by scheme. Each returns a file object, which is read once."""


def is_local(address: str) -> bool:
    """Whether ``address`` names a file of this machine (a path or ``file://``)."""
    return scheme(address) in ("file", "local")


def is_stream(address: str) -> bool:
    """Whether ``address`` is ``-`` or ``pipe:CMD``, which have no folder and are read or written once."""
    return address == STREAM or address.startswith(PIPE)


def has_folder(address: str) -> bool:
    """Whether an input can have other files next to it. It cannot if it is a stream, or if one of the :data:`OPENERS`
    opens it."""
    return not is_stream(address) and scheme(address) not in OPENERS


def is_web(address: str) -> bool:
    """Whether ``address`` is on a web server, which can be read but neither listed nor written."""
    return scheme(address) in ("http", "https")


def local_path(address: str) -> str:
    """The path of a local address."""
    match = _SCHEME.match(address)
    path = address[match.end() :] if match else address
    folder = _folder.get()
    return os.path.join(folder, path) if folder and path else path


_folder: ContextVar[str] = ContextVar("folder", default="")


@contextmanager
def relative_to(folder: str) -> Iterator[None]:
    """In the block, relative paths begin at ``folder`` instead of the current folder. Addresses keep their text.

    This is for tasks on other machines. Several of them may run in one process, so a task cannot change the process's
    current folder.
    """
    before = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(before)


def split_folder(address: str) -> tuple[str, str]:
    """The address up to and including its last slash, and the file name. A web address loses its query."""
    if is_web(address):
        address = re.split("[?#]", address, maxsplit=1)[0]
    cut = address.rfind("/") + 1
    return address[:cut], address[cut:]


def sibling(address: str, name: str) -> str:
    """The address of the file ``name`` (which may have slashes of its own) in the same folder.

    >>> sibling("s3://bucket/train-000000.tar", ".wds/train-000000.tar.wdx")
    's3://bucket/.wds/train-000000.tar.wdx'
    """
    if is_stream(address):
        raise UsageError(f"{address} has no folder in which to look for {name}")
    return split_folder(address)[0] + name


class Held:
    """Bytes in memory. While this object exists, every reader of this process finds the bytes at their address. If the
    object is pickled, the other process holds the bytes too."""

    def __init__(self, address: str, data: bytes) -> None:
        self.address, self.data = address, data

    def __reduce__(self) -> tuple[Any, tuple[str, bytes]]:
        return hold, (self.address, self.data)


HELD: WeakValueDictionary[str, Held] = WeakValueDictionary()


def hold(address: str, data: bytes) -> Held:
    """Hold bytes at an address that contains their digest. The caller keeps the result."""
    found = HELD.get(address)
    if found is None:
        found = HELD[address] = Held(address, data)
    return found


TRUSTED: set[str] = set()
"""The views whose bases may have any address. Tasks pass these views to their workers."""
VIEW_SUFFIX = ".json"


def view_of(address: str) -> tuple[str, str] | None:
    """The address of a view and the name of its shard, for the address ``VIEW.json/NAME`` of a view's shard; None for
    any other address. A local folder may have such a name too."""
    if f"{VIEW_SUFFIX}/" not in address or is_stream(address):
        return None
    view, _, name = address.partition(f"{VIEW_SUFFIX}/")
    view += VIEW_SUFFIX
    if not name or (is_local(address) and view not in HELD and not os.path.isfile(local_path(view))):
        return None
    return view, name


def base_name(address: str, *, output: bool = False) -> str:
    """The file name; ``stdin`` (``stdout`` with ``output``) for ``-``, and for a pipe a short name that stays
    the same.

    >>> base_name("https://example.org/a/train-000000.tar?token=7")
    'train-000000.tar'
    """
    if address == STREAM:
        return "stdout" if output else "stdin"
    if address.startswith(PIPE):
        from zlib import crc32

        return f"pipe-{crc32(address.encode('utf-8', 'surrogateescape')):08x}"
    return split_folder(address.rstrip("/"))[1] or address


def natural(name: str) -> tuple[list[str | int], str]:
    """A sort key that puts ``img2`` before ``img10``. If two keys are equal, the texts themselves decide."""
    parts: list[str | int] = list(_DIGITS.split(name))
    parts[1::2] = [whole_number(digits) for digits in _DIGITS.findall(name)]
    return parts, name


def addresses_of(given: str | Sequence[str] | None, option: str) -> tuple[str, ...]:
    """The address or addresses that an option names. Raises UsageError if standard input is named twice."""
    found = () if given is None else (given,) if isinstance(given, str) else tuple(given)
    if found.count(STREAM) > 1:
        raise UsageError(f"{option} names standard input twice", hint=f"{option} FILE")
    return found


def same_file(one: str, other: str) -> bool:
    """Whether two addresses name the same existing file; remote addresses are compared as text."""
    if is_local(one) and is_local(other):
        try:
            return os.path.samefile(local_path(one), local_path(other))
        except OSError:
            return os.path.abspath(local_path(one)) == os.path.abspath(local_path(other))
    return one == other and not is_stream(one)


def range_hint(address: str) -> str | None:
    """A hint for a missing address that looks like a mistyped range of numbers: ``{0.4}``, ``{0-4}``, ``{0..4``."""
    if _HALF_RANGE.search(address):
        return "a range in braces has two ends: {00000..00041}"
    meant = _RANGE.sub(lambda m: f"{{{m[2]}..{m[3]}}}" if m[1] or m[4] else m[0], address)
    return f"did you mean '{meant}'?" if meant != address else None


NO_PIPE = "WDSCLI_NO_PIPE"
_AUTHORITY = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://([^/?#]*)")
_PORTS = {"http": ":80", "https": ":443"}
_HINT = "if you trust it: --trust-addresses, or trust_addresses=True in code"


def shard_address(manifest: str, name: str, *, trusted: bool = False) -> str:
    """The address of the shard that the manifest at ``manifest`` calls ``name``. Raises InputError for a name that is
    not allowed."""
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
    return name if is_absolute else sibling(manifest, name)


def listed_address(document: str, name: str, *, trusted: bool = False, is_cell: bool = False) -> str:
    """The address that a line, or with ``is_cell`` a cell, of the document at ``document`` names. Raises InputError for
    a name that is not allowed.

    A relative name in a downloaded document is relative to the document; in a local one it is relative to the current
    folder. A document from standard input or a command may name anything but commands.
    """
    here = is_local(document)
    if not (here or is_stream(document)):
        return shard_address(document, name, trusted=trusted)
    if name.startswith(PIPE) and not trusted and (is_cell or not here):
        raise _refused(document, name, "a command", _HINT)
    return name


def check_pipe(address: str, *, pipes: bool = True) -> None:
    """Raise UsageError for a command if ``pipes=False`` or WDSCLI_NO_PIPE in the environment forbids commands."""
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
    """Why a name is not allowed; empty if it is."""
    if name == "-":
        return "standard input"
    if is_path and is_absolute:
        return "a path of this machine"
    # fsspec reads a::b as one address inside another.
    if "::" in name:
        return "one address inside another"
    # `wds index -o` writes manifests in other folders than their shards, with such names.
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
    """The scheme and the host (for a store: the bucket), without login and default port."""
    found = _AUTHORITY.match(address)
    kind = scheme(address)
    host = found[1] if found else ""
    # Some programs read a backslash as a slash, so the host is uncertain: compare the whole address.
    host = host.rpartition("@")[2].lower() if "\\" not in host else address
    return kind, host.removesuffix(_PORTS.get(kind, "\0"))


def _refused(document: str, name: str, what: str, hint: str) -> InputError:
    return InputError(f"{document} must not contain {what}: {name}", hint=hint)
