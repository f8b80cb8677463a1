"""create --on-duplicate, --rekey and --limit: keys that come again, new keys, and the first of the output's order."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from shard_cases import Ran, keys_of, members_of
from tiers import EXHAUSTIVE

Command = Callable[..., Ran]
COMMAND = ["create"]


def plant(folder: Path, **files: str) -> Path:
    folder.mkdir()
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """``a`` comes with other fields in the second one, ``b`` in the first alone, ``c`` in all three."""
    return [
        plant(tmp_path / "x", a_txt="xa", b_txt="xb", c_txt="xc"),
        plant(tmp_path / "y", a_txt="ya", a_json="1", c_txt="yc"),
        plant(tmp_path / "z", b_json="2", c_txt="zc"),
    ]


def made(folder: Path) -> dict[str, str]:
    return {name: data.decode() for shard in sorted(folder.glob("*.tar")) for name, data in members_of(shard)}


FIRST = {"a.txt": "xa", "b.json": "2", "b.txt": "xb", "c.txt": "xc"}


def test_an_error_names_both(run: Command, folders: list[Path], tmp_path: Path) -> None:
    ran = run(*folders, "-o", tmp_path / "o.tar")
    assert ran.code == 3
    assert f'"a.txt" comes twice: from {folders[0]}/a.txt and from {folders[1]}/a.txt' in ran.err
    assert "name the field of one folder: wds create images mask.png=masks" in ran.err


def test_skip_leaves_out_what_a_source_has_as_a_whole(
    good: Command, folders: list[Path], tmp_path: Path
) -> None:
    """Of the second ``a`` the json is not put to the first one's text."""
    ran = good(*folders, "-o", tmp_path / "o.tar", "--on-duplicate", "skip", "--json")
    assert made(tmp_path) == FIRST
    assert ran.objects[-1]["dropped"] == {"duplicate-key": 3}
    assert "3 samples left out: key repeated" in ran.err


def test_rekey_gives_later_ones_a_key_of_their_own(
    good: Command, folders: list[Path], tmp_path: Path
) -> None:
    good(*folders, "-o", tmp_path / "o.tar", "--on-duplicate", "rekey")
    more = {
        "a-000000001.json": "1",
        "a-000000001.txt": "ya",
        "c-000000004.txt": "yc",
        "c-000000005.txt": "zc",
    }
    assert made(tmp_path) == {**FIRST, **more}
    good(*folders, "-o", tmp_path / "o.tar", "--on-duplicate", "rekey", "--rekey", "again{index}", "--force")
    assert {"again1.json", "again4.txt", "a.txt"} < set(made(tmp_path))


@pytest.mark.parametrize("rekey", ["{key}", "b{key}"])
def test_a_new_key_that_is_taken(run: Command, folders: list[Path], tmp_path: Path, rekey: str) -> None:
    plant(tmp_path / "w", bc_jpg="another field of a key that a new one would be")
    ran = run(*folders, tmp_path / "w", "-o", tmp_path / "o.tar", "--on-duplicate", "rekey", "--rekey", rekey)
    assert ran.code == 3
    assert "two samples would have the key" in ran.err
    assert not list(tmp_path.glob("*.tar"))


def test_rows_of_a_table(good: Command, tmp_path: Path) -> None:
    """A cell that is empty in the first row is not filled from the second."""
    rows = [{"id": "a", "t": "1"}, {"id": "b", "t": "2"}, {"id": "a", "t": "3", "n": 4}]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = [
        "--from",
        tmp_path / "t.jsonl",
        "--key-column",
        "id",
        "--column",
        "txt=t",
        "--column",
        "cls=n",
    ]
    good(*table, "-o", tmp_path / "o.tar", "--on-duplicate", "skip")
    assert made(tmp_path) == {"a.txt": "1", "b.txt": "2"}
    more = ["--on-duplicate", "rekey", "--rekey", "{key}_{index}"]
    good(*table, "-o", tmp_path / "o.tar", "--force", *more)
    assert made(tmp_path) == {"a.txt": "1", "b.txt": "2", "a_1.cls": "4", "a_1.txt": "3"}
    assert keys_of(tmp_path / "o.tar") == ["a", "b", "a_1"]


def test_labels_of_what_is_left(good: Command, folders: list[Path], tmp_path: Path) -> None:
    ran = good(
        *folders, "-o", tmp_path / "o.tar", "--on-duplicate", "skip", "--label-from", "parent", "--json"
    )
    assert ran.objects[-1]["classes"] == ["x", "z"]
    assert {name for name in made(tmp_path) if name.endswith("cls")} == {"a.cls", "b.cls", "c.cls"}


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=EXHAUSTIVE)])
def test_new_keys_for_all(good: Command, folders: list[Path], tmp_path: Path, jobs: int) -> None:
    good(folders[0], "-o", tmp_path / "o-%06d.tar", "--rekey", "{key}/{index:03d}", "--shards", 2, "-j", jobs)
    assert made(tmp_path) == {"a/000.txt": "xa", "b/001.txt": "xb", "c/002.txt": "xc"}


def test_new_keys_in_another_order(good: Command, folders: list[Path], tmp_path: Path) -> None:
    """The number is the sample's among all that were found, whatever the order."""
    shuffled = ["--order", "shuffle", "--seed", 1]
    good(folders[0], "-o", tmp_path / "plain.tar", *shuffled)
    plain = [name.partition(".")[0] for name, _ in members_of(tmp_path / "plain.tar")]
    good(folders[0], "-o", tmp_path / "new.tar", *shuffled, "--rekey", "{key}{index}")
    assert keys_of(tmp_path / "new.tar") == [f"{key}{'abc'.index(key)}" for key in plain]


@pytest.mark.parametrize(
    ("rekey", "said"), [("{shard}-{index}", "there is no {shard}"), ("k", "the same key")]
)
def test_formats_that_cannot_be_used(
    run: Command, folders: list[Path], tmp_path: Path, rekey: str, said: str
) -> None:
    ran = run(folders[0], "-o", tmp_path / "o.tar", "--rekey", rekey)
    assert ran.code == 2
    assert said in ran.err
    assert "{key}-{index:09d}" in ran.err


def test_limit_is_of_the_outputs_order(good: Command, folders: list[Path], tmp_path: Path) -> None:
    shuffled = ["--order", "shuffle", "--seed", 4]
    good(folders[0], "-o", tmp_path / "all.tar", *shuffled)
    ran = good(folders[0], "-o", tmp_path / "some.tar", *shuffled, "--limit", 2, "--json")
    assert keys_of(tmp_path / "some.tar") == keys_of(tmp_path / "all.tar")[:2]
    assert ran.objects[-1]["dropped"] == {"limit": 1}
