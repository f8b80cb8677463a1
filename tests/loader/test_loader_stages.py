"""Every stage gives what webdataset's gives on the same shards; what differs on purpose is tested to differ; and a
state is exact through all of them."""

from __future__ import annotations

import io
import itertools
import json
import pickle
import random
import tarfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

import wdscli.loader as wds
from wdscli.errors import DataError, InputError, UsageError
from wdscli.loader.read.failures import SkipCounts

theirs = pytest.importorskip("webdataset")

SHARDS, EACH = 5, 11


def write_tar(path: Path, members: list[tuple[str, bytes]]) -> None:
    with tarfile.open(path, "w") as archive:
        for name, payload in members:
            info = tarfile.TarInfo(name)
            info.size = len(payload)
            archive.addfile(info, io.BytesIO(payload))


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Shards of 11 samples: cls, json, txt, and jpg or png."""
    folder = tmp_path_factory.mktemp("set")
    for shard in range(SHARDS):
        members: list[tuple[str, bytes]] = [("__meta__", b"{}")]
        for sample in range(EACH):
            number = shard * EACH + sample
            key = f"dir/n{number:03d}"
            members += [
                (f"{key}.cls", b"%d" % number),
                (f"{key}.json", json.dumps({"n": number}).encode()),
                (f"{key}.{'jpg' if number % 2 else 'png'}", b"picture %d" % number),
                (f"{key}.TXT", "é".encode()),
            ]
        write_tar(folder / f"s-{shard}.tar", members)
    return [str(folder / f"s-{shard}.tar") for shard in range(SHARDS)]


def plain(item: Any) -> Any:
    """Something that compares: arrays as lists, and no __local_path__, which only webdataset has."""
    if isinstance(item, dict):
        return {name: plain(value) for name, value in item.items() if name != "__local_path__"}
    if isinstance(item, (list, tuple)):
        return [plain(value) for value in item]
    return item.tolist() if isinstance(item, numpy.ndarray) else item


def ours(urls: list[str], **more: Any) -> wds.WebDataset:
    return wds.WebDataset(urls, **more)


def oracle(urls: list[str], **more: Any) -> Any:
    return theirs.WebDataset(urls, **{"shardshuffle": False, **more})


def number_of(sample: Any) -> int:
    return int(sample["cls"])


def odd(sample: Any) -> bool:
    return number_of(sample) % 2 == 1


def doubled(value: Any) -> Any:
    return value * 2


def fails_at_7(sample: Any) -> Any:
    if number_of(sample) == 7:
        raise ValueError("seven")
    return sample


STAGES: dict[str, Callable[[Any], Any]] = {
    "raw": lambda data: data,
    "map": lambda data: data.map(lambda sample: {"n": number_of(sample)}),
    "map to None": lambda data: data.map(lambda sample: sample if odd(sample) else None),
    "map with a handler": lambda data: data.map(fails_at_7, handler=wds.ignore_and_continue),
    "map_dict": lambda data: data.map_dict(cls=int, json=json.loads),
    "map_tuple": lambda data: data.to_tuple("cls", "json", "txt").map_tuple(int, None),
    "to_tuple": lambda data: data.to_tuple("cls", "jpg;png"),
    "to_tuple of one string": lambda data: data.to_tuple("jpg;png cls"),
    "to_tuple of what is missing": lambda data: data.to_tuple("cls", "jpg", missing_is_error=False),
    "to_tuple with a handler": lambda data: data.to_tuple("cls", "jpg", handler=wds.ignore_and_continue),
    "rename": lambda data: data.rename(image="jpg;png", label="cls"),
    "rename to an old name": lambda data: data.rename(json="cls"),
    "rename, keep nothing": lambda data: data.rename(keep=False, image="jpg;png"),
    "rename of a list": lambda data: data.rename(image=["png", "jpg"]),
    "rename with a handler": lambda data: data.rename(image="jpg", handler=wds.ignore_and_continue),
    "rename_keys": lambda data: data.rename_keys(("image", "*g"), label="cls"),
    "rename_keys, keep": lambda data: data.rename_keys(image="[jp]*g", keep_unselected=True),
    "rename_keys, no match": lambda data: data.rename_keys(image="*.gif", must_match=False),
    "rename_keys, the last that fits": lambda data: data.rename_keys(
        ("a", "*"), ("b", "[cj]*"), must_match=False, duplicate_is_error=False
    ),
    "extract_keys": lambda data: data.extract_keys("*.jpg;*.png", "cls"),
    "extract_keys, missing": lambda data: data.extract_keys("*.jpg", "*.cls", ignore_missing=True),
    "extract_keys, several": lambda data: data.extract_keys("*s*", duplicate_is_error=False),
    "select": lambda data: data.select(odd),
    "xdecode": lambda data: data.xdecode(
        ("*.jpg", lambda stream: stream.read().upper()), must_decode=False, cls=lambda stream: stream.read()
    ),
    "slice": lambda data: data.slice(17),
    "slice from": lambda data: data.slice(5, 40, 7),
    "slice to the end": lambda data: data.slice(50, None),
    "slice behind select": lambda data: data.select(odd).slice(1, 9),
    "batched": lambda data: data.map_dict(cls=int).to_tuple("cls", "txt").batched(8),
    "batched dicts": lambda data: data.map(lambda sample: {"n": number_of(sample)}).batched(8),
    "batched, whole": lambda data: data.to_tuple("cls").batched(8, partial=False),
    "batched into lists": lambda data: data.to_tuple("cls").batched(8, collation_fn=None),
    "listed": lambda data: data.listed(8),
    "unlisted": lambda data: data.listed(8).unlisted(),
    "unbatched": lambda data: data.map_dict(cls=int).to_tuple("cls", "txt").batched(8).unbatched(),
    "unbatched dicts": lambda data: data.map_dict(cls=int).rename(keep=False, n="cls").batched(8).unbatched(),
    "rebatched": lambda data: data.to_tuple("cls").batched(8).unbatched().batched(5),
    "slice of batches": lambda data: data.to_tuple("cls").batched(8).slice(1, 5),
    "map of batches": lambda data: data.listed(8).map(len),
    "repeat": lambda data: data.repeat(2),
    "repeat, cut": lambda data: data.repeat(2, 60),
    "repeat without end": lambda data: data.repeat().compose(lambda items: itertools.islice(items, 130)),
    "with_epoch": lambda data: data.with_epoch(70),
    "compose": lambda data: data.compose(lambda items: (sample["__key__"] for sample in items)),
    "compose two": lambda data: data.compose(
        lambda items: map(number_of, items), lambda items: filter(None, items)
    ),
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_gives_what_webdatasets_gives(urls: list[str], stage: str) -> None:
    if stage.startswith("repeat without end"):
        expected = list(itertools.islice(oracle(urls).repeat(), 130))
        assert plain(list(STAGES[stage](ours(urls)))) == plain(expected)
        return
    if "compose" in stage:
        expected = list(STAGES[stage](oracle(urls)))
    else:
        expected = [plain(item) for item in STAGES[stage](oracle(urls))]
    found = [plain(item) for item in STAGES[stage](ours(urls))]
    assert found == plain(expected)
    assert found


@pytest.mark.parametrize(
    ("stage", "error"),
    [
        (lambda data: data.to_tuple("cls", "jpg"), ValueError),
        (lambda data: data.rename(image="gif"), ValueError),
        (lambda data: data.extract_keys("*.gif"), ValueError),
        (lambda data: data.extract_keys("*s*"), ValueError),
        (lambda data: data.rename_keys(image="*.gif"), ValueError),
        (lambda data: data.rename_keys(("a", "cls"), ("a", "json")), ValueError),
        (lambda data: data.map_dict(gif=int), KeyError),
        (lambda data: data.xdecode(), ValueError),
        (lambda data: data.map(fails_at_7), ValueError),
        (lambda data: data.to_tuple("cls").map_tuple(lambda value: value.gif), AttributeError),
    ],
)
def test_what_is_an_error_there_is_one_here(urls: list[str], stage: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        list(stage(oracle(urls)))
    with pytest.raises(error):
        list(stage(ours(urls)))


def test_a_field_that_is_not_there_is_named_with_sample_and_shard(urls: list[str]) -> None:
    with pytest.raises(DataError) as caught:
        list(ours(urls).to_tuple("cls", "gif;webp"))
    assert str(caught.value) == (
        f'no field "gif;webp" in sample "dir/n000", which has cls, json, png, txt in {urls[0]}'
    )


def test_fields_are_in_lower_case_and_none_is_lost(tmp_path: Path) -> None:
    members = [
        ("a.JPG", b"1"),
        ("b.jpg", b"2"),
        ("c.Seg.PNG", b"3"),
        ("d.jpg", b"4"),
        ("d.JPG", b"5"),
        ("__x__", b""),
    ]
    write_tar(tmp_path / "s.tar", members)
    found = [
        {name: value for name, value in sample.items() if not name.startswith("__")}
        for sample in wds.WebDataset(str(tmp_path / "s.tar"))
    ]
    # Of the last, webdataset says that a file name comes twice.
    assert found == [{"jpg": b"1"}, {"jpg": b"2"}, {"seg.png": b"3"}, {"jpg": b"4", "JPG": b"5"}]
    only = wds.WebDataset(str(tmp_path / "s.tar"), fields=["JPG"]).to_tuple("jpg", missing_is_error=False)
    assert list(only) == [(b"1",), (b"2",), (None,), (b"4",)]


@pytest.mark.parametrize("field", ["self", "f", "method", "data", "handlers"])
def test_a_field_may_have_any_name(urls: list[str], field: str) -> None:
    named: dict[str, Any] = {field: "TXT;txt"}
    made = ours(urls).rename(**named).map_dict(**{field: bytes.decode})  # type: ignore[arg-type]
    assert next(iter(made))[field] == "é"
    staged = ours(urls).compose(wds.rename(**named), wds.map_dict(**{field: bytes.decode}))  # type: ignore[arg-type]
    assert list(staged) == list(made)
    assert next(wds.rename(**named)([{"__key__": "a", "txt": 1}])) == {"__key__": "a", field: 1}


def test_select_files_and_rename_files(urls: list[str]) -> None:
    how: dict[str, Any] = {
        "select_files": lambda name: not name.endswith((".json", "5.cls", "5.TXT", "5.jpg")),
        "rename_files": lambda name: name.replace("dir/", "folder.d/x"),
    }
    data = ours(urls, **how)
    assert plain(list(data)) == plain(list(oracle(urls, **how)))
    assert data.stats()["dropped"][urls[0]] == {"select_files": 1}


def test_rename_files_can_take_a_sample_apart(urls: list[str]) -> None:
    how: dict[str, Any] = {"rename_files": lambda name: name.replace(".cls", "x.cls")}
    assert plain(list(ours(urls, **how))) == plain(list(oracle(urls, **how)))


def test_associate_adds_fields(urls: list[str]) -> None:
    extra = {"dir/n003": {"more": 3}}
    found = [sample.get("more") for sample in ours(urls).associate(extra)]
    assert found[:5] == [None, None, None, 3, None]
    assert next(iter(ours(urls).associate(lambda key: {"k": key})))["k"] == "dir/n000"


def test_info_shows_samples(urls: list[str]) -> None:
    stream = io.StringIO()
    list(ours(urls).info(n=2, every=50, width=4, stream=stream, name="here"))
    assert stream.getvalue().count("--- here") == 3
    assert "__key__ 'dir" in stream.getvalue()
    stream = io.StringIO()
    list(ours(urls).info("{__key__}", n=1, stream=stream))
    assert stream.getvalue() == "dir/n000\n"


def test_log_keys_appends_a_line_for_each_sample(urls: list[str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    list(ours(urls).log_keys(str(log)).slice(2))
    assert log.read_text() == "before\n0\t0\t0\tdir/n000\n1\t0\t0\tdir/n001\n"
    assert len(list(ours(urls).log_keys())) == SHARDS * EACH


def test_mcached_keeps_what_was_made_of_a_sample(urls: list[str]) -> None:
    calls: Counter[str] = Counter()

    def counted(sample: Any) -> Any:
        calls[sample["__key__"]] += 1
        return {"n": number_of(sample)}

    def spoils(sample: Any) -> Any:
        sample["n"] += 1000
        return sample

    data = ours(urls, shuffle="window").map(counted).mcached().map(spoils)
    first, second = ([sample["n"] for sample in data] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(1000, 1000 + SHARDS * EACH))
    assert first != second, "the second epoch has its own order"
    assert set(calls.values()) == {1}
    remembers = ours(urls).mcached()
    before = len(pickle.dumps(remembers))
    list(remembers)
    assert len(pickle.dumps(remembers)) < before + 500, "what is kept stays here"
    doubling = ours(urls).map_dict(cls=int).mcached().map_dict(cls=doubled)
    assert list(doubling) == list(doubling), "what is kept is not changed"
    with pytest.raises(UsageError):
        ours(urls).batched(4).mcached()


def numbers(data: Any) -> list[Any]:
    return [number_of(sample) for sample in data]


def test_shuffle_turns_the_window_order_on(urls: list[str]) -> None:
    plainly, shuffled = ours(urls), ours(urls).shuffle(1000)
    assert shuffled.state_dict()["source"] == ours(urls, shuffle="window").state_dict()["source"]
    first, second = numbers(shuffled), numbers(shuffled)
    assert sorted(first) == sorted(second) == numbers(plainly)
    assert len({tuple(first), tuple(second), tuple(numbers(plainly))}) == 3
    assert numbers(ours(urls).shuffle(0)) == numbers(plainly)
    assert numbers(ours(urls, shuffle="full").shuffle(10)) == numbers(ours(urls, shuffle="full"))
    assert numbers(ours(urls).shuffle(10, seed=5)) == numbers(ours(urls, shuffle="window", seed=5)) != first
    with pytest.raises(UsageError, match="rng"):
        ours(urls).shuffle(10, rng=random.Random(1)).state_dict()


def test_shuffle_of_a_slice_keeps_to_the_slice(urls: list[str]) -> None:
    found = numbers(ours(urls).slice(10, 30).shuffle(5))
    assert sorted(found) == list(range(10, 30)) != found


def test_shuffle_behind_a_generator_has_a_buffer(urls: list[str]) -> None:
    data = ours(urls).compose(lambda items: map(number_of, items)).shuffle(10)
    found, following = list(data), list(data)
    assert sorted(following) == sorted(found)
    assert following != found, "each epoch has its own"
    assert sorted(found) == list(range(SHARDS * EACH)) != found
    assert max(place - number for place, number in enumerate(found)) > 0
    assert min(place - number for place, number in enumerate(found)) >= -10


def test_rsample_takes_an_exact_part_that_changes_with_the_epoch(urls: list[str]) -> None:
    data = ours(urls).rsample(0.4)
    seen: Counter[int] = Counter()
    for _ in range(200):
        epoch = numbers(data)
        assert len(epoch) == len(data) == round(0.4 * SHARDS * EACH)
        assert epoch == sorted(set(epoch)), "in order, none twice"
        seen.update(epoch)
    assert len(seen) == SHARDS * EACH
    # 200 throws of 0.4 are 80, give or take 7; all within five times that.
    assert 45 < min(seen.values()) <= max(seen.values()) < 115
    assert numbers(ours(urls).rsample(1.0)) == numbers(ours(urls))
    assert numbers(ours(urls, empty_check=False).rsample(0.0)) == []
    with pytest.raises(UsageError):
        ours(urls).rsample(1.5)


def test_rsample_behind_a_generator(urls: list[str]) -> None:
    data = ours(urls).compose(lambda items: map(number_of, items)).rsample(0.5)
    found = list(data)
    assert found != list(data)
    assert 10 < len(found) < 45
    assert found == sorted(set(found))


def test_with_epoch_goes_on_where_the_last_epoch_was_cut(urls: list[str]) -> None:
    total = SHARDS * EACH
    data = ours(urls, shuffle="window").with_epoch(20)
    whole = ours(urls, shuffle="window")
    expected = [number for _ in range(4) for number in numbers(whole)]
    assert [number for _ in range(11) for number in numbers(data)] == expected[: 11 * 20]
    assert len(data) == 20
    batches = ours(urls).listed(8).with_epoch(nbatches=3)
    assert [len(list(batches)), len(batches)] == [3, 3]
    assert [len(batch) for _ in range(5) for batch in batches] == [8] * 15, "no short batch within"
    assert numbers(itertools.islice(ours(urls).with_epoch(), total + 3))[-3:] == [0, 1, 2]


def test_with_length_says_a_length_and_changes_nothing(urls: list[str]) -> None:
    data = ours(urls)
    assert len(data) == SHARDS * EACH
    assert data.with_length(7) is data
    assert (len(data), len(list(data))) == (7, SHARDS * EACH)


def test_repeat_counts_epochs_on(urls: list[str]) -> None:
    whole = ours(urls, shuffle="window")
    expected = [numbers(whole) for _ in range(6)]
    data = ours(urls, shuffle="window").repeat(2)
    assert len(data) == 2 * SHARDS * EACH
    for epoch in range(3):
        assert numbers(data) == expected[2 * epoch] + expected[2 * epoch + 1]
    with pytest.raises(TypeError):
        len(ours(urls).repeat())


def test_resampled_has_no_end_and_repeats_nothing_early(urls: list[str]) -> None:
    for data in (
        ours(urls, resampled=True),
        ours(urls, mode="resampled"),
        ours(urls, repeat=True, shardshuffle=3),
    ):
        found = numbers(itertools.islice(data, 3 * SHARDS * EACH))
        for epoch in range(3):
            assert sorted(found[epoch * SHARDS * EACH :][: SHARDS * EACH]) == list(range(SHARDS * EACH))
        assert found[: SHARDS * EACH] != sorted(found[: SHARDS * EACH])
    data = ours(urls, resampled=True).listed(4).with_epoch(3)
    assert [len(batch) for batch in data] == [4, 4, 4]


def test_a_slice_of_batches_is_global(urls: list[str]) -> None:
    """Every rank has its part of the same batches."""
    batches = list(ours(urls).listed(8).map(numbers).slice(1, 6, 2))
    parts = [list(ours(urls, rank=r, world_size=2).listed(4).map(numbers).slice(1, 6, 2)) for r in (0, 1)]
    assert [sorted(a + b) for a, b in zip(*parts)] == batches
    with pytest.raises(UsageError, match="shuffle"):
        ours(urls).listed(4).slice(2).shuffle(5)
    for wrong in [(), (1, 2, 0), (1, 2, 3, 4)]:
        with pytest.raises(UsageError, match="slice"):
            ours(urls).slice(*wrong)


def test_batches_of_nothing_and_of_batches_are_refused(urls: list[str]) -> None:
    with pytest.raises(UsageError):
        ours(urls).batched(0)
    with pytest.raises(UsageError, match="cannot be batched again"):
        ours(urls).batched(4).batched(4)
    with pytest.raises(ValueError, match="different lengths"):
        list(ours(urls).batched(2, collation_fn=lambda items: ([1], [1, 2])).unbatched())
    with pytest.raises(TypeError):
        list(ours(urls).batched(2, collation_fn=len).unbatched())
    for lists in ours(urls).listed(2), ours(urls).map(lambda sample: sample["__key__"]).listed(2):
        with pytest.raises(TypeError, match="unlisted"):
            list(lists.unbatched())
    with pytest.raises(TypeError):
        list(ours(urls).batched(2, collation_fn=tuple).unlisted())


def test_listed_hears_partial(urls: list[str]) -> None:
    """Which webdataset does not."""
    assert [len(batch) for batch in ours(urls).listed(50, partial=False)] == [50]
    assert [len(batch) for batch in oracle(urls).listed(50, partial=False)] == [50, 5]


def test_a_stage_leaves_the_dataset_as_it_was(urls: list[str]) -> None:
    data = ours(urls)
    data.map(len).batched(3).shuffle(10)
    assert len(list(data)) == SHARDS * EACH
    data.append(wds.slice(3))
    assert numbers(data) == [0, 1, 2]


def test_handlers_count_what_they_leave_out_by_shard_and_reason(urls: list[str]) -> None:
    data = ours(urls).map(fails_at_7, handler=wds.ignore_and_continue).select(odd)
    assert len(numbers(data)) == SHARDS * EACH // 2 - 1
    found = data.stats()["dropped"]
    assert found[urls[0]] == {"map: ValueError": 1, "select": 6}
    assert sum(shard["select"] for shard in found.values()) == 28


def test_handlers_that_warn_warn(urls: list[str]) -> None:
    for handler in (wds.warn_and_continue, wds.warn_and_stop):
        with pytest.warns(UserWarning, match="seven"):
            list(ours(urls).map(fails_at_7, handler=handler))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(ours(urls).map(fails_at_7, handler=wds.ignore_and_stop))


@pytest.mark.parametrize("batch", [0, 3])
def test_handlers_that_stop_end_the_epoch(urls: list[str], batch: int) -> None:
    def built(data: Any) -> Any:
        data = data.map(fails_at_7, handler=wds.ignore_and_stop).map(number_of)
        return data.batched(batch, collation_fn=list) if batch else data

    data = built(ours(urls))
    expected = list(built(oracle(urls)))
    assert list(data) == expected == ([[0, 1, 2], [3, 4, 5], [6]] if batch else list(range(7)))
    assert list(data) == expected, "the next epoch begins at its beginning"
    assert data.stats()["dropped"][urls[0]] == {"map: ValueError": 2}


def test_webdatasets_own_handlers_and_others_are_taken(urls: list[str]) -> None:
    seen = []

    def mine(error: Exception) -> bool:
        seen.append(error)
        return True

    data = ours(urls).map(fails_at_7, handler=mine).map(fails_at_7, handler=theirs.reraise_exception)
    assert len(list(data)) == SHARDS * EACH - 1
    assert [str(error) for error in seen] == ["seven"]


def test_no_handler_passes_over_a_call_that_makes_no_sense(urls: list[str]) -> None:
    def wrong(sample: Any) -> Any:
        raise UsageError("no such package")

    with pytest.raises(UsageError):
        list(ours(urls).map(wrong, handler=wds.ignore_and_continue))


def test_counts_add_up_and_pickle() -> None:
    counts = SkipCounts()
    counts.add("a", "x", 2)
    other = pickle.loads(pickle.dumps(counts))
    other.merge([("a", "x", 1), ("b", "y", 4)])
    assert other.rows() == [("a", "x", 3), ("b", "y", 4)]
    assert counts.rows() == [("a", "x", 2)]
    other.clear()
    assert other.rows() == []


def tripled(items: Iterator[Any]) -> Iterator[Any]:
    for item in items:
        yield from (item, item, item)


EXACT: dict[str, Callable[[Any], Any]] = {
    "plain": lambda data: data.map(number_of),
    "batched": lambda data: data.map(number_of).listed(4),
    "select": lambda data: data.select(odd).map(number_of),
    "select, batched": lambda data: data.select(odd).map(number_of).listed(4),
    "slice": lambda data: data.slice(3, 50, 2).map(number_of).listed(4),
    "slice of batches": lambda data: data.map(number_of).listed(4).slice(1, None, 2),
    "rsample": lambda data: data.rsample(0.5).map(number_of).listed(4),
    "with_epoch": lambda data: data.map(number_of).listed(4).with_epoch(batches=9),
    "repeat": lambda data: data.map(number_of).listed(4).repeat(2),
    "unlisted": lambda data: data.map(number_of).listed(4).unlisted(),
    "unlisted, with_epoch": lambda data: data.map(number_of).listed(4).unlisted().with_epoch(33),
    "shuffle of a slice": lambda data: data.slice(40).shuffle(5).map(number_of),
    "compose": lambda data: data.map(number_of).compose(tripled),
    "compose, buffer": lambda data: data.map(number_of).compose(tripled).shuffle(9).batched(4, None),
    "compose, with_epoch": lambda data: data.map(number_of).compose(tripled).with_epoch(17),
    "rebatched": lambda data: data.map(number_of).listed(4).unlisted().listed(6),
}


@pytest.mark.parametrize("stage", EXACT)
def test_every_state_is_exact(urls: list[str], stage: str) -> None:
    """From any place of the first epoch to the end of the second."""

    def built() -> Any:
        return EXACT[stage](ours(urls, shuffle="window"))

    whole = built()
    epochs = [list(whole), list(whole)]
    assert all(epochs)
    for stop in random.Random(stage).sample(range(len(epochs[0])), min(9, len(epochs[0]))):
        data = built()
        taken = list(itertools.islice(data, stop))
        state = json.loads(json.dumps(data.state_dict()))
        assert len(json.dumps(state)) < 1024
        resumed = built()
        resumed.load_state_dict(state)
        assert [taken + list(resumed), list(resumed)] == epochs


CHOSEN: dict[str, Callable[[Any, int], Any]] = {
    "slice": lambda data, size: data.slice(3, 50, 2).map(number_of).listed(size),
    "slice of batches": lambda data, size: data.map(number_of).listed(size).slice(1, None, 2),
    "rsample": lambda data, size: data.rsample(0.5).map(number_of).listed(size),
    "with_epoch": lambda data, size: data.map(number_of).listed(size).with_epoch(batches=9),
    "repeat": lambda data, size: data.map(number_of).listed(size).repeat(2),
    "shuffle of a slice": lambda data, size: data.slice(40).shuffle(5).map(number_of).listed(size),
}


@pytest.mark.parametrize("stage", CHOSEN)
def test_global_batches_are_the_same_for_any_ranks_and_a_state_fits_all(urls: list[str], stage: str) -> None:
    def built(rank: int, world: int) -> Any:
        data = ours(urls, shuffle="window", rank=rank, world_size=world, tail="uneven")
        return CHOSEN[stage](data, 12 // world)

    def together(parts: list[list[list[int]]]) -> list[list[int]]:
        return [sorted(itertools.chain(*batch)) for batch in itertools.zip_longest(*parts, fillvalue=[])]

    alone = together([list(built(0, 1))])
    for world in (2, 3, 4):
        assert together([list(built(rank, world)) for rank in range(world)]) == alone
    begun = built(0, 2)
    list(itertools.islice(begun, 2))
    rest = []
    for rank in range(3):
        rest.append(built(rank, 3))
        rest[-1].load_state_dict(begun.state_dict())
    assert together([list(data) for data in rest]) == alone[2:]


def test_a_generator_goes_on_only_with_as_many_workers(urls: list[str]) -> None:
    data = ours(urls, rank=0, world_size=1).compose(tripled)
    list(itertools.islice(data, 4))
    other = ours(urls, rank=0, world_size=2).compose(tripled)
    with pytest.raises(UsageError, match="ranks"):
        other.load_state_dict(data.state_dict())
        list(other)


def test_a_dataset_of_functions_pickles(urls: list[str]) -> None:
    data = ours(urls, shuffle="window").map_dict(cls=int).rename(n="cls").to_tuple("n").listed(4).unlisted()
    again = pickle.loads(pickle.dumps(data))
    assert list(again) == list(data)
    assert len(pickle.dumps(data)) < 10_000


def test_an_empty_set_is_an_error_unless_told(tmp_path: Path, urls: list[str]) -> None:
    write_tar(tmp_path / "none.tar", [])
    with pytest.raises(InputError, match="no samples"):
        list(wds.WebDataset(str(tmp_path / "none.tar")))
    assert list(wds.WebDataset(str(tmp_path / "none.tar"), empty_check=False)) == []
    with pytest.raises(InputError, match="no samples"):
        list(ours(urls).slice(0))


@pytest.mark.exhaustive
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("stage", ["slice of batches", "rsample", "with_epoch", "repeat"])
def test_workers_of_a_dataloader_change_nothing(urls: list[str], stage: str, workers: int) -> None:
    data = pytest.importorskip("torch.utils.data")
    expected = list(CHOSEN[stage](ours(urls, shuffle="window"), 4))
    loader = data.DataLoader(
        CHOSEN[stage](ours(urls, shuffle="window"), 4), batch_size=None, num_workers=workers
    )
    assert list(loader) == expected


@pytest.mark.parametrize("workers", [2])
def test_workers_share_what_is_spread_and_cut(urls: list[str], workers: int) -> None:
    data = pytest.importorskip("torch.utils.data")
    built = ours(urls).map(number_of).listed(4).unlisted()
    loader = data.DataLoader(built, batch_size=None, num_workers=workers)
    assert sorted(loader) == list(range(SHARDS * EACH))
    cut = data.DataLoader(built.with_epoch(batches=21), batch_size=None, num_workers=workers)
    cut.dataset.set_epoch(0)
    assert sorted(cut) == list(range(21))
    generated = ours(urls).map(number_of).compose(tripled).with_epoch(batches=21)
    assert len(list(data.DataLoader(generated, batch_size=None, num_workers=workers))) == 21


def test_a_state_of_other_stages_is_refused(urls: list[str]) -> None:
    data = ours(urls).slice(3, 50)
    list(itertools.islice(data, 5))
    state = data.state_dict()
    for other in (
        ours(urls),
        ours(urls).slice(4, 50),
        ours(urls).rsample(0.5),
        ours(urls).slice(3, 50).repeat(2),
    ):
        with pytest.raises(UsageError, match=r"another (view|epoch length)"):
            other.load_state_dict(state)


@pytest.mark.parametrize("how", [{"handler": wds.ignore_and_continue}, {"on_error": "skip"}])
@pytest.mark.filterwarnings("ignore:skipped")
def test_a_damaged_shard_without_an_index_gives_its_whole_samples(
    urls: list[str], tmp_path: Path, how: dict[str, Any]
) -> None:
    """webdataset gives the half of n005, too, as if it were whole."""
    whole = Path(urls[0]).read_bytes()
    cut = tmp_path / "cut.tar"
    cut.write_bytes(whole[: whole.index(b"dir/n005.TXT") + 600])
    names = [str(cut), str(tmp_path / "nowhere.tar"), urls[1]]
    with pytest.raises((DataError, InputError)):
        list(ours(names))
    data = ours(names, **how)
    assert numbers(data) == [0, 1, 2, 3, 4, *range(11, 22)]
    assert numbers(pickle.loads(pickle.dumps(data))) == numbers(data)
    assert data.stats()["dropped"] == {
        str(cut): {"read: truncated": 1},
        str(tmp_path / "nowhere.tar"): {"read: unreadable": 1},
    }
    assert [s["__key__"] for s in oracle(names[:1], handler=theirs.ignore_and_continue)][-1] == "dir/n005"


def test_stages_change_no_sample_that_others_hold() -> None:
    sample = {"__key__": "a", "cls": b"7", "jpg": b"x"}
    held = dict(sample)
    data = wds.FluidWrapper([sample]).rename(image="jpg").associate({"a": {"n": 1}}).map_dict(cls=int)
    assert list(data) == [{"__key__": "a", "cls": 7, "image": b"x", "n": 1}]
    list(wds.FluidWrapper([sample]).map_dict(cls=int))
    assert sample == held
