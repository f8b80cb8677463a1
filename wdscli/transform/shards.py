"""The maker of ``wds map``, which makes shards of transformed samples.

:class:`TransformMaker` cuts planned shards into slices (:class:`Slices`). Any process can run a slice, because
:func:`transform_slice` is a pure function of a :class:`SliceTask`. The copier reads the samples into one archive in
memory, and compares every header with the plan. A slice contains only whole calls, and a call has samples of only one
shard. So the input of a call does not depend on slices. A slice should take some tenths of a second; the time of
earlier slices decides its size. :func:`write_slices` writes a shard from the results of its slices.
:func:`transform_folder` makes the scratch folder for commands.

This module does not know how a sample is transformed.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import groupby
from operator import attrgetter
from shutil import disk_usage, rmtree
from tempfile import gettempdir, mkdtemp
from typing import NamedTuple

from wdscli.copy.copier import Copier, GatherTask
from wdscli.copy.maker import Maker, ShardTasks
from wdscli.errors import DataError, EngineError, WdsError, failing, printable, shard_words
from wdscli.executors import LostWorkerError, default_jobs, make_executor, run_tasks, separate_executor
from wdscli.model import PendingCommit, ShardInfo
from wdscli.plan.inputs import Inputs, is_of_this_process
from wdscli.plan.plan import ReorderPlan
from wdscli.plan.request import Request
from wdscli.progress import Progress
from wdscli.samples import SampleBatch, group_columns, iter_batches
from wdscli.samples.keys import KeySet
from wdscli.shards.writing import ShardFile, ShardSettings
from wdscli.shown import shown_command
from wdscli.storage import is_local, local_path, open_source
from wdscli.storage.ends import Data, Sink
from wdscli.storage.streams import is_running
from wdscli.tar import Form, Scanner
from wdscli.text import to_text
from wdscli.transform.commands import RUNNING, end_group
from wdscli.transform.transform import CallError, InputSample, OutputSample, Remark, Transform

PREFIX = "wds-map-"
"""Prefix of the name of a run's folder. The process id follows."""
MEMORY_FOLDER = "/dev/shm"
ROOM_BYTES = 1 << 30
"""With this much free memory, scratch folders are made in memory."""
SLICE_BYTES = 1 << 24
"""The most bytes of samples in one task. Only a task with a single call may have more."""
SLICE_SECONDS = 0.2
MOST_CALLS = 4096
FAILURES_NAMED = 3
REMARKS_KEPT = 20
"""The most remarks that a slice returns, and that a run says."""
RUNNING_CALL = "call-"
"""Prefix of the files in which workers record the samples of their current call."""
FAILED, LEFT_OUT, KEPT, NOTHING_NEW = "failed", "left-out-by-map", "kept", "no-new-fields"
"""Reasons in the counts of samples. In order: the call failed; the call returned nothing; the call failed but the
sample is kept; with ``new_fields``, the call returned no new field."""


class SliceTask(NamedTuple):
    """The task for some samples of one planned shard. ``shard`` is the shard's number, and ``folder`` is for the
    scratch folders of commands. ``samples`` has the samples if only the planning process can read them."""

    shard: int
    gather: GatherTask
    transform: Transform
    folder: str
    samples: Sequence[InputSample] | None = None

    def held(self) -> SliceTask:
        """Read the samples, and return the same task with them."""
        return self._replace(samples=samples_taken(self.gather))


class CallResult(NamedTuple):
    """The result of a call: how many samples it took, and the new samples in order."""

    taken: int
    samples: Sequence[OutputSample]


class SliceResult(NamedTuple):
    """The result of a slice: its calls in order, and the errors of the first failed calls. ``taken`` counts the samples
    of all calls, and ``counts`` counts omitted and kept samples by reason. ``touched`` counts samples with a field that
    an option names. ``remarks`` counts the pictures of each remark."""

    shard: int
    calls: Sequence[CallResult]
    taken: int
    counts: Mapping[str, int]
    failures: Sequence[str]
    touched: int
    seconds: float
    remarks: Mapping[Remark, int]


