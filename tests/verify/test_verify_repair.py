"""``repair``: what is saved, what is not, and that inputs stay as they are."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import examples
from verify_cases import GOOD, flipped, good_tar, sparse_tar, tar_bytes, typed_tar, write
from verify_options import checks_of

from wdscli.cli.main import main
from wdscli.errors import OutputExistsError, UsageError
from wdscli.plan.request import Request
from wdscli.shards.writing import ShardSettings
from wdscli.tar import Form
from wdscli.verify import repair as package
from wdscli.verify.repair import RepairReport, repair
from wdscli.verify.set import verify

Members = list[tuple[bytes, bytes]]


def members_of(path: Path | str) -> Members:
    """What Python's own reader sees in a tar."""
    with tarfile.open(path) as tar:
        return [(info.name.encode(), tar.extractfile(info).read()) for info in tar]  # type: ignore[union-attr]


def repaired(
    folder: Path, data: bytes, settings: ShardSettings = ShardSettings(), **options: Any
) -> tuple[RepairReport, Members]:
    """One shard repaired: the report and what was written. The input is checked to be untouched, the output to be
    clean."""
    address = write(folder, data, "in.tar")
    report = repair(Request([address], str(folder / "out.tar"), settings, jobs=1), checks_of(**options))
    assert Path(address).read_bytes() == data
    if not report.written:
        return report, []
    check = verify([str(folder / "out-manifest.json")], checks_of(checksums=True), jobs=1)
    assert not check.errors, check.findings
    return report, members_of(folder / "out.tar")


def reasons(report: RepairReport) -> list[tuple[str, str | None]]:
    return [(finding.code, finding.member) for finding in report.left_out]


def test_a_good_shard_comes_out_as_it_was(tmp_path: Path) -> None:
    report, members = repaired(tmp_path, good_tar())
    assert members == GOOD
    assert report.counts == {}
    assert report.samples == 3
    assert (tmp_path / "out.tar").read_bytes() == good_tar()
    assert (tmp_path / ".wds" / "out.tar.wdx").exists()


def test_interleaved_samples_are_joined(tmp_path: Path) -> None:
    pictures, labels = GOOD[0::2], GOOD[1::2]
    report, members = repaired(tmp_path, tar_bytes(*pictures, *labels))
    assert members == GOOD
    assert report.counts == {}


def test_repeats_are_left_out(tmp_path: Path) -> None:
    report, members = repaired(
        tmp_path, tar_bytes(*GOOD, (b"a.jpg", b"other"), (b"c.jpg", b"again"), GOOD[5])
    )
    assert members == GOOD
    assert (
        reasons(report) == [("duplicate-field", "a.jpg"), ("duplicate-key", "a"), ("duplicate-key", "c")][1:]
    )
    report, members = repaired_again(tmp_path, tar_bytes(*GOOD[:2], GOOD[1], *GOOD[2:]))
    assert members == GOOD
    assert reasons(report) == [("duplicate-field", "a.cls")]


def repaired_again(folder: Path, data: bytes) -> tuple[RepairReport, Members]:
    return repaired(folder, data, settings=ShardSettings(force=True))


def test_damage_costs_the_sample_it_hits(tmp_path: Path) -> None:
    data = good_tar()
    second_label = data.index(b"b.cls")
    report, members = repaired(tmp_path, flipped(data, second_label))
    assert members == GOOD[:2] + GOOD[4:]
    assert reasons(report) == [("damaged", "b")]
    assert "bytes next to it are lost" in report.left_out[0].message


def test_a_hole_of_zeros_is_damage(tmp_path: Path) -> None:
    data = bytearray(good_tar())
    hole = data.index(b"b.cls")
    data[hole : hole + 1024] = bytes(1024)
    report, members = repaired(tmp_path, bytes(data))
    assert members == GOOD[:2] + GOOD[4:]
    assert reasons(report) == [("damaged", "b")]


def test_required_fields_say_what_is_whole(tmp_path: Path) -> None:
    data = tar_bytes(*GOOD[:2], end=b"")
    report, members = repaired(tmp_path, data)
    assert (members, reasons(report)) == ([], [("damaged", "a")])
    report, members = repaired(tmp_path, data, require=["jpg", "cls"], settings=ShardSettings(force=True))
    assert (members, reasons(report)) == (GOOD[:2], [])


def test_a_lost_first_member_costs_its_sample_only(tmp_path: Path) -> None:
    data = good_tar()
    report, members = repaired(tmp_path, flipped(data, data.index(b"b.jpg")))
    assert members == GOOD[:2] + GOOD[4:]
    assert reasons(report) == [("damaged", "b")]


