"""create --plan and ``wds run``: the same bytes from tasks as from one command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from shard_cases import Ran, content, wds

from wdscli.errors import DataError
from wdscli.plan.planfile import load_plan

Command = Callable[..., Ran]
COMMAND = ["create"]


@pytest.fixture
def sources(tmp_path: Path) -> list[object]:
    """A folder, a file given by name, and a list with a value, a command and a file."""
    for name in ("a.txt", "b.txt", "b.cls", "d/c.txt"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "z.txt").write_text("alone")
    (tmp_path / "list").write_text(
        f"l.txt\ttext:{'long ' * 80}\nm.txt\tpipe:echo hi\nn.txt\t{tmp_path}/in/a.txt\n"
    )
    return [tmp_path / "in", tmp_path / "z.txt", "--from", "list:" + str(tmp_path / "list"), "--max-count", 2]


def test_tasks_in_any_folder_and_order_write_what_one_command_writes(
    good: Command, sources: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good(*sources, "-o", tmp_path / "whole" / "o-%06d.tar", "--mtime", 7)
    monkeypatch.chdir(tmp_path)
    relative = ["in", "z.txt", *sources[2:]]
    ran = good(*relative, "-o", "tasks/o-%06d.tar", "--mtime", 7, "--plan", "c.plan", "--json")
    assert not (tmp_path / "tasks").exists()
    assert ran.objects == [{"plan": "c.plan", "tasks": 4, "samples": 7, "bytes": 12288}]
    assert ran_well("run", "c.plan", "-n").count(b"missing") == 4
    monkeypatch.chdir("/")
    plan = tmp_path / "c.plan"
    ran_well("run", plan, "--task", "3,1")
    ran_well("run", plan, "--task", "1")
    ran_well("run", plan, "--task", "0/2")
    ran_well("run", plan, "--finish")
    assert content(tmp_path / "tasks") == content(tmp_path / "whole")
    assert "kept 4 shards" in wds("run", plan).err


def ran_well(*words: object) -> bytes:
    ran = wds(*words)
    assert ran.code == 0, ran.err
    return ran.out


def test_all_at_once_with_labels(good: Command, sources: list[object], tmp_path: Path) -> None:
    good(tmp_path / "in" / "d", "-o", tmp_path / "whole" / "o.tar", "--label-from", "parent")
    good(
        tmp_path / "in" / "d",
        *("-o", tmp_path / "tasks" / "o.tar", "--label-from", "parent", "--plan", tmp_path / "p", "-q"),
    )
    ran_well("run", tmp_path / "p")
    assert content(tmp_path / "tasks") == content(tmp_path / "whole")


def test_a_file_that_changed_since(good: Command, sources: list[object], tmp_path: Path) -> None:
    good(*sources, "-o", tmp_path / "t" / "o-%06d.tar", "--plan", tmp_path / "p")
    (tmp_path / "in" / "a.txt").write_text("longer than planned")
    ran = wds("run", tmp_path / "p")
    assert ran.code == 3
    assert "grew while it was read" in ran.err


def test_a_plan_that_is_there(run: Command, sources: list[object], tmp_path: Path) -> None:
    (tmp_path / "p").write_text("mine")
    words = [*sources, "-o", tmp_path / "t" / "o-%06d.tar", "--plan", tmp_path / "p"]
    assert run(*words).code == 4
    assert (tmp_path / "p").read_text() == "mine"
    assert run(*words, "--force").code == 0


def test_what_a_plan_must_not_hold(run: Command, sources: list[object], tmp_path: Path) -> None:
    memory = pytest.importorskip("fsspec").filesystem("memory")
    memory.pipe("/user:secret@host/x", b"x")
    (tmp_path / "list").write_text("a.txt\tmemory://user:secret@host/x\n")
    ran = run("--from", "list:" + str(tmp_path / "list"), "-o", tmp_path / "o.tar", "--plan", tmp_path / "p")
    assert ran.code == 2
    assert "the plan would hold a password" in ran.err
    assert "secret" not in ran.err
    assert not (tmp_path / "p").exists()
    assert run(tmp_path / "in", "-o", "-", "--plan", tmp_path / "p").code == 2


def test_one_that_was_damaged(good: Command, sources: list[object], tmp_path: Path) -> None:
    good(*sources, "-o", tmp_path / "t" / "o-%06d.tar", "--plan", tmp_path / "p")
    data = bytearray((tmp_path / "p.rows").read_bytes())
    data[20] ^= 1
    (tmp_path / "p.rows").write_bytes(data)
    ran = wds("run", tmp_path / "p", "--task", "0")
    assert ran.code == 3
    assert "the parcel of task 0 was changed" in ran.err


def test_one_that_was_fetched_names_no_files(good: Command, sources: list[object], tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    address = "memory://plans/create.plan"
    good(*sources, "-o", "memory://plans/o-%06d.tar", "--plan", address, "--force")
    ran = wds("run", address)
    assert ran.code == 4
    assert "--trust-addresses" in ran.err
    ran_well("run", address, "--trust-addresses")
    with pytest.raises(DataError):
        load_plan(str(tmp_path / "list"))
