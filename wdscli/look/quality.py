"""How well mixed an order is: ``wds shuffle --measure``.

What it is: :func:`measure`, from the shards of samples and their order to a :class:`Quality`, and
:class:`MeasuredShuffle`, the shuffle that measures itself while it is planned. How: by arrays over all samples, so that
millions take seconds. Three orders stand side by side: that of the input, that of the output, and what a random one
would give on average. Nothing here changes an order.

It must not know how samples are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, lgamma
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from xxhash import xxh3_128_digest

from wdscli.arrays import I64, numpy
from wdscli.plan.orders import Arranged, Order, ShuffledOrder, Surveyed
from wdscli.plan.values import Extract, FieldValue
from wdscli.selection.sample import SampleAt

if TYPE_CHECKING:
    from numpy.typing import NDArray

Numbers: TypeAlias = "NDArray[numpy.integer[Any]]"

WINDOW = 1000
"""Samples that are looked at together, about what a shuffle buffer of training code holds."""
_LONG_VALUE = 64


class Mixing(NamedTuple):
    """One order. ``shards_per_window`` and ``fewest_shards`` count the distinct source shards in a window, on average
    and at least (None where that is not known); ``displacement`` is how far a sample is from its place in the input, on
    average; ``correlation`` that of Spearman between places in the input and in this order, None for fewer than two
    samples; ``class_run`` how many samples of one class follow each other, on average, None where there are none."""

    shards_per_window: float
    fewest_shards: int | None
    displacement: float
    correlation: float | None
    class_run: float | None


class Quality(NamedTuple):
    """How mixed the input is, how mixed the output, and what a random order gives on average. ``classes`` is how many
    there are, None when no sample has a ``cls``."""

    window: int
    samples: int
    shards: int
    classes: int | None
    input: Mixing
    output: Mixing
    random: Mixing


class ClassOf(Extract):
    """Takes the class of each sample, empty for none."""

    payload_fields = frozenset((b"cls",))

    def value(self, sample: SampleAt) -> bytes:
        found = FieldValue("cls", b"cls").of(sample) or b""
        return found if len(found) <= _LONG_VALUE else xxh3_128_digest(found)


MEASURED_BYTES = 160
"""What a sample costs while its class and its neighbours are looked at."""


class MeasuredShuffle(Order):
    """The order of :class:`~wdscli.plan.orders.ShuffledOrder`; once it is arranged, ``quality`` says how good it is."""

    operation = "shuffle"
    extract = ClassOf()
    bytes_per_sample = MEASURED_BYTES

    def __init__(self, seed: int = 0, window: int = WINDOW) -> None:
        self.seed: int = seed
        self._window = window
        self.quality: Quality | None = None

    def arrange(self, surveyed: Surveyed) -> Arranged:
        arranged = ShuffledOrder(self.seed).arrange(surveyed)
        values = None if surveyed.values is None else list(surveyed.values)
        self.quality = measure(surveyed.samples.shards, arranged.order, values, self._window)
        return arranged


def measure(
    shards: Numbers, order: I64 | None, values: Sequence[bytes] | None = None, window: int = WINDOW
) -> Quality:
    """The quality of ``order`` (None: as the input) over samples whose source ``shards`` and, where there are any,
    class ``values`` are given in input order; an empty value is no class.

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
    """The numbers of one order; ``places`` has the place in the input of each sample in it."""
    total = len(places)
    counts = _distinct(shards[places], window)
    distances = (places - numpy.arange(total)).astype(numpy.float64)
    runs = 0 if classes is None else 1 + int((numpy.diff(classes[places]) != 0).sum())
    # Spearman's: 1 - 6 sum(d^2) / (n (n^2 - 1)). Places are ranks already, and none is tied.
    unlike = 6 * float(numpy.square(distances).sum()) / (total * (float(total) ** 2 - 1) or 1)
    return Mixing(
        shards_per_window=round(float(counts.mean()), 3) if total else 0.0,
        fewest_shards=int(counts.min()) if total else 0,
        displacement=round(float(numpy.abs(distances).mean()), 3) if total else 0.0,
        correlation=round(1 - unlike, 6) if total > 1 else None,
        class_run=None if classes is None else round(total / runs, 3),
    )


def _distinct(shards: Numbers, window: int) -> Numbers:
    """How many distinct shards each whole window holds."""
    windows = len(shards) // window
    rows = numpy.sort(shards[: windows * window].reshape(windows, window), axis=1)
    counts: Numbers = 1 + (rows[:, 1:] != rows[:, :-1]).sum(axis=1)
    return counts


def _random_distinct(shards: Numbers, window: int) -> float:
    """The sum, over shards, of the chance that a window has one of its samples."""
    total = len(shards)
    found = 0.0
    for size, of_this_size in zip(
        *numpy.unique(numpy.unique(shards, return_counts=True)[1], return_counts=True)
    ):
        found += int(of_this_size) * (1 - _none_of(total, int(size), window))
    return round(found, 3)


def _none_of(total: int, size: int, window: int) -> float:
    """The chance that none of ``size`` samples is among ``window`` of ``total``: C(total - size, window) over
    C(total, window)."""
    if size + window > total:
        return 0.0
    parts = lgamma(total - size + 1) - lgamma(total - size - window + 1)
    return exp(parts - lgamma(total + 1) + lgamma(total - window + 1))


def _random_run(classes: Numbers) -> float:
    """Samples by the runs that are to be expected: neighbours are of one class with the chance of any two."""
    total = len(classes)
    if total < 2:
        return 1.0
    sizes: list[int] = numpy.unique(classes, return_counts=True)[1].tolist()
    alike = sum(size * (size - 1) for size in sizes) / (total * (total - 1))
    return round(total / (1 + (total - 1) * (1 - alike)), 3)
