"""``--if-changed``: whether a set has to be made at all, as make has it, and whether it may be replaced.

What it is: :func:`stamped`, a request with the stamp of what it would read and do; :func:`standing_sets`, the sets that
were made with the same stamp and are there; :func:`check_replaceable`. How: a stamp is a digest over the command, its
options, and of every input the fingerprint of its set, where a manifest that is not older than the shards tells it,
else address, size, and time or version. It goes into the manifest, and only with this option, so that other manifests
say nothing of times. It must not know how a set is made.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from wdscli.errors import InputError, OutputExistsError, UsageError, WdsError
from wdscli.plan.cut import Outputs, names_of
from wdscli.plan.inputs import Stamp
from wdscli.plan.orders import Order
from wdscli.plan.plan import open_sets, shaping_options
from wdscli.plan.planfile import digest_of
from wdscli.plan.request import Request
from wdscli.run.resume import are_there, list_folders
from wdscli.shards.inputs import ShardSet, manifest_beside, read_manifest
from wdscli.shards.manifest import APPENDED, Manifest
from wdscli.shards.writing import OutputSet, ShardSettings
from wdscli.storage import (
    base_name,
    exists,
    expand,
    folder_of,
    is_local,
    is_stream,
    local_path,
    open_source,
    read_all,
)
from wdscli.storage.opening import at_once
from wdscli.storage.patterns import NAME

_SOMEWHERE = "wdscli-any-part"


@dataclass(frozen=True, slots=True)
class Stamped:
    """A request that goes by a stamp, and the sets that are there already: by the name of their part, none to make."""

    request: Request
    standing: dict[str, Manifest]


def stamped(request: Request, order: Order, *, dry_run: bool = False) -> Stamped:
    """Look whether anything has changed. Raises UsageError for what nobody can look at again, InputError."""
    if request.plan_file is not None:
        raise UsageError("--if-changed and --plan exclude each other")
    shards, sets = open_sets(request)
    wanted = stamp_of(request, order, shards, sets)
    names = names_of(shards.addresses) if NAME in request.output else None
    outputs = Outputs(request.output, request.settings, names=names, may_exist=True)
    found = standing_sets(outputs, wanted)
    for part, manifest in found.items() if not dry_run else ():
        tidy_set(outputs.set_of(part or "part"), manifest)
    # What is there may be replaced once it was looked at: see check_replaceable.
    replacing = request._replace(
        settings=request.settings._replace(force=True), if_changed=not request.settings.force, stamp=wanted
    )
    return Stamped(replacing, found)


def stamp_of(request: Request, order: Order, shards: ShardSet, sets: Sequence[int]) -> str:
    """The stamp of what a command that reorders would read and do."""
    for address in shards.addresses:
        check_seen(address)
    rule = request.selection.key_rule
    files = [] if rule is None else list(rule.files)
    files += order.other_files()
    for address in files:
        check_seen(address)
    return stamp(
        order.operation,
        {**order.options(), **shaping_options(request)},
        order.seed,
        request.settings,
        [request.on_error, request.allow_empty, request.post, list(sets)],
        [*_stamps(shards), *(digest_of(os.fsdecode(read_all(address))) for address in files)],
    )


def stamp(
    operation: str, options: Any, seed: int | None, settings: ShardSettings, more: Any, inputs: Sequence[Any]
) -> str:
    """The digest of all this."""
    how = [settings.form, settings.checksum, settings.with_index]
    return f"xxh3_128:{digest_of([operation, options, seed, how, more, list(inputs)])}"


def check_seen(address: str) -> None:
    """Raise UsageError for an input that can be read only once."""
    if is_stream(address):
        raise UsageError(
            f"--if-changed does not see whether {address} has changed", hint="name files, or leave it out"
        )


def _stamps(shards: ShardSet) -> Iterator[Any]:
    """What tells inputs from others."""
    addresses = shards.addresses
    list_folders(addresses)
    stamps = [Stamp(*one) for one in at_once(source_stamp, addresses)]
    told = _fingerprint(shards, stamps)
    if told is not None:
        yield told
        return
    for address, one in zip(addresses, stamps):
        yield [base_name(address), one.size_bytes, one.version]


def source_stamp(address: str) -> tuple[int, str]:
    """Size, and time of change or version, of what lies at an address. Raises InputError, UsageError
    where nobody tells."""
    if is_local(address):
        try:
            status = os.stat(local_path(address))
        except OSError as error:
            raise InputError(f"cannot read {address}: {error.strerror}", cause=error) from None
        return status.st_size, f"mtime:{status.st_mtime_ns}"
    with open_source(address, decompress=False) as source:
        if not source.version:
            raise UsageError(
                f"--if-changed does not see whether {address} has changed: its store tells no version of it",
                hint="leave out --if-changed, or copy it here first",
            )
        return source.size or 0, source.version


def _fingerprint(shards: ShardSet, stamps: Sequence[Stamp]) -> str | None:
    """That of a set on this machine whose manifest is not older than its shards; None for any other."""
    found = None
    if shards.manifest is not None and shards.manifest_address is not None:
        found = shards.manifest_address, shards.manifest
    elif all(map(is_local, shards.addresses)):
        found = manifest_beside(shards.addresses, shards.given)
    if found is None or not all(map(is_local, [found[0], *shards.addresses])):
        return None
    address, manifest = found
    if [base_name(one.name) for one in manifest.shards] != list(map(base_name, shards.addresses)):
        return None
    if [one.size_bytes for one in manifest.shards] != [one.size_bytes for one in stamps]:
        return None
    told = os.stat(local_path(address)).st_mtime_ns
    times = (os.stat(local_path(one)).st_mtime_ns for one in shards.addresses)
    return manifest.fingerprint if all(time <= told for time in times) else None


def standing_sets(outputs: Outputs, wanted: str | None) -> dict[str, Manifest]:
    """The sets of an output that were made with this stamp, all parts of them and all their shards; empty when
    something is not there. Raises UsageError for an output that nobody can look at."""
    found: dict[str, Manifest] = {}
    for part in _parts(outputs, wanted) if outputs.has_parts else [""]:
        manifest = standing_set_of(outputs.set_of(part or "part"), wanted)
        if manifest is None:
            return {}
        found[part] = manifest
    return found


def standing_set_of(output: OutputSet, wanted: str | None) -> Manifest | None:
    """The set of an output, if it was made with this stamp and all of it is there. Raises UsageError for an output that
    nobody can look at."""
    if output.manifest_address is None:
        raise UsageError(
            f"--if-changed does not see what went to {output.pattern.text}", hint="it is for shards in files"
        )
    try:
        manifest = read_manifest(output.manifest_address)
    except WdsError:
        return None
    is_wanted = manifest.made.get("stamp") == wanted and output.state.read() is None
    return manifest if is_wanted and _is_there(output, manifest) else None


def _parts(outputs: Outputs, wanted: str | None) -> list[str]:
    """The names of the parts, as any of their manifests tells them."""
    address = outputs.set_of(_SOMEWHERE).manifest_address or ""
    try:
        addresses = expand(address.replace(_SOMEWHERE, "*"))
    except WdsError:
        return []
    for one in addresses:
        try:
            made = read_manifest(one).made
        except WdsError:
            continue
        parts = made.get("parts")
        if (
            made.get("stamp") == wanted
            and isinstance(parts, list)
            and all(isinstance(one, str) for one in parts)
        ):
            return parts
    return []


def _is_there(output: OutputSet, manifest: Manifest) -> bool:
    """Whether all shards of a set are there, by their sizes."""
    folder = folder_of(output.manifest_address or "")
    addresses = [folder + shard.name for shard in manifest.shards]
    return are_there(addresses, manifest.shards, output.settings.form)


def tidy_set(output: OutputSet, manifest: Manifest) -> None:
    """Remove the receipts of a complete set, which a run that was ended right after its manifest has left."""
    folder = folder_of(output.manifest_address or "")
    output.tidy([folder + shard.name for shard in manifest.shards])


def check_replaceable(output: OutputSet, operation: str) -> None:
    """Raise OutputExistsError where something is there that is no set of the same command, nor what a run of ours that
    was ended early has left."""
    address = output.manifest_address or ""
    if exists(address):
        try:
            made = read_manifest(address).made
        except WdsError:
            made = {}
        if made.get("operation") != operation:
            raise _in_the_way(f"{address} is there, and is not of a set that `wds {operation}` made")
        if made.get(APPENDED):
            raise _in_the_way(f"shards were added to the set of {address}, which would be lost")
        return
    there = output.existing()
    if there and output.state.read() is None:
        raise _in_the_way(f"{there[0]} is there, and no manifest says who made it")


def _in_the_way(text: str) -> OutputExistsError:
    return OutputExistsError(text, hint="choose another name, or replace it with --force")
