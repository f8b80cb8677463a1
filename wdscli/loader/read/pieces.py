"""Which reads fetch the wanted members of some samples, where not all of their bytes are wanted at once.

What it is: :func:`pieces_of`. How: large payloads are read one by one, small ones with their neighbours, and so are the
headers in front of all of them, all planned on arrays. It must not know how bytes are had.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    I64: TypeAlias = NDArray[numpy.int64]


class Pieces(NamedTuple):
    """``bases`` and ``lengths`` are reads of whole blocks, each of so many ``members``: of what was read, the payload
    of a member lies from ``inside`` (and ``begins``, the same) to ``ends``, and what leads to it in front of that. Of
    the ``large`` members only what leads to them is there; their payloads are read by themselves."""

    bases: list[int]
    lengths: list[int]
    members: list[int]
    inside: I64
    begins: list[int]
    ends: list[int]
    large: list[int]


def pieces_of(heads: I64, offsets: I64, sizes: I64, *, gap: int, most: int, large: int) -> Pieces:
    """The wanted members have payloads of ``sizes`` at ``offsets``; what leads to each begins at ``heads``. No more
    than ``gap`` bytes are read for nothing between two members, about ``most`` at once; payloads of ``large`` bytes and
    more are read alone."""
    import numpy

    is_large = sizes >= large
    # Whole blocks, so that all headers lie at the beginning of one.
    stops = numpy.where(is_large, offsets, offsets + (sizes + 511 & -512))
    runs = _runs(heads, stops, gap, most)
    bases = heads[runs]
    of_run: I64 = numpy.diff(numpy.append(runs, len(heads)))
    inside = offsets - bases.repeat(of_run)
    return Pieces(
        bases.tolist(),
        (stops[runs + of_run - 1] - bases).tolist(),
        of_run.tolist(),
        inside,
        inside.tolist(),
        (inside + sizes).tolist(),
        numpy.flatnonzero(is_large).tolist(),
    )


def _runs(begins: I64, stops: I64, gap: int, most: int) -> Any:
    """Where the reads of several things begin."""
    import numpy

    if not len(begins):
        return numpy.empty(0, dtype=numpy.int64)
    blocks = (begins - begins[0]) // most
    apart = (begins[1:] - stops[:-1] > gap) | (begins[1:] < begins[:-1]) | (blocks[1:] != blocks[:-1])
    return numpy.concatenate(([0], numpy.flatnonzero(apart) + 1))
