"""Ranks of a mesh of torch: ranks along dimensions that do not divide the data get the same batches."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from loader_cases import Cls, Numbers, make_set

import wdscli.loader as wds
from wdscli.errors import UsageError
from wdscli.loader import mix
from wdscli.loader.dataset import PositionDataset
from wdscli.loader.place import ranks


class Mesh:
    """What the loader uses of torch's DeviceMesh."""

    def __init__(
        self, places: tuple[int, ...] | None, shape: tuple[int, ...], names: tuple[str, ...]
    ) -> None:
        self.places, self.shape, self.mesh_dim_names = places, shape, names

    def get_coordinate(self) -> tuple[int, ...] | None:
        return self.places

    def size(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A set of 101 samples."""
    return make_set(tmp_path / "set")


def batches(folder: str, **how: Any) -> Any:
    return wds.WebDataset(folder, shuffle="window", seed=1, **how).map(Cls()).listed(4)


def test_a_mesh_gives_rank_and_world_size(folder: str) -> None:
    for rank in range(3):
        mesh = Mesh((rank,), (3,), ("dp",))
        assert list(batches(folder, mesh=mesh)) == list(batches(folder, rank=rank, world_size=3))
    for first in range(2):
        for second in range(3):
            data = batches(folder, mesh=Mesh((first, second), (2, 3), ("dp_replicate", "dp_shard")))
            assert list(data) == list(batches(folder, rank=3 * first + second, world_size=6))


def test_sets_of_a_mix_have_the_rank_of_their_mesh(folder: str) -> None:
    sets = [wds.WebDataset(folder, mesh=Mesh((1,), (2,), ("dp",))) for _ in range(2)]
    ranks = [wds.WebDataset(folder, rank=1, world_size=2) for _ in range(2)]
    assert list(mix(sets, repeat={}).map(Cls())) == list(mix(ranks, repeat={}).map(Cls()))


def test_what_is_no_mesh_of_the_data_is_refused(folder: str) -> None:
    for mesh, message in (
        ("dp", "not a DeviceMesh"),
        (Mesh((0, 0), (2, 2), ("dp", "tp")), "has the dimension tp"),
        (Mesh(None, (2,), ("dp",)), "this process is not in mesh="),
    ):
        with pytest.raises(UsageError, match=message):
            wds.WebDataset(folder, mesh=mesh)
    with pytest.raises(UsageError, match="rank="):
        wds.WebDataset(folder, mesh=Mesh((0,), (2,), ("dp",)), rank=0, world_size=2)


def test_peers_that_would_read_different_batches_are_named_once(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def group(name: str, size: int) -> Any:
        return SimpleNamespace(group_desc=name, size=lambda: size)

    def world(*groups: Any) -> None:
        module = SimpleNamespace(_world=SimpleNamespace(pg_map=groups))
        monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", module)
        monkeypatch.setattr(ranks, "_warned", set())

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        world(group("default_pg", 4), group("mesh_dp", 4), group("mesh_tp", 1), group("undefined", 2))
        next(iter(batches(folder)))
        world(group("mesh_dp", 2), group("mesh_tp", 2))
        next(iter(batches(folder, mesh=Mesh((0,), (2,), ("dp",)))))
        next(iter(batches(folder, nodesplitter=None)))
    for make in (
        lambda: batches(folder),
        lambda: PositionDataset(Numbers()).packed(90, "40", collation_fn=list),
    ):
        world(group("mesh_dp", 2), group("mesh_cp", 2))
        with pytest.warns(
            UserWarning, match="2 ranks of the mesh dimension cp read different batches"
        ) as warned:
            firsts = [next(iter(make())) for _ in range(2)]
        assert (len(firsts), len(warned)) == (2, 1)
