"""This module has the orders of ``sort``: by sort keys (:class:`SortOrder`), or by a list of keys
(:class:`ListedOrder`).

Samples with equal values always stay in input order.

:func:`sort_key` parses a text such as ``json.width:nr`` into a :class:`SortKey`. :class:`SortValues` is the extract. It
joins all sort values of a sample into one byte string, so that sorting the strings sorts the samples. For each way to
compare, one function turns a value into its *code*: :func:`text_code`, :func:`natural_code`, :func:`number_code`,
:func:`json_code`. A value has the same name as in ``--where`` (a field's name, ``json.PATH``), and a wrong
name gives the same error. A JSON document is decoded once for all sort keys. The smaller of two values has the smaller
code, equal values have equal codes, and no code is a prefix of another. So codes can be joined, and the complement of a
code reverses the order (:func:`reversed_code`). A NUL inside a text becomes ``00 FF``. A text ends with ``00 00``,
which is less than any continuation. Missing values come first or last, as ``missing`` says, also in reverse order.

This module does not know why samples are sorted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import md5
from typing import Any, Literal, NamedTuple

from xxhash import xxh3_128_hexdigest

from wdscli.arrays import I64, numpy
from wdscli.errors import DataError, UsageError
from wdscli.plan.orders import VALUED_BYTES, Arrangement, Order, SurveyedSamples
from wdscli.plan.request import Request
from wdscli.plan.split import KeyExtract
from wdscli.plan.table import Extract, PackedValues, Values, blocks_of_keys, packed_keys
from wdscli.samples import SampleBatch
from wdscli.samples.grouping import SampleAt
from wdscli.selection.keyfiles import key_lines
from wdscli.selection.named import MissingName, Named, listed
from wdscli.selection.places import Absent, FloatText
from wdscli.selection.reading import MemberReader
from wdscli.selection.where import Value
from wdscli.shards.index import Index
from wdscli.text import to_text

How = Literal["plain", "natural", "numeric"]
Missing = Literal["first", "last", "error"]

MAX_VALUE_BYTES = 1 << 20
"""The longest value that is allowed, because the values of all samples are kept together."""

KEY, MD5, SIZE = "key", "md5", "size"
"""Names of sort values that are not fields. A field with such a name is written with a dot: ``.size``."""
SIZE_BYTES = 8
_SKIP_HINT = "count such values as missing: --on-error skip"
_LETTERS = {"n": "numeric", "V": "natural", "r": "reverse"}
_MODIFIERS = ("numeric", "natural", "reverse", "plain")

TO_SORT_BY = " to sort by"
LACK_HINT = "list the fields: wds ls --by member; sort anyway: --missing last"
"""The hint for a sort key that no sample has."""


class SortKey(NamedTuple):
    """One sort key. If ``value`` is None, ``what`` is a property of the sample: its key, the MD5 of its key, or the
    bytes of its payloads. A value that is a field means the payload itself. ``text`` is the name for messages."""

    text: str
    value: Value | None = None
    how: How = "plain"
    reverse: bool = False
    what: str = KEY

    def __str__(self) -> str:
        """Return the sort key as a user could type it, without defaults."""
        named = [self.how] * (self.how != "plain") + ["reverse"] * self.reverse
        return f"{self.text}:{','.join(named)}" if named else self.text


def sort_key(text: str, how: How = "plain", reverse: bool = False) -> SortKey:
    """Parse ``WHAT`` or ``WHAT:MODIFIERS``. ``how`` and ``reverse`` apply if there are no modifiers. Raises UsageError.

    >>> str(sort_key("json.width:nr")), str(sort_key("key", "natural")), str(sort_key("key:r", "natural"))
    ('json.width:numeric,reverse', 'key:natural', 'key:reverse')
    """
    match = re.fullmatch(r"(.*):([A-Za-z,]*)", text, re.DOTALL)
    if match is not None:
        text = match[1]
        how, reverse = _modifiers(match[2], match[0])
    if text in (KEY, MD5, SIZE):
        return SortKey(text, None, _fitting(text, how), reverse, text)
    value = Value.of_payloads(text, "--by")
    if value.is_tuple:
        hint = "give each sort key its own option: --by cls --by key"
        raise UsageError(f'cannot sort by "{text}"', hint=hint)
    return SortKey(text, value, how, reverse)


def _fitting(what: str, how: How) -> How:
    """Return the way to compare that fits: sizes are always numbers, and digests compare in only one way."""
    if what == KEY or how == "plain":
        return how
    if (what, how) == (SIZE, "numeric"):
        return "plain"
    raise UsageError(f"cannot sort by {what} as {how}", hint=f"--by {what}, or --by {what}:reverse")


def _modifiers(text: str, whole: str) -> tuple[How, bool]:
    words = text.split(",")
    if len(words) == 1 and not set(text) - set(_LETTERS):
        words = [_LETTERS[letter] for letter in text]
    unknown = [word for word in words if word not in _MODIFIERS]
    if unknown or not words:
        raise UsageError(
            f'--by {whole}: "{text}" is not a way to sort',
            hint="use numeric (n), natural (V), reverse (r) or plain; if the name itself has a colon, add :plain",
        )
    hows = {word for word in words if word != "reverse"}
    if len(hows) > 1:
        raise UsageError(
            f"--by {whole}: {' and '.join(sorted(hows))} exclude each other", hint="give one of them"
        )
    how: How = "numeric" if "numeric" in hows else "natural" if "natural" in hows else "plain"
    return how, "reverse" in words


@dataclass(frozen=True)
class SortValues(Extract):
    """The extract that takes the sort values of each sample.

    With ``lenient``, a value that cannot be decoded or compared counts as missing; otherwise it raises DataError
    ``undecodable``. ``may_lack`` accepts a sort key that no sample has.
    """

    keys: tuple[SortKey, ...]
    missing: Missing = "last"
    lenient: bool = False
    may_lack: bool = False
    hint: str = "sort such samples before or after all others: --missing first|last"
    """The hint for a missing value."""
    stored: frozenset[str] = frozenset()
    """The names of the values stored in the shard's index."""

    @property
    def _computed(self) -> list[Value]:
        """The values of sort keys that are no properties of the sample."""
        return [key.value for key in self.keys if key.value is not None]

    def using(self, names: frozenset[str]) -> SortValues:
        return replace(self, stored=names)

    @property
    def payload_fields(self) -> frozenset[bytes]:
        values = [value if value.is_field else value.using(self.stored) for value in self._computed]
        return frozenset[bytes]().union(*(value.payload_fields for value in values))

    @property
    def named(self) -> Sequence[Named]:
        hint = "" if self.may_lack else LACK_HINT
        return [
            name._replace(needed=not self.may_lack, hint=hint)
            for value in self._computed
            for name in value.named_for(TO_SORT_BY)
        ]

    @property
    def _is_simple(self) -> bool:
        """Whether every sample surely has a valid value for each sort key. This is so if all sort keys are properties
        of the sample, and no text is read as a number."""
        return all(key.value is None and key.how != "numeric" for key in self.keys)

    def values(
        self, batch: SampleBatch, rows: Sequence[int], shard: str, payload_of: MemberReader
    ) -> list[bytes]:
        """Return one value for each row. Sorting the values sorts the samples.

        If samples are sorted by plain keys, the keys are the values. Otherwise a value has a code for each sort key. If
        a sort key can be missing, a byte before its code says whether it is. The last bytes have one bit for each sort
        key, which is set if the key has a value (:meth:`never_seen`). These bits do not change the order, because the
        codes already contain the same fact.
        """
        if not self._is_simple:
            return super().values(batch, rows, shard, payload_of)
        if self._is_by_key:
            return batch.keys if len(rows) == len(batch.keys) else [batch.keys[row] for row in rows]
        codes = [_codes(key, batch, rows) for key in self.keys]
        return codes[0] if len(codes) == 1 else list(map(b"".join, zip(*codes, strict=True)))

    @property
    def _is_by_key(self) -> bool:
        """Whether the values are the samples' keys."""
        return self.keys == (SortKey(KEY),)

    def value(self, sample: SampleAt) -> bytes:
        """Return all codes of one sample, joined. Raises DataError."""
        absent = b"\0" if self.missing == "first" else b"\2"
        documents: dict[str, Any] = {}
        codes, present = [], 1
        for place, key in enumerate(self.keys):
            code = self._code_or_none(sample, key, documents)
            if code is None:
                codes.append(absent)
            else:
                codes += (b"\1", reversed_code(code) if key.reverse else code)
                present |= 2 << place
        codes.append(present.to_bytes(_width(self.keys), "big"))
        return b"".join(codes)

    def _code_or_none(self, sample: SampleAt, key: SortKey, documents: dict[str, Any]) -> bytes | None:
        """Return the code of one sort key, or None for a missing value if that is allowed."""
        try:
            return _code(sample, key, documents)
        except Absent:
            pass
        except DataError as error:
            if not self.lenient or error.code != "undecodable":
                if error.code == "undecodable":
                    error.hint = _SKIP_HINT
                raise
        except (ValueError, RecursionError) as error:
            if not self.lenient:
                why = "it is nested too deeply" if isinstance(error, RecursionError) else error
                text = f"cannot sort by {key.text}: {why}"
                field = key.value.place.field if key.value is not None and key.value.place else None
                raise sample.error(text, "undecodable", field, _SKIP_HINT) from None
        if self.missing == "error":
            raise sample.error(f"the sample has no {key.text} to sort by", "missing-value", hint=self.hint)
        return None

    def values_of_index(self, index: Index) -> PackedValues | None:
        """Return the values of all samples of an index, if the only sort key is a property of the sample; otherwise
        None."""
        if self._is_by_key:
            return packed_keys(index)
        key = self.keys[0]
        if len(self.keys) > 1 or key.value is not None or key.reverse or key.what == KEY:
            return None
        if key.what == SIZE:
            return _packed_sizes(index)
        if key.what == MD5:
            return PackedValues.of([md5_code(key) for _, keys in blocks_of_keys(index) for key in keys])
        return None

    def never_seen(self, values: Iterable[bytes]) -> list[SortKey]:
        """Return the sort keys that are missing in all ``values``. Return an empty list if there are no values."""
        if self._is_simple:
            return []
        width = _width(self.keys)
        everything = (2 << len(self.keys)) - 1
        key_bits, value = 0, None
        for value in values:
            key_bits |= int.from_bytes(value[-width:], "big")
            if key_bits == everything:
                return []
        return (
            [] if value is None else [key for place, key in enumerate(self.keys) if not key_bits & 2 << place]
        )


