"""This module checks one shard from its first byte to its last.

:func:`check_shard` is the task of one shard. It scans the shard once, and continues after damage. The scan feeds
:class:`HeaderPass`, the decoders and the profiles. Then the manifest and the indexes are compared with the result of
the scan: the index by the digest of its columns, and the checksum over the stored file, compressed or not. Every error
becomes a finding, so that one damaged shard does not hide findings in other shards.

:class:`HeaderPass` first tests whole columns: whether all members are regular, all names are safe, and all samples have
the same fields. It tests single members only if such a test fails. So checking an intact shard takes only slightly
longer than listing it.

With ``--decode``, a :class:`~wdscli.verify.decoding.DecodeCheck` checks that payloads can be decoded.

This module does not know about other shards.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

from wdscli.arrays import I64, U64, SampleArrays, distinct, numpy
from wdscli.errors import DataError, StorageError, UsageError
from wdscli.executors import tick_of_task
from wdscli.model import UNKNOWN, Facts, ShardInfo, contradictions
from wdscli.samples import (
    Grouper,
    SampleBatch,
    is_appledouble,
    is_dunder,
    may_be_unsafe,
    why_unsafe,
)
from wdscli.samples.grouping import hidden, lost_name
from wdscli.samples.keys import joined_may_be_unsafe
from wdscli.samples.reading import PackedSamples, walk_small
from wdscli.shards.index import Check, Index, IndexBuilder, index_address
from wdscli.shards.layout import ViewSource
from wdscli.shards.proof import Evidence, checking, difference, proven_by, read_index
from wdscli.shards.reading import Digest, digested, index_batches, new_digest
from wdscli.storage import Source, base_name, exists, is_local, is_stream, open_source
from wdscli.storage.addresses import view_of
from wdscli.storage.blocks import BlockSource
from wdscli.storage.compressed import identify
from wdscli.storage.ends import DigestedSource, replaced
from wdscli.storage.retry import cached_in
from wdscli.tar import (
    CANONICAL,
    DIRECTORY,
    KIND_MASK,
    KIND_NAMES,
    REGULAR,
    Form,
    Window,
)
from wdscli.tar.header import BLOCK
from wdscli.tar.reader import scan_salvaging
from wdscli.tar.scan import Columns
from wdscli.verify.decoding import DecodeCheck
from wdscli.verify.findings import MAX_FINDINGS, STRUCTURAL, Ledger
from wdscli.verify.keys import Absence, KeyColumns, KeyList, report_repeats
from wdscli.verify.profiles import Fields, Judge, Problem, Type, judge_fields

MAX_SHAPES = 1 << 12
"""How many different lists of fields are remembered. Samples with further lists are checked, but their lists are not
kept."""
MAX_NAMES = 1 << 17
"""How many names these lists may have together."""

_KIND_MESSAGES = {
    "link": "the member is a link; samples consist of regular files",
    "special": "the member is a device, a fifo or of an unknown kind; samples consist of regular files",
    "sparse": "the member is a sparse file; samples consist of regular files",
}


@dataclass(slots=True)
class Shape:
    """One list of fields: its bits in the key columns, its problems, the number of samples with this list, and the
    first of them."""

    mask: int
    problems: list[Problem]
    offset: int
    key: bytes
    count: int = 0


class _ReportingGrouper(Grouper):
    """A lenient grouper that reports the members it ignores. It also searches keys of lost members for ``absence``."""

    def __init__(self, ledger: Ledger, absence: Absence | None) -> None:
        super().__init__(ledger.shard, lenient=True)
        self._ledger = ledger
        self._absence = absence

    def ignore(self, name: bytes, kind: int, start: int, size: int) -> None:
        super().ignore(name, kind, start, size)
        if self._absence is not None and (parts := lost_name(name, kind, size)) is not None:
            self._absence.look_at(parts[0], start)
        if kind == REGULAR and size and name.endswith(b"/"):
            self._ledger.add_error(hidden(self.shard, start, name, size))
        if kind == DIRECTORY or (kind == REGULAR and is_dunder(name)):
            return
        code, why = "no-field", "its name has no dot after the first letter"
        if is_appledouble(name):
            why = "macOS keeps another file's attributes in it"
        message = f"the file belongs to no sample: {why}"
        if kind != REGULAR:
            code = KIND_NAMES[kind]
            message = _KIND_MESSAGES[code]
        self._ledger.add(code, message, offset=start, member=name)


class HeaderPass:
    """Call :meth:`add` for every window in order, then :meth:`finish` once.

    ``required`` are fields that every sample must have. ``builder`` (optional) collects the columns of the index.
    ``absence`` searches for keys that must be absent.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        required: Fields = (),
        judge: Judge | None = None,
        builder: IndexBuilder | None = None,
        keys: KeyColumns | None = None,
        absence: Absence | None = None,
    ) -> None:
        self.ledger = ledger
        self.absence = absence
        self.keys = keys or KeyColumns()
        self.samples = 0
        self.members = 0
        self._grouper = _ReportingGrouper(ledger, absence)
        self._required = required
        self.judge = judge
        self.builder = builder
        self._shapes: dict[Fields, Shape] = {}
        self._room = MAX_NAMES

    def add(self, window: Window) -> None:
        """Check the members of one window."""
        self.members += len(window.columns.names)
        self._check_members(window.columns)
        if self.judge is not None:
            self.judge.members(window)
        self._add_batch(self._grouper.add(window))

    def add_samples(self, batch: SampleBatch) -> None:
        """Check samples. Their names come from a scan, and there are no profiles."""
        self.members += len(batch.fields)
        # The samples of a view. They are checked only if a finding of _check_members is possible. The first letter of a
        # file's name is no dot, so a name with safe parts is safe.
        if 0 in batch.sizes or may_be_unsafe(batch.keys) or may_be_unsafe([*{*batch.fields}]):
            self._check_members(batch.columns())
        self._add_batch(batch)

    def _check_members(self, columns: Columns) -> None:
        names, starts, _, sizes, flags = columns
        if may_be_unsafe(names):
            for name, start in zip(names, starts):
                if reason := why_unsafe(name):
                    self.ledger.add("unsafe-name", reason, offset=start, member=name)
        if 0 in sizes:
            for name, start, size, flag in zip(names, starts, sizes, flags):
                if not size and flag & KIND_MASK == REGULAR:
                    self.ledger.add("empty-payload", "the member has no bytes", offset=start, member=name)

    def finish(self) -> None:
        """Check the last sample."""
        self._add_batch(self._grouper.finish())

    @property
    def ignored(self) -> dict[str, int]:
        """The number of members that belong to no sample, by reason."""
        return self._grouper.ignored

    def _add_batch(self, batch: SampleBatch) -> None:
        if not batch.keys:
            return
        self.samples += len(batch.keys)
        masks = self._uniform(batch) or self._one_by_one(batch)
        self.keys.add(batch, masks)
        if self.builder is not None:
            self.builder.add_batch(batch)
        if self.absence is not None:
            self.absence.look(batch)
        if self.judge is not None:
            self.judge.samples(batch)

    def _uniform(self, batch: SampleBatch) -> list[int] | None:
        """Return the masks of a batch if all samples have the fields of the first sample; otherwise None."""
        fields, firsts, count = batch.fields, batch.firsts, len(batch.keys)
        each = firsts[1]
        if len(fields) != each * count or firsts[-2] != each * (count - 1):
            return None
        names = tuple(fields[:each])
        shape = self._shape(names, batch.start(0), batch.keys[0])
        if shape.problems or firsts != list(range(0, len(fields) + 1, each)) or fields != list(names) * count:
            return None
        shape.count += count
        return [shape.mask] * count

    def _one_by_one(self, batch: SampleBatch) -> list[int]:
        fields, firsts, masks = batch.fields, batch.firsts, []
        for row in range(len(batch.keys)):
            names = tuple(fields[firsts[row] : firsts[row + 1]])
            shape = self._shape(names, batch.start(row), batch.keys[row])
            masks.append(shape.mask)
            shape.count += 1
            for problem in shape.problems:
                self._report(problem, batch, row)
        return masks

    def add_packed(self, usual: PackedSamples, shift: int) -> bool:
        """Check samples in a buffer that begins at byte ``shift``, without an object per sample. Return False if the
        scan must check them, because they may have a finding, or an index marks them; then nothing is counted."""
        arrays = usual.stored()
        names = arrays.keys, arrays.key_lengths
        if (
            (usual.foreign and self.builder is not None)
            or not arrays.sizes.all()
            or joined_may_be_unsafe(*names, arrays.fields)
        ):
            return False
        starts = arrays.starts + shift
        masks: U64 = numpy.zeros(len(starts), dtype=numpy.uint64)
        shapes: list[tuple[Shape, int]] = []
        for fields, rows in _by_fields(arrays):
            first = int(rows[0])
            begin = int(arrays.key_lengths[:first].sum())
            key = arrays.keys[begin : begin + int(arrays.key_lengths[first])]
            shape = self._shape(fields, int(starts[first]), key)
            if shape.problems:
                return False
            masks[rows] = shape.mask
            shapes.append((shape, len(rows)))
        for shape, count in shapes:
            shape.count += count
        self.samples += len(starts)
        self.members += len(arrays.sizes)
        self.keys.add_joined(*names, _column(starts), _column(masks))
        if self.builder is not None:
            self.builder.add_arrays(arrays, shift)
        return True

    def _shape(self, names: Fields, offset: int, key: bytes) -> Shape:
        shape = self._shapes.get(names)
        if shape is None:
            problems = judge_fields(names, self._required)
            if self.judge is not None:
                problems += self.judge.fields(names)
            shape = Shape(self.keys.mask(names), problems, offset, key)
            if len(self._shapes) < MAX_SHAPES and len(names) <= self._room:
                self._shapes[names] = shape
                self._room -= len(names)
        return shape

    def shapes(self) -> dict[frozenset[bytes], Shape]:
        """Return the counts of samples by their set of fields. Lists that were not remembered are missing."""
        shape_by_fields: dict[frozenset[bytes], Shape] = {}
        for names, shape in self._shapes.items():
            first = shape_by_fields.setdefault(frozenset(names), shape)
            if first is not shape:
                first.count += shape.count
        return shape_by_fields

    def _report(self, problem: Problem, batch: SampleBatch, row: int) -> None:
        number, member = batch.firsts[row], batch.keys[row]
        if problem.place is not None:
            number += problem.place
            member += b"." + batch.fields[number]
        self.ledger.add(problem.code, problem.message, offset=batch.starts[number], member=member)


