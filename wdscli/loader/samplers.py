"""This module gives the samples of an :class:`~wdscli.loader.indexed.IndexedDataset` to torch's DataLoader in an order
like WebDataset's.

:class:`ShardSampler` yields numbers of samples, or lists of numbers. The sampler orders the samples of the table by the
same rules as ``WebDataset`` (:mod:`wdscli.loader.order.order`). By default the sampler shuffles samples within a window
of some shards, so that consecutive reads stay in few shards. :mod:`wdscli.loader.place.ranks` gives each rank its
positions, so the order of all ranks together is the same for any number of ranks. The state is a few numbers. This
module does not know what a sample contains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wdscli.errors import UsageError
from wdscli.loader.checks import want_whole, want_word
from wdscli.loader.indexed import IndexedDataset
from wdscli.loader.order.order import EpochOrder, Shuffle
from wdscli.loader.place.ranks import TAILS, Batches, Share, Tail, find_rank
from wdscli.loader.place.state import Place, check_fits

POSITIONS_AT_ONCE = 4096
"""The number of positions that are computed together."""


class ShardSampler:
    """Yields the numbers of a table's samples for one rank, in the order of an epoch. Write ``DataLoader(table,
    sampler=...)``. With ``batch_size`` the sampler yields lists of numbers, for ``DataLoader(table,
    batch_sampler=...)``.

    ``shuffle``, ``window`` (shards or blocks) and ``seed`` mean the same as in WebDataset. ``tail`` decides about an
    incomplete last global batch; see :data:`~wdscli.loader.place.ranks.Tail`. Each iteration is one epoch, and the next
    iteration is the next epoch. If a program makes a new sampler for each epoch, it must call :meth:`set_epoch`.

    >>> from wdscli.shards import ShardWriter
    >>> folder = getfixture("tmp_path")
    >>> with ShardWriter(f"{folder}/in-%06d.tar", max_count=2) as writer:
    ...     for number in range(5):
    ...         writer.write(f"n{number}", {"cls": b"%d" % number})
    >>> from wdscli.loader import IndexedDataset
    >>> table = IndexedDataset(f"{folder}/in-manifest.json")
    >>> list(ShardSampler(table, shuffle="none", batch_size=2))
    [[0, 1], [2, 3], [4]]
    >>> sorted(ShardSampler(table, seed=1))
    [0, 1, 2, 3, 4]
    """

    def __init__(
        self,
        table: IndexedDataset,
        *,
        batch_size: int | None = None,
        shuffle: Shuffle = "window",
        window: int = 64,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        tail: Tail | None = None,
    ) -> None:
        if not isinstance(table, IndexedDataset):
            raise UsageError(
                f"a ShardSampler needs an IndexedDataset, not a {type(table).__name__}",
                hint="set the order of a WebDataset with WebDataset(shuffle=...)",
            )
        if batch_size is not None:
            batch_size = want_whole("batch_size", batch_size, least=1)
        if tail is not None:
            want_word("tail", tail, TAILS)
        seed, window = want_whole("seed", seed), want_whole("window", window, least=1)
        find_rank(rank, world_size)
        self._layout = table.layout()
        self._how: dict[str, Any] = {"shuffle": shuffle}
        if shuffle in ("window", "blocks"):
            self._how["window"] = window
        self._block = table.catalog.block_samples if shuffle == "blocks" else None
        self._seed, self._tail, self._batch_size = seed, tail, batch_size
        self._rank, self._world = rank, world_size
        self._start = self._place = self._begun = Place()
        self._order(0)

    def _order(self, epoch: int) -> EpochOrder:
        counts, block = self._layout.counts, self._block
        return EpochOrder(counts, seed=self._seed, epoch=epoch, block=block, **self._how)

    def _batches(self) -> Batches:
        rank, world = find_rank(self._rank, self._world)
        tail = self._tail or "even"
        return Batches(int(self._layout.counts.sum()), self._batch_size or 1, Share(rank, world), tail)

    def set_epoch(self, epoch: int) -> None:
        """Begin epoch ``epoch`` with the next iteration."""
        epoch = want_whole("epoch", epoch, least=0)
        if epoch != self._start.epoch:
            self._start = self._place = self._begun = Place(epoch)

    def __len__(self) -> int:
        """Return the number of batches of this rank in an epoch. Without ``batch_size``, return the number of
        samples."""
        batches = self._batches()
        if batches.tail != "uneven":
            return batches.total
        return -(-len(range(batches.share.rank, batches.length, batches.share.world)) // batches.batch)

    def __iter__(self) -> Iterator[Any]:
        batches, start, last = self._batches(), self._start, len(self)
        order = self._order(start.epoch)
        some = max(1, POSITIONS_AT_ONCE // batches.batch)
        self._place = self._begun = start
        for first in range(start.batch, batches.total, some):
            end = min(first + some, batches.total)
            positions, _ = batches.several(range(first, end))
            numbers = self._layout.numbers(*order.locate(positions)).tolist()
            for number, at in zip(range(first, end), range(0, len(numbers), batches.batch)):
                self._place = Place(start.epoch, number + 1)
                if number + 1 == last:
                    self._finish(start)
                yield numbers[at] if self._batch_size is None else numbers[at : at + batches.batch]
        if start.batch >= last:
            self._finish(start)

    def _finish(self, start: Place) -> None:
        """End the epoch of an iteration that began at ``start``. If another iteration or ``set_epoch`` has moved the
        start, do nothing."""
        if self._start == start:
            self._place = self._start = Place(start.epoch + 1)

    def state_dict(self, taken: int | None = None) -> dict[str, Any]:
        """Return the place as plain values, which are the same on every rank. A DataLoader with workers takes batches
        before it yields them. For such a DataLoader pass ``taken``, the number of batches that it has yielded since its
        iteration began. Without ``batch_size``, ``taken`` counts samples. Raises UsageError if ``taken`` is too
        large."""
        place, total = self._place, self._batches().total
        if taken is not None:
            left = total - self._begun.batch
            if not 0 <= want_whole("taken", taken) <= left:
                raise UsageError(f"state_dict(taken={taken}): the iteration had only {left} left")
            place = self._begun._replace(batch=self._begun.batch + int(taken))
        if place.batch >= total > 0:
            place = Place(place.epoch + 1)
        return place.to_state(self._source(), self._batches().whole)

    def _source(self) -> dict[str, Any]:
        return {"fingerprint": self._layout.fingerprint, "seed": self._seed, **self._how}

    def load_state_dict(self, state: dict[str, Any], *, force: bool = False) -> None:
        """Resume at the place in ``state``, with any number of ranks and the same global batch size. Unless ``force``
        is set, raises UsageError if the state belongs to other samples or another order."""
        place = Place.of_state(state)
        if not force:
            batches = self._batches()
            check_fits(state, self._source(), batches.whole, batches.share.world)
        self._start = self._place = self._begun = Place(place.epoch, place.batch)
