"""The FOREIGN flag is exact, and what a scan remembers never changes what it says."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tar_cases import FileSource, Outcome, Row, archive, outcome, patched, scanned, with_checksum
from tiers import examples

from wdscli.errors import DataError
from wdscli.tar import FOREIGN, GLOBAL, KIND_MASK, REGULAR, Form, Scanner, build_header, core, padded
from wdscli.tar.header import checksum_is_right, extended, pax_record
from wdscli.tar.scan import Extensions

FORMS = [Form(), Form(mtime=1_700_000_000), Form(long_names="gnu")]
NAMES = [
    b"a.txt",
    b"b.txt",
    b"ab",
    b"n" * 100,
    b"p" * 60 + b"/" + b"q" * 60,
    b"x/" * 60 + b"y",
    b"l" * 150,
    b"\xff" * 30,
]


def cold(data: bytes, form: Form) -> Outcome:
    """A scan by a scanner that is new for every member: nothing but global records is remembered."""
    rows: list[Row] = []
    position, extensions = 0, Extensions()
    while True:
        scanner = Scanner("x.tar", limit=len(data), form=form, first=position)
        scanner.extensions = extensions
        # One byte at a time beyond what is wanted, so that one member is all it sees.
        end = position + 512
        try:
            while not scanner.ended:
                scanner.feed(data[scanner.position : end], scanner.position)
                columns = scanner.take()
                if columns.names:
                    rows.append(Row(*(column[0] for column in columns)))
                    break
                if end > len(data):
                    scanner.finish(len(data))
                end = scanner.position + scanner.wanted
        except DataError as error:
            code = "bad-checksum" if error.code == "not-a-tar" and position else error.code
            return Outcome(rows, (code, error.offset, error.member))
        if scanner.ended:
            return Outcome(rows, None)
        position = scanner.position


def exact(data: bytes, rows: list[Row], form: Form) -> list[bool]:
    """Which members are canonical, by their bytes."""
    found, before = [], 0
    for row in rows:
        headers = data[before : row.offset]
        before = row.offset + padded(row.size)
        canonical = row.flag & (KIND_MASK | GLOBAL) == REGULAR and row.name != b"" and 0 not in row.name
        found.append(canonical and headers == build_header(row.name, row.size, form))
    return found


def check(data: bytes, form: Form) -> Outcome:
    found = outcome(FileSource(data), form=form)
    assert [not row.flag & FOREIGN for row in found.rows] == exact(data, found.rows, form)
    assert cold(data, form) == found
    return found


# One byte or field of a header that is not as it would be written here. The checksum is made right afterwards.
PATCHES = [
    None,
    (99, b"!"),
    (100, b"0000755\0"),
    (108, b"0001750\0"),
    (124, b"     000005\0"),
    (124, b"00000000005 "),
    (124, b"5\0\0\0\0\0\0\0\0\0\0\0"),
    (124, b"\x80" + bytes(10) + b"\x05"),
    (136, b"00000000001\0"),
    (136, b"14524270400\0"),
    (156, b"\0"),
    (156, b"7"),
    (156, b"5"),
    (157, b"link"),
    (257, b"ustar  \0"),
    (257, bytes(8)),
    (263, b"  "),
    (265, b"user"),
    (329, bytes(16)),
    (345, b"prefix"),
    (345, b"p" * 155),
    (345, b"d/e"),
    (500, b"\1"),
]
CHECKSUMS = [b"%06o\0 ", b"%06o\0 ", b"%06o\0 ", b"%06o \0", b"%07o\0", b"%7o "]
EXTRAS = [
    b"",
    extended(b"x", pax_record(b"mtime", b"1700000000.1234567")),
    extended(b"x", pax_record(b"mtime", b"1.5") + pax_record(b"atime", b"2.5")),
    extended(b"x", pax_record(b"path", b"other.txt")),
    extended(b"x", pax_record(b"path", b"l" * 150)),
    extended(b"x", pax_record(b"size", b"5")),
    extended(b"x", b""),
    extended(b"x", pax_record(b"GNU.sparse.major", b"1")),
    extended(b"g", pax_record(b"comment", b"hi")),
    extended(b"g", pax_record(b"comment", b"")),
    extended(b"g", pax_record(b"path", b"global")),
    extended(b"L", b"l" * 150 + b"\0"),
    extended(b"K", b"target\0"),
]


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    """The header blocks of a member with a payload of 5 bytes, canonical or nearly so."""
    form = draw(st.sampled_from(FORMS))
    made = build_header(draw(st.sampled_from(NAMES)), 5, form)
    block = made[-512:]
    for patch in draw(st.lists(st.sampled_from(PATCHES), max_size=2)):
        if patch is not None:
            block = patched(block, *patch)
    if block != made[-512:] or draw(st.booleans()):
        block = with_checksum(block, draw(st.sampled_from(CHECKSUMS)))
    return draw(st.sampled_from(EXTRAS * 1 + [b""] * 12)) + made[:-512] + block


@pytest.mark.exhaustive
@given(st.lists(headers(), max_size=12), st.sampled_from(FORMS))
@settings(max_examples=examples(250), deadline=None)
def test_foreign_means_other_bytes_than_ours(blocks: list[bytes], form: Form) -> None:
    check(b"".join(block + b"12345".ljust(512, b"\0") for block in blocks) + bytes(1024), form)


@given(st.lists(headers(), min_size=1, max_size=4), st.integers(0, 511), st.integers(0, 511), st.data())
@settings(max_examples=examples(200), deadline=None)
def test_repeated_headers_with_one_byte_moved(
    blocks: list[bytes], at: int, to: int, data: st.DataObject
) -> None:
    # Warm caches first, then the same header with two bytes changed so that the sum stays.
    warm = b"".join(block + b"12345".ljust(512, b"\0") for block in blocks) * 3
    last = bytearray(blocks[-1])
    step = data.draw(st.integers(1, 255))
    first, second = len(last) - 512 + at, len(last) - 512 + to
    if last[first] + step < 256 and last[second] - step >= 0:
        last[first] += step
        last[second] -= step
    check(warm + bytes(last) + b"12345".ljust(512, b"\0") + bytes(1024), Form())


def test_a_sum_that_only_looks_right_modulo_65521_is_wrong() -> None:
    block = build_header(b"n.txt", 5)
    foreign = patched(block, 265, b"me")
    stored = int(foreign[148:154], 8)
    # The same checksum field, and bytes that add 65521 more.
    heavy, missing = bytearray(foreign), 65521
    for place in [*range(157, 257), *range(265, 329), *range(345, 500)]:
        more = min(missing, 255 - heavy[place])
        heavy[place] += more
        missing -= more
    assert missing == 0
    assert int(bytes(heavy)[148:154], 8) == stored
    assert not checksum_is_right(bytes(heavy))
    data = archive(foreign, b"12345", foreign, b"12345", bytes(heavy), b"12345")
    assert scanned(data).error == ("bad-checksum", 2048, None)
    # And where that tail was seen before, in a header that is right.
    right = with_checksum(bytes(heavy))
    data = archive(foreign, b"12345", right, b"12345", right, b"12345", bytes(heavy), b"12345")
    assert scanned(data).error == ("bad-checksum", 3072, None)


def test_what_follows_the_name_is_part_of_the_header() -> None:
    block = build_header(b"a.txt", 5)
    dirty = patched(block, 50, b"dirt")
    unchecked = block[:50] + b"dirt" + block[54:]
    assert [row.flag for row in scanned(archive(block, b"12345", dirty, b"12345")).rows] == [0, FOREIGN]
    assert scanned(archive(block, b"12345", unchecked, b"12345")).error == ("bad-checksum", 1024, None)
    assert scanned(archive(unchecked, b"12345")).error == ("not-a-tar", 0, None)


def test_bytes_that_keep_the_sum_do_not_pass() -> None:
    block = build_header(b"a.txt", 5, Form(mtime=1))
    for at, other in (
        (100, b"0000464"),
        (108, b"0000000"),
        (136, b"00000000010"),
        (257, b"utsar"),
        (263, b"00"),
    ):
        changed = patched(block, at, other)
        data = archive(block, b"12345", changed, b"12345", changed, b"12345", block, b"12345")
        flag = 0 if changed == block else FOREIGN
        assert [row.flag for row in check(data, Form(mtime=1)).rows] == [0, flag, flag, 0]


def test_no_name_is_not_canonical() -> None:
    data = archive(*[part for name in (b"a", b"", b"", b"b") for part in (build_header(name, 5), b"12345")])
    assert [row.flag for row in check(data, Form()).rows] == [0, FOREIGN, FOREIGN, 0]


def test_what_follows_a_split_name_is_part_of_the_header() -> None:
    block = build_header(b"p" * 60 + b"/" + b"q" * 60, 5)
    dirty, split_early = patched(block, 80, b"dirt"), build_header(b"x/" * 60 + b"y", 5)
    split_early = patched(
        patched(split_early, 0, b"x/y" + bytes(97)), 345, (b"x/" * 59)[:-1].ljust(155, b"\0")
    )
    short = patched(patched(block, 0, b"q.txt" + bytes(95)), 345, b"p" + bytes(154))
    for odd in (dirty, split_early, short):
        data = archive(*[part for one in (block, odd, odd, block, odd) for part in (one, b"12345")])
        assert [row.flag for row in check(data, Form()).rows] == [0, FOREIGN, FOREIGN, 0, FOREIGN]


def test_a_foreign_member_does_not_make_the_next_one_foreign() -> None:
    ours, theirs = build_header(b"a.txt", 5), build_header(b"a.txt", 5, Form(mtime=1))
    odd = patched(theirs, 0, b"b")
    data = archive(
        *[part for block in (theirs, odd, ours, theirs, ours, ours, odd) for part in (block, b"12345")]
    )
    assert [row.flag for row in check(data, Form()).rows] == [FOREIGN, FOREIGN, 0, FOREIGN, 0, 0, FOREIGN]
    assert [row.flag for row in check(data, Form(mtime=1)).rows] == [0, 0, FOREIGN, 0, FOREIGN, FOREIGN, 0]


def test_the_form_decides() -> None:
    long = b"l" * 150
    for form in FORMS:
        data = archive(build_header(long, 5, form), b"12345", build_header(b"a", 5, form), b"12345")
        for other in FORMS:
            flags = [bool(row.flag & FOREIGN) for row in check(data, other).rows]
            assert flags == [form != other, form.mtime != other.mtime]


def test_a_global_header_marks_all_that_follow() -> None:
    block = build_header(b"a.txt", 5)
    glob = extended(b"g", pax_record(b"comment", b"x"))
    data = archive(block, b"12345", glob + block, b"12345", block, b"12345")
    assert [row.flag for row in check_globals(data)] == [0, FOREIGN | GLOBAL, FOREIGN | GLOBAL]


def check_globals(data: bytes) -> list[Row]:
    rows, error = scanned(data)
    assert error is None
    return rows


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_what_others_write_is_foreign_unless_it_is_ours(form: int) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for index in range(20):
            member = tarfile.TarInfo(f"{index}.txt")
            member.size = 5
            tar.addfile(member, io.BytesIO(b"12345"))
            member.mtime = 1
            tar.addfile(member, io.BytesIO(b"12345"))
    rows = check(out.getvalue(), Form()).rows
    assert len(rows) == 40
    assert all(row.flag & FOREIGN for row in rows[1::2])


def by_records(data: bytes) -> Outcome:
    """A member behind a pax header with these records, read by whichever core runs; plain Python says the same."""
    whole = archive(extended(b"x", data) + build_header(b"a.txt", 5), b"12345")
    found = scanned(whole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(core, "CORE", None)
        assert scanned(whole) == found
    return found


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [b"mtime", b"atime", b"path", b"size", b"GNU.sparse.major", b"comment", b"a b", b""]
            ),
            st.sampled_from([b"1.5", b"", b"x\n", b"=", b"17", b"\n9 mtime=1\n"]),
        ),
        max_size=3,
    ),
    st.integers(-1, 1),
)
def test_records_of_any_form(records: list[tuple[bytes, bytes]], wrong: int) -> None:
    data = b"".join(pax_record(*record) for record in records)
    length, space, rest = data.partition(b" ")
    by_records(b"%d" % (int(length) + wrong) + space + rest if length else data)


@pytest.mark.parametrize(
    ("data", "name", "size"),
    [
        (b"12 mtime=15\n", b"a.txt", 5),
        (b"12 mtime=1.5", None, 0),
        (b"12 mtime=1\n5", None, 0),
        (b"13 mtime=15\n", None, 0),
        (b"12 mtime=15\n12 atime=15\n", b"a.txt", 5),
        (b"12 mtime=15\n11 atime=15\n", None, 0),
        (b"12 mtime=15\n\0", b"a.txt", 5),
        (b"11 path=ab\n", b"ab", 5),
        (b"9 size=1\n", b"a.txt", 1),
        (b"12 sizes=15\n", b"a.txt", 5),
        (b"", b"a.txt", 5),
    ],
)
def test_records(data: bytes, name: bytes | None, size: int) -> None:
    rows = by_records(data).rows
    assert [(row.name, row.size) for row in rows] == ([] if name is None else [(name, size)])
