"""webdataset's pipelines of stages: ``DataPipeline(SimpleShardList(urls), ..., shuffle(1000), decode("pil"), ...)``.

What it is: :class:`Planned`, what ``wds.map(f)`` and the like give; shard lists; :class:`DataPipeline`, which makes a
:class:`~wdscli.loader.webdataset.WebDataset` of them, so that a pipeline is as exact as the methods; and
:class:`FluidWrapper`, the methods over anything that can be iterated. It must not know what stages do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial, update_wrapper
from typing import Any, NoReturn

from wdscli.codecs.decode_values import decode_torch as torch_loads
from wdscli.errors import DataError, UsageError
from wdscli.loader.checks import Urls
from wdscli.loader.place.splitters import Splitter
from wdscli.loader.stages.flow import Pipeline
from wdscli.loader.stages.fluent import Fluent
from wdscli.loader.stages.generators import epochs_over
from wdscli.loader.stages.per_sample import getfirst
from wdscli.loader.stats import Counts
from wdscli.loader.webdataset import WebDataset

FluidInterface = Fluent
DecodingError = DataError
pytorch_weights_only = True
"""webdataset's switch for loading torch files without running what is in them. Here it is always on."""
__all__ = ["getfirst", "torch_loads"]


class Planned:
    """A stage with its arguments, for :class:`DataPipeline` and ``compose``: the method of the same name. Called with
    an iterator, it runs over that."""

    def __init__(self, method: str, args: tuple[Any, ...], kw: dict[str, Any]) -> None:
        self.method, self.args, self.kw = method, args, kw

    def added_to(self, dataset: Any) -> Any:
        """``dataset`` with the stage."""
        return getattr(dataset, self.method)(*self.args, **self.kw)

    def __call__(self, data: Iterable[Any]) -> Iterator[Any]:
        return iter(self.added_to(FluidWrapper(data)))

    def __repr__(self) -> str:
        given = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kw.items())]
        return f"{self.method}({', '.join(given)})"


class StageFunction:
    """A method of datasets as a function that plans it."""

    def __init__(self, method: str) -> None:
        self.__name__ = method

    def __call__(self, *args: Any, **kw: Any) -> Planned:
        return Planned(self.__name__, args, kw)


class Refused:
    """A name of webdataset's that is not there: calling it says what to do instead."""

    def __init__(self, name: str, hint: str) -> None:
        self.__name__ = name
        self._hint = hint

    def __call__(self, *args: Any, **kw: Any) -> NoReturn:
        raise UsageError(f"webdataset's {self.__name__} is not there", hint=self._hint)


_MIX = "several sets with weights: wds.mix({...})"
_READ = "wds.WebDataset(urls) reads any address that wdscli knows"
_CACHE = "only the ranges that are needed are read; `wds cat` copies shards"
_REFUSED = {
    "LRUCleanup": _CACHE,
    "MultiShardSample": _MIX,
    "gopen": _READ,
    "gopen_schemes": _READ,
    "pipe_cleaner": _CACHE,
    "resampled": "wds.WebDataset(urls, resampled=True), or wds.ResampledShards(urls)",
    "shardspec": _MIX,
    "tarfile_samples": _READ,
}
_METHODS = {"Cached": "mcached", "LMDBCached": "lmdb_cached", "detshuffle": "shuffle"}
"""Where the method has another name than the stage."""


@cache
def stage(name: str) -> StageFunction | Refused:
    """webdataset's stage of this name, as a thing to put into a :class:`DataPipeline`: it plans the method of that
    name, or says that there is none."""
    return Refused(name, _REFUSED[name]) if name in _REFUSED else StageFunction(_METHODS.get(name, name))


class PipelineStage:
    """Base of users' own stages: ``run`` takes an iterator and gives one."""

    def run(self, src: Iterable[Any]) -> Iterable[Any]:
        """What the stage makes of ``src``."""
        raise NotImplementedError


def pipelinefilter(function: Callable[..., Iterable[Any]]) -> Callable[..., Callable[[Any], Iterable[Any]]]:
    """Makes of ``function(data, *args)`` a stage with arguments, ``function(*args)``. It is a generator: see
    ``compose``."""

    def plan(*args: Any, **kw: Any) -> Callable[[Any], Iterable[Any]]:
        return partial(_called, function, args, kw)

    return update_wrapper(plan, function)


def _called(
    function: Callable[..., Iterable[Any]], args: tuple[Any, ...], kw: dict[str, Any], data: Any
) -> Iterable[Any]:
    return function(data, *args, **kw)


