"""This module surveys input shards. It finds the places of selected samples, and their lengths in the output.

:func:`survey` is a task that reads the headers (or the index) of one shard and makes one packed row for each sample.
:func:`survey_shards` runs this task for all inputs. A row has the XXH3-64 of the key, to find repeated keys over all
shards. It also has a 32-bit hash of the headers, by which the copier recognizes the sample. If all samples of a shard
are usual, the columns of its index become the rows (:func:`plain_rows`). An :class:`~wdscli.plan.table.Extract` takes
the values that an order needs while the sample is read. Surveys run in this process if samples are counted across
shards, if only this process can read an input, or if the work is small. Otherwise they run like other tasks. This
module does not know orders, cuts or outputs.
"""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from xxhash import xxh3_64_intdigest

from wdscli.arrays import I64, Rows, SampleArrays, numpy, steps
from wdscli.errors import DataError
from wdscli.executors import MIN_SCANNED_BYTES, make_executor, run_shard_tasks, tick_of_task, useful_jobs
from wdscli.plan.inputs import Input, Stamp, is_of_this_process, is_ours_alone, is_read_once, refused
from wdscli.plan.names import Rekey, shard_stem
from wdscli.plan.request import Request
from wdscli.plan.scratch import NO_ROOM, Room, Scratch, StoredRows, spool
from wdscli.plan.strategy import LEAST_TASK_BYTES, Limits
from wdscli.plan.table import (
    RENAMED,
    Extract,
    Growing,
    GrowingValues,
    PackedValues,
    PlanTable,
    RowBlock,
    Values,
    hashes_of,
    headers_of,
    row_type,
    rows_of_arrays,
)
from wdscli.progress import Progress
from wdscli.samples import SampleBatch
from wdscli.samples.grouping import SampleAt
from wdscli.samples.keys import joined_may_be_unsafe
from wdscli.samples.reading import PackedSamples, walk_small
from wdscli.selection import Selection, SelectionState
from wdscli.selection.choice import OnError
from wdscli.selection.named import Named, SeenNames
from wdscli.selection.reading import MemberReader, Salvage, Walk
from wdscli.shards.index import Check, Index, index_address
from wdscli.shards.proof import checking, find_index, open_by_index
from wdscli.shards.reading import index_batches
from wdscli.storage import Source, is_local, open_source
from wdscli.storage.addresses import local_path
from wdscli.storage.opening import size_hint
from wdscli.tar import FOREIGN, Form, build_header, padded
from wdscli.tar.header import BLOCK, NAME_BYTES, ONE_BLOCK_SIZE
from wdscli.tar.reader import is_dense

HELD_ROWS = 1 << 16
"""The most rows that a survey keeps in memory."""
BATCHES_AT_ONCE = 16
"""How many batches are turned into rows in one step. numpy is faster than a loop only for long arrays."""
REMOTE_SHARD_BYTES = 16 << 20
"""The assumed cost of reading a remote shard's headers, and the assumed size of a remote shard if its size is
unknown."""
WORTH_PROCESSES_BYTES = 64 << 20
"""A process reads this many bytes of indexes, or of remote shards, while another one starts."""
MEMORY_PER_INDEX_BYTE = 6
"""Bytes of memory needed for each byte of an index file while it is turned into rows."""

ChosenOf: TypeAlias = tuple[SampleBatch, Sequence[int]]
"""A batch and its selected rows."""
Keep: TypeAlias = Callable[[RowBlock], None]
"""A function that takes the rows of a survey as soon as they are found."""
hash_key = xxh3_64_intdigest
"""The hash of a key in rows. It has no secret seed, because plan files contain it. Before a sample is dropped or
renamed, the keys themselves are compared."""


