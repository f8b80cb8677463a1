"""Two runs into one output, and an output that is taken away from under a run.

A run is held at a known place by a named pipe that its ``--post`` (or its input) reads, never by a clock.
"""

from __future__ import annotations

import gc
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from shard_cases import content, keys_of, leftovers, numbered, wds, write_shards
from storage_servers import s3_server

import wdscli.loader
from wdscli.errors import OutputError, UsageError
from wdscli.ops.cat import cat
from wdscli.plan.request import Request
from wdscli.shards import ShardSettings, ShardWriter
from wdscli.storage import exists, read_all, remove

LOCK = ".wds/out-manifest.json.lock.tmp"


class Held:
    """A command that waits once its shard number ``at`` has its name, until :meth:`go`."""

    def __init__(self, folder: Path, *words: object, at: int = 0) -> None:
        self.gate, self.at_gate = folder / "gate", folder / "at-gate"
        for pipe in (self.gate, self.at_gate):
            pipe.unlink(missing_ok=True)
            os.mkfifo(pipe)
        wait = f"echo > {shlex.quote(str(self.at_gate))}; read x < {shlex.quote(str(self.gate))}"
        post = f"case {{}} in *-{at:06d}.tar) {wait};; esac"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "wdscli", *map(str, words), "--post", post],
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.at_gate.read_text()

    def go(self) -> tuple[int, str]:
        """Let it end; its exit code and what it said."""
        self.gate.write_text("go\n")
        error = self.process.communicate(timeout=60)[1].decode()
        return self.process.returncode, error

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    return write_shards(tmp_path / "in", [numbered(8, "a"), numbered(4, "b")])


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(12):
        (folder / f"f{number:02d}.txt").write_text(f"file {number}")
    return folder


@pytest.fixture(params=["create", "shuffle", "split", "merge", "sort"])
def command(request: pytest.FixtureRequest, shards: list[str], files: Path, tmp_path: Path) -> list[object]:
    """A command that makes four shards of three samples in ``out``."""
    inputs = [files] if request.param == "create" else shards
    return [request.param, *inputs, "-o", tmp_path / "out" / "out-%06d.tar", "--max-count", 3, "-q"]


@pytest.mark.exhaustive(sample=False)
def test_a_second_run_is_refused_while_the_first_lives(command: list[object], tmp_path: Path) -> None:
    assert wds(*command).code == 0
    alone = content(tmp_path / "out")
    held = Held(tmp_path, *command, "--force")
    for count in (3, 2):
        ran = wds(*command[: command.index("--max-count")], "--max-count", count, "-q", "--force")
        assert ran.code == 4, ran.err
        assert "another run is writing" in ran.err
        assert f"process {held.process.pid}" in ran.err
    assert held.go() == (0, "")
    assert content(tmp_path / "out") == alone


@pytest.mark.exhaustive(sample=False)
def test_a_killed_run_holds_nothing(command: list[object], tmp_path: Path) -> None:
    held = Held(tmp_path, *command)
    assert (tmp_path / "out" / LOCK).exists()
    held.kill()
    ran = wds(*command, "--force")
    assert ran.code == 0, ran.err
    assert leftovers(tmp_path / "out") == []
    assert wds("verify", tmp_path / "out" / "out-manifest.json").code == 0


@pytest.mark.exhaustive
def test_a_shard_that_another_program_replaced(command: list[object], tmp_path: Path) -> None:
    """No lock helps there: before the manifest is written every shard must still be this run's own."""
    held = Held(tmp_path, *command, "-j", 1, at=1)
    first = tmp_path / "out" / "out-000000.tar"
    data = bytearray(first.read_bytes())
    data[512] ^= 1
    (tmp_path / "other.tar").write_bytes(data)
    (tmp_path / "other.tar").replace(first)
    code, error = held.go()
    assert code == 4, error
    assert f"{first} was replaced or removed" in error
    assert not (tmp_path / "out" / "out-manifest.json").exists()


