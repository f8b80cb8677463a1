"""Mixes of the classes in one set: exact shares, new samples in each epoch, and the same batches in any world."""

from __future__ import annotations

import json
import random
import warnings
from collections import Counter, defaultdict
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from indexing import index
from loader_cases import World, _blocks, key
from shard_cases import mix as splitmix

import wdscli.loader as wds
from wdscli.errors import DataError, UsageError
from wdscli.loader.by_class import classes_of
from wdscli.loader.order.order import CLASSES
from wdscli.loader.read.catalog import Catalog
from wdscli.shards import ShardWriter

CLASSES_OF_SAMPLES = random.Random(7).choices("aaaaaaaabbbbccd", k=200)
NAMES = sorted({*CLASSES_OF_SAMPLES})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """200 samples of four classes in seven shards. ``cls`` is a text, ``json.number`` a number."""
    folder = tmp_path_factory.mktemp("classes")
    with ShardWriter(f"{folder}/in-%06d.tar", max_count=30) as writer:
        for number, name in enumerate(CLASSES_OF_SAMPLES):
            fields = {"number": NAMES.index(name), "tokens": number % 30 + 1}
            writer.write(
                f"n{number:03d}", {"cls": f" {name}\n".encode(), "json": json.dumps(fields).encode()}
            )
    index([str(folder)], values=["json.tokens"])
    return str(folder)


def number_of(sample: Any) -> int:
    return int(sample["__key__"][1:])


def by_the_book(
    epochs: list[int], quotas: dict[str, int], seed: int = 3, mix_seed: int | None = 0
) -> list[list[int]]:
    """The samples of epochs of these lengths, written apart from the loader."""
    members = {name: [n for n, other in enumerate(CLASSES_OF_SAMPLES) if other == name] for name in NAMES}
    taken: Counter[str] = Counter()
    listed = []
    for length in epochs:
        numbers = []
        for which in islice(_blocks([quotas[name] for name in NAMES], range(4), mix_seed, 0), length):
            name = NAMES[which]
            number, place = divmod(taken[name], len(members[name]))
            of_pass = key(seed, CLASSES, which, number)
            order = sorted(range(len(members[name])), key=lambda i: splitmix(of_pass ^ i))
            numbers.append(members[name][order[place]])
            taken[name] += 1
        listed.append(numbers)
    return listed


@pytest.mark.parametrize("seed", [0, None, 5])
def test_classes_have_equal_shares_and_every_sample_comes_once_in_a_pass(folder: str, seed: Any) -> None:
    data = wds.mix(wds.WebDataset(folder, seed=3), by="cls", seed=seed)
    assert len(data) == 200
    epochs = [[number_of(sample) for sample in data] for _ in range(3)]
    assert epochs == by_the_book([200] * 3, dict.fromkeys(NAMES, 1), mix_seed=seed)
    for epoch in epochs:
        for first in range(0, 200, 4):
            assert {CLASSES_OF_SAMPLES[number] for number in epoch[first : first + 4]} == {*NAMES}
    for name in NAMES:
        line = [number for epoch in epochs for number in epoch if CLASSES_OF_SAMPLES[number] == name]
        count = CLASSES_OF_SAMPLES.count(name)
        for first in range(0, len(line) - count, count):
            assert len({*line[first : first + count]}) == count


def test_weights_by_class(folder: str) -> None:
    weights = {"a": 3, "b": 2.0, "c": "1", "d": 4}
    data = wds.mix(folder, by="cls", weights=weights, shuffle="full")
    epochs = [[number_of(sample) for sample in data] for _ in range(2)]
    assert epochs == by_the_book([200] * 2, {"a": 3, "b": 2, "c": 1, "d": 4}, seed=0)
    assert Counter(CLASSES_OF_SAMPLES[number] for number in epochs[0]) == {"a": 60, "b": 40, "c": 20, "d": 80}
    by_number = wds.mix(folder, by="json.number", weights={0: 3, 1: 2, 2: 1, 3: 4})
    assert [number_of(sample) for sample in by_number] == epochs[0]


