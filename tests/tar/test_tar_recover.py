"""Going on after damage."""

from __future__ import annotations

import io
import tarfile

import pytest
from tar_cases import FileSource, SparseSource, StreamSource, archive, patched

from wdscli.errors import DataError
from wdscli.tar import TarWriter, build_header
from wdscli.tar.header import extended, pax_record
from wdscli.tar.reader import next_header, scan_salvaging

LONG = b"deep/" * 60 + b"name.txt"


def good(count: int = 6, size: int = 700, prefix: str = "m") -> bytes:
    out = io.BytesIO()
    with TarWriter(out) as tar:
        for index in range(count):
            tar.add(f"{prefix}{index}.bin".encode(), bytes([index + 1]) * size)
    return out.getvalue()


def sources(data: bytes) -> list[FileSource | StreamSource]:
    cuts = range(0, len(data), 700)
    return [FileSource(data), StreamSource(data), StreamSource(data, cuts)]


def salvaged(source: FileSource | StreamSource, chunk: int = 1 << 20) -> tuple[list[bytes], list[DataError]]:
    names: list[bytes] = []
    errors: list[DataError] = []
    for window in scan_salvaging(source, errors.append, chunk=chunk):
        names += window.columns.names
    return names, errors


def broken(data: bytes, at: int, length: int = 512) -> bytes:
    return data[:at] + b"\xaa" * length + data[at + length :]


def test_next_header_finds_the_block_itself_and_the_one_behind() -> None:
    data = good()
    for source in (FileSource(data), StreamSource(data)):
        assert next_header(source, 0) == 0
    for offset in (1, 511, 512, 1024, 1536):
        assert next_header(FileSource(data), offset) == 1536
        assert next_header(StreamSource(data), offset) == 1536
    assert next_header(FileSource(data), 5 * 1536 + 1) is None
    assert next_header(FileSource(data), len(data) + 9999) is None


def test_next_header_keeps_to_the_grid_of_the_archive() -> None:
    data = b"#!/bin/sh\n" + good()
    assert next_header(FileSource(data), 0) is None
    assert next_header(FileSource(data), 10, first=10) == 10
    assert next_header(FileSource(data), 12, first=10) == 10 + 1536


def test_next_header_in_a_huge_file_reads_by_chunks() -> None:
    place = 300 << 20
    source = SparseSource([(place, good())], 301 << 20)
    assert next_header(source, place - (3 << 20) + 512) == place


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_next_header_knows_both_magics(form: int) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        tar.addfile(tarfile.TarInfo("a.txt"))
    assert next_header(FileSource(bytes(512) + out.getvalue()), 100) == 512


def v7(name: bytes = b"old.txt", middle: bytes = b"0000644\x000000000\x000000000\x00") -> bytes:
    block = build_header(b"", 0)[:257].ljust(512, b"\0")
    return patched(patched(block, 0, name), 100, middle)


def test_next_header_takes_v7_only_when_all_of_it_is_plausible() -> None:
    assert next_header(FileSource(bytes(512) + v7()), 0) == 512
    for block in (
        v7(b"ol\x07d"),
        v7(b""),
        v7(middle=b"000x644"),
        patched(v7(), 300, b"!"),
        patched(v7(), 20, b"!"),
    ):
        assert next_header(FileSource(bytes(512) + block), 0) is None


def test_a_wrong_checksum_alone_is_no_header() -> None:
    block = bytearray(build_header(b"a", 1))
    block[0] ^= 1
    assert next_header(FileSource(bytes(block)), 0) is None


def test_an_archive_without_damage_reports_nothing() -> None:
    for source in sources(good()):
        names, errors = salvaged(source)
        assert (len(names), errors) == (6, [])


@pytest.mark.parametrize("chunk", [512, 4096, 1 << 20])
def test_goes_on_behind_a_damaged_header(chunk: int) -> None:
    data = broken(broken(good(), 2 * 1536), 4 * 1536)
    for source in sources(data):
        names, errors = salvaged(source, chunk)
        assert names == [b"m0.bin", b"m1.bin", b"m3.bin", b"m5.bin"]
        assert [(error.code, error.offset) for error in errors] == [
            ("bad-checksum", 3072),
            ("bad-checksum", 6144),
        ]


def test_goes_on_behind_large_members() -> None:
    data = good(5, 70000)
    stride = len(data) // 5 // 512 * 512
    data = broken(data, stride)
    for source in sources(data):
        names, errors = salvaged(source)
        assert names == [b"m0.bin", b"m2.bin", b"m3.bin", b"m4.bin"]
        assert [error.code for error in errors] == ["bad-checksum"]


