"""webdataset's filters: stages for pipelines, each as a function of its arguments and, with ``_``, of an iterator.

What it is: ``shuffle(1000)``, ``decode("pil")``, ``batched(64)`` and the others: functions that give a :class:`Stage`.
How: a stage is the method of the same name, with its arguments and its help. A dataset of shards takes it as that
(:meth:`Stage.added_to`), so that it stays exact; called with an iterator, it is a generator over it, with webdataset's
meaning. ``_map(data, f)`` is ``map(f)(data)``. It must not know shards.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator
from functools import update_wrapper
from inspect import signature
from random import Random
from typing import Any, Concatenate, NoReturn, ParamSpec

from wdscli.errors import UsageError
from wdscli.loader.compat.extradatasets import FluidWrapper, repr_of
from wdscli.loader.dataset import PositionDataset
from wdscli.loader.stages.fluent import Fluent
from wdscli.loader.stages.handlers import reraise_exception
from wdscli.loader.stages.per_batch import combine_values
from wdscli.loader.stages.per_batch import default_collation as default_collation_fn
from wdscli.loader.stages.per_sample import XDECODERS, alternatives, getfirst
from wdscli.loader.stages.plain import Kept, picked, shuffled, thinned

default_decoders = list(XDECODERS)
Function = Callable[[Any], Any]
Arguments = ParamSpec("Arguments")
__all__ = [
    "Cached",
    "FilterFunction",
    "LMDBCached",
    "RestCurried",
    "associate",
    "batched",
    "combine_values",
    "compose",
    "compose2",
    "decode",
    "default_collation_fn",
    "default_decoders",
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
    "parse_field_spec",
    "pick",
    "pipeline",
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
    """``f(data, *args)`` as a function of the arguments, which gives a function of the data."""

    def __init__(self, f: Callable[..., Iterable[Any]]) -> None:
        self.f = f

    def __call__(self, /, *args: Any, **kw: Any) -> FilterFunction:
        return FilterFunction(self.f, *args, **kw)


def pipelinefilter(f: Callable[..., Iterable[Any]]) -> RestCurried:
    """Makes of ``f(data, *args)`` a stage with arguments, ``f(*args)``. It is a generator: see ``compose``."""
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
    """What ``wds.map(f)`` and the like give: the method of that name with its arguments, for a pipeline or
    ``compose``. Called with an iterator, it is a generator over that."""

    def __init__(self, method: str, /, *args: Any, **kw: Any) -> None:
        super().__init__(_Method(method), *args, **kw)
        self.method = method
        self.is_order = True
        """Whether it needs no dice that somebody brings: with these it is a buffer, and no place in it is exact."""

    def added_to(self, dataset: Any) -> Any:
        """``dataset`` with the stage."""
        return getattr(dataset, self.method)(*self.args, **self.kw)


class _Drawing(Stage):
    """One that draws, from another random state in each epoch."""

    def of_epoch(self, epoch: int, is_split: bool) -> Callable[[Iterable[Any]], Iterator[Any]]:
        """The stage as a generator over what comes in an epoch; ``is_split`` says that a splitter follows."""
        return lambda data: self.added_to(FluidWrapper(data)).of_epoch(epoch, is_split)


class PipelineStage:
    """Base of users' own stages: ``run`` takes an iterator and gives one."""

    def run(self, src: Iterable[Any]) -> Iterable[Any]:
        """What the stage makes of ``src``."""
        raise NotImplementedError


def _stage(
    method: Callable[Concatenate[Any, Arguments], Any], kind: type[Stage] = Stage
) -> Callable[Arguments, Stage]:
    """The stage that is ``method``: its name, its arguments, its help."""
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
    """Samples in a shuffled order. Of shards that can be read at any place it is the window order and keeps no buffer,
    whatever ``bufsize``; of an iterator, and with ``rng``, a buffer of ``bufsize`` that gives from ``initial`` on."""
    dice = {name: value for name, value in (("rng", rng), ("seed", seed)) if value is not None}
    stage = _Drawing("shuffle", bufsize, initial=initial, **dice)
    stage.is_order = rng is None
    return stage


