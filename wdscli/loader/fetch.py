"""Samples by place: which shard and which sample in it, in any order, into dictionaries of payloads.

What it is: :class:`Fetcher`. How: the requests of one call are sorted by shard and place, ranges that lie close
together are read at once, large payloads one by one straight into their own bytes, and every sample's first header is
compared with the key that the index names, so that a stale index is noticed. It must not know orders, ranks or stages.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from wdscli.errors import DataError, InputError
from wdscli.loader.catalog import Catalog, ShardTable
from wdscli.storage import Source, open_source

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    I64: TypeAlias = NDArray[numpy.int64]

Raw = dict[str, Any]
"""A sample as it is read: ``__key__``, ``__url__`` and a payload for each field."""

GAP = 1 << 14
"""Bytes between two ranges that are read for nothing rather than by another call."""
READ = 4 << 20
LARGE = 1 << 16
OPEN_SOURCES = 128


class Fetcher:
    """Reads samples of a catalog. ``fields`` limits which payloads are read; None for all. Close it when done; not for
    several threads at a time."""

    def __init__(self, catalog: Catalog, fields: Sequence[str] | None = None) -> None:
        self._catalog = catalog
        self._fields = None if fields is None else frozenset(field.lower() for field in fields)
        self._sources: OrderedDict[int, Source] = OrderedDict()

    def fetch(self, shards: I64, samples: I64) -> list[Raw]:
        """The samples in the order asked for. Raises InputError, DataError."""
        import numpy

        found: list[Raw | None] = [None] * len(shards)
        order = numpy.lexsort((samples, shards))
        bounds = numpy.flatnonzero(numpy.diff(shards[order], prepend=-1)).tolist()
        for first, end in zip(bounds, [*bounds[1:], len(order)]):
            rows = order[first:end]
            shard = int(shards[rows[0]])
            places = samples[rows].astype(numpy.int64)
            for row, raw in zip(rows.tolist(), self._of_shard(shard, places)):
                found[row] = raw
        return found  # type: ignore[return-value]

    def _of_shard(self, shard: int, places: I64) -> Iterator[Raw]:
        """Samples of one shard, by places that rise."""
        table = self._catalog.table(shard)
        source = self._source(shard)
        members = _Members(table, places, self._fields)
        offsets, sizes, bounds = members.offsets, members.sizes, members.bounds
        payloads: list[bytes] = []
        for first, end in _together(members.starts, members.ends):
            base, stop = members.starts[first], members.ends[end - 1]
            at = range(bounds[first], bounds[end])
            if source.fd is not None and stop - base > LARGE * len(at):
                payloads += [_pread(source, offsets[row], sizes[row]) for row in at]
                continue
            data = _read(source, base, stop)
            members.check_keys(data, base, first, end)
            for row in at:
                begin = offsets[row] - base
                payloads.append(data[begin : begin + sizes[row]])
        return members.samples(payloads)

    def _source(self, shard: int) -> Source:
        source = self._sources.get(shard)
        if source is None:
            if len(self._sources) >= OPEN_SOURCES:
                self._sources.popitem(last=False)[1].close()
            source = self._sources[shard] = open_source(self._catalog.addresses[shard])
            table = self._catalog.table(shard)
            if source.size is not None and source.size != table.size:
                raise _changed(table, 0)
        else:
            self._sources.move_to_end(shard)
        return source

    def close(self) -> None:
        """Let go of all files."""
        for source in self._sources.values():
            source.close()
        self._sources.clear()


class _Members:
    """The members of some samples of one shard, as plain lists."""

    def __init__(self, table: ShardTable, places: I64, fields: frozenset[str] | None) -> None:
        import numpy

        self._table = table
        self._places = places
        lasts = table.member_ends[places]
        firsts = numpy.where(places > 0, table.member_ends[places - 1], 0)
        counts = lasts - firsts
        ends = numpy.cumsum(counts)
        rows = numpy.repeat(firsts - (ends - counts), counts) + numpy.arange(
            int(ends[-1]) if len(ends) else 0
        )
        ids = table.field_ids[rows]
        if fields is not None:
            wanted = numpy.array([name.lower() in fields for name in table.fields], dtype=bool)[ids]
            of_sample = numpy.repeat(numpy.arange(len(places)), counts)[wanted]
            counts = numpy.bincount(of_sample, minlength=len(places))
            rows, ids = rows[wanted], ids[wanted]
        self.starts: list[int] = table.starts[places].tolist()
        self.ends: list[int] = table.ends[places].tolist()
        self.bounds: list[int] = [0, *numpy.cumsum(counts).tolist()]
        self.names = list(map(table.fields.__getitem__, ids.tolist()))
        if table.same:
            spellings = list(map(table.spellings.__getitem__, ids.tolist()))
            self.names = _told_apart(self.names, spellings, self.bounds)
        self.offsets: list[int] = table.offsets[rows].tolist()
        self.sizes: list[int] = table.sizes[rows].tolist()
        key_ends = table.key_ends[places].tolist()
        key_begins = numpy.where(places > 0, table.key_ends[places - 1], 0).tolist()
        self.keys = [table.keys[begin:end] for begin, end in zip(key_begins, key_ends)]
        self._marks: list[int] = table.marks[places].tolist()

    def check_keys(self, data: bytes, base: int, first: int, end: int) -> None:
        """Raise DataError unless samples ``first`` to ``end`` begin with a header of their key."""
        for at in range(first, end):
            key = self.keys[at]
            if not data.startswith(key, self.starts[at] - base) and not self._marks[at] and len(key) < 100:
                raise _changed(self._table, int(self._places[at]))

    def samples(self, payloads: list[bytes]) -> Iterator[Raw]:
        """The samples with their payloads."""
        url, names, first = self._table.address, self.names, 0
        for key, end in zip(self.keys, self.bounds[1:]):
            raw: Raw = {"__key__": key.decode("utf-8", "surrogateescape"), "__url__": url}
            for place in range(first, end):
                raw[names[place]] = payloads[place]
            first = end
            yield raw


def _told_apart(names: list[str], spellings: list[str], bounds: list[int]) -> list[str]:
    """``names``, but as they are spelled where a sample has one several times: ``img.jpg`` and ``img.JPG``."""
    found = []
    for first, end in pairwise(bounds):
        of_sample = names[first:end]
        for name, spelling in zip(of_sample, spellings[first:end]):
            found.append(name if of_sample.count(name) == 1 else spelling)
    return found


def _together(begins: list[int], stops: list[int]) -> Iterator[tuple[int, int]]:
    """Stretches of rising ranges that are read at once."""
    first = 0
    for at in range(1, len(begins)):
        if begins[at] - stops[at - 1] > GAP or stops[at] - begins[first] > READ:
            yield first, at
            first = at
    if begins:
        yield first, len(begins)


def _read(source: Source, start: int, stop: int) -> bytes:
    data = (
        _pread(source, start, stop - start) if source.fd is not None else source.read_at(start, stop - start)
    )
    if len(data) != stop - start:
        raise DataError("archive ends inside a sample", code="truncated", shard=source.name, offset=start)
    return data


def _pread(source: Source, offset: int, size: int) -> bytes:
    assert source.fd is not None
    try:
        data = os.pread(source.fd, size, offset)
    except OSError as error:
        raise InputError(f"cannot read {source.name}: {error.strerror}") from error
    return data if len(data) == size else source.read_at(offset, size)


def _changed(table: ShardTable, sample: int) -> DataError:
    return DataError(
        f"sample {sample} is not what the index says",
        code="changed",
        shard=table.address,
        offset=int(table.starts[sample]) if sample < table.samples else None,
        hint="the shard was changed, or its index is stale: make it again with `wds index`",
    )
