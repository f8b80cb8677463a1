"""One shard, checked from its first byte to its last: the task that runs once a shard.

What it is: :func:`check_shard`, a top-level function of one picklable argument, as every task is. How: one scan that
goes on after damage feeds the headers' pass (and the decoders and profiles that were asked for); then what lies beside
the shard is compared. Whatever is raised on the way becomes a finding, so that one bad shard does not hide the others.

It must not know of other shards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from wdscli.errors import DataError, StorageError
from wdscli.model import ShardInfo, to_text
from wdscli.samples import Grouper, SampleBatch, split_name
from wdscli.shards.index import IndexBuilder
from wdscli.storage import Source, exists, is_stream, open_source
from wdscli.tar import CANONICAL, ByteSource, Form, scan
from wdscli.tar.recover import scan_salvaging
from wdscli.verify.findings import MAX_FINDINGS, STRUCTURAL, Finding, Ledger
from wdscli.verify.headers import HeaderPass, ShapeCount
from wdscli.verify.keys import KeyColumns, Repeats, digester
from wdscli.verify.names import Fields
from wdscli.verify.profiles import Judge
from wdscli.verify.sidefiles import check_checksum, check_index, check_listed, load_index

if TYPE_CHECKING:
    from wdscli.verify.decode import Decoder


class ShardTask(NamedTuple):
    """What to check. ``required`` are fields that every sample must have, ``listed`` is what the manifest says of the
    shard, ``max_decoded`` what payloads may become when they are decoded, None where none is."""

    address: str
    required: Fields = ()
    profiles: tuple[str, ...] = ()
    max_decoded: int | None = None
    checksums: bool = False
    listed: ShardInfo | None = None
    manifest: str | None = None
    first_shard: bool = False
    limit: int = MAX_FINDINGS


class ShardResult(NamedTuple):
    """What was found. ``digests`` are those of the shard's distinct keys, packed; ``shapes`` count its samples by the
    fields they have."""

    findings: list[Finding]
    counts: dict[str, int]
    samples: int
    members: int
    size_bytes: int
    digests: bytes
    shapes: dict[frozenset[bytes], ShapeCount]
    ignored: dict[str, int]
    kept: KeyColumns | None
    """The keys of a stream, which cannot be read again."""


def check_shard(task: ShardTask) -> ShardResult:
    """Everything about one shard. Raises UsageError only (an address that means nothing, a missing extra)."""
    ledger = Ledger(task.address, task.limit)
    version: str | None = None
    check = _ShardCheck(task, ledger)
    try:
        with open_source(task.address) as source:
            version = source.version
            check.run(source)
            source.confirm()
    except DataError as error:
        ledger.add_error(error)
    except StorageError as error:
        version = None
        _add_unreadable(error, task, ledger)
    if task.checksums:
        check_checksum(task.address, task.listed, ledger, version)
    ledger.blame_shard()
    return check.result()


class _ShardCheck:
    """The state of one task."""

    def __init__(self, task: ShardTask, ledger: Ledger) -> None:
        self._task = task
        self._ledger = ledger
        self._pass: HeaderPass | None = None
        self._digests = b""
        self._size = 0

    def run(self, source: Source) -> None:
        """Read the shard; findings are in the ledger even when this raises."""
        task, ledger = self._task, self._ledger
        index = load_index(task.address, source, ledger)
        builder = IndexBuilder() if index is not None or (task.listed and task.listed.headers) else None
        judge = Judge(ledger, task.profiles, source, first_shard=task.first_shard) if task.profiles else None
        check = self._pass = HeaderPass(
            ledger, required=task.required, judge=judge, builder=builder, keep_names=not source.seekable
        )
        try:
            self._scan(source, check, CANONICAL if index is None else index.form)
        finally:
            check.finish()
            self._size = source.size or 0
            self._keys(check, source)
        if judge is not None:
            judge.finish(
                samples=check.samples, is_compressed=not source.seekable and _is_compressed(task.address)
            )
        whole = None if ledger.has(STRUCTURAL) else check
        if index is not None and whole is not None and builder is not None:
            check_index(index, builder, check.ignored, task.address, ledger)
        if task.listed is not None:
            check_listed(task, task.listed, whole, builder, self._size, ledger)

    def _scan(self, source: ByteSource, check: HeaderPass, form: Form) -> None:
        decoder = _decoder(self._task, self._ledger)
        payloads = decoder is not None or "hf" in self._task.profiles
        for window in scan_salvaging(source, self._ledger.add_error, form=form, payloads=payloads):
            check.add(window)
            if decoder is not None:
                decoder.check(window)

    def _keys(self, check: HeaderPass, source: ByteSource) -> None:
        repeats = check.keys.repeats()
        self._digests = check.keys.distinct(repeats)
        if repeats is not None:
            _report_repeats(repeats, check, source, self._ledger)

    def result(self) -> ShardResult:
        check, ledger = self._pass, self._ledger
        return ShardResult(
            ledger.findings,
            ledger.counts,
            check.samples if check else 0,
            check.members if check else 0,
            self._size,
            self._digests,
            check.shape_counts() if check else {},
            check.ignored if check else {},
            check.keys if check and is_stream(self._task.address) else None,
        )


def _add_unreadable(error: StorageError, task: ShardTask, ledger: Ledger) -> None:
    if task.listed is not None and not exists(task.address):
        ledger.add("manifest-mismatch", f"the shard is in {task.manifest} and is not there")
    else:
        ledger.add("unreadable", error.message, hint=error.hint)


def _decoder(task: ShardTask, ledger: Ledger) -> Decoder | None:
    if task.max_decoded is None:
        return None
    from wdscli.verify.decode import Decoder

    return Decoder(ledger, task.max_decoded)


def _report_repeats(repeats: Repeats, check: HeaderPass, source: ByteSource, ledger: Ledger) -> None:
    """Findings for keys that come back in their shard, and for keys that differ in case only. The keys are compared, so
    that two of one digest are not taken for one."""
    for kind, code, message in (
        ("interleaved", "interleaved-key", "the key comes back with other fields; it was first at byte {}"),
        ("duplicate", "duplicate-key", "the key comes a second time; it was first at byte {}"),
        ("collision", "case-collision", "another key differs from it in case only, at byte {}"),
    ):
        total = len(getattr(repeats, kind))
        told = repeats.of(kind, ledger.room(code))
        for repeat in told:
            start, first = check.keys.starts[repeat.row], check.keys.starts[repeat.first]
            key, other = _key(check, source, repeat.row), _key(check, source, repeat.first)
            if key == other or (kind == "collision" and key.lower() == other.lower()):
                ledger.add(code, message.format(first), offset=start, member=to_text(key))
        ledger.more(code, total - len(told))


def _key(check: HeaderPass, source: ByteSource, row: int) -> bytes:
    """The key of a sample, which was kept or is read again."""
    kept = check.keys.name(row)
    if kept is not None:
        return kept
    for window in scan(source, first=check.keys.starts[row], chunk=1 << 12):
        for name in window.columns.names:
            parts = split_name(name)
            return parts[0] if parts else name
    return b""


def _is_compressed(address: str) -> bool:
    """Whether a file is compressed, by its first bytes."""
    if is_stream(address):
        return False
    with open_source(address, decompress=False) as source:
        return source.read_at(0, 6).startswith(_MAGICS)


_MAGICS = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18")


class LocateTask(NamedTuple):
    """Find the samples of a shard whose keys have these digests."""

    address: str
    digests: tuple[int, ...]


class Located(NamedTuple):
    """Where a key is."""

    digest: int
    key: bytes
    offset: int


def locate(task: LocateTask) -> list[Located]:
    """The samples asked for, each key where it is first; those that cannot be found any more are left out."""
    wanted, found = set(task.digests), []
    digest = digester()
    ledger = Ledger(task.address, 0)
    try:
        with open_source(task.address) as source:
            grouper = Grouper(task.address, lenient=True)
            for window in scan_salvaging(source, ledger.add_error):
                batch = grouper.add(window)
                found += _located(batch, wanted, digest)
                if not wanted:
                    return found
            found += _located(grouper.finish(), wanted, digest)
    except (DataError, StorageError):
        pass
    return found


def _located(batch: SampleBatch, wanted: set[int], digest: Callable[[bytes], int]) -> list[Located]:
    found = []
    for row, number in enumerate(map(digest, batch.keys)):
        if number in wanted:
            wanted.discard(number)
            found.append(Located(number, batch.keys[row], batch.start(row)))
    return found
