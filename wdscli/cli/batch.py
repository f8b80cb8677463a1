"""``wds ls --epoch``: the keys of one batch of a training run.

This module passes the options to the loader, which computes the batch from the indexes of the shards. It does not know
how a batch is computed.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple

from wdscli.cli.options import SelectionOptions, changed_options, panel
from wdscli.cli.output import Out
from wdscli.errors import UsageError


@panel("Batch of a training run")("""
    +--epoch N  Print the keys of one batch that wdscli.loader makes in epoch N, from 0. --where, --keys and
        --keys-from select samples in the same way as for training.
    +--batch N  With --epoch: the number of the batch in the epoch, from 0.
    +--batch-size N  With --epoch: samples in a batch of one rank.
    +--shuffle  With --epoch: the order of the samples. --seed is its seed.
    +--window N  With --epoch: the number of shards or blocks that are mixed with each other.
    +--world N  With --epoch: number of ranks.
    +--rank N  With --epoch: the rank, from 0.
    """)
class BatchOptions(NamedTuple):
    """The options that describe one batch of a training run. They have the names of the loader's arguments."""

    epoch: Annotated[int | None, 0] = None
    batch: Annotated[int, 0] = 0
    batch_size: Annotated[int, 1] = 1
    shuffle: Literal["window", "blocks", "shards", "full", "none"] = "none"
    window: Annotated[int, 1] = 64
    world: Annotated[int, 1] = 1
    rank: Annotated[int, 0] = 0


def check_batch(batch: BatchOptions, list_options: list[str]) -> None:
    """Raise UsageError if a batch is described incompletely, or requested together with ``list_options``."""
    batch_options = changed_options(batch)
    if batch_options and batch.epoch is None:
        raise UsageError(f"{batch_options[0]} needs --epoch", hint="--epoch 3 --batch 120 --batch-size 64")
    if batch_options and list_options:
        raise UsageError(f"{list_options[0]} does not work with --epoch", hint="leave one of them out")


def print_batch(
    batch: BatchOptions,
    out: Out,
    shards: Sequence[str],
    selection: SelectionOptions,
    on_error: str,
    trusts: bool,
) -> None:
    """Print the keys of one batch of a training run."""
    from wdscli.loader import WebDataset
    from wdscli.shards.index import Check
    from wdscli.shards.proof import checking

    where, keys_from = selection.where, selection.keys_from or []
    _check_selection(selection)
    with checking(Check.ALL_LOCAL):
        data = WebDataset(
            shards,
            where=" and ".join(f"({condition})" for condition in where) if where else None,
            keys=selection.keys,
            keys_from=keys_from[0] if keys_from else None,
            seed=selection.seed,
            trust_addresses=trusts,
            on_error="skip" if on_error == "skip" else "raise",
            shuffle=batch.shuffle,
            window=batch.window,
            rank=batch.rank,
            world_size=batch.world,
        )
        keys = data.listed(batch.batch_size).keys(batch.epoch or 0, batch.batch)
    if out.json:
        for key in keys:
            out.object({"key": key})
    else:
        out.rows(("key",), ((key,) for key in keys))


def _check_selection(selection: SelectionOptions) -> None:
    """Raise UsageError for options that select samples in a way that training does not have."""
    unusable = changed_options(selection._replace(where=None, keys=None, keys_from=None, seed=None))
    if unusable or len(selection.keys_from or ()) > 1:
        raise UsageError(
            f"{unusable[0] if unusable else 'a second --keys-from'} does not work with --epoch",
            hint="select samples with --where, --keys or one --keys-from",
        )
