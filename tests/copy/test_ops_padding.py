"""What lies behind payloads in the input never reaches the output."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from wdscli.copy.copier import clear_padding
from wdscli.ops.cat import cat
from wdscli.ops.shuffle import shuffle
from wdscli.plan.request import Request
from wdscli.tar import TarWriter

SIZES = [0, 1, 511, 512, 513, 3 << 18, 700_001, 5]


def shard(path: Path, *, dirty: bool) -> str:
    """A shard of members of many sizes; a dirty one has other bytes than zeros in its padding."""
    buffer = io.BytesIO()
    with TarWriter(buffer) as tar:
        for number, size in enumerate(SIZES):
            tar.add(b"n%d.bin" % number, b"\7" * size)
    data = bytearray(buffer.getvalue())
    at = 0
    for size in SIZES:
        at += 512 + size
        pad = -size % 512
        if dirty:
            data[at : at + pad] = b"\xff" * pad
        at += pad
    path.write_bytes(data)
    return str(path)


@pytest.mark.parametrize("operation", [cat, shuffle])
def test_padding_is_written_as_zeros(tmp_path: Path, operation: object) -> None:
    written = []
    for dirty in (False, True):
        source = shard(tmp_path / f"{dirty}.tar", dirty=dirty)
        out = tmp_path / f"out-{dirty}.tar"
        operation(Request([source], str(out)))  # type: ignore[operator]
        written.append(out.read_bytes())
    assert b"\xff" in (tmp_path / "True.tar").read_bytes()
    assert written[0] == written[1]


@pytest.mark.parametrize("piece", [512, 700, 1024, 4096])
def test_padding_that_lies_in_several_pieces_is_cleared(piece: int) -> None:
    sizes = [1, 600, 0, 1030, 512]
    offsets, at = [], 512
    for size in sizes:
        offsets.append(at)
        at += (size + 511 & -512) + 512
    data = bytearray(b"x" * at)
    member = 0
    for base in range(0, at, piece):
        member = clear_padding(memoryview(data)[base : base + piece], base, offsets, sizes, member)
    for offset, size in zip(offsets, sizes, strict=True):
        end = offset + size
        assert data[end : end + (-size % 512)] == bytes(-size % 512)
        assert data[offset:end] == b"x" * size
    assert data.count(0) == sum(-size % 512 for size in sizes)
