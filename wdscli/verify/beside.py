"""This module compares manifests, indexes and checksums with the shards.

:func:`find_listings` finds the manifest entries of shards. Other functions report disagreements to a shard's ledger. If
a manifest is given on the command line, only this manifest is used. Otherwise every ``*manifest.json`` in the shards'
folders that lists one of the shards is used, on any store that can be listed. Two things are findings: a manifest lists
a shard that does not exist, or it lacks a shard with its prefix. If only some shards of a set are checked, this is no
finding. The index is compared with the scan by the digest of its columns. The checksum is computed over the stored
file, compressed or not.

This module does not know how shards are scanned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from wdscli.errors import DataError, StorageError, UsageError, WdsError
from wdscli.executors import tick_of_task
from wdscli.model import UNKNOWN, Facts, ShardInfo, contradictions
from wdscli.shards.index import Index, IndexBuilder, index_address
from wdscli.shards.inputs import MANIFEST_SUFFIX, ShardSet, names_in, read_manifest
from wdscli.shards.manifest import ContradictoryManifestError, Manifest
from wdscli.shards.proof import Evidence, difference, proven_by, read_index
from wdscli.shards.reading import Digest, checksum_of, new_digest
from wdscli.storage import Source, base_name, folder_of, is_stream, open_source, read_all
from wdscli.storage.ends import replaced
from wdscli.text import to_bytes
from wdscli.verify.findings import Ledger
from wdscli.verify.profiles import Fields


class ManifestEntry(NamedTuple):
    """The entry of one shard in the manifest at ``manifest``. ``required`` are the fields that every sample had when
    the set was written."""

    manifest: str
    shard: ShardInfo
    required: Fields


def find_listings(shards: ShardSet, limit: int) -> tuple[dict[str, ManifestEntry], list[Ledger]]:
    """Return the manifest entry of each listed shard, and findings about the set."""
    listings: dict[str, ManifestEntry] = {}
    ledgers: list[Ledger] = []
    if shards.manifest is not None:
        manifest_address = shards.manifest_address or ""
        required = tuple(map(to_bytes, shards.manifest.common_fields))
        for address, shard in zip(shards.addresses, shards.manifest.shards):
            listings[address] = ManifestEntry(manifest_address, shard, required)
        return listings, ledgers
    folders: dict[str, list[str]] = {}
    for address in shards.addresses:
        if not is_stream(address):
            folders.setdefault(folder_of(address), []).append(address)
    for folder, addresses in folders.items():
        names = set(names_in(folder, shards.listings))
        manifests = _manifests_of(
            folder, names, {base_name(address) for address in addresses}, ledgers, limit
        )
        if shards.listings is not None:
            shards.listings.manifests.update(manifests)
        for manifest_address, manifest in manifests.items():
            required = tuple(map(to_bytes, manifest.common_fields))
            by_name = {shard.name: shard for shard in manifest.shards}
            for address in addresses:
                if (listed := by_name.get(base_name(address))) is not None:
                    listings[address] = ManifestEntry(manifest_address, listed, required)
        ledgers += _strays(addresses, listings, limit)
    return listings, ledgers


def _manifests_of(
    folder: str, folder_names: set[str], shard_names: set[str], ledgers: list[Ledger], limit: int
) -> dict[str, Manifest]:
    """Return the manifests of a folder that list one of the shards ``names``, by address. Report missing shards and
    unreadable manifests."""
    manifests = {}
    for file_name in sorted(folder_names):
        if not file_name.endswith(MANIFEST_SUFFIX):
            continue
        ledger = Ledger(folder + file_name, limit)
        ledgers.append(ledger)
        try:
            manifest = _manifest(folder + file_name, ledger)
        except DataError as error:
            # Other tools use the name manifest.json too, so report only a file that may belong to these shards.
            prefix = file_name.removesuffix(MANIFEST_SUFFIX)
            is_listed = any(name.startswith(prefix) for name in shard_names)
            if is_listed if prefix else b'"shardlist"' in read_all(folder + file_name):
                ledger.add("manifest-mismatch", error.message)
        except WdsError as error:
            ledger.add("unreadable", error.message)
        else:
            if any(shard.name in shard_names for shard in manifest.shards):
                manifests[folder + file_name] = manifest
                for shard in manifest.shards:
                    if "/" not in shard.name and shard.name not in folder_names:
                        ledger.add("manifest-mismatch", f"it lists {shard.name}, which does not exist")
    return manifests


def _manifest(address: str, ledger: Ledger) -> Manifest:
    """Return the manifest at an address. Report a manifest that contradicts itself."""
    try:
        return read_manifest(address)
    except ContradictoryManifestError as error:
        ledger.add_error(error)
        return error.manifest


def _strays(addresses: Sequence[str], listings: dict[str, ManifestEntry], limit: int) -> Iterator[Ledger]:
    """Return a finding for each shard that has a manifest's prefix but is not listed in any manifest."""
    manifests = sorted({listings[address].manifest for address in addresses if address in listings})
    for address in addresses:
        for manifest in manifests if address not in listings else ():
            prefix = base_name(manifest).removesuffix(MANIFEST_SUFFIX)
            if prefix and base_name(address).startswith(prefix):
                ledger = Ledger(address, limit)
                ledger.add("manifest-mismatch", f"{manifest} does not list the shard")
                yield ledger
                break


