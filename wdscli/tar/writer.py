"""This module writes members to a stream, in the canonical form.

:class:`TarWriter` turns (name, payload) into header, payload and padding, and writes the two zero blocks at the end.
Small members are collected in a buffer, by the compiled core if there is one, and written about 64 KiB at a time. Large
payloads are written directly. A sink is any object with ``write``. This module knows no samples, files or networks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from wdscli.errors import UsageError
from wdscli.tar import core
from wdscli.tar.header import BLOCK, CANONICAL, END_OF_ARCHIVE, MAX_SIZE, Form, build_header

GATHER_BYTES = 1 << 16
"""Larger payloads are written directly (``COPIED`` in ``_core.c``). If the buffer has more bytes than this, it is
flushed."""
BUFFER_BYTES = 2 * GATHER_BYTES + BLOCK
_PADDING = [bytes(-size % BLOCK) for size in range(BLOCK)]
Payload = bytes | bytearray | memoryview
Places = tuple[list[bytes], list[int], list[int]]
"""Members as three columns: names, offsets of payloads, sizes."""


class ByteSink(Protocol):
    """The interface of a destination to which bytes are written in order."""

    def write(self, data: bytes | bytearray | memoryview, /) -> object:
        """Take all of ``data``. The caller may reuse its memory after the call."""


def padding(size: int) -> bytes:
    """Return the zeros between a payload of ``size`` bytes and the next block.

    >>> len(padding(500)), padding(512)
    (12, b'')
    """
    return _PADDING[size & 511]


def _bad_name(name: bytes) -> UsageError:
    return UsageError(f"a member's name must not be empty or contain NUL: {name!r}")


class TarWriter:
    """Writes canonical members to ``sink``, which stays open. Payloads may be changed after they are added.

    >>> import io
    >>> out = io.BytesIO()
    >>> with TarWriter(out) as tar:
    ...     tar.add(b"a.txt", b"hello")
    >>> len(out.getvalue())
    2048
    """

    def __init__(self, sink: ByteSink, form: Form = CANONICAL) -> None:
        if not 0 <= form.mtime < 8**11:
            raise UsageError(f"a member's mtime must be 0 to 8^11-1 seconds, not {form.mtime}")
        self._sink = sink
        self._form = form
        self._mtime_field = form.mtime_field
        self._buffer = bytearray(BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._used = 0
        self._flushed = 0

    @property
    def position(self) -> int:
        """The number of bytes so far, buffered bytes included."""
        return self._flushed + self._used

    def add(self, name: bytes, payload: Payload) -> None:
        """Write one regular member. Raises UsageError for a name that no tar can hold."""
        if not name or 0 in name:
            raise _bad_name(name)
        self.add_all(b"", [(name, payload)], ([], [], []))

    def add_all(self, prefix: bytes, members: Sequence[tuple[bytes, Payload]], places: Places) -> None:
        """Write regular members from pairs (name, payload). ``prefix`` is added before each name; ``places`` gets the
        names without it. If a name cannot be stored in a tar, raises DataError before anything is written."""
        if core.CORE is not None:
            used: int = core.CORE.members(
                self._buffer, self._used, prefix, members, self._mtime_field, self._flushed, places
            )
            if used:
                self._used = used
                if used >= GATHER_BYTES:
                    self.flush()
                return
        names, offsets, sizes = places
        for name, _ in members:
            if 0 in prefix + name:
                build_header(prefix + name, 0)  # this call raises the error
        for name, payload in members:
            self.begin(prefix + name, len(payload))
            names.append(name)
            offsets.append(self.position)
            sizes.append(len(payload))
            self.raw(payload)
            self.raw(padding(len(payload)))

    def begin(self, name: bytes, size: int) -> None:
        """Write the header of a member. Then call :meth:`raw` to write its ``size`` bytes and the :func:`padding`.

        Raises UsageError for a name or a size that no tar can hold.
        """
        if not name or 0 in name:
            raise _bad_name(name)
        if not 0 <= size <= MAX_SIZE:
            raise UsageError(f"a member's size must be 0 to 2^63-1, not {size}")
        self.raw(self._header(name, size))

    def _header(self, name: bytes, size: int) -> bytes:
        block = None if core.CORE is None else core.CORE.header(name, size, self._mtime_field)
        return block or build_header(name, size, self._form)

    def raw(self, data: Payload) -> None:
        """Write bytes that are already tar: runs of members, or a payload after :meth:`begin`. Large pieces are not
        copied."""
        size = len(data)
        if size >= GATHER_BYTES:
            self.skip(size)
            self._sink.write(data)
            return
        end = self._used + size
        self._view[self._used : end] = data
        self._used = end
        if end >= GATHER_BYTES:
            self.flush()

    def skip(self, size: int) -> None:
        """Flush, and count ``size`` bytes of tar that the caller writes to the sink next."""
        self.flush()
        self._flushed += size

    def flush(self) -> None:
        """Write the buffer to the sink."""
        used, self._used = self._used, 0
        self._flushed += used
        if used:
            self._sink.write(self._view[:used])

    def close(self) -> None:
        """Write the two zero blocks and flush."""
        self.raw(END_OF_ARCHIVE)
        self.flush()

    def __enter__(self) -> TarWriter:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None:
            self.close()
