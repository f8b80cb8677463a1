"""The order of samples: the base :class:`Order`, and the orders that need only places.

What it is: an order is two things, the columns it sorts by and the parts it makes. It says what it needs of each sample
(:class:`~wdscli.plan.values.Extract`), and arranges the samples of all inputs, a :class:`Surveyed`, into rows in output
order and into parts, each of which becomes a set. It may leave samples out, and counts them. Here are input order, the
pinned shuffle (:func:`shuffled`), and sets that take turns (:func:`interleaved`); :mod:`wdscli.plan.split`,
:mod:`wdscli.plan.sort` and :mod:`wdscli.plan.join` have others. If samples are read in output order, ``--limit`` ends
the reading early (:func:`reading_selection`), else it cuts the arranged samples (:func:`first_to_arrange`,
:func:`first_arranged`). It must not know where samples are written.

How sets take turns: sample j (from 0) of a set with weight w has the time (j + 1/2) / w. Samples come by rising time,
equal times by the number of their set. After N samples each set has given its share of N, off by at most 1/2 + (sets -
2) * share / 2: less than one sample for two or three sets, and for any number with equal weights. All arithmetic is
exact.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate, islice, pairwise
from math import ceil, floor, gcd, lcm
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from wdscli.arrays import I64, U64, numpy
from wdscli.errors import UsageError
from wdscli.ordering import rank_places
from wdscli.plan.cut import Part
from wdscli.plan.duplicates import Dedup, Rereader
from wdscli.plan.join.joined import Joined
from wdscli.plan.request import Request
from wdscli.plan.table import PlanTable, blocks_of, order_of_hashes
from wdscli.plan.values import Extract, Values
from wdscli.selection import Selection
from wdscli.selection.named import Named
from wdscli.selection.sample import SampleAt

if TYPE_CHECKING:
    from concurrent.futures import Executor

PLAIN_BYTES = 32
"""Bytes of memory a sample for an order that needs a number or two: a shuffle, a split, a merge."""
VALUED_BYTES = 48
"""Bytes of memory a sample for an order that compares values: a sort, a join, duplicates by content."""
LIMIT = "limit"
"""The reason for leaving out samples beyond ``--limit``."""
Stop = Literal["first", "all"]
LARGEST_SHARE = 1 << 31
"""The largest share for which the arithmetic of turns is exact."""
_NUMBER = re.compile(r"\d{1,12}(\.\d{0,12})?|\.\d{1,12}|\d{1,12}/\d{1,12}", re.ASCII)


class Surveyed(NamedTuple):
    """The selected samples of all inputs, in input order.

    ``values`` are those of the order's ``extract``, None without one. ``sets`` has for each input shard the number of
    its set, of ``total_sets``: the argument of the command that named it, from 0, and then the joined table. ``reader``
    reads samples again. ``shapes`` has, for each input shard of a join, the lists of fields that values number.
    """

    samples: PlanTable
    values: Values | None
    sets: Sequence[int]
    total_sets: int
    reader: Rereader
    shapes: Sequence[Sequence[tuple[bytes, ...]]] = ()

    def counts_of_sets(self) -> list[int]:
        """The number of samples of each set."""
        of_shard: I64 = numpy.zeros(len(self.sets) + 1, dtype=numpy.int64)
        for part in blocks_of(self.samples.total):
            # The placeholder row has no shard.
            shards = numpy.minimum(self.samples.shards[part], numpy.uint32(len(self.sets)))
            of_shard += numpy.bincount(shards, minlength=len(of_shard))
        counts: I64 = numpy.zeros(self.total_sets, dtype=numpy.int64)
        numpy.add.at(counts, list(self.sets), of_shard[:-1])
        found: list[int] = counts.tolist()
        return found

    def first(self, count: int) -> Surveyed:
        """The first ``count`` samples, or all."""
        values = None if self.values is None else self.values.first(count)
        return self._replace(samples=self.samples.part(0, count), values=values)

    def without(self, gone: Sequence[int] | I64) -> Surveyed:
        """All samples but these rows, which rise. This object must not be used again."""
        values = None if self.values is None else self.values.without(gone)
        return self._replace(samples=self.samples.without(gone), values=values)


class Arranged(NamedTuple):
    """Samples in output order. ``order`` has rows of the table, None for all unchanged; ``parts`` divide it, None for
    one set; ``dropped`` counts samples that were left out, by reason. ``joined`` has the further rows of joined
    samples; ``remark`` is a warning for the user. ``ends`` are the ends of shards, if the order keeps the input's
    shards."""

    order: I64 | None = None
    parts: Sequence[Part] | None = None
    dropped: Mapping[str, int] = {}
    joined: Joined | None = None
    remark: str = ""
    ends: Sequence[int] | None = None


class Order:
    """What decides the order, and the parts."""

    operation: str
    """The command's name, for the manifest."""
    extract: Extract | None = None
    """The values that a survey must take of each sample."""
    seed: int | None = None
    """The seed for the manifest, None without one."""
    dedup: Dedup | None = None
    """Which samples repeat others and are left out, None to keep all."""
    bytes_per_sample: int = PLAIN_BYTES
    """Bytes of memory for each sample while the order is made."""
    makes_parts: bool = False
    """Whether it divides samples into parts, in which they stay in input order."""

    is_repeatable: bool = False
    """Whether operation, options and seed decide all of it, so that the plan of an earlier run may be used."""

    def with_classes(self, known: Callable[[], Sequence[str] | None]) -> Order:
        """The same order for a set whose manifest names the numbers in ``cls``; ``known`` looks for these names."""
        return self

    def may_leave_out(self) -> bool:
        """Whether some samples may belong to no part."""
        return False

    def is_left_out(self, value: bytes) -> bool:
        """Whether a sample with this value belongs to no part."""
        return False

    def options(self) -> dict[str, Any]:
        """The options of this order that shape the result, for the manifest, without defaults."""
        return {}

    def arrange(self, surveyed: Surveyed) -> Arranged:
        """Arrange all samples. Raises DataError, UsageError."""
        return Arranged()


