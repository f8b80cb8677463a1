"""Tables, one row a sample: CSV, TSV, JSON Lines, and Parquet with an extra.

What it is: which column is the key, which columns are payloads (``--field EXT=COLUMN``), which name files or
addresses (``--field EXT=@COLUMN``), and whether the rest goes into ``json``. How: row by row; values go to
the payloads, so that memory does not grow with the table. An empty cell of CSV and TSV, and null, are no
value: the sample has no such field. It must not know how rows are read (``rows.py`` does) or how samples are
ordered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import Formatter
from typing import Any, NamedTuple

from wdscli.codecs.cells import cell_payload, json_bytes
from wdscli.create.columns import Files, Skipped
from wdscli.create.keys import KeyRule, check_written
from wdscli.create.payloads import Payloads
from wdscli.create.rows import read_rows
from wdscli.errors import DataError, UsageError, WdsError
from wdscli.model import to_bytes, to_text
from wdscli.progress import QUIET, Progress
from wdscli.storage import addresses_of

_SHOW_EVERY = 256


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


class _Layout(NamedTuple):
    """The options, validated."""

    key: str | None
    rekey: str | None
    fields: list[_Field]
    json_rest: bool
    used: frozenset[str]


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
    layout = _layout(options)
    count = 0
    for address in addresses_of(options.address, "--from-table"):
        unseen = set(layout.used)
        last: Mapping[str, Any] = {}
        for number, row in enumerate(read_rows(address)):
            try:
                _add(layout, count, row, rule, files, payloads, skipped, address)
            except UsageError:
                raise
            except WdsError as error:
                error.message = f"{address}, row {number + 1}: {error.message}"
                raise
            if unseen:
                unseen -= row.keys()
            last = row
            count += 1
            if number % _SHOW_EVERY == 0:
                progress.advance(_SHOW_EVERY)
        if unseen and last:
            # A row of JSON Lines may leave a column out; none that has it is a mistake in the options.
            raise _no_column(min(unseen), last)


class TableReader:
    """The keys and values of a table's rows, for one who reads the rows. Raises UsageError for options that cannot be
    meant."""

    def __init__(self, options: TableOptions) -> None:
        self._layout = _layout(options)
        self._rule = KeyRule()
        self._unseen = set(self._layout.used)

    def values(self, number: int, row: Mapping[str, Any]) -> tuple[bytes, list[tuple[bytes, bytes | str]]]:
        """Key, and field and value of what row ``number`` has: bytes, or an address as text. Raises UsageError for a
        column that is not there, DataError."""
        self._unseen -= row.keys()
        raw = to_bytes(_key_text(self._layout, number, row))
        values: list[tuple[bytes, bytes | str]] = []
        for field in self._layout.fields:
            value = row.get(field.column)
            if value is None:
                continue
            _checked(self._rule, raw, field.name)
            if field.is_address:
                values.append((field.name, str(value)))
            else:
                values.append((field.name, cell_payload(value, field.column, to_text(field.name))))
        return raw, values

    def check_seen(self, last: Mapping[str, Any]) -> None:
        """Raise UsageError when no row of a table had a column; ``last`` is one of the rows. What comes then is another
        table."""
        if self._unseen and last:
            raise _no_column(min(self._unseen), last)
        self._unseen = set(self._layout.used)


def _no_column(name: str, row: Mapping[str, Any]) -> UsageError:
    return UsageError(f'there is no column "{name}"', hint=f"there are {', '.join(row)}")


def _layout(options: TableOptions) -> _Layout:
    if (options.key is None) == (options.rekey is None):
        raise UsageError(
            "a table needs one of --key and --rekey", hint="--key id, or --rekey '{split}/{index:08d}'"
        )
    fields = [_parse_field(text) for text in options.fields]
    names = [field.name for field in fields] + [b"json"] * options.json_rest
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f'two columns for the field "{to_text(name)}"', hint="give each --field its own name"
            )
    if not names:
        raise UsageError(
            "a table needs at least one --field, or --json-rest", hint="--field jpg=@path --json-rest"
        )
    used = {field.column for field in fields} | _columns_of(options)
    return _Layout(options.key, options.rekey, fields, options.json_rest, frozenset(used))


def _parse_field(text: str) -> _Field:
    name, equals, column = text.partition("=")
    is_address = column.startswith("@")
    column = column.removeprefix("@")
    if not equals or not name or not column or "/" in name:
        raise UsageError(
            f'--field "{text}" is not EXT=COLUMN or EXT=@COLUMN', hint="--field txt=caption --field jpg=@path"
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


def _add(
    layout: _Layout,
    number: int,
    row: Mapping[str, Any],
    rule: KeyRule,
    files: Files,
    payloads: Payloads,
    skipped: Skipped,
    where: str,
) -> None:
    raw = to_bytes(_key_text(layout, number, row))
    for field in layout.fields:
        value = row.get(field.column)
        if value is None:
            skipped.add("no-value", raw + b"." + field.name)
            continue
        key = _checked(rule, raw, field.name)
        if field.is_address:
            size, place = payloads.fetch(str(value), where)
        else:
            payload = cell_payload(value, field.column, to_text(field.name))
            size, place = len(payload), payloads.keep(payload)
        files.add(key, field.name, size, place)
    if layout.json_rest:
        payload = json_bytes({name: value for name, value in row.items() if name not in layout.used})
        files.add(_checked(rule, raw, b"json"), b"json", len(payload), payloads.keep(payload))


def _key_text(layout: _Layout, number: int, row: Mapping[str, Any]) -> str:
    if layout.key is not None:
        if layout.key not in row:
            raise _no_column(layout.key, row)
        value = row[layout.key]
        if value is None:
            raise DataError(f'no key in column "{layout.key}"', code="bad-table")
        return str(value)
    try:
        return str(layout.rekey).format_map({**row, "index": number})
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise DataError(f'--rekey "{layout.rekey}" cannot be filled in: {error}', code="bad-table") from None


def _checked(rule: KeyRule, key: bytes, field: bytes) -> bytes:
    """The key as it is written; only a rule other than first-dot may take dots out of it."""
    if not rule.is_first_dot:
        key = rule.written(key)
    elif b"." in key[key.rfind(b"/") + 1 :]:
        raise DataError(
            f'the key "{to_text(key)}" has a dot, at which readers would end it',
            code="unsafe-name",
            hint="--key-rule last-dot writes _ for the dots of keys",
        )
    check_written(key, field, "unsafe name")
    return key
