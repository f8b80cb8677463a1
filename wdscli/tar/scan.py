"""The fast loop: header blocks to columns, one buffer at a time.

What it is: a push parser. ``feed`` takes a buffer and the place of its first byte in the archive, walks the headers that
lie in it and appends to plain lists: names, starts, offsets, sizes, flags. ``position`` is the byte it wants to see
next, which lies beyond the buffer when a payload is skipped. It reads nothing itself, so a file read by jumps and a
stream cut into any chunks go through the same code and give the same columns.

How it is fast: a block is unpacked once; its checksum, size and tail fields go through small caches, because they
repeat; a block that any cache does not know takes the slow, exact path (``_slow``), which also handles extended headers,
links, sparse members and the end of the archive. In the fast path a member costs about one microsecond.

It must not know samples, files or networks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from zlib import adler32

from wdscli.errors import DataError
from wdscli.model import Member, to_text
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
    MAX_EXTENDED_CHAIN,
    MAX_EXTENDED_SIZE,
    REGULAR,
    SPARSE,
    Form,
    build_header,
    byte_sum,
    checksum_is_right,
    has_payload,
    kind_of,
    padded,
    parse_block,
    parse_number,
    parse_pax,
    pax_size,
)

HOP = 1 << 11
"""Bytes read at each header when payloads are passed over: room for a header, two small members and their headers."""
_ZERO_BLOCK = bytes(BLOCK)
_CACHE_LIMIT = 1 << 15
_EXTENSIONS = frozenset((b"x", b"g", b"L", b"K"))


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
        self.position = first
        self.ended = False
        """The two zero blocks were seen; from here on only zeros may come."""
        self.globals: dict[bytes, bytes] = {}
        """The records of the pax global headers seen so far."""
        self.first = first
        """The archive's first byte."""
        self._columns = new_columns()
        self._zero_at: int | None = None
        self._start: int | None = None
        self._records: dict[bytes, bytes] = {}
        self._long_name: bytes | None = None
        self._chain = 0
        self._raw = b""
        self._extended_size = 0
        self._last = (b"", first, first, 0)
        self.wanted = BLOCK
        """How many bytes from ``position`` on the next buffer must hold for the scanner to go on."""
        self._checks: dict[bytes, int] = {}
        self._sizes: dict[bytes, int] = {}
        self._tails: dict[bytes, int] = {}
        self._plain_sizes: dict[bytes, tuple[int, int]] = {}
        self._plain_checks: dict[bytes, int] = {}
        constant = CANONICAL_MIDDLE + form.mtime_field + CANONICAL_TAIL
        self._plain_sum = byte_sum(constant) + 8 * 32

    def take(self, seen: int | None = None) -> Columns:
        """The members found since the last call. With ``seen``, the bytes of the archive that are known to be there, a
        member that reaches beyond them is kept back until it is known to be whole."""
        columns, self._columns = self._columns, new_columns()
        names, starts, offsets, sizes, flags = columns
        if names:
            self._last = names[-1], starts[-1], offsets[-1], sizes[-1]
            if seen is not None and offsets[-1] + padded(sizes[-1]) > seen:
                self._append(names.pop(), starts.pop(), offsets.pop(), sizes.pop(), flags.pop())
        return columns

    def feed(self, buffer: bytes | bytearray | memoryview, base: int) -> None:
        """Walk the headers that lie whole in ``buffer``, whose first byte is byte ``base`` of the archive."""
        at = self.position - base
        view = memoryview(buffer)
        while 0 <= at <= len(view) and not self.ended:
            at = self._canonical(buffer, at, base) - base
            if at + BLOCK <= len(view):
                self._regular(view, at, base)
                at = self.position - base
            self._check_limit()
            if at + BLOCK > len(view):
                return
            at = self._slow(view, at, base)
            if at < 0:
                return
            self.position = base + at
            self._check_limit()
        if self.ended:
            self._only_zeros(view, max(0, self.position - base), base)

    def hop(self, read_at: Callable[[int, int], bytes], count: int) -> None:
        """Walk up to ``count`` members by reading a few KiB at each header; stops early at a block that :meth:`feed`
        must see. For archives of large members, where a buffer would hold payloads that nobody asked for."""
        base = self.position
        buffer = read_at(base, HOP)
        rest = self._canonical(buffer, 0, base, read_at, count)
        if rest == base and len(buffer) >= BLOCK:
            self._regular(memoryview(buffer), 0, base)
        self._check_limit()

    def _canonical(
        self,
        buffer: bytes | bytearray | memoryview,
        at: int,
        base: int,
        read_at: Callable[[int, int], bytes] | None = None,
        count: int = 1 << 62,
    ) -> int:
        """Members in the canonical form; returns the byte of the archive where another block, or more to read, is.

        With middle, mtime and tail known to be canonical, the checksum is a constant plus the sums of name and size.
        That it matches also says that nothing but zeros follows the name, so that the block is canonical as a whole.
        """
        names, starts, offsets, sizes, flags = self._columns
        add_name, add_start, add_offset, add_size = names.append, starts.append, offsets.append, sizes.append
        unpack, known_sizes, known_checks = FIELDS.unpack_from, self._plain_sizes, self._plain_checks
        mtime_field, middle, plain_tail = self.form.mtime_field, CANONICAL_MIDDLE, CANONICAL_TAIL
        before = len(names)
        limit = before + count
        last = len(buffer) - BLOCK
        blocked = self._start is not None or self._zero_at is not None or bool(self.globals)
        while not blocked:
            try:
                while at <= last:
                    raw_name, middle_field, size_field, mtime, check, tail = unpack(buffer, at)
                    if tail != plain_tail or middle_field != middle or mtime != mtime_field:
                        blocked = True
                        break
                    name = raw_name.partition(b"\0")[0]
                    size, size_sum = known_sizes[size_field]
                    if (adler32(name) & 0xFFFF) + size_sum != known_checks[check] or not name:
                        blocked = True
                        break
                    start = base + at
                    add_name(name)
                    add_start(start)
                    add_offset(start + 512)
                    add_size(size)
                    at += (size + 1023) & -512
            except KeyError:
                if self._learn_plain(size_field, check):
                    continue
                blocked = True
            if read_at is None or blocked or len(names) >= limit:
                break
            base += at
            at = 0
            buffer = read_at(base, HOP)
            last = len(buffer) - BLOCK
            blocked = last < 0
        flags.extend([0] * (len(names) - before))
        self.position = base + at
        return base + at

    def _learn_plain(self, size_field: bytes, check: bytes) -> bool:
        """Teach the caches of the canonical path two fields; False when they are not written canonically."""
        if not (size_field[:11].isdigit() and check[:6].isdigit()):
            return False
        try:
            size, stored = int(size_field[:11], 8), int(check[:6], 8)
        except ValueError:
            return False
        if size_field != b"%011o\0" % size or check != b"%06o\0 " % stored:
            return False
        if len(self._plain_sizes) > _CACHE_LIMIT:
            self._plain_sizes.clear()
        # adler32's low half is one more than the sum, here and for the name.
        self._plain_sizes[size_field] = size, (adler32(size_field) & 0xFFFF) - 1
        self._plain_checks[check] = stored - self._plain_sum + 1
        return True

    def _regular(self, view: memoryview, at: int, base: int) -> None:
        """Regular members of any writer whose every field a cache knows; stops at any other block."""
        names, starts, offsets, sizes, flags = self._columns
        unpack, checks, known_sizes, tails = FIELDS.unpack_from, self._checks, self._sizes, self._tails
        last = len(view) - BLOCK
        if self._start is not None or self._zero_at is not None or self.globals:
            return
        try:
            while at <= last:
                raw_name, _, size_field, _, check, tail = unpack(view, at)
                if adler32(view[at : at + BLOCK]) & 0xFFFF != checks[check]:
                    break
                size = known_sizes[size_field]
                flag = tails[tail]
                name = raw_name.partition(b"\0")[0]
                if not name or not flag:
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

    def _learn(self, block: bytes, size: int) -> None:
        """Teach the caches the fields of a regular block that is not canonical."""
        check, size_field, tail = block[148:156], block[124:136], block[156:]
        for cache in (self._checks, self._sizes, self._tails):
            if len(cache) > _CACHE_LIMIT:
                cache.clear()
        stored = parse_number(check, "checksum")
        # The sum modulo 65521 says all only while the sum itself is smaller.
        if stored < 65000:
            self._checks[check] = (stored - 8 * 32 + byte_sum(check)) % 65521 + 1
        self._sizes[size_field] = size
        if block[156:157] in b"07" and not (block[257:263] == b"ustar\0" and block[345]):
            self._tails[tail] = REGULAR | FOREIGN

    def _slow(self, view: memoryview, at: int, base: int) -> int:
        """One block, exactly. Returns the next position in the buffer, or -1 when more bytes are needed first."""
        block = bytes(view[at : at + BLOCK])
        here = base + at
        if block == _ZERO_BLOCK:
            return self._zero(at, here)
        if self._zero_at is not None:
            raise self._error("data follows a lone zero block", "data-after-end", self._zero_at)
        if not checksum_is_right(block):
            raise self._bad_block(block, here)
        try:
            header = parse_block(block)
            if header.typeflag in _EXTENSIONS:
                return self._extension(view, at, base, header.typeflag, header.size)
            return self._member(view, at, base, block)
        except DataError as error:
            raise self._placed(error, here, block) from None

    def _bad_block(self, block: bytes, here: int) -> DataError:
        if here == self.first:
            return self._error("not a tar archive: the first block is no header", "not-a-tar", here)
        return self._error("header checksum is wrong", "bad-checksum", here)

    def _zero(self, at: int, here: int) -> int:
        if self._start is not None:
            raise self._error("extended header without its member", "bad-extended-header", self._start)
        if self._zero_at is None:
            self._zero_at = here
        else:
            self.ended = True
        return at + BLOCK

    def _extension(self, view: memoryview, at: int, base: int, typeflag: bytes, size: int) -> int:
        """A pax or GNU header that speaks of the next member (x, L, K) or of all that follow (g)."""
        if size > MAX_EXTENDED_SIZE:
            raise DataError(f"extended header of {size} bytes (at most {MAX_EXTENDED_SIZE} are read)", code="bad-extended-header")
        self._chain += 1
        self._extended_size += size
        if self._chain > MAX_EXTENDED_CHAIN or self._extended_size > MAX_EXTENDED_SIZE:
            raise DataError(f"more than {MAX_EXTENDED_CHAIN} extended headers in a row", code="bad-extended-header")
        end = at + BLOCK + padded(size)
        if self.limit is not None and base + end > self.limit:
            raise DataError("archive ends inside an extended header", code="truncated")
        if end > len(view):
            self._chain -= 1
            self._extended_size -= size
            self.wanted = end - at
            return -1
        self._apply(typeflag, bytes(view[at + BLOCK : at + BLOCK + size]))
        if typeflag != b"g" and self._start is None:
            self._start = base + at
        if self._start is not None:
            self._raw += bytes(view[at:end])
        return end

    def _apply(self, typeflag: bytes, data: bytes) -> None:
        if typeflag == b"L":
            self._long_name = data.partition(b"\0")[0]
        elif typeflag == b"x":
            self._records.update(parse_pax(data))
        elif typeflag == b"g":
            self.globals.update(parse_pax(data))
            # POSIX: an empty value takes the record back.
            self.globals = {keyword: value for keyword, value in self.globals.items() if value}

    def _member(self, view: memoryview, at: int, base: int, block: bytes) -> int:
        header = parse_block(block)
        records = {**self.globals, **self._records} if self.globals else self._records
        name, size, kind = self._described(header.name, header.size, header.typeflag, records)
        end = at + BLOCK
        if header.typeflag == b"S":
            end = self._skip_sparse_map(view, at, block)
            if end < 0:
                return -1
        start = self._start if self._start is not None else base + at
        flag = kind | (GLOBAL if self.globals else 0)
        if not self._is_canonical(block, name, size, kind):
            flag |= FOREIGN
        if kind == REGULAR and flag & FOREIGN and self._start is None and not self.globals:
            self._learn(block, size)
        if not has_payload(header.typeflag):
            size = 0
        self._append(name, start, base + end, size, flag)
        self._forget()
        return end + padded(size)

    def _described(self, name: bytes, size: int, typeflag: bytes, records: dict[bytes, bytes]) -> tuple[bytes, int, int]:
        """Name, size and kind once the extended headers have had their say; a pax record wins over a GNU header."""
        if self._long_name is not None:
            name = self._long_name
        if records:
            name = records.get(b"path") or name
            if records.get(b"size"):
                size = pax_size(records[b"size"])
        kind = kind_of(typeflag, name)
        if kind == REGULAR and any(keyword.startswith(b"GNU.sparse.") for keyword in records):
            return records.get(b"GNU.sparse.name") or name, size, SPARSE
        return name, size, kind

    def _is_canonical(self, block: bytes, name: bytes, size: int, kind: int) -> bool:
        if kind != REGULAR or self.globals or not name or b"\0" in name:
            return False
        return self._raw + block == build_header(name, size, self.form)

    def _skip_sparse_map(self, view: memoryview, at: int, block: bytes) -> int:
        """Old GNU sparse: byte 482 says that blocks with more of the map follow, byte 504 of each that another does."""
        more, end = block[482] != 0, at + BLOCK
        while more:
            if end - at > MAX_EXTENDED_SIZE:
                raise DataError("sparse map without end", code="bad-extended-header")
            if end + BLOCK > len(view):
                self.wanted = end - at + 64 * BLOCK
                return -1
            more = view[end + 504] != 0
            end += BLOCK
        return end

    def _append(self, name: bytes, start: int, offset: int, size: int, flag: int) -> None:
        columns = self._columns
        columns.names.append(name)
        columns.starts.append(start)
        columns.offsets.append(offset)
        columns.sizes.append(size)
        columns.flags.append(flag)

    def _forget(self) -> None:
        self._start = None
        self._records = {}
        self._long_name = None
        self._chain = 0
        self._extended_size = 0
        self._raw = b""
        self.wanted = BLOCK

    def _check_limit(self) -> None:
        """The last member's payload must lie in what is left of the archive."""
        if self.limit is not None and self.position > self.limit and self._columns.names:
            self._remember_last()
            for column in self._columns:
                column.pop()
            raise self._cut(self.limit)

    def _remember_last(self) -> None:
        names, starts, offsets, sizes, _ = self._columns
        if names:
            self._last = names[-1], starts[-1], offsets[-1], sizes[-1]

    def _cut(self, seen: int) -> DataError:
        """The error of an archive that ends inside the last member's payload or padding."""
        name, start, offset, size = self._last
        what = f"archive ends after {max(0, seen - offset)} of {size} payload bytes"
        return self._error(
            what if seen < offset + size else "archive ends inside a member's padding",
            "truncated",
            start,
            to_text(name),
            hint="the copy or upload was cut short: make it again, or save the whole samples with `wds verify --repair`",
        )

    def _only_zeros(self, view: memoryview, at: int, base: int) -> None:
        """POSIX: what follows the two zero blocks is not part of the archive; only the zeros that fill the last record
        of a tape are harmless, anything else is data that a reader would pass over in silence."""
        rest = bytes(view[at:])
        if rest.count(0) != len(rest):
            offset = base + at + len(rest) - len(rest.lstrip(b"\0"))
            raise self._error(
                "data after the end of the archive",
                "data-after-end",
                offset,
                hint="archives joined with `cat` look like this: join them with `wds cat A B -o OUT`",
            )
        self.position = max(self.position, base + len(view))

    def finish(self, total: int) -> None:
        """The archive ended after ``total`` bytes: raise unless it is whole."""
        if self.ended:
            return
        if total <= self.first:
            raise self._error("not a tar archive: it is empty", "not-a-tar", self.first)
        if self.position > total:
            self._remember_last()
            raise self._cut(total)
        if self._start is not None:
            raise self._error("archive ends inside or after an extended header", "truncated", self._start)
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
        return self._error("archive ends inside a header block", "truncated", self.position)

    def _error(
        self, message: str, code: str, offset: int, member: str | None = None, hint: str | None = None
    ) -> DataError:
        return DataError(message, code=code, shard=self.shard, offset=offset, member=member, hint=hint)

    def _placed(self, error: DataError, here: int, block: bytes) -> DataError:
        """``error`` from the rules of ``header.py``, which know no place."""
        if error.offset is not None:
            return error
        name = block[:100].partition(b"\0")[0]
        start = here if self._start is None else self._start
        return self._error(error.message, error.code, start, to_text(self._long_name or name) or None)
