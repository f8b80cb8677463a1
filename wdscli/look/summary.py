"""This module makes the summary of a set: counts, bytes, field sizes, balance of the shards, repeated keys.

:func:`summarize` reads a :class:`~wdscli.look.listing.Listing` to its end. While a field has few distinct sizes, exact
sizes are counted. Later, sizes are rounded down to eight binary digits. So a median is exact, or at most 0.8 % too low.
Keys are kept as 64-bit digests, and sorted at the end. (Two of a billion distinct keys share a digest in one of 37
sets.) This module does not know how results are printed.
"""

from __future__ import annotations

import os
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from math import log
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from wdscli.arrays import U64, numpy
from wdscli.look.listing import Listing, LsReport, Page, ShardRow
from wdscli.text import to_text

MAX_VALUES = 1 << 13
"""How many distinct sizes a field may have before sizes are rounded."""
MAX_FIELDS = 1 << 9
OTHERS = "(others)"
"""The name for all fields after the first MAX_FIELDS."""
BINS = 12
_FEW = 1 << 16


class FieldSizes(NamedTuple):
    """The payload sizes of one field in bytes. ``histogram`` counts them in bins of equal width on a logarithmic scale
    from ``smallest`` to ``largest``; ``is_exact`` says whether the median is exact."""

    field: str
    occurrences: int
    smallest: int
    median: int
    largest: int
    total: int
    histogram: list[int]
    is_exact: bool


class Balance(NamedTuple):
    """The smallest and the largest shard."""

    fewest_samples: int
    most_samples: int
    smallest_bytes: int
    largest_bytes: int


class Summary(NamedTuple):
    """The totals of a set. ``size_bytes`` is the size of the shards, or with a selection, of the selected samples'
    blocks. ``payload_bytes`` is the size of the payloads. ``overhead_bytes`` is the difference: headers, padding and
    end blocks. ``repeated_keys`` counts keys that several samples have."""

    shards: int
    samples: int
    members: int
    size_bytes: int
    payload_bytes: int
    overhead_bytes: int
    fields: list[FieldSizes]
    balance: Balance | None
    repeated_keys: int
    rows: list[ShardRow]
    report: LsReport


def summarize(listing: Listing, look: Callable[[Page], None] | None = None) -> Summary:
    """Read ``listing`` to its end, and sum it up. ``look`` is called with each page. Raises the errors of
    :func:`wdscli.look.listing.ls`."""
    sizes, digests = _Sizes(), array("Q")
    # The seed is secret, so that a crafted set cannot make the count wrong.
    seed = int.from_bytes(os.urandom(8), "little")

    def visit(page: Page) -> None:
        sizes.add(page)
        digests.extend([xxh3_64_intdigest(key, seed) for key in page.batch.keys])
        if look is not None:
            look(page)

    rows = list(listing.shards(visit))
    samples = [row.samples for row in rows]
    tars = [row.size_bytes for row in rows]
    payload = sum(row.payload_bytes for row in rows)
    return Summary(
        shards=len(rows),
        samples=sum(samples),
        members=sum(row.members for row in rows),
        size_bytes=sum(tars),
        payload_bytes=payload,
        overhead_bytes=sum(tars) - payload,
        fields=sizes.fields(),
        balance=Balance(min(samples), max(samples), min(tars), max(tars)) if rows else None,
        repeated_keys=_repeated(digests),
        rows=rows,
        report=listing.report(),
    )


class _Sizes:
    """Counts of sizes by field and value."""

    def __init__(self) -> None:
        self._values: dict[bytes, Counter[int]] = {}
        self._folded: set[bytes] = set()
        self._ends: dict[bytes, tuple[int, int, int]] = {}

    def add(self, page: Page) -> None:
        sizes_of_fields = defaultdict[bytes, list[int]](list)
        for field, size in zip(page.batch.fields, page.batch.sizes):
            sizes_of_fields[field].append(size)
        for field, sizes in sizes_of_fields.items():
            self._count(field if field in self._values or len(self._values) < MAX_FIELDS else b"", sizes)

    def _count(self, field: bytes, sizes: list[int]) -> None:
        """Count sizes of a field. The empty field name collects all fields after the first MAX_FIELDS."""
        values = self._values.setdefault(field, Counter())
        values.update(sizes)
        smallest, largest, total = self._ends.get(field, (sizes[0], sizes[0], 0))
        self._ends[field] = min(smallest, min(sizes)), max(largest, max(sizes)), total + sum(sizes)
        if len(values) > MAX_VALUES:
            self._folded.add(field)
            self._values[field] = _fold(values)

    def fields(self) -> list[FieldSizes]:
        """Return the fields, sorted by name."""
        return [self._field(field) for field in sorted(self._values)]

    def _field(self, field: bytes) -> FieldSizes:
        values = self._values[field]
        smallest, largest, total = self._ends[field]
        count = sum(values.values())
        # A rounded value may be below the smallest size.
        median = max(smallest, middle(values))
        histogram = _histogram(values, smallest, largest)
        name = to_text(field) or OTHERS
        return FieldSizes(name, count, smallest, median, largest, total, histogram, field not in self._folded)


def _fold(values: Counter[int]) -> Counter[int]:
    """Return the counts with every value rounded down to eight binary digits."""
    folded: Counter[int] = Counter()
    for value, count in values.items():
        shift = max(0, value.bit_length() - 8)
        folded[value >> shift << shift] += count
    return folded


def middle(counts: Mapping[int, int]) -> int:
    """Return the median of counted values. If there are two, return the lower."""
    left = sum(counts.values())
    for value in sorted(counts):
        left -= 2 * counts[value]
        if left <= 0:
            return value
    return 0


def _histogram(values: Counter[int], smallest: int, largest: int) -> list[int]:
    """Return counts by size in bins of equal width on a logarithmic scale. If all sizes are equal, there is one bin."""
    if smallest == largest:
        return [sum(values.values())]
    bins = [0] * BINS
    low, span = log(smallest + 1), log(largest + 1) - log(smallest + 1)
    for value, count in values.items():
        place = int((log(value + 1) - low) / span * BINS)
        bins[min(max(place, 0), BINS - 1)] += count
    return bins


def _repeated(digests: array[int]) -> int:
    """Return how many keys occur more than once, by their digests."""
    if len(digests) <= _FEW:
        return sum(count > 1 for count in Counter(digests).values())
    sorted_digests: U64 = numpy.frombuffer(digests, dtype=numpy.uint64)
    sorted_digests.sort()
    same = sorted_digests[1:] == sorted_digests[:-1]
    # A run of equal digests counts once, at its start.
    return int(same[0]) + int((same[1:] & ~same[:-1]).sum())
