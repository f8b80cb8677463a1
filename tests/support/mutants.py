"""Archives of every make, and damage done to them: the same from the same seed.

A mutant is an archive with some of its bytes, blocks or fields changed. Where a field of a header is changed its
checksum is mostly made right again, because a wrong one is all that a reader would see.
"""

from __future__ import annotations

import io
import os
import random
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tar_cases import patched
from webdataset import TarWriter as TheirWriter

from wdscli.tar import Form, TarWriter, build_header
from wdscli.tar.header import extended, pax_record

BLOCK = 512
MEMBERS = [
    (b"a/s0.cls", b"7"),
    (b"a/s0.jpg", b"j" * 700),
    (b"a/s1.cls", b"8"),
    (b"a/s1.seg.png", b""),
    (b"d" * 60 + b"/" + b"n" * 80 + b".txt", b"t" * 512),
    (b"u" * 120 + b".txt", b"y" * 1300),
    (b"z.json", b"{}"),
]
SIZES = [
    b"00000000000\0", b"00000000001\0", b"00000001000\0", b"00000004001\0", b"77777777777\0", b"777777777777",
    b"           \0", b"         17 ", b"17\0" + bytes(9), b"0000000017 \0", b"-0000000001\0", b"0x000000010\0",
    b"\x80" + bytes(10) + b"\x11", b"\x80\0\0\0\x7f" + b"\xff" * 7, b"\x80\0\0\0\x80" + bytes(7), b"\xff" * 12,
    b"\xff" * 11 + b"\xef", b"\x80" + b"\xff" * 11, bytes(12), b"00000010009\0",
]  # fmt: skip
NAMES = [
    b"a/s0.cls\0", b"a/s0.jpg\0", b"a/s1.cls\0", b"noext\0", b"__x__\0", b"__a.b\0", b"._a.b\0", b".b\0", b"a.\0",
    b"a/\0", b"a.b/\0", b"/a.b\0", b"../a.b\0", b"\xff\xfe.b\0", b"\0", b"a\0b.c\0", b"a/.b\0", b"a/b.c/d\0", b"_\0",
    b"a b.c d\0", b"n" * 100,
]  # fmt: skip
TYPES = b"00000\0xgLKSVDMN1234567AZ"
RECORDS = [
    b"", b"6 a=1\n", b"12 path=a.b\n", b"10 size=3\n", b"13 size=1000\n", b"22 size=99999999999999\n", b"9 size=\n",
    b"24 GNU.sparse.major=1\n\n", b"17 linkpath=a.b\n", b"20 mtime=17000000.5\n", b"12 path=a.b", b"99 path=a.b\n",
    b"012 path=a.b\n", b"11 path=a\0\n", b"9999999999 path=a\n", b"12 path=a.b\n10 size=3\n", b"12 =path a.\n",
    b"22 hdrcharset=BINARY\n", b"10 size=x\n", b"11 size=-1\n", b"0 =\n", b"3 \n", b"4 =\n", b"x", bytes(20),
]  # fmt: skip


def mutant(seed: str) -> bytes:
    """One damaged archive."""
    rng = random.Random(seed)
    made = list(archives().values())
    data = damaged(rng.choice(made), rng)
    return data if rng.randrange(8) else data + rng.choice(made)


def damaged(good: bytes, rng: random.Random) -> bytes:
    """``good`` with something done to it, once or a few times."""
    data = bytearray(good)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5))):
        rng.choice(DAMAGE)(data, rng)
    return bytes(data)


def headers_in(data: bytearray) -> list[int]:
    """Where header blocks are, or look as if they were."""
    return [
        at
        for at in range(0, len(data) - BLOCK + 1, BLOCK)
        if data[at] and data[at + 148 : at + 156].strip(b"01234567 \0") == b"" and data[at + 154] in b"\0 "
    ] or [0]


def put(data: bytearray, at: int, field: int, new: bytes, right: bool = True) -> None:
    """A field of the header at ``at``, its checksum made right or left as it was."""
    block = bytes(data[at : at + BLOCK]).ljust(BLOCK, b"\0")
    new = new[: BLOCK - field]
    data[at : at + BLOCK] = (
        patched(block, field, new) if right else block[:field] + new + block[field + len(new) :]
    )


