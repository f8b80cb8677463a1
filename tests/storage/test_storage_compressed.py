"""Compressed shards: told by content, decoded in bounded memory, cut and broken ones are errors."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import lz4.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from left_open import leaves_nothing
from tiers import examples

from wdscli.errors import DataError, InputError
from wdscli.storage import open_source
from wdscli.storage.compressed import FrameWalker, identify

zstandard = pytest.importorskip("zstandard")
RND = random.Random(11)
DATA = b"".join(RND.randbytes(RND.randrange(3000)) + bytes(RND.randrange(30_000)) for _ in range(40))
PACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstandard.ZstdCompressor(write_checksum=True).compress,
    "lz4": lambda data: lz4.frame.compress(data, content_checksum=True),
}
formats = pytest.mark.parametrize("kind", PACK)


@pytest.fixture
def read(tmp_path: Path) -> Callable[[bytes], bytes]:
    """What a file of these bytes is read as."""

    def reader(blob: bytes) -> bytes:
        (tmp_path / "shard").write_bytes(blob)
        with open_source(f"{tmp_path}/shard") as source:
            data = source.read_at(0, 1 << 30)
            assert source.size == len(data)
            return data

    return reader


@formats
class TestEveryFormat:
    def test_told_by_content_whatever_the_name(self, kind: str, tmp_path: Path) -> None:
        for name in ("a.tar", "a.gz", "a"):
            (tmp_path / name).write_bytes(PACK[kind](DATA))
            with open_source(f"{tmp_path}/{name}") as source:
                assert source.name == f"{tmp_path}/{name}"
                assert (source.size, source.seekable, source.fd) == (None, False, None)
                assert source.read_at(0, len(DATA) + 1) == DATA

    def test_members_in_a_row(self, kind: str, read: Callable[[bytes], bytes]) -> None:
        pack = PACK[kind]
        assert read(pack(DATA[:5]) + pack(b"") + pack(DATA[5:])) == DATA

    def test_nothing_in_it(self, kind: str, read: Callable[[bytes], bytes]) -> None:
        assert read(PACK[kind](b"")) == b""

    def test_through_a_pipe(self, kind: str, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(PACK[kind](DATA))
        with open_source(f"pipe:cat {shlex.quote(str(tmp_path))}/a") as source:
            assert source.read_at(0, len(DATA)) == DATA

    def test_cut_anywhere(self, kind: str, read: Callable[[bytes], bytes]) -> None:
        blob = PACK[kind](DATA)
        for cut in [10, 20, len(blob) // 2, len(blob) - 1, *(RND.randrange(10, len(blob)) for _ in range(8))]:
            with pytest.raises(DataError) as caught:
                read(blob[:cut])
            assert caught.value.code == "truncated"
            assert caught.value.offset == cut
            assert str(caught.value.shard).endswith("/shard")

    def test_cut_in_the_second_member(self, kind: str, read: Callable[[bytes], bytes]) -> None:
        first, second = PACK[kind](DATA[:1000]), PACK[kind](DATA)
        with pytest.raises(DataError) as caught:
            read(first + second[: len(second) // 2])
        assert caught.value.code == "truncated"

    def test_what_came_before_the_cut_is_read(self, kind: str, tmp_path: Path) -> None:
        blob = PACK[kind](DATA)
        (tmp_path / "a").write_bytes(blob[: len(blob) - 3])
        with open_source(f"{tmp_path}/a") as source:
            assert source.read_at(0, 100_000) == DATA[:100_000]

    def test_garbage_after_the_end(self, kind: str, read: Callable[[bytes], bytes]) -> None:
        with pytest.raises(DataError) as caught:
            read(PACK[kind](DATA) + b"what is this doing here?")
        assert caught.value.code in ("data-after-end", "corrupt")

    @pytest.mark.exhaustive
    def test_flipped_bits_are_data_errors_or_nothing_else(
        self, kind: str, read: Callable[[bytes], bytes]
    ) -> None:
        blob, codes = PACK[kind](DATA), set()
        for _ in range(30):
            broken = bytearray(blob)
            broken[RND.randrange(14, len(blob))] ^= 1 << RND.randrange(8)
            try:
                data = read(bytes(broken))
            except DataError as error:
                codes.add(error.code)
            else:
                assert data == DATA
        assert codes <= {"corrupt", "truncated", "data-after-end"}

    @pytest.mark.exhaustive
    def test_a_bomb_takes_no_memory(self, kind: str, tmp_path: Path) -> None:
        size = 200_000_000 if kind in ("gzip", "zstd", "lz4") else 60_000_000
        pieces = [PACK[kind](bytes(10_000_000))] * (size // 10_000_000)
        (tmp_path / "a").write_bytes(b"".join(pieces))
        script = f"""if True:
            import resource
            from wdscli.storage import open_source
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            with open_source({str(tmp_path / "a")!r}) as source:
                offset = 0
                while data := source.read_some(offset, 1 << 20):
                    offset += len(data)
            print(offset, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        """
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
        total, kilobytes = map(int, done.stdout.split())
        assert total == size
        assert kilobytes < 30_000


@pytest.mark.parametrize("kind", ["gzip", "xz"])
def test_zeros_after_the_end_are_padding(kind: str, read: Callable[[bytes], bytes]) -> None:
    blob = PACK[kind](DATA)
    assert read(blob + bytes(512)) == DATA
    assert read(blob + bytes(512) + blob) == DATA * 2


def test_zstd_skippable_frames(read: Callable[[bytes], bytes]) -> None:
    note = b"\x5a\x2a\x4d\x18" + (7).to_bytes(4, "little") + b"a note."
    blob = PACK["zstd"](DATA)
    assert read(note + blob + note) == DATA
    with pytest.raises(DataError, match="cut short"):
        read(blob + note[:-1])


@pytest.mark.parametrize("options", [{"write_content_size": False}, {"write_checksum": False}, {"level": 19}])
def test_zstd_frames_of_every_shape(options: dict[str, int], read: Callable[[bytes], bytes]) -> None:
    for size in (0, 1, 255, 256, 65_791, 65_792, 200_000):
        blob = zstandard.ZstdCompressor(**options).compress(DATA[:size])
        assert read(blob * 2) == DATA[:size] * 2
        with pytest.raises(DataError):
            read(blob + blob[:-1])


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=4), st.data())
def test_the_walker_knows_whole_frames(payloads: list[bytes], data: st.DataObject) -> None:
    frames = [zstandard.compress(payload) for payload in payloads]
    blob = b"".join(frames)
    ends = {sum(map(len, frames[:n])) for n in range(len(frames) + 1)}
    walker = FrameWalker()
    position = 0
    while position < len(blob):
        step = data.draw(st.integers(1, 40))
        walker.feed(blob[position : position + step])
        position = min(position + step, len(blob))
        assert walker.finished == (position in ends)


def test_a_tar_whose_first_name_looks_compressed(tmp_path: Path) -> None:
    for name in ("BZh9.txt", "(\xb5/\xfd.txt"):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", encoding="latin-1", format=tarfile.USTAR_FORMAT) as tar:
            tar.addfile(tarfile.TarInfo(name))
        assert identify(out.getvalue()[:512]) is None
        (tmp_path / "a.tar").write_bytes(out.getvalue())
        with open_source(f"{tmp_path}/a.tar") as source:
            assert source.seekable


def test_identify_needs_the_whole_magic() -> None:
    assert [identify(PACK[kind](b"")[:16]) for kind in PACK] == list(PACK)
    assert identify(b"") is identify(b"\x1f\x8b") is identify(b"BZ") is identify(bytes(512)) is None


@pytest.mark.parametrize("kind", ["zstd", "lz4"])
def test_a_missing_decoder_names_the_install_command(
    kind: str, read: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "lz4.frame", None)
    with pytest.raises(InputError, match=f"it is compressed with {kind}") as caught:
        read(PACK[kind](DATA))
    assert caught.value.hint == "pip install 'wdscli[zstd]'"


@pytest.mark.parametrize("fast", [True, False])
def test_gzip_with_and_without_isal(
    fast: bool, read: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    if fast:
        pytest.importorskip("isal.isal_zlib")
    else:
        monkeypatch.setitem(sys.modules, "isal", None)
    blob = gzip.compress(DATA)
    assert read(blob * 2) == DATA * 2
    for broken in (blob[:-1], blob[:100] + bytes(20) + blob[120:]):
        with pytest.raises(DataError):
            read(broken)


@pytest.mark.exhaustive(sample=False)
def test_descriptors_are_closed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(gzip.compress(DATA))

    def begin() -> None:
        with open_source(f"{tmp_path}/a") as source:
            source.read_at(0, 10)

    assert leaves_nothing(begin)


def test_compress_is_named_as_what_it_is(tmp_path: Path) -> None:
    """wdscli cannot decode .tar.Z. The error names the format and gzip, which can, not "not a tar archive"."""
    path = tmp_path / "x.tar.Z"
    path.write_bytes(b"\x1f\x9d\x90" + bytes(600))
    with pytest.raises(InputError) as caught:
        open_source(str(path))
    assert "compress(1)" in caught.value.message
    assert ".Z" in caught.value.message
    assert "gzip -dc" in str(caught.value.hint)
    # A tar may begin with any name.
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.USTAR_FORMAT, encoding="latin-1") as tar:
        tar.addfile(tarfile.TarInfo("\x1f\x9d.txt"))
    path.write_bytes(data.getvalue())
    with open_source(str(path)) as source:
        assert source.seekable
