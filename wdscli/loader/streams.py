"""Shards that can only be read from front to back: ``pipe:``, ``-``, compressed ones, servers without ranges, FIFOs.

What it is: :class:`ShardStream`, in the place of a source of positions, and :func:`stream_units`, what one worker makes
of it. How: the shards of an epoch, permuted by :mod:`wdscli.loader.order`'s key when they are shuffled, are dealt out
one by one to ranks first, then to workers: shard i of them to rank i mod ranks, worker i // ranks mod workers. A
worker's samples are those of its shards, through a real shuffle buffer when there is one, so what comes is the same for
the same number of ranks and workers only. To go on is to read again from the start of the epoch, without the stages,
what was given already. Where other workers than these would have to know what was given, that is refused.

It must not know what stages do.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import count, islice
from typing import TYPE_CHECKING, Any, TypeAlias

from wdscli.errors import DataError, InputError, StorageError, UsageError
from wdscli.loader.catalog import Catalog, only_streams
from wdscli.loader.dataset import PositionDataset
from wdscli.loader.failures import Failed, OnError, Policy
from wdscli.loader.fetch import Raw
from wdscli.loader.handlers import StopEpoch
from wdscli.loader.order import SHARDS, Permutation, Shuffle, key
from wdscli.loader.pipeline import Unit
from wdscli.loader.place import Place
from wdscli.loader.ranks import Share, in_worker
from wdscli.loader.share import Batches, Tail
from wdscli.loader.source import EpochReader
from wdscli.ordering import mix
from wdscli.samples import iter_samples
from wdscli.storage import is_stream, open_source

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    I64: TypeAlias = NDArray[numpy.int64]

ENDLESS = 1 << 62
BUFFERED = 7
"""What a key is for, as in :mod:`wdscli.loader.order`."""
PASS = 1 << 32
"""Between the numbers of two passes of one epoch."""


class ShardStream:
    """A source without positions: the samples of shards, from front to back. ``permuted`` shards come in another order
    in each epoch. ``buffer`` is the size of the shuffle buffer, 0 for none, which gives from ``initial`` samples on.
    ``spelled`` fields keep their capitals; ``fields`` limits which are kept."""

    is_stream = True

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        seed: int = 0,
        permuted: bool = False,
        buffer: int = 0,
        initial: int = 100,
        fields: Sequence[str] | None = None,
        spelled: bool = False,
    ) -> None:
        self.addresses = list(addresses)
        self.seed = seed
        self.is_shuffled = permuted or buffer > 1
        self._permuted, self._buffer, self._initial = permuted, buffer, min(initial, buffer)
        self._fields = None if fields is None else frozenset(fields)
        self._spelled = spelled

    def identity(self) -> dict[str, Any]:
        """The addresses stand for the data, of which no more is known."""
        from xxhash import xxh3_128_hexdigest

        names = "\0".join(self.addresses).encode("utf-8", "surrogateescape")
        how = [self._permuted, self._buffer, self._initial]
        return {"addresses": f"xxh3_128:{xxh3_128_hexdigest(names)}", "seed": self.seed, "stream": how}

    def shuffled(self, size: int, initial: int, seed: int) -> ShardStream:
        """The same shards permuted, through a buffer."""
        fields = None if self._fields is None else sorted(self._fields)
        return ShardStream(
            self.addresses,
            seed=seed,
            permuted=True,
            buffer=size,
            initial=initial,
            fields=fields,
            spelled=self._spelled,
        )

    def length(self, epoch: int) -> int:
        """Nobody knows."""
        return ENDLESS

    def reader(self, epoch: int) -> EpochReader:
        """Refused: raises UsageError."""
        raise UsageError(
            f"{self.addresses[0]} can only be streamed",
            hint="an index or a plain local copy of the shards helps",
        )

    def flow(self, epoch: int, passes: int | None, share: Share, policy: Policy) -> Iterator[Raw]:
        """The samples that worker ``share`` has of ``passes`` epochs, endless for None."""
        slot, slots = share.worker * share.world + share.rank, share.world * share.workers
        for number in count() if passes is None else range(passes):
            turn = epoch + number * PASS if passes is None else epoch * passes + number
            samples = self._of_turn(turn, slot, slots, policy)
            if self._buffer > 1:
                samples = buffered(samples, self._buffer, self._initial, key(self.seed, BUFFERED, turn, slot))
            empty = True
            for sample in samples:
                empty = False
                yield sample
            if empty:
                return

    def _of_turn(self, turn: int, slot: int, slots: int, policy: Policy) -> Iterator[Raw]:
        for number in self._order(turn)[slot::slots]:
            yield from self._of_shard(self.addresses[number], policy)

    def _order(self, turn: int) -> list[int]:
        import numpy

        places: I64 = numpy.arange(len(self.addresses), dtype=numpy.int64)
        if self._permuted:
            places = Permutation(len(places), key(self.seed, turn, SHARDS)).at(places)
        order: list[int] = places.tolist()
        return order

    def _of_shard(self, address: str, policy: Policy) -> Iterator[Raw]:
        _want_readable(address)
        try:
            with open_source(address) as source:
                for sample in iter_samples(source):
                    yield self._raw(address, sample.key, sample.fields)
        except (DataError, StorageError) as error:
            # A command that fails is never taken for one that had no more to say.
            if is_stream(address) and not isinstance(error, DataError):
                raise
            policy.leave_out(Failed(error, address))

    def _raw(self, address: str, name: str, payloads: dict[str, bytes]) -> Raw:
        raw: Raw = {"__key__": name, "__url__": address}
        for field, payload in payloads.items():
            field = field if self._spelled else field.lower()
            if field in raw:
                raise DataError(
                    f'field "{field}" comes twice in sample "{name}" in lower case',
                    code="duplicate-field",
                    shard=address,
                )
            if self._fields is None or field in self._fields:
                raw[field] = payload
        return raw


def buffered(items: Iterator[Any], size: int, initial: int, of_buffer: int) -> Iterator[Any]:
    """``items`` through a buffer of ``size``, which gives from ``initial`` on and takes two for each that it gives
    until it is full, as webdataset's does. Draw n, from 0, is ``mix(of_buffer ^ n)`` modulo what is held."""
    held: list[Any] = []
    draws = count()
    for item in items:
        held.append(item)
        if len(held) < size:
            held.extend(islice(items, 1))
        if len(held) >= initial:
            yield _drawn(held, mix(of_buffer ^ next(draws)))
    while held:
        yield _drawn(held, mix(of_buffer ^ next(draws)))


