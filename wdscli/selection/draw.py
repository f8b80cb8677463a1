"""``--sample N|P --seed``: a random subset of the samples that are otherwise selected.

What it is: :class:`Draw`, a number of samples or a share of them, and :class:`Lowest`, which finds where a number ends.
How: a key has a rank, ``mix(mix(seed ^ SALT) ^ XXH3-64(key))``, pinned as the order of a shuffle is
(:mod:`wdscli.ordering`). A share P takes the ranks below P * 2^64, each sample by itself; a number N takes the N lowest
ranks, of which one must have seen all. So neither the order of shards nor who reads them changes what is drawn, a
smaller draw is part of a larger one of the same seed, and a set that grows keeps most of what was drawn. The salt
keeps a draw apart from the parts of ``split --ratio``, which are cut by ranks too. It must not know what is drawn for.
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
"""Why samples are left out that were not drawn."""
_HINT = "--sample 1000 for as many samples, --sample 10% or 0.1 for a share of them"
_SHARE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{0,12})?|\.[0-9]{1,12})(%?)", re.ASCII)


class Draw(NamedTuple):
    """What to draw: the lowest ``number`` ranks, or with None those below ``bound``. A number becomes a bound once all
    samples were seen (:meth:`settled`); of the rank ``bound`` itself the first ``ties`` samples are drawn. ``start`` is
    ``mix(seed ^ SALT)``."""

    text: str
    start: int
    number: int | None = None
    bound: int = RANKS
    ties: int = 0

    @classmethod
    def parse(cls, text: str, seed: int = 0) -> Draw:
        """A number of samples, or a share: ``10%``, ``0.1``. Raises UsageError.

        >>> Draw.parse("25%").bound == Draw.parse("0.25").bound == 1 << 62, Draw.parse("1000").number
        (True, 1000)
        """
        match, start = _SHARE.fullmatch(text.strip()), mix(seed ^ SALT)
        if match is None:
            raise UsageError(f"--sample {text}: not a number of samples, nor a share", hint=_HINT)
        if match[1].isdecimal() and not match[2]:
            if not int(match[1]):
                raise UsageError("--sample 0 draws nothing", hint=_HINT)
            return cls(text, start, int(match[1]))
        share = Fraction(match[1]) / (100 if match[2] else 1)
        if not 0 < share <= 1:
            raise UsageError(f"--sample {text}: a share is more than 0 and at most 1, or 100%", hint=_HINT)
        return cls(text, start, None, -(-share.numerator * RANKS // share.denominator))

    @property
    def is_open(self) -> bool:
        """Whether all samples must be seen before one is drawn."""
        return self.number is not None

    @property
    def takes_most(self) -> bool:
        """Whether a good part of all samples is drawn, as far as that is known."""
        return not self.is_open and self.bound > RANKS // 4

    def takes(self, rank: int, ties: int) -> bool:
        """Whether a sample of this rank is drawn, ``ties`` of the bound's being so already. Raises UsageError before a
        number is settled."""
        if self.is_open:
            raise UsageError(
                f"--sample {self.text} needs all samples before it draws some",
                hint="a share goes as they come: 10%",
            )
        return rank < self.bound or (rank == self.bound and ties < self.ties)

    def rank(self, key: bytes) -> int:
        """The rank of a key."""
        return mix(self.start ^ xxh3_64_intdigest(key))

    def ranks(self, hashes: U64) -> U64:
        """The ranks of keys of these XXH3-64."""
        return mix_array(hashes ^ numpy.uint64(self.start))

    def left_out(self, hashes: U64) -> I64:
        """The rows that are not drawn, rising, of all there are: each has the XXH3-64 of its key."""
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
        """What to say where there are fewer samples than are to be drawn, empty where there are enough."""
        if self.number is None or self.number <= total:
            return ""
        return f"--sample {self.text} draws all samples that are selected: there are {total}"

    def settled(self, lowest: Lowest) -> Draw:
        """The same as a bound, now that all ranks were seen."""
        bound, ties = lowest.end()
        return self._replace(number=None, bound=bound, ties=ties)


class Lowest:
    """The lowest ranks of a draw, as keys go by. With ``distinct`` a key counts once."""

    def __init__(self, draw: Draw, *, distinct: bool = False) -> None:
        assert draw.number is not None
        self._draw = draw
        self._most = draw.number
        self._heap: list[int] = []
        self._held: set[int] | None = set() if distinct else None
        self.total = 0

    def add(self, keys: Iterable[bytes]) -> None:
        """Keys of samples that may be drawn."""
        heap, most = self._heap, self._most
        for key in keys:
            self.total += 1
            rank = -self._draw.rank(key)
            if self._held is not None:
                if rank in self._held:
                    self.total -= 1
                    continue
                self._held.add(rank)
            if len(heap) < most:
                heappush(heap, rank)
            elif rank > heap[0]:
                gone = heapreplace(heap, rank)
                if self._held is not None:
                    self._held.discard(gone)
            elif self._held is not None:
                self._held.discard(rank)

    def end(self) -> tuple[int, int]:
        """The first rank that is not drawn whole, and how many samples of it are."""
        if len(self._heap) < self._most:
            return RANKS, 0
        bound = -self._heap[0]
        # A key that comes again is left out by others where keys are distinct.
        return bound, self._heap.count(-bound) if self._held is None else RANKS


def check_again(draw: Draw, addresses: Sequence[str]) -> None:
    """Raise UsageError for shards that cannot be read twice, once to see what there is and once to draw."""
    for address in addresses:
        if is_stream(address) or (is_local(address) and is_device(local_path(address))):
            raise UsageError(
                f"{address} can be read only once, and --sample {draw.text} reads it twice",
                hint="a share goes as samples come: --sample 10%; or store it first: wds cat SHARD -o plain.tar",
            )
