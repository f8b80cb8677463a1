"""This module has the dataset that training code iterates. A dataset has a source, stages, and an exact place in an
epoch.

Every stage method of :class:`PositionDataset` returns a new dataset, and nothing is read before iteration. Batch k of
an epoch depends only on the source, the seed and the epoch, so a state is a few numbers. Then the dataset is exact: its
batches are the same for any numbers of ranks and workers, and a state fits any such numbers. Streams, generators and
some ways of dividing samples are not exact. :class:`ProcessDataset` is the base of all datasets that a process
iterates, whatever engine yields their items; it has the number of the epoch. This module does not know how bytes are
read."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import chain, islice
from time import perf_counter
from typing import Any, ClassVar, TypeAlias, TypeVar

from wdscli.arrays import I64, numpy
from wdscli.errors import InputError, UsageError
from wdscli.loader.checks import want_size, want_whole, want_word
from wdscli.loader.order.source import Keys, OrderOfProcess, PositionSource, Spare, ValueFact
from wdscli.loader.place.cuts import Cut, EqualSizes
from wdscli.loader.place.iteration import Iteration, IterationState
from wdscli.loader.place.planned import Plans
from wdscli.loader.place.ranks import (
    EXACT,
    TAILS,
    EpochBatches,
    Fill,
    Share,
    Split,
    Splitter,
    Tail,
    TorchIterable,
    find_rank,
    find_worker,
    in_worker,
    is_dealt_out,
    launched_rank,
    warn_of_batches_of_batches,
    warn_of_peers,
)
from wdscli.loader.place.state import ANY, Place, check_fits, of_loader, regrouped
from wdscli.loader.read.failures import (
    Handler,
    OnError,
    Policy,
    SkipCounts,
    reraise_exception,
    warning_of_drops,
    warning_of_losses,
)
from wdscli.loader.read.fetch import METER
from wdscli.loader.read.reading import PREFETCH, Agenda, Read, Times, by_batch, read_blocks
from wdscli.loader.stages.flow import Item, Unit, UnitMaker, warning_of_gaps
from wdscli.loader.stages.fluent import Fluent
from wdscli.loader.stages.generators import through, want_own_order
from wdscli.loader.streams import PlainStream

Whole = TypeVar("Whole", bound="ProcessDataset")
Self = TypeVar("Self", bound="PositionDataset")
Tally: TypeAlias = tuple[list[tuple[str, str, int]], dict[str, Any]]
"""The rows of skipped samples (:meth:`SkipCounts.rows`), and the seconds that the process spent on each kind of
work."""


class ProcessDataset(TorchIterable[Item], Fluent[Item]):
    """A dataset that each process iterates separately, epoch after epoch."""

    _state: IterationState
    _epochs: ClassVar[Any]
    """The ``__iter__`` of the engine. A user's subclass may replace ``__iter__``, but not this attribute."""
    _dealt = False
    """Whether accelerate or transformers divides the samples of this process among the ranks."""

    def _with(self: Whole, **changes: Any) -> Whole:
        return super()._with(**{"_state": self._state.copy(), **changes})

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        return self._state.start.epoch

    def set_epoch(self, epoch: int) -> None:
        """Begin epoch ``epoch`` with the next iteration, or resume at the place of a loaded state of this epoch.
        DataLoader workers, also persistent workers, begin the same epoch."""
        epoch = want_whole("epoch", epoch, 0)
        start = self._state.start
        self._state.move(start if start.epoch == epoch else Place(epoch))
        self._dealt = self._dealt or is_dealt_out()

    @property
    def is_exact(self) -> bool:
        """Whether batches are the same for any numbers of ranks and workers, and a state fits any such numbers."""
        return self.why_not_exact is None

    @property
    def why_not_exact(self) -> str | None:
        """The reason why the dataset is not exact, or None."""
        return "its stages run as plain generators in each worker, and have no exact position"

    def iterator1(self) -> Iterator[Any]:
        """Yield one epoch. A subclass with its own ``__iter__`` or ``iterator`` calls this method, as in webdataset.
        The next call begins the next epoch, even if the caller stops before the end of this epoch."""
        epoch = self.epoch
        try:
            yield from self._with(_state=self._state)._with_span(None)._epochs()
        finally:
            if self.epoch == epoch and not in_worker():
                self.set_epoch(epoch + 1)