@pytest.mark.parametrize("cut", [600, 1024, 2048])
def test_a_cut_shard_gives_its_whole_samples(cut: int, tmp_path: Path) -> None:
    data = good_tar()
    report, members = repaired(tmp_path, data[: data.index(b"c.jpg") + cut])
    whole = GOOD if cut == 2048 else GOOD[:4]
    # At 1024 the label's header is cut off: what is there of sample c is no whole sample.
    assert members == whole
    assert report.samples == len(whole) // 2


def test_joined_archives_are_one_again(tmp_path: Path) -> None:
    _, members = repaired(tmp_path, tar_bytes(*GOOD[:2]) + tar_bytes(*GOOD[2:]))
    assert members == GOOD


@pytest.mark.parametrize(
    ("data", "code", "member"),
    [
        (typed_tar("l.jpg", tarfile.SYMTYPE), "link", "l.jpg"),
        (typed_tar("f.jpg", tarfile.FIFOTYPE), "special", "f.jpg"),
        (sparse_tar(), "sparse", "b.jpg"),
        (tar_bytes(*GOOD[:4], (b"../e.jpg", b"x"), (b"/f.cls", b"x")), "unsafe-name", "../e.jpg"),
        (tar_bytes(*GOOD[:4], (b"README", b"x")), "no-field", "README"),
    ],
)
def test_what_may_not_be_written_is_left_out_and_told(
    data: bytes, code: str, member: str, tmp_path: Path
) -> None:
    report, members = repaired(tmp_path, data)
    assert members == GOOD[: len(members)]
    assert members
    assert reasons(report)[0] == (code, member)
    assert report.counts[code] == (2 if code == "unsafe-name" else 1)


def test_decode_leaves_out_what_cannot_be_decoded(tmp_path: Path) -> None:
    data = tar_bytes(
        (b"a.json", b"{}"), (b"a.txt", b"x"), (b"b.json", b"{"), (b"b.txt", b"x"), (b"a.cls", b"no")
    )
    report, members = repaired(tmp_path, data)
    assert len(members) == 5
    report, members = repaired(tmp_path, data, decode=True, settings=ShardSettings(force=True))
    assert members == []
    assert reasons(report) == [("undecodable", "b"), ("undecodable", "a")]


def test_keys_of_earlier_shards_are_left_out(tmp_path: Path) -> None:
    one = write(tmp_path, good_tar(), "1.tar")
    two = write(tmp_path, tar_bytes(*GOOD[:2], (b"d.jpg", b"x"), (b"d.cls", b"1")), "2.tar")
    three = write(tmp_path, good_tar(), "3.tar")
    report = repair(Request([one, two, three], str(tmp_path / "out-%06d.tar")))
    assert [shard.name for shard in report.written] == ["out-000000.tar", "out-000001.tar"]
    assert members_of(tmp_path / "out-000001.tar") == [(b"d.jpg", b"x"), (b"d.cls", b"1")]
    assert report.counts == {"duplicate-key": 4}
    assert [(Path(f.shard).name, f.member) for f in report.left_out] == [
        ("2.tar", "a"), ("3.tar", "a"), ("3.tar", "b"), ("3.tar", "c")
    ]  # fmt: skip
    assert not verify([report.manifest or ""], checks_of(checksums=True)).findings


def test_streams_and_cut_compressed_shards(tmp_path: Path) -> None:
    packed = gzip.compress(good_tar() + bytes(9000), compresslevel=0)
    address = write(tmp_path, packed[: len(good_tar()) - 1500], "in.tar.gz")
    report = repair(Request([address], str(tmp_path / "out.tar")))
    assert members_of(tmp_path / "out.tar") == GOOD[:4]
    report = repair(Request([f"pipe:cat {write(tmp_path, good_tar())}"], str(tmp_path / "piped.tar")))
    assert report.samples == 3
    with pytest.raises(UsageError, match="standard input"):
        repair(Request(["-"], str(tmp_path / "no.tar")))


