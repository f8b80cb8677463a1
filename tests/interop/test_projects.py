"""Public training projects' own data modules, unmodified, on wdscli's loader: open_clip's and timm's. Each runs in a
process of its own, for there ``import webdataset`` means wdscli's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import png, write_set

ROOT = Path(__file__).resolve().parents[2]
COUNT, SHARDS, BATCH, WORKERS = 48, 4, 4, 2
BEFORE = """
import importlib.util, json, sys, types, warnings

warnings.filterwarnings("ignore")
url, whose, resampled, count = sys.argv[1], sys.argv[2], sys.argv[3] == "resampled", int(sys.argv[4])
if whose == "ours":
    import wdscli.loader.as_webdataset


class Named(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return cls.__name__ + "." + name


class Name(metaclass=Named):
    def __init__(self, *args, **kw): ...


class StandIn(types.ModuleType):
    # torchvision, for those who import its names and call none of them here: it wants a build of torch with its own.
    __path__ = []
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Named(name, (Name,), {})


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "torchvision":
            return importlib.util.spec_from_loader(name, Finder, is_package=True)
    @staticmethod
    def create_module(spec): return StandIn(spec.name)
    @staticmethod
    def exec_module(module): ...


sys.meta_path.insert(0, Finder)
import numpy, torch

def pixels(picture): return torch.from_numpy(numpy.asarray(picture).copy())
"""
OPEN_CLIP = """
from open_clip_train.data import get_data

args = types.SimpleNamespace(
    train_data=url, val_data=url, dataset_type="webdataset", train_num_samples=count, val_num_samples=count,
    train_data_upsampling_factors=None, dataset_resampled=resampled, seed=0, workers=2, world_size=1, rank=0,
    batch_size=4, distributed=False, imagenet_val=None, imagenet_v2=None,
)
number = lambda text: torch.tensor([[int(text.split()[-1])]])
data = get_data(args, (pixels, pixels), epoch=0, tokenizer=number)
seen = []
for part in ("train", "train", "val"):
    data[part].set_epoch(len(seen))
    batches = [(pictures, texts) for pictures, texts in data[part].dataloader]
    assert part == "val" or len(batches) == data[part].dataloader.num_batches
    assert all(pictures.shape[1:] == (1, 1, 3) for pictures, _ in batches)
    seen.append([int(one) for _, texts in batches for one in texts[:, 0]])
print(json.dumps(seen))
"""
TIMM = """
from timm.data import create_dataset

seen = []
for training in (True, False):
    data = create_dataset(
        "wds/set", root=url, split=("train" if training else "validation") + "-{000000..000003}.tar",
        is_training=training, batch_size=4, num_samples=count, input_img_mode="RGB", target_key="n",
    )
    data.transform = pixels
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, drop_last=training)
    if hasattr(data, "set_loader_cfg"):
        data.set_loader_cfg(num_workers=2)
    for epoch in range(2 if training else 1):
        data.set_epoch(epoch)
        seen.append([int(number) for pictures, numbers in loader for number in numbers])
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of one pixel with their numbers as texts and in JSON, under the names that timm wants too."""
    folder = tmp_path_factory.mktemp("pictures")
    content = {
        f"{number:06d}": {
            "png": png(number),
            "txt": b"picture %d" % number,
            "json": json.dumps({"n": number}).encode(),
        }
        for number in range(COUNT)
    }
    for shard in write_set(folder, content, max_count=COUNT // SHARDS):
        (folder / Path(shard).name.replace("train", "validation")).symlink_to(shard)
    return folder


def seen(folder: Path, program: str, *arguments: str) -> list[list[int]]:
    """The numbers that a program prints: two epochs of training, and a validation."""
    ran = subprocess.run(
        [sys.executable, "-c", BEFORE + program, *arguments, str(COUNT)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stderr
    found: list[list[int]] = json.loads(ran.stdout.splitlines()[-1])
    return found


def want(name: str) -> None:
    """Skip where a package is not installed; without torchvision it cannot be imported here."""
    if find_spec(name) is None:
        pytest.skip(f"could not import '{name}'")


def check(found: list[list[int]], drawn: bool = False) -> None:
    """Two epochs that differ, and a validation."""
    assert [len(one) for one in found] == [COUNT] * 3
    assert found[0] != found[1]
    assert Counter(found[2]) == Counter(range(COUNT))
    for one in found[:2]:
        assert set(one) <= set(range(COUNT))
        assert drawn or Counter(one) == Counter(range(COUNT))


@pytest.mark.parametrize("how", ["once", "resampled"])
def test_open_clip(folder: Path, how: str) -> None:
    want("open_clip_train")
    url = f"{folder}/train-{{000000..000003}}.tar"
    # Nothing to compare with: open_clip 3.3 stumbles over a mark that webdataset 1.0.2 puts behind each shard.
    check(seen(folder, OPEN_CLIP, url, "ours", how), drawn=how == "resampled")


def test_timm(folder: Path) -> None:
    want("timm")
    for whose in ("ours", "webdataset's"):
        check(seen(folder, TIMM, str(folder), whose, "once"))
