"""The fast loop: header blocks to columns, one buffer at a time.

What it is: a push parser. ``feed`` takes a buffer and the place of its first byte in the archive, walks the headers
that lie in it and appends to plain lists: names, starts, offsets, sizes, flags. ``position`` is the byte it wants to see
next, which lies beyond the buffer when a payload is skipped. It reads nothing itself, so a file read by jumps and a
stream cut into any chunks go through the same code and give the same columns.

How it is fast: three loops, from the usual to the exact. ``_canonical`` compares what is constant in the canonical form
and looks up the rest; ``_regular`` takes regular members of any writer, with or without pax records of times, by a sum
over the block and the same kind of lookup; a block that they do not know goes to ``_slow``, alone, and teaches them.
There are extended headers, folders, links, sparse members and the end of the archive.

It must not know samples, files or networks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from zlib import adler32

from wdscli.errors import DataError
from wdscli.model import Member, to_text
from wdscli.tar.caches import Caches, Tail
from wdscli.tar.extensions import TYPEFLAGS, Extensions, is_harmless
from wdscli.tar.header import (
    BLOCK,
    CANONICAL,
    CANONICAL_MIDDLE,
    CANONICAL_TAIL,
    FIELDS,
    FOREIGN,
    GLOBAL,
    KIND_MASK,
    KIND_NAMES,
    MAX_EXTENDED_SIZE,
    REGULAR,
    Form,
    Header,
    build_header,
    checksum_is_right,
    has_payload,
    padded,
    parse_block,
)

HOP = 1 << 11
"""Bytes read at each header when payloads are passed over: room for a header, two small members and their headers."""
_ZERO_BLOCK = bytes(BLOCK)

ReadAt = Callable[[int, int], bytes]


class Columns(NamedTuple):
    """Members as parallel lists. ``starts`` are the bytes of the first header block (extended headers included),
    ``offsets`` those of the payload, ``flags`` a kind (``KIND_MASK``) and FOREIGN, GLOBAL; 0 is a canonical regular
    member."""

    names: list[bytes]
    starts: list[int]
    offsets: list[int]
    sizes: list[int]
    flags: list[int]

    def part(self, first: int, end: int) -> Columns:
        """The rows from ``first`` up to ``end``."""
        return Columns(
            self.names[first:end],
            self.starts[first:end],
            self.offsets[first:end],
            self.sizes[first:end],
            self.flags[first:end],
        )

    def member(self, row: int) -> Member:
        """One row as a record of the library's face."""
        kind = KIND_NAMES[self.flags[row] & KIND_MASK]
        return Member(to_text(self.names[row]), kind, self.starts[row], self.offsets[row], self.sizes[row])


def new_columns() -> Columns:
    return Columns([], [], [], [], [])


def cut(shard: str | None, columns: Columns, row: int, seen: int) -> DataError:
    """The error of an archive that ends ``seen`` bytes behind the header of a member."""
    size = columns.sizes[row]
    return DataError(
        f"archive ends after {max(0, seen)} of {size} payload bytes"
        if seen < size
        else "archive ends inside a member's padding",
        code="truncated",
        shard=shard,
        offset=columns.starts[row],
        member=to_text(columns.names[row]),
        hint="the copy or upload was cut short: make it again, or save whole samples with `wds verify --repair`",
    )


