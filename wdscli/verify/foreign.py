"""This module compares other programs' indexes with shards. It knows the formats of ``index --for``, also if another
program wrote the file.

:func:`find_foreign` finds the foreign files of each shard and of the whole set. :func:`check_foreign` reports
disagreements to a shard's ledger. The task of a shard reads the shard's own files, and compares them entry by entry. A
file of the whole set is read once, before the tasks. For each shard, it gives a count of samples and, if it has a row
per sample, a digest of the rows. The shard's task compares both. A file with such a name but other content is ignored.

This module does not know how shards are scanned.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import groupby, islice
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple
from urllib.parse import quote

from wdscli.arrays import I64, U64, numpy
from wdscli.errors import DataError, StorageError, WdsError
from wdscli.model import to_bytes, to_text
from wdscli.shards.dialects import Dali, Energon, Webshart
from wdscli.shards.index import Index
from wdscli.shards.inputs import ShardSet, names_in, read_manifest
from wdscli.shards.manifest import common_folder, name_from
from wdscli.shards.reading import index_batches
from wdscli.storage import base_name, exists, folder_of, is_local, is_stream, open_source, read_all
from wdscli.storage.addresses import local_path
from wdscli.storage.streams import stream_of
from wdscli.verify.findings import Ledger

_ROWS_PER_BATCH = 1 << 14
_AGAIN = "rebuild it with `wds index --for {} --force`, or remove it"
_INFO, _DATABASE = ".nv-meta/.info.json", ".nv-meta/index.sqlite"
_OF_EVERY = ("key", "offset", "length")


class SetFile(NamedTuple):
    """The facts about one shard in a file of the whole set: the number of samples, the size in bytes (-1: unknown), and
    a digest of the rows. ``columns`` are the columns in the digest; None means all columns."""

    file: str
    dialect: str
    samples: int
    size_bytes: int = -1
    digest: str = ""
    columns: tuple[str, ...] | None = None


class Run(NamedTuple):
    """Consecutive rows of one shard in a table; -1 marks a missing number."""

    shard: str
    keys: list[Any]
    numbers: dict[str, I64]


class Foreign(NamedTuple):
    """The foreign files of one shard, by address, and the facts about it in files of the set."""

    beside: tuple[str, ...] = ()
    of_set: tuple[SetFile, ...] = ()


def find_foreign(shards: ShardSet, limit: int) -> tuple[dict[str, Foreign], list[Ledger]]:
    """Return, for each shard, the files and facts of other programs, and findings about the set."""
    foreign_by_shard: dict[str, Foreign] = {}
    ledgers: list[Ledger] = []
    names_by_folder: dict[str, set[str]] = {}
    for address in shards.addresses:
        if is_stream(address):
            continue
        folder = folder_of(address)
        if folder not in names_by_folder:
            names_by_folder[folder] = set(names_in(folder, shards.listings))
        if names_by_folder[folder]:
            files = dict.fromkeys(kind.file_of(address) for kind in (Dali, Energon, Webshart))
            foreign_by_shard[address] = Foreign(
                tuple(file for file in files if base_name(file) in names_by_folder[folder])
            )
    if len(names_by_folder) > 1 and foreign_by_shard:
        # Shards on two machines have no common folder.
        with suppress(WdsError):
            above = common_folder(list(foreign_by_shard))
            names_by_folder.setdefault(above, set(names_in(above, shards.listings)))
    for folder, names in names_by_folder.items():
        for place in _files_of_set(folder, names):
            if place == shards.manifest_address:
                continue
            ledgers.append(Ledger(place, limit))
            _add_facts(place, folder, names, foreign_by_shard, ledgers[-1])
    return foreign_by_shard, ledgers


def _files_of_set(folder: str, names: set[str]) -> Iterator[str]:
    """Return the files of a folder that may describe all shards. Manifests are compared elsewhere."""
    for name in sorted(names):
        if name.endswith(("index.parquet", "wids.json")) or name == "shardindex.json":
            yield folder + name
    if any(name.endswith(".tar.idx") for name in names):
        for name in (_INFO, _DATABASE):
            if exists(folder + name):
                yield folder + name


def _add_facts(
    place: str, folder: str, names: set[str], foreign_by_shard: dict[str, Foreign], ledger: Ledger
) -> None:
    """Give each shard its facts from a file of the set."""
    try:
        facts = _facts_of(place, folder, ledger)
    except WdsError as error:
        ledger.add("stale-index", f"it cannot be read: {error.message}")
        return
    address_by_name = {}
    for address in foreign_by_shard:
        with suppress(WdsError):
            address_by_name[name_from(folder, address)] = address
    if facts.keys().isdisjoint(address_by_name):
        return
    hint = _AGAIN.format(next(iter(facts.values())).dialect)
    prefix = base_name(place).partition("index.")[0].partition("wids.")[0]
    for name, address in address_by_name.items():
        if name in facts:
            foreign = foreign_by_shard[address]
            foreign_by_shard[address] = foreign._replace(of_set=(*foreign.of_set, facts[name]))
        elif prefix and base_name(address).startswith(prefix):
            ledger.add("stale-index", f"it does not list {name}", hint=hint)
    for name in facts:
        if "/" not in name and name not in names:
            ledger.add("stale-index", f"it lists {name}, which does not exist", hint=hint)


def _facts_of(place: str, folder: str, ledger: Ledger) -> dict[str, SetFile]:
    """Return the facts in a file of the set, by the shard's path relative to the file's folder. The result is empty if
    the file has another format."""
    if place.endswith(".parquet"):
        return _facts_in_parquet(place, ledger)
    if place == folder + _DATABASE:
        return _facts_in_database(place, folder)
    data = read_all(place)
    if place == folder + _INFO:
        return {name: SetFile(place, "energon", count) for name, count in _counts(data).items()}
    shards = read_manifest(place).shards if b'"shardlist"' in data else ()
    return {shard.name: SetFile(place, "wids", shard.samples, shard.size_bytes) for shard in shards}


def _counts(data: bytes) -> dict[str, int]:
    """Return Energon's numbers of samples by shard."""
    try:
        counts = json.loads(data)["shard_counts"]
        return {str(name): int(count) for name, count in counts.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"the file is not a list of sample counts for Energon: {error}", code="stale-index"
        ) from None


