"""This module has the pipeline of a dataset, and passes samples through its stages.

A :class:`Pipeline` is an immutable list of stages. A :class:`UnitMaker` applies the stages to samples, in one thread or
several, and measures the time. A stage before the batches is a plain function, which returns a sample or drops it. At
most one stage makes batches. Stages after the batch stage take batches, or make several items from one batch
(:class:`Spread`). A :class:`Unit` has the items that come from the samples of one batch. A unit depends on no other
samples, so resuming is exact. Generators (``compose``) run over all items, after all other stages. With ``threads``,
the functions of single samples run in a pool of threads, some samples ahead. Results are taken in order, so an
exception is raised when the turn of its sample comes.

For type checkers, this module defines the types of items: :data:`RawSample` and :data:`Sample` (plain dictionaries at
run time), the type variable of datasets, and :func:`giving`. If a stage method changes the type of items, the class of
the dataset declares the new type, because a method of a base class cannot. This module does not know which sample is
read next."""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar, cast

from wdscli.loader.order.source import Spare
from wdscli.loader.place.ranks import EpochBatches
from wdscli.loader.read.failures import FailedSample, Guard, Policy, Replacing, StopEpoch
from wdscli.loader.read.reading import BatchBlock, Read, Times

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor
    from typing import Concatenate, Literal, ParamSpec, overload

    from typing_extensions import TypeVar as TypeVarWithDefault

    from wdscli.loader.place.planned import Plans

Sample = dict[str, Any]
"""A sample after ``decode``: a dict of ``__key__``, ``__url__`` and fields of any type. Batches of samples also have
this type.
"""

if TYPE_CHECKING:
    Item = TypeVarWithDefault("Item", covariant=True, default=Any)
    Arguments = ParamSpec("Arguments")
    Given = TypeVar("Given")

    class RawSample(dict[str, Any]):
        """A sample before ``decode``: a dict of ``__key__`` and ``__url__`` (text) and payloads (bytes). A new dataset
        yields ``RawSample | Any``, so that ``data = data.decode()`` has a compatible type."""

        @overload
        def __getitem__(self, name: Literal["__key__", "__url__"]) -> str: ...  # type: ignore[overload-overlap]
        @overload
        def __getitem__(self, name: str) -> bytes: ...
        def __getitem__(self, name: str) -> Any: ...

    def giving(
        method: Callable[Concatenate[Any, Arguments], Any], given: Given
    ) -> Callable[Concatenate[Any, Arguments], Given]:
        """Declare for type checkers that ``method`` keeps its arguments and returns the type of ``given``."""
        raise NotImplementedError
else:
    Item = TypeVar("Item")
    RawSample = dict


Function = Callable[[Any], Any]
OverAll = Callable[[Iterator[Any]], Iterable[Any]]
"""A stage that iterates all items, such as a generator function."""
Tasks = Generator[tuple[int, Callable[[], list[Any]]], None, None]
"""Yields pairs: the number of a batch, and a function that makes the batch's items."""
LOOKAHEAD_SAMPLES = 4
"""The number of samples that are in work or waiting in the pool, for each of its threads."""
MOST_TOGETHER = 8
"""The largest number of samples in one task for a thread. To pass a task to a thread costs as much as decoding a
number."""


class _Dropped:
    """The type of DROPPED, which a function returns for a dropped sample."""

    def __repr__(self) -> str:
        return "DROPPED"

    def __reduce__(self) -> str:
        return "DROPPED"


DROPPED = _Dropped()


class Stage:
    """A stage that calls ``apply`` with a sample. The ``guard`` of the stage decides about exceptions."""

    guard: Guard

    def __init__(self, function: Function) -> None:
        self.apply = function

    def __call__(self, sample: Any) -> Any:
        try:
            return self.apply(sample)
        except Exception as error:
            self.guard.caught(error, sample)
            return DROPPED


