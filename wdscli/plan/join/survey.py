"""What a join must know of the samples of one set: their rows, their fields, and the bytes of each member.

What it is: :func:`survey_sets`, and :class:`CollectedSets`, which makes one :class:`SetSurvey` of each set. How: a
survey like that of every other command, which takes down two things more while it sees the names: the number of the
sample's *shape* (its list of fields; few shapes make up a set), and, where a field may have to give way, the blocks
that each member takes. These are arrays: four bytes a sample, eight a member; like rows they go to scratch files when
they are more than a survey holds.

It must not know how samples are matched.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from wdscli.errors import DataError, OutputError
from wdscli.executors import make_executor
from wdscli.model import to_text
from wdscli.plan.join.layout import Shape, suffixed
from wdscli.plan.join.parts import NOBODY
from wdscli.plan.overflow import HELD_ROWS
from wdscli.plan.scratch import HINT, is_ours_alone
from wdscli.plan.survey import Collected, PayloadOf, Survey, SurveyTask, out_length, survey
from wdscli.plan.surveying import of_each
from wdscli.plan.table import Growing, PlanTable, moved_up, row_type
from wdscli.plan.values import Packed
from wdscli.progress import Progress
from wdscli.samples import SampleBatch
from wdscli.selection import Selection, SelectionState
from wdscli.storage.local import reason
from wdscli.tar import Form
from wdscli.tar.header import BLOCK

if TYPE_CHECKING:
    from wdscli.plan.table import I64, U32, Rows
    from wdscli.shards.index import Index


WORDS_PER_BLOCK = 1 << 18
LARGEST = 1 << 40
"""Bytes of a payload whose blocks are sure to be counted in 32 bits."""


class Lengths(NamedTuple):
    """The blocks of 512 bytes that members take, header included: as they are named, and with the name that a suffix
    gives. Those of a sample begin at ``firsts[row]``."""

    plain: U32
    renamed: U32
    firsts: I64

    def blocks(self, rows: I64, member: int, is_renamed: bool) -> I64:
        """Those of one member of some samples."""
        import numpy

        column = self.renamed if is_renamed else self.plain
        blocks: I64 = column[self.firsts[rows] + member].astype(numpy.int64)
        return blocks


class SetSurvey(NamedTuple):
    """One set. ``first`` is the row of the plan's table at which ``samples`` begins. ``shape_of`` numbers the shape of
    each sample in ``shapes``; ``lengths`` is None where nobody needs it."""

    first: int
    samples: PlanTable
    shapes: list[Shape]
    shape_of: U32
    lengths: Lengths | None

    def without(self, gone: I64) -> SetSurvey:
        """All samples but these rows, which rise; this survey is of no use any more."""
        lengths = self.lengths
        if lengths is not None:
            lengths = lengths._replace(firsts=moved_up(lengths.firsts, gone))
        return self._replace(
            samples=self.samples.without(gone), shape_of=moved_up(self.shape_of, gone), lengths=lengths
        )


class JoinSurveyTask(NamedTuple):
    """One input shard. ``number`` is its set's (from 0), by which members are renamed; ``with_lengths`` wants the
    blocks of each member."""

    task: SurveyTask
    number: int
    with_lengths: bool


class Words(NamedTuple):
    """Numbers of 32 bits on their way: in memory, or ``stored`` so many in the file at ``path``."""

    held: array[int]
    path: str = ""
    stored: int = 0

    def taken(self) -> Iterator[U32]:
        """All of them, some at a time. Removes the file. Raises OutputError."""
        import numpy

        if not self.path:
            yield numpy.frombuffer(self.held, dtype=numpy.uint32)
            return
        try:
            with open(self.path, "rb") as file:
                for first in range(0, self.stored, WORDS_PER_BLOCK):
                    count = min(WORDS_PER_BLOCK, self.stored - first)
                    yield numpy.fromfile(file, dtype=numpy.uint32, count=count)
            os.unlink(self.path)
        except OSError as error:
            raise OutputError(f"cannot read {self.path}: {reason(error)}", hint=HINT) from error


class Taken(NamedTuple):
    """What is sent back of one shard: its survey, the shapes it has, and in the order of its samples the number of each
    one's shape, and the blocks of each member."""

    survey: Survey
    shapes: list[Shape]
    shape_of: Words
    plain: Words
    renamed: Words


class _Notes:
    """Numbers while they are found. With ``path`` they go to a file when they are told to."""

    def __init__(self, path: str | None) -> None:
        self.held = array("I")
        self._path = path
        self._written = 0

    def let_go(self) -> None:
        """Write them down. Raises OutputError."""
        assert self._path is not None
        try:
            with suppress(FileExistsError):
                os.mkdir(os.path.dirname(self._path), 0o700)
            with open(self._path, "ab" if self._written else "wb") as file:
                self.held.tofile(file)
        except OSError as error:
            raise OutputError(f"cannot write {self._path}: {reason(error)}", hint=HINT) from error
        self._written += len(self.held)
        self.held = array("I")

    def words(self) -> Words:
        """All of them."""
        if not self._written:
            return Words(self.held)
        self.let_go()
        assert self._path is not None
        return Words(array("I"), self._path, self._written)


