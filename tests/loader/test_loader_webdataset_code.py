"""Code that was written for webdataset runs after a change of the import: what its README, its documentation, PyTorch's
blog and SageMaker's show, on pictures."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy
import pytest
from torch_processes import Program

import wdscli.loader as wds
from wdscli.errors import UsageError
from wdscli.shards import ShardWriter

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")

COUNT = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four shards of ten pictures, png and jpg, each with a json."""
    import io

    from PIL import Image

    folder = tmp_path_factory.mktemp("pictures")
    with ShardWriter(str(folder / "train-%06d.tar"), max_count=10) as writer:
        for number in range(COUNT):
            stream = io.BytesIO()
            form = "jpeg" if number % 2 else "png"
            Image.new("RGB", (8, 6), (number * 5, 10, 20)).save(stream, form)
            said = json.dumps({"n": number, "annotations": [{"category_id": number % 3}]}).encode()
            writer.write(f"n{number:03d}", {form[:3].replace("jpe", "jpg"): stream.getvalue(), "json": said})
    shutil.rmtree(folder / ".wds")
    (folder / "train-manifest.json").unlink()
    return folder


@pytest.fixture
def url(folder: Path) -> str:
    return f"{folder}/train-{{000000..000003}}.tar"


def preproc(image: Any) -> Any:
    return torch.from_numpy(numpy.asarray(image).transpose(2, 0, 1).copy()).float() / 255


def numbers(data: Any) -> list[int]:
    return sorted(int(n) for n in data)


@pytest.mark.exhaustive
@pytest.mark.parametrize("workers", [0, 2])
def test_the_code_of_pytorchs_blog(url: str, workers: int) -> None:
    dataset = (
        wds.Dataset(url)
        .shuffle(1000)
        .decode("pil")
        .rename(image="jpg;png", data="json")
        .map_dict(image=preproc)
        .to_tuple("image", "data")
    )
    loader = torch.utils.data.DataLoader(dataset, batch_size=8, num_workers=workers)
    seen: list[int] = []
    for inputs, targets in loader:
        assert inputs.shape[1:] == (3, 6, 8)
        assert inputs.dtype == torch.float32
        seen += targets["n"].tolist()
    assert sorted(seen) == list(range(COUNT))
    assert seen != sorted(seen)


def test_the_code_of_webdatasets_readme(url: str) -> None:
    shuffle_buffer = 10
    pil_dataset = wds.WebDataset(url).shuffle(shuffle_buffer).decode("pil").to_tuple("png;jpg", "json")
    assert isinstance(pil_dataset, torch.utils.data.IterableDataset)
    for image, _json in pil_dataset:
        assert image.size == (8, 6)
        break

    def preprocess(sample: Any) -> Any:
        image, json = sample
        try:
            label = json["annotations"][0]["category_id"]
        except Exception:
            label = 0
        return 1 - preproc(image), label

    dataset = pil_dataset.map(preprocess)
    for image, _label in dataset:
        assert image.shape == (3, 6, 8)
        break

    dataset = wds.DataPipeline(
        wds.SimpleShardList(url),
        # at this point we have an iterator over all the shards
        # this shuffles the shards
        wds.shuffle(100),
        # add wds.split_by_node here if you are using multiple nodes
        wds.split_by_worker,
        # at this point, we have an iterator over the shards assigned to each worker
        wds.tarfile_to_samples(),
        # this shuffles the samples in memory
        wds.shuffle(shuffle_buffer),
        # this decodes the images and json
        wds.decode("pil"),
        wds.to_tuple("png;jpg", "json"),
        wds.map(preprocess),
        wds.batched(16),
    )
    batch = next(iter(dataset))
    assert (batch[0].shape, batch[1].shape) == (torch.Size([16, 3, 6, 8]), (16,))
    assert [len(images) for images, _ in dataset] == [16, 16, 8]