def flip(data: bytearray, rng: random.Random) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def header_byte(data: bytearray, rng: random.Random) -> None:
    new = bytes([rng.choice((0, 32, 47, 46, 48, 49, 55, 56, 128, 255, rng.randrange(256)))])
    put(data, rng.choice(headers_in(data)), rng.randrange(BLOCK), new, rng.random() < 0.9)


def header_size(data: bytearray, rng: random.Random) -> None:
    new = rng.choice(SIZES) if rng.random() < 0.5 else b"%011o\0" % rng.randrange(4000)
    put(data, rng.choice(headers_in(data)), 124, new)


def header_name(data: bytearray, rng: random.Random) -> None:
    put(data, rng.choice(headers_in(data)), rng.choice((0, 0, 0, 345)), rng.choice(NAMES))


def header_type(data: bytearray, rng: random.Random) -> None:
    put(data, rng.choice(headers_in(data)), 156, bytes([rng.choice(TYPES)]))


def header_form(data: bytearray, rng: random.Random) -> None:
    field, new = rng.choice(
        [(257, b"ustar  \0"), (257, b"ustar\x0000"), (257, bytes(8)), (100, b"0000755\0"), (136, b"00000000001\0"),
         (329, bytes(16)), (345, b"p" * 155), (345, bytes(167)), (500, b"\1"), (482, b"\1"), (157, b"target")]
    )  # fmt: skip
    put(data, rng.choice(headers_in(data)), field, new)


def header_checksum(data: bytearray, rng: random.Random) -> None:
    at = rng.choice(headers_in(data))
    block = bytes(data[at : at + BLOCK]).ljust(BLOCK, b"\0")
    total = sum(block) - sum(block[148:156]) + 256
    form = rng.choice(
        [b"%06o\0 ", b"%06o \0", b"%07o\0", b"%7o ", b"%8o", b"%o\0", b"%06o\0x", b" %o", b"%06o9 "]
    )
    put(data, at, 148, (form % (total + rng.choice((0, 0, 0, 0, 1, -1, 1 << 18)))).ljust(8, b"\0"), False)


def extended_data(data: bytearray, rng: random.Random) -> None:
    """Other bytes in a pax or GNU header, or a new one in front of a member."""
    at = rng.choice(headers_in(data))
    new = b"".join(rng.choice(RECORDS) for _ in range(rng.choice((1, 1, 2, 3))))
    if rng.random() < 0.5:
        data[at:at] = extended(bytes([rng.choice(b"xxxgLK")]), new)
    else:
        data[at + BLOCK : at + BLOCK + len(new)] = new


