"""This module checks all shards of a set in parallel. It also finds the problems that concern several shards.

:func:`verify` runs one task per shard, and collects the results in the order of the shards. Then it searches for keys
in several shards, and reads these shards a second time to name the keys. Last, it searches for samples with other
fields than most samples. Memory grows by eight bytes per sample, and by the reported findings, whose number is limited.

If a manifest is given on the command line, shards are compared only with this manifest. Otherwise every
``*manifest.json`` in the shards' folders that lists one of the shards is used, on any store that can be listed. Two
things are findings: a manifest lists a shard that does not exist, or it lacks a shard with its prefix. If only some
shards of a set are checked, this is no finding.

This module does not know how findings are printed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from wdscli.errors import DataError, UsageError, WdsError
from wdscli.executors import MIN_SCANNED_BYTES, make_executor, run_shard_tasks, run_tasks, useful_shard_jobs
from wdscli.progress import QUIET, Progress
from wdscli.shards.inputs import MANIFEST_SUFFIX, ShardSet, names_in, open_set, read_manifest, without_index
from wdscli.shards.manifest import ContradictoryManifestError, Manifest
from wdscli.shards.view_shards import OpenView, opened
from wdscli.shown import shown
from wdscli.storage import base_name, exists, folder_of, is_stream, open_source, read_all
from wdscli.storage.addresses import view_of
from wdscli.storage.opening import is_one_request
from wdscli.text import to_bytes, to_text
from wdscli.verify.findings import DEMANDS, KINDS, NOT_SEARCHED, Finding, Ledger, parse_codes, severity_of
from wdscli.verify.keys import (
    PRESENT,
    KeyColumns,
    KeyList,
    LocateTask,
    listed_keys,
    locate,
    repeats_across,
    suspicious,
)
from wdscli.verify.profiles import parse_profiles
from wdscli.verify.shard import (
    HEADERS_ONLY,
    Checks,
    ManifestEntry,
    ShardResult,
    VerifyTask,
    check_base,
    check_shard,
)

if TYPE_CHECKING:
    from concurrent.futures import Executor

PAYLOADS_BYTES = 16 << 20
"""A process decodes the payloads of this many bytes of shards while another one starts."""


class SearchedShard(NamedTuple):
    """A shard in which keys were searched: its address, its size in bytes, its number of samples, and the SHA-256 of
    its keys."""

    shard: str
    bytes: int
    samples: int
    keys: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of verify. ``counts`` counts all findings by code. ``findings`` are the findings reported in full.
    They are sorted by kind in the order of the table, then by shard and byte. ``searched`` has the shards if some keys
    had to be absent."""

    shards: int
    samples: int
    members: int
    size_bytes: int
    findings: tuple[Finding, ...]
    counts: dict[str, int]
    ignored: dict[str, int] = field(default_factory=dict)
    searched: tuple[SearchedShard, ...] = ()
    absent: KeyList | None = None
    """The list of keys that had to be absent, and ``absent_keys``, their number."""
    absent_keys: int = 0
    error_codes: frozenset[str] = frozenset()
    """Kinds of warnings that count as errors."""
    undecoded: Mapping[str, str] = field(default_factory=dict)
    """The fields with payloads that were not decoded, and why."""

    @property
    def errors(self) -> int:
        """The number of errors, including errors that were only counted."""
        codes = self.error_codes
        return sum(count for code, count in self.counts.items() if severity_of(code, codes) == "error")

    @property
    def warnings(self) -> int:
        """The number of warnings, including warnings that were only counted."""
        return sum(self.counts.values()) - self.errors

    @property
    def untold(self) -> dict[str, int]:
        """The number of findings that were only counted, by code."""
        return dict(Counter(self.counts) - Counter(finding.code for finding in self.findings))

    def proof(self, root: str | None) -> dict[str, Any]:
        """Return the document about a search for the keys of a list. It names the list, the searched shards, the
        method, and the keys found. ``root`` is the fingerprint of the set; it is None if no manifest lists the set."""
        present = [finding for finding in self.findings if finding.code == PRESENT]
        return {
            "format": "wdscli-proof-v1",
            "list": {"sha256": self.absent and self.absent.sha256, "keys": self.absent_keys},
            "set": root,
            "how": f"keys read from the headers of {len(self.searched)} shards; payloads were not compared",
            "shards": [shard._asdict() for shard in self.searched],
            "found": self.counts.get(PRESENT, 0),
            "first": [
                {"key": finding.member, "shard": finding.shard, "byte": finding.offset} for finding in present
            ],
            "complete": self.is_search_complete,
        }

    @property
    def is_search_complete(self) -> bool:
        """Whether every shard could be read to its end, and every member is a file or a folder with a safe name."""
        return len(self.searched) == self.shards and NOT_SEARCHED.isdisjoint(self.counts)

    @property
    def is_complete(self) -> bool:
        """Whether every shard could be read."""
        return "unreadable" not in self.counts


