"""Shards of transformed samples: the maker of ``wds map``.

:class:`TransformMaker` runs slices of shards in other processes. :func:`write_slices` writes a shard from their
results. :func:`transform_folder` makes the scratch folder of commands. This module does not know how a sample is
transformed.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from operator import attrgetter
from shutil import disk_usage, rmtree
from tempfile import gettempdir, mkdtemp

from wdscli.copy.copier import GatherTask
from wdscli.copy.maker import Maker, ShardTasks
from wdscli.errors import DataError, EngineError, OutputError
from wdscli.executors import LostWorkerError, default_jobs, make_executor, run_tasks, separate_executor
from wdscli.model import PendingCommit, ShardInfo
from wdscli.plan.inputs import is_of_this_process
from wdscli.plan.plan import ReorderPlan
from wdscli.plan.request import Request
from wdscli.progress import Progress
from wdscli.samples import iter_batches
from wdscli.samples.keys import KeySet
from wdscli.storage import is_local, local_path, open_source
from wdscli.transform.commands import RUNNING, end_group
from wdscli.transform.slices import (
    FAILURES_NAMED,
    KEPT,
    NOTHING_NEW,
    RUNNING_CALL,
    SliceResult,
    Slices,
    SliceTask,
    noted_call,
    transform_slice,
)
from wdscli.transform.transform import Transform

PREFIX = "wds-map-"
"""Prefix of a run's folder; the process id follows."""
MEMORY_FOLDER = "/dev/shm"
ROOM_BYTES = 1 << 30
"""With this much free memory, scratch folders are made in memory."""


