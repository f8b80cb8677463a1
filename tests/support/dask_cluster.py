"""A Dask cluster of real processes on 127.0.0.1, for the tests of ``--engine dask://...``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Cluster:
    """A scheduler and its workers, each with one thread, in folders of their own; ``url`` is what ``--engine`` takes.
    A task that its worker dies of twice is given up."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "scheduler.json"
        self._processes: list[subprocess.Popen[bytes]] = []
        self.scheduler = self._start("scheduler", "--port", "0", "--scheduler-file", str(self.file))
        wait_for(lambda: self.file.exists() and b"address" in self.file.read_bytes())
        self.address: str = json.loads(self.file.read_bytes())["address"]
        self.url = self.address.replace("tcp://", "dask://")

    def add_worker(self, *, nanny: bool = False, hides: Path | None = None) -> subprocess.Popen[bytes]:
        """One more worker; with a nanny it is started again when it dies. A worker that ``hides`` a folder finds it
        empty, and no other process sees its files."""
        return self._start(
            "worker", "--scheduler-file", str(self.file), "--nanny" if nanny else "--no-nanny", "--nthreads", "1",
            "--memory-limit", "0", "--local-directory", ".",
            before=[] if hides is None
            else ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(hides)],
        )  # fmt: skip

    def _start(self, what: str, *args: str, before: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        folder = self.folder / f"{what}-{len(self._processes)}"
        folder.mkdir(parents=True)
        with open(folder / "log", "wb") as log:
            words = ["-m", f"distributed.cli.dask_{what}", "--host", "127.0.0.1", "--no-dashboard", *args]
            process = subprocess.Popen(
                [*before, sys.executable, *words],
                cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1",
                     "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False"},
            )  # fmt: skip
        self._processes.append(process)
        return process

    def wait_for_workers(self, count: int) -> None:
        from distributed import Client

        with Client(self.address, set_as_default=False) as client:
            client.wait_for_workers(count, timeout=60)

    def worker_processes(self) -> list[int]:
        """The processes in which tasks run."""
        from distributed import Client

        with Client(self.address, set_as_default=False) as client:
            return sorted(client.run(os.getpid).values())

    def logs(self) -> str:
        return "".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("*/log")))

    def close(self) -> None:
        for process in reversed(self._processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(3)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def dask_cluster(folder: Path, workers: int = 2, *, nanny: bool = False) -> Iterator[Cluster]:
    cluster = Cluster(folder)
    try:
        for _ in range(workers):
            cluster.add_worker(nanny=nanny)
        if workers:
            cluster.wait_for_workers(workers)
        yield cluster
    finally:
        cluster.close()


def wait_for(holds: Any, seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.02)
