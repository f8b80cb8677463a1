"""The compiled core and the plain path read the same samples by an index, and refuse the same."""

from __future__ import annotations

import io
import os
import random
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from indexing import index
from tiers import examples

from wdscli.errors import WdsError
from wdscli.loader import IndexedDataset
from wdscli.loader.read.catalog import Catalog, ShardTable
from wdscli.loader.read.rows import read_samples
from wdscli.shards import ShardReader, ShardWriter
from wdscli.shards.proof import find_index
from wdscli.storage import Source, open_source
from wdscli.tar import core

pytestmark = pytest.mark.skipif(core.CORE is None, reason="no compiled core")

NAMES = [
    "a.cls",
    "a.jpg",
    "b.JPG",
    "b.jpg",
    "d/c.__key__",
    "d/c.x",
    "README",
    "x" * 90 + "/" + "y" * 60 + ".txt",
    "z" * 150 + ".bin",
]
FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def written(path: Path, seed: int) -> None:
    """A shard as others write it, of small and large members, with what belongs to no sample between them."""
    rng = random.Random(seed)
    with tarfile.open(path, "w", format=FORMATS[seed % 3]) as tar:
        for number in range(12):
            for name in NAMES:
                if rng.random() < 0.7 and not (len(name) > 200 and seed % 3 == 0):
                    folder, slash, base = name.rpartition("/")
                    member = tarfile.TarInfo(f"{folder}{slash}n{number}{base}")
                    member.size = rng.choice([0, 1, 511, 512, 3000, 5000, 20_000, 70_000])
                    member.mtime = rng.choice([0, 7, 1_700_000_000.25])
                    try:
                        tar.addfile(member, io.BytesIO(rng.randbytes(member.size)))
                    except ValueError:  # a name that does not fit this format
                        continue


def table_of(path: Path) -> ShardTable:
    with open_source(str(path)) as source:
        found = find_index(str(path), source)
    assert found is not None
    return ShardTable(str(path), found)


