"""A table as one more set of a join: its rows become samples of a shard in scratch space.

What it is: :func:`table_shard`. How: rows are read one at a time (``sources/rows.py``), their values become bytes as
``create --from-table`` makes them, and each row with a value is written as one sample; from then on a table is a set
like any other, and nothing of it is held in memory but 16 bytes a key. It must not know what it is joined with.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from wdscli.create.rows import read_rows
from wdscli.create.table import TableOptions, TableReader
from wdscli.errors import DataError, InputError, OutputError, UsageError, WdsError
from wdscli.model import to_text
from wdscli.plan.join.parts import TableShard
from wdscli.plan.ranges import pieces_of
from wdscli.plan.scratch import HINT, Stamp
from wdscli.progress import Progress
from wdscli.samples.keyset import KeySet
from wdscli.shards.writing import ShardFile, ShardSettings
from wdscli.storage import addresses_of, is_local, is_stream, open_source
from wdscli.storage.addresses import listed_address, local_path

_SHOW_EVERY = 256
_AT_ONCE = 512


class Table(NamedTuple):
    """A table, its column of keys, and its fields: ``EXT=COLUMN``, or ``EXT=@COLUMN`` for a column that names files.
    Several files are one table, row after row; each has all columns."""

    files: str | tuple[str, ...]
    key: str
    fields: tuple[str, ...]

    def write_shard(
        self,
        address: str,
        on_duplicate: Literal["error", "skip"],
        progress: Progress,
        *,
        trust_addresses: bool = False,
    ) -> TableShard:
        """See :func:`table_shard`."""
        return table_shard(self, address, on_duplicate, progress, trust_addresses=trust_addresses)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The files. Raises UsageError for standard input named twice."""
        return addresses_of(self.files, "--table")

    @property
    def address(self) -> str:
        """The files as one text."""
        return "::".join(self.addresses)


class _Row(NamedTuple):
    """One row: its file and number there (from 1), its key, and field and value of what it has; a value is bytes or an
    address."""

    file: str
    number: int
    key: bytes
    values: list[tuple[bytes, bytes | str]]


def table_shard(
    table: Table,
    address: str,
    on_duplicate: Literal["error", "skip"],
    progress: Progress,
    *,
    trust_addresses: bool = False,
) -> TableShard:
    """Write the rows of ``table`` as a shard at ``address``.

    Raises UsageError for a column that is not there, InputError, OutputError, and DataError with the row's number.
    """
    reader = TableReader(TableOptions(table.address, table.key, None, table.fields))
    dropped: dict[str, int] = {}
    if is_local(address):
        _make_folder(os.path.dirname(local_path(address)))
    with ShardFile(address, ShardSettings(with_index=False)) as shard:
        progress.start("reading the table", None, "samples")
        for row in _without_repeats(_rows(table, reader, dropped, progress), on_duplicate, dropped):
            _write(shard, row, trust_addresses)
        progress.finish()
        info = shard.commit()
    return TableShard(
        dropped, _size_of(table.addresses, info.size_bytes), Stamp(info.size_bytes, info.checksum or "")
    )


def _size_of(addresses: Sequence[str], otherwise: int) -> int:
    """The bytes of a table, where that can be told without reading it."""
    total = 0
    for address in addresses:
        if is_stream(address):
            return otherwise
        with open_source(address, decompress=False) as source:
            if source.size is None:
                return otherwise
            total += source.size
    return total


def _make_folder(folder: str) -> None:
    try:
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error.strerror}", hint=HINT) from error


def _rows(table: Table, reader: TableReader, dropped: dict[str, int], progress: Progress) -> Iterator[_Row]:
    """The rows that have a value. One without any is no sample."""
    for file in table.addresses:
        last: Mapping[str, Any] = {}
        for number, row in enumerate(read_rows(file), 1):
            try:
                key, values = reader.values(number - 1, row)
            except WdsError as error:
                if not isinstance(error, UsageError):
                    raise _in_row(file, number, error) from None
                raise
            last = row
            if number % _SHOW_EVERY == 0:
                progress.advance(_SHOW_EVERY)
            if values:
                yield _Row(file, number, key, values)
            else:
                dropped["no-value"] = dropped.get("no-value", 0) + 1
        reader.check_seen(last)


def _without_repeats(rows: Iterator[_Row], on_duplicate: str, dropped: dict[str, int]) -> Iterator[_Row]:
    """The rows whose key no earlier row has."""
    keys, some = KeySet(), list[_Row]()

    def first_ones() -> Iterator[_Row]:
        repeated = set(keys.add([row.key for row in some]))
        if repeated and on_duplicate == "error":
            row = some[min(repeated)]
            raise DataError(
                f'{row.file}, row {row.number}: the key "{to_text(row.key)}" a second time',
                code="duplicate-key",
                hint="leave out the later ones with --on-duplicate skip",
            )
        if repeated:
            dropped["duplicate-key"] = dropped.get("duplicate-key", 0) + len(repeated)
        yield from (row for at, row in enumerate(some) if at not in repeated)
        some.clear()

    for row in rows:
        some.append(row)
        if len(some) >= _AT_ONCE:
            yield from first_ones()
    yield from first_ones()


def _write(shard: ShardFile, row: _Row, trust_addresses: bool) -> None:
    """One row as one sample."""
    if all(isinstance(value, bytes) for _, value in row.values):
        shard.write(row.key, [(field, value) for field, value in row.values if isinstance(value, bytes)])
        return
    try:
        _write_with_files(shard, row, row.file, trust_addresses)
    except (InputError, DataError) as error:
        raise _in_row(row.file, row.number, error) from None


def _write_with_files(shard: ShardFile, row: _Row, where: str, trust_addresses: bool) -> None:
    from contextlib import ExitStack

    with ExitStack() as stack:
        fields: list[tuple[bytes, int, Iterator[bytes] | Sequence[bytes]]] = []
        for field, value in row.values:
            if isinstance(value, bytes):
                fields.append((field, len(value), [value]))
                continue
            if value == "-":
                raise InputError("standard input cannot be a payload", hint="name a file")
            value = listed_address(where, value, trusted=trust_addresses)
            source = stack.enter_context(open_source(value, decompress=False))
            if source.size is None or not source.seekable:
                data = _all_of(source)
                fields.append((field, len(data), [data]))
            else:
                fields.append((field, source.size, pieces_of(source, 0, source.size)))
        shard.write_pieces(row.key, fields)


def _all_of(source: Any) -> bytes:
    """A stream's bytes: only its end tells how many there are."""
    data = bytearray()
    while piece := source.read_some(len(data), 1 << 20):
        data += piece
    return bytes(data)


def _in_row(file: str, number: int, error: WdsError) -> WdsError:
    if getattr(error, "code", "") == "unsafe-name":
        error.hint = "the column must have keys as the samples have them: n01/img7 for n01/img7.jpg"
    error.message = f"{file}, row {number}: {error.message}"
    return error
