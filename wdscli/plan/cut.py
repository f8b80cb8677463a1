"""A plan: for each output shard, which runs of which input shards it is made of.

What it is: the shuffled order over the samples of a set, and the cuts through any order. How: everything is an array;
ten million samples are ordered and cut in seconds. It must not read or write anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from wdscli.errors import UsageError
from wdscli.ordering import rank_places
from wdscli.plan.table import ROWS_PER_BLOCK, Ordered, PlanTable
from wdscli.storage.patterns import MAX_NAMES
from wdscli.tar import END_OF_ARCHIVE

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    U64: TypeAlias = NDArray[numpy.uint64]
    I64: TypeAlias = NDArray[numpy.int64]

DEFAULT_MAX_SIZE = 1_000_000_000
END_BYTES = len(END_OF_ARCHIVE)


class Cuts(NamedTuple):
    """Where shards end. With none of the first three given, a shard holds at most 1 GB; ``shards`` makes that many,
    whose counts differ by at most one. ``divisible_by`` makes their number a multiple of itself, whatever the cut.
    Sizes are real tar bytes, end of archive included."""

    max_count: int | None = None
    max_size: int | None = None
    shards: int | None = None
    divisible_by: int | None = None

    def checked(self, fixed: int | None) -> Cuts:
        """The cuts together with an output pattern that names exactly ``fixed`` shards. Raises UsageError."""
        wanted = self.shards
        if fixed is not None:
            if wanted not in (None, fixed):
                raise UsageError(
                    f"the output names {fixed} shards, --shards asks for {wanted}", hint="give one of them"
                )
            wanted = fixed
        if wanted is not None and (self.max_count is not None or self.max_size is not None):
            raise UsageError(
                "a number of shards and a limit for each exclude each other",
                hint="give --shards (or braces in the output), or --max-count and --max-size",
            )
        for count, name in ((wanted, "--shards"), (self.divisible_by, "--divisible-by")):
            if count is not None and count > MAX_NAMES:
                raise UsageError(f"{name} {count} is more than {MAX_NAMES} shards")
        for value, name in (
            (wanted, "--shards"),
            (self.max_count, "--max-count"),
            (self.max_size, "--max-size"),
            (self.divisible_by, "--divisible-by"),
        ):
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1, not {value}")
        if fixed is not None and fixed % (self.divisible_by or 1):
            raise UsageError(
                f"the output names {fixed} shards, which is no multiple of {self.divisible_by}",
                hint="name another number of shards, or any number: -o out-%06d.tar",
            )
        if wanted is not None:
            wanted = multiple(wanted, self.divisible_by)
        if wanted is None and self.max_count is None and self.max_size is None:
            return self._replace(max_size=DEFAULT_MAX_SIZE)
        return self._replace(shards=wanted)


def shuffled(samples: PlanTable, seed: int) -> I64:
    """The rows in shuffled order: by (rank, shard, place), as section 3 of the design pins it."""
    import numpy

    ranks: U64 = numpy.empty(samples.total, dtype=numpy.uint64)
    for first in range(0, samples.total, ROWS_PER_BLOCK):
        some = samples.part(first, first + ROWS_PER_BLOCK)
        ranks[first : first + ROWS_PER_BLOCK] = rank_places(seed, some.shards, some.places)
    order: I64 = numpy.argsort(ranks).astype(numpy.int64, copy=False)
    if not _has_ties(ranks, order):
        return order
    # The rows are in (shard, place) order, so a stable sort settles ties as pinned. It is slower and takes more memory.
    return numpy.argsort(ranks, kind="stable").astype(numpy.int64, copy=False)


def _has_ties(values: U64, order: I64) -> bool:
    """Whether values that ``order`` sorts are equal anywhere."""
    for first in range(0, len(order), ROWS_PER_BLOCK):
        some = values[order[first : first + ROWS_PER_BLOCK + 1]]
        if (some[1:] == some[:-1]).any():
            return True
    return False


def multiple(count: int, of: int | None) -> int:
    """The least multiple that is at least ``count``.

    >>> multiple(9, 8), multiple(16, 8), multiple(9, None)
    (16, 16, 9)
    """
    return count if of is None else -(-count // of) * of


def cut(blocks: Iterable[U64], total: int, cuts: Cuts) -> list[int]:
    """The ends (exclusive) of the shards in a sequence of ``total`` samples, whose output lengths come in blocks.
    Raises UsageError when there are fewer samples than shards that must each have one."""
    if cuts.divisible_by is not None:
        return _cut_to_multiple(blocks, total, cuts, cuts.divisible_by)
    if cuts.shards is not None:
        return evenly(total, cuts.shards)
    cutter = _Cutter(cuts)
    for block in blocks:
        cutter.feed(block)
    return cutter.finish()


def evenly(total: int, shards: int) -> list[int]:
    """The ends of shards whose counts differ by at most one."""
    return [total * (number + 1) // shards for number in range(shards)]


def _cut_to_multiple(blocks: Iterable[U64], total: int, cuts: Cuts, of: int) -> list[int]:
    """The least multiple of shards that the cuts need, balanced by count as far as the limits let; none for no
    samples."""
    if not total:
        return []
    kept = list(blocks)
    limits = cuts._replace(divisible_by=None)
    needed = cut(kept, total, limits) if cuts.shards is None else []
    shards = multiple(cuts.shards or len(needed), of)
    if total < shards:
        raise UsageError(
            f"{total} samples do not fill {shards} shards, and --divisible-by leaves no shard empty",
            hint="a smaller --divisible-by or --shards, or a larger --max-count or --max-size",
        )
    ends = evenly(total, shards)
    if cuts.shards is not None or _fits(kept, ends, limits):
        return ends
    fullest = max(end - first for first, end in pairwise([0, *needed]))
    return _divided(cut(kept, total, _tightest(kept, total, limits, shards, fullest)), shards)


def _fits(blocks: Sequence[U64], ends: Sequence[int], limits: Cuts) -> bool:
    """Whether no shard is above its limits; a sample may be, in a shard of its own."""
    import numpy

    bounds = numpy.array([0, *ends], dtype=numpy.int64)
    counts = numpy.diff(bounds)
    if limits.max_count is not None and int(counts.max()) > limits.max_count:
        return False
    if limits.max_size is None:
        return True
    totals = numpy.concatenate([numpy.zeros(1, dtype=numpy.uint64), *blocks]).cumsum(dtype=numpy.int64)
    sizes = numpy.diff(totals[bounds]) + END_BYTES
    return not bool(((sizes > limits.max_size) & (counts > 1)).any())


def _tightest(blocks: Sequence[U64], total: int, limits: Cuts, shards: int, high: int) -> Cuts:
    """The limits with the smallest count with which so many shards are enough; ``high`` is large enough."""
    low = -(-total // shards)
    while low < high:
        middle = (low + high) // 2
        if len(cut(blocks, total, limits._replace(max_count=middle))) <= shards:
            high = middle
        else:
            low = middle + 1
    return limits._replace(max_count=low)


def _divided(ends: list[int], shards: int) -> list[int]:
    """So many shards: the fullest are halved, the first of several first, as long as there are too few. ``ends`` has
    at least so many samples."""
    from heapq import heapify, heappop, heappush

    heap = [(first - end, first, end) for first, end in pairwise([0, *ends])]
    heapify(heap)
    while len(heap) < shards:
        _, first, end = heappop(heap)
        middle = (first + end + 1) // 2
        heappush(heap, (first - middle, first, middle))
        heappush(heap, (middle - end, middle, end))
    return sorted(end for _, _, end in heap)


class _Cutter:
    """Fills one shard after the other, as far as it has room."""

    def __init__(self, cuts: Cuts) -> None:
        self._count = cuts.max_count or 1 << 62
        self._room = (cuts.max_size or 1 << 62) - END_BYTES
        self._ends: list[int] = []
        self._first = self._at = self._used = 0

    def feed(self, lengths: U64) -> None:
        """The next samples."""
        import numpy

        totals = numpy.cumsum(lengths, dtype=numpy.int64)
        at = before = 0
        while at < len(totals):
            fits = int(numpy.searchsorted(totals, before + self._room - self._used, side="right"))
            end = min(at + self._count - (self._at - self._first), fits)
            if end <= at and self._at > self._first:
                self._close()
                continue
            # A sample that is larger than a shard may be has one of its own.
            end = max(end, at + 1)
            self._at += end - at
            self._used += int(totals[end - 1]) - before
            at, before = end, int(totals[end - 1])

    def _close(self) -> None:
        self._ends.append(self._at)
        self._first, self._used = self._at, 0

    def finish(self) -> list[int]:
        """The ends of all shards."""
        if self._at > self._first:
            self._close()
        return self._ends


def measure(ordered: Ordered, bounds: Sequence[int]) -> list[tuple[int, int]]:
    """(bytes, members) of each shard between two bounds, the end of archive included."""
    found = []
    for first, end in pairwise(bounds):
        size, members = END_BYTES, 0
        for at in range(first, end, ROWS_PER_BLOCK):
            stop = min(at + ROWS_PER_BLOCK, end)
            size += int(ordered.column("out", at, stop).sum())
            members += int(ordered.column("members", at, stop).sum())
        found.append((size, members))
    return found


def oversized(ordered: Ordered, cuts: Cuts) -> int:
    """How many samples are larger than ``max_size`` on their own."""
    if cuts.max_size is None:
        return 0
    room = max(0, cuts.max_size - END_BYTES)
    # Looked at in any order where all are in memory, which is quicker.
    is_held = ordered.order is not None and ordered.samples.total == ordered.total
    if is_held and not (ordered.samples.out_lengths > room).any():
        return 0
    firsts = range(0, ordered.total, ROWS_PER_BLOCK)
    return sum(
        int((ordered.column("out", at, min(at + ROWS_PER_BLOCK, ordered.total)) > room).sum())
        for at in firsts
    )
