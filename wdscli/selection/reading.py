"""This module reads payloads of the samples that a :class:`~wdscli.selection.walk.Walk` selects.

A payload is taken from the buffer, or read from its place. A stream cannot seek back, so the payloads of the needed
fields are kept until their sample is complete. This module does not know what the samples are for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from wdscli.errors import DataError
from wdscli.samples import SampleBatch, new_batch, split_name
from wdscli.samples.grouping import SampleAt
from wdscli.samples.reading import Expected
from wdscli.storage import Source
from wdscli.storage.ends import PIECE_BYTES
from wdscli.storage.local import is_cold
from wdscli.tar import Window

MAX_LOOKED_INTO_BYTES = 1 << 26
"""A larger payload is not decoded, so that a shard cannot exhaust memory."""


class Payloads:
    """The payloads of some ``fields`` of the current batch. With ``by_index``, the batch comes from an index, and the
    header before each payload is compared with it. A difference raises DataError ``stale-index``."""

    def __init__(self, source: Source, fields: frozenset[bytes], *, by_index: bool = False) -> None:
        self.by_index = by_index
        self.batch = new_batch()
        self.source = source
        self.fields = fields
        self.sees = bool(fields)
        """Whether a scan must call :meth:`see`."""
        self._suffixes = tuple(b"." + field for field in fields)
        self._window: Window | None = None
        self._kept: dict[int, bytes] = {}

    def see(self, window: Window) -> None:
        """Take a new window. If the source is a stream, keep the payloads that may be read."""
        self._window = window
        if self.source.seekable:
            return
        columns = window.columns
        for row, name in enumerate(columns.names):
            if name.endswith(self._suffixes) and columns.sizes[row] <= MAX_LOOKED_INTO_BYTES:
                parts = split_name(name)
                if parts is not None and parts[1] in self.fields:
                    self._kept[columns.offsets[row]] = window.payload(row)

    def forget(self) -> None:
        """Drop the payloads of finished samples. The last sample of a window may continue in the next."""
        batch = self.batch
        if self._kept and batch.keys:
            end = batch.end(len(batch.keys) - 1)
            self._kept = {offset: data for offset, data in self._kept.items() if offset >= end}

    def __call__(self, row: int, field: bytes) -> bytes:
        """Do the same as :meth:`of`."""
        return self.of(row, field)

    def pieces(self, row: int, field: bytes) -> Iterator[bytes]:
        """Yield the payload of one member of the current batch, of any size, in pieces. The source must be seekable.
        Raises DataError if the payload is truncated."""
        number = self._at(row, field)
        member = expected_member(self.batch, row, number)
        offset, end = member.offset, member.offset + member.size
        if self.by_index:
            member.check(self.source)
        while offset < end:
            data = self.source.read_at(offset, min(PIECE_BYTES, end - offset))
            if not data:
                message = f"archive ends {end - offset} bytes before the payload"
                raise self._error(row, field, message, "truncated")
            offset += len(data)
            yield data

    def ranges(self, rows: Iterable[int], fields: frozenset[bytes]) -> list[tuple[int, int]]:
        """Return the byte ranges of the payloads of these rows and fields, each with the header before it."""
        batch, ranges = self.batch, []
        for row in rows:
            for number in range(batch.firsts[row], batch.firsts[row + 1]):
                if batch.fields[number] in fields and batch.sizes[number] <= MAX_LOOKED_INTO_BYTES:
                    member = expected_member(batch, row, number)
                    ranges.append((member.first, member.offset + member.size))
        return ranges

    def request(self, fields: frozenset[bytes], rows: Iterable[int]) -> None:
        """Request the payloads of these fields and rows of the current batch together. A local shard in memory needs no
        requests."""
        source, starts = self.source, self.batch.starts
        if source.fd is None or is_cold(source.fd, starts[len(starts) // 3]):
            ranges = self.ranges(rows, fields)
            if len(ranges) > 1:
                source.expect(ranges)

    def _at(self, row: int, field: bytes) -> int:
        return self.batch.fields.index(field, self.batch.firsts[row], self.batch.firsts[row + 1])

    def of(self, row: int, field: bytes) -> bytes:
        """Return the payload of one member of the current batch. Raises DataError if it is too large or truncated."""
        number, window = self._at(row, field), self._window
        offset, size = self.batch.offsets[number], self.batch.sizes[number]
        if size > MAX_LOOKED_INTO_BYTES:
            message = f"payload of {size} bytes is too large to decode (limit: {MAX_LOOKED_INTO_BYTES} bytes)"
            raise self._error(row, field, message, "undecodable")
        if offset in self._kept:
            return self._kept[offset]
        if window is not None and 0 <= offset - window.base <= len(window.buffer) - size:
            return window.buffer[offset - window.base : offset - window.base + size]
        if self.by_index:
            data = expected_member(self.batch, row, number).payload(self.source)
        else:
            data = self.source.read_at(offset, size)
        if len(data) < size:
            message = f"archive ends after {len(data)} of {size} payload bytes"
            raise self._error(row, field, message, "truncated")
        return data

    def _error(self, row: int, field: bytes, message: str, code: str) -> DataError:
        return SampleAt(self.batch, row, self.source.name).error(message, code, field)


def expected_member(batch: SampleBatch, row: int, number: int) -> Expected:
    """Return a member of a batch as an Expected."""
    name = batch.keys[row] + b"." + batch.fields[number]
    return Expected(batch.starts[number], batch.offsets[number], name, batch.sizes[number])
