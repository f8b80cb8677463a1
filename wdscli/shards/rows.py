"""This module writes and reads sealed sections: rows, keys and parcels in plan files and in files ``VIEW.rows``.

A :class:`Section` is a range of a file with a checksum, which is called its seal. :class:`SectionWriter` writes
sections one after the other. :func:`read_section` returns the bytes only if they fit the seal, so damage is always
noticed. A seal does not show who wrote the bytes. This module does not know what is in a section.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from xxhash import xxh3_64, xxh3_64_intdigest

from wdscli.storage import Source

SECTION = [int, int, str]
"""The form of a section in JSON (:mod:`wdscli.schema`)."""


class Section(NamedTuple):
    """The place of some bytes in a file: the first byte, the length in bytes, and the XXH3-64 of the bytes."""

    start: int
    length: int
    seal: int

    @classmethod
    def from_plain(cls, plain: list[Any]) -> Section:
        """Parse the result of :meth:`plain`. Raises ValueError."""
        start, length, seal = plain
        return cls(start, length, int(seal, 16))

    def plain(self) -> list[Any]:
        """Return the section for JSON, with the seal in hexadecimal."""
        return [self.start, self.length, f"{self.seal:016x}"]


class SectionWriter:
    """Writes sections by calls of ``write``. ``position`` is the number of bytes already in the file."""

    def __init__(self, write: Callable[[Any], Any], position: int = 0) -> None:
        self._write = write
        self.position = position

    def add(self, pieces: Iterable[bytes]) -> Section:
        """Write the pieces of one section, one after the other. Raises the errors of ``write``."""
        start, digest = self.position, xxh3_64()
        for piece in pieces:
            digest.update(piece)
            self._write(piece)
            self.position += len(piece)
        return Section(start, self.position - start, digest.intdigest())


def read_section(source: Source, section: Section) -> bytes | None:
    """Return the bytes of a section, or None if bytes are missing or do not fit the seal. Raises InputError."""
    if source.size is None or section.start + section.length > source.size:
        return None
    data = source.read_at(section.start, section.length)
    return data if len(data) == section.length and xxh3_64_intdigest(data) == section.seal else None
