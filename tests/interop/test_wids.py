"""webdataset's wids reads our manifest, and the plain document that the dialect writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

wids = pytest.importorskip("wids", reason="wids is not installed")

from indexing import index  # noqa: E402

from wdscli.cli.main import main  # noqa: E402


def read(document: Path) -> list[dict]:
    data = wids.ShardListDataset(str(document), transformations=[])
    return [data[row] for row in range(len(data))]


def check(found: list[dict], content) -> None:
    assert [sample["__key__"] for sample in found] == list(content)
    assert [sample[".png"].read() for sample in found] == [fields["png"] for fields in content.values()]


def test_wids_reads_the_manifest_of_a_set(shards, content):
    check(read(Path(shards[0]).with_name("train-manifest.json")), content)


def test_wids_reads_the_manifest_of_index(shards, content, tmp_path):
    index(shards, manifest=str(tmp_path / "other.json"))
    check(read(tmp_path / "other.json"), content)


def test_wids_reads_the_dialect(shards, content):
    index(shards, dialects=["wids"])
    place = Path(shards[0]).with_name("train-wids.json")
    assert set(json.loads(place.read_text())) == {"__kind__", "wids_version", "name", "shardlist"}
    check(read(place), content)


@pytest.mark.parametrize("command", ["cat", "shuffle"])
def test_wids_refuses_a_view(command, shards, tmp_path):
    """It says so when it opens the file, because ``__kind__`` is another one."""
    view = tmp_path / "view.json"
    assert main([command, *shards, "-o", str(view), "-q"]) == 0
    with pytest.raises((ValueError, AssertionError), match="wids"):
        wids.ShardListDataset(str(view), transformations=[])
