"""Tables, one row a sample: CSV, TSV, JSON Lines, and Parquet with an extra.

What it is: :func:`read_rows`, the rows of a file as dictionaries; :class:`TableReader`, which knows which column is the
key, which columns are payloads (``--column EXT=COLUMN``), which name files or addresses (``--column EXT=@COLUMN``), and
whether the rest goes into ``json``; and :func:`read_table`, which makes files of that. How: the format is told by the
address's suffix, or else by the first bytes; all but Parquet are read as streams, compressed or not, from any address.
Text of CSV and TSV is UTF-8 with or without a byte order mark. It goes row by row, and values go to the payloads, so
that memory does not grow with the table. An empty cell of CSV and TSV, and null, are no value: the sample has no such
field. Parquet's lists of numbers keep their type.

It must not know how samples are ordered.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from string import Formatter
from typing import Any, NamedTuple

from wdscli.codecs.cells import TypedList, cell_payload, json_bytes
from wdscli.create.files import Files, Skipped
from wdscli.create.keys import KeyRule, check_written
from wdscli.create.payloads import Payloads
from wdscli.errors import DataError, InputError, UsageError, WdsError
from wdscli.model import to_bytes, to_text
from wdscli.progress import QUIET, Progress
from wdscli.storage import addresses_of, base_name, is_local, open_source
from wdscli.storage.opening import COMPRESSED_SUFFIX
from wdscli.storage.streams import stream_of

_FORMATS = ("csv", "tsv", "jsonl", "parquet")
_OTHER_SUFFIXES = {"tab": "tsv", "ndjson": "jsonl"}
_PARQUET_BATCH_ROWS = 256
_PROGRESS_ROWS = 256


def read_rows(address: str) -> Iterator[dict[str, Any]]:
    """The rows in order. Raises InputError, DataError ``bad-table``, and UsageError when the extra is
    missing."""
    suffix = re.sub(COMPRESSED_SUFFIX, "", base_name(address)).rpartition(".")[2].lower()
    kind = _OTHER_SUFFIXES.get(suffix, suffix)
    if kind == "parquet":
        yield from _parquet(address)
        return
    with open_source(address) as source:
        stream = stream_of(source)
        if kind not in _FORMATS:
            # An object begins JSON Lines, a TAB in the header TSV.
            line = stream.peek(4096).removeprefix(b"\xef\xbb\xbf").lstrip().partition(b"\n")[0]
            kind = "jsonl" if line.startswith(b"{") else "tsv" if b"\t" in line else "csv"
        newline = "\n" if kind == "jsonl" else ""
        text = io.TextIOWrapper(stream, "utf-8-sig", "surrogateescape", newline=newline)
        yield from _json_lines(text, address) if kind == "jsonl" else _delimited(text, address, kind)


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
            for batch in table.iter_batches(_PARQUET_BATCH_ROWS):
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


class TableOptions(NamedTuple):
    """``address`` may be several, whose rows come one after the other, and each of which has all columns; ``key`` is a
    column, or ``rekey`` a format over columns and ``index`` (the row's number, from 0, in all of them); ``fields`` are
    ``EXT=COLUMN`` and ``EXT=@COLUMN``; ``json_rest`` puts the columns that remain into the field ``json``."""

    address: str | Sequence[str]
    key: str | None = None
    rekey: str | None = None
    fields: Sequence[str] = ()
    json_rest: bool = False


class _Field(NamedTuple):
    """One field of the samples: its name, its column, and whether the column says where the payload is."""

    name: bytes
    column: str
    is_address: bool


class Row(NamedTuple):
    """One row: its file and number there (from 1), its number in all files (from 0), and what it has by column."""

    file: str
    number: int
    place: int
    cells: Mapping[str, Any]

    def named(self, error: WdsError) -> WdsError:
        """An error that says in which row it was."""
        error.message = f"{self.file}, row {self.number}: {error.message}"
        return error


class Value(NamedTuple):
    """What a row has for one field of its sample: bytes, the address of a payload as text, or nothing. ``key`` is the
    sample's key as it is written."""

    key: bytes
    field: bytes
    value: bytes | str | None


class TableReader:
    """Rows, and the keys and values in them. Raises UsageError for options that cannot be meant."""

    def __init__(self, options: TableOptions, rule: KeyRule | None = None) -> None:
        self._options = options
        self._rule = rule or KeyRule()
        if (options.key is None) == (options.rekey is None):
            raise UsageError(
                "a table needs one of --key-column and --rekey",
                hint="--key-column id, or --rekey '{split}/{index:08d}'",
            )
        self._fields = [_parse_field(text) for text in options.fields]
        names = [field.name for field in self._fields] + [b"json"] * options.json_rest
        for name in names:
            if names.count(name) > 1:
                raise UsageError(
                    f'two columns for the field "{to_text(name)}"', hint="give each --column its own name"
                )
        if not names:
            raise UsageError(
                "a table needs at least one --column, or --json-rest", hint="--column jpg=@path --json-rest"
            )
        self._used = {field.column for field in self._fields} | _columns_of(options)

    def rows(self, option: str, progress: Progress) -> Iterator[Row]:
        """The rows of all files, which ``option`` named. Raises UsageError for a column that no row of a file has, and
        what :func:`read_rows` raises."""
        index = 0
        for file in addresses_of(self._options.address, option):
            unseen = set(self._used)
            cells: Mapping[str, Any] = {}
            for number, cells in enumerate(read_rows(file), 1):
                yield Row(file, number, index, cells)
                index += 1
                if unseen:
                    unseen -= cells.keys()
                if number % _PROGRESS_ROWS == 0:
                    progress.advance(_PROGRESS_ROWS)
            if unseen and cells:
                # A row of JSON Lines may leave a column out; none that has it is a mistake in the options.
                raise _no_column(min(unseen), cells)

    def key(self, row: Row) -> bytes:
        """The key of a row as the table has it. Raises UsageError for a column that is not there, DataError."""
        key, rekey = self._options.key, self._options.rekey
        if key is not None:
            if key not in row.cells:
                raise _no_column(key, row.cells)
            value = row.cells[key]
            if value is None:
                raise DataError(f'no key in column "{key}"', code="bad-table")
            return to_bytes(str(value))
        try:
            return to_bytes(str(rekey).format_map({**row.cells, "index": row.place}))
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise DataError(f'--rekey "{rekey}" cannot be filled in: {error}', code="bad-table") from None

    def values(self, row: Row, key: bytes) -> Iterator[Value]:
        """What a row of this key has, for each field. Raises DataError."""
        for name, column, is_address in self._fields:
            value = row.cells.get(column)
            if value is None:
                yield Value(key, name, None)
                continue
            written = self._written(key, name)
            yield Value(
                written, name, str(value) if is_address else cell_payload(value, column, to_text(name))
            )
        if self._options.json_rest:
            rest = {name: value for name, value in row.cells.items() if name not in self._used}
            yield Value(self._written(key, b"json"), b"json", json_bytes(rest))

    def _written(self, key: bytes, field: bytes) -> bytes:
        """The key as it is written; only a rule other than first-dot may take dots out of it."""
        if not self._rule.is_first_dot:
            key = self._rule.written(key)
        elif b"." in key[key.rfind(b"/") + 1 :]:
            raise DataError(
                f'the key "{to_text(key)}" has a dot, at which readers would end it',
                code="unsafe-name",
                hint="--key-rule last-dot writes _ for the dots of keys",
            )
        check_written(key, field, "unsafe name")
        return key


def _no_column(name: str, row: Mapping[str, Any]) -> UsageError:
    return UsageError(f'there is no column "{name}"', hint=f"there are {', '.join(row)}")


def _parse_field(text: str) -> _Field:
    name, equals, column = text.partition("=")
    is_address = column.startswith("@")
    column = column.removeprefix("@")
    if not equals or not name or not column or "/" in name:
        raise UsageError(
            f'--column "{text}" is not EXT=COLUMN or EXT=@COLUMN',
            hint="--column txt=caption --column jpg=@path",
        )
    return _Field(to_bytes(name), column, is_address)


def _columns_of(options: TableOptions) -> set[str]:
    """The columns that the key is made of."""
    if options.key is not None:
        return {options.key}
    try:
        names = {name for _, name, _, _ in Formatter().parse(options.rekey or "") if name is not None}
    except ValueError as error:
        raise UsageError(f'cannot use --rekey "{options.rekey}": {error}') from None
    if not names or any(not name or "." in name or "[" in name for name in names):
        raise UsageError(
            f'cannot use --rekey "{options.rekey}"', hint="use columns and {index}: '{split}/{index:08d}'"
        )
    return names - {"index"}


def read_table(
    options: TableOptions,
    rule: KeyRule,
    files: Files,
    payloads: Payloads,
    skipped: Skipped,
    progress: Progress = QUIET,
) -> None:
    """Add the samples of a table. Raises UsageError for a column that is not there, InputError, and DataError
    with the row's number for a row that cannot be used."""
    reader = TableReader(options, rule)
    for row in reader.rows("--from-table", progress):
        files.begin_source()
        try:
            raw = reader.key(row)
            for key, field, value in reader.values(row, raw):
                if value is None:
                    skipped.add("no-value", raw + b"." + field)
                elif isinstance(value, str):
                    found = payloads.of_member(key, field, value, row.file)
                    if found is None:
                        skipped.add("no-source", key + b"." + field)
                    else:
                        files.add(key, field, *found)
                else:
                    files.add(key, field, len(value), payloads.keep(value))
        except UsageError:
            raise
        except WdsError as error:
            raise row.named(error) from None
