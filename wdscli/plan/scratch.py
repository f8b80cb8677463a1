"""This module has scratch space: a folder that is removed when its block ends, and the copies in it.

:class:`Scratch` is the folder, on this machine or on an object store. :func:`spool` copies an input that can be read
only once. :func:`hold_remote_shards` copies remote shards that several steps read. :class:`StoredRows` stores rows of
one survey that do not fit in a worker's memory. :class:`Objects` reads spilled samples from an object store. This
module does not know the purpose of the bytes.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import NamedTuple

from wdscli.arrays import numpy
from wdscli.errors import DataError, OutputError, StorageError, UsageError, WdsError, failing
from wdscli.executors import tick_of_task
from wdscli.plan.table import PackedValues, RowBlock
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
from wdscli.storage.cache import hold
from wdscli.storage.compressed import identify
from wdscli.storage.ends import PIECE_BYTES
from wdscli.storage.local import reason, write_all
from wdscli.storage.opening import is_one_request
from wdscli.storage.retry import held_in
from wdscli.storage.scatter import REQUEST_BYTES
from wdscli.tar import Scanner
from wdscli.tar.header import BLOCK
from wdscli.tar.reader import is_dense
from wdscli.tar.scan import MAX_ZEROS_BYTES, endless

PART_BITS = 44
"""How many bits of a place are for the byte offset in the part. The bits above them are the part's number."""
HINT = "choose a folder with more free space: --tmp DIR, or the variable TMPDIR"


class ScratchPass(NamedTuple):
    """The scratch space of a first pass. ``prefix`` is the common beginning of the addresses of its parts."""

    prefix: str
    is_local: bool

    def part(self, number: int) -> str:
        """The address of one part."""
        return f"{self.prefix}-{number}"


class Scratch:
    """A temporary folder in ``parent`` (an address; default: TMPDIR). It is a context manager. The first write creates
    the folder, and the end of the block removes it with its contents."""

    def __init__(self, parent: str | None = None) -> None:
        if parent is None:
            from tempfile import gettempdir

            parent = gettempdir()
        if is_stream(parent):
            raise UsageError(f"{parent} is not a folder", hint="--tmp DIR, or a URL")
        self.parent = parent
        self.is_local = is_local(parent)
        base = os.path.abspath(local_path(parent)) if self.is_local else parent.rstrip("/")
        self.folder = f"{base.rstrip('/')}/wds-{os.urandom(8).hex()}"
        self._spaces = 0
        self._local: Scratch | None = None

    def place(self, number: int) -> str:
        """The address for the copy of input ``number``."""
        return f"{self.folder}/{number}.tar"

    def space(self) -> ScratchPass:
        """Return a new space for spilled samples. Raises OutputError."""
        self._spaces += 1
        if self.is_local:
            self._make()
        return ScratchPass(f"{self.folder}/spill-{self._spaces}", self.is_local)

    def path_of(self, name: str) -> str:
        """Return the local path of a file in the folder. The writer must create the folder."""
        if not self.is_local:
            self._local = self._local or Scratch()
            return self._local.path_of(name)
        return f"{self.folder}/{name}"

    def _make(self) -> None:
        with failing(f"make {self.folder}", HINT), suppress(FileExistsError):
            os.mkdir(self.folder, 0o700)

    def free_bytes(self) -> int | None:
        """Return the free bytes, or None if the store does not report them. Raises OutputError if the folder does not
        exist."""
        if not self.is_local:
            return None
        from shutil import disk_usage

        folder = os.path.dirname(self.folder)
        with failing(f"use {folder} as scratch space", HINT):
            return disk_usage(folder).free

    def close(self) -> None:
        """Remove the folder. This never raises, because remaining files do no harm."""
        if self._local is not None:
            self._local.close()
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
    """The disc space for copies of remote inputs. The disc of ``folder`` had ``free_bytes`` of free space at the
    beginning, and copies may use half of it. An empty ``folder`` means no space. ``takes_most`` says that most bytes of
    each shard are needed later. A shard of at most ``share_bytes`` may then be copied even if it has an index. But if
    ``may_move`` is true, the store may copy an indexed shard to the output, so it is not copied here."""

    folder: str = ""
    free_bytes: int = 0
    takes_most: bool = False
    share_bytes: int = 0
    may_move: bool = False

    def holds(self, size: int | None, *, like_all: bool = False) -> bool:
        """Return whether a shard of this size fits. With ``like_all``, return whether it fits if all other shards have
        its size."""
        if not self.folder or size is None or (like_all and size > self.share_bytes):
            return False
        from shutil import disk_usage

        return disk_usage(self.folder).free - size >= self.free_bytes // 2

    def copies_like(self, size: int | None) -> bool:
        """Return whether copying a shard of this size probably pays, even if the shard has an index. A shard of unknown
        size (None) counts as slightly larger than one request."""
        return self.share_bytes > (REQUEST_BYTES if size is None else size - 1)

    def takes_all(self, size: int) -> bool:
        """Return whether a shard of this size is always copied, with or without an index."""
        return not self.may_move and self.holds(size, like_all=True)


