"""From the columns of an index straight to the rows of a plan.

What it is: :func:`plain_rows`, the survey of a shard whose index says that nothing about it is special. How: columns
are copied as they are, and only keys are taken out one by one, to be hashed: a microsecond becomes a tenth of one,
which shows where there are millions. It must not know where the index came from.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING

from wdscli.ops.rows import hashes_of, headers_of, row_type

if TYPE_CHECKING:
    from wdscli.ops.rows import I64, Rows
    from wdscli.ops.survey import SurveyTask
    from wdscli.shards.index import Index

AT_ONCE = 1 << 14


def plain_rows(task: SurveyTask, index: Index, hash_key: Callable[[bytes], int]) -> Rows | None:
    """The rows of an index whose samples are all wanted as they stand; None when a selection, a new key, a mark or a
    name asks for a closer look at one."""
    import numpy

    special = task.selection.changes_members or task.rekey is not None or task.extract is not None
    if special or not task.selection.is_trivial or index.marks.any() or _may_be_unsafe(index):
        return None
    rows: Rows = numpy.zeros(index.samples, dtype=row_type())
    rows["start"] = index.starts
    rows["length"] = rows["out"] = index.lengths
    rows["place"] = numpy.arange(index.samples)
    rows["members"] = numpy.diff(index.member_ends, prepend=numpy.uint64(0))
    names = hashes_of(index.fields)[index.member_fields]
    rows["headers"] = headers_of(names, index.member_sizes, rows["members"].astype(numpy.int64))
    at = 0
    for first in range(0, index.samples, AT_ONCE):
        keys = []
        for end in index.key_ends[first : first + AT_ONCE].tolist():
            keys.append(index.keys[at:end])
            at = end
        rows["key"][first : first + AT_ONCE] = array("Q", map(hash_key, keys))
    return rows


def _may_be_unsafe(index: Index) -> bool:
    """Whether a key may be one that would make an unsafe name, or none at all, by a quick look at all of them."""
    import numpy

    keys = index.keys
    ends: I64 = index.key_ends.astype(numpy.int64)
    begins: I64 = numpy.append(0, ends)[:-1]
    if b".." in keys or (begins == ends).any():
        return True
    return bool((numpy.frombuffer(keys, dtype=numpy.uint8)[begins] == ord("/")).any())
