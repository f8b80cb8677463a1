"""This module gives the samples of an :class:`~wdscli.loader.indexed.IndexedDataset` to torch's DataLoader in an order
like WebDataset's.

:class:`ShardSampler` yields numbers of samples, or lists of numbers. The sampler orders the samples of the table by the
same rules as ``WebDataset`` (:mod:`wdscli.loader.order.order`). By default the sampler shuffles samples within a window
of some shards, so that consecutive reads stay in few shards. The numbers are the items of a
:class:`~wdscli.loader.dataset.PositionDataset`, which divides them among ranks and knows the place in an epoch. This
module does not know what a sample contains."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any

from wdscli.arrays import I64
from wdscli.errors import UsageError
from wdscli.loader.checks import want_whole, want_word
from wdscli.loader.dataset import PositionDataset
from wdscli.loader.indexed import IndexedDataset
from wdscli.loader.order.order import ORDERS, EpochOrder, Shuffle
from wdscli.loader.order.source import EpochReader, PositionSource
from wdscli.loader.place.ranks import Tail
from wdscli.loader.place.state import Place


class _OrderedNumbers(PositionSource, EpochReader):
    """The numbers of a table's samples as a source, in an order like WebDataset's. The reader of an epoch is a copy
    with the order of this epoch."""

    _order: EpochOrder

    def __init__(self, table: IndexedDataset, seed: int, shuffle: Shuffle, window: int) -> None:
        self.seed, self._layout = seed, table.layout()
        self._how: dict[str, Any] = {"shuffle": shuffle}
        if shuffle in ("window", "blocks"):
            self._how["window"] = window
        self._block = table.catalog.block_samples if shuffle == "blocks" else None

    def identity(self) -> dict[str, Any]:
        return {"fingerprint": self._layout.fingerprint, "seed": self.seed, **self._how}

    def length(self, epoch: int) -> int:
        return int(self._layout.counts.sum())

    def reader(self, epoch: int) -> EpochReader:
        new = copy(self)
        new._order = EpochOrder(
            self._layout.counts, seed=self.seed, epoch=epoch, block=self._block, **self._how
        )
        return new

    def read(self, positions: I64) -> list[int]:
        numbers: list[int] = self._layout.numbers(*self._order.locate(positions)).tolist()
        return numbers


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
        want_word("shuffle", shuffle, ORDERS)
        seed, window = want_whole("seed", seed), want_whole("window", window, least=1)
        numbers = _OrderedNumbers(table, seed, shuffle, window)
        self._data: Any = PositionDataset(numbers, rank=rank, world_size=world_size, tail=tail)
        if batch_size is not None:
            self._data = self._data.listed(want_whole("batch_size", batch_size, least=1))

    def set_epoch(self, epoch: int) -> None:
        """Begin epoch ``epoch`` with the next iteration."""
        self._data.set_epoch(epoch)

    def __len__(self) -> int:
        """Return the number of batches of this rank in an epoch. Without ``batch_size``, return the number of
        samples."""
        return len(self._data)

    def __iter__(self) -> Iterator[Any]:
        yield from self._data

    def state_dict(self, taken: int | None = None) -> dict[str, Any]:
        """Return the place as plain values, which are the same on every rank. A DataLoader with workers takes batches
        before it yields them. For such a DataLoader pass ``taken``, the number of batches that it has yielded since its
        iteration began. Without ``batch_size``, ``taken`` counts samples. Raises UsageError if ``taken`` is too
        large."""
        data = self._data
        if taken is None:
            return dict(data.state_dict())
        begun = data._state.start if data._state.latest is None else data._state.latest.start
        total = data._batches().total
        if not 0 <= want_whole("taken", taken) <= total - begun.batch:
            raise UsageError(f"state_dict(taken={taken}): the iteration had only {total - begun.batch} left")
        end = begun.batch + int(taken)
        return dict(data._state_of(Place(begun.epoch + 1) if end >= total > 0 else Place(begun.epoch, end)))

    def load_state_dict(self, state: dict[str, Any], *, force: bool = False) -> None:
        """Resume at the place in ``state``, with any number of ranks and the same global batch size. Unless ``force``
        is set, raises UsageError if the state belongs to other samples or another order."""
        self._data.load_state_dict(state, force=force)
