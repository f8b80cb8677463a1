"""This module finds keys that are repeated, in a shard or across all shards, and keys that no sample may have.

:class:`KeyColumns` collects 24 bytes per sample while one shard is read: a digest of the key, the sample's first byte,
its fields. Then it finds the samples that repeat a key. :func:`repeats_across` does the same for the digests of all
shards, with 8 bytes per sample, and as many again while it sorts. Both sort, and use no dictionaries. The digest is
XXH3-64 with a secret seed for each run, so that a crafted shard cannot hide a repeat. Before a repeat is
reported, joined or dropped, the two keys are read again and compared. Beyond the limit of findings, repeats are only
counted.

:class:`Absence` looks for the keys of a list in one shard. Keys are read from headers, never from an index. The SHA-256
of the list, and of the keys of each shard, let a user repeat the search with other tools
(``scripts/examples/check_proof.py``).

This module does not know how a shard is read.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from wdscli.arrays import I64, U8, U64, Mask, numpy
from wdscli.errors import InputNotFoundError, UsageError
from wdscli.model import to_text
from wdscli.samples import SampleBatch
from wdscli.selection.keyfiles import key_lines
from wdscli.storage import base_name, is_stream
from wdscli.verify.findings import Ledger

FEW_DIGESTS = 1 << 17
"""Up to this many digests a plain set is faster than loading numpy, and small enough."""
_CATCH_ALL = 63
digest = xxh3_64_intdigest
"""The digest of a key under a seed."""


INTERLEAVED, DUPLICATE, COLLISION = 1, 2, 3
"""How a sample repeats an earlier key: only with new fields, with a field that the earlier one has, in another case."""


class Repeats(NamedTuple):
    """For each sample of one shard, how it repeats a key (0: not at all), and the first sample with that key."""

    kinds: U8
    firsts: I64

    def rows(self, kind: int) -> I64:
        """The samples of a kind, in ascending order."""
        return numpy.flatnonzero(self.kinds == kind)


class KeyColumns:
    """The keys of one shard. ``keep_names`` also keeps the keys themselves, for streams, which cannot be read twice."""

    def __init__(self, *, keep_names: bool = False, seed: int = 0) -> None:
        self._seed = seed
        self.digests = array("Q")
        self.starts = array("Q")
        self.masks = array("Q")
        self._folded: array[int] | None = None
        self._bits: dict[bytes, int] = {}
        self._names = bytearray() if keep_names else None
        self._name_ends = array("Q")

    def mask(self, fields: Iterable[bytes]) -> int:
        """The bits of a sample's fields, one per field; all fields after the 63rd share one bit."""
        mask = 0
        for field in fields:
            if field not in self._bits and len(self._bits) <= _CATCH_ALL:
                self._bits[field] = 1 << len(self._bits)
            mask |= self._bits.get(field, 1 << _CATCH_ALL)
        return mask

    def add(self, batch: SampleBatch, masks: list[int]) -> None:
        """Add the samples of a batch, with one mask per sample."""
        keys, starts = batch.keys, batch.starts
        joined = b"".join(keys)
        if self._folded is None and not joined.islower() and joined.lower() != joined:
            self._folded = array("Q", self.digests)
        seed = self._seed
        self.digests.fromlist([digest(key, seed) for key in keys])
        if self._folded is not None:
            self._folded.fromlist([digest(key.lower(), seed) for key in keys])
        self.starts.fromlist(list(map(starts.__getitem__, batch.firsts[:-1])))
        self.masks.fromlist(masks)
        if self._names is not None:
            for key in keys:
                self._names += key
                self._name_ends.append(len(self._names))

    def name(self, row: int) -> bytes | None:
        """A key that was kept; None without ``keep_names``."""
        if self._names is None:
            return None
        return bytes(self._names[self._name_ends[row - 1] if row else 0 : self._name_ends[row]])

    def repeats(self) -> Repeats | None:
        """The samples that repeat an earlier key; None when there are none."""
        folded = self.digests if self._folded is None else self._folded
        if not _has_repeats([folded]):
            return None
        count = len(folded)
        kinds: U8 = numpy.zeros(count, dtype=numpy.uint8)
        firsts: I64 = numpy.arange(count, dtype=numpy.int64)
        for first, *rows in _groups(numpy.frombuffer(self.digests, dtype=numpy.uint64)):
            seen = self.masks[first]
            for row in rows:
                kinds[row] = DUPLICATE if seen & self.masks[row] else INTERLEAVED
                seen |= self.masks[row]
            firsts[rows] = first
        others = numpy.flatnonzero(kinds == 0)
        for first, *rows in _groups(numpy.frombuffer(folded, dtype=numpy.uint64)[others]):
            kinds[others[rows]] = COLLISION
            firsts[others[rows]] = others[first]
        return Repeats(kinds, firsts)

    def distinct(self, repeats: Repeats | None) -> bytes:
        """The digests of all samples, except those that repeat a key of this shard; in order, packed."""
        if repeats is None:
            return self.digests.tobytes()
        return self.packed((repeats.kinds == 0) | (repeats.kinds == COLLISION))

    def packed(self, chosen: Mask) -> bytes:
        """The digests of some samples, in order, packed."""
        packed: bytes = numpy.frombuffer(self.digests, dtype=numpy.uint64)[chosen].tobytes()
        return packed


