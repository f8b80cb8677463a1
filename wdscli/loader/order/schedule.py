"""This module computes the set of each sample of a mix: a pure function of (weights, seed, lengths of sets, position).

:class:`Schedule` first converts the weights to whole numbers without a common divisor, the *quotas*
(:func:`quotas_of`). A block has Q positions, where Q is the sum of the quotas; each set has its quota of positions in a
block. The positions of a block (first the positions of set 0, then of set 1, ...) are permuted by ``key(seed, 4, phase,
block)``, as in :mod:`wdscli.loader.order.order`. Without a seed, positions are not permuted: the sets take turns.
Position number j of a set has sample j of this set, so each set keeps its own order.

A phase ends at the first position of a set that has no samples left. With ``stop="first"`` the epoch then ends. With
``stop="all"`` the next phase begins, with new blocks of the remaining sets. With ``stop="repeat"`` there is only one
phase, which ends when the last sample of every set has come at least once. Until then, shorter sets repeat. The
schedule does not depend on the epoch, so every epoch has the same number of samples of each set.

:class:`Changing` is for weights that change with the step. A block is one step, and has the G positions of a global
batch. In a block each set has its share of positions, rounded up or down. Shares are stored as whole numbers that add
up to 65,536; here they are fractions that add up to 1. Let S(i) be the sum of the shares of sets 0 to i at step k, and
u = (633 * k modulo 1024) / 1024. Then set i has ceil(G * S(i) - u) - ceil(G * S(i - 1) - u) of the G positions. So
shares that do not change are exact over 1024 steps. 633 / 1024 is about the golden ratio, so shares that change are
nearly exact too.

This module knows neither samples nor datasets.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from itertools import accumulate, count
from math import gcd, inf, lcm
from numbers import Rational
from typing import Literal, TypeAlias

from wdscli.arrays import I64, numpy
from wdscli.errors import UsageError
from wdscli.loader.checks import want_word
from wdscli.loader.order.order import ENDLESS, MIX, groups, key
from wdscli.ordering import mix_array

Stop = Literal["first", "all", "repeat"]
STOPS: tuple[Stop, ...] = ("first", "all", "repeat")
Weight: TypeAlias = "int | float | str | Fraction"
LARGEST = 1 << 16
"""The largest number of positions in a block. Weights that would need a larger block are rounded."""
TOGETHER = 1 << 20
"""The largest number of positions for which blocks are computed together."""
LAST_STEP = 1 << 40
"""Steps before this one are searched for a sample."""
TURNS, GOLDEN = 1024, 633
"""TURNS is the number of steps after which shares that do not change are exact. The offset for rounding grows by GOLDEN
/ TURNS in each step."""


def quotas_of(weights: Sequence[Weight]) -> tuple[int, ...]:
    """Return weights as whole numbers without a common divisor. A float means the simplest fraction that equals it. If
    the sum would be more than :data:`LARGEST`, the numbers are rounded so that they add up to it (by largest
    remainders; no weight becomes 0). Raises UsageError for weights that are not above 0.

    >>> quotas_of([0.7, 0.3]), quotas_of([1 / 3, 2 / 3]), quotas_of([6, "4"])
    ((7, 3), (1, 2), (3, 2))
    """
    fractions = [exact(weight) for weight in weights]
    scale = lcm(*(fraction.denominator for fraction in fractions))
    whole = [int(fraction * scale) for fraction in fractions]
    if sum(whole) // gcd(*whole) > LARGEST:
        whole = _rounded(fractions)
    divisor = gcd(*whole)
    return tuple(number // divisor for number in whole)


def shares_of(weights: Sequence[Weight]) -> tuple[int, ...]:
    """Return weights as whole numbers that add up to :data:`LARGEST`. A weight above 0 never becomes 0. Raises
    UsageError for weights below 0, and if all weights are 0.

    >>> shares_of([3, 1]), shares_of([0, 2])
    ((49152, 16384), (0, 65536))
    """
    fractions = {number: exact(weight) for number, weight in enumerate(weights) if weight != 0}
    if not fractions:
        raise UsageError("all weights of a step are 0", hint="give one set a weight above 0")
    rounded = dict(zip(fractions, _rounded(list(fractions.values()))))
    return tuple(rounded.get(number, 0) for number in range(len(weights)))


def exact(weight: Weight, what: str = "weight") -> Fraction:
    """Return ``weight`` as a fraction. Raises UsageError if ``weight`` is not a number above 0; ``what`` names it in
    the message."""
    if not isinstance(weight, (int, float, str, Rational, Decimal)) and hasattr(weight, "item"):
        weight = str(weight.item() if hasattr(weight, "detach") else weight)  # a number of torch or numpy
    try:
        if isinstance(weight, float) and abs(weight) != inf:
            simple = Fraction(weight).limit_denominator(LARGEST)
            fraction = simple if float(simple) == weight else Fraction(weight)
        else:
            fraction = Fraction(weight)
    except (ValueError, TypeError, ArithmeticError):
        raise UsageError(f'"{weight}" is not a {what}', hint="a number above 0, for example 0.7") from None
    if fraction <= 0:
        raise UsageError(f"a {what} of {weight}", hint="leave the set out instead")
    return fraction


def _rounded(fractions: Sequence[Fraction]) -> list[int]:
    """Return the fractions scaled to whole numbers that add up to :data:`LARGEST`. The largest remainders are rounded
    up."""
    unit = sum(fractions, Fraction(0)) / (LARGEST - len(fractions))
    shares = [fraction / unit for fraction in fractions]
    # Each set gets at least 1.
    whole = [1 + int(share) for share in shares]
    short = LARGEST - sum(whole)
    order = sorted(range(len(fractions)), key=lambda row: (int(shares[row]) - shares[row], row))
    for row in order[:short]:
        whole[row] += 1
    return whole


def _permuted(labels: I64, blocks: I64, of_phase: int) -> I64:
    """Permute each row of ``labels`` by the key of its block. ``of_phase`` is the key of the phase."""
    keys = mix_array(blocks.astype(numpy.uint64) ^ numpy.uint64(of_phase))
    hashes = mix_array(numpy.arange(labels.shape[1], dtype=numpy.uint64)[None, :] ^ keys[:, None])
    return numpy.take_along_axis(labels, hashes.argsort(axis=1, kind="stable"), axis=1)


def _ranks(labels: I64) -> I64:
    """Return the place that each label would have if its row were sorted by label."""
    ranks: I64 = numpy.empty(labels.shape, dtype=numpy.int64)
    by_set = labels.argsort(axis=1, kind="stable")
    numpy.put_along_axis(ranks, by_set, numpy.arange(labels.shape[1], dtype=numpy.int64)[None, :], axis=1)
    return ranks


def _located(positions: I64, size: int, rows: Callable[[I64], tuple[I64, I64]]) -> tuple[I64, I64]:
    """Return two arrays for positions in blocks of ``size`` positions: the set, and the number of the set's sample.
    ``rows`` returns both for all positions of some blocks, with a row for each block."""
    blocks, places = numpy.divmod(positions, size)
    different, row_of = numpy.unique(blocks, return_inverse=True)
    sets, samples = positions.copy(), positions.copy()
    step = max(1, TOGETHER // size)
    for first in range(0, len(different), step):
        chosen = ((row_of >= first) & (row_of < first + step)).nonzero()[0]
        cells = row_of[chosen] - first, places[chosen]
        sets_of_rows, samples_of_rows = rows(different[first : first + step])
        sets[chosen], samples[chosen] = sets_of_rows[cells], samples_of_rows[cells]
    return sets, samples


class Pattern:
    """The order of the sets in the blocks of phase ``phase``. ``sets`` has the numbers of the sets in this phase, and
    ``quotas`` has the quotas of all sets. Without a seed, the sets take turns."""

    def __init__(self, quotas: Sequence[int], sets: Sequence[int], seed: int | None, phase: int) -> None:
        self.sets: I64 = numpy.array(sets, dtype=numpy.int64)
        self.quotas: I64 = numpy.array(quotas, dtype=numpy.int64)[self.sets]
        self.quotas //= gcd(*self.quotas.tolist())
        self.size = int(self.quotas.sum())
        self._firsts: I64 = self.quotas.cumsum() - self.quotas
        self._labels: I64 = numpy.arange(len(sets)).repeat(self.quotas)
        self._key = None if seed is None else key(seed, MIX, phase)
        self._kept: tuple[bytes, tuple[I64, I64]] | None = None

    def remaining(self, which: int) -> list[int]:
        """Return the sets of the next phase if set ``which`` ended this phase. Without a seed, the sets take turns,
        and the next turn has the set that follows set ``which``."""
        sets: list[int] = self.sets.tolist()
        return sets[which + 1 :] + sets[:which] if self._key is None else sets[:which] + sets[which + 1 :]

    def rows(self, blocks: I64) -> tuple[I64, I64]:
        """Return two arrays with a row for each block. At each place of a block, the first array has the set, as an
        index into ``sets``, and the second array has the number of the set's sample."""
        name = blocks.tobytes()
        if self._kept is None or self._kept[0] != name:
            labels: I64 = numpy.broadcast_to(self._labels, (len(blocks), self.size))
            if self._key is not None:
                labels = _permuted(labels, blocks, self._key)
            earlier = blocks[:, None] * self.quotas - self._firsts
            self._kept = name, (labels, _ranks(labels) + numpy.take_along_axis(earlier, labels, axis=1))
        return self._kept[1]

    def labels(self) -> Iterator[int]:
        """Yield the set of each position, as an index into ``sets``, without end."""
        for block in count():
            yield from self.rows(numpy.array([block], dtype=numpy.int64))[0][0].tolist()

    def locate(self, positions: I64) -> tuple[I64, I64]:
        """Return two arrays for the positions: the set, as an index into ``sets``, and the number of the set's
        sample."""
        return _located(positions, self.size, self.rows)

    def position(self, which: int, sample: int) -> int:
        """Return the position of sample ``sample`` of the set with index ``which`` in ``sets``."""
        block = sample // int(self.quotas[which])
        labels, samples = self.rows(numpy.array([block], dtype=numpy.int64))
        return block * self.size + int(((labels[0] == which) & (samples[0] == sample)).argmax())

    def counts(self, length: int) -> list[int]:
        """Return the number of samples of each set in the first ``length`` positions."""
        blocks, places = divmod(length, self.size)
        labels = self.rows(numpy.array([blocks], dtype=numpy.int64))[0][0, :places]
        in_last_block = numpy.bincount(labels, minlength=len(self.sets)).tolist()
        return [blocks * quota + count for quota, count in zip(self.quotas.tolist(), in_last_block)]


