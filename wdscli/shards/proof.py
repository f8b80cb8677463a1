"""This module answers one question: does this index belong to this shard?

An index is a file beside its shard. The shard may have been replaced since, and either file may be a copy. So a caller
gets an index with a :class:`Proof`, or with the reason why the index is not used:

    proof      what agrees                                                  what the caller may use
    NOTHING    the seal of the index                                        bytes of the version that the index names
    HEADERS    the size, some headers, some gaps; no version contradicts    places; each header is compared again
                                                                            before its payload is read
    PAYLOADS   for a store: a version that identifies the bytes, or the     everything; nothing else is compared
               checksum that the store keeps of all bytes
               for a local shard: HEADERS, and it is not newer              places as above, and stored values

A size, checksum, version or header that contradicts the index proves that it belongs to another shard. A copy has
another version, so an equal checksum counts more than the version. It costs one small request for a shard, and replaces
the requests that compare headers.

:class:`Evidence` is everything that is known of a shard before its headers are read, from a listing, a HEAD answer, an
open source or the file system. The functions: :func:`read_index` reads the file, :func:`proven_by` judges it by the
evidence, :func:`differing_headers` reads headers, and :func:`prove_index` does all of this for an open shard.
:func:`open_by_index` and :attr:`StoredIndex.pinned` do not read the shard. :func:`find_index` is the short form for
callers that warn. :func:`index_to_adopt` and :func:`refuse_other_bytes` are for ``wds index --adopt``: they raise an
error unless a copied shard and its index belong together.

A caller that reads no header itself asks for a stricter :class:`~wdscli.shards.index.Check`. A view asks the same of
its bases. This module does not know what a caller does with an index.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol

from wdscli.codecs.handlers import whole_names
from wdscli.errors import DataError, InputError
from wdscli.samples import SampleBatch
from wdscli.samples.reading import holds_no_sample, is_there
from wdscli.selection import Selection
from wdscli.selection.reading import MemberReader, Walk
from wdscli.selection.values import SampleNumbers
from wdscli.shards.index import Check, Index, IndexBuilder, index_address, parse_index
from wdscli.shards.layout import ViewSource
from wdscli.shown import shown
from wdscli.storage import Source, folder_of, is_local, is_stream
from wdscli.storage.addresses import local_path
from wdscli.storage.kinds import (
    etag_of,
    is_other_version,
    parse_note,
    source_version,
    stored_version,
    tells_bytes,
)
from wdscli.storage.opening import current_version, is_pinnable, open_pinned, read_noted
from wdscli.tar import CANONICAL, Form
from wdscli.tar.crc import agrees
from wdscli.threads import holding
from wdscli.units import human_size

LOCAL_GAPS = 1 << 10
"""How many ranges between samples of a local shard are checked before its index is used."""
REMOTE_GAPS = 4
"""How many such ranges are checked in a remote shard, where each check is a request."""
MAX_UNPROVEN_BYTES = 64 << 20
"""If more bytes are read because stored values are not proven, a warning says so."""
WRITING_NS = 10 * 10**9
"""The longest time from the last write of an index to its final name, in nanoseconds. A copy that keeps the time of
change is usually made later."""

_check: ContextVar[Check] = ContextVar("check", default=Check.SOME)


class Proof(IntEnum):
    """What is proven about a shard; see the table of this module."""

    NOTHING = 0
    HEADERS = 1
    PAYLOADS = 2


class Evidence(NamedTuple):
    """Everything known of a shard before its headers are read. ``version`` is a
    :func:`~wdscli.storage.kinds.stored_version`; it is empty for a local shard and if unknown. ``is_newer`` says
    whether a local shard was changed after its index, and is None for other shards. ``is_untouched`` says that nothing
    touched a local shard after its index was written. ``checksums`` are those that the store keeps."""

    size: int | None
    version: str = ""
    is_newer: bool | None = None
    is_untouched: bool = False
    checksums: Mapping[str, str] = {}

    @classmethod
    def of_source(cls, address: str, source: Source) -> Evidence:
        """Return the evidence about an open shard."""
        if not is_local(address):
            return cls(source.size, stored_version(address, source.version))
        try:
            index = os.stat(local_path(index_address(address)))
            shard, link = os.stat(local_path(address)), os.lstat(local_path(address))
        except OSError:
            return cls(source.size, is_newer=True)
        # A rename changes the ctime, too. The index may be a copy, made after its shard; then its times differ.
        is_published = index.st_ctime_ns >= max(shard.st_ctime_ns, link.st_ctime_ns)
        is_original = abs(index.st_ctime_ns - index.st_mtime_ns) <= WRITING_NS
        return cls(
            source.size,
            is_newer=index.st_mtime_ns < shard.st_mtime_ns,
            is_untouched=is_published and is_original,
        )


@dataclass(frozen=True, slots=True)
class StoredIndex:
    """An index file. ``index`` is None if there is none, or if it is damaged; ``damage`` is then the reason."""

    index: Index | None
    damage: str = ""

    @property
    def pinned(self) -> ProvenIndex | None:
        """The index, if it names a version of its shard, so that reads can require this version. Nothing else is
        proven."""
        versions = () if self.index is None else (self.index.noted, self.index.version)
        version = next(filter(tells_bytes, versions), "")
        if self.index is None or not version:
            return None
        return ProvenIndex.of(self.index, Proof.NOTHING, source_version(version))


@dataclass(frozen=True, slots=True)
class ProvenIndex:
    """The index of a shard with its proof, or the reason why the index file is not used. ``index`` has stored values
    only if PAYLOADS are proven. ``stored_values`` are the names of all values in the index file. ``version`` is the
    version of the source that was compared, or the version that the index names if nothing was compared."""

    index: Index | None = None
    proof: Proof = Proof.NOTHING
    reason: str = ""
    stored_values: frozenset[str] = frozenset()
    version: str = ""

    @classmethod
    def of(cls, index: Index, proof: Proof, version: str) -> ProvenIndex:
        """Return an index without the values that are not proven."""
        names = frozenset(index.numbers)
        return cls(index if proof is Proof.PAYLOADS else index.without_values(), proof, "", names, version)


def checking(check: Check) -> AbstractContextManager[None]:
    """In the block, compare at least so much of each shard, and of each base of a view that is opened."""
    return holding(_check, check)


def current_check() -> Check:
    """Return the check of the innermost :func:`checking`."""
    return _check.get()


def find_index(
    address: str,
    source: Source,
    warn: Callable[[str], None] | None = None,
    *,
    form: Form | None = None,
    check: Check = Check.SOME,
    stored: StoredIndex | None = None,
) -> Index | None:
    """Return the index of the shard at ``address``, which is open as ``source``; see :func:`prove_index`. Return None
    if there is no index, or if it must not be used, and call ``warn`` with the reason. Also return None for an index
    with another ``form``, because its marks depend on the form."""
    proven = prove_index(address, source, check=check, stored=stored)
    if warn is not None and proven.reason:
        warn(f"{index_address(address)} is not used: {proven.reason} (rebuild it with `wds index`)")
    index = proven.index
    return index if index is not None and form in (None, index.form) else None


def unproven_bytes(index: Index, payload_fields: frozenset[bytes]) -> int:
    """Return the size of a shard if its payloads of these fields are read, because its stored values are not proven.
    Otherwise return 0."""
    unproven_fields = whole_names(SampleNumbers([*index.unproven]).payload_fields)
    return index.size if unproven_fields & whole_names(payload_fields) else 0


def unproven_text(read_bytes: int, set_bytes: int, address: str) -> str:
    """Return the line for the user about :func:`unproven_bytes` of a set, or nothing for few bytes. ``address`` is of a
    shard."""
    if read_bytes <= min(set_bytes // 20, MAX_UNPROVEN_BYTES):
        return ""
    return (
        f"nothing proves that the stored values belong to these shards, so {human_size(read_bytes)} are read: "
        f"`wds index --adopt {shown(folder_of(address)) or '.'}` proves it once"
    )


def prove_index(
    address: str, source: Source, *, check: Check = Check.SOME, stored: StoredIndex | None = None
) -> ProvenIndex:
    """Compare the index of a shard with the shard, which is open as ``source``. ``stored`` is the index file if it was
    already read. Streams, and compressed shards without a table of blocks, have no index. Raises DataError for a
    damaged shard if all headers must be compared."""
    if is_stream(address) or not source.seekable:
        return ProvenIndex()
    check = max(check, _check.get())
    if isinstance(source, ViewSource):
        source.check = max(check, source.check)
        return ProvenIndex.of(source.layout.index, Proof.PAYLOADS, source.version)
    stored = read_index(address) if stored is None else stored
    if stored.index is None:
        return ProvenIndex(reason=stored.damage)
    index = stored.index
    evidence = Evidence.of_source(address, source)
    proof, reason, _ = _proven(index, address, evidence)
    if not reason:
        is_doubtful = check is Check.ALL_LOCAL and evidence.is_newer is not None and not evidence.is_untouched
        compares_all = evidence.is_newer or is_doubtful or check is Check.ALL
        if proof is Proof.NOTHING:
            reason = differing_headers(index, source)
            proof = Proof.PAYLOADS if evidence.is_newer is False else Proof.HEADERS
        if compares_all and not reason:
            reason = difference(index, *scan_index(source, index.form))
    if reason:
        return ProvenIndex(reason=reason, stored_values=frozenset(index.numbers))
    return ProvenIndex.of(index, proof, source.version)


def read_index(address: str, *, has_columns: bool = True) -> StoredIndex:
    """Read the index of the shard at an address, without comparing it with the shard. ``has_columns`` is as in
    :func:`~wdscli.shards.index.parse_index`."""
    place = index_address(address)
    if is_local(place) and not os.path.exists(local_path(place)):
        return StoredIndex(None)
    try:
        data, note = read_noted(place)
        index = parse_index(data, place, has_columns=has_columns)
    except InputError:
        return StoredIndex(None)
    except DataError as error:
        return StoredIndex(None, error.message)
    index.noted, index.checksum = parse_note(address, note)
    return StoredIndex(index)


def proven_by(index: Index, evidence: Evidence) -> tuple[Proof, str]:
    """Return the proof that evidence alone gives, and the reason if it contradicts the index."""
    if evidence.size is not None and evidence.size != index.size:
        return Proof.NOTHING, f"the shard has {evidence.size} bytes, the index is for {index.size}"
    if (is_same := agrees(index.checksums, evidence.checksums)) is not None:
        return (Proof.PAYLOADS, "") if is_same else (Proof.NOTHING, "the store keeps another checksum")
    versions = (index.compared, index.noted, index.version)
    # The ETag of an object in one part is the MD5 of its bytes.
    is_md5 = etag_of(evidence.version) == index.checksums.get("md5")
    if (is_md5 or evidence.version in versions) and tells_bytes(evidence.version):
        return Proof.PAYLOADS, ""
    is_other = is_other_version(index.version, evidence.version)
    return Proof.NOTHING, "the store has another version of the shard" if is_other else ""


def _proven(index: Index, address: str, evidence: Evidence | None) -> tuple[Proof, str, Evidence | None]:
    """Do the same as :func:`proven_by`. If this proves no payloads, compare the checksum that the store keeps of this
    version, or of the current version if there is no evidence. Also return the evidence."""
    proof, reason = (Proof.NOTHING, "") if evidence is None else proven_by(index, evidence)
    is_comparable = evidence is None or (evidence.version and evidence.size == index.size)
    if proof is Proof.PAYLOADS or not (index.checksums and is_comparable):
        return proof, reason, evidence
    from wdscli.storage.remote import with_checksums

    entry = with_checksums(address)
    current = entry and Evidence(
        entry.size, stored_version(address, entry.version), checksums=entry.checksums
    )
    if current is None or (evidence is not None and current.version != evidence.version):
        return proof, reason, evidence
    proof, reason = proven_by(index, current)
    if proof is Proof.PAYLOADS:
        index.compared = current.version
    return proof, reason, current


def differing_headers(index: Index, source: Source) -> str:
    """Compare some headers of a shard with its index: the first, the middle and the last sample, and some gaps. Return
    how they differ; the result is empty if they agree."""
    for row in {0, index.samples // 2, index.samples - 1} if index.samples else ():
        if not is_there(source, *index.member(int(index.member_ends[row - 1]) if row else 0)):
            return f"sample {row} of the shard is not where the index says"
    return "" if _leaves_none_out(index, source) else "a sample of the shard is not in the index"


def _leaves_none_out(index: Index, source: Source) -> bool:
    """Return whether no sample lies before, between or after the samples of an index. Only some gaps are checked."""
    gap_starts, gap_ends = index.gaps()
    max_checked = LOCAL_GAPS if source.fd is not None else REMOTE_GAPS
    count = len(gap_starts)
    if count > max_checked and not index.ignored:
        return False
    # The checked gaps are evenly spread, and include the first and the last.
    checks, last = min(count, max_checked), count - 1
    checked = (number * last // max(1, checks - 1) for number in range(checks))
    return all(holds_no_sample(source, int(gap_starts[gap]), int(gap_ends[gap])) for gap in checked)


def difference(index: Index, builder: IndexBuilder, ignored: dict[str, int]) -> str:
    """Return how an index differs from a scan of the whole shard. The result is empty if they agree."""
    if (index.digest, index.mark_bytes) != (builder.digest(), bytes(builder.columns()["marks"])):
        return "it does not match the shard's headers"
    if (index.samples, index.members, index.ignored) != (builder.samples, builder.members, ignored):
        return "it has other numbers of samples or members than the shard"
    return ""


def open_by_index(
    address: str, listed: tuple[int, str] | None = None, stored: StoredIndex | None = None
) -> tuple[Source | None, StoredIndex]:
    """Open the shard at an address without reading it. This is possible if the size and version that a listing returned
    (``listed``), or the current version, prove the index; a HEAD request may be needed. Otherwise return None. The
    caller must close the source, and pass the index to :func:`prove_index`. ``stored`` is the index file if it was
    already read."""
    stored = read_index(address) if stored is None else stored
    version = listed or (None if stored.pinned is None else current_version(address))
    if stored.index is None or (version is None and not (stored.index.checksums and is_pinnable(address))):
        return None, stored
    evidence = None if version is None else Evidence(version[0], stored_version(address, version[1]))
    proof, _, evidence = _proven(stored.index, address, evidence)
    if proof is Proof.PAYLOADS and evidence is not None and evidence.size is not None:
        return open_pinned(address, evidence.size, source_version(evidence.version)), stored
    return None, stored


class BatchReader(Protocol):
    """An object that gets each batch of a scan, with the payloads of ``payload_fields``."""

    payload_fields: frozenset[bytes]

    def add_batch(self, batch: SampleBatch, shard: str, payload_of: MemberReader) -> None: ...


def scan_index(
    source: Source, form: Form = CANONICAL, numbers: BatchReader | None = None
) -> tuple[IndexBuilder, dict[str, int]]:
    """Scan the headers of a shard. Return the columns of its index, and its ignored members. ``numbers`` gets each
    batch.

    Raises DataError for a damaged shard.
    """
    builder, ignored = IndexBuilder(), Counter[str]()
    payloads = MemberReader(source, frozenset() if numbers is None else numbers.payload_fields)
    for batch, _ in Walk(Selection(), Selection().new_state(), payloads, form, ignored).chosen():
        builder.add_batch(batch)
        if numbers is not None:
            numbers.add_batch(batch, source.name, payloads)
    return builder, ignored


def scanned_index(address: str, source: Source, form: Form = CANONICAL) -> Index:
    """Make the index of a shard by a scan of its headers. Raises DataError for a damaged shard."""
    builder, ignored = scan_index(source, form)
    return builder.index(address, source.size or 0, ignored, form)


def index_to_adopt(address: str, source: Source | None = None) -> Index:
    """Return the index of a copied shard, with its values. If the shard is open as ``source``, compare its size and
    some headers. Raises DataError if they differ, or if there is no index."""
    stored = read_index(address)
    if stored.index is None:
        raise _not_adopted(address, stored.damage or "it has no index")
    if source is not None and (reason := prove_index(address, source, stored=stored).reason):
        raise _not_adopted(address, reason)
    return stored.index


def refuse_other_bytes(address: str, index: Index, headers: str, checksums: Mapping[str, str]) -> None:
    """Raise DataError if the digest of a shard's headers, or the checksums of its bytes, are not those of its index.
    The caller compares the checksum in the manifest."""
    if index.digest != headers:
        raise _not_adopted(address, "its headers differ from its index")
    if agrees(index.checksums, checksums) is False:
        raise _not_adopted(address, "its checksum differs from its index")


def _not_adopted(address: str, reason: str) -> DataError:
    hint = "copy the shard and its index again, or make a new index with `wds index --force`"
    return DataError(f"not adopted: {reason}", code="changed", shard=address, hint=hint)
