"""Shards with one thing wrong with them, made by hand, for the tests of verify and its parts."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from wdscli.tar import END_OF_ARCHIVE, build_header, padding

GOOD = [
    (b"a.jpg", b"A" * 700),
    (b"a.cls", b"1"),
    (b"b.jpg", b"B" * 10),
    (b"b.cls", b"2"),
    (b"c.jpg", b"C"),
    (b"c.cls", b"3"),
]


def tar_member(name: bytes, payload: bytes = b"x") -> bytes:
    """One member, header to padding."""
    return build_header(name, len(payload)) + payload + padding(len(payload))


def tar_bytes(*members: tuple[bytes, bytes], end: bytes = END_OF_ARCHIVE) -> bytes:
    """A canonical archive."""
    return b"".join(tar_member(name, payload) for name, payload in members) + end


def good_tar() -> bytes:
    """Three samples, nothing wrong."""
    return tar_bytes(*GOOD)


def typed_tar(name: str, kind: bytes) -> bytes:
    """A good sample, then a member of another type, then another good sample."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for member, payload in GOOD[:2]:
            _add(tar, member.decode(), payload)
        info = tarfile.TarInfo(name)
        info.type = kind
        info.linkname = "a.jpg"
        tar.addfile(info)
        for member, payload in GOOD[2:4]:
            _add(tar, member.decode(), payload)
    return out.getvalue()


def _add(tar: tarfile.TarFile, name: str, payload: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(payload)
    tar.addfile(info, io.BytesIO(payload))


def sparse_tar() -> bytes:
    """A good sample and a pax sparse member."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for member, payload in GOOD[:2]:
            _add(tar, member.decode(), payload)
        info = tarfile.TarInfo("b.jpg")
        info.size = 4
        info.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "b.jpg"}
        tar.addfile(info, io.BytesIO(b"1234"))
    return out.getvalue()


def flipped(data: bytes, at: int, bit: int = 0) -> bytes:
    """``data`` with one bit changed."""
    changed = bytearray(data)
    changed[at] ^= 1 << bit
    return bytes(changed)


def write(folder: Path, data: bytes, name: str = "x.tar") -> str:
    """The address of a new file."""
    path = folder / name
    path.write_bytes(data)
    return str(path)
