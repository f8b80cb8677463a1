"""Samples that a first pass has written to scratch space: where they lie there, and how they are read.

What it is: :class:`Spilled`, what one task of the second pass is told of it.
How: a place in scratch space is the number of a part in its upper bits and a byte of that part in its lower ones. On a
local disc a part is the file of a bucket, to which every chunk adds, and which goes when its samples are written. On an
object store, where nothing can be added to, a part is the object of a chunk. Samples of one bucket are wanted in any
order, so before its first sample all of it is asked for: the kernel reads it ahead, or, from an object store, each
stretch comes by one request and is held until the next bucket.

It must not know what order samples are brought in.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from wdscli.arrays import I64, U64, numpy
from wdscli.plan.scratch import Scattered
from wdscli.plan.table import Ordered, PlanTable
from wdscli.storage import Source, open_source, remove

SPILLED = 1 << 32
"""From this number on a task has the spilled bytes among its inputs; no shard has such a number."""
ELSEWHERE = (1 << 64) - 1
"""The place of a sample that was not spilled: it is read from its input."""
PART_BITS = 44
"""A place: the part's number above so many bits, the byte in the part below."""
LARGE_SAMPLE_BYTES = 1 << 20
"""A sample of more bytes is read on its own, in pieces."""
GAP_BYTES = 1 << 16
"""Stretches that lie so near to each other are read as one."""


class Spilled(NamedTuple):
    """Where the samples of one task lie: the place of each (or :data:`ELSEWHERE`), and the rows at which another bucket
    begins. ``own`` are the parts, each with the row behind it, that no other task needs: they go as the task goes on,
    so that scratch space shrinks as the output grows. A bucket of at most ``hold`` bytes is loaded at once."""

    space: Scattered
    places: U64
    buckets: tuple[int, ...] = ()
    own: tuple[tuple[int, int], ...] = ()
    hold: int = 0

    def open(self, number: int) -> Source:
        """The bytes under one of the numbers that :meth:`Reading.places` gives. Raises InputError."""
        if self.space.is_local:
            return open_source(self.space.part(number - SPILLED), decompress=False)
        return _Objects(self.space)


