"""The bench behind ``scripts/bench``: rows of (ours, peer) on three seeded sets, each written in three ways, and the
tables of their ratios.

What it is: one table of ratios for sets as we write them, and one each for the same samples as GNU tar and webdataset
write them, with the share of the first that is left. How: rows with the same peer are measured in the same round, in
which the peer runs once, on the same set; what counts is the median of the rounds. Whole-process rows start a program,
the others call functions (``_bench_sides.py``). Sets are made one after the other and removed when they were measured,
and outputs after every run, because a full page cache slows the next. A mark tells where a set was too small: where
starting takes more than a tenth of our time. It must not know how sets are written (``_bench_sets.py``) nor how plans
are measured (``_bench_plan.py``).
"""

from __future__ import annotations

import argparse
import io
import mmap
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from _bench_plan import ENVIRONMENT, PLANNED, measured, print_planning
from _bench_sets import (
    BYTES_PER_PICTURE,
    COUNTS,
    KINDS,
    QUICK,
    WAYS,
    Data,
    make_set,
    make_tree,
    make_view,
    make_whole,
    wanted_dir,
)
from _bench_sides import BATCH, NEED, WORKERS, called

BIN = Path(sys.executable).parent
FEW = 64
"""Samples of the set that tells how long starting takes."""
MOST_START = 0.1
"""The part of a row's time that starting may take before the row is marked."""


class Row(NamedTuple):
    """One line of the table: each side is a shell command or the name of a function of ``_bench_sides.py``.

    ``foreign`` is the least share of the canonical ratio that is to be left on sets of others; rows without it are
    measured on our own sets alone.
    """

    work: str
    peer: str
    ours: str
    theirs: str
    aims: dict[str, float]
    foreign: float = 0


def _row(
    work: str,
    peer: str,
    ours: str,
    theirs: str,
    *aims: float,
    foreign: float = 0,
) -> Row:
    """``aims`` for tiny, text and images; 0 is none."""
    return Row(work, peer, ours, theirs, {kind: aim for kind, aim in zip(KINDS, aims) if aim}, foreign)


