"""Tables with one row per sample, for ``ls --to`` and ``cat --to``.

What it is: :func:`listing_table`, the places of samples and the values of some fields; and :func:`payload_table`, the
payloads. How: rows go to :mod:`wdscli.shards.tables`, which knows columns and formats. A listing is read once. For
payloads the headers are read first, so that all columns are known before the first row. Streams, and remote shards
without an index (:func:`are_read_once`), are read once, and their rows wait on disc. It must not know about terminals,
nor where the table goes.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, pairwise
from shutil import disk_usage
from tempfile import gettempdir
from typing import NamedTuple

from wdscli.codecs.handlers import MAX_DECODED_BYTES, extension
from wdscli.codecs.values import NUMBERS
from wdscli.errors import DataError, InputError, UsageError
from wdscli.look.listing import Listing, Page
from wdscli.look.picking import SampleReader
from wdscli.look.unpack import SelectedMember, SelectedSample, kind_of, selected_samples, too_large
from wdscli.model import to_bytes, to_text
from wdscli.plan.inputs import is_read_once
from wdscli.samples.grouping import SampleAt
from wdscli.selection.named import Named, SeenNames
from wdscli.shards.inputs import ShardSet, classes_of, without_index
from wdscli.shards.tables import (
    INDEX,
    KEY,
    OFFSET,
    PLACES,
    SHARD,
    Cell,
    Chunk,
    Column,
    Rows,
    Spool,
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

BYTES = Column(0, "bytes")
_SIZES, _VALUES = 1, 2
"""Groups of columns; each field of ``--column`` is a group of its own."""


class _Field(NamedTuple):
    """A field of ``--column``: JSON or text."""

    name: bytes
    group: int

    def cells(self, payload: bytes) -> Iterator[tuple[Column, Cell]]:
        """The cells of a payload. Raises ValueError, RecursionError."""
        name = to_text(self.name)
        if kind_of(self.name) == "text":
            text = text_of(payload)
            if extension(name) in NUMBERS and isinstance(text, str):
                text = text.strip()
                yield Column(self.group, name, text=True), _number(text)
            else:
                yield Column(self.group, name), text
            return
        values = json.loads(payload)
        if not isinstance(values, dict):
            values = {name: values}
        for key, value in values.items():
            is_nested = isinstance(value, (list, dict))
            yield _value_column(self.group, key, name), (json_text(value),) if is_nested else value


_value_column = lru_cache(1 << 12)(Column)


def _number(text: str) -> Cell:
    """The whole number that a text is; other text unchanged.

    >>> _number("7"), _number("-1"), _number("007")
    (7, -1, '007')
    """
    is_number = len(text) < 20 and text.removeprefix("-").isdecimal() and text.isascii()
    return int(text) if is_number and str(int(text)) == text else text


def listing_table(found: Listing, form: str, fields: Sequence[str] = ()) -> Spool:
    """All samples of a listing: key, shard, place in the shard, byte of the first header, bytes, and bytes per field;
    of each of ``fields`` also its text or the values at the top of its JSON. Raises UsageError for a field that is
    neither, DataError for a payload that cannot be decoded (with ``on_error="skip"`` the sample is skipped and
    counted)."""
    check_format(form)
    looked_into: dict[bytes, _Field] = {}
    for field in dict.fromkeys(fields):
        if not kind_of(to_bytes(field)):
            raise UsageError(
                f"--column {field}: a field of this name holds neither text nor JSON",
                hint=f"text: --rename {field}.txt={field} --column {field}.txt; "
                "any payload: wds cat --to FILE.parquet",
            )
        looked_into[to_bytes(field)] = _Field(to_bytes(field), _VALUES + len(looked_into))
    spool, rows, seen_names = Spool({**PLACES, BYTES: "int64"}), Rows(), SeenNames()
    for page in found.samples(frozenset(looked_into)):
        seen_names.fields.update(page.batch.fields)
        for row in range(len(page.batch.keys)):
            try:
                values = list(_values(page, row, looked_into))
            except DataError as error:
                if not found.skips or error.code != "undecodable":
                    raise
                found.drop("undecodable")
                continue
            rows.add(chain(_place(page, row), values))
            if rows.is_full:
                spool.put(rows.take())
    spool.put(rows.take())
    found.remark(
        seen_names.absent([Named(field, " for --column", (field,), needed=False) for field in fields])
    )
    return spool


def count_table(found: Listing, form: str, fields: Sequence[str]) -> Spool:
    """The counts of values (:func:`wdscli.look.counts.count`), a row each: field, value, name, count."""
    from wdscli.look.counts import count

    check_format(form)
    columns = [Column(0, name) for name in ("field", "value", "name", "count")]
    spool, rows = Spool(dict(zip(columns, ("string", "string", "string", "int64")))), Rows()
    for one in count(found, fields):
        for value, name, number in one.rows:
            cell = (json_text(value),) if isinstance(value, (list, dict)) else value
            rows.add(zip(columns, (one.field, cell, name, number)))
            if rows.is_full:
                spool.put(rows.take())
    spool.put(rows.take())
    return spool


def _place(page: Page, row: int) -> Iterator[tuple[Column, Cell]]:
    """The place of a sample and the sizes of its fields."""
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


def _values(page: Page, row: int, fields: dict[bytes, _Field]) -> Iterator[tuple[Column, Cell]]:
    """The cells of a sample's fields that ``--column`` names. Raises DataError ``undecodable``."""
    batch = page.batch
    for member in range(batch.firsts[row], batch.firsts[row + 1]) if fields else ():
        field = fields.get(batch.fields[member])
        if field is None:
            continue
        payload = page.payload(row, member)
        try:
            yield from field.cells(payload)
        except (ValueError, RecursionError) as error:
            sample = SampleAt(batch, row, page.shard)
            hint = "--on-error skip skips the sample"
            raise sample.error(f"not JSON: {error}", "undecodable", field.name, hint) from None


