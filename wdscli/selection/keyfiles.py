"""This module reads files that list keys: one key per line, or a table with a column ``key``.

:func:`key_lines` yields the keys of a file. :class:`NumbersByKey` has the numbers in another column of a table. Parquet
is recognised by its first bytes. A file named ``.csv``, ``.tsv`` or ``.jsonl`` is a table if its first line is a header
or an object with ``key``. Any other file is a list, whose lines are bytes. The tables of ``wds ls`` and ``wds index
--for parquet``, and queries of them, can be read. The module does not know what the keys are for.
"""

from __future__ import annotations

import io
import json
import os
import re
from array import array
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from wdscli.arrays import U64, numpy
from wdscli.errors import InputError, UsageError
from wdscli.selection.values import MISSING, GrowingNumbers, Numbers
from wdscli.storage import base_name, is_local, local_path, open_source, read_all
from wdscli.text import to_bytes

COLUMN = "key"
_PARQUET = b"PAR1"
_TABLE = re.compile(r"\.(csv|tsv|jsonl|ndjson)$")


def key_lines(address: str, column: str = COLUMN) -> Iterator[bytes]:
    """Yield the keys of a file in order; in a table, they are in ``column``. In a list, blank lines, carriage returns
    at the ends of lines and a byte order mark are ignored. Raises InputError for a broken table, and UsageError if a
    package is missing."""
    parquet, data = _read(address)
    if parquet is not None:
        for (cells,) in _parquet_columns(parquet, address, lambda names: [column], column):
            yield from _texts(cells)
        return
    table = _TABLE.search(base_name(address).lower())
    try:
        rows = None if table is None else _table_rows(data, table[1], column)
        keys = None if rows is None else list(_texts(row.get(column) for row in rows))
    except (ValueError, RecursionError) as error:
        raise InputError(f"cannot read {address} as a table: {error}") from None
    if keys is not None:
        yield from keys
        return
    if column != COLUMN:
        raise _lacks(address, (), column)
    lines = (line.removesuffix(b"\r") for line in data.removeprefix(BOM_UTF8).split(b"\n"))
    yield from (key for key in lines if key.strip())


def _read(address: str) -> tuple[Any, bytes]:
    """Return a Parquet file to open, or None and the bytes of another file. A local Parquet file is not read as a
    whole, because other columns may be payloads."""
    if is_local(address):
        with open_source(address, decompress=False) as source:
            if source.seekable and source.peek(len(_PARQUET)) == _PARQUET:
                return local_path(address), b""
    data = read_all(address)
    return io.BytesIO(data) if data.startswith(_PARQUET) else None, data


