"""The dataset that training code iterates: a set of shards, an order, stages, and an exact place in an epoch.

What it is: :class:`WebDataset`. How: every stage method returns a new dataset; nothing is read before iteration.
Batch k of an epoch is a pure function of the source, the seed and the epoch, so the whole state is a few numbers. It
must not know how bytes are had.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from wdscli.errors import UsageError
from wdscli.loader.catalog import Catalog
from wdscli.loader.order import Shuffle
from wdscli.loader.pipeline import DROPPED, Batch, Pipeline
from wdscli.loader.ranks import Share, find_rank, find_worker
from wdscli.loader.share import Batches, Tail
from wdscli.loader.source import IndexedSource, PositionSource

STATE_VERSION = 1
CHUNK = 1024
"""Samples asked of the reader at a time, at least a batch."""

Self = TypeVar("Self", bound="PositionDataset")


class PositionDataset:
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
        """The first batch that was not given yet."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        # isinstance(dataset, IterableDataset) asks for this: torch's DataLoader accepts what was never derived from it.
        # An import of torch at the top would cost seconds to those who have no use for it.
        _register(type(self))
        return type(self)

    def _with(self: Self, **changes: Any) -> Self:
        """A copy with some attributes changed."""
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        new.__dict__.update(changes)
        return new

    def map(self: Self, function: Callable[[Any], Any]) -> Self:
        """``function`` of each sample, or of each batch behind :meth:`batched`."""
        return self._with(pipeline=self.pipeline.then(function))

    def select(self: Self, predicate: Callable[[Any], bool]) -> Self:
        """Only the samples for which ``predicate`` holds. The others leave gaps: batches become smaller, and none moves
        to another batch, so that every rank and every resumed run sees the same ones."""
        return self.map(_Select(predicate))

    def batched(
        self: Self, size: int, collation_fn: Callable[[list[Any]], Any] | None = list, partial: bool = True
    ) -> Self:
        """Batches of ``size`` samples of this rank; ``collation_fn`` makes one of a list."""
        if self.pipeline.batch is not None or self.pipeline.generators:
            raise UsageError("batches of batches are not made", hint="call batched() once")
        return self._with(pipeline=self.pipeline._replace(batch=Batch(size, collation_fn or list, partial)))

    def set_epoch(self, epoch: int) -> None:
        """Begin epoch ``epoch`` with the next iteration."""
        if epoch != self._epoch:
            self._epoch, self._next = epoch, 0

    def _batches(self) -> Batches:
        rank, world = find_rank(self._rank, self._world)
        size = 1 if self.pipeline.batch is None else self.pipeline.batch.size
        tail = self._tail or ("uneven" if world == 1 else "pad")
        return Batches(self.source.length(self._epoch), size, Share(rank, world, *find_worker()), tail)

    def __iter__(self) -> Iterator[Any]:
        batches = self._batches()
        items: Iterator[Any] = self._units(batches)
        for generator in self.pipeline.generators:
            items = iter(generator(items))
        return items

    def _units(self, batches: Batches) -> Iterator[Any]:
        import numpy

        reader = self.source.reader(self._epoch)
        numbers = batches.numbers(self._next)
        together = max(1, CHUNK // batches.batch)
        try:
            for at in range(0, len(numbers), together):
                some = numbers[at : at + together]
                places = [batches.positions(number) for number in some]
                samples = iter(reader.read(numpy.concatenate(places)))
                for number, those in zip(some, places):
                    unit = self.pipeline.unit([next(samples) for _ in range(len(those))])
                    self._next = number + 1
                    yield from unit
        finally:
            reader.close()
        self._epoch, self._next = self._epoch + 1, 0

    def __len__(self) -> int:
        """Batches (or samples, when there is no batch stage) that one rank sees in an epoch."""
        batches = self._batches()._replace(share=Share(*find_rank(self._rank, self._world)))
        return batches.total

    def state_dict(self) -> dict[str, Any]:
        """Where this is: plain values under 1 KB, the same on every rank, fresh ones at every call."""
        batches = self._batches()
        return {
            "wdscli": STATE_VERSION,
            "source": self.source.identity(),
            "batch": batches.whole,
            "epoch": self._epoch,
            "next": self._next,
        }

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


class WebDataset(PositionDataset):
    """The samples of a set of shards, in the order of an epoch.

    ``urls`` are shards as everywhere in wdscli: paths, folders, globs, braces, manifests, URLs, one or a list.
    ``shuffle`` is ``"window"`` (shards permuted, samples permuted among ``window`` shards), ``"full"`` or ``"none"``;
    ``shardshuffle``, webdataset's name, chooses between the first and the last. ``where``, ``keys`` and ``keys_from``
    keep the samples that wdscli's options of these names select, as if the set had no others (see
    :mod:`wdscli.loader.filters`).

    >>> from wdscli.shards import ShardWriter
    >>> folder = getfixture("tmp_path")
    >>> with ShardWriter(f"{folder}/in-%06d.tar", max_count=2) as writer:
    ...     for number in range(5):
    ...         writer.write(f"n{number}", {"cls": b"%d" % number})
    >>> data = WebDataset(f"{folder}/in-manifest.json").map(lambda sample: int(sample["cls"])).batched(2)
    >>> list(data)
    [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        shuffle: Shuffle | None = None,
        shardshuffle: bool | int | None = None,
        window: int = 64,
        seed: int = 0,
        fields: Sequence[str] | None = None,
        where: str | None = None,
        keys: str | Sequence[str] | None = None,
        keys_from: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        tail: Tail | None = None,
    ) -> None:
        chosen: Shuffle = shuffle or ("window" if shardshuffle else "none")
        catalog = Catalog(urls)
        if where is not None or keys is not None or keys_from is not None:
            from wdscli.loader.filters import filtered

            catalog = filtered(catalog, where=where, keys=keys, keys_from=keys_from)
        source = IndexedSource(catalog, seed=seed, shuffle=chosen, window=window, fields=fields)
        super().__init__(source, rank=rank, world_size=world_size, tail=tail)


class _Select:
    """A predicate as a function of a sample."""

    def __init__(self, predicate: Callable[[Any], bool]) -> None:
        self._predicate = predicate

    def __call__(self, item: Any) -> Any:
        return item if self._predicate(item) else DROPPED


_registered: set[type] = set()


def _register(cls: type) -> None:
    """Make torch take ``cls`` for an IterableDataset, once torch is there."""
    data = sys.modules.get("torch.utils.data")
    if data is not None and cls not in _registered and hasattr(data, "IterableDataset"):
        _registered.add(cls)
        data.IterableDataset.register(cls)
