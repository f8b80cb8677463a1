"""ShardReader and ShardWriter: the library's face."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import examples

from wdscli.errors import DataError, InputError, OutputExistsError, UsageError
from wdscli.model import Sample
from wdscli.shards import ShardReader, ShardWriter
from wdscli.tar import Form

names = st.text(st.characters(codec="utf-8", exclude_characters="./\0"), min_size=1, max_size=8).filter(
    lambda name: not name.startswith("__")
)


def read(*paths: Path) -> list[tuple[str, dict[str, bytes]]]:
    found = []
    for path in paths:
        with ShardReader(str(path)) as shard:
            found += [(sample.key, dict(sample)) for sample in shard]
    return found


class TestRoundTrip:
    @settings(
        max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    @given(
        st.dictionaries(
            names, st.dictionaries(names, st.binary(max_size=1500), min_size=1, max_size=4), max_size=6
        )
    )
    def test_what_is_written_is_read(self, tmp_path: Path, content: dict[str, dict[str, bytes]]) -> None:
        path = tmp_path / "a.tar"
        with ShardWriter(str(path), force=True) as writer:
            for key, fields in content.items():
                writer.write(key, fields)
        assert read(path) == list(content.items())
        with tarfile.open(path) as tar:
            assert tar.getnames() == [f"{key}.{field}" for key, fields in content.items() for field in fields]

    def test_a_sample_that_was_read_can_be_written(self, tmp_path: Path) -> None:
        with ShardWriter(str(tmp_path / "a.tar")) as writer:
            writer.write("x/y", {"b": b"1", "a": b"2"})
        with ShardReader(str(tmp_path / "a.tar")) as shard, ShardWriter(str(tmp_path / "b.tar")) as writer:
            for sample in shard:
                writer.write(sample)
        assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
        assert isinstance(sample, Sample)
        assert (sample.key, list(sample), sample.shard, sample.index) == (
            "x/y",
            ["b", "a"],
            str(tmp_path / "a.tar"),
            0,
        )

    def test_names_that_are_not_utf_8(self, tmp_path: Path) -> None:
        with ShardWriter(str(tmp_path / "a.tar")) as writer:
            writer.write("caf\udce9", {"\udcff": b"1"})
        assert read(tmp_path / "a.tar") == [("caf\udce9", {"\udcff": b"1"})]
        assert b"caf\xe9.\xff\0" in (tmp_path / "a.tar").read_bytes()

    def test_a_payload_may_be_changed_once_it_is_written(self, tmp_path: Path) -> None:
        data = bytearray(b"before")
        with ShardWriter(str(tmp_path / "a.tar")) as writer:
            writer.write("a", {"x": data, "y": memoryview(data)[:3]})
            data[:] = b"after!"
        assert read(tmp_path / "a.tar") == [("a", {"x": b"before", "y": b"bef"})]

    def test_large_payloads_go_through_as_they_are(self, tmp_path: Path) -> None:
        big = os.urandom(300_001)
        with ShardWriter(str(tmp_path / "a.tar")) as writer:
            writer.write("a", {"x": big, "y": b"small"})
            writer.write("b", {"y": b"small"})
        assert read(tmp_path / "a.tar") == [("a", {"x": big, "y": b"small"}), ("b", {"y": b"small"})]


class TestReader:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        with ShardWriter(str(tmp_path / "a.tar")) as writer:
            writer.write("a", {"cls": b"0", "jpg": b"x" * 3000})
            writer.write("b", {"cls": b"1"})
        return tmp_path / "a.tar"

    def test_it_can_be_read_again(self, path: Path) -> None:
        with ShardReader(str(path)) as shard:
            assert [s.key for s in shard] == [s.key for s in shard] == list(shard.keys()) == ["a", "b"]

    def test_fields_limit_what_is_read(self, path: Path) -> None:
        with ShardReader(str(path), fields=["jpg"]) as shard:
            assert [(sample.key, list(sample)) for sample in shard] == [("a", ["jpg"])]

    def test_members(self, path: Path) -> None:
        with ShardReader(str(path)) as shard:
            assert [(m.name, m.offset, m.size) for m in shard.members()] == [
                ("a.cls", 512, 1),
                ("a.jpg", 1536, 3000),
                ("b.cls", 5120, 1),
            ]

    def test_a_stream(self, path: Path) -> None:
        with ShardReader(f"pipe:cat {path}") as shard:
            assert [sample.key for sample in shard] == ["a", "b"]

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(InputError):
            ShardReader(str(tmp_path / "none.tar"))

    def test_a_cut_shard_raises_after_its_whole_samples(self, path: Path) -> None:
        path.write_bytes(path.read_bytes()[:5300])
        seen = []
        with ShardReader(str(path)) as shard, pytest.raises(DataError) as caught:
            seen += [sample.key for sample in shard]
        assert caught.value.shard == str(path)
        assert caught.value.code == "truncated"

    def test_an_empty_shard(self, tmp_path: Path) -> None:
        with ShardWriter(str(tmp_path / "e.tar")) as writer:
            pass
        assert (tmp_path / "e.tar").read_bytes() == bytes(1024)
        assert read(tmp_path / "e.tar") == []
        assert writer.manifest.samples == 0
        with ShardWriter(str(tmp_path / "p-%06d.tar")) as writer:
            pass
        assert writer.manifest.shards == ()


class TestRolling:
    @pytest.mark.parametrize(("limit", "shards"), [(1024 + 3 * 1024, [3, 1]), (1024 + 3 * 1024 - 1, [2, 2])])
    def test_max_size_is_exact_to_the_byte(self, tmp_path: Path, limit: int, shards: list[int]) -> None:
        with ShardWriter(str(tmp_path / "t-%06d.tar"), max_size=limit) as writer:
            for number in range(4):
                writer.write(f"k{number}", {"txt": b"x" * 512})
        assert [shard.samples for shard in writer.manifest.shards] == shards
        assert all(
            (tmp_path / s.name).stat().st_size == s.size_bytes <= limit for s in writer.manifest.shards
        )

    @pytest.mark.parametrize("form", [Form(), Form(long_names="gnu")])
    def test_long_headers_count(self, tmp_path: Path, form: Form) -> None:
        key = "k" * 200
        with ShardWriter(str(tmp_path / "t-%06d.tar"), max_size=1024 + 4 * 512 * 2, form=form) as writer:
            for number in range(3):
                writer.write(f"{key}{number}", {"txt": b"x"})
        assert [shard.samples for shard in writer.manifest.shards] == [2, 1]
        assert writer.manifest.shards[0].size_bytes == 1024 + 4 * 512 * 2

    def test_a_sample_that_is_too_large_gets_its_own_shard(self, tmp_path: Path) -> None:
        with ShardWriter(str(tmp_path / "t-%06d.tar"), max_size=4096) as writer:
            for key, size in (("a", 1), ("b", 10_000), ("c", 1)):
                writer.write(key, {"txt": b"x" * size})
        assert [shard.samples for shard in writer.manifest.shards] == [1, 1, 1]

    def test_max_count(self, tmp_path: Path) -> None:
        with ShardWriter(str(tmp_path / "t-%06d.tar"), max_count=2) as writer:
            for number in range(5):
                writer.write(f"k{number}", {"txt": b"x"})
        assert [shard.samples for shard in writer.manifest.shards] == [2, 2, 1]

    @pytest.mark.parametrize("limits", [{"max_count": 0}, {"max_size": 0}, {"max_count": -1}])
    def test_limits_must_be_positive(self, tmp_path: Path, limits: dict[str, int]) -> None:
        with pytest.raises(UsageError):
            ShardWriter(str(tmp_path / "t-%06d.tar"), **limits)  # type: ignore[arg-type]


class TestWriter:
    @pytest.mark.parametrize(
        ("key", "fields"),
        [
            ("a", {}),
            ("", {"txt": b""}),
            ("/etc/a", {"txt": b""}),
            ("a/../b", {"txt": b""}),
            ("a.b", {"txt": b""}),
            ("a", {"x/y": b""}),
            ("a", {"": b""}),
            ("a\0b", {"txt": b""}),
            ("__a__/b", {"txt": b""}),
            ("__a", {"txt": b"", "b__": b""}),
            ("a", {"txt": b"", "x/y": b""}),
            ("a", {"txt": "text"}),
            ("a", {"txt": None}),
            ("a", {"txt": 7}),
        ],
    )
    def test_what_would_not_read_back_is_refused(
        self, tmp_path: Path, key: str, fields: dict[str, bytes]
    ) -> None:
        with ShardWriter(str(tmp_path / "a.tar")) as writer:
            writer.write("good", {"txt": b"1"})
            with pytest.raises(UsageError):
                writer.write(key, fields)
            writer.write("better", {"txt": b"2"})
        assert [key for key, _ in read(tmp_path / "a.tar")] == ["good", "better"]

    def test_a_key_twice_is_refused(self, tmp_path: Path) -> None:
        with ShardWriter(str(tmp_path / "a.tar")) as writer:
            for key in "ab":
                writer.write(key, {"txt": b"1"})
            with pytest.raises(DataError) as caught:
                writer.write("a", {"txt": b"1"})
        assert caught.value.code == "duplicate-key"

    def test_nothing_can_be_written_after_the_end(self, tmp_path: Path) -> None:
        writer = ShardWriter(str(tmp_path / "t-%06d.tar"))
        writer.write("a", {"txt": b"1"})
        assert writer.close() is writer.close()
        with pytest.raises(UsageError, match="closed"):
            writer.write("b", {"txt": b"1"})

    def test_a_discarded_writer_stays_discarded(self, tmp_path: Path) -> None:
        writer = ShardWriter(str(tmp_path / "t-%06d.tar"))
        writer.write("a", {"txt": b"1"})
        writer.discard()
        with pytest.raises(UsageError):
            writer.close()
        assert os.listdir(tmp_path) == []

    def test_force_and_its_absence(self, tmp_path: Path) -> None:
        for _ in range(2):
            with ShardWriter(str(tmp_path / "a.tar"), force=True) as writer:
                writer.write("a", {"txt": b"1"})
        with pytest.raises(OutputExistsError):
            ShardWriter(str(tmp_path / "a.tar"))

    @pytest.mark.parametrize("checksum", ["xxh3_128", "sha256", "none"])
    def test_the_checksum_is_that_of_the_file(self, tmp_path: Path, checksum: str) -> None:
        import hashlib

        from xxhash import xxh3_128

        with ShardWriter(str(tmp_path / "a.tar"), checksum=checksum) as writer:
            writer.write("a", {"txt": b"x" * 100_000})
        data = (tmp_path / "a.tar").read_bytes()
        told = {
            "xxh3_128": "xxh3_128:" + xxh3_128(data).hexdigest(),
            "sha256": "sha256:" + hashlib.sha256(data).hexdigest(),
            "none": None,
        }
        assert writer.manifest.shards[0].checksum == told[checksum]

    def test_an_unknown_checksum(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="md4"):
            ShardWriter(str(tmp_path / "a.tar"), checksum="md4")
        assert os.listdir(tmp_path) == []

    def test_no_index(self, tmp_path: Path) -> None:
        with ShardWriter(str(tmp_path / "a.tar"), with_index=False) as writer:
            writer.write("a", {"txt": b"1"})
        assert not (tmp_path / ".wds").exists()

    def test_gnu_tar_writes_the_same(self, tmp_path: Path) -> None:
        (tmp_path / "in").mkdir()
        for name in ("a.cls", "a.jpg", "b.cls"):
            (tmp_path / "in" / name).write_bytes(name.encode() * 99)
        with ShardWriter(str(tmp_path / "ours.tar")) as writer:
            writer.write("a", {"cls": b"a.cls" * 99, "jpg": b"a.jpg" * 99})
            writer.write("b", {"cls": b"b.cls" * 99})
        owner = ["--owner=0", "--group=0", "--numeric-owner", "--mode=0644"]
        command = ["tar", "cf", "../gnu.tar", "--format=ustar", "--mtime=@0", *owner, "-b", "1"]
        subprocess.run([*command, "a.cls", "a.jpg", "b.cls"], check=True, cwd=tmp_path / "in")
        assert (tmp_path / "ours.tar").read_bytes() == (tmp_path / "gnu.tar").read_bytes()

    def test_to_a_command(self, tmp_path: Path) -> None:
        with ShardWriter(f"pipe:cat > {tmp_path}/x.tar") as writer:
            writer.write("a", {"txt": b"1"})
        assert sorted(os.listdir(tmp_path)) == ["x.tar"]
        assert read(tmp_path / "x.tar") == [("a", {"txt": b"1"})]


def test_the_library_imports_no_command_line() -> None:
    heavy = "{'typer', 'rich', 'numpy', 'fsspec'}"
    code = f"import sys, wdscli.shards.writing, wdscli.shards.reading; print({heavy} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
