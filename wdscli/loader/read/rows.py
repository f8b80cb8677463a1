"""This module reads samples by their places as dictionaries, compares them with the index, and plans requests.

:func:`read_samples` reads samples of one shard, and :func:`plan_requests` plans the requests for several remote shards.
The compiled core (``core.py`` of tar) reads and compares many samples in one call. The core reads small members
together with their neighbours, and large payloads directly into their own bytes objects. :func:`_exact` reads unusual
samples one by one, or all samples if there is no compiled core. Only :func:`_exact` raises errors. The core cannot read
remote shards. So the bytes of remote samples are first read in a few long ranges (:class:`RangesInMemory`), which
:func:`expect_samples` announces to the source.

:class:`FetchRequests` are the requests of one call and of the next call, for an order that jumps from shard to shard.
If all shards of the order's window fit into memory, each shard is read once, as a whole. Otherwise a gap between two
samples is skipped, unless reading the gap is cheaper than another request. Bytes are not fetched if memory would force
the loader to drop them before their use. Requests start in the order in which the shards are read, so the first shards
get memory first. This module knows neither why samples are wanted nor how requests are made.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, pairwise
from typing import Any, NamedTuple

from wdscli.arrays import I64, numpy, runs
from wdscli.errors import DataError
from wdscli.loader.place.ranks import find_worker
from wdscli.loader.read.catalog import Catalog, ShardTable
from wdscli.samples.reading import ExpectedMember
from wdscli.shards.layout import ViewSource
from wdscli.shards.view_shards import changed_shard
from wdscli.shown import shown
from wdscli.storage import Source
from wdscli.storage.ends import RangesInMemory
from wdscli.tar import core

Raw = dict[str, Any]
"""A sample after reading: ``__key__``, ``__url__`` and a payload for each field."""

READ_BYTES = 4 << 20
"""The approximate largest number of bytes in one range of several members."""
GAP_BYTES = 1 << 14
"""Gaps up to this size are read too, because this saves a system call."""

SMALL_BYTES = 1 << 11
"""The largest mean size of samples that count as small, with their headers."""
SCATTERED = 4
"""Samples are scattered if their range has at least this number of samples for each of them."""
FEW_OF = 8
"""If more than one of this number of a shard's samples was read in a scattered order, probably most of them will be."""
OBJECT_BYTES = 48
"""The memory of a payload besides its bytes."""

SPARSE_GAP_BYTES = 1 << 16
"""The limit for gaps in remote shards. This limit is for gaps between chosen fields, and for gaps between samples if
the shards do not all fit into memory. A request costs as much processor time as reading about 60 KB."""


class Found(NamedTuple):
    """Samples, and the number of bytes in their payloads."""

    samples: list[Any]
    size_bytes: int


class FieldShard(NamedTuple):
    """A shard that has some of the wanted fields. ``names`` has the names of the fields by number, and None for
    unwanted fields. ``places`` has the places of the samples in this shard, and ``numbers`` their numbers among the
    wanted samples; None means all wanted samples."""

    table: ShardTable
    source: Source
    names: list[str | None]
    places: list[int]
    numbers: list[int] | None = None


class Destination(NamedTuple):
    """The list that gets samples, and the rows of these samples in it."""

    samples: list[Any]
    rows: list[int]


class SmallParts:
    """The payloads of the parts of one shard that have small samples, if samples are read in a scattered order. After
    some samples, reading all samples of such a part together costs less than a system call for each further sample.
    ``room`` returns how many bytes may be kept."""

    def __init__(self, room: Callable[[], int]) -> None:
        self.size_bytes = 0
        self._room = room
        self._scattered: Counter[ShardTable] = Counter()
        self._payloads: dict[ShardTable, list[Any]] = {}

    def payloads(self, part: FieldShard) -> list[Any] | None:
        """Return the payloads of all members of a part's shard, None for unknown ones. Return None if they are not
        kept."""
        table, source, names, places, _ = part
        if table in self._payloads or source.fd is None or table.size > SMALL_BYTES * table.samples:
            return self._payloads.get(table)
        if len(places) < 2 or max(places) - min(places) >= SCATTERED * len(places):
            self._scattered[table] += len(places)
        if self._scattered[table] * FEW_OF < table.samples:
            return None
        del self._scattered[table]
        size_bytes = int(table.sizes.sum()) + OBJECT_BYTES * len(table.sizes)
        if size_bytes > self._room():
            return None
        self.size_bytes += size_bytes
        payloads: list[Any] = [None] * len(table.sizes)
        assert core.CORE is not None
        core.CORE.read(table.packed, names, None, source.fd, table.size, [], [], None, payloads)
        return self._payloads.setdefault(table, payloads)


