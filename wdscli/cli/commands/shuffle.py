"""``wds shuffle``: options in, a shuffled set out."""

from __future__ import annotations

from typing import Annotated

import typer

from wdscli.cli.options import (
    CommonOptions,
    CutOptions,
    DuplicateOptions,
    EngineOptions,
    ErrorOptions,
    JsonOptions,
    OutputOptions,
    Preserve,
    SelectionOptions,
    Shards,
    grouped,
)
from wdscli.cli.output import Out
from wdscli.cli.reordering import reorder
from wdscli.cli.requests import reorder_request


@grouped
def shuffle(
    *,
    shards: Shards,
    output: OutputOptions,
    seed: Annotated[
        int,
        typer.Option("--seed", metavar="N", help="Another seed, another order.", rich_help_panel="Order"),
    ] = 0,
    cuts: CutOptions,
    engine: EngineOptions,
    preserve: Preserve = False,
    selection: SelectionOptions,
    duplicates: DuplicateOptions,
    errors: ErrorOptions,
    json: JsonOptions,
    common: CommonOptions,
) -> None:
    """Write all samples in an order that only the seed decides.

    The same input, options and seed give the same bytes, whatever -j says and on whatever machine. Without a
    cut a shard holds at most 1 GB.

    An input that can be read only once (-, pipe:CMD, a compressed shard) is first copied to a scratch folder.

    Examples:

        wds shuffle 'train-{000000..000009}.tar' -o 'mixed-%06d.tar' --seed 7
        wds shuffle shards/ -o 'mixed-{0000..0127}.tar'
        wds shuffle shards/ -o 'mixed-%06d.tar' --max-count 10000 --on-duplicate rekey
    """
    from wdscli.ops.orders import ShuffledOrder

    out = Out(common, json=json.json)
    request = reorder_request(
        shards, output, cuts, selection, duplicates, errors, engine=engine, preserve=preserve
    )
    reorder(out, request, ShuffledOrder(seed), "shuffled", dry_run=output.dry_run)