def _code(sample: SampleAt, key: SortKey, documents: dict[str, Any]) -> bytes:
    """Return the code of a sort key's value in a sample. ``documents`` caches the decoded fields of the sample. Raises
    Absent for a missing value, ValueError for a value that cannot be compared, and RecursionError."""
    value = key.value
    if value is None:
        return _own_code(key, sample.batch, sample.row)
    field = value.place.field if value.is_field and value.place else value.size_of
    if field is not None:
        member = sample.member(field)
        if member is None:
            raise Absent
        size = sample.batch.sizes[member]
        if value.size_of is not None:
            return size_code(size)
        if size > MAX_VALUE_BYTES:
            raise ValueError(f"it has {size} bytes, and the limit is {MAX_VALUE_BYTES}")
        return payload_code(sample.payload(field), key.how)
    result = value.value(sample, exact=True, documents=documents if value.place else None)
    if result is None:
        raise Absent
    code = value_code(result, key.how)
    if len(code) > MAX_VALUE_BYTES:
        raise ValueError(f"it is longer than the limit of {MAX_VALUE_BYTES} bytes")
    return code


def _width(keys: Sequence[SortKey]) -> int:
    """Return the number of bytes for a bit per sort key, and one more bit, the lowest, which is always set."""
    return (len(keys) + 8) // 8


