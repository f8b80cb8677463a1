"""This module says why a dataset is not exact.

A dataset is exact if its batches depend only on the set, the seed and the epoch: they are the same for any numbers of
ranks and workers, and a state fits any such numbers. Streams, generators and some ways of dividing samples are not. The
module does not know how samples are ordered or read."""

from __future__ import annotations

from typing import Any

PLAIN = "its stages run as plain generators in each worker, and have no exact position"
"""The reason for pipelines like those of webdataset."""
LOADER_STAGES = (
    "stages of the WebLoader make its items: a state needs the same number of ranks, and replays the epoch"
)
LOADER_BATCHES = "the DataLoader makes batches from the items of each worker"


def why_not_exact(dataset: Any) -> str | None:
    """Return why a :class:`~wdscli.loader.dataset.PositionDataset` is not exact, or None if it is exact."""
    split = dataset._split
    has_generator = bool(dataset.pipeline.generators)
    reasons = {
        f"the class {type(dataset).__name__} has its own __iter__": dataset._has_own_iter,
        "a stage is a generator, which gets only the samples of one worker": has_generator,
        "some shards are streamed, so whole shards are divided among ranks and workers": dataset.is_stream,
        "each process draws samples in its own order: resampled=True without splitters": split.apart,
        "nodesplitter=None gives all samples to every rank": not split.by_node,
        "workersplitter=None gives all samples to every worker": not split.by_worker,
        "with_epoch(n) counts the items of each worker; with_epoch(batches=n) does not": dataset._by_worker,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)
