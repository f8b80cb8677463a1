"""Stages over all that comes, with webdataset's own dice: for plain generators, where no position says what is drawn.

What it is: generator functions, and :class:`Kept`. How: without a seed the dice are fresh in every process and every
iteration, so that workers and epochs differ; with one they fall the same way each time. Nothing here can be gone on
with from a state. It must not know how samples are read.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any


def shuffled(
    data: Iterable[Any],
    bufsize: int = 1000,
    initial: int = 100,
    rng: random.Random | None = None,
    seed: int | None = None,
    handler: Any = None,
) -> Iterator[Any]:
    """``data`` through a buffer of ``bufsize``, which gives from ``initial`` on and takes two for each that it gives
    until it is full. ``rng`` throws the dice, else one of ``seed``."""
    if rng is not None and seed is not None:
        raise ValueError("shuffle(rng=, seed=): one of them")
    dice = rng or random.Random(seed)
    items, held = iter(data), []
    for item in items:
        held.append(item)
        if len(held) < bufsize:
            held.extend(next_of(items))
        if len(held) >= min(initial, bufsize):
            yield picked(held, dice)
    while held:
        yield picked(held, dice)


def next_of(items: Iterator[Any]) -> Iterator[Any]:
    """The next of ``items``, if there is one."""
    for item in items:
        yield item
        return


def picked(held: list[Any], dice: random.Random) -> Any:
    """One of ``held``, taken out."""
    place = dice.randrange(len(held))
    held[place], held[-1] = held[-1], held[place]
    return held.pop()


def thinned(data: Iterable[Any], p: float = 0.5) -> Iterator[Any]:
    """Each of ``data`` with probability ``p``."""
    if not 0 <= p <= 1:
        raise ValueError(f"rsample({p}): a part is from 0 to 1")
    return (item for item in data if random.random() < p)


def redrawn(data: Iterable[Any], n: int | None = None) -> Iterator[Any]:
    """``n`` of ``data``, each drawn from all of it; without end for None."""
    items, dice = list(data), random.Random()
    given = 0
    while items and (n is None or given < n):
        yield dice.choice(items)
        given += 1


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
