"""This module walks through the samples of one open shard, selects among them, and reads payloads of their members, for
every command and for the loader's filter.

A :class:`Walk` gets the samples from an index, from a scan of the headers, or, with ``salvage``, from a search for the
intact samples of a damaged shard. All three give the same batches for an intact shard. The payloads that the selection
needs are kept while a stream passes, read from their places, or, with an index of a remote shard, requested together
before each batch. With ``checks_names``, no selected sample has an unsafe name: it is an error, or with ``salvage`` it
is dropped and counted.

A :class:`MemberReader` reads the members of the current batch of a walk: one payload, a payload in pieces, or many
payloads together. Before a payload is used, the header before it is compared with the index
that has its place. A scan has just read the headers, so it takes payloads from its window, or reads them from their
places. A stream cannot seek back, so the needed payloads are kept until their sample is complete: some MiB in memory,
and the rest in scratch files. Small payloads of an index are read and compared many at once by the compiled core.

This module does not know why an index is used, and does not know what samples and payloads are for.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain
from typing import Any, NamedTuple

from wdscli.arrays import Backing, Piece
from wdscli.codecs.handlers import HEAD_BYTES, PartialPayload, Payload, whole_names
from wdscli.errors import DataError
from wdscli.samples import (
    SampleBatch,
    iter_batches,
    may_be_unsafe,
    new_batch,
    split_name,
    why_unsafe,
)
from wdscli.samples.grouping import Dropped, Salvager, SampleAt
from wdscli.samples.reading import ExpectedMember
from wdscli.selection.choice import Selection, SelectionState
from wdscli.storage import Source
from wdscli.storage.ends import PIECE_BYTES, RangesInMemory, pieces_of
from wdscli.storage.local import is_cold
from wdscli.tar import CANONICAL, Form, Window, core, padded
from wdscli.tar.scan import cut
from wdscli.text import to_text

MAX_LOOKED_INTO_BYTES = 1 << 26
"""A larger payload is not decoded, so that a shard cannot exhaust memory."""
HELD_BYTES = 1 << 22
"""How many payload bytes of a stream are kept in memory. More bytes go to a scratch file."""
SCRATCH_BYTES = 1 << 24
"""A scratch file with this size gets no more payloads, so that it can be removed after its samples."""
SAMPLES_TOGETHER = 256
"""The most samples whose payloads are read together."""
BYTES_TOGETHER = 1 << 23
"""The most bytes of a shard from which payloads are read together."""
GAP_BYTES = 1 << 14
"""Gaps up to this size are read too, because this saves a request or a system call."""


class MemberReader:
    """Reads payloads of the current ``batch`` of an open shard. ``fields`` are those that the caller reads by name.
    With ``by_index``, the batch comes from an index, and a payload with another header raises DataError
    ``stale-index``. Of a stream, the payloads of ``fields`` are kept, or all payloads with ``keeps_all``: up to
    ``held_bytes`` (:data:`HELD_BYTES`) in memory, the others in scratch files. Requests skip gaps of ``gap_bytes`` or
    more (:meth:`Source.expect`)."""

    def __init__(
        self,
        source: Source,
        fields: frozenset[bytes] = frozenset(),
        *,
        by_index: bool = False,
        keeps_all: bool = False,
        held_bytes: int | None = None,
        gap_bytes: int | None = None,
    ) -> None:
        self.by_index = by_index
        self.batch = new_batch()
        self.source = source
        self.fields = fields
        self.sees = bool(fields) or keeps_all
        """Whether a scan must call :meth:`see`."""
        self._names = whole_names(fields)
        self._suffixes = (b"",) if keeps_all else tuple(b"." + name for name in self._names)
        self._keeps_all, self._gap_bytes = keeps_all, gap_bytes
        self._held_bytes = HELD_BYTES if held_bytes is None else held_bytes
        self._window: Window | None = None
        self._kept: dict[int, bytes] = {}
        self._stored: dict[int, tuple[Backing, list[Piece]]] = {}
        self._kept_bytes = 0
        self._file, self._file_bytes = Backing(), 0
        self._held: Source = source
        self._requested_rows: list[int] = []
        self._requested_fields = fields
        self._first_row = self._next_row = -1
        self._together = 1

    def see(self, window: Window) -> None:
        """Take a new window. If the source is a stream, keep the payloads that may be read. Raises DataError if the
        stream ends inside a payload."""
        self._window = window
        if self.source.seekable:
            return
        names, _, offsets, sizes, _ = window.columns
        for row, name in enumerate(names):
            if not name.endswith(self._suffixes) or not (self._keeps_all or self._is_read(name, sizes[row])):
                continue
            if self._kept_bytes + sizes[row] <= self._held_bytes:
                self._kept[offsets[row]] = window.payload(row)
                self._kept_bytes += sizes[row]
            else:
                self._store(offsets[row], self._pieces_of_window(window, row))

    def _is_read(self, name: bytes, size: int) -> bool:
        parts = split_name(name)
        return parts is not None and parts[1] in self._names and size <= MAX_LOOKED_INTO_BYTES

    def _pieces_of_window(self, window: Window, row: int) -> Iterator[bytes]:
        """Yield a payload that may extend beyond the window, in pieces."""
        offset, size = window.columns.offsets[row], window.columns.sizes[row]
        done, end = 0, padded(size)
        data = window.buffer[offset - window.base : offset - window.base + end]
        while data:
            yield data[: size - done] if done < size else b""
            done += len(data)
            data = self.source.read_at(offset + done, min(PIECE_BYTES, end - done)) if done < end else b""
        if done < end:
            raise cut(self.source.name, window.columns, row, done)

    def _store(self, offset: int, pieces: Iterable[bytes]) -> None:
        """Write a payload to the current scratch file. Begin a new file if the current file is full, or if all its
        payloads are no longer needed."""
        if not self._stored or self._file_bytes >= SCRATCH_BYTES:
            self._file, self._file_bytes = Backing(), 0
        stored = [self._file.put(piece) for piece in pieces]
        self._stored[offset] = self._file, stored
        self._file_bytes += sum(piece.length for piece in stored)

    def forget(self) -> None:
        """Drop the payloads of finished samples. The last sample of a window may continue in the next."""
        batch = self.batch
        if (self._kept or self._stored) and batch.keys:
            end = batch.end(len(batch.keys) - 1)
            self._kept = {offset: data for offset, data in self._kept.items() if offset >= end}
            self._stored = {offset: place for offset, place in self._stored.items() if offset >= end}
            self._kept_bytes = sum(map(len, self._kept.values()))

    def request(self, fields: frozenset[bytes], rows: Iterable[int]) -> None:
        """Request the payloads of these fields and rows of the current batch, with their headers. Rows must rise. A
        local shard in memory needs no requests; but its payloads are then read together, too."""
        source, starts = self.source, self.batch.starts
        self._requested_fields, self._requested_rows = fields, list(rows)
        self._first_row = self._next_row = -1
        self._together = 1
        if source.fd is None or is_cold(source.fd, starts[len(starts) // 3]):
            ranges = list(self._ranges(self._requested_rows))
            if len(ranges) > 1:
                source.expect(ranges, gap_bytes=self._gap_bytes)

    def _ranges(self, rows: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Yield the byte ranges of the requested payloads of these rows, each with the header before it."""
        batch, requested = self.batch, self._requested_fields
        heads = whole_names(requested) - requested
        for row in rows:
            for member in self._members(row):
                if batch.fields[member] in heads:
                    expected = self.expected(member)
                    yield expected.first, min(expected.end, expected.offset + HEAD_BYTES)
                elif batch.fields[member] in requested and batch.sizes[member] <= MAX_LOOKED_INTO_BYTES:
                    expected = self.expected(member)
                    yield expected.first, expected.end

    def expected(self, member: int) -> ExpectedMember:
        """Return a member of the batch, given by its number, as an Expected."""
        batch = self.batch
        name = batch.keys[self._row(member)] + b"." + batch.fields[member]
        return ExpectedMember(batch.starts[member], batch.offsets[member], name, batch.sizes[member])

    def __call__(self, row: int, field: bytes) -> bytes:
        """Return the payload of a field of a sample. Raises DataError if it is too large to decode, or truncated."""
        batch = self.batch
        member = batch.fields.index(field, batch.firsts[row], batch.firsts[row + 1])
        if batch.sizes[member] > MAX_LOOKED_INTO_BYTES:
            size, limit = batch.sizes[member], MAX_LOOKED_INTO_BYTES
            message = f"payload of {size} bytes is too large to decode (limit: {limit} bytes)"
            raise SampleAt(batch, row, self.source.name).error(message, "undecodable", field)
        return self.payload(member)

    def parts(self, row: int, field: bytes) -> Payload:
        """Return the payload of a field. If it is large, only the parts in use are read, and it may have any size.
        Raises DataError if it is truncated."""
        batch = self.batch
        member = batch.fields.index(field, batch.firsts[row], batch.firsts[row + 1])
        expected, source = self.expected(member), self.source
        if expected.size <= HEAD_BYTES or not source.seekable or expected.offset in self._kept:
            return self(row, field)

        def read(offset: int, length: int) -> bytes:
            data = source.read_at(expected.offset + offset, length)
            if len(data) < length:
                raise expected.truncated(source, offset + len(data))
            return data

        head = expected.payload(source, HEAD_BYTES) if self.by_index else read(0, HEAD_BYTES)
        return PartialPayload(head, expected.size, read, partial(self, row, field))

    def payload(self, member: int) -> bytes:
        """Return the payload of a member of the batch. Raises DataError if it is truncated."""
        offset, size, window = self.batch.offsets[member], self.batch.sizes[member], self._window
        if window is not None and 0 <= offset - window.base <= len(window.buffer) - size:
            return window.buffer[offset - window.base : offset - window.base + size]
        if self._requested_rows and offset not in self._kept:
            self._read_together(self._row(member))
        if offset in self._kept:
            return self._kept[offset]
        if offset in self._stored:
            return b"".join(self.pieces(member))
        if self.by_index:
            return self.expected(member).payload(self._held)
        data = self.source.read_at(offset, size)
        if len(data) < size:
            raise self.expected(member).truncated(self.source, len(data))
        return data

    def pieces(self, member: int) -> Iterator[bytes]:
        """Yield the payload of a member of the batch, of any size, in pieces. Raises DataError if it is truncated."""
        offset, size = self.batch.offsets[member], self.batch.sizes[member]
        if offset in self._stored:
            yield from chain.from_iterable(piece.read() for piece in self._stored[offset][1])
        elif size <= PIECE_BYTES or offset in self._kept:
            yield self.payload(member)
        else:
            if self.by_index:
                self.expected(member).check(self.source)
            yield from pieces_of(self.source, offset, size)

    def _read_together(self, row: int) -> None:
        """Read the requested payloads of some requested samples, from ``row`` on, by one call of the core. If the
        caller reads on, the next call reads twice as many samples. Payloads with unusual headers are left out."""
        batch, source, requested = self.batch, self.source, self._requested_rows
        if self._first_row <= row < self._next_row:
            return
        count = self._together = min(2 * self._together, SAMPLES_TOGETHER) if row == self._next_row else 1
        # The last sample that begins within the bytes that are read together is left out, because it may end later.
        last_member = bisect_right(batch.starts, batch.start(row) + BYTES_TOGETHER) - 1
        end = max(row + 1, min(row + count, self._row(last_member)))
        self._first_row, self._next_row = row, end
        last = bisect_left(requested, row) + end - row - 1
        if end == row + 1 or last >= len(requested) or requested[last] != end - 1:
            return
        where: Any = (source.fd, source.size, [], [])
        if source.fd is None or core.CORE is None:
            from wdscli.storage.scatter import joined

            held = self._held = RangesInMemory(source, joined(self._ranges(range(row, end)), GAP_BYTES))
            where = (-1, source.size, held.buffers, held.starts)
        if core.CORE is None:
            return
        part = batch.part(row, end)
        fields = list(dict.fromkeys(part.fields))
        names = [to_text(field) if field in self._requested_fields else None for field in fields]
        payloads: list[Any] = [None] * len(part.fields)
        core.CORE.read(_core_table(source.name, part, fields), names, None, *where, None, payloads)
        self._kept = {offset: data for offset, data in zip(part.offsets, payloads) if data is not None}

    def _row(self, member: int) -> int:
        return bisect_right(self.batch.firsts, member) - 1

    def _members(self, row: int) -> range:
        return range(self.batch.firsts[row], self.batch.firsts[row + 1])


def _core_table(name: str, batch: SampleBatch, fields: list[bytes]) -> tuple[Any, ...]:
    """Return the columns of a batch of the shard ``name``, for the compiled core."""
    codes = {field: code for code, field in enumerate(fields)}
    return (
        name,
        b"".join(batch.keys),
        fields,
        array("q", accumulate(map(len, batch.keys))),
        array("q", map(batch.starts.__getitem__, batch.firsts[:-1])),
        array("q", batch.firsts[1:]),
        array("q", batch.offsets),
        array("q", batch.sizes),
        array("I", map(codes.__getitem__, batch.fields)),
    )


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
    ignored: Counter[str] | None = None
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