class detshuffle(PipelineStage):
    """:func:`shuffle` by a seed, another order in each epoch."""

    method, is_order = "shuffle", True

    def __init__(self, bufsize: int = 1000, initial: int = 100, seed: int = 0, epoch: int = -1) -> None:
        self.bufsize, self.initial, self.seed, self.epoch = bufsize, initial, seed, epoch

    def added_to(self, dataset: Any) -> Any:
        """``dataset`` with the stage."""
        return dataset.shuffle(self.bufsize, initial=self.initial)

    def run(self, src: Iterable[Any]) -> Iterator[Any]:
        """``src`` through a buffer, as the seed and the number of this epoch say."""
        self.epoch += 1
        return shuffled(src, self.bufsize, self.initial, Random(self.seed + self.epoch))

    def of_epoch(self, epoch: int, is_split: bool) -> Callable[[Iterable[Any]], Iterator[Any]]:
        """The stage as a generator over what comes in an epoch: workers that are started anew count none."""
        return detshuffle(self.bufsize, self.initial, self.seed, self.epoch + epoch).run


class Cached(Kept, PipelineStage):
    """What comes the first time, kept in memory and given again."""

    def added_to(self, dataset: Any) -> Any:
        """``dataset`` with the stage: the stages so far as the method keeps them, or all that one process gives."""
        if isinstance(dataset, PositionDataset) and dataset.pipeline.batch is None:
            return dataset.mcached()
        return dataset.compose(self.run)


class LMDBCached(PipelineStage):
    """Refused: raises UsageError."""

    def __init__(self, *args: Any, **kw: Any) -> None:
        raise UsageError(
            "LMDBCached() is not there: it keeps pickles in a file that anybody may have changed",
            hint="mcached() keeps decoded samples in memory",
        )

    def run(self, src: Iterable[Any]) -> NoReturn:
        """Never called."""
        raise NotImplementedError


class _Direct:
    """A stage as a function of the data and then its arguments, with webdataset's name."""

    def __init__(self, stage: Callable[..., FilterFunction]) -> None:
        self._stage = stage
        self.__name__ = f"_{stage.__name__}"

    def __call__(self, data: Iterable[Any], /, *args: Any, **kw: Any) -> Iterator[Any]:
        return self._stage(*args, **kw)(data)


_associate, _batched, _decode = _Direct(associate), _Direct(batched), _Direct(decode)
_extract_keys, _info, _log_keys = _Direct(extract_keys), _Direct(info), _Direct(log_keys)
_map, _map_dict, _map_tuple = _Direct(map), _Direct(map_dict), _Direct(map_tuple)
_rename, _rename_keys, _select = _Direct(rename), _Direct(rename_keys), _Direct(select)
_to_tuple, _unbatched, _unlisted = _Direct(to_tuple), _Direct(unbatched), _Direct(unlisted)
_xdecode, _shuffle, _rsample = _Direct(xdecode), shuffled, thinned
pick = picked


def transform_with(sample: Any, transformers: Any) -> Any:
    """A list of the values of ``sample``, the first ones each through its function; None leaves one as it is."""
    if not transformers:
        return sample
    if len(transformers) > len(sample):
        raise ValueError("more functions than values")
    functions = [*transformers, *[None] * (len(sample) - len(transformers))]
    return [value if function is None else function(value) for value, function in zip(sample, functions)]


def parse_field_spec(fields: str | Iterable[str]) -> list[list[str]]:
    """``"jpg;png cls"`` as lists of alternatives."""
    return [alternatives(field) for field in (fields.split() if isinstance(fields, str) else fields)]


def identity(x: Any) -> Any:
    """What it is given."""
    return x


def compose2(f: Function, g: Function) -> Function:
    """``g(f(x))``."""
    return lambda x: g(f(x))


def compose(*args: Function) -> Function:
    """Functions, the first one first."""

    def composed(x: Any) -> Any:
        for function in args:
            x = function(x)
        return x

    return composed


def pipeline(source: Any, *args: Function) -> Any:
    """``source`` through stages, the first one first."""
    return compose(*args)(source)
