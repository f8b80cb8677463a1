"""One output shard of a join: samples whose members come from several inputs.

What it is: :class:`Joiner`, which fills a shard where a task of ``gather`` has parts beside its samples. How: as
``gather`` does it. The runs of some samples are read into one buffer, in output order; each input is read in its
own order, and runs that adjoin there by one call that scatters them. The headers in the buffer are walked: members of
one joined sample must all have the planned key, byte for byte, so that two keys of one hash are never joined. Then the
buffer goes out as it stands, or member by member where a sample is not canonical or a field had to give way.

It must not know how partners were found.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, NamedTuple

from wdscli.copy.copier import GatherTask
from wdscli.copy.padding import clear_padding
from wdscli.copy.spilled import Reading
from wdscli.errors import DataError, InputError
from wdscli.executors import tick_of_task
from wdscli.plan.headers import hashes_of, headers_of, headers_of_batch
from wdscli.plan.inputs import Inputs
from wdscli.plan.join.in_turn import in_turn
from wdscli.plan.join.layout import Layout, Shape, lay_out
from wdscli.plan.join.parts import CHANGED, NOBODY, Beside, collision
from wdscli.plan.ranges import members_of_run, pieces_of
from wdscli.plan.survey import hash_key
from wdscli.plan.table import Ordered, PlanTable
from wdscli.samples import SampleBatch, group_columns
from wdscli.shards.writing import ShardFile
from wdscli.tar import GLOBAL, Scanner

if TYPE_CHECKING:
    from wdscli.plan.table import I64, U64

BUFFER = 1 << 19
AT_ONCE = 1 << 12
_VIEWS = 512


class Part(NamedTuple):
    """One run of an input, which goes into a sample. It is read in ``file`` from byte ``at`` on: in the input, or where
    a first pass has brought it."""

    set: int
    shard: int
    place: int
    start: int
    length: int
    mark: int
    headers: int
    file: int
    at: int


class _Sample(NamedTuple):
    """A sample to be made: the hash of its key, its mark, and its parts by their sets."""

    key: int
    mark: int
    parts: list[Part]

    @property
    def length(self) -> int:
        return sum(part.length for part in self.parts)

    @property
    def marks(self) -> int:
        together = self.mark
        for part in self.parts:
            together |= part.mark
        return together


class Joiner:
    """The state of one task: a buffer, the samples that will lie in it, and the shard they go to."""

    def __init__(self, task: GatherTask, beside: Beside, inputs: Inputs, shard: ShardFile) -> None:
        self.task = task
        self.beside = beside
        self.tick = tick_of_task()
        self.inputs = inputs
        self.shard = shard
        self.scanner = Scanner(task.address, form=task.settings.form)
        self.buffer = memoryview(bytearray(BUFFER))
        self.samples: list[_Sample] = []
        self.filled = 0
        self.layouts: dict[tuple[Shape | None, ...], Layout] = {}
        self.width = 1 + len(beside.others)
        self.reading = Reading(task.spilled, in_turn([task.samples, *beside.others]))

    def run(self) -> None:
        """All samples, in order."""
        bucket = self.reading.next_bucket
        for number, sample in enumerate(_samples(self.task.samples, self.beside, self.reading)):
            if number * self.width == bucket:
                self._flush()
                bucket = self.reading.enter(bucket, self.inputs.__getitem__)
            length, alone = sample.length, sample.marks & GLOBAL
            if self.filled + length > BUFFER or alone:
                self._flush()
            if length > BUFFER or alone:
                self._copy_alone(sample)
                continue
            self.samples.append(sample)
            self.filled += length
        self._flush()
        expected = self.task.samples.out_bytes
        if self.shard.position != expected:
            raise DataError(
                f"made {self.shard.position} bytes where {expected} were planned",
                code="changed",
                shard=self.task.address,
                hint="an input was changed while it was read",
            )

    def _flush(self) -> None:
        """Read the samples that are waiting, check them and write them."""
        if not self.samples:
            return
        view, base = self.buffer[: self.filled], self.shard.position
        begins = self._read_all(view)
        batch = self._checked(view, base, begins)
        marks = any(sample.marks for sample in self.samples)
        if marks or self.task.selection.changes_members or any(batch.flags):
            self._rewrite(view, base, batch, begins)
        else:
            clear_padding(view, base, batch.offsets, batch.sizes)
            self.shard.write_run(view, batch)
        self.shard.flush()
        self.tick(self.shard.position - base)
        self.samples.clear()
        self.filled = 0

    def _read_all(self, view: memoryview) -> list[list[int]]:
        """Fill the buffer. Returns, for each sample, where its parts begin in it."""
        begins: list[list[int]] = []
        wanted: list[tuple[int, int, int, Part]] = []
        at = 0
        for sample in self.samples:
            begins.append([])
            for part in sample.parts:
                begins[-1].append(at)
                wanted.append((part.file, part.at, at, part))
                at += part.length
        wanted.sort()
        for group in _adjoining(wanted):
            self._read(group[0][3], [view[at : at + part.length] for _, _, at, part in group])
        return begins

    def _read(self, first: Part, views: list[memoryview]) -> None:
        """One range of an input, which begins with ``first``, into the places of its runs."""
        source, total = self.inputs[first.file], sum(map(len, views))
        if source.fd is not None:
            try:
                done = os.preadv(source.fd, views, first.at)
            except OSError as error:
                raise InputError(f"cannot read {source.name}: {error.strerror}") from error
            if done == total:
                return
        data = memoryview(source.read_at(first.at, total))
        if len(data) < total:
            raise self._changed(first)
        at = 0
        for view in views:
            view[:] = data[at : at + len(view)]
            at += len(view)

    def _checked(self, view: memoryview, base: int, begins: list[list[int]]) -> SampleBatch:
        """The joined samples in the buffer, proven to be those of the plan: where each begins, a member begins, and all
        its members have its key."""
        scanner = self.scanner
        scanner.position = base
        try:
            scanner.feed(view, base)
        except DataError:
            raise self._first_changed(view, begins) from None
        columns = scanner.take()
        batch = group_columns(columns, self.task.address)
        if scanner.position != base + len(view) or not scanner.is_at_member:
            raise self._first_changed(view, begins)
        if [batch.starts[first] - base for first in batch.firsts[:-1]] != [places[0] for places in begins]:
            raise self._first_changed(view, begins)
        if list(map(hash_key, batch.keys)) != [sample.key for sample in self.samples]:
            raise self._first_changed(view, begins)
        if not {start - base for start in batch.starts}.issuperset(chain.from_iterable(begins)):
            raise self._first_changed(view, begins)
        self._check_parts(batch, [base + place for places in begins for place in places])
        self._check_fields(batch)
        return batch

    def _check_parts(self, batch: SampleBatch, begins: list[int]) -> None:
        """Fields and sizes of each part, which begin so, must be those that were planned."""
        import numpy

        parts = [part for sample in self.samples for part in sample.parts]
        counts = numpy.diff(numpy.searchsorted(batch.starts, begins), append=len(batch.starts))
        sizes = numpy.array(batch.sizes, dtype=numpy.uint64)
        found = headers_of(hashes_of(batch.fields), sizes, counts).tolist()
        for part, headers in zip(parts, found, strict=True):
            if part.headers not in (0, headers):
                raise self._changed(part)

    def _check_fields(self, batch: SampleBatch) -> None:
        """No field may come twice where the plan saw no conflict."""
        for row, sample in enumerate(self.samples):
            fields = batch.fields[batch.firsts[row] : batch.firsts[row + 1]]
            if len(set(fields)) < len(fields) and not (
                sample.mark & CHANGED or self.task.selection.changes_members
            ):
                raise self._changed(sample.parts[-1])

    def _rewrite(self, view: memoryview, base: int, batch: SampleBatch, begins: list[list[int]]) -> None:
        """The samples in the buffer member by member, in the canonical form and with the names they get."""
        for row, (sample, places) in enumerate(zip(self.samples, begins, strict=True)):
            bounds = _bounds(batch, row, [base + place for place in places])
            plans = [
                self._plan(part, tuple(batch.fields[first:end]))
                for part, (first, end) in zip(sample.parts, bounds, strict=True)
            ]
            members = []
            for field, number, member in self._slots(sample, plans):
                at = bounds[number][0] + plans[number][member][0]
                begin = batch.offsets[at] - base
                members.append((field, view[begin : begin + batch.sizes[at]]))
            self.shard.write(batch.keys[row], members)

    def _plan(self, part: Part, fields: Shape) -> tuple[tuple[int, bytes], ...]:
        """Which members of a part stay, and what they are called."""
        try:
            return self.task.selection.member_plan(fields)
        except DataError:
            raise self._changed(part) from None

    def _slots(
        self, sample: _Sample, plans: Sequence[tuple[tuple[int, bytes], ...]]
    ) -> Iterator[tuple[bytes, int, int]]:
        """The members that a sample will have: field, number of its part, member of that part's plan."""
        shapes: list[Shape | None] = [None] * len(self.beside.policies)
        numbers = {}
        for number, (part, plan) in enumerate(zip(sample.parts, plans, strict=True)):
            shapes[part.set] = tuple(field for _, field in plan)
            numbers[part.set] = number
        known = self.layouts.get(tuple(shapes))
        if known is None:
            try:
                known = self.layouts[tuple(shapes)] = lay_out(shapes, self.beside.policies)
            except DataError:
                raise self._changed(sample.parts[-1]) from None
        for field, of_set, member in known.slots:
            yield field, numbers[of_set], member

    def _copy_alone(self, sample: _Sample) -> None:
        """One sample that is larger than the buffer, or to which a pax global header applies."""
        found = [self._members_alone(sample, part) for part in sample.parts]
        key = found[0].keys[0]
        for part, batch in zip(sample.parts, found, strict=True):
            if batch.keys[0] != key:
                raise collision(key, batch.keys[0], self.task.inputs[part.shard].address, part.start)
        plans = [
            self._plan(part, tuple(batch.fields)) for part, batch in zip(sample.parts, found, strict=True)
        ]
        members = []
        for field, number, member in self._slots(sample, plans):
            batch, at = found[number], plans[number][member][0]
            members.append((field, batch.sizes[at], _pieces(self.inputs, sample.parts[number], batch, at)))
        self.shard.write_pieces(key, members)

    def _members_alone(self, sample: _Sample, part: Part) -> SampleBatch:
        source = self.inputs[part.file]
        known = self.inputs.globals_before(part.file, part.at) if part.mark & GLOBAL else None
        try:
            columns = members_of_run(source, part.at, part.at + part.length, known)
        except DataError:
            raise self._changed(part) from None
        batch = group_columns(columns, source.name)
        if len(batch.keys) != 1 or hash_key(batch.keys[0]) != sample.key:
            raise self._changed(part)
        if part.headers not in (0, int(headers_of_batch(batch)[0])):
            raise self._changed(part)
        return batch

    def _first_changed(self, view: memoryview, begins: list[list[int]]) -> DataError:
        """The error that names the first part in the buffer that is not what was planned, or is of another key than its
        partners."""
        for sample, places in zip(self.samples, begins, strict=True):
            first: bytes | None = None
            for part, begin in zip(sample.parts, places, strict=True):
                key = _key_of(view[begin : begin + part.length])
                if key is None or hash_key(key) != sample.key:
                    return self._changed(part)
                if first is not None and key != first:
                    return collision(first, key, self.task.inputs[part.shard].address, part.start)
                first = key
        return self._changed(self.samples[0].parts[0])

    def _changed(self, part: Part) -> DataError:
        return DataError(
            f"sample {part.place} is not what was planned",
            code="changed",
            shard=self.task.inputs[part.shard].address,
            offset=part.start,
            hint="the shard was changed meanwhile, or its index is stale: make it again with `wds index`",
        )


