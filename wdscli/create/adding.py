"""The existing set to which ``create --append`` adds shards.

What it is: :func:`standing_set`, the set by its manifest, and :class:`Base`, the counts, classes and keys that new
samples are compared with. How: keys are read from the indexes of the shards if these are current, else from headers. It
must not write anything, nor know the new samples.
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
    """A set's number of samples, the names of its classes, and a function that reads its keys in batches."""

    samples: int
    classes: tuple[str, ...] | None
    keys: Callable[[], Iterator[list[bytes]]]


def standing_set(output: str, settings: ShardSettings) -> Standing:
    """The existing set of an output. Raises UsageError for an output that names a fixed number of shards,
    InputNotFoundError if there is no set, DataError."""
    out = OutputSet(output, settings)
    address = out.manifest_address
    if address is None or out.pattern.single or out.pattern.count is not None:
        raise UsageError(
            f"{output} has no names for more shards", hint="--append needs an output such as out-%06d.tar"
        )
    try:
        manifest = read_manifest(address)
    except InputNotFoundError:
        raise InputNotFoundError(
            f"there is no set to append to: {address} does not exist",
            hint="make the set without --append; `wds index` writes the manifest of existing shards",
        ) from None
    return Standing.of(out.pattern, manifest, folder_of(address))


def base_of(out: OutputSet, standing: Standing, progress: Progress) -> Base:
    """The set that new samples of an output are compared with."""
    manifest = standing.manifest
    return Base(manifest.samples, manifest.classes, partial(_keys, out, standing, progress))


def _keys(out: OutputSet, standing: Standing, progress: Progress) -> Iterator[list[bytes]]:
    """Read the keys. Raises InputError, DataError for a shard that differs from the manifest."""
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
                    hint="check the set with `wds verify`",
                )
            index = find_index(address, source, progress.warn)
            for batch in iter_batches(source) if index is None else index_batches(index):
                yield batch.keys
        progress.advance(1)
    progress.finish()
