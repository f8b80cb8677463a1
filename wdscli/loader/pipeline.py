"""The stages of a dataset, and how samples run through them.

What it is: :class:`Pipeline`, an immutable list of stages. How: stages that take one sample and give one, or drop it,
are plain functions applied one after the other; at most one stage makes batches, and functions after it take batches.
These keep the place of what they give, which is what makes a resume exact. Stages that are generators of their own
(``compose``) run over the whole, behind all others. It must not know where samples come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

Function = Callable[[Any], Any]


class _Dropped:
    """What a function gives for a sample that is left out."""

    def __repr__(self) -> str:
        return "DROPPED"

    def __reduce__(self) -> str:
        return "DROPPED"


DROPPED = _Dropped()


class Batch(NamedTuple):
    """The stage that makes batches of ``size`` samples of a rank; ``collate`` makes one of a list."""

    size: int
    collate: Function
    partial: bool = True


class Pipeline(NamedTuple):
    """Functions of a sample, the batch stage, functions of a batch, and generators over all."""

    before: tuple[Function, ...] = ()
    batch: Batch | None = None
    after: tuple[Function, ...] = ()
    generators: tuple[Callable[[Iterator[Any]], Iterable[Any]], ...] = ()

    def then(self, function: Function) -> Pipeline:
        """One more function of what comes out so far."""
        if self.generators:
            return self.through(lambda items: filter(_is_kept, map(function, items)))
        if self.batch is None:
            return self._replace(before=(*self.before, function))
        return self._replace(after=(*self.after, function))

    def through(self, generator: Callable[[Iterator[Any]], Iterable[Any]]) -> Pipeline:
        """One more generator over all that comes out so far."""
        return self._replace(generators=(*self.generators, generator))

    def unit(self, samples: Iterable[Any]) -> list[Any]:
        """What comes out for the samples of one batch (or for one sample, when there is no batch stage)."""
        kept = samples if not self.before else _through(self.before, samples)
        if self.batch is None:
            return list(kept)
        items = list(kept)
        if not items or (len(items) < self.batch.size and not self.batch.partial):
            return []
        return list(_through(self.after, [self.batch.collate(items)]))


def _is_kept(item: Any) -> bool:
    return item is not DROPPED


def _through(functions: tuple[Function, ...], items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        for function in functions:
            item = function(item)
            if item is DROPPED:
                break
        else:
            yield item
