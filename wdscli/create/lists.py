"""Rows with the same key as one sample, for ``--on-duplicate list``.

A table then writes each value of a JSON field as a list with one element. :func:`in_lists` joins the
lists of a sample in the order of the rows. Any other field must be the same in all rows. This module does not know how
tables are read.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

from wdscli.codecs.handlers import held_extension
from wdscli.codecs.kinds import find
from wdscli.create.files import SEPARATOR, Files, Inline, Place, is_value
from wdscli.create.grouping import Samples, group
from wdscli.create.packing import payload_at
from wdscli.errors import DataError
from wdscli.text import to_text


def holds_lists(field: str) -> bool:
    """Return whether a field holds JSON.

    >>> holds_lists("captions.json"), holds_lists("txt"), holds_lists("json.gz")
    (True, False, False)
    """
    name, is_packed = held_extension(field)
    return find(name).form == "json" and not is_packed


def in_lists(files: Files, keep: Callable[[bytes], Place]) -> Samples:
    """Group files into samples, and join the lists of rows with the same key. ``keep`` stores a payload. Raises
    DataError for another field that differs, or that does not come from a table."""
    twice: list[int] = []
    samples, repeated = group(files, twice=twice), set[int]()
    for sample in twice:
        for row, members in groupby(samples.members(sample), files.row):
            first, *others = sorted(members)
            if not others:
                continue
            places = [_payload(files, file) for file in (first, *others)]
            field = to_text(row.partition(SEPARATOR)[2])
            if first >= files.first_listed and holds_lists(field):
                values = [place.payload[1:-1] for place in places if isinstance(place, Inline)]
                joined = b"[%b]" % b",".join(values)
                files.put(first, len(joined), files.keep(keep(joined)))
            elif any(place != places[0] for place in places):
                raise DataError(
                    f'"{to_text(row.replace(SEPARATOR, b"."))}" differs between rows with the same key',
                    code="duplicate-field",
                    hint="a list needs a JSON field: --column captions.json=COLUMN",
                )
            repeated.update(others)
    return group(files, without=repeated)


def _payload(files: Files, file: int) -> Place:
    """Return a value of a table as bytes in memory, and any other payload as its place."""
    place = files.place(file)
    return Inline(payload_at(place, files.size(file))) if is_value(place) else place
