"""A table as one more set of a join: its rows become samples of a shard in scratch space.

What it is: :class:`Table`. How: rows are read one at a time, their values become bytes as ``create --from-table`` makes
them, and each row with a value is written as one sample; from then on a table is a set like any other, and nothing of
it is held in memory but 16 bytes a key. It must not know what it is joined with.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from typing import Literal, NamedTuple

from wdscli.create.table import Row, TableOptions, TableReader
from wdscli.errors import DataError, InputError, OutputError, UsageError, WdsError
from wdscli.model import to_text
from wdscli.plan.inputs import Stamp, pieces_of
from wdscli.plan.join.join import JoinedTable
from wdscli.plan.join.joined import TableShard
from wdscli.plan.scratch import HINT
from wdscli.progress import Progress
from wdscli.samples.keyset import KeySet
from wdscli.shards.writing import ShardFile, ShardSettings
from wdscli.storage import is_local, is_stream, open_source
from wdscli.storage.addresses import listed_address, local_path

_ROWS_TOGETHER = 512


class _Sample(NamedTuple):
    """A row that has a value: its key, and field and value of what it has; a value is bytes or an address."""

    row: Row
    key: bytes
    values: list[tuple[bytes, bytes | str]]


class Table(JoinedTable):
    """A table, its column of keys, and its fields: ``EXT=COLUMN``, or ``EXT=@COLUMN`` for a column that names files.
    Several files are one table, row after row; each has all columns."""

    def write_shard(
        self,
        address: str,
        on_duplicate: Literal["error", "skip"],
        progress: Progress,
        *,
        trust_addresses: bool = False,
    ) -> TableShard:
        reader = TableReader(TableOptions(self.files, self.key, fields=self.fields), option="--table")
        dropped: Counter[str] = Counter()
        if is_local(address):
            _make_folder(os.path.dirname(local_path(address)))
        with ShardFile(address, ShardSettings(with_index=False)) as shard:
            progress.start("reading the table", None, "samples")
            samples = _samples(reader, dropped, progress)
            for sample in _without_repeats(samples, on_duplicate, dropped):
                _write(shard, sample, trust_addresses)
            progress.finish()
            info = shard.commit()
        size = _size_of(self.addresses, info.size_bytes)
        return TableShard(dict(dropped), size, Stamp(info.size_bytes, info.checksum or ""))


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


def _samples(reader: TableReader, dropped: Counter[str], progress: Progress) -> Iterator[_Sample]:
    """The rows that have a value. One without any is no sample."""
    for row in reader.rows(progress):
        try:
            key = reader.key(row)
            values = [(field, value) for _, field, value in reader.values(row, key) if value is not None]
        except UsageError:
            raise
        except WdsError as error:
            raise _named(row, error) from None
        if values:
            yield _Sample(row, key, values)
        else:
            dropped["no-value"] += 1


def _without_repeats(
    samples: Iterator[_Sample], on_duplicate: str, dropped: Counter[str]
) -> Iterator[_Sample]:
    """The samples whose key no earlier one has."""
    keys = KeySet()
    while some := list(islice(samples, _ROWS_TOGETHER)):
        repeated = keys.add([sample.key for sample in some])
        if repeated and on_duplicate == "error":
            row, key, _ = some[min(repeated)]
            raise DataError(
                f'{row.file}, row {row.number}: the key "{to_text(key)}" a second time',
                code="duplicate-key",
                hint="leave out the later ones with --on-duplicate skip",
            )
        if repeated:
            dropped["duplicate-key"] += len(set(repeated))
        left_out = set(repeated)
        yield from (sample for at, sample in enumerate(some) if at not in left_out)


def _write(shard: ShardFile, sample: _Sample, trust_addresses: bool) -> None:
    payloads = [(field, value) for field, value in sample.values if isinstance(value, bytes)]
    if len(payloads) == len(sample.values):
        shard.write(sample.key, payloads)
        return
    try:
        with ExitStack() as stack:
            fields: list[tuple[bytes, int, Iterable[bytes]]] = []
            for field, value in sample.values:
                if isinstance(value, str):
                    fields.append((field, *_pieces(value, sample.row.file, stack, trust_addresses)))
                else:
                    fields.append((field, len(value), [value]))
            shard.write_pieces(sample.key, fields)
    except (InputError, DataError) as error:
        raise _named(sample.row, error) from None


def _pieces(address: str, where: str, stack: ExitStack, trust_addresses: bool) -> tuple[int, Iterable[bytes]]:
    """Bytes and pieces of the payload at an address that a table at ``where`` names."""
    if address == "-":
        raise InputError("standard input cannot be a payload", hint="name a file")
    address = listed_address(where, address, trusted=trust_addresses)
    source = stack.enter_context(open_source(address, decompress=False))
    if source.size is not None and source.seekable:
        return source.size, pieces_of(source, 0, source.size)
    # Only the end of a stream tells how many bytes there are.
    data = bytearray()
    while piece := source.read_some(len(data), 1 << 20):
        data += piece
    return len(data), [bytes(data)]


def _named(row: Row, error: WdsError) -> WdsError:
    if getattr(error, "code", "") == "unsafe-name":
        error.hint = "the column must have keys as the samples have them: n01/img7 for n01/img7.jpg"
    return row.named(error)
