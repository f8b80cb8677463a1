"""``is_exact`` and ``why_not_exact``: each reason has a dataset, and what is exact has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from loader_cases import Numbers, make_set

import wdscli.loader as wds
from wdscli.loader import mix
from wdscli.loader.dataset import PositionDataset


class OwnIter(wds.WebDataset[Any]):
    """As in programs for webdataset."""

    def __iter__(self) -> Any:
        return iter([1])


def numbers() -> Any:
    return PositionDataset(Numbers())


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A set of 101 samples."""
    return make_set(tmp_path / "set")


@pytest.mark.parametrize(
    "make",
    [
        lambda: numbers(),
        lambda: numbers().batched(4),
        lambda: numbers().select(bool).batched(4),
        lambda: numbers().batched(4).slice(3),
        lambda: numbers().shuffle(10).packed(90, "40"),
        lambda: numbers().batched(4).with_epoch(batches=3),
        lambda: numbers().batched(4).repeat(),
        lambda: numbers().listed(4).unlisted(),
        lambda: mix([numbers().batched(4), numbers().batched(4)], per="batch", repeat={}),
    ],
)
def test_what_is_exact(make: Any) -> None:
    data = make()
    assert data.is_exact
    assert data.why_not_exact is None


def test_each_reason(folder: str) -> None:
    def data(**how: Any) -> Any:
        return wds.WebDataset(folder, **how)

    def own_splitter(shards: Any) -> Any:
        return shards

    for inexact, reason in (
        (OwnIter(folder), "own __iter__"),
        (wds.WebDataset("pipe:true"), "streamed"),
        (data(nodesplitter=own_splitter), "streamed"),
        (data().compose(iter), "generator"),
        (numbers().shuffle(10, rng=1), "generator"),
        (numbers().select(bool).batched(4).slice(3), "generator"),
        (data(resampled=True, nodesplitter=None, workersplitter=None), "own order"),
        (data(nodesplitter=None), "nodesplitter=None"),
        (data(workersplitter=None), "workersplitter=None"),
        (numbers().batched(4).with_epoch(3), "with_epoch"),
        (mix([numbers().with_epoch(3), numbers()], repeat={}), "with_epoch"),
        (wds.DataPipeline(range(3)), "plain generators"),
    ):
        assert not inexact.is_exact
        assert reason in inexact.why_not_exact


def test_a_webloader_is_exact_without_stages_of_its_own() -> None:
    loader: Any = wds.WebLoader(numbers().batched(4).with_epoch(3), num_workers=2)
    assert loader.is_exact
    for inexact, reason in (
        (loader.unbatched(), "stages of the WebLoader"),
        (wds.WebLoader(numbers().compose(iter)), "generator"),
        (wds.WebLoader(numbers().listed(3).unlisted(), batch_size=4), "DataLoader makes batches"),
        (wds.WebLoader([1, 2]), "list"),
    ):
        assert not inexact.is_exact
        assert reason in inexact.why_not_exact
