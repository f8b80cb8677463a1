"""Tasks in this process and in others: order, window, failures, interrupts and what is left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import executor_tasks
import pytest
from executor_tasks import chatter, die, double, fails, finalizes, leave_a_thread, linger, whoami

from wdscli import executors
from wdscli.errors import DataError, EngineError, OutputExistsError, UsageError, WdsError
from wdscli.executors import (
    MIN_PARALLEL_BYTES,
    copying_worth,
    default_jobs,
    local,
    make_executor,
    run_tasks,
    useful_jobs,
    useful_shard_jobs,
)


@pytest.fixture(params=[1, 3], ids=["serial", "processes"])
def executor(request: Any) -> Iterator[Executor]:
    with make_executor(request.param) as made:
        yield made


class TestAny:
    """What holds for every engine."""

    def test_results_come_in_the_order_of_the_tasks(self, executor: Executor) -> None:
        assert list(run_tasks(executor, double, range(20), window=7)) == [2 * n for n in range(20)]

    def test_no_tasks(self, executor: Executor) -> None:
        assert list(run_tasks(executor, double, [])) == []

    @pytest.mark.parametrize(("number", "kind"), [(3, DataError), (4, OutputExistsError)])
    def test_our_errors_keep_class_and_fields(self, executor: Executor, number: int, kind: type) -> None:
        with pytest.raises(WdsError) as caught:
            list(run_tasks(executor, fails, [0, 1, number]))
        assert type(caught.value) is kind
        if number == 3:
            assert isinstance(caught.value, DataError)
            error = caught.value
            assert (error.code, error.shard, error.offset, error.member) == (
                "truncated",
                "a.tar",
                512,
                "x.jpg",
            )
            assert error.hint == "mend it"
            assert str(error) == 'broken in member "x.jpg" in a.tar at byte 512'

    def test_any_other_error_is_an_engine_error(self, executor: Executor) -> None:
        with pytest.raises(EngineError, match="KeyError: 'mistake'") as caught:
            list(run_tasks(executor, fails, [0, 5]))
        assert caught.value.exit_code == 5
        assert "--debug" in str(caught.value.hint)
        assert isinstance(caught.value.__cause__, KeyError)

    def test_memory_has_its_own_hint(self, executor: Executor) -> None:
        with pytest.raises(EngineError, match="out of memory") as caught:
            list(run_tasks(executor, fails, [6]))
        assert "-j" in str(caught.value.hint)

    def test_a_reader_that_went_away_is_no_failure_of_the_engine(self, executor: Executor) -> None:
        with pytest.raises(BrokenPipeError):
            list(run_tasks(executor, fails, [7]))

    @pytest.mark.exhaustive
    def test_the_first_failure_in_order_is_raised(self, executor: Executor) -> None:
        with pytest.raises(DataError):
            list(run_tasks(executor, fails, [0, 3, 4, 5]))
        with pytest.raises(OutputExistsError):
            list(run_tasks(executor, fails, [0, 4, 3, 5]))

    def test_results_before_a_failure_come_out(self, executor: Executor) -> None:
        found = []
        with pytest.raises(DataError):
            for result in run_tasks(executor, fails, [0, 1, 2, 3]):
                found.append(result)
        assert found == [0, 1, 2]


class Recording(Executor):
    """Runs nothing until asked for a result; knows how many are in flight."""

    def __init__(self) -> None:
        self.submitted = 0
        self.cancelled = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        recording = self
        recording.submitted += 1

        class Late(Future[Any]):
            def result(self, timeout: float | None = None) -> Any:
                return fn(*args, **kwargs)

            def cancel(self) -> bool:
                recording.cancelled += 1
                return True

        return Late()


class TestWindow:
    def test_it_is_bounded(self) -> None:
        recording = Recording()
        results = run_tasks(recording, fails, iter([0, 1, 2] * 30), window=4)
        for taken in range(1, 60):
            next(results)
            assert recording.submitted <= taken + 4

    def test_tasks_are_made_as_they_are_needed(self) -> None:
        made = []

        def tasks() -> Iterator[int]:
            for number in range(100):
                made.append(number)
                yield 0

        next(run_tasks(Recording(), fails, tasks(), window=5))
        assert len(made) == 5

    def test_what_waits_is_cancelled_after_a_failure(self) -> None:
        recording = Recording()
        with pytest.raises(DataError):
            list(run_tasks(recording, fails, [3, 0, 0, 0, 0, 0, 0], window=3))
        assert (recording.submitted, recording.cancelled) == (3, 2)


class TestProcesses:
    def test_they_are_spawned_and_see_nothing_of_the_parent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(executors, "_secret_of_the_parent", "set", raising=False)
        with make_executor(2) as executor:
            found = list(run_tasks(executor, whoami, range(4)))
        assert {pid for pid, *_ in found}.isdisjoint({os.getpid()})
        assert all(one[1:] == ("spawn", "child", None) for one in found)

    def test_one_job_runs_here(self) -> None:
        with make_executor(1) as executor:
            assert {one[0] for one in run_tasks(executor, whoami, range(3))} == {os.getpid()}

    def test_a_worker_that_is_killed(self) -> None:
        with pytest.raises(EngineError, match="ended abruptly") as caught, make_executor(2) as executor:
            list(run_tasks(executor, die, range(50), window=4))
        assert caught.value.exit_code == 5
        assert "-j" in str(caught.value.hint)

    @pytest.mark.exhaustive
    def test_large_results_and_tasks(self) -> None:
        with make_executor(2) as executor:
            assert list(map(len, run_tasks(executor, chatter, [3_000_000] * 6))) == [3_000_000] * 6

    @pytest.mark.parametrize("jobs", [0, -1])
    def test_no_jobs(self, jobs: int) -> None:
        with pytest.raises(UsageError, match="--jobs"):
            make_executor(jobs)

    def test_each_process_has_enough_work(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without -j. Bytes to a store are copied like others; compressed ones are worth more."""
        monkeypatch.setattr(local, "default_jobs", lambda: 4)
        sizes = [
            0,
            MIN_PARALLEL_BYTES,
            2 * MIN_PARALLEL_BYTES - 1,
            2 * MIN_PARALLEL_BYTES,
            100 * MIN_PARALLEL_BYTES,
        ]
        assert [useful_jobs(None, 9, size) for size in sizes] == [1, 1, 1, 2, 4]
        assert [useful_jobs(3, 9, size) for size in sizes] == [3] * 5  # tests set WDSCLI_JOBS
        monkeypatch.delenv("WDSCLI_JOBS")
        assert [useful_jobs(3, 9, size) for size in sizes] == [1, 1, 1, 2, 3]
        assert [useful_jobs(3, 9, size, waits=True) for size in sizes] == [3] * 5
        assert [useful_jobs(6, 5, size) for size in sizes[3:]] == [2, 5]
        assert [
            useful_shard_jobs(5, [f"{place}/{n}" for n in range(9)], 100) for place in ("s3://none", "none")
        ] == [
            5,
            1,
        ]
        assert (
            copying_worth("a.tar", "{name}.tar")
            > copying_worth("a.tar", "s3://b/{name}.tar")
            == MIN_PARALLEL_BYTES
        )
        assert copying_worth("a.tar", "s3://b/{name}.tar.zst") < MIN_PARALLEL_BYTES // 10
        assert [useful_shard_jobs(None, [f"s3://none/{n}" for n in range(m)], 100) for m in (1, 3, 9)] == [
            1,
            3,
            4,
        ]

    def test_the_processors_that_may_be_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 5, 9}, raising=False)
        assert default_jobs() == 3