@pytest.mark.parametrize("count", [1, 5, 40])
def test_a_number_of_samples_of_each_class(folder: str, count: int) -> None:
    data = wds.mix(wds.WebDataset(folder, seed=3), by="cls", choose=count)
    epochs = [[number_of(sample) for sample in data] for _ in range(3)]
    assert epochs == by_the_book([4 * count] * 3, dict.fromkeys(NAMES, 1))
    for epoch in epochs:
        assert Counter(CLASSES_OF_SAMPLES[number] for number in epoch) == dict.fromkeys(NAMES, count)


def test_the_ends_of_an_epoch(folder: str) -> None:
    counts = Counter(CLASSES_OF_SAMPLES)
    first = Counter(CLASSES_OF_SAMPLES[number_of(s)] for s in wds.mix(folder, by="cls", stop="first"))
    assert min(counts.values()) <= min(first.values()) <= max(first.values()) <= min(counts.values()) + 1
    repeat = Counter(number_of(s) for s in wds.mix(folder, by="cls", stop="repeat"))
    assert set(repeat) == set(range(200))
    assert min(repeat.values()) == 1


def test_only_selected_samples_have_classes(folder: str) -> None:
    data = wds.mix(folder, by="cls", where="cls != 'a' and json.tokens < 20", choose=3)
    numbers = [number_of(sample) for sample in data]
    assert {CLASSES_OF_SAMPLES[number] for number in numbers} == {"b", "c", "d"}
    assert all(number % 30 + 1 < 20 for number in numbers)


def test_the_indexes_are_used_where_they_have_the_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ShardWriter(f"{tmp_path}/in-%06d.tar", max_count=20) as writer:
        for number in range(60):
            writer.write(f"n{number:02d}", {"cls": b"%d" % (number % 11)})
    read = [sample["__key__"] for sample in wds.mix(str(tmp_path), by="cls", choose=4)]
    index([str(tmp_path)], values=["cls"])
    monkeypatch.setattr("wdscli.loader.by_class.MemberReader", None)
    data = wds.mix(str(tmp_path), by="cls", choose=4)
    assert [sample["__key__"] for sample in data] == read
    few = wds.mix(str(tmp_path), by="cls", choose=4, keys=[f"n{number:02d}" for number in range(30)])
    assert {int(sample["__key__"][1:]) for sample in few} <= set(range(30))
    read_indexes, usual = [], Catalog.index

    def noted(catalog: Catalog, shard: int) -> Any:
        read_indexes.append(shard)
        return usual(catalog, shard)

    monkeypatch.setattr(Catalog, "index", noted)
    classes_of(Catalog(str(tmp_path)), "cls")
    assert sorted(read_indexes) == [0, 1, 2]  # each index is read only once