def _has_repeats(parts: Iterable[array[int] | bytes]) -> bool:
    """Whether any digest occurs twice."""
    views = [memoryview(part).cast("B").cast("Q") for part in parts]
    total = sum(map(len, views))
    if total <= FEW_DIGESTS:
        return len(set().union(*views)) < total
    ordered: U64 = numpy.concatenate([numpy.asarray(view) for view in views])
    ordered.sort()
    return bool((ordered[1:] == ordered[:-1]).any())


def _groups(digests: U64) -> Iterator[list[int]]:
    """The rows of each digest that occurs more than once, in ascending order."""
    order = numpy.argsort(digests, kind="stable")
    ordered = digests[order]
    edges = numpy.flatnonzero(numpy.diff(ordered[1:] == ordered[:-1], prepend=False, append=False))
    for begin, end in edges.reshape(-1, 2).tolist():
        yield order[begin : end + 1].tolist()


class Across(NamedTuple):
    """The keys of one shard that an earlier shard has: their digests in order, and the first shard with each."""

    digests: list[int]
    first_shards: list[int]
    total: int


def repeats_across(packed: list[bytes], limit: int) -> Iterator[tuple[int, Across]]:
    """For each shard (by number) that repeats keys of earlier ones: their number, and the first ``limit`` of them.

    ``packed`` are the distinct digests of each shard. The list is emptied, so that they are in memory only once.
    """
    if sum(map(len, packed)) <= 8 * FEW_DIGESTS and not _has_repeats(packed):
        packed.clear()
        return
    ends: I64 = numpy.cumsum([len(part) // 8 for part in packed])
    digests: U64 = numpy.frombuffer(b"".join(packed), dtype=numpy.uint64)
    packed.clear()
    ordered = numpy.sort(digests)
    repeated = numpy.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    del ordered
    if not len(repeated):
        return
    # The first shard of each repeated key; shards come in order.
    first_in: I64 = numpy.full(len(repeated), -1, dtype=numpy.int64)
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
            first = part[again[:limit]].tolist()
            yield shard, Across(first, first_in[where[:limit]].tolist(), len(again))


PRESENT = "present-key"
"""The code of a finding: a sample has a key of the list."""


class Absence:
    """The search in one shard for the keys of a list."""

    def __init__(self, address: str, ledger: Ledger) -> None:
        self._keys = listed_keys(address)
        self._message = f"{base_name(address)} lists this key"
        self._ledger = ledger
        self._digest = sha256()

    def look(self, batch: SampleBatch) -> None:
        """Look at the keys of a batch."""
        self._digest.update(b"".join(key + b"\n" for key in batch.keys))
        if self._keys.isdisjoint(batch.keys):
            return
        for row, key in enumerate(batch.keys):
            if key in self._keys:
                self._ledger.add(PRESENT, self._message, offset=batch.start(row), member=key)

    @property
    def digest(self) -> str:
        """The SHA-256 of all keys so far in hexadecimal, each followed by a newline."""
        return self._digest.hexdigest()


@lru_cache(1)
def listed_keys(address: str) -> frozenset[bytes]:
    """The keys of a list. Raises UsageError for a stream, which other processes cannot read, and InputError."""
    if is_stream(address):
        raise UsageError("--absent needs a file, because several processes read it", hint="--absent FILE")
    try:
        return frozenset(key_lines(address))
    except InputNotFoundError as error:
        error.hint = "--absent takes a file with one key per line; for one key: echo KEY > keys.txt"
        raise


def impossible(keys: Iterable[bytes]) -> str:
    """A warning about listed keys that no sample can have, such as names of files; empty if there are none."""
    wrong = sorted(key for key in keys if b"." in key.rpartition(b"/")[2])
    if not wrong:
        return ""
    these = "a listed key has" if len(wrong) == 1 else f"{len(wrong)} listed keys have"
    return f'{these} a dot after the last slash, as no key has: "{to_text(wrong[0])}"; leave out .jpg and the like'
