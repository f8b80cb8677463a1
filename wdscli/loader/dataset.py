"""What training code iterates: a source, stages, and an exact place in an epoch.

What it is: :class:`PositionDataset`. How: every stage method returns a new dataset; nothing is read before iteration.
Batch k of an epoch is a pure function of the source, the seed and the epoch, so the whole state is a few numbers. It
must not know how bytes are had.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

from wdscli.errors import UsageError
from wdscli.loader.fluent import Epochs, Fluent
from wdscli.loader.handlers import StopEpoch
from wdscli.loader.pipeline import Pipeline
from wdscli.loader.ranks import Share, find_rank, find_worker
from wdscli.loader.share import Batches, Tail
from wdscli.loader.source import EpochReader, PositionSource
from wdscli.loader.span import ENDLESS, Span
from wdscli.loader.stats import Counts
from wdscli.loader.views import Blocks, Slice, Viewed

STATE_VERSION = 1
CHUNK = 1024
"""Samples asked of the reader at a time, at least a batch."""


class PositionDataset(Fluent):
    """What can be iterated batch by batch and gone on with at any of them. ``source`` gives the samples."""

    def __init__(
        self,
        source: PositionSource,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        tail: Tail | None = None,
    ) -> None:
        if tail not in (None, "drop", "pad", "uneven"):
            raise UsageError(f'no such tail: "{tail}"', hint='"drop", "pad" or "uneven"')
        self.source = source
        self.pipeline = Pipeline()
        self._rank, self._world = rank, world_size
        self._tail = tail
        self._epoch = 0
        self._next = 0
        """The first batch that was not given yet, ..."""
        self._given = 0
        """... or not all of it: how much of what it makes was given. With generators, what was given since then."""
        self._topology: tuple[int, int] | None = None
        """Ranks and workers that ``_given`` is of, where it takes the same ones to go on."""
        self._counts = Counts()
        self._views: tuple[tuple[Slice, bool], ...] = ()
        """Slices behind the batch stage; whether they are of batches."""
        self._span: Epochs | None = None
        self._length: int | None = None

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # isinstance(dataset, IterableDataset) asks for this: torch's DataLoader accepts what was never derived from it.
        # An import of torch at the top would cost seconds to those who have no use for it.
        _register(type(self))
        return type(self)

    def set_epoch(self, epoch: int) -> None:
        """Begin epoch ``epoch`` with the next iteration."""
        if epoch != self._epoch:
            self._epoch, self._next, self._given = epoch, 0, 0

    def _share(self) -> Share:
        return Share(*find_rank(self._rank, self._world), *find_worker())

    def _line(self, share: Share) -> PositionSource:
        """The source as the stages that choose positions leave it: slices, and epochs of another length."""
        size = 1 if self.pipeline.batch is None else self.pipeline.batch.size
        source = self.source
        for view, of_batches in self._views:
            source = Viewed(source, Blocks(view, size * share.world) if of_batches else view)
        if self._span is None:
            return source
        passes, items = self._span
        whole = share.world * (1 if self.pipeline.spreads else size)
        cut = None if items is None or self.pipeline.generators else items * whole
        return Span(source, passes, cut, [passes, items])

    def _batches(self, source: PositionSource | None = None) -> Batches:
        share = self._share()
        size = 1 if self.pipeline.batch is None else self.pipeline.batch.size
        tail = self._tail or ("uneven" if share.world == 1 else "pad")
        return Batches((source or self._line(share)).length(self._epoch), size, share, tail)

    def __iter__(self) -> Iterator[Any]:
        return self._replayed() if self.pipeline.generators else self._exact()

    def _exact(self) -> Iterator[Any]:
        """What comes out from here to the end of the epoch; the state follows what was given."""
        first, skipped = self._next, self._given
        for number, unit in self._units(first):
            begin = skipped if number == first else 0
            for place in range(begin, len(unit)):
                ends = place + 1 == len(unit)
                self._next, self._given = (number + 1, 0) if ends else (number, place + 1)
                yield unit[place]
            self._next, self._given = number + 1, 0
        self._epoch, self._next, self._given = self._epoch + 1, 0, 0

    def _replayed(self) -> Iterator[Any]:
        """What generators make of it. Nobody knows how far they have read, so the state counts what came out of them,
        and to go on is to begin again and leave out as many."""
        share = self._share()
        if self._given and self._topology not in (None, (share.world, share.workers)):
            raise UsageError(
                f"the state was made by {self._topology} ranks and workers, here are {(share.world, share.workers)}",
                hint="a generator in compose() can only go on with as many ranks and workers as before",
            )
        self._topology = share.world, share.workers
        items: Iterator[Any] = chain.from_iterable(unit for _, unit in self._units(self._next))
        for generator in self.pipeline.generators:
            items = iter(generator(items))
        if self._span is not None and self._span.items is not None:
            items = islice(items, len(range(share.worker, self._span.items, share.workers)))
        try:
            for item in islice(items, self._given, None):
                self._given += 1
                yield item
        except StopEpoch:
            pass
        self._epoch, self._next, self._given = self._epoch + 1, 0, 0

    def _units(self, first: int) -> Iterator[tuple[int, list[Any]]]:
        """(batch, what comes out for it), from batch ``first`` on, for this worker."""
        share = self._share()
        line = self._line(share)
        batches = self._batches(line)
        reader = line.reader(self._epoch)
        try:
            for number, samples in self._samples(reader, batches, first):
                try:
                    unit = self.pipeline.unit(samples)
                except StopEpoch as stop:
                    yield number, stop.items
                    return
                yield number, unit
        finally:
            reader.close()

    def _samples(self, reader: EpochReader, batches: Batches, first: int) -> Iterator[tuple[int, list[Any]]]:
        """(batch, its samples as they are read)."""
        import numpy

        numbers = batches.numbers(first)
        together = max(1, CHUNK // batches.batch)
        for at in range(0, len(numbers), together):
            some = numbers[at : at + together]
            places = [batches.positions(number) for number in some]
            samples = iter(reader.read(numpy.concatenate(places)))
            for number, those in zip(some, places):
                yield number, list(islice(samples, len(those)))

    def __len__(self) -> int:
        """Batches (or samples, when there is no batch stage) that one rank sees in an epoch, or what ``with_length``
        says. Raises TypeError when there is no end or nobody knows."""
        if self._length is not None:
            return self._length
        pipeline = self.pipeline
        batches = self._batches()._replace(share=self._share()._replace(worker=0, workers=1))
        if pipeline.generators or pipeline.spreads or batches.length >= ENDLESS:
            raise TypeError("the length of this dataset is not known; with_length(n) would say one")
        total = batches.total
        if total and pipeline.batch is not None and not pipeline.batch.partial:
            total -= len(batches.positions(total - 1)) < pipeline.batch.size
        return total

    def stats(self) -> dict[str, Any]:
        """What was left out so far, by shard and reason, in this process."""
        return {"dropped": self._counts.by_shard()}

    def state_dict(self) -> dict[str, Any]:
        """Where this is: plain values under 1 KB, the same on every rank, fresh ones at every call."""
        line = self._line(self._share())
        state: dict[str, Any] = {
            "wdscli": STATE_VERSION,
            "source": line.identity(),
            "batch": self._batches(line).whole,
            "epoch": self._epoch,
            "next": self._next,
        }
        if self._given:
            state["item"] = self._given
            if self.pipeline.generators:
                state["topology"] = list(self._topology or ())
        return state

    def load_state_dict(self, state: dict[str, Any], *, force: bool = False) -> None:
        """Go on at a state, with any number of ranks and workers. Raises UsageError for the state of another set, order
        or global batch, which ``force`` overrides."""
        wanted = self.state_dict()
        if state.get("wdscli") != STATE_VERSION:
            raise UsageError("this is no state of a wdscli loader, or of another version")
        for name in ("source", "batch"):
            if state[name] != wanted[name] and not force:
                raise UsageError(
                    f"the state is of another {name}: {state[name]}, here {wanted[name]}",
                    hint="load_state_dict(state, force=True) goes on nevertheless",
                )
        self._epoch, self._next = int(state["epoch"]), int(state["next"])
        self._given = int(state.get("item", 0))
        known = state.get("topology")
        self._topology = None if force or not known else (int(known[0]), int(known[1]))


_registered: set[type] = set()


def _register(cls: type) -> None:
    """Make torch take ``cls`` for an IterableDataset, once torch is there."""
    data = sys.modules.get("torch.utils.data")
    if data is not None and cls not in _registered and hasattr(data, "IterableDataset"):
        _registered.add(cls)
        data.IterableDataset.register(cls)
