"""Quotas by class for more samples than memory holds: what :func:`~wdscli.ops.parts.stratified` says, by sorts on disc.

What it is: :func:`stratified_on_disc`. How: samples are sorted by the rank of their group, so that those of one group
lie side by side and groups in the order in which they fill quotas; one pass counts groups and classes, a second one
gives each group its part, a third hands it to the samples, which are sorted back into input order. In memory are some
thousand records, and numbers for each class. It must not know where hashes come from.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from wdscli.ops.external import BLOCK, NewPath, Stored, sort_records, store
from wdscli.ops.parts import Share, quotas, ranks_of

if TYPE_CHECKING:
    from typing import TypeAlias

    from wdscli.ops.rows import I64, U64

    Classed: TypeAlias = tuple[U64, I64]
    Records: TypeAlias = Any

_MEMBER = [("rank", "<u8"), ("row", "<u8"), ("class", "<u4")]
_TALLY = [("rank", "<u8"), ("class", "<u4"), ("size", "<i8")]
_GROUP_PART = [("rank", "<u8"), ("part", "<u4")]
_ROW_PART = [("row", "<u8"), ("part", "<u4")]


def stratified_on_disc(
    blocks: Iterable[Classed],
    classes: int,
    seed: int,
    shares: Sequence[Share],
    new_path: NewPath,
    limit: int,
) -> Stored:
    """The part of each sample, field ``part`` of records in the order of the samples, whose hashes and classes (numbers
    below ``classes``) come in blocks. ``limit`` is in bytes of memory. Raises OutputError."""
    members = sort_records(_members(blocks, seed), _MEMBER, _column("rank"), new_path, limit)
    groups = store(_groups(members), _TALLY, new_path("groups"))
    filled = _filled(groups, classes, shares)
    parts = store(_parts_of_groups(groups, filled), _GROUP_PART, new_path("group-parts"))
    os.unlink(groups.path)
    found = sort_records(_parts_of_rows(members, parts), _ROW_PART, _column("row"), new_path, limit)
    os.unlink(members.path)
    os.unlink(parts.path)
    return found


def _column(name: str) -> Any:
    return lambda records: records[name]


def _members(blocks: Iterable[Classed], seed: int) -> Iterator[Records]:
    """Each sample with the rank of its group."""
    import numpy

    at = 0
    for digests, classes in blocks:
        records: Records = numpy.empty(len(digests), dtype=_MEMBER)
        records["rank"], records["class"] = ranks_of(seed, digests), classes
        records["row"] = numpy.arange(at, at + len(digests))
        at += len(digests)
        yield records


def _groups(members: Stored) -> Iterator[Records]:
    """How many samples each group has, and the class of most of these; by rank."""
    import numpy

    held: Records = numpy.empty(0, dtype=_TALLY)
    for some in members.blocks(BLOCK):
        counted: Records = numpy.ones(len(some), dtype=_TALLY)
        counted["rank"], counted["class"] = some["rank"], some["class"]
        tallies = _tallied(numpy.concatenate((held, counted)))
        # The last group may go on in the next block.
        last = int(tallies["rank"].searchsorted(tallies["rank"][-1]))
        yield _majorities(tallies[:last])
        held = tallies[last:]
    yield _majorities(held)


def _tallied(tallies: Records) -> Records:
    """One tally for each class of each group, in the order of these."""
    import numpy

    tallies = tallies[numpy.lexsort((tallies["class"], tallies["rank"]))]
    begins = _begins(tallies["rank"], tallies["class"])
    found = tallies[begins]
    found["size"] = numpy.add.reduceat(tallies["size"], begins)
    return found


def _majorities(tallies: Records) -> Records:
    """One tally for each group: of all its samples, with the class of most of them, the lowest of several."""
    import numpy

    if not len(tallies):
        return tallies
    begins = _begins(tallies["rank"])
    by_count = numpy.lexsort((tallies["class"], -tallies["size"], tallies["rank"]))
    found = tallies[by_count[begins]]
    found["size"] = numpy.add.reduceat(tallies["size"], begins)
    return found


def _begins(*columns: Any) -> I64:
    """Where runs of records begin that agree in all columns."""
    import numpy

    differ: Any = numpy.zeros(len(columns[0]), dtype=bool)
    differ[:1] = True
    for column in columns:
        differ[1:] |= column[1:] != column[:-1]
    begins: I64 = numpy.flatnonzero(differ)
    return begins


def _filled(groups: Stored, classes: int, shares: Sequence[Share]) -> I64:
    """For each class, how many samples are in each part and those before."""
    import numpy

    counts: I64 = numpy.zeros(classes, dtype=numpy.int64)
    for some in groups.blocks(BLOCK):
        numpy.add.at(counts, some["class"], some["size"])
    found = numpy.array(quotas(counts.tolist(), shares), dtype=numpy.int64).reshape(classes, len(shares))
    return numpy.cumsum(found, axis=1)


def _parts_of_groups(groups: Stored, filled: I64) -> Iterator[Records]:
    """The part of each group, by rank."""
    import numpy

    given: I64 = numpy.zeros(len(filled), dtype=numpy.int64)
    for some in groups.blocks(BLOCK):
        order = numpy.argsort(some["class"], kind="stable")
        classes, sizes = some["class"][order], some["size"][order]
        begins = numpy.cumsum(sizes) - sizes
        firsts = _begins(classes)
        begins -= numpy.repeat(begins[firsts], numpy.diff(firsts, append=len(classes)))
        middles = 2 * (begins + given[classes]) + sizes
        numpy.add.at(given, classes, sizes)
        records: Records = numpy.zeros(len(some), dtype=_GROUP_PART)
        records["rank"] = some["rank"]
        for part in range(filled.shape[1] - 1):
            records["part"][order] += middles > 2 * filled[classes, part]
        yield records


def _parts_of_rows(members: Stored, groups: Stored) -> Iterator[Records]:
    """The part of each sample, by the rank of its group."""
    import numpy

    at = 0
    for some in members.blocks(BLOCK):
        # So many samples are in no more groups than that, and the first may be the one where the last block ended.
        near = groups.read(at, at + len(some) + 1)
        which = near["rank"].searchsorted(some["rank"])
        records: Records = numpy.empty(len(some), dtype=_ROW_PART)
        records["row"], records["part"] = some["row"], near["part"][which]
        at += int(which[-1])
        yield records