def read_samples(
    table: ShardTable,
    source: Source,
    fields: frozenset[str] | None,
    places: list[int],
    small: SmallParts | None = None,
    into: Destination | None = None,
) -> Found:
    """Return the samples at ``places`` of the shard ``source``, with their ``fields`` (None: all fields). With
    ``into``, put them there, and return its list: it has 0 at these rows. Raises InputError, and DataError if a sample
    differs from the index."""
    names, into = table.wanted(fields), into or Destination([0] * len(places), list(range(len(places))))
    parts = [_ready(part) for part in parts_of(table, source, names, places)]
    if any(part.source.fd is None and not isinstance(part.source, RangesInMemory) for part in parts):
        # To open a base, the view has closed another one, because the process may not have more open files.
        parts = [_ready(part, stays_open=False) for part in parts_of(table, source, names, places)]
    size_bytes, is_whole = (0, False) if core.CORE is None else _by_core(parts, into, small)
    if not is_whole:
        for number, row in enumerate(into.rows):
            if not into.samples[row]:
                raw = into.samples[row] = _exact(table, names, parts, places[number], number)
                size_bytes += sum(len(payload) for payload in raw.values() if type(payload) is bytes)
    return Found(into.samples, size_bytes)


def parts_of(
    table: ShardTable, source: Source, names: list[str | None], places: list[int]
) -> Iterator[FieldShard]:
    """Yield the shards to read: ``source`` itself, or, if it is a shard of a view, the base shards that have wanted
    fields. A base may be closed when the next one is opened (:class:`~wdscli.storage.scatter.Sources`)."""
    is_read_itself = source.fd is not None or table.are_members
    if is_read_itself or not isinstance(source, ViewSource) or not source.layout.is_plain:
        yield FieldShard(table, source, names, places)
        return
    layout = source.layout
    for number, layer in enumerate(layout.layers):
        wanted = [None if code < 0 else names[code] for code in layer.codes]
        if all(name is None for name in wanted):
            continue
        base_places, numbers = places, None
        if layer.subset is not None:
            layer_of, all_places = layout.rows[layer.set_number]
            numbers = [row for row, place in enumerate(places) if layer_of[place] == number]
            base_places = [all_places[places[row]] for row in numbers]
        if base_places:
            layer.table = layer.table or ShardTable(table.address, layer.index)
            yield FieldShard(layer.table, source.bases[layer.base], wanted, base_places, numbers)


def _ready(part: FieldShard, *, stays_open: bool = True) -> FieldShard:
    """Return the part with its bytes read into memory, unless the core can read them from a file that stays open."""
    if core.CORE is not None and stays_open and part.source.fd is not None:
        return part
    return part._replace(source=RangesInMemory(part.source, ranges(part.table, part.names, part.places)))


def _by_core(parts: list[FieldShard], into: Destination, small: SmallParts | None) -> tuple[int, bool]:
    """Read samples with the compiled core. Each part adds its fields to the samples. Return the bytes of their
    payloads, and whether surely no sample is left to :func:`_exact`."""
    assert core.CORE is not None
    size_bytes, is_whole = 0, bool(parts)
    for part in parts:
        table, source, names, places, numbers = part
        rows = into.rows if numbers is None else [into.rows[number] for number in numbers]
        where: Any = (source.fd, table.size, [], [])
        if isinstance(source, RangesInMemory):
            where = (-1, table.size, source.buffers, source.starts)
        kept_payloads = None if small is None else small.payloads(part)
        _, read_bytes, left = core.CORE.read(
            table.packed, names, places, *where, into.samples, kept_payloads, rows
        )
        size_bytes += read_bytes
        is_whole = is_whole and not left and numbers is None
    return size_bytes, is_whole


def is_of_files(source: Source) -> bool:
    """Return whether a shard is read from plain files that stay open. Several threads may read such a shard."""
    return source.fd is not None or (isinstance(source, ViewSource) and source.is_of_files)


def expect_samples(
    table: ShardTable,
    source: Source,
    fields: frozenset[str] | None,
    places: list[int],
    gap_bytes: int | None = None,
    keep: bool = True,
) -> None:
    """Announce to a source which samples are read next. With ``keep``, the source keeps bytes of other samples as long
    as there is memory. Gaps of ``gap_bytes`` or more are skipped. With None, the latency of the connection decides."""
    if source.fd is not None or (isinstance(source, ViewSource) and not source.is_remote):
        return
    if fields is not None:
        gap_bytes = SPARSE_GAP_BYTES
    for part in parts_of(table, source, table.wanted(fields), places):
        if part.source.fd is None:
            part.source.expect(ranges(part.table, part.names, part.places), gap_bytes=gap_bytes, keep=keep)


