"""This module reads a shard set as a table, which returns samples by number, slice or key, many at once, in any order.

:class:`IndexedDataset` is a map-style dataset for torch's DataLoader, and also works without torch. To find a sample by
its number, the table first finds its shard from the sample counts of the shards. Then the index of this shard says
where the bytes of the sample are. Reads of neighbouring bytes are joined. Views (slices, subsets, selections) share the
loaded data and copy nothing. Several threads may read at the same time. A forked worker opens its own files; a spawned
worker receives addresses and counts.

:class:`Ordinals` are the numbers of the samples in a view, in the order of the view. A slice, or a slice of a slice, is
stored as a range and needs no memory; any other choice of samples is an array. :class:`SamplesByShard` groups the
samples of a view by shard, for a sampler. :class:`KeyIndex` finds the number of a key. A key index is made at first use
from the keys in the shards' indexes. The key index has the sorted XXH3-64 hashes of all keys, and next to each hash the
number of the sample. A sample takes 12 or 16 bytes in the key index. A hash only finds candidates, and then their keys
are compared with the wanted key. The seed of the hash is secret, because an attacker who knew it could make many keys
with the same hash.

This module knows neither how bytes are read nor in which order samples are requested; see
:mod:`wdscli.loader.samplers`.
"""

# Methods that change the type of items are declared here, because the base class cannot declare their types.
# mypy: disable-error-code="assignment, override"

from __future__ import annotations

import operator
import os
from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex, TypeVar, cast, overload

from xxhash import xxh3_64_intdigest, xxh3_128

from wdscli.arrays import I64, U64, Mask, numpy
from wdscli.errors import DataError, StorageError, UsageError, WdsError, nearest
from wdscli.loader.checks import Urls, want_whole, wanted_fields
from wdscli.loader.dataset import PositionDataset
from wdscli.loader.order.order import stretches
from wdscli.loader.order.source import EpochReader, Fact, PositionSource
from wdscli.loader.place.ranks import Dataset
from wdscli.loader.read.catalog import Access, Catalog
from wdscli.loader.read.failures import (
    FailedSample,
    Handler,
    OnError,
    Policy,
    Replacing,
    SkipCounts,
    read_each,
    reraise_exception,
)
from wdscli.loader.read.fetch import Pool, Raw
from wdscli.loader.read.selected import Criteria, Filter, FilteredCatalog, Share, open_catalog
from wdscli.loader.stages.flow import Item, RawSample, Sample
from wdscli.loader.stages.fluent import PerSample
from wdscli.text import to_bytes


