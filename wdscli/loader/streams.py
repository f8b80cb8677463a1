"""This module reads shards that can only be read from beginning to end: ``pipe:``, ``-``, compressed shards, servers
without ranges, named pipes.

:class:`ShardStream` is a source without positions. If the shards are shuffled, each epoch permutes them by a key of
:mod:`wdscli.loader.order.order`. Shard i then belongs to rank i mod ranks and to worker i // ranks mod workers. A
worker reads the samples of its shards, and shuffles them in a buffer if the stream has one. So the order of samples
depends on the numbers of ranks and workers, and a state with other numbers is an error.

To resume, the stream reads the epoch's samples before the place again, but does not run stages on them. This module
does not know what stages do.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from itertools import chain, count, islice
from typing import Any, TypeAlias, TypeVar

from xxhash import xxh3_128_hexdigest

from wdscli.arrays import I64, numpy
from wdscli.errors import DataError, InputError, StorageError, UsageError
from wdscli.loader.checks import warn_of_missing
from wdscli.loader.order.order import BUFFERED, ENDLESS, SHARDS, Permutation, Shuffle, key
from wdscli.loader.order.source import EpochReader, PositionSource
from wdscli.loader.place.ranks import Share, Tail, in_worker
from wdscli.loader.read.catalog import Catalog, only_streams
from wdscli.loader.read.failures import FailedSample, OnError, Policy, StopEpoch, samples_of_stream
from wdscli.loader.read.fetch import METER, Raw
from wdscli.loader.read.renamed import Renaming, with_new_names
from wdscli.loader.stages.generators import begins_with_a_shard, begun, through_buffer
from wdscli.model import Sample
from wdscli.ordering import mix
from wdscli.shown import shown
from wdscli.storage.opening import compression_of

Self = TypeVar("Self", bound="Stream")
Splitter: TypeAlias = Callable[[Iterator[Any]], Iterable[Any]]
LOOKED_AT = 100
"""A stream warns if this number of samples at its beginning have none of the wanted fields."""
PASS = 1 << 32
"""The difference between the numbers of two passes of an endless epoch."""


def pass_numbers(epoch: int, passes: int | None) -> Iterator[int]:
    """Yield the numbers of an epoch's passes. With ``passes`` None, the numbers never end."""
    if passes is None:
        return (epoch + number * PASS for number in count())
    return iter(range(epoch * passes, (epoch + 1) * passes))


def in_passes(epoch: int, passes: int | None, of_pass: Callable[[int], Iterator[Any]]) -> Iterator[Any]:
    """Yield the items of an epoch's passes, pass after pass. With ``passes`` None, only an empty pass ends the
    epoch."""
    for pass_number in pass_numbers(epoch, passes):
        items = of_pass(pass_number)
        first = list(islice(items, 1))
        if not first:
            return
        yield from chain(first, items)


def _slot(share: Share) -> tuple[int, int]:
    """Return the number of a worker among the workers of all ranks, and the number of all workers."""
    return share.worker * share.world + share.rank, share.world * share.workers


class Stream(PositionSource):
    """A source without positions: its samples are read from beginning to end."""

    is_stream = True
    facts = "a stream"

    def __init__(self, seed: int, is_shuffled: bool) -> None:
        self.seed, self.is_shuffled = seed, is_shuffled
        self._buffer = 0, 0
        """The size of the shuffle buffer, or 0 for no buffer, and the number of samples at which the buffer begins to
        yield."""

    def shuffled(self: Self, size: int, initial: int, seed: int) -> Self:
        """Return the stream with a shuffle buffer."""
        new = copy(self)
        new.seed, new.is_shuffled, new._buffer = seed, True, (size, min(initial, size))
        return new

    def buffered(self, samples: Iterator[Any], *key_parts: int) -> Iterator[Any]:
        """Yield ``samples``, shuffled in the buffer if the stream has one. The n-th random number is ``mix(key(seed,
        BUFFERED, *key_parts) ^ n)``."""
        if self._buffer[0] < 2:
            return samples
        state, draws = key(self.seed, BUFFERED, *key_parts), count()
        return through_buffer(samples, *self._buffer, lambda _: mix(state ^ next(draws)))

    def has_shards(self, epoch: int, share: Share) -> bool:
        """Return whether a worker has shards to read in an epoch."""
        return False

    def length(self, epoch: int) -> int:
        return ENDLESS

    def reader(self, epoch: int) -> EpochReader:
        raise UsageError("the position in a stream cannot be saved")


