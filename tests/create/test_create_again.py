"""create after a run that was ended, on an engine, and over sources that are not there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from dask_cluster import dask_cluster
from shard_cases import Ran, assert_true_set, content, keys_of, leftovers, outputs, samples_of, wds

Command = Callable[..., Ran]
COMMAND = ["create"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Twelve samples of two files."""
    folder = tmp_path / "tree"
    folder.mkdir()
    for number in range(12):
        (folder / f"n{number:02d}.txt").write_text(f"text {number}")
        (folder / f"n{number:02d}.bin").write_bytes(bytes([number]) * 600)
    return folder


def out(folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    return str(folder / "out-%06d.tar")


class TestResume:
    FAILS = "case {} in *-000001.tar) test -e %s;; esac"

    def test_it_goes_on_to_the_same_bytes(
        self, run: Command, good: Command, tree: Path, tmp_path: Path
    ) -> None:
        good(tree, "-o", out(tmp_path / "whole"), "--max-count", 4)
        post = ["--post", self.FAILS % (tmp_path / "go")]
        first = [tree, "-o", out(tmp_path / "again"), "--max-count", 4, "-j1", *post]
        assert run(*first).code == 5
        assert len(outputs(tmp_path / "again")) == 2
        assert run(*first).code == 4
        assert "continue with --resume" in run(*first).err
        (tmp_path / "go").touch()
        ran = good(*first, "--resume", "--json")
        assert ran.objects[-1]["kept"] == 1
        assert content(tmp_path / "again") == content(tmp_path / "whole")
        assert not leftovers(tmp_path / "again")
        assert good(*first, "--resume", "--json").objects[-1]["kept"] == 3

    def test_values_that_changed_are_not_kept(self, run: Command, good: Command, tmp_path: Path) -> None:
        table = tmp_path / "t.csv"
        table.write_text("id,c\na,1\nb,2\n")
        command = ["--from", table, "--key-column", "id", "--column", "cls=c", "--max-count", 1, "-j1"]
        command += ["-o", out(tmp_path / "made"), "--resume"]
        assert run(*command, "--post", self.FAILS % (tmp_path / "go")).code == 5
        table.write_text("id,c\na,8\nb,9\n")
        ran = run(*command)
        assert (ran.code, "--force" in ran.err) == (4, True)
        assert good(*command, "--force", "--json").objects[-1]["kept"] == 0
        (tmp_path / "fresh").mkdir()
        good(*command[:-3], "-o", out(tmp_path / "fresh"))
        assert content(tmp_path / "made") == content(tmp_path / "fresh")

    def test_after_a_kill(self, good: Command, tree: Path, tmp_path: Path) -> None:
        good(tree, "-o", out(tmp_path / "whole"), "--max-count", 2)
        command = ["create", str(tree), "-o", out(tmp_path / "killed"), "--max-count", "2"]
        with subprocess.Popen(
            [sys.executable, "-m", "wdscli", *command, "-j1", "--post", "sleep 0.2; true"],
            start_new_session=True,
        ) as process:
            while process.poll() is None and len(outputs(tmp_path / "killed")) < 2:
                time.sleep(0.02)
            os.killpg(process.pid, signal.SIGKILL)
        assert len(outputs(tmp_path / "killed")) < 6
        assert wds(*command, "--resume").code == 0
        assert content(tmp_path / "killed") == content(tmp_path / "whole")

    def test_a_file_of_the_same_size_that_was_written_since(
        self, run: Command, good: Command, tree: Path, tmp_path: Path
    ) -> None:
        """Make would make it again, and so does create: a size alone tells nothing."""
        first = [tree, "-o", out(tmp_path), "--max-count", 4, "-j1", "--post", self.FAILS % (tmp_path / "go")]
        assert run(*first).code == 5
        time.sleep(0.05)
        (tree / "n02.txt").write_text("TEXT 2")
        (tmp_path / "go").touch()
        assert good(*first, "--resume", "--json").objects[-1]["kept"] == 0
        assert dict(samples_of(outputs(tmp_path)[0]))["n02"][1] == ("txt", b"TEXT 2")
        time.sleep(0.05)
        (tree / "n11.txt").write_text("TEXT 11")
        assert good(*first, "--resume", "--json").objects[-1]["kept"] == 2
        assert dict(samples_of(outputs(tmp_path)[2]))["n11"][1] == ("txt", b"TEXT 11")
        assert_true_set(tmp_path)

    def test_other_files_are_another_plan(self, run: Command, tree: Path, tmp_path: Path) -> None:
        first = [tree, "-o", out(tmp_path), "--max-count", 4, "-j1", "--post", self.FAILS % (tmp_path / "go")]
        assert run(*first).code == 5
        (tree / "n02.txt").write_text("longer than it was")
        ran = run(*first, "--resume")
        assert ran.code == 4
        assert "was made by another run" in ran.err

    def test_of_nothing_is_a_run(self, good: Command, tree: Path, tmp_path: Path) -> None:
        assert good(tree, "-o", out(tmp_path), "--resume", "--json").objects[-1]["kept"] == 0
        assert_true_set(tmp_path)

    def test_a_stream_cannot_be_gone_on_with(self, run: Command, tree: Path) -> None:
        ran = run(tree, "-o", "-", "--resume")
        assert ran.code == 2
        assert "cannot be resumed" in ran.err


class TestAnEngine:
    @pytest.mark.exhaustive
    def test_the_same_bytes(self, good: Command, tree: Path, tmp_path: Path) -> None:
        pytest.importorskip("distributed")
        rows = [{"id": f"r{n}", "text": "x" * 400 + str(n)} for n in range(6)]
        table = tmp_path / "rows.jsonl"
        table.write_text("".join(json.dumps(row) + "\n" for row in rows))
        sources = [tree, "--from", table, "--key-column", "id", "--column", "txt=text", "--max-count", 5]
        good(*sources, "-o", out(tmp_path / "here"))
        with dask_cluster(tmp_path / "dask") as cluster:
            good(*sources, "-o", out(tmp_path / "there"), "--engine", cluster.url)
        assert content(tmp_path / "there") == content(tmp_path / "here")

    def test_a_stream_has_no_place(self, run: Command, tree: Path) -> None:
        assert run(tree, "-o", "-", "--engine", "dask://127.0.0.1:1").code == 2


class TestMissingSources:
    @pytest.fixture
    def table(self, tmp_path: Path) -> list[str]:
        """Three rows: one whole, one without its file, one whose source is a folder."""
        (tmp_path / "a.jpg").write_bytes(b"a")
        (tmp_path / "folder").mkdir()
        text = f"id,path,n\na,{tmp_path}/a.jpg,1\nb,{tmp_path}/b.jpg,2\nc,{tmp_path}/folder,3\n"
        (tmp_path / "rows.csv").write_text(text)
        return [
            "--from",
            str(tmp_path / "rows.csv"),
            "--key-column",
            "id",
            "--column",
            "jpg=@path",
            "--column",
            "cls=n",
        ]

    def test_the_first_is_an_error(self, run: Command, table: list[str], tmp_path: Path) -> None:
        ran = run(*table, "-o", out(tmp_path))
        assert ran.code == 4
        assert "rows.csv, row 2" in ran.err

    def test_skip_leaves_their_fields_out(self, good: Command, table: list[str], tmp_path: Path) -> None:
        report = tmp_path / "report.jsonl"
        ran = good(*table, "-o", out(tmp_path), "--on-error", "skip", "--report", report, "--json")
        found = {key: [field for field, _ in fields] for key, fields in samples_of(outputs(tmp_path)[0])}
        assert found == {"a": ["cls", "jpg"], "b": ["cls"], "c": ["cls"]}
        assert ran.objects[-1]["skipped"] == {"no-source": 2}
        lines = [json.loads(line) for line in report.read_text().splitlines()]
        assert [(one["key"], one["field"]) for one in lines] == [("b", "jpg"), ("c", "jpg")]
        assert lines[0]["source"].endswith("b.jpg")
        assert "no such file" in lines[0]["reason"]

    def test_incomplete_skip_leaves_their_samples_out(
        self, run: Command, good: Command, table: list[str], tmp_path: Path
    ) -> None:
        # A folder is there; that it is no file is another mistake.
        assert run(*table, "-o", out(tmp_path), "--missing", "skip").code == 4
        ran = good(*table, "-o", out(tmp_path), "--missing", "skip", "--on-error", "skip", "--json")
        assert keys_of(*outputs(tmp_path)) == ["a"]
        assert ran.objects[-1]["skipped"] == {"incomplete": 2, "no-source": 2}

    def test_and_keep_keeps_them(self, good: Command, table: list[str], tmp_path: Path) -> None:
        (tmp_path / "folder").rmdir()
        good(*table, "-o", out(tmp_path), "--missing", "keep")
        assert keys_of(*outputs(tmp_path)) == ["a", "b", "c"]

    def test_of_a_list(self, good: Command, tmp_path: Path) -> None:
        (tmp_path / "a.jpg").write_bytes(b"a")
        lines = [f"a.jpg\t{tmp_path}/a.jpg", "a.txt\ttext:one", "b.txt\ttext:two", f"b.jpg\t{tmp_path}/b.jpg"]
        (tmp_path / "list").write_text("\n".join(lines))
        good("--from", "list:" + str(tmp_path / "list"), "-o", out(tmp_path), "--missing", "skip")
        assert keys_of(*outputs(tmp_path)) == ["a"]

    def test_a_command_that_fails(self, run: Command, good: Command, tmp_path: Path) -> None:
        (tmp_path / "list").write_text("a.txt\tpipe:exit 3\nb.txt\ttext:two\n")
        assert run("--from", "list:" + str(tmp_path / "list"), "-o", out(tmp_path)).code == 4
        good("--from", "list:" + str(tmp_path / "list"), "-o", out(tmp_path), "--on-error", "skip")
        assert keys_of(*outputs(tmp_path)) == ["b"]

    def test_nothing_is_left(self, run: Command, tmp_path: Path) -> None:
        (tmp_path / "list").write_text("a.txt\tnowhere\n")
        ran = run("--from", "list:" + str(tmp_path / "list"), "-o", out(tmp_path), "--on-error", "skip")
        assert ran.code == 4
        assert "no samples found (1 no-source)" in ran.err
