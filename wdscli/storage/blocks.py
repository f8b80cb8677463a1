"""This module compresses shards in blocks. Each block can be decompressed alone, so a shard can be read from any place.

:func:`packer_for` returns the compressor for an output's name. :func:`open_blocks` opens a source that decompresses
only the blocks that are read.

- A zstd shard is a sequence of frames of 4 MiB, each with its checksum. The table of zstd's seekable format follows.
- A gzip shard is one member, because streaming readers, such as tarfile's ``r|*`` in webdataset, stop after the first
member. The compressor is reset every 256 KiB by a full flush. The table, with a CRC of each block, is in the extra
fields of empty members at the end. gzip is always written by zlib, because isal writes other bytes.
- bzip2, xz and lz4 shards are one stream without blocks.

No name, time or system is written, so the same version of a compressor gives the same bytes everywhere.

A table is compared with the file. Its sizes must add up to the file's size, and each block must have the size and
checksum of its entry. A process keeps 32 MiB of decompressed blocks. This module does not know tar.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, count
from typing import Any, NamedTuple

from wdscli.errors import DataError, UsageError
from wdscli.storage.addresses import is_stream
from wdscli.storage.ends import PIECE_BYTES, SMALL_BYTES, Data, Source
from wdscli.threads import Recent

ZSTD_FRAME_BYTES = 4 << 20
"""Size of a frame. With frames of 1 MiB, text is about 5 % larger than with one frame; with frames of 4 MiB, it is 1.5
% larger. Pictures do not become larger."""
GZIP_BLOCK_BYTES = 256 << 10
"""Size of a gzip block. With blocks of this size, text is 0.4 to 0.7 % larger than with one block."""
MOST_BLOCK_BYTES = 64 << 20
"""A file with larger blocks is read as a stream."""
HELD_BYTES = 32 << 20
_ZSTD_LEVEL, _GZIP_LEVEL, _BZIP2_LEVEL, _XZ_PRESET = 3, 6, 9, 6
"""The default levels of the command-line programs for these formats."""

# RFC 1952, 2.3: magic, deflate, flags, no time, no extra flags, unknown system.
_GZIP_HEAD = b"\x1f\x8b\x08%c\0\0\0\0\0\xff"
_EXTRA = 4
_EMPTY_DEFLATE = b"\x03\0" + bytes(8)
_ENTRY = struct.Struct("<III")
"""A gzip block in the table: compressed size, size, CRC-32."""
_FIELD = struct.Struct("<H2sH")
"""The length of all extra fields, then the name and the length of the only field."""
_FOOTER = struct.Struct("<8sQQ")
"""The mark, the number of blocks, and the size of the members with the table."""
_FOOTER_MARK = b"wdsblock"
_FOOTER_MEMBER_BYTES = len(_GZIP_HEAD % 0) + _FIELD.size + _FOOTER.size + len(_EMPTY_DEFLATE)
_ENTRIES_PER_MEMBER = (0xFFFF - 4) // _ENTRY.size
# zstd's seekable format, 0.1.0: a skippable frame with the entries, the number of frames, a descriptor and a magic
# number.
_SEEK_HEAD = struct.Struct("<II")
_SEEK_MAGIC = 0x184D2A5E
_SEEK_FOOTER = struct.Struct("<IBI")
_SEEKABLE_MAGIC = 0x8F92EAB1

Put = Callable[[Data], object]


def kind_of_name(address: str) -> str | None:
    """Return the compression that an output's name requests. Return None for an uncompressed name and for a command.

    >>> kind_of_name("train-000000.tar.zst"), kind_of_name("a.tgz"), kind_of_name("a.tar")
    ('zstd', 'gzip', None)
    """
    return None if is_stream(address) else _KINDS.get(address.rpartition(".")[2])


_KINDS = {
    "gz": "gzip", "tgz": "gzip", "bz2": "bzip2", "tbz": "bzip2", "tbz2": "bzip2",
    "xz": "xz", "txz": "xz", "zst": "zstd", "tzst": "zstd", "lz4": "lz4",
}  # fmt: skip


FILLER = b"\xff"
"""The byte that replaces lost bytes. Neither a header nor the end of an archive begins with this byte."""
WITH_BLOCKS = ("gzip", "zstd")
"""Formats that are written in blocks and can be read at any offset."""


def packer_for(kind: str, put: Put) -> Packer:
    """Return a compressor that writes to ``put``. Raises UsageError with the install command if it is not installed."""
    try:
        if kind == "gzip":
            return _GzipPacker(put)
        if kind == "zstd":
            return _ZstdPacker(put)
        return _StreamPacker(put, kind)
    except ImportError as error:
        raise UsageError(f"cannot write shards compressed with {kind}", hint=how_to_install(kind)) from error


def how_to_install(kind: str) -> str:
    """Return the hint for a missing compressor."""
    return "pip install 'wdscli[zstd]'" if kind in ("zstd", "lz4") else "this Python was built without it"


class Packer:
    """A compressor. :meth:`write` takes bytes, and the caller may reuse their buffer. :meth:`finish` ends the stream.
    The output of some compressors depends on the pieces that they get. So they always get pieces of ``piece_bytes``;
    only the last piece is shorter."""

    piece_bytes: int

    def __init__(self, put: Put) -> None:
        self._put = put
        self._piece = bytearray()

    def write(self, data: Data, /) -> None:
        view = memoryview(data).cast("B")
        while len(view):
            # Keep a full piece until another byte shows that it is not the last piece.
            if len(self._piece) == self.piece_bytes:
                self._pack(bytes(self._piece), is_last=False)
                self._piece = bytearray()
            chunk = view[: self.piece_bytes - len(self._piece)]
            self._piece += chunk
            view = view[len(chunk) :]

    def finish(self) -> None:
        self._pack(bytes(self._piece), is_last=True)
        self._end()

    def _pack(self, piece: bytes, is_last: bool) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        """Write the bytes after the last piece."""


class _StreamPacker(Packer):
    """The compressor for a format without blocks."""

    piece_bytes = PIECE_BYTES

    def __init__(self, put: Put, kind: str) -> None:
        super().__init__(put)
        self._packer: Any
        if kind == "bzip2":
            from bz2 import BZ2Compressor

            self._packer = BZ2Compressor(_BZIP2_LEVEL)
        elif kind == "xz":
            import lzma

            self._packer = lzma.LZMACompressor(check=lzma.CHECK_CRC64, preset=_XZ_PRESET)
        else:
            from lz4.frame import LZ4FrameCompressor

            self._packer = LZ4FrameCompressor(content_checksum=True)
            put(self._packer.begin())

    def _pack(self, piece: bytes, is_last: bool) -> None:
        self._put(self._packer.compress(piece))
        if is_last:
            self._put(self._packer.flush())


class _ZstdPacker(Packer):
    """Writes frames with content checksums, then a table for seeking."""

    piece_bytes = ZSTD_FRAME_BYTES

    def __init__(self, put: Put) -> None:
        import zstandard

        super().__init__(put)
        self._compressor = zstandard.ZstdCompressor(
            level=_ZSTD_LEVEL, write_checksum=True, write_content_size=True
        )
        self._entries = bytearray()

    def _pack(self, piece: bytes, is_last: bool) -> None:
        packed = self._compressor.compress(piece)
        self._entries += _SEEK_HEAD.pack(len(packed), len(piece))
        self._put(packed)

    def _end(self) -> None:
        size = len(self._entries) + _SEEK_FOOTER.size
        frames = len(self._entries) // _SEEK_HEAD.size
        footer = _SEEK_FOOTER.pack(frames, 0, _SEEKABLE_MAGIC)
        self._put(_SEEK_HEAD.pack(_SEEK_MAGIC, size) + self._entries + footer)


class _GzipPacker(Packer):
    """Writes one member with a flush after each block, then the table in empty members."""

    piece_bytes = GZIP_BLOCK_BYTES

    def __init__(self, put: Put) -> None:
        super().__init__(put)
        self._deflate = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._crc = self._size = 0
        self._entries: list[bytes] = []
        put(_GZIP_HEAD % 0)

    def _pack(self, piece: bytes, is_last: bool) -> None:
        end = zlib.Z_FINISH if is_last else zlib.Z_FULL_FLUSH
        packed = self._deflate.compress(piece) + self._deflate.flush(end)
        self._crc = zlib.crc32(piece, self._crc)
        self._size += len(piece)
        self._entries.append(_ENTRY.pack(len(packed), len(piece), zlib.crc32(piece)))
        self._put(packed)

    def _end(self) -> None:
        self._put(struct.pack("<II", self._crc, self._size & 0xFFFFFFFF))
        table = b"".join(
            _empty_member(b"WB", b"".join(self._entries[first : first + _ENTRIES_PER_MEMBER]))
            for first in range(0, len(self._entries), _ENTRIES_PER_MEMBER)
        )
        self._put(table + _empty_member(b"WE", _FOOTER.pack(_FOOTER_MARK, len(self._entries), len(table))))


def _empty_member(name: bytes, data: bytes) -> bytes:
    """Return an empty gzip member with ``data`` in its extra field (RFC 1952, 2.3.1.1)."""
    return _GZIP_HEAD % _EXTRA + _FIELD.pack(4 + len(data), name, len(data)) + data + _EMPTY_DEFLATE


class Block(NamedTuple):
    """An entry of a table. ``checksum`` is None if the block contains its own checksum."""

    begin: int
    packed_bytes: int
    size_bytes: int
    checksum: int | None


def open_blocks(source: Source, kind: str) -> Source | None:
    """Open ``source``, a compressed file with a table of blocks, so that its contents can be read at any offset. Return
    None if there is no table. Raises the errors of ``source``."""
    size = source.size
    if not source.seekable or size is None or kind not in WITH_BLOCKS:
        return None
    # For most shards, this read of the file's end contains the whole table.
    tail = source.read_at(max(0, size - SMALL_BYTES), SMALL_BYTES)
    blocks = (_gzip_blocks if kind == "gzip" else _zstd_blocks)(source, size, tail)
    if not blocks or max(block.size_bytes for block in blocks) > MOST_BLOCK_BYTES:
        return None
    return BlockSource(source, kind, blocks)


def _end_of(source: Source, size: int, tail: bytes, length: int) -> bytes:
    """Return the last ``length`` bytes of a file. ``tail`` has its last bytes, which are already known."""
    return tail[-length:] if length <= len(tail) else source.read_at(size - length, length)


def _zstd_blocks(source: Source, size: int, tail: bytes) -> list[Block]:
    if len(tail) < _SEEK_FOOTER.size:
        return []
    frames, flags, magic = _SEEK_FOOTER.unpack(tail[-_SEEK_FOOTER.size :])
    entry = struct.Struct("<III" if flags & 0x80 else "<II")
    length = _SEEK_HEAD.size + frames * entry.size + _SEEK_FOOTER.size
    if magic != _SEEKABLE_MAGIC or flags & 0x7C or length > size:
        return []
    table = _end_of(source, size, tail, length)
    if _SEEK_HEAD.unpack(table[: _SEEK_HEAD.size]) != (_SEEK_MAGIC, length - _SEEK_HEAD.size):
        return []
    entries = entry.iter_unpack(table[_SEEK_HEAD.size : -_SEEK_FOOTER.size])
    return _placed(0, size - length, entries)


def _gzip_blocks(source: Source, size: int, tail: bytes) -> list[Block]:
    member = tail[-_FOOTER_MEMBER_BYTES:]
    offset = len(_GZIP_HEAD % 0) + _FIELD.size
    if len(member) < _FOOTER_MEMBER_BYTES or member[offset : offset + len(_FOOTER_MARK)] != _FOOTER_MARK:
        return []
    _, block_count, length = _FOOTER.unpack(member[offset : offset + _FOOTER.size])
    if length + _FOOTER_MEMBER_BYTES > size or block_count * _ENTRY.size > length:
        return []
    table = _end_of(source, size, tail, length + _FOOTER_MEMBER_BYTES)[:length]
    entries = b"".join(_extra_fields(table))
    if len(entries) != block_count * _ENTRY.size:
        return []
    head = len(_GZIP_HEAD % 0)
    return _placed(head, size - length - len(member) - 8, _ENTRY.iter_unpack(entries))


def _extra_fields(table: bytes) -> Iterator[bytes]:
    """Yield the data in the members of a table."""
    head, offset = len(_GZIP_HEAD % 0), 0
    while offset + head + _FIELD.size <= len(table):
        _, _, length = _FIELD.unpack(table[offset + head : offset + head + _FIELD.size])
        offset += head + _FIELD.size
        yield table[offset : offset + length]
        offset += length + len(_EMPTY_DEFLATE)


def _placed(begin: int, end: int, entries: Iterable[tuple[int, ...]]) -> list[Block]:
    """Return the blocks of a table with their places. Return None if they do not fill the file from ``begin`` to
    ``end``. If files were concatenated, the table describes only the last file."""
    blocks = []
    for packed_bytes, size_bytes, *checksum in entries:
        blocks.append(Block(begin, packed_bytes, size_bytes, checksum[0] if checksum else None))
        begin += packed_bytes
    return blocks if begin == end else []


class BlockSource(Source):
    """The contents of a compressed file with blocks. ``stored`` is the file, which this source closes."""

    def __init__(self, stored: Source, kind: str, blocks: list[Block]) -> None:
        starts = [0, *accumulate(block.size_bytes for block in blocks)]
        super().__init__(stored.name, size=starts[-1], seekable=True)
        self.version = stored.version
        self._stored, self._kind = stored, kind
        self._number_of_source = next(_NUMBERS)
        self._blocks, self._starts = blocks, starts
        self._unpack = _gzip_unpacker() if kind == "gzip" else _zstd_unpacker()
        self._errors = (ValueError, _error_of(kind))
        self._report: Callable[[DataError], None] | None = None
        self._broken: set[int] = set()

    def go_on(self, report: Callable[[DataError], None]) -> None:
        """From now on, read damaged blocks as :data:`FILLER`, and call ``report`` once with each error. This is for a
        reader that searches for all damage, and does not use payloads."""
        self._report = report

    def is_lost(self, offset: int) -> bool:
        """Return whether a byte is in a damaged block."""
        return 0 <= offset < self._starts[-1] and self._number(offset) in self._broken

    @property
    def stored(self) -> Source:
        return self._stored

    def expect(
        self, ranges: Iterable[tuple[int, int]], *, gap_bytes: int | None = None, keep: bool = False
    ) -> None:
        self._stored.expect(
            [
                (self._blocks[self._number(begin)].begin, sum(self._blocks[self._number(end - 1)][:2]))
                for begin, end in ranges
                if begin < end
            ],
            gap_bytes=gap_bytes,
            keep=keep,
        )

    def _number(self, offset: int) -> int:
        """Return the number of the block with a byte. For a byte after the end, return the last block."""
        return min(bisect_right(self._starts, offset) - 1, len(self._blocks) - 1)

    def read_some(self, offset: int, length: int) -> bytes:
        if length <= 0 or offset >= self._starts[-1]:
            return b""
        number = self._number(offset)
        block_offset = offset - self._starts[number]
        key = self._number_of_source, number
        data = _HELD.used(key)
        if data is None:
            data = _HELD.keep(key, self._block(number))
        return data[block_offset : block_offset + length]

    def _block(self, number: int) -> bytes:
        try:
            return self._unpacked(number)
        except DataError as error:
            if self._report is None:
                raise
            if number not in self._broken:
                self._broken.add(number)
                self._report(error)
            return FILLER * self._blocks[number].size_bytes

    def _unpacked(self, number: int) -> bytes:
        """Return one decompressed block. Raises DataError if it does not match its entry or checksum."""
        block = self._blocks[number]
        packed = self._stored.read_at(block.begin, block.packed_bytes)
        try:
            if len(packed) != block.packed_bytes:
                raise ValueError("the file ends before this block")
            data = self._unpack(packed, block, number == len(self._blocks) - 1)
            if len(data) != block.size_bytes:
                raise ValueError(
                    f"it has {len(data)} bytes instead of the {block.size_bytes} bytes in the table"
                )
        except self._errors as error:
            raise DataError(
                f"the {self._kind} stream is corrupt in the block at this byte ({error})",
                code="corrupt",
                shard=self.name,
                offset=block.begin,
                hint="copy the file again",
            ) from error
        return data

    def confirm(self) -> None:
        self._stored.confirm()

    def close(self) -> None:
        for key in [key for key in list(_HELD) if key[0] == self._number_of_source]:
            _HELD.forget(key)
        self._stored.close()


_NUMBERS = count()
Unpack = Callable[[bytes, Block, bool], bytes]
"""A function that decompresses a block. Its arguments are the bytes, the entry, and whether it is the last block."""


def _error_of(kind: str) -> type[Exception]:
    """Return the library's error class for damaged bytes."""
    if kind == "zstd":
        import zstandard

        return zstandard.ZstdError
    error_class: type[Exception] = inflating().error
    return error_class