class BatchStage(NamedTuple):
    """The stage that makes batches of ``size`` samples. ``collate`` makes a batch from a list of samples. Without
    ``partial``, an incomplete last batch of an epoch is dropped, but a batch that is smaller because stages dropped
    samples is kept. If ``plans`` is set, it chooses the samples of each batch."""

    size: int
    collate: Function
    partial: bool = True
    plans: Plans | None = None

    @property
    def name(self) -> str:
        """The text for this stage in the repr() of a dataset."""
        return f"batched({self.size})" if self.plans is None else self.plans.name

    def made(self, items: list[Any], given: int) -> list[Any]:
        """Return a list with one batch of all items, or an empty list without items. ``given`` is the number of samples
        before stages and errors dropped some of them."""
        if not items or (given < self.size and not self.partial):
            return []
        if len(items) < given:
            warnings.warn(
                "batches became smaller, because a stage dropped samples; for full batches, call\n"
                f"batched({self.size}, partial=False) after compose(lambda samples: filter(f, samples))",
                stacklevel=2,
            )
        return [self.collate(items)]


class Spread(NamedTuple):
    """A stage that makes several items, in order, from one item."""

    function: Callable[[Any], Iterable[Any]]


class Unit(NamedTuple):
    """The items that come from the samples of batch ``number``. ``stops`` is true if a handler ended the epoch in this
    batch."""

    number: int
    items: list[Any]
    stops: bool = False


class Pipeline(NamedTuple):
    """The stages of a dataset in four parts: functions of a sample, the batch stage, functions of a batch, and
    generators over all items."""

    before: tuple[Function, ...] = ()
    batch: BatchStage | None = None
    after: tuple[Function | Spread, ...] = ()
    generators: tuple[OverAll, ...] = ()

    @property
    def spreads(self) -> bool:
        """Whether a unit may have more than one item."""
        return any(isinstance(function, Spread) for function in self.after)

    def then(self, function: Function) -> Pipeline:
        """Return a pipeline with one more stage at the end, a function of an item."""
        if self.generators:
            return self.through(Each(function))
        if self.batch is None:
            return self._replace(before=(*self.before, function))
        return self._replace(after=(*self.after, function))

    def spread(self, function: Callable[[Any], Iterable[Any]]) -> Pipeline:
        """Return a pipeline with one more stage at the end, which makes several items from each item."""
        if self.generators:
            return self.through(Each(Spread(function)))
        # If there is no batch stage yet, each sample becomes a batch, and later stages take its items.
        batch = self.batch or BatchStage(1, itemgetter(0))
        return self._replace(batch=batch, after=(*self.after, Spread(function)))

    def through(self, generator: OverAll) -> Pipeline:
        """Return a pipeline with one more stage at the end, a generator over all items."""
        return self._replace(generators=(*self.generators, generator))

    def given(self, samples: Sequence[Any]) -> int:
        """Return the number of samples in a batch before any stage, for :meth:`BatchStage.made`. If the batch stage
        does not need the number, return 0."""
        if self.batch is None or self.batch.partial:
            return 0
        return sum(sample is not DROPPED for sample in samples)

    def unit(self, samples: Sequence[Any], given: int = 0, stops: bool = False) -> list[Any]:
        """Return the items that the stages make from the samples of one batch. ``given`` is the number of samples in
        the batch (see :meth:`given`). If a handler ends the epoch, or with ``stops``, raises StopEpoch with the items
        made before."""
        kept: Iterable[Any] = samples
        if self.before or _Dropped in set(map(type, samples)):
            kept = _through(self.before, samples)
        return self.joined((kept,), given, stops)

    def joined(self, parts: Iterable[Iterable[Any]], given: int, stops: bool = False) -> list[Any]:
        """Return the items that the batch stage and later stages make from one batch of ``given`` samples. ``parts``
        are lists of samples after the functions of a sample have run. If a handler ends the epoch, or with ``stops``,
        raises StopEpoch with the items made before."""
        try:
            items = _collected(chain.from_iterable(parts))
        except StopEpoch as stop:
            items, stops = stop.items, True
        if self.batch is not None:
            items = self.after_batch(self.batch.made(items, len(items) if stops else given))
        if stops:
            raise StopEpoch(items)
        return items

    def each(self, sample: Any) -> list[Any]:
        """Apply the functions for single samples to ``sample``. Return a list with the result, or an empty list if the
        sample is dropped. Raises the errors of the functions."""
        return list(_through(self.before, (sample,)))

    def after_batch(self, batches: list[Any]) -> list[Any]:
        """Apply the stages after the batch stage. If a handler ends the epoch, raises StopEpoch with the items made
        before."""
        return _collected(_flow(self.after, iter(batches)))

    def names(self) -> list[str]:
        """Return the names of the stages."""
        batch = [] if self.batch is None else [self.batch.name]
        return [*map(_name, self.before), *batch, *map(_name, self.after), *map(_name, self.generators)]


