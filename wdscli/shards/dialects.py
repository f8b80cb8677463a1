"""This module makes indexes for other programs from ours.

This module has a table of dialects by name, and their common parts. A dialect takes each shard of a set with its index,
in order, and returns files to write, some with each shard and some at the end. A dialect never opens a shard or an
output, so that one pass serves several dialects, and the caller decides how files are replaced. Each class names the
source of its format. This module does not know commands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from wdscli.errors import DataError, UsageError
from wdscli.model import to_bytes, to_text
from wdscli.samples import SampleBatch
from wdscli.shards.index import Index
from wdscli.shards.reading import index_batches
from wdscli.shards.tables import (
    INDEX,
    KEY,
    OFFSET,
    PLACES,
    SHARD,
    Cell,
    Column,
    Rows,
    Spool,
    check_format,
    encoded,
    field_column,
    text_of,
)
from wdscli.storage import base_name, exists, sibling
from wdscli.storage.ends import PIECE_BYTES

if TYPE_CHECKING:
    import sqlite3

_NEW_KEYS = "give the samples new keys: wds cat --rekey '{shard}-{index:09d}' SHARDS -o all.tar"


class SideFile(NamedTuple):
    """A file to write: its address, and its bytes in pieces, which can be iterated once."""

    address: str
    pieces: Iterable[bytes]


class ShardPlace(NamedTuple):
    """One shard: ``address`` as given, ``name`` its path from the set's folder."""

    address: str
    name: str


class SetPlace(NamedTuple):
    """The set: ``folder`` is the address of the folder that holds all shards, with its trailing slash (empty: the
    current one); ``prefix`` is the beginning of the shards' names, for files of the set."""

    folder: str
    prefix: str


class Dialect:
    """The files for one other program. :meth:`add` is called for every shard in order, :meth:`finish` once.

    Both raise DataError for sets that the other program could not read.
    """

    def __init__(self, place: SetPlace) -> None:
        self._place = place

    def add(self, shard: ShardPlace, index: Index) -> Iterable[SideFile]:
        raise NotImplementedError

    def finish(self) -> Iterable[SideFile]:
        return ()


def make_dialect(name: str, place: SetPlace) -> Dialect:
    """The dialect called ``name``. Raises UsageError for an unknown one."""
    if name not in _KINDS:
        raise UsageError(f"unknown dialect {name!r}", hint="choose one of " + ", ".join(DIALECTS))
    return _KINDS[name](place)


def utf8_name(shard: ShardPlace, name: bytes, start: int, why: str) -> str:
    """A name as text. Raises DataError with the message ``why`` if it is not UTF-8; ``start`` is the first byte of
    its member."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise DataError(
            why, code="unsafe-name", shard=shard.address, offset=start, member=to_text(name)
        ) from None


class Dali(Dialect):
    """A ``.idx`` for each shard: NVIDIA DALI's index, version 1.2, for ``fn.readers.webdataset(index_paths=...)``.

    Format: tools/wds2idx.py of NVIDIA/DALI writes it, dali/operators/reader/loader/webdataset_loader.cc reads it.
    Lines of text. The first is ``v1.2`` and the number of samples; then one line per sample: for each member its
    field, the byte of its payload, the payload's bytes and its name, separated by single blanks. A name or field
    with white space cannot be written, and DALI would read it wrong: refused. The file lies next to the shard,
    under the shard's name up to its first dot, with ``.idx``, as wds2idx does.
    """

    def add(self, shard: ShardPlace, index: Index) -> Iterable[SideFile]:
        if not index.samples:
            raise DataError(
                "a DALI index needs samples, but the shard has no samples",
                shard=shard.address,
                hint="remove the shard from the set: DALI fails at it",
            )
        return [SideFile(self.file_of(shard.address), self._lines(shard, index))]

    @staticmethod
    def file_of(address: str) -> str:
        """The address of a shard's index."""
        name = base_name(address)
        # As in wds2idx, a leading dot does not end the name.
        dot = name.find(".", 1)
        stem = name if dot < 0 else name[:dot]
        return sibling(address, stem + ".idx")

    def _lines(self, shard: ShardPlace, index: Index) -> Iterator[bytes]:
        yield b"v1.2 %d\n" % index.samples
        for batch in index_batches(index):
            yield b"".join([self._line(shard, batch, row) for row in range(len(batch.keys))])

    def _line(self, shard: ShardPlace, batch: SampleBatch, row: int) -> bytes:
        parts = []
        for at in range(batch.firsts[row], batch.firsts[row + 1]):
            field = batch.fields[at]
            name = batch.keys[row] + b"." + field
            if name.split() != [name]:
                raise DataError(
                    "a DALI index cannot hold a name with white space",
                    code="unsafe-name",
                    shard=shard.address,
                    offset=batch.starts[at],
                    member=to_text(name),
                    hint=_NEW_KEYS,
                )
            parts.append(b"%b %d %d %b" % (field, batch.offsets[at], batch.sizes[at], name))
        return b" ".join(parts) + b"\n"


