"""``report``: write one page about the contents of a set.

:func:`report` reads a set and writes an HTML file. First, the headers of all shards are read once, to sum up sizes and
to draw samples at random. Then tasks, one per shard, read the payloads of the drawn samples, and verify checks the
shards. The page is written last. Shards are sorted by name, so that a set always has the same page. They are not sorted
if a selection counts samples. Streams are copied first. Remote shards that several steps read are copied too, if the
disc has enough space (:func:`~wdscli.plan.scratch.hold_remote_shards`). Damaged parts are left out, and listed on the
page. Memory grows by only 16 bytes a sample, to find repeated keys. This module does not print.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, NamedTuple

from wdscli.codecs.handlers import MAX_DECODED_BYTES
from wdscli.errors import StorageError, UsageError
from wdscli.executors import make_executor, run_shard_tasks
from wdscli.look.listing import Listing
from wdscli.look.summary import summarize
from wdscli.look.table import count
from wdscli.plan.inputs import is_read_once
from wdscli.plan.request import Request
from wdscli.plan.scratch import Scratch, hold_remote_shards, spool
from wdscli.progress import QUIET, Progress
from wdscli.report.documents import (
    PublishedShard,
    make_croissant,
    make_page,
    make_readme,
    needed_packages,
)
from wdscli.report.facts import PageFacts, PageInput, gather, plain_value
from wdscli.report.looking import (
    DrawnSample,
    LookTask,
    PayloadFacts,
    SmallestRanks,
    look_into,
    order,
)
from wdscli.run.digests import option_of
from wdscli.selection import Selection
from wdscli.selection.places import parse_place
from wdscli.shards.inputs import ShardSet, ShardStage, manifest_beside, open_set, without_index
from wdscli.shards.manifest import Manifest, common_folder, set_prefix
from wdscli.shards.proof import find_index
from wdscli.shards.reading import checksum_of
from wdscli.shown import shown
from wdscli.storage import base_name, folder_of, is_local, open_sink, open_source
from wdscli.storage.addresses import local_path, natural, view_of
from wdscli.verify.set import VerifyReport, choose_jobs, verify
from wdscli.verify.shard import Checks

CARDS = 48
LOOKED_SAMPLES = 100_000
PICTURED_SAMPLES = 10_000
"""Default numbers of samples: shown on cards, with payloads that are read, and with pictures that are measured."""
MEDIA_BYTES = 2_800_000
"""The most bytes of pictures and sound on all cards together. Base64 on the page adds a third."""
MAX_FINDINGS = 12


class ReportOptions(NamedTuple):
    """The contents of the page. ``title`` is its heading; None means the names of folder and set. ``seed`` decides the
    random choice of samples: ``cards`` samples for the contact sheet, and ``looked`` samples for classes, captions and
    sizes of pictures. ``media`` shows pictures and sound. ``check`` shows the findings of verify. With ``decode``,
    verify also decodes payloads.

    ``card`` and ``croissant`` are the addresses of documents for publishing the set: a dataset card and Croissant
    metadata. None leaves a document out. ``license`` is the licence of the set, or a place in JSON with the licence of
    each sample."""

    title: str | None = None
    seed: int = 0
    cards: int = CARDS
    looked: int = LOOKED_SAMPLES
    media: bool = True
    check: bool = True
    decode: bool = False
    card: str | None = None
    croissant: str | None = None
    license: str | None = None


def report(
    request: Request,
    options: ReportOptions = ReportOptions(),  # noqa: B008  (immutable)
    *,
    progress: Progress = QUIET,
) -> tuple[PageFacts, int]:
    """Write a page about ``request.inputs`` to the address ``request.output``, and the documents of ``options``. Return
    the facts on it, and the size of all outputs in bytes. The page is one HTML file that needs no network. It shows the
    samples of the request's selection, including the intact samples of damaged shards. An empty ``request.output``
    writes no page, and then the set is not verified. An existing output is replaced only if ``force`` of the request's
    settings is true.

    Raises UsageError (also if jinja2, pygal or Pillow is missing), InputError, OutputError.
    """
    needed_packages()
    if not request.output:
        options = options._replace(check=False, media=False)
    shards = _opened(request, options, progress)
    # The output is opened first, so that an error about it comes before the work.
    # Several steps read a whole remote shard, unless its index shows which parts are needed.
    held = shards.addresses if _reads_all(options, request.selection) else sorted(without_index(shards))
    with Scratch() as scratch, ExitStack() as outputs:
        page, card, croissant = [
            outputs.enter_context(open_sink(address, force=request.settings.force)) if address else None
            for address in (request.output, options.card, options.croissant)
        ]
        with hold_remote_shards(held, scratch, progress):
            facts = _facts(shards, request, options, scratch, progress)
        published = _published(shards, facts, options, progress)
        if page is not None:
            page.write(make_page(facts))
        if card is not None:
            card.write(make_readme(facts, *published))
        if croissant is not None:
            croissant.write(make_croissant(facts, *published))
        return facts, sum(sink.written for sink in (page, card, croissant) if sink is not None)


def _opened(request: Request, options: ReportOptions, progress: Progress) -> ShardSet:
    """Open the set. Raises InputError, and UsageError for inputs that the options exclude."""
    selection, trust = request.selection, request.trust_addresses
    shards = open_set(request.inputs, missing="list", warn=progress.warn, trust_addresses=trust)
    if selection.reads_stdin and "-" in shards.addresses:
        raise UsageError("standard input cannot hold both keys and a shard", hint="--keys-from FILE")
    if options.card or options.croissant:
        _check_documents(shards, selection)
    return shards


def _check_documents(shards: ShardSet, selection: Selection) -> None:
    """Raise UsageError if a card cannot describe these shards."""
    if not selection.is_trivial:
        raise UsageError(
            "--card and --croissant describe whole shards, so they allow no selection",
            hint="write the selected samples with wds split first",
        )
    for address in shards.addresses:
        if is_read_once(address) or view_of(address) is not None:
            raise UsageError(
                f"{shown(address)} is no file that can be published", hint="write shards with wds cat first"
            )


def _published(
    shards: ShardSet, facts: PageFacts, options: ReportOptions, progress: Progress
) -> tuple[list[PublishedShard], list[tuple[str, int | None]]]:
    """Return the shards and the licences in the documents. A shard is read whole if the manifest has no SHA-256 of
    it."""
    if not (options.card or options.croissant):
        return [], []
    manifest, rows = facts.input.manifest, facts.input.summary.rows
    listed = {} if manifest is None else {shard.name: shard for shard in manifest.shards}
    folder, entries = common_folder([row.shard for row in rows]), []
    stage = ShardStage(progress, "checksums", [row.shard for row in rows])
    for row in rows:
        entry = listed.get(base_name(row.shard))
        algorithm, _, digest = ((entry and entry.checksum) or "").partition(":")
        with open_source(row.shard, decompress=False, whole=algorithm != "sha256") as source:
            size_bytes = source.size
            if algorithm != "sha256" or entry is None or entry.size_bytes != size_bytes:
                digest = (checksum_of(source, "sha256", stage.at) or "").partition(":")[2]
        entries.append(PublishedShard(row.shard[len(folder) :], row.samples, size_bytes or 0, digest))
        stage.next()
    return entries, _licences(shards, options.license, progress)


def _licences(shards: ShardSet, license: str | None, progress: Progress) -> list[tuple[str, int | None]]:
    """Return the licences with their numbers of samples. A licence that is no place in JSON is the whole set's."""
    place = None if license is None else parse_place(license)
    if license is None or place is None or not place.path:
        return [] if license is None else [(license, None)]
    listing = Listing(shards, Selection(), "skip", progress)
    (counts,) = count(listing, [license])
    for remark in listing.report().remarks:
        progress.warn(remark)
    return [("" if row.value is None else str(row.value), row.samples) for row in counts.rows]


