"""This module reads rows of tables as dictionaries, from CSV, TSV, JSON Lines, lines of text, and with an extra from
Parquet and Arrow.

:func:`table_files` finds the files of a table's addresses. A :class:`Table` reads several files as one table.
:func:`read_rows` yields the rows of one file, and :func:`read_lines` yields its lines. The suffix of the address
decides the format; without a known suffix, the first bytes do. All formats can be read from any address. All except
Parquet are read as streams, compressed or not, with only some rows in memory. A column of CSV and TSV has one type,
numbers or text. So the files are read twice: first to find the types. Empty cells are None. Values of Arrow become
Python values. Lists of numbers become arrays of the same type. A time in nanoseconds becomes text if Python's times are
not exact enough. This module does not know keys, fields or samples.
"""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import IO, Any

from wdscli.codecs.cells import TypedList
from wdscli.create.delimited import (
    PLAIN,
    UTF8,
    DelimitedRows,
    Row,
    RowPlace,
    TextReading,
    is_number,
    json_lines,
    numbered,
    say_nothing,
)
from wdscli.errors import DataError, InputError, InputNotFoundError, UsageError, WdsError
from wdscli.shards.tables import METADATA
from wdscli.storage import addresses_of, base_name, is_local, is_stream, list_folder, local_path, open_source
from wdscli.storage.addresses import is_web, natural
from wdscli.storage.opening import compression_of
from wdscli.storage.patterns import expand_braces, has_braces, has_glob, matching
from wdscli.storage.streams import stream_of

SUFFIXES = {
    "arrow": "arrow",
    "arrows": "arrow",
    "csv": "csv",
    "feather": "arrow",
    "ipc": "arrow",
    "jsonl": "jsonl",
    "ndjson": "jsonl",
    "parquet": "parquet",
    "tab": "tsv",
    "tsv": "tsv",
}
"""The formats of tables, by file suffix."""
TRANSCRIPT = "transcript"
"""The format of LibriSpeech's ``84-121.trans.txt``: lines of a key and a text. The columns are ``key`` and ``text``."""
_BEGINNINGS = {b"PAR1": "parquet", b"ARROW1": "arrow", b"\xff\xff\xff\xff": "arrow", b"{": "jsonl"}
_BUFFER_BYTES = 1 << 16
_ARROW_FILE = b"ARROW1\0\0"
_BATCH_ROWS, _BATCH_BYTES = 256, 1 << 24


def table_format(address: str) -> str:
    """Return the format of an address by its suffix. It is empty for an unknown suffix."""
    name = base_name(address)
    name = name.removesuffix(compression_of(name)).lower()
    return TRANSCRIPT if name.endswith(".trans.txt") else SUFFIXES.get(name.rpartition(".")[2], "")


def table_files(addresses: str | Sequence[str] | None, option: str) -> list[str]:
    """Return the files of a table's addresses, in order. Braces and globs are expanded. A folder gives its files with a
    table's suffix, in natural order (``part-2`` before ``part-10``). Raises InputError if there are no files."""
    return [file for address in addresses_of(addresses, option) for file in _expand(address)]


def _expand(address: str) -> list[str]:
    is_on_disk = is_local(address)
    if is_stream(address) or (is_on_disk and os.path.isfile(local_path(address))):
        return [address]
    if has_braces(address) and not (is_on_disk and os.path.exists(local_path(address))):
        return [file for name in expand_braces(address, InputError) for file in _expand(name)]
    if is_on_disk and os.path.isdir(local_path(address)):
        return _in_folder(address)
    if has_glob(address):
        if matches := matching(address):
            return sorted(matches, key=natural)
        raise InputNotFoundError(f"no table matches {address}")
    if not is_on_disk and not table_format(address):
        from wdscli.storage.remote import is_remote_folder

        if address.endswith("/") or (not is_web(address) and is_remote_folder(address)):
            return _in_folder(address)
    return [address]


def _in_folder(address: str) -> list[str]:
    prefix = address if address.endswith("/") else address + "/"
    names = list_folder(address, lambda name: bool(table_format(name)) and not name.startswith("."))
    if not names:
        raise InputNotFoundError(
            f"no table in {address}", hint=f"tables end with {', '.join('.' + suffix for suffix in SUFFIXES)}"
        )
    return [prefix + name for name in sorted(names, key=natural)]


