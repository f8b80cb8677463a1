"""Common mistakes in training code: each error or warning names the mistake and what to call instead (issue 35)."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

import wdscli.loader as wds
from wdscli.errors import DataError, UsageError
from wdscli.loader.stages.per_batch import concatenated
from wdscli.shards import ShardWriter

TOKENS = [[1, 2], [3], [4, 5, 6], [7]]
LENGTHS: list[Any] = [2, 1, 3, None, -4, 90, "12", 1]


@pytest.fixture
def urls(tmp_path: Path) -> str:
    with ShardWriter(f"{tmp_path}/in-%06d.tar", max_count=4) as writer:
        for number, tokens in enumerate(TOKENS):
            fields = {"json": json.dumps({"ids": tokens, "n": len(tokens)}).encode(), "txt": b"text"}
            writer.write(f"n{number}", fields)
    return str(tmp_path)


@pytest.fixture
def dirty(tmp_path: Path) -> str:
    """Samples of which some have no number that fits."""
    with ShardWriter(f"{tmp_path}/dirty-%06d.tar") as writer:
        for number, length in enumerate(LENGTHS):
            writer.write(f"n{number}", {"json": json.dumps({"n": length}).encode()})
    return f"{tmp_path}/dirty-manifest.json"


def test_packs_of_bytes_name_decode(urls: str) -> None:
    with pytest.raises(DataError) as caught:
        list(wds.WebDataset(urls).packed(4, "json.n"))
    assert caught.value.hint == "the fields are bytes: call decode() before packed()"


def test_a_list_of_numbers_is_an_array_of_a_pack(urls: str) -> None:
    data = wds.WebDataset(urls).decode().map(lambda sample: {"ids": sample["json"]["ids"]})
    packs = list(data.packed(8, "json.n"))
    assert [pack["ids"].tolist() for pack in packs] == [[1, 2, 3, 4, 5, 6, 7]]
    assert packs[0]["cu_seqlens"].tolist() == [0, 2, 3, 6, 7]
    [ids, positions, ends] = concatenated(8, False, [[1, 2], [], [3]])
    assert (ids.tolist(), positions.tolist(), ends.tolist()) == ([1, 2, 3], [0, 1, 0], [0, 2, 2, 3])
    assert ids.dtype == numpy.int64


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda data: data.batched(4, bucket="json.n", buckets=10), "buckets=10 has no numbers as edges"),
        (lambda data: data.batched(4, bucket="json.n", buckets=["a"]), r"buckets=\['a'\] has no numbers"),
        (lambda data: data.batched(4, bucket="json.n", buckets="ab"), "buckets='ab' has no numbers"),
        (lambda data: data.batched(bucket="json.n", buckets={5: 2}), "has no numbers as edges"),
        (lambda data: data.batched(bucket="json.n", buckets={(5,): 2}), r"\(5,\) has an empty range"),
        (lambda data: data.batched(4, bucket=5, buckets=[3]), "bucket=5 is not an expression"),
        (lambda data: data.batched(budget=9, length=5), "length=5 is not an expression"),
        (lambda data: data.packed(9, length=["json.n"]), "is not an expression"),
    ],
)
def test_values_that_are_no_buckets(urls: str, call: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call(wds.WebDataset(urls))


STAGES: dict[str, tuple[Callable[[Any], Any], dict[str, int]]] = {
    "packed": (
        lambda data: data.packed(9, "json.n", collation_fn=list),
        {"packed(9): missing or not a number": 2, "packed(9): below 0": 1, "packed(9): too long": 1},
    ),
    "budget": (
        lambda data: data.batched(budget=9, length="json.n", collation_fn=list),
        {"batched(budget=9): missing or not a number": 2, "batched(budget=9): below 0": 1}
        | {"batched(budget=9): too long": 1},
    ),
    "bucket": (
        lambda data: data.batched(bucket="json.n", buckets={(0, 2): 1, (2, 9): 4}, collation_fn=list),
        {"batched(bucket='json.n'): missing or not a number": 2, "batched(bucket='json.n'): in no bucket": 2},
    ),
}


@pytest.mark.parametrize("name", STAGES)
@pytest.mark.parametrize("is_mix", [False, True], ids=["set", "mix"])
def test_skip_leaves_out_samples_without_a_number_that_fits(dirty: str, name: str, is_mix: bool) -> None:
    stage, dropped = STAGES[name]
    with pytest.raises(DataError, match="is missing or not a number"):
        list(stage(wds.WebDataset(dirty)))
    data: Any = wds.WebDataset(dirty, on_error="skip")
    data = stage(wds.mix({"only": (data, 1)}) if is_mix else data)
    assert sorted(sample["__key__"] for batch in data for sample in batch) == ["n0", "n1", "n2", "n7"]
    [reasons] = data.stats()["dropped"].values()
    assert reasons == dropped


def test_a_forgotten_decode_is_named(urls: str) -> None:
    for stage in ("map", "select"):
        with pytest.raises(TypeError) as caught:
            list(getattr(wds.WebDataset(urls), stage)(lambda sample: sample["json"]["n"]))
        notes = getattr(caught.value, "__notes__", [])
        assert notes[-1] == f"hint: the fields are bytes: call decode() before {stage}()"


def test_a_misspelt_method_names_the_nearest(urls: str) -> None:
    for data in (wds.WebDataset(urls), wds.IndexedDataset(urls)):
        with pytest.raises(AttributeError, match="has no attribute decod; did you mean decode"):
            data.decod()  # type: ignore[attr-defined]
        assert not hasattr(data, "__len_hint__")


@pytest.mark.parametrize("stages", ["map", "select", "batched"])
def test_a_stage_that_drops_every_sample_is_named_once(urls: str, stages: str) -> None:
    data: Any = wds.WebDataset(urls)
    if stages == "select":
        data, message = data.select(lambda sample: False), r"select dropped all samples of this epoch \(4\)"
    else:
        data, message = data.map(lambda sample: None), r"map dropped all samples.*: its function returns None"
    data = data.batched(2) if stages == "batched" else data
    with pytest.warns(UserWarning, match=message) as caught:
        assert list(data) == []
    assert len(caught) == 1


def test_a_loader_whose_stage_drops_every_sample_names_it(urls: str) -> None:
    pytest.importorskip("torch")
    data = wds.WebDataset(urls).select(lambda sample: False).batched(2)
    with pytest.warns(UserWarning, match=r"select dropped all samples of this epoch \(4\)"):
        assert list(wds.WebLoader(data, num_workers=2)) == []


def of_one_sample(sample: Any) -> Any:
    return sample["txt"]


def of_no_items(samples: Iterator[Any]) -> None:
    """Return nothing."""


@pytest.mark.parametrize("function", [of_one_sample, of_no_items])
def test_compose_of_a_function_of_one_sample(urls: str, function: Any) -> None:
    with pytest.raises(
        UsageError, match=f"compose.{function.__name__}.: a stage takes an iterator"
    ) as caught:
        list(wds.WebDataset(urls).compose(function))
    assert caught.value.hint == f"map({function.__name__}) calls a function with each sample"


def test_a_pipeline_is_no_list(urls: str) -> None:
    data: Any = wds.WebDataset(urls).decode()
    with pytest.raises(TypeError, match=r"pipeline.0. cannot be changed: .* compose"):
        data.pipeline[0] = print


def test_a_data_loader_that_batches_batches_warns(urls: str) -> None:
    data_module = pytest.importorskip("torch.utils.data")
    data: Any = wds.WebDataset(urls).map(lambda sample: {"number": 1}).batched(2)
    with pytest.warns(UserWarning, match="use DataLoader.data, batch_size=None"):
        list(data_module.DataLoader(data, batch_size=8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(data_module.DataLoader(data, batch_size=None))
        list(data_module.DataLoader(data.unbatched(), batch_size=8))


def test_words_of_the_reference() -> None:
    assert "DataLoader workers" in (wds.WebDataset.set_epoch.__doc__ or "")
    assert "``seed=None``, the default, means 0" in (wds.WebDataset.__doc__ or "")
