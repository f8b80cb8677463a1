"""Hashes of 64 bits that differ in few bits: :class:`NearHashes`.

A hash is cut into four bands of 16 bits. Two hashes that differ in at most three bits are equal in some band, so only
hashes with an equal band are compared. This module does not know what the hashes mean.
"""

from __future__ import annotations

from array import array

from wdscli.errors import UsageError

MOST_BITS = 3
_BAND_BITS = 16
_BAND = (1 << _BAND_BITS) - 1
_SHIFTS = range(0, 64, _BAND_BITS)


def checked_bits(bits: int) -> int:
    """Return the option ``--near``. Raises UsageError."""
    if not 1 <= bits <= MOST_BITS:
        raise UsageError(f"--near {bits}: 1 to {MOST_BITS} bits may differ", hint="--near 3")
    return bits


class NearHashes:
    """A list of hashes that are not similar: they differ in more than ``bits`` bits. A hash needs 24 bytes of
    memory."""

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._hashes = array("Q")
        self._bands: list[dict[int, array[int]]] = [{} for _ in _SHIFTS]

    def __contains__(self, value: object) -> bool:
        """Return whether a value is similar to a hash. Raises UsageError for a value that is no hash."""
        return isinstance(value, bytes) and self.find(hash_of(value, "--on")) is not None

    def find(self, number: int) -> int | None:
        """Return the place of the first hash that is similar to a hash, or None."""
        near = [
            place
            for shift, band in zip(_SHIFTS, self._bands, strict=True)
            for place in band.get(number >> shift & _BAND, ())
            if (self._hashes[place] ^ number).bit_count() <= self._bits
        ]
        return min(near, default=None)

    def add(self, number: int) -> int | None:
        """Return the place of the first hash that is similar to a hash. If there is none, add it, and return None."""
        place = self.find(number)
        if place is None:
            for shift, band in zip(_SHIFTS, self._bands, strict=True):
                band.setdefault(number >> shift & _BAND, array("I")).append(len(self._hashes))
            self._hashes.append(number)
        return place


def hash_of(value: bytes, option: str) -> int:
    """Return the hash in a value, as an unsigned number. Raises UsageError for a value that is no number of 64 bits."""
    try:
        number = int(value)
    except ValueError:
        number = 1 << 64
    if not -(1 << 63) <= number < 1 << 64:
        text = value[:40].decode(errors="replace")
        raise UsageError(
            f"--near compares numbers of 64 bits, but {option} is {text}",
            hint=f"{option} 'dhash(jpg)' --near 3",
        )
    return number & ((1 << 64) - 1)
