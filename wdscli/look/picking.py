"""The selected samples of a set in input order, with a way to their payloads: what ``cat`` works on.

What it is: :func:`pages`, which walks the inputs one after the other and gives the selected rows of each batch. How:
of a seekable input only headers are read, payloads on demand; of a stream the payloads of the current samples are held,
large ones in a scratch file, because it cannot go back. Memory is bounded by a window, whatever is in the set.

It must not know what becomes of the samples.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import IO, Any, NamedTuple

from wdscli.errors import DataError, OutputError, UsageError, WdsError
from wdscli.model import to_text
from wdscli.plan.absent import check_empty, check_named
from wdscli.plan.ranges import PIECE, pieces_of
from wdscli.plan.scratch import Input, Scratch, spool
from wdscli.plan.unsafe import check_names, keep_safe
from wdscli.progress import QUIET, Progress
from wdscli.samples import Grouper, Ignored, SampleBatch
from wdscli.samples.salvage import salvaged_batches
from wdscli.selection import Selection, SelectionState, iter_selected
from wdscli.selection.choice import OnError
from wdscli.selection.named import Absence
from wdscli.selection.reading import MAX_LOOKED_INTO
from wdscli.shards.inputs import known_samples, missing_samples, say_missing, whole_set
from wdscli.storage import Source, open_source
from wdscli.storage.local import write_all
from wdscli.tar import CANONICAL, Form, Window, padded, scan
from wdscli.tar.columns import cut

HELD_BYTES = 1 << 22
"""Payloads of a stream that are held in memory; what is more waits in a file."""
SCRATCH_BYTES = 1 << 24
"""From here on a scratch file is not added to, so that it can go once its samples are done with."""


class Page(NamedTuple):
    """Some selected samples of one input: the rows of ``batch``. ``pieces(member)`` gives one member's payload (its row
    among the batch's members) piece by piece, :meth:`payload` as a whole, until the next page is asked for."""

    source: Source
    batch: SampleBatch
    rows: Sequence[int]
    pieces: Callable[[int], Iterator[bytes]]

    def payload(self, member: int) -> bytes:
        """One member's payload."""
        found = list(self.pieces(member))
        return found[0] if len(found) == 1 else b"".join(found)


