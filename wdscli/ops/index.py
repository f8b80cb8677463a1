"""``index``: write indexes and a manifest for existing shards, or the index files of other programs.

:func:`index` runs one task per shard, in parallel. A task keeps the shard's index if it agrees with all headers;
otherwise the task makes a new index. The task also hashes the payloads for the manifest. The manifest is written last.
An existing manifest is kept if it is complete and correct. Missing facts are added, and the manifest keeps its record
of how the set was made. A manifest that contradicts a shard is an error. Files for other programs are made from the
indexes, in one pass. This module does not print.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from wdscli.errors import DataError, InputError, OutputError, OutputExistsError, UsageError
from wdscli.executors import (
    MIN_SCANNED_BYTES,
    make_executor,
    run_shard_tasks,
    tick_of_task,
    useful_shard_jobs,
)
from wdscli.model import UNKNOWN, Facts, ShardInfo, contradictions
from wdscli.progress import QUIET, Progress
from wdscli.samples.grouping import SampleAt
from wdscli.samples.keys import KeySet
from wdscli.selection.named import listed
from wdscli.selection.values import Numbers, SampleNumbers, value_names
from wdscli.shards.dialects import Dialect, ShardPlace, SideFile, make_dialect
from wdscli.shards.index import Check, Index, index_address, parse_index
from wdscli.shards.inputs import (
    MANIFEST_SUFFIX,
    ShardSet,
    open_set,
    read_manifest,
    stale_manifests,
    without_index,
)
from wdscli.shards.locks import OutputLock, remove_receipts
from wdscli.shards.manifest import ContradictoryManifestError, Manifest, common_folder, name_from, set_prefix
from wdscli.shards.proof import ProvenIndex, index_to_adopt, prove_index, refuse_other_bytes, scan_index
from wdscli.shards.reading import index_batches, new_digest, written
from wdscli.storage import (
    Source,
    base_name,
    exists,
    folder_of,
    is_local,
    is_stream,
    open_sink,
    open_source,
    read_all,
    remove,
)
from wdscli.storage.addresses import local_path
from wdscli.storage.ends import DigestedSource
from wdscli.storage.kinds import note_of, stored_version, tells_bytes
from wdscli.storage.opening import has_notes
from wdscli.tar import CANONICAL
from wdscli.tar.crc import StoreDigest, with_md5

WORTH_PROCESSES_BYTES = 1 << 27
"""A process computes the values of this many bytes of shards while another one starts."""
SHARED_CLAIM = "index"
"""The name of a shared lock. Several runs may hold it at the same time, because they make the same indexes."""


Adoption = Literal["", "bytes", "sizes"]
"""What is compared to adopt a copied set. With ``bytes``, each shard is read once: its index is rebuilt with the
shard's version, and must have the same checksums as before. With ``sizes``, sizes and some headers are compared."""
BELIEVED = "believed"
"""The key in a manifest's ``made`` for a set that was adopted by its sizes."""


class Side(NamedTuple):
    """One index, manifest or other file. ``state`` is ``kept`` or ``made``. ``reason`` says why the file was made, or
    would be made by ``dry_run``. ``shard`` is the shard's address; it is None for a file of the whole set."""

    file: str
    state: str
    reason: str = ""
    shard: str | None = None


@dataclass(frozen=True, slots=True)
class IndexReport:
    """The result: facts about the shards, the ``files`` in order, and the set's ``manifest``. The manifest is None if
    it was not requested."""

    shards: tuple[ShardInfo, ...]
    files: tuple[Side, ...]
    manifest: Manifest | None

    @property
    def made(self) -> int:
        return sum(1 for file in self.files if file.state == "made")

    @property
    def kept(self) -> int:
        return len(self.files) - self.made


class IndexTask(NamedTuple):
    """The task for one shard. ``listed`` is the shard's entry in the manifest if its checksum can be reused, else
    None."""

    address: str
    checksum: str
    listed: ShardInfo | None
    force: bool
    write: bool
    want_index: bool
    has_index: bool = True
    """False if it is known that the shard has no index."""
    values: tuple[str, ...] = ()
    """The names of the values that the index must have."""
    adopt: Adoption = ""


class IndexedShard(NamedTuple):
    """The result of one task. ``data`` is the bytes of the index if the caller needs them. ``without`` has the names of
    values that no sample of the shard has. ``remarks`` are warnings about values that could not be computed."""

    side: Side
    info: ShardInfo
    data: bytes | None
    without: frozenset[str] = frozenset()
    remarks: tuple[str, ...] = ()


