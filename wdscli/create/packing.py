"""Files into one shard: the task behind ``create``.

What it is: :func:`pack`, a pure function of a :class:`PackTask`. How: small files are read whole and gathered
with their headers into large writes, middling ones are read into one buffer that is used again and again,
large ones go through in pieces, so that memory is bounded whatever is in the folder. Every file is asked for
one byte more than was planned: one that has shrunk or grown since is an error, never a broken tar, and the
shard never gets its name. It must not know how files were found, ordered or cut.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import accumulate
from operator import add
from typing import NamedTuple

from wdscli.create.files import (
    SEPARATOR,
    Files,
    Inline,
    Place,
    Remote,
    Stored,
    describe_place,
    numbers_of,
)
from wdscli.errors import DataError, InputError
from wdscli.executors import tick_of_task
from wdscli.model import ShardInfo, to_text
from wdscli.run.post_hook import run_post
from wdscli.samples import SampleBatch
from wdscli.shards.writing import ShardFile, ShardSettings
from wdscli.tar import padding
from wdscli.tar.template import header_maker

SMALL_BYTES = 1 << 15
"""Payloads up to this are read whole."""
PIECE_BYTES = 1 << 20
_GATHERED_BYTES = 1 << 16
_SAMPLES_TOGETHER = 1024
_FLAGS = os.O_RDONLY | os.O_CLOEXEC

Advance = Callable[[int], object]
_Elsewhere = bytes | Stored | Remote


class PackTask(NamedTuple):
    """One shard: where it goes, how, and its members, as numbers of ``files`` in order; ``firsts`` are the samples'
    first members and, at the end, the number of members."""

    address: str
    settings: ShardSettings
    files: Files
    members: array[int]
    firsts: array[int]
    post: str | None = None
    """The command that is run for the shard once it has its name."""

    def portable(self) -> PackTask:
        """The same with no files but its own, for another process."""
        files = self.files.part(self.members)
        return self._replace(files=files, members=numbers_of(range(len(files)), len(files)))


def pack(task: PackTask) -> ShardInfo:
    """Write the shard. Raises InputError, DataError ``changed-while-read``, OutputError, and EngineError when the
    command that follows fails."""
    return run_post(task.post, task.address, _packed(task, tick_of_task()))


def _packed(task: PackTask, advance: Advance) -> ShardInfo:
    with task.settings.open(task.address) as shard:
        packer = _Packer(shard, task)
        for first in range(0, len(task.firsts) - 1, _SAMPLES_TOGETHER):
            done = packer.pack(first, min(first + _SAMPLES_TOGETHER, len(task.firsts) - 1))
            advance(done)
        done = shard.position
        info = shard.commit()
        advance(info.size_bytes - done)
        return info


class _Packer:
    """The state of one shard while it is filled."""

    def __init__(self, shard: ShardFile, task: PackTask) -> None:
        self._shard = shard
        self._task = task
        self._header = header_maker(task.settings.form)
        self._buffer = bytearray(0)

    def pack(self, first: int, end: int) -> int:
        """Samples ``first`` to ``end``; the bytes they take."""
        task, shard = self._task, self._shard
        firsts = task.firsts[first : end + 1].tolist()
        members = task.members[firsts[0] : firsts[-1]].tolist()
        rows, sizes = task.files.rows(members), list(map(task.files.size, members))
        names = [row.replace(SEPARATOR, b".") for row in rows]
        headers = list(map(self._header, names, sizes))
        begin = shard.position
        self._write(headers, sizes, map(task.files.place, members))
        shard.announce(_batch(first, [at - firsts[0] for at in firsts], rows, sizes, begin, headers))
        return shard.position - begin

    def _write(self, headers: list[bytes], sizes: list[int], places: Iterable[Place]) -> None:
        """Headers, payloads and padding."""
        parts: list[bytes] = []
        put = parts.append
        gathered = 0
        opened, read, close = os.open, os.read, os.close
        for header, size, place in zip(headers, sizes, places):
            if size > SMALL_BYTES and not isinstance(place, Inline):
                self._shard.write_blocks(b"".join(parts))
                parts.clear()
                gathered = 0
                self._write_large(header, size, place)
                continue
            if type(place) is bytes:
                try:
                    descriptor = opened(place, _FLAGS)
                    try:
                        payload = read(descriptor, size + 1)
                    finally:
                        close(descriptor)
                except OSError as error:
                    raise _cannot_read(place, error) from None
                if len(payload) != size:
                    # It has changed, or the kernel is slow: some file systems give less than they are asked for.
                    payload = _payload(place, size)
            else:
                payload = _payload(place, size)
            put(header)
            put(payload)
            if size & 511:
                put(padding(size))
            gathered += size + 1024
            if gathered >= _GATHERED_BYTES:
                self._shard.write_blocks(b"".join(parts))
                parts.clear()
                gathered = 0
        self._shard.write_blocks(b"".join(parts))

    def _write_large(self, header: bytes, size: int, place: _Elsewhere) -> None:
        """A member whose payload goes through the buffer, in pieces if it must."""
        if not self._buffer:
            self._buffer = bytearray(PIECE_BYTES)
        shard = self._shard
        shard.write_blocks(header)
        for piece in _pieces(place, size, memoryview(self._buffer)):
            shard.write_blocks(piece)
            shard.flush()
        shard.write_blocks(padding(size))


def _batch(
    index: int, firsts: list[int], rows: list[bytes], sizes: list[int], begin: int, headers: list[bytes]
) -> SampleBatch:
    """The samples as the index of the shard has them."""
    keys = [rows[at][: rows[at].find(SEPARATOR)] for at in firsts[:-1]]
    fields = [row[row.find(SEPARATOR) + 1 :] for row in rows]
    lengths = list(map(len, headers))
    spans = [length + (size + 511 & -512) for length, size in zip(lengths, sizes)]
    starts = list(accumulate(spans[:-1], initial=begin))
    offsets = list(map(add, starts, lengths))
    flags, marks = [0] * len(rows), [0] * len(keys)
    return SampleBatch(index, keys, firsts, fields, starts, offsets, sizes, flags, marks)


def _pieces(place: _Elsewhere, size: int, buffer: memoryview) -> Iterator[memoryview]:
    """A payload in pieces, one after the other in ``buffer``. Raises InputError, DataError ``changed-while-read``."""
    done = 0
    with ExitStack() as stack:
        read = _opened(place, size, stack)
        # One byte more than planned shows whether the file has grown.
        while count := read(buffer[: size + 1 - done], done):
            done += count
            if done > size:
                raise changed(place, size, done)
            yield buffer[:count]
    if done < size:
        raise changed(place, size, done)


def _opened(place: _Elsewhere, size: int, stack: ExitStack) -> Callable[[memoryview, int], int]:
    """A function that reads into a buffer what lies from some byte of a payload on: one byte at least, or it is the
    end. ``stack`` closes what it reads from."""
    if isinstance(place, Remote):
        from wdscli.storage import open_source

        source = stack.enter_context(open_source(place.address, decompress=False))

        def read_source(view: memoryview, at: int) -> int:
            data = source.read_some(at, len(view))
            view[: len(data)] = data
            return len(data)

        return read_source
    # Behind a payload in the scratch file lies the next one.
    path, first, end = (place.path, place.offset, size) if isinstance(place, Stored) else (place, 0, size + 1)

    def read_file(view: memoryview, at: int) -> int:
        try:
            return os.preadv(descriptor, [view[: end - at]], first + at)
        except OSError as error:
            raise _cannot_read(place, error) from None

    try:
        descriptor = os.open(path, _FLAGS)
    except OSError as error:
        raise _cannot_read(place, error) from None
    stack.callback(os.close, descriptor)
    return read_file


def _payload(place: Place, size: int) -> bytes:
    """A small payload that is in no file of its own."""
    if isinstance(place, Inline):
        return place.payload
    return b"".join(map(bytes, _pieces(place, size, memoryview(bytearray(size + 1)))))


def changed(place: Place, planned: int, found: int) -> DataError:
    """The error of a file that is not as long as it was when the shards were planned."""
    how = "grew" if found > planned else "shrank"
    count = f"more than {planned}" if found > planned else str(found)
    return DataError(
        f"{describe_place(place)} {how} while it was read: {count} bytes where {planned} were planned",
        code="changed-while-read",
        hint="run the command again once nothing writes to it",
    )


def _cannot_read(place: Place, error: OSError) -> InputError:
    if isinstance(place, bytes):
        reason = (error.strerror or str(error)).lower()
        return InputError(f"cannot read {to_text(place)}: {reason}", cause=error)
    return InputError(f"cannot read {describe_place(place)}: {error}", cause=error)
