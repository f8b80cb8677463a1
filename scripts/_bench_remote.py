"""Object stores, behind ``scripts/bench --remote``: ours beside boto3, on a server of this machine.

How: moto's S3 runs in a process of its own, which counts requests and bytes and may hold back each answer for 20 ms.
Each row runs boto3 and ours in the same round, as whole processes, and shows boto3's time over ours (1x: as fast), the
median over the rounds, once with s3fs and once with obstore where it is installed; and the GETs, the other requests and
the bytes received over those of the set that ours took. The loader is timed beside ``wds cat``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BUCKET = "bench"
SERVER = """
import collections, json, sys, threading, time
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server
import logging
logging.getLogger("werkzeug").setLevel(logging.ERROR)

inner = DomainDispatcherApplication(create_backend_app)
counts, lock, delay = collections.Counter(), threading.Lock(), [0.0]

def application(environ, start_response):
    if environ["PATH_INFO"].startswith("/-counts/"):
        delay[0] = float(environ["PATH_INFO"].rpartition("/")[2])
        body = json.dumps(counts).encode()
        counts.clear()
        start_response("200 OK", [("Content-Length", str(len(body)))])
        return [body]
    time.sleep(delay[0])
    method = environ["REQUEST_METHOD"]
    body = list(inner(environ, start_response))
    with lock:
        counts[method] += 1
        counts[method + " bytes"] += sum(map(len, body))
    return body

WSGIRequestHandler.protocol_version = "HTTP/1.1"
server = make_server("127.0.0.1", 0, application, threaded=True)
print(server.server_port, flush=True)
server.serve_forever()
"""
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
import sys
import wdscli.loader as wds
loader = wds.WebDataset(sys.argv[1])
if sys.argv[2:]:
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
        Row("loader, shuffled by a window", "wds cat", [*python, LOADER, there, "1000"], cat, 0.8, 0.8),
    ]


class Server:
    """moto in a process of its own."""

    def __init__(self, port: str) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def counts(self, delay_seconds: float) -> dict[str, int]:
        """What was counted since it was asked last; from now on answers wait for so long."""
        with urllib.request.urlopen(f"{self.url}/-counts/{delay_seconds}") as answer:
            found: dict[str, int] = json.load(answer)
        return found


@contextmanager
def server() -> Iterator[Server]:
    """Until the block ends, the environment leads clients of S3 there."""
    process = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    found = Server(process.stdout.readline().strip())
    os.environ.update(
        AWS_ENDPOINT_URL=found.url,
        AWS_ACCESS_KEY_ID="k",
        AWS_SECRET_ACCESS_KEY="s",
        AWS_DEFAULT_REGION="us-east-1",
        PYTHONPATH=str(ROOT),
    )
    try:
        yield found
    finally:
        process.kill()
        process.wait()


def put_set(folder: Path, size_mb: int) -> tuple[list[str], int]:
    """Four shards of payloads of 20 kB, in the bucket; their keys and bytes."""
    import boto3

    from wdscli.shards import ShardWriter

    client = boto3.client("s3")
    client.create_bucket(Bucket=BUCKET)
    keys, size, noise = [], 0, random.Random(0)
    for shard in range(4):
        path = folder / f"a-{shard}.tar"
        with ShardWriter(str(path)) as writer:
            for number in range(size_mb * 50 // 4):
                writer.write(f"{shard}-{number:06d}", {"bin": noise.randbytes(20_000)})
        for one in (path, *folder.glob(f".wds/{path.name}.wdx")):
            client.upload_file(str(one), BUCKET, f"in/{one.relative_to(folder)}")
        keys.append(f"in/{path.name}")
        size += path.stat().st_size
    return keys, size


def timed(words: list[str], keys: list[str]) -> float:
    """The seconds that a program takes from its start to its end."""
    spread = [part for word in words for part in (keys if word == "{keys}" else [word])]
    begin = time.perf_counter()
    subprocess.run(spread, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def measured(
    row: Row, store: Server, keys: list[str], rounds: int, delay: float
) -> tuple[float, dict[str, int]]:
    """The ratio, and what ours took of the server in its last round."""
    ratios, counts = [], {}
    for _ in range(rounds):
        theirs = timed(row.theirs, keys)
        store.counts(delay)
        ours = timed(row.ours, keys)
        counts = store.counts(delay)
        ratios.append(theirs / ours)
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
        with server() as store:
            keys, size = put_set(folder, 60 if options.quick else 400)
            print(f"{len(keys)} shards, {size / 1e6:.0f} MB\n")
            head = f"{'':28} {'store':7} {'beside':7} {'delay':>5} {'ratio':>6} {'aim':>5}"
            print(f"{head} {'GET':>5} {'other':>5} {'bytes':>6}")
            chosen = [row for row in rows() if options.only in row.work]
            for row, delay, name in product(chosen, (0.0, 0.02), stores()):
                os.environ["WDSCLI_STORE"] = "fsspec" if name == "s3fs" else name
                store.counts(delay)
                rounds = options.rounds or (2 if options.quick else 3)
                ratio, counts = measured(row, store, keys, rounds, delay)
                other = sum(number for kind, number in counts.items() if kind != "GET" and " " not in kind)
                print(
                    f"{row.work:28} {name:7} {row.peer:7} {delay * 1000:3.0f}ms {ratio:5.2f}x "
                    f"{row.aim if name == 's3fs' else row.fast:4.1f}x {counts.get('GET', 0):5} {other:5} "
                    f"{counts.get('GET bytes', 0) / size:6.2f}",
                    flush=True,
                )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
