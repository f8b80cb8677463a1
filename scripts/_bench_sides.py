"""What the bench calls in Python: the same work done by us and by a peer.

What it is: functions of a set that do one thing and say how many samples took how long. How: each call has a process of
its own, forked from one that has read no set, so that nothing learnt in one round helps the next; it does the work on a
set of a few samples first, so that imports are not counted. Peers that import torch are forked from a process that has
imported it, ours from one that has not. One shard is enough for what has no start-up, and one for each worker. It must
not know rows, aims and tables.
"""

from __future__ import annotations

import multiprocessing
import shutil
import time
import traceback
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from _bench_sets import Data, samples

BATCH, WORKERS = 64, 2
HELD = {"tiny": 20_000, "text": 20_000, "images": 1_000}
"""Samples that are held in memory, for the rows that write."""
BASE_FIELDS = ["txt", "jpg", "json", "cls"]
"""The fields of a view without its captions."""


class Timed(NamedTuple):
    """``samples`` came in ``seconds``."""

    samples: int
    seconds: float


def whole(items: Iterable[Any], size: Callable[[Any], int] = lambda item: 1) -> Timed:
    """Everything, with opening."""
    begin = time.perf_counter()
    count = sum(map(size, items))
    return Timed(count, time.perf_counter() - begin)


def behind_first(batches: Iterable[Any], size: Callable[[Any], int]) -> Timed:
    """From the first batch on, because starting workers costs both sides the same."""
    count, begin = 0, 0.0
    for batch in batches:
        if begin:
            count += size(batch)
        begin = begin or time.perf_counter()
    return Timed(count, time.perf_counter() - begin)


def list_ours(data: Data) -> Timed:
    from wdscli.storage import open_source
    from wdscli.tar import scan

    begin = time.perf_counter()
    with open_source(str(data.shards[0])) as source:
        count = sum(len(window.columns.names) for window in scan(source))
    return Timed(count, time.perf_counter() - begin)


def list_tarfile(data: Data) -> Timed:
    import tarfile

    begin = time.perf_counter()
    with tarfile.open(data.shards[0]) as archive:
        count = sum(1 for _ in archive)
    return Timed(count, time.perf_counter() - begin)


def iterate_ours(data: Data) -> Timed:
    from wdscli.shards import ShardReader

    begin = time.perf_counter()
    with ShardReader(str(data.shards[0])) as shard:
        count = sum(1 for _ in shard)
    return Timed(count, time.perf_counter() - begin)


def iterate_loader(data: Data) -> Timed:
    return whole(ours([data.shards[0]]))


def iterate_webdataset(data: Data) -> Timed:
    return whole(peers([data.shards[0]]))


def ours(shards: Iterable[Any], **how: Any) -> Any:
    import wdscli.loader as wds

    return wds.WebDataset([str(path) for path in shards], **how)


def peers(shards: Iterable[Any]) -> Any:
    import webdataset

    return webdataset.WebDataset([str(path) for path in shards], shardshuffle=False)


def shuffle_ours(data: Data) -> Timed:
    from wdscli.plan.orders import ShuffledOrder
    from wdscli.plan.request import Request
    from wdscli.run.execute import reorder
    from wdscli.shards.writing import ShardSettings

    begin = time.perf_counter()
    shards = [str(path) for path in data.shards]
    settings = ShardSettings(force=True)
    request = Request(shards, str(_shuffled(data) / "o-%06d.tar"), settings=settings, jobs=1)
    report = reorder(request, ShuffledOrder(1))
    return Timed(report.samples, time.perf_counter() - begin)


def shuffle_webdataset(data: Data) -> Timed:
    """What webdataset's users write: all samples in memory, as bytes, and its writer."""
    import random

    import webdataset

    begin = time.perf_counter()
    samples = list(peers(data.shards))
    random.Random(1).shuffle(samples)
    with webdataset.TarWriter(str(_shuffled(data) / "all.tar"), encoder=False) as writer:
        for sample in samples:
            writer.write(
                {name: value for name, value in sample.items() if name not in ("__url__", "__local_path__")}
            )
    return Timed(len(samples), time.perf_counter() - begin)


def _shuffled(data: Data) -> Path:
    """An empty folder next to the set."""
    folder = data.folder / "shuffled"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def by_key(batch: Any) -> int:
    return len(batch["__key__"])


def in_workers(dataset: Any, size: Callable[[Any], int] = by_key, **how: Any) -> Timed:
    from torch.utils.data import DataLoader

    return behind_first(DataLoader(dataset, batch_size=None, num_workers=WORKERS, **how), size)


