"""What a plan needs to know of one input shard: where its selected samples lie and how long each will be.

What it is: a task, :func:`survey`, that reads headers (or the index) of one shard and gives one packed row a sample.
How: keys are not kept, only their XXH3-64, from which repeated keys are found over all shards and the few candidates
compared by name (:func:`samples_at`). What else an order wants to know of a sample, an :class:`Extract` takes from it
here, where its bytes are at hand. It must not know orders, cuts or outputs.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from xxhash import xxh3_64_intdigest

from wdscli.errors import DataError
from wdscli.plan.headers import headers_of_batches
from wdscli.plan.indexed import plain_rows
from wdscli.plan.overflow import Overflow, StoredRows
from wdscli.plan.rekey import Rekey, shard_stem
from wdscli.plan.scratch import Input, refused, spool
from wdscli.plan.table import GrowingTable, PlanTable, row_type
from wdscli.plan.unsafe import check_names, keep_safe
from wdscli.plan.values import GrowingValues, Packed, Values
from wdscli.samples import Ignored, SampleBatch, iter_batches
from wdscli.samples.salvage import salvaged_batches
from wdscli.selection import Selection, SelectionState
from wdscli.selection.choice import OnError
from wdscli.selection.named import Named, Sightings
from wdscli.selection.reading import Payloads, iter_selected
from wdscli.shards.find import batches, index_batches, index_for
from wdscli.storage import Source
from wdscli.tar import Form, build_header, padded
from wdscli.tar.header import BLOCK

if TYPE_CHECKING:
    from wdscli.plan.table import Rows
    from wdscli.shards.index import Index

RENAMED = 0b1000000
"""Mark of a sample that gets a new key."""

hash_key = xxh3_64_intdigest
"""What a survey keeps of a key."""


class PayloadOf(Protocol):
    """The payloads of a batch."""

    def __call__(self, row: int, field: bytes) -> bytes:
        """One that is small enough to be held whole."""

    def pieces(self, row: int, field: bytes) -> Iterator[bytes]:
        """One of any size."""


class Extract(Protocol):
    """What an order wants to know of each sample beyond its place. Picklable: surveys run in other processes."""

    @property
    def payload_fields(self) -> frozenset[bytes]:
        """The fields (as the inputs name them) whose payloads :meth:`values` may ask for."""

    @property
    def named(self) -> Sequence[Named]:
        """What a user named by it, which some sample must have."""

    def values(
        self, batch: SampleBatch, rows: Sequence[int], shard: str, payload_of: PayloadOf
    ) -> list[bytes]:
        """One value a row of ``batch``. ``shard`` is the input's address; ``payload_of(row, field)`` gives a payload of
        the batch. Raises DataError that names shard, byte and member."""


@runtime_checkable
class FromIndex(Protocol):
    """An extract that may need no more than a shard's index."""

    def values_of_index(self, index: Index) -> Packed | None:
        """The values of all samples of an index, about none of which anything is special; None to be asked batch by
        batch."""


class SurveyTask(NamedTuple):
    """One input shard and what is wanted of it. ``rekey`` gives all samples new keys; ``spool`` is where an input that
    can be read only once is copied to; ``extract`` takes a value of each selected sample."""

    input: Input
    form: Form
    selection: Selection
    rekey: Rekey | None = None
    use_index: bool = True
    on_error: OnError = "stop"
    spool: str = ""
    extract: Extract | None = None
    overflow: str | None = None
    """A path of this machine for rows that are too many to be held; None to hold all."""
    known: int = -1
    """How many samples a manifest says that the shard has; -1 when none does, or nobody needs to know."""

    @property
    def address(self) -> str:
        """The shard as the user named it."""
        return self.input.address


