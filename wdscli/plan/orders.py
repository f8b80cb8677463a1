"""In which order samples come: the base :class:`Order`, and the orders that need nothing but places.

What it is: an order is two things, the columns it sorts by and the parts it makes. It says what it must know of each
sample (:class:`~wdscli.plan.values.Extract`), and arranges the samples of all inputs, which are given as
:class:`Surveyed`: into rows in output order, and parts, each of which becomes a set of its own. It may leave samples
out, when it counts them. Here are input order, the shuffle that section 3 of the design pins (:func:`shuffled`), and
sets that take turns (:func:`interleaved`); :mod:`wdscli.plan.split`, :mod:`wdscli.plan.sort` and
:mod:`wdscli.plan.join` have others. ``--limit`` lets the reading end where what is read is what comes out
(:func:`reading_selection`), else it cuts the samples that are left (:func:`first_to_arrange`, :func:`first_arranged`).
It must not know where samples are written.

How sets take turns: sample j (from 0) of a set with weight w has the time (j + 1/2) / w. Samples come by rising time,
those of one time by the number of their set. After N samples each set has given its share of N, off by at most 1/2 +
(sets - 2) * share / 2: less than one sample for two or three sets, and for any number with equal weights. All
arithmetic is exact.
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
"""Bytes of memory for a sample whose order needs a number or two: a shuffle, a split, a merge."""
VALUED_BYTES = 48
"""The same where values of samples are compared: a sort, a join, duplicates by content."""
LIMIT = "limit"
"""Why samples beyond ``--limit`` are left out."""
Stop = Literal["first", "all"]
LARGEST_SHARE = 1 << 31
"""Whole numbers above this would not leave the arithmetic of turns exact."""
_NUMBER = re.compile(r"\d{1,12}(\.\d{0,12})?|\.\d{1,12}|\d{1,12}/\d{1,12}", re.ASCII)


class Surveyed(NamedTuple):
    """The selected samples of all inputs, in input order.

    ``values`` has what the order's ``extract`` took of each, None without one. ``sets`` has, for each input shard, the
    number of the set that it belongs to, of ``total_sets``: of the argument of the command, from 0, that named it, and
    behind these of a table. ``reader`` reads samples again. ``shapes`` has, for each input shard of a join, the lists
    of fields that values number.
    """

    samples: PlanTable
    values: Values | None
    sets: Sequence[int]
    total_sets: int
    reader: Rereader
    shapes: Sequence[Sequence[tuple[bytes, ...]]] = ()

    def counts_of_sets(self) -> list[int]:
        """How many samples each input has."""
        of_shard: I64 = numpy.zeros(len(self.sets) + 1, dtype=numpy.int64)
        for part in blocks_of(self.samples.total):
            # The row that stands for nobody is of no shard.
            shards = numpy.minimum(self.samples.shards[part], numpy.uint32(len(self.sets)))
            of_shard += numpy.bincount(shards, minlength=len(of_shard))
        counts: I64 = numpy.zeros(self.total_sets, dtype=numpy.int64)
        numpy.add.at(counts, list(self.sets), of_shard[:-1])
        found: list[int] = counts.tolist()
        return found

    def first(self, count: int) -> Surveyed:
        """The first so many, or all."""
        values = None if self.values is None else self.values.first(count)
        return self._replace(samples=self.samples.part(0, count), values=values)

    def without(self, gone: Sequence[int] | I64) -> Surveyed:
        """All samples but these rows, which rise; what is here is of no use any more."""
        values = None if self.values is None else self.values.without(gone)
        return self._replace(samples=self.samples.without(gone), values=values)


class Arranged(NamedTuple):
    """Samples in output order. ``order`` has rows of the table, None for all as they are; ``parts`` divide it, None for
    one set; ``dropped`` counts those that were left out, by reason. ``joined`` has the further rows of samples that are
    joined; ``remark`` is what the user should hear. ``ends`` are those of shards, where the order says so and no cut
    was given."""

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
    """What a survey must take of each sample."""
    seed: int | None = None
    """The seed, where there is one, for the manifest."""
    dedup: Dedup | None = None
    """Which samples are left out because they repeat others, None to keep all."""
    bytes_per_sample: int = PLAIN_BYTES
    """What the order takes of memory for each sample while it is made."""
    makes_parts: bool = False
    """Whether it divides samples into parts, in each of which they stay in input order."""

    is_repeatable: bool = False
    """Whether operation, options and seed say all that decides it, so that a plan of an earlier run may be used."""

    def with_classes(self, known: Callable[[], Sequence[str] | None]) -> Order:
        """The same for a set whose manifest has names for the numbers in ``cls``; ``known`` looks for them."""
        return self

    def may_leave_out(self) -> bool:
        """Whether some samples may come into no part."""
        return False

    def is_left_out(self, value: bytes) -> bool:
        """Whether a sample of this value, which ``extract`` took, comes into no part."""
        return False

    def options(self) -> dict[str, Any]:
        """The options of this order that shape the result, for the manifest; defaults left out."""
        return {}

    def arrange(self, surveyed: Surveyed) -> Arranged:
        """The order over all samples. Raises DataError, UsageError."""
        return Arranged()


@dataclass(frozen=True)
class InputOrder(Order):
    """All samples as they come."""

    operation: str
    is_repeatable = True


@dataclass(frozen=True)
class FieldNamed(Extract):
    """Nothing of any sample, but some must have the field that ``option`` names."""

    field: str
    option: str

    @property
    def named(self) -> Sequence[Named]:
        return [Named(self.field, f" for {self.option}", (self.field,))]

    def value(self, sample: SampleAt) -> bytes:
        return b""


@dataclass(frozen=True)
class MappedOrder(InputOrder):
    """All samples as they come, to be transformed: a shard for each shard of the input. ``transform`` is as a plan
    file holds it (the fields of :class:`wdscli.transform.transform.Transform`), ``shaping`` what the manifest tells."""

    transform: Mapping[str, Any]
    shaping: Mapping[str, Any]
    keeps_shards: bool
    extract: Extract | None = None
    workers: Executor | None = field(default=None, compare=False)
    """Processes that have begun to import what transforms the samples."""
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
    """The keyed hash of section 3 of the design (:mod:`wdscli.ordering`)."""

    seed: int = 0
    operation = "shuffle"
    is_repeatable = True

    def arrange(self, surveyed: Surveyed) -> Arranged:
        return Arranged(shuffled(surveyed.samples, self.seed))


def shuffled(samples: PlanTable, seed: int) -> I64:
    """The rows in shuffled order: by (rank, shard, place), as section 3 of the design pins it."""

    def ranks(rows: Any) -> U64:
        some = samples.rows[rows]
        return rank_places(seed, some["shard"], some["place"])

    # The rows are in the order of (shard, place), which settles ties.
    return order_of_hashes(samples.total, ranks)


def reading_selection(request: Request, order: Order) -> Selection:
    """What samples are read by: with the limit where the first samples that are selected are those that come out."""
    in_input_order = isinstance(order, InputOrder) or (order.makes_parts and not order.may_leave_out())
    selection = request.selection.before_draw
    if in_input_order and request.on_duplicate != "skip":
        return selection
    return selection._replace(limit=None)


def first_to_arrange(order: Order, surveyed: Surveyed, limit: int | None) -> Surveyed:
    """The samples, for an order that makes parts, up to the last one that comes out."""
    if limit is None or not order.makes_parts:
        return surveyed
    end = limit
    if order.may_leave_out() and surveyed.values is not None:
        those = (row for row, value in enumerate(surveyed.values, 1) if not order.is_left_out(value))
        end = next(islice(those, limit - 1, None), surveyed.samples.total) if limit else 0
    return surveyed.first(end)


def first_arranged(arranged: Arranged, samples: int, limit: int | None) -> Arranged:
    """The first samples of an order over so many; the others, with a join all their parts, count as left out."""
    total = samples if arranged.order is None else len(arranged.order)
    if limit is None or arranged.parts is not None or limit >= total:
        return arranged
    order = numpy.arange(limit) if arranged.order is None else arranged.order[:limit]
    left, joined = total - limit, arranged.joined
    if joined is not None:
        others = tuple(other.slice(0, limit) for other in joined.others)
        # A row below 0 stands for nobody.
        partners = sum(int((one.order >= 0).sum()) for one in others if one.order is not None)
        left += joined.counts.partners - partners
        joined = joined._replace(others=others, counts=joined.counts._replace(partners=partners))
    return arranged._replace(order=order, dropped={**arranged.dropped, LIMIT: left}, joined=joined)


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
        if max(numbers) > LARGEST_SHARE:
            raise UsageError(
                f'the weights in "{text}" are too fine to be exact', hint="give them with fewer digits"
            )
        return cls(numbers)


def _weight(word: str, text: str) -> Fraction:
    try:
        weight = Fraction(word if _NUMBER.fullmatch(word) else "1/0")
    except ZeroDivisionError:
        raise UsageError(f'"{word}" in --weights {text} is not a weight', hint="--weights 0.7,0.3") from None
    if not weight:
        raise UsageError(f"a weight of 0 in --weights {text}", hint="leave the set out instead")
    return weight


def interleaved(counts: Sequence[int], shares: Shares, stop: Stop = "all") -> tuple[I64, int]:
    """The order in which sets of so many samples take turns, as places in the sequence of all samples, set after set;
    and how many samples are left out.

    ``first`` stops where a set should give a sample and has none left; ``all`` goes on with the others until all are
    used up.
    """
    taken = _taken(counts, shares, stop)
    order = _by_time(taken, shares)
    if taken != list(counts):
        begins = [0, *accumulate(taken)]
        # Each set's samples move to where they lie among all.
        shift: I64 = numpy.repeat(
            numpy.array([0, *accumulate(counts)][:-1], dtype=numpy.int64) - begins[:-1], taken
        )
        order += shift[order]
    return order, sum(counts) - sum(taken)


def _taken(counts: Sequence[int], shares: Shares, stop: Stop) -> list[int]:
    """How many samples each set gives."""
    if stop == "all":
        return list(counts)
    # It ends at the turn that a set has no sample for.
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
    """How many of the odd numbers 1, 3, 5, ... are below ``end``, or not above it."""
    half = (end - 1) / 2
    return max(0, floor(half) + 1 if inclusive else ceil(half))


def _by_time(taken: Sequence[int], shares: Shares) -> I64:
    """The places of the first samples of each set, so many of them, set after set, by rising time; sets that are equal
    in time stay in their order."""
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
    """(2j + 1) / share for each j from ``first`` to ``end``, as a whole number and 64 binary places of the rest.

    Shares are at most 2^31, so two times that differ do so by at least 2^-62: cutting the rest off neither makes
    different times equal nor exchanges them.
    """
    divisor, shift = numpy.uint64(share), numpy.uint64(32)
    whole, rest = numpy.divmod(_odd(first, end), divisor)
    upper, rest = numpy.divmod(rest << shift, divisor)
    return whole, (upper << shift) | ((rest << shift) // divisor)
