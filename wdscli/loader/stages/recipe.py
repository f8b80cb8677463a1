"""The stages of a dataset, and how samples run through them.

What it is: :class:`Pipeline`, an immutable list of stages. How: stages that take one sample and give one, or drop it,
are plain functions applied one after the other; at most one stage makes batches; functions after it take batches, or
make several things of one (:class:`Spread`). What comes out for the samples of one batch is a unit, and a unit depends
on nothing else, which is what makes a resume exact. Stages that are generators of their own (``compose``) run over the
whole, behind all others. It must not know where samples come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from wdscli.loader.stages.policy import StopEpoch

Function = Callable[[Any], Any]
Generator = Callable[[Iterator[Any]], Iterable[Any]]


class _Dropped:
    """What a function gives for a sample that is left out."""

    def __repr__(self) -> str:
        return "DROPPED"

    def __reduce__(self) -> str:
        return "DROPPED"


DROPPED = _Dropped()


class Batch(NamedTuple):
    """The stage that makes batches of ``size`` samples of a rank; ``collate`` makes one of a list. Without ``partial``
    the last batch of an epoch is left out when it is not whole; one that stages made smaller is not."""

    size: int
    collate: Function
    partial: bool = True

    def made(self, items: list[Any], given: int) -> list[Any]:
        """One batch of all items, or none when there is nothing to make one of. ``given`` are the samples that it had
        before stages and errors took some."""
        if not items or (given < self.size and not self.partial):
            return []
        return [self.collate(items)]


class Spread(NamedTuple):
    """A stage that makes several things, in order, of one."""

    function: Callable[[Any], Iterable[Any]]


class Unit(NamedTuple):
    """What comes out for batch ``number``; ``stops`` when a handler ended the epoch there."""

    number: int
    items: list[Any]
    stops: bool = False


class Pipeline(NamedTuple):
    """Functions of a sample, the batch stage, functions of a batch, and generators over all."""

    before: tuple[Function, ...] = ()
    batch: Batch | None = None
    after: tuple[Function | Spread, ...] = ()
    generators: tuple[Generator, ...] = ()

    @property
    def spreads(self) -> bool:
        """Whether a unit may be more than one thing."""
        return any(isinstance(function, Spread) for function in self.after)

    def then(self, function: Function) -> Pipeline:
        """One more function of what comes out so far."""
        if self.generators:
            return self.through(Each(function))
        if self.batch is None:
            return self._replace(before=(*self.before, function))
        return self._replace(after=(*self.after, function))

    def spread(self, function: Callable[[Any], Iterable[Any]]) -> Pipeline:
        """One more stage that makes several things of each that comes out so far."""
        if self.generators:
            return self.through(Each(Spread(function)))
        # Without a batch stage a unit is what becomes of one sample; what follows then takes the things.
        batch = self.batch or Batch(1, _only)
        return self._replace(batch=batch, after=(*self.after, Spread(function)))

    def through(self, generator: Generator) -> Pipeline:
        """One more generator over all that comes out so far."""
        return self._replace(generators=(*self.generators, generator))

    def given(self, samples: Sequence[Any]) -> int:
        """How many samples there are for a batch, before anything is done with them, where that makes a difference."""
        if self.batch is None or self.batch.partial:
            return 0
        return sum(sample is not DROPPED for sample in samples)

    def unit(self, samples: Iterable[Any], given: int = 0) -> list[Any]:
        """What comes out for the samples of one batch (or for one sample, when there is no batch stage), which had
        ``given``. Raises StopEpoch with what came out, when a handler ends the epoch here."""
        if self.batch is None:
            return _collected(_through(self.before, samples))
        stopped = False
        try:
            items = _collected(_through(self.before, samples))
        except StopEpoch as stop:
            items, stopped = stop.items, True
        found = self.rest(items, len(items) if stopped else given)
        if stopped:
            raise StopEpoch(found)
        return found

    def each(self, sample: Any) -> list[Any]:
        """What the functions of a sample make of one: it, or nothing. Raises what they raise."""
        return list(_through(self.before, (sample,)))

    def rest(self, items: list[Any], given: int) -> list[Any]:
        """What comes out of what the functions of a sample made of ``given`` samples. Raises StopEpoch with what came
        out."""
        return items if self.batch is None else self.behind(self.batch.made(items, given))

    def behind(self, batches: list[Any]) -> list[Any]:
        """What the stages behind the batch stage make of batches. Raises StopEpoch with what came out."""
        return _collected(_flow(self.after, iter(batches)))


class Each:
    """A function, or a spread, of each thing that a generator gives: as a generator."""

    def __init__(self, function: Function | Spread) -> None:
        self._function = function

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        return _flow((self._function,), items)


def _only(items: list[Any]) -> Any:
    return items[0]


def _collected(items: Iterator[Any]) -> list[Any]:
    found: list[Any] = []
    try:
        found.extend(items)  # what came before a StopEpoch is in it
    except StopEpoch as stop:
        raise StopEpoch(found) from stop
    return found


def _through(functions: tuple[Function, ...], items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        if item is DROPPED:  # left out by the source already
            continue
        for function in functions:
            item = function(item)
            if item is DROPPED:
                break
        else:
            yield item


def _flow(functions: tuple[Function | Spread, ...], items: Iterator[Any]) -> Iterator[Any]:
    for function in functions:
        if isinstance(function, Spread):
            items = chain.from_iterable(map(function.function, items))
        else:
            items = _through((function,), items)
    return items
