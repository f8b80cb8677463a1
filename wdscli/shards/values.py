"""Values: numbers of samples that an index stores, which replace a read of payloads.

This module packs one number for each sample and name, and unpacks them again. A name is an expression in the language
of ``--where``, in its normal form. wdscli-index(5) documents the entries of the file. The seal of the values also
covers the digest of the headers, so values of another index are refused. The module does not know how a value is
computed (see :mod:`wdscli.selection.numbers`), nor whether the payloads have changed since then (see
:func:`wdscli.shards.reading.find_index`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wdscli.arrays import numpy
from wdscli.schema import check
from wdscli.selection.numbers import Numbers

VERSION = 1
PREFIX = "value:"
_TYPES = {"int64": "<i8", "float64": "<f8"}
_ENTRY = {"version": (VERSION,), "seal": str, "columns": {...: {"type": (*_TYPES,), "exact": bool}}}


def pack(values: Mapping[str, Numbers], digest: str) -> dict[str, Any]:
    """The entries of an index file; none without values. ``digest`` is the digest of the index."""
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