class SimpleShardList:
    """The shards that ``urls`` name; in another order in each epoch when ``seed`` is given."""

    resampled = False

    def __init__(self, urls: Urls, seed: int | bool | None = None) -> None:
        self.urls = urls
        self.seed = None if seed is None else int(seed)


class ResampledShards(SimpleShardList):
    """The shards again and again without end, as ``WebDataset(resampled=True)``."""

    resampled = True

    def __init__(self, urls: Urls, nshards: int | None = None, seed: int = 0, **more: Any) -> None:
        if nshards is not None:
            raise UsageError("ResampledShards(nshards=) is not there", hint=".with_epoch(n) ends an epoch")
        unknown = set(more) - {"worker_seed", "deterministic", "max_urls", "empty_check"}
        if unknown:
            raise TypeError(f"ResampledShards() has no argument {', '.join(sorted(unknown))}")
        super().__init__(urls, seed)


class DataPipeline:
    """Stages one after the other, the first a list of shards: gives the
    :class:`~wdscli.loader.webdataset.WebDataset` that is the same. Before ``tarfile_to_samples()`` only splitters and
    shuffles of shards can stand. With a dataset or any other iterable first, the stages are added to that."""

    def __new__(cls, *args: Any, **kw: Any) -> Any:
        stages = [one for arg in args if arg is not None for one in (arg if isinstance(arg, list) else [arg])]
        if not stages:
            raise UsageError(
                "DataPipeline() without a stage", hint="the first names shards: SimpleShardList(urls)"
            )
        first, rest = stages[0], stages[1:]
        if isinstance(first, SimpleShardList):
            return _of_shards(first, rest)
        base = first if isinstance(first, Fluent) else FluidWrapper(first)
        return base.compose(*rest)


def _of_shards(shards: SimpleShardList, stages: list[Any]) -> WebDataset:
    opens = [at for at, one in enumerate(stages) if isinstance(one, Planned) and one.method == OPENS]
    if not opens:
        raise UsageError(
            "DataPipeline() of shards without tarfile_to_samples()", hint="nothing would read them"
        )
    before, opener, after = stages[: opens[0]], stages[opens[0]], stages[opens[0] + 1 :]
    mixed = shards.seed is not None and not shards.resampled
    for stage in before:
        if isinstance(stage, Planned) and stage.method == "shuffle":
            mixed = True
        elif not isinstance(stage, Splitter):
            raise UsageError(
                f"{stage!r} in front of tarfile_to_samples()", hint="name the shards that are meant"
            )
    data = WebDataset(
        shards.urls,
        shardshuffle=mixed or None,
        resampled=shards.resampled,
        seed=shards.seed,
        **_opening(*opener.args, **opener.kw),
    )
    return data.compose(*after)


OPENS = "tarfile_to_samples"


def _opening(handler: Any = None, select_files: Any = None, rename_files: Any = None) -> dict[str, Any]:
    more = {} if handler is None else {"handler": handler}
    return {"select_files": select_files, "rename_files": rename_files, **more}


class FluidWrapper(Fluent):
    """The stage methods over anything that can be iterated, as generators over it: no state, no ranks."""

    def __init__(self, initial: Iterable[Any]) -> None:
        self.initial = initial
        self._turn = -1
        self.pipeline = Pipeline(generators=(iter,))
        self._counts = Counts()

    def __iter__(self) -> Iterator[Any]:
        self._turn += 1
        return epochs_over(self.initial, self.pipeline.generators, self._span, self._turn)

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("the length is not known; with_length(n) would say one")
        return self._length


class MockDataset(FluidWrapper):
    """``length`` times the same sample."""

    def __init__(self, sample: Any, length: int) -> None:
        super().__init__([sample] * length)


def with_epoch(dataset: Any, length: int) -> Any:
    """``dataset.with_epoch(length)``."""
    return _fluent(dataset).with_epoch(length)


def with_length(dataset: Any, length: int) -> Any:
    """``dataset.with_length(length)``."""
    return _fluent(dataset).with_length(length)


def repeatedly(source: Any, nepochs: int | None = None, nbatches: int | None = None) -> Any:
    """``source.repeat(...)``."""
    return _fluent(source).repeat(nepochs or -1, nbatches or -1)


def _fluent(dataset: Any) -> Any:
    return dataset if isinstance(dataset, Fluent) else FluidWrapper(dataset)


def transform_with(sample: Any, transformers: Any) -> Any:
    """A list of the values of ``sample``, the first ones each through its function; None leaves one as it is."""
    if not transformers:
        return sample
    if len(transformers) > len(sample):
        raise ValueError("more functions than values")
    functions = [*transformers, *[None] * (len(sample) - len(transformers))]
    return [value if function is None else function(value) for value, function in zip(sample, functions)]
