"""This module has orders that are only arithmetic: the order of a shuffle, the order of sets that take turns, and the
order of byte strings. :func:`order_of_hashes` and :func:`order_of_values` are the sorts of most plans.

A shuffle sorts samples by their ranks. A rank is a keyed hash (splitmix64) of a sample's place. The rank is computed in
plain Python for one place, and with numpy for many places. All arithmetic is modulo 2^64. A rank depends on the seed,
the shard's place in the list of inputs and the sample's place in its shard. So the number of jobs, the memory and the
engine cannot change the order. The order is the same in all versions, and other programs can compute it. The random
module and numpy's generators are never used, because their numbers may change between versions.

Sets take turns for ``merge --weights`` (:func:`interleaved`). Sample j (from 0) of a set with weight w
has the time (j + 1/2) / w. Samples are sorted by time, and samples of equal time by the number of their set. Among the
first N samples, the number of samples from a set differs from its share of N by at most 1/2 + (sets - 2) * share / 2.
The difference is less than one sample for two or three sets, and for any number of sets with equal weights. All
arithmetic is exact.

A set is divided into parts by shares (:func:`parts_of_ranks`, :func:`stratified`). A hash is compared with shares of
2^64. So a sample's part does not depend on the other samples. Shares are exact fractions, never floats.

This module does not know samples.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from math import ceil, floor, gcd, lcm
from typing import TYPE_CHECKING, Any, Literal

from wdscli.arrays import I64, ROWS_PER_BLOCK, U32, U64, Mask, blocks_of, distinct, numpy
from wdscli.errors import UsageError

if TYPE_CHECKING:
    from fractions import Fraction

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
WORD_BYTES = 8
"""How many bytes of values are compared together."""


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
LARGEST_WEIGHT = 1 << 31
"""The largest weight for which the arithmetic is exact."""
_NUMBER = re.compile(r"\d{1,12}(\.\d{0,12})?|\.\d{1,12}|\d{1,12}/\d{1,12}", re.ASCII)


def parse_weights(text: str) -> tuple[int, ...]:
    """Return the weights in a text such as ``0.7,0.3``, ``7,3`` or ``1/3,2/3``, as whole numbers without a common
    divisor. Raises UsageError.

    >>> parse_weights("0.7,0.3")
    (7, 3)
    """
    weights = [_weight(word.strip(), text) for word in text.split(",")]
    scale = lcm(*(weight.denominator for weight in weights))
    whole = [int(weight * scale) for weight in weights]
    divisor = gcd(*whole)
    numbers = tuple(number // divisor for number in whole)
    if max(numbers) > LARGEST_WEIGHT:
        raise UsageError(f'the weights in "{text}" have too many digits to be exact', hint="use fewer digits")
    return numbers


def _weight(word: str, text: str) -> Fraction:
    from fractions import Fraction

    try:
        weight = Fraction(word if _NUMBER.fullmatch(word) else "1/0")
    except ZeroDivisionError:
        raise UsageError(f'"{word}" in --weights {text} is not a weight', hint="--weights 0.7,0.3") from None
    if not weight:
        raise UsageError(f"--weights {text} has a weight of 0", hint="leave the set out instead")
    return weight


def interleaved(counts: Sequence[int], weights: Sequence[int], stop: Stop = "all") -> tuple[I64, int]:
    """Return the order in which the sets take turns, and the number of samples left out. ``counts`` has the number of
    samples of each set. The order has the places of samples in the sequence of all samples, set after set.

    With ``stop="first"``, the order ends when it is the turn of a set that has no samples left. With ``"all"``, the
    other sets continue until all samples are used.
    """
    taken = _taken(counts, weights, stop)
    order = _by_time(taken, weights)
    if taken != list(counts):
        begins = [0, *accumulate(taken)]
        # Convert places among the taken samples to places among all samples.
        shift: I64 = numpy.repeat(
            numpy.array([0, *accumulate(counts)][:-1], dtype=numpy.int64) - begins[:-1], taken
        )
        order += shift[order]
    return order, sum(counts) - sum(taken)


def _taken(counts: Sequence[int], weights: Sequence[int], stop: Stop) -> list[int]:
    """Return the number of samples that each set gives."""
    from fractions import Fraction

    if stop == "all":
        return list(counts)
    # The order ends at the first turn of a set that has no samples left.
    ends = [
        (Fraction(2 * count + 1, weight), number)
        for number, (count, weight) in enumerate(zip(counts, weights, strict=True))
    ]
    time, last = min(ends)
    return [
        _before(time * weight, number < last) if count else 0
        for number, (count, weight) in enumerate(zip(counts, weights, strict=True))
    ]


def _before(end: Fraction, inclusive: bool) -> int:
    """Return how many of the odd numbers 1, 3, 5, ... are below ``end``; if ``inclusive``, ``end`` itself counts
    too."""
    half = (end - 1) / 2
    return max(0, floor(half) + 1 if inclusive else ceil(half))


def _by_time(taken: Sequence[int], weights: Sequence[int]) -> I64:
    """Return the places of the first ``taken[i]`` samples of each set i, sorted by time. Samples of equal time are in
    the order of their sets."""
    ends = [0, *accumulate(taken)]
    scale = lcm(*weights)
    steps = [scale // weight for weight in weights]
    if all(2 * take * step < 1 << 64 for take, step in zip(taken, steps, strict=True)):
        times: U64 = numpy.empty(ends[-1], dtype=numpy.uint64)
        for (first, end), step in zip(pairwise(ends), steps, strict=True):
            times[first:end] = _odd(end - first)
            times[first:end] *= numpy.uint64(step)
        return numpy.argsort(times, kind="stable").astype(numpy.int64, copy=False)
    whole: U64 = numpy.empty(ends[-1], dtype=numpy.uint64)
    parts: U64 = numpy.empty(ends[-1], dtype=numpy.uint64)
    for (first, end), weight in zip(pairwise(ends), weights, strict=True):
        whole[first:end], parts[first:end] = _times(end - first, weight)
    return numpy.lexsort((parts, whole)).astype(numpy.int64, copy=False)


def _odd(count: int) -> U64:
    """Return 2j + 1 for each j from 0 to ``count`` - 1."""
    return numpy.arange(1, 2 * count, 2, dtype=numpy.uint64)


def _times(count: int, weight: int) -> tuple[U64, U64]:
    """Return (2j + 1) / weight for each j from 0 to ``count`` - 1: the whole numbers, and 64 binary digits of the
    fractions.

    Weights are at most 2^31, so two different times differ by at least 2^-62. So 64 binary digits are enough to compare
    times correctly.
    """
    divisor, shift = numpy.uint64(weight), numpy.uint64(32)
    whole, remainder = numpy.divmod(_odd(count), divisor)
    upper, remainder = numpy.divmod(remainder << shift, divisor)
    return whole, (upper << shift) | ((remainder << shift) // divisor)


def order_of_hashes(total: int, hashes: Callable[[Any], U64]) -> I64:
    """Return the row numbers from 0 to ``total - 1``, sorted by hash, then by row. ``hashes`` returns the hashes for a
    slice or an array of rows.

    For each row, one number is sorted: the upper bits of the hash, followed by the row number. This is several times as
    fast as an argsort, and needs half the memory. The few rows with equal upper bits are then sorted by their whole
    hashes.
    """
    mask = numpy.uint64((1 << max(1, total - 1).bit_length()) - 1)
    packed: U64 = numpy.arange(total, dtype=numpy.uint64)
    for part in blocks_of(total):
        packed[part] |= hashes(part) & ~mask
    packed.sort()
    ties: list[I64] = []
    for part in blocks_of(total - 1):
        block = packed[part.start : part.stop + 1]
        ties.append(numpy.flatnonzero(block[1:] ^ block[:-1] <= mask) + part.start)
    packed &= mask
    order: I64 = packed.view(numpy.int64)
    if any(map(len, ties)):
        places = numpy.union1d(firsts := numpy.concatenate(ties), firsts + 1)
        # A run of ties begins where a place does not tie with the one before it.
        run = numpy.cumsum(~numpy.isin(places - 1, firsts))
        rows = order[places]
        order[places] = rows[numpy.lexsort((rows, hashes(rows), run))]
    return order


def repeated(hashes: U64) -> tuple[I64, U64]:
    """Return the rows with a hash that occurs more than once, sorted by hash and then by row. Also return their
    hashes."""
    # Usually no hash is repeated, and a sorted copy of the hashes is enough to show it.
    ordered = numpy.sort(hashes)
    again = distinct(ordered[1:][ordered[1:] == ordered[:-1]])
    del ordered
    if not len(again):
        return numpy.empty(0, dtype=numpy.int64), again
    row_blocks: list[I64] = []
    for part in blocks_of(len(hashes)):
        near = numpy.minimum(again.searchsorted(hashes[part]), len(again) - 1)
        row_blocks.append(numpy.flatnonzero(again[near] == hashes[part]) + part.start)
    rows: I64 = numpy.concatenate(row_blocks)
    rows = rows[numpy.argsort(hashes[rows], kind="stable")]
    return rows, hashes[rows]


def order_of_values(starts: I64, lengths: U32, data: memoryview) -> I64:
    """Return the rows sorted by their values. The value of row i is the ``lengths[i]`` bytes of ``data`` from
    ``starts[i]`` on. In ``data``, eight spare bytes follow the last value. Rows with equal values stay in their order.

    Values are compared eight bytes at a time, as whole numbers. This begins after the common prefix of all values.
    Values with equal numbers are compared by their next eight bytes, and so on. A value that ends within the eight
    bytes is padded with zeros. If two numbers are equal and one value ends there, the shorter value comes first. Only
    values that both continue are compared further.
    """
    return _Ordering(starts, lengths, data).order()


class _Ordering:
    """The state of one call of :func:`order_of_values`."""

    def __init__(self, starts: I64, lengths: U32, data: memoryview) -> None:
        self.starts, self.lengths = starts, lengths
        # An eight-byte number can be read at every byte.
        count = max(0, len(data) - WORD_BYTES + 1)
        self._words = numpy.ndarray((count,), dtype=">u8", buffer=data, strides=(1,))
        ones = (1 << 64) - 1
        masks = [ones ^ (ones >> 8 * size) for size in range(WORD_BYTES + 1)]
        self._masks: U64 = numpy.array(masks, dtype=numpy.uint64)

    def order(self) -> I64:
        total = len(self.starts)
        depth = self._common()
        words: U64 = numpy.empty(total, dtype=numpy.uint64)
        for part in blocks_of(total):
            words[part] = self._words_at(part, depth)
        order: I64 = numpy.argsort(words, kind="stable").astype(numpy.int64, copy=False)
        tied: Mask = numpy.zeros(total, dtype=bool)
        for part in blocks_of(total, first=1):
            block_words = words[order[part.start - 1 : part.stop]]
            tied[part] = block_words[1:] == block_words[:-1]
        del words
        self._settle(order, tied, depth)
        while tied.any():
            depth += WORD_BYTES
            self._refine(order, tied, depth)
            self._settle(order, tied, depth)
        return order

    def _common(self) -> int:
        """Return the length in bytes of the common prefix of all values, rounded down to a multiple of eight."""
        depth = 0
        shortest = int(self.lengths.min()) if len(self.lengths) else 0
        while depth + WORD_BYTES <= shortest:
            wanted = self._words_at(numpy.zeros(1, dtype=numpy.int64), depth)[0]
            for rows in blocks_of(len(self.starts)):
                if (self._words_at(rows, depth) != wanted).any():
                    return depth
            depth += WORD_BYTES
        return depth

    def _words_at(self, rows: Any, depth: int) -> U64:
        """Return the eight bytes at ``depth`` of the values of some rows. After the end of a value come zeros."""
        left = self.lengths[rows].astype(numpy.int64) - depth
        # For values that have ended, any place may be read, because the mask sets the result to zero.
        places = numpy.where(left > 0, self.starts[rows] + depth, 0)
        words: U64 = self._words[places].astype(numpy.uint64)
        words &= self._masks[numpy.clip(left, 0, WORD_BYTES)]
        return words

    def _refine(self, order: I64, tied: Mask, depth: int) -> None:
        """Sort runs of ties by the bytes at ``depth``, and mark the rows that still tie."""
        for first, end in _runs_of_ties(tied):
            words = self._words_at(order[first:end], depth)
            _sort_run(order, tied, first, end, words)

    def _settle(self, order: I64, tied: Mask, depth: int) -> None:
        """Sort runs of ties by length, for values that end within the eight bytes at ``depth``. Such values tie no
        longer."""
        for first, end in _runs_of_ties(tied):
            left = self.lengths[order[first:end]].astype(numpy.int64) - depth
            ends = numpy.clip(left, 0, WORD_BYTES + 1).astype(numpy.uint8)
            ends = _sort_run(order, tied, first, end, ends)
            tied[first + 1 : end] &= ends[1:] > WORD_BYTES


def _sort_run(order: I64, tied: Mask, first: int, end: int, by: Any) -> Any:
    """Sort the rows at places ``first`` to ``end - 1`` by the numbers ``by``, within each run of ties. Return the
    sorted numbers."""
    own = tied[first + 1 : end]
    # The numbers are often already sorted, or all equal.
    if not ((by[1:] >= by[:-1]) | ~own).all():
        group = numpy.cumsum(~tied[first:end], dtype=numpy.uint32)
        sequence = numpy.lexsort((by, group)) if group[-1] > group[0] else numpy.argsort(by, kind="stable")
        order[first:end] = order[first:end][sequence]
        by = by[sequence]
    own &= by[1:] == by[:-1]
    return by


def _runs_of_ties(tied: Mask) -> Iterator[tuple[int, int]]:
    """Yield ranges of places with ties. A range is about as long as a block. It is longer if necessary, because it
    never divides a run of ties. A place is tied if its value may equal the value at the place before."""

    total, place = len(tied), 0
    while place < total:
        # The range begins at the place before the next tie ...
        ahead = tied[place : place + ROWS_PER_BLOCK]
        step = int(ahead.argmax())
        if not ahead[step]:
            place += len(ahead)
            continue
        first = place + step - 1
        # ... and ends at the first place without a tie, at least one block later.
        end = first + ROWS_PER_BLOCK
        while end < total:
            behind = tied[end : end + ROWS_PER_BLOCK]
            step = int(behind.argmin())
            if not behind[step]:
                end += step
                break
            end += len(behind)
        end = min(end, total)
        yield first, end
        place = end


def bounds(shares: Sequence[Fraction]) -> list[int]:
    """Return the first rank of each part except the first part. A rank belongs to the first part for which the sum of
    shares, up to this part, is more than rank / 2^64."""
    sums = list(accumulate(shares))[:-1]
    # Round the sum up to a whole number.
    return [-(-(total.numerator << 64) // total.denominator) for total in sums]


def ranks_of(seed: int, digests: U64) -> U64:
    """Return the ranks of groups with these XXH3-64: ``mix(mix(seed) ^ digest)``. Like the order of a shuffle, this
    never changes."""
    return mix_array(digests ^ numpy.uint64(mix(seed)))


def parts_of_ranks(ranks: U64, shares: Sequence[Fraction]) -> I64:
    """Return the part number of each rank, from 0."""
    # A part may be so small that it has no rank. It then begins after the last rank.
    begins = numpy.array([min(bound, (1 << 64) - 1) for bound in bounds(shares)], dtype=numpy.uint64)
    return numpy.searchsorted(begins, ranks, side="right").astype(numpy.int64, copy=False)


def stratified(digests: U64, classes: I64 | U32, seed: int, shares: Sequence[Fraction]) -> I64:
    """Return the part of each sample, so that each class is divided by the shares.

    Samples with the same digest are a group, and stay together. A group belongs to the class of most of its samples; if
    classes are equal, to the class with the lowest number. In each class, groups in the order of their ranks fill the
    quota of the first part, then of the second part, and so on. A group on a boundary belongs to the part that contains
    its middle.
    """
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


def _majorities(group_of: I64, classes: I64 | U32, groups: int) -> I64:
    """Return the class of most samples of each group. If classes are equal, return the lowest."""
    width = int(classes.max()) + 1
    pairs, counts = numpy.unique(group_of * width + classes, return_counts=True)
    # The order is from rare to frequent, then from the highest class to the lowest. So the last write has the right
    # class.
    order = numpy.lexsort((-(pairs % width), counts))
    majority_of: I64 = numpy.empty(groups, dtype=numpy.int64)
    majority_of[pairs[order] // width] = pairs[order] % width
    return majority_of


def quotas(counts: Sequence[int], shares: Sequence[Fraction]) -> list[list[int]]:
    """Return, for each class, the number of samples in each part. The method is the largest remainder; each number
    differs from the exact share by less than one. If a part got too few samples of earlier classes, the missing
    fraction is added to its remainder. So small parts also get samples of small classes.

    >>> from fractions import Fraction
    >>> quotas([10, 4, 4, 4], [Fraction(8, 10), Fraction(1, 10), Fraction(1, 10)])
    [[8, 1, 1], [3, 1, 0], [3, 0, 1], [4, 0, 0]]
    """
    whole = lcm(*(share.denominator for share in shares))
    weights = [int(share * whole) for share in shares]
    owed = [0] * len(shares)
    class_quotas = []
    for count in counts:
        quota, remainders = map(
            list, zip(*(divmod(count * weight, whole) for weight in weights), strict=True)
        )
        owed = [debt + remainder for debt, remainder in zip(owed, remainders, strict=True)]
        open_parts = sorted(
            (part for part, remainder in enumerate(remainders) if remainder), key=lambda part: -owed[part]
        )
        for part in open_parts[: count - sum(quota)]:
            quota[part] += 1
            owed[part] -= whole
        class_quotas.append(quota)
    return class_quotas
