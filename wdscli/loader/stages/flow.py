"""The stages of a dataset, and how samples run through them.

What it is: :class:`Pipeline`, an immutable list of stages, and :class:`Maker`, which makes of what was read what the
stages make of it, in this thread or in several, with the clock beside them. How: stages that take one sample and give
one, or drop it, are plain functions applied one after the other; at most one stage makes batches; functions after it
take batches, or make several things of one (:class:`Spread`). What comes out for the samples of one batch is a
:class:`Unit`, and a unit depends on nothing else, which is what makes a resume exact. Stages that are generators of
their own (``compose``) run over the whole, behind all others. With ``threads`` the functions of single samples run in a
pool, some samples ahead of what is given, and results are taken in order, so that an exception comes out where its
sample would have come. It must not know what is read next, nor who takes what is made.
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

from wdscli.loader.order.source import Spare
from wdscli.loader.place.share import Batches
from wdscli.loader.read.failures import Failed, Policy, Replacing
from wdscli.loader.read.handlers import Guard, StopEpoch
from wdscli.loader.read.reading import Block, Read, Times

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

Function = Callable[[Any], Any]
OverAll = Callable[[Iterator[Any]], Iterable[Any]]
"""A stage over all that comes, such as a generator function."""
Tasks = Generator[tuple[int, Callable[[], list[Any]]], None, None]
"""Numbers of batches, and what makes what comes out for each."""
LOOKAHEAD_SAMPLES = 4
"""Samples that wait or run in the pool, for each of its threads."""
MOST_TOGETHER = 8
"""Samples that a thread takes at once: to hand one over costs as much as to decode a number."""


class _Dropped:
    """What a function gives for a sample that is left out."""

    def __repr__(self) -> str:
        return "DROPPED"

    def __reduce__(self) -> str:
        return "DROPPED"


DROPPED = _Dropped()


class Stage:
    """A function of a sample whose exceptions go to a handler."""

    guard: Guard

    def __init__(self, function: Function) -> None:
        self.apply = function

    def __call__(self, item: Any) -> Any:
        try:
            return self.apply(item)
        except Exception as error:
            self.guard.caught(error, item)
            return DROPPED


class BatchStage(NamedTuple):
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
        if len(items) < given:
            warnings.warn(
                f"batched({self.size}, partial=False): stages in front of it left samples out, and its batches are "
                "smaller; compose(lambda samples: filter(f, samples)) in the place of select(f) keeps them whole",
                stacklevel=2,
            )
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
    batch: BatchStage | None = None
    after: tuple[Function | Spread, ...] = ()
    generators: tuple[OverAll, ...] = ()

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
        batch = self.batch or BatchStage(1, _only)
        return self._replace(batch=batch, after=(*self.after, Spread(function)))

    def through(self, generator: OverAll) -> Pipeline:
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
        return self.joined((_through(self.before, samples),), given)

    def joined(self, parts: Iterable[Iterable[Any]], given: int, stops: bool = False) -> list[Any]:
        """What comes out of parts of what the functions of a sample made of ``given`` samples. Raises StopEpoch with
        what came out, when a handler ends the epoch here or ``stops`` says that one did."""
        try:
            items = _collected(chain.from_iterable(parts))
        except StopEpoch as stop:
            items, stops = stop.items, True
        if self.batch is not None:
            items = self.behind(self.batch.made(items, len(items) if stops else given))
        if stops:
            raise StopEpoch(items)
        return items

    def each(self, sample: Any) -> list[Any]:
        """What the functions of a sample make of one: it, or nothing. Raises what they raise."""
        return list(_through(self.before, (sample,)))

    def behind(self, batches: list[Any]) -> list[Any]:
        """What the stages behind the batch stage make of batches. Raises StopEpoch with what came out."""
        return _collected(_flow(self.after, iter(batches)))

    def names(self) -> list[str]:
        """What the stages are called."""
        batch = [] if self.batch is None else [f"batched({self.batch.size})"]
        return [*map(_name, self.before), *batch, *map(_name, self.after), *map(_name, self.generators)]


def _no_list(self: Pipeline, name: str) -> NoReturn:
    """For code that changes webdataset's list of stages."""
    said = f"pipeline.{name} is not there"
    if hasattr(list, name):
        said = (
            f"pipeline.{name}(): the stages of a dataset are no list here; compose(stage) gives one with another stage "
            "behind them, DataPipeline(first, *stages) one that begins otherwise"
        )
    raise AttributeError(said)


if not TYPE_CHECKING:  # a type checker would take every name for one that is there
    Pipeline.__getattr__ = _no_list


def _name(stage: Any) -> str:
    if isinstance(stage, Spread):
        stage = stage.function
    if isinstance(stage, Stage):
        return stage.guard.stage
    return str(getattr(stage, "__name__", type(stage).__name__.lower()))


class Each:
    """A function, or a spread, of each thing that a generator gives: as a generator."""

    def __init__(self, function: Function | Spread) -> None:
        self._function = function
        self.__name__ = _name(function)

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