def view_ours(data: Data) -> Timed:
    return whole(ours([data.folder / "view" / "v.json"]))


def view_flat(data: Data) -> Timed:
    return whole(ours([data.folder / "view" / "flat"]))


def view_window_ours(data: Data) -> Timed:
    return whole(ours([data.folder / "view" / "v.json"], shuffle="window"))


def view_window_flat(data: Data) -> Timed:
    return whole(ours([data.folder / "view" / "flat"], shuffle="window"))


def view_base_ours(data: Data) -> Timed:
    return whole(ours([data.folder / "view" / "v.json"], fields=BASE_FIELDS))


def view_base_flat(data: Data) -> Timed:
    return whole(ours([data.folder / "view" / "flat"], fields=BASE_FIELDS))


def workers_ours(data: Data) -> Timed:
    return in_workers(ours(data.shards[:WORKERS]).batched(BATCH))


def converted_ours(data: Data) -> Timed:
    from wdscli.loader import default_convert

    return in_workers(ours(data.shards[:WORKERS]).batched(BATCH), collate_fn=default_convert)


def web_loader_ours(data: Data) -> Timed:
    from wdscli.loader import WebLoader

    batches = ours(data.shards[:WORKERS]).batched(BATCH)
    return behind_first(WebLoader(batches, batch_size=None, num_workers=WORKERS), by_key)


def workers_webdataset(data: Data) -> Timed:
    import webdataset

    batches = peers(data.shards[:WORKERS]).batched(BATCH)
    return behind_first(webdataset.WebLoader(batches, batch_size=None, num_workers=WORKERS), by_key)


def write_ours(data: Data) -> Timed:
    from wdscli.tar import TarWriter

    held = list(samples(data.kind, min(data.count, HELD[data.kind])))
    begin = time.perf_counter()
    with open("/dev/null", "wb", buffering=0) as sink, TarWriter(sink) as tar:
        for key, fields in held:
            prefix = key.encode() + b"."
            for field, payload in fields.items():
                tar.add(prefix + field.encode(), payload)
    return Timed(len(held), time.perf_counter() - begin)


def write_webdataset(data: Data) -> Timed:
    import webdataset

    held = list(samples(data.kind, min(data.count, HELD[data.kind])))
    begin = time.perf_counter()
    with open("/dev/null", "wb") as stream:
        writer = webdataset.TarWriter(stream, encoder=False)
        for key, fields in held:
            writer.write({"__key__": key, **fields})
        writer.close()
    return Timed(len(held), time.perf_counter() - begin)


SIDES: dict[str, Callable[[Data], Timed]] = {
    function.__name__: function
    for function in (
        list_ours,
        list_tarfile,
        iterate_ours,
        iterate_loader,
        iterate_webdataset,
        view_base_flat,
        view_base_ours,
        view_flat,
        view_ours,
        view_window_flat,
        view_window_ours,
        workers_ours,
        converted_ours,
        web_loader_ours,
        workers_webdataset,
        shuffle_ours,
        shuffle_webdataset,
        write_ours,
        write_webdataset,
    )
}
NEED = {
    "workers_ours": "torch",
    "converted_ours": "torch",
    "web_loader_ours": "torch",
    "workers_webdataset": "torch",
    "iterate_webdataset": "webdataset",
    "shuffle_webdataset": "webdataset",
    "write_webdataset": "webdataset",
}
"""What a side imports besides what the bench has anyway; webdataset imports torch where it is installed."""


def called(side: str, data: Data, small: Data) -> Timed:
    """The function of this name, in a process of its own."""
    context: Any = multiprocessing.get_context("forkserver" if side in NEED else "fork")
    if side in NEED:
        context.set_forkserver_preload(["webdataset"])
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_call, args=(there, side, data, small))
    process.start()
    there.close()
    try:
        answer = here.recv()
    except EOFError:
        answer = f"ended with {process.exitcode}"
    process.join()
    if not isinstance(answer, Timed):
        raise RuntimeError(f"{side} on {data.kind}, {data.way}: {answer}")
    return answer


def _call(connection: Connection, side: str, data: Data, small: Data) -> None:
    # Else a DataLoader would start its workers as this process was started, and import torch again in each of them.
    multiprocessing.set_start_method("fork", force=True)
    try:
        SIDES[side](small)
        connection.send(SIDES[side](data))
    except Exception:
        connection.send(traceback.format_exc())