class IndexSettings(NamedTuple):
    """What is written, and what happens to existing files. The manifest is written to ``manifest``. By default, this is
    the manifest in the inputs, or else ``<prefix>-manifest.json`` in the folder of the shards. ``checksum`` is the
    algorithm of the manifest's checksums: ``xxh3_128``, ``sha256``, ``md5``, or ``none``, which reads no payloads. With
    ``dialects``, the files of other programs are written instead: ``dali``, ``energon``, ``parquet``, ``webshart``,
    ``wids``.

    ``values`` are expressions (``json.tokens``, ``width(jpg)``). The indexes store the values of these expressions, and
    keep the values that they already have. A value that cannot be computed is stored as missing, and a warning names
    the sample.

    Files that are up to date are kept unless ``force``. ``dry_run`` reads the shards and writes nothing. With
    ``check``, a manifest that contradicts the shards is no error; it counts as a file to rewrite. With ``adopt``,
    indexes are compared with the shards' bytes or sizes, and become their proven indexes."""

    manifest: str | None = None
    with_manifest: bool = True
    with_index: bool = True
    checksum: str = "xxh3_128"
    dialects: Sequence[str] = ()
    values: str | Sequence[str] | None = None
    force: bool = False
    dry_run: bool = False
    check: bool = False
    adopt: Adoption = ""


def index(
    inputs: Sequence[str],
    settings: IndexSettings,
    *,
    trust_addresses: bool = False,
    jobs: int | None = None,
    progress: Progress = QUIET,
) -> IndexReport:
    """Write the index of every shard of ``inputs`` (paths, folders, globs, braces, URLs, a manifest), then the
    manifest. ``jobs`` is the number of processes; None means one per processor.

    Raises UsageError for streams and compressed shards, and InputError if nothing is found. Raises DataError for a
    damaged shard, a key repeated in a shard, and a manifest that contradicts the shards. Raises OutputExistsError for
    an existing file with other content, and OutputError if a file cannot be written.
    """
    names = value_names(settings.values)
    if names and (settings.dialects or not settings.with_index):
        raise UsageError("values are stored in an index, but no index is written", hint="leave out --values")
    shards = _opened(inputs, settings, trust_addresses=trust_addresses)
    new_digest(settings.checksum)
    plan = SetPlan(shards, settings)
    makers = [make_dialect(name, plan.folder, plan.prefix) for name in dict.fromkeys(settings.dialects)]
    tasks = plan.tasks(names)
    # Another run that is writing these shards will write their manifest too.
    with OutputLock.take(None if settings.dry_run else plan.manifest, SHARED_CLAIM):
        return _carried_out(plan, tasks, makers, jobs=jobs, progress=progress)


def _opened(inputs: Sequence[str], settings: IndexSettings, *, trust_addresses: bool) -> ShardSet:
    """Open the set to index. Raises UsageError for a view, a stream, and a shard that is given twice."""
    # With ``force``, the shards of an interrupted run are accepted.
    shards = open_set(
        inputs,
        missing="accept" if settings.force or settings.check else "stop",
        takes_unfinished=settings.force,
        trust_addresses=trust_addresses,
    )
    if shards.manifest is not None and shards.manifest.view is not None:
        raise UsageError(
            f"{shards.manifest_address} is a view, and has no index of its own",
            hint="index the sets that it names",
        )
    for address, times in Counter(shards.addresses).items():
        if is_stream(address):
            raise UsageError(
                f"cannot index {address}: a stream cannot have an index next to it",
                hint="store it first: wds cat SHARD -o plain.tar",
            )
        if times > 1:
            raise UsageError(f"{address} is given twice", hint="name each shard once")
    return shards