def _facts_in_parquet(place: str, ledger: Ledger) -> dict[str, SetFile]:
    try:
        import pyarrow
        from pyarrow.parquet import ParquetFile
    except ImportError:
        ledger.add(
            "unchecked",
            "it was not compared: Parquet needs extra packages",
            hint="pip install 'wdscli[parquet]'",
        )
        return {}
    try:
        with stream_of(open_source(place, decompress=False)) as stream, ParquetFile(stream) as table:
            names = table.schema_arrow.names
            if not {"shard", *_OF_EVERY}.issubset(names):
                return {}
            compared = [name for name in names if name in _OF_EVERY or name.startswith(("size.", "offset."))]
            batches = table.iter_batches(batch_size=_ROWS_PER_BATCH, columns=["shard", *compared])
            return _digested(place, "parquet", (run for batch in batches for run in _runs(batch)), None)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(str(error), code="stale-index") from None


def _runs(batch: Any) -> Iterator[Run]:
    """Yield the rows of a batch, one shard after the other."""
    columns = {name: batch.column(name) for name in batch.schema.names}
    end = 0
    for shard, rows in groupby(columns.pop("shard").to_pylist()):
        first, end = end, end + sum(1 for _ in rows)
        cells = {name: column.slice(first, end - first) for name, column in columns.items()}
        keys = cells.pop("key").to_pylist()
        numbers = {name: column.fill_null(-1).to_numpy(False) for name, column in cells.items()}
        yield Run(to_text(shard) if isinstance(shard, bytes) else str(shard), keys, numbers)


