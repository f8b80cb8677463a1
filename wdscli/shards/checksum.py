"""Checksums of whole shards, by name.

``xxh3_128`` (default) runs at memory speed; ``sha256`` is for those who must publish it; ``none`` is no checksum.
A checksum is written ``algorithm:hexadecimal``. Reference: the XXH3 specification of xxHash 0.8 (canonical digest).
"""

from __future__ import annotations

from typing import Protocol

from wdscli.errors import UsageError

ALGORITHMS = ("xxh3_128", "sha256", "none")


class Digest(Protocol):
    """What hashlib and xxhash have in common."""

    def update(self, data: bytes | bytearray | memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


def new_digest(algorithm: str) -> Digest | None:
    """A fresh digest; None for ``none``."""
    if algorithm == "xxh3_128":
        from xxhash import xxh3_128

        return xxh3_128()
    if algorithm == "sha256":
        import hashlib

        return hashlib.sha256()
    if algorithm == "none":
        return None
    raise UsageError(f"unknown checksum {algorithm!r}", hint="choose one of " + ", ".join(ALGORITHMS))


def written(algorithm: str, digest: Digest | None) -> str | None:
    """``algorithm:hex`` of a finished digest."""
    return None if digest is None else f"{algorithm}:{digest.hexdigest()}"