class Energon(Dialect):
    """Megatron-Energon's index: ``X.tar.idx`` next to each shard, and the folder ``.nv-meta`` in the set's folder.

    Format: megatron-energon 7, flavors/webdataset: itar.py (``.tar.idx``: the byte of every sample's first header
    and of the end of the last sample, unsigned 64-bit little-endian), prepare.py and structs.py (``.info.json``:
    samples by shard, ``split.yaml``: shards by part), indexing.py (``index.sqlite``: places of all samples and
    parts).

    ``energon prepare`` asks a person for more: ``dataset.yaml``, which describes the samples, and the split of the
    shards; here all shards are ``train``. An existing ``split.yaml`` or ``dataset.yaml`` is kept. ``index.uuid`` is
    made from the indexes and not at random, so that the same set gives the same files. Energon needs keys that are
    UTF-8 and unique in the whole set. The database is built in a temporary file.
    """

    def __init__(self, place: SetPlace) -> None:
        self._meta = place.folder + ".nv-meta/"
        self._counts: dict[str, int] = {}
        self._digests: list[str] = []
        self._database: _Database | None = None

    def add(self, shard: ShardPlace, index: Index) -> Iterable[SideFile]:
        if not index.samples:
            raise DataError(
                "Energon refuses a shard without samples",
                shard=shard.address,
                hint="remove the shard from the set",
            )
        if not shard.name.endswith(".tar"):
            raise DataError("Energon reads only shards named *.tar", shard=shard.address)
        if self._database is None:
            self._database = _Database()
        self._database.add(shard, index)
        self._counts[shard.name] = index.samples
        self._digests.append(index.digest)
        offsets = [*index.starts.tolist(), int(index.starts[-1] + index.lengths[-1])]
        data = b"".join([offset.to_bytes(8, "little") for offset in offsets])
        return [SideFile(self.file_of(shard.address), [data])]

    @staticmethod
    def file_of(address: str) -> str:
        """The address of the places of a shard's samples."""
        return sibling(address, base_name(address) + ".idx")

    def finish(self) -> Iterator[SideFile]:
        import json
        from uuid import NAMESPACE_URL, uuid5

        if self._database is None:
            return
        info = {"energon_version": None, "shard_counts": self._counts}
        if not exists(self._meta + "split.yaml"):
            # YAML is a superset of JSON, so a JSON string is a safe YAML one, braces and all.
            names = "".join(f"  - {json.dumps(name)}\n" for name in self._counts)
            split = f"split_parts:\n  train:\n{names}  val: []\n  test: []\nexclude: []\n"
            yield SideFile(self._meta + "split.yaml", [split.encode()])
        yield SideFile(self._meta + "index.sqlite", self._database.pieces())
        made_from = " ".join([*self._counts, *self._digests])
        yield SideFile(self._meta + "index.uuid", [str(uuid5(NAMESPACE_URL, made_from)).encode()])
        yield SideFile(self._meta + ".info.json", [json.dumps(info, indent=2).encode()])