def read_lines(address: str, reading: TextReading = PLAIN) -> Iterator[Row]:
    """Yield the lines of a text as rows with one column ``line``, which is None for an empty line. Raises InputError. A
    line that is too large is a bad row."""
    max_bytes = reading.max_cell_bytes
    with open_source(address) as source:
        stream, number = stream_of(source, _BUFFER_BYTES), 1
        while line := stream.readline(max_bytes + 2):
            is_whole = line.endswith(b"\n")
            line = line.rstrip(b"\r\n")
            if len(line) > max_bytes:
                hint = "raise the limit with WDSCLI_MAX_DECODED=SIZE"
                error = DataError(f"it is longer than {max_bytes} bytes", code="bad-table", hint=hint)
                reading.refuse(RowPlace(address, 0, number), error)
                while not is_whole and (piece := stream.readline(_BUFFER_BYTES)):
                    is_whole = piece.endswith(b"\n")
            else:
                text = line.decode("utf-8", "surrogateescape") or None
                yield Row(RowPlace(address, number, number), {"line": text})
            number += 1


class Table:
    """Files that are read as one table. A column of CSV and TSV has numbers in all files, or text in all files. Streams
    and remote files that must be read twice are copied to a temporary file."""

    def __init__(self, files: Sequence[str], reading: TextReading) -> None:
        self._files, self._reading = files, reading
        self._copies: dict[str, IO[bytes]] = {}
        self._numbers: frozenset[str] | None = None

    def rows(self, file: str, columns: Collection[str], whole: bool) -> Iterator[Row]:
        """Yield the rows of one of the files, by :func:`read_rows`."""
        if whole and self._numbers is None:
            self._numbers = self._find_numbers(columns)
        yield from read_rows(
            file,
            columns,
            whole=whole,
            reading=self._reading,
            numbers=self._numbers or (),
            copy=self._copies.get(file),
        )

    def _find_numbers(self, columns: Collection[str]) -> frozenset[str]:
        """Find the columns of CSV and TSV that have only numbers. ``columns`` are not searched, nor columns that stay
        text."""
        names: dict[str, None] = {}
        text = {*columns, *self._reading.text}
        # Bad rows are reported when the rows are read, not here.
        reading = self._reading._replace(refuse=lambda place, error: None, say=say_nothing)
        typed = [file for file in self._files if table_format(file) in ("", "csv", "tsv")]
        for file in typed:
            with ExitStack() as stack:
                if not is_local(file):
                    with open_source(file) as source:
                        self._copies[file] = _copied(stream_of(source, _BUFFER_BYTES))
                stream, _ = _opened(file, self._copies.get(file), stack)
                if (kind := table_format(file) or _sniffed(stream)) in ("csv", "tsv"):
                    table = DelimitedRows(stream, file, kind, reading)
                    names |= dict.fromkeys(table.names)
                    _drop_text(table, text)
        if unknown := [name for name in self._reading.text if name not in names]:
            hint = (
                f"there are {', '.join(names)}" if names else "columns of other tables have their own types"
            )
            raise UsageError(f'there is no column "{unknown[0]}" of CSV or TSV for --text', hint=hint)
        return frozenset(names.keys() - text)


def _drop_text(table: DelimitedRows, text: set[str]) -> None:
    """Add the columns with a cell that is no number to ``text``."""
    candidates = [column for column, name in enumerate(table.names) if name not in text]
    for cells in table.cells():
        if no_numbers := {column for column in candidates if cells[column] and not is_number(cells[column])}:
            text |= {table.names[column] for column in no_numbers}
            candidates = [column for column in candidates if column not in no_numbers]


def _opened(address: str, copy: IO[bytes] | None, stack: ExitStack) -> tuple[io.BufferedReader, bool]:
    """Open the stream of an address. Also return whether it is a file that can be memory-mapped."""
    if copy is not None:
        copy.seek(0)
        return stack.enter_context(open(os.dup(copy.fileno()), "rb")), False
    source = stack.enter_context(open_source(address))
    return stream_of(source, _BUFFER_BYTES), is_local(address) and source.fd is not None


def _copied(stream: IO[bytes]) -> IO[bytes]:
    """Copy the rest of a stream to a temporary file."""
    from shutil import copyfileobj
    from tempfile import TemporaryFile

    copy = TemporaryFile()  # noqa: SIM115 - it is open as long as it is in use
    copyfileobj(stream, copy, 1 << 20)
    copy.seek(0)
    return copy


