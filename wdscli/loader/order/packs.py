"""This module puts lengths into packs: each pack holds lengths that add up to at most its size.

The first plan opens enough packs for the sum of all lengths. In each round, every pack with room for the longest length
takes one of the longest lengths; packs with more free space take longer ones. If these packs are fewer than the others,
the others take shorter lengths in the same way. For lengths that fit into no pack, more packs are opened in the same
way. If the packs are less than 98 % full, a second plan is made: it takes the longest lengths first, and puts each into
the fullest pack that it fits into. The plan with fewer packs is used. A pack that holds the largest number of lengths
takes no more.

:func:`in_packs` and :func:`in_sequence` are pure functions of the lengths, the size and the largest number of lengths.
The module does not know what is packed, nor in which order the packs are used."""

from __future__ import annotations

from math import ceil
from typing import Any

from wdscli.arrays import F64, I64, Mask, numpy
from wdscli.loader.order.order import rising

PARTS = 64
"""The number of parts into which the lengths are divided for the second plan. The lengths of a part are placed
together."""
FULL = 0.98
"""If the packs of the first plan are less full than this share, a second plan is made."""


def in_packs(lengths: F64, size: float, most: int = 0) -> I64:
    """Return the number of the pack of each length. No length is more than ``size``. A pack has at most ``most``
    lengths; 0 means any number."""
    numbers: Any = lengths
    if size < 1 << 16 and (lengths == lengths.astype(numpy.uint16)).all():
        numbers = lengths.astype(numpy.uint16)
    order = rising(numbers)
    packs = _in_rounds(numbers[order], size, most)
    if _least(lengths, size, most) < FULL * (int(packs.max()) + 1 if len(packs) else 0):
        second_plan = _longest_first(numbers[order], size, most)
        packs = min(packs, second_plan, key=lambda plan: int(plan.max()))
    pack_of_row: I64 = numpy.empty(len(lengths), dtype=numpy.int64)
    pack_of_row[order] = packs
    return pack_of_row


def in_sequence(lengths: F64, size: float, most: int = 0) -> I64:
    """Return the number of the pack of each length; a pack has neighbours. A length that does not fit into the latest
    pack begins the next pack. Otherwise as :func:`in_packs`."""
    sums, counting = lengths.cumsum(), numpy.arange(1, len(lengths) + 1)
    ends = numpy.maximum(sums.searchsorted(sums - lengths + size, "right"), counting)
    return in_runs(numpy.minimum(ends, counting + most - 1) if most else ends)


def in_runs(ends: I64) -> I64:
    """Return the number of each row's run. A run that begins with row i has the rows from i to ``ends[i]`` - 1."""
    firsts, row, ends_of_rows = [], 0, ends.tolist()
    while row < len(ends_of_rows):
        firsts.append(row)
        row = ends_of_rows[row]
    is_first: I64 = numpy.zeros(len(ends), dtype=numpy.int64)
    is_first[firsts] = 1
    return is_first.cumsum() - 1


def _least(lengths: Any, size: float, most: int) -> float:
    """Return a number of packs that is too small for ``lengths``, or just enough."""
    return max(float(lengths.sum(dtype=numpy.float64)) / size, len(lengths) / most if most else 0)


def _opened(lengths: Any, size: float, most: int, packs: int) -> tuple[Any, I64]:
    """Return the free space and the number of each new pack. As many packs are opened as ``lengths`` surely need.
    ``packs`` is the number of packs that exist already."""
    count = max(1, ceil(_least(lengths, size, most)))
    return numpy.full(count, size, dtype=lengths.dtype), numpy.arange(packs, packs + count)


def _by_room(room: Any, number: I64, least: float, is_open: Mask | None) -> tuple[Any, I64]:
    """Return the free space and the number of each pack with free space of at least ``least``, by rising free space.
    Only the packs of ``is_open`` are returned; None means all."""
    if is_open is not None:
        room, number = room[is_open], number[is_open]
    order = room.argsort(kind="stable")
    room = room[order]
    first = int(room.searchsorted(least))
    return room[first:], number[order[first:]]


def _not_full(pack_of: I64, number: I64, most: int) -> Mask | None:
    """Return which packs of ``number`` have fewer than ``most`` lengths, or None for any number. ``pack_of`` has the
    number of each length's pack, or -1."""
    if not most or not len(number):
        return None
    return numpy.bincount(pack_of + 1, minlength=int(number.max()) + 2)[number + 1] < most


def _in_rounds(lengths: Any, size: float, most: int) -> I64:
    """Return the number of the pack for each of ``lengths``, which are in rising order. The result is the first
    plan."""
    pack_of: I64 = numpy.full(len(lengths), -1)
    left = counting = numpy.arange(len(lengths))
    packs = 0
    while len(left):
        room, number = _opened(lengths, size, most, packs)
        packs += len(room)
        while len(left) and len(room):
            # Packs with room for any length take the longest ones. Each takes several while they surely fit.
            poor = int(room.searchsorted(lengths[-1]))
            rich = min(len(room) - poor, len(left))
            times = (
                1 if poor or most else max(1, min(int(room[0] / max(1, lengths[-1])), len(left) // len(room)))
            )
            head = len(left) - rich * times
            for first in range(head, len(left), max(1, rich)):
                pack_of[left[first : first + rich]] = number[len(number) - rich :]
                room[len(room) - rich :] -= lengths[first : first + rich]
            left, lengths = left[:head], lengths[:head]
            if poor > rich:
                # Each of the others takes the longest length that fits and that no pack with more free space takes.
                taken = lengths.searchsorted(room[:poor], "right") - counting[:poor]
                taken = numpy.minimum.accumulate(taken[::-1])[::-1] + counting[:poor] - 1
                first = int(taken.searchsorted(0))
                taken, room, number = taken[first:], room[first:], number[first:]
                pack_of[left[taken]] = number[: len(taken)]
                room[: len(taken)] -= lengths[taken]
                kept: Mask = numpy.ones(head, dtype=bool)
                kept[taken] = False
                left, lengths = left[kept], lengths[kept]
            if len(left):
                room, number = _by_room(room, number, lengths[0], _not_full(pack_of, number, most))
    return pack_of


def _longest_first(lengths: Any, size: float, most: int) -> I64:
    """Return the number of the pack for each of ``lengths``, which are in rising order. The result is the second plan:
    several lengths are placed together, each in the fullest pack that it fits into."""
    pack_of: I64 = numpy.full(len(lengths), -1)
    room, number = lengths[:0], pack_of[:0]
    packs, step = 0, max(1, len(lengths) // PARTS)
    for end in range(len(lengths), 0, -step):
        first = max(0, end - step)
        while first < end:
            counting = numpy.arange(end - first)
            taken = (
                numpy.maximum.accumulate(room.searchsorted(lengths[first:end], "left") - counting) + counting
            )
            taken = taken[: int(taken.searchsorted(len(room)))]
            pack_of[first : first + len(taken)] = number[taken]
            room[taken] -= lengths[first : first + len(taken)]
            first += len(taken)
            if first < end:
                new_room, new_numbers = _opened(lengths[first:end], size, most, packs)
                packs += len(new_room)
                room, number = numpy.concatenate((room, new_room)), numpy.concatenate((number, new_numbers))
            room, number = _by_room(room, number, lengths[0], _not_full(pack_of, number, most))
    return numpy.unique(pack_of, return_inverse=True)[1]