class _Begun(NamedTuple):
    """A batch of which ``samples`` are in the pool, for which ``make`` waits; ``stops`` when the epoch ends here."""

    number: int
    samples: int
    make: Callable[[], list[Any]]
    stops: bool


def _several(
    function: Callable[..., list[Any]], each: list[tuple[Any, ...]]
) -> tuple[list[list[Any]], BaseException | None]:
    """What ``function`` makes of each, up to the first that is an error, and that error."""
    done: list[list[Any]] = []
    for arguments in each:
        try:
            done.append(function(*arguments))
        except BaseException as error:  # also StopEpoch, which is no Exception
            return done, error
    return done, None


def _results(futures: Iterable[Future[Any]]) -> Iterator[list[Any]]:
    """What :func:`_several` made, in order. An error comes out where its sample would have come."""
    for future in futures:
        done, error = future.result()
        yield from done
        if error is not None:
            raise error


class Maker:
    """Makes units of what was read of an epoch of ``length`` positions. ``spare`` reads what is taken in the place of
    others, where ``replaces`` says that this may be wanted."""

    def __init__(
        self, pipeline: Pipeline, policy: Policy, spare: Spare, length: int, times: Times, replaces: bool
    ) -> None:
        self._pipeline, self._policy = pipeline, policy
        self._replacing = Replacing(policy, pipeline.each, spare.instead, length) if replaces else None
        self._times = times

    def _unit(self, read: Read) -> list[Any]:
        """What comes out for a batch. Raises what the policy and the stages raise."""
        given = self._pipeline.given(read.samples)
        if self._replacing is None:
            return self._pipeline.unit(self._policy.kept(read.samples), given)
        each = zip(read.positions.tolist(), read.samples)
        return self._pipeline.joined((self._replacing.made(*one) for one in each), given)

    def units(self, reads: Iterable[Read], threads: int = 1) -> Iterator[Unit]:
        """A unit for each batch, up to one that stops; with functions of samples in ``threads`` threads."""
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
                    unit = Unit(number, stop.items, True)
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
        given = self._pipeline.given(read.samples)
        samples: Sequence[Any] = read.samples
        stops = False
        if self._replacing is not None:
            function: Callable[..., list[Any]] = self._replacing.made
            each: list[tuple[Any, ...]] = list(zip(read.positions.tolist(), samples))
        else:
            try:
                samples = self._policy.kept(samples)
            except StopEpoch as stop:
                samples, stops = stop.items, True
            function, each = self._pipeline.each, [(sample,) for sample in samples]
        together = max(1, min(MOST_TOGETHER, len(each) // (LOOKAHEAD_SAMPLES * threads)))
        parts = [each[first : first + together] for first in range(0, len(each), together)]
        results = _results([pool.submit(_several, function, part) for part in parts])
        return _Begun(read.number, len(each), partial(self._pipeline.joined, results, given, stops), stops)

    def samples(self, blocks: Iterable[tuple[Block, list[Any]]]) -> Iterator[tuple[int, Any]]:
        """(number, what the functions of a sample make of it) where there is no batch stage, up to where a handler ends
        the epoch. Without a unit for each sample, this is what makes raw samples quick."""
        times, clock = self._times, time.perf_counter
        for block, found in blocks:
            kinds = set(map(type, found))
            if not self._pipeline.before and Failed not in kinds and kinds <= {dict}:
                begin = clock()
                yield from zip(block.numbers, found)
                times.waiting += clock() - begin
                continue
            for at, (number, sample) in enumerate(zip(block.numbers, found)):
                begin = clock()
                try:
                    if self._replacing is not None:
                        items = self._replacing.made(int(block.positions[at]), sample)
                    else:
                        items = [
                            item for one in self._policy.kept([sample]) for item in self._pipeline.each(one)
                        ]
                except StopEpoch:
                    return
                end = clock()
                times.working += end - begin
                for item in items:
                    yield number, item
                times.waiting += clock() - end


def warning_of_gaps(units: Iterator[Unit], batches: Batches) -> Iterator[Unit]:
    """``units``, with a warning of the first of several ranks' batches of which nothing is left: others may have it.
    With ``tail="uneven"`` they may in any case."""
    # Closed here, when this is, and not when nobody refers to it any more: it may have threads.
    with closing(cast("Generator[Unit, None, None]", units)):
        for unit in units:
            yield unit
            if (
                not unit.items
                and not unit.stops
                and unit.number + 1 < batches.total
                and batches.share.world > 1
                and batches.tail != "uneven"
            ):
                warnings.warn(
                    f"nothing is left of batch {unit.number} of rank {batches.share.rank}, so that ranks may have "
                    'different numbers of batches; where= in the place of select() and on_error="substitute" keep '
                    "them equal, and so does WebLoader(data.repeat()).unbatched().batched(size).with_epoch(n)",
                    stacklevel=2,
                )
                break
        yield from units
