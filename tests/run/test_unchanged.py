"""``--if-changed``: nothing is made again that is there and would be the same, in every command that writes a set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from shard_cases import content, interrupt_at, keys_of, outputs, wds, write_shards

from wdscli.run import digests
from wdscli.storage import Source

NOTHING = "nothing to do: inputs and options have not changed"


def files_of(key: str) -> list[tuple[str, bytes]]:
    return [(f"{key}.cls", key[-1:].encode()), (f"{key}.txt", key.encode())]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two shards without a manifest, a folder of files, and files that options name; the current folder."""
    monkeypatch.chdir(tmp_path)
    write_shards(
        tmp_path / "in", [[files_of(f"a{n}") for n in range(4)], [files_of(f"b{n}") for n in range(3)]]
    )
    (tmp_path / "files").mkdir()
    for name in ("x.txt", "y.txt", "z.txt"):
        (tmp_path / "files" / name).write_text(name)
    (tmp_path / "keys").write_text("a0\na1\nb2\n")
    (tmp_path / "map.tsv").write_text("".join(f"{s}{n}\tp{n % 2}\n" for s in "ab" for n in range(4)))
    (tmp_path / "t.csv").write_text("id,cap\na0,one\nb0,two\n")
    (tmp_path / "f.py").write_text("def f(sample):\n    return sample\n")
    return tmp_path


def aged(path: Path) -> None:
    """Written since."""
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 5_000_000_000))