class SurveyTask(NamedTuple):
    """The task of surveying one input shard. ``rekey`` gives all samples new keys. ``spool`` is the path for a copy, if
    the input can be read only once. ``extract`` takes a value of each selected sample."""

    input: Input
    form: Form
    selection: Selection
    rekey: Rekey | None = None
    use_index: bool = True
    on_error: OnError = "stop"
    spool: str = ""
    extract: Extract | None = None
    overflow: str | None = None
    """A local path for rows that do not fit in memory. None means that all rows stay in memory."""
    listed_samples: int = -1
    """The shard's number of samples in the manifest; -1 if it is unknown or not needed."""
    of_set: int = 0
    """The number of the shard's set in a join, from 0. It is 0 without a join."""
    listed: tuple[int, str] | None = None
    """Size and version of the shard, if a listing has just returned them."""
    room: Room = NO_ROOM
    """The disc space for copies of remote inputs, on the disc of ``spool``."""
    check: Check = Check.SOME
    """How the index is compared with the shard. The default is for samples that are read later."""

    @property
    def address(self) -> str:
        """The shard's address, as the user named it."""
        return self.input.address

    @property
    def is_wanted_whole(self) -> bool:
        """Whether all bytes of the shard are read even if it has an index. The answer is a guess until the shard is
        open."""
        is_far = self.room.takes_most and not self.input.copy
        return is_far and (not self.goes_by_index_alone or self.room.copies_like(size_hint(self.address)))

    @property
    def goes_by_index(self) -> bool:
        """Whether an existing index is read instead of headers."""
        return self.use_index and self.on_error != "skip" and not self.input.copy

    @property
    def goes_by_index_alone(self) -> bool:
        """Whether only an existing index is read, and no payload."""
        return self.goes_by_index and not self.payload_fields

    @property
    def copies_plainly(self) -> bool:
        """Whether all samples are copied unchanged, any damage is an error, and no payload is read."""
        is_plain = self.selection.is_trivial and self.rekey is None and self.on_error != "skip"
        return is_plain and not self.payload_fields

    @property
    def payload_fields(self) -> frozenset[bytes]:
        """The fields whose payloads a survey reads."""
        looked_into = frozenset[bytes]() if self.extract is None else self.extract.payload_fields
        return (
            self.selection.payload_fields
            | looked_into
            | (self.rekey.payload_fields if self.rekey else frozenset())
        )

    def using(self, index: Index | None) -> SurveyTask:
        """Return the task that uses values stored in an index instead of payloads."""
        names = frozenset(() if index is None else index.exact)
        extract = self.extract and self.extract.using(names)
        return self._replace(selection=self.selection.using(names), extract=extract) if names else self


@dataclass(slots=True)
class Survey:
    """The result of surveying one input shard. It has ``total`` selected samples. Their rows
    (:func:`~wdscli.plan.table.row_type`, without ``shard``) and values are in ``blocks`` or ``stored``, unless they
    were already passed to ``take``.

    ``seen_names`` are the extract's names that some sample has, and ``shapes`` are the extract's lists of fields.
    ``stamp`` is the stamp of the input: None if the survey ended before it, and without a version if it was copied.
    ``copy`` is the path of the copy.
    ``dropped`` counts samples and ``ignored`` counts members, by reason. ``end`` is the number of samples read.
    ``members`` and ``payload_bytes`` are totals of all complete samples read, dropped samples included."""

    blocks: list[RowBlock] = field(default_factory=list)
    stored: StoredRows | None = None
    total: int = 0
    seen_names: SeenNames = field(default_factory=SeenNames)
    shapes: list[tuple[bytes, ...]] = field(default_factory=list)
    stamp: Stamp | None = None
    members: int = 0
    payload_bytes: int = 0
    copy: str = ""
    is_packed: bool = False
    end: int = 0
    ignored: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    """An error for each damaged part that was left out."""

    def taken(self) -> Iterator[RowBlock]:
        """Yield all rows with their values, and release them."""
        if self.stored is not None:
            yield from self.stored.taken()
        blocks, self.blocks = self.blocks, []
        yield from blocks