class Survey:
    """What one input shard holds. ``rows`` are its ``total`` selected samples (:func:`~wdscli.plan.table.row_type`;
    ``shard`` is not set), ``values`` what an :class:`Extract` took of each, None without one; they may be ``stored``
    instead. ``sightings`` is what was seen of the names that the extract has. ``copy`` is the path of the shard's copy,
    if it had to be copied. ``dropped`` counts samples, ``ignored`` members, by reason. ``version`` is that of the
    input, empty for one that was copied. ``members`` and ``payload_bytes`` are those of all samples that were read, the
    dropped ones too, if these were whole."""

    __slots__ = (
        "copy",
        "dropped",
        "ignored",
        "members",
        "payload_bytes",
        "rows",
        "sightings",
        "size_bytes",
        "stored",
        "total",
        "values",
        "version",
        "warnings",
    )

    def __init__(self) -> None:
        import numpy

        self.rows: Rows = numpy.empty(0, dtype=row_type())
        self.values: Packed | None = None
        self.sightings = Sightings()
        self.stored: StoredRows | None = None
        self.total = 0
        self.size_bytes = 0
        self.members = 0
        self.payload_bytes = 0
        self.version = ""
        self.ignored: dict[str, int] = {}
        self.dropped: dict[str, int] = {}
        self.warnings: list[str] = []
        self.copy = ""

    def taken(self) -> Iterator[tuple[Rows, Packed | None]]:
        """All rows with their values, in one array or several; the survey has them no longer."""
        if self.stored is not None:
            yield from self.stored.blocks()
            return
        rows, self.rows = self.rows, self.rows[:0].copy()
        values, self.values = self.values, None
        yield rows, values


class Collected:
    """The rows of all input shards in one table, taken survey by survey as they come; with ``has_values`` their values
    too. ``folder`` is where scratch files lie, None for TMPDIR."""

    def __init__(self, folder: str | None = None, *, has_values: bool = False) -> None:
        self._rows = GrowingTable(folder)
        self._values = GrowingValues(folder)
        self._has_values = has_values
        self.totals: list[int] = []
        """Samples of each shard so far."""

    def take(self, found: Survey) -> None:
        """The rows of the next shard. Raises OutputError."""
        self.totals.append(found.total)
        for rows, values in found.taken():
            rows["shard"] = len(self.totals) - 1
            self._rows.append(rows)
            if values is not None:
                self._values.append(values)

    def table(self, last: Rows | None = None) -> PlanTable:
        """All rows, and behind them ``last``; none is taken any more."""
        if last is not None:
            self._rows.append(last)
        return self._rows.table()

    def values(self) -> Values | None:
        """All values, None where nobody wants them."""
        return self._values.values() if self._has_values else None


_TOGETHER = 16
"""How many batches' headers are hashed at once."""


class _Columns:
    """Rows while they are found: Python's own arrays, which grow cheaply."""

    def __init__(self) -> None:
        self.places = array("I")
        self.starts = array("Q")
        self.lengths = array("Q")
        self.out_lengths = array("Q")
        self.members = array("I")
        self.marks = bytearray()
        self.keys = array("Q")
        self._headers = array("I")
        self._batches: list[tuple[SampleBatch, Sequence[int] | None]] = []

    def add(self, batch: SampleBatch, row: int, length: int, members: int, mark: int, key: int) -> None:
        """One sample of a batch: the bytes and members it will have, its mark and the hash of its (new) key."""
        start = batch.start(row)
        self.places.append(batch.index + row)
        self.starts.append(start)
        self.lengths.append(batch.end(row) - start)
        self.out_lengths.append(length)
        self.members.append(members)
        self.marks.append(mark)
        self.keys.append(key)

    def note(self, batch: SampleBatch, rows: Sequence[int] | None) -> None:
        """Take the headers of some samples of a batch, None for all, in the order in which they are added."""
        self._batches.append((batch, rows))
        if len(self._batches) >= _TOGETHER:
            self._settle()

    def _settle(self) -> None:
        """The headers of several batches at once: arrays pay for themselves only where they are long."""
        batches, self._batches = self._batches, []
        self._headers.frombytes(headers_of_batches(batches).tobytes())

    def rows(self) -> Rows:
        import numpy

        rows: Rows = numpy.zeros(len(self.places), dtype=row_type())
        rows["place"], rows["start"], rows["length"] = self.places, self.starts, self.lengths
        rows["out"], rows["members"], rows["key"] = self.out_lengths, self.members, self.keys
        rows["mark"] = numpy.frombuffer(self.marks, dtype=numpy.uint8)
        self._settle()
        rows["headers"] = self._headers
        return rows