def _samples(samples: Ordered, beside: Beside, reading: Reading) -> Iterator[_Sample]:
    """The samples of a task with their parts in the order of the sets, some thousand at a time."""
    width = 1 + len(beside.others)
    for first in range(0, samples.total, AT_ONCE):
        end = min(first + AT_ONCE, samples.total)
        own = samples.part(first, end)
        files, begins = reading.places(first * width, end * width)
        sets = [beside.sets[number] for number in own.shards.tolist()]
        columns = [
            _parts(other.part(first, end), repeat(number), files[number::width], begins[number::width])
            for number, other in enumerate(beside.others, 1)
        ]
        firsts = _parts(own, sets, files[::width], begins[::width])
        rows = zip(own.keys.tolist(), own.marks.tolist(), firsts, *columns, strict=True)
        for key, mark, *parts in rows:
            yield _Sample(key, mark, [part for part in parts if part is not None])


def _parts(samples: PlanTable, sets: Iterable[int], files: I64, begins: U64) -> list[Part | None]:
    """The rows of one set as parts, None for those that are not there."""
    columns = (
        samples.shards,
        samples.places,
        samples.starts,
        samples.lengths,
        samples.marks & (0xFF ^ CHANGED),
        samples.headers,
        files,
        begins,
    )
    return [
        None if values[1] == NOBODY else Part(*values)
        for values in zip(sets, *(column.tolist() for column in columns))
    ]


