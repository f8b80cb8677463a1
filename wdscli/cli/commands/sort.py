"""``wds sort``: sort keys and their modifiers in, a sorted set out."""

from __future__ import annotations

from typing import Annotated, Literal

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
from wdscli.errors import UsageError

_ORDER = "Order"


@grouped
def sort(
    *,
    shards: Shards,
    output: OutputOptions,
    by: Annotated[
        list[str] | None,
        typer.Option(
            "--by",
            metavar="WHAT[:nVr]",
            help="key, a field (cls, seg.png) or a place in JSON (json.width, json.box[0]); again for what ties. "
            "Behind a colon: n numeric, V natural, r reverse. Default: key.",
            show_default=False,
            rich_help_panel=_ORDER,
        ),
    ] = None,
    natural: Annotated[
        bool,
        typer.Option(
            "--natural",
            help="img9 before img10; for each --by without a colon, as are the next two.",
            rich_help_panel=_ORDER,
        ),
    ] = False,
    numeric: Annotated[
        bool, typer.Option("--numeric", help="Compare texts as the numbers they are.", rich_help_panel=_ORDER)
    ] = False,
    reverse: Annotated[
        bool, typer.Option("--reverse", help="The largest first.", rich_help_panel=_ORDER)
    ] = False,
    missing: Annotated[
        Literal["first", "last", "error"] | None,
        typer.Option(
            "--missing",
            help="Where samples go that have no such value. Default: last, but a value that none has is an error.",
            show_default=False,
            rich_help_panel=_ORDER,
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
    """Write all samples sorted by key, by a field or by a value in JSON.

    Text is compared byte by byte, numbers in JSON as numbers. Samples that tie stay in input order, also in
    reverse, and none is dropped. A --by with a colon takes none of --natural, --numeric and --reverse.

    Examples:

        wds sort set -o 'sorted-%06d.tar'
        wds sort set -o 'sorted-%06d.tar' --by json.width:r --by key:V
        wds sort set -o 'sorted-%06d.tar' --by cls --numeric --missing first
    """
    from wdscli.ops.sort import sort_order

    if natural and numeric:
        raise UsageError("--natural and --numeric exclude each other", hint="--by WHAT:n --by WHAT:V")
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
    order = sort_order(
        by or [],
        how="natural" if natural else "numeric" if numeric else "plain",
        reverse=reverse,
        missing=missing,
        lenient=errors.on_error == "skip",
    )
    reorder(out, request, order, "sorted", dry_run=output.dry_run)