def test_any_world_has_the_same_batches_and_resumes_exactly(
    monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    for case in range(10):
        check_world(monkeypatch, folder, case)


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("case", range(100, 300))
def test_many_worlds(monkeypatch: pytest.MonkeyPatch, folder: str, case: int) -> None:
    check_world(monkeypatch, folder, case)


def check_world(monkeypatch: pytest.MonkeyPatch, folder: str, case: int) -> None:
    draw = random.Random(case)
    how: dict[str, Any] = draw.choice(
        [{}, {"choose": 9}, {"weights": {"a": 1, "b": 2, "c": 3, "d": 4}}, {"stop": "repeat"}]
    )
    kind, epoch = draw.choice(["equal", "packs", "slices", "passes"]), draw.randrange(3)
    first, second = draw.choice([(1, 2), (2, 4), (4, 1), (3, 1), (2, 2)])

    def make(rank: int = 0, world_size: int = 1) -> Any:
        data: Any = wds.WebDataset(folder, seed=case, rank=rank, world_size=world_size, tail="drop")
        data = wds.mix(data, by="cls", **how).map(number_of)
        if kind == "packs":
            return data.packed(60, "json.tokens", window=50, balance=12, collation_fn=list)
        if kind == "slices":
            data = data.slice(1, 36)
        elif kind == "passes":
            data = data.with_epoch(samples=120)
        return data.listed(12 // world_size)

    def of(world: int, state: Any = None) -> list[list[int]]:
        world_of = World(monkeypatch, world, draw.randint(0, 3))
        ranks = [world_of.of_rank(make, rank, state, epoch) for rank in range(world)]
        if kind == "packs":
            return [batch for step in zip(*ranks) for batch in step]
        return [[sample for group in zip(*step) for sample in group] for step in zip(*ranks)]

    alone = make()
    alone.set_epoch(epoch)
    whole = list(alone)
    assert of(first) == whole
    data = make(0, first)
    data.set_epoch(epoch)
    taken = draw.randrange(len(whole) // (12 if kind == "packs" else 1) + 1)
    batches = taken * 12 // first if kind == "packs" else taken
    list(islice(iter(data), batches))
    state = json.loads(json.dumps(data.state_dict()))
    assert len(json.dumps(state)) < 1024
    if data.epoch == epoch and state["epoch"] == epoch:
        assert of(second, state) == whole[batches * (first if kind == "packs" else 1) :]


def test_a_state_of_other_classes_is_an_error(folder: str) -> None:
    state = wds.mix(folder, by="cls").state_dict()
    wds.mix(folder, by="cls").load_state_dict(state)
    for how in ({"choose": 3}, {"weights": {"a": 1, "b": 2, "c": 3, "d": 4}}, {"by": "json.number"}):
        with pytest.raises(UsageError, match="another view"):
            wds.mix(folder, **{"by": "cls", **how}).load_state_dict(state)


def test_keys_are_found_and_workers_get_the_view(folder: str) -> None:
    data = wds.mix(folder, by="cls").listed(10)
    keys = data.keys(0, 3)
    assert [sample["__key__"] for sample in list(data)[3]] == keys
    batch, _ = data.find(keys[0], 0)
    assert keys[0] in data.keys(0, batch)
    pytest.importorskip("torch")
    loader = wds.WebLoader(wds.mix(folder, by="cls").listed(10), num_workers=2)
    assert [[s["__key__"] for s in batch] for batch in loader][3] == keys
    import pickle

    again = pickle.loads(pickle.dumps(wds.mix(folder, by="cls").listed(10)))
    assert [sample["__key__"] for sample in list(again)[3]] == keys


def test_weights_by_the_names_in_the_manifest(tmp_path: Path) -> None:
    with ShardWriter(f"{tmp_path}/in-%06d.tar", max_count=20) as writer:
        for number in range(60):
            writer.write(f"n{number:02d}", {"cls": b"%d" % (number % 2)})
    manifest = next(tmp_path.glob("*manifest.json"))
    described = json.loads(manifest.read_text())
    described["wdscli"]["classes"] = ["cat", "dog"]
    manifest.write_text(json.dumps(described))
    data = wds.mix(str(manifest), by="cls", weights={"cat": 1, "dog": 2})
    assert Counter(sample["cls"] for sample in data) == {b"0": 20, b"1": 40}


def test_a_warning_names_the_command_that_stores_classes(tmp_path: Path) -> None:
    """Classes that are numbers can be stored; texts cannot."""
    with ShardWriter(f"{tmp_path}/a.tar") as writer:
        for number in range(4):
            writer.write(f"k{number}", {"json": b'{"n": %d, "t": "c%d"}' % (number % 2, number % 2)})
    with pytest.warns(UserWarning, match=r"json\.n, .*`wds index --values 'json\.n'` stores"):
        wds.mix(str(tmp_path), by="json.n")
    index([str(tmp_path)], values=["json.n"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for expression in ("json.n", "json.t"):
            assert len(list(wds.mix(str(tmp_path), by=expression))) == 4


def test_samples_without_a_class_are_named(tmp_path: Path) -> None:
    with ShardWriter(f"{tmp_path}/a.tar") as writer:
        writer.write("one", {"cls": b"1", "json": b"{}"})
        writer.write("two", {"json": b"{}"})
    with pytest.raises(DataError, match="the sample has no cls") as caught:
        wds.mix(str(tmp_path), by="cls")
    assert caught.value.member == "two"
    assert len(wds.mix(str(tmp_path), by="cls", where="'cls' in fields")) == 1


def test_what_cannot_be_balanced(folder: str, tmp_path: Path) -> None:
    data: Any = wds.WebDataset(folder)
    for wrong in (data.listed(3), data.slice(5), data.repeat(2), {"a": data}, 5):
        with pytest.raises(UsageError, match="needs a set of shards"):
            wds.mix(wrong, by="cls")
    data = wds.WebDataset(folder)
    for how in (
        {"repeat": {"a": 2}},
        {"label": "set"},
        {"per": "batch"},
        {"tail": "drop"},
        {"shuffle": "full"},
    ):
        with pytest.raises(UsageError, match=r"mix\(by=, \w+=\) cannot be combined"):
            wds.mix(data, by="cls", **how)
    for choose in (0, "9", {"a": 3}):
        with pytest.raises(UsageError, match="choose"):
            wds.mix(data, by="cls", choose=choose)
    with pytest.raises(UsageError, match="takes neither stop= nor weights="):
        wds.mix(data, by="cls", choose=3, stop="first")
    for how in ({"stop": "all"}, {"by": 5}):
        with pytest.raises(UsageError, match=r"mix\(by="):
            wds.mix(data, **{"by": "cls", **how})
    with pytest.raises(UsageError, match="classes without a weight: b, c, d"):
        wds.mix(data, by="cls", weights={"a": 1})
    with pytest.raises(UsageError, match="classes that the set does not have: e"):
        wds.mix(data, by="cls", weights={**dict.fromkeys(NAMES, 1), "e": 1})
    with pytest.raises(UsageError, match="weights="):
        wds.mix(data, by="cls", weights=[(0, dict.fromkeys(NAMES, 1))])
    with pytest.raises(UsageError, match="choose=3 needs by="):
        wds.mix({"a": data}, choose=3)
    with pytest.raises(UsageError):
        wds.mix(data, by="cls ==")
    with pytest.raises(UsageError, match="no samples"):
        wds.mix(folder, by="cls", where="cls == 'z'")


def test_many_classes() -> None:
    from wdscli.arrays import numpy
    from wdscli.loader.by_class import ByClass
    from wdscli.loader.order.schedule import Pattern

    count = 150_000
    numbers = numpy.arange(2 * count) % count
    view = ByClass(numbers, Pattern((1,) * count, range(count), 0, 0), 2 * count, [], 1)
    samples = view.placed(2 * count, 0)(numpy.arange(2 * count - 1000, 2 * count))
    assert len({*numbers[samples].tolist()}) == 1000
    found = defaultdict(int)
    for sample in samples.tolist():
        found[sample] += 1
    assert set(found.values()) == {1}


def test_shards_of_a_store_are_classified_at_the_same_time(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads read the remote shards, and an expression stores its current sample."""
    import time

    import fsspec

    from wdscli.loader.by_class import classes_of
    from wdscli.selection.where import _Evaluator

    fsspec.filesystem("memory").put(folder, "/by-class", recursive=True)
    decoded = _Evaluator.decoded

    def decoded_late(scope: Any, *args: Any) -> Any:
        time.sleep(0.0005)  # another thread runs
        return decoded(scope, *args)

    monkeypatch.setattr(_Evaluator, "decoded", decoded_late)
    data: Any = wds.WebDataset("memory://by-class/")
    classes = classes_of(data.source.catalog, "json.number")
    assert [NAMES[int(classes.names[number])] for number in classes.numbers.tolist()] == CLASSES_OF_SAMPLES
