"""Going on exactly: the global batches are the same for any ranks and workers, fresh or resumed at any batch."""

from __future__ import annotations

import json
import os
import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from loader_cases import RAGGED, Cls, Even, Numbers, World, everything, make_ragged, make_set
from loader_sets import write_set
from shard_cases import numbered, write_shards

import wdscli.loader as wds
from wdscli.errors import UsageError
from wdscli.loader.dataset import PositionDataset

WHOLE = 16
WORLDS = [(world, workers) for world in (1, 2, 4, 8) for workers in (0, 1, 2, 3, 5)]


def numbers(
    seed: int = 0, shuffle: Any = "window", tail: Any = "uneven", **more: Any
) -> Callable[..., PositionDataset]:
    """Makes datasets whose global batches have ``WHOLE`` numbers."""

    def make(rank: int = 0, world_size: int = 1) -> PositionDataset:
        data = PositionDataset(
            Numbers(seed=seed, shuffle=shuffle), rank=rank, world_size=world_size, tail=tail
        )
        if more.get("even"):
            data = data.select(Even())
        return data.listed(WHOLE // world_size)

    return make


@pytest.mark.parametrize(("world", "workers"), WORLDS)
@pytest.mark.parametrize("shuffle", ["window", "blocks", "shards", "full", "none"])
def test_any_world_gives_the_same_global_batches_from_any_batch(
    world: int, workers: int, shuffle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = numbers(seed=5, shuffle=shuffle, tail="pad")
    rng = random.Random(f"{world} {workers} {shuffle}")
    for epoch in (0, 3):
        whole = World(monkeypatch, 1, 0).batches(make, epoch=epoch)
        assert len(whole) == 7
        assert World(monkeypatch, world, workers).batches(make, epoch=epoch) == whole
        for given in (1, rng.randrange(2, 7), 7):
            before = make()
            before.set_epoch(epoch)
            source = iter(before)
            for _ in range(given):
                next(source)
            state = json.loads(json.dumps(before.state_dict()))
            rest = World(monkeypatch, world, workers).batches(make, state, epoch)
            assert rest == whole[given:]


@pytest.mark.parametrize("world", [1, 2, 4, 8])
@pytest.mark.parametrize("workers", [0, 2, 3])
def test_every_sample_comes_once_in_an_epoch_and_orders_change(
    world: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = numbers()
    orders = []
    for epoch in range(3):
        lists = [World(monkeypatch, world, workers).of_rank(make, rank, epoch=epoch) for rank in range(world)]
        given = [one for batches in lists for batch in batches for one in batch]
        assert sorted(given) == everything()
        orders.append(given)
    assert orders[0] != orders[1] != orders[2] != orders[0]


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_filters_leave_gaps_and_move_nothing(
    world: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, even = numbers(tail="pad"), numbers(tail="pad", even=True)
    whole = World(monkeypatch, 1, 0).batches(plain)
    wanted = [sorted(one for one in batch if one % 2 == 0) for batch in whole]
    assert [sorted(batch) for batch in World(monkeypatch, world, workers).batches(even)] == wanted
    before = even()
    source = iter(before)
    next(source), next(source)
    rest = World(monkeypatch, world, workers).batches(even, before.state_dict())
    assert [sorted(batch) for batch in rest] == wanted[2:]


def test_a_resume_in_one_world_goes_on_in_a_third(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks, then eight, then one."""
    make = numbers(tail="pad")
    whole = World(monkeypatch, 1, 0).batches(make)
    first = [make(rank=rank, world_size=2) for rank in range(2)]
    for data in first:
        source = iter(data)
        next(source), next(source)
    states = [data.state_dict() for data in first]
    assert states[0] == states[1]
    second = [make(rank=rank, world_size=8) for rank in range(8)]
    for data in second:
        data.load_state_dict(states[0])
        source = iter(data)
        next(source), next(source), next(source)
    assert len({json.dumps(data.state_dict()) for data in second}) == 1
    third = make()
    third.load_state_dict(second[5].state_dict())
    assert list(third) == whole[5:]


def test_real_shards_without_manifest_or_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_ragged(tmp_path)

    def make(rank: int = 0, world_size: int = 1) -> PositionDataset:
        data = wds.WebDataset(
            folder, shuffle="window", window=3, rank=rank, world_size=world_size, tail="pad"
        )
        return data.map(Cls()).listed(WHOLE // world_size)

    whole = World(monkeypatch, 1, 0).batches(make)
    assert whole == World(monkeypatch, 1, 0).batches(numbers(tail="pad"))
    before = make()
    next(iter(before))
    for world, workers in ((2, 3), (4, 0), (8, 2)):
        assert World(monkeypatch, world, workers).batches(make) == whole
        assert World(monkeypatch, world, workers).batches(make, before.state_dict()) == whole[1:]


@pytest.mark.parametrize("stop", ["first", "all", "repeat"])
def test_a_mix_is_resumed_like_one_set(stop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(rank: int = 0, world_size: int = 1) -> PositionDataset:
        a, b = (PositionDataset(Numbers(counts, seed=seed)) for counts, seed in ((RAGGED, 1), ((9, 40), 2)))
        mixed = wds.mix(
            {"a": (a, 0.7), "b": (b, 0.3)}, stop=stop, rank=rank, world_size=world_size, tail="pad"
        )
        if stop == "repeat":
            mixed = mixed.with_epoch(samples=20 // world_size * world_size)
        return mixed.listed(WHOLE // world_size)

    for epoch in (0, 2):
        whole = World(monkeypatch, 1, 0).batches(make, epoch=epoch)
        before = make()
        before.set_epoch(epoch)
        source = iter(before)
        next(source), next(source)
        state = json.loads(json.dumps(before.state_dict()))
        for world, workers in ((2, 0), (4, 3)):
            assert World(monkeypatch, world, workers).batches(make, state, epoch) == whole[2:]


def test_a_state_is_small_plain_and_fresh() -> None:
    data = numbers()()
    source = iter(data)
    next(source)
    state = data.state_dict()
    assert len(json.dumps(state)) < 1000
    assert json.loads(json.dumps(state)) == state
    state["source"]["seed"] = 99
    state["next"] = 7
    assert data.state_dict()["source"]["seed"] == 0
    assert data.state_dict()["next"] == 1
    next(source)
    assert state["next"] == 7


def test_a_state_of_many_stages_stays_under_a_kilobyte(tmp_path: Path) -> None:
    data = wds.WebDataset(make_set(tmp_path), shuffle="window", where="cls >= 0", keys="n*")
    data = (
        data.slice(3, 90)
        .rsample(0.9)
        .slice(2, 70)
        .shuffle(100)
        .rsample(0.8)
        .listed(4)
        .slice(10)
        .with_epoch(5)
    )
    assert len(json.dumps(data.state_dict())) < 1000


def test_the_end_of_an_epoch_is_the_beginning_of_the_next() -> None:
    data, other = numbers()(), numbers()()
    first = list(data)
    assert (data.state_dict()["epoch"], data.state_dict()["next"]) == (1, 0)
    other.load_state_dict(data.state_dict())
    second = list(other)
    assert second == list(data) != first
    assert other.epoch == data.epoch == 2


def test_behind_the_last_batch_nothing_is_left_of_the_epoch() -> None:
    """The state is asked for in the loop's body, before the loop knows that it was the last."""
    data, other = numbers()(), numbers()()
    for _ in data:
        state = data.state_dict()
    assert (state["epoch"], state["next"]) == (0, 7)
    other.load_state_dict(state)
    assert list(other) == []
    assert list(other) == list(data)


@pytest.mark.parametrize(
    ("other", "what"),
    [
        (lambda: PositionDataset(Numbers((101, 3))).listed(WHOLE), "other data"),
        (lambda: PositionDataset(Numbers(seed=1)).listed(WHOLE), "another seed: 0, but this loader has 1"),
        (lambda: PositionDataset(Numbers(shuffle="full")).listed(WHOLE), "another shuffle"),
        (
            lambda: PositionDataset(Numbers(window=4)).listed(WHOLE),
            "another window: 3, but this loader has 4",
        ),
        (lambda: PositionDataset(Numbers()).slice(50).listed(WHOLE), "another view"),
        (lambda: PositionDataset(Numbers()).listed(WHOLE).with_epoch(3), "another epoch length"),
        (
            lambda: PositionDataset(Numbers()).listed(WHOLE + 1),
            "batches of 16 samples over all ranks, but this loader has 17",
        ),
        (lambda: PositionDataset(Numbers(), rank=1, world_size=2).listed(WHOLE), "saved with batches of"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_by_name(
    other: Callable[[], PositionDataset], what: str
) -> None:
    data = numbers()()
    next(iter(data))
    with pytest.raises(UsageError, match=what) as caught:
        other().load_state_dict(data.state_dict())
    assert "force=True" in (caught.value.hint or "")
    forced = other()
    forced.load_state_dict(data.state_dict(), force=True)
    assert forced.state_dict()["next"] == 1


def test_the_hint_says_which_batch_fits_other_ranks() -> None:
    data = numbers()()
    other = PositionDataset(Numbers(), rank=1, world_size=4).listed(WHOLE)
    with pytest.raises(UsageError) as caught:
        other.load_state_dict(data.state_dict())
    assert "4 ranks resume exactly with batches of 4" in (caught.value.hint or "")


@pytest.mark.parametrize("state", [{}, {"wdscli": 1}, {"wdscli": 99, "epoch": 0, "next": 0}, {"epoch": 1}])
def test_what_is_no_state_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="state"):
        numbers()().load_state_dict(state)


@pytest.mark.parametrize("state", [None, [1], "state", 5])
def test_what_is_no_dict_is_refused(state: Any) -> None:
    with pytest.raises(UsageError, match="not the state of a wdscli loader"):
        PositionDataset(Numbers()).load_state_dict(state)


def test_numbers_below_zero_are_refused() -> None:
    data = numbers()()
    with pytest.raises(UsageError, match="negative number"):
        data.load_state_dict({**data.state_dict(), "next": -1})


def test_an_iteration_that_is_left_is_begun_again_where_it_began() -> None:
    data = numbers()()
    whole = list(numbers()())
    for number, batch in enumerate(data):
        assert batch == whole[number]
        if number == 2:
            break
    assert data.state_dict()["next"] == 3
    assert list(data) == whole
    assert data.epoch == 1


def test_one_that_began_at_a_state_is_begun_again_at_that_state() -> None:
    whole = list(numbers()())
    data = numbers()()
    data.load_state_dict({**data.state_dict(), "next": 4})
    assert next(iter(data)) == whole[4]
    assert data.state_dict()["next"] == 5
    assert list(data) == whole[4:]


def test_the_state_is_that_of_the_latest_iteration() -> None:
    data = numbers()()
    first, second = iter(data), iter(data)
    next(second)
    for _ in range(3):
        next(first)
    assert data.state_dict()["next"] == 1
    assert list(first) == list(numbers()())[3:]
    assert data.epoch == 0
    first.close()
    second.close()
    assert data.state_dict()["next"] == 1


def test_set_epoch_begins_another_epoch_and_keeps_a_state_that_was_loaded() -> None:
    data = numbers()()
    data.set_epoch(2)
    third = list(data)
    data.set_epoch(2)
    assert list(data) == third
    data.load_state_dict({**numbers()().state_dict(), "epoch": 2, "next": 3})
    data.set_epoch(2)
    assert list(data) == third[3:]
    data.load_state_dict({**numbers()().state_dict(), "epoch": 2, "next": 3})
    data.set_epoch(1)
    data.set_epoch(2)
    assert list(data) == third


def test_a_dataset_with_another_stage_stands_where_the_first_one_stood() -> None:
    data = PositionDataset(Numbers()).listed(WHOLE)
    data.load_state_dict({**data.state_dict(), "next": 5})
    more = data.map(len)
    assert list(more) == [16, 5]
    assert data.state_dict()["next"] == 5


def test_a_state_within_what_a_batch_was_taken_apart_into() -> None:
    def make() -> PositionDataset:
        return PositionDataset(Numbers()).listed(10).unlisted()

    whole = list(make())
    for given in (1, 9, 10, 11, 57, 100):
        data = make()
        source = iter(data)
        for _ in range(given):
            next(source)
        other = make()
        other.load_state_dict(json.loads(json.dumps(data.state_dict())))
        assert list(other) == whole[given:]


def test_without_batches_any_number_of_ranks_goes_on_between_their_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def make(rank: int = 0, world_size: int = 1) -> PositionDataset:
        return PositionDataset(Numbers(), rank=rank, world_size=world_size, tail="uneven")

    whole = list(make())
    for before, given, after, workers in ((4, 6, 2, 3), (1, 24, 8, 0), (2, 5, 1, 2), (3, 8, 4, 0)):
        data = make(0, before)
        source = iter(data)
        for _ in range(given):
            next(source)
        of_ranks = [
            World(monkeypatch, after, workers).of_rank(make, rank, data.state_dict()) for rank in range(after)
        ]
        assert sorted(one for ones in of_ranks for one in ones) == sorted(whole[before * given :])
    data = make()
    next(iter(data))
    with pytest.raises(UsageError, match="saved with batches of"):
        make(0, 2).load_state_dict(data.state_dict())


class Pairs:
    """A generator that holds one thing back."""

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        held = None
        for item in items:
            if held is not None:
                yield held, item
            held = item


def test_behind_a_generator_going_on_is_replaying_in_the_same_world(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(**how: Any) -> PositionDataset:
        return PositionDataset(Numbers(), **how).compose(Pairs())

    whole = list(make())
    data = make()
    source = iter(data)
    for _ in range(30):
        next(source)
    state = json.loads(json.dumps(data.state_dict()))
    other = make()
    other.load_state_dict(state)
    assert list(other) == whole[30:]
    with pytest.raises(UsageError, match=r"\(1, 1\) ranks and workers, but this run has \(1, 2\)"):
        World(monkeypatch, 1, 2).of_rank(make, 0, state)


@pytest.mark.parametrize("how", ["fork", "pickle"])
def test_a_place_that_only_workers_know_is_not_told_wrongly(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    data = numbers()()
    data.set_epoch(1)
    if how == "fork":
        next(iter(torch_data.DataLoader(data, batch_size=None, num_workers=1)))
    else:
        copy = pickle.loads(pickle.dumps(data))
        assert copy.state_dict()["epoch"] == 1
    with pytest.raises(UsageError, match="position unknown") as caught:
        data.state_dict()
    assert "batches=n" in (caught.value.hint or "")
    assert data.state_dict(batches=3)["next"] == 3
    data.set_epoch(2)
    assert (data.state_dict()["epoch"], data.state_dict()["next"]) == (2, 0)
    next(iter(data))
    pickle.dumps(data)
    assert data.state_dict()["next"] == 1


def test_a_forked_process_knows_where_it_is() -> None:
    pytest.importorskip("torch.utils.data")
    data = numbers()()
    for _ in range(2):
        child = os.fork()
        if child == 0:
            try:
                os._exit(data.state_dict()["next"])
            except BaseException:
                os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_batches_that_were_counted_say_where_it_is() -> None:
    data = numbers()()
    data.load_state_dict({**data.state_dict(), "next": 2})
    assert data.state_dict(batches=3)["next"] == 5
    assert (data.state_dict(batches=5)["epoch"], data.state_dict(batches=5)["next"]) == (1, 0)
    with pytest.raises(UsageError, match="the epoch has only 5 batches left"):
        data.state_dict(batches=6)
    with pytest.raises(UsageError, match="several items from one"):
        data.unlisted().state_dict(batches=1)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_batch_that_a_filter_made_smaller_is_not_left_out_for_that(tmp_path: Path, threads: int) -> None:
    shards = write_set(tmp_path)
    whole = wds.WebDataset(shards, threads=threads).map(lambda sample: sample["__key__"])
    odd = whole.select(lambda key: key[-1] in "13579")
    count = len(whole) // 4
    assert len(whole) % 4
    expected = list(odd.listed(4))
    for data in (
        odd.listed(4, partial=False),
        wds.mix([odd.listed(4, partial=False)], per="batch", stop="all"),
    ):
        found = list(data)
        assert found == expected[:count]
        assert {len(batch) for batch in found} & {1, 2, 3}


def test_what_a_filter_leaves_out_is_counted() -> None:
    data = numbers(even=True)()
    given = sum(map(len, data))
    left_out = sum(sum(reasons.values()) for reasons in data.stats()["dropped"].values())
    assert given + left_out == len(everything())


@pytest.mark.parametrize("name", ["epoch", "next", "item", "batch", "mark", "topology"])
@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, float("inf"), float("nan")])
def test_a_state_with_a_number_that_no_position_has(tmp_path: Path, name: str, number: float) -> None:
    """issue 35, 17: a damaged checkpoint is a UsageError, for all kinds of datasets."""
    paths = write_shards(tmp_path, [numbered(12, "a"), numbered(8, "b")])
    plain = lambda: wds.WebDataset(paths)  # noqa: E731
    planned = lambda: plain().batched(4, bucket="cls", buckets=[2])  # noqa: E731
    for make in (
        plain,
        planned,
        lambda: wds.mix([plain(), plain()]),
        lambda: wds.WebLoader(plain(), batch_size=4),
    ):
        data = make()
        next(iter(data))
        state = data.state_dict()
        if name == "mark" and "mark" not in state:
            continue
        state[name] = {"mark": [number, number, "0"], "topology": [number, 1]}.get(name, number)
        try:
            other = make()
            other.load_state_dict(state)
            list(zip(range(3), other))
        except UsageError:
            continue
        assert name in ("batch", "mark")  # one of no effect
