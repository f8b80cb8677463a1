"""This module saves the intact samples of damaged shards in new shards (``wds repair``).

:func:`repair` first plans every input, in parallel. A :class:`SalvagePlan` lists the samples of one shard that can be
saved. If several inputs have the same key, the sample of the first input is kept. Then each input with remaining
samples becomes one output shard, in order, with index and manifest. Payloads are copied unchanged, and the inputs do
not change.

A plan scans its shard, and continues after damage. Adjacent members with the same key are a *stretch*. Members that a
shard must not have are lost and reported, except hard links and sparse files whose payloads can be read exactly
(:mod:`wdscli.tar.stored`). A stretch next to lost bytes is marked, because it may lack members. One pass over the
headers collects 24 bytes per stretch. If a stretch repeats a key and all its fields are new, it is joined to the first
stretch with this key; otherwise it is dropped. The rule :func:`~wdscli.samples.grouping.is_whole` drops incomplete
samples. A second pass reads the places of joined members.

This module does not know how its report is printed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from wdscli.arrays import I64, U64, Mask, numpy
from wdscli.errors import DataError, StorageError, UsageError
from wdscli.executors import make_executor, run_shard_tasks, run_tasks
from wdscli.model import ShardInfo
from wdscli.plan.inputs import Input
from wdscli.plan.request import Request
from wdscli.plan.scratch import Scratch, hold_remote_shards, spool
from wdscli.progress import QUIET, Progress
from wdscli.samples import new_batch, split_name, why_ignored, why_unsafe
from wdscli.samples.grouping import is_whole, lost_name
from wdscli.shards.inputs import open_set
from wdscli.shards.view import check_new_names
from wdscli.shards.writing import OutputSet, ShardSettings
from wdscli.storage import Source, open_source
from wdscli.storage.ends import PIECE_BYTES, pieces_of
from wdscli.tar import DIRECTORY, KIND_MASK, KIND_NAMES, REGULAR, SPARSE, ByteSource, Columns, Window
from wdscli.tar.reader import scan_salvaging
from wdscli.tar.stored import HOLE, Extent, MemberPlace, extents_of, link_targets, linked_names, place_of
from wdscli.text import to_bytes, to_text
from wdscli.verify.decoding import DecodeCheck
from wdscli.verify.findings import Finding, Ledger
from wdscli.verify.keys import DUPLICATE, INTERLEAVED, KeyColumns
from wdscli.verify.set import choose_jobs, compared, new_seed
from wdscli.verify.shard import HEADERS_ONLY, Checks

if TYPE_CHECKING:
    from concurrent.futures import Executor

LARGE_SAMPLE_BYTES = 1 << 24
"""A larger sample is copied in pieces."""
EXPANSION_BYTES = 1 << 30
MAX_EXPANSION = 1024
"""Hard links and sparse files of a shard may give together 1 GiB, or this many times the size of their shard. A
compressed shard can give as much."""
_EVERY = 1 << 62


@dataclass(frozen=True, slots=True)
class RepairReport:
    """The result of a repair. ``left_out`` has the first losses of each kind, and ``counts`` counts all losses.
    ``written`` are the new shards; a dry run has none. ``samples`` counts the saved samples. ``undecoded`` has the
    fields that were saved without being decoded, and why."""

    shards: int
    samples: int
    written: tuple[ShardInfo, ...]
    manifest: str | None
    left_out: tuple[Finding, ...]
    counts: dict[str, int]
    undecoded: dict[str, str]


class Payload(NamedTuple):
    """One member of a stretch: its field and the extents of its payload."""

    field: bytes
    extents: tuple[Extent, ...]

    @property
    def size(self) -> int:
        """The size of the payload in bytes."""
        return sum([extent.length for extent in self.extents])

    def read(self, source: Source) -> bytes:
        """Return the payload. Raises DataError if the source ends first."""
        offset, length = self.extents[0] if len(self.extents) == 1 else (HOLE, 0)
        return b"".join(self.pieces(source)) if offset == HOLE else source.read_at(offset, length)

    def pieces(self, source: Source) -> Iterator[bytes]:
        """Yield the payload in pieces. Raises DataError if the source ends first."""
        for offset, length in self.extents:
            if offset != HOLE:
                yield from pieces_of(source, offset, length)
                continue
            for first in range(0, length, PIECE_BYTES):
                yield bytes(min(PIECE_BYTES, length - first))


@dataclass(slots=True)
class KeyStretch:
    """Adjacent members with the same key. ``row`` is the stretch's number in the shard. ``is_hit`` means that bytes
    next to it are lost, and ``lost_fields`` are the fields of lost members."""

    row: int
    key: bytes
    start: int
    is_hit: bool
    members: list[Payload] = field(default_factory=list)
    lost_fields: list[bytes] = field(default_factory=list)

    @property
    def fields(self) -> list[bytes]:
        """The fields of all members, including lost members."""
        return [member.field for member in self.members] + self.lost_fields


def read_stretches(
    source: ByteSource, links: Mapping[int, MemberPlace], ledger: Ledger
) -> Iterator[KeyStretch]:
    """Yield the stretches of a shard in order, numbered from 0. ``links`` are the members that its hard links mean
    (:func:`links_of`). Lost members are reported to ``ledger``."""
    reader = _StretchReader(source, links, ledger)
    for window in scan_salvaging(source, reader.on_error):
        yield from reader.add(window)
    if reader.last is not None:
        yield reader.last


def links_of(source: ByteSource) -> dict[int, MemberPlace]:
    """Return the members that the hard links of a shard mean, by the offset of the link."""
    ignore_errors = Ledger(limit=0).add_error
    names = linked_names(source, scan_salvaging(source, ignore_errors))
    return link_targets(source, scan_salvaging(source, ignore_errors), names) if names else {}


class _StretchReader:
    def __init__(self, source: ByteSource, links: Mapping[int, MemberPlace], ledger: Ledger) -> None:
        self.last: KeyStretch | None = None
        self._source = source
        self._links = links
        self._ledger = ledger
        self._next_is_hit = False
        self._room = max(EXPANSION_BYTES, MAX_EXPANSION * (source.size or 0))
        """How many more bytes hard links and sparse files may give."""

    def on_error(self, error: DataError) -> None:
        """Mark the stretches around lost bytes, which may lack members.

        An end of archive in the middle also counts as lost bytes, because it may be a hole of zeros.
        """
        self._next_is_hit = True
        cut = split_name(to_bytes(error.member)) if error.member else None
        # A damaged member with another key shows that the sample before it is complete.
        if self.last is not None and (cut is None or cut[0] == self.last.key):
            self.last.is_hit = True

    def add(self, window: Window) -> Iterator[KeyStretch]:
        """Yield the stretches that end in a window."""
        columns = window.columns
        for row, (name, start, offset, size, flag) in enumerate(zip(*columns, strict=True)):
            kind = flag & KIND_MASK
            extents: tuple[Extent, ...] | None = None
            parts = split_name(name) if kind == REGULAR else lost_name(name, kind, size)
            if parts is not None and kind == REGULAR and why_unsafe(name) is None:
                extents = (Extent(offset, size),)
            elif kind != DIRECTORY:
                parts = parts or lost_name(name, kind, size)
                extents = self._unusual_payload(columns, row, is_of_sample=parts is not None)
            if parts is None:
                continue
            key, field = parts
            stretch = self.last
            if stretch is None or stretch.key != key:
                if stretch is not None:
                    yield stretch
                number = 0 if stretch is None else stretch.row + 1
                stretch = self.last = KeyStretch(number, key, start, self._next_is_hit)
            elif self._next_is_hit:
                stretch.is_hit = True
            self._next_is_hit = False
            if extents is None:
                stretch.lost_fields.append(field)
            elif any(member.field == field for member in stretch.members) or field in stretch.lost_fields:
                self._leave_out("duplicate-field", "the sample already has this field", columns, row)
            else:
                stretch.members.append(Payload(field, extents))

    def _unusual_payload(
        self, columns: Columns, row: int, *, is_of_sample: bool
    ) -> tuple[Extent, ...] | None:
        """Return the payload of a hard link or a sparse file. Return None for other unusual members, which must not be
        written, and report this."""
        name, kind = columns.names[row], columns.flags[row] & KIND_MASK
        if reason := why_unsafe(name):
            self._leave_out("unsafe-name", reason, columns, row)
        elif kind != REGULAR:
            if is_of_sample and (extents := self._linked_or_sparse(columns, row)) is not None:
                return extents
            self._leave_out(KIND_NAMES[kind], f"a {KIND_NAMES[kind]} member", columns, row)
        elif is_of_sample:
            self._leave_out("bad-size", "a file's name ends with a slash", columns, row)
        else:
            self._leave_out("no-field", f"it belongs to no sample ({why_ignored(name, kind)})", columns, row)
        return None

    def _linked_or_sparse(self, columns: Columns, row: int) -> tuple[Extent, ...] | None:
        """Return the payload of a hard link or a sparse file, or None if it is unclear or too large."""
        place = place_of(columns, row)
        target = place if place.flag & KIND_MASK == SPARSE else self._links.get(place.start)
        extents = None if target is None else extents_of(self._source, target)
        length = sum(extent.length for extent in extents or ())
        if length > self._room:
            return None
        self._room -= length
        return extents

    def _leave_out(self, code: str, reason: str, columns: Columns, row: int) -> None:
        offset, member = columns.starts[row], columns.names[row]
        self._ledger.add(code, f"left out: {reason}", offset=offset, member=member)


class SalvagePlan:
    """The samples of ``source`` that can be saved. ``source`` must be seekable. Losses are reported to ``ledger``.
    Without required fields in ``checks``, a sample next to damage must have the fields of all intact samples.
    ``digests`` has the digests of the saved samples' keys, packed, in order, made with the seed of ``checks``."""

    def __init__(self, source: Source, ledger: Ledger, checks: Checks) -> None:
        self._source, self._ledger = source, ledger
        self._keys = keys = KeyColumns(seed=checks.seed)
        self._dropped: set[int] = set()
        """Stretches to drop."""
        self._first_of: dict[int, int] = {}
        """For each joined stretch, the first stretch of its key."""
        self._joined: dict[int, list[Payload]] = {}
        """Members of later stretches that are joined to a first one."""
        limit = checks.max_decoded
        self._decoder = None if limit is None else _silent_decoder(ledger, limit)
        self._links = links_of(source)
        hit, lost = dict[int, bytes](), dict[int, bytes]()
        for stretch in read_stretches(source, self._links, ledger):
            batch = new_batch()
            batch.keys.append(stretch.key)
            batch.firsts.append(1)
            batch.starts.append(stretch.start)
            keys.add(batch, [keys.mask(stretch.fields)])
            if stretch.is_hit:
                hit[stretch.row] = stretch.key
            if stretch.lost_fields:
                lost[stretch.row] = stretch.key
            if self._is_undecodable(stretch):
                self._dropped.add(stretch.row)
        masks = self._join()
        self._drop_incomplete(masks, hit, lost, keys.mask(checks.required))
        kept: Mask = numpy.ones(len(masks), dtype=bool)
        kept[list(self._dropped)] = False
        self.digests = keys.packed(kept)

    def samples(self) -> Iterator[KeyStretch]:
        """Yield the samples to write, in the order of the shard, joined members included."""
        for stretch in self._stretches():
            if stretch.row not in self._dropped:
                stretch.members += self._joined.get(stretch.row, ())
                yield stretch

    def _stretches(self) -> Iterator[KeyStretch]:
        """Yield the stretches again, without reports."""
        return read_stretches(self._source, self._links, Ledger(limit=0))

    def _is_undecodable(self, stretch: KeyStretch) -> bool:
        """Return whether a payload cannot be decoded, so that its sample is dropped."""
        for payload in stretch.members if self._decoder is not None else ():
            read, name = partial(payload.read, self._source), payload.field
            member = stretch.key + b"." + name
            reason = self._decoder and self._decoder.why_not(name, payload.size, read, stretch.start, member)
            if reason:
                reason = f"{to_text(name)} cannot be decoded: {reason}"
                self._leave_out("undecodable", reason, stretch.start, stretch.key)
                return True
        return False

    def _join(self) -> U64:
        """Join stretches with equal keys, and drop stretches that cannot be joined. Return the bits of every stretch's
        fields; the first stretch also gets the bits of the stretches joined to it."""
        keys = self._keys
        masks = numpy.array(keys.masks, dtype=numpy.uint64)
        repeats = keys.repeats()
        if repeats is None:
            return masks
        rows: I64 = numpy.append(repeats.rows(INTERLEAVED), repeats.rows(DUPLICATE))
        likely, again = {*rows.tolist(), *repeats.firsts[rows].tolist()}, set[int]()
        first_of, firsts, seen_fields = self._first_of, dict[bytes, int](), masks.copy()
        for stretch in self._stretches() if likely else ():
            # Equal digests are only candidates. The keys decide.
            if (row := stretch.row) not in likely or (first := firsts.setdefault(stretch.key, row)) == row:
                continue
            if seen_fields[first] & seen_fields[row]:
                again.add(row)
                reason = f"the sample at byte {keys.starts[first]} has the same key"
                self._leave_out("duplicate-key", reason, stretch.start, stretch.key)
            else:
                first_of[row] = first
                masks[first] |= masks[row]
                self._joined.setdefault(first, []).extend(stretch.members)
            seen_fields[first] |= seen_fields[row]
        # A sample is dropped as a whole.
        self._dropped |= {first_of[row] for row in self._dropped if row in first_of}
        self._dropped |= first_of.keys() | again
        return masks

    def _drop_incomplete(
        self, masks: U64, hit: dict[int, bytes], lost: dict[int, bytes], required: int
    ) -> None:
        """Drop samples that are not whole. ``hit`` are samples next to lost bytes, and ``lost`` are samples that lost a
        member. ``required`` are the fields that every sample must have."""
        dropped = self._dropped
        hit = {self._first_of.get(row, row): key for row, key in hit.items()}
        lost = {self._first_of.get(row, row): key for row, key in lost.items()}
        intact: Mask = numpy.ones(len(masks), dtype=bool)
        intact[[*dropped, *hit, *lost]] = False
        usual = int(numpy.bitwise_or.reduce(masks[intact])) if intact.any() else None
        for row, key in sorted({**hit, **lost}.items()):
            if row not in dropped and not is_whole(
                int(masks[row]), usual, required, is_next_to_damage=row in hit, is_cut=row in lost
            ):
                dropped.add(row)
                reason = (
                    "a member is lost" if row in lost else "bytes next to it are lost, and it lacks fields"
                )
                self._leave_out("damaged", reason, self._keys.starts[row], key)
        lacking: Mask = (masks & numpy.uint64(required)) != required
        lacking[list(dropped)] = False
        self._drop_lacking(set(numpy.flatnonzero(lacking).tolist()))

    def _drop_lacking(self, rows: set[int]) -> None:
        """Drop intact samples that lack a required field."""
        self._dropped |= rows
        room = self._ledger.room("missing-field")
        lacking = (stretch for stretch in self._stretches() if stretch.row in rows)
        for stretch in islice(lacking, room) if rows else ():
            self._leave_out("missing-field", "it lacks a required field", stretch.start, stretch.key)
        self._ledger.more("missing-field", len(rows) - room)

    def _leave_out(self, code: str, reason: str, start: int, key: bytes) -> None:
        self._ledger.add(code, f"sample left out: {reason}", offset=start, member=key)


