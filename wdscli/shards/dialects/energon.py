"""Megatron-Energon's view of a set: ``X.tar.idx`` beside each shard and the folder ``.nv-meta`` in the set's folder.

Format: megatron-energon 7, flavors/webdataset: itar.py (``.tar.idx``: the byte of every sample's first header and of
the end of the last sample, unsigned 64-bit little-endian), prepare.py and structs.py (``.info.json``: samples by
shard, ``split.yaml``: shards by part), indexing.py (``index.sqlite``: places of all samples and parts).

What ``energon prepare`` asks a person for is left to it or to them: ``dataset.yaml``, which says what the samples mean,
and how shards are split; here all shards are ``train``. A ``split.yaml`` or ``dataset.yaml`` that is there is theirs
and stays. ``index.uuid`` is made from the indexes and not at random, so that the same set gives the same files.
Energon wants keys that are UTF-8 and unique in the whole set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from wdscli.errors import DataError
from wdscli.shards.dialects import SetPlace, ShardPlace, SideFile, utf8_name
from wdscli.shards.index import Index
from wdscli.storage import base_name, exists, sibling

if TYPE_CHECKING:
    import sqlite3

_AT_ONCE = 4096
_NOT_UTF8 = "energon takes UTF-8 names only"
_PIECE = 1 << 20
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


class Dialect:
    """What ``energon prepare`` would write, but ``dataset.yaml``. The database is built in a temporary file."""

    def __init__(self, place: SetPlace) -> None:
        self._meta = place.folder + ".nv-meta/"
        self._counts: dict[str, int] = {}
        self._digests: list[str] = []
        self._database: _Database | None = None

    def add(self, shard: ShardPlace, index: Index) -> Iterable[SideFile]:
        if not index.samples:
            raise DataError(
                "a shard without samples",
                shard=shard.address,
                hint="energon refuses it: leave it out of the set",
            )
        if not shard.name.endswith(".tar"):
            raise DataError("energon wants shards named .tar", shard=shard.address)
        if self._database is None:
            self._database = _Database()
        self._database.add(shard, index)
        self._counts[shard.name] = index.samples
        self._digests.append(index.digest)
        offsets = [*index.starts.tolist(), int(index.starts[-1] + index.lengths[-1])]
        data = b"".join([offset.to_bytes(8, "little") for offset in offsets])
        return [SideFile(sibling(shard.address, base_name(shard.address) + ".idx"), [data])]

    def finish(self) -> Iterator[SideFile]:
        import json
        from uuid import NAMESPACE_URL, uuid5

        if self._database is None:
            return
        info = {"energon_version": None, "shard_counts": self._counts}
        if not exists(self._meta + "split.yaml"):
            yield SideFile(self._meta + "split.yaml", [_split(self._counts)])
        yield SideFile(self._meta + "index.sqlite", self._database.pieces())
        names = " ".join([*self._counts, *self._digests])
        yield SideFile(self._meta + "index.uuid", [str(uuid5(NAMESPACE_URL, names)).encode()])
        yield SideFile(self._meta + ".info.json", [json.dumps(info, indent=2).encode()])


def _split(names: Iterable[str]) -> bytes:
    """YAML is a superset of JSON, so a JSON string is a safe YAML one, braces and all."""
    import json

    lines = [f"  - {json.dumps(name)}\n" for name in names]
    return f"split_parts:\n  train:\n{''.join(lines)}  val: []\n  test: []\nexclude: []\n".encode()


class _Database:
    """``index.sqlite``, in a temporary file that is gone when it is closed or forgotten."""

    def __init__(self) -> None:
        import sqlite3
        from tempfile import NamedTemporaryFile

        self._file: Any = NamedTemporaryFile(suffix=".sqlite")  # noqa: SIM115  # lives as long as this object
        self._connection: sqlite3.Connection = sqlite3.connect(self._file.name, isolation_level=None)
        # Nobody will want this file after a crash.
        self._connection.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;" + _TABLES)
        self._connection.execute("BEGIN")
        self._shards = 0

    def add(self, shard: ShardPlace, index: Index) -> None:
        number, self._shards = self._shards, self._shards + 1
        ends = [*index.starts[1:].tolist(), int(index.starts[-1] + index.lengths[-1])]
        for first in range(0, index.samples, _AT_ONCE):
            batch = index.batch(first, first + _AT_ONCE)
            begins = [batch.start(row) for row in range(len(batch.keys))]
            keys = [utf8_name(shard, key, begin, _NOT_UTF8) for key, begin in zip(batch.keys, begins)]
            for row, (key, begin) in enumerate(zip(keys, begins)):
                self._add_sample(shard, (number, key, first + row, begin, ends[first + row] - begin))
            self._connection.executemany(
                "INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)",
                (
                    (
                        number,
                        first + row,
                        utf8_name(shard, batch.fields[at], begins[row], _NOT_UTF8),
                        batch.offsets[at],
                        batch.sizes[at],
                    )
                    for row in range(len(keys))
                    for at in range(batch.firsts[row], batch.firsts[row + 1])
                ),
            )

    def _add_sample(self, shard: ShardPlace, row: tuple[int, str, int, int, int]) -> None:
        import sqlite3

        try:
            self._connection.execute("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", row)
        except sqlite3.IntegrityError:
            raise DataError(
                f'key "{row[1]}" comes twice in the set, which energon refuses',
                code="duplicate-key",
                shard=shard.address,
                offset=row[3],
                hint="give the samples new keys: wds cat --rekey '{shard}-{index:09d}' SHARDS -o all.tar",
            ) from None

    def pieces(self) -> Iterator[bytes]:
        """The finished file."""
        self._connection.execute("COMMIT")
        self._connection.executescript(_SEARCHES)
        self._connection.close()
        with self._file, open(self._file.name, "rb") as file:
            while piece := file.read(_PIECE):
                yield piece