class Elsewhere(Source):
    """A file as if it were on another machine."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), size=path.stat().st_size, seekable=True)
        self._path = path

    def read_at(self, offset: int, length: int) -> bytes:
        with open(self._path, "rb") as file:
            return os.pread(file.fileno(), length, offset)


def outcomes(table: ShardTable, path: Path, fields: frozenset[str] | None) -> list[Any]:
    """Each sample, or its error: by the core and by the plain path, of a file and as if it were elsewhere."""
    compiled, found = core.CORE, []
    for here in (True, False):
        for core.CORE in (compiled, None):
            of_each: list[Any] = []
            with open_source(str(path)) if here else Elsewhere(path) as source:
                for place in range(table.samples):
                    try:
                        of_each.append(read_samples(table, source, fields, [place]))
                    except WdsError as error:
                        of_each.append((error.code if hasattr(error, "code") else "", str(error)))
            found.append(of_each)
    core.CORE = compiled
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("fields", [None, {"jpg"}, {"txt", "__key__", "bin"}])
def test_whoever_wrote_the_shard(tmp_path: Path, seed: int, fields: set[str] | None) -> None:
    path = tmp_path / "a.tar"
    written(path, seed)
    index([str(path)])
    table = table_of(path)
    wanted = None if fields is None else frozenset(fields)
    first, *others = outcomes(table, path, wanted)
    assert all(other == first for other in others)
    with ShardReader(str(path)) as reader:
        true = [sample.key for sample in reader]
    with open_source(str(path)) as source:
        together = read_samples(table, source, wanted, list(range(table.samples)))
    assert together.samples == [found.samples[0] for found in first]
    assert len(true) == table.samples


@pytest.mark.exhaustive
@given(
    st.integers(0, 5),
    st.lists(st.tuples(st.integers(0, 1 << 30), st.integers(0, 255)), min_size=1, max_size=6),
)
@settings(
    max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_what_was_changed_behind_the_index(tmp_path: Path, seed: int, changes: list[tuple[int, int]]) -> None:
    path = tmp_path / str(seed) / "a.tar"
    if not path.exists():
        path.parent.mkdir()
        written(path, seed)
        index([str(path)])
    table, whole = table_of(path), path.read_bytes()
    headers = [int(offset) - 512 for offset in table.offsets] + [int(start) for start in table.starts]
    data = bytearray(whole)
    for place, value in changes:
        data[headers[place % len(headers)] + (place >> 9) % 512] = value
    changed = tmp_path / "changed.tar"
    changed.write_bytes(data)
    table.address = str(changed)
    first, *others = outcomes(table, changed, None)
    assert all(other == first for other in others)


EDGES = [
    0,
    1,
    511,
    512,
    513,
    1024,
    1536,
    4096,
    1 << 20,
    1 << 40,
    (1 << 60) - 512,
    (1 << 63) - 512,
    (1 << 63) - 1,
    -1,
    -512,
]
NUMBERS = st.sampled_from(EDGES) | st.integers(0, 8000).map(lambda number: number * 8)


@pytest.mark.exhaustive
@given(st.data())
@settings(
    max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_an_index_may_say_anything(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "a.tar"
    if not path.exists():
        with ShardWriter(str(path)) as writer:
            for number in range(8):
                writer.write(f"n{number}", {"a": b"1" * number, "b": b"2" * 5000})
    compiled = core.CORE
    assert compiled is not None
    with open_source(str(path)) as source:
        true = find_index(str(path), source)
        assert true is not None
        columns = {
            name: getattr(true, name).astype("i8").copy()
            for name in (
                "key_ends",
                "starts",
                "member_ends",
                "member_offsets",
                "member_sizes",
                "member_fields",
            )
        }
        for _ in range(data.draw(st.integers(1, 4))):
            column = columns[data.draw(st.sampled_from(sorted(columns)))]
            column[data.draw(st.integers(0, len(column) - 1))] = data.draw(NUMBERS)
        says: Any = SimpleNamespace(**{**true.__dict__, **columns})
        says.member_fields = columns["member_fields"].astype("u4")
        table = ShardTable(str(path), says)
        wanted = table.wanted(None)
        places = data.draw(st.lists(st.integers(-1, 9), max_size=12))
        whole = path.read_bytes()
        base = data.draw(NUMBERS)
        for descriptor, buffers, bases in (
            (source.fd, [], []),
            (-1, [whole], [0]),
            (-1, [whole[:5000], whole[6000:]], [0, 6000]),
            (-1, [whole], [base]),
        ):
            found, *_ = compiled.read(table.packed, wanted, places, descriptor, len(whole), buffers, bases)
            for place, raw in zip(places, found):
                if raw is not None and base == 0:
                    core.CORE = None
                    try:
                        assert read_samples(table, source, None, [place]).samples == [raw]
                    finally:
                        core.CORE = compiled


def test_columns_of_different_lengths_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with ShardWriter(str(path)) as writer:
        writer.write("n", {"a": b"1"})
    table, compiled = table_of(path), core.CORE
    assert compiled is not None
    short = memoryview(numpy.zeros(0, dtype="i8"))
    for column in ("starts", "member_ends", "sizes", "field_ids", "offsets", "key_ends"):
        with pytest.raises(ValueError, match="columns"):
            compiled.read(table.packed._replace(**{column: short}), ["a"], [0], -1, 5000, [], [])
    with pytest.raises(ValueError, match="columns"):
        compiled.read(table.packed, [], [0], -1, 5000, [], [])


def test_payloads_of_all_members_are_read_to_a_list(tmp_path: Path) -> None:
    assert core.CORE is not None
    path = tmp_path / "a.tar"
    with ShardWriter(str(path)) as writer:
        for number in range(300):
            writer.write(f"n{number}", {"a": b"%d" % number, "b": b"b" * 5000})
    table = Catalog(str(path)).table(0)
    with open(path, "r+b", buffering=0) as file:
        file.seek(int(table.starts[7]))
        file.write(b"x")
        known: list[bytes | None] = [None] * 600
        where = file.fileno(), table.size, [], []
        assert core.CORE.read(table.packed, ["a", None], None, *where, None, known) == (None, 0, 1)
        assert known[::2] == [None if number == 7 else b"%d" % number for number in range(300)]
        assert known[1::2] == [None] * 300
        known[4] = b"known"
        found, *counts = core.CORE.read(table.packed, ["a", "b"], [2, 7], *where, None, known)
        sample = {"__key__": "n2", "__url__": str(path), "a": b"known", "b": b"b" * 5000}
        assert found == [sample, None]
        assert counts == [5005, 1]
        begun: list[Any] = [0, 0, 0, "other"]
        assert core.CORE.read(table.packed, ["a", "b"], [2, 7], *where, begun, known, [2, 0]) == (
            begun,
            5005,
            1,
        )
        assert begun == [None, 0, sample, "other"]
        for rows in ([4, 0], [-1, 0], [0], [0, "1"]):
            with pytest.raises((ValueError, TypeError)):
                core.CORE.read(table.packed, ["a", "b"], [2, 7], *where, begun, known, rows)
        for places, too_few in (([2], [None]), (None, [None]), (None, None)):
            with pytest.raises(ValueError, match="as many"):
                core.CORE.read(table.packed, ["a", "b"], places, *where, None, too_few)


@pytest.mark.skipif(not os.path.exists("/proc/self/io"), reason="no counts of calls here")
def test_neighbours_are_read_by_one_call(tmp_path: Path) -> None:
    def calls() -> int:
        return int(Path("/proc/self/io").read_text().split("syscr: ")[1].split()[0])

    path = tmp_path / "a.tar"
    with ShardWriter(str(path)) as writer:
        for number in range(200):
            writer.write(f"n{number}", {"a": b"1", "b": b"2" * 50})
    table = IndexedDataset(str(path))
    table[0]
    calls()
    before = calls()
    idle = calls() - before
    before = calls()
    found = table.__getitems__(list(range(100, 140)))
    assert calls() - before - idle == 1
    assert [one["__key__"] for one in found] == [f"n{number}" for number in range(100, 140)]
