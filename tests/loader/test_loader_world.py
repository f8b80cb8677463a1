"""Ranks: where they are found, and that all of them see as much."""

from __future__ import annotations

import json
import multiprocessing
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from loader_cases import Cls, Numbers, World, everything, make_set

import wdscli.loader as wds
from wdscli.errors import UsageError
from wdscli.loader.dataset import PositionDataset
from wdscli.loader.place.ranks import LAUNCHERS, find_rank

VARIABLES = [name for pair in LAUNCHERS for name in pair] + ["SLURM_NTASKS"]


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "3", "WORLD_SIZE": "4"},
        {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"},
        {"PMI_RANK": "3", "PMI_SIZE": "4"},
        {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "9"},
        {"RANK": "3", "WORLD_SIZE": "4", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"},
    ],
    ids=["torchrun", "openmpi", "mpich", "slurm", "torchrun under slurm"],
)
def test_launchers_say_the_rank(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert find_rank() == (3, 4)
    assert find_rank(0, 2) == (0, 2)
    data = PositionDataset(Numbers(shuffle="none"), tail="uneven").listed(4)
    assert next(iter(data)) == [everything()[place] for place in (3, 7, 11, 15)]
    assert data.state_dict()["batch"] == 16


def test_the_batch_script_of_slurm_is_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_NTASKS", "4")
    assert find_rank() == (0, 1)


def test_nobody_says_a_rank() -> None:
    assert find_rank() == (0, 1)


@pytest.mark.parametrize("given", [(4, 4), (-1, 2), (0, 0), (1, None), (None, 2)])
def test_impossible_ranks_are_refused(given: tuple[Any, Any]) -> None:
    with pytest.raises(UsageError, match="rank"):
        find_rank(*given)


def test_variables_that_are_no_numbers_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "first")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="RANK=first"):
        find_rank()


