"""What is inflated has one limit, and verify decodes as the loader does."""

from __future__ import annotations

import gzip
import io
import json
import struct
import subprocess
import sys
import wave
import zipfile
import zlib
from pathlib import Path

import numpy
import pytest
from PIL import Image
from shard_cases import wds_here as wds
from verify_cases import tar_bytes
from verify_options import checks_of

from wdscli.codecs.handlers import MAX_DECODED_BYTES, inflate
from wdscli.errors import DataError, UsageError
from wdscli.loader import IndexedDataset, WebDataset
from wdscli.loader.stages.per_sample import Decoder, gzfilter
from wdscli.plan.request import Request
from wdscli.tar import END_OF_ARCHIVE, build_header
from wdscli.verify.repair import repair
from wdscli.verify.set import verify

MIB = 1 << 20
LIMIT = MIB


def zipped(payload: bytes, name: str = "a.npy") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, payload)
    return out.getvalue()


def npy(count: int) -> bytes:
    out = io.BytesIO()
    numpy.save(out, numpy.zeros(count, numpy.uint8))
    return out.getvalue()


def torch_file() -> bytes:
    """What torch.save wrote, compressed afterwards, which torch reads too."""
    torch = pytest.importorskip("torch")
    plain, out = io.BytesIO(), io.BytesIO()
    torch.save({"a": torch.zeros(2 * MIB, dtype=torch.uint8)}, plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as target:
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry))
    return out.getvalue()


def picture(kind: str, mode: str = "RGB") -> bytes:
    out = io.BytesIO()
    Image.new(mode, (1024, 1024)).save(out, kind)
    return out.getvalue()