class Picker:
    """Walks inputs. After :meth:`pages` is exhausted its counts are final.

    ``dropped`` counts samples left out, by reason; ``ignored`` members of no sample; ``troubles`` are the errors that
    ``on_error="skip"`` passed over. With ``writes_names`` an unsafe name is an error. With ``copies_streams`` an input
    that can be read only once is copied to a scratch folder first, so that every page's source is seekable. With
    ``counts_later`` the caller leaves samples out, and counts what is left against ``limit``: it calls :meth:`stop`
    when that is reached.
    """

    def __init__(
        self,
        inputs: Sequence[str],
        selection: Selection,
        *,
        on_error: OnError = "stop",
        form: Form = CANONICAL,
        writes_names: bool = True,
        trust_addresses: bool = False,
        copies_streams: bool = False,
        allow_empty: bool = False,
        counts_later: bool = False,
        progress: Progress = QUIET,
    ) -> None:
        self.set = whole_set(inputs, on_error, trust_addresses=trust_addresses)
        if self.set.missing:
            progress.warn(say_missing(self.set.missing))
        if selection.reads_stdin and "-" in self.set.addresses:
            raise UsageError("standard input cannot hold both keys and a shard", hint="--keys-from FILE")
        self.limit = selection.limit if counts_later else None
        self.selection = selection._replace(limit=None) if counts_later else selection
        self.state: SelectionState = self.selection.new_state(on_error)
        self._asked = selection
        if self.limit == 0:
            self.stop()
        self.troubles: list[DataError] = []
        self.bytes_in = 0
        self._on_error = on_error
        self._writes_names = writes_names
        self._copies_streams = copies_streams
        self.allow_empty = allow_empty
        self._form = form
        self._progress = progress
        self._ignored = Ignored()
        self._damaged: dict[str, int] = missing_samples(self.set.missing)
        self._known = known_samples(self.set) if self.skips else {}

    @property
    def dropped(self) -> dict[str, int]:
        """Samples that were read and not selected, by reason."""
        total = Counter(self.state.dropped)
        total.update(self._damaged)
        return dict(sorted(total.items()))

    @property
    def skips(self) -> bool:
        """Whether samples that are no good are left out and counted."""
        return self._on_error == "skip"

    @property
    def ignored(self) -> dict[str, int]:
        """Members of no sample, by reason."""
        return dict(sorted(self._ignored.counts.items()))

    def stop(self) -> None:
        """Read no more: the limit is reached."""
        self.state.done = True

    def drop(self, reason: str, count: int = 1) -> None:
        """Count samples that the caller leaves out."""
        self._damaged[reason] = self._damaged.get(reason, 0) + count

    def pages(self) -> Iterator[Page]:
        """The selected samples of all inputs, in order. Raises InputError, DataError; at the end also for names that no
        sample has."""
        for address in self.set.addresses:
            if self.state.done:
                break
            with open_source(address) as source:
                yield from self._pages(source)
                source.confirm()
                self.bytes_in += source.size or 0
            self._progress.advance(1)
        for remark in self.selection.remarks(self.state):
            self._progress.warn(remark)
        self.check_names(self.selection.absences(self.state))

    def check_names(self, absences: Sequence[Absence]) -> None:
        """Raise DataError for names that no sample has."""
        check_named(absences, allow=self.allow_empty, progress=self._progress)

    def check_empty(self, samples: int) -> None:
        """Raise DataError when none of the samples that were read is left."""
        check_empty(samples, self._asked, self._on_error, self.dropped, allow=self.allow_empty)

    def _pages(self, source: Source) -> Iterator[Page]:
        if source.seekable:
            yield from self._seekable(source)
        elif self._copies_streams:
            with Scratch() as scratch:
                copy = Input(source.name, scratch.place(0))
                spool(source, copy.copy, cut=self._trouble if self.skips else None)
                with copy.open() as again:
                    yield from self._seekable(again)
        else:
            yield from self._stream(source)

    def _seekable(self, source: Source) -> Iterator[Page]:
        batches = self._sound(source) if self.skips else None
        found = iter_selected(
            source, self.selection, self.state, form=self._form, ignored=self._ignored, batches=batches
        )
        for batch, rows in found:
            self._check(batch, source)
            yield Page(source, batch, rows, partial(_pieces, source, batch))

    def _check(self, batch: SampleBatch, source: Source) -> None:
        if self._writes_names:
            check_names(batch, source.name)

    def _sound(self, source: Source, see: Callable[[Window], None] | None = None) -> Iterator[SampleBatch]:
        """The samples of which it can be told that they are whole, the others counted."""
        batches = salvaged_batches(
            source,
            self._trouble,
            self._damaged,
            form=self._form,
            ignored=self._ignored,
            see=see,
            known=self._known.get(source.name, -1),
        )
        return keep_safe(batches, self._damaged) if self._writes_names else batches

    def _trouble(self, error: DataError) -> None:
        self.troubles.append(error)
        self._progress.warn(str(error))

    def _stream(self, source: Source) -> Iterator[Page]:
        with _Held(source) as held:
            for batch in self._batches(source, held):
                self._check(batch, source)
                held.batch = batch
                rows = self.selection.apply(batch, source.name, self.state, held.of)
                if rows:
                    yield Page(source, batch, rows, held.pieces)
                if self.state.done:
                    return
                held.forget(batch)

    def _batches(self, source: Source, held: _Held) -> Iterator[SampleBatch]:
        """The batches of a stream, the payloads of their members held."""
        if self.skips:
            yield from self._sound(source, held.see)
            return
        grouper = Grouper(source.name)
        grouper.ignored = self._ignored
        for window in scan(source, form=self._form, payloads=True):
            held.see(window)
            batch = grouper.add(window)
            if batch.keys:
                yield batch
        last = grouper.finish()
        if last.keys:
            yield last


def _pieces(source: Source, batch: SampleBatch, member: int) -> Iterator[bytes]:
    """A payload of a seekable input, read when it is asked for."""
    return pieces_of(source, batch.offsets[member], batch.sizes[member])


