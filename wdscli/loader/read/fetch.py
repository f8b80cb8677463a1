"""Samples by place: which shard and which sample in it, in any order, into dictionaries of payloads.

What it is: :class:`Fetcher`, for one thread, and :class:`Pool`, for any number of them and after a fork, which hands
each call a fetcher of its own. How: the requests of one call are sorted by shard and place, and those of one shard are
read together (:mod:`wdscli.loader.read.rows`, where a stale index is never believed). It must not know orders, ranks
or stages, nor why samples are wanted.
"""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, cached_property, partial
from itertools import chain, islice, pairwise
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from wdscli.arrays import I64, numpy
from wdscli.errors import DataError, StorageError, WdsError
from wdscli.loader.order.order import groups
from wdscli.loader.place.ranks import find_worker
from wdscli.loader.read.catalog import REMOTE_THREADS, Catalog
from wdscli.loader.read.errands import Errands, by_shard, errands_for, tell_if_dear
from wdscli.loader.read.rows import Found, changed, expect_samples, read_samples
from wdscli.loader.read.rows import Raw as Raw
from wdscli.samples.reading import keep_heap
from wdscli.storage import Source, is_local
from wdscli.storage.retry import network
from wdscli.threads import PATIENCE_SECONDS, DaemonPool, ForkLock

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor


Result = TypeVar("Result")

COPY_THREADS = 4
"""The most threads that copy large samples of local shards at a time."""
LARGE_BYTES = 1 << 15
"""Of a sample, from which on they do."""
THREADED_BYTES = 1 << 20
"""From which on it is worth while to wake them."""
OPEN_SOURCES = 128
SHARDS_TOGETHER = 64
"""On other machines, of which samples are on their way at a time: what each may hold has a least measure."""
SAMPLES_PER_THREAD = 4
"""For which it is worth while that one more thread opens a shard."""
FEW_SAMPLES = 12
"""Of a call, below which it is sorted without arrays."""


class Meter:
    """A number of bytes that several threads add to."""

    def __init__(self) -> None:
        self.bytes = 0
        self._lock = ForkLock()

    def add(self, size_bytes: int) -> None:
        """So many more."""
        with self._lock:
            self.bytes += size_bytes


METER = Meter()
"""The payloads that this process has read."""


