"""This module reads tables in text formats: CSV, TSV and JSON Lines.

A :class:`TextReading` has the options. :class:`DelimitedRows` yields the rows of a CSV or TSV, and :func:`json_lines`
yields the rows of JSON Lines, both as :class:`Row`. :func:`is_number` decides whether a column of CSV or TSV has
numbers. Text is read line by line, and only one row is in memory. A row is bad if it has too few or too many cells,
bytes that do not fit the encoding, or a cell that is too large. Its error and its :class:`RowPlace` go to
``Reading.refuse``, and the next row is then read. This module does not know files, keys, fields or samples.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import IO, Any, NamedTuple

from wdscli.codecs.cells import delimiter_of
from wdscli.codecs.handlers import MAX_DECODED_BYTES
from wdscli.errors import DataError, UsageError, WdsError, empty_stream

UTF8 = "utf-8-sig"
"""UTF-8, with or without a byte order mark."""
_WHOLE = re.compile(r"0|-?[1-9][0-9]*")
_MAX_DIGITS = 4300
"""The most digits of a number that Python's ``int`` accepts."""
_MAX_BYTES_A_CHARACTER = 4


class RowPlace(NamedTuple):
    """The place of a row: its table, its number (from 1, without the header), and the line where it begins. A row of a
    format without lines has line 0, and a line of a list has row 0.

    >>> str(RowPlace("t.csv", 15, 22)), str(RowPlace("t.parquet", 3)), str(RowPlace("list.txt", 0, 4))
    ('t.csv, row 15 (line 22)', 't.parquet, row 3', 'list.txt, line 4')
    """

    table: str
    row: int = 0
    line: int = 0

    def __str__(self) -> str:
        if not self.row:
            return f"{self.table}, line {self.line}"
        return f"{self.table}, row {self.row}" + (f" (line {self.line})" if self.line else "")


class Row(NamedTuple):
    """A row: its place, its cells by column, and its number in all files (from 0), which the reader of a file does not
    know."""

    place: RowPlace
    cells: Mapping[str, Any]
    number: int = 0