NO_LIST = (
    "the stages of a dataset are no list here; compose(stage) adds a stage, "
    "DataPipeline(first, *stages) makes another pipeline"
)
"""Advice for code that changes a pipeline, because webdataset's pipeline is a list."""


def _no_list(self: Pipeline, name: str) -> NoReturn:
    is_of_list = hasattr(list, name)
    raise AttributeError(
        f"pipeline.{name}(): {NO_LIST}" if is_of_list else f"pipeline.{name} is not supported"
    )


def _not_assigned(self: Pipeline, place: Any, *stage: Any) -> NoReturn:
    raise TypeError(f"pipeline[{place!r}] cannot be changed: {NO_LIST}")


if not TYPE_CHECKING:  # with __getattr__, a type checker would accept any name
    Pipeline.__getattr__ = _no_list
    Pipeline.__setitem__ = Pipeline.__delitem__ = _not_assigned


def _name(stage: Any) -> str:
    if isinstance(stage, Spread):
        stage = stage.function
    if isinstance(stage, Stage):
        return stage.guard.stage
    return str(getattr(stage, "__name__", type(stage).__name__.lower()))


class Each:
    """A generator stage that applies a function or a :class:`Spread` to each item."""

    def __init__(self, function: Function | Spread) -> None:
        self._function = function
        self.__name__ = _name(function)

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        return _flow((self._function,), items)


def _collected(items: Iterator[Any]) -> list[Any]:
    collected: list[Any] = []
    try:
        collected.extend(items)  # unlike list(items), this keeps the items before a StopEpoch
    except StopEpoch as stop:
        raise StopEpoch(collected) from stop
    return collected


def _through(functions: tuple[Function, ...], samples: Iterable[Any]) -> Iterator[Any]:
    for sample in samples:
        if sample is DROPPED:  # the source has dropped it
            continue
        for function in functions:
            sample = function(sample)
            if sample is DROPPED:
                break
        else:
            yield sample


def _flow(functions: tuple[Function | Spread, ...], items: Iterator[Any]) -> Iterator[Any]:
    for function in functions:
        if isinstance(function, Spread):
            items = chain.from_iterable(map(function.function, items))
        else:
            items = _through((function,), items)
    return items


class _Begun(NamedTuple):
    """A batch in work: the threads of the pool process its samples. ``samples`` is the number of these samples.
    ``make`` waits for the samples and returns the items. ``stops`` is true if the epoch ends with this batch."""

    number: int
    samples: int
    make: Callable[[], list[Any]]
    stops: bool


def _several(
    function: Callable[..., list[Any]], each: list[tuple[Any, ...]]
) -> tuple[list[list[Any]], BaseException | None]:
    """Call ``function`` for each tuple of arguments. Return the results before the first error, and this error or
    None."""
    done: list[list[Any]] = []
    for arguments in each:
        try:
            done.append(function(*arguments))
        except BaseException as error:  # BaseException, because of StopEpoch
            return done, error
    return done, None


def _results(futures: Iterable[Future[Any]]) -> Iterator[list[Any]]:
    """Yield the results of :func:`_several` in order. An error is raised when the turn of its sample comes."""
    for future in futures:
        done, error = future.result()
        yield from done
        if error is not None:
            raise error


