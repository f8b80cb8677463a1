"""Save what can be saved of damaged shards, as new ones (``wds verify --repair``).

What it is: :func:`repair`. How: every input is planned first (``salvage``), in parallel; keys that several inputs have
are kept in the first of them; then each input that has anything left becomes one output, in order, by the same tasks
that any writer uses, with index and manifest. Payloads are copied, never changed; inputs are only read.

It must not know how its report is shown.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, NamedTuple

from wdscli.codecs.limits import MAX_DECODED_BYTES
from wdscli.errors import DataError, StorageError, UsageError
from wdscli.executors import make_executor, run_tasks
from wdscli.model import ShardInfo, to_bytes, to_text
from wdscli.plan.scratch import pieces_to_end
from wdscli.progress import QUIET, Progress
from wdscli.samples import SampleBatch
from wdscli.shards.inputs import open_set
from wdscli.shards.writing import OutputSet, ShardFile, ShardSettings
from wdscli.storage import Source, open_source
from wdscli.tar import ByteSource, build_header, padding
from wdscli.verify.findings import MAX_FINDINGS, Finding, Findings, Ledger
from wdscli.verify.keys import digester, repeats_across
from wdscli.verify.run import choose_jobs
from wdscli.verify.runs import Run
from wdscli.verify.salvage import plan_shard

if TYPE_CHECKING:
    from concurrent.futures import Executor

CHUNK = 1 << 20
LARGE_SAMPLE = 1 << 24
"""A sample of more bytes is copied in pieces."""


@dataclass(frozen=True, slots=True)
class RepairReport:
    """``left_out`` says what was not saved and why, the first of each reason; ``counts`` counts all by reason.
    ``written`` are the new shards (none after a dry run), ``samples`` those saved."""

    shards: int
    samples: int
    written: tuple[ShardInfo, ...]
    manifest: str | None
    left_out: tuple[Finding, ...]
    counts: dict[str, int]


class SalvageTask(NamedTuple):
    """One input. ``output`` is None to plan only; ``dropped`` are digests of keys that an earlier input has, packed."""

    address: str
    max_decoded: int | None = None
    limit: int = MAX_FINDINGS
    output: str | None = None
    settings: ShardSettings = ShardSettings()
    dropped: bytes = b""
    required: tuple[bytes, ...] = ()


class SalvageResult(NamedTuple):
    """``digests`` are the keys that can be saved; ``info`` the shard that was written."""

    findings: list[Finding]
    counts: dict[str, int]
    digests: bytes
    info: ShardInfo | None


def repair(
    inputs: Sequence[str],
    output: str,
    *,
    settings: ShardSettings | None = None,
    require: Sequence[str] = (),
    decode: bool = False,
    max_decoded: int = MAX_DECODED_BYTES,
    trust_addresses: bool = False,
    max_findings: int = MAX_FINDINGS,
    dry_run: bool = False,
    jobs: int | None = None,
    progress: Progress = QUIET,
) -> RepairReport:
    """Write the samples of ``inputs`` that are whole to ``output``, one shard for each input that has any.

    Interleaved samples are joined; of a key that comes more than once the first sample is kept; one next to lost bytes
    is kept when it has the fields of ``require``, or without it those that most samples have; ``decode`` also leaves
    samples out that cannot be decoded, to ``max_decoded`` bytes each. Raises UsageError, InputError when nothing
    matches, OutputError.
    """
    addresses, target = check_repair(inputs, output, settings, trust_addresses=trust_addresses)
    required = tuple(map(to_bytes, require))
    tasks = [
        SalvageTask(address, max_decoded if decode else None, max_findings, required=required)
        for address in addresses
    ]
    with make_executor(choose_jobs(jobs, addresses, payloads=True)) as executor:
        plan = _plan(executor, tasks, progress)
        writes = [task for task, count in zip(plan.tasks, plan.counts) if count]
        if target.pattern.count is not None and target.pattern.count != len(writes):
            raise UsageError(
                f"{output} names {target.pattern.count} shards, and {len(writes)} can be saved",
                hint="repaired-%06d.tar names as many as needed",
            )
        if dry_run:
            return _report(plan, sum(plan.counts), [], None)
        with target.claimed(addresses):
            infos = _write_all(executor, writes, target, progress)
            target.finish(infos, operation="repair", options={"decode": True} if decode else {})
    samples = sum(info.samples for info in infos)
    return _report(plan, samples, infos, target.manifest_address)


def check_repair(
    inputs: Sequence[str],
    output: str,
    settings: ShardSettings | None = None,
    *,
    trust_addresses: bool = False,
) -> tuple[list[str], OutputSet]:
    """The shards to repair, and where to: what of a repair can be seen to be impossible before anything is read. Raises
    what :func:`repair` raises."""
    addresses = open_set(inputs, trust_addresses=trust_addresses).addresses
    if "-" in addresses:
        raise UsageError("--repair cannot read standard input: it reads a shard more than once")
    target = OutputSet(output, settings)
    if target.pattern.single and len(addresses) > 1:
        raise UsageError(
            f"{output} names one shard, and {len(addresses)} are to be repaired",
            hint="repaired-%06d.tar names as many as needed",
        )
    target.check(addresses)
    return addresses, target


def _report(plan: _Plan, samples: int, infos: Sequence[ShardInfo], manifest: str | None) -> RepairReport:
    found = plan.left_out
    return RepairReport(
        len(plan.tasks), samples, tuple(infos), manifest, tuple(found.told), dict(found.counts)
    )


class _Plan(NamedTuple):
    """What to do for each input, how many samples it has left, and what is left out."""

    tasks: list[SalvageTask]
    counts: list[int]
    left_out: Findings


def _plan(executor: Executor, tasks: list[SalvageTask], progress: Progress) -> _Plan:
    left_out, digests, counts = Findings(tasks[0].limit if tasks else 0), [], []
    progress.start("plan repair", len(tasks), "shards")
    for result in run_tasks(executor, salvage, tasks):
        left_out.add(result.findings, result.counts)
        digests.append(result.digests)
        counts.append(len(result.digests) // 8)
        progress.advance(1)
    for number, dropped in _dropped(digests).items():
        tasks[number] = tasks[number]._replace(dropped=dropped)
        counts[number] -= len(dropped) // 8
    for result in run_tasks(executor, tell_dropped, [task for task in tasks if task.dropped]):
        left_out.add(result.findings, result.counts)
    progress.finish()
    return _Plan(tasks, counts, left_out)


def _write_all(
    executor: Executor, tasks: list[SalvageTask], target: OutputSet, progress: Progress
) -> list[ShardInfo]:
    infos = []
    writes = [
        task._replace(output=target.address(place), settings=target.settings)
        for place, task in enumerate(tasks)
    ]
    progress.start("repair", len(writes), "shards")
    for result in run_tasks(executor, salvage, writes):
        if result.info is not None:
            infos.append(result.info)
        progress.advance(1)
    progress.finish()
    return infos


def _dropped(digests: list[bytes]) -> dict[int, bytes]:
    """For each input the digests, packed, of keys that an earlier one has."""
    from array import array

    everything = 1 << 62
    return {
        number: array("Q", across.digests).tobytes() for number, across in repeats_across(digests, everything)
    }


def salvage(task: SalvageTask) -> SalvageResult:
    """Plan one input, or plan and write it. Damage is no error here."""
    ledger = Ledger(task.address, task.limit)
    try:
        with open_source(task.address) as source, _Seekable(source) as seekable:
            if task.output is None:
                plan = plan_shard(seekable, ledger, max_decoded=task.max_decoded, required=task.required)
                return SalvageResult(ledger.findings, ledger.counts, plan.digests, None)
            return _write(task, seekable)
    except (DataError, StorageError) as error:
        if task.output is not None:
            raise
        ledger.add("unreadable", f"nothing saved: {error.message}", hint=error.hint)
    return SalvageResult(ledger.findings, ledger.counts, b"", None)


def _write(task: SalvageTask, source: _Seekable) -> SalvageResult:
    """Write what the plan saves; what it does not was told when the plan was made first."""
    plan = plan_shard(source, Ledger(task.address, 0), max_decoded=task.max_decoded, required=task.required)
    dropped = set(memoryview(task.dropped).cast("Q"))
    digest = digester()
    assert task.output is not None
    with task.settings.open(task.output) as shard:
        for run in plan.samples():
            if not dropped or digest(run.key) not in dropped:
                _copy(run, source, shard)
        source.confirm()
        info = shard.commit()
    return SalvageResult([], {}, plan.digests, info)


def tell_dropped(task: SalvageTask) -> SalvageResult:
    """Name the samples that are left out because an earlier shard has their key."""
    ledger = Ledger(task.address, task.limit)
    dropped = set(memoryview(task.dropped).cast("Q"))
    digest = digester()
    with open_source(task.address) as source, _Seekable(source) as seekable:
        plan = plan_shard(
            seekable, Ledger(task.address, 0), max_decoded=task.max_decoded, required=task.required
        )
        for run in plan.samples():
            if digest(run.key) in dropped:
                message = "sample left out: an earlier shard has its key"
                ledger.add("duplicate-key", message, offset=run.start, member=to_text(run.key))
    return SalvageResult(ledger.findings, ledger.counts, b"", None)


def _copy(run: Run, source: ByteSource, shard: ShardFile) -> None:
    if sum(part.size for part in run.parts) <= LARGE_SAMPLE:
        shard.write(run.key, [(part.field, source.read_at(part.offset, part.size)) for part in run.parts])
    else:
        _copy_in_pieces(run, source, shard)


def _copy_in_pieces(run: Run, source: ByteSource, shard: ShardFile) -> None:
    """A large sample, a chunk at a time."""
    starts, offsets = [], []
    for part in run.parts:
        starts.append(shard.position)
        shard.write_blocks(build_header(run.key + b"." + part.field, part.size, shard.form))
        offsets.append(shard.position)
        for at in range(0, part.size, CHUNK):
            shard.write_blocks(source.read_at(part.offset + at, min(CHUNK, part.size - at)))
        shard.write_blocks(padding(part.size))
    count = len(run.parts)
    fields, sizes = [part.field for part in run.parts], [part.size for part in run.parts]
    shard.announce(
        SampleBatch(shard.samples, [run.key], [0, count], fields, starts, offsets, sizes, [0] * count, [0])
    )


class _Seekable:
    """A source that can be read at any place: the one given, or a copy of it in a temporary file.

    A compressed stream that breaks off is copied as far as it goes.
    """

    seekable = True

    def __init__(self, source: Source) -> None:
        self.name = source.name
        self.size: int | None = source.size
        self._copy: IO[bytes] | None = None
        self.read_at = source.read_at
        self.confirm = source.confirm
        if not source.seekable:
            self._spool(source)

    def read_some(self, offset: int, length: int) -> bytes:
        return self.read_at(offset, length)

    def _spool(self, source: Source) -> None:
        from tempfile import TemporaryFile

        copy = self._copy = TemporaryFile()  # noqa: SIM115 - closed by __exit__
        size = 0
        for data in pieces_to_end(source, lambda _: None):
            copy.write(data)
            size += len(data)
        copy.flush()
        self.size = size
        self.read_at = lambda offset, length: os.pread(copy.fileno(), length, offset)

    def __enter__(self) -> _Seekable:
        return self

    def __exit__(self, *_: object) -> None:
        if self._copy is not None:
            self._copy.close()
