"""A set of shards as a table: samples by number, by slice, by key, many at once, in any order.

What it is: :class:`IndexedDataset`, a map-style dataset for torch's DataLoader, also useful without torch. How: the
counts of the shards locate a number, the shard's index locates the bytes, and reads that lie close are joined. Views
(slices, subsets, selections) share what was loaded and copy nothing. Any thread may read at any time; a forked worker
opens its own files; a spawned one receives addresses and counts.

It must not know how bytes are read, nor in which order: see :mod:`wdscli.loader.samplers`.
"""

# Stages that change the type of items are declared here, because those of the base class cannot be.
# mypy: disable-error-code="assignment, override"

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar, cast, overload

from wdscli.arrays import I64, Mask, numpy
from wdscli.errors import DataError, StorageError, UsageError, WdsError
from wdscli.loader.checks import Urls, want_whole, wanted_fields
from wdscli.loader.dataset import PositionDataset
from wdscli.loader.order.order import stretches
from wdscli.loader.order.ordinals import Layout, Ordinals, layout
from wdscli.loader.order.source import EpochReader, PositionSource
from wdscli.loader.read.catalog import Catalog
from wdscli.loader.read.failures import Failed, OnError, Policy, Replacing, read_each
from wdscli.loader.read.fetch import Pool, Raw
from wdscli.loader.read.handlers import Handler, reraise_exception
from wdscli.loader.read.selected import Access, Filter, FilteredCatalog, Share, Wanted, open_catalog
from wdscli.loader.sample_types import Item, RawSample, Sample
from wdscli.loader.stages.fluent import PerSample
from wdscli.loader.stats import Counts

if TYPE_CHECKING:
    from wdscli.loader.read.keyindex import KeyIndex
    from wdscli.loader.sample_types import giving

    New = TypeVar("New")
    _SAMPLES = cast("IndexedDataset[Sample]", None)
    _TUPLES = cast("IndexedDataset[tuple[Any, ...]]", None)

Self = TypeVar("Self", bound="IndexedDataset")

SAMPLES_PER_READ = 256
"""The most samples that are read at once when a table is iterated."""
BYTES_PER_READ = 32 << 20
"""About the most bytes."""