def _carried_out(
    plan: SetPlan,
    tasks: list[IndexTask],
    makers: list[Dialect],
    *,
    jobs: int | None,
    progress: Progress,
) -> IndexReport:
    """Run the tasks in parallel, write the files of other programs as their indexes arrive, and the manifest last."""
    addresses, with_index = [task.address for task in tasks], plan.settings.with_index
    without = set(tasks[0].values) if tasks else set()
    infos: list[ShardInfo] = []
    files: list[Side] = []
    worth = WORTH_PROCESSES_BYTES if without else MIN_SCANNED_BYTES
    with make_executor(useful_shard_jobs(jobs or None, addresses, worth)) as executor:
        results = run_shard_tasks(executor, index_shard, tasks, progress, "indexing", addresses)
        for shard, address in zip(results, addresses):
            name = plan.name(address)
            without &= shard.without
            for remark in shard.remarks:
                progress.warn(remark)
            infos.append(replace(shard.info, name=name, index=shard.info.index or with_index))
            if makers:
                files += [
                    _put(plan, file, address) for file in _files_of(shard, ShardPlace(address, name), makers)
                ]
            elif with_index:
                files.append(shard.side)
            reason = f" ({shard.side.reason})" if shard.side.reason else ""
            progress.note(f"{shard.side.file}: {shard.side.state}{reason}")
    _refuse_missing(without, infos)
    files += [_put(plan, file) for maker in makers for file in maker.finish()]
    shards, manifest = tuple(infos), None
    if plan.manifest:
        manifest, side = _write_manifest(plan, shards)
        files.append(side)
        plan.remove_state(progress)
    return IndexReport(shards, tuple(files), manifest)


def _refuse_missing(without: set[str], infos: Iterable[ShardInfo]) -> None:
    """Raise DataError if no sample of a set with samples has one of the requested values."""
    if without and any(info.samples for info in infos):
        raise DataError(
            f"--values: no sample has {listed(sorted(without), ' or ')}",
            code="missing-field",
            hint="`wds ls SHARDS --show` shows a sample",
        )


def _files_of(indexed: IndexedShard, shard: ShardPlace, makers: Iterable[Dialect]) -> Iterator[SideFile]:
    """Yield the files of other programs for one shard. They are made from the shard's index."""
    place = index_address(shard.address)
    loaded = parse_index(indexed.data if indexed.data is not None else read_all(place), place)
    for maker in makers:
        yield from maker.add(shard, loaded)


def index_shard(task: IndexTask) -> IndexedShard:
    """Keep or make one shard's index, and collect the shard's facts. This is the task that processes run."""
    if task.adopt == "sizes":
        return _adopted_by_sizes(task)
    digests = _Digests(task.checksum)
    reads_all = task.checksum != "none" or bool(task.values)
    digest = digests.update if digests.of_manifest is not None and _reads_once(task) else None
    with open_source(task.address, whole=reads_all, digest=digest) as source:
        _refuse_compressed(source, task.address)
        adopted = index_to_adopt(task.address) if task.adopt else None
        names = {*task.values, *(() if adopted is None else adopted.numbers)}
        proven = ProvenIndex()
        if task.has_index and not task.force:
            proven = prove_index(task.address, source, check=Check.ALL)
            names |= proven.stored_values
        old = proven.index
        lacks_md5 = task.checksum == "md5" and source.stored is source and old and "md5" not in old.checksums
        if old is None or not names <= old.numbers.keys() or lacks_md5:
            return _made_index(task, source, digests, proven, adopted, names)
        if task.write:
            _note_version(old, task.address, source)
        side = Side(index_address(task.address), "kept", shard=task.address)
        return IndexedShard(side, _facts(task, old.facts(), source, digests), None, _without(old.numbers))


def _made_index(
    task: IndexTask,
    source: Source,
    digests: _Digests,
    proven: ProvenIndex,
    adopted: Index | None,
    names: set[str],
) -> IndexedShard:
    """Make one shard's index, with the values ``names``. ``proven`` is the old index, as far as it is proven. With
    ``adopted``, raises DataError for a shard with other bytes."""
    place = index_address(task.address)
    sample_numbers = SampleNumbers(sorted(names), lenient=True)
    form = CANONICAL if adopted is None else adopted.form
    builder, ignored = scan_index(source, form, sample_numbers)
    source.confirm()
    builder.values = sample_numbers.numbers()
    info = replace(_facts(task, builder.facts(), source, digests), index=False)
    checksums = with_md5(digests.of_store.checksums(), info.checksum) if source.stored is source else {}
    if proven.index is not None and not checksums:
        checksums = {**proven.index.checksums}  # only if the payloads are proven
    data = builder.to_bytes(
        shard=base_name(task.address),
        size=source.size,
        form=form,
        ignored=ignored,
        version=stored_version(task.address, source.version),
        checksums=checksums,
    )
    if adopted is not None:
        refuse_other_bytes(task.address, adopted, info.headers, checksums)
    index = parse_index(data, place)
    _refuse_repeats(index, task.address)
    if task.write:
        _store(place, data)
    side = Side(place, "made", "forced" if task.force else _reason(proven), task.address)
    wanted_data = data if task.want_index else None
    return IndexedShard(side, info, wanted_data, _without(index.numbers), sample_numbers.remarks())


