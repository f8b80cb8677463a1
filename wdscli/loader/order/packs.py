"""This module puts lengths into packs: each pack holds lengths that add up to at most its size.

The first plan opens enough packs for the sum of all lengths. In each round, every pack with room for the longest length
takes one of the longest lengths; packs with more free space take longer ones. If these packs are fewer than the others,
the others take shorter lengths in the same way. For lengths that fit into no pack, more packs are opened in the same
way. If the packs are less than 98 % full, a second plan is made: it takes the longest lengths first, and puts each into
the fullest pack that it fits into. The plan with fewer packs is used. If one of its packs has too many lengths, there
are two more plans. One is like the first plan, but a pack that holds the largest number of lengths takes no more. In
the other, the shortest lengths of packs with too many get more packs.

With other sums, such as pictures per pack, the plan above is used if all its packs are within the limits. If a few
packs are not, their rows are planned again; otherwise all rows are. The share of an amount is the amount divided by its
limit. Packs are opened for the largest sum of shares. In each turn, every pack takes one of the largest rows: rows with
much length and little else go to packs with much room for length and little else. A row that does not fit waits. Then
rows that wait are dealt by size, the largest to the packs with most room, as long as at least 1 % of them fit, and as
many packs have room. For the others, more packs are opened.

:func:`in_packs` and :func:`in_sequence` are pure functions of the lengths, the size and the largest number of lengths.
The module does not know what is packed, nor in which order the packs are used."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import ceil
from typing import Any

from wdscli.arrays import F64, I64, Mask, numpy
from wdscli.loader.order.order import rising

PARTS = 64
"""The number of parts into which the lengths are divided for the second plan. The lengths of a part are placed
together."""
FULL = 0.98
"""If the packs of the first plan are less full than this share, a second plan is made."""
FEW_OVER = 0.2
"""If a smaller share of the packs by length than this is over other limits, only the rows of these packs are planned
again."""
LEAST_PLACED = 0.01
"""If a smaller share of the waiting rows than this fits into the open packs, or has an open pack, more packs are
opened."""


Also = Sequence["tuple[F64, float]"]
"""Other amounts of each row, with the largest sum of each amount in a pack. No amount is more than this sum."""


def in_packs(lengths: F64, size: float, most: int = 0, also: Also = ()) -> I64:
    """Return the number of the pack of each length. No length is more than ``size``. A pack has at most ``most``
    lengths; 0 means any number. The packs are within the limits of ``also`` too."""
    if not also:
        return _by_length(lengths, size, most)
    if all(amounts.sum() / limit < lengths.sum() / size / 2 for amounts, limit in also):
        packs = _by_length(lengths, size, most)
        is_over = reduce(
            numpy.logical_or, [numpy.bincount(packs, amounts) > limit for amounts, limit in also]
        )
        if not is_over.any():
            return packs
        if is_over.mean() < FEW_OVER:
            rows = is_over[packs].nonzero()[0]
            of_rows = [(amounts[rows], limit) for amounts, limit in also]
            packs[rows] = len(is_over) + _within(lengths[rows], size, most, of_rows)
            return numpy.unique(packs, return_inverse=True)[1]
    return _within(lengths, size, most, also)


def _within(lengths: F64, size: float, most: int, also: Also) -> I64:
    """Return the number of the pack of each length, within all limits at the same time."""
    counted = [(numpy.ones(len(lengths)), float(most))] if most else []
    return _by_several(*zip((lengths, float(size)), *also, *counted))


def _by_length(lengths: F64, size: float, most: int) -> I64:
    """Return the number of the pack of each length, as :func:`in_packs`."""
    numbers: Any = lengths
    if size < 1 << 16 and (lengths == lengths.astype(numpy.uint16)).all():
        numbers = lengths.astype(numpy.uint16)
    order = rising(numbers)
    numbers = numbers[order]
    packs = _in_rounds(numbers, size)
    if _least(lengths, size) < FULL * (int(packs.max()) + 1 if len(packs) else 0):
        packs = min(packs, _longest_first(numbers, size), key=lambda plan: int(plan.max()))
    if most and len(packs) and int((counts := numpy.bincount(packs)).max()) > most:
        capped = _in_rounds(numbers, size, most)
        least = len(counts) + (counts - most).clip(0).sum() / most
        plans = [capped]
        if least < int(capped.max()):
            plans.append(_without_excess(numbers, packs, counts, size, most))
        packs = min(plans, key=lambda plan: int(plan.max()))
    pack_of_row: I64 = numpy.empty(len(lengths), dtype=numpy.int64)
    pack_of_row[order] = packs
    return pack_of_row


def _without_excess(lengths: Any, packs: I64, counts: I64, size: float, most: int) -> I64:
    """Return the packs of ``lengths``, which are in rising order, without the shortest lengths of each pack that has
    more than ``most``. These get more packs. ``counts`` has the number of lengths of each pack."""
    order = rising(packs)
    places = numpy.arange(len(packs)) - (counts.cumsum() - counts)[packs[order]]
    excess = numpy.sort(order[places < (counts - most)[packs[order]]])
    packs = packs.copy()
    packs[excess] = len(counts) + _in_rounds(lengths[excess], size, most)
    return packs


def in_sequence(lengths: F64, size: float, most: int = 0, also: Also = ()) -> I64:
    """Return the number of the pack of each length; a pack has neighbours. A length that does not fit into the latest
    pack begins the next pack. Otherwise as :func:`in_packs`."""
    ends = ends_within(numpy.arange(len(lengths)) + (most or len(lengths)), [(lengths, size), *also])
    return in_runs(ends)


def ends_within(ends: I64, amounts_and_limits: Also) -> I64:
    """Return ``ends``, or earlier ends: no run from a row to the row's end has a larger sum than a limit."""
    for amounts, limit in amounts_and_limits:
        sums = amounts.cumsum()
        ends = numpy.minimum(ends, sums.searchsorted(sums - amounts + limit, "right"))
    return numpy.maximum(ends, numpy.arange(1, len(ends) + 1))


