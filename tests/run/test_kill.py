"""Runs that are killed at random moments: what is left is true, and ``--resume`` makes of it what an undisturbed run
makes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from shard_cases import content, leftovers, numbered, outputs, samples_of, wds, write_shards

from wdscli.cli.main import main

KILLS = {("gather", "1"): 16, ("spill", "1"): 14, ("gather", "2"): 8, ("spill", "2"): 8, ("plan", "1"): 10}
"""By strategy (or a stored plan) and jobs: 56 in all."""


class Undisturbed(NamedTuple):
    """What is shuffled, and every file of the result by its name."""

    command: list[str]
    files: dict[str, bytes]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    folder = tmp_path_factory.mktemp("kill")
    names = write_shards(folder / "in", [numbered(60, f"p{n}-", [9_000, 700]) for n in range(4)])
    command = ["shuffle", *names, "--shards", "40", "--seed", "3", "--fsync", "-q"]
    ran = wds(*command, "-j", 1, "-o", folder / "out" / "out-%06d.tar")
    assert ran.code == 0, ran.err
    files = content(folder / "out")
    assert len([name for name in files if name.endswith(".tar")]) == 40
    return Undisturbed(command, files)


def start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "wdscli", *command], stderr=subprocess.PIPE, start_new_session=True
    )


def wait_for_work(process: subprocess.Popen[bytes], folder: Path, shards: int = 0) -> None:
    """Until more shards than that have their names."""
    until = time.monotonic() + 30
    while process.poll() is None and len(list(folder.glob("out-*.tar"))) <= shards:
        assert time.monotonic() < until
        time.sleep(0.002)


def kill_once(process: subprocess.Popen[bytes], folder: Path, chance: random.Random) -> bool:
    """Kill it and its workers at some moment, now and then before anything is written. Says whether it was alive."""
    if chance.random() < 0.2:
        time.sleep(chance.uniform(0.02, 0.3))
    else:
        wait_for_work(process, folder, len(outputs(folder)))
        time.sleep(chance.uniform(0, 0.12))
    was_alive = process.poll() is None
    if was_alive:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return was_alive


def assert_nothing_untrue(wanted: Undisturbed, folder: Path) -> None:
    """Every shard under its name is whole, and so is the set of a manifest."""
    there = content(folder) if folder.exists() else {}
    for name, data in there.items():
        if name.endswith((".tar", ".json")):
            assert data == wanted.files[name], f"{name} is not whole"
        else:
            assert name in wanted.files or name.endswith((".tmp", ".done", ".unfinished")), name
    if "out-manifest.json" in there:
        listed = [shard["url"] for shard in json.loads(there["out-manifest.json"])["shardlist"]]
        assert set(listed) <= set(there)


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize(("strategy", "jobs"), KILLS)
def test_killed_at_random_moments(undisturbed: Undisturbed, tmp_path: Path, strategy: str, jobs: str) -> None:
    chance = random.Random(f"{strategy} {jobs}")
    (tmp_path / "t").mkdir()
    kills = rounds = 0
    while kills < KILLS[strategy, jobs]:
        rounds += 1
        assert rounds < 99, "most runs end before they are killed"
        folder = tmp_path / f"round-{rounds}"
        command = [*undisturbed.command, "-o", f"{folder}/out-%06d.tar"]
        if strategy == "plan":
            assert main([*command, "-j", jobs, "--plan", f"{folder}.plan"]) == 0
            command = ["run", f"{folder}.plan", "-q"]
        else:
            command += ["--strategy", strategy, "--tmp", f"{tmp_path}/t", "--resume"]
        # A run that goes on may be killed too.
        for _ in range(chance.choice([1, 1, 2, 3])):
            kills += kill_once(start([*command, "-j", jobs]), folder, chance)
            assert_nothing_untrue(undisturbed, folder)
        assert main([*command, "-j", "1"]) == 0
        assert content(folder) == undisturbed.files


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted(undisturbed: Undisturbed, tmp_path: Path, jobs: str, number: int, code: int) -> None:
    """Nothing half-written stays; what is whole does, and is gone on with."""
    folder = tmp_path / "out"
    command = [*undisturbed.command, "-o", f"{folder}/out-%06d.tar"]
    process = start([*command, "-j", jobs])
    wait_for_work(process, folder)
    os.killpg(process.pid, number)
    _, error = process.communicate(timeout=30)
    assert process.returncode == code, error
    assert leftovers(folder) == []
    assert_nothing_untrue(undisturbed, folder)
    for path in outputs(folder):
        samples_of(path)
    assert main([*command, "-j", "1", "--resume"]) == 0
    assert content(folder) == undisturbed.files


@pytest.mark.parametrize("command", ["split", "map", "create"])
def test_ctrl_c_says_what_is_finished(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """issue 35, 35: and a run that cannot continue does not promise it."""
    from wdscli.run import execute

    (tmp_path / "files").mkdir()
    for number in range(6):
        (tmp_path / "files" / f"{number}.txt").write_text("x" * number)
    assert main(["create", f"{tmp_path}/files", "-o", f"{tmp_path}/in.tar", "-q"]) == 0
    words = {"create": [f"{tmp_path}/files"], "map": [f"{tmp_path}/in.tar", "--filter", "txt", "cat"]}
    given = [command, *words.get(command, [f"{tmp_path}/in.tar"]), "--max-count", "2", "-j", "1"]
    commits = []
    original = execute.leave_receipt

    def interrupted(*args: Any, **kw: Any) -> Any:
        commits.append(1)
        if len(commits) == 3:
            raise KeyboardInterrupt
        return original(*args, **kw)

    monkeypatch.setattr(execute, "leave_receipt", interrupted)
    assert main([*given, "-o", f"{tmp_path}/out-%d.tar"]) == 130
    assert "interrupted: 2 of 3 shards are finished; continue with --resume" in capfd.readouterr().err
    commits[:] = [1, 1]
    assert main([*given, "-o", f"{tmp_path}/new-%d.tar"]) == 130
    assert capfd.readouterr().err.splitlines()[-1] == "interrupted"
    assert main([*given, "-o", f"{tmp_path}/out-%d.tar", "--resume"]) == 0
