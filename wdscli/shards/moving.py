"""This module lets a store copy whole shards by itself, so that no payload is transferred.

:func:`find_original` finds out whether a shard, written again, would keep its bytes. :func:`copied` has the store copy
it. The index and its stored note prove that the bytes stay the same: every sample is canonical, nothing lies between
them, and checksum and version are known for that version. The store copies that version and no other. If it refuses,
the shard is read and written like any other, which also reports what is wrong. This module does not know about commands
or requests.
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
    """The index of a shard that a store can copy to another address; None for a shard that has to be read and written
    in its canonical form."""
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
    """Copy the shard at an address, with its index from :func:`find_original`, to ``output``; None when the store did
    not copy it. Raises OutputError."""
    checksum = None if settings.checksum == "none" else index.checksum
    with suppress(NotCopied), settings.open(output) as shard:
        return shard.commit_copy(address, index, checksum)
    return None
