"""Scratch space: a folder of our own, gone when its block is left; and inputs that are copied there.

What it is: :class:`Scratch`, the folder, on this machine or on an object store; and :class:`Input`, an address and the
copy that may stand in for it. How: standard input, a command's output, a named pipe and a compressed shard can be read
only once, so they are written once, as plain tars, into the folder. Whoever reads a copy is told the original's name,
so that messages speak of what the user named. It must not know what the bytes are for.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple

from wdscli.errors import DataError, InputNotFoundError, OutputError, UsageError, WdsError
from wdscli.storage import (
    Source,
    is_local,
    is_stream,
    list_folder,
    local_path,
    open_sink,
    open_source,
    remove,
    scheme,
)
from wdscli.storage.opening import is_device
from wdscli.tar import Scanner
from wdscli.tar.header import BLOCK
from wdscli.tar.scan import MAX_ZEROS_BYTES, endless

PIECE = 1 << 20
HINT = "name a folder with room: --tmp DIR, or TMPDIR"


class Stamp(NamedTuple):
    """What tells whether an input is still the one that was planned with."""

    size_bytes: int
    version: str


class Input(NamedTuple):
    """One input shard; ``copy`` is the path of its copy, if it has one."""

    address: str
    copy: str = ""
    stamp: Stamp | None = None
    """What it was when the plan was made; bytes of any other stamp are refused, at the latest when all are read."""
    is_held: bool = False
    """Whether they are refused before any is read."""

    @property
    def is_near(self) -> bool:
        """Whether the bytes are on this machine."""
        return is_local(self.copy or self.address)

    def open(self) -> Source:
        """The bytes, under the name that the user gave. Raises InputError, DataError when they are others now."""
        if not self.copy:
            source = open_source(self.address)
            if self.stamp is None or self.stamp == (source.size, source.version):
                return source
            if source.fd is not None and not self.is_held:
                # The headers of a local file tell better what is different; confirm() tells it of payloads.
                source.version = self.stamp.version
            else:
                source.close()
                raise DataError(
                    "the input was changed after the plan was made",
                    code="changed",
                    shard=self.address,
                    hint="make the plan again, when nobody writes there",
                )
            return source
        source = open_source(self.copy, decompress=False)
        source.name = self.address
        return source

    def confirm(self) -> None:
        """Raise InputError for a local file that is another one now than when the plan was made. One that is gone was
        read from what it was."""
        if self.stamp is not None and not self.copy and is_local(self.address):
            with suppress(InputNotFoundError), self.open() as source:
                source.confirm()


class Scattered(NamedTuple):
    """Scratch space of a first pass, by what the addresses of its parts begin with."""

    prefix: str
    is_local: bool

    def part(self, number: int) -> str:
        """The address of one part."""
        return f"{self.prefix}-{number}"


class Scratch:
    """A temporary folder below ``parent`` (an address; default: TMPDIR), made when something is put there, removed with
    all that is in it when the block is left. A context manager."""

    def __init__(self, parent: str | None = None) -> None:
        if parent is None:
            from tempfile import gettempdir

            parent = gettempdir()
        if is_stream(parent):
            raise UsageError(f"{parent} is no folder", hint="--tmp DIR, or a URL")
        self.parent = parent
        self.is_local = is_local(parent)
        base = os.path.abspath(local_path(parent)) if self.is_local else parent.rstrip("/")
        self.folder = f"{base.rstrip('/')}/wds-{os.urandom(8).hex()}"
        self._files = 0
        self._near: Scratch | None = None

    def place(self, number: int) -> str:
        """Where the copy of input ``number`` belongs."""
        return f"{self.folder}/{number}.tar"

    def space(self) -> Scattered:
        """A new space for samples that are spilled. Raises OutputError."""
        if not self.is_local:
            self._files += 1
            return Scattered(f"{self.folder}/spill-{self._files}", False)
        return Scattered(self.new_path("spill"), True)

    def new_path(self, name: str) -> str:
        """A path of this machine that nobody else uses; in TMPDIR when the scratch folder is elsewhere. Raises
        OutputError."""
        if not self.is_local:
            self._near = self._near or Scratch()
            return self._near.new_path(name)
        self._files += 1
        self._make()
        return f"{self.folder}/{name}-{self._files}"

    def path_of(self, name: str) -> str:
        """The path of a file of this machine that may have to be written; the folder is made by whoever does."""
        if not self.is_local:
            self._near = self._near or Scratch()
            return self._near.path_of(name)
        return f"{self.folder}/{name}"

    def _make(self) -> None:
        try:
            with suppress(FileExistsError):
                os.mkdir(self.folder, 0o700)
        except OSError as error:
            raise OutputError(f"cannot make {self.folder}: {error.strerror}", hint=HINT) from error

    def free_bytes(self) -> int | None:
        """How much room there is, None where nobody can tell. Raises OutputError when the folder is not there."""
        if not self.is_local:
            return None
        from shutil import disk_usage

        folder = os.path.dirname(self.folder)
        try:
            return disk_usage(folder).free
        except OSError as error:
            raise OutputError(f"cannot use {folder} as scratch space: {error.strerror}", hint=HINT) from error

    def close(self) -> None:
        """Remove it. Never raises: what is left over does no harm."""
        if self._near is not None:
            self._near.close()
        if self.is_local:
            if os.path.isdir(self.folder):
                from shutil import rmtree

                rmtree(self.folder, ignore_errors=True)
            return
        with suppress(WdsError):
            for name in list_folder(self.folder):
                remove(f"{self.folder}/{name}")

    def __enter__(self) -> Scratch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def folder_of_scratch(scratch: Scratch | None) -> str | None:
    """A folder of this machine for scratch files without a name: the parent of ``scratch`` where it is here, None for
    TMPDIR."""
    return os.path.abspath(local_path(scratch.parent)) if scratch is not None and scratch.is_local else None


def is_read_once(address: str) -> bool:
    """Whether an address can be read only once, as far as can be told without opening it."""
    return is_stream(address) or is_ours_alone(address)


def is_ours_alone(address: str) -> bool:
    """Whether no other process can read an address: standard input, ``<(...)``; a named pipe has one reader too."""
    return address == "-" or (is_local(address) and is_device(local_path(address)))


def is_of_this_process(address: str) -> bool:
    """Whether the bytes lie in this process's own memory, where no worker reaches them."""
    return scheme(address) == "memory"


