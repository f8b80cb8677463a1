"""What a user writes for an input or an output, taken apart as text.

What it is: the kinds of address (a path, ``-``, ``pipe:CMD``, ``scheme://...``), their file names and
siblings. How: one regular expression, no ``urllib``, since every command imports this. It must not open
anything.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from wdscli.errors import UsageError

STREAM = "-"
PIPE = "pipe:"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://")
_DIGITS = re.compile(r"([0-9]+)")
# Two numbers, something between them, and a bracket on one side at least.
_RANGE = re.compile(r"(?:([{(\[])\s*)?([0-9]+)\s*(?:\.{1,3}|-|:|,|\u2026|to)\s*([0-9]+)(?:\s*([)}\]]))?")
_HALF_RANGE = re.compile(r"\{(?:[0-9]+\.\.|\.\.[0-9]+)\}")


def scheme(address: str) -> str:
    """``file`` for a path, ``-`` and ``pipe`` for streams, else what stands before ``://``, in lower case."""
    if address == STREAM:
        return STREAM
    if address.startswith(PIPE):
        return "pipe"
    match = _SCHEME.match(address)
    return match[1].lower() if match else "file"


def is_local(address: str) -> bool:
    """Whether ``address`` names a file of this machine (a path or ``file://``)."""
    return scheme(address) in ("file", "local")


def is_stream(address: str) -> bool:
    """Whether ``address`` is ``-`` or ``pipe:CMD``, which have no folder and are read or written once."""
    return address == STREAM or address.startswith(PIPE)


def local_path(address: str) -> str:
    """The path of a local address."""
    match = _SCHEME.match(address)
    path = address[match.end() :] if match else address
    folder = _folder.get()
    return os.path.join(folder, path) if folder and path else path


_folder: ContextVar[str] = ContextVar("folder", default="")


@contextmanager
def relative_to(folder: str) -> Iterator[None]:
    """In the block relative paths begin at ``folder``, not at the current folder; addresses stay as they were typed.

    For tasks that run elsewhere, maybe some in one process: a current folder is the whole process's.
    """
    before = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(before)


def split_folder(address: str) -> tuple[str, str]:
    """(all up to and including the last slash, the file name). A web address loses its query."""
    if scheme(address) in ("http", "https"):
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
    """A sort key by which ``img2`` comes before ``img10``; the text itself settles ties."""
    parts: list[str | int] = list(_DIGITS.split(name))
    parts[1::2] = map(int, parts[1::2])
    return parts, name


def addresses_of(given: str | Sequence[str] | None, option: str) -> tuple[str, ...]:
    """One address or several that an option names, which add up. Raises UsageError for standard input named twice."""
    found = () if given is None else (given,) if isinstance(given, str) else tuple(given)
    if found.count(STREAM) > 1:
        raise UsageError(f"{option} names standard input twice", hint=f"{option} FILE")
    return found


def same_file(one: str, other: str) -> bool:
    """Whether two addresses lead to the same existing file; text alone for what is not local."""
    if is_local(one) and is_local(other):
        try:
            return os.path.samefile(local_path(one), local_path(other))
        except OSError:
            return os.path.abspath(local_path(one)) == os.path.abspath(local_path(other))
    return one == other and not is_stream(one)


def range_hint(address: str) -> str | None:
    """What helps with an address that leads nowhere and looks as if a range of numbers was meant: ``{0.4}``, ``{0-4}``,
    ``{0..4``."""
    if _HALF_RANGE.search(address):
        return "a range in braces has two ends: {00000..00041}"
    meant = _RANGE.sub(lambda m: f"{{{m[2]}..{m[3]}}}" if m[1] or m[4] else m[0], address)
    return f"did you mean '{meant}'?" if meant != address else None