CAT = "$ cat $SET/*.tar > $OUT/all.tar"
SPLIT = "$ wds split $SET -o $OUT/s-%06d.tar -q --shards 8"
MERGE = "$ wds merge $SET -o $OUT/m-%06d.tar -q --shards 2"
SHUFFLE = "$ wds shuffle $SET -o $OUT/s-%06d.tar -q --shards 4"
SORT = "$ wds sort --by key $SET -o $OUT/o-%06d.tar -q --shards 4"
CREATE = "$ wds create $TREE -o $OUT/c-%06d.tar -q"
GATHER, SPILL = f"{SHUFFLE} --strategy gather", f"{SHUFFLE} --strategy spill --memory 256MiB --tmp $OUT"
BY_HAND = (
    "$ mkdir $OUT/x && cat $SET/*.tar | tar xi -C $OUT/x && cd $OUT/x && find . -type f | sort"
    ' | awk \'{key = $0; sub(/\\.[^\\/]*$/, "", key); sample[key] = sample[key] " " $0}'
    " END {for (key in sample) print sample[key]}' | shuf | tr ' ' '\\n' | grep . | tar cf $OUT/all.tar -T -"
)
"""A shuffle with the tools of a shell: unpack all files, shuffle the samples' lines, pack them again."""
FLAT = "flat set"
VIEWED = [
    "cat {} -o $OUT/all.tar -q",
    "shuffle {} -o $OUT/s-%06d.tar -q -j1",
    "verify {} -q",
    "ls --summary {}",
]
"""Commands that are measured over a view and over the same set as shards."""
WEB_LOADER = f"WebLoader, {WORKERS} workers, batched({BATCH})"
IN_WORKERS = f"DataLoader, {WORKERS} workers, batched({BATCH})"
CONVERTED = f"{WORKERS} workers, wds.default_convert"
ROWS = [
    _row("list members (library)", "tarfile", "list_ours", "list_tarfile", 50, 35, 12, foreign=0.7),
    _row(
        "iterate samples (library)",
        "webdataset",
        "iterate_ours",
        "iterate_webdataset",
        50,
        25,
        6,
        foreign=0.6,
    ),
    _row(
        "iterate samples (loader)",
        "webdataset",
        "iterate_loader",
        "iterate_webdataset",
        50,
        25,
        6,
        foreign=0.6,
    ),
    _row(WEB_LOADER, "webdataset", "web_loader_ours", "workers_webdataset", 9, 5, 3, foreign=0.8),
    _row(IN_WORKERS, "webdataset", "workers_ours", "workers_webdataset", 5, 2.5, 1, foreign=0.8),
    _row(CONVERTED, "webdataset", "converted_ours", "workers_webdataset", 9, 6, 1, foreign=0.8),
    _row("write samples to /dev/null", "TarWriter", "write_ours", "write_webdataset", 40, 30, 25),
    _row(
        "wds ls --by member",
        "tar tf",
        "$ wds ls --by member $WHOLE",
        "$ tar tf $WHOLE",
        1.2,
        1.2,
        0.9,
        foreign=0.7,
    ),
    _row("wds verify", "tar tf", "$ wds verify $WHOLE -q", "$ tar tf $WHOLE", 1, 1, 1, foreign=0.8),
    _row("wds create", "tar cf", CREATE, "$ tar cf $OUT/c.tar -C $TREE .", 1, 0, 1.2),
    _row("wds cat -o", "cat", "$ wds cat $SET -o $OUT/all.tar -q", CAT, 0.6, 0.8, 0.8, foreign=0.8),
    _row("wds split -j1", "cat", f"{SPLIT} -j1", CAT, 0.6, 0.8, 0.8, foreign=0.8),
    _row("wds merge -j1", "cat", f"{MERGE} -j1", CAT, 0.6, 0.8, 0.8, foreign=0.8),
    _row("wds shuffle -j1", "cat", f"{SHUFFLE} -j1", CAT, 0.35, 0.5, 0.6, foreign=0.8),
    _row("wds split -j2", "-j1", f"{SPLIT} -j2", f"{SPLIT} -j1", 0.9, 0.9, 0.9),
    _row("wds split", "cat", SPLIT, CAT, 0.15, 0.27, 0.75),
    _row("wds merge", "cat", MERGE, CAT, 0.15, 0.27, 0.75),
    _row("wds shuffle", "cat", "$ wds shuffle $SET -o $OUT/s-%06d.tar -q", CAT, 0, 0, 0.5),
    _row("wds shuffle, by hand", "tar, shuf", SHUFFLE, BY_HAND, 5, 5, 2),
    _row("shuffle a set (library)", "webdataset", "shuffle_ours", "shuffle_webdataset", 20, 10, 3),
    _row("wds shuffle, gather, -j1", "cat", f"{GATHER} -j1", CAT, 0.09, 0.14, 0.55),
    _row("wds shuffle, gather, -j2", "cat", f"{GATHER} -j2", CAT, 0.10, 0.17, 0.7),
    _row("wds shuffle, spill, -j1", "cat", f"{SPILL} -j1", CAT, 0.07, 0.10, 0.28),
    _row("wds shuffle, spill, -j2", "cat", f"{SPILL} -j2", CAT, 0.11, 0.15, 0.4),
    _row("wds sort --by key", "cat", SORT, CAT, 0.10, 0.17, 0.55),
    _row("wds verify --checksums", "sha256sum", "$ wds verify --checksums $SET -q", "$ sha256sum $SET/*.tar"),
    _row("loader, view, all fields", FLAT, "view_ours", "view_flat", 0, 0.9, 0.9),
    _row("loader, view, by window", FLAT, "view_window_ours", "view_window_flat", 0, 0.9, 0.9),
    _row("loader, view, base fields", FLAT, "view_base_ours", "view_base_flat", 0, 1, 1),
    *(
        _row(
            f"wds {words.replace(' {}', '').partition(' -')[0]}, view",
            FLAT,
            f"$ wds {words.format('$VIEW/v.json')}",
            f"$ wds {words.format('$VIEW/flat')}",
            0,
            0.9,
            0.9,
        )
        for words in VIEWED
    ),
]
START = [
    ("wds --version", "wds --version", 8.0),
    ("wds ls (small shard)", "wds ls $SMALL", 8.0),
    ("wds --help", "wds --help", 15.0),
]
JOBS = (1, 2, 4, 8, 16)
FEWEST_PROCESSORS = 4
"""Where there are fewer, efficiency says nothing."""
SHARED = [
    ("wds shuffle", f"{SHUFFLE.removesuffix('4')}16"),
    ("wds verify", "$ wds verify $SET -q"),
    ("wds create", f"{CREATE} --shards 16"),
]


