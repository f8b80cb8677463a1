"""``wds split``: options in, smaller shards or several sets out."""

from __future__ import annotations

from typing import Annotated

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

_PARTS = "Parts"


@grouped
def split(
    *,
    shards: Shards,
    output: OutputOptions,
    cuts: PlannedCutOptions,
    ratio: Annotated[
        str | None,
        typer.Option(
            "--ratio",
            metavar="PART=SHARE,...",
            help="Parts by a hash of the key: train=0.8,val=0.1,test=0.1, or weights such as 8, 1 and 1.",
            rich_help_panel=_PARTS,
        ),
    ] = None,
    group_by: Annotated[
        str | None,
        typer.Option(
            "--group-by",
            metavar="REGEX|FIELD",
            help="With --ratio: keep together samples of one FIELD or json.PATH, or of one match of REGEX in the key.",
            rich_help_panel=_PARTS,
        ),
    ] = None,
    stratify: Annotated[
        str | None,
        typer.Option(
            "--stratify",
            metavar="FIELD",
            help="With --ratio: keep the shares for each value of FIELD or json.PATH.",
            rich_help_panel=_PARTS,
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            "--seed", metavar="N", help="With --ratio: another seed, other parts.", rich_help_panel=_PARTS
        ),
    ] = 0,
    by: Annotated[
        str | None,
        typer.Option(
            "--by",
            metavar="FIELD",
            help="A part for each value of FIELD or json.PATH, named after it.",
            rich_help_panel=_PARTS,
        ),
    ] = None,
    by_map: Annotated[
        list[str] | None,
        typer.Option(
            "--by-map",
            metavar="FILE",
            help="Parts from a file: lines of key and part, or JSON. May be given more than once.",
            rich_help_panel=_PARTS,
        ),
    ] = None,
    missing: Annotated[
        str,
        typer.Option(
            "--missing",
            metavar="error|drop|PART",
            help="A sample without a value: stop, leave it out, or (with --by and --by-map) put it into PART.",
            rich_help_panel=_PARTS,
        ),
    ] = "error",
    engine: EngineOptions,
    selection: SelectionOptions,
    allow_empty: AllowEmpty = False,
    duplicates: DuplicateOptions,
    errors: ErrorOptions,
    json: JsonOptions,
    trust: TrustOptions,
    common: CommonOptions,
) -> None:
    """Cut a set into other shards, or divide it into parts.

    Samples stay in input order. {part} in OUT is the part's name; each part is a set of its own, with its
    manifest. Without a cut a shard holds at most 1 GB.

    Examples:

        wds split big.tar -o 'small-%06d.tar' --max-size 500MB
        wds split shards/ -o 'even-%06d.tar' --max-count 10000 --divisible-by 8
        wds split shards/ -o '{part}-%06d.tar' --ratio train=0.8,val=0.1,test=0.1 --group-by json.patient
        wds split shards/ -o '{part}/%06d.tar' --by cls
    """
    from wdscli.ops.split import SplitOptions, split_order

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
    order = split_order(
        request, SplitOptions(ratio, group_by, stratify, seed, by, tuple(by_map or ()), missing)
    )
    reorder(out, request, order, "split", dry_run=output.dry_run)