def _codes(key: SortKey, batch: SampleBatch, rows: Sequence[int]) -> list[bytes]:
    """Return the codes of a property of some samples."""
    codes = (_own_code(key, batch, row) for row in rows)
    return list(map(reversed_code, codes) if key.reverse else codes)


def _own_code(key: SortKey, batch: SampleBatch, row: int) -> bytes:
    """Return the code of a sample's key, of the key's MD5, or of the sample's size. Raises ValueError, Absent."""
    if key.what == MD5:
        return md5_code(batch.keys[row])
    if key.what == SIZE:
        return size_code(sum(batch.sizes[batch.firsts[row] : batch.firsts[row + 1]]))
    return payload_code(batch.keys[row], key.how)


def md5_code(key: bytes) -> bytes:
    """Return the MD5 of a key. Sorting by MD5 mixes samples in the same way everywhere; it is not used for security."""
    return md5(key, usedforsecurity=False).digest()


def size_code(size_bytes: int) -> bytes:
    """Return the code of a size in bytes."""
    return size_bytes.to_bytes(SIZE_BYTES, "big")


def _packed_sizes(index: Index) -> PackedValues:
    ends: Any = index.member_ends.astype(numpy.int64)
    totals: Any = numpy.append(0, numpy.cumsum(index.member_sizes, dtype=numpy.uint64))
    sizes = (totals[ends] - totals[numpy.append(0, ends)[:-1]]).astype(">u8")
    return PackedValues(numpy.full(len(sizes), SIZE_BYTES, dtype=numpy.uint32), sizes.view(numpy.uint8))


def payload_code(payload: bytes, how: How) -> bytes:
    """Return the code of a payload or a key, as text or as a number. White space around a number is ignored."""
    if how == "numeric":
        return _number(payload.strip().decode("ascii", "replace"))
    return natural_code(payload) if how == "natural" else text_code(payload)


