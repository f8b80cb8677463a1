"""Where positions of an epoch become samples: the protocol :class:`PositionSource`, and the one over an indexed set.

What it is: a source has a length for each epoch and gives the samples at any positions of it, the same ones in every
process that asks. How: :class:`~wdscli.loader.order.order.EpochOrder` says where they lie, a
:class:`~wdscli.loader.read.fetch.Pool` reads them. What cannot be read may be replaced by what lies further on
(:func:`instead`). It must not know of ranks, workers, batches or stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from wdscli.arrays import I64, numpy
from wdscli.errors import DataError, StorageError
from wdscli.loader.checks import want_whole, want_word
from wdscli.loader.order.order import CAP, LANES, ORDERS, EpochOrder, Shuffle
from wdscli.loader.read.catalog import Catalog
from wdscli.loader.read.failures import Failed, read_each
from wdscli.loader.read.fetch import Pool, Raw
from wdscli.storage import is_local
from wdscli.threads import ForkLock


class PositionSource(Protocol):
    """Picklable, and small when pickled."""

    def identity(self) -> dict[str, Any]:
        """What a state must share with this source to fit it: plain values, a few hundred bytes."""

    def length(self, epoch: int) -> int:
        """Positions in an epoch."""

    def reader(self, epoch: int) -> EpochReader:
        """The samples of an epoch; closed by the caller. One whose reads wait for other machines has a true
        attribute ``waits``, and ``jumps`` in a shuffled order."""


class EpochReader(Protocol):
    """One epoch of a source, for one thread. One that can make use of it has a method ``expect(positions)``, which is
    called before a read with what the read after that will be of."""

    def read(self, positions: I64) -> list[Raw | Failed]:
        """The samples at some positions, in their order, with Failed where one cannot be read."""

    def close(self) -> None:
        """Close all files."""


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
        want_word("shuffle", shuffle, ORDERS)
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
        """Whether samples are not in the order of their shard."""
        return self._how["shuffle"] in ("window", "full")

    def shuffled(self, seed: int | None = None, **how: Any) -> IndexedSource:
        """The same samples in another order."""
        seed = self.seed if seed is None else seed
        return IndexedSource(self.catalog, seed=seed, fields=self.fields, **{**self._how, **how})

    def length(self, epoch: int) -> int:
        return self.catalog.total or 0

    def reader(self, epoch: int) -> EpochReader:
        return _Reader(self, epoch)

    def order(self, epoch: int) -> EpochOrder:
        """Where the samples of an epoch lie."""
        assert self.catalog.counts is not None
        return EpochOrder(self.catalog.counts, seed=self.seed, epoch=epoch, **self._how)


class _Reader:
    def __init__(self, source: IndexedSource, epoch: int) -> None:
        self._catalog, self._order = source.catalog, source.order(epoch)
        self.waits = not all(map(is_local, self._catalog.addresses))
        """Whether a read waits for other machines, so that it pays to read ahead."""
        self.jumps = self.waits and source.is_shuffled
        """Whether neighbours of such a read are far from each other, so that it pays to read many at once."""
        self._pool = Pool(self._catalog, source.fields)
        self._is_closed = False

    def read(self, positions: I64) -> list[Raw | Failed]:
        shards, samples = self._order.locate(positions)
        places = self._catalog.places(shards, samples)
        try:
            return list(self._pool.fetch(shards, places))
        except (DataError, StorageError):
            if self._is_closed:  # nobody waits for this any more
                raise
            return read_each(self._catalog, self._pool, shards, places)

    def expect(self, positions: I64) -> None:
        """Which positions the read after the next one will be of."""
        if self.waits:
            shards, samples = self._order.locate(positions)
            self._pool.expect(shards, self._catalog.places(shards, samples))

    def close(self) -> None:
        self._is_closed = True
        self._pool.close()


def instead(reader: EpochReader, position: int, step: int, length: int) -> Any:
    """What is tried in the place of ``position`` of an epoch of ``length``: the sample ``step`` further on, or Failed.
    A reader that knows better, because what lies there is of another set or epoch, has a method of this name."""
    own = getattr(reader, "instead", None)
    if own is not None:
        return own(position, step)
    [sample] = reader.read(numpy.array([(position + step) % length], dtype=numpy.int64))
    return sample


class Spare:
    """A reader of its own for what is read in the place of something else, opened when it is needed: the one that reads
    ahead may be in the hands of another thread. For several threads."""

    def __init__(self, source: PositionSource, epoch: int) -> None:
        self._source, self._epoch = source, epoch
        self._reader: EpochReader | None = None
        self._lock = ForkLock()

    def instead(self, position: int, step: int, length: int) -> Any:
        """See :func:`instead`."""
        with self._lock:
            self._reader = self._reader or self._source.reader(self._epoch)
            return instead(self._reader, position, step, length)

    def close(self) -> None:
        """Close all files."""
        if self._reader is not None:
            self._reader.close()
