"""What is warned of because nobody could know it otherwise: what a worker left out, and batches that do not come.

It must not know why something was left out.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Any, cast

from wdscli.loader.place.share import Batches
from wdscli.loader.stages.recipe import Unit
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


def of_gaps(units: Iterator[Unit], batches: Batches) -> Iterator[Unit]:
    """``units``, with a warning of the first of several ranks' batches of which nothing is left: others may have it."""
    # Closed here, when this is, and not when nobody refers to it any more: it may have threads.
    with closing(cast("Generator[Unit, None, None]", units)):
        for unit in units:
            yield unit
            if (
                not unit.items
                and not unit.stops
                and unit.number + 1 < batches.total
                and batches.share.world > 1
            ):
                _warn_of_gap(unit.number, batches.share.rank)
                break
        yield from units


def _warn_of_gap(number: int, rank: int) -> None:
    warnings.warn(
        f"nothing is left of batch {number} of rank {rank}, so that ranks may have different numbers of batches; "
        'where= in the place of select() and on_error="substitute" keep them equal, and so does '
        "WebLoader(data.repeat()).unbatched().batched(size).with_epoch(n)",
        stacklevel=3,
    )
