"""The manifests of the shards that are checked, and what is wrong with the set as a whole.

What it is: :func:`find_listings`, from shards to what manifests say of each. How: the manifest that was given
counts; without one, every ``*manifest.json`` in the shards' folders, on any store that can be listed, that lists one of
them. Of a manifest that was found, a listed shard that is not in the folder is a finding, and so is a shard of its
prefix that it does not list; checking some shards of a set is none.

It must not open shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wdscli.errors import DataError, WdsError
from wdscli.model import ShardInfo, to_bytes
from wdscli.shards.inputs import MANIFEST_SUFFIX, ShardSet, names_in, read_manifest
from wdscli.shards.manifest import Manifest
from wdscli.storage import base_name, folder_of, is_stream, read_all
from wdscli.verify.findings import Ledger


class Listing(NamedTuple):
    """What the manifest at ``manifest`` says of one shard. ``required`` are the fields that every sample of the set had
    when it was written."""

    manifest: str
    shard: ShardInfo
    required: tuple[bytes, ...]


class Listings(NamedTuple):
    """``of`` has the listing of each shard that has one; ``ledgers`` are findings about the set."""

    of: dict[str, Listing]
    ledgers: list[Ledger]


class Found(NamedTuple):
    """A manifest and its address."""

    address: str
    manifest: Manifest


def find_listings(shards: ShardSet, limit: int) -> Listings:
    """The manifests that speak of ``shards``."""
    if shards.manifest is not None:
        where, required = shards.manifest_address or "", _required(shards.manifest)
        listed = zip(shards.addresses, shards.manifest.shards)
        return Listings({address: Listing(where, shard, required) for address, shard in listed}, [])
    ledgers: list[Ledger] = []
    of: dict[str, Listing] = {}
    folders: dict[str, list[str]] = {}
    for address in shards.addresses:
        if not is_stream(address):
            folders.setdefault(folder_of(address), []).append(address)
    for folder, addresses in folders.items():
        names = {base_name(address) for address in addresses}
        for found in _beside(folder, set(names_in(folder, shards.given)), names, ledgers, limit):
            of.update(_listed(found, addresses))
        ledgers += _strays(folder, addresses, of, names, limit)
    return Listings(of, ledgers)


def _beside(folder: str, there: set[str], names: set[str], ledgers: list[Ledger], limit: int) -> list[Found]:
    """The manifests of a folder that list any of its shards that are checked, and what they list that is not there."""
    found = []
    for name in sorted(there):
        if not name.endswith(MANIFEST_SUFFIX):
            continue
        ledger = Ledger(folder + name, limit)
        try:
            manifest = read_manifest(folder + name)
        except DataError as error:
            if _is_meant_for(folder + name, names):
                ledger.add("manifest-mismatch", error.message)
        except WdsError as error:
            ledger.add("unreadable", error.message)
        else:
            if not any(shard.name in names for shard in manifest.shards):
                continue
            found.append(Found(folder + name, manifest))
            for shard in manifest.shards:
                if "/" not in shard.name and shard.name not in there:
                    ledger.add("manifest-mismatch", f"it lists {shard.name}, which is not there")
        ledgers.append(ledger)
    return found


def _is_meant_for(manifest: str, names: set[str]) -> bool:
    """Whether a file that cannot be read as a manifest was one for these shards; many a tool has a manifest.json."""
    prefix = _prefix(base_name(manifest))
    if prefix:
        return any(name.startswith(prefix) for name in names)
    return b'"shardlist"' in read_all(manifest)


def _listed(found: Found, addresses: Sequence[str]) -> dict[str, Listing]:
    by_name = {shard.name: shard for shard in found.manifest.shards}
    required = _required(found.manifest)
    return {
        address: Listing(found.address, by_name[base_name(address)], required)
        for address in addresses
        if base_name(address) in by_name
    }


def _strays(
    folder: str, addresses: Sequence[str], of: dict[str, Listing], names: set[str], limit: int
) -> list[Ledger]:
    """A finding for each shard that no manifest lists although it has the prefix of one."""
    manifests = {listing.manifest for address, listing in of.items() if folder_of(address) == folder}
    ledgers = []
    for address in addresses:
        if address in of:
            continue
        for manifest in sorted(manifests):
            prefix = _prefix(base_name(manifest))
            if prefix and base_name(address).startswith(prefix):
                ledger = Ledger(address, limit)
                ledger.add("manifest-mismatch", f"{manifest} does not list the shard")
                ledgers.append(ledger)
                break
    return ledgers


def _prefix(manifest_name: str) -> str:
    return manifest_name[: -len(MANIFEST_SUFFIX)]


def _required(manifest: Manifest) -> tuple[bytes, ...]:
    """The fields that every sample had when the manifest was written."""
    if not manifest.samples:
        return ()
    return tuple(to_bytes(name) for name, total in manifest.fields.items() if total.count == manifest.samples)
