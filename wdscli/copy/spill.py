"""The ``spill`` strategy: two passes through scratch space, each of which reads long stretches.

What it is: :func:`spill`, the first pass; the tasks of the second are those of ``gather`` with other places to read
from. How: the output is divided into buckets, the input into chunks. The first pass goes through the input chunk by
chunk and adds each sample to its bucket; the second makes the output bucket by bucket. A bucket is small enough for the
page cache, so that on a local disc both passes copy ranges, and its file goes as soon as its samples are written. On an
object store a chunk becomes one object, in the order of the buckets. Where each sample comes to lie is computed
beforehand from lengths alone, so that scratch space needs no index, no header is walked, and a task that runs twice
writes the same bytes to the same places.

A sample to which a pax global header applies is not spilled: it cannot be read without what stands before it.

It must not know the order that samples are brought in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from wdscli.copy.scatter import Destination, ScatterTask, scatter
from wdscli.copy.spilled import ELSEWHERE, LARGE, PART_BITS, Spilled
from wdscli.errors import OutputError
from wdscli.executors import run_tasks
from wdscli.plan.join.in_turn import in_turn
from wdscli.plan.join.parts import NOBODY
from wdscli.plan.memory import Limits
from wdscli.plan.scratch import HINT, Scattered, Scratch
from wdscli.storage import remove
from wdscli.tar import GLOBAL
from wdscli.units import human_size

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from typing import TypeAlias

    import numpy
    from numpy.typing import NDArray

    from wdscli.plan.request import PlannedShard, ReorderPlan
    from wdscli.plan.table import I64, U64, Ordered, PlanTable
    from wdscli.progress import Progress

    Mask: TypeAlias = NDArray[numpy.bool_]

MOST_ROWS = 1 << 17
"""At most so many samples in a chunk: their rows travel with its task."""
BUCKET_ROWS = 1 << 19
"""At most so many samples in a bucket."""
ROW_BYTES = 256
"""What a sample of a chunk costs the task besides its bytes."""
BUCKETS = 16
LEAST_BUCKET = 32 << 20
"""So many buckets at least, of so many bytes at least: scratch space is let go of bucket by bucket."""
WORTH_LOADING = 8 << 20
PAGE = 1 << 12
"""Chunks begin at multiples of this, so that no two tasks write to one page of a file."""
SMALL = 64 << 10
"""Samples of fewer bytes on average are cheaper to load and write together than to copy one by one."""


class Sizes(NamedTuple):
    """How much is a chunk and a bucket, in bytes and samples; whether a chunk is loaded into memory; and up to how many
    bytes a bucket is."""

    chunk: int
    chunk_rows: int
    bucket: int
    loaded: bool
    hold: int = 0


def spill(
    plan: ReorderPlan,
    shards: Sequence[PlannedShard],
    executor: Executor,
    scratch: Scratch,
    limits: Limits,
    progress: Progress,
) -> Layout:
    """Write the samples of ``shards``, some of the planned, to ``scratch``. Raises InputError, DataError, OutputError
    (nothing is written when there is no room)."""
    lists = plan.row_lists
    total = sum(_bytes_of(ordered, shard.first, shard.end) for ordered in lists for shard in shards)
    check_room(scratch, total)
    space = scratch.space()
    # Samples that are joined are spilled part by part, each of them a row of its own.
    layout = Layout(in_turn(lists), shards, space, sizes_for(plan, space, limits, total), len(lists))
    layout.tasks_run_once = space.is_local and plan.request.engine is None
    progress.start("spilling", total, "bytes")
    for _ in run_tasks(executor, scatter, layout.tasks(plan), advance=progress.advance, amount=int):
        pass
    progress.finish()
    return layout


def check_room(scratch: Scratch, needed: int) -> None:
    """Raise OutputError when scratch space is known to be too small."""
    free = scratch.free_bytes()
    if free is not None and free < needed:
        raise OutputError(
            f"spilling needs {human_size(needed)} of scratch space, {scratch.parent} has {human_size(free)} free",
            hint=f"{HINT}; --strategy gather needs none",
        )


def sizes_for(plan: ReorderPlan, space: Scattered, limits: Limits, total: int) -> Sizes:
    """What is read from far away is loaded, and so are small samples; large ones of this machine are copied from file
    to file, by way of the page cache."""
    small = total < SMALL * max(1, plan.samples * len(plan.row_lists)) and limits.task >= WORTH_LOADING
    loaded = small or not space.is_local or not all(one.is_near for one in plan.inputs)
    cache = max(LEAST_BUCKET, min(limits.cache, total // BUCKETS))
    # As many chunks as keep all processes busy to the end.
    chunk = max(LEAST_BUCKET, min(limits.cache, total // (4 * limits.jobs)))
    return Sizes(
        chunk=limits.task if loaded else chunk,
        chunk_rows=max(1 << 12, min(limits.task // ROW_BYTES, MOST_ROWS)),
        bucket=cache if space.is_local else limits.task,
        loaded=loaded,
        hold=limits.task if small else 0,
    )


def _bytes_of(ordered: Ordered, first: int, end: int) -> int:
    firsts = range(first, end, MOST_ROWS)
    return sum(int(ordered.column("length", at, min(at + MOST_ROWS, end)).sum()) for at in firsts)


class Layout:
    """Where every sample comes to lie, and what is still there. ``width`` rows of ``ordered``, one for each part, are
    one sample of a shard."""

    def __init__(
        self,
        ordered: Ordered,
        shards: Sequence[PlannedShard],
        space: Scattered,
        sizes: Sizes,
        width: int = 1,
    ) -> None:
        import numpy

        self._ordered = ordered
        self._space = space
        self._sizes = sizes
        self._width = width
        self._firsts = numpy.asarray([shard.first * width for shard in shards], dtype=numpy.int64)
        self._ends = numpy.asarray([shard.end * width for shard in shards], dtype=numpy.int64)
        bounds: I64 = numpy.asarray(list(self._bucket_bounds()), dtype=numpy.int64)
        # No bucket begins within a sample.
        self._bounds: I64 = numpy.unique(bounds // width * width)
        self._filled = [0] * len(self._bounds)
        self._gone = 0
        self.tasks_run_once = False
        """Whether a task may remove what it needs no more: not where tasks are tried again."""
        self._places: U64 = numpy.full(ordered.total, ELSEWHERE, dtype=numpy.uint64)

    def _bucket_bounds(self) -> Iterator[int]:
        """Where buckets begin in the output order. A sample belongs to the bucket in which its first byte lies."""
        import numpy

        for first in range(0, self._ordered.total, BUCKET_ROWS):
            end = min(first + BUCKET_ROWS, self._ordered.total)
            lengths = self._ordered.column("length", first, end)
            bucket = (numpy.cumsum(lengths) - lengths) // numpy.uint64(self._sizes.bucket)
            yield first
            yield from (numpy.flatnonzero(numpy.diff(bucket)) + (1 + first)).tolist()

    def tasks(self, plan: ReorderPlan) -> Iterator[ScatterTask]:
        """The tasks of the first pass; when all have been taken, all places are known."""
        import numpy

        for number, (positions, samples) in enumerate(self._chunks()):
            buckets = numpy.searchsorted(self._bounds, positions, side="right") - 1
            order = numpy.argsort(buckets, kind="stable")
            ends = numpy.cumsum(samples.lengths[order])
            if self._space.is_local:
                parts = self._added_to(buckets[order], ends)
            else:
                parts = [(number, 0, 0, len(order))]
            offsets = ends - samples.lengths[order]
            for part, begin, first, end in parts:
                shift = (part << PART_BITS) + begin - int(offsets[first])
                self._places[positions[order[first:end]]] = offsets[first:end] + numpy.uint64(shift)
            to = [
                Destination(self._space.part(part), begin if self._space.is_local else -1, first, end)
                for part, begin, first, end in parts
            ]
            inputs = {shard: plan.inputs[shard] for shard in numpy.unique(samples.shards).tolist()}
            yield ScatterTask(inputs, samples, order, to, self._sizes.loaded)

    def _added_to(self, buckets: I64, ends: U64) -> list[tuple[int, int, int, int]]:
        """What a chunk, whose samples are in the order of their buckets, adds to the files of these: (bucket, byte,
        first and last sample)."""
        import numpy

        bounds = [0, *(numpy.flatnonzero(numpy.diff(buckets)) + 1).tolist(), len(buckets)]
        parts, before = [], 0
        for first, end in pairwise(bounds):
            bucket = int(buckets[first])
            parts.append((bucket, self._filled[bucket], first, end))
            size = int(ends[end - 1]) - before
            before += size
            self._filled[bucket] += size + PAGE - 1 & -PAGE
        return parts

    def _chunks(self) -> Iterator[tuple[I64, PlanTable]]:
        """Samples that are spilled together, in input order: their places in the output order, and they themselves."""
        import numpy

        for block, samples in self._in_input_order():
            wanted = self._is_wanted(block) & (samples.marks & GLOBAL == 0)
            wanted &= samples.shards != numpy.uint32(NOBODY)
            if not wanted.all():
                block, samples = block[wanted], samples.take(numpy.flatnonzero(wanted))
            lengths = samples.lengths
            # A large sample does not lie in memory, even where its chunk does.
            counted = numpy.where(lengths > LARGE, 0, lengths) if self._sizes.loaded else lengths
            chunk = (numpy.cumsum(counted) - counted) // numpy.uint64(self._sizes.chunk)
            bounds = (numpy.flatnonzero(numpy.diff(chunk)) + 1).tolist()
            for first, end in pairwise([0, *bounds, len(block)]):
                if end > first:
                    yield block[first:end], samples.part(first, end)

    def _in_input_order(self) -> Iterator[tuple[I64, PlanTable]]:
        """All samples in the order in which the inputs hold them, each with its place in the output order."""
        import numpy

        ordered = self._ordered
        rows = None if ordered.order is None else numpy.argsort(ordered.order, kind="stable")
        for first in range(0, ordered.total, self._sizes.chunk_rows):
            end = min(first + self._sizes.chunk_rows, ordered.total)
            if ordered.order is None or rows is None:
                yield numpy.arange(first, end), ordered.part(first, end)
            else:
                block = rows[first:end]
                yield block, ordered.samples.take(ordered.order[block])

    def _is_wanted(self, positions: I64) -> Mask:
        """Which samples belong to a shard that is to be made."""
        import numpy

        if not len(self._firsts):
            return numpy.zeros(len(positions), dtype=bool)
        at = numpy.searchsorted(self._firsts, positions, side="right") - 1
        wanted: Mask = (at >= 0) & (positions < self._ends[at])
        return wanted

    def spilled(self, shard: PlannedShard) -> Spilled:
        """What the task that makes ``shard`` is told."""
        first, end = shard.first * self._width, shard.end * self._width
        bounds = self._bounds[(self._bounds > first) & (self._bounds < end)] - first
        own: list[tuple[int, int]] = []
        if self.tasks_run_once:
            bucket = int(self._bounds.searchsorted(first))
            while bucket + 1 < len(self._bounds) and self._bounds[bucket + 1] <= end:
                if self._filled[bucket]:
                    own.append((bucket, int(self._bounds[bucket + 1]) - first))
                bucket += 1
        return Spilled(
            self._space, self._places[first:end], tuple(bounds.tolist()), tuple(own), self._sizes.hold
        )

    def release(self, shard: PlannedShard) -> None:
        """Let go of what nobody needs when ``shard`` and all before it are made."""
        while self._space.is_local and self._gone + 1 < len(self._bounds):
            if self._bounds[self._gone + 1] > shard.end * self._width:
                break
            if self._filled[self._gone]:
                remove(self._space.part(self._gone))
            self._gone += 1
