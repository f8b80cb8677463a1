"""This module has columns of numbers, one for each sample, that indexes store.

A value for ``--values`` is a place or an expression over the payloads of a sample (:func:`value_names`). Names that
change when a sample moves (``key``, ``shard``, ``index``, ``fields``, ``rand()``) are refused. :class:`SampleNumbers`
computes the numbers while samples are read or written. :class:`Numbers` has one number for each sample of a shard.
:func:`pack_numbers` and :func:`unpack_numbers` are the form of numbers in an index file, which wdscli-index(5)
documents. An index names them by the normal form of the expression. Their seal also covers the digest of the headers,
so that values of another index are refused.

This module does not know what the values are for, nor whether the payloads have changed since they were stored (see
:func:`wdscli.shards.proof.find_index`).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from wdscli.arrays import Mask, numpy
from wdscli.errors import DataError, UsageError
from wdscli.samples import SampleBatch
from wdscli.samples.grouping import PayloadOf, SampleAt
from wdscli.schema import check
from wdscli.selection.places import parse_place
from wdscli.text import to_bytes

if TYPE_CHECKING:
    from wdscli.selection.where import Value

MISSING = -(1 << 63)
"""The missing value in an int64 column. In a float64 column, it is NaN."""
_HINT = "a place in JSON or an expression of payloads: json.tokens, len(txt), width(jpg), seconds(wav)"


class Numbers(NamedTuple):
    """One number for each sample of a shard. ``array`` is int64 or float64. ``exact`` means that each number has the
    type and all digits of the payload, and that a missing number is also missing in the payload. So the payload need
    not be read. Numbers are not exact, for example, if whole numbers and fractions are mixed, or if some sample has a
    text or null."""

    array: Any
    exact: bool

    @property
    def missing(self) -> Mask:
        """True for each sample without a number."""
        mask: Mask = numpy.isnan(self.array) if self.array.dtype.kind == "f" else self.array == MISSING
        return mask

    def at(self, row: int) -> int | float | None:
        """Return the number of one sample as a Python number, or None if it is missing."""
        number: int | float = self.array.item(row)
        return None if number == MISSING or number != number else number

    def as_float(self) -> Numbers:
        """The same numbers as float64; exact only if there are none."""
        if self.array.dtype.kind == "f":
            return self
        missing = self.missing
        return Numbers(
            numpy.where(missing, math.nan, self.array.astype("<f8")), self.exact and bool(missing.all())
        )

    def as_whole(self) -> Numbers:
        """The same numbers as int64, if there are no fractions."""
        if self.array.dtype.kind == "i":
            return self
        return Numbers(numpy.full(len(self.array), MISSING, dtype="<i8"), self.exact)


class GrowingNumbers:
    """Numbers that are added one by one. Each sample needs eight bytes of memory."""

    def __init__(self) -> None:
        self._numbers = array("q")
        self._exact = True
        self._has_some = False

    def add(self, number: float | None, exact: bool = True) -> None:
        """Add the number of the next sample. The first fraction makes all numbers fractions."""
        if number is None:
            number = MISSING if self._numbers.typecode == "q" else math.nan
        else:
            if isinstance(number, float) and self._numbers.typecode == "q":
                floats = self.numbers().as_float()
                self._numbers, self._exact = array("d", floats.array.tobytes()), floats.exact
            elif isinstance(number, int) and self._numbers.typecode == "d":
                number, exact = float(number), False
            self._has_some = True
        self._numbers.append(number)  # type: ignore[arg-type]
        self._exact &= exact

    def numbers(self) -> Numbers:
        """All numbers so far."""
        kind = "<i8" if self._numbers.typecode == "q" else "<f8"
        return Numbers(numpy.array(self._numbers, dtype=kind), self._exact)


def joined(parts: list[Numbers]) -> Numbers:
    """Join the numbers of several shards. The result is float64 if some shard has fractions."""
    is_float = any(part.array.dtype.kind == "f" and not part.missing.all() for part in parts)
    parts = [part.as_float() if is_float else part.as_whole() for part in parts]
    arrays = [part.array for part in parts] or [numpy.zeros(0, dtype="<i8")]
    return Numbers(numpy.concatenate(arrays), all(part.exact for part in parts))


def split_texts(texts: str | Sequence[str], option: str) -> Iterator[str]:
    """Yield the places and expressions of an option, which commas separate. Raises UsageError.

    >>> list(split_texts("my-field, round(json.s, 2)", "--values"))
    ['my-field', 'round(json.s, 2)']
    """
    import ast

    for text in [texts] if isinstance(texts, str) else texts:
        words = [word.strip() for word in text.split(",")]
        if all(map(parse_place, words)):
            yield from words
            continue
        source = f"[{text.strip()}\n]"
        try:
            parts = ast.parse(source, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise UsageError(f'{option} cannot be read: "{text}"', hint=_HINT) from None
        for part in parts.elts if isinstance(parts, ast.List) else [parts]:
            yield ast.get_source_segment(source, part) or ""


def value_names(texts: str | Sequence[str] | None, option: str = "--values") -> tuple[str, ...]:
    """Return the normal forms of the comma-separated values in an option. Raises UsageError.

    >>> value_names(["json['width'], width( jpg )", "round(json.s, 2)"])
    ('json.width', 'width(jpg)', 'round(json.s, 2)')
    """
    names = dict.fromkeys(_checked(text, option).normal for text in split_texts(texts or (), option))
    if texts is not None and not names:
        raise UsageError(f"{option} is empty", hint=_HINT)
    return tuple(names)


@lru_cache(256)
def fields_of(name: str) -> frozenset[bytes]:
    """Return the fields from which the value with this name is computed."""
    return frozenset(to_bytes(field) for named in _parsed(name).named for field in named.fields)


def _parsed(text: str, option: str = "--values") -> Value:
    from wdscli.selection.where import Value

    return Value(text, option)


def _checked(text: str, option: str) -> Value:
    value = _parsed(text, option)
    if not value.is_of_payloads:
        raise UsageError(f"{option}: {text} is not a value of payloads", hint=_HINT)
    return value


class SampleNumbers:
    """The numbers of the samples of one shard, by name, added sample by sample."""

    def __init__(self, names: Sequence[str], *, lenient: bool = False) -> None:
        self.names = tuple(names)
        self._values = {name: _parsed(name) for name in names}
        self._columns = {name: GrowingNumbers() for name in names}
        self._lenient = lenient
        self._failures: dict[str, list[DataError]] = {}
        self.payload_fields = frozenset[bytes]().union(
            *(value.payload_fields for value in self._values.values())
        )

    def add(self, sample: SampleAt) -> None:
        """Add the numbers of one sample. If a payload cannot be decoded, raises DataError ``undecodable`` and adds no
        number."""
        numbers = []
        for name, value in self._values.items():
            try:
                numbers.append(value.number(sample))
            except DataError as error:
                if error.code != "undecodable":
                    raise
                if not self._lenient:
                    error.hint = "write without values; `wds index --values` stores such a value as missing"
                    raise
                numbers.append((None, False))
                self._failures.setdefault(name, []).append(error)
        for column, number in zip(self._columns.values(), numbers):
            column.add(*number)

    def add_batch(self, batch: SampleBatch, shard: str, payload_of: PayloadOf) -> None:
        """Add the numbers of all samples of a batch."""
        for row in range(len(batch.keys)):
            self.add(SampleAt(batch, row, shard, payload_of))

    def add_fields(self, key: bytes, fields: Sequence[tuple[bytes, Any]], shard: str) -> None:
        """Add the numbers of a sample that is written."""
        names, payloads = [name for name, _ in fields], [data for _, data in fields]
        sizes, zeros = list(map(len, payloads)), [0] * len(names)
        batch = SampleBatch(0, [key], [0, len(names)], names, zeros, zeros, sizes, zeros, [0])
        self.add(SampleAt(batch, 0, shard, lambda _, field: bytes(payloads[names.index(field)])))

    def remarks(self) -> tuple[str, ...]:
        """With ``lenient``, return a text for each name on how many values could not be computed, with the first
        error."""
        return tuple(
            f"{name}: {len(errors)} values are missing, because their payloads cannot be decoded; "
            f"the first: {errors[0]}"
            for name, errors in self._failures.items()
        )

    def numbers(self) -> dict[str, Numbers]:
        """The numbers of all samples by name."""
        return {name: column.numbers() for name, column in self._columns.items()}


_VERSION = 1
_PREFIX = "value:"
_TYPES = {"int64": "<i8", "float64": "<f8"}
_ENTRY = {"version": (_VERSION,), "seal": str, "columns": {...: {"type": (*_TYPES,), "exact": bool}}}


def pack_numbers(values: Mapping[str, Numbers], digest: str) -> dict[str, Any]:
    """Return the entries of an index file for these values. ``digest`` is the digest of the index."""
    if not values:
        return {}
    columns = {name: _types_of(values[name]) for name in sorted(values)}
    data = {_PREFIX + name: values[name].array.tobytes() for name in columns}
    return {"values": {"version": _VERSION, "seal": _seal(columns, data, digest), "columns": columns}, **data}


def _types_of(numbers: Numbers) -> dict[str, Any]:
    return {"type": "float64" if numbers.array.dtype.kind == "f" else "int64", "exact": numbers.exact}


def unpack_numbers(raw: Mapping[str, Any]) -> dict[str, Numbers]:
    """Return the values of an index file by name, without copying. Return no values if there are none, or if they have
    another version. Raises ValueError if they are wrong."""
    about = raw.get("values")
    if about is None or (isinstance(about, dict) and about.get("version") != _VERSION):
        return {}
    check(about, _ENTRY)
    columns = about["columns"]
    data = {_PREFIX + name: raw.get(_PREFIX + name, b"") for name in columns}
    if any(type(column) is not bytes or len(column) != 8 * raw["samples"] for column in data.values()):
        raise ValueError("a column of values has the wrong length")
    if _seal(columns, data, raw["digest"]) != about["seal"]:
        raise ValueError("its values do not match their seal")
    return {
        name: Numbers(numpy.frombuffer(data[_PREFIX + name], _TYPES[column["type"]]), column["exact"])
        for name, column in columns.items()
    }


def _seal(columns: Mapping[str, Any], data: Mapping[str, bytes], digest: str) -> str:
    """Return the hexadecimal XXH3-64 over the digest of the headers and all columns. Each column adds a line of text
    with its name, type and exactness, and its numbers."""
    from xxhash import xxh3_64

    seal = xxh3_64(digest.encode())
    for name, about in columns.items():
        seal.update(f"\n{name}\n{about['type']}\n{int(about['exact'])}\n".encode("utf-8", "surrogateescape"))
        seal.update(data[_PREFIX + name])
    return seal.hexdigest()
