"""Hugging Face datasets loads our shards, offline, streamed or not; the hf profile flags what it does not load."""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random

import pytest

datasets = pytest.importorskip("datasets", reason="datasets is not installed")
import pyarrow  # noqa: E402
from conftest import flagged, write_set  # noqa: E402


def read(shards: list[str], streaming: bool = True) -> list[dict]:
    data = datasets.load_dataset(
        "webdataset", data_files={"train": shards}, split="train", streaming=streaming
    )
    return list(data)


@pytest.mark.parametrize("streaming", [True, False])
def test_datasets_loads_what_we_write(shards, content, streaming):
    assert flagged(shards, "hf") == set()
    found = read(shards, streaming)
    assert [sample["__key__"] for sample in found] == list(content)
    assert [sample["cls"] for sample in found] == [int(fields["cls"]) for fields in content.values()]
    assert [sample["json"]["caption"] for sample in found][:2] == ["picture 0", "picture 1"]
    assert [sample["png"].getpixel((0, 0)) for sample in found] == list(range(10))


def test_other_fields_in_the_first_samples_are_flagged_and_do_not_load(tmp_path):
    shards = write_set(tmp_path / "set", {"a": {"txt": b"1"}, "b": {"txt": b"2", "cls": b"1"}})
    assert flagged(shards, "hf") == {"hf-mixed-fields"}
    with pytest.raises(Exception, match=r"(?i)same|bad format|generating"):
        read(shards)


def test_a_first_shard_without_samples_is_flagged_and_does_not_load(tmp_path):
    shards = write_set(tmp_path / "set", {"a": {"txt": b"1"}})
    empty = tmp_path / "empty.tar"
    empty.write_bytes(bytes(1024))
    assert flagged([str(empty), *shards], "hf") == {"hf-empty-shard"}
    assert flagged([*shards, str(empty)], "hf") == set()
    with pytest.raises(Exception, match=r"(?i)table|schema|index|generating"):
        read([str(empty), *shards])
    assert [sample["txt"] for sample in read([*shards, str(empty)])] == ["1"]


def test_a_class_that_is_no_integer_is_flagged_and_does_not_load(tmp_path):
    shards = write_set(tmp_path / "set", {"a": {"cls": b"cat"}})
    assert flagged(shards, "hf") == {"hf-not-an-integer"}
    with pytest.raises(Exception, match=r"(?i)int|generating"):
        read(shards)


def test_a_field_after_the_first_five_samples_is_flagged_and_dropped(tmp_path):
    content = {f"k{n}": {"txt": b"t"} for n in range(5)}
    content["k5"] = {"txt": b"t", "cls": b"1"}
    shards = write_set(tmp_path / "set", content, max_count=None)
    assert flagged(shards, "hf") == {"hf-dropped-field"}
    assert [sample.get("cls") for sample in read(shards)] == [None] * 6


def test_a_member_that_begins_with_two_underscores_is_flagged_and_passed_over(tmp_path):
    shards = write_set(tmp_path / "set", {"a": {"txt": b"1"}, "d/__b": {"txt": b"2"}})
    assert flagged(shards, "hf") == {"hf-skipped"}
    assert [sample["__key__"] for sample in read(shards)] == ["a"]


def test_a_field_it_does_not_know_is_flagged_and_comes_as_bytes(tmp_path):
    shards = write_set(tmp_path / "set", {"a": {"what": b"1"}})
    assert flagged(shards, "hf") == {"hf-raw-field"}
    assert read(shards)[0]["what"] == b"1"


def test_a_folder_with_our_side_files_loads_by_pattern(shards, content):
    """The hidden folder of indexes and the manifest are not taken for shards."""
    folder = Path(shards[0]).parent
    assert (folder / ".wds").is_dir()
    assert len(read([str(folder / "train-*.tar")])) == len(content)


def random_value(random: Random, depth: int = 0) -> object:
    """A JSON value, of few kinds and keys, so that samples often agree."""
    leaves = [None, random.randrange(9), random.randrange(9) + 0.5, 4.0, True, "7", "text", 1 << 60]
    if depth == 3 or random.random() < 0.4:
        return random.choice(leaves)
    if random.random() < 0.5:
        return [random_value(random, depth + 1) for _ in range(random.randrange(3))]
    return {key: random_value(random, depth + 1) for key in random.sample("abc", random.randrange(4))}


