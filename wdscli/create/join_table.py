"""The table in a join, which is treated like one more set. Its rows become samples of a shard in scratch space. A set
that is joined by a value (:class:`SetByValue`) is treated in the same way.

A :class:`TableSet` reads its rows one at a time. Values become bytes like in ``create --from``, and each row with a
value is written as one sample. After that, the table is like any other set, and needs 16 bytes of memory per key. To
merge JSON, the samples of earlier sets are read first. The row's ``json`` becomes the merged object, and replaces the
object of the sample, like any field of a table. This needs 38 more bytes per row. This module does not know the other
sets of the join.
"""

from __future__ import annotations

import os
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from tempfile import TemporaryFile
from typing import IO

from wdscli.codecs.cells import merged_json
from wdscli.create.delimited import PLAIN, Row, TextReading, refuse_row
from wdscli.create.files import Files, RowsByKey
from wdscli.create.grouping import in_lists
from wdscli.create.left_out import LeftOut
from wdscli.create.payloads import SourcePayloads, payload_at, read_pieces
from wdscli.create.table import CellValue, TableOptions, TableReader, add_rows, samples_of
from wdscli.errors import DataError, InputError, failing
from wdscli.model import ShardInfo
from wdscli.plan.inputs import Stamp, TableShard
from wdscli.plan.join import NO_PARTNER, JoinedTable
from wdscli.plan.orders import Look
from wdscli.plan.plan import DUPLICATE_KEY
from wdscli.plan.request import Request
from wdscli.plan.scratch import HINT
from wdscli.plan.table import Extract
from wdscli.progress import Progress
from wdscli.samples import SampleBatch, iter_batches
from wdscli.samples.grouping import SampleAt
from wdscli.samples.keys import KeyLog, KeySet
from wdscli.selection import Selection
from wdscli.selection.listed import column_and_value
from wdscli.selection.named import Named
from wdscli.selection.reading import MemberReader
from wdscli.selection.where import Value
from wdscli.shards.writing import ShardFile, ShardSettings
from wdscli.storage import Source, is_local, is_stream, open_source, remove
from wdscli.storage.addresses import local_path
from wdscli.storage.ends import pieces_of
from wdscli.text import to_text

_ROWS_TOGETHER = 512
JSON = b"json"
_OF_KEY = re.compile(r"\s*key\s*=(?!=)")


@dataclass(frozen=True)
class TableSet(JoinedTable):
    """A table, its column of keys, and its fields: ``EXT=COLUMN``, or ``EXT=@COLUMN`` for a column that names files.
    Several files form one table, and each must have all columns. ``reading`` says how text becomes cells."""

    reading: TextReading = PLAIN

    def write_shard(self, address: str, request: Request, progress: Progress, look: Look) -> TableShard:
        left_out = LeftOut(progress, on_error=request.on_error, has_report=request.report is not None)
        options = TableOptions(
            self.files,
            self.key,
            fields=self.fields,
            json_merge=self.json_rest,
            has_lists=self.has_lists,
            reading=self.reading._replace(refuse=left_out.refuse, say=progress.note),
        )
        reader = TableReader(options, option="--table")
        if is_local(address):
            folder = os.path.dirname(local_path(address))
            with failing(f"write to {folder}", HINT), suppress(FileExistsError):
                os.mkdir(folder, 0o700)
        rows = f"{address}.rows" if self.json_rest else address
        keys = KeysByValue(column_and_value(self.on)[1], request.on_error == "skip") if self.on else None
        if keys is not None:
            look(lambda set_number, selection: keys)
        with (
            ShardFile(rows, ShardSettings(with_index=False)) as shard,
            SourcePayloads(request.trust_addresses, left_out) as payloads,
        ):
            progress.start("reading the table", None, "samples")
            keys_of = None if keys is None else partial(_keys_of, keys, left_out)
            samples = samples_of(reader, payloads, progress, keys_of)
            if self.has_lists:
                _write_lists(samples, shard, payloads)
            else:
                _write_rows(samples, shard, payloads, request.on_duplicate)
            progress.finish()
            info = shard.commit()
            lines = list(left_out.lines())
        if self.json_rest:
            info = _merged(rows, address, look)
        size = _size_of(reader.files, info.size_bytes)
        dropped = dict(left_out.reasons.get("rows", {}))
        return TableShard(dropped, size, Stamp(info.size_bytes, info.checksum or ""), lines)


