"""``wds ls``: options in, a listing out."""

from __future__ import annotations

from typing import Annotated

import typer

from wdscli.cli import listing
from wdscli.cli.options import (
    CommonOptions,
    ErrorOptions,
    JsonOptions,
    SelectionOptions,
    Shards,
    TrustOptions,
    grouped,
)
from wdscli.cli.output import Bar, Out
from wdscli.errors import UsageError
from wdscli.look.listing import ls as open_listing
from wdscli.selection import Selection

_SHOW = "What to show"


@grouped
def ls(
    *,
    shards: Shards,
    long: Annotated[
        bool,
        typer.Option(
            "-l",
            "--long",
            help="Samples: also shard, byte of the first header, bytes of each field. "
            "Members: also shard, byte of the payload, kind, field.",
            rich_help_panel=_SHOW,
        ),
    ] = False,
    members: Annotated[
        bool, typer.Option("--members", help="A line per member: name, bytes.", rich_help_panel=_SHOW)
    ] = False,
    by_shard: Annotated[
        bool,
        typer.Option(
            "--shards",
            help="A line per shard: samples, members, bytes, payload bytes, mean payload of a sample.",
            rich_help_panel=_SHOW,
        ),
    ] = False,
    summary: Annotated[
        bool,
        typer.Option(
            "--summary",
            help="Counts, bytes, overhead, sizes by field, balance of the shards, keys that come twice.",
            rich_help_panel=_SHOW,
        ),
    ] = False,
    selection: SelectionOptions,
    output: JsonOptions,
    errors: ErrorOptions,
    trust: TrustOptions,
    common: CommonOptions,
) -> None:
    """List what is in shards: samples, members, shards or a summary.

    A line per sample (key, fields, bytes), as soon as it is read: columns on a terminal, TAB-separated in a
    pipe.

    A TAB or a line break in a name is written \\t, \\n, \\r; JSON has every name as it is, bytes that are not
    UTF-8 as the escapes \\udc80 to \\udcff.

    Examples:

        wds ls train-000000.tar | head
        wds ls --members -l 'train-{000000..000009}.tar'
        wds ls --summary s3://bucket/train/
        wds ls --where 'json.width >= 512 and size.jpg < 1e6' shards/
    """
    if members + by_shard + summary > 1:
        raise UsageError(
            "--members, --shards and --summary are three different lists", hint="choose one of them"
        )
    if long and (by_shard or summary):
        raise UsageError("-l is for samples and members", hint="leave it out, or --shards and --summary")
    out = Out(common, json=output.json)
    # Rows, or whatever pages them, would run through a bar; a summary comes when all is read.
    progress = out.progress() if summary else Bar(out, bool(common.progress))
    found = open_listing(
        shards,
        selection=Selection.parse(**selection._asdict()),
        on_error=errors.on_error,
        trust_addresses=trust.trust_addresses,
        progress=progress,
    )
    if summary:
        listing.print_summary(out, found)
    elif by_shard:
        listing.print_shards(out, found)
    elif members:
        listing.print_members(out, found, long=long)
    else:
        listing.print_samples(out, found, long=long)
    listing.print_report(out, found.report(), errors.on_error)
