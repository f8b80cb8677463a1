"""Some samples of a planned shard, transformed: a task that any process can run.

What it is: :func:`transform_slice`, a pure function of a :class:`SliceTask`, and :class:`Slices`, which cuts planned
shards into such tasks. How: the samples are read as the copier reads them, with every header compared with the plan,
into one archive in memory, whose payloads the calls get. A slice holds whole calls, which begin anew with each shard,
so that what a call gets does not depend on slices; it is made as large as some tenths of a second of work, by the time
that those before it took. It must not know where what it makes is written.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from wdscli.copy.copier import GatherTask
from wdscli.copy.memory import gathered_bytes, payloads_of, samples_of
from wdscli.errors import EngineError, printable
from wdscli.model import to_bytes, to_text
from wdscli.plan.plan import sum_counts
from wdscli.shown import shown, shown_command
from wdscli.transform.transform import CallError, Made, Taken, Transform

SLICE_BYTES = 1 << 24
"""So many bytes of samples are in one task, but for a single call that takes more."""
SLICE_SECONDS = 0.2
MOST_CALLS = 4096
FAILURES_NAMED = 3
RUNNING_CALL = "call-"
"""Notes of the samples that workers have in hand begin so."""
FAILED, LEFT_OUT, KEPT = "failed", "left-out-by-map", "kept"
"""Samples of calls that failed, of calls that gave nothing, and those of calls that failed that stay as they were."""


class SliceTask(NamedTuple):
    """Samples of one planned shard, by its number, what is done to them, and where commands may make their folders.
    ``samples`` are given where only the process that plans can read them."""

    shard: int
    gather: GatherTask
    transform: Transform
    folder: str
    samples: Sequence[Taken] | None = None

    def held(self) -> SliceTask:
        """The same, with its samples."""
        return self._replace(samples=samples_taken(self.gather))


class SliceResult(NamedTuple):
    """What became of a shard's samples: new ones in order; ``counts`` of samples by reason; why the first calls failed;
    ``touched``, how many had the field that a filter takes, 0 for other transforms."""

    shard: int
    samples: list[Made]
    taken: int
    counts: Mapping[str, int]
    failures: Sequence[str]
    touched: int
    seconds: float


class Totals:
    """The sums of many results."""

    def __init__(self) -> None:
        self.taken = self.touched = 0
        self.counts: dict[str, int] = {}
        self.failures: list[str] = []

    def add(self, result: SliceResult) -> None:
        self.taken += result.taken
        self.touched += result.touched
        self.counts = sum_counts([self.counts, result.counts])
        self.failures = [*self.failures, *result.failures][:FAILURES_NAMED]

    @property
    def dropped(self) -> dict[str, int]:
        """Samples that are not in the output, by reason."""
        return {reason: count for reason, count in self.counts.items() if reason != KEPT}


class Slices:
    """Tasks of several shards, in order, as large as :meth:`heard` has learned."""

    def __init__(self, transform: Transform, folder: str) -> None:
        self._transform = transform
        self._folder = folder
        self._calls = 1 if transform.is_slow else 4

    def of(self, shard: int, task: GatherTask) -> Iterator[SliceTask]:
        """The tasks of one shard, by its number; a shard without samples has one too."""
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

    def heard(self, result: SliceResult) -> None:
        """Adapt what comes next to how long this took."""
        calls = max(1, result.taken // self._transform.batch)
        fitting = int(calls * SLICE_SECONDS / max(result.seconds, 1e-6))
        self._calls = max(1, min(fitting, 2 * self._calls, MOST_CALLS))


def transform_slice(task: SliceTask) -> SliceResult:
    """The samples, transformed. Raises EngineError for a call that fails, where the transform says to stop, and what
    reading raises."""
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
            except CallError as error:
                text = _explained(transform, some, error)
                if transform.on_failure == "stop":
                    raise EngineError(text, hint="--on-error skip or keep goes on") from None
                counts[KEPT if transform.on_failure == "keep" else FAILED] += len(some)
                failures.append(text)
                new = [(one.key, one.fields) for one in some] if transform.on_failure == "keep" else []
            else:
                # Of one, where nothing came of it; of several, by their number.
                counts[LEFT_OUT] += max(0, len(some) - len(new))
            made += new
    touched = 0
    if transform.kind == "filter":
        filtered = to_bytes(transform.field)
        touched = sum(any(field == filtered for field, _ in one.fields) for one in samples)
    seconds = time.perf_counter() - began
    return SliceResult(task.shard, made, len(samples), +counts, failures[:FAILURES_NAMED], touched, seconds)


@contextmanager
def _calls_noted(folder: str) -> Iterator[Callable[[Sequence[Taken]], object]]:
    """A function that notes the samples of the next call in a file of this process in ``folder``. The file outlives
    the block only where the process dies in it."""
    if not folder:
        yield len
        return
    path = f"{folder}/{RUNNING_CALL}{os.getpid()}"
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)

    def note(samples: Sequence[Taken]) -> None:
        # As bytes, because a text for people takes longer than a small call.
        first = samples[0]
        os.pwrite(file, b"%b\0%b\0%d\0" % (first.key, os.fsencode(first.shard), len(samples)), 0)

    try:
        yield note
    finally:
        os.close(file)
        with suppress(OSError):
            os.unlink(path)


def noted_call(path: str) -> str:
    """The samples of a call that was noted, for messages; empty where none had begun."""
    with open(path, "rb") as file:
        key, shard, count, *_ = [*file.read().split(b"\0"), b"", b""]
    return named_call(key, os.fsdecode(shard), int(count)) if count else ""


def _check_apart(made: Sequence[Made]) -> None:
    keys = [key for key, _ in made]
    if len(set(keys)) < len(keys):
        twice = next(key for key, count in Counter(keys).items() if count > 1)
        raise CallError(f'it made two samples with the key "{to_text(twice)}"')


def _explained(transform: Transform, samples: Sequence[Taken], error: CallError) -> str:
    """Which call failed, on what, and why."""
    is_picture = transform.kind == "resize"
    what = "the picture" if is_picture else printable(shown_command(transform.what))
    return f"{what} failed for {named_call(samples[0].key, samples[0].shard, len(samples))}: {error}"


def named_call(key: bytes, shard: str, count: int) -> str:
    """The samples of a call, of which the first has this key."""
    more = f" and the {count - 1} after it" if count > 1 else ""
    return f'sample "{printable(to_text(key))}"{more} of {shown(shard)}'


def samples_taken(task: GatherTask) -> list[Taken]:
    """The planned samples, proven to be these."""
    rows = task.samples.part(0, task.samples.total).rows
    shards, places = rows["shard"].tolist(), rows["place"].tolist()
    data = gathered_bytes(task)
    batch = samples_of(data, task.address, task.settings.form)
    taken = []
    for row, key in enumerate(batch.keys):
        fields = [(field, bytes(payload)) for field, payload in payloads_of(data, batch, row)]
        taken.append(Taken(key, fields, task.inputs[shards[row]].address, places[row]))
    return taken