@dataclass(frozen=True)
class InputOrder(Order):
    """All samples in input order."""

    operation: str
    is_repeatable = True


@dataclass(frozen=True)
class FieldNamed(Extract):
    """An extract without values; some sample must have the field that ``option`` names."""

    field: str
    option: str

    @property
    def named(self) -> Sequence[Named]:
        return [Named(self.field, f" for {self.option}", (self.field,))]

    def value(self, sample: SampleAt) -> bytes:
        return b""


@dataclass(frozen=True)
class MappedOrder(InputOrder):
    """All samples in input order, to be transformed: a shard for each shard of the input. ``transform`` is as in a plan
    file (the fields of :class:`wdscli.transform.transform.Transform`), ``shaping`` is for the manifest."""

    transform: Mapping[str, Any]
    shaping: Mapping[str, Any]
    keeps_shards: bool
    extract: Extract | None = None
    workers: Executor | None = field(default=None, compare=False)
    """Processes that already import the code of the transform."""
    is_repeatable = False

    def options(self) -> dict[str, Any]:
        return dict(self.shaping)

    def arrange(self, surveyed: Surveyed) -> Arranged:
        if not self.keeps_shards:
            return Arranged()
        ends = surveyed.samples.shards.searchsorted(numpy.arange(len(surveyed.sets)), side="right")
        return Arranged(ends=ends.tolist())


@dataclass(frozen=True)
class ShuffledOrder(Order):
    """The order by a keyed hash of each sample's place (:mod:`wdscli.ordering`)."""

    seed: int = 0
    operation = "shuffle"
    is_repeatable = True

    def arrange(self, surveyed: Surveyed) -> Arranged:
        return Arranged(shuffled(surveyed.samples, self.seed))


def shuffled(samples: PlanTable, seed: int) -> I64:
    """The rows sorted by (rank, shard, place). This order is pinned, so that other programs can give the same
    shuffle."""

    def ranks(rows: Any) -> U64:
        some = samples.rows[rows]
        return rank_places(seed, some["shard"], some["place"])

    # The rows are in the order of (shard, place), which settles ties.
    return order_of_hashes(samples.total, ranks)


def reading_selection(request: Request, order: Order) -> Selection:
    """The selection for reading. It keeps the limit if the first selected samples are those that come out."""
    in_input_order = isinstance(order, InputOrder) or (order.makes_parts and not order.may_leave_out())
    selection = request.selection.before_draw
    if in_input_order and request.on_duplicate != "skip":
        return selection
    return selection._replace(limit=None)


def first_to_arrange(order: Order, surveyed: Surveyed, limit: int | None) -> Surveyed:
    """For an order that makes parts: the samples up to the last one that comes out."""
    if limit is None or not order.makes_parts:
        return surveyed
    end = limit
    if order.may_leave_out() and surveyed.values is not None:
        those = (row for row, value in enumerate(surveyed.values, 1) if not order.is_left_out(value))
        end = next(islice(those, limit - 1, None), surveyed.samples.total) if limit else 0
    return surveyed.first(end)


