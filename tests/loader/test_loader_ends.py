"""Ends that nobody planned: Ctrl-C, a trainer that was killed, a server that says nothing more, a fork at any time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from loader_cases import make_set
from loader_sets import serve
from storage_servers import Web, web_server
from torch_processes import Program

import wdscli.loader as wds
from wdscli.errors import UsageError
from wdscli.loader.order.source import EpochReader
from wdscli.loader.place.ranks import Batches, Share
from wdscli.loader.read import failures, fetch, reading
from wdscli.storage import retry
from wdscli.threads import DaemonPool, ForkLock

PATIENCE_SECONDS = 60
"""Of a test, on a machine that has much else to do."""

TRAINER = """
import os, signal, sys, time
import torch.utils.data
import wdscli.loader as wds
from wdscli.loader import torch_loader as workers

class Hurried:
    def __setstate__(self, state):
        workers.LOOK_SECONDS = workers.GRACE_SECONDS = 0.1
    def __getstate__(self):
        return {}
    def __call__(self, sample):
        os.write(1, b"%d\\n" % os.getpid())
        return sample

if __name__ == "__main__":
    address, context, act = sys.argv[1:]
    if context == "fork":
        Hurried().__setstate__({})
    torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 600  # for the end of a worker
    data = wds.WebDataset(address).map(Hurried()).listed(40)
    items = iter(wds.WebLoader(
        data, num_workers=2, persistent_workers=True, prefetch_factor=4, multiprocessing_context=context))
    try:
        next(items)
        time.sleep(2)
        os.write(1, b"full\\n")
        time.sleep(600)
    except KeyboardInterrupt:
        items.close()
        import gc; gc.collect()
        print("ended", flush=True)
"""


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Any]:
    """Starts a program whose workers have made more than fits in their pipe, and gives it and their numbers."""
    pytest.importorskip("torch")
    program = tmp_path / "train.py"
    program.write_text(TRAINER)
    begun = []

    def start(context: str) -> tuple[Program, set[int]]:
        address = make_set(tmp_path / "set", 400, 100, 50_000)
        one = Program(program, address, context, "")
        begun.append(one.pid)
        workers = set()
        for line in one.stdout:
            if line == "full\n":
                return one, workers
            workers.add(int(line))
        raise AssertionError(one.communicate())

    yield start
    for pid in begun:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def _ended(pids: set[int]) -> bool:
    until = time.monotonic() + PATIENCE_SECONDS
    while any(_is_running(pid) for pid in pids):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.exhaustive(sample=False)
@pytest.mark.skipif(not Path("/proc").exists(), reason="what runs is looked for in /proc")
@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_workers_end_when_the_trainer_was_killed(trainer: Any, context: str) -> None:
    program, workers = trainer(context)
    assert len(workers) == 2
    os.kill(program.pid, signal.SIGKILL)
    assert _ended(workers)


@pytest.mark.exhaustive
def test_workers_that_hear_ctrl_c_too_end_at_once(trainer: Any) -> None:
    program, workers = trainer("fork")
    for worker in workers:
        os.kill(worker, signal.SIGINT)
    time.sleep(0.5)
    os.kill(program.pid, signal.SIGINT)
    assert _ended(workers)
    assert program.communicate() == ("ended\n", "")


READER = """
import sys
import wdscli.loader as wds
data = wds.WebDataset(sys.argv[1], prefetch="1MB")
items = iter(data)
for number in range(int(sys.argv[2])):
    next(items)
print("there", flush=True)
for item in items if "on" in sys.argv else ():
    pass
