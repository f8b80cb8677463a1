"""What a row of a plan keeps of a sample's headers, by which it is known again while it is copied.

What it is: :func:`headers_of`, 32 bits of the fields and sizes of each sample's members; the survey writes them down,
and who copies compares them with the headers that it meets. It must not know rows or plans.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from xxhash import xxh3_64_intdigest

from wdscli.samples import SampleBatch

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    from wdscli.plan.table import I64, U32, U64


def are_those(found: U32, planned: U32) -> NDArray[numpy.bool_]:
    """Of which samples the headers are those that were planned, as far as that is known."""
    same: NDArray[numpy.bool_] = (found == planned) | (planned == 0)
    return same


def headers_of(names: U64, sizes: U64, counts: I64) -> U32:
    """For each sample 32 bits of the fields and sizes of its members, in their order, by which it is known again while
    it is copied. ``names`` are the XXH3-64 of the members' fields; sample i has ``counts[i]`` members.

    All modulo 2^64: member j (from 0) of a sample gives x = (name ^ size * 0x9E3779B97F4A7C15) * 0xBF58476D1CE4E5B9,
    then (x ^ x >> 32) * (2 * j + 1); the upper half of their sum is taken, but 1 for 0.
    """
    import numpy

    if not len(counts):
        return numpy.empty(0, dtype=numpy.uint32)
    firsts = numpy.cumsum(counts) - counts
    mixed = names ^ sizes * numpy.uint64(0x9E3779B97F4A7C15)
    mixed *= numpy.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> numpy.uint64(32)
    odd = 2 * (numpy.arange(len(names)) - firsts.repeat(counts)) + 1
    mixed *= odd.astype(numpy.uint64)
    sums: U64 = numpy.add.reduceat(mixed, firsts)
    return numpy.maximum(sums >> numpy.uint64(32), numpy.uint64(1)).astype(numpy.uint32)


class _FieldHashes(dict[bytes, int]):
    """XXH3-64 of fields; a set has few."""

    __slots__ = ()

    def __missing__(self, field: bytes) -> int:
        if len(self) >= 1 << 12:
            self.clear()
        found = self[field] = xxh3_64_intdigest(field)
        return found


_FIELD_HASHES = _FieldHashes()


def hashes_of(fields: Sequence[bytes]) -> U64:
    """The XXH3-64 of fields."""
    import numpy

    return numpy.frombuffer(array("Q", map(_FIELD_HASHES.__getitem__, fields)), dtype=numpy.uint64)


def headers_of_batch(batch: SampleBatch) -> U32:
    """:func:`headers_of` of the samples of a batch."""
    return headers_of_batches([(batch, None)])


def headers_of_batches(batches: Sequence[tuple[SampleBatch, Sequence[int] | None]]) -> U32:
    """:func:`headers_of` of some samples of some batches, None for all, one behind the other."""
    import numpy

    fields: list[bytes] = []
    sizes: list[int] = []
    counts: list[int] = []
    chosen: list[int] = []
    for batch, rows in batches:
        first, end = batch.firsts[0], batch.firsts[-1]
        here = len(counts)
        fields += batch.fields[first:end]
        sizes += batch.sizes[first:end]
        counts += map(int.__sub__, batch.firsts[1:], batch.firsts)
        chosen += range(here, len(counts)) if rows is None else [here + row for row in rows]
    found = headers_of(
        hashes_of(fields), numpy.array(sizes, dtype=numpy.uint64), numpy.array(counts, dtype=numpy.int64)
    )
    return found if len(chosen) == len(found) else found[chosen]
