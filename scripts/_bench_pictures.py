"""The bench behind ``scripts/bench --pictures``: JPEGs decoded and brought to 224 x 224 pixels, beside other loaders.

What it is: the same 2,000 pictures of 300 to 600 pixels in two shards (and in the formats of peers that have their
own), read from files and from a web server on this machine, by one process with threads or by two workers of a
DataLoader. Each side makes the shorter side 224 and takes the middle, bilinear, in batches of 64 where it has batches.
How: each run has a process of its own; opening is counted, imports are not. Beside pictures a second stands the
processor time of one, of all processes and threads, which says the same on a machine that has other things to do.
datago reads web servers alone, and DALI files. It must not know the other sets of the bench.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from _bench_sets import wanted_dir

COUNT, QUICK_COUNT, SHARDS, SIDE, BATCH, CPUS = 2_000, 400, 2, 224, 64, 2
SIDES = (300, 600)
BYTES_PER_PICTURE = 60_000
Work = Callable[[], int]
"""Reads all pictures, and says how many."""
SERVER = """
import sys
from aiohttp import web
app = web.Application()
app.router.add_static("/", sys.argv[1])
runner = web.AppRunner(app)
async def main():
    import asyncio
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(site._server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()
import asyncio
asyncio.run(main())
"""


def make_pictures(folder: Path, count: int) -> None:
    """JPEGs that are parts of a few large clouds of noise in all sizes, which compress like photographs."""
    from wdscli.shards import ShardWriter

    draw = random.Random(0)
    grounds = [clouds(number) for number in range(1 + min(5, count // 100))]
    with ShardWriter(f"{folder}/set/p-%06d.tar", max_count=-(-count // SHARDS)) as writer:
        for number in range(count):
            wide, high = draw.randint(*SIDES), draw.randint(*SIDES)
            ground = grounds[number % len(grounds)]
            left, top = draw.randint(0, ground.width - wide), draw.randint(0, ground.height - high)
            stream = io.BytesIO()
            ground.crop((left, top, left + wide, top + high)).save(stream, "jpeg", quality=90)
            writer.write(f"img{number:06d}", {"jpg": stream.getvalue(), "cls": b"%d" % (number % 1000)})


def clouds(seed: int) -> Any:
    import numpy
    from PIL import Image

    side = 2 * SIDES[1]
    rng = numpy.random.default_rng(seed)
    pixels = numpy.full((side, side, 3), 128, numpy.float32)
    for octave in range(9):
        small = rng.normal(0, 60 * 0.68**octave, (2 + (2 << octave), 2 + (2 << octave), 3))
        small = 0.8 * small.mean(2, keepdims=True) * 1.7 + 0.3 * small
        for channel in range(3):
            layer = Image.fromarray(small[..., channel].astype(numpy.float32))
            pixels[..., channel] += numpy.asarray(layer.resize((side, side), Image.Resampling.BICUBIC))
    pixels += rng.normal(0, 4, pixels.shape)
    return Image.fromarray(pixels.clip(0, 255).astype(numpy.uint8))


def by_pillow(data: bytes) -> Any:
    """What one writes with Pillow: decoded by a factor of two where that suffices, resized, cropped."""
    import numpy
    from PIL import Image

    image = Image.open(io.BytesIO(data))
    image.draft("RGB", (SIDE, SIDE))
    image = image.convert("RGB")
    factor = SIDE / min(image.size)
    wide, high = (max(SIDE, int(side * factor)) for side in image.size)
    image = image.resize((wide, high), Image.Resampling.BILINEAR)
    left, top = (wide - SIDE) // 2, (high - SIDE) // 2
    return numpy.asarray(image.crop((left, top, left + SIDE, top + SIDE)))


def shards(place: str) -> list[str]:
    return [f"{place}/set/p-{number:06d}.tar" for number in range(SHARDS)]


def whole(batches: Iterable[Any]) -> int:
    """Pictures in batches, whose first column they are."""
    count = 0
    for batch in batches:
        pictures = batch[0]
        assert tuple(pictures[0].shape) == (SIDE, SIDE, 3)
        count += len(pictures)
    return count


def loop(place: str) -> Work:
    import tarfile

    def work() -> int:
        count = 0
        for path in shards(place):
            with tarfile.open(path) as archive:
                for member in archive:
                    file = archive.extractfile(member) if member.name.endswith("jpg") else None
                    if file is not None:
                        count += by_pillow(file.read()).shape == (SIDE, SIDE, 3)
        return count

    return work


def data_of_ours(place: str, threads: int, jpeg: str = "auto") -> Any:
    import wdscli.loader as wds

    handler = wds.imagehandler("rgb8", jpeg=jpeg, size=SIDE, crop=SIDE)
    data = wds.WebDataset(shards(place), threads=threads).decode(handler)
    return data.to_tuple("jpg", "cls").batched(BATCH)


def import_ours() -> None:
    from PIL import Image

    import wdscli.loader as wds

    stream = io.BytesIO()
    Image.new("RGB", (2 * SIDE, 2 * SIDE)).save(stream, "jpeg")
    wds.imagehandler("rgb8", size=SIDE)(".jpg", stream.getvalue())


def ours(place: str, threads: int = 1, jpeg: str = "auto") -> Work:
    import_ours()
    return lambda: whole(data_of_ours(place, threads, jpeg))


def ours_in_workers(place: str) -> Work:
    from torch.utils.data import DataLoader

    import_ours()
    return lambda: whole(DataLoader(data_of_ours(place, 1), batch_size=None, num_workers=CPUS))


def webdataset_in_workers(place: str) -> Work:
    import webdataset

    data = webdataset.WebDataset(shards(place), shardshuffle=False).map(
        lambda sample: [by_pillow(sample["jpg"])]
    )
    return lambda: whole(webdataset.WebLoader(data.batched(BATCH), batch_size=None, num_workers=CPUS))


def of_samples(samples: list[dict[str, Any]]) -> tuple[Any]:
    import numpy

    return (numpy.stack([by_pillow(bytes(sample["jpg"])) for sample in samples]),)


def mosaic(place: str) -> Work:
    from _bench_loader import MOSAIC, skip_beginning

    skip_beginning(*MOSAIC)
    from streaming.base.dataset import StreamingDataset
    from torch.utils.data import DataLoader

    data = StreamingDataset(local=f"{place}/mds", batch_size=BATCH, shuffle=False, predownload=1 << 20)
    return lambda: whole(DataLoader(data, BATCH, num_workers=CPUS, collate_fn=of_samples))


def litdata(place: str) -> Work:
    from litdata import StreamingDataset
    from torch.utils.data import DataLoader

    data = StreamingDataset(f"{place}/lit", shuffle=False)
    return lambda: whole(DataLoader(data, BATCH, num_workers=CPUS, collate_fn=of_samples))


def spdl(place: str) -> Work:
    import urllib.request

    import spdl.io
    from spdl.pipeline import PipelineBuilder

    how = spdl.io.get_video_filter_desc(
        scale_width=SIDE, scale_height=SIDE, scale_algo="bilinear", scale_mode="crop",
        crop_width=SIDE, crop_height=SIDE, pix_fmt="rgb24",
    )  # fmt: skip

    def payloads() -> Iterable[bytes]:
        for address in shards(place):
            with urllib.request.urlopen(address if "://" in address else f"file://{address}") as stream:
                for name, data in spdl.io.iter_tarfile(stream):
                    if name.endswith("jpg"):
                        yield data

    def decoded(data: bytes) -> Any:
        return spdl.io.decode_packets(spdl.io.demux_image(data), filter_desc=how)

    def batch(frames: list[Any]) -> Any:
        return (spdl.io.to_numpy(spdl.io.convert_frames(frames)),)

    decoded(next(iter(payloads())))  # FFmpeg must be there

    def work() -> int:
        builder = PipelineBuilder().add_source(payloads()).pipe(decoded, concurrency=CPUS)
        pipeline = builder.aggregate(BATCH).pipe(batch).add_sink(4).build(num_threads=CPUS + 1)
        with pipeline.auto_stop():
            return whole(pipeline.get_iterator(timeout=120))

    return work


def dali(place: str) -> Work:
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=BATCH, num_threads=CPUS, device_id=None, prefetch_queue_depth=3)  # type: ignore[misc,unused-ignore]
    def made() -> Any:
        data, label = fn.readers.webdataset(
            paths=shards(place), ext=["jpg", "cls"], missing_component_behavior="error", name="pictures"
        )
        pictures = fn.decoders.image(data, device="cpu", output_type=types.RGB)
        pictures = fn.resize(pictures, size=[SIDE, SIDE], mode="not_smaller", interp_type=types.INTERP_LINEAR)
        return fn.crop(pictures, crop=(SIDE, SIDE)), label

    def work() -> int:
        pipeline = made()
        pipeline.build()
        count, total = 0, int(pipeline.epoch_size("pictures"))
        while count < total:
            count += len(pipeline.run()[0])
        return min(count, total)  # it fills its last batch

    return work


def datago(place: str) -> Work:
    from datago import DatagoClient, initialize_logging

    initialize_logging(log_level="error")
    config = {
        "source_type": "webdataset",
        "source_config": {
            "url": f"{place}/set/p-{{000000..{SHARDS - 1:06d}}}.tar",
            "random_sampling": False,
            "concurrent_downloads": SHARDS,
            "rank": 0,
            "world_size": 1,
        },
        "image_config": {
            "crop_and_resize": True,
            "default_image_size": SIDE,
            "downsampling_ratio": 32,
            "min_aspect_ratio": 1.0,
            "max_aspect_ratio": 1.0,
            "pre_encode_images": False,
        },
        "prefetch_buffer_size": 128,
        "samples_buffer_size": BATCH,
        "limit": 1_000_000,
    }

    def work() -> int:
        client = DatagoClient(json.dumps(config))
        count = 0
        while (sample := client.get_sample()) is not None:
            assert (sample.image.width, sample.image.height) == (SIDE, SIDE)
            count += 1
        return count

    return work


class Entrant(NamedTuple):
    """``make`` gives what is timed, of the place where the pictures are; ``needs`` is a package, ``at`` places."""

    name: str
    make: Callable[[str], Work]
    needs: str = "PIL"
    at: tuple[str, ...] = ("files",)


BOTH = ("files", "HTTP")
ENTRANTS = [
    Entrant("ours, 2 threads", lambda place: ours(place, 2), at=BOTH),
    Entrant("ours, 1 thread", lambda place: ours(place, 1), at=BOTH),
    Entrant("ours, 4 threads", lambda place: ours(place, 4), at=BOTH),
    Entrant("ours, 2 threads, Pillow alone", lambda place: ours(place, 2, "pillow")),
    Entrant("ours, DataLoader, 2 workers", ours_in_workers, "torch"),
    Entrant("a loop over tarfile and Pillow", loop),
    Entrant("webdataset, 2 workers, Pillow", webdataset_in_workers, "webdataset"),
    Entrant("MosaicML, 2 workers, Pillow", mosaic, "streaming"),
    Entrant("litData, 2 workers, Pillow", litdata, "litdata"),
    Entrant("datago", datago, "datago", ("HTTP",)),
    Entrant("SPDL, 2 threads", spdl, "spdl", BOTH),
    Entrant("DALI, CPU, 2 threads", dali, "nvidia.dali"),
]


class Measured(NamedTuple):
    """Pictures a second, and milliseconds of processor time for one."""

    rate: float
    cpu_ms: float


def processor_seconds() -> float:
    parts = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in parts)


def run_one(number: int, place: str, count: int) -> None:
    """In a process of its own: prints what was measured."""
    warnings.simplefilter("ignore")
    work = ENTRANTS[number].make(place)
    begin, used = time.perf_counter(), processor_seconds()
    found = work()
    seconds, used = time.perf_counter() - begin, processor_seconds() - used
    if found != count:
        raise SystemExit(f"{found} pictures of {count}")
    print("measured", json.dumps([count / seconds, used / count * 1e3]), flush=True)


def measured(number: int, place: str, count: int) -> Measured:
    """Raises RuntimeError with what it said last."""
    command = [sys.executable, __file__, "--side", str(number), place, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    lines = [line for line in done.stdout.splitlines() if line.startswith("measured ")]
    if done.returncode or not lines:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise RuntimeError(said[-1][:200] if said else f"exit status {done.returncode}")
    return Measured(*json.loads(lines[-1].removeprefix("measured ")))


@contextmanager
def served(folder: Path) -> Any:
    """The address of a web server for a folder."""
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{server.stdout.readline().strip()}"
    finally:
        server.terminate()
        server.wait()


def is_here(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def chosen(only: str) -> list[int]:
    numbers = []
    for number, entrant in enumerate(ENTRANTS):
        if not is_here(entrant.needs):
            print(f"skipped: {entrant.name}: {entrant.needs} is not installed here", flush=True)
        elif only in entrant.name:
            numbers.append(number)
    return numbers


def run(folder: Path, count: int, rounds: int, only: str) -> None:
    make_pictures(folder, count)
    write_others(folder)
    found: dict[tuple[int, str], list[Measured]] = {}
    gone: set[tuple[int, str]] = set()
    numbers = chosen(only)
    with served(folder) as address:
        places = {"files": str(folder), "HTTP": address}
        for round_ in range(rounds):
            for number in numbers if round_ % 2 else numbers[::-1]:
                for where in ENTRANTS[number].at:
                    if (number, where) in gone:
                        continue
                    try:
                        one = measured(number, places[where], count)
                    except (RuntimeError, subprocess.TimeoutExpired) as error:
                        gone.add((number, where))
                        print(f"skipped: {ENTRANTS[number].name}, {where}: {error}", flush=True)
                        continue
                    found.setdefault((number, where), []).append(one)
                    print(
                        f"  {ENTRANTS[number].name}, {where}: {one.rate:.0f}/s", file=sys.stderr, flush=True
                    )
    print_table(found)


def write_others(folder: Path) -> None:
    """The same in the formats of those that have their own and are here."""
    from wdscli.shards import ShardReader

    def samples() -> Iterable[dict[str, Any]]:
        for path in shards(str(folder)):
            with ShardReader(path) as shard:
                for sample in shard:
                    yield {"key": sample.key, "jpg": sample["jpg"]}

    if is_here("streaming"):
        from _bench_loader import MOSAIC, skip_beginning

        skip_beginning(*MOSAIC)
        from streaming.base.format import MDSWriter

        with MDSWriter(out=str(folder / "mds"), columns={"key": "str", "jpg": "bytes"}) as writer:
            for sample in samples():
                writer.write(sample)
    if is_here("litdata"):
        from litdata.streaming.writer import BinaryWriter

        chunks = BinaryWriter(str(folder / "lit"), chunk_bytes="64MB")
        for number, sample in enumerate(samples()):
            chunks[number] = sample
        chunks.done()
        chunks.merge()


def middle(found: list[Measured]) -> Measured:
    return Measured(*(statistics.median(column) for column in zip(*found)))


def print_table(found: dict[tuple[int, str], list[Measured]]) -> None:
    """Rates, and in brackets how many times as fast ours with two threads is there."""
    first = {where: middle(found[0, where]) for where in BOTH if (0, where) in found}
    print(f"\n| {'decoded to 224 x 224, pictures/s':<32} | {'files':<15} | {'HTTP':<15} | {'CPU ms':<6} |")
    print(f"|{'-' * 34}|{'-' * 17}|{'-' * 17}|{'-' * 8}|")
    for number, entrant in enumerate(ENTRANTS):
        cells = []
        for where in BOTH:
            one = middle(found[number, where]) if (number, where) in found else None
            ratio = f" ({first[where].rate / one.rate:.2f}x)" if one and number and where in first else ""
            cells.append(f"{one.rate:.0f}{ratio}" if one else "")
        if any(cells):
            cpu = middle(next(found[number, where] for where in BOTH if (number, where) in found)).cpu_ms
            print(f"| {entrant.name:<32} | {cells[0]:<15} | {cells[1]:<15} | {cpu:<6.2f} |")


def main() -> None:
    if sys.argv[1:2] == ["--side"]:
        run_one(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(prog="scripts/bench --pictures", description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a fifth of the pictures")
    parser.add_argument("--dir", help="where to put data; default /dev/shm if it has room")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each row")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    options = parser.parse_args()
    count = QUICK_COUNT if options.quick else COUNT
    folder = wanted_dir(options.dir, 4 * count * BYTES_PER_PICTURE)
    tempfile.tempdir = str(folder)
    try:
        run(folder, count, options.rounds, options.only)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
