"""The rules of one header block."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tar_cases import patched, with_checksum

from wdscli.errors import DataError
from wdscli.tar import DIRECTORY, LINK, REGULAR, SPARSE, SPECIAL, Form, build_header, padded
from wdscli.tar.header import (
    BLOCK,
    byte_sum,
    checksum_is_right,
    extended,
    has_payload,
    member_kind,
    parse_block,
    parse_number,
    parse_pax,
    parse_size,
    pax_record,
    pax_size,
    split_long_name,
    valid_size,
)


@pytest.mark.parametrize(
    ("field", "number"),
    [
        (b"00000000012\0", 10),
        (b"00000000012 ", 10),
        (b"000000000012", 10),
        (b"777777777777", 8**12 - 1),
        (b"       12 \0 ", 10),
        (b"12\0garbage!!", 10),
        (b"12          ", 10),
        (b"            ", 0),
        (bytes(12), 0),
        (b"\x80" + bytes(10) + b"\x05", 5),
        (b"\x80" + (1 << 62).to_bytes(11, "big"), 1 << 62),
        (b"\xff" * 12, -1),
        (b"\xff" * 11 + b"\0", -256),
    ],
)
def test_numbers(field: bytes, number: int) -> None:
    assert parse_number(field, "size") == number


@pytest.mark.parametrize(
    "field",
    [
        b"00000000018\0",
        b"0x10\0\0\0\0\0\0\0\0",
        b"-1\0\0\0\0\0\0\0\0\0\0",
        b"1 2         ",
        b"\x81" + bytes(11),
    ],
)
def test_what_is_no_number(field: bytes) -> None:
    with pytest.raises(DataError) as caught:
        parse_number(field, "size")
    assert caught.value.code == "bad-size"
    with pytest.raises(DataError) as caught:
        parse_number(field, "mode")
    assert caught.value.code == "bad-header"


@pytest.mark.parametrize(
    ("field", "number"),
    [
        (b"\x000000001130\0", 0o1130),
        (bytes(7) + b"1130\0", 0o1130),
        (b"\0 0000660\0  ", 0o660),
        (b" \x0000000003\0", 3),
        (bytes(11) + b" ", 0),
    ],
)
def test_digits_behind_leading_nuls_count(field: bytes, number: int) -> None:
    """GNU tar and Go read such numbers, so archives with them exist."""
    assert parse_number(field, "size") == number


@pytest.mark.parametrize("size", [-1, 1 << 63, 1 << 80])
def test_impossible_sizes(size: int) -> None:
    with pytest.raises(DataError) as caught:
        valid_size(size)
    assert caught.value.code == "bad-size"
    with pytest.raises(DataError):
        parse_size((b"\x80" if size > 0 else b"\xff") + (size % (1 << 88)).to_bytes(11, "big"))


@pytest.mark.parametrize("size", [0, 1, 1 << 33, (1 << 63) - 1])
def test_possible_sizes(size: int) -> None:
    assert (
        valid_size(size) == parse_size(b"\x80" + size.to_bytes(11, "big")) == pax_size(b"%d" % size) == size
    )


@pytest.mark.parametrize("value", [b"", b"-1", b"1e3", b"9" * 30, b"%d" % (1 << 63), b" 1", "٣".encode()])
def test_impossible_pax_sizes(value: bytes) -> None:
    with pytest.raises(DataError) as caught:
        pax_size(value)
    assert caught.value.code == "bad-size"


@given(st.binary(max_size=2000))
def test_byte_sum_is_the_sum(data: bytes) -> None:
    assert byte_sum(data) == sum(data)


def test_unsigned_and_signed_checksums() -> None:
    block = build_header("naïve-ÿ.txt".encode() + b"\xff" * 20, 5)
    assert checksum_is_right(block)
    total = byte_sum(block[:148] + block[156:]) + 256
    high = sum(1 for byte in block[:148] + block[156:] if byte >= 0x80)
    signed = block[:148] + b"%06o\0 " % (total - 256 * high) + block[156:]
    assert high
    assert checksum_is_right(signed)
    assert tarfile.TarInfo.frombuf(signed, "utf-8", "surrogateescape").size == 5
    assert not checksum_is_right(block[:148] + b"%06o\0 " % (total - 256) + block[156:])


@pytest.mark.parametrize("form", [b"%06o\0 ", b"%06o \0", b"%07o\0", b"%6o\0 ", b"%7o ", b"%06o\0\0"])
def test_checksums_as_tars_write_them(form: bytes) -> None:
    assert checksum_is_right(with_checksum(build_header(b"a", 1), form))


@pytest.mark.parametrize("check", [b"        ", bytes(8), b"zzzzzz\0 "])
def test_no_checksum_is_a_wrong_one(check: bytes) -> None:
    block = build_header(b"a", 1)
    assert not checksum_is_right(block[:148] + check + block[156:])
    assert not checksum_is_right(bytes(BLOCK))


def test_only_posix_blocks_have_a_prefix() -> None:
    block = patched(build_header(b"name", 1), 345, b"some/folder")
    assert parse_block(block).name == b"some/folder/name"
    assert parse_block(block).prefix == b"some/folder/"
    # Old GNU headers hold times there, v7 nothing at all.
    assert parse_block(patched(block, 257, b"ustar  \0")).name == b"name"
    assert parse_block(patched(block, 257, bytes(8))).name == b"name"


@pytest.mark.parametrize(
    ("typeflag", "name", "kind", "payload"),
    [
        (b"0", b"a", REGULAR, True),
        (b"\0", b"a", REGULAR, True),
        (b"\0", b"a/", DIRECTORY, False),
        (b"7", b"a", REGULAR, True),
        (b"1", b"a", LINK, False),
        (b"2", b"a", LINK, False),
        (b"3", b"a", SPECIAL, False),
        (b"4", b"a", SPECIAL, False),
        (b"5", b"a", DIRECTORY, False),
        (b"6", b"a", SPECIAL, False),
        (b"S", b"a", SPARSE, True),
        (b"V", b"a", SPECIAL, True),
        (b"\xff", b"a", SPECIAL, True),
    ],
)
def test_kinds(typeflag: bytes, name: bytes, kind: int, payload: bool) -> None:
    assert member_kind(typeflag, name) == kind
    assert has_payload(typeflag, kind) is payload


@pytest.mark.parametrize("zeros", [1, 5, 19, 30])
def test_zeros_before_a_pax_number(zeros: int) -> None:
    """tarfile, GNU tar and bsdtar accept leading zeros in a record's length and in a size."""
    record = b"%s%d size=600\n" % (b"0" * zeros, 12 + zeros)
    assert parse_pax(record) == {b"size": b"600"}
    assert pax_size(b"0" * zeros + b"600") == 600


