"""This module has orders that are only arithmetic: the order of a shuffle, and the order of sets that take turns.

A shuffle sorts samples by their ranks. A rank is a keyed hash (splitmix64) of a sample's place. The rank is computed in
plain Python for one place, and with numpy for many places. All arithmetic is modulo 2^64. A rank depends on the seed,
the shard's place in the list of inputs and the sample's place in its shard. So the number of jobs, the memory and the
engine cannot change the order. The order is the same in all versions, and other programs can compute it. The random
module and numpy's generators are never used, because their numbers may change between versions.

Sets take turns for ``merge --weights`` (:class:`Shares`, :func:`interleaved`). Sample j (from 0) of a set with weight w
has the time (j + 1/2) / w. Samples are sorted by time, and samples of equal time by the number of their set. Among the
first N samples, the number of samples from a set differs from its share of N by at most 1/2 + (sets - 2) * share / 2.
The difference is less than one sample for two or three sets, and for any number of sets with equal weights. All
arithmetic is exact.

This module does not know samples.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import ceil, floor, gcd, lcm
from typing import TYPE_CHECKING, Literal, NamedTuple

from wdscli.arrays import I64, U32, U64, numpy
from wdscli.errors import UsageError

if TYPE_CHECKING:
    from fractions import Fraction

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def mix(number: int) -> int:
    """Return the output of splitmix64 for the state ``x``, which is taken modulo 2^64.

    >>> hex(mix(0))
    '0xe220a8397b1dcdaf'
    """
    number = (number + _STEP) & _MASK
    number = ((number ^ number >> 30) * _FIRST) & _MASK
    number = ((number ^ number >> 27) * _SECOND) & _MASK
    return number ^ number >> 31


def rank(seed: int, shard: int, sample: int) -> int:
    """Return the rank of sample number ``sample`` of shard number ``shard``. Samples and shards count from 0. The rank
    is from 0 to 2^64 - 1.

    A shuffle sorts samples by (rank, shard, sample).
    """
    return mix(mix(mix(seed) ^ shard) ^ sample)


def rank_places(seed: int, shards: U32, places: U32) -> U64:
    """Return the :func:`rank` of each sample. Sample i is sample number ``places[i]`` of shard number ``shards[i]``."""
    ranks: U64 = shards.astype(numpy.uint64)
    ranks ^= numpy.uint64(mix(seed))
    ranks = mix_array(ranks)
    ranks ^= places
    return mix_array(ranks)


def mix_array(numbers: U64) -> U64:
    """Apply :func:`mix` to each number in place."""
    numbers += numpy.uint64(_STEP)
    numbers ^= numbers >> numpy.uint64(30)
    numbers *= numpy.uint64(_FIRST)
    numbers ^= numbers >> numpy.uint64(27)
    numbers *= numpy.uint64(_SECOND)
    numbers ^= numbers >> numpy.uint64(31)
    return numbers


Stop = Literal["first", "all"]
LARGEST_SHARE = 1 << 31
"""The largest number in :class:`Shares` for which the arithmetic is exact."""
_NUMBER = re.compile(r"\d{1,12}(\.\d{0,12})?|\.\d{1,12}|\d{1,12}/\d{1,12}", re.ASCII)


class Shares(NamedTuple):
    """The weights of the sets, as whole numbers without a common divisor."""

    numbers: tuple[int, ...]

    @classmethod
    def equal(cls, sets: int) -> Shares:
        """Return equal weights, so that each set gives one sample in turn."""
        return cls((1,) * sets)

    @classmethod
    def parse(cls, text: str) -> Shares:
        """Return the weights in a text such as ``0.7,0.3``, ``7,3`` or ``1/3,2/3``. Raises UsageError.

        >>> Shares.parse("0.7,0.3")
        Shares(numbers=(7, 3))
        """
        weights = [_weight(word.strip(), text) for word in text.split(",")]
        scale = lcm(*(weight.denominator for weight in weights))
        whole = [int(weight * scale) for weight in weights]
        divisor = gcd(*whole)
        numbers = tuple(number // divisor for number in whole)
        if max(numbers) > LARGEST_SHARE:
            raise UsageError(
                f'the weights in "{text}" have too many digits to be exact', hint="use fewer digits"
            )
        return cls(numbers)


def _weight(word: str, text: str) -> Fraction:
    from fractions import Fraction

    try:
        weight = Fraction(word if _NUMBER.fullmatch(word) else "1/0")
    except ZeroDivisionError:
        raise UsageError(f'"{word}" in --weights {text} is not a weight', hint="--weights 0.7,0.3") from None
    if not weight:
        raise UsageError(f"--weights {text} has a weight of 0", hint="leave the set out instead")
    return weight


def interleaved(counts: Sequence[int], shares: Shares, stop: Stop = "all") -> tuple[I64, int]:
    """Return the order in which the sets take turns, and the number of samples left out. ``counts`` has the number of
    samples of each set. The order has the places of samples in the sequence of all samples, set after set.

    With ``stop="first"``, the order ends when it is the turn of a set that has no samples left. With ``"all"``, the
    other sets continue until all samples are used.
    """
    taken = _taken(counts, shares, stop)
    order = _by_time(taken, shares)
    if taken != list(counts):
        begins = [0, *accumulate(taken)]
        # Convert places among the taken samples to places among all samples.
        shift: I64 = numpy.repeat(
            numpy.array([0, *accumulate(counts)][:-1], dtype=numpy.int64) - begins[:-1], taken
        )
        order += shift[order]
    return order, sum(counts) - sum(taken)


def _taken(counts: Sequence[int], shares: Shares, stop: Stop) -> list[int]:
    """Return the number of samples that each set gives."""
    from fractions import Fraction

    if stop == "all":
        return list(counts)
    # The order ends at the first turn of a set that has no samples left.
    ends = [
        (Fraction(2 * count + 1, share), number)
        for number, (count, share) in enumerate(zip(counts, shares.numbers, strict=True))
    ]
    time, last = min(ends)
    return [
        _before(time * share, number < last) if count else 0
        for number, (count, share) in enumerate(zip(counts, shares.numbers, strict=True))
    ]


def _before(end: Fraction, inclusive: bool) -> int:
    """Return how many of the odd numbers 1, 3, 5, ... are below ``end``; if ``inclusive``, ``end`` itself counts
    too."""
    half = (end - 1) / 2
    return max(0, floor(half) + 1 if inclusive else ceil(half))


def _by_time(taken: Sequence[int], shares: Shares) -> I64:
    """Return the places of the first ``taken[i]`` samples of each set i, sorted by time. Samples of equal time are in
    the order of their sets."""
    ends = [0, *accumulate(taken)]
    scale = lcm(*shares.numbers)
    steps = [scale // share for share in shares.numbers]
    if all(2 * take * step < 1 << 64 for take, step in zip(taken, steps, strict=True)):
        times: U64 = numpy.empty(ends[-1], dtype=numpy.uint64)
        for (first, end), step in zip(pairwise(ends), steps, strict=True):
            times[first:end] = _odd(end - first)
            times[first:end] *= numpy.uint64(step)
        return numpy.argsort(times, kind="stable").astype(numpy.int64, copy=False)
    whole: U64 = numpy.empty(ends[-1], dtype=numpy.uint64)
    parts: U64 = numpy.empty(ends[-1], dtype=numpy.uint64)
    for (first, end), share in zip(pairwise(ends), shares.numbers, strict=True):
        whole[first:end], parts[first:end] = _times(end - first, share)
    return numpy.lexsort((parts, whole)).astype(numpy.int64, copy=False)


def _odd(count: int) -> U64:
    """Return 2j + 1 for each j from 0 to ``count`` - 1."""
    return numpy.arange(1, 2 * count, 2, dtype=numpy.uint64)


def _times(count: int, share: int) -> tuple[U64, U64]:
    """Return (2j + 1) / share for each j from 0 to ``count`` - 1: the whole numbers, and 64 binary digits of the
    fractions.

    Shares are at most 2^31, so two different times differ by at least 2^-62. So 64 binary digits are enough to compare
    times correctly.
    """
    divisor, shift = numpy.uint64(share), numpy.uint64(32)
    whole, remainder = numpy.divmod(_odd(count), divisor)
    upper, remainder = numpy.divmod(remainder << shift, divisor)
    return whole, (upper << shift) | ((remainder << shift) // divisor)
