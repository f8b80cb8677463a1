"""What is written: byte for byte what GNU tar writes, and for what ustar cannot say, what everybody reads."""

from __future__ import annotations

import io
import os
import random
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tar_cases import FileSource, SparseSource, outcome, payloads_of, scanned

from wdscli.errors import UsageError
from wdscli.tar import END_OF_ARCHIVE, Form, TarWriter, build_header, padding
from wdscli.tar.header import split_long_name

GOLDEN = Path(__file__).parents[1] / "golden"
GNU_OPTIONS = ["--format=ustar", "--owner=0", "--group=0", "--numeric-owner", "--mode=0644", "-b", "1"]
LONG = [
    b"key/" + b"k" * 250 + b".jpg",
    b"folder/" * 40 + b"img.cls",
    "straße/".encode() * 30 + b"img.json",
    b"\xff\xfe" * 60 + b".txt",
    b"short.txt",
]

needs_gnu_tar = pytest.mark.skipif(
    shutil.which("tar") is None
    or b"GNU tar" not in subprocess.run(["tar", "--version"], capture_output=True, check=False).stdout,
    reason="needs GNU tar",
)
needs_bsdtar = pytest.mark.skipif(shutil.which("bsdtar") is None, reason="needs bsdtar")


def written(members: Sequence[tuple[bytes, bytes]], form: Form = Form()) -> bytes:
    out = io.BytesIO()
    with TarWriter(out, form) as tar:
        for name, payload in members:
            tar.add(name, payload)
    return out.getvalue()


