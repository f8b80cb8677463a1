"""Pipelines in the shapes that public training code has, webdataset being the oracle: contrastive models, classifiers,
captioning, diffusion, robots, speech, Lightning's data modules, readers of what img2dataset wrote. Each is written anew
in a few lines and runs with webdataset and with wds: the same samples come, or as many where they are drawn."""

from __future__ import annotations

import io
import json
import math
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from glob import glob
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import wdscli.loader as ours
from wdscli.shards import ShardWriter

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")
theirs = pytest.importorskip("webdataset")
pytestmark = pytest.mark.filterwarnings("ignore")

COUNT, SHARDS = 40, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import numpy
    from PIL import Image

    folder = tmp_path_factory.mktemp("shapes")
    with ShardWriter(str(folder / "s-%06d.tar"), max_count=COUNT // SHARDS) as writer:
        for number in range(COUNT):
            picture, array = io.BytesIO(), io.BytesIO()
            Image.new("RGB", (8, 6), (number, 10, 20)).save(picture, "jpeg")
            numpy.save(array, numpy.full(3, number, numpy.float32))
            fields = {
                "jpg": picture.getvalue(),
                "cls": b"%d" % number,
                "json": json.dumps(
                    {"n": number, "status": "success", "caption": f"picture {number}"}
                ).encode(),
                "txt": b"picture %d" % number,
                "npy": array.getvalue(),
            }
            writer.write(f"{number:09d}", fields)
    return folder


Run = Callable[[Any, str], list[int]]
SHAPES: dict[str, Run] = {}
DRAWN: set[str] = set()


def shape(function: Run) -> Run:
    SHAPES[function.__name__] = function
    return function


def drawn(function: Run) -> Run:
    """Of samples that are drawn only the number is the same."""
    DRAWN.add(function.__name__)
    return shape(function)


def ints(column: Any) -> list[int]:
    return [int(one) for one in column]


def said(texts: Any) -> list[int]:
    return [int(text.split()[-1]) for text in texts]


def to_tensor(image: Any) -> Any:
    import numpy

    return torch.from_numpy(numpy.asarray(image).transpose(2, 0, 1).copy())


def log_and_continue(exn: Exception) -> bool:
    return True


def has_picture(sample: Any) -> bool:
    return ("txt" in sample) and ("png" in sample or "jpg" in sample)


def group_by_keys_nothrow(
    wds: Any, data: Any, keys: Any = None, lcase: bool = True, handler: Any = None
) -> Any:
    """A reader of members of one's own, as open_clip's."""
    current = None
    for filesample in data:
        fname, value = filesample["fname"], filesample["data"]
        prefix, suffix = (keys or wds.tariterators.base_plus_ext)(fname)
        if prefix is None:
            continue
        if lcase:
            suffix = suffix.lower()
        if current is None or prefix != current["__key__"] or suffix in current:
            if wds.tariterators.valid_sample(current):
                yield current
            current = {"__key__": prefix, "__url__": filesample["__url__"]}
        current[suffix] = value
    if wds.tariterators.valid_sample(current):
        yield current


def nothrow(wds: Any, src: Any, handler: Any = log_and_continue) -> Any:
    streams = wds.tariterators.url_opener(src, handler=handler)
    files = wds.tariterators.tar_file_expander(streams, handler=handler, eof_value=None)
    return group_by_keys_nothrow(wds, files, handler=handler)


def stages_of_clip(wds: Any, partial_batches: bool = True) -> list[Any]:
    return [
        wds.select(has_picture),
        wds.decode("pilrgb", handler=log_and_continue),
        wds.rename(image="jpg;png;jpeg;webp", text="txt"),
        wds.map_dict(image=to_tensor, text=lambda text: text),
        wds.to_tuple("image", "text"),
        wds.batched(5, partial=partial_batches),
    ]


class Detshuffle:
    """A shuffle of shards by seed and an epoch that is shared, as open_clip's."""

    @staticmethod
    def made(wds: Any, **more: Any) -> Any:
        class Own(wds.PipelineStage if hasattr(wds, "PipelineStage") else wds.utils.PipelineStage):
            def __init__(
                self, bufsize: int = 1000, initial: int = 100, seed: int = 0, epoch: int = -1
            ) -> None:
                self.bufsize, self.initial, self.seed, self.epoch = bufsize, initial, seed, epoch

            def run(self, src: Any) -> Any:
                self.epoch += 1
                rng = random.Random(self.seed + self.epoch)
                return wds.filters._shuffle(src, self.bufsize, self.initial, rng)

        return Own(**more)


@shape
def clip_training(wds: Any, urls: str) -> list[int]:
    stages = [wds.SimpleShardList(urls), Detshuffle.made(wds, seed=3), wds.split_by_node, wds.split_by_worker]
    stages += [partial(nothrow, wds), wds.shuffle(bufsize=20, initial=5), *stages_of_clip(wds)]
    loader = wds.WebLoader(wds.DataPipeline(*stages), batch_size=None, shuffle=False, num_workers=2)
    return [number for _, texts in loader for number in said(texts)]


@drawn
def clip_resampled(wds: Any, urls: str) -> list[int]:
    class Resampled2(torch.utils.data.IterableDataset):  # type: ignore[misc,name-defined]
        def __init__(self, urls: str) -> None:
            self.urls = wds.shardlists.expand_urls(urls)
            self.rng = random.Random(0)

        def __iter__(self) -> Any:
            self.rng.seed(wds.utils.pytorch_worker_seed())
            while True:
                yield {"url": self.rng.choice(self.urls)}

    stages = [Resampled2(urls), partial(nothrow, wds), wds.shuffle(bufsize=20, initial=5)]
    data = wds.DataPipeline(*stages, *stages_of_clip(wds, False)).with_epoch(3)
    loader = wds.WebLoader(data, batch_size=None, shuffle=False, num_workers=2, persistent_workers=True)
    loader.num_batches = 6
    return [number for _ in range(2) for _, texts in loader for number in said(texts)]


@drawn
def clip_of_the_library(wds: Any, urls: str) -> list[int]:
    stages = [wds.ResampledShards(urls, deterministic=True), wds.tarfile_to_samples(handler=log_and_continue)]
    data = wds.DataPipeline(*stages, wds.shuffle(20), *stages_of_clip(wds, False)).with_epoch(4)
    loader = wds.WebLoader(data, batch_size=None, shuffle=False, num_workers=2)
    return [number for _, texts in loader for number in said(texts)]


@shape
def clip_validation(wds: Any, urls: str) -> list[int]:
    stages = [
        wds.SimpleShardList(urls),
        wds.split_by_worker,
        wds.tarfile_to_samples(handler=log_and_continue),
    ]
    data = wds.DataPipeline(*stages, *stages_of_clip(wds))
    return [n for _, texts in wds.WebLoader(data, batch_size=None, num_workers=1) for n in said(texts)]


@shape
def classifier_reader(wds: Any, urls: str) -> list[int]:
    """timm's: an iterable dataset around a pipeline that is cut anew in each epoch."""

    class Reader(torch.utils.data.IterableDataset):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            stages = [wds.SimpleShardList(urls), Detshuffle.made(wds), wds.split_by_node, wds.split_by_worker]
            stages += [
                wds.tarfile_to_samples(handler=log_and_continue),
                wds.shuffle(10, rng=random.Random(1)),
            ]
            stages += [wds.map(partial(_decoded, alt_label="n"), handler=log_and_continue)]
            self.ds = wds.DataPipeline(*stages)

        def __iter__(self) -> Any:
            info = torch.utils.data.get_worker_info()
            for sample in self.ds.with_epoch(COUNT // (info.num_workers if info else 1)):
                yield sample["jpg"], sample["cls"]

    loader = torch.utils.data.DataLoader(Reader(), batch_size=4, num_workers=2, collate_fn=list)
    return [label for batch in loader for _, label in batch]


def _decoded(sample: Any, alt_label: str) -> Any:
    from PIL import Image

    with io.BytesIO(sample["jpg"]) as stream:
        picture = Image.open(stream)
        picture.load()
    return {"jpg": picture.convert("RGB"), "cls": json.loads(sample["json"])[alt_label], "json": None}


@drawn
def captions_of_lavis(wds: Any, urls: str) -> list[int]:
    handler = wds.warn_and_continue
    inner = wds.DataPipeline(
        wds.ResampledShards(urls),
        wds.tarfile_to_samples(handler=handler),
        wds.shuffle(1000, handler=handler),
        wds.decode("pilrgb", handler=handler),
        wds.to_tuple("jpg", "json", handler=handler),
        wds.map_tuple(to_tensor, handler=handler),
        wds.map(lambda sample: {"image": sample[0], "text_input": sample[1]["caption"]}, handler=handler),
    )
    loader = iter(torch.utils.data.DataLoader(inner, batch_size=4, num_workers=0))
    return [number for batch in islice(loader, 5) for number in said(batch["text_input"])]


@drawn
def chained_captions(wds: Any, urls: str) -> list[int]:
    def inner() -> Any:
        return wds.DataPipeline(
            wds.ResampledShards(urls),
            wds.tarfile_to_samples(),
            wds.decode("pil"),
            wds.to_tuple("jpg", "json"),
        )

    class Chain(wds.DataPipeline):
        def __init__(self, datasets: list[Any]) -> None:
            super().__init__()
            self.loaders = datasets
            self.prob = [1 / len(datasets)] * len(datasets)

        def __iter__(self) -> Any:
            its = [iter(one) for one in self.loaders]
            while True:
                yield next(random.choices(its, self.prob, k=1)[0])

    return [sample["n"] for _, sample in islice(Chain([inner(), inner()]), 20)]


@shape
def split_functions_over_samples(wds: Any, urls: str) -> list[int]:
    data = wds.DataPipeline(wds.SimpleShardList(urls), wds.tarfile_to_samples(), wds.decode("pil"))
    return [int(sample["cls"]) for sample in wds.split_by_worker(wds.split_by_node(data))]


@drawn
def diffusion_of_robots(wds: Any, urls: str) -> list[int]:
    def preprocess(sample: Any) -> Any:
        return {"jpg": torch.from_numpy(sample["jpg"].copy()).permute(2, 0, 1), "cls": sample["cls"]}

    stages = [
        wds.ResampledShards(sorted(glob(urls))),
        wds.shuffle(100),
        wds.tarfile_to_samples(),
        wds.decode("rgb8"),
    ]
    stages += [
        wds.map(preprocess),
        wds.batched(4, collation_fn=torch.utils.data.default_collate, partial=False),
    ]
    loader = wds.WebLoader(wds.DataPipeline(*stages), batch_size=None, num_workers=1, prefetch_factor=2)
    return [number for batch in islice(iter(loader), 5) for number in ints(batch["cls"])]


@drawn
def a_handler_that_is_a_number(wds: Any, urls: str) -> list[int]:
    data = wds.DataPipeline(
        wds.ResampledShards(urls),
        wds.shuffle(100),
        wds.tarfile_to_samples(1),
        wds.decode(lambda key, value: value.decode() if key == ".txt" else value),
        wds.shuffle(4),
    )
    loader = torch.utils.data.DataLoader(data, num_workers=0, batch_size=4, collate_fn=list)
    return [number for batch in islice(iter(loader), 5) for number in said(one["txt"] for one in batch)]


@drawn
def latents_of_a_resampled_set(wds: Any, urls: str) -> list[int]:
    keep = wds.warn_and_continue
    data = (
        wds.WebDataset(urls, resampled=True, handler=keep)
        .select(lambda s: "jpg" in s)
        .shuffle(690, handler=keep)
    )
    data = data.decode("pilrgb", handler=keep).to_tuple("jpg", "txt", handler=keep)
    data = data.map_tuple(to_tensor, lambda text: text, handler=keep)
    data = data.map(lambda x: {name: x[at] for at, name in enumerate(["images", "captions"])})
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2)
    return [number for batch in islice(iter(loader), 6) for number in said(batch["captions"])]


@shape
def a_length_that_is_not_assigned(wds: Any, urls: str) -> list[int]:
    data = wds.WebDataset(urls, shardshuffle=True).shuffle(100).decode("rgb").to_tuple("jpg", "cls")
    data = data.map_tuple(lambda picture: picture)
    data.with_length(COUNT)
    assert len(data) == COUNT
    loader = torch.utils.data.DataLoader(data, num_workers=0, batch_size=6, drop_last=False)
    return [number for _, labels in loader for number in ints(labels)]


@drawn
def repeated_and_split_by_a_function(wds: Any, urls: str) -> list[int]:
    def split_by_rank(src: Any, group: Any = None) -> Any:
        yield from islice(src, 0, None, 1)

    data = (
        wds.WebDataset(
            urls, shardshuffle=1000, nodesplitter=split_by_rank, workersplitter=wds.split_by_worker
        )
        .shuffle(10000)
        .decode("pil")
        .to_tuple("__key__", "jpg;JPEG;jpeg;png")
        .map_tuple(lambda key: key, to_tensor)
        .map(lambda pair: (pair[1], int(pair[0])))
        .repeat()
        .batched(5, partial=False)
    )
    loader = wds.WebLoader(data, batch_size=None, num_workers=2)
    return [number for _, labels in islice(iter(loader), 7) for number in ints(labels)]


@shape
def keys_and_pictures_for_an_explanation(wds: Any, urls: str) -> list[int]:
    data = wds.WebDataset(
        sorted(glob(urls)), shardshuffle=False, handler=wds.warn_and_continue, empty_check=False
    )
    data = data.decode("pil").to_tuple("jpg", "json", "__key__", handler=wds.warn_and_continue)
    data = data.map_tuple(to_tensor, lambda x: x, lambda x: x)
    loader = torch.utils.data.DataLoader(data, batch_size=1, num_workers=2, collate_fn=lambda batch: batch[0])
    return [meta["n"] for _, meta, _ in loader]


@shape
def a_loader_that_is_repeated_and_cut(wds: Any, urls: str) -> list[int]:
    data = wds.WebDataset(urls, shardshuffle=False).decode("pil").rename(image="jpg;png", text="txt")
    data = data.map_dict(image=to_tensor, text=str).to_tuple("image", "text").batched(4, partial=False)
    loader = wds.WebLoader(data, batch_size=None, shuffle=False, num_workers=1).repeat(2).slice(15)
    return [number for _, texts in loader for number in said(texts)]


@shape
def a_map_that_drops(wds: Any, urls: str) -> list[int]:
    def decode_sample(sample: Any) -> Any:
        number = int(sample["cls"])
        return {"image": sample["jpg"], "n": number, "key": sample.get("__key__")} if number % 3 else None

    data = wds.WebDataset(sorted(glob(urls)), empty_check=False, shardshuffle=False).map(decode_sample)
    data = data.select(lambda x: x is not None)
    loader = torch.utils.data.DataLoader(
        data, batch_size=5, collate_fn=lambda b: {"n": [one["n"] for one in b]}
    )
    return [number for batch in loader for number in batch["n"]]


@shape
def nothing_is_split_again(wds: Any, urls: str) -> list[int]:
    mine = sorted(glob(urls))[1:3]
    data = wds.WebDataset(mine, shardshuffle=True, empty_check=False, nodesplitter=lambda src: src)
    return [int(sample["cls"]) for sample in data]


@shape
def a_wrapper_that_is_iterable(wds: Any, urls: str) -> list[int]:
    class Own(torch.utils.data.IterableDataset):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            self.dataset = wds.DataPipeline(
                wds.SimpleShardList(sorted(glob(urls))),
                wds.split_by_worker,
                wds.tarfile_to_samples(),
                wds.shuffle(10),
                wds.decode("pil"),
                wds.to_tuple("jpg", "cls"),
                wds.map_tuple(to_tensor),
                wds.batched(4, collation_fn=wds.filters.default_collation_fn),
                wds.map(lambda batch: batch),
            ).with_length(10)

        def __iter__(self) -> Any:
            for data in self.dataset:
                yield dict(zip(("image", "label"), data))

        def __len__(self) -> int:
            return len(self.dataset)

    own = Own()
    assert len(own) == 10
    loader = torch.utils.data.DataLoader(own, batch_size=None, num_workers=2)
    return [number for batch in loader for number in ints(batch["label"])]


def subclass_of(wds: Any) -> Any:
    def verify_keys(samples: Any, required: Any, handler: Any = None) -> Any:
        for sample in samples:
            if all(key in sample for key in required):
                yield {key: sample[key] for key in required}

    class Embeddings(wds.DataPipeline, wds.compat.FluidInterface):
        def __init__(
            self, urls: Any, handler: Any = wds.handlers.reraise_exception, resample: bool = False
        ) -> None:
            super().__init__()
            if resample:
                self.append(wds.ResampledShards(urls))
            else:
                self.append(wds.SimpleShardList(urls))
                self.append(wds.filters.shuffle(1000))
                self.append(wds.split_by_node)
                self.append(wds.split_by_worker)
            self.append(wds.tarfile_to_samples(handler=handler))
            self.append(wds.decode("pilrgb", handler=handler))
            self.append(wds.filters.pipelinefilter(verify_keys)(["jpg", "npy"], handler=handler))
            self.append(wds.to_tuple("jpg", "npy"))

    return Embeddings


@shape
def a_subclass_that_appends(wds: Any, urls: str) -> list[int]:
    data = subclass_of(wds)(urls).map_tuple(to_tensor).batched(4)
    return [number for _, arrays in data for number in ints(arrays[:, 0])]


@drawn
def a_subclass_that_is_resampled(wds: Any, urls: str) -> list[int]:
    data = subclass_of(wds)(urls, resample=True)
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=1, collate_fn=list)
    return [int(array[0]) for batch in islice(iter(loader), 4) for _, array in batch]


