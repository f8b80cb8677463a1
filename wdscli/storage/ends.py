"""The two ends that every command works between: a Source to read from, a Sink to write to.

What it is: the contracts, and what all implementations share (buffering of small writes, the context
managers). How: an implementation gives ``read_at``/``read_some``/``close``, or
``_put``/``_commit``/``_discard``; nothing else. It must not know any kind of address: ``opening`` chooses the
class, ``local``, ``streams``, ``compressed``, ``blocks``, ``ranges`` and ``uploads`` have the classes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

from wdscli.errors import InputError, OutputError, OutputExistsError

GATHER_BYTES = 1 << 16
"""Small writes are gathered until they make so many."""
PIECE_BYTES = 1 << 20
"""Asked for at a time by who reads all of something."""

_JUMP_BYTES = 1 << 23
"""What is passed over by a jump of at most so many bytes is read for a digest at once."""

Data = bytes | bytearray | memoryview


def replaced(name: str, offset: int | None = None) -> InputError:
    """The error for bytes that are others now than when reading began."""
    where = "" if offset is None else f", from byte {offset}"
    return InputError(
        f"cannot read {name}{where}: it was replaced or changed while it was read",
        hint="read it again when no other program writes there",
    )


def taken(name: str) -> OutputExistsError:
    """The error for an output whose name something has already."""
    return OutputExistsError(f"cannot write {name}: it exists already", hint="--force replaces what is there")


class Source:
    """Bytes by offset; one reader at a time, closed by whoever opened it.

    ``name`` is the address as it was given. ``size`` is the number of bytes, or None as long as a stream has
    not ended. ``seekable`` says whether offsets may jump and go back; where it is False they only rise and
    what lies between is passed over. ``fd`` is a plain local file's descriptor, for ``os.preadv`` and
    ``os.copy_file_range``, else None. ``version`` is a text that changes when other bytes come under the same address
    (a time of change, an ETag), empty where nobody knows. All bytes that one source gives are of one version: where
    the store can be held to it with each read it is (``is_pinned``), else :meth:`confirm` tells. ``note`` is what was
    noted of it when it was written (:class:`Sink`), known once something was read.
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

        Raises InputError when the bytes cannot be had and DataError (``truncated``, ``corrupt``) for a
        compressed stream that is cut or broken. An implementation gives this or :meth:`read_some`.
        """
        data = self.read_some(offset, length)
        if len(data) >= length or not data:
            return data
        # The kernel gives at most 2 GiB at once, a stream what is there; the end is only known by a read of nothing.
        parts, have = [data], len(data)
        while have < length and data:
            data = self.read_some(offset + have, length - have)
            parts.append(data)
            have += len(data)
        return b"".join(parts)

    def read_into(self, offset: int, view: memoryview) -> int:
        """:meth:`read_at` to where the bytes are wanted; returns how many came, none only at the end."""
        data = self.read_at(offset, len(view))
        view[: len(data)] = data
        return len(data)

    def read_some(self, offset: int, length: int) -> bytes:
        """At most ``length`` bytes from ``offset``, what is there soon; none only at the end."""
        return self.read_at(offset, length)

    def expect(
        self, ranges: Iterable[tuple[int, int]], *, gap_bytes: int | None = None, keep: bool = False
    ) -> None:
        """Which ranges (first byte, byte behind the last) will be wanted next, in any order, as far as that is known. A
        source that is far away fetches them ahead, together where less than ``gap_bytes`` lie between them (None: what
        costs less to read than to ask again); what else is read costs a request of its own. What came before is
        forgotten; with ``keep`` it stays as long as there is room, because it may be wanted again."""

    def peek(self, length: int) -> bytes:
        """The first bytes of a source that nobody has read yet."""
        return self.read_at(0, length)

    def pieces(self, start: int = 0) -> Iterator[bytes]:
        """All bytes from ``start`` on, some at a time."""
        if self.seekable and self.size is not None:
            self.expect([(start, self.size)])
        while data := self.read_some(start, PIECE_BYTES):
            yield data
            start += len(data)

    @property
    def stored(self) -> Source:
        """The bytes as they lie under the address: another source for one that unpacks blocks of them."""
        return self

    def confirm(self) -> None:
        """To be called when all that was wanted has been read: raise InputError when the bytes under the address were
        replaced or rewritten meanwhile, as far as that can be told then. What is read once, and what is checked with
        each read, has nothing to add."""

    def close(self) -> None:
        """Let go of descriptors and processes. May be called twice; a stream left early is no error."""

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class DigestedSource(Source):
    """Bytes of ``source``, which is closed with it, that are digested when they are read for the first time, from the
    first to the last, with what is passed over but for long jumps: who scans an archive that is far away need not read
    it again for its checksum. ``update`` takes them; :meth:`read_rest` is called at the end."""

    __slots__ = ("_digested", "_source", "_update")

    def __init__(self, source: Source, update: Callable[[bytes], None]) -> None:
        super().__init__(source.name, size=source.size, seekable=True)
        self.version, self.is_pinned = source.version, source.is_pinned
        self._source, self._update = source, update
        self._digested = 0
        source.expect([(0, source.size or 0)])

    def read_at(self, offset: int, length: int) -> bytes:
        if offset - self._digested <= _JUMP_BYTES:
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
        """Digest what nobody has read."""
        self._read_to(self.size or 0)

    def confirm(self) -> None:
        self._source.confirm()

    def close(self) -> None:
        self._source.close()


class NotCopied(Exception):
    """What the store was to copy has to be read and written: nothing new stands under the name."""


class Sink:
    """Where bytes go, in order. But for streams, nothing stands under ``name`` before :meth:`commit`.

    As a context manager it commits when the block ends well and discards on any exception, KeyboardInterrupt
    included. After either, or after a failed write, only ``discard`` may be called, and does nothing the
    second time. ``written`` counts the bytes taken so far. ``fd`` is a plain local file's descriptor for
    ``os.copy_file_range``, else None; whoever writes to it calls :meth:`flush` first and :meth:`wrote` after.
    ``version`` tells, once committed, these bytes from others under the same name
    (:func:`~wdscli.storage.opening.versions_at`); ``etag`` is the ETag that a store has given them, if it is seen to be
    one that it makes of the bytes, else empty. Until then ``note`` may be set to a short text in ASCII, which S3 keeps
    beside a small object; others forget it. ``waits`` says that :meth:`commit` is little but requests, and may be left
    to another thread while other sinks are written; ``held_bytes`` is what it keeps in memory until then.
    """

    fd: int | None = None
    waits = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.written = 0
        self.version = self.etag = self.note = ""
        self._small: list[bytes] = []
        self._gathered = 0
        self._open = True

    def write(self, data: Data, /) -> int:
        """Take all of ``data``, which may be reused. Raises OutputError, or BrokenPipeError for ``-``."""
        if not self._open:
            raise OutputError(f"cannot write {self.name}: it is closed")
        size = len(data)
        self.written += size
        if size >= GATHER_BYTES:
            self.flush()
            self._take(data)
        else:
            self._small.append(data if isinstance(data, bytes) else bytes(data))
            self._gathered += size
            if self._gathered >= GATHER_BYTES:
                self.flush()
        return size

    def flush(self) -> None:
        """Hand on what was gathered."""
        if self._small:
            small, self._small, self._gathered = self._small, [], 0
            self._take(b"".join(small) if len(small) > 1 else small[0])

    def _take(self, data: Data) -> None:
        try:
            self._put(data)
        except BaseException:
            self.discard()
            raise

    def copy_of(self, address: str, etag: str, size: int) -> None:
        """In the place of bytes: what lies at another address, with this ETag, is copied by the store at
        :meth:`commit`. Both raise NotCopied where that cannot be; then this sink is of no more use."""
        raise NotCopied

    @property
    def held_bytes(self) -> int:
        return self._gathered

    def check_free(self) -> None:
        """Raise OutputExistsError, or what else stands in the way of the name, as far as that was looked for and not
        told yet."""

    def wrote(self, size: int) -> None:
        """``size`` bytes went straight to ``fd``."""
        self.written += size

    def commit(self) -> None:
        """Make the bytes stand under ``name``, all of them; on any error nothing new stands there."""
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
        """Drop the bytes; nothing is left behind. Never raises for what is gone already."""
        if self._open:
            self._open = False
            self._small = []
            self._discard()

    def __del__(self) -> None:
        # A sink that was forgotten was not committed; fsspec's own files think otherwise of theirs.
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
