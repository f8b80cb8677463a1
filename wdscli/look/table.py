"""This module makes tables: a row per sample for ``ls --to`` and ``cat --to``, and counts of values for ``ls --count
FIELD``.

:func:`listing_table` has the places of samples and the values of some fields. :func:`payload_table` has the payloads.
Rows go to :mod:`wdscli.shards.tables`, which knows columns and formats. A listing is read once. For payloads, the
headers are read first, so that all columns are known before the first row. Streams, and remote shards without an index
(:func:`are_read_once`), are read once, and their rows are stored on disc until all columns are known.

:func:`count` reads a listing once. FIELD is a place or an expression. Values are counted by their JSON text. Many
values go to scratch files with their counts (:class:`~wdscli.plan.table.GrowingValues`). At the end, they are sorted,
and the counts of equal values are added up. So counts and quantiles are exact for any number of values. At most
MAX_VALUES values are in memory, and 40 bytes for each line of the scratch files.

This module does not know terminals, or where a table is written.
"""

from __future__ import annotations

import json
import math
from array import array
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from shutil import disk_usage
from tempfile import gettempdir
from typing import Any, NamedTuple

from wdscli.arrays import I64, Mask, blocks_of, numpy
from wdscli.codecs.handlers import MAX_DECODED_BYTES, extension
from wdscli.codecs.kinds import find
from wdscli.codecs.values import NUMBERS
from wdscli.errors import DataError, InputError, UsageError
from wdscli.look.listing import Listing, Page
from wdscli.look.picking import SampleReader
from wdscli.look.unpack import SelectedMember, SelectedSample, selected_samples, text_form, too_large
from wdscli.plan.inputs import is_read_once
from wdscli.plan.sort import json_code
from wdscli.plan.table import Growing, GrowingValues, PackedValues, Values
from wdscli.samples.grouping import SampleAt
from wdscli.selection.named import SeenNames
from wdscli.selection.places import EachValue, class_name
from wdscli.selection.where import Value
from wdscli.shards.inputs import ShardSet, classes_of, without_index
from wdscli.shards.tables import (
    INDEX,
    KEY,
    OFFSET,
    PLACES,
    SHARD,
    Cell,
    RowChunk,
    Rows,
    Spool,
    TableColumn,
    check_format,
    column_of_field,
    encoded,
    field_column,
    json_text,
    text_of,
)
from wdscli.shown import shown
from wdscli.storage import is_local
from wdscli.storage.opening import size_hint
from wdscli.text import to_bytes, to_text

BYTES = TableColumn(0, "bytes")
_SIZES, _VALUES = 1, 2
"""Groups of columns. Each field of ``--column`` is a separate group."""
MANY_NUMBERS = 100
"""If there are more distinct numbers than this, quantiles are shown, unless the numbers are classes."""
MAX_VALUES, MAX_BYTES = 1 << 17, 1 << 26
"""Limits for values in memory before they go to scratch files: their number, and the bytes of their text."""
MAX_CHARACTERS = 1 << 16
"""The longest value, as JSON."""
LINES_AT_ONCE = 1 << 10
QUANTILES = {"min": 0.0, "1%": 0.01, "25%": 0.25, "median": 0.5, "75%": 0.75, "99%": 0.99, "max": 1.0}
_EXACT = 1e16
_IS_NUMBER = json_code(0)[:1]


def _cells(
    value: Value, group: int, sample: SampleAt, documents: dict[str, Any]
) -> Iterator[tuple[TableColumn, Cell]]:
    """Yield the cells for a ``--column``: each value at the top level of a document, or else the value. Texts stay as
    they are. Raises DataError."""
    if (
        value.is_field
        and text_form(field := to_bytes(value.text)) == "text"
        and extension(value.text) not in NUMBERS
    ):
        if field in sample.fields:
            yield TableColumn(group, value.text), text_of(sample.payload(field))
        return
    result = value.value(sample, documents=documents)
    if isinstance(result, dict) and value.place is not None and not value.place.path:
        for name, inner in result.items():
            yield _value_column(group, name, value.text), _cell(inner)
    elif result is not None:
        yield TableColumn(group, value.text, text=value.is_field), _cell(result)


