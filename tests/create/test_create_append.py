"""create --append: further shards of a set that is there, whatever happens meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shard_cases import (
    Ran,
    assert_true_set,
    content,
    interrupt_at,
    keys_of,
    leftovers,
    members_of,
    numbered,
    outputs,
    wds,
    write_shards,
)

Command = Callable[..., Ran]
COMMAND = ["create"]


def plant(folder: Path, keys: str, field: str = "txt") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for key in keys:
        (folder / f"{key}.{field}").write_text(f"{folder.name} {key}")
    return folder


@pytest.fixture
def out(good: Command, tmp_path: Path) -> str:
    """A set of two shards, ``a b`` and ``c``."""
    name = f"{tmp_path}/out/out-%06d.tar"
    good(plant(tmp_path / "one", "abc"), "-o", name, "--max-count", 2)
    return name


def manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "out-manifest.json").read_text())
    return found


def test_new_samples_without_a_field_of_all_others_warn(good: Command, out: str, tmp_path: Path) -> None:
    warning = 'warning: every sample of the set has txt, but new sample "d" does not'
    assert warning in good(plant(tmp_path / "two", "d", "cls"), "-o", out, "--append").err
    # Now not every sample has it.
    assert "warning" not in good(plant(tmp_path / "three", "e", "cls"), "-o", out, "--append").err


def test_new_shards_follow_and_old_ones_stay(good: Command, out: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    before, listed = content(folder), manifest(folder)["shardlist"]
    ran = good(plant(tmp_path / "two", "dez"), "-o", out, "--append", "--max-count", 2, "--json")
    assert [keys_of(path) for path in outputs(folder)] == [["a", "b"], ["c"], ["d", "e"], ["z"]]
    after = content(folder)
    assert {name: after[name] for name in before if "manifest" not in name} == {
        name: data for name, data in before.items() if "manifest" not in name
    }
    told = manifest(folder)
    assert told["shardlist"][:2] == listed
    assert [shard["url"] for shard in told["shardlist"]] == [path.name for path in outputs(folder)]
    assert (told["wdscli"]["samples"], told["wdscli"]["index"]) == (6, ".wds")
    assert told["wdscli"]["made"]["options"]["max_count"] == 2
    assert [(one["first"], one["shards"]) for one in told["wdscli"]["made"]["appended"]] == [(2, 2)]
    assert (ran.objects[-1]["samples"], ran.objects[-1]["set"]["samples"]) == (3, 6)
    assert_true_set(folder)
    assert not leftovers(folder)
    # The set's manifest is the same wherever it lies.
    other = tmp_path / "other" / "out-%06d.tar"
    good(tmp_path / "one", "-o", other, "--max-count", 2)
    good(tmp_path / "two", "-o", other, "--max-count", 2, "--append", "-j", 2)
    assert content(other.parent) == after


def test_the_new_shards_are_those_of_a_set_of_their_own(good: Command, out: str, tmp_path: Path) -> None:
    plant(tmp_path / "two", "de")
    good(tmp_path / "two", "-o", tmp_path / "own" / "out-%06d.tar")
    good(tmp_path / "two", "-o", out, "--append")
    assert outputs(tmp_path / "out")[2].read_bytes() == outputs(tmp_path / "own")[0].read_bytes()


def test_a_key_that_is_there(run: Command, out: str, tmp_path: Path) -> None:
    before = content(tmp_path / "out")
    words = [plant(tmp_path / "two", "cd", "cls"), "-o", out, "--append"]
    ran = run(*words)
    assert ran.code == 3
    assert 'the set already has a sample "c"' in ran.err
    assert "--on-duplicate" in ran.err
    assert content(tmp_path / "out") == before
    assert "(1 file)" in run(*words, "--on-duplicate", "skip", "-n").err
    assert run(*words, "--on-duplicate", "rekey").code == 0
    assert keys_of(outputs(tmp_path / "out")[2]) == ["c-000000003", "d"]


@pytest.mark.parametrize("index", [[], ["--no-index"]])
def test_what_is_there_already_is_no_reason_to_fail(
    run: Command, good: Command, tmp_path: Path, index: list[str]
) -> None:
    """A folder that is added every night: what is new."""
    out, folder = tmp_path / "out" / "out-%06d.tar", plant(tmp_path / "one", "ab")
    good(folder, "-o", out, *index)
    for keys, said, shards in (
        ("", "wrote 0 samples", 1),
        ("de", "2 samples left out: key in the set already", 2),
    ):
        plant(folder, keys)
        ran = good(folder, "-o", out, "--append", "--on-duplicate", "skip")
        assert said in ran.err
        assert len(outputs(tmp_path / "out")) == shards
    assert good(folder, "-o", out, "--append", "--on-duplicate", "skip", "--limit", 0).code == 0
    assert run(folder, "-o", out, "--append", "--include", "no").code == 4


def test_new_keys_go_on_with_the_numbers(good: Command, tmp_path: Path) -> None:
    out = tmp_path / "out" / "out-%06d.tar"
    for name in ("one", "two"):
        more = ["--append"] if name == "two" else []
        good(plant(tmp_path / name, "ab"), "-o", out, "--rekey", "n{index:03d}", *more)
    assert [keys_of(path) for path in outputs(tmp_path / "out")] == [["n000", "n001"], ["n002", "n003"]]


def test_labels_keep_their_numbers(run: Command, good: Command, tmp_path: Path) -> None:
    out = tmp_path / "out" / "out-%06d.tar"
    for name in ("dogs", "mice"):
        plant(tmp_path / "one" / name, "a")
    for name in ("cats", "mice"):
        plant(tmp_path / "two" / name, "b")
    good(tmp_path / "one", "-o", out, "--label-from", "parent")
    ran = good(tmp_path / "two", "-o", out, "--label-from", "parent", "--append", "--json")
    assert ran.objects[-1]["classes"] == ["dogs", "mice", "cats"]
    assert manifest(tmp_path / "out")["wdscli"]["classes"] == ["dogs", "mice", "cats"]
    members = [member for path in outputs(tmp_path / "out") for member in members_of(path)]
    labels = {name: data for name, data in members if name.endswith("cls")}
    assert labels == {"dogs/a.cls": b"0", "mice/a.cls": b"1", "cats/b.cls": b"2", "mice/b.cls": b"1"}


def test_sets_that_others_made(run: Command, good: Command, tmp_path: Path) -> None:
    """A shuffled set, and one that has a manifest since `wds index`; numbers go on after the last."""
    write_shards(tmp_path / "in", [numbered(3, "n")])
    assert wds("shuffle", tmp_path / "in", "-o", tmp_path / "out" / "out-%06d.tar", "-q").code == 0
    good(plant(tmp_path / "two", "b"), "-o", tmp_path / "out" / "out-%06d.tar", "--append")
    made = manifest(tmp_path / "out")["wdscli"]["made"]
    assert (made["operation"], made["appended"][0]["operation"]) == ("shuffle", "create")
    (tmp_path / "in" / "in-0.tar").rename(tmp_path / "in" / "in-7.tar")
    words = [tmp_path / "two", "-o", tmp_path / "in" / "in-%d.tar", "--append"]
    assert "make the set without --append; `wds index`" in run(*words).err
    assert wds("index", tmp_path / "in").code == 0
    good(*words)
    assert (tmp_path / "in" / "in-8.tar").exists()


@pytest.mark.parametrize(
    ("name", "more", "code", "said"),
    [
        ("out.tar", [], 2, "is a fixed name"),
        ("-", [], 2, "is a fixed name"),
        ("out-{0..3}.tar", [], 2, "is a fixed name"),
        ("out-%04d.tar", [], 2, "does not match the names of the set's shards: out-000000.tar"),
        ("new-%06d.tar", [], 4, "there is no set to append to"),
        ("out-%06d.tar", ["--plan", "x"], 2, "exclude each other"),
        ("out-%06d.tar", ["--label-from", "parent"], 2, "has no class names"),
    ],
)
def test_what_cannot_be_meant(
    run: Command, out: str, tmp_path: Path, name: str, more: list[str], code: int, said: str
) -> None:
    name = name if name == "-" else f"{tmp_path}/out/{name}"
    ran = run(plant(tmp_path / "two", "d"), "-o", name, "--append", *more)
    assert ran.code == code
    assert said in ran.err


def test_a_shard_that_is_not_what_the_manifest_says(run: Command, out: str, tmp_path: Path) -> None:
    with (tmp_path / "out" / "out-000001.tar").open("ab") as file:
        file.write(bytes(512))
    ran = run(plant(tmp_path / "two", "d"), "-o", out, "--append")
    assert ran.code == 3
    assert "2560 bytes, but its manifest says 2048" in ran.err
    assert "out-000001.tar" in ran.err


def test_a_stranger_in_the_way(run: Command, out: str, tmp_path: Path) -> None:
    stranger = tmp_path / "out" / "out-000002.tar"
    stranger.write_bytes(b"mine")
    words = [plant(tmp_path / "two", "d"), "-o", out, "--append"]
    ran = run(*words)
    assert ran.code == 4
    assert "write a new one with `wds index`" in ran.err
    assert run(*words, "--resume").code == 4
    assert stranger.read_bytes() == b"mine"
    assert run(*words, "--force").code == 0
    assert [keys_of(path) for path in outputs(tmp_path / "out")] == [["a", "b"], ["c"], ["d"]]


def test_killed_at_every_step(
    run: Command, good: Command, out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shutil import copytree

    folder, more = tmp_path / "out", plant(tmp_path / "two", "defg")
    before = content(folder)
    whole = tmp_path / "whole"
    copytree(folder, whole)
    words = [more, "--append", "--max-count", 2, "-j", 1]
    good(*words, "-o", whole / "out-%06d.tar")
    wanted = content(whole)
    steps, was_killed = 0, True
    while was_killed:
        folder = tmp_path / f"killed-{steps}"
        copytree(tmp_path / "out", folder)
        with monkeypatch.context() as patch:
            interrupt_at(patch, steps)
            code = run(*words, "-o", folder / "out-%06d.tar").code
        assert code in (0, 130)
        was_killed = code == 130
        there = content(folder)
        told = there.pop("out-manifest.json")
        assert told in (before["out-manifest.json"], wanted["out-manifest.json"])
        # What the manifest names is there, and whole.
        for shard in json.loads(told)["shardlist"]:
            assert there[shard["url"]] == wanted[shard["url"]]
        # Without --resume what is there is in the way, until the set is complete.
        if was_killed and len(outputs(folder)) > 2:
            assert run(*words, "-o", folder / "out-%06d.tar").code in (3, 4)
        good(*words, "-o", folder / "out-%06d.tar", "--resume")
        assert content(folder) == wanted
        steps += 1
    assert steps > 6


@pytest.mark.exhaustive
def test_killed_behind_the_first_shard(out: str, good: Command, tmp_path: Path) -> None:
    folder, more = tmp_path / "out", plant(tmp_path / "two", "defg")
    before = content(folder)
    words = [str(more), "-o", out, "--append", "--max-count", "2", "-j", "1"]
    command = [sys.executable, "-m", "wdscli", "create", *words, "--post", "kill -9 $PPID"]
    assert subprocess.run(command, check=False).returncode == -9
    there = content(folder)
    assert {name: there[name] for name in before} == before
    assert len(outputs(folder)) == 3
    good(*words, "--resume")
    assert [keys_of(path) for path in outputs(folder)] == [["a", "b"], ["c"], ["d", "e"], ["f", "g"]]
    assert not leftovers(folder)
    assert_true_set(folder)


def test_resume_of_another_addition(good: Command, run: Command, out: str, tmp_path: Path) -> None:
    """The last addition is complete, and is not taken for this one."""
    good(plant(tmp_path / "two", "d"), "-o", out, "--append")
    good(plant(tmp_path / "three", "e"), "-o", out, "--append", "--resume")
    assert [keys_of(path) for path in outputs(tmp_path / "out")] == [["a", "b"], ["c"], ["d"], ["e"]]
    ran = good(tmp_path / "three", "-o", out, "--append", "--resume", "--json")
    assert ran.objects[-1]["kept"] == 1
    assert run(tmp_path / "two", "-o", out, "--append", "--resume").code == 3


def test_a_manifest_that_was_changed_meanwhile(run: Command, out: str, tmp_path: Path) -> None:
    """Another program that writes the manifest is not written over."""
    path = tmp_path / "out" / "out-manifest.json"
    ran = run(
        plant(tmp_path / "two", "d"),
        *("-o", out, "--append", "--post", f"sed -i s/3072/4096/ {path}"),
    )
    assert ran.code == 4
    assert "was changed by another program" in ran.err
    assert "4096" in path.read_text()


def test_on_a_store(good: Command, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    store = "memory://create-append"
    plant(tmp_path / "one", "abc")
    plant(tmp_path / "two", "de")
    for place in (store, tmp_path / "here"):
        good(tmp_path / "one", "-o", f"{place}/out-%06d.tar", "--force")
        good(tmp_path / "two", "-o", f"{place}/out-%06d.tar", "--append")
    from fsspec import filesystem

    memory = filesystem("memory")
    found = {name.removeprefix("/create-append/"): memory.cat(name) for name in memory.find("/create-append")}
    assert found == content(tmp_path / "here")
