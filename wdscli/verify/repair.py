"""Save what can be saved of damaged shards, as new ones (``wds repair``).

What it is: :func:`repair`. How: every input is planned first (``salvage``), in parallel; keys that several inputs have
are kept in the first of them; then each input that has anything left becomes one output, in order, by the same tasks
that any writer uses, with index and manifest. Payloads are copied, never changed; inputs are only read.

It must not know how its report is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

from wdscli.codecs.limits import MAX_DECODED_BYTES
from wdscli.errors import DataError, StorageError, UsageError
from wdscli.executors import make_executor, run_shard_tasks, run_tasks
from wdscli.model import ShardInfo, to_bytes
from wdscli.plan.inputs import Input, pieces_of
from wdscli.plan.scratch import Scratch, held_near, spool
from wdscli.progress import QUIET, Progress
from wdscli.shards.inputs import open_set
from wdscli.shards.writing import OutputSet, ShardSettings
from wdscli.storage import Source, open_source
from wdscli.verify.findings import MAX_FINDINGS, Finding, Ledger
from wdscli.verify.keys import repeats_across
from wdscli.verify.profiles import Fields
from wdscli.verify.salvage import Plan
from wdscli.verify.set import choose_jobs, compared, new_seed

LARGE_SAMPLE_BYTES = 1 << 24
"""A sample of more bytes is copied in pieces."""
_EVERY = 1 << 62


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
    """One input. ``output`` is None to plan only; ``dropped`` are keys that an earlier input has."""

    address: str
    max_decoded: int | None = None
    limit: int = MAX_FINDINGS
    required: Fields = ()
    output: str | None = None
    settings: ShardSettings = ShardSettings()
    dropped: frozenset[bytes] = frozenset()
    seed: int = 0
    """That of the keys' digests."""


class SalvageResult(NamedTuple):
    """``ledger`` says what is left out and why, ``digests`` are the keys that can be saved; ``info`` is the shard that
    was written."""

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
    """Write the samples of ``inputs`` that are whole to ``output``, one shard for each input that has any.

    Interleaved samples are joined; of a key that comes more than once the first sample is kept; one next to lost bytes
    is kept when it has the fields of ``require``, or without it those that most samples have; ``decode`` also leaves
    samples out that cannot be decoded, to ``max_decoded`` bytes each. Raises UsageError, InputError when nothing
    matches, OutputError.
    """
    addresses, target = check_repair(inputs, output, settings, trust_addresses=trust_addresses)
    required = tuple(map(to_bytes, require))
    seed = new_seed()
    task = SalvageTask("", max_decoded if decode else None, max_findings, required, seed=seed)
    tasks = [task._replace(address=address) for address in addresses]
    with make_executor(choose_jobs(jobs, addresses, payloads=True)) as executor:
        left_out = Ledger(limit=max_findings)
        digests = []
        for result in run_shard_tasks(
            executor, salvage, tasks, progress, "looking for whole samples", addresses
        ):
            left_out.add_all(result.ledger)
            digests.append(result.digests)
        counts = [len(packed) // 8 for packed in digests]
        repeating = []
        # Tasks are told of the keys that earlier inputs have.
        for number, found in compared(dict(repeats_across(digests, _EVERY)), addresses, executor, seed, {}):
            if found:
                tasks[number] = tasks[number]._replace(dropped=frozenset(one.here.key for one in found))
                repeating.append(tasks[number])
                counts[number] -= len(found)
        for result in run_tasks(executor, salvage, repeating):
            left_out.add_all(result.ledger)
        writes = [task for task, count in zip(tasks, counts) if count]
        if target.pattern.count is not None and target.pattern.count != len(writes):
            raise UsageError(
                f"{output} names {target.pattern.count} shards, and {len(writes)} can be saved",
                hint="repaired-%06d.tar names as many as needed",
            )
        infos: list[ShardInfo] = []
        if not dry_run:
            with target.claimed(addresses):
                places = map(target.address, range(len(writes)))
                writes = [
                    one._replace(output=at, settings=target.settings) for one, at in zip(writes, places)
                ]
                read = [one.address for one in writes]
                for result in run_shard_tasks(executor, salvage, writes, progress, "writing", read):
                    infos += [result.info] if result.info else []
                target.finish(infos, operation="repair", options={"decode": True} if decode else {})
    return RepairReport(
        shards=len(tasks),
        samples=sum(counts) if dry_run else sum(info.samples for info in infos),
        written=tuple(infos),
        manifest=None if dry_run else target.manifest_address,
        left_out=tuple(left_out.findings),
        counts=dict(left_out.counts),
    )


@contextmanager
def read_once(addresses: Sequence[str], progress: Progress = QUIET) -> Iterator[None]:
    """In the block what is far away is verified and repaired by one copy of it, as far as there is room for it: a
    repair looks at each shard several times, and reads all of it."""
    with Scratch() as scratch, held_near(addresses, scratch, progress, whole=True):
        yield


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
        raise UsageError("wds repair cannot read standard input: it reads a shard more than once")
    target = OutputSet(output, settings)
    if target.pattern.single and len(addresses) > 1:
        raise UsageError(
            f"{output} names one shard, and {len(addresses)} are to be repaired",
            hint="repaired-%06d.tar names as many as needed",
        )
    target.check(addresses)
    return addresses, target


def salvage(task: SalvageTask) -> SalvageResult:
    """Plan one input; or, with an output, write what the plan saves; or name the samples that are ``dropped``. Damage
    is no error here."""
    ledger = Ledger(task.address, task.limit)
    try:
        with ExitStack() as stack:
            original = source = stack.enter_context(open_source(task.address))
            if not source.seekable or source.stored is not source:
                # A compressed stream that breaks off is copied as far as it goes.
                path = stack.enter_context(Scratch()).path_of("shard")
                spool(source, path, cut=lambda error: None)
                source = stack.enter_context(Input(source.name, path).open())
            is_first = task.output is None and not task.dropped
            # Whatever it leaves out was reported when it was made first.
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
    """Write the samples but those that are left out because an earlier shard has their key; without an output, name
    these."""
    with nullcontext() if task.output is None else task.settings.open(task.output) as shard:
        for sample in plan.samples():
            if sample.key in task.dropped:
                message = "sample left out: an earlier shard has its key"
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