@shape
def a_pipeline_of_one_list(wds: Any, urls: str) -> list[int]:
    class Audio(wds.DataPipeline):
        def __init__(self, urls: Any) -> None:
            stages = [
                wds.SimpleShardList(urls),
                wds.split_by_node,
                wds.split_by_worker,
                wds.tarfile_to_samples(),
            ]
            stages.extend(
                [wds.decode(wds.handle_extension("npy", lambda data: len(data)), handler=log_and_continue)]
            )
            stages.extend([wds.rename(audio="npy", text="txt"), wds.to_tuple("audio", "text")])
            stages.append(
                wds.batched(4, collation_fn=partial(wds.filters.default_collation_fn, combine_tensors=False))
            )
            super().__init__(stages)

    return [n for _, texts in wds.WebLoader(Audio(urls), batch_size=None, num_workers=2) for n in said(texts)]


@shape
def steps_of_a_robot(wds: Any, urls: str) -> list[int]:
    def windows(sample: Any) -> Any:
        return [{"n": int(sample["cls"]), "step": step} for step in range(2)]

    data = wds.DataPipeline(
        wds.SimpleShardList(urls),
        wds.shuffle(100),
        wds.split_by_worker,
        wds.tarfile_to_samples(),
        wds.shuffle(50),
        wds.decode(),
        wds.map(windows),
        wds.filters.unlisted(),
        wds.batched(5, collation_fn=lambda some: {"n": [one["n"] for one in some]}),
        wds.select(lambda batch: len(batch["n"]) == 5),
    )
    return [number for batch in data for number in batch["n"]]


