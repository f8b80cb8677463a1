"""Keys that were made to have one hash, by hashes without a secret.

Each family has keys of one length that are good names: no NUL, slash, dot or white space.
"""

from __future__ import annotations

from xxhash import xxh3_64_intdigest, xxh3_128_intdigest

CORE = b"\xf9\x79\x37\x9e\xb1\x67\x56\x16", b"\x93\xfd\x59\x66\xb8\xfe\xe8\xd6"
"""Two factors of the compiled core's hash before it was keyed: both products of a part that has them are zero."""
XXH3 = b"\xde\xd4\x6d\xe9\x83\x90\x97\xdb", b"\x72\x40\xa4\xa4\xb7\xb3\x67\x1f"
"""Two words of XXH3's own secret, by which the last 16 of 32 bytes are multiplied."""


def one_core_hash(count: int) -> list[bytes]:
    """One hash of the compiled core before it was keyed."""
    return [b"%016d" % number + b"".join(CORE) for number in range(count)]


def one_low_lane(count: int) -> list[bytes]:
    """The same in the lane by which its table looked for a place."""
    return [b"%016d" % 7 + CORE[0] + b"%08d" % number + b"%016d" % 7 for number in range(count)]


def one_xxh3_64(count: int) -> list[bytes]:
    """One XXH3-64."""
    keys = [b"%016d" % 7 + XXH3[0] + b"%08d" % number for number in range(count)]
    assert len(set(map(xxh3_64_intdigest, keys))) == 1
    return keys


def one_xxh3_128(count: int) -> list[bytes]:
    """One XXH3-128, each two of them."""
    first, second = (int.from_bytes(word, "little") for word in XXH3)
    keys: list[bytes] = []
    number = 0
    while len(keys) < count:
        other, number = int.from_bytes(b"%08d" % number, "little"), number + 1
        words = (first, other), ((first + other - second) % (1 << 64), second)
        pair = [b"%016d" % 7 + b"".join(word.to_bytes(8, "little") for word in two) for two in words]
        assert pair[0] != pair[1]
        assert len(set(map(xxh3_128_intdigest, pair))) == 1
        if not set(b"\0/. \t\n\v\f\r") & set(b"".join(pair)):
            keys += pair
    return keys
