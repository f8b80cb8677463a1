"""This module has the cuts of a dataset's epochs: slices, and epochs of another length.

A dataset keeps its cuts in the order in which its methods were called. Each cut is a cut of what the iteration would
yield without the later cuts, so ``repeat().slice(n)`` yields n items. Two consecutive lengths of epochs are one cut,
the later one. As in webdataset, ``repeat(2)`` joins two epochs of what all methods give, also of a later slice.

:class:`EqualSizes` applies the cuts to batches of equal size, where each cut is arithmetic on positions.
:class:`~wdscli.loader.place.planned.Plans` applies them to planned batches. This module does not know how samples are
read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from wdscli.loader.order.source import BatchSlice, Passes, PositionSource, Slice, SourceView
from wdscli.loader.place.ranks import Batches, EpochBatches, Share, Tail


class Epochs(NamedTuple):
    """The length of an epoch. An epoch joins ``passes`` epochs of the source (None: it has no end) and is cut after
    ``items`` items (None: no cut). The items are counted for each worker, for each ``"rank"``, or for ``"all"`` ranks
    together. With ``samples``, ``items`` counts samples. With ``is_later``, a generator makes the items, and they are
    counted after it."""

    passes: int | None
    items: int | None
    of: Literal["worker", "rank", "all"] = "worker"
    samples: bool = False
    is_later: bool = False

    @property
    def by_worker(self) -> bool:
        """Whether an epoch is longer with more workers."""
        return self.items is not None and self.of == "worker"

    @property
    def joins_slices(self) -> bool:
        """Whether a later slice is a slice of each joined epoch."""
        return self.passes is not None and self.items is None

    @property
    def counts_batches(self) -> bool:
        """Whether the cut counts batches, if the dataset makes batches."""
        return self.items is not None and not self.samples and not self.is_later

    @property
    def counts_items(self) -> bool:
        """Whether the cut counts the items that stages make from batches, if there are such stages."""
        return self.counts_batches

    def of_worker(self, share: Share, items_are_samples: bool = False) -> int | None:
        """Return the number of items after which the epoch of one worker is cut, or None if it is not cut. A
        length in samples cuts only with ``items_are_samples``."""
        if self.items is None or (self.samples and not items_are_samples):
            return None
        if self.of == "worker":
            return self.items
        slot, slots = share.worker, share.workers
        if self.of == "all":
            slot, slots = share.rank + share.world * slot, share.world * slots
        return len(range(slot, self.items, slots))

    def positions(self, share: Share, size: int) -> int | None:
        """Return the number of samples of all ranks in an epoch, or None without a cut. An item has ``size``
        samples."""
        if self.items is None or self.is_later:
            return None
        times = {"worker": share.world * share.workers, "rank": share.world, "all": 1}[self.of]
        return self.items * times * (1 if self.samples else size)

    def resolved(self, workers: int) -> Epochs:
        """Return the same length, counted for all ``workers`` of a rank together."""
        if self.items is None or self.of != "worker":
            return self
        return self._replace(items=self.items * max(1, workers), of="rank")

    def of_source(self, source: PositionSource, share: Share, size: int) -> Passes:
        """Return ``source`` with epochs of this length. An item has ``size`` samples."""
        return Passes(source, self.passes, self.positions(share, size), self.identity())

    def identity(self) -> list[Any]:
        """Return the facts that must be the same in a saved state and here, as plain values."""
        if self.items is None or (self.of, self.samples) == ("rank", False):
            return [self.passes, self.items]
        return [self.passes, self.items, self.of, *(["samples"] if self.samples else [])]


class EpochSlice(NamedTuple):
    """A slice of an epoch. It counts ``samples`` before the batch stage, ``batches`` after it, or the ``items`` that
    later stages make of batches: each has one sample."""

    chosen: Slice
    of: Literal["samples", "batches", "items"]

    @property
    def by_worker(self) -> bool:
        """Whether an epoch is longer with more workers."""
        return False

    @property
    def counts_items(self) -> bool:
        """Whether the cut counts the items that stages make from batches, if there are such stages."""
        return self.of == "items"

    def resolved(self, workers: int) -> EpochSlice:
        """Return the same slice, because it counts no items of single workers."""
        return self


Cut: TypeAlias = "Epochs | EpochSlice"


class EqualSizes(NamedTuple):
    """Batches of ``size`` samples for each rank. An item of the dataset has ``item_size`` samples. The class has the
    methods of :class:`~wdscli.loader.place.planned.Plans`."""

    size: int
    item_size: int

    def stride(self, share: Share) -> int:
        """Return the difference between the numbers of two neighbouring batches of a rank."""
        return 1

    def warn_of_length(self, batches: EpochBatches) -> None:
        """Warn if epochs may differ in the number of their batches."""

    def cut(self, source: PositionSource, cuts: Sequence[Cut], share: Share, tail: Tail) -> PositionSource:
        """Return ``source`` with these cuts."""
        for cut in cuts:
            if isinstance(cut, Epochs):
                source = cut.of_source(source, share, self.item_size)
            elif cut.of == "batches":
                source = SourceView(source, BatchSlice(cut.chosen, self.size * share.world, tail == "drop"))
            else:
                source = SourceView(source, cut.chosen)
        return source

    def batches(
        self, source: PositionSource, cuts: Sequence[Cut], epoch: int, share: Share, tail: Tail
    ) -> Batches:
        """Return the batches of an epoch of ``source``, which has the cuts."""
        return Batches(source.length(epoch), self.size, share, tail, epoch)

    def identity(self, cuts: Sequence[Cut], share: Share) -> dict[str, Any]:
        """Return the facts besides the source that must be the same in a saved state and here."""
        return {}

    def note(self, source: PositionSource, cuts: Sequence[Cut], epoch: int, share: Share, mark: Any) -> None:
        """Do nothing, because a state of these batches has no mark."""
