"""What tables, and what can be read as one, have in common: files of rows, and columns that become fields.

What it is: :class:`TableOptions`, how rows become samples, and :class:`Layout`, the files, how their rows are read, and
the options with what the layout knows by itself (the key of a line is its number). It must not read anything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

Kind = Literal["table", "lines", "hf", "coco"]
"""Tables; lines of text; datasets of Hugging Face's library; annotations as COCO has them."""
OPTIONS: dict[Kind, str] = {
    "table": "--from-table",
    "lines": "--from-lines",
    "hf": "--from-hf",
    "coco": "--from-coco",
}


class TableOptions(NamedTuple):
    """``address`` may be several, whose rows come one after the other, and each of which has all columns; ``key`` is a
    column, or ``rekey`` a format over columns and ``index`` (the row's number, from 0, in all of them); ``fields`` are
    ``EXT=COLUMN`` and ``EXT=@COLUMN``; ``json_rest`` puts the columns that remain into the field ``json``,
    ``json_merge`` into the JSON object that the sample's field ``json`` is already. ``kind`` says what the addresses
    are, and ``images`` the folder of COCO's pictures."""

    address: str | Sequence[str]
    key: str | None = None
    rekey: str | None = None
    fields: Sequence[str] = ()
    json_rest: bool = False
    json_merge: bool = False
    kind: Kind = "table"
    images: str | None = None


class Layout(NamedTuple):
    """Files, the rows of each (with the columns that will be looked at, and whether all others are wanted too), and the
    options as they are meant; ``classes`` are the names of the numbers in the field ``cls``, where they are known."""

    files: Sequence[str]
    rows: Callable[[str, Collection[str], bool], Iterator[Mapping[str, Any]]]
    options: TableOptions
    classes: tuple[str, ...] | None = None
