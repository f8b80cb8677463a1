"""This module has the buckets of :mod:`wdscli.loader.order.batches` for several numbers, such as seconds and tokens.

The edges of a number divide it into ranges. A cell has a range of each number, and a bucket has one or more cells. The
cells are numbered row by row, so the range of the last number changes fastest. Bucket 0 may have the cells outside all
buckets; its batch size is then 0. The module does not know how samples are batched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from math import prod
from typing import Any, NamedTuple

from wdscli.arrays import F64, I64, numpy
from wdscli.errors import UsageError
from wdscli.loader.checks import want_whole

HINT = (
    'bucket=["json.seconds", "json.tokens"], buckets=[[5, 10], [50]] or buckets={((0, 5), (0, 50)): 64, ...}'
)


class Grid(NamedTuple):
    """``edges`` has the edges of each number, ``buckets`` the bucket of each cell, and ``sizes`` the batch size of each
    bucket."""

    edges: tuple[tuple[float, ...], ...]
    buckets: tuple[int, ...]
    sizes: tuple[int, ...]


def numbers_in(buckets: Any, values: Any) -> tuple[float, ...]:
    """Return edges as numbers. Raises UsageError, which shows ``buckets``."""
    try:
        return tuple(map(float, [None] if isinstance(values, str) else values))
    except (TypeError, ValueError):
        raise UsageError(
            f"batched: buckets={buckets!r} has no numbers as edges",
            hint="buckets=[0.8, 1.25] or buckets={(0, 256): 128, (256, 512): 64}",
        ) from None


def rising_edges(buckets: Any, values: Any) -> tuple[float, ...]:
    """Return edges as numbers. Raises UsageError if they do not increase."""
    edges = numbers_in(buckets, values)
    if any(first >= second for first, second in pairwise(edges)):
        raise UsageError(f"buckets={list(values)}: the edges must increase", hint="buckets=[0.8, 1.25]")
    return edges


def grid_of(buckets: Any, count: int, size: int) -> Grid:
    """Return the buckets by ``count`` numbers. ``buckets`` is a list of the edges of each number, or a dict {ranges of
    a bucket: batch size}. Raises UsageError."""
    if isinstance(buckets, Mapping):
        return _grid_of_ranges(buckets, count)
    if not isinstance(buckets, Sequence) or len(buckets) != count:
        raise UsageError(f"buckets={buckets!r} is not a list of edges for each of {count} numbers", hint=HINT)
    edges = tuple(rising_edges(buckets, of_number) for of_number in buckets)
    cells = prod(len(of_number) + 1 for of_number in edges)
    return Grid(edges, tuple(range(cells)), (size,) * cells)


def _grid_of_ranges(buckets: Mapping[Any, int], count: int) -> Grid:
    """Return the buckets of a dict {ranges: batch size}, where a bucket has a range of each number."""
    ranges_of_buckets = []
    for ranges in buckets:
        if not isinstance(ranges, Sequence) or isinstance(ranges, str) or len(ranges) != count:
            raise UsageError(f"buckets: {ranges!r} is not a range for each of {count} numbers", hint=HINT)
        bounds = tuple(numbers_in(buckets, one_range) for one_range in ranges)
        if any(len(pair) != 2 or not pair[0] < pair[1] for pair in bounds):
            raise UsageError(f"buckets: {ranges!r} has an empty range", hint=HINT)
        ranges_of_buckets.append((bounds, want_whole(f"buckets: the size of {ranges!r}", buckets[ranges], 1)))
    edges = tuple(
        tuple(sorted({bound for bounds, _ in ranges_of_buckets for bound in bounds[number]}))
        for number in range(count)
    )
    shape = [len(of_number) + 1 for of_number in edges]
    bucket_of = [0] * prod(shape)
    for bucket, (bounds, _) in enumerate(sorted(ranges_of_buckets), 1):
        spans = [
            range(of_number.index(first) + 1, of_number.index(end) + 1)
            for of_number, (first, end) in zip(edges, bounds)
        ]
        for places in product(*spans):
            cell = int(numpy.ravel_multi_index(places, shape))
            if bucket_of[cell]:
                raise UsageError(f"buckets: {bounds} overlaps another bucket", hint=HINT)
            bucket_of[cell] = bucket
    return Grid(edges, tuple(bucket_of), (0, *(size for _, size in sorted(ranges_of_buckets))))


def bucket_of_rows(columns: Sequence[F64], edges: Sequence[Sequence[float]], buckets: Sequence[int]) -> I64:
    """Return the bucket of each row. ``columns`` has the values of each number; without ``buckets``, each cell is a
    bucket."""
    cells: I64 = numpy.zeros(len(columns[0]), dtype=numpy.int64)
    for values, of_number in zip(columns, edges):
        cells = cells * (len(of_number) + 1) + numpy.searchsorted(of_number, values, "right")
    return numpy.array(buckets, dtype=numpy.int64)[cells] if buckets else cells