@shape
def a_module_of_lightning(wds: Any, urls: str) -> list[int]:
    class Module:
        def make_loader(self, urls: str, mode: str) -> Any:
            dataset_size = COUNT if mode == "train" else 0
            data = wds.WebDataset(
                urls, cache_dir=None, shardshuffle=mode == "train", nodesplitter=wds.split_by_node
            )
            data = data.shuffle(20 if mode == "train" else 0).decode("pil").to_tuple("jpg;png;jpeg", "json")
            data = data.map_tuple(to_tensor, lambda said: said["n"]).batched(4, partial=False)
            loader = wds.WebLoader(data, batch_size=None, shuffle=False, num_workers=2)
            loader.length = dataset_size // 4
            if mode == "train":
                loader = loader.with_length(loader.length)
            return loader

    return [number for _, labels in Module().make_loader(urls, "train") for number in ints(labels)]


@drawn
def an_epoch_of_batches_for_several_workers(wds: Any, urls: str) -> list[int]:
    data = wds.WebDataset(urls, resampled=True, shardshuffle=True).shuffle(100).decode("pil")
    data = data.to_tuple("jpg", "cls").map_tuple(to_tensor).batched(4)
    loader = wds.WebLoader(data, batch_size=None, num_workers=2)
    loader = loader.unbatched().shuffle(20).batched(5).with_epoch(6)
    return [number for _ in range(2) for _, labels in loader for number in ints(labels)]


