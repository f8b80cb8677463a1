"""Arguments that cannot be meant are refused when they are given, by name; a traceback ends in what helps."""

from __future__ import annotations

import pickle
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

import wdscli.loader as wds
from wdscli.errors import InputError, UsageError
from wdscli.loader.place.ranks import Batches, Share
from wdscli.shards import ShardWriter


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("set")
    with ShardWriter(str(folder / "in-%06d.tar"), max_count=4) as writer:
        for number in range(10):
            writer.write(f"n{number}", {"cls": b"%d" % number})
    return str(folder)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"shuffle": True}, "shuffle=True"),
        ({"shuffle": "windows"}, "shuffle='windows'"),
        ({"shuffle": "widow"}, '"window", "blocks", "shards", "full" and "none"'),
        ({"window": 0}, "window=0"),
        ({"window": "4"}, "window='4'"),
        ({"seed": "a"}, "seed='a'"),
        ({"seed": 1.5}, "seed=1.5"),
        ({"rank": 1}, "rank= and world_size="),
        ({"rank": "0", "world_size": "2"}, "rank='0'"),
        ({"rank": 2, "world_size": 2}, "rank 2 of 2"),
        ({"tail": "cut"}, "tail='cut'"),
        ({"threads": "2"}, "threads='2'"),
        ({"threads": 0}, "threads=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": "4"}, "batch_size='4'"),
    ],
)
def test_arguments_of_a_set(url: str, more: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        wds.WebDataset(url, **more)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        (lambda data: data.batched("4"), "batchsize='4'"),
        (lambda data: data.batched(None), "batchsize=None"),
        (lambda data: data.listed(0), "batchsize=0"),
        (lambda data: data.shuffle("window"), "size='window'"),
        (lambda data: data.slice("3"), "slice='3'"),
        (lambda data: data.with_epoch("5"), "nsamples='5'"),
        (lambda data: data.with_epoch(2.5), "nsamples=2.5"),
        (lambda data: data.repeat("2"), "nepochs='2'"),
        (lambda data: data.with_length(-1), "n=-1"),
        (lambda data: data.to_tuple(), "to_tuple"),
        (lambda data: data.set_epoch("a"), "epoch='a'"),
        (lambda data: data.set_epoch(-1), "epoch=-1"),
        (lambda data: wds.WebLoader(data).set_epoch(None), "epoch=None"),
        (lambda data: wds.WebLoader(data).with_epoch("5"), "nsamples='5'"),
    ],
)
def test_arguments_of_stages(url: str, stage: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        stage(wds.WebDataset(url))
    assert said in str(caught.value)


def test_what_is_no_function_is_refused_where_it_is_given(url: str) -> None:
    for give in (wds.WebDataset(url).map, wds.WebDataset(url).select, wds.IndexedDataset(url).map):
        with pytest.raises(TypeError, match="'cls' is not a function"):
            give("cls")


def test_numbers_may_be_numpys_and_whole_floats(url: str) -> None:
    data = wds.WebDataset(url, seed=numpy.int64(3), window=numpy.int32(2), shuffle="window")  # type: ignore[arg-type]
    assert [len(batch) for batch in data.listed(numpy.int64(4))] == [4, 4, 2]  # type: ignore[arg-type]
    assert len(data.with_epoch(6.0)) == 6  # type: ignore[arg-type]
    assert type(data.state_dict()["source"]["seed"]) is int


def test_a_batch_larger_than_memory_is_the_whole_epoch(url: str) -> None:
    data = wds.WebDataset(url)
    assert [len(batch) for batch in data.listed(1 << 50)] == [10]
    assert len(data.listed(1 << 50)) == 1
    assert list(data.listed(1 << 50, partial=False)) == []
    of_rank = Batches(10, 1 << 40, Share(1, 2), "uneven")
    assert of_rank.positions(0).tolist() == of_rank.several(range(1))[0].tolist() == [1, 3, 5, 7, 9]


def test_a_state_of_another_order_names_the_shuffle_first(url: str) -> None:
    state = wds.WebDataset(url, shuffle="window").state_dict()
    with pytest.raises(UsageError, match="another shuffle: 'window', but this loader has 'full'"):
        wds.WebDataset(url, shuffle="full").load_state_dict(state)


def test_a_traceback_ends_in_the_hint() -> None:
    error = InputError("cannot read x.tar", hint="wds index x.tar")
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert str(one) == "cannot read x.tar"
        shown = "".join(traceback.format_exception(one)).splitlines()
        if sys.version_info >= (3, 11):
            assert shown[-2:] == ["wdscli.errors.InputError: cannot read x.tar", "hint: wds index x.tar"]
    assert not hasattr(InputError("cannot read x.tar"), "__notes__")


def test_a_traceback_of_a_stage_ends_in_the_sample(url: str) -> None:
    def wrong(sample: Any) -> int:
        return 1 // int(sample["cls"])

    data = wds.WebDataset(url).map(wrong, handler=wds.reraise_exception)
    with pytest.raises(ZeroDivisionError) as caught:
        list(data)
    assert str(caught.value) == "integer division or modulo by zero"
    assert caught.value.__notes__ == [f'in map() of sample "n0" of {url}/in-000000.tar']  # type: ignore[attr-defined]
    assert next(iter(wds.WebDataset(url).map(wrong, handler=wds.ignore_and_continue))) == 1
    with pytest.raises(ValueError, match='no field "txt"') as missing:
        list(wds.WebDataset(url).to_tuple("txt"))
    assert "sample" in str(missing.value)


def test_modules_of_webdataset_are_there_and_a_misspelt_name_is_told_the_nearest() -> None:
    assert wds.utils.identity(3) == 3
    assert wds.compat.FluidInterface is wds.FluidInterface
    with pytest.raises(AttributeError, match=r"no attribute 'shufle'; did you mean shuffle\?$"):
        wds.shufle  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        wds.compat.Nothing  # noqa: B018


def test_empty_variables_of_a_launcher_are_none(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "")
    monkeypatch.setenv("WORLD_SIZE", "")
    assert wds.WebDataset(url)._share().world == 1
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(UsageError, match="RANK=1 and WORLD_SIZE=two are not numbers"):
        wds.WebDataset(url)._share()


def test_a_dataset_says_what_it_is(url: str) -> None:
    data = wds.WebDataset(url, shuffle="window", seed=3)
    assert repr(data) == "<WebDataset of 3 shards, 10 samples, shuffle='window', seed=3>"
    staged = data.decode().slice(8).to_tuple("cls").map_tuple(float).batched(4).unbatched()
    assert repr(staged).endswith(": decode, to_tuple, map_tuple, batched(4), unbatched>")
    assert repr(data.compose(iter)).endswith(": iter>")
    assert repr(wds.WebDataset(f"pipe:cat {url}/in-000000.tar")) == "<WebDataset of a stream>"
    assert "several sets" in repr(wds.mix({"a": (data, 1), "b": (data, 2)}))
    both = wds.mix({"a": (data.batched(2), 1), "b": (data.batched(2), 2)}, stop="all", per="batch")
    assert repr(both).startswith("<Mixed of several sets (a: 1, b: 2), per='batch', stop='all', seed=0: ")
    secret = wds.mix({f"https://u:p@host/{n}.tar": (data, 1) for n in range(9)})
    assert "u:p" not in repr(secret)
    assert ", ...)" in repr(secret)


def test_paths_may_be_any(url: str) -> None:
    assert len(wds.WebDataset(Path(url))) == 10


class Named(wds.WebDataset[Any]):
    """A user's class with attributes of common names."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.split, self.share, self.total, self.units = "train", 0.5, 10, "cm"
        self.standing, self.trail, self.losses, self.ranks = "upright", [], {"l1": 0.1}, 8


def test_attributes_of_a_users_class_are_the_users(url: str) -> None:
    data = Named(url).listed(4)
    assert [len(batch) for batch in data] == [4, 4, 2]
    assert (data.split, data.total, data.losses) == ("train", 10, {"l1": 0.1})
    assert data.state_dict()["epoch"] == 1


def test_insides_are_no_public_names(url: str) -> None:
    """Whoever completes ``data.`` sees stages, arguments and what the manual pages name."""
    ours = {"associate", "epoch", "info", "is_stream", "load_state_dict", "packed", "rename", "set_epoch"}
    ours |= {"find", "keys", "source", "state_dict", "stats", "tail"}
    ours |= {"is_exact", "seek", "skip", "why_not_exact"}
    theirs = """
    append batched close compose decode extract_keys iterator iterator1 listed lmdb_cached log_keys map map_dict
    map_tuple mcached nsamples pipeline rename_keys repeat repetitions rsample select shuffle slice to_tuple unbatched
    unlisted with_epoch with_length xdecode
    """
    data = wds.WebDataset(url)
    assert {name for name in dir(data) if not name.startswith("_")} == {*theirs.split(), *ours}
