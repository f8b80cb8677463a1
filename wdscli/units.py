"""This module has sizes, rates and times as people write and read them.

Options have such values (``--max-size 1GiB``), and reports too (``1.07 GB at 812 MB/s``). ``k M G T P`` are powers of
1000, and ``Ki Mi Gi Ti Pi`` are powers of 1024, as in SI and IEC.
"""

from __future__ import annotations

from wdscli.errors import UsageError

_POWERS = "kmgtp"
_MAX_DIGITS = 100
_LARGEST: int = 10**_MAX_DIGITS


def whole_number(text: str) -> int:
    """Return the whole number of a text of digits, maybe with a sign. Python refuses to read thousands of digits, so a
    number of more than a hundred digits counts as ten to the power of a hundred.

    >>> whole_number("-007"), whole_number("9" * 5000) == 10**100
    (-7, True)
    """
    digits = text.lstrip("+-").lstrip("0")
    number = int(digits or "0") if len(digits) <= _MAX_DIGITS else _LARGEST
    return -number if text.startswith("-") else number


def parse_size(text: str | int) -> int:
    """Return the number of bytes that ``text`` means: a number, perhaps with an exponent and a unit.

    >>> parse_size("500MB"), parse_size("1GiB"), parse_size("2e9"), parse_size("64k"), parse_size(12)
    (500000000, 1073741824, 2000000000, 64000, 12)
    """
    if isinstance(text, int):
        return text
    number, unit = _split(text.strip())
    try:
        size = float(number) * _factor(unit)
    except (ValueError, KeyError):
        raise _not_a_size(text) from None
    if not 0 <= size < 2**63:
        raise _not_a_size(text)
    return whole_number(number) * _factor(unit) if number.isdecimal() else round(size)


def _split(text: str) -> tuple[str, str]:
    """Split a text into number and unit. The ``e`` of ``2e9`` belongs to the number."""
    end = len(text)
    while end and not (text[end - 1].isdecimal() or text[end - 1] == "."):
        end -= 1
    return text[:end], text[end:].strip().lower()


def _factor(unit: str) -> int:
    letters = unit.removesuffix("b")
    if not letters:
        return 1
    base = 1024 if letters.endswith("i") else 1000
    return int(
        base ** (1 + {letter: power for power, letter in enumerate(_POWERS)}[letters.removesuffix("i")])
    )


def _not_a_size(text: str) -> UsageError:
    return UsageError(
        f'not a size: "{text}"', hint="write a number with an optional unit: 500MB, 1GiB, 64k, 2e9"
    )


def parse_time(text: str | int) -> int:
    """Return the seconds since 1970 that ``text`` means: a number, perhaps after ``@`` as in GNU tar, or a date and
    time of ISO 8601. A time without a zone is UTC, so that it means the same on every machine.

    >>> parse_time("@12"), parse_time("2001-09-09T01:46:40"), parse_time("2001-09-09")
    (12, 1000000000, 999993600)
    """
    if isinstance(text, int):
        return text
    number = text.strip().removeprefix("@")
    if number.isascii() and number.isdecimal():
        return whole_number(number)
    from datetime import datetime, timezone

    try:
        # Python 3.10 does not parse Z.
        moment = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    except ValueError:
        raise UsageError(
            f'not a time: "{text}"',
            hint="write seconds since 1970 or a date: 0, @0, 2024-05-01, 2024-05-01T12:00:00Z",
        ) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp())


def human_size(size_bytes: float) -> str:
    """Return ``size_bytes`` with three digits, in the largest unit for which the number is at least one.

    >>> human_size(999), human_size(1536), human_size(2_000_000_000)
    ('999 B', '1.54 kB', '2.00 GB')
    """
    return human_number(size_bytes, spaced=True, whole=" ") + "B"


def human_number(number: float, *, spaced: bool = False, whole: str = "") -> str:
    """Return a count in thousands: ``12.3k``. Below a thousand, it stays whole, followed by ``whole``.

    >>> human_number(999), human_number(12_345), human_number(1_234_567)
    ('999', '12.3k', '1.23M')
    """
    if number < 1000:
        return f"{number:.0f}{whole}"
    for unit in _POWERS:
        number /= 1000
        # 999.95 would be written 1000.
        if number < 999.5 or unit == _POWERS[-1]:
            break
    digits = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{digits}f}{' ' if spaced else ''}{unit if unit == 'k' else unit.upper()}"


def human_time(seconds: float) -> str:
    """
    >>> human_time(0.24), human_time(75), human_time(7325)
    ('0.2 s', '1:15', '2:02:05')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, remainder = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{remainder:02}" if hours else f"{minutes}:{remainder:02}"


def plural(count: int, word: str) -> str:
    """
    >>> plural(1, "sample"), plural(2, "sample")
    ('1 sample', '2 samples')
    """
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
