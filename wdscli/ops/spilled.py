"""Samples that a first pass has written to scratch space: where they lie there, and how they are read.

What it is: :class:`Scattered`, the space itself, and :class:`Spilled`, what one task of the second pass is told of it.
How: scratch space is one range of bytes. On a local disc it is one file, in which each chunk of the first pass has its
own stretch; on an object store each chunk is an object of its own, and the upper bits of a place say which. Samples of
one bucket are wanted in any order, so before its first sample the bucket's stretches are asked for together: the kernel
reads them ahead, or, from an object store, each comes by one request and is held until the next bucket.

It must not know what order samples are brought in.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from wdscli.storage import Source, open_source

if TYPE_CHECKING:
    from wdscli.ops.rows import I64, U64, Samples

SPILLED = 1 << 32
"""The number under which a task has the spilled bytes among its inputs; no shard has it."""
ELSEWHERE = (1 << 64) - 1
"""The place of a sample that was not spilled: it is read from its input."""
OBJECT_BITS = 44
"""A place among objects: the chunk's number above so many bits, the byte in the chunk below."""
LARGE = 1 << 20
"""A sample of more bytes is read on its own, in pieces."""
_GAP = 1 << 16
"""Stretches that lie so near to each other are read as one."""


class Scattered(NamedTuple):
    """Scratch space of a first pass: a local file, or the prefix of objects."""

    address: str
    is_local: bool

    def chunk(self, number: int) -> str:
        """Where one chunk is written."""
        return self.address if self.is_local else f"{self.address}-{number}"


class Spilled(NamedTuple):
    """Where the samples of one task lie: the place of each (or :data:`ELSEWHERE`), and the rows at which another bucket
    begins."""

    space: Scattered
    places: U64
    buckets: tuple[int, ...] = ()

    def open(self) -> Source:
        """The spilled bytes. Raises InputError."""
        if self.space.is_local:
            return open_source(self.space.address, decompress=False)
        return _Objects(self.space)


class Reading:
    """Where a task reads each sample, and what it does at the edge of a bucket. ``next_bucket`` is the first row at
    which :meth:`enter` is to be called, -1 for never."""

    def __init__(self, spilled: Spilled | None, samples: Samples) -> None:
        self._spilled = spilled
        self._samples = samples
        self._bounds = [] if spilled is None else [*spilled.buckets, samples.total]
        self.next_bucket = 0 if spilled is not None and samples.total else -1

    def places(self, shards: list[int], starts: list[int]) -> tuple[list[int], list[int]]:
        """The input of each sample and its first byte there."""
        if self._spilled is None:
            return shards, starts
        import numpy

        places = self._spilled.places
        elsewhere = places == numpy.uint64(ELSEWHERE)
        if not elsewhere.any():
            return [SPILLED] * len(shards), places.tolist()
        files = numpy.where(elsewhere, self._samples.shards.astype(numpy.int64), SPILLED)
        return files.tolist(), numpy.where(elsewhere, self._samples.starts, places).tolist()

    def enter(self, row: int, source: Source) -> int:
        """Ask for all that the bucket which begins at ``row`` needs. Returns the row at which the next one begins."""
        if self._spilled is None:
            return -1
        end = next((bound for bound in self._bounds if bound > row), -1)
        stretches = stretches_of(self._spilled.places[row:end], self._samples.lengths[row:end])
        if isinstance(source, _Objects):
            source.expect(stretches)
        elif source.fd is not None and hasattr(os, "posix_fadvise"):
            for begin, stop in stretches:
                os.posix_fadvise(source.fd, begin, stop - begin, os.POSIX_FADV_WILLNEED)
        return end if end < self._samples.total else -1


def stretches_of(places: U64, lengths: U64) -> list[tuple[int, int]]:
    """The stretches in which samples lie, without the large ones, neighbours joined."""
    import numpy

    small = (places != numpy.uint64(ELSEWHERE)) & (lengths <= LARGE)
    places, lengths = places[small], lengths[small]
    if not len(places):
        return []
    order = numpy.argsort(places)
    begins = places[order]
    ends = begins + lengths[order]
    apart: I64 = numpy.flatnonzero(begins[1:] > ends[:-1] + numpy.uint64(_GAP)) + 1
    firsts = numpy.concatenate(([0], apart))
    lasts = numpy.concatenate((apart, [len(begins)])) - 1
    return list(zip(begins[firsts].tolist(), ends[lasts].tolist(), strict=True))


class _Objects(Source):
    """Chunks on an object store as one range of bytes. A stretch that is expected is fetched whole when its first byte
    is wanted, and let go of at the next bucket."""

    __slots__ = ("_begins", "_held", "_open", "_space", "_stretches")

    def __init__(self, space: Scattered) -> None:
        super().__init__(space.address, size=None, seekable=True)
        self._space = space
        self._open: dict[int, Source] = {}
        self.expect([])

    def expect(self, stretches: list[tuple[int, int]]) -> None:
        """What is wanted next. Forgets what was fetched before."""
        self._stretches = stretches
        self._begins = [begin for begin, _ in stretches]
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
        number = offset >> OBJECT_BITS
        source = self._open.get(number)
        if source is None:
            source = self._open[number] = open_source(self._space.chunk(number), decompress=False)
        return source.read_at(offset - (number << OBJECT_BITS), length)

    def close(self) -> None:
        for source in self._open.values():
            source.close()
        self._open.clear()
