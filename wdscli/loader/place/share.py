"""The positions of an epoch that a worker reads, batch by batch.

How: with ``batch`` samples a rank and ``world`` ranks, global batch k has the positions from k*G to (k+1)*G, where G is
batch * world. Rank r reads those whose place in the global batch is r modulo ``world``; batch k of a rank is made by
the worker k - first modulo ``workers``, because a DataLoader takes a batch from each worker in turn. So the global
batches are the same for any world and any number of workers. It must not know samples.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from wdscli.arrays import I64, numpy
from wdscli.loader.place.ranks import Share

Tail = Literal["even", "drop", "pad", "uneven"]
"""The treatment of a short last global batch. ``"even"``: it stays short, and ranks get equal numbers of its samples:
the first samples of the epoch are repeated, fewer than there are ranks; ``"drop"``: dropped; ``"pad"``: filled up from
the beginning; ``"uneven"``: as it is, and some ranks may have fewer samples or none."""
TAILS = ("even", "drop", "pad", "uneven")


class Batches(NamedTuple):
    """The batches of one epoch. ``length`` is the epoch's positions, ``batch`` the samples of a rank's batch."""

    length: int
    batch: int
    share: Share
    tail: Tail = "even"

    @property
    def whole(self) -> int:
        """Samples of a global batch."""
        return self.batch * self.share.world

    @property
    def total(self) -> int:
        """Batches of an epoch, the same on every rank. With ``tail="uneven"`` the last may be empty on some ranks."""
        whole = self.length // self.whole
        return whole if self.tail == "drop" else -(-self.length // self.whole)

    @property
    def end(self) -> int:
        """Samples of the epoch's batches of all ranks; those from ``length`` on repeat the first ones."""
        if self.tail in ("drop", "pad"):
            return self.total * self.whole
        return self.length + (-self.length % self.share.world if self.tail == "even" else 0)

    def positions(self, number: int) -> I64:
        """The positions of batch ``number`` for this rank, in order."""
        return self.several(range(number, number + 1))[0]

    def several(self, numbers: range) -> tuple[I64, list[int]]:
        """The positions of some batches, one after the other, and the number of each batch."""
        # At most the epoch's samples: a batch size may be larger than memory.
        count = min(self.batch, self.end)
        firsts: I64 = self.whole * numpy.arange(numbers.start, numbers.stop, numbers.step, dtype=numpy.int64)
        places: I64 = self.share.rank + self.share.world * numpy.arange(count, dtype=numpy.int64)
        found: I64 = (firsts[:, None] + places).reshape(-1)
        if len(numbers) and (numbers[-1] + 1) * self.whole <= self.length:
            return found, [self.batch] * len(numbers)
        inside = found < self.end
        counts: list[int] = inside.reshape(len(numbers), count).sum(axis=1).tolist()
        return found[inside] % max(1, self.length), counts
