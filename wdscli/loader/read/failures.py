"""Samples that cannot be read: raised, skipped, or substituted by another one; always counted.

What it is: :class:`Failed`, the placeholder of such a sample in a list; :func:`read_each`, which finds them; and
:class:`Policy`, which decides about them. How: a failed read is repeated shard by shard and then sample by sample, so
that as few samples as possible are skipped, and the same ones whatever is read together. The substitute of position p
is the first sample at p+1, p+2, p+4, ... (modulo the epoch's length) that can be read: a pure function of the position,
the same for any ranks and workers. A process warns once of each (shard, reason). It must not know stages or batches."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from wdscli.arrays import I64, numpy
from wdscli.errors import DataError, StorageError, UsageError, WdsError
from wdscli.loader.order.order import gathered
from wdscli.loader.read.handlers import Handler, Replaced, StopEpoch, reraise_exception

if TYPE_CHECKING:
    from wdscli.loader.read.catalog import Catalog
    from wdscli.loader.read.fetch import Pool, Raw
    from wdscli.loader.stats import Counts

OnError = Literal["raise", "skip", "substitute"]


class Failed(NamedTuple):
    """The placeholder of a sample of ``shard`` that cannot be read."""

    error: WdsError
    shard: str

    @property
    def reason(self) -> str:
        """As it is counted: ``read: truncated``, ``read: changed``, ``read: unreadable``."""
        return f"read: {self.error.code if isinstance(self.error, DataError) else 'unreadable'}"


def read_each(catalog: Catalog, pool: Pool, shards: I64, places: I64) -> list[Raw | Failed]:
    """Return the samples at ``places`` of ``shards`` in this order, with Failed for one that cannot be read."""
    return gathered(shards, lambda shard, rows: _of_shard(catalog, pool, shard, places[rows]))


def _of_shard(catalog: Catalog, pool: Pool, shard: int, places: I64) -> Iterator[Raw | Failed]:
    try:
        yield from pool.fetch(numpy.full_like(places, shard), places)
        return
    except (DataError, StorageError) as error:
        broken = _whole(catalog, shard)
        if broken is not None or len(places) == 1:
            yield from [Failed(broken or error, catalog.addresses[shard])] * len(places)
            return
    for row in range(len(places)):
        yield from _of_shard(catalog, pool, shard, places[row : row + 1])


def _whole(catalog: Catalog, shard: int) -> WdsError | None:
    """Return the error that keeps a whole shard from being read, None without one."""
    try:
        catalog.table(shard)
        catalog.open(catalog.addresses[shard]).close()
    except (DataError, StorageError) as error:
        return error
    return None


class Policy:
    """What happens to samples that cannot be read: ``"raise"``, ``"skip"`` or ``"substitute"``; counted in ``counts``.
    With ``"raise"`` the ``handler`` decides, which raises by default. Raises UsageError for another word."""

    def __init__(self, on_error: OnError, counts: Counts, handler: Handler = reraise_exception) -> None:
        if on_error not in ("raise", "skip", "substitute"):
            raise UsageError(f'no such on_error: "{on_error}"', hint='"raise", "skip" or "substitute"')
        self.on_error = on_error
        self._handler = handler
        self._counts = counts
        self._warned: set[tuple[str, str]] = set()

    def kept(self, samples: Sequence[Any]) -> Sequence[Any]:
        """Return ``samples`` without Failed ones. Raises the first one's error or StopEpoch, as the handler decides."""
        if Failed not in set(map(type, samples)):
            return samples
        left = []
        for sample in samples:
            if type(sample) is Failed:
                self.leave_out(sample)
            else:
                left.append(sample)
        return left

    @property
    def raises(self) -> bool:
        """Whether every error is raised."""
        return self.on_error == "raise" and self._handler is reraise_exception

    def undecodable(self, error: Exception) -> bool:
        """The default handler of ``decode``: raises with ``"raise"``, requests a substitute with ``"substitute"``, else
        skips the sample and warns the first time."""
        if self.on_error == "raise" or not isinstance(error, DataError):
            raise error
        if self.on_error == "substitute":
            raise Replaced(error, partial(self._note_undecodable, error))
        self._warn(error.shard or "", "undecodable", error)
        return True

    def _note_undecodable(self, error: DataError) -> None:
        self._counts.add(error.shard or "", f"decode: {type(error).__name__}")
        self._warn(error.shard or "", "undecodable", error)

    def leave_out(self, failed: Failed) -> None:
        """Count ``failed``, and warn the first time. Raises its error, or StopEpoch, as the handler decides."""
        stops = self.on_error == "raise" and not self._handler(failed.error)
        self._counts.add(failed.shard, failed.reason)
        self._warn(failed.shard, failed.reason, failed.error)
        if stops:
            raise StopEpoch

    def count_opened(self, losses: Mapping[str, WdsError], undecodable: Mapping[str, int]) -> None:
        """Count samples that were lost when a set was opened: errors of shards, and samples that a filter could not
        decode. Raises the first error, as the handler decides."""
        for address, error in sorted(losses.items()):
            with suppress(StopEpoch):  # webdataset, too, continues with the next shard
                self.leave_out(Failed(error, address))
        for address, number in undecodable.items():
            self._counts.add(address, "where: undecodable", number)

    def _warn(self, shard: str, reason: str, error: WdsError) -> None:
        if (shard, reason) not in self._warned:
            self._warned.add((shard, reason))
            warnings.warn(f"skipped: {error}; stats() counts skipped samples", stacklevel=2)


class Replacing(NamedTuple):
    """Substitutes samples: ``each`` applies the stages to one, ``instead(position, step, length)`` reads another."""

    policy: Policy
    each: Callable[[Any], list[Any]]
    instead: Callable[[int, int, int], Any]
    length: int

    def made(self, position: int, sample: Any) -> list[Any]:
        """Return the items at ``position``. Raises errors of the policy and the stages, and DataError if there is no
        substitute."""
        if type(sample) is not Failed:
            try:
                return self.each(sample)
            except Replaced as wanted:
                wanted.note()
                error: WdsError = wanted.error
                shard = wanted.error.shard
        else:
            self.policy.leave_out(sample)
            if self.policy.on_error != "substitute":
                return []
            error, shard = sample.error, sample.shard
        return self._other(position, error, shard)

    def _other(self, position: int, error: WdsError, shard: str | None) -> list[Any]:
        step = 1
        while step < self.length:
            sample = self.instead(position, step, self.length)
            step *= 2
            if type(sample) is not Failed:
                with suppress(Replaced):
                    return self.each(sample)
        raise DataError("no substitute can be read for an unreadable sample", shard=shard) from error


def as_it_is(sample: Any) -> list[Any]:
    """The ``each`` of :class:`Replacing` without stages."""
    return [sample]
