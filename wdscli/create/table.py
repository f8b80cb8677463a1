"""This module turns rows into files. It decides which column is the key, and which columns are payloads.

A :class:`TableReader` has the key column, the columns that are payloads (``--column EXT=COLUMN``), and the columns that
name files or addresses (``--column EXT=@COLUMN``). The other columns may go into ``json``. :func:`read_table` adds the
rows as files. It reads row by row (:mod:`~wdscli.create.rows`), and stores values as payloads, so that memory does not
grow with the table. None means that the sample does not have the field. A struct of ``bytes`` and ``path``, which is
Hugging Face's form for pictures and sounds, is a payload, or names a payload. An existing JSON object is found by a
hash, which needs 12 bytes per sample.

This module does not know how samples are ordered.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from string import Formatter
from typing import Any, NamedTuple

from wdscli.codecs.cells import cell_payload, extension_of, is_json, json_bytes, merged_json
from wdscli.codecs.kinds import find
from wdscli.create.delimited import NumberText, Row
from wdscli.create.files import SEPARATOR, Files, Inline, JsonFiles, KeyRule, check_written
from wdscli.create.layouts import (
    OPTIONS,
    SAMPLE_KEY,
    TableLayout,
    exported_layout,
    hf_layout,
    no_key_option,
    shards_layout,
)
from wdscli.create.layouts import TableOptions as TableOptions
from wdscli.create.left_out import NO_VALUE, LeftOut
from wdscli.create.payloads import NamedSource, SourcePayloads, payload_at
from wdscli.create.rows import ABSENT, Table, class_names, column_names, reach, read_lines, table_files
from wdscli.errors import DataError, UsageError, WdsError
from wdscli.plan.names import KeyFormat
from wdscli.progress import QUIET, Progress
from wdscli.selection.keyfiles import key_of
from wdscli.storage import base_name, is_stream
from wdscli.text import to_bytes, to_text

_PROGRESS_ROWS = 256
_ANY = "*"
"""The placeholder in a field's name for the extension of the column's content or address."""


class _Format(KeyFormat):
    """Fills in formats with columns, and with members of objects in columns."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        value = reach(kwargs, field_name)
        if value is None or value is ABSENT:
            raise KeyError(field_name)
        return _in_text(value, field_name), field_name


_FORMAT = _Format()


def _in_text(value: Any, column: str) -> Any:
    """Return a value for use in a format. Bytes become text. Raises ValueError for lists and objects."""
    if isinstance(value, bytes):
        return to_text(value)
    if isinstance(value, (list, dict)) or hasattr(value, "tolist"):
        raise ValueError(f'column "{column}" has a {type(value).__name__}')
    return value


class _Field(NamedTuple):
    """A field of the samples. It has a name, and a column or a format with ``columns``. ``is_address`` says whether the
    value is the payload's address."""

    name: bytes
    column: str
    is_address: bool
    columns: frozenset[str]
    text: str
    """The field's name as text."""

    def value(self, row: Row) -> Any:
        """Return a row's value for this field. None or ABSENT means no value. Raises DataError."""
        if "{" not in self.column:
            return reach(row.cells, self.column)
        try:
            return _FORMAT.vformat(self.column, (), {**row.cells, "index": row.number})
        except KeyError:
            return None
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise DataError(f'"{self.column}" cannot be filled in: {error}', code="bad-table") from None


class ClassName(bytes):
    """The name of a class. Its number will later replace it in the field ``cls``."""


class CellValue(NamedTuple):
    """A row's value for one field of its sample. It is bytes, the source of a payload, or None. ``key`` is the key to
    write."""

    key: bytes
    field: bytes
    value: bytes | NamedSource | None


def _layout_of(options: TableOptions, option: str, rule: KeyRule) -> TableLayout:
    if options.kind == "hf":
        return hf_layout(options)
    if options.kind == "shards":
        return shards_layout(options, rule)
    files = table_files(options.address, option)
    if options.kind == "coco":
        from wdscli.create.coco import coco_layout

        return coco_layout(options, files)
    if options.kind == "lines":
        rekey = "{index:08d}" if options.key is None else None
        options = options._replace(
            rekey=options.rekey or rekey,
            fields=options.fields or (() if options.json_rest else ("txt=line",)),
        )
        return TableLayout(files, lambda file, *_: read_lines(file, options.reading), options)
    if options.is_exported:
        return exported_layout(options, files)
    labels = [text.partition("=")[2] for text in options.fields if text.startswith("cls=")]
    classes = class_names(files[0], labels[0]) if labels and files else None
    return TableLayout(files, Table(files, options.reading).rows, options, classes)