class SurveyedRows:
    """The rows of all input shards in one table, added shard by shard. With ``has_values``, also their values.
    ``folder`` is for scratch files; None means TMPDIR."""

    def __init__(self, folder: str | None = None, *, has_values: bool = False) -> None:
        self._rows = Growing(folder)
        self._values = GrowingValues(folder)
        self._has_values = has_values
        self.totals: list[int] = []
        """The number of samples of each shard so far."""

    def add(self, block: RowBlock) -> None:
        """Add some rows of the next shard. Raises OutputError."""
        block.rows["shard"] = len(self.totals)
        self._rows.append_rows(block.rows)
        if self._has_values:
            self._values.append(block.values)

    def take(self, shard_survey: Survey) -> None:
        """Add the remaining rows of the next shard. Raises OutputError."""
        for block in shard_survey.taken():
            self.add(block)
        self.totals.append(shard_survey.total)

    def table(self, last: Rows | None = None) -> PlanTable:
        """Return all rows, followed by the row ``last``. No row can be added afterwards."""
        if last is not None:
            self._rows.append_rows(last)
        return self._rows.table()

    def values(self) -> Values | None:
        """Return all values, or None without ``has_values``."""
        return self._values.values() if self._has_values else None


def survey_task(template: SurveyTask, number: int, scratch: Scratch | None, limits: Limits) -> SurveyTask:
    """Return the task of input ``number``, with paths for a copy and for rows that do not fit in memory. The task does
    not use an index that needs more memory than the limit. Raises UsageError if a copy is needed and there is no
    scratch space."""
    address = template.address
    if scratch is None:
        if is_read_once(address):
            raise refused(address)
        return template
    task = template._replace(spool=scratch.place(number), overflow=scratch.path_of(f"survey-{number}"))
    if limits.is_user_set and is_local(address):
        with suppress(OSError):
            size = os.stat(local_path(index_address(address))).st_size
            if size * MEMORY_PER_INDEX_BYTE > LEAST_TASK_BYTES + limits.task:
                return task._replace(use_index=False)
    return task


def survey_shards(
    tasks: Sequence[SurveyTask],
    states: Sequence[SelectionState],
    request: Request,
    limits: Limits,
    collected: SurveyedRows,
    progress: Progress,
) -> list[Survey]:
    """Survey each shard. ``collected`` gets all rows, in order. Shards after the last sample of ``--limit`` are not
    opened. ``states`` has one entry, or for a join one entry per set. Raises InputError, DataError, OutputError."""
    executor = _executor(tasks, request, limits)

    first = 0

    def survey_here(task: SurveyTask) -> Survey:
        nonlocal first
        if (state := states[task.of_set]).done:
            return Survey()
        shard_survey = survey(task._replace(input=task.input._replace(first=first)), state, collected.add)
        first += shard_survey.end
        return shard_survey

    surveys = []
    function, addresses = survey_here if executor is None else survey, [task.address for task in tasks]
    with executor or make_executor(1) as runs:
        for shard_survey in run_shard_tasks(runs, function, tasks, progress, "reading headers", addresses):
            collected.take(shard_survey)
            surveys.append(shard_survey)
    return surveys


def _executor(tasks: Sequence[SurveyTask], request: Request, limits: Limits) -> Executor | None:
    """Return the executor for surveys, or None if they run in this process."""
    # No worker can read inputs of this process.
    is_ours = any(is_ours_alone(task.address) or is_of_this_process(task.address) for task in tasks)
    if is_ours or not all(task.selection.is_trivial for task in tasks):
        return None
    if any(task.rekey is not None and task.rekey.counts_all for task in tasks):
        return None
    size = bytes_of(tasks)
    if size < WORTH_PROCESSES_BYTES and all(map(_has_index, tasks)):
        return None
    is_cheap = all(is_local(task.address) and not _has_index(task) for task in tasks)
    worth = MIN_SCANNED_BYTES if is_cheap else WORTH_PROCESSES_BYTES
    waits = not all(is_local(task.address) for task in tasks)
    workers = min(limits.jobs, useful_jobs(request.jobs, len(tasks), size, worth, waits=waits))
    return None if workers == 1 and request.engine is None else make_executor(workers, request.engine)


