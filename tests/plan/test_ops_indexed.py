"""Rows from an index are the rows of a scan."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest
from index_samples import add_sample
from shard_cases import numbered, sample, write_shards
from xxhash import xxh3_64_intdigest

from wdscli.arrays import Rows
from wdscli.errors import DataError
from wdscli.plan import survey as surveying
from wdscli.plan.inputs import Input
from wdscli.plan.names import Rekey
from wdscli.plan.survey import Survey, SurveyTask, plain_rows, survey
from wdscli.plan.table import no_rows
from wdscli.selection import Selection
from wdscli.shards.index import Index, IndexBuilder, index_address, parse_index
from wdscli.shards.proof import find_index
from wdscli.storage import open_source
from wdscli.tar import CANONICAL


def indexed(folder: Path, samples: list[list[tuple[str, bytes]]], **how: object) -> tuple[str, Index]:
    """A shard, and its index."""
    (name,) = write_shards(folder, [samples], **how)
    from indexing import index

    index([name])
    with open_source(name) as source:
        found = find_index(name, source)
    assert found is not None
    return name, found


def task(name: str, **more: object) -> SurveyTask:
    return SurveyTask(Input(name), CANONICAL, Selection())._replace(**more)


def rows_of(found: Survey) -> Rows:
    return numpy.concatenate([no_rows(), *(block.rows for block in found.blocks)])


SAMPLES = [*numbered(40), sample("dir/x", 1, []), *numbered(9, "dir/long-name-", [1, 2, 3])]


def test_the_rows_of_a_scan(tmp_path: Path) -> None:
    name, index = indexed(tmp_path, SAMPLES)
    scanned = survey(task(name, use_index=False))
    assert len(rows_of(scanned)) == 50
    rows = plain_rows(task(name), index)
    assert rows is not None
    assert rows.tobytes() == rows_of(scanned).tobytes()
    found = survey(task(name))
    assert rows_of(found).tobytes() == rows_of(scanned).tobytes()
    assert (found.ignored, found.stamp.size_bytes) == (scanned.ignored, scanned.stamp.size_bytes)


def test_it_is_how_a_shard_with_an_index_is_surveyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, _ = indexed(tmp_path, SAMPLES)
    monkeypatch.setattr(surveying, "index_batches", None)
    assert len(rows_of(survey(task(name)))) == 50


@pytest.mark.parametrize(
    "more",
    [
        {"selection": Selection.parse(fields="cls")},
        {"selection": Selection.parse(limit=3)},
        {"rekey": Rekey("{index}")},
    ],
    ids=["fields", "limit", "rekey"],
)
def test_what_is_not_plain_is_looked_at(tmp_path: Path, more: dict[str, object]) -> None:
    name, index = indexed(tmp_path, SAMPLES)
    assert plain_rows(task(name, **more), index) is None
    with_index, without = survey(task(name, **more)), survey(task(name, use_index=False, **more))
    assert rows_of(with_index).tobytes() == rows_of(without).tobytes()


def test_foreign_headers_are_looked_at(tmp_path: Path) -> None:
    name, index = indexed(tmp_path, SAMPLES, mtime=77)
    assert plain_rows(task(name), index) is None


@pytest.mark.parametrize("key", [b"/a", b"../a", b"b/../a"])
def test_unsafe_names_are_found(tmp_path: Path, key: bytes) -> None:
    """An index can say what it likes."""
    name, _ = indexed(tmp_path, SAMPLES)
    builder = IndexBuilder()
    add_sample(builder, b"ok", 0, [b"a"], [512], [1])
    add_sample(builder, key, 1024, [b"a"], [1536], [1])
    index = parse_index(builder.to_bytes(shard="x.tar", size=4096), "x")
    assert plain_rows(task(name), index) is None
    (bad,) = write_shards(tmp_path / "bad", [[[("ok.a", b"1")], [(f"{key.decode()}.a", b"1")]]])
    Path(index_address(bad)).parent.mkdir()
    Path(index_address(bad)).write_bytes(builder.to_bytes(shard="in-0.tar", size=4096 - 1024))
    with pytest.raises(DataError, match="unsafe name"):
        survey(task(bad))


def test_an_empty_shard(tmp_path: Path) -> None:
    name, index = indexed(tmp_path, [])
    rows = plain_rows(task(name), index)
    assert rows is None or rows.tobytes() == b""
    assert rows_of(survey(task(name))).tobytes() == b""


def test_a_row_says_what_the_index_says(tmp_path: Path) -> None:
    name, index = indexed(tmp_path, SAMPLES)
    rows = rows_of(survey(task(name)))
    assert numpy.array_equal(rows["start"], index.starts)
    assert rows["members"].sum() == index.members
    assert rows["key"][3] == xxh3_64_intdigest(b"n003")
