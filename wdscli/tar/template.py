"""Canonical headers in bulk: the same bytes as ``build_header``, for a quarter of its time.

What it is: a function that remembers what headers of one form have in common. How: members of one size share the block
up to the checksum, members of one checksum share the rest, and both come from small caches, so that a header is three
byte strings joined. What ustar cannot say in one block goes to ``build_header``. It must not know what is written.
"""

from __future__ import annotations

from collections.abc import Callable
from zlib import adler32

from wdscli.tar.header import CANONICAL, CANONICAL_MIDDLE, CANONICAL_TAIL, Form, build_header, byte_sum

_MAX_CACHED = 1 << 14
_ONE_BLOCK_SIZE = 1 << 33


def header_maker(form: Form = CANONICAL) -> Callable[[bytes, int], bytes]:
    """A function from name and size to canonical header blocks.

    >>> header_maker()(b"a.txt", 5) == build_header(b"a.txt", 5)
    True
    """
    mtime = form.mtime_field
    # The checksum field counts as eight spaces; adler32 counts one more than the bytes of the name.
    common = byte_sum(CANONICAL_MIDDLE + mtime + CANONICAL_TAIL) + 8 * 32 - 1
    middles: dict[int, tuple[bytes, int]] = {}
    ends: dict[int, bytes] = {}

    def middle_of(size: int) -> tuple[bytes, int]:
        field = b"%011o\0" % size
        if len(middles) >= _MAX_CACHED:
            middles.clear()
        middles[size] = found = CANONICAL_MIDDLE + field + mtime, common + byte_sum(field)
        return found

    def end_of(total: int) -> bytes:
        if len(ends) >= _MAX_CACHED:
            ends.clear()
        ends[total] = found = b"%06o\0 " % total + CANONICAL_TAIL
        return found

    def make(name: bytes, size: int) -> bytes:
        if len(name) > 100 or size >= _ONE_BLOCK_SIZE or 0 in name:
            return build_header(name, size, form)
        middle, total = middles.get(size) or middle_of(size)
        total += adler32(name) & 0xFFFF
        return name.ljust(100, b"\0") + middle + (ends.get(total) or end_of(total))

    return make