def touch_memory(size_bytes: int) -> None:
    """Have the machine under a virtual one give this much memory now: where it takes idle memory back, whoever writes
    first pays for it again, up to four times the time of the writing."""
    mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE).close()


def processor_seconds() -> float:
    """What all programs that were started, and have ended, took of the processors."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def timed_command(given: str, data: Data) -> float:
    """Seconds of a whole process. The shell that splits the words is not counted where there is no redirection."""
    command = given
    out = data.folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    names = {f"${name.upper()}": f"{data.folder}/{name}" for name in ("set", "tree", "view", "out")}
    if "$WHOLE" in given:
        names["$WHOLE"] = str(data.whole)
    for name, value in names.items():
        command = command.replace(name, value)
    command = command.removeprefix("$ ")
    shell = any(mark in command for mark in ">*")
    if "$OUT" in given:
        touch_memory(2 * data.total_bytes)
    words = [f"{BIN}/wds" if word == "wds" else word for word in command.split()]
    begin, spent = time.perf_counter(), processor_seconds()
    subprocess.run(
        command if shell else words, shell=shell, check=True, stdout=subprocess.DEVNULL, env=ENVIRONMENT
    )
    seconds = processor_seconds() - spent if data.by_processor else time.perf_counter() - begin
    shutil.rmtree(out)
    return seconds


def timed(side: str, data: Data, few: Data) -> float:
    """Seconds of a command, or of a sample where a function is called: what comes first is not counted for some."""
    if side.startswith("$ "):
        return timed_command(side, data)
    found = called(side, data, few)
    return found.seconds / found.samples


class Found(NamedTuple):
    """Peer's time over ours: median, least and greatest; and the part of our time that starting takes."""

    ratio: float
    least: float
    greatest: float
    start: float


def measure(rows: list[Row], data: Data, few: Data, rounds: int) -> Iterator[tuple[Row, Found]]:
    """Rows with the same peer, which runs once a round.

    Where commands are measured, one round to warm up is not counted; functions warm up by themselves. Who goes first
    changes with every round, because memory that was just let go is had back sooner than other memory.
    """
    sides = [rows[0].theirs, *(row.ours for row in rows)]
    warming = int(rows[0].theirs.startswith("$ "))
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for number in range(warming + rounds):
        for side in sides if number % 2 else sides[::-1]:
            seconds[side].append(timed(side, data, few))
    for row in rows:
        mine, its = seconds[row.ours][warming:], seconds[row.theirs][warming:]
        ratios = [theirs / ours for ours, theirs in zip(mine, its)]
        start = 0.0
        if row.ours.startswith("$ "):
            start = min(timed_command(row.ours, few) for _ in range(2)) / statistics.median(mine)
        yield row, Found(statistics.median(ratios), min(ratios), max(ratios), start)


def stage(row: Row) -> str:
    """What the row reads besides the set itself."""
    if row.peer == FLAT:
        return "view"
    return next((name for name in ("whole", "tree") if f"${name.upper()}" in row.ours), "set")


def measured_set(folder: Path, data: Data, rows: list[Row], rounds: int) -> Iterator[tuple[Row, Found]]:
    """All these rows on one set. What only some of them read lies there only as long."""
    few = data._replace(folder=folder / "few", count=FEW)
    make_set(data)
    make_set(few)
    for name, make in (("set", None), ("whole", make_whole), ("tree", make_tree), ("view", make_view)):
        those = [row for row in rows if stage(row) == name]
        if those and make:
            make(data)
            make(few)
        for theirs in dict.fromkeys(row.theirs for row in those):
            yield from measure([row for row in those if row.theirs == theirs], data, few, rounds)
        if those and make:
            shutil.rmtree(data.folder / name)
    shutil.rmtree(few.folder)


def rows_of(rows: Iterable[Row], kind: str, way: str) -> list[Row]:
    """What is measured on this set: of files and views only what has an aim, and on sets of others what has one for
    these."""
    return [
        row
        for row in rows
        if (stage(row) not in ("tree", "view") or kind in row.aims) and (way == "canonical" or row.foreign)
    ]


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
    found = measured(words)
    shutil.rmtree(out)
    return found.anonymous_bytes / 1e6, 100 + 64 * count / 1e6


