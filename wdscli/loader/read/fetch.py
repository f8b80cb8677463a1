"""Samples by place: which shard and which sample in it, in any order, into dictionaries of payloads.

What it is: :class:`Fetcher`. How: the requests of one call are sorted by shard and place, ranges that lie close
together are read at once, large payloads one by one straight into their own bytes. The header in front of every payload
is read with it and compared with what the index says, so that a stale index is never believed. It must not know orders,
ranks or stages.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, cached_property
from itertools import chain, pairwise, repeat, starmap
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakSet

from wdscli.errors import DataError, InputError
from wdscli.loader.read.catalog import Catalog
from wdscli.loader.read.meter import METER
from wdscli.loader.read.rows import Rows, changed
from wdscli.storage import Source, open_source

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    import numpy
    from numpy.typing import NDArray

    I64: TypeAlias = NDArray[numpy.int64]

Part: TypeAlias = "tuple[int, I64]"
"""A shard, and places in it."""
Raw = dict[str, Any]
"""A sample as it is read: ``__key__``, ``__url__`` and a payload for each field."""

GAP = 1 << 14
"""Bytes between two ranges that are read for nothing rather than by another call."""
REMOTE_GAP = 1 << 17
READ = 4 << 20
"""The most bytes of several samples that one call reads."""
LARGE = 1 << 15
"""A payload of a local shard from which on a call of its own costs less than to copy it out of a larger read."""
FEW = 12
"""Samples of a local shard below which they are read one by one, because an array costs more than it saves."""
THREADS = 4
"""The most threads that copy large samples of local shards at a time."""
TOGETHER = 1 << 20
"""Bytes from which on it is worth while to wake them."""
OPEN_SOURCES = 128


class Fetcher:
    """Reads samples of a catalog. ``fields`` limits which payloads are read; None for all. Close it when done; not for
    several threads at a time."""

    def __init__(self, catalog: Catalog, fields: Sequence[str] | None = None) -> None:
        self._catalog = catalog
        self._fields = None if fields is None else frozenset(field.lower() for field in fields)
        self._sources: OrderedDict[int, Source] = OrderedDict()
        _fetchers.add(self)

    def fetch(self, shards: I64, samples: I64) -> list[Raw]:
        """The samples in the order asked for. Raises InputError, DataError."""
        import numpy

        if not len(shards):
            return []
        order = numpy.lexsort((samples, shards))
        those = shards[order]
        bounds = [0, *(numpy.flatnonzero(those[1:] != those[:-1]) + 1).tolist(), len(order)]
        places = samples[order].astype(numpy.int64)
        parts = [(int(those[first]), places[first:end]) for first, end in pairwise(bounds)]
        sorted_ = self._of_parts(parts, len(order))
        if (order[1:] > order[:-1]).all():
            return sorted_
        found: list[Any] = [None] * len(order)
        for row, raw in zip(order.tolist(), sorted_):
            found[row] = raw
        return found

    def _of_parts(self, parts: list[Part], count: int) -> list[Raw]:
        """``count`` samples by shard and places. Large ones are copied by several threads, for which the kernel works
        at the same time."""
        table = self._catalog.table(parts[0][0])
        mean = table.size // max(1, table.samples)
        if self._fields is not None or mean < LARGE or mean * count < TOGETHER or self._threads == 1:
            return self._in_turn(parts)
        # Few samples of each shard are read one by one, between which threads only wait for each other.
        if count < self._threads * FEW * len(parts) or not self._are_open([shard for shard, _ in parts]):
            return self._in_turn(parts)
        from concurrent.futures import wait

        mine, *others = divided(parts, count, self._threads)
        futures = [self._helpers.submit(self._in_turn, other) for other in others]
        try:
            found = self._in_turn(mine)
        finally:
            wait(futures)
        return list(chain(found, *[future.result() for future in futures]))

    def _are_open(self, shards: list[int]) -> bool:
        """Whether all of these are open now as plain files, so that no thread closes one to open another."""
        local = [self._source(shard).fd is not None for shard in shards]
        return all(local) and all(shard in self._sources for shard in shards)

    def _in_turn(self, parts: list[Part]) -> list[Raw]:
        return list(chain.from_iterable(starmap(self._of_shard, parts)))

    @cached_property
    def _threads(self) -> int:
        """How many copy at a time: what this process has of the machine's processors."""
        from wdscli.loader.place.ranks import find_worker

        try:
            processors = len(os.sched_getaffinity(0))
        except AttributeError:
            processors = os.cpu_count() or 1
        return max(1, min(THREADS, processors // find_worker()[1]))

    @cached_property
    def _helpers(self) -> ThreadPoolExecutor:
        from concurrent.futures import ThreadPoolExecutor

        return ThreadPoolExecutor(self._threads - 1, thread_name_prefix="wdscli-copy")

    def _of_shard(self, shard: int, places: I64) -> list[Raw]:
        """Samples of one shard, by places that rise."""
        source = self._source(shard)
        table = self._catalog.table(shard)
        if len(places) < FEW and source.fd is not None and not table.same:
            from wdscli.loader.read.pick import pick

            found = [pick(table, source, place, self._fields) for place in places.tolist()]
            METER.add(sum(len(data) for raw in found for data in raw.values() if type(data) is bytes))
            return found
        rows = Rows(table, places, self._fields)
        METER.add(rows.size_bytes)
        if rows.all_wanted and (source.fd is None or rows.widest < LARGE):
            payloads = _together(source, rows)
        else:
            payloads = _apart(source, rows)
        return rows.samples(payloads)

    def _source(self, shard: int) -> Source:
        source = self._sources.get(shard)
        if source is None:
            if len(self._sources) >= OPEN_SOURCES or (self._sources and _open_files() >= _most_open()):
                self._sources.popitem(last=False)[1].close()
            source = open_source(self._catalog.addresses[shard])
            try:
                _check_unchanged(self._catalog, shard, source)
            except BaseException:
                source.close()
                raise
            self._sources[shard] = source
        else:
            self._sources.move_to_end(shard)
        return source

    def close(self) -> None:
        """Let go of all files."""
        if "_helpers" in self.__dict__:
            self._helpers.shutdown(wait=True)
            del self._helpers
        for source in self._sources.values():
            source.close()
        self._sources.clear()


def divided(parts: list[Part], count: int, threads: int) -> list[list[Part]]:
    """``parts`` of ``count`` samples in about equal shares, in order.

    >>> divided([(3, range(5)), (4, range(2))], 7, 2)
    [[(3, range(0, 4))], [(3, range(4, 5)), (4, range(0, 2))]]
    """
    share = -(-count // threads)
    shares: list[list[Part]] = [[]]
    room = share
    for shard, places in parts:
        while len(places):
            if not room:
                shares.append([])
                room = share
            taken, places = places[:room], places[room:]
            shares[-1].append((shard, taken))
            room -= len(taken)
    return shares


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


def _check_unchanged(catalog: Catalog, shard: int, source: Source) -> None:
    """Raise DataError when the shard is another one than what is known of it says."""
    table = catalog.table(shard)
    if table.version not in ("", source.version):
        catalog.forget(shard)
        table = catalog.table(shard)
    table.version = source.version
    if source.size is not None and source.size != table.size:
        raise changed(table, 0)


def _together(source: Source, rows: Rows) -> list[bytes]:
    """Payloads by reads of whole samples and of what little lies between them."""
    runs = rows.runs(GAP if source.fd is not None else REMOTE_GAP, READ)
    found = _read_all(source, runs.bases, runs.lengths)
    rows.check(source, found, runs.members, runs.inside, runs.begins)
    each = chain.from_iterable(map(repeat, found, runs.members))
    return [data[begin:end] for data, begin, end in zip(each, runs.begins, runs.ends)]


def _read_all(source: Source, offsets: list[int], sizes: list[int]) -> list[bytes]:
    fd = source.fd
    if fd is None:
        return list(map(_read, repeat(source), offsets, sizes))
    try:
        found = list(map(os.pread, repeat(fd), sizes, offsets))
    except OSError as error:
        raise InputError(f"cannot read {source.name}: {error.strerror}") from error
    if list(map(len, found)) != sizes:
        return [
            data if len(data) == size else _read(source, offset, size)
            for data, offset, size in zip(found, offsets, sizes)
        ]
    return found


def _apart(source: Source, rows: Rows) -> list[bytes]:
    """Payloads by reads of the wanted members: those that lie close together at once, large ones of a local file each
    into its own bytes."""
    pieces = rows.pieces(gap=GAP, most=READ, large=LARGE if source.fd is not None else 1 << 62)
    found = _read_all(source, pieces.bases, pieces.lengths)
    rows.check(source, found, pieces.members, pieces.inside, pieces.begins)
    each = chain.from_iterable(map(repeat, found, pieces.members))
    payloads = [data[begin:end] for data, begin, end in zip(each, pieces.begins, pieces.ends)]
    offsets, sizes = rows.offsets, rows.sizes
    large = pieces.large
    alone = _read_all(source, [offsets[member] for member in large], [sizes[member] for member in large])
    for member, data in zip(large, alone):
        payloads[member] = data
    return payloads


def _read(source: Source, offset: int, size: int) -> bytes:
    data = b""
    if source.fd is not None:
        try:
            data = os.pread(source.fd, size, offset)
        except OSError as error:
            raise InputError(f"cannot read {source.name}: {error.strerror}") from error
    if len(data) != size:
        data = source.read_at(offset, size)
    if len(data) != size:
        raise DataError("archive ends inside a sample", code="truncated", shard=source.name, offset=offset)
    return data