@given(st.binary(min_size=1, max_size=20).filter(lambda k: b"=" not in k), st.binary(max_size=1100))
def test_a_pax_record_reads_back(keyword: bytes, value: bytes) -> None:
    record = pax_record(keyword, value)
    assert int(record.partition(b" ")[0]) == len(record)
    assert parse_pax(record) == {keyword: value}


@pytest.mark.parametrize("length", [89, 90, 91, 92, 93, 94, 989, 990, 991, 992, 993])
def test_the_length_of_a_pax_record_counts_its_own_digits(length: int) -> None:
    record = pax_record(b"path", b"x" * length)
    assert int(record.partition(b" ")[0]) == len(record)


def test_pax_records() -> None:
    assert parse_pax(b"") == {}
    assert parse_pax(b"6 a=1\n6 a=2\n5 b=\n" + bytes(7)) == {b"a": b"2", b"b": b""}
    assert parse_pax(b"10 a=x=\ny\n") == {b"a": b"x=\ny"}


@pytest.mark.parametrize(
    "data",
    [
        b"path=a\n",
        b"0 a=1\n",
        b"06 a=1\n",
        b"7 a=1\n",
        b"5 a=1\n",
        b"6 a=1\nx",
        b"5 a1\n",
        b"4 =\n",
        b"99999999999999999999 a=1\n",
        b"999999999999999999999999 a=1\n",
        b"-6 a=1\n",
        b"+6 a=1\n",
        b" 6 a=1\n",
        b"3 \n",
        b"6",
        "٦ a=1\n".encode(),
    ],
)
def test_malformed_pax_records(data: bytes) -> None:
    with pytest.raises(DataError) as caught:
        parse_pax(data)
    assert caught.value.code == "bad-extended-header"


