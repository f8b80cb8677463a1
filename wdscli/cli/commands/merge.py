"""``wds merge``: options in, one set out of several."""

from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from wdscli.cli.joining import JoinOptions, check_alone
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
    TrustOptions,
    grouped,
)
from wdscli.cli.output import Out
from wdscli.cli.reordering import reorder
from wdscli.cli.requests import reorder_request

if TYPE_CHECKING:
    from wdscli.plan.request import ReorderPlan

Sets = Annotated[
    list[str],
    typer.Argument(
        metavar="SETS...",
        help="Sets to read, each any number of shards: paths, folders, globs, braces, a::b, a manifest, @LIST, -, "
        "pipe:CMD, URLs.",
    ),
]


_ORDER = "Order"
_DEDUP = "Duplicates"


class TurnOptions(NamedTuple):
    """How sets take turns."""

    interleave: Annotated[
        bool,
        typer.Option("--interleave", help="One sample of each set in turn.", rich_help_panel=_ORDER),
    ] = False
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights",
            metavar="W,W,...",
            help="The sets in turn by these shares, one for each set: 0.7,0.3.",
            rich_help_panel=_ORDER,
        ),
    ] = None
    stop: Annotated[
        Literal["first", "all"] | None,
        typer.Option(
            "--stop",
            help="With sets in turn: end when one has no more, or go on with the others. Default: all.",
            show_default=False,
            rich_help_panel=_ORDER,
        ),
    ] = None


class DedupOptions(NamedTuple):
    """Samples that repeat others."""

    dedup: Annotated[
        list[str] | None,
        typer.Option(
            "--dedup",
            metavar="key|FIELD,...",
            help="Keep the first of samples with the same key, or the same content of a field; of several, all.",
            rich_help_panel=_DEDUP,
        ),
    ] = None
    report: Annotated[
        str | None,
        typer.Option(
            "--report",
            metavar="FILE",
            help="List the duplicates that --dedup left out, as JSON Lines.",
            rich_help_panel=_DEDUP,
        ),
    ] = None


@grouped
def merge(
    *,
    shards: Sets,
    output: OutputOptions,
    turns: TurnOptions,
    join: JoinOptions,
    dedup: DedupOptions,
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
    """Write several sets as one: one after the other, interleaved, or joined by key.

    Each argument is one set, of any number of shards. Without a cut a shard holds at most 1 GB.

    Examples:

        wds merge 'small-{000000..000999}.tar' -o 'large-%06d.tar' --max-size 1GB
        wds merge photos/ drawings/ -o 'mix-%06d.tar' --weights 0.7,0.3 --stop first
        wds merge images/ --table captions.csv --key id --field txt=caption -o 'train-%06d.tar'
        wds merge crawl-1/ crawl-2/ -o 'all-%06d.tar' --dedup jpg --report dropped.jsonl
    """
    from wdscli.cli.duplicates import check_report, tell_duplicates
    from wdscli.ops.merge import merge_order

    out = Out(common, json=json.json)
    check_report(dedup.report, dedup.dedup)
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
    how = join.parse()
    if how is not None:
        check_alone(dedup=dedup.dedup, **turns._asdict())
        reorder(out, request, how, "joined", dry_run=output.dry_run)
        return
    order = merge_order(request, **turns._asdict(), dedup=dedup.dedup or ())

    def tell(plan: "ReorderPlan") -> None:
        if plan.duplicates is not None:
            report = None if output.dry_run else dedup.report
            tell_duplicates(out, plan.duplicates, report, force=output.force or request.resume)

    reorder(out, request, order, "merged", dry_run=output.dry_run, planned=tell)
