"""What is made of samples that were read: the stages, in this thread or in several, with the clock beside them.

What it is: :class:`Maker`, for one iteration. How: samples that could not be read are dealt with by the policy, then
the pipeline makes a :class:`~wdscli.loader.pipeline.Unit` of each batch. With ``threads`` the functions of single
samples run in a pool, some samples ahead of what is given, and results are taken in order, so that an exception comes
out where its sample would have come. It must not know what is read next, nor who takes what is made.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from wdscli.loader.failures import Failed, Policy
from wdscli.loader.handlers import StopEpoch
from wdscli.loader.meter import Times
from wdscli.loader.pipeline import Pipeline, Unit
from wdscli.loader.reading import Block, Read

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from wdscli.loader.source import EpochReader

LOOKAHEAD = 4
"""Samples that wait or run in the pool, for each of its threads."""


class Maker:
    """Makes units of what ``reader`` read of an epoch of ``length`` positions."""

    def __init__(
        self, pipeline: Pipeline, policy: Policy, reader: EpochReader, length: int, times: Times
    ) -> None:
        self._pipeline, self._policy = pipeline, policy
        self._reader, self._length = reader, length
        self._times = times

    def mended(self, read: Read) -> list[Any]:
        """The samples of a batch that there are. Raises what the policy raises."""
        if Failed not in set(map(type, read.samples)):
            return read.samples
        return list(self._policy.mended(read.samples, read.positions, self._reader, self._length))

    def units(self, reads: Iterable[Read]) -> Iterator[Unit]:
        """A unit for each batch, up to one that stops."""
        times, clock = self._times, time.perf_counter
        for read in reads:
            begin = clock()
            try:
                unit = Unit(read.number, self._pipeline.unit(self.mended(read)))
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

        waiting: deque[tuple[int, list[Future[list[Any]]], bool]] = deque()
        pool = ThreadPoolExecutor(threads, thread_name_prefix="wdscli-stages")
        ahead = 0
        try:
            for read in reads:
                begun = self._begun(read, pool)
                waiting.append(begun)
                ahead += len(begun[1])
                while waiting and ahead - len(waiting[0][1]) >= LOOKAHEAD * threads:
                    ahead -= len(waiting[0][1])
                    yield from self._ended(*waiting.popleft())
                if begun[2]:
                    break
            while waiting:
                yield from self._ended(*waiting.popleft())
        except _Stopped:
            return
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _begun(self, read: Read, pool: ThreadPoolExecutor) -> tuple[int, list[Future[list[Any]]], bool]:
        """(batch, what becomes of its samples, whether the epoch ends here)."""
        stops = False
        try:
            samples = self.mended(read)
        except StopEpoch as stop:
            samples, stops = stop.items, True
        return read.number, [pool.submit(self._pipeline.each, sample) for sample in samples], stops

    def _ended(self, number: int, futures: list[Future[list[Any]]], stops: bool) -> Iterator[Unit]:
        begin = time.perf_counter()
        items: list[Any] = []
        try:
            for future in futures:
                items += future.result()
        except StopEpoch as stop:
            items += stop.items
            stops = True
        try:
            found = self._pipeline.rest(items)
        except StopEpoch as stop:
            found, stops = stop.items, True
        end = time.perf_counter()
        self._times.working += end - begin
        yield Unit(number, found, stops)
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
            items = (
                self._pipeline.each(sample) if type(sample) is not Failed else self._other(block, at, sample)
            )
            end = clock()
            times.working += end - begin
            for item in items:
                yield number, item
            times.waiting += clock() - end

    def _other(self, block: Block, at: int, failed: Failed) -> list[Any]:
        """What comes out for a sample that cannot be read."""
        there = self._policy.mended([failed], block.positions[at : at + 1], self._reader, self._length)
        return [item for sample in there for item in self._pipeline.each(sample)]


class _Stopped(Exception):
    """A unit was the last."""