@shape
def pictures_of_a_galaxy(wds: Any, urls: str) -> list[int]:
    """Lightning with stages that are generators, and labels out of json."""

    def labelled(src: Any) -> Any:
        for sample in src:
            yield sample["jpg"], sample["json"]["n"]

    data = wds.WebDataset(urls, shardshuffle=False).decode("rgb").compose(labelled)
    data = data.map_tuple(torch.from_numpy, lambda n: n).batched(
        7, torch.utils.data.default_collate, partial=True
    )
    return [
        number for _, labels in wds.WebLoader(data, batch_size=None, num_workers=1) for number in ints(labels)
    ]


@shape
def tokens_of_a_language_model(wds: Any, urls: str) -> list[int]:
    stages = [wds.SimpleShardList(urls), Detshuffle.made(wds), wds.split_by_node, wds.split_by_worker]
    stages += [
        wds.tarfile_to_samples(handler=log_and_continue),
        wds.shuffle(bufsize=10, initial=3, rng=random.Random(0)),
    ]
    stages += [
        wds.map(lambda sample: sample["txt"].decode()),
        wds.batched(4, collation_fn=list, partial=True),
    ]
    return [number for batch in wds.DataPipeline(*stages) for number in said(batch)]


@shape
def two_pipelines_mixed(wds: Any, urls: str) -> list[int]:
    def one() -> Any:
        return wds.WebDataset(urls, shardshuffle=False).decode().to_tuple("cls")

    return [number for (number,) in wds.RandomMix([one(), one()], longest=True)]