def bytes_of(tasks: Sequence[SurveyTask]) -> int:
    """Estimate the bytes to read: the sizes of inputs or, for local inputs, of their indexes."""
    total = 0
    for task in tasks:
        is_near = is_local(task.address)
        address = index_address(task.address) if is_near and _has_index(task) else task.address
        size = size_hint(address)
        if is_near:
            total += size or 0
        else:
            least = REMOTE_SHARD_BYTES if size is None else size
            total += least if task.is_wanted_whole else min(least, REMOTE_SHARD_BYTES)
    return total


def _has_index(task: SurveyTask) -> bool:
    """Return whether a survey reads only the index of a local shard. The answer is a guess until the shard is open."""
    is_asked = task.goes_by_index_alone and is_local(task.address)
    return is_asked and os.path.exists(local_path(index_address(task.address)))


def survey(task: SurveyTask, state: SelectionState | None = None, take: Keep | None = None) -> Survey:
    """Read one shard's headers or index. Rows are passed to ``take`` as soon as they are found. Without ``take``, they
    stay in the survey. Raises InputError, DataError."""
    result, ignored = Survey(), Counter[str]()
    state = state or task.selection.new_state(task.on_error)
    members, payload_bytes, state.end = state.members, state.payload_bytes, 0
    with checking(task.check):
        task, source, index = _at_any_place(task, result)
    keep = partial(_keep, task, result, take)
    with source:
        result.is_packed = source.stored is not source
        payloads = MemberReader(source, task.payload_fields, by_index=index is not None)
        if index is not None and _is_plain(task, index, result, keep):
            return result
        walk = _walk(task, payloads, state, result, ignored)
        if index is None and task.copies_plainly and task.extract is None and not state.done:
            walk = _keep_usual(task, walk, keep)
        _keep_chosen(task, walk, index and index_batches(index, ignored), result, keep)
        source.confirm()
    result.members, result.payload_bytes = (state.members - members, state.payload_bytes - payload_bytes)
    result.ignored, result.end, result.copy = ignored, state.end, task.input.copy
    return result


def _keep_usual(task: SurveyTask, walk: Walk, keep: Keep) -> Walk:
    """Keep the rows of usual samples, many at a time. Return the walk from the first unusual sample on."""
    tick, state = tick_of_task(), walk.state
    for offset, usual in walk_small(walk.payloads.source, task.form):
        if (rows := _rows_of_usual(usual, offset, state.end)) is None:
            break
        keep(RowBlock(rows, PackedValues.of([])))
        state.count_arrays(usual.arrays)
        tick(offset + usual.end - walk.begin[0])
        walk = walk._replace(begin=(offset + usual.end, state.end))
    return walk


def _keep_chosen(
    task: SurveyTask, walk: Walk, indexed: Iterable[SampleBatch] | None, survey: Survey, keep: Keep
) -> None:
    """Keep the rows and values of the selected samples of a walk. ``indexed`` are the samples of an index."""
    values: list[bytes] = []
    batches = _looked_into(task, walk, indexed, survey, values)
    reads_each = task.selection.new_fields or (task.rekey and task.rekey.values)
    at_once = 1 if reads_each else BATCHES_AT_ONCE
    while some_batches := list(islice(batches, at_once)):
        keep(RowBlock(rows_of_batches(task, some_batches, walk.payloads), PackedValues.of(values)))
        values.clear()


