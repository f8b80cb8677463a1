"""A base that changes after its view was made: each command and the loader says view, shard and remedy."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from shard_cases import wds

from wdscli.errors import DataError, WdsError
from wdscli.loader import IndexedDataset, WebDataset
from wdscli.shards import ShardWriter
from wdscli.shards import view_shards as views

COMMANDS = {
    "ls": "ls v.json",
    "ls summary": "ls v.json --summary",
    "cat": "cat v.json -o out.tar",
    "cat each": "cat v.json -o out/{name}.tar",
    "cat table": "cat v.json --to jsonl",
    "split": "split v.json -o out-%d.tar --shards 2",
    "split view": "split v.json --slice 1: -o out.json",
    "merge": "merge v.json other -o out-%d.tar",
    "join": "merge --join left v.json other -o out-%d.tar",
    "shuffle": "shuffle v.json -o out-%d.tar",
    "sort": "sort v.json --by key:r -o out-%d.tar",
    "map": "map v.json --cmd true -o out-%d.tar",
    "verify": "verify v.json",
    "absent": "verify v.json --absent keys.txt",
    "diff": "diff v.json v.json",
    "diff flat": "diff v.json other",
    "report": "report v.json -o out.html",
}


def write(folder: str, keys: str, **more: bool) -> None:
    with ShardWriter(f"{folder}/x-%06d.tar", max_count=3, force=True, **more) as writer:
        for key in keys.split():
            writer.write(key, {"txt" if folder == "a" else "cls": b"1"})


@pytest.fixture
def view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write("a", "k1 k2 k3 k4 k5 k6")
    write("other", "z1 z2")
    Path("keys.txt").write_text("k3\n")
    assert wds("split", "a", "--not-keys-from", "keys.txt", "-o", "v.json").code == 0


def change(kind: str) -> None:
    """Change the first base, from which k3 was taken out. It keeps its size, unless it is the "shorter" one."""
    index = Path("a/.wds/x-000000.tar.wdx")
    before = index.read_bytes()
    write("a", "k1 k3 k2 k4 k5 k6")
    if kind == "shorter":
        shutil.copy("other/x-000000.tar", "a/x-000000.tar")
    elif kind == "old index":
        index.write_bytes(before)
        os.utime(index, (2e9, 2e9))
    elif kind == "no index":
        index.unlink()
    views.forget()


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["shorter", "other", "old index", "no index"])
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.usefixtures("view")
def test_commands(name: str, kind: str) -> None:
    change(kind)
    ran = wds(*COMMANDS[name].split(), *(["-j1"] if name in ("shuffle", "sort", "split", "map") else []))
    said = ran.err + ran.out.decode()
    assert ran.code in (1, 3) if name in ("verify", "absent") else ran.code == 3, said
    assert "v.json" in said, said
    assert "a/x-000000.tar" in said, said
    if name not in ("verify", "absent"):
        assert "make the view again" in said, said
    assert "Traceback" not in said
    assert not list(Path().glob("out*"))


@pytest.mark.parametrize("kind", ["shorter", "other", "old index", "no index"])
@pytest.mark.usefixtures("view")
def test_the_loader(kind: str) -> None:
    opened = [
        WebDataset("v.json"),
        WebDataset("v.json", fields="txt", shuffle="full"),
        IndexedDataset("v.json"),
    ]
    change(kind)
    for data in [*opened, WebDataset("v.json")]:
        with pytest.raises(DataError, match=r"was changed after v\.json was made") as error:
            list(data)
        assert error.value.shard == "a/x-000000.tar"


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.usefixtures("view")
def test_a_touch_is_no_change(name: str) -> None:
    os.utime("a/x-000000.tar", (2e9, 2e9))
    views.forget()
    ran = wds(*COMMANDS[name].split())
    assert ran.code == (1 if name == "diff flat" else 0), ran.err


@pytest.mark.usefixtures("view")
def test_a_removed_base_is_an_error() -> None:
    Path("a/x-000000.tar").unlink()
    views.forget()
    for name in ("ls", "cat", "shuffle", "diff"):
        assert wds(*COMMANDS[name].split()).code == 4
    with pytest.raises(WdsError, match=r"a/x-000000\.tar"):
        list(WebDataset("v.json"))