@shape
def pipelines_in_turns(wds: Any, urls: str) -> list[int]:
    def one() -> Any:
        return wds.DataPipeline(
            wds.SimpleShardList(urls), wds.tarfile_to_samples(), wds.to_tuple("cls"), wds.batched(4)
        )

    class Loaders:
        def __init__(self) -> None:
            self.datasets = [wds.WebLoader(one(), batch_size=None, num_workers=0) for _ in range(2)]

        def __iter__(self) -> Any:
            return iter(wds.RoundRobin(self.datasets, longest=True))

    return [number for (classes,) in Loaders() for number in ints(classes)]


@shape
def a_table_with_a_sampler(wds: Any, urls: str) -> list[int]:
    class Table(torch.utils.data.Dataset):  # type: ignore[misc,name-defined]
        def __len__(self) -> int:
            return COUNT

        def __getitem__(self, number: int) -> int:
            return number

    sampler = torch.utils.data.distributed.DistributedSampler(Table(), num_replicas=1, rank=0, seed=1)
    loader = wds.WebLoader(Table(), batch_size=4, num_workers=1, shuffle=False, sampler=sampler)
    shuffled = wds.WebLoader(Table(), batch_size=4, shuffle=True)
    return [n for batch in loader for n in ints(batch)] + [n for batch in shuffled for n in ints(batch)]


@shape
def a_nested_pipeline(wds: Any, urls: str) -> list[int]:
    inner = wds.DataPipeline(wds.SimpleShardList(urls), wds.split_by_worker, wds.tarfile_to_samples())
    outer = wds.DataPipeline(inner, wds.shuffle(10), wds.decode(), wds.to_tuple("cls"), wds.batched(4))
    return [number for (classes,) in outer for number in ints(classes)]


@shape
def shards_of_a_generator(wds: Any, urls: str) -> list[int]:
    def shards() -> Any:
        for path in sorted(glob(urls))[::-1]:
            yield {"url": path}

    data = wds.DataPipeline(
        shards, wds.tarfile_to_samples(), wds.shuffle(5), wds.map(lambda s: int(s["cls"]))
    )
    return list(data)


@shape
def shards_chosen_by_a_stage(wds: Any, urls: str) -> list[int]:
    def skip_first(src: Any, skip: int) -> Any:
        yield from islice(src, skip, None)

    skipper = wds.filters.pipelinefilter(skip_first)
    data = wds.DataPipeline(
        wds.SimpleShardList(urls), skipper(1), wds.tarfile_to_samples(), wds.decode("pil")
    )
    return [sample["cls"] for sample in data]


