"""This module computes the checksums that stores keep of whole objects, and compares them.

A store keeps a CRC-64/NVME, a CRC-32C or a CRC-32 of an object's bytes. A :class:`StoreDigest` computes all three
while the bytes of a shard pass, if there is the compiled module ``_crc``. Without it, there are no such checksums.

S3 may keep a composite checksum of an object that was uploaded in parts: the CRC of the CRCs of all parts. It knows the
size of its parts, but does not say it; boto3 and the AWS command line upload parts of :data:`PART_BYTES`. This module
does not know stores, or what a checksum proves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce

from wdscli.tar.core import CRC

PART_BYTES = 8 << 20
"""The size of the parts in composite checksums."""


class StoreDigest:
    """The checksums of the bytes that are passed to :meth:`update`."""

    def __init__(self) -> None:
        self._crc64 = self._pair = self._size = 0
        self._pairs: list[int] = []
        """The CRC-32C and the CRC-32 of each complete part, in the form of ``_crc``."""

    def update(self, data: bytes | bytearray | memoryview) -> None:
        """Add bytes."""
        if CRC is None:
            return
        view = memoryview(data)
        while size := min(len(view), PART_BYTES - self._size % PART_BYTES):
            self._crc64, self._pair = CRC.update(view[:size], self._crc64, self._pair)
            self._size += size
            view = view[size:]
            if self._size % PART_BYTES == 0:
                self._pairs.append(self._pair)
                self._pair = 0

    def checksums(self) -> dict[str, str]:
        """Return the checksums as hexadecimal texts by name. A composite checksum ends with the number of parts. The
        result is empty without ``_crc``, and for no bytes."""
        if CRC is None or not self._size:
            return {}
        last_size = self._size % PART_BYTES
        pairs = [*self._pairs, self._pair] if last_size else self._pairs
        whole = pairs[0]
        for number, pair in enumerate(pairs[1:], 2):
            whole = CRC.joined(whole, pair, last_size if last_size and number == len(pairs) else PART_BYTES)
        checksums = {"crc64nvme": f"{self._crc64:016x}"}
        for place, name in enumerate(("crc32c", "crc32")):
            parts = b"".join(CRC.split(pair)[place].to_bytes(4, "big") for pair in pairs)
            composite = CRC.split(CRC.update(parts, 0, 0)[1])[place]
            checksums[name] = f"{CRC.split(whole)[place]:08x}"
            checksums[f"{name}-parts"] = f"{composite:08x}-{len(pairs)}"
        return checksums


def crc32_of(pieces: Iterable[bytes | memoryview]) -> int:
    """Return the CRC-32 of all bytes in the pieces."""
    if CRC is None:
        from zlib import crc32

        return reduce(lambda crc, piece: crc32(piece, crc), pieces, 0)
    crc64 = pair = 0
    for piece in pieces:
        crc64, pair = CRC.update(piece, crc64, pair)
    return int(CRC.split(pair)[1])


def with_md5(checksums: Mapping[str, str], checksum: str | None) -> dict[str, str]:
    """Add the checksum of a manifest, ``algorithm:hex``, if it is an MD5."""
    algorithm, _, text = (checksum or "").partition(":")
    return {**checksums, **({"md5": text} if algorithm == "md5" else {})}


def agrees(checksums: Mapping[str, str], kept: Mapping[str, str]) -> bool | None:
    """Return whether checksums agree with those that a store keeps of an object. Return None if no two can be compared.
    The parts of another client may have another size, so another composite checksum proves nothing."""
    answers: set[bool] = set()
    for name, text in kept.items():
        if "-" not in text and name in checksums:
            answers.add(checksums[name] == text)
        elif checksums.get(f"{name}-parts") == text:
            answers.add(True)
    return False not in answers if answers else None
