"""wds index: what it makes, keeps, refuses and checks, and the files it writes for other readers."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from indexing import index
from shard_cases import wds
from storage_servers import Web, web_server

from wdscli.cli.main import main
from wdscli.errors import DataError, UsageError
from wdscli.samples import SampleBatch, iter_batches
from wdscli.shards import ShardWriter, find_index, read_manifest
from wdscli.shards.index import index_address
from wdscli.shards.manifest import common_folder, name_from, set_prefix
from wdscli.storage import exists, open_sink, open_source


class Done(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def call(*args: object) -> Done:
        code = main(["index", *map(str, args)])
        out, err = capfd.readouterr()
        return Done(code, out, err)

    return call


def shard(path: Path, names: list[str], **options: Any) -> str:
    """A tar as others make them, with GNU tar's form and each name as payload."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", **options) as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(name), 1_700_000_000.5
            tar.addfile(info, io.BytesIO(name.encode()))
    return str(path)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """set/train-00000N.tar, two shards of foreign make; the current folder is tmp_path."""
    shard(tmp_path / "set/train-000000.tar", ["a.cls", "a.jpg", "b.cls", "b.jpg"])
    shard(tmp_path / "set/train-000001.tar", ["README", "c.cls", "c.jpg"])
    monkeypatch.chdir(tmp_path)
    return tmp_path / "set"


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


MADE = [
    ".wds/train-000000.tar.wdx",
    ".wds/train-000001.tar.wdx",
    "train-000000.tar",
    "train-000001.tar",
    "train-manifest.json",
]


