"""This module makes one output shard from byte ranges of its inputs, for every command with a plan.

A task, :func:`gather`, fills one shard with the samples of a plan. A run is a range of bytes in one input, and a row of
the plan. A sample is one run, or in a join several runs. Runs are read into one buffer of a few MiB; one call reads
adjacent runs.

The headers in the buffer are parsed again. The compiled core parses usual headers (:func:`packed`), and the exact
scanner parses all others. This proves that every run has the planned fields, sizes and key. All runs of a sample must
have the same key, byte for byte. So two keys with equal hashes are never joined.

Then the core makes the buffer canonical in place, and it is written. The bytes are still in the processor's cache when
they are hashed and written. If a sample is unusual, loses fields, changes names or has a field twice, the samples of
the buffer are written member by member. A sample larger than the buffer is copied in pieces.

Of orders, cuts and selections, this module knows only the names of the new members. It does not know how partners were
found.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from wdscli.arrays import I64, U8, U64, numpy
from wdscli.copy.spill import Reading, SpilledRows
from wdscli.errors import DataError
from wdscli.executors import tick_of_task
from wdscli.model import PendingCommit, ShardInfo
from wdscli.plan.inputs import Input, Inputs, grouped_as_planned, members_of_run
from wdscli.plan.names import Rekey, shard_stem
from wdscli.plan.strategy import EXPECTED_BYTES
from wdscli.plan.survey import hash_key
from wdscli.plan.table import (
    CHANGED,
    RENAMED,
    JoinedParts,
    OrderedSamples,
    PlanTable,
    collision,
    hashes_of,
    have_planned_headers,
    headers_of,
    headers_of_batch,
    in_turn,
)
from wdscli.samples import SampleBatch, group_columns
from wdscli.samples.grouping import PayloadOf, SampleAt
from wdscli.samples.keys import hashes_of_joined
from wdscli.samples.reading import packed
from wdscli.selection import Selection
from wdscli.selection.layers import Shape, lay_out
from wdscli.selection.reading import MemberReader
from wdscli.selection.values import Numbers
from wdscli.shards.moving import copied, find_original
from wdscli.shards.view_shards import changed_shard
from wdscli.shards.writing import ShardFile, ShardSettings
from wdscli.storage.ends import EndsEarly, pieces_of
from wdscli.storage.kinds import stored_version
from wdscli.storage.scatter import Ranges, announce, read
from wdscli.tar import END_OF_ARCHIVE, FOREIGN, GLOBAL, Scanner

COPY_BUFFER_BYTES = 1 << 22
"""How many bytes are read, checked and written together."""
READ_AHEAD_BYTES = 1 << 24
"""How many bytes the kernel is requested to read in advance from a device."""
ROWS_PER_CHUNK = 1 << 14
"""How many rows are Python lists in memory at the same time."""
SHAPES_REMEMBERED = 1 << 12
"""How many lists of fields are cached. A set has few different lists."""


class GatherTask(NamedTuple):
    """One output shard: its address and settings, the inputs it needs by their numbers, and the samples in order.
    ``spilled`` has their places in scratch space after a first pass."""

    address: str
    settings: ShardSettings
    inputs: dict[int, Input]
    samples: OrderedSamples
    selection: Selection
    rekey: Rekey | None = None
    spilled: SpilledRows | None = None
    beside: JoinedParts | None = None
    """The rows of the further parts of joined samples."""
    values: Mapping[str, Numbers] = {}
    """The stored values of the samples, for the index of the shard."""


def gather(task: GatherTask) -> PendingCommit[ShardInfo]:
    """Make one shard. A call of the result publishes it. Raises DataError if an input has changed. After an error no
    files remain."""
    if (info := _by_store(task)) is not None:
        return PendingCommit(lambda: info)
    open_spilled = None if task.spilled is None else task.spilled.open
    with Inputs(task.inputs, open_spilled) as inputs, task.settings.open(task.address) as shard:
        Copier(task, inputs, shard).run()
        inputs.confirm()
        shard.index.values = dict(task.values)
        return shard.end()


def _by_store(task: GatherTask) -> ShardInfo | None:
    """If the shard equals a whole input shard, let the store copy it, and return it. Otherwise return None. Joined
    samples must have only one part."""
    rows, changes = task.samples, task.rekey is not None or task.selection.changes_members
    if changes or task.spilled is not None or len(task.inputs) != 1:
        return None
    [source] = task.inputs.values()
    if source.copy or source.stamp is None or not rows.total:
        return None
    if rows.sum_of("out") + len(END_OF_ARCHIVE) != source.stamp.size_bytes:
        return None
    if task.beside is not None and any(part.sum_of("length") for part in task.beside.later_parts):
        return None
    original = find_original(source.address, task.address, task.settings)
    # If the input is a view, the headers of its base must be unchanged.
    if original is None or (
        original.address == source.address
        and (
            not source.stamp.is_pinned
            or original.version != stored_version(source.address, source.stamp.version)
        )
    ):
        return None
    is_same = numpy.array_equal(rows.column("start", 0, rows.total), original.index.starts)
    if not is_same or rows.column("mark", 0, rows.total).any():
        return None
    original.index.numbers = dict(task.values)
    info = copied(original, task.address, task.settings)
    tick_of_task()(0 if info is None else info.size_bytes)
    return info


class Chunk:
    """Some thousand rows as lists, because lists of all rows would need too much memory. ``width`` rows are one sample.

    Three lists have one entry per row. ``row_ends`` has the number of bytes before each row, and as last value all
    bytes. ``files`` and ``begins`` say where the row is read. The list ``ends`` has one entry per sample, and is like
    ``row_ends``. The array ``marks`` has the marks of all rows of each sample.
    """

    def __init__(self, rows: PlanTable, places: tuple[I64, U64], width: int) -> None:
        self.rows = rows
        self.ranges = Ranges.in_turn(*places, rows.lengths)
        self.totals: I64 = numpy.append(0, self.ranges.places + self.ranges.lengths)
        self.row_ends: list[int] = self.totals.tolist()
        self.ends = self.row_ends[::width]
        self.marks: U8 = numpy.bitwise_or.reduce(rows.marks.reshape(-1, width), axis=1)
        self.files: list[int] = places[0].tolist()
        self.begins: list[int] = places[1].tolist()

    def with_bytes(self, first: int, end: int) -> I64:
        """Return the rows from ``first`` to ``end - 1`` that are not missing."""
        rows: I64 = first + numpy.flatnonzero(self.ranges.lengths[first:end])
        return rows

    def samples_in(self, size_bytes: int, first: int) -> int:
        """Return the end of the samples from ``first`` with at most ``size_bytes``, and of at least one sample."""
        return max(bisect_right(self.ends, self.ends[first] + size_bytes, first) - 1, first + 1)


class Copier:
    """The state of one task: the contents of a buffer, and the shard that is written.

    ``samples`` are the samples in the buffer; their numbers count from the beginning of the chunk. Sample i has the
    ``width`` rows from ``i * width``. A row without bytes is a missing part. ``runs`` are all other rows of samples in
    the buffer.
    """

    def __init__(self, task: GatherTask, inputs: Inputs, shard: ShardFile) -> None:
        self.task = task
        self.inputs = inputs
        self.shard = shard
        lists = [task.samples, *(task.beside.later_parts if task.beside is not None else ())]
        self.width = len(lists)
        self.rows = in_turn(lists)
        self.slots: dict[tuple[tuple[int, Shape], ...], list[tuple[bytes, int, int]]] = {}
        self.scanner = Scanner(task.address, form=task.settings.form)
        # Bytes are read from inputs or from spilled parts, but messages always name the inputs.
        self.reading = Reading(task.spilled, self.rows, inputs)
        self.tick = tick_of_task()

    def run(self) -> None:
        """Copy all samples, in order."""
        for first, end in self.reading.chunks(max(ROWS_PER_CHUNK // self.width, 1) * self.width):
            rows = self.rows.part(first, end)
            self._copy_chunk(Chunk(rows, self.reading.places(rows, first), self.width))
        expected = self.task.samples.sum_of("out")
        if self.shard.position != expected:
            raise DataError(
                f"wrote {self.shard.position} bytes, but the plan says {expected}",
                code="changed",
                shard=self.task.address,
                hint="an input was changed while it was read",
            )

    def _copy_chunk(self, chunk: Chunk) -> None:
        """Copy the samples of a chunk, one buffer after the other."""
        self.chunk = chunk
        self.announced = self.expected = first = 0
        while first < len(chunk.marks):
            end = bisect_right(chunk.ends, chunk.ends[first] + COPY_BUFFER_BYTES, first) - 1
            if (is_changed := chunk.marks[first:end] & GLOBAL).any():
                end = first + int(is_changed.argmax())
            if end == first:
                self._copy_alone(first)
                end = first + 1
            else:
                self._copy_together(range(first, end))
            first = end

    def _copy_together(self, samples: range) -> None:
        """Read, check and write samples that fit in the buffer."""
        chunk, first, end = self.chunk, samples.start * self.width, samples.stop * self.width
        self.samples = samples
        self.runs = chunk.with_bytes(first, end)
        self._announce(samples.start)
        view, before = self._read(chunk.row_ends[end] - chunk.row_ends[first]), self.shard.position
        changes = self.task.selection.changes_members
        is_usual = not changes and bool(
            (chunk.marks[samples.start : samples.stop] | FOREIGN == FOREIGN).all()
        )
        if not (is_usual and self._write_packed(view)):
            self._write_exactly(view)
        self.tick(self.shard.position - before)

    def _announce(self, first: int) -> None:
        """Announce the ranges of the next few buffers to remote inputs, and to the kernel, which reads those of files
        that are not in memory. A join does not request the latter, because it reads each input in order."""
        chunk, low = self.chunk, max(first, self.announced)
        if first >= self.expected and self.task.spilled is None:
            self.expected = chunk.samples_in(EXPECTED_BYTES, first)
            self.inputs.expect(self._ranges(first, self.expected), by_bytes=True)
        is_near = low < len(chunk.marks) and chunk.ends[low] - chunk.ends[first] <= READ_AHEAD_BYTES // 2
        if is_near and self.width == 1:
            end = max(chunk.samples_in(READ_AHEAD_BYTES, first), low + 1)
            if announce(self.inputs, self._ranges(low, end)):
                self.announced = end

    def _ranges(self, first: int, end: int) -> Ranges:
        """Return the ranges with the samples ``first`` to ``end - 1``. Only joined samples have rows without bytes."""
        if self.width == 1:
            return self.chunk.ranges.take(slice(first, end))
        return self.chunk.ranges.take(self.chunk.with_bytes(first * self.width, end * self.width))

    def _read(self, size: int) -> memoryview:
        """Read the runs, which have ``size`` bytes, into a spare buffer of the shard."""
        ranges = self._ranges(self.samples.start, self.samples.stop)
        view, begin = self.shard.spare(COPY_BUFFER_BYTES)[:size], self.chunk.ends[self.samples.start]
        try:
            read(self.inputs, ranges._replace(places=ranges.places - begin), view)
        except EndsEarly as error:
            raise self._changed(int(self.runs[error.row])) from None
        return view

    def _write_packed(self, view: memoryview) -> bool:
        """Write usual samples, which need no change except canonical headers, in one call. Return False if a quick
        check finds an unusual sample."""
        chunk, width = self.chunk, self.width
        rows = slice(self.samples.start * width, self.samples.stop * width, width)
        usual = packed(view, chunk.totals[rows] - chunk.totals[rows.start], self.task.settings.form)
        if usual is None:
            return False
        hashes = hashes_of_joined(usual.arrays.keys, usual.arrays.key_lengths)
        keys = numpy.frombuffer(hashes, dtype=numpy.uint64)
        # Only the plan shows that neighbours with equal keys are two samples.
        if not (keys == chunk.rows.keys[rows]).all() or (keys[1:] == keys[:-1]).any():
            return False
        planned, arrays = chunk.rows.headers[self.runs], usual.arrays
        # If the fields of a run are unknown, a joined sample may have a field twice.
        counts = arrays.counts if width == 1 else self._counts(usual.heads)
        if counts is None or (width > 1 and not planned.all()):
            return False
        names, sizes = hashes_of(arrays.fields)[arrays.codes], arrays.sizes.view(numpy.uint64)
        if not have_planned_headers(headers_of(names, sizes, counts), planned).all():
            return False
        self.shard.write_arrays(usual.settle(view), arrays)
        return True

    def _counts(self, starts: I64) -> I64 | None:
        """Return the number of members of each run. ``starts`` are the offsets in the buffer where members begin.
        Return None if a run does not begin with a member."""
        begins = self.chunk.totals[self.runs] - self.chunk.totals[self.runs[0]]
        firsts = starts.searchsorted(begins)
        if firsts[-1] == len(starts) or (starts[firsts] != begins).any():
            return None
        counts: I64 = numpy.diff(firsts, append=len(starts))
        return counts

    def _checked(self, view: memoryview, base: int) -> tuple[SampleBatch, I64]:
        """Check that the buffer has the planned samples. Return the samples, and the number of members of each run."""
        chunk, scanner = self.chunk, self.scanner
        scanner.position = base
        try:
            scanner.feed(view, base)
        except DataError:
            raise self._first_changed() from None
        columns = scanner.take()
        if scanner.position != base + len(view) or not scanner.is_at_member:
            raise self._first_changed()
        batch = group_columns(columns, self.task.address)
        shift = base - chunk.ends[self.samples.start]
        begins = [end + shift for end in chunk.ends[self.samples.start : self.samples.stop]]
        if [batch.starts[first] for first in batch.firsts[:-1]] != begins:
            batch = grouped_as_planned(columns, begins, self.task.address)
        if len(batch.keys) != len(begins) or not all(map(self._is_planned, self.samples, batch.keys)):
            raise self._first_changed()
        counts = self._counts(numpy.array(batch.starts) - base)
        if counts is None:
            raise self._first_changed()
        headers = headers_of(hashes_of(batch.fields), numpy.array(batch.sizes, dtype=numpy.uint64), counts)
        same = have_planned_headers(headers, chunk.rows.headers[self.runs])
        if not same.all():
            raise self._changed(int(self.runs[same.argmin()]))
        if self.width > 1:
            self._check_fields(batch)
        return batch, counts

    def _check_fields(self, batch: SampleBatch) -> None:
        """Raise DataError if a joined sample has a field twice, and the plan has no conflict for it."""
        for sample, (first, end) in zip(self.samples, pairwise(batch.firsts), strict=True):
            is_known = self.chunk.marks[sample] & CHANGED or self.task.selection.changes_members
            if not is_known and len(set(batch.fields[first:end])) < end - first:
                raise self._changed(self._rows_of(sample)[-1])

    def _is_planned(self, sample: int, key: bytes) -> bool:
        """Return whether the hash of a sample's key matches this key. A sample with a new key is checked later."""
        return self._is_renamed(sample) or hash_key(key) == self._planned_key(sample)

    def _write_exactly(self, view: memoryview) -> None:
        """Write any samples in the buffer member by member, in canonical form, with their new names."""
        base = self.shard.position
        batch, counts = self._checked(view, base)
        runs, offsets, sizes, fields = self.runs.tolist(), batch.offsets, batch.sizes, batch.fields
        firsts = [0, *counts.cumsum().tolist()]
        low = 0

        def payload_of(row: int, field: bytes) -> bytes:
            member = fields.index(field, batch.firsts[row])
            return bytes(view[offsets[member] - base :][: sizes[member]])

        new_payloads = self.task.selection.new_payloads
        for row, (sample, end) in enumerate(zip(self.samples, batch.firsts[1:], strict=True)):
            high = firsts.index(end, low)
            shapes = [tuple(fields[firsts[run] : firsts[run + 1]]) for run in range(low, high)]
            members: list[tuple[bytes, bytes | memoryview]] = []
            for field, number, member in self._slots(runs[low:high], shapes):
                place = firsts[low + number] + member
                begin = offsets[place] - base
                members.append((field, view[begin : begin + sizes[place]]))
            at = self._at(sample, batch, row, payload_of)
            if new := new_payloads(at):
                members = list((dict(members) | new).items())
            self.shard.write(self._key(sample, at), members)
            low = high

    def _slots(self, runs: Sequence[int], shapes: Sequence[Shape]) -> list[tuple[bytes, int, int]]:
        """Return the members that a sample will have, from its runs and their fields. Each member has a name, the
        number of its run, and its number in the run."""
        sets = [0] if self.task.beside is None else list(map(self._set_of, runs))
        parts = tuple(zip(sets, shapes, strict=True))
        slots = self.slots.get(parts)
        if slots is None:
            if len(self.slots) >= SHAPES_REMEMBERED:
                self.slots.clear()
            try:
                slots = self.slots[parts] = self._new_slots(sets, shapes)
            except DataError:
                raise self._changed(runs[-1]) from None
        return slots

    def _new_slots(self, sets: list[int], shapes: Sequence[Shape]) -> list[tuple[bytes, int, int]]:
        plans = list(map(self.task.selection.member_plan, shapes))
        if self.task.beside is None:
            return [(field, 0, member) for member, field in plans[0]]
        policies = self.task.beside.policies
        by_set: list[Shape | None] = [None] * len(policies)
        for number, plan in zip(sets, plans, strict=True):
            by_set[number] = tuple(field for _, field in plan)
        numbers = {of_set: number for number, of_set in enumerate(sets)}
        return [
            (field, numbers[of_set], plans[numbers[of_set]][member][0])
            for field, of_set, member in lay_out(by_set, policies).slots
        ]

    def _set_of(self, row: int) -> int:
        """Return the set of a row in a join. The first row of a sample may come from any set."""
        assert self.task.beside is not None
        return row % self.width or self.task.beside.sets[int(self.chunk.rows.shards[row])]

    def _at(self, sample: int, batch: SampleBatch, row: int, payload_of: PayloadOf) -> SampleAt:
        """Return a sample of a batch. If something depends on its place, it has its place in the input."""
        if self.task.rekey is None and not self.task.selection.new_fields:
            return SampleAt(batch, row, "", payload_of)
        place = int(self.chunk.rows.places[sample * self.width])
        return SampleAt(
            batch._replace(index=place - row), row, self._address(sample * self.width), payload_of
        )

    def _key(self, sample: int, at: SampleAt) -> bytes:
        """Return the key with which a sample is written: its old key or its new key. The planned hash decides."""
        key = at.key
        if not self._is_renamed(sample):
            return key
        if self.task.rekey is not None:
            place = int(self.chunk.rows.places[sample])
            first = self.task.inputs[int(self.chunk.rows.shards[sample])].first
            stem, values = shard_stem(self._address(sample)), self.task.rekey.values
            new = self.task.rekey.key(key, stem, place, first, at if values else None)
            if hash_key(new) == self._planned_key(sample):
                return new
        if hash_key(key) != self._planned_key(sample):
            raise self._changed(sample)
        return key

    def _copy_alone(self, sample: int) -> None:
        """Copy one sample that is larger than the buffer, or that a pax global header changes."""
        rows, batches = self._rows_of(sample), self._batches_alone(sample)
        members = []
        for field, number, member in self._slots(rows, [tuple(batch.fields) for batch in batches]):
            offset, size = batches[number].offsets[member], batches[number].sizes[member]
            members.append((field, size, self._pieces(rows[number], offset, size)))
        payloads = MemberReader(self.inputs[self.chunk.files[rows[0]]])
        payloads.batch = batches[0]
        at = self._at(sample, batches[0], 0, payloads)
        if new := self.task.selection.new_payloads(at):
            pieces = {field: (len(payload), iter([payload])) for field, payload in new.items()}
            fields = {field: tuple(rest) for field, *rest in members} | pieces
            members = [(field, *rest) for field, rest in fields.items()]
        self.shard.write_pieces(self._key(sample, at), members)

    def _batches_alone(self, sample: int) -> list[SampleBatch]:
        """Return the members of each run of a sample. Check that all runs have the same key."""
        rows = self._rows_of(sample)
        batches = [self._batch_alone(sample, row) for row in rows]
        key = batches[0].keys[0]
        for row, batch in zip(rows, batches, strict=True):
            if batch.keys[0] != key:
                raise collision(key, batch.keys[0], self._address(row), int(self.chunk.rows.starts[row]))
        return batches

    def _batch_alone(self, sample: int, row: int) -> SampleBatch:
        """Return the members of one run. Check that they are the planned members."""
        file, start, length = self.chunk.files[row], self.chunk.begins[row], int(self.chunk.rows.lengths[row])
        source = self.inputs[file]
        try:
            records = self.inputs.globals_before(file, start) if self.chunk.rows.marks[row] & GLOBAL else None
            batch = group_columns(members_of_run(source, start, start + length, records), source.name)
        except DataError:
            raise self._changed(row) from None
        if len(batch.keys) != 1 or not self._is_planned(sample, batch.keys[0]):
            raise self._changed(row)
        if not have_planned_headers(headers_of_batch(batch), self.chunk.rows.headers[row : row + 1]).all():
            raise self._changed(row)
        return batch

    def _pieces(self, row: int, offset: int, size: int) -> Iterator[bytes]:
        """Yield a payload in pieces. When a piece is written, report it as progress. The input may have been closed
        between two pieces."""
        for piece in pieces_of(self.inputs[self.chunk.files[row]], offset, size):
            yield piece
            self.tick(len(piece))

    def _first_changed(self) -> DataError:
        """Return the error for the first sample in the buffer that differs from the plan."""
        try:
            for sample in self.samples:
                self._batches_alone(sample)
        except DataError as error:
            return error
        return self._changed(int(self.runs[0]))

    def _rows_of(self, sample: int) -> list[int]:
        """Return the rows of a sample, without placeholder rows."""
        ends = self.chunk.row_ends
        rows = range(sample * self.width, (sample + 1) * self.width)
        return [row for row in rows if ends[row] < ends[row + 1]]

    def _is_renamed(self, sample: int) -> bool:
        # In a join, this mark means that a field is dropped or renamed.
        return self.width == 1 and bool(self.chunk.marks[sample] & RENAMED)

    def _planned_key(self, sample: int) -> int:
        return int(self.chunk.rows.keys[sample * self.width])

    def _address(self, row: int) -> str:
        return self.task.inputs[int(self.chunk.rows.shards[row])].address

    def _changed(self, row: int) -> DataError:
        message = f"sample {int(self.chunk.rows.places[row])} differs from the planned sample"
        return changed_shard(self._address(row), message, int(self.chunk.rows.starts[row]))
