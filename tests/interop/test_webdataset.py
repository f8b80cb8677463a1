"""webdataset reads our shards; the webdataset profile flags what it does not read as it stands."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

webdataset = pytest.importorskip("webdataset", reason="webdataset is not installed")
from conftest import flagged, write_set  # noqa: E402

from wdscli.cli.main import main  # noqa: E402


def read(shards: list[str]) -> list[dict]:
    return list(webdataset.WebDataset(shards, shardshuffle=False, empty_check=False))


def test_webdataset_reads_what_we_write(shards, content):
    assert flagged(shards, "webdataset") == set()
    found = read(shards)
    assert [sample["__key__"] for sample in found] == list(content)
    assert [{k: v for k, v in sample.items() if not k.startswith("__")} for sample in found] == [
        dict(fields) for fields in content.values()
    ]


def test_upper_case_is_flagged_and_lowered(tmp_path):
    shards = write_set(tmp_path / "set", {"a": {"JPG": b"1"}})
    assert flagged(shards, "webdataset") == {"webdataset-upper-case"}
    assert read(shards)[0]["jpg"] == b"1"


def test_fields_that_differ_in_case_are_flagged_and_stop_it(tmp_path):
    shards = write_set(tmp_path / "set", {"a": {"JPG": b"1", "jpg": b"2"}})
    assert flagged(shards, "webdataset") >= {"webdataset-case-collision"}
    with pytest.raises(ValueError, match="duplicate"):
        read(shards)


def test_a_reserved_name_is_flagged_and_not_read_as_it_stands(tmp_path):
    shards = write_set(tmp_path / "set", {"a": {"__key__": b"1", "txt": b"t"}})
    assert flagged(shards, "webdataset") == {"webdataset-reserved-field"}
    with pytest.raises((ValueError, AssertionError)):
        assert read(shards)[0]["__key__"] == "a"


def test_a_name_of_underscores_is_flagged_and_passed_over(tmp_path):
    import io

    place = tmp_path / "x.tar"
    with tarfile.open(place, "w") as tar:
        for name in ("__a__/b.txt", "c.txt"):
            info = tarfile.TarInfo(name)
            info.size = 1
            tar.addfile(info, io.BytesIO(b"1"))
    assert flagged([str(place)], "webdataset") == {"webdataset-skipped"}
    assert [sample["__key__"] for sample in read([str(place)])] == ["c"]


def test_a_folder_with_our_side_files_is_read_by_pattern(shards, content):
    pattern = str(Path(shards[0]).parent / "train-{000000..000002}.tar")
    assert len(read([pattern][0])) == len(content)  # type: ignore[arg-type]


def test_a_view_is_refused(shards, tmp_path):
    """It is no set for webdataset, which reads the shards that it names instead."""
    view = str(tmp_path / "view.json")
    assert main(["cat", *shards, "-o", view, "-q"]) == 0
    with pytest.raises(ValueError, match="unimplemented"):
        read(view)  # type: ignore[arg-type]
    with pytest.raises(tarfile.ReadError):
        read([view])
