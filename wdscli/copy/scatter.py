"""The first pass of ``spill``: one chunk of the input, written anew in another order.

What it is: a task, :func:`scatter`. How: small samples are loaded by long reads and written by long writes, of slices
of what was loaded; large ones are copied range by range, on one machine by the kernel. It must not know what the order
is for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from wdscli.copy.spilled import LARGE
from wdscli.errors import DataError, InputError, OutputError, WdsError
from wdscli.executors import tick_of_task
from wdscli.plan.inputs import Input, Inputs, pieces_of
from wdscli.plan.scratch import HINT
from wdscli.plan.table import PlanTable
from wdscli.storage import Sink, Source, open_sink
from wdscli.storage.local import reason, write_all

if TYPE_CHECKING:
    from wdscli.plan.table import I64, U64

LOADED = -1
_AT_ONCE = 1 << 20
_TOGETHER = 512
"""Slices that one call writes; the kernel takes twice as many."""
_FAR = 8 << 20
_IN_KERNEL = 1 << 30
_BLOCK = 1 << 14
"""So many samples are Python's own numbers at a time."""
_GAP = 1 << 14
"""What lies between two samples that are loaded is read too, when it is less than this and less than they are."""


class Destination(NamedTuple):
    """Where a part of a chunk goes: samples ``first`` to ``end`` of the order, to byte ``begin`` of a file that other
    tasks write to as well, or, when that is -1, as an object of its own."""

    address: str
    begin: int
    first: int
    end: int


class ScatterTask(NamedTuple):
    """One chunk: the samples in input order, the order in which they are written, and where to. ``loads`` is whether
    samples that are not large are loaded first."""

    inputs: dict[int, Input]
    samples: PlanTable
    order: I64
    destinations: Sequence[Destination]
    loads: bool


def scatter(task: ScatterTask) -> int:
    """Write one chunk; returns its bytes. May run twice. Raises InputError, DataError, OutputError."""
    with Inputs(task.inputs, later=True) as inputs:
        chunk = _Chunk(task, inputs)
        for part in task.destinations:
            rows = task.order[part.first : part.end]
            if part.begin < 0:
                with open_sink(part.address, force=True) as sink:
                    chunk.write(rows, _Object(sink))
            else:
                _write_stretch(part, chunk, rows)
        inputs.confirm()
    return int(task.samples.lengths.sum())


