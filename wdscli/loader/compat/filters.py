"""webdataset's filters: stages for pipelines, each as a function of its arguments and, with ``_``, of an iterator.

What it is: ``shuffle(1000)``, ``decode("pil")``, ``batched(64)`` and the others: typed functions that give a
:class:`Stage`. How: a stage is the method of the same name. A dataset of shards takes it as that
(:meth:`Stage.added_to`), so that it stays exact; called with an iterator, it is a generator over it, with webdataset's
meaning. ``_map(data, f)`` is ``map(f)(data)``. It must not know shards.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import update_wrapper
from random import Random
from typing import Any, NoReturn

from wdscli.codecs.limits import MAX_DECODED_BYTES
from wdscli.errors import UsageError
from wdscli.loader.compat.extradatasets import FluidWrapper, repr_of
from wdscli.loader.dataset import PositionDataset
from wdscli.loader.stages.handlers import Handler, reraise_exception
from wdscli.loader.stages.per_batch import collated, combine_values
from wdscli.loader.stages.per_batch import default_collation as default_collation_fn
from wdscli.loader.stages.per_sample import XDECODERS, alternatives, getfirst
from wdscli.loader.stages.plain import Kept, picked, shuffled, thinned

default_decoders = list(XDECODERS)
Function = Callable[[Any], Any]
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

    def __init__(self, f: Callable[..., Iterable[Any]], *args: Any, **kw: Any) -> None:
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

    def __call__(self, *args: Any, **kw: Any) -> FilterFunction:
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

    def __call__(self, data: Iterable[Any], *args: Any, **kw: Any) -> Iterator[Any]:
        return iter(getattr(FluidWrapper(data), self.__name__)(*args, **kw))


class Stage(FilterFunction):
    """What ``wds.map(f)`` and the like give: the method of that name with its arguments, for a pipeline or
    ``compose``. Called with an iterator, it is a generator over that."""

    def __init__(self, method: str, *args: Any, **kw: Any) -> None:
        super().__init__(_Method(method), *args, **kw)
        self.method = method

    def added_to(self, dataset: Any) -> Any:
        """``dataset`` with the stage."""
        return getattr(dataset, self.method)(*self.args, **self.kw)


class PipelineStage:
    """Base of users' own stages: ``run`` takes an iterator and gives one."""

    def run(self, src: Iterable[Any]) -> Iterable[Any]:
        """What the stage makes of ``src``."""
        raise NotImplementedError


def map(f: Function, handler: Handler = reraise_exception) -> Stage:
    """``f`` of each sample, or of each batch behind :func:`batched`; None leaves it out, counted. A dict that ``f``
    makes of a sample keeps the sample's key. ``handler`` is asked about exceptions."""
    return Stage("map", f, handler=handler)


def map_dict(handler: Handler = reraise_exception, **functions: Function) -> Stage:
    """Each named field by its function: ``map_dict(jpg=resize, cls=int)``. Samples are copied, not changed."""
    return Stage("map_dict", handler=handler, **functions)


def map_tuple(*functions: Function | None, handler: Handler = reraise_exception) -> Stage:
    """The first values of a tuple, each by its function; None for one that stays."""
    return Stage("map_tuple", *functions, handler=handler)


def to_tuple(
    *fields: str | Sequence[str],
    handler: Handler = reraise_exception,
    missing_is_error: bool = True,
    none_is_error: bool | None = None,
) -> Stage:
    """A tuple of fields: ``to_tuple("jpg;png", "cls")``, of ``"jpg;png"`` the first that is there."""
    more = {"missing_is_error": missing_is_error, "none_is_error": none_is_error}
    return Stage("to_tuple", *fields, handler=handler, **more)


def rename(handler: Handler = reraise_exception, keep: bool = True, **names: str | Sequence[str]) -> Stage:
    """Fields by other names: ``rename(image="jpg;png")``. With ``keep`` those not named stay."""
    return Stage("rename", handler=handler, keep=keep, **names)


def rename_keys(
    *renamings: tuple[str, str],
    keep_unselected: bool = False,
    must_match: bool = True,
    duplicate_is_error: bool = True,
    **more: str,
) -> Stage:
    """Fields by other names, found by patterns: ``(new name, pattern)`` or ``new="*.pattern"``; the last that fits
    counts."""
    how = {"keep_unselected": keep_unselected, "must_match": must_match}
    return Stage("rename_keys", *renamings, duplicate_is_error=duplicate_is_error, **how, **more)


def extract_keys(
    *patterns: str | Sequence[str], duplicate_is_error: bool = True, ignore_missing: bool = False
) -> Stage:
    """A tuple of the fields that match patterns such as ``"*.jpg;*.png"``."""
    how = {"duplicate_is_error": duplicate_is_error, "ignore_missing": ignore_missing}
    return Stage("extract_keys", *patterns, **how)


