"""This module has webdataset's filters, and runs them as plain generators over any iterable.

Each filter, such as ``shuffle(1000)``, ``decode("pil")`` or ``batched(64)``, returns a :class:`NamedStage`. A stage has
the arguments and the help of the dataset's method of the same name. A dataset of shards adds the stage by calling this
method (:meth:`NamedStage.added_to`), so the dataset stays exact. If a stage is called with an iterator, it returns a
generator over the iterator's items, as in webdataset. ``_map(data, f)`` is ``map(f)(data)``.

:class:`FluidWrapper` gives the methods of datasets to any iterable: each stage is a generator over the items of the
previous stage. Items have no positions: each process or worker iterates its own source, and there is no state to resume
from. Without a seed, every process and every iteration has its own random state. If workers divide items among
themselves, all workers need the same order. So in that case a :class:`Drawing` takes its random state from the epoch.
This module does not know shards.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator
from functools import partial, update_wrapper
from inspect import signature
from itertools import islice, repeat
from random import Random, random
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    NamedTuple,
    NoReturn,
    ParamSpec,
    Protocol,
    TypeVar,
    runtime_checkable,
)

from wdscli.errors import UsageError
from wdscli.loader.checks import Urls
from wdscli.loader.compat import lacking
from wdscli.loader.dataset import PositionDataset, ProcessDataset
from wdscli.loader.order.order import DRAWN, Shuffle, key
from wdscli.loader.place.cuts import Epochs
from wdscli.loader.place.iteration import IterationState
from wdscli.loader.place.ranks import Share, find_rank, find_worker, in_worker
from wdscli.loader.read.failures import SkipCounts, reraise_exception, warning_of_losses
from wdscli.loader.stages.flow import Item, Pipeline, RawSample
from wdscli.loader.stages.fluent import Fluent
from wdscli.loader.stages.generators import begins_with_a_shard, begun, shuffled, through
from wdscli.loader.stages.per_batch import combine_values
from wdscli.loader.stages.per_batch import default_collation as default_collation_fn
from wdscli.loader.stages.per_sample import getfirst
from wdscli.loader.streams import in_passes
from wdscli.loader.webdataset import WebDataset

Self = TypeVar("Self", bound="FluidWrapper")
FluidInterface = Fluent
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


def thinned(data: Iterable[Any], p: float = 0.5, rng: Random | None = None) -> Iterator[Any]:
    """Yield each item of ``data`` with probability ``p``."""
    if not 0 <= p <= 1:
        raise ValueError(f"rsample({p}): give a number from 0 to 1")
    draw = random if rng is None else rng.random
    return (sample for sample in data if draw() < p)


class Drawing(NamedTuple):
    """A stage of a pipeline that calls ``function(data, rng=...)``. If the items are shards, or a splitter follows, the
    random state depends only on the epoch, so that all workers and ranks have the same state."""

    function: Callable[..., Iterable[Any]]

    def __call__(self, data: Iterable[Any]) -> Iterator[Any]:
        return iter(self.function(data))

    def of_epoch(self, epoch: int, is_split: bool) -> Callable[[Iterable[Any]], Iterator[Any]]:
        """Return the stage for an epoch. ``is_split`` is true if a splitter follows."""
        return partial(self._drawn, epoch, is_split)

    def _drawn(self, epoch: int, is_split: bool, data: Iterable[Any]) -> Iterator[Any]:
        is_common, items = begins_with_a_shard(data)
        rng = Random(key(epoch, DRAWN)) if is_common or is_split else None
        yield from self.function(items, rng=rng)


def redrawn(data: Iterable[Any], n: int | None = None, rng: Random | None = None) -> Iterator[Any]:
    """Yield ``n`` random items of ``data``, with replacement. With ``n`` None, yield items without end."""
    items, rng = list(data), rng or Random()
    for _ in repeat(None) if n is None else range(n):
        if not items:
            return
        yield rng.choice(items)


class RepeatedItems:
    """Keeps the items of the first iteration in this process, and yields them in later iterations."""

    def __init__(self) -> None:
        self._items: list[Any] | None = None

    def run(self, source: Iterable[Any]) -> Iterator[Any]:
        """Yield the items of ``source`` and keep them. After one complete iteration, yield the kept items instead."""
        if self._items is not None:
            yield from self._items
            return
        items = []
        for sample in source:
            items.append(sample)
            yield sample
        self._items = items


@runtime_checkable
class CountingStage(Protocol):
    """A stage that counts the samples it skips."""

    def counted_in(self, counts: SkipCounts) -> Callable[[Any], Iterable[Any]]:
        """Return the stage as a generator function that adds the skipped samples to ``counts``."""


class FluidWrapper(ProcessDataset[Item]):
    """Has the stage methods for any iterable, and for a function that returns an iterator. The stages run as
    generators, one after the other. Only a stage can divide the items among ranks and workers. There is no state to
    resume from."""

    def __init__(self, initial: Any) -> None:
        self.initial = initial
        self._state = IterationState()
        self.pipeline = Pipeline(generators=(iter,))
        self.stages: tuple[Any, ...] = (initial,)
        self._counts = SkipCounts()

    def __iter__(self) -> Iterator[Item]:
        iteration = self._state.begin(self._state.next_start())
        iteration.over()
        return self.of_epoch(iteration.start.epoch)

    def of_epoch(self, epoch: int, is_split: bool = False) -> Iterator[Any]:
        """Yield the items of an epoch. ``is_split`` is true if a splitter follows."""
        limit = None
        if self._span is not None:
            limit = self._span.of_worker(Share(*find_rank(), *find_worker()), items_are_samples=True)
        passes = 1 if self._span is None else self._span.passes
        initial, generators = self.initial, self.pipeline.generators

        def of_pass(pass_number: int) -> Iterator[Any]:
            items = initial.dataset.of_epoch(pass_number) if isinstance(initial, _Cut) else begun(initial)
            return through(generators, items, pass_number, is_split)

        items = islice(in_passes(epoch, passes, of_pass), limit)
        return warning_of_losses(items, 0, lambda: self._counts) if in_worker() else items

    _epochs = __iter__

    def __len__(self) -> int:
        if self._length is None:
            raise TypeError("the length is unknown; call with_length(n) to set it")
        return self._length

    def __repr__(self) -> str:
        names = ", ".join(builtins.map(repr_of, (self.initial, *self.pipeline.generators[1:])))
        return f"<{type(self).__name__} of plain generators, without an exact place: {names}>"

    def stage(self, number: int) -> Any:
        """Return the stage with this ``number``. Stage 0 is the source."""
        return self.stages[number]

    def compose(self: Self, *args: Any) -> Self:
        """Add stages. A stage is a generator function of an iterator, an object with ``run``, or a stage such as
        ``wds.map(...)``."""
        new = self
        for stage in args:
            new = new._through(stage.counted_in(self._counts) if isinstance(stage, CountingStage) else stage)
            new.stages = (*new.stages[:-1], stage)
        return new

    def _with(self: Self, **changes: Any) -> Self:
        new = super()._with(**changes)
        added = len(new.pipeline.generators) - len(new.stages)
        new.stages = (*new.stages, *new.pipeline.generators[len(new.stages) :]) if added else new.stages
        return new

    def _buffer(self, size: int, initial: int, seed: int | None, rng: Any) -> Any:
        """Return a shuffle that uses ``rng`` or ``seed``. Without both, the shuffle makes a new random state for each
        iteration. But the order of shards, and of items before a splitter, depends only on the epoch, so that all
        workers and ranks have the same order."""
        if rng is None and seed is None:
            return Drawing(partial(shuffled, bufsize=size, initial=initial))
        return partial(shuffled, bufsize=size, initial=initial, rng=rng, seed=seed)

    def _thinning(self, p: float) -> Any:
        """Return a stage that keeps each item with probability ``p``. If the items are shards, all workers and ranks
        keep the same shards."""
        return Drawing(partial(thinned, p=p))

    def slice(self: Self, *args: int | None) -> Self:
        """Keep a slice of what an epoch yields: ``slice(stop)`` or ``slice(start, stop[, step])``."""
        if self._span is None or self._span.joins_slices:
            return super().slice(*args)
        cut = _Cut(self)
        return self._with(initial=cut, pipeline=Pipeline(generators=(iter,)), stages=(cut,), _cuts=()).slice(
            *args
        )

    def mcached(self: Self) -> Self:
        """Keep the items of the first iteration in memory, and yield them in later iterations."""
        return self._through(RepeatedItems().run)

    def state_dict(self) -> NoReturn:
        """Raises UsageError."""
        raise UsageError(
            f"the position in {self!r} cannot be saved",
            hint="plain generators cannot be resumed, but wds.WebDataset(urls) and its stages can",
        )

    def load_state_dict(self, state: dict[str, Any]) -> NoReturn:
        """Raises UsageError."""
        self.state_dict()


class _Cut(NamedTuple):
    """A dataset whose epochs were cut or joined before it was sliced, as the first stage of the slice."""

    dataset: FluidWrapper

    def __repr__(self) -> str:
        return repr(self.dataset)


def repr_of(stage: Any) -> str:
    """Return the name of a stage."""
    while isinstance(stage, (partial, Drawing)):
        stage = stage.func if isinstance(stage, partial) else stage.function
    name = getattr(stage, "__name__", None)
    if name is None or name == "run":
        stage = getattr(stage, "__self__", stage)
        shown = repr(stage)
        name = type(stage).__name__ if " object at 0x" in shown else shown
    return str(name)


class MockDataset(FluidWrapper):
    """A dataset that yields the same sample ``length`` times."""

    def __init__(self, sample: Any, length: int) -> None:
        super().__init__([sample] * length)


def with_epoch(dataset: Any, length: int) -> Any:
    """Call ``dataset.with_epoch(length)``."""
    return _fluent(dataset)._with().with_epoch(length)


def with_length(dataset: Any, length: int) -> Any:
    """Call ``dataset.with_length(length)``."""
    return _fluent(dataset)._with().with_length(length)


def repeatedly(source: Iterable[Any], nepochs: int | None = None, nbatches: int | None = None) -> Any:
    """Call ``source.repeat(...)``."""
    return _fluent(source)._with().repeat(nepochs or -1, nbatches or -1)


def _fluent(dataset: Any) -> Any:
    return dataset if isinstance(dataset, Fluent) else FluidWrapper(dataset)


class Dataset(WebDataset[Item]):
    """:class:`WebDataset` under its old name, with these old arguments: ``length`` (with_length), ``epochs`` (repeat),
    ``shuffle`` (a bool, for shards) and ``suffixes`` (fields)."""

    def __init__(
        self: Dataset[RawSample | Any],
        urls: Urls,
        *,
        length: int | None = None,
        epochs: int = 1,
        shuffle: bool | Shuffle = False,
        suffixes: Iterable[str] | None = None,
        opener: Any = None,
        prepare_for_worker: bool = True,
        **options: Any,
    ) -> None:
        if opener is not None or not prepare_for_worker:
            raise UsageError("Dataset(opener=, prepare_for_worker=) are not supported", hint="leave them out")
        if suffixes is not None:
            options["fields"] = suffixes
        if isinstance(shuffle, str):
            options["shuffle"] = shuffle
        else:
            options.setdefault("shardshuffle", shuffle)
        super().__init__(urls, **options)
        self._length = length
        if epochs != 1:
            self._cuts = (Epochs(epochs, None),)

    def pipe(self, stage: Any) -> Any:
        """Call :meth:`compose`, which had this name in older versions."""
        return self.compose(stage)


class FilterFunction:
    """A stage that calls ``f(data, *args, **kw)`` with an iterator and the arguments that were given to the stage."""

    def __init__(self, f: Callable[..., Iterable[Any]], /, *args: Any, **kw: Any) -> None:
        self.f, self.args, self.kw = f, args, kw
        self.__name__ = repr_of(f)

    def __call__(self, data: Iterable[Any]) -> Iterator[Any]:
        return iter(self.f(data, *self.args, **self.kw))

    def __repr__(self) -> str:
        arguments = [
            *builtins.map(repr, self.args),
            *(f"{name}={value!r}" for name, value in self.kw.items() if value is not reraise_exception),
        ]
        return f"{repr_of(self.f)}({', '.join(arguments)})"


class RestCurried:
    """A function that takes the arguments of ``f(data, *args)`` without ``data``, and returns a function of
    ``data``."""

    def __init__(self, f: Callable[..., Iterable[Any]]) -> None:
        self.f = f

    def __call__(self, /, *args: Any, **kw: Any) -> FilterFunction:
        return FilterFunction(self.f, *args, **kw)


def pipelinefilter(f: Callable[..., Iterable[Any]]) -> RestCurried:
    """Turn the generator function ``f(data, *args)`` into a function ``f(*args)`` that returns a stage for
    ``compose``."""
    curried = RestCurried(f)
    update_wrapper(curried, f)
    return curried


class _Method:
    """A function that applies the dataset method ``name`` to any iterable, and returns a generator."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, data: Iterable[Any], /, *args: Any, **kw: Any) -> Iterator[Any]:
        return iter(getattr(FluidWrapper(data), self.__name__)(*args, **kw))