def numbered(address: str, rows: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    """Yield the rows of a format without lines."""
    return (Row(RowPlace(address, row), cells) for row, cells in enumerate(rows, 1))


def refuse_row(place: RowPlace, error: WdsError) -> None:
    """Raise the error of a bad row, with its place."""
    error.message = f"{place}: {error.message}"
    raise error


def say_nothing(text: str) -> None:
    """Ignore a remark about a table."""


class TextReading(NamedTuple):
    """How text becomes rows. The columns ``text`` are read as text, even if their cells are numbers. ``max_cell_bytes``
    is the limit for a cell; a line of JSON may have twice as many. ``refuse`` is called for each bad row; if it
    returns, the rows after it are read."""

    encoding: str = UTF8
    text: tuple[str, ...] = ()
    max_cell_bytes: int = MAX_DECODED_BYTES
    refuse: Callable[[RowPlace, WdsError], object] = refuse_row
    say: Callable[[str], object] = say_nothing
    """Called with a text about an unusual delimiter."""
    leave_out: Callable[[str, bytes], object] = lambda reason, name: None
    """Called with the reason and the name of a member of a shard that belongs to no sample."""


PLAIN = TextReading()


def checked_encoding(name: str) -> str:
    """Return the normalized name of an encoding. Raises UsageError for an unknown encoding."""
    import codecs

    try:
        io.TextIOWrapper(io.BytesIO(), name)
        codec = codecs.lookup(name).name
    except (LookupError, ValueError):
        raise UsageError(
            f'--encoding "{name}": no such text encoding',
            hint="use the name of an encoding, for example latin-1, cp1252 or utf-16",
        ) from None
    return UTF8 if codec == "utf-8" else codec


def is_number(cell: str) -> bool:
    """Return whether a cell is a number that would be written with exactly the same text.

    >>> [text for text in ("7", "-0.5", "1e-05", "007", "+1", "1.10", "1e5", "-0", "inf") if is_number(text)]
    ['7', '-0.5', '1e-05']
    """
    if _WHOLE.fullmatch(cell):
        return len(cell) <= _MAX_DIGITS
    try:
        return cell[-1:].isdigit() and repr(float(cell)) == cell
    except ValueError:
        return False


class NumberText(str):
    """The text of a cell in a numeric column."""

    __slots__ = ()


class _BadRowError(DataError):
    """A row that cannot be read. The rows after it can."""


class _Lines:
    """The lines of a text, each with at most ``limit`` characters. The lines since :meth:`begin` are the current
    record, which begins in the line ``first_line``."""

    def __init__(self, stream: IO[bytes], address: str, reading: TextReading, newline: str = "") -> None:
        # Bytes that do not fit the encoding are read as lone surrogates, so that the error can name their row.
        self._text = io.TextIOWrapper(stream, reading.encoding, "surrogateescape", newline=newline)
        self._address, self._reading = address, reading
        self._again: list[str] = []
        self._lines_read = 0
        self.limit = reading.max_cell_bytes
        self.row = 0
        """The number of the current record. The header is 0."""
        self.begin()

    def begin(self) -> None:
        """Begin a new record."""
        self.record: list[str] = []
        self.first_line = self._lines_read + 1
        self.is_broken = False
        """Whether the record has bytes that are not in the encoding."""

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        if not (line := self._again.pop() if self._again else self._read()):
            raise StopIteration
        self._lines_read += 1
        if not line.isascii() and _foreign_byte(line) is not None:
            self.is_broken = True
        self.record.append(line)
        return line

    def _read(self) -> str:
        """Read a line. If it is too long, the rest of it is skipped."""
        try:
            line = piece = self._text.readline(self.limit + 1)
            while len(line) > self.limit and piece and piece[-1] not in "\r\n":
                piece = self._text.readline(self.limit + 1)
        except UnicodeError as error:
            reason = getattr(error, "reason", str(error))
            message = f"not {self._reading.encoding}: {reason}"
            raise DataError(f"{self.place}: {message}", code="bad-table") from None
        if len(line) > self.limit and line[-1] not in "\r\n":
            self._lines_read += 1
            raise self.too_large()
        return line

    def peek(self) -> str:
        """Return the next line, which is then read again. It is empty at the end. Raises DataError."""
        self._again = [self._read()]
        return self._again[0]

    def read_again(self) -> None:
        """Read the lines of the current record again, except its first line."""
        self._again += reversed(self.record[1:])
        self._lines_read -= len(self.record[1:])

    @property
    def place(self) -> RowPlace:
        """The place of the current record."""
        return RowPlace(self._address, self.row, self.first_line)

    def error(self, message: str, column: str | None = None, hint: str | None = None) -> DataError:
        """Return the error for the record, or for its cell in a column."""
        cell = "" if column is None else f'column "{column}": '
        return _BadRowError(cell + message, code="bad-table", hint=hint)

    def refuse(self, error: DataError) -> None:
        """Hand in the error of the current record."""
        self._reading.refuse(self.place, error)

    def too_large(self, column: str | None = None) -> DataError:
        """Return the error for a cell with too many bytes."""
        limit = self._reading.max_cell_bytes
        return self.error(
            f"a cell is longer than {limit} bytes", column, "raise the limit with WDSCLI_MAX_DECODED=SIZE"
        )

    def check(self, cells: Iterable[tuple[str, Any]], raw: Collection[str] = ()) -> None:
        """Raise DataError for the first bad cell of the record. A cell is bad if it is too large. Outside the ``raw``
        columns, a cell is also bad if it has bytes that do not fit the encoding."""
        limit = self._reading.max_cell_bytes
        if not self.is_broken and sum(map(len, self.record)) * _MAX_BYTES_A_CHARACTER <= limit:
            return
        for name, cell in cells:
            text = cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False)
            if len(text.encode("utf-8", "surrogatepass")) > limit:
                raise self.too_large(name)
            if self.is_broken and name not in raw and (byte := _foreign_byte(name + text)) is not None:
                is_utf8 = self._reading.encoding == UTF8
                encoding = "UTF-8" if is_utf8 else self._reading.encoding
                hint = "use --encoding latin-1, or the encoding of the file" if is_utf8 else None
                raise self.error(f"not {encoding} (byte 0x{byte:02x})", name, hint)


