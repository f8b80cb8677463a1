"""Indexes and a manifest for shards that others made; or the indexes of other programs.

What it is: :func:`index`. How: one task a shard (find the index and keep it when it says what all headers say, else
make it of them; hash the payloads for the manifest), in parallel; then the manifest, last as ever (``set_manifest``).
Dialects are made from the indexes, in one pass. It must not print.
"""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from wdscli.errors import DataError, OutputError, OutputExistsError, UsageError
from wdscli.executors import default_jobs, make_executor, run_tasks
from wdscli.model import ShardInfo, to_text
from wdscli.progress import QUIET, Progress
from wdscli.run.set_manifest import SetPlan, Side, write_manifest
from wdscli.shards.claims import Claim
from wdscli.shards.dialects import Dialect, ShardPlace, SideFile, make_dialect
from wdscli.shards.index import Index, IndexBuilder, index_address, parse_index
from wdscli.shards.inputs import open_set
from wdscli.shards.manifest import Manifest
from wdscli.shards.reading import checksum_of, etag_of, find_index, new_digest, scan_index
from wdscli.storage import Source, base_name, exists, is_local, is_stream, open_sink, open_source, read_all
from wdscli.storage.addresses import local_path

_PIECE = 1 << 20
_WORTH_PROCESSES = 1 << 27
_SHARED = "index"
"""Several runs may make the indexes of one set: they make the same."""


@dataclass(frozen=True, slots=True)
class IndexReport:
    """``files`` in the order in which they were dealt with; ``manifest`` is the set's, None when none was asked for."""

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
    """One shard. ``known`` is what the manifest says of it, when its checksum may be taken over."""

    address: str
    checksum: str
    known: ShardInfo | None
    force: bool
    write: bool
    want_index: bool


class Indexed(NamedTuple):
    """What one task found. ``data`` is the index itself, when it was asked for and lies nowhere."""

    side: Side
    info: ShardInfo
    data: bytes | None


def index(
    inputs: Sequence[str],
    *,
    manifest: str | None = None,
    with_manifest: bool = True,
    with_index: bool = True,
    checksum: str = "xxh3_128",
    dialects: Sequence[str] = (),
    force: bool = False,
    trust_addresses: bool = False,
    dry_run: bool = False,
    jobs: int | None = None,
    progress: Progress = QUIET,
) -> IndexReport:
    """Write the index of every shard of ``inputs``, then their manifest; with ``dialects``, theirs and nothing else.

    ``manifest`` is its address; by default the one that was given as input, or ``<prefix>-manifest.json`` in the folder
    of the shards. Indexes and files that are up to date are kept unless ``force``. ``dry_run`` reads and writes
    nothing. Raises DataError for a damaged shard, a key that comes twice in one, and a manifest that no longer tells
    the truth; OutputExistsError for a file that is there and says something else.
    """
    shards = open_set(inputs, trust_addresses=trust_addresses)
    _check_inputs(shards.addresses)
    new_digest(checksum)
    plan = SetPlan(shards, manifest, with_manifest and not dialects)
    if not force:
        plan.check()
    makers = [make_dialect(name, plan.place) for name in dict.fromkeys(dialects)]
    tasks = [
        IndexTask(
            address,
            checksum if plan.manifest and not dry_run else "none",
            None if force else plan.known(address),
            force and not dialects,
            write=with_index and not dialects and not dry_run,
            want_index=bool(dialects),
        )
        for address in shards.addresses
    ]
    # Who writes these shards just now will write their manifest too.
    with Claim.take(None if dry_run else plan.manifest, _SHARED):
        found = list(_run(tasks, makers, plan, force, dry_run, jobs, progress))
        infos = tuple(
            replace(one.info, name=plan.name(one.side.of or ""), index=with_index or one.info.index)
            for one, _ in found
        )
        sides = [
            side for one, others in found for side in ([one.side] if with_index and not dialects else others)
        ]
        for maker in makers:
            sides += [_put(file, force, dry_run) for file in maker.finish()]
        result = None
        if plan.manifest:
            result, side = write_manifest(plan, infos, force, dry_run)
            sides.append(side)
    progress.finish()
    return IndexReport(infos, tuple(sides), result)


def _check_inputs(addresses: Sequence[str]) -> None:
    seen: set[str] = set()
    for address in addresses:
        if is_stream(address):
            raise UsageError(f"cannot index {address}: a stream has no place for an index")
        if address in seen:
            raise UsageError(f"{address} is named twice")
        seen.add(address)


def _run(
    tasks: list[IndexTask],
    makers: list[Dialect],
    plan: SetPlan,
    force: bool,
    dry_run: bool,
    jobs: int | None,
    progress: Progress,
) -> Iterator[tuple[Indexed, list[Side]]]:
    """The tasks' results in order, with the files that dialects made of each."""
    jobs = jobs or _worthwhile(tasks)
    progress.start("indexing", len(tasks), "shards")
    with make_executor(min(jobs, len(tasks)) or 1) as executor:
        for task, one in zip(tasks, run_tasks(executor, index_shard, tasks, window=2 * jobs)):
            sides: list[Side] = []
            if makers:
                place = index_address(task.address)
                loaded = parse_index(one.data if one.data is not None else read_all(place), place)
                shard = ShardPlace(task.address, plan.name(task.address))
                sides = [
                    _put(file, force, dry_run, task.address)
                    for maker in makers
                    for file in maker.add(shard, loaded)
                ]
            progress.note(
                f"{one.side.address}: {one.side.state}" + (f" ({one.side.reason})" if one.side.reason else "")
            )
            progress.advance(1)
            yield one._replace(data=None), sides