@shape
def members_chosen_by_name(wds: Any, urls: str) -> list[int]:
    stage = wds.tarfile_to_samples(
        select_files=lambda name: name.endswith("cls"), rename_files=lambda name: name
    )
    data = wds.DataPipeline(wds.SimpleShardList(urls), stage)
    return [int(sample["cls"]) for sample in data if set(sample) == {"__key__", "__url__", "cls"}]


@shape
def a_cache_that_is_a_folder(wds: Any, urls: str) -> list[int]:
    import tempfile

    with tempfile.TemporaryDirectory() as cache:
        data = wds.WebDataset(urls, shardshuffle=False, cache_dir=cache).decode().to_tuple("cls")
        return [number for _ in range(2) for (number,) in data]


@shape
def samples_for_jax(wds: Any, urls: str) -> list[int]:
    data = (
        wds.WebDataset(urls, shardshuffle=False)
        .decode("rgb")
        .to_tuple("jpg", "cls")
        .batched(8, partial=False)
    )
    return [int(number) for pictures, labels in data if pictures.shape == (8, 6, 8, 3) for number in labels]


@shape
def a_set_that_is_described(wds: Any, urls: str) -> list[int]:
    spec = {
        "datasets": [
            {"name": "a", "shards": sorted(glob(urls))[:2]},
            {"name": "b", "shards": sorted(glob(urls))[2:]},
        ]
    }
    data = wds.DataPipeline(
        wds.shardlists.MultiShardSample(spec), wds.split_by_node, wds.tarfile_to_samples()
    )
    return [int(sample["cls"]) for sample in data]


@shape
def speech_by_buckets(wds: Any, urls: str) -> list[int]:
    """Batches of what lies near, made by a generator of one's own, as WeNet's and lhotse's readers."""

    def bucketed(src: Any, size: int) -> Any:
        held: list[Any] = []
        for sample in src:
            held.append(sample)
            if len(held) == size:
                yield sorted(held, key=lambda one: len(one["npy"]))
                held = []
        if held:
            yield held

    data = wds.DataPipeline(
        wds.SimpleShardList(urls),
        wds.split_by_node,
        wds.split_by_worker,
        wds.tarfile_to_samples(),
        partial(bucketed, size=6),
    )
    loader = torch.utils.data.DataLoader(data, batch_size=None, num_workers=2, collate_fn=lambda batch: batch)
    return [int(one["cls"]) for batch in loader for one in batch]


@shape
def two_epochs_of_kept_samples(wds: Any, urls: str) -> list[int]:
    data = wds.WebDataset(urls, shardshuffle=False).decode().mcached().to_tuple("cls")
    return [number for _ in range(2) for (number,) in data]


@shape
def extracted_by_pattern(wds: Any, urls: str) -> list[int]:
    data = wds.WebDataset(urls, shardshuffle=False).rename_keys(
        ("label", "*.cls"), ("label", "cls"), must_match=False
    )
    return [int(label) for (label,) in data.extract_keys("label")]


@shape
def decoded_by_streams(wds: Any, urls: str) -> list[int]:
    data = wds.WebDataset(urls, shardshuffle=False).xdecode(
        cls=lambda stream: int(stream.read()), must_decode=False
    )
    return [sample["cls"] for sample in data]


@shape
def a_part_of_a_set(wds: Any, urls: str) -> list[int]:
    data = wds.WebDataset(urls, shardshuffle=False).slice(5, 25, 2).decode()
    data = data.compose(wds.associate({"000000007": {"cls": 99}}))
    return [sample["cls"] for sample in data]


@shape
def batches_of_batches_by_a_loader(wds: Any, urls: str) -> list[int]:
    data = wds.WebDataset(urls, shardshuffle=100, detshuffle=True, seed=1).decode().to_tuple("cls")
    loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=2, persistent_workers=True)
    return [number for _ in range(2) for (labels,) in loader for number in ints(labels)]


@shape
def a_stage_of_a_class(wds: Any, urls: str) -> list[int]:
    class Doubled:
        def __call__(self, src: Any) -> Any:
            for sample in src:
                yield sample
                yield sample

    data = wds.WebDataset(urls, shardshuffle=False).compose(
        Doubled(), wds.map(lambda sample: int(sample["cls"]))
    )
    return list(data)


@drawn
def a_cut_that_is_counted_in_samples(wds: Any, urls: str) -> list[int]:
    data = wds.WebDataset(urls, resampled=True, nodesplitter=wds.split_by_node).shuffle(10).decode()
    data = data.to_tuple("cls").with_epoch(12)
    loader = wds.WebLoader(data, batch_size=4, num_workers=2)
    return [number for _ in range(2) for (labels,) in loader for number in ints(labels)]