def _looked_into(
    task: SurveyTask,
    walk: Walk,
    indexed: Iterable[SampleBatch] | None,
    survey: Survey,
    values: list[bytes],
) -> Iterator[ChosenOf]:
    """Yield the batches with selected samples. Before, add the values of these samples to ``values``, and look for the
    user's names in them."""
    tick, position, payloads = tick_of_task(), walk.begin[0], walk.payloads
    extract, selection = task.extract, task.selection
    for batch, rows in walk.chosen(indexed, requested=payloads.fields):
        if batch.keys and not survey.is_packed and not task.input.copy:
            tick(batch.start(len(batch.keys) - 1) - position)
            position = batch.start(len(batch.keys) - 1)
        if extract is not None:
            values += extract.values(batch, rows, task.address, payloads)
            if extract.named:
                _look(extract.named, survey.seen_names, batch, rows, payloads)
        if selection.new_fields:
            _look(selection.new_names, walk.state.seen_names, batch, rows, payloads)
        yield batch, rows


def _look(
    named: Sequence[Named],
    seen_names: SeenNames,
    batch: SampleBatch,
    rows: Sequence[int],
    payloads: MemberReader,
) -> None:
    """Look for the user's names in a batch. Places in JSON are searched in stored values, or else in payloads."""
    from wdscli.selection.language import place_name

    in_payloads = []
    for name in named:
        stored = None if name.place is None or not batch.values else batch.values.get(place_name(name.place))
        if stored is None:
            in_payloads.append(name)
        elif name.place is not None and not stored.missing.all():
            seen_names.places.add(name.place)
    seen_names.look(in_payloads, batch, rows, payloads)


def _keep(task: SurveyTask, survey: Survey, take: Keep | None, block: RowBlock) -> None:
    """Pass rows to ``take``, keep them, or store them in a file if they are too many."""
    survey.total += len(block.rows)
    survey.shapes = [] if task.extract is None else task.extract.shapes
    if take is not None:
        take(block)
        return
    survey.blocks.append(block)
    if task.overflow is not None and sum(len(held.rows) for held in survey.blocks) > HELD_ROWS:
        survey.stored = survey.stored or StoredRows(task.overflow)
        for held in survey.blocks:
            survey.stored.append(held)
        survey.blocks = []


def _is_plain(task: SurveyTask, index: Index, survey: Survey, keep: Keep) -> bool:
    """Try to make all rows and values from the index alone. Return whether this was possible."""
    if (rows := plain_rows(task, index)) is None:
        return False
    values = PackedValues.of([]) if task.extract is None else task.extract.values_of_index(index)
    if values is None:
        return False
    survey.ignored, survey.end, survey.members = index.ignored, index.samples, index.members
    survey.payload_bytes = int(index.member_sizes.sum())
    keep(RowBlock(rows, values))
    return True


def _at_any_place(task: SurveyTask, survey: Survey) -> tuple[SurveyTask, Source, Index | None]:
    """Open the input, or a copy of it, so that any place can be read. Return the task with the opened input, the
    source, and the index to use. A remote input is also copied if this survey reads all of it, and a later step reads
    samples again."""
    room, source, stored = task.room, None, None
    if task.listed is not None and task.goes_by_index_alone and not room.takes_all(task.listed[0]):
        # The index belongs to the version of the shard in the listing, so the index is enough.
        source, stored = open_by_index(task.address, task.listed)
    is_known = source is not None
    if source is None:
        source = open_source(task.address, whole=True) if task.is_wanted_whole else task.input.open()
    try:
        survey.stamp = Stamp(source.size or 0, source.version, source.is_pinned)
        if not is_known and source.fd is None and room.holds(source.size, like_all=True):
            task = task._replace(use_index=False)
        index = None
        if task.goes_by_index:
            index = find_index(task.address, source, survey.warnings.append, form=task.form, stored=stored)
        with_values = task.using(index)
        # If the selection lists keys, few payloads are read.
        names_keys = task.selection.key_rule is not None and task.selection.key_rule.is_narrow
        asks_far = source.fd is None and bool(with_values.payload_fields) and not names_keys
        task, index = (task, None) if asks_far else (with_values, index)
        if source.seekable and (index is not None or source.fd is not None):
            return task, source, index
        # Copy a remote shard if most of it is needed, or if its headers are close together.
        is_kept = room.holds(source.size) and (room.takes_most or is_dense(source))
        if source.seekable and not is_kept:
            return task, source, index
    except BaseException:
        source.close()
        raise
    with source:
        if not task.spool:
            raise refused(task.address)
        spool(source, task.spool, cut=_warner(survey) if task.on_error == "skip" else None)
        source.confirm()
        version, is_pinned = source.version, source.is_pinned
    task = task._replace(input=Input(task.address, task.spool, first=task.input.first))
    source = task.input.open()
    survey.stamp = Stamp(source.size or 0, version, is_pinned)
    return task, source, None


