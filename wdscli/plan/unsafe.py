"""Names that are read and may not be written: refused, or left out and counted.

What such a name is, :func:`wdscli.samples.why_unsafe` says. This module knows batches of samples, and nothing of what
they are read for.
"""

from __future__ import annotations

from collections.abc import Iterator

from wdscli.errors import DataError
from wdscli.model import to_text
from wdscli.samples import SampleBatch, may_be_unsafe, why_unsafe


def check_names(batch: SampleBatch, shard: str) -> None:
    """Raise DataError ``unsafe-name`` for a sample that has an unsafe name."""
    if _is_suspect(batch):
        for row in range(len(batch.keys)):
            found = _unsafe(batch, row)
            if found is not None:
                at, reason = found
                raise DataError(
                    f"unsafe name: {reason}",
                    code="unsafe-name",
                    shard=shard,
                    offset=batch.starts[at],
                    member=to_text(batch.keys[row] + b"." + batch.fields[at])[:200],
                    hint="leave such samples out with --on-error skip, or see them all with `wds verify`",
                )


def _is_suspect(batch: SampleBatch) -> bool:
    """A quick look at all names together. Fields repeat, and few batches have many different ones."""
    return may_be_unsafe(batch.keys) or may_be_unsafe(list(set(batch.fields)))


def _unsafe(batch: SampleBatch, row: int) -> tuple[int, str] | None:
    """The first member of a sample whose name is unsafe, and why."""
    for at in range(batch.firsts[row], batch.firsts[row + 1]):
        reason = why_unsafe(batch.keys[row] + b"." + batch.fields[at])
        if reason is not None:
            return at, reason
    return None


def keep_safe(batches: Iterator[SampleBatch], dropped: dict[str, int]) -> Iterator[SampleBatch]:
    """The samples with safe names; the others are counted in ``dropped``."""
    for batch in batches:
        if not _is_suspect(batch):
            yield batch
            continue
        for row in range(len(batch.keys)):
            if _unsafe(batch, row) is not None:
                dropped["unsafe-name"] = dropped.get("unsafe-name", 0) + 1
            else:
                yield batch.part(row, row + 1)
