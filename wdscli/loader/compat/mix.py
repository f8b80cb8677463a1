"""webdataset's mixes: of datasets of shards exact, as :func:`wdscli.loader.mix`; of anything else as plain generators.

What it is: :func:`RandomMix` and :func:`RoundRobin`. It must not know samples.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from wdscli.errors import UsageError
from wdscli.loader.compat.extradatasets import FluidWrapper
from wdscli.loader.dataset import PositionDataset
from wdscli.loader.mixing.mixing import mix
from wdscli.loader.order.schedule import Stop
from wdscli.loader.sample_types import Item

if TYPE_CHECKING:
    from wdscli.loader.compat.pipeline import DataPipeline

__all__ = ["RandomMix", "RoundRobin", "random_samples", "round_robin_longest", "round_robin_shortest"]


def _are_exact(datasets: Sequence[Any]) -> bool:
    return all(
        isinstance(one, (str, PositionDataset))
        and (isinstance(one, str) or not (one.pipeline.generators or one.pipeline.batch or one.has_own_iter))
        for one in datasets
    )


def _stop(longest: bool) -> Stop:
    return "all" if longest else "first"


def RandomMix(
    datasets: Sequence[Iterable[Item]],
    probs: Sequence[float] | None = None,
    longest: bool = False,
    *,
    seed: int | None = None,
) -> DataPipeline[Item]:
    """Samples of datasets by probability, until one is used up, or with ``longest`` until all are. Of datasets of
    shards as :func:`wdscli.loader.mix`: the shares are exact, not drawn, by ``seed``."""
    if probs is not None and len(probs) != len(datasets):
        raise UsageError(f"{len(probs)} probabilities for {len(datasets)} datasets")
    if _are_exact(datasets):
        weights = [1] * len(datasets) if probs is None else probs
        exact: Any = list(zip(datasets, weights))
        return _typed(mix(exact, stop=_stop(longest), seed=seed or 0))
    dice = None if seed is None else random.Random(seed)
    turns = partial(random_samples, probs=probs, longest=longest, rng=dice)
    return _typed(FluidWrapper(_Turns(datasets, turns)))


def RoundRobin(datasets: Sequence[Iterable[Item]], longest: bool = False) -> DataPipeline[Item]:
    """A sample of each dataset in turn, until one is used up, or with ``longest`` until all are."""
    if _are_exact(datasets):
        exact: Any = list(datasets)
        return _typed(mix(exact, stop=_stop(longest), seed=None))
    turns = round_robin_longest if longest else round_robin_shortest
    return _typed(FluidWrapper(_Turns(datasets, partial(_each, turns))))


def _typed(mixed: Any) -> DataPipeline[Any]:
    """What has the methods is a pipeline, as in webdataset."""
    return cast("DataPipeline[Any]", mixed)


def _each(turns: Any, sources: list[Iterator[Any]]) -> Iterator[Any]:
    found: Iterator[Any] = turns(*sources)
    return found


class _Turns:
    """Datasets as one iterable."""

    def __init__(self, datasets: Iterable[Any], turns: Any) -> None:
        self._datasets, self._turns = list(datasets), turns
        self.__name__ = f"{len(self._datasets)} datasets"

    def __iter__(self) -> Iterator[Any]:
        return iter(self._turns([iter(one) for one in self._datasets]))


def round_robin_shortest(*sources: Iterator[Any]) -> Iterator[Any]:
    """One of each source in turn, until one has no more."""
    end = object()
    while sources:
        for source in sources:
            item = next(source, end)
            if item is end:
                return
            yield item


def round_robin_longest(*sources: Iterator[Any]) -> Iterator[Any]:
    """One of each source in turn, until none has more."""
    left, end = list(sources), object()
    while left:
        for source in list(left):
            item = next(source, end)
            if item is end:
                left.remove(source)
            else:
                yield item


def random_samples(
    sources: Sequence[Iterator[Any]],
    probs: Sequence[float] | None = None,
    longest: bool = False,
    rng: random.Random | None = None,
) -> Iterator[Any]:
    """One of a source that is drawn, until one has no more, or with ``longest`` until none has."""
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
