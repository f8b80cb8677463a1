"""This module has stages that are generators over all items of one worker, such as stages after ``compose``.

The module also has the protocols of users' stages, and :func:`through`, which runs generators. Each stage except
:class:`UserShuffle` gives the same result for the same input, so a replay is exact. This module does not know how
samples are read."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, count, islice
from typing import Any, NamedTuple, Protocol, runtime_checkable

from wdscli.errors import UsageError
from wdscli.loader.order.order import BUFFERED, THINNED, drawn, key
from wdscli.loader.place.ranks import name_of
from wdscli.loader.read.failures import StopEpoch
from wdscli.loader.stages.flow import OverAll


@runtime_checkable
class OwnMethod(Protocol):
    """A stage that a dataset adds by its own method: ``compose(wds.map(f))`` calls the method ``map``."""

    def added_to(self, dataset: Any) -> Any:
        """Return a copy of ``dataset`` with this stage."""


@runtime_checkable
class OfEpoch(Protocol):
    """A generator stage with a random state that depends on the epoch."""

    def of_epoch(self, epoch: int, is_split: bool) -> OverAll:
        """Return the generator stage for an epoch. ``is_split`` is true if a splitter follows."""


@runtime_checkable
class StageWithRun(Protocol):
    """A user's stage, like webdataset's ``PipelineStage``. In the first stage of a pipeline, ``run`` takes no
    argument."""

    def run(self, *items: Any) -> Iterable[Any]:
        """Return the items that the stage makes from the items of the previous stage."""


def through(
    generators: Sequence[OverAll], items: Iterator[Any], epoch: int, is_split: bool = False
) -> Iterator[Any]:
    """Run the generators one after the other over the items of an epoch, and yield the result. ``is_split`` is true if
    a splitter follows them."""
    for number, generator in enumerate(generators):
        if isinstance(generator, OfEpoch):
            generator = generator.of_epoch(epoch, is_split or any(map(name_of, generators[number + 1 :])))
        items = _begun_stage(generator, items)
    with suppress(StopEpoch):
        yield from items


def _begun_stage(generator: OverAll, items: Iterator[Any]) -> Iterator[Any]:
    """Return the items of a generator stage. Raises UsageError for a function of one sample."""
    error: Exception | None = None
    try:
        result: Any = generator(items)
        if isinstance(result, Iterable) and not isinstance(result, (Mapping, str, bytes)):
            return iter(result)
    except (AttributeError, TypeError) as raised:
        if not any(name in str(raised) for name in ("generator", "iterator", "itertools.", "'map'")):
            raise
        error = raised
    name = getattr(generator, "__name__", type(generator).__name__)
    raise UsageError(
        f"compose({name}): a stage takes an iterator of all samples, and returns an iterator",
        hint=f"map({name}) calls a function with each sample",
    ) from error


def through_buffer(
    items: Iterator[Any], size: int, initial: int, draw: Callable[[int], int]
) -> Iterator[Any]:
    """Yield ``items`` through a buffer of ``size`` items. As in webdataset, the buffer begins to yield when it has
    ``initial`` items. Until it is full, it takes two items for each item that it yields. ``draw(n)`` chooses one of the
    n items in the buffer."""
    held: list[Any] = []
    for item in items:
        held.append(item)
        if len(held) < size:
            held.extend(islice(items, 1))
        if len(held) >= initial:
            yield drawn(held, draw(len(held)))
    while held:
        yield drawn(held, draw(len(held)))


def shuffled(
    data: Iterable[Any],
    bufsize: int = 1000,
    initial: int = 100,
    rng: random.Random | None = None,
    seed: int | None = None,
    handler: Any = None,
) -> Iterator[Any]:
    """Yield the items of ``data``, shuffled in a buffer of ``bufsize`` items (see :func:`through_buffer`). The random
    state is ``rng``, or is made from ``seed``."""
    if rng is not None and seed is not None:
        raise ValueError("shuffle(rng=, seed=): give one of them")
    return through_buffer(iter(data), bufsize, min(initial, bufsize), (rng or random.Random(seed)).randrange)


def begun(first: Any) -> Iterator[Any]:
    """Iterate the first stage of a pipeline: an iterable, an object with ``run``, or a function that returns an
    iterable."""
    if isinstance(first, Iterable):
        return iter(first)
    return iter(first.run() if isinstance(first, StageWithRun) else first())


def begins_with_a_shard(data: Iterable[Any]) -> tuple[bool, Iterator[Any]]:
    """Return two values: whether the first item is a shard, ``{"url": ...}``; and an iterator of all items."""
    items = iter(data)
    first = list(islice(items, 1))
    is_shard = bool(first) and isinstance(first[0], dict) and "url" in first[0] and "__key__" not in first[0]
    return is_shard, chain(first, items)


class Buffer(NamedTuple):
    """Shuffles items in a buffer of ``size`` items."""

    size: int
    seed: int

    def of_epoch(self, epoch: int, is_split: bool) -> Buffer:
        return self._replace(seed=key(self.seed, epoch))

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        full, rest = count(self.size - 1), count(1)

        def draw(held: int) -> int:
            return key(self.seed, BUFFERED, next(full) if held == self.size else -next(rest))

        return through_buffer(items, self.size, self.size, draw)


class UserShuffle:
    """Shuffles items in a buffer of ``size`` items with the user's random state. The stage begins to yield when the
    buffer has ``initial`` items."""

    def __init__(self, size: int, initial: int, rng: Any) -> None:
        self._how = size, initial, rng
        self.__name__ = "shuffle by a random state of its own, without an exact place"

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        return shuffled(items, *self._how)


def want_own_order(generators: Sequence[OverAll]) -> None:
    """Raise UsageError if one of the stages is a :class:`UserShuffle`, whose order cannot be repeated."""
    if any(isinstance(one, UserShuffle) for one in generators):
        raise UsageError(
            "the position after shuffle(rng=) cannot be saved: its random state cannot be repeated",
            hint="leave out rng; the order then depends only on WebDataset(seed=)",
        )


class Thin(NamedTuple):
    """Keeps each item with probability ``p``."""

    p: float
    seed: int

    def of_epoch(self, epoch: int, is_split: bool) -> Thin:
        return self._replace(seed=key(self.seed, epoch))

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        for number, item in enumerate(items):
            if key(self.seed, THINNED, number) < self.p * 2.0**64:
                yield item


class Regroup(NamedTuple):
    """Makes batches of ``size`` items from the items of a generator."""

    size: int
    collate: Callable[[list[Any]], Any] | None
    partial: bool

    def __call__(self, items: Iterable[Any]) -> Iterator[Any]:
        items = iter(items)
        while some := list(islice(items, self.size)):
            if len(some) == self.size or self.partial:
                yield some if self.collate is None else self.collate(some)
