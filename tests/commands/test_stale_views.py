"""A base that changes after its view was made: each command and the loader says view, shard and remedy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from shard_cases import wds

from wdscli.arrays import I64
from wdscli.errors import DataError, WdsError
from wdscli.loader import IndexedDataset, WebDataset
from wdscli.shards import ShardWriter
from wdscli.shards import view_shards as views
from wdscli.shards.layout import ViewSource

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


LARGE = 2_500_000
"""Bytes of a payload. A command reads a shard of four of them in several steps."""
READING = {
    "cat": "cat v.json -o out/o.tar",
    "cat each": "cat v.json -o out/{name}.tar",
    "split": "split v.json -o out/o-%d.tar",
    "join": "merge --join left v.json other -o out/o-%d.tar",
    "shuffle": "shuffle v.json -o out/o-%d.tar",
    "spill": "shuffle v.json -o out/o-%d.tar --strategy spill",
    "sort": "sort v.json --by key:r -o out/o-%d.tar",
}
RULES = {"removed": "--not-keys-from keys.txt", "renamed": "--not-keys-from keys.txt --rename text=txt"}


def change_now(kind: str) -> None:
    """Change the base while it is open."""
    shard = Path("a/x-000000.tar")
    if kind == "vanished":
        shard.unlink()
    elif kind == "cut":
        os.truncate(shard, LARGE + 5000)
    else:
        with ShardWriter("changed/x-%06d.tar", force=True) as writer:
            for number in range(5):
                key = "k9" if (number, kind) == (4, "headers") else f"k{number}"
                payload = b"x" if (number > 2, kind) == (True, "payloads") else b"%d" % number
                writer.write(key, {"txt": payload * LARGE})
        with shard.open("r+b") as file:
            file.write(Path("changed/x-000000.tar").read_bytes())


def write_large_view(rule: str) -> None:
    """A shard of large payloads, and a view of some of its samples, or with other names."""
    with ShardWriter("a/x-%06d.tar") as writer:
        for number in range(5):
            writer.write(f"k{number}", {"txt": b"%d" % number * LARGE})
    Path("keys.txt").write_text("k1\n")
    assert wds(*f"split a {RULES[rule]} -o v.json -q".split()).code == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["cut", "headers", "payloads", "vanished"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", READING)
def test_a_base_that_changes_while_it_is_read(
    name: str, rule: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written has the bytes of before, or there is an error and no shard."""
    monkeypatch.chdir(tmp_path)
    write_large_view(rule)
    write("other", "z1 z2")
    line = READING[name].split() + (["-j1"] if not name.startswith("cat") else [])
    first = wds(*line)
    assert first.code == 0, first.err
    wanted = {path.name: path.read_bytes() for path in Path("out").glob("*.tar")}
    shutil.rmtree("out")
    scatter, done, is_changed = ViewSource.scatter, 0, False

    def scattered(source: ViewSource, begins: I64, lengths: I64, places: I64, view: memoryview) -> None:
        nonlocal done, is_changed
        # A shuffle reads the ranges of a buffer together: change between them.
        if not is_changed and len(lengths) > 1:
            scatter(source, begins[:1], lengths[:1], places[:1], view)
            done += int(lengths[0])
            begins, lengths, places = begins[1:], lengths[1:], places[1:]
        if done > LARGE // 2 and not is_changed:
            is_changed = True
            change_now(kind)
        scatter(source, begins, lengths, places, view)
        done += int(lengths.sum())

    views.forget()
    monkeypatch.setattr(ViewSource, "scatter", scattered)
    ran = wds(*line)
    assert is_changed
    found = {path.name: path.read_bytes() for path in Path("out").glob("*.tar")}
    assert "Traceback" not in ran.err
    if ran.code == 0:
        assert found == wanted
        assert kind == "vanished", "nothing was noticed"
    else:
        assert ran.code in (3, 4), ran.err
        assert not found
        assert "v.json" in ran.err or "a/x-000000.tar" in ran.err, ran.err
        assert "hint:" in ran.err, ran.err


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["cut", "headers", "vanished"])
@pytest.mark.parametrize("shuffle", ["none", "full"])
@pytest.mark.parametrize("rule", RULES)
def test_a_base_that_changes_while_the_loader_reads(
    rule: str, shuffle: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_large_view(rule)
    field = "text" if rule == "renamed" else "txt"

    def read(then: Callable[[], None] = lambda: None) -> list[tuple[str, bytes]]:
        data = WebDataset("v.json", shuffle=shuffle, seed=1, fields=field)  # type: ignore[call-overload]
        found = []
        for sample in data:
            found.append((sample["__key__"], sample[field]))
            if len(found) == 1:
                then()
        return found

    wanted = read()
    try:
        assert read(lambda: change_now(kind)) == wanted
    except WdsError as error:
        text = f"{error} {getattr(error, 'shard', '')} {error.hint}"
        assert "v.json" in text or "a/x-000000.tar" in text
        assert error.hint


@pytest.mark.usefixtures("view")
def test_a_base_that_changes_within_a_process() -> None:
    """What the process has read before does not hide the change."""
    shard, data, table = (
        Path("a/x-000000.tar"),
        WebDataset("v.json", shuffle="full"),
        IndexedDataset("v.json"),
    )
    assert wds("verify", "v.json").code == wds("cat", "v.json", "-o", "1.tar").code == 0
    assert len(list(data)) == len([table[number] for number in range(5)]) == 5
    before = shard.read_bytes()
    for changed in (before.replace(b"k2", b"k7"), before + bytes(512)):
        shard.write_bytes(changed)
        assert "make the view again" in wds("verify", "v.json").out.decode()
        assert wds("ls", "v.json").code == 3
        for read in (lambda: list(data), lambda: list(WebDataset("v.json")), lambda: table[1]):
            with pytest.raises(DataError, match=r"changed after v\.json .*a/x-000000\.tar") as error:
                read()
            assert error.value.hint == "make the view again, or restore the original shard"
    shard.write_bytes(before)
    assert wds("verify", "v.json").code == 0
    assert len(list(data)) == 5
    assert table[1]["__key__"] == "k2"


def test_an_index_that_hides_the_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is newer than the shard, and right about the samples that are looked at before it is used."""
    monkeypatch.chdir(tmp_path)
    index = Path("a/.wds/x.tar.wdx")
    for keys in ("abcdef", "acbdef"):
        before = index.read_bytes() if index.exists() else b""
        with ShardWriter("a/x.tar", force=True) as writer:
            for key in keys:
                writer.write(key, {"txt": key.encode() * 9})
        if not before:
            assert wds("split", "a", "--slice", "1:", "-o", "v.json").code == 0
            continue
        index.write_bytes(before)
        os.utime(index, (2e9, 2e9))
    views.forget()
    ran = wds("shuffle", "v.json", "-o", "out-%d.tar", "-j1")
    assert (ran.code, "after v.json was made: its headers differ in a/x.tar" in ran.err) == (3, True), ran.err
    for shuffle in ("none", "full"):
        with pytest.raises(DataError, match=r"after v\.json was made: its headers differ in a/x\.tar"):
            list(WebDataset("v.json", shuffle=shuffle))  # type: ignore[call-overload]


@pytest.mark.usefixtures("view")
def test_a_view_that_is_replaced_or_removed_while_the_loader_has_it() -> None:
    """Another view with equally many samples in its shards is not read in its place."""
    line = "split a --max-count 2 --rename text=txt --slice {} -o v.json --force"
    assert wds(*line.format(":4").split()).code == 0
    data, table = WebDataset("v.json"), IndexedDataset("v.json")
    assert [sample["__key__"] for sample in data] == ["k1", "k2", "k3", "k4"]
    assert wds(*line.format("1:5").split()).code == 0
    for read in (lambda: list(data), lambda: table[0]):
        with pytest.raises(DataError, match=r"v\.json was replaced after the set was opened") as error:
            read()
        assert error.value.hint == "open the set again"
    Path("v.json").unlink()
    with pytest.raises(WdsError, match="no such file") as missing:
        list(data)
    assert missing.value.hint == "there is no view v.json"


OLDER = {
    "ls": "ls {}",
    "long": "ls {} -l",
    "json": "ls {} --json",
    "members": "ls {} --by member",
    "summary": "ls {} --summary",
    "shards": "ls {} --by shard",
    "count": "ls {} --count cls",
    "count values": "ls {} --count json.n",
    "where": "ls {} --where key>'' -l",
    "where values": "ls {} --where json.n>=0 -l",
    "show": "ls {} --show",
    "skip": "ls {} --on-error skip",
    "table": "ls {} --to csv",
    "table values": "ls {} --to csv --column json --where json.n>=0",
    "epoch": "ls {} --epoch 0 --batch-size 9",
    "cat": "cat {} -o out.tar",
    "cat table": "cat {} --to jsonl",
    "cat fields": "cat {} --to raw --fields json --where json.n>=0",
    "split": "split {} -o out-%d.tar",
    "split view": "split {} -o out.json",
    "diff": "diff {} {}",
    "report": "report {} -o out.html",
}


@pytest.fixture
def older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard with stored values, a view of it, a view of this view, and another shard in the place of the first: of
    its size, older, and other only in a sample that is neither first, middle nor last."""
    monkeypatch.chdir(tmp_path)
    for name, third in (("a.tar", "k2"), ("b.tar", "k1x")):
        with ShardWriter(name, values=["json.n"]) as writer:
            for number in range(9):
                writer.write(third if number == 2 else f"k{number}", {"json": b'{"n": %d}' % number})
    assert wds("split", "a.tar", "-o", "v.json").code == 0
    assert wds("split", "v.json", "--slice", ":8", "-o", "w.json").code == 0
    os.replace("b.tar", "a.tar")
    shutil.rmtree(".wds/b.tar.wdx", ignore_errors=True)
    os.utime("a.tar", (1e9, 1e9))
    views.forget()


@pytest.mark.exhaustive
@pytest.mark.parametrize("view", ["v.json", "w.json"])
@pytest.mark.parametrize("form", OLDER)
@pytest.mark.usefixtures("older")
def test_an_older_base_of_the_same_size(form: str, view: str) -> None:
    ran = wds(*OLDER[form].replace("{}", view).split())
    said = ran.err + ran.out.decode()
    assert (ran.code, "was changed after" in said, "a.tar" in said) == (3, True, True), said
    assert b"k2" not in ran.out
    assert "make the view again" in said, said
    assert not list(Path().glob("out*"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", [name for name, line in OLDER.items() if line.startswith("ls")])
@pytest.mark.usefixtures("older")
def test_an_older_shard_of_the_same_size(form: str) -> None:
    """The same question without a view: nothing is listed that only the stale index has."""
    ran = wds(*OLDER[form].replace("{}", "a.tar").split())
    assert b"k2" not in ran.out
    if form == "epoch":
        assert (ran.code, "the samples differ from the manifest in a.tar" in ran.err) == (3, True), ran.err
        return
    assert ran.code == 0, ran.err
    assert (b"k1x" in ran.out) is (form not in ("summary", "shards", "count", "count values", "show"))


@pytest.mark.usefixtures("older")
def test_an_older_base_of_the_same_size_in_the_loader() -> None:
    for view in ("v.json", "w.json"):
        for read in (
            lambda view=view: list(WebDataset(view)),
            lambda view=view: list(WebDataset(view, shuffle="full", fields="json")),
            lambda view=view: list(WebDataset(view, where="json.n == 2")),
            lambda view=view: IndexedDataset(view)["k2"],
            lambda view=view: IndexedDataset(view)[2],
        ):
            with pytest.raises(DataError, match=rf"changed after {view} .*a\.tar") as error:
                read()
            assert error.value.hint == "make the view again, or restore the original shard"