class _Digests:
    """The checksum of a shard for the manifest, or None if it has none, and the checksums that stores keep."""

    def __init__(self, algorithm: str) -> None:
        self.of_manifest = new_digest(algorithm)
        self.of_store = StoreDigest()
        self._tick = tick_of_task()

    def update(self, data: bytes) -> None:
        """Add bytes, and report them as progress of the task."""
        if self.of_manifest is not None:
            self.of_manifest.update(data)
        self.of_store.update(data)
        self._tick(len(data))


def _adopted_by_sizes(task: IndexTask) -> IndexedShard:
    """Compare size and some headers of a shard with its index, and note its version: on this machine by the index's
    time."""
    place = index_address(task.address)
    with open_source(task.address) as source:
        index = index_to_adopt(task.address, source)
        if task.write and is_local(place):
            _store(place, read_all(place))
        elif task.write:
            _note_version(index, task.address, source)
        size_bytes = source.stored.size or 0
    info = index.facts().of_shard(index.shard, size_bytes, checksum=None, index=True)
    return IndexedShard(Side(place, "made", "adopted", task.address), info, None)


def _refuse_compressed(source: Source, address: str) -> None:
    """Raise UsageError for a compressed shard, because its offsets cannot be used."""
    if not source.seekable or source.size is None:
        raise UsageError(
            f"cannot index {address}: it is compressed, or cannot be read at any position",
            hint=f"uncompress it first: wds cat {address} -o NAME.tar; or write NAME.tar.zst",
        )


def _store(place: str, data: bytes) -> None:
    """Write an index. Raises OutputError."""
    try:
        with open_sink(place, force=True) as sink:
            sink.write(data)
    except OutputError as error:
        hint = "write only a manifest: --no-index -o NAME.json; or index a copy of the shards"
        raise OutputError(error.message, hint=hint) from error


def _reason(old: ProvenIndex) -> str:
    """Return the reason for making an index."""
    if old.index is not None:
        return (
            "it lacked values" if old.stored_values <= old.index.numbers.keys() else "its values were stale"
        )
    return "it was stale" if old.reason else "there was none"


def _without(numbers: Mapping[str, Numbers]) -> frozenset[str]:
    """Return the names of values that no sample has."""
    return frozenset(name for name, column in numbers.items() if column.missing.all())


def _note_version(index: Index, address: str, source: Source) -> None:
    """Store the shard's version in the metadata of a correct index on S3, if it is missing there. Later reads then need
    no request for the shard. A failed write is ignored."""
    version = stored_version(address, source.version)
    if is_local(address) or not tells_bytes(version) or version in (index.version, index.noted):
        return
    with suppress(InputError, OutputError):
        data = read_all(index.name) if has_notes(address) else b""
        if data and parse_index(data, index.name).digest == index.digest:
            with open_sink(index.name, force=True) as sink:
                sink.write(data)
                sink.note = note_of(version)


def _reads_once(task: IndexTask) -> bool:
    """Return whether one pass reads headers and computes the checksum. This is so for a remote shard without an index
    or known checksum."""
    return not is_local(task.address) and not (task.listed or (task.has_index and not task.force))


def _facts(task: IndexTask, facts: Facts, source: Source, digests: _Digests) -> ShardInfo:
    """Return the shard's entry for the manifest. The existing manifest's checksum is reused if headers and size agree.
    Otherwise ``digests`` get all bytes."""
    info = facts.of_shard(base_name(task.address), source.stored.size or 0, checksum=None, index=True)
    listed = task.listed
    if (
        listed is not None
        and (listed.checksum or "").startswith(task.checksum + ":")
        and (listed.headers, listed.size_bytes) == (info.headers, info.size_bytes)
    ):
        return replace(info, checksum=listed.checksum)
    if isinstance(source.stored, DigestedSource):
        source.stored.read_rest()
    elif digests.of_manifest is not None:
        for data in source.stored.pieces():
            digests.update(data)
    source.confirm()
    return replace(info, checksum=written(task.checksum, digests.of_manifest))


