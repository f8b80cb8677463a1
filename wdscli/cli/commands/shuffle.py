"""``wds shuffle``: options in, a shuffled set out."""

from __future__ import annotations

from typing import Annotated

import typer

from wdscli.cli.made import print_plan, print_report
from wdscli.cli.options import (
    CommonOptions,
    CutOptions,
    DuplicateOptions,
    ErrorOptions,
    JsonOptions,
    OutputOptions,
    Preserve,
    SelectionOptions,
    Shards,
    grouped,
)
from wdscli.cli.output import Out
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
    preserve: Preserve = False,
    tmp: Annotated[
        str | None,
        typer.Option(
            "--tmp",
            metavar="DIR",
            help="Where inputs that can be read only once are copied to meanwhile. Default: TMPDIR.",
            rich_help_panel="Output",
        ),
    ] = None,
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
    from wdscli.ops.reorder import run_plan
    from wdscli.ops.scratch import Scratch
    from wdscli.ops.shuffle import plan_shuffle

    out = Out(common, json=json.json)
    progress = out.progress()
    request = reorder_request(shards, output, cuts, selection, duplicates, errors, preserve=preserve)
    with Scratch(tmp) as scratch:
        planned = plan_shuffle(request, seed, scratch, progress=progress)
        out.note(f"strategy {planned.strategy}: {planned.reason}")
        if output.dry_run:
            print_plan(out, planned)
            return
        report = run_plan(planned, progress=progress)
    print_report(out, report, "shuffled", planned.oversized)
