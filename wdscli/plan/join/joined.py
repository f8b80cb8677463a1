"""What a plan and its tasks both know of joined samples: their further parts, and which members come of these.

What it is: :class:`Joined`, the rows of each set but the first, of a plan or of one of its tasks;
:func:`in_turn`, all parts of the first sample, then those of the second, and so on; :func:`lay_out`, the fields of the
parts beside each other, which plan and task both ask, so that they cannot differ. How: fields come together as Python's
``{**a, **b}`` does it, with the four policies of ``--on-conflict`` where a name is taken. It must not know how partners
were found, nor how they are copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from wdscli.arrays import I64, Rows, numpy
from wdscli.errors import DataError
from wdscli.model import to_text
from wdscli.plan.inputs import Stamp
from wdscli.plan.survey import RENAMED
from wdscli.plan.table import Ordered, PlanTable, row_type

OnConflict = Literal["error", "left", "right", "suffix"]
Shape: TypeAlias = tuple[bytes, ...]
"""The fields of one part, in its own order."""
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
    of a later set, ``left_out`` of a later set because the name was taken, ``renamed`` for the same reason.
    ``conflicts`` counts the samples by field and by one of these words. ``kind`` is the value of --join."""

    matched: int
    unmatched: tuple[int, ...]
    partners: int
    replaced: int
    left_out: int
    renamed: int
    kind: str
    conflicts: dict[str, dict[str, int]]


class Joined(NamedTuple):
    """The further parts of samples in output order, all of a plan or those of one task, whose rows are the first parts:
    for each set but the first one row a sample, of the shard :data:`NOBODY` where there is none. ``sets`` is the set
    (from 0) of each input; ``policies`` has one for each set: what is done about a field that is there already.
    ``counts`` are those of the plan."""

    others: tuple[Ordered, ...]
    sets: tuple[int, ...]
    policies: tuple[OnConflict, ...]
    counts: JoinCounts

    def part(self, first: int, end: int) -> Joined:
        """What samples ``first`` to ``end`` of the output need."""
        return self._replace(others=tuple(other.slice(first, end) for other in self.others))

    def held(self) -> Joined:
        """The same with rows in memory, for processes of other machines."""
        return self._replace(others=tuple(other.held() for other in self.others))

    def inputs(self, samples: Ordered) -> list[int]:
        """The inputs that the task reads, in rising order, ``samples`` being the first parts."""
        found = {number for some in (samples, *self.others) for number in some.shard_numbers()}
        return sorted(found - {NOBODY})


def in_turn(lists: Sequence[Ordered]) -> Ordered:
    """The rows of all lists, which are of one length, in turn."""
    if len(lists) == 1:
        return lists[0]
    if any(one.samples is not lists[0].samples for one in lists):
        return _beside_each_other(lists)
    order: I64 = numpy.empty((lists[0].total, len(lists)), dtype=numpy.int64)
    for number, one in enumerate(lists):
        order[:, number] = numpy.arange(one.total) if one.order is None else one.order
    return Ordered(lists[0].samples, order.reshape(-1))


def _beside_each_other(lists: Sequence[Ordered]) -> Ordered:
    """The same of lists over different tables, in memory."""
    rows: Rows = numpy.empty((lists[0].total, len(lists)), dtype=row_type())
    for number, one in enumerate(lists):
        rows[:, number] = one.part(0, one.total).rows
    return Ordered(PlanTable(rows.reshape(-1)))


class Slot(NamedTuple):
    """One member of a joined sample: its field, and where it is from: a part (from 0) and a member of that part."""

    field: bytes
    part: int
    member: int


class Layout(NamedTuple):
    """The members of a joined sample. ``out`` are those that are not among them; ``renamed`` those that have another
    name than in their part. Of ``out``, ``replaced`` gave way to a later part. ``conflicts`` are the fields that two
    parts have, each with what was done about it."""

    slots: tuple[Slot, ...]
    out: tuple[Slot, ...]
    renamed: tuple[Slot, ...]
    replaced: int
    conflicts: frozenset[tuple[bytes, OnConflict]]

    @property
    def is_plain(self) -> bool:
        """Whether the parts, one behind the other as they stand, are the sample."""
        return not self.out and not self.renamed


def suffixed(field: bytes, part: int) -> bytes:
    """The name of a field whose own name an earlier part has. The type stays at the end, where readers look for it.

    >>> suffixed(b"seg.png", 1)
    b'2.seg.png'
    """
    return b"%d.%s" % (part + 1, field)


def lay_out(parts: Sequence[Shape | None], policies: Sequence[OnConflict]) -> Layout:
    """The members of a sample with these parts; None stands for a part that it lacks. ``policies`` has, for each part,
    what is done when it has a field that is there. Raises DataError without a place.

    >>> lay_out([(b"jpg", b"txt"), (b"txt",)], ["error", "right"]).slots
    (Slot(field=b'jpg', part=0, member=0), Slot(field=b'txt', part=1, member=0))
    >>> [slot.field for slot in lay_out([(b"jpg", b"txt"), (b"txt",)], ["error", "suffix"]).slots]
    [b'jpg', b'txt', b'2.txt']
    """
    there: dict[bytes, Slot] = {}
    out: list[Slot] = []
    renamed: list[Slot] = []
    replaced = 0
    conflicts: set[tuple[bytes, OnConflict]] = set()
    for part, shape in enumerate(parts):
        for member, field in enumerate(shape or ()):
            slot = Slot(field, part, member)
            before = there.get(field)
            policy = policies[part]
            if before is None:
                there[field] = slot
                continue
            conflicts.add((field, policy))
            if policy == "suffix":
                slot = slot._replace(field=_free(suffixed(field, part), there, shape or ()))
                there[slot.field] = slot
                renamed.append(slot)
            elif policy == "error" or before.part == part:
                raise conflict(f'has a field "{to_text(field)}" in two sets')
            else:
                loser = before if policy == "right" else slot
                replaced += policy == "right"
                out.append(loser)
                there[field] = slot if policy == "right" else before
    return Layout(tuple(there.values()), tuple(out), tuple(renamed), replaced, frozenset(conflicts))


def _free(field: bytes, there: dict[bytes, Slot], shape: Shape) -> bytes:
    if field in there or field in shape:
        raise conflict(
            f'has a field "{to_text(field)}" already, which --on-conflict suffix would give to another'
        )
    return field


def conflict(what: str) -> DataError:
    """The error of a field that cannot have its name. ``what`` is said of a sample."""
    return DataError(
        what,
        code="conflict",
        hint="--on-conflict left, right or suffix; or leave a field out (--drop), or rename it first",
    )


def collision(one: bytes, other: bytes, shard: str, offset: int) -> DataError:
    """The error of two keys that cannot be told apart by their hashes."""
    return DataError(
        f'the keys "{to_text(one)}" and "{to_text(other)}" have one XXH3-64, by which samples are matched',
        code="hash-collision",
        shard=shard,
        offset=offset,
        hint="leave one of them out (--keys), or give it another name",
    )