class Reading:
    """Where a task reads its rows, and what it does at the edge of a bucket. ``open_part`` opens what is numbered. When
    ``held`` is not None, all spilled samples of a bucket are there, from byte ``held_from`` of their part on."""

    def __init__(self, spilled: Spilled | None, rows: Ordered, open_part: Callable[[int], Source]) -> None:
        self._spilled = spilled
        self._rows = rows
        self._open_part = open_part
        self._own = [] if spilled is None else list(spilled.own)
        self.held: memoryview | None = None
        self.held_from = 0
        self._space = memoryview(b"")

    def chunks(self, size: int) -> Iterator[tuple[int, int]]:
        """All rows, from first to last, at most ``size`` together and none of two buckets together. A bucket is entered
        before its first."""
        bounds = [0, *(() if self._spilled is None else self._spilled.buckets), self._rows.total]
        for low, high in pairwise(bounds):
            if self._spilled is not None and low < high:
                self.enter(self._spilled, low, high)
            for first in range(low, high, size):
                yield first, min(first + size, high)

    def places(self, rows: PlanTable, first: int) -> tuple[I64, U64]:
        """The input of some rows, of which the first is number ``first``, and the byte at which each begins there."""
        shards: I64 = rows.shards.astype(numpy.int64)
        if self._spilled is None:
            return shards, rows.starts
        places = self._spilled.places[first : first + rows.total]
        elsewhere = places == numpy.uint64(ELSEWHERE)
        parts, inner = numpy.uint64(0), places
        if self._spilled.space.is_local:
            parts, inner = places >> numpy.uint64(PART_BITS), places & numpy.uint64((1 << PART_BITS) - 1)
        files: I64 = numpy.where(elsewhere, shards, SPILLED + parts.astype(numpy.int64))
        starts: U64 = numpy.where(elsewhere, rows.starts, inner)
        return files, starts

    def enter(self, spilled: Spilled, row: int, end: int) -> None:
        """Ask for all that the bucket of the rows from ``row`` up to ``end`` needs."""
        while self._own and self._own[0][1] <= row:
            # Its descriptor may still be open, and would hold its blocks.
            path = spilled.space.part(self._own.pop(0)[0])
            os.truncate(path, 0)
            remove(path)
        places, lengths = spilled.places[row:end], self._rows.part(row, end).lengths
        self.held = self._loaded(spilled, places, lengths) if spilled.space.is_local else None
        stretches = [] if self.held is not None else stretches_of(places, lengths)
        if not spilled.space.is_local:
            source = self._open_part(SPILLED)
            assert isinstance(source, _Objects)
            source.expect(stretches)
        elif hasattr(os, "posix_fadvise"):
            for begin, stop in stretches:
                descriptor = self._open_part(SPILLED + (begin >> PART_BITS)).fd
                if descriptor is not None:
                    begin_at = begin & (1 << PART_BITS) - 1
                    os.posix_fadvise(descriptor, begin_at, stop - begin, os.POSIX_FADV_WILLNEED)

    def _loaded(self, spilled: Spilled, places: U64, lengths: U64) -> memoryview | None:
        """The bucket, all of it, if it is small enough."""
        there = places != numpy.uint64(ELSEWHERE)
        places, lengths = places[there], lengths[there]
        begin, end = (int(places.min()), int((places + lengths).max())) if len(places) else (0, 0)
        if not 0 < end - begin <= spilled.hold:
            return None
        descriptor = self._open_part(SPILLED + (begin >> PART_BITS)).fd
        if descriptor is None:
            return None
        if len(self._space) < end - begin:
            # One space for all buckets: pages that are new to a process cost as much as the bytes that come into them.
            fresh: Any = numpy.empty(max(end - begin, spilled.hold // 2), dtype=numpy.uint8)
            self._space = memoryview(fresh)
        view = self._space[: end - begin]
        self.held_from = begin & (1 << PART_BITS) - 1
        # What is not there will be missed when it is wanted.
        return view if os.preadv(descriptor, [view], self.held_from) == len(view) else None


def stretches_of(places: U64, lengths: U64) -> list[tuple[int, int]]:
    """The stretches in which samples lie, without the large ones, neighbours joined."""
    small = (places != numpy.uint64(ELSEWHERE)) & (lengths <= LARGE_SAMPLE_BYTES)
    places, lengths = places[small], lengths[small]
    if not len(places):
        return []
    order = numpy.argsort(places)
    begins = places[order]
    ends = begins + lengths[order]
    apart: I64 = numpy.flatnonzero(begins[1:] > ends[:-1] + numpy.uint64(GAP_BYTES)) + 1
    firsts = numpy.concatenate(([0], apart))
    lasts = numpy.concatenate((apart, [len(begins)])) - 1
    return list(zip(begins[firsts].tolist(), ends[lasts].tolist(), strict=True))


class _Objects(Source):
    """Chunks on an object store as one range of bytes. A stretch that is expected is fetched whole when its first byte
    is wanted, and let go of at the next bucket."""

    __slots__ = ("_begins", "_held", "_open", "_space", "_stretches")

    def __init__(self, space: Scattered) -> None:
        super().__init__(space.prefix, size=None, seekable=True)
        self._space = space
        self._open: dict[int, Source] = {}
        self.expect([])

    def expect(
        self, ranges: Iterable[tuple[int, int]], *, gap_bytes: int | None = None, keep: bool = False
    ) -> None:
        """What is wanted next, in rising order. Forgets what was fetched before."""
        self._stretches = list(ranges)
        self._begins = [begin for begin, _ in self._stretches]
        self._held: dict[int, bytes] = {}

    def read_at(self, offset: int, length: int) -> bytes:
        at = bisect_right(self._begins, offset) - 1
        if at < 0 or offset + length > self._stretches[at][1]:
            return self._fetched(offset, length)
        begin, end = self._stretches[at]
        if at not in self._held:
            self._held[at] = self._fetched(begin, end - begin)
        return self._held[at][offset - begin : offset - begin + length]

    def _fetched(self, offset: int, length: int) -> bytes:
        number = offset >> PART_BITS
        source = self._open.get(number)
        if source is None:
            source = self._open[number] = open_source(self._space.part(number), decompress=False)
        return source.read_at(offset - (number << PART_BITS), length)

    def close(self) -> None:
        for source in self._open.values():
            source.close()
        self._open.clear()
