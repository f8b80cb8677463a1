"""The bench behind ``scripts/bench``: rows of (ours, peer) on three seeded sets, and the table of their ratios.

The sets: ``tiny`` has two members of a few bytes a sample, ``text`` one of 2 KB, ``images`` a picture of 100 KB (random
bytes: nothing here decodes), a JSON caption and a class. Whole-process rows start a program; the others call
functions in a process of their own, without its start. Outputs are removed before every run, because a full page
cache slows the next. Memory is that of whole commands in one process; plans are made of synthetic indexes, whose shards
have nothing but the headers that are looked at.
"""

from __future__ import annotations

import argparse
import io
import mmap
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

BIN = Path(sys.executable).parent
# A program that is installed has its modules compiled; a checkout must be allowed to keep what it compiles.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
COUNTS = {"tiny": 200_000, "text": 200_000, "images": 20_000}
QUICK = {"tiny": 20_000, "text": 20_000, "images": 2_000}
SHARDS = 4
ROW_BYTES = 49
"""A row of a plan."""


class Row(NamedTuple):
    """One line of the table: each side is a shell command or the name of a function of this file."""

    work: str
    peer: str
    ours: str
    theirs: str
    targets: dict[str, float]


def _row(
    work: str, peer: str, ours: str, theirs: str, tiny: float = 0, text: float = 0, images: float = 0
) -> Row:
    targets = {kind: aim for kind, aim in (("tiny", tiny), ("text", text), ("images", images)) if aim}
    return Row(work, peer, ours, theirs, targets)


CAT = "$ cat $SET/*.tar > $OUT/all.tar"
SHUFFLE = "$ wds shuffle $SET -o $OUT/s-%06d.tar -q --shards 4"
GATHER, SPILL = f"{SHUFFLE} --strategy gather", f"{SHUFFLE} --strategy spill --memory 256MiB --tmp $OUT"
ROWS = [
    _row("list members (library)", "tarfile", "list_ours", "list_tarfile", 10, 10, 8),
    _row("iterate samples (library)", "webdataset", "iterate_ours", "iterate_webdataset", 12, 10, 7),
    _row("write to /dev/null (library)", "TarWriter", "write_ours", "write_webdataset", 15, 12, 8),
    _row("wds ls --members", "tar tf", "$ wds ls --members $WHOLE", "$ tar tf $WHOLE", 0.5, 0.6, 0.6),
    _row(
        "wds create",
        "tar cf",
        "$ wds create $TREE -o $OUT/c-%06d.tar -q",
        "$ tar cf $OUT/c.tar -C $TREE .",
        tiny=0.7,
        images=0.8,
    ),
    _row("wds cat -o", "cat", "$ wds cat $SET -o $OUT/all.tar -q", CAT, images=0.7),
    _row("wds split", "cat", "$ wds split $SET -o $OUT/s-%06d.tar -q --shards 8", CAT, 0.15, 0.27, 0.75),
    _row("wds merge", "cat", "$ wds merge $SET -o $OUT/m-%06d.tar -q --shards 2", CAT, 0.15, 0.27, 0.75),
    _row("wds shuffle", "cat", "$ wds shuffle $SET -o $OUT/s-%06d.tar -q", CAT, images=0.5),
    _row("wds shuffle, gather, -j1", "cat", f"{GATHER} -j1", CAT, 0.09, 0.14, 0.55),
    _row("wds shuffle, gather, -j2", "cat", f"{GATHER} -j2", CAT, 0.10, 0.17, 0.7),
    _row("wds shuffle, spill, -j1", "cat", f"{SPILL} -j1", CAT, 0.07, 0.10, 0.28),
    _row("wds shuffle, spill, -j2", "cat", f"{SPILL} -j2", CAT, 0.11, 0.15, 0.4),
    _row(
        "wds sort --by key",
        "cat",
        "$ wds sort --by key $SET -o $OUT/o-%06d.tar -q --shards 4",
        CAT,
        0.10,
        0.17,
        0.55,
    ),
    _row("wds verify", "tar tf", "$ wds verify $WHOLE -q", "$ tar tf $WHOLE"),
    _row("wds verify --checksums", "sha256sum", "$ wds verify --checksums $SET -q", "$ sha256sum $SET/*.tar"),
]
START = [
    ("wds --version", "wds --version", 8.0),
    ("wds ls (small shard)", "wds ls $SMALL", 8.0),
    ("wds --help", "wds --help", 15.0),
]


