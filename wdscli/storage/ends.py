"""This module defines the interfaces for input and output: a Source to read from, and a Sink to write to.

This module has the contracts, and the common code: buffers for small writes, context managers. A source defines only
``read_at`` or ``read_some``, and ``close``. A sink defines only ``_put``, ``_commit`` and ``_discard``. The classes are
in ``local``, ``streams``, ``compressed``, ``blocks``, ``ranges`` and ``uploads``, and ``opening`` chooses the class for
an address. This module does not know any kind of address.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import accumulate, pairwise

from wdscli.arrays import I64, edges
from wdscli.errors import DataError, InputError, OutputError, OutputExistsError

SMALL_BYTES = 1 << 16
"""The buffer size for small reads and writes, and the size of the first read at the beginning or end of a remote
file."""
PIECE_BYTES = 1 << 20
"""The size of one piece if a whole file is read."""
LARGE_BYTES = 1 << 23
"""The largest size of one read, one request and one part of an upload."""
SEND_BYTES = 1 << 18
"""The most bytes that are given to a connection together."""

Data = bytes | bytearray | memoryview


def replaced(name: str, offset: int | None = None) -> InputError:
    """Return the error for a file that changed while it was read."""
    where = "" if offset is None else f", from byte {offset}"
    return InputError(
        f"cannot read {name}{where}: it was replaced or changed while it was read",
        hint="read it again when no other program writes there",
    )


def taken(name: str) -> OutputExistsError:
    """Return the error for an output that already exists."""
    return OutputExistsError(f"cannot write {name}: it exists already", hint="--force replaces it")


class EndsEarly(Exception):
    """A source ends at byte ``offset``, inside range number ``row`` of the ranges that are read together."""

    def __init__(self, name: str, offset: int, row: int) -> None:
        super().__init__(name, offset)
        self.name, self.offset, self.row = name, offset, row


class Source:
    """Bytes that are read by offset. A source has one reader at a time, and the reader closes it.

    ``name`` is the given address. ``size`` is the number of bytes; it is None for a stream until its end is reached.
    ``seekable`` says whether reads may be in any order. Otherwise offsets must rise, and the bytes between reads are
    skipped. ``fd`` is the descriptor of an uncompressed local file, for ``os.preadv`` and ``os.copy_file_range``;
    otherwise it is None. ``version`` is a text that changes with the bytes at the address (a time of change, an ETag);
    it is empty if unknown. All bytes of a source come from one version. If ``is_pinned`` is true, every read checks
    this; otherwise :meth:`confirm` checks it. ``note`` is the note stored with the object (:class:`Sink`). It is known
    after the first read.
    """

    def __init__(self, name: str, *, size: int | None, seekable: bool, fd: int | None = None) -> None:
        self.name = name
        self.size = size
        self.seekable = seekable
        self.fd = fd
        self.version = ""
        self.note = ""
        self.is_pinned = False

    def read_at(self, offset: int, length: int) -> bytes:
        """Return ``length`` bytes from ``offset``, or fewer only at the end.

        Raises InputError if the bytes cannot be read, and DataError (``truncated``, ``corrupt``) for a truncated or
        damaged compressed stream. A subclass defines this method or :meth:`read_some`.
        """
        data = self.read_some(offset, length)
        if len(data) >= length or not data:
            return data
        # The kernel returns at most 2 GiB at once, and a stream returns only the bytes that have arrived. Only an empty
        # read means the end.
        parts, have = [data], len(data)
        while have < length and data:
            data = self.read_some(offset + have, length - have)
            parts.append(data)
            have += len(data)
        return b"".join(parts)

    def read_into(self, offset: int, view: memoryview) -> int:
        """Read into a buffer, like :meth:`read_at`. Return the number of bytes. It is 0 only at the end."""
        data = self.read_at(offset, len(view))
        view[: len(data)] = data
        return len(data)

    def fill(self, offset: int, view: memoryview) -> int:
        """Read into a buffer until it is full or the source ends. Return the number of bytes."""
        done = 0
        while done < len(view):
            size = self.read_into(offset + done, view[done : done + LARGE_BYTES])
            if not size:
                break
            done += size
        return done

    def scatter(self, begins: I64, lengths: I64, places: I64, buffer: memoryview) -> None:
        """Read ranges, in the order of their first bytes, to places in a buffer. Adjacent ranges are read together.
        Raises EndsEarly, and the errors of :meth:`read_at`."""
        apart = begins[1:] != begins[:-1] + lengths[:-1]
        begins, lengths, bounds = begins.tolist(), lengths.tolist(), edges(apart, len(begins)).tolist()
        views = [buffer[place : place + size] for place, size in zip(places.tolist(), lengths)]
        for first, end in pairwise(bounds):
            start, done = begins[first], 0
            if end == first + 1:
                done = self.fill(start, views[first])
            else:
                data = memoryview(self.read_at(start, sum(lengths[first:end])))
                for view in views[first:end]:
                    part = data[done : done + len(view)]
                    view[: len(part)] = part
                    done += len(part)
            if done < sum(lengths[first:end]):
                row = next(row for row in range(first, end) if start + done < begins[row] + lengths[row])
                raise EndsEarly(self.name, start + done, row)

    def start_fill(self, offset: int, view: memoryview) -> Callable[[], object]:
        """Start to fill a buffer. Return a function that waits until it is full. A remote source makes one request.
        Raises InputError, also at the end."""

        def wait() -> None:
            if Source.read_into(self, offset, view) < len(view):
                raise replaced(self.name, offset)

        return wait

    def read_some(self, offset: int, length: int) -> bytes:
        """Return at most ``length`` bytes from ``offset``, as soon as some bytes are available. The result is empty
        only at the end."""
        return self.read_at(offset, length)

    def expect(
        self, ranges: Iterable[tuple[int, int]], *, gap_bytes: int | None = None, keep: bool = False
    ) -> None:
        """Announce the ranges (first byte, byte after the last) that will be read next, in any order. A remote source
        fetches them before they are read, and joins ranges with a gap of less than ``gap_bytes`` between them. If
        ``gap_bytes`` is None, a gap is read if that is faster than another request. Every other read costs one request.
        Earlier ranges are forgotten. With ``keep``, they stay as long as memory allows."""

    def peek(self, length: int) -> bytes:
        """Return the first bytes of a source. It must not have been read before."""
        return self.read_at(0, length)

    def pieces(self, start: int = 0) -> Iterator[bytes]:
        """Yield all bytes from ``start`` in pieces."""
        if self.seekable and self.size is not None:
            self.expect([(start, self.size)])
        while data := self.read_some(start, PIECE_BYTES):
            yield data
            start += len(data)

    @property
    def stored(self) -> Source:
        """The source of the stored bytes. If this source decompresses them, it is a different source."""
        return self

    def confirm(self) -> None:
        """Raise InputError if the bytes at the address were replaced or changed during the reads. Call this after the
        last read. It does nothing for a stream and for a pinned source."""

    def close(self) -> None:
        """Close descriptors and processes. A second call does nothing. Closing a stream before its end is no error."""

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def pieces_of(source: Source, offset: int, size: int) -> Iterator[bytes]:
    """Yield a payload in pieces. Raises DataError if the source ends first."""
    end = offset + size
    while offset < end:
        data = source.read_at(offset, min(PIECE_BYTES, end - offset))
        if not data:
            raise cut_short(source.name, offset)
        offset += len(data)
        yield data


def cut_short(shard: str, offset: int) -> DataError:
    """Return the error for a payload that ends too early."""
    return DataError("archive ends inside a payload", code="truncated", shard=shard, offset=offset)


class RangesInMemory(Source):
    """A source that has some of its ranges in memory."""

    def __init__(self, source: Source, ranges: list[tuple[int, int]]) -> None:
        super().__init__(source.name, size=source.size, seekable=source.seekable)
        self._source = source
        self.starts = [begin for begin, _ in ranges]
        self.buffers = [source.read_at(begin, end - begin) for begin, end in ranges]

    def read_at(self, offset: int, length: int) -> bytes:
        number = bisect_right(self.starts, offset) - 1
        if number >= 0:
            inside = offset - self.starts[number]
            data = self.buffers[number][inside : inside + length]
            if len(data) == length:
                return data
        return self._source.read_at(offset, length)


class DigestedSource(Source):
    """A source that passes every byte of ``source`` once, in order, to ``update``. So a checksum needs no second pass.
    Short skipped gaps are read immediately. :meth:`read_rest` reads long gaps at the end. ``source`` is closed with
    this source."""

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
        """Read the remaining bytes, and pass them to ``update``."""
        self._read_to(self.size or 0)

    def confirm(self) -> None:
        self._source.confirm()

    def close(self) -> None:
        self._source.close()


class NotCopied(Exception):
    """The store did not copy the object. Nothing was written, so the caller must read and write the bytes."""


class Sink:
    """A destination to which bytes are written in order. Except for streams, nothing appears under the name ``name``
    before :meth:`commit`.

    As a context manager, it commits at the end of the block, and discards on any exception, KeyboardInterrupt included.
    After commit, discard or a failed write, only ``discard`` may be called; then it does nothing. ``written`` is the
    number of bytes so far. ``fd`` is the descriptor of an uncompressed local file, for ``os.copy_file_range``;
    otherwise it is None. Call :meth:`flush` before writing to it, and :meth:`wrote` after.

    After commit, ``version`` distinguishes these bytes from other bytes with the same name
    (:func:`~wdscli.storage.opening.current_versions`). ``stored_version`` is the version in the form of an index, or
    empty if it does not identify the bytes. Before commit, ``note`` may be set to a short ASCII text. S3 stores it with
    a small object; other sinks ignore it. ``waits`` says that :meth:`commit` mostly waits for requests, so that another
    thread may call it. Until then, the sink uses ``held_bytes`` of memory."""

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
        """Write all of ``data``. The caller may reuse a buffer that is not read-only. Raises OutputError, or
        BrokenPipeError for ``-``."""
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

    def write_lent(self, views: Iterable[memoryview]) -> None:
        """Write buffers that the caller does not change before :meth:`commit`. If possible, they are not copied. The
        object's ``stored_version`` may then be empty."""
        for view in views:
            self.write(view)

    def flush(self) -> None:
        """Write the small pieces collected so far."""
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
        """Call this instead of writing bytes. At :meth:`commit`, the store copies this stored version of the object at
        another address, or the file there is linked. Both methods raise NotCopied if this is impossible. The sink
        cannot be used after that."""
        raise NotCopied

    @property
    def held_bytes(self) -> int:
        return self._gathered

    def check_free(self) -> None:
        """Wait until the check of the name is finished. Raises the error that the check found: OutputExistsError or
        another OutputError."""

    def wrote(self, size: int) -> None:
        """Count ``size`` bytes that were written directly to ``fd``."""
        self.written += size

    def commit(self) -> None:
        """Publish the bytes under ``name`` atomically. After any error, the old object stays."""
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
        """Drop the bytes and remove all temporary files. It is no error if they were already removed."""
        if self._open:
            self._open = False
            self._small = []
            self._discard()

    def __del__(self) -> None:
        # Discard a sink that is garbage-collected without a commit. The files of fsspec would commit here.
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


