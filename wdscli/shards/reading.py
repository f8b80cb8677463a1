"""One shard to read: by its index, found and checked, or by a scan.

What it is: :class:`ShardReader`, the library's face, which gives samples, keys or members as records; and the only way
to an index for those who use one (:func:`find_index`, :func:`index_batches`). How: an index is believed when the shard
has the size it names, and, where the store tells versions, the version; when the headers of its first, middle and last
sample say what it says; and when what lies between its samples belongs to none. A version that tells the bytes
(:func:`tells_bytes`) is enough, and where a listing has told it the shard is not even opened (:func:`open_by_index`).
An index older than its local shard is compared with a scan. One that fails is never used; the caller hears why. What
else has changed is noticed where a payload is read: the header in front of it is compared
(:mod:`wdscli.samples.expected`). It must not know of sets or commands, nor what the index is wanted for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from wdscli.errors import DataError, InputError, UsageError, WdsError
from wdscli.model import Member, Sample, ShardInfo, to_text
from wdscli.samples import Ignored, SampleBatch, iter_batches, iter_samples
from wdscli.samples.expected import holds_no_sample, is_there
from wdscli.shards.index import Index, IndexBuilder, index_address, parse_index
from wdscli.storage import Source, is_local, is_stream, open_source
from wdscli.storage.addresses import local_path
from wdscli.storage.kinds import is_other_version, stored_version, tells_bytes
from wdscli.storage.opening import open_again, read_noted
from wdscli.tar import CANONICAL, ByteSource, Form, members

ALGORITHMS = ("xxh3_128", "sha256", "none")


class Digest(Protocol):
    """What hashlib and xxhash have in common."""

    def update(self, data: bytes | bytearray | memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


def new_digest(algorithm: str) -> Digest | None:
    """A fresh digest; None for ``none``."""
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
    """``algorithm:hex`` over all bytes of a source; None for ``none``. ``tick`` is told of the bytes that are read."""
    digest = new_digest(algorithm)
    if digest is not None:
        for data in source.pieces():
            digest.update(data)
            if tick is not None:
                tick(len(data))
    return written(algorithm, digest)


def written(algorithm: str, digest: Digest | None) -> str | None:
    """``algorithm:hex`` of a finished digest."""
    return None if digest is None else f"{algorithm}:{digest.hexdigest()}"


class ShardReader:
    """Reads one shard: a path, a URL, ``-`` or ``pipe:CMD``, compressed or not.

    Iterate it for samples. A file can be iterated again and again; a stream once. ``fields`` limits which payloads are
    read at all. Close it, or use it as a context manager. Raises InputError when it cannot be read, DataError when its
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
        """The samples, in the shard's order."""
        return iter_samples(self._source, fields=self._fields)

    def keys(self) -> Iterator[str]:
        """The samples' keys; payloads are not read."""
        for batch in iter_batches(self._source):
            yield from map(to_text, batch.keys)

    def members(self) -> Iterator[Member]:
        """Every member of the archive, also those that belong to no sample; payloads are not read."""
        return members(self._source)

    def close(self) -> None:
        self._source.close()

    def __enter__(self) -> ShardReader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


GAPS = 1 << 10
"""Stretches between samples of a local shard that are looked at before its index is believed."""
REMOTE_GAPS = 4
"""The same of others, where each look is a request."""


def find_index(
    address: str,
    source: Source,
    warn: Callable[[str], None] | None = None,
    *,
    whole: bool = False,
    beside: Beside | None = None,
) -> Index | None:
    """The index of the shard at ``address``, open as ``source``; None when there is none that can be believed.

    ``warn`` is told of an index that is there but stale. With ``whole`` it is compared with all headers of the shard;
    DataError then for one that is damaged. Nothing is asked of the storage for streams, nor for compressed shards
    without a table of their blocks, whose bytes an index cannot reach. ``beside`` is what was read already.
    """
    if is_stream(address) or not source.seekable:
        return None
    place = index_address(address)
    index, reason = read_index(address) if beside is None else beside
    if index is not None:
        reason = why_stale(index, address, place, source)
        if reason is None and whole:
            reason = _why_untrue(index, source)
        if reason is None:
            index.seen = source.version
            return index
    if warn is not None and reason is not None:
        warn(f"{place} is not used: {reason} (make it again with `wds index`)")
    return None


class Beside(NamedTuple):
    """What lies in the place of a shard's index: one, or why what is there is none."""

    found: Index | None
    reason: str | None = None


def read_index(address: str) -> Beside:
    """The index of the shard at an address, which nobody has compared with the shard yet."""
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
    etag, _, index.checksum = note.partition(" ")
    index.noted = stored_version(address, etag and f'"{etag}"')
    return Beside(index)


