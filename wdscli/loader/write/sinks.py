"""Where the loader's writers put a shard that is no plain file of its own: a file object, or something compressed.

What it is: :class:`PackedSink`, a sink like any other, of which a shard has no index, and :func:`packing`, which says
whether and how to compress. Compressed streams have no clock and no name in them: the same samples give the same bytes.
It must not know what is written.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, Protocol

from wdscli.codecs.encode import GZIP_HEADER
from wdscli.errors import OutputError, UsageError
from wdscli.storage import Sink, is_stream

Data = bytes | bytearray | memoryview
SUFFIXES = {"bz2": "bz2", "gz": "gz", "tgz": "gz", "xz": "xz"}
KINDS = ("gz", "bz2", "xz")


def packing(address: str | None, compress: bool | str | None) -> str | None:
    """``gz``, ``bz2``, ``xz`` or None: as ``compress`` says, and when that is None as the address ends. What goes to a
    command is not compressed unless asked for: ``pipe:gzip > x.tar.gz`` does it itself."""
    if compress is None:
        if address is None or is_stream(address):
            return None
        return SUFFIXES.get(address.rpartition(".")[2])
    if isinstance(compress, bool):
        return "gz" if compress else None
    if compress not in KINDS:
        raise UsageError(f'no such compression: "{compress}"', hint=", ".join(KINDS))
    return compress


class _Compressor(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...
    def flush(self) -> bytes: ...


class _Gzip:
    """A gzip stream whose header is the same everywhere (RFC 1952)."""

    def __init__(self) -> None:
        self._deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
        self._head = GZIP_HEADER
        self._crc = 0
        self._size = 0

    def compress(self, data: bytes, /) -> bytes:
        self._crc = zlib.crc32(data, self._crc)
        self._size += len(data)
        head, self._head = self._head, b""
        return head + self._deflate.compress(data)

    def flush(self) -> bytes:
        return self._head + self._deflate.flush() + struct.pack("<II", self._crc, self._size & 0xFFFFFFFF)


def _compressor(kind: str) -> _Compressor:
    if kind == "gz":
        return _Gzip()
    if kind == "bz2":
        import bz2

        return bz2.BZ2Compressor()
    import lzma

    return lzma.LZMACompressor()


class PackedSink(Sink):
    """Compresses, where ``kind`` is not None, on the way to another sink, or to a file object, which stays open. After
    :meth:`discard` a file object holds an archive without an end, which readers notice."""

    def __init__(self, name: str, target: Any, kind: str | None) -> None:
        super().__init__(name)
        self._target = target
        self._compressor = None if kind is None else _compressor(kind)

    def _put(self, data: Data) -> None:
        self._pass(data if self._compressor is None else self._compressor.compress(bytes(data)))

    def _pass(self, data: Data) -> None:
        """All of ``data``: a file object without a buffer may take less at a time."""
        rest = memoryview(data)
        while len(rest):
            taken = self._target.write(rest)
            if taken is None:  # what has a write() and no answer took all
                return
            if not 0 < taken <= len(rest):
                raise OutputError(f"a file object took {taken} of {len(rest)} bytes")
            rest = rest[taken:]

    def _commit(self) -> None:
        if self._compressor is not None:
            self._pass(self._compressor.flush())
        if isinstance(self._target, Sink):
            self._target.commit()
        elif hasattr(self._target, "flush"):
            self._target.flush()

    def _discard(self) -> None:
        if isinstance(self._target, Sink):
            self._target.discard()
