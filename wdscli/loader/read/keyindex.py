"""From a key to the number of its sample, for a whole set.

What it is: :class:`KeyIndex`. How: made on first use from the keys in the shards' indexes: the XXH3-64 of every key,
sorted, beside the numbers of the samples, 12 or 16 bytes a sample. A hash only names candidates; their keys are then
compared. It must not know what a sample holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from wdscli.errors import DataError, StorageError
from wdscli.loader.read.catalog import Catalog, ShardTable, each_shard
from wdscli.loader.read.selected import FilteredCatalog
from wdscli.model import to_bytes

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    I64: TypeAlias = NDArray[numpy.int64]
    U64: TypeAlias = NDArray[numpy.uint64]

LOOKED_AT = 100_000
"""Keys that are looked at for names like one that is not there."""
COMPARED = 2_000


class KeyIndex:
    """The keys of a catalog's samples, numbered as it counts them. ``lenient`` finds none in a shard that cannot be
    looked into."""

    def __init__(self, catalog: Catalog, lenient: bool = False) -> None:
        import numpy

        self._catalog, self._lenient = catalog, lenient
        assert catalog.counts is not None
        self._ends: I64 = numpy.cumsum(catalog.counts)
        hashes: U64 = numpy.empty(catalog.total or 0, dtype=numpy.uint64)
        at = 0
        for some in each_shard(catalog.addresses, self._hashed):
            hashes[at : at + len(some)] = some
            at += len(some)
        kind = numpy.uint32 if len(hashes) < 1 << 32 else numpy.int64
        order = numpy.argsort(hashes, kind="stable")
        self._hashes = hashes[order]
        self._numbers: Any = order.astype(kind)

    def _hashed(self, shard: int) -> U64:
        import numpy
        from xxhash import xxh3_64_intdigest

        try:
            keys = keys_of(self._catalog, shard)
        except (DataError, StorageError):
            if not self._lenient or self._catalog.counts is None:
                raise
            return numpy.zeros(int(self._catalog.counts[shard]), dtype=numpy.uint64)
        return numpy.array(list(map(xxh3_64_intdigest, keys)), dtype=numpy.uint64)

    def find(self, key: str) -> list[int]:
        """The numbers of the samples with this key, rising; one where the set is sound."""
        import numpy
        from xxhash import xxh3_64_intdigest

        raw = to_bytes(key)
        wanted = numpy.uint64(xxh3_64_intdigest(raw))
        first = int(numpy.searchsorted(self._hashes, wanted, side="left"))
        end = int(numpy.searchsorted(self._hashes, wanted, side="right"))
        return [number for number in self._numbers[first:end].tolist() if self._key(number) == raw]

    def _key(self, number: int) -> bytes:
        import numpy

        shard = int(numpy.searchsorted(self._ends, number, side="right"))
        sample = number - (int(self._ends[shard - 1]) if shard else 0)
        place = self._catalog.places(numpy.array([shard]), numpy.array([sample]))
        return to_bytes(self._catalog.table(shard).key(int(place[0])))


def keys_of(catalog: Catalog, shard: int) -> list[bytes]:
    """The keys of the samples of a shard that a catalog counts."""
    table = catalog.table(shard)
    rows = catalog.kept(shard) if isinstance(catalog, FilteredCatalog) else None
    ends = table.key_ends.tolist()
    if rows is None:
        return [table.keys[first:end] for first, end in pairwise([0, *ends])]
    return [_key_at(table, ends, row) for row in rows.tolist()]


def _key_at(table: ShardTable, ends: list[int], row: int) -> bytes:
    return table.keys[ends[row - 1] if row else 0 : ends[row]]


def near(key: str, keys: Iterator[str]) -> list[str]:
    """Up to three keys that look like one that is not there, from the first of ``keys``."""
    from difflib import get_close_matches

    ending = key[-3:]
    known = list(islice(keys, LOOKED_AT))
    alike = [
        one for one in known if abs(len(one) - len(key)) <= 2 and (one[:3] == key[:3] or one[-3:] == ending)
    ]
    return get_close_matches(key, alike[:COMPARED] or known[:COMPARED], n=3, cutoff=0.75)
