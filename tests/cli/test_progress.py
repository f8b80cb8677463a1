"""The bar moves while a shard is written: in this process, in others, and for create; inputs are slow on purpose."""

from __future__ import annotations

import gzip
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from executor_tasks import count
from reorders import shuffle, split
from shard_cases import numbered, tar_of, wds
from storage_servers import Web, web_server
from terminals import on_terminal
from verify_options import checks_of

from wdscli.executors import make_executor, run_tasks
from wdscli.plan.cut import Cuts
from wdscli.plan.request import Request
from wdscli.progress import NullProgress

SHARD_BYTES = 40 * 600_000


class Slow(dict[str, bytes]):
    """Files that take their time whenever they are asked for, one after the other."""

    seconds = 0.0
    turn = threading.Lock()

    def get(self, *args: object) -> bytes | None:  # type: ignore[override]
        with self.turn:
            time.sleep(self.seconds)
        return super().get(*args)  # type: ignore[call-overload,no-any-return]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Web]:
    """Two shards, which take about a second to read by large requests; and their indexes, so that a plan does not."""
    for name in "ab":
        samples = numbered(40, name, (600_000,))
        (tmp_path / f"{name}.tar").write_bytes(tar_of([member for one in samples for member in one]))
    assert wds("index", "a.tar", "b.tar", cwd=tmp_path).code == 0
    with web_server("ranges") as web:
        files = Slow()
        for path in tmp_path.rglob("*"):
            if path.is_file():
                files[str(path.relative_to(tmp_path))] = path.read_bytes()
        files.seconds = 0.15
        web.files = files
        yield web


class Listener(NullProgress):
    """Remembers the stage and what is done in it."""

    def __init__(self) -> None:
        self.stage = ""
        self.total: int | None = None
        self.done: list[int] = []

    def start(self, what: str, total: int | None, unit: str) -> None:
        self.stage, self.total, self.done = what, total, [0]

    def advance(self, amount: int) -> None:
        assert amount >= 0
        self.done.append(self.done[-1] + amount)


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize(
    ("jobs", "cuts"), [(1, Cuts(shards=1)), (2, Cuts(shards=2))], ids=["serial", "processes"]
)
def test_it_moves_before_the_first_shard_is_done(server: Web, tmp_path: Path, jobs: int, cuts: Cuts) -> None:
    listener = Listener()
    inputs = [server.url("a.tar"), server.url("b.tar")]
    request = Request(inputs, f"{tmp_path}/out/o-%06d.tar", cuts=cuts, jobs=jobs)
    report = split(request, progress=listener)
    assert listener.stage == "writing"
    assert listener.done[-1] == listener.total == report.bytes_out
    first = report.manifest.shards[0].size_bytes
    # The parent looks at its workers now and then, which on a busy machine may be once.
    assert len({done for done in listener.done if 0 < done < first}) >= (2 if jobs == 1 else 1)
    assert listener.done == sorted(listener.done)


def test_it_moves_inside_a_large_sample(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar_of(numbered(1, sizes=(9_000_000,))[0]))
    listener = Listener()
    shuffle(Request([f"{tmp_path}/a.tar"], f"{tmp_path}/o.tar", jobs=1), progress=listener)
    assert len(set(listener.done)) > 5


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("jobs", [1, 2])
def test_on_a_terminal(server: Web, tmp_path: Path, jobs: int) -> None:
    """Done, rate and time left, while the shards are made."""
    args = [
        server.url("a.tar"),
        server.url("b.tar"),
        "-o",
        "o-%06d.tar",
        "--shards",
        str(jobs),
        "-j",
        str(jobs),
    ]
    command = [sys.executable, "-m", "wdscli", "split", *args]
    said = on_terminal(command, shown="stderr", cwd=tmp_path, COLUMNS="120")
    said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said)
    facts = re.findall(
        r"writing .*?([0-9.]+) (k|M)?B of 48.1 MB, ([0-9.]+) [kM]?B/s(?:, ([0-9.a-z ]+) left)?", said
    )
    places = [float(number) * {"": 1e-6, "k": 1e-3, "M": 1}[unit] for number, unit, *_ in facts]
    assert any(0 < place < SHARD_BYTES / 1e6 for place in places), said
    assert {place for place in places if 0 < place < 2 * SHARD_BYTES / 1e6}, said
    assert any(left for *_, left in facts)