def decode(
    *args: Any,
    pre: Any = None,
    post: Any = None,
    only: Any = None,
    partial: bool = False,
    handler: Handler | None = None,
    max_decoded: int = MAX_DECODED_BYTES,
    size: int | tuple[int, int] | None = None,
    crop: int | tuple[int, int] | None = None,
) -> Stage:
    """Payloads decoded by field name: ``decode("pil")``, ``decode("torchrgb")``, ``decode("rgb8")``, own handlers of
    (name, payload). ``only`` names the fields to decode; ``size`` and ``crop`` bring pictures to one size. What cannot
    be decoded is an error that names shard, sample and field, unless ``handler`` goes on. No pickle is loaded unless
    ``"pickle"`` is named."""
    how = {"pre": pre, "post": post, "only": only, "partial": partial, "max_decoded": max_decoded}
    how |= {"size": size, "crop": crop}
    return Stage("decode", *args, handler=handler, **how)


def xdecode(
    *decoders: tuple[str, Function],
    must_decode: bool = True,
    defaults: Iterable[tuple[str, Function]] = XDECODERS,
    **more: Function,
) -> Stage:
    """Payloads decoded by ``(pattern, function of a stream)``, or ``ext=function``."""
    return Stage("xdecode", *decoders, must_decode=must_decode, defaults=defaults, **more)


def select(predicate: Callable[[Any], bool], handler: Handler = reraise_exception) -> Stage:
    """Only the samples for which ``predicate`` holds, the others counted."""
    return Stage("select", predicate, handler=handler)


def associate(associator: Any, **kw: Any) -> Stage:
    """More fields for each sample, by its key: a mapping of mappings, or a function of the key."""
    return Stage("associate", associator, **kw)


def info(
    fmt: str | None = None,
    n: int = 3,
    every: int = -1,
    width: int = 50,
    stream: Any = None,
    name: str = "",
) -> Stage:
    """Shows the first ``n`` samples of this process and then one of ``every``, on stderr or ``stream``."""
    return Stage("info", fmt, n=n, every=every, width=width, stream=stream, name=name)


def log_keys(logfile: str | None = None) -> Stage:
    """A line for each sample at the end of ``logfile``: number in this process, worker, rank, key."""
    return Stage("log_keys", logfile)


def batched(
    batchsize: int = 20,
    collation_fn: Function | None = collated,
    partial: bool = True,
) -> Stage:
    """Batches of ``batchsize`` samples; ``collation_fn`` makes one of a list, None leaves the list. Without ``partial``
    what is left at the end is left out."""
    return Stage("batched", batchsize, collation_fn=collation_fn, partial=partial)


def listed(batchsize: int, partial: bool = True) -> Stage:
    """Batches that are lists of samples."""
    return Stage("listed", batchsize, partial=partial)


def unbatched() -> Stage:
    """The samples of batches, which are tuples or dicts of columns."""
    return Stage("unbatched")


def unlisted() -> Stage:
    """The samples of lists."""
    return Stage("unlisted")


def rsample(p: float = 0.5) -> Stage:
    """A random part of the samples, others in each epoch: of shards exactly ``round(p * n)`` of n, chosen before they
    are read; of an iterator each with probability ``p``."""
    return Stage("rsample", p)


def slice(*args: int | None) -> Stage:
    """``slice(stop)`` or ``slice(start, stop[, step])`` of an epoch's samples, or behind :func:`batched` of its
    batches."""
    return Stage("slice", *args)


def shuffle(
    bufsize: int = 1000,
    initial: int = 100,
    rng: Random | None = None,
    seed: int | None = None,
    handler: Any = None,
) -> Stage:
    """Samples in a shuffled order. Of shards that can be read at any place it is the window order and keeps no buffer,
    whatever ``bufsize``; of an iterator, and with ``rng``, a buffer of ``bufsize`` that gives from ``initial`` on."""
    return _Shuffle(bufsize, initial=initial, rng=rng, seed=seed)


class _Shuffle(Stage):
    """An order, where nobody brings dice; with these it is a buffer, and no place in it is exact."""

    def __init__(self, bufsize: int, **how: Any) -> None:
        super().__init__(
            "shuffle", bufsize, **{name: value for name, value in how.items() if value is not None}
        )
        self.is_order = how.get("rng") is None


class detshuffle(PipelineStage):
    """:func:`shuffle` by a seed, another order in each epoch."""

    method = "shuffle"

    def __init__(self, bufsize: int = 1000, initial: int = 100, seed: int = 0, epoch: int = -1) -> None:
        self.bufsize, self.initial, self.seed, self.epoch = bufsize, initial, seed, epoch

    def added_to(self, dataset: Any) -> Any:
        """``dataset`` with the stage."""
        return dataset.shuffle(self.bufsize, initial=self.initial)

    def run(self, src: Iterable[Any]) -> Iterator[Any]:
        """``src`` through a buffer, as the seed and the number of this epoch say."""
        self.epoch += 1
        return shuffled(src, self.bufsize, self.initial, Random(self.seed + self.epoch))


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

    def __call__(self, data: Iterable[Any], *args: Any, **kw: Any) -> Iterator[Any]:
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
