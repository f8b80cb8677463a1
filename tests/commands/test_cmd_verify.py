"""``wds verify`` from its words to its exit code."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import msgpack
import numpy
import pytest
from packages import ZST
from PIL import Image
from terminals import on_terminal
from verify_cases import GOOD, flipped, good_tar, sparse_tar, tar_bytes, tar_member, typed_tar, write

from wdscli.cli.main import main
from wdscli.shards.writer import ShardWriter
from wdscli.storage import blocks, open_source
from wdscli.tar import END_OF_ARCHIVE, Form, build_header

Found = list[dict[str, Any]]


class Ran:
    """What one call did."""

    def __init__(self, code: int, out: bytes, err: bytes) -> None:
        self.code = code
        self.text = out.decode("utf-8", "replace")
        self.err = err.decode("utf-8", "replace")

    @property
    def objects(self) -> Found:
        return [json.loads(line) for line in self.text.splitlines()]

    @property
    def findings(self) -> Found:
        return [value for value in self.objects if "code" in value and "left_out" not in value]

    @property
    def summary(self) -> dict[str, Any]:
        return next(value for value in self.objects if value.get("summary"))

    @property
    def codes(self) -> set[str]:
        return {value["code"] for value in self.findings}


@pytest.fixture
def wds(capfdbinary: Any) -> Any:
    def call(*args: str, json: bool = True) -> Ran:
        capfdbinary.readouterr()
        code = main(["verify", *args, *(["--json"] if json else [])])
        captured = capfdbinary.readouterr()
        return Ran(code, captured.out, captured.err)

    return call


def make_set(
    folder: Path, count: int = 6, prefix: str = "t", max_count: int = 2, **fields: bytes
) -> list[str]:
    """A set with manifest and indexes."""
    with ShardWriter(str(folder / f"{prefix}-%06d.tar"), max_count=max_count) as writer:
        for number in range(count):
            writer.write(f"{prefix}{number}", fields or {"jpg": b"x" * number + b"y", "cls": b"%d" % number})
    return [str(folder / shard.name) for shard in writer.manifest.shards]


# what is wrong -> (bytes, code, byte, member)
STARTS = [0, 1536, 2560, 3584, 4608, 5632]
END = len(good_tar()) - len(END_OF_ARCHIVE)
CASES: dict[str, tuple[bytes, str, int | None, str | None]] = {
    "not-a-tar": (b"<html>" * 1000, "not-a-tar", 0, None),
    "empty": (b"", "not-a-tar", 0, None),
    "cut in a payload": (good_tar()[:800], "truncated", 0, "a.jpg"),
    "cut in a header": (good_tar()[: STARTS[2] + 100], "truncated", STARTS[2], None),
    "no end": (good_tar()[:END], "no-end-of-archive", END, None),
    "one zero block": (good_tar()[:-512], "no-end-of-archive", END, None),
    "data after the end": (good_tar() + b"junk" * 128, "data-after-end", END + 1024, None),
    "flip in a header": (flipped(good_tar(), STARTS[2] + 1), "bad-checksum", STARTS[2], None),
    "interleaved": (tar_bytes(*GOOD, (b"a.txt", b"late")), "interleaved-key", END, "a"),
    "key twice": (tar_bytes(*GOOD, GOOD[0]), "duplicate-key", END, "a"),
    "field twice": (tar_bytes(*GOOD, GOOD[5]), "duplicate-field", END, "c.cls"),
    "fields in two cases": (tar_bytes(*GOOD, (b"c.CLS", b"3")), "case-collision", END, "c.CLS"),
    "keys in two cases": (tar_bytes(*GOOD, (b"A.jpg", b"x"), (b"A.cls", b"1")), "case-collision", END, "A"),
    "other fields": (tar_bytes(*GOOD, (b"d.jpg", b"x")), "mixed-fields", END, "d"),
    "absolute": (tar_bytes(*GOOD, (b"/d.jpg", b"x"), (b"/d.cls", b"1")), "unsafe-name", END, "/d.jpg"),
    "dots": (
        tar_bytes(*GOOD, (b"x/../d.jpg", b"x"), (b"x/../d.cls", b"1")),
        "unsafe-name",
        END,
        "x/../d.jpg",
    ),
    "link": (typed_tar("l.jpg", tarfile.SYMTYPE), "link", STARTS[2], "l.jpg"),
    "hard link": (typed_tar("l.jpg", tarfile.LNKTYPE), "link", STARTS[2], "l.jpg"),
    "fifo": (typed_tar("f.jpg", tarfile.FIFOTYPE), "special", STARTS[2], "f.jpg"),
    "device": (typed_tar("f.jpg", tarfile.CHRTYPE), "special", STARTS[2], "f.jpg"),
    "sparse": (sparse_tar(), "sparse", None, "b.jpg"),
    "no dot": (tar_bytes(*GOOD, (b"README", b"x")), "no-field", END, "README"),
    "apple": (tar_bytes(*GOOD, (b"._c.jpg", b"x")), "no-field", END, "._c.jpg"),
    "empty payload": (tar_bytes(*GOOD, (b"d.jpg", b""), (b"d.cls", b"1")), "empty-payload", END, "d.jpg"),
    "huge size": (
        tar_bytes(*GOOD[:2], end=b"") + build_header(b"h.jpg", 1 << 62, Form(0, "gnu")) + bytes(1024),
        "truncated",
        STARTS[2],
        "h.jpg",
    ),
}
WARNINGS = {"case-collision", "mixed-fields", "no-field", "empty-payload"}


@pytest.mark.parametrize("case", CASES)
def test_each_kind_is_found_where_it_is(case: str, wds: Any, tmp_path: Path) -> None:
    data, code, offset, member = CASES[case]
    address = write(tmp_path, data)
    ran = wds(address)
    found = [value for value in ran.findings if value["code"] == code]
    assert found, ran.text
    assert found[0]["shard"] == address
    assert offset is None or found[0]["offset"] == offset
    assert found[0]["member"] == member
    assert found[0]["message"]
    assert found[0]["hint"]
    assert found[0]["severity"] == ("warning" if code in WARNINGS else "error")
    assert ran.code == (0 if code in WARNINGS else 1)
    # A member more or less leaves its sample with other fields than most.
    assert ran.codes - {"mixed-fields"} == {code} - {"mixed-fields"}


def test_bad_size_is_found_and_reading_goes_on(wds: Any, tmp_path: Path) -> None:
    negative = bytearray(tar_member(b"n.jpg"))
    negative[124:136] = b"\xff" * 12
    negative[148:156] = b" " * 8
    negative[148:156] = b"%06o\0 " % sum(negative[:512])
    address = write(tmp_path, tar_bytes(*GOOD[:2], end=b"") + bytes(negative) + tar_bytes(*GOOD[2:]))
    ran = wds(address)
    assert ran.codes == {"bad-size"}
    assert ran.findings[0]["member"] == "n.jpg"
    assert ran.summary["samples"] == 3


def test_a_clean_shard_is_clean(wds: Any, tmp_path: Path) -> None:
    ran = wds(write(tmp_path, good_tar()))
    assert ran.code == 0
    assert ran.findings == []
    assert ran.summary == {
        "summary": True,
        "shards": 1,
        "samples": 3,
        "members": 6,
        "bytes": len(good_tar()),
        "errors": 0,
        "warnings": 0,
        "counts": {},
        "untold": {},
        "ignored": {},
        "undecoded": {},
    }
    assert "nothing wrong; checked headers and structure (bytes with --checksums) in" in ran.err
    assert "; checked headers, structure and values in" in wds(str(tmp_path / "x.tar"), "--decode").err


def test_every_finding_of_several_shards_is_gathered(wds: Any, tmp_path: Path) -> None:
    one = write(tmp_path, flipped(good_tar(), STARTS[2]), "1.tar")
    two = write(tmp_path, b"no tar", "2.tar")
    three = write(tmp_path, tar_bytes((b"x.jpg", b""), (b"x.jpg", b"1")), "3.tar")
    ran = wds(one, two, three)
    assert ran.codes == {"bad-checksum", "not-a-tar", "empty-payload", "duplicate-field", "mixed-fields"}
    assert ran.summary["shards"] == 3


def test_keys_of_other_shards_are_named(wds: Any, tmp_path: Path) -> None:
    one = write(tmp_path, good_tar(), "1.tar")
    two = write(tmp_path, tar_bytes((b"z.jpg", b"1"), (b"z.cls", b"1"), *GOOD[2:4]), "2.tar")
    ran = wds(one, two)
    assert [(f["code"], f["shard"], f["offset"], f["member"]) for f in ran.findings] == [
        ("duplicate-key", two, 2048, "b")
    ]
    assert one in ran.findings[0]["message"]
    assert ran.code == 1


def test_keys_of_streams_are_named_too(wds: Any, tmp_path: Path) -> None:
    one = write(tmp_path, good_tar(), "1.tar")
    ran = wds(one, f"pipe:cat {one}")
    assert [(f["code"], f["member"]) for f in ran.findings] == [("duplicate-key", key) for key in "abc"]
    double = write(tmp_path, tar_bytes(*GOOD, *GOOD[:2]), "2.tar")
    ran = wds(f"pipe:cat {double}")
    assert [(f["code"], f["member"], f["offset"]) for f in ran.findings] == [("duplicate-key", "a", END)]


def test_require(wds: Any, tmp_path: Path) -> None:
    address = write(tmp_path, tar_bytes(*GOOD, (b"d.jpg", b"x")))
    assert "missing-field" not in wds(address).codes
    ran = wds(address, "--require", "jpg,cls")
    missing = [f for f in ran.findings if f["code"] == "missing-field"]
    assert [(f["member"], f["offset"]) for f in missing] == [("d", END)]
    assert '"cls"' in missing[0]["message"]
    assert len([f for f in wds(address, "--require", "txt").findings if f["code"] == "missing-field"]) == 4


def test_fields_that_the_manifest_promises_are_required(wds: Any, tmp_path: Path) -> None:
    shards = make_set(tmp_path)
    assert wds(str(tmp_path)).code == 0
    Path(shards[1]).write_bytes(tar_bytes((b"t2.jpg", b"1"), (b"t3.jpg", b"1"), (b"t3.cls", b"1")))
    ran = wds(str(tmp_path))
    assert [f["member"] for f in ran.findings if f["code"] == "missing-field"] == ["t2"]


def test_errors_makes_kinds_of_warnings_errors(wds: Any, tmp_path: Path) -> None:
    """Also if the findings are only counted; other warnings stay warnings."""
    address = write(tmp_path, tar_bytes(*GOOD, (b"d.jpg", b""), (b"README", b"x")))
    ran = wds(address)
    assert (ran.code, ran.summary["errors"], ran.summary["warnings"]) == (0, 0, 3)
    for options in (
        ["empty-payload,not-a-tar"],
        ["not-a-tar", "--errors", "empty-payload", "--max-findings", "0"],
    ):
        ran = wds(address, "--errors", *options)
        assert (ran.code, ran.summary["errors"], ran.summary["warnings"]) == (1, 1, 2)
        assert {finding["code"] for finding in ran.findings if finding["severity"] == "error"} <= {
            "empty-payload"
        }
    assert wds(address, "--errors", "empty-payload").findings != wds(address).findings
    ran = wds(address, "--errors", "empty-payloads")
    assert ran.code == 2
    assert "--errors empty-payloads: no such kind of finding\nhint: did you mean empty-payload?" in ran.err


def test_strict_makes_warnings_count(wds: Any, tmp_path: Path) -> None:
    address = write(tmp_path, tar_bytes(*GOOD, (b"README", b"x")))
    assert wds(address).code == 0
    assert wds(address, "--strict").code == 1


def test_max_findings_tells_some_and_counts_all(wds: Any, tmp_path: Path) -> None:
    address = write(tmp_path, tar_bytes(*[(b"%d.jpg" % n, b"") for n in range(150)]))
    ran = wds(address)
    assert len(ran.findings) == 100
    assert ran.summary["counts"] == {"empty-payload": 150}
    assert ran.summary["untold"] == {"empty-payload": 50}
    assert len(wds(address, "--max-findings", "7").findings) == 7
    assert "... and 143 more" in wds(address, "--max-findings", "7", json=False).text
    ran = wds(address, "--max-findings", "0", "--strict")
    assert (ran.findings, ran.code, ran.summary["warnings"]) == ([], 1, 150)


def test_max_findings_is_for_all_shards(wds: Any, tmp_path: Path) -> None:
    """A limit for each shard would print 500 lines for five shards."""
    make_set(tmp_path, count=1000, max_count=200, txt=b"x")
    ran = wds(str(tmp_path), "--require", "jpg", json=False)
    assert ran.code == 1
    assert "missing-field: 1000 errors\n" in ran.text
    assert "  ... and 900 more\n" in ran.text
    assert len(ran.text.splitlines()) < 110
    ran = wds(str(tmp_path), "--require", "jpg", "--max-findings", "3")
    assert (len(ran.findings), ran.summary["untold"]) == (3, {"missing-field": 997})


def test_nothing_says_to_index_a_shard_that_is_cut(wds: Any, tmp_path: Path) -> None:
    """Index and manifest are right; a new index would hide what is lost."""
    [shard, *_] = make_set(tmp_path)
    data = Path(shard).read_bytes()
    Path(shard).write_bytes(data[:700])
    ran = wds(str(tmp_path))
    assert ran.codes == {"truncated", "stale-index", "manifest-mismatch"}
    assert not any("wds index" in finding["hint"] for finding in ran.findings)
    Path(shard).write_bytes(tar_bytes(*GOOD))
    ran = wds(str(tmp_path))
    assert ran.codes == {"stale-index", "manifest-mismatch", "mixed-fields"} - {"mixed-fields"}
    assert all("wds index" in finding["hint"] for finding in ran.findings)


def test_unreadable_shards_exit_4_and_do_not_hide_others(wds: Any, tmp_path: Path) -> None:
    bad = write(tmp_path, b"no tar")
    ran = wds(str(tmp_path / "missing.tar"), bad)
    assert ran.codes == {"unreadable", "not-a-tar"}
    assert all(finding["hint"] for finding in ran.findings)
    assert ran.code == 4
    assert wds(f"pipe:cat {write(tmp_path, good_tar(), 'g.tar')}; exit 3").code == 4


def test_report_is_grouped_by_kind(wds: Any, tmp_path: Path) -> None:
    one = write(tmp_path, tar_bytes(*GOOD, (b"README", b"x"), (b"d.jpg", b""), (b"d.cls", b"1")), "1.tar")
    two = write(tmp_path, tar_bytes((b"e.jpg", b""), (b"e.cls", b"2")), "2.tar")
    ran = wds(one, two, json=False)
    lines = ran.text.splitlines()
    assert lines[0] == "no-field: 1 warning"
    assert lines[1].startswith(f'  {one} at byte {END} "README": ')
    at = lines.index("empty-payload: 2 warnings")
    assert lines[at + 1].startswith(f"  {one} at byte")
    assert lines[at + 2].startswith(f"  {two} at byte 0")
    assert lines[at + 3].startswith("  hint: ")
    assert ran.err.startswith("2 shards, 5 samples, 12.8 kB: 3 warnings; checked headers and ")
    assert "\x1b" not in ran.text
    assert wds(one, "-q", json=False).err == ""


def test_a_terminal_sees_escapes_written_out(tmp_path: Path) -> None:
    address = write(tmp_path, tar_bytes(*GOOD, (b"\x1b[2Jd.jpg", b""), (b"\x1b[2Jd.cls", b"1")))
    command = [sys.executable, "-m", "wdscli", "verify", address]
    shown = on_terminal(command)
    assert "empty-payload: 1 warning" in shown
    assert "\\x1b[2Jd.jpg" in shown
    assert "\x1b[2J" not in shown
    piped = subprocess.run(command, capture_output=True, check=False)
    assert b"\x1b[2Jd.jpg" in piped.stdout


def test_exit_codes_of_the_installed_command(tmp_path: Path) -> None:
    def code(*args: str) -> int:
        command = [sys.executable, "-m", "wdscli", "verify", *args]
        return subprocess.run(command, capture_output=True, check=False).returncode

    good = write(tmp_path, good_tar(), "good.tar")
    assert code(good) == 0
    assert code(write(tmp_path, good_tar()[:-600], "bad.tar")) == 1
    assert code(good, "--for", "nobody") == 2
    assert code(str(tmp_path / "none.tar")) == 4
    data = subprocess.run(
        [sys.executable, "-m", "wdscli", "verify", "-"], input=good_tar(), capture_output=True, check=False
    )
    assert data.returncode == 0


@pytest.mark.exhaustive
def test_jobs_do_not_change_the_report(wds: Any, tmp_path: Path) -> None:
    for number in range(4):
        write(tmp_path, tar_bytes(*GOOD, (b"%d.x" % number, b"")), f"{number}.tar")
    assert wds(str(tmp_path), "-j", "2").text == wds(str(tmp_path), "-j", "1").text


def payloads() -> dict[bytes, tuple[bytes, bytes]]:
    """field -> (a payload that decodes, one that does not)."""
    picture = io.BytesIO()
    Image.new("RGB", (64, 64), (1, 2, 3)).save(picture, "JPEG")
    png = io.BytesIO()
    Image.new("L", (64, 64)).save(png, "PNG")
    array, arrays, pickled = io.BytesIO(), io.BytesIO(), io.BytesIO()
    numpy.save(array, numpy.arange(5))
    numpy.savez(arrays, a=numpy.arange(5))
    numpy.save(pickled, numpy.array([{}], dtype=object), allow_pickle=True)
    return {
        b"json": (b'{"a": 1}', b'{"a": '),
        b"cls": (b"17\n", b"cat"),
        b"txt": ("grün".encode(), b"\xff\xfe"),
        b"npy": (array.getvalue(), pickled.getvalue()),
        b"npz": (arrays.getvalue(), arrays.getvalue()[:-30]),
        b"msgpack": (msgpack.packb({"a": [1, 2]}), b"\xc1"),
        b"mp": (msgpack.packb([1]), msgpack.packb([1]) + b"\x00"),
        b"json.gz": (gzip.compress(b"[1]"), gzip.compress(b"[1")),
        b"txt.gz": (gzip.compress(b"x") + gzip.compress(b"y"), gzip.compress(b"x" * 9999)[:-12]),
        b"bin.gz": (gzip.compress(b"\xff"), b"not gzip"),
        b"jpg": (picture.getvalue(), picture.getvalue()[: len(picture.getvalue()) // 2]),
        b"seg.png": (png.getvalue(), flipped(png.getvalue(), len(png.getvalue()) - 20, 3)),
    }


@pytest.mark.parametrize("field", payloads())
def test_decode(field: bytes, wds: Any, tmp_path: Path) -> None:
    good, bad = payloads()[field]
    address = write(tmp_path, tar_bytes((b"a." + field, good), (b"b." + field, bad)))
    assert wds(address).findings == []
    ran = wds(address, "--decode")
    assert [(f["code"], f["member"]) for f in ran.findings] == [("undecodable", f"b.{field.decode()}")], (
        ran.text
    )
    assert ran.code == 1
    assert " at 0x" not in ran.findings[0]["message"]


@pytest.mark.parametrize("mode", ["1", "L", "P", "I;16", "I", "F"])
def test_decode_accepts_pictures_whose_values_are_not_brightness(wds: Any, tmp_path: Path, mode: str) -> None:
    """The loader's decode("rgb8") refuses some of them (issue 35)."""
    picture = io.BytesIO()
    Image.new(mode, (8, 8), 1).save(picture, "TIFF")
    assert wds(write(tmp_path, tar_bytes((b"a.depth.tif", picture.getvalue()))), "--decode").code == 0