@pytest.mark.exhaustive
def test_create(tmp_path: Path) -> None:
    """In other processes too."""
    from wdscli.ops.create import create

    for number in range(3000):
        (tmp_path / f"{number}.txt").write_bytes(bytes(20_000))
    for jobs, shards in ((1, 1), (2, 2)):
        listener = Listener()
        request = Request(
            [str(tmp_path)], f"{tmp_path}/out-{jobs}/o-%06d.tar", cuts=Cuts(shards=shards), jobs=jobs
        )
        report = create(request, progress=listener)
        assert listener.done[-1] == listener.total == report.size_bytes
        if jobs == 1:
            assert len(listener.done) > 3


class TestRunTasks:
    @pytest.mark.parametrize("jobs", [1, 2])
    def test_what_tasks_tell_and_what_they_do_not(self, jobs: int) -> None:
        told: list[int] = []
        with make_executor(jobs) as executor:
            found = list(run_tasks(executor, count, [12, 3, 0, 9], advance=told.append, amount=int))
        assert found == [14, 5, 2, 11]
        assert sum(told) == 32
        assert len([one for one in told if one]) > 6

    @pytest.mark.exhaustive
    def test_a_counter_is_used_again(self) -> None:
        """By a later task in the same place."""
        from wdscli.executors import local

        told: list[int] = []
        with make_executor(2) as executor:
            numbers = [8] + [0] * (local.SLOTS - 1) + [8]
            assert sum(run_tasks(executor, count, numbers, advance=told.append, amount=int)) == sum(told)

    @pytest.mark.exhaustive
    def test_nobody_listens(self) -> None:
        for jobs in (1, 2):
            with make_executor(jobs) as executor:
                assert list(run_tasks(executor, count, [1, 2])) == [3, 4]


class Stages(NullProgress):
    """Remembers each stage: what, its unit, its total, and what was done."""

    def __init__(self) -> None:
        self.stages: list[list[object]] = []

    def start(self, what: str, total: int | None, unit: str) -> None:
        self.stages.append([what, unit, total, 0])

    def advance(self, amount: int) -> None:
        assert amount >= 0
        self.stages[-1][3] += amount  # type: ignore[operator]


