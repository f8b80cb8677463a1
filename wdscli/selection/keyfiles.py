"""Files that list keys: one key per line, or a table with a column ``key``.

What it is: :func:`key_lines`. How: Parquet is recognised by its first bytes. A file named ``.csv``, ``.tsv`` or
``.jsonl`` is a table if its first line is a header or an object with ``key``. Any other file is a list, whose lines are
bytes. The tables of ``wds ls`` and ``wds index --for parquet``, and queries of them, can be read. It must not know
what the keys are for.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator
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
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise UsageError("reading Parquet needs pyarrow", hint="pip install 'wdscli[parquet]'") from None
    try:
        with ParquetFile(file) as table:
            names = table.schema_arrow.names
            if COLUMN not in names:
                raise InputError(
                    f'{address} has no column "{COLUMN}"', hint=f"it has {', '.join(map(str, names[:10]))}"
                )
            for batch in table.iter_batches(columns=[COLUMN]):
                yield from _texts(batch.column(0).to_pylist())
    except InputError:
        raise
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise InputError(f"cannot read {address}: {error}") from None


def _table_keys(data: bytes, kind: str, address: str) -> list[bytes] | None:
    """The keys of a table; None if the file is a list despite its name."""
    text = data.decode("utf-8-sig" if data.startswith(b"\xef\xbb\xbf") else "utf-8", "surrogateescape")
    try:
        if kind in ("jsonl", "ndjson"):
            return _json_keys(text, address)
        return _delimited_keys(text, "\t" if kind == "tsv" else ",")
    except (ValueError, RecursionError) as error:
        raise InputError(f"cannot read {address} as a table: {error}") from None


def _json_keys(text: str, address: str) -> list[bytes] | None:
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines or not lines[0].lstrip().startswith("{"):
        return None
    rows = map(json.loads, lines)
    return list(_texts([row.get(COLUMN) if isinstance(row, dict) else None for row in rows]))


def _delimited_keys(text: str, delimiter: str) -> list[bytes] | None:
    import csv

    csv.field_size_limit(1 << 30)
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        if COLUMN not in (reader.fieldnames or ()):
            return None
        return list(_texts([row[COLUMN] for row in reader]))
    except csv.Error as error:
        raise ValueError(str(error)) from None


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
