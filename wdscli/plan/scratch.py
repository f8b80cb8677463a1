"""Scratch space: a folder of our own, gone when its block is left, and what is put there.

What it is: :class:`Scratch`, the folder, on this machine or on an object store; :func:`spool`, which copies an input
that can be read only once; :func:`held_near`, which copies what several steps read; and :class:`StoredRows`, rows of
one survey that are more than a worker should hold, until the plan's table takes them. It must not know what the bytes
are for.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import NamedTuple

from wdscli.arrays import numpy
from wdscli.errors import DataError, OutputError, StorageError, UsageError, WdsError
from wdscli.executors import tick_of_task
from wdscli.plan.values import Packed, RowBlock
from wdscli.progress import Progress
from wdscli.shards.inputs import ShardStage
from wdscli.storage import (
    Source,
    is_local,
    is_stream,
    list_folder,
    local_path,
    open_sink,
    open_source,
    remove,
)
from wdscli.storage.ahead import REQUEST_BYTES
from wdscli.storage.cache import hold
from wdscli.storage.compressed import identify
from wdscli.storage.ends import PIECE_BYTES
from wdscli.storage.local import reason, write_all
from wdscli.storage.opening import is_one_request
from wdscli.storage.retry import held_in
from wdscli.tar import Scanner
from wdscli.tar.header import BLOCK
from wdscli.tar.reader import is_dense
from wdscli.tar.scan import MAX_ZEROS_BYTES, endless

HINT = "name a folder with room: --tmp DIR, or TMPDIR"


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
        self._spaces = 0
        self._near: Scratch | None = None

    def place(self, number: int) -> str:
        """Where the copy of input ``number`` belongs."""
        return f"{self.folder}/{number}.tar"

    def space(self) -> Scattered:
        """A new space for samples that are spilled. Raises OutputError."""
        self._spaces += 1
        if self.is_local:
            self._make()
        return Scattered(f"{self.folder}/spill-{self._spaces}", self.is_local)

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


class Room(NamedTuple):
    """What copies of inputs that are far away may take of a disc: half of the ``free_bytes`` that there were on that of
    ``folder`` (empty: nothing). ``takes_most`` says that most of each shard is wanted in the end; ``share_bytes`` may
    then be copied of each although an index would do, unless that may have the store copy it to the output
    (``may_move``)."""

    folder: str = ""
    free_bytes: int = 0
    takes_most: bool = False
    share_bytes: int = 0
    may_move: bool = False

    def holds(self, size: int | None, *, like_all: bool = False) -> bool:
        """Whether there is room for a shard of this size, with ``like_all`` for all others too if they are like it."""
        if not self.folder or size is None or (like_all and size > self.share_bytes):
            return False
        from shutil import disk_usage

        return disk_usage(self.folder).free - size >= self.free_bytes // 2

    def copies_like(self, size: int | None) -> bool:
        """Whether a shard of this size, None for one that is not known yet, is probably copied although an index would
        do. An unknown one is taken to have more bytes than one request gets."""
        return self.share_bytes > (REQUEST_BYTES if size is None else size - 1)

    def takes_all(self, size: int) -> bool:
        """Whether a shard of this size is copied whatever its index says."""
        return not self.may_move and self.holds(size, like_all=True)


NO_ROOM = Room()


def folder_of_scratch(scratch: Scratch | None) -> str | None:
    """A folder of this machine for scratch files without a name: the parent of ``scratch`` where it is here, None for
    TMPDIR."""
    return os.path.abspath(local_path(scratch.parent)) if scratch is not None and scratch.is_local else None


def spool(source: Source, path: str, *, cut: Callable[[DataError], None] | None = None) -> None:
    """Copy a source that has not been read yet to a new file. With ``cut``, a compressed stream that breaks off is
    reported there and what came before it is kept. Raises InputError, DataError, OutputError."""
    if source.seekable and source.size is not None:
        source.expect([(0, source.size)])
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
                write_all(file.fileno(), data)
    except (WdsError, BrokenPipeError):
        raise
    except OSError as error:
        raise OutputError(f"cannot copy {source.name} to {path}: {error.strerror}", hint=HINT) from error


@contextmanager
def held_near(
    addresses: Iterable[str], scratch: Scratch, progress: Progress, *, whole: bool = False
) -> Iterator[None]:
    """In the block, and in tasks that begin there, shards that are far away are read from copies made here first, so
    that several steps read each once: those whose headers cannot be had without most of their bytes, with ``whole``
    all, as long as copies take no more than half of what is free."""
    far = [one for one in dict.fromkeys(addresses) if not (is_local(one) or is_stream(one))]
    if not far or not scratch.is_local:
        yield
        return
    room = Room(os.path.dirname(scratch.folder), scratch.free_bytes() or 0)
    folder = scratch.path_of("held")
    stage = ShardStage(progress, "copying", far)
    for address in far:
        # What cannot be read is told of where it is read next.
        with (
            suppress(StorageError, DataError),
            open_source(address, decompress=False, whole=whole or is_one_request(address)) as source,
        ):
            is_wanted = source.seekable and room.holds(source.size)
            if is_wanted and (whole or identify(source.peek(BLOCK)) is not None or is_dense(source)):
                hold(source, folder)
        stage.next()
    progress.finish()
    with held_in(folder):
        yield


def pieces_to_end(source: Source, cut: Callable[[DataError], None] | None) -> Iterator[bytes]:
    """All bytes of a shard that is read once, with ``cut`` as :func:`spool` has it. What has no end must not fill a
    disc: a stream of nothing but zeros raises InputError, one that is no tar DataError (not with ``cut``, which may
    find members behind damage)."""
    offset, blank = 0, True
    # Of a compressed one the bytes of the file are not those of the tar.
    tick = tick_of_task() if source.seekable and source.stored is source else None
    while True:
        try:
            data = source.read_some(offset, PIECE_BYTES)
        except DataError as error:
            if cut is None:
                raise
            cut(error)
            return
        if not data:
            return
        if tick is not None:
            tick(len(data))
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


class StoredRows:
    """Blocks of rows in a file of this machine. Picklable: who surveyed a shard sends it to who plans."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.blocks = 0

    def append(self, block: RowBlock) -> None:
        """Write a block. Raises OutputError."""
        try:
            with suppress(FileExistsError):
                os.mkdir(os.path.dirname(self.path), 0o700)
            with open(self.path, "ab" if self.blocks else "wb") as file:
                for column in (block.rows, block.values.lengths, block.values.data):
                    numpy.save(file, column)
        except OSError as error:
            raise OutputError(f"cannot write {self.path}: {reason(error)}", hint=HINT) from error
        self.blocks += 1

    def taken(self) -> Iterator[RowBlock]:
        """All blocks. Removes the file at the end. Raises OutputError."""
        try:
            with open(self.path, "rb") as file:
                for _ in range(self.blocks):
                    yield RowBlock(numpy.load(file), Packed(numpy.load(file), numpy.load(file)))
            os.unlink(self.path)
        except OSError as error:
            raise OutputError(f"cannot read {self.path}: {reason(error)}", hint=HINT) from error