"""


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    make_set(tmp_path / "set", 200, 20, 20_000)
    with web_server("ranges") as server:
        serve(server, tmp_path)
        yield server


def _reader(web: Web, *arguments: object) -> subprocess.Popen[str]:
    address = web.url("set/in-{000000..000009}.tar")
    words = [sys.executable, "-c", READER, address, *map(str, arguments)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("answers", [0, 30, 50])
def test_ctrl_c_ends_what_waits_for_a_server_that_says_nothing(web: Web, answers: int) -> None:
    silent, go_on = threading.Event(), threading.Event()
    seen: list[str] = []

    def stall(name: str) -> None:
        seen.append(name)
        if len(seen) > answers:
            silent.set()
            go_on.wait(600)

    web.on_get = stall
    reader = _reader(web, 1, "on")
    try:
        assert silent.wait(PATIENCE_SECONDS)
        time.sleep(1)
        reader.send_signal(signal.SIGINT)
        _, said = reader.communicate(timeout=PATIENCE_SECONDS)
        assert reader.returncode == -signal.SIGINT
        assert said.rstrip().endswith("KeyboardInterrupt")
        assert said.count("Traceback") == 1
    finally:
        reader.kill()
        go_on.set()


@pytest.mark.exhaustive
def test_a_program_may_end_in_the_middle_of_an_iteration(web: Web) -> None:
    reader = _reader(web, 3)
    try:
        assert reader.communicate(timeout=PATIENCE_SECONDS) == ("there\n", "")
        assert reader.returncode == 0
    finally:
        reader.kill()


class Standing(EpochReader):
    """A reader whose thread never comes back."""

    def __init__(self) -> None:
        self.reads = threading.Event()
        self.go_on = threading.Event()

    def read(self, positions: Any) -> list[Any]:
        self.reads.set()
        self.go_on.wait()
        return list(positions)


def _ahead(reader: Any) -> reading.ReadAheadThread:
    batches = Batches(100, 1, Share(), "even")
    return reading.ReadAheadThread(reader, reading.Agenda(batches, range(100)), 1000, reading.Times())


@pytest.fixture
def standing() -> Iterator[Standing]:
    reader, before = Standing(), threading.enumerate()
    yield reader
    reader.go_on.set()
    # A thread that is left over would be counted by other tests of this process.
    for thread in threading.enumerate():
        if thread.name == "wdscli-ahead" and thread not in before:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()


def test_nothing_waits_for_threads_that_python_has_stopped(
    standing: Standing, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = threading.Event()

    def leave() -> None:
        pool = DaemonPool(1, "test")
        pool.submit(standing.go_on.wait)
        with _ahead(standing) as ahead:
            standing.reads.wait()
            ahead._changed.acquire()
            pool._works.changed.acquire()
            monkeypatch.setattr(sys, "is_finalizing", lambda: True)
        pool.shutdown()
        done.set()
        ahead._changed.release()
        pool._works.changed.release()

    threading.Thread(target=leave, daemon=True).start()
    assert done.wait(PATIENCE_SECONDS)


def test_an_iteration_does_not_go_on_in_a_fork(standing: Standing) -> None:
    with _ahead(standing) as ahead:
        child = os.fork()
        if not child:
            try:
                next(iter(ahead))
            except UsageError:
                ahead.__exit__()
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        standing.go_on.set()


def test_an_error_beside_the_reader_comes_out(standing: Standing, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise MemoryError("no room for positions")

    monkeypatch.setattr(reading.Agenda, "next", fail)
    found: list[BaseException] = []

    def iterate() -> None:
        try:
            with _ahead(standing) as ahead:
                list(ahead)
        except MemoryError as error:
            found.append(error)

    thread = threading.Thread(target=iterate, daemon=True)
    thread.start()
    thread.join(PATIENCE_SECONDS)
    assert [str(one) for one in found] == ["no room for positions"]


def test_locks_are_open_in_a_fork() -> None:
    counts = failures.SkipCounts()
    locks = [retry._counting, fetch.METER._lock, counts._lock, ForkLock()]
    for one in locks:
        one.acquire()
    child = os.fork()
    if not child:
        os._exit(sum(one.locked() for one in locks))
    for one in locks:
        one.release()
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.exhaustive
def test_a_pool_of_daemon_threads() -> None:
    with DaemonPool(3, "few") as pool:
        names = set(pool.map(lambda _: threading.current_thread().name, range(50)))
        assert names <= {"few_0", "few_1", "few_2"}
        with pytest.raises(ZeroDivisionError):
            pool.submit(lambda: 1 // 0).result()
    with pytest.raises(RuntimeError):
        pool.submit(print)
    begun, go_on = threading.Event(), threading.Event()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), DaemonPool(1, "few") as pool:
        running, waiting = pool.submit(lambda: begun.set() or go_on.wait()), pool.submit(print)
        begun.wait()
        raise KeyboardInterrupt
    assert time.monotonic() - began < PATIENCE_SECONDS
    assert waiting.cancelled()
    assert not running.done()
    go_on.set()
    running.result()


def test_threads_of_a_pool_that_is_forgotten_end() -> None:
    pool = DaemonPool(2, "forgotten")
    pool.submit(int).result()
    threads = [one for one in threading.enumerate() if one.name.startswith("forgotten")]
    assert len(threads) == 1
    del pool
    threads[0].join(PATIENCE_SECONDS)
    assert not threads[0].is_alive()


def _waits_for_a_lock() -> bool:
    return any(
        "->" in line and f" {os.getpid()} " in line for line in Path("/proc/locks").read_text().splitlines()
    )


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="who waits for locks is looked for in /proc")
def test_a_lock_of_the_cache_does_not_stay_with_a_fork(web: Web, tmp_path: Path) -> None:
    asked, go_on, found = threading.Event(), threading.Event(), []

    def stall(name: str) -> None:
        if list(tmp_path.glob("cache/.*.part")):
            asked.set()
            go_on.wait(600)

    def read() -> None:
        data = wds.WebDataset(
            web.url("set/in-000000.tar"), cache_dir=str(tmp_path / "cache"), cache_size=10**9
        )
        found.append(len(list(data)))

    web.validators, web.heads, web.on_get = ("strong",), [], stall
    threads = [threading.Thread(target=read, daemon=True) for _ in range(2)]
    threads[0].start()
    assert asked.wait(PATIENCE_SECONDS)
    child = os.fork()
    if not child:
        time.sleep(600)
        os._exit(0)
    try:
        threads[1].start()
        until = time.monotonic() + PATIENCE_SECONDS
        while not _waits_for_a_lock() and time.monotonic() < until:
            time.sleep(0.01)
        go_on.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        assert found == [20, 20]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are counted in /proc")
def test_a_table_that_is_forgotten_has_no_file_open(tmp_path: Path) -> None:
    address = make_set(tmp_path / "set")

    def opened() -> int:
        return sum("/set/" in os.readlink(one) for one in Path("/proc/self/fd").iterdir() if one.is_symlink())

    table = wds.IndexedDataset(address)
    assert [table[0]["__key__"], table[50]["__key__"]] == ["n0000", "n0050"]
    assert opened() == 2
    del table
    assert opened() == 0


@pytest.mark.exhaustive
def test_iterations_in_several_threads(web: Web) -> None:
    address = web.url("set/in-{000000..000009}.tar")
    data = wds.WebDataset(address, shuffle="window", prefetch="1MB")
    keys = [sample["__key__"] for sample in data]
    data.set_epoch(0)
    one, other = iter(data), iter(data)
    first = [next(one)["__key__"] for _ in range(50)]
    found: dict[int, list[str]] = {}

    def go_on(number: int, items: Iterator[Any]) -> None:
        found[number] = [sample["__key__"] for sample in items]

    threads = [threading.Thread(target=go_on, args=each) for each in enumerate([one, other])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert first + found[0] == found[1] == keys
