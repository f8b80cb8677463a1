"""This module measures how well mixed an order is, for ``wds shuffle --measure``.

:func:`measure` computes a :class:`Quality` from the shards of samples and their order. A :class:`MeasuredShuffle` is a
shuffle that is measured while it is planned. The computation uses arrays over all samples, so that millions of samples
take seconds. It compares three orders: the order of the input, the order of the output, and the average of random
orders. Nothing here changes an order. This module does not know how samples are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, lgamma
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from xxhash import xxh3_128_digest

from wdscli.arrays import I64, numpy
from wdscli.plan.orders import Arrangement, Order, ShuffledOrder, SurveyedSamples
from wdscli.plan.table import Extract
from wdscli.samples.grouping import SampleAt
from wdscli.selection.where import Value

if TYPE_CHECKING:
    from numpy.typing import NDArray

Numbers: TypeAlias = "NDArray[numpy.integer[Any]]"

WINDOW = 1000
"""Samples per window, about the size of a shuffle buffer in training code."""
_LONG_VALUE = 64
_CLASS = Value("cls")


class Mixing(NamedTuple):
    """The numbers for one order. ``shards_per_window`` and ``fewest_shards`` are the mean and the minimum number of
    distinct source shards per window (None if unknown). ``displacement`` is the mean distance of a sample from its
    place in the input. ``correlation`` is Spearman's correlation between places in the input and in this order; it is
    None for fewer than two samples. ``class_run`` is the mean number of adjacent samples with the same class; it is
    None without classes."""

    shards_per_window: float
    fewest_shards: int | None
    displacement: float
    correlation: float | None
    class_run: float | None


class Quality(NamedTuple):
    """The mixing of the input, of the output, and of random orders on average. ``classes`` is the number of classes; it
    is None if no sample has a ``cls``."""

    window: int
    samples: int
    shards: int
    classes: int | None
    input: Mixing
    output: Mixing
    random: Mixing


class ClassOf(Extract):
    """An extract of each sample's class. It is empty if the sample has no class."""

    payload_fields = frozenset((b"cls",))

    def value(self, sample: SampleAt) -> bytes:
        label = _CLASS.of(sample) or b""
        return label if len(label) <= _LONG_VALUE else xxh3_128_digest(label)


MEASURED_BYTES = 160
"""Memory per sample while classes and neighbours are compared."""


class MeasuredShuffle(Order):
    """The order of :class:`~wdscli.plan.orders.ShuffledOrder`. ``quality`` is set when samples are arranged."""

    operation = "shuffle"
    extract = ClassOf()
    bytes_per_sample = MEASURED_BYTES

    def __init__(self, seed: int = 0, window: int = WINDOW) -> None:
        self.seed: int = seed
        self._window = window
        self.quality: Quality | None = None

    def arrange(self, surveyed: SurveyedSamples) -> Arrangement:
        arranged = ShuffledOrder(self.seed).arrange(surveyed)
        values = None if surveyed.values is None else list(surveyed.values)
        self.quality = measure(surveyed.samples.shards, arranged.order, values, self._window)
        return arranged


def measure(
    shards: Numbers, order: I64 | None, values: Sequence[bytes] | None = None, window: int = WINDOW
) -> Quality:
    """Return the quality of ``order`` (None: the input's order). ``shards`` are the samples' source shards, and
    ``values`` are their classes, both in input order. An empty value means no class.

    >>> import numpy
    >>> found = measure(numpy.array([0, 0, 1, 1]), numpy.array([0, 2, 1, 3]), [b"a", b"a", b"b", b"b"], window=2)
    >>> found.input
    Mixing(shards_per_window=1.0, fewest_shards=1, displacement=0.0, correlation=1.0, class_run=2.0)
    >>> found.output
    Mixing(shards_per_window=2.0, fewest_shards=2, displacement=0.5, correlation=0.8, class_run=1.0)
    """
    total = len(shards)
    window = max(1, min(window, total))
    classes = None
    if values is not None and any(values):
        numbers: dict[bytes, int] = {}
        classes = numpy.array([numbers.setdefault(value, len(numbers)) for value in values])
    places = numpy.arange(total) if order is None else order
    return Quality(
        window=window,
        samples=total,
        shards=len(numpy.unique(shards)),
        classes=None if classes is None else int(classes.max()) + 1,
        input=_mixing(shards, numpy.arange(total), classes, window),
        output=_mixing(shards, places, classes, window),
        random=Mixing(
            shards_per_window=_random_distinct(shards, window),
            fewest_shards=None,
            displacement=round((total * total - 1) / (3 * total), 3) if total else 0.0,
            correlation=0.0 if total > 1 else None,
            class_run=None if classes is None else _random_run(classes),
        ),
    )


def _mixing(shards: Numbers, places: I64, classes: Numbers | None, window: int) -> Mixing:
    """Return the numbers for one order. ``places`` are its samples' places in the input."""
    total = len(places)
    counts = _distinct(shards[places], window)
    distances = (places - numpy.arange(total)).astype(numpy.float64)
    runs = 0 if classes is None else 1 + int((numpy.diff(classes[places]) != 0).sum())
    # Spearman's: 1 - 6 sum(d^2) / (n (n^2 - 1)). Places are ranks without ties.
    unlike = 6 * float(numpy.square(distances).sum()) / (total * (float(total) ** 2 - 1) or 1)
    return Mixing(
        shards_per_window=round(float(counts.mean()), 3) if total else 0.0,
        fewest_shards=int(counts.min()) if total else 0,
        displacement=round(float(numpy.abs(distances).mean()), 3) if total else 0.0,
        correlation=round(1 - unlike, 6) if total > 1 else None,
        class_run=None if classes is None else round(total / runs, 3),
    )


def _distinct(shards: Numbers, window: int) -> Numbers:
    """Return how many distinct shards each complete window has."""
    windows = len(shards) // window
    rows = numpy.sort(shards[: windows * window].reshape(windows, window), axis=1)
    counts: Numbers = 1 + (rows[:, 1:] != rows[:, :-1]).sum(axis=1)
    return counts


def _random_distinct(shards: Numbers, window: int) -> float:
    """Return the expected number of shards in a window of a random order. It is the sum, over all shards, of the
    probability that the window has a sample of the shard."""
    total = len(shards)
    expected_shards = 0.0
    for size, of_this_size in zip(
        *numpy.unique(numpy.unique(shards, return_counts=True)[1], return_counts=True)
    ):
        expected_shards += int(of_this_size) * (1 - _none_of(total, int(size), window))
    return round(expected_shards, 3)


def _none_of(total: int, size: int, window: int) -> float:
    """Return the probability that a window has none of ``size`` samples: C(total - size, window) / C(total, window).
    The window has ``window`` of the ``total`` samples."""
    if size + window > total:
        return 0.0
    parts = lgamma(total - size + 1) - lgamma(total - size - window + 1)
    return exp(parts - lgamma(total + 1) + lgamma(total - window + 1))


def _random_run(classes: Numbers) -> float:
    """Return the expected mean length of runs. In a random order, neighbours share a class with the same probability as
    any two samples."""
    total = len(classes)
    if total < 2:
        return 1.0
    sizes: list[int] = numpy.unique(classes, return_counts=True)[1].tolist()
    alike = sum(size * (size - 1) for size in sizes) / (total * (total - 1))
    return round(total / (1 + (total - 1) * (1 - alike)), 3)
