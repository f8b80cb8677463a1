"""Values as byte strings that compare as the values do: what makes a sort by anything a sort of bytes.

What it is: one function for each way to compare (:func:`text_code`, :func:`natural_code`, :func:`number_code`,
:func:`json_code`), each from a value to its *code*. How: of two values the lesser has the lesser code, equal values
have equal codes, and no code is the beginning of another, so that codes can be put one behind the other (several sort
keys) and turned around by complement (:func:`reversed_code`). A NUL inside a text is written as ``00 FF`` and the text
ends with ``00 00``, which is less than anything that could go on.

It must not know samples, fields or options.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_END = b"\0\0"
_COMPLEMENT = bytes(range(255, -1, -1))


def reversed_code(code: bytes) -> bytes:
    """The code of the same value in reverse order."""
    return code.translate(_COMPLEMENT)


def text_code(text: bytes) -> bytes:
    """Byte by byte; what ends first comes first.

    >>> sorted([b"b", b"a", b"ab", b"a\\0"], key=text_code)
    [b'a', b'a\\x00', b'ab', b'b']
    """
    return text.replace(b"\0", b"\0\xff") + _END


_DIGITS = re.compile(rb"[0-9]+")
_NO_ZEROS = 0xFE


def natural_code(text: bytes) -> bytes:
    """As :func:`text_code`, but a run of digits is one character, which stands where ``0`` does and compares as the
    number it is. Where texts differ in leading zeros alone, more zeros come first.

    >>> sorted([b"a10", b"a9", b"a", b"ab", b"a09"], key=natural_code)
    [b'a', b'a09', b'a9', b'a10', b'ab']
    """
    zeros = bytearray()

    def run(match: re.Match[bytes]) -> bytes:
        digits = match[0].lstrip(b"0")
        zeros.append(_NO_ZEROS - min(len(match[0]) - (len(digits) or 1), _NO_ZEROS))
        length = len(digits)
        return b"0" + (bytes([length + 1]) if length < 254 else b"\xff" + length.to_bytes(8, "big")) + digits

    code = text_code(_DIGITS.sub(run, text))
    # A byte for each run of digits up to the last that has zeros to tell of; FF, more than any of them, ends them.
    return code + zeros.rstrip(bytes([_NO_ZEROS])) + b"\xff"


_NUMBER = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]{1,18}))?")
_LEAST, _BELOW_ZERO, _ZERO, _ABOVE_ZERO, _GREATEST = (bytes([kind]) for kind in range(1, 6))


def number_code(text: str) -> bytes | None:
    """A decimal number of any size and precision, compared exactly; infinities too. None for NaN, which has no place.
    Raises ValueError for what is not a number.

    >>> sorted(["1e3", "-0.5", "999.99", "-7", "0"], key=number_code)
    ['-7', '-0.5', '0', '999.99', '1e3']
    """
    match = _NUMBER.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        return _word_code(text)
    sign, whole, fraction, power = match.groups(default="")
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return _ZERO
    # The value is 0.DIGITS times ten to the power of `exponent`.
    exponent = int(power or 0) + len(digits) - len(fraction)
    code = _exponent_code(exponent) + digits.rstrip("0").encode() + b"\0"
    return _BELOW_ZERO + reversed_code(code) if sign == "-" else _ABOVE_ZERO + code


def _word_code(text: str) -> bytes | None:
    word = text.lower()
    sign = word[:1] if word[:1] in ("+", "-") else ""
    name = word[len(sign) :]
    if name == "nan":
        return None
    if name in ("inf", "infinity"):
        return _LEAST if sign == "-" else _GREATEST
    raise ValueError("it is not a number")


def _exponent_code(exponent: int) -> bytes:
    """One byte for the usual, nine for the rest."""
    if -64 <= exponent < 64:
        return bytes([128 + exponent])
    if exponent > 0:
        return b"\xff" + exponent.to_bytes(8, "big")
    return b"\x01" + (exponent + (1 << 63)).to_bytes(8, "big")


class Number(str):
    """A number as a JSON document writes it, to be told from a string."""

    __slots__ = ()


_NULL, _FALSE, _TRUE, _IS_NUMBER, _IS_TEXT, _IS_ARRAY, _IS_OBJECT = (bytes([kind]) for kind in range(1, 8))
_END_OF_ARRAY = b"\0"


def json_code(value: Any, text: Callable[[bytes], bytes] = text_code) -> bytes:
    """A JSON value whose numbers are :class:`Number`; ``text`` codes its strings.

    The order is jq's: null, false, true, numbers, strings, arrays (by the first element that differs, the shorter
    first), objects (by their sorted names as arrays, then by their values in that order). NaN counts as null. Raises
    RecursionError for what is nested too deeply.

    >>> sorted([["b"], "a", Number("2"), {}, True, Number("-1"), None], key=json_code)
    [None, True, '-1', '2', 'a', ['b'], {}]
    """
    if value is None:
        return _NULL
    if value is True or value is False:
        return _TRUE if value else _FALSE
    if isinstance(value, Number):
        number = number_code(value)
        return _NULL if number is None else _IS_NUMBER + number
    if isinstance(value, str):
        return _IS_TEXT + text(utf8(value))
    if isinstance(value, list):
        return b"".join([_IS_ARRAY, *[json_code(one, text) for one in value], _END_OF_ARRAY])
    names = sorted(value, key=utf8)
    return _IS_OBJECT + json_code(names, text) + b"".join([json_code(value[name], text) for name in names])


def utf8(text: str) -> bytes:
    """The bytes of a JSON string, which may hold half a surrogate pair."""
    return text.encode("utf-8", "surrogatepass")
