"""The bytes to fetch from remote stores at a time, for samples in an order that jumps from shard to shard.

What it is: :func:`plan_requests`, which makes :class:`FetchRequests` for one call and the call after it. How: if all
shards of the order's window fit into memory, they are read whole, once. If not, a gap between two samples is skipped
unless reading it is cheaper than another request, nothing is fetched that would be dropped before it is read, and
shards are begun in the order in which they are read, so that the first ones have all the room. It must not know how
requests are made.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from wdscli.arrays import I64, numpy
from wdscli.loader.place.ranks import find_worker
from wdscli.loader.read.catalog import Catalog
from wdscli.loader.read.rows import SPARSE_GAP_BYTES, Stretches, stretches_of
from wdscli.shown import shown
from wdscli.storage import Source

EXPENSIVE = 2
"""Times the bytes of the samples alone; a request counts as SPARSE_GAP_BYTES."""
EXPENSIVE_SAMPLES = 10_000
"""Warn after this many expensive samples."""
_has_warned = False


class FetchRequest(NamedTuple):
    """Samples of a shard, and the bytes and requests for them."""

    shard: int
    places: list[int]
    cost: Stretches


class FetchRequests:
    """Planned requests, in the order of reading, with about ``room`` bytes requested or held at a time. Gaps
    of ``gap_bytes`` are skipped; None lets the connection's latency decide."""

    def __init__(self, requests: list[FetchRequest], room: int, gap_bytes: int | None) -> None:
        self.gap_bytes = gap_bytes
        self._requests, self._room = requests, room
        self._is_crowded = sum(one.cost.size_bytes for one in requests) > room
        self._begun: dict[int, int] = {}
        self._next = 0

    def fitting(self) -> Iterator[FetchRequest]:
        """Yield the requests that fit now, at least the next one."""
        while self._next < len(self._requests):
            request = self._requests[self._next]
            if self._begun and sum(self._begun.values()) + request.cost.size_bytes > self._room:
                return
            self._begun[request.shard] = request.cost.size_bytes
            self._next += 1
            yield request

    @property
    def expensive_samples(self) -> int:
        """The number of samples, if a cache on a local disc would make them much cheaper; else 0."""
        costs = [one.cost for one in self._requests]
        paid = sum(one.size_bytes + one.requests * SPARSE_GAP_BYTES for one in costs)
        is_expensive = self.gap_bytes is not None and paid > EXPENSIVE * sum(one.own_bytes for one in costs)
        return sum(len(one.places) for one in self._requests) if is_expensive else 0

    def done(self, shard: int, source: Source) -> None:
        """Note that a shard was read; drop its bytes if others need the room."""
        del self._begun[shard]
        if self._is_crowded:
            source.expect(())


def plan_requests(
    catalog: Catalog, wanted: dict[int, list[int]], soon: dict[int, list[int]], room: int
) -> FetchRequests:
    """Plan the requests for the samples ``wanted``, by shard and place, and for ``soon`` as far as there is ``room``.
    If all shards fit, gaps that are cheaper to read than a request are read too: their samples are wanted later."""
    tables = {shard: catalog.table_to_read(shard) for shard in wanted}
    # Tables of later shards are not loaded yet: their size is estimated by the others.
    size = sum(table.size for table in tables.values())
    mean = size / max(1, sum(table.samples for table in tables.values()))

    def stretches(shard: int, places: list[int]) -> Stretches:
        if shard in tables:
            return stretches_of(tables[shard], places)
        about = int(mean * len(places))
        return Stretches(about, about, 1)

    def sized(places: Mapping[int, list[int]]) -> list[FetchRequest]:
        return [FetchRequest(shard, some, stretches(shard, some)) for shard, some in places.items()]

    both = {shard: sorted({*wanted.get(shard, ()), *soon.get(shard, ())}) for shard in wanted | soon}
    requests = sized(both)
    if size / len(wanted) * len(both) <= room:
        return FetchRequests(requests, room, None)
    if sum(one.cost.size_bytes for one in requests) > room:
        # Dropped bytes would be fetched twice.
        requests = sized(wanted | {shard: soon[shard] for shard in soon if shard not in wanted})
    return FetchRequests(requests, room, SPARSE_GAP_BYTES)


def warn_if_expensive(samples: int, address: str) -> None:
    """Warn once in a process when this many samples, of ``address`` and other shards, were expensive to read."""
    global _has_warned
    if samples < EXPENSIVE_SAMPLES or _has_warned or find_worker()[0] > 0:
        return
    _has_warned = True
    warnings.warn(
        f"small samples of {shown(address)} are read in random order, which is slow; cache_dir=FOLDER keeps shards",
        stacklevel=2,
    )


def by_shard(shards: I64, places: I64) -> dict[int, list[int]]:
    """Group places by their shards, both rising."""
    order = numpy.lexsort((places, shards))
    found: dict[int, list[int]] = {}
    for shard, place in zip(shards[order].tolist(), places[order].tolist()):
        found.setdefault(shard, []).append(place)
    return found
