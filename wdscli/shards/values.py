"""Values: numbers of samples that an index stores, which replace a read of payloads.

This module packs one number for each sample and name, and unpacks them again. A name is an expression in the language
of ``--where``, in its normal form. wdscli-index(5) documents the entries of the file. The seal of the values also
covers the digest of the headers, so values of another index are refused. The module does not know how a value is
computed (see :mod:`wdscli.selection.numbers`), nor whether the payloads have changed since then (see
:func:`wdscli.shards.reading.find_index`).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Any, NamedTuple

from wdscli.arrays import Mask, numpy
from wdscli.schema import check

VERSION = 1
MISSING = -(1 << 63)
"""The missing value in an int64 column; in a float64 column it is NaN."""
PREFIX = "value:"
_TYPES = {"int64": "<i8", "float64": "<f8"}
_ENTRY = {"version": (VERSION,), "seal": str, "columns": {...: {"type": (*_TYPES,), "exact": bool}}}


class Numbers(NamedTuple):
    """One number for each sample of a shard: ``array`` is int64 or float64. With ``exact`` each number and each gap is
    just what the payload says, with its type and all of its digits, so that the payload need not be read. Not exact
    are, for example, whole numbers between fractions, and gaps where a sample has a text or null."""

    array: Any
    exact: bool

    @property
    def missing(self) -> Mask:
        """True for each sample without a number."""
        found: Mask = numpy.isnan(self.array) if self.array.dtype.kind == "f" else self.array == MISSING
        return found

    def at(self, row: int) -> int | float | None:
        """The number of one sample as Python's own number; None if it is missing."""
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
    """Numbers that are added one by one; eight bytes a sample in memory."""

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
    """The numbers of several shards, one after the other: float64 if one of them has fractions."""
    is_float = any(part.array.dtype.kind == "f" and not part.missing.all() for part in parts)
    parts = [part.as_float() if is_float else part.as_whole() for part in parts]
    arrays = [part.array for part in parts] or [numpy.zeros(0, dtype="<i8")]
    return Numbers(numpy.concatenate(arrays), all(part.exact for part in parts))


def pack(values: Mapping[str, Numbers], digest: str) -> dict[str, Any]:
    """The entries of an index file; none without values. ``digest`` is that of the index."""
    if not values:
        return {}
    columns = {name: _types_of(values[name]) for name in sorted(values)}
    data = {PREFIX + name: values[name].array.tobytes() for name in columns}
    return {"values": {"version": VERSION, "seal": _seal(columns, data, digest), "columns": columns}, **data}


def _types_of(numbers: Numbers) -> dict[str, Any]:
    return {"type": "float64" if numbers.array.dtype.kind == "f" else "int64", "exact": numbers.exact}


def unpack(raw: Mapping[str, Any]) -> dict[str, Numbers]:
    """The values of an index file, by name, without copying; none if it has none, or values of another version.
    Raises ValueError if they are wrong."""
    about = raw.get("values")
    if about is None or (isinstance(about, dict) and about.get("version") != VERSION):
        return {}
    check(about, _ENTRY)
    columns = about["columns"]
    data = {PREFIX + name: raw.get(PREFIX + name, b"") for name in columns}
    if any(type(one) is not bytes or len(one) != 8 * raw["samples"] for one in data.values()):
        raise ValueError("a column of values has another length")
    if _seal(columns, data, raw["digest"]) != about["seal"]:
        raise ValueError("its values do not match their seal")
    return {
        name: Numbers(numpy.frombuffer(data[PREFIX + name], _TYPES[one["type"]]), one["exact"])
        for name, one in columns.items()
    }


def _seal(columns: Mapping[str, Any], data: Mapping[str, bytes], digest: str) -> str:
    """XXH3-64 (hexadecimal) over the digest of the headers and, for each column: its name, type and exactness in one
    line of text, and its numbers."""
    from xxhash import xxh3_64

    seal = xxh3_64(digest.encode())
    for name, about in columns.items():
        seal.update(f"\n{name}\n{about['type']}\n{int(about['exact'])}\n".encode("utf-8", "surrogateescape"))
        seal.update(data[PREFIX + name])
    return seal.hexdigest()