class NamedStage(FilterFunction):
    """A stage such as ``wds.map(f)``, for a pipeline or ``compose``. A stage has the name of a dataset method and its
    arguments. A call with an iterator returns a generator over the iterator's items."""

    def __init__(self, method: str, /, *args: Any, **kw: Any) -> None:
        super().__init__(_Method(method), *args, **kw)
        self.method = method
        self.is_order = True
        """False if the stage shuffles with the user's random state, in a buffer without an exact place."""

    def added_to(self, dataset: Any) -> Any:
        """Return ``dataset`` with the stage."""
        return getattr(dataset, self.method)(*self.args, **self.kw)


class _Drawing(NamedStage):
    """A stage that makes random choices, with a new random state in each epoch."""

    def of_epoch(self, epoch: int, is_split: bool) -> Callable[[Iterable[Any]], Iterator[Any]]:
        """Return the stage as a generator over the items of an epoch. ``is_split`` is true if a splitter follows."""
        return lambda data: self.added_to(FluidWrapper(data)).of_epoch(epoch, is_split)


class PipelineStage:
    """The base class for stages that users write. The method ``run`` of a stage takes an iterator and returns an
    iterator."""

    def run(self, src: Iterable[Any]) -> Iterable[Any]:
        """Return the items that the stage makes from the items of ``src``."""
        raise NotImplementedError