COMMANDS = {
    "create": ("create files --max-count 2", "files/y.txt"),
    "create-list": ("create --from list:list", "list"),
    "shuffle": ("shuffle in --seed 3", "in/in-1.tar"),
    "sort": ("sort in --by cls:n", "in/in-0.tar"),
    "order-from": ("sort in --by @keys --missing last", "keys"),
    "keys-from": ("split in --keys-from keys", "keys"),
    "by-map": ("split in --by @map.tsv", "map.tsv"),
    "merge": ("merge in other", "other/in-0.tar"),
    "merge-table": ("merge in --table t.csv --key-column id --column cap=cap", "t.csv"),
    "map": ("map in --filter txt cat", "in/in-1.tar"),
    "map-python": ("map in --python f.py:f", "f.py"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command(here: Path, name: str) -> None:
    write_shards(here / "other", [[files_of("c0")]])
    (here / "list").write_text("l.txt\ttext:one\n")
    line, watched = COMMANDS[name]
    output = "out/{part}-%d.tar" if name == "by-map" else "out/out-%d.tar"
    words = [*line.split(), "-o", output, "-j", 1, "--if-changed"]
    ran = wds(*words)
    assert ran.code == 0, ran.err
    assert NOTHING not in ran.err
    before = content(here / "out")
    times = {path: path.stat().st_mtime_ns for path in (here / "out").rglob("*")}
    ran = wds(*words, "--json")
    assert (ran.code, ran.objects[-1]["unchanged"], len(ran.objects)) == (0, True, 1)
    assert NOTHING in ran.err
    assert times == {path: path.stat().st_mtime_ns for path in (here / "out").rglob("*")}
    # Other bytes of the same size.
    if watched in ("keys", "map.tsv", "t.csv", "f.py", "list"):
        data = (here / watched).read_text()
        (here / watched).write_text({"keys": data[::-1].lstrip() + "\n"}.get(watched, data.swapcase()))
        if watched != "keys":
            (here / watched).write_text(data + {"f.py": "#\n", "list": "m.txt\ttext:two\n"}.get(watched, ""))
            (here / watched).write_text(
                (here / watched).read_text().replace("p1", "p2").replace("two", "TWO")
            )
        else:
            (here / watched).write_text("a1\na0\nb2\n" if name == "order-from" else "a1\n")
    else:
        aged(here / watched)
    ran = wds(*words)
    assert ran.code == 0, ran.err
    assert NOTHING not in ran.err
    after = content(here / "out")
    shards = {path: data for path, data in after.items() if path.endswith(".tar")}
    is_other = watched in ("keys", "map.tsv", "t.csv", "list")
    assert is_other == (shards != {path: data for path, data in before.items() if path.endswith(".tar")})
    # The same as one made with --force, but for the stamp.
    assert wds(*words, "--force").code == 0
    ran = wds(*words)
    assert NOTHING in ran.err
    assert content(here / "out") == after


SHUFFLE: list[object] = ["shuffle", "in", "-o", "out/out-%d.tar", "--max-count", 3, "-j", 1, "--if-changed"]


@pytest.mark.parametrize(
    "more",
    [
        ["--seed", 1],
        ["--limit", 2],
        ["--hash", "sha256"],
        ["--no-index"],
        ["--mtime", 9],
        ["--on-error", "skip"],
        ["--dedup", "cls"],
    ],
)
def test_other_options(here: Path, more: list[object]) -> None:
    assert wds(*SHUFFLE).code == 0
    assert "shuffled" in wds(*SHUFFLE, *more).err
    assert NOTHING in wds(*SHUFFLE, *more).err
    assert "shuffled" in wds(*SHUFFLE).err


def test_what_makes_no_difference(here: Path) -> None:
    assert wds(*SHUFFLE).code == 0
    assert NOTHING in wds(*SHUFFLE[:-3], "-j", 2, "--if-changed").err
    for more in (["--strategy", "spill"], ["--memory", "1GB"], ["--resume"], ["-n"], ["-v"]):
        assert NOTHING in wds(*SHUFFLE, *more).err, more


def test_resume_of_a_set_that_has_a_stamp(here: Path) -> None:
    assert wds(*SHUFFLE).code == 0
    assert "kept 3 shards" in wds(*SHUFFLE[:-1], "--resume").err
    # Of another one it keeps what is the same, and the next run finds it unchanged.
    aged(here / "in" / "in-0.tar")
    assert wds(*SHUFFLE, "--resume").code == 0
    assert NOTHING in wds(*SHUFFLE).err


@pytest.mark.parametrize("gone", ["out-1.tar", "out-manifest.json"])
def test_a_set_that_is_not_whole(here: Path, gone: str) -> None:
    assert wds(*SHUFFLE).code == 0
    whole = content(here / "out")
    (here / "out" / gone).unlink()
    ran = wds(*SHUFFLE)
    if gone == "out-manifest.json":
        assert ran.code == 4
        assert "no manifest says which command wrote it" in ran.err
        assert wds(*SHUFFLE, "--force").code == 0
    else:
        assert ran.code == 0, ran.err
    assert content(here / "out") == whole


def test_inputs_that_were_made_again_with_the_same_bytes(here: Path) -> None:
    """Their manifest says so; without one their times would."""
    assert wds("split", "in", "-o", "set/set-%d.tar").code == 0
    words = ["sort", "set/set-manifest.json", "--by", "key", "--reverse", "-o", "out/out.tar", "--if-changed"]
    assert wds(*words).code == 0
    assert wds("split", "in", "-o", "set/set-%d.tar", "--force").code == 0
    assert NOTHING in wds(*words).err
    assert NOTHING in wds(*[*words[:1], "set", *words[2:]]).err
    # A shard that is younger than its manifest is not vouched for.
    aged(here / "set" / "set-0.tar")
    assert "sorted" in wds(*words).err


def test_what_is_not_replaced(here: Path) -> None:
    (here / "out").mkdir()
    (here / "out" / "out-0.tar").write_bytes(b"mine")
    assert wds(*SHUFFLE).code == 4
    assert (here / "out" / "out-0.tar").read_bytes() == b"mine"
    sort = ["sort", "in", "--by", "key", "-o", "out/out-%d.tar"]
    assert wds(*sort, "--force").code == 0
    ran = wds(*SHUFFLE)
    assert ran.code == 4
    assert "`wds shuffle` did not write it" in ran.err
    assert wds(*SHUFFLE, "--force").code == 0
    assert NOTHING in wds(*SHUFFLE).err


def test_shards_that_were_added_are_not_lost(here: Path) -> None:
    words = ["create", "files", "--include", "x.txt", "-o", "out/out-%d.tar", "--if-changed"]
    assert wds(*words).code == 0
    assert wds("create", "files/y.txt", "-o", "out/out-%d.tar", "--append").code == 0
    assert NOTHING in wds(*words).err
    aged(here / "files" / "x.txt")
    ran = wds(*words)
    assert ran.code == 4
    assert "shards were added" in ran.err
    assert [keys_of(path) for path in outputs(here / "out")] == [["x"], ["y"]]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("shuffle - -o out.tar", "cannot check whether -"),
        ("shuffle pipe:cat -o out.tar", "cannot check whether pipe:cat"),
        ("shuffle in -o -", "cannot check what was written to -"),
        ("create files -o -", "cannot check what was written to -"),
        ("shuffle in -o out.tar --plan p", "exclude each other"),
        ("create files -o out-%d.tar --append", "exclude each other"),
        ("merge in --table t.csv --key-column id --column cap=@cap -o out.tar", "files that a table names"),
    ],
)
def test_what_cannot_be_looked_at(here: Path, line: str, said: str) -> None:
    ran = wds(*line.split(), "--if-changed", stdin=b"")
    assert (ran.code, said in ran.err) == (2, True), ran.err


