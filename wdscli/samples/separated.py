"""This module finds samples whose members are not next to each other, as in ``0.png 1.png 0.txt 1.txt``.

Readers group adjacent members, so such a sample would be read as several parts, each with some of its fields. A part is
recognised by its key: the key comes back in the same shard, with none of the fields that the earlier parts have. If the
key comes back with a field of an earlier part, the key is repeated, and readers may read both samples.

:class:`SeparatedSamples` gets the samples of one shard in order. While all samples have a field in common, it only
collects their keys. This module does not know where samples come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from wdscli.arrays import SampleArrays, numpy
from wdscli.errors import DataError
from wdscli.samples.grouping import SampleBatch
from wdscli.text import to_text

if TYPE_CHECKING:
    from wdscli.model import Sample

JOIN_HINT = "the files of a sample must be next to each other; `wds repair SHARDS -o OUT` joins them"
MOST_KEYS = 1 << 15
"""How many keys are remembered for a shard that is read only once, so that memory is bounded."""


class SeparatedSamples:
    """The keys of one shard. After ``most_keys`` samples, no further part is found.

    >>> search = SeparatedSamples()
    >>> [search.add(key, fields) for key, fields in [(b"0", [b"png"]), (b"1", [b"png"]), (b"0", [b"txt"])]]
    [False, False, True]
    """

    def __init__(self, most_keys: int = MOST_KEYS) -> None:
        self._room = most_keys
        self._last: Sequence[bytes | str] = ()
        self._shape: frozenset[bytes | str] = frozenset()
        self._common: frozenset[bytes | str] | None = None
        """The fields that all samples have."""
        self._blocks: list[SampleArrays] = []
        self._keys: list[bytes | str] = []
        self._shapes: list[frozenset[bytes | str]] = []
        self._fields: dict[bytes | str, frozenset[bytes | str]] = {}
        """The fields of each key, after two samples had no field in common."""

    def add(self, key: bytes | str, fields: Sequence[bytes | str]) -> bool:
        """Return whether a sample with these fields is a later part of an earlier sample."""
        if fields != self._last:
            self._last, self._shape = fields, frozenset(fields)
            self._common = self._shape if self._common is None else self._common & self._shape
        if self._room <= 0:
            self._blocks, self._keys, self._shapes, self._fields = [], [], [], {}
            return False
        self._room -= 1
        if self._common:
            self._keys.append(key)
            self._shapes.append(self._shape)
            return False
        self._remember_blocks()
        for earlier, shape in zip(self._keys, self._shapes):
            self._fields[earlier] = self._fields.get(earlier, shape) | shape
        self._keys, self._shapes = [], []
        known_fields = self._fields.get(key)
        self._fields[key] = self._shape if known_fields is None else known_fields | self._shape
        return known_fields is not None and known_fields.isdisjoint(self._shape)

    def add_batch(self, batch: SampleBatch) -> Iterator[int]:
        """Add the samples of a batch. Yield the rows that are later parts."""
        keys, firsts, fields = batch.keys, batch.firsts, batch.fields
        width = firsts[1] if keys else 0
        is_uniform = fields[:width] * len(keys) == fields
        for row, key in enumerate(keys):
            if self.add(key, fields[firsts[row] : firsts[row + 1]]):
                yield row
            if is_uniform and not row and self._common and self._room > len(keys):
                self._keys += keys[1:]
                self._shapes += [self._shape] * (len(keys) - 1)
                self._room -= len(keys) - 1
                return

    def add_arrays(self, samples: SampleArrays) -> None:
        """Add the next samples at the beginning of the shard. Their keys must be different, and no sample may have a
        field twice. Objects are made for them only if they have no field in common with later samples."""
        if self._room <= 0:
            return
        total = len(samples.counts)
        in_all = numpy.flatnonzero(numpy.bincount(samples.codes) == total)
        common = frozenset(map(samples.fields.__getitem__, in_all.tolist()))
        self._common = common if self._common is None else self._common & common
        self._room -= total
        self._blocks.append(samples)

    def _remember_blocks(self) -> None:
        """Move the samples that were added as arrays to the fields of each key."""
        blocks, self._blocks = self._blocks, []
        for samples in blocks:
            fields = list(map(samples.fields.__getitem__, samples.codes.tolist()))
            key_start = first = 0
            for key_length, count in zip(samples.key_lengths.tolist(), samples.counts.tolist()):
                key = samples.keys[key_start : key_start + key_length]
                self._fields[key] = frozenset(fields[first : first + count])
                key_start, first = key_start + key_length, first + count


def joined_samples(samples: Iterable[Sample], shard: str) -> Iterator[Sample]:
    """Yield the samples of a shard in order. Raises DataError for a later part of a sample."""
    search = SeparatedSamples()
    for sample in samples:
        if search.add(sample.key, [*sample.fields]):
            raise separated(sample.key, shard)
        yield sample


def separated(key: bytes | str, shard: str, offset: int | None = None) -> DataError:
    """Return the error for a sample with a later part. ``offset`` is the first byte of this part."""
    error = DataError(
        "the key comes back with other fields",
        code="interleaved-key",
        shard=shard,
        offset=offset,
        member=key if isinstance(key, str) else to_text(key),
        hint=JOIN_HINT,
    )
    error.of = "sample"
    return error