def _by_fields(arrays: SampleArrays) -> list[tuple[Fields, I64]]:
    """Return the different lists of fields, in the order of their first samples, and the samples of each."""
    groups: list[tuple[Fields, I64]] = []
    firsts = arrays.counts.cumsum() - arrays.counts
    for width in distinct(arrays.counts).tolist():
        rows = numpy.flatnonzero(arrays.counts == width)
        codes = arrays.codes[firsts[rows][:, None] + numpy.arange(width)]
        while len(rows):
            is_same = (codes == codes[0]).all(axis=1)
            groups.append((tuple(arrays.fields[code] for code in codes[0].tolist()), rows[is_same]))
            rows, codes = rows[~is_same], codes[~is_same]
    return sorted(groups, key=lambda group: int(group[1][0]))


def _column(numbers: I64 | U64) -> array[int]:
    column = array("Q")
    column.frombytes(numbers.astype(numpy.uint64).tobytes())
    return column


class Checks(NamedTuple):
    """The options of a check or a repair. ``required`` are fields that every sample must have. ``profiles`` are readers
    with further requirements. Payloads that decode to at most ``max_decoded`` bytes are decoded; None means that no
    payload is decoded. With ``checksums``, shards are compared with the manifest's checksums. At most ``limit``
    findings of each kind are reported in full. ``errors`` are codes of warnings that count as errors. ``absent`` is a
    list of keys that must be absent. ``seed`` is the seed of the keys' digests in one run."""

    required: Fields = ()
    profiles: tuple[str, ...] = ()
    max_decoded: int | None = None
    checksums: bool = False
    limit: int = MAX_FINDINGS
    errors: frozenset[str] = frozenset()
    absent: KeyList | None = None
    seed: int = 0


