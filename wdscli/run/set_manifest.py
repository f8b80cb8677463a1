"""The manifest of shards that are there: what it says so far, and what it should say.

What it is: the part of ``index`` that deals with the set as a whole. How: a manifest that is there is a promise. One
that says the same stays; one that leaves facts open is completed, and keeps what it tells of how the set was made; one
that a shard contradicts is told, not papered over. It must not read shards.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from wdscli.errors import DataError, OutputExistsError
from wdscli.model import ShardInfo
from wdscli.shards.dialects import SetPlace
from wdscli.shards.inputs import MANIFEST_SUFFIX, ShardSet, read_manifest
from wdscli.shards.manifest import Manifest, common_folder, name_from, set_prefix
from wdscli.storage import exists, folder_of, is_local, is_stream, open_sink
from wdscli.storage.addresses import local_path


class Side(NamedTuple):
    """One file that the command is about: ``state`` is ``kept`` or ``made``, ``reason`` why it was (or, with
    ``dry_run``, would be) made. ``of`` is the shard's address, None for a file of the set."""

    address: str
    state: str
    reason: str = ""
    of: str | None = None


class SetPlan:
    """Where the set lies, what it is called and what its manifest says so far."""

    def __init__(self, shards: ShardSet, manifest: str | None, with_manifest: bool) -> None:
        self._addresses = shards.addresses
        self.manifest = (manifest or shards.manifest_address or self._default()) if with_manifest else None
        folder = folder_of(self.manifest) if self.manifest and not is_stream(self.manifest) else None
        self.place = SetPlace(
            common_folder(self._addresses) if folder is None else folder, set_prefix(self._addresses)
        )
        self.old = self._read_old()
        self._known = {shard.name: shard for shard in self.old.shards} if self.old else {}

    def _default(self) -> str:
        prefix = set_prefix(self._addresses)
        return common_folder(self._addresses) + (f"{prefix}-{MANIFEST_SUFFIX}" if prefix else MANIFEST_SUFFIX)

    def _read_old(self) -> Manifest | None:
        if not self.manifest or is_stream(self.manifest) or not exists(self.manifest):
            return None
        try:
            return read_manifest(self.manifest)
        except DataError:
            return None

    def lists_these(self) -> bool:
        """Whether the manifest that is there lists these shards, in this order."""
        names = [self.name(address) for address in self._addresses]
        return self.old is not None and [shard.name for shard in self.old.shards] == names

    def check(self) -> None:
        """Raise OutputExistsError when something else lies where the manifest goes."""
        address = self.manifest
        if address and not is_stream(address) and exists(address) and not self.lists_these():
            what = "is no manifest" if self.old is None else "is the manifest of other shards"
            raise OutputExistsError(
                f"{address} is there and {what}",
                hint="choose another name with -o, leave it alone with --no-manifest, or replace it with --force",
            )

    def name(self, address: str) -> str:
        """The name of a shard in the manifest."""
        return name_from(self.place.folder, address)

    def known(self, address: str) -> ShardInfo | None:
        """What the manifest says of a local shard that was not touched since: nothing reads payloads twice to hear the
        same."""
        shard = self._known.get(self.name(address))
        if shard is None or not self.manifest or not (is_local(address) and is_local(self.manifest)):
            return None
        try:
            changed = (
                os.stat(local_path(address)).st_mtime_ns > os.stat(local_path(self.manifest)).st_mtime_ns
            )
        except OSError:
            return None
        return None if changed else shard


def write_manifest(
    plan: SetPlan, shards: tuple[ShardInfo, ...], force: bool, dry_run: bool
) -> tuple[Manifest, Side]:
    """Write the manifest unless the one that is there says the same, or complete it. Raises DataError when it says
    something else and ``force`` is not given."""
    address = plan.manifest or ""
    old = plan.old if plan.lists_these() else None
    if old is not None and dry_run:
        shards = tuple(replace(shard, checksum=told.checksum) for shard, told in zip(shards, old.shards))
    difference = _first_difference(address, old, shards) if old is not None else None
    if difference is not None and not force:
        raise difference
    if old is None or difference is not None:
        made = Manifest(plan.place.prefix, shards, {"operation": "index", "options": {}, "inputs": []})
    else:
        # How the set was made is for the manifest to remember; only what the shards show is new.
        made = replace(old, shards=shards)
    if made == old and not force:
        return made, Side(address, "kept")
    reason = "it lacked facts"
    if is_stream(address) or not exists(address):
        reason = "there was none"
    elif force:
        reason = "forced"
    if not dry_run:
        with open_sink(address, force=force or old is not None) as sink:
            sink.write(made.to_json().encode("ascii"))
    return made, Side(address, "made", reason)


def _first_difference(address: str, old: Manifest, shards: Sequence[ShardInfo]) -> DataError | None:
    """The error for the first shard of which the manifest says what is not so."""
    for told, shard in zip(old.shards, shards):
        difference = _difference(told, shard)
        if difference:
            return DataError(
                f"{address} is not true any more: {difference}",
                code="manifest-mismatch",
                shard=shard.name,
                hint="if the shard is right and the manifest is not, make it anew with --force",
            )
    return None


def _difference(told: ShardInfo, shard: ShardInfo) -> str | None:
    """What a manifest says of a shard and the shard does not show; what it leaves open is no difference."""
    if told.size_bytes not in (-1, shard.size_bytes):
        return f"it says {told.size_bytes} bytes, the shard has {shard.size_bytes}"
    if told.samples != shard.samples:
        return f"it says {told.samples} samples, the shard has {shard.samples}"
    if told.headers not in ("", shard.headers):
        return "the shard's headers are not those it was made for"
    one, other = told.checksum or "", shard.checksum or ""
    if one and other and one.partition(":")[0] == other.partition(":")[0] and one != other:
        return "the shard's bytes are not those it was made for"
    return None
