"""This module reads the contents of compressed files as a stream.

It recognizes gzip, bzip2, xz, zstd and lz4 by their first bytes, not by the file's name. Each format has a raw reader,
which a :class:`StreamSource` reads. A decoder produces one piece at a time. So a small file that expands to terabytes
needs little memory. Several gzip members or zstd frames in a file are one stream. A truncated or damaged stream raises
DataError. The error names the byte reached in the compressed file.

Of the tar format, this module knows only the magic. It shows that a file is a plain tar, even if the first name in it
looks like a compressed file.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from wdscli.errors import DataError, InputError
from wdscli.storage.blocks import how_to_install, inflating, open_blocks
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
"""The magic of compress(1), .Z. This format is named in the error, but cannot be decoded."""
_SKIPPABLE_TAIL = b"\x2a\x4d\x18"
"""The last bytes of the magic numbers 0x184D2A50 to 0x184D2A5F, of zstd and lz4 frames that decoders skip. A file of
pzstd begins with such a frame."""
_PADDED = ("gzip", "xz")
"""Formats that allow zeros after members, for example from tapes. In xz their number is a multiple of four."""


def identify(head: bytes) -> str | None:
    """Return the compression of a stream that begins with ``head`` (one block, or the whole file). Return None for an
    uncompressed stream."""
    if head[257:262] == b"ustar":
        return None
    if len(head) >= 4 and head[1:4] == _SKIPPABLE_TAIL and head[0] >> 4 == 5:
        return "zstd"
    return next((kind for magic, kind in _MAGICS.items() if head.startswith(magic)), None)


def decompressed(source: Source, head: bytes) -> Source:
    """Return ``source`` itself if it is not compressed. Otherwise return a source of its contents, which will close
    ``source``. If the file has a table of blocks (:mod:`~wdscli.storage.blocks`), the contents can be read at any
    place. Otherwise they are a stream.

    Raises InputError with the install command if the decoder is not installed.
    """
    if head.startswith(_COMPRESS) and head[257:262] != b"ustar":
        raise InputError(
            f"cannot read {source.name}: it is a .Z file, compressed with compress(1)",
            hint="gzip decodes it: gzip -dc X.tar.Z | wds ... -, or convert it: gzip -dc X.tar.Z > X.tar",
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
    """A raw reader of the contents of a source. ``position`` is the byte reached in the compressed file."""

    def __init__(self, source: Source, kind: str) -> None:
        self._source, self._kind = source, kind
        self.position = 0

    def _more(self, length: int = CHUNK_BYTES) -> bytes:
        """Return the next bytes of the source."""
        data = self._source.read_some(self.position, length)
        self.position += len(data)
        return data

    def close(self) -> None:
        self._source.close()

    def _fault(self, what: str, code: str, hint: str | None = None, *, unread: int = 0) -> DataError:
        """Return the error at the byte reached in the file; the last ``unread`` bytes are not counted."""
        offset = self.position - unread
        return DataError(what, code=code, shard=self._source.name, offset=offset, hint=hint)

    def _cut(self) -> DataError:
        return self._fault(f"the {self._kind} stream is cut short", "truncated", "fetch the file again")

    def _corrupt(self, error: Exception) -> DataError:
        return self._fault(f"the {self._kind} stream is corrupt ({error})", "corrupt")


class _Inflater:
    """A decoder of zlib or isal, with the interface of bz2's and lzma's decompressors."""

    def __init__(self, library: Any) -> None:
        self._inflate = library.decompressobj(31)
        self.needs_input, self.eof, self.unused_data = True, False, b""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        inflate = self._inflate
        out: bytes = inflate.decompress(inflate.unconsumed_tail + data, max_length)
        # If the output is full, the decoder may have more output, even without more input.
        self.needs_input = not inflate.unconsumed_tail and len(out) < max_length
        self.eof, self.unused_data = inflate.eof, inflate.unused_data
        return out


class _Expander(_Reader):
    """Reads consecutive members of one format as one stream."""

    def __init__(self, source: Source, kind: str) -> None:
        super().__init__(source, kind)
        self._new, self._errors = _decoder(kind, source.name)
        self._decoder: Any = self._new()
        self._pending = b""

    def read(self, length: int, /) -> bytes:
        while True:
            if self._decoder is None and not self._next_member():
                return b""
            out = self._step(length)
            if out:
                return out

    def _step(self, length: int) -> bytes:
        """Call the decoder once, with more input if it needs input."""
        decoder = self._decoder
        if decoder.needs_input and not self._pending:
            self._pending = self._more()
            if not self._pending:
                raise self._cut()
        try:
            out: bytes = decoder.decompress(self._pending, length)
        except self._errors as error:
            raise self._corrupt(error) from error
        self._pending = b""
        if decoder.eof:
            self._pending, self._decoder = decoder.unused_data or b"", None
        return out

    def _next_member(self) -> bool:
        """Start the next member. Return False at the end. Raises DataError if other bytes follow."""
        while True:
            if self._kind in _PADDED:
                self._pending = self._pending.lstrip(b"\0")
            if len(self._pending) >= 6:
                break
            data = self._more()
            if not data:
                break
            self._pending += data
        if not self._pending:
            return False
        if identify(self._pending) != self._kind:
            what = f"bytes after the end of the {self._kind} stream"
            raise self._fault(what, "data-after-end", unread=len(self._pending))
        self._decoder = self._new()
        return True


def _decoder(kind: str, name: str) -> tuple[Callable[[], Any], tuple[type[Exception], ...]]:
    """Return a function that makes a decoder, and the decoder's error classes for damaged bytes."""
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
    """Reads consecutive zstd frames. The library does not detect a truncated stream, so a :class:`FrameWalker` follows
    the frames."""

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
    """Follows zstd's frames and blocks (RFC 8878, section 3.1), to find out whether the stream ends at the end of a
    frame."""

    def __init__(self) -> None:
        self._skip = 0
        self._bytes = b""
        self._checksum = 0
        self._state = self._magic

    @property
    def finished(self) -> bool:
        """Whether all bytes so far form complete frames."""
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
        # 3.1.1: magic number 0xFD2FB528; 3.1.2: in skippable frames, a size of 4 bytes follows the magic number.
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
    return InputError(f"cannot read {name}: it is compressed with {kind}", hint=how_to_install(kind))
