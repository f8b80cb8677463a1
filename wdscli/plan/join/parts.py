"""What a plan and its tasks have beside their rows when samples are joined: the further parts of each sample.

What it is: :class:`Joined` for a plan, :class:`Beside` for one of its tasks, :class:`JoinCounts` for the report. It
must not know how partners were found, nor how they are copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from wdscli.errors import DataError
from wdscli.model import to_text
from wdscli.plan.scratch import Stamp
from wdscli.plan.survey import RENAMED
from wdscli.plan.table import Ordered

if TYPE_CHECKING:
    from wdscli.plan.join.layout import OnConflict

NOBODY = 0xFFFFFFFF
"""The shard in a row that stands for a part that is not there."""


CHANGED = RENAMED
"""Mark of a sample in which a field gives way or gets another name. (A join renames no sample.)"""


class TableShard(NamedTuple):
    """What became of a table: rows that are left out, by reason; the bytes that were read; and what tells its content
    from another, by which a run is gone on with."""

    dropped: dict[str, int]
    size_bytes: int
    stamp: Stamp


class JoinCounts(NamedTuple):
    """What a join found. ``matched`` samples have a part of every set; ``unmatched`` counts, for each set, samples
    whose key some other set has not. ``partners`` samples were put beside an earlier one. Fields: ``replaced`` by those
    of a later set, ``left_out`` of a later set because the name was taken, ``renamed`` for the same reason."""

    matched: int
    unmatched: tuple[int, ...]
    partners: int
    replaced: int
    left_out: int
    renamed: int


class Beside(NamedTuple):
    """The further parts of the samples of one task: for each set but the first one row a sample, of the shard
    :data:`NOBODY` where there is none. ``sets`` is the set (from 0) of each input; ``policies`` has one for each set:
    what is done about a field that is there already."""

    others: tuple[Ordered, ...]
    sets: dict[int, int]
    policies: tuple[OnConflict, ...]

    def held(self) -> Beside:
        """The same with rows in memory, for processes of other machines."""
        return self._replace(others=tuple(other.held() for other in self.others))

    def inputs(self, samples: Ordered) -> list[int]:
        """The inputs that the task reads, in rising order, ``samples`` being the first parts."""
        found = {number for some in (samples, *self.others) for number in some.shard_numbers()}
        return sorted(found - {NOBODY})


class Joined(NamedTuple):
    """The same for a plan, whose rows are the first parts. ``others`` are in output order; ``sets`` is the set of each
    input."""

    others: tuple[Ordered, ...]
    sets: tuple[int, ...]
    policies: tuple[OnConflict, ...]
    counts: JoinCounts

    def part(self, first: int, end: int) -> Beside:
        """What samples ``first`` to ``end`` of the output need."""
        others = tuple(other.slice(first, end) for other in self.others)
        return Beside(others, dict(enumerate(self.sets)), self.policies)


def collision(one: bytes, other: bytes, shard: str, offset: int) -> DataError:
    """The error of two keys that cannot be told apart by their hashes."""
    return DataError(
        f'the keys "{to_text(one)}" and "{to_text(other)}" have one XXH3-64, by which samples are matched',
        code="hash-collision",
        shard=shard,
        offset=offset,
        hint="leave one of them out (--keys), or give it another name",
    )
