"""Keys that come twice: within a shard, and over all shards.

What it is: :class:`KeyColumns` gathers 24 bytes a sample while one shard is read (a digest of the key, where the
sample begins, which fields it has) and says which samples repeat a key; :func:`repeats_across` does the same for the
digests of all shards, 8 bytes a sample and as many again while it sorts. How: sorting, not dictionaries. The
digest is XXH3-64: whoever tells of a repeat reads the two keys again and compares them.

It must not know how a shard is read, nor how findings are worded.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from wdscli.samples import SampleBatch

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

FEW = 1 << 18
"""Up to this many digests a plain set is quicker than loading numpy, and small enough."""
_CATCH_ALL = 63


def digester() -> Callable[[bytes], int]:
    """The digest of a key."""
    from xxhash import xxh3_64_intdigest

    return xxh3_64_intdigest


class Repeat(NamedTuple):
    """Sample ``row`` has a key that sample ``first`` had before (in other case, for ``case-collision``)."""

    row: int
    first: int


class Repeats(NamedTuple):
    """The samples of one shard whose key was there before, by kind, as rows in rising order."""

    interleaved: NDArray[numpy.int64]
    duplicate: NDArray[numpy.int64]
    collision: NDArray[numpy.int64]
    firsts: NDArray[numpy.int64]
    """For each row of the shard the row that had its key first."""

    def of(self, kind: str, limit: int) -> list[Repeat]:
        """The first ``limit`` of a kind."""
        rows = getattr(self, kind)[:limit].tolist()
        return [Repeat(row, int(self.firsts[row])) for row in rows]


class KeyColumns:
    """The keys of one shard. ``keep_names`` also keeps the keys themselves, for shards that cannot be read twice."""

    def __init__(self, *, keep_names: bool = False) -> None:
        self.digests = array("Q")
        self.starts = array("Q")
        self.masks = array("Q")
        self._folded: array[int] | None = None
        self._digest = digester()
        self._bits: dict[bytes, int] = {}
        self._names = bytearray() if keep_names else None
        self._name_ends = array("Q")

    def bit(self, field: bytes) -> int:
        """One bit a field; all fields after the 63rd share one."""
        known = self._bits.get(field)
        if known is None:
            known = 1 << min(len(self._bits), _CATCH_ALL)
            if len(self._bits) <= _CATCH_ALL:
                self._bits[field] = known
        return known

    def mask(self, fields: Iterable[bytes]) -> int:
        """The bits of a sample's fields."""
        mask = 0
        for field in fields:
            mask |= self.bit(field)
        return mask

    def add(self, batch: SampleBatch, masks: list[int]) -> None:
        """A batch's samples, ``masks`` one a sample."""
        keys, starts, digest = batch.keys, batch.starts, self._digest
        joined = b"".join(keys)
        if self._folded is None and not joined.islower() and joined.lower() != joined:
            self._folded = array("Q", self.digests)
        self.digests.extend([digest(key) for key in keys])
        if self._folded is not None:
            self._folded.extend([digest(key.lower()) for key in keys])
        self.starts.extend([starts[first] for first in batch.firsts[:-1]])
        self.masks.extend(masks)
        if self._names is not None:
            self._keep(keys)

    def _keep(self, keys: list[bytes]) -> None:
        assert self._names is not None
        for key in keys:
            self._names += key
            self._name_ends.append(len(self._names))

    def name(self, row: int) -> bytes | None:
        """A key that was kept."""
        if self._names is None:
            return None
        return bytes(self._names[self._name_ends[row - 1] if row else 0 : self._name_ends[row]])

    def repeats(self) -> Repeats | None:
        """Samples whose key was there before; None when there are none."""
        folded = self.digests if self._folded is None else self._folded
        if not has_repeats(folded):
            return None
        return _classified(self.digests, self.masks, folded)

    def distinct(self, repeats: Repeats | None) -> bytes:
        """The digests of all samples but those that repeat a key of this shard, in order, packed."""
        if repeats is None:
            return self.digests.tobytes()
        import numpy

        digests: NDArray[numpy.uint64] = numpy.frombuffer(self.digests, dtype=numpy.uint64)
        keep: NDArray[numpy.bool_] = numpy.ones(len(digests), dtype=bool)
        keep[repeats.interleaved] = False
        keep[repeats.duplicate] = False
        packed: bytes = digests[keep].tobytes()
        return packed


