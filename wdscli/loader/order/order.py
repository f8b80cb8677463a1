"""This module computes the order of an epoch: a pure function of (sample counts of the shards, seed, epoch, position).

:class:`EpochOrder` maps the positions of an epoch to samples of shards, and back. All arithmetic is modulo 2^64, and
``mix`` is the step of splitmix64 (see :mod:`wdscli.ordering`):

* ``key(a, b, ...)`` is ``mix(... mix(mix(a) ^ b) ...)``. An epoch's key is ``key(seed, epoch)``.
* A permutation of the numbers i = 0..n-1 by a key: if n is at most 2^20, they are sorted by ``mix(key ^ i)``, and ties
  by i. Otherwise the numbers are permuted by a generalised Feistel network (Black and Rogaway, *Ciphers with arbitrary
  finite domains*, 2002). The network permutes a x b numbers, with a = ceil(sqrt(n)) and b = ceil(n / a). A number x is
  written as l*b + r. There are six rounds j = 0..5 with ``k_j = mix(key + j)``: for even j ``l = (l + mix(k_j ^ r) mod
  a) mod a``, for odd j ``r = (r + mix(k_j ^ l) mod b) mod b``. If the result is not below n, it is the input of the
  next pass.
* ``"window"``: shards are permuted by ``key(seed, epoch, 1)``, and their samples form one sequence of N samples. The
  sequence is divided into ``lanes`` stretches, called lanes; the first N mod lanes of them have one sample more.
  Position p of the epoch is number p // lanes of lane p mod lanes. A lane of n samples is divided into m = ceil(n /
  size) windows, where size = min(cap, ceil(window * N / (shards * lanes))). Window i is from n*i // m to n*(i+1) // m.
  Inside window i of lane c the samples are permuted by ``key(seed, epoch, 2, c, i)``.
* ``"blocks"``: shards are permuted as for ``"window"``. A shard of n samples has m = max(1, n // ``block``) blocks;
  block j is from n*j // m to n*(j+1) // m. All S shards have B blocks. The permuted shards are divided into g = ceil(B
  / 2^16) groups; group i is from shard S*i // g to S*(i+1) // g. For block j of a shard, let h = key(seed, epoch, 11,
  shard, j), and let r be the rank of h among the shard's blocks, from 0. Let v = key(seed, epoch, 11, shard) >> 32. For
  a group of s shards, let k = max(1, s // ``window``). The blocks of a group are sorted by (r * 2^32 + (mix(h) mod k *
  2^32 + v) // k) // m; equal blocks keep their order. So a shard's blocks are spread evenly over the group. The b
  blocks of a group are divided into q = ceil(b / ``window``) windows; window i is from b*i // q to b*(i+1) // q. The
  samples of a window are divided into ``lanes`` lanes, as for ``"window"``. The samples of lane c of window i of group
  e are permuted by ``key(seed, epoch, 12, e, i, c)``.
* ``"shards"``: shards are permuted as for ``"window"``. The samples of a shard keep their order.
* ``"full"``: all samples are permuted by ``key(seed, epoch, 3)``. ``"none"``: samples come in the order of the set.

:func:`seeded` seeds the global random generators, which stages use, with such a key. This module knows neither the
contents of a shard nor which process reads a position."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from math import isqrt
from typing import Any, Literal, NamedTuple

from wdscli.arrays import I64, U64, numpy, spread
from wdscli.ordering import mix, mix_array
from wdscli.threads import Recent

Shuffle = Literal["window", "blocks", "shards", "full", "none"]
ORDERS: tuple[Shuffle, ...] = ("window", "blocks", "shards", "full", "none")
SHARDS, WINDOW, FULL, MIX, THINNED, MIXED, BUFFERED, DRAWN, STAGES, PLANNED, BLOCKS, IN_BLOCKS, CLASSES = (
    range(1, 14)
)
"""The purpose of a key, which is one of the numbers that the key is made from."""
ENDLESS = 1 << 62
"""The number of positions that means an endless epoch."""
SORTED = 1 << 20
"""The largest permutation that is made by sorting. A larger permutation is computed for each item when it is needed."""
ROUNDS = 6
LANES = 8
CAP = 1 << 18
"""The largest number of samples in a window of one lane."""
GROUP = 1 << 16
"""The approximate largest number of blocks that are permuted together."""
OPEN_GROUPS = 4


def key(*parts: int) -> int:
    """Return a key of 64 bits made from numbers, which are taken modulo 2^64."""
    state = mix(parts[0])
    for part in parts[1:]:
        state = mix(state ^ (part & 0xFFFFFFFFFFFFFFFF))
    return state


def groups(numbers: I64) -> Iterator[tuple[int, I64]]:
    """For each different number, yield the number and the indexes of the rows that have this number."""
    ordered = numpy.sort(numbers)  # numpy.unique takes up to ten times as long
    for number in ordered[numpy.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]].tolist():
        yield number, (numbers == number).nonzero()[0]


def rising(values: Any) -> I64:
    """Return the indexes that sort the values in rising order; equal values keep their order. Whole numbers from 0 to
    65,535 are sorted four times as fast."""
    if len(values) and values.min() >= 0 and values.max() < 1 << 16:
        small = values.astype(numpy.uint16)
        if values.dtype.kind in "iu" or (small == values).all():
            values = small
    order: I64 = values.argsort(kind="stable")
    return order


def gathered(numbers: I64, read: Callable[[int, I64], Iterable[Any]]) -> list[Any]:
    """Call ``read(number, rows)`` for each different number and the rows that have this number. Return the items of all
    calls in the order of the rows."""
    gathered_items: list[Any] = [None] * len(numbers)
    for number, rows in groups(numbers):
        for row, sample in zip(rows.tolist(), read(number, rows)):
            gathered_items[row] = sample
    return gathered_items


def drawn(held: list[Any], draw: int) -> Any:
    """Take item number ``draw`` modulo the length out of a shuffle buffer. The last item of the buffer moves to the
    free place."""
    place = draw % len(held)
    held[place], held[-1] = held[-1], held[place]
    return held.pop()


def stretches(ends: I64, positions: I64) -> tuple[I64, I64]:
    """Return two arrays for positions in a sequence of stretches: the stretch of each position, and the position in the
    stretch. ``ends`` are the ends of the stretches."""
    numbers: I64 = ends.searchsorted(positions, "right")
    return numbers, positions - numpy.where(numbers > 0, ends[numbers - 1], 0)


class Permutation:
    """A permutation of ``range(count)`` that is made from a key of 64 bits."""

    def __init__(self, count: int, key: int) -> None:
        self._count, self._key = count, key
        self._table: I64 | None = None
        if count <= SORTED:
            places: U64 = numpy.arange(count, dtype=numpy.uint64)
            self._table = mix_array(places ^ numpy.uint64(key)).argsort()  # no two are equal

    @property
    def held(self) -> int:
        """The number of places in memory, at least 1."""
        return 1 if self._table is None else len(self._table)

    def at(self, places: I64) -> I64:
        """Return the numbers to which the permutation maps ``places``."""
        if self._table is not None:
            return self._table[places]
        permuted = self._feistel(places)
        outside = (permuted >= self._count).nonzero()[0]
        while len(outside):
            permuted[outside] = self._feistel(permuted[outside])
            outside = outside[permuted[outside] >= self._count]
        return permuted

    def find(self, permuted: int) -> int:
        """Return the place that the permutation maps to ``permuted``."""
        if self._table is not None:
            return int((self._table == permuted).nonzero()[0][0])
        a, b = self._sides
        while True:
            left, right = divmod(permuted, b)
            for number in reversed(range(ROUNDS)):
                of_round = mix(self._key + number)
                if number % 2 == 0:
                    left = (left - mix(right ^ of_round)) % a
                else:
                    right = (right - mix(left ^ of_round)) % b
            permuted = left * b + right
            if permuted < self._count:
                return permuted

    @property
    def _sides(self) -> tuple[int, int]:
        """The sides a and b of the Feistel network's rectangle."""
        rows = isqrt(self._count - 1) + 1
        return rows, -(-self._count // rows)

    def _feistel(self, places: I64) -> I64:
        a, b = map(numpy.uint64, self._sides)
        left, right = numpy.divmod(places.astype(numpy.uint64), b)
        for number in range(ROUNDS):
            of_round = numpy.uint64(mix(self._key + number))
            if number % 2 == 0:
                left = (left + mix_array(right ^ of_round) % a) % a
            else:
                right = (right + mix_array(left ^ of_round) % b) % b
        return (left * b + right).astype(numpy.int64)


class Group(NamedTuple):
    """The permuted blocks of a group. For each block, ``shards`` has its shard, ``firsts`` its first sample in this
    shard, and ``ends`` its end in the sequence of the group's samples. ``windows`` has the end of each window in this
    sequence."""

    shards: I64
    firsts: I64
    ends: I64
    windows: I64


class EpochOrder:
    """One epoch over shards of ``counts`` samples. ``window`` is a number of shards, or of blocks for ``"blocks"``.
    ``block`` has the number of samples in a block for each shard; with None, each shard is one block."""

    def __init__(
        self,
        counts: I64,
        *,
        seed: int = 0,
        epoch: int = 0,
        shuffle: Shuffle = "window",
        window: int = 64,
        block: I64 | None = None,
    ) -> None:
        self._shuffle = shuffle
        self._shards: I64 | None = None
        if shuffle in ("window", "blocks", "shards"):
            self._shards = _permuted(seed, epoch, len(counts), SHARDS).at(numpy.arange(len(counts)))
            counts = counts[self._shards]
        self._ends: I64 = counts.cumsum(dtype=numpy.int64)
        self.total = int(self._ends[-1]) if len(counts) else 0
        if self._shards is not None and shuffle == "blocks":
            per_shard = 1 if block is None else numpy.maximum(1, counts // block[self._shards])
            blocks = numpy.minimum(counts, per_shard)
            self._of_epoch, self._blocks, self._in_window = key(seed, epoch, BLOCKS), blocks, window
            self.blocks = int(blocks.sum())
            groups = -(-self.blocks // GROUP)
            self._bounds: I64 = len(counts) * numpy.arange(groups + 1, dtype=numpy.int64) // max(1, groups)
            self._group_ends: I64 = numpy.append(0, self._ends)[self._bounds[1:]]
            self._first_blocks: I64 = numpy.append(0, blocks.cumsum())[self._bounds]
            self._known: Recent[int, Group] = Recent(OPEN_GROUPS)
        self._lanes = max(1, min(LANES, self.total))
        lane_bounds = [_lane(lane, self.total, self._lanes) for lane in range(self._lanes)]
        self._lane_begins, self._lane_counts = numpy.array(lane_bounds, dtype=numpy.int64).T
        self._window = max(1, min(CAP, -(-window * self.total // (max(1, len(counts)) * self._lanes))))
        # The latest permutations of windows are kept, because the next calls need neighbouring positions.
        self._permutation = lru_cache(2 * self._lanes + 1)(partial(_permuted, seed, epoch))

    def locate(self, positions: I64) -> tuple[I64, I64]:
        """Return two arrays for positions from 0 to ``total`` - 1: the shard of each position, and the sample in the
        shard."""
        if self._shuffle == "blocks":
            return self.locate_in_blocks(positions)[1:]
        if self._shuffle == "full":
            positions = self._permutation(self.total, FULL).at(positions)
        elif self._shuffle == "window":
            positions = self._in_windows(positions)
        rows, samples = stretches(self._ends, positions)
        return (rows if self._shards is None else self._shards[rows]), samples

    def find(self, shard: int, sample: int) -> int:
        """Return the position in the epoch of sample ``sample`` of shard ``shard``."""
        row = shard if self._shards is None else int((self._shards == shard).nonzero()[0][0])
        if self._shuffle == "blocks":
            return self._find_in_blocks(row, shard, sample)
        place = sample + (int(self._ends[row - 1]) if row else 0)
        if self._shuffle == "full":
            return self._permutation(self.total, FULL).find(place)
        if self._shuffle != "window":
            return place
        lane, begin, count = _lane_at(place, self.total, self._lanes)
        window, first, end = self._window_at(place - begin, count)
        permuted = self._permutation(end - first, WINDOW, lane, window)
        return int(first + permuted.find(place - begin - first)) * self._lanes + lane

    def _in_windows(self, positions: I64) -> I64:
        """Convert positions of the epoch to places in the sequence of the permuted shards' samples."""
        places, lane_of = numpy.divmod(positions, self._lanes)
        begins, counts = self._lane_begins[lane_of], self._lane_counts[lane_of]
        window_of, firsts, ends = self._window_at(places, counts)
        located: I64 = begins + firsts
        for number, chosen in groups(window_of * self._lanes + lane_of):
            first, end = int(firsts[chosen[0]]), int(ends[chosen[0]])
            permuted = self._permutation(end - first, WINDOW, number % self._lanes, number // self._lanes)
            located[chosen] += permuted.at(places[chosen] - first)
        return located

    def _window_at(self, place: Any, count: Any) -> tuple[Any, Any, Any]:
        """Return (number, begin, end) of the window that has ``place`` in a lane of ``count`` samples. The arguments
        are numbers or arrays."""
        windows = -(-count // self._window)
        window = ((place + 1) * windows - 1) // count
        return window, count * window // windows, count * (window + 1) // windows

    def locate_in_blocks(self, positions: I64) -> tuple[I64, I64, I64]:
        """Return three arrays for the positions: the block, the shard and the sample in the shard. Blocks are numbered
        from 0 through the whole epoch."""
        columns: I64 = numpy.empty((3, len(positions)), dtype=numpy.int64)
        of_group, within = stretches(self._group_ends, positions)
        for number, chosen in groups(of_group):
            group = self._group(number)
            blocks, offsets = stretches(group.ends, self._in_group(within[chosen], number, group))
            columns[0, chosen] = self._first_blocks[number] + blocks
            columns[1, chosen] = group.shards[blocks]
            columns[2, chosen] = group.firsts[blocks] + offsets
        return columns[0], columns[1], columns[2]

    def _in_group(self, places: I64, number: int, group: Group) -> I64:
        """Convert the places of a group's samples in the epoch to places in the sequence of the group's blocks."""
        located: I64 = numpy.empty_like(places)
        of_window, within = stretches(group.windows, places)
        for window, chosen in groups(of_window):
            first, size, lanes = self._window_of_blocks(window, group)
            rows, lane_of = numpy.divmod(within[chosen], lanes)
            for lane, in_lane in groups(lane_of):
                begin, count = _lane(lane, size, lanes)
                permuted = self._permutation(count, IN_BLOCKS, number, window, lane)
                located[chosen[in_lane]] = first + begin + permuted.at(rows[in_lane])
        return located

    def _window_of_blocks(self, window: int, group: Group) -> tuple[int, int, int]:
        """Return (first place, number of samples, number of lanes) of a window of a group."""
        first = int(group.windows[window - 1]) if window else 0
        size = int(group.windows[window]) - first
        return first, size, max(1, min(self._lanes, size))

    def _find_in_blocks(self, row: int, shard: int, sample: int) -> int:
        number = int(self._bounds.searchsorted(row, "right")) - 1
        group = self._group(number)
        begins: I64 = numpy.append(0, group.ends[:-1])
        inside = (group.shards == shard) & (group.firsts <= sample)
        inside &= sample < group.firsts + group.ends - begins
        block = int(inside.nonzero()[0][0])
        place = int(begins[block]) + sample - int(group.firsts[block])
        window = int(group.windows.searchsorted(place, "right"))
        first, size, lanes = self._window_of_blocks(window, group)
        lane, begin, count = _lane_at(place - first, size, lanes)
        permuted = self._permutation(count, IN_BLOCKS, number, window, lane)
        before = int(self._group_ends[number - 1]) if number else 0
        return before + first + permuted.find(place - first - begin) * lanes + lane

    def _group(self, number: int) -> Group:
        return self._known.used(number) or self._known.keep(number, self._made_group(number))

    def _made_group(self, number: int) -> Group:
        """Permute the blocks of the shards in group ``number``."""
        assert self._shards is not None
        mine = slice(int(self._bounds[number]), int(self._bounds[number + 1]))
        shards, blocks = self._shards[mine], self._blocks[mine]
        counts = numpy.diff(self._ends[mine], prepend=self._ends[mine.start - 1] if mine.start else 0)
        rows: I64 = numpy.arange(len(shards)).repeat(blocks)
        numbers = spread(0, blocks)
        of_shard = mix_array(shards.astype(numpy.uint64) ^ numpy.uint64(self._of_epoch))
        hashes = mix_array(of_shard[rows] ^ numbers.astype(numpy.uint64))
        ranks: U64 = numpy.empty(len(rows), dtype=numpy.uint64)
        ranks[numpy.lexsort((hashes, rows))] = numbers
        cells, half = numpy.uint64(max(1, len(shards) // self._in_window)), numpy.uint64(32)
        late = ((mix_array(hashes) % cells << half) + (of_shard >> half)[rows]) // cells
        order = (((ranks << half) + late) // blocks[rows].astype(numpy.uint64)).argsort(kind="stable")
        rows, numbers = rows[order], numbers[order]
        begins = counts[rows] * numbers // blocks[rows]
        ends = (counts[rows] * (numbers + 1) // blocks[rows] - begins).cumsum()
        windows = -(-len(rows) // self._in_window)
        last: I64 = len(rows) * numpy.arange(1, windows + 1, dtype=numpy.int64) // max(1, windows) - 1
        return Group(shards[rows], begins, ends, ends[last])


def _lane(lane: int, total: int, lanes: int) -> tuple[int, int]:
    """Return (first place, number of samples) of a lane, in a sequence of ``total`` samples with ``lanes`` lanes. The
    first lanes may have one sample more than the others."""
    base, longer = divmod(total, lanes)
    return lane * base + min(lane, longer), base + (lane < longer)


def _lane_at(place: int, total: int, lanes: int) -> tuple[int, int, int]:
    """Return three numbers for a ``place`` in a sequence of ``total`` samples: its lane, the lane's first place, and
    the lane's number of samples."""
    base, longer = divmod(total, lanes)
    head = longer * (base + 1)
    lane = place // (base + 1) if place < head else longer + (place - head) // base
    return lane, *_lane(lane, total, lanes)


def _permuted(seed: int, epoch: int, count: int, *parts: int) -> Permutation:
    return Permutation(count, key(seed, epoch, *parts))


@contextmanager
def seeded(*parts: int, kept: bool) -> Iterator[None]:
    """Seed the global generators of ``random``, numpy and torch with ``key(9, *parts)`` while the ``with`` block runs.
    The block makes a batch, so random crops and flips are the same in a resumed run. With ``kept``, the old states of
    the generators are restored at the end; the main process needs this, because the model uses the generators too. If
    several threads use the generators, the random numbers are not repeatable."""
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
