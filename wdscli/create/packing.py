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
from collections.abc import Callable, Iterable
from itertools import accumulate, pairwise
from typing import NamedTuple

from wdscli.create.columns import (
    SEPARATOR,
    Files,
    Inline,
    Place,
    Remote,
    Stored,
    describe_place,
    numbers_of,
)
from wdscli.errors import DataError, InputError, WdsError
from wdscli.executors import tick_of_task
from wdscli.model import ShardInfo, to_text
from wdscli.run.post_hook import run_post
from wdscli.samples import SampleBatch
from wdscli.shards.output import ShardSettings
from wdscli.shards.shardfile import ShardFile
from wdscli.tar import padding
from wdscli.tar.template import header_maker

SMALL = 1 << 15
PIECE = 1 << 20
_GATHER = 1 << 16
_SAMPLES_AT_ONCE = 1024
_FLAGS = os.O_RDONLY | os.O_CLOEXEC

Advance = Callable[[int], object]


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
        for first in range(0, len(task.firsts) - 1, _SAMPLES_AT_ONCE):
            done = packer.pack(first, min(first + _SAMPLES_AT_ONCE, len(task.firsts) - 1))
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

    def _put(self, data: bytes | memoryview) -> None:
        """Tar bytes of samples that the index is told of when they are through."""
        self._shard.write_blocks(data)

    def _write(self, headers: list[bytes], sizes: list[int], places: Iterable[Place]) -> None:
        """Headers, payloads and padding."""
        parts: list[bytes] = []
        put = parts.append
        gathered = 0
        opened, read, close = os.open, os.read, os.close
        for header, size, place in zip(headers, sizes, places):
            if size > SMALL and not isinstance(place, Inline):
                self._put(b"".join(parts))
                parts.clear()
                gathered = 0
                self._write_large(header, size, place)
                continue
            if type(place) is bytes:
                try:
                    descriptor = opened(place, _FLAGS)
                    try:
                        payload = read(descriptor, size + 1)
                        if len(payload) != size:
                            payload = _read_rest(descriptor, payload, size, place)
                    finally:
                        close(descriptor)
                except OSError as error:
                    raise _cannot_read(place, error) from None
            else:
                payload = _payload(place, size)
            put(header)
            put(payload)
            if size & 511:
                put(padding(size))
            gathered += size + 1024
            if gathered >= _GATHER:
                self._put(b"".join(parts))
                parts.clear()
                gathered = 0
        self._put(b"".join(parts))

    def _write_large(self, header: bytes, size: int, place: Place) -> None:
        """A member whose payload goes through the buffer, in pieces if it must."""
        if not self._buffer:
            self._buffer = bytearray(PIECE)
        shard = self._shard
        self._put(header)
        view = memoryview(self._buffer)
        with _Pieces(place, size) as pieces:
            left = size
            while left:
                # One byte more than planned shows whether the file has grown.
                count = pieces.read_into(view[: min(left + 1, PIECE)])
                if count == 0 or count > left:
                    raise changed(place, size, size - left + count)
                self._put(view[:count])
                shard.flush()
                left -= count
            if pieces.read_into(view[:1]):
                raise changed(place, size, size + 1)
        self._put(padding(size))


def _batch(
    index: int, firsts: list[int], rows: list[bytes], sizes: list[int], begin: int, headers: list[bytes]
) -> SampleBatch:
    """The samples as the index of the shard has them."""
    keys, fields = _split_rows(rows, firsts)
    starts, offsets = _positions(begin, headers, sizes)
    flags, marks = [0] * len(rows), [0] * (len(firsts) - 1)
    return SampleBatch(index, keys, firsts, fields, starts, offsets, sizes, flags, marks)


def _split_rows(rows: list[bytes], firsts: list[int]) -> tuple[list[bytes], list[bytes]]:
    """The key of each sample and the field of each member."""
    keys: list[bytes] = []
    fields: list[bytes] = []
    for at, end in pairwise(firsts):
        row = rows[at]
        cut = row.find(SEPARATOR)
        keys.append(row[:cut])
        cut += 1
        if end - at == 1:
            fields.append(row[cut:])
        else:
            fields += [row[cut:] for row in rows[at:end]]
    return keys, fields


def _positions(begin: int, headers: list[bytes], sizes: list[int]) -> tuple[list[int], list[int]]:
    """The byte of each member's first header block, and of its payload."""
    lengths = list(map(len, headers))
    if max(lengths) == 512:
        # One block of header and the padded payload, in one sum.
        starts = list(accumulate([size + 1023 & -512 for size in sizes], initial=begin))
        starts.pop()
        return starts, [start + 512 for start in starts]
    spans = [length + (size + 511 & -512) for length, size in zip(lengths, sizes)]
    starts = list(accumulate(spans, initial=begin))
    starts.pop()
    return starts, [start + length for start, length in zip(starts, lengths)]


def _read_rest(descriptor: int, data: bytes, size: int, place: Place) -> bytes:
    """After a read that gave another number of bytes than planned: the rest, if the kernel was only slow."""
    while 0 < len(data) < size:
        more = os.read(descriptor, size + 1 - len(data))
        if not more:
            break
        data += more
    if len(data) != size or os.read(descriptor, 1):
        raise changed(place, size, len(data))
    return data


class _Pieces:
    """A payload that is read piece by piece."""

    def __init__(self, place: Place, size: int) -> None:
        self._place = place
        self._descriptor = -1
        self._offset = 0
        self._end: int | None = None
        try:
            if isinstance(place, Remote):
                from wdscli.storage import open_source

                self._source = open_source(place.address, decompress=False)
            elif isinstance(place, Stored):
                self._descriptor = os.open(place.path, _FLAGS)
                self._offset = place.offset
                self._end = place.offset + size
            elif isinstance(place, bytes):
                self._descriptor = os.open(place, _FLAGS)
        except WdsError:
            raise
        except OSError as error:
            raise _cannot_read(place, error) from None

    def read_into(self, view: memoryview) -> int:
        """At least one byte into ``view``; 0 at the end."""
        if self._end is not None:
            # Behind this payload in the scratch file lies the next one.
            view = view[: self._end - self._offset]
        if self._descriptor < 0:
            data = self._source.read_some(self._offset, len(view))
            count = len(data)
            view[:count] = data
        else:
            try:
                count = os.preadv(self._descriptor, [view], self._offset)
            except OSError as error:
                raise _cannot_read(self._place, error) from None
        self._offset += count
        return count

    def __enter__(self) -> _Pieces:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        else:
            self._source.close()


def _payload(place: Place, size: int) -> bytes:
    """A small payload that is in no file of its own."""
    if isinstance(place, Inline):
        return place.payload
    with _Pieces(place, size) as pieces:
        buffer = bytearray(size + 1)
        view = memoryview(buffer)
        have = 0
        while have <= size and (count := pieces.read_into(view[have:])):
            have += count
    if have != size:
        raise changed(place, size, have)
    return bytes(view[:size])


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
