"""Everything at once: a mix of ragged sets with filters of both kinds, in any world, fresh and from any state."""

from __future__ import annotations

import json
import random
from collections import Counter
from functools import cache
from typing import Any
from unittest import mock

import pytest
from loader_cases import RAGGED, Cls, Even, everything, make_ragged

import wdscli.loader as wds

WHOLE = 24
"""Samples of a global batch."""
OTHERS = (6, 0, 17, 1, 11)
"""Samples of the shards of the second set: 35."""


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """A set filtered by its index, another while it is read."""
    folder = tmp_path_factory.mktemp("sets")
    first = wds.WebDataset(
        make_ragged(folder / "a"), shuffle="window", window=3, seed=1, where="cls % 3 != 0"
    )
    second = wds.WebDataset(make_ragged(folder / "b", OTHERS), shuffle="full", seed=2)
    return [first.map(Cls()), second.map(Cls()).select(Even()).map(Negative())]


class Negative:
    """Tells the second set's numbers from the first's."""

    def __call__(self, number: int) -> int:
        return -1 - number


def global_batches(parts: list[Any], stop: Any, world: int, workers: int, state: dict[str, Any]) -> Any:
    """{batch: its samples, sorted} of all ranks that were given ``state``."""
    found: dict[int, list[int]] = {}
    for rank in range(world):
        data = wds.mix(
            list(zip(parts, [3, 1])), stop=stop, seed=7, rank=rank, world_size=world, tail="uneven"
        )
        data = data.listed(WHOLE // world)
        data.load_state_dict(state)
        start = data._state.start
        for worker in range(max(1, workers)):
            asked = (worker, max(1, workers))
            with mock.patch("wdscli.loader.dataset.find_worker", lambda asked=asked: asked):
                for unit in data._units(start._replace(batch=start.batch + worker), data._share()):
                    found.setdefault(unit.number, []).extend(one for batch in unit.items for one in batch)
    return {number: sorted(batch) for number, batch in found.items()}


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("stop", ["first", "all", "repeat"])
def test_any_world_from_any_state(parts: list[Any], stop: Any) -> None:
    whole = wds.mix(list(zip(parts, [3, 1])), stop=stop, seed=7).listed(WHOLE)
    rng = random.Random(stop)

    @cache
    def state_at(epoch: int, taken: int) -> dict[str, Any]:
        whole.set_epoch(epoch)
        source = iter(whole)
        for _ in range(taken):
            next(source)
        text = json.dumps(whole.state_dict())
        assert len(text) < 1000
        state: dict[str, Any] = json.loads(text)
        return state

    for epoch in (0, 1, 2):
        plain = global_batches(parts, stop, 1, 0, state_at(epoch, 0))
        for world in (1, 2, 4, 8):
            for workers in (0, 1, 2, 3, 5):
                taken = rng.randrange(len(plain))
                rest = {number: batch for number, batch in plain.items() if number >= taken}
                assert global_batches(parts, stop, world, workers, state_at(epoch, 0)) == plain
                assert global_batches(parts, stop, world, workers, state_at(epoch, taken)) == rest
        if stop == "all":
            given = Counter(one for batch in plain.values() for one in batch)
            firsts = [one for one in everything(RAGGED) if one % 3]
            seconds = [-1 - one for one in everything(OTHERS) if one % 2 == 0]
            assert given == Counter(firsts + seconds)
