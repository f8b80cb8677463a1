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

from wdscli.errors import InputNotFoundError, InputPermissionError
from wdscli.loader import IndexedDataset, WebDataset
from wdscli.loader.read import catalog
from wdscli.look.listing import ls
from wdscli.shards import ShardWriter, open_set
from wdscli.shards.inputs import fingerprint_of, missing_shards, whole_set
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
            assert ran.out == run("ls", place + "t-[0234].tar", *option).out
        ran = run("ls", place, "--on-error", "skip")
        assert ran.code == 0
        assert ran.err.startswith("warning: a shard that ")
        found = ls([place])
        assert sum(len(page.batch.keys) for page in found.samples()) == 4 * SAMPLES
        assert [one.address for one in found.report().missing] == [place + "t-1.tar"]

    @pytest.mark.exhaustive
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
        report = verify([place], checksums=True, jobs=1)
        assert report.counts == {"checksum-mismatch": 1}
        assert run("verify", place, "-j", 1).code == 0


class TestTheLoader:
    @pytest.mark.parametrize("words", ["", "*.tar"])
    def test_it_says_so(self, place: str, words: str) -> None:
        fill(place, "t-1.tar", "t-3.tar")
        for kind in (WebDataset, IndexedDataset):
            with pytest.warns(UserWarning, match=r"t-1\.tar and 1 more of t-manifest\.json are not in "):
                assert len(kind(place + words)) == 3 * SAMPLES

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


class TestSets:
    def test_each_manifest_lists_its_own(self, place: str) -> None:
        fill(place)
        fill(place, "u-0.tar", prefix="u")
        assert [one.address for one in missing_shards(open_set([place]))] == [place + "u-0.tar"]
        assert missing_shards(open_set([place + "t-*.tar"])) == []
        assert len(whole_set([place], "skip").missing) == 1

    def test_a_manifest_of_shards_that_went_elsewhere_is_another_sets(self, place: str) -> None:
        fill(place)
        fill(place, *(f"u-{number}.tar" for number in range(5)), prefix="u")
        assert missing_shards(open_set([place])) == []

    def test_lists_and_folders_below(self, place: str, tmp_path: Path) -> None:
        fill(place + "a/", "t-2.tar")
        fill(place + "b/")
        (tmp_path / "list").write_text(f"{place}a/\n{place}b/t-0.tar\n")
        for words in (f"@{tmp_path}/list", f"{place}*/t-*.tar"):
            assert [one.address for one in missing_shards(open_set([words]))] == [place + "a/t-2.tar"]

    def test_files_that_are_no_manifests_do_no_harm(self, place: str) -> None:
        fill(place)
        for name, data in (
            ("x-manifest.json", b"{}"),
            ("manifest.json", b"\xff"),
            ("y-manifest.json", b"[1]"),
        ):
            with open_sink(place + name) as sink:
                sink.write(data)
        assert missing_shards(open_set([place])) == []

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
            whole_set([f"{tmp_path}/*.tar"])

    def test_a_set_with_no_shard_left_is_an_error_whatever_is_skipped(self, place: str) -> None:
        fill(place, *(f"t-{number}.tar" for number in range(5)))
        with pytest.raises(InputNotFoundError, match=r"5 shards that .* lists do not exist: t-0\.tar"):
            whole_set([place + "t-manifest.json"], "skip")

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
            whole_set([place])

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
            shards = whole_set([place + words])
            fingerprint_of(shards)
            verify([place + words], jobs=1)
            assert len(listed) == 2 * expected
