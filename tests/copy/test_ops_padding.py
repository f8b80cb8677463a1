"""What lies behind payloads in the input never reaches the output."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from reorders import shuffle

from wdscli.ops.cat import cat
from wdscli.plan.request import Request
from wdscli.tar import TarWriter, core

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


@pytest.mark.parametrize("compiled", [None, core.CORE], ids=["plain", "compiled"])
@pytest.mark.parametrize("operation", [cat, shuffle])
def test_padding_is_written_as_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: object, compiled: object
) -> None:
    monkeypatch.setattr("wdscli.tar.core.CORE", compiled)
    written = []
    for dirty in (False, True):
        source = shard(tmp_path / f"{dirty}.tar", dirty=dirty)
        out = tmp_path / f"out-{dirty}.tar"
        operation(Request([source], str(out)))  # type: ignore[operator]
        written.append(out.read_bytes())
    assert b"\xff" in (tmp_path / "True.tar").read_bytes()
    assert written[0] == written[1]
