"""Payloads of hard links and sparse files: the same as GNU tar and tarfile read, and nothing from unclear maps."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdscli.tar import BytesSource, build_header, padded, scan
from wdscli.tar.header import extended, pax_record
from wdscli.tar.stored import HOLE, Extent, extents_of, link_targets, linked_names, place_of

FORMATS = {
    "old": ["--format=gnu"],
    "0.0": ["--format=posix", "--sparse-version=0.0"],
    "0.1": ["--format=posix", "--sparse-version=0.1"],
    "1.0": ["--format=posix", "--sparse-version=1.0"],
}
needs_tar = pytest.mark.skipif(shutil.which("tar") is None, reason="needs GNU tar")


def payloads(data: bytes) -> dict[str, bytes | None]:
    """The payload of each member that is no folder, as this module reads it."""
    source = BytesSource(data)
    targets = link_targets(source, scan(source), linked_names(source, scan(source)))
    read: dict[str, bytes | None] = {}
    for window in scan(source):
        for row, name in enumerate(window.columns.names):
            place = place_of(window.columns, row)
            kind = window.columns.member(row).kind
            target = targets.get(place.start) if kind == "link" else place
            extents = None if target is None else extents_of(source, target)
            if kind != "directory":
                read[name.decode()] = None if extents is None else joined(data, extents)
    return read


def joined(data: bytes, extents: tuple[Extent, ...]) -> bytes:
    return b"".join(
        bytes(length) if offset == HOLE else data[offset : offset + length] for offset, length in extents
    )


def read_by_tarfile(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {
            member.name: tar.extractfile(member).read()  # type: ignore[union-attr]
            for member in tar
            if member.isreg() or member.islnk()
        }


def write_sparse(path: Path, size: int, pieces: list[tuple[int, bytes]]) -> None:
    with path.open("wb") as file:
        file.truncate(size)
        for offset, data in pieces:
            file.seek(offset)
            file.write(data)


@pytest.mark.exhaustive
@needs_tar
@pytest.mark.parametrize("form", FORMATS)
def test_sparse_files_of_gnu_tar(form: str, tmp_path: Path) -> None:
    """A hole at the end, at the beginning, nothing but a hole, and more pieces than one header block holds."""
    write_sparse(tmp_path / "a.bin", 300_000, [(0, b"begin"), (200_000, b"middle" * 1000)])
    write_sparse(tmp_path / "b.bin", 300_007, [(299_990, b"the end, not even")])
    write_sparse(tmp_path / "c.bin", 100_000, [])
    write_sparse(tmp_path / "d.bin", 40 * 65_536, [(at * 65_536, b"x%d" % at) for at in range(40)])
    (tmp_path / ("n" * 120 + ".bin")).write_bytes(b"")
    write_sparse(tmp_path / ("n" * 120 + ".bin"), 100_000, [(50_000, b"long")])
    names = sorted(os.listdir(tmp_path))
    command = ["tar", "-S", *FORMATS[form], "-C", str(tmp_path), "-cf", "-", *names]
    data = subprocess.run(command, capture_output=True, check=True).stdout
    kinds = {
        member.kind
        for window in scan(BytesSource(data))
        for member in map(window.columns.member, range(99)[: len(window.columns.names)])
    }
    assert "sparse" in kinds, "the file system of this test makes no holes"
    expected = {name: (tmp_path / name).read_bytes() for name in names}
    assert payloads(data) == expected
    peer = read_by_tarfile(data)
    # tarfile does not use GNU.sparse.name if there is a path record, as format 0.1 has for long names.
    assert peer.items() <= expected.items() if form != "0.1" else expected["d.bin"] == peer["d.bin"]
    assert len(peer) == len(expected)


@pytest.mark.exhaustive
@needs_tar
@pytest.mark.parametrize("form", ["gnu", "posix", "ustar"])
def test_hard_links_of_gnu_tar(form: str, tmp_path: Path) -> None:
    names = ["a.txt", "b.txt", "c.txt", "l" * 99 + "/" + "n" * 90 + ".txt"]
    (tmp_path / names[0]).write_bytes(b"text")
    for name in names[1:]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        os.link(tmp_path / names[0], tmp_path / name)
    (tmp_path / "s.txt").symlink_to("a.txt")
    # The first member is the file: with the long name first, the others are links to a long name.
    for order in (names, names[::-1]):
        command = ["tar", f"--format={form}", "-C", str(tmp_path), "-cf", "-", *order, "s.txt"]
        ran = subprocess.run(command, capture_output=True, check=False)
        if form == "ustar" and ran.returncode:
            continue  # the name of a link's target has at most 100 bytes there
        assert payloads(ran.stdout) == {**dict.fromkeys(names, b"text"), "s.txt": None}
        assert read_by_tarfile(ran.stdout) == dict.fromkeys(names, b"text")


def tar_of_infos(*members: tuple[str, bytes | str]) -> bytes:
    """A tar of files (bytes) and hard links (the target's name)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            else:
                info.type, info.linkname = tarfile.LNKTYPE, content
                tar.addfile(info)
    return out.getvalue()


def test_a_link_means_the_last_member_before_it() -> None:
    data = tar_of_infos(("a", b"1"), ("x", "a"), ("a", b"2"), ("y", "a"), ("z", "x"), ("a", b"3"))
    assert payloads(data) == {"a": b"3", "x": b"1", "y": b"2", "z": b"1"}
    assert read_by_tarfile(data) == payloads(data)


def test_links_that_lead_nowhere() -> None:
    """To no member, to a later one, to itself, and in a circle."""
    data = tar_of_infos(("a", "none"), ("b", "c"), ("c", b"1"), ("d", "d"), ("e", "f"), ("f", "e"))
    assert payloads(data) == {"a": None, "b": None, "c": b"1", "d": None, "e": None, "f": None}


def sparse(records: dict[str, str], payload: bytes) -> bytes:
    """One member with records of a pax header. A list of values stands for a record that is repeated."""
    data = b"".join(pax_record(key.encode(), value.encode()) for key, value in records.items())
    return (
        extended(b"x", data)
        + build_header(b"a.bin", len(payload))
        + payload.ljust(padded(len(payload)), b"\0")
        + bytes(1024)
    )


def of_map(text: str, *, size: object, stored: int, blocks: object = None) -> bytes:
    blocks = (text.count(",") + 1) // 2 if blocks is None else blocks
    records = {"GNU.sparse.size": str(size), "GNU.sparse.numblocks": str(blocks), "GNU.sparse.map": text}
    return sparse(records, b"x" * stored)


def test_a_map_by_hand() -> None:
    data = of_map("512,512,2048,3", size=3000, stored=515)
    assert payloads(data) == {"a.bin": bytes(512) + b"x" * 512 + bytes(1024) + b"xxx" + bytes(949)}
    assert read_by_tarfile(data) == payloads(data)
    header = 3 * 512
    (window,) = (w for w in scan(BytesSource(data)) if w.columns.names)
    assert extents_of(BytesSource(data), place_of(window.columns, 0)) == (
        Extent(HOLE, 512),
        Extent(header, 512),
        Extent(HOLE, 1024),
        Extent(header + 512, 3),
        Extent(HOLE, 949),
    )


@pytest.mark.parametrize(
    "data",
    [
        of_map("0,512,100,512", size=3000, stored=1024),
        of_map("512,512,0,512", size=3000, stored=1024),
        of_map("0,512,2900,512", size=3000, stored=1024),
        of_map("0,512", size=3000, stored=1024),
        of_map("0,2048", size=3000, stored=1024),
        of_map("0,100,512,512", size=3000, stored=612),
        of_map("0,512,x", size=3000, stored=512),
        of_map("0,512,600", size=3000, stored=512, blocks=1),
        of_map("0,-1", size=3000, stored=0),
        of_map("0," + "9" * 30, size=3000, stored=0),
        of_map("0,0", size="9" * 19, stored=0),
        of_map("0,0", size="", stored=0),
        of_map("0,0", size=5, stored=0, blocks=2),
        sparse({"GNU.sparse.major": "2", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"}, b"0\n"),
        sparse({"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}, b"0\n".ljust(512, b"\0")),
        sparse({"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"}, b""),
        sparse({"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"}, b"9\n0\n0\n"),
        sparse({"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"}, b"9" * 600),
        sparse(
            {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"}, b"1" * 18 + b"\n"
        ),
    ],
)
def test_unclear_maps_give_nothing(data: bytes) -> None:
    assert payloads(data) == {"a.bin": None}


@given(st.binary(max_size=1024), st.binary(max_size=400))
def test_garbage_never_raises(payload: bytes, block: bytes) -> None:
    records = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "1000"}
    payloads(sparse(records, payload))
    old = bytearray(build_header(b"a.bin", len(payload)))
    old[156:157], old[386:482], old[483:495] = b"S", block[:96].ljust(96, b"\0"), b"%011o\0" % 5000
    old[148:156] = b" " * 8
    old[148:156] = b"%06o\0 " % sum(old)
    data = bytes(old) + payload.ljust(padded(len(payload)), b"\0") + bytes(1024)
    read = payloads(data)["a.bin"]
    assert read is None or len(read) == 5000
