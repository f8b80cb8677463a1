"""Which samples of a set are kept, decided before any is read: filters at the level of the index.

What it is: :class:`FilteredCatalog`, a catalog that counts and finds only the samples that an expression and keys
select, and ``sample`` draws of these, so that orders, ranks, lengths and states know nothing of the others. How: the
samples of each shard are looked at once, when the filter is made. ``keys`` and an expression over ``key``, ``fields``,
``size``, ``shard`` and ``index`` ask the indexes alone; one over ``json``, ``cls`` or ``txt`` reads these payloads
once, and no others; twice where a number is drawn of those that it selects. What is kept is one bit a sample, and
nothing for a shard of which all is kept or none.

The fingerprint is ``xxh3_128`` over the unfiltered set's fingerprint and, for each shard, its kept bits (see
:func:`mark`): two filters that keep the same samples make the same set, a state of one set does not fit another, and a
filter that keeps everything changes nothing. To a worker the bits travel packed. Above ``SENT_BYTES`` those that
indexes alone decide do not: the worker asks the index of a shard again when it comes to it.

It must not know in which order samples are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from copy import copy
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from warnings import warn

from wdscli.arrays import I64, Mask, numpy
from wdscli.errors import DataError, StorageError, UsageError, WdsError
from wdscli.loader.checks import Urls, addresses_of, argument, cache_of, in_code, texts
from wdscli.loader.order.order import groups
from wdscli.loader.read.catalog import Catalog, Recent, each_shard
from wdscli.loader.read.fetch import Fetcher, Raw
from wdscli.model import to_text
from wdscli.selection import Selection, SelectionState
from wdscli.shards.reading import index_batches
from wdscli.storage.addresses import check_pipe

if TYPE_CHECKING:
    from wdscli.samples import SampleBatch

OnUndecodable = Literal["raise", "skip"]
Share = str | int | float
"""What is drawn: a number of samples, or a share as 10% or 0.1."""
SENT_BYTES = 1 << 20
"""Bits that are sent to a worker rather than worked out again."""
UNPACKED_PLACES = 1 << 23
"""Of kept samples, eight bytes each, that are at hand as such."""
READ_SAMPLES = 256
"""Samples whose payloads are read at once for an expression."""
DECODED_BYTES = 1 << 26
"""A payload above which it is not decoded for an expression."""


class Kept(NamedTuple):
    """The places in one shard of the samples that are kept, rising, and what was counted on the way; none, and the
    ``error``, where the shard cannot be looked into."""

    places: I64
    state: SelectionState
    error: WdsError | None = None


class Wanted(NamedTuple):
    """The samples to keep, as arguments say it. ``sample`` is what ``--sample`` takes, or this and a seed."""

    where: str | None = None
    keys: str | Sequence[str] | None = None
    keys_from: str | None = None
    sample: Share | tuple[Share, int] | None = None

    @property
    def is_all(self) -> bool:
        """Whether all samples are kept."""
        return self == Wanted()


class Access(NamedTuple):
    """How shards are reached: ``trust_addresses`` and ``pipes`` are those of
    :func:`~wdscli.shards.inputs.open_set`; the cache keeps remote shards in a folder."""

    trust_addresses: bool = False
    pipes: bool = True
    cache_dir: str | None = None
    cache_size: int = -1


class Filter(NamedTuple):
    """What to keep. With ``on_error="skip"`` a sample that the expression cannot decode is left out, and counted in
    ``undecodable``; else it is a DataError."""

    selection: Selection
    on_error: OnUndecodable = "raise"

    @classmethod
    def parse(cls, wanted: Wanted, on_error: str = "raise") -> Filter | None:
        """A filter as arguments say it, None when they keep everything. Raises UsageError for an expression that has no
        meaning, InputError when ``keys_from`` cannot be read."""
        if wanted.is_all:
            return None
        where, keys = wanted.where, texts(wanted.keys)
        drawn, seed = wanted.sample if isinstance(wanted.sample, tuple) else (wanted.sample, 0)
        if isinstance(drawn, float):
            drawn = f"{drawn:.12f}"
        if where is not None and not isinstance(where, str):
            raise UsageError(
                f"where= is an expression as text, not a {type(where).__name__}",
                hint="a function of samples is for select(), while they are read",
            )
        with in_code():
            selection = Selection.parse(
                where=where, keys=keys, keys_from=wanted.keys_from, sample=drawn, seed=seed
            )
        return cls(selection, "raise" if on_error == "raise" else "skip")

    @property
    def is_light(self) -> bool:
        """Whether a worker may be sent it and ask again: it reads no payloads, and has no file of keys, which may hold
        millions."""
        rule = self.selection.key_rule
        return not self.selection.needs_payload and (rule is None or rule.listed is None)

    def settled(self, catalog: Catalog, shards: Iterable[int], among: Callable[[int], I64 | None]) -> Filter:
        """The same where all samples must be seen before some are drawn, now that those of some shards were: of each at
        the places ``among``, None for all."""
        draw = self.selection.draw
        if draw is None or not draw.is_open:
            return self
        from wdscli.selection.draw import Lowest

        before, lowest = Filter(self.selection.before_draw, self.on_error), Lowest(draw)
        for shard in shards:
            places, allowed = before.kept(catalog, shard).places, among(shard)
            if allowed is not None:
                places = numpy.intersect1d(places, allowed, assume_unique=True)
            if len(places):
                index = catalog.index(shard)
                lowest.add(index.key(place) for place in places.tolist())
        return self._replace(selection=self.selection._replace(draw=draw.settled(lowest)))

    def kept(self, catalog: Catalog, shard: int) -> Kept:
        """The samples of a shard that are kept. Raises DataError, InputError, but with ``on_error="skip"`` a shard that
        cannot be looked into has none."""
        state = self.selection.new_state("stop" if self.on_error == "raise" else "skip")
        places: list[int] = []
        try:
            index = catalog.index(shard)
            with in_code(), closing(_Payloads(catalog, shard, self.selection.payload_fields)) as payloads:
                for batch in index_batches(index):
                    payloads.batch = batch
                    chosen = self.selection.apply(batch, catalog.addresses[shard], state, payloads.of)
                    places += [batch.index + row for row in chosen]
        except (DataError, StorageError) as error:
            if self.on_error == "raise":
                raise
            return Kept(numpy.empty(0, dtype=numpy.int64), self.selection.new_state("skip"), error)
        return Kept(numpy.array(places, dtype=numpy.int64), state)


class _Payloads:
    """The payloads of one shard that an expression asks for, read for some samples at a time."""

    def __init__(self, catalog: Catalog, shard: int, fields: frozenset[bytes]) -> None:
        self.batch: SampleBatch | None = None
        self._shard = shard
        self._address = catalog.addresses[shard]
        self._fields = fields
        self._fetcher = Fetcher(catalog, frozenset(to_text(field).lower() for field in fields))
        self._known: dict[int, Raw] = {}

    def of(self, row: int, field: bytes) -> bytes:
        batch = self.batch
        assert batch is not None
        at = batch.fields.index(field, batch.firsts[row], batch.firsts[row + 1])
        if batch.sizes[at] > DECODED_BYTES:
            raise DataError(
                f"a payload of more than {DECODED_BYTES} bytes is not decoded, here {batch.sizes[at]}",
                code="undecodable",
                shard=self._address,
                offset=batch.starts[at],
                member=to_text(batch.keys[row] + b"." + field),
            )
        place = batch.index + row
        if place not in self._known:
            places: I64 = numpy.arange(place, self._end(row), dtype=numpy.int64)
            found = self._fetcher.fetch(numpy.full_like(places, self._shard), places)
            self._known = dict(zip(places.tolist(), found))
        payload: bytes = self._known[place][to_text(field)]
        return payload

    def _end(self, row: int) -> int:
        """Where to stop reading ahead: some samples on, but not for more bytes than one payload may have."""
        batch = self.batch
        assert batch is not None
        total = 0
        for end in range(row, min(row + READ_SAMPLES, len(batch.keys))):
            members = range(batch.firsts[end], batch.firsts[end + 1])
            total += sum(batch.sizes[at] for at in members if batch.fields[at] in self._fields)
            if end > row and total > DECODED_BYTES:
                return batch.index + end
        return batch.index + min(row + READ_SAMPLES, len(batch.keys))

    def close(self) -> None:
        self._fetcher.close()


class FilteredCatalog(Catalog):
    """The samples of ``base`` that ``chosen`` keeps. ``undecodable`` counts those left out because the expression could
    not decode them, by shard. Raises UsageError for a set that can only be streamed."""

    def __init__(self, base: Catalog, chosen: Filter) -> None:
        if not base.is_indexed or base.counts is None:
            raise UsageError(
                "where= and keys= and sample= need shards that can be read at any place",
                hint="a stream is filtered while it is read: .select(function)",
            )
        classes = () if base.manifest is None else base.manifest.classes
        named = chosen.selection.with_classes(lambda: classes)
        chosen = chosen._replace(selection=named).settled(base, range(len(base.addresses)), base.kept)
        # The same shards, of which as much is known here as there.
        self.__dict__.update(base.__dict__)
        within = isinstance(base, FilteredCatalog)
        self._chosen: Filter | None = None if within else chosen
        self._unfiltered: str = self._unfiltered if within else base.fingerprint
        self._bits: list[bytes | None] = []
        self._unpacked: Recent[I64] = Recent(UNPACKED_PLACES, len)
        self.losses, self.undecodable = dict(base.losses), {}
        counts, seen = [], chosen.selection.new_state()

        def kept(shard: int) -> Kept:
            # An expression holds on to the sample that it looks at: each call has one of its own.
            selection = chosen.selection._replace(where=copy(chosen.selection.where))
            return Filter(selection, chosen.on_error).kept(base, shard)

        for shard, (places, state, error) in enumerate(each_shard(self.addresses, kept)):
            if error is not None:
                self.losses.setdefault(self.addresses[shard], error)
            before = base.kept(shard)
            if before is not None:
                places = numpy.intersect1d(places, before, assume_unique=True)
            if "undecodable" in state.dropped:
                self.undecodable[self.addresses[shard]] = state.dropped["undecodable"]
            seen.merge_names(state)
            counts.append(len(places))
            self._bits.append(_as_bits(places, self.held(shard)))
        self.counts = numpy.array(counts, dtype=numpy.int64)
        self.fingerprint = mark(self._unfiltered, self._bits)
        absences = [argument(one.text) for one in chosen.selection.absences(seen)]
        for remark in [*chosen.selection.remarks(seen), *absences]:
            warn(remark, stacklevel=2)

    def places(self, shards: I64, samples: I64) -> I64:
        """The true places of kept samples."""
        found = samples.copy()
        for shard, rows in groups(shards):
            kept = self.kept(shard)
            if kept is not None:
                found[rows] = kept[samples[rows]]
        return found

    def place(self, shard: int, sample: int) -> int:
        kept = self.kept(shard)
        return sample if kept is None else int(kept[sample])

    def kept(self, shard: int) -> I64 | None:
        known = self._unpacked.used(shard)
        if known is not None:
            return known
        bits = self._bits[shard] if self._bits else b""
        if bits is None:
            return None
        return self._unpacked.keep(shard, _as_places(bits) if self._bits else self._again(shard))

    def _again(self, shard: int) -> I64:
        """Ask the index once more, in a worker that was not sent the bits. Raises DataError when the answer is another
        one."""
        assert self.counts is not None
        assert self._chosen is not None
        places = self._chosen.kept(self, shard).places
        if len(places) != int(self.counts[shard]):
            raise DataError(
                f"{len(places)} samples are selected where {int(self.counts[shard])} were",
                code="changed",
                shard=self.addresses[shard],
                hint="the shard or its index was changed since the set was opened",
            )
        return places

    def _begin(self) -> None:
        super()._begin()
        self._unpacked = Recent(UNPACKED_PLACES, len)

    def _sent(self) -> dict[str, Any]:
        """Either the bits or the filter that gives them again."""
        bits, chosen = self._bits, self._chosen
        size_bytes = sum(len(one) for one in bits if one)
        if chosen is not None and (not chosen.is_light or size_bytes <= SENT_BYTES):
            chosen = None
        if chosen is not None:
            bits = []
        return {**super()._sent(), "_bits": bits, "_chosen": chosen, "_unpacked": None}


def filtered(catalog: Catalog, on_error: str = "raise", **wanted: Any) -> Catalog:
    """``catalog`` with only the samples that :class:`Wanted` keeps; itself when it keeps all."""
    chosen = Filter.parse(Wanted(**wanted), on_error)
    return catalog if chosen is None else FilteredCatalog(catalog, chosen)


def open_catalog(
    urls: Urls, wanted: Wanted, access: Access, *, on_error: str, salvage: bool, spelled: bool = False
) -> Catalog:
    """Open a set as datasets do: with a cache, and only the samples that are wanted. Raises UsageError, InputError,
    DataError."""
    check_pipe(wanted.keys_from or "", pipes=access.pipes)
    catalog = Catalog(
        addresses_of(urls),
        salvage=salvage,
        trust_addresses=access.trust_addresses,
        pipes=access.pipes,
        cache=cache_of(access.cache_dir, access.cache_size),
        spelled=spelled,
    )
    return filtered(catalog, on_error, **wanted._asdict())


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


def _as_bits(places: I64, count: int) -> bytes | None:
    """One bit a sample, lowest first; None for all."""
    if len(places) == count:
        return None
    if not len(places):
        return b""
    bits: Mask = numpy.zeros(count, dtype=bool)
    bits[places] = True
    return numpy.packbits(bits, bitorder="little").tobytes()


def _as_places(bits: bytes) -> I64:
    flags = numpy.unpackbits(numpy.frombuffer(bits, dtype=numpy.uint8), bitorder="little")
    return flags.nonzero()[0]