def _reads_all(options: ReportOptions, selection: Selection) -> bool:
    """Return whether the page needs most bytes of the set."""
    return options.check or selection.takes_most


def _facts(
    shards: ShardSet, request: Request, options: ReportOptions, scratch: Scratch, progress: Progress
) -> PageFacts:
    """Collect everything on the page."""
    selection, manifest = request.selection, _manifest(shards)
    shard_addresses = list(shards.addresses)
    if selection.span is None and selection.limit is None:
        shard_addresses.sort(key=lambda address: (natural(base_name(address)), address))
    copies = _copied(shard_addresses, scratch, progress)
    addresses = [copies.get(address, address) for address in shard_addresses]
    names = _names(shard_addresses, addresses)
    drawing = SmallestRanks(max(options.looked, options.cards), options.seed)
    by_index = not _reads_all(options, selection)
    listing = Listing(shards._replace(addresses=addresses), selection, "skip", progress, by_index=by_index)
    listing.names.update((copy, address) for address, copy in copies.items())
    summary = summarize(listing, drawing.look)
    drawn = drawing.drawn()
    cards = min(options.cards, len(drawn))
    progress.note(
        f"{len(drawn)} of {summary.samples} samples are read with their payloads; {cards} of them are shown"
    )
    looked, classes = _look(drawn, addresses, request.jobs, options, progress)
    inputs = addresses if copies else sorted(request.inputs, key=natural)
    return gather(
        PageInput(
            title=options.title or _title(shard_addresses, manifest),
            sources=sorted({_shown_source(text) for text in request.inputs}),
            seed=options.seed,
            summary=summary,
            looked=len(drawn),
            payloads=looked,
            classes=classes,
            names=names,
            verified=_verified(inputs, names, request, options, progress) if options.check else None,
            decoded=options.decode,
            manifest=manifest,
            provenance=[*([] if manifest is None else _made(manifest)), *_values_row(addresses)],
        )
    )


