"""Which samples are looked into, and which are shown: those of the smallest hashes of their keys.

What it is: :class:`Drawing`, to which the pages of a listing are shown, and :class:`Drawn`, one sample with the places
of its payloads. How: XXH3-64 of the key by the seed, so that a sample's rank depends on nothing but its key; the order
of shards and the number of processes cannot show. What is kept is bounded: twice the samples that are drawn. It must
not read payloads.
"""

from __future__ import annotations

from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from wdscli.look.listing import Page
from wdscli.samples.expected import Expected
from wdscli.tar import KIND_MASK, REGULAR


class DrawnMember(NamedTuple):
    """A member by its field's name in the selection, and where the shard has it under its own name."""

    field: bytes
    expected: Expected


class Drawn(NamedTuple):
    """One sample; ``rank`` is the hash by which it was drawn, ``place`` its place in the shard."""

    rank: int
    shard: str
    place: int
    key: bytes
    members: tuple[DrawnMember, ...]


class Drawing:
    """The ``limit`` samples of the smallest ranks among those that were shown to it."""

    def __init__(self, limit: int, seed: int = 0) -> None:
        self._limit = limit
        self._seed = seed % (1 << 64)
        self._kept: list[Drawn] = []
        self._worst = 1 << 64

    def look(self, page: Page) -> None:
        """Take what may be drawn of a page's samples."""
        seed, worst, batch = self._seed, self._worst, page.batch
        for row, key in enumerate(batch.keys):
            rank = xxh3_64_intdigest(key, seed)
            if rank < worst:
                self._kept.append(_drawn(page, row, rank))
        if len(self._kept) > 2 * self._limit:
            self._prune()

    def _prune(self) -> None:
        self._kept.sort(key=_order)
        del self._kept[self._limit :]
        # Of two samples of one key, either may have come first.
        self._worst = self._kept[-1].rank + 1 if self._kept else 0

    def drawn(self) -> list[Drawn]:
        """The samples, those of the smallest ranks first."""
        self._prune()
        return self._kept


def _order(one: Drawn) -> tuple[int, str, int]:
    return one.rank, one.shard, one.place


def _drawn(page: Page, row: int, rank: int) -> Drawn:
    batch = page.batch
    key, first, end = batch.keys[row], batch.firsts[row], batch.firsts[row + 1]
    members = tuple(
        DrawnMember(
            batch.fields[at],
            Expected(batch.starts[at], batch.offsets[at], key + b"." + page.stored[at], batch.sizes[at]),
        )
        for at in range(first, end)
        if batch.flags[at] & KIND_MASK == REGULAR
    )
    return Drawn(rank, page.shard, page.places[row], key, members)
