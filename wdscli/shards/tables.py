"""This module writes rows to a table, which is one file of CSV, TSV or Parquet.

:class:`Rows` takes cells and returns chunks of columns. :class:`Spool` keeps chunks in a temporary file until all
columns and their types are known. :func:`encoded` yields the bytes of the table. A table begins with the names and
types of its columns, but these are known only after the last row. So there is one pass over the data, and one pass over
the temporary file. Only one chunk and one row group are in memory. A caller that already knows all columns needs no
spool. Columns are sorted by group. In a group, they keep the order in which they were first seen.

A cell is None, a bool, an int, a float, text or bytes. The cell of a list or an object is a tuple with its JSON text. A
column of Parquet has the common type of its cells: int64 or uint64, double, boolean, string or binary. Double is also
used for whole numbers that it represents exactly, and binary if some text is not UTF-8. Cells without a common type are
written as JSON text. CSV has no types, so cells are written as they are. A missing cell is empty, and an empty text is
``""``.

This module does not know samples or where the bytes go.
"""

from __future__ import annotations

import io
import marshal
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from wdscli.arrays import Backing, Piece
from wdscli.errors import DataError, UsageError
from wdscli.text import to_bytes, to_text

Cell = None | bool | int | float | str | bytes | tuple[str]

MAX_COLUMNS = 1000
CHUNK_BYTES = 1 << 22
"""The most bytes of text and payloads in a chunk."""
CHUNK_CELLS = 1 << 17
ROW_GROUP_BYTES = 1 << 25
ROW_GROUP_ROWS = 1 << 17
_EXACT_IN_DOUBLE = 1 << 53
_SEPARATORS = {"csv": b",", "tsv": b"\t"}
FORMATS = (*_SEPARATORS, "parquet")
METADATA = "wdscli"
"""The key of wdscli's metadata in Parquet. The value is a JSON object; its ``classes`` has the class names for the
numbers in ``cls``."""


class TableColumn(NamedTuple):
    """A column has a group and a name. The prefix is added to the name if another column has the same name. In a
    ``text`` column, numbers are written as text if another cell is text."""

    group: int
    name: str
    owner: str = ""
    text: bool = False


class RowChunk(NamedTuple):
    """Some rows as columns. Each column has one cell per row."""

    rows: int
    columns: dict[TableColumn, list[Any]]


@lru_cache(1 << 12)
def field_column(group: int, prefix: str, field: bytes) -> TableColumn:
    """Return the column of a field."""
    return TableColumn(group, prefix + to_text(field), "field")


def column_of_field(field: bytes) -> str:
    """Return the name of a field's column in a table of payloads. It is UTF-8, and never the name of the key's column.
    :func:`field_of_column` is the inverse.

    >>> column_of_field(b"jpg"), column_of_field(b"key"), field_of_column("field.key")
    ('jpg', 'field.key', b'key')
    """
    text = to_text(field).replace("\\u", "\\u005cu").encode("utf-8", "backslashreplace").decode()
    return f"field.{text}" if re.fullmatch(r"(field\.)*key", text) else text


def field_of_column(column: str) -> bytes:
    """Return the field of a column of payloads."""
    name = column.removeprefix("field.") if re.fullmatch(r"(field\.)+key", column) else column
    return to_bytes(re.sub(r"\\u(005c|dc[89a-f][0-9a-f])", lambda match: chr(int(match[1], 16)), name))


KEY = TableColumn(0, "key")
SHARD = TableColumn(0, "shard")
INDEX = TableColumn(0, "index")
OFFSET = TableColumn(0, "offset")
"""The columns for a sample's place: its shard, its number in the shard (from 0), and the offset of its first header."""
PLACES = {KEY: "string", SHARD: "string", INDEX: "int64", OFFSET: "int64"}


class Rows:
    """Turns rows of cells into chunks of columns. Call :meth:`add` for each row, and :meth:`take` if :attr:`is_full`
    and at the end."""

    def __init__(self) -> None:
        self._columns: dict[TableColumn, list[Any]] = {}
        self._rows = self._bytes = 0

    def add(self, cells: Iterable[tuple[TableColumn, Cell]]) -> None:
        """Add a row. If a row has two cells for the same column, the first counts. Raises DataError for too many
        columns."""
        columns, rows = self._columns, self._rows
        for column, value in cells:
            values = columns.get(column)
            if values is None:
                if len(columns) >= MAX_COLUMNS:
                    raise _too_many()
                values = columns[column] = []
            missing = rows - len(values)
            if missing > 0:
                values.extend([None] * missing)
            if missing >= 0:
                values.append(value)
                if type(value) is str or type(value) is bytes:
                    self._bytes += len(value)
                elif type(value) is tuple:
                    self._bytes += len(value[0])
        self._rows += 1

    @property
    def is_full(self) -> bool:
        return self._bytes >= CHUNK_BYTES or self._rows * len(self._columns) >= CHUNK_CELLS

    def take(self) -> RowChunk:
        """Return all rows since the last call."""
        for values in self._columns.values():
            values.extend([None] * (self._rows - len(values)))
        chunk = RowChunk(self._rows, self._columns)
        self._columns, self._rows, self._bytes = {}, 0, 0
        return chunk