def _stage(
    method: Callable[Concatenate[Any, Arguments], Any], kind: type[NamedStage] = NamedStage
) -> Callable[Arguments, NamedStage]:
    """Return a function that makes stages from ``method``, and has the method's name, arguments and help."""
    name, shape = method.__name__, signature(method)
    shape = shape.replace(parameters=[*shape.parameters.values()][1:], return_annotation="NamedStage")

    def stage(*args: Arguments.args, **kw: Arguments.kwargs) -> NamedStage:
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
) -> NamedStage:
    """Shuffle samples. If shards can be read at any offset, the samples are shuffled as with
    ``WebDataset(shuffle="window")``, without a buffer. For an iterator, and with ``rng``, they are shuffled in a buffer
    of ``bufsize`` items, which begins to yield when it has ``initial`` items."""
    random_state = {name: value for name, value in (("rng", rng), ("seed", seed)) if value is not None}
    stage = _Drawing("shuffle", bufsize, initial=initial, **random_state)
    stage.is_order = rng is None
    return stage


class detshuffle(PipelineStage):
    """A shuffle with a seed. Each epoch has a new order."""

    def __init__(self, bufsize: int = 1000, initial: int = 100, seed: int = 0, epoch: int = -1) -> None:
        self.bufsize, self.initial, self.seed, self.epoch = bufsize, initial, seed, epoch

    def added_to(self, dataset: Any) -> Any:
        """Return ``dataset`` with the stage."""
        return dataset.shuffle(self.bufsize, initial=self.initial)

    def run(self, src: Iterable[Any]) -> Iterator[Any]:
        """Yield the items of ``src``, shuffled in a buffer. The order depends on the seed and on the number of this
        epoch."""
        self.epoch += 1
        return shuffled(src, self.bufsize, self.initial, Random(self.seed + self.epoch))

    def of_epoch(self, epoch: int, is_split: bool) -> Callable[[Iterable[Any]], Iterator[Any]]:
        """Return the stage as a generator for an epoch, because new workers do not know how many epochs have passed."""
        return detshuffle(self.bufsize, self.initial, self.seed, self.epoch + epoch).run


