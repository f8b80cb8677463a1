"""This module copies whole shards without a transfer of payloads: a store makes the copy, or a disc gets a hard link.

:func:`find_original` checks whether a shard would have the same bytes if it were written again. :func:`copied` makes
the store copy it, or links it. If a view's shard is a whole base, its base is copied. The index proves that the bytes
stay the same: every sample is canonical, and there is nothing between samples. On a store, the index also names the
version and its checksum, and the store copies exactly that version. If the store refuses, the shard is read and written
like any other shard, and errors are reported then. This module does not know commands or requests.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from wdscli.errors import WdsError
from wdscli.model import ShardInfo
from wdscli.shards.index import Index
from wdscli.shards.proof import Proof, ProvenIndex, prove_index, read_index
from wdscli.shards.reading import checksum_of
from wdscli.shards.view_shards import whole_base
from wdscli.shards.writing import ShardSettings
from wdscli.storage import is_local, is_stream, open_source
from wdscli.storage.blocks import kind_of_name
from wdscli.storage.ends import NotCopied
from wdscli.storage.kinds import stored_version


@dataclass(frozen=True, slots=True)
class Original:
    """A shard that can be copied unchanged: its address, the version to copy, its index, and its checksum. The version
    is the argument of :meth:`Sink.copy_of <wdscli.storage.ends.Sink.copy_of>`."""

    address: str
    version: str
    index: Index
    checksum: str | None


def find_original(address: str, output: str, settings: ShardSettings) -> Original | None:
    """Return the shard that a store can copy to ``output``, or that can be linked there. For a view's shard, this may
    be its base. Return None if the shard at ``address`` must be read and written in canonical form."""
    base = whole_base(address)
    address = address if base is None else base[0]
    if is_local(address) != is_local(output) or (is_local(output) and not settings.links):
        return None
    if any(is_stream(place) or kind_of_name(place) is not None for place in (address, output)):
        return None
    checksum = None if base is None else base[1].checksum
    original = _local(address, checksum, settings) if is_local(address) else _remote(address, settings)
    if original is None:
        return None
    index = original.index
    if not (index.samples and index.is_canonical) or index.ignored or index.form != settings.form:
        return None
    is_base = base is None or (index.digest, index.size) == (base[1].headers, base[1].size_bytes)
    return original if is_base else None


def _remote(address: str, settings: ShardSettings) -> Original | None:
    stored = read_index(address)
    pinned = stored.pinned
    if stored.index is None or pinned is None or pinned.index is None:
        return None
    # The copy has the bytes of the named version, and so the same checksums.
    pinned.index.checksums = stored.index.checksums
    checksum = None if settings.checksum == "none" else pinned.index.checksum
    is_known = checksum is None or checksum.partition(":")[0] == settings.checksum
    version = stored_version(address, pinned.version)
    return Original(address, version, pinned.index, checksum) if is_known else None


def _local(address: str, checksum: str | None, settings: ShardSettings) -> Original | None:
    """Return the original for a local shard. Its checksum is ``known``, unless the shard may have other payloads
    now."""
    with suppress(WdsError), open_source(address) as source:
        proven = ProvenIndex() if source.fd is None else prove_index(address, source)
        if proven.index is None:
            return None
        is_known = checksum is not None and checksum.partition(":")[0] == settings.checksum
        if not (is_known and proven.proof is Proof.PAYLOADS):
            checksum = checksum_of(source, settings.checksum)
        return Original(address, proven.version, proven.index, checksum)
    return None


def copied(original: Original, output: str, settings: ShardSettings) -> ShardInfo | None:
    """Copy or link the shard from :func:`find_original` to ``output``. Return None if this is not possible. Raises
    OutputError."""
    with suppress(NotCopied), settings.open(output) as shard:
        return shard.commit_copy(original.address, original.version, original.index, original.checksum)
    return None