class _Seen:
    """The types of a column's cells so far, and the range of its whole numbers."""

    def __init__(self) -> None:
        self.types: set[type] = set()
        self.low = self.high = 0

    def look(self, values: list[Any]) -> None:
        types = set(map(type, values))
        if str in types:
            _escape(values)
            types = set(map(type, values))
        if int in types:
            numbers = values if types == {int} else [value for value in values if type(value) is int]
            self.low, self.high = min(self.low, min(numbers)), max(self.high, max(numbers))
        self.types |= types

    def kind(self, text: bool) -> str:
        """The type of the column."""
        types = self.types - {type(None)}
        if not types or types == {str} or (text and types == {int, str}):
            return "string"
        if types == {bool}:
            return "bool"
        if types == {int}:
            return self._whole(text)
        if types == {float}:
            return "double"
        if types == {int, float} and -_EXACT_IN_DOUBLE <= self.low <= self.high <= _EXACT_IN_DOUBLE:
            return "double"
        return "binary" if bytes in types and tuple not in types else "json"

    def _whole(self, text: bool) -> str:
        if self.low >= -(1 << 63) and self.high < 1 << 63:
            return "int64"
        if self.low >= 0 and self.high < 1 << 64:
            return "uint64"
        return "string" if text else "json"


def _escape(values: list[Any]) -> None:
    """Replace, in place, text that UTF-8 cannot encode (half of a surrogate pair) by JSON text."""
    try:
        "".join([value for value in values if type(value) is str]).encode()
    except UnicodeEncodeError:
        for row, value in enumerate(values):
            if type(value) is str and not _is_utf8(value):
                values[row] = (json_text(value),)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def json_text(value: Any) -> str:
    """Return a value as JSON, in UTF-8 if possible."""
    from json import dumps

    text = dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if _is_utf8(text) else dumps(value, separators=(",", ":"))


class Spool:
    """Chunks in a temporary file, with the types of all columns. The table always has the columns ``columns``; if such
    a column has no cells, it has the given type."""

    def __init__(self, columns: Mapping[TableColumn, str]) -> None:
        self._file = Backing()
        self._pieces: list[Piece] = []
        self._defaults = columns
        self._seen = {column: _Seen() for column in columns}
        self._numbers = {column: number for number, column in enumerate(columns)}
        self.rows = 0

    def put(self, chunk: RowChunk) -> None:
        """Add rows. Raises OutputError if the temporary file cannot be written, and DataError for too many columns."""
        for column, values in chunk.columns.items():
            if column not in self._seen:
                self._numbers[column] = len(self._seen)
                self._seen[column] = _Seen()
            self._seen[column].look(values)
        if len(self._seen) > MAX_COLUMNS:
            raise _too_many()
        numbered = {self._numbers[column]: values for column, values in chunk.columns.items()}
        self._pieces.append(self._file.put(marshal.dumps((chunk.rows, numbered))))
        self.rows += chunk.rows

    def schema(self) -> dict[TableColumn, str]:
        """Return all columns in order, and their types."""
        schema = {}
        for column in sorted(self._seen, key=lambda column: column.group):
            types = self._seen[column]
            schema[column] = types.kind(column.text) if types.types else self._defaults.get(column, "string")
        return schema

    def chunks(self) -> Iterator[RowChunk]:
        """Yield the rows again."""
        columns = list(self._seen)
        for piece in self._pieces:
            rows, numbered = marshal.loads(b"".join(piece.read()))
            yield RowChunk(rows, {columns[number]: values for number, values in numbered.items()})


def _too_many() -> DataError:
    return DataError(
        f"the table would have more than {MAX_COLUMNS} columns",
        code="bad-table",
        hint="choose fields with --fields EXT,...; each name inside JSON is a column",
    )


