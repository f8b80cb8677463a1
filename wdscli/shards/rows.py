"""This module writes and reads the two files of a view or plan: ``NAME.json``, and sealed sections in ``NAME.rows``.

A :class:`Section` is a range of a file with a checksum, which is called its seal. :class:`SectionWriter` writes
sections one after the other. :func:`read_section` returns the bytes only if they fit the seal, so damage is always
noticed. A seal does not show who wrote the bytes. :func:`write_both` writes both files or neither. This module does not
know what is in a section: rows, keys or parcels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from xxhash import xxh3_64, xxh3_64_intdigest

from wdscli.errors import InputError, InputNotFoundError
from wdscli.storage import Source, exists, open_sink, open_source, remove
from wdscli.storage.addresses import VIEW_SUFFIX
from wdscli.storage.ends import taken
from wdscli.storage.opening import refuse_device

COPY_BOTH = "copy both files of the view or plan, or make it again"
ROWS_SUFFIX = ".rows"

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


def rows_address(address: str) -> str:
    """Return the address of the rows of a view or plan.

    >>> rows_address("sets/train.json"), rows_address("mixed.plan")
    ('sets/train.rows', 'mixed.plan.rows')
    """
    return address.removesuffix(VIEW_SUFFIX) + ROWS_SUFFIX


def open_rows(address: str) -> Source:
    """Open the rows of the view or plan at an address. Raises InputError."""
    rows = rows_address(address)
    refuse_device(rows)
    try:
        source = open_source(rows, decompress=False)
    except InputNotFoundError as error:
        error.hint = COPY_BOTH
        raise
    if source.size is None:
        with source:
            raise needs_ranges(rows, address)
    return source


def needs_ranges(file: str, address: str) -> InputError:
    """Return the error for a file of the view or plan at an address that can only be read from its beginning."""
    return InputError(
        f"cannot read {file} for {address}: its server does not support ranges",
        hint="copy the files to a folder or to a server with ranges",
    )


def refuse_existing(address: str) -> None:
    """Raise OutputExistsError if a file of the view or plan at an address exists."""
    for file in (address, rows_address(address)):
        if exists(file):
            raise taken(file)


def write_both(
    address: str,
    text: Callable[[], bytes],
    write_rows: Callable[[Callable[[Any], Any]], object] | None,
    *,
    force: bool,
    replaces_rows: bool,
    fsync: bool = False,
) -> None:
    """Write a view or plan and its rows, or neither. ``write_rows`` writes the rows by calls of a function; ``text`` is
    called after it. The view gets its name last, and an old view loses its name before its rows are replaced. Raises
    OutputError."""
    place, has_rows = rows_address(address), False
    sink = open_sink(address, force=force, fsync=fsync)
    try:
        if write_rows is None:
            sink.write(text())
        else:
            with open_sink(place, force=replaces_rows, fsync=fsync) as beside:
                write_rows(beside.write)
                beside.flush()
                sink.write(text())
                sink.flush()
                if force:
                    remove(address)
            has_rows = True
        sink.commit()
    except BaseException:
        sink.discard()
        if has_rows:
            remove(place)
        raise
