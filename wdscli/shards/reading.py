"""This module reads one shard, by its index after a check, or by a scan.

A :class:`ShardReader` yields samples, keys or members as records. Indexes are read only by :func:`find_index` and
:func:`index_batches`. An index is used under three conditions. The shard has the size in the index, and the version if
the store has versions. The headers of the first, middle and last sample match. The bytes between samples belong to no
sample. A version that identifies the bytes (``tells_bytes``) is enough. If a listing returned this version, the shard
is not even opened (:func:`open_by_index`). An index that is older than its local shard is compared with a scan. If a
check fails, the index is not used, and the caller gets the reason. A later change is found when a payload is read,
because the header before the payload is compared (:mod:`wdscli.samples.reading`).

:func:`values_of` returns one number for each sample of some shards, for callers that need all numbers before they read
samples. This module does not know commands, or how an index or a number is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from wdscli.errors import DataError, InputError, UsageError, WdsError
from wdscli.model import Member, Sample, ShardInfo, to_text
from wdscli.samples import Ignored, SampleBatch, iter_batches, iter_samples
from wdscli.samples.reading import holds_no_sample, is_there
from wdscli.selection import Selection
from wdscli.selection.reading import Payloads, expecting
from wdscli.selection.values import Numbers, SampleNumbers, joined, value_names
from wdscli.shards.index import Index, IndexBuilder, index_address, parse_index
from wdscli.shards.layout import ViewSource
from wdscli.storage import Source, is_local, is_stream, open_source
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
    """Return a new digest, or None for the algorithm ``none``. Raises UsageError for an unknown algorithm."""
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
    """Return the checksum ``algorithm:hex`` of all bytes of a source, or None for the algorithm ``none``. ``tick`` is
    called with the number of bytes after each read."""
    digest = new_digest(algorithm)
    if digest is not None:
        digested(digest, source, tick)
    return written(algorithm, digest)


def digested(digest: Digest, source: Source, tick: Callable[[int], object] | None = None) -> str:
    """Return the digest, in hexadecimal, of all bytes of a source. ``tick`` is called with the number of bytes after
    each read."""
    for data in source.pieces():
        digest.update(data)
        if tick is not None:
            tick(len(data))
    return digest.hexdigest()


def written(algorithm: str, digest: Digest | None) -> str | None:
    """Return the checksum ``algorithm:hex`` of a finished digest, or None without a digest."""
    return None if digest is None else f"{algorithm}:{digest.hexdigest()}"


class ShardReader:
    """Reads one shard. The address is a path, a URL, ``-`` or ``pipe:CMD``, compressed or not.

    Iterate over this object to get samples: a file any number of times, a stream only once. ``fields`` chooses the
    payloads to read. Close this object, or use it as a context manager. Raises InputError if the shard cannot be read,
    and DataError if its bytes are wrong.

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
        """Yield the samples' keys. Payloads are not read."""
        for batch in iter_batches(self._source):
            yield from map(to_text, batch.keys)

    def members(self) -> Iterator[Member]:
        """Yield every member of the archive, also members that belong to no sample. Payloads are not read."""
        return members(self._source)

    def close(self) -> None:
        self._source.close()

    def __enter__(self) -> ShardReader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


GAPS = 1 << 10
"""How many ranges between samples of a local shard are checked before its index is used."""
REMOTE_GAPS = 4
"""How many such ranges are checked in a remote shard, where each check is a request."""


