"""Containers of sound and film: what is whole passes, what was cut off does not, with and without the packages that
decode them (issue 35, point 5)."""

from __future__ import annotations

import io
import struct
import wave
from contextlib import suppress
from typing import Any

import numpy
import pytest

from wdscli.codecs.headers import check_container
from wdscli.codecs.media import MEDIA, check_media
from wdscli.errors import DataError

ASF_HEADER = bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c")
ASF_DATA = bytes.fromhex("3626b2758e66cf11a6d900aa0062ce6c")


def a_wave(frames: int = 4000) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(numpy.arange(frames, dtype="<i2").tobytes())
    return out.getvalue()


def rf64() -> bytes:
    data = a_wave()
    sizes = struct.pack("<QQQ", len(data) + 28, len(data) - 44, 4000) + bytes(4)
    ds64 = b"ds64" + struct.pack("<I", len(sizes)) + sizes
    return b"RF64\xff\xff\xff\xffWAVE" + ds64 + data[12:40] + b"\xff" * 4 + data[44:]


def flac() -> bytes:
    facts = struct.pack(">HH", 4096, 4096) + bytes([0, 1, 0]) + bytes(3)
    facts += (8000 << 44 | 1 << 41 | 15 << 36 | 8192).to_bytes(8, "big") + bytes(16)
    return b"fLaC\0\0\0\x22" + facts + b"\x81\0\0\2ab" + b"\xff\xf8" + bytes(512)


def ogg() -> bytes:
    def page(flags: int, packet: bytes) -> bytes:
        return b"OggS\0" + bytes([flags]) + bytes(20) + bytes([1, len(packet)]) + packet

    return page(2, b"\x01vorbis" + bytes(30)) + page(0, bytes(200)) + page(4, bytes(200))


def mp3(stated: int = 4000) -> bytes:
    frame = b"\xff\xfb\x90\xc4" + bytes(17) + b"Xing" + struct.pack(">III", 3, 9, stated) + bytes(2000)
    return b"ID3\4\0\0\0\0\0\4tags" + frame + bytes(4000 - len(frame))


def mp4(large: bool = False) -> bytes:
    body = bytes(500)
    data = struct.pack(">I4sQ", 1, b"mdat", 516) + body if large else struct.pack(">I4s", 508, b"mdat") + body
    return struct.pack(">I4s4s", 12, b"ftyp", b"isom") + data + struct.pack(">I4s", 108, b"moov") + bytes(100)


def matroska(size: bytes = b"\x40\x64") -> bytes:
    return b"\x1aE\xdf\xa3\x84head\xec\x82..\x18S\x80g" + size + bytes(100)


def avi() -> bytes:
    return b"RIFF" + struct.pack("<I", 300) + b"AVI LIST" + struct.pack("<I", 4) + b"hdrl" + bytes(284)


def asf() -> bytes:
    return ASF_HEADER + struct.pack("<Q", 60) + bytes(36) + ASF_DATA + struct.pack("<Q", 200) + bytes(176)


WHOLE = {
    "wav": a_wave(), "rf64": rf64(), "flac": flac(), "ogg": ogg(), "mp3": mp3(), "mp4": mp4(), "mov": mp4(large=True),
    "mkv": matroska(), "avi": avi(), "wma": asf(),
}  # fmt: skip


@pytest.mark.parametrize("kind", WHOLE)
def test_cut_off_containers(kind: str) -> None:
    whole = WHOLE[kind]
    assert check_container(whole)
    with pytest.raises(ValueError, match=r"it is cut off: .* according to its header|truncated"):
        check_container(whole[: len(whole) // 2])
    # The length that an MP3 states may be wrong by a frame, and an Ogg stream may end after any page.
    for size in () if kind in ("mp3", "ogg") else range(12, len(whole) * 9 // 10, max(1, len(whole) // 300)):
        with suppress(ValueError):
            # A cut may leave bytes that begin like nothing known, but it never leaves a whole container.
            assert not check_container(whole[:size])


def test_streams_that_state_no_length() -> None:
    whole = WHOLE["wav"]
    for size in (0, 0xFFFFFFFF, 0x7FFFF000):
        assert check_container(whole[:40] + struct.pack("<I", size) + whole[44:100])
    assert check_container(matroska(b"\x01" + b"\xff" * 7)[:50])
    assert check_container(ogg() + b"TAG")
    assert check_container(b"ID3\4\0\0\0\0\0\0" + flac())
    assert check_container(mp3(stated=4001))


@pytest.mark.parametrize("data", [b"", b"words", b"garbage" * 99, b"/data/x.wav", b"GARBAGE" * 99, b"{}"])
def test_other_data_is_unknown(data: bytes) -> None:
    assert not check_container(data)


def test_without_packages_headers_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wdscli.codecs.media.find_spec", lambda name: None)
    assert check_media(WHOLE["wav"], "wav") == ""  # any bytes are PCM, so there is nothing to decode
    for name, package in {
        "flac": "soundfile",
        "mp3": "soundfile",
        "ogg": "soundfile",
        "mp4": "av",
        "avi": "av",
    }.items():
        assert check_media(WHOLE[name], name) == package
        with pytest.raises(DataError, match="it is cut off"):
            check_media(WHOLE[name][: len(WHOLE[name]) // 2], name)
        with pytest.raises(DataError, match="does not begin like a sound or film"):
            check_media(b"garbage", name)


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "MP3", "RF64"])
def test_sounds_that_soundfile_writes(kind: str) -> None:
    soundfile = pytest.importorskip("soundfile")
    stream = io.BytesIO()
    soundfile.write(stream, numpy.sin(numpy.arange(32000) / 20), 16000, format=kind)
    name, data = kind.lower().replace("rf64", "wav"), stream.getvalue()
    decode: Any = MEDIA["audio"].find(name)
    assert check_media(data, name) == ""
    assert decode(data)[0].shape == (1, 32000)
    for part in (data[: len(data) // 2], data[:1000]):
        for read in (lambda payload: check_media(payload, name), decode):
            with pytest.raises((DataError, soundfile.LibsndfileError)):
                read(part)


def test_a_flac_that_ends_early_is_no_whole_sound() -> None:
    soundfile = pytest.importorskip("soundfile")
    stream = io.BytesIO()
    soundfile.write(stream, numpy.zeros(32000), 16000, format="FLAC")
    data = bytearray(stream.getvalue())
    data[18:26] = (int.from_bytes(data[18:26], "big") + 9000).to_bytes(8, "big")
    for read in (lambda payload: check_media(payload, "flac"), MEDIA["audio"].find("flac")):
        with pytest.raises((DataError, soundfile.LibsndfileError)):
            read(bytes(data))
