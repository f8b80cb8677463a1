"""This module chooses how a plan runs: by gather or by spill, in how many processes, and with how much memory.

:func:`choose` makes the choice for ``--strategy auto``, and returns the reason. :class:`Limits` divides memory among
processes, plan and tasks. :func:`check_reach` refuses inputs and outputs that an engine's workers cannot reach, before
anything is read.

The strategy depends on the length of runs that are adjacent in inputs and output, on the places of the inputs, and on
the cost of scattered reads. For a store, that cost comes from requests and bytes, with measured latency and bandwidth.
For a disc, it comes from the time of some reads (:func:`disc_of`). The strategy does not change the output.

An idle process needs memory for Python and numpy, which was measured. As many processes start as fit in ``--memory``;
plan and tasks share the rest. If memory is too small, there is a warning, and the minimum is used. The page cache is
not counted, but buckets have such a size that some of them fit in it. Every path is assumed to be shared by all
workers, because this process cannot check it.

This module does not know how either strategy works, what the memory is for, or any engine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from math import ceil
from typing import NamedTuple

from wdscli.arrays import I64, Mask, Rows, numpy
from wdscli.errors import EngineError, UsageError
from wdscli.executors import default_jobs
from wdscli.executors.local import available
from wdscli.executors.tasks import find_engine
from wdscli.plan.inputs import Input, Inputs, is_of_this_process, is_read_once
from wdscli.plan.request import Request
from wdscli.plan.scratch import Scratch
from wdscli.plan.table import OrderedSamples, PlanTable
from wdscli.storage import is_local
from wdscli.storage.local import is_cold, will_need
from wdscli.storage.scatter import FIRST_GAP_BYTES, REQUEST_BYTES, line_to
from wdscli.units import human_size

LONG_RUN_BYTES = 1 << 20
"""Runs of this many bytes are read about as fast as a whole file, at any place."""
SHORT_GAP = 4
"""A gap is read, not skipped, if its length is at most this many times the length of the next sample."""
SPILL_WORTH_BYTES = 32 << 20
"""For fewer bytes than this, a second pass over local compressed files is never faster."""
EXPECTED_BYTES = 1 << 25
"""How many bytes are announced to remote inputs before they are read, in output order."""
SCRATCH_BYTES_PER_SECOND = 500e6
"""The assumed speed for writing and reading spilled samples."""
MEASURED_BYTES = 1 << 30
"""The disc is measured only for sets of at least this size."""
MEASURED_ROWS = 64
MEASURED_BYTES_IN_ORDER = 1 << 23
SLOWER = 3
"""Spilling is faster if scattered reads are this many times slower than reads in order. It reads and writes each byte
once more, and reads nothing scattered."""
_LOOKS = 16
_ROWS_PER_LOOK = 4096
MIB = 1 << 20
MAIN_BYTES = 44 * MIB
"""Resident bytes of the command itself, with numpy and progress bars, but without rows."""
WORKER_BYTES = 34 * MIB
"""Resident bytes of an idle worker, and of the memory that the command needs to start it."""
LEAST_TASK_BYTES = 8 * MIB
"""The smallest memory of a task, in bytes: buffers, some thousand rows, a small index."""
LEAST_PLAN_BYTES = 4 * MIB
SHARED = "give a folder or address that all workers share: --tmp DIR"
ALONE = "the workers of the engine share no scratch space (--tmp)"
STORED = "the tasks of a stored plan share no scratch space"


class Choice(NamedTuple):
    """A strategy and the reason for it."""

    strategy: str
    reason: str


AS_PLANNED = Choice("gather", "as the plan says")


def choose(request: Request, inputs: Sequence[Input], lists: Sequence[OrderedSamples]) -> Choice:
    """Choose the strategy for these rows and inputs. A join has one list of rows per set. Raises OutputError for
    scratch space that does not exist."""
    if is_away(request):
        return Choice("gather", STORED if request.plan_file is not None else ALONE)
    count = sum(1 for shard in inputs if shard.copy)
    copies = f"; {count} of {len(inputs)} inputs copied first, so that they are read once" if count else ""
    run, total = mean_run(lists)
    if request.strategy == "spill" and copies and not _has_room(request, total):
        return Choice("gather", f"copies of inputs take the space that spilling needs{copies}")
    if request.strategy != "auto":
        return Choice(request.strategy, f"as --strategy asks{copies}")
    runs = f"{human_size(run)} at a time"
    remote = sum(not shard.is_near for shard in inputs)
    compressed = sum(shard.is_packed for shard in inputs)
    if not (remote or compressed):
        is_fast = run >= LONG_RUN_BYTES or total < MEASURED_BYTES
        return _choose_here(request, None if is_fast else disc_of(inputs, lists[0]), total, runs + copies)
    count, what = (remote, "remote") if remote else (compressed, "compressed")
    slow = f"{count} of {len(inputs)} inputs are {what}"
    if run >= LONG_RUN_BYTES:
        return Choice("gather", f"{slow}, but samples are read {runs}{copies}")
    reason = f"{slow}, and samples are scattered, {runs}"
    if remote:
        address = next(shard.address for shard in inputs if not shard.is_near)
        line, spilling = line_to(address), Cost(remote + total // REQUEST_BYTES, total)
        gathering = cost_of_gathering(lists, line.gap_bytes)
        reason = f"{slow}: gathering takes {gathering}, spilling {spilling}"
        # Spilling writes and reads all samples one more time on this machine.
        here_seconds = total / SCRATCH_BYTES_PER_SECOND
        if line.seconds(*gathering) <= line.seconds(*spilling) + here_seconds:
            return Choice("gather", f"{reason}, {runs}{copies}")
    elif total < SPILL_WORTH_BYTES:
        return Choice("gather", f"{slow}, but {human_size(total)} are quickly read{copies}")
    if (free := _free(request)) is not None and free < total:
        return Choice(
            "gather", f"{reason}; but spilling needs {human_size(total)} and {human_size(free)} are free"
        )
    return Choice("spill", reason + copies)


def _choose_here(request: Request, disc: Disc | None, total: int, runs: str) -> Choice:
    """Choose for local inputs. ``disc`` is None if no reads are slow."""
    if disc is None:
        return Choice("gather", f"the inputs can be read in any order, {runs}")
    is_slow = disc.scattered * SLOWER < disc.in_order and _has_room(request, total)
    return Choice("spill" if is_slow else "gather", f"{disc}, {runs}")


class Cost(NamedTuple):
    """The approximate cost of one way to read from a store."""

    requests: int
    size_bytes: int

    def __str__(self) -> str:
        return f"{self.requests} request{'s' * (self.requests != 1)} and {human_size(self.size_bytes)}"


def cost_of_gathering(lists: Sequence[OrderedSamples], gap_bytes: int) -> Cost:
    """Return the cost of reading rows in output order, some MiB together. Gaps of less than ``gap_bytes`` are read too.
    The cost is estimated from some thousands of rows."""
    requests = size = 0.0
    for ordered in lists:
        sampled_rows = sampled_requests = sampled_bytes = 0
        for rows in _looks(ordered):
            rows = rows[: max(1, int(numpy.cumsum(rows["length"]).searchsorted(EXPECTED_BYTES)))]
            sampled_rows += len(rows)
            rows = rows[numpy.lexsort((rows["start"], rows["shard"]))]
            samples, gaps, apart = _gaps(rows)
            apart |= gaps >= gap_bytes
            sampled_requests += 1 + int(apart.sum())
            sampled_bytes += int(samples.lengths.sum()) + int(gaps[~apart].clip(0).sum())
        scale = ordered.total / max(1, sampled_rows)
        requests, size = requests + scale * sampled_requests, size + scale * sampled_bytes
    return Cost(ceil(requests) + int(size) // REQUEST_BYTES, int(size))


def _free(request: Request) -> int | None:
    """Return the free bytes for scratch files, or None if unknown. Raises OutputError if the folder does not exist."""
    return (
        None if request.tmp is not None and not is_local(request.tmp) else Scratch(request.tmp).free_bytes()
    )


def _has_room(request: Request, total: int) -> bool:
    """Return whether scratch space has ``total`` free bytes, as far as known. Raises OutputError."""
    free = _free(request)
    return free is None or free >= total


class Disc(NamedTuple):
    """The measured speed of the disc with the inputs, in bytes per second: for samples in output order, and for
    adjacent bytes."""

    scattered: float
    in_order: float

    def __str__(self) -> str:
        scattered, in_order = (f"{human_size(int(rate))}/s" for rate in self)
        return f"the disc reads scattered samples at {scattered}, and adjacent ones at {in_order}"


def disc_of(inputs: Sequence[Input], ordered: OrderedSamples) -> Disc | None:
    """Read some samples to measure the disc. Return None if most of the inputs are in memory already. Raises
    InputError."""
    middle = ordered.total // 2
    rows = ordered.part(middle, middle + MEASURED_ROWS)
    with Inputs(dict(enumerate(inputs))) as files, Inputs(dict(enumerate(inputs))) as files_in_order:
        lengths = rows.lengths.clip(max=LONG_RUN_BYTES)  # one sample may be larger than memory
        places = zip(rows.shards.tolist(), rows.starts.tolist(), lengths.tolist())
        ranges = [(files[shard], start, length) for shard, start, length in places if length]
        cold = [
            (source, start, length)
            for source, start, length in ranges
            if source.fd is not None and is_cold(source.fd, start + length // 2)
        ]
        if len(cold) * 2 < MEASURED_ROWS:
            return None
        begin = time.perf_counter()
        will_need((source.fd, start, length) for source, start, length in cold)
        size = sum(len(source.read_at(start, length)) for source, start, length in cold)
        scattered = size / (time.perf_counter() - begin)
        shard, start = int(rows.shards[-1]), int(rows.starts[-1])
        begin = time.perf_counter()
        size = len(files_in_order[shard].read_at(start, MEASURED_BYTES_IN_ORDER))
        return Disc(scattered, size / (time.perf_counter() - begin))


def mean_run(lists: Sequence[OrderedSamples]) -> tuple[int, int]:
    """Return the mean length in bytes of runs that are adjacent in inputs and output, short gaps included. Also return
    the approximate bytes of all samples. Both are estimated from some thousands of rows."""
    total = sum(ordered.total for ordered in lists)
    if not total:
        return 0, 0
    size = sampled_rows = runs = 0
    for ordered in lists:
        for rows in _looks(ordered):
            sampled_rows += len(rows)
            samples, gaps, apart = _gaps(rows)
            most = numpy.minimum(samples.lengths[1:] * numpy.uint64(SHORT_GAP), FIRST_GAP_BYTES)
            runs += 1 + int((apart | (gaps < 0) | (gaps > most.astype(numpy.int64))).sum())
            size += int(samples.lengths.sum())
    return size // runs, size * total // sampled_rows


def _looks(ordered: OrderedSamples) -> Iterator[Rows]:
    """Yield some thousands of rows, a few from each region."""
    for first in range(0, ordered.total, max(1, ordered.total // _LOOKS, _ROWS_PER_LOOK)):
        yield ordered.part(first, min(first + _ROWS_PER_LOOK, ordered.total)).rows


def _gaps(rows: Rows) -> tuple[PlanTable, I64, Mask]:
    """Return the rows that have bytes, because placeholder rows of a join have none. For each row, also return the
    bytes between it and the next row, and whether the next row is from a different input."""
    samples = PlanTable(rows[rows["length"] > 0])
    ends = (samples.starts + samples.lengths).astype(numpy.int64)
    return (
        samples,
        samples.starts[1:].astype(numpy.int64) - ends[:-1],
        samples.shards[1:] != samples.shards[:-1],
    )


def check_reach(request: Request, inputs: Sequence[str], *, is_stream: bool) -> None:
    """Raise UsageError for an unknown engine, and for inputs, outputs and options that only this process can use."""
    check_post(request.post, request.output, is_stream=is_stream)
    if request.plan_file is not None and request.strategy == "spill":
        raise UsageError(STORED, hint="leave out --strategy spill")
    if request.plan_file is not None and request.resume:
        raise UsageError(
            "--plan writes no shards, so --resume cannot be combined with it",
            hint="leave out --resume; wds run FILE makes only missing shards",
        )
    if request.engine is None:
        return
    find_engine(request.engine)
    for address in inputs:
        if is_read_once(address) or is_of_this_process(address):
            raise UsageError(
                f"the workers of {request.engine} cannot read {address}",
                hint="copy it to a shared place first: wds cat SHARD -o plain.tar",
            )
    if is_stream or is_of_this_process(request.output):
        raise UsageError(
            f"the workers of {request.engine} cannot write {request.output}",
            hint="give a folder or address that all workers share: -o 'DIR/out-%06d.tar'",
        )
    if request.strategy == "spill":
        check_scratch(request)


def check_scratch(request: Request) -> None:
    """Raise UsageError if samples would be spilled to a place that workers cannot reach."""
    if request.engine is not None and request.tmp is None:
        raise UsageError("--strategy spill on an engine needs scratch space", hint=SHARED)


def is_away(request: Request) -> bool:
    """Return whether tasks have no common scratch space. This is so for a stored plan, and for an engine without
    ``--tmp``."""
    return request.plan_file is not None or (request.engine is not None and request.tmp is None)


def check_post(command: str | None, output: str, *, is_stream: bool) -> None:
    """Raise UsageError for ``--post`` with shards that have no name."""
    if command is not None and is_stream:
        raise UsageError(f"--post needs shards with names, but {output} has no names", hint="-o out-%06d.tar")
    if command is not None and not command.strip():
        raise UsageError("--post needs a command", hint="--post 'sha256sum {}'")


class Limits(NamedTuple):
    """Limits of memory and processes. While the plan is made, its columns may take ``plan`` bytes, and no other process
    works. Later, at most ``jobs`` processes run, and the buffers of a task may take ``task`` bytes. ``cache`` bytes
    surely fit in the page cache. ``is_user_set`` says that the user set a limit."""

    jobs: int
    plan: int
    task: int
    cache: int
    is_user_set: bool = False
    warning: str = ""


def limits_for(memory: int | None, jobs: int | None, held: int = 0) -> Limits:
    """Return the limits for ``--memory`` and ``--jobs``. If ``memory`` is None, use the memory that the machine can
    spare. A finished plan already takes ``held`` bytes."""
    wanted = default_jobs() if jobs is None else jobs
    free = available()
    cache = _between(64 * MIB, free // (4 * wanted), 1 << 30)
    if memory is None:
        spare = max(free // 2, 256 * MIB)
        return Limits(wanted, spare // 2, _between(LEAST_TASK_BYTES, spare // (4 * wanted), 64 * MIB), cache)
    fitting = max((count for count in range(1, wanted + 1) if least(count) + held <= memory), default=1)
    warning = ""
    if least(1) > memory:
        warning = f"--memory {human_size(memory)} is less than the minimum, {human_size(least(1))}"
    buffer_bytes = max(0, memory - least(fitting) - held)
    return Limits(
        fitting,
        max(LEAST_PLAN_BYTES, memory - MAIN_BYTES),
        _between(MIB, buffer_bytes // (3 * fitting), 256 * MIB),
        cache,
        is_user_set=True,
        warning=warning,
    )


def least(jobs: int) -> int:
    """Return the smallest memory for this many jobs, in bytes. A single job runs in the command's own process."""
    processes = MAIN_BYTES if jobs == 1 else MAIN_BYTES + jobs * WORKER_BYTES
    return processes + jobs * LEAST_TASK_BYTES + LEAST_PLAN_BYTES


def check_fits(samples: int, bytes_per_sample: int, limits: Limits) -> None:
    """Refuse a plan that does not fit in memory, before it is made. Raises UsageError if ``--memory`` is too small, and
    EngineError if the machine's memory is too small."""
    needed = samples * bytes_per_sample
    text = f"a plan of {samples} samples takes {human_size(needed)} of memory"
    if limits.is_user_set and needed > limits.plan:
        raise UsageError(
            f"{text}, but --memory leaves only {human_size(limits.plan)} for it",
            hint=f"--memory {-(-(needed + MAIN_BYTES) // MIB)}MiB",
        )
    if not limits.is_user_set and needed > available():
        raise EngineError(
            f"{text}, but only {human_size(available())} are free",
            hint="reorder the set part by part, or use a larger machine",
        )


def _between(low: int, value: int, high: int) -> int:
    return max(low, min(value, high))
