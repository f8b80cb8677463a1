"""webdataset's mixes: exact ones of datasets of shards, as :func:`wdscli.loader.mix`; else plain generators.

What it is: :class:`RandomMix` and :class:`RoundRobin`, which make a
:class:`~wdscli.loader.mixing.Mixed` where the datasets allow it. It must not know samples.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from wdscli.errors import UsageError
from wdscli.loader.compat.gone import add_hints
from wdscli.loader.compat.pipeline import DataPipeline
from wdscli.loader.dataset import PositionDataset
from wdscli.loader.mixing import Mixed, mix
from wdscli.loader.stages.flow import Item

__all__ = ["RandomMix", "RoundRobin"]


def _are_exact(datasets: Sequence[Any]) -> bool:
    return all(
        isinstance(one, (str, PositionDataset))
        and (isinstance(one, str) or not (one.pipeline.generators or one.pipeline.batch or one._has_own_iter))
        for one in datasets
    )


def _exact(datasets: Sequence[Any], weights: Iterable[float], longest: bool, seed: int | None) -> Any:
    """Return the mix of datasets of shards, None for others. Without a seed the sets take turns."""
    if not datasets or not _are_exact(datasets):
        return None
    return mix(list(zip(datasets, weights)), stop="all" if longest else "first", seed=seed)


def _check(datasets: Sequence[Any], probs: Sequence[float] | None) -> None:
    if probs is not None and len(probs) != len(datasets):
        raise UsageError(f"{len(probs)} probabilities for {len(datasets)} datasets")


def _random(
    datasets: Sequence[Any],
    probs: Sequence[float] | None = None,
    longest: bool = False,
    *,
    seed: int | None = None,
) -> Any:
    _check(datasets, probs)
    return _exact(datasets, [1] * len(datasets) if probs is None else probs, longest, seed or 0)


def _in_turn(datasets: Sequence[Any], longest: bool = False) -> Any:
    return _exact(datasets, [1] * len(datasets), longest, None)


class RandomMix(DataPipeline[Item]):
    """Mixes samples of datasets by probability, until one is used up, or with ``longest`` until all are. Datasets of
    shards are mixed by :func:`wdscli.loader.mix`: the shares are exact, not drawn, by ``seed``. A subclass mixes plain
    generators in any case."""

    def __new__(cls, *args: Any, **how: Any) -> Any:
        """Return the exact mix, if the datasets allow it."""
        found = _random(*args, **how) if cls is RandomMix and (args or how) else None
        return super().__new__(cls) if found is None else found

    def __init__(
        self,
        datasets: Sequence[Iterable[Item]],
        probs: Sequence[float] | None = None,
        longest: bool = False,
        *,
        seed: int | None = None,
    ) -> None:
        _check(datasets, probs)
        rng = None if seed is None else random.Random(seed)
        self.datasets, self.probs, self.longest = datasets, probs, longest
        super().__init__(_Turns(datasets, partial(_drawn, probs=probs, longest=longest, rng=rng)))


class RoundRobin(DataPipeline[Item]):
    """Yields a sample of each dataset in turn, until one is used up, or with ``longest`` until all are. Datasets of
    shards are mixed by :func:`wdscli.loader.mix`. A subclass mixes plain generators in any case."""

    def __new__(cls, *args: Any, **how: Any) -> Any:
        """Return the exact mix, if the datasets allow it."""
        found = _in_turn(*args, **how) if cls is RoundRobin and (args or how) else None
        return super().__new__(cls) if found is None else found

    def __init__(self, datasets: Sequence[Iterable[Item]], longest: bool = False) -> None:
        self.datasets, self.longest = datasets, longest
        super().__init__(_Turns(datasets, partial(_one_of_each, longest=longest)))


RandomMix.register(Mixed)
RoundRobin.register(Mixed)


class _Turns:
    """Datasets as one iterable."""

    def __init__(self, datasets: Iterable[Any], turns: Any) -> None:
        self._datasets, self._turns = list(datasets), turns
        self.__name__ = f"{len(self._datasets)} datasets"

    def __iter__(self) -> Iterator[Any]:
        return iter(self._turns([iter(one) for one in self._datasets]))


def _one_of_each(sources: Sequence[Iterator[Any]], longest: bool) -> Iterator[Any]:
    """Yield an item of each source in turn, until one is used up, or with ``longest`` until all are."""
    left, end = list(sources), object()
    while left:
        for source in list(left):
            item = next(source, end)
            if item is not end:
                yield item
            elif longest:
                left.remove(source)
            else:
                return


def _drawn(
    sources: Sequence[Iterator[Any]],
    probs: Sequence[float] | None = None,
    longest: bool = False,
    rng: random.Random | None = None,
) -> Iterator[Any]:
    """Yield items of drawn sources, until one is used up, or with ``longest`` until all are."""
    left, weights, end = list(sources), list([1] * len(sources) if probs is None else probs), object()
    draw = (rng or random).choices
    while left:
        [number] = draw(range(len(left)), weights)
        item = next(left[number], end)
        if item is not end:
            yield item
        elif longest:
            del left[number], weights[number]
        else:
            return


add_hints(__name__)
