"""This module filters the samples of a set with the indexes, before the samples are read.

:class:`FilteredCatalog` is a catalog that counts and finds only the samples that an expression, keys and ``sample``
select. For orders, ranks, lengths and states, the other samples do not exist. The filter checks the samples of each
shard once, when it is made. ``keys``, and expressions with ``key``, ``fields``, ``size``, ``shard`` and ``index``, read
only the indexes. An expression with ``json``, ``cls`` or ``txt`` reads these payloads once, or twice if ``sample`` is a
number of samples. The result is one bit for each sample. A shard that is kept or dropped as a whole needs no bits.

The fingerprint is ``xxh3_128`` over the unfiltered set's fingerprint and the bits of each shard (see :func:`mark`). So
two filters that keep the same samples give the same fingerprint, and a filter that keeps all samples does not change
the fingerprint. A state cannot be loaded into a set with another fingerprint. Workers receive the packed bits. If the
bits take more than ``SENT_BYTES`` and the filter reads only indexes, workers receive the filter instead, and apply it
to a shard when they reach the shard. This module does not know in which order samples are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import partial
from typing import Any, Literal, NamedTuple
from warnings import warn

from wdscli.arrays import I64, Mask, numpy
from wdscli.errors import DataError, StorageError, UsageError, WdsError
from wdscli.loader.checks import Urls, addresses_of, argument, in_code, texts, want_word
from wdscli.loader.order.order import groups
from wdscli.loader.read.catalog import Access, Catalog, Loss
from wdscli.loader.read.fetch import open_shard
from wdscli.loader.read.rows import SPARSE_GAP_BYTES
from wdscli.selection import Selection, SelectionState, Walk
from wdscli.selection.reading import MemberReader
from wdscli.shards.reading import index_batches
from wdscli.storage import Source
from wdscli.storage.addresses import HeldBytes, check_pipe
from wdscli.threads import Recent

OnUndecodable = Literal["raise", "skip"]
Share = str | int | float
"""A number of samples, or a share such as 10% or 0.1."""
JOINS = ("inner", "left", "outer")
SENT_BYTES = 1 << 20
"""The largest size of the bits that workers receive. If the bits are larger, workers apply the filter again."""
UNPACKED_PLACES = 1 << 23
"""The largest number of kept places in memory. A place has eight bytes."""


class FilteredPlaces(NamedTuple):
    """The result of a filter for one shard: the places of the kept samples in rising order, and the counts in
    ``state``. If the shard cannot be read, there are no places, and ``error`` is set."""

    places: I64
    state: SelectionState
    error: WdsError | None = None


class Criteria(NamedTuple):
    """The arguments that select samples. ``sample`` has the form of the option ``--sample``, or is a pair of such a
    value and a seed."""

    where: str | None = None
    keys: str | Sequence[str] | None = None
    keys_from: str | tuple[str, str] | None = None
    sample: Share | tuple[Share, int] | None = None

    @property
    def listed(self) -> tuple[str | None, str | None]:
        """The file of ``keys_from``, and the expression whose values it lists; None means the key."""
        return self.keys_from if isinstance(self.keys_from, tuple) else (self.keys_from, None)

    @property
    def is_all(self) -> bool:
        """Whether the arguments keep all samples."""
        return self == Criteria()


class Filter(NamedTuple):
    """A filter of samples. If the expression cannot decode a sample, the filter raises DataError. With
    ``on_error="skip"`` the filter skips the sample and counts it as ``undecodable``."""

    selection: Selection
    on_error: OnUndecodable = "raise"

    @classmethod
    def parse(cls, wanted: Criteria, on_error: str = "raise") -> Filter | None:
        """Return the filter for these arguments, or None if they keep all samples. Raises UsageError for an invalid
        expression, and InputError if ``keys_from`` cannot be read."""
        if wanted.is_all:
            return None
        where, keys = wanted.where, texts(wanted.keys)
        drawn, seed = wanted.sample if isinstance(wanted.sample, tuple) else (wanted.sample, 0)
        if isinstance(drawn, float):
            drawn = f"{drawn:.12f}"
        if where is not None and not isinstance(where, str):
            raise UsageError(
                f"where= must be an expression as text, not a {type(where).__name__}",
                hint="pass a function of samples to select()",
            )
        keys_from, on = wanted.listed
        with in_code():
            selection = Selection.parse(
                where=where, keys=keys, keys_from=keys_from, on=on, sample=drawn, seed=seed
            )
        return cls(selection, "raise" if on_error == "raise" else "skip")

    @property
    def is_light(self) -> bool:
        """Whether workers may apply the filter again: whether the filter reads no payloads and has no list of keys,
        which could be very long."""
        rule = self.selection.key_rule
        has_list = self.selection.value_rule is not None or (rule is not None and rule.listed is not None)
        return not self.selection.payload_fields and not has_list

    def settled(self, catalog: Catalog, shards: Iterable[int], among: Callable[[int], I64 | None]) -> Filter:
        """Return the filter after its random choice was made, if this choice needs the keys of all samples. The choice
        is made among the samples of ``shards``. ``among`` returns the allowed places of a shard, or None for all
        places."""
        draw = self.selection.draw
        if draw is None or not draw.is_open:
            return self
        from wdscli.selection.draw import LowestRanks

        before, lowest = Filter(self.selection.before_draw, self.on_error), LowestRanks(draw)
        for shard in shards:
            places, allowed = before.kept(catalog, shard).places, among(shard)
            if allowed is not None:
                places = numpy.intersect1d(places, allowed, assume_unique=True)
            if len(places):
                index = catalog.index(shard)
                lowest.add(index.key(place) for place in places.tolist())
        return self._replace(selection=self.selection._replace(draw=draw.settled(lowest)))

    def kept(self, catalog: Catalog, shard: int) -> FilteredPlaces:
        """Return the kept samples of a shard. Raises DataError and InputError. With ``on_error="skip"``, no samples of
        an unreadable shard are kept."""
        # An expression stores its current sample, so each call needs a copy.
        rule = self.selection.value_rule
        rule = rule and rule._replace(value=copy(rule.value))
        selection = self.selection._replace(where=copy(self.selection.where), value_rule=rule)
        state = selection.new_state("stop" if self.on_error == "raise" else "skip")
        places: list[int] = []
        try:
            index = catalog.index(shard)
            selection = selection.using(frozenset(index.exact))
            fields = selection.payload_fields
            with in_code(), _opened(catalog, shard, is_read=bool(fields)) as source:
                walk = Walk(
                    selection, state, MemberReader(source, fields, by_index=True, gap_bytes=SPARSE_GAP_BYTES)
                )
                for batch, chosen in walk.chosen(index_batches(index)):
                    places += [batch.index + row for row in chosen]
        except (DataError, StorageError) as error:
            if self.on_error == "raise":
                raise
            return FilteredPlaces(numpy.empty(0, dtype=numpy.int64), selection.new_state("skip"), error)
        return FilteredPlaces(numpy.array(places, dtype=numpy.int64), state)


def _opened(catalog: Catalog, shard: int, *, is_read: bool) -> Source:
    """Open a shard if it is read, and else only name it."""
    if is_read:
        return open_shard(catalog, shard)
    return Source(catalog.addresses[shard], size=None, seekable=True)


class FilteredCatalog(Catalog):
    """A catalog of the samples of ``base`` that the filter ``chosen`` keeps. ``undecodable`` has the number of samples
    in each shard that the expression could not decode. Raises UsageError for a set that can only be streamed."""

    def __init__(self, base: Catalog, chosen: Filter) -> None:
        if not base.is_indexed or base.counts is None:
            raise UsageError(
                "where=, keys= and sample= need shards with random access",
                hint="a stream is filtered while it is read: .select(function)",
            )
        classes = () if base.manifest is None else base.manifest.classes
        named = chosen.selection.with_classes(lambda: classes)
        chosen = chosen._replace(selection=named).settled(base, range(len(base.addresses)), base.kept)
        # This catalog has the same shards, so it takes all loaded data of base.
        self.__dict__.update(base.__dict__)
        within = isinstance(base, FilteredCatalog)
        self._chosen: Filter | None = None if within else chosen
        self._unfiltered: str = self._unfiltered if within else base.fingerprint
        self._bits: list[bytes | None] = []
        self._unpacked: Recent[int, I64] = Recent(UNPACKED_PLACES, len)
        self.losses, self.undecodable = dict(base.losses), {}
        counts, all_states = [], chosen.selection.new_state()
        for shard, (places, state, error) in enumerate(self.each(partial(chosen.kept, base))):
            if error is not None:
                self.losses.setdefault(self.addresses[shard], Loss(error))
            before = base.kept(shard)
            if before is not None:
                places = numpy.intersect1d(places, before, assume_unique=True)
            if "undecodable" in state.dropped:
                self.undecodable[self.addresses[shard]] = state.dropped["undecodable"]
            all_states.merge_names(state)
            counts.append(len(places))
            self._bits.append(_as_bits(places, self.held(shard)))
        self.counts = numpy.array(counts, dtype=numpy.int64)
        self.fingerprint = mark(self._unfiltered, self._bits)
        missing_names = [argument(name.text) for name in chosen.selection.missing_names(all_states)]
        for remark in [*chosen.selection.remarks(all_states), *missing_names]:
            warn(remark, stacklevel=2)

    def places(self, shards: I64, samples: I64) -> I64:
        """Return the places of kept samples in their shards. ``samples`` are numbers among the kept samples of a
        shard."""
        places = samples.copy()
        for shard, rows in groups(shards):
            kept = self.kept(shard)
            if kept is not None:
                places[rows] = kept[samples[rows]]
        return places

    def kept(self, shard: int) -> I64 | None:
        places = self._unpacked.used(shard)
        if places is not None:
            return places
        bits = self._bits[shard] if self._bits else b""
        if bits is None:
            return None
        return self._unpacked.keep(shard, _as_places(bits) if self._bits else self._again(shard))

    def _again(self, shard: int) -> I64:
        """Apply the filter again to a shard, in a worker that did not receive the bits. Raises DataError if the number
        of kept samples differs."""
        assert self.counts is not None
        assert self._chosen is not None
        places = self._chosen.kept(self, shard).places
        if len(places) != int(self.counts[shard]):
            raise DataError(
                f"{len(places)} samples are selected, "
                f"but {int(self.counts[shard])} were selected when the set was opened",
                code="changed",
                shard=self.addresses[shard],
                hint="the shard or its index was changed since the set was opened",
            )
        return places

    def _begin(self) -> None:
        super()._begin()
        self._unpacked = Recent(UNPACKED_PLACES, len)

    def _sent(self) -> dict[str, Any]:
        """Return the attributes that a worker receives, with the bits or the filter."""
        bits, chosen = self._bits, self._chosen
        size_bytes = sum(len(shard_bits) for shard_bits in bits if shard_bits)
        if chosen is not None and (not chosen.is_light or size_bytes <= SENT_BYTES):
            chosen = None
        if chosen is not None:
            bits = []
        return {**super()._sent(), "_bits": bits, "_chosen": chosen, "_unpacked": None}


def filtered(catalog: Catalog, on_error: str = "raise", **wanted: Any) -> Catalog:
    """Return a catalog of the samples that the arguments of :class:`Criteria` keep. If the arguments keep all samples,
    return ``catalog`` itself."""
    chosen = Filter.parse(Criteria(**wanted), on_error)
    return catalog if chosen is None else FilteredCatalog(catalog, chosen)


def open_catalog(
    urls: Urls, wanted: Criteria, access: Access, *, on_error: str, salvage: bool, spelled: bool = False
) -> Catalog:
    """Open a set for a dataset, with its cache and with only the wanted samples. Raises UsageError, InputError,
    DataError."""
    for address in (wanted.listed[0], access.values):
        check_pipe(address or "", pipes=access.pipes)
    addresses, held = addresses_of(urls), []
    if access.join is not None:
        held = _joined(addresses, access)
        addresses = [held[0].address]
    catalog = Catalog(addresses, access, held=held, salvage=salvage, spelled=spelled)
    return filtered(catalog, on_error, **wanted._asdict())


def _joined(addresses: Sequence[str], access: Access) -> list[HeldBytes]:
    """Return a view in memory that joins the sets at ``addresses``. Raises UsageError, InputError, DataError."""
    from wdscli.views.writing import hold_join

    assert access.join is not None
    want_word("join", access.join, JOINS)
    if len(addresses) < 2:
        raise UsageError(f"join={access.join!r} needs several sets", hint='["photos", "captions"]')
    for address in addresses:
        check_pipe(address, pipes=access.pipes)
    try:
        return hold_join(addresses, access.join, trust_addresses=access.trust_addresses)
    except DataError as error:
        if "--on-conflict" in (error.hint or ""):
            error.hint = (
                f"choose in a view: wds merge SETS --join {access.join} --on-conflict left -o VIEW.json"
            )
        raise


def mark(fingerprint: str, kept: Sequence[bytes | None]) -> str:
    """Return the fingerprint of the kept samples of a set: a hash of the set's ``fingerprint`` and of each shard. If
    all samples of a shard are kept, eight bytes 0xff are hashed. Otherwise the number of bytes of its bits is hashed
    (eight bytes, little-endian; 0 if no sample is kept), then these bytes. The first sample is the lowest bit of the
    first byte."""
    from xxhash import xxh3_128

    if all(bits is None for bits in kept):
        return fingerprint
    digest = xxh3_128(fingerprint.encode())
    for bits in kept:
        digest.update(b"\xff" * 8 if bits is None else len(bits).to_bytes(8, "little") + bits)
    return f"xxh3_128:{digest.hexdigest()}"


def _as_bits(places: I64, count: int) -> bytes | None:
    """Return one bit for each sample, the lowest bit of a byte first. Return None if all samples are kept."""
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
