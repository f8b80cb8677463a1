"""Which keys were seen before, at 16 bytes a key and the room that a table needs to stay quick.

What it is: :class:`KeySet`, a set of 128-bit hashes of keys that grows by batches. How: with the compiled core a table
of hashes, probed one place after the other, that is at most three quarters full and doubles when it would be fuller. In
plain Python a set while it is small; beyond that sorted arrays of XXH3-128, each at least twice as long as the next,
which are merged as they grow (a log-structured merge), so that a batch is looked up by a few binary searches. Two
different keys of one hash are not expected before 10^17 keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from xxhash import xxh3_128_intdigest

from wdscli.tar import core

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Run: TypeAlias = tuple[NDArray[numpy.uint64], NDArray[numpy.uint64]]

SMALL_KEYS = 1 << 16
_LOW = (1 << 64) - 1
_HASH_BYTES = 16


class KeySet:
    """Add keys batch by batch; :meth:`add` says which of them were there.

    >>> keys = KeySet()
    >>> keys.add([b"a", b"b"]), keys.add([b"c", b"a", b"c"])
    ([], [1, 2])
    """

    def __init__(self, small: int = SMALL_KEYS) -> None:
        self._small_limit = small
        self._small: set[int] = set()
        self._runs: list[Run] = []
        self._core = core.CORE
        self._table = bytearray(_HASH_BYTES << 12)
        self._count = 0

    def add(self, keys: Sequence[bytes]) -> list[int]:
        """Add ``keys``; returns the places of those that were added before, in this batch or an earlier one."""
        if self._core is None:
            return self._add_hashes(list(map(xxh3_128_intdigest, keys)))
        if self.add_new(keys):
            return []
        return [at for at, key in enumerate(keys) if not self.add_new([key])]

    def add_new(self, keys: Sequence[bytes]) -> bool:
        """Add ``keys`` if all of them are new and no two the same; False, and none is added, otherwise. For who has
        the compiled core."""
        assert self._core is not None
        table = self._table
        while 4 * (self._count + len(keys)) > 3 * (len(table) // _HASH_BYTES):
            table = bytearray(2 * len(table))
        if table is not self._table:
            self._core.remember(table, self._table)
            self._table = table
        is_new: bool = self._core.remember(table, list(keys))
        self._count += len(keys) if is_new else 0
        return is_new

    def _add_hashes(self, hashes: list[int]) -> list[int]:
        small = self._small
        before = len(small)
        repeated = []
        if small.isdisjoint(hashes):
            small.update(hashes)
        if len(small) - before < len(hashes):
            repeated = self._one_by_one(hashes, before)
        if self._runs:
            repeated = sorted({*repeated, *self._in_runs(hashes)})
        if len(small) > self._small_limit:
            self._settle()
        return repeated

    def _one_by_one(self, hashes: list[int], before: int) -> list[int]:
        """The slow look at a batch that repeats something."""
        small = self._small
        if len(small) > before:
            small.difference_update(hashes)
        repeated = []
        for at, number in enumerate(hashes):
            if number in small:
                repeated.append(at)
            small.add(number)
        return repeated

    def _in_runs(self, hashes: list[int]) -> list[int]:
        import numpy

        high: NDArray[numpy.uint64] = numpy.array([number >> 64 for number in hashes], dtype=numpy.uint64)
        found: list[int] = []
        for highs, lows in self._runs:
            places: NDArray[numpy.int64] = numpy.searchsorted(highs, high).astype(numpy.int64)
            hits = numpy.flatnonzero(highs[numpy.minimum(places, len(highs) - 1)] == high)
            for at in hits.tolist():
                place = int(places[at])
                while place < len(highs) and int(highs[place]) == hashes[at] >> 64:
                    if int(lows[place]) == hashes[at] & _LOW:
                        found.append(at)
                        break
                    place += 1
        return found

    def _settle(self) -> None:
        """Move the small set into a sorted run, and merge runs that are no longer much longer than their successor."""
        import numpy

        numbers = sorted(self._small)
        self._small = set()
        high = numpy.array([number >> 64 for number in numbers], dtype=numpy.uint64)
        low = numpy.array([number & _LOW for number in numbers], dtype=numpy.uint64)
        while self._runs and len(self._runs[-1][0]) < 2 * len(high):
            highs, lows = self._runs.pop()
            high, low = numpy.concatenate((highs, high)), numpy.concatenate((lows, low))
            order = numpy.argsort(high, kind="stable")
            high, low = high[order], low[order]
        self._runs.append((high, low))
