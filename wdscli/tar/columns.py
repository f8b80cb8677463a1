"""Members as parallel lists, and the error of a truncated one.

What it is: the result of a scan. Hot loops work on these lists; :meth:`Columns.member` makes a record of one row.
It must not know how the lists are filled.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from wdscli.errors import DataError
from wdscli.model import Member, to_text
from wdscli.tar.header import KIND_MASK, KIND_NAMES

CUT_SHORT = "the shard is incomplete: copy it again, or save whole samples with `wds repair -o OUT`"
"""The hint for an archive that ends too early."""


class Columns(NamedTuple):
    """Members as parallel lists. ``starts`` are the bytes of the first header block (extended headers included),
    ``offsets`` those of the payload, ``flags`` a kind (``KIND_MASK``) with FOREIGN and GLOBAL; 0 is a canonical
    regular member."""

    names: list[bytes]
    starts: list[int]
    offsets: list[int]
    sizes: list[int]
    flags: list[int]

    def part(self, first: int, end: int | None) -> Columns:
        """The rows from ``first`` up to ``end``; None for all the rest."""
        rows: list[Any] = [column[first:end] for column in self]
        return Columns(*rows)

    def member(self, row: int) -> Member:
        """One row as a public record."""
        kind = KIND_NAMES[self.flags[row] & KIND_MASK]
        return Member(to_text(self.names[row]), kind, self.starts[row], self.offsets[row], self.sizes[row])


def new_columns() -> Columns:
    return Columns([], [], [], [], [])


def cut(shard: str | None, columns: Columns, row: int, seen: int) -> DataError:
    """The error of an archive that ends ``seen`` bytes after the header of a member."""
    size = columns.sizes[row]
    return DataError(
        f"archive ends after {max(0, seen)} of {size} payload bytes"
        if seen < size
        else "archive ends inside a member's padding",
        code="truncated",
        shard=shard,
        offset=columns.starts[row],
        member=to_text(columns.names[row]),
        hint=CUT_SHORT,
    )
