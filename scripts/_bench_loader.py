"""The bench behind ``scripts/bench --loader``: the loader beside webdataset, and beside others in their own formats.

The sets are those of ``_bench.py``: ``tiny``, ``text`` and ``images``; and ``pictures``, real JPEGs of a few KB with a
JSON caption, for the row that decodes. What webdataset needs for raw samples, alone and in workers, is measured by
``_bench.py``. Every side takes the same samples with the same settings: one process, or two
workers of torch's DataLoader that make batches of 64. A DataLoader is timed from its first batch on, because starting
workers costs both sides the same. Peers with formats of their own get the same samples in these, written before.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import _bench_sides as sides
from _bench import IN_WORKERS, cell
from _bench_sets import BYTES_PER_PICTURE, COUNTS, QUICK, SHARDS, Data, make_set, samples, wanted_dir
from _bench_sides import BATCH, WORKERS, Timed, behind_first, in_workers, whole
from _quality import MOSAIC, skip_beginning

PICTURES = {False: 4_000, True: 800}
AT_ONCE = 256
KINDS = ("tiny", "text", "images", "pictures")


class Row(NamedTuple):
    """``ours`` and ``theirs`` are functions of a set's folder that give a number of samples to be timed; ``targets`` by
    kind, whose rows are run where ``kinds`` says."""

    work: str
    peer: str
    ours: Callable[[Path], Timed]
    theirs: Callable[[Path], Timed]
    targets: dict[str, float]
    kinds: tuple[str, ...] = KINDS[:3]
    needs: str = "webdataset"


def ours(folder: Path, **how: Any) -> Any:
    return sides.ours([folder / "set"], **how)


def peers(folder: Path) -> Any:
    return sides.peers(paths(folder))


def paths(folder: Path) -> list[str]:
    return sorted(map(str, (folder / "set").glob("*.tar")))


def raw_ours(folder: Path) -> Timed:
    return whole(ours(folder))


def raw_shuffled(folder: Path) -> Timed:
    return whole(ours(folder, shuffle="window"))


def raw_webdataset(folder: Path) -> Timed:
    return whole(peers(folder))


def random_ours(folder: Path) -> Timed:
    import numpy

    import wdscli.loader as wds

    table = wds.IndexedDataset(str(folder / "set"))
    order = numpy.random.default_rng(0).permutation(len(table))
    return whole(
        (table.__getitems__(some) for some in numpy.array_split(order, -(-len(order) // AT_ONCE))), len
    )


def random_wids(folder: Path) -> Timed:
    """wids in random order where it is installed, else webdataset in its own."""
    if find_spec("wids") is None:
        return raw_webdataset(folder)
    import random

    import wids

    table = wids.ShardListDataset([{"url": path, "nsamples": _count(path)} for path in paths(folder)])
    order = random.Random(0).sample(range(len(table)), len(table))
    return whole(map(table.__getitem__, order))


def _count(path: str) -> int:
    import wdscli.loader as wds

    return len(wds.IndexedDataset(path))


def workers_ours(folder: Path) -> Timed:
    return in_workers(ours(folder).batched(BATCH))


def cut(sample: dict[str, Any]) -> dict[str, Any]:
    """Pictures of one size, so that they make an array."""
    return {**sample, "jpg": sample["jpg"][:96, :96]}


def decoded_ours(folder: Path) -> Timed:
    data = ours(folder).decode("rgb8").map(cut).to_tuple("jpg", "json").batched(BATCH)
    return in_workers(data, lambda batch: len(batch[0]))


def decoded_webdataset(folder: Path) -> Timed:
    data = peers(folder).decode("rgb8").map(cut).to_tuple("jpg", "json").batched(BATCH)
    return in_workers(data, lambda batch: len(batch[0]))


def mosaic_set(folder: Path) -> Any:
    """As many samples prepared ahead as there are, which is quickest for shards that are here already."""
    skip_beginning(*MOSAIC)
    from streaming.base.dataset import StreamingDataset

    return StreamingDataset(local=str(folder / "mds"), batch_size=BATCH, shuffle=False, predownload=1 << 20)


def mosaic(folder: Path) -> Timed:
    return whole(mosaic_set(folder))


def lit_set(folder: Path) -> Any:
    import litdata

    return litdata.StreamingDataset(str(folder / "lit"), shuffle=False)


def litdata(folder: Path) -> Timed:
    return whole(map(read, lit_set(folder)))


def read(sample: dict[str, Any]) -> dict[str, Any]:
    """litData gives views of what it has mapped; the others give bytes."""
    return {name: bytes(value) if isinstance(value, memoryview) else value for name, value in sample.items()}


def in_columns(batch: list[dict[str, Any]]) -> dict[str, Any]:
    """Samples as columns, which torch's own collation refuses to make of bytes."""
    batch = list(map(read, batch))
    return {name: [sample[name] for sample in batch] for name in batch[0]}


