"""One sample at a time from a local shard, with nothing spent on being one of many.

What it is: :func:`pick`. How: the columns of a shard's table as memory views, whose single numbers cost a third of an
array's; a small sample is read by one call and cut, the large members of others are read each into its own bytes. The
header in front of each payload is compared with what the index says. It must not know which samples come next.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from wdscli.errors import DataError, InputError
from wdscli.loader.read.catalog import ShardTable
from wdscli.loader.read.fetch import GAP, LARGE, Raw
from wdscli.loader.read.headers import BLOCK
from wdscli.loader.read.rows import changed
from wdscli.samples.expected import FRONT_BYTES, are_harmless, is_there, says

if TYPE_CHECKING:
    from wdscli.storage import Source


class Columns:
    """The columns of a table for looks at single numbers."""

    __slots__ = (
        "ends",
        "heads",
        "ids",
        "key_ends",
        "keys",
        "member_ends",
        "names",
        "offsets",
        "sizes",
        "starts",
        "suffixes",
        "url",
    )

    def __init__(self, table: ShardTable) -> None:
        self.starts = memoryview(table.starts)
        self.ends = memoryview(table.ends)
        self.member_ends = memoryview(table.member_ends)
        self.key_ends = memoryview(table.key_ends)
        self.heads = memoryview(table.heads)
        self.offsets = memoryview(table.offsets)
        self.sizes = memoryview(table.sizes)
        self.ids = memoryview(table.field_ids)
        self.names, self.keys, self.url = table.fields, table.keys, table.address
        self.suffixes = table.suffixes


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
    heads, suffixes = columns.heads, columns.suffixes
    if stop - start > (LARGE if fields is None else GAP):
        stop = _head_end(columns, start, members)
    data = _read(source, start, stop - start)
    for at in members:
        number = ids[at]
        name = names[number]
        if fields is None or name in fields:
            head, offset, size = heads[at], offsets[at], sizes[at]
            near, begin = data, offset - start
            if offset > stop:
                # What is large is read into its own bytes, and what leads to it by itself.
                begin = min(offset - head, FRONT_BYTES)
                near = _read(source, offset - begin, begin + (size if size < LARGE else 0))
            if begin + size <= len(near):
                raw[name] = near[begin : begin + size]
            else:
                raw[name] = _read(source, offset, size)
            whole, lead = key + suffixes[number], offset - head - BLOCK
            is_told = says(near, begin - BLOCK, whole, size)
            if lead and is_told:
                is_told = are_harmless(near[max(0, begin - BLOCK - lead) : begin - BLOCK])
            if not is_told and not is_there(source, head, offset, whole[:-1], size):
                raise changed(table, place)
    return raw


def _head_end(columns: Columns, start: int, members: range) -> int:
    """How far a large sample is read at once: small members that come first, and the header of the one behind them."""
    end = start + BLOCK
    for at in members:
        end = min(columns.offsets[at], start + GAP)
        if columns.offsets[at] + columns.sizes[at] - start > GAP:
            break
        end = columns.offsets[at] + columns.sizes[at]
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
