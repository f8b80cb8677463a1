"""This module makes the shards of a plan, each by one task.

:class:`Maker` copies byte ranges of the inputs. Subclasses make new samples
(:class:`wdscli.transform.shards.TransformMaker`) or pack files (:class:`wdscli.create.packing.PackMaker`).
:meth:`Maker.tasks` prepares the inputs and an executor, and returns :class:`ShardTasks`. Every shard is made by one
call of a function with one argument. The argument is created when it is needed.

:class:`CarriedValues` copies stored values from the indexes of the inputs to the indexes of the output. This is correct
because the payloads of copied samples do not change. The values of all inputs are in scratch space, not in memory.

This module does not know receipts, existing shards, or the meaning of values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any, NamedTuple

from wdscli.arrays import I64, numpy
from wdscli.copy.copier import GatherTask, gather
from wdscli.copy.spill import SpillLayout, spill
from wdscli.errors import DataError, EngineError, WdsError
from wdscli.executors import copying_worth, make_executor, useful_jobs
from wdscli.model import UNKNOWN, PendingCommit, ShardInfo
from wdscli.plan.cut import PlannedShard
from wdscli.plan.inputs import Input, is_of_this_process
from wdscli.plan.plan import ReorderPlan
from wdscli.plan.scratch import Scratch, hold_remote_shards
from wdscli.plan.strategy import check_scratch, limits_for
from wdscli.plan.table import Growing, OrderedSamples
from wdscli.progress import Progress
from wdscli.selection import Selection
from wdscli.selection.choice import FieldRule
from wdscli.selection.values import MISSING, Numbers, fields_of
from wdscli.shards.index import Check, Index
from wdscli.shards.proof import find_index, prove_index
from wdscli.storage import is_local, is_stream
from wdscli.storage.blocks import kind_of_name

BYTES_PER_SAMPLE = 2_000
"""A sample costs as much as copying this many bytes."""


class ShardTasks(NamedTuple):
    """One task per shard, in order. A task's argument has ``address`` and ``settings``, and the function ``make`` makes
    the shard from it. ``advance`` is called with the bytes written, and ``release`` with each finished shard."""

    executor: Executor
    tasks: Iterator[tuple[Any, Callable[[Any], PendingCommit[ShardInfo]]]]
    advance: Callable[[int], object] | None
    window: int | None = None
    release: Callable[[PlannedShard], object] | None = None


class Maker:
    """Makes the shards of a plan by copying the rows in its contents."""

    has_planned_sizes = True
    """Whether every shard has exactly the planned numbers of samples, members and bytes."""
    rolls = False
    """Whether the shards are cut while they are written, because the number of samples is not known before."""

    def __init__(self, plan: ReorderPlan) -> None:
        self.plan, self.request, self.contents = plan, plan.request, plan.contents
        self._values: CarriedValues | None = None

    @contextmanager
    def tasks(self, numbers: Sequence[int], progress: Progress) -> Iterator[ShardTasks]:
        """A context manager with the tasks of some shards, by number. The block must run all tasks. Raises the errors
        of opening inputs and executors."""
        request, contents = self.request, self.contents
        planned = [contents.shards[number] for number in numbers]
        size = sum(shard.size_bytes for shard in planned)
        held = sum(0 if rows.order is None else rows.order.nbytes for rows in contents.row_lists)
        # The memory of an engine's worker is for one task.
        jobs = request.jobs if request.engine is None else 1
        limits, spilled = limits_for(request.memory, jobs, held), None
        is_spill = self.plan.choice.strategy == "spill"
        if is_spill:
            check_scratch(request)
        # The first pass of a spill has its own tasks. If the output is one stream, this process writes it.
        work = size + BYTES_PER_SAMPLE * sum(shard.samples for shard in planned)
        places = [request.output, *contents.addresses]
        waits = bool(request.post) or not all(map(is_local, places))
        most = limits.jobs if is_spill else len(planned)
        useful = useful_jobs(request.jobs, most, work, copying_worth(*places), waits=waits)
        jobs = min(limits.jobs, useful)
        with (
            Scratch(request.tmp) as scratch,
            hold_remote_shards(self._inputs_to_hold(planned), scratch, progress, whole=True),
            self.executor(jobs) as executor,
        ):
            if is_spill:
                spilled = spill(self.plan, planned, executor, scratch, limits, progress)
            self._values = CarriedValues.of(self.plan)
            progress.start("writing", size, "bytes")
            yield ShardTasks(
                executor,
                ((self.gather_task(number, spilled), gather) for number in numbers),
                progress.advance,
                release=None if spilled is None else spilled.release,
            )
            for shard in contents.inputs if is_spill else ():
                shard.confirm()

    def _inputs_to_hold(self, shards: Sequence[PlannedShard]) -> list[str]:
        """Return the addresses that some shards of a kept plan read, if it is useful to copy them first. Other plans
        need no copies here."""
        if not self.plan.brings:
            return []
        rows = (self.contents.ordered.slice(shard.first, shard.end) for shard in shards)
        needed = {number for samples in rows for number in samples.shard_numbers()}
        return [self.contents.inputs[number].address for number in sorted(needed)]

    def gather_task(self, number: int, spilled: SpillLayout | None = None) -> GatherTask:
        """Return the task for a shard, with its samples and the inputs that contain them. ``spilled`` must exist until
        the task has run."""
        contents, request = self.contents, self.request
        shard, joined = contents.shards[number], contents.joined
        samples = contents.ordered.slice(shard.first, shard.end)
        beside = None if joined is None else joined.part(shard.first, shard.end)
        if request.engine is not None:
            samples, beside = samples.held(), beside and beside.held()
        used = samples.shard_numbers() if beside is None else beside.inputs(samples)
        return GatherTask(
            shard.address,
            request.settings,
            {number: contents.inputs[number] for number in used},
            samples,
            Selection(field_rule=request.selection.field_rule),
            contents.rekey,
            None if spilled is None else spilled.spilled(shard),
            beside,
            {} if self._values is None else self._values.part(samples),
        )

    @property
    def stays_here(self) -> bool:
        """Whether only this process can write the shards or read the inputs."""
        addresses = [self.request.output, self.request.tmp or "", *self.contents.addresses]
        return self.contents.is_stream or any(map(is_of_this_process, addresses))

    def executor(self, jobs: int) -> Executor:
        """Return an executor for this many tasks at the same time. If other processes cannot run them, this process
        does."""
        return make_executor(1 if self.stays_here else jobs, self.request.engine)

    def dropped(self) -> dict[str, int]:
        """Return how many samples were left out while shards were made, by reason."""
        return {}

    def outdated(self, numbers: Sequence[int]) -> set[int]:
        """Return the existing shards that are older than a file from which they were made."""
        return set()

    def check_shard(self, number: int, info: ShardInfo) -> None:
        """Compare samples, members and bytes of a shard with the plan. Raises EngineError or DataError."""
        shard, size = self.contents.shards[number], info.size_bytes
        if kind_of_name(shard.address):
            # For a compressed shard, a receipt does not have the size of the tar.
            size = shard.size_bytes if info.tar_bytes == UNKNOWN else info.tar_bytes
        written = (info.samples, info.members, size)
        wanted = (shard.samples, shard.members, shard.size_bytes)
        if written != wanted:
            raise self._mistake(
                f"{info.name} has {written[0]} samples, {written[1]} members, {written[2]} bytes; "
                f"planned were {wanted[0]}, {wanted[1]}, {wanted[2]}"
            )

    def check_set(self, written: Sequence[ShardInfo], *, has_made_all: bool) -> None:
        """Compare the totals of all shards with the totals that were read. Omitted samples and members changed by the
        selection are not counted. ``has_made_all`` says that this maker has made all shards. Raises EngineError or
        DataError."""
        if self.contents.joined is not None:
            return
        counts = self.plan.counts
        samples = sum(info.samples for info in written) + sum(counts.dropped.values())
        pairs = [("samples", counts.samples_in, samples)]
        if not (counts.dropped or self.request.selection.changes_members):
            pairs.append(("members", counts.members_in, sum(info.members for info in written)))
            pairs.append(("payload bytes", counts.payload_bytes_in, sum(map(payload_bytes_of, written))))
        for what, wanted, counted in pairs:
            if counted != wanted:
                raise self._mistake(f"{counted} {what} were written or counted, but {wanted} were read")

    def _mistake(self, message: str) -> WdsError:
        """Return the error for shards that differ from the plan. The cause is a stale index, if the plan may have used
        one; otherwise it is a bug in wdscli."""
        for shard in self.contents.inputs:
            if not shard.copy and not is_stream(shard.address):
                with shard.open() as source:
                    reason = prove_index(shard.address, source, check=Check.ALL).reason
                if reason:
                    return DataError(
                        "its index is stale: it differs from the headers",
                        code="stale-index",
                        shard=shard.address,
                        hint="rebuild the index with `wds index`",
                    )
        return EngineError(message, hint="this is a mistake in wdscli; please report it")


def payload_bytes_of(info: ShardInfo) -> int:
    """Return the payload bytes of a shard, without headers and padding."""
    return sum(total.size_bytes for total in info.fields.values())


class CarriedValues:
    """The stored values that all inputs have and that the field rule ``rule`` does not change. They are not in
    memory."""

    def __init__(self, inputs: Sequence[Input], rule: FieldRule | None) -> None:
        self._names: list[str] = []
        self._firsts: I64 = numpy.zeros(len(inputs) + 1, dtype=numpy.int64)
        self._columns: dict[str, Growing] = {}
        self._has_floats: dict[str, list[bool]] = {}
        self._types: dict[str, set[str]] = {}
        self._exact: dict[str, bool] = {}
        has_begun = False
        for number, shard in enumerate(inputs):
            index = _index_of(shard)
            stored = {} if index is None else index.numbers
            if index is not None and index.samples and not has_begun:
                self._begin((name for name in stored if _is_kept(name, rule)), number)
                has_begun = True
            if index is None or (index.samples and not self._names):
                self._names = []
                return
            self._firsts[number + 1] = self._firsts[number] + index.samples
            if index.samples:
                self._names = [name for name in self._names if name in stored]
            for name in self._names:
                self._add(name, stored.get(name) or Numbers(numpy.zeros(0, dtype="<i8"), exact=True))
        self._raw = {
            name: numpy.frombuffer(self._columns[name].mapped(), dtype="<i8") for name in self._names
        }

    def _begin(self, names: Iterable[str], number: int) -> None:
        """Use the names of values in input ``number``, the first input that is not empty."""
        self._names = list(names)
        for name in self._names:
            self._columns[name], self._has_floats[name] = Growing(), [False] * number
            self._types[name], self._exact[name] = set(), True

    def _add(self, name: str, numbers: Numbers) -> None:
        self._columns[name].append(numbers.array.view("<i8"))
        self._has_floats[name].append(numbers.array.dtype.kind == "f")
        if not numbers.missing.all():
            self._types[name].add(numbers.array.dtype.kind)
        self._exact[name] &= numbers.exact

    @classmethod
    def of(cls, plan: ReorderPlan) -> CarriedValues | None:
        """Return the values for the shards of a plan, or None. A join, samples of damaged shards, and inputs read
        without an index have no values. Remote inputs have none either, because each index would cost one more
        request."""
        request, contents = plan.request, plan.contents
        if not all(is_local(shard.address) for shard in contents.inputs):
            return None
        is_plain = contents.joined is None and request.on_error == "stop" and request.use_index
        if not is_plain or not request.settings.with_index or not contents.inputs:
            return None
        values = cls(contents.inputs, request.selection.field_rule)
        return values if values._names else None

    def part(self, samples: OrderedSamples) -> dict[str, Numbers]:
        """Return the values of some samples, in the given order."""
        shards: Any = samples.column("shard", 0, samples.total).astype(numpy.int64)
        places = self._firsts[shards] + samples.column("place", 0, samples.total).astype(numpy.int64)
        return {name: self._numbers(name, shards, places) for name in self._names}

    @property
    def total(self) -> int:
        """The number of samples in all inputs. It is 0 without values."""
        return int(self._firsts[-1]) if self._names else 0

    def all(self) -> dict[str, Numbers]:
        """Return the values of all samples of the inputs."""
        shards: I64 = numpy.repeat(numpy.arange(len(self._firsts) - 1), numpy.diff(self._firsts))
        return {name: self._numbers(name, shards, numpy.arange(self.total)) for name in self._names}

    def _numbers(self, name: str, shards: Any, places: Any) -> Numbers:
        raw = self._raw[name][places]
        were_floats = numpy.array(self._has_floats[name])[shards]
        exact = self._exact[name] and len(self._types[name]) < 2
        if "f" not in self._types[name]:
            return Numbers(numpy.where(were_floats, MISSING, raw), exact)
        numbers = raw.astype("<f8")
        numbers[raw == MISSING] = math.nan
        return Numbers(numpy.where(were_floats, raw.view("<f8"), numbers), exact)


def _index_of(shard: Input) -> Index | None:
    """Return the index of an input, if commands may use it."""
    if shard.copy:
        return None
    try:
        with shard.open() as source:
            return find_index(shard.address, source)
    except WdsError:
        return None  # the task that reads this input raises the error


def _is_kept(name: str, rule: FieldRule | None) -> bool:
    """Return whether a field rule leaves all fields in an expression unchanged."""
    if rule is None:
        return True
    renamed = {*rule.renames, *(new.field for new in rule.new_fields)}
    return all(rule.plan((field,)) == ((0, field),) and field not in renamed for field in fields_of(name))
