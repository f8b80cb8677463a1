"""This module is the ``spill`` strategy. It has two passes through scratch space, and both read long ranges.

The output is divided into buckets, and the input into chunks. The first pass, :func:`spill`, reads the input chunk by
chunk and adds each sample to its bucket (:func:`scatter`). The second pass makes the output bucket by bucket. Its tasks
are the tasks of ``gather``, but they read the places in :class:`SpilledRows`, by a :class:`Reading`.

A bucket fits in the page cache, so on a local disc both passes copy ranges of files. The file of a bucket is removed
when its samples are written. On an object store, a chunk becomes one object, in the order of the buckets.

The place of each sample is computed beforehand, from lengths alone. So scratch space needs no index, and no header is
parsed. A task that runs twice writes the same bytes to the same places. The small samples of a chunk are read and
written together. Large samples are copied range by range; on one machine the kernel copies them. The second pass reads
the samples of a bucket in any order, so it announces the whole bucket before the first sample.

A place has the number of a part in its upper bits, and a byte offset in that part in its lower bits. A sample with a
pax global header is not spilled, because it cannot be read without the headers before it.

This module does not know the order of the output samples.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from itertools import chain, pairwise
from typing import Any, NamedTuple

from wdscli.arrays import I64, U64, Mask, blocks_of, edges, numpy, runs
from wdscli.errors import DataError, OutputError, WdsError
from wdscli.executors import run_tasks, tick_of_task, workers_of
from wdscli.plan.cut import PlannedShard
from wdscli.plan.inputs import Input, Inputs
from wdscli.plan.plan import ReorderPlan
from wdscli.plan.scratch import HINT, PART_BITS, Scratch, ScratchPass
from wdscli.plan.strategy import Limits
from wdscli.plan.table import MISSING_SHARD, OrderedSamples, PlanTable, in_turn
from wdscli.progress import Progress
from wdscli.shards.view_shards import changed_shard
from wdscli.storage import Source, open_sink, open_source, remove
from wdscli.storage.ends import EndsEarly, pieces_of
from wdscli.storage.local import HeldSource, reason, will_need, write_all
from wdscli.storage.opening import open_pinned
from wdscli.storage.scatter import Ranges, descriptors_of, load
from wdscli.tar import GLOBAL
from wdscli.units import human_size

ROWS_PER_CHUNK = 1 << 17
"""The most samples in a chunk, because their rows are sent with the task."""
ROWS_PER_BUCKET = 1 << 19
"""The most samples in a bucket."""
BYTES_PER_ROW = 256
"""The bytes of memory that a task needs for each sample of a chunk, besides the sample's own bytes."""
FEWEST_BUCKETS = 16
LEAST_BUCKET_BYTES = 32 << 20
"""The smallest size of a bucket. There are at least :data:`FEWEST_BUCKETS`, so that scratch space is freed
gradually."""
WORTH_LOADING_BYTES = 8 << 20
PAGE_BYTES = 1 << 12
"""Chunks begin at multiples of this, so that two tasks never write to the same page of a file."""
SMALL_SAMPLE_BYTES = 64 << 10
"""If samples are smaller than this on average, it is faster to read and write them together than to copy each."""
GAP_BYTES = 1 << 14
"""A gap between two loaded samples is also read if it is at most this, and at most the size of the next sample."""
STRETCH_GAP_BYTES = 1 << 16
"""Two stretches of spilled samples are read together if the gap between them is smaller than this."""
SPILLED = 1 << 32
"""Among the inputs of a task, numbers of at least this value are parts of scratch space. No shard has such a number."""
IN_MEMORY = 1 << 33
"""Numbers of at least this value are stretches of scratch space that were loaded into memory."""
ELSEWHERE = (1 << 64) - 1
"""The place of a sample that was not spilled. Such a sample is read from its input."""
LARGE_SAMPLE_BYTES = 1 << 20
"""A larger sample is read separately, in pieces."""
LARGE_STORED_BYTES = 1 << 24
"""The same if scratch space is on an object store, where each piece costs a request."""
MOST_STORED_BYTES = 256 << 20
"""The size limit of a chunk on an object store without ``--memory``."""
CLIENT_BYTES = 144 << 20
"""The memory that the client of an object store takes."""
SENDING_BYTES = 96 << 20
"""The memory that uploads of output shards take."""
LOADED = -1
"""The input number of a sample that was loaded into memory."""
WRITE_BYTES = 1 << 20
KERNEL_COPY_BYTES = 1 << 30
ROWS_AT_ONCE = 1 << 14
"""How many samples are Python numbers, not arrays, at the same time."""


