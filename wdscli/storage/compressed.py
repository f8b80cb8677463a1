"""Compressed shards, read as what they hold.

What it is: gzip, bzip2, xz, zstd and lz4 told by their first bytes, whatever the file is called, and decoded
as a stream. How: each format becomes a raw reader under a :class:`StreamSource`; a decoder is never asked for
more than one piece at a time, so that a small file that would unfold to terabytes costs no memory. Several
members (gzip) or frames (zstd) in a row are one stream. A stream that is cut or broken is a DataError at the
byte of the compressed file that was reached. It must not know tar beyond its magic, which settles what a
shard with an odd first name is.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Protocol

from wdscli.errors import DataError, InputError
from wdscli.storage.blocks import inflating, open_blocks
from wdscli.storage.ends import Source
from wdscli.storage.streams import StreamSource

CHUNK_BYTES = 1 << 17
_MAGICS = {
    b"\x1f\x8b\x08": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
}
_COMPRESS = b"\x1f\x9d"
"""What compress(1) writes, .Z: known by name only, since no library at hand decodes it."""
_SKIPPABLE_TAIL = b"\x2a\x4d\x18"
"""zstd (and lz4) frames of 0x184D2A50 to 0x184D2A5F hold notes for others; pzstd begins with one."""
_PADDED = ("gzip", "xz")
"""Formats whose members may be followed by zeros (tapes; xz says multiples of four)."""


def identify(head: bytes) -> str | None:
    """The compression whose stream begins with ``head`` (one block, or all there is), else None."""
    if head[257:262] == b"ustar":
        return None
    if len(head) >= 4 and head[1:4] == _SKIPPABLE_TAIL and head[0] >> 4 == 5:
        return "zstd"
    for magic, kind in _MAGICS.items():
        if head.startswith(magic):
            return kind
    return None


def decompressed(source: Source, head: bytes) -> Source:
    """``source`` itself when it is not compressed, else what it holds, as a source that owns ``source``: at any place
    where the file has a table of its blocks (:mod:`~wdscli.storage.blocks`), else as a stream.

    Raises InputError with the install command when the decoder is not there.
    """
    if head.startswith(_COMPRESS) and head[257:262] != b"ustar":
        raise InputError(
            f"cannot read {source.name}: it is compressed with compress(1), as .Z",
            hint="gzip decodes it: gzip -dc X.tar.Z | wds ... -, or write it anew: gzip -dc X.tar.Z > X.tar",
        )
    kind = identify(head)
    if kind is None:
        return source
    try:
        blocks = open_blocks(source, kind)
    except ImportError as error:
        raise _missing(kind, source.name) from error
    if blocks is not None:
        return blocks
    reader = _ZstdReader(source) if kind == "zstd" else _Expander(source, kind)
    return StreamSource(source.name, reader)


class _Reader:
    """What a source holds, as a raw reader. ``position`` is the byte of the compressed file that was reached."""

    def __init__(self, source: Source, kind: str) -> None:
        self._source, self._kind = source, kind
        self.position = 0

    def _more(self, length: int = CHUNK_BYTES) -> bytes:
        """The source's bytes from the first to the last, in chunks."""
        data = self._source.read_some(self.position, length)
        self.position += len(data)
        return data

    def close(self) -> None:
        self._source.close()

    def _cut(self) -> DataError:
        return DataError(
            f"the {self._kind} stream is cut short",
            code="truncated",
            shard=self._source.name,
            offset=self.position,
            hint="fetch the file again",
        )

    def _corrupt(self, error: Exception) -> DataError:
        return DataError(
            f"the {self._kind} stream is corrupt ({error})",
            code="corrupt",
            shard=self._source.name,
            offset=self.position,
        )


class _Decoder(Protocol):
    """One member. The shape of the standard library's bz2 and lzma decompressors."""

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes | None: ...

    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Inflater:
    """zlib's decoder (isal's has the same face) in the shape of the others."""

    def __init__(self, library: Any) -> None:
        self._inflate = library.decompressobj(31)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return bool(self._inflate.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._inflate.unused_data)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        out: bytes = self._inflate.decompress(self._inflate.unconsumed_tail + data, max_length)
        # A full answer may have left output inside, even with all input taken.
        self.needs_input = not self._inflate.unconsumed_tail and len(out) < max_length
        return out


