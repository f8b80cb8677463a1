"""``--plan`` and ``wds run``: the same bytes from separate processes as from one command."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from shard_cases import Ran, content, numbered, outputs, sample, wds, write_shards
from storage_servers import S3, s3_server
from stored_plans import header_of, rows_of, write_header
from tiers import EXHAUSTIVE

import wdscli.loader as wds_loader
from wdscli.cli.main import main
from wdscli.errors import DataError, UsageError
from wdscli.plan.planfile import load_plan
from wdscli.run.digests import mark_of
from wdscli.run.execute import parse_tasks, run_plan, run_tasks_of
from wdscli.run.existing import done_tasks, run_of

Command = Callable[..., Ran]
COMMAND: list[str] = []
GUIDE = Path(__file__).resolve().parents[2] / "man" / "guides" / "slurm.md"


@pytest.fixture
def plan(good: Command, shards: list[str], tmp_path: Path) -> Path:
    """A plan of six tasks, whose output goes below ``out``."""
    out = f"{tmp_path}/out/out-%d.tar"
    good("shuffle", *shards, "-o", out, "--max-count", "4", "--plan", tmp_path / "one.plan")
    return tmp_path / "one.plan"


@pytest.fixture
def undisturbed(good: Command, shards: list[str], tmp_path: Path) -> dict[str, bytes]:
    """What the same command writes itself."""
    good("shuffle", *shards, "-o", f"{tmp_path}/own/out-%d.tar", "--max-count", "4")
    return content(tmp_path / "own")


class TestTheSameBytes:
    @pytest.mark.exhaustive
    def test_of_an_array_of_processes(self, plan: Path, undisturbed: Any, tmp_path: Path) -> None:
        """In separate processes, in a random order, two at a time, one of them twice."""
        tasks = [*range(6), 2]
        random.Random(4).shuffle(tasks)
        command = [sys.executable, "-m", "wdscli", "run", str(plan), "-q", "--task"]
        for pair in zip(tasks[::2], [*tasks[1::2], 5]):
            started = [
                subprocess.Popen([*command, str(task)], cwd="/", stderr=subprocess.PIPE) for task in pair
            ]
            for process in started:
                _, error = process.communicate(timeout=60)
                assert process.returncode == 0, error
        assert not (tmp_path / "out" / "out-manifest.json").exists()
        ran = wds("run", plan, "--finish", cwd="/")
        assert ran.code == 0, ran.err
        assert content(tmp_path / "out") == undisturbed

    @pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=EXHAUSTIVE)])
    def test_of_all_at_once(
        self, good: Command, plan: Path, undisturbed: Any, tmp_path: Path, jobs: int
    ) -> None:
        assert "shuffled 21 samples into 6 shards" in good("run", plan, "-j", jobs).err
        assert content(tmp_path / "out") == undisturbed

    @pytest.mark.exhaustive
    def test_of_what_was_missing(self, good: Command, plan: Path, undisturbed: Any, tmp_path: Path) -> None:
        good("run", plan, "--task", "1,4")
        before = (tmp_path / "out" / "out-4.tar").stat().st_ino
        assert "kept 2 shards" in good("run", plan).err
        assert content(tmp_path / "out") == undisturbed
        assert (tmp_path / "out" / "out-4.tar").stat().st_ino == before

    @pytest.mark.exhaustive
    @pytest.mark.parametrize(
        ("command", "more"),
        [
            ("shuffle", ["--seed", "5", "--shards", "3", "--drop", "jpg", "--rename", "label=cls"]),
            ("shuffle", ["--rekey", "{shard}/{index:04d}", "--max-size", "9000", "--mtime", "77"]),
            ("shuffle", ["--keys", "a*", "--limit", "7", "--no-index", "--hash", "sha256"]),
            ("sort", ["--by", "cls:n", "--reverse", "--max-count", "5"]),
            ("split", ["--max-count", "4"]),
            ("merge", ["--max-count", "10"]),
            ("merge", ["--weights", "1,3,2", "--max-count", "7"]),
            ("merge", ["--dedup", "cls", "--max-count", "7"]),
        ],
        ids=lambda value: value if isinstance(value, str) else " ".join(value),
    )
    def test_of_every_command(
        self, good: Command, shards: list[str], tmp_path: Path, command: str, more: list[str]
    ) -> None:
        good(command, *shards, "-o", f"{tmp_path}/own/out-%d.tar", *more)
        good(command, *shards, "-o", f"{tmp_path}/out/out-%d.tar", *more, "--plan", tmp_path / "plan")
        for task in reversed(range(len(outputs(tmp_path / "own")))):
            good("run", tmp_path / "plan", "--task", task)
        good("run", tmp_path / "plan", "--finish")
        assert content(tmp_path / "out") == content(tmp_path / "own")

    def test_of_parts(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        how = ["--ratio", "train=0.6,val=0.4", "--max-count", "4"]
        good("split", *shards, "-o", f"{tmp_path}/own/{{part}}-%d.tar", *how)
        good("split", *shards, "-o", f"{tmp_path}/out/{{part}}-%d.tar", *how, "--plan", tmp_path / "plan")
        good("run", tmp_path / "plan", "--task", "0/2")
        good("run", tmp_path / "plan", "--task", "1/2")
        good("run", tmp_path / "plan", "--finish")
        assert content(tmp_path / "out") == content(tmp_path / "own")

    def test_of_a_join(self, good: Command, tmp_path: Path) -> None:
        left = write_shards(tmp_path / "a", [numbered(9)])
        captions = [[(f"n{number:03d}.txt", b"%d" % number)] for number in (7, 1, 3, 20)]
        right = write_shards(tmp_path / "b", [captions])
        how = [*left, *right, "--join", "left", "--max-count", "4"]
        good("merge", *how, "-o", f"{tmp_path}/own/out-%d.tar")
        good("merge", *how, "-o", f"{tmp_path}/out/out-%d.tar", "--plan", tmp_path / "plan")
        for task in (2, 0, 1):
            good("run", tmp_path / "plan", "--task", task)
        good("run", tmp_path / "plan", "--finish")
        assert content(tmp_path / "out") == content(tmp_path / "own")

    def test_of_repeated_keys(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        how = [*shards, shards[2], "--on-duplicate", "rekey", "--max-count", "6"]
        good("shuffle", *how, "-o", f"{tmp_path}/own/out-%d.tar")
        good("shuffle", *how, "-o", f"{tmp_path}/out/out-%d.tar", "--plan", tmp_path / "plan")
        good("run", tmp_path / "plan")
        assert content(tmp_path / "out") == content(tmp_path / "own")

    def test_of_nothing(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        how = [*shards, "--keys", "none", "--allow-empty"]
        good("shuffle", *how, "-o", f"{tmp_path}/own/out-%d.tar")
        good("shuffle", *how, "-o", f"{tmp_path}/out/out-%d.tar", "--plan", tmp_path / "plan")
        good("run", tmp_path / "plan", "--finish")
        assert content(tmp_path / "out") == content(tmp_path / "own")

    def test_relative_names_mean_the_folder_of_the_planner(
        self,
        good: Command,
        shards: list[str],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        undisturbed: Any,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        good("shuffle", "in", "-o", "out/out-%d.tar", "--max-count", 4, "--plan", "some.plan")
        monkeypatch.chdir("/")
        good("run", tmp_path / "some.plan")
        assert content(tmp_path / "out") == undisturbed
        assert str(tmp_path).encode() not in b"".join(undisturbed.values())


class TestPlan:
    def test_it_writes_nothing_but_the_plan(self, plan: Path, tmp_path: Path) -> None:
        assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "one.plan", "one.plan.rows"]

    def test_it_says_how_to_go_on(self, run: Command, shards: list[str], tmp_path: Path) -> None:
        how = ["shuffle", *shards, "-o", f"{tmp_path}/out-%d.tar", "--max-count", "4", "--plan"]
        told = run(*how, tmp_path / "a.plan").err
        assert "planned 21 samples in 6 shards" in told
        assert "--task K, for K from 0 to 5" in told
        assert f"wds run {tmp_path}/a.plan --finish" in told
        assert run(*how, tmp_path / "b.plan", "--json").objects == [
            {"plan": f"{tmp_path}/b.plan", "tasks": 6, "samples": 21, "bytes": 81408}
        ]
        assert run(*how, tmp_path / "c.plan", "-q").err == ""
        run(*how, tmp_path / "d.plan", "-n")
        assert not (tmp_path / "d.plan").exists()

    def test_the_same_call_gives_the_same_plan(
        self, good: Command, shards: list[str], plan: Path, tmp_path: Path
    ) -> None:
        out = f"{tmp_path}/out/out-%d.tar"
        before = plan.read_bytes(), rows_of(plan).read_bytes()
        plan.unlink()
        rows_of(plan).unlink()
        good("shuffle", *shards, "-o", out, "--max-count", "4", "--plan", plan, "-j", 2)
        assert (plan.read_bytes(), rows_of(plan).read_bytes()) == before

    def test_one_that_is_there_is_not_replaced(
        self, run: Command, shards: list[str], plan: Path, tmp_path: Path
    ) -> None:
        before = plan.read_bytes()
        how = ["shuffle", *shards, "-o", f"{tmp_path}/out-%d.tar", "--plan", plan]
        assert run(*how).code == 4
        assert plan.read_bytes() == before
        plan.unlink()
        ran = run(*how)
        assert (ran.code, f"{rows_of(plan)}: it exists already" in ran.err, plan.exists()) == (4, True, False)
        assert run(*how, "--force").code == 0
        assert plan.read_bytes() != before

    @pytest.mark.parametrize(
        ("more", "said"),
        [
            (["-o", "-"], "is a stream"),
            (["-o", "pipe:cat > /dev/null"], "is a stream"),
            (["-o", "x-%d.tar", "--strategy", "spill"], "share no scratch space"),
            (["-o", "x-%d.tar", "--resume"], "--resume"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, list) else "",
    )
    def test_what_cannot_be_planned(
        self, run: Command, shards: list[str], tmp_path: Path, more: list[str], said: str
    ) -> None:
        ran = run("shuffle", *shards, *more, "--plan", tmp_path / "p")
        assert (ran.code, ran.out) == (2, b"")
        assert said in ran.err
        assert not (tmp_path / "p").exists()

    def test_a_plan_is_no_stream(self, run: Command, shards: list[str], tmp_path: Path) -> None:
        assert run("shuffle", *shards, "-o", f"{tmp_path}/x-%d.tar", "--plan", "-").code == 2

    @pytest.mark.parametrize("kind", ["pipe", "gz"])
    def test_inputs_that_can_be_read_only_once(
        self, run: Command, shards: list[str], tmp_path: Path, kind: str
    ) -> None:
        subprocess.run(["gzip", "-k", shards[0]], check=True)
        name = f"pipe:cat {shards[0]}" if kind == "pipe" else f"{shards[0]}.gz"
        ran = run("shuffle", name, "-o", f"{tmp_path}/x-%d.tar", "--plan", tmp_path / "p")
        assert ran.code == 2
        assert "can be read only once" in ran.err
        assert "hint: store it first" in ran.err

    def test_a_table_is_made_a_set_first(self, run: Command, shards: list[str], tmp_path: Path) -> None:
        (tmp_path / "t.csv").write_text("id,caption\na001,x\n")
        ran = run("merge", shards[0], "--table", tmp_path / "t.csv", "--key-column", "id", "--column", "txt=caption",
                  "-o", f"{tmp_path}/x-%d.tar", "--plan", tmp_path / "p")  # fmt: skip
        assert ran.code == 2
        assert "create --from" in ran.err

    def test_an_output_that_is_there(self, run: Command, shards: list[str], tmp_path: Path) -> None:
        (tmp_path / "x-3.tar").write_bytes(b"")
        assert run("shuffle", *shards, "-o", f"{tmp_path}/x-%d.tar", "--plan", tmp_path / "p").code == 4


class TestTasks:
    def test_one_task_makes_one_shard(
        self, good: Command, plan: Path, undisturbed: Any, tmp_path: Path
    ) -> None:
        told = good("run", plan, "--task", 3)
        assert [path.name for path in outputs(tmp_path / "out")] == ["out-3.tar"]
        assert (tmp_path / "out" / "out-3.tar").read_bytes() == undisturbed["out-3.tar"]
        assert "made 1 shard: 4 samples" in told.err

    def test_it_reads_its_slice_only(self, good: Command, plan: Path, run: Command, tmp_path: Path) -> None:
        """Rows of other tasks may be lost, and this one does not notice."""
        data = bytearray(rows_of(plan).read_bytes())
        start, length, _ = section_of(plan, 1)
        data[start : start + length] = bytes(length)
        rows_of(plan).write_bytes(data)
        good("run", plan, "--task", 0)
        ran = run("run", plan, "--task", 1)
        assert ran.code == 3
        assert "the rows of task 1 were changed" in ran.err
        assert len(outputs(tmp_path / "out")) == 1

    def test_a_task_that_runs_twice(self, good: Command, plan: Path, tmp_path: Path) -> None:
        good("run", plan, "--task", 3)
        before = content(tmp_path / "out")
        assert "made 0 shards, 1 already done: 4 samples" in good("run", plan, "--task", 3).err
        assert content(tmp_path / "out") == before
        assert good("run", plan, "--task", "3,4", "--json", "-q").objects == [
            {"tasks": [3, 4], "made": 1, "kept": 1, "samples": 8, "bytes": 30720}
        ]

    def test_a_task_that_runs_after_the_end(self, good: Command, plan: Path, tmp_path: Path) -> None:
        good("run", plan)
        before = content(tmp_path / "out")
        for task in ("3", "0-5", "9/10"):
            good("run", plan, "--task", task)
        good("run", plan, "--finish")
        good("run", plan)
        assert content(tmp_path / "out") == before

    def test_the_file_of_somebody_else_stays(self, run: Command, plan: Path, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        path = tmp_path / "out" / "out-3.tar"
        path.write_bytes(b"mine")
        ran = run("run", plan, "--task", 3)
        assert ran.code == 4
        assert "no receipt shows that this shuffle made it" in ran.err
        assert path.read_bytes() == b"mine"

    def test_two_attempts_at_once(self, plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The other one comes first while this one is at work."""
        from wdscli.copy import maker as gathering

        original = gathering.gather
        calls = []

        def slow(task: Any) -> Any:
            calls.append(task.address)
            if len(calls) == 1:
                assert wds("run", plan, "--task", 2).code == 0
            return original(task)

        monkeypatch.setattr(gathering, "gather", slow)
        new, kept = run_tasks_of(load_plan(str(plan)), [2])
        assert ([shard.samples for shard in new], kept) == ([4], [])
        assert len(outputs(tmp_path / "out")) == 1

    def test_an_output_of_old_is_replaced_with_force(
        self, good: Command, shards: list[str], tmp_path: Path, undisturbed: Any
    ) -> None:
        how = ["shuffle", *shards, "-o", f"{tmp_path}/out/out-%d.tar"]
        good(*how, "--seed", 9, "--max-count", 2)
        good(*how, "--max-count", 4, "--force", "--plan", tmp_path / "p")
        assert (tmp_path / "out" / "out-manifest.json").exists()
        good("run", tmp_path / "p", "--task", "0-2")
        # From the first task on, no manifest vouches for a mixture.
        assert not (tmp_path / "out" / "out-manifest.json").exists()
        good("run", tmp_path / "p", "--task", "3-5")
        good("run", tmp_path / "p", "--finish")
        assert content(tmp_path / "out") == undisturbed

    def test_post_runs_for_each_task(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        log = tmp_path / "log"
        good("shuffle", *shards, "-o", f"{tmp_path}/out/out-%d.tar", "--max-count", 4,
             "--post", f"echo {{}} >> {log}", "--plan", tmp_path / "p")  # fmt: skip
        assert not log.exists()
        good("run", tmp_path / "p", "--task", 1)
        good("run", tmp_path / "p", "--task", 1)
        assert log.read_text().split() == [f"{tmp_path}/out/out-1.tar"]

    @pytest.mark.parametrize("how", ["bytes", "touch", "gone", "cut"])
    def test_inputs_that_were_changed(
        self, run: Command, plan: Path, shards: list[str], tmp_path: Path, how: str
    ) -> None:
        path = Path(shards[0])
        data = path.read_bytes()
        if how == "bytes":
            path.write_bytes(data[:512] + b"!" + data[513:])
        elif how == "cut":
            path.write_bytes(data[:-1024])
        elif how == "gone":
            path.unlink()
        else:
            os.utime(path, (1, 1))
        ran = run("run", plan)
        assert ran.code == (4 if how == "gone" else 3)
        assert "in-0.tar" in ran.err
        if how != "gone":
            assert "was changed after the plan was made" in ran.err
        assert outputs(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("text", "tasks"),
    [("0", [0]), ("7", [7]), ("0-3", [0, 1, 2, 3]), ("5,1,1-2", [1, 2, 5]), ("0/3", [0, 3, 6]),
     ("2/3", [2, 5]), ("0/1", list(range(8))), ("8/9", []), (" 1 , 2 ", [1, 2])],
)  # fmt: skip
def test_names_of_tasks(text: str, tasks: list[int]) -> None:
    assert parse_tasks(text, 8) == tasks


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "8", "0-8", "3-1", "3/3", "0/0", "1.5", "1,,2", "slurm", "²"]
)
def test_names_of_no_tasks(text: str) -> None:
    with pytest.raises(UsageError):
        parse_tasks(text, 8)