class SpillSizes(NamedTuple):
    """The sizes of chunks and buckets, in bytes; ``chunk_rows`` is in samples. ``loaded`` says whether a chunk is
    loaded into memory, except samples larger than ``large``. ``hold`` is the size of the largest bucket that is loaded
    as a whole."""

    chunk: int
    chunk_rows: int
    bucket: int
    loaded: bool
    hold: int = 0
    large: int = LARGE_SAMPLE_BYTES


def spill(
    plan: ReorderPlan,
    shards: Sequence[PlannedShard],
    executor: Executor,
    scratch: Scratch,
    limits: Limits,
    progress: Progress,
) -> SpillLayout:
    """Write the samples of ``shards``, some of the planned shards, to ``scratch``. Raises InputError, DataError and
    OutputError. If the disc has too little space, OutputError is raised before any write."""
    lists = plan.contents.row_lists
    total = sum(ordered.sum_of("length", shard.first, shard.end) for ordered in lists for shard in shards)
    check_room(scratch, total)
    space = scratch.space()
    # Joined samples are spilled part by part. Each part is a row.
    sizes = sizes_for(plan, space, limits, total, workers_of(executor))
    layout = SpillLayout(in_turn(lists), shards, space, sizes, len(lists))
    layout.tasks_run_once = space.is_local and plan.request.engine is None
    progress.start("spilling", total, "bytes")
    for _ in run_tasks(
        executor, scatter, layout.tasks(plan.contents.inputs), advance=progress.advance, amount=int
    ):
        pass
    progress.finish()
    return layout


def check_room(scratch: Scratch, needed: int) -> None:
    """Raise OutputError if scratch space is known to be too small."""
    free = scratch.free_bytes()
    if free is not None and free < needed:
        raise OutputError(
            f"spilling needs {human_size(needed)} of scratch space, but {scratch.parent} has {human_size(free)} free",
            hint=f"{HINT}; or use --strategy gather, which needs no scratch space",
        )


