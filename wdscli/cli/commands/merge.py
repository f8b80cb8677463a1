"""``wds merge``: parse the options, and write several sets as one set.

Annotations of option groups must be real objects (see ``cli/options.py``). For this reason the module has no ``from
__future__ import annotations``.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from wdscli.cli.options import CellOptions, Option, OutputOptions, ReorderOptions, Text, Texts, grouped, panel
from wdscli.cli.reordering import read_options, reorder
from wdscli.errors import UsageError

if TYPE_CHECKING:
    from wdscli.plan.join import Join, JoinedTable

Sets = Annotated[
    list[str],
    Option(
        (),
        "SETS...",
        "Sets to read. Each is a path, folder, glob, braces, a::b, a manifest, @LIST, -, pipe:CMD, or a URL.",
    ),
]


@panel("Order")("""
    --weights equal|W,...  Take samples from the sets in turn. W is the share of a set, such as 0.7,0.3 for two sets.
        With the value "equal", all sets have the same share.
    +--stop  With --weights: stop when the first set ends, or when all sets have ended. Default: all.
    """)
@panel("Join")("""
    --join  Join samples by key, or with --on by a value. Keep the keys of every set (inner), of the first set (left),
        or of any set (outer). Default with --table: left.
    --table TABLE  Join a table as the last set. TABLE is a file, folder, glob or address of CSV, TSV, JSON Lines,
        Parquet or Arrow (pip install 'wdscli[parquet]'). Repeatable: several files are read as one table.
    key: --key-column COLUMN  Column of the table with the keys. To join by a value of the samples, use --on
        url=json.url instead.
    field: --column EXT=[@]COLUMN  Fill field EXT from a column. With @, the column holds paths or addresses of files.
        Repeatable.
    +--json-rest  Add the table's remaining columns to the JSON object in the sample's field json.
    +--on-conflict  Field that two sets have: fail, keep the earlier set's field (left), keep the later set's field
        (right), or keep both with a number (txt and 2.txt). Default: error for sets, right for a table.
    """)
@panel("Errors")("""
    --on-duplicate  Repeated key: fail, skip, new key, or list.
    """)
class MergeOptions(NamedTuple):
    """The options about how several sets become one set."""

    weights: Text = None
    stop: Literal["first", "all"] | None = None
    join: Literal["inner", "left", "outer"] | None = None
    table: Texts = None
    key: Text = None
    field: Texts = None
    json_rest: bool = False
    on_conflict: Literal["error", "left", "right", "suffix"] | None = None
    on_duplicate: Literal["error", "skip", "rekey", "list"] = "error"
    cells: CellOptions = CellOptions()

    def parse_join(self, on: str | None, shards: Sequence[str]) -> "Join | None":
        """Return the join that the options describe, or None. ``on`` is the option of this name, and
        ``shards`` are the sets. Raises UsageError for options that exclude each other."""
        if not self.table and (self.key is not None or self.field or self.json_rest):
            raise UsageError(
                "--key-column, --column and --json-rest need --table",
                hint="--table captions.csv --key-column id --column txt=caption",
            )
        reading = self.cells.parse("table" if self.table else None)
        if self.join is None and not self.table:
            if self.on_conflict is not None:
                raise UsageError("--on-conflict needs a join", hint="--join inner, left or outer")
            return None
        from wdscli.create.join_table import SetByValue, TableSet
        from wdscli.plan.join import Join

        table: JoinedTable | None = None
        if self.table:
            key, expression = self._key(on)
            if key is None or not (self.field or self.json_rest):
                raise UsageError(
                    "--table needs --key-column and --column or --json-rest",
                    hint=f"--table {self.table[0]} --key-column id --column txt=caption",
                )
            fields = tuple(self.field or ())
            table = TableSet(
                tuple(self.table), key, fields, self.json_rest, expression, self.has_lists, reading
            )
        elif on is not None:
            if len(shards) != 2 or self.join == "outer":
                raise UsageError(
                    "--on joins two sets, inner or left", hint="wds merge A B --join left --on json.url"
                )
            table = SetByValue(shards[1], "key", (), on=on)
        return Join(self.join or "left", self.on_conflict, table)

    @property
    def has_lists(self) -> bool:
        """Whether the rows of a table with the same key become lists. Raises UsageError without a table."""
        if self.on_duplicate == "list" and (not self.table or self.json_rest):
            raise UsageError(
                "--on-duplicate list needs --table, and excludes --json-rest",
                hint="--table t.csv --key-column id --column captions.json=caption --on-duplicate list",
            )
        return self.on_duplicate == "list"

    def _key(self, on: str | None) -> tuple[str | None, str]:
        """Return the column with the keys of a table, and the expression that is compared with it. Raises
        UsageError."""
        if on is None:
            return self.key, ""
        from wdscli.selection.listed import column_and_value

        column, value = column_and_value(on)
        if self.key is not None and column != "key":
            raise UsageError(f"--on {on} and --key-column both name a column", hint=f"--on {value.text}")
        return self.key or column, value.text


@grouped
def merge(*, shards: Sets, output: OutputOptions, sets: MergeOptions, options: ReorderOptions) -> None:
    """Write several sets as one: one after the other, interleaved, or joined by key.

    Each argument is a set. Shards hold at most 1 GB. -o NAME.json writes a view.

    Examples:

        wds merge 'small-{000000..000009}.tar' -o 'large-%06d.tar' --max-size 1GB
        wds merge real/ drawn/ -o 'mix-%06d.tar' --weights 0.7,0.3 --stop first
        wds merge images/ --table captions.csv --key-column id \\
            --column txt=caption -o 'captioned-%06d.tar'
        wds merge crawl-1/ crawl-2/ -o 'all-%06d.tar' --dedup jpg
    """
    from wdscli.plan.orders import merge_order

    selection = options.inputs.selection
    if joins := bool(sets.join or sets.table):
        # The option belongs to the join.
        options = options._replace(inputs=options.inputs._replace(selection=selection._replace(on=None)))
    out, request = read_options(shards, output, options)
    if sets.has_lists:
        request = request._replace(on_duplicate="error")
    how = sets.parse_join(selection.on if joins else None, shards)
    if how is not None:
        if not sets.table and how.table is not None:
            request = request._replace(inputs=shards[:1])
        for name, value in (("weights", sets.weights), ("stop", sets.stop)):
            if value:
                raise UsageError(
                    f"--{name} cannot change the order of a join: samples are in the order of the first set",
                    hint=f"leave out --{name}, or join the sets first",
                )
    order = how or merge_order(request, weights=sets.weights, stop=sets.stop)
    reorder(out, request, order, dry_run=output.dry_run)
