"""A set of indexed shards as a source of positions.

What it is: :class:`IndexedSource`. How: :class:`~wdscli.loader.order.order.EpochOrder` maps positions to samples of
shards, and a :class:`~wdscli.loader.read.fetch.Pool` reads them. It must not know ranks, workers, batches or stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wdscli.arrays import I64
from wdscli.errors import DataError, StorageError
from wdscli.loader.checks import want_whole, want_word
from wdscli.loader.order.order import CAP, LANES, ORDERS, EpochOrder, Shuffle
from wdscli.loader.order.source import EpochReader, PositionSource
from wdscli.loader.read.catalog import Catalog
from wdscli.loader.read.failures import Failed, read_each
from wdscli.loader.read.fetch import Pool, Raw
from wdscli.storage import is_local


class IndexedSource(PositionSource):
    """A set whose samples are known by place."""

    def __init__(
        self,
        catalog: Catalog,
        *,
        seed: int = 0,
        shuffle: Shuffle = "window",
        window: int = 64,
        fields: Sequence[str] | None = None,
    ) -> None:
        want_word("shuffle", shuffle, ORDERS)
        window = want_whole("window", window, 1, hint="the number of shards that are mixed at a time")
        self.catalog = catalog
        self.fields = fields
        self.seed = want_whole("seed", seed)
        self.is_shuffled = shuffle in ("window", "full")
        total = "" if catalog.total is None else f", {catalog.total:,} samples"
        self.facts = f"{len(catalog.addresses):,} shards{total}, shuffle={shuffle!r}, seed={self.seed!r}"
        self._how: dict[str, Any] = {"shuffle": shuffle, "window": window, "lanes": LANES, "cap": CAP}

    def identity(self) -> dict[str, Any]:
        how = self._how if self._how["shuffle"] == "window" else {"shuffle": self._how["shuffle"]}
        return {"fingerprint": self.catalog.fingerprint, "seed": self.seed, **how}

    def shuffled(self, seed: int) -> IndexedSource:
        """Return the same samples in the window order."""
        return IndexedSource(self.catalog, seed=seed, window=self._how["window"], fields=self.fields)

    def length(self, epoch: int) -> int:
        return self.catalog.total or 0

    def reader(self, epoch: int) -> EpochReader:
        return _Reader(self, epoch)

    def order(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch."""
        assert self.catalog.counts is not None
        return EpochOrder(self.catalog.counts, seed=self.seed, epoch=epoch, **self._how)


class _Reader(EpochReader):
    def __init__(self, source: IndexedSource, epoch: int) -> None:
        self._catalog, self._order = source.catalog, source.order(epoch)
        self.waits = not all(map(is_local, self._catalog.addresses))
        self.jumps = self.waits and source.is_shuffled
        self._pool = Pool(self._catalog, source.fields)
        self._is_closed = False

    def read(self, positions: I64) -> list[Raw | Failed]:
        shards, samples = self._order.locate(positions)
        places = self._catalog.places(shards, samples)
        try:
            return list(self._pool.fetch(shards, places))
        except (DataError, StorageError):
            if self._is_closed:  # the consumer has left
                raise
            return read_each(self._catalog, self._pool, shards, places)

    def expect(self, positions: I64) -> None:
        if self.waits:
            shards, samples = self._order.locate(positions)
            self._pool.expect(shards, self._catalog.places(shards, samples))

    def close(self) -> None:
        self._is_closed = True
        self._pool.close()
