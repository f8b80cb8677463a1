"""What is named against what manifests list beside it: a set with a shard gone is not taken for a whole one, on any
store."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from shard_cases import Ran
from storage_servers import S3, s3_server
from tiers import EXHAUSTIVE
from verify_options import checks_of

from wdscli.errors import DataError, InputError, InputNotFoundError, InputPermissionError
from wdscli.loader import IndexedDataset, WebDataset
from wdscli.loader.read import catalog
from wdscli.look.listing import ls
from wdscli.shards import ShardWriter, open_set
from wdscli.shards.inputs import fingerprint_of
from wdscli.storage import list_folder, open_sink, read_all, remove
from wdscli.verify.set import verify

Command = Callable[..., Ran]
COMMAND: list[str] = []
SAMPLES = 4


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    with s3_server() as found:
        yield found


@pytest.fixture(params=["local", "memory", pytest.param("s3", marks=EXHAUSTIVE)])
def place(request: Any, tmp_path: Path) -> str:
    """A folder, with its last slash."""
    name = f"{request.node.name.partition('[')[0]}{abs(hash(request.node.name)) % 10**6}"
    if request.param == "local":
        return f"{tmp_path}/in/"
    if request.param == "memory":
        return f"memory://{name}/"
    store = request.getfixturevalue("server")
    return f"s3://{store.bucket(name.replace('_', '-').lower()[-60:].strip('-'))}/in/"


def fill(place: str, *names: str, prefix: str = "t", checksum: str = "xxh3_128") -> None:
    """A set of five shards of four samples, then without some."""
    with ShardWriter(f"{place}{prefix}-%d.tar", max_count=SAMPLES, checksum=checksum) as writer:
        for number in range(5 * SAMPLES):
            writer.write(f"{prefix}{number:02d}", {"txt": b"x" * 600})
    for name in names:
        remove(place + name)


WRITING = ["split", "shuffle", "sort", "merge"]


class TestCommands:
    @pytest.mark.exhaustive
    @pytest.mark.parametrize("words", ["", "*.tar", "t-?.tar", "t-[0-4].tar", "{t,u}-*.tar"])
    def test_a_shard_that_is_gone(self, place: str, run: Command, tmp_path: Path, words: str) -> None:
        fill(place, "t-1.tar", "t-3.tar")
        fill(place, prefix="u")
        for command in (*WRITING, "cat"):
            out = tmp_path / ("out.tar" if command == "cat" else "out-%d.tar")
            ran = run(command, place + words, "-o", out)
            assert ran.code == 4, command
            assert ran.err.startswith(
                f"error: 2 shards that {place}t-manifest.json lists do not exist: t-1.tar, t-3.tar\nhint: "
            )
        assert not list(tmp_path.glob("out*"))

    @pytest.mark.exhaustive
    def test_what_the_words_do_not_cover_is_not_missed(
        self, place: str, good: Command, tmp_path: Path
    ) -> None:
        fill(place, "t-1.tar", "t-3.tar")
        for number, words in enumerate(["t-0.tar", "t-{2,4}.tar", "t-[024].tar", "t-2*.tar", "t-2.tar::"]):
            for command in WRITING:
                good(command, place + words, "-o", f"{tmp_path}/{command}{number}-%d.tar")
            good("ls", place + words)

    @pytest.mark.exhaustive
    def test_ls_shows_what_is_there_and_then_says_so(self, place: str, run: Command) -> None:
        fill(place, "t-1.tar")
        for option in ([], ["--summary"], ["--by", "member"], ["--by", "shard"], ["--json"]):
            ran = run("ls", place, *option)
            assert ran.code == 4
            assert f"a shard that {place}t-manifest.json lists does not exist: t-1.tar" in ran.err
            left_out = b"left out missing-shard\t%d\n" % SAMPLES
            assert ran.out.replace(left_out, b"") == run("ls", place + "t-[0234].tar", *option).out
        ran = run("ls", place, "--on-error", "skip")
        assert ran.code == 0
        assert ran.err.startswith("warning: a shard that ")
        found = ls([place])
        assert sum(len(page.batch.keys) for page in found.samples()) == 4 * SAMPLES
        assert [one.address for one in found.report().missing] == [place + "t-1.tar"]

    @pytest.mark.exhaustive(sample=False)
    @pytest.mark.parametrize("words", ["", "t-manifest.json"])
    def test_skip_counts_all_that_is_lost(
        self, place: str, good: Command, tmp_path: Path, words: str
    ) -> None:
        """ "left out 1 sample" was said where the manifest knows of more."""
        fill(place, "t-1.tar", "t-3.tar")
        cut = read_all(place + "t-2.tar")[:700]
        with open_sink(place + "t-2.tar", force=True) as sink:
            sink.write(cut)
        for command in (*WRITING, "cat"):
            out = tmp_path / command / ("out.tar" if command == "cat" else "out-%d.tar")
            ran = good(
                command,
                place + words,
                "-o",
                out,
                "--on-error",
                "skip",
                *([] if command == "cat" else ["--json"]),
            )
            assert "left out 12 samples: " in ran.err
            assert "missing-shard 8" in ran.err
            if command != "cat":
                [report] = ran.objects
                assert report["samples_in"] == 5 * SAMPLES
                assert report["samples"] == 2 * SAMPLES
                assert sum(report["dropped"].values()) == 3 * SAMPLES
                assert report["dropped"]["missing-shard"] == 2 * SAMPLES
        summary = json.loads(
            good("ls", place, "--summary", "--json", "--on-error", "skip").out.splitlines()[-1]
        )
        assert summary["samples"] == 2 * SAMPLES
        assert sum(summary["dropped"].values()) == 3 * SAMPLES

    def test_a_join_misses_shards_too(self, place: str, run: Command, tmp_path: Path) -> None:
        fill(place + "a/")
        fill(place + "b/", "t-1.tar")
        words = [
            "merge",
            place + "a/",
            place + "b/",
            "--join",
            "left",
            "-o",
            tmp_path / "o-%d.tar",
            "--on-conflict",
            "left",
        ]
        ran = run(*words)
        assert ran.code == 4
        assert "b/t-manifest.json lists does not exist: t-1.tar" in ran.err
        ran = run(*words, "--on-error", "skip", "--json", "-j", 1)
        assert ran.code == 0, ran.err
        assert ran.objects[-1]["dropped"]["missing-shard"] == SAMPLES

    def test_a_set_whose_samples_are_chosen_is_counted_the_same(self, tmp_path: Path, good: Command) -> None:
        """What a slice does not reach is not lost."""
        place = f"{tmp_path}/in/"
        fill(place, "t-4.tar")
        Path(place + "t-3.tar").write_bytes(Path(place + "t-3.tar").read_bytes()[:700])
        ran = good(
            "split", place, "-o", f"{tmp_path}/o-%d.tar", "--on-error", "skip", "--slice", ":6", "--json"
        )
        assert ran.objects[0]["dropped"].keys() <= {"missing-shard", "slice"}


class TestVerify:
    def test_on_any_store(self, place: str, run: Command) -> None:
        """`verify s3://b/set/` said "nothing wrong" with a shard gone."""
        fill(place, "t-1.tar")
        for words in ("", "*.tar", "t-0.tar"):
            ran = run("verify", place + words, "--json", "-j", 1)
            assert ran.code == 1
            assert [(one["code"], one["message"]) for one in ran.objects[:-1]] == [
                ("manifest-mismatch", "it lists t-1.tar, which does not exist")
            ]

    def test_checksums_that_lie_beside(self, place: str, run: Command) -> None:
        fill(place)
        assert run("verify", place, "--checksums", "-j", 1).code == 0
        data = bytearray(read_all(place + "t-2.tar"))
        data[600] ^= 1
        with open_sink(place + "t-2.tar", force=True) as sink:
            sink.write(bytes(data))
        report = verify([place], checks_of(checksums=True), jobs=1)
        assert report.counts == {"checksum-mismatch": 1}
        assert run("verify", place, "-j", 1).code == 0


class TestTheLoader:
    @pytest.mark.parametrize("words", ["", "*.tar"])
    def test_a_missing_shard_is_an_error(self, place: str, words: str) -> None:
        """The loader read the other shards with a warning, where every command stops."""
        fill(place, "t-1.tar", "t-3.tar")
        for kind in (WebDataset, IndexedDataset):
            with pytest.raises(
                InputNotFoundError, match=r"2 shards that .*t-manifest\.json lists do not exist: t-1"
            ):
                kind(place + words)

    @pytest.mark.parametrize("words", ["", "*.tar", "t-manifest.json"])
    def test_skipped_shards_are_counted(self, place: str, words: str) -> None:
        fill(place, "t-1.tar", "t-3.tar")
        for kind in (WebDataset, IndexedDataset):
            data = kind(place + words, on_error="skip")
            assert len(data) == 5 * SAMPLES
            with pytest.warns(UserWarning, match=r"skipped: .*t-3\.tar"):
                assert [sample["__key__"] for sample in data][:6:5] == ["t00", "t09"]
            assert data.stats()["dropped"] == {
                f"{place}t-{number}.tar": {"read: unreadable": SAMPLES} for number in (1, 3)
            }

    def test_skipped_shards_of_several_manifests_are_counted(self, tmp_path: Path) -> None:
        fill(f"{tmp_path}/", "t-1.tar")
        fill(f"{tmp_path}/", prefix="a")
        for kind in (WebDataset, IndexedDataset):
            with pytest.warns(UserWarning, match=r"skipped: .*t-1\.tar"):
                data = kind(str(tmp_path), on_error="skip")
            assert len(list(data)) == 9 * SAMPLES
            assert data.stats()["dropped"] == {f"{tmp_path}/t-1.tar": {"read: unreadable": 1}}

    def test_a_handler_decides_about_missing_shards(self, tmp_path: Path) -> None:
        fill(f"{tmp_path}/", "t-1.tar")
        data = WebDataset(str(tmp_path), handler=lambda error: True)
        with pytest.warns(UserWarning, match=r"skipped: .*t-1\.tar"):
            assert len(list(data)) == 4 * SAMPLES

    def test_a_manifest_that_contradicts_itself_is_an_error(self, tmp_path: Path) -> None:
        fill(f"{tmp_path}/")
        manifest = tmp_path / "t-manifest.json"
        manifest.write_text(manifest.read_text().replace('"samples": 20', '"samples": 21'))
        for open_it in (WebDataset, IndexedDataset, lambda place: ls([place])):
            with pytest.raises(DataError, match="contradicts itself"):
                open_it(str(tmp_path))

    def test_the_manifest_beside_counts(self, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """And no shard is opened to count samples."""
        fill(place)

        def opened(*_: Any, **__: Any) -> Any:
            raise AssertionError("a shard was opened")

        given = catalog.Catalog(place + "t-manifest.json")
        monkeypatch.setattr(catalog, "open_source", opened)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for words in ("", "t-{0..4}.tar", "t-*.tar"):
                found = catalog.Catalog(place + words)
                assert found.total == 5 * SAMPLES
                assert found.fingerprint == given.fingerprint


def missing_in(words: str) -> list[str]:
    return [shard.address for shard in open_set([words], missing="list").missing]


class TestFoldersBelow:
    """A folder without shards means the shards of all folders below it: for `ls` alone, it was so."""

    def test_every_command_and_the_loader(self, place: str, run: Command, tmp_path: Path) -> None:
        fill(place + "a/x/", prefix="u")
        fill(place + "b/")
        fill(place + ".hidden/", prefix="h")
        keys = [f"{prefix}{number:02d}" for prefix in "ut" for number in range(5 * SAMPLES)]
        assert [line.split("\t")[0] for line in run("ls", place).out.decode().splitlines()] == keys
        assert run("ls", place, "--show").out.startswith(b"u00 ")
        for command in (*WRITING, "cat"):
            out = tmp_path / ("out.tar" if command == "cat" else f"{command}-%d.tar")
            ran = run(command, place, "-o", out)
            assert ran.code == 0, ran.err
        assert [sample["__key__"] for sample in WebDataset(f"{tmp_path}/out.tar")] == keys
        assert "10 shards, 40 samples" in run("verify", place, "-j", 1).err
        assert run("report", place, "-o", tmp_path / "report.html", "--samples", 0).code == 0
        assert [sample["__key__"] for sample in WebDataset(place)] == keys
        assert len(IndexedDataset(place)) == len(keys)
        assert run("diff", place, place).code == 0

    def test_a_part_with_a_missing_shard(self, place: str) -> None:
        fill(place + "a/x/", "u-2.tar", prefix="u")
        fill(place + "b/")
        with pytest.raises(InputNotFoundError, match=r"a/x/u-manifest\.json lists does not exist: u-2"):
            WebDataset(place)
        assert missing_in(place) == [place + "a/x/u-2.tar"]

    def test_no_shard_at_all(self, place: str) -> None:
        with open_sink(place + "a/readme.txt") as sink:
            sink.write(b"x")
        with pytest.raises(InputNotFoundError, match="or in a folder below it"):
            open_set([place])


class TestFoldersNamedLikeShards:
    def test_they_are_not_left_out(self, tmp_path: Path, run: Command) -> None:
        """The loader left such a folder out without a word, whether a manifest listed it or not."""
        folder = tmp_path / "in"
        fill(f"{folder}/", "t-2.tar")
        (folder / "t-2.tar").mkdir()
        (folder / "notes.tar.d").mkdir()
        for _ in range(2):
            for words in (folder, f"{folder}/*.tar"):
                for command in ("ls", "verify", "cat", "split", "report"):
                    output = [] if command in ("ls", "verify") else ["-o", tmp_path / "o.tar"]
                    ran = run(command, words, *output, *(["-j", 1] if command == "verify" else []))
                    assert ran.code == 4, (command, ran.err)
                    assert "t-2.tar: it is a folder" in f"{ran.err}{ran.out!r}"
                for kind in (WebDataset, IndexedDataset):
                    with pytest.raises(InputError, match=r"t-2\.tar: it is a folder"):
                        list(kind(str(words)))
            (folder / "t-manifest.json").unlink(missing_ok=True)


class TestSets:
    def test_each_manifest_lists_its_own(self, place: str) -> None:
        fill(place)
        fill(place, "u-0.tar", prefix="u")
        with pytest.raises(InputNotFoundError, match=r"u-manifest\.json lists does not exist: u-0\.tar"):
            open_set([place])
        assert missing_in(place) == [place + "u-0.tar"]
        assert missing_in(place + "t-*.tar") == []
        warnings_of_skip: list[str] = []
        assert len(open_set([place], missing="skip", warn=warnings_of_skip.append).missing) == 1
        assert len(warnings_of_skip) == 1
        assert open_set([place], missing="accept").missing == ()

    def test_a_manifest_of_shards_that_went_elsewhere_is_another_sets(self, place: str) -> None:
        fill(place)
        fill(place, *(f"u-{number}.tar" for number in range(5)), prefix="u")
        assert missing_in(place) == []

    def test_lists_and_folders_below(self, place: str, tmp_path: Path) -> None:
        fill(place + "a/", "t-2.tar")
        fill(place + "b/")
        (tmp_path / "list").write_text(f"{place}a/\n{place}b/t-0.tar\n")
        for words in (f"@{tmp_path}/list", f"{place}*/t-*.tar"):
            assert missing_in(words) == [place + "a/t-2.tar"]

    def test_files_that_are_no_manifests_do_no_harm(self, place: str) -> None:
        fill(place)
        for name, data in (
            ("x-manifest.json", b"{}"),
            ("manifest.json", b"\xff"),
            ("y-manifest.json", b"[1]"),
        ):
            with open_sink(place + name) as sink:
                sink.write(data)
        assert missing_in(place) == []

    def test_a_manifest_that_cannot_be_read_is_an_error(self, tmp_path: Path, monkeypatch: Any) -> None:
        """Without it, no missing shard would be noticed."""
        fill(f"{tmp_path}/", "t-1.tar")
        (tmp_path / "x-manifest.json").mkdir()
        manifest, opened = f"{tmp_path}/t-manifest.json", os.open

        def refuse(path: Any, *more: Any, **how: Any) -> int:
            if path == manifest:
                raise PermissionError(13, "no")
            return opened(path, *more, **how)

        monkeypatch.setattr(os, "open", refuse)
        with pytest.raises(InputPermissionError, match=r"t-manifest\.json: no"):
            open_set([f"{tmp_path}/*.tar"])

    def test_a_set_with_no_shard_left_is_an_error_whatever_is_skipped(self, place: str) -> None:
        fill(place, *(f"t-{number}.tar" for number in range(5)))
        with pytest.raises(InputNotFoundError, match=r"5 shards that .* lists do not exist: t-0\.tar"):
            open_set([place + "t-manifest.json"], missing="skip")

    def test_the_fingerprint_is_the_manifests(self, place: str) -> None:
        fill(place)
        expected = open_set([place + "t-manifest.json"]).manifest
        assert expected is not None
        for words in ("", "t-{0..4}.tar", "t-*.tar"):
            assert fingerprint_of(open_set([place + words])) == expected.fingerprint

    def test_many_are_named_up_to_a_few(self, tmp_path: Path) -> None:
        place = f"{tmp_path}/"
        with ShardWriter(f"{place}t-%02d.tar", max_count=1) as writer:
            for number in range(20):
                writer.write(f"{number:02d}", {"txt": b"x"})
        for number in range(1, 20):
            remove(f"{place}t-{number:02d}.tar")
        with pytest.raises(InputNotFoundError, match=r"t-05\.tar and 14 more"):
            open_set([place])

    def test_one_listing_a_folder(self, server: S3, monkeypatch: pytest.MonkeyPatch) -> None:
        place = f"s3://{server.bucket('counted')}/in/"
        fill(place)
        listed: list[str] = []
        monkeypatch.setattr(
            "wdscli.shards.inputs.list_folder",
            lambda folder, keep: listed.append(folder) or list_folder(folder, keep),
        )
        for words, expected in (("", 0), ("t-{0..4}.tar", 1), ("t-*.tar", 1)):
            listed.clear()
            shards = open_set([place + words])
            fingerprint_of(shards)
            verify([place + words], jobs=1)
            assert len(listed) == 2 * expected
