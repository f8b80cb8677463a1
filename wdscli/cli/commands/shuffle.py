"""``wds shuffle``: options in, a shuffled set out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from wdscli.cli.options import (
    AllowEmpty,
    CommonOptions,
    DuplicateOptions,
    EngineOptions,
    ErrorOptions,
    JsonOptions,
    OutputOptions,
    PlannedCutOptions,
    SelectionOptions,
    Shards,
    TrustOptions,
    grouped,
)
from wdscli.cli.output import Out
from wdscli.cli.reordering import reorder
from wdscli.cli.requests import reorder_request

if TYPE_CHECKING:
    from wdscli.plan.request import ReorderPlan


@grouped
def shuffle(
    *,
    shards: Shards,
    output: OutputOptions,
    seed: Annotated[
        int,
        typer.Option("--seed", metavar="N", help="Another seed, another order.", rich_help_panel="Order"),
    ] = 0,
    quality: Annotated[
        bool,
        typer.Option(
            "--quality",
            help="Say how well mixed input and output are. Reads the field cls of all samples.",
            rich_help_panel="Order",
        ),
    ] = False,
    window: Annotated[
        int | None,
        typer.Option(
            "--window",
            metavar="N",
            min=1,
            help="With --quality: samples in which distinct source shards are counted. Default: 1000.",
            rich_help_panel="Order",
        ),
    ] = None,
    cuts: PlannedCutOptions,
    engine: EngineOptions,
    selection: SelectionOptions,
    allow_empty: AllowEmpty = False,
    duplicates: DuplicateOptions,
    errors: ErrorOptions,
    json: JsonOptions,
    trust: TrustOptions,
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
        wds shuffle shards/ -o 'mixed-%06d.tar' --quality -n
    """
    from wdscli.cli.quality import check_quality, print_quality
    from wdscli.plan.orders import ShuffledOrder

    check_quality(quality, window, output)
    out = Out(common, json=json.json)
    request = reorder_request(
        shards,
        output,
        cuts,
        selection,
        duplicates,
        errors,
        engine=engine,
        allow_empty=allow_empty,
        trust=trust,
    )
    if not quality:
        reorder(out, request, ShuffledOrder(seed), "shuffled", dry_run=output.dry_run)
        return
    from wdscli.look.quality import WINDOW, MeasuredShuffle

    order = MeasuredShuffle(seed, window or WINDOW)

    def tell(_: ReorderPlan) -> None:
        if order.quality is not None:
            print_quality(out, order.quality)

    reorder(out, request, order, "shuffled", dry_run=output.dry_run, planned=tell)