class _Held:
    """Payloads of a stream's current samples, by their place in the archive: as many as fit in memory, the others in a
    scratch file."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._payloads: dict[int, bytes] = {}
        self._stored: dict[int, tuple[IO[bytes], int, int]] = {}
        self._held_bytes = 0
        self._file: IO[bytes] | None = None
        self._full: list[IO[bytes]] = []
        self._end = 0
        self.batch: SampleBatch | None = None

    def see(self, window: Window) -> None:
        """Take the payloads of a window's members. Raises DataError when the stream ends first."""
        columns = window.columns
        for row, (offset, size) in enumerate(zip(columns.offsets, columns.sizes, strict=True)):
            if self._held_bytes + size <= HELD_BYTES:
                self._payloads[offset] = window.payload(row)
                self._held_bytes += size
            elif offset - window.base + size <= len(window.buffer):
                self._store(offset, (window.payload(row),))
            else:
                self._store(offset, self._rest(window, row))

    def _rest(self, window: Window, row: int) -> Iterator[bytes]:
        """A payload that goes on behind the window, piece by piece."""
        offset, size = window.columns.offsets[row], window.columns.sizes[row]
        data = window.buffer[offset - window.base :]
        done, end = 0, padded(size)
        while data:
            yield data[: size - done] if done < size else b""
            done += len(data)
            data = self._source.read_at(offset + done, min(PIECE, end - done)) if done < end else b""
        if done < end:
            raise cut(self._source.name, window.columns, row, done)

    def _store(self, offset: int, pieces: Iterable[bytes]) -> None:
        if self._file is None:
            from tempfile import TemporaryFile

            self._file = TemporaryFile(prefix="wds-", buffering=0)  # noqa: SIM115  (closed in __exit__)
        begin = self._end
        try:
            for piece in pieces:
                write_all(self._file.fileno(), piece)
                self._end += len(piece)
        except WdsError:
            raise
        except OSError as error:
            raise OutputError(
                f"cannot write a scratch file: {error.strerror}", hint="set TMPDIR to a folder with room"
            ) from error
        self._stored[offset] = self._file, begin, self._end - begin

    def pieces(self, member: int) -> Iterator[bytes]:
        """The payload of one member of the current batch, piece by piece."""
        assert self.batch is not None
        offset = self.batch.offsets[member]
        if offset not in self._stored:
            yield self._payloads[offset]
            return
        file, at, size = self._stored[offset]
        end = at + size
        while at < end:
            data = os.pread(file.fileno(), min(PIECE, end - at), at)
            if not data:
                raise OutputError("a scratch file lost its end", hint="set TMPDIR to a folder with room")
            yield data
            at += len(data)

    def of(self, row: int, field: bytes) -> bytes:
        """For a selection that looks into payloads."""
        assert self.batch is not None
        batch = self.batch
        at = batch.fields.index(field, batch.firsts[row], batch.firsts[row + 1])
        if batch.sizes[at] > MAX_LOOKED_INTO:
            raise DataError(
                f"a payload of more than {MAX_LOOKED_INTO} bytes is not decoded, here {batch.sizes[at]}",
                code="undecodable",
                shard=self._source.name,
                offset=batch.starts[at],
                member=to_text(batch.keys[row] + b"." + field),
            )
        return b"".join(self.pieces(at))

    def forget(self, batch: SampleBatch) -> None:
        """Let go of what belongs to a batch that is done with, and of what lay before it."""
        if batch.keys:
            end = batch.end(len(batch.keys) - 1)
            self._payloads = {offset: data for offset, data in self._payloads.items() if offset >= end}
            self._stored = {offset: place for offset, place in self._stored.items() if offset >= end}
            self._held_bytes = sum(map(len, self._payloads.values()))
        if self._file is not None:
            self._clear_files(self._file)

    def _clear_files(self, current: IO[bytes]) -> None:
        """Let go of scratch files that hold nothing any longer, and begin another where one grows: the last sample of a
        window goes on in the next, so that there is always something to keep."""
        used = {id(file) for file, _, _ in self._stored.values()}
        for file in [file for file in self._full if id(file) not in used]:
            self._full.remove(file)
            file.close()
        if id(current) not in used:
            os.ftruncate(current.fileno(), 0)
            os.lseek(current.fileno(), 0, os.SEEK_SET)
            self._end = 0
        elif self._end >= SCRATCH_BYTES:
            self._full.append(current)
            self._file, self._end = None, 0

    def __enter__(self) -> _Held:
        return self

    def __exit__(self, *_: Any) -> None:
        for file in [*self._full, self._file]:
            if file is not None:
                file.close()
