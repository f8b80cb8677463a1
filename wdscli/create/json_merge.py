"""JSON objects of samples, to which the columns of a table are added.

:func:`merged_json` merges two objects. :class:`RowsByKey` finds rows by their keys, and :class:`JsonFiles` finds the
JSON file of a sample. This module does not know how tables are read.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left
from collections.abc import Callable

from wdscli.codecs.cells import json_bytes
from wdscli.create.files import SEPARATOR, Files, numbers_of
from wdscli.errors import DataError
from wdscli.model import to_text


def merged_json(payload: bytes, columns: bytes) -> bytes:
    """Return a JSON object, updated with the members of another object. Raises DataError for values that are no
    objects."""
    try:
        document = json.loads(payload)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise DataError(
            "the field json is not a JSON object, so no columns can be added to it",
            code="bad-value",
            hint="write the column to another field: --column meta.json=COLUMN",
        )
    return json_bytes(document | json.loads(columns))


class RowsByKey:
    """Finds rows by the hashes of their keys. Each row needs 12 bytes, or 16 bytes if there are more than 2^32 rows."""

    def __init__(self, hashes: array[int], rows: array[int]) -> None:
        import numpy

        order = numpy.argsort(numpy.asarray(hashes), kind="stable")
        self._hashes = array("q", numpy.asarray(hashes)[order].tobytes())
        self._rows: array[int] = array(rows.typecode, numpy.asarray(rows)[order].tobytes())

    def find(self, wanted: int, has: Callable[[int], bool]) -> int | None:
        """Return the first row with a key, or None. The hash of the key finds candidates, and ``has`` says whether a
        row has the key."""
        candidate = bisect_left(self._hashes, wanted)
        while candidate < len(self._hashes) and self._hashes[candidate] == wanted:
            if has(self._rows[candidate]):
                return self._rows[candidate]
            candidate += 1
        return None


class JsonFiles:
    """The members with the field ``json`` among all files so far."""

    def __init__(self, files: Files) -> None:
        hashes, numbers = array("q"), numbers_of((), len(files))
        for first, rows in files.all_rows():
            for file, row in enumerate(rows, first):
                if row.endswith(SEPARATOR + b"json"):
                    hashes.append(hash(row))
                    numbers.append(file)
        self._rows, self._files = RowsByKey(hashes, numbers), files
        self._taken = bytearray(len(files))

    def take(self, key: bytes) -> int | None:
        """Return the number of a sample's JSON file, which may be replaced only once. Return None if there is no such
        file. Raises DataError for a repeated key."""
        row = key + SEPARATOR + b"json"
        number = self._rows.find(hash(row), lambda file: self._files.row(file) == row)
        if number is not None:
            if self._taken[number]:
                raise DataError(f'repeated key "{to_text(key)}"', code="duplicate-key")
            self._taken[number] = 1
        return number
