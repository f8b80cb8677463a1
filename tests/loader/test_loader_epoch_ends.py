"""An epoch of which the last was given is over: ``islice(loader, len(loader))``, ``zip(range(n), loader)`` and trainers
that count, which never ask for more, come to the next epoch as loops do that run to the end."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from loader_cases import Cls, make_set

import wdscli.loader as wds
from wdscli.loader.place.iteration import IterationState

torch_data = pytest.importorskip("torch.utils.data")

COUNT = 26
"""With batches of four the last one is short."""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_set(tmp_path_factory.mktemp("set"), COUNT, 7)


def data(url: str, **more: Any) -> Any:
    return wds.WebDataset(url, shuffle="window", seed=3, **more).map(Cls())


def plain(loader: Any) -> list[Any]:
    return [one.tolist() if hasattr(one, "tolist") else one for one in loader]


def tripled(items: Any) -> Any:
    for item in items:
        yield from (item, item, item)


LOADERS: dict[str, Callable[[str], Any]] = {
    "samples": data,
    "batches": lambda url: data(url).listed(4),
    "whole batches": lambda url: data(url).listed(4, partial=False),
    "the short rank of two": lambda url: data(url, rank=1, world_size=2, tail="uneven").listed(5),
    "a cut": lambda url: data(url).with_epoch(10),
    "cut batches": lambda url: data(url).listed(4).with_epoch(3),
    "a generator": lambda url: data(url).compose(tripled).with_epoch(10),
    "a length that is said": lambda url: data(url).compose(tripled).with_length(3 * COUNT),
    "a shorter length that is said": lambda url: data(url).listed(4).with_length(5),
    "a mix": lambda url: wds.mix([data(url), data(url)]).listed(4),
    "DataLoader": lambda url: torch_data.DataLoader(data(url).listed(4), batch_size=None),
    "DataLoader that makes batches": lambda url: torch_data.DataLoader(data(url), batch_size=4),
    "DataLoader, workers": lambda url: torch_data.DataLoader(
        data(url).listed(4), batch_size=None, num_workers=2
    ),
    "DataLoader, workers that stay": lambda url: torch_data.DataLoader(
        data(url).listed(4), batch_size=None, num_workers=2, persistent_workers=True
    ),
    "WebLoader": lambda url: wds.WebLoader(data(url), batch_size=4),
    "WebLoader, whole batches": lambda url: wds.WebLoader(data(url), batch_size=4, drop_last=True),
    "WebLoader, workers": lambda url: wds.WebLoader(data(url).listed(4), num_workers=2),
    "WebLoader, workers that stay": lambda url: wds.WebLoader(
        data(url).listed(4), num_workers=2, persistent_workers=True
    ),
    "WebLoader, a cut": lambda url: wds.WebLoader(data(url).listed(4)).with_epoch(3),
    "WebLoader, stages": lambda url: wds.WebLoader(data(url).listed(4)).unlisted().listed(3).with_epoch(4),
    "WebLoader, a length that is said": lambda url: wds.WebLoader(data(url).listed(4)).with_length(5),
    "sampler": lambda url: wds.ShardSampler(wds.IndexedDataset(url)),
    "sampler of batches": lambda url: wds.ShardSampler(wds.IndexedDataset(url), batch_size=4),
    "the short rank of a sampler": lambda url: wds.ShardSampler(
        wds.IndexedDataset(url), batch_size=5, rank=1, world_size=2, tail="uneven"
    ),
}


@pytest.mark.parametrize("name", LOADERS)
def test_who_takes_the_length_of_an_epoch_comes_to_the_next(url: str, name: str) -> None:
    whole, counted, zipped = (LOADERS[name](url) for _ in range(3))
    length = 10 if name == "a generator" else len(counted)
    known = [plain(whole)[:length] for _ in range(3)]
    assert [len(epoch) for epoch in known] == [length] * 3
    assert known[0] != known[1] != known[2]
    assert [plain(islice(counted, length)) for _ in range(3)] == known
    assert [plain(one for _, one in zip(range(length), zipped)) for _ in range(3)] == known


def test_who_takes_less_begins_the_same_epoch_again(url: str) -> None:
    for loader in (data(url).listed(4), wds.WebLoader(data(url).listed(4))):
        few = plain(islice(loader, len(loader) - 1))
        assert plain(loader)[:-1] == few


@pytest.mark.exhaustive(sample=False)
def test_a_state_behind_the_last_says_that_the_epoch_is_over(url: str) -> None:
    for make in (lambda: data(url).listed(4), lambda: wds.WebLoader(data(url).listed(4), num_workers=2)):
        begun, resumed, known = make(), make(), make()
        list(islice(begun, len(begun)))
        assert begun.epoch == 1
        resumed.load_state_dict(begun.state_dict())
        epochs = [plain(known) for _ in range(2)]
        assert plain(resumed) == [], "nothing is left of it"
        assert plain(resumed) == plain(begun) == epochs[1]


def test_stateful_dataloader(url: str) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    for workers in (0, 2):
        loader = stateful(data(url).listed(4), batch_size=None, num_workers=workers)
        known = data(url).listed(4)
        assert [plain(islice(loader, len(loader))) for _ in range(3)] == [plain(known) for _ in range(3)]


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("workers", [0, 2])
def test_stateful_dataloader_goes_on_behind_the_last_of_an_epoch(url: str, workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def made() -> Any:
        return stateful(data(url).listed(4), batch_size=None, num_workers=workers)

    known = data(url).listed(4)
    epochs = [plain(known) for _ in range(2)]
    begun, behind_the_last, behind_the_end = made(), made(), made()
    batches = iter(begun)
    assert plain(islice(batches, len(begun))) == epochs[0]
    behind_the_last.load_state_dict(begun.state_dict())
    assert next(batches, None) is None
    behind_the_end.load_state_dict(begun.state_dict())
    assert [plain(behind_the_last) for _ in range(2)] == [[], epochs[1]], "nothing is left of it"
    assert plain(behind_the_end) == epochs[1]


def test_a_mid_epoch_state_is_not_moved_by_an_iteration_that_was_left(url: str) -> None:
    """One that was left behind its last item and is asked for more says nothing any more."""
    loader = data(url).listed(4)
    left = iter(loader)
    for _ in range(len(loader)):
        next(left)
    latest = iter(loader)
    next(latest)
    state = loader.state_dict()
    assert next(left, None) is None
    assert loader.state_dict() == state
    assert (state["epoch"], state["next"]) == (1, 1)


def test_set_epoch_counts_more_than_an_epoch_that_is_over(url: str, tmp_path: Path) -> None:
    loader = data(url).listed(4)
    source = iter(loader)
    for _ in range(len(loader)):
        next(source)
    loader.set_epoch(7)
    assert next(source, None) is None
    assert loader.epoch == 7


def test_an_iteration_that_is_not_the_latest_is_not_over() -> None:
    state = IterationState()
    old, new = state.begin(state.start), state.begin(state.start)
    old.over()
    assert state.start.epoch == 0
    new.over()
    assert state.start.epoch == 1