def _refuse_repeats(index: Index, address: str) -> None:
    """Raise DataError for a key that occurs twice in the shard, because an index must find one sample per key."""
    keys = KeySet()
    for batch in index_batches(index):
        for row in keys.add(batch.keys)[:1]:
            hint = "`wds verify` lists all repeated keys; `wds cat --rekey` gives new keys"
            raise SampleAt(batch, row, address).error("repeated key", "duplicate-key", hint=hint)


def _put(plan: SetPlan, file: SideFile, of: str | None = None) -> Side:
    """Write a file of another program unless the same file exists."""
    force, dry_run = plan.settings.force, plan.settings.dry_run
    reason = "there was none"
    if exists(file.address):
        reason = "forced" if force else "its content differs"
        if not force and _says(file.address, file.pieces):
            return Side(file.address, "kept", shard=of)
        if not force and not dry_run:
            raise OutputExistsError(
                f"{file.address} exists and has other content", hint="replace it with --force"
            )
    with nullcontext() if dry_run else open_sink(file.address, force=force) as sink:
        for piece in file.pieces:
            if sink is not None:
                sink.write(piece)
    return Side(file.address, "made", reason, of)


def _says(address: str, pieces: Iterable[bytes]) -> bool:
    """Return whether the file at ``address`` has exactly these bytes."""
    offset = 0
    with open_source(address, decompress=False) as source:
        for piece in pieces:
            if source.read_at(offset, len(piece)) != piece:
                return False
            offset += len(piece)
        return not source.read_at(offset, 1)


class SetPlan:
    """The shards, folder, name and existing manifest of a set, and the treatment of existing files.

    If neither ``force`` nor ``check`` is true, raises OutputExistsError if another file has the manifest's name, and
    DataError for a manifest that contradicts itself.
    """

    def __init__(self, shards: ShardSet, settings: IndexSettings) -> None:
        self.settings, self.takes_contradictions = settings, settings.force or settings.check
        self._shards, self._addresses = shards, shards.addresses
        with_manifest = settings.with_manifest and not settings.dialects
        prefix, folder = set_prefix(self._addresses), common_folder(self._addresses)
        default = folder + (f"{prefix}-{MANIFEST_SUFFIX}" if prefix else MANIFEST_SUFFIX)
        self.manifest = (settings.manifest or shards.manifest_address or default) if with_manifest else None
        self.old: Manifest | None = None
        self.contradiction: ContradictoryManifestError | None = None
        self.is_there = False
        if self.manifest and not is_stream(self.manifest):
            folder, self.is_there = folder_of(self.manifest), exists(self.manifest)
            try:
                self.old = read_manifest(self.manifest) if self.is_there else None
            except ContradictoryManifestError as error:
                self.old, self.contradiction = error.manifest, error
            except DataError:
                pass
        self.folder, self.prefix = folder, prefix
        self._listed = {shard.name: shard for shard in self.old.shards} if self.old else {}
        if not self.takes_contradictions:
            self._check()

    def tasks(self, values: tuple[str, ...]) -> list[IndexTask]:
        """Return the task of each shard. With dialects, indexes are only read, to make the files of other programs."""
        settings, unindexed = self.settings, without_index(self._shards)
        has_makers = bool(settings.dialects)
        return [
            IndexTask(
                address,
                self._algorithm(address) if self.manifest and not settings.dry_run else "none",
                None if settings.force or settings.adopt else self.listed(address),
                (settings.force and not has_makers) or settings.adopt == "bytes",
                write=settings.with_index and not has_makers and not settings.dry_run,
                want_index=has_makers,
                has_index=address not in unindexed,
                values=values,
                adopt=settings.adopt,
            )
            for address in self._addresses
        ]

    def remove_state(self, progress: Progress) -> None:
        """Remove the files that an interrupted run left, and with ``force`` the other manifests that list missing
        shards, because they would make the set incomplete. Call it after the manifest is written."""
        if self.settings.dry_run or self.settings.check:
            return
        for stale in stale_manifests(self._shards) if self.settings.force else ():
            if stale != self.manifest:
                remove(stale)
                progress.warn(f"removed {stale}, because it lists shards that do not exist")
        if self._shards.unfinished:
            for state in self._shards.unfinished:
                remove(state.address)
            remove_receipts([*self._addresses, self.manifest or ""])

    def lists_these(self) -> bool:
        """Return whether the existing manifest lists these shards in this order."""
        names = [self.name(address) for address in self._addresses]
        return self.old is not None and [shard.name for shard in self.old.shards] == names

    def _check(self) -> None:
        if self.contradiction is not None:
            raise self.contradiction
        if self.is_there and not self.lists_these():
            what = "is not a manifest" if self.old is None else "is the manifest of other shards"
            raise OutputExistsError(
                f"{self.manifest} exists and {what}",
                hint="choose another name with -o, write no manifest with --no-manifest, or replace it with --force",
            )

    def name(self, address: str) -> str:
        """Return the name of a shard in the manifest."""
        return name_from(self.folder, address)

    def _algorithm(self, address: str) -> str:
        """Return the algorithm for a shard's checksum. To adopt a shard, it is the algorithm in the manifest."""
        adopt, checksum = self.settings.adopt, self.settings.checksum
        shard = self._listed.get(self.name(address)) if adopt else None
        return "none" if adopt == "sizes" else ((shard and shard.checksum) or checksum).partition(":")[0]

    def listed(self, address: str) -> ShardInfo | None:
        """Return the manifest's entry for a local shard if the shard is not newer than the manifest."""
        shard = self._listed.get(self.name(address))
        if shard is None or not self.manifest or not (is_local(address) and is_local(self.manifest)):
            return None
        with suppress(OSError):
            times = [os.stat(local_path(path)).st_mtime_ns for path in (address, self.manifest)]
            return None if times[0] > times[1] else shard
        return None