def _drawn(held: list[Any], draw: int) -> Any:
    place = draw % len(held)
    held[place], held[-1] = held[-1], held[place]
    return held.pop()


def stream_units(dataset: PositionDataset, batches: Batches, start: Place) -> Iterator[Unit]:
    """What comes out for each batch from ``start`` on, for this worker. Batch n of a rank is made by worker n modulo
    its workers, of the next samples that are dealt to that worker; a worker whose samples are used up makes no more."""
    source: Any = dataset.source
    share = batches.share
    acting = share._replace(worker=start.batch % share.workers)
    _warn_of_ends(source, batches, acting)
    passes = 1 if dataset._span is None else dataset._span.passes
    with closing(source.flow(start.epoch, passes, acting, dataset._policy)) as flow:
        for _ in islice(flow, start.batch // share.workers * batches.batch):
            pass
        for number in range(start.batch, batches.total, share.workers):
            samples = list(islice(flow, batches.batch))
            if not samples:
                return
            try:
                unit = Unit(number, dataset.pipeline.unit(samples))
            except StopEpoch as stop:
                yield Unit(number, stop.items, True)
                return
            yield unit


def _warn_of_ends(source: ShardStream, batches: Batches, share: Share) -> None:
    """Say what cannot be promised of a stream."""
    shards, slots = len(source.addresses), share.world * share.workers
    if share.worker * share.world + share.rank >= shards:
        warnings.warn(
            f"{shards} shards that can only be streamed, for {slots} workers of all ranks: "
            f"worker {share.worker} of rank {share.rank} gets none",
            stacklevel=2,
        )
    if share.world > 1 and batches.length >= ENDLESS:
        warnings.warn(
            "ranks may see different numbers of batches of shards that can only be streamed; "
            "with_epoch(n) makes them equal",
            stacklevel=2,
        )


_read: set[str] = set()
"""What this process has read and cannot read again."""


def _want_readable(address: str) -> None:
    """Raise InputError for standard input that was read already, or is that of another process."""
    if address != "-":
        return
    if in_worker():
        raise InputError("standard input cannot be read by the worker of a DataLoader", hint="num_workers=0")
    if address in _read:
        raise InputError("standard input was read already", hint="one epoch is all it has")
    _read.add(address)


def opened_stream(
    catalog: Catalog,
    seed: int,
    shuffle: Shuffle,
    fields: Sequence[str] | None,
    *,
    tail: Tail | None,
    on_error: OnError,
) -> ShardStream:
    """The stream of a set of which some shards can only be streamed. Raises UsageError for what is impossible then."""
    impossible = {
        'shuffle="full"': shuffle == "full",
        f'tail="{tail}"': tail in ("drop", "pad"),
        'on_error="substitute"': on_error == "substitute",
    }
    for what in [one for one, is_asked in impossible.items() if is_asked]:
        raise UsageError(
            f"{what} needs shards that can be read at any place, and some of these can only be streamed",
            hint="copy them to plain files, or leave it out",
        )
    _note_mixed(catalog.addresses)
    permuted = shuffle == "window"
    return ShardStream(
        catalog.addresses, seed=seed, permuted=permuted, fields=fields, spelled=catalog.spelled
    )


def _note_mixed(addresses: Sequence[str]) -> None:
    streams = [address for address in addresses if only_streams(address)]
    if 0 < len(streams) < len(addresses):
        warnings.warn(
            f"{streams[0]} can only be streamed, and so the whole set of {len(addresses)} shards is streamed",
            stacklevel=2,
        )
