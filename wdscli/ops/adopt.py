"""What ``index --adopt`` compares before a copied shard and its index count as belonging together.

:mod:`wdscli.ops.index` reads each shard once, and makes its index again with the shard's version. This module compares
both indexes. With ``--trust-sizes``, it compares only the size and some headers. This module writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from wdscli.errors import DataError
from wdscli.shards.index import Index
from wdscli.shards.proof import prove_index, read_index
from wdscli.storage import Source
from wdscli.tar.crc import agrees


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