def verify(
    inputs: Sequence[str],
    checks: Checks = HEADERS_ONLY,
    *,
    trust_addresses: bool = False,
    jobs: int | None = None,
    progress: Progress = QUIET,
) -> VerifyReport:
    """Check the shards that ``inputs`` name (addresses, patterns, manifests) and report every problem. Decoding and
    comparing checksums read all payloads. Raises UsageError, InputError if nothing matches, and DataError for a file
    that is no manifest."""
    profiles, errors = parse_profiles(checks.profiles), parse_codes(checks.errors)
    checks = checks._replace(profiles=profiles, errors=errors, seed=new_seed())
    for remark in () if checks.absent is None else suspicious(listed_keys(checks.absent)):
        progress.warn(remark)
    shards = open_set(inputs, missing="accept", takes_unfinished=True, trust_addresses=trust_addresses)
    for view in _views_of(shards) if checks.absent is not None else ():
        if any(shard.keys for shard in view.view.shards):
            progress.warn(f"{view.address} gives samples new keys, and --absent searches only the new keys")
    return _checked(shards, checks, jobs, progress)


def _checked(shards: ShardSet, checks: Checks, jobs: int | None, progress: Progress) -> VerifyReport:
    """Check an open set: first the set's files, then each shard, then the keys of all shards."""
    whole = Ledger(limit=checks.limit)
    listings, about_listings = _find_listings(shards, checks.limit)
    for ledger in (*about_listings, *_unfinished(shards, checks.limit)):
        whole.add_all(ledger)
    bases = _bases_of(shards) if checks.checksums else {}
    if checks.checksums:
        _refuse_without_checksums(shards, [*listings.values(), *bases.values()])
    tasks = _tasks(checks, shards, listings)
    results: list[ShardResult] = []
    digests: list[bytes] = []
    decodes = checks.max_decoded is not None
    with make_executor(choose_jobs(jobs, shards.addresses, payloads=decodes)) as executor:
        for result in _check_shards(executor, tasks, progress):
            whole.add_all(result.ledger)
            digests.append(result.digests)
            results.append(replace(result, ledger=whole, digests=b""))
            progress.note(
                f"{result.ledger.shard}: {result.samples} samples, {result.members} members, "
                f"{result.size_bytes} bytes"
            )
        base_tasks = [VerifyTask(base, checks, listing) for base, listing in bases.items()]
        if base_tasks:
            for result in run_shard_tasks(
                executor, check_base, base_tasks, progress, "checking bases", list(bases)
            ):
                whole.add_all(result.ledger)
        kept = {number: result.kept for number, result in enumerate(results)}
        _add_repeats(whole, digests, shards.addresses, executor, checks.seed, kept)
    _add_mixed(whole, shards.addresses, results)
    return _report(whole, shards.addresses, results, checks)