class TestBytesAreCounted:
    """Not shards, of which one may be a thousand times as large as the next."""

    @pytest.fixture
    def shards(self, tmp_path: Path) -> list[str]:
        paths = []
        for name, samples in (("a", 40), ("b", 1)):
            (tmp_path / f"{name}.tar").write_bytes(
                tar_of([one for s in numbered(samples, name) for one in s])
            )
            paths.append(f"{tmp_path}/{name}.tar")
        assert wds("index", *paths, "--no-index").code == 0
        return paths

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("options", [{}, {"checksums": True}, {"decode": True}], ids=str)
    @pytest.mark.parametrize("jobs", [None, 2])
    def test_verify(self, shards: list[str], options: dict[str, bool], jobs: int | None) -> None:
        from wdscli.verify.set import verify

        heard, size = Stages(), sum(map(os.path.getsize, shards))
        verify(shards, checks_of(**options), jobs=jobs, progress=heard)  # type: ignore[arg-type]
        assert heard.stages == [["checking shards", "bytes", size, size]]

    def test_repair(self, shards: list[str], tmp_path: Path) -> None:
        from wdscli.plan.request import Request
        from wdscli.verify.repair import repair

        heard, size = Stages(), sum(map(os.path.getsize, shards))
        repair(Request(shards, f"{tmp_path}/out/%d.tar"), progress=heard)
        assert [stage[1:] for stage in heard.stages] == [["bytes", size, size]] * 2

    @pytest.mark.parametrize("compressed", [False, True])
    def test_a_survey(self, shards: list[str], tmp_path: Path, compressed: bool) -> None:
        if compressed:
            for path in shards:
                Path(path).write_bytes(gzip.compress(Path(path).read_bytes()))
        heard, size = Stages(), sum(map(os.path.getsize, shards))
        shuffle(Request(shards, f"{tmp_path}/o.tar", jobs=1), progress=heard)
        assert heard.stages[0] == ["reading headers", "bytes", size, size]

    def test_shards_where_sizes_would_take_requests(self, shards: list[str], tmp_path: Path) -> None:
        heard = Stages()
        shuffle(Request([f"pipe:cat {shards[0]}", shards[1]], f"{tmp_path}/o.tar", jobs=1), progress=heard)
        assert heard.stages[0] == ["reading headers", "shards", 2, 2]

    @pytest.mark.parametrize("compressed", [False, True])
    def test_commands_that_read_shards(self, shards: list[str], tmp_path: Path, compressed: bool) -> None:
        from indexing import index

        from wdscli.look.listing import ls
        from wdscli.ops.cat import cat

        if compressed:
            for path in shards:
                Path(f"{path}.gz").write_bytes(gzip.compress(Path(path).read_bytes()))
            shards = [f"{path}.gz" for path in shards]
        size = sum(map(os.path.getsize, shards))
        for jobs, output in ((1, "{name}.tar"), (2, "again/{name}.tar"), (1, "o.tar")):
            heard = Stages()
            cat(Request(shards, f"{tmp_path}/out/{output}", jobs=jobs), progress=heard)
            assert heard.stages == [["copying", "bytes", size, size]]
        heard = Stages()
        assert len(list(ls(shards, progress=heard).shards())) == 2
        assert heard.stages == [["reading", "bytes", size, size]]
        if compressed:
            return
        heard = Stages()
        index(shards, with_manifest=False, force=True, progress=heard)
        assert heard.stages == [["indexing", "bytes", size, size]]

    @pytest.mark.parametrize("command", ["verify", "verify checksums", "index", "ls", "cat", "shuffle"])
    @pytest.mark.parametrize("listed", [True, False])
    def test_of_a_store(self, command: str, listed: bool, shards: list[str], tmp_path: Path) -> None:
        """Whose sizes are known where the folder was listed; where not, few shards count bytes all the same."""
        import fsspec
        from indexing import index

        from wdscli.look.listing import ls
        from wdscli.ops.cat import cat
        from wdscli.verify.set import verify

        folder = f"progress-{command.replace(' ', '-')}-{listed}"
        memory, size = fsspec.filesystem("memory"), sum(map(os.path.getsize, shards))
        for path in shards:
            memory.pipe(f"/{folder}/{Path(path).name}", Path(path).read_bytes())
        if "checksums" in command:
            memory.pipe(f"/{folder}/manifest.json", (tmp_path / "manifest.json").read_bytes())
        far = (
            [f"memory://{folder}/"] if listed else [f"memory://{folder}/{Path(path).name}" for path in shards]
        )
        heard = Stages()
        if command.startswith("verify"):
            verify(far, checks_of(checksums="checksums" in command), jobs=1, progress=heard)
        elif command == "index":
            index(far, with_manifest=False, jobs=1, progress=heard)
        elif command == "ls":
            list(ls(far, progress=heard).shards())
        elif command == "cat":
            cat(Request(far, f"{tmp_path}/o.tar", jobs=1), progress=heard)
        else:
            shuffle(Request(far, f"{tmp_path}/o.tar", jobs=1), progress=heard)
        _, unit, total, done = heard.stages[0]
        assert unit == "bytes"
        assert total == size or (total is None and not listed)
        assert done == size if total else 30_000 <= done <= size or command == "ls"  # type: ignore[operator]