def in_runs(ends: I64) -> I64:
    """Return the number of each row's run. A run that begins with row i has the rows from i to ``ends[i]`` - 1."""
    firsts, row, ends_of_rows = [], 0, ends.tolist()
    while row < len(ends_of_rows):
        firsts.append(row)
        row = ends_of_rows[row]
    is_first: I64 = numpy.zeros(len(ends), dtype=numpy.int64)
    is_first[firsts] = 1
    return is_first.cumsum() - 1


def _least(lengths: Any, size: float, most: int = 0) -> float:
    """Return a number of packs that is too small for ``lengths``, or just enough."""
    return max(float(lengths.sum(dtype=numpy.float64)) / size, len(lengths) / most if most else 0)


def _opened(lengths: Any, size: float, most: int, packs: int) -> tuple[Any, I64]:
    """Return the free space and the number of each new pack. As many packs are opened as ``lengths`` surely need.
    ``packs`` is the number of packs that exist already."""
    count = max(1, ceil(_least(lengths, size, most)))
    return numpy.full(count, size, dtype=lengths.dtype), numpy.arange(packs, packs + count)


def _by_room(room: Any, number: I64, least: float, is_open: Mask | None = None) -> tuple[Any, I64]:
    """Return the free space and the number of each pack with free space of at least ``least``, by rising free space.
    Only the packs of ``is_open`` are returned; None means all."""
    if is_open is not None:
        room, number = room[is_open], number[is_open]
    order = room.argsort(kind="stable")
    room = room[order]
    first = int(room.searchsorted(least))
    return room[first:], number[order[first:]]


def _in_rounds(lengths: Any, size: float, most: int = 0) -> I64:
    """Return the number of the pack for each of ``lengths``, which are in rising order. The result is the first
    plan."""
    pack_of: I64 = numpy.full(len(lengths), -1)
    held: I64 = numpy.zeros(len(lengths) if most else 0, dtype=numpy.int64)
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
                held[number[len(number) - rich :] if most else ()] += 1
                room[len(room) - rich :] -= lengths[first : first + rich]
            left, lengths = left[:head], lengths[:head]
            if poor > rich:
                # Each of the others takes the longest length that fits and that no pack with more free space takes.
                taken = lengths.searchsorted(room[:poor], "right") - counting[:poor]
                taken = numpy.minimum.accumulate(taken[::-1])[::-1] + counting[:poor] - 1
                first = int(taken.searchsorted(0))
                taken, room, number = taken[first:], room[first:], number[first:]
                pack_of[left[taken]] = number[: len(taken)]
                held[number[: len(taken)] if most else ()] += 1
                room[: len(taken)] -= lengths[taken]
                kept: Mask = numpy.ones(head, dtype=bool)
                kept[taken] = False
                left, lengths = left[kept], lengths[kept]
            if len(left):
                room, number = _by_room(room, number, lengths[0], held[number] < most if most else None)
    return pack_of


