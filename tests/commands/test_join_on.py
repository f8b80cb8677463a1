"""``merge --table --on COLUMN=EXPR``: a table is joined by a value of the samples."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest
from conftest import Command
from shard_cases import members_of, wds, write_shards

from wdscli.create import join_table

COMMAND = ["merge"]
ROWS = [("u0", "zero"), ("u1", "one"), ("u9", "nine")]


@pytest.fixture
def names(tmp_path: Path) -> list[str]:
    """A set of samples whose JSON has a URL; some share one, and one has none."""
    urls = ["u0", "u1", "u2", "u0", None, "u1"]
    samples = [
        [(f"k{number}.json", json.dumps({"url": url} if url else {}).encode())]
        for number, url in enumerate(urls)
    ]
    write_shards(tmp_path / "in", [samples[:3], samples[3:]])
    return [str(tmp_path / "in")]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "t.csv"
    path.write_text("url,caption\n" + "".join(f"{url},{text}\n" for url, text in ROWS))
    return path


def captions(path: Path) -> dict[str, str]:
    return {name[:2]: data.decode() for name, data in dict(members_of(path)).items() if name.endswith(".txt")}


def captioned(names: list[str], table: Path, folder: Path) -> list[object]:
    """The words of a merge that adds captions by URL to a shard in ``folder``."""
    words = ["--table", table, "--on", "url=json.url", "--column", "txt=caption"]
    return [*names, *words, "-o", folder / "o.tar"]


@pytest.mark.parametrize("how", ["inner", "left"])
def test_like_sqlite(good: Command, names: list[str], table: Path, tmp_path: Path, how: str) -> None:
    ran = good(*captioned(names, table, tmp_path), "--join", how)
    db = sqlite3.connect(":memory:")
    db.execute("create table samples (key, url)")
    db.execute("create table rows (url, caption)")
    samples = [("k0", "u0"), ("k1", "u1"), ("k2", "u2"), ("k3", "u0"), ("k4", None), ("k5", "u1")]
    db.executemany("insert into samples values (?, ?)", samples)
    db.executemany("insert into rows values (?, ?)", ROWS)
    expected = dict(db.execute("select key, caption from samples join rows using (url)"))
    assert captions(tmp_path / "o.tar") == expected
    kept = {name[:2] for name, _ in members_of(tmp_path / "o.tar")}
    assert kept == (set(expected) if how == "inner" else {key for key, _ in samples})
    assert f"no-partner {1 if how == 'left' else 3}" in ran.err


def test_key_column_names_the_column(good: Command, names: list[str], table: Path, tmp_path: Path) -> None:
    for place, words in enumerate((["--on", "url=json.url"], ["--on", "json.url", "--key-column", "url"])):
        good(*names, "--table", table, *words, "--column", "txt=caption", "-o", tmp_path / f"{place}.tar")
    assert (tmp_path / "0.tar").read_bytes() == (tmp_path / "1.tar").read_bytes()


def test_json_rest(good: Command, names: list[str], table: Path, tmp_path: Path) -> None:
    good(*names, "--table", table, "--on", "url=json.url", "--json-rest", "-o", tmp_path / "o.tar")
    written = {name: json.loads(data) for name, data in dict(members_of(tmp_path / "o.tar")).items()}
    assert written["k3.json"] == {"url": "u0", "caption": "zero"}
    assert written["k2.json"] == {"url": "u2"}


def test_hashes_only_find_candidates(
    good: Command, names: list[str], table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(join_table, "hash", lambda value: 7, raising=False)
    good(*captioned(names, table, tmp_path))
    assert captions(tmp_path / "o.tar") == {"k0": "zero", "k1": "one", "k3": "zero", "k5": "one"}


def test_resume_compares_it(good: Command, names: list[str], table: Path, tmp_path: Path) -> None:
    words = [
        *names,
        "--table",
        table,
        "--column",
        "txt=caption",
        "--max-count",
        "2",
        "-o",
        tmp_path / "o-%d.tar",
    ]
    failed = wds("merge", *words, "--on", "url=json.url", "--post", "case {} in *1.tar) exit 1;; esac", "-j1")
    assert failed.code == 5
    ran = wds("merge", *words, "--on", "url=json.url.lower()", "--resume")
    assert ran.code == 4
    assert "it was started with different options: --on" in ran.err
    good(*words, "--on", "url=json.url", "--resume")
    assert (
        json.loads((tmp_path / "o-manifest.json").read_text())["wdscli"]["made"]["options"]["on"]
        == "json.url"
    )


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--on", "link=json.url"], 2, 'there is no column "link"'),
        (["--on", "url=json.urls"], 3, 'no sample has a key of the column "url"'),
        (
            ["--on", "url=json.url", "--key-column", "url"],
            2,
            "--on url=json.url and --key-column both name a column",
        ),
        (["--on", "json.url"], 2, 'there is no column "key"'),
    ],
)
def test_refused(
    names: list[str], table: Path, tmp_path: Path, words: list[str], code: int, message: str
) -> None:
    ran = wds("merge", *names, "--table", table, *words, "--column", "txt=caption", "-o", tmp_path / "o.tar")
    assert (ran.code, message in ran.err) == (code, True), ran.err


@pytest.fixture
def texts(tmp_path: Path) -> str:
    """A set with the rows of the table as samples, whose own keys are those of other samples."""
    samples = [
        [(f"k{number}.link.json", json.dumps({"to": url}).encode()), (f"k{number}.txt", text.encode())]
        for number, (url, text) in enumerate(reversed(ROWS))
    ]
    write_shards(tmp_path / "texts", [samples[:2], samples[2:]])
    return str(tmp_path / "texts")


@pytest.mark.parametrize("how", ["inner", "left"])
def test_sets_like_a_table(
    good: Command, names: list[str], table: Path, texts: str, tmp_path: Path, how: str
) -> None:
    good(*captioned(names, table, tmp_path), "--join", how)
    words = [*names, texts, "--join", how, "--on", "link.json.to=json.url", "-o", tmp_path / "s.tar"]
    ran = good(*words, "--drop", "link.json")
    assert dict(members_of(tmp_path / "s.tar")) == dict(members_of(tmp_path / "o.tar"))
    assert f"no-partner {1 if how == 'left' else 3}" in ran.err


def test_sets_by_the_key_of_the_second(good: Command, names: list[str], tmp_path: Path) -> None:
    write_shards(tmp_path / "b", [[[("u1.txt", b"one")], [("u7.txt", b"none")]]])
    good(*names, tmp_path / "b", "--join", "left", "--on", "key=json.url", "-o", tmp_path / "o.tar")
    assert captions(tmp_path / "o.tar") == {"k1": "one", "k5": "one"}


def test_sets_are_up_to_date(good: Command, names: list[str], texts: str, tmp_path: Path) -> None:
    words = [*names, texts, "--join", "inner", "--on", "link.json.to=json.url", "-o", tmp_path / "o.tar"]
    good(*words, "--if-changed")
    assert "nothing to do" in good(*words, "--if-changed").err
    write_shards(tmp_path / "texts", [[[("k0.link.json", b'{"to": "u0"}'), ("k0.txt", b"new")]], []])
    good(*words, "--if-changed")
    assert captions(tmp_path / "o.tar") == {"k0": "new", "k3": "new"}


def test_sets_with_a_value_twice(good: Command, names: list[str], tmp_path: Path) -> None:
    samples = [[(f"{key}.json", b'{"url": "u0"}'), (f"{key}.txt", key.encode())] for key in ("k8", "k9")]
    write_shards(tmp_path / "b", [[*samples, [("k7.json", b"{")]]])
    words = [*names, tmp_path / "b", "--join", "inner", "--on", "json.url", "--on-conflict", "left"]
    words += ["-o", tmp_path / "o.tar"]
    ran = wds("merge", *words)
    assert (ran.code, "an earlier sample of the set has the same json.url" in ran.err) == (3, True)
    assert "json cannot be decoded" in wds("merge", *words, "--on-duplicate", "skip").err
    good(*words, "--on-duplicate", "skip", "--on-error", "skip")
    assert captions(tmp_path / "o.tar") == {"k0": "k8", "k3": "k8"}


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--join", "outer"], 2, "--on joins two sets, inner or left"),
        (["--join", "inner", "--plan", "PLAN"], 2, "the tasks cannot read the set"),
        (["--join", "inner", "-o", "VIEW.json"], 2, "a view cannot read the set"),
        (["--join", "inner", "--on", "json.urls"], 3, "no value of json.urls is in all 2 sets"),
        (["--join", "inner"], 3, 'has a field "json" in two sets'),
    ],
)
def test_sets_refused(names: list[str], tmp_path: Path, words: list[str], code: int, message: str) -> None:
    write_shards(tmp_path / "b", [[[("b.json", b'{"url": "u0"}')]]])
    words = [str(tmp_path / word) if word.isupper() or word == "VIEW.json" else word for word in words]
    more = [] if "-o" in words else ["-o", str(tmp_path / "o.tar")]
    more += [] if "--on" in words else ["--on", "json.url"]
    ran = wds("merge", *names, tmp_path / "b", *words, *more)
    assert (ran.code, message in ran.err) == (code, True), ran.err
    assert not list(tmp_path.glob("[oV]*"))


def test_two_rows_of_one_value(names: list[str], table: Path, tmp_path: Path, good: Command) -> None:
    table.write_text("url,caption\nu0,a\nu0,b\n")
    words = captioned(names, table, tmp_path)
    ran = wds("merge", *words)
    assert (ran.code, 'repeated key "k0"' in ran.err) == (3, True)
    good(*words, "--on-duplicate", "skip")
    assert captions(tmp_path / "o.tar") == {"k0": "a", "k3": "a"}


def test_payloads_that_cannot_be_decoded(good: Command, table: Path, tmp_path: Path) -> None:
    names = write_shards(tmp_path / "in", [[[("a.json", b"{")], [("b.json", b'{"url": "u1"}')]]])
    words = captioned(names, table, tmp_path)
    ran = wds("merge", *words)
    assert (ran.code, "json cannot be decoded" in ran.err) == (3, True)
    good(*words, "--on-error", "skip")
    assert captions(tmp_path / "o.tar") == {"b.": "one"}
