"""Engines by entry point: the example of the man page, installed and used; and what is said of one that is missing."""

from __future__ import annotations

import os
import pickle
import re
import time
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from shard_cases import Ran, content, numbered, wds, write_shards

from wdscli import errors
from wdscli.errors import DataError, EngineError, UsageError, WdsError
from wdscli.executors import make_executor, run_tasks, tasks, workers_of
from wdscli.executors.tasks import Engine, open_engine
from wdscli.storage import local_path

PAGE = Path(__file__).resolve().parents[2] / "man" / "man1" / "wdscli.1"


def literals_of(section: str) -> list[str]:
    """The displays of a subsection of wdscli(1), as mandoc would show them."""
    text = PAGE.read_text().split(f".Ss {section}\n")[1].split("\n.Ss ")[0]
    return [part.split(".Ed")[0].replace("\\e", "\\") for part in text.split("-offset indent\n")[1:]]


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment in which the man page's engine is installed, as an installer would leave it."""
    program, project = literals_of("Engines")
    site = tmp_path / "site"
    info = site / "threads_engine-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "threads_engine.py").write_text(program)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: threads-engine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(re.sub(r'^\[.*"(.+)"\]', r"[\1]", project).replace('"', ""))
    return {**os.environ, "PYTHONPATH": str(site)}


def shuffle(folder: Path, out: str, *args: str, env: dict[str, str] | None = None) -> Ran:
    return wds(
        "shuffle", "in", "-o", f"{out}/out-%06d.tar", "--max-count", 3, *args, cwd=folder, env=env
    )  # fmt: skip


@pytest.mark.exhaustive(sample=False)
def test_the_example_of_the_man_page(tmp_path: Path, installed: dict[str, str]) -> None:
    write_shards(tmp_path / "in", [numbered(10, "a"), numbered(7, "b")])
    assert shuffle(tmp_path, "serial", "-j", "1").code == 0
    done = shuffle(tmp_path, "toy", "--engine", "threads://3", "--post", "echo in $PPID; #", env=installed)
    assert done.code == 0, done.err
    assert content(tmp_path / "serial") == content(tmp_path / "toy")
    # All in one process, which was not the shell's own.
    assert len(set(re.findall(r"^in [0-9]+$", done.err, re.MULTILINE))) == 1


def test_the_example_is_short() -> None:
    program, project = literals_of("Engines")
    assert len([line for line in (program + project).splitlines() if line]) <= 12


def test_one_that_is_not_there(tmp_path: Path, installed: dict[str, str]) -> None:
    write_shards(tmp_path / "in", [numbered(2)])
    done = shuffle(tmp_path, "out", "--engine", "ray://head:10001", env=installed)
    assert done.code == 2
    assert 'error: no engine "ray"' in done.err
    assert "installed: dask://, threads://" in done.err
    assert not (tmp_path / "out").exists()
    assert shuffle(tmp_path, "out", "--engine", "ray://head:10001", "-n").code == 2


def test_one_that_cannot_be_reached(tmp_path: Path, installed: dict[str, str]) -> None:
    write_shards(tmp_path / "in", [numbered(2)])
    done = shuffle(tmp_path, "out", "--engine", "threads://many", env=installed)
    assert done.code == 5
    assert "error: cannot reach threads://many: invalid literal" in done.err


class Lost(Executor):
    """Loses every task, one way or another."""

    def __init__(self, error: Exception, *, at_once: bool = False) -> None:
        self._error = error
        self._at_once = at_once
        self.ends: list[dict[str, Any]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._at_once:
            raise self._error
        future: Future[Any] = Future()
        future.set_exception(self._error)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.ends.append({"wait": wait, "cancel_futures": cancel_futures})
        raise ConnectionError("gone")


def where(name: str) -> str:
    time.sleep(0.01)
    return local_path(name)


def mistake(_: int) -> int:
    raise KeyError("mistake")


def broken(_: int) -> int:
    raise DataError("broken", code="truncated", shard="a.tar", offset=512, member="x.jpg", hint="mend it")


class TestEngine:
    @pytest.mark.parametrize("at_once", [True, False])
    def test_what_the_engine_loses_is_its_fault(self, at_once: bool) -> None:
        lost = Lost(RuntimeError("worker lost\nTraceback ..."), at_once=at_once)
        with pytest.raises(EngineError) as caught, Engine("lost://x", lost) as engine:
            list(run_tasks(engine, where, ["a"]))
        assert str(caught.value) == "the engine lost://x failed: RuntimeError: worker lost"
        assert "workers" in str(caught.value.hint)
        assert lost.ends == [{"wait": False, "cancel_futures": True}]

    def test_tasks_that_are_cancelled(self) -> None:
        with pytest.raises(EngineError, match="the connection to its scheduler is lost"):
            list(run_tasks(Engine("lost://x", Lost(CancelledError())), where, ["a"]))

    def test_what_a_task_raises_is_the_tasks(self) -> None:
        with Engine("threads://2", ThreadPoolExecutor(2)) as engine:
            with pytest.raises(EngineError, match="a task failed: KeyError") as caught:
                list(run_tasks(engine, mistake, [1]))
            assert "--debug" in str(caught.value.hint)
            with pytest.raises(DataError) as data:
                list(run_tasks(engine, broken, [1]))
            assert data.value.offset == 512

    def test_relative_paths_begin_where_the_command_was_started(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with Engine("threads://2", ThreadPoolExecutor(2)) as engine:
            monkeypatch.chdir("/")
            names = ["a/b.tar", "/c.tar", "file://d.tar", ""]
            assert list(run_tasks(engine, where, names)) == [
                f"{tmp_path}/a/b.tar", "/c.tar", f"{tmp_path}/d.tar", ""
            ]  # fmt: skip
        assert local_path("a/b.tar") == "a/b.tar"

    def test_the_window_follows_its_size(self) -> None:
        class Pool(ThreadPoolExecutor):
            workers = 7

        assert workers_of(Engine("x://", Pool(2))) == 7
        assert workers_of(Engine("x://", ThreadPoolExecutor(3))) == 3
        made: list[int] = []

        def tasks() -> Any:
            for number in range(100):
                made.append(number)
                yield str(number)

        with Engine("x://", Pool(2)) as engine:
            next(iter(run_tasks(engine, where, tasks())))
        assert len(made) <= 2 * 7 + 2
        with make_executor(1) as serial, make_executor(3) as processes:
            assert (workers_of(serial), workers_of(processes)) == (1, 3)

    def test_a_name_without_an_address(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(UsageError, match='no engine "nothing"'):
            open_engine("nothing")

    def test_an_engine_says_itself_what_is_wrong_with_its_url(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def connect(url: str) -> Executor:
            raise UsageError(f"{url} is no good", hint="another")

        monkeypatch.setattr(tasks, "find_engine", lambda url: connect)
        with pytest.raises(UsageError, match=r"x://1 is no good"):
            open_engine("x://1")


def every_error() -> list[WdsError]:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, WdsError)]
    found = []
    for kind in kinds:
        error = kind("what", hint="how")
        if isinstance(error, DataError):
            error = DataError("what", code="c", shard="s", offset=7, member="m", hint="how")
        found.append(error)
    return found


@pytest.mark.parametrize("error", every_error(), ids=lambda error: type(error).__name__)
def test_errors_travel_whole(error: WdsError) -> None:
    error.extra = ["anything"]  # type: ignore[attr-defined]
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        back = pickle.loads(pickle.dumps(error, protocol))
        assert type(back) is type(error)
        assert vars(back) == vars(error)
        assert (str(back), back.args) == (str(error), error.args)
