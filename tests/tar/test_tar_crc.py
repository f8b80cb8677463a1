"""The checksums that stores keep, compared with plain Python and zlib."""

from __future__ import annotations

import random
import zlib

import pytest

from wdscli.tar import crc
from wdscli.tar.crc import StoreDigest, agrees, crc32_of

pytestmark = pytest.mark.skipif(crc.CRC is None, reason="this processor computes no CRCs quickly")
LENGTHS = [1, 15, 16, 127, 128, 129, 255, 256, 257, 1000, 16383, 16384, 16385, 40_000]


def plain(data: bytes, polynomial: int, bits: int) -> str:
    """A CRC, bit by bit."""
    ones = (1 << bits) - 1
    value = ones
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (polynomial if value & 1 else 0)
    return f"{value ^ ones:0{bits // 4}x}"


def checksums(data: bytes, *cuts: int) -> dict[str, str]:
    digest, begin = StoreDigest(), 0
    for end in (*cuts, len(data)):
        digest.update(memoryview(data)[begin:end])
        begin = end
    return digest.checksums()


def test_known_values() -> None:
    """The check values of the CRC catalogue."""
    assert checksums(b"123456789") == {
        "crc64nvme": "ae8b14860a799888",
        "crc32c": "e3069283",
        "crc32c-parts": checksums(bytes.fromhex("e3069283"))["crc32c"] + "-1",
        "crc32": "cbf43926",
        "crc32-parts": f"{zlib.crc32(bytes.fromhex('cbf43926')):08x}-1",
    }
    assert StoreDigest().checksums() == {}


@pytest.mark.parametrize("length", LENGTHS)
def test_every_length_and_cut(length: int) -> None:
    draw = random.Random(length)
    data = draw.randbytes(length)
    whole = checksums(data)
    assert whole["crc64nvme"] == plain(data, 0x9A6C9329AC4BC9B5, 64)
    assert whole["crc32c"] == plain(data, 0x82F63B78, 32)
    assert whole["crc32"] == f"{zlib.crc32(data):08x}"
    for _ in range(5):
        assert checksums(data, *sorted(draw.randrange(length + 1) for _ in range(3))) == whole


@pytest.mark.parametrize("length", [999, 1000, 1001, 2000, 3500])
def test_parts(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CRC of all bytes is joined from the CRCs of the parts, and S3's composite CRC is the CRC of these."""
    data = random.Random(length).randbytes(length)
    whole = checksums(data)
    monkeypatch.setattr(crc, "PART_BYTES", 1000)
    parts = [data[begin : begin + 1000] for begin in range(0, length, 1000)]
    joined = checksums(data, 7, 300, length - 1)
    crcs = b"".join(zlib.crc32(part).to_bytes(4, "big") for part in parts)
    assert joined["crc32-parts"] == f"{zlib.crc32(crcs):08x}-{len(parts)}"
    assert [joined[name] for name in ("crc64nvme", "crc32c", "crc32")] == [
        whole[name] for name in ("crc64nvme", "crc32c", "crc32")
    ]


def test_agreement() -> None:
    own = checksums(b"shard")
    assert agrees(own, {"crc32": own["crc32"]}) is True
    assert agrees(own, {"crc32": own["crc32-parts"]}) is True
    assert agrees(own, {"crc32": "00000000-1"}) is None  # parts of another size
    assert agrees(own, {"crc32": "00000000"}) is False
    assert agrees(own, {"crc32": own["crc32"], "crc64nvme": "0" * 16}) is False
    assert agrees(own, {"sha256": "0" * 64}) is None
    assert agrees({}, {"crc32": own["crc32"]}) is None


@pytest.mark.parametrize("is_compiled", [True, False])
def test_crc32_of_pieces(is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_compiled:
        monkeypatch.setattr(crc, "CRC", None)
    data = random.Random(5).randbytes(40_000)
    assert crc32_of([]) == 0
    assert crc32_of([data[:7], memoryview(data)[7:20_000], b"", data[20_000:]]) == zlib.crc32(data)