def _find_listings(shards: ShardSet, limit: int) -> tuple[dict[str, ManifestEntry], list[Ledger]]:
    """Return the manifest entry of each listed shard, and findings about the set."""
    listings: dict[str, ManifestEntry] = {}
    ledgers: list[Ledger] = []
    if shards.manifest is not None:
        manifest_address = shards.manifest_address or ""
        required = tuple(map(to_bytes, shards.manifest.common_fields))
        for address, shard in zip(shards.addresses, shards.manifest.shards):
            listings[address] = ManifestEntry(manifest_address, shard, required)
        return listings, ledgers
    folders: dict[str, list[str]] = {}
    for address in shards.addresses:
        if not is_stream(address):
            folders.setdefault(folder_of(address), []).append(address)
    for folder, addresses in folders.items():
        names = set(names_in(folder, shards.listings))
        manifests = _manifests_of(
            folder, names, {base_name(address) for address in addresses}, ledgers, limit
        )
        if shards.listings is not None:
            shards.listings.manifests.update(manifests)
        for manifest_address, manifest in manifests.items():
            required = tuple(map(to_bytes, manifest.common_fields))
            by_name = {shard.name: shard for shard in manifest.shards}
            for address in addresses:
                if (listed := by_name.get(base_name(address))) is not None:
                    listings[address] = ManifestEntry(manifest_address, listed, required)
        ledgers += _strays(addresses, listings, limit)
    return listings, ledgers


def _manifests_of(
    folder: str, folder_names: set[str], shard_names: set[str], ledgers: list[Ledger], limit: int
) -> dict[str, Manifest]:
    """Return the manifests of a folder that list one of the shards ``shard_names``, by address. Report missing shards
    and unreadable manifests."""
    manifests = {}
    for file_name in sorted(folder_names):
        if not file_name.endswith(MANIFEST_SUFFIX):
            continue
        ledger = Ledger(folder + file_name, limit)
        ledgers.append(ledger)
        try:
            manifest = _manifest(folder + file_name, ledger)
        except DataError as error:
            # Other tools use the name manifest.json too, so report only a file that may belong to these shards.
            prefix = file_name.removesuffix(MANIFEST_SUFFIX)
            is_listed = any(name.startswith(prefix) for name in shard_names)
            if is_listed if prefix else b'"shardlist"' in read_all(folder + file_name):
                ledger.add("manifest-mismatch", error.message)
        except WdsError as error:
            ledger.add("unreadable", error.message)
        else:
            if any(shard.name in shard_names for shard in manifest.shards):
                manifests[folder + file_name] = manifest
                for shard in manifest.shards:
                    if "/" not in shard.name and shard.name not in folder_names:
                        ledger.add("manifest-mismatch", f"it lists {shard.name}, which does not exist")
    return manifests


def _manifest(address: str, ledger: Ledger) -> Manifest:
    """Return the manifest at an address. Report a manifest that contradicts itself."""
    try:
        return read_manifest(address)
    except ContradictoryManifestError as error:
        ledger.add_error(error)
        return error.manifest


def _strays(addresses: Sequence[str], listings: dict[str, ManifestEntry], limit: int) -> Iterator[Ledger]:
    """Return a finding for each shard that has a manifest's prefix but is not listed in any manifest."""
    manifests = sorted({listings[address].manifest for address in addresses if address in listings})
    for address in addresses:
        for manifest in manifests if address not in listings else ():
            prefix = base_name(manifest).removesuffix(MANIFEST_SUFFIX)
            if prefix and base_name(address).startswith(prefix):
                ledger = Ledger(address, limit)
                ledger.add("manifest-mismatch", f"{manifest} does not list the shard")
                yield ledger
                break


def _unfinished(shards: ShardSet, limit: int) -> Iterator[Ledger]:
    """Return a finding for each command that was interrupted while it wrote this set."""
    for unfinished_run in shards.unfinished:
        text, hint = unfinished_run.describe()
        ledger = Ledger(unfinished_run.address, limit)
        ledger.add("unfinished", text, hint=hint)
        yield ledger


