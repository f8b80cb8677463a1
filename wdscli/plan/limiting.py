"""``--limit``: so many samples that come out.

What it is: :func:`reading_selection`, which lets the reading end where the limit is reached, as far as what is read is
what comes out, in that order; else :func:`first_of_pool` and :func:`first_of_order`, which cut when repeated keys and
duplicates are gone. Samples in parts are the first of the input that come into a part; in any other order they are the
first of the output. What is cut off counts as dropped, by the reason ``limit``. It must not know where samples are
written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from wdscli.plan.join.parts import NOBODY
from wdscli.plan.orders import Arranged, InputOrder, Order, Parting
from wdscli.plan.table import Ordered
from wdscli.plan.values import Pool

if TYPE_CHECKING:
    from wdscli.plan.request import Request
    from wdscli.selection import Selection

REASON = "limit"


def reading_selection(request: Request, order: Order) -> Selection:
    """What samples are read by: with the limit where the first samples that are selected are those that come out."""
    in_input_order = isinstance(order, InputOrder) or (isinstance(order, Parting) and not order.may_leave_out)
    if in_input_order and request.on_duplicate != "skip":
        return request.selection
    return request.selection._replace(limit=None)


def first_of_pool(order: Order, pool: Pool, limit: int | None) -> tuple[Pool, int]:
    """The samples of the pool, for an order that makes parts, up to the last one that comes out; and how many were cut
    off."""
    if limit is None or not isinstance(order, Parting):
        return pool, 0
    total = pool.samples.total
    end = min(limit, total)
    if order.may_leave_out and pool.values is not None:
        end = min(total, _end_of(order, limit, (value for some in pool.values.blocks() for value in some)))
    return pool.first(end), total - end


def _end_of(order: Parting, limit: int, values: Iterator[bytes]) -> int:
    """How many samples, one after the other, hold so many that come out."""
    end = 0
    while limit:
        value = next(values, None)
        if value is None:
            break
        end += 1
        limit -= not order.is_left_out(value)
    return end


def first_of_order(arranged: Arranged, samples: int, limit: int | None) -> tuple[Arranged, int]:
    """The first samples of an order over so many, and how many do not come at all any longer."""
    import numpy

    if limit is None or arranged.parts is not None:
        return arranged, 0
    total = samples if arranged.order is None else len(arranged.order)
    if limit >= total:
        return arranged, 0
    order = numpy.arange(limit) if arranged.order is None else arranged.order[:limit]
    return arranged._replace(order=order), total - limit


def parts_in(lists: Sequence[Ordered]) -> int:
    """How many samples lie in some lists of joined ones."""
    return sum(int((part.shards != NOBODY).sum()) for one in lists for part in one.blocks())
