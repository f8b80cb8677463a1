"""Save the sound samples of damaged shards as new shards (``wds repair``).

:func:`repair` first plans every input in parallel (:mod:`~wdscli.verify.salvage`). If several inputs have a key, the
sample of the first input is kept. Then each input with samples left becomes one output, in order, with index and
manifest. Payloads are copied unchanged, and no input is changed.

This module does not know how its report is printed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from wdscli.codecs.handlers import MAX_DECODED_BYTES
from wdscli.errors import DataError, StorageError, UsageError
from wdscli.executors import make_executor, run_shard_tasks, run_tasks
from wdscli.model import ShardInfo, to_bytes
from wdscli.plan.inputs import Input, pieces_of
from wdscli.plan.scratch import Scratch, hold_remote_shards, spool
from wdscli.progress import QUIET, Progress
from wdscli.shards.inputs import open_set
from wdscli.shards.view import refuse_view
from wdscli.shards.writing import OutputSet, ShardSettings
from wdscli.storage import Source, open_source
from wdscli.verify.findings import MAX_FINDINGS, Finding, Ledger
from wdscli.verify.keys import repeats_across
from wdscli.verify.profiles import Fields
from wdscli.verify.salvage import Plan
from wdscli.verify.set import choose_jobs, compared, new_seed

if TYPE_CHECKING:
    from concurrent.futures import Executor

LARGE_SAMPLE_BYTES = 1 << 24
"""A larger sample is copied in pieces."""
_EVERY = 1 << 62


@dataclass(frozen=True, slots=True)
class RepairReport:
    """``left_out`` has the first losses of each kind, ``counts`` counts all of them. ``written`` are the new shards
    (none after a dry run), ``samples`` counts the saved samples."""

    shards: int
    samples: int
    written: tuple[ShardInfo, ...]
    manifest: str | None
    left_out: tuple[Finding, ...]
    counts: dict[str, int]


class SalvageTask(NamedTuple):
    """One input. Without ``output`` it is only planned; ``dropped`` are keys that an earlier input has. ``seed`` is
    the seed of the keys' digests."""

    address: str
    max_decoded: int | None = None
    limit: int = MAX_FINDINGS
    required: Fields = ()
    output: str | None = None
    settings: ShardSettings = ShardSettings()
    dropped: frozenset[bytes] = frozenset()
    seed: int = 0


class SalvageResult(NamedTuple):
    """``ledger`` has the losses, ``digests`` are those of the keys that can be saved, ``info`` is the shard that was
    written."""

    ledger: Ledger
    digests: bytes = b""
    info: ShardInfo | None = None


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
    """Write the sound samples of ``inputs`` to ``output``: one shard for each input that has any.

    Torn samples are joined. Of samples with one key, the first is kept. A sample next to lost bytes is kept if it has
    the fields of ``require``, or, if that is empty, those of most samples. ``decode`` also drops samples that cannot be
    decoded within ``max_decoded`` bytes per payload. Raises UsageError, InputError if nothing matches, OutputError.
    """
    addresses, target = check_repair(inputs, output, settings, trust_addresses=trust_addresses)
    limit, required = max_decoded if decode else None, tuple(map(to_bytes, require))
    task = SalvageTask("", limit, max_findings, required, seed=new_seed())
    with make_executor(choose_jobs(jobs, addresses, payloads=True)) as executor:
        found = _looked_at(executor, [task._replace(address=address) for address in addresses], progress)
        if target.pattern.count not in (None, len(found.writes)):
            raise UsageError(
                f"{output} names {target.pattern.count} shards, but {len(found.writes)} can be saved",
                hint="repaired-%06d.tar names as many as needed",
            )
        infos: list[ShardInfo] = []
        if not dry_run:
            with target.claimed(addresses):
                infos = _written(executor, found.writes, target, decode, progress)
    samples = found.samples if dry_run else sum(info.samples for info in infos)
    manifest, lost = None if dry_run else target.manifest_address, found.left_out
    return RepairReport(
        len(addresses), samples, tuple(infos), manifest, tuple(lost.findings), dict(lost.counts)
    )


class _Found(NamedTuple):
    """What can be saved: the tasks of the inputs that have samples left, the number of these samples, and the
    losses."""

    writes: list[SalvageTask]
    samples: int
    left_out: Ledger