@pytest.mark.exhaustive
def test_resume_and_force_of_one_plan(shards: list[str], tmp_path: Path) -> None:
    command = ["shuffle", *shards, "-o", tmp_path / "out" / "out-%06d.tar", "--max-count", 3, "-q"]
    held = Held(tmp_path, *command)
    assert wds(*command, "--resume").code == 4
    assert wds(*command, "--force").code == 4
    assert held.go() == (0, "")
    assert leftovers(tmp_path / "out") == []


@pytest.mark.exhaustive(sample=False)
def test_tasks_of_one_plan_share_an_output(shards: list[str], tmp_path: Path) -> None:
    """What many processes of one plan write is the same bytes; anybody else is kept out."""
    plan, out = tmp_path / "the.plan", tmp_path / "out" / "out-%06d.tar"
    command = ["shuffle", *shards, "-o", out, "--max-count", 3, "-q"]
    pipes = [tmp_path / "gate", tmp_path / "at-gate"]
    for pipe in pipes:
        os.mkfifo(pipe)
    post = f"case {{}} in *-000000.tar) echo > {pipes[1]}; read x < {pipes[0]};; esac"
    assert wds(*command, "--plan", plan, "--post", post).code == 0
    first = subprocess.Popen([sys.executable, "-m", "wdscli", "run", str(plan), "--task", "0", "-q"])
    pipes[1].read_text()
    assert wds("run", plan, "--task", "1-3", "-q").code == 0
    ran = wds(*command, "--force")
    assert ran.code == 4
    assert "another run is writing" in ran.err
    pipes[0].write_text("go\n")
    assert first.wait(60) == 0
    ran = wds("run", plan, "--finish", "-q")
    assert ran.code == 0, ran.err
    assert leftovers(tmp_path / "out") == []
    assert wds("verify", tmp_path / "out" / "out-manifest.json").code == 0


@pytest.mark.exhaustive
def test_an_index_waits_for_nobody_and_writes_no_lies(files: Path, tmp_path: Path) -> None:
    command = ["create", files, "-o", tmp_path / "out" / "out-%06d.tar", "--max-count", 3, "-q", "--force"]
    held = Held(tmp_path, *command)
    ran = wds("index", *(tmp_path / "out").glob("*.tar"), "--force")
    assert ran.code == 4, ran.err
    assert "another run is writing" in ran.err
    assert not (tmp_path / "out" / "out-manifest.json").exists()
    assert held.go() == (0, "")