def _cell(value: Any) -> Cell:
    return (json_text(value),) if isinstance(value, (list, dict)) else value


_value_column = lru_cache(1 << 12)(TableColumn)


def listing_table(listing: Listing, form: str, fields: Sequence[str] = ()) -> Spool:
    """Yield a table of all samples of a listing. It has the key, the shard, the place in the shard, the offset of the
    first header, the size, and the size of each field. For each of ``fields``, it also has the value, or the values at
    the top level of a document. Raises UsageError for a field of pictures, sound or arrays. Raises DataError for a
    payload that cannot be decoded; with ``on_error="skip"``, the sample is skipped and counted."""
    check_format(form)
    values = [_column_value(field) for field in dict.fromkeys(fields)]
    spool, rows, seen_names = Spool({**PLACES, BYTES: "int64"}), Rows(), SeenNames()
    for page in listing.samples(frozenset[bytes]().union(*(value.payload_fields for value in values))):
        seen_names.fields.update(page.batch.fields)
        for row in range(len(page.batch.keys)):
            try:
                cells = list(_values(page, row, values))
            except DataError as error:
                listing.skip_undecodable(error)
                continue
            rows.add(chain(_place(page, row), cells))
            if rows.is_full:
                spool.put(rows.take())
    spool.put(rows.take())
    named = [name for value in values for name in value.named_for(" for --column")]
    listing.remark(seen_names.absent(name._replace(needed=False) for name in named))
    return spool


def _column_value(text: str) -> Value:
    value = Value.of_payloads(text, "--column")
    if value.is_field and find(extension(text)).is_binary:
        hint = (
            f"text: --rename {text}.txt={text} --column {text}.txt; other payloads: wds cat --to FILE.parquet"
        )
        raise UsageError(
            f"--column {text}: a field of this name holds neither text nor a document", hint=hint
        )
    return value


def count_table(listing: Listing, form: str, fields: Sequence[str]) -> Spool:
    """Yield a table of counted values (:func:`count`). Each row has field, value, name and count."""
    check_format(form)
    columns = [TableColumn(0, name) for name in ("field", "value", "name", "count")]
    spool, rows = Spool(dict(zip(columns, ("string", "string", "string", "int64")))), Rows()
    for counted in count(listing, fields):
        for value, name, number in counted.rows:
            rows.add(zip(columns, (counted.field, _cell(value), name, number)))
            if rows.is_full:
                spool.put(rows.take())
    spool.put(rows.take())
    return spool


def _place(page: Page, row: int) -> Iterator[tuple[TableColumn, Cell]]:
    """Return the cells for a sample's place and the sizes of its fields."""
    batch = page.batch
    first, end = batch.firsts[row : row + 2]
    fields, sizes = batch.fields[first:end], batch.sizes[first:end]
    yield KEY, text_of(batch.keys[row])
    yield SHARD, text_of(to_bytes(shown(page.shard)))
    yield INDEX, page.places[row]
    yield OFFSET, batch.starts[first]
    yield BYTES, sum(sizes)
    for field, size in zip(fields, sizes):
        yield field_column(_SIZES, "size.", field), size


def _values(page: Page, row: int, values: Sequence[Value]) -> Iterator[tuple[TableColumn, Cell]]:
    """Return the cells of the ``--column`` values for a sample. Raises DataError ``undecodable``."""
    batch, documents = page.batch, dict[str, Any]()

    def payload_of(row: int, field: bytes) -> bytes:
        return page.payload(row, batch.fields.index(field, batch.firsts[row]))

    sample = SampleAt(batch, row, page.shard, payload_of)
    for group, value in enumerate(values, _VALUES):
        yield from _cells(value, group, sample, documents)


class CountRow(NamedTuple):
    """A value, the name of its class or of the quantile, and the number of samples with this value. A quantile has no
    number."""

    value: Any
    name: str | None
    samples: int | None


class FieldCounts(NamedTuple):
    """The values of a FIELD. ``total`` is the number of samples; each value of a list's elements counts like a sample.
    ``rows`` has the ``distinct`` values, the most frequent first; equally frequent values are sorted. For many numbers,
    it has quantiles instead. ``rows`` can be iterated only once. The last row counts missing values."""

    field: str
    total: int
    missing: int
    distinct: int
    has_names: bool
    has_quantiles: bool
    rows: Iterator[CountRow]


