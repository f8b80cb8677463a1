"""This module plans batches by a value of each sample: buckets, budgets and packs.

A value is a number such as the number of tokens or the aspect ratio. The plan is a pure function of (values, order,
seed, epoch). The module cuts an epoch into windows of about ``rule.window`` positions, and plans each window
independently of other windows. So the batches of an epoch are one list, which is the same in every process, and a
resumed run plans only one window. Rank r of w ranks takes batch g + r of the list, where g is 0, w, 2w, ... The module
does not know what a value means, nor how samples are read.

* Buckets: the samples of a bucket are cut into batches of the bucket's size. In each window, the last batch of a bucket
  may be smaller. With ``together`` = t, the batches come in groups of t batches of one bucket. The samples of a
  bucket's last group are divided evenly among the group's batches. A bucket with fewer than t samples repeats samples.
* A budget: samples are sorted by length, longest first. Each batch takes as many samples as fit: the number of samples
  times the longest length is at most the budget.
* Packs: the module opens enough packs for the sum of all lengths. In each round, every pack with room for the longest
  sample takes one of the longest samples; packs with more free space take longer samples. If these packs are fewer than
  the others, the others take shorter samples in the same way. For samples that fit into no pack, more packs are opened
  in the same way. If the packs are less than 98 % full, a second plan is made: it takes the longest samples first, and
  puts each into the fullest pack that it fits into. The plan with fewer packs is used.

The batches of a window are permuted by ``Permutation`` with ``key(seed, 10, epoch, window)``; with ``together``, the
groups are permuted. The samples of a batch keep the order of the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from wdscli.arrays import F64, I64, Mask, numpy
from wdscli.errors import UsageError
from wdscli.loader.checks import want_whole
from wdscli.loader.order.order import Permutation

WINDOW = 1 << 16
"""The default number of positions in a window."""
PARTS = 64
"""The number of parts into which a window is divided for the second plan of packs. The samples of a part are placed
together."""
FULL = 0.98
"""If the packs of the first plan are less full than this share, a second plan is made."""


class Misfit(Exception):
    """The error of a sample that fits into no batch. ``row`` is the sample's index in the values."""

    def __init__(self, row: int, why: str) -> None:
        super().__init__(why)
        self.row = row


class Rule(NamedTuple):
    """How samples are grouped by their values. ``value`` is an expression, or for a mix a dict with an expression for
    each set.

    ``size`` is the budget, or the length of a pack. ``edges`` are the values between the buckets, and ``sizes`` has the
    batch size of each bucket, or 0 for a range of values outside all buckets. ``most`` is the largest number of samples
    in a batch, or 0 for no limit.
    """

    kind: Literal["bucket", "budget", "packed"]
    value: str | Mapping[str, str]
    size: float = 0
    edges: tuple[float, ...] = ()
    sizes: tuple[int, ...] = ()
    most: int = 0
    together: int = 1
    partial: bool = True
    too_long: Literal["error", "truncate", "drop"] = "error"
    window: int = WINDOW

    @property
    def name(self) -> str:
        """The text for this stage in the repr() of a dataset."""
        if self.kind == "bucket":
            return f"batched(bucket={self.value!r})"
        return f"packed({self.size})" if self.kind == "packed" else f"batched(budget={self.size})"

    def identity(self) -> list[Any]:
        """Return the facts that must be the same in a saved state and here, as plain values."""
        value = self.value if isinstance(self.value, str) else dict(self.value)
        return [self.kind, value, self.size, list(self.edges), list(self.sizes), *self[5:]]


