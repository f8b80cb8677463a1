"""Keys that would make unsafe names: refused, or left out and counted.

A name is unsafe when it would lead out of the folder that it is unpacked in. This module knows batches of samples, and
nothing of what they are read for.
"""

from __future__ import annotations

from collections.abc import Iterator

from wdscli.errors import DataError
from wdscli.model import to_text
from wdscli.samples import SampleBatch


def check_keys(batch: SampleBatch, shard: str) -> None:
    """Raise DataError for a key that would make an unsafe name."""
    if _may_be_unsafe(batch):
        for row, key in enumerate(batch.keys):
            if is_unsafe(key):
                raise DataError(
                    "unsafe name",
                    code="unsafe-name",
                    shard=shard,
                    offset=batch.start(row),
                    member=to_text(key + b"." + batch.fields[batch.firsts[row]]),
                    hint="leave such samples out with --on-error skip, or see them all with `wds verify`",
                )


def _may_be_unsafe(batch: SampleBatch) -> bool:
    """A quick look at all keys together."""
    together = b"\n".join(batch.keys)
    return b".." in together or b"\n/" in together or together.startswith(b"/")


def is_unsafe(key: bytes) -> bool:
    """Whether names of this key would lead out of the folder they are unpacked in."""
    return key.startswith(b"/") or b".." in key.split(b"/")


def keep_safe(batches: Iterator[SampleBatch], dropped: dict[str, int]) -> Iterator[SampleBatch]:
    """The samples with safe names; the others are counted in ``dropped``."""
    for batch in batches:
        if not _may_be_unsafe(batch):
            yield batch
            continue
        for row, key in enumerate(batch.keys):
            if is_unsafe(key):
                dropped["unsafe-name"] = dropped.get("unsafe-name", 0) + 1
            else:
                yield batch.part(row, row + 1)
