"""This module has webdataset's pipelines and mixes, such as ``DataPipeline(SimpleShardList(urls), decode("pil"),
...)``.

A :class:`DataPipeline` that the exact engine supports becomes a :class:`~wdscli.loader.webdataset.WebDataset`, which
can resume at exactly the next sample. :class:`RandomMix` and :class:`RoundRobin` become a
:class:`~wdscli.loader.mixing.Mixed` if all their datasets have exact places. Every other pipeline or mix runs as plain
generators, in the order in which it is written. This module does not know what stages do.
"""

# Methods that change the type of items are declared in this module, because the base classes cannot declare their
# types.
# mypy: disable-error-code="assignment, override"

from __future__ import annotations

import random
from abc import ABC
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from wdscli.errors import UsageError
from wdscli.loader.compat.filters import FluidWrapper, NamedStage, detshuffle
from wdscli.loader.compat.tariterators import (
    Opening,
    ResampledShards,
    SimpleShardList,
    is_changed,
    tarfile_samples,
)
from wdscli.loader.dataset import PositionDataset
from wdscli.loader.mixing import Mixed, mix
from wdscli.loader.place.ranks import Splitter
from wdscli.loader.read.failures import Handler, reraise_exception
from wdscli.loader.stages.flow import Item
from wdscli.loader.torch_loader import WebLoader
from wdscli.loader.webdataset import WebDataset

if TYPE_CHECKING:
    from wdscli.loader.stages.flow import giving

    New = TypeVar("New")
    _ANYTHING = cast("DataPipeline[Any]", None)


class DataPipeline(FluidWrapper[Item], ABC):
    """Runs stages one after the other. The first stage is the source: a list of shards, a dataset, another iterable, or
    a function without arguments that returns an iterator. Each other stage takes an iterator and returns an iterator.
    Such a stage is ``wds.decode("pil")``, for example, or a generator function, or an object with ``run``. A list adds
    all its stages; None adds nothing.

    A pipeline becomes a :class:`~wdscli.loader.webdataset.WebDataset` if it has these stages: ``SimpleShardList`` or
    ``ResampledShards``, splitters and shuffles of shards, ``tarfile_to_samples()``, then any others. Ranks and workers
    divide the samples of such a pipeline exactly, and the state is exact. Every other pipeline runs as plain generators
    in each worker, as in webdataset: without a splitter, every worker and rank reads all samples. The ``state_dict()``
    of such a pipeline raises an error. The repr() of a pipeline shows how it runs.

    For a type checker, declare the type of the pipeline's items: ``data: DataPipeline[tuple[Tensor, int]] = ...``.
    """

    if TYPE_CHECKING:
        map_tuple = giving(FluidWrapper.map_tuple, _ANYTHING)
        to_tuple = giving(FluidWrapper.to_tuple, _ANYTHING)
        extract_keys = giving(FluidWrapper.extract_keys, _ANYTHING)
        decode = giving(FluidWrapper.decode, _ANYTHING)
        map_dict = giving(FluidWrapper.map_dict, _ANYTHING)
        xdecode = giving(FluidWrapper.xdecode, _ANYTHING)
        associate = giving(FluidWrapper.associate, _ANYTHING)
        batched = giving(FluidWrapper.batched, _ANYTHING)
        unbatched = giving(FluidWrapper.unbatched, _ANYTHING)

        def map(
            self, f: Callable[[Item], New | None], handler: Handler = reraise_exception
        ) -> DataPipeline[New]: ...

        def listed(self, batchsize: int, partial: bool = True) -> DataPipeline[list[Item]]: ...

        def unlisted(self: DataPipeline[list[New]]) -> DataPipeline[New]: ...

    def __new__(cls, *args: Any, **kw: Any) -> Any:
        stages = _stages(args)
        if cls is DataPipeline and stages:
            exact = _exact(stages[0], stages[1:])
            if exact is not None:
                return exact
        return super().__new__(cls)

    def __init__(self, *args: Any, **kw: Any) -> None:
        # Named arguments are ignored, as in webdataset, because some programs pass handler=.
        stages = _stages(args)
        super().__init__(stages[0] if stages else ())
        self.is_begun = bool(stages)
        if stages[1:]:
            self.append(stages[1:])

    def compose(self, *args: Any) -> Any:
        """Add stages. A stage is a generator function of an iterator, an object with ``run``, or a stage such as
        ``wds.map(...)``. In an empty pipeline the first stage is the source."""
        stages = _stages(args)
        if self.is_begun or not stages:
            return super().compose(*stages)
        return self._with(initial=stages[0], is_begun=True).compose(*stages[1:])


# As in webdataset, every dataset with the stage methods is a pipeline.
DataPipeline.register(PositionDataset)
DataPipeline.register(WebLoader)


def _stages(args: Any) -> list[Any]:
    return [stage for arg in args if arg is not None for stage in (arg if isinstance(arg, list) else [arg])]


