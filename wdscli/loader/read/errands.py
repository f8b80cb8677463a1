"""What to fetch from other machines at a time, for samples in an order that jumps from shard to shard.

What it is: :func:`errands_for`, which makes :class:`Errands` of what one call wants and the call after it. How: where
all shards of the order's window can be held, they are read whole, once. Where they cannot, what lies between two
samples is left out unless it is cheaper to read than to ask again, nothing is fetched that would have to be let go of
before it is read, and shards are begun in the order in which they are read, so that those that come first have all the
room. It must not know how requests are made.
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

DEAR = 2
"""So many times what the samples alone would take, counted in bytes with those that a request is worth."""
DEAR_SAMPLES = 10_000
"""After so many that were dear, a user is told."""
_has_told = False


class Errand(NamedTuple):
    """Samples of a shard, and what reading them takes."""

    shard: int
    places: list[int]
    takes: Stretches


class Errands:
    """What to fetch, in the order in which it will be read, with about ``room`` bytes on their way or held at a time.
    ``gap_bytes`` says which gaps to leave out, None that it is for the line to say."""

    def __init__(self, errands: list[Errand], room: int, gap_bytes: int | None) -> None:
        self.gap_bytes = gap_bytes
        self._errands, self._room = errands, room
        self._is_crowded = sum(errand.takes.size_bytes for errand in errands) > room
        self._begun: dict[int, int] = {}
        self._next = 0

    def fitting(self) -> Iterator[Errand]:
        """What can be begun now, the next in any case."""
        while self._next < len(self._errands):
            errand = self._errands[self._next]
            if self._begun and sum(self._begun.values()) + errand.takes.size_bytes > self._room:
                return
            self._begun[errand.shard] = errand.takes.size_bytes
            self._next += 1
            yield errand

    @property
    def dear_samples(self) -> int:
        """How many samples this is about, where reading them from a disc would be worth much; else 0."""
        takes = [errand.takes for errand in self._errands]
        paid = sum(one.size_bytes + one.requests * SPARSE_GAP_BYTES for one in takes)
        is_dear = self.gap_bytes is not None and paid > DEAR * sum(one.own_bytes for one in takes)
        return sum(len(errand.places) for errand in self._errands) if is_dear else 0

    def done(self, shard: int, source: Source) -> None:
        """A shard was read. Where others need its room, nothing of it is held."""
        del self._begun[shard]
        if self._is_crowded:
            source.expect(())


def errands_for(
    catalog: Catalog, wanted: dict[int, list[int]], soon: dict[int, list[int]], room: int
) -> Errands:
    """What to fetch for the samples ``wanted``, by shard and place, and for ``soon`` as far as there is ``room``. Of
    shards that can all be held no gap is left out that is cheaper to read than to ask again: what lies there will be
    wanted."""
    tables = {shard: catalog.table_to_read(shard) for shard in wanted}
    # The tables of others are not here yet: those that are tell about how large they are.
    size = sum(table.size for table in tables.values())
    mean = size / max(1, sum(table.samples for table in tables.values()))

    def stretches(shard: int, places: list[int]) -> Stretches:
        if shard in tables:
            return stretches_of(tables[shard], places)
        about = int(mean * len(places))
        return Stretches(about, about, 1)

    def sized(places: Mapping[int, list[int]]) -> list[Errand]:
        return [Errand(shard, some, stretches(shard, some)) for shard, some in places.items()]

    both = {shard: sorted({*wanted.get(shard, ()), *soon.get(shard, ())}) for shard in wanted | soon}
    errands = sized(both)
    if size / len(wanted) * len(both) <= room:
        return Errands(errands, room, None)
    if sum(errand.takes.size_bytes for errand in errands) > room:
        # What had to be let go of would come twice.
        errands = sized(wanted | {shard: soon[shard] for shard in soon if shard not in wanted})
    return Errands(errands, room, SPARSE_GAP_BYTES)


def tell_if_dear(samples: int, address: str) -> None:
    """Warn, once a process, when so many samples were dear to read, from ``address`` and elsewhere."""
    global _has_told
    if samples < DEAR_SAMPLES or _has_told or find_worker()[0] > 0:
        return
    _has_told = True
    warnings.warn(
        f"small samples of {shown(address)} and its neighbours are read in random order, which takes a request for "
        "each, or bytes that nobody wants; cache_dir=FOLDER keeps the shards in use on this machine",
        stacklevel=2,
    )


def by_shard(shards: I64, places: I64) -> dict[int, list[int]]:
    """Places by their shards, both rising."""
    order = numpy.lexsort((places, shards))
    found: dict[int, list[int]] = {}
    for shard, place in zip(shards[order].tolist(), places[order].tolist()):
        found.setdefault(shard, []).append(place)
    return found
