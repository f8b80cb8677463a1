"""Hashes by which pictures and texts that look alike have few different bits: :func:`dhash` and :func:`simhash`.

Both have 64 bits, as a whole number with a sign, so that an index can store them. This module does not know how hashes
are compared.
"""

from __future__ import annotations

import re
from collections import Counter

from xxhash import xxh3_64_intdigest

from wdscli.arrays import I64, numpy
from wdscli.codecs.handlers import INSTALL_IMAGES, needed
from wdscli.codecs.images import open_image
from wdscli.errors import DataError

_WORDS = re.compile(r"\w+")
_SHINGLE_CHARACTERS = 4
_ROWS_TOGETHER = 1 << 12


def dhash(data: bytes) -> int:
    """Return the difference hash of a picture, as ``imagehash.dhash`` computes it: the picture in grey, resized to 9 x
    8 pixels; a bit is 1 if a pixel is brighter than the pixel before it. Raises ValueError for a broken picture, and
    UsageError without Pillow."""
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
