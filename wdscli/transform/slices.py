"""This module transforms some samples of a planned shard, as a task that any process can run.

:func:`transform_slice` is a pure function of a :class:`SliceTask`. :class:`Slices` cuts planned shards into such tasks.
:func:`gathered_bytes` reads the samples as the copier does, with every header compared with the plan, into one archive
in memory. A slice holds whole calls, and no call spans two shards, so that the input of a call does not depend on
slices. A slice takes some tenths of a second of work, which is judged by the slices before it. This module does not
know where the results are written.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from wdscli.copy.copier import Copier, GatherTask
from wdscli.errors import EngineError, printable
from wdscli.model import to_bytes, to_text
from wdscli.plan.inputs import Inputs
from wdscli.samples import SampleBatch, group_columns
from wdscli.shards.writing import ShardFile, ShardSettings
from wdscli.shown import shown, shown_command
from wdscli.storage.ends import Data, Sink
from wdscli.tar import Form, Scanner
from wdscli.transform.transform import CallError, Made, Taken, Transform

SLICE_BYTES = 1 << 24
"""Most bytes of samples in one task, except for a single call that takes more."""
SLICE_SECONDS = 0.2
MOST_CALLS = 4096
FAILURES_NAMED = 3
RUNNING_CALL = "call-"
"""Prefix of the files in which workers note the samples of their current call."""
FAILED, LEFT_OUT, KEPT, NOTHING_NEW = "failed", "left-out-by-map", "kept", "no-new-fields"
"""Samples of failed calls, samples for which a call returned nothing, samples of failed calls that are kept, and with
``new_fields`` samples for which a call returned no new field."""


class SliceTask(NamedTuple):
    """Samples of one planned shard, by its number, their transform, and the folder for scratch folders of commands.
    ``samples`` are set if only the planning process can read them."""

    shard: int
    gather: GatherTask
    transform: Transform
    folder: str
    samples: Sequence[Taken] | None = None

    def held(self) -> SliceTask:
        """The same task with its samples read."""
        return self._replace(samples=samples_taken(self.gather))


class SliceResult(NamedTuple):
    """The new samples in order; ``counts`` of samples left out or kept by reason; the errors of the first failed calls;
    ``touched``, how many samples had the field of a filter, 0 for other transforms."""

    shard: int
    samples: list[Made]
    taken: int
    counts: Mapping[str, int]
    failures: Sequence[str]
    touched: int
    seconds: float


class Slices:
    """Tasks of several shards, in order; :meth:`adapt` adjusts their size."""

    def __init__(self, transform: Transform, folder: str) -> None:
        self._transform = transform
        self._folder = folder
        self._calls = 1 if transform.is_slow else 4

    def of(self, shard: int, task: GatherTask) -> Iterator[SliceTask]:
        """The tasks of one shard, by its number; also one for a shard without samples."""
        samples, batch = task.samples, self._transform.batch
        lengths = samples.column("length", 0, samples.total)
        first = 0
        while first < samples.total or not first:
            end = min(first + batch * self._calls, samples.total)
            while end > first + batch and int(lengths[first:end].sum()) > SLICE_BYTES:
                end = first + max((end - first) // batch // 2, 1) * batch
            some = samples.slice(first, end)
            inputs = {number: task.inputs[number] for number in some.shard_numbers()}
            gather = task._replace(samples=some, inputs=inputs)
            yield SliceTask(shard, gather, self._transform, self._folder)
            first = max(end, 1)

    def adapt(self, result: SliceResult) -> None:
        """Adapt the size of the next tasks to the time that this one took."""
        calls = max(1, result.taken // self._transform.batch)
        fitting = int(calls * SLICE_SECONDS / max(result.seconds, 1e-6))
        self._calls = max(1, min(fitting, 2 * self._calls, MOST_CALLS))


def transform_slice(task: SliceTask) -> SliceResult:
    """Transform the samples of a task. Raises EngineError for a failed call if the transform stops at failures, and the
    errors of reading."""
    began, transform = time.perf_counter(), task.transform
    samples = samples_taken(task.gather) if task.samples is None else task.samples
    call = transform.call(task.folder)
    counts: Counter[str] = Counter()
    failures: list[str] = []
    made: list[Made] = []
    with _calls_noted(task.folder) as note:
        for first in range(0, len(samples), transform.batch):
            some = samples[first : first + transform.batch]
            note(some)
            try:
                new = call(some)
                _check_apart(new)
                if transform.new_fields:
                    new = _new_fields(some, new)
                elif empty := [key for key, fields in new if not fields]:
                    raise CallError(f'the sample "{to_text(empty[0])}" has no fields')
            except CallError as error:
                text = _explained(transform, some, error)
                if transform.on_failure == "stop":
                    raise EngineError(
                        text, hint="continue without these samples: --on-error skip, or --on-error keep"
                    ) from None
                counts[KEPT if transform.on_failure == "keep" else FAILED] += len(some)
                failures.append(text)
                new = [(one.key, one.fields) for one in some] if transform.on_failure == "keep" else []
            else:
                counts[NOTHING_NEW if transform.new_fields else LEFT_OUT] += max(0, len(some) - len(new))
            made += new
    touched = 0
    if transform.kind == "filter":
        filtered = to_bytes(transform.field)
        touched = sum(any(field == filtered for field, _ in one.fields) for one in samples)
    seconds = time.perf_counter() - began
    return SliceResult(task.shard, made, len(samples), +counts, failures[:FAILURES_NAMED], touched, seconds)


@contextmanager
def _calls_noted(folder: str) -> Iterator[Callable[[Sequence[Taken]], object]]:
    """A function that notes the samples of the next call in a file of this process in ``folder``. The file stays only
    if the process dies."""
    if not folder:
        yield len
        return
    path = f"{folder}/{RUNNING_CALL}{os.getpid()}"
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)

    def note(samples: Sequence[Taken]) -> None:
        # As bytes, because formatting text takes longer than a small call.
        first = samples[0]
        os.pwrite(file, b"%b\0%b\0%d\0" % (first.key, os.fsencode(first.shard), len(samples)), 0)

    try:
        yield note
    finally:
        os.close(file)
        with suppress(OSError):
            os.unlink(path)


def noted_call(path: str) -> str:
    """The samples of a noted call, for messages; empty if no call had begun."""
    with open(path, "rb") as file:
        key, shard, count, *_ = [*file.read().split(b"\0"), b"", b""]
    return named_call(key, os.fsdecode(shard), int(count)) if count else ""


def _check_apart(made: Sequence[Made]) -> None:
    keys = [key for key, _ in made]
    if len(set(keys)) < len(keys):
        twice = next(key for key, count in Counter(keys).items() if count > 1)
        raise CallError(f'it made two samples with the key "{to_text(twice)}"')


def _new_fields(samples: Sequence[Taken], made: Sequence[Made]) -> list[Made]:
    """The new samples in the order of ``samples``, each with only the fields that its sample lacks; samples without
    such a field are left out. Raises CallError for another key."""
    known = {one.key: {field for field, _ in one.fields} for one in samples}
    if other := [key for key, _ in made if key not in known]:
        raise CallError(f'it made the new key "{to_text(other[0])}", but --new-fields needs the old keys')
    added = {key: [pair for pair in fields if pair[0] not in known[key]] for key, fields in made}
    return [(key, added[key]) for key in known if added.get(key)]


def _explained(transform: Transform, samples: Sequence[Taken], error: CallError) -> str:
    """The error text of a failed call: command, samples and reason."""
    is_picture = transform.kind == "resize"
    what = "the picture" if is_picture else printable(shown_command(transform.what))
    return f"{what} failed for {named_call(samples[0].key, samples[0].shard, len(samples))}: {error}"


def named_call(key: bytes, shard: str, count: int) -> str:
    """The samples of a call whose first sample has this key."""
    more = f" and the {count - 1} after it" if count > 1 else ""
    return f'sample "{printable(to_text(key))}"{more} of {shown(shard)}'


def samples_taken(task: GatherTask) -> list[Taken]:
    """The planned samples, read and compared with the plan. Raises DataError."""
    rows = task.samples.part(0, task.samples.total).rows
    shards, places = rows["shard"].tolist(), rows["place"].tolist()
    data = gathered_bytes(task)
    batch = samples_of(data, task.address, task.settings.form)
    taken = []
    for row, key in enumerate(batch.keys):
        fields = [(field, bytes(payload)) for field, payload in payloads_of(data, batch, row)]
        taken.append(Taken(key, fields, task.inputs[shards[row]].address, places[row]))
    return taken


def gathered_bytes(task: GatherTask) -> memoryview:
    """The samples of a task in memory, in the bytes of the shard, without the end of archive. Raises as :func:`gather`
    does."""
    memory = _Memory(task.address)
    settings = ShardSettings(task.settings.form, "none", with_index=False)
    with Inputs(task.inputs) as inputs, ShardFile(task.address, settings, memory) as shard:
        Copier(task, inputs, shard).run()
        inputs.confirm()
        shard.flush()
        memory.flush()
    return memoryview(memory.data)


def samples_of(data: memoryview, address: str, form: Form) -> SampleBatch:
    """The samples in :func:`gathered_bytes`."""
    scanner = Scanner(address, form=form)
    scanner.feed(data, 0)
    return group_columns(scanner.take(), address)


def payloads_of(data: memoryview, batch: SampleBatch, row: int) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the fields of one of these samples with their payloads, in its own order."""
    for at in range(batch.firsts[row], batch.firsts[row + 1]):
        yield batch.fields[at], data[batch.offsets[at] :][: batch.sizes[at]]


class _Memory(Sink):
    """A sink that keeps its bytes."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.data = bytearray()

    def _put(self, data: Data) -> None:
        self.data += data

    def _commit(self) -> None:
        """Do nothing."""

    def _discard(self) -> None:
        """Do nothing."""
