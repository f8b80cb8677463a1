"""Hashes by which pictures and texts that look alike have few different bits, and the search for hashes that differ in
few bits.

:func:`dhash` and :func:`simhash` have 64 bits, as a whole number with a sign, so that an index can store them.
:class:`NearHashes` cuts a hash into four bands of 16 bits. Two hashes that differ in at most three bits are equal in
some band, so only hashes with an equal band are compared. This module does not know which samples have the hashes.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter

from wdscli.arrays import I64, numpy
from wdscli.errors import DataError, UsageError

MOST_BITS = 3
_BAND_BITS = 16
_BAND = (1 << _BAND_BITS) - 1
_SHIFTS = range(0, 64, _BAND_BITS)
_WORDS = re.compile(r"\w+")
_SHINGLE_CHARACTERS = 4
_ROWS_TOGETHER = 1 << 12


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


def dhash(data: bytes) -> int:
    """Return the difference hash of a picture, as ``imagehash.dhash`` computes it: the picture in grey, resized to 9 x
    8 pixels; a bit is 1 if a pixel is brighter than the pixel before it. Raises ValueError for a broken picture, and
    UsageError without Pillow."""
    # Commands load this module for any --dedup, and codecs of pictures load slowly.
    from wdscli.codecs.handlers import INSTALL_IMAGES, needed
    from wdscli.codecs.images import open_image

    needed("PIL", "dhash()", INSTALL_IMAGES)
    from PIL.Image import Resampling

    try:
        image = open_image(data)
        # Only the order of grey values counts, so pictures of more than 8 bits need no scale.
        grey = image.convert("F" if image.mode[0] in "IF" else "L").resize((9, 8), Resampling.LANCZOS)
        pixels = numpy.asarray(grey)
    except DataError as error:
        raise ValueError(error.message) from None
    except Exception as error:  # Pillow's plugins raise many kinds of errors
        raise ValueError(f"it is not a picture: {error}") from None
    bits = numpy.packbits(pixels[:, 1:] > pixels[:, :-1])
    return int.from_bytes(bits.tobytes(), "big", signed=True)


def simhash(text: str) -> int | None:
    """Return Charikar's hash of a text: each bit is the majority of the XXH3-64 of all runs of 4 letters or digits.
    Upper case, punctuation and white space do not count. None means a text without a letter or digit.

    >>> simhash("A cat."), simhash("a CAT") == simhash("A cat."), simhash("...")
    (476793405215758794, True, None)
    """
    from xxhash import xxh3_64_intdigest

    letters = "".join(_WORDS.findall(text.lower()))
    ends = range(min(len(letters), _SHINGLE_CHARACTERS), len(letters) + 1)
    shingles = Counter(letters[max(0, end - _SHINGLE_CHARACTERS) : end] for end in ends) if letters else {}
    words = list(shingles)
    ones: I64 = numpy.zeros(64, dtype=numpy.int64)
    for first in range(0, len(words), _ROWS_TOGETHER):
        block = words[first : first + _ROWS_TOGETHER]
        hashes = numpy.array(
            [xxh3_64_intdigest(word.encode("utf-8", "surrogatepass")) for word in block], ">u8"
        )
        bits = numpy.unpackbits(hashes.view(numpy.uint8).reshape(-1, 8), axis=1)
        ones += numpy.array([shingles[word] for word in block]) @ bits
    if not words:
        return None
    majority = numpy.packbits(2 * ones > sum(shingles.values()))
    return int.from_bytes(majority.tobytes(), "big", signed=True)