def _silent_decoder(ledger: Ledger, max_decoded: int) -> DecodeCheck:
    """Return a decoder that adds to ``ledger`` only the fields that it does not decode. Their samples are saved, so
    these fields are no losses."""
    remarks = Ledger(limit=0)
    remarks.undecoded = ledger.undecoded
    return DecodeCheck(remarks, max_decoded)


class SalvageTask(NamedTuple):
    """The task for one input. Without ``output``, the input is only planned. ``dropped`` are keys that an earlier input
    has."""

    address: str
    checks: Checks
    output: str | None = None
    settings: ShardSettings = ShardSettings()
    dropped: frozenset[bytes] = frozenset()


class SalvageResult(NamedTuple):
    """The result of a task. ``ledger`` has the losses, and ``digests`` has the digests of the keys that can be saved.
    ``info`` describes the written shard."""

    ledger: Ledger
    digests: bytes = b""
    info: ShardInfo | None = None


def repair(
    request: Request, checks: Checks = HEADERS_ONLY, *, dry_run: bool = False, progress: Progress = QUIET
) -> RepairReport:
    """Write the intact samples of ``request.inputs`` to ``request.output``. Each input with intact samples becomes one
    shard. The request's selection and its options about copying have no effect.

    Separated members of the same sample are joined. If several samples have the same key, the first is kept. A sample
    without the required fields of ``checks``, or one that lost a member, is dropped. If no field is required, a sample
    next to lost bytes must have the fields that all intact samples have together. Decoding also drops samples that
    cannot be decoded. Raises UsageError, OutputError, and InputError if nothing matches.
    """
    addresses, target = check_repair(request)
    checks = checks._replace(seed=new_seed())
    with make_executor(choose_jobs(request.jobs, addresses, payloads=True)) as executor:
        tasks = [SalvageTask(address, checks) for address in addresses]
        writes, samples, lost = _looked_at(executor, tasks, progress)
        if target.pattern.count not in (None, len(writes)):
            raise UsageError(
                f"{request.output} names {target.pattern.count} shards, but {len(writes)} can be saved",
                hint="use repaired-%06d.tar for any number of shards",
            )
        infos: list[ShardInfo] = []
        if not dry_run:
            with target.claimed(addresses):
                infos = _written(executor, writes, target, progress)
    return RepairReport(
        len(addresses),
        samples if dry_run else sum(info.samples for info in infos),
        tuple(infos),
        None if dry_run else target.manifest_address,
        tuple(lost.findings),
        dict(lost.counts),
        lost.undecoded,
    )