class Fetcher:
    """Reads samples of a catalog. ``fields`` limits which payloads are read, by names in lower case; None for all.
    Close it when done; not for several threads at a time."""

    def __init__(self, catalog: Catalog, fields: frozenset[str] | None = None) -> None:
        self._catalog, self._fields = catalog, fields
        self._sources: OrderedDict[int, Source] = OrderedDict()
        keep_heap()
        _fetchers.add(self)

    def fetch(self, shards: I64, places: I64) -> list[Raw]:
        """The samples in the order asked for. Raises InputError, DataError."""
        if len(shards) < FEW_SAMPLES:
            return self._few(shards.tolist(), places.tolist())
        order = numpy.lexsort((places, shards))
        wanted = numpy.stack((shards[order], places[order]))
        threads = self._useful_threads(wanted[0])
        found = (
            self._in_turn(wanted) if threads == 1 else self._threaded(numpy.array_split(wanted, threads, 1))
        )
        return found if (order[1:] > order[:-1]).all() else in_order(order, found)

    def _few(self, shards: list[int], places: list[int]) -> list[Raw]:
        found: list[Any] = [None] * len(shards)
        rows_of: dict[int, list[int]] = {}
        for row in sorted(range(len(shards)), key=places.__getitem__):
            rows_of.setdefault(shards[row], []).append(row)
        for shard in sorted(rows_of):
            rows = rows_of[shard]
            for row, raw in zip(rows, self.of_shard(shard, [places[row] for row in rows])):
                found[row] = raw
        return found

    def _useful_threads(self, shards: I64) -> int:
        """How many copy some samples, by shard: several for large ones, for which the kernel works at the same time."""
        table = self._catalog.table(int(shards[0]))
        mean = table.size // max(1, table.samples)
        if self._fields is not None or mean < LARGE_BYTES or mean * len(shards) < THREADED_BYTES:
            return 1
        if self._threads == 1:
            return 1
        different = set(shards.tolist())
        # All must be open, as plain files, so that no thread closes one to open another.
        are_local = all(self.source(shard).fd is not None for shard in different)
        return self._threads if are_local and self._sources.keys() >= different else 1

    def _threaded(self, shares: list[I64]) -> list[Raw]:
        from concurrent.futures import wait

        futures = [self._helpers.submit(self._in_turn, share) for share in shares[1:]]
        try:
            found = self._in_turn(shares[0])
        finally:
            wait(futures)
        return list(chain(found, *[future.result() for future in futures]))

    def _in_turn(self, wanted: I64) -> list[Raw]:
        """Samples by their shards and places, which are sorted."""
        shards, places = wanted
        bounds = [0, *((shards[1:] != shards[:-1]).nonzero()[0] + 1).tolist(), len(shards)]
        found: list[Raw] = []
        for first, end in pairwise(bounds):
            found += self.of_shard(int(shards[first]), places[first:end].tolist())
        return found

    def of_shard(self, shard: int, places: list[int]) -> list[Raw]:
        """Samples of one shard. Raises InputError, DataError."""
        source = self.source(shard)
        if source.fd is None:
            expect_samples(self._catalog.table(shard), source, self._fields, places)
        found = read_samples(self._catalog.table(shard), source, self._fields, places)
        METER.add(found.size_bytes)
        return found.samples

    @cached_property
    def _threads(self) -> int:
        """How many copy at a time: what this process has of the machine's processors."""
        try:
            processors = len(os.sched_getaffinity(0))
        except AttributeError:
            processors = os.cpu_count() or 1
        return max(1, min(COPY_THREADS, processors // find_worker()[1]))

    @cached_property
    def _helpers(self) -> ThreadPoolExecutor:
        from concurrent.futures import ThreadPoolExecutor

        return ThreadPoolExecutor(self._threads - 1, thread_name_prefix="wdscli-copy")

    def source(self, shard: int) -> Source:
        """The shard, open. Raises InputError, DataError."""
        source = self._sources.get(shard)
        if source is None:
            if len(self._sources) >= OPEN_SOURCES or (self._sources and _open_files() >= _most_open()):
                self._sources.popitem(last=False)[1].close()
            source = self._sources[shard] = _opened(self._catalog, shard)
        else:
            self._sources.move_to_end(shard)
        return source

    def close(self) -> None:
        """Close all files."""
        if "_helpers" in self.__dict__:
            self._helpers.shutdown(wait=True)
            del self._helpers
        for source in self._sources.values():
            source.close()
        self._sources.clear()


_fetchers: WeakSet[Fetcher] = WeakSet()


def _open_files() -> int:
    """Files that all fetchers of this process hold open: a mix has a fetcher for each of its sets."""
    # No lock: it might be held by another thread while this process is forked.
    with suppress(RuntimeError):  # another thread has just made one
        return sum(len(fetcher._sources) for fetcher in _fetchers)
    return 0


@cache
def _most_open() -> int:
    """How many they may: a quarter of what the process may."""
    try:
        import resource
    except ImportError:  # no such thing here
        return OPEN_SOURCES
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(OPEN_SOURCES, min(4096, soft // 4 if soft > 0 else 4096))


def _opened(catalog: Catalog, shard: int) -> Source:
    """The shard, open, and what its table says. Raises InputError, DataError."""
    source = catalog.open(catalog.addresses[shard])
    try:
        _check_unchanged(catalog, shard, source)
    except BaseException:
        source.close()
        raise
    return source


def _check_unchanged(catalog: Catalog, shard: int, source: Source) -> None:
    """Raise DataError when the shard is another one than what is known of it says."""
    table = catalog.table(shard)
    if table.version not in ("", source.version):
        catalog.forget(shard)
        table = catalog.table(shard)
    table.version = source.version
    if source.size is not None and source.size != table.size:
        raise changed(table, 0)


def in_order(rows: I64, found: Sequence[Any]) -> list[Any]:
    """What was ``found``, each at its row."""
    placed: list[Any] = [None] * len(found)
    for row, one in zip(rows.tolist(), found):
        placed[row] = one
    return placed


class Pool:
    """Reads samples of ``catalog`` for any thread: local shards by the thread that asks, or by ``threads`` of them;
    others by :class:`Shared`, which opens up to ``threads``, by default 16, at a time. Picklable; close it when done.

    A forked process begins with an empty pool: connections cannot be shared with the parent, and files cost little to
    open again."""

    def __init__(
        self, catalog: Catalog, fields: Sequence[str] | None = None, threads: int | None = None
    ) -> None:
        self._catalog = catalog
        self._fields = None if fields is None else frozenset(field.lower() for field in fields)
        self._is_local = all(map(is_local, catalog.addresses))
        self._threads = threads or (1 if self._is_local else REMOTE_THREADS)
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._idle: dict[int, list[Fetcher]] = {}
        self._executor: DaemonPool | None = None
        self._shared: Shared | None = None

    def fetch(self, shards: I64, places: I64) -> list[Raw]:
        """The samples at ``places`` of ``shards``, in the order asked for. Raises InputError, DataError."""
        self._check_process()
        if not self._is_local:
            return self._remote.fetch(shards, places)
        if self._threads > 1 and len(shards) > 1:
            return self._divided(shards, places)
        return self._lent(0, lambda fetcher: fetcher.fetch(shards, places))

    def expect(self, shards: I64, places: I64) -> None:
        """Which samples of shards on other machines the next call but one will want: the next one begins to fetch
        them."""
        self._check_process()
        self._remote.soon = by_shard(shards, places)

    def one(self, shard: int, place: int) -> Raw:
        """One sample. Raises InputError, DataError."""
        self._check_process()
        if self._is_local:
            return self._lent(0, lambda fetcher: fetcher.of_shard(shard, [place]))[0]
        return self._remote.read({shard: [place]})[0]

    @property
    def _remote(self) -> Shared:
        if self._shared is None:
            self._shared = Shared(self._catalog, self._fields, self._pool())
        return self._shared

    def _check_process(self) -> None:
        """In a forked process begin anew, and let nothing of the parent's be closed from here."""
        if self._process != os.getpid():
            _parents.append((self._idle, self._executor, self._shared))
            self._begin()

    def _lent(self, lane: int, work: Callable[[Fetcher], Result]) -> Result:
        """What ``work`` does with a fetcher that no other thread has, because list.pop and append are atomic."""
        idle = self._idle.setdefault(lane, [])
        try:
            fetcher = idle.pop()
        except IndexError:
            fetcher = Fetcher(self._catalog, self._fields)
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
            found = list(chain.from_iterable(future.result() for future in waiting))
        finally:
            for future in waiting:
                future.cancel()
        return in_order(numpy.concatenate([rows for _, rows in parts]), found)

    def _pool(self) -> DaemonPool:
        if self._executor is None:
            self._executor = DaemonPool(self._threads, "wdscli-fetch")
        return self._executor

    def close(self) -> None:
        """Close files and end threads; a later call opens what it needs again. What a thread does with shards on other
        machines it may do to its end, which may be long after this."""
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


class Shared:
    """Reads samples of shards on other machines, for any thread, by one source a shard: all ranges that a call wants
    are on their way before the first is waited for, with those of the call after it (``soon``), and what comes with
    them, because a gap was not worth a request, stays for later calls. Two threads that want samples of one shard at
    the same time have a source each. ``threads`` open shards."""

    def __init__(self, catalog: Catalog, fields: frozenset[str] | None, threads: DaemonPool) -> None:
        self._catalog, self._fields, self._threads = catalog, fields, threads
        self._lock = ForkLock()
        self._idle: OrderedDict[int, list[Source]] = OrderedDict()
        """By shard, those that nobody reads from."""
        self._opening: dict[int, Future[Source]] = {}
        self._dear_samples = 0
        self._is_closed = False
        self._recent: set[int] = set()
        """Shards that the last call wanted, or the one after it will."""
        self.soon: dict[int, list[int]] = {}

    def fetch(self, shards: I64, places: I64) -> list[Raw]:
        """The samples in the order asked for. Raises InputError, DataError."""
        order = numpy.lexsort((places, shards))
        return in_order(order, self.read(by_shard(shards, places)))

    def read(self, wanted: dict[int, list[int]]) -> list[Raw]:
        """Samples by shard and place, both rising."""
        soon, self.soon = self.soon, {}
        if len(wanted) <= SHARDS_TOGETHER:
            return self._read(wanted, soon if len(soon) <= SHARDS_TOGETHER else {})
        rest = iter(wanted.items())
        found: list[Raw] = []
        while some := dict(islice(rest, SHARDS_TOGETHER)):
            found += self._read(some, {})
        return found

    def _read(self, wanted: dict[int, list[int]], soon: dict[int, list[int]]) -> list[Raw]:
        sources: dict[int, Source] = {}
        used: set[int] = set()
        try:
            self._take(list(wanted), sources)
            errands = errands_for(self._catalog, wanted, soon, network().read_ahead_bytes)
            found: list[Raw] = []
            for shard, places in wanted.items():
                self._begin(errands, sources)
                some = self._samples(shard, places, sources)
                METER.add(some.size_bytes)
                found += some.samples
                errands.done(shard, sources[shard])
            used = wanted.keys() | soon.keys()
            self._dear_samples += errands.dear_samples
            if far := next((source.name for source in sources.values() if source.fd is None), None):
                tell_if_dear(self._dear_samples, far)
        finally:
            self._give_back(sources, used)
        return found

    def _samples(self, shard: int, places: list[int], sources: dict[int, Source]) -> Found:
        """Samples of one shard. What was opened as the version that its index is of, and is another, or gives no byte
        that would prove it, is looked at as if nothing was known of it."""
        table = self._catalog.table_to_read(shard)
        try:
            found = read_samples(table, sources[shard], self._fields, places)
            if table.is_proven or found.size_bytes:
                table.is_proven = True
                return found
        except (DataError, StorageError):
            if not sources[shard].is_pinned:
                raise
        sources.pop(shard).close()
        self._catalog.doubt(shard)
        source = sources[shard] = _opened(self._catalog, shard)
        table = self._catalog.table(shard)
        expect_samples(table, source, self._fields, places)
        return read_samples(table, source, self._fields, places)

    def _begin(self, errands: Errands, sources: dict[int, Source]) -> None:
        """Have fetched what there is room for."""
        for shard, places, _ in errands.fitting():
            if shard in sources:
                table = self._catalog.table_to_read(shard)
                expect_samples(table, sources[shard], self._fields, places, errands.gap_bytes)
            else:
                self._open_soon(shard, places, errands.gap_bytes)

    def _take(self, shards: list[int], sources: dict[int, Source]) -> None:
        """A source for each shard, which no other thread has until :meth:`_give_back`. Raises InputError, DataError."""
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
        return self._catalog.open_as(table, shard) or _opened(self._catalog, shard)

    def _open_soon(self, shard: int, places: list[int], gap_bytes: int | None) -> None:
        """Have a shard opened, and what is wanted of it fetched, while others are read."""

        def begin(source: Source | None) -> Source:
            source = source or self._open(shard)
            expect_samples(self._catalog.table_to_read(shard), source, self._fields, places, gap_bytes)
            return source

        with self._lock:
            if shard not in self._opening:
                idle = self._idle.get(shard)
                self._opening[shard] = self._threads.submit(begin, idle.pop() if idle else None)

    def _give_back(self, sources: dict[int, Source], used: set[int]) -> None:
        """Let others have these sources. What was fetched of shards that are not ``used`` is let go of."""
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
        """Close all sources; those that a thread opens or reads from, when it has done so."""
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
"""What belongs to the process that this one was forked from."""


def divided(shards: I64, places: I64, threads: int) -> list[tuple[int, I64]]:
    """(lane, rows) for each thread: whole shards, by their number, so that each thread keeps to the shards it has open,
    or stretches of neighbours when there are fewer shards than threads."""
    order = numpy.lexsort((places, shards))
    different = len(numpy.unique(shards))
    if different >= threads:
        return [(lane, order[rows]) for lane, rows in groups(shards[order] % threads)]
    lanes = max(different, min(threads, len(order) // SAMPLES_PER_THREAD))
    return [(lane, rows) for lane, rows in enumerate(numpy.array_split(order, lanes)) if len(rows)]