def open_by_index(address: str, size: int, version: str) -> tuple[Source | None, Beside]:
    """The shard at an address by its index, with no request for it: where it is the version that the index is of, as
    a listing has told size and version. None where more must be known. The caller closes it, and calls
    :func:`find_index` with what was found beside it."""
    beside = read_index(address)
    if beside.found is not None and beside.found.size == size:
        source = open_again(address, size, version)
        if _is_of_version(beside.found, stored_version(address, source.version)):
            return source, beside
        source.close()
    return None, beside


def is_shard(address: str, shard: ShardInfo, form: Form = CANONICAL) -> bool:
    """Whether the bytes at ``address`` are those of ``shard``: by checksum, without one by size and headers. Raises
    InputError."""
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
    """Why ``index`` must not be believed, or None. ``place`` is the index's own address."""
    if source.size is not None and source.size != index.size:
        return f"the shard has {source.size} bytes, the index was made for {index.size}"
    etag = stored_version(address, source.version)
    if is_other_version(index.etag, etag):
        return "the store has another version of the shard than the index was made for"
    if _is_of_version(index, etag):
        return None
    for row in {0, index.samples // 2, index.samples - 1} if index.samples else ():
        if not _says_the_same(index, row, source):
            return f"sample {row} of the shard is not where the index says"
    if not _leaves_none_out(index, source):
        return "a sample of the shard is not in the index"
    if _is_older(place, address) and scan_index(source, index.form)[0].digest() != index.digest:
        return "the shard was changed after the index was made"
    return None


def _is_of_version(index: Index, etag: str) -> bool:
    """Whether a shard that has this ETag has the bytes that the index was made from."""
    return etag in (index.etag, index.noted) and tells_bytes(etag)


def _says_the_same(index: Index, row: int, source: ByteSource) -> bool:
    """Whether a scan of one sample's first header gives the name, the payload's place and the size of the index."""
    member = int(index.member_ends[row - 1]) if row else 0
    name = index.key(row) + b"." + index.fields[int(index.member_fields[member])]
    offset, size = int(index.member_offsets[member]), int(index.member_sizes[member])
    return is_there(source, int(index.starts[row]), offset, name, size)


def _leaves_none_out(index: Index, source: Source) -> bool:
    """Whether what lies between the samples of an index, before them and behind them belongs to none, as far as a look
    at some of it tells."""
    begins, ends = index.gaps()
    most = GAPS if source.fd is not None else REMOTE_GAPS
    count = len(begins)
    if count > most and not index.ignored:
        return False
    # Evenly spread, the first and the last among them.
    chosen = range(count) if count <= most else sorted({at * (count - 1) // (most - 1) for at in range(most)})
    return all(holds_no_sample(source, int(begins[at]), int(ends[at])) for at in chosen)


def _why_untrue(index: Index, source: ByteSource) -> str | None:
    """What all headers of a shard say against its index, or None."""
    builder, ignored = scan_index(source, index.form)
    marks = bytes(builder.columns()["marks"])
    if (builder.digest(), marks, ignored) == (index.digest, index.marks.tobytes(), index.ignored):
        return None
    return "the headers of the shard are not those that the index was made from"


def _is_older(place: str, address: str) -> bool:
    """Whether the index is older than the shard; only local files tell."""
    if not (is_local(place) and is_local(address)):
        return False
    try:
        return os.stat(local_path(place)).st_mtime_ns < os.stat(local_path(address)).st_mtime_ns
    except OSError:
        return True


def scan_index(source: ByteSource, form: Form = CANONICAL) -> tuple[IndexBuilder, dict[str, int]]:
    """The index's columns and the ignored members of a shard, by a scan of its headers.

    Raises DataError for a damaged shard.
    """
    builder, ignored = IndexBuilder(), Ignored()
    for batch in iter_batches(source, form=form, ignored=ignored):
        builder.add_batch(batch)
    return builder, ignored.counts


def index_for(
    address: str,
    source: Source,
    form: Form,
    warn: Callable[[str], None] | None = None,
    beside: Beside | None = None,
) -> Index | None:
    """:func:`find_index`, but None for an index that was made for another ``form``, because its marks speak of that."""
    index = find_index(address, source, warn, beside=beside)
    return index if index is not None and index.form == form else None


def index_batches(index: Index, ignored: Ignored | None = None) -> Iterator[SampleBatch]:
    """The samples of an index as columns; the ignored members are counted."""
    if ignored is not None:
        for reason, count in index.ignored.items():
            ignored.add(reason, count)
    for first in range(0, index.samples, BATCH_SAMPLES):
        yield index.batch(first, first + BATCH_SAMPLES)


BATCH_SAMPLES = 4096
