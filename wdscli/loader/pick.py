"""One sample at a time from a local shard, with nothing spent on being one of many.

What it is: :func:`pick`. How: the columns of a shard's table as memory views, whose single numbers cost a third of an
array's; a small sample is read by one call and cut, the large members of others are read each into its own bytes. The
sample's first header is compared with the key that the index names. It must not know which samples come next.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from wdscli.errors import DataError, InputError
from wdscli.loader.catalog import ShardTable
from wdscli.loader.fetch import GAP, LARGE, Raw
from wdscli.loader.pieces import NAME
from wdscli.loader.rows import changed

if TYPE_CHECKING:
    from wdscli.storage import Source


class Columns:
    """The columns of a table for looks at single numbers."""

    __slots__ = (
        "ends",
        "ids",
        "key_ends",
        "keys",
        "marks",
        "member_ends",
        "names",
        "offsets",
        "sizes",
        "starts",
        "url",
    )

    def __init__(self, table: ShardTable) -> None:
        self.starts = memoryview(table.starts)
        self.ends = memoryview(table.ends)
        self.member_ends = memoryview(table.member_ends)
        self.key_ends = memoryview(table.key_ends)
        self.marks = memoryview(table.marks)
        self.offsets = memoryview(table.offsets)
        self.sizes = memoryview(table.sizes)
        self.ids = memoryview(table.field_ids)
        self.names, self.keys, self.url = table.fields, table.keys, table.address


def pick(table: ShardTable, source: Source, place: int, fields: frozenset[str] | None) -> Raw:
    """The sample at ``place`` of a shard that is open as ``source``, a plain local file. Raises DataError when it is
    not what the index says, InputError."""
    columns: Columns | None = table.columns
    if columns is None:
        columns = table.columns = Columns(table)
    key_ends, member_ends = columns.key_ends, columns.member_ends
    first, begin = (member_ends[place - 1], key_ends[place - 1]) if place else (0, 0)
    key = columns.keys[begin : key_ends[place]]
    start, stop = columns.starts[place], columns.ends[place]
    members = range(first, member_ends[place])
    raw: Raw = {"__key__": key.decode("utf-8", "surrogateescape"), "__url__": columns.url}
    names, ids, offsets, sizes = columns.names, columns.ids, columns.offsets, columns.sizes
    if stop - start > (LARGE if fields is None else GAP):
        stop = _head_end(columns, start, members)
    data = _read(source, start, stop - start)
    if not data.startswith(key) and len(key) < NAME and not columns.marks[place]:
        raise changed(table, place)
    for at in members:
        name = names[ids[at]]
        if fields is None or name in fields:
            offset, size = offsets[at], sizes[at]
            inside = offset + size <= stop
            raw[name] = (
                data[offset - start : offset - start + size] if inside else _read(source, offset, size)
            )
    return raw


def _head_end(columns: Columns, start: int, members: range) -> int:
    """How far a large sample is read at once: the first header, and small members that come first."""
    end = start + NAME
    for at in members:
        stop = columns.offsets[at] + columns.sizes[at]
        if stop - start > GAP:
            break
        end = stop
    return end


def _read(source: Source, offset: int, size: int) -> bytes:
    try:
        data = os.pread(source.fd, size, offset)  # type: ignore[arg-type]
    except OSError as error:
        raise InputError(f"cannot read {source.name}: {error.strerror}") from error
    if len(data) != size:
        data = source.read_at(offset, size)
        if len(data) != size:
            raise DataError(
                "archive ends inside a sample", code="truncated", shard=source.name, offset=offset
            )
    return data
