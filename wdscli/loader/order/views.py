"""Parts of a source and other orders of it: each again a source of positions.

What it is: a :class:`View` says which position of a line is meant by each position of the view: :class:`Slice`,
:class:`Thinned` (``rsample``), :class:`Mixed` (``shuffle`` of what was sliced or thinned before), :class:`Blocks` (a
view of whole batches). :class:`Viewed` is a source seen through one. All of it is arithmetic on positions: nothing is
read to be passed over, and a state stays exact. It must not know what a sample is, nor who reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from wdscli.loader.order.order import EpochOrder, key, mixed
from wdscli.loader.read.source import EpochReader, PositionSource

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    I64: TypeAlias = NDArray[numpy.int64]

THINNED, MIXED = 5, 6
"""What a key is for, as in :mod:`wdscli.loader.order.order`."""


class View(Protocol):
    """Some positions of a line of ``length``, in some order; which ones may depend on the epoch, how many may not."""

    def count(self, length: int) -> int:
        """Positions of the view."""

    def places(self, positions: I64, length: int, epoch: int) -> I64:
        """What they are in the line."""

    def identity(self) -> list[Any]:
        """Plain values that tell this view from others."""


class Slice(NamedTuple):
    """``range(length)[start:stop:step]``."""

    start: int | None
    stop: int | None
    step: int | None

    def range(self, length: int) -> range:
        return range(*slice(self.start, self.stop, self.step).indices(length))

    def count(self, length: int) -> int:
        return len(self.range(length))

    def places(self, positions: I64, length: int, epoch: int) -> I64:
        chosen = self.range(length)
        return chosen.start + chosen.step * positions

    def identity(self) -> list[Any]:
        return ["slice", self.start, self.stop, self.step]


class Thinned(NamedTuple):
    """``round(p * length)`` positions in their order, evenly spread, others in each epoch, each as likely as any other.

    Pinned: with n = length, m = round(p * n) and k = ``key(seed, epoch, 5)``, stretch i of m is from n*i // m to
    n*(i+1) // m, and gives its begin plus ``mix(k ^ i)`` modulo its size. What the stretches give is turned by
    ``key(k, 1)`` modulo n, and sorted.
    """

    p: float
    seed: int

    def count(self, length: int) -> int:
        return round(self.p * length)

    def places(self, positions: I64, length: int, epoch: int) -> I64:
        count = self.count(length)
        of_epoch = key(self.seed, epoch, THINNED)
        turn = key(of_epoch, 1) % length
        first = self._first_behind(length - turn, length, of_epoch)
        return (self._chosen((positions + first) % count, length, of_epoch) + turn) % length

    def _chosen(self, stretches: I64, length: int, of_epoch: int) -> I64:
        """What each stretch gives, in the turned line."""
        import numpy

        count = self.count(length)
        begins, ends = stretches * length // count, (stretches + 1) * length // count
        hashes = mixed(stretches.astype(numpy.uint64) ^ numpy.uint64(of_epoch))
        return begins + (hashes % (ends - begins).astype(numpy.uint64)).astype(numpy.int64)

    def _first_behind(self, place: int, length: int, of_epoch: int) -> int:
        """The first stretch that gives something at or behind ``place`` of the turned line, which is at the beginning
        when it is turned back."""
        import numpy

        if place == length:
            return 0
        stretch = ((place + 1) * self.count(length) - 1) // length
        given = self._chosen(numpy.array([stretch], dtype=numpy.int64), length, of_epoch)
        return stretch if int(given[0]) >= place else stretch + 1

    def identity(self) -> list[Any]:
        return ["rsample", self.p, self.seed]


class Mixed:
    """All positions, in the window order of a single shard."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._order: tuple[tuple[int, int], EpochOrder] | None = None

    def count(self, length: int) -> int:
        return length

    def places(self, positions: I64, length: int, epoch: int) -> I64:
        import numpy

        if self._order is None or self._order[0] != (length, epoch):
            counts = numpy.array([length], dtype=numpy.int64)
            self._order = (length, epoch), EpochOrder(counts, seed=key(self._seed, MIXED), epoch=epoch)
        return self._order[1].locate(positions)[1]

    def identity(self) -> list[Any]:
        return ["shuffle", self._seed]

    def __getstate__(self) -> dict[str, Any]:
        return {"_seed": self._seed, "_order": None}


class Blocks(NamedTuple):
    """A slice of batches of ``size`` positions; the last of the line may be short."""

    chosen: Slice
    size: int

    def count(self, length: int) -> int:
        blocks = -(-length // self.size)
        chosen = self.chosen.range(blocks)
        short = blocks * self.size - length if chosen and chosen[-1] == blocks - 1 else 0
        return len(chosen) * self.size - short

    def places(self, positions: I64, length: int, epoch: int) -> I64:
        chosen = self.chosen.range(-(-length // self.size))
        return (chosen.start + chosen.step * (positions // self.size)) * self.size + positions % self.size

    def identity(self) -> list[Any]:
        return ["batches", *self.chosen.identity()]


class Viewed:
    """A source seen through a view."""

    def __init__(self, source: PositionSource, view: View) -> None:
        self.source = source
        self.view = view

    def identity(self) -> dict[str, Any]:
        inner = self.source.identity()
        return {**inner, "view": [*inner.get("view", []), self.view.identity()]}

    def length(self, epoch: int) -> int:
        return self.view.count(self.source.length(epoch))

    def reader(self, epoch: int) -> EpochReader:
        return _ViewReader(self.source.reader(epoch), self.view, self.source.length(epoch), epoch)


class _ViewReader:
    def __init__(self, reader: EpochReader, view: View, length: int, epoch: int) -> None:
        self._reader = reader
        self._view = view
        self._length = length
        self._epoch = epoch

    def read(self, positions: I64) -> list[Any]:
        return self._reader.read(self._view.places(positions, self._length, self._epoch))

    def close(self) -> None:
        self._reader.close()