def _parquet_columns(
    file: Any, address: str, choose: Callable[[list[str]], list[str]], column: str = COLUMN
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
            if column not in names:
                raise _lacks(address, names, column)
            chosen = choose(names)
            for batch in table.iter_batches(columns=chosen):
                yield [batch.column(name).to_pylist() for name in chosen]
    except InputError:
        raise
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise InputError(f"cannot read {address}: {error}") from None


def _lacks(address: str, names: Iterable[str], column: str = COLUMN) -> InputError:
    return InputError(
        f'{address} has no column "{column}"',
        hint=f"it has {', '.join(map(str, list(names)[:10]))}"
        if names
        else "a table is a .csv, .tsv, .jsonl or Parquet",
    )


def _table_rows(data: bytes, kind: str, column: str = COLUMN) -> Iterator[dict[str, Any]] | None:
    """The rows of a table; None if the file is a list despite its name. Raises ValueError, RecursionError, now or from
    the iterator."""
    encoding = "utf-8-sig" if data.startswith(BOM_UTF8) else "utf-8"
    is_lines = kind in ("jsonl", "ndjson")
    file = io.TextIOWrapper(io.BytesIO(data), encoding, "surrogateescape", newline="\n" if is_lines else "")
    if not is_lines:
        from wdscli.codecs.cells import delimiter_of

        delimiter = "\t" if kind == "tsv" else delimiter_of(file.readline())
        file.seek(0)
        return _delimited_rows(file, delimiter, column)
    lines = (line for line in file if line.strip())
    first = next(lines, "")
    if not first.lstrip().startswith("{"):
        return None
    return (row if isinstance(row, dict) else {} for row in map(json.loads, chain([first], lines)))


def _delimited_rows(file: Iterable[str], delimiter: str, column: str) -> Iterator[dict[str, Any]] | None:
    import csv

    csv.field_size_limit(1 << 30)
    reader = csv.DictReader(file, delimiter=delimiter, strict=True)

    def rows() -> Iterator[dict[str, Any]]:
        try:
            yield from reader
        except csv.Error as error:
            raise ValueError(str(error)) from None

    try:
        return rows() if column in (reader.fieldnames or ()) else None
    except csv.Error as error:
        raise ValueError(str(error)) from None


class NumbersByKey:
    """The numbers of a table by key. They are in the column ``name``, or else in the only other column. Empty cells do
    not count. If two rows have the same key, the last row counts. Each row needs 24 bytes of memory, and twice as much
    while the table is read. The file is in memory too, unless it is a local Parquet file. Keys are identified by their
    128-bit XXH3 with a secret seed. Raises InputError, UsageError if a package is missing.
    """

    def __init__(self, address: str, name: str) -> None:
        from xxhash import xxh3_128_intdigest

        self._seed = int.from_bytes(os.urandom(8), "little")
        lows, highs, numbers = array("Q"), array("Q"), GrowingNumbers()
        try:
            for key, number in _numbered(address, name):
                digest = xxh3_128_intdigest(key, self._seed)
                lows.append(digest & _LOW)
                highs.append(digest >> 64)
                numbers.add(number)
        except (ValueError, RecursionError) as error:
            raise InputError(f"cannot read {address} as a table: {error}") from None
        low_halves: U64 = numpy.array(lows, dtype=numpy.uint64)
        order = low_halves.argsort(kind="stable")
        self._lows, self._highs = low_halves[order], numpy.array(highs, dtype=numpy.uint64)[order]
        self._numbers = Numbers(numbers.numbers().array[order], exact=False)

    def of(self, keys: Iterable[bytes]) -> Numbers:
        """Return the number of each key; missing if the table has no number for a key."""
        from xxhash import xxh3_128_intdigest

        digests = [xxh3_128_intdigest(key, self._seed) for key in keys]
        lows: U64 = numpy.array([digest & _LOW for digest in digests], dtype=numpy.uint64)
        highs: U64 = numpy.array([digest >> 64 for digest in digests], dtype=numpy.uint64)
        numbers = Numbers(numpy.full(len(lows), MISSING, dtype=numpy.int64), exact=False)
        if self._numbers.array.dtype.kind == "f":
            numbers = numbers.as_float()
        # Before this row are all rows with the same lower half, the last row of a key first.
        table_rows = self._lows.searchsorted(lows, "right") - 1
        rows = numpy.arange(len(lows))
        while len(rows):
            rows = rows[(table_rows[rows] >= 0) & (self._lows[table_rows[rows]] == lows[rows])]
            is_same = self._highs[table_rows[rows]] == highs[rows]
            same = rows[is_same]
            numbers.array[same] = self._numbers.array[table_rows[same]]
            rows = rows[~is_same]
            table_rows[rows] -= 1
        return numbers


_LOW = (1 << 64) - 1


def _numbered(address: str, name: str) -> Iterator[tuple[bytes, float]]:
    """Keys and numbers of a table. Raises ValueError, RecursionError, InputError."""

    def choose(names: list[str]) -> list[str]:
        value_columns = [value_name for value_name in names if value_name != COLUMN]
        if name not in names and len(value_columns) != 1:
            raise _lacks(address, names, name)
        return [COLUMN, name if name in names else value_columns[0]]

    parquet, data = _read(address)
    if parquet is not None:
        for keys, cells in _parquet_columns(parquet, address, choose):
            yield from _numbers(keys, cells)
        return
    match = _TABLE.search(base_name(address).lower())
    rows = None if match is None else _table_rows(data, match[1])
    first = None if rows is None else next(rows, None)
    if rows is None or first is None:
        raise _lacks(address, ())
    key, column = choose(list(first))
    for row in chain([first], rows):
        yield from _numbers([row.get(key)], [row.get(column)])


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
