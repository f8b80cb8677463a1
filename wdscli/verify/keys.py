"""This module finds repeated keys, in a shard or across all shards, and keys that must be absent.

:class:`KeyColumns` collects 24 bytes per sample while one shard is read: a digest of the key, the offset of the sample,
and its fields. Then it finds the samples that repeat a key. :func:`repeats_across` finds repeated digests over all
shards. It needs 8 bytes per sample, and 8 more while it sorts. Both sort the digests, because dictionaries would need
more memory. The digest is XXH3-64 with a secret seed for each run, so that a crafted shard cannot hide a repeated key.
Before a repeated key is reported, or its sample is joined or dropped, both keys are read again and compared
(:func:`report_repeats` in one shard, :func:`locate` across shards). Above the limit of findings, repeated keys are only
counted.

:class:`Absence` searches one shard for the keys of a list. Keys are read from headers, never from an index. The report
has the SHA-256 of the list, and of the keys of each shard. So a user can repeat the search with other tools
(``scripts/examples/check_proof.py``).

This module does not know how a shard is checked.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from wdscli.arrays import I64, U8, U64, Mask, numpy
from wdscli.errors import DataError, InputError, InputNotFoundError, StorageError, UsageError
from wdscli.samples import Grouper, SampleBatch, split_name
from wdscli.samples.keys import hashes_of_joined
from wdscli.selection.keyfiles import key_lines
from wdscli.storage import base_name, is_stream, open_source
from wdscli.tar import ByteSource, scan
from wdscli.tar.reader import scan_salvaging
from wdscli.text import to_text
from wdscli.verify.findings import Ledger

FEW_DIGESTS = 1 << 17
"""Up to this many digests, a Python set is faster than loading numpy, and small enough. If numpy is loaded, it is
faster."""
_CATCH_ALL = 63
digest = xxh3_64_intdigest
"""The digest of a key with a seed."""


INTERLEAVED, DUPLICATE, COLLISION = 1, 2, 3
"""How a sample repeats an earlier key: its fields are all new; it has a field of the earlier sample; or its key differs
only in case."""


_REPEATS = (
    (INTERLEAVED, "interleaved-key", "the key comes back with other fields; it is first at byte {}"),
    (DUPLICATE, "duplicate-key", "the key comes a second time; it is first at byte {}"),
    (COLLISION, "case-collision", "the key at byte {} differs only in case"),
)
_KEY_CHUNK_BYTES = 1 << 12


class Repeats(NamedTuple):
    """For each sample of one shard, how it repeats a key (0: it does not), and the first sample with this key."""

    kinds: U8
    firsts: I64

    def rows(self, kind: int) -> I64:
        """Return the samples with one kind of repeat, in rising order."""
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
        """Return the bits for a sample's fields. Each field has its own bit, but all fields after the 63rd share one
        bit."""
        mask = 0
        for field in fields:
            if field not in self._bits and len(self._bits) <= _CATCH_ALL:
                self._bits[field] = 1 << len(self._bits)
            mask |= self._bits.get(field, 1 << _CATCH_ALL)
        return mask

    def add(self, batch: SampleBatch, masks: list[int]) -> None:
        """Add the samples of a batch, with one mask per sample."""
        starts = array("Q", map(batch.starts.__getitem__, batch.firsts[:-1]))
        lengths = array("q", map(len, batch.keys))
        self.add_joined(b"".join(batch.keys), lengths, starts, array("Q", masks))

    def add_joined(
        self, keys: bytes, lengths: I64 | array[int], starts: array[int], masks: array[int]
    ) -> None:
        """Add samples: their keys, joined, with the length of each, and their first bytes and masks."""
        if self._folded is None and not keys.islower() and keys.lower() != keys:
            self._folded = array("Q", self.digests)
        self.digests.extend(hashes_of_joined(keys, lengths, self._seed))
        if self._folded is not None:
            self._folded.extend(hashes_of_joined(keys.lower(), lengths, self._seed))
        self.starts.extend(starts)
        self.masks.extend(masks)
        if self._names is not None:
            base = len(self._names)
            self._names += keys
            self._name_ends.extend(base + end for end in accumulate(lengths))

    def name(self, row: int) -> bytes | None:
        """Return a kept key, or None without ``keep_names``."""
        if self._names is None:
            return None
        return bytes(self._names[self._name_ends[row - 1] if row else 0 : self._name_ends[row]])

    def repeats(self) -> Repeats | None:
        """Return the samples that repeat an earlier key, or None if there are none."""
        folded = self.digests if self._folded is None else self._folded
        if not _has_repeats([folded]):
            return None
        count = len(folded)
        kinds: U8 = numpy.zeros(count, dtype=numpy.uint8)
        firsts: I64 = numpy.arange(count, dtype=numpy.int64)
        for first, *rows in _groups(numpy.frombuffer(self.digests, dtype=numpy.uint64)):
            seen_fields = self.masks[first]
            for row in rows:
                kinds[row] = DUPLICATE if seen_fields & self.masks[row] else INTERLEAVED
                seen_fields |= self.masks[row]
            firsts[rows] = first
        distinct_rows = numpy.flatnonzero(kinds == 0)
        for first, *rows in _groups(numpy.frombuffer(folded, dtype=numpy.uint64)[distinct_rows]):
            kinds[distinct_rows[rows]] = COLLISION
            firsts[distinct_rows[rows]] = distinct_rows[first]
        return Repeats(kinds, firsts)

    def distinct(self, repeats: Repeats | None) -> bytes:
        """Return the digests of all samples in order, packed. Samples that repeat a key of this shard are left out."""
        if repeats is None:
            return self.digests.tobytes()
        return self.packed((repeats.kinds == 0) | (repeats.kinds == COLLISION))

    def packed(self, chosen: Mask) -> bytes:
        """Return the digests of some samples in order, packed."""
        packed: bytes = numpy.frombuffer(self.digests, dtype=numpy.uint64)[chosen].tobytes()
        return packed


def _has_repeats(parts: Iterable[array[int] | bytes]) -> bool:
    """Return whether any digest occurs twice."""
    views = [memoryview(part).cast("B").cast("Q") for part in parts]
    total = sum(map(len, views))
    if total < 2:
        return False
    if total <= FEW_DIGESTS and "numpy" not in sys.modules:
        return len(set().union(*views)) < total
    ordered: U64 = numpy.concatenate([numpy.asarray(view) for view in views])
    ordered.sort()
    return bool((ordered[1:] == ordered[:-1]).any())


def _groups(digests: U64) -> Iterator[list[int]]:
    """Yield the rows of each digest that occurs more than once, in rising order."""
    order = numpy.argsort(digests, kind="stable")
    ordered = digests[order]
    edges = numpy.flatnonzero(numpy.diff(ordered[1:] == ordered[:-1], prepend=False, append=False))
    for begin, end in edges.reshape(-1, 2).tolist():
        yield order[begin : end + 1].tolist()


def report_repeats(repeats: Repeats, keys: KeyColumns, source: ByteSource, ledger: Ledger) -> None:
    """Report repeated keys of a shard, and keys that differ only in case. The keys themselves are compared, because
    two different keys may share a digest."""
    for kind, code, message in _REPEATS:
        rows = repeats.rows(kind)
        reported = rows[: ledger.room(code)].tolist()
        for row in reported:
            first = int(repeats.firsts[row])
            key, first_key = _key(keys, source, row), _key(keys, source, first)
            if key == first_key or (kind == COLLISION and key.lower() == first_key.lower()):
                text = message.format(keys.starts[first])
                ledger.add(code, text, offset=keys.starts[row], member=key)
        ledger.more(code, len(rows) - len(reported))


def _key(keys: KeyColumns, source: ByteSource, row: int) -> bytes:
    """Return the key of a sample, from memory or by reading it again."""
    kept = keys.name(row)
    if kept is not None:
        return kept
    for window in scan(source, first=keys.starts[row], chunk=_KEY_CHUNK_BYTES):
        for name in window.columns.names:
            parts = split_name(name)
            return parts[0] if parts else name
    return b""


Across = tuple[int, list[tuple[int, int]], int]
"""The number of a shard, keys that an earlier shard has too, and the number of more such keys. A key is given by its
digest and the first shard with it."""


def repeats_across(packed: list[bytes], limit: int) -> Iterator[Across]:
    """Yield the shards that repeat keys of earlier shards, each with the first ``limit`` of these keys.

    ``packed`` has the distinct digests of each shard. The list is emptied, so that the digests are in memory only once.
    """
    if sum(map(len, packed)) <= 8 * FEW_DIGESTS and not _has_repeats(packed):
        packed.clear()
        return
    ends: I64 = numpy.cumsum([len(part) // 8 for part in packed])
    digests: U64 = numpy.frombuffer(b"".join(packed), dtype=numpy.uint64)
    packed.clear()
    ordered = numpy.sort(digests)
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    del ordered
    if not len(repeated):
        return
    # This imports numpy.ma, which takes as long as checking some thousand samples.
    repeated = numpy.unique(repeated)
    # Find the first shard with each repeated key. Shards come in order.
    first_in: I64 = numpy.full(len(repeated), -1, dtype=numpy.int64)
    begin = 0
    for shard, end in enumerate(ends.tolist()):
        part = digests[begin:end]
        begin = end
        places = numpy.minimum(numpy.searchsorted(repeated, part), len(repeated) - 1)
        hits = numpy.flatnonzero(repeated[places] == part)
        places = places[hits]
        is_repeat = first_in[places] >= 0
        first_in[places[~is_repeat]] = shard
        again, where = hits[is_repeat], places[is_repeat]
        if len(again):
            reported = list(zip(part[again[:limit]].tolist(), first_in[where[:limit]].tolist()))
            yield shard, reported, len(again) - len(reported)


class LocateTask(NamedTuple):
    """The task of finding the samples of a shard by the digests of their keys. ``kept`` are the keys of a stream."""

    address: str
    digests: tuple[int, ...]
    kept: KeyColumns | None
    seed: int


def locate(task: LocateTask) -> dict[int, tuple[bytes, int]]:
    """Return key and offset of the samples with the wanted digests, each key only at its first place. Samples that can
    no longer be read are left out."""
    missing = set(task.digests)
    place_by_digest: dict[int, tuple[bytes, int]] = {}
    for key, offset in _located(task):
        number = digest(key, task.seed)
        if number in missing:
            missing.discard(number)
            place_by_digest[number] = key, offset
            if not missing:
                break
    return place_by_digest


def _located(task: LocateTask) -> Iterator[tuple[bytes, int]]:
    """Yield all keys of a shard with their offsets, until it cannot be read."""
    if task.kept is not None:
        yield from ((task.kept.name(row) or b"", start) for row, start in enumerate(task.kept.starts))
        return
    grouper = Grouper(task.address, lenient=True)
    with suppress(DataError, StorageError), open_source(task.address) as source:
        for window in scan_salvaging(source, Ledger(task.address, 0).add_error):
            yield from _places(grouper.add(window))
        yield from _places(grouper.finish())


def _places(batch: SampleBatch) -> Iterator[tuple[bytes, int]]:
    return ((key, batch.start(row)) for row, key in enumerate(batch.keys))


PRESENT = "present-key"
"""The code of the finding that a sample has a key of the list."""
SIMILAR = "similar-key"
"""The code of the finding that a sample's key is the same path as a key of the list."""