class _Recorder:
    """An extract that takes down shapes and lengths."""

    payload_fields: frozenset[bytes] = frozenset()
    named = ()

    def __init__(
        self, selection: Selection, form: Form, number: int, with_lengths: bool, overflow: str | None = None
    ) -> None:
        self._selection = selection
        self._overflow = overflow
        self._form = form
        self._number = number
        self._with_lengths = with_lengths
        self._numbers: dict[Shape, int] = {}
        paths = [
            None if overflow is None else f"{overflow}.{name}" for name in ("shapes", "plain", "renamed")
        ]
        self.shape_of, self.plain, self.renamed = map(_Notes, paths)

    @property
    def shapes(self) -> list[Shape]:
        return list(self._numbers)

    def values(
        self, batch: SampleBatch, rows: Sequence[int], shard: str, payload_of: PayloadOf
    ) -> list[bytes]:
        """Takes its notes; nobody wants the values."""
        self._take(batch, rows, shard)
        self._note()
        return []

    def values_of_index(self, index: Index) -> Packed | None:
        """Takes its notes of all samples of an index that have the same fields in the same order."""
        import numpy

        count, total = index.samples, index.members
        if self._selection.changes_members or not count or total % count:
            return None
        width = total // count
        ids = index.member_fields[:width]
        ends = numpy.arange(width, total + 1, width)
        if (index.member_ends != ends).any() or (index.member_fields.reshape(-1, width) != ids).any():
            return None
        shape = tuple(index.fields[number] for number in ids.tolist())
        if self._with_lengths:
            longest = int(numpy.diff(index.key_ends, prepend=numpy.uint64(0)).max())
            if not self._is_short(longest, int(index.member_sizes.max()), shape):
                return None
            blocks = ((index.member_sizes + numpy.uint64(1023)) >> numpy.uint64(9)).astype(numpy.uint32)
            self.plain.held.frombytes(blocks.tobytes())
            self.renamed.held.frombytes(blocks.tobytes())
        number = self._numbers.setdefault(shape, len(self._numbers))
        self.shape_of.held.frombytes(numpy.full(count, number, dtype=numpy.uint32).tobytes())
        self._note()
        return Packed.of([])

    def _is_short(self, key: int, size: int, shape: Shape) -> bool:
        """Whether members of keys and payloads of at most so many bytes have one block of header by any name."""
        longest = key + 1 + max(len(suffixed(field, self._number)) for field in shape)
        return longest <= 100 and size < 1 << 33

    def _note(self) -> None:
        """Write down what is too much to be held."""
        if self._overflow is not None and len(self.shape_of.held) > HELD_ROWS:
            for notes in (self.shape_of, self.plain, self.renamed):
                notes.let_go()

    def _take(self, batch: SampleBatch, rows: Sequence[int], shard: str) -> None:
        if not self._selection.changes_members and len(rows) == len(batch.keys) and self._take_alike(batch):
            return
        numbers = self._numbers
        for row in rows:
            plan = None
            shape: Shape = tuple(batch.fields[batch.firsts[row] : batch.firsts[row + 1]])
            if self._selection.changes_members or self._with_lengths:
                plan = self._selection.plan_of(batch, row, shard)
                shape = tuple(field for _, field in plan)
            self.shape_of.held.append(numbers.setdefault(shape, len(numbers)))
            if plan is not None and self._with_lengths:
                self._add_lengths(batch, row, plan, shard)

    def _take_alike(self, batch: SampleBatch) -> bool:
        """Samples that all have the same fields, together; whether they are such. Most batches are."""
        count, total = len(batch.keys), len(batch.fields)
        if not count or total % count:
            return False
        width = total // count
        shape = tuple(batch.fields[:width])
        if batch.fields != list(shape) * count or batch.firsts != list(range(0, total + 1, width)):
            return False
        if self._with_lengths:
            if not self._is_short(max(map(len, batch.keys)), max(batch.sizes), shape):
                return False
            blocks = [(size + 1023) >> 9 for size in batch.sizes]
            self.plain.held.extend(blocks)
            self.renamed.held.extend(blocks)
        self.shape_of.held.extend([self._numbers.setdefault(shape, len(self._numbers))] * count)
        return True

    def _add_lengths(
        self, batch: SampleBatch, row: int, plan: tuple[tuple[int, bytes], ...], shard: str
    ) -> None:
        first, prefix = batch.firsts[row], batch.keys[row] + b"."
        for at, field in plan:
            size = batch.sizes[first + at]
            new = suffixed(field, self._number)
            if size > LARGEST:
                raise DataError(
                    f"a payload of {size} bytes is too large for --on-conflict",
                    code="too-large",
                    shard=shard,
                    offset=batch.starts[first + at],
                    member=to_text(prefix + batch.fields[first + at]),
                )
            length = out_length([(prefix + field, size)], self._form) // BLOCK
            self.plain.held.append(length)
            if len(prefix) + len(new) > 100:
                length = out_length([(prefix + new, size)], self._form) // BLOCK
            self.renamed.held.append(length)


