"""What is made of samples that were read: the stages, in this thread or in several, with the clock beside them.

What it is: :class:`Maker`, for one iteration. How: samples that could not be read are dealt with by the policy, then
the pipeline makes a :class:`~wdscli.loader.stages.recipe.Unit` of each batch. With ``threads`` the functions of single
samples run in a pool, some samples ahead of what is given, and results are taken in order, so that an exception comes
out where its sample would have come. It must not know what is read next, nor who takes what is made.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from wdscli.loader.read.failures import Failed, Policy, Replacing
from wdscli.loader.read.reading import Block, Read, Times
from wdscli.loader.read.source import Spare
from wdscli.loader.stages.policy import StopEpoch
from wdscli.loader.stages.recipe import Pipeline, Unit

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

LOOKAHEAD = 4
"""Samples that wait or run in the pool, for each of its threads."""


class _Begun(NamedTuple):
    """A batch whose samples are in the pool: what becomes of them, how many were ``given``, whether the epoch ends
    here."""

    number: int
    futures: list[Future[list[Any]]]
    given: int
    stops: bool = False


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
        items: list[Any] = []
        try:
            for position, sample in zip(read.positions.tolist(), read.samples):
                items += self._replacing.made(position, sample)
        except StopEpoch as stop:
            items += stop.items
            raise StopEpoch(self._pipeline.rest(items, len(items))) from stop
        return self._pipeline.rest(items, given)

    def units(self, reads: Iterable[Read]) -> Iterator[Unit]:
        """A unit for each batch, up to one that stops."""
        times, clock = self._times, time.perf_counter
        for read in reads:
            begin = clock()
            try:
                unit = Unit(read.number, self._unit(read))
            except StopEpoch as stop:
                unit = Unit(read.number, stop.items, True)
            end = clock()
            times.working += end - begin
            yield unit
            times.waiting += clock() - end
            if unit.stops:
                return

    def threaded(self, reads: Iterable[Read], threads: int) -> Iterator[Unit]:
        """The same, with functions of samples in ``threads`` threads."""
        from concurrent.futures import ThreadPoolExecutor

        waiting: deque[_Begun] = deque()
        pool = ThreadPoolExecutor(threads, thread_name_prefix="wdscli-stages")
        ahead = 0
        try:
            for read in reads:
                begun = self._begun(read, pool)
                waiting.append(begun)
                ahead += len(begun.futures)
                while waiting and ahead - len(waiting[0].futures) >= LOOKAHEAD * threads:
                    ahead -= len(waiting[0].futures)
                    yield from self._ended(waiting.popleft())
                if begun.stops:
                    break
            while waiting:
                yield from self._ended(waiting.popleft())
        except _Stopped:
            return
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _begun(self, read: Read, pool: ThreadPoolExecutor) -> _Begun:
        given = self._pipeline.given(read.samples)
        if self._replacing is not None:
            made = self._replacing.made
            each = zip(read.positions.tolist(), read.samples)
            return _Begun(read.number, [pool.submit(made, *one) for one in each], given)
        stops = False
        try:
            samples = self._policy.kept(read.samples)
        except StopEpoch as stop:
            samples, stops = stop.items, True
        futures = [pool.submit(self._pipeline.each, sample) for sample in samples]
        return _Begun(read.number, futures, given, stops)

    def _ended(self, begun: _Begun) -> Iterator[Unit]:
        begin, stops = time.perf_counter(), begun.stops
        items: list[Any] = []
        try:
            for future in begun.futures:
                items += future.result()
        except StopEpoch as stop:
            items += stop.items
            stops = True
        try:
            found = self._pipeline.rest(items, len(items) if stops else begun.given)
        except StopEpoch as stop:
            found, stops = stop.items, True
        end = time.perf_counter()
        self._times.working += end - begin
        yield Unit(begun.number, found, stops)
        self._times.waiting += time.perf_counter() - end
        if stops:
            raise _Stopped

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
            try:
                yield from self._one_by_one(block, found)
            except StopEpoch:
                return

    def _one_by_one(self, block: Block, found: list[Any]) -> Iterator[tuple[int, Any]]:
        times, clock = self._times, time.perf_counter
        for at, (number, sample) in enumerate(zip(block.numbers, found)):
            begin = clock()
            if self._replacing is not None:
                items = self._replacing.made(int(block.positions[at]), sample)
            else:
                items = [item for one in self._policy.kept([sample]) for item in self._pipeline.each(one)]
            end = clock()
            times.working += end - begin
            for item in items:
                yield number, item
            times.waiting += clock() - end


class _Stopped(Exception):
    """A unit was the last."""