def _merged(rows: str, address: str, look: Look) -> ShardInfo:
    """Write the shard of a table again, with the merged JSON in each row. Remove ``rows``, the shard with the table's
    own JSON."""
    with open_source(rows) as source, TemporaryFile() as scratch:
        objects = _Objects(source, scratch)
        look(partial(_Merging, objects))
        with ShardFile(address, ShardSettings(with_index=False)) as shard:
            for batch in iter_batches(source):
                for row, key in enumerate(batch.keys):
                    shard.write_pieces(key, objects.fields(batch, row))
            info = shard.commit()
    remove(rows)
    return info


class _Objects:
    """The JSON of each row of a table, and the merged JSON. The merged JSON is stored in ``scratch``."""

    def __init__(self, source: Source, scratch: IO[bytes]) -> None:
        self._source, self._scratch = source, scratch
        hashes, self._starts, self._sizes = array("q"), array("Q"), array("Q")
        self._log, self._keys = KeyLog(), array("Q")
        for batch in iter_batches(source):
            hashes.extend(map(hash, batch.keys))
            self._keys.extend(self._log.places(self._log.append(batch.keys), batch.keys))
            for row in range(len(batch.keys)):
                fields = batch.fields[batch.firsts[row] : batch.firsts[row + 1]]
                member = batch.firsts[row] + fields.index(JSON) if JSON in fields else -1
                self._starts.append(batch.offsets[member] if member >= 0 else 0)
                self._sizes.append(batch.sizes[member] if member >= 0 else 0)
        self._rows = RowsByKey(hashes)
        self._row = 0
        # For each row, the set with which its JSON was merged, and the offset and size of the result.
        self._sets = array("h", [-1]) * len(hashes)
        self._merged = array("Q", [0, 0]) * len(hashes)

    def find(self, key: bytes, of_set: int) -> int | None:
        """Return the row for the sample with this key, unless the row was already merged with another sample of the
        same set."""
        row = self._rows.find(hash(key), lambda candidate: self._log.has(self._keys[candidate], key))
        return None if row is None or not self._sizes[row] or self._sets[row] == of_set else row

    def merge(self, row: int, payload: bytes, of_set: int) -> None:
        """Merge a row's JSON into a sample's JSON. Raises DataError."""
        columns = self._source.read_at(self._starts[row], self._sizes[row])
        merged = merged_json(payload, columns)
        self._sets[row] = of_set
        self._merged[2 * row], self._merged[2 * row + 1] = self._scratch.seek(0, os.SEEK_END), len(merged)
        self._scratch.write(merged)

    def fields(self, batch: SampleBatch, row: int) -> Iterator[tuple[bytes, int, Iterable[bytes]]]:
        """Return the fields of the next row, with its merged JSON."""
        number, self._row = self._row, self._row + 1
        for member in range(batch.firsts[row], batch.firsts[row + 1]):
            field, size = batch.fields[member], batch.sizes[member]
            if field == JSON and self._sets[number] >= 0:
                self._scratch.seek(self._merged[2 * number])
                merged = self._scratch.read(self._merged[2 * number + 1])
                yield field, len(merged), [merged]
            else:
                yield field, size, pieces_of(self._source, batch.offsets[member], size)