def collated_by_torch(dataset: Any) -> Timed:
    from torch.utils.data import DataLoader

    loader = DataLoader(dataset, BATCH, num_workers=WORKERS, collate_fn=in_columns, timeout=120)
    return behind_first(loader, lambda batch: len(batch["key"]))


def workers_mosaic(folder: Path) -> Timed:
    return collated_by_torch(mosaic_set(folder))


def workers_litdata(folder: Path) -> Timed:
    return collated_by_torch(lit_set(folder))


def write_mosaic(folder: Path, kind: str, count: int) -> None:
    skip_beginning(*MOSAIC)
    from streaming.base.format import MDSWriter

    columns = {"key": "str", **dict.fromkeys(next(samples(kind, 1))[1], "bytes")}
    with MDSWriter(out=str(folder / "mds"), columns=columns) as writer:
        for key, fields in samples(kind, count):
            writer.write({"key": key, **fields})


def write_litdata(folder: Path, kind: str, count: int) -> None:
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(folder / "lit"), chunk_bytes="64MB")
    for number, (key, fields) in enumerate(samples(kind, count)):
        writer[number] = {"key": key, **fields}
    writer.done()
    writer.merge()


FORMATS = {"streaming": write_mosaic, "litdata": write_litdata}
ROWS = [
    Row('iterate raw, shuffle="window"', "webdataset", raw_shuffled, raw_webdataset, {}),
    Row(
        "IndexedDataset, random order",
        "wids" if find_spec("wids") else "webdataset",
        random_ours,
        random_wids,
        {"tiny": 10, "text": 8, "images": 6},
    ),
    Row(
        "the same workers, json + Pillow",
        "webdataset",
        decoded_ours,
        decoded_webdataset,
        {"pictures": 1},
        ("pictures",),
    ),
    Row("iterate raw samples", "streaming", raw_ours, mosaic, {}, needs="streaming"),
    Row(IN_WORKERS, "streaming", workers_ours, workers_mosaic, {}, needs="streaming"),
    Row("iterate raw samples", "litdata", raw_ours, litdata, {}, needs="litdata"),
    Row(IN_WORKERS, "litdata", workers_ours, workers_litdata, {}, needs="litdata"),
]


