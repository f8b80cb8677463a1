"""``verify``, ``repair`` and ``report`` with ``--decode`` say what they did not look at (issue 35, point 5)."""

from __future__ import annotations

import io
import wave
from pathlib import Path

import pytest
from shard_cases import wds_here as wds
from verify_cases import tar_bytes, write


def sound(frames: int) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(bytes(2 * frames))
    return out.getvalue()


@pytest.fixture(params=[True, False], ids=["packages", "no packages"])
def has_packages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param:
        pytest.importorskip("soundfile")
        pytest.importorskip("av")
    else:
        monkeypatch.setattr("wdscli.codecs.media.find_spec", lambda name: None)
    return bool(request.param)


@pytest.mark.usefixtures("has_packages")
@pytest.mark.parametrize(
    "field", ["wav", "flac", "mp3", "ogg", "opus", "m4a", "mp4", "webm", "avi", "mkv", "x.wav.gz"]
)
def test_garbage_is_neither_sound_nor_film(tmp_path: Path, field: str) -> None:
    shard = write(tmp_path, tar_bytes((b"a." + field.encode(), b"garbage")))
    ran = wds("verify", "--decode", shard)
    assert ran.code == 1
    assert f'"a.{field}": cannot be decoded: ' in ran.out.decode()
    ran = wds("repair", "--decode", shard, "-o", tmp_path / "o.tar")
    assert "saved 0 samples; left out: 1" in ran.err


@pytest.mark.usefixtures("has_packages")
def test_a_recording_that_was_cut_off(tmp_path: Path) -> None:
    whole = sound(16000)
    shard = write(tmp_path, tar_bytes((b"a.wav", whole[:1000]), (b"b.wav", whole)))
    ran = wds("verify", "--decode", shard)
    assert ran.code == 1
    assert '"a.wav": cannot be decoded: it is cut off: the sound has 32000 bytes' in ran.out.decode()
    assert "b.wav" not in ran.out.decode()
    assert "not decoded" not in ran.err


def test_what_was_not_decoded_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wdscli.codecs.media.find_spec", lambda name: None)
    film = b"\0\0\0\x0cftypisom\0\0\0\x08moov"
    shard = write(
        tmp_path, tar_bytes(*[(b"%d.%s" % (n, f), film) for n in range(3) for f in (b"mov", b"mp4")])
    )
    why = "mov, mp4 (only headers were checked: av is not installed)"
    ran = wds("verify", "--decode", shard)
    assert ran.code == 0
    assert (
        ran.out.decode().count('fields "mp4" are not decoded: only headers were checked: av is not installed')
        == 1
    )
    assert "hint: pip install av" in ran.out.decode()
    assert f"2 warnings; checked headers, structure and values, not decoded: {why}" in ran.err
    assert wds("verify", "--decode", "--strict", shard).code == 1
    totals = wds("verify", "--decode", "--json", shard).objects[-1]
    assert list(totals["undecoded"]) == ["mov", "mp4"]
    ran = wds("repair", "--decode", shard, "-o", tmp_path / "o.tar")
    assert f"saved 3 samples; left out: nothing; not decoded: {why}" in ran.err
    assert wds("report", "--decode", shard, "-o", tmp_path / "o.html").code == 0
    assert f"not decoded: {why}" in (tmp_path / "o.html").read_text()
    assert "not decoded" not in wds("verify", shard).err


def test_pickles_are_not_decoded_and_it_is_said(tmp_path: Path) -> None:
    shard = write(tmp_path, tar_bytes((b"a.pkl", b"x"), (b"b.pkl", b"y")))
    ran = wds("verify", "--decode", shard)
    assert ran.code == 0
    assert "not decoded: pkl (loading a pickle runs its code)" in ran.err
