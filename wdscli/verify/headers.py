"""The headers of one shard: names, kinds of members, keys, fields and sizes, in one pass.

:class:`HeaderPass` takes the windows of a scan. It tests whole columns first: that all members are regular, all names
are safe, all samples have the same fields. It tests single members only if a column fails, so that a clean shard takes
little longer than a listing.

This module opens nothing. Payloads, indexes and manifests are checked elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from wdscli.samples import Grouper, SampleBatch, is_appledouble, is_dunder, may_be_unsafe, why_unsafe
from wdscli.samples.grouping import hidden
from wdscli.shards.index import IndexBuilder
from wdscli.tar import DIRECTORY, KIND_MASK, KIND_NAMES, REGULAR, Window
from wdscli.verify.absence import Absence
from wdscli.verify.findings import Ledger
from wdscli.verify.keys import KeyColumns
from wdscli.verify.profiles import Fields, Judge, Problem, judge_fields

MAX_SHAPES = 1 << 12
"""Different lists of fields that are remembered; samples with further lists are checked and then forgotten."""
MAX_NAMES = 1 << 17
"""Names in these lists, together."""

_KIND_MESSAGES = {
    "link": "the member is a link; samples consist of regular files",
    "special": "the member is a device, a fifo or of an unknown kind; samples consist of regular files",
    "sparse": "the member is a sparse file; samples consist of regular files",
}


@dataclass(slots=True)
class Shape:
    """One list of fields: its bits in the key columns, its problems, the number of samples that have it, and the
    first of these."""

    mask: int
    problems: list[Problem]
    offset: int
    key: bytes
    count: int = 0


class _ReportingGrouper(Grouper):
    """A lenient grouper that reports the members it ignores."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger.shard, lenient=True)
        self._ledger = ledger

    def ignore(self, name: bytes, kind: int, start: int, size: int) -> None:
        super().ignore(name, kind, start, size)
        if kind == REGULAR and size and name.endswith(b"/"):
            self._ledger.add_error(hidden(self.shard, start, name, size))
        if kind == DIRECTORY or (kind == REGULAR and is_dunder(name)):
            return
        code, why = "no-field", "its name has no dot after the first letter"
        if is_appledouble(name):
            why = "macOS keeps another file's attributes in it"
        message = f"the file belongs to no sample: {why}"
        if kind != REGULAR:
            code = KIND_NAMES[kind]
            message = _KIND_MESSAGES[code]
        self._ledger.add(code, message, offset=start, member=name)


class HeaderPass:
    """Call :meth:`add` for every window in order, then :meth:`finish` once.

    ``required`` are fields that every sample must have. ``builder`` (optional) collects the columns of the index,
    ``absence`` looks for keys that no sample may have.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        required: Fields = (),
        judge: Judge | None = None,
        builder: IndexBuilder | None = None,
        keys: KeyColumns | None = None,
        absence: Absence | None = None,
    ) -> None:
        self.ledger = ledger
        self.absence = absence
        self.keys = keys or KeyColumns()
        self.samples = 0
        self.members = 0
        self._grouper = _ReportingGrouper(ledger)
        self._required = required
        self.judge = judge
        self.builder = builder
        self._shapes: dict[Fields, Shape] = {}
        self._room = MAX_NAMES

    def add(self, window: Window) -> None:
        """Check the members of one window."""
        names, starts, _, sizes, flags = window.columns
        self.members += len(names)
        if may_be_unsafe(names):
            for name, start in zip(names, starts):
                if reason := why_unsafe(name):
                    self.ledger.add("unsafe-name", reason, offset=start, member=name)
        if 0 in sizes:
            for name, start, size, flag in zip(names, starts, sizes, flags):
                if not size and flag & KIND_MASK == REGULAR:
                    self.ledger.add("empty-payload", "the member has no bytes", offset=start, member=name)
        if self.judge is not None:
            self.judge.members(window)
        self._add_batch(self._grouper.add(window))

    def finish(self) -> None:
        """Check the last sample."""
        self._add_batch(self._grouper.finish())

    @property
    def ignored(self) -> dict[str, int]:
        """Members that belong to no sample, by reason."""
        return self._grouper.ignored.counts

    def _add_batch(self, batch: SampleBatch) -> None:
        if not batch.keys:
            return
        self.samples += len(batch.keys)
        masks = self._uniform(batch) or self._one_by_one(batch)
        self.keys.add(batch, masks)
        if self.builder is not None:
            self.builder.add_batch(batch)
        if self.absence is not None:
            self.absence.look(batch)
        if self.judge is not None:
            self.judge.samples(batch)

    def _uniform(self, batch: SampleBatch) -> list[int] | None:
        """The masks of a batch whose samples all have the fields of the first; None for other batches."""
        fields, firsts, count = batch.fields, batch.firsts, len(batch.keys)
        each = firsts[1]
        if len(fields) != each * count or firsts[-2] != each * (count - 1):
            return None
        names = tuple(fields[:each])
        shape = self._shape(names, batch, 0)
        if shape.problems or firsts != list(range(0, len(fields) + 1, each)) or fields != list(names) * count:
            return None
        shape.count += count
        return [shape.mask] * count

    def _one_by_one(self, batch: SampleBatch) -> list[int]:
        fields, firsts, masks = batch.fields, batch.firsts, []
        for row in range(len(batch.keys)):
            names = tuple(fields[firsts[row] : firsts[row + 1]])
            shape = self._shape(names, batch, row)
            masks.append(shape.mask)
            shape.count += 1
            for problem in shape.problems:
                self._report(problem, batch, row)
        return masks

    def _shape(self, names: Fields, batch: SampleBatch, row: int) -> Shape:
        shape = self._shapes.get(names)
        if shape is None:
            problems = judge_fields(names, self._required)
            if self.judge is not None:
                problems += self.judge.fields(names)
            shape = Shape(self.keys.mask(names), problems, batch.start(row), batch.keys[row])
            if len(self._shapes) < MAX_SHAPES and len(names) <= self._room:
                self._shapes[names] = shape
                self._room -= len(names)
        return shape

    def shapes(self) -> dict[frozenset[bytes], Shape]:
        """Samples counted by their set of fields; lists that were not remembered are missing."""
        found: dict[frozenset[bytes], Shape] = {}
        for names, shape in self._shapes.items():
            first = found.setdefault(frozenset(names), shape)
            if first is not shape:
                first.count += shape.count
        return found

    def _report(self, problem: Problem, batch: SampleBatch, row: int) -> None:
        at, member = batch.firsts[row], batch.keys[row]
        if problem.place is not None:
            at += problem.place
            member += b"." + batch.fields[at]
        self.ledger.add(problem.code, problem.message, offset=batch.starts[at], member=member)