def test_decode_reads_streams_and_large_payloads(wds: Any, tmp_path: Path) -> None:
    members = [(b"%d.txt" % n, b"x" * 100_000 + (b"\xff" if n == 7 else b"")) for n in range(30)]
    address = write(tmp_path, tar_bytes(*members))
    for source in (address, f"pipe:cat {address}"):
        assert [f["member"] for f in wds(source, "--decode").findings] == ["7.txt"]


def test_decode_without_pillow_names_the_extra(wds: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("wdscli.verify.decoding.find_spec", lambda name: None)
    assert wds(write(tmp_path, tar_bytes((b"a.json", b"1"))), "--decode").code == 0
    ran = wds(write(tmp_path, good_tar()), "--decode")
    assert ran.code == 2
    assert "pip install 'wdscli[images]'" in ran.err


def test_postscript_is_not_run(wds: Any, tmp_path: Path) -> None:
    picture = io.BytesIO()
    Image.new("RGB", (8, 8)).save(picture, "EPS")
    ran = wds(write(tmp_path, tar_bytes((b"a.jpg", picture.getvalue()))), "--decode")
    assert [f["message"] for f in ran.findings] == [
        "cannot be decoded: it is not an image of a supported format"
    ]


def test_a_bomb_is_refused(wds: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 100)
    picture = io.BytesIO()
    Image.new("RGB", (64, 64)).save(picture, "PNG")
    bomb = gzip.compress(bytes(2 << 20))
    shard = write(tmp_path, tar_bytes((b"a.txt.gz", bomb), (b"b.png", picture.getvalue())))
    monkeypatch.setenv("WDSCLI_MAX_DECODED", "1MiB")
    ran = wds(shard, "--decode")
    assert [f["member"] for f in ran.findings if f["code"] == "undecodable"] == ["a.txt.gz", "b.png"]


def test_the_man_page_names_every_code_with_its_severity() -> None:
    from wdscli.verify.findings import DEMANDS, KINDS

    page = (Path(__file__).parents[2] / "man/prose/wdscli-verify.1").read_text()
    told = {**KINDS, **DEMANDS}
    del told["damaged"]
    assert [line for line in page.splitlines() if line.startswith(".It Sy")] == [
        f".It Sy {code} Pq {kind.severity}" for code, kind in told.items()
    ]


def test_names_that_are_not_utf8(wds: Any, tmp_path: Path) -> None:
    address = write(tmp_path, tar_bytes((b"\xff.jpg", b"")))
    assert wds(address).findings[0]["member"] == "\udcff.jpg"
    assert "\ufffd.jpg" in wds(address, json=False).text


def test_compressed_shards(wds: Any, tmp_path: Path) -> None:
    packed = gzip.compress(good_tar(), compresslevel=0)
    assert wds(write(tmp_path, packed, "x.tar.gz")).summary["samples"] == 3
    ran = wds(write(tmp_path, packed[:3000], "x.tar.gz"))
    assert (ran.codes, ran.code) == ({"truncated"}, 1)
    ran = wds(write(tmp_path, flipped(packed, len(packed) - 6), "x.tar.gz"))
    assert (ran.codes, ran.code) == ({"corrupt"}, 1)


@pytest.mark.parametrize("suffix", ["gz", ZST])
def test_a_broken_block_of_a_compressed_shard_hides_no_other(
    suffix: str, wds: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks._GzipPacker, "piece_bytes", 8192)
    monkeypatch.setattr(blocks._ZstdPacker, "piece_bytes", 8192)
    shard = tmp_path / f"x.tar.{suffix}"
    with ShardWriter(str(shard), with_index=False) as writer:
        for number in range(60):
            writer.write(f"n{number:02d}", {"bin": os.urandom(600)})
    with open_source(str(shard)) as source:
        assert isinstance(source, blocks.BlockSource)
        broken = [source._blocks[number].begin for number in (3, 7)]
    data = shard.read_bytes()
    for at in broken:
        data = flipped(data, at + 1000)
    shard.write_bytes(data)
    ran = wds(str(shard))
    assert ran.code == 1, ran.text
    assert [one["offset"] for one in ran.findings if one["code"] == "corrupt"] == broken
    # A block holds five samples and parts of two.
    assert 60 - 2 * 7 <= ran.summary["samples"] < 60


def test_a_clean_set_is_checked_without_numpy(tmp_path: Path) -> None:
    make_set(tmp_path)
    program = (
        "import sys; from wdscli.cli.main import main; code = main(sys.argv[1:]); "
        "sys.exit(code or bool({'numpy', 'rich', 'fsspec', 'PIL'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program, "verify", str(tmp_path), "--checksums"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_in_one_pipe_the_summary_follows_the_findings(tmp_path: Path) -> None:
    shard = write(tmp_path, tar_bytes((b"a.txt", b""), (b"b.txt", b"")))
    words = [sys.executable, "-m", "wdscli", "verify", shard]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    lines = done.stdout.decode().splitlines()
    assert lines[0] == "empty-payload: 2 warnings"
    assert lines[-1].startswith("1 shard, 2 samples, ")
    assert sum("warnings" in line for line in lines) == 2


def test_a_key_in_place_of_a_list_of_keys(tmp_path: Path, wds: Any) -> None:
    ran = wds(write(tmp_path, good_tar()), "--absent", "img7", json=False)
    assert ran.code == 4
    assert ran.err.splitlines() == [
        "error: cannot read img7: no such file",
        "hint: --absent takes a file with one key per line; for one key: echo KEY > keys.txt",
    ]