def _warner(survey: Survey) -> Callable[[DataError], None]:
    return lambda error: survey.damage.append(str(error))


def _walk(
    task: SurveyTask, payloads: MemberReader, state: SelectionState, survey: Survey, ignored: Counter[str]
) -> Walk:
    """Return the walk through the shard of a task."""
    salvage = (
        Salvage(_warner(survey), survey.dropped, task.listed_samples) if task.on_error == "skip" else None
    )
    return Walk(task.selection, state, payloads, task.form, ignored, salvage, checks_names=True)


def rows_of_batches(task: SurveyTask, batches: Sequence[ChosenOf], reader: MemberReader) -> Rows:
    """Return the rows of the selected samples of some batches, in order. ``reader`` reads those of the last batch."""
    fields: list[bytes] = []
    starts, offsets, sizes, counts, marks, keys, places, chosen = (list[Any]() for _ in range(8))
    for batch, batch_rows in batches:
        chosen += [len(places) + row for row in batch_rows]
        keys += map(batch.keys.__getitem__, batch_rows)
        places += range(batch.index, batch.index + len(batch.keys))
        marks += batch.marks
        counts += map(int.__sub__, batch.firsts[1:], batch.firsts)
        members = slice(batch.firsts[0], batch.firsts[-1])
        fields += batch.fields[members]
        starts += batch.starts[members]
        offsets += batch.offsets[members]
        sizes += batch.sizes[members]
    members_of: I64 = numpy.array(counts, dtype=numpy.int64)
    ends = numpy.cumsum(members_of)
    firsts, lasts = ends - members_of, ends - 1
    payloads = numpy.array(sizes, dtype=numpy.int64)
    begins = numpy.array(starts, dtype=numpy.int64)[firsts]
    lengths = (numpy.array(offsets, dtype=numpy.int64)[lasts] + payloads[lasts] + 511 & -512) - begins
    rows: Rows = numpy.zeros(len(places), dtype=row_type())
    rows["place"], rows["members"] = places, members_of
    rows["start"], rows["length"], rows["out"] = begins, lengths, lengths
    rows["headers"] = headers_of(hashes_of(fields), payloads.view(numpy.uint64), members_of)
    if any(marks):
        # Members without canonical headers get new headers of one block.
        blocks = BLOCK + (payloads + 511 & -512)
        rows["mark"] = marks
        rows["out"] = numpy.where(rows["mark"] == 0, lengths, numpy.add.reduceat(blocks, firsts))
    if len(chosen) < len(rows):
        rows = rows[chosen]
    rows["key"] = array("Q", map(hash_key, keys))
    first_row = 0
    for batch, batch_rows in batches:
        if task.rekey is not None or task.selection.changes_members or not _are_usual(batch):
            _look_closer(task, batch, batch_rows, rows[first_row : first_row + len(batch_rows)], reader)
        first_row += len(batch_rows)
    return rows


def _are_usual(batch: SampleBatch) -> bool:
    """Return whether each member of a batch will have a canonical header of one block, and each canonical member
    already has one."""
    if not any(batch.marks):
        return True
    longest = max(map(len, batch.keys)) + 1 + max(map(len, batch.fields))
    is_short = longest <= NAME_BYTES and max(batch.sizes) < ONE_BLOCK_SIZE
    return is_short and not set(batch.marks) - {0, FOREIGN}