class TestWhere:
    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str | None]]:
        """What executors are asked for."""
        from wdscli.copy import maker as running

        asked = []
        original = running.make_executor

        def make(jobs: int, engine: str | None = None) -> Any:
            asked.append((jobs, engine))
            return original(1)

        monkeypatch.setattr(running, "make_executor", make)
        return asked

    def test_jobs(self, good: Command, plan: Path, asked: list[Any]) -> None:
        good("run", plan, "--task", "0-3", "-j", 3)
        good("run", plan, "-j", 2)
        assert asked == [(3, None), (2, None)]

    def test_memory(self, good: Command, plan: Path, asked: list[Any]) -> None:
        good("run", plan, "-j", 3, "--memory", "1MB")
        assert asked == [(1, None)]

    def test_engine(self, good: Command, plan: Path, asked: list[Any]) -> None:
        good("run", plan, "--engine", "some://where")
        assert asked[0][1] == "some://where"


class TestFinish:
    def test_temporary_files_of_killed_attempts_go(
        self, good: Command, plan: Path, tmp_path: Path, undisturbed: Any
    ) -> None:
        good("run", plan, "--task", "0-5")
        (tmp_path / "out" / ".out-3.tar.0123456789ab.tmp").write_bytes(b"?")
        good("run", plan, "--finish")
        assert content(tmp_path / "out") == undisturbed

    def test_it_names_what_is_not_done(self, good: Command, run: Command, plan: Path, tmp_path: Path) -> None:
        good("run", plan, "--task", "1,3")
        ran = run("run", plan, "--finish")
        assert ran.code == 5
        assert "4 of 6 tasks are not done: 0,2,4-5" in ran.err
        assert f"hint: wds run {plan} --task 0,2,4-5" in ran.err
        assert not (tmp_path / "out" / "out-manifest.json").exists()

    def test_a_shard_that_went(self, good: Command, run: Command, plan: Path, tmp_path: Path) -> None:
        good("run", plan, "--task", "0-5")
        (tmp_path / "out" / "out-2.tar").unlink()
        ran = run("run", plan, "--finish")
        assert ran.code == 5
        assert "1 of 6 tasks are not done: 2" in ran.err

    def test_a_shard_that_was_cut(self, good: Command, run: Command, plan: Path, tmp_path: Path) -> None:
        good("run", plan, "--task", "0-5")
        os.truncate(tmp_path / "out" / "out-2.tar", 512)
        assert run("run", plan, "--finish").code == 4

    def test_the_receipts_of_another_plan(
        self, good: Command, run: Command, plan: Path, shards: list[str], tmp_path: Path
    ) -> None:
        out = f"{tmp_path}/out/out-%d.tar"
        good("shuffle", *shards, "-o", out, "--seed", 8, "--max-count", "4", "--plan", tmp_path / "two.plan")
        good("run", tmp_path / "two.plan", "--task", 3)
        for command in (["--finish"], ["--task", 3], []):
            ran = run("run", plan, *command)
            assert ran.code == 4
            assert (
                "out-3.tar was made by another run: it was started with different options: --seed" in ran.err
            )

    def test_it_tells_what_was_done(self, good: Command, run: Command, plan: Path, shards: list[str]) -> None:
        good("run", plan, "--task", "0/1")
        (told,) = good("run", plan, "--finish", "--json").objects
        assert (told["operation"], told["samples_in"], told["samples"], told["shards"]) == (
            "shuffle",
            21,
            21,
            6,
        )

    def test_what_was_left_out_is_told_from_the_plan(
        self, good: Command, shards: list[str], tmp_path: Path
    ) -> None:
        good("shuffle", *shards, "-o", f"{tmp_path}/out/out-%d.tar", "--keys", "a*", "--plan", tmp_path / "p")
        assert "left out 9 samples: keys 9" in good("run", tmp_path / "p").err


