"""What training code iterates: a source, stages, and an exact place in an epoch.

What it is: :class:`PositionDataset`. How: every stage method returns a new dataset; nothing is read before iteration.
Batch k of an epoch is a pure function of the source, the seed and the epoch, so the whole state is a few numbers. It
must not know how bytes are had.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import chain, islice
from time import perf_counter
from typing import Any, TypeAlias, TypeVar, cast

from wdscli.arrays import I64, numpy
from wdscli.errors import InputError, UsageError
from wdscli.loader.checks import want_size, want_whole, want_word
from wdscli.loader.hosts import is_dealt_out
from wdscli.loader.order.order import ENDLESS
from wdscli.loader.order.views import Apart, BatchSlice, Span, Viewed
from wdscli.loader.place.ranks import Share, TorchIterable, find_rank, find_worker, in_worker, launched_rank
from wdscli.loader.place.share import TAILS, Batches, Tail
from wdscli.loader.place.splitters import EXACT, Split
from wdscli.loader.place.standing import Cursor, Standing
from wdscli.loader.place.state import ANY, Place, check_fits, check_topology, of_loader, regrouped
from wdscli.loader.read.failures import OnError, Policy
from wdscli.loader.read.fetch import METER
from wdscli.loader.read.reading import PREFETCH, Agenda, Read, Times, by_batch, read_blocks
from wdscli.loader.read.source import PositionSource, Spare
from wdscli.loader.sample_types import Item
from wdscli.loader.stages.flow import Maker, Unit, warning_of_gaps
from wdscli.loader.stages.fluent import Fluent
from wdscli.loader.stages.generators import through, want_no_dice
from wdscli.loader.stages.handlers import Handler, StopEpoch, reraise_exception
from wdscli.loader.stats import Counts, warning_of_losses

Self = TypeVar("Self", bound="PositionDataset")
Tally: TypeAlias = tuple[list[tuple[str, str, int]], dict[str, Any]]
"""What was left out, as :meth:`Counts.rows` tells it, and where the time went."""


class PositionDataset(TorchIterable, Fluent[Item]):
    """What can be iterated batch by batch and gone on with at any of them. ``source`` gives the samples."""

    _policy: Policy
    _told: tuple[int, int] | None = None
    """Rank and world size of the process that made this copy, when they were known."""
    _dealt = False
    """Whether accelerate or transformers deals out what this gives."""
    _split: Split = EXACT
    """Who shares the samples."""
    _empty_check = False
    """Whether an epoch without samples is an error."""
    _trail: list[int] | None = None
    """How far a stream was read: rank, worker, epoch, the next batch, shards to their end, samples in those."""

    def __init__(
        self,
        source: PositionSource | None = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        tail: Tail | None = None,
        on_error: OnError = "raise",
        handler: Handler = reraise_exception,
        prefetch: str | int = PREFETCH,
        threads: int = 1,
        batch_size: int | None = None,
    ) -> None:
        if tail is not None:
            want_word("tail", tail, TAILS)
        if rank is not None or world_size is not None:
            rank, world_size = find_rank(rank, world_size)
        if source is None:  # a class that says by append() what it gives
            from wdscli.loader.streams import PlainStream

            source = cast(PositionSource, PlainStream())
        self.source = source
        self._rank, self._world = rank, world_size
        self._tail = tail
        self._batch_size = None if batch_size is None else want_whole("batch_size", batch_size, 1)
        self._standing = Standing()
        self._prefetch, self._threads = want_size("prefetch", prefetch), want_whole("threads", threads, 1)
        self._counts, self._times = Counts(), Times()
        self._policy = Policy(on_error, self._counts, handler)

    def __repr__(self) -> str:
        stages = ", ".join(self.pipeline.names())
        return f"<{type(self).__name__} of {', '.join(_facts(self.source))}{stages and ': ' + stages}>"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_told": launched_rank()}

    def _with(self: Self, **changes: Any) -> Self:
        return super()._with(**{"_standing": self._standing.copy(), **changes})

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration is of."""
        return self._standing.start.epoch

    def set_epoch(self, epoch: int) -> None:
        """Begin epoch ``epoch`` with the next iteration, or go on in it at a state that was loaded. Workers hear of it,
        also those that stay alive."""
        epoch = want_whole("epoch", epoch, 0)
        self._dealt = self._dealt or is_dealt_out()
        start = self._standing.start
        self._standing.move(start if start.epoch == epoch else Place(epoch))

    def _share(self) -> Share:
        """Whose part this process makes."""
        return self._split.share(self._whose())

    def _whose(self) -> Share:
        """Which rank and worker this process is."""
        # A worker that was spawned knows no rank: what the process that started it said is what counts.
        self._dealt = self._dealt or (self._rank is None and is_dealt_out())
        told = self._told if self._rank is None and self._told is not None and in_worker() else None
        rank, world = (0, 1) if self._dealt else told or find_rank(self._rank, self._world)
        return Share(rank, world, *find_worker())

    def _of_rank(self: Self) -> Self:
        """The same for a process that cannot find its rank by itself."""
        share = self._share()
        return self._with(_rank=share.rank, _world=share.world)

    def _splitting(self: Self, name: str) -> Self:
        """The same behind webdataset's splitter of this name."""
        return (
            self._with(_empty_check=True)
            if name == "non_empty"
            else self._with(_split=self._split.also(name))
        )

    @property
    def _ranks(self) -> tuple[int | None, int | None]:
        """Rank and world size as they were given."""
        return self._rank, self._world

    @property
    def _together(self) -> int:
        """Samples that a DataLoader puts together, where there is no batch stage."""
        return self._batch_size or 1

    @property
    def _by_worker(self) -> bool:
        """Whether an epoch is longer with more workers."""
        return self._span is not None and self._span.by_worker

    @property
    def tail(self) -> Tail:
        """How the last global batch ends. Without ``partial`` one that is not whole is left out, unless it is filled
        up."""
        batch, tail = self.pipeline.batch, self._tail or "even"
        return tail if batch is None or batch.partial or tail == "pad" else "drop"

    def _of_workers(self: Self, workers: int) -> Self:
        """The same where it is known how many workers each rank has."""
        return self if self._span is None else self._with(_span=self._span.resolved(workers))

    def _in_samples(self: Self) -> Self:
        """The same, of an epoch that stays as long whatever is batched from now on."""
        if self._span is None or self.pipeline.batch is not None:
            return self
        return self._with(_span=self._span._replace(samples=True))

    def _beginning_at(self: Self, place: Place) -> Self:
        """The same, beginning elsewhere."""
        return self._with(_standing=Standing(place))

    def _check_samples(self) -> None:
        """Called before an iteration: raises InputError when there are no samples and that is an error."""
        if self._empty_check and not self._batches().length:
            self._raise_empty()

    @staticmethod
    def _raise_empty() -> None:
        hint = "`wds ls --summary` shows what is in it; empty_check=False makes that no error"
        raise InputError("no samples in this dataset", hint=hint)

    def _total(self, epoch: int) -> int:
        """Batches of an epoch, the same on every rank."""
        return self._batches(None, epoch).total

    @property
    def _all_counts(self) -> list[Counts]:
        """Where it is counted what is left out."""
        return [self._counts]

    def _losses(self) -> Counts:
        """What was counted as left out."""
        counts = Counts()
        for one in self._all_counts:
            counts.merge(one.rows())
        return counts

    def _take(self) -> Tally:
        """What was counted as left out and where the time went, which is not counted any more."""
        rows = self._losses().rows()
        for one in self._all_counts:
            one.clear()
        return rows, self._times.take()

    def _add(self, tally: Tally) -> None:
        """What :meth:`_take` of a copy in another process gave."""
        self._counts.merge(tally[0])
        self._times.add(tally[1])

    def _line(self, share: Share) -> PositionSource:
        """The source as the stages that choose positions leave it: slices, and epochs of another length."""
        size = 1 if self.pipeline.batch is None else self.pipeline.batch.size
        source = self._base(share)
        for view, of_batches in self._views:
            whole = BatchSlice(view, size * share.world, self.tail == "drop")
            source = Viewed(source, whole if of_batches else view)
        if self._span is None:
            return source
        cut = None
        if self._span.samples or not self.pipeline.generators:
            cut = self._span.positions(share, 1 if self.pipeline.spreads else size)
        return Span(source, self._span.passes, cut, self._span.told())

    def _base(self, share: Share) -> PositionSource:
        """The source of an iteration of so many ranks and workers."""
        return self._apart(self.source)

    def _apart(self, source: PositionSource) -> PositionSource:
        """``source`` in the order that this process has of those that it may have."""
        number, orders = self._split.order(self._whose())
        return source if orders == 1 else Apart(source, number, orders)

    def _batches(
        self,
        source: PositionSource | None = None,
        epoch: int | None = None,
        share: Share | None = None,
    ) -> Batches:
        share = share or self._share()
        size = self._together if self.pipeline.batch is None else self.pipeline.batch.size
        length = (source or self._line(share)).length(self.epoch if epoch is None else epoch)
        return Batches(length, size, share, self.tail)

    def __iter__(self) -> Iterator[Item]:
        """What comes out from here to the end of the epoch. An iteration that is left early and begun again begins
        where it began before; behind one that came to its end the next epoch is next. What the workers of a plain
        DataLoader begin is of the next epoch in any case. A state is of the latest one."""
        self._check_samples()
        share = self._share()
        start = self._standing.begins()
        if share.workers > 1 and start.worker is None:
            start = start._replace(batch=start.batch + share.worker, worker=(share.worker, share.workers))
        if in_worker() and (share.worker, start.epoch) == (0, 0):
            self._warn_of_lone_samples(share)
        iteration = self._standing.begin(start)
        items = self._replayed if self.pipeline.generators else self._exact
        found = self._until_last(items(start, share, iteration), self._length, start, iteration)
        return warning_of_losses(found, share.worker, self._losses) if in_worker() else found

    _epochs: Any = __iter__

    def _warn_of_lone_samples(self, share: Share) -> None:
        """Warn, in a worker, where batches that a DataLoader makes would be smaller at the end of each worker."""
        makes_samples = self.pipeline.batch is None and not self.pipeline.generators and not self.is_stream
        if share.workers > 1 and makes_samples and self._batch_size is None and self._span is None:
            warnings.warn(
                f"DataLoader(batch_size=n, num_workers={share.workers}) ends the epoch with a smaller batch of each "
                "worker; WebDataset(..., batch_size=n) keeps batches whole, batch_size=1 silences this",
                stacklevel=2,
            )

    def iterator1(self: Self) -> Iterator[Any]:
        """One epoch, for classes whose own ``__iter__`` or ``iterator`` asks for it, as webdataset's do. The next is
        the next epoch, also where this one is left early."""
        epoch = self.epoch
        try:
            yield from PositionDataset._epochs(self._with(_span=None, _standing=self._standing))
        finally:
            if self.epoch == epoch and not in_worker():
                self.set_epoch(epoch + 1)

    @property
    def _has_own_iter(self) -> bool:
        """Whether a subclass gives something else than its stages."""
        return type(self).__iter__ is not PositionDataset._epochs

    def _exact(self, start: Place, share: Share, iteration: int) -> Iterator[Any]:
        """The state follows what was given."""
        standing = self._standing
        topology = self._topology(share)
        check_topology(start, topology)
        start = start._replace(topology=topology)
        if self._is_single and not start.item:
            cursor = Cursor(start, share.workers)
            standing.follow(iteration, cursor)
            last = self._given(start.epoch) - share.workers
            for number, item in self._singles(start, share):
                cursor.number = number
                if number >= last:
                    standing.over(iteration, start.epoch)
                yield item
            self._finish(iteration, cursor.place)
            return
        yield from self._followed(self._units(start, share), start, share.workers, iteration)

    def _topology(self, share: Share) -> tuple[int, int] | None:
        """Ranks and workers that a place is of, None when it is of any number of both."""
        if self.is_stream or self.pipeline.generators:
            return share.world, share.workers
        return (ANY, share.workers) if self._by_worker else None

    def _followed(self, units: Iterable[Any], start: Place, step: int, iteration: int) -> Iterator[Any]:
        """What is in ``units``, every ``step``-th of an epoch from ``start`` on; the place is behind what was given.
        Who has the last thing has had the epoch, whether more is asked for or not."""
        place, end = start, self._given(start.epoch)
        for unit in units:
            number, items = unit.number, unit.items
            behind = start._replace(batch=number + step, item=0)
            begin = start.item if number == start.batch else 0
            for at in range(begin, len(items)):
                place = behind if at + 1 == len(items) else start._replace(batch=number, item=at + 1)
                self._standing.at(iteration, place)
                if place.batch >= end:
                    self._standing.over(iteration, start.epoch)
                yield items[at]
            place = behind
            self._standing.at(iteration, place)
        self._finish(iteration, place)

    def _until_last(
        self, items: Iterator[Any], last: int | None, start: Place, iteration: int
    ) -> Iterator[Any]:
        """``items`` of an epoch that is said to have ``last``: who has so many has had it."""
        if last is None or start.batch or start.worker is not None:
            return items
        return self._ending(items, last, start, iteration)

    def _ending(self, items: Iterator[Any], last: int, start: Place, iteration: int) -> Iterator[Any]:
        for number, item in enumerate(items, start.item + 1):
            if number == last:
                self._standing.over(iteration, start.epoch)
            yield item

    def _finish(self, iteration: int, place: Place) -> None:
        """The next epoch is next. A worker is at the end of this one until then, for other workers may not be."""
        following = Place(place.epoch + 1)
        topology = place.topology if self._by_worker else None
        told = following._replace(topology=topology) if place.worker is None else place
        self._standing.finish(iteration, following, told)

    def _replayed(self, start: Place, share: Share, iteration: int) -> Iterator[Any]:
        """What generators make of it. Nobody knows how far they have read, so the state counts what came out of them,
        and to go on is to begin again and leave out as many."""
        topology = self._topology(share)
        check_topology(start, topology)
        items: Iterator[Any]
        if self._is_single:
            items = (item for _, item in self._singles(start, share))
        else:
            items = chain.from_iterable(unit.items for unit in self._units(start, share))
        items = through(self.pipeline.generators, items, start.epoch)
        last = None if self._span is None else self._span.of_worker(share)
        items = islice(items, last)
        items = self._behind(items, start._replace(topology=topology), iteration)
        yield from self._until_last(items, last, start, iteration)

    def _behind(self, items: Iterable[Any], start: Place, iteration: int) -> Iterator[Any]:
        """Those of ``items`` that a place has not counted yet; the place counts them."""
        place = start
        with suppress(StopEpoch):
            for item in islice(items, start.item, None):
                place = place._replace(item=place.item + 1)
                self._standing.at(iteration, place)
                yield item
        self._finish(iteration, place)

    def _units(self, start: Place, share: Share) -> Iterator[Unit]:
        """What comes out for each batch from ``start`` on, for this worker, before any generators."""
        with self._making(start, share) as (maker, batches, found):
            if self.is_stream:
                yield from maker.units(found, self._stage_threads)
            else:
                yield from warning_of_gaps(maker.units(by_batch(found), self._stage_threads), batches)

    def _streamed(self, batches: Batches, start: Place) -> Generator[Read, None, None]:
        """The samples of each batch of a stream from ``start`` on, for this worker. Batch n of a rank is made by worker
        n modulo its workers, of the next samples that are dealt to that worker; a worker whose samples are used up
        makes no more."""
        source: Any = self.source
        share = batches.share._replace(worker=start.batch % batches.share.workers)
        if share.world > 1 and batches.length >= ENDLESS:
            warnings.warn(
                "ranks may see different numbers of batches of shards that are read from front to back; "
                "with_epoch(n) makes them equal",
                stacklevel=2,
            )
        workers, size = share.workers, batches.batch
        passes = 1 if self._span is None else self._span.passes
        who = [share.rank, share.worker, start.epoch]
        trail = source.trail(self._trail, [*who, start.batch])
        order, orders = self._split.order(self._whose())
        skipped = start.batch // workers * size - trail.before
        nowhere: I64 = numpy.empty(0, dtype=numpy.int64)
        epoch = start.epoch * orders + order
        with closing(source.flow(epoch, passes, share, self._policy, trail)) as flow:
            deque(islice(flow, skipped), maxlen=0)
            for number in range(start.batch, batches.total, workers):
                begin, moved = perf_counter(), METER.bytes
                samples = list(islice(flow, size))
                self._times.reading += perf_counter() - begin
                self._times.samples += len(samples)
                self._times.bytes += METER.bytes - moved
                if not samples and self._empty_check and trail.shards and not trail.samples:
                    self._raise_empty()
                if not samples:
                    return
                self._trail = [*who, number + workers, trail.shards, trail.before]
                yield Read(number, nowhere, samples)

    @property
    def _replaces(self) -> bool:
        """Whether samples may be taken in the place of others."""
        return self._policy.on_error == "substitute"

    @property
    def _stage_threads(self) -> int:
        return self._threads if self.pipeline.before else 1

    def _singles(self, start: Place, share: Share) -> Iterator[tuple[int, Any]]:
        """What :meth:`units` makes where there is no batch stage: (number, what comes out)."""
        with self._making(start, share) as (maker, _, blocks):
            yield from maker.samples(blocks)

    @property
    def _is_single(self) -> bool:
        """Whether units need not be made, because samples do."""
        alone = self.pipeline.batch is None and self._together == 1
        return alone and not self.is_stream and self._stage_threads == 1

    @contextmanager
    def _making(
        self, start: Place, share: Share
    ) -> Iterator[tuple[Maker, Batches, Generator[Any, None, None]]]:
        """What makes something of samples, of which batches, and the blocks of them that are read from ``start`` on, or
        the batches of a stream."""
        line = self._line(share)
        batches, spare = self._batches(line, start.epoch), Spare(line, start.epoch)
        replaces = self._replaces and not self.is_stream
        maker = Maker(self.pipeline, self._policy, spare, batches.length, self._times, replaces)
        with ExitStack() as stack:
            stack.callback(spare.close)
            if self.is_stream:
                found: Generator[Any, None, None] = self._streamed(batches, start)
            else:
                reader = stack.enter_context(closing(line.reader(start.epoch)))
                numbers = range(start.batch, batches.total, batches.share.workers)
                found = read_blocks(reader, Agenda(batches, numbers), self._times, self._prefetch)
            yield maker, batches, stack.enter_context(closing(found))

    def __len__(self) -> int:
        """Batches (or samples, when there is no batch stage) that one rank sees in an epoch, or what ``with_length``
        says; of epochs that are counted in each worker those of one. Raises TypeError when there is no end or the
        length is not known."""
        if self._length is not None:
            return self._length
        share = self._share()._replace(worker=0)
        batches = self._batches(share=share)
        if self.pipeline.generators or self.pipeline.spreads or batches.length >= ENDLESS:
            raise TypeError("the length of this dataset is not known; with_length(n) would say one")
        if self.pipeline.batch is not None:
            return self._given(self.epoch, share)
        total = batches.total
        return max(0, total - 1) * self._together + (len(batches.positions(total - 1)) if total else 0)

    def _given(self, epoch: int, share: Share | None = None) -> int:
        """Batches of an epoch, without the last where this rank gives nothing for it."""
        batches = self._batches(None, epoch, share)
        total = batches.total
        if not total or batches.length >= ENDLESS:
            return total
        return total - (not len(batches.positions(total - 1)))

    def stats(self) -> dict[str, Any]:
        """What happened so far in this process, and in workers that tell it, as WebLoader's do: ``dropped``, what was
        left out, by shard and reason; ``samples`` and ``bytes`` that were read; ``requests`` made of other machines,
        ``bytes_received`` from there, ``retries`` among these requests and ``stalls``, requests that waited 10 seconds
        for a byte, for whichever dataset; ``seconds_reading`` in waiting for bytes, ``seconds_working`` in stages such
        as decode, ``seconds_waiting`` for whoever takes what comes out."""
        return {"dropped": self._losses().by_shard(), **self._times.shown()}

    def state_dict(self, *, batches: int | None = None) -> dict[str, Any]:
        """Where this is: plain values under 1 KB, the same on every rank, fresh ones at every call.

        ``batches`` is for those who count what a plain DataLoader with workers gave them since the iteration began:
        nobody tells this dataset. Without it that is an error where it can be noticed; at the beginning of an epoch,
        behind :meth:`set_epoch`, every state is exact.
        """
        self._want_places()
        place = self._standing.place
        if batches is not None:
            place = self._place_behind(batches)
        elif not in_worker() and not self._standing.is_known:
            raise UsageError(
                "where this dataset is, only the workers of a DataLoader know",
                hint="use WebLoader or StatefulDataLoader and ask them, or say state_dict(batches=n) with the batches "
                "that came since the iteration began; right behind set_epoch() every state is exact",
            )
        return self._state_of(place)

    def _state_of(self, place: Place) -> dict[str, Any]:
        """The state of a place of this dataset."""
        self._want_places()
        line = self._line(self._share())
        state = place.to_state(line.identity(), self._batches(line).whole)
        if self._trail is not None and self._trail[2:4] == [place.epoch, place.batch] and not place.item:
            state["trail"] = list(self._trail)
        return state

    def _want_places(self) -> None:
        """Raise UsageError where there are no places at all."""
        want_no_dice(self.pipeline.generators)
        self._line(self._share()).identity()

    def _place_behind(self, batches: int) -> Place:
        """The place behind so many batches from the beginning of the iteration."""
        if self.is_stream:
            raise UsageError(
                "batches do not say where a stream is", hint="StatefulDataLoader asks its workers"
            )
        start, share = self._standing.begun, self._share()._replace(workers=self._standing.crew)
        left = self._batches(share=share).total - start.batch
        if start.item or self.pipeline.generators or self.pipeline.spreads:
            raise UsageError("batches do not say where this is: stages make several things of one")
        if not 0 <= batches <= left:
            raise UsageError(f"{batches} batches of an epoch that has {left} left")
        if not self._split.by_worker and share.workers > 1:
            raise UsageError("batches do not say where this is: every worker gives all of them")
        place = Place(start.epoch + 1) if batches == left else start._replace(batch=start.batch + batches)
        return place._replace(topology=self._topology(share))

    def load_state_dict(self, state: dict[str, Any], *, force: bool = False) -> None:
        """Go on at a state, with any number of ranks and workers; that of a StatefulDataLoader around this dataset will
        do. Raises UsageError, by name, for the state of another set, order or global batch, which ``force``
        overrides."""
        self._want_places()
        state = of_loader(state)
        share = self._share()
        line = self._line(share)
        if self.pipeline.batch is None and self._together == 1 and self._span is None:
            state = dict(regrouped(state, share.world))
        place = Place.of_state(state)
        if not force:
            check_fits(state, line.identity(), self._batches(line).whole, share.world)
        mine = None if share.workers == 1 else (share.worker, share.workers)
        if place.worker not in (None, mine):
            raise UsageError(
                "the state is of worker {} of {} of a DataLoader".format(*place.worker or ()),
                hint="StatefulDataLoader goes on with as many workers as before; WebLoader with any number",
            )
        self._standing.move(place)
        self._trail = state.get("trail")


def _facts(source: Any) -> list[str]:
    """What is said of a source to who prints a dataset: shards, samples, order."""
    while hasattr(source, "source"):
        source = source.source
    catalog = getattr(source, "catalog", None)
    if facts := getattr(source, "facts", ""):
        return [str(facts)]
    if getattr(source, "splitters", ()):
        return [f"{len(source.addresses):,} shards split by functions, without an exact place"]
    if catalog is None:
        return ["a stream" if getattr(source, "is_stream", False) else "several sets"]
    total = "" if catalog.total is None else f", {catalog.total:,} samples"
    identity = source.identity()
    return [
        f"{len(catalog.addresses):,} shards{total}",
        *(f"{name}={identity[name]!r}" for name in ("shuffle", "seed") if name in identity),
    ]
