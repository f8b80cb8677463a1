"""Which reads fetch the wanted members of some samples, where not all of their bytes are wanted at once.

What it is: :func:`pieces_of`. How: large members are read one by one, small ones with their neighbours, and the first
header of a sample with its first member, all planned on arrays. It must not know how bytes are had.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    I64: TypeAlias = NDArray[numpy.int64]

NAME = 100
"""Bytes of a header's first field, which are read of the header of a large member."""


class Pieces(NamedTuple):
    """``bases`` and ``lengths`` are reads of small things, each with ``counts`` of them: in ``begins`` to ``ends`` of
    what was read lies the payload of member ``members``, and from ``heads`` on the first header of sample ``samples``
    (-1 for none). ``large`` members are read by themselves; their entries among the small ones are headers alone."""

    bases: list[int]
    lengths: list[int]
    counts: list[int]
    members: list[int]
    begins: list[int]
    ends: list[int]
    heads: list[int]
    samples: list[int]
    large: list[int]


def pieces_of(
    starts: I64, counts: I64, offsets: I64, sizes: I64, *, gap: int, most: int, large: int
) -> Pieces:
    """Samples that begin at ``starts`` have ``counts`` wanted members with payloads of ``sizes`` at ``offsets``. No
    more than ``gap`` bytes are read for nothing between two members, about ``most`` at once; members of ``large``
    bytes and more are read alone."""
    import numpy

    firsts = (numpy.cumsum(counts) - counts)[counts > 0]
    samples = numpy.flatnonzero(counts > 0)
    near = offsets[firsts] - starts[samples] <= gap
    begins, head_of = offsets.copy(), numpy.full(len(offsets), -1)
    begins[firsts[near]] = starts[samples[near]]
    head_of[firsts[near]] = samples[near]
    is_large = sizes >= large
    stops = numpy.where(is_large, begins + NAME, offsets + sizes)
    kept = numpy.flatnonzero(~is_large | (head_of >= 0))
    runs = _runs(begins[kept], stops[kept], gap, most)
    bases = begins[kept][runs]
    of_run: I64 = numpy.diff(numpy.append(runs, len(kept)))
    base_of = bases.repeat(of_run)
    lasts = runs + of_run - 1
    inside = offsets[kept] - base_of
    return Pieces(
        bases.tolist(),
        (stops[kept][lasts] - bases).tolist(),
        of_run.tolist(),
        kept.tolist(),
        inside.tolist(),
        (inside + sizes[kept]).tolist(),
        (begins[kept] - base_of).tolist(),
        head_of[kept].tolist(),
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
