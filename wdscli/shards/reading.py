"""This module reads one shard as records, its checksum, and one number of each sample.

A :class:`ShardReader` yields samples, keys or members as records. :func:`values_of` returns one number for each sample
of some shards, from their indexes or payloads, for callers that need all numbers before they read samples.
:func:`check_joined` refuses a shard with a sample in several parts. This module does not know commands, or how an index
is proven (:mod:`wdscli.shards.proof`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Protocol

from wdscli.arrays import numpy
from wdscli.errors import DataError, UsageError, WdsError
from wdscli.model import Member, Sample, ShardInfo
from wdscli.samples import SampleBatch, iter_batches, iter_samples
from wdscli.samples.keys import SeparatedSamples, separated
from wdscli.selection import Selection
from wdscli.selection.reading import MemberReader, Walk
from wdscli.selection.values import Numbers, SampleNumbers, joined, value_names
from wdscli.shards.index import Index
from wdscli.shards.proof import find_index, scan_index, scanned_index, unproven_text
from wdscli.storage import Source, open_source
from wdscli.tar import CANONICAL, Form, members
from wdscli.text import to_text

ALGORITHMS = ("xxh3_128", "sha256", "md5", "none")


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
    if algorithm == "md5":
        import hashlib

        return hashlib.md5(usedforsecurity=False)
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


def separated_parts(index: Index) -> Iterator[tuple[bytes, int]]:
    """Yield key and first byte of each later part of a sample whose members are not next to each other. Nearly always
    there is none, because all samples have a field in common."""
    if not index.samples or int(numpy.bincount(index.member_fields).max()) == index.samples:
        return
    search = SeparatedSamples(index.samples)
    for batch in index_batches(index):
        for row in search.add_batch(batch.keys, batch.firsts, batch.fields):
            yield batch.keys[row], batch.start(row)


def check_joined(index: Index, address: str) -> None:
    """Raise DataError if a sample of the shard at ``address`` is in several parts."""
    for key, offset in separated_parts(index):
        raise separated(key, address, offset)


def without_parts(index: Index) -> Index:
    """Return an index without the samples that are in several parts."""
    parted = {key for key, _ in separated_parts(index)}
    if not parted:
        return index
    whole = [row for row, key in enumerate(index.keys_of(0, index.samples)) if key not in parted]
    return index.part(numpy.array(whole, dtype=numpy.int64))


def index_batches(index: Index, ignored: Counter[str] | None = None) -> Iterator[SampleBatch]:
    """Yield the samples of an index as columns, and count its ignored members."""
    if ignored is not None:
        ignored.update(index.ignored)
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
    name = value_name(expression, table)
    indexes = (
        index_of(number) if index_of is not None else _index_of(address, open_shard)
        for number, address in enumerate(addresses)
    )
    if table is not None:
        return _values_in_table(table, name, indexes, warn)
    return _values_in_shards(addresses, name, indexes, open_shard, warn)


def _values_in_table(table: str, name: str, indexes: Iterable[Index], warn: Callable[[str], object]) -> Any:
    """Do the work of :func:`values_of` with a table."""
    from wdscli.selection.keyfiles import NumbersByKey

    by_key = NumbersByKey(table, name)
    whole = joined(
        [by_key.of(key for batch in index_batches(index) for key in batch.keys) for index in indexes]
    )
    if missing := _count_missing(whole, f"{name} in {table}"):
        warn(f"{missing} of {len(whole.array)} samples have no row in {table}")
    return whole.array


def _values_in_shards(
    addresses: Sequence[str],
    name: str,
    indexes: Iterable[Index],
    open_shard: Callable[[str], Source],
    warn: Callable[[str], object],
) -> Any:
    """Do the work of :func:`values_of` without a table."""
    columns, remarks, has_warned = list[Numbers](), list[str](), False
    for number, (address, index) in enumerate(zip(addresses, indexes)):
        if name in index.numbers:
            columns.append(index.numbers[name])
            continue
        if not has_warned:
            unread_bytes = index.size * (len(addresses) - number)
            has_unproven = name in index.unproven
            warn(unproven_text(unread_bytes, unread_bytes, address) if has_unproven else unstored_text(name))
        has_warned = True
        numbers = SampleNumbers([name], lenient=True)
        with open_shard(address) as source:
            _read_all(source, index, numbers)
        remarks += numbers.remarks()
        columns += numbers.numbers().values()
    whole = joined(columns)
    _count_missing(whole, name)
    for remark in remarks[:1]:
        warn(remark)
    return whole.array


def unstored_text(name: str) -> str:
    """Return the warning that payloads are read for a number, because indexes do not have it."""
    hint = f"`wds index --values '{name}'` stores the numbers in the indexes"
    return f"reading payloads for {name}, which not all indexes have: {hint}"


def _count_missing(numbers: Numbers, what: str) -> int:
    """Return how many samples have no number. Raises DataError if none has."""
    missing = int(numbers.missing.sum())
    if missing and missing == len(numbers.array):
        raise DataError(
            f"no sample has {what}", code="missing-field", hint="`wds ls SHARDS --show` shows a sample"
        )
    return missing


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
        return find_index(address, source) or scanned_index(address, source)


def _read_all(source: Source, index: Index, numbers: SampleNumbers) -> None:
    """Add the numbers of all samples of a shard. Its index gives their places."""
    payloads = MemberReader(source, numbers.payload_fields, by_index=True)
    walk = Walk(Selection(), Selection().new_state(), payloads)
    for batch, _ in walk.chosen(index_batches(index), requested=payloads.fields):
        numbers.add_batch(batch, source.name, payloads)