class _Merging(Extract):
    """An extract that merges the JSON of samples, and returns no values."""

    payload_fields = frozenset((JSON,))

    def __init__(self, objects: _Objects, of_set: int, selection: Selection) -> None:
        self._objects, self._of_set, self._selection = objects, of_set, selection

    def values(
        self, batch: SampleBatch, rows: Sequence[int], shard: str, payload_of: MemberReader
    ) -> list[bytes]:
        for row in rows:
            number = self._objects.find(batch.keys[row], self._of_set)
            if number is None:
                continue
            for member, field in self._selection.plan_of(batch, row, shard):
                if field == JSON:
                    name = batch.fields[batch.firsts[row] + member]
                    try:
                        self._objects.merge(number, payload_of(row, name), self._of_set)
                    except DataError as error:
                        sample = SampleAt(batch, row, shard)
                        raise sample.error(error.message, error.code, name, error.hint) from None
        return []


def _size_of(addresses: Sequence[str], otherwise: int) -> int:
    """Return the total size of a table's files, or ``otherwise`` if a size is unknown."""
    total = 0
    for address in addresses:
        if is_stream(address):
            return otherwise
        with open_source(address, decompress=False) as source:
            if source.size is None:
                return otherwise
            total += source.size
    return total


class KeysByValue(Extract):
    """The keys of the samples of the earlier sets, by a value. A sample needs 40 bytes of memory, and its key and value
    are in scratch space. With ``is_lenient``, a value that cannot be decoded counts as missing. As an extract, it notes
    the samples of a set, and returns no values."""

    def __init__(self, value: Value, is_lenient: bool) -> None:
        self._value, self._is_lenient = value, is_lenient
        self._log, self._hashes = KeyLog(), array("q")
        self._values, self._keys = array("Q"), array("Q")

    @property
    def payload_fields(self) -> frozenset[bytes]:
        return self._value.payload_fields

    @property
    def named(self) -> Sequence[Named]:
        return self._value.named_for(" for --on")

    def values(
        self, batch: SampleBatch, rows: Sequence[int], shard: str, payload_of: MemberReader
    ) -> list[bytes]:
        for row in rows:
            sample = SampleAt(batch, row, shard, payload_of)
            if (value := self._value.of(sample, self._is_lenient)) is not None:
                self.add(value, sample.key)
        return []

    def add(self, value: bytes, key: bytes) -> None:
        """Note a sample. Raises DataError for a very long value."""
        value_place, key_place = self._log.places(self._log.append([value, key]), [value, key])
        self._hashes.append(hash(value))
        self._values.append(value_place)
        self._keys.append(key_place)

    @cached_property
    def _rows(self) -> RowsByKey:
        return RowsByKey(self._hashes)

    def of(self, value: bytes) -> list[bytes]:
        """Return the distinct keys of the samples with a value. All samples must be noted before."""
        candidates = self._rows.candidates(hash(value))
        rows = [row for row in candidates if self._log.has(self._values[row], value)]
        return list(dict.fromkeys(self._log.key(self._keys[row]) for row in rows))


def _keys_of(keys: KeysByValue, left_out: LeftOut, row: Row, value: bytes) -> Sequence[bytes]:
    """Return the keys of the samples for a row. Count a row without samples."""
    sample_keys = keys.of(value.strip())
    if not sample_keys:
        left_out.add(NO_PARTNER, value, "rows", place=row.place, key=to_text(value))
    return sample_keys


def _write_rows(
    samples: Iterator[tuple[Row, list[CellValue]]],
    shard: ShardFile,
    payloads: SourcePayloads,
    on_duplicate: str,
) -> None:
    """Write each row with a value as a sample. Rows with a repeated key are left out, or bad rows."""
    keys, left_out = KeySet(), payloads.left_out
    while block := list(islice(samples, _ROWS_TOGETHER)):
        repeated = set(keys.add([values[0].key for _, values in block]))
        for number, (row, values) in enumerate(block):
            key = values[0].key
            if number not in repeated:
                _write(shard, row, values, payloads)
            elif on_duplicate == "error":
                raise _repeated(row, key)
            else:
                left_out.add(DUPLICATE_KEY, key, "rows", place=row.place, key=to_text(key))
    left_out.check_rows()