def count(listing: Listing, fields: Sequence[str]) -> list[FieldCounts]:
    """Read a listing to its end, and count the values of each of ``fields``. Names that no sample has are added to the
    listing's warnings. Raises UsageError for an invalid FIELD. Raises DataError for a value that cannot be decoded;
    with ``on_error="skip"``, the sample is skipped and counted."""
    classes = classes_of(listing.set) or ()
    counters = [_Counts(field, classes) for field in dict.fromkeys(fields)]
    for sample in listing.each(
        lambda names: frozenset().union(*(counter.payload_fields(names) for counter in counters))
    ):
        documents: dict[str, Any] = {}
        try:
            values = [counter.values(sample, documents) for counter in counters]
        except DataError as error:
            listing.skip_undecodable(error)
            continue
        for counter, lines in zip(counters, values):
            counter.add(lines, sample)
    for counter in counters:
        listing.remark(counter.missing_names())
    return [counter.result() for counter in counters]


class _Counts:
    """The counts of one FIELD so far."""

    def __init__(self, field: str, classes: Sequence[str]) -> None:
        self._field = field
        self._of = Value(field, "--count", classes)
        self._classes = classes if field.strip() == "cls" else ()
        self._total = self._missing = self._bytes = 0
        self._counts = Counter[str]()
        self._values, self._totals = GrowingValues(), Growing()
        self._seen = SeenNames()

    def payload_fields(self, stored: frozenset[str]) -> frozenset[bytes]:
        """Return the fields whose payloads must be read if the samples have the values ``stored``."""
        return self._of.using(stored).payload_fields

    def values(self, sample: SampleAt, documents: dict[str, Any]) -> list[str]:
        """Return a sample's value as JSON text: no text for a missing value, several for the values of a list's
        elements. Raises DataError."""
        value = self._of.value(sample, documents=documents)
        try:
            lines = map(_text, value) if type(value) is EachValue else [_text(value)]
            texts = [line for line in lines if line is not None]
        except (TypeError, ValueError, RecursionError) as error:
            raise sample.error(
                f"--count {self._field}: cannot count this value: {error}", "undecodable"
            ) from None
        for text in texts:
            if len(text) > MAX_CHARACTERS:
                message = (
                    f"--count {self._field}: a value of {len(text)} characters, more than {MAX_CHARACTERS}"
                )
                raise sample.error(
                    message, "undecodable", hint=f"--count 'len({self._field})' counts lengths"
                )
        return texts

    def add(self, texts: list[str], sample: SampleAt) -> None:
        """Count the values of a sample."""
        self._total += len(texts) or 1
        if not texts:
            self._missing += 1
            self._seen.fields.update(sample.fields)
            self._of.look(self._seen)
        before = len(self._counts)
        self._counts.update(texts)
        if len(self._counts) > before:
            self._bytes += sum(map(len, texts))
            if len(self._counts) >= MAX_VALUES or self._bytes >= MAX_BYTES:
                self._put_away()

    def missing_names(self) -> list[Any]:
        """Return the names in FIELD that no sample has, if no sample has a value."""
        named = [name._replace(needed=False) for name in self._of.named_for(" for --count")]
        return self._seen.absent(named) if self._missing == self._total > 0 else []

    def _put_away(self) -> None:
        """Move values and counts to the scratch files. A line has the code for sorting, the value, and the length of
        the code."""
        lines = []
        for text in self._counts:
            code = json_code(json.loads(text))
            lines.append(code + text.encode() + len(code).to_bytes(4, "big"))
        self._values.append(PackedValues.of(lines))
        self._totals.append(array("q", self._counts.values()))
        self._counts.clear()
        self._bytes = 0

    def result(self) -> FieldCounts:
        """Return the table. Nothing can be added afterwards."""
        self._put_away()
        values, totals = _added_up(
            self._values.values(), numpy.frombuffer(self._totals.mapped(), dtype=numpy.int64)
        )
        ends = (values.part(0, 1) + values.part(values.total - 1, values.total)) if values.total else [b""]
        are_numbers = all(line.startswith(_IS_NUMBER) for line in ends)
        is_cut = are_numbers and values.total > MANY_NUMBERS and self._field.strip() != "cls"
        rows = self._quantiles(values, totals) if is_cut else self._frequent(values, totals)
        has_names = bool(self._classes or self._missing)
        return FieldCounts(self._field, self._total, self._missing, values.total, has_names, is_cut, rows)

    def _frequent(self, values: Values, totals: I64) -> Iterator[CountRow]:
        order: I64 = numpy.argsort(-totals, kind="stable")
        counts = iter(totals[order])
        for line in _lines(values.taken(order)):
            value = _read(line)
            yield CountRow(value, class_name(value, self._classes), int(next(counts)))
        if self._missing:
            yield CountRow(None, "missing", self._missing)

    def _quantiles(self, values: Values, totals: I64) -> Iterator[CountRow]:
        ends = numpy.cumsum(totals)
        total = int(ends[-1])
        for name, share in QUANTILES.items():
            row = int(numpy.searchsorted(ends, max(1, math.ceil(share * total))))
            yield CountRow(_read(values.part(row, row + 1)[0]), name, None)
        mean = math.fsum(_read(line) * (int(count) / total) for line, count in zip(_lines(values), totals))
        yield CountRow(mean, "mean", None)
        yield CountRow(None, "missing", self._missing)


