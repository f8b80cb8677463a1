"""One shard to read: by its index, after a check, or by a scan.

A :class:`ShardReader` gives samples, keys or members as records; :func:`find_index` and :func:`index_batches` are the
only way to an index. An index is used when the shard has the size it names, and its version if the store has versions;
when the headers of its first, middle and last sample match; and when nothing between its samples belongs to a sample. A
version that identifies the bytes (``tells_bytes``) is enough, and if a listing gave it, the shard is not even opened
(:func:`open_by_index`). An index older than its local shard is compared with a scan. An index that fails is never used,
and the caller gets the reason. Changes after that are found when a payload is read: the header in front of it is
compared (:mod:`wdscli.samples.reading`). It must not know about sets or commands, nor how the index is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from wdscli.errors import DataError, InputError, UsageError, WdsError
from wdscli.model import Member, Sample, ShardInfo, to_text
from wdscli.samples import Ignored, SampleBatch, iter_batches, iter_samples
from wdscli.samples.reading import holds_no_sample, is_there
from wdscli.selection.reading import Payloads
from wdscli.shards.index import Index, IndexBuilder, index_address, parse_index
from wdscli.shards.layout import ViewSource
from wdscli.storage import Source, base_name, is_local, is_stream, open_source
from wdscli.storage.addresses import local_path
from wdscli.storage.kinds import is_other_version, parse_note, stored_version, tells_bytes
from wdscli.storage.opening import open_pinned, read_noted
from wdscli.tar import CANONICAL, ByteSource, Form, members

ALGORITHMS = ("xxh3_128", "sha256", "none")


class Digest(Protocol):
    """The common interface of hashlib and xxhash."""

    def update(self, data: bytes | bytearray | memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


def new_digest(algorithm: str) -> Digest | None:
    """A new digest; None for ``none``. Raises UsageError for an unknown algorithm."""
    if algorithm == "xxh3_128":
        from xxhash import xxh3_128

        return xxh3_128()
    if algorithm == "sha256":
        import hashlib

        return hashlib.sha256()
    if algorithm == "none":
        return None
    raise UsageError(f"unknown checksum {algorithm!r}", hint="choose one of " + ", ".join(ALGORITHMS))


def checksum_of(source: Source, algorithm: str, tick: Callable[[int], object] | None = None) -> str | None:
    """``algorithm:hex`` over all bytes of a source; None for ``none``. ``tick`` gets the number of bytes after each
    read."""
    digest = new_digest(algorithm)
    if digest is not None:
        for data in source.pieces():
            digest.update(data)
            if tick is not None:
                tick(len(data))
    return written(algorithm, digest)


def written(algorithm: str, digest: Digest | None) -> str | None:
    """``algorithm:hex`` of a finished digest; None without one."""
    return None if digest is None else f"{algorithm}:{digest.hexdigest()}"


class ShardReader:
    """Reads one shard: a path, a URL, ``-`` or ``pipe:CMD``, compressed or not.

    Iterate over it for samples: a file any number of times, a stream once. ``fields`` chooses the payloads to read.
    Close it, or use it as a context manager. Raises InputError when the shard cannot be read, DataError when its
    bytes are wrong.

    >>> from wdscli.shards import ShardWriter
    >>> folder = getfixture("tmp_path")
    >>> with ShardWriter(str(folder / "a.tar")) as writer:
    ...     writer.write("cat1", {"jpg": b"...", "cls": b"0"})
    ...     writer.write("dog1", {"jpg": b"....", "cls": b"1"})
    >>> with ShardReader(str(folder / "a.tar"), fields=["cls"]) as shard:
    ...     [(sample.key, sample["cls"]) for sample in shard]
    [('cat1', b'0'), ('dog1', b'1')]
    """

    def __init__(self, address: str, *, fields: Iterable[str] | None = None) -> None:
        self.address = address
        self._fields = None if fields is None else frozenset(fields)
        self._source: Source = open_source(address)

    def __iter__(self) -> Iterator[Sample]:
        """Yield the samples, in the shard's order."""
        return iter_samples(self._source, fields=self._fields)

    def keys(self) -> Iterator[str]:
        """Yield the samples' keys; payloads are not read."""
        for batch in iter_batches(self._source):
            yield from map(to_text, batch.keys)

    def members(self) -> Iterator[Member]:
        """Yield every member of the archive, those of no sample included; payloads are not read."""
        return members(self._source)

    def close(self) -> None:
        self._source.close()

    def __enter__(self) -> ShardReader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