class Ordinals:
    """The samples of a view. Sample i of the view has the number ``numbers[i]`` in the set."""

    def __init__(self, numbers: range | I64) -> None:
        self.numbers = numbers
        self._order: I64 | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, number: int) -> int:
        try:
            return int(self.numbers[number])
        except IndexError:
            raise IndexError(f"no sample {number}: there are {len(self)}") from None

    def is_all(self, total: int) -> bool:
        """Return whether the view shows all ``total`` samples of the set in order."""
        return isinstance(self.numbers, range) and self.numbers == range(total)

    def at(self, numbers: I64) -> I64:
        """Convert numbers in the view, each from 0 to length - 1, to numbers in the set."""
        if isinstance(self.numbers, range):
            return self.numbers.start + self.numbers.step * numbers
        return self.numbers[numbers]

    def every(self) -> I64:
        """Return all numbers as an array."""
        return self.at(numpy.arange(len(self), dtype=numpy.int64))

    def cut(self, part: slice) -> Ordinals:
        """Return a slice of the view."""
        return Ordinals(self.numbers[part])

    def chosen(self, numbers: Sequence[int] | I64) -> Ordinals:
        """Return the part of the view that ``numbers`` chooses: numbers in the view, or a mask with a bool for each
        sample. Negative numbers count from the end. Raises IndexError."""
        return Ordinals(self.at(self.checked(numbers)))

    def checked(self, numbers: Sequence[int] | I64) -> I64:
        """Return the ``numbers`` in the view as an array without negative numbers. A mask becomes the numbers that it
        chooses. Raises IndexError, which names the first invalid number."""
        if isinstance(numbers, Iterable) and not hasattr(numbers, "__array__"):
            numbers = list(numbers)
        given = numpy.asarray(numbers)
        if given.ndim != 1:
            raise TypeError(f"sample numbers must be a flat list, not an array of {given.ndim} dimensions")
        if given.dtype == bool:
            if len(given) != len(self):
                raise IndexError(f"the mask has {len(given)} values, but there are {len(self)} samples")
            return given.nonzero()[0]
        if len(given) and given.dtype.kind not in "iu":
            raise TypeError(
                f"a sample number is a whole number, not {given.dtype}; table.number(key) returns the number of a key"
            )
        found: I64 = given.astype(numpy.int64)
        outside = (found < -len(self)) | (found >= len(self))
        if outside.any():
            raise IndexError(f"no sample {int(found[outside][0])}: there are {len(self)}")
        found[found < 0] += len(self)
        return found

    def find(self, number: int) -> int | None:
        """Convert a sample's ``number`` in the set to its number in the view. If the view has the sample twice, return
        the lower number. If the view does not have the sample, return None."""
        numbers = self.numbers
        if isinstance(numbers, range):
            return numbers.index(number) if number in numbers else None
        if self._order is None:
            self._order = numbers.argsort(kind="stable")
        at = int(numbers.searchsorted(number, sorter=self._order))
        found = int(self._order[at]) if at < len(numbers) else -1
        return found if found >= 0 and int(numbers[found]) == number else None

    def __getstate__(self) -> dict[str, Any]:
        return {"numbers": self.numbers, "_order": None}


class SamplesByShard(NamedTuple):
    """The samples of a view, grouped by shard. ``counts`` has the number of samples in each shard. ``order`` has the
    samples' numbers in the view, sorted by the samples' numbers in the set, or None if the view shows the whole set in
    order. ``fingerprint`` identifies the view."""

    counts: I64
    order: I64 | None
    fingerprint: str

    def numbers(self, shards: I64, samples: I64) -> I64:
        """Return samples' numbers in the view. Sample i is given by its shard ``shards[i]`` and its rank
        ``samples[i]``, from 0, among the view's samples of that shard."""
        places: I64 = (self.counts.cumsum() - self.counts)[shards] + samples
        return places if self.order is None else self.order[places]


ALIKE_KEYS = 100_000
"""The number of keys that :func:`similar` searches for keys like a missing key."""
COMPARED_KEYS = 2_000


class KeyIndex:
    """Finds a sample's number in the catalog by its key. With ``lenient``, an unreadable shard has no keys; otherwise
    it is an error."""

    def __init__(self, catalog: Catalog, lenient: bool = False) -> None:
        assert catalog.counts is not None
        self._catalog, self._lenient, self._counts = catalog, lenient, catalog.counts
        self._ends = self._counts.cumsum()
        self._seed = int.from_bytes(os.urandom(8), "little")
        hashes = numpy.concatenate([*catalog.each(self._hashed)])
        order = hashes.argsort(kind="stable")
        self._hashes = hashes[order]
        self._numbers: Any = order.astype(numpy.uint32 if len(hashes) < 1 << 32 else numpy.int64)

    def _hashed(self, shard: int) -> U64:
        try:
            table, places = self._catalog.table(shard), self._catalog.kept(shard)
            keys = [table.keys[first:end] for first, end in pairwise([0, *table.key_ends.tolist()])]
        except (DataError, StorageError):
            if not self._lenient:
                raise
            return numpy.zeros(int(self._counts[shard]), dtype=numpy.uint64)
        if places is not None:
            keys = [keys[place] for place in places.tolist()]
        return numpy.array([xxh3_64_intdigest(key, self._seed) for key in keys], dtype=numpy.uint64)

    def find(self, key: str) -> list[int]:
        """Return the numbers of the samples with this key, in rising order. In a valid set, at most one sample has the
        key."""
        raw = to_bytes(key)
        hashed = numpy.uint64(xxh3_64_intdigest(raw, self._seed))
        first, end = (int(self._hashes.searchsorted(hashed, side)) for side in ("left", "right"))
        return [number for number in self._numbers[first:end].tolist() if self._key(number) == raw]

    def _key(self, number: int) -> bytes:
        shard = int(self._ends.searchsorted(number, "right"))
        place = self._catalog.place(shard, number - int(self._ends[shard] - self._counts[shard]))
        return to_bytes(self._catalog.table(shard).key(place))


