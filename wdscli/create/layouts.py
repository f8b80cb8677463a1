"""The options and layouts of tables: files of rows, and columns that become fields.

What it is: :class:`TableOptions`, how rows become samples; :class:`Layout`, the files, how their rows are read, and the
options completed by the kind of table (the key of a line is its number); and :func:`exported_layout`, for tables that
``wds cat`` wrote, whose columns are the key and the fields. It must not know where payloads go.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from wdscli.create.delimited import PLAIN, Reading
from wdscli.create.rows import class_names, read_exact
from wdscli.errors import DataError, UsageError
from wdscli.look.unpack import is_coded, kind_of
from wdscli.model import to_bytes, to_text
from wdscli.shards.tables import field_of_column

Kind = Literal["table", "lines", "hf", "coco"]
"""Tables; lines of text; datasets of Hugging Face's library; COCO annotations."""
OPTIONS: dict[Kind, str] = {
    "table": "--from",
    "lines": "--from lines:",
    "hf": "--from hf:",
    "coco": "--from coco:",
}


class TableOptions(NamedTuple):
    """``address`` is one or several tables, read one after the other, each with all columns. ``key`` is a column, or
    ``rekey`` a format over columns and ``index`` (the row's number in all tables, from 0). ``fields`` are
    ``EXT=COLUMN`` and ``EXT=@COLUMN``. ``json_rest`` puts the other columns into the field ``json``, ``json_merge``
    into the JSON object that the sample has in that field. ``kind`` is the kind of table, ``images`` the folder of
    COCO's pictures, and ``reading`` says how text becomes rows."""

    address: str | Sequence[str]
    key: str | None = None
    rekey: str | None = None
    fields: Sequence[str] = ()
    json_rest: bool = False
    json_merge: bool = False
    kind: Kind = "table"
    images: str | None = None
    reading: Reading = PLAIN

    @property
    def is_exported(self) -> bool:
        """Whether no option names a column, which only tables of ``wds cat`` do not need."""
        named = (self.key, self.rekey, *self.fields, self.json_rest, self.json_merge)
        return self.kind == "table" and not any(named)


class Layout(NamedTuple):
    """The files; a function that reads a file's rows (its arguments: the columns in use, and whether all others are
    needed too); the completed options; and the class names of the numbers in the field ``cls``, if known. With
    ``has_samples`` a row has payloads by field, and its key in the column :data:`SAMPLE_KEY`."""

    files: Sequence[str]
    rows: Callable[[str, Collection[str], bool], Iterator[Mapping[str, Any]]]
    options: TableOptions
    classes: tuple[str, ...] | None = None
    has_samples: bool = False


SAMPLE_KEY = ""
"""A name that no field has."""
KEY_HINT = "--key-column id, or --rekey '{split}/{index:08d}'"
_KEY = "key"
_AFTER_BLANKS = re.compile(r"[ \t\r\n:,]*")
_LINE = {_KEY, "shard", "index", "fields"}


def exported_layout(options: TableOptions, files: Sequence[str]) -> Layout:
    """The layout of tables that ``wds cat`` wrote as Parquet, TSV or JSON Lines."""
    classes = {class_names(file, "cls") for file in files}
    return Layout(
        files,
        lambda file, *_: _samples(file, options.reading),
        options._replace(key=SAMPLE_KEY),
        classes.pop() if len(classes) == 1 else None,
        has_samples=True,
    )


def _samples(file: str, reading: Reading) -> Iterator[Mapping[str, Any]]:
    """The key and the payloads of each row. Raises UsageError for a table that ``wds cat`` did not write."""
    for kind, row, line in read_exact(file, reading, (_KEY,)):
        if next(iter(row), None) != _KEY or (kind == "jsonl" and row.keys() != _LINE):
            raise UsageError(
                "a table needs one of --key-column and --rekey",
                hint=f"{KEY_HINT}; only tables that wds cat wrote need neither",
            )
        sample = {SAMPLE_KEY: row.pop(_KEY)}
        if kind == "jsonl":
            fields = _payloads_of_line(row["fields"], line)
        else:
            fields = {
                to_text(field_of_column(name)): _payload(kind, name, cell)
                for name, cell in row.items()
                if cell is not None
            }
        yield sample | fields


def _payload(kind: str, column: str, cell: Any) -> bytes:
    """The payload in a cell. Raises DataError."""
    if isinstance(cell, bytes):
        return cell
    if not isinstance(cell, str):
        raise _no_payload(column, f"{type(cell).__name__} is neither text nor bytes")
    is_text = kind == "parquet" or kind_of(field_of_column(column))
    return to_bytes(cell) if is_text else _decoded(cell, column)


def _payloads_of_line(fields: Any, line: str) -> dict[str, bytes]:
    """The payloads in a line of JSON; JSON fields keep their text. Raises DataError."""
    if not isinstance(fields, dict):
        raise _no_payload("fields", "it is not a JSON object")
    found: dict[str, bytes] = {}
    texts: dict[str, str] = {}
    for name, value in fields.items():
        if is_coded(value) and "bytes" in value:
            raise _no_payload(
                name, "the line has only its size", "wds cat --to jsonl --base64 writes payloads"
            )
        if is_coded(value):
            found[name] = _decoded(value["base64"], name)
        elif kind_of(to_bytes(name)) == "json":
            texts = texts or dict(_members(dict(_members(line))["fields"]))
            found[name] = to_bytes(texts[name])
        elif isinstance(value, str):
            found[name] = to_bytes(value)
        else:
            raise _no_payload(name, f"{json.dumps(value)[:40]} is no text")
    return found


def _members(text: str) -> Iterator[tuple[str, str]]:
    """The names in a valid JSON object, and the text of their values."""
    decode, at = json.JSONDecoder().raw_decode, text.index("{") + 1
    while (at := _AFTER_BLANKS.match(text, at).end()) < len(text) and text[at] != "}":  # type: ignore[union-attr]
        name, at = decode(text, at)
        begin = _AFTER_BLANKS.match(text, at).end()  # type: ignore[union-attr]
        _, at = decode(text, begin)
        yield name, text[begin:at]


def _decoded(text: Any, column: str) -> bytes:
    try:
        data = b64decode(text, validate=True)
    except (TypeError, ValueError):
        data = None
    if data is None or b64encode(data).decode("ascii") != text:
        raise _no_payload(column, f"{str(text)[:40]!r} is no base 64")
    return data


def _no_payload(column: str, why: str, hint: str | None = None) -> DataError:
    return DataError(
        f'column "{column}" was not written by wds cat: {why}',
        code="bad-value",
        hint=hint or f"--key-column key --column {column}={column} reads other tables",
    )