class TestMaking:
    def test_indexes_and_a_manifest(self, run: Run, folder: Path) -> None:
        done = run("set")
        assert (done.code, done.out) == (0, "")
        assert done.err.startswith("2 shards, 3 samples, ")
        assert ": 3 files made, 0 kept in " in done.err
        assert tree(folder) == MADE
        manifest = read_manifest(str(folder / "train-manifest.json"))
        assert manifest.name == "train"
        assert [(s.name, s.samples, s.members, s.index) for s in manifest.shards] == [
            ("train-000000.tar", 2, 4, True),
            ("train-000001.tar", 1, 2, True),
        ]
        assert manifest.made["operation"] == "index"
        for name in ("train-000000.tar", "train-000001.tar"):
            with open_source(str(folder / name)) as source:
                found = find_index(str(folder / name), source)
            assert found is not None
        assert found.ignored == {"no-field": 1}

    def test_it_is_the_manifest_that_writing_makes(self, run: Run, tmp_path: Path) -> None:
        with ShardWriter(str(tmp_path / "t-%06d.tar"), max_count=2) as writer:
            for number in range(3):
                writer.write(f"k{number}", {"txt": b"1"})
        written = {path: path.read_bytes() for path in sorted((tmp_path / ".wds").iterdir())}
        assert run("--force", tmp_path).code == 0
        assert {path: path.read_bytes() for path in sorted((tmp_path / ".wds").iterdir())} == written
        assert read_manifest(str(tmp_path / "t-manifest.json")).shards == writer.manifest.shards

    def test_what_is_up_to_date_is_kept(self, run: Run, folder: Path) -> None:
        run("set")
        before = {name: (folder / name).stat().st_mtime_ns for name in MADE}
        assert ": 0 files made, 3 kept in " in run("set").err
        assert {name: (folder / name).stat().st_mtime_ns for name in MADE} == before

    def test_force_makes_all_anew(self, run: Run, folder: Path) -> None:
        run("set")
        inodes = {name: (folder / name).stat().st_ino for name in MADE}
        data = {name: (folder / name).read_bytes() for name in MADE}
        assert ": 3 files made, 0 kept in " in run("--force", "set").err
        assert {name: (folder / name).read_bytes() for name in MADE} == data
        assert {name for name in MADE if (folder / name).stat().st_ino != inodes[name]} >= {MADE[0], MADE[4]}

    def test_a_stale_index_is_made_again_and_the_manifest_not_believed(self, run: Run, folder: Path) -> None:
        run("set")
        shard(folder / "train-000001.tar", ["z.cls", "z.jpg"])
        done = run("set")
        assert done.code == 3
        assert "train-manifest.json does not match the shard" in done.err
        assert "--force" in done.err
        assert run("--force", "set").code == 0
        assert read_manifest(str(folder / "train-manifest.json")).shards[1].samples == 1

    def test_how_a_set_was_made_is_not_forgotten(self, run: Run, tmp_path: Path) -> None:
        with ShardWriter(str(tmp_path / "t-%06d.tar"), checksum="none", with_index=False) as writer:
            writer.write("a", {"txt": b"1"})
        done = run(tmp_path)
        assert done.code == 0
        manifest = read_manifest(str(tmp_path / "t-manifest.json"))
        assert manifest.made == writer.manifest.made
        assert manifest.shards[0].checksum is not None
        assert manifest.shards[0].index

    def test_classes_outlive_force_unless_the_shards_are_others(self, run: Run, tmp_path: Path) -> None:
        from wdscli.shards import OutputSet

        output = OutputSet(str(tmp_path / "t-%06d.tar"))
        with output.settings.open(output.address(0)) as made:
            made.write(b"a", [(b"cls", b"1")])
            output.finish([made.commit()], operation="create", classes=["cat", "dog"])
        assert run(tmp_path, "--force").code == 0
        manifest = read_manifest(str(tmp_path / "t-manifest.json"))
        assert (manifest.classes, manifest.made["operation"]) == (("cat", "dog"), "create")
        shard(tmp_path / "t-000000.tar", ["z.cls"])
        assert run(tmp_path, "--force").code == 0
        manifest = read_manifest(str(tmp_path / "t-manifest.json"))
        assert (manifest.classes, manifest.made["operation"]) == (None, "index")

    def test_a_payload_that_changed_contradicts_the_manifest(self, run: Run, folder: Path) -> None:
        run("set")
        data = bytearray((folder / "train-000000.tar").read_bytes())
        assert data[1536:1541] == b"a.cls"
        data[1536] ^= 1
        status = (folder / "train-manifest.json").stat()
        (folder / "train-000000.tar").write_bytes(data)
        os.utime(folder / "train-000000.tar", ns=(status.st_mtime_ns + 10**9,) * 2)
        assert run("set").code == 3

    def test_checksums_are_not_read_twice(
        self, run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run("set")
        monkeypatch.setattr("wdscli.ops.index._Digests.update", lambda *_: pytest.fail("it was read"))
        assert ": 0 files made, 3 kept in " in run("set").err


class TestOptions:
    def test_output(self, run: Run, folder: Path) -> None:
        assert run("set", "-o", "meta/m.json").code == 0
        document = json.loads(Path("meta/m.json").read_text())
        assert [entry["url"] for entry in document["shardlist"]] == [
            "../set/train-000000.tar",
            "../set/train-000001.tar",
        ]
        assert "train-manifest.json" not in tree(folder)
        from wdscli.shards import open_set

        assert all(os.path.exists(address) for address in open_set(["meta/m.json"]).addresses)

    def test_output_never_holds_an_absolute_path(self, run: Run, folder: Path) -> None:
        assert run(folder.absolute(), "-o", "m.json").code == 0
        assert str(folder.absolute()) not in Path("m.json").read_text()

    def test_output_to_standard_output(self, run: Run, folder: Path) -> None:
        done = run("set", "-o", "-")
        assert json.loads(done.out)["shardlist"][0]["nsamples"] == 2

    def test_another_manifest_is_not_replaced_unasked(self, run: Run, folder: Path) -> None:
        Path("m.json").write_text("{}")
        assert run("set", "-o", "m.json").code == 4
        assert Path("m.json").read_text() == "{}"
        run("set/train-000000.tar", "-o", "one.json")
        done = run("set", "-o", "one.json")
        assert done.code == 4
        assert "other shards" in done.err
        assert "--no-manifest" in done.err
        assert MADE[1] not in tree(folder), "nothing is done before it is refused"
        assert run("set", "-o", "m.json", "--force").code == 0

    def test_no_manifest(self, run: Run, folder: Path) -> None:
        assert run("--no-manifest", "set").code == 0
        assert tree(folder) == MADE[:-1]

    def test_no_index(self, run: Run, folder: Path) -> None:
        assert run("--no-index", "set").code == 0
        assert tree(folder) == MADE[2:]
        assert json.loads((folder / "train-manifest.json").read_text())["wdscli"]["index"] is None

    @pytest.mark.parametrize("args", [["--no-index", "--no-manifest"], ["--no-manifest", "-o", "x"]])
    def test_options_that_leave_nothing(self, run: Run, folder: Path, args: list[str]) -> None:
        assert run("set", *args).code == 2
        assert tree(folder) == MADE[2:4]

    @pytest.mark.parametrize("checksum", ["sha256", "none"])
    def test_checksum(self, run: Run, folder: Path, checksum: str) -> None:
        from hashlib import sha256

        assert run("set", "--hash", checksum).code == 0
        told = read_manifest(str(folder / "train-manifest.json")).shards[0].checksum
        digest = sha256((folder / "train-000000.tar").read_bytes()).hexdigest()
        assert told == {"sha256": f"sha256:{digest}", "none": None}[checksum]

    def test_without_checksum_payloads_are_not_read(self, run: Run, tmp_path: Path) -> None:
        path = Path(shard(tmp_path / "a.tar", ["a.bin"]))
        size = 1 << 40
        with path.open("r+b") as file:
            block = tarfile.TarInfo("a.bin")
            block.size = size
            file.write(block.tobuf(tarfile.GNU_FORMAT))
            file.truncate(512 + size + 1024)
        assert run(path, "--hash", "none").code == 0

    def test_check(self, run: Run, folder: Path) -> None:
        done = run("--check", "set")
        assert done.code == 1
        assert done.out.splitlines() == [
            "set/.wds/train-000000.tar.wdx: missing",
            "set/.wds/train-000001.tar.wdx: missing",
            "set/train-manifest.json: missing",
        ]
        assert tree(folder) == MADE[2:4]
        run("set")
        assert run("--check", "set")[:2] == (0, "")
        os.utime(folder / ".wds/train-000001.tar.wdx", (0, 0))
        assert run("--check", "set")[:2] == (0, "")
        index_file = folder / ".wds/train-000001.tar.wdx"
        index_file.write_bytes(index_file.read_bytes()[:-1])
        assert run("--check", "set")[:2] == (1, "set/.wds/train-000001.tar.wdx: stale\n")

    def test_dry_run(self, run: Run, folder: Path) -> None:
        done = run("-n", "set")
        assert done.code == 0
        assert len(done.out.splitlines()) == 3
        assert done.err.endswith("3 files to be made, 0 kept\n")
        assert tree(folder) == MADE[2:4]

    def test_json(self, run: Run, folder: Path) -> None:
        lines = [json.loads(line) for line in run("--json", "set").out.splitlines()]
        assert lines[0] == {
            "file": "set/.wds/train-000000.tar.wdx",
            "state": "made",
            "reason": "there was none",
            "shard": "set/train-000000.tar",
        }
        assert [line["file"] for line in lines][-1] == "set/train-manifest.json"

    def test_quiet(self, run: Run, folder: Path) -> None:
        assert run("-q", "set").err == ""

    def test_verbose(self, run: Run, folder: Path) -> None:
        assert "set/.wds/train-000000.tar.wdx: made (there was none)" in run("-v", "set").err

    @pytest.mark.exhaustive
    def test_jobs_do_not_show(self, run: Run, folder: Path) -> None:
        run("set", "-j", "1")
        one = {name: (folder / name).read_bytes() for name in MADE}
        for name in (MADE[0], MADE[1], MADE[4]):
            (folder / name).unlink()
        assert run("set", "-j", "2").code == 0
        assert {name: (folder / name).read_bytes() for name in MADE} == one

    def test_jobs_are_processes(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from wdscli.ops import index as _  # noqa: F401

        asked: list[int] = []
        module = sys.modules["wdscli.ops.index"]
        original = module.make_executor
        monkeypatch.setattr(module, "make_executor", lambda jobs: (asked.append(jobs), original(1))[1])
        index(["set"], jobs=2)
        index(["set"])
        assert asked == [2, 1]


class TestShardsThatWereRenamedOrRemoved:
    """The way out of an incomplete set: `ls` names it, and it works."""

    def test_a_renamed_shard(self, run: Run, folder: Path) -> None:
        """A second manifest was written beside the old one, and `ls` still failed."""
        run("set")
        (folder / "train-000001.tar").rename(folder / "val-000000.tar")
        ran = wds("ls", "set")
        assert ran.code == 4
        assert "accept the set as it is: wds index --force set/" in ran.err
        assert run("set").code == 4
        assert run("--check", "set").code == 1
        assert run("-n", "--force", "set").code == 0
        assert (folder / "train-manifest.json").exists()
        done = run("--force", "set")
        assert done.code == 0
        assert "removed set/train-manifest.json, because it lists shards that do not exist" in done.err
        assert sorted(path.name for path in folder.glob("*.json")) == ["manifest.json"]
        assert wds("ls", "set").code == 0

    def test_a_removed_shard(self, run: Run, folder: Path) -> None:
        run("set")
        (folder / "train-000001.tar").unlink()
        assert run("set/train-000000.tar", "--force", "-o", "set/one.json").code == 0
        assert (folder / "train-manifest.json").exists()
        assert run("--force", "set").code == 0
        assert wds("ls", "set").code == 0
        assert [shard.name for shard in read_manifest("set/train-manifest.json").shards] == [
            "train-000000.tar"
        ]

    def test_other_sets_of_the_folder_are_kept(self, run: Run, folder: Path) -> None:
        shard(folder / "a-0.tar", ["x.txt"])
        shard(folder / "a-1.tar", ["y.txt"])
        run("set/a-*.tar")
        run("set/train-*.tar")
        (folder / "train-000001.tar").rename(folder / "val-0.tar")
        assert run("--force", "set/*.tar").code == 0
        assert sorted(path.name for path in folder.glob("*.json")) == ["a-manifest.json", "manifest.json"]


def plain(batch: SampleBatch) -> Iterator[tuple[object, ...]]:
    """Samples one by one, however batches were cut."""
    for row, key in enumerate(batch.keys):
        members = slice(batch.firsts[row], batch.firsts[row + 1])
        columns = (batch.fields, batch.offsets, batch.sizes)
        yield key, batch.start(row), batch.marks[row], *[column[members] for column in columns]


class TestForeign:
    @pytest.mark.parametrize("form", ["v7", "oldgnu", "gnu", "ustar", "pax"])
    def test_what_gnu_tar_writes(self, tmp_path: Path, form: str) -> None:
        """Headers of every kind, folders between samples: an index that says what a scan says."""
        long = "n" * (60 if form in ("v7", "ustar") else 150)
        for name in ("a/x.txt", f"a/{long}.txt", "b/README", "b/y.cls", "b/y.txt"):
            (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "in" / name).write_bytes(name.encode() * 50)
        place = tmp_path / "x.tar"
        command = ["tar", "cf", "../x.tar", f"--format={form}", "--sort=name", "a", "b"]
        subprocess.run(command, check=True, cwd=tmp_path / "in")
        index([str(place)])
        with open_source(str(place)) as source:
            found = find_index(str(place), source)
            assert found is not None
            scanned = [sample for batch in iter_batches(source) for sample in plain(batch)]
        assert list(plain(found.batch())) == scanned
        assert len(scanned) == 3
        assert found.ignored == {"directory": 2, "no-field": 1}

    def test_global_headers(self, tmp_path: Path) -> None:
        place = shard(tmp_path / "x.tar", ["a.txt", "b.txt"], pax_headers={"comment": "all"})
        index([place])
        with open_source(place) as source:
            found = find_index(place, source)
        assert found is not None
        assert all(mark & 16 for mark in found.marks.tolist())


class TestRefusals:
    def test_a_damaged_shard_is_named(self, run: Run, folder: Path) -> None:
        path = folder / "train-000001.tar"
        path.write_bytes(path.read_bytes()[:1000])
        done = run("set")
        assert done.code == 3
        assert "set/train-000001.tar" in done.err
        assert "train-manifest.json" not in tree(folder)

    def test_a_key_twice_in_a_shard(self, folder: Path) -> None:
        name = shard(folder / "train-000001.tar", ["a.x", "b.x", "a.y"])
        with pytest.raises(DataError) as caught:
            index([name])
        error = caught.value
        assert (error.code, error.shard, error.offset, error.member) == ("duplicate-key", name, 4096, "a")

    def test_a_compressed_shard(self, run: Run, tmp_path: Path) -> None:
        import gzip

        name = shard(tmp_path / "a.tar", ["a.x"])
        (tmp_path / "b.tar.gz").write_bytes(gzip.compress(Path(name).read_bytes()))
        done = run(tmp_path / "b.tar.gz")
        assert done.code == 2
        assert "compressed" in done.err
        assert "wds cat" in done.err

    @pytest.mark.parametrize("address", ["-", "pipe:cat x.tar"])
    def test_a_stream(self, run: Run, address: str) -> None:
        done = run(address)
        assert done.code == 2
        assert "stream" in done.err

    def test_a_shard_named_twice(self, folder: Path) -> None:
        with pytest.raises(UsageError, match="twice"):
            index(["set/train-000000.tar", "set/train-000000.tar"])

    def test_a_shard_that_is_not_there(self, run: Run, tmp_path: Path) -> None:
        assert run(tmp_path / "none.tar").code == 4


class TestPlaces:
    def test_shards_in_several_folders(self, run: Run, tmp_path: Path) -> None:
        for part in "ab":
            shard(tmp_path / part / "x-0.tar", [f"{part}.txt"])
        assert run(tmp_path / "a", tmp_path / "b").code == 0
        document = json.loads((tmp_path / "x-manifest.json").read_text())
        assert [entry["url"] for entry in document["shardlist"]] == ["a/x-0.tar", "b/x-0.tar"]

    def test_a_manifest_as_input_is_the_one_that_is_written(self, run: Run, folder: Path) -> None:
        run("set", "-o", "set/mine.json", "--no-index")
        assert run("set/mine.json").code == 0
        assert tree(folder) == [*MADE[:2], "mine.json", *MADE[2:4]]
        assert json.loads((folder / "mine.json").read_text())["wdscli"]["index"] == ".wds"

    def test_a_plain_wids_document_is_completed(self, run: Run, folder: Path) -> None:
        listed = [{"url": f"train-00000{n}.tar", "nsamples": 2 - n} for n in range(2)]
        (folder / "w.json").write_text(json.dumps({"shardlist": listed, "name": "theirs"}))
        assert run("set/w.json").code == 0
        manifest = read_manifest(str(folder / "w.json"))
        assert (manifest.name, manifest.shards[0].members) == ("theirs", 4)

    def test_an_object_store(self, run: Run, folder: Path) -> None:
        for name in ("train-000000.tar", "train-000001.tar"):
            with open_sink(f"memory://index-test/{name}", force=True) as sink:
                sink.write((folder / name).read_bytes())
        assert run("memory://index-test/train-{000000..000001}.tar", "-j", "1").code == 0
        assert exists(index_address("memory://index-test/train-000001.tar"))
        manifest = read_manifest("memory://index-test/train-manifest.json")
        assert [s.name for s in manifest.shards] == ["train-000000.tar", "train-000001.tar"]

    @pytest.fixture
    def web(self, folder: Path) -> Iterator[Web]:
        with web_server("ranges") as server:
            server.files["train-000000.tar"] = (folder / "train-000000.tar").read_bytes()
            yield server

    def test_what_cannot_be_written_beside_can_have_a_manifest_here(self, run: Run, web: Web) -> None:
        url = web.url("train-000000.tar")
        done = run(url, "-o", "m.json", "-j", "1")
        assert done.code in (2, 4)
        assert run(url, "--no-index", "-o", "m.json", "-j", "1").code == 0
        manifest = read_manifest("m.json")
        assert (manifest.shards[0].name, manifest.shards[0].samples) == (url, 2)

    def test_names(self) -> None:
        assert set_prefix(["a/x_01.tar", "b/x_17.tar"]) == "x"
        assert common_folder(["a/b/x.tar", "a/c/x.tar"]) == "a/"
        assert common_folder(["x.tar", "y.tar"]) == ""
        assert common_folder(["s3://b/p/1.tar", "s3://b/q/1.tar"]) == "s3://b/"
        assert name_from("s3://b/", "s3://b/p/1.tar") == "p/1.tar"
        for apart in (["s3://b/1.tar", "s3://c/1.tar"], ["s3://b/1.tar", "1.tar"]):
            with pytest.raises(UsageError):
                common_folder(apart)
        with pytest.raises(UsageError):
            name_from("s3://b/", "1.tar")


class TestDialects:
    def test_each_writes_its_files_and_nothing_else(self, run: Run, folder: Path) -> None:
        for name, files in {
            "dali": ["train-000000.idx", "train-000001.idx"],
            "webshart": ["train-000000.json", "train-000001.json"],
            "wids": ["train-wids.json"],
            "energon": [
                ".nv-meta/.info.json",
                ".nv-meta/index.sqlite",
                ".nv-meta/index.uuid",
                ".nv-meta/split.yaml",
                "train-000000.tar.idx",
                "train-000001.tar.idx",
            ],
        }.items():
            before = set(tree(folder))
            assert run("set", "--for", name).code == 0
            assert sorted({*tree(folder)} - before) == files

    def test_several_at_once_kept_when_they_are_up_to_date(self, run: Run, folder: Path) -> None:
        assert "5 files made" in run("set", "--for", "dali", "--for", "wids", "--for", "webshart").err
        done = run("set", "--for", "dali", "--for", "wids", "--for", "webshart")
        assert "0 files made, 5 kept in " in done.err

    def test_the_same_from_an_index_and_from_a_scan(self, run: Run, folder: Path) -> None:
        run("set", "--for", "dali", "--for", "energon")
        scanned = {name: (folder / name).read_bytes() for name in tree(folder)}
        run("set", "--no-manifest")
        assert run("set", "--for", "dali", "--for", "energon", "--force").code == 0
        assert {name: (folder / name).read_bytes() for name in scanned} == scanned

    def test_what_says_something_else_is_refused_unless_forced(self, run: Run, folder: Path) -> None:
        (folder / "train-000000.idx").write_text("mine")
        assert run("set", "--for", "dali").code == 4
        assert (folder / "train-000000.idx").read_text() == "mine"
        done = run("set", "--for", "dali", "--check")
        assert (done.code, done.out.splitlines()[0]) == (1, "set/train-000000.idx: its content differs")
        assert run("set", "--for", "dali", "--force").code == 0
        assert (folder / "train-000000.idx").read_text().startswith("v1.2 2\n")

    def test_dali(self, run: Run, folder: Path) -> None:
        """As tarfile finds the payloads."""
        run("set", "--for", "dali")
        with tarfile.open(folder / "train-000000.tar") as tar:
            places = {m.name: (m.offset_data, m.size) for m in tar}
        lines = (folder / "train-000000.idx").read_text().splitlines()
        assert lines[0] == "v1.2 2"
        for line, key in zip(lines[1:], "ab", strict=True):
            words = line.split(" ")
            rows = [words[at : at + 4] for at in range(0, len(words), 4)]
            assert rows == [[f, *map(str, places[f"{key}.{f}"]), f"{key}.{f}"] for f in ("cls", "jpg")]

    def test_dali_has_no_room_for_blanks(self, run: Run, tmp_path: Path) -> None:
        name = shard(tmp_path / "a.tar", ["a b.txt"])
        done = run(name, "--for", "dali")
        assert done.code == 3
        assert "a b.txt" in done.err
        assert not (tmp_path / "a.idx").exists()

    def test_energon(self, run: Run, folder: Path) -> None:
        run("set", "--for", "energon")
        with tarfile.open(folder / "train-000001.tar") as tar:
            members = {m.name: m for m in tar}
        first, end = struct.unpack("<2Q", (folder / "train-000001.tar.idx").read_bytes())
        assert first == members["c.cls"].offset
        assert end == members["c.jpg"].offset_data + 512
        info = json.loads((folder / ".nv-meta/.info.json").read_text())
        assert info["shard_counts"] == {"train-000000.tar": 2, "train-000001.tar": 1}
        with sqlite3.connect(folder / ".nv-meta/index.sqlite") as database:
            assert database.execute("SELECT * FROM samples").fetchall()[2] == (1, "c", 0, first, end - first)
            assert database.execute("SELECT * FROM sample_parts").fetchall()[-1] == (
                (1, 0, "jpg", members["c.jpg"].offset_data, 5)
            )

    def test_energon_leaves_a_split_as_it_is(self, run: Run, folder: Path) -> None:
        (folder / ".nv-meta").mkdir()
        (folder / ".nv-meta/split.yaml").write_text("mine")
        assert run("set", "--for", "energon", "--force").code == 0
        assert (folder / ".nv-meta/split.yaml").read_text() == "mine"

    def test_energon_wants_unique_keys(self, run: Run, folder: Path) -> None:
        shard(folder / "train-000001.tar", ["a.cls"])
        done = run("set", "--for", "energon")
        assert done.code == 3
        assert "train-000001.tar" in done.err
        assert not (folder / ".nv-meta").exists()

    def test_wids(self, run: Run, folder: Path) -> None:
        run("set", "--for", "wids")
        document = json.loads((folder / "train-wids.json").read_text())
        size = (folder / "train-000000.tar").stat().st_size
        assert document["shardlist"][0] == {"url": "train-000000.tar", "nsamples": 2, "filesize": size}

    def test_webshart(self, run: Run, folder: Path) -> None:
        run("set", "--for", "webshart")
        document = json.loads((folder / "train-000001.json").read_text())
        with tarfile.open(folder / "train-000001.tar") as tar:
            places = {m.name: {"offset": m.offset_data, "length": m.size} for m in tar if m.name != "README"}
        assert document["files"] == places
        assert document["path"] == "train-000001.tar"

    @pytest.mark.parametrize("dialect", ["energon", "webshart"])
    def test_names_must_be_utf_8(self, run: Run, tmp_path: Path, dialect: str) -> None:
        with ShardWriter(str(tmp_path / "a.tar"), with_index=False) as writer:
            writer.write("caf\udce9", {"txt": b"1"})
        done = run(tmp_path / "a.tar", "--for", dialect)
        assert done.code == 3
        assert "UTF-8" in done.err
        assert run(tmp_path / "a.tar", "--for", "dali").code == 0
        assert b"caf\xe9.txt" in (tmp_path / "a.idx").read_bytes()

    @pytest.mark.parametrize("dialect", ["dali", "energon"])
    def test_a_shard_without_samples_is_refused_where_its_reader_refuses_it(
        self, run: Run, tmp_path: Path, dialect: str
    ) -> None:
        (tmp_path / "a.tar").write_bytes(bytes(1024))
        assert run(tmp_path / "a.tar", "--for", dialect).code == 3
        assert run(tmp_path / "a.tar").code == 0

    def test_an_unknown_one(self, run: Run, folder: Path) -> None:
        done = run("set", "--for", "tfrecord")
        assert done.code == 2
        assert "dali" in done.err

    @pytest.mark.parametrize("args", [["-o", "x"], ["--no-manifest"], ["--no-index"]])
    def test_options_of_ours_do_not_mix(self, run: Run, folder: Path, args: list[str]) -> None:
        assert run("set", "--for", "dali", *args).code == 2


def test_progress_is_told_in_bytes(folder: Path) -> None:
    told: list[tuple[object, ...]] = []

    class Watch:
        def start(self, *args: object) -> None:
            told.append(args)

        def advance(self, amount: int) -> None:
            told.append((amount,))

        def finish(self) -> None:
            told.append(("end",))

        def warn(self, message: str) -> None: ...

        def note(self, message: str) -> None: ...

    index(["set"], jobs=1, progress=Watch())
    assert told == [("indexing", 20480, "bytes"), (10240,), (10240,), ("end",)]


def test_the_program(folder: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "wdscli", "index", "set"], capture_output=True, check=False)
    assert done.returncode == 0
    assert tree(folder) == MADE
