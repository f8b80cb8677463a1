"""What can be had of a shard that cannot be read to its end: an index of its whole samples.

It must not know who wants them, or what is said about the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wdscli.errors import StorageError
from wdscli.samples import Ignored
from wdscli.samples.salvage import salvaged_batches
from wdscli.storage import base_name, open_source

if TYPE_CHECKING:
    from wdscli.shards.index import Index


def salvaged_index(address: str) -> Index:
    """The samples of a damaged shard of which it can be told that they are whole; none of one that cannot be opened."""
    from wdscli.shards.index import IndexBuilder, parse_index

    builder, ignored, size = IndexBuilder(), Ignored(), 0
    try:
        with open_source(address) as source:
            size = source.size or 0
            for batch in salvaged_batches(source, lambda error: None, {}, ignored=ignored):
                builder.add_batch(batch)
    except StorageError:
        builder, size = IndexBuilder(), 0
    data = builder.to_bytes(shard=base_name(address), size=size, ignored=ignored.counts)
    return parse_index(data, address)
