"""``index --adopt``: prove once that the shards of a set belong to its indexes, so that later readers need no proof.

A shard is read once, and compared with the checksums in its index and in the manifest. Then the shard's version is
noted: on S3 in the metadata of the index, on other stores in the index, and on this machine by the index's time of
change. With ``trust_sizes``, only the size and some headers are compared.
"""

from __future__ import annotations

from wdscli.errors import DataError
from wdscli.executors import tick_of_task
from wdscli.model import ShardInfo
from wdscli.shards.index import Index, IndexBuilder, parse_index
from wdscli.shards.proof import prove_index, read_index
from wdscli.shards.reading import index_batches, new_digest, written
from wdscli.storage import Source, open_sink, open_source, read_all
from wdscli.storage.kinds import note_of, stored_version
from wdscli.storage.opening import has_notes
from wdscli.tar.crc import StoreDigest


def adopt_shard(address: str, listed: ShardInfo | None, *, trust_sizes: bool, write: bool) -> ShardInfo:
    """Compare one shard with its index, and with its entry ``listed`` in the manifest, if any. With ``write``, note its
    version. Return its entry for the manifest. Raises DataError if the shard differs, if it has no index, and if there
    is no checksum to compare."""
    stored = read_index(address)
    if stored.index is None:
        raise _refused(address, stored.damage or "it has no index")
    index, checksum = stored.index, None if listed is None else listed.checksum
    with open_source(address, whole=not trust_sizes) as source:
        if trust_sizes:
            reason = prove_index(address, source, stored=stored).reason
        else:
            is_for_index = listed is not None and listed.headers == index.digest
            reason = _difference(index, source.stored, checksum if is_for_index else None)
        source.confirm()
        if reason:
            raise _refused(address, reason)
        if write:
            note_version(index, stored_version(address, source.version))
        return index.facts().of_shard(index.shard, source.stored.size or 0, checksum=checksum, index=True)


def _difference(index: Index, source: Source, checksum: str | None) -> str:
    """Read a shard once. Return how it differs from the checksums in its index, and from the manifest's checksum."""
    algorithm = (checksum or "none").partition(":")[0]
    digest, crcs, tick = new_digest(algorithm), StoreDigest(), tick_of_task()
    for data in source.pieces():
        crcs.update(data)
        if digest is not None:
            digest.update(data)
        tick(len(data))
    own = crcs.checksums() if index.checksums else {}
    if (own and own != index.checksums) or written(algorithm, digest) != checksum:
        return "its checksum differs"
    return "" if own or checksum else "neither its index nor the manifest has a checksum to compare"


def _refused(address: str, reason: str) -> DataError:
    hint = "copy the shard and its index again, or make a new index with `wds index --force`"
    return DataError(f"not adopted: {reason}", code="changed", shard=address, hint=hint)


def note_version(index: Index, version: str) -> None:
    """Write an index again with the version of its shard, unless it was replaced. Raises InputError, OutputError,
    DataError."""
    data = read_all(index.name)
    if parse_index(data, index.name).digest != index.digest:
        return
    if version and not has_notes(index.name):
        builder = IndexBuilder()
        for batch in index_batches(index):
            builder.add_batch(batch)
        builder.values = index.numbers
        about = {"shard": index.shard, "size": index.size, "form": index.form, "ignored": index.ignored}
        data = builder.to_bytes(**about, version=version, checksums=index.checksums)
    with open_sink(index.name, force=True) as sink:
        sink.write(data)
        sink.note = note_of(version)
