"""Whole shards that a store copies itself, so that no byte of a payload travels.

What it is: :func:`find_original`, which tells whether the shard at an address, written anew, would have the bytes that
it has; and :func:`copied`, which has it copied. How: the index, and what was noted beside it, say all of it: that every
sample is canonical and nothing lies between them, the checksum, and the ETag of the version that this is true of; the
store is asked to copy that version and no other. Where it does not, the shard is read and written as any other, which
also tells what is wrong. It must not know what a command wants, nor requests.
"""

from __future__ import annotations

from contextlib import suppress

from wdscli.model import ShardInfo
from wdscli.shards.index import Index
from wdscli.shards.reading import read_index
from wdscli.shards.writing import ShardSettings
from wdscli.storage import is_local, is_stream
from wdscli.storage.blocks import kind_of_name
from wdscli.storage.ends import NotCopied
from wdscli.storage.kinds import tells_bytes
from wdscli.tar import END_OF_ARCHIVE


def find_original(address: str, output: str, settings: ShardSettings) -> Index | None:
    """The index of a shard that a store can copy to another address; None for one that has to be read, and written in
    its canonical form."""
    if any(is_stream(one) or is_local(one) or kind_of_name(one) is not None for one in (address, output)):
        return None
    index = read_index(address).found
    if index is None or not tells_bytes(index.noted) or index.form != settings.form:
        return None
    if settings.checksum not in ("none", index.checksum.partition(":")[0]):
        return None
    ends = index.starts + index.lengths
    is_whole = index.samples > 0 and int(ends[-1]) + len(END_OF_ARCHIVE) == index.size and not index.starts[0]
    is_canonical = not (index.ignored or index.marks.any() or (index.starts[1:] != ends[:-1]).any())
    return index if is_whole and is_canonical else None


def copied(address: str, index: Index, output: str, settings: ShardSettings) -> ShardInfo | None:
    """The shard at an address, with this index (:func:`find_original`), under another; None where the store has not
    copied it. Raises OutputError."""
    checksum = None if settings.checksum == "none" else index.checksum
    with suppress(NotCopied), settings.open(output) as shard:
        return shard.commit_copy(address, index, checksum)
    return None