class Schedule:
    """The order of the sets in one epoch of a mix. ``lengths`` has the number of samples of each set. With ``seed``
    None, the sets take turns.

    ``length`` is the number of positions in an epoch, and ``taken`` the number of samples of each set in an epoch.
    Raises UsageError for a set without samples, except with stop="all".
    """

    def __init__(
        self, quotas: Sequence[int], lengths: Sequence[int], *, stop: Stop = "first", seed: int | None = 0
    ) -> None:
        want_word("stop", stop, STOPS)
        if stop != "all" and not all(lengths):
            raise UsageError(f"set {list(lengths).index(0)} of the mix has no samples", hint="leave it out")
        self._lengths = lengths
        self.taken = [0] * len(quotas)
        self._phases: list[tuple[Pattern, I64]] = []
        """The phases of an epoch. A phase is a pattern, and the numbers of samples that its sets have given in earlier
        phases."""
        self._ends: list[int] = []
        sets = list(range(len(quotas)))
        for number in range(len(quotas) if stop == "all" else 1):
            sets = self._phase(Pattern(quotas, sets, seed, number), stop)
        self.length = self._ends[-1]

    def _phase(self, pattern: Pattern, stop: Stop) -> list[int]:
        """Add a phase, and return the sets of the next phase."""
        sets = pattern.sets.tolist()
        before = [self.taken[number] for number in sets]
        left = [self._lengths[number] - taken for number, taken in zip(sets, before)]
        length, ended = _longest(pattern, left) if stop == "repeat" else _shortest(pattern, left)
        length = min(length, ENDLESS)
        for number, taken in zip(sets, pattern.counts(length)):
            self.taken[number] += taken
        self._phases.append((pattern, numpy.array(before, dtype=numpy.int64)))
        self._ends.append(min(ENDLESS, length + (self._ends[-1] if self._ends else 0)))
        return pattern.remaining(ended)

    def locate(self, positions: I64) -> tuple[I64, I64]:
        """Return two arrays for the positions: the set, and the number of the set's sample in this epoch. A number that
        is not below the length of the set is a sample of the set's next pass."""
        sets, samples = positions.copy(), positions.copy()
        for number, chosen in groups(numpy.array(self._ends).searchsorted(positions, "right")):
            pattern, before = self._phases[number]
            which, places = pattern.locate(positions[chosen] - (self._ends[number - 1] if number else 0))
            sets[chosen] = pattern.sets[which]
            samples[chosen] = before[which] + places
        return sets, samples


