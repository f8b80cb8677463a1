"""Epochs under a plain DataLoader: the next iteration is of the next epoch, and workers hear of set_epoch and of
states, whether they are started anew or stay."""

from __future__ import annotations

import copy
import itertools
import os
import pickle
from threading import Thread
from typing import Any

import pytest
import torch_processes  # noqa: F401 - those of "forkserver" have torch already

import wdscli.loader as wds
from wdscli.errors import UsageError
from wdscli.loader.place.iteration import NOTES, Beginning, EpochBoard
from wdscli.loader.place.state import Place
from wdscli.shards import ShardWriter

torch_data = pytest.importorskip("torch.utils.data")

COUNT = 30


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("set")
    with ShardWriter(str(folder / "in-%06d.tar"), max_count=7) as writer:
        for number in range(COUNT):
            writer.write(f"n{number:02d}", {"cls": b"%d" % number})
    return str(folder / "in-manifest.json")


def key_of(sample: Any) -> str:
    return str(sample["__key__"])


def made(url: str, **more: Any) -> wds.WebDataset:
    return wds.WebDataset(url, shuffle="window", seed=3, **more).map(key_of).listed(4)


def epochs(url: str, count: int = 6) -> list[list[list[str]]]:
    bare = made(url)
    return [list(bare) for _ in range(count)]


def loader(data: Any, workers: int = 2, **more: Any) -> Any:
    return torch_data.DataLoader(data, batch_size=None, num_workers=workers, **more)


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("stay", [False, True])
@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
def test_workers_hear_of_epochs(url: str, context: str, stay: bool) -> None:
    known = epochs(url)
    data = made(url)
    # Each spawned worker loads torch anew, for every epoch when it does not stay: one is enough.
    workers = 1 if context == "spawn" else 2
    batches = loader(data, workers, multiprocessing_context=context, persistent_workers=stay)
    assert [list(batches), list(batches)] == known[:2]
    assert data.epoch == 2
    if context == "spawn" and not stay:
        return  # what they are sent is what those of "forkserver" are sent
    data.set_epoch(5)
    assert list(batches) == known[5]
    data.set_epoch(1)
    assert [list(batches), list(batches)] == known[1:3]
    assert list(data) == known[3], "whoever iterates next"
    assert list(batches) == known[4]
    other = made(url)
    source = iter(other)
    list(itertools.islice(source, 3))
    data.load_state_dict(other.state_dict())
    assert [list(batches), list(batches)] == [known[0][3:], known[1]]


@pytest.mark.exhaustive
def test_an_iteration_of_workers_that_is_left_is_followed_by_the_next_epoch(url: str) -> None:
    data = made(url)
    batches = loader(data)
    next(iter(batches))
    known = epochs(url)
    assert list(batches) == known[1]
    assert data.epoch == 2
    source = iter(batches)
    for _ in range(3):
        next(source)
    with pytest.raises(UsageError, match="position unknown"):
        data.state_dict()
    other = made(url)
    other.load_state_dict(data.state_dict(batches=3))
    assert list(other) == known[2][3:]


@pytest.mark.exhaustive
def test_epochs_that_are_cut_go_on_where_they_were_cut(url: str) -> None:
    data = wds.WebDataset(url, resampled=True, seed=3).map(key_of).with_epoch(10)
    batches = torch_data.DataLoader(data, batch_size=5, num_workers=2)
    assert len({key for _ in range(3) for batch in batches for key in batch}) == COUNT


@pytest.mark.exhaustive
def test_two_loaders_of_one_dataset_at_once(url: str) -> None:
    data = made(url)
    both = zip(loader(data), loader(data, 3))
    first, second = (list(batches) for batches in zip(*both))
    known = epochs(url)
    assert [first, second] == known[:2]