def spool(source: Source, path: str, *, cut: Callable[[DataError], None] | None = None) -> None:
    """Copy a source that has not been read yet to a new file. With ``cut``, a compressed stream that breaks off is
    reported there and what came before it is kept. Raises InputError, DataError, OutputError."""
    if not is_local(path):
        with open_sink(path) as sink:
            for data in pieces_to_end(source, cut):
                sink.write(data)
        return
    try:
        with suppress(FileExistsError):
            os.mkdir(os.path.dirname(path), 0o700)
        _check_room(source, path)
        with open(path, "xb", buffering=0) as file:
            for data in pieces_to_end(source, cut):
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
    except (WdsError, BrokenPipeError):
        raise
    except OSError as error:
        raise OutputError(f"cannot copy {source.name} to {path}: {error.strerror}", hint=HINT) from error


def pieces_to_end(source: Source, cut: Callable[[DataError], None] | None) -> Iterator[bytes]:
    """All bytes of a shard that is read once, with ``cut`` as :func:`spool` has it. What has no end must not fill a
    disc: a stream of nothing but zeros raises InputError, one that is no tar DataError (not with ``cut``, which may
    find members behind damage)."""
    offset, blank = 0, True
    while True:
        try:
            data = source.read_some(offset, PIECE)
        except DataError as error:
            if cut is None:
                raise
            cut(error)
            return
        if not data:
            return
        blank = blank and data.count(0) == len(data)
        if blank and offset > MAX_ZEROS_BYTES and source.size is None:
            raise endless(source.name)
        if cut is None and not offset and not blank and len(data) >= BLOCK:
            Scanner(source.name).feed(data[:BLOCK], 0)
        offset += len(data)
        yield data


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