def _shortest(pattern: Pattern, left: list[int]) -> tuple[int, int]:
    """Return (position, set) of the first position that needs a sample of a set that has no samples left. ``left`` has
    the number of samples that each set has left."""
    blocks = [have // quota for have, quota in zip(left, pattern.quotas.tolist())]
    first = [which for which, block in enumerate(blocks) if block == min(blocks)]
    return min((pattern.position(which, left[which]), which) for which in first)


def _longest(pattern: Pattern, left: list[int]) -> tuple[int, int]:
    """Return the position at which all sets have ended once, and the set that ends last. ``left`` has the number of
    samples that each set has left."""
    blocks = [(have - 1) // quota for have, quota in zip(left, pattern.quotas.tolist())]
    first = [which for which, block in enumerate(blocks) if block == max(blocks)]
    return max((pattern.position(which, left[which] - 1) + 1, which) for which in first)


class Changing:
    """The order of the sets in an endless epoch whose weights change. Each step has ``size`` positions. ``points`` are
    pairs (step, :func:`shares_of` the weights), in rising order of steps. Between two points the shares change
    linearly; before the first point and after the last point they are constant. Without a seed, the samples of a step
    are sorted by set. Raises UsageError for numbers that are too large."""

    length = ENDLESS
    taken = None

    def __init__(self, points: Sequence[tuple[int, Sequence[int]]], size: int, seed: int | None) -> None:
        points = [*points, (points[-1][0] + 1, points[-1][1])]
        self._steps: I64 = numpy.array([step for step, _ in points], dtype=numpy.int64)
        if size * LARGEST * int(numpy.diff(self._steps).max()) >= ENDLESS:
            raise UsageError(f"weights={points[:-1]}: two changes of weights are too many steps apart")
        self._bounds: I64 = numpy.array([[0, *accumulate(shares)] for _, shares in points], dtype=numpy.int64)
        self._size, self._sets = size, len(points[0][1])
        self._key = None if seed is None else key(seed, MIX, 0)
        self._constant = int(self._steps[-1]) // TURNS + 1
        """The number of the first turn with the same counts as all later turns. A turn is :data:`TURNS` steps."""
        self._before: list[I64] = [numpy.zeros(self._sets, dtype=numpy.int64)]
        """Item i has the number of samples of each set before turn i."""
        self._kept: tuple[int, I64, I64] | None = None

    def locate(self, positions: I64) -> tuple[I64, I64]:
        """Return two arrays for the positions: the set, and the number of the set's sample."""
        return _located(positions, self._size, self._rows)

    def before(self, step: int) -> list[int]:
        """Return the number of samples of each set in all steps before ``step``."""
        taken: list[int] = self._of_turn(step // TURNS)[1][step % TURNS].tolist()
        return taken

    def find(self, which: int, sample: int) -> int | None:
        """Return the step with sample ``sample`` of set ``which``, or None if no step has it."""
        later = bisect_right(range(LAST_STEP), sample, key=lambda step: self.before(step)[which])
        return later - 1 if later < LAST_STEP else None

    def _rows(self, steps: I64) -> tuple[I64, I64]:
        """Return two arrays with a row for each of ``steps``, which are in rising order. At each place of a step, the
        first array has the set, and the second array has the number of the set's sample."""
        of_turns = [
            [column[steps[steps // TURNS == turn] % TURNS] for column in self._of_turn(turn)]
            for turn in numpy.unique(steps // TURNS).tolist()
        ]
        counts, before = map(numpy.concatenate, zip(*of_turns))
        labels = numpy.tile(numpy.arange(self._sets), len(steps)).repeat(counts.reshape(-1))
        labels = labels.reshape(len(steps), self._size)
        if self._key is not None:
            labels = _permuted(labels, steps, self._key)
        firsts = counts.cumsum(axis=1) - counts
        return labels, _ranks(labels) + numpy.take_along_axis(before - firsts, labels, axis=1)

    def _of_turn(self, turn: int) -> tuple[I64, I64]:
        """Return two arrays with a row for each step of a turn: the number of samples of each set in the step, and the
        number in all earlier steps."""
        if self._kept is None or self._kept[0] != turn:
            counts = self._counts(turn)
            before = self._before_turn(turn) + counts.cumsum(axis=0) - counts
            self._kept = turn, counts, before
        return self._kept[1:]

    def _before_turn(self, turn: int) -> I64:
        while len(self._before) <= min(turn, self._constant):
            self._before.append(self._before[-1] + self._counts(len(self._before) - 1).sum(axis=0))
        if turn <= self._constant:
            return self._before[turn]
        return self._before[-1] + (turn - self._constant) * self._counts(turn).sum(axis=0)

    def _counts(self, turn: int) -> I64:
        """Return the number of samples of each set in each step of a turn."""
        within: I64 = numpy.arange(TURNS, dtype=numpy.int64)
        steps = numpy.clip(turn * TURNS + within, self._steps[0], self._steps[-1])
        segment = numpy.minimum(self._steps.searchsorted(steps, "right") - 1, len(self._steps) - 2)
        first, end = self._steps[segment], self._steps[segment + 1]
        bounds = self._bounds[segment] * (end - steps)[:, None]
        bounds += self._bounds[segment + 1] * (steps - first)[:, None]
        unit = LARGEST * (end - first)[:, None]
        whole, remainders = numpy.divmod(self._size * bounds, unit)
        # Whole numbers give the same result on all machines.
        ends: I64 = whole + (remainders * TURNS > (GOLDEN * within % TURNS)[:, None] * unit)
        return numpy.diff(ends, axis=1)
