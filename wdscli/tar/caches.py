"""Header fields that were seen before, so that a scan parses each only once.

What it is: small dictionaries from a field's bytes to what it means. How: in an archive the checksum, size and tail
fields repeat, and a dictionary finds twelve bytes faster than anything parses them. What a cache says of a field holds
in every block, so that a scan gives the same with cold caches as with warm ones; and each is emptied when it grows.

It must not know where a block lies.
"""

from __future__ import annotations

from zlib import adler32

from wdscli.tar.header import (
    CANONICAL_MIDDLE,
    CANONICAL_TAIL,
    Form,
    Header,
    byte_sum,
    parse_number,
    tail,
)

LIMIT = 1 << 15
# Sums that adler32 gives exactly: the other fields add at most 156 * 255 to the tail's sum.
_LARGEST_TAIL_SUM = 65520 - 156 * 255


class Tail:
    """What a tail field (type, link name, magic, owner, prefix) says.

    ``prefix`` is the name's part in front, its slash included; ``extended`` marks pax headers; ``canonical`` says that
    a canonical header may have this tail; ``old`` that a trailing slash in the name makes it a folder; ``plain`` is any
    other regular member without a prefix.
    """

    __slots__ = ("canonical", "extended", "old", "plain", "prefix")

    def __init__(self, header: Header, field: bytes) -> None:
        self.prefix = header.prefix
        self.extended = header.typeflag == b"x"
        self.old = header.typeflag == b"\0"
        self.canonical = field == tail(b"0", header.prefix[:-1])
        self.plain = not (self.prefix or self.old or self.canonical)


class _PlainSizes(dict[bytes, tuple[int, int]]):
    """Size fields written canonically: the size, and the field's byte sum. A field that is met for the first time is
    taken in at once, because in an archive of large members most sizes are new. KeyError for one that is written
    otherwise."""

    __slots__ = ()

    def __missing__(self, field: bytes) -> tuple[int, int]:
        try:
            size = int(field[:11], 8)
        except ValueError:
            raise KeyError from None
        if size < 0 or field != b"%011o\0" % size:
            raise KeyError
        if len(self) > LIMIT:
            self.clear()
        # adler32's low half is one more than the sum, here and for the name.
        found = self[field] = size, (adler32(field) & 0xFFFF) - 1
        return found


class Caches:
    """The fields that one scan has met. ``plain_*`` are fields written canonically: size field to size and byte sum,
    checksum field to what name and size must add up to, plus one. The others are any writer's: checksum field to the
    low half of the block's adler32, size field to size, tail field to :class:`Tail`."""

    __slots__ = ("_plain_sum", "checks", "plain_checks", "plain_sizes", "sizes", "tails")

    def __init__(self, form: Form) -> None:
        self.plain_sizes = _PlainSizes()
        self.plain_checks: dict[bytes, int] = {}
        self.checks: dict[bytes, int] = {}
        self.sizes: dict[bytes, int] = {}
        self.tails: dict[bytes, Tail] = {}
        self._plain_sum = byte_sum(CANONICAL_MIDDLE + form.mtime_field + CANONICAL_TAIL) + 8 * 32

    def learn_plain(self, size_field: bytes, check: bytes) -> bool:
        """Take in two fields; False when they are not written canonically."""
        if len(self.plain_checks) > LIMIT:
            self.plain_checks.clear()
        try:
            _ = self.plain_sizes[size_field]
            if check not in self.plain_checks:
                stored = int(check[:6], 8)
                if stored < 0 or check != b"%06o\0 " % stored:
                    return False
                self.plain_checks[check] = stored - self._plain_sum + 1
        except (KeyError, ValueError):
            return False
        return True

    def learn(self, block: bytes, header: Header) -> None:
        """Take in the fields of an accepted block: a regular member or a pax header."""
        check, size_field, field = block[148:156], block[124:136], block[156:]
        if header.typeflag not in b"07x\0" or byte_sum(field) > _LARGEST_TAIL_SUM:
            return
        for cache in (self.checks, self.sizes, self.tails):
            if len(cache) > LIMIT:
                cache.clear()
        self.checks[check] = parse_number(check, "checksum") - 8 * 32 + byte_sum(check) + 1
        self.sizes[size_field] = header.size
        if field not in self.tails:
            self.tails[field] = Tail(header, field)
        self.learn_plain(size_field, check)
