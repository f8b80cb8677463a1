"""Stages over all that comes, with webdataset's own dice: for plain generators, where no position says what is drawn.

What it is: generator functions, and :class:`Kept`. How: without a seed the dice are fresh in every process and every
iteration, so that workers and epochs differ; with one they fall the same way each time. Nothing here can be gone on
with from a state. It must not know how samples are read.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, repeat
from typing import Any

from wdscli.loader.order.order import drawn


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


def picked(held: list[Any], dice: random.Random) -> Any:
    """One of ``held``, taken out."""
    return drawn(held, dice.randrange(len(held)))


def thinned(data: Iterable[Any], p: float = 0.5) -> Iterator[Any]:
    """Each of ``data`` with probability ``p``."""
    if not 0 <= p <= 1:
        raise ValueError(f"rsample({p}): a part is from 0 to 1")
    return (item for item in data if random.random() < p)


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