def value_code(value: Any, how: How) -> bytes:
    """Return the code of a value from JSON or of an expression."""
    if how == "numeric":
        return _number(value.strip() if isinstance(value, str) else number_text(value))
    if value != value:
        raise Absent
    return json_code(value, natural_code if how == "natural" else text_code)


_NUMBERS = (int, float, FloatText)


def number_text(value: Any) -> str:
    """Return a number with all its digits; an empty text for any other value."""
    if type(value) is FloatText:
        return value
    return repr(value) if isinstance(value, _NUMBERS) and not isinstance(value, bool) else ""


def _number(text: str) -> bytes:
    code = number_code(text)
    if code is None:
        raise Absent
    return code


_END = b"\0\0"
_COMPLEMENT = bytes(range(255, -1, -1))


def reversed_code(code: bytes) -> bytes:
    """Return the code of the same value for reverse order."""
    return code.translate(_COMPLEMENT)


def text_code(text: bytes) -> bytes:
    r"""Return the code that compares a text byte by byte. A prefix comes first.

    >>> sorted([b"b", b"a", b"ab", b"a\0"], key=text_code)
    [b'a', b'a\x00', b'ab', b'b']
    """
    return text.replace(b"\0", b"\0\xff") + _END


_DIGITS = re.compile(rb"[0-9]+")
_NO_ZEROS = 0xFE


def natural_code(text: bytes) -> bytes:
    """Return a code like :func:`text_code`, but a run of digits counts as one character. Compared with another
    character, a run sorts like ``0``. Two runs compare by their numbers. If texts differ only in leading zeros, the
    text with more zeros comes first.

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
    # One byte per run of digits, up to the last run with leading zeros. The byte FF, which is larger, ends the list.
    return code + zeros.rstrip(bytes([_NO_ZEROS])) + b"\xff"


_NUMBER = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]{1,18}))?")
_LEAST, _BELOW_ZERO, _ZERO, _ABOVE_ZERO, _GREATEST = (bytes([kind]) for kind in range(1, 6))


def number_code(text: str) -> bytes | None:
    """Return the code of a decimal number of any size and precision, or of an infinity. Numbers compare exactly. Return
    None for NaN, which has no place in the order. Raises ValueError for a text that is not a number.

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
    """Return the code of an exponent: one byte for usual exponents, nine bytes for others."""
    if -64 <= exponent < 64:
        return bytes([128 + exponent])
    if exponent > 0:
        return b"\xff" + exponent.to_bytes(8, "big")
    return b"\x01" + (exponent + (1 << 63)).to_bytes(8, "big")


_NULL, _FALSE, _TRUE, _IS_NUMBER, _IS_TEXT, _IS_ARRAY, _IS_OBJECT = (bytes([kind]) for kind in range(1, 8))
_END_OF_ARRAY = b"\0"


def json_code(value: Any, text: Callable[[bytes], bytes] = text_code) -> bytes:
    """Return the code of a JSON value. ``text`` makes the codes of its strings.

    The order is the same as in jq: null, false, true, numbers, strings, arrays, objects. Arrays compare by the first
    element that differs; a prefix comes first. Objects compare by their sorted names, like arrays, and then by their
    values in that order. NaN counts as null. Raises RecursionError for values that are nested too deeply.

    >>> sorted([["b"], "a", 2, {}, True, -1.5, None], key=json_code)
    [None, True, -1.5, 2, 'a', ['b'], {}]
    """
    if value is None:
        return _NULL
    if value is True or value is False:
        return _TRUE if value else _FALSE
    if isinstance(value, _NUMBERS):
        number = number_code(number_text(value))
        return _NULL if number is None else _IS_NUMBER + number
    if isinstance(value, str):
        return _IS_TEXT + text(utf8(value))
    if isinstance(value, list):
        return b"".join([_IS_ARRAY, *[json_code(element, text) for element in value], _END_OF_ARRAY])
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"a value of the type {type(value).__name__} has no order")
    names = sorted(value, key=utf8)
    return _IS_OBJECT + json_code(names, text) + b"".join([json_code(value[name], text) for name in names])


def utf8(text: str) -> bytes:
    """Return the bytes of a JSON string, which may contain half of a surrogate pair."""
    return text.encode("utf-8", "surrogatepass")


# Orders.