def inflating() -> Any:
    """Return the library that reads gzip: isal, if the `fast` extra is installed, because it is twice as fast;
    otherwise zlib."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib
    return isal_zlib


def _zstd_unpacker() -> Unpack:
    import zstandard

    decompressor = zstandard.ZstdDecompressor()

    def unpack(packed: bytes, block: Block, is_last: bool) -> bytes:
        written = zstandard.frame_content_size(packed)
        if written >= 0 and written != block.size_bytes:
            raise ValueError(
                f"it has {written} bytes in its header, but {block.size_bytes} bytes in the table"
            )
        data = decompressor.decompress(packed, max_output_size=block.size_bytes, allow_extra_data=False)
        if block.checksum is not None:
            from xxhash import xxh64_intdigest

            if xxh64_intdigest(data) & 0xFFFFFFFF != block.checksum:
                raise ValueError("its checksum differs from the one in its table")
        return data

    return unpack


def _gzip_unpacker() -> Unpack:
    library = inflating()

    def unpack(packed: bytes, block: Block, is_last: bool) -> bytes:
        inflate = library.decompressobj(-zlib.MAX_WBITS)
        data: bytes = inflate.decompress(packed, block.size_bytes + 1)
        if inflate.eof != is_last or inflate.unused_data or inflate.unconsumed_tail:
            raise ValueError("the end of the block differs from the table")
        if library.crc32(data) != block.checksum:
            raise ValueError("its checksum differs from the one in its table")
        return data

    return unpack


_HELD: Recent[tuple[int, int], bytes] = Recent(HELD_BYTES, len)
"""The most recently used decompressed blocks of all sources in this process, by source and number."""
