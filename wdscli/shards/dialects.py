"""This module makes indexes for other programs from the indexes of wdscli.

A dialect is the format of one other program. A dialect gets each shard of a set with its index, in order. It returns
files to write, with each shard or at the end. A dialect never opens a shard or an output. So one pass can serve several
dialects, and the caller decides how files are replaced. Each class names the source of its format. This module does not
know commands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from wdscli.errors import DataError, UsageError
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
    Rows,
    Spool,
    TableColumn,
    check_format,
    encoded,
    field_column,
    text_of,
)
from wdscli.storage import base_name, exists, sibling
from wdscli.storage.ends import PIECE_BYTES
from wdscli.text import to_bytes, to_text

if TYPE_CHECKING:
    import sqlite3

_NEW_KEYS = "give the samples new keys: wds cat --rekey '{shard}-{index:09d}' SHARDS -o all.tar"


class SideFile(NamedTuple):
    """A file to write. It has an address, and the bytes in pieces, which can be iterated only once."""

    address: str
    pieces: Iterable[bytes]


class ShardPlace(NamedTuple):
    """One shard. ``address`` is the address as given, and ``name`` is the path from the set's folder."""

    address: str
    name: str


class Dialect:
    """Makes the files for one other program. :meth:`add` is called for every shard, in order. :meth:`finish` is called
    once, at the end.

    ``folder`` is the address of the folder with all shards, with a trailing slash; if empty, it is the current folder.
    ``prefix`` is the beginning of the shards' names; it is used in the names of files for the whole set. Both methods
    raise DataError for sets that the other program cannot read.
    """

    def __init__(self, folder: str, prefix: str) -> None:
        self._folder, self._prefix = folder, prefix

    def _set_file(self, name: str) -> str:
        """Return the address of a file for the whole set."""
        return self._folder + (f"{self._prefix}-{name}" if self._prefix else name)

    def add(self, shard: ShardPlace, index: Index) -> Iterable[SideFile]:
        raise NotImplementedError

    def finish(self) -> Iterable[SideFile]:
        return ()


def make_dialect(name: str, folder: str, prefix: str) -> Dialect:
    """Return the dialect with the name ``name``. Raises UsageError for an unknown name."""
    if name not in _KINDS:
        raise UsageError(f"--for {name}: no such index", hint="choose from " + ", ".join(DIALECTS))
    return _KINDS[name](folder, prefix)


def utf8_name(shard: ShardPlace, name: bytes, start: int, why: str) -> str:
    """Return a member's name as text. Raises DataError with the message ``why`` if the name is not UTF-8. ``start`` is
    the first byte of the member."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise DataError(
            why, code="unsafe-name", shard=shard.address, offset=start, member=to_text(name)
        ) from None


class Dali(Dialect):
    """NVIDIA DALI's index, version 1.2: a file ``.idx`` for each shard, for ``fn.readers.webdataset(index_paths=...)``.

    In NVIDIA/DALI, tools/wds2idx.py writes this format, and dali/operators/reader/loader/webdataset_loader.cc reads it.
    A file has lines of text. The first line is ``v1.2`` and the number of samples. Then each sample has one line. For
    each member, the line has four values, separated by single blanks: the field, the offset of the payload, its size in
    bytes, and the member's name. A name or field with white space is refused, because DALI would read it wrong. The
    file is next to the shard. Its name is the shard's name up to the first dot, with ``.idx``, like the files of
    wds2idx.
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
        """Return the address of a shard's index."""
        name = base_name(address)
        # A leading dot does not end the name; wds2idx has the same rule.
        dot = name.find(".", 1)
        stem = name if dot < 0 else name[:dot]
        return sibling(address, stem + ".idx")

    def _lines(self, shard: ShardPlace, index: Index) -> Iterator[bytes]:
        yield b"v1.2 %d\n" % index.samples
        for batch in index_batches(index):
            yield b"".join([self._line(shard, batch, row) for row in range(len(batch.keys))])

    def _line(self, shard: ShardPlace, batch: SampleBatch, row: int) -> bytes:
        parts = []
        for member in range(batch.firsts[row], batch.firsts[row + 1]):
            field = batch.fields[member]
            name = batch.keys[row] + b"." + field
            if name.split() != [name]:
                raise DataError(
                    "a DALI index cannot hold a name with white space",
                    code="unsafe-name",
                    shard=shard.address,
                    offset=batch.starts[member],
                    member=to_text(name),
                    hint=_NEW_KEYS,
                )
            parts.append(b"%b %d %d %b" % (field, batch.offsets[member], batch.sizes[member], name))
        return b" ".join(parts) + b"\n"


