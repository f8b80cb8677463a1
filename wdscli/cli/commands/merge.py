"""``wds merge``: options in, one set out of several."""

from __future__ import annotations

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
def merge(
    *,
    shards: Shards,
    output: OutputOptions,
    cuts: CutOptions,
    engine: EngineOptions,
    preserve: Preserve = False,
    selection: SelectionOptions,
    duplicates: DuplicateOptions,
    errors: ErrorOptions,
    json: JsonOptions,
    common: CommonOptions,
) -> None:
    """Write several sets as one, in input order or interleaved.

    Examples:

        wds merge 'small-{000000..000999}.tar' -o 'large-%06d.tar' --max-size 1GB
    """
    from wdscli.ops.orders import InputOrder

    out = Out(common, json=json.json)
    request = reorder_request(
        shards, output, cuts, selection, duplicates, errors, engine=engine, preserve=preserve
    )
    reorder(out, request, InputOrder("merge"), "merged", dry_run=output.dry_run)
