"""This module has a set of indexed shards as a source of positions, and reads a source in blocks and ahead.

:class:`IndexedSource` has samples by position: :class:`~wdscli.loader.order.order.EpochOrder` maps positions to samples
of shards, and a :class:`~wdscli.loader.read.fetch.Pool` reads them. With ``shuffle="blocks"``, :class:`_BlocksReader`
fetches the samples of a block together.

:func:`read_blocks` reads the batches of an iteration. All positions of an epoch are known before anything is read. So
the samples of many small batches are read together, in blocks of about 16 MiB, which are large enough for several
threads to copy large samples. If reads wait, :class:`ReadAheadThread` reads the blocks in a thread. Blocks of remote
shards are read ahead from the beginning. Blocks of local shards are read ahead after some reads took more time to wait
for the disc than to work. A budget of bytes limits the samples that wait for the consumer. If the thread gets an
exception, the consumer gets it when it requests those samples. :class:`Times` reads the clock a few times for each
block and each batch, never for a single sample. This module does not know ranks, workers or stages.
"""

from __future__ import annotations

import os
import sys
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, chain, islice
from math import inf
from threading import Condition, Thread
from typing import TYPE_CHECKING, Any, NamedTuple

from wdscli.arrays import I64, numpy
from wdscli.errors import DataError, StorageError, UsageError
from wdscli.loader.checks import want_whole, want_word
from wdscli.loader.order.order import CAP, LANES, ORDERS, EpochOrder, Shuffle, groups
from wdscli.loader.order.source import EpochReader, Fact, PositionSource
from wdscli.loader.read.catalog import ORDER_BLOCK_BYTES, Catalog
from wdscli.loader.read.failures import FailedSample, read_each
from wdscli.loader.read.fetch import METER, Raw
from wdscli.loader.read.renamed import pool_of
from wdscli.storage import is_local
from wdscli.storage.retry import network, take_traffic
from wdscli.threads import PATIENCE_SECONDS, end

if TYPE_CHECKING:
    from wdscli.loader.place.ranks import EpochBatches

BLOCK_BYTES = 16 << 20
"""The approximate payload bytes that are read together. A block has at least one batch."""
BLOCK_SAMPLES = 1024
"""The largest number of samples that are read together. A block has at least one batch."""
REMOTE_SAMPLES = 1 << 16
"""The largest number of samples that are read together from remote shards. Among more samples, more are neighbours,
which need only one request."""
FIRST_SAMPLES = 64
"""The number of samples in the first block, when the size of samples is unknown."""
SLOW_SECONDS = 0.001
"""The shortest wait of a slow block."""
SLOW_BLOCKS = 2
"""After this number of consecutive slow blocks, a thread reads ahead."""
PREFETCH = "256MB"
"""The default budget: the payload bytes that a process may read ahead of the consumer."""
BLOCKS_AHEAD = 8
"""The number of blocks that fill the budget."""
SHUFFLED_BLOCKS_AHEAD = 2
"""The number of blocks that fill the budget for remote shards, if neighbouring positions are in different shards."""
MOST_NOTED = 1 << 19
"""The approximate largest number of positions that a reader notes before it reads them."""


class Read(NamedTuple):
    """The samples of batch ``number``, which are at ``positions`` of the epoch."""

    number: int
    positions: I64
    samples: list[Any]


class BatchBlock(NamedTuple):
    """Some batches that are read together: their ``numbers``, the ``positions`` of all their samples, and the number of
    samples in each batch (``counts``)."""

    numbers: range
    positions: I64
    counts: list[int]