@drawn
def rounded_batches_of_a_cut(wds: Any, urls: str) -> list[int]:
    workers, size = 2, 3
    per_worker = math.ceil(COUNT / (size * workers))
    data = wds.DataPipeline(
        wds.ResampledShards(urls),
        wds.tarfile_to_samples(),
        wds.decode(),
        wds.to_tuple("cls"),
        wds.batched(size, partial=False),
    ).with_epoch(per_worker)
    loader = wds.WebLoader(data, batch_size=None, shuffle=False, num_workers=workers, persistent_workers=True)
    return [number for _ in range(2) for (labels,) in loader for number in ints(labels)]


@drawn
def a_mix_that_is_appended_to_an_empty_dataset(wds: Any, urls: str) -> list[int]:
    """Hands' and bodies' meshes: a class that passes over WebDataset's own beginning; weights are numpy's."""
    import numpy

    def flattened(src: Any) -> Any:
        for sample in src:
            yield {"n": int(sample["cls"]), "key": sample["__key__"]}

    class Mixed(wds.WebDataset):
        def __init__(self) -> None:
            super(wds.WebDataset, self).__init__()
            sets = [
                wds.WebDataset(urls, nodesplitter=wds.split_by_node, shardshuffle=True, resampled=True)
                .decode("rgb8")
                .compose(flattened)
                .with_epoch(50)
                for _ in range(2)
            ]
            self.append(wds.RandomMix(sets, numpy.array([0.25, 0.75])))

    data = Mixed().with_epoch(30).shuffle(10)
    loader = torch.utils.data.DataLoader(data, 5, drop_last=True, num_workers=2, prefetch_factor=2)
    return [n for batch in loader for n in ints(batch["n"])]


@shape
def stages_that_are_appended_one_by_one(wds: Any, urls: str) -> list[int]:
    class Grand(torch.utils.data.IterableDataset):  # type: ignore[misc,name-defined]
        def __iter__(self) -> Any:
            return iter([{"url": url} for url in sorted(glob(urls))])

    class Data(wds.WebDataset):
        def __init__(self) -> None:
            super(wds.WebDataset, self).__init__()
            self.append(Grand())
            self.append(wds.split_by_node)
            self.append(wds.split_by_worker)
            self.append(wds.cache.StreamingOpen())
            self.append(wds.pipelinefilter(wds.tariterators.tar_file_expander)())
            self.append(wds.pipelinefilter(wds.tariterators.group_by_keys)())
            self.append(wds.compat.check_empty)

    loader = torch.utils.data.DataLoader(Data().decode().to_tuple("cls"), num_workers=2, batch_size=4)
    return [n for (numbers,) in loader for n in ints(numbers)]


@shape
def a_fluid_pipeline_of_a_class(wds: Any, urls: str) -> list[int]:
    """A diffusion prior's embeddings: two bases, stages appended, one of them by a filter of its own."""

    def verified(samples: Any, required: Any) -> Any:
        yield from ({key: one[key] for key in required} for one in samples if set(required) <= set(one))

    class Embeddings(wds.DataPipeline, wds.compat.FluidInterface):
        def __init__(self) -> None:
            super().__init__()
            self.append(wds.SimpleShardList(urls))
            self.append(wds.split_by_node)
            self.append(wds.split_by_worker)
            self.append(wds.tarfile_to_samples(handler=wds.handlers.reraise_exception))
            self.append(wds.decode("pilrgb", handler=wds.warn_and_continue))
            self.append(wds.filters.pipelinefilter(verified)(["npy", "cls"]))
            self.append(wds.to_tuple("npy", "cls"))

    loader = torch.utils.data.DataLoader(Embeddings(), batch_size=6, num_workers=2)
    return [n for vectors, numbers in loader for n in ints(numbers) if vectors.shape[1:] == (3,)]


@drawn
def resampled_sets_mixed_and_mapped(wds: Any, urls: str) -> list[int]:
    sets = [
        wds.DataPipeline(
            wds.ResampledShards(sorted(glob(urls)), deterministic=False),
            wds.split_by_node,
            wds.split_by_worker,
            wds.tarfile_to_samples(handler=wds.warn_and_continue),
            wds.shuffle(7),
            wds.decode("rgb8", handler=wds.warn_and_continue),
        )
        for _ in range(2)
    ]
    mapped = wds.DataPipeline(
        wds.RandomMix(sets, [0.5, 0.5]), wds.map(lambda s: s["cls"]), wds.select(lambda n: n is not None)
    )
    loader = wds.WebLoader(mapped.with_epoch(15), batch_size=5, num_workers=2, drop_last=True)
    return [n for batch in loader for n in ints(batch)]


@drawn
def a_mix_cut_and_shuffled(wds: Any, urls: str) -> list[int]:
    def node_no_split(src: Any) -> Any:
        return src

    sets = [
        wds.WebDataset(urls, shardshuffle=1000, detshuffle=True, seed=0, nodesplitter=node_no_split)
        .decode("pil", handler=wds.ignore_and_continue)
        .to_tuple(["jpg", "jpeg"], "cls", handler=wds.ignore_and_continue)
        for _ in range(2)
    ]
    mixed = wds.DataPipeline(wds.RandomMix(sets), wds.shuffle(10, initial=10)).with_epoch(20)
    return [number for _, number in mixed]


