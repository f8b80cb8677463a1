"""Stages over all that comes, with webdataset's own dice: for plain generators, where no position says what is drawn.

What it is: generator functions, :class:`Drawing` and :class:`Kept`. How: without a seed every process and every
iteration has a random state of its own, so that workers and epochs differ; with one it is the same each time. What
workers split must come in one order in all of them, or samples are lost and others come twice: there a
:class:`Drawing` takes its random state from the epoch. Nothing here can be gone on with from a state. It must not know
how samples are read.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice, repeat
from typing import Any, NamedTuple

from wdscli.loader.order.order import DRAWN, drawn, key


def shuffled(
    data: Iterable[Any],
    bufsize: int = 1000,
    initial: int = 100,
    rng: random.Random | None = None,
    seed: int | None = None,
    handler: Any = None,
) -> Iterator[Any]:
    """``data`` through a buffer of ``bufsize``, as :func:`through_buffer` says. ``rng`` throws the dice, else one of
    ``seed``."""
    if rng is not None and seed is not None:
        raise ValueError("shuffle(rng=, seed=): one of them")
    return through_buffer(iter(data), bufsize, min(initial, bufsize), (rng or random.Random(seed)).randrange)


def through_buffer(
    items: Iterator[Any], size: int, initial: int, draw: Callable[[int], int]
) -> Iterator[Any]:
    """``items`` through a buffer of ``size``, which gives from ``initial`` on and takes two for each that it gives
    until it is full, as webdataset's does. ``draw(n)`` says which of n that are held is given next."""
    held: list[Any] = []
    for item in items:
        held.append(item)
        if len(held) < size:
            held.extend(islice(items, 1))
        if len(held) >= initial:
            yield drawn(held, draw(len(held)))
    while held:
        yield drawn(held, draw(len(held)))


def thinned(data: Iterable[Any], p: float = 0.5, rng: random.Random | None = None) -> Iterator[Any]:
    """Each of ``data`` with probability ``p``."""
    if not 0 <= p <= 1:
        raise ValueError(f"rsample({p}): a part is from 0 to 1")
    draw = random.random if rng is None else rng.random
    return (item for item in data if draw() < p)


class Drawing(NamedTuple):
    """``function(data, rng=...)`` as a stage of a pipeline. For shards, and in front of a splitter, the random state is
    of the epoch: equal in all workers and ranks."""

    function: Callable[..., Iterable[Any]]

    def __call__(self, data: Iterable[Any]) -> Iterator[Any]:
        return iter(self.function(data))

    def of_epoch(self, epoch: int, is_split: bool) -> Callable[[Iterable[Any]], Iterator[Any]]:
        """The stage of an epoch; ``is_split`` says that a splitter follows."""
        return partial(self._drawn, epoch, is_split)

    def _drawn(self, epoch: int, is_split: bool, data: Iterable[Any]) -> Iterator[Any]:
        is_common, items = begins_with_a_shard(data)
        rng = random.Random(key(epoch, DRAWN)) if is_common or is_split else None
        yield from self.function(items, rng=rng)


def begins_with_a_shard(data: Iterable[Any]) -> tuple[bool, Iterator[Any]]:
    """Whether the first of ``data`` is a shard, ``{"url": ...}``, and all of them."""
    items = iter(data)
    first = list(islice(items, 1))
    is_shard = bool(first) and isinstance(first[0], dict) and "url" in first[0] and "__key__" not in first[0]
    return is_shard, chain(first, items)


def redrawn(data: Iterable[Any], n: int | None = None, dice: random.Random | None = None) -> Iterator[Any]:
    """``n`` of ``data``, each drawn from all of it; without end for None."""
    items, dice = list(data), dice or random.Random()
    for _ in repeat(None) if n is None else range(n):
        if not items:
            return
        yield dice.choice(items)


def begun(first: Any) -> Iterator[Any]:
    """What begins a pipeline, iterated: what can be, else what its ``run``, or it itself as a function, gives."""
    return iter(first) if hasattr(first, "__iter__") else iter(getattr(first, "run", first)())


class Kept:
    """What comes the first time, kept in this process and given again."""

    def __init__(self) -> None:
        self._items: list[Any] | None = None

    def run(self, source: Iterable[Any]) -> Iterator[Any]:
        """``source``, or what it was when it came to its end."""
        if self._items is not None:
            yield from self._items
            return
        items = []
        for item in source:
            items.append(item)
            yield item
        self._items = items
