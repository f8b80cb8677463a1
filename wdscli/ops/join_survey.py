"""What a join must know of the samples of one set: their rows, their fields, and the bytes of each member.

What it is: :func:`survey_sets`, and :func:`gathered`, which makes one :class:`SetSurvey` of a set. How: a survey like
that of every other command, which takes down two things more while it sees the names: the number of the sample's
*shape* (its list of fields; few shapes make up a set), and, where a field may have to give way, the blocks that each
member takes. These are arrays: four bytes a sample, eight a member; like rows they go to scratch files when they are
more than a shard's share.

It must not know how samples are matched.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

from wdscli.errors import DataError, OutputError
from wdscli.executors import make_executor
from wdscli.model import to_text
from wdscli.ops.external import Stored
from wdscli.ops.layout import Shape, suffixed
from wdscli.ops.overflow import Keep
from wdscli.ops.rows import Samples
from wdscli.ops.scratch import HINT, is_ours_alone
from wdscli.ops.survey import PayloadOf, Survey, SurveyTask, gather_samples, out_length, survey
from wdscli.ops.surveying import of_each
from wdscli.progress import Progress
from wdscli.samples import SampleBatch
from wdscli.selection import Selection, SelectionState
from wdscli.storage.local import reason
from wdscli.tar import Form
from wdscli.tar.header import BLOCK

if TYPE_CHECKING:
    from wdscli.ops.rows import I64, U32


LARGEST = 1 << 40
"""Bytes of a payload whose blocks are sure to be counted in 32 bits."""


class Lengths(NamedTuple):
    """The blocks of 512 bytes that members take, header included: as they are named, and with the name that a suffix
    gives. Those of a sample begin at ``firsts[row]``."""

    plain: U32
    renamed: U32
    firsts: I64

    def blocks(self, rows: I64, field: bytes, member: int, is_renamed: bool) -> I64:
        """Those of one member of some samples."""
        import numpy

        column = self.renamed if is_renamed else self.plain
        blocks: I64 = column[self.firsts[rows] + member].astype(numpy.int64)
        return blocks


class BlocksOf(Protocol):
    """What tells the blocks of members; :class:`Lengths` is one."""

    def blocks(self, rows: I64, field: bytes, member: int, is_renamed: bool) -> I64:
        """Those of one member, which is ``field``, of some samples, all of the same shape."""


class SetSurvey(NamedTuple):
    """One set. ``shape_of`` numbers the shape of each sample in ``shapes``; ``lengths`` is None where nobody needs
    it."""

    samples: Samples
    shapes: list[Shape]
    shape_of: U32
    lengths: BlocksOf | None
    surveys: list[Survey]

    def without(self, rows: Sequence[int]) -> SetSurvey:
        """All samples but these."""
        import numpy

        lengths = self.lengths
        if isinstance(lengths, Lengths):
            lengths = lengths._replace(firsts=numpy.delete(lengths.firsts, rows))
        return self._replace(
            samples=self.samples.without(rows),
            shape_of=numpy.delete(self.shape_of, rows),
            lengths=lengths,
        )


class JoinSurveyTask(NamedTuple):
    """One input shard. ``number`` is its set's (from 0), by which members are renamed; ``with_lengths`` wants the
    blocks of each member."""

    task: SurveyTask
    number: int
    with_lengths: bool


class Words(NamedTuple):
    """Numbers of 32 bits, in memory or in a file."""

    held: array[int]
    stored: Stored | None = None

    @property
    def total(self) -> int:
        """How many."""
        return len(self.held) if self.stored is None else self.stored.total

    def read(self, first: int, end: int) -> U32:
        """Numbers ``first`` to ``end``."""
        import numpy

        if self.stored is not None:
            return self.stored.read(first, end)
        return numpy.frombuffer(self.held, dtype=numpy.uint32)[first:end]


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
        return Words(array("I"), Stored(self._path, "<u4", self._written))


class _Recorder:
    """An extract that takes down shapes and lengths."""

    payload_fields: frozenset[bytes] = frozenset()
    named = ()

    def __init__(
        self, selection: Selection, form: Form, number: int, with_lengths: bool, keep: Keep | None = None
    ) -> None:
        self._selection = selection
        self._keep = keep
        self._form = form
        self._number = number
        self._with_lengths = with_lengths
        self._numbers: dict[Shape, int] = {}
        paths = [None if keep is None else f"{keep.path}.{name}" for name in ("shapes", "plain", "renamed")]
        self.shape_of, self.plain, self.renamed = map(_Notes, paths)

    @property
    def shapes(self) -> list[Shape]:
        return list(self._numbers)

    def values(
        self, batch: SampleBatch, rows: Sequence[int], shard: str, payload_of: PayloadOf
    ) -> list[bytes]:
        """Takes its notes; nobody wants the values."""
        self._take(batch, rows, shard)
        if self._keep is not None and len(self.shape_of.held) > self._keep.rows:
            for notes in (self.shape_of, self.plain, self.renamed):
                notes.let_go()
        return []

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
            longest = (
                max(map(len, batch.keys)) + 1 + max(len(suffixed(field, self._number)) for field in shape)
            )
            if longest > 100 or max(batch.sizes) >= 1 << 33:
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
    recorder = _Recorder(plain.selection, plain.form, task.number, task.with_lengths, plain.keep)
    found = survey(plain._replace(extract=recorder), state)
    found.values = None
    notes = (recorder.shape_of, recorder.plain, recorder.renamed)
    return Taken(found, recorder.shapes, *(one.words() for one in notes))


def survey_sets(
    sets: Sequence[Sequence[JoinSurveyTask]],
    states: Sequence[SelectionState],
    jobs: int,
    engine: str | None,
    progress: Progress,
) -> list[list[Taken]]:
    """What was taken of each shard, set by set; ``states`` has one for each set. In this process when samples are
    counted across shards, or when it is the only one."""
    tasks = [task for of_set in sets for task in of_set]
    alone = any(is_ours_alone(one.task.address) or not one.task.selection.is_trivial for one in tasks)
    executor = None if alone or (jobs == 1 and engine is None) else make_executor(jobs, engine)

    def here(task: JoinSurveyTask) -> Taken:
        state = states[task.number]
        return _nothing() if state.done else survey_shard(task, state)

    found = of_each(tasks, here, survey_shard, executor, progress)
    whole, at = [], 0
    for of_set in sets:
        whole.append(found[at : at + len(of_set)])
        at += len(of_set)
    return whole


def _nothing() -> Taken:
    return Taken(Survey(), [], *(Words(array("I")) for _ in range(3)))


def shapes_of(taken: Sequence[Taken]) -> tuple[list[Shape], list[U32]]:
    """The shapes of a set, and for each of its shards the numbers that its own shapes have among them."""
    import numpy

    numbers: dict[Shape, int] = {}
    mine = [[numbers.setdefault(shape, len(numbers)) for shape in one.shapes] for one in taken]
    return list(numbers), [numpy.array(some, dtype=numpy.uint32) for some in mine]


def gathered(taken: Sequence[Taken], first_shard: int) -> SetSurvey:
    """The shards of a set together; their numbers count from ``first_shard``."""
    import numpy

    shapes, numbers = shapes_of(taken)
    shape_of = [
        mine[one.shape_of.read(0, one.shape_of.total)] for one, mine in zip(taken, numbers, strict=True)
    ]
    samples = gather_samples([one.survey for one in taken])
    samples.shards[:] += numpy.uint32(first_shard)
    together = numpy.concatenate(shape_of) if shape_of else numpy.empty(0, dtype=numpy.uint32)
    lengths = None
    if any(one.plain.total for one in taken):
        counts = numpy.array([len(shape) for shape in shapes], dtype=numpy.int64)[together]
        lengths = Lengths(
            numpy.concatenate([one.plain.read(0, one.plain.total) for one in taken]),
            numpy.concatenate([one.renamed.read(0, one.renamed.total) for one in taken]),
            numpy.cumsum(counts) - counts,
        )
    return SetSurvey(samples, shapes, together, lengths, [one.survey for one in taken])
