"""This module reads samples by shard and place, in any order, as dictionaries of payloads.

Only one thread may use a :class:`Fetcher`. Any number of threads may use a :class:`Pool`, also after a fork, because it
gives each call its own fetcher. :class:`RemoteShards` reads remote shards. The samples of one call are sorted by shard
and place, and the samples of one shard are read together by :mod:`wdscli.loader.read.rows`, which notices a stale
index. This module does not know orders, ranks or stages."""

from __future__ import annotations

import os
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import cached_property, partial
from itertools import chain, islice
from math import inf
from typing import Any, TypeVar
from weakref import WeakSet

from wdscli.arrays import I64, numpy, runs
from wdscli.errors import DataError, StorageError, WdsError
from wdscli.loader.order.order import groups
from wdscli.loader.place.ranks import find_worker
from wdscli.loader.read.catalog import Catalog
from wdscli.loader.read.rows import (
    Destination,
    FetchRequests,
    FieldShard,
    Found,
    SmallParts,
    by_shard,
    changed,
    expect_samples,
    is_of_files,
    parts_of,
    plan_requests,
    ranges,
    read_samples,
    warn_if_expensive,
)
from wdscli.loader.read.rows import Raw as Raw
from wdscli.samples.reading import keep_heap
from wdscli.shards.proof import Proof
from wdscli.storage import Source, is_local
from wdscli.storage.local import is_cold, may_open
from wdscli.storage.retry import network
from wdscli.storage.scatter import together
from wdscli.threads import PATIENCE_SECONDS, DaemonPool, ForkLock

Result = TypeVar("Result")

REMOTE_THREADS = 16
"""The number of threads that read samples of remote shards."""
COPY_THREADS = 4
"""The largest number of threads that copy large samples of local shards at the same time."""
LARGE_BYTES = 1 << 15
"""Samples of at least this mean size count as large."""
THREADED_BYTES = 1 << 20
"""Calls for fewer bytes use one thread."""
OPEN_SOURCES = 128
SMALL_SAMPLES_BYTES = 64 << 20
"""The most memory for small samples of local shards that a process keeps, in bytes."""
SHARDS_TOGETHER = 64
"""The largest number of remote shards in one plan of requests, because each shard needs some memory."""
SAMPLES_PER_THREAD = 4
"""Each thread gets at least about this number of samples, because a thread for fewer samples costs more than it
saves."""
FEW_SAMPLES = 12
"""A call for fewer samples than this is sorted without numpy arrays, which is faster."""


class Meter:
    """A counter of bytes that several threads may use."""

    def __init__(self) -> None:
        self.bytes = 0
        self._lock = ForkLock()

    def add(self, size_bytes: int) -> None:
        """Add ``size_bytes`` to the count."""
        with self._lock:
            self.bytes += size_bytes


METER = Meter()
"""Counts the bytes of payloads that this process has read."""