def samples(kind: str, count: int) -> Iterator[tuple[str, dict[str, bytes]]]:
    """The samples of one set, the same every time."""
    seeded = random.Random(kind)
    blob = seeded.randbytes(1 << 20)
    for number in range(count):
        key = f"n{number % 100:02d}/img{number:07d}"
        label = b"%d" % (number % 100)
        at = seeded.randrange(len(blob) - 120_000)
        if kind == "tiny":
            yield key, {"cls": label, "id": b"%08d" % number}
        elif kind == "text":
            yield key, {"txt": blob[at : at + seeded.randrange(1500, 2500)]}
        else:
            caption = b'{"width": 640, "height": 480, "caption": "picture %d"}' % number
            yield (
                key,
                {"cls": label, "jpg": blob[at : at + seeded.randrange(80_000, 120_000)], "json": caption},
            )


def make_set(folder: Path, kind: str, count: int) -> None:
    """A set of some shards, and the same samples in one."""
    from wdscli.shards import ShardWriter

    for name, in_shard in (("set", -(-count // SHARDS)), ("whole", count)):
        (folder / name).mkdir(parents=True)
        with ShardWriter(f"{folder}/{name}/{kind}-%06d.tar", max_count=in_shard) as writer:
            for key, fields in samples(kind, count):
                writer.write(key, fields)


def make_tree(folder: Path, kind: str, count: int) -> None:
    """The same samples as files."""
    for key, fields in samples(kind, count):
        for field, data in fields.items():
            path = folder / f"{key}.{field}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def list_ours(folder: Path) -> int:
    from wdscli.storage import open_source
    from wdscli.tar import scan

    with open_source(str(one(folder))) as source:
        return sum(len(window.columns.names) for window in scan(source))


def list_tarfile(folder: Path) -> int:
    import tarfile

    with tarfile.open(one(folder)) as archive:
        return sum(1 for _ in archive)


def iterate_ours(folder: Path) -> int:
    from wdscli.shards import ShardReader

    total = 0
    for path in sorted((folder / "set").glob("*.tar")):
        with ShardReader(str(path)) as shard:
            total += sum(1 for _ in shard)
    return total


def iterate_webdataset(folder: Path) -> int:
    import webdataset

    paths = [str(path) for path in sorted((folder / "set").glob("*.tar"))]
    return sum(1 for _ in webdataset.WebDataset(paths, shardshuffle=False))


def write_ours(folder: Path) -> int:
    from wdscli.tar import TarWriter

    with open("/dev/null", "wb", buffering=0) as sink, TarWriter(sink) as tar:
        for key, fields in HELD:
            prefix = key.encode() + b"."
            for field, data in fields.items():
                tar.add(prefix + field.encode(), data)
    return len(HELD)


def write_webdataset(folder: Path) -> int:
    import webdataset

    with open("/dev/null", "wb") as stream:
        writer = webdataset.TarWriter(stream, encoder=False)
        for key, fields in HELD:
            writer.write({"__key__": key, **fields})
        writer.close()
    return len(HELD)


HELD: list[tuple[str, dict[str, bytes]]] = []
"""Samples in memory, for the rows that write."""


def one(folder: Path) -> Path:
    return min((folder / "whole").glob("*.tar"))


def touch_memory(size: int) -> None:
    """Have the machine under a virtual one give this much memory now: where it takes idle memory back, whoever writes
    first pays for it again, up to four times the time of the writing."""
    mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE).close()


def timed_command(given: str, folder: Path) -> float:
    """Seconds of a whole process. The shell that splits the words is not counted where there is no redirection."""
    command = given
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    names = {"$WHOLE": str(one(folder)), "$SET": f"{folder}/set", "$TREE": f"{folder}/tree", "$OUT": str(out)}
    for name, value in names.items():
        command = command.replace(name, value)
    command = command.removeprefix("$ ")
    shell = any(mark in command for mark in ">*")
    if "$OUT" in given:
        touch_memory(2 * sum(path.stat().st_size for path in (folder / "set").glob("*.tar")))
    words = [f"{BIN}/wds" if word == "wds" else word for word in command.split()]
    begin = time.perf_counter()
    subprocess.run(
        command if shell else words, shell=shell, check=True, stdout=subprocess.DEVNULL, env=ENVIRONMENT
    )
    return time.perf_counter() - begin


def timed(side: str, folder: Path) -> float:
    if side.startswith("$ "):
        return timed_command(side, folder)
    function: Callable[[Path], int] = globals()[side]
    begin = time.perf_counter()
    function(folder)
    return time.perf_counter() - begin


def measure(row: Row, folder: Path, rounds: int) -> tuple[float, float, float]:
    """Median of peer's time over ours, and the least and the greatest.

    One round to warm up is not counted. Who goes first changes with every round, because memory that was just let go
    is had back sooner than other memory.
    """
    ratios = []
    for number in range(rounds + 1):
        sides = [row.ours, row.theirs] if number % 2 else [row.theirs, row.ours]
        seconds = {side: timed(side, folder) for side in sides}
        if number:
            ratios.append(seconds[row.theirs] / seconds[row.ours])
    return statistics.median(ratios), min(ratios), max(ratios)


def measure_start(small: Path, rounds: int) -> list[tuple[str, float, float]]:
    """How many times ``python -c pass`` each start takes."""
    found = []
    for name, command, target in START:
        words = [word.replace("$SMALL", str(small)) for word in command.split()]
        words[0] = str(BIN / words[0])
        ratios = []
        for _ in range(4 * rounds):
            ours, nothing = _start(words), _start([sys.executable, "-c", "pass"])
            ratios.append(ours / nothing)
        found.append((name, statistics.median(ratios), target))
    return found


def _start(words: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT)
    return time.perf_counter() - begin


def peak_memory(path: Path) -> float:
    """Resident MB of a process that reads a shard as a stream, above none."""
    program = (
        # VmHWM and not ru_maxrss, which also remembers the process that this one was forked from.
        "from wdscli.shards import ShardReader\n"
        "n = sum(1 for _ in ShardReader('-'))\n"
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    with open(path, "rb") as stream:
        command = [sys.executable, "-c", program]
        answer = subprocess.run(command, stdin=stream, capture_output=True, check=True, text=True)
    return float(answer.stdout) / 1024


def peak_of_gather(folder: Path, count: int) -> tuple[float, float]:
    """Resident MB of a whole gather in one process, and what it may have: 100 MB and 64 bytes a sample."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    words = f"shuffle {folder}/set -o {out}/s-%06d.tar -q -j1 --strategy gather".split()
    return measured(words)[1], 100 + 64 * count / 1e6


WATCHED = """
import os, sys, threading, time
from wdscli.cli.main import main

most, ended = [0, 0], threading.Event()

def watch():
    while not ended.wait(0.005):
        with open("/proc/self/status") as file:
            anonymous = 1024 * next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))
        files = {}
        for number in os.listdir("/proc/self/fd"):
            try:
                if os.readlink(f"/proc/self/fd/{number}").endswith("(deleted)"):
                    facts = os.stat(f"/proc/self/fd/{number}")
                    files[facts.st_ino] = facts.st_size
            except OSError:
                pass
        most[:] = max(most[0], anonymous), max(most[1], sum(files.values()))

thread = threading.Thread(target=watch)
thread.start()
begin = time.perf_counter()
code = main(sys.argv[1:])
seconds = time.perf_counter() - begin
ended.set()
thread.join()
print(code, seconds, *most, file=sys.stderr)
"""


class Planned(NamedTuple):
    """What planning took: seconds, the most anonymous memory, and the most bytes in scratch files without a name."""

    seconds: float
    anonymous_bytes: int
    scratch_bytes: int


def measured(words: list[str]) -> Planned:
    """One command in a process of its own that starts no other."""
    environment = {**ENVIRONMENT, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, *words], capture_output=True, check=True, text=True, env=environment
    )
    code, seconds, anonymous, scratch = done.stderr.split()[-4:]
    assert code == "0", done.stderr
    return Planned(float(seconds), int(anonymous), int(scratch))


PLANNED = (100_000, 1_000_000, 10_000_000)
IN_SHARD = 100_000
LENGTH = 1536


class PlanRow(NamedTuple):
    """One kind of plan: the command, and what 10^7 samples may take of time and of anonymous memory."""

    work: str
    words: str
    seconds: float
    megabytes: float


PLAN_ROWS = [
    PlanRow("shuffle", "shuffle $IN", 7, 320),
    PlanRow("sort by key", "sort $IN --by key", 15, 480),
    PlanRow("join of two halves", "merge --join inner $HALVES", 12, 480),
]


def make_indexes(folder: Path, count: int, field: bytes = b"txt") -> None:
    """Shards that are holes but for the headers that are looked at, and indexes of samples with one member each."""
    from numpy import arange, full, int64, zeros

    from wdscli.shards.index import IndexBuilder, SampleArrays
    from wdscli.tar import build_header

    (folder / ".wds").mkdir(parents=True)
    for number in range(count // IN_SHARD):
        first, size = number * IN_SHARD, IN_SHARD * LENGTH + 1024
        name = f"p-{number:06d}.tar"
        with open(folder / name, "wb") as file:
            for row in (0, IN_SHARD // 2, IN_SHARD - 1):
                file.seek(row * LENGTH)
                file.write(build_header(b"n%09d.%s" % (first + row, field), 1000))
            file.truncate(size)
        starts = arange(IN_SHARD, dtype=int64) * LENGTH
        ones = full(IN_SHARD, 1, dtype=int64)
        keys = b"".join([b"n%09d" % (first + row) for row in range(IN_SHARD)])
        builder = IndexBuilder()
        builder.add_arrays(
            SampleArrays(
                keys,
                10 * ones,
                starts,
                LENGTH * ones,
                ones,
                [field],
                zeros(IN_SHARD, int64),
                starts + 512,
                1000 * ones,
            ),
            0,
        )
        (folder / ".wds" / f"{name}.wdx").write_bytes(builder.to_bytes(shard=name, size=size))


def print_planning(folder: Path, counts: tuple[int, ...], largest: int = 0) -> None:
    """How time, memory and scratch space of plans grow; of a shuffle up to ``largest`` samples."""
    print("\nplanning from indexes alone (--dry-run -j1); in brackets what 10^7 samples may take:")
    print(
        f"| {'plan':<18} | {'samples':>11} | {'seconds':<10} | {'anonymous MB':<13} | {'scratch / rows':<14} |"
    )
    print(f"|{'-' * 20}|{'-' * 13}|{'-' * 12}|{'-' * 15}|{'-' * 16}|")
    for count in (*counts, *([largest] if largest else [])):
        make_indexes(folder / "plan", count)
        # Two sets with the same keys, the second of which is read from its end.
        half = count // IN_SHARD // 2
        make_indexes(folder / "other", half * IN_SHARD, b"cls")
        shards = [sorted(map(str, (folder / name).glob("*.tar"))) for name in ("plan", "other")]
        for number, some in enumerate([shards[0][:half], shards[1][::-1]]):
            (folder / f"half-{number}").write_text("".join(f"{name}\n" for name in some))
        halves = " ".join(f"@{folder}/half-{number}" for number in range(2))
        for row in PLAN_ROWS if count in counts else PLAN_ROWS[:1]:
            if half or "$IN" in row.words:
                words = row.words.replace("$IN", f"{folder}/plan").replace("$HALVES", halves)
                found = measured(f"{words} -o {folder}/out/s-%06d.tar -q --dry-run -j1".split())
                aims = ("", "") if count != PLANNED[-1] else (f" ({row.seconds:g})", f" ({row.megabytes:g})")
                print(
                    f"| {row.work:<18} | {count:>11,} | {f'{found.seconds:.1f}{aims[0]}':<10} "
                    f"| {f'{found.anonymous_bytes / 1e6:.0f}{aims[1]}':<13} "
                    f"| {found.scratch_bytes / (ROW_BYTES * count):<14.2f} |",
                    flush=True,
                )
        shutil.rmtree(folder / "plan")
        shutil.rmtree(folder / "other")


def cell(value: float | None, target: float | None) -> str:
    if value is None:
        return ""
    text = f"{value:.1f}x" if value >= 10 else f"{value:.2f}x"
    return text if target is None else f"{text} ({target:g}x)"


def print_table(table: dict[tuple[str, str], dict[str, tuple[float, float | None]]]) -> None:
    print(f"\n| {'work':<29} | {'against':<10} | {'tiny':<14} | {'text':<14} | {'images':<14} |")
    print(f"|{'-' * 31}|{'-' * 12}|{'-' * 16}|{'-' * 16}|{'-' * 16}|")
    for (work, peer), found in table.items():
        cells = [cell(*found.get(kind, (None, None))) for kind in COUNTS]
        print(f"| {work:<29} | {peer:<10} | " + " | ".join(f"{text:<14}" for text in cells) + " |")


def wanted_dir(given: str | None, needed: int) -> Path:
    """A folder in memory where there is room, so that the disc's moods do not count; else the temporary one."""
    base = given
    if base is None and os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > needed:
        base = "/dev/shm"
    return Path(tempfile.mkdtemp(prefix="wds-bench-", dir=base))


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the data, for a first look")
    parser.add_argument("--dir", help="where to put data; default /dev/shm if it has room")
    parser.add_argument("--rounds", type=int, default=4, help="counted rounds of each row")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument(
        "--plan", action="store_true", help="the planning alone, and one plan of 10^8 samples"
    )
    options = parser.parse_args()
    counts = QUICK if options.quick else COUNTS
    folder = wanted_dir(options.dir, counts["images"] * 700_000)
    try:
        if options.plan:
            print_planning(folder, PLANNED[:2] if options.quick else PLANNED, 0 if options.quick else 10**8)
        else:
            run(folder, counts, options.rounds, options.only)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(folder: Path, counts: dict[str, int], rounds: int, only: str) -> None:
    rows = [row for row in ROWS if only in row.work]
    counts_of_rows = counts if rows else {}
    table: dict[tuple[str, str], dict[str, tuple[float, float | None]]] = {
        (row.work, row.peer): {} for row in rows
    }
    peaks: dict[str, tuple[float, float]] = {}
    print(
        f"{os.cpu_count()} processors, data in {folder.parent}, median of {rounds} rounds (the aim)",
        flush=True,
    )
    for kind, count in counts_of_rows.items():
        print(f"{kind}: {count} samples ...", file=sys.stderr, flush=True)
        home = folder / kind
        make_set(home, kind, count)
        if any("$TREE" in row.ours and kind in row.targets for row in rows):
            make_tree(home / "tree", kind, count)
        HELD[:] = list(samples(kind, min(count, 100_000 if kind != "images" else 2_000)))
        for row in rows:
            if "$TREE" in row.ours and kind not in row.targets:
                continue
            middle, least, greatest = measure(row, home, rounds)
            table[row.work, row.peer][kind] = middle, row.targets.get(kind)
            print(f"  {row.work}: {middle:.2f}x ({least:.2f} to {greatest:.2f})", file=sys.stderr, flush=True)
        HELD.clear()
        if not only:
            peaks[kind] = peak_of_gather(home, count)
        if kind == "text":
            memory = peak_memory(one(home))
        shutil.rmtree(home)
    print_table(table)
    if not only:
        print_rest(folder, rounds, memory)
        print("\nresident memory of a shuffle, gather, -j1:")
        for kind, (peak, bound) in peaks.items():
            print(f"  {kind}: {peak:.0f} MB (at most {bound:.0f})")
    if not only:
        print_planning(folder, PLANNED[:2] if counts is QUICK else PLANNED)


def print_rest(folder: Path, rounds: int, memory: float) -> None:
    from wdscli.tar import TarWriter

    small = folder / "small.tar"
    buffer = io.BytesIO()
    with TarWriter(buffer) as tar:
        for number in range(10):
            tar.add(b"n%d.txt" % number, b"text")
    small.write_bytes(buffer.getvalue())
    print("\nstart, as a multiple of `python -c pass` (at most):")
    for name, value, target in measure_start(small, rounds):
        print(f"  {name:<22} {value:.1f}x ({target:g}x)")
    print(f"\nresident memory while a shard is read as a stream: {memory:.0f} MB (at most 40)")


if __name__ == "__main__":
    main()