def test_a_worker_that_is_spawned_is_told_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has neither torch.distributed nor, under torch's own spawn, a launcher's variables."""
    data = PositionDataset(Numbers(shuffle="none"), tail="uneven").listed(4)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    sent = pickle.dumps(data)
    monkeypatch.delenv("RANK")
    in_another_rank = pickle.loads(sent)
    assert in_another_rank._share()[:2] == (0, 1)
    monkeypatch.setattr("wdscli.loader.dataset.in_worker", lambda: True)
    in_a_worker = pickle.loads(sent)
    assert in_a_worker._share()[:2] == (1, 2)
    assert next(iter(in_a_worker)) == [everything()[place] for place in (1, 3, 5, 7)]


def of_tail(tail: Any, count: int, batch: int, world: int) -> Callable[..., PositionDataset]:
    def make(rank: int, world_size: int) -> PositionDataset:
        return PositionDataset(Numbers((count,)), rank=rank, world_size=world_size, tail=tail).listed(batch)

    return make


@pytest.mark.parametrize("workers", [0, 2, 5])
@pytest.mark.parametrize(
    ("count", "batch", "world"),
    [(101, 4, 4), (96, 4, 4), (3, 4, 2), (1, 1, 8), (97, 8, 8), (7, 2, 3), (5, 64, 2)],
)
@pytest.mark.parametrize("tail", ["drop", "pad", "uneven", None])
def test_tails(
    tail: Any, count: int, batch: int, world: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = of_tail(tail, count, batch, world)
    ranks = [World(monkeypatch, world, workers).of_rank(make, rank) for rank in range(world)]
    given = [one for batches in ranks for some in batches for one in some]
    if tail == "uneven":
        assert sorted(given) == list(range(count))
        assert max(map(len, ranks)) == -(-count // (batch * world))
        return
    lengths = {len(batches) for batches in ranks}
    assert lengths == {len(make(0, world))} == {len(make(world - 1, world))}
    if tail is None:
        assert set(given) == set(range(count))
        assert len(given) == -(-count // world) * world, "fewer than there are ranks come twice"
        assert len({tuple(map(len, batches)) for batches in ranks}) == 1, "all ranks have batches of one size"
        return
    assert {len(some) for batches in ranks for some in batches} <= {batch}
    if tail == "drop":
        assert len(set(given)) == len(given) == count // (batch * world) * batch * world
    else:
        assert set(given) == set(range(count))
        assert len(given) == -(-count // (batch * world)) * batch * world


def test_one_rank_and_several_have_the_same_tail_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = PositionDataset(Numbers((10,))).listed(4)
    assert [len(batch) for batch in alone] == [4, 4, 2]
    assert len(alone) == 3
    of_two = PositionDataset(Numbers((10,)), rank=1, world_size=2).listed(4)
    assert [len(batch) for batch in of_two] == [4, 1]
    for world in (1, 2, 5):
        of_all = World(monkeypatch, world, 0).batches(
            lambda **who: PositionDataset(Numbers((30,)), **who).listed(20 // who["world_size"])
        )
        assert of_all == World(monkeypatch, 1, 0).batches(
            lambda **who: PositionDataset(Numbers((30,)), **who).listed(20)
        )


@pytest.mark.parametrize("tail", ["drop", "pad", "uneven", "even"])
@pytest.mark.parametrize("partial", [True, False])
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("together", [1, 6])
def test_lengths_are_true(tail: Any, partial: bool, world: int, together: int) -> None:
    for rank in range(world):
        data = PositionDataset(Numbers(), rank=rank, world_size=world, tail=tail, batch_size=together)
        assert len(data) == len(list(data))
        batched = PositionDataset(Numbers(), rank=rank, world_size=world, tail=tail).listed(6, partial)
        assert len(batched) == len(list(batched))
        sliced = PositionDataset(Numbers(), rank=rank, world_size=world, tail=tail).slice(3, 50).listed(5)
        assert len(sliced) == len(list(sliced))


@pytest.mark.parametrize("tail", [None, "even", "drop", "uneven"])
def test_without_partial_the_number_of_batches_is_that_of_whole_ones(tail: Any) -> None:
    """Also where those of some ranks are whole: 101 samples in batches of 8 of 4 ranks leave 5."""
    for world in (1, 2, 4, 8):
        given = []
        for rank in range(world):
            data = PositionDataset(Numbers(), rank=rank, world_size=world, tail=tail).listed(
                8 // world, False
            )
            assert len(list(data)) == len(data) == 12
            data.set_epoch(0)
            given += [one for batch in data for one in batch]
            data.set_epoch(0)
            batches = list(data)
            data.set_epoch(0)
            assert list(data.slice(-2, None)) == batches[-2:]
        assert len(given) == len(set(given)) == 96


def test_a_length_that_nobody_knows_is_no_length() -> None:
    for data in (
        PositionDataset(Numbers()).listed(5).unlisted(),
        PositionDataset(Numbers()).repeat(),
        PositionDataset(Numbers()).compose(iter),
    ):
        with pytest.raises(TypeError, match="with_length"):
            len(data)
    assert len(PositionDataset(Numbers()).repeat().with_length(7)) == 7


def test_more_ranks_and_workers_than_shards_and_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(rank: int, world_size: int) -> PositionDataset:
        return PositionDataset(Numbers((3, 2)), rank=rank, world_size=world_size, tail="pad").listed(2)

    batches = World(monkeypatch, 8, 5).batches(make)
    assert len(batches) == 1
    assert set(batches[0]) == {0, 1, 2, 1000, 1001}


def _of_rank(rank: int, world: int, store: str, manifest: str, place: str, workers: int, told: Any) -> None:
    """One rank of a real process group; what it tells is the batches before and behind a change of world."""
    import torch.distributed

    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    data = wds.WebDataset(manifest, shuffle="window", seed=3, tail="pad").map(Cls()).listed(12 // world)
    loader = wds.WebLoader(data, num_workers=workers)
    if Path(place).exists():
        loader.load_state_dict(json.loads(Path(place).read_text()))
    given = []
    for batch in loader:
        given.append(batch)
        states: list[Any] = [None] * world
        torch.distributed.all_gather_object(states, loader.state_dict())
        assert all(state == states[0] for state in states)
        if world == 3 and len(given) == 4:
            if rank == 0:
                Path(place).write_text(json.dumps(states[0]))
            break
    told.send((rank, given))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.mark.exhaustive
def test_real_process_groups_see_the_same_batches_and_go_on_in_another_world(tmp_path: Path) -> None:
    """gloo: three ranks with two workers each stop after four batches, two ranks with one go on."""
    pytest.importorskip("torch.distributed")
    import torch.utils.data  # so that forked ranks need not load it

    assert torch.distributed.is_available()
    manifest = make_set(tmp_path / "set")
    whole = list(wds.WebDataset(manifest, shuffle="window", seed=3, tail="pad").map(Cls()).listed(12))
    processes = multiprocessing.get_context("fork")
    seen: list[list[int]] = []
    for world, workers in ((3, 2), (2, 1)):
        heard, told = processes.Pipe(duplex=False)
        arguments = str(tmp_path / f"store{world}"), manifest, str(tmp_path / "place.json"), workers, told
        ranks = [processes.Process(target=_of_rank, args=(rank, world, *arguments)) for rank in range(world)]
        for process in ranks:
            process.start()
        of_ranks = dict(heard.recv() for _ in ranks)
        for process in ranks:
            process.join()
            assert process.exitcode == 0
        for batches in zip(*(of_ranks[rank] for rank in range(world))):
            seen.append([one for row in zip(*batches) for one in row])
    assert seen == whole