class Times:
    """Counts the times and the amounts of iterations. ``reading`` is the seconds of waiting for bytes, ``working`` the
    seconds in stages, and ``waiting`` the seconds of waiting for the consumer. ``samples`` and ``bytes`` count what was
    read. ``used``, ``cells``, ``room``, ``shortened`` and ``cut_off`` are sums over planned batches
    (:class:`~wdscli.loader.place.ranks.Fill`).
    ``requests`` to remote stores and ``received`` bytes count for all datasets of this process together.

    >>> times = Times()
    >>> times.reading += 1.5
    >>> times.add({"reading": 0.5, "samples": 3})
    >>> times.shown()["seconds_reading"], times.samples
    (2.0, 3)
    """

    def __init__(self) -> None:
        self.reading = self.working = self.waiting = 0.0
        self.samples = self.bytes = 0
        self.used = self.cells = self.room = self.cut_off = 0.0
        self.shortened = 0
        self.requests = self.received = self.sent = self.retries = self.stalls = 0

    def add(self, times: dict[str, Any]) -> None:
        """Add the numbers that :meth:`take` of another object returned."""
        for name, value in times.items():
            vars(self)[name] += value

    def take(self) -> dict[str, Any]:
        """Return all numbers in a dict, and set them to zero."""
        self.add(take_traffic()._asdict())
        totals = dict(self.__dict__)
        Times.__init__(self)
        return totals

    def shown(self) -> dict[str, Any]:
        """Return the numbers under the names that ``stats()`` has: ``samples``, ``bytes``, ``requests``,
        ``bytes_received``, ``retries``, ``stalls`` and ``seconds_*``."""
        self.add(take_traffic()._asdict())
        planned: dict[str, Any] = {}
        if self.cells:
            planned = {"fill": self.cells / self.room, "padding": 1 - self.used / self.cells}
            planned |= {"truncated": self.shortened, "truncated_length": self.cut_off}
        return {
            **planned,
            "samples": self.samples,
            "bytes": self.bytes,
            "requests": self.requests,
            "bytes_received": self.received,
            "retries": self.retries,
            "stalls": self.stalls,
            "seconds_reading": self.reading,
            "seconds_working": self.working,
            "seconds_waiting": self.waiting,
        }


class Watch:
    """Measures how long this thread works and waits from the creation of the object on."""

    def __init__(self) -> None:
        self._before = _usage()
        self._begin = time.perf_counter()

    @cached_property
    def seconds(self) -> float:
        """The seconds from the creation of the object to the first use of this attribute."""
        return time.perf_counter() - self._begin

    @property
    def has_waited(self) -> bool:
        """Whether the thread waited longer than it worked, for example for a disc. Waiting for a processor that other
        processes use does not count."""
        before, after = self._before, _usage()
        if before is None:
            return False
        worked = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        asleep, pushed = after.ru_nvcsw - before.ru_nvcsw, after.ru_nivcsw - before.ru_nivcsw
        return bool(self.seconds - worked > max(SLOW_SECONDS, worked) and asleep > pushed)


def _usage() -> Any:
    """Return the resource usage of this thread, or None if the system does not report it for single threads."""
    import resource

    thread = getattr(resource, "RUSAGE_THREAD", None)
    return None if thread is None else resource.getrusage(thread)


