"""``--column FIELD=EXPR`` of split, map, cat and sort: the bytes of create, and all that a new field may change."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from shard_cases import members_of, samples_of, wds, write_shards

COMMAND = ["split"]
pytestmark = pytest.mark.usefixtures("shared_workers")
ROWS: list[dict[str, Any]] = [
    {"id": "k0", "caption": "a cat\u00e9", "label": 3, "share": 0.5, "box": [1, 2.5], "meta": {"w": 1}},
    {"id": "k1", "caption": "7 ", "label": 12, "share": 2.0, "box": [3], "meta": None},
    {"id": "k2", "label": 0, "share": 1e-9, "box": [], "meta": {}},
]
FIELDS = {
    "txt": "caption",
    "cls": "label",
    "share.score": "share",
    "box.npy": "box",
    "m.json": "meta",
    "b.msgpack": "box",
    "x.txt.gz": "caption",
}
COMMANDS = [("split",), ("cat",), ("sort", "--by", "key"), ("map",)]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A set with the rows of the table in the field json; its second sample has text, and the third is large."""
    samples = [[(f"{row['id']}.json", json.dumps(row).encode())] for row in ROWS]
    samples[1].append(("k1.txt", b"old"))
    samples[2] += [("k2.bin", bytes(5 << 20)), ("k2.txt", b"kept")]
    write_shards(tmp_path / "raw", [samples[:2], samples[2:]])
    return tmp_path / "raw"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_bytes_that_create_writes(
    table: Path, raw: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    words = [word for field, column in FIELDS.items() for word in ("--column", f"{field}={column}")]
    made = wds("create", "--from", table, "--key-column", "id", *words, "-o", tmp_path / "c.tar")
    assert made.code == 0, made.err
    words = [word.replace("=", "=json.") for word in words]
    ran = wds(*command, raw, *words, "--drop", "json,bin", "-o", tmp_path / "o.tar")
    assert ran.code == 0, ran.err
    expected = {**dict(members_of(tmp_path / "c.tar")), "k2.txt": b"kept"}
    assert dict(members_of(tmp_path / "o.tar")) == expected
    assert wds("verify", tmp_path / "o.tar").code == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_expressions_and_places(raw: Path, tmp_path: Path, command: tuple[str, ...]) -> None:
    words = ["--column", "n.txt=str(json.label + 1) + key + str(index)", "--column", "copy.json=json"]
    assert wds(*command, raw, *words, "-o", tmp_path / "o.tar").code == 0
    written = dict(members_of(tmp_path / "o.tar"))
    assert [written[f"k{number}.n.txt"] for number in range(3)] == [b"4k00", b"13k11", b"1k20"]
    assert all(written[f"k{number}.copy.json"] == written[f"k{number}.json"] for number in range(3))


def test_a_stream(raw: Path, tmp_path: Path) -> None:
    data = (raw / "0.tar" if (raw / "0.tar").exists() else sorted(raw.glob("*.tar"))[0]).read_bytes()
    words = ["--column", "txt=json.caption", "--drop", "json"]
    for command in ("cat", "split"):
        ran = wds(command, "-", *words, "-o", tmp_path / f"{command}.tar", stdin=data)
        assert ran.code == 0, ran.err
        assert [dict(fields)["txt"] for _, fields in samples_of(tmp_path / f"{command}.tar")] == [
            "a cat\u00e9".encode(),
            b"7 ",
        ]


@pytest.mark.parametrize("strategy", ["gather", "spill"])
def test_plans_and_strategies(good: Command, raw: Path, tmp_path: Path, strategy: str) -> None:
    words = [raw, "--column", "txt=json.caption", "-o", tmp_path / "o-%d.tar", "--max-count", 2]
    good(*words, "--plan", tmp_path / "p")
    assert wds("run", tmp_path / "p").code == 0
    planned = [path.read_bytes() for path in sorted(tmp_path.glob("o-*.tar"))]
    assert wds("sort", *words, "--by", "key", "--strategy", strategy, "--force").code == 0
    assert [path.read_bytes() for path in sorted(tmp_path.glob("o-*.tar"))] == planned


def test_resume_compares_it(good: Command, raw: Path, tmp_path: Path) -> None:
    words = [raw, "-o", tmp_path / "o-%d.tar", "--max-count", 1]
    assert (
        wds(
            "split",
            *words,
            "--column",
            "txt=json.caption",
            "--post",
            "case {} in *1.tar) exit 1;; esac",
            "-j1",
        ).code
        == 5
    )
    ran = wds("split", *words, "--column", "txt=json.id", "--resume")
    assert (ran.code, "it was started with different options: --column" in ran.err) == (4, True), ran.err
    good(*words, "--column", "txt=json.caption", "--resume")


def test_stored_values_of_old_fields_are_not_kept(good: Command, raw: Path, tmp_path: Path) -> None:
    for name in ("len(txt)", "json.label"):
        assert wds("index", raw, "--values", name).code == 0
    good(raw, "--column", "txt=json.id + 'xyz'", "-o", tmp_path / "o.tar")
    [count] = wds("ls", tmp_path / "o.tar", "--count", "len(txt)", "--json").objects
    assert (count["value"], count["count"]) == (5, 3)
    cat = wds("cat", raw, "--column", "x.txt=json.label", "-o", tmp_path / "c.tar")
    assert dict(members_of(tmp_path / "c.tar"))["k1.x.txt"] == b"12", cat.err


def test_class_names_end_with_the_old_labels(good: Command, tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "in" / name).mkdir(parents=True)
        (tmp_path / "in" / name / "a.txt").write_text(name)
    assert wds("create", tmp_path / "in", "--label-from", "top", "-o", tmp_path / "s.tar").code == 0
    for command in ("cat", "split"):
        for option, has_classes in (("x.cls=cls", True), ("cls=7", False)):
            ran = wds(command, tmp_path / "s.tar", "--column", option, "-o", tmp_path / "o.tar", "--force")
            assert ran.code == 0, ran.err
            manifest = json.loads((tmp_path / "o-manifest.json").read_text())["wdscli"]
            assert ("classes" in manifest) == has_classes


def test_map_runs_no_process(raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    ran = wds("map", raw, "--column", "txt=json.id", "-o", tmp_path / "{name}.tar")
    assert ran.code == 0, ran.err
    assert len(list(tmp_path.glob("*.tar"))) == len(list(raw.glob("*.tar")))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["txt=json.captoin"], 3, "no sample has json.captoin for --column\nhint: did you mean caption?"),
        (
            ["cls=json.id"],
            3,
            '--column "json.id" cannot be written as cls: \'k0\' is not a whole number in sample "k0"',
        ),
        (["jpg=json.id"], 3, 'in sample "k0"'),
        (["txt"], 2, 'not a new field: "txt"'),
        (["a/b=json.id"], 2, 'field "a/b" would be read back'),
        (["txt=json.id +"], 2, "--column cannot be read"),
        (["txt=json.id", "-o", "v.json"], 2, "--column works only for shards"),
    ],
)
def test_refused(
    raw: Path, tmp_path: Path, command: tuple[str, ...], words: list[str], code: int, message: str
) -> None:
    output = ["-o", tmp_path / (words[2] if len(words) > 1 else "o.tar")]
    ran = wds(*command, raw, "--column", words[0], *output)
    assert (ran.code, message in ran.err) == (code, True), ran.err
    assert not list(tmp_path.glob("[ov].*"))


def test_no_other_formats(raw: Path) -> None:
    ran = wds("cat", raw, "--to", "jsonl", "--column", "txt=json.id")
    assert (ran.code, "--to jsonl cannot be combined with --column" in ran.err) == (2, True)