class Energon(Dialect):
    """Megatron-Energon's index: a file ``X.tar.idx`` next to each shard, and the folder ``.nv-meta`` in the set's
    folder.

    The source is megatron-energon 7, flavors/webdataset. ``.tar.idx`` (itar.py) has the offset of every sample's first
    header and of the end of the last sample, as unsigned 64-bit little-endian numbers. ``.info.json`` has the number of
    samples by shard, and ``split.yaml`` has the shards by part (prepare.py and structs.py). ``index.sqlite`` has the
    places of all samples and members (indexing.py).

    ``energon prepare`` also needs input from the user: ``dataset.yaml``, which describes the samples, and the split of
    the shards. Here all shards are in the part ``train``. An existing ``split.yaml`` or ``dataset.yaml`` is kept.
    ``index.uuid`` is computed from the indexes, so that the same set gives the same files. Energon needs keys that are
    UTF-8 and unique in the whole set. The database is built in a temporary file.
    """

    def __init__(self, folder: str, prefix: str) -> None:
        super().__init__(folder, prefix)
        self._meta = folder + ".nv-meta/"
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
        """Return the address of the file with the places of a shard's samples."""
        return sibling(address, base_name(address) + ".idx")

    def finish(self) -> Iterator[SideFile]:
        import json
        from uuid import NAMESPACE_URL, uuid5

        if self._database is None:
            return
        info = {"energon_version": None, "shard_counts": self._counts}
        if not exists(self._meta + "split.yaml"):
            # YAML is a superset of JSON, so a JSON string is a safe YAML string, even with braces.
            names = "".join(f"  - {json.dumps(name)}\n" for name in self._counts)
            split = f"split_parts:\n  train:\n{names}  val: []\n  test: []\nexclude: []\n"
            yield SideFile(self._meta + "split.yaml", [split.encode()])
        yield SideFile(self._meta + "index.sqlite", self._database.pieces())
        made_from = " ".join([*self._counts, *self._digests])
        yield SideFile(self._meta + "index.uuid", [str(uuid5(NAMESPACE_URL, made_from)).encode()])
        yield SideFile(self._meta + ".info.json", [json.dumps(info, indent=2).encode()])


class _Database:
    """The database ``index.sqlite`` in a temporary file. The file is deleted when this object is closed or
    garbage-collected."""

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
        # The file does not have to survive a crash.
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
                        utf8_name(shard, batch.fields[member], batch.start(row), self._NOT_UTF8),
                        batch.offsets[member],
                        batch.sizes[member],
                    )
                    for row in range(len(batch.keys))
                    for member in range(batch.firsts[row], batch.firsts[row + 1])
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
    """Webshart's metadata for random access by name: a file ``<shard name without .tar>.json`` next to each shard.

    The sources are the README of bghira/webshart, "Creating New Indexed Datasets", and the output of ``webshart
    extract-metadata``. A JSON file has ``path`` and ``filesize`` of the tar. Its ``files`` maps a member's name to
    ``offset`` (of the payload) and ``length`` (payload bytes). Width, height and captions are left out, because they
    need the payloads; ``webshart extract-metadata`` can add them. Names that are not UTF-8 are refused.
    """

    _NOT_UTF8 = "webshart's JSON needs names in UTF-8"

    def add(self, shard: ShardPlace, index: Index) -> Iterable[SideFile]:
        return [SideFile(self.file_of(shard.address), self._document(shard, index))]

    @staticmethod
    def file_of(address: str) -> str:
        """Return the address of a shard's metadata."""
        return sibling(address, base_name(address).removesuffix(".tar") + ".json")

    def _document(self, shard: ShardPlace, index: Index) -> Iterator[bytes]:
        import json

        path = json.dumps(base_name(shard.address))
        yield f'{{\n  "path": {path},\n  "filesize": {index.size},\n  "files": {{'.encode()
        between = "\n"
        for batch in index_batches(index):
            lines = []
            for row, key in enumerate(batch.keys):
                for member in range(batch.firsts[row], batch.firsts[row + 1]):
                    field = batch.fields[member]
                    name = utf8_name(shard, key + b"." + field, batch.starts[member], self._NOT_UTF8)
                    place = f'{{"offset": {batch.offsets[member]}, "length": {batch.sizes[member]}}}'
                    lines.append(f"{between}    {json.dumps(name)}: {place}")
                    between = ",\n"
            yield "".join(lines).encode()
        yield b"\n  }\n}\n"


