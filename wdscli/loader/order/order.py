"""The order of an epoch: a pure function of (counts of the shards, seed, epoch, position).

:class:`EpochOrder` maps the positions of an epoch to samples of shards. All arithmetic is modulo 2^64, and ``mix`` is
the step of splitmix64 (see :mod:`wdscli.ordering`):

* ``key(a, b, ...)`` is ``mix(... mix(mix(a) ^ b) ...)``. An epoch's key is ``key(seed, epoch)``.
* A permutation of n things by a key: up to 2^20 of them are sorted by ``mix(key ^ i)``, ties by i. More are permuted by
  a generalised Feistel network (Black and Rogaway, *Ciphers with arbitrary finite domains*, 2002) over a x b numbers,
  a = ceil(sqrt(n)), b = ceil(n / a): x is written as l*b + r; in round j = 0..5 with ``k_j = mix(key + j)``, for even j
  ``l = (l + mix(k_j ^ r) mod a) mod a``, for odd j ``r = (r + mix(k_j ^ l) mod b) mod b``; a result that is not below n
  goes in again.
* ``"window"``: shards are permuted by ``key(seed, epoch, 1)`` and laid end to end. These N samples are divided into
  ``lanes`` stretches; the first N mod lanes have one sample more; position p is number p // lanes of lane
  p mod lanes. A lane of n samples is divided into m windows, window i from n*i // m to n*(i+1) // m, with
  m = ceil(n / size) and size = min(cap, ceil(window * N / (shards * lanes))). Inside window i of lane c the samples
  are permuted by ``key(seed, epoch, 2, c, i)``.
* ``"shards"``: shards are permuted as for ``"window"`` and laid end to end; samples keep their order in them.
* ``"full"``: all samples are permuted by ``key(seed, epoch, 3)``. ``"none"``: they come in the order of the shards.

:func:`seeded` seeds the global generators for stages with a key of the same kind. This module knows neither the
contents of a shard nor which process reads a position."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from math import isqrt
from typing import Any, Literal

from wdscli.arrays import I64, U64, numpy
from wdscli.errors import UsageError
from wdscli.loader.checks import want_word
from wdscli.ordering import mix, mix_array

Shuffle = Literal["window", "shards", "full", "none"]
ORDERS: tuple[Shuffle, ...] = ("window", "shards", "full", "none")
SHARDS, WINDOW, FULL, MIX, THINNED, MIXED, BUFFERED, DRAWN, STAGES, PLANNED = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
"""Purposes of keys."""
ENDLESS = 1 << 62
"""Positions of an endless epoch."""
SORTED = 1 << 20
"""The most items of a permutation by sorting; a larger one is computed item by item."""
ROUNDS = 6
LANES = 8
CAP = 1 << 18
"""The most samples of a window in one lane."""


def key(*parts: int) -> int:
    """A key of 64 bits from numbers, each taken modulo 2^64."""
    state = mix(parts[0])
    for part in parts[1:]:
        state = mix(state ^ (part & 0xFFFFFFFFFFFFFFFF))
    return state


def groups(numbers: I64) -> Iterator[tuple[int, I64]]:
    """Yield (number, its rows) for each different number."""
    for number in numpy.unique(numbers).tolist():
        yield number, (numbers == number).nonzero()[0]


def gathered(numbers: I64, read: Callable[[int, I64], Iterable[Any]]) -> list[Any]:
    """Return the items of ``read(number, rows)`` for each different number and its rows, in the order of the rows."""
    found: list[Any] = [None] * len(numbers)
    for number, rows in groups(numbers):
        for row, item in zip(rows.tolist(), read(number, rows)):
            found[row] = item
    return found


def drawn(held: list[Any], draw: int) -> Any:
    """Take the drawn item out of a shuffle buffer; the last item moves to its place."""
    place = draw % len(held)
    held[place], held[-1] = held[-1], held[place]
    return held.pop()


def stretches(ends: I64, positions: I64) -> tuple[I64, I64]:
    """Return (number of the stretch, position in the stretch) for some positions in a sequence of stretches with these
    ends."""
    numbers: I64 = ends.searchsorted(positions, "right")
    return numbers, positions - numpy.where(numbers > 0, ends[numbers - 1], 0)


class Permutation:
    """A permutation of ``range(count)`` by a key of 64 bits."""

    def __init__(self, count: int, key: int) -> None:
        self._count, self._key = count, key
        self._table: I64 | None = None
        if count <= SORTED:
            places: U64 = numpy.arange(count, dtype=numpy.uint64)
            self._table = mix_array(places ^ numpy.uint64(key)).argsort(kind="stable")

    def at(self, places: I64) -> I64:
        """Return the permuted places."""
        if self._table is not None:
            return self._table[places]
        found = self._feistel(places)
        outside = (found >= self._count).nonzero()[0]
        while len(outside):
            found[outside] = self._feistel(found[outside])
            outside = outside[found[outside] >= self._count]
        return found

    def _feistel(self, places: I64) -> I64:
        rows = isqrt(self._count - 1) + 1
        a, b = numpy.uint64(rows), numpy.uint64(-(-self._count // rows))
        left, right = numpy.divmod(places.astype(numpy.uint64), b)
        for number in range(ROUNDS):
            of_round = numpy.uint64(mix(self._key + number))
            if number % 2 == 0:
                left = (left + mix_array(right ^ of_round) % a) % a
            else:
                right = (right + mix_array(left ^ of_round) % b) % b
        return (left * b + right).astype(numpy.int64)


class EpochOrder:
    """One epoch over shards of ``counts`` samples. ``window`` is in shards, and ``cap`` bounds the samples of a window
    in one lane. Raises UsageError for impossible values."""

    def __init__(
        self,
        counts: I64,
        *,
        seed: int = 0,
        epoch: int = 0,
        shuffle: Shuffle = "window",
        window: int = 64,
        lanes: int = LANES,
        cap: int = CAP,
    ) -> None:
        want_word("shuffle", shuffle, ORDERS)
        if min(window, lanes, cap) < 1:
            raise UsageError(f"window, lanes and cap must be at least 1, not {min(window, lanes, cap)}")
        self._shuffle = shuffle
        self._shards: I64 | None = None
        if shuffle in ("window", "shards"):
            self._shards = _permuted(seed, epoch, len(counts), SHARDS).at(numpy.arange(len(counts)))
            counts = counts[self._shards]
        self._ends: I64 = counts.cumsum(dtype=numpy.int64)
        self.total = int(self._ends[-1]) if len(counts) else 0
        self._lanes = max(1, min(lanes, self.total))
        self._window = max(1, min(cap, -(-window * self.total // (max(1, len(counts)) * self._lanes))))
        # A few permutations of windows are kept, because neighbouring positions come soon.
        self._permutation = lru_cache(2 * self._lanes + 1)(partial(_permuted, seed, epoch))

    def locate(self, positions: I64) -> tuple[I64, I64]:
        """Return (shard, sample in the shard) of some positions, 0 <= position < ``total``."""
        if self._shuffle == "full":
            positions = self._permutation(self.total, FULL).at(positions)
        elif self._shuffle == "window":
            positions = self._in_windows(positions)
        rows, samples = stretches(self._ends, positions)
        return (rows if self._shards is None else self._shards[rows]), samples

    def _in_windows(self, positions: I64) -> I64:
        """Return positions in the sequence of permuted shards."""
        lanes, base, longer = self._lanes, *divmod(self.total, self._lanes)
        places, lane_of = numpy.divmod(positions, lanes)
        found: I64 = numpy.empty_like(positions)
        for lane, chosen in groups(lane_of):
            count = base + (lane < longer)
            begin = lane * base + min(lane, longer)
            found[chosen] = begin + self._in_lane(places[chosen], lane, count)
        return found

    def _in_lane(self, places: I64, lane: int, count: int) -> I64:
        windows = -(-count // self._window)
        found: I64 = places.copy()
        for window, chosen in groups(((places + 1) * windows - 1) // count):
            first, end = count * window // windows, count * (window + 1) // windows
            permuted = self._permutation(end - first, WINDOW, lane, window)
            found[chosen] = first + permuted.at(places[chosen] - first)
        return found


def _permuted(seed: int, epoch: int, count: int, *parts: int) -> Permutation:
    return Permutation(count, key(seed, epoch, *parts))


@contextmanager
def seeded(*parts: int, kept: bool) -> Iterator[None]:
    """Seed the global generators of ``random``, numpy and torch with ``key(9, *parts)`` while the block runs. The block
    makes a batch, so random crops and flips are the same in a resumed run. With ``kept``, the old state of the
    generators is restored at the end, because in the main process the model uses them too. Threads that share the
    generators have no fixed order."""
    import random

    seed = key(STAGES, *parts)
    torch = sys.modules.get("torch")
    if kept:
        plain, arrays = random.getstate(), numpy.random.get_state()
        tensors = None if torch is None else torch.default_generator.get_state()
    random.seed(seed)
    numpy.random.seed(seed & 0xFFFFFFFF)
    if torch is not None:
        torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        if kept:
            random.setstate(plain)
            numpy.random.set_state(arrays)
            if torch is not None:
                torch.default_generator.set_state(tensors)
