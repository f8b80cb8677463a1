"""``wds cat``: one canonical tar of whatever is read, and samples as payloads, files and JSON Lines."""

from __future__ import annotations

import base64
import bz2
import gzip
import json
import os
import pty
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shard_cases import (
    Ran,
    assert_true_index,
    assert_true_set,
    by_gnu_tar,
    content,
    foreign_tar,
    keys_of,
    leftovers,
    members_of,
    no_new_files,
    numbered,
    sample,
    samples_of,
    tar_of,
    wds,
    write_shards,
)
from tiers import EXHAUSTIVE

from wdscli.look.listing import ReadSamples
from wdscli.ops.cat import _Copier
from wdscli.selection import reading
from wdscli.selection.reading import MemberReader
from wdscli.tar import core

Command = Callable[..., Ran]
COMMAND = ["cat"]


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    return write_shards(tmp_path / "in", [numbered(7, "a"), numbered(1, "b"), numbered(5, "c", [70_000])])


def canonical(names: list[str]) -> bytes:
    return tar_of([member for name in names for member in members_of(name)])


class TestTar:
    def test_it_is_the_canonical_archive_of_all_members(
        self, good: Command, shards: list[str], tmp_path: Path
    ) -> None:
        ran = good(*shards)
        assert ran.out == canonical(shards)
        assert ran.out == by_gnu_tar(tmp_path, members_of(ran.out))
        assert ran.err == ""

    @pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
    def test_of_foreign_headers_too(self, good: Command, tmp_path: Path, format: int) -> None:
        names = write_shards(
            tmp_path / "in",
            [numbered(7), numbered(3, "d" * 60 + "/" + "m" * 60)],
            format=format,
            mtime=1.5,
            gname="g",
        )
        assert good(*names).out == canonical(names)
        assert good(*[f"pipe:cat {name}" for name in names]).out == canonical(names)

    @pytest.mark.parametrize(
        "way",
        ["-", "pipe:cat {}", "gz", "bz2", "zst", "/dev/stdin"],
    )
    def test_streams_give_the_same_bytes(self, shards: list[str], tmp_path: Path, way: str) -> None:
        data = Path(shards[0]).read_bytes()
        stdin, address = data, way.format(shards[0])
        if way in ("gz", "bz2", "zst"):
            address = f"{tmp_path}/packed"
            packed = {"gz": gzip.compress, "bz2": bz2.compress}.get(way)
            if packed is None:
                pytest.importorskip("zstandard")
                subprocess.run(["zstd", "-q", shards[0], "-o", address], check=True)
            else:
                Path(address).write_bytes(packed(data))
        ran = wds("cat", address, *shards[1:], stdin=stdin)
        assert ran.code == 0, ran.err
        assert ran.out == canonical(shards)

    def test_members_of_no_sample_are_told(self, good: Command, tmp_path: Path) -> None:
        (tmp_path / "x.tar").write_bytes(tar_of([("README", b"r"), *sample("a", 1), ("b/__x__", b"")]))
        for name in (f"{tmp_path}/x.tar", f"pipe:cat {tmp_path}/x.tar"):
            ran = good(name)
            assert ran.out == tar_of(sample("a", 1))
            assert "skipped 2 members" in ran.err

    @pytest.mark.parametrize("options", [[], ["--keys", "n00[0-6]"], ["--drop", "cls"]], ids=" ".join)
    def test_members_of_no_sample_between_samples(
        self, good: Command, tmp_path: Path, options: list[str]
    ) -> None:
        """Some samples touch, some do not."""
        members = []
        for number, one in enumerate(numbered(9)):
            members += [("README", b"r" * 600)] * (number % 3 == 0) + one
        path = tmp_path / "x.tar"
        path.write_bytes(tar_of(members))
        wanted = [
            (name, data)
            for name, data in members
            if name != "README"
            and (not options or options[0] == "--drop" or name < "n007")
            and (not options or options[0] == "--keys" or not name.endswith(".cls"))
        ]
        assert good(path, *options).out == tar_of(wanted)
        assert good(f"pipe:cat {path}", *options).out == tar_of(wanted)

    def test_gnu_tar_lists_it(self, shards: list[str]) -> None:
        script = f"{sys.executable} -m wdscli cat {' '.join(shards)} | tar tf -"
        listed = subprocess.run(
            ["bash", "-o", "pipefail", "-c", script], capture_output=True, text=True, check=True
        )
        assert listed.stdout.split() == [name for shard in shards for name, _ in members_of(shard)]

    def test_a_reader_that_has_enough(self, shards: list[str]) -> None:
        script = f"{sys.executable} -m wdscli cat {' '.join(shards * 1)} | head -c 100; echo ${{PIPESTATUS[0]}} >&2"
        done = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
        assert (len(done.stdout), done.stderr) == (100, b"0\n")

    @pytest.mark.parametrize(
        "options", [[], *(pytest.param(one, marks=EXHAUSTIVE) for one in (["-o", "-"], ["--limit", "1"]))]
    )
    def test_a_terminal_is_refused(self, shards: list[str], options: list[str]) -> None:
        parent, child = pty.openpty()
        done = subprocess.run(
            [sys.executable, "-m", "wdscli", "cat", *shards, *options], stdout=child, stderr=subprocess.PIPE
        )
        os.close(child)
        os.set_blocking(parent, False)
        with pytest.raises(OSError):
            os.read(parent, 100)
        os.close(parent)
        assert done.returncode == 2
        assert b"terminal" in done.stderr

    @pytest.mark.parametrize(
        ("options", "code"),
        [
            (["--to", "raw", "--fields", "png"], 2),
            (["--to", "raw", "--fields", "txt"], 0),
        ],
    )
    def test_a_terminal_gets_no_payload_that_is_not_text(
        self, options: list[str], code: int, tmp_path: Path
    ) -> None:
        (tmp_path / "s.tar").write_bytes(tar_of([("a.png", b"\x89PNG\r\n\x1a\n\0"), ("a.txt", b"a text")]))
        parent, child = pty.openpty()
        command = [sys.executable, "-m", "wdscli", "cat", str(tmp_path / "s.tar"), *options]
        done = subprocess.run(command, stdout=child, stderr=subprocess.PIPE)
        os.close(child)
        assert done.returncode == code, done.stderr
        if code:
            assert b"cannot write bytes that are not text to a terminal" in done.stderr
            with pytest.raises(OSError):
                os.read(parent, 100)
        else:
            assert os.read(parent, 100) == b"a text"
        os.close(parent)

    def test_to_a_file_with_index_and_manifest(
        self, good: Command, shards: list[str], tmp_path: Path
    ) -> None:
        ran = good(*shards, "-o", tmp_path / "out.tar")
        assert (tmp_path / "out.tar").read_bytes() == canonical(shards)
        assert_true_set(tmp_path)
        assert "wrote 13 samples" in ran.err
        manifest = json.loads((tmp_path / "out-manifest.json").read_bytes())
        assert manifest["wdscli"]["made"]["operation"] == "cat"

    def test_no_samples(self, good: Command, shards: list[str]) -> None:
        assert good(*shards, "--keys", "nothing", "--allow-empty").out == bytes(1024)

    def test_large_members(self, good: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """In one go, through memory, and through the scratch file of a stream."""
        names = write_shards(
            tmp_path / "in",
            [[sample("a", 1, [3_000_000, 10, 2_000_000]), *numbered(3), sample("b", 1, [5_000_001])]],
        )
        names += write_shards(tmp_path / "old", [[sample("o", 1, [4_000_000])]], mtime=7)
        streams = [f"pipe:cat {name}" for name in names]
        assert good(*names).out == canonical(names)
        assert good(*streams).out == canonical(names)
        monkeypatch.setattr(reading, "HELD_BYTES", 1000)
        assert good(*streams).out == canonical(names)
        assert good(*streams, "--fields", "cls").out == good(*names, "--fields", "cls").out

    def test_the_scratch_file_is_used_and_emptied(
        self, good: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stored = []
        original = MemberReader._store

        def watched(self: Any, offset: int, pieces: Any) -> None:
            original(self, offset, pieces)
            stored.append(self._file_bytes)

        monkeypatch.setattr(MemberReader, "_store", watched)
        monkeypatch.setattr(reading, "HELD_BYTES", 1000)
        monkeypatch.setattr(reading, "SCRATCH_BYTES", 3_000_000)
        names = write_shards(tmp_path / "in", [numbered(12, "n", [1_500_000])])
        good(f"pipe:cat {names[0]}")
        assert len(stored) >= 12
        assert max(stored) <= 4_600_000


class TestDuplicates:
    @pytest.fixture
    def twice(self, tmp_path: Path) -> list[str]:
        second = [sample("k003", 93), sample("m", 5), sample("k001", 91)]
        return write_shards(tmp_path / "in", [numbered(5, "k"), second])

    @pytest.mark.parametrize("way", ["{}", "pipe:cat {}"])
    def test_error(self, run: Command, twice: list[str], tmp_path: Path, way: str) -> None:
        names = [way.format(name) for name in twice]
        ran = run(*names, "-o", tmp_path / "out.tar")
        assert ran.code == 3
        assert 'repeated key "k003"' in ran.err
        assert f"in {names[1]} at byte 0" in ran.err
        if way == "{}":
            assert f"(first: sample 3 of {twice[0]})" in ran.err
        assert "--on-duplicate" in ran.err
        assert [path.name for path in tmp_path.iterdir()] == ["in"]

    @pytest.mark.parametrize("way", ["{}", "pipe:cat {}"])
    def test_skip(self, good: Command, twice: list[str], way: str) -> None:
        ran = good(*[way.format(name) for name in twice], "--on-duplicate", "skip")
        assert keys_of(ran.out) == ["k000", "k001", "k002", "k003", "k004", "m"]
        assert samples_of(ran.out)[:5] == samples_of(twice[0])
        assert "left out 2 samples: duplicate-key 2" in ran.err

    def test_rekey(self, good: Command, twice: list[str]) -> None:
        found = samples_of(good(*twice, "--on-duplicate", "rekey").out)
        assert [key for key, _ in found][5:] == ["k003-in-1-000000000", "m", "k001-in-1-000000002"]
        assert found[5][1] == samples_of(twice[1])[0][1]
        by_format = good(*twice, "--on-duplicate", "rekey", "--rekey", "{index}/{key}").out
        assert keys_of(by_format)[5:] == ["0/k003", "m", "2/k001"]

    def test_rekey_for_all(self, good: Command, run: Command, twice: list[str]) -> None:
        ran = good(*twice, "--rekey", "{shard}-{index}")
        assert keys_of(ran.out) == [f"in-0-{n}" for n in range(5)] + [f"in-1-{n}" for n in range(3)]
        assert run(*twice, "--rekey", "{index}").code == 3

    def test_a_new_key_that_is_taken(self, run: Command, tmp_path: Path) -> None:
        names = write_shards(tmp_path / "in", [[sample("a", 1), sample("in-1", 2)], [sample("a", 3)]])
        assert run(*names, "--on-duplicate", "rekey", "--rekey", "{shard}").code == 3


CASES = [
    (["--keys", "a*"], lambda key, n: key[0] == "a"),
    (["--keys", "b*", "--keys", "c00[12]"], lambda key, n: key in ("b000", "c001", "c002")),
    (["--where", "cls >= 3"], lambda key, n: int(key[1:]) >= 3),
    (["--where", "size.jpg > 1000"], lambda key, n: key[0] == "c"),
    (["--slice", "2:9:3"], lambda key, n: n in (2, 5, 8)),
    (["--limit", "4"], lambda key, n: n < 4),
    (["--keys", "[ac]*", "--slice", "6:8", "--limit", "1"], lambda key, n: n == 6),
]


class TestSelection:
    @pytest.mark.parametrize(("options", "keeps"), CASES, ids=[" ".join(case[0]) for case in CASES])
    @pytest.mark.parametrize("way", ["{}", "pipe:cat {}"])
    def test_samples(
        self,
        good: Command,
        shards: list[str],
        way: str,
        options: list[str],
        keeps: Callable[[str, int], bool],
    ) -> None:
        ran = good(*[way.format(name) for name in shards], *options)
        keys = keys_of(*shards)
        assert keys_of(ran.out) == [key for n, key in enumerate(keys) if keeps(key, n)]

    def test_where_on_a_stream_looks_at_payloads_before_and_after(
        self, good: Command, tmp_path: Path
    ) -> None:
        """The member looked into comes first, last, alone, in another window than the rest."""
        data = b'{"w": %d}'
        members = []
        for n in range(30):
            parts = [("json", data % n), ("bin", bytes(n * 9000)), ("txt", b"t")]
            members += [(f"k{n:02d}.{field}", payload) for field, payload in (parts, parts[::-1])[n % 2]]
        path = tmp_path / "x.tar"
        path.write_bytes(tar_of(members))
        for where in ("json.w >= 12", "json.w % 7 == 3 and txt == 't'", "size.bin > 90000 and json.w < 20"):
            by_file, by_stream = (
                good(path, "--where", where).out,
                good(f"pipe:cat {path}", "--where", where).out,
            )
            assert by_file == by_stream
            assert 0 < len(keys_of(by_file)) < 30
        assert keys_of(by_file) == [f"k{n:02d}" for n in range(11, 20)]

    def test_fields(self, good: Command, shards: list[str]) -> None:
        everything = samples_of(shards[0])
        for way in ("{}", "pipe:cat {}"):
            name = way.format(shards[0])
            assert samples_of(good(name, "--fields", "cls").out) == [
                (key, fields[:1]) for key, fields in everything
            ]
            assert samples_of(good(name, "--drop", "cls").out) == [
                (key, fields[1:]) for key, fields in everything
            ]
            renamed = samples_of(good(name, "--rename", "image=jpg;png").out)
            assert [[field for field, _ in fields] for _, fields in renamed] == [
                ["cls", "image", "seg.png"]
            ] * 7

    def test_keys_from(self, good: Command, run: Command, shards: list[str], tmp_path: Path) -> None:
        (tmp_path / "keys").write_text("c004\nzzz\na001\n")
        ran = good(*shards, "--keys-from", tmp_path / "keys")
        assert keys_of(ran.out) == ["a001", "c004"]
        assert "zzz" in ran.err
        assert wds("cat", *shards, "--keys-from", "-", stdin=b"b000\n").out == tar_of(members_of(shards[1]))
        assert wds("cat", "-", "--keys-from", "-", stdin=b"b000\n").code == 2

    @pytest.mark.parametrize("way", ["{}", "pipe:cat {}"])
    def test_limit_stops_reading(self, good: Command, shards: list[str], tmp_path: Path, way: str) -> None:
        ran = good(way.format(shards[0]), f"pipe:touch {tmp_path}/opened", "--limit", 7)
        assert len(keys_of(ran.out)) == 7
        assert not (tmp_path / "opened").exists()

    def test_limit_is_not_disturbed_by_what_follows_in_the_same_stream(
        self, good: Command, tmp_path: Path
    ) -> None:
        data = tar_of([m for one in numbered(60, "n", [30_000]) for m in one])
        (tmp_path / "x.tar").write_bytes(data[: len(data) // 2])
        assert len(keys_of(good(f"pipe:cat {tmp_path}/x.tar", "--limit", 3).out)) == 3


class TestOutput:
    def test_existing(self, run: Command, good: Command, shards: list[str], tmp_path: Path) -> None:
        out = tmp_path / "out.tar"
        out.write_bytes(b"mine")
        with no_new_files(tmp_path):
            assert run(*shards, "-o", out).code == 4
            assert run(*shards, "-o", out, "--to", "raw", "--fields", "cls").code == 4
        good(*shards, "-o", out, "--force")
        assert out.read_bytes() == canonical(shards)
        good(*shards, "-o", out, "--to", "raw", "--fields", "cls", "--force")
        assert out.read_bytes() == b"012345600" + b"1234"

    @pytest.mark.parametrize(
        "options", [[], ["--to", "raw", "--fields", "cls"], ["--to", "jsonl"]], ids=["tar", "field", "jsonl"]
    )
    def test_an_input(self, run: Command, shards: list[str], tmp_path: Path, options: list[str]) -> None:
        with no_new_files(tmp_path):
            ran = run(*shards, "-o", shards[1], "--force", *options)
        assert ran.code == 2
        assert "both an input and an output" in ran.err

    @pytest.mark.parametrize("name", ["out-%06d.tar", "out-{0..3}.tar"])
    def test_cat_writes_one(self, run: Command, shards: list[str], tmp_path: Path, name: str) -> None:
        with no_new_files(tmp_path):
            assert run(*shards, "-o", tmp_path / name).code == 2

    def test_dry_run(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        options = [*shards, "--rekey", "k" * 130 + "{shard}{index}", "-o", tmp_path / "out.tar"]
        with no_new_files(tmp_path):
            told = good(*options, "-n").err
        written = good(*options).err
        assert written.startswith(told.replace("would write", "wrote").rstrip() + " in ")
        from wdscli.units import human_size

        assert human_size((tmp_path / "out.tar").stat().st_size) in told
        assert good(*shards, "-n").out == b""

    def test_no_index_checksum_and_mtime(
        self, good: Command, shards: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        good(*shards, "-o", tmp_path / "a" / "out.tar", "--no-index", "--hash", "none")
        assert sorted(content(tmp_path / "a")) == ["out-manifest.json", "out.tar"]
        good(*shards, "-o", tmp_path / "b" / "out.tar", "--hash", "sha256")
        assert_true_set(tmp_path / "b", checksum="sha256")
        by_option = good(*shards, "--mtime", 77).out
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "77")
        assert good(*shards).out == by_option == by_gnu_tar(tmp_path, members_of(by_option), "--mtime=@77")

    def test_long_names(self, good: Command, tmp_path: Path) -> None:
        names = write_shards(tmp_path / "in", [numbered(2, "long" * 40)])
        assert good(*names).out == canonical(names)
        gnu = good(*names, "--long-names", "gnu").out
        assert (b"@LongLink" in gnu, b"PaxHeader" in gnu) == (True, False)
        assert members_of(gnu) == members_of(names[0])

    def test_fsync(
        self, good: Command, shards: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        synced = []
        monkeypatch.setattr(os, "fsync", synced.append)
        good(*shards, "-o", tmp_path / "a.tar")
        good(*shards, "-o", tmp_path / "a.txt", "--to", "raw", "--fields", "cls")
        assert synced == []
        good(*shards, "-o", tmp_path / "b.tar", "--fsync")
        before = len(synced)
        assert before >= 2
        good(*shards, "-o", tmp_path / "b.txt", "--to", "raw", "--fields", "cls", "--fsync")
        assert len(synced) > before

    def test_quiet_and_verbose(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        assert good(*shards, "-o", tmp_path / "a.tar", "-q").err == ""
        assert "not selected: keys 12" in good(*shards, "--keys", "b*", "-v").err
        assert good(*shards, "--keys", "b*").err == ""

    def test_nothing_is_left_of_a_failure(self, run: Command, shards: list[str], tmp_path: Path) -> None:
        os.truncate(shards[2], 100_000)
        ran = run(*shards, "-o", tmp_path / "out.tar")
        assert ran.code == 3
        assert "truncated" in ran.err or "ends after" in ran.err
        assert [path.name for path in tmp_path.iterdir()] == ["in"]
        assert leftovers(tmp_path) == []
        for options in (["--to", "raw", "--fields", "jpg"], ["--to", "jsonl"]):
            assert run(*shards, "-o", tmp_path / "out.bin", *options).code == 3
            assert [path.name for path in tmp_path.iterdir()] == ["in"]

    @pytest.mark.parametrize("way", ["{}", "pipe:cat {}"])
    def test_on_error_skip(self, good: Command, shards: list[str], tmp_path: Path, way: str) -> None:
        whole = [one for name in shards for one in samples_of(name)]
        os.truncate(shards[0], 10_000)
        ran = good(*[way.format(name) for name in shards], "--on-error", "skip")
        found = samples_of(ran.out)
        assert set(found) < set(whole)
        assert [key for key, _ in found] == ["a000", "a001", *keys_of(*shards[1:])]
        assert "warning:" in ran.err
        index = good(*[way.format(name) for name in shards], "--on-error", "skip", "-o", tmp_path / "o.tar")
        assert "left out" in index.err
        assert_true_index(tmp_path / "o.tar")


class TestPayloads:
    def test_one_field(self, good: Command, shards: list[str]) -> None:
        jpgs = b"".join(
            payload for name in shards for field, payload in members_of(name) if field.endswith(".jpg")
        )
        assert good(*shards, "--to", "raw", "--fields", "jpg").out == jpgs
        assert good(*[f"pipe:cat {name}" for name in shards], "--to", "raw", "--fields", "jpg").out == jpgs

    def test_of_one_key(self, good: Command, run: Command, shards: list[str]) -> None:
        assert (
            good(*shards, "--to", "raw", "--fields", "jpg", "--keys", "c002").out
            == dict(members_of(shards[2]))["c002.jpg"]
        )
        ran = run(*shards, "--to", "raw", "--fields", "jpg", "--keys", "nobody")
        assert (ran.code, ran.out) == (3, b"")
        assert "nobody" in ran.err
        ran = run(*shards, "--to", "raw", "--fields", "png", "--keys", "a001")
        assert ran.code == 3
        assert "it has cls, jpg, seg.png" in ran.err

    def test_samples_without_it_are_counted(self, good: Command, shards: list[str]) -> None:
        ran = good(*shards, "--to", "raw", "--fields", "seg.png")
        assert len(ran.out) == 8 * 700
        assert "left out 5 samples: no-such-field 5" in ran.err

    def test_to_a_file(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        good(*shards, "--to", "raw", "--fields", "cls", "-o", tmp_path / "all.txt")
        assert (tmp_path / "all.txt").read_bytes() == b"0123456001234"

    def test_json_lines(self, good: Command, tmp_path: Path) -> None:
        members = [
            ("a.json", b'{"x": 1.50,\n "y": [1e400]}'),
            ("a.txt", "grüße\n".encode()),
            ("a.jpg", b"\xff\xd8"),
            ("b.json", b"not json"),
            ("b.txt", b"\xff"),
            ("b.cls", b"7"),
            ("c.json", b"NaN"),
            ("c.text", b""),
        ]
        path = tmp_path / "x.tar"
        path.write_bytes(tar_of(members))
        ran = good(path, "--to", "jsonl")
        a, b, c = ran.objects
        assert (a["key"], a["shard"], a["index"]) == ("a", str(path), 0)
        assert a["fields"]["txt"] == "grüße\n"
        assert a["fields"]["jpg"] == {"bytes": 2}
        assert b'"x": 1.50,  "y": [1e400]' in ran.out
        assert b["fields"] == {"json": {"bytes": 8}, "txt": {"bytes": 1}, "cls": "7"}
        assert c["fields"] == {"json": {"bytes": 3}, "text": ""}
        coded = good(path, "--to", "jsonl", "--base64").objects
        assert base64.b64decode(coded[0]["fields"]["jpg"]["base64"]) == b"\xff\xd8"
        assert base64.b64decode(coded[1]["fields"]["json"]["base64"]) == b"not json"
        assert good(f"pipe:cat {path}", "--to", "jsonl").out == ran.out.replace(
            str(path).encode(), f"pipe:cat {path}".encode()
        )

    @pytest.mark.parametrize(
        "options",
        [
            ["--to", "raw", "--fields", "jpg", "--to", "jsonl"],
            ["--to", "raw", "--fields", "jpg", "--to", "d/"],
            ["--to", "jsonl", "--to", "d/"],
            ["--base64"],
            ["--to", "d/", "-o", "x.tar"],
            ["--to", "jsonl", "--rekey", "{index}"],
            ["--to", "raw", "--fields", "jpg", "--on-duplicate", "skip"],
            ["--to", "d/", "-n"],
            ["--to", "raw", "--fields", "jpg", "--mtime", "5"],
            ["--to", "raw", "--fields", "jpg", "--no-index"],
            ["--to", "jsonl", "--hash", "sha256"],
            ["--to", "d/", "--long-names", "gnu"],
            ["--to", "d/", "--fsync"],
        ],
        ids=" ".join,
    )
    def test_options_that_do_not_go_together(
        self,
        run: Command,
        shards: list[str],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        options: list[str],
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with no_new_files(tmp_path):
            ran = run(*shards, *options)
        assert (ran.code, ran.out) == (2, b"")


class TestUnpack:
    def test_a_file_per_member(self, good: Command, shards: list[str], tmp_path: Path) -> None:
        for number, way in enumerate(("{}", "pipe:cat {}")):
            folder = tmp_path / str(number) / "deep"
            ran = good(*[way.format(name) for name in shards], "--to", f"{folder}/")
            assert content(folder) == {name: data for shard in shards for name, data in members_of(shard)}
            assert "unpacked 13 samples into 34 files" in ran.err

    def test_folders_in_keys(self, good: Command, tmp_path: Path) -> None:
        (tmp_path / "x.tar").write_bytes(tar_of([*sample("a/b/c", 1), *sample("a/d", 2)]))
        good(tmp_path / "x.tar", "--to", f"{tmp_path / 'out'}/")
        assert (tmp_path / "out/a/b/c.cls").read_bytes() == b"1"

    @pytest.mark.parametrize("name", ["../up", "/tmp/wds-test-absolute", "a/../../up", ".."])
    @pytest.mark.parametrize("way", ["{}", "pipe:cat {}"])
    def test_names_that_lead_out(
        self, run: Command, good: Command, tmp_path: Path, name: str, way: str
    ) -> None:
        path = tmp_path / "x.tar"
        path.write_bytes(
            tar_of([*sample("ok", 1), (name + "/x.cls" if name == ".." else name + ".cls", b"evil")])
        )
        ran = run(way.format(path), "--to", f"{tmp_path / 'deep' / 'out'}/")
        assert ran.code == 3
        assert "unsafe" in ran.err
        assert not list(tmp_path.rglob("up.cls"))
        assert not Path("/tmp/wds-test-absolute.cls").exists()
        good(way.format(path), "--to", f"{tmp_path / 'deep' / 'out2'}/", "--on-error", "skip")
        assert sorted(content(tmp_path / "deep" / "out2")) == ["ok.cls", "ok.jpg", "ok.seg.png"]

    def test_a_link_that_leads_out(self, run: Command, good: Command, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "a").symlink_to(tmp_path / "elsewhere")
        (tmp_path / "x.tar").write_bytes(tar_of(sample("a/b", 1)))
        for force in ([], ["--force"]):
            ran = run(tmp_path / "x.tar", "--to", f"{tmp_path / 'out'}/", *force)
            assert ran.code == 4
            assert "leads out" in ran.err
        assert list((tmp_path / "elsewhere").iterdir()) == []
        # The folder itself may be a link: the user named it.
        (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
        good(tmp_path / "x.tar", "--to", f"{tmp_path / 'link'}/")
        assert len(content(tmp_path / "elsewhere")) == 3

    @pytest.mark.parametrize("dangling", [True, False])
    def test_a_link_in_a_file_s_place(
        self, run: Command, good: Command, tmp_path: Path, dangling: bool
    ) -> None:
        outside = tmp_path / "outside"
        if not dangling:
            outside.write_bytes(b"mine")
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "a.cls").symlink_to(outside)
        (tmp_path / "x.tar").write_bytes(tar_of(sample("a", 1)))
        assert run(tmp_path / "x.tar", "--to", f"{tmp_path / 'out'}/").code == 4
        good(tmp_path / "x.tar", "--to", f"{tmp_path / 'out'}/", "--force")
        assert (tmp_path / "out" / "a.cls").read_bytes() == b"1"
        assert not (tmp_path / "out" / "a.cls").is_symlink()
        assert dangling != outside.exists()
        assert dangling or outside.read_bytes() == b"mine"

    def test_what_is_there(self, run: Command, good: Command, shards: list[str], tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "a003.jpg").write_bytes(b"mine")
        ran = run(*shards, "--to", f"{tmp_path / 'out'}/")
        assert ran.code == 4
        assert "a003.jpg" in ran.err
        assert "--force" in ran.err
        assert (tmp_path / "out" / "a003.jpg").read_bytes() == b"mine"
        good(*shards, "--to", f"{tmp_path / 'out'}/", "--force")
        assert content(tmp_path / "out") == {
            name: data for shard in shards for name, data in members_of(shard)
        }

    def test_a_key_that_comes_twice(self, run: Command, shards: list[str], tmp_path: Path) -> None:
        ran = run(shards[1], shards[0], shards[1], "--to", f"{tmp_path / 'out'}/", "--force")
        assert ran.code == 3
        assert 'repeated key "b000"' in ran.err

    def test_a_file_where_a_folder_should_be(self, run: Command, tmp_path: Path) -> None:
        (tmp_path / "x.tar").write_bytes(tar_of([("a.b", b"1"), ("a.b/c.d", b"2")]))
        ran = run(tmp_path / "x.tar", "--to", f"{tmp_path / 'out'}/")
        assert ran.code == 4
        (tmp_path / "file").write_bytes(b"")
        assert run(tmp_path / "x.tar", "--to", f"{tmp_path / 'file'}/").code == 4

    def test_a_payload_that_is_cut_leaves_no_file(self, run: Command, tmp_path: Path) -> None:
        data = tar_of([*sample("a", 1), ("b.bin", bytes(3_000_000))])
        (tmp_path / "x.tar").write_bytes(data[:-10_000])
        for way in (f"{tmp_path}/x.tar", f"pipe:cat {tmp_path}/x.tar"):
            assert run(way, "--to", f"{tmp_path / 'out'}/", "--force").code == 3
            assert "b.bin" not in content(tmp_path / "out")

    def test_a_disk_that_is_full_leaves_no_half_file(self, shards: list[str], tmp_path: Path) -> None:
        """A limit on the size of files stands in for a full disk."""
        script = f"ulimit -f 20; exec {sys.executable} -m wdscli cat {' '.join(shards)} --to {tmp_path}/out/"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
        assert done.returncode == 4, done.stderr
        assert "c000.jpg" in done.stderr
        assert "c000.jpg" not in content(tmp_path / "out")
        assert "b000.jpg" in content(tmp_path / "out")

    def test_a_name_that_is_too_long(self, run: Command, tmp_path: Path) -> None:
        (tmp_path / "x.tar").write_bytes(tar_of([("n" * 300 + ".cls", b"1")]))
        assert run(tmp_path / "x.tar", "--to", f"{tmp_path / 'out'}/").code == 4

    def test_not_utf_8(self, good: Command, tmp_path: Path) -> None:
        (tmp_path / "x.tar").write_bytes(tar_of([(b"caf\xe9.cls".decode("utf-8", "surrogateescape"), b"1")]))
        good(tmp_path / "x.tar", "--to", f"{tmp_path / 'out'}/")
        assert os.listdir(os.fsencode(tmp_path / "out")) == [b"caf\xe9.cls"]

    def test_a_folder_that_was_there_is_made_use_of(
        self, good: Command, shards: list[str], tmp_path: Path
    ) -> None:
        shutil.copytree(tmp_path / "in", tmp_path / "out")
        good(*shards, "--to", f"{tmp_path / 'out'}/", "--limit", 1)
        assert (tmp_path / "out" / "a000.cls").exists()
        assert (tmp_path / "out" / "in-0.tar").exists()


@pytest.mark.parametrize("compiled", [True, False])
def test_all_whole_samples_of_a_broken_file_go_to_standard_output(
    tmp_path: Path, run: Command, monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    if not compiled:
        monkeypatch.setattr(core, "CORE", None)
    samples = numbered(9)
    data = tar_of([member for of_one in samples for member in of_one])
    (tmp_path / "cut.tar").write_bytes(data[: len(data) - 1024 - 600])
    ran = run(tmp_path / "cut.tar")
    assert ran.code == 3
    assert ran.out == data[: (len(data) - 1024) // 9 * 8]


@pytest.mark.parametrize("compiled", [True, False])
def test_a_later_part_of_a_sample_in_the_first_pass_is_said(
    tmp_path: Path, run: Command, monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    """The compiled core copied the first part, and `cat` then lost the warning."""
    if not compiled:
        monkeypatch.setattr(core, "CORE", None)
    monkeypatch.setattr("wdscli.ops.cat.COPY_BUFFER_BYTES", 1 << 14)
    pictures = [(f"{number}.png", b"") for number in range(99)]
    (tmp_path / "in.tar").write_bytes(tar_of([*pictures, ("3.txt", b""), ("4.txt", b"")]))
    for words in ([], ["--on-duplicate", "skip"]):
        ran = run(tmp_path / "in.tar", "-o", tmp_path / "all.tar", *words)
        assert ran.code == (0 if words else 3)
        assert ran.err.count(f'warning: "3" of {tmp_path}/in.tar is in several parts: ') == 1, words


@pytest.mark.skipif(core.CORE is None, reason="there is no compiled core")
class TestOnePass:
    """Usual samples are looked at where they are copied; from the first other one on headers are read before."""

    @pytest.fixture(autouse=True)
    def begins(self, monkeypatch: pytest.MonkeyPatch) -> list[ReadSamples]:
        """Where the second way began with each input."""
        found: list[ReadSamples] = []
        usual = _Copier.copy_usual

        def watched(*args: Any) -> ReadSamples:
            found.append(usual(*args))
            return found[-1]

        monkeypatch.setattr(_Copier, "copy_usual", watched)
        monkeypatch.setattr("wdscli.ops.cat.COPY_BUFFER_BYTES", 1 << 14)
        return found

    @pytest.mark.parametrize("make", [tar_of, foreign_tar])
    def test_all_but_the_last_sample(
        self, tmp_path: Path, good: Command, begins: list[ReadSamples], make: Callable[..., bytes]
    ) -> None:
        samples = numbered(300)
        shard = tmp_path / "in.tar"
        shard.write_bytes(make([member for sample in samples for member in sample]))
        assert good(shard).out == tar_of(members_of(shard))
        assert [beginning.samples for beginning in begins] == [299]

    def test_up_to_what_takes_more_to_know(
        self, tmp_path: Path, good: Command, begins: list[ReadSamples]
    ) -> None:
        samples = numbered(300)
        samples[200].insert(1, ("between", b"no field"))
        (shard,) = write_shards(tmp_path / "in", [samples])
        del samples[200][1]
        good(shard, "-o", tmp_path / "all.tar")
        assert (tmp_path / "all.tar").read_bytes() == tar_of(
            [member for sample in samples for member in sample]
        )
        assert [beginning.samples for beginning in begins] == [200]

    def test_a_sample_larger_than_the_buffer(
        self, tmp_path: Path, good: Command, begins: list[ReadSamples]
    ) -> None:
        shards = write_shards(tmp_path / "in", [[*numbered(9), *numbered(2, "z", [1 << 15])]])
        assert good(*shards).out == canonical(shards)
        assert [beginning.samples for beginning in begins] == [9]

    def test_a_field_that_comes_twice(self, tmp_path: Path, run: Command, begins: list[ReadSamples]) -> None:
        samples = numbered(20)
        samples[12].append(samples[12][0])
        ran = run(*write_shards(tmp_path / "in", [samples]), "-o", tmp_path / "all.tar")
        assert (ran.code, "the same field twice" in ran.err) == (3, True)
        assert [beginning.samples for beginning in begins] == [12]

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("place", [0, 1, 7, 150, 299])
    def test_a_key_that_comes_back_is_found_in_another_shard(
        self, tmp_path: Path, run: Command, place: int
    ) -> None:
        shards = write_shards(tmp_path / "in", [numbered(300), [*numbered(150, "b"), numbered(300)[place]]])
        ran = run(*shards, "-o", tmp_path / "all.tar")
        assert (ran.code, f"(first: sample {place} of {shards[0]})" in ran.err) == (3, True)
        assert run(*shards, "-o", tmp_path / "all.tar", "--on-duplicate", "skip").code == 0
        assert keys_of(tmp_path / "all.tar") == [*keys_of(shards[0]), *keys_of(shards[1])[:150]]

    def test_an_unsafe_name(self, tmp_path: Path, run: Command, begins: list[ReadSamples]) -> None:
        shards = write_shards(tmp_path / "in", [[*numbered(500), sample("../up", 1), *numbered(2, "z")]])
        ran = run(*shards, "-o", tmp_path / "all.tar")
        assert (ran.code, "unsafe name" in ran.err) == (3, True)
        assert 0 < begins[0][1] <= 500