class Cached(RepeatedItems, PipelineStage):
    """Keeps the items of the first iteration in memory, and yields them in later iterations."""

    def added_to(self, dataset: Any) -> Any:
        """Return ``dataset`` with the stage. If possible, the stage is the method ``mcached``; otherwise it keeps all
        items of one process."""
        if isinstance(dataset, PositionDataset) and dataset.pipeline.batch is None:
            return dataset.mcached()
        return dataset.compose(self.run)


_shuffle = shuffled
"""A function that shuffles ``data`` in a buffer, for code that shuffles shards with its own random state."""


def transform_with(sample: Any, transformers: Any) -> Any:
    """Apply a function to each of the first values of ``sample``. None in place of a function keeps the value."""
    if not transformers:
        return sample
    if len(transformers) > len(sample):
        raise ValueError("more functions than values")
    functions = [*transformers, *[None] * (len(sample) - len(transformers))]
    return [value if function is None else function(value) for value, function in zip(sample, functions)]


def identity(x: Any) -> Any:
    """Return ``x``."""
    return x


def _at_once(stage: Callable[..., FilterFunction], data: Iterable[Any], *args: Any, **kw: Any) -> Any:
    return stage(*args, **kw)(data)


if not TYPE_CHECKING:  # with __getattr__, a type checker would accept any name

    def __getattr__(name: str) -> Any:
        """Return a function such as ``_map(data, f)``, which applies a stage to ``data`` directly. Other names are
        errors."""
        stage = globals().get(name[1:]) if name.startswith("_") else None
        return partial(_at_once, stage) if hasattr(stage, "__signature__") else lacking(__name__, name)