def png_that_says(width: int, height: int) -> bytes:
    """A small file of a giant picture."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


BOMBS = {
    "txt.gz": lambda: gzip.compress(bytes(2 * MIB)),
    "bin.gz": lambda: gzip.compress(bytes(2 * MIB)),
    "two.txt.gz": lambda: gzip.compress(bytes(MIB - 10)) + gzip.compress(bytes(MIB - 10)),
    "npz": lambda: zipped(npy(2 * MIB)),
    "npz.gz": lambda: gzip.compress(zipped(npy(2 * MIB))),
    "pth": torch_file,
    "png": lambda: picture("PNG"),
    "jpg": lambda: picture("JPEG"),
    "webp": lambda: picture("WEBP"),
    "tif": lambda: picture("TIFF", "F")[:4096],
    "giant.png": lambda: png_that_says(1 << 20, 1 << 20),
}


def shard_of(folder: Path, field: str, payload: bytes) -> str:
    path = folder / "x.tar"
    path.write_bytes(tar_bytes((b"n1." + field.encode(), payload)))
    return str(path)


@pytest.mark.parametrize("field", BOMBS)
def test_bombs(field: str, tmp_path: Path) -> None:
    """Loader and verify say the same of each: what it would become, and how to allow it."""
    shard = shard_of(tmp_path, field, BOMBS[field]())
    data = WebDataset(shard, shuffle=None)
    limit = "MAX_IMAGE_PIXELS" if field == "giant.png" else "max_decoded"
    with pytest.raises(DataError, match=limit) as caught:
        list(data.decode("rgb8", max_decoded=LIMIT))
    error = caught.value
    assert (error.code, error.shard, error.member) == ("undecodable", shard, f"n1.{field}")
    if limit == "max_decoded":
        assert "WDSCLI_MAX_DECODED" in str(error.hint)
        assert str(LIMIT) in error.message
    report = verify([shard], checks_of(decode=True, max_decoded=LIMIT), jobs=1)
    (finding,) = [one for one in report.findings if one.code == "undecodable"]
    assert finding.member == f"n1.{field}"
    assert ("WDSCLI_MAX_DECODED" if limit == "max_decoded" else limit) in finding.message
    repaired = repair(
        Request([shard], str(tmp_path / "out-%d.tar"), jobs=1), checks_of(decode=True, max_decoded=LIMIT)
    )
    assert repaired.counts["undecodable"] == 1
    if field != "giant.png" and field != "tif":
        assert len(list(data.decode("rgb8"))) == 1
        assert not verify([shard], checks_of(decode=True), jobs=1).errors


def test_a_giant_picture_is_refused_without_being_asked(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, "png", png_that_says(13_000, 13_000))
    for data in (WebDataset(shard, shuffle=None), IndexedDataset(shard)):
        with pytest.raises(DataError, match=f"{13_000 * 13_000} bytes"):
            list(data.decode("l8", max_decoded=100 * MIB))  # type: ignore[union-attr]


def test_sound(tmp_path: Path) -> None:
    pytest.importorskip("soundfile")
    out = io.BytesIO()
    with wave.open(out, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(1)
        sound.setframerate(8000)
        sound.writeframes(bytes(MIB))
    with pytest.raises(DataError, match="max_decoded"):
        Decoder(["audio"], max_decoded=LIMIT)({"__key__": "a", "wav": out.getvalue()})


def test_what_is_large_as_it_stands_is_no_bomb(tmp_path: Path) -> None:
    """A plain npz or bitmap is there already; only what is taken off counts."""
    plain = io.BytesIO()
    numpy.savez(plain, a=numpy.zeros(2 * MIB, numpy.uint8))
    sample = {"npz": plain.getvalue(), "npy": npy(2 * MIB), "txt": b"x" * 2 * MIB, "bmp": picture("BMP")}
    found = Decoder(["rgb8"], max_decoded=LIMIT)({"__key__": "a", **sample})
    assert found["npz"]["a"].nbytes == 2 * MIB
    assert found["bmp"].nbytes == 3 * MIB
    # verify does not read it, and says so: it would have to hold what is not its own.
    report = verify(
        [shard_of(tmp_path, "npy", npy(2 * MIB))], checks_of(decode=True, max_decoded=LIMIT), jobs=1
    )
    assert [(one.code, one.severity) for one in report.findings] == [("unchecked", "warning")]


def test_own_handlers_have_the_default(tmp_path: Path) -> None:
    assert gzfilter(".txt.gz", gzip.compress(b"a")).data == b"a"  # type: ignore[union-attr]
    assert MAX_DECODED_BYTES == 256 * MIB
    for wrong in (0, -1, 1.5, "1MiB"):
        with pytest.raises(UsageError, match="max_decoded"):
            WebDataset(shard_of(tmp_path, "txt", b"1")).decode(max_decoded=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "data",
    [b"", b"\x1f", gzip.compress(b"a")[:-1], gzip.compress(b"a") + b"?", b"nothing at all"],
    ids=["nothing", "head", "cut", "more", "other"],
)
def test_what_is_no_gzip(data: bytes) -> None:
    with pytest.raises((DataError, zlib.error)):
        inflate(data)


def test_gzip_as_others_write_it() -> None:
    data = bytes(range(256)) * 999
    assert inflate(gzip.compress(data) + bytes(100), len(data)) == data
    assert inflate(gzip.compress(b"")) == b""
    assert inflate(memoryview(gzip.compress(data[:10]) + gzip.compress(data[10:]))) == data  # type: ignore[arg-type]
    with pytest.raises(DataError):
        inflate(gzip.compress(data), len(data) - 1)


def test_verify_decodes_what_the_loader_does(tmp_path: Path) -> None:
    """Fields that verify passed over, and errors of the loader alone, are gone."""
    bad = {
        "id": b"x", "transcript": b"\xff", "ten": b"~TenBin~", "msgpack": b"\x81\x01\x02", "jfif": b"?", "pth": b"?",
    }  # fmt: skip
    for field, payload in bad.items():
        shard = shard_of(tmp_path, field, payload)
        with pytest.raises(DataError):
            list(WebDataset(shard, shuffle=None).decode("rgb8"))
        report = verify([shard], checks_of(decode=True), jobs=1)
        assert [one.code for one in report.findings] == ["undecodable"], field


def test_a_field_whose_package_is_missing_is_unchecked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wdscli.verify import decoding

    monkeypatch.setattr(
        decoding, "find_spec", lambda name: None if name in ("torch", "cbor2", "cbor") else object()
    )
    for field in ("pth", "cbor", "pth.gz"):
        report = verify([shard_of(tmp_path, field, b"?")], checks_of(decode=True), jobs=1)
        assert [(one.code, one.severity) for one in report.findings] == [("unchecked", "warning")]


@pytest.fixture(scope="module", params=["txt", "json", "bin"])
def packed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shard with one large payload of a field, by that field's name."""
    shard: Path = tmp_path_factory.mktemp("packed") / f"{request.param}.tar.gz"
    with gzip.open(shard, "wb", compresslevel=1) as file:
        for number, size in enumerate((10, 120 * MIB, 10)):
            file.write(build_header(b"n%d.%s" % (number, request.param.encode()), size))
            for _ in range(size // MIB):
                file.write(b"1" * MIB)
            file.write(b"1" * (size % MIB) + bytes(-size % 512))
        file.write(END_OF_ARCHIVE)
    return shard


class TestMemory:
    """The peak of a process of its own, by the kernel's count."""

    CODE = """
import sys
{body}
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""

    def peak(self, body: str) -> int:
        """MiB."""
        ran = subprocess.run(
            [sys.executable, "-c", self.CODE.format(body=body)],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        return int(ran.stdout.split()[-1]) >> 10

    @pytest.fixture
    def bomb(self, tmp_path: Path) -> str:
        return shard_of(tmp_path, "txt.gz", gzip.compress(bytes(200 * MIB), 1))

    @pytest.mark.exhaustive
    def test_loader_and_verify(self, bomb: str) -> None:
        loader = f"""
from wdscli.loader import WebDataset
try: list(WebDataset({bomb!r}, shuffle=None).decode(max_decoded=16 << 20))
except Exception as error: assert "max_decoded" in str(error), error
else: raise SystemExit("no error")
"""
        checked = f"""
from wdscli.verify.set import verify
from wdscli.verify.shard import Checks
report = verify([{bomb!r}], Checks(max_decoded=16 << 20), jobs=1)
assert report.counts == {{"undecodable": 1}}, report.counts
"""
        assert self.peak(loader) < 150
        assert self.peak(checked) < 150

    @pytest.mark.exhaustive(sample=False)
    @pytest.mark.parametrize("options", [[], ["--base64"]])
    def test_json_lines_of_a_compressed_shard(self, packed: Path, options: list[str], tmp_path: Path) -> None:
        """It held a text or JSON payload many times over, whatever its size: 12 GB."""
        fails = packed.name != "bin.tar.gz" or bool(options)
        body = """
import os
os.environ["WDSCLI_MAX_DECODED"] = "8MiB"
from wdscli.cli.main import main
os.dup2(os.open("/dev/null", os.O_WRONLY), 2)
keep = os.dup(1)
os.dup2(os.open({out!r}, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
code = main(["cat", {shard!r}, "--to", "jsonl", *{more!r}])
sys.stdout.flush()
os.dup2(keep, 1)
assert code == {code}, code
"""
        out = str(tmp_path / "out.jsonl")
        more = {"out": out, "shard": str(packed)}
        assert self.peak(body.format(**more, more=options, code=3 if fails else 0)) < 100
        if fails:
            assert self.peak(body.format(**more, more=[*options, "--on-error", "skip"], code=0)) < 100
        kept = [json.loads(line)["key"] for line in Path(out).read_text().splitlines()]
        assert kept == (["n0", "n2"] if fails else ["n0", "n1", "n2"])


def test_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = shard_of(tmp_path, "txt.gz", BOMBS["txt.gz"]())
    assert wds("verify", shard, "--decode").code == 0
    monkeypatch.setenv("WDSCLI_MAX_DECODED", "1MiB")
    ran = wds("verify", shard, "--decode")
    assert ran.code == 1
    assert b"WDSCLI_MAX_DECODED" in ran.out
    shard = shard_of(tmp_path, "txt", b"x" * 2 * MIB)
    ran = wds("cat", shard, "--to", "jsonl")
    assert ran.code == 3
    assert "WDSCLI_MAX_DECODED" in ran.err
    assert 'member "n1.txt"' in ran.err