def first_arranged(arranged: Arranged, samples: int, limit: int | None) -> Arranged:
    """The first ``limit`` samples of an order over ``samples``; the others, with all their parts of a join, count as
    left out."""
    total = samples if arranged.order is None else len(arranged.order)
    if limit is None or arranged.parts is not None or limit >= total:
        return arranged
    order = numpy.arange(limit) if arranged.order is None else arranged.order[:limit]
    left, joined = total - limit, arranged.joined
    if joined is not None:
        others = tuple(other.slice(0, limit) for other in joined.others)
        # A row below 0 is a missing part.
        partners = sum(int((one.order >= 0).sum()) for one in others if one.order is not None)
        left += joined.counts.partners - partners
        joined = joined._replace(others=others, counts=joined.counts._replace(partners=partners))
    return arranged._replace(order=order, dropped={**arranged.dropped, LIMIT: left}, joined=joined)


class Shares(NamedTuple):
    """Weights as whole numbers without a common divisor, one for each set."""

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
        if max(numbers) > LARGEST_SHARE:
            raise UsageError(
                f'the weights in "{text}" have too many digits to be exact', hint="use fewer digits"
            )
        return cls(numbers)


def _weight(word: str, text: str) -> Fraction:
    try:
        weight = Fraction(word if _NUMBER.fullmatch(word) else "1/0")
    except ZeroDivisionError:
        raise UsageError(f'"{word}" in --weights {text} is not a weight', hint="--weights 0.7,0.3") from None
    if not weight:
        raise UsageError(f"--weights {text} has a weight of 0", hint="leave the set out instead")
    return weight


def interleaved(counts: Sequence[int], shares: Shares, stop: Stop = "all") -> tuple[I64, int]:
    """The order in which sets of these counts take turns, as places in the sequence of all samples, set after set; and
    the number of samples left out.

    ``first`` stops when a set should give a sample and has none left; ``all`` continues with the others until all are
    used up.
    """
    taken = _taken(counts, shares, stop)
    order = _by_time(taken, shares)
    if taken != list(counts):
        begins = [0, *accumulate(taken)]
        # Shift each set's samples to their places among all samples.
        shift: I64 = numpy.repeat(
            numpy.array([0, *accumulate(counts)][:-1], dtype=numpy.int64) - begins[:-1], taken
        )
        order += shift[order]
    return order, sum(counts) - sum(taken)


def _taken(counts: Sequence[int], shares: Shares, stop: Stop) -> list[int]:
    """The number of samples that each set gives."""
    if stop == "all":
        return list(counts)
    # Stop at the first turn for which a set has no sample.
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
    """The number of odd numbers 1, 3, 5, ... below ``end``, or not above it."""
    half = (end - 1) / 2
    return max(0, floor(half) + 1 if inclusive else ceil(half))


def _by_time(taken: Sequence[int], shares: Shares) -> I64:
    """The places of the first samples of each set, in the given numbers, by rising time; equal times in the order of
    sets."""
    ends = [0, *accumulate(taken)]
    scale = lcm(*shares.numbers)
    steps = [scale // share for share in shares.numbers]
    if all(2 * take * step < 1 << 64 for take, step in zip(taken, steps, strict=True)):
        times: U64 = numpy.empty(ends[-1], dtype=numpy.uint64)
        for (first, end), step in zip(pairwise(ends), steps, strict=True):
            times[first:end] = _odd(0, end - first)
            times[first:end] *= numpy.uint64(step)
        return numpy.argsort(times, kind="stable").astype(numpy.int64, copy=False)
    whole: U64 = numpy.empty(ends[-1], dtype=numpy.uint64)
    parts: U64 = numpy.empty(ends[-1], dtype=numpy.uint64)
    for (first, end), share in zip(pairwise(ends), shares.numbers, strict=True):
        whole[first:end], parts[first:end] = times_of(0, end - first, share)
    return numpy.lexsort((parts, whole)).astype(numpy.int64, copy=False)


def _odd(first: int, end: int) -> U64:
    """2j + 1 for each j from ``first`` to ``end``."""
    return numpy.arange(2 * first + 1, 2 * end, 2, dtype=numpy.uint64)


def times_of(first: int, end: int, share: int) -> tuple[U64, U64]:
    """(2j + 1) / share for each j from ``first`` to ``end``, as a whole number and 64 binary digits of the rest.

    Shares are at most 2^31, so two different times differ by at least 2^-62: cutting off the rest neither makes them
    equal nor swaps them.
    """
    divisor, shift = numpy.uint64(share), numpy.uint64(32)
    whole, rest = numpy.divmod(_odd(first, end), divisor)
    upper, rest = numpy.divmod(rest << shift, divisor)
    return whole, (upper << shift) | ((rest << shift) // divisor)