@pytest.mark.exhaustive
def test_cat_of_one_file(shards: list[str], tmp_path: Path) -> None:
    """Index and manifest beside a file belong to the run whose shard stands."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    out = tmp_path / "x.tar"
    first = subprocess.Popen(
        [sys.executable, "-m", "wdscli", "cat", f"pipe:cat {gate}", "-o", str(out), "--force", "-q"]
    )
    with gate.open("wb") as stream:
        ran = wds("cat", shards[1], "-o", out, "--force", "-q")
        assert ran.code in (0, 4)
        stream.write(Path(shards[0]).read_bytes())
    # Whichever wins, what stands is whole and true.
    codes = (first.wait(60), ran.code)
    assert 0 in codes
    assert wds("verify", tmp_path / "x-manifest.json").code == 0
    assert wds("index", "--check", out).code in (0, 2)


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_folder_that_is_moved_in_mid_run(command: list[object], tmp_path: Path, jobs: int) -> None:
    out, moved = tmp_path / "out", tmp_path / "moved"
    held = Held(tmp_path, *command, "-j", jobs)
    out.rename(moved)
    code, error = held.go()
    assert code == 4, error
    assert f"the folder {out}" in error
    assert "moved, removed or replaced" in error
    assert not list(tmp_path.glob("out/*.tar"))
    assert not (out / "out-manifest.json").exists()
    assert not (moved / "out-manifest.json").exists()


@pytest.mark.exhaustive
def test_a_folder_that_is_replaced_in_mid_run(command: list[object], tmp_path: Path) -> None:
    out = tmp_path / "out"
    held = Held(tmp_path, *command, "-j", 1)
    out.rename(tmp_path / "moved")
    out.mkdir()
    code, error = held.go()
    assert code == 4, error
    assert content(out) == {}


@pytest.fixture(params=["shards", "loader"])
def writer_class(request: pytest.FixtureRequest) -> type:
    return ShardWriter if request.param == "shards" else wdscli.loader.ShardWriter


def put(writer: object, key: str) -> None:
    if isinstance(writer, ShardWriter):
        writer.write(key, {"txt": key.encode()})
    else:
        writer.write({"__key__": key, "txt": key})  # type: ignore[attr-defined]


def limits(kind: type) -> dict[str, int]:
    return {"max_count": 1} if kind is ShardWriter else {"maxcount": 1}


@pytest.mark.exhaustive
def test_a_second_writer_of_this_process_takes_over(writer_class: type, tmp_path: Path) -> None:
    """As in a notebook, where a cell is run again: the writer that is forgotten must not be in the way."""
    pattern = f"{tmp_path}/out-%06d.tar"
    first = writer_class(pattern, force=True, **limits(writer_class))
    put(first, "a0")
    put(first, "a1")
    second = writer_class(pattern, force=True, **limits(writer_class))
    put(second, "b0")
    with pytest.raises(OutputError, match="another"):
        put(first, "a2")
        first.close()
    put(second, "b1")
    second.close()
    first.discard()
    del first
    gc.collect()
    assert keys_of(*sorted(tmp_path.glob("*.tar"))) == ["b0", "b1"]
    assert leftovers(tmp_path) == []
    assert wds("verify", tmp_path / "out-manifest.json").code == 0


def test_a_writer_is_refused_while_a_command_writes(writer_class: type, files: Path, tmp_path: Path) -> None:
    held = Held(tmp_path, "create", files, "-o", tmp_path / "out" / "out-%06d.tar", "-q", "--max-count", 3)
    with pytest.raises(OutputError, match="another run is writing"):
        writer_class(f"{tmp_path}/out/out-%06d.tar", force=True)
    assert held.go() == (0, "")


def test_a_folder_that_is_moved_under_a_writer(writer_class: type, tmp_path: Path) -> None:
    out = tmp_path / "out"
    writer = writer_class(f"{out}/out-%06d.tar", **limits(writer_class))
    put(writer, "a")
    put(writer, "b")
    out.rename(tmp_path / "moved")
    with pytest.raises(OutputError, match="moved, removed or replaced"):
        put(writer, "c")
    writer.discard()
    assert not out.exists()


def test_a_shard_of_a_writer_that_is_replaced(writer_class: type, tmp_path: Path) -> None:
    writer = writer_class(f"{tmp_path}/out-%06d.tar", **limits(writer_class))
    for key in ("a", "b", "c"):
        put(writer, key)
    same = (tmp_path / "out-000000.tar").read_bytes()
    (tmp_path / "other").write_bytes(same.replace(b"a.txt", b"z.txt"))
    (tmp_path / "other").replace(tmp_path / "out-000000.tar")
    with pytest.raises(OutputError, match=r"out-000000\.tar"):
        writer.close()
    assert not (tmp_path / "out-manifest.json").exists()


def test_a_shard_that_is_another_file_of_the_same_bytes(writer_class: type, tmp_path: Path) -> None:
    """Two runs of the same plan, a copy brought back: what the manifest says is true."""
    writer = writer_class(f"{tmp_path}/out-%06d.tar", **limits(writer_class))
    put(writer, "a")
    put(writer, "b")
    (tmp_path / "other").write_bytes((tmp_path / "out-000000.tar").read_bytes())
    (tmp_path / "other").replace(tmp_path / "out-000000.tar")
    writer.close()
    assert (tmp_path / "out-manifest.json").exists()


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_server() as server:
        server.bucket("two")
        yield "s3://two"


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("last", ["first", "second"])
def test_two_writers_on_an_object_store(writer_class: type, bucket: str, tmp_path: Path, last: str) -> None:
    """There is no lock there. Who ends while a shard is not its own fails, and no manifest tells lies."""
    folder = f"{bucket}/{tmp_path.name}"
    first = writer_class(f"{folder}/out-%06d.tar", force=True, **limits(writer_class))
    second = writer_class(f"{folder}/out-%06d.tar", force=True, **limits(writer_class))
    put(first, "a0")
    put(first, "a1")  # a0 has its name
    put(second, "b0")
    put(second, "b1")  # b0 has
    put(second, "b2")  # b1 has
    put(first, "a2")  # a1 has, over b1: a0 is gone, a mixture
    ends = [first, second] if last == "second" else [second, first]
    for writer in ends:
        with pytest.raises(OutputError, match="replaced or removed"):
            writer.close()
    assert not exists(f"{folder}/out-manifest.json")


@pytest.mark.exhaustive(sample=False)
def test_what_lies_in_a_bucket_is_not_read_and_written_at_once(bucket: str, tmp_path: Path) -> None:
    """The second run finds its own output among the inputs."""
    folder = f"{bucket}/{tmp_path.name}"
    with ShardWriter(f"{folder}/in-%06d.tar", max_count=1) as writer:
        for key in ("a", "b"):
            put(writer, key)
    for inputs in (f"{folder}/", f"{folder}/*.tar"):
        request = Request([inputs], f"{folder}/all.tar", settings=ShardSettings(force=True))
        assert cat(request).samples == 2
        with pytest.raises(UsageError, match="would be both an input and an output"):
            cat(request)
        remove(f"{folder}/all.tar")
        remove(f"{folder}/all-manifest.json")


@pytest.mark.exhaustive
def test_the_last_writer_on_an_object_store_wins(writer_class: type, bucket: str, tmp_path: Path) -> None:
    folder = f"{bucket}/{tmp_path.name}"
    first = writer_class(f"{folder}/out-%06d.tar", force=True, **limits(writer_class))
    second = writer_class(f"{folder}/out-%06d.tar", force=True, **limits(writer_class))
    for key in ("0", "1"):
        put(first, f"a{key}")
    for key in ("0", "1"):
        put(second, f"b{key}")
    with pytest.raises(OutputError, match="replaced or removed"):
        first.close()
    put(second, "b2")
    second.close()
    assert exists(f"{folder}/out-manifest.json")
    assert read_all(f"{folder}/out-000000.tar")[:5] == b"b0.tx"


@pytest.mark.parametrize(
    ("words", "joins"),
    [
        ("shuffle in", True),
        ("cat in/", True),
        ("merge --on-duplicate skip b in/*.tar", True),
        ("split in", True),
        ("sort in", True),
        ("map in --filter cls cat", True),
        ("shuffle in/s-0000.tar", False),
        ("cat in/s-manifest.json", False),
    ],
)
def test_a_shard_that_joins_the_input_of_its_command_is_refused(
    tmp_path: Path, words: str, joins: bool
) -> None:
    for folder in ("in", "b"):
        wds("cat", *write_shards(tmp_path / "parts", [numbered(3)]), "-o", tmp_path / folder / "s-0000.tar")
        wds("index", tmp_path / folder)
    for output, is_refused in (("in/new.tar", joins), ("out/new.tar", False)):
        ran = wds(*words.split(), "-o", output, cwd=tmp_path)
        assert ran.code == (2 if is_refused else 0), ran.err
        said = "in/new.tar also belongs to the input in/*.tar"
        if is_refused:
            assert ran.err.startswith(f"error: {said}"), ran.err
            ran = wds(*words.split(), "-o", output, "--force", cwd=tmp_path)
            assert ran.code == 0, ran.err
        assert (f"warning: {said}" in ran.err) == is_refused, ran.err
        (tmp_path / output).unlink()