class Scanner:
    """Walks one archive. ``limit`` is the archive's size in bytes when it is known, ``first`` where it begins.

    Feed it buffers in rising order that hold the byte at ``position``; take the columns with :meth:`take`; call
    :meth:`finish` once with the number of bytes seen. All errors are DataError with offset and, where known, member
    (``shard`` is the name given here).
    """

    def __init__(
        self, shard: str | None = None, *, limit: int | None = None, form: Form = CANONICAL, first: int = 0
    ) -> None:
        self.shard = shard
        self.limit = limit
        self.form = form
        self.first = first
        """The archive's first byte."""
        self.position = first
        self.ended = False
        """The two zero blocks were seen; from here on only zeros may come."""
        self.wanted = BLOCK
        """How many bytes from ``position`` on the next buffer must hold for the scanner to go on."""
        self.extensions = Extensions()
        self._caches = Caches(form)
        self._columns = new_columns()
        self._zero_at: int | None = None
        self._last = new_columns()

    @property
    def globals(self) -> dict[bytes, bytes]:
        """The records of the pax global headers seen so far."""
        return self.extensions.globals

    def take(self, seen: int | None = None) -> Columns:
        """The members found since the last call. With ``seen``, the bytes of the archive that are known to be there, a
        member that reaches beyond them is kept back until it is known to be whole."""
        columns, self._columns = self._columns, new_columns()
        names, starts, offsets, sizes, flags = columns
        if names:
            self._last = Columns(names[-1:], starts[-1:], offsets[-1:], sizes[-1:], flags[-1:])
            if seen is not None and offsets[-1] + padded(sizes[-1]) > seen:
                self._append(names.pop(), starts.pop(), offsets.pop(), sizes.pop(), flags.pop())
        return columns

    def feed(self, buffer: bytes | bytearray | memoryview, base: int) -> None:
        """Walk the headers that lie whole in ``buffer``, whose first byte is byte ``base`` of the archive."""
        if not isinstance(buffer, bytes):
            buffer = bytes(buffer)
        at = self.position - base
        while 0 <= at <= len(buffer) and not self.ended:
            self._canonical(buffer, at, base)
            self._regular(buffer, self.position - base, base)
            self._timed(buffer, self.position - base, base)
            self._check_limit()
            at = self.position - base
            if at + BLOCK > len(buffer):
                return
            at = self._slow(buffer, at, base)
            if at < 0:
                return
            self.position = base + at
            self._check_limit()
        if self.ended:
            self._only_zeros(buffer, max(0, self.position - base), base)

    def hop(self, read_at: ReadAt, count: int) -> None:
        """Walk up to ``count`` members by reading a few KiB at each header; stops early at a block that :meth:`feed`
        must see. For archives of large members, where a buffer would hold payloads that nobody asked for."""
        self._canonical(b"", 0, self.position, read_at, count)
        while len(self._columns.names) < count:
            base = self.position
            buffer = read_at(base, HOP)
            self._regular(buffer, 0, base)
            self._timed(buffer, self.position - base, base)
            if self.position == base:
                break
        self._check_limit()

    def _canonical(
        self, buffer: bytes, at: int, base: int, read_at: ReadAt | None = None, count: int = 1 << 62
    ) -> None:
        """Members in the canonical form, without prefix and extended headers; moves ``position`` to what is none.

        With middle, mtime and tail known to be canonical, the checksum is a constant plus the sums of name and size.
        That it matches also says that nothing but zeros follows the name, so that the block is canonical as a whole.
        """
        if self._between() or self.globals:
            return
        names, starts, offsets, sizes, flags = self._columns
        add_name, add_start, add_offset, add_size = names.append, starts.append, offsets.append, sizes.append
        unpack, known_sizes, known_checks = FIELDS.unpack_from, self._caches.plain_sizes, self._caches.plain_checks
        plain_mtime, plain_middle, plain_tail = self.form.mtime_field, CANONICAL_MIDDLE, CANONICAL_TAIL
        before = len(names)
        last = len(buffer) - BLOCK
        blocked = False
        try:
            while True:
                try:
                    while at <= last:
                        raw_name, middle, size_field, mtime, check, tail = unpack(buffer, at)
                        if tail != plain_tail or middle != plain_middle or mtime != plain_mtime:
                            blocked = True
                            break
                        name = raw_name.rstrip(b"\0")
                        size, size_sum = known_sizes[size_field]
                        if (adler32(name) & 0xFFFF) + size_sum != known_checks[check] or not name or 0 in name:
                            blocked = True
                            break
                        start = base + at
                        add_name(name)
                        add_start(start)
                        add_offset(start + 512)
                        add_size(size)
                        at += (size + 1023) & -512
                except KeyError:
                    if self._caches.learn_plain(size_field, check):
                        continue
                    return
                if read_at is None or blocked or len(names) - before >= count:
                    return
                base += at
                at = 0
                buffer = read_at(base, HOP)
                last = len(buffer) - BLOCK
                if last < 0:
                    return
        finally:
            flags.extend([0] * (len(names) - before))
            self.position = base + at

    def _between(self) -> bool:
        """Whether what came before says something of the next block, which only the exact path weighs."""
        extensions = self.extensions
        return self._zero_at is not None or extensions.start is not None or extensions.gap

    def _foreign(self) -> int:
        return FOREIGN | GLOBAL if self.globals else FOREIGN

    def _regular(self, buffer: bytes, at: int, base: int) -> None:
        """Regular members of any writer whose every field a cache knows; moves ``position`` to what is none."""
        last = len(buffer) - BLOCK
        if at > last or self._between() or self.extensions.globals_lead:
            return
        names, starts, offsets, sizes, flags = self._columns
        checks, known_sizes, tails = self._caches.checks, self._caches.sizes, self._caches.tails
        unpack, foreign, known_tail = FIELDS.unpack_from, self._foreign(), b""
        try:
            while at <= last:
                raw_name, middle, size_field, mtime, check, tail = unpack(buffer, at)
                if adler32(buffer[at : at + 512]) & 0xFFFF != checks[check]:
                    break
                if tail != known_tail:
                    about = tails[tail]
                    if about.extended:
                        break
                    known_tail, plain = tail, about.plain
                size = known_sizes[size_field]
                name, flag = raw_name.partition(b"\0")[0], foreign
                if not plain:
                    name, flag = self._named(about, raw_name, middle, mtime, check)
                if not name:
                    break
                start = base + at
                names.append(name)
                starts.append(start)
                offsets.append(start + 512)
                sizes.append(size)
                flags.append(flag)
                at += (size + 1023) & -512
        except KeyError:
            pass
        self.position = base + at

    def _named(self, about: Tail, raw_name: bytes, middle: bytes, mtime: bytes, check: bytes) -> tuple[bytes, int]:
        """Name and flag of a member whose tail is not plain; no name when it takes the exact path to know."""
        name, flag = raw_name.partition(b"\0")[0], self._foreign()
        if not name or (about.old and name.endswith(b"/")):
            return b"", 0
        if about.canonical and not self.globals and middle == CANONICAL_MIDDLE and mtime == self.form.mtime_field:
            # Canonical as a whole if the name is split where it must be and all fields are written canonically.
            whole = len(about.prefix) + len(name) > 100 and b"/" not in name and raw_name.rstrip(b"\0") == name
            if not (about.prefix and whole and check in self._caches.plain_checks):
                return b"", 0
            flag = 0
        return about.prefix + name, flag

    def _timed(self, buffer: bytes, at: int, base: int) -> None:
        """Regular members behind a pax header that says nothing of name and size, as Python's tarfile and so
        webdataset's writer put before every member; moves ``position`` to what is none."""
        last = len(buffer) - 3 * BLOCK
        if at > last or self._between() or self.extensions.globals_lead:
            return
        names, starts, offsets, sizes, flags = self._columns
        checks, known_sizes, tails = self._caches.checks, self._caches.sizes, self._caches.tails
        unpack, foreign, extended_tail, known_tail = FIELDS.unpack_from, self._foreign(), b"", b""
        try:
            while at <= last:
                _, _, size_field, _, check, tail = unpack(buffer, at)
                if adler32(buffer[at : at + 512]) & 0xFFFF != checks[check]:
                    break
                if tail != extended_tail:
                    if not tails[tail].extended:
                        break
                    extended_tail = tail
                size = known_sizes[size_field]
                if size > 512 or not is_harmless(buffer[at + 512 : at + 512 + size]):
                    break
                raw_name, _, size_field, _, check, tail = unpack(buffer, at + 1024)
                if adler32(buffer[at + 1024 : at + 1536]) & 0xFFFF != checks[check]:
                    break
                if tail != known_tail:
                    about = tails[tail]
                    if about.extended or about.old:
                        break
                    known_tail, prefix = tail, about.prefix
                size = known_sizes[size_field]
                name = raw_name.partition(b"\0")[0]
                if not name:
                    break
                start = base + at
                names.append(prefix + name)
                starts.append(start)
                offsets.append(start + 1536)
                sizes.append(size)
                flags.append(foreign)
                at += (size + 2047) & -512
        except KeyError:
            pass
        self.position = base + at

    def _slow(self, buffer: bytes, at: int, base: int) -> int:
        """One block, exactly. Returns the next position in the buffer, or -1 when more bytes are needed first."""
        block = buffer[at : at + BLOCK]
        here = base + at
        if block == _ZERO_BLOCK:
            return self._zero(at, here)
        if self._zero_at is not None:
            raise self._error("data follows a lone zero block", "data-after-end", self._zero_at)
        if not checksum_is_right(block):
            raise self._bad_block(here)
        try:
            header = parse_block(block)
            if header.typeflag in TYPEFLAGS:
                return self._extension(buffer, at, base, header)
            return self._member(buffer, at, base, header)
        except DataError as error:
            raise self._placed(error, here, block) from None

    def _bad_block(self, here: int) -> DataError:
        if here == self.first:
            return self._error("not a tar archive: the first block is no header", "not-a-tar", here)
        return self._error("header checksum is wrong", "bad-checksum", here)

    def _zero(self, at: int, here: int) -> int:
        if self.extensions.start is not None:
            raise self._error("extended header without its member", "bad-extended-header", self.extensions.start)
        if self._zero_at is None:
            self._zero_at = here
        else:
            self.ended = True
        return at + BLOCK

    def _extension(self, buffer: bytes, at: int, base: int, header: Header) -> int:
        """A pax or GNU header that speaks of the next member (x, L, K) or of all that follow (g)."""
        self.extensions.check(header.size)
        end = at + BLOCK + padded(header.size)
        if end > len(buffer):
            self.wanted = end - at
            return -1
        self.extensions.add(header.typeflag, base + at, buffer[at:end], header.size)
        self._caches.learn(buffer[at : at + BLOCK], header)
        self.wanted = BLOCK
        return end

    def _member(self, buffer: bytes, at: int, base: int, header: Header) -> int:
        block, end = buffer[at : at + BLOCK], at + BLOCK
        name, size, kind = self.extensions.describe(header)
        if header.typeflag == b"S":
            end = self._skip_sparse_map(buffer, at)
            if end < 0:
                return -1
        flag = kind if self._is_canonical(block, name, size, kind) else kind | self._foreign()
        if kind == REGULAR:
            self._caches.learn(block, header)
        if not has_payload(header.typeflag):
            size = 0
        start = self.extensions.start
        self._append(name, base + at if start is None else start, base + end, size, flag)
        self.extensions.clear()
        self.wanted = BLOCK
        return end + padded(size)

    def _is_canonical(self, block: bytes, name: bytes, size: int, kind: int) -> bool:
        """Whether all the member's blocks, a global header right before them included, are what we would write."""
        if kind != REGULAR or self.extensions.gap or self.globals or not name or 0 in name:
            return False
        if block[100:124] != CANONICAL_MIDDLE:
            return False
        return self.extensions.raw + block == build_header(name, size, self.form)

    def _skip_sparse_map(self, buffer: bytes, at: int) -> int:
        """Old GNU sparse: byte 482 says that blocks with more of the map follow, byte 504 of each that another does."""
        more, end = buffer[at + 482] != 0, at + BLOCK
        while more:
            if end - at > MAX_EXTENDED_SIZE:
                raise DataError("sparse map without end", code="bad-extended-header")
            if end + BLOCK > len(buffer):
                self.wanted = end - at + 64 * BLOCK
                return -1
            more = buffer[end + 504] != 0
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
        """The last member's payload must lie in what is left of the archive."""
        if self.limit is not None and self.position > self.limit and self._columns.names:
            self._remember_last()
            for column in self._columns:
                column.pop()
            raise cut(self.shard, self._last, 0, self.limit - self._last.offsets[0])

    def _remember_last(self) -> None:
        names, starts, offsets, sizes, flags = self._columns
        if names:
            self._last = Columns(names[-1:], starts[-1:], offsets[-1:], sizes[-1:], flags[-1:])

    def _only_zeros(self, buffer: bytes, at: int, base: int) -> None:
        """POSIX: what follows the two zero blocks is not part of the archive; only the zeros that fill the last record
        of a tape are harmless, anything else is data that a reader would pass over in silence."""
        rest = buffer[at:]
        if rest.count(0) != len(rest):
            offset = base + at + len(rest) - len(rest.lstrip(b"\0"))
            raise self._error(
                "data after the end of the archive",
                "data-after-end",
                offset,
                hint="archives joined with `cat` look like this: join them with `wds cat A B -o OUT`",
            )
        self.position = max(self.position, base + len(buffer))

    def finish(self, total: int) -> None:
        """The archive ended after ``total`` bytes: raise unless it is whole."""
        if self.ended:
            return
        if total <= self.first:
            raise self._error("not a tar archive: it is empty", "not-a-tar", self.first)
        if self.position > total:
            self._remember_last()
            raise cut(self.shard, self._last, 0, total - self._last.offsets[0])
        if self.extensions.start is not None:
            raise self._error("archive ends before the member of an extended header", "truncated", self.extensions.start)
        if self.position < total:
            raise self._partial_block(total)
        where = self.position if self._zero_at is None else self._zero_at
        raise self._error(
            "no end of archive: the two zero blocks are missing" if self._zero_at is None
            else "no end of archive: one zero block where two belong",
            "no-end-of-archive",
            where,
            hint="the archive may lack members at its end: make it again, or save what is there with `wds verify --repair`",
        )

    def _partial_block(self, total: int) -> DataError:
        if self.position == self.first and total - self.first < BLOCK:
            return self._error("not a tar archive: it is shorter than one block", "not-a-tar", self.first)
        what = "a header block" if self.wanted == BLOCK else "an extended header"
        return self._error(f"archive ends inside {what}", "truncated", self.position)

    def _error(
        self, message: str, code: str, offset: int, member: str | None = None, hint: str | None = None
    ) -> DataError:
        return DataError(message, code=code, shard=self.shard, offset=offset, member=member, hint=hint)

    def _placed(self, error: DataError, here: int, block: bytes) -> DataError:
        """``error`` from the rules of ``header.py`` and ``extensions.py``, which know no place."""
        name, start = self.extensions.long_name, self.extensions.start
        if name is None and block[156:157] not in TYPEFLAGS:
            name = block[:100].partition(b"\0")[0]
        member = to_text(name) if name else None
        return self._error(error.message, error.code, here if start is None else start, member)
