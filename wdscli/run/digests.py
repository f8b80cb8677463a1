"""This module answers whether two runs make the same shards: fingerprints of plans, and digests of inputs and options.

:func:`mark_of` is the fingerprint of a plan. Receipts have it, so ``--resume`` keeps only shards of the same plan.
:func:`shaping` has the options that decide the bytes, and :func:`differing_options` names the options in which two runs
differ. With ``--if-changed``, the manifest contains the :func:`input_digest`. For ``--resume``, :func:`same_inputs`
compares the inputs of a kept plan. A digest covers the command, its options and every input. For a set with a manifest
that is not older than its shards, the digest uses the set's fingerprint. For other inputs, it uses address, size, and
time or version. Only ``--if-changed`` puts times into a manifest.

This module does not know which parts of the output exist.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from xxhash import xxh3_128, xxh3_128_hexdigest

from wdscli.errors import InputError, UsageError
from wdscli.plan.inputs import Input, Stamp
from wdscli.plan.orders import Order
from wdscli.plan.plan import ReorderPlan, shaping_options
from wdscli.plan.planfile import absolute
from wdscli.plan.request import PlanMark, Request
from wdscli.selection.listed import is_set
from wdscli.shards.inputs import ShardSet, manifest_beside, names_in, open_set
from wdscli.shards.writing import ShardSettings
from wdscli.storage import base_name, folder_of, is_local, is_stream, local_path, open_source, read_all
from wdscli.storage.opening import at_once

FAILURES = "on_failure"
"""The name of an option of a transform. The option does not change the shards of a run without failures."""


def mark_of(plan: ReorderPlan) -> PlanMark:
    """Return the fingerprint of a plan. A stored plan has it in its file."""
    if plan.mark is not None:
        return plan.mark
    rows, contents = xxh3_128(), plan.contents
    for ordered in contents.row_lists:
        for block in ordered.blocks():
            rows.update(block.rows.tobytes())
    inputs = [
        [base_name(shard.address), shard.stamp.size_bytes, shard.stamp.version]
        for shard in contents.inputs
        if shard.stamp is not None
    ]
    shards = [
        [
            contents.outputs[shard.part].part,
            base_name(shard.address),
            shard.first,
            shard.end,
            shard.size_bytes,
            shard.members,
        ]
        for shard in contents.shards
    ]
    failures = (plan.transform or {}).get("on_failure", "stop")
    return PlanMark(
        digest_of([len(contents.inputs), *inputs]),
        shaping_mark(plan),
        rows.hexdigest(),
        digest_of(shards),
        "" if failures == "stop" else failures,
    )


def shaping_mark(plan: ReorderPlan) -> str:
    """Return the fingerprint of a plan's options."""
    return digest_of(shaping(plan))


def shaping(plan: ReorderPlan) -> dict[str, Any]:
    """Return everything that decides the bytes, except the inputs and the order of the samples."""
    settings, rekey = plan.request.settings, plan.contents.rekey
    rule = plan.request.selection.field_rule
    return {
        "operation": plan.provenance.operation,
        "options": {name: value for name, value in plan.provenance.options.items() if name != FAILURES},
        "seed": plan.provenance.seed,
        **shard_options(settings),
        "fields": rule and rule.plain(),
        "rekey": rekey and rekey.format,
    }


def shard_options(settings: ShardSettings) -> dict[str, Any]:
    """Return the settings that change the bytes of shards and indexes."""
    values = {"values": list(settings.values)} if settings.values else {}
    return {
        "form": list(settings.form),
        "checksum": settings.checksum,
        "index": settings.with_index,
        **values,
    }


def differing_options(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return the options of the command in which two runs differ. Each run is given by the result of :func:`shaping`.

    >>> differing_options({"options": {"max_count": 3}, "seed": 1}, {"options": {}, "seed": 2})
    ['--max-count', '--seed']
    """

    def differ(first: Any, second: Any, names: Iterable[str]) -> set[str]:
        plain = json.loads(json.dumps([first, second], default=str))
        return {name for name in names if plain[0].get(name) != plain[1].get(name)}

    before, after = first.get("options") or {}, second.get("options") or {}
    names = differ(before, after, {*before, *after}) | differ(
        first, second, ("seed", "checksum", "index", "values")
    )
    return sorted({option_of(str(first.get("operation")), name) for name in names})


def option_of(operation: str, name: str) -> str:
    """Return the current option for a name in manifests and in :func:`shaping`.

    >>> option_of("merge", "key"), option_of("split", "max_count")
    ('--key-column', '--max-count')
    """
    return f"--{_OF_OPERATION.get(operation, {}).get(name) or _OPTIONS.get(name, name)}".replace("_", "-")


_OF_OPERATION = {
    "create": {"incomplete": "missing"},
    "map": {"field": "filter"},
    "merge": {"key": "key-column", "field": "column", "interleave": "weights", "json_merge": "json-rest"},
    "sort": {"order_from": "by"},
    "split": {"by_map": "by"},
}
_OPTIONS = {
    "checksum": "hash",
    "index": "no-index",
    "kind": "cmd",
    "what": "cmd",
    "source": "python",
    "size": "resize",
    "mode": "resize",
    "only_if_bigger": "resize",
    "on_failure": "on-error",
    "quality": "format",
}
"""Current options for the names in manifests that differ from them, for each operation and for all operations."""


def digest_of(value: Any) -> str:
    """Return a fingerprint of plain values."""
    return xxh3_128_hexdigest(json.dumps(value, sort_keys=True, default=str).encode("ascii"))


def list_folders(addresses: Sequence[str]) -> None:
    """List each remote folder once. The listing has the sizes and versions of all files in it."""
    for folder in dict.fromkeys(folder_of(address) for address in addresses if not is_local(address)):
        names_in(folder)


def input_digest(request: Request, order: Order, shards: ShardSet, sets: Sequence[int]) -> str:
    """Return the digest of a reordering command's inputs and options. Raises InputError, and UsageError for inputs that
    cannot be checked."""
    files = [*request.selection.files, *order.other_files()]
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
        [*_versions_of(shards), *(_content_of(address) for address in files)],
    )


def _content_of(address: str) -> Any:
    """Return what shows a change of a file, or of a set that lists values."""
    if is_set(address):
        return list(_versions_of(open_set([address])))
    return digest_of(os.fsdecode(read_all(address)))


def run_digest(
    operation: str, options: Any, seed: int | None, settings: ShardSettings, rules: Any, inputs: Sequence[Any]
) -> str:
    """Return the digest of everything that decides the bytes of a set."""
    how = shard_options(settings)
    values = how.pop("values", [])
    return f"xxh3_128:{digest_of([operation, options, seed, [*how.values(), *values], rules, list(inputs)])}"


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
    list_folders(addresses)
    stamps = list(at_once(_stamp_of, addresses))
    same = all(address.stamp and address.stamp.has_same_bytes(now) for address, now in zip(inputs, stamps))
    return tuple(Input(address, stamp=stamp) for address, stamp in zip(addresses, stamps)) if same else None


def _stamp_of(address: str) -> Stamp:
    with open_source(address, decompress=False) as source:
        return Stamp(source.size or 0, source.version, source.is_pinned)