GAPS = 1 << 10
"""Ranges between samples of a local shard that are checked before its index is used."""
REMOTE_GAPS = 4
"""The same for a remote shard, where each check is a request."""


def find_index(
    address: str,
    source: Source,
    warn: Callable[[str], None] | None = None,
    *,
    whole: bool = False,
    beside: Beside | None = None,
) -> Index | None:
    """The index of the shard at ``address``, open as ``source``; None when there is none that can be used.

    An index keeps its stored values only if the shard surely has the payloads that they were made from. ``warn`` gets a
    message for an index that is stale or damaged. With ``whole`` the index is compared with all
    headers of the shard; a damaged shard then raises DataError. For streams, and for compressed shards without a
    table of blocks, the storage is not read. ``beside`` is the index if it was read already.
    """
    if is_stream(address) or not source.seekable:
        return None
    if isinstance(source, ViewSource):
        return source.layout.index
    place = index_address(address)
    index, reason = read_index(address) if beside is None else beside
    if index is not None:
        reason = why_stale(index, address, place, source)
        if reason is None and whole:
            reason = _why_untrue(index, source)
        if reason is None:
            index.seen = source.version
            if index.numbers and not has_these_payloads(index, address, source):
                index.outdated, index.numbers = frozenset(index.numbers), {}
            return index
    if warn is not None and reason is not None:
        warn(f"{place} is not used: {reason} (rebuild it with `wds index`)")
    return None


class Beside(NamedTuple):
    """The index of a shard that was read but not checked, or the reason why it is damaged."""

    found: Index | None
    reason: str | None = None


def read_index(address: str) -> Beside:
    """Read the index of the shard at an address, without comparing it with the shard."""
    place = index_address(address)
    if is_local(place) and not os.path.exists(local_path(place)):
        return Beside(None)
    try:
        data, note = read_noted(place)
        index = parse_index(data, place)
    except InputError:
        return Beside(None)
    except DataError as error:
        return Beside(None, error.message)
    index.noted, index.checksum = parse_note(address, note)
    return Beside(index)


def open_by_index(address: str, size: int, version: str) -> tuple[Source | None, Beside]:
    """Open the shard at an address by its index, without a request: possible when a listing gave its size and
    version, and the index is of that version; otherwise None. The caller closes the source, and passes the index to
    :func:`find_index`."""
    beside = read_index(address)
    if beside.found is not None and beside.found.size == size:
        source = open_pinned(address, size, version)
        if _is_of_version(beside.found, stored_version(address, source.version)):
            return source, beside
        source.close()
    return None, beside


def is_shard(address: str, shard: ShardInfo, form: Form = CANONICAL) -> bool:
    """Whether the bytes at ``address`` are the bytes of ``shard``. This compares the checksum or, without a checksum,
    size and headers. Raises InputError."""
    with open_source(address, decompress=False) as source:
        if source.size != shard.size_bytes:
            return False
        if shard.checksum is None:
            try:
                with open_source(address) as archive:
                    return scan_index(archive, form)[0].digest() == shard.headers
            except WdsError:
                return False
        return checksum_of(source, shard.checksum.partition(":")[0]) == shard.checksum


