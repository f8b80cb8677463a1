"""A plan: for each output shard, which runs of which input shards it is made of.

What it is: the shuffled order over the samples of a set, and the cuts through any order. How: everything is an array;
ten million samples are ordered and cut in seconds. It must not read or write anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from wdscli.errors import UsageError
from wdscli.ops.rows import Ordered, Samples
from wdscli.ordering import rank_array
from wdscli.tar import END_OF_ARCHIVE

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    U64: TypeAlias = NDArray[numpy.uint64]
    I64: TypeAlias = NDArray[numpy.int64]

DEFAULT_MAX_SIZE = 1_000_000_000
END_BYTES = len(END_OF_ARCHIVE)
BLOCK = 1 << 18
"""Samples looked at together."""


class Cuts(NamedTuple):
    """Where shards end. With none of the three given, a shard holds at most 1 GB; ``shards`` makes that many, whose
    counts differ by at most one. Sizes are real tar bytes, end of archive included."""

    max_count: int | None = None
    max_size: int | None = None
    shards: int | None = None

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
        for value, name in (
            (wanted, "--shards"),
            (self.max_count, "--max-count"),
            (self.max_size, "--max-size"),
        ):
            if value is not None and value < 1:
                raise UsageError(f"{name} must be at least 1, not {value}")
        if wanted is None and self.max_count is None and self.max_size is None:
            return self._replace(max_size=DEFAULT_MAX_SIZE)
        return self._replace(shards=wanted)


def shuffled(samples: Samples, seed: int) -> I64:
    """The rows in shuffled order: by (rank, shard, place), as section 3 of the design pins it."""
    import numpy

    ranks: U64 = numpy.empty(samples.total, dtype=numpy.uint64)
    if not samples.total:
        return ranks.astype(numpy.int64)
    bounds = numpy.flatnonzero(numpy.diff(samples.shards, prepend=numpy.uint32(0xFFFFFFFF)))
    ends = [*bounds[1:].tolist(), samples.total]
    for first, end in zip(bounds.tolist(), ends, strict=True):
        places = samples.places[first:end]
        of_shard = rank_array(seed, int(samples.shards[first]), int(places[-1]) + 1)
        ranks[first:end] = of_shard[places.astype(numpy.int64)]
    # The rows are in (shard, place) order, so a stable sort settles ties as pinned.
    return numpy.argsort(ranks, kind="stable").astype(numpy.int64)


def cut(blocks: Iterable[U64], total: int, cuts: Cuts) -> list[int]:
    """The ends (exclusive) of the shards in a sequence of ``total`` samples, whose output lengths come in blocks."""
    if cuts.shards is not None:
        return [total * (number + 1) // cuts.shards for number in range(cuts.shards)]
    cutter = _Cutter(cuts)
    for block in blocks:
        cutter.feed(block)
    return cutter.finish()


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
        for at in range(first, end, BLOCK):
            some = ordered.part(at, min(at + BLOCK, end))
            size += int(some.out_lengths.sum())
            members += int(some.members.sum())
        found.append((size, members))
    return found


def oversized(ordered: Ordered, cuts: Cuts) -> int:
    """How many samples are larger than ``max_size`` on their own."""
    if cuts.max_size is None:
        return 0
    room = max(0, cuts.max_size - END_BYTES)
    return sum(int((some.out_lengths > room).sum()) for some in ordered.blocks())
