"""Members to a stream, in the canonical form.

What it is: :class:`TarWriter`, which turns (name, payload) into header, payload and padding, and the two zero blocks at
the end. How: small members are gathered and go out in one write of about 64 KiB, large payloads go out as they are; a
header costs one pack of a template. It must not know samples, files or networks: a sink is anything with ``write``.
"""

from __future__ import annotations

from typing import Protocol

from wdscli.errors import UsageError
from wdscli.tar.header import BLOCK, CANONICAL, END_OF_ARCHIVE, MAX_SIZE, Form, build_header, padded

GATHER_BYTES = 1 << 16
_PADDING = [bytes(-size % BLOCK) for size in range(BLOCK)]


class ByteSink(Protocol):
    """Where bytes go, in order."""

    def write(self, data: bytes | bytearray | memoryview, /) -> object: ...


def padding(size: int) -> bytes:
    """The zeros between a payload of ``size`` bytes and the next block.

    >>> len(padding(500)), padding(512)
    (12, b'')
    """
    return _PADDING[size & 511]


def _bad_name(name: bytes) -> UsageError:
    return UsageError(f"a member's name must have bytes and no NUL, not {name!r}")


class TarWriter:
    """Writes canonical members to ``sink``, which stays open.

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
        self._parts: list[bytes | bytearray | memoryview] = []
        self._gathered = 0
        self.position = 0
        """Bytes written so far, those still gathered included."""

    def add(self, name: bytes, payload: bytes | bytearray | memoryview) -> None:
        """One regular member. Raises UsageError for a name that no tar can hold."""
        size = len(payload)
        if not name or 0 in name:
            raise _bad_name(name)
        header = build_header(name, size, self._form)
        parts = self._parts
        parts.append(header)
        parts.append(payload)
        parts.append(_PADDING[size & 511])
        length = len(header) + padded(size)
        self.position += length
        self._gathered += length
        if self._gathered >= GATHER_BYTES:
            self.flush()

    def begin(self, name: bytes, size: int) -> None:
        """The header of a member whose ``size`` bytes follow by :meth:`raw`, then :func:`padding`.

        Raises UsageError for a name or a size that no tar can hold.
        """
        if not name or 0 in name:
            raise _bad_name(name)
        if not 0 <= size <= MAX_SIZE:
            raise UsageError(f"a member's size must be 0 to 2^63-1, not {size}")
        self.raw(build_header(name, size, self._form))

    def raw(self, data: bytes | bytearray | memoryview) -> None:
        """Bytes that are already tar: whole runs of members, or the payload after :meth:`begin`."""
        self._parts.append(data)
        self.position += len(data)
        self._gathered += len(data)
        if self._gathered >= GATHER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hand what is gathered to the sink. A large payload is not copied."""
        parts, self._parts, self._gathered = self._parts, [], 0
        small: list[bytes | bytearray | memoryview] = []
        for part in parts:
            if len(part) >= GATHER_BYTES:
                self._write(small)
                self._sink.write(part)
                small = []
            else:
                small.append(part)
        self._write(small)

    def _write(self, parts: list[bytes | bytearray | memoryview]) -> None:
        data = b"".join(parts)
        if data:
            self._sink.write(data)

    def close(self) -> None:
        """The two zero blocks, and everything out to the sink."""
        self.raw(END_OF_ARCHIVE)
        self.flush()

    def __enter__(self) -> TarWriter:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None:
            self.close()
