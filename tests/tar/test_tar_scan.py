"""What others write is read; what is malformed is an error; how the bytes come does not matter."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tar_cases import (
    FileSource,
    SparseSource,
    StreamSource,
    archive,
    outcome,
    patched,
    payloads_of,
    scanned,
)
from tiers import examples

from wdscli.model import Member
from wdscli.tar import (
    DIRECTORY,
    FOREIGN,
    GLOBAL,
    KIND_MASK,
    LINK,
    REGULAR,
    SPARSE,
    SPECIAL,
    Scanner,
    TarWriter,
    build_header,
    members,
)
from wdscli.tar.header import extended, pax_record

NAMES = [
    "a.txt",
    "n" * 99,
    "n" * 100,
    "n" * 101,
    "d/" * 60 + "f.txt",
    "d" * 155 + "/" + "f" * 100,
    "e" * 156 + "/f",
]
NAMES += [
    "straße/ü.jpg",
    "k" * 250 + ".cls",
    "\udcff\udcfe.bin",
    "x" * 120 + "\udcff",
    "sp ace.txt",
    "ends.in.dot.",
]


def by_tarfile(data: bytes) -> list[tuple[bytes, int, int, bytes]]:
    """The oracle: names, sizes, payload offsets and payloads of the regular members."""
    found = []
    with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as tar:
        for member in tar:
            if member.isreg():
                file = tar.extractfile(member)
                assert file is not None
                name = member.name.encode("utf-8", "surrogateescape")
                found.append((name, member.size, member.offset_data, file.read()))
    return found


def by_us(data: bytes) -> list[tuple[bytes, int, int, bytes]]:
    rows, error = scanned(data)
    assert error is None
    payloads = payloads_of(data)
    return [
        (row.name, row.size, row.offset, payload)
        for row, payload in zip(rows, payloads)
        if row.flag & KIND_MASK == REGULAR
    ]


def made_by_tarfile(form: int, mtime: float = 1.5) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form, errors="surrogateescape") as tar:
        for index, name in enumerate(NAMES * 2):
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uid = index * 301, mtime, 1000 + index
            member.uname, member.gname = "someone", "group"
            try:
                tar.addfile(member, io.BytesIO(bytes([index]) * member.size))
            except ValueError:
                assert form == tarfile.USTAR_FORMAT
        for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            member = tarfile.TarInfo(f"kind{kind.decode()}")
            member.type, member.linkname = kind, "target" * 40 if form != tarfile.USTAR_FORMAT else "t"
            tar.addfile(member)
    return out.getvalue()


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("mtime", [0, 1, 1.5])
def test_reads_what_tarfile_writes(form: int, mtime: float) -> None:
    data = made_by_tarfile(form, mtime)
    assert by_us(data) == by_tarfile(data)
    kinds = [row.flag & KIND_MASK for row in scanned(data).rows][-5:]
    assert kinds == [DIRECTORY, LINK, LINK, SPECIAL, SPECIAL]


def make_tree(folder: Path) -> list[str]:
    names = [name for name in NAMES if max(map(len, name.split("/"))) < 250] + ["z" * 90 + "/" + "y" * 20]
    for index, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(index * 217))
        os.utime(path, ns=(1_600_000_000_123_456_789, 1_600_000_000_123_456_789))
    os.symlink("a.txt", folder / "link")
    os.link(folder / "a.txt", folder / "zz_hard")
    (folder / "sub").mkdir()
    return names


TOOLS = [["tar", f"--format={form}"] for form in ("v7", "oldgnu", "gnu", "ustar", "pax")]
TOOLS += [["bsdtar", f"--format={form}"] for form in ("v7tar", "ustar", "gnutar", "paxr", "pax")]


@pytest.mark.parametrize("tool", TOOLS, ids=" ".join)
def test_reads_what_tar_programs_write(tool: list[str], tmp_path: Path) -> None:
    if shutil.which(tool[0]) is None:
        pytest.skip(f"needs {tool[0]}")
    folder = tmp_path / "in"
    folder.mkdir()
    make_tree(folder)
    # Names that the format cannot say are left out, with an exit code.
    data = subprocess.run([*tool, "-cf", "-", "-C", folder, "."], capture_output=True, check=False).stdout
    oracle = by_tarfile(data)
    assert len(oracle) >= 4
    assert by_us(data) == oracle
    kinds = {row.flag & KIND_MASK for row in scanned(data).rows}
    assert kinds == {REGULAR, DIRECTORY, LINK}


def test_reads_what_webdataset_writes(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    path = tmp_path / "w.tar"
    with webdataset.TarWriter(str(path)) as writer:
        for index in range(300):
            writer.write({"__key__": f"k{index:04d}", "jpg": b"x" * index * 7, "cls": index})
    data = path.read_bytes()
    assert by_us(data) == by_tarfile(data)
    assert all(row.flag == FOREIGN for row in scanned(data).rows)


@pytest.mark.parametrize("options", [["--format=oldgnu"], ["--format=gnu"]] + [
    ["--format=pax", f"--sparse-version={version}"] for version in ("0.0", "0.1", "1.0")
])  # fmt: skip
def test_sparse_members_are_told_and_passed_over(options: list[str], tmp_path: Path) -> None:
    if shutil.which("tar") is None:
        pytest.skip("needs GNU tar")
    with open(tmp_path / "holes.bin", "wb") as file:
        for index in range(60):
            file.seek(index << 20)
            file.write(b"data" * 1024)
    (tmp_path / "after.txt").write_bytes(b"after")
    command = ["tar", *options, "--sparse", "-cf", "-", "-C", tmp_path, "holes.bin", "after.txt"]
    data = subprocess.run(command, capture_output=True, check=True).stdout
    assert len(data) < 1 << 20
    rows, error = scanned(data)
    assert error is None
    assert [(row.name, row.flag & KIND_MASK) for row in rows] == [
        (b"holes.bin", SPARSE),
        (b"after.txt", REGULAR),
    ]
    assert data[rows[1].offset :][:5] == b"after"
    assert all(outcome(StreamSource(data, range(0, len(data), step))) == (rows, None) for step in (511, 4096))


def test_a_sparse_map_without_end() -> None:
    block = patched(patched(build_header(b"s", 0), 156, b"S"), 257, b"ustar  \0")
    data = patched(block, 482, b"\1") + (bytes(504) + b"\1" + bytes(7)) * 4000
    assert scanned(data).error == ("bad-extended-header", 0, "s")
    assert outcome(StreamSource(data)).error == ("bad-extended-header", 0, "s")


def test_huge_sizes_by_base_256_and_by_pax() -> None:
    for size in (8 << 30, 1 << 40, 1 << 61):
        in_block = patched(build_header(b"big", 0), 124, b"\x80" + size.to_bytes(11, "big"))
        by_pax = extended(b"x", pax_record(b"size", b"%d" % size)) + build_header(b"big", 0)
        for first in (in_block, by_pax):
            at = len(first) + size
            source = SparseSource([(0, first), (at, build_header(b"next", 0))], at + 512 + 1024)
            rows, error = outcome(source)
            assert error is None
            assert [(row.name, row.offset, row.size) for row in rows] == [
                (b"big", len(first), size),
                (b"next", at + 512, 0),
            ]


def test_regular_by_other_typeflags() -> None:
    for typeflag in (b"\0", b"7"):
        block = patched(build_header(b"a.txt", 3), 156, typeflag)
        for count in (1, 3):
            data = archive(*[block, b"abc"] * count)
            assert scanned(data).rows == [
                (b"a.txt", at * 1024, at * 1024 + 512, 3, FOREIGN) for at in range(count)
            ]


def test_v7_folders_are_told_by_their_slash() -> None:
    # Two names of one sum, so that nothing but the slash tells them apart.
    file, folder = (patched(build_header(name, 0), 156, b"\0") for name in (b"a0", b"b/"))
    data = archive(file, file, folder, file, folder, folder)
    kinds = [row.flag & KIND_MASK for row in scanned(data).rows]
    assert kinds == [REGULAR, REGULAR, DIRECTORY, REGULAR, DIRECTORY, DIRECTORY]


def test_links_and_devices_have_no_payload_whatever_their_size_says() -> None:
    for typeflag, kind in (
        (b"1", LINK),
        (b"2", LINK),
        (b"3", SPECIAL),
        (b"4", SPECIAL),
        (b"5", DIRECTORY),
        (b"6", SPECIAL),
    ):
        data = archive(patched(build_header(b"x", 5000), 156, typeflag), build_header(b"a", 0))
        rows, error = scanned(data)
        assert error is None
        assert [(row.size, row.flag & KIND_MASK) for row in rows] == [(0, kind), (0, REGULAR)]


def test_an_unknown_kind_has_its_payload_passed_over() -> None:
    data = archive(patched(build_header(b"v", 5), 156, b"Q"), b"12345", build_header(b"a", 0))
    assert [row.flag & KIND_MASK for row in scanned(data).rows] == [SPECIAL, REGULAR]


def x(*records: tuple[bytes, bytes], typeflag: bytes = b"x") -> bytes:
    return extended(typeflag, b"".join(pax_record(*record) for record in records))


def test_records_of_a_member() -> None:
    path, size = (b"path", b"long/name"), (b"size", b"3")
    data = archive(
        x(path) + build_header(b"short", 0),
        x(size) + build_header(b"sized", 0), b"abc",
        x((b"VENDOR.thing", b"?"), (b"mtime", b"1.5")) + build_header(b"unknown", 2), b"ab",
        x(path) + x(size) + build_header(b"two", 0), b"abc",
        extended(b"L", b"gnu/name\0") + extended(b"K", b"target\0") + build_header(b"g", 1), b"a",
        x(path, typeflag=b"X") + build_header(b"solaris", 0),
        build_header(b"plain", 4), b"abcd",
    )  # fmt: skip
    assert by_us(data) == by_tarfile(data)
    assert [(row.name, row.size) for row in scanned(data).rows] == [
        (b"long/name", 0), (b"sized", 3), (b"unknown", 2), (b"long/name", 3), (b"gnu/name", 1),
        (b"long/name", 0), (b"plain", 4),
    ]  # fmt: skip


def test_a_pax_path_wins_over_a_gnu_name() -> None:
    # So GNU tar has it; Python's tarfile takes the header that came first.
    data = archive(extended(b"L", b"gnu/name\0") + x((b"path", b"pax/name")) + build_header(b"both", 1), b"a")
    assert scanned(data).names == [b"pax/name"]


def test_an_empty_record_takes_back_what_the_block_does_not_say() -> None:
    data = archive(x((b"path", b""), (b"size", b"")) + build_header(b"empty", 1), b"a", build_header(b"b", 0))
    assert [(row.name, row.size) for row in scanned(data).rows] == [(b"empty", 1), (b"b", 0)]


def test_global_records() -> None:
    data = archive(
        build_header(b"before", 0),
        x((b"comment", b"made by git"), typeflag=b"g"), build_header(b"a", 1), b"a", build_header(b"b", 1), b"b",
        x((b"size", b"3"), (b"path", b"all"), typeflag=b"g"), build_header(b"c", 0), b"abc",
        x((b"path", b"own")) + build_header(b"d", 0), b"abc",
        x((b"path", b""), (b"size", b"")) + build_header(b"e", 1), b"e",
        x((b"size", b""), (b"path", b""), typeflag=b"g"), build_header(b"f", 2), b"ff",
        x((b"comment", b""), typeflag=b"g"), build_header(b"h", 0), build_header(b"i", 0),
    )  # fmt: skip
    assert [(row.name, row.size, row.flag) for row in scanned(data).rows] == [
        (b"before", 0, 0),
        (b"a", 1, FOREIGN | GLOBAL), (b"b", 1, FOREIGN | GLOBAL),
        (b"all", 3, FOREIGN | GLOBAL), (b"own", 3, FOREIGN | GLOBAL), (b"e", 1, FOREIGN | GLOBAL),
        (b"f", 2, FOREIGN | GLOBAL),
        (b"h", 0, FOREIGN), (b"i", 0, 0),
    ]  # fmt: skip


def test_global_records_hold_for_every_member_behind_them() -> None:
    theirs = patched(build_header(b"c", 0), 265, b"me")
    timed = x((b"mtime", b"1.5")) + theirs
    warm = [theirs, theirs, timed, timed]
    for records in ([(b"size", b"3")], [(b"path", b"all")], [(b"GNU.sparse.major", b"1")]):
        name, size = (b"all", 0) if records[0][0] == b"path" else (b"c", 3 if records[0][0] == b"size" else 0)
        kind = SPARSE if records[0][0].startswith(b"GNU") else REGULAR
        many = [part for block in (theirs, theirs, timed, timed, A) for part in (block, b"abc"[:size])]
        rows, error = scanned(archive(*warm, x(*records, typeflag=b"g"), *many))
        assert error is None
        names = [name] * 4 + [b"a" if name == b"c" else name]
        assert [(row.name, row.size, row.flag & KIND_MASK) for row in rows[4:]] == [
            (n, size, kind) for n in names
        ]


def test_globals_are_kept_for_who_asks() -> None:
    scanner = Scanner()
    data = archive(x((b"mtime", b"7"), (b"VENDOR.k", b"v"), typeflag=b"g") + build_header(b"a", 0))
    scanner.feed(data, 0)
    assert scanner.globals == {b"mtime": b"7", b"VENDOR.k": b"v"}


def test_members_are_records() -> None:
    data = archive(build_header(b"\xff.txt", 3), b"abc")
    assert list(members(FileSource(data))) == [Member("\udcff.txt", "regular", 0, 512, 3)]


TWO = archive(build_header(b"a.txt", 700), b"a" * 700, build_header(b"b.txt", 5), b"b" * 5)
PAX = archive(
    build_header(b"k" * 300, 700), b"a" * 700, x((b"mtime", b"1.5")) + build_header(b"b.txt", 5), b"b" * 5
)
GNU = archive(
    extended(b"L", b"n" * 700) + extended(b"L", b"m" * 200) + build_header(b"a.txt", 700), b"a" * 700
)

A = build_header(b"a", 0)
BAD_EXTENSION = "bad-extended-header"
BAD = [
    ("empty", b"", ("not-a-tar", 0, None)),
    ("short", b"x" * 511, ("not-a-tar", 0, None)),
    ("text", b"Hello, world. " * 500, ("not-a-tar", 0, None)),
    ("cut in a header", TWO[:100], ("not-a-tar", 0, None)),
    ("cut in the second header", TWO[:1600], ("truncated", 1536, None)),
    ("cut in a payload", TWO[:1000], ("truncated", 0, "a.txt")),
    ("cut in the padding", TWO[:1535], ("truncated", 0, "a.txt")),
    ("cut before a payload", TWO[:512], ("truncated", 0, "a.txt")),
    ("cut between members", TWO[:1536], ("no-end-of-archive", 1536, None)),
    ("one zero block", TWO[:-512], ("no-end-of-archive", 2560, None)),
    ("cut in the end", TWO[:-1], ("truncated", 3072, None)),
    ("data after one zero block", TWO[:-512] + TWO, ("data-after-end", 2560, None)),
    ("data after the end", TWO + bytes(700) + b"x", ("data-after-end", len(TWO) + 700, None)),
    ("another archive", TWO + TWO, ("data-after-end", len(TWO), None)),
    ("a flipped bit", TWO[:1540] + b"\1" + TWO[1541:], ("bad-checksum", 1536, None)),
    ("a bad size", archive(patched(A, 124, b"12x45678901\0")), ("bad-size", 0, "a")),
    ("a negative size", archive(patched(A, 124, b"\xff" * 12)), ("bad-size", 0, "a")),
    ("a size of 2^63", archive(patched(A, 124, b"\x80\0\0\0" + b"\x80" + bytes(7))), ("bad-size", 0, "a")),
    ("the largest size", archive(patched(A, 124, b"\x80\0\0\0\x7f" + b"\xff" * 7)), ("truncated", 0, "a")),
    ("a pax size of thirty digits", archive(x((b"size", b"9" * 30)) + A), ("bad-size", 0, "a")),
    ("a negative pax size", archive(x((b"size", b"-1")) + A), ("bad-size", 0, "a")),
    ("an extended header of 4 GiB", archive(patched(x(), 124, b"40000000000\0")), (BAD_EXTENSION, 0, None)),
    ("an extended header of base-256 size", archive(patched(x(), 124, b"\x80" + b"\1" * 11)), ("bad-size", 0, None)),
    ("a thousand extended headers", archive(x((b"path", b"p")) * 1000 + A), (BAD_EXTENSION, 0, "p")),
    ("a record of no length", archive(extended(b"x", b"0 path=x\n") + A), (BAD_EXTENSION, 0, None)),
    ("a record too long", archive(extended(b"x", b"99 path=x\n") + A), (BAD_EXTENSION, 0, None)),
    ("an extended header alone", archive(x((b"path", b"p"))), (BAD_EXTENSION, 0, None)),
    ("cut in an extended header", PAX[:700], ("truncated", 0, None)),
    ("cut behind an extended header", PAX[:1024], ("truncated", 0, None)),
    ("cut in the second extended header", GNU[:2000], ("truncated", 0, None)),
    ("cut in the member's header", PAX[:1200], ("truncated", 0, None)),
    ("cut in the second member's extended header", PAX[:2600], ("truncated", 2560, None)),
]  # fmt: skip


@pytest.mark.parametrize(("data", "error"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_malformed(data: bytes, error: tuple[str, int, str | None]) -> None:
    assert scanned(data).error == error
    for step in (100, 512, 1000, 1 << 20):
        assert outcome(StreamSource(data, range(0, len(data), step))).error == error
        assert outcome(StreamSource(data), chunk=step).error == error
        assert outcome(FileSource(data), chunk=step).error == error


def test_globals_cannot_fill_the_memory() -> None:
    data = b"".join(
        x((b"k%d" % index, b"v" * 60000), typeflag=b"g") + build_header(b"a", 0) for index in range(100)
    )
    tracemalloc.start()
    assert scanned(data + bytes(1024)).error == (
        "bad-extended-header",
        17 * (60000 // 512 * 512 + 1536),
        None,
    )
    assert tracemalloc.get_traced_memory()[1] < 12 << 20
    tracemalloc.stop()


def test_an_archive_without_members() -> None:
    for zeros in (1024, 1025, 10240, 3 << 20):
        assert scanned(bytes(zeros)) == ([], None)
        assert outcome(StreamSource(bytes(zeros))) == ([], None)


def test_a_long_tail_of_zeros_is_read_in_large_pieces() -> None:
    class Counting(FileSource):
        reads = 0

        def read_at(self, offset: int, length: int) -> bytes:
            Counting.reads += 1
            return super().read_at(offset, length)

    assert outcome(Counting(TWO + bytes(20 << 20))).error is None
    assert Counting.reads < 40


def test_payloads_of_large_members_are_left_alone() -> None:
    out = io.BytesIO()
    with TarWriter(out) as tar:
        for index in range(50):
            tar.add(b"%d.jpg" % index, bytes(100_000))
    source = FileSource(out.getvalue())
    assert len(outcome(source).rows) == 50
    assert source.bytes_read < 600_000


def test_payloads_of_large_foreign_members_are_left_alone() -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for index in range(50):
            member = tarfile.TarInfo(f"{index}.jpg")
            member.size, member.mtime = 100_000, 1.25 + index
            tar.addfile(member, io.BytesIO(bytes(100_000)))
    source = FileSource(out.getvalue())
    assert len(outcome(source).rows) == 50
    assert source.bytes_read < 800_000


def test_a_buffer_may_be_any_bytes() -> None:
    for kind in (bytes, bytearray, memoryview):
        scanner = Scanner()
        scanner.feed(kind(TWO), 0)
        scanner.finish(len(TWO))
        assert scanner.take().names == [b"a.txt", b"b.txt"]


MIXED = b"".join(
    [
        archive(build_header(b"tiny.txt", 3), b"abc")[:-1024],
        archive(
            *[part for index in range(40) for part in (build_header(b"%d.txt" % index, index), b"x" * index)]
        )[:-1024],
        archive(x((b"mtime", b"1.5")) + build_header(b"m", 9), b"123456789", GNU[:-1024], PAX[:-1024])[
            :-1024
        ],
        archive(build_header(b"large", 40000), bytes(40000), build_header(b"large2", 90000), bytes(90000))[
            :-1024
        ],
        archive(
            *[
                part
                for i in range(9)
                for part in (x((b"mtime", b"%d.25" % i)) + build_header(b"t%d" % i, 9), b"x" * 9)
            ]
        ),
    ]
)


@given(
    st.lists(st.integers(0, len(MIXED)), max_size=30),
    st.sampled_from([512, 700, 4096, 65536, 1 << 20]),
    st.booleans(),
    st.one_of(st.none(), st.integers(0, len(MIXED))),
    st.one_of(st.none(), st.tuples(st.integers(0, len(MIXED) - 1), st.integers(0, 7))),
)
@settings(max_examples=examples(300), deadline=None)
def test_a_stream_gives_the_same_as_a_file(
    cuts: list[int], chunk: int, payloads: bool, keep: int | None, flip: tuple[int, int] | None
) -> None:
    data = bytearray(MIXED[:keep])
    if flip is not None and flip[0] < len(data):
        data[flip[0]] ^= 1 << flip[1]
    expected = outcome(FileSource(bytes(data)))
    assert outcome(FileSource(bytes(data)), chunk=chunk, payloads=payloads) == expected
    assert outcome(StreamSource(bytes(data), cuts), chunk=chunk, payloads=payloads) == expected