class IndexedDataset(PerSample[Item]):
    """The samples of a set of shards, by number from 0 in the order of the set, or by key.

    ``urls`` are shards as everywhere in wdscli. ``fields`` limits which payloads are read. ``where``, ``keys`` and
    ``keys_from`` keep the samples that wdscli's options of these names select, see :mod:`wdscli.loader.read.selected`;
    ``sample`` draws some of them, a number or a part, with a seed if wanted: ``"10%"``, ``(1000, 7)``. ``transform`` is
    a function of each sample, like :meth:`map`; the other stages of a sample exist too, from ``decode`` to
    ``to_tuple``. ``on_error`` decides about a sample that cannot be read: ``"raise"``; ``"skip"``, which drops it from
    iteration and from :meth:`__getitems__`, and is an error for a single sample; or ``"substitute"``, which returns a
    later one of this table. :meth:`stats` counts them. ``threads`` read the samples of one call, by default one for
    local shards and 16 for remote ones. ``trust_addresses``, ``pipes``, ``cache_dir`` and ``cache_size`` are those of
    :class:`~wdscli.loader.webdataset.WebDataset`.

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
        fields: str | Sequence[str] | None = None,
        where: str | None = None,
        keys: str | Sequence[str] | None = None,
        keys_from: str | None = None,
        sample: Share | tuple[Share, int] | None = None,
        transform: Callable[[Any], Any] | None = None,
        on_error: OnError = "raise",
        threads: int | None = None,
        trust_addresses: bool = False,
        pipes: bool = True,
        cache_dir: str | None = None,
        cache_size: int = -1,
    ) -> None:
        self._counts = Counts()
        self._policy = Policy(on_error, self._counts)
        wanted = Wanted(where, keys, keys_from, sample)
        access = Access(trust_addresses, pipes, cache_dir, cache_size)
        catalog = open_catalog(urls, wanted, access, on_error=on_error, salvage=on_error != "raise")
        if not catalog.is_indexed:
            raise UsageError(
                "an IndexedDataset needs shards with random access, not streams or compressed ones",
                hint="WebDataset reads streams in order",
            )
        if threads is not None:
            want_whole("threads", threads, 1)
        self._reading = (wanted_fields(fields, catalog.fields), threads)
        self._open(catalog)
        if transform is not None:
            self.pipeline = self.map(transform).pipeline

    def _open(self, catalog: Catalog, known: Container[str] = ()) -> None:
        """Show ``catalog``, whose ``known`` losses are counted already."""
        assert catalog.counts is not None
        losses = {address: error for address, error in catalog.losses.items() if address not in known}
        self._policy.count_opened(losses, catalog.undecodable)
        self.catalog = catalog
        self.ordinals = Ordinals(range(int(catalog.counts.sum())))
        self._ends: I64 = numpy.cumsum(catalog.counts)
        self._ends_list: list[int] = self._ends.tolist()
        self._pool = Pool(catalog, *self._reading)
        self._key_index: list[KeyIndex] = []
        """One at most, made on first use; all views share it."""

    def __len__(self) -> int:
        return len(self.ordinals)

    @overload
    def __getitem__(self: Self, which: slice) -> Self: ...
    @overload
    def __getitem__(self, which: str | SupportsIndex) -> Item: ...
    def __getitem__(self, which: Any) -> Any:
        """Return a sample by number or key, or a view of a slice. Raises IndexError, KeyError; InputError and DataError
        if it cannot be read."""
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
                hint='on_error="substitute" returns another one',
            )
        return found[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Item]:
        """Return many samples at once, in the order of ``numbers``; torch's DataLoader calls this for a batch. The list
        is shorter if ``on_error="skip"`` or a stage drops samples. Raises IndexError, InputError, DataError."""
        return self._made(self.ordinals.checked(numbers))

    def __iter__(self) -> Iterator[Item]:
        first = 0
        while first < len(self):
            end = min(first + self._together(self.ordinals[first]), len(self))
            numbers: I64 = numpy.arange(first, end, dtype=numpy.int64)
            yield from self._made(numbers)
            first = end

    def _together(self, ordinal: int) -> int:
        """Return the number of samples to read at once, by the mean size of a sample in the same shard."""
        try:
            table = self.catalog.table(bisect_right(self._ends_list, ordinal))
        except WdsError:
            return SAMPLES_PER_READ
        return max(1, min(SAMPLES_PER_READ, BYTES_PER_READ * table.samples // max(1, table.size)))

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._find(key) is not None

    def keys(self) -> Iterator[str]:
        """Yield the keys in the order of the table; payloads are not read."""
        for first in range(0, len(self), SAMPLES_PER_READ):
            part = self.ordinals.cut(slice(first, first + SAMPLES_PER_READ))
            shards, places = self._located(part.every())
            for shard, place in zip(shards.tolist(), places.tolist()):
                yield self.catalog.table(shard).key(place)

    def number(self, key: str) -> int:
        """Return the number of the sample with this key, the first one of several. Raises KeyError."""
        found = self._find(key)
        if found is None:
            from wdscli.loader.read.keyindex import similar

            like: list[str] = []
            with suppress(WdsError):  # an unrelated shard may be unreadable
                like = similar(key, self.keys())
            raise KeyError(f"no sample {key}" + (f"; did you mean {', '.join(like)}?" if like else ""))
        return found

    def _find(self, key: str) -> int | None:
        if not self._key_index:
            from wdscli.loader.read.keyindex import KeyIndex

            self._key_index.append(KeyIndex(self.catalog, lenient=not self._policy.raises))
        shown = map(self.ordinals.find, self._key_index[0].find(key))
        return min((number for number in shown if number is not None), default=None)

    def subset(self: Self, numbers: Sequence[int] | I64) -> Self:
        """Return a view of some samples, in this order, by numbers or by a mask. Raises IndexError."""
        return self._with(ordinals=self.ordinals.chosen(numbers))

    def select(
        self: Self,
        where: str | None = None,
        *,
        keys: str | Sequence[str] | None = None,
        keys_from: str | None = None,
        sample: Share | tuple[Share, int] | None = None,
    ) -> Self:
        """Return a view of the samples that an expression and keys select, and ``sample`` draws; no data is written.
        Expressions over ``key``, ``fields``, ``size``, ``shard`` and ``index`` read the indexes alone; one over
        ``json``, ``cls`` or ``txt`` reads these payloads once, now. Raises UsageError, and with ``on_error="raise"``
        DataError for a payload that cannot be decoded."""
        if callable(where):
            raise UsageError(
                "select() of a table takes an expression", hint="subset(numbers) for any other choice"
            )
        chosen = Filter.parse(Wanted(where, keys, keys_from, sample), self._policy.on_error)
        if chosen is None:
            return self
        if self.ordinals.is_all(self.catalog.total or 0):
            new = self._with()
            new._open(FilteredCatalog(self.catalog, chosen), known=self.catalog.losses)
            return new
        return self.subset(self._selected(chosen))

    def _selected(self, chosen: Filter) -> Mask:
        """Return a mask of the selected samples of this view; only its own shards are opened."""
        shards, places = self._located(self.ordinals.every())
        mask: Mask = numpy.zeros(len(shards), dtype=bool)
        shown = numpy.unique(shards).tolist()
        chosen = chosen.settled(self.catalog, shown, lambda shard: numpy.unique(places[shards == shard]))
        for shard in shown:
            those = shards == shard
            rows, _, error = chosen.kept(self.catalog, shard)
            if error is not None:
                self._policy.leave_out(Failed(error, self.catalog.addresses[shard]))
            mask[those] = numpy.isin(places[those], rows)
        return mask

    def layout(self) -> Layout:
        """Return the samples of this view by shard, for a sampler."""
        assert self.catalog.counts is not None
        return layout(self.ordinals, self.catalog.counts, self.catalog.fingerprint)

    def in_order(self) -> PositionDataset[Item]:
        """Return the same samples as a dataset that is iterated, in the order of this table."""
        data: PositionDataset[Item] = PositionDataset(_TableSource(self), on_error=self._policy.on_error)
        return data._with(pipeline=self.pipeline, _counts=self._counts, _policy=self._policy)

    def close(self) -> None:
        """Close files and threads; a later read opens them again."""
        self._pool.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self)} samples in {len(self.catalog.addresses)} shards>"

    def _located(self, ordinals: I64) -> tuple[I64, I64]:
        """Return (shard, place in the shard) of some samples of the set."""
        shards, samples = stretches(self._ends, ordinals)
        return shards, self.catalog.places(shards, samples)

    def read(self, positions: I64) -> list[Raw | Failed]:
        """Return samples by their numbers as they are read, before any stage, with Failed for one that cannot be read;
        with ``on_error="raise"`` its error is raised."""
        shards, places = self._located(self.ordinals.at(positions))
        try:
            return list(self._pool.fetch(shards, places))
        except (DataError, StorageError):
            if self._policy.raises:
                raise
            return read_each(self.catalog, self._pool, shards, places)

    def _made(self, numbers: I64) -> list[Any]:
        """Return some samples after the stages."""
        samples = self.read(numbers)
        if self._policy.on_error != "substitute":
            return self.pipeline.unit(self._policy.kept(samples))
        made = Replacing(self._policy, self.pipeline.each, _TableSource(self).instead, len(self)).made
        return list(chain.from_iterable(map(made, numbers.tolist(), samples)))

    def _one(self, number: int) -> list[Any]:
        """Return one sample after the stages; faster than :meth:`_made`."""
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
    """A table by position; each epoch is the same. Closing it leaves the table's files open."""

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