def gnu_tar(
    folder: Path, members: Sequence[tuple[bytes, bytes]], mtime: int = 0
) -> subprocess.CompletedProcess[bytes]:
    """GNU tar's archive of these members, in this order."""
    for name, payload in members:
        path = os.path.join(os.fsencode(folder), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(payload)
    names = b"".join(name + b"\0" for name, _ in members)
    command = [
        "tar",
        *GNU_OPTIONS,
        f"--mtime=@{mtime}",
        "--no-recursion",
        "-C",
        str(folder),
        "-cf",
        "-",
        "--null",
        "-T",
        "-",
    ]
    return subprocess.run(command, input=names, capture_output=True, check=False)


@needs_gnu_tar
def test_equal_to_gnu_tar(tmp_path: Path) -> None:
    sizes = [0, 1, 511, 512, 513, 1024, 70000]
    names = [
        b"a.txt",
        b"n" * 100,
        "päth/ñ.jpg".encode(),
        b"x/" * 55 + b"y.cls",
        b"d" * 155 + b"/" + b"f" * 100,
    ]
    names += [b"\xff\xfe.bin", b"sp ace.txt", b"n01/img7.seg.png"]
    members = [
        (b"%d" % index + name if len(name) < 100 else name, os.urandom(size))
        for index, (name, size) in enumerate((name, size) for size in sizes[:1] for name in names)
    ]
    members += [(b"size%d.bin" % size, bytes([size % 251]) * size) for size in sizes]
    done = gnu_tar(tmp_path, members)
    assert done.returncode == 0, done.stderr
    assert written(members) == done.stdout


@needs_gnu_tar
def test_equal_to_gnu_tar_with_another_mtime(tmp_path: Path) -> None:
    members = [(b"a.txt", b"hello"), (b"x/" * 55 + b"y.cls", b"7")]
    assert written(members, Form(mtime=1_700_000_000)) == gnu_tar(tmp_path, members, 1_700_000_000).stdout
    assert written(members) != gnu_tar(tmp_path, members, 1_700_000_000).stdout


@needs_gnu_tar
def test_long_names_are_split_where_gnu_tar_splits_them(tmp_path: Path) -> None:
    drawn = random.Random(0)
    names = {b"y" * 100, b"y" * 101, b"y" * 99 + b"/" + b"z" * 156}
    while len(names) < 250:
        length, name = drawn.randint(95, 262), b""
        while len(name) < length:
            name += b"abcdefgh"[drawn.randrange(8) :][:1] * drawn.choice([1, 3, 30, 60, 99, 101, 150]) + b"/"
        name = name[:length].rstrip(b"/")
        if len(name) >= 95 and all(len(part) <= 255 for part in name.split(b"/")):
            names.add(name)
    members = [(name, b"") for name in sorted(names)]
    folders = {name[:at] for name in names for at in range(len(name)) if name[at : at + 1] == b"/"}
    members = [(name, b"") for name, _ in members if name not in folders]
    members = [
        (name, b"")
        for name, _ in members
        if not any(other != name and name.startswith(other + b"/") for other, _ in members)
    ]
    fitting = [
        member for member in members if len(member[0]) <= 100 or split_long_name(member[0]) is not None
    ]
    assert 40 < len(fitting) < len(members)
    # GNU tar leaves out what ustar cannot say, and complains.
    assert written(fitting) == gnu_tar(tmp_path, members).stdout


@pytest.mark.parametrize("long_names", ["pax", "gnu"])
def test_golden_files_of_what_ustar_cannot_say(long_names: str) -> None:
    form = Form(long_names="gnu" if long_names == "gnu" else "pax")
    members = [(name, b"payload %d" % index) for index, name in enumerate(LONG)]
    golden = (GOLDEN / f"long-names-{long_names}.tar").read_bytes()
    assert written(members, form) == golden
    big = b"".join(build_header(name, size, form) for name, size in ((b"big.bin", 8**11), (LONG[0], 10**15)))
    assert big == (GOLDEN / f"huge-headers-{long_names}.bin").read_bytes()


@pytest.mark.parametrize("long_names", ["pax", "gnu"])
def test_golden_files_are_read_by_others(long_names: str, tmp_path: Path) -> None:
    path = GOLDEN / f"long-names-{long_names}.tar"
    with tarfile.open(path) as tar:
        assert [member.name.encode("utf-8", "surrogateescape") for member in tar] == LONG
        assert [member.size for member in tar] == [9] * 5
    for command in (["tar", "--quoting-style=literal", "-tf"], ["bsdtar", "-tf"]):
        if shutil.which(command[0]) is None:
            continue
        done = subprocess.run(
            [*command, path], capture_output=True, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"}
        )
        listed = done.stdout.splitlines()
        # bsdtar writes what is not UTF-8 as escapes.
        assert [listed[at] for at in (0, 1, 4)] == [LONG[at] for at in (0, 1, 4)]
        assert len(listed) == 5
        subprocess.run([command[0], "-xf", path, "-C", tmp_path], check=True)
        for index, name in enumerate(LONG):
            assert (tmp_path / os.fsdecode(name)).read_bytes() == b"payload %d" % index
        shutil.rmtree(tmp_path / "key")


@pytest.mark.exhaustive
@pytest.mark.parametrize("long_names", ["pax", "gnu"])
def test_huge_members_are_read_by_all(long_names: str, tmp_path: Path) -> None:
    form = Form(long_names="gnu" if long_names == "gnu" else "pax")
    size = (8 << 30) + 5
    first, second = build_header(b"huge.bin", size, form), build_header(b"after.txt", 3, form)
    at = len(first) + (size + 511) // 512 * 512
    pieces = [(0, first), (at, second + b"abc")]
    total = at + 512 + 512 + 1024
    rows, error = outcome(SparseSource(pieces, total), form=form)
    assert error is None
    assert [(row.name, row.size, row.offset, row.flag) for row in rows] == [
        (b"huge.bin", size, len(first), 0),
        (b"after.txt", 3, at + 512, 0),
    ]
    path = tmp_path / "huge.tar"
    with open(path, "wb") as file:
        for place, piece in pieces:
            file.seek(place)
            file.write(piece)
        file.truncate(total)
    with tarfile.open(path) as tar:
        assert [(member.name, member.size) for member in tar] == [("huge.bin", size), ("after.txt", 3)]
    for tool in filter(shutil.which, ("tar", "bsdtar")):
        listed = subprocess.run([tool, "-tvf", path], capture_output=True, check=True).stdout.decode()
        assert str(size) in listed
        assert "after.txt" in listed


@needs_bsdtar
def test_bsdtar_reads_what_is_written() -> None:
    members = [(b"a.txt", b"hello"), (b"x/" * 55 + b"y.cls", b"7" * 600)]
    done = subprocess.run(["bsdtar", "-xOf", "-"], input=written(members), capture_output=True, check=True)
    assert done.stdout == b"hello" + b"7" * 600


@given(
    st.lists(
        st.tuples(
            st.binary(min_size=1, max_size=300).filter(lambda name: 0 not in name), st.binary(max_size=1500)
        ),
        max_size=6,
    ),
    st.sampled_from(["pax", "gnu"]),
)
def test_round_trip(members: list[tuple[bytes, bytes]], long_names: str) -> None:
    form = Form(long_names="gnu" if long_names == "gnu" else "pax")
    data = written(members, form)
    rows, error = scanned(data, form)
    assert error is None
    assert [row.name for row in rows] == [name for name, _ in members]
    assert [row.flag for row in rows] == [0] * len(members)
    assert payloads_of(data) == [payload for _, payload in members]


class Pieces:
    """A sink that keeps what it is given, piece by piece."""

    def __init__(self) -> None:
        self.pieces: list[bytes | bytearray | memoryview] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.pieces.append(data)


def test_small_members_go_out_together_and_large_payloads_as_they_are() -> None:
    sink, large = Pieces(), bytes(1 << 20)
    with TarWriter(sink) as tar:
        for index in range(10):
            tar.add(b"small%d" % index, b"x")
        tar.add(b"large", large)
    assert len(sink.pieces) == 3
    assert sink.pieces[1] is large


def test_the_position_counts_what_is_still_gathered() -> None:
    sink = Pieces()
    tar = TarWriter(sink)
    tar.add(b"a", b"x" * 600)
    assert (tar.position, sink.pieces) == (1536, [])
    tar.begin(b"b", 600)
    tar.raw(b"y" * 600)
    tar.raw(padding(600))
    assert tar.position == 3072
    tar.close()
    assert b"".join(sink.pieces) == written([(b"a", b"x" * 600), (b"b", b"y" * 600)])
    assert tar.position == 4096


def test_an_exception_leaves_no_end_of_archive() -> None:
    out = io.BytesIO()
    with pytest.raises(ZeroDivisionError), TarWriter(out) as tar:
        tar.add(b"a", b"")
        raise ZeroDivisionError
    assert not out.getvalue().endswith(END_OF_ARCHIVE)


@pytest.mark.parametrize("name", [b"", b"a\0b"])
def test_names_that_no_tar_can_hold(name: bytes) -> None:
    with pytest.raises(UsageError):
        TarWriter(Pieces()).add(name, b"")
    with pytest.raises(UsageError):
        TarWriter(Pieces()).begin(name, 0)


@pytest.mark.parametrize("size", [-1, 1 << 63])
def test_sizes_that_no_tar_can_hold(size: int) -> None:
    with pytest.raises(UsageError):
        TarWriter(Pieces()).begin(b"a", size)


@pytest.mark.parametrize("mtime", [-1, 8**11])
def test_times_that_ustar_cannot_hold(mtime: int) -> None:
    with pytest.raises(UsageError):
        TarWriter(Pieces(), Form(mtime=mtime))


def test_the_source_of_a_golden_file_is_its_bytes() -> None:
    rows, error = outcome(FileSource((GOLDEN / "long-names-pax.tar").read_bytes()))
    assert error is None
    assert [row.name for row in rows] == LONG
    assert not any(row.flag for row in rows)
