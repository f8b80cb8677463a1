"""What other programs keep beside shards, compared with them."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from verify_cases import tar_bytes

from wdscli.ops.index import index
from wdscli.shards.dialects import DIALECTS
from wdscli.shards.writer import ShardWriter
from wdscli.verify.set import VerifyReport, verify


def make_set(folder: Path, count: int = 6) -> list[str]:
    """Shards without index or manifest; every second sample has a field of its own."""
    with ShardWriter(str(folder / "t-%06d.tar"), max_count=2, with_index=False) as writer:
        for number in range(count):
            fields = {"jpg": b"x" * number + b"y", "cls": b"%d" % number}
            writer.write(f"t{number}", {**fields, "txt": b"z"} if number % 2 else fields)
    (folder / "t-manifest.json").unlink()
    return sorted(map(str, folder.glob("*.tar")))


def found(report: VerifyReport) -> list[tuple[str, str, str]]:
    return [(f.code, Path(f.shard).name, f.message) for f in report.findings if f.code != "mixed-fields"]


def change(shard: str) -> None:
    """Another shard of the same size and samples: one payload is shorter by a byte."""
    members = (
        (b"t2.jpg", b"xy"),
        (b"t2.cls", b"2"),
        (b"t3.jpg", b"xxxy"),
        (b"t3.cls", b"3"),
        (b"t3.txt", b"z"),
    )
    other = tar_bytes(*members)
    assert len(other) == Path(shard).stat().st_size
    Path(shard).write_bytes(other)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_fits_is_no_finding(dialect: str, tmp_path: Path) -> None:
    shards = make_set(tmp_path)
    index(shards, dialects=[dialect])
    for inputs in (shards, [str(tmp_path)], shards[1:2]):
        assert found(verify(inputs, jobs=1)) == []


@pytest.mark.parametrize(
    ("dialect", "says"),
    [
        ("dali", 't-000001.idx does not match the headers of sample 0 ("t2")'),
        ("parquet", "t-index.parquet has other keys, places or sizes than the shard's headers"),
        ("webshart", 't-000001.json has a wrong place for "t2.jpg"'),
    ],
)
def test_other_sizes_in_the_same_places_are_seen(dialect: str, says: str, tmp_path: Path) -> None:
    shards = make_set(tmp_path)
    index(shards, dialects=[dialect])
    change(shards[1])
    report = verify(shards, jobs=1)
    [(code, shard, message)] = found(report)
    assert (code, shard) == ("stale-index", "t-000001.tar")
    assert message.endswith(says)
    hint = next(one.hint for one in report.findings if one.code == code)
    assert f"--for {dialect} --force" in (hint or "")


@pytest.mark.parametrize(
    ("dialect", "says"),
    [
        ("dali", {"t-000000.idx says 2 samples and has 2, the shard has 1"}),
        ("parquet", {"t-index.parquet says 2 samples, the shard has 1"}),
        ("webshart", {"t-000000.json says 6144 bytes, the shard has 3072"}),
        ("wids", {"t-wids.json says 2 samples, the shard has 1"}),
        (
            "energon",
            {
                "t-000000.tar.idx has the places of 2 samples, the shard has 1",
                ".nv-meta/.info.json says 2 samples, the shard has 1",
                ".nv-meta/index.sqlite says 2 samples, the shard has 1",
            },
        ),
    ],
)
def test_fewer_samples_are_seen(dialect: str, says: set[str], tmp_path: Path) -> None:
    shards = make_set(tmp_path)
    index(shards, dialects=[dialect])
    Path(shards[0]).write_bytes(tar_bytes((b"t0.cls", b"0"), (b"t0.jpg", b"y")))
    messages = {message.removeprefix(f"{tmp_path}/") for _, _, message in found(verify(shards, jobs=1))}
    assert messages == says


def test_samples_that_moved_are_seen_by_energons_files(tmp_path: Path) -> None:
    shards = make_set(tmp_path)
    index(shards, dialects=["energon"])
    swapped = tar_bytes(
        (b"t1.cls", b"1"), (b"t1.jpg", b"xy"), (b"t1.txt", b"z"), (b"t0.cls", b"0"), (b"t0.jpg", b"y")
    )
    Path(shards[0]).write_bytes(swapped)
    messages = sorted(message.removeprefix(f"{tmp_path}/") for _, _, message in found(verify(shards, jobs=1)))
    assert messages == [
        ".nv-meta/index.sqlite has other keys, places or sizes than the shard's headers",
        "t-000000.tar.idx puts sample 1 (from 0) at byte 2048, it begins at 3072",
    ]


@pytest.mark.parametrize("dialect", ["parquet", "wids"])
def test_a_shard_that_is_gone_or_new_is_told_of_the_sets_file(dialect: str, tmp_path: Path) -> None:
    shards = make_set(tmp_path)
    index(shards[:2], dialects=[dialect])
    name = {"parquet": "t-index.parquet", "wids": "t-wids.json"}[dialect]
    assert found(verify(shards, jobs=1)) == [("stale-index", name, "it does not list t-000002.tar")]
    assert found(verify(shards[:2], jobs=1)) == []
    Path(shards[0]).unlink()
    assert found(verify(shards[1:2], jobs=1)) == [
        ("stale-index", name, "it lists t-000000.tar, which does not exist")
    ]


def test_shards_in_folders_are_found_in_the_table_above(tmp_path: Path) -> None:
    parts = [tmp_path / name for name in ("a", "b")]
    for part in parts:
        part.mkdir()
        make_set(part)
    shards = [str(shard) for part in parts for shard in sorted(part.glob("*.tar"))]
    index(shards, dialects=["parquet"])
    assert [one for one in found(verify(shards, jobs=1)) if one[0] == "stale-index"] == []
    change(shards[4])
    stale = [one for one in found(verify(shards, jobs=1)) if one[0] == "stale-index"]
    assert [shard for _, shard, _ in stale] == ["t-000001.tar"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t-000000.idx", b"v1.2 two\n"),
        ("t-000000.idx", b"v1.2"),
        ("t-000000.tar.idx", b"123"),
        ("t-000000.tar.idx", b""),
        ("t-index.parquet", b"PAR1 and no more"),
        ("t-wids.json", b'{"shardlist": 7}'),
    ],
)
def test_what_is_not_whole_is_a_finding(name: str, content: bytes, tmp_path: Path) -> None:
    shards = make_set(tmp_path)
    (tmp_path / name).write_bytes(content)
    findings = found(verify(shards, jobs=1))
    assert {code for code, _, _ in findings} == {"stale-index"}
    assert "-1" not in findings[0][2].replace(str(tmp_path), "")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t-000000.json", b'{"caption": "a cat"}'),
        ("t-000000.json", b"[1, 2]"),
        ("t-000000.json", b'{"files": {"a.jpg": 3}}'),
        ("t-000000.idx", b"MMIDIDX\0\0"),
        ("shardindex.json", b"{}"),
    ],
)
def test_files_of_others_are_left_alone(name: str, content: bytes, tmp_path: Path) -> None:
    shards = make_set(tmp_path)
    (tmp_path / name).write_bytes(content)
    assert found(verify(shards, jobs=1)) == []


def test_a_table_of_something_else_is_left_alone(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    shards = make_set(tmp_path)
    parquet.write_table(
        pyarrow.table({"key": ["t0"], "shard": ["t-000000.tar"]}), tmp_path / "t-index.parquet"
    )
    assert found(verify(shards, jobs=1)) == []


def test_an_earlier_dali_index_has_no_names(tmp_path: Path) -> None:
    shards = make_set(tmp_path)
    index(shards, dialects=["dali"])
    for shard in shards:
        path = Path(shard).with_suffix(".idx")
        head, *lines = path.read_text().splitlines()
        entries = [line.split() for line in lines]
        older = [" ".join(word for at, word in enumerate(line) if at % 4 < 3) for line in entries]
        path.write_text("\n".join([head.replace("v1.2", "v1.1"), *older]) + "\n")
    assert found(verify(shards, jobs=1)) == []
    change(shards[1])
    assert [shard for _, shard, _ in found(verify(shards, jobs=1))] == ["t-000001.tar"]


def test_energons_database_is_compared_by_the_numbers_of_its_list(tmp_path: Path) -> None:
    shards = make_set(tmp_path)
    index(shards, dialects=["energon"])
    with sqlite3.connect(tmp_path / ".nv-meta/index.sqlite") as database:
        database.execute("UPDATE samples SET byte_offset = byte_offset + 512 WHERE sample_key = 't5'")
    assert [(shard, message.rpartition("/")[2]) for _, shard, message in found(verify(shards, jobs=1))] == [
        ("t-000002.tar", "index.sqlite has other keys, places or sizes than the shard's headers")
    ]


def test_a_document_of_wids_beside_an_index_is_enough(tmp_path: Path) -> None:
    """It says nothing of headers, which is no contradiction."""
    shards = make_set(tmp_path)
    index(shards, with_manifest=False)
    index(shards, dialects=["wids"])
    (tmp_path / "t-wids.json").rename(tmp_path / "t-manifest.json")
    assert found(verify(shards, jobs=1)) == []
    document = json.loads((tmp_path / "t-manifest.json").read_text())
    document["shardlist"][0]["nsamples"] = 9
    (tmp_path / "t-manifest.json").write_text(json.dumps(document))
    assert [code for code, _, _ in found(verify(shards, jobs=1))] == ["manifest-mismatch"]