class Payloads(NamedTuple):
    """How payloads become cells: text as text, other bytes unchanged in Parquet and, with ``base64``, in base 64 in a
    delimited table."""

    form: str
    base64: bool = False
    max_decoded: int = MAX_DECODED_BYTES

    def kind(self, field: bytes) -> str:
        """The type of a field's column."""
        return "string" if kind_of(field) or self.form != "parquet" else "binary"

    def cell(self, sample: SelectedSample, part: SelectedMember) -> str | bytes:
        """The cell of a payload. Raises DataError ``undecodable`` for text that is not UTF-8, UsageError for bytes in a
        delimited table without ``base64``."""
        name = to_text(part.field)
        if kind_of(part.field):
            text = text_of(part.whole())
            if isinstance(text, str):
                return text
            member = sample.key + b"." + part.field
            hint = f"--rename {name}.bin={name} writes it as bytes, --on-error skip skips the sample"
            raise sample.error("text that is not UTF-8", "undecodable", hint=hint, member=member)
        if self.form == "parquet":
            return part.whole()
        if self.base64:
            return b64encode(part.whole()).decode("ascii")
        raise UsageError(
            f'the field "{name}" is not text; a delimited table holds only text',
            hint=f"--drop {name} leaves it out, --base64 encodes it, --to FILE.parquet writes it unchanged",
        )


def are_read_once(shards: ShardSet) -> bool:
    """Whether shards are read once and rows wait on disc: for streams, and for remote shards without an index if they
    fill at most a quarter of the free disc space."""
    if any(map(is_read_once, shards.addresses)):
        return True
    if all(map(is_local, shards.addresses)) or not without_index(shards):
        return False
    sizes = list(map(size_hint, shards.addresses))
    return None not in sizes and sum(filter(None, sizes)) <= disk_usage(gettempdir()).free // 4


@lru_cache(1 << 12)
def _payload_column(field: bytes) -> Column:
    return Column(_VALUES, column_of_field(field))


def payload_schema(found: Listing, how: Payloads) -> dict[Column, str]:
    """The columns of :func:`payload_table`, from the headers of the same samples."""
    check_format(how.form)
    order, key_type = _FieldOrder(), "string"
    for page in found.samples():
        batch = page.batch
        for first, end in pairwise(batch.firsts):
            order.add(batch.fields[first:end])
        if not all(isinstance(text_of(key), str) for key in batch.keys):
            key_type = "binary"
    return {KEY: key_type, **{_payload_column(field): how.kind(field) for field in order.fields()}}


class _FieldOrder:
    """The order of columns: that of the fields in every sample, where the samples agree. A table that is read back
    then gives samples with their fields in the same order."""

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
        """All fields. Where samples do not decide, or disagree, the field that was seen first comes first."""
        left = dict.fromkeys(self._before)
        while left:
            free = (field for field in left if self._before[field].isdisjoint(left))
            field = next(free, None) or next(iter(left))
            del left[field]
            yield field


def payload_table(picker: SampleReader, how: Payloads, schema: dict[Column, str] | None) -> Iterator[bytes]:
    """The key and the payloads of each selected sample, as a table with the columns of ``schema``; None if they are not
    known yet.

    A row is built in memory: raises DataError ``undecodable`` for a sample with more than ``max_decoded`` bytes, and
    the errors of :meth:`Payloads.cell`.
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


def _known(chunks: Iterable[Chunk], columns: Mapping[Column, str]) -> Iterator[Chunk]:
    """The chunks. Raises InputError for a column that is not in ``columns``."""
    for chunk in chunks:
        if others := chunk.columns.keys() - columns.keys():
            names = ", ".join(sorted(column.name for column in others))
            raise InputError(
                f"the shards changed while they were read: new field {names}",
                hint="run the command again when no other program writes the shards",
            )
        yield chunk


def _payload_chunks(picker: SampleReader, how: Payloads, order: _FieldOrder) -> Iterator[Chunk]:
    rows, count = Rows(), 0
    for sample in selected_samples(picker):
        try:
            error = too_large(sample, True, how.max_decoded, "a row of a table")
            if error is not None:
                raise error
            cells: list[tuple[Column, Cell]] = [(KEY, text_of(sample.key))]
            cells += [(_payload_column(part.field), how.cell(sample, part)) for part in sample.parts]
        except DataError as error:
            if not picker.skips or error.code != "undecodable":
                raise
            picker.drop("undecodable")
            continue
        rows.add(cells)
        order.add([part.field for part in sample.parts])
        count += 1
        if rows.is_full:
            yield rows.take()
    picker.check_empty(count)
    yield rows.take()
