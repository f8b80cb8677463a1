"""This module reads files that list keys: one key per line, or a table with a column ``key``.

:func:`key_lines` gives the keys of a file, :func:`numbers_by_key` the numbers in another column of a table. Parquet is
recognised by its first bytes. A file named ``.csv``, ``.tsv`` or ``.jsonl`` is a table if its first line is a header or
an object with ``key``. Any other file is a list, whose lines are bytes. The tables of ``wds ls`` and ``wds index --for
parquet``, and queries of them, can be read. The module does not know what the keys are for.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from wdscli.errors import InputError, UsageError
from wdscli.model import to_bytes
from wdscli.storage import base_name, is_local, local_path, open_source, read_all

COLUMN = "key"
_PARQUET = b"PAR1"
_TABLE = re.compile(r"\.(csv|tsv|jsonl|ndjson)$")


def key_lines(address: str) -> Iterator[bytes]:
    """The keys of a file in order. Blank lines of a list, and a carriage return at the end of a line, do not count.
    Raises InputError for a broken table, UsageError if a package is missing."""
    if is_local(address) and _begins_as_parquet(address):
        yield from _parquet_keys(local_path(address), address)
        return
    data = read_all(address)
    if data.startswith(_PARQUET):
        yield from _parquet_keys(io.BytesIO(data), address)
        return
    table = _TABLE.search(base_name(address).lower())
    keys = None if table is None else _table_keys(data, table[1], address)
    if keys is not None:
        yield from keys
        return
    lines = (line.removesuffix(b"\r") for line in data.split(b"\n"))
    yield from (key for key in lines if key.strip())


def _begins_as_parquet(address: str) -> bool:
    """Whether a file is Parquet, which is not read whole, because its other columns may be payloads."""
    with open_source(address, decompress=False) as source:
        return source.seekable and source.peek(len(_PARQUET)) == _PARQUET


def _parquet_keys(file: Any, address: str) -> Iterator[bytes]:
    for columns in _parquet_columns(file, address, lambda names: [COLUMN]):
        yield from _texts(columns[0])


def _parquet_columns(
    file: Any, address: str, choose: Callable[[list[str]], list[str]]
) -> Iterator[list[list[Any]]]:
    """Cells of the columns that ``choose`` returns for the names of all columns, some thousand rows at a time."""
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise UsageError("reading Parquet needs pyarrow", hint="pip install 'wdscli[parquet]'") from None
    try:
        with ParquetFile(file) as table:
            names = table.schema_arrow.names
            if COLUMN not in names:
                raise _lacks(address, names)
            chosen = choose(names)
            for batch in table.iter_batches(columns=chosen):
                yield [batch.column(name).to_pylist() for name in chosen]
    except InputError:
        raise
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise InputError(f"cannot read {address}: {error}") from None


def _lacks(address: str, names: Iterable[str], column: str = COLUMN) -> InputError:
    return InputError(
        f'{address} has no column "{column}"', hint=f"it has {', '.join(map(str, list(names)[:10]))}"
    )


def _table_keys(data: bytes, kind: str, address: str) -> list[bytes] | None:
    """The keys of a table; None if the file is a list despite its name."""
    try:
        rows = _table_rows(data, kind)
        return None if rows is None else list(_texts(row.get(COLUMN) for row in rows))
    except (ValueError, RecursionError) as error:
        raise InputError(f"cannot read {address} as a table: {error}") from None


def _table_rows(data: bytes, kind: str) -> list[dict[str, Any]] | None:
    """The rows of a table; None if the file is a list despite its name. Raises ValueError, RecursionError."""
    text = data.decode("utf-8-sig" if data.startswith(b"\xef\xbb\xbf") else "utf-8", "surrogateescape")
    if kind not in ("jsonl", "ndjson"):
        return _delimited_rows(text, "\t" if kind == "tsv" else ",")
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines or not lines[0].lstrip().startswith("{"):
        return None
    return [row if isinstance(row, dict) else {} for row in map(json.loads, lines)]


def _delimited_rows(text: str, delimiter: str) -> list[dict[str, Any]] | None:
    import csv

    csv.field_size_limit(1 << 30)
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        return None if COLUMN not in (reader.fieldnames or ()) else list(reader)
    except csv.Error as error:
        raise ValueError(str(error)) from None


def numbers_by_key(address: str, name: str) -> dict[bytes, float]:
    """The numbers of a table by key: those in the column ``name``, else those in the only other column. Empty cells do
    not count; of two rows of one key the last counts. Raises InputError, UsageError if a package is missing."""

    def choose(names: list[str]) -> list[str]:
        others = [one for one in names if one != COLUMN]
        if name not in names and len(others) != 1:
            raise _lacks(address, names, name)
        return [COLUMN, name if name in names else others[0]]

    found: dict[bytes, float] = {}
    data = read_all(address)
    try:
        if data.startswith(_PARQUET):
            for keys, cells in _parquet_columns(io.BytesIO(data), address, choose):
                found.update(_numbers(keys, cells))
            return found
        match = _TABLE.search(base_name(address).lower())
        rows = None if match is None else _table_rows(data, match[1])
        if not rows:
            raise _lacks(address, ())
        key, column = choose(list(rows[0]))
        found.update(_numbers([row.get(key) for row in rows], [row.get(column) for row in rows]))
    except (ValueError, RecursionError) as error:
        raise InputError(f"cannot read {address} as a table: {error}") from None
    return found


def _numbers(keys: Iterable[Any], cells: Iterable[Any]) -> Iterator[tuple[bytes, float]]:
    """Keys and numbers. Raises ValueError for a cell that is no number."""
    for key, cell in zip(keys, cells):
        if key is None or cell is None or cell == "":
            continue
        if isinstance(cell, str):
            number: Any = float(cell) if any(mark in cell.lower() for mark in ".ein") else int(cell)
        else:
            number = cell
        if not isinstance(number, int | float) or isinstance(number, bool):
            raise ValueError(f'"{str(cell)[:40]}" is not a number')
        if isinstance(number, int) and number.bit_length() > 63:
            raise ValueError(f"{number} has more than 63 bits")
        if number == number:
            yield key_of(key), number


def _texts(cells: Iterable[Any]) -> Iterator[bytes]:
    """Keys as bytes; empty cells do not count. Raises ValueError."""
    for cell in cells:
        if cell is not None and cell not in ("", b""):
            yield key_of(cell)


def key_of(cell: Any) -> bytes:
    """The key in a cell of a table: text, bytes or a whole number. Raises ValueError for anything else.

    >>> key_of("n01/7"), key_of(b"\\xff"), key_of(7)
    (b'n01/7', b'\\xff', b'7')
    """
    if isinstance(cell, bytes):
        return cell
    if isinstance(cell, str):
        return to_bytes(cell)
    if isinstance(cell, int) and not isinstance(cell, bool):
        return b"%d" % cell
    raise ValueError(f"neither text, bytes nor a whole number but {type(cell).__name__}: {str(cell)[:40]}")
