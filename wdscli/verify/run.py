"""All shards of a set, checked in parallel, and what only the whole set shows.

What it is: :func:`verify`. How: one task a shard, results gathered in the order of the shards; then keys that several
shards have (a second look at those shards names them) and samples whose fields are not those of most. Memory grows by
eight bytes a sample and by the findings that are told, which are bounded.

It must not know how findings are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wdscli.codecs.limits import MAX_DECODED_BYTES
from wdscli.errors import UsageError
from wdscli.executors import default_jobs, make_executor, run_tasks
from wdscli.model import to_bytes, to_text
from wdscli.progress import QUIET, Progress
from wdscli.shards.inputs import ShardSet, open_set
from wdscli.shown import shown
from wdscli.storage import is_local
from wdscli.verify.against import Listings, find_listings
from wdscli.verify.findings import KINDS, MAX_FINDINGS, Finding, Findings, Ledger, kind_of
from wdscli.verify.headers import ShapeCount
from wdscli.verify.keys import Across, KeyColumns, repeats_across
from wdscli.verify.profiles import DEMANDS, parse_profiles
from wdscli.verify.shard import Located, LocateTask, ShardResult, ShardTask, check_shard, locate

if TYPE_CHECKING:
    from concurrent.futures import Executor

SMALL_BYTES = 256 << 20
"""Headers of local shards up to this many bytes are read in one process sooner than others have started."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What verify found. ``counts`` are all findings by code, ``findings`` those told in full: by kind in the order of
    the table, then by shard and byte."""

    shards: int
    samples: int
    members: int
    size_bytes: int
    findings: tuple[Finding, ...]
    counts: dict[str, int]
    ignored: dict[str, int] = field(default_factory=dict)

    @property
    def errors(self) -> int:
        """Findings that are errors, told or only counted."""
        return sum(count for code, count in self.counts.items() if kind_of(code).severity == "error")

    @property
    def warnings(self) -> int:
        """Findings that are warnings, told or only counted."""
        return sum(self.counts.values()) - self.errors

    @property
    def untold(self) -> dict[str, int]:
        """By code, how many findings were counted only."""
        told: dict[str, int] = {}
        for finding in self.findings:
            told[finding.code] = told.get(finding.code, 0) + 1
        return {
            code: count - told.get(code, 0)
            for code, count in self.counts.items()
            if count > told.get(code, 0)
        }

    @property
    def is_complete(self) -> bool:
        """Whether every shard could be read."""
        return "unreadable" not in self.counts


def verify(
    inputs: Sequence[str],
    *,
    require: Sequence[str] = (),
    profiles: Sequence[str] = (),
    decode: bool = False,
    max_decoded: int = MAX_DECODED_BYTES,
    checksums: bool = False,
    trust_addresses: bool = False,
    max_findings: int = MAX_FINDINGS,
    jobs: int | None = None,
    progress: Progress = QUIET,
) -> VerifyReport:
    """Check the shards that ``inputs`` name (addresses, patterns, manifests) and report everything that is wrong.

    ``require`` are fields that every sample must have, ``profiles`` the readers whose demands are checked too;
    ``decode`` (of those that have and become at most ``max_decoded`` bytes) and ``checksums`` read the payloads. At
    most ``max_findings`` of each kind are told, the rest are counted. Raises UsageError, InputError when nothing
    matches, DataError for a manifest that is none.
    """
    shards = open_set(inputs, trust_addresses=trust_addresses)
    listings = find_listings(shards, max_findings)
    if checksums and not any(listing.shard.checksum for listing in listings.of.values()):
        raise UsageError(
            "--checksums has nothing to compare with: no manifest with checksums was given or lies beside the shards",
            hint="`wds index SHARDS` writes one for shards that you trust",
        )
    tasks = _tasks(
        shards,
        listings,
        require,
        parse_profiles(profiles),
        max_decoded if decode else None,
        checksums,
        max_findings,
    )
    gathered = _Gathered(shards.addresses, max_findings)
    for ledger in listings.ledgers:
        gathered.add(ledger.findings, ledger.counts)
    jobs = choose_jobs(jobs, shards.addresses, payloads=decode or checksums)
    progress.start("verify", len(tasks), "shards")
    with make_executor(jobs) as executor:
        for result in run_tasks(executor, check_shard, tasks):
            gathered.add_result(result)
            progress.advance(1)
        _add_repeats(gathered, executor, max_findings)
    progress.finish()
    _add_mixed(gathered, max_findings)
    return gathered.report()


def _tasks(
    shards: ShardSet,
    listings: Listings,
    require: Sequence[str],
    profiles: tuple[str, ...],
    max_decoded: int | None,
    checksums: bool,
    limit: int,
) -> list[ShardTask]:
    tasks = []
    for number, address in enumerate(shards.addresses):
        listing = listings.of.get(address)
        required = tuple(dict.fromkeys((*map(to_bytes, require), *(listing.required if listing else ()))))
        tasks.append(
            ShardTask(
                address,
                required,
                profiles,
                max_decoded,
                checksums,
                listing.shard if listing else None,
                listing.manifest if listing else None,
                number == 0,
                limit,
            )
        )
    return tasks


def choose_jobs(jobs: int | None, addresses: Sequence[str], *, payloads: bool) -> int:
    """How many processes: none but this one where the work is smaller than starting others."""
    if len(addresses) == 1 or "-" in addresses:
        return 1
    if jobs is not None:
        return min(jobs, len(addresses))
    limit = SMALL_BYTES // 16 if payloads else SMALL_BYTES
    if all(map(is_local, addresses)) and _few_bytes(addresses, limit):
        return 1
    return min(default_jobs(), len(addresses))


def _few_bytes(addresses: Sequence[str], limit: int) -> bool:
    import os

    from wdscli.storage.addresses import local_path

    total = 0
    for address in addresses:
        try:
            total += os.stat(local_path(address)).st_size
        except OSError:
            continue
        if total > limit:
            return False
    return True


class _Gathered:
    """What the tasks returned, in the order of the shards."""

    def __init__(self, addresses: Sequence[str], limit: int) -> None:
        self.addresses = addresses
        self._findings = Findings(limit)
        self.digests: list[bytes] = []
        self.kept: list[KeyColumns | None] = []
        self.shapes: list[dict[frozenset[bytes], ShapeCount]] = []
        self._totals = (0, 0, 0)
        self._ignored: dict[str, int] = {}

    def add(self, findings: Sequence[Finding], counts: dict[str, int]) -> None:
        """The findings of one ledger."""
        self._findings.add(findings, counts)

    def add_result(self, result: ShardResult) -> None:
        """What one shard's task returned."""
        self.add(result.findings, result.counts)
        samples, members, size = self._totals
        self._totals = (samples + result.samples, members + result.members, size + result.size_bytes)
        self.digests.append(result.digests)
        self.kept.append(result.kept)
        self.shapes.append(result.shapes)
        for reason, count in result.ignored.items():
            self._ignored[reason] = self._ignored.get(reason, 0) + count

    def report(self) -> VerifyReport:
        codes = {code: place for place, code in enumerate((*KINDS, *DEMANDS))}
        order = {shown(address): place for place, address in enumerate(self.addresses)}
        findings = sorted(
            self._findings.told,
            key=lambda f: (
                codes.get(f.code, len(codes)),
                order.get(f.shard, -1),
                -1 if f.offset is None else f.offset,
            ),
        )
        ignored = dict(sorted(self._ignored.items()))
        counts = dict(sorted(self._findings.counts.items(), key=lambda item: codes.get(item[0], len(codes))))
        return VerifyReport(len(self.addresses), *self._totals, tuple(findings), counts, ignored)


