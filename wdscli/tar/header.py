"""This module parses one 512-byte tar block into fields, and builds the canonical block of a member.

It has the rules of POSIX.1-1988 ustar, POSIX.1-2001 pax and old GNU headers. Each rule is next to the code that applies
it. The parser takes bytes and does not read files. It is slow and exact; ``scan.py`` has the fast loop. A header is
built from a template, with name, size and checksum filled in.

This module does not know files, streams, samples or the place of a block. So its errors have a code but no place. The
scanner adds shard, byte and member.

References: POSIX.1-2017, utility pax, "ustar Interchange Format" and "pax Header Block"; GNU tar 1.34 manual, "Basic
Tar Format" and "GNU tar and POSIX tar".
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from struct import Struct
from typing import Literal, NamedTuple
from zlib import adler32

from wdscli.errors import DataError, UsageError
from wdscli.units import whole_number

BLOCK = 512
NAME_BYTES = 100
"""The longest name that fits in one block without a prefix."""
ONE_BLOCK_SIZE = 1 << 33
"""The smallest size that does not fit in an octal field."""
END_OF_ARCHIVE = bytes(2 * BLOCK)
MAX_EXTENDED_SIZE = 1 << 20
MAX_EXTENDED_CHAIN = 16
MAX_SIZE = (1 << 63) - 1
MAX_DIGITS = 64
"""The most digits of a decimal number in a pax header, leading zeros included."""

REGULAR, DIRECTORY, LINK, SPECIAL, SPARSE = range(5)
KIND_MASK = 0b111
FOREIGN = 0b1000
"""Flag of a member with a header that differs from the canonical header in some byte."""
GLOBAL = 0b10000
"""Flag of a member to which records of a pax global header apply."""
KIND_NAMES = ("regular", "directory", "link", "special", "sparse")

#: name, mode+uid+gid, size, mtime, chksum, everything from typeflag to the end of the block
FIELDS = Struct("100s24s12s12s8s356s")

CANONICAL_MIDDLE = b"0000644\x000000000\x000000000\x00"
_DEVICE = b"0000000\x000000000\x00"


class Form(NamedTuple):
    """The two options of the canonical form. One is the mtime in whole seconds (0 ≤ n < 8^11). The other is the header
    for a name that is too long for ustar: ``pax`` is a path record, and ``gnu`` is an L header, for readers without
    pax, such as DALI's."""

    mtime: int = 0
    long_names: Literal["pax", "gnu"] = "pax"

    @property
    def mtime_field(self) -> bytes:
        return b"%011o\0" % self.mtime


CANONICAL = Form()
MTIMES = range(8**11)
"""The times that fit into the field of a header."""


def make_form(mtime: int | None = None, long_names: Literal["pax", "gnu"] = "pax") -> Form:
    """Return the form with this mtime in whole seconds. None means SOURCE_DATE_EPOCH if it is set, otherwise 0. Raises
    UsageError."""
    name, seconds = "--mtime", mtime
    if seconds is None:
        name, text = "SOURCE_DATE_EPOCH", os.environ.get("SOURCE_DATE_EPOCH", "").strip() or "0"
        if not (text.isascii() and text.isdecimal()):
            raise UsageError(f'SOURCE_DATE_EPOCH is not a number of seconds: "{text}"')
        seconds = whole_number(text)
    # A ustar header has eleven octal digits.
    if not 0 <= seconds < ONE_BLOCK_SIZE:
        raise UsageError(f"{name} must be 0 to {ONE_BLOCK_SIZE - 1} seconds, not {seconds}")
    return Form(seconds, long_names)


def padded(size: int) -> int:
    """Return ``size`` rounded up to whole blocks.

    >>> padded(0), padded(1), padded(512)
    (0, 512, 512)
    """
    return (size + 511) & -512


def tail(typeflag: bytes, prefix: bytes = b"") -> bytes:
    """Return the end of a block, from the typeflag: no link name, magic "ustar", version "00", no user or group name,
    device 0."""
    return typeflag + bytes(100) + b"ustar\x0000" + bytes(64) + _DEVICE + prefix.ljust(155, b"\0") + bytes(12)


CANONICAL_TAIL = tail(b"0")

# The byte sum of a block without name and size, with eight spaces for the checksum.
_TAIL_SUMS: dict[bytes, int] = {}


def byte_sum(data: bytes | memoryview) -> int:
    """Return the sum of all bytes. The low half of adler32 is one plus this sum, modulo 65521. For at most 256 bytes,
    the modulo has no effect."""
    return sum([(adler32(data[begin : begin + 256]) & 0xFFFF) - 1 for begin in range(0, len(data), 256)])