class Wids(Dialect):
    """The index of webdataset's ``widsindex create``: a file ``<prefix>-wids.json`` in the set's folder.

    The sources are wids_specs.py and wids_index.py of the wids package. ``__kind__`` is ``wids-shard-index-v1``, and
    ``wids_version`` is 1. ``shardlist`` is a list of objects with ``url`` (relative to the document's folder),
    ``nsamples`` and ``filesize``. A manifest of wdscli is also such a document, with more facts. ``md5sum`` is left
    out, because no program checks it, and it would need a read of every payload.
    """

    def __init__(self, folder: str, prefix: str) -> None:
        super().__init__(folder, prefix)
        self._shards: list[dict[str, Any]] = []

    def add(self, shard: ShardPlace, index: Index) -> Iterable[SideFile]:
        self._shards.append({"url": shard.name, "nsamples": index.samples, "filesize": index.size})
        return ()

    def finish(self) -> Iterable[SideFile]:
        import json

        document = {
            "__kind__": "wids-shard-index-v1",
            "wids_version": 1,
            "name": self._prefix,
            "shardlist": self._shards,
        }
        return [SideFile(self._set_file("wids.json"), [json.dumps(document, indent=2).encode() + b"\n"])]


class Parquet(Dialect):
    """The index of the whole set as a table for queries: a file ``<prefix>-index.parquet`` in the set's folder.

    The table has one row per sample, in order. The columns are ``key``, ``shard`` (the path from the table's folder),
    ``index`` (the place in the shard, from 0), and ``offset`` and ``length`` of the sample, headers and padding
    included. For each field EXT, ``size.EXT`` and ``offset.EXT`` describe the payload; they are null in samples without
    the field. Sizes and offsets are in bytes. Keys are strings, or binary if some keys are not UTF-8.
    """

    _LENGTH = TableColumn(0, "length")

    def __init__(self, folder: str, prefix: str) -> None:
        super().__init__(folder, prefix)
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
    ) -> Iterator[tuple[TableColumn, Cell]]:
        yield KEY, text_of(batch.keys[row])
        yield SHARD, shard
        yield INDEX, batch.index + row
        yield OFFSET, batch.start(row)
        yield self._LENGTH, length
        for member in range(batch.firsts[row], batch.firsts[row + 1]):
            field = batch.fields[member]
            yield field_column(1, "size.", field), batch.sizes[member]
            yield field_column(2, "offset.", field), batch.offsets[member]

    def finish(self) -> Iterable[SideFile]:
        self._spool.put(self._rows.take())
        pieces = encoded("parquet", self._spool.schema(), self._spool.chunks())
        return [SideFile(self._set_file("index.parquet"), pieces)]


_KINDS: dict[str, type[Dialect]] = {
    "dali": Dali,
    "energon": Energon,
    "parquet": Parquet,
    "webshart": Webshart,
    "wids": Wids,
}
DIALECTS = tuple(_KINDS)
