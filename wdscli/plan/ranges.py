"""Members and payloads of one stretch of a shard that can be read at any place.

What it is: the members that lie between two bytes (:func:`members_of_run`), a payload piece by piece
(:func:`pieces_of`), members as the samples that were planned (:func:`grouped_as_planned`), and the pax global headers
that hold at a byte (:class:`Globals`). It must not know why a stretch is wanted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from wdscli.errors import DataError
from wdscli.samples import SampleBatch, group_columns
from wdscli.storage import Source
from wdscli.tar import FOREIGN, Columns, Scanner, padded, scan
from wdscli.tar.columns import new_columns
from wdscli.tar.header import BLOCK

PIECE = 1 << 20


def members_of_run(
    source: Source, start: int, end: int, globals_before: dict[bytes, bytes] | None = None
) -> Columns:
    """The members that lie between two bytes of a shard, by their headers alone. Raises DataError ``changed``."""
    scanner = Scanner(source.name, limit=end, first=start)
    if globals_before:
        scanner.extensions.put_globals(globals_before)
    while scanner.position < end:
        at, wanted = scanner.position, scanner.wanted
        scanner.feed(source.read_at(at, min(max(4096, wanted), end - at)), at)
        if scanner.position == at and scanner.wanted == wanted:
            break
    columns = scanner.take()
    if scanner.position != end or not scanner.is_at_member or not columns.names:
        raise DataError("a run does not end where it should", code="changed", shard=source.name, offset=start)
    return columns


class Globals:
    """The records of a shard's pax global headers, by the byte from which on they hold; one pass over its headers."""

    def __init__(self, source: Source) -> None:
        self._places: list[int] = []
        self._records: list[dict[bytes, bytes]] = []
        self._scanner = Scanner(source.name)
        end = 0
        for window in scan(source):
            _, starts, offsets, sizes, _ = window.columns
            for start, offset, size in zip(starts, offsets, sizes, strict=True):
                # Extended headers lie in front of a member's own block: before its start, or after it.
                if offset - BLOCK > end:
                    self._look(source, end, start)
                    self._look(source, start, offset - BLOCK)
                end = offset + padded(size)

    def _look(self, source: Source, start: int, end: int) -> None:
        if start >= end:
            return
        scanner = self._scanner
        scanner.position = start
        scanner.extensions.clear()
        scanner.feed(source.read_at(start, end - start), start)
        scanner.take()
        scanner.extensions.clear()
        if not self._records or scanner.globals != self._records[-1]:
            self._places.append(end)
            self._records.append(dict(scanner.globals))

    def before(self, start: int) -> dict[bytes, bytes]:
        """The records that hold for what begins at byte ``start``."""
        at = bisect_right(self._places, start)
        return self._records[at - 1] if at else {}


def pieces_of(source: Source, offset: int, size: int) -> Iterator[bytes]:
    """A payload in pieces. Raises DataError when the source ends first."""
    end = offset + size
    while offset < end:
        data = source.read_at(offset, min(PIECE, end - offset))
        if not data:
            raise cut_short(source.name, offset)
        offset += len(data)
        yield data


def cut_short(shard: str, offset: int) -> DataError:
    """The error of a payload that ends too soon."""
    return DataError("archive ends inside a payload", code="truncated", shard=shard, offset=offset)


def grouped_as_planned(columns: Columns, begins: list[int], shard: str) -> SampleBatch:
    """Samples by where they were planned to begin, not by key: neighbours may share a key until they get new ones.

    Gives fewer samples than planned when the members do not fit the plan.
    """
    whole = group_columns(new_columns(), shard)
    bounds = [*begins[1:], 1 << 63]
    at, count = 0, len(columns.names)
    for begin, bound in zip(begins, bounds, strict=True):
        first = at
        while at < count and columns.starts[at] < bound:
            at += 1
        sample = group_columns(columns.part(first, at), shard)
        if len(sample.keys) != 1 or sample.starts[0] < begin:
            break
        _append(whole, sample)
    return whole


def _append(whole: SampleBatch, sample: SampleBatch) -> None:
    shift = len(whole.fields)
    whole.keys.extend(sample.keys)
    whole.firsts.extend(first + shift for first in sample.firsts[1:])
    whole.fields.extend(sample.fields)
    for column, values in zip(whole.numbers(), sample.numbers(), strict=True):
        column.extend(values)
    whole.marks.extend(mark | FOREIGN for mark in sample.marks)