HEADERS_ONLY = Checks()
"""A check that reads only headers."""


class ManifestEntry(NamedTuple):
    """The entry of one shard in the manifest at ``manifest``. ``required`` are the fields that every sample had when
    the set was written."""

    manifest: str
    shard: ShardInfo
    required: Fields


class VerifyTask(NamedTuple):
    """The task for one shard. ``listing`` is the shard's entry in the manifest. ``hf_types`` are the JSON types from
    the set's first shard; it is None for the first shard itself."""

    address: str
    checks: Checks
    listing: ManifestEntry | None = None
    hf_types: dict[bytes, Type] | None = None
    has_index: bool = True
    """False if a listing shows that the shard has no index."""
    is_small: bool = False
    """Whether one request reads all of a remote shard."""


@dataclass(slots=True)
class ShardResult:
    """The result for one shard. ``digests`` has the digests of its distinct keys, packed. ``shapes`` counts its samples
    by their fields. ``kept`` has the keys of a stream, because it cannot be read again. ``hf_types`` are the JSON types
    of its first samples."""

    ledger: Ledger
    samples: int = 0
    members: int = 0
    size_bytes: int = 0
    digests: bytes = b""
    shapes: dict[frozenset[bytes], Shape] = field(default_factory=dict)
    ignored: dict[str, int] = field(default_factory=dict)
    kept: KeyColumns | None = None
    hf_types: dict[bytes, Type] = field(default_factory=dict)
    keys_digest: str = ""
    """The SHA-256 of its keys, one per line, if some keys had to be absent and all of it could be read."""