Table = dict[tuple[str, str, str], Found]
"""What was found, by way, work and kind."""


def cell(value: float | None, aim: float | None, mark: str = "") -> str:
    if value is None:
        return ""
    text = f"{value:.1f}x{mark}" if value >= 10 else f"{value:.2f}x{mark}"
    return text if aim is None else f"{text} ({aim:g}x)"


def foreign_cell(found: Found | None, canonical: Found | None, aim: float) -> str:
    """The ratio, its share of the one on our own set, and the least that this share is to be."""
    if found is None:
        return ""
    text = cell(found.ratio, None, mark_of(found))
    return f"{text} {found.ratio / canonical.ratio:.2f} ({aim:g})" if canonical else text


def mark_of(found: Found) -> str:
    return "*" if found.start > MOST_START else ""


def table_lines(table: Table, rows: list[Row], way: str, kinds: list[str]) -> Iterator[str]:
    """One table, of sets written in one way."""
    width = 15 if way == "canonical" else 19
    yield f"| {'work':<34} | {'against':<10} | " + " | ".join(f"{kind:<{width}}" for kind in kinds) + " |"
    yield f"|{'-' * 36}|{'-' * 12}|" + "|".join("-" * (width + 2) for _ in kinds) + "|"
    for row in rows:
        founds = [table.get((way, row.work, kind)) for kind in kinds]
        if not any(founds):
            continue
        cells = []
        for kind, found in zip(kinds, founds):
            if way != "canonical":
                cells.append(foreign_cell(found, table.get(("canonical", row.work, kind)), row.foreign))
            else:
                cells.append(cell(found.ratio, row.aims.get(kind), mark_of(found)) if found else "")
        texts = " | ".join(f"{text:<{width}}" for text in cells)
        yield f"| {row.work:<34} | {row.peer:<10} | {texts} |"


def print_tables(table: Table, rows: list[Row], kinds: list[str]) -> None:
    for way, name in WAYS.items():
        if any(key[0] == way for key in table):
            brackets = "in brackets the aim"
            if way != "canonical":
                brackets = "then its share of the canonical ratio, in brackets the least"
            print(f"\n{name} sets: peer's time over ours, {brackets}")
            print("\n".join(table_lines(table, rows, way, kinds)))
    if any(mark_of(found) for found in table.values()):
        print(f"* the set is too small: starting takes more than {MOST_START:.0%} of our time")


def print_efficiency(folder: Path, counts: dict[str, int], jobs: Iterable[int], rounds: int) -> None:
    """How much of each further process is used: time in one process over N times the time in N."""
    here = [number for number in jobs if number <= (os.cpu_count() or 1)]
    print(
        "\nefficiency in N processes: time in one over N times the time in N, on canonical sets of 16 shards"
    )
    print(f"| {'work':<12} | {'set':<6} | " + " | ".join(f"{f'-j{number}':>5}" for number in here) + " |")
    print(f"|{'-' * 14}|{'-' * 8}|" + "|".join("-" * 7 for _ in here) + "|")
    for kind, count in counts.items():
        data = Data(folder / "shared", kind, count)
        make_set(data, 16)
        for work, command in SHARED:
            if "$TREE" in command:
                make_tree(data)
            seconds = [
                statistics.median(timed_command(f"{command} -j{number}", data) for _ in range(rounds))
                for number in here
            ]
            cells = [f"{seconds[0] / (number * took):>5.2f}" for number, took in zip(here, seconds)]
            print(f"| {work:<12} | {kind:<6} | {' | '.join(cells)} |", flush=True)
        shutil.rmtree(data.folder)


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


def chosen(only: list[str]) -> list[Row]:
    """Rows with one of these in their names, or all, whose peers are here; what is left out is said."""
    rows = [row for row in ROWS if not only or any(text in row.work for text in only)]
    missing = {name for name in NEED.values() if find_spec(name) is None}
    for row in list(rows):
        gone = {NEED[side] for side in (row.ours, row.theirs) if NEED.get(side) in missing}
        if gone:
            print(f"skipped: {row.work}: {', '.join(sorted(gone))} is not installed here", flush=True)
            rows.remove(row)
    return rows