class PlainStream(Stream):
    """The first stage of a pipeline as a source: an iterable, or a function that returns an iterator. Each process
    iterates the first stage separately. There is no exact place."""

    facts = "what was appended, without an exact place"
    is_appended = True

    def __init__(self, first: Any = None) -> None:
        super().__init__(0, False)
        self._first = first

    def begun_by(self, stage: Any) -> PlainStream | None:
        return PlainStream(stage) if self._first is None else None

    def identity(self) -> dict[str, Any]:
        raise UsageError(
            "cannot save the position of stages that were added to an empty dataset",
            hint="add the stages to wds.WebDataset(urls), which can save its position",
        )

    def flow(self, epoch: int, passes: int | None, share: Share, policy: Policy) -> Iterator[Any]:
        """Yield the items of ``passes`` epochs. With ``passes`` None, the items never end."""

        def of_pass(pass_number: int) -> Iterator[Any]:
            is_shard, items = begins_with_a_shard(begun(() if self._first is None else self._first))
            return self.buffered(items, pass_number, *(() if is_shard else (share.worker, share.rank)))

        return in_passes(epoch, passes, of_pass)


class ShardStream(Stream):
    """Reads the samples of shards from beginning to end. Shuffled shards have a new order in each epoch. ``fields`` are
    the fields to keep, or None for all fields. ``splitters`` are the user's functions that choose the shards of a
    worker. A function gets an iterator of ``{"url": ...}`` and yields some of its items. With splitters, the stream has
    no exact place. ``renaming`` renames members before they are grouped."""

    def __init__(
        self,
        catalog: Catalog,
        seed: int,
        shuffle: Shuffle,
        fields: Sequence[str] | None,
        splitters: Sequence[Splitter] = (),
        renaming: Renaming | None = None,
    ) -> None:
        super().__init__(seed, shuffle != "none")
        self.splitters, self._renaming = tuple(splitters), renaming
        if splitters:
            self.facts = f"{len(catalog.addresses):,} shards split by functions, without an exact place"
        self._open, self.addresses, self._spelled = catalog.open, catalog.addresses, catalog.spelled
        self._fields = None if fields is None else frozenset(field.lower() for field in fields)
        self._is_checked = fields is None

    def identity(self) -> dict[str, Any]:
        """Return the facts of the stream. A digest of the addresses identifies the data. Raises UsageError if there is
        no exact place."""
        if self.splitters:
            by = ", ".join(getattr(one, "__name__", type(one).__name__) for one in self.splitters)
            raise UsageError(
                f"cannot save a position if shards are split by {by}",
                hint='use nodesplitter="exact" or wds.split_by_worker',
            )
        names = "\0".join(self.addresses).encode("utf-8", "surrogateescape")
        how = [self.is_shuffled, *self._buffer]
        return {"addresses": f"xxh3_128:{xxh3_128_hexdigest(names)}", "seed": self.seed, "stream": how}

    def has_shards(self, epoch: int, share: Share) -> bool:
        return bool(self._dealt(epoch, *_slot(share)))

    def flow(self, epoch: int, passes: int | None, share: Share, policy: Policy) -> Iterator[Raw]:
        """Yield the samples of worker ``share`` in ``passes`` epochs. With ``passes`` None, the samples never end."""
        slot, slots = _slot(share)
        if not self.has_shards(epoch, share):
            how = "split by functions" if self.splitters else "read from front to back"
            warnings.warn(
                f"{len(self.addresses)} shards are {how}, but all ranks have {slots} workers: "
                f"worker {share.worker} of rank {share.rank} gets no shard",
                stacklevel=2,
            )
            return
        stops: list[bool] = []

        def of_pass(pass_number: int) -> Iterator[Raw]:
            if stops:
                return iter(())
            samples = self._of_shards(self._dealt(pass_number, slot, slots), policy, stops)
            return self.buffered(samples, pass_number, slot)

        yield from in_passes(epoch, passes, of_pass)

    def _dealt(self, pass_number: int, slot: int, slots: int) -> list[str]:
        """Return the shards of worker ``slot``, in order. All ranks together have ``slots`` workers."""
        addresses = self.addresses
        if self.splitters:
            shards: Any = ({"url": address} for address in addresses)
            for splitter in self.splitters:
                shards = splitter(shards)
            addresses, slot, slots = [_url(shard) for shard in shards], 0, 1
        return [addresses[number] for number in self._order(pass_number, len(addresses))[slot::slots]]

    def _of_shards(self, addresses: Sequence[str], policy: Policy, stops: list[bool]) -> Iterator[Raw]:
        """Yield the samples of shards. If a handler ends the epoch, add to ``stops``."""
        try:
            for address in addresses:
                yield from self._of_shard(address, policy)
        except StopEpoch:  # no exception here, so that a buffer still yields its samples
            stops.append(True)

    def _order(self, pass_number: int, count: int) -> list[int]:
        places: I64 = numpy.arange(count, dtype=numpy.int64)
        if self.is_shuffled:
            places = Permutation(len(places), key(self.seed, pass_number, SHARDS)).at(places)
        order: list[int] = places.tolist()
        return order

    def _of_shard(self, address: str, policy: Policy) -> Iterator[Raw]:
        _want_readable(address)
        have: set[str] = set()
        try:
            with self._open(address) as source:
                samples = self._wanted(samples_of_stream(source, address, policy), have, address)
                if self._renaming is not None:
                    samples = with_new_names(samples, self._renaming, address)
                for key, fields in samples:
                    METER.add(sum(map(len, fields.values())))
                    yield {"__key__": key, "__url__": address, **fields}
            if not self._is_checked:
                self._check_fields(have, address)
        except (DataError, StorageError) as error:
            # An error of a command at its end counts too, because samples may be missing.
            policy.leave_out(FailedSample(error, address))

    def _check_fields(self, have: set[str], address: str) -> None:
        """Warn if none of the wanted fields is in ``have``, the fields of the samples that were read so far."""
        warn_of_missing(sorted(self._fields or ()), have, f" of {shown(address)} so far")
        self._is_checked = bool(have)

    def _wanted(
        self, samples: Iterator[Sample], have: set[str], address: str
    ) -> Iterator[tuple[str, dict[str, bytes]]]:
        """Yield the key and the wanted fields of each sample. Add the fields of the first samples to ``have``."""
        for number, sample in enumerate(samples, 1):
            if not self._is_checked:
                have.update(sample.fields)
                if number == LOOKED_AT:
                    self._check_fields(have, address)
            yield sample.key, fields_of(sample.fields, self._spelled, self._fields)