class Slices:
    """Tasks of several shards, in order; :meth:`adapt` adjusts their size."""

    def __init__(self, transform: Transform, folder: str) -> None:
        self._transform = transform
        self._folder = folder
        self._calls = 1 if transform.is_slow else 4

    def of(self, shard: int, task: GatherTask, first: int = 0) -> Iterator[SliceTask]:
        """Yield the tasks of one shard, by its number, from its sample ``first`` on. A shard without samples has one
        task too."""
        samples, batch = task.samples, self._transform.batch
        lengths = samples.column("length", 0, samples.total)
        while first < samples.total or not first:
            end = min(first + batch * self._calls, samples.total)
            while end > first + batch and int(lengths[first:end].sum()) > SLICE_BYTES:
                end = first + max((end - first) // batch // 2, 1) * batch
            sliced = samples.slice(first, end)
            inputs = {number: task.inputs[number] for number in sliced.shard_numbers()}
            gather = task._replace(samples=sliced, inputs=inputs)
            yield SliceTask(shard, gather, self._transform, self._folder)
            first = max(end, 1)

    def adapt(self, result: SliceResult) -> None:
        """Adapt the size of the next tasks to the time that this task took."""
        calls = max(1, result.taken // self._transform.batch)
        fitting = int(calls * SLICE_SECONDS / max(result.seconds, 1e-6))
        self._calls = max(1, min(fitting, 2 * self._calls, MOST_CALLS))


def transform_slice(task: SliceTask) -> SliceResult:
    """Transform the samples of a task. Raises the errors of reading, and EngineError or DataError for a failed call if
    the transform stops at failures."""
    began, transform = time.perf_counter(), task.transform
    samples = samples_taken(task.gather) if task.samples is None else task.samples
    counts: Counter[str] = Counter()
    remarks: Counter[Remark] = Counter()
    failures: list[str] = []
    calls: list[CallResult] = []
    call = transform.call(task.folder, remarks)
    with _calls_noted(task.folder) as note:
        for first in range(0, len(samples), transform.batch):
            inputs = samples[first : first + transform.batch]
            note(inputs)
            try:
                outputs = _checked_outputs(transform, inputs, call(inputs))
            except CallError as error:
                failure = _failure(transform, inputs, error)
                if transform.on_failure == "stop":
                    raise failure from None
                counts[KEPT if transform.on_failure == "keep" else FAILED] += len(inputs)
                failures.append(str(failure))
                kept = inputs if transform.on_failure == "keep" else ()
                outputs = [(sample.key, sample.fields) for sample in kept]
            else:
                counts[NOTHING_NEW if transform.new_fields else LEFT_OUT] += max(
                    0, len(inputs) - len(outputs)
                )
            calls.append(CallResult(len(inputs), outputs))
    touched = 0
    if transform.named_fields:
        touched = sum(
            any(transform.is_named(to_text(field)) for field, _ in sample.fields) for sample in samples
        )
    first_failures, kept_remarks = failures[:FAILURES_NAMED], dict(remarks.most_common(REMARKS_KEPT))
    seconds = time.perf_counter() - began
    return SliceResult(
        task.shard, calls, len(samples), +counts, first_failures, touched, seconds, kept_remarks
    )


@contextmanager
def _calls_noted(folder: str) -> Iterator[Callable[[Sequence[InputSample]], object]]:
    """A context manager with a function that records the samples of the next call in a file in ``folder``. Each process
    has its own file. The file remains only if the process dies."""
    if not folder:
        yield len
        return
    path = f"{folder}/{RUNNING_CALL}{os.getpid()}"
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)

    def note(samples: Sequence[InputSample]) -> None:
        # Write bytes, because formatting text takes longer than a small call.
        first = samples[0]
        os.pwrite(file, b"%b\0%b\0%d\0" % (first.key, os.fsencode(first.shard), len(samples)), 0)

    try:
        yield note
    finally:
        os.close(file)
        with suppress(OSError):
            os.unlink(path)


def noted_call(path: str) -> str:
    """Return the samples of a recorded call as text for messages. It is empty if no call had begun."""
    with open(path, "rb") as file:
        key, shard, count, *_ = [*file.read().split(b"\0"), b"", b""]
    return named_call(key, os.fsdecode(shard), int(count)) if count else ""


def _checked_outputs(
    transform: Transform, inputs: Sequence[InputSample], outputs: list[OutputSample]
) -> list[OutputSample]:
    """Return the new samples of a call. Raises CallError for a repeated key, and for a sample without fields."""
    keys = [key for key, _ in outputs]
    if len(set(keys)) < len(keys):
        repeated = next(key for key, count in Counter(keys).items() if count > 1)
        raise CallError(f'it made two samples with the key "{to_text(repeated)}"')
    if transform.new_fields:
        return _new_fields(inputs, outputs)
    if empty := [key for key, fields in outputs if not fields]:
        raise CallError(f'the sample "{to_text(empty[0])}" has no fields')
    return outputs


def _new_fields(inputs: Sequence[InputSample], outputs: Sequence[OutputSample]) -> list[OutputSample]:
    """Return the new samples in the order of ``inputs``. Each has only the fields that its source lacks; if there is
    no such field, it is left out. Raises CallError for a key that is not in ``inputs``."""
    old_fields = {sample.key: {field for field, _ in sample.fields} for sample in inputs}
    if new_keys := [key for key, _ in outputs if key not in old_fields]:
        raise CallError(f'it made the new key "{to_text(new_keys[0])}", but --new-fields needs the old keys')
    added = {key: [pair for pair in fields if pair[0] not in old_fields[key]] for key, fields in outputs}
    return [(key, added[key]) for key in old_fields if added.get(key)]


def _failure(transform: Transform, samples: Sequence[InputSample], error: CallError) -> WdsError:
    """Return the error of a failed call: what failed, the sample and the reason. A picture that cannot be changed is
    bad data."""
    way_on = "to continue: --on-error skip leaves these samples out, --on-error keep keeps them"
    first = samples[0]
    if transform.kind == "resize":
        verb = "encode" if transform.mode == "no" else "resize"
        field = f".{error.field}" if error.field else ""
        return DataError(
            f"cannot {verb} the picture: {error}",
            code="undecodable",
            shard=first.shard,
            member=f"{to_text(first.key)}{field}",
            hint=error.hint or way_on,
        )
    command = printable(shown_command(transform.what))
    field = f"field {error.field}: " if error.field else ""
    return EngineError(
        f"cannot transform {named_call(first.key, first.shard, len(samples))} with --{transform.kind} {command}: "
        f"{field}{error}",
        hint=error.hint or way_on,
    )


def named_call(key: bytes, shard: str, count: int) -> str:
    """Return a text for the samples of a call. Its first sample has this key."""
    following = f" and the {count - 1} after it" if count > 1 else ""
    return f'sample "{printable(to_text(key))}"{following} of {shard_words(shard)}'


def samples_taken(task: GatherTask) -> list[InputSample]:
    """Read the planned samples, and compare them with the plan. Raises DataError."""
    rows = task.samples.part(0, task.samples.total).rows
    shards, places = rows["shard"].tolist(), rows["place"].tolist()
    data = gathered_bytes(task)
    batch = parsed_samples(data, task.address, task.settings.form)
    taken = []
    for row, key in enumerate(batch.keys):
        fields = [(field, bytes(payload)) for field, payload in payloads_of(data, batch, row)]
        taken.append(InputSample(key, fields, task.inputs[shards[row]].address, places[row]))
    return taken


class TransformMaker(Maker):
    """Makes shards of transformed samples. The tasks are slices of shards, and this process writes their results. So
    all processors are busy, with few large shards and with many small shards."""

    has_planned_sizes = False

    def __init__(self, plan: ReorderPlan, transform: Transform) -> None:
        super().__init__(plan)
        self.transform = transform
        self._taken = self._touched = 0
        self._counts: Counter[str] = Counter()
        self._remarks: Counter[Remark] = Counter()
        self._failures: list[str] = []

    def dropped(self) -> dict[str, int]:
        return {reason: count for reason, count in self._counts.items() if reason != KEPT}

    @property
    def rolls(self) -> bool:  # type: ignore[override]
        has_limit = self.request.cuts.max_count is not None
        return has_limit and self.transform.may_change_counts and not self.plan.is_stored

    @contextmanager
    def tasks(self, numbers: Sequence[int], progress: Progress) -> Iterator[ShardTasks]:
        tasks = dict[int, GatherTask]()

        def gather_tasks() -> Iterator[tuple[int, GatherTask, int]]:
            for number in numbers:
                tasks[number] = self.gather_task(number)
                yield number, tasks[number], 0

        samples = sum(self.contents.shards[number].samples for number in numbers)
        with self._results(gather_tasks(), samples, progress) as results, make_executor(1) as main_process:
            by_shard = groupby(results, key=attrgetter("shard"))
            yield ShardTasks(
                main_process,
                (
                    (tasks.pop(number), partial(write_slices, slice_results))
                    for number, slice_results in by_shard
                ),
                None,
            )

    @contextmanager
    def calls_from(self, row: int, progress: Progress) -> Iterator[Iterator[CallResult]]:
        """A context manager with the results of all calls, in order, from the call that begins at input ``row`` on."""
        shards = self.contents.shards
        gather_tasks = (
            (number, self.gather_task(number), max(row - shard.first, 0))
            for number, shard in enumerate(shards)
            if shard.end > row
        )
        samples = sum(shard.samples for shard in shards) - row
        with self._results(gather_tasks, samples, progress) as results:
            yield (call for result in results for call in result.calls)

    @contextmanager
    def _results(
        self, gather_tasks: Iterable[tuple[int, GatherTask, int]], samples: int, progress: Progress
    ) -> Iterator[Iterator[SliceResult]]:
        """A context manager with the results of the slices of some shards, in order. A shard has its number, its task,
        and the sample at which its slices begin. ``samples`` is the number of samples to take."""
        request, contents = self.request, self.contents
        with (
            transform_folder(request) as folder,
            lost_calls_named(folder),
            self._workers(samples) as executor,
        ):
            is_local_only = any(map(is_of_this_process, [request.tmp or "", *contents.addresses]))
            slices = Slices(self.transform, folder)
            progress.start("mapping", samples, "samples")

            def all_slices() -> Iterator[SliceTask]:
                for number, gather, first in gather_tasks:
                    for slice_task in slices.of(number, gather, first):
                        yield slice_task.held() if is_local_only else slice_task

            def results() -> Iterator[SliceResult]:
                for result in run_tasks(executor, transform_slice, all_slices()):
                    slices.adapt(result)
                    self._add(result)
                    progress.advance(result.taken)
                    yield result

            yield results()
        self._warn(progress)

    def _warn(self, progress: Progress) -> None:
        """Warn of failed calls, of changes that the user may not expect, and of missing samples."""
        for failure in self._failures:
            progress.warn(failure)
        for remark, count in self._remarks.most_common(REMARKS_KEPT):
            pictures = "1 picture" if count == 1 else f"{count} pictures"
            progress.warn(f"field {printable(remark.field)}: {pictures} {remark.change}")
        if unchanged := self._counts[KEPT]:
            progress.warn(f"kept {unchanged} samples unchanged, because their calls failed")
        lacking = sum(self.dropped().values()) if self.transform.new_fields else 0
        if 0 < lacking < self._taken:
            progress.warn(f"{lacking} samples have no new fields: join both sets with wds merge --join left")

    def _add(self, result: SliceResult) -> None:
        """Add the counts of a result."""
        self._taken += result.taken
        self._touched += result.touched
        self._counts += Counter(result.counts)
        self._remarks.update(result.remarks)
        self._failures = [*self._failures, *result.failures][:FAILURES_NAMED]

    def _workers(self, samples: int) -> Executor:
        """Return the executor that transforms this many samples."""
        request = self.request
        jobs = min(request.jobs or default_jobs(), -(-samples // self.transform.batch) or 1)
        if self.transform.kind != "python" or request.engine is not None:
            return self.executor(jobs)
        return request.workers or separate_executor(jobs)

    def check_shard(self, number: int, info: ShardInfo) -> None:
        """Accept any shard: its contents are unknown before they are made."""

    def check_set(self, written: Sequence[ShardInfo], *, has_made_all: bool) -> None:
        """Raise DataError for a named field that no sample has, and for a key that two shards have."""
        transform, shards = self.transform, self.contents.shards
        if transform.named_fields and has_made_all and self._taken and not self._touched:
            raise DataError(
                f'no sample has a {"picture" if transform.only else "field"} "{transform.named_fields}"',
                code="missing-field",
                hint="`wds ls --summary SHARDS` lists the fields",
            )
        if transform.new_fields and has_made_all and self._taken and self._taken == self._counts[NOTHING_NEW]:
            raise DataError(
                "no call made a new field: all fields already exist in their samples",
                code="missing-field",
                hint="give the new payloads names of their own, such as txt",
            )
        if not transform.may_change_keys or len(shards) < 2:
            return
        keys = KeySet()
        for shard in shards:
            with open_source(shard.address) as source:
                for batch in iter_batches(source):
                    if repeated := keys.add(batch.keys):
                        raise _twice(batch.keys[repeated[0]], shard.address)


@contextmanager
def transform_folder(request: Request) -> Iterator[str]:
    """Make a folder for the scratch folders of commands, and remove it after the block. The folder is in ``--tmp`` if
    given, else in memory if enough is free, else in TMPDIR. With an engine, the name is empty, and each machine uses
    its TMPDIR. Raises OutputError."""
    if request.engine is not None:
        yield ""
        return
    parent = gettempdir()
    if request.tmp is not None and is_local(request.tmp):
        parent = os.path.abspath(local_path(request.tmp))
    elif os.access(MEMORY_FOLDER, os.W_OK) and disk_usage(MEMORY_FOLDER).free > ROOM_BYTES:
        parent = MEMORY_FOLDER
    with failing(f"make a folder in {parent}", "give a folder with free space: --tmp DIR"):
        _remove_abandoned(parent)
        folder = mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent)
    try:
        yield folder
    finally:
        _end_commands(folder)
        rmtree(folder, ignore_errors=True)


def _remove_abandoned(parent: str) -> None:
    """Remove folders that remain from killed runs of this user."""
    for entry in os.scandir(parent):
        process = entry.name.removeprefix(PREFIX).partition("-")[0]
        if not (
            entry.name.startswith(PREFIX) and process.isdecimal() and entry.is_dir(follow_symlinks=False)
        ):
            continue
        if entry.stat(follow_symlinks=False).st_uid == os.getuid() and not is_running(int(process)):
            rmtree(entry.path, ignore_errors=True)


def _end_commands(folder: str) -> None:
    """End the commands of workers that were killed."""
    for name in os.listdir(folder):
        number = name.removeprefix(RUNNING)
        if number != name and number.isdecimal():
            end_group(int(number))


@contextmanager
def lost_calls_named(folder: str) -> Iterator[None]:
    """If a worker dies in the block, add the samples of its current call to the error. The block must end the other
    workers, which then remove their records."""
    try:
        yield
    except LostWorkerError as error:
        if not folder:
            raise
        notes = [name for name in sorted(os.listdir(folder)) if name.startswith(RUNNING_CALL)]
        calls = list(filter(None, (noted_call(f"{folder}/{name}") for name in notes)))
        if not calls:
            raise
        raise EngineError(
            f"{error.message} at {' or '.join(calls)}",
            hint="it crashed, called os._exit, or was killed for lack of memory (use a smaller -j)",
        ) from None


def write_slices(results: Iterable[SliceResult], task: GatherTask) -> PendingCommit[ShardInfo]:
    """Write one shard from the results of its slices. The caller commits the shard. Raises DataError for a repeated
    key."""
    keys, taken = KeySet(), 0
    with task.settings.open(task.address) as shard:
        for result in results:
            taken += result.taken
            for call in result.calls:
                write_samples(call.samples, shard, keys)
        if taken != task.samples.total:
            raise EngineError(f"{taken} of {task.samples.total} samples of {task.address} were transformed")
        return shard.end()


def write_samples(samples: Sequence[OutputSample], shard: ShardFile, keys: KeySet) -> None:
    """Write new samples to a shard. ``keys`` has the keys of the shard. Raises DataError for a repeated key."""
    if repeated := keys.add([key for key, _ in samples]):
        raise _twice(samples[repeated[0]][0], shard.address)
    for key, fields in samples:
        shard.write(key, fields)


def _twice(key: bytes, address: str) -> DataError:
    return DataError(
        f'the key "{os.fsdecode(key)}" is made twice',
        code="duplicate-key",
        shard=address,
        hint="keys must be unique: give each sample its own __key__; with --multi, give each file its own name",
    )


def gathered_bytes(task: GatherTask) -> memoryview:
    """Return the samples of a task as the bytes that the shard would have, without the end of archive. Raises the
    errors of :func:`gather`."""
    memory = _Memory(task.address)
    settings = ShardSettings(task.settings.form, "none", with_index=False)
    with Inputs(task.inputs) as inputs, ShardFile(task.address, settings, memory) as shard:
        Copier(task, inputs, shard).run()
        inputs.confirm()
        shard.flush()
    return memoryview(memory.data)


def parsed_samples(data: memoryview, address: str, form: Form) -> SampleBatch:
    """Parse the samples in the result of :func:`gathered_bytes`."""
    scanner = Scanner(address, form=form)
    scanner.feed(data, 0)
    return group_columns(scanner.take(), address)


def payloads_of(data: memoryview, batch: SampleBatch, row: int) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the fields of one of these samples with their payloads, in the order of the sample."""
    for member in range(batch.firsts[row], batch.firsts[row + 1]):
        yield batch.fields[member], data[batch.offsets[member] :][: batch.sizes[member]]


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
