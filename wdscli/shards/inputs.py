"""From what a user names to the shards of a set, in order.

What it is: :func:`open_set`, which expands addresses (``wdscli.storage`` knows how) and manifests (this room does).
How: a manifest is a JSON file; its shards lie beside it unless it gives full addresses. It must not open shards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from wdscli.errors import DataError, InputError, WdsError
from wdscli.storage import (
    base_name,
    expand,
    folder_of,
    is_local,
    is_stream,
    list_folder,
    read_all,
)
from wdscli.storage.trust import shard_address

if TYPE_CHECKING:
    from wdscli.shards.manifest import Manifest

MANIFEST_SUFFIX = "manifest.json"


class ShardSet(NamedTuple):
    """Shards in order. ``manifest`` is the one that was given, when it alone was given."""

    addresses: list[str]
    manifest: Manifest | None
    manifest_address: str | None = None


def open_set(inputs: Sequence[str], *, trust_addresses: bool = False, pipes: bool = True) -> ShardSet:
    """The shards that ``inputs`` name: paths, folders, globs, braces, ``@lists``, streams, URLs and manifests.

    Manifests, and lists that were fetched, may name shards beside and below themselves, with ``trust_addresses`` any;
    commands are taken only from ``inputs`` and from local lists, without ``pipes`` from nowhere. Raises InputError for
    a name that matches nothing and for what may not be named, UsageError for a command that is not taken, DataError for
    a file that is no manifest.
    """
    addresses: list[str] = []
    manifest: Manifest | None = None
    manifest_address: str | None = None
    for text in inputs:
        for address in expand(text, trust_addresses=trust_addresses, pipes=pipes):
            if is_manifest_name(address):
                manifest_address, manifest = address, read_manifest(address)
                addresses.extend(shard_addresses(address, manifest, trust_addresses=trust_addresses))
            else:
                addresses.append(address)
    if manifest is not None and len(manifest.shards) == len(addresses):
        return ShardSet(addresses, manifest, manifest_address)
    return ShardSet(addresses, None)


def is_manifest_name(address: str) -> bool:
    """Whether an address is taken for a manifest: it ends in ``.json`` and is no stream."""
    return address.endswith(".json") and not is_stream(address)


def read_manifest(address: str) -> Manifest:
    """The manifest at ``address``. Raises InputError, DataError ``manifest-mismatch``."""
    # Here, because most calls name no manifest, and every command pays for what is imported above.
    from wdscli.shards.manifest import parse_manifest

    return parse_manifest(read_all(address), address)


def shard_addresses(manifest_address: str, manifest: Manifest, *, trust_addresses: bool = False) -> list[str]:
    """The addresses of a manifest's shards: as they stand when they are full addresses, else beside the manifest.
    Raises InputError for those that a manifest may not name, unless it is trusted."""
    return [shard_address(manifest_address, shard.name, trusted=trust_addresses) for shard in manifest.shards]


def manifest_beside(addresses: Sequence[str]) -> tuple[str, Manifest] | None:
    """Address and content of the manifest that lies beside local shards and lists exactly them, in any order, if any.

    Only local folders are looked through: on an object store this would cost a listing that nobody asked for.
    """
    folders = {folder_of(address) for address in addresses}
    if len(folders) != 1 or not all(is_local(address) for address in addresses):
        return None
    folder = folders.pop()
    names = sorted(base_name(address) for address in addresses)
    for name in _manifest_names(folder):
        try:
            manifest = read_manifest(folder + name)
        except WdsError:
            continue
        if sorted(shard.name for shard in manifest.shards) == names:
            return folder + name, manifest
    return None


def _manifest_names(folder: str) -> list[str]:
    try:
        return [name for name in list_folder(folder) if name.endswith(MANIFEST_SUFFIX)]
    except InputError:
        return []


def fingerprint_of(shards: ShardSet) -> str | None:
    """The fingerprint of the set that was named, from its manifest; None when there is none.

    The order counts: shards given in another order than the manifest's are another set.
    """
    if shards.manifest is not None:
        return shards.manifest.fingerprint
    try:
        found = manifest_beside(shards.addresses)
    except DataError:
        return None
    if found is None or [shard.name for shard in found[1].shards] != [base_name(a) for a in shards.addresses]:
        return None
    return found[1].fingerprint