class Fetcher:
    """Reads samples of a catalog, with the payloads of ``fields``: names in lower case, or None for all fields. Only
    one thread at a time may use a fetcher. The owner closes the fetcher."""

    def __init__(
        self, catalog: Catalog, fields: frozenset[str] | None = None, reads_all: bool = False
    ) -> None:
        self._catalog, self._fields = catalog, fields
        self._sources: OrderedDict[int, Source] = OrderedDict()
        self._small = defaultdict[int, SmallParts](partial(SmallParts, _room)) if reads_all else None
        keep_heap()
        _fetchers.add(self)

    def fetch(self, shards: I64, places: I64) -> list[Raw]:
        """Return the samples in the requested order. Raises InputError, DataError."""
        if len(shards) < FEW_SAMPLES:
            return self._few(shards.tolist(), places.tolist())
        samples: list[Any] = [0] * len(shards)
        order = numpy.lexsort((places, shards))
        shards, places = shards[order], places[order]
        threads = self._useful_threads(shards)
        if threads == 1:
            self._fill(samples, order, shards, places)
        else:
            parts = (numpy.array_split(column, threads) for column in (order, shards, places))
            self._threaded(samples, list(zip(*parts)))
        return samples

    def announce(self, shards: I64, places: I64) -> None:
        """Let the kernel read large samples of a later call in advance, if they are not in memory."""
        probes = {0, len(shards) // 2, len(shards) - 1} if len(shards) else ()
        if any(self._is_cold(int(shards[row]), int(places[row])) for row in probes):
            for shard, rows in groups(shards):
                for part in self._parts(shard, numpy.sort(places[rows]).tolist()):
                    part.source.expect(ranges(part.table, part.names, part.places))

    def _is_cold(self, shard: int, place: int) -> bool:
        """Return whether a sample is large and not in memory. The first bytes of a sample may be in memory already."""
        table, part = self._catalog.table(shard), next(iter(self._parts(shard, [place])), None)
        if part is None or part.source.fd is None or table.size // max(1, table.samples) < LARGE_BYTES:
            return False
        [(begin, end), *_] = ranges(part.table, part.names, part.places)
        return is_cold(part.source.fd, (begin + end) // 2)

    def _parts(self, shard: int, places: list[int]) -> list[FieldShard]:
        table = self._catalog.table(shard)
        return list(parts_of(table, self.source(shard), table.wanted(self._fields), places))

    def _few(self, shards: list[int], places: list[int]) -> list[Raw]:
        samples: list[Any] = [0] * len(shards)
        rows_of: dict[int, list[int]] = {}
        for row in sorted(range(len(shards)), key=places.__getitem__):
            rows_of.setdefault(shards[row], []).append(row)
        for shard in sorted(rows_of):
            rows = rows_of[shard]
            self.of_shard(shard, [places[row] for row in rows], Destination(samples, rows))
        return samples

    def _useful_threads(self, shards: I64) -> int:
        """Return the number of threads that read samples of these shards. Large samples are read by several threads,
        because the kernel copies them in parallel."""
        table = self._catalog.table(int(shards[0]))
        mean = table.size // max(1, table.samples)
        is_small = mean < LARGE_BYTES or mean * len(shards) < THREADED_BYTES
        if self._fields is not None or is_small or self._threads == 1:
            return 1
        different = set(shards.tolist())
        # All shards must be open as plain files, so that no thread closes a shard to open another shard.
        are_local = all(is_of_files(self.source(shard)) for shard in different)
        return self._threads if are_local and self._sources.keys() >= different else 1

    def _threaded(self, samples: list[Any], shares: list[tuple[I64, ...]]) -> None:
        futures = [self._helpers.submit(self._fill, samples, *share) for share in shares[1:]]
        try:
            self._fill(samples, *shares[0])
        finally:
            wait(futures)
        for future in futures:
            future.result()

    def _fill(self, samples: list[Any], rows: I64, shards: I64, places: I64) -> None:
        """Put the samples at the given shards and places, which are sorted, into ``rows`` of ``samples``."""
        row_list, place_list = rows.tolist(), places.tolist()
        for first, end in runs(shards):
            into = Destination(samples, row_list[first:end])
            self.of_shard(int(shards[first]), place_list[first:end], into)

    def of_shard(self, shard: int, places: list[int], into: Destination | None = None) -> list[Raw]:
        """Return samples of one shard, or put them ``into`` a list. Raises InputError, DataError."""
        source, table = self.source(shard), self._catalog.table(shard)
        expect_samples(table, source, self._fields, places)
        small = None if self._small is None else self._small[shard]
        answer = read_samples(table, source, self._fields, places, small, into)
        METER.add(answer.size_bytes)
        return answer.samples

    @cached_property
    def _threads(self) -> int:
        """The largest number of threads: this process's share of the machine's processors, at most COPY_THREADS."""
        try:
            processors = len(os.sched_getaffinity(0))
        except AttributeError:
            processors = os.cpu_count() or 1
        return max(1, min(COPY_THREADS, processors // find_worker()[1]))

    @cached_property
    def _helpers(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._threads - 1, thread_name_prefix="wdscli-copy")

    def source(self, shard: int) -> Source:
        """Return the opened shard. Raises InputError, DataError."""
        source = self._sources.get(shard)
        if source is None:
            while self._sources and not may_open(len(self._sources), OPEN_SOURCES):
                self._forget(*self._sources.popitem(last=False))
            source = self._sources[shard] = open_shard(self._catalog, shard)
        else:
            self._sources.move_to_end(shard)
        return source

    def _forget(self, shard: int, source: Source) -> None:
        source.close()
        if self._small:
            self._small.pop(shard, None)

    def close(self) -> None:
        """Close all files."""
        if "_helpers" in self.__dict__:
            self._helpers.shutdown(wait=True)
            del self._helpers
        while self._sources:
            self._forget(*self._sources.popitem())


_fetchers: WeakSet[Fetcher] = WeakSet()


def _room() -> int:
    """Return how many bytes of small samples all fetchers of this process may still keep."""
    # A lock is not used: another thread might hold it while this process is forked.
    with suppress(RuntimeError):  # another thread has just added a fetcher
        kept = [small for fetcher in _fetchers for small in (fetcher._small or {}).values()]
        return SMALL_SAMPLES_BYTES - sum(small.size_bytes for small in kept)
    return 0


def open_shard(catalog: Catalog, shard: int) -> Source:
    """Open a shard and compare it with its table. Raises InputError, DataError."""
    source = catalog.open(catalog.addresses[shard])
    try:
        _check_unchanged(catalog, shard, source)
    except BaseException:
        source.close()
        raise
    return source


def _check_unchanged(catalog: Catalog, shard: int, source: Source) -> None:
    """Raise DataError if the shard has changed since its table was loaded."""
    table = catalog.table(shard)
    if table.version not in ("", source.version):
        catalog.forget(shard)
        table = catalog.table(shard)
    table.version = source.version
    if source.size is not None and source.size != table.size:
        raise changed(table, 0)


def in_order(rows: I64, samples: Sequence[Any]) -> list[Any]:
    """Return ``samples`` in another order: sample i moves to index ``rows[i]``."""
    placed: list[Any] = [None] * len(samples)
    for row, sample in zip(rows.tolist(), samples):
        placed[row] = sample
    return placed


class Pool:
    """Reads samples of ``catalog``. Any number of threads may use a pool. Local shards are read in the calling thread,
    or in ``threads`` threads. :class:`RemoteShards` reads remote shards, with up to ``threads`` threads, by default 16.
    A pool can be pickled. The owner closes the pool. Without ``reads_gaps``, a pool never reads long gaps between
    remote samples.

    A forked process begins with an empty pool, because it cannot share connections with its parent, and can quickly
    open files again."""

    def __init__(
        self,
        catalog: Catalog,
        fields: Sequence[str] | None = None,
        threads: int | None = None,
        *,
        reads_gaps: bool = True,
        reads_all: bool = False,
    ) -> None:
        self._catalog, self._reads_gaps, self._reads_all = catalog, reads_gaps, reads_all
        self._fields = None if fields is None else frozenset(field.lower() for field in fields)
        self._is_local = all(map(is_local, catalog.addresses))
        self._threads = threads or (1 if self._is_local else REMOTE_THREADS)
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._idle: dict[int, list[Fetcher]] = {}
        self._executor: DaemonPool | None = None
        self._shared: RemoteShards | None = None

    def fetch(self, shards: I64, places: I64) -> list[Raw]:
        """Return the samples at ``places`` of ``shards``, in the requested order. Raises InputError, DataError."""
        self._check_process()
        if not self._is_local:
            return self._remote.fetch(shards, places)
        if self._threads > 1 and len(shards) > 1:
            return self._divided(shards, places)
        return self._lent(0, lambda fetcher: fetcher.fetch(shards, places))

    def expect(self, shards: I64, places: I64) -> None:
        """Announce the samples of a later call. The next call of :meth:`fetch` begins to request the announced remote
        samples."""
        self._check_process()
        if self._is_local:
            self._lent(0, lambda fetcher: fetcher.announce(shards, places))
        else:
            self._remote.soon = by_shard(shards, places)

    def one(self, shard: int, place: int) -> Raw:
        """Return one sample. Raises InputError, DataError."""
        self._check_process()
        if self._is_local:
            return self._lent(0, lambda fetcher: fetcher.of_shard(shard, [place]))[0]
        return self._remote.read({shard: [place]})[0]

    @property
    def _remote(self) -> RemoteShards:
        if self._shared is None:
            self._shared = RemoteShards(self._catalog, self._fields, self._pool(), self._reads_gaps)
        return self._shared

    def _check_process(self) -> None:
        """In a forked process, begin with an empty pool. The objects inherited from the parent are kept, so that this
        process never closes them."""
        if self._process != os.getpid():
            _parents.append((self._idle, self._executor, self._shared))
            self._begin()

    def _lent(self, lane: int, work: Callable[[Fetcher], Result]) -> Result:
        """Run ``work`` with a fetcher that no other thread uses. No lock is needed, because list.pop and append are
        atomic."""
        idle = self._idle.setdefault(lane, [])
        try:
            fetcher = idle.pop()
        except IndexError:
            fetcher = Fetcher(self._catalog, self._fields, self._reads_all)
        try:
            return work(fetcher)
        finally:
            idle.append(fetcher)

    def _divided(self, shards: I64, places: I64) -> list[Raw]:
        parts = divided(shards, places, self._threads)
        threads = self._pool()
        waiting = [
            threads.submit(self._lent, lane, partial(Fetcher.fetch, shards=shards[rows], places=places[rows]))
            for lane, rows in parts
        ]
        try:
            samples = list(chain.from_iterable(future.result() for future in waiting))
        finally:
            for future in waiting:
                future.cancel()
        return in_order(numpy.concatenate([rows for _, rows in parts]), samples)

    def _pool(self) -> DaemonPool:
        if self._executor is None:
            self._executor = DaemonPool(self._threads, "wdscli-fetch")
        return self._executor

    def close(self) -> None:
        """Close files and end threads. A later call opens files and starts threads again. A thread that waits for a
        remote store may end much later."""
        if self._process != os.getpid() or sys.is_finalizing():
            return
        if self._executor is not None:
            seconds = inf if self._is_local else PATIENCE_SECONDS
            self._executor.shutdown(cancel_futures=True, most_seconds=seconds)
        if self._shared is not None:
            self._shared.close()
        for fetcher in chain.from_iterable(self._idle.values()):
            fetcher.close()
        self._begin()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_idle": None, "_executor": None, "_shared": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()


class RemoteShards:
    """Reads samples of remote shards, with one source for each shard. Any number of threads may use this object. All
    ranges of a call, and of an announced later call (``soon``), are requested before the call waits for the first
    answer. If reading a gap was cheaper than another request, its bytes are kept for later calls. If two threads read
    one shard at the same time, each thread has its own source. The pool ``threads`` opens shards. Without
    ``reads_gaps`` long gaps are never read."""

    def __init__(
        self, catalog: Catalog, fields: frozenset[str] | None, threads: DaemonPool, reads_gaps: bool = True
    ) -> None:
        self._catalog, self._fields, self._threads = catalog, fields, threads
        self._reads_gaps = reads_gaps
        self._lock = ForkLock()
        self._idle: OrderedDict[int, list[Source]] = OrderedDict()
        """The sources that no thread uses, by shard."""
        self._opening: dict[int, Future[Source]] = {}
        self._expensive_samples = 0
        self._is_closed = False
        self._recent: set[int] = set()
        """The shards of the last call and of the call that it announced."""
        self.soon: dict[int, list[int]] = {}

    def fetch(self, shards: I64, places: I64) -> list[Raw]:
        """Return the samples in the requested order. Raises InputError, DataError."""
        order = numpy.lexsort((places, shards))
        return in_order(order, self.read(by_shard(shards, places)))

    def read(self, wanted: dict[int, list[int]]) -> list[Raw]:
        """Return the samples ``wanted``, a dict from shards to places. Shards and places are in rising order."""
        soon, self.soon = self.soon, {}
        if len(wanted) <= SHARDS_TOGETHER:
            return self._read(wanted, soon if len(soon) <= SHARDS_TOGETHER else {})
        unread = iter(wanted.items())
        samples: list[Raw] = []
        while group := dict(islice(unread, SHARDS_TOGETHER)):
            samples += self._read(group, {})
        return samples

    def _read(self, wanted: dict[int, list[int]], soon: dict[int, list[int]]) -> list[Raw]:
        sources: dict[int, Source] = {}
        used: set[int] = set()
        try:
            self._take(list(wanted), sources)
            room = network().read_ahead_bytes
            requests = plan_requests(self._catalog, wanted, soon, room, self._reads_gaps)
            samples: list[Raw] = []
            for shard, places in wanted.items():
                self._begin(requests, sources)
                answer = self._samples(shard, places, sources)
                METER.add(answer.size_bytes)
                samples += answer.samples
                requests.done(shard, sources[shard])
            used = wanted.keys() | soon.keys()
            self._expensive_samples += requests.expensive_samples
            if remote := next((source.name for source in sources.values() if source.fd is None), None):
                warn_if_expensive(self._expensive_samples, remote)
        finally:
            self._give_back(sources, used)
        return samples

    def _samples(self, shard: int, places: list[int], sources: dict[int, Source]) -> Found:
        """Return samples of one shard. A shard may have been opened without a request, as the version that its index
        names. If the read fails, or returns no bytes that prove this version, the shard is opened again and compared
        with its table."""
        table = self._catalog.table_to_read(shard)
        try:
            answer = read_samples(table, sources[shard], self._fields, places)
            if table.proof is Proof.NOTHING and answer.size_bytes:
                table.proof = Proof.PAYLOADS
            if table.proof is not Proof.NOTHING:
                return answer
        except (DataError, StorageError):
            if not sources[shard].is_pinned:
                raise
        sources.pop(shard).close()
        self._catalog.doubt(shard)
        source = sources[shard] = open_shard(self._catalog, shard)
        table = self._catalog.table(shard)
        expect_samples(table, source, self._fields, places)
        return read_samples(table, source, self._fields, places)

    def _begin(self, requests: FetchRequests, sources: dict[int, Source]) -> None:
        """Start the requests for which there is memory."""
        for shard, places, *_ in requests.fitting():
            if shard in sources:
                self._expect(shard, sources[shard], places, requests)
            else:
                self._open_soon(shard, places, requests)

    def _expect(self, shard: int, source: Source, places: list[int], requests: FetchRequests) -> None:
        """Start the requests for samples of a shard. Without ``reads_gaps``, bytes of other samples are dropped,
        because each sample is fetched once. Then a shard with many requests gets a large part of the memory, so that
        all of its requests start now."""
        table, keep = self._catalog.table_to_read(shard), self._reads_gaps
        with together(0 if keep else requests.held_bytes):
            expect_samples(table, source, self._fields, places, requests.gap_bytes, keep=keep)

    def _take(self, shards: list[int], sources: dict[int, Source]) -> None:
        """Take a source for each shard. Other threads cannot use the sources until :meth:`_give_back`. Raises
        InputError, DataError."""
        opening: dict[int, Future[Source]] = {}
        with self._lock:
            for shard in shards:
                if idle := self._idle.get(shard):
                    sources[shard] = idle.pop()
                elif begun := self._opening.pop(shard, None):
                    opening[shard] = begun
        missing = [shard for shard in shards if shard not in sources and shard not in opening]
        if len(missing) == 1:
            sources[missing[0]] = self._open(missing[0])
        else:
            opening.update((shard, self._threads.submit(self._open, shard)) for shard in missing)
        errors = []
        for shard, future in opening.items():
            try:
                sources[shard] = future.result()
            except WdsError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _open(self, shard: int) -> Source:
        table = self._catalog.table_to_read(shard)
        return self._catalog.open_as(table, shard) or open_shard(self._catalog, shard)

    def _open_soon(self, shard: int, places: list[int], requests: FetchRequests) -> None:
        """In another thread, open a shard and start its requests, while this thread reads other shards."""

        def begin(source: Source | None) -> Source:
            source = source or self._open(shard)
            self._expect(shard, source, places, requests)
            return source

        with self._lock:
            if shard not in self._opening:
                idle = self._idle.get(shard)
                self._opening[shard] = self._threads.submit(begin, idle.pop() if idle else None)

    def _give_back(self, sources: dict[int, Source], used: set[int]) -> None:
        """Make sources available to other threads, and drop fetched bytes of shards that are not ``used``."""
        with self._lock:
            if self._is_closed:
                for source in sources.values():
                    source.close()
                return
            for shard, source in sources.items():
                self._idle.setdefault(shard, []).append(source)
                self._idle.move_to_end(shard)
            for shard in (self._recent | sources.keys()) - used:
                for source in self._idle.get(shard, ()):
                    source.expect(())
            self._recent = used
            while len(self._idle) > OPEN_SOURCES:
                for source in self._idle.popitem(last=False)[1]:
                    source.close()

    def close(self) -> None:
        """Close all sources. If a thread still uses a source, that source is closed when the thread has finished."""
        with self._lock:
            self._is_closed = True
            for source in chain.from_iterable(self._idle.values()):
                source.close()
            self._idle.clear()
            opening = list(self._opening.values())
        for future in opening:
            future.add_done_callback(_close_opened)


def _close_opened(future: Future[Source]) -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().close()


_parents: list[Any] = []
"""Objects inherited from the parent process, which are kept so that this process does not close them."""


def divided(shards: I64, places: I64, threads: int) -> list[tuple[int, I64]]:
    """Divide the rows among threads, and return (lane, rows) for each thread. A lane gets all samples of a shard, and
    always the same shards, so that its fetcher still has these shards open. If there are fewer shards than threads,
    each thread gets neighbouring samples."""
    order = numpy.lexsort((places, shards))
    different = len(numpy.unique(shards))
    if different >= threads:
        return [(lane, order[rows]) for lane, rows in groups(shards[order] % threads)]
    lanes = max(different, min(threads, len(order) // SAMPLES_PER_THREAD))
    return [(lane, rows) for lane, rows in enumerate(numpy.array_split(order, lanes)) if len(rows)]
