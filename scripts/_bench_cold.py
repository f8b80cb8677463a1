"""Sets larger than memory, behind ``scripts/bench --cold``: ours beside a plain program, with an empty page cache.

This program makes sets of pictures on a disc. It runs each row and its peer in turn over the same shards, in several
short rounds. Before each run it empties the page cache, and each run has memory for a quarter of the set, page cache
included: a cgroup limits it. Beside each ratio stand the bytes that the device read and wrote, the mean number of
requests under way, and the kernel time, so that a disc which the host of a virtual machine slows down can be seen.
It needs root. Without root it says so, and measures nothing.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from _bench_sets import BYTES_PER_PICTURE, Data, make_set, samples

BIN = Path(sys.executable).parent
DROP = Path("/proc/sys/vm/drop_caches")
CGROUPS = [
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max"),
]
"""Where control groups of version 1 and 2 limit memory."""
SHARDS = 20
SECTOR_BYTES = 512
LEAST_MEMORY_BYTES = 384 << 20
"""Python, numpy and two worker processes need this much before they hold data."""
SMALL_FILES = 100_000
LOADER = """
import sys
import wdscli.loader as wds
print(sum(len(sample["jpg"]) for sample in wds.WebDataset(sys.argv[1], shuffle=sys.argv[2])))
"""
CAT, READ = "cat $SET/*.tar > $OUT/all.tar; sync", "cat $SET/*.tar > /dev/null"
WRITE = "-o $OUT/s-%06d.tar -q --shards 20"


class Row(NamedTuple):
    """One line of the table. ``aim`` is the greatest ratio of our time to the peer's."""

    work: str
    ours: str
    peer: str
    theirs: str
    aim: float | None


ROWS = [
    Row("shuffle", f"wds shuffle $SET {WRITE}; sync", "cat; sync", CAT, None),
    Row("shuffle, gather", f"wds shuffle $SET {WRITE} --strategy gather; sync", "cat; sync", CAT, 1.2),
    Row("shuffle, spill", f"wds shuffle $SET {WRITE} --strategy spill --tmp $OUT; sync", "cat; sync", CAT, 2.1),
    Row("sort --by cls", f"wds sort --by cls $SET {WRITE}; sync", "cat; sync", CAT, None),
    Row("merge --interleave", f"wds merge --interleave $SET/*.tar {WRITE}; sync", "cat; sync", CAT, None),
    Row("verify --checksums", "wds verify --checksums $SET -q", "cat", READ, 1 / 0.9),
    Row("loader, none", "python -c $LOADER $SET none", "cat", READ, None),
    Row("loader, window", "python -c $LOADER $SET window", "cat", READ, 1 / 0.75),
    Row("loader, shards", "python -c $LOADER $SET shards", "cat", READ, None),
    Row("loader, full", "python -c $LOADER $SET full", "cat", READ, None),
    Row("create", "wds create $TREE -o $OUT/c-%06d.tar -q; sync",
        "tar cf; sync", "tar cf $OUT/c.tar -C $TREE .; sync", None),
]  # fmt: skip


class Use(NamedTuple):
    """What a run took: seconds, bytes that the device read and wrote, the mean number of its requests under way, and
    seconds in the kernel."""

    seconds: float
    read_bytes: int
    written_bytes: int
    under_way: float
    kernel_seconds: float


def device_numbers(folder: Path) -> tuple[int, int, int]:
    """Bytes read, bytes written and milliseconds of all requests together, of the device of a folder."""
    device = os.stat(folder).st_dev
    place = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    fields = [int(text) for text in place.read_text().split()]
    return fields[2] * SECTOR_BYTES, fields[6] * SECTOR_BYTES, fields[10]


@contextmanager
def limited(most_bytes: int) -> Iterator[Path | None]:
    """A control group whose processes have so much memory, page cache included; None if there can be none."""
    for top, name in CGROUPS:
        group = top / f"wdscli-bench-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / name).write_text(str(most_bytes))
        except OSError:
            group.rmdir()
            continue
        try:
            yield group
        finally:
            with suppress(OSError):
                group.rmdir()
        return
    yield None