def sizes_for(plan: ReorderPlan, space: ScratchPass, limits: Limits, total: int, workers: int) -> SpillSizes:
    """Return the sizes for a plan. Remote samples and small samples are loaded into memory. Large local samples are
    copied from file to file through the page cache. On an object store, each bucket costs a request for each chunk, so
    both are as large as memory allows."""
    rows = max(1, plan.samples * len(plan.contents.row_lists))
    small = total < SMALL_SAMPLE_BYTES * rows and limits.task >= WORTH_LOADING_BYTES
    loaded = small or not space.is_local or not all(one.is_near for one in plan.contents.inputs)
    cache = max(LEAST_BUCKET_BYTES, min(limits.cache, total // FEWEST_BUCKETS))
    # Make so many chunks that all processes are busy until the end.
    chunk = max(LEAST_BUCKET_BYTES, min(limits.cache, total // (4 * workers)))
    sizes = SpillSizes(
        chunk=limits.task if loaded else chunk,
        chunk_rows=max(1 << 12, min(limits.task // BYTES_PER_ROW, ROWS_PER_CHUNK)),
        bucket=cache,
        loaded=loaded,
        hold=limits.task if small else 0,
    )
    if space.is_local:
        return sizes
    # A task may use three times limits.task. A chunk is sent from the memory that it was loaded into.
    room = 3 * limits.task - CLIENT_BYTES if limits.is_user_set else min(limits.cache, MOST_STORED_BYTES)
    chunk = _even_part(total, max(limits.task, room), workers)
    bucket = max(limits.task, room - SENDING_BYTES)
    return sizes._replace(chunk=chunk, bucket=bucket, large=LARGE_STORED_BYTES)


def _even_part(total: int, most: int, count: int = 1) -> int:
    """Return the size of parts that are equal, at most ``most`` and at least ``count``."""
    return -(-total // max(count, -(-total // most))) or 1


class SpillLayout:
    """The places of all samples, and the parts of scratch space that still exist. A sample has ``width`` rows of
    ``ordered``: one for each set of a join."""

    def __init__(
        self,
        ordered: OrderedSamples,
        shards: Sequence[PlannedShard],
        space: ScratchPass,
        sizes: SpillSizes,
        width: int = 1,
    ) -> None:
        self._ordered = ordered
        self._space = space
        self._sizes = sizes
        self._width = width
        self._is_wanted: Mask = numpy.zeros(ordered.total, dtype=bool)
        for shard in shards:
            self._is_wanted[shard.first * width : shard.end * width] = True
        # With buckets of one shard each, a task reads whole stretches and not many ranges of them.
        firsts = {0} if space.is_local else {0, *(shard.first * width for shard in shards)}
        bounds: I64 = numpy.asarray(list(self._bucket_bounds(sorted(firsts))), dtype=numpy.int64)
        # A bucket never begins inside a sample.
        self._bounds: I64 = numpy.unique(bounds // width * width)
        self._filled = [0] * len(self._bounds)
        self._gone = 0
        self._chunk_bytes: list[int] = []
        self.tasks_run_once = False
        """Whether a task may remove its parts: not if tasks are retried."""
        self._places: U64 = numpy.full(ordered.total, ELSEWHERE, dtype=numpy.uint64)

    def _bucket_bounds(self, firsts: Sequence[int]) -> Iterator[int]:
        """Yield the first row of each bucket in the output order. A bucket begins at each row of ``firsts``, and the
        buckets between have equal sizes. A sample belongs to the bucket that contains its first byte."""
        spans = pairwise([*firsts, self._ordered.total])
        for part in chain.from_iterable(blocks_of(end, ROWS_PER_BUCKET, first) for first, end in spans):
            lengths = self._ordered.column("length", part.start, part.stop)
            step = _even_part(int(lengths.sum()), self._sizes.bucket)
            yield part.start
            bucket = (numpy.cumsum(lengths) - lengths) // numpy.uint64(step)
            yield from (part.start + begin for begin, _ in runs(bucket) if begin)

    def tasks(self, inputs: Sequence[Input]) -> Iterator[ScatterTask]:
        """Yield the tasks of the first pass. After the last task, all places are known."""
        for number, (positions, samples) in enumerate(self._chunks()):
            buckets = numpy.searchsorted(self._bounds, positions, side="right") - 1
            order = numpy.argsort(buckets, kind="stable")
            ends = numpy.cumsum(samples.lengths[order])
            if self._space.is_local:
                stretches = self._added_to(buckets[order], ends)
            else:
                stretches = [Stretch(number, 0, 0, len(order))]
                self._chunk_bytes.append(int(ends[-1]))
            offsets = ends - samples.lengths[order]
            for part, begin, first, end in stretches:
                shift = (part << PART_BITS) + begin - int(offsets[first])
                self._places[positions[order[first:end]]] = offsets[first:end] + numpy.uint64(shift)
            used = {shard: inputs[shard] for shard in numpy.unique(samples.shards).tolist()}
            large = self._sizes.large if self._sizes.loaded else 0
            yield ScatterTask(used, samples, order, self._space, stretches, large)

    def _added_to(self, buckets: I64, ends: U64) -> list[Stretch]:
        """Return the stretches that a chunk adds to the files of its buckets. The chunk's samples are sorted by
        bucket."""
        stretches, before = [], 0
        for first, end in runs(buckets):
            bucket = int(buckets[first])
            stretches.append(Stretch(bucket, self._filled[bucket], first, end))
            size = int(ends[end - 1]) - before
            before += size
            self._filled[bucket] += size + PAGE_BYTES - 1 & -PAGE_BYTES
        return stretches

    def _chunks(self) -> Iterator[tuple[I64, PlanTable]]:
        """Yield chunks: samples that are spilled together, in input order. Each chunk has their places in the output
        order, and their rows."""
        for block, samples in self._in_input_order():
            wanted = self._is_wanted[block] & (samples.marks & GLOBAL == 0)
            wanted &= samples.shards != numpy.uint32(MISSING_SHARD)
            if not wanted.all():
                block, samples = block[wanted], samples.take(numpy.flatnonzero(wanted))
            lengths = samples.lengths
            # A large sample is not loaded into memory, even if its chunk is.
            counted = numpy.where(lengths > self._sizes.large, 0, lengths) if self._sizes.loaded else lengths
            chunk = (numpy.cumsum(counted) - counted) // numpy.uint64(self._sizes.chunk)
            for first, end in runs(chunk):
                yield block[first:end], samples.part(first, end)

    def _in_input_order(self) -> Iterator[tuple[I64, PlanTable]]:
        """Yield all samples in the order of the inputs, each with its place in the output order."""
        ordered = self._ordered
        rows = None if ordered.order is None else numpy.argsort(ordered.order, kind="stable")
        for part in blocks_of(ordered.total, self._sizes.chunk_rows):
            if ordered.order is None or rows is None:
                yield numpy.arange(part.start, part.stop), ordered.part(part.start, part.stop)
            else:
                block = rows[part]
                yield block, ordered.samples.take(ordered.order[block])

    def spilled(self, shard: PlannedShard) -> SpilledRows:
        """Return the places for the task that makes ``shard``."""
        first, end = shard.first * self._width, shard.end * self._width
        bounds = self._bounds[(self._bounds > first) & (self._bounds < end)] - first
        own: list[tuple[int, int]] = []
        if self.tasks_run_once:
            bucket = int(self._bounds.searchsorted(first))
            while bucket + 1 < len(self._bounds) and self._bounds[bucket + 1] <= end:
                if self._filled[bucket]:
                    own.append((bucket, int(self._bounds[bucket + 1]) - first))
                bucket += 1
        return SpilledRows(
            self._space,
            self._places[first:end],
            tuple(bounds.tolist()),
            tuple(own),
            self._sizes.hold,
            self._sizes.large,
            tuple(self._chunk_bytes),
        )

    def release(self, shard: PlannedShard) -> None:
        """Remove the parts that are not needed after ``shard`` and all earlier shards are made."""
        while self._space.is_local and self._gone + 1 < len(self._bounds):
            if self._bounds[self._gone + 1] > shard.end * self._width:
                break
            if self._filled[self._gone]:
                remove(self._space.part(self._gone))
            self._gone += 1


class Stretch(NamedTuple):
    """A piece of a chunk: the samples ``first`` to ``end - 1`` in the task's order. It is written from byte ``begin``
    of a part of scratch space. A local part has pieces of many tasks; a remote part has only this piece."""

    part: int
    begin: int
    first: int
    end: int


class ScatterTask(NamedTuple):
    """The task for one chunk: the samples in input order, the order in which they are written, and their places.
    Samples of at most ``loads`` bytes are loaded first."""

    inputs: dict[int, Input]
    samples: PlanTable
    order: I64
    space: ScratchPass
    stretches: Sequence[Stretch]
    loads: int


def scatter(task: ScatterTask) -> int:
    """Write one chunk, and return the number of bytes. The task may run twice. Raises InputError, DataError,
    OutputError."""
    with Inputs(task.inputs, later=True) as inputs:
        chunk = _Chunk(task, inputs)
        for stretch in task.stretches:
            address, rows = task.space.part(stretch.part), task.order[stretch.first : stretch.end]
            if task.space.is_local:
                _write_to_file(address, stretch.begin, chunk, rows)
            else:
                with open_sink(address, force=True) as sink:
                    chunk.write(rows, sink.write_lent)
        inputs.confirm()
    return int(task.samples.lengths.sum())


def _write_to_file(path: str, begin: int, chunk: _Chunk, rows: I64) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.lseek(descriptor, begin, os.SEEK_SET)
            chunk.write(rows, lambda parts: write_all(descriptor, b"".join(parts)), descriptor)
        finally:
            os.close(descriptor)
    except WdsError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write {path}: {reason(error)}", hint=HINT) from error


class _Chunk:
    """The samples of one task, with the methods to read and write them."""

    def __init__(self, task: ScatterTask, inputs: Inputs) -> None:
        self._task = task
        self._inputs = inputs
        self._tick = tick_of_task()
        self._in_kernel = hasattr(os, "copy_file_range")
        self._files, self._starts, self._loaded = self._load()

    def write(self, rows: I64, write: Callable[[list[memoryview]], object], descriptor: int = -1) -> None:
        """Write some samples in this order, by calls of ``write``. If ``descriptor``, the output file, is given, the
        kernel copies large samples."""
        parts: list[memoryview] = []
        held = 0

        def flush() -> None:
            if parts:
                write(parts)
                self._tick(held)
                parts.clear()

        lengths = self._task.samples.lengths
        for file, start, length in _runs(self._files[rows], self._starts[rows], lengths[rows]):
            if file == LOADED:
                parts.append(self._loaded[start : start + length])
                held += length
                if held < WRITE_BYTES:
                    continue
            flush()
            held = 0
            if file != LOADED:
                self._copy(file, start, length, write, descriptor)
                self._tick(length)
        flush()

    def _copy(
        self, file: int, start: int, length: int, write: Callable[[list[memoryview]], object], descriptor: int
    ) -> None:
        """Copy a range of an input. If the file system cannot copy it, use ``write``."""
        end = start + length
        try:
            source = self._inputs[file]
            while start < end and self._in_kernel and descriptor >= 0 and source.fd is not None:
                try:
                    done = os.copy_file_range(
                        source.fd, descriptor, min(end - start, KERNEL_COPY_BYTES), start
                    )
                except OSError:
                    self._in_kernel = False
                    break
                if not done:
                    break
                start += done
            if source.fd is None:
                source.expect([(start, end)])
            for piece in pieces_of(source, start, end - start):
                write([memoryview(piece)])
        except DataError as error:
            raise self._changed(file, start) from error

    def _load(self) -> tuple[I64, U64, memoryview]:
        """Load samples into memory. Return the loaded bytes, and where each sample is now: its input or :data:`LOADED`,
        and the byte offset there."""
        samples = self._task.samples
        files = samples.shards.astype(numpy.int64)
        starts = samples.starts.copy()
        rows = numpy.flatnonzero(samples.lengths <= self._task.loads)
        if not self._task.loads or not len(rows):
            # The kernel can read all ranges in advance, in the order of the inputs.
            ranges = Ranges.in_turn(files, starts, samples.lengths)
            will_need(descriptors_of(self._inputs, ranges), are_scattered=False)
            return files, starts, memoryview(b"")
        places, ranges = _side_by_side(files[rows], starts[rows], samples.lengths[rows])
        # An empty array is not filled with zeros first, as a bytearray would be.
        space: Any = numpy.empty(int(ranges.places[-1] + ranges.lengths[-1]), dtype=numpy.uint8)
        loaded = memoryview(space)
        try:
            load(self._inputs, ranges, loaded)
        except EndsEarly as error:
            raise self._changed(int(ranges.files[error.row]), error.offset) from None
        files[rows], starts[rows] = LOADED, places
        return files, starts, loaded

    def _changed(self, file: int, offset: int) -> DataError:
        address = self._task.inputs[file].address
        return changed_shard(address, "the shard ends before its planned samples", offset)


def _side_by_side(files: I64, starts: U64, lengths: U64) -> tuple[U64, Ranges]:
    """Plan the reading of samples into one block of memory, range after range. Return the place of each sample in
    memory, and the ranges."""
    ends = starts + lengths
    gaps: U64 = numpy.zeros(len(starts), dtype=numpy.uint64)
    near = (files[1:] == files[:-1]) & (starts[1:] >= ends[:-1])
    between = numpy.where(near, starts[1:] - ends[:-1], 0)
    near &= between <= numpy.minimum(lengths[1:], numpy.uint64(GAP_BYTES))
    gaps[1:][near] = between[near]
    upto = numpy.cumsum(lengths + gaps)
    return upto - lengths, Ranges.in_turn(files, starts - gaps, lengths + gaps).joined()


def _runs(files: I64, starts: U64, lengths: U64) -> Iterator[tuple[int, int, int]]:
    """Yield (file, start, length) of the samples in their order. Adjacent samples are joined."""
    for part in blocks_of(len(files), ROWS_AT_ONCE):
        ranges = Ranges.in_turn(files[part], starts[part], lengths[part]).joined()
        yield from zip(*(column.tolist() for column in ranges[:3]))


class SpilledRows(NamedTuple):
    """The places of the samples of one task (or :data:`ELSEWHERE`), and the rows at which a new bucket begins. ``own``
    are the parts that no other task needs, each with the first row after the part. They are removed during the task, so
    that scratch space shrinks while the output grows. A bucket of at most ``hold`` bytes is loaded as a whole."""

    space: ScratchPass
    places: U64
    buckets: tuple[int, ...] = ()
    own: tuple[tuple[int, int], ...] = ()
    hold: int = 0
    large: int = 0
    """On an object store, a larger sample is read separately."""
    chunk_bytes: tuple[int, ...] = ()
    """The sizes of the chunks on an object store."""

    def open(self, number: int) -> Source:
        """Open the part under a number from :meth:`Reading.places`. Raises InputError."""
        address = self.space.part(number - SPILLED)
        if self.space.is_local:
            return open_source(address, decompress=False)
        # The first answer from S3 sets the version of an object of known size.
        return open_pinned(address, self.chunk_bytes[number - SPILLED], "")


class Reading:
    """Finds the bytes of a task's rows, and changes from bucket to bucket. The stretches of a small bucket, and of a
    bucket on an object store, are loaded into memory, and become files of ``inputs``."""

    def __init__(self, spilled: SpilledRows | None, rows: OrderedSamples, inputs: Inputs) -> None:
        self._spilled = spilled
        self._rows = rows
        self._inputs = inputs
        self._own = [] if spilled is None else list(spilled.own)
        self._loaded: I64 = numpy.array([[-1], [-1]])
        """The places where loaded stretches begin, and where they end, after an empty stretch."""
        self._memory = memoryview(bytearray())

    def chunks(self, size: int) -> Iterator[tuple[int, int]]:
        """Yield all rows in groups of at most ``size``. A group has rows of only one bucket. :meth:`enter` is called
        before the first row of a bucket."""
        bounds = [0, *(() if self._spilled is None else self._spilled.buckets), self._rows.total]
        for low, high in pairwise(bounds):
            if self._spilled is not None and low < high:
                self.enter(self._spilled, low, high)
            for first in range(low, high, size):
                yield first, min(first + size, high)

    def places(self, rows: PlanTable, first: int) -> tuple[I64, I64]:
        """Return the input number of each of some rows, and the byte at which the row begins there. ``first`` is the
        number of the first row."""
        shards: I64 = rows.shards.astype(numpy.int64)
        starts: I64 = rows.starts.astype(numpy.int64)
        if self._spilled is None:
            return shards, starts
        stored = self._spilled.places[first : first + rows.total]
        is_spilled = stored != numpy.uint64(ELSEWHERE)
        places = stored[is_spilled].astype(numpy.int64)
        begins, ends = self._loaded
        stretches = begins.searchsorted(places, "right") - 1
        is_loaded = places + rows.lengths[is_spilled].astype(numpy.int64) <= ends[stretches]
        files = numpy.where(is_loaded, IN_MEMORY + stretches, SPILLED + (places >> PART_BITS))
        offsets = places - numpy.where(is_loaded, begins[stretches], places >> PART_BITS << PART_BITS)
        shards[is_spilled], starts[is_spilled] = files, offsets
        return shards, starts

    def enter(self, spilled: SpilledRows, row: int, end: int) -> None:
        """Load or announce the bytes of the bucket with the rows ``row`` to ``end - 1``."""
        while self._own and self._own[0][1] <= row:
            # A removed file uses disc space while its descriptor is open, so close it.
            path = spilled.space.part(self._own.pop(0)[0])
            os.truncate(path, 0)
            remove(path)
        begins, ends = stretches_of(spilled.places[row:end], self._rows.part(row, end).lengths, spilled.large)
        ranges = Ranges.in_turn(SPILLED + (begins >> PART_BITS), begins & (1 << PART_BITS) - 1, ends - begins)
        total = int(ranges.lengths.sum())
        if spilled.space.is_local and total > spilled.hold:
            will_need(descriptors_of(self._inputs, ranges), are_scattered=False)
            return
        if len(self._memory) < total:
            # Use the same memory for all buckets, because new pages cost as much time as reading the bytes.
            self._memory = memoryview(bytearray())
            fresh: Any = numpy.empty(max(total, spilled.hold // 2), dtype=numpy.uint8)
            self._memory = memoryview(fresh)
        load(self._inputs, ranges, self._memory, direct_bytes=0)
        self._loaded = numpy.insert((begins, ends), 0, -1, axis=1)
        for number, (place, size) in enumerate(zip(ranges.places.tolist(), ranges.lengths.tolist()), 1):
            stretch = HeldSource(spilled.space.prefix, self._memory[place : place + size])
            self._inputs.put(IN_MEMORY + number, stretch)


def stretches_of(places: U64, lengths: U64, large: int) -> tuple[I64, I64]:
    """Return the begins and the ends of the stretches that contain samples, except samples larger than ``large``.
    Neighbouring stretches are joined."""
    small = (places != numpy.uint64(ELSEWHERE)) & (lengths <= large)
    begins: I64 = places[small].astype(numpy.int64)
    order = numpy.argsort(begins)
    begins = begins[order]
    ends = begins + lengths[small][order].astype(numpy.int64)
    bounds = edges(begins[1:] > ends[:-1] + STRETCH_GAP_BYTES, len(begins))
    return begins[bounds[:-1]], ends[bounds[1:] - 1]
