"""Where the loader's writers put a shard that is no plain file of its own: a file object, or something compressed.

What it is: :class:`StreamEnd`, which takes samples as a :class:`~wdscli.shards.writing.ShardFile` does but has no
index and no facts to tell, and :func:`packing`, which says whether and how to compress. Compressed streams have no
clock and no name in them: the same samples give the same bytes. It must not know how samples are encoded.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any, Protocol

from wdscli.codecs.encode import GZIP_HEADER
from wdscli.errors import OutputError, UsageError
from wdscli.shards.writing import Payload
from wdscli.storage import is_stream, open_sink
from wdscli.tar import Form
from wdscli.tar import TarWriter as MemberWriter

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


class _Packed:
    """What compresses on the way to a file object."""

    def __init__(self, target: Any, kind: str | None) -> None:
        self._target = target
        self._compressor = None if kind is None else _compressor(kind)

    def write(self, data: Payload, /) -> None:
        self._put(data if self._compressor is None else self._compressor.compress(bytes(data)))

    def _put(self, data: Payload) -> None:
        """All of ``data``: a file object without a buffer may take less at a time."""
        rest = memoryview(data)
        while len(rest):
            taken = self._target.write(rest)
            if taken is None:  # what has a write() and no answer took all
                return
            if not 0 < taken <= len(rest):
                raise OutputError(f"a file object took {taken} of {len(rest)} bytes")
            rest = rest[taken:]

    def finish(self) -> None:
        if self._compressor is not None:
            self._put(self._compressor.flush())
        flush = getattr(self._target, "flush", None)
        if flush is not None:
            flush()


class StreamEnd:
    """One archive to a file object, which stays open, or compressed to an address, which gets its name at
    :meth:`commit`. After :meth:`discard` a file object holds an archive without an end, which readers notice."""

    def __init__(
        self, target: Any, kind: str | None, form: Form, *, force: bool = False, fsync: bool = False
    ) -> None:
        self._sink = (
            open_sink(target, force=force, fsync=fsync, packed=True) if isinstance(target, str) else None
        )
        self._packed = _Packed(target if self._sink is None else self._sink, kind)
        self._tar = MemberWriter(self._packed, form)

    @property
    def position(self) -> int:
        """Bytes of the archive so far, before compression and without its end."""
        return self._tar.position

    def write(self, key: bytes, fields: Sequence[tuple[bytes, Payload]]) -> None:
        """One sample, names checked."""
        for field, payload in fields:
            self._tar.add(key + b"." + field, payload)

    def commit(self) -> None:
        """The end of the archive, and all that was held back."""
        self._tar.close()
        self._packed.finish()
        if self._sink is not None:
            self._sink.commit()

    def discard(self) -> None:
        """Leave nothing under an address; a no-op after :meth:`commit`."""
        if self._sink is not None:
            self._sink.discard()
