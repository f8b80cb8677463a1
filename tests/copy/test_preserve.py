"""``--preserve``: headers reach the output as they are. tarfile is the oracle for what they say."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from wdscli.cli.main import main
from wdscli.ops.cat import cat
from wdscli.plan.request import Request
from wdscli.shards import find_index
from wdscli.shards.proof import scan_index
from wdscli.storage import open_source

Add = Callable[[tarfile.TarFile], None]


def member(name: str, data: bytes, **facts: object) -> tuple[tarfile.TarInfo, io.BytesIO]:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for fact, value in facts.items():
        setattr(info, fact, value)
    return info, io.BytesIO(data)


def pax_shard(path: Path, **globals_: str) -> str:
    """Five samples with owners, modes, times and pax records of their own."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT, pax_headers=globals_) as tar:
        for number in range(5):
            for field, data in (("jpg", b"j" * (700 * number)), ("cls", b"%d" % number)):
                info, stream = member(f"n{number}.{field}", data, mode=0o640, uid=1000 + number, uname="ann")
                info.mtime = 1_700_000_000.25 + number
                info.pax_headers = {"comment": f"of {number}", "VENDOR.x": "7"}
                tar.addfile(info, stream)
    return str(path)


def facts(path: str | Path) -> dict[str, tuple[object, ...]]:
    with tarfile.open(path) as tar:
        found = {}
        for info in tar:
            stream = tar.extractfile(info)
            assert stream is not None
            said = {**tar.pax_headers, **info.pax_headers}
            own = (info.mode, info.uid, info.uname, info.mtime, info.size, sorted(said.items()))
            found[info.name] = (*own, stream.read())
        return found


def run(*words: str) -> None:
    assert main([*words, "-q"]) == 0


@pytest.mark.parametrize("globals_", [{}, {"comment": "of all", "ARCHIVE.id": "abc"}])
def test_headers_stay_as_they_are(tmp_path: Path, globals_: dict[str, str]) -> None:
    source, out = pax_shard(tmp_path / "in.tar", **globals_), str(tmp_path / "out.tar")
    run("cat", source, "-o", out, "--preserve")
    assert facts(out) == facts(source)
    run("cat", source, "-o", str(tmp_path / "plain.tar"))
    assert facts(tmp_path / "plain.tar") != facts(source)


def test_the_index_is_true_and_the_set_is_clean(tmp_path: Path) -> None:
    source, out = pax_shard(tmp_path / "in.tar", comment="of all"), str(tmp_path / "set" / "out.tar")
    run("cat", source, "-o", out, "--preserve")
    with open_source(out) as shard:
        index = find_index(out, shard)
        assert index is not None
        assert index.digest == scan_index(shard)[0].digest()
    run("verify", "--checksums", str(tmp_path / "set"))


def test_fields_are_left_out_and_the_others_keep_their_headers(tmp_path: Path) -> None:
    source, out = pax_shard(tmp_path / "in.tar"), str(tmp_path / "out.tar")
    run("cat", source, "-o", out, "--preserve", "--fields", "cls")
    wanted = {name: said for name, said in facts(source).items() if name.endswith(".cls")}
    assert facts(out) == wanted


def test_a_run_of_members_is_copied_byte_for_byte(tmp_path: Path) -> None:
    source, out = pax_shard(tmp_path / "in.tar"), tmp_path / "out.tar"
    run("cat", source, "-o", str(out), "--preserve")
    data = (tmp_path / "in.tar").read_bytes()
    end = len(data.rstrip(b"\0")) + 511 & -512
    assert out.read_bytes() == data[:end] + bytes(1024)


@pytest.mark.parametrize("address", ["pipe:cat in.tar", "in.tar.gz"])
def test_streams_keep_their_headers_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.chdir(tmp_path)
    source = pax_shard(tmp_path / "in.tar", comment="of all")
    subprocess.run(["gzip", "-k", source], check=True)
    run("cat", address, "-o", "out.tar", "--preserve")
    run("cat", "in.tar", "-o", "straight.tar", "--preserve")
    assert facts("out.tar") == facts(source)
    assert Path("out.tar").read_bytes() == Path("straight.tar").read_bytes()


def test_what_lies_between_the_members_of_a_sample_is_left_out(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "in.tar", "w", format=tarfile.GNU_FORMAT) as tar:
        tar.addfile(*member("a.jpg", b"1", uid=7))
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        tar.addfile(*member("a.txt", b"22", uid=8))
        tar.addfile(*member("b.txt", b"3" * (1 << 20), uid=9))
    out = str(tmp_path / "out.tar")
    run("cat", str(tmp_path / "in.tar"), "-o", out, "--preserve")
    assert {name: said[1] for name, said in facts(out).items()} == {"a.jpg": 7, "a.txt": 8, "b.txt": 9}


@pytest.mark.skipif(shutil.which("tar") is None, reason="GNU tar is not here")
@pytest.mark.parametrize("form", ["v7", "oldgnu", "gnu", "ustar", "posix"])
def test_every_format_of_gnu_tar(tmp_path: Path, form: str) -> None:
    (tmp_path / "tree").mkdir()
    for number in range(4):
        (tmp_path / "tree" / f"n{number}.txt").write_bytes(b"x" * number * 300)
    source, out = str(tmp_path / "in.tar"), str(tmp_path / "out.tar")
    names = sorted(path.name for path in (tmp_path / "tree").iterdir())
    subprocess.run(
        ["tar", "cf", source, f"--format={form}", "-C", str(tmp_path / "tree"), *names], check=True
    )
    run("cat", source, "-o", out, "--preserve")
    assert facts(out) == facts(source)


def test_a_dry_run_knows_the_size(tmp_path: Path) -> None:
    request = Request([pax_shard(tmp_path / "in.tar", comment="of all")], str(tmp_path / "out.tar"))
    planned = cat(request, preserve=True, dry_run=True).bytes_out
    assert cat(request, preserve=True).bytes_out == planned
    assert (tmp_path / "out.tar").stat().st_size == planned


@pytest.mark.parametrize(
    "words", [["--rekey", "{index}"], ["--rename", "a=jpg"], ["--on-duplicate", "rekey"]]
)
def test_new_names_need_new_headers(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], words: list[str]
) -> None:
    source = pax_shard(tmp_path / "in.tar")
    assert main(["cat", source, "-o", str(tmp_path / "out.tar"), "--preserve", *words]) == 2
    assert "--preserve keeps all names" in capfd.readouterr().err
    assert not (tmp_path / "out.tar").exists()


def test_raw_payloads_have_no_headers_to_keep(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["cat", pax_shard(tmp_path / "in.tar"), "--to", "raw", "--fields", "cls", "--preserve"]) == 2
    assert "leave --preserve out; it works only for tar output" in capfd.readouterr().err
