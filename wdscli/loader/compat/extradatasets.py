"""Anything that can be iterated, with the methods of datasets: plain generators, as webdataset runs them.

What it is: :class:`FluidWrapper`; its stages with webdataset's random states, :class:`Drawing` and :class:`Kept`;
:class:`MockDataset`, :class:`Dataset`, and the functions ``with_epoch``, ``with_length`` and ``repeatedly``. How: each
stage is a generator over the items of the one before. There are no positions: each process or worker iterates its
source by itself, and there is no state to resume from. Without a seed every process and every iteration has a random
state of its own; items that workers split must come in one order in all of them, so there a :class:`Drawing` takes its
random state from the epoch. It must not know shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice, repeat
from random import Random, random
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar, runtime_checkable

from wdscli.errors import UsageError
from wdscli.loader.checks import Urls
from wdscli.loader.dataset import Iterated
from wdscli.loader.order.order import DRAWN, Shuffle, key
from wdscli.loader.place.iteration import IterationState
from wdscli.loader.place.ranks import Share, find_rank, find_worker, in_worker
from wdscli.loader.read.failures import Counts, warning_of_losses
from wdscli.loader.stages.flow import Item, Pipeline, RawSample
from wdscli.loader.stages.fluent import Epochs, Fluent
from wdscli.loader.stages.generators import begins_with_a_shard, begun, shuffled, through
from wdscli.loader.streams import in_turns
from wdscli.loader.webdataset import WebDataset

Self = TypeVar("Self", bound="FluidWrapper")


def thinned(data: Iterable[Any], p: float = 0.5, rng: Random | None = None) -> Iterator[Any]:
    """Yield each of ``data`` with probability ``p``."""
    if not 0 <= p <= 1:
        raise ValueError(f"rsample({p}): give a number from 0 to 1")
    draw = random if rng is None else rng.random
    return (item for item in data if draw() < p)


class Drawing(NamedTuple):
    """``function(data, rng=...)`` as a stage of a pipeline. For shards, and before a splitter, the random state depends
    on the epoch alone: it is equal in all workers and ranks."""

    function: Callable[..., Iterable[Any]]

    def __call__(self, data: Iterable[Any]) -> Iterator[Any]:
        return iter(self.function(data))

    def of_epoch(self, epoch: int, is_split: bool) -> Callable[[Iterable[Any]], Iterator[Any]]:
        """Return the stage of an epoch; ``is_split`` says that a splitter follows."""
        return partial(self._drawn, epoch, is_split)

    def _drawn(self, epoch: int, is_split: bool, data: Iterable[Any]) -> Iterator[Any]:
        is_common, items = begins_with_a_shard(data)
        rng = Random(key(epoch, DRAWN)) if is_common or is_split else None
        yield from self.function(items, rng=rng)


def redrawn(data: Iterable[Any], n: int | None = None, rng: Random | None = None) -> Iterator[Any]:
    """Yield ``n`` of ``data``, each drawn from all of it; endless for None."""
    items, rng = list(data), rng or Random()
    for _ in repeat(None) if n is None else range(n):
        if not items:
            return
        yield rng.choice(items)


class Kept:
    """Keeps the items of the first iteration in this process, and yields them again."""

    def __init__(self) -> None:
        self._items: list[Any] | None = None

    def run(self, source: Iterable[Any]) -> Iterator[Any]:
        """Yield ``source``, or its kept items after it was read to its end."""
        if self._items is not None:
            yield from self._items
            return
        items = []
        for item in source:
            items.append(item)
            yield item
        self._items = items


@runtime_checkable
class Counted(Protocol):
    """A stage that counts the samples it skips."""

    def counted_in(self, counts: Counts) -> Callable[[Any], Iterable[Any]]:
        """Return the stage as a generator that adds to ``counts``."""


class FluidWrapper(Iterated[Item]):
    """The stage methods over anything that can be iterated, or a function that gives an iterator: as generators, one
    after the other. Nothing is shared among ranks and workers unless a stage does it, and there is no state."""

    def __init__(self, initial: Any) -> None:
        self.initial = initial
        self._state = IterationState()
        self.pipeline = Pipeline(generators=(iter,))
        self.stages: tuple[Any, ...] = (initial,)
        self._counts = Counts()

    def __iter__(self) -> Iterator[Item]:
        iteration = self._state.begin(self._state.next_start())
        iteration.over()
        return self.of_epoch(iteration.start.epoch)

    def of_epoch(self, epoch: int, is_split: bool = False) -> Iterator[Any]:
        """Yield the items of an epoch; ``is_split`` says that a splitter follows."""
        limit = None
        if self._span is not None:
            limit = self._span.of_worker(Share(*find_rank(), *find_worker()), items_are_samples=True)
        passes = 1 if self._span is None else self._span.passes
        items = in_turns(
            epoch, passes, lambda turn: through(self.pipeline.generators, begun(self.initial), turn, is_split)
        )
        items = islice(items, limit)
        return warning_of_losses(items, 0, lambda: self._counts) if in_worker() else items

    _epochs = __iter__

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("the length is unknown; set one by with_length(n)")
        return self._length

    def __repr__(self) -> str:
        names = ", ".join(map(repr_of, (self.initial, *self.pipeline.generators[1:])))
        return f"<{type(self).__name__} of plain generators, without an exact place: {names}>"

    def stage(self, number: int) -> Any:
        """Stage ``number``; 0 is the first, which begins."""
        return self.stages[number]

    def compose(self: Self, *args: Any) -> Self:
        """More stages: generator functions of an iterator, objects with ``run``, stages such as ``wds.map(...)``."""
        new = self
        for stage in args:
            new = new._through(stage.counted_in(self._counts) if isinstance(stage, Counted) else stage)
            new.stages = (*new.stages[:-1], stage)
        return new

    def _with(self: Self, **changes: Any) -> Self:
        new = super()._with(**changes)
        more = len(new.pipeline.generators) - len(new.stages)
        new.stages = (*new.stages, *new.pipeline.generators[len(new.stages) :]) if more else new.stages
        return new

    def _buffer(self, size: int, initial: int, seed: int | None, rng: Any) -> Any:
        """A shuffle by ``rng``, or by ``seed``, or by a new random state each time. Shards, and items before a
        splitter, come in one order in all workers and ranks, and in another one in each epoch."""
        if rng is None and seed is None:
            return Drawing(partial(shuffled, bufsize=size, initial=initial))
        return partial(shuffled, bufsize=size, initial=initial, rng=rng, seed=seed)

    def _thinning(self, p: float) -> Any:
        """Of shards the same ones stay in all workers and ranks."""
        return Drawing(partial(thinned, p=p))

    def mcached(self: Self) -> Self:
        """Keep the items of the first iteration, and yield them again."""
        return self._through(Kept().run)

    def state_dict(self) -> NoReturn:
        """Raises UsageError."""
        raise UsageError(
            f"there is no exact place in {self!r}",
            hint="plain generators cannot be resumed; wds.WebDataset(urls) with its stages has a state",
        )

    def load_state_dict(self, state: dict[str, Any]) -> NoReturn:
        """Raises UsageError."""
        self.state_dict()


def repr_of(stage: Any) -> str:
    """Return the name of a stage."""
    while isinstance(stage, (partial, Drawing)):
        stage = stage.func if isinstance(stage, partial) else stage.function
    name = getattr(stage, "__name__", None)
    if name is None or name == "run":
        stage = getattr(stage, "__self__", stage)
        shown = repr(stage)
        name = type(stage).__name__ if " object at 0x" in shown else shown
    return str(name)


class MockDataset(FluidWrapper):
    """``length`` times the same sample."""

    def __init__(self, sample: Any, length: int) -> None:
        super().__init__([sample] * length)


def with_epoch(dataset: Any, length: int) -> Any:
    """``dataset.with_epoch(length)``."""
    return _fluent(dataset)._with().with_epoch(length)


def with_length(dataset: Any, length: int) -> Any:
    """``dataset.with_length(length)``."""
    return _fluent(dataset)._with().with_length(length)


def repeatedly(source: Iterable[Any], nepochs: int | None = None, nbatches: int | None = None) -> Any:
    """``source.repeat(...)``."""
    return _fluent(source)._with().repeat(nepochs or -1, nbatches or -1)


def _fluent(dataset: Any) -> Any:
    return dataset if isinstance(dataset, Fluent) else FluidWrapper(dataset)


class Dataset(WebDataset[Item]):
    """:class:`WebDataset` with its arguments under the old name: ``length`` (with_length), ``epochs`` (repeat),
    ``shuffle`` of shards as a bool, ``suffixes`` (fields)."""

    def __init__(
        self: Dataset[RawSample | Any],
        urls: Urls,
        *,
        length: int | None = None,
        epochs: int = 1,
        shuffle: bool | Shuffle = False,
        suffixes: Iterable[str] | None = None,
        opener: Any = None,
        prepare_for_worker: bool = True,
        **more: Any,
    ) -> None:
        if opener is not None or not prepare_for_worker:
            raise UsageError("Dataset(opener=, prepare_for_worker=) are not supported", hint="leave them out")
        if suffixes is not None:
            more["fields"] = suffixes
        if isinstance(shuffle, str):
            more["shuffle"] = shuffle
        else:
            more.setdefault("shardshuffle", shuffle)
        super().__init__(urls, **more)
        self._length = length
        if epochs != 1:
            self._span = Epochs(epochs, None)

    def pipe(self, stage: Any) -> Any:
        """The old name of :meth:`compose`."""
        return self.compose(stage)
