"""``--post 'CMD {}'``: a command for each shard that is done."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from shard_cases import Ran, content, no_new_files, numbered, wds, write_shards
from tiers import EXHAUSTIVE

from wdscli.errors import UsageError
from wdscli.plan.strategy import check_post
from wdscli.run.receipts import post_command


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    write_shards(tmp_path / "in", [numbered(6, "a"), numbered(5, "b")])
    return tmp_path


def shuffle(folder: Path, *args: object, out: str = "out/o-%06d.tar") -> Ran:
    return wds("shuffle", "in", "-o", out, "--max-count", 4, *args, cwd=folder)


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=EXHAUSTIVE)])
class TestWhatIsRun:
    @pytest.mark.exhaustive(sample=False)
    def test_once_for_each_shard_that_has_its_name_and_its_index(self, inputs: Path, jobs: int) -> None:
        look = "test -f {} && test -f out/.wds/$(basename {}).wdx && ! test -e out/o-manifest.json && echo {} >> did"
        done = shuffle(inputs, "--post", look, "-j", jobs)
        assert done.code == 0, done.err
        did = sorted((inputs / "did").read_text().split())
        assert did == [f"out/o-{number:06d}.tar" for number in range(3)]
        assert (inputs / "out" / "o-manifest.json").exists()

    def test_without_braces_the_shard_comes_last(self, inputs: Path, jobs: int) -> None:
        done = shuffle(inputs, "--post", "echo >> did", "-j", jobs)
        assert done.code == 0, done.err
        assert sorted((inputs / "did").read_text().split()) == [f"out/o-{n:06d}.tar" for n in range(3)]

    def test_what_it_prints_is_no_data(self, inputs: Path, jobs: int) -> None:
        done = shuffle(inputs, "--post", "echo to-stdout; echo to-stderr >&2; cat", "--json", "-j", jobs)
        assert done.code == 0, done.err
        assert b"to-std" not in done.out
        assert len(done.objects) == 1
        assert done.err.count("to-stdout") == done.err.count("to-stderr") == 3

    def test_a_failure_is_an_error(self, inputs: Path, jobs: int) -> None:
        fail = "echo first >&2; echo last words >&2; test {} != out/o-000001.tar || exit 7"
        done = shuffle(inputs, "--post", fail, "-j", jobs)
        assert done.code == 5
        (line,) = [line for line in done.err.splitlines() if line.startswith("error:")]
        assert "the command after out/o-000001.tar failed with status 7" in line
        assert "test out/o-000001.tar != out/o-000001.tar" in line
        assert line.endswith("(first | last words)")
        assert (inputs / "out" / "o-000001.tar").exists()
        assert not (inputs / "out" / "o-manifest.json").exists()

    def test_ended_by_a_signal(self, inputs: Path, jobs: int) -> None:
        done = shuffle(inputs, "--post", "kill -9 $$", "-j", jobs)
        assert done.code == 5
        assert "was ended by signal 9" in done.err

    def test_it_changes_no_byte(self, inputs: Path, jobs: int) -> None:
        assert shuffle(inputs).code == 0
        assert shuffle(inputs, "--post", "true", "-j", jobs, out="other/o-%06d.tar").code == 0
        assert content(inputs / "out") == content(inputs / "other")


def test_names_are_quoted(inputs: Path) -> None:
    done = shuffle(inputs, "--post", "cksum {} >> did", "-j", 1, out="it's $HOME;/-%d.tar")
    assert done.code == 0, done.err
    assert (inputs / "did").read_text().count("it's $HOME;/-") == 3


def test_a_name_is_no_option(inputs: Path) -> None:
    assert post_command("rm {}", "-rf.tar") == "rm ./-rf.tar"
    assert post_command("cp {} {}.bak", "file:///a/b c.tar") == "cp '/a/b c.tar' '/a/b c.tar'.bak"


def test_not_for_a_dry_run(inputs: Path) -> None:
    with no_new_files(inputs):
        assert shuffle(inputs, "--post", "touch did", "-n").code == 0


def test_what_it_leaves_running_holds_nobody(inputs: Path) -> None:
    done = shuffle(inputs, "--post", "sleep 300 >/dev/null & echo $! >> pids #", "-j", 1)
    assert done.code == 0, done.err
    for pid in (inputs / "pids").read_text().split():
        os.kill(int(pid), signal.SIGKILL)


@pytest.mark.parametrize("out", ["-", "pipe:cat >x"])
def test_a_stream_has_no_name(inputs: Path, out: str) -> None:
    done = wds("shuffle", "in", "-o", out, "--post", "true", cwd=inputs)
    assert done.code == 2
    assert f"--post needs shards with names, but {out} has no names" in done.err


def test_an_empty_command() -> None:
    with pytest.raises(UsageError, match="needs a command"):
        check_post(" ", "out.tar", is_stream=False)


def test_resuming_runs_it_for_the_shard_for_which_it_failed(inputs: Path) -> None:
    post = "echo {} >> did; test -e fine || test {} != out/o-000001.tar"
    assert shuffle(inputs, "--post", post, "-j", 1).code == 5
    (inputs / "fine").touch()
    done = shuffle(inputs, "--post", post, "-j", 1, "--resume")
    assert done.code == 0, done.err
    did = [name[-5] for name in (inputs / "did").read_text().split()]
    assert did == ["0", "1", "1", "2"]


@pytest.mark.parametrize("command", ["sort", "split", "merge"])
def test_every_command_that_reorders_takes_it(inputs: Path, command: str) -> None:
    done = wds(
        command, "in", "-o", "out/o-%06d.tar", "--max-count", 4, "--post", "echo {} >> did", cwd=inputs
    )
    assert done.code == 0, done.err
    assert len((inputs / "did").read_text().split()) == 3


class TestCreate:
    @pytest.fixture
    def files(self, tmp_path: Path) -> Path:
        (tmp_path / "files").mkdir()
        for number in range(5):
            (tmp_path / "files" / f"{number}.txt").write_text(f"{number}")
        return tmp_path

    @pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=EXHAUSTIVE)])
    def test_once_for_each_shard(self, files: Path, jobs: int) -> None:
        args = ["create", "files", "-o", "out/o-%06d.tar", "--max-count", 2, "-j", jobs]
        done = wds(*args, "--post", "test -f {} && echo {} >> did", cwd=files)
        assert done.code == 0, done.err
        assert sorted((files / "did").read_text().split()) == [f"out/o-00000{n}.tar" for n in range(3)]
        failed = wds(*args, "--force", "--post", "exit 3", cwd=files)
        assert failed.code == 5
        assert "failed with status 3" in failed.err

    def test_not_for_a_stream_or_a_dry_run(self, files: Path) -> None:
        assert wds("create", "files", "-o", "-", "--post", "true", cwd=files).code == 2
        with no_new_files(files):
            done = wds("create", "files", "-o", "out-%d.tar", "--post", "touch did", "-n", cwd=files)
            assert done.code == 0, done.err