def _manifest(shards: ShardSet) -> Manifest | None:
    """Return the manifest in the arguments, or else the manifest next to the shards."""
    if shards.manifest is not None:
        return shards.manifest
    beside = manifest_beside(shards.addresses, shards.listings)
    return None if beside is None else beside[1]


def _verified(
    inputs: Sequence[str], names: dict[str, str], request: Request, options: ReportOptions, progress: Progress
) -> VerifyReport:
    """Return the findings of verify, with the names of shards on the page."""
    checks = Checks(max_decoded=MAX_DECODED_BYTES if options.decode else None, limit=MAX_FINDINGS)
    trusts, jobs = request.trust_addresses, request.jobs
    report = verify(inputs, checks, trust_addresses=trusts, jobs=jobs, progress=progress)
    return _renamed(report, names)


def _copied(addresses: Sequence[str], scratch: Scratch, progress: Progress) -> dict[str, str]:
    """Copy the shards that can be read only once. Return the copies by the shard's address."""
    copies: dict[str, str] = {}
    for address in addresses:
        if is_read_once(address) and address not in copies:
            copies[address] = scratch.place(len(copies))
            with open_source(address) as source:
                spool(source, copies[address], cut=lambda error: progress.warn(str(error)))
    return copies


def _names(shard_addresses: Sequence[str], addresses: Sequence[str]) -> dict[str, str]:
    """Return the names of shards on the page, by address. Local folders are private, so names have no folder. If shards
    in several folders share a name, the last folder is included."""
    bases = [base_name(address) for address in shard_addresses]
    if len(set(bases)) < len(set(shard_addresses)):
        bases = ["/".join(shown(address).split("/")[-2:]) for address in shard_addresses]
    return dict(zip(addresses, bases))


def _shown_source(text: str) -> str:
    """Return the page's name for an input."""
    return shown(text) if not is_local(text) else base_name(local_path(text).rstrip("/")) or text


def _title(shard_addresses: Sequence[str], manifest: Manifest | None) -> str:
    """Return the name of the shards' folder, and the set's name if it is different."""
    name = (manifest and manifest.name) or set_prefix(shard_addresses)
    folders = {
        base_name(os.path.abspath(folder_of(address)) if is_local(address) else folder_of(address))
        for address in shard_addresses
    }
    folder = folders.pop() if len(folders) == 1 else ""
    return "/".join(dict.fromkeys(filter(None, (folder, name)))) or "Shard set"


