"""What plans take of time, memory and scratch space, behind ``scripts/bench --plan``, and the memory of whole commands.

How: plans are made of synthetic indexes, whose shards have nothing but the headers that are looked at; each command
runs in one process of its own that is watched from inside. It must not know the sets of the bench.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

# A program that is installed has its modules compiled; a checkout must be allowed to keep what it compiles.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
ROW_BYTES = 49
"""A row of a plan."""
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
    PlanRow("shuffle", "shuffle $IN", 4, 250),
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