def _write_lists(
    rows: Iterator[tuple[Row, list[CellValue]]], shard: ShardFile, payloads: SourcePayloads
) -> None:
    """Write the rows of each key as one sample with lists, in the order of the first rows."""
    files = Files()
    files.first_listed = 0
    add_rows(rows, files, payloads)
    samples = in_lists(files, payloads.keep)
    for sample in sorted(range(samples.total), key=lambda sample: min(samples.members(sample))):
        members = samples.members(sample)
        values = [payload_at(files.place(member), files.size(member)) for member in members]
        shard.write(samples.key(sample), list(zip(samples.fields(sample), values)))


def _repeated(row: Row, key: bytes) -> DataError:
    return DataError(
        f'{row.place}: repeated key "{to_text(key)}"',
        code="duplicate-key",
        hint="leave out the later rows with --on-duplicate skip, or make lists of JSON fields with list",
    )


def _write(shard: ShardFile, row: Row, values: Sequence[CellValue], payloads: SourcePayloads) -> None:
    """Write the sample of a row. Raises InputError and DataError for a source that fails while it is read."""
    in_memory = [(field, value) for _, field, value in values if isinstance(value, bytes)]
    if len(in_memory) == len(values):  # writing pieces is slower
        shard.write(values[0].key, in_memory)
        return
    fields: list[tuple[bytes, int, Iterable[bytes | memoryview]]] = []
    try:
        for key, field, value in values:
            if isinstance(value, bytes):
                fields.append((field, len(value), [value]))
            elif value is not None and (size_and_place := payloads.of_member(key, field, value, row.place)):
                size, place = size_and_place
                fields.append((field, size, read_pieces(place, size)))
    except (InputError, DataError) as error:
        payloads.left_out.refuse(row.place, error)
        return
    try:
        if fields:
            shard.write_pieces(values[0].key, fields)
    except (InputError, DataError) as error:
        refuse_row(row.place, error)


@dataclass(frozen=True)
class SetByValue(JoinedTable):
    """The second set of a join by a value. It is joined like a table: a shard in scratch space has its samples, with
    the keys of the samples of the first set that have the same value. Several of these may have the same sample."""

    on_conflict = "error"
    noun = "set"
    hint = "give both sets keys by the value first, as views: wds split SET -o NAME.json --rekey '{json.id}'"

    def write_shard(self, address: str, request: Request, progress: Progress, look: Look) -> TableShard:
        from wdscli.look.picking import SampleReader

        column, value = column_and_value(self.on)
        other = column_and_value(column)[1] if column != "key" or _OF_KEY.match(self.on) else value
        is_lenient = request.on_error == "skip"
        keys, seen, dropped = KeysByValue(value, is_lenient), KeySet(), Counter[str]()
        look(lambda set_number, selection: keys)
        request = request._replace(inputs=[str(self.files)], selection=Selection(), dedup=())
        with ShardFile(address, ShardSettings(with_index=False)) as shard:
            for page in SampleReader(request, progress=progress).pages():
                for row in page.rows:
                    sample = page.sample(row)
                    text = other.of(sample, is_lenient)
                    sample_keys = () if text is None else keys.of(text)
                    if sample_keys and seen.add_new(sample_keys):
                        for key in sample_keys:
                            shard.write_pieces(key, page.members(row))
                        continue
                    if sample_keys and request.on_duplicate != "skip":
                        message = f"an earlier sample of the set has the same {other.text}"
                        hint = "--on-duplicate skip leaves out later samples"
                        raise sample.error(message, DUPLICATE_KEY, hint=hint)
                    dropped[DUPLICATE_KEY if sample_keys else NO_PARTNER] += 1
            info = shard.commit()
        return TableShard(dropped, info.size_bytes, Stamp(info.size_bytes, info.checksum or ""), [])
