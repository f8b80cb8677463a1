"""``seek`` and ``skip`` move a dataset or a WebLoader to a batch; the batches after it are those of a whole epoch."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from loader_cases import Cls, Numbers, make_set

import wdscli.loader as wds
from wdscli.errors import UsageError
from wdscli.loader import mix
from wdscli.loader.dataset import PositionDataset

COUNTS = (13, 0, 1, 30, 7, 19)


def numbers(**how: Any) -> Any:
    return PositionDataset(Numbers(COUNTS, seed=3), **how)


def mixed(per: Any) -> Any:
    sets = [PositionDataset(Numbers((20 + at, 9), seed=at)) for at in range(2)]
    parts = [one.batched(4, collation_fn=None) for one in sets] if per == "batch" else sets
    made = mix({f"s{at}": (one, at + 1) for at, one in enumerate(parts)}, per=per, stop="all", seed=1)
    return made if per == "batch" else made.batched(4, collation_fn=None)


MAKES = {
    "equal": lambda: numbers().batched(4, collation_fn=None),
    "samples": numbers,
    "sliced": lambda: numbers().batched(4, collation_fn=None).slice(2, 15, 2),
    "bucket": lambda: numbers().batched(4, bucket="40", buckets=[9, 30], window=32, collation_fn=None),
    "budget": lambda: numbers().batched(budget=90, length="40", window=32, collation_fn=None),
    "packs": lambda: numbers().packed(90, "40", window=32, collation_fn=list),
    "parts of packs": lambda: numbers().packed(90, "40", window=32, collation_fn=list).slice(3, None),
    "epochs of packs": lambda: numbers().packed(90, "40", collation_fn=list).with_epoch(batches=7),
    "epochs of batches": lambda: numbers().batched(4, collation_fn=None).with_epoch(batches=7),
    "dropped": lambda: numbers().select(lambda number: number % 3).batched(4, collation_fn=None),
    "mix of samples": lambda: mixed("sample"),
    "mix of batches": lambda: mixed("batch"),
}


@pytest.mark.parametrize("name", MAKES)
def test_seek_and_skip_continue_with_the_batches_of_the_epoch(name: str) -> None:
    epochs = MAKES[name]()
    whole = [list(epochs) for _ in range(4)]
    assert whole[0] != whole[1]
    for epoch in (2, 0):
        for batch in (0, 1, len(whole[epoch]) // 2, len(whole[epoch]) - 1):
            data = MAKES[name]()
            data.seek(epoch, batch)
            state = data.state_dict()
            assert list(data) == whole[epoch][batch:]
            assert list(data) == whole[epoch + 1]
            again = MAKES[name]()
            again.load_state_dict(state)
            assert list(again) == whole[epoch][batch:]
            data.seek(epoch, batch)
            data.set_epoch(epoch)  # as a training loop calls it at the beginning of each epoch
            assert list(data) == whole[epoch][batch:]
    line = [batch for batches in whole for batch in batches]
    for taken in (0, 3, len(whole[0])):
        for skipped in (0, 1, len(whole[0]) - taken, len(whole[0]), len(whole[0]) + len(whole[1]) + 2):
            data = MAKES[name]()
            items = iter(data)
            assert list(islice(items, taken)) == line[:taken]
            data.skip(skipped)
            first = taken + skipped
            rest = line[first:]
            if skipped == 0 and taken == len(whole[0]):
                assert data.epoch == 1
            for epoch in range(data.epoch, 4):
                assert data.epoch == epoch
                batches = list(data)
                assert batches == rest[: len(batches)]
                rest = rest[len(batches) :]
            assert not rest


def test_seek_names_a_batch_that_does_not_exist() -> None:
    data = numbers().batched(4, collation_fn=None)
    for batch in (len(data), 1000):
        with pytest.raises(UsageError, match=f"epoch 1 has no batch {batch} on this rank"):
            data.seek(1, batch)
    for call in (lambda: data.seek(-1, 0), lambda: data.seek(0, -1), lambda: data.skip(-1)):
        with pytest.raises(UsageError):
            call()
    with pytest.raises(UsageError, match="has no batches"):
        PositionDataset(Numbers((2,))).batched(4, partial=False).skip(3)


def test_the_rest_of_a_batch_counts_as_a_batch() -> None:
    data = numbers().batched(5, collation_fn=list).unlisted()
    line = list(data)
    data.set_epoch(0)
    assert list(islice(iter(data), 7)) == line[:7]
    data.skip(2)  # three samples of the second batch, and the third batch
    assert list(data) == line[15:]


def test_what_has_no_numbered_batches_is_refused() -> None:
    for data in (numbers().compose(iter), wds.WebDataset("pipe:true")):
        for call in (lambda data=data: data.seek(0, 1), lambda data=data: data.skip(1)):
            with pytest.raises(UsageError, match="unknown before they are read"):
                call()
    by_worker = numbers().batched(4).with_epoch(3)
    for call in (lambda: by_worker.seek(0, 1), lambda: by_worker.skip(1)):
        with pytest.raises(UsageError, match="each worker counts its own epoch"):
            call()


def packs(folder: str) -> Any:
    data = wds.WebDataset(folder, shuffle="window", seed=2).map(Cls())
    return data.packed(40, "size.cls * 7", window=50, collation_fn=list)


@pytest.fixture
def values(tmp_path: Path) -> str:
    """A set of 101 samples."""
    return make_set(tmp_path / "set")


@pytest.mark.exhaustive
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_webloader_moves_with_its_workers(values: str, workers: int, persistent: bool) -> None:
    pytest.importorskip("torch")
    data = packs(values)
    whole = [list(data) for _ in range(3)]
    more = {"persistent_workers": True} if persistent and workers else {}
    loader: Any = wds.WebLoader(packs(values), num_workers=workers, collate_fn=list, **more)
    assert list(islice(iter(loader), 3)) == whole[0][:3]
    loader.skip(4)
    assert list(loader) == whole[0][7:]
    loader.seek(2, 5)
    state = loader.state_dict()
    assert list(loader) == whole[2][5:]
    loader.load_state_dict(state)
    loader.skip(len(whole[2]) - 5 - 1)
    assert list(loader) == whole[2][-1:]
    with pytest.raises(UsageError, match="stages of a WebLoader"):
        loader.unbatched().seek(0, 1)


def test_workers_of_a_plain_dataloader_begin_at_the_batch(values: str) -> None:
    torch = pytest.importorskip("torch")
    whole = list(packs(values))
    data = packs(values)
    loader = torch.utils.data.DataLoader(data, batch_size=None, num_workers=2, collate_fn=list)
    data.seek(0, 5)
    assert list(loader) == whole[5:]
    with pytest.raises(UsageError, match="seek"):
        data.skip(1)