def build_block(name: bytes, size: int, middle: bytes, mtime_field: bytes, tail_field: bytes) -> bytes:
    """Return one header block with its checksum. ``name`` has at most 100 bytes. A ``size`` of at least 8^11 is written
    in base 256 (GNU)."""
    size_field = b"%011o\0" % size if size < 1 << 33 else b"\x80" + size.to_bytes(11, "big")
    constant_fields = middle + mtime_field + tail_field
    constant_sum = _TAIL_SUMS.get(constant_fields)
    if constant_sum is None:
        if len(_TAIL_SUMS) > 4096:
            _TAIL_SUMS.clear()
        constant_sum = _TAIL_SUMS[constant_fields] = byte_sum(constant_fields) + 8 * 32
    total = constant_sum + (adler32(name) & 0xFFFF) - 1 + (adler32(size_field) & 0xFFFF) - 1
    return FIELDS.pack(name, middle, size_field, mtime_field, b"%06o\0 " % total, tail_field)


def split_long_name(name: bytes) -> tuple[bytes, bytes] | None:
    """Split a name of 101 to 256 bytes into ``(prefix, name)``, at the same slash as GNU tar. Return None if the name
    does not fit in ustar.

    POSIX: the prefix has at most 155 bytes, and the name has at most 100. Neither is empty, and the slash between them
    is left out. If several slashes are possible, GNU tar takes the last slash in the first 156 bytes.
    """
    slash = name.rfind(b"/", 0, min(156, len(name) - 1))
    if slash <= 0 or len(name) - slash - 1 > 100 or len(name) == slash + 1:
        return None
    return name[:slash], name[slash + 1 :]


def build_header(name: bytes, size: int, form: Form = CANONICAL) -> bytes:
    """Return the canonical header blocks of a regular member: one block, or an extended header, its data and one block.

    The caller must check that the name is safe (relative, no ``..``). Here, any bytes except NUL are accepted. Raises
    DataError ``unsafe-name`` for a name with a NUL, because readers would find another name.

    >>> len(build_header(b"a.txt", 5)), len(build_header(b"n" * 101, 5))
    (512, 1536)
    """
    if 0 in name:
        raise DataError(f"a tar cannot hold a name with a NUL: {name[:200]!r}", code="unsafe-name")
    fits = size < 1 << 33
    if len(name) <= 100 and fits:
        return build_block(name, size, CANONICAL_MIDDLE, form.mtime_field, CANONICAL_TAIL)
    split = (b"", name) if len(name) <= 100 else split_long_name(name)
    if split is not None and fits:
        return build_block(split[1], size, CANONICAL_MIDDLE, form.mtime_field, tail(b"0", split[0]))
    if form.long_names == "gnu":
        return _build_gnu_long(name, size, form, split)
    return _build_pax(name, size, form, split)


def _build_pax(name: bytes, size: int, form: Form, split: tuple[bytes, bytes] | None) -> bytes:
    """Return a pax header with only the needed records, then the block with the beginning of the name."""
    records = b""
    if split is None:
        try:
            name.decode("utf-8")
        except UnicodeDecodeError:
            # POSIX: values are UTF-8, unless this record comes before them.
            records += pax_record(b"hdrcharset", b"BINARY")
        records += pax_record(b"path", name)
    if size >= 1 << 33:
        records += pax_record(b"size", b"%d" % size)
    prefix, short = split if split is not None else (b"", name[:100])
    # POSIX: if there is a size record, the header's own size is ignored. Python's tarfile and GNU tar write 0.
    size_field = size if size < 1 << 33 else 0
    return extended(b"x", records, form) + build_block(
        short, size_field, CANONICAL_MIDDLE, form.mtime_field, tail(b"0", prefix)
    )


def _build_gnu_long(name: bytes, size: int, form: Form, split: tuple[bytes, bytes] | None) -> bytes:
    """Return GNU's L header for a long name. A size of at least 8 GiB is in the block itself, in base 256."""
    prefix, short = split if split is not None else (b"", name[:100])
    block = build_block(short, size, CANONICAL_MIDDLE, form.mtime_field, tail(b"0", prefix))
    return block if split is not None else extended(b"L", name + b"\0", form) + block


def extended(typeflag: bytes, data: bytes, form: Form = CANONICAL) -> bytes:
    """Return an extended header (``x``, ``g``, ``L``) with ``data``. Its name is the same as in Python's tarfile and
    GNU tar."""
    name = b"././@LongLink" if typeflag == b"L" else b"././@PaxHeader"
    block = build_block(name, len(data), CANONICAL_MIDDLE, form.mtime_field, tail(typeflag))
    return block + data.ljust(padded(len(data)), b"\0")


def pax_record(keyword: bytes, value: bytes) -> bytes:
    """``"%d %s=%s\\n"``; its length counts its own digits (POSIX.1-2001, "pax Extended Header")."""
    length_without_digits = len(keyword) + len(value) + 3
    length = length_without_digits + len(str(length_without_digits))
    length = length_without_digits + len(str(length))
    return b"%d %b=%b\n" % (length, keyword, value)