def survey(task: SurveyTask, state: SelectionState | None = None) -> Survey:
    """Read one shard's headers. Raises InputError, DataError."""
    found, columns, ignored = Survey(), _Columns(), Ignored()
    state = state or task.selection.new_state(task.on_error)
    members, payload_bytes = state.members, state.payload_bytes
    task = _at_any_place(task, found.warnings)
    extract = task.extract
    values: list[bytes] = []
    with task.input.open() as source, Overflow(task.overflow) as overflow:
        found.size_bytes = source.size or 0
        found.version = "" if task.input.copy else source.version
        payloads = _payloads(task, source)
        index = _index_for(task, source, payloads, found)
        payloads.by_index = index is not None
        if index is not None and _is_plain(task, index, found, overflow):
            return found
        for batch, rows in _selected(task, source, state, ignored, found, payloads, index):
            _add(columns, task, batch, rows)
            if extract is not None:
                payloads.batch = batch
                chosen = range(len(batch.keys)) if rows is None else rows
                values += extract.values(batch, chosen, task.address, payloads)
                if extract.named:
                    found.sightings.look(extract.named, batch, chosen, payloads)
            if overflow.is_due(len(columns.places)):
                overflow.write(columns.rows(), _packed(values))
                columns, values = _Columns(), []
        _hold(found, overflow, columns.rows(), _packed(values))
        source.confirm()
    found.members, found.payload_bytes = state.members - members, state.payload_bytes - payload_bytes
    found.ignored = ignored.counts
    found.copy = task.input.copy
    return found


def _is_plain(task: SurveyTask, index: Index, found: Survey, overflow: Overflow) -> bool:
    """Whether the index alone tells all that is wanted; then ``found`` has it."""
    extract = task.extract
    if not (extract is None or isinstance(extract, FromIndex)):
        return False
    rows = plain_rows(task, index, hash_key)
    if rows is None:
        return False
    values = None
    if extract is not None and (values := extract.values_of_index(index)) is None:
        return False
    found.ignored = index.ignored
    found.members, found.payload_bytes = index.members, int(index.member_sizes.sum())
    _hold(found, overflow, rows, values if values is not None and values.lengths else None)
    return True


def _hold(found: Survey, overflow: Overflow, rows: Rows, values: Packed | None) -> None:
    """The last rows, together with those that were written already."""
    if overflow.total or overflow.is_due(len(rows)):
        overflow.write(rows, values)
        found.stored = overflow.stored()
    else:
        found.rows, found.values = rows, values
    found.total = overflow.total or len(rows)


def _packed(values: list[bytes]) -> Packed | None:
    return Packed.of(values) if values else None


def _payloads(task: SurveyTask, source: Source) -> Payloads:
    """Where the selection and the extract get payloads from."""
    wanted = task.selection.payload_fields
    if task.extract is not None:
        wanted |= task.extract.payload_fields
    return Payloads(source, wanted)


def _at_any_place(task: SurveyTask, warnings: list[str]) -> SurveyTask:
    """The task with an input that can be read at any place: the one it has, or a copy."""
    with task.input.open() as source:
        if source.seekable:
            return task
        if not task.spool:
            raise refused(task.address)
        spool(source, task.spool, cut=_warner(warnings) if task.on_error == "skip" else None)
    return task._replace(input=Input(task.address, task.spool))


def _index_for(task: SurveyTask, source: Source, payloads: Payloads, found: Survey) -> Index | None:
    """The index to go by, if there is one and it says enough."""
    if task.on_error == "skip" or not task.use_index or task.input.copy:
        return None
    if payloads.fields and source.fd is None:
        return None
    return index_for(task.address, source, task.form, found.warnings.append)


