"""The pinned order of a shuffle: a keyed hash of each sample's place.

This module computes splitmix64 and ranks, in plain Python for one sample at a time, and with numpy for many. All
arithmetic is modulo 2^64. A rank depends on the seed, the shard's place in the list of inputs and the sample's place in
its shard. So jobs, memory and engine cannot change it. The order is pinned so that other programs can give the same
shuffle. The random module and numpy's generators are never used, because their streams may change between versions.
"""

from __future__ import annotations

from wdscli.arrays import U32, U64, numpy

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def mix(x: int) -> int:
    """splitmix64's output for the state ``x`` (taken modulo 2^64).

    >>> hex(mix(0))
    '0xe220a8397b1dcdaf'
    """
    x = (x + _STEP) & _MASK
    x = ((x ^ x >> 30) * _FIRST) & _MASK
    x = ((x ^ x >> 27) * _SECOND) & _MASK
    return x ^ x >> 31


def rank(seed: int, shard: int, sample: int) -> int:
    """The rank of sample number ``sample`` of shard number ``shard``, both from 0: 0 ≤ rank < 2^64.

    Samples are ordered by (rank, shard, sample).
    """
    return mix(mix(mix(seed) ^ shard) ^ sample)


def rank_places(seed: int, shards: U32, places: U32) -> U64:
    """Return the :func:`rank` of each sample; samples are given by shard number and sample number."""
    x: U64 = shards.astype(numpy.uint64)
    x ^= numpy.uint64(mix(seed))
    x = mix_array(x)
    x ^= places
    return mix_array(x)


def mix_array(x: U64) -> U64:
    """Apply :func:`mix` to each number in place."""
    x += numpy.uint64(_STEP)
    x ^= x >> numpy.uint64(30)
    x *= numpy.uint64(_FIRST)
    x ^= x >> numpy.uint64(27)
    x *= numpy.uint64(_SECOND)
    x ^= x >> numpy.uint64(31)
    return x