def why_stale(index: Index, address: str, place: str, source: Source) -> str | None:
    """Why ``index`` must not be used; None when it can be. ``place`` is the address of the index."""
    if source.size is not None and source.size != index.size:
        return f"the shard has {source.size} bytes, the index is for {index.size}"
    version = stored_version(address, source.version)
    if is_other_version(index.version, version):
        return "the store has another version of the shard"
    if _is_of_version(index, version):
        return None
    for row in {0, index.samples // 2, index.samples - 1} if index.samples else ():
        if not _says_the_same(index, row, source):
            return f"sample {row} of the shard is not where the index says"
    if not _leaves_none_out(index, source):
        return "a sample of the shard is not in the index"
    if _is_older(place, address) and scan_index(source, index.form)[0].digest() != index.digest:
        return "the shard was changed after the index was made"
    return None


def has_these_payloads(index: Index, address: str, source: Source) -> bool:
    """Whether the shard surely has the payloads that its index was made with. Equal headers do not show it: a local
    shard must not be newer than its index, and a store must show the version."""
    if is_local(address):
        return not _is_older(index_address(address), address)
    return _is_of_version(index, stored_version(address, source.version))


def _is_of_version(index: Index, version: str) -> bool:
    """Whether a version shows that the shard still has the bytes of the index."""
    return version in (index.version, index.noted) and tells_bytes(version)


def _says_the_same(index: Index, row: int, source: ByteSource) -> bool:
    """Whether a scan of one sample's first header gives the name, place and size in the index."""
    member = int(index.member_ends[row - 1]) if row else 0
    name = index.key(row) + b"." + index.fields[int(index.member_fields[member])]
    offset, size = int(index.member_offsets[member]), int(index.member_sizes[member])
    return is_there(source, int(index.starts[row]), offset, name, size)


def _leaves_none_out(index: Index, source: Source) -> bool:
    """Whether the gaps before, between and after the samples of an index belong to no sample, as far as some of them
    show."""
    begins, ends = index.gaps()
    most = GAPS if source.fd is not None else REMOTE_GAPS
    count = len(begins)
    if count > most and not index.ignored:
        return False
    # Evenly spread, with the first and the last.
    chosen = range(count) if count <= most else sorted({at * (count - 1) // (most - 1) for at in range(most)})
    return all(holds_no_sample(source, int(begins[at]), int(ends[at])) for at in chosen)


def _why_untrue(index: Index, source: ByteSource) -> str | None:
    """How the headers of a shard differ from its index; None when they match."""
    builder, ignored = scan_index(source, index.form)
    marks = bytes(builder.columns()["marks"])
    if (builder.digest(), marks, ignored) == (index.digest, index.marks.tobytes(), index.ignored):
        return None
    return "the headers of the shard do not match it"


def _is_older(place: str, address: str) -> bool:
    """Whether the index is older than the shard; only for local files."""
    if not (is_local(place) and is_local(address)):
        return False
    try:
        return os.stat(local_path(place)).st_mtime_ns < os.stat(local_path(address)).st_mtime_ns
    except OSError:
        return True


class BatchReader(Protocol):
    """Takes the payloads of ``payload_fields`` of each batch of a scan."""

    payload_fields: frozenset[bytes]

    def add_batch(self, batch: SampleBatch, shard: str, payload_of: Payloads) -> None: ...


def scan_index(
    source: ByteSource, form: Form = CANONICAL, numbers: BatchReader | None = None
) -> tuple[IndexBuilder, dict[str, int]]:
    """Scan the headers of a shard for the columns of its index and its ignored members; ``numbers`` gets each batch.

    Raises DataError for a damaged shard.
    """
    builder, ignored = IndexBuilder(), Ignored()
    payloads = Payloads(source, frozenset() if numbers is None else numbers.payload_fields)
    see = payloads.see if payloads.fields else None
    for batch in iter_batches(source, form=form, ignored=ignored, see=see):
        builder.add_batch(batch)
        if numbers is not None:
            payloads.batch = batch
            numbers.add_batch(batch, source.name, payloads)
            payloads.forget()
    return builder, ignored.counts


def index_for(
    address: str,
    source: Source,
    form: Form,
    warn: Callable[[str], None] | None = None,
    beside: Beside | None = None,
) -> Index | None:
    """:func:`find_index`, but None for an index of another ``form``, because its marks depend on the form."""
    index = find_index(address, source, warn, beside=beside)
    return index if index is not None and index.form == form else None


def index_of_base(address: str, source: Source, form: Form, *, by_headers: bool = False) -> Index:
    """The index of a shard, if need be or with ``by_headers`` by a scan of its headers. Raises DataError for a damaged
    shard."""
    index = None if by_headers else index_for(address, source, form)
    if index is not None:
        return index
    builder, ignored = scan_index(source, form)
    size = source.size or 0
    return parse_index(
        builder.to_bytes(shard=base_name(address), size=size, form=form, ignored=ignored), address
    )


def index_batches(index: Index, ignored: Ignored | None = None) -> Iterator[SampleBatch]:
    """Yield the samples of an index as columns; its ignored members are counted."""
    if ignored is not None:
        for reason, count in index.ignored.items():
            ignored.add(reason, count)
    for first in range(0, index.samples, BATCH_SAMPLES):
        yield index.batch(first, first + BATCH_SAMPLES)


BATCH_SAMPLES = 4096