def test_manifests_tell_no_times_without_it(here: Path) -> None:
    assert wds(*SHUFFLE[:-1]).code == 0
    made: dict[str, Any] = json.loads((here / "out" / "out-manifest.json").read_text())["wdscli"]["made"]
    assert set(made) == {"operation", "options", "inputs", "seed"}
    # One of an older version, or made without: it counts as changed.
    assert "shuffled" in wds(*SHUFFLE).err


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("command", ["shuffle", "create"])
def test_interrupted_at_every_step(here: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """A set that is replaced is made by the next run, whatever is left of the old one."""
    how = {"shuffle": [*SHUFFLE, "--seed", 2], "create": ["create", "files", "-o", "out/out-%d.tar"]}[command]
    how = [*how, "--max-count", 2, "-j", 1, "--if-changed"] if command == "create" else how
    old = how[:-2] if command == "shuffle" else [*how, "--limit", 2]
    assert wds(*how).code == 0
    wanted = content(here / "out")
    steps, was_killed = 0, True
    while was_killed:
        assert wds(*old, "--force").code == 0
        with monkeypatch.context() as patch:
            interrupt_at(patch, steps)
            was_killed = wds(*how).code == 130
        # Before the first file of all, which says that the set was one of ours.
        more = ["--force"] if was_killed and steps == 0 else []
        ran = wds(*how, *more)
        assert ran.code == 0, ran.err
        assert content(here / "out") == wanted
        steps += 1
    assert steps > 5


def test_a_store_that_tells_no_versions(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a web server may."""
    pytest.importorskip("fsspec").filesystem("memory").pipe("/unchanged/x", b"x")
    (here / "list").write_text("a.txt\tmemory://unchanged/x\n")
    original = digests.open_source

    def plain(address: str, **more: bool) -> Source:
        source = original(address, **more)
        source.version = ""
        return source

    monkeypatch.setattr(digests, "open_source", plain)
    ran = wds("create", "--from", "list:list", "-o", "out/out-%d.tar", "--if-changed")
    assert (ran.code, "has no versions" in ran.err) == (2, True), ran.err


@pytest.mark.exhaustive
def test_killed_while_a_set_is_replaced(here: Path) -> None:
    """Before the first shard has a receipt that says so."""
    words = ["create", "files", "-o", "out/out-%d.tar", "--max-count", "1", "-j", "1", "--if-changed"]
    assert wds(*words).code == 0
    (here / "files" / "x.txt").write_text("other")
    killing = [*words, "--post", "kill -9 $PPID"]
    assert subprocess.run([sys.executable, "-m", "wdscli", *killing], check=False).returncode == -9
    assert not (here / "out" / "out-manifest.json").exists()
    ran = wds(*words)
    assert ran.code == 0, ran.err
    assert content(here / "out")["out-0.tar"].count(b"other") == 1
    assert NOTHING in wds(*words).err


@pytest.mark.exhaustive
def test_in_a_makefile(here: Path) -> None:
    """Two rules, as the guide has them: the second one is not run for a file that was only touched."""
    (here / "Makefile").write_text(
        f"WDS = {sys.executable} -m wdscli\n"
        "mixed-manifest.json: set-manifest.json\n"
        "\t$(WDS) shuffle $< -o mixed-%06d.tar --if-changed\n"
        "set-manifest.json: files $(wildcard files/*)\n"
        "\t$(WDS) create files -o set-%06d.tar --if-changed\n"
    )

    def make() -> str:
        return subprocess.run(["make"], capture_output=True, text=True, check=True).stderr

    assert "shuffled 3 samples" in make()
    aged(here / "files" / "x.txt")
    said = make()
    assert "wrote 3 samples" in said
    assert NOTHING in said