def _look(
    drawn: Sequence[DrawnSample],
    addresses: Sequence[str],
    jobs: int | None,
    options: ReportOptions,
    progress: Progress,
) -> tuple[PayloadFacts, list[tuple[tuple[int, int], bytes, tuple[tuple[str, str], ...]]]]:
    """Return facts about the payloads of the drawn samples, and the classes of each sample with its place in the
    set."""
    numbers = {address: number for number, address in enumerate(addresses)}
    by_shard: dict[str, list[DrawnSample]] = {}
    for sample in drawn:
        by_shard.setdefault(sample.shard, []).append(sample)
    cards = min(options.cards, len(drawn))
    orders = [(-1, "", 0), *map(order, drawn)]
    tasks = [
        LookTask(
            address,
            tuple(sorted(by_shard[address], key=lambda sample: sample.place)),
            orders[min(PICTURED_SAMPLES, len(drawn))],
            orders[cards],
            MEDIA_BYTES // cards if cards and options.media else 0,
        )
        for address in dict.fromkeys(addresses)
        if address in by_shard
    ]
    whole, classes = PayloadFacts(), []
    with make_executor(choose_jobs(jobs, addresses, payloads=True)) as executor:
        looked_at = [task.address for task in tasks]
        results = run_shard_tasks(executor, look_into, tasks, progress, "reading samples", looked_at)
        for address, facts in zip(looked_at, results):
            whole.add(facts)
            classes += [((numbers[address], place), key, values) for place, key, values in facts.classes]
    return whole, classes


def _renamed(verified: VerifyReport, names: dict[str, str]) -> VerifyReport:
    """Replace the names of shards and of files beside them in findings by the page's names."""
    words = {shown(address): name for address, name in names.items()}
    words.update({shown(folder_of(address)): "" for address in names if is_local(address)})
    longest_first = sorted((text for text in words if text), key=len, reverse=True)

    def renamed(text: str) -> str:
        for address in longest_first:
            text = text.replace(address, words[address])
        return text

    findings = [
        finding._replace(shard=renamed(finding.shard), message=renamed(finding.message))
        for finding in verified.findings
    ]
    return replace(verified, findings=tuple(findings))


def _values_row(addresses: Sequence[str]) -> list[tuple[str, str]]:
    """Return the row of the values that the index of the first shard stores, or nothing without values. The index of a
    remote shard would cost requests."""
    if not addresses or not is_local(addresses[0]):
        return []
    with suppress(StorageError), open_source(addresses[0]) as source:
        index = find_index(addresses[0], source)
        if index is not None and index.numbers:
            return [("values", ", ".join(index.numbers))]
    return []


def _made_value(name: str, value: Any, manifest: Manifest) -> Any:
    """Return a value from the manifest as text. Options have their current names."""
    if name != "options" or not isinstance(value, dict):
        return value
    operation, kind = str(manifest.made.get("operation")), str(value.get("kind"))
    names = {old: option_of(operation, kind if old == "what" else old) for old in value if old != "kind"}
    return [
        option if value[old] is True else f"{option} {plain_value(value[old])}"
        for old, option in names.items()
        if value[old] not in (None, False, "", [])
    ]


def _made(manifest: Manifest) -> list[tuple[str, str]]:
    """Return how a set was made, as names and texts from its manifest."""
    rows = [("name", manifest.name), ("fingerprint", manifest.fingerprint)]
    rows += [(name, plain_value(_made_value(name, value, manifest))) for name, value in manifest.made.items()]
    checksums = {(shard.checksum or "").partition(":")[0] for shard in manifest.shards} - {""}
    rows.append(("checksums", ", ".join(sorted(checksums)) or "none"))
    rows.append(("index", "next to the shards" if all(shard.index for shard in manifest.shards) else "none"))
    return [(name, text) for name, text in rows if text]