def check_shard(task: VerifyTask) -> ShardResult:
    """Check one shard. Raises only UsageError, for an invalid address or a missing extra."""
    checks = task.checks
    ledger = Ledger(task.address, checks.limit)
    result = ShardResult(ledger)
    version: str | None = None
    digest = _checksum_digest(task.listing) if checks.checksums else None
    update = None if digest is None or is_local(task.address) else digest.update
    is_whole = checks.max_decoded is not None or checks.checksums or task.is_small
    checksum = None
    try:
        # Do not use the cache, because verify checks the store, not an older copy.
        with (
            cached_in(""),
            checking(Check.ALL),
            open_source(task.address, whole=is_whole, digest=update) as source,
        ):
            version = source.version
            if isinstance(source, BlockSource):
                source.go_on(ledger.add_error)
            if digest is not None and source.stored.fd is not None:
                # Reading all bytes in order first is faster than reading the headers first, if the shard is on a disc.
                checksum = digested(digest, source.stored, tick_of_task())
            _check(task, source, result)
            if digest is not None and isinstance(source.stored, DigestedSource):
                source.stored.read_rest()
                checksum = digest.hexdigest()
            source.confirm()
    except DataError as error:
        result.keys_digest = ""
        ledger.add_error(error)
    except StorageError as error:
        version, result.keys_digest = None, ""
        _report_unread(task, error, ledger)
    if checks.checksums:
        _check_checksum(task.address, task.listing, ledger, version, checksum)
    ledger.blame_shard()
    return result


def _report_unread(task: VerifyTask, error: StorageError, ledger: Ledger) -> None:
    """Report a shard that cannot be read, or that only a manifest lists."""
    if task.listing is not None and view_of(task.address) is None and not exists(task.address):
        where = task.listing.manifest
        ledger.add("manifest-mismatch", f"{where} lists the shard, but the shard does not exist")
    else:
        ledger.add("unreadable", error.message, hint=error.hint)


def check_base(task: VerifyTask) -> ShardResult:
    """Compare the bytes of a view's base with the checksum in the view."""
    result = ShardResult(Ledger(task.address, task.checks.limit))
    _check_checksum(task.address, task.listing, result.ledger, "")
    return result