_as_json = json.JSONEncoder(sort_keys=True).encode


def _text(value: Any) -> str | None:
    """Return a value as JSON text. Equal numbers have equal texts, and infinities are strings. Return None for null and
    NaN.

    >>> _text(2.0), _text("2"), _text([True]), _text(-math.inf)
    ('2', '"2"', '[true]', '"-inf"')
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            value = None if math.isnan(value) else str(value)
        elif value.is_integer() and abs(value) < _EXACT:
            value = int(value)
    return None if value is None else _as_json(value)


def _lines(values: Values) -> Iterator[bytes]:
    """Yield all values, few at a time, because they may be long."""
    for block in blocks_of(values.total, LINES_AT_ONCE):
        yield from values.part(block.start, block.stop)


def _read(line: bytes) -> Any:
    """Return the value in a line of the scratch file."""
    return json.loads(line[int.from_bytes(line[-4:], "big") : -4])


def _added_up(values: Values, totals: I64) -> tuple[Values, I64]:
    """Yield values in order without repeats, each with the sum of its counts."""
    order = values.order()
    is_new: Mask = numpy.ones(values.total, dtype=bool)
    last = b""
    for row, line in enumerate(_lines(values.taken(order))):
        is_new[row], last = line != last, line
    if not values.total:
        return values, totals
    firsts = numpy.flatnonzero(is_new)
    return values.taken(order[firsts]), numpy.add.reduceat(totals[order], firsts)


class PayloadCells(NamedTuple):
    """Turns payloads into cells. Text stays text. Other bytes are unchanged in Parquet. In a delimited table, they are
    written in base 64, which needs ``base64``."""

    form: str
    base64: bool = False
    max_decoded: int = MAX_DECODED_BYTES

    def kind(self, field: bytes) -> str:
        """Return the type of a field's column."""
        return "string" if text_form(field) or self.form != "parquet" else "binary"

    def cell(self, sample: SelectedSample, part: SelectedMember) -> str | bytes:
        """Return the cell for a payload. Raises DataError ``undecodable`` for text that is not UTF-8, and UsageError
        for bytes in a delimited table without ``base64``."""
        name = to_text(part.field)
        if text_form(part.field):
            text = text_of(part.whole())
            if isinstance(text, str):
                return text
            hint = f"--rename {name}.bin={name} writes it as bytes, --on-error skip skips the sample"
            raise sample.error("text that is not UTF-8", "undecodable", hint=hint, part=part)
        if self.form == "parquet":
            return part.whole()
        if self.base64:
            return b64encode(part.whole()).decode("ascii")
        raise UsageError(
            f'the field "{name}" is not text; a delimited table holds only text',
            hint=f"leave the field out with --drop {name}, encode it with --base64, or use --to FILE.parquet",
        )