class Peaks(NamedTuple):
    """MB of memory: of a gather by kind, with what it may take, and of a shard that is read as a stream."""

    gather: dict[str, tuple[float, float]]
    stream: list[float]


def run(folder: Path, counts: dict[str, int], ways: list[str], options: argparse.Namespace) -> None:
    rows = chosen(options.only or [])
    all_of_it = not options.only and len(counts) == len(KINDS) and len(ways) == len(WAYS)
    table: Table = {}
    peaks = Peaks({}, [])
    for kind, count in counts.items():
        for way in ways:
            those = rows_of(rows, kind, way)
            if not those:
                continue
            print(f"{kind}, {WAYS[way]}: {count} samples ...", file=sys.stderr, flush=True)
            data = Data(folder / kind, kind, count, way, options.processor)
            for row, found in measured_set(folder, data, those, options.rounds):
                table[way, row.work, kind] = found
                span = f"{found.least:.2f} to {found.greatest:.2f}"
                if found.start:
                    span += f"; starting {found.start:.0%}"
                print(f"  {row.work}: {found.ratio:.2f}x ({span})", file=sys.stderr, flush=True)
            if all_of_it and way == "canonical":
                peaks.gather[kind] = peak_of_gather(data.folder, count)
                if kind == "text":
                    peaks.stream.append(peak_memory(data.shards[0]))
            shutil.rmtree(data.folder)
    print_tables(table, rows, list(counts))
    if not all_of_it:
        return
    print_rest(folder, options.rounds, max(peaks.stream))
    print("\nresident memory of a shuffle, gather, -j1:")
    for kind, (peak, bound) in peaks.gather.items():
        print(f"  {kind}: {peak:.0f} MB (at most {bound:.0f})")
    if (os.cpu_count() or 1) >= FEWEST_PROCESSORS:
        print_efficiency(folder, counts, JOBS, 1)
    print_planning(folder, PLANNED[:2] if options.quick else PLANNED)


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench", description="How fast it is, beside its peers.")
    parser.add_argument(
        "--quick", action="store_true", help="a tenth or less of the data and two rounds, for a first look"
    )
    parser.add_argument("--dir", help="where to put data; default /dev/shm if it has room")
    parser.add_argument("--rounds", type=int, help="counted rounds of each row; default 4, with --quick 2")
    parser.add_argument(
        "--only", action="append", metavar="TEXT", help="rows whose name contains this; may be repeated"
    )
    parser.add_argument("--set", action="append", choices=KINDS, help="this set alone; may be repeated")
    parser.add_argument(
        "--way", action="append", choices=WAYS, help="sets written in this way alone; may be repeated"
    )
    parser.add_argument(
        "--plan", action="store_true", help="the planning alone, and one plan of 10^8 samples"
    )
    parser.add_argument(
        "--processor",
        action="store_true",
        help="compare processor time, where a command is the row: for a machine that others use too",
    )
    parser.add_argument("--jobs", action="store_true", help="efficiency in many processes alone")
    options = parser.parse_args(words)
    options.rounds = options.rounds or (2 if options.quick else 4)
    return options


def main() -> None:
    options = parsed()
    counts = QUICK if options.quick else COUNTS
    counts = {kind: count for kind, count in counts.items() if not options.set or kind in options.set}
    ways = [way for way in WAYS if not options.way or way in options.way]
    # The set, what is made of it, and the memory that is touched before.
    folder = wanted_dir(options.dir, 4 * counts.get("images", 10_000) * BYTES_PER_PICTURE)
    version = subprocess.run([BIN / "wds", "--version"], capture_output=True, text=True, check=True).stdout
    print(
        f"{version.splitlines()[0]}, {os.cpu_count()} processors, data in {folder.parent}, "
        f"median of {options.rounds} rounds{', processor time of commands' if options.processor else ''}",
        flush=True,
    )
    # A bench that is stopped leaves nothing behind either.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        if options.plan:
            print_planning(folder, PLANNED[:2] if options.quick else PLANNED, 0 if options.quick else 10**8)
        elif options.jobs and (os.cpu_count() or 1) < FEWEST_PROCESSORS:
            print(f"skipped: efficiency needs {FEWEST_PROCESSORS} processors, and here are {os.cpu_count()}")
        elif options.jobs:
            print_efficiency(folder, counts, JOBS, options.rounds)
        else:
            run(folder, counts, ways, options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