def test_a_damaged_first_header_does_not_end_it() -> None:
    for source in sources(broken(good(), 0)):
        names, errors = salvaged(source)
        assert names == [b"m1.bin", b"m2.bin", b"m3.bin", b"m4.bin", b"m5.bin"]
        assert [error.code for error in errors] == ["not-a-tar"]


def test_goes_on_with_the_archives_that_follow() -> None:
    for gap in (b"", bytes(9216)):
        data = good(2) + gap + good(2, prefix="n") + good(1, prefix="o")
        for source in sources(data):
            names, errors = salvaged(source)
            assert names == [b"m0.bin", b"m1.bin", b"n0.bin", b"n1.bin", b"o0.bin"]
            assert [error.code for error in errors] == ["data-after-end"] * 2


def test_goes_on_behind_a_lone_zero_block() -> None:
    data = good(1)[:-1024] + bytes(512) + good(1, prefix="n")
    for source in sources(data):
        names, errors = salvaged(source)
        assert names == [b"m0.bin", b"n0.bin"]
        assert [(error.code, error.offset) for error in errors] == [("data-after-end", 1536)]


@pytest.mark.parametrize("keep", [6 * 1536 - 100, 6 * 1536, 6 * 1536 + 512, 5 * 1536 + 100])
def test_a_cut_archive_ends_there_and_its_last_member_is_not_given(keep: int) -> None:
    for source in sources(good()[:keep]):
        names, errors = salvaged(source)
        assert len(names) == (6 if keep >= 6 * 1536 else 5)
        assert len(errors) == 1


def test_nothing_to_salvage() -> None:
    for data in (b"", b"x", b"\xaa" * 5000, good() + b"junk" * 500):
        for source in sources(data):
            names, errors = salvaged(source)
            assert len(names) == (6 if data.startswith(b"m0") else 0)
            assert len(errors) == 1


def test_a_member_whose_extended_header_is_damaged_is_not_given_under_a_wrong_name() -> None:
    bad_records = extended(b"x", b"999 path=" + LONG + b"\n") + build_header(LONG, 3)[-512:]
    bad_block = broken(build_header(LONG, 3), 0, 100)
    no_name = bytearray(build_header(LONG, 3))
    no_name[20] ^= 1
    for headers in (bad_records, bytes(no_name), bytes(bad_block)):
        data = archive(build_header(b"a", 3), b"one", headers, b"two", build_header(b"c", 5), b"three")
        for source in sources(data):
            names, errors = salvaged(source)
            assert names == [b"a", b"c"]
            assert errors[0].offset == 1024
            assert errors[-1].code == "bad-extended-header"


def test_too_long_a_chain_loses_one_member_only() -> None:
    chain = extended(b"x", pax_record(b"path", b"p")) * 40
    data = archive(chain + build_header(b"a", 3), b"one", build_header(b"c", 5), b"three")
    for source in sources(data):
        names, errors = salvaged(source)
        assert names == [b"c"]
        assert {error.code for error in errors} == {"bad-extended-header"}


def test_an_extended_header_before_the_end_does_not_cost_the_next_archive_its_first_member() -> None:
    data = archive(extended(b"x", pax_record(b"path", b"p"))) + good(2)
    for source in sources(data):
        names, errors = salvaged(source)
        assert names == [b"m0.bin", b"m1.bin"]
        assert errors[0].code == "bad-extended-header"


def test_globals_go_on_behind_damage_but_not_into_the_next_archive() -> None:
    globals_ = extended(b"g", pax_record(b"path", b"same"))
    data = archive(globals_ + build_header(b"a", 0), b"\xaa" * 512, build_header(b"b", 0)) + good(1)
    for source in sources(data):
        names, _ = salvaged(source)
        assert names == [b"same", b"same", b"m0.bin"]


def test_payloads_of_a_salvaged_stream() -> None:
    data = broken(good(6, 3000), 7168 // 2 // 512 * 512)
    for source in sources(data):
        got = {}
        for window in scan_salvaging(source, lambda error: None, payloads=True, chunk=1024):
            for row, name in enumerate(window.columns.names):
                got[name] = window.payload(row)
        assert got == {f"m{index}.bin".encode(): bytes([index + 1]) * 3000 for index in (0, 2, 3, 4, 5)}
