"""Memory is bounded: by the shard's size for nobody, by the number of samples for a shuffle, at 64 bytes each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from wdscli.tar import END_OF_ARCHIVE, build_header, padding

# The child says what it used.
_MEASURE = """
import resource, sys
from wdscli.cli.main import main
code = main(sys.argv[1:])
sys.stderr.write(f"\\n{code} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}\\n")
"""


def resident_bytes(*args: object, stdin: Path | None = None) -> int:
    """The most memory one command had, its output thrown away."""
    with open(stdin or os.devnull, "rb") as given:
        # A child of sh, not of this process: what was resident before exec would be counted.
        done = subprocess.run(
            ["sh", "-c", '"$@"; exit $?', "sh", sys.executable, "-c", _MEASURE, *map(str, args)],
            stdin=given,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=True,
        )
    code, used = done.stderr.split()[-2:]
    assert code == "0", done.stderr
    return int(used) * 1024


@pytest.fixture(scope="module")
def large_members(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 MB in 6 samples, mostly holes."""
    path = tmp_path_factory.mktemp("large") / "large.tar"
    with path.open("wb") as file:
        for number in range(6):
            header = build_header(b"s%d.cls" % number, 1) + b"1" + padding(1)
            file.write(header + build_header(b"s%d.bin" % number, 50_000_000))
            file.seek(50_000_000 + len(padding(50_000_000)), os.SEEK_CUR)
        file.write(END_OF_ARCHIVE)
    return path


@pytest.fixture(scope="module")
def small_members(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 thousand samples of one member, 205 MB."""
    path = tmp_path_factory.mktemp("small") / "small.tar"
    with path.open("wb") as file:
        for first in range(0, 200_000, 1000):
            file.write(
                b"".join(
                    build_header(b"n%06d.cls" % n, 3) + b"abc" + padding(3)
                    for n in range(first, first + 1000)
                )
            )
        file.write(END_OF_ARCHIVE)
    return path


STREAMING = 40 << 20


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize(
    "args",
    [["cat"], ["cat", "--to", "raw", "--fields", "bin"], ["ls"], ["ls", "--by", "member"]],
    ids=" ".join,
)
def test_large_members_are_streamed(large_members: Path, args: list[str]) -> None:
    assert resident_bytes(*args, large_members) < STREAMING
    assert resident_bytes(*args, "-", stdin=large_members) < STREAMING


@pytest.mark.exhaustive(sample=False)
@pytest.mark.parametrize(
    "args", [["cat", "--to", "raw", "--fields", "cls"], ["ls"], ["ls", "--by", "member"]], ids=" ".join
)
def test_small_members_are_streamed(small_members: Path, args: list[str]) -> None:
    assert resident_bytes(*args, small_members) < STREAMING
    assert resident_bytes(*args, "-", stdin=small_members) < STREAMING


@pytest.mark.exhaustive(sample=False)
def test_cat_remembers_16_bytes_a_key(small_members: Path) -> None:
    """Repeated keys are found; that needs numpy once there are many."""
    assert resident_bytes("cat", small_members) < (80 << 20) + 16 * 200_000


@pytest.mark.exhaustive
def test_unpacking_large_members(large_members: Path, tmp_path: Path) -> None:
    used = resident_bytes("cat", "--to", f"{tmp_path}/", "--limit", 1, "-", stdin=large_members)
    assert used < STREAMING
    assert (tmp_path / "s0.bin").stat().st_size == 50_000_000


@pytest.mark.exhaustive
def test_shuffle(small_members: Path, large_members: Path, tmp_path: Path) -> None:
    used = resident_bytes("shuffle", small_members, "-o", tmp_path / "out-%d.tar", "-j", 1)
    assert used < (100 << 20) + 64 * 200_000
    used = resident_bytes("shuffle", large_members, "-o", "/dev/null", "-j", 1)
    assert used < 100 << 20
