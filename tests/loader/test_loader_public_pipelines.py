"""More shapes of public pipelines, webdataset being the oracle; these were found by looking for its names in public
code and not chosen: speech, sounds, latents, robots, TPUs, language models. Each is written anew."""

from __future__ import annotations

import copy
import io
import itertools
import json
import os
import random
import re
import sys
import tarfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import wdscli.loader as ours
from wdscli.shards import ShardWriter

numpy = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
theirs = pytest.importorskip("webdataset")
pytestmark = pytest.mark.filterwarnings("ignore")
COUNT = 16
Run = Callable[[Any, list[str]], list[Any]]
SHAPES: dict[str, Run] = {}
DRAWN: set[str] = set()


def shape(function: Run) -> Run:
    SHAPES[function.__name__] = function
    return function


def drawn(function: Run) -> Run:
    """Of samples that are drawn only the number is the same."""
    DRAWN.add(function.__name__)
    return shape(function)


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("found")
    with ShardWriter(str(folder / "s-%06d.tar"), max_count=COUNT // 4) as writer:
        for number in range(COUNT):
            array, tensor = io.BytesIO(), io.BytesIO()
            numpy.save(array, numpy.full((4, 2), number, numpy.float32))
            torch.save(torch.full((3,), number), tensor)
            fields = {
                "cls": b"%d" % number,
                "json": json.dumps({"n": number}).encode(),
                "mat.npy": array.getvalue(),
            }
            writer.write(f"{number:05d}", {**fields, "pth": tensor.getvalue(), "txt": b"said %d" % number})
    return [str(folder / f"s-{number:06d}.tar") for number in range(4)]


def batches(data: Any, size: int = 3, workers: int = 2, **more: Any) -> list[Any]:
    loader = torch.utils.data.DataLoader(data, batch_size=size, num_workers=workers, collate_fn=list, **more)
    return [one for batch in loader for one in batch]


@shape
def speech_by_a_manifest(wds: Any, urls: list[str]) -> list[Any]:
    """Stages that are methods and give iterators that are classes: what a manifest lacks is left out, what it has
    several times is given as often."""

    class Times:
        def __init__(self, source: Any) -> None:
            self.source, self.left, self.now = source, 0, None

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> Any:
            while not self.left:
                self.now = next(self.source)
                self.left = int(self.now[1]) % 3
            self.left -= 1
            return (*self.now, self.left)  # type: ignore[misc]

    class Speech(torch.utils.data.IterableDataset):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            stages = [wds.split_by_worker, wds.shuffle(3), wds.tarfile_to_samples()]
            stages += [wds.rename(audio="flac;mat.npy", key="__key__"), wds.to_tuple("audio", "key")]
            self.data = wds.DataPipeline(
                wds.SimpleShardList(urls=urls), *stages, self.times, wds.map(self.made)
            )

        def times(self, source: Any) -> Any:
            return Times(source)

        def made(self, one: Any) -> Any:
            payload, _, time = one
            return float(numpy.load(io.BytesIO(payload))[0, 0]) + 100 * time

        def __iter__(self) -> Any:
            return iter(self.data)

    return batches(Speech())


@drawn
def a_tpu_that_trains(wds: Any, urls: list[str]) -> list[Any]:
    def repeated(samples: Any, times: int) -> Any:
        for sample in samples:
            yield from (copy.deepcopy(sample) for _ in range(times))

    stages = [itertools.cycle, wds.detshuffle(), wds.slice(0, None, 1), wds.split_by_worker]
    stages += [wds.tarfile_to_samples(handler=wds.ignore_and_continue), wds.detshuffle()]
    stages += [
        wds.decode(only="cls"),
        wds.to_tuple("cls"),
        partial(repeated, times=2),
        wds.map_tuple(torch.tensor),
    ]
    data = wds.DataPipeline(wds.SimpleShardList(urls, seed=1), *stages)
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, drop_last=True, collate_fn=list)
    return [int(one) for batch in islice(loader, 6) for (one,) in batch]


