"""A set that gets further shards: what ``create --append`` has to know of it.

What it is: :func:`standing_set`, the set as its manifest tells it, and :class:`Base`, what new samples are held
against. How: keys are read from the indexes of the shards, where these are true, else from their headers. It must not
write anything, nor know what is added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from wdscli.errors import DataError, InputNotFoundError, UsageError
from wdscli.progress import Progress
from wdscli.samples import iter_batches
from wdscli.shards.inputs import read_manifest
from wdscli.shards.manifest import Standing
from wdscli.shards.reading import find_index, index_batches
from wdscli.shards.writing import OutputSet, ShardSettings
from wdscli.storage import folder_of, open_source
from wdscli.storage.blocks import kind_of_name


class Base(NamedTuple):
    """What a set has: how many samples, what its labels mean, and the keys, which are read at each call."""

    samples: int
    classes: tuple[str, ...] | None
    keys: Callable[[], Iterator[list[bytes]]]


def standing_set(output: str, settings: ShardSettings) -> Standing:
    """The set of an output. Raises UsageError for names that cannot go on, InputNotFoundError when there is no set,
    DataError."""
    out = OutputSet(output, settings)
    address = out.manifest_address
    if address is None or out.pattern.single or out.pattern.count is not None:
        raise UsageError(
            f"{output} has no names for further shards", hint="--append goes with names such as out-%06d.tar"
        )
    try:
        manifest = read_manifest(address)
    except InputNotFoundError:
        raise InputNotFoundError(
            f"there is no set to append to: {address} is not there",
            hint="make the set without --append; `wds index` writes the manifest of shards that are there",
        ) from None
    return Standing.of(out.pattern, manifest, folder_of(address))


def base_of(out: OutputSet, standing: Standing, progress: Progress) -> Base:
    """What new samples of an output are held against."""
    manifest = standing.manifest
    return Base(manifest.samples, manifest.classes, partial(_keys, out, standing, progress))


def _keys(out: OutputSet, standing: Standing, progress: Progress) -> Iterator[list[bytes]]:
    """Raises InputError, DataError for a shard that is not what the manifest says."""
    folder, shards = folder_of(out.manifest_address or ""), standing.manifest.shards
    progress.start("reading the keys of the set", len(shards), "shards")
    for shard in shards:
        address = folder + shard.name
        with open_source(address) as source:
            if kind_of_name(address) is None and source.size not in (None, shard.size_bytes):
                raise DataError(
                    f"it has {source.size} bytes where its manifest says {shard.size_bytes}",
                    code="manifest-mismatch",
                    shard=address,
                    hint="see what is wrong with `wds verify`",
                )
            index = find_index(address, source, progress.warn)
            for batch in iter_batches(source) if index is None else index_batches(index):
                yield batch.keys
        progress.advance(1)
    progress.finish()
