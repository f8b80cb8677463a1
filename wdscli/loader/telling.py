"""What is warned of because nobody could know it otherwise: what a worker left out, and batches that do not come.

It must not know why something was left out.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from wdscli.loader.pipeline import Unit
from wdscli.loader.share import Batches
from wdscli.loader.stats import Counts


def by_worker(items: Iterator[Any], worker: int, counts: Callable[[], Counts]) -> Iterator[Any]:
    """``items``, and at their end, or when they are left, a warning of the samples that errors took since they began.
    For a worker of a plain DataLoader: what is counted there, ``stats()`` of the main process does not know. What
    ``select`` leaves out is wanted, and passed over."""
    before = _errors(counts())
    try:
        yield from items
    finally:
        lost = {of: number - before.get(of, 0) for of, number in _errors(counts()).items()}
        by_reason: dict[str, int] = {}
        for (_, reason), number in lost.items():
            if number > 0:
                by_reason[reason] = by_reason.get(reason, 0) + number
        if by_reason:
            reasons = ", ".join(f"{reason} {number}" for reason, number in by_reason.items())
            warnings.warn(
                f"worker {worker} left out {sum(by_reason.values())} samples ({reasons}); "
                "stats() of the main process has what the workers of a WebLoader left out, no others",
                stacklevel=2,
            )


def _errors(counts: Counts) -> dict[tuple[str, str], int]:
    """What errors took: their reasons name one."""
    return {(shard, reason): number for shard, reason, number in counts.rows() if ": " in reason}


def of_gaps(units: Iterable[Unit], batches: Batches) -> Iterator[Unit]:
    """``units``, with a warning of the first batch of a rank of which stages left nothing: other ranks may have it."""
    for unit in units:
        if not unit.items and not unit.stops and unit.number + 1 < batches.total and batches.share.world > 1:
            warnings.warn(
                f"stages leave nothing of batch {unit.number} of rank {batches.share.rank}, so that ranks may have "
                "different numbers of batches; where= instead of select() keeps them equal, and so does "
                "WebLoader(data.repeat()).unbatched().batched(size).with_epoch(n)",
                stacklevel=2,
            )
            yield unit
            break
        yield unit
    yield from units