def similar(key: str, keys: Iterator[str]) -> list[str]:
    """Return up to three of ``keys`` that are similar to a missing key. Only the first :data:`ALIKE_KEYS` keys are
    searched."""
    ending = key[-3:]
    known = list(islice(keys, ALIKE_KEYS))
    alike = [
        one for one in known if abs(len(one) - len(key)) <= 2 and (one[:3] == key[:3] or one[-3:] == ending)
    ]
    return nearest(key, alike[:COMPARED_KEYS] or known[:COMPARED_KEYS], cutoff=0.75)


if TYPE_CHECKING:
    from wdscli.loader.stages.flow import giving
    from wdscli.plan.join import JoinKind

    New = TypeVar("New")
    _SAMPLES = cast("IndexedDataset[Sample]", None)
    _TUPLES = cast("IndexedDataset[tuple[Any, ...]]", None)

Self = TypeVar("Self", bound="IndexedDataset")

SAMPLES_PER_READ = 256
"""The largest number of samples that are read together when a table is iterated."""
BYTES_PER_READ = 32 << 20
"""The approximate largest number of bytes that are read together when a table is iterated."""


class IndexedDataset(PerSample[Item], Dataset[Item]):
    """A table of the samples in a set of shards. A sample is found by its number, from 0 in the order of the set, or by
    its key.

    ``urls`` are addresses of shards in any form that wdscli accepts. ``fields`` names the fields to read. ``where``,
    ``keys`` and ``keys_from`` select samples like the command options of these names; see
    :mod:`wdscli.loader.read.selected`. ``sample`` keeps a random subset of the selected samples. The value is a number
    or a share, or a pair with a seed, such as ``"10%"`` or ``(1000, 7)``. ``transform`` is a function of each sample,
    like the argument of :meth:`map`. The table also has the other stages that work on one sample, such as ``decode``
    and ``to_tuple``.

    ``on_error`` decides about a sample that cannot be read. ``"raise"`` raises the error. ``"skip"`` drops the sample
    from iteration and from :meth:`__getitems__`, but access to that single sample raises the error. ``"substitute"``
    returns a later sample of this table. :meth:`stats` counts skipped samples. ``threads`` is the number of threads
    that read the samples of one call, by default 1 for local shards and 16 for remote shards. ``join``,
    ``trust_addresses``, ``pipes``, ``cache_dir``, ``cache_size`` and ``values`` (for :meth:`in_order`) are arguments of
    :class:`~wdscli.loader.webdataset.WebDataset` too.

    Raises UsageError for shards that can only be streamed.

    >>> from wdscli.shards import ShardWriter
    >>> folder = getfixture("tmp_path")
    >>> with ShardWriter(f"{folder}/in-%06d.tar", max_count=2) as writer:
    ...     for number in range(5):
    ...         writer.write(f"n{number}", {"cls": b"%d" % number})
    >>> table = IndexedDataset(f"{folder}/in-manifest.json")
    >>> len(table), table[-1]["cls"], table["n3"]["cls"], "n9" in table
    (5, b'4', b'3', False)
    >>> [sample["__key__"] for sample in table[::2]]
    ['n0', 'n2', 'n4']
    >>> list(table.select("cls >= 3").keys())
    ['n3', 'n4']
    """

    _policy: Policy

    if TYPE_CHECKING:
        decode = giving(PerSample.decode, _SAMPLES)
        map_dict = giving(PerSample.map_dict, _SAMPLES)
        xdecode = giving(PerSample.xdecode, _SAMPLES)
        map_tuple = giving(PerSample.map_tuple, _TUPLES)
        to_tuple = giving(PerSample.to_tuple, _TUPLES)
        extract_keys = giving(PerSample.extract_keys, _TUPLES)

        def map(
            self, f: Callable[[Item], New | None], handler: Handler = reraise_exception
        ) -> IndexedDataset[New]: ...

    def __init__(
        self: IndexedDataset[RawSample | Any],
        urls: Urls,
        *,
        join: JoinKind | None = None,
        fields: str | Sequence[str] | None = None,
        where: str | None = None,
        keys: str | Sequence[str] | None = None,
        keys_from: str | tuple[str, str] | None = None,
        sample: Share | tuple[Share, int] | None = None,
        transform: Callable[[Any], Any] | None = None,
        on_error: OnError = "raise",
        threads: int | None = None,
        trust_addresses: bool = False,
        pipes: bool = True,
        cache_dir: str | None = None,
        cache_size: int = -1,
        values: str | None = None,
    ) -> None:
        self._counts = SkipCounts()
        self._policy = Policy(on_error, self._counts)
        wanted = Criteria(where, keys, keys_from, sample)
        access = Access(trust_addresses, pipes, cache_dir, cache_size, join, values)
        catalog = open_catalog(urls, wanted, access, on_error=on_error, salvage=on_error != "raise")
        if not catalog.is_indexed:
            raise UsageError(
                "an IndexedDataset needs shards with random access, not streams or compressed shards",
                hint="WebDataset reads streams in order",
            )
        if threads is not None:
            want_whole("threads", threads, 1)
        self._reading = (wanted_fields(fields, catalog.fields), threads)
        self._open(catalog)
        if transform is not None:
            self.pipeline = self.map(transform).pipeline

    def _open(self, catalog: Catalog, known: Container[str] = ()) -> None:
        """Set the table to all samples of ``catalog``. Losses of the shards in ``known`` were counted before, and are
        not counted again."""
        assert catalog.counts is not None
        losses = {address: error for address, error in catalog.losses.items() if address not in known}
        self._policy.count_opened(losses, catalog.undecodable)
        self.catalog = catalog
        self.ordinals = Ordinals(range(int(catalog.counts.sum())))
        self._ends: I64 = numpy.cumsum(catalog.counts)
        self._ends_list: list[int] = self._ends.tolist()
        self._pool = Pool(catalog, *self._reading)
        self._key_index: list[KeyIndex] = []
        """The key index in a list, or an empty list before its first use. All views share the list."""

    def __len__(self) -> int:
        return len(self.ordinals)

    @overload
    def __getitem__(self: Self, which: slice) -> Self: ...
    @overload
    def __getitem__(self, which: str | SupportsIndex) -> Item: ...
    def __getitem__(self, which: Any) -> Any:
        """Return the sample with a number or key; for a slice, return a view. Raises IndexError and KeyError, and
        InputError or DataError if the sample cannot be read."""
        if isinstance(which, str):
            return self[self.number(which)]
        if isinstance(which, slice):
            return self._with(ordinals=self.ordinals.cut(which))
        try:
            number = operator.index(which)
        except TypeError:
            raise TypeError(
                f"a sample's number or key cannot be a {type(which).__name__}; subset() takes a list of numbers"
            ) from None
        found = self._one(number)
        if not found:
            raise DataError(
                f"sample {number} was skipped",
                code="skipped",
                hint='on_error="substitute" returns another sample',
            )
        return found[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Item]:
        """Return many samples at once, in the order of ``numbers``; torch's DataLoader calls this method for a batch.
        The list is shorter if ``on_error="skip"`` or a stage drops samples. Raises IndexError, InputError,
        DataError."""
        return self._made(self.ordinals.checked(numbers))

    def __iter__(self) -> Iterator[Item]:
        first = 0
        while first < len(self):
            end = min(first + self._together(self.ordinals[first]), len(self))
            numbers: I64 = numpy.arange(first, end, dtype=numpy.int64)
            yield from self._made(numbers)
            first = end

    def _together(self, ordinal: int) -> int:
        """Return how many samples to read together, from the mean size of the samples in the shard of sample
        ``ordinal``."""
        try:
            table = self.catalog.table(bisect_right(self._ends_list, ordinal))
        except WdsError:
            return SAMPLES_PER_READ
        return max(1, min(SAMPLES_PER_READ, BYTES_PER_READ * table.samples // max(1, table.size)))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._find(key) is not None

    def keys(self) -> Iterator[str]:
        """Yield the keys in the order of the table, without reading payloads."""
        for first in range(0, len(self), SAMPLES_PER_READ):
            part = self.ordinals.cut(slice(first, first + SAMPLES_PER_READ))
            shards, places = self._located(part.every())
            for shard, place in zip(shards.tolist(), places.tolist()):
                yield self.catalog.table(shard).key(place)

    def number(self, key: str) -> int:
        """Return the number of the first sample with this key. Raises KeyError."""
        found = self._find(key)
        if found is None:
            like: list[str] = []
            with suppress(WdsError):  # a shard that does not have the key may be unreadable
                like = similar(key, self.keys())
            raise KeyError(f"no sample {key}" + (f"; did you mean {', '.join(like)}?" if like else ""))
        return found

    def _find(self, key: str) -> int | None:
        if not self._key_index:
            self._key_index.append(KeyIndex(self.catalog, lenient=not self._policy.raises))
        shown = map(self.ordinals.find, self._key_index[0].find(key))
        return min((number for number in shown if number is not None), default=None)

    def subset(self: Self, numbers: Sequence[int] | I64) -> Self:
        """Return a view of the samples with these numbers, in the given order. A mask with a bool for each sample also
        works. Raises IndexError."""
        return self._with(ordinals=self.ordinals.chosen(numbers))

    def select(
        self: Self,
        where: str | None = None,
        *,
        keys: str | Sequence[str] | None = None,
        keys_from: str | tuple[str, str] | None = None,
        sample: Share | tuple[Share, int] | None = None,
    ) -> Self:
        """Return a view of the samples that an expression and keys select. ``sample`` keeps a random subset of the
        selected samples. No data is written. Expressions with ``key``, ``fields``, ``size``, ``shard`` and ``index``
        read only the indexes. Expressions with ``json``, ``cls`` or ``txt`` read these payloads once, in this call.
        Raises UsageError for an invalid argument. With ``on_error="raise"``, raises DataError for a payload that cannot
        be decoded."""
        if callable(where):
            raise UsageError(
                "select() of an IndexedDataset needs an expression",
                hint="use subset(numbers) for any other choice",
            )
        chosen = Filter.parse(Criteria(where, keys, keys_from, sample), self._policy.on_error)
        if chosen is None:
            return self
        if self.ordinals.is_all(self.catalog.total or 0):
            new = self._with()
            new._open(FilteredCatalog(self.catalog, chosen), known=self.catalog.losses)
            return new
        return self.subset(self._selected(chosen))

    def _selected(self, chosen: Filter) -> Mask:
        """Return a mask of the selected samples of this view. Only shards that have samples of this view are opened."""
        shards, places = self._located(self.ordinals.every())
        mask: Mask = numpy.zeros(len(shards), dtype=bool)
        shown = numpy.unique(shards).tolist()
        chosen = chosen.settled(self.catalog, shown, lambda shard: numpy.unique(places[shards == shard]))
        for shard in shown:
            those = shards == shard
            rows, _, error = chosen.kept(self.catalog, shard)
            if error is not None:
                self._policy.leave_out(FailedSample(error, self.catalog.addresses[shard]))
            mask[those] = numpy.isin(places[those], rows)
        return mask

    def layout(self) -> SamplesByShard:
        """Return the samples of this view by shard, for a sampler."""
        counts, fingerprint = self.catalog.counts, self.catalog.fingerprint
        assert counts is not None
        if self.ordinals.is_all(int(counts.sum())):
            return SamplesByShard(counts, None, fingerprint)
        every = self.ordinals.every()
        order, shards = every.argsort(kind="stable"), counts.cumsum().searchsorted(every, "right")
        digest = xxh3_128(fingerprint.encode())
        digest.update(every.astype("<i8").tobytes())
        shown = numpy.bincount(shards, minlength=len(counts)).astype(numpy.int64)
        return SamplesByShard(shown, order, f"xxh3_128:{digest.hexdigest()}")

    def in_order(self) -> PositionDataset[Item]:
        """Return the samples of this table as an iterable dataset, in the table's order."""
        data: PositionDataset[Item] = PositionDataset(_TableSource(self), on_error=self._policy.on_error)
        return data._with(pipeline=self.pipeline, _counts=self._counts, _policy=self._policy)

    def close(self) -> None:
        """Close all files and stop all threads. A later read opens files and starts threads again."""
        self._pool.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self)} samples in {len(self.catalog.addresses)} shards>"

    def _located(self, ordinals: I64) -> tuple[I64, I64]:
        """Return two arrays for the samples with these numbers in the set: the shards, and the numbers within the
        shards."""
        shards, samples = stretches(self._ends, ordinals)
        return shards, self.catalog.places(shards, samples)

    def read(self, positions: I64) -> list[Raw | FailedSample]:
        """Return samples by number; no stage has run on them. A sample that cannot be read is a Failed in the list.
        With ``on_error="raise"`` its error is raised instead."""
        shards, places = self._located(self.ordinals.at(positions))
        try:
            return list(self._pool.fetch(shards, places))
        except (DataError, StorageError):
            if self._policy.raises:
                raise
            return read_each(self.catalog, self._pool, shards, places)

    def _made(self, numbers: I64) -> list[Any]:
        """Return the samples with these numbers, after all stages."""
        samples = self.read(numbers)
        if self._policy.on_error != "substitute":
            return self.pipeline.unit(self._policy.kept(samples))
        made = Replacing(self._policy, self.pipeline.each, _TableSource(self).instead, len(self)).made
        return list(chain.from_iterable(map(made, numbers.tolist(), samples)))

    def _one(self, number: int) -> list[Any]:
        """Return one sample after all stages, faster than :meth:`_made`."""
        ordinal = self.ordinals[number]
        if not self._policy.raises:
            return self._made(self.ordinals.checked([number]))
        shard = bisect_right(self._ends_list, ordinal)
        sample = ordinal - self._ends_list[shard - 1] if shard else ordinal
        raw = self._pool.one(shard, self.catalog.place(shard, sample))
        return self.pipeline.unit([raw])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_key_index": [], "_ends": None, "_ends_list": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        assert self.catalog.counts is not None
        self._ends = numpy.cumsum(self.catalog.counts)
        self._ends_list = self._ends.tolist()


class _TableSource(PositionSource, EpochReader):
    """A table as a source of samples by position. Every epoch has the same samples in the same order. Closing a reader
    of this source does not close the table's files."""

    def __init__(self, table: IndexedDataset[Any]) -> None:
        self._table = table
        self.facts = f"a table of {len(table):,} samples"

    def identity(self) -> dict[str, Any]:
        return {"fingerprint": self._table.layout().fingerprint, "table": True}

    def length(self, epoch: int) -> int:
        return len(self._table)

    def reader(self, epoch: int) -> EpochReader:
        return self

    def read(self, positions: I64) -> list[Any]:
        return self._table.read(positions)

    def prepare(self, fact: Fact) -> None:
        fact.prepare(self._table.catalog)

    def about(self, positions: I64, fact: Fact) -> Any:
        table = self._table
        return fact(table.catalog, *table._located(table.ordinals.at(positions)))