class PositionDataset(ProcessDataset[Item]):
    """A dataset that yields batches and can resume at any batch. ``source`` has the samples."""

    _policy: Policy
    _sender: tuple[int, int] | None = None
    """Rank and world size of the process that pickled this copy, if they were known."""
    _split: Split = EXACT
    """How ranks and workers divide the samples among themselves."""
    _empty_check = False
    """Whether an epoch without samples is an error."""

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
        # A subclass without a source adds its stages later by append().
        self.source = PlainStream() if source is None else source
        self._rank, self._world = rank, world_size
        self._tail = tail
        self._batch_size = None if batch_size is None else want_whole("batch_size", batch_size, 1)
        self._state = IterationState()
        self._prefetch, self._threads = want_size("prefetch", prefetch), want_whole("threads", threads, 1)
        self._counts, self._times = SkipCounts(), Times()
        self._policy = Policy(on_error, self._counts, handler)

    def __repr__(self) -> str:
        stages = ", ".join(self.pipeline.names())
        return f"<{type(self).__name__} of {self.source.facts}{stages and ': ' + stages}>"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sender": launched_rank()}

    @property
    def why_not_exact(self) -> str | None:
        """The reason why the dataset is not exact, or None."""
        split, has_generator = self._split, bool(self.pipeline.generators)
        reasons = {
            f"the class {type(self).__name__} has its own __iter__": self._has_own_iter,
            "a stage is a generator, which gets only the samples of one worker": has_generator,
            "some shards are streamed, so whole shards are divided among ranks and workers": self.is_stream,
            "each process draws samples in its own order: resampled=True without splitters": split.apart,
            "nodesplitter=None gives all samples to every rank": not split.by_node,
            "workersplitter=None gives all samples to every worker": not split.by_worker,
            "with_epoch(n) counts the items of each worker; with_epoch(batches=n) does not": self._by_worker,
        }
        return next((reason for reason, applies in reasons.items() if applies), None)

    def _share(self) -> Share:
        """Return the share of the samples that this process reads."""
        return self._split.share(self._process())

    def _process(self) -> Share:
        """Return the rank and the worker number of this process."""
        # A spawned worker does not know its rank, so it uses the rank of the process that started it.
        self._dealt = self._dealt or (self._rank is None and is_dealt_out())
        sender = self._sender if self._rank is None and in_worker() else None
        if self._rank is None and self._split.by_node and not in_worker():
            warn_of_peers()
        rank, world = (0, 1) if self._dealt else sender or find_rank(self._rank, self._world)
        return Share(rank, world, *find_worker())

    def _of_rank(self: Self) -> Self:
        """Return a copy with a fixed rank, for a process that cannot find its own rank."""
        share = self._share()
        return self._with(_rank=share.rank, _world=share.world)

    def _splitting(self: Self, splitter: Splitter) -> Self:
        name = splitter.__name__
        if name == "non_empty":
            return self._with(_empty_check=True)
        return self._with(_split=self._split.also(name))

    @property
    def _together(self) -> int:
        """The batch size of the DataLoader that iterates this dataset, for a dataset without a batch stage."""
        return self._batch_size or 1

    @property
    def _by_worker(self) -> bool:
        """Whether an epoch is longer with more workers."""
        return any(cut.by_worker for cut in self._cuts)

    @property
    def tail(self) -> Tail:
        """How an epoch treats an incomplete last global batch. With ``partial=False`` the batch is dropped or
        padded."""
        batch, tail = self.pipeline.batch, self._tail or "even"
        return tail if batch is None or batch.partial or tail == "pad" else "drop"

    def _of_workers(self: Self, workers: int) -> Self:
        """Return the dataset for a known number of workers per rank. It is a copy only if each worker counts its own
        epoch, so that :meth:`set_epoch` and :meth:`load_state_dict` of the dataset also reach its WebLoader."""
        if not self._by_worker:
            return self
        return self._with(_cuts=tuple(cut.resolved(workers) for cut in self._cuts))

    def _in_samples(self: Self) -> Self:
        """Return a copy that has as many samples in an epoch even if a batch stage is added later."""
        if self._span is None or self.pipeline.batch is not None:
            return self
        return self._with_span(self._span._replace(samples=True))

    def _check_samples(self) -> None:
        """Raise InputError before an iteration if the dataset has no samples and ``empty_check`` is set."""
        if self._empty_check and not self._batches().length:
            self._raise_empty()

    @staticmethod
    def _raise_empty() -> None:
        hint = "`wds ls --summary` shows what is in it; empty_check=False allows this"
        raise InputError("no samples in this dataset", hint=hint)

    @property
    def _all_counts(self) -> list[SkipCounts]:
        """The counters of skipped samples."""
        return [self._counts]

    def _losses(self) -> SkipCounts:
        """Return the counts of all skipped samples."""
        counts = SkipCounts()
        for one in self._all_counts:
            counts.merge(one.rows())
        return counts

    def _take_tally(self) -> Tally:
        """Return the counts of skipped samples and the times, and set them to zero."""
        rows = self._losses().rows()
        for one in self._all_counts:
            one.clear()
        return rows, self._times.take()

    def _add_tally(self, tally: Tally) -> None:
        """Add to this dataset the counts and times that :meth:`_take_tally` of a copy returned in another process."""
        self._counts.merge(tally[0])
        self._times.add(tally[1])

    def _viewed_source(self, share: Share) -> PositionSource:
        """Return the source after the stages that choose positions, such as slices and epochs of another length."""
        if self._plans is not None and self.pipeline.spreads and any(cut.counts_items for cut in self._cuts):
            raise UsageError(
                f"slice() and with_epoch() cannot count the samples of {self._plans.name}",
                hint="call them before unbatched() and unlisted(), or use with_epoch(samples=n)",
            )
        return self._sizes.cut(self._base(share), self._source_cuts, share, self.tail)

    @property
    def _source_cuts(self) -> tuple[Cut, ...]:
        """The cuts of the source. A length of an epoch that counts the items of a generator is no cut of the source."""
        span = self._span
        if span is None or span.samples or not self.pipeline.generators:
            return self._cuts
        return (*self._cuts[:-1], span._replace(is_later=True))

    @property
    def _sizes(self) -> EqualSizes | Plans:
        """What decides which samples are in a batch."""
        batch = self.pipeline.batch
        if batch is None:
            return EqualSizes(self._together, 1)
        return batch.plans or EqualSizes(batch.size, 1 if self.pipeline.spreads else batch.size)

    def _base(self, share: Share) -> PositionSource:
        """Return the source of an iteration with the numbers of ranks and workers in ``share``."""
        return self._apart(self.source)

    def _prepare(self, values: ValueFact) -> None:
        self._base(self._share()).prepare(values)

    def _apart(self, source: PositionSource) -> PositionSource:
        """Return ``source``, in this process's own order if processes have different orders."""
        number, orders = self._split.order(self._process())
        return source if orders == 1 else OrderOfProcess(source, number, orders)

    def _batches(
        self, source: PositionSource | None = None, epoch: int | None = None, share: Share | None = None
    ) -> EpochBatches:
        share = share or self._share()
        source = source or self._viewed_source(share)
        epoch = self.epoch if epoch is None else epoch
        return self._sizes.batches(source, self._source_cuts, epoch, share, self.tail)

    def __iter__(self) -> Iterator[Item]:
        """Yield the items from the current place to the end of the epoch. If an iteration stops early, the next
        iteration starts at the same place again. After a finished iteration, the next one yields the next epoch.
        Workers of a plain DataLoader always begin the next epoch. ``state_dict()`` describes the latest iteration."""
        self._check_samples()
        share = self._share()
        start = self._state.next_start()
        if share.workers > 1 and start.worker is None:
            worker = share.worker, share.workers
            start = start._replace(
                batch=start.batch + share.worker * self._sizes.stride(share), worker=worker
            )
        if in_worker() and (share.worker, start.epoch) == (0, 0):
            self._warn_of_lone_samples(share)
        if self.pipeline.batch is not None and not self.pipeline.spreads and not self.pipeline.generators:
            warn_of_batches_of_batches()
        iteration = self._state.begin(start, self._topology(share), self._by_worker)
        items = self._replayed if self.pipeline.generators else self._exact
        found = iteration.until(items(iteration, share), self._length)
        return warning_of_losses(found, share.worker, self._losses) if in_worker() else found

    _epochs = __iter__

    def _warn_of_lone_samples(self, share: Share) -> None:
        """Warn, in a worker, if the DataLoader would make one incomplete last batch for each worker."""
        makes_samples = self.pipeline.batch is None and not self.pipeline.generators and not self.is_stream
        if share.workers > 1 and makes_samples and self._batch_size is None and not self._cuts:
            warnings.warn(
                "the last batch of each worker is smaller; WebDataset(..., batch_size=n) prevents this,\n"
                "and batch_size=1 only silences this warning",
                stacklevel=2,
            )

    @property
    def _has_own_iter(self) -> bool:
        """Whether a subclass defines its own ``__iter__``."""
        return type(self).__iter__ is not PositionDataset.__iter__

    def _exact(self, iteration: Iteration, share: Share) -> Iterator[Any]:
        """Yield the items of a pipeline without generators. The state is updated after each item."""
        start, batches = iteration.start, self._batches(None, iteration.start.epoch, share)
        if self._is_single and not start.item:
            samples = warning_of_drops(self._singles(start, share), self._losses)
            yield from iteration.of_samples(samples, share.workers, batches.of_rank)
        else:
            step = share.workers * batches.stride
            units = warning_of_drops(self._units(start, share), self._losses)
            yield from iteration.of_units(units, step, batches.ended)

    def _topology(self, share: Share) -> tuple[int, int] | None:
        """Return the numbers of ranks and workers for which a place is valid, or None if any numbers are valid."""
        if self.is_stream or self.pipeline.generators:
            return share.world, share.workers
        return (ANY, share.workers) if self._by_worker else None

    def _replayed(self, iteration: Iteration, share: Share) -> Iterator[Any]:
        """Yield the items of a pipeline with generators. How many samples a generator has read is unknown, so the state
        counts the items that were yielded. To resume, the epoch begins again, and this many items are skipped."""
        start = iteration.start
        parts: Iterator[Any] = self._singles(start, share) if self._is_single else self._units(start, share)
        produced = chain.from_iterable(items for _, items, *_ in warning_of_drops(parts, self._losses))
        last = None if self._span is None else self._span.of_worker(share)
        items = islice(through(self.pipeline.generators, produced, start.epoch), last)
        yield from iteration.until(iteration.of_items(items), last)

    def _units(self, start: Place, share: Share) -> Iterator[Unit]:
        """Yield the unit of each batch of this worker from ``start`` on. Stages that are generators run later."""
        with self._opened_epoch(start, share) as (maker, batches, found):
            reads: Iterator[Read] = found if self.is_stream else by_batch(found)
            if self._plans is not None:
                reads = self._filled(reads, batches, self._plans.name)
            units = maker.units(reads, self._threads if self.pipeline.before else 1)
            yield from units if self.is_stream else warning_of_gaps(units, batches)

    def _filled(self, reads: Iterator[Read], batches: EpochBatches, stage: str) -> Iterator[Read]:
        """Yield the reads of planned batches. Count how full the batches are, and the samples that were too long."""
        for read in reads:
            fill = batches.fill(read.number)
            if fill is not None:
                *sums, left_out = fill
                self._times.add(dict(zip(Fill._fields, sums)))
                for (shard, reason), number in left_out.items():
                    self._counts.add(shard, f"{stage}: {reason}", number)
            yield read

    def _streamed(self, batches: EpochBatches, start: Place) -> Generator[Read, None, None]:
        """Yield the samples of each batch of a stream from ``start`` on, for this worker. Batch n of a rank comes from
        worker n modulo ``workers``. A worker takes the next samples of its own shards, until its shards end."""
        source: Any = self.source
        share = batches.share._replace(worker=start.batch % batches.share.workers)
        if share.world > 1 and batches.is_endless:
            warnings.warn(
                "in a stream, ranks may see different numbers of batches; with_epoch(n) makes the numbers equal",
                stacklevel=2,
            )
        workers, size = share.workers, batches.typical
        passes = 1 if self._span is None else self._span.passes
        order, orders = self._split.order(self._process())
        skipped = start.batch // workers * size
        nowhere: I64 = numpy.empty(0, dtype=numpy.int64)
        epoch = start.epoch * orders + order
        with closing(source.flow(epoch, passes, share, self._policy)) as flow:
            deque(islice(flow, skipped), maxlen=0)
            for number in batches.numbers(start.batch):
                begin, moved = perf_counter(), METER.bytes
                samples = list(islice(flow, size))
                self._times.reading += perf_counter() - begin
                self._times.samples += len(samples)
                self._times.bytes += METER.bytes - moved
                is_first = number < workers and not self._policy.has_stopped
                if not samples and is_first and self._empty_check and source.has_shards(epoch, share):
                    self._raise_empty()
                if not samples:
                    return
                yield Read(number, nowhere, samples)

    def _singles(self, start: Place, share: Share) -> Iterator[tuple[range, list[Any]]]:
        """Yield pairs (numbers, items) for the samples of a dataset without a batch stage."""
        with self._opened_epoch(start, share) as (maker, _, blocks):
            yield from maker.samples(blocks)

    @property
    def _is_single(self) -> bool:
        """Whether single samples can be yielded without making units from batches."""
        alone = self.pipeline.batch is None and self._together == 1
        return alone and not self.is_stream and (self._threads == 1 or not self.pipeline.before)

    @contextmanager
    def _opened_epoch(
        self, start: Place, share: Share
    ) -> Iterator[tuple[UnitMaker, EpochBatches, Generator[Any, None, None]]]:
        """Open the epoch from ``start`` on. The context has three values: the maker of units, the batches, and an
        iterator of blocks of samples (of batches for a stream)."""
        source = self._viewed_source(share)
        batches, spare = self._batches(source, start.epoch, share), Spare(source, start.epoch)
        replaces = self._replaces and not self.is_stream
        maker = UnitMaker(self.pipeline, self._policy, spare, batches.length, self._times, replaces)
        with ExitStack() as stack:
            stack.callback(spare.close)
            if self.is_stream:
                found: Generator[Any, None, None] = self._streamed(batches, start)
            else:
                reader = stack.enter_context(closing(source.reader(batches.source_epoch)))
                agenda = Agenda(batches, batches.numbers(start.batch))
                found = read_blocks(reader, agenda, self._times, self._prefetch)
            yield maker, batches, stack.enter_context(closing(found))

    def __len__(self) -> int:
        """Return the number that ``with_length`` has set, or else the number of batches of one rank in an epoch.
        Without a batch stage, return the number of samples. If each worker counts its own epoch, return the number of
        one worker. Raises TypeError for an endless or unknown length."""
        if self._length is not None:
            return self._length
        batches = self._batches(share=self._share()._replace(worker=0))
        if self.pipeline.generators or self.pipeline.spreads or batches.is_endless:
            raise TypeError("the length of this dataset is unknown; call with_length(n) to set it")
        self._sizes.warn_of_length(batches)
        last = batches.of_rank - 1
        if self.pipeline.batch is not None or last < 0:
            return last + 1
        return last * self._together + len(batches.positions(last))

    @property
    def _plans(self) -> Plans | None:
        """The plans of batches with different sizes, or None if all batches have the same size."""
        return None if self.pipeline.batch is None else self.pipeline.batch.plans

    def _identity(self, source: PositionSource, share: Share) -> dict[str, Any]:
        """Return the facts that must be the same in a saved state and in this dataset."""
        return {**source.identity(), **self._sizes.identity(self._source_cuts, share)}

    def keys(self, epoch: int, batch: int) -> list[str]:
        """Return the keys of the samples in batch ``batch`` of this rank (the first is 0), also of samples that stages
        drop, without reading payloads. Planned batches are counted from the epoch's beginning or a loaded state: about
        15 ms for 65,536 samples. Raises UsageError if there is no such batch, and for streams and generators."""
        source, batches = self._counted(epoch)
        number = batches.number_of(epoch, batch)
        with closing(source.reader(batches.source_epoch)) as reader:
            return list(reader.about(batches.positions(number), Keys()))

    def find(self, key: str, epoch: int) -> tuple[int, int]:
        """Return (batch, rank) of the first place of the sample with this key in an epoch, without reading payloads. If
        several samples have the key, look for only one of them. Raises KeyError if no batch has the sample, and
        UsageError for streams and generators."""
        source, batches = self._counted(epoch)
        searched = batches.searched
        with closing(source.reader(batches.source_epoch)) as reader:
            while (position := reader.find(key, searched)) is not None:
                if (place := batches.find(position)) is not None:
                    return place
                searched = searched[position + 1 - searched.start :]
        raise KeyError(f"epoch {epoch} has no sample {key}")

    def seek(self, epoch: int, batch: int) -> None:
        """Begin the next iteration at batch ``batch`` of this rank in epoch ``epoch``, also in workers. Both count from
        0. A running iteration does not change. Raises UsageError if the epoch has no such batch, and for streams and
        generators."""
        _, batches = self._counted(epoch)
        self._want_same_length("seek")
        self._state.move(Place(epoch, batches.number_of(epoch, batch)))

    def skip(self, batches: int) -> None:
        """Leave out the next ``batches`` batches of each rank: the next iteration begins after them. They are counted
        from the place of :meth:`state_dict`, also beyond the end of an epoch; the rest of a batch whose items are split
        counts as a batch. A running iteration does not change. Raises UsageError for streams and generators, and if
        only the workers of a DataLoader know the place."""
        left = want_whole("batches", batches, 0)
        self._want_same_length("skip")
        self._want_known("skip() of a WebLoader, or seek(epoch, batch)")
        place = self._state.place
        _, epoch_batches = self._counted(place.epoch)
        while left and epoch_batches.ended(place.batch + (left - 1) * epoch_batches.stride):
            left -= max(0, epoch_batches.of_rank - place.batch // epoch_batches.stride)
            place = Place(place.epoch + 1)
            _, epoch_batches = self._counted(place.epoch)
            if epoch_batches.ended(0):
                raise UsageError(f"skip({batches}): epoch {place.epoch} has no batches")
        if left:
            place = Place(place.epoch, place.batch + left * epoch_batches.stride)
        self._state.move(Place(place.epoch + 1) if epoch_batches.ended(place.batch) else place)

    def _want_same_length(self, method: str) -> None:
        """Raise UsageError if an epoch is longer with more workers, because their number is unknown here."""
        if self._by_worker:
            raise UsageError(
                f"{method}() cannot count the batches, because each worker counts its own epoch",
                hint="with_epoch(batches=n) instead of with_epoch(n)",
            )

    def _counted(self, epoch: int) -> tuple[PositionSource, EpochBatches]:
        """Return the source and the batches of this rank in an epoch. Raises UsageError for streams and generators."""
        if self.is_stream or self.pipeline.generators:
            raise UsageError("the samples of streams and generators are unknown before they are read")
        share = self._share()
        source = self._viewed_source(share)
        return source, self._batches(source, want_whole("epoch", epoch, 0), share)

    def stats(self) -> dict[str, Any]:
        """Return statistics of this process and of WebLoader's workers. ``dropped`` has the skipped samples by shard
        and reason; ``samples`` and ``bytes`` count what was read. ``requests`` (to remote stores), ``bytes_received``,
        ``retries`` and ``stalls`` (requests that waited 10 seconds for a byte) count for all datasets of the process
        together. ``seconds_reading`` is the time of waiting for bytes. ``seconds_working`` is the time in stages such
        as decode. ``seconds_waiting`` is the time of waiting for the consumer."""
        return {"dropped": self._losses().by_shard(), **self._times.shown()}

    def state_dict(self, *, batches: int | None = None) -> dict[str, Any]:
        """Return a state: the exact place in the epoch, as plain values. A state is smaller than 1 KB, and the same on
        every rank.

        If a plain DataLoader with workers iterates this dataset, the dataset does not see the batches. Then pass
        ``batches``, the number of batches that the DataLoader has yielded since the iteration began. If the dataset
        notices that workers iterate it, a call without this number is an error. At the beginning of an epoch, after
        :meth:`set_epoch`, the number is not needed. Raises UsageError."""
        self._want_places()
        if batches is not None:
            return self._state_of(self._place_after(batches))
        self._want_known("state_dict() of a WebLoader or StatefulDataLoader, or state_dict(batches=n)")
        return self._state_of(self._state.place)

    def _want_known(self, instead: str) -> None:
        """Raise UsageError if only the workers of a DataLoader know the place; ``instead`` is what knows it."""
        if not in_worker() and not self._state.is_known:
            why = "position unknown: it is kept in the DataLoader's workers"
            raise UsageError(why, hint=f"use {instead}")

    def _state_of(self, place: Place) -> dict[str, Any]:
        """Return the state that describes ``place`` in this dataset."""
        self._want_places()
        share = self._share()
        source = self._viewed_source(share)
        batches = self._batches(source, place.epoch)
        state = place.to_state(self._identity(source, share), batches.whole)
        mark = batches.mark(place.batch)
        return state if mark is None else {**state, "mark": mark}

    def _want_places(self) -> None:
        """Raise UsageError if a stage or the source has no exact places."""
        want_own_order(self.pipeline.generators)
        self._viewed_source(self._share()).identity()

    def _place_after(self, batches: int) -> Place:
        """Return the place after this many batches from the start of the iteration."""
        if self.is_stream:
            raise UsageError(
                "state_dict(batches=) cannot save the position in a stream",
                hint="StatefulDataLoader saves the state of its workers",
            )
        start, workers = self._state.begun
        share = self._share()._replace(workers=workers)
        batches_of = self._batches(share=share, epoch=start.epoch)
        end = start.batch + batches * batches_of.stride
        if start.item or self.pipeline.generators or self.pipeline.spreads:
            raise UsageError(
                "state_dict(batches=) cannot find the position: a stage makes several items from one item",
                hint="use state_dict() of a WebLoader or StatefulDataLoader",
            )
        if batches < 0 or (batches and batches_of.ended(end - batches_of.stride)):
            left = batches_of.of_rank - start.batch // batches_of.stride
            raise UsageError(f"state_dict(batches={batches}): the epoch has only {left} batches left")
        if not self._split.by_worker and share.workers > 1:
            raise UsageError(
                "state_dict(batches=) cannot find the position, because every worker yields all batches",
                hint="use state_dict() of a WebLoader or StatefulDataLoader",
            )
        place = Place(start.epoch + 1) if batches_of.ended(end) else start._replace(batch=end)
        return place._replace(topology=self._topology(share))

    def load_state_dict(self, state: dict[str, Any], *, force: bool = False) -> None:
        """Resume at the place in ``state``, with any numbers of ranks and workers. A StatefulDataLoader's state of this
        dataset is accepted too. Unless ``force`` is set, raises UsageError if the state belongs to another set, order
        or global batch size."""
        self._want_places()
        state = of_loader(state)
        share = self._share()
        source = self._viewed_source(share)
        if self.pipeline.batch is None and self._together == 1 and not self._cuts:
            state = dict(regrouped(state, share.world))
        place = Place.of_state(state)
        if not force:
            check_fits(state, self._identity(source, share), self._batches(source).whole, share.world)
            self._sizes.note(source, self._source_cuts, place.epoch, share, state.get("mark"))
        mine = None if share.workers == 1 else (share.worker, share.workers)
        if place.worker not in (None, mine):
            raise UsageError(
                "the state is from worker {} of {} of a DataLoader".format(*place.worker or ()),
                hint="StatefulDataLoader resumes only with the same number of workers, WebLoader with any number",
            )
        self._state.move(place)
