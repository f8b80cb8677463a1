"""This module has the digests by which ``--if-changed`` and ``--resume`` detect changed inputs.

With ``--if-changed``, the manifest contains the :func:`input_digest`. For ``--resume``, :func:`same_inputs` compares
the inputs of a kept plan. A digest covers the command, its options and every input. For a set with a manifest that is
not older than its shards, the digest uses the set's fingerprint. For other inputs, it uses address, size, and time or
version. Only ``--if-changed`` puts times into a manifest.

This module does not know which parts of the output exist.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from wdscli.errors import InputError, UsageError
from wdscli.plan.inputs import Input, Stamp
from wdscli.plan.orders import Order
from wdscli.plan.plan import shaping_options
from wdscli.plan.planfile import absolute, digest_of
from wdscli.plan.request import Request
from wdscli.shards.inputs import ShardSet, manifest_beside, names_in
from wdscli.shards.writing import ShardSettings
from wdscli.storage import base_name, folder_of, is_local, is_stream, local_path, open_source, read_all
from wdscli.storage.opening import at_once


def list_folders(addresses: Sequence[str]) -> None:
    """List each remote folder once. The listing has the sizes and versions of all files in it."""
    for folder in dict.fromkeys(folder_of(address) for address in addresses if not is_local(address)):
        names_in(folder)


def input_digest(request: Request, order: Order, shards: ShardSet, sets: Sequence[int]) -> str:
    """Return the digest of a reordering command's inputs and options. Raises InputError, and UsageError for inputs that
    cannot be checked."""
    rule = request.selection.key_rule
    files = [] if rule is None else list(rule.files)
    files += order.other_files()
    for address in [*shards.addresses, *files]:
        if is_stream(address):
            raise UsageError(
                f"--if-changed cannot check whether {address} has changed",
                hint="give files as inputs, or leave out --if-changed",
            )
    return run_digest(
        order.operation,
        {**order.options(), **shaping_options(request)},
        order.seed,
        request.settings,
        [request.on_error, request.allow_empty, request.post, list(sets)],
        [*_versions_of(shards), *(digest_of(os.fsdecode(read_all(address))) for address in files)],
    )


def run_digest(
    operation: str, options: Any, seed: int | None, settings: ShardSettings, rules: Any, inputs: Sequence[Any]
) -> str:
    """Return the digest of everything that decides the bytes of a set."""
    how = [settings.form, settings.checksum, settings.with_index, *settings.values]
    return f"xxh3_128:{digest_of([operation, options, seed, how, rules, list(inputs)])}"


def _versions_of(shards: ShardSet) -> Iterator[Any]:
    """Return the fingerprint of a set, or name, size and version of each shard."""
    list_folders(shards.addresses)
    stamps = list(at_once(source_version, shards.addresses))
    if fingerprint := _fingerprint(shards, [size for size, _ in stamps]):
        yield fingerprint
        return
    for address, stamp in zip(shards.addresses, stamps):
        yield [base_name(address), *stamp]


def source_version(address: str) -> tuple[int, str]:
    """Return the size of an input, and its time of change or its version. Raises InputError, and UsageError if its
    store has no versions."""
    if is_local(address):
        try:
            status = os.stat(local_path(address))
        except OSError as error:
            raise InputError(f"cannot read {address}: {error.strerror}", cause=error) from None
        return status.st_size, f"mtime:{status.st_mtime_ns}"
    with open_source(address, decompress=False) as source:
        if not source.version:
            raise UsageError(
                f"--if-changed cannot check whether {address} has changed: its store has no versions",
                hint="leave out --if-changed, or copy the file to this machine first",
            )
        return source.size or 0, source.version


def _fingerprint(shards: ShardSet, sizes: Sequence[int]) -> str | None:
    """Return the fingerprint of a local set if its manifest is not older than its shards; otherwise None."""
    if shards.manifest is not None and shards.manifest_address is not None:
        address, manifest = shards.manifest_address, shards.manifest
    elif all(map(is_local, shards.addresses)) and (
        beside := manifest_beside(shards.addresses, shards.listings)
    ):
        address, manifest = beside
    else:
        return None
    if not all(map(is_local, [address, *shards.addresses])):
        return None
    listed = [(base_name(shard.name), shard.size_bytes) for shard in manifest.shards]
    if listed != list(zip(map(base_name, shards.addresses), sizes, strict=True)):
        return None
    newest = max((os.stat(local_path(shard)).st_mtime_ns for shard in shards.addresses), default=0)
    return manifest.fingerprint if newest <= os.stat(local_path(address)).st_mtime_ns else None


def same_inputs(inputs: Sequence[Input], addresses: Sequence[str]) -> tuple[Input, ...] | None:
    """Return the inputs of a kept plan under the current addresses. Return None if an input differs or has changed."""
    if [address.address for address in inputs] != list(map(absolute, addresses)):
        return None
    stamps = _stamps(addresses)
    same = all(address.stamp and address.stamp[:2] == now[:2] for address, now in zip(inputs, stamps))
    return tuple(Input(address, stamp=stamp) for address, stamp in zip(addresses, stamps)) if same else None


def _stamps(addresses: Sequence[str]) -> list[Stamp]:
    list_folders(addresses)
    return list(at_once(_stamp_of, addresses))


def _stamp_of(address: str) -> Stamp:
    with open_source(address, decompress=False) as source:
        return Stamp(source.size or 0, source.version, source.is_pinned)