def _write_stretch(part: Destination, chunk: _Chunk, rows: I64) -> None:
    try:
        descriptor = os.open(part.address, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.lseek(descriptor, part.begin, os.SEEK_SET)
            chunk.write(rows, _Stretch(descriptor))
        finally:
            os.close(descriptor)
    except WdsError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write {part.address}: {reason(error)}", hint=HINT) from error


class _Object:
    """Where a chunk goes that is an object of its own."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        self._sink.write(b"".join(parts))

    def copy(self, source: Source, start: int, length: int) -> None:
        for piece in pieces_of(source, start, length):
            self._sink.write(piece)


class _Stretch:
    """Where a chunk goes that is a part of a file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_one_system = hasattr(os, "copy_file_range")
        self._in_kernel = True

    def write(self, parts: Sequence[bytes | memoryview]) -> None:
        for first in range(0, len(parts), _TOGETHER):
            some = parts[first : first + _TOGETHER]
            done = os.writev(self._descriptor, some)
            if done < sum(map(len, some)):
                write_all(self._descriptor, b"".join(some)[done:])

    def copy(self, source: Source, start: int, length: int) -> None:
        end = start + length
        if source.fd is not None and self._in_kernel:
            start = self._copied(source.fd, start, end)
        for piece in pieces_of(source, start, end - start):
            write_all(self._descriptor, piece)

    def _copied(self, descriptor: int, start: int, end: int) -> int:
        """Where the copy by the kernel ended: some file systems and pairs of them cannot."""
        while start < end and self._in_kernel:
            size = min(end - start, _IN_KERNEL)
            try:
                if self._is_one_system:
                    done = os.copy_file_range(descriptor, self._descriptor, size, start)
                else:
                    done = os.sendfile(self._descriptor, descriptor, start, size)
            except OSError:
                self._in_kernel, self._is_one_system = self._is_one_system, False
                continue
            if not done:
                return start
            start += done
        return start


class _Chunk:
    """The samples of one task, and how they are read."""

    def __init__(self, task: ScatterTask, inputs: Inputs) -> None:
        self._task = task
        self._inputs = inputs
        self._tick = tick_of_task()
        self._files, self._starts, self._loaded = self._load()

    def write(self, rows: I64, out: _Object | _Stretch) -> None:
        """Some samples to ``out``, in the order that is wanted."""
        loaded = self._loaded
        parts: list[memoryview] = []
        held = 0
        lengths = self._task.samples.lengths
        for file, start, length in _runs(self._files[rows], self._starts[rows], lengths[rows]):
            if file == LOADED:
                parts.append(loaded[start : start + length])
                held += length
                if held < _AT_ONCE:
                    continue
            if parts:
                out.write(parts)
                self._tick(held)
                parts, held = [], 0
            if file != LOADED:
                self._copy(out, file, start, length)
                self._tick(length)
        if parts:
            out.write(parts)
            self._tick(held)

    def _copy(self, out: _Object | _Stretch, file: int, start: int, length: int) -> None:
        try:
            out.copy(self._inputs[file], start, length)
        except DataError as error:
            raise self._changed(file, start) from error

    def _load(self) -> tuple[I64, U64, memoryview]:
        """Where each sample is now: its input or :data:`LOADED`, and the byte there; and the bytes that were loaded."""
        import numpy

        samples = self._task.samples
        files = samples.shards.astype(numpy.int64)
        starts = samples.starts.copy()
        small = samples.lengths <= LARGE if self._task.loads else numpy.zeros(samples.total, dtype=bool)
        rows = numpy.flatnonzero(small)
        if not len(rows):
            self._announce(files, starts)
            return files, starts, memoryview(b"")
        places, ranges, size = _side_by_side(files[rows], starts[rows], samples.lengths[rows])
        # Unlike a bytearray, it is not filled with zeros first.
        space: Any = numpy.empty(size, dtype=numpy.uint8)
        loaded = memoryview(space)
        for file, start, at, end in ranges:
            self._read(file, start, loaded[at:end])
        files[rows], starts[rows] = LOADED, places
        return files, starts, loaded

    def _announce(self, files: I64, starts: U64) -> None:
        """Tell the kernel what will be read, in the order in which it lies there."""
        if not hasattr(os, "posix_fadvise"):
            return
        for file, start, length in _runs(files, starts, self._task.samples.lengths):
            descriptor = self._inputs[file].fd
            if descriptor is not None:
                os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_WILLNEED)

    def _read(self, file: int, start: int, view: memoryview) -> None:
        source = self._inputs[file]
        done = 0
        while done < len(view):
            if source.fd is not None:
                try:
                    count = os.preadv(source.fd, [view[done:]], start + done)
                except OSError as error:
                    raise InputError(f"cannot read {source.name}: {reason(error)}") from error
            else:
                data = source.read_at(start + done, min(_FAR, len(view) - done))
                count = len(data)
                view[done : done + count] = data
            if not count:
                raise self._changed(file, start + done)
            done += count

    def _changed(self, file: int, offset: int) -> DataError:
        return DataError(
            "the shard ends before the samples that were planned",
            code="changed",
            shard=self._task.inputs[file].address,
            offset=offset,
            hint="the shard was changed meanwhile, or its index is stale: make it again with `wds index`",
        )


def _side_by_side(files: I64, starts: U64, lengths: U64) -> tuple[U64, list[tuple[int, int, int, int]], int]:
    """Where each sample lies when ranges are read one after the other; the ranges, as (input, first byte, first and
    last place in memory); and the size of it all."""
    import numpy

    ends = starts + lengths
    gaps: U64 = numpy.zeros(len(starts), dtype=numpy.uint64)
    near = (files[1:] == files[:-1]) & (starts[1:] >= ends[:-1])
    between = numpy.where(near, starts[1:] - ends[:-1], 0)
    near &= between <= numpy.minimum(lengths[1:], numpy.uint64(_GAP))
    gaps[1:][near] = between[near]
    upto = numpy.cumsum(lengths + gaps)
    places = upto - lengths
    firsts = numpy.concatenate(([0], numpy.flatnonzero(~near) + 1))
    lasts: I64 = numpy.append(firsts[1:], len(starts)) - 1
    ranges = zip(
        files[firsts].tolist(),
        starts[firsts].tolist(),
        places[firsts].tolist(),
        upto[lasts].tolist(),
        strict=True,
    )
    return places, list(ranges), int(upto[-1])


def _runs(files: I64, starts: U64, lengths: U64) -> Iterator[tuple[int, int, int]]:
    """(file, start, length) of the samples in their order, those that adjoin made one."""
    for first in range(0, len(files), _BLOCK):
        part = slice(first, first + _BLOCK)
        yield from _runs_of(files[part], starts[part], lengths[part])


def _runs_of(files: I64, starts: U64, lengths: U64) -> Iterator[tuple[int, int, int]]:
    import numpy

    ends = starts + lengths
    breaks = (files[1:] != files[:-1]) | (starts[1:] != ends[:-1])
    firsts = numpy.concatenate(([0], numpy.flatnonzero(breaks) + 1))
    lasts: I64 = numpy.append(firsts[1:], len(starts)) - 1
    begins = starts[firsts]
    return zip(files[firsts].tolist(), begins.tolist(), (ends[lasts] - begins).tolist(), strict=True)