@shape
def a_tpu_that_validates(wds: Any, urls: list[str]) -> list[Any]:
    def padded(batch: Any, size: int) -> Any:
        return batch + [(-1,)] * (size - len(batch))

    found = []
    for process in range(2):
        stages = [
            wds.slice(process, None, 2),
            wds.split_by_worker,
            wds.tarfile_to_samples(),
            wds.decode(only="cls"),
        ]
        data = wds.DataPipeline(wds.SimpleShardList(urls), *stages, wds.to_tuple("cls"))
        collate = partial(padded, size=3)
        found += list(torch.utils.data.DataLoader(data, batch_size=3, num_workers=2, collate_fn=collate))
    return [number for batch in found for (number,) in batch]


@shape
def shards_left_out_by_a_stage(wds: Any, urls: list[str]) -> list[Any]:
    def known(shards: Any, numbers: Any, handler: Any = wds.handlers.reraise_exception) -> Any:
        for shard in shards:
            try:
                if int(re.findall(r"\d+", shard["url"])[-1]) in numbers:
                    yield shard
            except Exception as error:
                if not handler(error):
                    break

    stages = [wds.filters.pipelinefilter(known)([0, 2]), wds.split_by_node, wds.split_by_worker]
    data = wds.DataPipeline(
        wds.SimpleShardList(urls), *stages, wds.tarfile_to_samples(), wds.decode(only="cls")
    )
    return batches(wds.DataPipeline(data, wds.map(lambda one: one["cls"])))


@shape
def shards_seen_by_a_map(wds: Any, urls: list[str]) -> list[Any]:
    seen = []

    def noted(shard: Any) -> Any:
        seen.append(os.path.basename(shard["url"]))
        return shard

    stages = [wds.split_by_worker, wds.map(noted), wds.tarfile_to_samples(), wds.to_tuple("cls")]
    return [int(number) for (number,) in wds.DataPipeline(wds.SimpleShardList(urls), *stages)] + seen


@shape
def archives_opened_by_pythons_own_reader(wds: Any, urls: list[str]) -> list[Any]:
    """A file of further facts beside each shard, looked for by the name of the stream."""

    def opened(shards: Any, handler: Any) -> Any:
        for shard in shards:
            yield {**shard, "stream": wds.gopen(shard["url"]), "facts": None}

    def expanded(shards: Any, handler: Any) -> Any:
        for shard in shards:
            for one in (archive := tarfile.open(fileobj=shard["stream"], mode="r|*")):  # noqa: SIM115
                yield {"fname": one.name, "data": archive.extractfile(one).read(), "__url__": shard["url"]}  # type: ignore[union-attr]
                if one.name.endswith(".cls"):
                    name = shard["stream"].name.rsplit("/", 1)[1]
                    yield {"fname": one.name[:-3] + "facts", "data": name, "__url__": shard["url"]}

    def samples(shards: Any, handler: Any = wds.reraise_exception) -> Any:
        return wds.tariterators.group_by_keys(expanded(opened(shards, handler), handler), handler=handler)

    class Meta(wds.DataPipeline):
        def __init__(self, made: Any) -> None:
            stage = wds.filters.pipelinefilter(samples)
            super().__init__(wds.SimpleShardList(urls), wds.split_by_worker, stage(), wds.shuffle(4), made)

    return batches(Meta(lambda found: ([int(one["cls"]), one["facts"]] for one in found)))


@drawn
def shards_drawn_by_a_class(wds: Any, urls: list[str]) -> list[Any]:
    class Drawn(wds.ResampledShards):
        def __init__(self, urls: Any, seed: int) -> None:
            seeds = lambda: wds.utils.pytorch_worker_seed() + 23 * seed  # noqa: E731
            super().__init__(urls, nshards=sys.maxsize, worker_seed=seeds, deterministic=True)

    data = wds.DataPipeline(Drawn(urls, 3), wds.tarfile_to_samples(), wds.shuffle(1))
    return [int(one["cls"]) for one in islice(iter(data), 20)]