def rule_of_batches(size: int, partial: bool, window: int, by_bucket: Any, by_budget: Any) -> Rule:
    """Return the rule for ``batched(bucket, buckets, same_bucket)`` or ``batched(budget, length, max_samples)``. Raises
    UsageError for arguments that cannot be combined."""
    (bucket, buckets, same_bucket), (budget, length, max_samples) = by_bucket, by_budget
    if bucket is not None and buckets and by_budget == (None, None, None):
        edges, sizes = _edges(buckets, size)
        together = -1 if same_bucket is True else max(1, want_whole("batched: same_bucket", same_bucket, 0))
        return Rule("bucket", bucket, 0, edges, sizes, 0, together, partial, window=window)
    if budget is not None and length is not None and by_bucket == (None, (), False):
        if not isinstance(budget, (int, float)) or not budget > 0:
            raise UsageError(f"batched(budget={budget!r}) is not a number above 0")
        if not partial:
            raise UsageError(
                "batched(budget=) has no incomplete batches to drop", hint="leave out partial=False"
            )
        most = 0 if max_samples is None else want_whole("batched: max_samples", max_samples, 1)
        return Rule("budget", length, budget, most=most, window=window)
    raise UsageError(
        "batched() takes either bucket= with buckets=, or budget= with length=",
        hint='batched(64, bucket="json.width / json.height", buckets=[0.8, 1.25])',
    )


def _edges(buckets: Any, size: int) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Return the edges between buckets and the batch sizes of the ranges between them. The sizes include the ranges
    before the first edge and after the last edge."""
    if not isinstance(buckets, Mapping):
        edges = tuple(map(float, buckets))
        if any(first >= second for first, second in pairwise(edges)):
            raise UsageError(f"buckets={list(buckets)}: the edges must increase", hint="buckets=[0.8, 1.25]")
        return edges, (size,) * (len(edges) + 1)
    found: list[float] = []
    sizes = [0]
    for (first, end), of_range in sorted(buckets.items()):
        if first >= end or (found and first < found[-1]):
            raise UsageError(
                f"buckets: ({first}, {end}) is empty or overlaps another bucket", hint="{(0, 256): 128, ...}"
            )
        if found and first == found[-1]:
            sizes.pop()
        else:
            found.append(float(first))
        found.append(float(end))
        sizes += [want_whole(f"buckets: the size of ({first}, {end})", of_range, 1), 0]
    return tuple(found), tuple(sizes)


class Planned(NamedTuple):
    """The batches of one window. ``rows`` has the rows of the window, batch after batch, and ``ends`` has the end of
    each batch in ``rows``. Three arrays have a number for each batch, in the unit of the value: ``used`` is the sum of
    its samples, ``cells`` is this sum after padding to the longest sample, and ``room`` is the largest sum that fits.
    ``left_out`` counts samples that were too long."""

    rows: I64
    ends: I64
    used: F64
    cells: F64
    room: F64
    left_out: int


def planned(values: F64, rule: Rule, of_window: int) -> Planned:
    """Plan the batches of one window; the key ``of_window`` decides their order. Raises Misfit."""
    wrong = (~(values >= 0) if rule.kind != "bucket" else numpy.isnan(values)).nonzero()[0]
    if len(wrong):
        raise Misfit(int(wrong[0]), "is missing" if numpy.isnan(values[wrong[0]]) else "is below 0")
    if rule.kind == "packed":
        values, rows = _fitting(values, rule)
    else:
        rows = numpy.arange(len(values), dtype=numpy.int64)
    left_out = len(values) - len(rows)
    if rule.kind == "bucket":
        rows, numbers = _by_bucket(values, rule)
    else:
        numbers = (_by_budget if rule.kind == "budget" else _in_packs)(values[rows], rule)
    count = int(numbers.max()) + 1 if len(numbers) else 0
    batches: I64 = numpy.arange(count)
    groups, within = numpy.divmod(batches, rule.together)
    place_of: I64 = numpy.empty(count // rule.together, dtype=numpy.int64)
    place_of[Permutation(len(place_of), of_window).at(batches[: len(place_of)])] = batches[: len(place_of)]
    places = (place_of[groups] * rule.together + within)[numbers]
    order = rising(places)
    counts = numpy.bincount(places, minlength=count)
    ends = counts.cumsum()
    rows = rows[order]
    if rule.kind == "bucket":
        firsts = rows[ends - counts]
        room = numpy.array(rule.sizes, dtype=float)[numpy.searchsorted(rule.edges, values[firsts], "right")]
        return Planned(rows, ends, counts.astype(float), counts.astype(float), room, left_out)
    found = values[rows]
    used = numpy.add.reduceat(found, ends - counts) if count else found
    cells = used
    if rule.kind == "budget" and count:
        cells = counts * numpy.maximum.reduceat(found, ends - counts)
    return Planned(rows, ends, used, cells, numpy.full(count, float(rule.size)), left_out)


def rising(values: Any) -> I64:
    """Return the indexes that sort the values in rising order; equal values keep their order. Whole numbers from 0 to
    65,535 are sorted four times as fast."""
    if len(values) and values.min() >= 0 and values.max() < 1 << 16:
        small = values.astype(numpy.uint16)
        if values.dtype.kind in "iu" or (small == values).all():
            values = small
    found: I64 = values.argsort(kind="stable")
    return found


def _by_bucket(values: F64, rule: Rule) -> tuple[I64, I64]:
    """Return two arrays: the rows, and the number of each row's batch."""
    of_row = numpy.searchsorted(rule.edges, values, "right")
    outside = (numpy.array(rule.sizes)[of_row] == 0).nonzero()[0]
    if len(outside):
        raise Misfit(int(outside[0]), f"= {values[outside[0]]:g} is in no bucket")
    order = rising(of_row)
    ends = numpy.bincount(of_row, minlength=len(rule.sizes)).cumsum().tolist()
    rows, numbers, batches = [order[:0]], [order[:0]], 0
    for size, first, end in zip(rule.sizes, [0, *ends], ends):
        if not size:  # the gap between two buckets, which has no rows
            continue
        some, of_some, count = _cut(order[first:end], size, rule)
        rows.append(some)
        numbers.append(of_some + batches)
        batches += count
    return numpy.concatenate(rows), numpy.concatenate(numbers)