def find_index(
    address: str,
    source: Source,
    warn: Callable[[str], None] | None = None,
    *,
    whole: bool = False,
    beside: Beside | None = None,
) -> Index | None:
    """Return the index of the shard at ``address``, which is open as ``source``. Return None if there is no index, or
    if it must not be used.

    The stored values are removed unless the shard surely has the payloads from which they were computed. ``warn`` is
    called with a message for an index that is stale or damaged. With ``whole``, the index is compared with all headers
    of the shard, and a damaged shard raises DataError. For streams, and for compressed shards without a table of
    blocks, no index is read. ``beside`` is the index if it was already read.
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
    """An index that was read but not compared with its shard, or the reason why it is damaged."""

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
    """Open the shard at an address without a request for it. This is possible if a listing returned its size and
    version, and the index is for that version. Otherwise return None. The caller must close the source, and pass the
    index to :func:`find_index`."""
    beside = read_index(address)
    if beside.found is not None and beside.found.size == size:
        source = open_pinned(address, size, version)
        if _is_of_version(beside.found, stored_version(address, source.version)):
            return source, beside
        source.close()
    return None, beside


def is_shard(address: str, shard: ShardInfo, form: Form = CANONICAL) -> bool:
    """Return whether the bytes at ``address`` are the bytes of ``shard``. Compare the checksum, or without a checksum,
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
    """Return the reason why ``index`` must not be used, or None if it can be used. ``place`` is the address of the
    index."""
    if source.size is not None and source.size != index.size:
        return f"the shard has {source.size} bytes, the index is for {index.size}"
    version = stored_version(address, source.version)
    if is_other_version(index.version, version):
        return "the store has another version of the shard"
    if _is_of_version(index, version):
        return None
    for row in {0, index.samples // 2, index.samples - 1} if index.samples else ():
        if not is_there(source, *index.member(int(index.member_ends[row - 1]) if row else 0)):
            return f"sample {row} of the shard is not where the index says"
    if not _leaves_none_out(index, source):
        return "a sample of the shard is not in the index"
    if _is_older(place, address) and scan_index(source, index.form)[0].digest() != index.digest:
        return "the shard was changed after the index was made"
    return None


def has_these_payloads(index: Index, address: str, source: Source) -> bool:
    """Return whether the shard surely has the payloads from which its index was made. Equal headers are not enough. A
    local shard must not be newer than its index, and a store must return the right version."""
    if is_local(address):
        return not _is_older(index_address(address), address)
    return _is_of_version(index, stored_version(address, source.version))


def _is_of_version(index: Index, version: str) -> bool:
    """Return whether a version proves that the shard still has the bytes described by the index."""
    return version in (index.version, index.noted) and tells_bytes(version)


def _leaves_none_out(index: Index, source: Source) -> bool:
    """Return whether no sample lies before, between or after the samples of an index. Only some gaps are
    checked."""
    begins, ends = index.gaps()
    most = GAPS if source.fd is not None else REMOTE_GAPS
    count = len(begins)
    if count > most and not index.ignored:
        return False
    # The checked gaps are evenly spread, and include the first and the last.
    chosen = range(count) if count <= most else sorted({at * (count - 1) // (most - 1) for at in range(most)})
    return all(holds_no_sample(source, int(begins[at]), int(ends[at])) for at in chosen)


def _why_untrue(index: Index, source: ByteSource) -> str | None:
    """Return how the headers of a shard differ from its index, or None if they match."""
    builder, ignored = scan_index(source, index.form)
    marks = bytes(builder.columns()["marks"])
    if (builder.digest(), marks, ignored) == (index.digest, index.marks.tobytes(), index.ignored):
        return None
    return "the headers of the shard do not match it"


def _is_older(place: str, address: str) -> bool:
    """Return whether the index is older than the shard. This is known only for local files."""
    if not (is_local(place) and is_local(address)):
        return False
    try:
        return os.stat(local_path(place)).st_mtime_ns < os.stat(local_path(address)).st_mtime_ns
    except OSError:
        return True


class BatchReader(Protocol):
    """An object that gets each batch of a scan, with the payloads of ``payload_fields``."""

    payload_fields: frozenset[bytes]

    def add_batch(self, batch: SampleBatch, shard: str, payload_of: Payloads) -> None: ...


def scan_index(
    source: ByteSource, form: Form = CANONICAL, numbers: BatchReader | None = None
) -> tuple[IndexBuilder, dict[str, int]]:
    """Scan the headers of a shard. Return the columns of its index, and its ignored members. ``numbers`` gets each
    batch.

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
    """Call :func:`find_index`, but return None for an index with another ``form``, because its marks depend on the
    form."""
    index = find_index(address, source, warn, beside=beside)
    return index if index is not None and index.form == form else None


def index_of_base(address: str, source: Source, form: Form, *, by_headers: bool = False) -> Index:
    """Return the index of a shard. If there is none, or with ``by_headers``, make it by a scan of the headers. Raises
    DataError for a damaged shard."""
    index = None if by_headers else index_for(address, source, form)
    if index is not None:
        return index
    builder, ignored = scan_index(source, form)
    return builder.index(address, source.size or 0, ignored, form)


def index_batches(index: Index, ignored: Ignored | None = None) -> Iterator[SampleBatch]:
    """Yield the samples of an index as columns, and count its ignored members."""
    if ignored is not None:
        for reason, count in index.ignored.items():
            ignored.add(reason, count)
    for first in range(0, index.samples, BATCH_SAMPLES):
        yield index.batch(first, first + BATCH_SAMPLES)


BATCH_SAMPLES = 4096


def values_of(
    addresses: Sequence[str],
    expression: str,
    *,
    table: str | None = None,
    index_of: Callable[[int], Index] | None = None,
    open_shard: Callable[[str], Source] = open_source,
    warn: Callable[[str], object] = lambda text: None,
) -> Any:
    """Return one number for each sample of some shards, in the order of shards and samples. The result is an int64
    array, or a float64 array if some number is a fraction. A missing number is ``MISSING`` (-2^63) in an int64 array
    and NaN in a float64 array (:attr:`Numbers.missing <wdscli.selection.values.Numbers.missing>` finds both).

    ``expression`` is one value in the form of ``--values``: ``json.tokens``, ``len(txt)``, ``json.w / json.h``. If a
    file ``table`` is given, the numbers come from it: CSV, TSV, JSON Lines or Parquet with a column ``key`` (see
    :class:`~wdscli.selection.keyfiles.NumbersByKey`). The expression may then be the name of a column. Without a table,
    the numbers come from the indexes of the shards. If an index does not have the numbers, or its payloads have
    changed, the shard is read once, after one call of ``warn``. ``index_of`` returns the index of a shard by its
    number, and ``open_shard`` opens an address. The shards must be seekable. A second call of ``warn`` reports how many
    samples have no number, because a payload is damaged or ``table`` has no row for the sample.

    Raises UsageError for an invalid expression, and InputError for a broken table. Raises DataError for a damaged
    shard, and if no sample has a number.
    """
    from wdscli.selection.keyfiles import NumbersByKey

    name = value_name(expression, table)
    by_key = None if table is None else NumbersByKey(table, name)
    found, remarks, read = list[Numbers](), list[str](), 0
    for number, address in enumerate(addresses):
        index = index_of(number) if index_of is not None else _index_of(address, open_shard)
        if by_key is not None:
            found.append(by_key.of(key for batch in index_batches(index) for key in batch.keys))
        elif name in index.numbers:
            found.append(index.numbers[name])
        else:
            if not read:
                hint = f"`wds index --values '{name}'` stores the numbers in the indexes"
                warn(f"reading payloads for {name}, which not all indexes have: {hint}")
            read += 1
            numbers = SampleNumbers([name], lenient=True)
            with open_shard(address) as source:
                _read_all(source, index, numbers)
            remarks += numbers.remarks()
            found += numbers.numbers().values()
    whole = joined(found)
    missing = int(whole.missing.sum())
    if missing and missing == len(whole.array):
        where = "" if table is None else f" in {table}"
        raise DataError(
            f"no sample has {name}{where}", code="missing-field", hint="`wds ls SHARDS --show` shows a sample"
        )
    if remarks:
        warn(remarks[0])
    elif missing and by_key is not None:
        warn(f"{missing} of {len(whole.array)} samples have no row in {table}")
    return whole.array


@lru_cache(256)
def value_name(expression: str, table: str | None = None) -> str:
    """Return the normal form of one value. With a table, the name of a column is also allowed. Raises UsageError."""
    try:
        names = value_names(expression, "values")
    except UsageError:
        if table is None:
            raise
        return expression
    if len(names) != 1:
        raise UsageError(
            f'one value for each sample is needed, not the {len(names)} of "{expression}"', hint="json.tokens"
        )
    return names[0]


def _index_of(address: str, open_shard: Callable[[str], Source]) -> Index:
    with open_shard(address) as source:
        return index_of_base(address, source, CANONICAL)


def _read_all(source: Source, index: Index, numbers: SampleNumbers) -> None:
    """Add the numbers of all samples of a shard. Its index gives their places."""
    payloads = Payloads(source, numbers.payload_fields, by_index=True)
    for batch in expecting(source, index_batches(index), Selection(), payloads, numbers.payload_fields):
        payloads.batch = batch
        numbers.add_batch(batch, source.name, payloads)
