"""Which samples of a set are kept, decided before any is read: filters at the level of the index.

What it is: :class:`FilteredCatalog`, a catalog that counts and finds only the samples that an expression and keys
select, so that orders, ranks, lengths and states know nothing of the others. How: the samples of each shard are looked
at once, when the filter is made. ``keys`` and an expression over ``key``, ``fields``, ``size``, ``shard`` and
``index`` ask the indexes alone; one over ``json``, ``cls`` or ``txt`` reads these payloads once, and no others. What
is kept is one bit a sample, and nothing for a shard of which all is kept or none.

The fingerprint is ``xxh3_128`` over the unfiltered set's fingerprint and, for each shard, its kept bits (see
:func:`mark`): two filters that keep the same samples make the same set, a state of one set does not fit another, and a
filter that keeps everything changes nothing. To a worker the bits travel packed. Above ``PACKED`` bytes those that
indexes alone decide do not: the worker asks the index of a shard again when it comes to it.

It must not know in which order samples are read.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias
from warnings import warn

from wdscli.errors import DataError, StorageError, UsageError, WdsError
from wdscli.loader.checks import argument, in_code, texts
from wdscli.loader.read.catalog import Catalog, ShardTable, each_shard
from wdscli.loader.read.fetch import Fetcher, Raw
from wdscli.model import to_text
from wdscli.selection import Selection, SelectionState
from wdscli.shards.find import index_batches

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    from wdscli.samples import SampleBatch
    from wdscli.shards.index import Index

    I64: TypeAlias = NDArray[numpy.int64]

OnUndecodable = Literal["raise", "skip"]
PACKED = 1 << 20
"""Bytes of bits that are sent to a worker rather than worked out again."""
UNPACKED = 1 << 23
"""Places of kept samples, eight bytes each, that are at hand as such."""
LOOKED_INTO = 256
"""Samples whose payloads are read at once for an expression."""
LARGEST = 1 << 26
"""Bytes of a payload above which it is not decoded for an expression."""


class Kept(NamedTuple):
    """The places in one shard of the samples that are kept, rising, and what was counted on the way; none, and the
    ``error``, where the shard cannot be looked into."""

    rows: I64
    state: SelectionState
    error: WdsError | None = None


class Filter(NamedTuple):
    """What to keep. With ``on_error="skip"`` a sample that the expression cannot decode is left out, and counted in
    ``undecodable``; else it is a DataError."""

    selection: Selection
    on_error: OnUndecodable = "raise"

    @classmethod
    def parse(
        cls,
        *,
        where: str | None = None,
        keys: str | Sequence[str] | None = None,
        keys_from: str | None = None,
        on_error: str = "raise",
    ) -> Filter | None:
        """A filter as options say it, None when they keep everything. Raises UsageError for an expression that cannot
        mean anything, InputError when ``keys_from`` cannot be read."""
        chosen = texts(keys)
        if where is None and chosen is None and keys_from is None:
            return None
        if where is not None and not isinstance(where, str):
            raise UsageError(
                f"where= is an expression as text, not a {type(where).__name__}",
                hint="a function of samples is for select(), while they are read",
            )
        with in_code():
            selection = Selection.parse(where=where, keys=chosen, keys_from=keys_from)
        return cls(selection, "raise" if on_error == "raise" else "skip")

    @property
    def reads_payloads(self) -> bool:
        return self.selection.needs_payload

    @property
    def is_small(self) -> bool:
        """Whether it may travel: a file of keys may hold millions."""
        rule = self.selection.key_rule
        return rule is None or rule.listed is None

    def kept(self, catalog: Catalog, shard: int) -> Kept:
        """The samples of a shard that are kept. Raises DataError, InputError, but with ``on_error="skip"`` a shard that
        cannot be looked into has none."""
        import numpy

        try:
            return self._kept(catalog, shard)
        except (DataError, StorageError) as error:
            if self.on_error == "raise":
                raise
            return Kept(numpy.empty(0, dtype=numpy.int64), self.selection.new_state("skip"), error)

    def _kept(self, catalog: Catalog, shard: int) -> Kept:
        import numpy

        index = catalog.index(shard)
        state = self.selection.new_state("stop" if self.on_error == "raise" else "skip")
        rows: list[int] = []
        payloads = _Payloads(catalog, shard, self.selection.payload_fields)
        try:
            with in_code():
                for batch in index_batches(index):
                    payloads.batch = batch
                    chosen = self.selection.apply(batch, catalog.addresses[shard], state, payloads.of)
                    rows += [batch.index + row for row in chosen]
        finally:
            payloads.close()
        return Kept(numpy.array(rows, dtype=numpy.int64), state)


class _Payloads:
    """The payloads of one shard that an expression asks for, read for some samples at a time."""

    def __init__(self, catalog: Catalog, shard: int, fields: frozenset[bytes]) -> None:
        self.batch: SampleBatch | None = None
        self._shard = shard
        self._address = catalog.addresses[shard]
        self._fields = fields
        self._fetcher = Fetcher(catalog, sorted(map(to_text, fields)))
        self._known: dict[int, Raw] = {}

    def of(self, row: int, field: bytes) -> bytes:
        batch = self.batch
        assert batch is not None
        at = batch.fields.index(field, batch.firsts[row], batch.firsts[row + 1])
        if batch.sizes[at] > LARGEST:
            raise DataError(
                f"a payload of more than {LARGEST} bytes is not decoded, here {batch.sizes[at]}",
                code="undecodable",
                shard=self._address,
                offset=batch.starts[at],
                member=to_text(batch.keys[row] + b"." + field),
            )
        place = batch.index + row
        if place not in self._known:
            self._known = self._read(place, self._end(row))
        found: bytes = self._known[place][to_text(field)]
        return found

    def _end(self, row: int) -> int:
        """Where to stop reading ahead: some samples on, but not for more bytes than one payload may have."""
        batch = self.batch
        assert batch is not None
        total = 0
        for end in range(row, min(row + LOOKED_INTO, len(batch.keys))):
            members = range(batch.firsts[end], batch.firsts[end + 1])
            total += sum(batch.sizes[at] for at in members if batch.fields[at] in self._fields)
            if end > row and total > LARGEST:
                return batch.index + end
        return batch.index + min(row + LOOKED_INTO, len(batch.keys))

    def _read(self, first: int, end: int) -> dict[int, Raw]:
        import numpy

        places: I64 = numpy.arange(first, end, dtype=numpy.int64)
        found = self._fetcher.fetch(numpy.full(len(places), self._shard, dtype=numpy.int64), places)
        return dict(zip(range(first, end), found))

    def close(self) -> None:
        self._fetcher.close()


class FilteredCatalog(Catalog):
    """The samples of ``base`` that ``chosen`` keeps. ``undecodable`` counts those left out because the expression could
    not decode them, by shard. Raises UsageError for a set that can only be streamed."""

    def __init__(self, base: Catalog, chosen: Filter) -> None:
        import numpy

        if not base.is_indexed or base.counts is None:
            raise UsageError(
                "where= and keys= need shards that can be read at any place",
                hint="a stream is filtered while it is read: .select(function)",
            )
        within = base if isinstance(base, FilteredCatalog) else None
        self._base: Catalog = base if within is None else within._base
        self._chosen: Filter | None = None if within else chosen
        self.addresses, self.manifest, self.is_indexed = base.addresses, base.manifest, True
        self.spelled, self.losses = base.spelled, dict(base.losses)
        self._bits: list[bytes | None] = []
        self._unpacked: OrderedDict[int, I64] = OrderedDict()
        self._unpacked_rows = 0
        self.undecodable = {}
        counts, seen = [], chosen.selection.new_state()
        for shard, (rows, state, error) in enumerate(_each_shard(base, chosen)):
            if error is not None:
                self.losses.setdefault(self.addresses[shard], error)
            if within is not None:
                rows = within.also_kept(shard, rows)
            if "undecodable" in state.dropped:
                self.undecodable[self.addresses[shard]] = state.dropped["undecodable"]
            seen.merge_names(state)
            counts.append(len(rows))
            self._bits.append(_packed(rows, self.held(shard)))
        self.counts = numpy.array(counts, dtype=numpy.int64)
        self.fingerprint = mark(self._base.fingerprint, self._bits)
        absences = [argument(one.text) for one in chosen.selection.absences(seen)]
        for remark in [*chosen.selection.remarks(seen), *absences]:
            warn(remark, stacklevel=2)

    def also_kept(self, shard: int, rows: I64) -> I64:
        """Those of some places of a shard that are kept here too."""
        import numpy

        kept = self.kept(shard)
        return rows if kept is None else numpy.intersect1d(rows, kept, assume_unique=True)

    def held(self, number: int) -> int:
        return self._base.held(number)

    def index(self, number: int) -> Index:
        return self._base.index(number)

    def table(self, number: int) -> ShardTable:
        return self._base.table(number)

    def forget(self, number: int) -> None:
        self._base.forget(number)

    def places(self, shards: I64, samples: I64) -> I64:
        """The true places of kept samples."""
        import numpy

        found: I64 = numpy.array(samples, dtype=numpy.int64)
        for shard in numpy.unique(shards).tolist():
            rows = self.kept(shard)
            if rows is not None:
                those = shards == shard
                found[those] = rows[samples[those]]
        return found

    def place(self, shard: int, sample: int) -> int:
        rows = self.kept(shard)
        return sample if rows is None else int(rows[sample])

    def kept(self, shard: int) -> I64 | None:
        """The places of the kept samples of a shard, rising; None when that is all of them."""
        known = self._unpacked.get(shard)
        if known is not None:
            with suppress(KeyError):
                self._unpacked.move_to_end(shard)
            return known
        if self._bits:
            bits = self._bits[shard]
            if bits is None:
                return None
            rows = _unpacked(bits)
        else:
            rows = self._again(shard)
        self._unpacked[shard] = rows
        self._unpacked_rows += len(rows)
        while self._unpacked_rows > UNPACKED and len(self._unpacked) > 1:
            with suppress(KeyError):
                self._unpacked_rows -= len(self._unpacked.popitem(last=False)[1])
        return rows

    def _again(self, shard: int) -> I64:
        """Ask the index once more, in a worker that was not told. Raises DataError when the answer is another one."""
        assert self.counts is not None
        assert self._chosen is not None
        rows = self._chosen.kept(self._base, shard).rows
        if len(rows) != int(self.counts[shard]):
            raise DataError(
                f"{len(rows)} samples are selected where {int(self.counts[shard])} were",
                code="changed",
                shard=self.addresses[shard],
                hint="the shard or its index was changed since the set was opened",
            )
        return rows

    def __getstate__(self) -> dict[str, Any]:
        """The base, and either the bits or the filter that gives them again."""
        from zlib import compress

        bits, chosen = self._bits, self._chosen
        if chosen is not None and (chosen.reads_payloads or not chosen.is_small or _size(bits) <= PACKED):
            chosen = None
        if chosen is not None:
            bits = []
        packed = compress(b"".join(one for one in bits if one), 1)
        lengths = compress(array("q", [-1 if one is None else len(one) for one in bits]).tobytes())
        own = {**self.__dict__, "_bits": (packed, lengths), "_chosen": chosen}
        own |= {"_unpacked": OrderedDict(), "_unpacked_rows": 0}
        counts = compress(self.counts.tobytes()) if self.counts is not None else b""
        return {**own, "counts": counts, "addresses": None, "manifest": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        from zlib import decompress

        import numpy

        self.__dict__.update(state)
        self.addresses = self._base.addresses
        self.counts = numpy.frombuffer(decompress(state["counts"]), dtype=numpy.int64)
        packed, lengths = map(decompress, state["_bits"])
        data, at = packed, 0
        self._bits = []
        for length in array("q", lengths):
            self._bits.append(None if length < 0 else data[at : at + length])
            at += max(0, length)


def filtered(
    catalog: Catalog,
    *,
    where: str | None = None,
    keys: str | Sequence[str] | None = None,
    keys_from: str | None = None,
    on_error: str = "raise",
) -> Catalog:
    """``catalog`` with only what the options select; the catalog itself when they select everything."""
    chosen = Filter.parse(where=where, keys=keys, keys_from=keys_from, on_error=on_error)
    return catalog if chosen is None else FilteredCatalog(catalog, chosen)


def mark(fingerprint: str, kept: Sequence[bytes | None]) -> str:
    """The fingerprint of what is kept of a set. For each shard: eight bytes 0xff where all is kept, else the number of
    bytes of its bits (eight, little-endian; none where nothing is kept) and these bytes, the first sample in the lowest
    bit of the first."""
    from xxhash import xxh3_128

    if all(bits is None for bits in kept):
        return fingerprint
    digest = xxh3_128(fingerprint.encode())
    for bits in kept:
        digest.update(b"\xff" * 8 if bits is None else len(bits).to_bytes(8, "little") + bits)
    return f"xxh3_128:{digest.hexdigest()}"


def _each_shard(catalog: Catalog, chosen: Filter) -> Iterator[Kept]:
    """:meth:`Filter.kept` of every shard, in order."""

    def kept(shard: int) -> Kept:
        # An expression holds on to the sample that it looks at: each call has one of its own.
        return Filter(_copy(chosen.selection), chosen.on_error).kept(catalog, shard)

    return each_shard(catalog.addresses, kept)


def _copy(selection: Selection) -> Selection:
    from copy import copy

    return selection if selection.where is None else selection._replace(where=copy(selection.where))


def _size(bits: Sequence[bytes | None]) -> int:
    return sum(len(one) for one in bits if one)


def _packed(rows: I64, count: int) -> bytes | None:
    """One bit a sample, lowest first; None for all."""
    import numpy

    if len(rows) == count:
        return None
    if not len(rows):
        return b""
    bits: NDArray[numpy.bool_] = numpy.zeros(count, dtype=bool)
    bits[rows] = True
    return numpy.packbits(bits, bitorder="little").tobytes()


def _unpacked(bits: bytes) -> I64:
    import numpy

    flags = numpy.unpackbits(numpy.frombuffer(bits, dtype=numpy.uint8), bitorder="little")
    return numpy.flatnonzero(flags).astype(numpy.int64)
