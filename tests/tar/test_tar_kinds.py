"""What a size says of each kind of member, compared with other tar readers.

Between readers there is no agreement: GNU tar passes over as many bytes as the size of a link, a device or a folder
from before POSIX says, tarfile (and so webdataset) and bsdtar see the members that lie there. What is certain: no
member that tarfile sees is passed over in silence.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import NamedTuple

import pytest
from shard_cases import wds
from tar_cases import archive, patched, scanned
from verify_cases import tar_bytes

from wdscli.errors import DataError
from wdscli.samples import iter_batches
from wdscli.tar import BytesSource, build_header
from wdscli.verify.set import verify

SIZE = 1024
MAGICS = {"v7": bytes(8), "gnu": b"ustar  \0", "posix": b"ustar\x0000"}
INNER = (build_header(b"inner.txt", 5), b"inner")
LAST = (build_header(b"last.txt", 4), b"last")


class Case(NamedTuple):
    """A header with a size: whether the members behind it are seen."""

    typeflag: bytes
    name: bytes
    tarfile: bool
    gnu: bool
    bsdtar: bool
    ours: bool
    error: str | None
    """What `verify` reports and a sample's reader raises."""


CASES = [
    Case(b"0", b"x.y", False, False, False, False, None),
    Case(b"7", b"x.y", False, False, False, False, None),
    Case(b"\0", b"x.y", False, False, False, False, None),
    Case(b"\0", b"x/", True, False, True, True, None),
    Case(b"0", b"x/", False, False, True, False, "bad-size"),
    Case(b"7", b"x/", False, False, True, False, "bad-size"),
    Case(b"1", b"x.y", True, True, True, True, "link"),
    Case(b"2", b"x.y", True, False, True, True, "link"),
    Case(b"3", b"x.y", True, False, True, True, "special"),
    Case(b"4", b"x.y", True, False, True, True, "special"),
    Case(b"5", b"x/", True, True, True, True, None),
    Case(b"5", b"x.y", True, True, True, True, None),
    Case(b"6", b"x.y", True, False, True, True, "special"),
    Case(b"D", b"x.y", False, False, False, False, "special"),
    Case(b"Z", b"x.y", False, False, False, False, "special"),
]


def made(case: Case, magic: str) -> bytes:
    block = patched(patched(build_header(case.name, SIZE), 156, case.typeflag), 257, MAGICS[magic])
    if magic != "posix":
        block = patched(block, 265, bytes(247))
    return archive(block, *INNER, *LAST)


def seen_by(tool: list[str], data: bytes) -> bool:
    ran = subprocess.run([*tool, "-tf", "-"], input=data, capture_output=True, check=False)
    return b"inner.txt" in ran.stdout.split()


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.typeflag!r}-{case.name.decode()}")
def test_sizes_by_kind(case: Case, magic: str, tmp_path: Path) -> None:
    data = made(case, magic)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert ("inner.txt" in tar.getnames()) is case.tarfile
    assert seen_by(["tar"], data) is case.gnu
    if shutil.which("bsdtar"):
        assert seen_by(["bsdtar"], data) is case.bsdtar
    rows, error = scanned(data)
    assert error is None
    assert (b"inner.txt" in [row.name for row in rows]) is case.ours
    # Nothing that the reader of the trade sees is missing.
    assert case.ours or not case.tarfile
    assert case.error or case.ours == case.tarfile
    path = tmp_path / "x.tar"
    path.write_bytes(data)
    report = verify([str(path)])
    errors = {finding.code for finding in report.findings if finding.severity == "error"}
    assert errors == ({case.error} if case.error else set())
    if case.error:
        with pytest.raises(DataError) as caught:
            list(iter_batches(BytesSource(data)))
        assert (caught.value.code, caught.value.offset, caught.value.member) == (
            case.error,
            0,
            case.name.decode(),
        )


def test_a_folder_of_v7_hides_no_samples(tmp_path: Path) -> None:
    """The size of a v7 folder is not data: `ls` and `verify` read the samples that follow its header."""
    folder = patched(patched(build_header(b"d/", SIZE), 156, b"\0"), 257, bytes(255))
    (tmp_path / "x.tar").write_bytes(folder + tar_bytes((b"a.txt", b"A"), (b"b.txt", b"B")))
    ran = wds("ls", "--json", tmp_path / "x.tar")
    assert [json.loads(line)["key"] for line in ran.out.splitlines()] == ["a", "b"]


def test_bytes_that_are_there_are_an_error(tmp_path: Path) -> None:
    """Had the folder's size been meant, its bytes are no header."""
    folder = patched(build_header(b"d/", SIZE), 156, b"\0")
    path = tmp_path / "x.tar"
    path.write_bytes(folder + b"?" * SIZE + tar_bytes((b"a.txt", b"A")))
    ran = wds("ls", path)
    assert ran.code == 3
    assert "checksum is wrong" in ran.err
    assert "at byte 512" in ran.err


def test_a_file_named_like_a_folder_stops_a_copy(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    path.write_bytes(made(CASES[4], "posix"))
    ran = wds("cat", path, "-o", tmp_path / "out.tar")
    assert ran.code == 3
    assert "ends with a slash" in ran.err
    assert not (tmp_path / "out.tar").exists()