@shape
def windows_of_a_sequence(wds: Any, urls: str) -> list[int]:
    def windows(src: Any, steps: int) -> Any:
        held: list[Any] = []
        for one, number, key in src:
            held.append((number, key))
            if len(held) == steps:
                yield one, torch.tensor([number for number, _ in held])
                held = []

    data = (
        wds.WebDataset(urls, shardshuffle=True)
        .decode("rgb8")
        .to_tuple("jpg", "cls", "__key__")
        .map_tuple(to_tensor, None, None)
        .compose(partial(windows, steps=5))
        .shuffle(4)
        .batched(2)
    )
    loader = wds.WebLoader(data, batch_size=None, num_workers=2)
    loader = loader.unbatched().shuffle(5).batched(3)
    frames = [ints(window) for _, numbers in loader for window in numbers]
    assert all(window == list(range(window[0], window[0] + 5)) for window in frames), "neighbours"
    return [n for window in frames for n in window]


@shape
def a_part_for_validation(wds: Any, urls: str) -> list[int]:
    data = wds.WebDataset(urls, shardshuffle=False).decode().to_tuple("cls").batched(5)
    loader = wds.WebLoader(data.slice(4), batch_size=None).with_epoch(6)
    return [n for (numbers,) in loader for n in ints(numbers)]


@shape
def lists_of_scalars(wds: Any, urls: str) -> list[int]:
    collate = partial(wds.filters.default_collation_fn, combine_tensors=False, combine_scalars=False)
    data = wds.DataPipeline(
        wds.SimpleShardList(urls),
        wds.split_by_worker,
        wds.tarfile_to_samples(),
        wds.decode(),
        wds.to_tuple("npy", "cls"),
        wds.batched(7, collation_fn=collate, partial=True),
    )
    return [n for vectors, numbers in data if isinstance(vectors, list) for n in numbers]


@shape
def what_one_sample_becomes_is_unlisted(wds: Any, urls: str) -> list[int]:
    data = wds.DataPipeline(
        wds.SimpleShardList(urls),
        wds.tarfile_to_samples(),
        wds.map(lambda sample: [int(sample["cls"])] * 2),
        wds.filters.unlisted(),
        wds.batched(4, collation_fn=list),
        wds.select(lambda batch: len(batch) == 4),
    )
    return [n for batch in data for n in batch]


@shape
def two_readers_side_by_side(wds: Any, urls: str) -> list[int]:
    """Further columns from shards of the same keys, read beside the first."""

    def add_column(src: Any) -> Any:
        last, column = None, iter(())
        for sample in src:
            if sample["__url__"] != last:
                last = sample["__url__"]
                column = iter(
                    wds.WebDataset(last, shardshuffle=False, nodesplitter=None, workersplitter=None)
                )
            extra = next(column)
            assert extra["__key__"] == sample["__key__"]
            yield {**sample, "extra": extra["txt"]}

    data = wds.WebDataset(urls, shardshuffle=100, workersplitter=wds.split_by_worker).compose(add_column)
    loader = torch.utils.data.DataLoader(data.to_tuple("extra"), batch_size=None, num_workers=2)
    return said(text.decode() for (text,) in loader)


@shape
def a_length_that_is_set_aside(wds: Any, urls: str) -> list[int]:
    data = wds.WebDataset(urls, shardshuffle=True).shuffle(10).decode("rgb").to_tuple("cls")
    loader = wds.WebLoader(data.batched(4, partial=False), batch_size=None, shuffle=False, num_workers=2)
    loader.length = 10
    loader.unbatched().shuffle(1000).batched(4)
    return [n for (numbers,) in loader for n in ints(numbers)]


@shape
def validation_in_parts_of_a_process(wds: Any, urls: str) -> list[int]:
    stages = [
        wds.SimpleShardList(urls),
        wds.slice(1, None, 2),
        wds.split_by_worker,
        wds.tarfile_to_samples(handler=wds.ignore_and_continue),
        wds.decode("pil"),
        wds.to_tuple("jpg", "cls"),
        wds.map_tuple(to_tensor, torch.tensor),
    ]
    loader = torch.utils.data.DataLoader(
        wds.DataPipeline(*stages), batch_size=4, num_workers=2, drop_last=False
    )
    return [n for _, numbers in loader for n in ints(numbers)]


@pytest.mark.parametrize("name", SHAPES)
def test_it_gives_what_webdataset_gives(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLOW_OBSOLETE", "1")
    pattern = (
        f"{folder}/s-*.tar" if "glob(urls)" in _source(SHAPES[name]) else f"{folder}/s-{{000000..000003}}.tar"
    )
    wanted, found = SHAPES[name](theirs, pattern), SHAPES[name](ours, pattern)
    assert len(found) == len(wanted) > 0
    if name in DRAWN:
        assert set(found) <= set(range(COUNT))
        assert len(set(found)) > 1
    else:
        assert Counter(found) == Counter(wanted)


def _source(function: Run) -> str:
    import inspect

    return inspect.getsource(function)