class _Database:
    """``index.sqlite`` in a temporary file, which is deleted when it is closed or dropped."""

    _TABLES = """
CREATE TABLE samples (tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE, sample_index INTEGER NOT NULL,
    byte_offset INTEGER, byte_size INTEGER);
CREATE TABLE sample_parts (tar_file_id INTEGER, sample_index INTEGER, part_name TEXT, content_byte_offset INTEGER,
    content_byte_size INTEGER);
"""
    _SEARCHES = """
CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index);
CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset);
CREATE INDEX idx_sample_parts_full ON sample_parts(tar_file_id, sample_index, part_name, content_byte_offset,
    content_byte_size);
"""
    _NOT_UTF8 = "Energon needs names in UTF-8"

    def __init__(self) -> None:
        import sqlite3
        from tempfile import NamedTemporaryFile

        self._file: Any = NamedTemporaryFile(suffix=".sqlite")  # noqa: SIM115  # lives as long as this object
        self._connection: sqlite3.Connection = sqlite3.connect(self._file.name, isolation_level=None)
        # The file need not survive a crash.
        self._connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;" + self._TABLES)
        self._connection.execute("BEGIN")
        self._shards = 0

    def add(self, shard: ShardPlace, index: Index) -> None:
        number, self._shards = self._shards, self._shards + 1
        ends = [*index.starts[1:].tolist(), int(index.starts[-1] + index.lengths[-1])]
        for batch in index_batches(index):
            for row, key in enumerate(batch.keys):
                begin, place = batch.start(row), batch.index + row
                name = utf8_name(shard, key, begin, self._NOT_UTF8)
                self._add_sample(shard, (number, name, place, begin, ends[place] - begin))
            self._connection.executemany(
                "INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)",
                (
                    (
                        number,
                        batch.index + row,
                        utf8_name(shard, batch.fields[at], batch.start(row), self._NOT_UTF8),
                        batch.offsets[at],
                        batch.sizes[at],
                    )
                    for row in range(len(batch.keys))
                    for at in range(batch.firsts[row], batch.firsts[row + 1])
                ),
            )

    def _add_sample(self, shard: ShardPlace, row: tuple[int, str, int, int, int]) -> None:
        import sqlite3

        try:
            self._connection.execute("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", row)
        except sqlite3.IntegrityError:
            raise DataError(
                f'the set has the key "{row[1]}" twice, which Energon refuses',
                code="duplicate-key",
                shard=shard.address,
                offset=row[3],
                hint=_NEW_KEYS,
            ) from None

    def pieces(self) -> Iterator[bytes]:
        """Yield the finished file."""
        self._connection.execute("COMMIT")
        self._connection.executescript(self._SEARCHES)
        self._connection.close()
        with self._file, open(self._file.name, "rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield piece


class Webshart(Dialect):
    """``<shard name without .tar>.json`` next to each shard: webshart's metadata, random access by name.

    Format: README of bghira/webshart, "Creating New Indexed Datasets", and the output of its ``extract-metadata``.
    A JSON file named after the tar: ``path`` and ``filesize`` of the tar, ``files`` a map from a member's name to
    ``offset`` (byte of its payload) and ``length`` (payload bytes). Width, height and captions, which need the
    payloads, are left to ``webshart extract-metadata``. Names that are not UTF-8 are refused.
    """

    _NOT_UTF8 = "webshart's JSON needs names in UTF-8"

    def add(self, shard: ShardPlace, index: Index) -> Iterable[SideFile]:
        return [SideFile(self.file_of(shard.address), self._document(shard, index))]

    @staticmethod
    def file_of(address: str) -> str:
        """The address of a shard's metadata."""
        return sibling(address, base_name(address).removesuffix(".tar") + ".json")

    def _document(self, shard: ShardPlace, index: Index) -> Iterator[bytes]:
        import json

        path = json.dumps(base_name(shard.address))
        yield f'{{\n  "path": {path},\n  "filesize": {index.size},\n  "files": {{'.encode()
        between = "\n"
        for batch in index_batches(index):
            lines = []
            for row, key in enumerate(batch.keys):
                for at in range(batch.firsts[row], batch.firsts[row + 1]):
                    name = utf8_name(shard, key + b"." + batch.fields[at], batch.starts[at], self._NOT_UTF8)
                    place = f'{{"offset": {batch.offsets[at]}, "length": {batch.sizes[at]}}}'
                    lines.append(f"{between}    {json.dumps(name)}: {place}")
                    between = ",\n"
            yield "".join(lines).encode()
        yield b"\n  }\n}\n"


class Wids(Dialect):
    """``<prefix>-wids.json`` in the set's folder: what webdataset's ``widsindex create`` writes.

    Format: wids_specs.py and wids_index.py of the wids package. ``__kind__`` is ``wids-shard-index-v1``,
    ``wids_version`` 1, ``shardlist`` a list of ``url`` (from the document's folder), ``nsamples`` and ``filesize``.
    Our manifest is such a document too, with more facts. ``md5sum``, which no program checks, is left out: it would
    cost a read of every payload.
    """

    def __init__(self, place: SetPlace) -> None:
        super().__init__(place)
        self._shards: list[dict[str, Any]] = []

    def add(self, shard: ShardPlace, index: Index) -> Iterable[SideFile]:
        self._shards.append({"url": shard.name, "nsamples": index.samples, "filesize": index.size})
        return ()

    def finish(self) -> Iterable[SideFile]:
        import json

        document = {
            "__kind__": "wids-shard-index-v1",
            "wids_version": 1,
            "name": self._place.prefix,
            "shardlist": self._shards,
        }
        name = f"{self._place.prefix}-wids.json" if self._place.prefix else "wids.json"
        return [SideFile(self._place.folder + name, [json.dumps(document, indent=2).encode() + b"\n"])]


class Parquet(Dialect):
    """``<prefix>-index.parquet`` in the set's folder: the index of the whole set as a table, for queries.

    One row per sample, in order: ``key``, ``shard`` (its path from the table's folder), ``index`` (place in the
    shard, from 0), ``offset`` and ``length`` (of the sample in the shard, headers and padding included); then for
    each field EXT ``size.EXT`` and ``offset.EXT`` of its payload, null in samples without the field. All in bytes.
    Keys are strings, or binary if some are not UTF-8.
    """

    _LENGTH = Column(0, "length")

    def __init__(self, place: SetPlace) -> None:
        super().__init__(place)
        check_format("parquet")
        self._spool = Spool({**PLACES, self._LENGTH: "int64"})
        self._rows = Rows()

    def add(self, shard: ShardPlace, index: Index) -> Iterable[SideFile]:
        name = text_of(to_bytes(shard.name))
        for batch in index_batches(index):
            for row in range(len(batch.keys)):
                self._rows.add(self._cells(name, batch, row, int(index.lengths[batch.index + row])))
                if self._rows.is_full:
                    self._spool.put(self._rows.take())
        return ()

    def _cells(
        self, shard: str | bytes, batch: SampleBatch, row: int, length: int
    ) -> Iterator[tuple[Column, Cell]]:
        yield KEY, text_of(batch.keys[row])
        yield SHARD, shard
        yield INDEX, batch.index + row
        yield OFFSET, batch.start(row)
        yield self._LENGTH, length
        for at in range(batch.firsts[row], batch.firsts[row + 1]):
            field = batch.fields[at]
            yield field_column(1, "size.", field), batch.sizes[at]
            yield field_column(2, "offset.", field), batch.offsets[at]

    def finish(self) -> Iterable[SideFile]:
        self._spool.put(self._rows.take())
        name = f"{self._place.prefix}-index.parquet" if self._place.prefix else "index.parquet"
        pieces = encoded("parquet", self._spool.schema(), self._spool.chunks())
        return [SideFile(self._place.folder + name, pieces)]


_KINDS: dict[str, type[Dialect]] = {
    "dali": Dali,
    "energon": Energon,
    "parquet": Parquet,
    "webshart": Webshart,
    "wids": Wids,
}
DIALECTS = tuple(_KINDS)
