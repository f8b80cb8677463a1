"""Sets of compressed shards: each command that writes shards writes them, and each that reads jumps about in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from packages import LZ4, NEEDS_ZSTANDARD, ZST
from shard_cases import content, members_of, numbered, outputs, wds, write_shards

from wdscli.errors import WdsError
from wdscli.loader import IndexedDataset, WebDataset
from wdscli.shards import find_index
from wdscli.storage import open_source

ENDS = ["gz", "bz2", "xz", ZST, LZ4]
JUMPS = ["gz", ZST]


@pytest.fixture
def plain(tmp_path: Path) -> str:
    write_shards(tmp_path / "in", [numbered(20, "a"), numbered(25, "b"), numbered(7, "c")])
    assert wds("index", "-q", tmp_path / "in").code == 0
    return str(tmp_path / "in")


def unpacked(*shards: Path) -> list[tuple[str, bytes]]:
    found = []
    for shard in shards:
        with open_source(str(shard)) as source:
            found += members_of(source.read_at(0, 1 << 30))
    return found


def packed_set(plain: str, end: str, *options: object) -> Path:
    """The samples of ``plain`` in compressed shards of twelve."""
    folder = Path(plain).parent / end
    done = wds("split", "-q", plain, "-o", f"{folder}/out-%06d.tar.{end}", "--max-count", 12, *options)
    assert (done.code, done.err) == (0, "")
    return folder


@pytest.mark.parametrize("end", ENDS)
class TestEveryFormat:
    def test_the_same_samples_and_a_true_manifest(self, plain: str, end: str, tmp_path: Path) -> None:
        folder = packed_set(plain, end)
        shards = outputs(folder, "out-*.tar.*")
        assert len(shards) == 5
        assert unpacked(*shards) == unpacked(*outputs(tmp_path / "in", "*.tar"))
        done = wds("verify", "-q", "--checksums", folder)
        assert (done.code, done.out) == (0, b"")
        listed = json.loads((folder / "out-manifest.json").read_text())
        assert [one["filesize"] for one in listed["shardlist"]] == [shard.stat().st_size for shard in shards]

    @pytest.mark.exhaustive
    def test_jobs_and_memory_change_no_byte(self, plain: str, end: str, shared_workers: Any) -> None:
        before = content(packed_set(plain, end, "-j", 1))
        assert content(packed_set(plain, end, "-j", 2, "--strategy", "spill", "--force")) == before

    def test_one_file(self, plain: str, end: str, tmp_path: Path) -> None:
        target = tmp_path / f"all.tar.{end}"
        assert wds("cat", plain, "-o", target).code == 0
        assert unpacked(target) == unpacked(*outputs(tmp_path / "in", "*.tar"))
        assert (tmp_path / "all-manifest.json").exists()

    def test_a_run_that_fails_leaves_nothing(self, plain: str, end: str, tmp_path: Path) -> None:
        done = wds("cat", plain, f"{plain}/nothing.tar", "-o", tmp_path / f"all.tar.{end}")
        assert done.code == 4
        assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize("end", JUMPS)
class TestInBlocks:
    def test_an_index_lies_beside(self, plain: str, end: str) -> None:
        for shard in outputs(packed_set(plain, end), "out-*.tar.*"):
            with open_source(str(shard)) as source:
                index = find_index(str(shard), source)
                assert index is not None
                assert index.size == source.size

    def test_one_that_was_lost_is_made_again(self, plain: str, end: str) -> None:
        folder = packed_set(plain, end)
        before = content(folder)
        (folder / ".wds" / f"out-000001.tar.{end}.wdx").unlink()
        assert wds("index", "-q", folder).code == 0
        assert content(folder) == before

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("strategy", ["gather", "spill"])
    def test_shuffled(self, plain: str, end: str, strategy: str, tmp_path: Path) -> None:
        folder = packed_set(plain, end)
        same = packed_set(plain, "xz")
        for one, out in ((folder, "here"), (same, "there")):
            done = wds("shuffle", "-v", one, "-o", tmp_path / out / "s.tar", "--strategy", strategy)
            assert done.code == 0
            assert ("copied first" in done.err) == (out == "there")
        assert (tmp_path / "here/s.tar").read_bytes() == (tmp_path / "there/s.tar").read_bytes()

    def test_resumed(self, plain: str, end: str, tmp_path: Path) -> None:
        folder = packed_set(plain, end)
        before = content(folder)
        (folder / f"out-000002.tar.{end}").unlink()
        (folder / "out-manifest.json").unlink()
        assert packed_set(plain, end, "--resume", "--force") == folder
        assert content(folder) == before
        assert packed_set(plain, end, "--resume") == folder  # all of it stands
        assert content(folder) == before

    def test_a_stored_plan(self, plain: str, end: str, tmp_path: Path) -> None:
        folder = packed_set(plain, end)
        plan = tmp_path / "plan"
        assert (
            wds(
                "sort", "-q", folder, "-o", tmp_path / "t" / "o-%d.tar", "--max-count", 30, "--plan", plan
            ).code
            == 0
        )
        assert wds("run", "-q", plan).code == 0
        assert unpacked(*outputs(tmp_path / "t", "o-*.tar")) == unpacked(*outputs(tmp_path / "in", "*.tar"))

    def test_the_loader_jumps(self, plain: str, end: str) -> None:
        folder = packed_set(plain, end)
        table = IndexedDataset(f"{folder}/out-manifest.json")
        keys = [sample["__key__"] for sample in IndexedDataset(plain)]
        assert [table[at]["__key__"] for at in (0, 51, 17)] == [keys[0], keys[51], keys[17]]
        assert table[keys[23]]["__key__"] == keys[23]
        assert len(IndexedDataset(f"{folder}/out-000004.tar.{end}")) == 4
        for where in (f"{folder}/out-manifest.json", f"{folder}/out-00000*.tar.{end}"):
            data = WebDataset(where, shuffle="window")
            assert data.state_dict()
            assert sorted(sample["__key__"] for sample in data) == keys

    def test_a_block_that_broke(self, plain: str, end: str) -> None:
        shard = packed_set(plain, end) / f"out-000001.tar.{end}"
        data = bytearray(shard.read_bytes())
        data[len(data) // 2] ^= 8
        shard.write_bytes(data)
        for command in ("verify", "cat"):
            done = wds(command, shard, *(["-o", "/dev/null"] if command == "cat" else []))
            text = done.err + done.out.decode()
            assert done.code in (1, 3)
            assert "corrupt" in text
            assert text.count("at byte") == 1
            assert shard.name in text
            assert "at byte" in text


@pytest.mark.parametrize("end", ["bz2", "xz", "lz4"])
def test_formats_without_blocks_have_no_index_and_are_streamed(plain: str, end: str) -> None:
    folder = packed_set(plain, end)
    assert not (folder / ".wds").exists()
    assert len(list(WebDataset(f"{folder}/out-manifest.json"))) == 52
    with pytest.raises(WdsError):
        IndexedDataset(f"{folder}/out-manifest.json")[3]


@NEEDS_ZSTANDARD
def test_create(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    for number in range(30):
        (tmp_path / "f" / f"{number:03d}.txt").write_text(str(number) * 500)
    done = wds("create", tmp_path / "f", "-o", tmp_path / "o-%d.tar.zst", "--max-size", "10kB", "--json")
    assert done.code == 0
    shards = outputs(tmp_path, "o-*.tar.zst")
    assert len(shards) > 2
    assert done.objects[-1]["bytes"] == sum(shard.stat().st_size for shard in shards)
    assert len(unpacked(*shards)) == 30


def test_the_size_that_limits_is_that_of_the_tar(plain: str, tmp_path: Path) -> None:
    for end in ("tar", "tar.gz"):
        assert wds("split", "-q", plain, "-o", tmp_path / end / f"o-%d.{end}", "--max-size", "20kB").code == 0
    names = [
        [path.name.removesuffix(".gz") for path in outputs(tmp_path / end, "o-*")]
        for end in ("tar", "tar.gz")
    ]
    assert [name for name in names[0] if "json" not in name] == [
        name for name in names[1] if "json" not in name
    ]
