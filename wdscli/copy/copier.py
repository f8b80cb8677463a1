"""The ``gather`` strategy: one output shard out of byte ranges of seekable inputs.

What it is: a task, :func:`gather`, that fills one shard with the runs a plan lists. How: runs are read into one buffer
of a few MiB, adjacent ones by one call; the headers in the buffer are walked again, many at once where samples are
small (:mod:`wdscli.copy.walk`), which proves that every run is what the plan took it for; then the buffer goes out as
it stands, or member by member with new headers where a sample is not canonical yet, loses fields or changes names.
Checksum and write find the bytes in the processor's cache. A sample larger than the buffer is copied in pieces.

It must not know orders, cuts or selections beyond the names that members get.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from wdscli.copy.padding import clear_padding
from wdscli.copy.spilled import Reading, Spilled
from wdscli.copy.walk import WORTH, Walker
from wdscli.errors import DataError, InputError
from wdscli.executors import tick_of_task
from wdscli.model import ShardInfo
from wdscli.plan.headers import are_those, hashes_of, headers_of, headers_of_batch
from wdscli.plan.inputs import Inputs, edges_of, is_cold, totals_of
from wdscli.plan.ranges import grouped_as_planned, members_of_run, pieces_of
from wdscli.plan.rekey import Rekey, shard_stem
from wdscli.plan.scratch import Input
from wdscli.plan.survey import RENAMED, hash_key
from wdscli.plan.table import Ordered
from wdscli.samples import SampleBatch, group_columns
from wdscli.selection import Selection
from wdscli.shards.output import ShardSettings
from wdscli.shards.shardfile import ShardFile
from wdscli.tar import GLOBAL, Scanner

if TYPE_CHECKING:
    from wdscli.copy.joined import Joiner
    from wdscli.plan.join.parts import Beside
    from wdscli.plan.table import I64
    from wdscli.shards.index import Packed

BUFFER = 1 << 22
"""Bytes that are read, looked at and written together."""
AHEAD = 1 << 24
"""Bytes that are asked for before they are read, where they lie on a device."""
CHUNK = 1 << 14
"""Samples that are lists in memory at a time."""


class GatherTask(NamedTuple):
    """One output shard: its address and settings, the inputs it needs by their numbers, and the samples in order.
    ``spilled`` says where they lie meanwhile, when a first pass has brought them nearer."""

    address: str
    settings: ShardSettings
    inputs: dict[int, Input]
    samples: Ordered
    selection: Selection
    rekey: Rekey | None = None
    spilled: Spilled | None = None
    beside: Beside | None = None
    """The further parts of the samples, where these are joined."""


def gather(task: GatherTask) -> ShardInfo:
    """Make one shard. Raises DataError when an input is no longer what was planned; leaves nothing on any error."""
    open_spilled = None if task.spilled is None else task.spilled.open
    with Inputs(task.inputs, open_spilled) as inputs, task.settings.open(task.address) as shard:
        _work_of(task, inputs, shard).run()
        inputs.confirm()
        return shard.commit()


def _work_of(task: GatherTask, inputs: Inputs, shard: ShardFile) -> _Gatherer | Joiner:
    if task.beside is None:
        return _Gatherer(task, inputs, shard)
    from wdscli.copy.joined import Joiner

    return Joiner(task, task.beside, inputs, shard)


class _Gatherer:
    """The state of one task: a buffer, what lies in it, and the shard it goes to.

    Samples are taken some thousand at a time, so that lists of them cost little; ``rows`` are those in the buffer,
    counted from the first of these, and ``begins`` their places there.
    """

    def __init__(self, task: GatherTask, inputs: Inputs, shard: ShardFile) -> None:
        self.task = task
        self.inputs = inputs
        self.shard = shard
        self.scanner = Scanner(task.address, form=task.settings.form)
        self.walker = Walker(task.settings.form, hash_key)
        self.buffer = memoryview(bytearray(BUFFER))
        self.rows = range(0)
        self.begins: list[int] = []
        self.is_plain = not task.selection.changes_members
        # Where the bytes are read: in the inputs, which messages speak of in any case, or in what was spilled.
        self.reading = Reading(task.spilled, task.samples)
        self.bucket = self.reading.next_bucket
        self.tick = tick_of_task()

    def run(self) -> None:
        """All samples, in order."""
        total = self.task.samples.total
        first = 0
        while first < total:
            if first == self.bucket:
                self.bucket = self.reading.enter(first, self.inputs.__getitem__)
            end = min(first + CHUNK, total, self.bucket if self.bucket > first else total)
            self._take(first, end)
            first = end
        expected = self.task.samples.out_bytes
        if self.shard.position != expected:
            raise DataError(
                f"made {self.shard.position} bytes where {expected} were planned",
                code="changed",
                shard=self.task.address,
                hint="an input was changed while it was read",
            )

    def _take(self, first: int, end: int) -> None:
        """Samples ``first`` to ``end``, a buffer at a time."""
        samples = self.samples = self.task.samples.part(first, end)
        self.marks: list[int] = samples.marks.tolist()
        files, begins = self.reading.places(first, end)
        self.totals: I64 = totals_of(samples)
        self.ends: list[int] = self.totals.tolist()
        self.files, self.begin_at = files.tolist(), begins.tolist()
        # The rows at which another range begins.
        self.edges = edges_of(files, begins, samples.lengths)
        self.asked = 0
        at = 0
        while at < end - first:
            stop = self._fill(at)
            if stop == at:
                self._copy_alone(at)
                stop = at + 1
            at = stop

    def _fill(self, first: int) -> int:
        """Samples from row ``first`` on through the buffer, as many as fit; returns the row behind them."""
        ends = self.ends
        begin = ends[first]
        end = bisect_right(ends, begin + BUFFER, first) - 1
        if any(self.marks[first:end]):
            end = next((row for row in range(first, end) if self.marks[row] & GLOBAL), end)
        if end == first:
            return first
        self.rows = range(first, end)
        self._ask_ahead(first)
        self._read_rows(first, end)
        self._flush(self.buffer[: ends[end] - begin])
        return end

    def _ask_ahead(self, first: int) -> None:
        """Where a file is not in memory, have the kernel fetch what is wanted next, so that its device always has
        several requests to choose from."""
        low = max(first, self.asked)
        is_near = low < self.samples.total and self.ends[low] - self.ends[first] <= AHEAD // 2
        if self.reading.held is not None or not is_near:
            return
        descriptor = self.inputs[self.files[low]].fd
        if descriptor is None or not is_cold(descriptor, self.begin_at[low]):
            return
        self.asked = bisect_right(self.ends, self.ends[first] + AHEAD, low + 1) - 1
        for high in self._ranges(low, self.asked):
            descriptor = self.inputs[self.files[low]].fd
            if descriptor is not None:
                length = self.ends[high] - self.ends[low]
                os.posix_fadvise(descriptor, self.begin_at[low], length, os.POSIX_FADV_WILLNEED)
            low = high

    def _ranges(self, first: int, end: int) -> list[int]:
        """Where the ranges end that hold the rows from ``first`` up to ``end``."""
        return [*self.edges[bisect_right(self.edges, first) : bisect_left(self.edges, end)], end]

    def _read_rows(self, first: int, end: int) -> None:
        """The rows from ``first`` up to ``end``, into the buffer. A shuffle reads each sample on its own, so what it
        costs to ask for one shows."""
        if self.reading.held is not None and self._copy_held(self.reading.held, first, end):
            return
        buffer, ends, files, begin_at = self.buffer, self.ends, self.files, self.begin_at
        preadv, descriptors = os.preadv, self.inputs.descriptors
        low, at, begin = first, 0, ends[first]
        for high in self._ranges(first, end):
            stop = ends[high] - begin
            try:
                done = preadv(descriptors[files[low]], (buffer[at:stop],), begin_at[low])
            except (KeyError, OSError):
                done = -1
            if done != stop - at:
                self._read(low, high, at, stop)
            low, at = high, stop

    def _copy_held(self, held: memoryview, first: int, end: int) -> bool:
        """The same from memory; False when it is not all there."""
        base, ends, begin_at = self.reading.held_from, self.ends, self.begin_at
        low, parts = first, []
        for high in self._ranges(first, end):
            at = begin_at[low] - base
            parts.append(held[at : at + ends[high] - ends[low]])
            low = high
        data = b"".join(parts)
        if len(data) != ends[end] - ends[first]:
            return False
        self.buffer[: len(data)] = data
        return True

    def _read(self, first: int, end: int, at: int, stop: int) -> None:
        """The range that holds the rows from ``first`` up to ``end``, into the buffer from ``at`` up to ``stop``."""
        source = self.inputs[self.files[first]]
        view = self.buffer[at:stop]
        start = self.begin_at[first]
        if source.fd is not None:
            try:
                done = os.preadv(source.fd, (view,), start)
                while 0 < done < len(view):
                    more = os.preadv(source.fd, (view[done:],), start + done)
                    done = done + more if more else 0
            except OSError as error:
                raise InputError(f"cannot read {source.name}: {error.strerror}") from error
        else:
            data = source.read_at(start, len(view))
            done = len(data)
            if done == len(view):
                view[:] = data
        if done != len(view):
            raise self._changed(end - 1)

    def _flush(self, view: memoryview) -> None:
        """Check what lies in the buffer and write it."""
        before = self.shard.position
        is_plain = self.is_plain and not any(self.marks[self.rows.start : self.rows.stop])
        if not (is_plain and len(self.rows) >= WORTH and self._flush_packed(view)):
            self._flush_exactly(view, is_plain)
        self.shard.flush()
        self.tick(self.shard.position - before)

    def _flush_packed(self, view: memoryview) -> bool:
        """Many plain samples at once; False when one is not what it should be, as far as a quick look tells."""
        rows = slice(self.rows.start, self.rows.stop)
        begins = self.totals[rows] - self.totals[rows.start]
        packed = self.walker.walk(view, begins, self.samples.keys[rows])
        if packed is None or not self._are_as_planned(packed):
            return False
        if self.walker.has_dirty_padding(view, packed):
            clear_padding(view, 0, packed.offsets.tolist(), packed.sizes.tolist())
        self.shard.write_packed(view, packed)
        return True

    def _are_as_planned(self, packed: Packed) -> bool:
        """Whether fields and sizes are those of the plan."""
        found = headers_of(hashes_of(packed.fields)[packed.codes], packed.sizes.astype("u8"), packed.counts)
        return bool(are_those(found, self.samples.headers[self.rows.start : self.rows.stop]).all())

    def _flush_exactly(self, view: memoryview, is_plain: bool) -> None:
        """Whatever lies in the buffer, sample by sample."""
        base = self.shard.position
        first = self.ends[self.rows.start]
        self.begins = [end - first for end in self.ends[self.rows.start : self.rows.stop]]
        batch = self._checked(view, base)
        if is_plain and not any(batch.flags):
            clear_padding(view, base, batch.offsets, batch.sizes)
            self.shard.write_run(view, batch)
        else:
            self._rewrite(view, base, batch)

    def _checked(self, view: memoryview, base: int) -> SampleBatch:
        """The samples in the buffer, proven to be those of the plan."""
        scanner = self.scanner
        scanner.position = base
        try:
            scanner.feed(view, base)
        except DataError:
            raise self._first_changed(view) from None
        columns = scanner.take()
        if scanner.position != base + len(view) or not scanner.is_at_member:
            raise self._first_changed(view)
        batch = group_columns(columns, self.task.address)
        begins = [begin + base for begin in self.begins]
        if [batch.starts[first] for first in batch.firsts[:-1]] != begins:
            batch = grouped_as_planned(columns, begins, self.task.address)
        if len(batch.keys) != len(self.rows):
            raise self._first_changed(view)
        self._check_keys(batch)
        return batch

    def _check_keys(self, batch: SampleBatch) -> None:
        """Keys, fields and sizes must be those that were planned; a renamed sample is known by its new key later on."""
        planned: list[int] = self.samples.keys[self.rows.start : self.rows.stop].tolist()
        for row, key, wanted in zip(self.rows, map(hash_key, batch.keys), planned, strict=True):
            if key != wanted and not self.marks[row] & RENAMED:
                raise self._changed(row)
        same = are_those(headers_of_batch(batch), self.samples.headers[self.rows.start : self.rows.stop])
        if not same.all():
            raise self._changed(self.rows[int(same.argmin())])

    def _rewrite(self, view: memoryview, base: int, batch: SampleBatch) -> None:
        """The samples in the buffer member by member, in the canonical form and with their new names."""
        for at, row in enumerate(self.rows):
            source = self._address(row)
            first = batch.firsts[at]
            members = []
            for member, field in self.task.selection.plan_of(batch, at, source):
                begin = batch.offsets[first + member] - base
                members.append((field, view[begin : begin + batch.sizes[first + member]]))
            self.shard.write(self._key(row, batch.keys[at]), members)

    def _key(self, row: int, key: bytes) -> bytes:
        """The name under which a sample is written: its own or that of the format; the hash that was planned says which
        of the two."""
        if not self.marks[row] & RENAMED:
            return key
        if self.task.rekey is not None:
            source = self.task.inputs[int(self.samples.shards[row])]
            new = self.task.rekey.key(key, shard_stem(source.address), int(self.samples.places[row]))
            if hash_key(new) == self._planned_key(row):
                return new
        if hash_key(key) != self._planned_key(row):
            raise self._changed(row)
        return key

    def _copy_alone(self, row: int) -> None:
        """One sample that is larger than the buffer, or to which a pax global header applies."""
        source = self.inputs[self.files[row]]
        start, end = self.begin_at[row], self.begin_at[row] + self._length(row)
        try:
            known = self.inputs.globals_before(self.files[row], start) if self.marks[row] & GLOBAL else None
            columns = members_of_run(source, start, end, known)
        except DataError:
            raise self._changed(row) from None
        batch = grouped_as_planned(columns, [start], source.name)
        if len(batch.keys) != 1:
            raise self._changed(row)
        if not are_those(headers_of_batch(batch), self.samples.headers[row : row + 1]).all():
            raise self._changed(row)
        key = batch.keys[0]
        if not self.marks[row] & RENAMED and hash_key(key) != self._planned_key(row):
            raise self._changed(row)
        shard = self._address(row)
        members = [
            (field, batch.sizes[at], self._told(pieces_of(source, batch.offsets[at], batch.sizes[at])))
            for at, field in self.task.selection.plan_of(batch, 0, shard)
        ]
        self.shard.write_pieces(self._key(row, key), members)

    def _told(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """The same pieces; whoever listens is told of each that has been written."""
        for piece in pieces:
            yield piece
            self.tick(len(piece))

    def _first_changed(self, view: memoryview) -> DataError:
        """The error that names the first sample in the buffer that is not what was planned."""
        for row, begin in zip(self.rows, self.begins, strict=True):
            end = begin + self._length(row)
            scanner = Scanner(limit=end, first=begin)
            try:
                scanner.feed(view[begin:end], begin)
            except DataError:
                return self._changed(row)
            if scanner.position != end or not scanner.is_at_member or not self._is_planned(row, scanner):
                return self._changed(row)
        return self._changed(self.rows[0])

    def _is_planned(self, row: int, scanner: Scanner) -> bool:
        """Whether what a scanner found is one sample, of the key that was planned."""
        keys = group_columns(scanner.take(), self.task.address).keys
        return len(keys) == 1 and (
            bool(self.marks[row] & RENAMED) or hash_key(keys[0]) == self._planned_key(row)
        )

    def _address(self, row: int) -> str:
        return self.task.inputs[int(self.samples.shards[row])].address

    def _length(self, row: int) -> int:
        return self.ends[row + 1] - self.ends[row]

    def _planned_key(self, row: int) -> int:
        return int(self.samples.keys[row])

    def _changed(self, row: int) -> DataError:
        return DataError(
            f"sample {int(self.samples.places[row])} is not what was planned",
            code="changed",
            shard=self._address(row),
            offset=int(self.samples.starts[row]),
            hint="the shard was changed meanwhile, or its index is stale: make it again with `wds index`",
        )