def _refuse_without_checksums(shards: ShardSet, listings: Sequence[ManifestEntry]) -> None:
    """Raise UsageError if no manifest has a checksum, or InputError for a shard that does not exist."""
    if any(listing.shard.checksum for listing in listings):
        return
    for address in shards.addresses:
        if not (is_stream(address) or exists(address)):
            open_source(address).close()
    raise UsageError(
        "--checksums needs a manifest with checksums, but the set has no such manifest",
        hint="if you trust the shards, write a manifest: wds index SHARDS",
    )


def _views_of(shards: ShardSet) -> list[OpenView]:
    """Return the views that the set's shards belong to."""
    return [
        opened(view_address)
        for view_address in dict.fromkeys(place[0] for place in map(view_of, shards.addresses) if place)
    ]


def _bases_of(shards: ShardSet) -> dict[str, ManifestEntry]:
    """Return the bases of views, and a view's entry for each base."""
    return {
        base: ManifestEntry(view.address, info, ())
        for view in _views_of(shards)
        for base, info in zip(view.bases, view.view.bases, strict=True)
    }


def _tasks(checks: Checks, shards: ShardSet, listings: dict[str, ManifestEntry]) -> list[VerifyTask]:
    """Return the task of each shard. A task has the checks, the shard's manifest entry, and whether it has an index."""
    unindexed = without_index(shards)
    tasks = []
    for number, address in enumerate(shards.addresses):
        listing = listings.get(address)
        size = listing.shard.size_bytes if listing and listing.shard.size_bytes > 0 else None
        fields = dict.fromkeys((*checks.required, *(listing.required if listing else ())))
        # A view has checksums of its bases, not of its shards.
        compares = checks.checksums and view_of(address) is None
        tasks.append(
            VerifyTask(
                address,
                checks._replace(required=tuple(fields), checksums=compares),
                listing,
                {} if number else None,
                address not in unindexed,
                is_one_request(address, size),
            )
        )
    return tasks


def _check_shards(executor: Executor, tasks: list[VerifyTask], progress: Progress) -> Iterator[ShardResult]:
    """Yield the result of each task, in order. For Hugging Face, the first shard is checked before all others, because
    its first samples define the JSON types for all shards."""

    def run(chosen_tasks: list[VerifyTask]) -> Iterator[ShardResult]:
        addresses = [task.address for task in chosen_tasks]
        return run_shard_tasks(executor, check_shard, chosen_tasks, progress, "checking shards", addresses)

    if len(tasks) > 1 and "hf" in tasks[0].checks.profiles:
        (first,) = run(tasks[:1])
        yield first
        tasks = [task._replace(hf_types=first.hf_types) for task in tasks[1:]]
    yield from run(tasks)


def new_seed() -> int:
    """Return a secret seed for the digests of keys in this run."""
    return int.from_bytes(os.urandom(8), "little")


def choose_jobs(jobs: int | None, addresses: Sequence[str], *, payloads: bool) -> int:
    """Return the number of processes. It is 1 if starting more would take longer than the work."""
    if len(addresses) == 1 or "-" in addresses:
        return 1
    return useful_shard_jobs(jobs, addresses, PAYLOADS_BYTES if payloads else MIN_SCANNED_BYTES)


def _report(
    ledger: Ledger, addresses: Sequence[str], results: Sequence[ShardResult], checks: Checks
) -> VerifyReport:
    """Return the report on all shards, with sorted findings."""
    codes = {code: place for place, code in enumerate((*KINDS, *DEMANDS))}
    order = {shown(address): place for place, address in enumerate(addresses)}
    last = len(codes)

    def place(finding: Finding) -> tuple[int, int, int]:
        offset = -1 if finding.offset is None else finding.offset
        return codes.get(finding.code, last), order.get(finding.shard, -1), offset

    ignored: Counter[str] = Counter()
    for result in results:
        ignored.update(result.ignored)
    return VerifyReport(
        shards=len(addresses),
        samples=sum(result.samples for result in results),
        members=sum(result.members for result in results),
        size_bytes=sum(result.size_bytes for result in results),
        findings=tuple(
            finding._replace(severity=severity_of(finding.code, checks.errors))
            for finding in sorted(ledger.findings, key=place)
        ),
        counts=dict(
            sorted(ledger.counts.items(), key=lambda code_and_count: codes.get(code_and_count[0], last))
        ),
        ignored=dict(sorted(ignored.items())),
        undecoded=dict(sorted(ledger.undecoded.items())),
        searched=tuple(
            SearchedShard(shown(address), result.size_bytes, result.samples, result.keys_digest)
            for address, result in zip(addresses, results)
            if result.keys_digest
        ),
        absent=checks.absent,
        absent_keys=0 if checks.absent is None else len(listed_keys(checks.absent)),
        error_codes=checks.errors,
    )