@shape
def a_stream_that_only_reads(wds: Any, urls: list[str]) -> list[Any]:
    class Retrying:
        def __init__(self, path: str) -> None:
            self.data = io.BytesIO(Path(path).read_bytes())

        def read(self, amount: int | None = None) -> bytes:
            return self.data.read(amount) if amount else self.data.read()

    def expanded(shards: Any) -> Any:
        for shard in shards:
            for one in wds.tariterators.tar_file_iterator(Retrying(shard["url"])):
                yield {**one, "__url__": shard["url"]}
            yield {}

    group = wds.filters.pipelinefilter(wds.tariterators.group_by_keys)
    data = wds.DataPipeline(wds.SimpleShardList(urls), wds.split_by_node, expanded, group())
    return [int(one["cls"]) for one in data]


@shape
def shards_split_as_a_list(wds: Any, urls: list[str]) -> list[Any]:
    class Resumable(torch.utils.data.IterableDataset):  # type: ignore[misc,name-defined]
        def __iter__(self) -> Any:
            mixed = sorted(urls)
            random.Random(4).shuffle(mixed)
            return ({"url": url} for url in list(wds.split_by_node(wds.split_by_worker(mixed))))

    stages = [
        wds.tarfile_to_samples(),
        wds.select(lambda one: bool({"cls"} & one.keys())),
        wds.decode(only=["cls"]),
    ]
    data = wds.DataPipeline(Resumable(), *stages, wds.to_tuple("cls")).with_length(COUNT)
    assert len(data) == COUNT
    return [number for (number,) in batches(data)]


@shape
def modules_of_names(wds: Any, urls: list[str]) -> list[Any]:
    stages = [wds.shardlists.split_by_worker, wds.tariterators.tarfile_to_samples(), wds.filters.shuffle(5)]
    stages += [
        wds.filters.batched(3),
        wds.filters.map(lambda batch: [json.loads(one)["n"] for one in batch["json"]]),
    ]
    return [n for b in wds.pipeline.DataPipeline(wds.shardlists.SimpleShardList(urls), *stages) for n in b]


@shape
def latents_by_a_decoder_of_torch(wds: Any, urls: list[str]) -> list[Any]:
    decode = wds.decode(
        wds.handle_extension("pth", wds.autodecode.torch_loads), handler=wds.ignore_and_continue
    )
    stages = [wds.tarfile_to_samples(select_files=lambda name: name.endswith("pth")), decode]
    stages += [wds.rename(latent="pth"), wds.map(lambda one: {"latent": one["latent"]}), wds.batched(3)]
    return [int(n) for b in wds.DataPipeline(wds.SimpleShardList(urls), *stages) for n in b["latent"][:, 0]]


@shape
def every_second_of_what_a_filter_leaves(wds: Any, urls: list[str]) -> list[Any]:
    found = []
    for offset in range(2):
        data = wds.WebDataset(
            urls, nodesplitter=None, workersplitter=None, shardshuffle=False, empty_check=False
        )
        data = data.select(lambda one: int(one["cls"]) != 3).slice(1 + offset, sys.maxsize, 2)
        found += [int(one["cls"]) for one in data]
    return found


@shape
def an_endless_set_that_is_sliced(wds: Any, urls: list[str]) -> list[Any]:
    data = wds.WebDataset(urls, nodesplitter=None, workersplitter=None, shardshuffle=False).repeat()
    return [int(one["cls"]) for one in islice(iter(data.slice(3, sys.maxsize, 4)), 9)]