class Absence:
    """The search in one shard for the keys of a list."""

    def __init__(self, absent: KeyList, ledger: Ledger) -> None:
        from hashlib import sha256

        self._keys = listed_keys(absent)
        self._spellings = listed_spellings(absent)
        self._list_name = base_name(absent.address)
        self._ledger = ledger
        self._digest = sha256()

    def look(self, batch: SampleBatch) -> None:
        """Search the keys of a batch."""
        joined = b"".join(key + b"\n" for key in batch.keys)
        self._digest.update(joined)
        is_usual = not self._spellings and b"//" not in joined and b"./" not in joined
        if is_usual and self._keys.isdisjoint(batch.keys):
            return
        for row, key in enumerate(batch.keys):
            self.look_at(key, batch.start(row))

    def look_at(self, key: bytes, offset: int) -> None:
        """Search the key of a member at byte ``offset``."""
        if key in self._keys:
            self._ledger.add(PRESENT, f"{self._list_name} lists this key", offset=offset, member=key)
            return
        path = simple_path(key)
        listed = path if path in self._keys else self._spellings.get(path)
        if listed is not None:
            message = f'{self._list_name} lists the key "{to_text(listed)}", which is the same path'
            self._ledger.add(SIMILAR, message, offset=offset, member=key)

    @property
    def digest(self) -> str:
        """Return the hexadecimal SHA-256 over all keys so far, with a newline after each key."""
        return self._digest.hexdigest()