def _longest_first(lengths: Any, size: float) -> I64:
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
                new_room, new_numbers = _opened(lengths[first:end], size, 0, packs)
                packs += len(new_room)
                room, number = numpy.concatenate((room, new_room)), numpy.concatenate((number, new_numbers))
            room, number = _by_room(room, number, lengths[0])
    return numpy.unique(pack_of, return_inverse=True)[1]


def _by_several(amounts: Sequence[F64], limits: Sequence[float]) -> I64:
    """Return the number of the pack of each row. ``amounts[k]`` has an amount of all rows, and ``limits[k]`` is its
    largest sum in a pack."""
    pack_of: I64 = numpy.full(len(amounts[0]), -1)
    waiting = _by_share(reduce(numpy.maximum, map(numpy.divide, amounts, limits)))[::-1]
    left, room = [column[waiting] for column in amounts], [amounts[0][:0] for _ in limits]
    while len(waiting):
        new_packs = max(1, *(ceil(column.sum() / limit) for column, limit in zip(left, limits)))
        room = [numpy.concatenate((free, numpy.full(new_packs, limit))) for free, limit in zip(room, limits)]
        places: I64 = numpy.arange(len(room[0]) - new_packs, len(room[0]))
        is_first, share_placed, least_places = True, 1.0, 0.0
        while len(waiting) and share_placed > LEAST_PLACED and len(places) > least_places * len(waiting):
            free_space = [free[places] for free in room]
            dealt = _dealt(left, free_space, limits, is_first)
            for free, changed in zip(room, free_space):
                free[places] = changed
            waits = dealt < 0
            pack_of[waiting[~waits]] = places[dealt[~waits]]
            share_placed = 1 - waits.sum() / len(waiting)
            waiting, left, is_first = waiting[waits], [column[waits] for column in left], False
            least_places = LEAST_PLACED
            has_room = [free >= column.min(initial=numpy.inf) for free, column in zip(room, left)]
            places = numpy.logical_and.reduce(has_room).nonzero()[0]
    is_used = numpy.bincount(pack_of, minlength=len(room[0])) > 0
    return (is_used.cumsum() - 1)[pack_of]


def _dealt(amounts: list[F64], room: list[F64], limits: Sequence[float], by_first: bool) -> I64:
    """Deal rows to packs, at most one row to a pack in each turn. The largest rows come first in ``amounts``, and
    ``room`` is the free space of each pack, which is changed. Return the pack of each row, or -1 for a row that waits.
    With ``by_first``, rows with a larger share of the first amount than of the others go to packs with more space for
    it; otherwise larger rows go to packs with more free space."""
    pack_of: I64 = numpy.full(len(amounts[0]), -1)
    packs = len(room[0])
    for first in range(0, len(pack_of), packs):
        row_shares = [column[first : first + packs] / limit for column, limit in zip(amounts, limits)]
        room_shares = [free / limit for free, limit in zip(room, limits)]
        if by_first:
            rows, places = (
                _by_share((shares[0] - reduce(numpy.maximum, shares[1:]) + 1) / 2)
                for shares in (row_shares, room_shares)
            )
            places = places[numpy.arange(len(rows)) * packs // len(rows)]
        else:
            rows = _by_share(reduce(numpy.maximum, row_shares))
            places = _by_share(reduce(numpy.minimum, room_shares))[packs - len(rows) :]
        needed = [column[first + rows] for column in amounts]
        fits = numpy.logical_and.reduce([part <= free[places] for part, free in zip(needed, room)])
        places = places[fits]
        for part, free in zip(needed, room):
            free[places] -= part[fits]
        pack_of[first + rows[fits]] = places
    return pack_of


def _by_share(shares: F64) -> I64:
    """Return the indexes that sort numbers from 0 to 1, rounded to 16 bits, because these are sorted fastest."""
    order: I64 = (shares.clip(0, 1) * 65_535).astype(numpy.uint16).argsort(kind="stable")
    return order