class TestGivingUp:
    """An exception in the block ends the workers at once, by their own way out."""

    def test_workers_are_ended_and_clean_up(self, tmp_path: Path) -> None:
        names = [str(tmp_path / "a"), str(tmp_path / "b")]
        with pytest.raises(KeyboardInterrupt), make_executor(2) as executor:
            results = run_tasks(executor, linger, names, window=2)
            next_to_come = [executor.submit(linger, name) for name in names]
            while not all(map(_has_text, names)):
                time.sleep(0.01)
            assert results
            assert next_to_come
            raise KeyboardInterrupt
        for name in names:
            assert Path(name + ".left").exists()
            assert not _is_alive(int(Path(name).read_text()))

    def test_one_that_does_not_listen_is_killed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(local, "PATIENCE_SECONDS", 0.3)
        name = str(tmp_path / "deaf")
        with pytest.raises(RuntimeError), make_executor(2) as executor:
            executor.submit(deaf, name)
            while not _has_text(name):
                time.sleep(0.01)
            raise RuntimeError
        assert not _is_alive(int(Path(name).read_text()))

    def test_in_a_finalizer(self, tmp_path: Path, capfd: Any) -> None:
        """Where Python would pass over the order to end, and say so on standard error."""
        begun = time.monotonic()
        name = str(tmp_path / "a")
        with pytest.raises(RuntimeError), make_executor(2) as executor:
            executor.submit(finalizes, name)
            _wait_for(lambda: _has_text(name))
            raise RuntimeError
        assert time.monotonic() - begun < local.PATIENCE_SECONDS
        assert Path(name + ".left").exists()
        assert capfd.readouterr().err == ""

    @pytest.mark.exhaustive
    def test_in_the_middle_of_large_messages(self) -> None:
        with pytest.raises(RuntimeError), make_executor(2) as executor:
            for _ in range(30):
                executor.submit(chatter, 20_000_000)
                executor.submit(len, bytes(5_000_000))
            time.sleep(1)
            raise RuntimeError

    def test_workers_do_not_outlive_a_parent_that_is_killed(self, tmp_path: Path) -> None:
        name = str(tmp_path / "a")
        parent = subprocess.Popen([sys.executable, executor_tasks.__file__, name], stderr=subprocess.DEVNULL)
        try:
            _wait_for(lambda: _has_text(name))
        finally:
            parent.kill()
            parent.wait()
        worker = int(Path(name).read_text())
        _wait_for(lambda: not _is_alive(worker))
        assert Path(name + ".left").exists()


