"""Extended headers: pax records and GNU's long names for the following members.

What it is: the state between an extended header and its member, and the records of pax global headers. How: the
scanner passes each whole extended header to :meth:`Extensions.add`, asks :meth:`Extensions.describe` for the
member's name, size and kind, and then clears all but the globals. Sizes and chains are bounded, because a crafted
archive could otherwise fill the memory with records.

It must not know the place of a header, nor when bytes are read.

References: POSIX.1-2017, utility pax, "pax Header Block" and "pax Extended Header"; GNU tar 1.34 manual, "Basic Tar
Format", types L and K.
"""

from __future__ import annotations

from wdscli.errors import DataError
from wdscli.tar.header import (
    MAX_EXTENDED_CHAIN,
    MAX_EXTENDED_SIZE,
    REGULAR,
    SPARSE,
    Header,
    kind_of,
    parse_pax,
    pax_size,
)

#: x and g are POSIX's, X is what Solaris wrote before POSIX had x, L and K are GNU's long name and long link name.
TYPEFLAGS = frozenset((b"x", b"g", b"X", b"L", b"K"))
_SPARSE = b"GNU.sparse."
_LEADING = (b"path", b"size")


class Extensions:
    """The extended headers since the last member, and the globals of the archive so far.

    ``start`` is the byte of the first header about the next member, or None; ``raw`` are its blocks and those after
    it; ``gap`` means that a global header is among them.
    """

    def __init__(self) -> None:
        self.globals: dict[bytes, bytes] = {}
        self._leading: dict[bytes, bytes] = {}
        self._globals_size = 0
        self.clear()

    def clear(self) -> None:
        """Forget all but the globals, after their member."""
        self.start: int | None = None
        self.raw = b""
        self.gap = False
        self._records: dict[bytes, bytes] = {}
        self._long_name: bytes | None = None
        self._chain = 0
        self._size = 0

    @property
    def long_name(self) -> bytes | None:
        """The next member's name as far as it is known."""
        return self._records.get(b"path") or self._long_name

    @property
    def globals_lead(self) -> bool:
        """Whether the globals affect names, sizes or kinds."""
        return bool(self._leading)

    def check(self, size: int) -> None:
        """Raise DataError ``bad-extended-header`` if one more header of ``size`` bytes exceeds the limits."""
        if self._size + size > MAX_EXTENDED_SIZE:
            raise DataError(
                f"extended headers of {self._size + size} bytes (at most {MAX_EXTENDED_SIZE} are read)",
                code="bad-extended-header",
            )
        if self._chain + 1 > MAX_EXTENDED_CHAIN:
            raise DataError(
                f"more than {MAX_EXTENDED_CHAIN} extended headers in a row", code="bad-extended-header"
            )

    def add(self, typeflag: bytes, start: int, blocks: bytes, size: int) -> None:
        """Add one extended header that begins at byte ``start``: its ``blocks``, with ``size`` bytes of data."""
        data = blocks[512 : 512 + size]
        if typeflag == b"g":
            self._add_globals(parse_pax(data))
            self.gap = True
        elif typeflag == b"L":
            self._long_name = data.partition(b"\0")[0]
        elif typeflag != b"K":
            self._records.update(parse_pax(data))
        self._chain += 1
        self._size += size
        if typeflag != b"g" and self.start is None:
            self.start = start
        if self.start is not None:
            self.raw += blocks

    def put_globals(self, records: dict[bytes, bytes]) -> None:
        """Set the globals, for a scan that starts in the middle of an archive."""
        self.globals, self._leading, self._globals_size = {}, {}, 0
        self._add_globals(records)

    def _add_globals(self, records: dict[bytes, bytes]) -> None:
        for keyword, value in records.items():
            old = self.globals.pop(keyword, None)
            self._globals_size -= 0 if old is None else len(keyword) + len(old)
            self._leading.pop(keyword, None)
            # POSIX: an empty value removes the record.
            if value:
                self.globals[keyword] = value
                self._globals_size += len(keyword) + len(value)
                if keyword in _LEADING or keyword.startswith(_SPARSE):
                    self._leading[keyword] = value
        if self._globals_size > MAX_EXTENDED_SIZE:
            raise DataError(
                f"global headers of more than {MAX_EXTENDED_SIZE} bytes", code="bad-extended-header"
            )

    def describe(self, header: Header) -> tuple[bytes, int, int]:
        """Name, size and kind of a member with its extended headers; a pax record takes precedence over a GNU
        header."""
        name, size, typeflag = header.name, header.size, header.typeflag
        if self._long_name is not None:
            name = self._long_name
        if not (self._records or self._leading):
            return name, size, kind_of(typeflag, name)
        name = self._record(b"path") or name
        stated = self._record(b"size")
        if stated:
            size = pax_size(stated)
        kind = kind_of(typeflag, name)
        if kind == REGULAR and self._is_sparse():
            return self._record(b"GNU.sparse.name") or name, size, SPARSE
        return name, size, kind

    def _record(self, keyword: bytes) -> bytes | None:
        """POSIX: a member's own record takes precedence over the global one; an empty value removes that for this
        member."""
        return self._records[keyword] if keyword in self._records else self._leading.get(keyword)

    def _is_sparse(self) -> bool:
        """GNU's pax formats 0.0, 0.1 and 1.0 of sparse files."""
        return any(
            keyword.startswith(_SPARSE) for records in (self._records, self._leading) for keyword in records
        )
