"""Inputs that can be read only once, copied so that they can be read at any place.

What it is: :class:`Input`, an address and the copy that stands in for it, and :class:`Scratch`, the folder of such
copies. How: standard input, a command's output, a named pipe and a compressed shard are written once, as plain tars,
into a temporary folder that is gone when the block is left, however it is left. Whoever reads a copy is told the
original's name, so that messages speak of what the user named. It must not know what the bytes are for.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple

from wdscli.errors import DataError, OutputError, UsageError
from wdscli.storage import Source, is_local, is_stream, local_path, open_source
from wdscli.storage.opening import is_device

PIECE = 1 << 20
HINT = "name a folder with room: --tmp DIR, or TMPDIR"


class Input(NamedTuple):
    """One input shard; ``copy`` is the path of its copy, if it has one."""

    address: str
    copy: str = ""

    def open(self) -> Source:
        """The bytes, under the name that the user gave. Raises InputError."""
        if not self.copy:
            return open_source(self.address)
        source = open_source(self.copy, decompress=False)
        source.name = self.address
        return source


class Scratch:
    """A temporary folder below ``parent`` (default: TMPDIR), made when the first copy is. A context manager."""

    def __init__(self, parent: str | None = None) -> None:
        if parent is None:
            from tempfile import gettempdir

            parent = gettempdir()
        self.folder = os.path.join(os.path.abspath(parent), f"wds-{os.urandom(8).hex()}")

    def place(self, number: int) -> str:
        """Where the copy of input ``number`` belongs."""
        return os.path.join(self.folder, f"{number}.tar")

    def __enter__(self) -> Scratch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.path.isdir(self.folder):
            from shutil import rmtree

            rmtree(self.folder, ignore_errors=True)


def is_read_once(address: str) -> bool:
    """Whether an address can be read only once, as far as can be told without opening it."""
    return is_stream(address) or is_ours_alone(address)


def is_ours_alone(address: str) -> bool:
    """Whether no other process can read an address: standard input, ``<(...)``; a named pipe has one reader too."""
    return address == "-" or (is_local(address) and is_device(local_path(address)))


def spool(source: Source, path: str, *, cut: Callable[[DataError], None] | None = None) -> None:
    """Copy a source that has not been read yet to a new file. With ``cut``, a compressed stream that breaks off is
    reported there and what came before it is kept. Raises InputError, DataError, OutputError."""
    try:
        with suppress(FileExistsError):
            os.mkdir(os.path.dirname(path), 0o700)
        _check_room(source, path)
        with open(path, "xb", buffering=0) as file:
            offset = 0
            while data := _next(source, offset, cut):
                offset += len(data)
                while data:
                    data = data[file.write(data) :]
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise OutputError(f"cannot copy {source.name} to {path}: {error.strerror}", hint=HINT) from error


def _next(source: Source, offset: int, cut: Callable[[DataError], None] | None) -> bytes:
    try:
        return source.read_some(offset, PIECE)
    except DataError as error:
        if cut is None:
            raise
        cut(error)
        return b""


def _check_room(source: Source, path: str) -> None:
    """Refuse at once what cannot fit, where the size is known."""
    if source.size is None:
        return
    from shutil import disk_usage

    free = disk_usage(os.path.dirname(path)).free
    if free < source.size:
        raise OSError(errno.ENOSPC, f"{source.size} bytes do not fit in the {free} that are free")


def refused(address: str) -> UsageError:
    """The error of an input that would have to be copied where no scratch folder was given."""
    return UsageError(
        f"{address} can be read only once, and another order needs it twice",
        hint="store it first: wds cat SHARD -o plain.tar",
    )