@dataclass(frozen=True)
class SortOrder(Order):
    """An order that sorts samples by the values of ``extract``."""

    extract: SortValues
    missing: Missing | None = None
    """The option ``--missing``. None puts samples without a value last, and is an error if no sample has a value."""
    operation = "sort"
    is_repeatable = True
    bytes_per_sample = VALUED_BYTES

    def options(self) -> dict[str, Any]:
        by: dict[str, Any] = {"by": [str(key) for key in self.extract.keys]}
        return by if self.missing is None else {**by, "missing": self.missing}

    def arrange(self, surveyed: SurveyedSamples) -> Arrangement:
        assert surveyed.values is not None
        self.check(surveyed.values)
        return Arrangement(surveyed.values.order())

    def check(self, values: Iterable[bytes]) -> None:
        """Raise DataError if no sample has a value to sort by. ``values`` yields the values of all samples, and is read
        only until a value is found."""
        absent = self.extract.never_seen(values) if self.missing is None else []
        if absent:
            text = " or ".join(key.text for key in absent)
            raise DataError(f"no sample has {text}{TO_SORT_BY}", code="missing-value", hint=LACK_HINT)


@dataclass(frozen=True)
class ListedOrder(Order):
    """An order that follows a list of keys. Unlisted samples go ``first`` or ``last``, in input order, or are an error.
    A listed key that no sample has is an error too. ``places`` has each key's line in the file ``name``."""

    name: str
    places: Mapping[bytes, int]
    missing: Missing = "error"
    operation = "sort"
    is_repeatable = True
    bytes_per_sample = VALUED_BYTES
    extract = KeyExtract()

    def options(self) -> dict[str, Any]:
        digest = xxh3_128_hexdigest(b"\n".join(self.places))
        by = {"order_from": f"xxh3_128:{digest}"}
        return by if self.missing == "error" else {**by, "missing": self.missing}

    def arrange(self, surveyed: SurveyedSamples) -> Arrangement:
        assert surveyed.values is not None
        places = self.places
        nowhere = -1 if self.missing == "first" else len(places)
        key_places: I64 = numpy.fromiter((places.get(key, nowhere) for key in surveyed.values), numpy.int64)
        self._check(surveyed.values, key_places)
        lacking = len(places) - len(numpy.unique(key_places[(key_places >= 0) & (key_places < len(places))]))
        absent = self._absent(lacking, key_places) if lacking else None
        return Arrangement(numpy.argsort(key_places, kind="stable"), absent=absent)

    def _check(self, keys: Values, key_places: I64) -> None:
        """Raise DataError for samples that are not in the list, unless the order allows them."""
        unlisted = numpy.flatnonzero(key_places == len(self.places))
        if self.missing == "error" and len(unlisted):
            first = keys.part(int(unlisted[0]), int(unlisted[0]) + 1)[0]
            more_keys = f" and {len(unlisted) - 1} more keys" if len(unlisted) > 1 else ""
            raise DataError(
                f'{self.name} does not list "{to_text(first)}"{more_keys}',
                code="missing",
                hint="use --missing first or --missing last to keep such samples,\n"
                f"or --keys-from {self.name} to leave them out",
            )

    def _absent(self, lacking: int, key_places: I64) -> MissingName:
        """Return the listed keys that no sample has."""
        sample_places = set(key_places.tolist())
        names = [to_text(key) for key, place in self.places.items() if place not in sample_places]
        noun = "key" if lacking == 1 else "keys"
        return MissingName(f"{lacking} {noun} of {self.name} for --by not found: {listed(names, ', ')}", "")


def listed_order(request: Request, address: str, missing: Missing | None = None) -> ListedOrder:
    """Return the order of a list of keys in the format of ``--keys-from``: one key per line. Raises InputError, and
    UsageError, also for a repeated key."""
    if address == "-" and "-" in request.inputs:
        raise UsageError("standard input cannot hold both keys and a shard", hint="--by @FILE")
    places: dict[bytes, int] = {}
    for place, key in enumerate(key_lines(address)):
        if places.setdefault(key, place) != place:
            raise UsageError(f'--by @{address} has "{to_text(key)}" twice', hint="list each key once")
    return ListedOrder(address, places, missing or "error")


def sort_order(
    by: Sequence[str | SortKey] = (KEY,),
    *,
    how: How = "plain",
    reverse: bool = False,
    missing: Missing | None = None,
    lenient: bool = False,
) -> SortOrder:
    """Return the order for some sort keys, the most significant first (:func:`sort_key`). ``how`` and
    ``reverse`` apply to sort keys without modifiers. With ``lenient``, values that cannot be decoded or compared count
    as missing.

    Raises UsageError.
    """
    keys = [sort_key(key, how, reverse) if isinstance(key, str) else key for key in by or (KEY,)]
    return SortOrder(SortValues(tuple(keys), missing or "last", lenient, missing is not None), missing)