def make_pictures(folder: Path, count: int) -> None:
    import random

    from wdscli.demo import COLOURS, SHAPES, paint
    from wdscli.shards import ShardWriter

    (folder / "set").mkdir(parents=True)
    with ShardWriter(f"{folder}/set/pictures-%06d.tar", max_count=-(-count // SHARDS)) as writer:
        for number in range(count):
            draw = random.Random(number)
            buffer = io.BytesIO()
            paint(draw, draw.choice(SHAPES), draw.choice(COLOURS)).save(buffer, "jpeg", quality=85)
            writer.write(f"img{number:06d}", {"jpg": buffer.getvalue(), "json": b'{"number": %d}' % number})


class Measured(NamedTuple):
    """Median ratio of peer's time over ours for a sample, least and greatest, and samples a second of both."""

    ratio: float
    least: float
    greatest: float
    ours: float
    theirs: float


def measure(row: Row, folder: Path, rounds: int) -> Measured:
    """One round to warm up is not counted; who goes first changes with every round."""
    ratios, rates = [], []
    for number in range(rounds + 1):
        sides = [row.ours, row.theirs] if number % 2 else [row.theirs, row.ours]
        done = {side: side(folder) for side in sides}
        mine, its = (done[side].samples / done[side].seconds for side in (row.ours, row.theirs))
        if number:
            ratios.append(mine / its)
            rates.append((mine, its))
    mine, its = (statistics.median(column) for column in zip(*rates))
    return Measured(statistics.median(ratios), min(ratios), max(ratios), mine, its)


BILLION = """
import sys, time
begin = time.perf_counter()
import numpy
from wdscli.loader.order.order import EpochOrder
from wdscli.loader.place.ranks import Share
from wdscli.loader.place.ranks import Batches
counts = numpy.full(100_000, 10_000)
opened = time.perf_counter()
order = EpochOrder(counts, seed=1, epoch=3, shuffle=sys.argv[1])
batches = Batches(order.total, 256, Share(3, 8))
shards, places = order.locate(batches.positions(batches.total * 7 // 10))
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(time.perf_counter() - opened, int(peak) / 1024)
"""


def print_billion() -> None:
    """How long it takes to stand at any batch of a billion samples."""
    print(
        "\na billion samples in 100,000 shards, seek to a batch in the middle of an epoch (at most 2 s, 200 MB):"
    )
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    for shuffle in ("window", "full", "none"):
        command = [sys.executable, "-c", BILLION, shuffle]
        done = subprocess.run(command, capture_output=True, check=True, text=True, env=environment)
        seconds, peak = map(float, done.stdout.split())
        print(f'  shuffle="{shuffle}": {seconds:.3f} s, {peak:.0f} MB', flush=True)


def missing(rows: list[Row]) -> Iterator[str]:
    for name in sorted({row.needs for row in rows} | {"torch", "PIL"}):
        if find_spec(name) is None:
            yield name


def print_table(table: dict[tuple[str, str], dict[str, tuple[Measured, float | None]]]) -> None:
    print(f"\n| {'work':<34} | {'against':<10} | " + " | ".join(f"{kind:<14}" for kind in KINDS) + " |")
    print(f"|{'-' * 36}|{'-' * 12}" + f"|{'-' * 16}" * len(KINDS) + "|")
    for (work, peer), found in table.items():
        cells = [cell(found[kind][0].ratio, found[kind][1]) if kind in found else "" for kind in KINDS]
        print(f"| {work:<34} | {peer:<10} | " + " | ".join(f"{text:<14}" for text in cells) + " |")
    print("\nthousand samples a second, ours and theirs:")
    for (work, peer), found in table.items():
        rates = [
            f"{kind} {one.ours / 1000:.1f} / {one.theirs / 1000:.1f}" for kind, (one, _) in found.items()
        ]
        print(f"  {work} ({peer}): {', '.join(rates)}")


def run(folder: Path, counts: dict[str, int], rounds: int, only: str) -> None:
    gone = set(missing(ROWS))
    for name in sorted(gone):
        print(f"skipped: {name} is not installed here", flush=True)
    rows = [row for row in ROWS if only in f"{row.work} {row.peer}" and row.needs not in gone]
    rows = [row for row in rows if "torch" not in gone or row.ours not in (workers_ours, decoded_ours)]
    rows = [row for row in rows if "PIL" not in gone or "pictures" not in row.kinds]
    table: dict[tuple[str, str], dict[str, tuple[Measured, float | None]]] = {}
    for kind, count in counts.items():
        those = [row for row in rows if kind in row.kinds]
        if not those:
            continue
        print(f"{kind}: {count} samples ...", file=sys.stderr, flush=True)
        home = folder / kind
        prepare(home, kind, count, those)
        for row in those:
            try:
                found = measure(row, home, rounds)
            except Exception as error:  # a peer's own trouble must not take the other rows with it
                print(f"skipped: {row.peer} on {kind}: {type(error).__name__}: {error}", flush=True)
                continue
            table.setdefault((row.work, row.peer), {})[kind] = found, row.targets.get(kind)
            span = f"{found.least:.2f} to {found.greatest:.2f}"
            print(f"  {row.work}, {row.peer}: {found.ratio:.2f}x ({span})", file=sys.stderr, flush=True)
        shutil.rmtree(home)
    print_table(table)
    if not only:
        print_billion()


def prepare(home: Path, kind: str, count: int, rows: list[Row]) -> None:
    """The set, and what peers want instead of it."""
    if kind == "pictures":
        make_pictures(home, count)
        return
    make_set(Data(home, kind, count))
    for name in FORMATS.keys() & {row.needs for row in rows}:
        try:
            FORMATS[name](home, kind, count)
        except Exception as error:
            print(f"{name} cannot write {kind}: {type(error).__name__}: {error}", flush=True)


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(prog="scripts/bench --loader", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the data, for a first look")
    parser.add_argument("--dir", help="where to put data; default /dev/shm if it has room")
    parser.add_argument("--rounds", type=int, default=3, help="counted rounds of each row")
    parser.add_argument("--only", default="", help="rows whose name or peer contains this")
    options = parser.parse_args()
    counts = {**(QUICK if options.quick else COUNTS), "pictures": PICTURES[options.quick]}
    folder = wanted_dir(options.dir, 4 * COUNTS["images"] * BYTES_PER_PICTURE)
    print(
        f"{os.cpu_count()} processors, data in {folder.parent}, median of {options.rounds} rounds (the aim)"
    )
    tempfile.tempdir = str(folder)  # peers leave locks there
    try:
        run(folder, counts, options.rounds, options.only)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