def _look_closer(
    task: SurveyTask, batch: SampleBatch, chosen: Sequence[int], rows: Rows, payloads: MemberReader
) -> None:
    """Correct the rows of some samples of a batch, one by one. New keys, members and lengths may differ."""
    stem = shard_stem(task.address)
    lengths, members, keys = [], [], []
    # Stored values are numbers; the copier evaluates payloads.
    batch = batch._replace(values={})
    for row in chosen:
        key, sample = batch.keys[row], SampleAt(batch, row, task.address, payloads)
        if task.rekey is not None:
            key = task.rekey.key(
                key, stem, batch.index + row, task.input.first, sample if task.rekey.values else None
            )
            keys.append(hash_key(key))
        sizes = out_sizes(sample, task.selection, key)
        lengths.append(out_length(sizes, task.form))
        members.append(len(sizes))
    rows["out"], rows["members"] = lengths, members
    if task.rekey is not None:
        rows["key"] = keys
        rows["mark"] |= RENAMED


def plain_rows(task: SurveyTask, index: Index) -> Rows | None:
    """Return the rows of an index if all its samples are copied unchanged. Return None if a selection, a new key, a
    mark or a name makes it necessary to check single samples."""
    if not task.copies_plainly or index.marks.any():
        return None
    lengths = steps(index.key_ends)
    if joined_may_be_unsafe(index.keys, lengths, index.fields):
        return None
    starts, places, sizes = (
        index.starts.view("i8"),
        index.member_offsets.view("i8"),
        index.member_sizes.view("i8"),
    )
    samples = index.keys, lengths, starts, index.lengths.view("i8"), steps(index.member_ends)
    return rows_of_arrays(SampleArrays(*samples, index.fields, index.member_fields, places, sizes))


def _rows_of_usual(usual: PackedSamples, shift: int, first_place: int) -> Rows | None:
    """Return the rows of samples in a buffer that begins at byte ``shift``. Return None if a name may be unsafe."""
    stored = usual.stored()
    if joined_may_be_unsafe(stored.keys, stored.key_lengths, stored.fields):
        return None
    rows = rows_of_arrays(stored)
    rows["start"] += numpy.uint64(shift)
    rows["place"] += first_place
    rows["out"] = usual.arrays.lengths
    rows["mark"] = numpy.where(usual.is_foreign(), FOREIGN, 0)
    return rows


def out_sizes(sample: SampleAt, selection: Selection, key: bytes) -> list[tuple[bytes, int]]:
    """Return the name and the payload size of each member that one sample will have in the output."""
    batch, row, shard, _ = sample
    first, plan = batch.firsts[row], selection.plan_of(batch, row, shard)
    sizes = [(field, batch.sizes[first + place]) for place, field in plan]
    if new := selection.new_payloads(sample):
        sizes = list((dict(sizes) | {field: len(payload) for field, payload in new.items()}).items())
    return [(key + b"." + field, size) for field, size in sizes]


def out_length(sizes: list[tuple[bytes, int]], form: Form) -> int:
    """Return the bytes of members with these names and sizes, headers and padding included."""
    length = 0
    for name, size in sizes:
        simple = len(name) <= NAME_BYTES and size < ONE_BLOCK_SIZE
        length += (BLOCK if simple else len(build_header(name, size, form))) + padded(size)
    return length


def samples_at(task: SurveyTask, places: Sequence[int]) -> Iterator[SampleAt]:
    """Yield some samples of a shard. The payloads of each can be read until the next. ``places`` must rise."""
    wanted = iter(places)
    place = next(wanted, None)
    with task.input.open() as source:
        index = find_index(task.address, source, form=task.form) if task.goes_by_index else None
        selection, payloads = Selection(), MemberReader(source, frozenset(), by_index=index is not None)
        walk = _walk(
            task._replace(selection=selection), payloads, selection.new_state(), Survey(), Counter[str]()
        )
        for batch, _ in walk.chosen(None if index is None else index_batches(index)):
            while place is not None and place < batch.index + len(batch.keys):
                yield SampleAt(batch, place - batch.index, task.address, payloads)
                place = next(wanted, None)
            if place is None:
                return
