"""``wds merge``: options in, one set out of several; what --dedup left out is listed on the way.

The annotations of its groups are real objects (see ``cli/options.py``), so this module has no ``from __future__ import
annotations``.
"""

from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from wdscli.cli.options import CellOptions, OutputOptions, ReorderOptions, Text, Texts, grouped, panel
from wdscli.cli.output import Out, json_line
from wdscli.cli.reordering import read_options, reorder
from wdscli.errors import UsageError
from wdscli.shown import shown

if TYPE_CHECKING:
    from wdscli.plan.duplicates import Duplicates
    from wdscli.plan.join.join import Join
    from wdscli.plan.plan import ReorderPlan

Sets = Annotated[
    list[str],
    typer.Argument(
        metavar="SETS...",
        help="Sets to read. Each is a path, folder, glob, braces, a::b, a manifest, @LIST, -, pipe:CMD, or a URL.",
    ),
]
DUPLICATES_SHOWN = 20
"""So many are listed one by one with ``-v``."""

_order = panel("Order")
_join = panel("Join")
_dedup = panel("Selection")


@_order("""
    --weights equal|W,...  Take samples from the sets in turn. Shares such as 0.7,0.3, one for each set; equal takes
        one of each.
    +--stop  With --weights: stop after the first set, or all. Default: all.
    """)
class TurnOptions(NamedTuple):
    """How sets take turns."""

    weights: Text = None
    stop: Literal["first", "all"] | None = None


@_join("""
    --join  Join samples by key. Keep the keys of every set (inner), of the first set (left), or of any set (outer).
        Default with --table: left.
    --table TABLE  Join a table as the last set. CSV, TSV, JSON Lines, Parquet or Arrow (pip install
        'wdscli[parquet]'): a file, folder, glob or address. Repeatable: rows are appended.
    key: --key-column COLUMN  Column of the table with the keys.
    field: --column EXT=[@]COLUMN  Fill field EXT from a column. With @ the column holds paths or addresses of files.
        Repeatable.
    +--json-merge  Add the table's remaining columns to the JSON object in the sample's field json.
    +--on-conflict  Field that an earlier set has too: fail, keep the left one, take the right one, or keep both with
        a suffix (txt and 2.txt). Default: error between sets, right for a table.
    """)
class JoinOptions(NamedTuple):
    """How fields of several sets come beside each other."""

    join: Literal["inner", "left", "outer"] | None = None
    table: Texts = None
    key: Text = None
    field: Texts = None
    json_merge: bool = False
    on_conflict: Literal["error", "left", "right", "suffix"] | None = None
    cells: CellOptions = CellOptions()

    def parse(self) -> "Join | None":
        """How sets are joined; None without a join. Raises UsageError for options that exclude each other."""
        if not self.table and (self.key is not None or self.field or self.json_merge):
            raise UsageError(
                "--key-column, --column and --json-merge need --table",
                hint="--table captions.csv --key-column id --column txt=caption",
            )
        reading = self.cells.parse("table" if self.table else None)
        if self.join is None and not self.table:
            if self.on_conflict is not None:
                raise UsageError("--on-conflict needs a join", hint="--join inner, left or outer")
            return None
        from wdscli.create.join_table import Table
        from wdscli.plan.join.join import Join

        table = None
        if self.table:
            if self.key is None or not (self.field or self.json_merge):
                raise UsageError(
                    "--table needs --key-column and --column or --json-merge",
                    hint=f"--table {self.table[0]} --key-column id --column txt=caption",
                )
            table = Table(tuple(self.table), self.key, tuple(self.field or ()), self.json_merge, reading)
        return Join(self.join or "left", self.on_conflict, table)


@_dedup("""
    --dedup key|FIELD,...  Drop samples that repeat a key or a field. The first one is kept. Fields repeat when their
        bytes are the same. With several names, all must be the same.
    +--report FILE  Write a line of JSON for each sample that --dedup left out.
    """)
class DedupOptions(NamedTuple):
    """Samples that repeat others."""

    dedup: Texts = None
    report: Text = None


class SetOptions(NamedTuple):
    """How several sets become one."""

    turns: TurnOptions
    join: JoinOptions
    dedup: DedupOptions


@grouped
def merge(*, shards: Sets, output: OutputOptions, sets: SetOptions, more: ReorderOptions) -> None:
    """Write several sets as one: one after the other, interleaved, or joined by key.

    Each argument is one set. Shards hold at most 1 GB unless their size is given.

    Examples:

        wds merge 'small-{000000..000009}.tar' -o 'large-%06d.tar' --max-size 1GB
        wds merge real/ drawn/ -o 'mix-%06d.tar' --weights 0.7,0.3 --stop first
        wds merge images/ --table captions.csv --key-column id \\
            --column txt=caption -o 'captioned-%06d.tar'
        wds merge crawl-1/ crawl-2/ -o 'all-%06d.tar' --dedup jpg
    """
    from wdscli.ops.merge import merge_order

    turns, join, dedup = sets
    if dedup.report is not None and not dedup.dedup:
        raise UsageError("--report needs --dedup", hint="add --dedup key, or --dedup FIELD")
    if dedup.report == "-":
        raise UsageError("--report needs a file name", hint="--json lists the duplicates on standard output")
    out, request = read_options(shards, output, more)
    how = join.parse()
    if how is not None:
        for name, value in {"dedup": dedup.dedup, **turns._asdict()}.items():
            if value:
                raise UsageError(f"--{name} is not for a join, whose samples come in the first set's order")
        reorder(out, request, how, dry_run=output.dry_run, done="joined")
        return

    def show(plan: "ReorderPlan") -> None:
        if plan.duplicates is not None:
            report = None if output.dry_run else dedup.report
            _print_duplicates(out, plan.duplicates, report, force=output.force or request.resume)

    is_equal = turns.weights == "equal"
    weights = None if is_equal else turns.weights
    order = merge_order(
        request, interleave=is_equal, weights=weights, stop=turns.stop, dedup=dedup.dedup or ()
    )
    reorder(out, request, order, dry_run=output.dry_run, planned=show)


def _print_duplicates(out: Out, found: "Duplicates", report: str | None, *, force: bool) -> None:
    """Each duplicate: with ``--json`` an object, with ``-v`` a line, and a line of JSON in the file ``report``."""
    from contextlib import nullcontext

    from wdscli.storage import open_sink

    if not (found.total or report) or not (out.json or out.talk.verbose or report):
        return
    with nullcontext() if report is None else open_sink(report, force=force) as sink:
        for number, one in enumerate(found.listed()):
            facts = {
                "duplicate": one.key,
                "shard": shown(one.shard),
                "index": one.place,
                "bytes": one.size_bytes,
                "by": list(found.by),
                "of": {"key": one.first_key, "shard": shown(one.first_shard), "index": one.first_place},
            }
            if out.json:
                out.object(facts)
            if number < DUPLICATES_SHOWN:
                out.note(
                    f"left out {one.key} (sample {one.place} of {one.shard}): same {' and '.join(found.by)} as "
                    f"{one.first_key} (sample {one.first_place} of {one.first_shard})"
                )
            elif number == DUPLICATES_SHOWN:
                more = "" if sink else ": --report FILE lists all"
                out.note(f"... and {found.total - number} more{more}")
            if sink is not None:
                sink.write(json_line(facts))
