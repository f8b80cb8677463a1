"""webdataset's filters: stages for pipelines, each as a function of its arguments and, with ``_``, of an iterator.

What it is: ``shuffle(1000)``, ``decode("pil")``, ``batched(64)`` and the others: functions that return a
:class:`Stage`. How: a stage is the method of the same name, with its arguments and its help. A dataset of shards calls
this method (:meth:`Stage.added_to`), so that it stays exact; called with an iterator, the stage is a generator over it,
with webdataset's meaning. ``_map(data, f)`` is ``map(f)(data)``. It must not know shards.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator
from functools import partial, update_wrapper
from inspect import signature
from random import Random
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from wdscli.loader.compat.extradatasets import FluidWrapper, Kept, repr_of
from wdscli.loader.compat.gone import lacking
from wdscli.loader.dataset import PositionDataset
from wdscli.loader.read.failures import reraise_exception
from wdscli.loader.stages.fluent import Fluent
from wdscli.loader.stages.generators import shuffled
from wdscli.loader.stages.per_batch import combine_values
from wdscli.loader.stages.per_batch import default_collation as default_collation_fn
from wdscli.loader.stages.per_sample import getfirst

Arguments = ParamSpec("Arguments")
__all__ = [
    "Cached",
    "FilterFunction",
    "RestCurried",
    "associate",
    "batched",
    "combine_values",
    "decode",
    "default_collation_fn",
    "detshuffle",
    "extract_keys",
    "getfirst",
    "identity",
    "info",
    "listed",
    "log_keys",
    "map",
    "map_dict",
    "map_tuple",
    "pipelinefilter",
    "rename",
    "rename_keys",
    "reraise_exception",
    "rsample",
    "select",
    "shuffle",
    "slice",
    "to_tuple",
    "transform_with",
    "unbatched",
    "unlisted",
    "xdecode",
]


class FilterFunction:
    """A function of an iterator with its further arguments: ``f(data, *args, **kw)``."""

    def __init__(self, f: Callable[..., Iterable[Any]], /, *args: Any, **kw: Any) -> None:
        self.f, self.args, self.kw = f, args, kw
        self.__name__ = repr_of(f)

    def __call__(self, data: Iterable[Any]) -> Iterator[Any]:
        return iter(self.f(data, *self.args, **self.kw))

    def __repr__(self) -> str:
        given = [
            *builtins.map(repr, self.args),
            *(f"{name}={value!r}" for name, value in self.kw.items() if value is not reraise_exception),
        ]
        return f"{repr_of(self.f)}({', '.join(given)})"


class RestCurried:
    """``f(data, *args)`` as a function of the arguments, which returns a function of the data."""

    def __init__(self, f: Callable[..., Iterable[Any]]) -> None:
        self.f = f

    def __call__(self, /, *args: Any, **kw: Any) -> FilterFunction:
        return FilterFunction(self.f, *args, **kw)


def pipelinefilter(f: Callable[..., Iterable[Any]]) -> RestCurried:
    """Make a stage with arguments, ``f(*args)``, of ``f(data, *args)``. It is a generator: see ``compose``."""
    curried = RestCurried(f)
    update_wrapper(curried, f)
    return curried


class _Method:
    """A method of datasets as a generator over any iterator."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, data: Iterable[Any], /, *args: Any, **kw: Any) -> Iterator[Any]:
        return iter(getattr(FluidWrapper(data), self.__name__)(*args, **kw))


class Stage(FilterFunction):
    """The stage of ``wds.map(f)`` and the like: the method of that name with its arguments, for a pipeline or
    ``compose``. Called with an iterator, it is a generator over it."""

    def __init__(self, method: str, /, *args: Any, **kw: Any) -> None:
        super().__init__(_Method(method), *args, **kw)
        self.method = method
        self.is_order = True
        """False with a random state of the user's: it is a buffer then, without an exact place."""

    def added_to(self, dataset: Any) -> Any:
        """Return ``dataset`` with the stage."""
        return getattr(dataset, self.method)(*self.args, **self.kw)


class _Drawing(Stage):
    """A stage that draws, from another random state in each epoch."""

    def of_epoch(self, epoch: int, is_split: bool) -> Callable[[Iterable[Any]], Iterator[Any]]:
        """Return the stage as a generator over the items of an epoch; ``is_split`` says that a splitter follows."""
        return lambda data: self.added_to(FluidWrapper(data)).of_epoch(epoch, is_split)


class PipelineStage:
    """Base of users' own stages: ``run`` takes an iterator and returns one."""

    def run(self, src: Iterable[Any]) -> Iterable[Any]:
        """Return the items of the stage for ``src``."""
        raise NotImplementedError