class TestList:
    def test_states(self, good: Command, plan: Path, tmp_path: Path) -> None:
        good("run", plan, "--task", "1,5")
        told = good("run", plan, "-n")
        rows = [line.split("\t") for line in told.out.decode().splitlines()]
        assert [row[4] for row in rows] == ["missing", "done", "missing", "missing", "missing", "done"]
        assert rows[5][:4] == ["5", f"{tmp_path}/out/out-5.tar", "1", "4608"]
        assert "2 of 6 tasks are done" in told.err
        assert good("run", plan, "--dry-run", "--json").objects[1] == {
            "task": 1, "shard": f"{tmp_path}/out/out-1.tar", "samples": 4, "bytes": 15360, "state": "done",
        }  # fmt: skip
        good("run", plan)
        assert done_tasks(run_of(load_plan(str(plan)))) == {*range(6)}

    def test_it_changes_nothing(self, good: Command, plan: Path, tmp_path: Path) -> None:
        good("run", plan, "-n")
        assert not (tmp_path / "out").exists()

    def test_options_that_exclude_each_other(self, run: Command, plan: Path) -> None:
        for more in (["--task", 1, "--finish"], ["-n", "--finish"], ["-n", "--task", "1"]):
            assert run("run", plan, *more).code == 2


def section_of(plan: Path, task: int) -> list[Any]:
    """The place of the rows of a task."""
    return list(header_of(plan)["run"]["shards"][task][2][0])