def text_of(raw: bytes) -> str | bytes:
    """Decode bytes to text if they are UTF-8; otherwise return them unchanged."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def column_names(columns: Iterable[TableColumn]) -> list[str]:
    """Return the names of columns in the table. If an earlier column has the same name, the prefix is added.

    >>> column_names([TableColumn(0, "key"), TableColumn(1, "key", "json"), TableColumn(1, "w", "json")])
    ['key', 'json.key', 'w']
    """
    taken: dict[str, None] = {}
    for column in columns:
        name = column.name.encode("utf-8", "backslashreplace").decode()
        while name in taken:
            name = f"{column.owner or 'field'}.{name}"
        taken[name] = None
    return list(taken)


def check_format(form: str) -> None:
    """Raise UsageError for Parquet if its package is missing."""
    if form == "parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:
            raise UsageError("Parquet needs extra packages", hint="pip install 'wdscli[parquet]'") from None


def encoded(
    form: str,
    schema: Mapping[TableColumn, str],
    chunks: Iterable[RowChunk],
    classes: Sequence[str] | None = None,
) -> Iterator[bytes]:
    """Yield the table in the format ``form``. Parquet stores the class names ``classes`` in its metadata."""
    names = column_names(schema)
    if form == "parquet":
        return _parquet(schema, names, chunks, classes)
    return _delimited(_SEPARATORS[form], list(schema), names, chunks)


def _delimited(
    separator: bytes, columns: Sequence[TableColumn], names: Sequence[str], chunks: Iterable[RowChunk]
) -> Iterator[bytes]:
    special = re.compile(b'["\r\n' + separator + b"]")

    def cell(value: Cell) -> bytes:
        if value is None:
            return b""
        if isinstance(value, bool):
            return b"true" if value else b"false"
        if isinstance(value, (int, float)):
            return repr(value).encode()
        raw = (
            to_bytes(value[0] if isinstance(value, tuple) else value)
            if not isinstance(value, bytes)
            else value
        )
        return raw if raw and not special.search(raw) else b'"' + raw.replace(b'"', b'""') + b'"'

    yield separator.join(map(cell, names)) + b"\n"
    for chunk in chunks:
        nothing = [b""] * chunk.rows
        cells = [
            list(map(cell, chunk.columns[column])) if column in chunk.columns else nothing
            for column in columns
        ]
        yield b"".join([separator.join(row) + b"\n" for row in zip(*cells)])


class _Pieces(io.RawIOBase):
    """A write-only file. The written bytes can be taken out at any time."""

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        raw = bytes(data)
        self._held.append(raw)
        self._position += len(raw)
        return len(raw)

    def tell(self) -> int:
        return self._position

    def take(self) -> list[bytes]:
        held, self._held = self._held, []
        return held


def _parquet(
    schema: Mapping[TableColumn, str],
    names: Sequence[str],
    chunks: Iterable[RowChunk],
    classes: Sequence[str] | None,
) -> Iterator[bytes]:
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    makers = {"json": "string", "double": "float64", "bool": "bool_"}
    types = [getattr(pyarrow, makers.get(kind, kind))() for kind in schema.values()]
    fields = pyarrow.schema(list(zip(names, types)))
    if classes is not None:
        fields = fields.with_metadata({METADATA: json_text({"classes": list(classes)})})
    # For payloads, dictionaries and statistics would be as large as the payloads themselves.
    plain = [name for name, kind in zip(names, schema.values()) if kind != "binary"]
    out = _Pieces()
    writer = ParquetWriter(out, fields, use_dictionary=plain, write_statistics=plain)
    held: list[Any] = []
    rows = size = 0
    for chunk in chunks:
        arrays = [
            pyarrow.array(_as_kind(chunk.columns[column], kind), kind_type)
            if column in chunk.columns
            else pyarrow.nulls(chunk.rows, kind_type)
            for (column, kind), kind_type in zip(schema.items(), types)
        ]
        held.append(pyarrow.table(arrays, schema=fields))
        rows, size = rows + chunk.rows, size + held[-1].nbytes
        if rows >= ROW_GROUP_ROWS or size >= ROW_GROUP_BYTES:
            writer.write_table(pyarrow.concat_tables(held), row_group_size=rows)
            held, rows, size = [], 0, 0
            yield from out.take()
    if held:
        writer.write_table(pyarrow.concat_tables(held), row_group_size=max(rows, 1))
    writer.close()
    yield from out.take()


def _as_kind(values: list[Any], kind: str) -> list[Any]:
    """Convert cells to their column's type."""
    if kind == "double":
        return [None if value is None else float(value) for value in values]
    if kind == "string":
        return [value if value is None or isinstance(value, str) else str(value) for value in values]
    if kind == "binary":
        return [
            value if value is None or isinstance(value, bytes) else to_bytes(str(value)) for value in values
        ]
    if kind == "json":
        return [
            value if value is None else value[0] if isinstance(value, tuple) else json_text(value)
            for value in values
        ]
    return values