def _facts_in_database(place: str, folder: str) -> dict[str, SetFile]:
    """Read Energon's database if it is local. A remote database would have to be downloaded completely."""
    import sqlite3

    if not is_local(place):
        return {}
    shards = list(_facts_of(folder + _INFO, folder, Ledger()))

    def runs() -> Iterator[Run]:
        for number, rows in groupby(cursor, key=itemgetter(0)):
            while batch := list(islice(rows, _ROWS_PER_BATCH)):
                starts = numpy.array([row[2] for row in batch], dtype="i8")
                shard = shards[number] if number < len(shards) else ""
                yield Run(shard, [row[1] for row in batch], {"offset": starts})

    try:
        with closing(sqlite3.connect(f"file:{quote(local_path(place))}?mode=ro", uri=True)) as database:
            cursor = database.execute(
                "SELECT tar_file_id, sample_key, byte_offset FROM samples ORDER BY tar_file_id, sample_index"
            )
            return _digested(place, "energon", runs(), ("key", "offset"))
    except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:
        raise DataError(str(error), code="stale-index") from None


def _digested(
    place: str, dialect: str, runs: Iterable[Run], columns: tuple[str, ...] | None
) -> dict[str, SetFile]:
    """Return the facts about each shard in a table with one row per sample. If the rows of a shard are not consecutive,
    they match no shard."""
    facts: dict[str, SetFile] = {}
    for shard, following in groupby(runs, key=attrgetter("shard")):
        rows = _Rows()
        for run in following:
            rows.add_keys(run.keys)
            for name, numbers in run.numbers.items():
                rows.add_numbers(name, numbers)
        samples = rows.count + (facts[shard].samples if shard in facts else 0)
        facts[shard] = SetFile(place, dialect, samples, digest=rows.digest(), columns=columns)
    return facts


class _Rows:
    """A digest of rows that come in pieces, column by column. Empty columns do not count."""

    def __init__(self) -> None:
        self.count = 0
        self._columns: dict[str, Any] = {}
        self._filled: set[str] = {"key"}

    def _add(self, name: str, data: bytes) -> None:
        from xxhash import xxh3_64

        self._columns.setdefault(name, xxh3_64()).update(data)

    def add_keys(self, keys: Sequence[Any]) -> None:
        self.count += len(keys)
        raws = [key if isinstance(key, bytes) else to_bytes(str(key)) for key in keys]
        self._add("key", b"".join([len(raw).to_bytes(8, "little") + raw for raw in raws]))

    def add_numbers(self, name: str, numbers: I64) -> None:
        """Add the cells of a column of numbers. An empty cell is -1."""
        if (numbers >= 0).any():
            self._filled.add(name)
        self._add(name, numbers.astype("<i8").tobytes())

    def digest(self) -> str:
        digests = {name: self._columns[name].hexdigest() for name in self._filled & set(self._columns)}
        return json.dumps(digests, sort_keys=True)


def _rows_of(index: Index, columns: tuple[str, ...] | None) -> str:
    """Return the digest that a table should have for a shard."""
    rows = _Rows()
    for batch in index_batches(index):
        rows.add_keys(batch.keys)
    rows.add_numbers("offset", index.starts)
    if columns is None:
        rows.add_numbers("length", index.lengths)
        owners: I64 = numpy.repeat(
            numpy.arange(index.samples), numpy.diff(index.member_ends.astype("i8"), prepend=0)
        )
        for number, field in enumerate(index.fields):
            chosen = index.member_fields == number
            name = to_text(field).encode("utf-8", "backslashreplace").decode()
            for what, places in (("size", index.member_sizes), ("offset", index.member_offsets)):
                cells: I64 = numpy.full(index.samples, -1, dtype="i8")
                cells[owners[chosen]] = places[chosen]
                rows.add_numbers(f"{what}.{name}", cells)
    return rows.digest()


