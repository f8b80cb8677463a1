"""Where positions of an epoch become samples: the protocol :class:`PositionSource`, and the one over an indexed set.

What it is: a source has a length for each epoch and gives the samples at any positions of it, the same ones in every
process that asks. How: :class:`~wdscli.loader.order.order.EpochOrder` says where they lie, a
:class:`~wdscli.loader.read.fetch.Fetcher` reads them. It must not know of ranks, workers, batches or stages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from wdscli.errors import DataError, StorageError
from wdscli.loader.checks import want_whole, want_word
from wdscli.loader.order import heap
from wdscli.loader.order.order import CAP, LANES, EpochOrder, Shuffle
from wdscli.loader.read.catalog import Catalog
from wdscli.loader.read.failures import Failed, read_each
from wdscli.loader.read.fetch import Fetcher, Raw
from wdscli.loader.read.pool import Pool
from wdscli.storage import is_local

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    I64: TypeAlias = NDArray[numpy.int64]

Read: TypeAlias = "Callable[[I64], list[Raw]]"


class PositionSource(Protocol):
    """Picklable, and small when pickled."""

    def identity(self) -> dict[str, Any]:
        """What a state must share with this source to fit it: plain values, a few hundred bytes."""

    def length(self, epoch: int) -> int:
        """Positions in an epoch."""

    def reader(self, epoch: int) -> EpochReader:
        """The samples of an epoch; closed by the caller. One whose reads wait for other machines has a true
        attribute ``waits``."""


class EpochReader(Protocol):
    """One epoch of a source, for one thread."""

    def read(self, positions: I64) -> list[Raw | Failed]:
        """The samples at some positions, in their order, with Failed where one cannot be read."""

    def close(self) -> None:
        """Let go of files."""


class IndexedSource:
    """A set whose samples are known by place."""

    def __init__(
        self,
        catalog: Catalog,
        *,
        seed: int = 0,
        shuffle: Shuffle = "window",
        window: int = 64,
        lanes: int = LANES,
        cap: int = CAP,
        fields: Sequence[str] | None = None,
    ) -> None:
        want_word("shuffle", shuffle, ("window", "full", "none"))
        window = want_whole("window", window, 1, hint="shards that are mixed at a time")
        self.catalog = catalog
        self.fields = fields
        self.seed = want_whole("seed", seed)
        self._how: dict[str, Any] = {"shuffle": shuffle, "window": window, "lanes": lanes, "cap": cap}

    def identity(self) -> dict[str, Any]:
        how = self._how if self._how["shuffle"] == "window" else {"shuffle": self._how["shuffle"]}
        return {"fingerprint": self.catalog.fingerprint, "seed": self.seed, **how}

    @property
    def is_shuffled(self) -> bool:
        """Whether the order is not that of the shards."""
        return bool(self._how["shuffle"] != "none")

    def shuffled(self, seed: int | None = None, **how: Any) -> IndexedSource:
        """The same samples in another order."""
        seed = self.seed if seed is None else seed
        return IndexedSource(self.catalog, seed=seed, fields=self.fields, **{**self._how, **how})

    def length(self, epoch: int) -> int:
        return self.catalog.total or 0

    def reader(self, epoch: int) -> EpochReader:
        assert self.catalog.counts is not None
        heap.keep()
        order = EpochOrder(self.catalog.counts, seed=self.seed, epoch=epoch, **self._how)
        if all(map(is_local, self.catalog.addresses)):
            return _Reader(self.catalog, order, Fetcher(self.catalog, self.fields))
        return _Reader(self.catalog, order, Pool(self.catalog, self.fields), waits=True)


class _Reader:
    def __init__(
        self, catalog: Catalog, order: EpochOrder, fetcher: Fetcher | Pool, waits: bool = False
    ) -> None:
        self.waits = waits
        """Whether a read waits for other machines, so that it pays to read ahead."""
        self._catalog = catalog
        self._order = order
        self._fetcher = fetcher

    def read(self, positions: I64) -> list[Raw | Failed]:
        shards, samples = self._order.locate(positions)
        places = self._catalog.places(shards, samples)
        try:
            return list(self._fetcher.fetch(shards, places))
        except (DataError, StorageError):
            return read_each(self._catalog, self._fetcher, shards, places)

    def close(self) -> None:
        self._fetcher.close()
