"""Where a view comes from, and whole shards that are linked or moved when a view becomes shards."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from shard_cases import assert_true_set, content, outputs, wds

from wdscli.cli.main import main
from wdscli.shards import ShardWriter, read_manifest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three shards of photos, and captions beside all of them."""
    monkeypatch.chdir(tmp_path)
    for name, field in (("photos", "jpg"), ("captions", "txt")):
        with ShardWriter(f"{name}/{name}-%06d.tar", max_count=5) as writer:
            for number in range(15):
                writer.write(f"k{number:02}", {field: bytes([number]) * 600})
    return tmp_path


def run(*words: object) -> None:
    assert main(["-q" if word == "QUIET" else str(word) for word in words]) == 0


def descent(view: str) -> list[str]:
    lines = wds("ls", "--summary", view).out.decode().splitlines()
    return [line.partition("\t")[2] for line in lines if line.startswith("descent\t")]


class TestDescent:
    def test_a_view_of_a_view_names_all_sets(self, folder: Path) -> None:
        run("split", "photos", "--keys", "k*[0-7]", "-o", "v2.json")
        run("cat", "v2.json", "--limit", 7, "-o", "v3.json")
        os.remove("v2.json")
        assert descent("v3.json") == ["v3 <- v2 <- photos"]
        view = read_manifest("v3.json").view
        assert view is not None
        assert [one.name for one in view.ancestors] == ["photos", "v2"]
        assert view.ancestors[0].fingerprint == read_manifest("photos/photos-manifest.json").fingerprint
        assert descent("photos") == []

    def test_several_inputs_are_all_named(self, folder: Path) -> None:
        run("merge", "--join", "left", "photos", "captions", "-o", "train.json")
        run("split", "train.json", "--keys", "k0*", "-o", "small.json")
        run("merge", "small.json", "train.json", "--on-duplicate", "skip", "-o", "both.json")
        assert descent("train.json") == ["train <- photos + captions"]
        assert descent("both.json") == [
            "both <- small + train",
            "small <- train <- photos + captions",
        ] or descent("both.json") == ["both <- small + train", "small <- train", "train <- photos + captions"]
        view = read_manifest("both.json").view
        assert view is not None
        assert [one.fingerprint for one in view.ancestors] == [
            read_manifest(one).fingerprint
            for one in (
                "photos/photos-manifest.json",
                "captions/captions-manifest.json",
                "train.json",
                "small.json",
            )
        ]

    def test_parts_of_a_set_and_folders_without_a_manifest(self, folder: Path) -> None:
        run("cat", *sorted(Path("photos").glob("*.tar"))[:2], "-o", "two.json")
        assert descent("two.json") == ["two <- photos"]
        os.remove("captions/captions-manifest.json")
        run("cat", "captions", "-o", "loose.json")
        assert descent("loose.json") == ["loose <- captions"]
        printed = json.loads(wds("ls", "--summary", "--json", "loose.json").out)
        assert printed["ancestors"] == [{"name": "captions", "fingerprint": None, "parents": []}]

    def test_a_view_made_real_names_the_view(self, folder: Path) -> None:
        """A view does not know the checksums of its own shards."""
        run("split", "photos", "--keys", "k0*", "-o", "v2.json")
        run("cat", "v2.json", "-o", "real/{name}.tar")
        [manifest] = Path("real").glob("*manifest.json")
        assert read_manifest(str(manifest)).made["inputs"] == [read_manifest("v2.json").fingerprint]

    @pytest.mark.parametrize(
        "broken", [{"parents": [9]}, {"ancestors": [{"name": "a", "fingerprint": None, "parents": [0]}]}]
    )
    def test_crafted_ancestors_are_an_error(self, broken: dict[str, Any], folder: Path) -> None:
        run("cat", "photos", "-o", "v.json")
        text = json.loads(Path("v.json").read_text())
        text["view"].update(broken)
        Path("v.json").write_text(json.dumps(text))
        done = wds("ls", "v.json")
        assert (done.code, "comes before the sets" in done.err) == (3, True)


def inodes(path: Path) -> list[int]:
    return [one.stat().st_ino for one in outputs(path, "*.tar")]


class TestLink:
    def test_whole_shards_are_linked_and_others_written(self, folder: Path) -> None:
        run("split", "photos", "--not-keys-from", listed(folder, "k07"), "-o", "v2.json")
        done = wds("cat", "v2.json", "-o", "linked/{name}.tar", "--link", "-v")
        assert done.code == 0
        assert done.err.count(": linked\n") == 2
        assert "000001.tar: copied, because" in done.err
        run("cat", "v2.json", "-o", "copied/{name}.tar")
        assert content(folder / "linked") == content(folder / "copied")
        assert_true_set(folder / "linked", "")
        is_base = [one in inodes(folder / "photos") for one in inodes(folder / "linked")]
        assert is_base == [True, False, True]
        assert not {*inodes(folder / "copied")} & {*inodes(folder / "photos")}

    def test_shards_of_a_set_are_linked_too(self, folder: Path) -> None:
        run("cat", "photos", "-o", "linked/{name}.tar", "--link")
        assert inodes(folder / "linked") == inodes(folder / "photos")
        run("verify", "-q", "--checksums", "linked")

    def test_force_replaces_a_link(self, folder: Path) -> None:
        for _ in range(2):
            run("cat", "photos", "-o", "linked/{name}.tar", "--link", "--force")
        assert inodes(folder / "linked") == inodes(folder / "photos")
        assert sorted(one.name for one in (folder / "linked").iterdir() if one.suffix == ".tmp") == []
        done = wds("cat", "photos", "-o", "linked/{name}.tar", "--link")
        assert (done.code, "output exists" in done.err) == (4, True)

    def test_a_disc_without_links_gets_copies(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(source: str, target: str, **options: Any) -> None:
            if ".tmp" in target:
                raise OSError(18, "Invalid cross-device link")
            link(source, target, **options)

        link = os.link
        monkeypatch.setattr(os, "link", fail)
        done = wds("cat", "photos", "-o", "copied/{name}.tar", "--link", "-v", "-j", 1)
        assert (done.code, done.err.count("copied, because")) == (0, 3)
        assert [one.read_bytes() for one in outputs(folder / "copied", "*.tar")] == [
            one.read_bytes() for one in outputs(folder / "photos", "*.tar")
        ]

    def test_a_changed_payload_is_not_listed_under_its_old_checksum(self, folder: Path) -> None:
        run("cat", "photos", "-o", "v.json")
        shard = folder / "photos" / "photos-000000.tar"
        data = bytearray(shard.read_bytes())
        data[512] ^= 1
        shard.write_bytes(data)
        run("cat", "v.json", "-o", "linked/{name}.tar", "--link")
        run("verify", "-q", "--checksums", "linked")

    def test_foreign_headers_and_indexless_shards_are_written(self, folder: Path) -> None:
        shutil.rmtree("photos/.wds")
        run("cat", "photos", "-o", "copied/{name}.tar", "--link")
        assert not {*inodes(folder / "copied")} & {*inodes(folder / "photos")}
        assert_true_set(folder / "copied", "")

    def test_link_needs_whole_shards(self, folder: Path) -> None:
        done = wds("cat", "photos", "-o", "all.tar", "--link")
        assert (done.code, "--link works only for whole shards" in done.err) == (2, True)


def listed(folder: Path, *keys: str) -> Path:
    path = folder / "keys.txt"
    path.write_text("".join(f"{key}\n" for key in keys))
    return path
