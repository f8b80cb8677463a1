"""Sets taken in turn, by shares: which sample of which set comes next.

What it is: :class:`Shares`, the whole numbers that stand for the weights, and :func:`interleaved`, the order. How:
sample j (from 0) of a set with weight w has the time (j + 1/2) / w. Samples come by rising time, those of one time by
the number of their set. After N samples each set has given its share of N, off by at most 1/2 + (sets - 2) * share / 2:
less than one sample for two or three sets, and for any number with equal weights. The time of a sample depends on
nothing but its set and its place there, so that any number of samples can be ordered in any number of pieces:
:func:`turn_blocks`.

All arithmetic is exact. It must not know what samples are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from math import ceil, floor, gcd, lcm
from typing import TYPE_CHECKING, Literal, NamedTuple

from wdscli.errors import UsageError

if TYPE_CHECKING:
    from wdscli.ops.rows import I64, U32, U64

Stop = Literal["first", "all", "repeat"]

LARGEST = 1 << 31
"""Whole numbers above this would not leave the arithmetic below exact."""
MOST = 1 << 32
"""More samples than this are not laid out."""
_TICK_BITS = 64
_NUMBER = re.compile(r"\d{1,12}(\.\d{0,12})?|\.\d{1,12}|\d{1,12}/\d{1,12}", re.ASCII)


class Shares(NamedTuple):
    """Weights as whole numbers without a common divisor, one a set."""

    numbers: tuple[int, ...]

    @classmethod
    def equal(cls, sets: int) -> Shares:
        """One sample of each set in turn."""
        return cls((1,) * sets)

    @classmethod
    def parse(cls, text: str) -> Shares:
        """From ``0.7,0.3``, ``7,3`` or ``1/3,2/3``. Raises UsageError.

        >>> Shares.parse("0.7,0.3")
        Shares(numbers=(7, 3))
        """
        weights = [_weight(word.strip(), text) for word in text.split(",")]
        scale = lcm(*(weight.denominator for weight in weights))
        whole = [int(weight * scale) for weight in weights]
        divisor = gcd(*whole)
        numbers = tuple(number // divisor for number in whole)
        if max(numbers) > LARGEST:
            raise UsageError(
                f'the weights in "{text}" are too fine to be exact', hint="give them with fewer digits"
            )
        return cls(numbers)


def _weight(word: str, text: str) -> Fraction:
    try:
        weight = Fraction(word) if _NUMBER.fullmatch(word) else None
    except ZeroDivisionError:
        weight = None
    if weight is None:
        raise UsageError(f'"{word}" in --weights {text} is not a weight', hint="--weights 0.7,0.3")
    if not weight:
        raise UsageError(f"a weight of 0 in --weights {text}", hint="leave the set out instead")
    return weight


class Interleaved(NamedTuple):
    """The order: places in the sequence of all samples, set after set. ``rounds`` says which time over a set is gone
    through, from 0; None when each sample comes once. ``left`` counts samples that do not come at all."""

    order: I64
    rounds: U32 | None
    left: int


def interleaved(counts: Sequence[int], shares: Shares, stop: Stop = "all") -> Interleaved:
    """The order in which sets of so many samples are gone through.

    ``first`` stops where a set should give a sample and has none left; ``all`` goes on with the others until all are
    used up; ``repeat`` begins the shorter ones again until the longest, by its share, has given its last. Raises
    UsageError when that would be more than :data:`MOST` samples.
    """
    import numpy

    taken = turns_of(counts, shares, stop)
    order = _by_time([(0, take) for take in taken], shares)
    if taken == list(counts):
        return Interleaved(order, None, 0)
    left = left_out(counts, taken)
    begins = [0, *accumulate(counts)]
    if all(take <= count for take, count in zip(taken, counts, strict=True)):
        rows: I64 = numpy.concatenate(
            [numpy.arange(at, at + take) for at, take in zip(begins[:-1], taken, strict=True)]
        )
        return Interleaved(rows[order], None, left)
    turns: I64 = numpy.concatenate([numpy.arange(take) for take in taken])
    rounds, places = numpy.divmod(turns, numpy.repeat(numpy.maximum(counts, 1), taken))
    places += numpy.repeat(begins[:-1], taken)
    return Interleaved(places[order], rounds[order].astype(numpy.uint32), left)


def left_out(counts: Sequence[int], taken: Sequence[int]) -> int:
    """How many samples do not come at all."""
    return sum(max(0, count - take) for count, take in zip(counts, taken, strict=True))


def turns_of(counts: Sequence[int], shares: Shares, stop: Stop) -> list[int]:
    """How many samples each set gives, repeated ones included; see :func:`interleaved`. Raises UsageError."""
    taken = _taken(counts, shares, stop)
    if sum(taken) > MOST:
        short = min((count, number) for number, count in enumerate(counts) if count)
        raise UsageError(
            f"--stop repeat would write {sum(taken)} samples, since input {short[1] + 1} has only {short[0]}",
            hint="give it less weight, or --stop all",
        )
    return taken


def turn_blocks(
    taken: Sequence[int], shares: Shares, size: int
) -> Iterator[tuple[list[tuple[int, int]], I64]]:
    """The same order, about ``size`` samples at a time: which samples of each set, and the order over all of these, set
    after set."""
    begins, ticks = [0] * len(taken), 0
    while rate := sum(
        share for share, begin, take in zip(shares.numbers, begins, taken, strict=True) if begin < take
    ):
        # Any point in time is a cut; this one has about so many samples before it.
        ticks += max(1, (2 * size << _TICK_BITS) // rate)
        ends = [
            min(take, _before(Fraction(ticks * share, 1 << _TICK_BITS), False))
            for share, take in zip(shares.numbers, taken, strict=True)
        ]
        spans = list(zip(begins, ends, strict=True))
        yield spans, _by_time(spans, shares)
        begins = ends


def _taken(counts: Sequence[int], shares: Shares, stop: Stop) -> list[int]:
    """How many samples each set gives, however many these are."""
    if stop == "all":
        return list(counts)
    # Where it ends: at the turn that a set has no sample for, or with the last sample of the set that ends last.
    step = 1 if stop == "first" else -1
    ends = [
        (Fraction(2 * count + step, share), number)
        for number, (count, share) in enumerate(zip(counts, shares.numbers, strict=True))
        if count or stop == "first"
    ]
    if not ends:
        return [0] * len(counts)
    time, last = min(ends) if stop == "first" else max(ends)
    return [
        _before(time * share, number < last or (stop == "repeat" and number == last)) if count else 0
        for number, (count, share) in enumerate(zip(counts, shares.numbers, strict=True))
    ]


def _before(end: Fraction, inclusive: bool) -> int:
    """How many of the odd numbers 1, 3, 5, ... are below ``end``, or not above it."""
    half = (end - 1) / 2
    return max(0, floor(half) + 1 if inclusive else ceil(half))


def _by_time(spans: Sequence[tuple[int, int]], shares: Shares) -> I64:
    """The places of some samples of each set, set after set, by rising time; sets that are equal in time stay in their
    order."""
    import numpy

    ends = [0, *accumulate(end - first for first, end in spans)]
    scale = lcm(*shares.numbers)
    steps = [scale // share for share in shares.numbers]
    if all(2 * end * step < 1 << 64 for (_, end), step in zip(spans, steps, strict=True)):
        times: U64 = numpy.empty(ends[-1], dtype=numpy.uint64)
        for (first, end), span, step in zip(pairwise(ends), spans, steps, strict=True):
            times[first:end] = _odd(*span) * numpy.uint64(step)
        return numpy.argsort(times, kind="stable")
    whole: U64 = numpy.empty(ends[-1], dtype=numpy.uint64)
    parts: U64 = numpy.empty(ends[-1], dtype=numpy.uint64)
    for (first, end), span, share in zip(pairwise(ends), spans, shares.numbers, strict=True):
        whole[first:end], parts[first:end] = times_of(*span, share)
    return numpy.lexsort((parts, whole))


def _odd(first: int, end: int) -> U64:
    """2j + 1 for each j from ``first`` to ``end``."""
    import numpy

    return numpy.arange(2 * first + 1, 2 * end, 2, dtype=numpy.uint64)


def times_of(first: int, end: int, share: int) -> tuple[U64, U64]:
    """(2j + 1) / share for each j from ``first`` to ``end``, as a whole number and 64 binary places of the rest.

    Shares are at most 2^31, so two times that differ do so by at least 2^-62: cutting the rest off neither makes
    different times equal nor exchanges them.
    """
    import numpy

    divisor, shift = numpy.uint64(share), numpy.uint64(32)
    whole, rest = numpy.divmod(_odd(first, end), divisor)
    upper, rest = numpy.divmod(rest << shift, divisor)
    return whole, (upper << shift) | ((rest << shift) // divisor)