def has_repeats(digests: array[int]) -> bool:
    """Whether any number is there twice."""
    if len(digests) <= FEW:
        return len(set(digests)) < len(digests)
    import numpy

    ordered: NDArray[numpy.uint64] = numpy.sort(numpy.frombuffer(digests, dtype=numpy.uint64))
    return bool((ordered[1:] == ordered[:-1]).any())


def _runs(digests: NDArray[numpy.uint64]) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64]]:
    """(the rows in order of their digest, the places in that order at which a digest repeats the one before)."""
    import numpy

    order = numpy.argsort(digests, kind="stable")
    ordered = digests[order]
    return order, numpy.flatnonzero(ordered[1:] == ordered[:-1]) + 1


def _classified(digests: array[int], masks: array[int], folded: array[int]) -> Repeats:
    """A repeat whose fields are all new to its key can be joined (interleaved), another is a duplicate."""
    import numpy

    count = len(digests)
    exact: NDArray[numpy.uint64] = numpy.frombuffer(digests, dtype=numpy.uint64)
    kinds: NDArray[numpy.uint8] = numpy.zeros(count, dtype=numpy.uint8)
    firsts: NDArray[numpy.int64] = numpy.arange(count, dtype=numpy.int64)
    order, places = _runs(exact)
    last, seen, first = -1, 0, 0
    for place in places.tolist():
        if place != last + 1:
            first = int(order[place - 1])
            seen = masks[first]
        row = int(order[place])
        kinds[row] = 2 if seen & masks[row] else 1
        firsts[row] = first
        seen |= masks[row]
        last = place
    collisions = _collisions(numpy.frombuffer(folded, dtype=numpy.uint64), kinds, firsts)
    return Repeats(numpy.flatnonzero(kinds == 1), numpy.flatnonzero(kinds == 2), collisions, firsts)


def _collisions(
    folded: NDArray[numpy.uint64], kinds: NDArray[numpy.uint8], firsts: NDArray[numpy.int64]
) -> NDArray[numpy.int64]:
    """Rows whose key, in lower case, is that of an earlier row of another key."""
    import numpy

    rows = numpy.flatnonzero(kinds == 0)
    order, places = _runs(folded[rows])
    last, first, found = -1, 0, []
    for place in places.tolist():
        if place != last + 1:
            first = int(rows[order[place - 1]])
        row = int(rows[order[place]])
        firsts[row] = first
        found.append(row)
        last = place
    return numpy.array(sorted(found), dtype=numpy.int64)


class Across(NamedTuple):
    """Keys of one shard that an earlier shard had: their digests in order, and for each the shard that had it first."""

    digests: list[int]
    first_shards: list[int]
    total: int


def repeats_across(packed: list[bytes], limit: int) -> Iterator[tuple[int, Across]]:
    """For each shard (by number) that repeats keys of earlier ones: how many, and the first ``limit`` of them.

    ``packed`` are the distinct digests of each shard; the list is emptied, so that they are held once only.
    """
    total = sum(map(len, packed)) // 8
    if total <= FEW:
        seen: set[int] = set()
        for part in packed:
            seen.update(memoryview(part).cast("Q"))
        if len(seen) == total:
            packed.clear()
            return
    yield from _repeats_across(packed, limit)


def _repeats_across(packed: list[bytes], limit: int) -> Iterator[tuple[int, Across]]:
    import numpy

    ends: NDArray[numpy.int64] = numpy.cumsum([len(part) // 8 for part in packed])
    digests: NDArray[numpy.uint64] = numpy.frombuffer(b"".join(packed), dtype=numpy.uint64)
    packed.clear()
    ordered = numpy.sort(digests)
    repeated = numpy.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    del ordered
    if not len(repeated):
        return
    # The shard in which each repeated key was first; shards are looked at in order.
    first_in: NDArray[numpy.int64] = numpy.full(len(repeated), -1, dtype=numpy.int64)
    begin = 0
    for shard, end in enumerate(ends.tolist()):
        part = digests[begin:end]
        begin = end
        places = numpy.minimum(numpy.searchsorted(repeated, part), len(repeated) - 1)
        hits = numpy.flatnonzero(repeated[places] == part)
        places = places[hits]
        known = first_in[places] >= 0
        first_in[places[~known]] = shard
        again, where = hits[known], places[known]
        if len(again):
            told = part[again[:limit]].tolist()
            yield shard, Across(told, first_in[where[:limit]].tolist(), len(again))