def _exact(
    table: ShardTable, names: list[str | None], parts: list[FieldShard], place: int, number: int
) -> Raw:
    """Return sample ``number`` of the wanted samples, which is at ``place`` of the shard."""
    raw: Raw = {"__key__": table.key(place), "__url__": table.address}
    ids = [field for field, _ in table.members(place) if names[field] is not None]
    payloads = chain.from_iterable(_payloads(part, number) for part in parts)
    raw.update(zip(table.names_of(ids), payloads))
    return raw


def _payloads(part: FieldShard, number: int) -> Iterator[bytes]:
    """Yield the wanted payloads that a part has of sample ``number`` of the wanted samples."""
    table, source, names, places, numbers = part
    if numbers is not None:
        if number not in numbers:
            return
        number = numbers.index(number)
    for field, member in table.members(places[number]):
        if names[field] is None:
            continue
        try:
            yield member.payload(source)
        except DataError as error:
            raise changed(table, places[number]) if error.code == "stale-index" else error from None


def ranges(table: ShardTable, names: list[str | None], places: list[int]) -> list[tuple[int, int]]:
    """Return the ranges to read for some samples, as pairs (first byte, end) in rising order. Ranges with a gap of at
    most ``GAP_BYTES`` between them are joined."""
    begins, ends = _spans(table, names, places)
    merged: list[tuple[int, int]] = []
    gaps = ((begins[1:] - ends[:-1] > GAP_BYTES).nonzero()[0] + 1).tolist()
    for first, stop in pairwise([0, *gaps, len(begins)]):
        while first < stop:
            fitting = int(ends[first:stop].searchsorted(begins[first] + READ_BYTES, "right"))
            following = first + max(1, fitting)
            merged.append((int(begins[first]), int(ends[first:following].max())))
            first = following
    return merged


def _spans(table: ShardTable, names: list[str | None], places: list[int]) -> tuple[I64, I64]:
    """Return the first bytes and the ends of the samples, or of the members if only some fields are wanted, in rising
    order."""
    if None not in names:
        rows = numpy.array(places)
        last = table.member_ends[rows] - 1
        begins, ends = table.starts[rows], table.offsets[last] + table.sizes[last]
        # An index may be wrong. If a range is impossible, the ranges of single members are used, and reading finds the
        # error.
        if (begins >= 0).all() and (begins < ends).all() and (ends <= table.size).all():
            # The samples of a shuffled view are in any order in its bases.
            order = begins.argsort()
            return begins[order], ends[order]
    wanted: list[ExpectedMember] = [
        member for place in places for number, member in table.members(place) if names[number] is not None
    ]
    wanted.sort(key=lambda member: member.offset)
    pairs = [(member.first, member.offset + member.size) for member in wanted]
    spans: I64 = numpy.array(pairs, dtype=numpy.int64).reshape(-1, 2)
    return spans[:, 0], spans[:, 1]


def changed(table: ShardTable, sample: int) -> DataError:
    """Return the error for a sample that differs from the index. Raises the error of a view's base that was changed."""
    offset = int(table.starts[sample]) if sample < table.samples else None
    return changed_shard(table.address, f"sample {sample} differs from the index", offset)


EXPENSIVE = 2
"""Samples are expensive if reading them costs more than this factor times their own bytes. A request counts as
SPARSE_GAP_BYTES."""
EXPENSIVE_SAMPLES = 10_000
"""The number of expensive samples after which a process warns."""
_has_warned = False


class FetchRequest(NamedTuple):
    """A request for samples of a shard, at ``places`` in rising order. ``own_bytes`` is the size of the samples, and
    ``size_bytes`` includes gaps that are read too. ``ranges`` is the number of ranges."""

    shard: int
    places: list[int]
    own_bytes: int
    size_bytes: int
    ranges: int

    @classmethod
    def of(cls, shard: int, places: list[int], table: ShardTable) -> FetchRequest:
        """Make a request that reads gaps shorter than ``SPARSE_GAP_BYTES``."""
        begins = table.starts[places]
        following = numpy.array(places) + 1
        is_last = following == table.samples
        ends = numpy.where(is_last, table.size, table.starts[following - is_last])
        gaps = begins[1:] - ends[:-1]
        small = gaps[gaps < SPARSE_GAP_BYTES]
        own = int((ends - begins).sum())
        return cls(shard, places, own, own + int(small.sum()), len(places) - len(small))


