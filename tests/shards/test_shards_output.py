"""Writing a set: all or nothing, what is replaced, and what stays."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from shard_cases import wds

from wdscli.errors import OutputExistsError, UsageError
from wdscli.model import ShardInfo
from wdscli.shards import OutputSet, ShardSettings, ShardWriter
from wdscli.shards import writing as output_module
from wdscli.shards.writing import ShardFile


def write(pattern: Path, count: int, *, force: bool = False, **options: object) -> None:
    with ShardWriter(str(pattern), max_count=1, force=force, **options) as writer:  # type: ignore[arg-type]
        for number in range(count):
            writer.write(f"k{number}", {"txt": b"%d" % number})


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def fill(shard: ShardFile) -> ShardInfo:
    with shard:
        shard.write(b"new", [(b"txt", b"new")])
        return shard.commit()


class TestRefusal:
    @pytest.mark.parametrize("left", ["t-000000.tar", "t-000007.tar", "t-manifest.json"])
    def test_what_is_there_is_not_replaced_unasked(self, tmp_path: Path, left: str) -> None:
        (tmp_path / left).write_bytes(b"mine")
        with pytest.raises(OutputExistsError, match=left):
            write(tmp_path / "t-%06d.tar", 1)
        assert tree(tmp_path) == [left]
        assert (tmp_path / left).read_bytes() == b"mine"

    @pytest.mark.parametrize("way", ["same", "link", "dots"])
    def test_an_input_is_never_an_output(self, tmp_path: Path, way: str) -> None:
        write(tmp_path / "t-%06d.tar", 2)
        name = str(tmp_path / "t-000001.tar")
        if way == "link":
            os.symlink(name, tmp_path / "other.tar")
            name = str(tmp_path / "other.tar")
        elif way == "dots":
            name = str(tmp_path / "x" / ".." / "t-000001.tar")
        before = tree(tmp_path)
        output = OutputSet(str(tmp_path / "t-%06d.tar"), ShardSettings(force=True))
        with pytest.raises(UsageError, match="input"):
            output.begin([name])
        assert tree(tmp_path) == before

    def test_the_target_of_a_link_that_is_an_output_is_no_input(self, tmp_path: Path) -> None:
        write(tmp_path / "in.tar", 1)
        os.symlink(tmp_path / "in.tar", tmp_path / "out.tar")
        with pytest.raises(UsageError, match="input"):
            OutputSet(str(tmp_path / "out.tar"), ShardSettings(force=True)).begin([str(tmp_path / "in.tar")])

    def test_other_inputs_are_fine(self, tmp_path: Path) -> None:
        write(tmp_path / "in" / "t-%06d.tar", 2)
        write(tmp_path / "out" / "t-%06d.tar", 2)
        OutputSet(str(tmp_path / "out/t-%06d.tar"), ShardSettings(force=True)).begin(
            [str(tmp_path / "in/t-000000.tar")]
        )


class TestReplacing:
    def test_the_old_manifest_goes_before_the_first_shard_comes(self, tmp_path: Path) -> None:
        write(tmp_path / "t-%06d.tar", 2)
        old = (tmp_path / "t-000000.tar").read_bytes()
        output = OutputSet(str(tmp_path / "t-%06d.tar"), ShardSettings(force=True))
        output.begin()
        assert not (tmp_path / "t-manifest.json").exists()
        assert (tmp_path / "t-000000.tar").read_bytes() == old

    def test_the_longer_old_set_leaves_nothing(self, tmp_path: Path) -> None:
        write(tmp_path / "t-%06d.tar", 4)
        (tmp_path / "t-12.tar").write_bytes(b"mine")
        (tmp_path / "tt-000003.tar").write_bytes(b"mine")
        write(tmp_path / "t-%06d.tar", 2, force=True)
        assert tree(tmp_path) == [
            ".wds/t-000000.tar.wdx",
            ".wds/t-000001.tar.wdx",
            "t-000000.tar",
            "t-000001.tar",
            "t-12.tar",
            "t-manifest.json",
            "tt-000003.tar",
        ]

    def test_leftovers_stay_until_the_new_set_is_whole(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(tmp_path / "t-%06d.tar", 3)
        seen: list[list[str]] = []
        original = output_module.remove

        def watched(address: str) -> None:
            if not address.endswith(".wdx"):
                seen.append(tree(tmp_path))
            original(address)

        monkeypatch.setattr(output_module, "remove", watched)
        write(tmp_path / "t-%06d.tar", 1, force=True)
        first, *rest = seen
        assert "t-manifest.json" in first
        assert all("t-manifest.json" in there for there in rest)

    def test_a_set_in_numbered_folders(self, tmp_path: Path) -> None:
        write(tmp_path / "p%02d" / "a.tar", 3)
        manifest = json.loads(
            (tmp_path / "p-manifest.json").read_text() if (tmp_path / "p-manifest.json").exists() else "{}"
        )
        assert [shard["url"] for shard in manifest["shardlist"]] == ["p00/a.tar", "p01/a.tar", "p02/a.tar"]
        write(tmp_path / "p%02d" / "a.tar", 1, force=True)
        assert tree(tmp_path) == ["p-manifest.json", "p00/.wds/a.tar.wdx", "p00/a.tar"]

    def test_without_index_the_old_indexes_go_too(self, tmp_path: Path) -> None:
        write(tmp_path / "t-%06d.tar", 2)
        write(tmp_path / "t-%06d.tar", 2, force=True, with_index=False)
        assert tree(tmp_path) == ["t-000000.tar", "t-000001.tar", "t-manifest.json"]


class TestAtomicity:
    def test_an_exception_leaves_whole_shards_and_no_manifest(self, tmp_path: Path) -> None:
        with (
            pytest.raises(KeyboardInterrupt),
            ShardWriter(str(tmp_path / "t-%06d.tar"), max_count=2) as writer,
        ):
            for number in range(5):
                writer.write(f"k{number}", {"txt": b"x" * 100_000})
            raise KeyboardInterrupt
        assert tree(tmp_path) == [
            ".t.unfinished",
            ".wds/t-000000.tar.wdx",
            ".wds/t-000001.tar.wdx",
            "t-000000.tar",
            "t-000001.tar",
        ]

    def test_a_replacement_that_fails_leaves_no_manifest(self, tmp_path: Path) -> None:
        write(tmp_path / "t-%06d.tar", 3)
        old = (tmp_path / "t-000002.tar").read_bytes()
        with pytest.raises(RuntimeError), ShardWriter(str(tmp_path / "t-%06d.tar"), force=True) as writer:
            writer.write("k", {"txt": b"1"})
            raise RuntimeError
        assert "t-manifest.json" not in tree(tmp_path)
        assert (tmp_path / "t-000002.tar").read_bytes() == old

    def test_a_shard_that_is_not_committed_never_was(self, tmp_path: Path) -> None:
        with ShardFile(str(tmp_path / "a.tar")) as shard:
            shard.write(b"k", [(b"txt", b"1")])
        assert tree(tmp_path) == []

    def test_the_manifest_comes_last(self, tmp_path: Path) -> None:
        output = OutputSet(str(tmp_path / "t-%06d.tar"))
        output.begin()
        info = fill(output.settings.open(output.address(0)))
        assert tree(tmp_path) == [".t.unfinished", ".wds/t-000000.tar.wdx", "t-000000.tar"]
        output.finish([info], operation="test", options={"a": 1}, seed=7, inputs=["x", None])
        made = json.loads((tmp_path / "t-manifest.json").read_text())["wdscli"]["made"]
        assert made == {"operation": "test", "options": {"a": 1}, "seed": 7, "inputs": ["x", None]}

    def test_a_stream_has_no_manifest(self) -> None:
        assert OutputSet("-").manifest_address is None
        assert OutputSet("pipe:cat").manifest_address is None


class TestFsync:
    def test_fsync_reaches_shard_index_and_manifest(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced: list[int] = []
        original = os.fsync
        monkeypatch.setattr(
            os, "fsync", lambda descriptor: (synced.append(descriptor), original(descriptor))[1]
        )
        write(tmp_path / "a-%06d.tar", 1)
        assert synced == []
        write(tmp_path / "b-%06d.tar", 1, fsync=True)
        # Each of the three files and the state, and the folder that got its name.
        assert len(synced) == 8


@pytest.mark.parametrize(
    "line", ["create", "cat", "split", "merge", "shuffle", "sort --by key", "map --filter txt cat"]
)
def test_an_output_without_number_and_suffix(line: str, tmp_path: Path) -> None:
    """A folder was meant; nothing is written."""
    command, *more = line.split()
    write(tmp_path / "in" / "a-%06d.tar", 1)
    given = tmp_path / "in" if command != "create" else Path(__file__)
    ran = wds(command, given, *more, "-o", tmp_path / "out")
    assert ran.code == 2, ran.err
    assert f"hint: use -o {tmp_path}/out/%06d.tar" in ran.err
    assert not (tmp_path / "out").exists()
