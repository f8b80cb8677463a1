"""This module implements ``--sample N|P --seed``: it draws a random subset of the samples that the other options
select.

:class:`Draw` is a number of samples, or a share of all samples. :class:`LowestRanks` finds the N lowest ranks. A key
has a rank, ``mix(mix(seed ^ SALT) ^ XXH3-64(key))``. Like the order of a shuffle, this never changes
(:mod:`wdscli.ordering`). A share P draws all ranks below P * 2^64, and needs only one sample at a time. A number N
draws the N lowest ranks, and needs all keys first. So the draw does not depend on the order of shards, or on the
process that reads them. With the same seed, a smaller draw is part of a larger draw, and a set that grows keeps most of
its draw. The salt makes draws independent of the parts of ``split --ratio``, which use ranks too. This module does not
know what the samples are for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from heapq import heappush, heapreplace
from typing import Any, NamedTuple

from xxhash import xxh3_64_intdigest

from wdscli.arrays import I64, U64, numpy
from wdscli.errors import UsageError
from wdscli.ordering import mix, mix_array
from wdscli.storage import is_local, is_stream, local_path
from wdscli.storage.opening import is_device

SALT = 0x73616D706C65
RANKS = 1 << 64
DRAWN = "sample"
"""The reason for counting samples that were not drawn."""
_HINT = "--sample 1000 for a number of samples, --sample 10% or 0.1 for a share"
_SHARE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{0,12})?|\.[0-9]{1,12})(%?)", re.ASCII)


class Draw(NamedTuple):
    """The samples to draw: the samples with the ``number`` lowest ranks. If ``number`` is None, these are all samples
    with a rank below ``bound``, and the first ``ties`` samples whose rank equals ``bound``. :meth:`settled` turns a
    number into a bound after all samples were seen. ``start`` is ``mix(seed ^ SALT)``."""

    text: str
    start: int
    number: int | None = None
    bound: int = RANKS
    ties: int = 0

    @classmethod
    def parse(cls, text: str, seed: int = 0) -> Draw:
        """Parse a number of samples, or a share: ``10%``, ``0.1``. Raises UsageError.

        >>> Draw.parse("25%").bound == Draw.parse("0.25").bound == 1 << 62, Draw.parse("1000").number
        (True, 1000)
        """
        match, start = _SHARE.fullmatch(text.strip()), mix(seed ^ SALT)
        if match is None:
            raise UsageError(f"--sample {text} is neither a number of samples nor a share", hint=_HINT)
        if match[1].isdecimal() and not match[2]:
            if not int(match[1]):
                raise UsageError("--sample 0 draws nothing", hint=_HINT)
            return cls(text, start, int(match[1]))
        share = Fraction(match[1]) / (100 if match[2] else 1)
        if not 0 < share <= 1:
            raise UsageError(f"--sample {text}: a share must be above 0 and at most 1 (100%)", hint=_HINT)
        return cls(text, start, None, -(-share.numerator * RANKS // share.denominator))

    @property
    def is_open(self) -> bool:
        """Whether all samples must be seen before the first sample is drawn."""
        return self.number is not None

    @property
    def takes_most(self) -> bool:
        """Whether more than a quarter of all samples is surely drawn."""
        return not self.is_open and self.bound > RANKS // 4

    def takes(self, rank: int, ties: int) -> bool:
        """Return whether a sample of this rank is drawn, after ``ties`` samples of rank ``bound``. Raises UsageError if
        a number is not settled."""
        if self.is_open:
            raise UsageError(
                f"--sample {self.text} must see all samples before it draws the first",
                hint="a share needs no second pass: --sample 10%",
            )
        return rank < self.bound or (rank == self.bound and ties < self.ties)

    def rank(self, key: bytes) -> int:
        """Return the rank of a key."""
        return mix(self.start ^ xxh3_64_intdigest(key))

    def ranks(self, hashes: U64) -> U64:
        """Return the ranks of keys with these XXH3-64 hashes."""
        return mix_array(hashes ^ numpy.uint64(self.start))

    def left_out(self, hashes: U64) -> I64:
        """Return the rows that are not drawn, in rising order. ``hashes`` are the XXH3-64 of the keys of all
        samples."""
        assert self.number is not None
        if self.number >= len(hashes):
            return numpy.empty(0, dtype=numpy.int64)
        ranks = self.ranks(hashes)
        bound = numpy.partition(ranks, self.number - 1)[self.number - 1]
        out: Any = ranks > bound
        tied = numpy.flatnonzero(ranks == bound)
        out[tied[self.number - int((ranks < bound).sum()) :]] = True
        return numpy.flatnonzero(out)

    def lack(self, total: int) -> str:
        """Return the warning that there are fewer samples than the number to draw. It is empty if there are enough."""
        if self.number is None or self.number <= total:
            return ""
        return f"--sample {self.text} draws all {total} selected samples"

    def settled(self, lowest: LowestRanks) -> Draw:
        """Return the draw as a bound, after all ranks were seen."""
        bound, ties = lowest.end()
        return self._replace(number=None, bound=bound, ties=ties)


class LowestRanks:
    """Finds the lowest ranks of a draw. With ``distinct`` a repeated key counts once."""

    def __init__(self, draw: Draw, *, distinct: bool = False) -> None:
        assert draw.number is not None
        self._draw = draw
        self._most = draw.number
        self._heap: list[int] = []
        self._is_distinct = distinct
        self._held: set[int] = set()
        """The ranks in the heap; empty unless keys must be distinct."""
        self.total = 0

    def add(self, keys: Iterable[bytes]) -> None:
        """Add keys of samples that may be drawn."""
        heap, held = self._heap, self._held
        for key in keys:
            rank = -self._draw.rank(key)
            if rank in held:
                continue
            self.total += 1
            if len(heap) < self._most:
                heappush(heap, rank)
            elif rank > heap[0]:
                held.discard(heapreplace(heap, rank))
            else:
                continue
            if self._is_distinct:
                held.add(rank)

    def end(self) -> tuple[int, int]:
        """Return the highest rank that is drawn, and how many samples with this rank are drawn."""
        if len(self._heap) < self._most:
            return RANKS, 0
        bound = -self._heap[0]
        # With distinct keys the caller skips repeated keys.
        return bound, RANKS if self._is_distinct else self._heap.count(-bound)


def check_rereadable(draw: Draw, addresses: Sequence[str]) -> None:
    """Raise UsageError for a shard that cannot be read twice, once to rank its keys and once to draw."""
    for address in addresses:
        if is_stream(address) or (is_local(address) and is_device(local_path(address))):
            raise UsageError(
                f"{address} can be read only once, but --sample {draw.text} reads it twice",
                hint="draw a share: --sample 10%; or store it first: wds cat SHARD -o plain.tar",
            )