class TransformMaker(Maker):
    """Makes shards of transformed samples. Slices of shards are tasks, and this process writes their results, so that
    all processors are busy whatever the shape of the set."""

    has_planned_sizes = False

    def __init__(self, plan: ReorderPlan, transform: Transform) -> None:
        super().__init__(plan)
        self.transform = transform
        self._taken = self._touched = 0
        self._counts: Counter[str] = Counter()
        self._failures: list[str] = []

    def dropped(self) -> dict[str, int]:
        return {reason: count for reason, count in self._counts.items() if reason != KEPT}

    @contextmanager
    def tasks(self, numbers: Sequence[int], progress: Progress) -> Iterator[ShardTasks]:
        request, contents = self.request, self.contents
        samples = sum(contents.shards[number].samples for number in numbers)
        with (
            transform_folder(request) as folder,
            lost_calls_named(folder),
            self._workers(samples) as executor,
            make_executor(1) as here,
        ):
            is_here = any(map(is_of_this_process, [request.tmp or "", *contents.addresses]))
            slices, tasks = Slices(self.transform, folder), dict[int, GatherTask]()
            progress.start("mapping", samples, "samples")

            def all_slices() -> Iterator[SliceTask]:
                for number in numbers:
                    tasks[number] = self.gather_task(number)
                    for one in slices.of(number, tasks[number]):
                        yield one.held() if is_here else one

            def results() -> Iterator[SliceResult]:
                for result in run_tasks(executor, transform_slice, all_slices()):
                    slices.adapt(result)
                    self._add(result)
                    progress.advance(result.taken)
                    yield result

            by_shard = groupby(results(), key=attrgetter("shard"))
            yield ShardTasks(
                here, ((tasks.pop(number), partial(write_slices, some)) for number, some in by_shard), None
            )
        for failure in self._failures:
            progress.warn(failure)
        if unchanged := self._counts[KEPT]:
            progress.warn(f"kept {unchanged} samples as they were, because their calls failed")
        lacking = sum(self.dropped().values()) if self.transform.new_fields else 0
        if 0 < lacking < self._taken:
            progress.warn(f"{lacking} samples have no new fields: join both sets with wds merge --join left")

    def _add(self, result: SliceResult) -> None:
        """Count a result."""
        self._taken += result.taken
        self._touched += result.touched
        self._counts += Counter(result.counts)
        self._failures = [*self._failures, *result.failures][:FAILURES_NAMED]

    def _workers(self, samples: int) -> Executor:
        """The processes that transform so many samples."""
        request = self.request
        jobs = min(request.jobs or default_jobs(), -(-samples // self.transform.batch) or 1)
        if self.transform.kind != "python" or request.engine is not None:
            return self.executor(jobs)
        return request.workers or separate_executor(jobs)

    def check_shard(self, number: int, info: ShardInfo) -> None:
        """Accept any shard: its contents are unknown before they are made."""

    def check_set(self, written: Sequence[ShardInfo], *, has_made_all: bool) -> None:
        """Raise DataError for a filter of a field that no sample has, and for a key that two shards have."""
        transform, shards = self.transform, self.contents.shards
        if transform.kind == "filter" and has_made_all and self._taken and not self._touched:
            raise DataError(
                f'no sample has a field "{transform.field}"',
                code="missing-field",
                hint="`wds ls --summary SHARDS` lists the fields",
            )
        if transform.new_fields and has_made_all and self._taken and self._taken == self._counts[NOTHING_NEW]:
            raise DataError(
                "no call made a field that its sample does not have",
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
    """A folder for the scratch folders of commands, removed after the block: in ``--tmp``, else in memory if there is
    room, else in TMPDIR. With an engine it is empty: each machine uses its TMPDIR. Raises OutputError."""
    if request.engine is not None:
        yield ""
        return
    parent = gettempdir()
    if request.tmp is not None and is_local(request.tmp):
        parent = os.path.abspath(local_path(request.tmp))
    elif os.access(MEMORY_FOLDER, os.W_OK) and disk_usage(MEMORY_FOLDER).free > ROOM_BYTES:
        parent = MEMORY_FOLDER
    try:
        _remove_abandoned(parent)
        folder = mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent)
    except OSError as error:
        raise OutputError(
            f"cannot make a folder in {parent}: {error.strerror}", hint="name one with room: --tmp DIR"
        ) from error
    try:
        yield folder
    finally:
        _end_commands(folder)
        rmtree(folder, ignore_errors=True)


def _remove_abandoned(parent: str) -> None:
    """Remove folders that killed runs of this user left behind."""
    for entry in os.scandir(parent):
        process = entry.name.removeprefix(PREFIX).partition("-")[0]
        if not (
            entry.name.startswith(PREFIX) and process.isdecimal() and entry.is_dir(follow_symlinks=False)
        ):
            continue
        if entry.stat(follow_symlinks=False).st_uid == os.getuid() and not _is_running(int(process)):
            rmtree(entry.path, ignore_errors=True)


def _end_commands(folder: str) -> None:
    """End the commands of workers that were killed."""
    for name in os.listdir(folder):
        number = name.removeprefix(RUNNING)
        if number != name and number.isdecimal():
            end_group(int(number))


@contextmanager
def lost_calls_named(folder: str) -> Iterator[None]:
    """Add to the error of a worker that died in the block the samples that it was working on. The block must end the
    other workers, which remove their notes."""
    try:
        yield
    except LostWorkerError as error:
        if not folder:
            raise
        notes = [name for name in sorted(os.listdir(folder)) if name.startswith(RUNNING_CALL)]
        found = list(filter(None, (noted_call(f"{folder}/{name}") for name in notes)))
        if not found:
            raise
        raise EngineError(
            f"{error.message} at {' or '.join(found)}",
            hint="it crashed, called os._exit, or was killed for lack of memory (use a smaller -j)",
        ) from None


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OverflowError:
        return False
    except OSError as error:
        return error.errno != errno.ESRCH
    return True


def write_slices(results: Iterable[SliceResult], task: GatherTask) -> PendingCommit[ShardInfo]:
    """Write one shard from the results of its slices; the caller commits it. Raises DataError for a repeated key."""
    keys, taken = KeySet(), 0
    with task.settings.open(task.address) as shard:
        for result in results:
            taken += result.taken
            repeated = keys.add([key for key, _ in result.samples])
            if repeated:
                raise _twice(result.samples[repeated[0]][0], task.address)
            for key, fields in result.samples:
                shard.write(key, fields)
        if taken != task.samples.total:
            raise EngineError(f"{taken} of {task.samples.total} samples of {task.address} were transformed")
        return shard.end()


def _twice(key: bytes, address: str) -> DataError:
    return DataError(
        f'the key "{os.fsdecode(key)}" is made twice',
        code="duplicate-key",
        shard=address,
        hint="keys must be unique: give each sample its own __key__, or with --multi each file its own name",
    )