@shape
def mixed_in_turns_and_gone_on_with(wds: Any, urls: list[str]) -> list[Any]:
    mixed = wds.RoundRobin([wds.WebDataset(url, shardshuffle=False) for url in urls[:2]], longest=True)
    stages = [wds.filters.slice(3, None), wds.filters.decode(only="cls"), wds.filters.to_tuple("cls")]
    return [number for (number,) in wds.DataPipeline(mixed, *stages)]


@drawn
def mixed_by_a_language_model(wds: Any, urls: list[str]) -> list[Any]:
    def filled(source: Any, size: int) -> Any:
        held: list[Any] = []
        for one in source:
            held.append(one)
            if len(held) == size:
                yield held
                held = []

    sets = [
        wds.DataPipeline(
            wds.SimpleShardList(part),
            wds.split_by_node,
            wds.split_by_worker,
            wds.tarfile_to_samples(),
            wds.shuffle(5, initial=2, rng=random.Random(1)),
            wds.map(lambda one: int(one["cls"])),
        )
        for part in (urls[:2], urls[2:])
    ]
    mixed = wds.mix.RandomMix if hasattr(wds.mix, "RandomMix") else wds.RandomMix
    whole = wds.filters.pipelinefilter(filled)
    return [n for b in wds.DataPipeline(mixed(sets, probs=[0.5, 0.5], longest=True), whole(4)) for n in b]


@shape
def an_archive_that_is_written_anew(wds: Any, urls: list[str]) -> list[Any]:
    import tempfile

    stages = [wds.tarfile_to_samples(), wds.decode(only=["txt"]), wds.to_tuple("__key__", "txt", "txt")]
    source = wds.DataPipeline(wds.SimpleShardList(f"file:{urls[0]}"), *stages)
    source = source.compose(wds.map_tuple(None, None, lambda text: numpy.full(2, int(text.split()[-1]))))
    with tempfile.TemporaryDirectory() as folder:
        sink = wds.TarWriter(f"{folder}/a.tar", encoder=True)
        for key, text, array in source:
            sink.write({"__key__": key, "txt": text, "emb.npy": array})
        sink.close()
        found = wds.WebDataset(f"{folder}/a.tar", shardshuffle=False).decode().to_tuple("txt", "emb.npy")
        return [[text, array.tolist()] for text, array in found]


@shape
def files_chosen_and_renamed(wds: Any, urls: list[str]) -> list[Any]:
    how = {
        "select_files": lambda name: name.endswith(("cls", "json")),
        "rename_files": lambda n: n.replace("json", "m.json"),
    }
    data = wds.WebDataset(urls, shardshuffle=False, **how).decode().to_tuple("m.json", "cls")
    return [[facts["n"], number] for facts, number in wds.filters._shuffle(iter(data), 5, 2)]


@shape
def what_is_not_there_is_none(wds: Any, urls: list[str]) -> list[Any]:
    data = wds.WebDataset(urls, shardshuffle=False).to_tuple("cls", "absent", missing_is_error=False)
    renamed = wds.WebDataset(urls, shardshuffle=False).rename(a="absent", handler=wds.ignore_and_continue)
    return [[int(number), absent] for number, absent in data] + [len(list(renamed))]


@shape
def copies_of_a_dataset(wds: Any, urls: list[str]) -> list[Any]:
    data = wds.WebDataset(urls, shardshuffle=False).decode(only="cls").to_tuple("cls")
    return [number for one in (copy.deepcopy(data), copy.copy(data)) for (number,) in one]


@pytest.mark.parametrize("name", SHAPES)
def test_it_gives_what_webdataset_gives(name: str, urls: list[str]) -> None:
    wanted, found = SHAPES[name](theirs, urls), SHAPES[name](ours, urls)
    assert len(found) == len(wanted) > 0
    if name in DRAWN:
        assert set(found) <= set(range(COUNT))
        assert len(set(found)) > 1
    else:
        assert Counter(map(json.dumps, found)) == Counter(map(json.dumps, wanted))