Repeat = tuple[bytes, int, int, int]
"""A key that an earlier shard has too, its offset, the number of the earlier shard, and the offset there."""


def compared(
    digests: list[bytes],
    limit: int,
    addresses: Sequence[str],
    executor: Executor,
    seed: int,
    kept: Mapping[int, KeyColumns | None],
) -> Iterator[tuple[int, list[Repeat], int]]:
    """Yield up to ``limit`` repeated keys of each shard, and the number of more such keys. ``digests`` has the keys'
    digests by shard, which give the candidates; the list is emptied. Their keys are read again and compared, because
    two different keys may share a digest. ``kept`` has the keys of streams."""
    across = list(repeats_across(digests, limit))
    wanted: dict[int, set[int]] = {}
    for number, repeats, _ in across:
        for digest, first in repeats:
            wanted.setdefault(number, set()).add(digest)
            wanted.setdefault(first, set()).add(digest)
    tasks = [
        LocateTask(addresses[number], tuple(digests), kept.get(number), seed)
        for number, digests in wanted.items()
    ]
    located = dict(zip(wanted, run_tasks(executor, locate, tasks)))
    for number, repeats, unreported in across:
        repeated_keys = []
        for digest, first in repeats:
            place, first_place = located[number].get(digest), located[first].get(digest)
            if place is not None and first_place is not None and place[0] == first_place[0]:
                repeated_keys.append((*place, first, first_place[1]))
        yield number, repeated_keys, unreported


def _add_repeats(
    whole: Ledger,
    digests: list[bytes],
    addresses: Sequence[str],
    executor: Executor,
    seed: int,
    kept: Mapping[int, KeyColumns | None],
) -> None:
    """Report keys that are also in an earlier shard."""
    limit = whole.limit
    for number, repeated_keys, unreported in compared(digests, limit, addresses, executor, seed, kept):
        ledger = Ledger(addresses[number], limit)
        for key, offset, first, first_offset in repeated_keys:
            message = f"{addresses[first]} has the same key, at byte {first_offset}"
            ledger.add("duplicate-key", message, offset=offset, member=key)
        ledger.more("duplicate-key", unreported)
        whole.add_all(ledger)


def _add_mixed(whole: Ledger, addresses: Sequence[str], results: Sequence[ShardResult]) -> None:
    """Report samples with other fields than most samples of the set: one finding per list of fields in each shard."""
    totals: Counter[frozenset[bytes]] = Counter()
    for result in results:
        totals.update({fields: shape.count for fields, shape in result.shapes.items()})
    if len(totals) < 2:
        return
    usual = max(totals, key=lambda fields: (totals[fields], len(fields)))
    for address, result in zip(addresses, results):
        ledger = Ledger(address, whole.limit)
        for fields, shape in sorted(
            result.shapes.items(), key=lambda fields_and_shape: fields_and_shape[1].offset
        ):
            if fields != usual:
                count = "a sample" if shape.count == 1 else f"the first of {shape.count} samples"
                message = f"{count} with {_fields(fields)}; most have {_fields(usual)}"
                ledger.add("mixed-fields", message, offset=shape.offset, member=shape.key)
        whole.add_all(ledger)


def _fields(fields: frozenset[bytes]) -> str:
    names = [to_text(name) for name in sorted(fields)]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