def fields_of(
    payloads: dict[str, bytes], spelled: bool, wanted: frozenset[str] | None = None
) -> dict[str, bytes]:
    """Return the ``wanted`` payloads of a sample by field name (None: all payloads). Field names become lower case
    unless ``spelled``. If two fields differ only in case, such as img.jpg and img.JPG, both names stay unchanged."""
    lower = [field.lower() for field in payloads]
    return {
        spelling if spelled or lower.count(field) > 1 else field: payload
        for field, (spelling, payload) in zip(lower, payloads.items())
        if wanted is None or field in wanted
    }


def _url(shard: Any) -> str:
    if not isinstance(shard, dict) or not isinstance(shard.get("url"), str):
        raise UsageError(
            f'a splitter yielded {shard!r:.80}, but a shard is {{"url": ...}}',
            hint="a splitter must yield shards of its input",
        )
    return str(shard["url"])


_read: set[str] = set()
"""The addresses that this process has read and cannot read again."""


def _want_readable(address: str) -> None:
    """Raise InputError if the address is standard input, and this process is a worker or has already read it."""
    if address != "-":
        return
    if in_worker():
        raise InputError("standard input cannot be read by the worker of a DataLoader", hint="num_workers=0")
    if address in _read:
        raise InputError(
            "standard input was read already", hint="standard input can be read for only one epoch"
        )
    _read.add(address)


def check_stream(catalog: Catalog, shuffle: Shuffle, tail: Tail | None, on_error: OnError) -> None:
    """Raise UsageError for options that need random access. Warn if only some of the shards must be streamed."""
    impossible = {
        'shuffle="full"': shuffle == "full",
        f'tail="{tail}"': tail in ("even", "drop", "pad"),
        'on_error="substitute"': on_error == "substitute",
    }
    for what in [one for one, is_given in impossible.items() if is_given]:
        raise UsageError(
            f"{what} needs shards with random access, but some of these can only be streamed",
            hint="copy them to plain files, or leave out this option",
        )
    addresses = catalog.addresses
    streams = [one for one in addresses if only_streams(one) or compression_of(one)]
    if 0 < len(streams) < len(addresses):
        warnings.warn(
            f"{shown(streams[0])} can only be streamed, so all {len(addresses)} shards are streamed",
            stacklevel=2,
        )