def _adjoining(
    wanted: list[tuple[int, int, int, Part]],
) -> Iterator[list[tuple[int, int, int, Part]]]:
    """Runs in the order of their inputs, those together that lie side by side there."""
    group: list[tuple[int, int, int, Part]] = []
    number = end = -1
    for one in wanted:
        shard, start, _, part = one
        if group and (shard != number or start != end or len(group) == _VIEWS):
            yield group
            group = []
        group.append(one)
        number, end = shard, start + part.length
    if group:
        yield group


def _bounds(batch: SampleBatch, row: int, begins: list[int]) -> list[tuple[int, int]]:
    """The members of each part of one sample."""
    first, end = batch.firsts[row], batch.firsts[row + 1]
    cuts = [first, *(bisect_left(batch.starts, begin, first, end) for begin in begins[1:]), end]
    return [(cuts[at], cuts[at + 1]) for at in range(len(begins))]


def _pieces(inputs: Inputs, part: Part, batch: SampleBatch, at: int) -> Iterator[bytes]:
    """A payload in pieces, from an input that may have been closed meanwhile."""
    yield from pieces_of(inputs[part.file], batch.offsets[at], batch.sizes[at])


def _key_of(run: memoryview) -> bytes | None:
    """The key of a run of one sample, None when it is no such run."""
    scanner = Scanner(limit=len(run))
    try:
        scanner.feed(run, 0)
    except DataError:
        return None
    if scanner.position != len(run) or not scanner.is_at_member:
        return None
    keys = group_columns(scanner.take(), "").keys
    return keys[0] if len(keys) == 1 else None
