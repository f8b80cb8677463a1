"""Hugging Face datasets loads our shards, offline, streamed or not; the hf profile flags what it does not load."""

from __future__ import annotations

from pathlib import Path

import pytest

datasets = pytest.importorskip("datasets", reason="datasets is not installed")
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