def _worthwhile(tasks: Sequence[IndexTask]) -> int:
    """Processes for this work: starting them takes longer than a few small shards."""
    size = 0
    for task in tasks:
        if not is_local(task.address):
            return default_jobs()
        try:
            size += os.stat(local_path(task.address)).st_size
        except OSError:
            return 1
    return default_jobs() if size > _WORTH_PROCESSES else 1


def index_shard(task: IndexTask) -> Indexed:
    """The task: one shard's index, kept or made, and its facts."""
    with open_source(task.address) as source:
        if not source.seekable or source.size is None:
            raise _not_seekable(task.address)
        place = index_address(task.address)
        reasons: list[str] = []
        old = None if task.force else find_index(task.address, source, reasons.append, whole=True)
        if old is not None:
            return Indexed(Side(place, "kept", of=task.address), _facts(task, old, source), None)
        builder, ignored = scan_index(source)
        _refuse_repeats(builder, task.address)
        source.confirm()
        data = builder.to_bytes(
            shard=base_name(task.address),
            size=source.size,
            ignored=ignored,
            etag=etag_of(task.address, source),
        )
        if task.write:
            _write_index(place, data)
        reason = "forced" if task.force else "it was stale" if reasons else "there was none"
        info = replace(_facts(task, parse_index(data, place), source), index=False)
        return Indexed(Side(place, "made", reason, task.address), info, data if task.want_index else None)


def _not_seekable(address: str) -> UsageError:
    """Offsets in a compressed shard lead nowhere."""
    return UsageError(
        f"cannot index {address}: it is compressed, or it can only be read from its beginning",
        hint=f"write it plain first: wds cat {address} -o NAME.tar",
    )


def _write_index(place: str, data: bytes) -> None:
    try:
        with open_sink(place, force=True) as sink:
            sink.write(data)
    except OutputError as error:
        raise OutputError(
            error.message,
            hint="--no-index writes a manifest alone, which -o may put elsewhere; or index a copy of the shards",
        ) from error


def _facts(task: IndexTask, index: Index, source: Source) -> ShardInfo:
    info = ShardInfo(
        name=base_name(task.address),
        samples=index.samples,
        members=index.members,
        size_bytes=index.size,
        headers=index.digest,
        fields=index.totals(),
        index=True,
    )
    return replace(info, checksum=_checksum(task, info, source))


def _checksum(task: IndexTask, info: ShardInfo, source: Source) -> str | None:
    """Of all bytes; taken over from the manifest where nothing speaks against it."""
    known = task.known
    if (
        known is not None
        and (known.checksum or "").startswith(task.checksum + ":")
        and (known.headers, known.size_bytes) == (info.headers, info.size_bytes)
    ):
        return known.checksum
    found = checksum_of(source, task.checksum)
    source.confirm()
    return found


def _refuse_repeats(builder: IndexBuilder, address: str) -> None:
    """A key that comes twice in a shard is no place to jump to."""
    seen: set[bytes] = set()
    begin = 0
    columns = builder.columns()
    keys, ends = bytes(columns["keys"]), array("Q", bytes(columns["key_ends"]))
    if sys.byteorder == "big":
        ends.byteswap()
    for row, end in enumerate(ends):
        key = keys[begin:end]
        if key in seen:
            raise DataError(
                "a key that was there before",
                code="duplicate-key",
                shard=address,
                offset=int.from_bytes(columns["starts"][8 * row : 8 * row + 8], "little"),
                member=to_text(key),
                hint="see all of them with `wds verify`, give new keys with `wds cat --rekey`",
            )
        seen.add(key)
        begin = end


def _put(file: SideFile, force: bool, dry_run: bool, of: str | None = None) -> Side:
    """Write a file of a dialect, unless the same is there."""
    if not exists(file.address):
        reason = "there was none"
    elif force:
        reason = "forced"
    else:
        if _says(file.address, file.pieces):
            return Side(file.address, "kept", of=of)
        if not dry_run:
            raise OutputExistsError(
                f"{file.address} is there and says something else", hint="replace it with --force"
            )
        return Side(file.address, "made", "it says something else", of)
    if dry_run:
        for _ in file.pieces:
            pass
    else:
        with open_sink(file.address, force=force) as sink:
            for piece in file.pieces:
                sink.write(piece)
    return Side(file.address, "made", reason, of)


def _says(address: str, pieces: Iterable[bytes]) -> bool:
    """Whether these bytes lie at ``address``."""
    offset, same = 0, True
    with open_source(address, decompress=False) as source:
        for piece in pieces:
            same = same and source.read_at(offset, len(piece)) == piece
            offset += len(piece)
        return same and not source.read_at(offset, 1)