def _check(task: VerifyTask, source: Source, result: ShardResult) -> None:
    """Read the shard. If this raises an error, ``result`` has the findings so far."""
    ledger, checks = result.ledger, task.checks
    index = _load_index(task.address, source, ledger) if task.has_index else None
    is_compared = index is not None or (task.listing and task.listing.shard.headers)
    headers = HeaderPass(
        ledger,
        required=checks.required,
        judge=Judge(ledger, checks.profiles, source, task.hf_types) if checks.profiles else None,
        builder=IndexBuilder() if is_compared else None,
        keys=KeyColumns(keep_names=not source.seekable, seed=checks.seed),
        absence=Absence(checks.absent, ledger) if checks.absent else None,
    )
    try:
        _scan(task, source, CANONICAL if index is None else index.form, headers)
    finally:
        headers.finish()
        _fill(result, headers, source, is_kept=is_stream(task.address))
    if headers.judge is not None:
        if headers.judge.hf_values is not None:
            result.hf_types = headers.judge.hf_values.types
        is_compressed = _is_compressed(task.address, source)
        headers.judge.finish(samples=headers.samples, is_compressed=is_compressed)
    is_whole, builder = not ledger.has(STRUCTURAL), headers.builder
    if index is not None and builder is not None and is_whole:
        reason = difference(index, builder, headers.ignored)
        if reason:
            ledger.add("stale-index", f"{index_address(task.address)}: {reason}")
    if task.listing is not None:
        _check_size(task.address, task.listing, result.size_bytes, ledger)
        if is_whole:
            _check_listed(task.listing, headers.samples, builder, ledger)


def _scan(task: VerifyTask, source: Source, form: Form, headers: HeaderPass) -> None:
    """Read all windows of the shard, and continue after damage. Pass each window to the header pass and the decoder."""
    ledger, checks = headers.ledger, task.checks
    decoder = None
    if checks.max_decoded is not None:
        decoder = DecodeCheck(ledger, checks.max_decoded)

    def add_error(error: DataError) -> None:
        # A damaged block was already reported when it was read. Errors in its bytes are no further findings.
        lost = isinstance(source, BlockSource) and error.offset is not None and source.is_lost(error.offset)
        if not lost:
            ledger.add_error(error)

    payloads = decoder is not None or "hf" in checks.profiles
    if isinstance(source, ViewSource) and not payloads and not checks.profiles:
        _take_layout(source, headers)
        return
    tick, position = tick_of_task(), 0
    if not payloads and not checks.profiles and headers.absence is None:
        position = _check_packed(source, form, headers)
        tick(position)
    # The checksum of a local shard needs a second pass over all bytes, which counts its own progress.
    counts = source.stored is source and not (is_local(task.address) and checks.checksums)
    for window in scan_salvaging(source, add_error, form=form, payloads=payloads, position=position):
        headers.add(window)
        if counts and window.columns.starts:
            tick(window.columns.starts[-1] - position)
            position = window.columns.starts[-1]
        if decoder is not None:
            decoder.check(window)


def _check_packed(source: Source, form: Form, headers: HeaderPass) -> int:
    """Check the small usual samples at the beginning of a local shard, a buffer at a time. Return the byte where
    the scan continues: at the first other sample, or at the last sample."""
    position = 0
    for offset, usual in walk_small(source, form):
        if not headers.add_packed(usual, offset):
            break
        position = offset + usual.end
    return position


def _take_layout(source: ViewSource, headers: HeaderPass) -> None:
    """Pass the samples of a view's shard to the header pass. The headers of the bases were scanned for the layout, and
    the shard's headers are made from them."""
    layout, tick = source.layout, tick_of_task()
    for batch in index_batches(layout.index):
        if layout.is_plain:
            headers.add_samples(batch)
        else:
            headers.add(Window(source, b"", 0, batch.columns()))
        tick(batch.end(len(batch.keys) - 1) - batch.start(0))


def _fill(result: ShardResult, headers: HeaderPass, source: Source, *, is_kept: bool) -> None:
    """Add the facts from the headers to the result, and report repeated keys. ``is_kept`` also keeps the keys."""
    result.samples, result.members, result.size_bytes = headers.samples, headers.members, source.size or 0
    result.shapes, result.ignored = headers.shapes(), headers.ignored
    result.keys_digest = "" if headers.absence is None else headers.absence.digest
    result.kept = headers.keys if is_kept else None
    repeats = headers.keys.repeats()
    result.digests = headers.keys.distinct(repeats)
    if repeats is not None:
        report_repeats(repeats, headers.keys, source, result.ledger)


