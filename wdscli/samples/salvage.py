"""The whole samples of a damaged shard, for ``--on-error skip``.

What it is: :func:`salvaged_batches` yields batches like :func:`wdscli.samples.iter_batches`, and continues after
damage at the next header. How: the samples on both sides of damage may lack members, so each is kept only when it
has the fields of the last sound sample; dropped samples are counted by reason. It must not know how the samples are
used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from wdscli.errors import DataError
from wdscli.samples import Grouper, Ignored, SampleBatch
from wdscli.tar import CANONICAL, ByteSource, Form, Window
from wdscli.tar.reader import scan_salvaging

Dropped = dict[str, int]


def salvaged_batches(
    source: ByteSource,
    report: Callable[[DataError], None],
    dropped: Dropped,
    *,
    form: Form = CANONICAL,
    ignored: Ignored | None = None,
    see: Callable[[Window], None] | None = None,
    known: int = -1,
) -> Iterator[SampleBatch]:
    """Yield every sample that is certainly whole. Each error goes to ``report``; dropped samples are counted in
    ``dropped``: ``damaged`` (next to damage), ``duplicate-field``. ``see`` gets every window before its samples are
    yielded, for a stream whose payloads must be read then; a truncated payload that it finds ends the shard.
    ``known`` is the expected number of samples in the shard: those of a damaged shard that cannot be found are
    counted as ``lost``."""
    grouper = Grouper(source.name, lenient=True, ignored=ignored)
    return _Salvager(source, report, dropped, form, see, grouper).batches(known)


@dataclass(slots=True)
class _Salvager:
    """The state of one shard that is read."""

    source: ByteSource
    report: Callable[[DataError], None]
    dropped: Dropped
    form: Form
    see: Callable[[Window], None] | None
    grouper: Grouper
    is_hurt: bool = False
    was_hurt: bool = False
    seen: int = 0
    usual: frozenset[bytes] | None = None

    def batches(self, known: int) -> Iterator[SampleBatch]:
        yield from self._batches()
        if self.was_hurt and known > self.seen:
            self.dropped["lost"] = self.dropped.get("lost", 0) + known - self.seen

    def _batches(self) -> Iterator[SampleBatch]:
        after_damage = False
        for window in self._windows():
            if self.is_hurt and window.columns.names:
                yield from self._sound(self.grouper.finish(), after_damage, True)
                self.is_hurt, after_damage = False, True
            batch = self.grouper.add(window)
            if batch.keys:
                yield from self._sound(batch, after_damage, False)
                after_damage = False
        yield from self._sound(self.grouper.finish(), after_damage, self.is_hurt)

    def _windows(self) -> Iterator[Window]:
        payloads = self.see is not None
        for window in scan_salvaging(self.source, self._damage, form=self.form, payloads=payloads):
            if self.see is not None:
                try:
                    self.see(window)
                except DataError as error:
                    for column in window.columns:
                        column.pop()
                    yield window
                    self._damage(error)
                    return
            yield window

    def _damage(self, error: DataError) -> None:
        self.is_hurt = self.was_hurt = True
        self.report(error)

    def _sound(self, batch: SampleBatch, first_hurt: bool, last_hurt: bool) -> Iterator[SampleBatch]:
        """``batch`` without samples that may be incomplete. Its first or last sample may be next to damage."""
        rows = []
        self.seen += len(batch.keys)
        last = len(batch.keys) - 1
        for row in range(len(batch.keys)):
            fields = batch.fields[batch.firsts[row] : batch.firsts[row + 1]]
            names = frozenset(fields)
            beside = (first_hurt and row == 0) or (last_hurt and row == last)
            if len(names) < len(fields):
                self._drop("duplicate-field")
            elif beside and names != self.usual:
                self._drop("damaged")
            else:
                rows.append(row)
                self.usual = names
        if len(rows) == len(batch.keys):
            if rows:
                yield batch
            return
        for row in rows:
            yield batch.part(row, row + 1)

    def _drop(self, reason: str) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
