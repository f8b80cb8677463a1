"""From a key to the number of its sample, for a whole set.

What it is: :class:`KeyIndex`. How: made on first use from the keys in the shards' indexes: the XXH3-64 of every key,
sorted, next to the numbers of the samples, 12 or 16 bytes a sample. A hash only finds candidates; their keys are then
compared. The seed is secret, because with a known one a set could be made whose keys all have many candidates. It must
not know what is in a sample.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Any

from wdscli.arrays import U64, numpy
from wdscli.errors import DataError, StorageError, nearest
from wdscli.loader.read.catalog import Catalog, each_shard
from wdscli.model import to_bytes

ALIKE_KEYS = 100_000
"""Keys that are searched for names similar to a missing one."""
COMPARED_KEYS = 2_000


class KeyIndex:
    """The keys of a catalog's samples, numbered as it counts them. ``lenient`` finds none in an unreadable shard."""

    def __init__(self, catalog: Catalog, lenient: bool = False) -> None:
        assert catalog.counts is not None
        self._catalog, self._lenient, self._counts = catalog, lenient, catalog.counts
        self._ends = self._counts.cumsum()
        self._seed = int.from_bytes(os.urandom(8), "little")
        hashes = numpy.concatenate([*each_shard(catalog.addresses, self._hashed)])
        order = hashes.argsort(kind="stable")
        self._hashes = hashes[order]
        self._numbers: Any = order.astype(numpy.uint32 if len(hashes) < 1 << 32 else numpy.int64)

    def _hashed(self, shard: int) -> U64:
        from xxhash import xxh3_64_intdigest

        try:
            keys = _keys(self._catalog, shard)
        except (DataError, StorageError):
            if not self._lenient:
                raise
            return numpy.zeros(int(self._counts[shard]), dtype=numpy.uint64)
        return numpy.array([xxh3_64_intdigest(key, self._seed) for key in keys], dtype=numpy.uint64)

    def find(self, key: str) -> list[int]:
        """Return the numbers of the samples with this key, rising; one in a valid set."""
        from xxhash import xxh3_64_intdigest

        raw = to_bytes(key)
        hashed = numpy.uint64(xxh3_64_intdigest(raw, self._seed))
        first, end = (int(self._hashes.searchsorted(hashed, side)) for side in ("left", "right"))
        return [number for number in self._numbers[first:end].tolist() if self._key(number) == raw]

    def _key(self, number: int) -> bytes:
        shard = int(self._ends.searchsorted(number, "right"))
        place = self._catalog.place(shard, number - int(self._ends[shard] - self._counts[shard]))
        return to_bytes(self._catalog.table(shard).key(place))


def _keys(catalog: Catalog, shard: int) -> list[bytes]:
    """The keys of the samples of a shard that a catalog counts."""
    table, places = catalog.table(shard), catalog.kept(shard)
    keys = [table.keys[first:end] for first, end in pairwise([0, *table.key_ends.tolist()])]
    return keys if places is None else [keys[place] for place in places.tolist()]


def similar(key: str, keys: Iterator[str]) -> list[str]:
    """Return up to three keys that are similar to a missing one, from the first of ``keys``."""
    ending = key[-3:]
    known = list(islice(keys, ALIKE_KEYS))
    alike = [
        one for one in known if abs(len(one) - len(key)) <= 2 and (one[:3] == key[:3] or one[-3:] == ending)
    ]
    return nearest(key, alike[:COMPARED_KEYS] or known[:COMPARED_KEYS], cutoff=0.75)
