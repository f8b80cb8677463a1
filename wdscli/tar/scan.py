"""This module turns the header blocks of an archive into columns of members, one buffer at a time.

:class:`Scanner` is a push parser. ``feed`` takes a buffer and the offset of its first byte in the archive. It parses
the headers, and appends to the lists of :class:`Columns`: names, starts, offsets, sizes, flags. ``position`` is the
next byte that the scanner needs. If a payload is skipped, this byte is after the buffer. The scanner does not read
files itself. So files and streams give the same columns, with buffers of any size.

``_block`` handles every kind of block: extended headers, folders, links, sparse members, the end of the archive, and
every error. :class:`Extensions` keeps pax records and GNU's long names until their member comes. The size and the
number of extended headers are limited, because a crafted archive could otherwise fill the memory with records. The
compiled core (``core.py``), if installed, parses usual members, many at a time. All other blocks are left to
``_block``. Columns and errors are the same with and without the core.

This module knows no samples, files or networks.

References: POSIX.1-2017, utility pax, "pax Header Block" and "pax Extended Header"; GNU tar 1.34 manual, "Basic Tar
Format", types L and K.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from wdscli.errors import DataError, InputError, empty_stream
from wdscli.tar import core
from wdscli.tar.header import (
    BLOCK,
    CANONICAL,
    CANONICAL_MIDDLE,
    FOREIGN,
    GLOBAL,
    KIND_MASK,
    KIND_NAMES,
    MAX_EXTENDED_CHAIN,
    MAX_EXTENDED_SIZE,
    REGULAR,
    SPARSE,
    Form,
    Header,
    build_header,
    checksum_is_right,
    has_payload,
    member_kind,
    padded,
    parse_block,
    parse_pax,
    pax_size,
)
from wdscli.text import to_text

if TYPE_CHECKING:
    from wdscli.model import Member

Buffer = bytes | bytearray | memoryview

_USUAL_HEAD_BYTES = 3 * BLOCK
"""A pax header with one block of records, and the member's own header."""
_MAX_POSITION = 1 << 60
"""Crafted sizes may lead to any position. At positions beyond this, the core is not used."""
MAX_ZEROS_BYTES = 1 << 26
"""The most zeros after a stream's end of archive. The last record of a tape has many times fewer zeros."""
_ZERO_BLOCK = bytes(BLOCK)
CUT_SHORT = "the shard is incomplete: copy it again, or save whole samples with `wds repair SHARDS -o OUT`"
"""The hint for an archive that ends too early."""
_MAKE_AGAIN = "copy or create the shard again"
_TABLE = "it is a table: `wds create --from` makes shards of its rows, `wds merge --table` joins it"
_OTHER_FORMATS = {
    b"version https://git-lfs": "it is a Git LFS pointer: download the file with `git lfs pull`",
    b"PK\3\4": "it is a zip archive: unpack it, and create shards of its files with `wds create`",
    b"PAR1": _TABLE,
    b"<": "it is a web page or XML, perhaps an error message: download the shard again",
}
"""Files of other formats that may have the name of a shard: their first bytes, and a hint."""
#: x and g are POSIX's. X was used by Solaris before POSIX had x. L and K are GNU's long name and long link name.
TYPEFLAGS = frozenset((b"x", b"g", b"X", b"L", b"K"))
_SPARSE = b"GNU.sparse."
_LEADING = (b"path", b"size")


class Columns(NamedTuple):
    """Members as parallel lists. ``starts`` are the offsets of the first header blocks, extended headers included.
    ``offsets`` are the offsets of the payloads. ``flags`` have a kind (``KIND_MASK``) with FOREIGN and GLOBAL; a
    canonical regular member has 0."""

    names: list[bytes]
    starts: list[int]
    offsets: list[int]
    sizes: list[int]
    flags: list[int]

    def part(self, first: int, end: int | None) -> Columns:
        """Return the rows ``first`` to ``end - 1``. If ``end`` is None, return all rows from ``first``."""
        rows: list[Any] = [column[first:end] for column in self]
        return Columns(*rows)

    def member(self, row: int) -> Member:
        """Return one row as a public record."""
        from wdscli.model import Member

        kind = KIND_NAMES[self.flags[row] & KIND_MASK]
        return Member(to_text(self.names[row]), kind, self.starts[row], self.offsets[row], self.sizes[row])