class KeyList(NamedTuple):
    """A list of keys: its address, and the SHA-256 of its bytes."""

    address: str
    sha256: str

    @classmethod
    def at(cls, address: str) -> KeyList:
        """Return the list as it is now. Raises InputError, and UsageError for a stream, because other processes cannot
        read it."""
        from hashlib import sha256

        if is_stream(address):
            raise UsageError("--absent needs a file, because several processes read it", hint="--absent FILE")
        state = sha256()
        try:
            with open_source(address, decompress=False) as source:
                for piece in source.pieces():
                    state.update(piece)
        except InputNotFoundError as error:
            error.hint = "--absent takes a file with one key per line; for one key: echo KEY > keys.txt"
            raise
        return cls(address, state.hexdigest())


@lru_cache(1)
def listed_keys(absent: KeyList) -> frozenset[bytes]:
    """Return the keys of a list. Raises InputError, also if the list has changed."""
    keys = frozenset(key_lines(absent.address))
    if KeyList.at(absent.address) != absent:
        raise InputError(f"{absent.address} has changed since the search began", hint="run the command again")
    return keys


@lru_cache(1)
def listed_spellings(absent: KeyList) -> dict[bytes, bytes]:
    """Return the keys of a list that are not simple paths, by their simple path."""
    return {path: key for key in listed_keys(absent) if (path := simple_path(key)) != key}