def read_rows(
    address: str,
    columns: Collection[str] = (),
    *,
    whole: bool = True,
    reading: TextReading = PLAIN,
    numbers: Collection[str] = (),
    copy: IO[bytes] | None = None,
) -> Iterator[Row]:
    """Yield the rows in order. ``columns`` are the columns in use (``a.b`` is inside ``a``). Unless ``whole`` is true,
    only these columns of Parquet and Arrow are read, if all of them exist. Cells of CSV and TSV in the columns
    ``numbers`` are :class:`~wdscli.create.delimited.NumberText`. ``copy`` is a file
    with the bytes that were read earlier from the address. Raises InputError, DataError ``bad-table``, and UsageError
    if the extra is missing."""
    with ExitStack() as stack:
        if table_format(address) == TRANSCRIPT:
            yield from _transcript(address, reading)
            return
        stream, is_mapped = _opened(address, copy, stack)
        kind = table_format(address) or _sniffed(stream)
        if kind in ("parquet", "arrow"):
            if reading.encoding != UTF8:
                raise UsageError(
                    f"{address}: --encoding does not apply, because {kind} stores text as UTF-8",
                    hint="leave --encoding out",
                )
            yield from numbered(
                address, _arrow_rows(address, kind, (stream, is_mapped), stack, columns, whole=whole)
            )
            return
        if kind == "jsonl":
            yield from (row for row, _ in json_lines(stream, address, reading))
        else:
            yield from DelimitedRows(stream, address, kind, reading).rows(numbers)


def _transcript(address: str, reading: TextReading) -> Iterator[Row]:
    for row in read_lines(address, reading):
        key, *text = (row.cells["line"] or "").split(None, 1) or [""]
        if key:
            yield row._replace(cells={"key": key, "text": text[0] if text else None})


def read_exact(address: str, reading: TextReading, raw: Collection[str]) -> Iterator[tuple[str, Row, str]]:
    """Yield each row of a CSV, TSV, JSON Lines or Parquet file, with the format, and with the line if it is JSON. A row
    of CSV or TSV contains empty texts, but not absent cells. Cells in ``raw`` columns may have bytes of any encoding.
    For other formats, one empty row is yielded. Raises the errors of :func:`read_rows`."""
    with ExitStack() as stack:
        stream, is_mapped = _opened(address, None, stack)
        kind = table_format(address) or _sniffed(stream)
        if kind == "jsonl":
            yield from ((kind, row, line) for row, line in json_lines(stream, address, reading))
        elif kind in ("csv", "tsv"):
            yield from ((kind, row, "") for row in DelimitedRows(stream, address, kind, reading).exact(raw))
        elif kind == "parquet":
            rows = _arrow_rows(address, kind, (stream, is_mapped), stack)
            yield from ((kind, row, "") for row in numbered(address, rows))
        else:
            yield kind, Row(RowPlace(address, 1), {}), ""


def column_names(address: str) -> list[str]:
    """Return the names of a table's columns, from its schema, its header, or else its first row. Raises the errors of
    :func:`read_rows`."""
    with open_source(address) as source:
        stream = stream_of(source, _BUFFER_BYTES)
        if (table_format(address) or _sniffed(stream)) == "parquet":
            from pyarrow import parquet

            return list(map(str, parquet.read_schema(stream).names))
    return list(next((row.cells for row in read_rows(address)), {}))


def _sniffed(stream: io.BufferedReader) -> str:
    """Return the format by a table's first bytes. ``{`` begins JSON Lines, and a TAB in the header means TSV."""
    line = stream.peek(4096).removeprefix(b"\xef\xbb\xbf").lstrip().partition(b"\n")[0]
    for beginning, kind in _BEGINNINGS.items():
        if line.startswith(beginning):
            return kind
    return "tsv" if b"\t" in line else "csv"


def class_names(address: str, column: str) -> tuple[str, ...] | None:
    """Return the class names for the numbers in a column of Parquet, if Hugging Face's library or ``wds cat`` has
    stored them in the file's metadata."""
    if table_format(address) != "parquet" or is_stream(address):
        return None
    import json

    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import read_schema
    except ImportError:
        return None
    with open_source(address) as source, stream_of(source, _BUFFER_BYTES) as stream:
        if not stream.seekable():
            return None
        try:
            metadata = read_schema(stream).metadata or {}
            if column == "cls" and METADATA.encode() in metadata:
                return tuple(map(str, json.loads(metadata[METADATA.encode()])["classes"]))
            document = json.loads(metadata[b"huggingface"])
            feature = document["info"]["features"][column]
            return tuple(map(str, feature["names"])) if feature["_type"] == "ClassLabel" else None
        except (OSError, ValueError, LookupError, TypeError, ArrowException):
            return None


