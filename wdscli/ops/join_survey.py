"""What a join must know of the samples of one set: their rows, their fields, and the bytes of each member.

What it is: :func:`survey_sets`, which gives one :class:`SetSurvey` a set. How: a survey like that of every other
command, which takes down two things more while it sees the names: the number of the sample's *shape* (its list of
fields; few shapes make up a set), and, where a field may have to give way, the blocks that each member takes. These are
arrays: four bytes a sample, four or eight a member.

It must not know how samples are matched.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from wdscli.errors import DataError
from wdscli.executors import make_executor, run_tasks
from wdscli.model import to_text
from wdscli.ops.layout import Shape, suffixed
from wdscli.ops.rows import Samples
from wdscli.ops.scratch import is_ours_alone
from wdscli.ops.survey import PayloadOf, Survey, SurveyTask, gather_samples, out_length, survey
from wdscli.progress import Progress
from wdscli.samples import SampleBatch
from wdscli.selection import Selection, SelectionState
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


class SetSurvey(NamedTuple):
    """One set. ``shape_of`` numbers the shape of each sample in ``shapes``; ``lengths`` is None where nobody needs
    it."""

    samples: Samples
    shapes: list[Shape]
    shape_of: U32
    lengths: Lengths | None
    surveys: list[Survey]

    def without(self, rows: Sequence[int]) -> SetSurvey:
        """All samples but these."""
        import numpy

        lengths = self.lengths
        if lengths is not None:
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


class _Taken(NamedTuple):
    """What is sent back of one shard."""

    survey: Survey
    shapes: list[Shape]
    shape_of: array[int]
    plain: array[int]
    renamed: array[int]


class _Recorder:
    """An extract that takes down shapes and lengths."""

    payload_fields: frozenset[bytes] = frozenset()

    def __init__(self, selection: Selection, form: Form, number: int, with_lengths: bool) -> None:
        self._selection = selection
        self._form = form
        self._number = number
        self._with_lengths = with_lengths
        self._numbers: dict[Shape, int] = {}
        self.shape_of = array("I")
        self.plain = array("I")
        self.renamed = array("I")

    @property
    def shapes(self) -> list[Shape]:
        return list(self._numbers)

    def values(
        self, batch: SampleBatch, rows: Sequence[int], shard: str, payload_of: PayloadOf
    ) -> list[bytes]:
        """Takes its notes; nobody wants the values."""
        if not self._selection.changes_members and len(rows) == len(batch.keys) and self._take_alike(batch):
            return []
        numbers = self._numbers
        for row in rows:
            plan = None
            shape: Shape = tuple(batch.fields[batch.firsts[row] : batch.firsts[row + 1]])
            if self._selection.changes_members or self._with_lengths:
                plan = self._selection.plan_of(batch, row, shard)
                shape = tuple(field for _, field in plan)
            self.shape_of.append(numbers.setdefault(shape, len(numbers)))
            if plan is not None and self._with_lengths:
                self._add_lengths(batch, row, plan, shard)
        return []

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
            self.plain.extend(blocks)
            self.renamed.extend(blocks)
        self.shape_of.extend([self._numbers.setdefault(shape, len(self._numbers))] * count)
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
            self.plain.append(length)
            if len(prefix) + len(new) > 100:
                length = out_length([(prefix + new, size)], self._form) // BLOCK
            self.renamed.append(length)


def survey_shard(task: JoinSurveyTask, state: SelectionState | None = None) -> _Taken:
    """Read one shard's headers. Raises InputError, DataError."""
    recorder = _Recorder(task.task.selection, task.task.form, task.number, task.with_lengths)
    found = survey(task.task._replace(extract=recorder), state)
    found.values = None
    return _Taken(found, recorder.shapes, recorder.shape_of, recorder.plain, recorder.renamed)


def survey_sets(
    sets: Sequence[Sequence[JoinSurveyTask]],
    states: Sequence[SelectionState],
    jobs: int,
    engine: str | None,
    progress: Progress,
) -> list[SetSurvey]:
    """One survey a set; ``states`` has one for each. In this process when samples are counted across shards, or when
    it is the only one."""
    tasks = [task for of_set in sets for task in of_set]
    progress.start("reading headers", len(tasks), "shards")
    alone = any(is_ours_alone(one.task.address) or not one.task.selection.is_trivial for one in tasks)
    found: list[_Taken] = []
    if alone or (jobs == 1 and engine is None):
        for task in tasks:
            state = states[task.number]
            found.append(_nothing() if state.done else survey_shard(task, state))
            progress.advance(1)
    else:
        with make_executor(jobs, engine) as executor:
            for one in run_tasks(executor, survey_shard, tasks):
                found.append(one)
                progress.advance(1)
    progress.finish()
    whole, at = [], 0
    for of_set in sets:
        whole.append(_gathered(found[at : at + len(of_set)], at))
        at += len(of_set)
    return whole


def _nothing() -> _Taken:
    return _Taken(Survey(), [], array("I"), array("I"), array("I"))


def _gathered(taken: list[_Taken], first_shard: int) -> SetSurvey:
    """The shards of a set together; their numbers count from ``first_shard``."""
    import numpy

    numbers: dict[Shape, int] = {}
    shape_of: list[U32] = []
    for one in taken:
        mine = numpy.array(
            [numbers.setdefault(shape, len(numbers)) for shape in one.shapes], dtype=numpy.uint32
        )
        shape_of.append(mine[numpy.frombuffer(one.shape_of, dtype=numpy.uint32)])
    samples = gather_samples([one.survey for one in taken])
    samples.shards[:] += numpy.uint32(first_shard)
    shapes = list(numbers)
    together = numpy.concatenate(shape_of) if shape_of else numpy.empty(0, dtype=numpy.uint32)
    lengths = None
    if any(one.plain for one in taken):
        counts = numpy.array([len(shape) for shape in shapes], dtype=numpy.int64)[together]
        lengths = Lengths(
            numpy.concatenate([numpy.frombuffer(one.plain, dtype=numpy.uint32) for one in taken]),
            numpy.concatenate([numpy.frombuffer(one.renamed, dtype=numpy.uint32) for one in taken]),
            numpy.cumsum(counts) - counts,
        )
    return SetSurvey(samples, shapes, together, lengths, [one.survey for one in taken])
