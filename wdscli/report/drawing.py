"""The samples that are read and shown: those with the smallest hashes of their keys.

What it is: :class:`Drawing`, which takes the pages of a listing, and :class:`Drawn`, one sample with the places of
its payloads. How: XXH3-64 of the key with the seed, so that a sample's rank depends only on its key, not on the
order of shards or the number of processes. At most twice the drawn samples are in memory. It must not read
payloads.
"""

from __future__ import annotations

from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from wdscli.look.listing import Page
from wdscli.samples.reading import Expected
from wdscli.tar import KIND_MASK, REGULAR


class DrawnMember(NamedTuple):
    """A member: its field's name in the selection, and its place under its own name in the shard."""

    field: bytes
    expected: Expected


class Drawn(NamedTuple):
    """One sample; ``rank`` is its hash, ``place`` its place in the shard."""

    rank: int
    shard: str
    place: int
    key: bytes
    members: tuple[DrawnMember, ...]


class Drawing:
    """The ``limit`` samples of the smallest ranks so far."""

    def __init__(self, limit: int, seed: int = 0) -> None:
        self._limit = limit
        self._seed = seed % (1 << 64)
        self._kept: list[Drawn] = []
        self._worst = 1 << 64

    def look(self, page: Page) -> None:
        """Add the samples of a page."""
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
        # Two samples of one key have one rank, and their order is decided later.
        self._worst = self._kept[-1].rank + 1 if self._kept else 0

    def drawn(self) -> list[Drawn]:
        """The samples, smallest ranks first."""
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