def survey_shard(task: JoinSurveyTask, state: SelectionState | None = None) -> Taken:
    """Read one shard's headers. Raises InputError, DataError."""
    plain = task.task
    recorder = _Recorder(plain.selection, plain.form, task.number, task.with_lengths, plain.overflow)
    found = survey(plain._replace(extract=recorder), state)
    notes = (recorder.shape_of, recorder.plain, recorder.renamed)
    return Taken(found, recorder.shapes, *(one.words() for one in notes))


def survey_sets(
    sets: Sequence[Sequence[JoinSurveyTask]],
    states: Sequence[SelectionState],
    jobs: int,
    engine: str | None,
    progress: Progress,
    take: Callable[[int, Taken], None],
) -> list[Survey]:
    """The surveys of all shards, set by set; ``take`` has been given the number of the set and what was taken of each,
    as they came. ``states`` has one for each set. In this process when samples are counted across shards, or when it is
    the only one."""
    tasks = [task for of_set in sets for task in of_set]
    alone = any(is_ours_alone(one.task.address) or not one.task.selection.is_trivial for one in tasks)
    executor = None if alone or (jobs == 1 and engine is None) else make_executor(jobs, engine)

    def here(task: JoinSurveyTask) -> Taken:
        state = states[task.number]
        return _nothing() if state.done else survey_shard(task, state)

    found = []
    for task, one in zip(tasks, of_each(tasks, here, survey_shard, executor, progress)):
        take(task.number, one)
        found.append(one.survey)
    return found


def _nothing() -> Taken:
    return Taken(Survey(), [], *(Words(array("I")) for _ in range(3)))


class CollectedSets:
    """What is known of all sets, taken shard by shard, set by set: one table, behind whose rows one more stands for
    nobody, and of each set the shapes and lengths. ``folder`` is where scratch files lie, None for TMPDIR."""

    def __init__(self, sets: int, folder: str | None = None) -> None:
        self._collected = Collected(folder)
        self._sets = [_CollectedSet(folder) for _ in range(sets)]

    def take(self, number: int, taken: Taken) -> None:
        """What was taken of the next shard, of set ``number``. Raises OutputError."""
        self._collected.take(taken.survey)
        self._sets[number].take(taken)

    @property
    def total(self) -> int:
        """Samples of all sets."""
        return sum(self._collected.totals)

    def surveys(self) -> tuple[PlanTable, list[SetSurvey]]:
        """The table, and each set; nothing is taken any more."""
        import numpy

        nobody: Rows = numpy.zeros(1, dtype=row_type())
        nobody["shard"] = NOBODY
        table = self._collected.table(nobody)
        found, first = [], 0
        for one in self._sets:
            found.append(one.survey(table, first))
            first += one.total
        return table, found


class _CollectedSet:
    """The same of one set, but for its rows."""

    def __init__(self, folder: str | None) -> None:
        self.total = 0
        self._numbers: dict[Shape, int] = {}
        self._words = [Growing(folder) for _ in range(3)]
        self._firsts = Growing(folder)
        self._members = 0
        self._has_lengths = False

    def take(self, taken: Taken) -> None:
        import numpy

        numbers = self._numbers
        mine: U32 = numpy.array(
            [numbers.setdefault(shape, len(numbers)) for shape in taken.shapes], dtype=numpy.uint32
        )
        widths: I64 = numpy.array([len(shape) for shape in taken.shapes], dtype=numpy.int64)
        shapes, plain, renamed = self._words
        for some in taken.shape_of.taken():
            if not len(some):
                continue
            shapes.append(mine[some])
            ends = numpy.cumsum(widths[some]) + self._members
            self._firsts.append(ends - widths[some])
            self._members = int(ends[-1])
        for growing, words in ((plain, taken.plain), (renamed, taken.renamed)):
            for some in words.taken():
                self._has_lengths |= bool(len(some))
                growing.append(some)
        self.total += taken.survey.total

    def survey(self, table: PlanTable, first: int) -> SetSurvey:
        """The set, whose samples are ``table``'s from row ``first`` on."""
        import numpy

        shape_of, plain, renamed = (numpy.frombuffer(one.mapped(), dtype=numpy.uint32) for one in self._words)
        firsts = numpy.frombuffer(self._firsts.mapped(), dtype=numpy.int64)
        lengths = Lengths(plain, renamed, firsts) if self._has_lengths else None
        samples = table.part(first, first + self.total)
        return SetSurvey(first, samples, list(self._numbers), shape_of, lengths)