def deaf(path: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(path).write_text(str(os.getpid()))
    time.sleep(3600)


def _has_text(name: str) -> bool:
    path = Path(name)
    return path.exists() and bool(path.read_text())


def _wait_for(holds: Any, seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.02)


def _is_alive(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


class TestInterruptsHeld:
    """A signal that another thread gets is answered after the block too."""

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_by_another_thread(self, number: signal.Signals) -> None:
        class Came(BaseException):
            pass

        def answer(*_: Any) -> None:
            raise Came

        over = threading.Event()
        # A thread that was there before has no mask of ours: the kernel hands it what the main thread blocks.
        other = threading.Thread(target=over.wait)
        other.start()
        before = signal.signal(number, answer)
        steps = []
        try:
            with pytest.raises(Came), local._start_workers():
                os.kill(os.getpid(), number)
                for step in range(50):
                    time.sleep(0.001)
                    steps.append(step)
            assert len(steps) == 50
            assert signal.getsignal(number) is answer
        finally:
            signal.signal(number, before)
            over.set()
            other.join()

    def test_nothing_came(self) -> None:
        before = signal.getsignal(signal.SIGINT)
        with local._start_workers():
            pass
        assert signal.getsignal(signal.SIGINT) is before

    def test_a_worker_is_started_whole(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Ctrl-C while a worker starts is raised when the pool knows the worker, and can end it."""
        made, begin = [], BaseProcess.start

        def slowly(process: BaseProcess) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            begin(process)
            made.append(True)

        monkeypatch.setattr(BaseProcess, "start", slowly)
        with pytest.raises(KeyboardInterrupt), make_executor(2) as executor:
            executor.submit(double, 1)
        assert made == [True]
        assert not multiprocessing.active_children()

    def test_a_thread_of_a_task_does_not_keep_its_worker(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(local, "PATIENCE_SECONDS", 0.1)
        with make_executor(2) as executor:
            assert list(run_tasks(executor, leave_a_thread, [7])) == [7]

    @pytest.mark.exhaustive
    def test_a_worker_is_lost_while_tasks_wait(self, tmp_path: Path) -> None:
        """All tasks that wait fail, and the other worker ends with the block."""
        name = str(tmp_path / "a")
        with make_executor(2) as executor:
            tasks = [executor.submit(linger, name), *(executor.submit(die, 0) for _ in range(200))]
            _wait_for(lambda: _has_text(name))
            os.kill(int(Path(name).read_text()), signal.SIGKILL)
        assert all(task.done() for task in tasks)
        assert isinstance(tasks[-1].exception(), BrokenExecutor)


def test_a_killed_group_leaves_no_files(tmp_path: Path) -> None:
    """The semaphores of Python's own pool are files in /dev/shm."""
    name = str(tmp_path / "a")
    parent = subprocess.Popen([sys.executable, executor_tasks.__file__, name], start_new_session=True)
    try:
        _wait_for(lambda: _has_text(name))
        maps = Path(f"/proc/{parent.pid}/maps").read_text().splitlines()
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()
    # The maps name other files, because glibc renames those of semaphores.
    shared = {int(one.split()[4]) for one in maps if "/dev/shm/" in one}
    assert shared
    assert not [one for one in os.scandir("/dev/shm") if one.inode() in shared]


@pytest.mark.skipif(
    not hasattr(os, "confstr") or "glibc" not in os.confstr("CS_GNU_LIBC_VERSION"), reason="not glibc"
)
def test_a_command_takes_memory_from_the_system_once() -> None:
    """A plan of many shards cleared the same pages anew for each shard, which took as long as planning."""
    program = """
import resource, sys
from wdscli.executors.local import keep_freed_memory
if sys.argv[1:]:
    keep_freed_memory()
for _ in range(50):
    blocks = [bytes(800_000) for _ in range(20)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""
    usual, kept = (
        int(subprocess.run([sys.executable, "-c", program, *words], capture_output=True, check=True).stdout)
        for words in ([], ["kept"])
    )
    assert kept < usual / 4