def changed(random: Random, value: object) -> object:
    """The value with one place of it perhaps left out, null, or replaced."""
    if isinstance(value, dict) and value and random.random() < 0.8:
        key = random.choice(list(value))
        if random.random() < 0.2:
            return {other: one for other, one in value.items() if other != key}
        return value | {key: changed(random, value[key])}
    if isinstance(value, list) and value and random.random() < 0.8:
        return [*value[1:], changed(random, value[0])]
    return random.choice([value, value, None, [], {}, {"a": 1}, 3, 2.5, 2.0, "x", "8", False])


def same(read: object, written: object) -> bool:
    """Whether datasets gives what was written; keys that were missing come as None."""
    if isinstance(read, dict) and isinstance(written, dict):
        return written.keys() <= read.keys() and all(same(read[key], written.get(key)) for key in read)
    if isinstance(read, list) and isinstance(written, list):
        return len(read) == len(written) and all(map(same, read, written))
    return read == written and (isinstance(read, bool) == isinstance(written, bool))


def outcome(shards: list[str], written: list[object]) -> str:
    """What load_dataset makes of JSON: it ``fails``, ``changes`` or drops values, or gives the ``same``."""
    try:
        found = [sample["json"] for sample in read(shards, streaming=False)]
    except datasets.exceptions.DatasetGenerationError:
        return "fails"
    except (TypeError, ValueError, OverflowError, pyarrow.ArrowException):
        return "fails"  # at the first samples
    return "same" if all(map(same, found, written)) else "changes"


@pytest.mark.parametrize(
    ("values", "codes", "loads"),
    [
        ([{"a": None}] * 5 + [{"a": "text"}], {"hf-mixed-types"}, "fails"),
        ([{"a": None}] * 4 + [{"a": "text"}], set(), "same"),
        ([{"a": {"b": None}}] * 4 + [{"a": {"b": [1]}}], set(), "same"),
        ([{"a": 1}] * 4 + [{"a": 0.5}], {"hf-mixed-types"}, "fails"),
        ([{"a": 1}] * 5 + [{"a": 0.5}], {"hf-mixed-types"}, "changes"),
        ([{"a": 0.5}] * 5 + [{"a": 1}], set(), "same"),
        ([{"a": 1}] * 5 + [{}, {"a": None}], set(), "same"),
        ([{"a": 1}] * 5 + [{"a": 1, "b": 2}], {"hf-dropped-field"}, "changes"),
        ([{"a": [1]}] * 5 + [{"a": ["x"]}], {"hf-mixed-types"}, "fails"),
        ([{"a": [1, "x"]}], {"hf-mixed-types"}, "fails"),
        ([{"a": []}] * 5 + [{"a": [1]}], {"hf-mixed-types"}, "fails"),
        ([{"a": [{"b": 1}]}] * 5 + [{"a": [{"b": 1}, {"b": 1, "c": 1}]}], {"hf-mixed-types"}, "fails"),
        ([{"a": 1}] * 5 + [7], {"hf-mixed-types"}, "fails"),
        ([{"a": 1 << 63}], {"hf-undecodable"}, "fails"),
        ([{"a": "\ud800"}], {"hf-undecodable"}, "fails"),
    ],
)
def test_types_in_json_are_those_of_the_first_five_samples(tmp_path, values, codes, loads):
    shards = write_set(tmp_path / "set", json_samples(values), max_count=6)
    assert flagged(shards, "hf") == codes
    assert outcome(shards, values) == loads


def json_samples(values: list[object]) -> dict[str, dict[str, bytes]]:
    return {f"k{n:03d}": {"json": json.dumps(value).encode()} for n, value in enumerate(values)}


@pytest.mark.parametrize("seed", range(int(os.environ.get("WDSCLI_HF_SETS", "100"))))
def test_what_verify_says_of_json_is_what_load_dataset_does(tmp_path, seed):
    random = Random(seed)
    usual = random_value(random)
    values = [changed(random, usual) if random.random() < 0.15 else usual for _ in range(12)]
    shards = write_set(tmp_path / "set", json_samples(values), max_count=7)
    codes, loads = flagged(shards, "hf"), outcome(shards, values)
    if not codes:
        assert loads == "same", values
    elif codes == {"hf-dropped-field"}:
        assert loads == "changes", values
    else:
        assert loads != "same", values