def walked(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of everything in a document."""
    for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*place, name)
        if isinstance(inner, (dict, list)):
            yield from walked(inner, (*place, name))


def put(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    """The same document with another value in one place; ``"gone"`` takes it out."""
    if not place:
        return value
    copy = document.copy()
    if value == "gone" and len(place) == 1:
        del copy[place[0]]
    else:
        copy[place[0]] = put(document[place[0]], place[1:], value) if len(place) > 1 else value
    return copy


def fits_as_well(place: tuple[Any, ...], other: Any) -> bool:
    """Whether a plan may say this too, as far as its types tell."""
    name = ".".join(map(str, place)).removeprefix("run.")
    may_be_none = (
        "wdscli.made.seed",
        "no_set",
        "rekey",
        "post",
        "wdscli.made.inputs.0",
        "joined",
        "wdscli.classes",
    )
    texts = (
        "name",
        "wdscli.made.operation",
        "output",
        "rekey",
        "post",
        "wdscli.made.inputs.0",
        "settings.checksum",
    )
    is_text = name in (*texts, "wdscli", "no_set", "wdscli.fingerprint") or place[:2] == ("run", "mark")
    return (
        place[:3] == ("wdscli", "made", "options")
        # Facts that are not read again, and totals, which are compared if they are there.
        or name in ("wdscli.version", "wdscli.index", "wdscli.fingerprint", "name", "seal", "__kind__")
        or (
            place[:1] == ("wdscli",)
            and len(place) == 2
            and other in ("gone", {}, None)
            and name != "wdscli.made"
        )
        or (
            place[:1] in (("shardlist",), ("bases",))
            and place[2:3] in (("headers",), ("fields",), ("members",))
        )
        or (place[:1] == ("bases",) and (other in ("gone", "x") or other == -1 or other is None))
        or (place[:1] == ("shardlist",) and other == "x")
        or (place[:2] in (("view", "ancestors"), ("view", "parents")))
        or (place[:2] == ("view", "shards") and other == "x" and place[-1] == "digest")
        or (other is True and place[:2] == ("run", "settings"))
        or (other is None and name in may_be_none)
        or (isinstance(other, str) and other != "gone" and is_text)
        or (other in (-1, 1 << 70) and name == "wdscli.made.seed")
        or (other == "gone" and name in ("wdscli.made.seed", "wdscli.made.inputs.0"))
        or (other in ({}, {"x": 1}) and name in ("counts.dropped", "counts.ignored"))
        or (
            other in ([], ["x"])
            and name in ("wdscli.made.inputs", "parts", "wdscli.classes", "settings.values")
        )
    )


class TestBroken:
    def test_cut_anywhere(self, plan: Path) -> None:
        data = plan.read_bytes()
        for length in [0, 7, 8, 100, len(data) // 2, len(data) - 33, len(data) - 2, len(data) - 1]:
            plan.write_bytes(data[:length])
            with pytest.raises(DataError, match="not a valid plan"):
                load_plan(str(plan))

    def test_any_byte_of_header_and_shards(self, plan: Path) -> None:
        data = plan.read_bytes()
        chance = random.Random(1)
        for at in [*range(8), *chance.sample(range(len(data)), 200)]:
            plan.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            with pytest.raises(DataError):
                load_plan(str(plan))

    @pytest.mark.exhaustive
    def test_a_sealed_header_of_other_types(self, plan: Path, run: Command, tmp_path: Path) -> None:
        """Anybody can compute a seal: it shows that nothing was changed since, not that wdscli wrote it."""
        header = header_of(plan)
        places = [*walked(header)]
        assert len(places) > 50
        for place in places:
            for other in (None, -1, 1 << 70, 1.5, True, "x", [], {}, ["x"], {"x": 1}, [[1]], "gone"):
                changed = put(header, place, other)
                if fits_as_well(place, other) or changed == header:
                    continue
                write_header(plan, changed)
                ran = run("run", plan, "-n")
                assert ran.code == 3, (place, other, ran.err)
                reasons = f"error: {plan} is not a valid plan: ", "error: the plan has no valid transform: "
                assert ran.err.startswith(reasons), (place, other, ran.err)
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize(
        ("name", "value"), [("only", 5), ("new_fields", "no"), ("timeout", "1"), ("speed", 1)]
    )
    def test_a_transform_of_other_types(
        self, good: Command, run: Command, shards: list[str], tmp_path: Path, name: str, value: Any
    ) -> None:
        plan = tmp_path / "map.json"
        good("map", *shards, "--cmd", "true", "-o", f"{tmp_path}/out/%d.tar", "--plan", plan)
        write_header(plan, put(header_of(plan), ("run", "transform", name), value))
        ran = run("run", plan, "-n")
        assert (ran.code, "the plan has no valid transform: " in ran.err) == (3, True), ran.err

    def test_any_byte_of_rows(self, plan: Path, tmp_path: Path) -> None:
        rows = rows_of(plan)
        data = rows.read_bytes()
        sections = [section_of(plan, task) for task in range(6)]
        places = [start + number for start, length, _ in sections for number in range(length)]
        for at in random.Random(1).sample(places, 12):
            rows.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            with pytest.raises(DataError, match="rows of task"):
                run_plan(load_plan(str(plan)))
            shutil.rmtree(tmp_path / "out", ignore_errors=True)

    def test_bytes_in_the_middle(self, plan: Path, run: Command) -> None:
        data = plan.read_bytes()
        for other in (data[:300] + data[301:], data[:300] + b"x" + data[300:], data + data[-32:]):
            plan.write_bytes(other)
            ran = run("run", plan)
            assert ran.code == 3
            assert "bytes are missing or were changed" in ran.err

    @pytest.mark.parametrize(
        ("place", "value", "message"),
        [
            (("shardlist", 3, "nsamples"), 3, "another number of rows than samples"),
            (("view", "shards", 3, "rows", 1), 24, "has another number of rows than samples"),
            (("run", "shards", 3, 2, 0, 1), 48, "its shards do not have its samples"),
            (("run", "shards", 3, 2), [], "its shards do not have its samples"),
            (("run", "counts", "samples"), 20, "its shards do not have its samples"),
            (("run", "shards", 3, 2, 0, 0), (1 << 63) - 1, "the rows of task 3 were changed"),
            (("run", "shards", 3, 2, 0, 2), "0000000000000001", "the rows of task 3 were changed"),
            (("run", "firsts"), [0], "not a valid plan"),
        ],
    )
    def test_a_sealed_header_with_other_numbers(
        self, plan: Path, place: tuple[Any, ...], value: Any, message: str
    ) -> None:
        write_header(plan, put(header_of(plan), place, value))
        with pytest.raises(DataError, match=message):
            run_plan(load_plan(str(plan)))

    def test_the_rows_of_another_plan(
        self, good: Command, plan: Path, shards: list[str], run: Command, tmp_path: Path
    ) -> None:
        how = ["shuffle", *shards, "-o", f"{tmp_path}/x/out-%d.tar", "--max-count", "4", "--seed", "9"]
        good(*how, "--plan", tmp_path / "two.plan")
        rows_of(plan).write_bytes(rows_of(tmp_path / "two.plan").read_bytes())
        ran = run("run", plan)
        assert (ran.code, "the rows of task 0 were changed" in ran.err) == (3, True)
        rows_of(plan).unlink()
        ran = run("run", plan)
        assert (ran.code, "hint: copy both files" in ran.err) == (4, True), ran.err

    @pytest.mark.parametrize("version", [3, 5])
    def test_another_version(self, plan: Path, run: Command, version: int) -> None:
        data = plan.read_bytes()
        other = data.replace(b"wdscli-plan-v4", b"wdscli-plan-v5") if version > 3 else b"WDSPLAN\x01" + data
        plan.write_bytes(other)
        ran = run("run", plan)
        assert ran.code == 3
        assert f"it has version {version}, but this wdscli reads version 4" in ran.err
        assert "hint: write it again with --plan FILE" in ran.err

    def test_no_plan_at_all(self, run: Command, shards: list[str]) -> None:
        ran = run("run", shards[0])
        assert ran.code == 3
        assert "is not a valid plan: it is not a plan file (wrong bytes at its start)" in ran.err
        assert run("run", "nowhere.plan").code == 4


def test_the_mark_of_a_stored_plan_is_that_of_the_plan(good: Command, plan: Path, shards: list[str]) -> None:
    """What it stands on: everything that decides the bytes, as it was when the plan was made."""
    from wdscli.plan.cut import Cuts
    from wdscli.plan.orders import ShuffledOrder
    from wdscli.plan.plan import make_plan
    from wdscli.plan.request import Request

    request = Request(shards, "elsewhere-%d.tar", cuts=Cuts(max_count=4))
    stored = mark_of(load_plan(str(plan)))
    made = mark_of(make_plan(request, ShuffledOrder()))
    assert (made.inputs, made.options, made.samples) == (stored.inputs, stored.options, stored.samples)
    assert made.shards != stored.shards


@pytest.mark.exhaustive
def test_the_array_in_the_guide(tmp_path: Path) -> None:
    """Run as it stands, with a scheduler of ours that starts the jobs of an array."""
    text = GUIDE.read_text().split("<!-- array -->\n```sh\n")[1].split("```")[0]
    write_shards(tmp_path / "set", [[sample(f"s{number}", number) for number in range(9)]])
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "wds").write_text(f'#!/bin/sh\nexec {sys.executable} -m wdscli "$@"\n')
    (tools / "sbatch").write_text(
        "#!/bin/sh\n"
        'for SLURM_ARRAY_TASK_ID in $(seq $(echo "$2" | tr -c "0-9\\n" " ")); do\n'
        '  export SLURM_ARRAY_TASK_ID; sh -ec "$4" || exit 1\ndone\n'
    )
    for tool in tools.iterdir():
        tool.chmod(0o755)
    path = f"{tools}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-ec", text], cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PATH": path}
    )
    assert done.returncode == 0, done.stderr
    assert re.findall("made 1 shard", done.stderr) == ["made 1 shard"] * 4
    ran = wds("shuffle", "set", "-o", "own/train-%06d.tar", "--shards", 4, cwd=tmp_path)
    assert ran.code == 0
    assert content(tmp_path / "mixed") == content(tmp_path / "own")


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    with s3_server() as server:
        yield server


class TestObjectStore:
    def objects(self, server: S3, bucket: str, prefix: str) -> dict[str, bytes]:
        names = [name for name in server.names(bucket) if name.startswith(prefix)]
        return {name.removeprefix(prefix): server.get(bucket, name) for name in names}

    @pytest.mark.exhaustive
    def test_plan_tasks_and_end(self, server: S3, shards: list[str], undisturbed: Any) -> None:
        """Inputs, plan, output and receipts are on S3; tasks run in processes of their own."""
        bucket = server.bucket("plans")
        for shard in shards:
            server.client.upload_file(shard, bucket, f"in/{os.path.basename(shard)}")
        plan = f"s3://{bucket}/one.json"
        ran = wds(
            "shuffle",
            f"s3://{bucket}/in/",
            "-o",
            f"s3://{bucket}/out/out-%d.tar",
            "--max-count",
            4,
            "--plan",
            plan,
        )
        assert ran.code == 0, ran.err
        listed = wds("ls", plan)
        assert (listed.code, len(listed.out.splitlines())) == (0, 21), listed.err
        command = [sys.executable, "-m", "wdscli", "run", plan, "-j", "1", "--task"]
        started = [subprocess.Popen([*command, share], stderr=subprocess.PIPE) for share in ("0-2", "3-5")]
        for process in started:
            _, error = process.communicate(timeout=60)
            assert process.returncode == 0, error
        ran = wds("run", plan, "--finish")
        assert ran.code == 0, ran.err
        assert self.objects(server, bucket, "out/") == undisturbed

    def test_an_object_that_was_replaced(self, server: S3, shards: list[str]) -> None:
        """Same size, other bytes: the ETag tells."""
        bucket = server.bucket("changed")
        server.client.upload_file(shards[1], bucket, "in-0.tar")
        plan = f"s3://{bucket}/one.plan"
        assert (
            main(["shuffle", f"s3://{bucket}/in-0.tar", "-o", f"s3://{bucket}/out.tar", "--plan", plan]) == 0
        )
        data = bytearray(Path(shards[1]).read_bytes())
        data[512] ^= 1
        server.client.put_object(Bucket=bucket, Key="in-0.tar", Body=bytes(data))
        ran = wds("run", plan)
        assert ran.code == 3
        assert "was changed after the plan was made" in ran.err

    @pytest.mark.exhaustive(sample=False)
    def test_resume(self, server: S3, shards: list[str], undisturbed: Any, monkeypatch: Any) -> None:
        from wdscli.copy import maker as gathering

        bucket = server.bucket("resume")
        command = ["shuffle", *shards, "-o", f"s3://{bucket}/out/out-%d.tar", "--max-count", "4", "-j", "1"]
        original = gathering.gather
        made: list[str] = []

        def some(task: Any) -> Any:
            if len(made) == 3:
                raise RuntimeError
            made.append(task.address)
            return original(task)

        with monkeypatch.context() as patch:
            patch.setattr(gathering, "gather", some)
            assert main(command) == 5
        assert len([name for name in server.names(bucket) if name.endswith(".done")]) == 3
        assert main(command) == 4
        assert main([*command, "--resume"]) == 0
        assert self.objects(server, bucket, "out/") == undisturbed


class TestAsSet:
    """The plan of a new order is the set that it makes."""

    def test_it_has_the_samples_of_the_run(
        self, good: Command, shards: list[str], tmp_path: Path, undisturbed: Any
    ) -> None:
        out = f"{tmp_path}/out/out-%d.tar"
        good("shuffle", *shards, "-o", out, "--max-count", "4", "--plan", tmp_path / "mixed.json")
        listed = good("ls", tmp_path / "mixed.json").out
        streamed = good("cat", tmp_path / "mixed.json", "-o", "-").out
        loaded = [*wds_loader.WebDataset(str(tmp_path / "mixed.json"))]
        assert good("verify", tmp_path / "mixed.json").code == 0
        assert not (tmp_path / "out").exists()
        good("run", tmp_path / "mixed.json")
        assert content(tmp_path / "out") == undisturbed
        assert good("ls", tmp_path / "out").out == listed
        assert good("cat", tmp_path / "out", "-o", "-").out == streamed
        assert [one["__key__"] for one in loaded] == [
            line.split("\t")[0] for line in listed.decode().splitlines()
        ]
        assert good("diff", tmp_path / "mixed.json", tmp_path / "out").code == 0

    @pytest.mark.parametrize("kind", ["inner", "left", "outer"])
    def test_of_a_join(self, good: Command, tmp_path: Path, kind: str) -> None:
        left = write_shards(tmp_path / "a", [numbered(9)])
        captions = [[(f"n{number:03d}.txt", b"%d" % number)] for number in (7, 1, 3, 20)]
        right = write_shards(tmp_path / "b", [captions])
        how = [
            "merge",
            *left,
            *right,
            "--join",
            kind,
            "--rename",
            "caption=txt",
            "-o",
            f"{tmp_path}/out/%d.tar",
        ]
        good(*how, "--max-count", "4", "--plan", tmp_path / "plan.json")
        streamed = good("cat", tmp_path / "plan.json", "-o", "-").out
        good("run", tmp_path / "plan.json")
        assert good("cat", tmp_path / "out", "-o", "-").out == streamed

    def test_shards_that_will_be_compressed(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        good("shuffle", *shards, "-o", f"{tmp_path}/out/%d.tar.gz", "--plan", tmp_path / "plan.json")
        streamed = good("cat", tmp_path / "plan.json", "-o", "-").out
        good("run", tmp_path / "plan.json")
        assert good("cat", tmp_path / "out", "-o", "-").out == streamed

    @pytest.mark.parametrize(
        ("command", "more", "reason"),
        [
            ("map", ["--cmd", "true"], "its run changes the samples"),
            ("split", ["--ratio", "train=0.6,val=0.4"], "its run makes several sets"),
            ("shuffle", ["--rekey", "{index:04d}"], "its run gives samples new keys"),
            ("shuffle", ["--on-error", "skip"], "its inputs may be damaged"),
        ],
    )
    def test_plans_that_are_no_sets(
        self,
        run: Command,
        good: Command,
        shards: list[str],
        tmp_path: Path,
        command: str,
        more: list[str],
        reason: str,
    ) -> None:
        part = "{part}-" if command == "split" else ""
        plan = tmp_path / "plan.json"
        good(command, shards[0], *more, "-o", f"{tmp_path}/out/{part}%d.tar", "--plan", plan)
        ran = run("ls", plan)
        assert (ran.code, reason in ran.err, f"hint: make its shards: wds run {plan}" in ran.err) == (
            4,
            True,
            True,
        )

    def test_plans_of_files_and_of_views_are_no_sets(
        self, run: Command, good: Command, shards: list[str], tmp_path: Path
    ) -> None:
        good("shuffle", *shards, "-o", tmp_path / "view.json")
        good(
            "split", tmp_path / "view.json", "-o", f"{tmp_path}/out/%d.tar", "--plan", tmp_path / "plan.json"
        )
        assert "its inputs are views" in run("ls", tmp_path / "plan.json").err
        (tmp_path / "files").mkdir()
        (tmp_path / "files" / "a.txt").write_text("a")
        good("create", tmp_path / "files", "-o", f"{tmp_path}/new/%d.tar", "--plan", tmp_path / "new.json")
        assert "its samples are files" in run("ls", tmp_path / "new.json").err
        assert good("run", tmp_path / "new.json").code == 0

    def test_an_input_that_was_changed(
        self, run: Command, good: Command, shards: list[str], tmp_path: Path
    ) -> None:
        good("shuffle", *shards, "-o", f"{tmp_path}/out/%d.tar", "--plan", tmp_path / "plan.json")
        os.utime(shards[1])
        for command in (["ls", tmp_path / "plan.json"], ["run", tmp_path / "plan.json"]):
            ran = run(*command)
            assert (ran.code, "was changed after" in ran.err) == (3, True), ran.err


def test_the_header_is_plain_json(plan: Path) -> None:
    header = header_of(plan)
    assert (header["__kind__"][:14], header["wdscli"]["made"]["operation"]) == ("wdscli-plan-v4", "shuffle")
    assert header["run"]["counts"]["samples"] == header["wdscli"]["samples"] == 21
