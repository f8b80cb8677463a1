"""This module walks through the samples of one open shard, and selects among them.

A :class:`Walk` gets the samples from an index, from a scan of the headers, or, with ``salvage``, from a search for the
intact samples of a damaged shard. All three give the same batches for an intact shard. The payloads that the selection
needs are kept while a stream passes, read from their places, or, with an index of a remote shard, requested together
before each batch. With ``checks_names``, no selected sample has an unsafe name: it is an error, or with ``salvage`` it
is dropped and counted.

This module does not know why an index is used, and does not know what the samples are for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from wdscli.errors import DataError
from wdscli.samples import IgnoredMembers, SampleBatch, iter_batches, may_be_unsafe, why_unsafe
from wdscli.samples.grouping import Dropped, Salvager
from wdscli.selection.choice import Selection, SelectionState
from wdscli.selection.reading import MemberReader
from wdscli.tar import CANONICAL, Form
from wdscli.text import to_text


class Salvage(NamedTuple):
    """How a walk treats damage. ``report`` is called with each error, and ``dropped`` counts samples that are not
    intact, by reason. ``expected_samples`` is the number of samples that the shard should have, or -1."""

    report: Callable[[DataError], None]
    dropped: Dropped
    expected_samples: int = -1


class Walk(NamedTuple):
    """One pass over the samples of the shard that ``payloads`` reads. ``state`` goes from shard to shard. With
    ``lenient``, links and repeated fields are no errors. ``begin`` is the offset of the first sample of the walk, and
    the number of samples before it."""

    selection: Selection
    state: SelectionState
    payloads: MemberReader
    form: Form = CANONICAL
    ignored: IgnoredMembers | None = None
    salvage: Salvage | None = None
    checks_names: bool = False
    lenient: bool = False
    begin: tuple[int, int] = (0, 0)

    def chosen(
        self, indexed: Iterable[SampleBatch] | None = None, requested: frozenset[bytes] | None = None
    ) -> Iterator[tuple[SampleBatch, list[int]]]:
        """Yield the batches with selected samples, each with the selected rows. ``payloads`` then reads payloads of
        this batch. Reading stops when no further sample can be selected.

        ``indexed`` are the samples if they are known from an index. ``requested`` are the fields to request before each
        of its batches. None means the fields that the selection reads, without fields that stored values replace.
        Raises DataError and InputError.
        """
        if self.state.done:
            return
        shard, payloads = self.payloads.source.name, self.payloads
        for batch in self._batches() if indexed is None else self._requesting(indexed, requested):
            payloads.batch = batch
            rows = self.selection.apply(batch, shard, self.state, payloads)
            if rows:
                if self.checks_names:
                    check_names(batch, shard)
                yield batch, rows
            if self.state.done:
                return
            payloads.forget()

    def _batches(self) -> Iterator[SampleBatch]:
        """Yield the samples of a scan or a salvage."""
        source, see = self.payloads.source, self.payloads.see if self.payloads.sees else None
        if self.salvage is None:
            return iter_batches(
                source, form=self.form, lenient=self.lenient, ignored=self.ignored, see=see, begin=self.begin
            )
        report, dropped, expected_samples = self.salvage
        salvager = Salvager(source, report, dropped, form=self.form, ignored=self.ignored, see=see)
        batches = salvager.batches(expected_samples)
        return keep_safe(batches, dropped) if self.checks_names else batches

    def _requesting(
        self, batches: Iterable[SampleBatch], requested: frozenset[bytes] | None
    ) -> Iterator[SampleBatch]:
        """Yield the batches of an index. Before each batch, request the payloads of all samples that the key rule
        selects, together."""
        payloads, rule, fields = self.payloads, self.selection.key_rule, requested
        for batch in batches:
            payloads.batch = batch
            if fields is None:
                fields = self.selection.using(frozenset(batch.values)).payload_fields
            if fields:
                keys = batch.keys
                payloads.request(
                    fields, (row for row, key in enumerate(keys) if rule is None or rule.selects(key))
                )
            yield batch


def check_names(batch: SampleBatch, shard: str) -> None:
    """Raise DataError ``unsafe-name`` for a sample with an unsafe name."""
    if is_suspect(batch.keys, batch.fields):
        for row in range(len(batch.keys)):
            unsafe_member = _unsafe_member(batch, row)
            if unsafe_member is not None:
                member, reason = unsafe_member
                raise DataError(
                    f"unsafe name: {reason}",
                    code="unsafe-name",
                    shard=shard,
                    offset=batch.starts[member],
                    member=to_text(batch.keys[row] + b"." + batch.fields[member])[:200],
                    hint="leave out such samples with --on-error skip; list them with wds verify",
                )


def is_suspect(keys: Sequence[bytes], fields: Iterable[bytes]) -> bool:
    """Return whether a name may be unsafe. This is a quick check of all names together. A batch has few different
    fields."""
    return may_be_unsafe(keys) or may_be_unsafe(list(set(fields)))


def _unsafe_member(batch: SampleBatch, row: int) -> tuple[int, str] | None:
    """Return the first member with an unsafe name, and the reason."""
    for member in range(batch.firsts[row], batch.firsts[row + 1]):
        reason = why_unsafe(batch.keys[row] + b"." + batch.fields[member])
        if reason is not None:
            return member, reason
    return None


def keep_safe(batches: Iterator[SampleBatch], dropped: Dropped) -> Iterator[SampleBatch]:
    """Yield the samples with safe names, and count other samples in ``dropped``."""
    for batch in batches:
        if not is_suspect(batch.keys, batch.fields):
            yield batch
            continue
        for row in range(len(batch.keys)):
            if _unsafe_member(batch, row) is not None:
                dropped["unsafe-name"] = dropped.get("unsafe-name", 0) + 1
            else:
                yield batch.part(row, row + 1)