def _arrow_rows(
    address: str,
    kind: str,
    opened: tuple[Any, bool],
    stack: ExitStack,
    columns: Collection[str] = (),
    *,
    whole: bool = True,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of Parquet or Arrow. ``opened`` is the result of :func:`_opened`."""
    stream, is_mapped = opened
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        name = "Parquet" if kind == "parquet" else "Arrow"
        raise UsageError(f"{name} needs extra packages", hint="pip install 'wdscli[parquet]'") from None
    try:
        if kind == "parquet":
            # For a remote file, one request per column and row group would be too many.
            is_remote = not is_local(address)
            table = stack.enter_context(parquet.ParquetFile(_seekable(stream, stack), pre_buffer=is_remote))
            names = _needed(table.schema_arrow, columns, whole)
            batches: Iterable[Any] = _of_groups(table, names)
        else:
            reader = _arrow_reader(address, stream, is_mapped, stack)
            names = _needed(reader.schema, columns, whole)
            batches = (batch if names is None else batch.select(names) for batch in reader)
        for batch in batches:
            # Offsets in a damaged batch may point to any place in memory.
            batch.validate(full=True)
            yield from batch_rows(batch, columns)
    except WdsError:
        raise
    except (OSError, ValueError, ArithmeticError, pyarrow.ArrowException) as error:
        raise InputError(f"cannot read {address}: {str(error) or type(error).__name__}") from None


def _arrow_reader(address: str, stream: Any, is_mapped: bool, stack: ExitStack) -> Any:
    """Return a reader of batches."""
    import pyarrow

    begin = stream.peek(8)
    if is_mapped:
        # Memory-mapped data does not need memory of its own.
        stream = stack.enter_context(pyarrow.memory_map(local_path(address)))
    # An Arrow file has 8 bytes, then a stream, and the places of its batches at the end.
    if begin.startswith(_ARROW_FILE[:6]):
        stream.read(len(_ARROW_FILE))
    return stack.enter_context(pyarrow.ipc.open_stream(stream))


def _of_groups(table: Any, names: list[str] | None) -> Iterator[Any]:
    """Yield the batches of a Parquet file. One row group and some megabytes of values are in memory."""
    for group in range(table.num_row_groups):
        facts = table.metadata.row_group(group)
        rows = _rows_together(facts.total_byte_size, facts.num_rows)
        yield from table.iter_batches(rows, row_groups=[group], columns=names)


def _rows_together(size_bytes: int, rows: int) -> int:
    """Return how many rows to convert to Python values together."""
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES * rows // max(1, size_bytes)))


def _seekable(stream: IO[bytes], stack: ExitStack) -> IO[bytes]:
    """Return the stream, or a copy of it if it is not seekable."""
    return stream if stream.seekable() else stack.enter_context(_copied(stream))


def _needed(schema: Any, columns: Collection[str], whole: bool) -> list[str] | None:
    """Return the columns to read, or None for all columns. If a column is missing, also return None, so that a later
    error names it."""
    if whole:
        return None
    needed = {
        name for name in schema.names if name in columns or any(_is_below(column, name) for column in columns)
    }
    for column in columns:
        if column not in needed and not any(_is_below(column, name) for name in needed):
            return None
    return [name for name in schema.names if name in needed]


def _is_below(column: str, name: str) -> bool:
    return column.startswith(name + ".")


def batch_rows(batch: Any, columns: Collection[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield the rows of an Arrow batch. If ``columns`` name a list of numbers inside a struct, it becomes a separate
    column, so that it keeps its type."""
    together = _rows_together(batch.nbytes, batch.num_rows)
    for first in range(0, batch.num_rows, together):
        part = batch.slice(first, together)
        names = list(part.schema.names)
        cells = [_values(column) for column in part.columns]
        for column in columns:
            inside = _inside(part, column)
            if inside is not None:
                names.append(column)
                cells.append(_values(inside))
        for row in zip(*cells):
            yield dict(zip(names, row))


def _inside(batch: Any, column: str) -> Any:
    """Return the list column at a path through structs, or None for any other column."""
    import pyarrow
    import pyarrow.compute

    name, *path = column.split(".")
    if not path or column in batch.schema.names or name not in batch.schema.names:
        return None
    kind = batch.schema.field(name).type
    for part in path:
        if not pyarrow.types.is_struct(kind) or kind.get_field_index(part) < 0:
            return None
        kind = kind.field(kind.get_field_index(part)).type
    if not number_type(kind, pyarrow):
        return None
    return pyarrow.compute.struct_field(batch.column(batch.schema.get_field_index(name)), path)


def _values(column: Any) -> list[Any]:
    """Return the values of a column as Python objects."""
    import pyarrow

    types = pyarrow.types
    if isinstance(column, pyarrow.ExtensionArray):
        column = column.storage
    kind = column.type
    if dtype := number_type(kind, pyarrow):
        arrays = _arrays(column, pyarrow)
        return arrays or [None if cell is None else TypedList(cell, dtype) for cell in column.to_pylist()]
    if types.is_timestamp(kind) and kind.unit == "ns":
        return _times(column, pyarrow)
    if (types.is_time64(kind) or types.is_duration(kind)) and kind.unit == "ns":
        column = column.cast(
            pyarrow.time64("us") if types.is_time64(kind) else pyarrow.duration("us"), safe=False
        )
    values: list[Any] = column.to_pylist()
    return values


def _times(column: Any, pyarrow: Any) -> list[Any]:
    """Convert times in nanoseconds to Python's times, which have microseconds. If a time is not exact in microseconds,
    it becomes text."""
    import numpy

    counts = column.fill_null(0).cast(pyarrow.int64()).to_numpy()
    microseconds = pyarrow.array(
        counts // 1000,
        pyarrow.timestamp("us", column.type.tz),
        mask=column.is_null().to_numpy(zero_copy_only=False),
    )
    times: list[Any] = microseconds.to_pylist()
    for row in numpy.flatnonzero(counts % 1000).tolist():
        text = times[row].isoformat(timespec="microseconds")
        times[row] = f"{text[:26]}{counts[row] % 1000:03d}{text[26:]}"
    return times


def number_type(kind: Any, pyarrow: Any) -> str:
    """Return the numpy dtype of a column with lists of numbers. It is empty for any other column."""
    types, depth = pyarrow.types, 0
    kind = getattr(kind, "storage_type", kind)
    while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind, depth = kind.value_type, depth + 1
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    if not (depth and is_number):
        return ""
    import numpy

    return str(numpy.dtype(kind.to_pandas_dtype()).name)


def _arrays(column: Any, pyarrow: Any) -> list[Any] | None:
    """Return the arrays in a column of lists. Return None for nested lists, and if numbers are missing."""
    numbers = column.values
    if numbers.null_count or pyarrow.types.is_nested(numbers.type):
        return None
    flat = numbers.to_numpy(zero_copy_only=False)
    if pyarrow.types.is_fixed_size_list(column.type):
        width = column.type.list_size
        ends = [(column.offset + row) * width for row in range(len(column) + 1)]
    else:
        ends = column.offsets.to_pylist()
    validity = column.is_valid().to_pylist()
    return [flat[begin:end] if is_valid else None for begin, end, is_valid in zip(ends, ends[1:], validity)]


def reach(cells: Any, column: str) -> Any:
    """Return the value of a row in a column. ``a.b`` is a column's name, or else the member ``b`` of the object, struct
    or JSON text in ``a``. Return :data:`ABSENT` if there is no such column. Raises DataError for text that is not JSON.

    >>> reach({"a": {"b": 1}}, "a.b"), reach({"a": '{"b": [2]}'}, "a.b"), reach({"a.b": 3}, "a.b")
    (1, [2], 3)
    """
    if column in cells:
        return cells[column]
    dot = column.find(".")
    while dot >= 0:
        head, member = column[:dot], column[dot + 1 :]
        if head in cells:
            inner = cells[head]
            if isinstance(inner, str):
                inner = _parsed(inner, head, member)
            if inner is None:
                return None
            return reach(inner, member) if isinstance(inner, dict) else ABSENT
        dot = column.find(".", dot + 1)
    return ABSENT


def _parsed(text: str, column: str, member: str) -> Any:
    import json

    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise DataError(
            f'column "{column}" holds no JSON object, so it cannot contain "{member}"', code="bad-table"
        ) from None


ABSENT: Any = object()
"""The value of a missing column."""