def _looked_at(executor: Executor, tasks: list[SalvageTask], progress: Progress) -> _Found:
    """Plan every input. Then each task drops the keys that earlier inputs have."""
    left_out, digests = Ledger(limit=tasks[0].limit), []
    addresses = [task.address for task in tasks]
    for result in run_shard_tasks(executor, salvage, tasks, progress, "looking for whole samples", addresses):
        left_out.add_all(result.ledger)
        digests.append(result.digests)
    counts = [len(packed) // 8 for packed in digests]
    repeating = []
    across = dict(repeats_across(digests, _EVERY))
    for number, found in compared(across, addresses, executor, tasks[0].seed, {}):
        if found:
            tasks[number] = tasks[number]._replace(dropped=frozenset(one.here.key for one in found))
            repeating.append(tasks[number])
            counts[number] -= len(found)
    for result in run_tasks(executor, salvage, repeating):
        left_out.add_all(result.ledger)
    return _Found([task for task, count in zip(tasks, counts) if count], sum(counts), left_out)


def _written(
    executor: Executor, tasks: list[SalvageTask], target: OutputSet, decode: bool, progress: Progress
) -> list[ShardInfo]:
    """Write the planned samples of each task to its own shard, then the manifest."""
    addresses = [task.address for task in tasks]
    tasks = [
        task._replace(output=target.address(number), settings=target.settings)
        for number, task in enumerate(tasks)
    ]
    results = run_shard_tasks(executor, salvage, tasks, progress, "writing", addresses)
    infos = [result.info for result in results if result.info]
    target.finish(infos, operation="repair", options={"decode": True} if decode else {})
    return infos


@contextmanager
def read_once(addresses: Sequence[str], progress: Progress = QUIET) -> Iterator[None]:
    """Download remote shards once for the block, as far as there is room: a repair reads each shard several times."""
    with Scratch() as scratch, hold_remote_shards(addresses, scratch, progress, whole=True):
        yield


def check_repair(
    inputs: Sequence[str],
    output: str,
    settings: ShardSettings | None = None,
    *,
    trust_addresses: bool = False,
) -> tuple[list[str], OutputSet]:
    """The shards to repair and the output, checked before anything is read. Raises the errors of :func:`repair`."""
    addresses = open_set(inputs, trust_addresses=trust_addresses).addresses
    if "-" in addresses:
        raise UsageError("wds repair cannot read standard input, because it reads a shard more than once")
    refuse_view(output)
    target = OutputSet(output, settings)
    if target.pattern.single and len(addresses) > 1:
        raise UsageError(
            f"{output} names one shard, but there are {len(addresses)} to repair",
            hint="repaired-%06d.tar names as many as needed",
        )
    target.check(addresses)
    return addresses, target


def salvage(task: SalvageTask) -> SalvageResult:
    """Plan one input; or, with an output, write the plan; or report the samples that are ``dropped``. Damage is no
    error here."""
    ledger = Ledger(task.address, task.limit)
    try:
        with ExitStack() as stack:
            original = source = stack.enter_context(open_source(task.address))
            if not source.seekable or source.stored is not source:
                # A truncated compressed stream is copied up to the damage.
                path = stack.enter_context(Scratch()).path_of("shard")
                spool(source, path, cut=lambda error: None)
                source = stack.enter_context(Input(source.name, path).open())
            is_first = task.output is None and not task.dropped
            # The first plan reported all losses.
            plan_ledger = ledger if is_first else Ledger(limit=0)
            plan = Plan(
                source, plan_ledger, max_decoded=task.max_decoded, required=task.required, seed=task.seed
            )
            if is_first:
                return SalvageResult(ledger, plan.digests)
            return SalvageResult(ledger, info=_save(task, plan, source, original, ledger))
    except (DataError, StorageError) as error:
        if task.output is not None or task.dropped:
            raise
        ledger.add("unreadable", f"nothing saved: {error.message}", hint=error.hint)
    return SalvageResult(ledger)


def _save(
    task: SalvageTask, plan: Plan, source: Source, original: Source, ledger: Ledger
) -> ShardInfo | None:
    """Write the planned samples, except those whose key an earlier shard has; without an output, only report these."""
    with nullcontext() if task.output is None else task.settings.open(task.output) as shard:
        for sample in plan.samples():
            if sample.key in task.dropped:
                message = "sample left out: an earlier shard has the same key"
                ledger.add("duplicate-key", message, offset=sample.start, member=sample.key)
            elif shard is None:
                continue
            elif sum(member.size for member in sample.members) <= LARGE_SAMPLE_BYTES:
                payloads = [(field, source.read_at(offset, size)) for field, offset, size in sample.members]
                shard.write(sample.key, payloads)
            else:
                pieces = [(name, size, pieces_of(source, at, size)) for name, at, size in sample.members]
                shard.write_pieces(sample.key, pieces)
        if shard is None:
            return None
        original.confirm()
        return shard.commit()