def _stage(
    method: Callable[Concatenate[Any, Arguments], Any], kind: type[Stage] = Stage
) -> Callable[Arguments, Stage]:
    """Make a stage of ``method``, with its name, its arguments and its help."""
    name, shape = method.__name__, signature(method)
    shape = shape.replace(parameters=[*shape.parameters.values()][1:], return_annotation="Stage")

    def stage(*args: Arguments.args, **kw: Arguments.kwargs) -> Stage:
        try:
            shape.bind(*args, **kw)
        except TypeError as error:
            raise TypeError(f"{name}(): {error}") from None
        return kind(name, *args, **kw)

    stage.__name__ = stage.__qualname__ = name
    stage.__doc__, stage.__dict__["__signature__"] = method.__doc__, shape
    return stage


map, map_dict, map_tuple = _stage(Fluent.map), _stage(Fluent.map_dict), _stage(Fluent.map_tuple)
to_tuple, extract_keys = _stage(Fluent.to_tuple), _stage(Fluent.extract_keys)
rename, rename_keys = _stage(Fluent.rename), _stage(Fluent.rename_keys)
decode, xdecode = _stage(Fluent.decode), _stage(Fluent.xdecode)
select, associate = _stage(Fluent.select), _stage(Fluent.associate)
info, log_keys = _stage(Fluent.info), _stage(Fluent.log_keys)
batched, unbatched = _stage(Fluent.batched), _stage(Fluent.unbatched)
listed, unlisted = _stage(Fluent.listed), _stage(Fluent.unlisted)
rsample, slice = _stage(Fluent.rsample, _Drawing), _stage(Fluent.slice)


def shuffle(
    bufsize: int = 1000,
    initial: int = 100,
    rng: Random | None = None,
    seed: int | None = None,
    handler: Any = None,
) -> Stage:
    """Shuffle samples. With random access to shards this is the window order without a buffer, whatever ``bufsize``;
    for an iterator, and with ``rng``, it is a buffer of ``bufsize`` that yields from ``initial`` items on."""
    random_state = {name: value for name, value in (("rng", rng), ("seed", seed)) if value is not None}
    stage = _Drawing("shuffle", bufsize, initial=initial, **random_state)
    stage.is_order = rng is None
    return stage


class detshuffle(PipelineStage):
    """:func:`shuffle` by a seed, another order in each epoch."""

    def __init__(self, bufsize: int = 1000, initial: int = 100, seed: int = 0, epoch: int = -1) -> None:
        self.bufsize, self.initial, self.seed, self.epoch = bufsize, initial, seed, epoch

    def added_to(self, dataset: Any) -> Any:
        """Return ``dataset`` with the stage."""
        return dataset.shuffle(self.bufsize, initial=self.initial)

    def run(self, src: Iterable[Any]) -> Iterator[Any]:
        """Yield ``src`` through a buffer, by the seed and the number of this epoch."""
        self.epoch += 1
        return shuffled(src, self.bufsize, self.initial, Random(self.seed + self.epoch))

    def of_epoch(self, epoch: int, is_split: bool) -> Callable[[Iterable[Any]], Iterator[Any]]:
        """Return the stage as a generator for an epoch, because workers of a new epoch do not count."""
        return detshuffle(self.bufsize, self.initial, self.seed, self.epoch + epoch).run


class Cached(Kept, PipelineStage):
    """Keeps the items of the first iteration in memory, and yields them again."""

    def added_to(self, dataset: Any) -> Any:
        """Return ``dataset`` with the stage: the method ``mcached`` if possible, else all items of one process."""
        if isinstance(dataset, PositionDataset) and dataset.pipeline.batch is None:
            return dataset.mcached()
        return dataset.compose(self.run)


_shuffle = shuffled
"""The buffer as a function of the data: code that shuffles shards by its own random state calls it."""


def transform_with(sample: Any, transformers: Any) -> Any:
    """Return the values of ``sample``, the first ones each through its function; None keeps one."""
    if not transformers:
        return sample
    if len(transformers) > len(sample):
        raise ValueError("more functions than values")
    functions = [*transformers, *[None] * (len(sample) - len(transformers))]
    return [value if function is None else function(value) for value, function in zip(sample, functions)]


def identity(x: Any) -> Any:
    """Return its argument."""
    return x


def _at_once(stage: Callable[..., FilterFunction], data: Iterable[Any], *args: Any, **kw: Any) -> Any:
    return stage(*args, **kw)(data)


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        """``_map(data, f)`` and the like, the stages as functions of the data; any other name is an error."""
        stage = globals().get(name[1:]) if name.startswith("_") else None
        return partial(_at_once, stage) if hasattr(stage, "__signature__") else lacking(__name__, name)
