"""Stages with webdataset's own random states, for plain generators, which have no positions.

What it is: generator functions, :class:`Drawing` and :class:`Kept`. How: without a seed every process and every
iteration has a random state of its own, so that workers and epochs differ; with one it is the same each time. Items
that workers split must come in one order in all of them, or some are lost and others come twice: there a
:class:`Drawing` takes its random state from the epoch. There is no state to resume from. It must not know how samples
are read.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple

from wdscli.loader.order.order import DRAWN, key
from wdscli.loader.stages.generators import begins_with_a_shard


def thinned(data: Iterable[Any], p: float = 0.5, rng: random.Random | None = None) -> Iterator[Any]:
    """Yield each of ``data`` with probability ``p``."""
    if not 0 <= p <= 1:
        raise ValueError(f"rsample({p}): give a number from 0 to 1")
    draw = random.random if rng is None else rng.random
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
        rng = random.Random(key(epoch, DRAWN)) if is_common or is_split else None
        yield from self.function(items, rng=rng)


def redrawn(data: Iterable[Any], n: int | None = None, rng: random.Random | None = None) -> Iterator[Any]:
    """Yield ``n`` of ``data``, each drawn from all of it; endless for None."""
    items, rng = list(data), rng or random.Random()
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
