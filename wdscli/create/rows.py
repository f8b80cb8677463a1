"""Rows of a table, one dictionary a row, whatever the format.

What it is: readers for CSV, TSV, JSON Lines and Parquet. How: the format is told by the address's suffix, or
else by the first bytes; all but Parquet are read as streams, compressed or not, from any address. Text of CSV
and TSV is UTF-8 with or without a byte order mark; an empty cell is None. Parquet's lists of numbers keep their type.
It must not know what columns mean.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any

from wdscli.codecs.cells import TypedList
from wdscli.errors import DataError, InputError, UsageError
from wdscli.storage import Source, base_name, is_local, open_source
from wdscli.storage.opening import COMPRESSED_SUFFIX

_SUFFIXES = {
    "csv": "csv",
    "tsv": "tsv",
    "tab": "tsv",
    "jsonl": "jsonl",
    "ndjson": "jsonl",
    "parquet": "parquet",
}
_PARQUET_ROWS = 256


class _Raw(io.RawIOBase):
    """A source as the raw file that Python's text layer wants; with ``head`` read already."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._position = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._source.read_some(self._position, len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


def read_rows(address: str) -> Iterator[dict[str, Any]]:
    """The rows in order. Raises InputError, DataError ``bad-table``, and UsageError when the extra is
    missing."""
    suffix = re.sub(COMPRESSED_SUFFIX, "", base_name(address)).rpartition(".")[2].lower()
    kind = _SUFFIXES.get(suffix)
    if kind == "parquet":
        yield from _parquet(address)
        return
    with open_source(address) as source:
        stream = io.BufferedReader(_Raw(source), 1 << 16)
        kind = kind or _sniff(stream.peek(4096))
        newline = "\n" if kind == "jsonl" else ""
        text = io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline=newline)
        yield from _json_lines(text, address) if kind == "jsonl" else _delimited(text, address, kind)


def _sniff(head: bytes) -> str:
    """The format by its first bytes: an object begins JSON Lines, a TAB in the header TSV."""
    line = head.removeprefix(b"\xef\xbb\xbf").lstrip().partition(b"\n")[0]
    if line.startswith(b"{"):
        return "jsonl"
    return "tsv" if b"\t" in line else "csv"


def _delimited(text: io.TextIOWrapper, address: str, kind: str) -> Iterator[dict[str, Any]]:
    import csv

    csv.field_size_limit(1 << 30)
    reader = csv.reader(text, delimiter="\t" if kind == "tsv" else ",", strict=True)
    try:
        header = next(reader, None)
        if not header:
            raise DataError(f"{address} has no header line", code="bad-table")
        if len(set(header)) < len(header):
            raise DataError(f"{address} has two columns of one name", code="bad-table")
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                raise DataError(
                    f"{address}, line {reader.line_num}: {len(cells)} cells where the header has {len(header)}",
                    code="bad-table",
                )
            yield {name: cell or None for name, cell in zip(header, cells, strict=True)}
    except csv.Error as error:
        raise DataError(f"{address}, line {reader.line_num}: {error}", code="bad-table") from None


def _json_lines(text: io.TextIOWrapper, address: str) -> Iterator[dict[str, Any]]:
    import json

    for number, line in enumerate(text, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{address}, line {number}: not JSON: {error}", code="bad-table") from None
        if not isinstance(row, dict):
            raise DataError(f"{address}, line {number}: not a JSON object", code="bad-table")
        yield row


def _parquet(address: str) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise UsageError("Parquet needs an extra", hint="pip install 'wdscli[parquet]'") from None
    if not is_local(address):
        raise InputError(
            f"cannot read {address}: Parquet is read from local files only", hint="copy it here first"
        )
    try:
        with ParquetFile(address.removeprefix("file://")) as table:
            types = {column.name: _number_type(column.type, pyarrow) for column in table.schema_arrow}
            for batch in table.iter_batches(_PARQUET_ROWS):
                for row in batch.to_pylist():
                    for name, dtype in types.items():
                        if dtype and row[name] is not None:
                            row[name] = TypedList(row[name], dtype)
                    yield row
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(f"cannot read {address}: {error}") from None


def _number_type(kind: Any, pyarrow: Any) -> str:
    """numpy's name for the numbers of a column of lists; empty for columns that hold anything else."""
    types, depth = pyarrow.types, 0
    while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind, depth = kind.value_type, depth + 1
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    if not (depth and is_number):
        return ""
    import numpy

    return str(numpy.dtype(kind.to_pandas_dtype()).name)