def some_blocks(data: bytearray, rng: random.Random) -> tuple[int, int]:
    at = rng.randrange(len(data) // BLOCK + 1) * BLOCK
    return at, at + BLOCK * rng.choice((1, 1, 1, 2, 3, 9))


def swap_blocks(data: bytearray, rng: random.Random) -> None:
    (at, end), (other, other_end) = some_blocks(data, rng), some_blocks(data, rng)
    one, two = data[at:end], data[other:other_end]
    data[at:end] = two
    data[other : other + len(two)] = one


def drop_blocks(data: bytearray, rng: random.Random) -> None:
    at, end = some_blocks(data, rng)
    del data[at:end]


def double_blocks(data: bytearray, rng: random.Random) -> None:
    at, end = some_blocks(data, rng)
    data[at:at] = data[at:end]


def zero_blocks(data: bytearray, rng: random.Random) -> None:
    at, end = some_blocks(data, rng)
    data[at:end] = bytes(end - at) if rng.random() < 0.5 else rng.randbytes(end - at)


def shift(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    if rng.random() < 0.5:
        del data[at : at + rng.randrange(1, 600)]
    else:
        data[at:at] = rng.randbytes(rng.randrange(1, 600))


def cut(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    del data[at if rng.random() < 0.5 else at // BLOCK * BLOCK :]


Damage = Callable[[bytearray, random.Random], None]
DAMAGE: list[Damage] = [
    flip, header_byte, header_byte, header_size, header_size, header_name, header_name, header_type, header_form,
    header_checksum, extended_data, extended_data, swap_blocks, drop_blocks, double_blocks, zero_blocks, shift, cut,
]  # fmt: skip


@cache
def archives() -> dict[str, bytes]:
    """Good archives by the names of their makers."""
    return {
        "canonical": _ours(Form()),
        "canonical, GNU names": _ours(Form(long_names="gnu")),
        "canonical, a time": _ours(Form(mtime=1_700_000_000)),
        "webdataset": _webdataset(),
        "hand-made": _hand_made(),
        **{f"tarfile {name}": _tarfile(form) for name, form in _FORMS.items()},
        **_gnu_tar(),
    }


_FORMS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def _ours(form: Form) -> bytes:
    out = io.BytesIO()
    with TarWriter(out, form=form) as tar:
        for name, payload in MEMBERS:
            tar.add(name, payload)
    return out.getvalue()


def _webdataset() -> bytes:
    out = io.BytesIO()
    with TheirWriter(out, encoder=False) as tar:
        for number in range(4):
            tar.write({"__key__": f"a/s{number}", "cls": b"%d" % number, "jpg": b"j" * (number * 400)})
    return out.getvalue()


def _tarfile(form: int) -> bytes:
    """Members, folders, links, and for pax a time, a size and a path that only records can say."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for number, (name, payload) in enumerate(MEMBERS):
            if form == tarfile.USTAR_FORMAT and len(name) > 100:
                continue
            member = tarfile.TarInfo(name.decode())
            member.size, member.uname, member.uid = len(payload), "ann", 1000
            member.mtime = 1_700_000_000 + (0.5 if number % 2 else 0)
            if form == tarfile.PAX_FORMAT and number == 3:
                member.pax_headers = {"size": str(len(payload)), "comment": "c" * 600}
            tar.addfile(member, io.BytesIO(payload))
            if number in (1, 3):
                other = tarfile.TarInfo("l" * (20 if form == tarfile.USTAR_FORMAT else 120))
                other.type, other.linkname = (
                    (tarfile.SYMTYPE, "t" * 90) if number == 1 else (tarfile.DIRTYPE, "")
                )
                tar.addfile(other)
    return out.getvalue()


def _hand_made() -> bytes:
    """What hardly any program writes and every reader takes: sizes by record, global headers, long headers."""
    sized = patched(build_header(b"b.cls", 0), 124, b"00000000000\0")
    return b"".join(
        [
            extended(b"x", pax_record(b"size", b"5")) + sized + b"12345".ljust(BLOCK, b"\0"),
            extended(b"x", pax_record(b"path", b"b.txt") + pax_record(b"linkpath", b"c"))
            + build_header(b"x", 3),
            b"abc".ljust(BLOCK, b"\0"),
            extended(b"x", pax_record(b"comment", b"c" * 2000)) + build_header(b"c.txt", 0),
            build_header(b"d.txt", 0) * 4,
            extended(b"g", pax_record(b"comment", b"of all"))
            + build_header(b"e.txt", 1)
            + b"e".ljust(BLOCK, b"\0"),
            build_header(b"e.cls", 0),
            bytes(2 * BLOCK),
        ]
    )


def _gnu_tar() -> dict[str, bytes]:
    """The same by GNU tar, in its four formats, with a folder, links and a file with a hole; none where it is not."""
    if b"GNU tar" not in subprocess.run(["tar", "--version"], capture_output=True, check=False).stdout:
        return {}
    made = {}
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        for name, payload in MEMBERS:
            path = tree / name.decode()
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(payload)
        (tree / "a" / "link.txt").symlink_to("s0.cls")
        os.link(tree / "z.json", tree / "zz.json")
        with open(tree / "hole.bin", "wb") as holed:
            holed.truncate(1 << 20)
            holed.seek(1 << 19)
            holed.write(b"x" * 4096)
        os.utime(tree / "z.json", (1, 1))
        for form in ("v7", "ustar", "gnu", "posix"):
            holes = ["--sparse"] if form in ("gnu", "posix") else ["--exclude=hole.bin"]
            words = ["tar", "-C", folder, f"--format={form}", "-b1", "-cf", "-", *holes, "--sort=name", "."]
            # What the older formats have no room for is left out, and said.
            made[f"GNU tar {form}"] = subprocess.run(words, capture_output=True, check=False).stdout
    return made