def new_columns() -> Columns:
    return Columns([], [], [], [], [])


def cut(shard: str | None, columns: Columns, row: int, available_bytes: int) -> DataError:
    """Return the error for an archive that ends in a member, with ``available_bytes`` after its header."""
    size = columns.sizes[row]
    return DataError(
        f"archive ends after {max(0, available_bytes)} of {size} payload bytes"
        if available_bytes < size
        else "archive ends inside a member's padding",
        code="truncated",
        shard=shard,
        offset=columns.starts[row],
        member=to_text(columns.names[row]),
        hint=CUT_SHORT,
    )


class Extensions:
    """The extended headers since the last member, and the global records of the archive so far.

    ``start`` is the offset of the first extended header of the next member, or None. ``raw`` are all blocks from there.
    ``gap`` means that a global header is among them.
    """

    def __init__(self) -> None:
        self.globals: dict[bytes, bytes] = {}
        self._leading: dict[bytes, bytes] = {}
        self._globals_size = 0
        self.clear()

    def clear(self) -> None:
        """After a member, forget its extended headers, but keep the global records."""
        self.start: int | None = None
        self.raw = b""
        self.gap = False
        self._records: dict[bytes, bytes] = {}
        self._long_name: bytes | None = None
        self._chain = 0
        self._size = 0

    @property
    def long_name(self) -> bytes | None:
        """The next member's name, if an extended header gives it."""
        return self._records.get(b"path") or self._long_name

    @property
    def globals_lead(self) -> bool:
        """Whether the global records affect names, sizes or kinds."""
        return bool(self._leading)

    def check(self, size: int) -> None:
        """Raise DataError ``bad-extended-header`` if another header of ``size`` bytes would exceed the limits."""
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
        """Set the global records, for a scan that starts in the middle of an archive."""
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
        """Return name, size and kind of a member with its extended headers. A pax record takes precedence over a GNU
        header."""
        name, size, typeflag = header.name, header.size, header.typeflag
        if self._long_name is not None:
            name = self._long_name
        if not (self._records or self._leading):
            return name, size, member_kind(typeflag, name)
        name = self._record(b"path") or name
        stated = self._record(b"size")
        if stated:
            size = pax_size(stated)
        kind = member_kind(typeflag, name)
        if kind == REGULAR and self._is_sparse():
            return self._record(b"GNU.sparse.name") or name, size, SPARSE
        return name, size, kind

    def _record(self, keyword: bytes) -> bytes | None:
        """Return a record for the next member. POSIX: the member's own record takes precedence over the global record.
        An empty value removes the global record for this member."""
        return self._records[keyword] if keyword in self._records else self._leading.get(keyword)

    def _is_sparse(self) -> bool:
        """Return whether the member is a sparse file in GNU's pax formats 0.0, 0.1 or 1.0."""
        return any(
            keyword.startswith(_SPARSE) for records in (self._records, self._leading) for keyword in records
        )


def endless(name: str) -> InputError:
    """Return the error for a stream that has only zeros."""
    return InputError(
        f"cannot read {name} to its end: more than {MAX_ZEROS_BYTES >> 20} MiB of zeros where an archive ends",
        hint="a device may never end; in a regular file, wdscli reads any number of zeros",
    )


def _other_format(begin: bytes, name: str | None) -> str | None:
    """Return a hint for a file that is no tar archive, by its first bytes or its name."""
    if name is not None and name.endswith((".csv", ".tsv", ".jsonl")):
        return _TABLE
    return next((hint for magic, hint in _OTHER_FORMATS.items() if begin.startswith(magic)), None)