def _is_compressed(address: str, source: Source) -> bool:
    if source.seekable or is_stream(address):
        return source.stored is not source
    with open_source(address, decompress=False) as file:
        return identify(file.read_at(0, BLOCK)) is not None


def _load_index(address: str, source: Source, ledger: Ledger) -> Index | None:
    """Return the index of a shard, or None if there is no index. Report an index that is damaged, or that belongs to
    another shard."""
    if is_stream(address) or not source.seekable:
        return None
    stored = read_index(address, has_columns=False)
    if stored.index is None:
        if stored.damage:
            ledger.add("stale-index", stored.damage)
        return None
    reason = proven_by(stored.index, Evidence.of_source(address, source))[1]
    if reason:
        ledger.add("stale-index", f"{index_address(address)} is for another shard: {reason}")
    return None if reason else stored.index


def _check_size(address: str, listing: ManifestEntry, size: int, ledger: Ledger) -> None:
    """Compare the size of a shard, damaged or not, with the manifest. ``size`` is the size of the tar."""
    listed_bytes = listing.shard.size_bytes
    if listed_bytes < 0 or listed_bytes == size:
        return
    if not is_stream(address):
        # For a compressed shard, the size of the file is not the size of the tar.
        with open_source(address, decompress=False) as source:
            if source.size == listed_bytes:
                return
    ledger.add("manifest-mismatch", f"{listing.manifest} says {listed_bytes} bytes, the shard has {size}")


def _check_listed(listing: ManifestEntry, samples: int, builder: IndexBuilder | None, ledger: Ledger) -> None:
    """Compare an undamaged shard with its entry in the manifest."""
    shard = Facts(samples, UNKNOWN, "", {}) if builder is None else builder.facts()
    for contradiction in contradictions(listing.shard, shard):
        ledger.add("manifest-mismatch", f"{listing.manifest} {contradiction}")


def _checksum_digest(listing: ManifestEntry | None) -> Digest | None:
    """Return an empty digest with the algorithm of a shard's checksum in the manifest. Return None if there is no
    checksum, or an unknown algorithm."""
    if listing is None or listing.shard.checksum is None:
        return None
    try:
        return new_digest(listing.shard.checksum.partition(":")[0])
    except UsageError:
        return None


def _check_checksum(
    address: str,
    listing: ManifestEntry | None,
    ledger: Ledger,
    version: str | None,
    digest: str | None = None,
) -> None:
    """Compare a shard's bytes with the checksum in the manifest. ``version`` is the version of the bytes with checked
    headers. It is None if they could not be read; this was already reported. ``digest`` is the digest of the bytes, if
    it is already known."""
    checksum = None if listing is None else listing.shard.checksum
    if is_stream(address) or checksum is None:
        why = "a stream has no checksum" if is_stream(address) else "no manifest has a checksum of this shard"
        ledger.add("unchecked", why)
        return
    algorithm, _, expected = checksum.partition(":")
    new = _checksum_digest(listing)
    if new is None:
        ledger.add("unchecked", f'the manifest has a checksum of the unknown kind "{algorithm}"')
        return
    if digest is None:
        try:
            digest = _digest_of(address, new, version)
        except StorageError as error:
            if version is not None:
                ledger.add("unreadable", error.message, hint=error.hint)
            return
    if digest != expected:
        ledger.add(
            "checksum-mismatch",
            f"{base_name(address)} was changed: its {algorithm} is {digest}, the manifest has {expected}",
        )


def _digest_of(address: str, digest: Digest, version: str | None) -> str:
    """Return the digest of a shard's bytes. Raises StorageError, also for another version of the shard."""
    with open_source(address, decompress=False, whole=True) as source:
        number = digested(digest, source, tick_of_task())
        source.confirm()
        if version and version != source.version:
            raise replaced(address)
    return number