def _add_repeats(gathered: _Gathered, executor: Executor, limit: int) -> None:
    """Keys that an earlier shard has too: found by digest, then read again and compared, so that two keys of one digest
    are not taken for one."""
    across = dict(repeats_across(gathered.digests, limit))
    located = _locate_all(gathered, executor, across)
    for number, repeats in across.items():
        ledger = Ledger(gathered.addresses[number], limit)
        for digest, first in zip(repeats.digests, repeats.first_shards):
            here, there = located[number].get(digest), located[first].get(digest)
            if here is not None and there is not None and here.key == there.key:
                message = f"{gathered.addresses[first]} has this key too, at byte {there.offset}"
                ledger.add("duplicate-key", message, offset=here.offset, member=to_text(here.key))
        ledger.more("duplicate-key", repeats.total - len(repeats.digests))
        gathered.add(ledger.findings, ledger.counts)


def _locate_all(
    gathered: _Gathered, executor: Executor, across: dict[int, Across]
) -> dict[int, dict[int, Located]]:
    """For each shard that has any of the repeated keys, where they are in it, by digest."""
    wanted: dict[int, set[int]] = {}
    for number, repeats in across.items():
        for digest, first in zip(repeats.digests, repeats.first_shards):
            wanted.setdefault(number, set()).add(digest)
            wanted.setdefault(first, set()).add(digest)
    again = [number for number in wanted if gathered.kept[number] is None]
    tasks = [LocateTask(gathered.addresses[number], tuple(wanted[number])) for number in again]
    found = dict(zip(again, run_tasks(executor, locate, tasks)))
    for number, digests in wanted.items():
        kept = gathered.kept[number]
        if kept is not None:
            found[number] = _located_in(kept, digests)
    return {number: {place.digest: place for place in places} for number, places in found.items()}


def _located_in(kept: KeyColumns, digests: set[int]) -> list[Located]:
    """Keys of a stream, which were kept because it cannot be read again."""
    wanted, found = set(digests), []
    for row, digest in enumerate(kept.digests):
        if digest in wanted:
            wanted.discard(digest)
            found.append(Located(digest, kept.name(row) or b"", kept.starts[row]))
    return found


def _add_mixed(gathered: _Gathered, limit: int) -> None:
    """Samples that have other fields than most of the set: one finding for each list of fields in each shard."""
    totals: dict[frozenset[bytes], int] = {}
    for shapes in gathered.shapes:
        for fields, seen in shapes.items():
            totals[fields] = totals.get(fields, 0) + seen.samples
    if len(totals) < 2:
        return
    usual = max(totals, key=lambda fields: (totals[fields], len(fields)))
    for address, shapes in zip(gathered.addresses, gathered.shapes):
        ledger = Ledger(address, limit)
        for fields, seen in sorted(shapes.items(), key=lambda item: item[1].offset):
            if fields != usual:
                message = f"{_the_first_of(seen.samples)} {_fields(fields)}; most have {_fields(usual)}"
                ledger.add("mixed-fields", message, offset=seen.offset, member=to_text(seen.key))
        gathered.add(ledger.findings, ledger.counts)


def _the_first_of(count: int) -> str:
    return "a sample with" if count == 1 else f"the first of {count} samples with"


def _fields(fields: frozenset[bytes]) -> str:
    names = [to_text(name) for name in sorted(fields)]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
