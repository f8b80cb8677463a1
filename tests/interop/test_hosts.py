"""accelerate and transformers share samples among ranks: each class that ``wdscli.loader.place.ranks`` knows.

Each test runs one class of the installed library with a dataset that would also share its samples, as one of two ranks.
"""

from __future__ import annotations

import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from torch_processes import Program

import wdscli.loader as wds
from wdscli.loader.place import ranks
from wdscli.shards import ShardWriter

COUNT = 40


class Number:
    def __call__(self, sample: dict[str, Any]) -> int:
        return int(sample["cls"])


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("hosts")
    with ShardWriter(f"{folder}/in-%06d.tar", max_count=7) as writer:
        for number in range(COUNT):
            writer.write(f"n{number:02d}", {"cls": b"%d" % number})
    return f"{folder}/in-manifest.json"


@pytest.fixture(autouse=True)
def one_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has a rank, and has not warned."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(ranks, "_warned", set())


@pytest.mark.parametrize("library", ["accelerate", "transformers"])
def test_the_versions_that_were_tried(library: str) -> None:
    pytest.importorskip(library)
    assert f"{library} {'.'.join(version(library).split('.')[:2])}" in (ranks.__doc__ or "")


@pytest.mark.parametrize("module", ["accelerate.data_loader", "transformers.trainer_pt_utils"])
def test_shards_of_an_iterable_dataset(module: str, url: str) -> None:
    shard = getattr(pytest.importorskip(module), "IterableDatasetShard")  # noqa: B009

    def of_rank(rank: int) -> list[int]:
        data = wds.WebDataset(url, shuffle="window").map(Number())
        return list(shard(data, batch_size=5, num_processes=2, process_index=rank))

    with pytest.warns(
        UserWarning, match="(?s)IterableDatasetShard divides the samples.*rank=0, world_size=1"
    ):
        found = of_rank(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it warns once
        found += of_rank(1)
    assert sorted(found) == list(range(COUNT))


def test_shards_of_a_batch_sampler(url: str) -> None:
    loader = pytest.importorskip("accelerate.data_loader")
    from torch.utils.data import BatchSampler

    table = wds.IndexedDataset(url).map(Number())

    def of_rank(rank: int) -> list[int]:
        batches = BatchSampler(wds.ShardSampler(table), 5, drop_last=False)
        shard = loader.BatchSamplerShard(batches, num_processes=2, process_index=rank)
        return [number for numbers in shard for number in table.__getitems__(numbers)]

    with pytest.warns(UserWarning, match="BatchSamplerShard divides the samples"):
        found = of_rank(0)
    assert sorted(found + of_rank(1)) == list(range(COUNT))


ACCELERATE = """
import os, sys, torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from accelerate import Accelerator, DataLoaderConfiguration
import wdscli.loader as wds

rank, url, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", ACCELERATE_USE_CPU="1",
                  MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[4], ACCELERATE_DISABLE_RICH="1")

def number(sample):
    return torch.tensor(int(sample["cls"]))

for dispatch, workers in ((None, 0), (None, 1), (False, 0), (False, 2)):
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch))
    made = DataLoader(wds.WebDataset(url, shuffle="window").map(number), batch_size=5, num_workers=workers)
    loader = accelerator.prepare(made)
    for epoch in range(2):
        print("seen", dispatch, workers, epoch, [n for batch in loader for n in batch.tolist()], flush=True)
table = wds.IndexedDataset(url).map(number)
loader = accelerator.prepare(DataLoader(table, batch_size=5, sampler=wds.ShardSampler(table)))
print("seen", "sampler", 0, 0, [n for batch in loader for n in batch.tolist()], flush=True)
loader = accelerator.prepare(wds.WebLoader(wds.WebDataset(url).map(number), batch_size=5))
print("seen", "own", 0, 0, [n for batch in loader for n in batch.tolist()], flush=True)
dist.destroy_process_group()
"""


def test_accelerate_reaches_every_sample_once(url: str, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    from socket import socket

    with socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    (tmp_path / "train.py").write_text(ACCELERATE)
    programs = [Program(tmp_path / "train.py", rank, url, tmp_path, port) for rank in range(2)]
    found_by: dict[str, list[int]] = {}
    orders: dict[str, list[str]] = {}
    for program in programs:
        printed, errors = program.communicate()
        assert program.wait() == 0, errors
        for line in printed.splitlines():
            if line.startswith("seen"):
                how, _, numbers = line.partition(" [")
                found_by.setdefault(how, []).extend(map(int, numbers.rstrip("]").split(", ")))
                orders.setdefault(how, []).append(numbers)
    assert len(found_by) == 10
    assert {how: sorted(numbers) for how, numbers in found_by.items()} == {
        how: list(range(COUNT)) for how in found_by
    }
    assert orders["seen None 1 0"] != orders["seen None 1 1"], "the next epoch is another one"
