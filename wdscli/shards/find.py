"""The index of a shard, found and checked; or made by a scan.

What it is: the only way to an index for those who use one. How: an index is believed when the shard has the size it
names, when neither file is newer than it should be, and when the headers of its first, middle and last sample say what
it says. An index older than its local shard is compared with a scan. One that fails is never used; the caller hears
why. It must not know what the index is wanted for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from wdscli.errors import DataError, InputError, WdsError
from wdscli.model import ShardInfo
from wdscli.samples import Ignored, SampleBatch, iter_batches
from wdscli.shards.checksum import new_digest, written
from wdscli.shards.index import Index, IndexBuilder, parse_index
from wdscli.shards.shardfile import index_address
from wdscli.storage import Source, is_local, is_stream, open_source, read_all
from wdscli.storage.addresses import local_path
from wdscli.tar import CANONICAL, ByteSource, Form, Scanner

_PIECE_BYTES = 1 << 20


def find_index(address: str, source: Source, warn: Callable[[str], None] | None = None) -> Index | None:
    """The index of the shard at ``address``, open as ``source``; None when there is none that can be believed.

    ``warn`` is told of an index that is there but stale. Nothing is asked of the storage for streams and for
    compressed shards, whose bytes an index cannot reach.
    """
    if is_stream(address) or not source.seekable:
        return None
    place = index_address(address)
    if is_local(place) and not os.path.exists(local_path(place)):
        return None
    try:
        index = parse_index(read_all(place), place)
    except InputError:
        return None
    except DataError as error:
        reason: str | None = error.message
    else:
        reason = why_stale(index, address, place, source)
    if reason is None:
        return index
    if warn is not None:
        warn(f"{place} is not used: {reason} (make it again with `wds index`)")
    return None


def is_shard(address: str, shard: ShardInfo, form: Form = CANONICAL) -> bool:
    """Whether the bytes at ``address`` are those of ``shard``: by checksum, without one by size and headers. Raises
    InputError."""
    with open_source(address, decompress=False) as source:
        if source.size != shard.size_bytes:
            return False
        algorithm = (shard.checksum or "none").partition(":")[0]
        digest = new_digest(algorithm)
        if digest is None:
            try:
                return scan_index(source, form)[0].digest() == shard.headers
            except WdsError:
                return False
        offset = 0
        while data := source.read_some(offset, _PIECE_BYTES):
            digest.update(data)
            offset += len(data)
        return written(algorithm, digest) == shard.checksum


def why_stale(index: Index, address: str, place: str, source: Source) -> str | None:
    """Why ``index`` must not be believed, or None. ``place`` is the index's own address."""
    if source.size is not None and source.size != index.size:
        return f"the shard has {source.size} bytes, the index was made for {index.size}"
    for row in {0, index.samples // 2, index.samples - 1} if index.samples else ():
        if not _says_the_same(index, row, source):
            return f"sample {row} of the shard is not where the index says"
    if _is_older(place, address) and scan_index(source, index.form)[0].digest() != index.digest:
        return "the shard was changed after the index was made"
    return None


def _says_the_same(index: Index, row: int, source: ByteSource) -> bool:
    """Whether a scan of one sample's first header gives the name, the payload's place and the size of the index."""
    start = int(index.starts[row])
    member = int(index.member_ends[row - 1]) if row else 0
    offset, size = int(index.member_offsets[member]), int(index.member_sizes[member])
    if offset - start > 1 << 21:
        return False
    scanner = Scanner(first=start, form=index.form)
    try:
        scanner.feed(source.read_at(start, offset - start), start)
        columns = scanner.take()
    except DataError:
        return False
    name = index.key(row) + b"." + index.fields[int(index.member_fields[member])]
    return columns.names[:1] == [name] and columns.offsets[:1] == [offset] and columns.sizes[:1] == [size]


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


def batches(
    address: str,
    source: Source,
    *,
    form: Form = CANONICAL,
    use_index: bool = True,
    ignored: Ignored | None = None,
    warn: Callable[[str], None] | None = None,
) -> Iterator[SampleBatch]:
    """The samples of a shard as columns, from its index when there is one to believe, else by a scan.

    An index made for another ``form`` is not used.
    """
    index = index_for(address, source, form, warn) if use_index else None
    if index is None:
        yield from iter_batches(source, form=form, ignored=ignored)
        return
    yield from index_batches(index, ignored)


def index_for(
    address: str, source: Source, form: Form, warn: Callable[[str], None] | None = None
) -> Index | None:
    """:func:`find_index`, but None for an index that was made for another ``form``, because its marks speak of that."""
    index = find_index(address, source, warn)
    return index if index is not None and index.form == form else None


def index_batches(index: Index, ignored: Ignored | None = None) -> Iterator[SampleBatch]:
    """The samples of an index as columns; the ignored members are counted."""
    if ignored is not None:
        for reason, count in index.ignored.items():
            ignored.add(reason, count)
    for first in range(0, index.samples, BATCH):
        yield index.batch(first, first + BATCH)


BATCH = 4096