class ReceivedBytes:
    """Received bytes, kept in the pieces in which they arrived, without copying. A slice returns bytes, and
    :meth:`copy` copies into a buffer.

    >>> came = ReceivedBytes([memoryview(b"abc"), memoryview(b"defg")])
    >>> len(came), came[1:5], came[:2], bytes(came)
    (7, b'bcde', b'ab', b'abcdefg')
    """

    __slots__ = ("_ends", "_pieces")

    def __init__(self, pieces: list[memoryview]) -> None:
        self._pieces = pieces
        self._ends = list(accumulate(map(len, pieces)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __bytes__(self) -> bytes:
        return b"".join(self._pieces)

    def __eq__(self, data: object) -> bool:
        return bytes(self) == data

    __hash__ = None  # type: ignore[assignment]

    def __getitem__(self, part: slice) -> bytes:
        begin, end, _ = part.indices(len(self))
        return b"".join(self._between(begin, end))

    def copy(self, begin: int, view: memoryview) -> None:
        """Fill ``view`` with the bytes from ``begin``."""
        filled = 0
        for piece in self._between(begin, begin + len(view)):
            view[filled : filled + len(piece)] = piece
            filled += len(piece)

    def _between(self, begin: int, end: int) -> Iterator[memoryview]:
        number = bisect_right(self._ends, begin)
        while begin < end:
            piece, stop = self._pieces[number], self._ends[number]
            start = stop - len(piece)
            yield piece[begin - start : end - start]
            begin, number = stop, number + 1


class RequestBody:
    """The body of a request, in pieces that are not copied. botocore and aiohttp would copy a body in one piece before
    they send it."""

    def __init__(self, pieces: list[memoryview]) -> None:
        self.pieces = pieces
        self._size = sum(map(len, pieces))
        self._next = 0

    def __len__(self) -> int:
        return self._size

    def read(self, _: int = -1) -> memoryview:
        """Return the next piece. It is empty at the end. botocore computes a signature from all pieces."""
        self._next += 1
        return self.pieces[self._next - 1] if self._next <= len(self.pieces) else memoryview(b"")

    def tell(self) -> int:
        """Return 0, because botocore reads the whole body, and then goes back."""
        return 0

    def seek(self, _: int) -> None:
        """Go back to the beginning."""
        self._next = 0

    async def __aiter__(self) -> AsyncIterator[bytes | memoryview]:
        small: list[memoryview] = []
        held = 0
        for piece in self.pieces:
            for first in range(0, len(piece), SEND_BYTES):
                chunk = piece[first : first + SEND_BYTES]
                if small and held + len(chunk) > SEND_BYTES:
                    yield b"".join(small)
                    small, held = [], 0
                if not small and len(chunk) > SMALL_BYTES:
                    yield chunk
                else:
                    small.append(chunk)
                    held += len(chunk)
        yield b"".join(small)