class Agenda:
    """Divides batches into blocks. :attr:`samples` is the approximate number of samples in the next block."""

    def __init__(self, batches: EpochBatches, numbers: range) -> None:
        self._batches, self._numbers = batches, numbers
        self._at = self._bytes = self._read = 0
        self.samples = FIRST_SAMPLES

    def next(self) -> BatchBlock | None:
        """Return the next block, or None after the last block."""
        if self._at >= len(self._numbers):
            return None
        together = max(1, self.samples // self._batches.typical)
        numbers = self._numbers[self._at : self._at + together]
        self._at += together
        positions, counts = self._batches.several(numbers)
        # For planned batches, the end of the epoch is unknown until this call.
        return BatchBlock(numbers[: len(counts)], positions, counts) if counts else None

    def learn(
        self, samples: int, size_bytes: int, block_bytes: int = BLOCK_BYTES, most: int = BLOCK_SAMPLES
    ) -> None:
        """Note the bytes of samples that were read. Then the next block gets about ``block_bytes`` bytes, and at most
        ``most`` samples."""
        self._read += samples
        self._bytes += size_bytes
        wanted = block_bytes * self._read // max(1, self._bytes)
        # The size grows in steps, because the first samples may be smaller than the others.
        self.samples = max(1, min(most, wanted, 4 * self.samples))


def read_blocks(
    reader: EpochReader, agenda: Agenda, times: Times, budget: int
) -> Generator[tuple[BatchBlock, list[Any]], None, None]:
    """Yield pairs (block, samples) in order. ``budget`` is the number of bytes to read ahead, 0 for none. The caller
    closes this generator before ``reader``."""
    slow = SLOW_BLOCKS if reader.waits else 0
    while not budget or slow < SLOW_BLOCKS:
        block = agenda.next()
        if block is None:
            return
        watch, moved = Watch(), METER.bytes
        samples = reader.read(block.positions)
        times.reading += watch.seconds
        times.bytes += METER.bytes - moved
        times.samples += len(samples)
        agenda.learn(len(samples), METER.bytes - moved)
        slow = slow + 1 if watch.has_waited else 0
        yield block, samples
        del samples
    with ReadAheadThread(reader, agenda, budget, times) as ahead:
        yield from ahead


class ReadAheadThread:
    """A thread reads the blocks of ``agenda`` with ``reader``, at most about ``budget`` bytes ahead of the consumer.
    The end of the ``with`` block stops the thread and waits for its end, so that the thread does not read from closed
    files. If the shards are remote, the block waits only some seconds, because readers of remote shards can be closed
    while the thread runs."""

    def __init__(self, reader: EpochReader, agenda: Agenda, budget: int, times: Times) -> None:
        self._reader, self._agenda = reader, agenda
        self._budget, self._times = budget, times
        self._ready: deque[tuple[BatchBlock | None, Any, int, int]] = deque()
        """Blocks, each with its samples, their size, and the bytes that were read for it, including bytes for later
        blocks. The last item has no block; it may have an exception in place of samples."""
        self._held = 0
        """The bytes of blocks that were read and not yet consumed."""
        self._largest = 0
        self._changed = Condition()
        self._stopped = False
        self._process = os.getpid()
        self._thread = Thread(target=self._run, name="wdscli-ahead", daemon=True)

    def __enter__(self) -> ReadAheadThread:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        # In a forked process there is no thread, and at the interpreter's end the thread does not run. Waiting for the
        # thread would never end.
        if sys.is_finalizing() or self._process != os.getpid():
            return
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        end([self._thread], PATIENCE_SECONDS if self._reader.waits else inf)

    def __iter__(self) -> Iterator[tuple[BatchBlock, list[Any]]]:
        """Yield pairs (block, samples). Raises the reader's errors, and UsageError in a forked process."""
        while True:
            if self._process != os.getpid():
                raise UsageError(
                    "an iteration cannot continue in a forked process",
                    hint="begin a new iteration in the forked process",
                )
            begin = time.perf_counter()
            with self._changed:
                self._changed.wait_for(lambda: self._ready)
                block, samples, size_bytes, moved = self._ready.popleft()
            self._times.reading += time.perf_counter() - begin
            if isinstance(samples, BaseException):
                raise samples
            if block is None:
                return
            self._times.bytes += moved
            self._times.samples += len(samples)
            yield block, samples
            del samples
            with self._changed:
                self._held -= size_bytes
                self._changed.notify_all()

    def _run(self) -> None:
        try:
            self._read_on()
        except BaseException as error:  # the consumer raises it
            self._put(None, error)

    def _read_on(self) -> None:
        most = REMOTE_SAMPLES if self._reader.waits else BLOCK_SAMPLES
        block_bytes = max(1, self._budget // (SHUFFLED_BLOCKS_AHEAD if self._reader.jumps else BLOCKS_AHEAD))
        each = self._reader.sample_bytes
        if each:
            self._agenda.samples = max(1, min(most, int(block_bytes / each)))
        coming = deque(self._noted(0))
        while self._has_room():
            if not coming:
                self._put(None, None)
                return
            coming.extend(self._noted(sum(len(noted.positions) for noted in coming)))
            block, before = coming.popleft(), METER.bytes
            samples = self._reader.read(block.positions)
            moved = METER.bytes - before
            if not each:
                self._agenda.learn(len(samples), moved, block_bytes, most)
            self._put(block, samples, int(each * len(samples)) or moved, moved)

    def _noted(self, count: int) -> Iterator[BatchBlock]:
        """Announce the next block to the reader and yield the block. Announce and yield further blocks while the reader
        wants more. ``count`` is the number of positions that were announced before and not yet read."""
        while block := self._agenda.next():
            self._reader.expect(block.positions)
            yield block
            count += len(block.positions)
            if count >= MOST_NOTED or not self._reader.wants_more:
                return

    def _put(self, block: BatchBlock | None, samples: Any, size_bytes: int = 0, moved: int = 0) -> None:
        with self._changed:
            self._ready.append((block, samples, size_bytes, moved))
            self._held += size_bytes
            self._largest = max(self._largest, size_bytes)
            self._changed.notify_all()

    def _has_room(self) -> bool:
        """Wait until the budget has space for a block. Return False if the iteration was stopped."""
        with self._changed:
            while not self._stopped and self._held + self._largest > self._budget and self._held:
                self._changed.wait()
            return not self._stopped


def by_batch(blocks: Iterable[tuple[BatchBlock, list[Any]]]) -> Iterator[Read]:
    """Divide blocks into batches, and yield the samples of each batch."""
    for block, samples in blocks:
        if len(block.numbers) == 1:
            yield Read(block.numbers[0], block.positions, samples)
            continue
        unread = iter(samples)
        del samples
        first = 0
        for number, count in zip(block.numbers, block.counts):
            yield Read(number, block.positions[first : first + count], list(islice(unread, count)))
            first += count


class IndexedSource(PositionSource):
    """A set of indexed shards as a source: the index says where each sample is."""

    def __init__(
        self,
        catalog: Catalog,
        *,
        seed: int = 0,
        shuffle: Shuffle = "window",
        window: int = 64,
        fields: Sequence[str] | None = None,
    ) -> None:
        want_word("shuffle", shuffle, ORDERS)
        window = want_whole("window", window, 1, hint="the shards or blocks that are mixed at a time")
        self.catalog = catalog
        self.fields = fields
        self.seed = want_whole("seed", seed)
        self.is_shuffled = shuffle in ("window", "blocks", "full")
        total = "" if catalog.total is None else f", {catalog.total:,} samples"
        self.facts = f"{len(catalog.addresses):,} shards{total}, shuffle={shuffle!r}, seed={self.seed!r}"
        self.shuffle, self.window = shuffle, window
        if shuffle == "blocks" and catalog.is_indexed:
            catalog.block_samples  # noqa: B018 - workers have no manifest, and get the numbers

    def identity(self) -> dict[str, Any]:
        how: dict[str, Any] = {"shuffle": self.shuffle}
        if self.shuffle in ("window", "blocks"):
            how |= {"window": self.window, "lanes": LANES}
            how |= {"cap": CAP} if self.shuffle == "window" else {"block": ORDER_BLOCK_BYTES}
        return {"fingerprint": self.catalog.fingerprint, "seed": self.seed, **how}

    def shuffled(self, seed: int) -> IndexedSource:
        """Return a source of the same samples with ``shuffle="window"``."""
        return IndexedSource(self.catalog, seed=seed, window=self.window, fields=self.fields)

    def length(self, epoch: int) -> int:
        return self.catalog.total or 0

    def reader(self, epoch: int) -> EpochReader:
        return (_BlocksReader if self.shuffle == "blocks" else _EpochReader)(self, epoch)

    def prepare(self, fact: Fact) -> None:
        fact.prepare(self.catalog)

    def order(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch."""
        counts = self.catalog.counts
        assert counts is not None
        block = self.catalog.block_samples if self.shuffle == "blocks" else None
        how: dict[str, Any] = {"shuffle": self.shuffle, "window": self.window, "block": block}
        return EpochOrder(counts, seed=self.seed, epoch=epoch, **how)


class _EpochReader(EpochReader):
    def __init__(self, source: IndexedSource, epoch: int) -> None:
        self._catalog, self._order = source.catalog, source.order(epoch)
        self.waits = not all(map(is_local, self._catalog.addresses))
        in_blocks = source.shuffle == "blocks"
        self._is_announced = self.waits or source.is_shuffled
        self.jumps = self.waits and source.is_shuffled and not in_blocks
        self._pool = pool_of(self._catalog, source.fields, reads_gaps=not in_blocks, reads_all=True)
        self._is_closed = False

    def read(self, positions: I64) -> list[Raw | FailedSample]:
        shards, samples = self._order.locate(positions)
        return self._fetched(shards, self._catalog.places(shards, samples))

    def _fetched(self, shards: I64, places: I64) -> list[Raw | FailedSample]:
        try:
            return list(self._pool.fetch(shards, places))
        except (DataError, StorageError):
            if self._is_closed:  # the consumer has stopped the iteration
                raise
            return read_each(self._catalog, self._pool, shards, places)

    def about(self, positions: I64, fact: Fact) -> Any:
        shards, samples = self._order.locate(positions)
        return fact(self._catalog, shards, self._catalog.places(shards, samples))

    def find(self, key: str, searched: range) -> int | None:
        location = self._catalog.find(key)
        if location is None:
            return None
        shard, place = location
        kept = self._catalog.kept(shard)
        sample = place if kept is None else int(kept.searchsorted(place))
        if kept is not None and (sample == len(kept) or kept[sample] != place):
            return None
        position = self._order.find(shard, sample)
        return position if position in searched else None

    def expect(self, positions: I64) -> None:
        if self._is_announced:
            shards, samples = self._order.locate(positions)
            self._pool.expect(shards, self._catalog.places(shards, samples))

    def close(self) -> None:
        self._is_closed = True
        self._pool.close()


class _BlocksReader(_EpochReader):
    """Reads an epoch with ``shuffle="blocks"``. All noted samples of an order block are fetched together and held until
    they are read. Following blocks are fetched too, as long as at most about ``window`` blocks are held."""

    def __init__(self, source: IndexedSource, epoch: int) -> None:
        super().__init__(source, epoch)
        self._window, self._block_samples = source.window, self._order.total / max(1, self._order.blocks)
        parts = self._catalog.counts / self._catalog.block_samples
        self.sample_bytes = ORDER_BLOCK_BYTES * float(parts.sum()) / max(1, self._order.total)
        block_bytes = max(1, self.sample_bytes * self._block_samples)
        self._ahead = max(1, int(network().read_ahead_bytes / 2 / block_bytes))
        """The blocks of a remote set that are requested while one is read."""
        self._coming: dict[int, list[NotedPositions]] = {}
        self._held: dict[int, Raw | FailedSample] = {}
        """The fetched samples by position."""
        self._unread = self._most = 0
        """The number of noted positions that were not yet read, and the largest number of noted positions in one
        block."""

    @property
    def wants_more(self) -> bool:
        return self._unread < 2 * self._window * self._block_samples

    def expect(self, positions: I64) -> None:
        blocks, shards, samples = self._order.locate_in_blocks(positions)
        noted = NotedPositions(positions, shards, self._catalog.places(shards, samples))
        self._unread += len(positions)
        for block, rows in groups(blocks):
            of_block = self._coming.setdefault(block, [])
            of_block.append(NotedPositions(*(column[rows] for column in noted)))
            self._most = max(self._most, _count(of_block))

    def read(self, positions: I64) -> list[Raw | FailedSample]:
        self._unread = max(0, self._unread - len(positions))
        wanted = positions.tolist()
        missing = positions[[position not in self._held for position in wanted]]
        blocks = numpy.unique(self._order.locate_in_blocks(missing)[0]).tolist() if len(missing) else []
        self._fetch_blocks([block for block in blocks if block in self._coming])
        samples = [self._held.pop(position, None) for position in wanted]
        if absent := [row for row, sample in enumerate(samples) if sample is None]:
            for row, sample in zip(absent, super().read(positions[absent])):
                samples[row] = sample
        return samples  # type: ignore[return-value]

    def _fetch_blocks(self, blocks: list[int]) -> None:
        """Fetch ``blocks``, and as many following blocks as may be held. Remote blocks are fetched one after the other,
        while the next ones are requested."""
        held = len(self._held) + sum(_count(self._coming[block]) for block in blocks)
        room = self._window * self._most - held
        line = blocks + sorted(self._coming.keys() - set(blocks))
        ends = list(accumulate(_count(self._coming[block]) for block in line[len(blocks) :]))
        count = len(blocks) + bisect_right(ends, room)
        step = 1 if self.waits else max(1, count)
        for first in range(0, count, step):
            current, soon = line[first : first + step], line[first + step :][: self._ahead]
            if self.waits and soon:
                later = _joined(self._coming[block] for block in soon)
                self._pool.expect(later.shards, later.places)
            noted = _joined(self._coming.pop(block) for block in current)
            if not self.waits:
                self._pool.expect(noted.shards, noted.places)
            self._held.update(zip(noted.positions.tolist(), self._fetched(noted.shards, noted.places)))


class NotedPositions(NamedTuple):
    """Positions of an epoch, with the shards of their samples and their places in the shards."""

    positions: I64
    shards: I64
    places: I64


def _count(noted: Iterable[NotedPositions]) -> int:
    return sum(len(part.positions) for part in noted)


def _joined(noted: Iterable[Iterable[NotedPositions]]) -> NotedPositions:
    return NotedPositions(*map(numpy.concatenate, zip(*chain.from_iterable(noted))))