def parse_number(field: bytes, what: str) -> int:
    """Parse a numeric field. It has octal digits, with spaces and NULs before them, and a NUL, a space or the field's
    end after them. If the first byte is 0x80 or 0xFF, the other bytes are a big-endian two's complement number (GNU's
    base 256). Raises DataError.

    Some old tars wrote a NUL instead of a leading digit. GNU tar and Go read the digits after it. (Python's tarfile
    reads 0, and then finds no header at the next block.)
    """
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    if field[0] == 0xFF:
        return int.from_bytes(field[1:], "big") - (1 << 8 * (len(field) - 1))
    digits = field.lstrip(b"\0 ").partition(b"\0")[0].rstrip(b" ")
    if digits.strip(b"01234567"):
        code = "bad-size" if what == "size" else "bad-header"
        raise DataError(f"{what} field {field!r} is not an octal number", code=code)
    return int(digits or b"0", 8)


def parse_size(field: bytes) -> int:
    """Return the size field as a number of bytes, 0 ≤ n < 2^63. Raises DataError."""
    return valid_size(parse_number(field, "size"))


def valid_size(size: int) -> int:
    if not 0 <= size <= MAX_SIZE:
        shown = f" {size}" if abs(size) < 1 << 70 else ""
        raise DataError(f"impossible member size{shown}", code="bad-size")
    return size


def checksum_is_right(block: bytes) -> bool:
    """Return whether the checksum is right. POSIX: it is the unsigned sum of all bytes, with spaces in the checksum
    field. Some old tars added signed bytes."""
    try:
        stored = parse_number(block[148:156], "checksum")
    except DataError:
        return False
    unsigned = byte_sum(block) - byte_sum(block[148:156]) + 8 * 32
    if stored == unsigned:
        return True
    outside = block[:148] + block[156:]
    return stored == unsigned - 256 * sum(1 for byte in outside if byte >= 0x80)


class Header(NamedTuple):
    """One parsed block. ``typeflag`` is one byte. ``name`` includes the prefix, and ``prefix`` is the prefix with its
    slash."""

    name: bytes
    prefix: bytes
    size: int
    typeflag: bytes
    is_gnu: bool


def parse_block(block: bytes) -> Header:
    """Parse the fields of a block. Its checksum must be right. Raises DataError ``bad-size`` or ``bad-header``."""
    name = block[:100].partition(b"\0")[0]
    is_posix = block[257:263] == b"ustar\0"
    # POSIX: a non-empty prefix is joined with one slash. Old GNU headers have times in these bytes.
    prefix = block[345:500].partition(b"\0")[0] + b"/" if is_posix and block[345] else b""
    return Header(
        name=prefix + name,
        prefix=prefix,
        size=parse_size(block[124:136]),
        typeflag=block[156:157],
        is_gnu=block[257:265] == b"ustar  \0",
    )


def member_kind(typeflag: bytes, name: bytes) -> int:
    """Return the member's kind. POSIX: NUL and "0" are regular files, and "7" may be treated as a regular file. "1" and
    "2" are links, "3", "4" and "6" are devices and fifos, and "5" is a directory. Before POSIX, a regular file with a
    trailing slash was a directory. "S" is GNU's sparse file. Other flags belong to vendors."""
    if typeflag in b"07":
        return REGULAR
    if typeflag == b"\0":
        return DIRECTORY if name.endswith(b"/") else REGULAR
    if typeflag == b"5":
        return DIRECTORY
    if typeflag in b"12":
        return LINK
    return SPARSE if typeflag == b"S" else SPECIAL


def has_payload(typeflag: bytes, kind: int) -> bool:
    """Return whether payload blocks follow. POSIX: links, devices, fifos and directories have no payload, whatever
    their size field contains. The same rule is used for pre-POSIX folders, where some tars stored the folder's own
    size. tarfile, webdataset and bsdtar use this rule too; GNU tar skips this number of bytes."""
    return kind != DIRECTORY and typeflag not in b"123456"


def parse_pax(data: bytes) -> dict[bytes, bytes]:
    """Return the records of a pax header. A later record replaces an earlier record with the same name.

    Raises DataError ``bad-extended-header``.

    >>> parse_pax(b"12 path=a/b\\n")
    {b'path': b'a/b'}
    """
    return dict(pax_records(data))


def pax_records(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the name and the value of each record of a pax header, in order. Raises DataError
    ``bad-extended-header``."""
    offset = 0
    while offset < len(data):
        # Some programs write zeros before a length.
        space = data.find(b" ", offset, offset + MAX_DIGITS + 1)
        digits = data[offset:space] if space > offset else b""
        if not digits.isdigit():
            if not data[offset:].strip(b"\0"):
                break
            raise DataError("pax record has no length", code="bad-extended-header")
        end = offset + int(digits)
        record = data[space + 1 : max(end, space + 1)]
        keyword, equals, value = record.partition(b"=")
        if end > len(data) or not record.endswith(b"\n") or not equals or not keyword:
            raise DataError(
                f'pax record of {int(digits)} bytes is not "length keyword=value"', code="bad-extended-header"
            )
        yield keyword, value[:-1]
        offset = end


def pax_size(value: bytes) -> int:
    """Parse the pax ``size`` record: decimal digits, perhaps with leading zeros. Raises DataError."""
    if not value.isdigit() or len(value) > MAX_DIGITS or len(value.lstrip(b"0")) > 19:
        raise DataError(f"pax size {value[:40]!r} is impossible", code="bad-size")
    return valid_size(int(value))
