"""The whole samples of a damaged shard, for ``--on-error skip``.

What it is: :func:`salvaged_batches`, which gives batches like :func:`wdscli.samples.iter_batches` and goes on after
damage at the next header that can be found. How: the samples on both sides of damage may lack members that nobody can
see any more, so each is kept only when it has the fields of the last sound sample; what is left out is counted by
reason, never silently. It must not know what the samples are wanted for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from wdscli.errors import DataError
from wdscli.samples import Grouper, Ignored, SampleBatch
from wdscli.tar import CANONICAL, ByteSource, Form, Window
from wdscli.tar.recover import scan_salvaging

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
    """Every sample of which it can be told that it is whole. Each trouble goes to ``report``; samples that are left out
    are counted in ``dropped``: ``damaged`` (beside damage), ``duplicate-field``. ``see`` is shown every window before
    its samples come out, for a stream whose payloads must be taken then; a payload that it finds cut ends the shard.
    ``known`` is how many samples the shard should have: those of a damaged one that nobody can see any more are counted
    as ``lost``."""
    return _Salvager(source, report, dropped, form, ignored, see).batches(known)


class _Salvager:
    def __init__(
        self,
        source: ByteSource,
        report: Callable[[DataError], None],
        dropped: Dropped,
        form: Form,
        ignored: Ignored | None,
        see: Callable[[Window], None] | None,
    ) -> None:
        self._see = see
        self._source = source
        self._report = report
        self._dropped = dropped
        self._form = form
        self._hurt = self._was_hurt = False
        self._seen = 0
        self._usual: frozenset[bytes] | None = None
        self._grouper = Grouper(source.name, lenient=True)
        if ignored is not None:
            self._grouper.ignored = ignored

    def batches(self, known: int) -> Iterator[SampleBatch]:
        yield from self._batches()
        if self._was_hurt and known > self._seen:
            self._dropped["lost"] = self._dropped.get("lost", 0) + known - self._seen

    def _batches(self) -> Iterator[SampleBatch]:
        after_damage = False
        for window in self._windows():
            if self._hurt and window.columns.names:
                yield from self._sound(self._grouper.finish(), after_damage, True)
                self._hurt, after_damage = False, True
            batch = self._grouper.add(window)
            if batch.keys:
                yield from self._sound(batch, after_damage, False)
                after_damage = False
        yield from self._sound(self._grouper.finish(), after_damage, self._hurt)

    def _windows(self) -> Iterator[Window]:
        payloads = self._see is not None
        for window in scan_salvaging(self._source, self._damage, form=self._form, payloads=payloads):
            if self._see is not None:
                try:
                    self._see(window)
                except DataError as error:
                    for column in window.columns:
                        column.pop()
                    yield window
                    self._damage(error)
                    return
            yield window

    def _damage(self, error: DataError) -> None:
        self._hurt = self._was_hurt = True
        self._report(error)

    def _sound(self, batch: SampleBatch, first_hurt: bool, last_hurt: bool) -> Iterator[SampleBatch]:
        """``batch`` without the samples that are not whole. Its first or last sample may lie beside damage."""
        rows = []
        self._seen += len(batch.keys)
        last = len(batch.keys) - 1
        for row in range(len(batch.keys)):
            fields = batch.fields[batch.firsts[row] : batch.firsts[row + 1]]
            names = frozenset(fields)
            beside = (first_hurt and row == 0) or (last_hurt and row == last)
            if len(names) < len(fields):
                self._drop("duplicate-field")
            elif beside and names != self._usual:
                self._drop("damaged")
            else:
                rows.append(row)
                self._usual = names
        if len(rows) == len(batch.keys):
            if rows:
                yield batch
            return
        for row in rows:
            yield batch.part(row, row + 1)

    def _drop(self, reason: str) -> None:
        self._dropped[reason] = self._dropped.get(reason, 0) + 1
