"""A shuffle record that anyone can repeat, behind ``scripts/record``: S3 to S3, on a Dask cluster whose workers die.

This program starts an S3 server, a Dask scheduler and N workers with little memory, and shuffles a set from the server
to the server. It kills a tenth of the workers at random while the shuffle runs, and compares the output with that of
one process. Then it prints processor time, requests, bytes and peak memory for each GB, and from them the cost of one
TB at list prices. The processor time of the server is not counted: on AWS, the price of requests contains it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil
from _bench_remote import BUCKET, ROOT, Relay, put_set, server

SAMPLE_SECONDS = 0.1
"""The time between two looks at the processes."""
MIB, GB, TB = 2**20, 10**9, 10**12
QUIET_DASK = {
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "1s",
}
"""Settings of Dask. With its defaults, an idle worker and its nanny take 5 % of a processor."""


class Machine(NamedTuple):
    """A machine of AWS and its list price: us-east-1, Linux, on demand. ``network`` is the rate that lasts, in bytes a
    second."""

    name: str
    processors: int
    network: float
    dollars_per_hour: float


MACHINES = [
    Machine("c7g.4xlarge", 16, 7.5e9 / 8, 0.58),
    Machine("c7gn.4xlarge", 16, 50e9 / 8, 0.9984),
    Machine("c7i.4xlarge", 16, 6.25e9 / 8, 0.714),
    Machine("m7i.4xlarge", 16, 6.25e9 / 8, 0.8064),
]
DOLLARS_PER_READ = 0.0004 / 1000
"""GET of S3 Standard."""
DOLLARS_PER_WRITE = 0.005 / 1000
"""PUT, POST, COPY and LIST of S3 Standard."""
FLOOR_REQUEST_BYTES = 64 << 20
"""The size of each request in the floor."""
AIM_DOLLARS = 0.50
AIM_REQUESTS = 130
AIM_BYTES = 1.1
CLOUDSORT_DOLLARS = 0.97
"""Exoshuffle sorts 100 TB on AWS for 97 dollars: arXiv 2301.03734."""


class Use(NamedTuple):
    """What a run took: seconds by the clock, processor seconds of all our processes, and the most memory of one worker
    and of the client."""

    seconds: float
    processor_seconds: float
    worker_bytes: int
    client_bytes: int


class Watch:
    """Adds up what some programs and all their children take, also of those that die: a thread looks at them ten times
    a second."""

    def __init__(self, workers: Sequence[int]) -> None:
        self._workers = list(workers)
        self._client: int | None = None
        self._spent: dict[tuple[int, float], float] = {}
        self._base: dict[tuple[int, float], float] = {}
        self._peak = {True: 0, False: 0}
        self._ended = threading.Event()
        self._look()
        self._base = dict(self._spent)
        self._peak = {True: 0, False: 0}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._begin = time.perf_counter()

    def start(self, client: int) -> None:
        """Watch the client too, from now on."""
        self._client = client
        self._thread.start()

    def stop(self) -> Use:
        """Return what was taken since the start."""
        seconds = time.perf_counter() - self._begin
        self._ended.set()
        self._thread.join()
        spent = sum(used - self._base.get(key, 0.0) for key, used in self._spent.items())
        return Use(seconds, spent, self._peak[False], self._peak[True])

    def _run(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            self._look()

    def _look(self) -> None:
        roots = [(pid, False) for pid in self._workers]
        if self._client is not None:
            roots.append((self._client, True))
        for root, is_client in roots:
            with suppress(psutil.Error):
                process = psutil.Process(root)
                for one in (process, *process.children(recursive=True)):
                    with suppress(psutil.Error):
                        used = one.cpu_times()
                        self._spent[one.pid, one.create_time()] = used.user + used.system
                        self._peak[is_client] = max(self._peak[is_client], one.memory_info().rss)


@contextmanager
def cluster(folder: Path, nodes: int) -> Iterator[tuple[str, list[int]]]:
    """Until the block ends, a scheduler and its workers run, which start again when they are killed; the address for
    ``--engine``, and the processes of the workers' nannies."""
    from distributed import Client

    file = folder / "scheduler.json"
    processes: list[subprocess.Popen[bytes]] = []

    def start(what: str, *options: str) -> None:
        with open(folder / f"{what}-{len(processes)}.log", "wb") as log:
            words = [
                sys.executable,
                "-m",
                f"distributed.cli.dask_{what}",
                "--host",
                "127.0.0.1",
                "--no-dashboard",
            ]
            where = {"cwd": folder, "stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            where["env"] = os.environ | QUIET_DASK
            processes.append(subprocess.Popen([*words, *options], **where))  # type: ignore[call-overload]

    try:
        start("scheduler", "--port", "0", "--scheduler-file", str(file))
        while not file.exists() or b"address" not in file.read_bytes():
            time.sleep(0.05)
        for _ in range(nodes):
            start(
                "worker", "--scheduler-file", str(file), "--nanny", "--nthreads", "1", "--memory-limit", "0"
            )
        address = json.loads(file.read_bytes())["address"]
        with Client(address, set_as_default=False) as client:
            client.wait_for_workers(nodes, timeout=60)
        yield address.replace("tcp://", "dask://"), [one.pid for one in processes[1:]]
    finally:
        for one in reversed(processes):
            one.send_signal(signal.SIGTERM)
        for one in processes:
            try:
                one.wait(5)
            except subprocess.TimeoutExpired:
                one.kill()


def shuffled(out: str, *options: str) -> list[str]:
    """The words of the shuffle."""
    there, into = f"s3://{BUCKET}/in/", f"s3://{BUCKET}/{out}/s-%d.tar"
    return [sys.executable, "-m", "wdscli", "shuffle", there, "-o", into, "--seed", "7", "-q", *options]


def run_and_kill(
    words: list[str], nannies: list[int], kills: int, latest: float, chance: random.Random
) -> tuple[Use, int]:
    """Run the shuffle, and kill workers at random times, up to ``latest`` seconds after its start. Return what it took,
    and how many workers were killed."""
    watch = Watch(nannies)
    client = subprocess.Popen(words)
    watch.start(client.pid)
    killed = 0
    due = sorted(chance.uniform(1.0, latest) for _ in range(kills))
    begin = time.perf_counter()
    while client.poll() is None:
        if due and time.perf_counter() - begin > due[0]:
            nanny = psutil.Process(chance.choice(nannies))
            # The worker is the child that uses the most memory; the other one only tracks resources.
            workers = sorted(nanny.children(), key=lambda one: one.memory_info().rss)
            if workers:
                workers[-1].kill()
                killed += 1
                due.pop(0)
        time.sleep(0.02)
    use = watch.stop()
    if client.returncode:
        raise SystemExit(f"the shuffle failed with exit code {client.returncode}")
    return use, killed


def checksums(out: str) -> list[tuple[str, str, int]]:
    """Name, checksum and samples of the shards of an output, by its manifest."""
    import boto3

    client = boto3.client("s3")
    [name] = [
        one["Key"]
        for one in client.list_objects_v2(Bucket=BUCKET, Prefix=f"{out}/")["Contents"]
        if one["Key"].endswith("-manifest.json")
    ]
    manifest = json.loads(client.get_object(Bucket=BUCKET, Key=name)["Body"].read())
    return [(one["url"], one["checksum"], one["nsamples"]) for one in manifest["shardlist"]]


def print_prices(processor_seconds: float, reads: float, writes: float, moved_bytes: float) -> None:
    """The table at the head of the page: dollars for one TB on each machine. Requests and processor time are those of
    one GB, ``moved_bytes`` the bytes through the network for each byte of the set."""
    requests = TB / GB * (reads * DOLLARS_PER_READ + writes * DOLLARS_PER_WRITE)
    least = TB / FLOOR_REQUEST_BYTES * (DOLLARS_PER_READ + DOLLARS_PER_WRITE)
    print(
        "Calculated for 1 TB, in dollars at list prices (us-east-1, on demand). "
        "Floor: each byte is read once and written once.\n"
    )
    print("| machine        | hours of processor | hours of network | machine | requests | total | floor |")
    print("|----------------|--------------------|------------------|---------|----------|-------|-------|")
    for one in MACHINES:
        busy = processor_seconds * TB / GB / 3600 / one.processors
        moving = moved_bytes * TB / one.network / 3600
        hours = max(busy, moving)
        cost = hours * one.dollars_per_hour
        floor = 2 * TB / one.network / 3600 * one.dollars_per_hour + least
        print(
            f"| {one.name:14} | {busy:18.2f} | {moving:16.2f} | {cost:7.2f} | {requests:8.2f} | {cost + requests:5.2f} "
            f"| {floor:5.2f} |"
        )
    print(
        f"\nThe aim is {AIM_DOLLARS:.2f} dollars. CloudSort's record is {CLOUDSORT_DOLLARS} "
        "(100 TB, arXiv 2301.03734).\n"
    )


def main() -> None:
    """Run the record, and print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=2, help="workers of the cluster, one process each")
    parser.add_argument("--size", default="1GB", help="bytes of the set")
    parser.add_argument("--memory", default="512MiB", help="memory of one worker")
    parser.add_argument(
        "--strategy", choices=("gather", "spill"), help="as wds shuffle's; default: it chooses"
    )
    parser.add_argument("--tmp", default=f"s3://{BUCKET}/tmp", help="scratch space; default: on the server")
    parser.add_argument("--dir", default="/dev/shm", help="where the server keeps its data")
    parser.add_argument("--seed", type=int, default=0, help="which workers are killed, and when")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from wdscli.units import parse_size

    size_mb = parse_size(options.size) // 10**6
    folder = Path(options.dir) / f"wdscli-record-{os.getpid()}"
    folder.mkdir(parents=True)
    try:
        with server(folder) as store:
            keys, size = put_set(folder, size_mb)
            with cluster(folder, options.nodes) as (engine, nannies):
                page(store, keys, size, engine, nannies, options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def page(
    store: Relay, keys: list[str], size: int, engine: str, nannies: list[int], options: argparse.Namespace
) -> None:
    """Run the shuffle on the cluster and in one process, compare them, and print what it took."""
    kills = max(1, options.nodes // 10)
    memory = ["--memory", options.memory, "--shards", str(len(keys))]
    strategy = ["--strategy", options.strategy] if options.strategy else []
    tmp = ["--tmp", options.tmp]
    store.take_counts()
    words = shuffled("out", "--engine", engine, *memory, *strategy, *tmp)
    use, killed = run_and_kill(words, nannies, kills, 2 + 5 * size / GB, random.Random(options.seed))
    counts = store.take_counts()
    subprocess.run(shuffled("alone", "-j1", *memory), check=True)
    if checksums("out") != checksums("alone"):
        raise SystemExit("the shards of the cluster differ from those of one process")
    verify = [sys.executable, "-m", "wdscli", "verify", "--checksums", f"s3://{BUCKET}/out/", "-q"]
    subprocess.run(verify, check=True)
    each = GB / size
    reads = counts["GET"] + counts["HEAD"]
    writes = sum(counts[verb] for verb in ("PUT", "POST"))
    processor = use.processor_seconds * each
    moved = (counts["received"] + counts["sent"]) / size
    print_prices(processor, reads * each, writes * each, moved)
    print(
        f"Measured: {size / GB:.2f} GB in {len(keys)} shards, {options.nodes} workers, {os.cpu_count()} processors.\n"
    )
    read, written = counts["received"] / size, counts["sent"] / size
    lines = {
        "killed": f"{killed} of {options.nodes} workers; the output is verified, and identical to that of one process",
        "elapsed": f"{use.seconds:.1f} s; the server runs on the same machine",
        "processor": f"{processor:.2f} s a GB, of all workers and the client",
        "requests": f"{(reads + writes) * each:.0f} a GB, {reads * each:.0f} of them reads (aim: {AIM_REQUESTS})",
        "bytes": f"{read:.2f} times the set read, {written:.2f} times written (aim: {AIM_BYTES}, by a store: 2)",
        "peak memory": f"{use.worker_bytes / MIB:.0f} MiB in a worker, {use.client_bytes / MIB:.0f} MiB in the client",
    }
    for name, text in lines.items():
        print(f"{name:12} {text}")


if __name__ == "__main__":
    main()