class _Expander(_Reader):
    """Members of one format in a row, as one stream."""

    def __init__(self, source: Source, kind: str) -> None:
        super().__init__(source, kind)
        self._new, self._errors = _decoder(kind, source.name)
        self._decoder: _Decoder | None = self._new()
        self._pending = b""

    def read(self, length: int, /) -> bytes:
        while True:
            if self._decoder is None and not self._next_member():
                return b""
            out = self._step(length)
            if out:
                return out

    def _step(self, length: int) -> bytes:
        """One call of the decoder, with more input when it asks for some."""
        decoder = self._decoder
        assert decoder is not None
        if decoder.needs_input and not self._pending:
            self._pending = self._more()
            if not self._pending:
                raise self._cut()
        try:
            out = decoder.decompress(self._pending, length)
        except self._errors as error:
            raise self._corrupt(error) from error
        self._pending = b""
        if decoder.eof:
            self._pending, self._decoder = decoder.unused_data or b"", None
        return out

    def _next_member(self) -> bool:
        """Whether another member follows."""
        while True:
            if self._kind in _PADDED:
                self._pending = self._pending.lstrip(b"\0")
            if len(self._pending) >= 6:
                break
            more = self._more()
            if not more:
                break
            self._pending += more
        if not self._pending:
            return False
        if identify(self._pending) != self._kind:
            at = self.position - len(self._pending)
            raise DataError(
                f"bytes after the end of the {self._kind} stream",
                code="data-after-end",
                shard=self._source.name,
                offset=at,
            )
        self._decoder = self._new()
        return True


def _decoder(kind: str, name: str) -> tuple[Callable[[], _Decoder], tuple[type[Exception], ...]]:
    """(what makes a decoder, what it raises for bad bytes)."""
    try:
        if kind == "gzip":
            library = inflating()
            return (lambda: _Inflater(library)), (library.error,)
        if kind == "bzip2":
            from bz2 import BZ2Decompressor

            return BZ2Decompressor, (OSError, ValueError, EOFError)
        if kind == "xz":
            from lzma import LZMADecompressor, LZMAError

            return LZMADecompressor, (LZMAError, EOFError)
        from lz4.frame import LZ4FrameDecompressor

        return LZ4FrameDecompressor, (RuntimeError, EOFError)
    except ImportError as error:
        raise _missing(kind, name) from error


class _ZstdReader(_Reader):
    """zstd frames in a row. The library takes a cut stream for a whole one, so a walker follows it."""

    def __init__(self, source: Source) -> None:
        super().__init__(source, "zstd")
        try:
            import zstandard
        except ImportError as error:
            raise _missing("zstd", source.name) from error
        self._error = zstandard.ZstdError
        self._walker = FrameWalker()
        watched: Any = SimpleNamespace(read=self._watched)
        self._frames = zstandard.ZstdDecompressor().stream_reader(
            watched, read_size=CHUNK_BYTES, read_across_frames=True
        )

    def _watched(self, length: int) -> bytes:
        data = self._more(length)
        self._walker.feed(data)
        return data

    def read(self, length: int, /) -> bytes:
        try:
            data = self._frames.read1(length)
        except self._error as error:
            raise self._corrupt(error) from error
        if not data and not self._walker.finished:
            raise self._cut()
        return bytes(data)


class FrameWalker:
    """Follows zstd's frames and blocks (RFC 8878, section 3.1): does the stream end where a frame does?"""

    def __init__(self) -> None:
        self._skip = 0
        self._bytes = b""
        self._checksum = 0
        self._state = self._magic

    @property
    def finished(self) -> bool:
        """Whether all that came so far is whole frames."""
        return self._state == self._magic and not self._skip and not self._bytes

    def feed(self, data: bytes) -> None:
        position = 0
        while position < len(data):
            if self._skip:
                step = min(self._skip, len(data) - position)
                self._skip -= step
                position += step
                continue
            self._bytes += data[position : position + 1]
            position += 1
            self._state()

    def _magic(self) -> None:
        # 3.1.1: magic number 0xFD2FB528; 3.1.2: skippable frames have a size of 4 bytes after theirs.
        if len(self._bytes) == 4:
            if self._bytes[1:] == _SKIPPABLE_TAIL:
                self._state = self._skippable
            else:
                self._state = self._descriptor
            self._bytes = b""

    def _skippable(self) -> None:
        if len(self._bytes) == 4:
            self._skip = int.from_bytes(self._bytes, "little")
            self._bytes, self._state = b"", self._magic

    def _descriptor(self) -> None:
        # 3.1.1.1.1: content size flag (bits 7-6), single segment (5), checksum (2), dictionary id (1-0).
        flags = self._bytes[0]
        single = flags >> 5 & 1
        self._checksum = 4 if flags & 4 else 0
        content = (1 if single else 0, 2, 4, 8)[flags >> 6]
        self._skip = (0 if single else 1) + (0, 1, 2, 4)[flags & 3] + content
        self._bytes, self._state = b"", self._block

    def _block(self) -> None:
        # 3.1.1.2: last block (bit 0), type (1-2; 1 is one byte repeated), size.
        if len(self._bytes) == 3:
            header = int.from_bytes(self._bytes, "little")
            self._skip = 1 if header >> 1 & 3 == 1 else header >> 3
            self._bytes = b""
            if header & 1:
                self._skip += self._checksum
                self._state = self._magic


def _missing(kind: str, name: str) -> InputError:
    extra = "pip install 'wdscli[zstd]'" if kind in ("zstd", "lz4") else "this Python was built without it"
    return InputError(f"cannot read {name}: it is compressed with {kind}", hint=extra)