def simple_path(key: bytes) -> bytes:
    """Return a key without ``.`` as a folder, and without repeated slashes.

    >>> simple_path(b"./a//b"), simple_path(b"a/b")
    (b'a/b', b'a/b')
    """
    if b"//" not in key and b"./" not in key:
        return key
    return b"/".join(name for name in key.split(b"/") if name not in (b"", b"."))


def suspicious(keys: frozenset[bytes]) -> Iterator[str]:
    """Yield warnings about an empty list, and about listed keys that are probably mistakes, such as file names."""
    if not keys:
        yield "the list of --absent has no keys, so every set passes"
    together = b"".join(keys)
    for says, marks, is_wrong in (
        ("has a dot after its last slash, as no key has; leave out .jpg and the like", b".", _has_dot),
        ("begins or ends with a blank", b" \t", lambda key: key != key.strip(b" \t")),
        ("has a carriage return; end each line with a newline", b"\r", lambda key: b"\r" in key),
        ("has quotes around it; if the list is CSV, name it LIST.csv", b'"', _is_quoted),
        ("has a comma; if the list is CSV, name it LIST.csv", b",", lambda key: b"," in key),
        ("has a zero byte, as no key has; save the list as UTF-8", b"\0", lambda key: b"\0" in key),
    ):
        if any(mark in together for mark in marks) and (wrong := sorted(filter(is_wrong, keys))):
            rest_text = f" (and {len(wrong) - 1} more)" if wrong[1:] else ""
            yield f'the listed key "{to_text(wrong[0])}"{rest_text} {says}'


def _is_quoted(key: bytes) -> bool:
    return key.startswith(b'"') and key.endswith(b'"')


def _has_dot(key: bytes) -> bool:
    return b"." in key.rpartition(b"/")[2]
