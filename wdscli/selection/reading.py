"""The selected samples of one archive, and the payloads that a selection asks for.

How: headers alone where the selection is content with them. Where it looks into payloads, they are cut from
the buffer that holds them, or read from their place; a stream cannot go back, so there the payloads of the
fields in question (and of no others) are put by until their sample is whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from wdscli.errors import DataError
from wdscli.model import to_text
from wdscli.samples import Ignored, SampleBatch, iter_batches, split_name
from wdscli.samples.expected import check_member, payload_at
from wdscli.selection.choice import Selection, SelectionState
from wdscli.tar import CANONICAL, ByteSource, Form, Window, padded

MAX_LOOKED_INTO = 1 << 26
"""A payload above this many bytes is not decoded: memory is bounded by options, never by what a shard
holds."""
PIECE = 1 << 20


def iter_selected(
    source: ByteSource,
    selection: Selection,
    state: SelectionState,
    *,
    form: Form = CANONICAL,
    lenient: bool = False,
    ignored: Ignored | None = None,
    batches: Iterable[SampleBatch] | None = None,
    payloads: Payloads | None = None,
) -> Iterator[tuple[SampleBatch, list[int]]]:
    """The batches of one archive that have selected samples, each with the rows of these; the rest as
    ``iter_batches``.

    ``batches`` gives the samples when they are known already, from an index; ``source`` must then be
    seekable. ``payloads`` is given by a caller that wants payloads of each batch too. Stops reading once no further
    sample can be selected.
    """
    if state.done:
        return
    payloads = payloads or Payloads(source, selection.payload_fields)
    if batches is None:
        see = payloads.see if payloads.fields else None
        batches = iter_batches(source, form=form, lenient=lenient, ignored=ignored, see=see)
    for batch in batches:
        payloads.batch = batch
        rows = selection.apply(batch, source.name, state, payloads.of)
        if rows:
            yield batch, rows
        if state.done:
            return
        payloads.forget()


class Payloads:
    """The payloads of the current batch, of some ``fields``. With ``by_index`` the batches come from an index: the
    header in front of each payload is compared with it, and another one is a DataError ``stale-index``."""

    def __init__(self, source: ByteSource, fields: frozenset[bytes], *, by_index: bool = False) -> None:
        self.by_index = by_index
        self.batch: SampleBatch | None = None
        self._source = source
        self.fields = fields
        self._suffixes = tuple(b"." + field for field in fields)
        self._window: Window | None = None
        self._kept: dict[int, bytes] = {}

    def see(self, window: Window) -> None:
        """Take a new window; of a stream, put by what may be asked for."""
        self._window = window
        if self._source.seekable:
            return
        columns = window.columns
        for row, name in enumerate(columns.names):
            if name.endswith(self._suffixes) and columns.sizes[row] <= MAX_LOOKED_INTO:
                parts = split_name(name)
                if parts is not None and parts[1] in self.fields:
                    self._kept[columns.offsets[row]] = window.payload(row)

    def forget(self) -> None:
        """Let go of what belongs to samples that are done with; the last sample of a window may still go
        on."""
        batch = self.batch
        if self._kept and batch is not None and batch.keys:
            end = batch.end(len(batch.keys) - 1)
            self._kept = {offset: data for offset, data in self._kept.items() if offset >= end}

    def __call__(self, row: int, field: bytes) -> bytes:
        """As :meth:`of`."""
        return self.of(row, field)

    def pieces(self, row: int, field: bytes) -> Iterator[bytes]:
        """The payload of one member of the current batch, of any size, in pieces; the source must be seekable. Raises
        DataError when it is cut short."""
        at = self._at(row, field)
        assert self.batch is not None
        offset = self.batch.offsets[at]
        end = offset + self.batch.sizes[at]
        if self.by_index:
            check_member(self._source, self._head(row, at), offset, self._name(row, at), end - offset)
        while offset < end:
            data = self._source.read_at(offset, min(PIECE, end - offset))
            if not data:
                raise self._error(
                    row, at, f"archive ends {end - offset} bytes before the payload", "truncated"
                )
            offset += len(data)
            yield data

    def _at(self, row: int, field: bytes) -> int:
        batch = self.batch
        assert batch is not None
        return batch.fields.index(field, batch.firsts[row], batch.firsts[row + 1])

    def of(self, row: int, field: bytes) -> bytes:
        """The payload of one member of the current batch. Raises DataError when it is too large or cut
        short."""
        batch, window = self.batch, self._window
        assert batch is not None
        at = self._at(row, field)
        offset, size = batch.offsets[at], batch.sizes[at]
        if size > MAX_LOOKED_INTO:
            message = f"a payload of more than {MAX_LOOKED_INTO} bytes is not decoded, here {size}"
            raise self._error(row, at, message, "undecodable")
        if offset in self._kept:
            return self._kept[offset]
        if window is not None and 0 <= offset - window.base <= len(window.buffer) - size:
            return window.buffer[offset - window.base : offset - window.base + size]
        if self.by_index:
            data = payload_at(self._source, self._head(row, at), offset, self._name(row, at), size)
        else:
            data = self._source.read_at(offset, size)
        if len(data) < size:
            raise self._error(row, at, f"archive ends after {len(data)} of {size} payload bytes", "truncated")
        return data

    def _head(self, row: int, at: int) -> int:
        """Where what leads to a member begins: behind the member before it, or where the sample does."""
        batch = self.batch
        assert batch is not None
        if at == batch.firsts[row]:
            return batch.starts[at]
        return batch.offsets[at - 1] + padded(batch.sizes[at - 1])

    def _name(self, row: int, at: int) -> bytes:
        batch = self.batch
        assert batch is not None
        return batch.keys[row] + b"." + batch.fields[at]

    def _error(self, row: int, at: int, message: str, code: str) -> DataError:
        batch = self.batch
        assert batch is not None
        name = to_text(self._name(row, at))
        return DataError(message, code=code, shard=self._source.name, offset=batch.starts[at], member=name)
