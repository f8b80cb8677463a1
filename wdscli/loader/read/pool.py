"""Samples by place for many threads at once, and after a fork.

What it is: :class:`Pool`, which hands each call a :class:`~wdscli.loader.read.fetch.Fetcher` of its own and takes it
back. How: local shards are read by the thread that asks. A call for samples of remote shards is divided among threads,
by shard so that each thread keeps to the shards it has open, or into stretches when there are fewer shards than
threads. A forked process begins with an empty pool: connections cannot be shared with the parent, and files cost little
to open again. It must not know why the samples are wanted."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from wdscli.loader.order import heap
from wdscli.loader.read.catalog import REMOTE_THREADS, Catalog
from wdscli.loader.read.fetch import Fetcher, Raw
from wdscli.loader.read.pick import pick
from wdscli.storage import is_local

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    import numpy
    from numpy.typing import NDArray

    I64: TypeAlias = NDArray[numpy.int64]

STRETCH = 4
"""Samples for which it is worth while that one more thread opens a shard."""
FEW = 8
"""Samples of each local shard, on the average, below which they are better read one by one."""


class Pool:
    """Reads samples of ``catalog`` for any thread. ``threads`` read at once for one call: by default one where all
    shards are local, else 16. Picklable; close it when done."""

    def __init__(
        self, catalog: Catalog, fields: Sequence[str] | None = None, threads: int | None = None
    ) -> None:
        self._catalog = catalog
        self._fields = fields
        self._only = None if fields is None else frozenset(field.lower() for field in fields)
        self._is_local = all(map(is_local, catalog.addresses))
        self._threads = threads or (1 if self._is_local else REMOTE_THREADS)
        self._begin()

    def _begin(self) -> None:
        heap.keep()
        self._process = os.getpid()
        self._idle: dict[int, list[Fetcher]] = {}
        self._executor: ThreadPoolExecutor | None = None

    def fetch(self, shards: I64, places: I64) -> list[Raw]:
        """The samples at ``places`` of ``shards``, in the order asked for. Raises InputError, DataError."""
        if self._process != os.getpid():
            self._leave()
        if self._threads > 1 and len(shards) > 1:
            return self._divided(shards, places)
        if self._is_local and len(shards) < FEW * len(self._catalog.addresses):
            numbers = shards.tolist()
            distinct = set(numbers)
            if len(numbers) < FEW * len(distinct) and not self._has_twins(distinct):
                return self._picked(numbers, places.tolist())
        return self._fetch(0, shards, places)

    def one(self, shard: int, place: int) -> Raw:
        """One sample. Raises InputError, DataError."""
        if not self._is_local or self._has_twins({shard}):
            import numpy

            return self._fetch(0, numpy.array([shard]), numpy.array([place]))[0]
        if self._process != os.getpid():
            self._leave()
        fetcher = self._taken(0)
        try:
            source = fetcher._source(shard)
            return pick(self._catalog.table(shard), source, place, self._only)
        finally:
            self._idle[0].append(fetcher)

    def _has_twins(self, shards: set[int]) -> bool:
        """Whether some shard has fields that are the same in lower case."""
        return any(self._catalog.table(shard).same for shard in shards)

    def _picked(self, shards: list[int], places: list[int]) -> list[Raw]:
        """Samples of local shards, few of each, one by one."""
        rows_of: dict[int, list[int]] = {}
        for row, shard in enumerate(shards):
            rows_of.setdefault(shard, []).append(row)
        found: list[Any] = [None] * len(shards)
        fetcher, only = self._taken(0), self._only
        try:
            for shard, rows in rows_of.items():
                source = fetcher._source(shard)
                table = self._catalog.table(shard)
                for row in rows:
                    found[row] = pick(table, source, places[row], only)
        finally:
            self._idle[0].append(fetcher)
        return found

    def _leave(self) -> None:
        """In a forked process: begin anew, and let nothing of the parent's be closed from here."""
        _PARENTS.append((self._idle, self._executor))
        self._begin()

    def _fetch(self, lane: int, shards: I64, places: I64) -> list[Raw]:
        fetcher = self._taken(lane)
        try:
            return fetcher.fetch(shards, places)
        finally:
            self._idle[lane].append(fetcher)

    def _taken(self, lane: int) -> Fetcher:
        """A fetcher that no other thread has, because list.pop and append are atomic."""
        idle = self._idle.setdefault(lane, [])
        try:
            return idle.pop()
        except IndexError:
            return Fetcher(self._catalog, self._fields)

    def _divided(self, shards: I64, places: I64) -> list[Raw]:
        found: list[Any] = [None] * len(shards)
        parts = divided(shards, places, self._threads)
        threads = self._pool()
        if len(parts) > 1:
            # Once each, rather than by every thread that comes to it.
            list(threads.map(self._catalog.table, sorted(set(shards.tolist()))))
        waiting = [
            (rows, threads.submit(self._fetch, lane, shards[rows], places[rows])) for lane, rows in parts
        ]
        try:
            for rows, future in waiting:
                for row, raw in zip(rows.tolist(), future.result()):
                    found[row] = raw
        finally:
            for _, future in waiting:
                future.cancel()
        return found

    def _pool(self) -> ThreadPoolExecutor:
        if self._executor is None:
            from concurrent.futures import ThreadPoolExecutor

            self._executor = ThreadPoolExecutor(self._threads, thread_name_prefix="wdscli-fetch")
        return self._executor

    def close(self) -> None:
        """Let go of files and threads; a later call opens what it needs again."""
        if self._process != os.getpid():
            return
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
        for idle in self._idle.values():
            for fetcher in idle:
                fetcher.close()
        self._begin()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_idle": None, "_executor": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()


_PARENTS: list[Any] = []
"""What belongs to the process that this one was forked from."""


def divided(shards: I64, places: I64, threads: int) -> list[tuple[int, I64]]:
    """(lane, rows) for each thread: whole shards, by their number, or stretches of neighbours when there are fewer
    shards than threads."""
    import numpy

    order = numpy.lexsort((places, shards)).astype(numpy.int64)
    if len(numpy.unique(shards)) >= threads:
        lane_of = shards[order] % threads
        return [(lane, order[lane_of == lane]) for lane in numpy.unique(lane_of).tolist()]
    lanes = max(len(numpy.unique(shards)), min(threads, len(order) // STRETCH))
    return [(lane, rows) for lane, rows in enumerate(numpy.array_split(order, lanes)) if len(rows)]