def _foreign_byte(text: str) -> int | None:
    """Return the first byte that does not fit the encoding."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return next((ord(character) & 255 for character in text if "\udc80" <= character <= "\udcff"), None)
    return None


class DelimitedRows:
    """The rows of a CSV or TSV. ``names`` are its columns. All methods raise DataError ``bad-table``."""

    def __init__(self, stream: IO[bytes], address: str, kind: str, reading: TextReading) -> None:
        self._lines = _Lines(stream, address, reading)
        self._address, self._delimiter = address, "\t"
        csv.field_size_limit(reading.max_cell_bytes)
        self.names = self._header(kind, reading)
        self._lines.limit = reading.max_cell_bytes * len(self.names)

    def _header(self, kind: str, reading: TextReading) -> list[str]:
        try:
            if kind == "csv":
                self._delimiter = delimiter_of(self._lines.peek())
                if self._delimiter != ",":
                    mark = repr(self._delimiter)
                    reading.say(f"{self._address}: the header has no comma, so {mark} separates columns")
            self._reader = csv.reader(iter(self._lines), delimiter=self._delimiter, strict=True)
            header = self._next()
            if header is None and self._address == "-":
                raise empty_stream("bad-table")
            if not header:
                raise DataError(f"{self._address} has no header line", code="bad-table")
            self._lines.check((name, name) for name in header)
        except _BadRowError as error:
            raise DataError(
                f"{self._address}, header: {error.message}", code="bad-table", hint=error.hint
            ) from None
        if header[0].lstrip() == "[" or header[0].lstrip().startswith("[{"):
            raise DataError(
                f"{self._address} is one JSON array, not a table",
                code="bad-table",
                hint="convert it to JSON Lines with jq -c '.[]'",
            )
        if len(set(header)) < len(header):
            raise DataError(f"{self._address} has two columns with the same name", code="bad-table")
        return header

    def _next(self) -> list[str] | None:
        """Return the cells of the next record. After an error, the next record begins in the line after its first
        line, because its quotes may have joined several rows."""
        self._lines.begin()
        try:
            return next(self._reader, None)
        except csv.Error as error:
            self._lines.read_again()
            if str(error).startswith("field larger"):
                raise self._lines.too_large() from None
            is_open = str(error) == "unexpected end of data"
            raise self._lines.error("a quote has no closing quote" if is_open else str(error)) from None

    def cells(self, raw: Collection[str] = ()) -> Iterator[list[str]]:
        """Yield the cells of each row. Cells in ``raw`` columns may have bytes of any encoding."""
        names, lines = self.names, self._lines
        lines.row = 1
        while True:
            try:
                if (cells := self._next()) is None:
                    return
                if not cells:
                    continue
                if len(cells) != len(names):
                    raise lines.error(f"{len(cells)} cells, but the header has {len(names)}")
                lines.check(zip(names, cells), raw)
            except _BadRowError as error:
                lines.refuse(error)
            else:
                yield cells
            lines.row += 1

    def rows(self, numbers: Collection[str]) -> Iterator[Row]:
        """Yield rows with their cells by column. An empty cell is None. Cells in the columns ``numbers`` are
        :class:`NumberText`."""
        marked = [column for column, name in enumerate(self.names) if name in numbers]
        for cells in self.cells():
            for column in marked:
                cells[column] = NumberText(cells[column])
            named = {name: cell or None for name, cell in zip(self.names, cells)}
            yield Row(self._lines.place, named)

    def exact(self, raw: Collection[str]) -> Iterator[Row]:
        """Yield rows with their cells by column, without empty cells. An empty cell in quotes is an empty text."""
        mark = self._delimiter
        cell_of = re.compile(rf'(?:\A|[{mark}])("[^"]*(?:""[^"]*)*"|[^{mark}\r\n]*)')
        for cells in self.cells(raw):
            record = "".join(self._lines.record) if "" in cells else ""
            quoted = cell_of.findall(record) if '""' in record else cells
            named = {
                name: cell for name, cell, text in zip(self.names, cells, quoted, strict=True) if cell or text
            }
            yield Row(self._lines.place, named)


def json_lines(stream: IO[bytes], address: str, reading: TextReading) -> Iterator[tuple[Row, str]]:
    """Yield each JSON object, and its line. Raises DataError ``bad-table``."""
    lines = _Lines(stream, address, reading, "\n")
    lines.limit = 2 * reading.max_cell_bytes
    lines.row = 1
    while True:
        lines.begin()
        try:
            if (line := next(lines, None)) is None:
                return
            if not line.strip():
                continue
            row = _json_object(line, lines)
        except _BadRowError as error:
            lines.refuse(error)
        else:
            yield Row(lines.place, row), line
        lines.row += 1


def _json_object(line: str, lines: _Lines) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise lines.error(f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise lines.error("not a JSON object")
    lines.check(row.items())
    return row