def test_large_samples_are_copied_in_pieces(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(package, "LARGE_SAMPLE_BYTES", 100)
    monkeypatch.setattr("wdscli.storage.ends.PIECE_BYTES", 300)
    _, members = repaired(tmp_path, good_tar())
    assert members == GOOD
    assert (tmp_path / "out.tar").read_bytes() == good_tar()


def test_nothing_to_save(tmp_path: Path) -> None:
    report, members = repaired(tmp_path, b"no tar at all")
    assert (report.samples, report.written, members) == (0, (), [])


def test_outputs_must_fit(tmp_path: Path) -> None:
    one, two = write(tmp_path, good_tar(), "1.tar"), write(tmp_path, good_tar(), "2.tar")
    with pytest.raises(UsageError, match="is for one shard"):
        repair(Request([one, two], str(tmp_path / "out.tar")))
    with pytest.raises(UsageError, match="3 shards, but 1 can be saved"):
        repair(Request([one, two], str(tmp_path / "out-{0..2}.tar")))
    with pytest.raises(UsageError, match="input"):
        repair(Request([one], one, settings=ShardSettings(force=True)))
    write(tmp_path, b"", "out.tar")
    with pytest.raises(OutputExistsError):
        repair(Request([one], str(tmp_path / "out.tar")))


@pytest.mark.parametrize(
    ("output", "code"), [("out.tar", 2), ("out-{0..2}.tar", 2), ("a.tar", 2), ("nope.tar.gz", 2), ("", 2)]
)
def test_what_cannot_be_written_is_said_before_the_report(
    tmp_path: Path, capfd: Any, output: str, code: int
) -> None:
    """The refusal comes before the report, which can be long."""
    shards = [write(tmp_path, good_tar()[:800], name) for name in ("a.tar", "b.tar")]
    assert main(["repair", *shards, "--force", "-o", output and str(tmp_path / output)]) == code
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert "nothing wrong" not in err


def test_what_is_left_out_is_told_up_to_a_limit_over_all_inputs(tmp_path: Path) -> None:
    shards = [
        write(tmp_path, tar_bytes(*[(b"%s%d.jpg" % (key, number), b"x") for number in range(30)] * 2), name)
        for name, key in (("1.tar", b"a"), ("2.tar", b"b"))
    ]
    report = repair(Request(shards, str(tmp_path / "out-%d.tar")), checks_of(max_findings=10))
    assert report.counts == {"duplicate-key": 60}
    assert len(report.left_out) == 10


@settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    flips=st.lists(st.tuples(st.integers(0, len(good_tar()) - 1), st.integers(0, 7)), max_size=3),
    cut=st.one_of(st.none(), st.integers(0, len(good_tar()))),
)
def test_whatever_is_saved_is_whole(
    flips: list[tuple[int, int]], cut: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = good_tar()
    for at, bit in flips:
        data = flipped(data, at, bit)
    report, members = repaired(tmp_path_factory.mktemp("r"), data[:cut])
    sizes = {name: len(payload) for name, payload in GOOD}
    saved: dict[bytes, set[bytes]] = {}
    for name, payload in members:
        key, _, field = name.partition(b".")
        saved.setdefault(key, set()).add(field)
        assert sizes.get(name, len(payload)) == len(payload)
    assert report.samples == len(saved)


def test_the_command_says_what_was_saved(tmp_path: Path, capfdbinary: Any) -> None:
    data = good_tar()
    address = write(tmp_path, flipped(data, data.index(b"b.cls")))
    out = str(tmp_path / "out.tar")
    assert main(["repair", address, "-o", out, "-n"]) == 1
    captured = capfdbinary.readouterr()
    assert b"would save 2 samples; left out: 1" in captured.err
    assert not Path(out).exists()
    assert main(["repair", address, "-o", out]) == 1
    captured = capfdbinary.readouterr()
    assert (
        b"not saved, damaged: 1\n  " + address.encode() + b' at byte 2560 "b": sample left out'
        in captured.out
    )
    assert b"saved 2 samples; left out: 1" in captured.err
    assert main(["verify", out]) == 0
    captured = capfdbinary.readouterr()
    assert main(["repair", address, "-o", out]) == 4
    assert capfdbinary.readouterr().out == b""
    assert main(["repair", "-", "-o", out]) == 2
    assert main(["repair", address, "-o", out, "--force", "--no-index", "--mtime", "7"]) == 1
    assert not (tmp_path / ".wds" / "out.tar.wdx").exists()
    with tarfile.open(out) as tar:
        assert {info.mtime for info in tar} == {7}


def test_long_names_and_fsync(tmp_path: Path, monkeypatch: Any) -> None:
    name = b"n" * 120 + b".jpg"
    address = write(tmp_path, tar_bytes((name, b"x")))
    out = str(tmp_path / "out.tar")
    assert main(["repair", address, "-o", out, "--long-names", "gnu"]) == 0
    assert b"././@LongLink" in Path(out).read_bytes()
    assert members_of(out) == [(name, b"x")]
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    assert main(["repair", address, "-o", out, "--force"]) == 0
    assert not synced
    assert main(["repair", address, "-o", out, "--force", "--fsync"]) == 0
    assert synced
    assert ShardSettings(form=Form(0, "gnu")).form.long_names == "gnu"


@pytest.mark.parametrize("words", [["-o", "x.tar"], ["--force"], ["--dry-run"], ["--mtime", "1"]])
def test_a_check_writes_nothing(words: list[str], tmp_path: Path, capfd: Any) -> None:
    assert main(["verify", write(tmp_path, good_tar()), *words]) == 2
    assert f"no such option: {words[0]}" in capfd.readouterr().err


def test_a_repair_needs_an_output(tmp_path: Path, capfd: Any) -> None:
    assert main(["repair", write(tmp_path, good_tar())]) == 2
    assert "-o" in capfd.readouterr().err


def test_a_sample_that_lost_a_member_is_not_saved(tmp_path: Path) -> None:
    """Also if it has all required fields: its lost member may be any of them, in another version."""
    data = link_tar(("b.jpg", "none.jpg"))
    report, members = repaired(tmp_path, data)
    assert members == GOOD[:2] + GOOD[4:]
    assert reasons(report) == [("link", "b.jpg"), ("damaged", "b")]
    report, members = repaired(tmp_path, data, require=["cls"], settings=ShardSettings(force=True))
    assert members == GOOD[:2] + GOOD[4:]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_what_is_no_file_costs_its_sample(kind: bytes, tmp_path: Path) -> None:
    report, members = repaired(tmp_path, link_tar(("c.more", "a.jpg"), kind=kind))
    assert members == GOOD[:4]
    assert report.counts["damaged"] == 1


def link_tar(*links: tuple[str, str], kind: bytes = tarfile.LNKTYPE) -> bytes:
    """The good samples, in which links take the place of members, or follow all members."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        targets = dict(links)
        for name in [
            *(name.decode() for name, _ in GOOD),
            *targets.keys() - {name.decode() for name, _ in GOOD},
        ]:
            info = tarfile.TarInfo(name)
            payload = dict(GOOD).get(name.encode(), b"")
            if name in targets:
                info.type, info.linkname, payload = kind, targets[name], b""
            info.size = len(payload)
            tar.addfile(info, io.BytesIO(payload))
    return out.getvalue()


def test_hard_links_are_written_out(tmp_path: Path) -> None:
    report, members = repaired(tmp_path, link_tar(("b.jpg", "a.jpg"), ("c.jpg", "b.jpg")))
    assert members == [*GOOD[:2], (b"b.jpg", GOOD[0][1]), GOOD[3], (b"c.jpg", GOOD[0][1]), GOOD[5]]
    assert report.counts == {}


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs GNU tar")
@pytest.mark.parametrize("form", ["gnu", "posix"])
def test_sparse_files_are_written_out(form: str, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"a")
    with (folder / "a.bin").open("wb") as file:
        file.truncate(20 << 20)
        file.seek(8 << 20)
        file.write(b"middle")
    os.link(folder / "a.bin", folder / "b.bin")
    command = ["tar", "-S", f"--format={form}", "-C", str(folder), "-cf", "-", "a.bin", "a.txt", "b.bin"]
    data = subprocess.run(command, capture_output=True, check=True).stdout
    assert len(data) < 1 << 20, "the file system of this test makes no holes"
    report, members = repaired(tmp_path, data)
    content = (folder / "a.bin").read_bytes()
    assert members == [(b"a.bin", content), (b"a.txt", b"a"), (b"b.bin", content)]
    assert report.counts == {}


def test_links_cannot_fill_the_disc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "EXPANSION_BYTES", 1000)
    monkeypatch.setattr(package, "MAX_EXPANSION", 0)
    report, members = repaired(tmp_path, link_tar(("b.jpg", "a.jpg"), ("c.jpg", "a.jpg")))
    assert members == [*GOOD[:2], (b"b.jpg", GOOD[0][1]), GOOD[3]]
    assert report.counts == {"link": 1, "damaged": 1}


def test_required_fields_are_required_of_every_sample(tmp_path: Path) -> None:
    data = tar_bytes(*GOOD[:3], *GOOD[4:])
    report, members = repaired(tmp_path, data, require=["jpg", "cls"])
    assert members == GOOD[:2] + GOOD[4:]
    assert reasons(report) == [("missing-field", "b")]
    assert report.samples == 2
    check = verify([str(tmp_path / "out.tar")], checks_of(require=["jpg", "cls"]), jobs=1)
    assert not check.errors
    report, members = repaired(
        tmp_path, data, require=["mp4"], settings=ShardSettings(force=True), max_findings=1
    )
    assert (members, report.counts, len(report.left_out)) == ([], {"missing-field": 3}, 1)


def test_separated_members_are_required_together(tmp_path: Path) -> None:
    _, members = repaired(tmp_path, tar_bytes(*GOOD[0::2], *GOOD[1::2]), require=["jpg", "cls"])
    assert members == GOOD
