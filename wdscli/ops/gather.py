"""The ``gather`` strategy: one output shard out of byte ranges of seekable inputs.

What it is: a task, :func:`gather`, that fills one shard with the runs a plan lists. How: runs are read into one buffer
of a few hundred KiB, adjacent ones by one call; the headers in the buffer are walked again, which costs a microsecond a
member and proves that every run is what the plan took it for; then the buffer goes out as it stands, or member by
member with new headers where a sample is not canonical yet, loses fields or changes names. Checksum and write find
the bytes in the processor's cache. A sample larger than the buffer is copied in pieces.

It must not know orders, cuts or selections beyond the names that members get.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from wdscli.errors import DataError, InputError
from wdscli.model import ShardInfo
from wdscli.ops.padding import clear_padding
from wdscli.ops.preserve import APART, kept_members
from wdscli.ops.rekey import Rekey, in_round, shard_stem
from wdscli.ops.rows import Samples
from wdscli.ops.runs import Globals, members_of_run, pieces_of
from wdscli.ops.scratch import Input
from wdscli.ops.spilled import SPILLED, Reading, Spilled
from wdscli.ops.survey import RENAMED, hash_key
from wdscli.samples import SampleBatch, group_columns
from wdscli.selection import Selection
from wdscli.shards.output import ShardSettings
from wdscli.shards.shardfile import ShardFile
from wdscli.storage import Source
from wdscli.tar import FOREIGN, GLOBAL, Columns, Scanner
from wdscli.tar.columns import new_columns

if TYPE_CHECKING:
    from wdscli.ops.beside import Beside
    from wdscli.ops.joined import Joiner

ALONE = GLOBAL | APART
BUFFER = 1 << 19
OPEN_SOURCES = 64


class GatherTask(NamedTuple):
    """One output shard: its address and settings, the inputs it needs by their numbers, and the samples in order.
    ``spilled`` says where they lie meanwhile, when a first pass has brought them nearer."""

    address: str
    settings: ShardSettings
    inputs: dict[int, Input]
    samples: Samples
    selection: Selection
    rekey: Rekey | None = None
    preserve: bool = False
    spilled: Spilled | None = None
    beside: Beside | None = None
    """The further parts of the samples, where these are joined."""


def gather(task: GatherTask) -> ShardInfo:
    """Make one shard. Raises DataError when an input is no longer what was planned; leaves nothing on any error."""
    with Inputs(task.inputs, task.spilled) as inputs, task.settings.open(task.address) as shard:
        _work_of(task, inputs, shard).run()
        return shard.commit()


def _work_of(task: GatherTask, inputs: Inputs, shard: ShardFile) -> _Gatherer | Joiner:
    if task.beside is None:
        return _Gatherer(task, inputs, shard)
    from wdscli.ops.joined import Joiner

    return Joiner(task, task.beside, inputs, shard)


class Inputs:
    """The open inputs of one task, at most :data:`OPEN_SOURCES` at a time. Under the number
    :data:`~wdscli.ops.spilled.SPILLED` is what a first pass has written."""

    def __init__(self, inputs: dict[int, Input], spilled: Spilled | None = None) -> None:
        self._inputs = inputs
        self._spilled = spilled
        self._open: dict[int, Source] = {}
        self._globals: dict[int, Globals] = {}

    def __getitem__(self, number: int) -> Source:
        source = self._open.get(number)
        if source is None and number == SPILLED and self._spilled is not None:
            source = self._open[number] = self._spilled.open()
        if source is None:
            if len(self._open) >= OPEN_SOURCES:
                self._open.pop(next(iter(self._open))).close()
            source = self._open[number] = self._inputs[number].open()
        return source

    def globals_before(self, number: int, start: int) -> dict[bytes, bytes]:
        """The records of pax global headers that hold at a byte of an input."""
        found = self._globals.get(number)
        if found is None:
            found = self._globals[number] = Globals(self[number])
        return found.before(start)

    def __enter__(self) -> Inputs:
        return self

    def __exit__(self, *_: object) -> None:
        for source in self._open.values():
            source.close()


class _Gatherer:
    """The state of one task: a buffer, what lies in it, and the shard it goes to."""

    def __init__(self, task: GatherTask, inputs: Inputs, shard: ShardFile) -> None:
        self.task = task
        self.inputs = inputs
        self.shard = shard
        self.scanner = Scanner(task.address, form=task.settings.form)
        self.buffer = memoryview(bytearray(BUFFER))
        self.filled = 0
        self.rows: list[int] = []
        self.begins: list[int] = []
        self.is_plain = not task.selection.changes_members
        samples = task.samples
        self.shards: list[int] = samples.shards.tolist()
        self.places: list[int] = samples.places.tolist()
        self.starts: list[int] = samples.starts.tolist()
        self.lengths: list[int] = samples.lengths.tolist()
        self.marks: list[int] = samples.marks.tolist()
        self.keys: list[int] = samples.keys.tolist()
        # Where the bytes are read: in the inputs, which messages speak of in any case, or in what was spilled.
        self.reading = Reading(task.spilled, samples)
        self.files, self.begin_at = self.reading.places(self.shards, self.starts)

    def run(self) -> None:
        """All samples, in order."""
        at = self.filled
        number, start, end = -1, 0, 0
        rows, begins = self.rows, self.begins
        bucket = self.reading.next_bucket
        pieces = zip(self.files, self.begin_at, self.lengths, self.marks, strict=True)
        for row, (shard, begin, length, mark) in enumerate(pieces):
            if row == bucket:
                self._read(number, start, end, at)
                number, start, end, at = -1, 0, 0, self.filled
                bucket = self.reading.enter(row, self.inputs[SPILLED])
            if self.filled + length > BUFFER or mark & ALONE:
                self._read(number, start, end, at)
                self._flush()
                number, start, end, at = -1, 0, 0, 0
                if length > BUFFER or mark & ALONE:
                    self._copy_alone(row)
                    continue
            if shard == number and begin == end:
                end += length
            else:
                self._read(number, start, end, at)
                number, start, end, at = shard, begin, begin + length, self.filled
            rows.append(row)
            begins.append(self.filled)
            self.filled += length
        self._read(number, start, end, at)
        self._flush()
        expected = int(self.task.samples.out_lengths.sum())
        if self.shard.position != expected:
            raise DataError(
                f"made {self.shard.position} bytes where {expected} were planned",
                code="changed",
                shard=self.task.address,
                hint="an input was changed while it was read",
            )

    def _read(self, number: int, start: int, end: int, at: int) -> None:
        """One range of one input into the buffer at ``at``."""
        if number < 0:
            return
        source = self.inputs[number]
        view = self.buffer[at : at + end - start]
        if source.fd is not None:
            try:
                done = os.preadv(source.fd, [view], start)
            except OSError as error:
                raise InputError(f"cannot read {source.name}: {error.strerror}") from error
            while 0 < done < len(view):
                more = os.preadv(source.fd, [view[done:]], start + done)
                done = done + more if more else 0
        else:
            data = source.read_at(start, end - start)
            done = len(data)
            if done == len(view):
                view[:] = data
        if done != len(view):
            raise self._changed(self.rows[-1] if self.rows else 0)

    def _flush(self) -> None:
        """Check what lies in the buffer and write it."""
        if not self.rows:
            return
        view = self.buffer[: self.filled]
        base = self.shard.position
        batch = self._checked(view, base)
        marks = [self.marks[row] for row in self.rows]
        if self.task.preserve:
            self.shard.write_run(view, batch)
        elif self.is_plain and not any(marks) and not any(batch.flags):
            clear_padding(view, base, batch.offsets, batch.sizes)
            self.shard.write_run(view, batch)
        else:
            self._rewrite(view, base, batch)
        self.shard.flush()
        self.rows.clear()
        self.begins.clear()
        self.filled = 0

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
            batch = _grouped_as_planned(columns, begins, self.task.address)
        if len(batch.keys) != len(self.rows):
            raise self._first_changed(view)
        self._check_keys(batch)
        return batch

    def _check_keys(self, batch: SampleBatch) -> None:
        """The keys must be those that were planned; a renamed sample is known by its new key later on."""
        for row, key in zip(self.rows, map(hash_key, batch.keys), strict=True):
            if key != self.keys[row] and not self.marks[row] & RENAMED:
                raise self._changed(row)

    def _rewrite(self, view: memoryview, base: int, batch: SampleBatch) -> None:
        """The samples in the buffer member by member, in the canonical form and with their new names."""
        for at, row in enumerate(self.rows):
            source = self.task.inputs[self.shards[row]].address
            first = batch.firsts[at]
            members = []
            for member, field in self.task.selection.plan_of(batch, at, source):
                begin = batch.offsets[first + member] - base
                members.append((field, view[begin : begin + batch.sizes[first + member]]))
            self.shard.write(self._key(row, batch.keys[at]), members)

    def _key(self, row: int, key: bytes) -> bytes:
        """The name under which a sample is written: its own or that of the format, with the number of its round; the
        hash that was planned says which of the two."""
        if not self.marks[row] & RENAMED:
            return key
        source = self.task.inputs[self.shards[row]]
        if self.task.rekey is not None:
            new = self.task.rekey.key(key, shard_stem(source.address), self.places[row])
            new = in_round(new, source.round)
            if hash_key(new) == self.keys[row]:
                return new
        new = in_round(key, source.round)
        if hash_key(new) != self.keys[row]:
            raise self._changed(row)
        return new

    def _copy_alone(self, row: int) -> None:
        """One sample that is larger than the buffer, or to which a pax global header applies."""
        source = self.inputs[self.files[row]]
        start, end = self.begin_at[row], self.begin_at[row] + self.lengths[row]
        try:
            known = self.inputs.globals_before(self.files[row], start) if self.marks[row] & GLOBAL else None
            columns = members_of_run(source, start, end, known)
        except DataError:
            raise self._changed(row) from None
        batch = _grouped_as_planned(columns, [start], source.name)
        if len(batch.keys) != 1:
            raise self._changed(row)
        key = batch.keys[0]
        if not self.marks[row] & RENAMED and hash_key(key) != self.keys[row]:
            raise self._changed(row)
        if self.task.preserve:
            self.shard.write_kept(key, kept_members(source, batch, 0, self.task.selection, known))
            return
        shard = self.task.inputs[self.shards[row]].address
        members = [
            (field, batch.sizes[at], pieces_of(source, batch.offsets[at], batch.sizes[at]))
            for at, field in self.task.selection.plan_of(batch, 0, shard)
        ]
        self.shard.write_pieces(self._key(row, key), members)

    def _first_changed(self, view: memoryview) -> DataError:
        """The error that names the first sample in the buffer that is not what was planned."""
        for row, begin in zip(self.rows, self.begins, strict=True):
            end = begin + self.lengths[row]
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
        return len(keys) == 1 and (bool(self.marks[row] & RENAMED) or hash_key(keys[0]) == self.keys[row])

    def _changed(self, row: int) -> DataError:
        return DataError(
            f"sample {self.places[row]} is not what was planned",
            code="changed",
            shard=self.task.inputs[self.shards[row]].address,
            offset=self.starts[row],
            hint="the shard was changed meanwhile, or its index is stale: make it again with `wds index`",
        )


def _grouped_as_planned(columns: Columns, begins: list[int], shard: str) -> SampleBatch:
    """Samples by where they were planned to begin, not by key: neighbours may share a key until they get new ones.

    Gives fewer samples than planned when the members do not fit the plan.
    """
    whole = group_columns(new_columns(), shard)
    bounds = [*begins[1:], 1 << 63]
    at, count = 0, len(columns.names)
    for begin, bound in zip(begins, bounds, strict=True):
        first = at
        while at < count and columns.starts[at] < bound:
            at += 1
        sample = group_columns(columns.part(first, at), shard)
        if len(sample.keys) != 1 or sample.starts[0] < begin:
            break
        _append(whole, sample)
    return whole


def _append(whole: SampleBatch, sample: SampleBatch) -> None:
    shift = len(whole.fields)
    whole.keys.extend(sample.keys)
    whole.firsts.extend(first + shift for first in sample.firsts[1:])
    whole.fields.extend(sample.fields)
    for column, values in zip(whole.numbers(), sample.numbers(), strict=True):
        column.extend(values)
    whole.marks.extend(mark | FOREIGN for mark in sample.marks)
