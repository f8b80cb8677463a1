"""Samples as columns: plain lists, because a record per sample would cost as much as parsing its headers.

It must not know how columns become samples, nor where they come from.
"""

from __future__ import annotations

from typing import NamedTuple

from wdscli.model import to_text
from wdscli.tar import padded

RAGGED = 0b100000
"""Flag of a sample between whose members others lie (folders, names without a dot): it cannot be copied as one run."""


class SampleBatch(NamedTuple):
    """Whole samples as columns. Sample ``i`` has the members ``firsts[i]`` to ``firsts[i + 1]`` (``firsts`` is one
    longer than ``keys``); per member: field, byte of the first header block, byte of the payload, payload bytes,
    flags of ``wdscli.tar``. ``index`` is the place of the first sample in its shard. ``marks[i]`` is 0 when sample
    ``i`` is a run of canonical members that may be copied as it stands, else FOREIGN, GLOBAL and RAGGED."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    keys: list[bytes]
    firsts: list[int]
    fields: list[bytes]
    starts: list[int]
    offsets: list[int]
    sizes: list[int]
    flags: list[int]
    marks: list[int]

    def numbers(self) -> tuple[list[int], list[int], list[int], list[int]]:
        """The columns that have one number a member."""
        return self.starts, self.offsets, self.sizes, self.flags

    def start(self, row: int) -> int:
        """The byte at which sample ``row`` begins."""
        return self.starts[self.firsts[row]]

    def end(self, row: int) -> int:
        """The byte after sample ``row``, padding included."""
        last = self.firsts[row + 1] - 1
        return self.offsets[last] + padded(self.sizes[last])

    def part(self, first: int, end: int) -> SampleBatch:
        """The samples from ``first`` up to ``end`` as a batch of their own."""
        low, high = self.firsts[first], self.firsts[end]
        return SampleBatch(
            self.index + first,
            self.keys[first:end],
            [at - low for at in self.firsts[first : end + 1]],
            self.fields[low:high],
            self.starts[low:high],
            self.offsets[low:high],
            self.sizes[low:high],
            self.flags[low:high],
            self.marks[first:end],
        )

    def sizes_by_field(self, row: int) -> dict[str, int]:
        """Field to payload bytes of one sample."""
        first, end = self.firsts[row], self.firsts[row + 1]
        return {to_text(self.fields[at]): self.sizes[at] for at in range(first, end)}


def new_batch(index: int = 0) -> SampleBatch:
    return SampleBatch(index, [], [0], [], [], [], [], [], [])


class Ignored:
    """Counts of members that are part of no sample, by reason."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def add(self, reason: str, count: int = 1) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + count