class Scanner:
    """Parses the headers of one archive. ``limit`` is the archive's size in bytes if known, and ``first`` is its first
    byte.

    Feed it buffers in rising order; each must contain the byte at ``position``. Get the columns by :meth:`take`. At the
    end, call :meth:`finish` once with the number of bytes read. All errors are DataError with an offset, and with a
    member if known. ``shard`` is the name of the archive in errors.
    """

    def __init__(
        self, shard: str | None = None, *, limit: int | None = None, form: Form = CANONICAL, first: int = 0
    ) -> None:
        self.form = form
        self.first = first
        """The archive's first byte."""
        self.position = first
        self.extensions = Extensions()
        self.shard = shard
        self.limit = limit
        self.ended = False
        """The two zero blocks were seen; only zeros may follow."""
        self.wanted = BLOCK
        """Bytes from ``position`` on that the next buffer must have."""
        self._columns = new_columns()
        self._last = new_columns()
        self._zero_at: int | None = None
        self._end_at = 0
        self._begin = b""

    @property
    def globals(self) -> dict[bytes, bytes]:
        """The records of the pax global headers so far."""
        return self.extensions.globals

    @globals.setter
    def globals(self, records: dict[bytes, bytes]) -> None:
        self.extensions.put_globals(records)

    @property
    def is_at_member(self) -> bool:
        """Whether a new member may begin at ``position``: no block of it, and no zero block, was parsed yet."""
        return not self.ended and self._zero_at is None and self.extensions.start is None

    def take(self, end: int | None = None) -> Columns:
        """Return the members since the last call. The bytes before ``end`` surely exist. A member that ends after them
        is returned by a later call."""
        self._remember_last()
        columns, self._columns = self._columns, new_columns()
        if columns.names and end is not None and columns.offsets[-1] + padded(columns.sizes[-1]) > end:
            last: list[Any] = [column.pop() for column in columns]
            self._append(*last)
        return columns

    def feed(self, buffer: Buffer, base: int) -> None:
        """Parse the complete headers in ``buffer``, which begins at byte ``base`` of the archive."""
        begin = self.position - base
        while 0 <= begin <= len(buffer) and not self.ended:
            if core.CORE is not None and self._begins_anew():
                self.position = base + core.CORE.scan(buffer, begin, base, self._archive())
                begin, self.wanted = self.position - base, BLOCK
                if self._goes_on(buffer, begin, base):
                    self.wanted = _USUAL_HEAD_BYTES
                    return
            if begin + BLOCK > len(buffer):
                if self.position == self.first:
                    self._begin = bytes(buffer[begin:])
                return
            begin = self._block(buffer, begin, base)
            if begin < 0:
                return
            self.position = base + begin
            self._check_limit()
        if self.ended:
            self._only_zeros(buffer, max(0, self.position - base), base)

    def hop(self, descriptor: int, count: int) -> None:
        """Parse about ``count`` members of a file by its descriptor, and skip their payloads. Stop at a block that
        :meth:`feed` must handle."""
        if core.CORE is not None and not self.ended and self._begins_anew():
            self.position = core.CORE.hop(descriptor, self.position, count, self._archive())

    def _goes_on(self, buffer: Buffer, begin: int, base: int) -> bool:
        """Return whether a usual pax header continues after the buffer. It is then read as a whole, not block by
        block."""
        is_cut = begin + BLOCK <= len(buffer) < begin + _USUAL_HEAD_BYTES
        if not is_cut or self.limit is None or base + begin + _USUAL_HEAD_BYTES > self.limit:
            return False
        size = bytes(buffer[begin + 124 : begin + 135])
        return buffer[begin + 156] == ord("x") and b"00000000000" < size <= b"00000001000"

    def _begins_anew(self) -> bool:
        """Return whether no earlier header affects the next member, so that the compiled core may parse it."""
        before = self.extensions
        is_silent = before.start is None and not (before.gap or before.globals_lead)
        return is_silent and self._zero_at is None and self.position < _MAX_POSITION

    def _archive(self) -> tuple[int, Columns, bytes, bool, int, int]:
        """Return the compiled core's arguments about the archive."""
        foreign = self._foreign()
        limit = -1 if self.limit is None else self.limit
        gnu_names = self.form.long_names == "gnu"
        return (
            limit,
            self._columns,
            self.form.mtime_field,
            gnu_names,
            foreign if self.globals else REGULAR,
            foreign,
        )

    def _foreign(self) -> int:
        return FOREIGN | GLOBAL if self.globals else FOREIGN

    def _block(self, buffer: Buffer, begin: int, base: int) -> int:
        """Parse one block exactly. Return the next position in the buffer, or -1 if more bytes are needed first."""
        block = bytes(buffer[begin : begin + BLOCK])
        offset = base + begin
        if block == _ZERO_BLOCK:
            return self._zero(begin, offset)
        if self._zero_at is not None:
            raise self._error("data follows a lone zero block", "data-after-end", self._zero_at)
        if not checksum_is_right(block):
            raise self._bad_block(offset, block)
        try:
            header = parse_block(block)
            if header.typeflag in TYPEFLAGS:
                return self._extension(buffer, begin, base, block, header)
            return self._member(buffer, begin, base, block, header)
        except DataError as error:
            raise self._placed(error, offset, block) from None

    def _bad_block(self, offset: int, block: bytes) -> DataError:
        if offset == self.first:
            message = "not a tar archive: the first block is not a header"
            return self._error(message, "not-a-tar", offset, hint=_other_format(block, self.shard))
        return self._error("header checksum is wrong", "bad-checksum", offset)

    def _zero(self, begin: int, offset: int) -> int:
        if self.extensions.start is not None:
            raise self._error(
                "extended header without its member", "bad-extended-header", self.extensions.start
            )
        if self._zero_at is None:
            self._zero_at = offset
        else:
            self.ended, self._end_at = True, offset
        return begin + BLOCK

    def _extension(self, buffer: Buffer, begin: int, base: int, block: bytes, header: Header) -> int:
        """Parse a pax or GNU header for the next member (x, L, K), or for all later members (g)."""
        self.extensions.check(header.size)
        end = begin + BLOCK + padded(header.size)
        if end > len(buffer):
            self.wanted = end - begin
            return -1
        self.extensions.add(header.typeflag, base + begin, bytes(buffer[begin:end]), header.size)
        self.wanted = BLOCK
        return end

    def _member(self, buffer: Buffer, begin: int, base: int, block: bytes, header: Header) -> int:
        end = begin + BLOCK
        name, size, kind = self.extensions.describe(header)
        if header.typeflag == b"S":
            end = self._skip_sparse_map(buffer, begin)
            if end < 0:
                return -1
        flag = kind if self._is_canonical(block, name, size, kind) else kind | self._foreign()
        if not has_payload(header.typeflag, kind):
            size = 0
        start = self.extensions.start
        self._append(name, base + begin if start is None else start, base + end, size, flag)
        self.extensions.clear()
        self.wanted = BLOCK
        return end + padded(size)

    def _is_canonical(self, block: bytes, name: bytes, size: int, kind: int) -> bool:
        """Return whether the member's blocks, with a preceding global header, are the blocks that wdscli would
        write."""
        if kind != REGULAR or self.extensions.gap or self.globals or not name or 0 in name:
            return False
        if block[100:124] != CANONICAL_MIDDLE:
            return False
        return self.extensions.raw + block == build_header(name, size, self.form)

    def _skip_sparse_map(self, buffer: Buffer, begin: int) -> int:
        """Skip the sparse map of an old GNU sparse file. Byte 482 of the header says whether a block of the map
        follows. Byte 504 of each such block says whether another block follows."""
        has_next_block, end = buffer[begin + 482] != 0, begin + BLOCK
        while has_next_block:
            if end - begin > MAX_EXTENDED_SIZE:
                raise DataError("sparse map without end", code="bad-extended-header")
            if end + BLOCK > len(buffer):
                self.wanted = end - begin + 64 * BLOCK
                return -1
            has_next_block = buffer[end + 504] != 0
            end += BLOCK
        return end

    def _append(self, name: bytes, start: int, offset: int, size: int, flag: int) -> None:
        columns = self._columns
        columns.names.append(name)
        columns.starts.append(start)
        columns.offsets.append(offset)
        columns.sizes.append(size)
        columns.flags.append(flag)

    def _check_limit(self) -> None:
        """Raise an error unless the last member's payload fits in the rest of the archive."""
        if self.limit is not None and self.position > self.limit and self._columns.names:
            self._remember_last()
            for column in self._columns:
                column.pop()
            raise cut(self.shard, self._last, 0, self.limit - self._last.offsets[0])

    def _remember_last(self) -> None:
        if self._columns.names:
            self._last = self._columns.part(-1, None)

    def _only_zeros(self, buffer: Buffer, begin: int, base: int) -> None:
        """Check the bytes after the two zero blocks, which POSIX does not count as part of the archive. Only zeros are
        harmless; they fill the last record of a tape. Other bytes are data that readers would ignore silently."""
        tail = bytes(buffer[begin:])
        if tail.count(0) != len(tail):
            offset = base + begin + len(tail) - len(tail.lstrip(b"\0"))
            raise self._error(
                "data after the end of the archive",
                "data-after-end",
                offset,
                hint="join archives with `wds cat A B -o OUT`; save these with `wds repair SHARDS -o OUT`",
            )
        self.position = max(self.position, base + len(buffer))
        if self.limit is None and self.position - self._end_at > MAX_ZEROS_BYTES:
            raise endless(self.shard or "a stream")

    def finish(self, total: int) -> None:
        """Report that the archive ended after ``total`` bytes. Raises DataError unless it is complete."""
        if self.ended:
            return
        if total <= self.first == 0 and self.shard == "-":
            raise empty_stream("not-a-tar")
        if total <= self.first:
            raise self._error("not a tar archive: it is empty", "not-a-tar", self.first, hint=_MAKE_AGAIN)
        if self.position > total:
            self._remember_last()
            raise cut(self.shard, self._last, 0, total - self._last.offsets[0])
        if self.extensions.start is not None:
            raise self._error(
                "archive ends before the member of an extended header", "truncated", self.extensions.start
            )
        if self.position < total:
            raise self._partial_block(total)
        where = self.position if self._zero_at is None else self._zero_at
        raise self._error(
            "no end of archive: the two zero blocks are missing"
            if self._zero_at is None
            else "no end of archive: one of the two zero blocks is missing",
            "no-end-of-archive",
            where,
            hint="members may be missing at its end: copy it again, or save its samples with `wds repair`",
        )

    def _partial_block(self, total: int) -> DataError:
        if self.position == self.first and total - self.first < BLOCK:
            message = "not a tar archive: it is shorter than one block"
            return self._error(
                message, "not-a-tar", self.first, hint=_other_format(self._begin, self.shard) or _MAKE_AGAIN
            )
        what = "a header block" if self.wanted == BLOCK else "an extended header"
        return self._error(f"archive ends inside {what}", "truncated", self.position, hint=CUT_SHORT)

    def _error(
        self, message: str, code: str, offset: int, member: str | None = None, hint: str | None = None
    ) -> DataError:
        return DataError(message, code=code, shard=self.shard, offset=offset, member=member, hint=hint)

    def _placed(self, error: DataError, offset: int, block: bytes) -> DataError:
        """Add the place to an error from ``header.py`` or :class:`Extensions`."""
        name, start = self.extensions.long_name, self.extensions.start
        if name is None and block[156:157] not in TYPEFLAGS:
            name = block[:100].partition(b"\0")[0]
        member = to_text(name) if name else None
        return self._error(error.message, error.code, offset if start is None else start, member)
