"""This module reads tables in text formats: CSV, TSV and JSON Lines.

A :class:`Reading` has the options. :class:`Delimited` yields the rows of a CSV or TSV, and :func:`json_lines` yields
the rows of JSON Lines. :func:`is_number` decides whether a column of CSV or TSV has numbers. Text is read line by line,
and only one row is in memory. It is an error if bytes do not fit the encoding, or if a cell is too large. The error
names the row and, if known, the column. This module does not know files, keys, fields or samples.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Collection, Iterable, Iterator
from typing import IO, Any, NamedTuple

from wdscli.codecs.handlers import MAX_DECODED_BYTES
from wdscli.errors import DataError, UsageError, empty_stream

UTF8 = "utf-8-sig"
"""UTF-8, with or without a byte order mark."""
_WHOLE = re.compile(r"0|-?[1-9][0-9]*")
_MAX_DIGITS = 4300
"""The most digits of a number that Python's ``int`` accepts."""
_MAX_BYTES_A_CHARACTER = 4
_DELIMITERS = {"csv": ",", "tsv": "\t"}


class Reading(NamedTuple):
    """How text becomes rows. The columns ``text`` are read as text, even if their cells are numbers. ``max_decoded`` is
    the most bytes of a cell; a line of JSON may have twice as many."""

    encoding: str = UTF8
    text: tuple[str, ...] = ()
    max_cell_bytes: int = MAX_DECODED_BYTES


PLAIN = Reading()


def checked_encoding(name: str) -> str:
    """Return the normalized name of an encoding. Raises UsageError for an unknown encoding."""
    import codecs

    try:
        io.TextIOWrapper(io.BytesIO(), name)
        found = codecs.lookup(name).name
    except (LookupError, ValueError):
        raise UsageError(
            f'--encoding "{name}": no such text encoding',
            hint="use the name of an encoding, for example latin-1, cp1252 or utf-16",
        ) from None
    return UTF8 if found == "utf-8" else found


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


class _Lines:
    """The lines of a text, each with at most ``limit`` characters. The lines since :meth:`begin` are the current
    record. ``where`` is the text's name in errors."""

    def __init__(self, stream: IO[bytes], address: str, reading: Reading, newline: str = "") -> None:
        # Bytes that do not fit the encoding are read as lone surrogates, so that the error can name their row.
        self._text = io.TextIOWrapper(stream, reading.encoding, "surrogateescape", newline=newline)
        self._address, self._reading = address, reading
        self.limit = reading.max_cell_bytes
        self.where = "header"
        self.begin()

    def begin(self) -> None:
        """Begin a new record."""
        self.record: list[str] = []
        self.is_broken = False
        """Whether the record has bytes that are not in the encoding."""

    def __iter__(self) -> Iterator[str]:
        try:
            while line := self._text.readline(self.limit + 1):
                if len(line) > self.limit and line[-1] not in "\r\n":
                    raise self.too_large()
                if not line.isascii() and _foreign_byte(line) is not None:
                    self.is_broken = True
                self.record.append(line)
                yield line
        except UnicodeError as error:
            reason = getattr(error, "reason", str(error))
            raise self.error(f"not {self._reading.encoding}: {reason}") from None

    def error(self, message: str, column: str | None = None, hint: str | None = None) -> DataError:
        """Return the error for the record, or for its cell in a column."""
        cell = "" if column is None else f', column "{column}"'
        return DataError(f"{self._address}, {self.where}{cell}: {message}", code="bad-table", hint=hint)

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
        return next((ord(one) & 255 for one in text if "\udc80" <= one <= "\udcff"), None)
    return None


class Delimited:
    """The rows of a CSV or TSV. ``names`` are its columns. All methods raise DataError ``bad-table``."""

    def __init__(self, stream: IO[bytes], address: str, kind: str, reading: Reading) -> None:
        self._lines = _Lines(stream, address, reading)
        self._address, self._delimiter = address, _DELIMITERS[kind]
        csv.field_size_limit(reading.max_cell_bytes)
        self._reader = csv.reader(iter(self._lines), delimiter=self._delimiter, strict=True)
        self.names = self._header()
        self._lines.limit = reading.max_cell_bytes * len(self.names)

    def _header(self) -> list[str]:
        header = self._next()
        if header is None and self._address == "-":
            raise empty_stream("bad-table")
        if not header:
            raise DataError(f"{self._address} has no header line", code="bad-table")
        if header[0].lstrip() == "[" or header[0].lstrip().startswith("[{"):
            raise DataError(
                f"{self._address} is one JSON array, not a table",
                code="bad-table",
                hint="convert it to JSON Lines with jq -c '.[]'",
            )
        self._lines.check((name, name) for name in header)
        if len(set(header)) < len(header):
            raise DataError(f"{self._address} has two columns with the same name", code="bad-table")
        return header

    def _next(self) -> list[str] | None:
        self._lines.begin()
        try:
            return next(self._reader, None)
        except csv.Error as error:
            if str(error).startswith("field larger"):
                raise self._lines.too_large() from None
            line = f"{self._address}, line {self._reader.line_num}"
            raise DataError(f"{line}: {error}", code="bad-table") from None

    def cells(self, raw: Collection[str] = ()) -> Iterator[list[str]]:
        """Yield the cells of each row. Cells in ``raw`` columns may have bytes of any encoding."""
        names, lines, row = self.names, self._lines, 1
        lines.where = "row 1"
        while (cells := self._next()) is not None:
            if not cells:
                continue
            if len(cells) != len(names):
                line = f"{self._address}, line {self._reader.line_num}"
                raise DataError(
                    f"{line}: {len(cells)} cells, but the header has {len(names)}", code="bad-table"
                )
            lines.check(zip(names, cells), raw)
            yield cells
            row += 1
            lines.where = f"row {row}"

    def rows(self, numbers: Collection[str]) -> Iterator[dict[str, Any]]:
        """Yield rows as dictionaries by column. An empty cell is None. Cells in the columns ``numbers`` are
        :class:`NumberText`."""
        marked = [at for at, name in enumerate(self.names) if name in numbers]
        for cells in self.cells():
            for at in marked:
                cells[at] = NumberText(cells[at])
            yield {name: cell or None for name, cell in zip(self.names, cells)}

    def exact(self, raw: Collection[str]) -> Iterator[dict[str, str]]:
        """Yield rows as dictionaries by column, without empty cells. An empty cell in quotes is an empty text."""
        mark = self._delimiter
        cell_of = re.compile(rf'(?:\A|{mark})("[^"]*(?:""[^"]*)*"|[^{mark}\r\n]*)')
        for cells in self.cells(raw):
            record = "".join(self._lines.record) if "" in cells else ""
            quoted = cell_of.findall(record) if '""' in record else cells
            yield {
                name: cell for name, cell, one in zip(self.names, cells, quoted, strict=True) if cell or one
            }


def json_lines(stream: IO[bytes], address: str, reading: Reading) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield each JSON object, and its line. Raises DataError ``bad-table``."""
    lines = _Lines(stream, address, reading, "\n")
    lines.limit = 2 * reading.max_cell_bytes
    lines.where = "line 1"
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise lines.error(f"not JSON: {error}") from None
            if not isinstance(row, dict):
                raise lines.error("not a JSON object")
            lines.check(row.items())
            yield row, line
        lines.begin()
        lines.where = f"line {number + 1}"