def run(command: str, folder: Path, group: Path | None) -> Use:
    """Run a command with an empty page cache."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    names = {"$SET": f"{folder}/set", "$TREE": f"{folder}/tree", "$OUT": str(out)}
    for name, value in names.items():
        command = command.replace(name, value)
    enter = f"echo $$ > {group}/cgroup.procs; " if group is not None else ""
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "LOADER": LOADER}
    command = command.replace("$LOADER", '"$LOADER"')
    os.sync()
    DROP.write_text("3")
    before, spent = device_numbers(folder), resource.getrusage(resource.RUSAGE_CHILDREN).ru_stime
    begin = time.perf_counter()
    subprocess.run(["sh", "-c", enter + command], check=True, stdout=subprocess.DEVNULL, env=environment)
    seconds = time.perf_counter() - begin
    after = device_numbers(folder)
    kernel = resource.getrusage(resource.RUSAGE_CHILDREN).ru_stime - spent
    shutil.rmtree(out)
    read, written, waited = (new - old for new, old in zip(after, before))
    return Use(seconds, read, written, waited / 1000 / seconds, kernel)


def make_tree(folder: Path, files: int) -> None:
    """Small files of texts, in folders of a thousand."""
    for number, (_, fields) in enumerate(samples("text", files)):
        path = folder / "tree" / f"{number // 1000:03d}" / f"{number:06d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(fields["txt"])


def line(row: Row, uses: list[tuple[Use, Use]], size: int) -> str:
    """One line of the table."""
    ratios = [ours.seconds / theirs.seconds for ours, theirs in uses]
    ours, theirs = (Use(*(statistics.median(column) for column in zip(*side))) for side in zip(*uses))
    aim = f"{row.aim:.2f}" if row.aim else ""
    parts = [
        f"{row.work:18}", f"{row.peer:12}", f"{statistics.median(ratios):5.2f}", f"{min(ratios):.2f}-{max(ratios):.2f}",
        f"{aim:>4}", f"{ours.seconds:6.1f}", f"{theirs.seconds:6.1f}", f"{ours.read_bytes / size:4.2f}",
        f"{ours.written_bytes / size:4.2f}", f"{ours.under_way:5.1f}", f"{theirs.under_way:5.1f}",
        f"{ours.kernel_seconds:5.1f}", f"{theirs.kernel_seconds:5.1f}",
    ]  # fmt: skip
    return f"| {' | '.join(parts)} |"


def measure(folder: Path, size: int, rows: list[Row], rounds: int) -> None:
    """Make a set, and print its table."""
    count = size // (BYTES_PER_PICTURE - 8_000)
    data = Data(folder, "images", count)
    make_set(data, SHARDS)
    if any("$TREE" in row.ours for row in rows):
        make_tree(folder, SMALL_FILES)
    memory = max(data.total_bytes // 4, LEAST_MEMORY_BYTES)
    with limited(memory) as group:
        bound = (
            f"{memory / 1e9:.2f} GB of memory"
            if group is not None
            else "all memory: no control group can be made"
        )
        print(f"\n{data.total_bytes / 1e9:.1f} GB in {SHARDS} shards, {bound}, {rounds} rounds\n")
        head = (
            "ours/peer | span | aim | ours s | peer s | read | written | queue | peer's | kernel s | peer's"
        )
        print(f"| work | peer | {head} |")
        print("|---" * 13 + "|")
        for row in rows:
            uses = []
            for number in range(rounds):
                pair = [(row.ours, 0), (row.theirs, 1)]
                found = {
                    side: run(command, folder, group) for command, side in pair[:: 1 if number % 2 else -1]
                }
                uses.append((found[0], found[1]))
            print(line(row, uses, data.total_bytes), flush=True)
    for name in ("set", "tree", "out"):
        shutil.rmtree(folder / name, ignore_errors=True)


def main() -> None:
    """Print one table for each size."""
    parser = argparse.ArgumentParser(prog="scripts/bench --cold", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="1 GB alone, one round")
    parser.add_argument(
        "--size", action="append", type=float, metavar="GB", help="default: 1, 4 and 16; repeatable"
    )
    parser.add_argument("--rounds", type=int, help="rounds of each row; default 3, with --quick 1")
    parser.add_argument(
        "--only", action="append", metavar="TEXT", help="rows whose name contains this; repeatable"
    )
    parser.add_argument("--dir", help="a folder on the disc; default the one for temporary files")
    options = parser.parse_args()
    try:
        DROP.write_text("3")
    except OSError as error:
        raise SystemExit(f"the page cache cannot be emptied ({error.strerror}): run this as root") from None
    rows = [row for row in ROWS if not options.only or any(text in row.work for text in options.only)]
    if options.dir:
        os.makedirs(options.dir, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="wds-cold-", dir=options.dir))
    try:
        device_numbers(folder)
    except OSError:
        folder.rmdir()
        raise SystemExit(
            f"{folder.parent} lies on no block device: name a folder on a disc with --dir"
        ) from None
    try:
        for size in options.size or ([1] if options.quick else [1, 4, 16]):
            measure(folder, int(size * 1e9), rows, options.rounds or (1 if options.quick else 3))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
