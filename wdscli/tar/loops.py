"""The loops that take the usual members, three of them, each for one way of writing headers.

What it is: the base of :class:`~wdscli.tar.scan.Scanner`. Each loop begins at a place in a buffer, takes members as
long as a few comparisons and look-ups say all about them, and moves ``position`` to the first block that needs more. A
loop never raises and never has the last word: what it leaves goes to the next one, and in the end to the exact path.

How it is fast: a block is unpacked once; ``_canonical`` compares what is constant in the canonical form, so that the
checksum needs only the sums of name and size; ``_regular`` and ``_timed`` sum the block with adler32, whose low half is
one more than the sum of all bytes (the cached tails keep that sum below 65521), and look the fields up in
:class:`~wdscli.tar.caches.Caches`.

It must not know the end of an archive, errors or extended headers that say something.
"""

from __future__ import annotations

from collections.abc import Callable
from zlib import adler32

from wdscli.tar.caches import Caches, Tail
from wdscli.tar.columns import new_columns
from wdscli.tar.extensions import Extensions, is_harmless
from wdscli.tar.header import BLOCK, CANONICAL_MIDDLE, CANONICAL_TAIL, FIELDS, FOREIGN, GLOBAL, Form

HOP = 1 << 12
"""Bytes read at each header when payloads are passed over: room for a header with a pax header before it, or for two
small members."""

_ZEROS = [bytes(length) for length in range(100)]

ReadAt = Callable[[int, int], bytes]
Buffer = bytes | bytearray | memoryview


class Loops:
    """The state that the loops share with the exact path."""

    def __init__(self, form: Form, first: int) -> None:
        self.form = form
        self.first = first
        """The archive's first byte."""
        self.position = first
        self.extensions = Extensions()
        self._caches = Caches(form)
        self._columns = new_columns()
        self._zero_at: int | None = None

    @property
    def globals(self) -> dict[bytes, bytes]:
        """The records of the pax global headers seen so far."""
        return self.extensions.globals

    @globals.setter
    def globals(self, records: dict[bytes, bytes]) -> None:
        self.extensions.put_globals(records)

    def _canonical(
        self, buffer: Buffer, at: int, base: int, read_at: ReadAt | None = None, count: int = 1 << 62
    ) -> None:
        """Members in the canonical form, without prefix and extended headers; moves ``position`` to what is none.

        With middle, mtime and tail known to be canonical, and zeros behind the name, the checksum is a constant plus
        the sums of name and size. (Names of one length have equal zeros behind them; 99 zeros are those of no name.)
        """
        if self._between() or self.globals:
            return
        names, starts, offsets, sizes, flags = self._columns
        add_name, add_start, add_offset, add_size = names.append, starts.append, offsets.append, sizes.append
        unpack, caches = FIELDS.unpack_from, self._caches
        known_sizes, known_checks = caches.plain_sizes, caches.plain_checks
        plain_mtime, plain_middle, plain_tail = self.form.mtime_field, CANONICAL_MIDDLE, CANONICAL_TAIL
        before = len(names)
        last = len(buffer) - BLOCK
        blocked, pad = False, b""
        try:
            while True:
                try:
                    while at <= last:
                        raw_name, middle, size_field, mtime, check, tail = unpack(buffer, at)
                        if tail != plain_tail or middle != plain_middle or mtime != plain_mtime:
                            blocked = True
                            break
                        name, _, rest = raw_name.partition(b"\0")
                        if rest != pad:
                            pad = _ZEROS[len(rest)]
                            if rest != pad or not name:
                                blocked = True
                                break
                        size, size_sum = known_sizes[size_field]
                        if (adler32(name) & 0xFFFF) + size_sum != known_checks[check]:
                            blocked = True
                            break
                        start = base + at
                        add_name(name)
                        add_start(start)
                        add_offset(start + 512)
                        add_size(size)
                        at += (size + 1023) & -512
                except KeyError:
                    if caches.learn_plain(size_field, check):
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

    def _regular(self, buffer: Buffer, at: int, base: int) -> None:
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

    def _named(
        self, about: Tail, raw_name: bytes, middle: bytes, mtime: bytes, check: bytes
    ) -> tuple[bytes, int]:
        """Name and flag of a member whose tail is not plain; no name when it takes the exact path to know."""
        name, flag = raw_name.partition(b"\0")[0], self._foreign()
        if not name or (about.old and name.endswith(b"/")):
            return b"", 0
        if (
            about.canonical
            and not self.globals
            and middle == CANONICAL_MIDDLE
            and mtime == self.form.mtime_field
        ):
            # Canonical as a whole if the name is split where it must be and all fields are written canonically.
            whole = (
                len(about.prefix) + len(name) > 100 and b"/" not in name and raw_name.rstrip(b"\0") == name
            )
            if not (about.prefix and whole and check in self._caches.plain_checks):
                return b"", 0
            flag = 0
        return about.prefix + name, flag

    def _timed(self, buffer: Buffer, at: int, base: int) -> None:
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
                if size > 512 or not is_harmless(bytes(buffer[at + 512 : at + 512 + size])):
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
