"""webshart reads members and samples by the JSON we write."""

from __future__ import annotations

from pathlib import Path

import pytest

webshart = pytest.importorskip("webshart", reason="webshart is not installed")

from indexing import index  # noqa: E402


def test_webshart_reads_every_member_by_our_metadata(shards, content):
    index(shards, dialects=["webshart"])
    data = webshart.discover_dataset(source=str(Path(shards[0]).parent))
    assert data.num_shards == len(shards)
    found = {}
    for number in range(data.num_shards):
        reader = data.open_shard(number)
        for row, name in enumerate(data.list_files_in_shard(number)):
            found[name] = bytes(reader.read_file(row))
    assert found == {
        f"{key}.{field}": data for key, fields in content.items() for field, data in fields.items()
    }


def test_webshart_pairs_json_with_its_sample(shards, content):
    index(shards, dialects=["webshart"])
    data = webshart.discover_dataset(source=str(Path(shards[0]).parent))
    loader = webshart.TarDataLoader(data)
    names = data.list_samples_in_shard(0)
    assert "n01/img0001.json" not in names
    row = names.index("n01/img0001.png")
    assert bytes(loader.load_sample(0, row).data) == content["n01/img0001"]["png"]
    assert bytes(loader.load_sample_json(0, row)) == content["n01/img0001"]["json"]


def test_webshart_finds_the_places_that_we_do(shards, tmp_path):
    """Its own look at the tar gives the same offsets and lengths."""
    import json

    folder, other = Path(shards[0]).parent, tmp_path / "theirs"
    other.mkdir()
    extractor = webshart.MetadataExtractor()
    extractor.extract_metadata(str(folder), str(other), max_workers=1)
    index(shards, dialects=["webshart"])
    for shard in shards:
        name = Path(shard).stem + ".json"
        ours, theirs = (json.loads((place / name).read_text()) for place in (folder, other))
        assert (ours["path"], ours["filesize"]) == (theirs["path"], theirs["filesize"])
        assert ours["files"] == {
            member: {"offset": facts["offset"], "length": facts["length"]}
            for member, facts in theirs["files"].items()
        }
