"""What these tests prove of the library's writer they prove of ``wds create``: both write the same bytes."""

from __future__ import annotations

from pathlib import Path

from wdscli.cli.main import main


def test_create_writes_what_the_library_writes(shards, content, tmp_path):
    for key, fields in content.items():
        for field, data in fields.items():
            place = tmp_path / "files" / f"{key}.{field}"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
    out = tmp_path / "made" / "train-%06d.tar"
    assert main(["create", str(tmp_path / "files"), "-o", str(out), "--max-count", "4"]) == 0
    made = sorted((tmp_path / "made").glob("*.tar"))
    assert [path.read_bytes() for path in made] == [Path(shard).read_bytes() for shard in shards]