class UnitMaker:
    """Makes units from the samples of an epoch of ``length`` positions. With ``replaces``, failed samples are replaced
    by substitutes, which ``spare`` reads."""

    def __init__(
        self, pipeline: Pipeline, policy: Policy, spare: Spare, length: int, times: Times, replaces: bool
    ) -> None:
        self._pipeline, self._policy = pipeline, policy
        self._replacing = Replacing(policy, pipeline.each, spare.instead, length) if replaces else None
        self._times = times

    def _kept(self, read: Read) -> tuple[Sequence[Any], bool]:
        """Return the readable samples of a batch, and whether the policy ends the epoch after them."""
        try:
            return self._policy.kept(read.samples), False
        except StopEpoch as stop:
            return stop.items, True

    def _unit(self, read: Read) -> list[Any]:
        """Return the items that come from one batch. Raises errors of the policy and the stages."""
        sample_count = self._pipeline.given(read.samples)
        if self._replacing is None:
            samples, stops = self._kept(read)
            return self._pipeline.unit(samples, sample_count, stops)
        each = zip(read.positions.tolist(), read.samples)
        return self._pipeline.joined((self._replacing.made(*pair) for pair in each), sample_count)

    def units(self, reads: Iterable[Read], threads: int = 1) -> Iterator[Unit]:
        """Yield a unit for each batch, until a unit stops the epoch. Functions of samples run in ``threads``
        threads."""
        times, clock = self._times, time.perf_counter
        tasks: Tasks = ((read.number, partial(self._unit, read)) for read in reads)
        if threads > 1:
            tasks = self._in_threads(reads, threads)
        with closing(tasks):
            for number, make in tasks:
                begin = clock()
                try:
                    unit = Unit(number, make())
                except StopEpoch as stop:
                    unit = Unit(number, stop.items, stops=True)
                end = clock()
                times.working += end - begin
                yield unit
                times.waiting += clock() - end
                if unit.stops:
                    return

    def _in_threads(self, reads: Iterable[Read], threads: int) -> Tasks:
        from concurrent.futures import ThreadPoolExecutor

        waiting: deque[_Begun] = deque()
        pool = ThreadPoolExecutor(threads, thread_name_prefix="wdscli-stages")
        ahead = 0
        try:
            for read in reads:
                begun = self._begun(read, pool, threads)
                waiting.append(begun)
                ahead += begun.samples
                while waiting and ahead - waiting[0].samples >= LOOKAHEAD_SAMPLES * threads:
                    ahead -= waiting[0].samples
                    yield waiting[0].number, waiting.popleft().make
                if begun.stops:
                    break
            while waiting:
                yield waiting[0].number, waiting.popleft().make
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _begun(self, read: Read, pool: ThreadPoolExecutor, threads: int) -> _Begun:
        sample_count, stops = self._pipeline.given(read.samples), False
        if self._replacing is not None:
            function: Callable[..., list[Any]] = self._replacing.made
            each: list[tuple[Any, ...]] = list(zip(read.positions.tolist(), read.samples))
        else:
            samples, stops = self._kept(read)
            function, each = self._pipeline.each, [(sample,) for sample in samples]
        together = max(1, min(MOST_TOGETHER, len(each) // (LOOKAHEAD_SAMPLES * threads)))
        parts = [each[first : first + together] for first in range(0, len(each), together)]
        results = _results([pool.submit(_several, function, part) for part in parts])
        return _Begun(
            read.number, len(each), partial(self._pipeline.joined, results, sample_count, stops), stops
        )

    def samples(self, blocks: Iterable[tuple[BatchBlock, list[Any]]]) -> Iterator[tuple[range, list[Any]]]:
        """Yield pairs (numbers, items) for a pipeline without a batch stage, until a handler ends the epoch. Each item
        has one number, and there is at least one item. To be fast, the method makes no units."""
        times, clock = self._times, time.perf_counter
        for block, samples in blocks:
            if not self._pipeline.before and {FailedSample, _Dropped}.isdisjoint(map(type, samples)):
                begin = clock()
                if samples:
                    yield block.numbers, samples
                times.waiting += clock() - begin
                continue
            for row, (number, sample) in enumerate(zip(block.numbers, samples)):
                begin = clock()
                try:
                    if self._replacing is not None:
                        items = self._replacing.made(int(block.positions[row]), sample)
                    else:
                        items = [
                            result
                            for kept in self._policy.kept([sample])
                            for result in self._pipeline.each(kept)
                        ]
                except StopEpoch:
                    return
                end = clock()
                times.working += end - begin
                if items:
                    yield range(number, number + 1), items
                times.waiting += clock() - end


def warning_of_gaps(units: Iterator[Unit], batches: EpochBatches) -> Iterator[Unit]:
    """Yield ``units``. With several ranks, warn about the first batch that has no samples on this rank, because other
    ranks may have samples. With ``tail="uneven"`` such batches are allowed, and there is no warning."""
    # The generator may have threads, so it is closed at once and not when Python deletes the object.
    with closing(cast("Generator[Unit, None, None]", units)):
        for unit in units:
            yield unit
            if (
                not unit.items
                and not unit.stops
                and not batches.ended(unit.number + batches.stride)
                and batches.share.world > 1
                and batches.tail != "uneven"
            ):
                warnings.warn(
                    f"batch {unit.number} of rank {batches.share.rank} has no samples left, so ranks may have "
                    'unequal numbers of batches;\nuse where= instead of select(), or on_error="substitute"',
                    stacklevel=2,
                )
                break
        yield from units