class FetchRequests:
    """Planned requests, in the order in which shards are read. At most about ``room`` bytes are requested or held at
    the same time. Gaps of ``gap_bytes`` or more are skipped. With None, the latency of the connection decides."""

    def __init__(self, requests: list[FetchRequest], room: int, gap_bytes: int | None) -> None:
        self.gap_bytes = gap_bytes
        self._requests, self._room = requests, room
        size_bytes = sum(request.size_bytes for request in requests)
        self.held_bytes, self._is_crowded = min(size_bytes, room), size_bytes > room
        self._begun: dict[int, int] = {}
        self._next = 0

    def fitting(self) -> Iterator[FetchRequest]:
        """Yield the next requests for which there is memory, and at least one if no request is running."""
        while self._next < len(self._requests):
            request = self._requests[self._next]
            if self._begun and sum(self._begun.values()) + request.size_bytes > self._room:
                return
            self._begun[request.shard] = request.size_bytes
            self._next += 1
            yield request

    @property
    def expensive_samples(self) -> int:
        """The number of samples if they are expensive to read, so that a cache on a local disc would help; otherwise
        0."""
        own = sum(request.own_bytes for request in self._requests)
        paid = sum(request.size_bytes + request.ranges * SPARSE_GAP_BYTES for request in self._requests)
        is_expensive = self.gap_bytes is not None and paid > EXPENSIVE * own
        return sum(len(request.places) for request in self._requests) if is_expensive else 0

    def done(self, shard: int, source: Source) -> None:
        """End the request of a shard after its samples were read. Drop the shard's bytes if other shards need the
        memory."""
        del self._begun[shard]
        if self._is_crowded:
            source.expect(())


def plan_requests(
    catalog: Catalog,
    wanted: dict[int, list[int]],
    soon: dict[int, list[int]],
    room: int,
    reads_gaps: bool = True,
) -> FetchRequests:
    """Plan the requests for the samples ``wanted`` now, and, if there is memory, for the samples needed ``soon``.
    ``wanted`` and ``soon`` are dicts from shards to places. ``room`` is the memory in bytes. If all shards fit into
    memory and ``reads_gaps`` is set, a gap is also read if that is cheaper than another request, because its samples
    are needed later."""
    tables = {shard: catalog.table_to_read(shard) for shard in wanted}
    # The tables of later shards are not loaded yet, so the sizes of their samples are estimated from the loaded tables.
    size = sum(table.size for table in tables.values())
    mean = size / max(1, sum(table.samples for table in tables.values()))

    def request_for(shard: int, places: list[int]) -> FetchRequest:
        if shard in tables:
            return FetchRequest.of(shard, places, tables[shard])
        about = int(mean * len(places))
        return FetchRequest(shard, places, about, about, 1)

    both = {shard: sorted({*wanted.get(shard, ()), *soon.get(shard, ())}) for shard in wanted | soon}
    requests = [request_for(*pair) for pair in both.items()]
    if reads_gaps and size / len(wanted) * len(both) <= room:
        return FetchRequests(requests, room, None)
    if sum(request.size_bytes for request in requests) > room:
        # Not all requests fit, so for the shards in wanted, the samples needed soon are left out, because their bytes
        # would be dropped after this call and fetched a second time.
        requests = [request_for(*pair) for pair in (wanted | soon | wanted).items()]
    return FetchRequests(requests, room, SPARSE_GAP_BYTES)


def warn_if_expensive(samples: int, address: str) -> None:
    """Warn once in a process if ``samples``, the number of expensive samples so far, is too large. ``address`` is one
    of the shards with such samples."""
    global _has_warned
    if samples < EXPENSIVE_SAMPLES or _has_warned or find_worker()[0] > 0:
        return
    _has_warned = True
    warnings.warn(
        f"small samples of {shown(address)} are read in random order, which is slow; "
        "cache_dir=FOLDER keeps local copies",
        stacklevel=2,
    )


def by_shard(shards: I64, places: I64) -> dict[int, list[int]]:
    """Group places by their shards. In the result, shards and places are in rising order."""
    order = numpy.lexsort((places, shards))
    shards, places = shards[order], places[order]
    return {int(shards[first]): places[first:end].tolist() for first, end in runs(shards)}