def _looked_at(
    executor: Executor, tasks: list[SalvageTask], progress: Progress
) -> tuple[list[SalvageTask], int, Ledger]:
    """Plan every input. Then each task drops the keys that earlier inputs have. Return the tasks of the inputs with
    remaining samples, the number of these samples, and the losses."""
    checks = tasks[0].checks
    left_out, digests = Ledger(limit=checks.limit), []
    addresses = [task.address for task in tasks]
    for result in run_shard_tasks(executor, salvage, tasks, progress, "looking for whole samples", addresses):
        left_out.add_all(result.ledger)
        digests.append(result.digests)
    counts = [len(packed) // 8 for packed in digests]
    repeating = []
    for number, repeated_keys, _ in compared(digests, _EVERY, addresses, executor, checks.seed, {}):
        if repeated_keys:
            tasks[number] = tasks[number]._replace(dropped=frozenset(key for key, *_ in repeated_keys))
            repeating.append(tasks[number])
            counts[number] -= len(repeated_keys)
    for result in run_tasks(executor, salvage, repeating):
        left_out.add_all(result.ledger)
    return [task for task, count in zip(tasks, counts) if count], sum(counts), left_out


def _written(
    executor: Executor, tasks: list[SalvageTask], target: OutputSet, progress: Progress
) -> list[ShardInfo]:
    """Write the planned samples of each task to its own shard, then the manifest."""
    addresses = [task.address for task in tasks]
    tasks = [
        task._replace(output=target.address(number), settings=target.settings)
        for number, task in enumerate(tasks)
    ]
    results = run_shard_tasks(executor, salvage, tasks, progress, "writing", addresses)
    infos = [result.info for result in results if result.info]
    decodes = any(task.checks.max_decoded is not None for task in tasks)
    target.finish(infos, operation="repair", options={"decode": True} if decodes else {})
    return infos


@contextmanager
def read_once(addresses: Sequence[str], progress: Progress = QUIET) -> Iterator[None]:
    """In the block, download each remote shard only once, if the disc has enough space. A repair reads each shard
    several times."""
    with Scratch() as scratch, hold_remote_shards(addresses, scratch, progress, whole=True):
        yield


def check_repair(request: Request) -> tuple[list[str], OutputSet]:
    """Check the shards to repair and the output before anything is read, and return them. Raises the errors of
    :func:`repair`."""
    opened = open_set(request.inputs, missing="accept", trust_addresses=request.trust_addresses)
    addresses, output = opened.addresses, request.output
    if "-" in addresses:
        raise UsageError(
            "wds repair cannot read standard input, because it reads a shard more than once",
            hint="write the shard to a file first, and repair the file",
        )
    check_new_names(output)
    target = OutputSet(output, request.settings)
    if target.pattern.single and len(addresses) > 1:
        raise UsageError(
            f"{output} is for one shard, but there are {len(addresses)} shards to repair",
            hint="use repaired-%06d.tar for any number of shards",
        )
    target.check(addresses)
    return addresses, target


def salvage(task: SalvageTask) -> SalvageResult:
    """Plan one input. With an output, write the planned samples; with ``dropped``, report the dropped samples. Damage
    is no error here."""
    checks = task.checks
    ledger = Ledger(task.address, checks.limit)
    try:
        with ExitStack() as stack:
            original = source = stack.enter_context(open_source(task.address))
            if not source.seekable or source.stored is not source:
                # A truncated compressed stream is copied up to the truncation.
                path = stack.enter_context(Scratch()).path_of("shard")
                spool(source, path, cut=lambda error: None)
                source = stack.enter_context(Input(source.name, path).open())
            is_first = task.output is None and not task.dropped
            # The first plan already reported all losses.
            plan_ledger = ledger if is_first else Ledger(limit=0)
            plan = SalvagePlan(source, plan_ledger, checks)
            if is_first:
                return SalvageResult(ledger, plan.digests)
            return SalvageResult(ledger, info=_save(task, plan, source, original, ledger))
    except (DataError, StorageError) as error:
        if task.output is not None or task.dropped:
            raise
        ledger.add("unreadable", f"nothing saved: {error.message}", hint=error.hint)
    return SalvageResult(ledger)


def _save(
    task: SalvageTask, plan: SalvagePlan, source: Source, original: Source, ledger: Ledger
) -> ShardInfo | None:
    """Write the planned samples, except samples with a key of an earlier shard. Without an output, only report the
    exceptions."""
    with nullcontext() if task.output is None else task.settings.open(task.output) as shard:
        for sample in plan.samples():
            if sample.key in task.dropped:
                message = "sample left out: an earlier shard has the same key"
                ledger.add("duplicate-key", message, offset=sample.start, member=sample.key)
            elif shard is None:
                continue
            elif sum(member.size for member in sample.members) <= LARGE_SAMPLE_BYTES:
                shard.write(sample.key, [(member.field, member.read(source)) for member in sample.members])
            else:
                pieces = [(member.field, member.size, member.pieces(source)) for member in sample.members]
                shard.write_pieces(sample.key, pieces)
        if shard is None:
            return None
        original.confirm()
        return shard.commit()