NO_ROOM = Room()


def folder_of_scratch(scratch: Scratch | None) -> str | None:
    """Return the local folder for scratch files without a name. It is the parent of ``scratch`` if that is local;
    otherwise None, which means TMPDIR."""
    return os.path.abspath(local_path(scratch.parent)) if scratch is not None and scratch.is_local else None


def spool(source: Source, path: str, *, cut: Callable[[DataError], None] | None = None) -> None:
    """Copy an unread source to a new file. If a compressed stream breaks off, ``cut`` is called with the error, and the
    bytes before the break are kept. Raises InputError, DataError, OutputError."""
    if source.seekable and source.size is not None:
        source.expect([(0, source.size)])
    if not is_local(path):
        with open_sink(path) as sink:
            for data in pieces_to_end(source, cut):
                sink.write(data)
        return
    with failing(f"copy {source.name} to {path}", HINT):
        with suppress(FileExistsError):
            os.mkdir(os.path.dirname(path), 0o700)
        _check_room(source, path)
        with open(path, "xb", buffering=0) as file:
            for data in pieces_to_end(source, cut):
                write_all(file.fileno(), data)


@contextmanager
def hold_remote_shards(
    addresses: Iterable[str], scratch: Scratch, progress: Progress, *, whole: bool = False
) -> Iterator[None]:
    """Copy some remote shards to local files, and read them from there in the block and in tasks that begin in it. So
    several steps download each shard only once. A shard is copied if its headers cannot be read without most of its
    bytes. With ``whole``, every shard is copied. The copies use at most half of the free space."""
    remote = [
        address for address in dict.fromkeys(addresses) if not is_local(address) and not is_stream(address)
    ]
    if not remote or not scratch.is_local:
        yield
        return
    room = Room(os.path.dirname(scratch.folder), scratch.free_bytes() or 0)
    folder = scratch.path_of("held")
    stage = ShardStage(progress, "copying", remote)
    for address in remote:
        # Skip an unreadable shard: the next reader reports it.
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
    """Yield all bytes of a shard that can be read only once. ``cut`` is the same as in :func:`spool`. An endless stream
    must not fill the disc. So a stream of only zeros raises InputError, and a stream that is not a tar raises
    DataError. With ``cut``, there is no DataError, because members may follow damage."""
    offset, blank = 0, True
    # Progress counts bytes of the file. A compressed file has other bytes than its tar.
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
    """If a source of known size does not fit on the disc, raise OSError before copying."""
    if source.size is None:
        return
    from shutil import disk_usage

    free = disk_usage(os.path.dirname(path)).free
    if free < source.size:
        raise OSError(errno.ENOSPC, f"{source.size} bytes do not fit in {free} free bytes")


class StoredRows:
    """Blocks of rows in a local file. A worker sends this object to the planning process, so it is picklable."""

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
        """Yield all blocks, then remove the file. Raises OutputError."""
        try:
            with open(self.path, "rb") as file:
                for _ in range(self.blocks):
                    yield RowBlock(numpy.load(file), PackedValues(numpy.load(file), numpy.load(file)))
            os.unlink(self.path)
        except OSError as error:
            raise OutputError(f"cannot read {self.path}: {reason(error)}", hint=HINT) from error
