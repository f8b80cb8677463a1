"""``create --from TABLE --on-duplicate list``: one sample for all rows of a key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Command
from shard_cases import members_of, wds

COMMAND = ["create"]
ROWS = [("b", "one", 1), ("a", "two", 2), ("b", "7", 3), ("c", "", 4), ("b", "one", 5)]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "pics").mkdir()
    for name in "abc":
        (tmp_path / "pics" / f"{name}.jpg").write_bytes(b"jpeg " + name.encode())
    path = tmp_path / "t.csv"
    path.write_text("id,caption,n\n" + "".join(f"{key},{text},{n}\n" for key, text, n in ROWS))
    return path


def documents(path: Path, field: str) -> dict[str, object]:
    return {
        name.partition(".")[0]: json.loads(data)
        for name, data in members_of(path)
        if name.partition(".")[2] == field
    }


def test_like_groupby_agg_list(good: Command, table: Path, tmp_path: Path) -> None:
    """The lists are those of ``table.groupby("id").caption.agg(list)``, without missing values."""
    words = ["--column", "captions.json=caption", "--json-rest", "--on-duplicate", "list"]
    good("--from", table, "--key-column", "id", *words, "-o", tmp_path / "o.tar")
    assert documents(tmp_path / "o.tar", "captions.json") == {
        "b": ["one", "7", "one"],
        "a": ["two"],
    }
    assert documents(tmp_path / "o.tar", "json") == {
        "b": [{"n": 1}, {"n": 3}, {"n": 5}],
        "a": [{"n": 2}],
        "c": [{"n": 4}],
    }


def test_missing_values(good: Command, tmp_path: Path) -> None:
    lines = [
        {"id": "a", "c": "x"},
        {"id": "a"},
        {"id": "a", "c": {"d": 1}},
        {"id": "b", "c": None},
        {"id": "b", "t": "t"},
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, lines)))
    words = ["--column", "c.json=c", "--column", "txt=t", "--on-duplicate", "list", "-o", tmp_path / "o.tar"]
    good("--from", tmp_path / "t.jsonl", "--key-column", "id", *words)
    assert dict(members_of(tmp_path / "o.tar")) == {"a.c.json": b'["x",{"d":1}]', "b.txt": b"t"}


def test_other_fields_are_the_same_in_all_rows(good: Command, table: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pics"
    table.write_text(f"id,jpg,caption\na,{folder}/a.jpg,one\na,{folder}/a.jpg,two\n")
    words = [
        "--from",
        table,
        "--key-column",
        "id",
        "--column",
        "captions.json=caption",
        "--on-duplicate",
        "list",
    ]
    good(*words, "--column", "jpg=@jpg", "--column", "txt=id", "-o", tmp_path / "o.tar")
    assert dict(members_of(tmp_path / "o.tar")) == {
        "a.captions.json": b'["one","two"]',
        "a.jpg": b"jpeg a",
        "a.txt": b"a",
    }
    for column in ("txt=caption", "jpg=@jpg"):
        table.write_text(table.read_text().replace("a.jpg,two", "b.jpg,two"))
        ran = wds("create", *words, "--column", column, "-o", tmp_path / "p.tar")
        name = f"a.{column.partition('=')[0]}"
        assert (ran.code, f'"{name}" differs between rows with the same key' in ran.err) == (3, True), ran.err


def test_beside_files(good: Command, table: Path, tmp_path: Path) -> None:
    words = ["--key-column", "id", "--column", "captions.json=caption", "--on-duplicate", "list"]
    good(tmp_path / "pics", "--from", table, *words, "-o", tmp_path / "o.tar", "--max-count", 9)
    written = dict(members_of(tmp_path / "o.tar"))
    assert (written["b.jpg"], written["b.captions.json"]) == (b"jpeg b", b'["one","7","one"]')
    (tmp_path / "pics" / "a.captions.json").write_text("[]")
    ran = wds("create", tmp_path / "pics", "--from", table, *words, "-o", tmp_path / "p.tar")
    assert (ran.code, '"a.captions.json" differs between rows' in ran.err) == (3, True), ran.err


def test_refused_without_a_table(table: Path, tmp_path: Path) -> None:
    ran = wds("create", table.parent / "pics", "--on-duplicate", "list", "-o", tmp_path / "o.tar")
    assert (ran.code, "--on-duplicate list needs a table" in ran.err) == (2, True)


def test_resume_compares_it(table: Path, tmp_path: Path) -> None:
    table.write_text("id,caption\na,1\nb,2\n")
    words = ["--from", table, "--key-column", "id", "--column", "c.json=caption", "-o", tmp_path / "o-%d.tar"]
    words += ["--max-count", "1"]
    assert wds("create", *words, "--post", "case {} in *1.tar) exit 1;; esac", "-j1").code == 5
    ran = wds("create", *words, "--on-duplicate", "list", "--resume")
    assert (ran.code, "--on-duplicate" in ran.err) == (4, True), ran.err
