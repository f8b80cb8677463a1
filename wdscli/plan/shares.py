"""The arithmetic of parts: shares of a whole, the part of a hash, and quotas per class.

What it is: :func:`parse_ratio`; :func:`parts_of_ranks`, which takes the hash of a sample (or of its group) to its part
and needs to know of no other sample; :func:`stratified`, which gives each class its own quotas. How: shares are exact
fractions, hashes are compared with whole numbers, and nothing is ever rounded by a float. It must not know where
hashes come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from wdscli.errors import UsageError
from wdscli.ordering import mix, mix_array
from wdscli.plan.outputs import checked_part

if TYPE_CHECKING:
    from wdscli.plan.table import I64, U64

_HINT = "--ratio train=0.8,val=0.1,test=0.1, or whole numbers: --ratio train=8,val=1,test=1"
_TOLERANCE = Fraction(1, 100)
"""How far from 1 the sum of fractions may be, for those who write 0.33 three times."""


class Share(NamedTuple):
    """A part and its share of the whole; those of all parts sum to exactly 1."""

    part: str
    share: Fraction


def parse_ratio(text: str) -> tuple[Share, ...]:
    """Shares as they are typed: fractions that sum to 1, or whole numbers that are weights. Raises UsageError.

    >>> parse_ratio("train=8,val=2")
    (Share(part='train', share=Fraction(4, 5)), Share(part='val', share=Fraction(1, 5)))
    """
    given: dict[str, Fraction] = {}
    for word in text.split(","):
        name, equals, number = word.partition("=")
        name = checked_part(name.strip()) if equals else ""
        if not name:
            raise UsageError(f'--ratio: "{word.strip()}" is not PART=SHARE', hint=_HINT)
        if name in given:
            raise UsageError(f'--ratio names "{name}" twice', hint=_HINT)
        given[name] = _number(name, number.strip())
    total = sum(given.values(), Fraction(0))
    if any(number.denominator > 1 for number in given.values()) and abs(total - 1) > _TOLERANCE:
        raise UsageError(f"--ratio: the shares sum to {float(total):g}, not to 1", hint=_HINT)
    return tuple(Share(name, number / total) for name, number in given.items())


def _number(name: str, text: str) -> Fraction:
    try:
        number = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise UsageError(f'--ratio: "{text}" of {name} is no number', hint=_HINT) from None
    if number <= 0:
        raise UsageError(f"--ratio: the share of {name} must be more than 0", hint="leave the part out")
    return number


def bounds(shares: Sequence[Share]) -> list[int]:
    """The rank at which each part but the first begins: a rank is in the first part whose shares, summed up, are more
    than rank / 2^64."""
    sums = list(accumulate(share.share for share in shares))[:-1]
    # The least whole number that is not below the sum: ceil.
    return [-(-(total.numerator << 64) // total.denominator) for total in sums]


def rank_of(seed: int, digest: int) -> int:
    """The rank of a group of this XXH3-64: ``mix(mix(seed) ^ digest)``, pinned as the order of a shuffle is."""
    return mix(mix(seed) ^ digest)


def ranks_of(seed: int, digests: U64) -> U64:
    """:func:`rank_of` each."""
    import numpy

    return mix_array(digests ^ numpy.uint64(mix(seed)))


def parts_of_ranks(ranks: U64, shares: Sequence[Share]) -> I64:
    """The number of the part of each rank, from 0."""
    import numpy

    # A part so small that no rank is in it begins where there is no rank any more.
    begins = numpy.array([min(bound, (1 << 64) - 1) for bound in bounds(shares)], dtype=numpy.uint64)
    return numpy.searchsorted(begins, ranks, side="right").astype(numpy.int64, copy=False)


def stratified(digests: U64, classes: I64, seed: int, shares: Sequence[Share]) -> I64:
    """The part of each sample, such that the shares hold in each class.

    Samples of one digest are a group and stay together; a group belongs to the class that most of its samples are of
    (of equally many, to the one with the lower number). In each class the groups, in the order of their ranks, fill the
    class's quota of the first part, then that of the second, and so on: a group goes where its middle falls.
    """
    import numpy

    if not len(digests):
        return numpy.empty(0, dtype=numpy.int64)
    groups, group_of, sizes = numpy.unique(digests, return_inverse=True, return_counts=True)
    group_of = group_of.reshape(-1)
    class_of = _majorities(group_of, classes, len(groups))
    order = numpy.lexsort((ranks_of(seed, groups), class_of))
    sizes, ordered_classes = sizes[order].astype(numpy.int64), class_of[order]
    counts: I64 = numpy.zeros(int(classes.max()) + 1, dtype=numpy.int64)
    numpy.add.at(counts, ordered_classes, sizes)
    begins = numpy.cumsum(sizes) - sizes
    begins -= (numpy.cumsum(counts) - counts)[ordered_classes]
    middles = 2 * begins + sizes
    filled = numpy.cumsum(numpy.array(quotas(counts.tolist(), shares), dtype=numpy.int64), axis=1)
    part_of_group: I64 = numpy.empty(len(groups), dtype=numpy.int64)
    part_of_group[order] = sum(
        (middles > 2 * filled[ordered_classes, part]).astype(numpy.int64) for part in range(len(shares) - 1)
    )
    return part_of_group[group_of]


def _majorities(group_of: I64, classes: I64, groups: int) -> I64:
    """The class of most samples of each group, the lowest of several."""
    import numpy

    width = int(classes.max()) + 1
    pairs, counts = numpy.unique(group_of * width + classes, return_counts=True)
    # From the rarest to the most frequent, and from the highest class to the lowest: the last one written stays.
    order = numpy.lexsort((-(pairs % width), counts))
    found: I64 = numpy.empty(groups, dtype=numpy.int64)
    found[pairs[order] // width] = pairs[order] % width
    return found


def quotas(counts: Sequence[int], shares: Sequence[Share]) -> list[list[int]]:
    """For classes of so many samples, how many go to each part: by largest remainder, each within one of what the
    share says. What a part was given too little of in the classes before counts as remainder too, so that in small
    classes the small parts get their turn.

    >>> quotas([10, 4, 4, 4], parse_ratio("train=0.8,val=0.1,test=0.1"))
    [[8, 1, 1], [3, 1, 0], [3, 0, 1], [4, 0, 0]]
    """
    from math import lcm

    whole = lcm(*(share.share.denominator for share in shares))
    weights = [int(share.share * whole) for share in shares]
    owed = [0] * len(shares)
    found = []
    for count in counts:
        quota, rests = map(list, zip(*(divmod(count * weight, whole) for weight in weights), strict=True))
        owed = [debt + rest for debt, rest in zip(owed, rests, strict=True)]
        open_parts = sorted((part for part, rest in enumerate(rests) if rest), key=lambda part: -owed[part])
        for part in open_parts[: count - sum(quota)]:
            quota[part] += 1
            owed[part] -= whole
        found.append(quota)
    return found