def test_the_code_of_webdatasets_getting_started(url: str) -> None:
    dataset = wds.WebDataset(url)
    for sample in islice(dataset, 0, 3):
        assert list(sample) == ["__key__", "__url__", sample["__key__"] > "" and list(sample)[2], "json"]
    dataset = wds.WebDataset(url).shuffle(100).decode("rgb").to_tuple("jpg;png", "json")
    for image, data in islice(dataset, 0, 3):
        assert (image.shape, image.dtype, type(data)) == ((6, 8, 3), numpy.float32, dict)
    dataset = (
        wds.WebDataset(url, shardshuffle=True).shuffle(100).decode("torchrgb").to_tuple("jpg;png", "json")
    )
    dataset = dataset.map_tuple(lambda image: image * 2, None)
    loader = torch.utils.data.DataLoader(dataset.batched(20), num_workers=2, batch_size=None)
    images, targets = next(iter(loader))
    assert images.shape == (20, 3, 6, 8)
    assert len(targets) == 20


def test_the_code_of_webdatasets_page_on_decoding(url: str) -> None:
    def my_decoder(value: bytes) -> int:
        return len(value)

    dataset = wds.WebDataset(url).decode(wds.handle_extension(".png", my_decoder), "l8").to_tuple("png;jpg")
    kinds = Counter(type(image).__name__ for (image,) in dataset)
    assert kinds == {"int": COUNT // 2, "ndarray": COUNT // 2}
    only = next(iter(wds.WebDataset(url).decode("pil", only=["json"])))
    assert (type(only["json"]), type(only["png"])) == (dict, bytes)


def test_broken_pictures_are_left_out_and_counted(url: str, folder: Path, tmp_path: Path) -> None:
    with ShardWriter(str(tmp_path / "broken.tar"), max_count=10) as writer:
        writer.write("a", {"png": b"no picture", "json": b'{"n": 100}'})
    dataset = wds.WebDataset([url, str(tmp_path / "broken.tar")]).decode(
        "pil", handler=wds.ignore_and_continue
    )
    assert len(list(dataset)) == COUNT
    [(reason, number)] = dataset.stats()["dropped"][str(tmp_path / "broken.tar")].items()
    assert (reason, number) == ("decode: DataError", 1)


def test_the_code_of_open_clip(url: str) -> None:
    """A resampled pipeline of stages, whose epoch is counted in batches."""

    def has_picture(sample: Any) -> bool:
        return "png" in sample or "jpg" in sample

    pipeline = [wds.ResampledShards(url, deterministic=True)]
    pipeline.extend([wds.tarfile_to_samples(handler=wds.warn_and_continue), wds.shuffle(100, initial=10)])
    pipeline.extend(
        [
            wds.select(has_picture),
            wds.decode("pilrgb", handler=wds.warn_and_continue),
            wds.rename(image="jpg;png;jpeg;webp", text="json"),
            wds.map_dict(image=preproc, text=lambda text: text["n"]),
            wds.to_tuple("image", "text"),
            wds.batched(5, partial=False),
        ]
    )
    dataset = wds.DataPipeline(*pipeline).with_epoch(12)
    epochs = [[int(n) for _, texts in dataset for n in texts] for _ in range(2)]
    assert [len(epoch) for epoch in epochs] == [60, 60]
    assert set(Counter(epochs[0] + epochs[1]).values()) == {3}, "120 samples are three times the set"


def test_the_code_for_several_nodes_in_webdatasets_faq(url: str) -> None:
    seen = []
    for rank in range(3):
        dataset = wds.WebDataset(
            url, nodesplitter=wds.split_by_node, workersplitter=wds.split_by_worker, rank=rank, world_size=3
        )
        dataset = dataset.decode().map(lambda sample: sample["json"]["n"])
        seen.append(list(dataset))
    assert [len(part) for part in seen] == [14, 14, 14], "every rank has as many"
    assert sorted(set(chain(*seen))) == list(range(COUNT))


@pytest.mark.exhaustive
def test_a_list_of_files_as_sagemakers_fast_file_mode_shows_them(folder: Path) -> None:
    paths = [str(folder / name) for name in sorted(os.listdir(folder)) if name.endswith(".tar")]
    dataset = wds.WebDataset(paths, shardshuffle=True).shuffle(10).decode("pil").to_tuple("png;jpg", "json")
    loader = torch.utils.data.DataLoader(dataset, batch_size=4, num_workers=3, collate_fn=list)
    seen = [data["n"] for batch in loader for _, data in batch]
    assert sorted(seen) == list(range(COUNT)) != seen


def test_a_picture_set_through_a_pipe(folder: Path) -> None:
    pytest.importorskip("wdscli.loader.streams")
    dataset = wds.WebDataset(f"pipe:cat {folder}/train-{{000000..000003}}.tar").shuffle(10)
    dataset = dataset.decode("pil").to_tuple("jpg;png", "json")
    assert numbers(data["n"] for _, data in dataset) == list(range(COUNT))


@pytest.mark.exhaustive
def test_workers_that_are_not_forked_from_here_take_functions_that_pickle(url: str) -> None:
    dataset = (
        wds.WebDataset(url).decode("torchrgb8").rename(image="jpg;png").map_dict(image=torch.Tensor.float)
    )
    loader = torch.utils.data.DataLoader(
        dataset.to_tuple("image").batched(10),
        batch_size=None,
        num_workers=1,
        multiprocessing_context="forkserver",
    )
    assert [image.shape[0] for (image,) in loader] == [10, 10, 10, 10]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"cache_size": 1000}, "cache_dir"),
        ({"nodesplitter": 7}, "nodesplitter"),
        ({"workersplitter": "some"}, "workersplitter"),
        ({"mode": "watch"}, "mode"),
        ({"shuffle": "none", "shardshuffle": 100}, "shardshuffle"),
    ],
)
def test_what_would_be_passed_over_is_refused(url: str, more: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        wds.WebDataset(url, **more)
    assert caught.value.hint


def test_arguments_that_change_nothing_are_taken(url: str) -> None:
    theirs = pytest.importorskip("webdataset")
    data = wds.WebDataset(
        url,
        handler=theirs.reraise_exception,
        mode=None,
        resampled=False,
        repeat=False,
        shardshuffle=None,
        cache_size=-1,
        cache_dir=None,
        url_to_name=str,
        detshuffle=True,
        nodesplitter=theirs.split_by_node,
        workersplitter=None,
        select_files=None,
        rename_files=None,
        empty_check=True,
        verbose=True,
        seed=None,
    )
    with data as opened:
        assert len(list(opened)) == COUNT


def test_every_argument_of_webdatasets_constructor_is_one_of_ours() -> None:
    from inspect import signature

    theirs = pytest.importorskip("webdataset")
    wanted = set(signature(theirs.WebDataset.__init__).parameters) - {"self"}
    assert wanted - set(signature(wds.WebDataset.__init__).parameters) == set()


def test_urls_as_webdataset_takes_them(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def count(urls: Any) -> int:
        return len(list(wds.WebDataset(urls)))

    shard = folder / "train-000000.tar"
    assert count(shard) == count([shard]) == count(iter([str(shard)])) == 10
    assert count(f"{shard}::{folder}/train-000001.tar") == 20
    assert count(wds.SimpleShardList([str(shard)])) == count([{"url": str(shard)}]) == 10
    drawn = wds.WebDataset(wds.ResampledShards(str(shard))).with_epoch(25)
    assert len(list(drawn)) == 25
    assert count(f"file:{shard}") == count(f"file://{shard}") == 10
    monkeypatch.setenv("WDS_DATA", str(folder))
    assert count("${DATA}/train-{000000..000002}.tar") == 30
    for wrong in ("${NOWHERE}/x.tar", {"datasets": []}, 7, [7], "spec.yaml"):
        with pytest.raises(UsageError):
            wds.WebDataset(wrong)  # type: ignore[arg-type]


def test_the_old_dataset_takes_its_old_arguments(url: str) -> None:
    data = wds.Dataset(url, length=100, epochs=2, suffixes=["json"], shuffle=True).pipe(
        lambda items: (sample for sample in items)
    )
    assert len(data) == 100
    samples = list(data)
    assert len(samples) == 2 * COUNT
    assert {name for sample in samples for name in sample} == {"__key__", "__url__", "json"}
    with pytest.raises(UsageError):
        wds.Dataset(url, opener=open)


def test_stages_as_functions(url: str) -> None:
    data = wds.WebDataset(url).decode(only="json")
    assert len(list(data.compose(wds.split_by_node, wds.slice(5)))) == 5

    @wds.pipelinefilter
    def every(items: Any, step: int) -> Any:
        return islice(items, 0, None, step)

    assert len(list(data.compose(every(8)))) == 5

    class Own(wds.PipelineStage):
        def run(self, src: Any) -> Any:
            return islice(src, 3)

    assert len(list(data.compose(Own()))) == 3
    assert list(wds.map(lambda x: x + 1)([1, 2])) == [2, 3]
    assert list(wds.with_epoch(range(3), 5)) == [0, 1, 2, 0, 1]
    assert len(wds.with_length(wds.MockDataset({"a": 1}, 4), 9)) == 9
    assert list(wds.repeatedly(range(2), nepochs=2)) == [0, 1, 0, 1]
    assert list(wds.DataPipeline(range(4), wds.select(lambda x: x > 1))) == [2, 3]
    assert wds.getfirst({"b": 2, "c": 3}, "a;b") == 2
    assert wds.transform_with([1, 2, 3], [None, str]) == [1, "2", 3]


def test_shuffles_of_shards_in_a_pipeline(url: str) -> None:
    def order(*stages: Any) -> dict[str, Any]:
        found: dict[str, Any] = wds.DataPipeline(*stages, wds.tarfile_to_samples()).state_dict()["source"]
        return found

    plain, mixed = wds.WebDataset(url), wds.WebDataset(url, shardshuffle=True)
    assert order(wds.SimpleShardList(url)) == plain.state_dict()["source"]
    assert order(wds.SimpleShardList(url), wds.shuffle(10)) == mixed.state_dict()["source"]
    assert order(wds.SimpleShardList(url), wds.detshuffle(10)) == mixed.state_dict()["source"]
    seeded = wds.WebDataset(url, shardshuffle=True, seed=4)
    assert order(wds.SimpleShardList(url, seed=4)) == seeded.state_dict()["source"]


@pytest.mark.exhaustive
def test_a_program_written_for_webdataset_runs_after_its_import_is_changed(
    folder: Path, tmp_path: Path
) -> None:
    program = """
        import {module} as wds
        from torch.utils.data import DataLoader

        def label(sample):
            return sample["__key__"], sample["json"]["n"]

        url = "{folder}/train-{000000..000003}.tar"
        data = wds.WebDataset(url, shardshuffle=False).decode().map(label).batched(6)
        for keys, numbers in DataLoader(data, batch_size=None, num_workers=0):
            print(keys, numbers.tolist())
    """
    program = re.sub("^ {8}", "", program, flags=re.MULTILINE)
    said = []
    for module in ("webdataset", "wdscli.loader"):
        if module == "webdataset":
            pytest.importorskip(module)
        text = program.replace("{module}", module).replace("{folder}", str(folder))
        (tmp_path / f"{module}_program.py").write_text(text)
        ran = Program(tmp_path / f"{module}_program.py", cwd=tmp_path)
        printed, errors = ran.communicate()
        assert ran.wait() == 0, errors
        said.append(printed)
    assert said[0] == said[1]
    assert said[0].count("\n") == 7


def test_a_list_of_files_that_are_streams(folder: Path, tmp_path: Path) -> None:
    """Nothing of them can be read twice."""
    from threading import Thread

    pytest.importorskip("wdscli.loader.streams")
    paths = []
    for number in range(4):
        path = tmp_path / f"{number}.tar"
        os.mkfifo(path)
        data = (folder / f"train-{number:06d}.tar").read_bytes()
        Thread(target=path.write_bytes, args=(data,), daemon=True).start()
        paths.append(str(path))
    dataset = wds.WebDataset(paths, shardshuffle=True).shuffle(10).decode("pil").to_tuple("png;jpg", "json")
    assert numbers(data["n"] for _, data in dataset) == list(range(COUNT))