def _write_manifest(plan: SetPlan, shards: tuple[ShardInfo, ...]) -> tuple[Manifest, Side]:
    """Write the manifest, or complete the existing manifest, unless nothing changes. Raises DataError if the existing
    manifest contradicts the shards, and neither ``force`` nor ``check`` is true."""
    address, force, dry_run = plan.manifest or "", plan.settings.force, plan.settings.dry_run
    old = plan.old if plan.lists_these() else None
    if old is not None and (dry_run or plan.settings.adopt == "sizes"):
        shards = tuple(replace(shard, checksum=listed.checksum) for shard, listed in zip(shards, old.shards))
    differences = [_difference(*pair) for pair in zip(old.shards, shards)] if old is not None else []
    place = next((row for row, difference in enumerate(differences) if difference), None)
    if place is not None and not plan.takes_contradictions:
        raise DataError(
            f"{address} does not match the shard: {differences[place]}",
            code="manifest-mismatch",
            shard=shards[place].name,
            hint="if the shard is right, replace the manifest with --force",
        )
    if old is None or place is not None:
        manifest = Manifest(plan.prefix, shards, {"operation": "index", "options": {}, "inputs": []})
    else:
        # Keep the old manifest's record of how the set was made.
        manifest = replace(old, shards=shards)
    if plan.settings.adopt:
        made = {name: fact for name, fact in manifest.made.items() if name != BELIEVED}
        manifest = replace(
            manifest, made={**made, **({BELIEVED: "sizes"} if plan.settings.adopt == "sizes" else {})}
        )
    if manifest == old and not force and plan.contradiction is None:
        return manifest, Side(address, "kept")
    is_stale = old is None or place is not None or plan.contradiction is not None
    reason = "forced" if force else "it was stale" if is_stale else "it lacked facts"
    if not plan.is_there:
        reason = "there was none"
    if not dry_run:
        with open_sink(address, force=force or old is not None) as sink:
            sink.write(manifest.to_json().encode("ascii"))
    return manifest, Side(address, "made", reason)


def _difference(listed: ShardInfo, shard: ShardInfo) -> str | None:
    """Return how a manifest's entry contradicts a shard, or None if they agree. A missing fact is no contradiction."""
    if listed.size_bytes not in (UNKNOWN, shard.size_bytes):
        return f"it says {listed.size_bytes} bytes, the shard has {shard.size_bytes}"
    for contradiction in contradictions(listed, shard):
        return f"it {contradiction}"
    old_sum, new_sum = listed.checksum or "", shard.checksum or ""
    if old_sum and new_sum and old_sum.partition(":")[0] == new_sum.partition(":")[0] and old_sum != new_sum:
        return "the shard's bytes have changed"
    return None
