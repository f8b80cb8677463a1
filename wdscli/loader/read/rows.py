"""Samples of one shard by their places, as dictionaries of payloads that are what the index says.

What it is: :func:`read_samples`. How: where there is a compiled core (``core.py`` of tar) it reads and compares, many
samples at a time: small members with their neighbours, large payloads straight into their own bytes. What it does not
take for granted, and everything where there is no core, goes to :func:`_exact`, one sample at a time, which has the
last word and all errors. What the core cannot read itself, because it comes from other machines, is read before, in a
few long ranges (:class:`Held`), after the source was told of them (:func:`expect_samples`). It must not know which
samples are asked for, nor when.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, NamedTuple

from wdscli.arrays import numpy
from wdscli.errors import DataError
from wdscli.loader.read.catalog import ShardTable
from wdscli.samples.expected import Expected
from wdscli.storage import Source
from wdscli.tar import ByteSource, core

Raw = dict[str, Any]
"""A sample as it is read: ``__key__``, ``__url__`` and a payload for each field."""

READ_BYTES = 4 << 20
"""About the most that one range of several members has."""
GAP_BYTES = 1 << 14
"""Between two ranges, what is read for nothing rather than by another call."""

SPARSE_GAP_BYTES = 1 << 16
"""From other machines, between fields of which others are left out, often because they are large, and between samples
of shards that cannot all be held: what lies there comes for nothing. A request among many costs as much processor time
as some 60 KB."""


class Found(NamedTuple):
    """Samples, None where the exact path must look, and the bytes of their payloads."""

    samples: list[Any]
    size_bytes: int


def read_samples(
    table: ShardTable, source: Source, fields: frozenset[str] | None, places: list[int]
) -> Found:
    """The samples at some places of a shard that is open as ``source``, with those of their fields that are among
    ``fields``, None for all. Raises DataError when one is not what the index says, InputError."""
    names = table.wanted(fields)
    if core.CORE is not None and source.fd is not None:
        found, size_bytes = core.CORE.read(table.packed, names, places, source.fd, table.size, [], [])
        return _completed(table, source, names, places, Found(found, size_bytes))
    held = Held(source, ranges(table, names, places))
    if core.CORE is not None:
        found, size_bytes = core.CORE.read(
            table.packed, names, places, -1, table.size, held.buffers, held.bases
        )
        return _completed(table, held, names, places, Found(found, size_bytes))
    return _completed(table, held, names, places, Found([None] * len(places), 0))


def expect_samples(
    table: ShardTable,
    source: Source,
    fields: frozenset[str] | None,
    places: list[int],
    gap_bytes: int | None = None,
) -> None:
    """Tell a source which samples will be read next; what came for others stays as long as there is room. A gap of
    ``gap_bytes`` is not read; None for what the line tells."""
    if fields is not None:
        gap_bytes = SPARSE_GAP_BYTES
    source.expect(ranges(table, table.wanted(fields), places), gap_bytes=gap_bytes, keep=True)


class Stretches(NamedTuple):
    """What reading some samples of a shard takes: bytes of their own, bytes that come, and requests."""

    own_bytes: int
    size_bytes: int
    requests: int


def stretches_of(table: ShardTable, places: list[int]) -> Stretches:
    """For samples by their rising places, read with gaps that are shorter than ``SPARSE_GAP_BYTES``."""
    begins = table.starts[places]
    following = numpy.array(places) + 1
    is_last = following == table.samples
    ends = numpy.where(is_last, table.size, table.starts[following - is_last])
    gaps = begins[1:] - ends[:-1]
    near = gaps[gaps < SPARSE_GAP_BYTES]
    own = int((ends - begins).sum())
    return Stretches(own, own + int(near.sum()), len(places) - len(near))


def _completed(
    table: ShardTable, source: ByteSource, names: list[str | None], places: list[int], found: Found
) -> Found:
    """``found`` with the samples that are not there yet."""
    samples, size_bytes = found
    for row, raw in enumerate(samples):
        if raw is None:
            raw = samples[row] = _exact(table, source, names, places[row])
            size_bytes += sum(len(payload) for payload in raw.values() if type(payload) is bytes)
    return Found(samples, size_bytes)


def _exact(table: ShardTable, source: ByteSource, names: list[str | None], place: int) -> Raw:
    """One sample."""
    raw: Raw = {"__key__": table.key(place), "__url__": table.address}
    members = [(number, member) for number, member in table.members(place) if names[number] is not None]
    for name, (_, member) in zip(table.names_of([number for number, _ in members]), members):
        end = member.offset + member.size
        data = source.read_at(member.first, end - member.first)
        if len(data) < end - member.first:
            raise DataError(
                "archive ends inside a sample",
                code="truncated",
                shard=source.name,
                offset=int(table.starts[place]),
            )
        if not member.is_said(source, data):
            raise changed(table, place)
        raw[name] = data[member.offset - member.first :]
    return raw


def ranges(table: ShardTable, names: list[str | None], places: list[int]) -> list[tuple[int, int]]:
    """(first byte, byte behind the last) of what to read for some samples, rising, with no more than ``GAP_BYTES`` in
    one that are not wanted."""
    found: list[tuple[int, int]] = []
    for begin, end in _spans(table, names, places):
        if found and begin - found[-1][1] <= GAP_BYTES and end - found[-1][0] <= READ_BYTES:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def _spans(table: ShardTable, names: list[str | None], places: list[int]) -> Iterable[tuple[int, int]]:
    """Of each sample, or, where some fields are left out, of each member; rising."""
    if None not in names:
        rows = numpy.array(places)
        last = table.member_ends[rows] - 1
        begins, ends = table.starts[rows], table.offsets[last] + table.sizes[last]
        # An index may say anything; what is odd is looked at one by one.
        if (begins >= 0).all() and (begins < ends).all() and (ends <= table.size).all():
            return zip(begins.tolist(), ends.tolist())
    wanted: list[Expected] = [
        member for place in places for number, member in table.members(place) if names[number] is not None
    ]
    wanted.sort(key=lambda member: member.offset)
    return [(member.first, member.offset + member.size) for member in wanted]


class Held:
    """A source of which some ranges were read already, and are not read again."""

    def __init__(self, source: Source, ranges: list[tuple[int, int]]) -> None:
        self.name, self.size, self.seekable = source.name, source.size, source.seekable
        self._source = source
        self.bases = [begin for begin, _ in ranges]
        self.buffers = [source.read_at(begin, end - begin) for begin, end in ranges]

    def read_at(self, offset: int, length: int) -> bytes:
        at = bisect_right(self.bases, offset) - 1
        if at >= 0:
            inside = offset - self.bases[at]
            data = self.buffers[at][inside : inside + length]
            if len(data) == length:
                return data
        return self._source.read_at(offset, length)

    read_some = read_at


def changed(table: ShardTable, sample: int) -> DataError:
    """What is raised where a sample is not what the index says."""
    return DataError(
        f"sample {sample} is not what the index says",
        code="changed",
        shard=table.address,
        offset=int(table.starts[sample]) if sample < table.samples else None,
        hint="the shard was changed, or its index is stale: make it again with `wds index`",
    )