def test_padded() -> None:
    assert [padded(size) for size in (0, 1, 511, 512, 513)] == [0, 512, 512, 512, 1024]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (b"a" * 100 + b"/" + b"b" * 100, (b"a" * 100, b"b" * 100)),
        (b"a" * 155 + b"/" + b"b" * 100, (b"a" * 155, b"b" * 100)),
        (b"a" * 156 + b"/" + b"b" * 99, None),
        (b"a" * 155 + b"/" + b"b" * 101, None),
        (b"a" * 101, None),
        (b"/" + b"a" * 100, None),
        (b"a/" + b"b" * 101, None),
        (b"x/" * 60 + b"y", (b"x/" * 59 + b"x", b"y")),
        (b"x/" * 100 + b"y", (b"x/" * 77 + b"x", b"x/" * 22 + b"y")),
    ],
)
def test_long_names_are_split_where_ustar_can(name: bytes, parts: tuple[bytes, bytes] | None) -> None:
    assert split_long_name(name) == parts


@pytest.mark.parametrize("length", [1, 99, 100, 101, 155, 156, 255, 256, 257, 300])
@pytest.mark.parametrize("long_names", ["pax", "gnu"])
@pytest.mark.parametrize("slashes", [False, True])
@pytest.mark.parametrize("size", [0, 8**11 - 1, 8**11, (1 << 63) - 1])
def test_tarfile_reads_the_canonical_header(length: int, long_names: str, slashes: bool, size: int) -> None:
    name = (b"abcdefg/" * 40 if slashes else b"n" * 400)[: length - 1] + b"z"
    data = build_header(name, size, Form(mtime=7, long_names="gnu" if long_names == "gnu" else "pax"))
    assert len(data) % BLOCK == 0
    member = read_by_tarfile(data)
    assert (member.name.encode(), member.size, member.mtime, member.mode) == (name, size, 7, 0o644)
    assert (member.uid, member.gid, member.uname, member.gname, member.type) == (0, 0, "", "", b"0")


def read_by_tarfile(data: bytes) -> tarfile.TarInfo:
    with tarfile.open(fileobj=io.BytesIO(data + bytes(1024))) as tar:
        member = tar.next()
    assert member is not None
    return member


def test_ustar_is_enough_where_it_can_be() -> None:
    assert len(build_header(b"n" * 100, 8**11 - 1)) == BLOCK
    assert len(build_header(b"a/" * 60 + b"n", 8**11 - 1)) == BLOCK
    assert len(build_header(b"n" * 100, 8**11)) == 3 * BLOCK
    assert len(build_header(b"n" * 100, 8**11, Form(long_names="gnu"))) == BLOCK
    assert len(build_header(b"n" * 101, 1)) == 3 * BLOCK


def test_only_the_records_needed() -> None:
    def records(name: bytes, size: int) -> dict[bytes, bytes]:
        data = build_header(name, size)
        return parse_pax(data[512 : 512 + parse_block(data[:512]).size])

    assert records(b"n" * 101, 1) == {b"path": b"n" * 101}
    assert records(b"n", 8**11) == {b"size": b"%d" % 8**11}
    assert records(b"a/" * 60 + b"n", 8**11) == {b"size": b"%d" % 8**11}
    assert records(b"n" * 101, 8**11) == {b"path": b"n" * 101, b"size": b"%d" % 8**11}


def test_an_extended_header_is_named_as_others_name_theirs() -> None:
    assert extended(b"x", b"")[:14] == b"././@PaxHeader"
    assert extended(b"L", b"")[:14] == b"././@LongLink\0"
    assert all(checksum_is_right(extended(typeflag, b"data")[:512]) for typeflag in (b"x", b"g", b"L"))
