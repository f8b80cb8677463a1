"""Slices and lengths of epochs, in any order: of samples, of batches and of planned batches."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from indexing import index
from loader_cases import RAGGED, Numbers, World, everything, make_set, value_of

import wdscli.loader as wds
from wdscli.errors import UsageError
from wdscli.loader.dataset import PositionDataset

LONGEST = "40"


def numbers(seed: int = 5, **how: Any) -> Any:
    return PositionDataset(Numbers(seed=seed), **how)


def endless(seed: int = 5) -> Any:
    """Epoch after epoch of the samples."""
    return (number for epoch in range(10**6) for number in _epoch(seed, epoch))


def _epoch(seed: int, epoch: int) -> list[int]:
    data = numbers(seed)
    data.set_epoch(epoch)
    return list(data)


def by(size: int, items: Any) -> list[list[int]]:
    items = list(items)
    return [items[first : first + size] for first in range(0, len(items), size)]


def first_epochs(data: Any, count: int) -> list[list[Any]]:
    """The first epochs of a dataset that might never end."""
    return [list(islice(iter(data), 10_000)) for _ in range(count)]


class TestEndless:
    """A slice ends an epoch that has no end."""

    @pytest.mark.parametrize("where", ["repeat", "resampled"])
    def test_samples(self, where: str, tmp_path: Path) -> None:
        address = make_set(tmp_path, count=30)
        data = wds.WebDataset(address, resampled=where == "resampled").map(lambda sample: sample["__key__"])
        data = (data.repeat() if where == "repeat" else data).slice(70)
        assert len(data) == 70
        for keys in first_epochs(data, 2):
            assert len(keys) == 70
            assert len(set(keys[:30])) == len(set(keys[30:60])) == 30

    def test_the_epochs_of_a_slice_are_those_of_the_source(self) -> None:
        data = numbers().repeat().slice(150)
        expected = [
            list(islice((n for turn in range(9) for n in _epoch(5, epoch + turn)), 150)) for epoch in (0, 1)
        ]
        assert first_epochs(data, 2) == expected

    def test_batches(self) -> None:
        data = numbers().repeat().listed(8).slice(2, 30, 3)
        assert len(data) == 10
        assert first_epochs(data, 1)[0] == by(8, islice(endless(), 240))[2:30:3]

    def test_a_slice_of_a_slice_and_later_stages(self) -> None:
        data = numbers().repeat().slice(150).slice(10, None).shuffle(10).listed(7).slice(3)
        batches = first_epochs(data, 1)[0]
        assert len(data) == 3
        assert list(map(len, batches)) == [7, 7, 7]
        line = list(islice(endless(), 150))[10:]
        assert {number for batch in batches for number in batch} <= set(line)
        again = numbers().repeat().slice(150).shuffle(10)
        assert sorted(again) == sorted(islice(endless(), 150))

    def test_of_lengths_of_epochs(self) -> None:
        data = numbers().with_epoch(30).slice(5, 20).listed(6)
        line = list(islice(endless(), 300))
        assert first_epochs(data, 3) == [by(6, line[first + 5 : first + 20]) for first in (0, 30, 60)]
        data = numbers().listed(4).with_epoch(batches=10).slice(3)
        assert len(data) == 3
        assert first_epochs(data, 2) == [by(4, line[:12]), by(4, line[40:52])]

    def test_lengths_of_epochs_of_slices(self) -> None:
        data = numbers().repeat().slice(40).with_epoch(30)
        passes = [list(islice(iter(numbers()._with(_state=_at(epoch)).repeat()), 40)) for epoch in range(3)]
        line = [number for one in passes for number in one]
        assert first_epochs(data, 3) == [line[:30], line[30:60], line[60:90]]
        assert first_epochs(numbers().repeat().slice(40).repeat(2), 1) == [line[:80]]

    def test_a_number_of_epochs_joins_slices_as_in_webdataset(self) -> None:
        for data in (numbers().repeat(2).slice(40), numbers().slice(40).repeat(2)):
            assert len(data) == 80
            assert first_epochs(data, 1)[0] == _epoch(5, 0)[:40] + _epoch(5, 1)[:40]
        assert len(numbers().repeat(2).listed(10).slice(3)) == 6
        joined = wds.DataPipeline(lambda: iter(range(7))).repeat(2).slice(3)
        assert list(joined) == [0, 1, 2, 0, 1, 2]

    def test_after_select_and_generators_and_streams(self, tmp_path: Path) -> None:
        def twice(samples: Any) -> Any:
            for sample in samples:
                yield from (sample, sample)

        address = make_set(tmp_path, count=30)
        for data in (
            wds.WebDataset(address, resampled=True).select(lambda sample: True),
            wds.WebDataset(address).compose(twice).repeat(),
            wds.WebDataset(f"pipe:cat {tmp_path}/in-000000.tar", repeat=True),
            wds.DataPipeline(lambda: iter(range(7))).repeat(),
            wds.DataPipeline(lambda: iter(range(7)), wds.batched(3, collation_fn=list)).repeat(),
            wds.DataPipeline(lambda: iter(range(7)), wds.select(lambda n: n % 2)).with_epoch(50),
            wds.DataPipeline(wds.ResampledShards(address), wds.tarfile_to_samples()),
            wds.mix([f"pipe:cat {tmp_path}/in-000000.tar"] * 2).repeat(),
        ):
            assert list(map(len, first_epochs(data.slice(40), 2))) == [40, 40]
            assert list(map(len, first_epochs(data.slice(40).map(lambda item: item), 1))) == [40]

    def test_pipelines_of_webdataset(self, tmp_path: Path) -> None:
        make_set(tmp_path, count=30)
        address = f"{tmp_path}/in-{{000000..000002}}.tar"
        for data in (
            wds.DataPipeline(wds.ResampledShards(address), wds.tarfile_to_samples(), wds.slice(40)),
            wds.DataPipeline(
                wds.ResampledShards(address), wds.shuffle(3), wds.tarfile_to_samples(), wds.slice(40)
            ),
        ):
            assert list(map(len, first_epochs(data, 2))) == [40, 40]
        assert (
            len(wds.DataPipeline(wds.ResampledShards(address), wds.tarfile_to_samples(), wds.slice(40))) == 40
        )

    @pytest.mark.exhaustive
    def test_loaders(self, tmp_path: Path) -> None:
        pytest.importorskip("torch")
        address = make_set(tmp_path, count=30)

        def data() -> Any:
            return wds.WebDataset(address, resampled=True).map(lambda sample: sample["__key__"])

        for loader in (
            wds.WebLoader(data()).slice(10),
            wds.WebLoader(data().listed(4), num_workers=2).slice(10),
            wds.WebLoader(data().listed(4)).with_epoch(30).slice(10),
            wds.WebLoader(data().listed(4)).repeat().slice(10),
            wds.WebLoader(data().listed(4)).unlisted().with_epoch(30).slice(10),
            wds.WebLoader(data().listed(4)).unlisted().with_epoch(30).slice(20, 40),
        ):
            assert list(map(len, first_epochs(loader, 2))) == [10, 10]
            assert len(loader) == 10
        loader = wds.WebLoader(data().listed(4)).unlisted().batched(3, collation_fn=list).slice(10)
        assert list(map(len, first_epochs(loader, 2))) == [10, 10]

    def test_slices_from_an_end_that_is_not_there(self) -> None:
        for data in (numbers().repeat().slice(-3, None), numbers().repeat().listed(4).slice(0, -1)):
            with pytest.raises(UsageError, match="no end"):
                list(islice(data, 3))
        assert list(islice(numbers().repeat().slice(3, None), 5)) == list(islice(endless(), 3, 8))

    def test_an_iteration_of_a_subclass_ends(self, tmp_path: Path) -> None:
        class Own(wds.WebDataset):
            def iterator(self) -> Any:
                yield from super().iterator()

        data = Own(make_set(tmp_path, count=30), resampled=True).slice(40)
        assert list(map(len, first_epochs(data, 2))) == [40, 40]

    def test_a_state_belongs_to_the_order_of_cuts(self) -> None:
        data = numbers().repeat().slice(60)
        items = iter(data)
        taken = list(islice(items, 25))
        state = json.loads(json.dumps(data.state_dict()))
        again = numbers().repeat().slice(60)
        again.load_state_dict(state)
        assert taken + list(again) == list(islice(endless(), 60))
        with pytest.raises(UsageError):
            numbers().slice(60).repeat().load_state_dict(state)


def _at(epoch: int) -> Any:
    data = numbers()
    data.set_epoch(epoch)
    return data._state


def planned(kind: str, window: int, **how: Any) -> Any:
    data = numbers(**how)
    if kind == "budget":
        return data.batched(budget=100, length=LONGEST, window=window, collation_fn=None)
    if kind == "bucket":
        return data.batched(6, bucket=LONGEST, buckets=[15, 30], window=window, collation_fn=None)
    return data.packed(100, LONGEST, window=window, collation_fn=list)


def check_planned(monkeypatch: pytest.MonkeyPatch, case: int) -> None:
    """Steps of planned batches are those of the list that one rank has, in any world and from any state."""
    draw = random.Random(case)
    kind, window = draw.choice(["budget", "bucket", "pack"]), draw.choice([16, 40, 1000])
    whole = draw.choice([4, 6, 12])  # ranks times steps of an epoch
    worlds = [world for world in range(1, 13) if whole % world == 0]
    length = draw.choice(["list", "epoch", "passes"])
    start, step = draw.choice([0, 0, 1, 2]), draw.choice([1, 1, 2, 3])
    epoch = draw.randrange(4)
    sliced = length == "list" or draw.random() < 0.5

    def make(**share: Any) -> Any:
        steps = whole // share["world_size"]
        data = planned(kind, window, **share)
        if length == "epoch":
            data = data.with_epoch(batches=steps)
        elif length == "passes":
            data = data.repeat(2, steps)
        if sliced and step > 1:
            return data.slice(start, max(start, steps - 1), step)
        return data.slice(start * steps, start * steps + steps) if sliced else data

    def listed(world: int) -> list[Any]:
        """The batches of the epoch, in the order of the list."""
        alone = planned(kind, window, rank=0, world_size=1)
        if length == "epoch":
            batches = list(islice(alone.repeat(), epoch * whole, (epoch + 1) * whole))
        else:
            alone.set_epoch(epoch)
            batches = list(alone if length == "list" else islice(alone.repeat(2), whole))
        if not sliced:
            return batches
        steps = whole // world
        if step > 1:
            chosen = range(start, max(start, steps - 1), step)
            return [one for number in chosen for one in batches[number * world : (number + 1) * world]]
        return batches[start * whole : (start + 1) * whole]

    # A number for repeat() counts the batches of each worker.
    most = 1 if length == "passes" else 3
    world, workers = draw.choice(worlds), draw.randint(0, most)
    expected = listed(world)
    line = (
        expected + [expected[at % len(expected)] for at in range(-len(expected) % world)] if expected else []
    )
    ranks = [World(monkeypatch, world, workers).of_rank(make, rank, epoch=epoch) for rank in range(world)]
    assert ranks == [line[rank::world] for rank in range(world)]
    first = make(rank=0, world_size=world)
    first.set_epoch(epoch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert len(first) == len(ranks[0])
    if not ranks[0]:
        return
    taken = draw.randrange(len(ranks[0]))
    number = int(draw.choice(ranks[0][taken])) if ranks[0][taken] else 0
    assert str(number) in [key for at in range(len(ranks[0])) for key in first.keys(epoch, at)]
    batch, rank = first.find(str(number), epoch)
    assert number in ranks[rank][batch]
    items = iter(first)
    assert list(islice(items, taken)) == ranks[0][:taken]
    state = json.loads(json.dumps(first.state_dict()))
    assert len(json.dumps(state)) < 1024
    if step == 1 or not sliced:
        world = draw.choice(worlds)
    again = World(monkeypatch, world, draw.randint(0, most))
    left = expected[taken * first._share().world :] if step == 1 or not sliced else line[taken * world :]
    if len(line) == len(expected) and taken:
        rest = [again.of_rank(make, rank, state, epoch) for rank in range(world)]
        left += [expected[at % len(expected)] for at in range(-len(left) % world)]
        assert rest == [left[rank::world] for rank in range(world)]


@pytest.mark.parametrize("case", range(60))
def test_steps_of_planned_batches(monkeypatch: pytest.MonkeyPatch, case: int) -> None:
    check_planned(monkeypatch, case)


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("case", range(100, 900))
def test_many_steps_of_planned_batches(monkeypatch: pytest.MonkeyPatch, case: int) -> None:
    check_planned(monkeypatch, case)


def test_epochs_of_planned_batches_continue() -> None:
    data = planned("pack", 40).with_epoch(batches=7)
    packs = [pack for _ in range(9) for pack in data]
    assert packs == list(islice(planned("pack", 40).repeat(), 63))
    line = [number for pack in packs for number in pack]
    assert {line.count(number) for number in everything(RAGGED)} <= {2, 3, 4}
    assert len(data) == 7
    # The end of an epoch is a place in the list too.
    state = json.loads(json.dumps(data.state_dict()))
    again = planned("pack", 40).with_epoch(batches=7)
    again.load_state_dict(state)
    assert again.epoch == 9
    assert list(again) == list(data)


@pytest.mark.exhaustive
def test_loaders_count_planned_batches(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    make_set(tmp_path, count=120)
    index([str(tmp_path)], values=["size(cls)"]) if False else None

    def loader(workers: int, make: Callable[[Any], Any]) -> Any:
        data = wds.WebDataset(str(tmp_path), values=str(table)).map(lambda sample: sample["__key__"])
        return make(wds.WebLoader(data.packed(60, "n", collation_fn=list, window=50), num_workers=workers))

    table = tmp_path / "n.csv"
    rows = (f"n{number:04d},{value_of(number, '30')}\n" for number in range(120))
    table.write_text("key,n\n" + "".join(rows))
    for make in (lambda made: made.with_epoch(5), lambda made: made.slice(5)):
        found = [first_epochs(loader(workers, make), 3) for workers in (0, 2)]
        assert found[0] == found[1]
        assert list(map(len, found[0])) == [5, 5, 5]
        assert len(loader(0, make)) == 5


def test_len_says_where_epochs_may_differ() -> None:
    def said(data: Any) -> bool:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert len(data) > 0
            len(data)
        assert len(caught) <= 1
        return bool(caught)

    assert said(planned("pack", 40))
    assert not said(planned("pack", 101))
    lengths = {
        len(data) for data in [planned("pack", 101)] for epoch in range(9) if not data.set_epoch(epoch)
    }
    assert len(lengths) == 1
    assert not said(planned("pack", 40).with_epoch(batches=5))
    assert not said(planned("pack", 40).slice(3))
    assert said(planned("pack", 1000).with_epoch(samples=50))
    assert said(numbers().slice(50).packed(100, LONGEST, collation_fn=list))
    assert said(wds.mix([numbers(1), numbers(2).slice(10)]).packed(100, LONGEST, collation_fn=list))
    assert not said(wds.mix([numbers(1), numbers(2)], stop="all").packed(100, LONGEST, collation_fn=list))
    assert not said(numbers().listed(4))
