"""``--join`` and ``--table`` of ``wds merge``: the options, what they mean together, and what is said of the result.

The annotations of a group are real objects (see ``cli/options.py``), so this module has no ``from __future__ import
annotations``.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from wdscli.cli.made import plural
from wdscli.errors import UsageError

if TYPE_CHECKING:
    from wdscli.plan.join.join import Join
    from wdscli.plan.join.joined import JoinCounts

_JOIN = "Join"


class JoinOptions(NamedTuple):
    """How fields of several sets come beside each other."""

    join: Annotated[
        Literal["inner", "left", "outer"] | None,
        typer.Option(
            "--join",
            help="Put the fields of the sets beside each other, by key: for keys that all sets have, that the first "
            "has, or that any has. Default with --table: left.",
            show_default=False,
            rich_help_panel=_JOIN,
        ),
    ] = None
    table: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            metavar="FILE",
            help="Join a table, as the last set: CSV, TSV, JSON Lines, or Parquet with an extra. Several are one, "
            "row after row.",
            rich_help_panel=_JOIN,
        ),
    ] = None
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar="COLUMN", help="The table's column that is the key.", rich_help_panel=_JOIN
        ),
    ] = None
    field: Annotated[
        list[str] | None,
        typer.Option(
            "--field",
            metavar="EXT=[@]COLUMN",
            help="A field from the table's column; with @ the column names a file. May be given more than once.",
            rich_help_panel=_JOIN,
        ),
    ] = None
    on_conflict: Annotated[
        Literal["error", "left", "right", "suffix"] | None,
        typer.Option(
            "--on-conflict",
            help="A field that an earlier set has: stop, keep the earlier, take the later, or keep both (2.txt beside "
            "txt). Default: error between sets, right for a table.",
            show_default=False,
            rich_help_panel=_JOIN,
        ),
    ] = None

    def parse(self) -> "Join | None":
        """How sets are joined; None when no join is asked for. Raises UsageError for options that mean nothing
        together."""
        if not self.table and (self.key is not None or self.field):
            raise UsageError(
                "--key and --field are of a table", hint="--table captions.csv --key id --field txt=caption"
            )
        if self.join is None and not self.table:
            if self.on_conflict is not None:
                raise UsageError("--on-conflict is of a join", hint="--join inner, left or outer")
            return None
        from wdscli.create.join_table import Table
        from wdscli.plan.join.join import Join

        table = None
        if self.table:
            if self.key is None or not self.field:
                raise UsageError(
                    "a table needs --key and --field",
                    hint=f"--table {self.table[0]} --key id --field txt=caption",
                )
            table = Table(tuple(self.table), self.key, tuple(self.field))
        return Join(self.join or "left", self.on_conflict, table)


def check_alone(**others: object) -> None:
    """Raise UsageError for options that bring samples into an order or leave some out, beside a join."""
    for name, value in others.items():
        if value:
            raise UsageError(f"--{name} is not for a join, whose samples come in the first set's order")


def joined_object(found: "JoinCounts") -> dict[str, Any]:
    """What a join found, as JSON has it."""
    return {
        "matched": found.matched,
        "unmatched": list(found.unmatched),
        "partners": found.partners,
        "fields_replaced": found.replaced,
        "fields_left_out": found.left_out,
        "fields_renamed": found.renamed,
    }


def joined_lines(found: "JoinCounts") -> list[str]:
    """What a join found, for people."""
    alone = [f"{count} of set {number}" for number, count in enumerate(found.unmatched, 1) if count]
    lines = [
        f"{plural(found.matched, 'key')} in all sets" + (f", not in all: {', '.join(alone)}" if alone else "")
    ]
    counts = {"replaced": found.replaced, "left out": found.left_out, "renamed": found.renamed}
    conflicts = [f"{count} {name}" for name, count in counts.items() if count]
    if conflicts:
        lines.append(f"fields that an earlier set has too: {', '.join(conflicts)}")
    return lines