def are_read_once(shards: ShardSet) -> bool:
    """Return whether shards are read only once, and rows are stored on disc. This is so for streams. It is also so for
    remote shards without an index, if they need at most a quarter of the free disc space."""
    if any(map(is_read_once, shards.addresses)):
        return True
    if all(map(is_local, shards.addresses)) or not without_index(shards):
        return False
    sizes = list(map(size_hint, shards.addresses))
    return None not in sizes and sum(filter(None, sizes)) <= disk_usage(gettempdir()).free // 4


@lru_cache(1 << 12)
def _payload_column(field: bytes) -> TableColumn:
    return TableColumn(_VALUES, column_of_field(field))


def payload_schema(listing: Listing, how: PayloadCells) -> dict[TableColumn, str]:
    """Return the columns of :func:`payload_table`, from the headers of the same samples."""
    check_format(how.form)
    order, key_type = _FieldOrder(), "string"
    for page in listing.samples():
        batch = page.batch
        for first, end in pairwise(batch.firsts):
            order.add(batch.fields[first:end])
        if not all(isinstance(text_of(key), str) for key in batch.keys):
            key_type = "binary"
    return {KEY: key_type, **{_payload_column(field): how.kind(field) for field in order.fields()}}


class _FieldOrder:
    """The order of columns. If all samples have the same order of fields, columns have this order. So samples that are
    made from the table again have the same order of fields."""

    def __init__(self) -> None:
        self._before: dict[bytes, set[bytes]] = {}
        self._last: Sequence[bytes] = ()

    def add(self, fields: Sequence[bytes]) -> None:
        """Add the fields of a sample."""
        if fields == self._last:
            return
        self._last = fields
        for field in fields:
            self._before.setdefault(field, set())
        for before, field in pairwise(fields):
            self._before[field].add(before)

    def fields(self) -> Iterator[bytes]:
        """Return all fields in order. If the samples do not decide the order of two fields, or disagree, the field that
        was seen first comes first."""
        left = dict.fromkeys(self._before)
        while left:
            free = (field for field in left if self._before[field].isdisjoint(left))
            field = next(free, None) or next(iter(left))
            del left[field]
            yield field


def payload_table(
    picker: SampleReader, how: PayloadCells, schema: dict[TableColumn, str] | None
) -> Iterator[bytes]:
    """Yield a table with the key and the payloads of each selected sample. ``schema`` has the columns; it is None if
    they are not known yet.

    A row is built in memory, so a sample with more than ``max_decoded`` bytes raises DataError ``undecodable``. Also
    raises the errors of :meth:`PayloadCells.cell`.
    """
    check_format(how.form)
    order, classes = _FieldOrder(), classes_of(picker.set)
    chunks = _payload_chunks(picker, how, order)
    if schema is not None:
        return encoded(how.form, schema, _known(chunks, schema), classes)
    spool = Spool({KEY: "string"})
    for chunk in chunks:
        spool.put(chunk)
    types = spool.schema()
    schema = {column: types[column] for column in (KEY, *map(_payload_column, order.fields()))}
    return encoded(how.form, schema, spool.chunks(), classes)


def _known(chunks: Iterable[RowChunk], columns: Mapping[TableColumn, str]) -> Iterator[RowChunk]:
    """Yield the chunks. Raises InputError for a column that is not in ``columns``."""
    for chunk in chunks:
        if new_columns := chunk.columns.keys() - columns.keys():
            names = ", ".join(sorted(column.name for column in new_columns))
            raise InputError(
                f"the shards changed while they were read: new field {names}",
                hint="run the command again when no other program writes the shards",
            )
        yield chunk


def _payload_chunks(picker: SampleReader, how: PayloadCells, order: _FieldOrder) -> Iterator[RowChunk]:
    rows, count = Rows(), 0
    for sample in selected_samples(picker):
        try:
            error = too_large(sample, takes_all=True, max_decoded=how.max_decoded, what="a row of a table")
            if error is not None:
                raise error
            cells: list[tuple[TableColumn, Cell]] = [(KEY, text_of(sample.key))]
            cells += [(_payload_column(part.field), how.cell(sample, part)) for part in sample.parts]
        except DataError as error:
            picker.skip_undecodable(error)
            continue
        rows.add(cells)
        order.add([part.field for part in sample.parts])
        count += 1
        if rows.is_full:
            yield rows.take()
    picker.check_empty(count)
    yield rows.take()
