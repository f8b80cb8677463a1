"""This module defines the two ends of every command: a Source to read from, and a Sink to write to.

This module has the contracts, and what all implementations share (buffers for small writes, context managers). An
implementation has only ``read_at``/``read_some``/``close``, or ``_put``/``_commit``/``_discard``. The classes are in
``local``, ``streams``, ``compressed``, ``blocks``, ``ranges`` and ``uploads``, and ``opening`` chooses one of them.
This module does not know any kind of address.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

from wdscli.errors import InputError, OutputError, OutputExistsError

SMALL_BYTES = 1 << 16
"""The buffer size for small reads and writes, and the size of the first look at either end of a remote file."""
PIECE_BYTES = 1 << 20
"""The size of one piece when all of something is read."""
LARGE_BYTES = 1 << 23
"""The size limit of one read, one request and one part of an upload."""

Data = bytes | bytearray | memoryview


def replaced(name: str, offset: int | None = None) -> InputError:
    """The error for a file that changed while it was read."""
    where = "" if offset is None else f", from byte {offset}"
    return InputError(
        f"cannot read {name}{where}: it was replaced or changed while it was read",
        hint="read it again when no other program writes there",
    )


def taken(name: str) -> OutputExistsError:
    """The error for an output that exists already."""
    return OutputExistsError(f"cannot write {name}: it exists already", hint="--force replaces it")


class Source:
    """Bytes by offset, for one reader at a time, which also closes it.

    ``name`` is the given address. ``size`` is the number of bytes, or None for a stream whose end was not
    reached yet. ``seekable`` says whether reads may be in any order; otherwise offsets only rise, and the bytes between
    are skipped. ``fd`` is the descriptor of a plain local file, for ``os.preadv`` and ``os.copy_file_range``, else
    None. ``version`` is a text that changes with the bytes at the address (a time of change, an ETag), or empty if it
    is unknown. All bytes of one source are of one version: if ``is_pinned``, every read is checked, else
    :meth:`confirm` checks them. ``note`` is the note that was stored with the object (:class:`Sink`), known after the
    first read.
    """

    __slots__ = ("fd", "is_pinned", "name", "note", "seekable", "size", "version")

    def __init__(self, name: str, *, size: int | None, seekable: bool, fd: int | None = None) -> None:
        self.name = name
        self.size = size
        self.seekable = seekable
        self.fd = fd
        self.version = ""
        self.note = ""
        self.is_pinned = False

    def read_at(self, offset: int, length: int) -> bytes:
        """``length`` bytes from ``offset``, fewer only at the end.

        Raises InputError if the bytes cannot be read, and DataError (``truncated``, ``corrupt``) for a compressed
        stream that is cut or damaged. An implementation has this method or :meth:`read_some`.
        """
        data = self.read_some(offset, length)
        if len(data) >= length or not data:
            return data
        # The kernel returns at most 2 GiB at once, and a stream what has arrived. Only an empty read is the end.
        parts, have = [data], len(data)
        while have < length and data:
            data = self.read_some(offset + have, length - have)
            parts.append(data)
            have += len(data)
        return b"".join(parts)

    def read_into(self, offset: int, view: memoryview) -> int:
        """:meth:`read_at` into a buffer. Returns the number of bytes, 0 only at the end."""
        data = self.read_at(offset, len(view))
        view[: len(data)] = data
        return len(data)

    def read_some(self, offset: int, length: int) -> bytes:
        """At most ``length`` bytes from ``offset``, as soon as there are any; none only at the end."""
        return self.read_at(offset, length)

    def expect(
        self, ranges: Iterable[tuple[int, int]], *, gap_bytes: int | None = None, keep: bool = False
    ) -> None:
        """Announce the ranges (first byte, byte after the last) that will be read next, in any order. A remote source
        fetches them ahead of the reads, and joins ranges with a gap of less than ``gap_bytes`` (None: as long as it is
        cheaper than another request). Other reads cost one request each. Earlier ranges are forgotten; with ``keep``
        they stay as long as there is room."""

    def peek(self, length: int) -> bytes:
        """The first bytes of a source that was not read yet."""
        return self.read_at(0, length)

    def pieces(self, start: int = 0) -> Iterator[bytes]:
        """All bytes from ``start`` on, in pieces."""
        if self.seekable and self.size is not None:
            self.expect([(start, self.size)])
        while data := self.read_some(start, PIECE_BYTES):
            yield data
            start += len(data)

    @property
    def stored(self) -> Source:
        """The source of the bytes as they are stored: another source if this one decompresses them."""
        return self

    def confirm(self) -> None:
        """Call this after the last read: raise InputError if the bytes at the address were replaced or changed
        meanwhile. It does nothing for a stream and for a pinned source."""

    def close(self) -> None:
        """Close descriptors and processes. May be called twice; leaving a stream early is no error."""

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class DigestedSource(Source):
    """A source that passes every byte of ``source`` once and in order to ``update`` while it is read, so that a
    checksum needs no second pass. Skipped bytes are read too, except for long gaps; :meth:`read_rest` reads those at
    the end. Closes ``source``."""

    __slots__ = ("_digested", "_source", "_update")

    def __init__(self, source: Source, update: Callable[[bytes], None]) -> None:
        super().__init__(source.name, size=source.size, seekable=True)
        self.version, self.is_pinned = source.version, source.is_pinned
        self._source, self._update = source, update
        self._digested = 0
        source.expect([(0, source.size or 0)])

    def read_at(self, offset: int, length: int) -> bytes:
        if offset - self._digested <= LARGE_BYTES:
            self._read_to(offset)
        data = self._source.read_at(offset, length)
        if offset <= self._digested < offset + len(data):
            self._update(data[self._digested - offset :])
            self._digested = offset + len(data)
        return data

    def _read_to(self, end: int) -> None:
        while self._digested < end and (
            data := self._source.read_some(self._digested, min(PIECE_BYTES, end - self._digested))
        ):
            self._update(data)
            self._digested += len(data)

    def read_rest(self) -> None:
        """Digest the bytes that were not read."""
        self._read_to(self.size or 0)

    def confirm(self) -> None:
        self._source.confirm()

    def close(self) -> None:
        self._source.close()


class NotCopied(Exception):
    """The store did not copy the object. Nothing was written; read and write it instead."""


class Sink:
    """A destination for bytes in order. Except for streams, nothing has the name ``name`` before :meth:`commit`.

    As a context manager it commits at the end of the block, and discards on any exception, KeyboardInterrupt included.
    After either, or after a failed write, only ``discard`` may be called, and does nothing. ``written`` is the number
    of bytes so far. ``fd`` is the descriptor of a plain local file, for ``os.copy_file_range``, else None: call
    :meth:`flush` before writing to it, and :meth:`wrote` after. After commit, ``version`` distinguishes these bytes
    from others of the same name (:func:`~wdscli.storage.opening.current_versions`); ``stored_version`` is the version
    as an index keeps it, or empty if it does not identify the bytes. Before commit, ``note`` may be set to a short
    ASCII text, which S3 stores with a small object; other sinks ignore it. ``waits`` says that :meth:`commit` mostly
    waits for requests, so that another thread may call it; ``held_bytes`` is the memory that the sink uses until
    then."""

    fd: int | None = None
    waits = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.written = 0
        self.version = self.stored_version = self.note = ""
        self._small: list[bytes] = []
        self._gathered = 0
        self._open = True

    def write(self, data: Data, /) -> int:
        """Write all of ``data``, whose buffer may be reused. Raises OutputError, or BrokenPipeError for ``-``."""
        if not self._open:
            raise OutputError(f"cannot write {self.name}: it is closed")
        size = len(data)
        self.written += size
        if size >= SMALL_BYTES:
            self.flush()
            self._take(data)
        else:
            self._small.append(data if isinstance(data, bytes) else bytes(data))
            self._gathered += size
            if self._gathered >= SMALL_BYTES:
                self.flush()
        return size

    def flush(self) -> None:
        """Write the gathered small pieces."""
        if self._small:
            small, self._small, self._gathered = self._small, [], 0
            self._take(b"".join(small) if len(small) > 1 else small[0])

    def _take(self, data: Data) -> None:
        try:
            self._put(data)
        except BaseException:
            self.discard()
            raise

    def copy_of(self, address: str, version: str, size: int) -> None:
        """Instead of bytes: at :meth:`commit`, have the store copy the object at another address, of this stored
        version, or link the file there. Both methods raise NotCopied if it cannot; the sink is useless then."""
        raise NotCopied

    @property
    def held_bytes(self) -> int:
        return self._gathered

    def check_free(self) -> None:
        """Wait for the check of the name. Raises OutputExistsError or another OutputError that it found."""

    def wrote(self, size: int) -> None:
        """Count ``size`` bytes that were written directly to ``fd``."""
        self.written += size

    def commit(self) -> None:
        """Publish the bytes under ``name`` atomically; on any error nothing new appears there."""
        if not self._open:
            raise OutputError(f"cannot commit {self.name}: it is closed")
        try:
            self.flush()
            self._commit()
        except BaseException:
            self.discard()
            raise
        self._open = False

    def discard(self) -> None:
        """Drop the bytes and leave nothing behind. Never raises an error if they are gone already."""
        if self._open:
            self._open = False
            self._small = []
            self._discard()

    def __del__(self) -> None:
        # A sink that is forgotten was not committed. fsspec's own files would commit.
        with contextlib.suppress(Exception):
            self.discard()

    def _put(self, data: Data) -> None:
        raise NotImplementedError

    def _commit(self) -> None:
        raise NotImplementedError

    def _discard(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Sink:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None:
            self.commit()
        else:
            self.discard()
