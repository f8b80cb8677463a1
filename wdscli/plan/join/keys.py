"""Which samples of several sets have one key, found by the hashes of their keys.

What it is: :func:`match`. How: sorted hashes are looked up in sorted hashes, array by array; ten million keys take
seconds. No set may hold a hash twice. It must not know names: who copies the samples proves that keys are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy
    from numpy.typing import NDArray

    from wdscli.plan.table import I64, U64

    Bools: TypeAlias = NDArray[numpy.bool_]

JoinKind = Literal["inner", "left", "outer"]


def match(sets: Sequence[U64], kind: JoinKind) -> list[I64]:
    """For each set, the row that each output sample takes of it, -1 for none.

    Output samples come in the order of the first set; with ``outer`` then those of the second set that the first has
    not, in the second's order, and so on.

    >>> import numpy
    >>> a, b = numpy.array([5, 3, 9], dtype="u8"), numpy.array([9, 4, 5], dtype="u8")
    >>> [rows.tolist() for rows in match([a, b], "outer")]
    [[0, 1, 2, -1], [2, -1, 0, 1]]
    >>> [rows.tolist() for rows in match([a, b], "inner")]
    [[0, 2], [2, 0]]
    """
    import numpy

    keys = sets[0]
    rows: list[I64] = [numpy.arange(len(keys), dtype=numpy.int64)]
    for hashes in sets[1:]:
        partners = find(keys, hashes)
        there = partners >= 0
        if kind == "inner":
            keys, rows = keys[there], [column[there] for column in rows]
            partners = partners[there]
        elif kind == "outer":
            alone: Bools = numpy.ones(len(hashes), dtype=numpy.bool_)
            alone[partners[there]] = False
            more: I64 = numpy.flatnonzero(alone).astype(numpy.int64)
            keys = numpy.concatenate((keys, hashes[more]))
            nothing: I64 = numpy.full(len(more), -1, dtype=numpy.int64)
            rows = [numpy.concatenate((column, nothing)) for column in rows]
            partners = numpy.concatenate((partners, more))
        rows.append(partners)
    return rows


def find(wanted: U64, hashes: U64) -> I64:
    """The place in ``hashes`` of each that is wanted, -1 where it is not there."""
    import numpy

    found: I64 = numpy.full(len(wanted), -1, dtype=numpy.int64)
    if not len(hashes) or not len(wanted):
        return found
    order = numpy.argsort(hashes)
    there = hashes[order]
    # Both in rising order: the lookups walk through memory instead of jumping about in it.
    asked = numpy.argsort(wanted)
    rising = wanted[asked]
    places = numpy.minimum(numpy.searchsorted(there, rising), len(there) - 1)
    found[asked] = numpy.where(there[places] == rising, order[places], -1)
    return found


def twice(hashes: U64) -> tuple[int, int] | None:
    """Two rows of one hash, if there are any."""
    import numpy

    rising = numpy.sort(hashes)
    same = rising[1:] == rising[:-1]
    if not same.any():
        return None
    rows = numpy.flatnonzero(hashes == rising[:-1][same][0])
    return int(rows[0]), int(rows[1])