def load_index(address: str, source: Source, ledger: Ledger) -> Index | None:
    """Return the index of a shard for :func:`check_index`, or None if there is no index. Report an index that is
    damaged, or that belongs to another shard."""
    if is_stream(address) or not source.seekable:
        return None
    stored = read_index(address, has_columns=False)
    if stored.index is None:
        if stored.damage:
            ledger.add("stale-index", stored.damage)
        return None
    reason = proven_by(stored.index, Evidence.of_source(address, source))[1]
    if reason:
        ledger.add("stale-index", f"{index_address(address)} is for another shard: {reason}")
    return None if reason else stored.index


def check_index(
    index: Index, builder: IndexBuilder, ignored: dict[str, int], address: str, ledger: Ledger
) -> None:
    """Compare an index with a scan of the whole shard."""
    reason = difference(index, builder, ignored)
    if reason:
        ledger.add("stale-index", f"{index_address(address)}: {reason}")


def check_size(address: str, listing: ManifestEntry, size: int, ledger: Ledger) -> None:
    """Compare the size of a shard, damaged or not, with the manifest. ``size`` is the size of the tar."""
    told = listing.shard.size_bytes
    if told < 0 or told == size:
        return
    if not is_stream(address):
        # For a compressed shard, the size of the file is not the size of the tar.
        with open_source(address, decompress=False) as source:
            if source.size == told:
                return
    ledger.add("manifest-mismatch", f"{listing.manifest} says {told} bytes, the shard has {size}")


def check_listed(listing: ManifestEntry, samples: int, builder: IndexBuilder | None, ledger: Ledger) -> None:
    """Compare an undamaged shard with its entry in the manifest."""
    shard = Facts(samples, UNKNOWN, "", {}) if builder is None else builder.facts()
    for contradiction in contradictions(listing.shard, shard):
        ledger.add("manifest-mismatch", f"{listing.manifest} {contradiction}")


def checksum_digest(listing: ManifestEntry | None) -> Digest | None:
    """Return an empty digest with the algorithm of a shard's checksum in the manifest. Return None if there is no
    checksum, or an unknown algorithm."""
    if listing is None or listing.shard.checksum is None:
        return None
    try:
        return new_digest(listing.shard.checksum.partition(":")[0])
    except UsageError:
        return None


def check_checksum(
    address: str,
    listing: ManifestEntry | None,
    ledger: Ledger,
    version: str | None,
    digest: str | None = None,
) -> None:
    """Compare a shard's bytes with the checksum in the manifest. ``version`` is the version of the bytes with checked
    headers. It is None if they could not be read; this was already reported. ``digest`` is the digest of the bytes, if
    it is already known."""
    if is_stream(address):
        ledger.add("unchecked", "a stream has no checksum")
        return
    if listing is None or listing.shard.checksum is None:
        ledger.add("unchecked", "no manifest has a checksum of this shard")
        return
    algorithm, _, expected = listing.shard.checksum.partition(":")
    try:
        if new_digest(algorithm) is None:
            raise UsageError("no checksum to compute")
        if digest is None:
            with open_source(address, decompress=False, whole=True) as source:
                digest = (checksum_of(source, algorithm, tick_of_task()) or "").partition(":")[2]
                source.confirm()
                if version and version != source.version:
                    raise replaced(address)
    except UsageError:
        ledger.add("unchecked", f'the manifest has a checksum of the unknown kind "{algorithm}"')
        return
    except StorageError as error:
        if version is not None:
            ledger.add("unreadable", error.message, hint=error.hint)
        return
    if digest != expected:
        ledger.add(
            "checksum-mismatch",
            f"{base_name(address)} was changed: its {algorithm} is {digest}, the manifest has {expected}",
        )