def _exact(first: Any, stages: list[Any]) -> Any:
    """Return the exact dataset that is equivalent to the pipeline, or None if there is no such dataset."""
    if isinstance(first, PositionDataset) and first._has_own_iter:
        return None
    if isinstance(first, (PositionDataset, WebLoader)):
        return first.compose(*stages)
    resampled = type(first) is ResampledShards and first.is_exact
    are_opening = [stage is tarfile_samples or isinstance(stage, Opening) for stage in stages]
    opens = are_opening.index(True) if any(are_opening) else None
    if opens is None or is_changed() or not (type(first) is SimpleShardList or resampled):
        return None
    before, opener, after = stages[:opens], stages[opens], stages[opens + 1 :]
    mixes = [_mixes(stage) for stage in before]
    if not all(isinstance(stage, Splitter) or mix for stage, mix in zip(before, mixes)):
        return None
    if any(isinstance(stage, NamedStage) and not stage.is_order for stage in after):
        return None  # a user's random state cannot be repeated
    is_mixed = any(mixes) or (not resampled and first.seed is not None)
    how = opener.kw if isinstance(opener, Opening) else {}
    split: Any = ("exact", True) if resampled else (None, None)
    data = WebDataset(
        first.given,
        shardshuffle=is_mixed or None,
        resampled=resampled,
        seed=first.seed,
        nodesplitter=split[0],
        workersplitter=split[1],
        **{name: value for name, value in how.items() if value is not None},
    )
    splitters = [stage for stage in before if isinstance(stage, Splitter)]
    return data.compose(*splitters, *after)


def _mixes(stage: Any) -> bool:
    """Return whether the stage is a shuffle without a random state from the user."""
    return isinstance(stage, detshuffle) or (
        isinstance(stage, NamedStage) and stage.method == "shuffle" and stage.is_order
    )


def _are_exact(datasets: Sequence[Any]) -> bool:
    return all(
        isinstance(dataset, PositionDataset)
        and not (dataset.pipeline.generators or dataset.pipeline.batch or dataset._has_own_iter)
        for dataset in datasets
        if not isinstance(dataset, str)
    )


def _exact_mix(datasets: Sequence[Any], weights: Iterable[float], longest: bool, seed: int | None) -> Any:
    """Return the exact mix of these datasets, or None if one of them has no exact places. Without a seed the sets take
    turns."""
    if not datasets or not _are_exact(datasets):
        return None
    return mix(list(zip(datasets, weights)), stop="all" if longest else "first", seed=seed)


def _check(datasets: Sequence[Any], probs: Sequence[float] | None) -> None:
    if probs is not None and len(probs) != len(datasets):
        raise UsageError(f"{len(probs)} probabilities for {len(datasets)} datasets")


class _Mix(DataPipeline[Item]):
    """A mix of datasets. :func:`wdscli.loader.mix` mixes datasets of shards: the shares are then exact, not random. A
    user's subclass always mixes plain generators."""

    def __new__(cls, *args: Any, **how: Any) -> Any:
        """Return the exact mix, if the datasets allow it."""
        exact = cls._exact(*args, **how) if _Mix in cls.__bases__ and (args or how) else None
        return super().__new__(cls) if exact is None else exact

    @staticmethod
    def _exact(*args: Any, **how: Any) -> Any:
        raise NotImplementedError


class RandomMix(_Mix[Item]):
    """Mixes samples of datasets by probability, until one dataset ends, or with ``longest`` until all have ended. With
    an exact mix, ``seed`` decides the order."""

    def __init__(
        self,
        datasets: Sequence[Iterable[Item]],
        probs: Sequence[float] | None = None,
        longest: bool = False,
        *,
        seed: int | None = None,
    ) -> None:
        _check(datasets, probs)
        self.datasets, self.probs, self.longest = datasets, probs, longest
        rng = None if seed is None else random.Random(seed)
        super().__init__(_Turns(datasets, longest, [1] * len(datasets) if probs is None else probs, rng))

    @staticmethod
    def _exact(
        datasets: Sequence[Any],
        probs: Sequence[float] | None = None,
        longest: bool = False,
        *,
        seed: int | None = None,
    ) -> Any:
        _check(datasets, probs)
        return _exact_mix(datasets, [1] * len(datasets) if probs is None else probs, longest, seed or 0)


class RoundRobin(_Mix[Item]):
    """Yields one sample of each dataset in turn, until one dataset ends, or with ``longest`` until all have ended."""

    def __init__(self, datasets: Sequence[Iterable[Item]], longest: bool = False) -> None:
        self.datasets, self.longest = datasets, longest
        super().__init__(_Turns(datasets, longest))

    @staticmethod
    def _exact(datasets: Sequence[Any], longest: bool = False) -> Any:
        return _exact_mix(datasets, [1] * len(datasets), longest, None)


RandomMix.register(Mixed)
RoundRobin.register(Mixed)


class _Turns:
    """Several datasets as one iterable. With ``weights``, each item is of a randomly chosen dataset; otherwise the
    datasets take turns. The items end with the first dataset, or with ``longest`` with the last."""

    def __init__(
        self,
        datasets: Iterable[Any],
        longest: bool,
        weights: Sequence[float] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._datasets, self._longest, self._weights, self._rng = list(datasets), longest, weights, rng
        self.__name__ = f"{len(self._datasets)} datasets"

    def __iter__(self) -> Iterator[Any]:
        sources, end = [iter(dataset) for dataset in self._datasets], object()
        left = list(range(len(sources)))
        while left:
            for number in self._round(left):
                sample = next(sources[number], end)
                if sample is not end:
                    yield sample
                elif self._longest:
                    left.remove(number)
                else:
                    return

    def _round(self, left: list[int]) -> list[int]:
        """Return the datasets of the next items; ``left`` are those that have not ended."""
        if self._weights is None:
            return list(left)
        draw = (self._rng or random).choices
        return draw(left, [self._weights[number] for number in left])
