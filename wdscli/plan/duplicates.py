"""The samples that were left out because they repeat others, by name.

What it is: :class:`Duplicates`, which holds a packed row for each of them and for the one it repeats, and reads their
keys again when someone asks. It must not know how they were found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from wdscli.model import to_text
from wdscli.plan.repeats import read_again
from wdscli.plan.scratch import Input
from wdscli.plan.survey import SurveyTask
from wdscli.plan.table import PlanTable

AT_ONCE = 1 << 17
"""Samples whose names are held together, at most."""


class Duplicate(NamedTuple):
    """One sample that was left out, and the one that it repeats: key, shard and place in the shard of each, and the
    bytes that went."""

    key: str
    shard: str
    place: int
    size_bytes: int
    first_key: str
    first_shard: str
    first_place: int


class Duplicates:
    """The samples that were left out, and the one that each repeats. ``by`` says what they have in common."""

    def __init__(
        self,
        by: Sequence[str],
        samples: PlanTable,
        firsts: PlanTable,
        inputs: Sequence[Input],
        template: SurveyTask,
        at_once: int = AT_ONCE,
    ) -> None:
        self.by = tuple(by)
        self.samples = samples
        self.firsts = firsts
        self._inputs = inputs
        self._template = template
        self._at_once = at_once

    @property
    def total(self) -> int:
        """How many there are."""
        return self.samples.total

    @property
    def size_bytes(self) -> int:
        """What they take in the inputs."""
        return sum(int(part.lengths.sum()) for part in self.samples.parts())

    def listed(self) -> Iterator[Duplicate]:
        """Each of them, in input order. Reads the names again; raises InputError, DataError."""
        for begin in range(0, self.total, self._at_once):
            end = begin + self._at_once
            some, firsts = (PlanTable(one.part(begin, end).rows) for one in (self.samples, self.firsts))
            keys, first_keys = self._keys(some), self._keys(firsts)
            for row, key, first_key in zip(range(some.total), keys, first_keys, strict=True):
                yield Duplicate(
                    key,
                    *self._place(some, row),
                    int(some.lengths[row]),
                    first_key,
                    *self._place(firsts, row),
                )

    def _place(self, samples: PlanTable, row: int) -> tuple[str, int]:
        return self._inputs[int(samples.shards[row])].address, int(samples.places[row])

    def _keys(self, samples: PlanTable) -> list[str]:
        """The keys of some samples, as the inputs have them."""
        import numpy

        where = samples.shards.astype(numpy.uint64) << numpy.uint64(32) | samples.places
        # A sample may be repeated more than once: it is read once.
        _, rows, which = numpy.unique(where, return_index=True, return_inverse=True)
        distinct = samples.take(rows)
        again = read_again(distinct, self._inputs, self._template, range(distinct.total))
        keys = [to_text(batch.keys[at]) for _, _, batch, at in again]
        return [keys[at] for at in which.tolist()]