def check_foreign(foreign: Foreign, index: Index, stored_bytes: int, ledger: Ledger) -> None:
    """Compare other programs' facts about a shard with ``index``, which was made from the shard's headers.
    ``stored_bytes`` is the size of the file, compressed or not."""
    for file in foreign.of_set:
        hint = _AGAIN.format(file.dialect)
        if file.samples != index.samples:
            message = f"{file.file} says {file.samples} samples, the shard has {index.samples}"
        elif file.size_bytes not in (-1, stored_bytes, index.size):
            message = f"{file.file} says {file.size_bytes} bytes, the shard has {stored_bytes}"
        elif file.digest and file.digest != _rows_of(index, file.columns):
            message = f"{file.file} has other keys, places or sizes than the shard's headers"
        else:
            continue
        ledger.add("stale-index", message, hint=hint)
    for place in foreign.beside:
        try:
            _check_beside(place, read_all(place), index, ledger)
        except (DataError, StorageError) as error:
            ledger.add("stale-index", f"{place} cannot be read: {error.message}")
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            ledger.add("stale-index", f"{place} is damaged")


def _check_beside(place: str, data: bytes, index: Index, ledger: Ledger) -> None:
    """Compare one file of the shard."""
    if data.startswith(b"v1."):
        dialect, fault = "dali", _wrong_in_lines(data, index)
    elif place.endswith(".tar.idx"):
        dialect, fault = "energon", _wrong_in_places(data, index)
    elif place.endswith(".json"):
        dialect, fault = "webshart", _wrong_in_document(data, index)
    else:
        return
    if fault is not None:
        ledger.add("stale-index", f"{place} {fault}", hint=_AGAIN.format(dialect))


def _wrong_in_lines(data: bytes, index: Index) -> str | None:
    """Return the first fault in DALI's index, or None. Earlier versions than 1.2 have no names in their entries."""
    (version, count), *lines = [line.split() for line in data.splitlines()]
    if not (int(count) == len(lines) == index.samples):
        return f"says {int(count)} samples and has {len(lines)}, the shard has {index.samples}"
    width = 4 if version == b"v1.2" else 3
    for batch in index_batches(index):
        for row, key in enumerate(batch.keys):
            line = lines[batch.index + row]
            entries = {tuple(line[begin : begin + 3]) for begin in range(0, len(line), width)}
            low, high = batch.firsts[row], batch.firsts[row + 1]
            members = zip(batch.fields[low:high], batch.offsets[low:high], batch.sizes[low:high])
            if not entries or not entries <= {
                (field, b"%d" % offset, b"%d" % size) for field, offset, size in members
            }:
                return f'does not match the headers of sample {batch.index + row} ("{to_text(key)}")'
    return None


def _wrong_in_places(data: bytes, index: Index) -> str | None:
    """Return the first fault in Energon's index, or None. The index has a number for each sample, and a number for the
    end."""
    if len(data) != 8 * (index.samples + 1):
        return f"has the places of {max(0, len(data) // 8 - 1)} samples, the shard has {index.samples}"
    starts = numpy.frombuffer(data, "<u8")
    right: U64 = numpy.append(index.starts, index.starts[-1:] + index.lengths[-1:])
    wrong = numpy.flatnonzero(starts[: len(right)] != right)
    if not len(wrong):
        return None
    return f"puts sample {wrong[0]} (from 0) at byte {starts[wrong[0]]}, it begins at {right[wrong[0]]}"


def _wrong_in_document(data: bytes, index: Index) -> str | None:
    """Return the first fault in webshart's metadata, or None. JSON files of other programs also give None."""
    try:
        document = json.loads(data)
    except ValueError:
        return None
    if not (isinstance(document, dict) and isinstance(files := document.get("files"), dict)):
        return None
    if not all(
        isinstance(entry, dict) and "offset" in entry and "length" in entry for entry in files.values()
    ):
        return None
    if document.get("filesize", index.size) != index.size:
        return f"says {document['filesize']} bytes, the shard has {index.size}"
    for batch in index_batches(index):
        for row, key in enumerate(batch.keys):
            for member in range(batch.firsts[row], batch.firsts[row + 1]):
                name = to_text(key + b"." + batch.fields[member])
                entry = files.get(name, {})
                if (entry.get("offset"), entry.get("length")) != (batch.offsets[member], batch.sizes[member]):
                    return f'has a wrong place for "{name}"'
    return None
