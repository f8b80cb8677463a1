"""This module decides about samples that cannot be read and about exceptions of stages, and counts skipped samples.

:class:`SkipCounts` counts skipped samples by shard and reason, for ``stats()``. As in webdataset, a handler is a
function that gets an exception. A handler raises an error, returns True (skip the sample and continue), or returns
False (skip the sample and end the epoch). Unlike in webdataset, handlers that warn do not sleep. :class:`Guard` calls
the handler of one stage. :class:`FailedSample` is the placeholder of a sample that cannot be read, and
:func:`read_each` finds such samples. :class:`Policy` decides whether such a sample is raised as an error, skipped, or
replaced by another sample.

A failed read is repeated shard by shard, and then sample by sample. So as few samples as possible are skipped. Which
samples are skipped does not depend on which samples are read together. The substitute for position p is the first
readable sample at p+1, p+2, p+4, ... (modulo the epoch's length). The substitute depends only on the position, so it is
the same for any ranks and workers. A process warns once for each (shard, reason). This module does not know what stages
do."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, TypeAlias, TypeVar, cast

from wdscli.arrays import I64, numpy
from wdscli.errors import DataError, StorageError, UsageError, WdsError, printable
from wdscli.loader.checks import want_word
from wdscli.loader.order.order import gathered
from wdscli.model import Sample
from wdscli.samples.grouping import Dropped
from wdscli.samples.keys import SeparatedSamples, joined_samples, separated
from wdscli.samples.reading import iter_samples
from wdscli.selection import Selection
from wdscli.selection.reading import MemberReader, Salvage, Walk
from wdscli.shown import shown
from wdscli.text import to_text
from wdscli.threads import ForkLock

if TYPE_CHECKING:
    from wdscli.loader.read.catalog import Catalog, Loss
    from wdscli.loader.read.fetch import Pool, Raw
    from wdscli.storage import Source


class SkipCounts:
    """Counts skipped samples by shard and reason.

    >>> counts = SkipCounts()
    >>> counts.add("a.tar", "map: ValueError")
    >>> counts.add("a.tar", "map: ValueError", 2)
    >>> counts.by_shard(), counts.rows()
    ({'a.tar': {'map: ValueError': 3}}, [('a.tar', 'map: ValueError', 3)])
    """

    def __init__(self) -> None:
        self._numbers: Counter[tuple[str, str]] = Counter()
        self._lock = ForkLock()

    def add(self, shard: str, reason: str, number: int = 1) -> None:
        """Count ``number`` samples of the shard with the address ``shard`` (empty if unknown) as skipped for
        ``reason``."""
        shard = shown(shard)
        with self._lock:
            self._numbers[shard, reason] += number

    def merge(self, rows: Iterable[tuple[str, str, int]]) -> None:
        """Add the :meth:`rows` of other counts."""
        for shard, reason, number in rows:
            self.add(shard, reason, number)

    def rows(self) -> list[tuple[str, str, int]]:
        """Return a sorted list of (shard, reason, number)."""
        with self._lock:
            return sorted((*of, number) for of, number in self._numbers.items())

    def by_shard(self) -> dict[str, dict[str, int]]:
        """Return the numbers as ``{shard: {reason: number}}``."""
        by_shard: dict[str, dict[str, int]] = {}
        for shard, reason, number in self.rows():
            by_shard.setdefault(shard, {})[reason] = number
        return by_shard

    def clear(self) -> None:
        """Set all numbers to zero."""
        with self._lock:
            self._numbers.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {"_numbers": self._numbers.copy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=ForkLock())


def warning_of_losses(items: Iterator[Any], worker: int, counts: Callable[[], SkipCounts]) -> Iterator[Any]:
    """Yield ``items``, and at the end warn about samples that were lost by errors. Samples that ``select`` dropped do
    not cause a warning. Workers of a plain DataLoader need this function, because ``stats()`` in the main process does
    not include their counts."""
    before = _errors(counts())
    try:
        yield from items
    finally:
        errors = _errors(counts()) - before
        if errors:
            reasons = ", ".join(f"{reason} {number}" for reason, number in errors.items())
            warnings.warn(
                f"worker {worker} skipped {sum(errors.values())} samples ({reasons}); "
                "only with WebLoader does stats() in the main process count them",
                stacklevel=2,
            )


def warning_of_drops(units: Iterator[Any], counts: Callable[[], SkipCounts]) -> Iterator[Any]:
    """Yield ``units``, or pairs of a sample without units. If there is no item, warn with the name of the stage that
    dropped most samples."""
    before = _by_reason(counts())
    # The generator may have threads, so it is closed at once and not when Python deletes the object.
    with closing(cast("Generator[Any, None, None]", units)):
        for unit in units:
            yield unit
            if getattr(unit, "items", unit):
                yield from units
                return
    for reason, number in (_by_reason(counts()) - before).most_common(1):
        stage, _, why = reason.partition(": ")
        if stage == "read":  # each reason was a warning already
            continue
        why = "its function returns None" if why == "None" else why
        warnings.warn(
            f"{stage} dropped all samples of this epoch ({number}){why and ': ' + why}", stacklevel=2
        )


def _by_reason(counts: SkipCounts) -> Counter[str]:
    numbers: Counter[str] = Counter()
    for _, reason, number in counts.rows():
        numbers[reason] += number
    return numbers


def _errors(counts: SkipCounts) -> Counter[str]:
    """Return the counts of samples lost by errors. The reason of an error has a colon."""
    return Counter({reason: number for reason, number in _by_reason(counts).items() if ": " in reason})


Handler: TypeAlias = Callable[[Exception], bool]
Item = TypeVar("Item")
Result = TypeVar("Result")


def reraise_exception(exn: Exception) -> NoReturn:
    """The default handler. Raise the exception, so that an error ends the run."""
    raise exn


def ignore_and_continue(exn: Exception) -> bool:
    """Skip the sample and count it."""
    return True


def warn_and_continue(exn: Exception) -> bool:
    """Skip the sample, count it and warn."""
    warnings.warn(repr(exn), stacklevel=2)
    return True


def ignore_and_stop(exn: Exception) -> bool:
    """Skip the sample, count it and end the epoch in this process."""
    return False


def warn_and_stop(exn: Exception) -> bool:
    """Skip the sample, count it, warn and end the epoch in this process."""
    warnings.warn(repr(exn), stacklevel=2)
    return False


def each(function: Callable[[Item], Result], items: Iterable[Item], handler: Handler) -> Iterator[Result]:
    """Yield ``function(sample)`` for each sample. ``handler`` decides whether an error skips the sample or ends the
    iteration."""
    for sample in items:
        try:
            result = function(sample)
        except Exception as error:
            if handler(error):
                continue
            return
        yield result


class StopEpoch(BaseException):
    """Raised to end the epoch when a handler decides so. ``items`` are the items that were made before. This class is
    not derived from Exception, so that ``except Exception`` does not catch it."""

    def __init__(self, items: Sequence[Any] = ()) -> None:
        super().__init__()
        self.items = list(items)


class ReplaceSample(BaseException):
    """Raised to request a substitute for a sample that cannot be decoded because of ``error``. ``note`` is a function
    that counts the sample. Like :class:`StopEpoch`, this class is not derived from Exception."""

    def __init__(self, error: DataError, note: Callable[[], None]) -> None:
        super().__init__()
        self.error, self.note = error, note


class Guard:
    """Calls the handler of one stage and counts the skipped samples. The name of the stage is part of the reason, such
    as ``map: ValueError``."""

    def __init__(self, stage: str, handler: Handler, counts: SkipCounts) -> None:
        self.stage = stage
        self.handler = handler
        self.counts = counts

    def drop(self, sample: Any, reason: str = "") -> None:
        """Count ``sample`` as skipped."""
        self.counts.add(text_of(sample, "__url__") or "", f"{self.stage}: {reason}" if reason else self.stage)

    def caught(self, error: Exception, sample: Any) -> None:
        """Let the handler decide about a caught ``error``. Return if ``sample`` is skipped; otherwise raise the error
        or StopEpoch."""
        if isinstance(error, UsageError):
            raise error  # the error, such as a missing package, would come again for every sample
        try:
            go_on = self.handler(error)
        except Exception as raised:
            if raised is error and not isinstance(error, WdsError):  # WdsErrors name the sample
                self._name(error, sample)
            raise
        self.drop(sample, type(error).__name__)
        if not go_on:
            raise StopEpoch

    def _name(self, error: Exception, sample: Any) -> None:
        """Add notes to the end of the traceback (Python 3.11 and later): the sample's name, and a hint if its fields
        are bytes and the function expects other values."""
        notes = []
        if isinstance(sample, dict) and "__key__" in sample:
            shard = shown(text_of(sample, "__url__") or "")
            notes.append(printable(f'in {self.stage}() of sample "{sample["__key__"]}" of {shard}'))
        values = (
            sample.values() if isinstance(sample, dict) else sample if isinstance(sample, tuple) else [sample]
        )
        is_of_bytes = isinstance(error, (TypeError, AttributeError)) and "byte" in str(error)
        if is_of_bytes and any(isinstance(value, bytes) for value in values):
            notes.append(f"hint: the fields are bytes: call decode() before {self.stage}()")
        with suppress(AttributeError):
            error.__notes__ = [*getattr(error, "__notes__", ()), *notes]  # type: ignore[attr-defined]


def text_of(sample: Any, field: str) -> str | None:
    """Return the text in ``field`` (``__key__`` or ``__url__``) of a sample, and None for anything else."""
    text = sample.get(field) if isinstance(sample, Mapping) else None
    return text if isinstance(text, str) else None


OnError = Literal["raise", "skip", "substitute"]


class FailedSample(NamedTuple):
    """The placeholder of a sample of ``shard`` that cannot be read."""

    error: WdsError
    shard: str

    @property
    def reason(self) -> str:
        """The reason for counting the sample: ``read: truncated``, ``read: changed`` or ``read: unreadable``."""
        return f"read: {self.error.code if isinstance(self.error, DataError) else 'unreadable'}"


def samples_of_stream(source: Source, address: str, policy: Policy) -> Iterator[Sample]:
    """Yield the samples of a stream. Unless errors are raised, yield only its intact samples, and count the others."""
    if policy.on_error == "raise":
        yield from joined_samples(iter_samples(source), address)
        return
    errors, dropped, search = list[DataError](), dict[str, int](), SeparatedSamples()
    try:
        for sample in _intact_samples(source, errors.append, dropped):
            if search.add(sample.key, [*sample.fields]):
                errors.append(separated(sample.key, address))
                dropped["interleaved-key"] = dropped.get("interleaved-key", 0) + 1
            else:
                yield sample
    finally:
        if errors:
            policy.leave_out(FailedSample(errors[0], address), sum(dropped.values()) or 1)


def _intact_samples(
    source: Source, report: Callable[[DataError], None], dropped: Dropped
) -> Iterator[Sample]:
    """Yield the samples that are surely complete. ``report`` and ``dropped`` are those of a :class:`Salvage`."""
    selection, reader = Selection(), MemberReader(source, keeps_all=True, held_bytes=sys.maxsize)
    walk = Walk(selection, selection.new_state(), reader, salvage=Salvage(report, dropped))
    for batch, rows in walk.chosen():
        for row in rows:
            members = range(batch.firsts[row], batch.firsts[row + 1])
            fields = {to_text(batch.fields[member]): reader.payload(member) for member in members}
            yield Sample(to_text(batch.keys[row]), fields, source.name, batch.index + row)


def read_each(catalog: Catalog, pool: Pool, shards: I64, places: I64) -> list[Raw | FailedSample]:
    """Return the samples at ``places`` of ``shards``, in this order. A sample that cannot be read is a Failed."""
    return gathered(shards, lambda shard, rows: _of_shard(catalog, pool, shard, places[rows]))


def _of_shard(catalog: Catalog, pool: Pool, shard: int, places: I64) -> Iterator[Raw | FailedSample]:
    try:
        yield from pool.fetch(numpy.full_like(places, shard), places)
        return
    except (DataError, StorageError) as error:
        broken = _whole(catalog, shard)
        if broken is not None or len(places) == 1:
            yield from [FailedSample(broken or error, catalog.addresses[shard])] * len(places)
            return
    for row in range(len(places)):
        yield from _of_shard(catalog, pool, shard, places[row : row + 1])


def _whole(catalog: Catalog, shard: int) -> WdsError | None:
    """Return the error of a shard that cannot be opened, or whose table cannot be loaded. Otherwise return None."""
    try:
        catalog.table(shard)
        catalog.open(catalog.addresses[shard]).close()
    except (DataError, StorageError) as error:
        return error
    return None


class Policy:
    """Decides about samples that cannot be read. ``on_error`` is ``"raise"``, ``"skip"`` or ``"substitute"``; another
    word raises UsageError. With ``"raise"`` the ``handler`` decides, and the default handler raises the error.
    ``counts`` has the numbers of such samples."""

    def __init__(self, on_error: OnError, counts: SkipCounts, handler: Handler = reraise_exception) -> None:
        want_word("on_error", on_error, ("raise", "skip", "substitute"))
        self.on_error = on_error
        self._handler = handler
        self._counts = counts
        self._warned: set[tuple[str, str]] = set()
        self.has_stopped = False
        """Whether the handler has ended an epoch."""

    def kept(self, samples: Sequence[Any]) -> Sequence[Any]:
        """Return the samples that are not Failed. Each Failed goes to :meth:`leave_out`. If that ends the epoch, raises
        StopEpoch with the samples before."""
        if FailedSample not in set(map(type, samples)):
            return samples
        left = []
        for sample in samples:
            if type(sample) is not FailedSample:
                left.append(sample)
                continue
            try:
                self.leave_out(sample)
            except StopEpoch:
                raise StopEpoch(left) from None
        return left

    @property
    def raises(self) -> bool:
        """Whether every error of a sample is raised."""
        return self.on_error == "raise" and self._handler is reraise_exception

    def undecodable(self, error: Exception) -> bool:
        """The default handler of ``decode``. If ``on_error`` is ``"raise"``, the handler raises the error. With
        ``"substitute"`` it requests a substitute, and with ``"skip"`` it skips the sample and warns once."""
        if self.on_error == "raise" or not isinstance(error, DataError):
            raise error
        if self.on_error == "substitute":
            raise ReplaceSample(error, partial(self._note_undecodable, error))
        self._warn(error.shard or "", "undecodable", error)
        return True

    def _note_undecodable(self, error: DataError) -> None:
        self._counts.add(error.shard or "", f"decode: {type(error).__name__}")
        self._warn(error.shard or "", "undecodable", error)

    def leave_out(self, failed: FailedSample, samples: int = 1) -> None:
        """Count ``failed`` as this number of samples, and warn once for its shard and reason. If ``on_error`` is
        ``"raise"``, call the handler. Raises the error that the handler raises, or StopEpoch if the handler returns
        false."""
        stops = self.on_error == "raise" and not self._handler(failed.error)
        self._counts.add(failed.shard, failed.reason, samples)
        self._warn(failed.shard, failed.reason, failed.error)
        if stops:
            self.has_stopped = True
            raise StopEpoch

    def count_opened(self, losses: Mapping[str, Loss], undecodable: Mapping[str, int]) -> None:
        """Count the losses from opening a set: the lost samples of damaged shards, and samples that a filter could not
        decode. Raises the first error that the handler raises."""
        for address, loss in sorted(losses.items()):
            with suppress(StopEpoch):  # continue with the next shard, as webdataset does
                self.leave_out(FailedSample(loss.error, address), loss.samples)
        for address, number in undecodable.items():
            self._counts.add(address, "where: undecodable", number)

    def _warn(self, shard: str, reason: str, error: WdsError) -> None:
        if (shard, reason) not in self._warned:
            self._warned.add((shard, reason))
            warnings.warn(f"skipped: {error}; stats() counts skipped samples", stacklevel=2)


class Replacing(NamedTuple):
    """Finds substitutes. ``each`` applies the stages to a sample. ``instead(position, step, length)`` reads the sample
    at position (position + step) modulo length."""

    policy: Policy
    each: Callable[[Any], list[Any]]
    instead: Callable[[int, int, int], Any]
    length: int

    def made(self, position: int, sample: Any) -> list[Any]:
        """Return the items that the stages make from ``sample``, or from its substitute. Raises errors of the policy
        and the stages, and DataError if there is no substitute."""
        if type(sample) is not FailedSample:
            try:
                return self.each(sample)
            except ReplaceSample as wanted:
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
            if type(sample) is not FailedSample:
                with suppress(ReplaceSample):
                    return self.each(sample)
        raise DataError("found no readable sample to replace an unreadable one", shard=shard) from error


def as_it_is(sample: Any) -> list[Any]:
    """Return the sample in a list. If there are no stages, this function is ``each`` of :class:`Replacing`."""
    return [sample]