@pytest.mark.exhaustive
def test_loaders_that_threads_start_at_the_same_time_have_whole_epochs(url: str) -> None:
    data = made(url)
    found: list[list[str]] = []

    def run() -> None:
        for _ in range(2):
            found.append(sorted(itertools.chain(*loader(data))))

    threads = [Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [sorted(itertools.chain(*epochs(url, 1)[0]))] * 6


def test_workers_that_iterate_several_times_agree(url: str) -> None:
    class Twice(torch_data.IterableDataset):  # type: ignore[misc,name-defined]
        def __init__(self, data: Any) -> None:
            self.data = data

        def __iter__(self) -> Any:
            return itertools.chain(self.data, self.data)

    found = list(loader(Twice(made(url))))
    known = epochs(url)
    assert sorted(found) == sorted(known[0] + known[1])


def test_stateful_dataloader_goes_on_to_the_next_epoch(url: str) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    known = epochs(url)
    begun = stateful(made(url), batch_size=None, num_workers=2)
    assert list(begun) == known[0]
    source = iter(begun)
    given = [next(source) for _ in range(3)]
    resumed = stateful(made(url), batch_size=None, num_workers=2)
    resumed.load_state_dict(begun.state_dict())
    assert given + list(resumed) == known[1]
    assert list(resumed) == known[2]


@pytest.mark.exhaustive
def test_copies_that_are_no_workers_have_epochs_of_their_own(url: str) -> None:
    data = made(url)
    list(loader(data))
    known = epochs(url)
    other, sent = copy.deepcopy(data), pickle.loads(pickle.dumps(data))
    assert list(loader(data)) == list(other) == list(sent) == known[1]


def test_a_process_that_was_forked_and_is_no_worker_has_workers_of_its_own(url: str) -> None:
    data = made(url)
    list(loader(data, 1))
    known = epochs(url)
    child = os.fork()
    if not child:
        try:
            list(data)
            list(data)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert list(loader(data, 1)) == known[1], "what it began is not told to others"


@pytest.mark.exhaustive
def test_workers_of_a_forked_process_follow_it_and_no_other_process(url: str) -> None:
    """As when a launcher makes the dataset, and each rank starts workers of its own."""
    data = made(url)
    known = epochs(url)
    assert list(loader(data, 1)) == known[0]
    data.set_epoch(0)
    child = os.fork()
    if not child:
        try:
            batches = loader(data, 1, persistent_workers=True)
            right = [list(batches), list(batches)] == known[:2] and data.epoch == 2
            data.set_epoch(4)
            right &= [list(batches), list(batches)] == known[4:] and data.epoch == 6
            del batches  # ends the workers
            os._exit(0 if right else 3)
        finally:
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert list(loader(data, 1)) == known[0]


class TestEpochBoard:
    def test_all_workers_of_an_iteration_get_one_epoch(self) -> None:
        board = EpochBoard.made(Place(4, 2))

        def epoch_of(birth: int, time: int, worker: int, parent: int = os.getpid()) -> int:
            return board.start_of(Beginning(parent, 7, time, birth, 3, worker)).epoch

        assert board.start_of(Beginning(os.getpid(), 7, 1, 0, 3, 0)) == Place(4, 2)
        assert [epoch_of(0, 1, worker) for worker in (1, 2)] == [4, 4]
        assert [epoch_of(0, 2, worker) for worker in range(3)] == [5, 5, 5], "workers that stayed"
        assert [epoch_of(birth, 1, 0) for birth in (3, 4)] == [6, 6], "new workers with the same seed"
        assert [epoch_of(birth, 1, worker) for worker, birth in enumerate((9, 14, 19))] == [7, 7, 7], (
            "another thread started processes between them"
        )
        assert epoch_of(0, 2, 2) == 5, "late"
        assert board.latest() == (7, 3)
        assert [epoch_of(0, 1, worker, parent=1) for worker in range(3)] == [4, 4, 4], "another fork"
        assert board.latest() == (7, 3)
        board.publish(Place(1, 0, 3, topology=(2, 5)))
        assert board.latest() is None
        assert board.start_of(Beginning(os.getpid(), 8, 1, 0, 3, 0)) == Place(1, 0, 3, topology=(2, 5))

    def test_old_iterations_are_forgotten(self) -> None:
        board = EpochBoard.made(Place())
        for number in range(3 * NOTES):
            assert board.start_of(Beginning(os.getpid(), number, 1, 2 * number, 2, 0)).epoch == number
            assert board.start_of(Beginning(number + 2, number, 1, 2 * number, 2, 0)).epoch == 0
        assert len(pickle.dumps(board._read().__enter__())) < 20_000
