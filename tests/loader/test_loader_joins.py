"""``join=``: several sets as one in code, with the samples of the view that ``wds merge --join`` writes."""

from __future__ import annotations

import gc
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from storage_servers import S3

from wdscli.errors import WdsError
from wdscli.loader import IndexedDataset, WebDataset
from wdscli.plan.join import Join, JoinKind
from wdscli.plan.request import Request
from wdscli.run.execute import reorder
from wdscli.shards import ShardWriter
from wdscli.storage import open_sink
from wdscli.storage.addresses import HELD


@pytest.fixture
def sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Pictures, captions in the same order, and scores of some in the opposite order."""
    monkeypatch.chdir(tmp_path)
    keys = [f"k{number:02d}" for number in range(23)]
    for name, field, some in (("a", "jpg", keys), ("b", "txt", keys), ("c", "score", keys[::-2])):
        with ShardWriter(f"{name}/x-%06d.tar", max_count=5) as writer:
            for key in some:
                writer.write(key, {field: f"{name} {key}".encode() * 9})
    return ["a", "b", "c"]


def plain(data: Any) -> list[dict[str, Any]]:
    return [{name: value for name, value in sample.items() if name != "__url__"} for sample in data]


def keys_of(pickled: bytes) -> list[str]:
    return [sample["__key__"] for sample in pickle.loads(pickled)]


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize("kind", ["left", "inner", "outer"])
@pytest.mark.parametrize(
    "more", [{}, {"shuffle": "blocks"}, {"shuffle": "full", "seed": 3, "fields": ["txt", "score"]}]
)
def test_the_samples_are_those_of_the_view(sets: list[str], kind: JoinKind, more: dict[str, Any]) -> None:
    for some in (sets[:2], sets, sets[::-1]):
        reorder(Request(some, "v.json", jobs=1), Join(kind))
        before = sorted(Path().rglob("*"))
        data, view = WebDataset(some, join=kind, **more), WebDataset("v.json", **more)
        found = plain(data)
        assert found == plain(view)
        state = data.state_dict()
        assert state == view.state_dict()
        table = IndexedDataset(some, join=kind)
        assert plain(table) == plain(IndexedDataset("v.json"))
        assert table["k02"]["__key__"] == "k02"
        # Nothing is written, and nothing stays in memory.
        assert sorted(Path().rglob("*")) == before
        assert HELD
        del data, table
        gc.collect()
        assert not HELD
        for path in Path().glob("v.*"):
            path.unlink()


def test_a_state_fits_the_view_and_the_join(sets: list[str]) -> None:
    reorder(Request(sets, "v.json", jobs=1), Join("left"))
    for one, other in ((sets, "v.json"), ("v.json", sets)):
        first, then = (
            WebDataset(urls, join=None if urls == "v.json" else "left", shuffle="window", seed=5)  # type: ignore[arg-type]
            for urls in (one, other)
        )
        whole = plain(then)
        then.set_epoch(0)
        samples = iter(first)
        begun = plain(islice(samples, 9))
        then.load_state_dict(first.state_dict())
        assert begun + plain(then) == whole


@pytest.mark.exhaustive
def test_other_processes_have_the_join(sets: list[str]) -> None:
    data = WebDataset(sets, join="left", shuffle="window", seed=1)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        found = pool.submit(keys_of, pickle.dumps(data)).result(60)
    assert found == keys_of(pickle.dumps(data))
    assert len(found) == 23


def test_a_base_that_changes_is_an_error(sets: list[str]) -> None:
    data = WebDataset(sets, join="left")
    with ShardWriter("b/x-000001.tar", force=True) as writer:
        writer.write("other", {"txt": b"x"})
    with pytest.raises(WdsError, match=r"was changed after join-left-.*json was made") as error:
        list(data)
    assert error.value.shard == "b/x-000001.tar"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("urls", "more", "said", "hint"),
    [
        (["a"], {"join": "left"}, "join='left' needs several sets", "photos"),
        (["a", "b"], {"join": "right"}, "is not one of", ""),
        (["a", "nope"], {"join": "left"}, "cannot read nope: no such file", ""),
        (["a", "a"], {"join": "left"}, 'has a field "jpg" in two sets', "--on-conflict left -o VIEW.json"),
        (
            ["a", "pipe:cat b/x-000001.tar"],
            {"join": "left"},
            "can only be read from beginning to end",
            "plain tar",
        ),
        (["a", "pipe:cat b/x-000001.tar"], {"join": "left", "pipes": False}, "is not run: pipes=False", ""),
    ],
)
@pytest.mark.usefixtures("sets")
def test_errors_name_what_is_wrong(urls: list[str], more: dict[str, Any], said: str, hint: str) -> None:
    for made in (WebDataset, IndexedDataset):
        with pytest.raises(WdsError) as error:
            made(urls, **more)
        assert said in str(error.value)
        assert hint in (error.value.hint or "")


def test_sets_on_a_store(s3: S3, sets: list[str]) -> None:
    store = s3.bucket("joins")
    for path in sorted(Path("b").rglob("*")):
        if path.is_file():
            with open_sink(f"{store}/{path}") as sink:
                sink.write(path.read_bytes())
    found = plain(WebDataset(["a", f"{store}/b/", "c"], join="left", shuffle="window"))
    assert found == plain(WebDataset(sets, join="left", shuffle="window"))