def _cut(rows: I64, size: int, rule: Rule) -> tuple[I64, I64, int]:
    """Return the used rows of one bucket, the number of each row's batch, and the number of batches."""
    together = rule.together
    whole = size * together
    if not rule.partial:
        rows = rows[: len(rows) // whole * whole]
    if together == 1 or not len(rows):
        return rows, numpy.arange(len(rows)) // size, -(-len(rows) // whole)
    if size == 1 or len(rows) < together:
        rows = numpy.resize(rows, -(-len(rows) // together) * together)
    groups = -(-len(rows) // whole)
    # The last group's samples are spread evenly over its batches. If the last group has fewer samples than batches, the
    # samples of the last two groups are spread together.
    shared = 1 if len(rows) - (groups - 1) * whole >= together else 2
    head = (groups - shared) * whole
    tail: I64 = numpy.arange(len(rows) - head) * (shared * together) // max(1, len(rows) - head)
    numbers = numpy.concatenate((numpy.arange(head) // size, tail + (groups - shared) * together))
    return rows, numbers, groups * together


def _by_budget(values: F64, rule: Rule) -> I64:
    """Return the number of each row's batch."""
    order = rising(values)[::-1]
    longest = values[order]
    if len(longest) and longest[0] > rule.size:
        raise Misfit(int(order[0]), f"= {longest[0]:g} is more than the budget of {rule.size:g}")
    most = min(rule.most or len(values), len(values))
    all_fit = longest * most <= rule.size
    fitting = numpy.where(all_fit, most, rule.size // numpy.where(all_fit, 1, longest))
    takes: list[int] = fitting.astype(numpy.int64).tolist()
    firsts, at = [], 0
    while at < len(takes):
        firsts.append(at)
        at += takes[at]
    begins: I64 = numpy.zeros(len(values), dtype=numpy.int64)
    begins[firsts] = 1
    numbers = numpy.empty_like(begins)
    numbers[order] = begins.cumsum() - 1
    return numbers


def _fitting(values: F64, rule: Rule) -> tuple[F64, I64]:
    """Return the values, shortened if the rule truncates, and the rows of the samples that fit into a pack."""
    fits = values <= rule.size
    if fits.all() or rule.too_long == "drop":
        return values, fits.nonzero()[0]
    if rule.too_long == "truncate":
        return numpy.minimum(values, rule.size), numpy.arange(len(values), dtype=numpy.int64)
    row = int(fits.argmin())
    raise Misfit(row, f"= {values[row]:g} is more than {rule.size:g}, the size of a pack")


def _in_packs(values: F64, rule: Rule) -> I64:
    """Return the number of each row's pack."""
    sizes: Any = values
    if rule.size < 1 << 16 and (values == values.astype(numpy.uint16)).all():
        sizes = values.astype(numpy.uint16)
    order = rising(sizes)
    found = _in_rounds(sizes[order], rule.size)
    if values.sum() < FULL * rule.size * (int(found.max()) + 1 if len(found) else 0):
        other = _longest_first(sizes[order], rule.size)
        found = min(found, other, key=lambda numbers: int(numbers.max()))
    numbers: I64 = numpy.empty(len(values), dtype=numpy.int64)
    numbers[order] = found
    return numbers


def _opened(sizes: Any, size: float, packs: int) -> tuple[Any, I64]:
    """Return the free space and the number of each new pack. As many packs are opened as the sum of ``sizes`` needs.
    ``packs`` is the number of packs that exist already."""
    count = max(1, int(-(-sizes.sum(dtype=numpy.float64) // size)))
    return numpy.full(count, size, dtype=sizes.dtype), numpy.arange(packs, packs + count)


def _by_room(room: Any, number: I64, least: float) -> tuple[Any, I64]:
    """Return the free space and the number of each pack with free space of at least ``least``, by rising free space."""
    order = room.argsort(kind="stable")
    room = room[order]
    first = int(room.searchsorted(least))
    return room[first:], number[order[first:]]


def _in_rounds(sizes: Any, size: float) -> I64:
    """Return the number of the pack for each of ``sizes``, which are in rising order. The result is the first plan of
    packs."""
    found: I64 = numpy.zeros(len(sizes), dtype=numpy.int64)
    left = counting = numpy.arange(len(sizes))
    packs = 0
    while len(left):
        room, number = _opened(sizes, size, packs)
        packs += len(room)
        while len(left) and len(room):
            # Packs with room for any sample take the longest ones. Each takes several while they surely fit.
            poor = int(room.searchsorted(sizes[-1]))
            rich = min(len(room) - poor, len(left))
            times = 1 if poor else max(1, min(int(room[0] / max(1, sizes[-1])), len(left) // len(room)))
            head = len(left) - rich * times
            for first in range(head, len(left), max(1, rich)):
                found[left[first : first + rich]] = number[len(number) - rich :]
                room[len(room) - rich :] -= sizes[first : first + rich]
            left, sizes = left[:head], sizes[:head]
            if poor > rich:
                # Each of the others takes the longest sample that fits and that no pack with more free space takes.
                taken = sizes.searchsorted(room[:poor], "right") - counting[:poor]
                taken = numpy.minimum.accumulate(taken[::-1])[::-1] + counting[:poor] - 1
                first = int(taken.searchsorted(0))
                taken, room, number = taken[first:], room[first:], number[first:]
                found[left[taken]] = number[: len(taken)]
                room[: len(taken)] -= sizes[taken]
                kept: Mask = numpy.ones(head, dtype=bool)
                kept[taken] = False
                left, sizes = left[kept], sizes[kept]
            if len(left):
                room, number = _by_room(room, number, sizes[0])
    return found


def _longest_first(sizes: Any, size: float) -> I64:
    """Return the number of the pack for each of ``sizes``, which are in rising order. The result is the second plan of
    packs: several samples are placed together, each in the fullest pack that it fits into."""
    found: I64 = numpy.zeros(len(sizes), dtype=numpy.int64)
    room, number = sizes[:0], found[:0]
    packs, step = 0, max(1, len(sizes) // PARTS)
    for end in range(len(sizes), 0, -step):
        first = max(0, end - step)
        while first < end:
            some = numpy.arange(end - first)
            taken = numpy.maximum.accumulate(room.searchsorted(sizes[first:end], "left") - some) + some
            taken = taken[: int(taken.searchsorted(len(room)))]
            found[first : first + len(taken)] = number[taken]
            room[taken] -= sizes[first : first + len(taken)]
            first += len(taken)
            if first < end:
                more, numbers = _opened(sizes[first:end], size, packs)
                packs += len(more)
                room, number = numpy.concatenate((room, more)), numpy.concatenate((number, numbers))
            room, number = _by_room(room, number, sizes[0])
    return numpy.unique(found, return_inverse=True)[1]