class TableReader:
    """Reads rows, and finds keys and values in them. ``option`` is the option that named the table. With
    ``names_classes``, text in the field ``cls`` is a :class:`ClassName`. Raises UsageError for options that contradict
    each other, and InputError for missing files."""

    has_names: bool | None = None
    """Whether the field ``cls`` has names, not numbers. It is None before the first value."""

    def __init__(
        self,
        options: TableOptions,
        rule: KeyRule | None = None,
        option: str = "",
        *,
        names_classes: bool = False,
    ) -> None:
        if options.kind == "table" and not options.is_exported:
            _check(options)
        self._option = option or OPTIONS[options.kind]
        self._rule = rule or KeyRule()
        self._layout = _layout_of(options, self._option, self._rule)
        self.files = self._layout.files
        self.classes = self._layout.classes
        """The class names for the numbers in the field ``cls``, if the source has them."""
        self._options = options = self._layout.options
        if not self._layout.has_samples:
            _check(options)
        self._fields = [_parse_field(text) for text in options.fields]
        self._takes_rest = options.json_rest or options.json_merge
        if options.reading.text and not self._takes_rest:
            raise UsageError(
                "--text applies only to columns that are written to the field json", hint="add --json-rest"
            )
        self._key_columns = _columns_of(options)
        self._used = self._key_columns.union(*(field.columns for field in self._fields))
        self._names_classes = names_classes
        self._checked, self._safe = b"", set[bytes]()
        self._inside = [column for column in self._used if "." in column]

    def rows(self, progress: Progress) -> Iterator[Row]:
        """Yield the rows of all files. Raises the errors of reading, and UsageError for a column that no row of a file
        has."""
        before = 0
        for file in self._layout.files:
            unseen = set(self._used)
            cells: Mapping[str, Any] = {}
            number = 0
            for row in self._layout.rows(file, self._used, self._takes_rest):
                cells, number = row.cells, row.place.row
                yield row._replace(number=before + number - 1)
                if unseen:
                    unseen = {name for name in unseen if reach(cells, name) is ABSENT}
                if number % _PROGRESS_ROWS == 0:
                    progress.advance(_PROGRESS_ROWS)
            before += number
            if unseen and cells:
                # A row of JSON Lines may lack a column. If all rows lack it, the option is wrong.
                raise _no_column(min(unseen), cells)

    @property
    def has_addresses(self) -> bool:
        """Whether some column has addresses of payloads."""
        return any(field.is_address for field in self._fields)

    def addresses(self, row: Row) -> Iterator[NamedSource]:
        """Return the addresses of payloads in a row. Wrong addresses are left out."""
        for field in self._fields:
            with suppress(WdsError):
                if field.is_address and isinstance(value := field.value(row), (str, bytes)):
                    yield NamedSource(to_text(_as_name(value, field.column)), row.place.table, field.column)

    def key(self, row: Row) -> bytes:
        """Return the key in a row. Raises UsageError for a missing column, and DataError for a cell that is no key."""
        key, rekey = self._options.key, self._options.rekey
        if key is not None:
            value = reach(row.cells, key)
            if value is ABSENT:
                raise _no_column(key, row.cells)
            if value is None:
                raise DataError(f'no key in column "{key}"', code="bad-table")
            return _as_name(value, key)
        try:
            named = {name: _in_text(row.cells[name], name) for name in self._key_columns}
            named["index"] = row.number
            text = str(rekey)
            return to_bytes(_FORMAT.vformat(text, (), named) if "!k}" in text else text.format_map(named))
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            hint = f"there are index, {', '.join(row.cells)}"
            raise DataError(
                f'--rekey "{rekey}" cannot be filled in: {error}', code="bad-table", hint=hint
            ) from None

    def values(self, row: Row, key: bytes) -> Iterator[CellValue]:
        """Yield the values of a row with this key, one per field. Raises DataError."""
        for cell in row.cells if self._layout.has_samples else ():
            if cell != SAMPLE_KEY:
                raw = to_bytes(cell)
                yield CellValue(self._written(key, raw), raw, row.cells[cell])
        where = row.place.table
        for field, value in self._filled(row):
            name, column, is_address, _, text = field
            if value is None or value is ABSENT or (is_address and _is_nan(value)):
                yield CellValue(key, name, NamedSource("", where, column) if is_address else None)
                continue
            if isinstance(value, dict) and _is_media(value):
                value, path = value["bytes"], value["path"]
                if value is None:
                    value, is_address = path, True
            else:
                path = ""
            if value is None:
                yield CellValue(key, name, None)
                continue
            if is_address and not (value := to_text(_as_name(value, column))):
                yield CellValue(key, name, NamedSource("", where, column))
                continue
            if _ANY in text:
                text = text.replace(_ANY, _extension(value, path, column, is_address=is_address))
                name = to_bytes(text)
            written = self._written(key, name)
            payload = NamedSource(value, where, column) if is_address else self._payload(value, column, text)
            yield CellValue(written, name, payload)
        if self._takes_rest:
            json_columns = self._rest(row.cells)
            if json_columns or self._options.json_rest:
                payload = json_bytes([json_columns] if self._options.has_lists else json_columns)
                yield CellValue(self._written(key, b"json"), b"json", payload)

    def _filled(self, row: Row) -> Iterator[tuple[_Field, Any]]:
        """Yield each field with its value. A list of pictures or sounds fills several fields: ``0.jpg``, ``1.jpg``."""
        for field in self._fields:
            value = field.value(row)
            if type(value) is not list or not all(
                isinstance(part, bytes) or _is_media(part) for part in value
            ):
                yield field, value
                continue
            for number, part in enumerate(value):
                name = f"{number}.{field.text}"
                yield field._replace(name=to_bytes(name), text=name), part
            if not value:
                is_media = find(field.text.rpartition(".")[2]).form in ("image", "audio", "video")
                yield field, None if is_media or field.text.endswith(_ANY) else value

    def _payload(self, value: Any, column: str, field: str) -> bytes | None:
        """Return the payload of a cell that names no file. Raises DataError."""
        if self._names_classes and field == "cls":
            return self._class(value, column)
        if self._options.has_lists and is_json(field):
            return json_bytes([_number(value, column) if isinstance(value, NumberText) else value])
        return cell_payload(value, column, field)

    def _class(self, value: Any, column: str) -> bytes | None:
        """Return the number of a class, or its :class:`ClassName`. Return None for a missing value. Raises DataError
        for a column that has both."""
        try:
            payload = cell_payload(value, column, "cls")
        except DataError:
            if not isinstance(value, str) or _is_number(value) or self.has_names is False:
                raise
            payload = ClassName(to_bytes(value))
        if payload is None:
            return None
        is_name = isinstance(payload, ClassName)
        if self.has_names and not is_name:
            raise DataError(
                f'column "{column}" has class names, but also the number {value}',
                code="bad-value",
                hint="write a name in every row, or a number in every row",
            )
        self.has_names = is_name
        return payload

    def _rest(self, cells: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns that are neither key nor field. If a field is a member of an object, the other members of
        the object are kept."""
        columns = {name: value for name, value in cells.items() if name not in self._used}
        for column in self._inside:
            _leave_out(columns, column)
        if self._options.json_merge:
            columns = {name: value for name, value in columns.items() if value is not None}
        for name, value in columns.items():
            if isinstance(value, NumberText):
                columns[name] = _number(value, name)
            elif isinstance(value, bytes) or _is_media(value):
                raise DataError(
                    f'column "{name}" has bytes, which JSON cannot hold',
                    code="bad-table",
                    hint=f"they need a field of their own: --column 'jpg={name}', or --column '*={name}'",
                )
        return columns

    def _written(self, key: bytes, field: bytes) -> bytes:
        """Return the key to write. Only rules other than first-dot may remove dots. Raises DataError."""
        if key == self._checked and field in self._safe:
            return key
        try:
            written = self._checked_name(key, field)
        except DataError as error:
            if self._option == "--table":
                error.hint = "the column needs the keys of the samples: n01/img7 for n01/img7.jpg"
            raise
        # A name with this beginning and only one part depends on both key and field.
        if written == key and not key.startswith(b"__"):
            if key != self._checked:
                self._checked = key
            self._safe.add(field)
        return written

    def _checked_name(self, key: bytes, field: bytes) -> bytes:
        if not self._rule.is_first_dot:
            key = self._rule.written(key)
        elif b"." in key[key.rfind(b"/") + 1 :]:
            raise DataError(
                f'the key "{to_text(key)}" has a dot; readers would end the key there',
                code="unsafe-name",
                hint=f"--rekey '{{{self._options.key or 'COLUMN'}!k}}' instead of --key-column (not both); "
                "--key-rule last-dot writes dots as _",
            )
        check_written(key, field)
        return key


def _check(options: TableOptions) -> None:
    """Raise UsageError for options of a table that contradict each other."""
    if options.key is not None and options.rekey is not None:
        raise UsageError("--key-column and --rekey both make the keys of a table", hint="give one, not both")
    if options.key is None and options.rekey is None:
        columns: list[str] = []
        with suppress(WdsError, OSError):
            first = next(iter(table_files(options.address, OPTIONS[options.kind])))
            columns = [] if is_stream(first) else column_names(first)
        raise no_key_option(columns)
    if options.json_rest and options.json_merge:
        raise UsageError(
            "--json-rest creates the field json, but --json-merge needs an existing field json",
            hint="leave one of them out",
        )
    takes_rest = options.json_rest or options.json_merge
    names = [_parse_field(text).name for text in options.fields] + [b"json"] * takes_rest
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f'two columns for the field "{to_text(name)}"', hint="give each --column its own name"
            )
    if not names:
        raise UsageError(
            "a table needs at least one --column, --json-rest or --json-merge",
            hint="--column jpg=@path --json-rest; a table that wds cat wrote needs no --column and no --key-column",
        )


def _is_media(value: Any) -> bool:
    """Return whether a value is a picture or sound in Hugging Face's form: a struct of ``bytes`` and ``path``."""
    return (
        isinstance(value, dict)
        and value.keys() == {"bytes", "path"}
        and isinstance(value["bytes"], bytes | None)
        and isinstance(value["path"], str | None)
    )


def _extension(value: Any, path: str | None, column: str, *, is_address: bool) -> str:
    """Return the extension for a payload or an address. Raises DataError."""
    extension = ""
    if isinstance(value, bytes):
        extension = extension_of(value)
    elif not is_address:
        raise DataError(
            f'column "{column}" has neither bytes nor paths, so its values have no extension',
            code="bad-value",
            hint=f"--column txt={column}, or json, npy, cls",
        )
    if not extension:
        _, dot, extension = base_name(str(value) if is_address else path or "").rpartition(".")
        extension = extension.lower() if dot else ""
    if not extension.isalnum():
        raise DataError(
            f'the values in column "{column}" have no known extension',
            code="bad-value",
            hint=f"give the extension: --column jpg={'@' * is_address}{column}",
        )
    return extension


def _is_nan(value: Any) -> bool:
    """Return whether a cell has the number NaN, which is a missing value."""
    return isinstance(value, float) and value != value


def _as_name(value: Any, column: str) -> bytes:
    """Return a key or an address as bytes. Raises DataError for a value that is not text, bytes or a whole number."""
    try:
        return key_of(value)
    except ValueError as error:
        raise DataError(f'column "{column}": {error}', code="bad-value") from None


def _number(cell: str, column: str) -> Any:
    """Return the number in a cell of a numeric column. Raises DataError if the file has changed since the types were
    found."""
    try:
        return json.loads(cell)
    except ValueError:
        raise DataError(f'column "{column}" was changed while it was read', code="bad-table") from None


def _is_number(text: str) -> bool:
    """Return whether text is a number, also a fraction or NaN, and so no name of a class."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _leave_out(cells: dict[str, Any], column: str) -> None:
    """Remove ``a.b`` from a copy of the object in ``a``. If the object becomes empty, it is removed too."""
    dot = column.find(".")
    while dot >= 0:
        head, member = column[:dot], column[dot + 1 :]
        inner = cells.get(head)
        if isinstance(inner, dict):
            cells[head] = inner = dict(inner)
            if inner.pop(member, ABSENT) is ABSENT:
                _leave_out(inner, member)
            if not inner:
                del cells[head]
            return
        dot = column.find(".", dot + 1)


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
    columns = _named_in(column, f'--column "{text}"') if "{" in column else {column}
    return _Field(to_bytes(name), column, is_address, frozenset(columns - {"index"}), name)


def _named_in(text: str, option: str) -> set[str]:
    """Return the columns in a format. Raises UsageError."""
    try:
        return {name for _, name, _, _ in Formatter().parse(text) if name is not None}
    except ValueError as error:
        raise UsageError(f"cannot use {option}: {error}") from None


def _columns_of(options: TableOptions) -> set[str]:
    """Return the columns from which the key is made."""
    if options.key is not None:
        return {options.key}
    names = _named_in(options.rekey or "", f'--rekey "{options.rekey}"')
    if not names or any(not name or "." in name or "[" in name for name in names):
        raise UsageError(
            f'cannot use --rekey "{options.rekey}"', hint="use columns and {index}: '{split}/{index:08d}'"
        )
    return names - {"index"}


def samples_of(
    reader: TableReader,
    payloads: SourcePayloads,
    progress: Progress,
    keys_of: Callable[[Row, bytes], Sequence[bytes]] | None = None,
) -> Iterator[tuple[Row, list[CellValue]]]:
    """Yield each row with the values of its fields. Empty cells, rows without a value and bad rows are left out.
    ``keys_of`` returns the keys of the samples for a row with a key; a row may have several samples. The sizes of
    remote payloads are requested in advance. Raises InputError, and UsageError for a missing column. At the end, the
    caller checks for bad rows (:meth:`~wdscli.create.left_out.LeftOut.check_rows`)."""
    left_out = payloads.left_out
    rows = reader.rows(progress)
    for row in payloads.ahead(rows, reader.addresses) if reader.has_addresses else rows:
        try:
            row_key = reader.key(row)
            keys = (row_key,) if keys_of is None else keys_of(row, row_key)
            samples = [(key, list(reader.values(row, key))) for key in keys]
        except UsageError:
            raise
        except WdsError as error:
            left_out.refuse(row.place, error)
            continue
        for key, values in samples:
            complete = [cell for cell in values if cell.value is not None]
            if len(complete) < len(values):
                _note_empty(left_out, row, key, values)
            if complete:
                yield row, complete


def _note_empty(left_out: LeftOut, row: Row, key: bytes, values: Sequence[CellValue]) -> None:
    """Count the empty cells of a row. A row with only empty cells is counted as a row."""
    empty = [value.field for value in values if value.value is None]
    if len(empty) == len(values):
        left_out.add(NO_VALUE, key, "rows", place=row.place, key=to_text(key))
        return
    for field in empty:
        name = key + b"." + field
        left_out.add(NO_VALUE, name, "fields", place=row.place, key=to_text(key), field=to_text(field))


def read_table(
    options: TableOptions, rule: KeyRule, files: Files, payloads: SourcePayloads, progress: Progress = QUIET
) -> tuple[tuple[str, ...] | None, bool]:
    """Add the samples of a table. Return the names of its classes, if it has any, and whether the field ``cls`` has
    names that must be numbered. Raises the errors of :func:`samples_of`."""
    reading = options.reading._replace(
        refuse=payloads.left_out.refuse, say=progress.note, leave_out=payloads.left_out.add
    )
    reader = TableReader(options._replace(reading=reading), rule, names_classes=True)
    objects = JsonFiles(files) if options.json_merge else None
    add_rows(samples_of(reader, payloads, progress), files, payloads, objects)
    return reader.classes, bool(reader.has_names)


def add_rows(
    samples: Iterable[tuple[Row, list[CellValue]]],
    files: Files,
    payloads: SourcePayloads,
    objects: JsonFiles | None = None,
) -> None:
    """Add the values of rows to the files of samples. ``objects`` has the JSON with which columns are merged. Raises
    UsageError, and DataError for bad rows."""
    class_places: dict[bytes, int] = {}
    for row, values in samples:
        files.begin_source(row.place)
        try:
            # Find all payloads of the row before a value is added.
            located = [
                payloads.of_member(key, field, value, row.place)
                for key, field, value in values
                if isinstance(value, NamedSource)
            ]
            is_merged = objects is not None and _merged(values, files, payloads, objects)
        except UsageError:
            raise
        except WdsError as error:
            payloads.left_out.refuse(row.place, error)
            continue
        places = iter(located)
        for key, field, value in values:
            if isinstance(value, ClassName):
                if value not in class_places:
                    class_places[value] = files.keep(Inline(bytes(value)))
                files.add_row(key + SEPARATOR + field, 0, class_places[value])
            elif isinstance(value, bytes):
                if not (is_merged and field == b"json"):
                    files.add(key, field, len(value), payloads.keep(value))
            elif (size_and_place := next(places)) is not None:
                files.add(key, field, *size_and_place)
    payloads.left_out.check_rows()


def _merged(values: Sequence[CellValue], files: Files, payloads: SourcePayloads, objects: JsonFiles) -> bool:
    """Add a row's JSON object to the sample's existing object. Return False if one of them does not exist."""
    key, columns = next(((cell.key, cell.value) for cell in values if cell.field == b"json"), (b"", None))
    number = objects.take(key) if isinstance(columns, bytes) else None
    if number is None or not isinstance(columns, bytes):
        return False
    value = merged_json(payload_at(files.place(number), files.size(number)), columns)
    files.put(number, len(value), files.keep(payloads.keep(value)))
    return True
