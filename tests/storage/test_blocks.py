"""Compressed shards that wdscli writes: others read them, they are read at any place, and no table is just believed."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import shutil
import struct
import subprocess
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lz4.frame
import pytest

from wdscli.errors import DataError, UsageError
from wdscli.storage import blocks, open_source
from wdscli.storage.blocks import kind_of_name, packer_for
from wdscli.tar import build_header, padded

zstandard = pytest.importorskip("zstandard")
RND = random.Random(12)
ENDS = {"gzip": "gz", "bzip2": "bz2", "xz": "xz", "zstd": "zst", "lz4": "lz4"}
UNPACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.decompress,
    "bzip2": bz2.decompress,
    "xz": lzma.decompress,
    "zstd": lambda data: zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read(),
    "lz4": lz4.frame.decompress,
}
formats = pytest.mark.parametrize("kind", ENDS)
in_blocks = pytest.mark.parametrize("kind", ["gzip", "zstd"])


def _tar(members: int) -> bytes:
    found = []
    for number in range(members):
        payload = RND.randbytes(RND.randrange(9000)) + bytes(RND.randrange(90_000))
        found += [
            build_header(b"%06d.bin" % number, len(payload)),
            payload.ljust(padded(len(payload)), b"\0"),
        ]
    return b"".join([*found, bytes(1024)])


TAR = _tar(120)
"""Some twenty blocks of gzip, two frames of zstd."""


def packed(kind: str, data: bytes, step: int = 1 << 20) -> bytes:
    out: list[bytes] = []
    packer = packer_for(kind, lambda piece: out.append(bytes(piece)))
    for at in range(0, len(data), step):
        packer.write(memoryview(data)[at : at + step])
    packer.finish()
    return b"".join(out)


@pytest.fixture(scope="module")
def of_kind() -> Callable[[str], bytes]:
    known: dict[str, bytes] = {}

    def get(kind: str) -> bytes:
        if kind not in known:
            known[kind] = packed(kind, TAR)
        return known[kind]

    return get


@pytest.fixture
def read(tmp_path: Path) -> Callable[[bytes], bytes]:
    def reader(blob: bytes) -> bytes:
        (tmp_path / "shard").write_bytes(blob)
        with open_source(f"{tmp_path}/shard") as source:
            return source.read_at(0, 1 << 30)

    return reader


@formats
class TestEveryFormat:
    def test_libraries_read_it(self, kind: str, of_kind: Callable[[str], bytes]) -> None:
        assert UNPACK[kind](of_kind(kind)) == TAR

    def test_its_program_reads_it(self, kind: str, of_kind: Callable[[str], bytes], tmp_path: Path) -> None:
        if shutil.which(kind) is None:
            pytest.skip(f"{kind} is not installed")
        place = tmp_path / f"a.{ENDS[kind]}"
        place.write_bytes(of_kind(kind))
        ran = subprocess.run([kind, "-dc", place], capture_output=True, check=True)
        assert (ran.stdout == TAR, ran.stderr) == (True, b"")
        subprocess.run([kind, "-tq", place], check=True)

    def test_tarfile_reads_it_as_a_stream(self, kind: str, of_kind: Callable[[str], bytes]) -> None:
        """As webdataset does: a second gzip member would be lost there."""
        if kind in ("zstd", "lz4"):
            pytest.skip(f"tarfile knows no {kind}")
        for mode in ("r|*", "r:*"):
            with tarfile.open(fileobj=io.BytesIO(of_kind(kind)), mode=mode) as tar:  # type: ignore[call-overload]
                assert sum(1 for _ in tar) == 120

    @pytest.mark.exhaustive
    def test_the_bytes_do_not_depend_on_the_writes(self, kind: str, of_kind: Callable[[str], bytes]) -> None:
        for step in (1000, 1 << 18, 300_001, len(TAR)):
            assert packed(kind, TAR, step) == of_kind(kind)

    def test_no_bytes_at_all(self, kind: str, read: Callable[[bytes], bytes]) -> None:
        assert UNPACK[kind](packed(kind, b"")) == b""
        assert read(packed(kind, b"")) == b""

    @pytest.mark.exhaustive
    def test_cut_anywhere(
        self, kind: str, of_kind: Callable[[str], bytes], read: Callable[[bytes], bytes]
    ) -> None:
        blob = of_kind(kind)
        for cut in [20, len(blob) // 3, len(blob) - 1, *(RND.randrange(20, len(blob)) for _ in range(6))]:
            try:
                data = read(blob[:cut])
            except DataError as error:
                assert error.code in ("truncated", "corrupt")
                assert 0 <= (error.offset or 0) <= cut
            else:
                # All of the archive is there, and of the table nothing.
                assert data == TAR
                assert kind in ("gzip", "zstd")
                assert cut > len(blob) * 0.99

    @pytest.mark.exhaustive
    def test_a_byte_changed_anywhere(
        self, kind: str, of_kind: Callable[[str], bytes], read: Callable[[bytes], bytes]
    ) -> None:
        blob = bytearray(of_kind(kind))
        for _ in range(12):
            at = RND.randrange(len(blob))
            blob[at] ^= 1 << RND.randrange(8)
            try:
                assert read(bytes(blob)) == TAR  # a flag, a table: what is read is right all the same
            except DataError as error:
                assert error.shard is not None
            blob[:] = of_kind(kind)

    def test_bytes_behind_the_end(
        self, kind: str, of_kind: Callable[[str], bytes], read: Callable[[bytes], bytes]
    ) -> None:
        with pytest.raises(DataError) as caught:
            read(of_kind(kind) + b"garbage that is no stream")
        assert caught.value.code in ("data-after-end", "corrupt")

    def test_written_twice(
        self, kind: str, of_kind: Callable[[str], bytes], read: Callable[[bytes], bytes]
    ) -> None:
        """Several shards of ours in one file: the table is that of the last alone."""
        assert read(of_kind(kind) + packed(kind, b"more")) == TAR + b"more"


@in_blocks
class TestBlocks:
    @pytest.fixture(params=[True, False], ids=["fast", "plain"])
    def libraries(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        if not request.param:
            monkeypatch.setattr(blocks, "inflating", lambda: zlib)

    @pytest.mark.usefixtures("libraries")
    def test_any_place(self, kind: str, of_kind: Callable[[str], bytes], tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(of_kind(kind))
        with open_source(f"{tmp_path}/a") as source:
            assert (source.size, source.seekable, source.fd) == (len(TAR), True, None)
            assert (source.stored.size, source.version) == (len(of_kind(kind)), source.stored.version)
            for _ in range(60):
                at, length = RND.randrange(len(TAR)), RND.randrange(700_000)
                assert source.read_at(at, length) == TAR[at : at + length]
            assert source.read_at(len(TAR), 10) == b""
            assert source.read_at(len(TAR) - 5, 10) == TAR[-5:]

    def test_only_the_blocks_that_are_wanted_are_read(
        self, kind: str, of_kind: Callable[[str], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "a").write_bytes(of_kind(kind))
        with open_source(f"{tmp_path}/a") as source:
            read: list[tuple[int, int]] = []
            whole = source.stored.read_at
            monkeypatch.setattr(
                type(source.stored),
                "read_at",
                lambda self, at, size: read.append((at, size)) or whole(at, size),
            )
            source.read_at(len(TAR) // 2, 100)
            source.read_at(len(TAR) // 2 + 100, 100)
        assert len(read) == 1
        assert read[0][1] < len(of_kind(kind))

    def test_blocks_are_forgotten(
        self, kind: str, of_kind: Callable[[str], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        held = blocks._HELD
        monkeypatch.setattr(held, "_most", 1 << 20)
        (tmp_path / "a").write_bytes(of_kind(kind))
        with open_source(f"{tmp_path}/a") as source:
            assert source.read_at(0, len(TAR)) == TAR
            assert sum(map(len, held.values())) == held._held
            assert held._held <= 1 << 20 or len(held) == 1
        assert not held

    def test_a_block_that_is_not_what_was_written(
        self, kind: str, of_kind: Callable[[str], bytes], tmp_path: Path
    ) -> None:
        blob = bytearray(of_kind(kind))
        blob[len(blob) // 8] ^= 0x10
        (tmp_path / "a").write_bytes(blob)
        with open_source(f"{tmp_path}/a") as source:
            assert source.read_at(len(TAR) - 3000, 3000) == TAR[-3000:]
            with pytest.raises(DataError, match="corrupt in the block") as caught:
                source.read_at(0, len(TAR))
        assert caught.value.shard == f"{tmp_path}/a"
        assert 0 <= (caught.value.offset or 0) <= len(blob) // 8

    def test_cut_within_the_table_it_is_a_stream(
        self, kind: str, of_kind: Callable[[str], bytes], tmp_path: Path
    ) -> None:
        (tmp_path / "a").write_bytes(of_kind(kind)[:-3])
        with open_source(f"{tmp_path}/a") as source:
            assert not source.seekable


def of_entries(entries: list[tuple[int, ...]], flags: int = 0) -> bytes:
    """A seek table."""
    form = "<III" if flags & 0x80 else "<II"
    data = b"".join(struct.pack(form, *entry) for entry in entries)
    data += struct.pack("<IBI", len(entries), flags, 0x8F92EAB1)
    return struct.pack("<II", 0x184D2A5E, len(data)) + data


class TestSeekTables:
    """Those of other writers of zstd's seekable format, and those that lie."""

    frames = tuple(
        zstandard.ZstdCompressor(write_checksum=False).compress(TAR[at : at + 900_000])
        for at in range(0, len(TAR), 900_000)
    )
    sizes = tuple(len(TAR[at : at + 900_000]) for at in range(0, len(TAR), 900_000))

    @pytest.fixture
    def opened(self, tmp_path: Path) -> Callable[[bytes], Any]:
        def opener(table: bytes) -> Any:
            (tmp_path / "a").write_bytes(b"".join(self.frames) + table)
            return open_source(f"{tmp_path}/a")

        return opener

    def entries(self, *more: Callable[[bytes], int]) -> list[tuple[int, ...]]:
        starts = [sum(self.sizes[:at]) for at in range(len(self.sizes))]
        return [
            (len(frame), size, *(one(TAR[start : start + size]) for one in more))
            for frame, size, start in zip(self.frames, self.sizes, starts)
        ]

    def test_without_checksums(self, opened: Callable[[bytes], Any]) -> None:
        with opened(of_entries(self.entries())) as source:
            assert (source.seekable, source.read_at(0, 1 << 30) == TAR) == (True, True)

    def test_with_checksums(self, opened: Callable[[bytes], Any]) -> None:
        from xxhash import xxh64_intdigest

        true = self.entries(lambda data: xxh64_intdigest(data) & 0xFFFFFFFF)
        with opened(of_entries(true, 0x80)) as source:
            assert source.read_at(0, 1 << 30) == TAR
        false = [*true[:-1], (*true[-1][:2], 7)]
        with opened(of_entries(false, 0x80)) as source:
            assert source.read_at(0, 900_000) == TAR[:900_000]
            with pytest.raises(DataError, match="its checksum differs from the one in its table"):
                source.read_at(0, 1 << 30)

    @pytest.mark.parametrize("shift", [-1, 1, 5000])
    def test_sizes_that_are_others(self, opened: Callable[[bytes], Any], shift: int) -> None:
        entries = self.entries()
        entries[0] = (entries[0][0], entries[0][1] + shift)
        with (
            opened(of_entries(entries)) as source,
            pytest.raises(DataError, match=r"the table"),
        ):
            source.read_at(0, 10)

    def test_places_that_are_others(self, opened: Callable[[bytes], Any]) -> None:
        entries = self.entries()
        entries[:2] = [(entries[0][0] + 4, entries[0][1]), (entries[1][0] - 4, entries[1][1])]
        with opened(of_entries(entries)) as source:
            for at in (0, self.sizes[0] + 5):
                with pytest.raises(DataError):
                    source.read_at(at, 10)

    @pytest.mark.parametrize(
        "change",
        [lambda all_of_it: all_of_it[:-1], lambda all_of_it: [*all_of_it, (5, 5)], lambda all_of_it: []],
    )
    def test_one_that_does_not_add_up_is_no_table(
        self,
        opened: Callable[[bytes], Any],
        change: Callable[[list[tuple[int, ...]]], list[tuple[int, ...]]],
    ) -> None:
        with opened(of_entries(change(self.entries()))) as source:
            assert (source.seekable, source.read_at(0, 1 << 30) == TAR) == (False, True)

    def test_blocks_that_would_fill_the_memory(self, opened: Callable[[bytes], Any]) -> None:
        entries = self.entries()
        entries[0] = (entries[0][0], 0xFFFFFFFF)
        with opened(of_entries(entries)) as source:
            assert (source.seekable, source.read_at(0, 1 << 30) == TAR) == (False, True)


def test_names() -> None:
    assert [kind_of_name(name) for name in ("a.tar", "a.tar.gz", "a.tgz", "a.tbz2", "a.txz", "a.tar.lz4", "a")] == [
        None, "gzip", "gzip", "bzip2", "xz", "lz4", None,
    ]  # fmt: skip
    assert kind_of_name("pipe:gzip > a.tar.gz") is None


def test_a_compressor_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(UsageError, match="zstd") as caught:
        packer_for("zstd", print)
    assert caught.value.hint == "pip install 'wdscli[zstd]'"