def _selected(
    task: SurveyTask,
    source: Source,
    state: SelectionState,
    ignored: Ignored,
    found: Survey,
    payloads: Payloads,
    index: Index | None,
) -> Iterator[tuple[SampleBatch, Sequence[int] | None]]:
    """Batches with the rows that are selected, None for all. ``payloads`` knows those of the batch."""
    form, selection = task.form, task.selection
    if task.on_error == "skip":
        sound = salvaged_batches(
            source, _warner(found.warnings), found.dropped, form=form, ignored=ignored, known=task.known
        )
        safe = keep_safe(sound, found.dropped)
        yield from iter_selected(source, selection, state, form=form, batches=safe, payloads=payloads)
        return
    if payloads.fields and source.fd is None:
        # A request for each payload would cost more than reading all that lies between them.
        yield from iter_selected(source, selection, state, form=form, ignored=ignored, payloads=payloads)
        return
    if index is None:
        known = iter_batches(source, form=form, ignored=ignored)
    else:
        known = index_batches(index, ignored)
    if payloads.fields:
        yield from iter_selected(source, selection, state, form=form, batches=known, payloads=payloads)
        return
    trivial = selection.is_trivial
    for batch in known:
        if trivial:
            state.count(batch, len(batch.keys))
        yield batch, None if trivial else selection.apply(batch, source.name, state)
        if state.done:
            return


def _add(columns: _Columns, task: SurveyTask, batch: SampleBatch, rows: Sequence[int] | None) -> None:
    """Add one batch."""
    check_names(batch, task.address)
    everything = rows is None or len(rows) == len(batch.keys)
    if len(batch.keys):
        columns.note(batch, None if everything else rows)
    if everything and task.rekey is None and not task.selection.changes_members and not any(batch.marks):
        _add_plain(columns, batch)
        return
    chosen = range(len(batch.keys)) if rows is None else rows
    stem = shard_stem(task.address)
    for row in chosen:
        key = batch.keys[row]
        new = key if task.rekey is None else task.rekey.key(key, stem, batch.index + row)
        sizes = out_sizes(batch, row, task.selection, task.address, new)
        mark = batch.marks[row] | (RENAMED if task.rekey is not None else 0)
        columns.add(batch, row, out_length(sizes, task.form), len(sizes), mark, hash_key(new))


def _add_plain(columns: _Columns, batch: SampleBatch) -> None:
    """All samples of a canonical batch, as they stand."""
    firsts, offsets, sizes = batch.firsts, batch.offsets, batch.sizes
    starts = [batch.starts[first] for first in firsts[:-1]]
    lengths = [
        (offsets[last - 1] + sizes[last - 1] + 511 & -512) - start
        for last, start in zip(firsts[1:], starts, strict=True)
    ]
    columns.places.extend(range(batch.index, batch.index + len(starts)))
    columns.starts.extend(starts)
    columns.lengths.extend(lengths)
    columns.out_lengths.extend(lengths)
    columns.members.extend([end - first for first, end in pairwise(firsts)])
    columns.marks.extend(bytes(len(starts)))
    columns.keys.extend(map(hash_key, batch.keys))


def _warner(warnings: list[str]) -> Callable[[DataError], None]:
    return lambda error: warnings.append(str(error))


def out_sizes(
    batch: SampleBatch, row: int, selection: Selection, shard: str, key: bytes
) -> list[tuple[bytes, int]]:
    """Name and payload bytes of the members that one sample will have."""
    first = batch.firsts[row]
    return [
        (key + b"." + field, batch.sizes[first + at]) for at, field in selection.plan_of(batch, row, shard)
    ]


def out_length(sizes: list[tuple[bytes, int]], form: Form) -> int:
    """Bytes that members of these names and sizes take, headers and padding included."""
    length = 0
    for name, size in sizes:
        simple = len(name) <= 100 and size < 1 << 33
        length += (BLOCK if simple else len(build_header(name, size, form))) + padded(size)
    return length


def samples_at(task: SurveyTask, places: Sequence[int]) -> Iterator[tuple[SampleBatch, int]]:
    """Some samples of a shard, by their places in rising order, each as a batch and a row of it."""
    wanted = iter(places)
    place = next(wanted, None)
    with task.input.open() as source:
        for batch in _all(task, source):
            while place is not None and place < batch.index + len(batch.keys):
                yield batch, place - batch.index
                place = next(wanted, None)
            if place is None:
                return


def _all(task: SurveyTask, source: Source) -> Iterator[SampleBatch]:
    """All samples of a shard, as :func:`survey` saw them."""
    if task.on_error == "skip":
        return keep_safe(salvaged_batches(source, lambda _: None, {}, form=task.form), {})
    use_index = task.use_index and not task.input.copy
    return batches(task.address, source, form=task.form, use_index=use_index)
