"""Records on disc: more of them than memory holds, written, read in slices, and sorted.

What it is: :class:`Stored`, a file of packed records; :func:`sort_records`, which sorts any number of them by a number
(ties keep their order); and :func:`sort_by_values`, the same by byte strings. How: sorted runs, each as long as memory
allows, then one merge of all of them. By numbers whole arrays are merged: all records up to the least of the last keys
at hand are in memory, so that they can be sorted together and written. By byte strings the merge is that of ``heapq``.

It must not know what the records are.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from wdscli.errors import OutputError, WdsError
from wdscli.ops.memory import give_back
from wdscli.ops.scratch import HINT
from wdscli.storage.local import reason

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy
    from numpy.typing import NDArray

    Records: TypeAlias = NDArray[Any]
    Keys: TypeAlias = NDArray[numpy.uint64]

NewPath = Callable[[str], str]
"""Gives a path that nobody else uses, from a word that says what for."""
BLOCK = 1 << 14
LEAST_READ = 1 << 10
"""Records of a run that are read together, at least."""
LEAST_RUN = 1 << 12
VALUE_COST = 96
"""What Python needs for a byte string and a place in a list, besides its bytes."""
_HEAD = 4


class Stored(NamedTuple):
    """``total`` records of one kind (a numpy dtype) in a file of this machine."""

    path: str
    kind: Any
    total: int

    def read(self, first: int, end: int) -> Records:
        """Records ``first`` to ``end``."""
        import numpy

        end = min(end, self.total)
        if end <= first:
            return numpy.empty(0, dtype=self.kind)
        size = numpy.dtype(self.kind).itemsize
        return numpy.fromfile(self.path, dtype=self.kind, count=end - first, offset=first * size)

    def blocks(self, size: int = BLOCK) -> Iterator[Records]:
        """All records, some at a time."""
        for first in range(0, self.total, size):
            yield self.read(first, first + size)

    def take(self, places: Sequence[int]) -> Records:
        """Some records, one read for each."""
        import numpy

        size = numpy.dtype(self.kind).itemsize
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = b"".join([os.pread(descriptor, size, place * size) for place in places])
        finally:
            os.close(descriptor)
        return numpy.frombuffer(data, dtype=self.kind)

    def put(self, places: Sequence[int], records: Records) -> None:
        """Replace some records."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            for place, record in zip(places, records, strict=True):
                os.pwrite(descriptor, record.tobytes(), place * records.itemsize)
        finally:
            os.close(descriptor)


def store(blocks: Iterable[Records], kind: Any, path: str) -> Stored:
    """Write records to a new file. Raises OutputError."""
    total = 0
    try:
        with open(path, "xb") as file:
            for block in blocks:
                block.tofile(file)
                total += len(block)
    except WdsError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write {path}: {reason(error)}", hint=HINT) from error
    return Stored(path, kind, total)


def store_at(blocks: Iterable[tuple[int, Records]], kind: Any, total: int, path: str) -> Stored:
    """Write ``total`` records to a new file in any order: the place of the first of some, and these. Raises
    OutputError."""
    import numpy

    size = numpy.dtype(kind).itemsize
    try:
        with open(path, "xb") as file:
            for first, block in blocks:
                file.seek(first * size)
                file.write(block.tobytes())
    except WdsError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write {path}: {reason(error)}", hint=HINT) from error
    return Stored(path, kind, total)


def sort_records(
    blocks: Iterable[Records], kind: Any, key: Callable[[Records], Keys], new_path: NewPath, limit: int
) -> Stored:
    """Records in the order of ``key``, equal ones as they come. ``limit`` is in bytes of memory. Raises OutputError."""
    runs = _sorted_runs(blocks, kind, key, new_path("runs"), limit)
    if len(runs) < 2:
        return runs[0][0] if runs else store([], kind, new_path("none"))
    merged = _merged([_Run(stored, first, end) for stored, first, end in runs], key, limit)
    result = store(merged, kind, new_path("sorted"))
    os.unlink(runs[0][0].path)
    give_back()
    return result


def _sorted_runs(
    blocks: Iterable[Records], kind: Any, key: Callable[[Records], Keys], path: str, limit: int
) -> list[tuple[Stored, int, int]]:
    """Sorted runs in one file: the file, and the first and last record of each."""
    import numpy

    size = numpy.dtype(kind).itemsize
    # Beside the records lie their keys, the order and what the sort needs for it.
    most = max(LEAST_RUN, limit // (size + 32))
    bounds = [0]

    def runs() -> Iterator[Records]:
        for held in _gathered(blocks, kind, most):
            order = numpy.argsort(key(held), kind="stable")
            for first in range(0, len(held), BLOCK):
                yield held[order[first : first + BLOCK]]
            bounds.append(bounds[-1] + len(held))

    stored = store(runs(), kind, path)
    return [(stored, first, end) for first, end in pairwise(bounds)]


def _gathered(blocks: Iterable[Records], kind: Any, most: int) -> Iterator[Records]:
    """The same records, ``most`` at a time; each array is valid until the next."""
    import numpy

    held = numpy.empty(0, dtype=kind)
    filled = 0
    for block in blocks:
        at = 0
        while at < len(block):
            if filled == len(held) < most:
                held = numpy.resize(held, min(most, max(LEAST_RUN, 2 * len(held), len(block))))
            count = min(len(held) - filled, len(block) - at)
            held[filled : filled + count] = block[at : at + count]
            filled += count
            at += count
            if filled == most:
                yield held
                filled = 0
    if filled:
        yield held[:filled]


class _Run:
    """A sorted run while it is merged: the records that were read and not yet taken, and their keys."""

    def __init__(self, stored: Stored, first: int, end: int) -> None:
        self._stored = stored
        self._at = first
        self._end = end
        self.records = stored.read(first, first)
        self.keys: Any = None

    @property
    def has_more(self) -> bool:
        """Whether some are still on disc."""
        return self._at < self._end

    def fill(self, wanted: int, key: Callable[[Records], Keys]) -> None:
        """Have at least half of ``wanted`` records at hand, as far as there are any."""
        import numpy

        if 2 * len(self.records) >= wanted or not self.has_more:
            return
        end = min(self._end, self._at + wanted - len(self.records))
        self.records = numpy.concatenate((self.records, self._stored.read(self._at, end)))
        self.keys = key(self.records)
        self._at = end

    def take(self, count: int) -> Records:
        """The first ``count`` at hand."""
        taken = self.records[:count]
        self.records, self.keys = self.records[count:], self.keys[count:]
        return taken


def _merged(runs: list[_Run], key: Callable[[Records], Keys], limit: int) -> Iterator[Records]:
    """All records of sorted runs in order, many at a time; those of equal keys in the order of the runs."""
    import numpy

    size = max(1, runs[0].records.itemsize)
    wanted = max(LEAST_READ, limit // (len(runs) * (3 * size + 32)))
    while runs:
        for run in runs:
            run.fill(wanted, key)
        runs = [run for run in runs if len(run.records)]
        parts = [run.take(count) for run, count in zip(runs, _counts(runs), strict=True)]
        if not parts:
            return
        records = numpy.concatenate(parts)
        del parts
        yield records[numpy.argsort(key(records), kind="stable")]


def _counts(runs: Sequence[_Run]) -> list[int]:
    """How many records of each run come before all that are still on disc."""
    unread = [(int(run.keys[-1]), at) for at, run in enumerate(runs) if run.has_more]
    if not unread:
        return [len(run.records) for run in runs]
    # What the run of the least last key has on disc may be equal to that key, and comes before equals of later runs.
    bound, upto = min(unread)
    return [
        int(run.keys.searchsorted(run.keys.dtype.type(bound), side="right" if at <= upto else "left"))
        for at, run in enumerate(runs)
    ]


Valued = tuple[Sequence[bytes], "Records"]
"""Some records, and a byte string for each."""


def write_values(values: Sequence[bytes], file: Any) -> None:
    """Byte strings as :func:`read_values` finds them."""
    file.write(b"".join([len(value).to_bytes(_HEAD, "little") + value for value in values]))


def read_values(file: Any, count: int) -> list[bytes]:
    """The next ``count`` byte strings of a file."""
    read = file.read
    return [read(int.from_bytes(read(_HEAD), "little")) for _ in range(count)]


def sort_by_values(
    blocks: Iterable[Valued],
    kind: Any,
    order_of: Callable[[list[bytes]], Any],
    new_path: NewPath,
    limit: int,
) -> Stored:
    """Records in the order of byte strings, equal ones as they come; ``order_of`` gives the order of some of these.
    Raises OutputError."""
    paths: list[tuple[str, int]] = []
    try:
        for values, records in _held_together(blocks, limit):
            order = order_of(values)
            path = new_path("values")
            with open(path, "xb") as file:
                for at in order.tolist():
                    value = values[at]
                    file.write(len(value).to_bytes(_HEAD, "little") + value + records[at].tobytes())
            paths.append((path, len(values)))
        runs = [_read_run(path, count, kind, max(1 << 13, limit // len(paths))) for path, count in paths]
        result = store(_together(heapq.merge(*runs, key=_first), kind), kind, new_path("sorted"))
    except WdsError:
        raise
    except OSError as error:
        raise OutputError(f"cannot sort in scratch space: {reason(error)}", hint=HINT) from error
    for path, _ in paths:
        os.unlink(path)
    give_back()
    return result


def _first(pair: tuple[bytes, bytes]) -> bytes:
    return pair[0]


def _held_together(blocks: Iterable[Valued], limit: int) -> Iterator[tuple[list[bytes], Records]]:
    """Blocks joined to as many records as memory holds."""
    import numpy

    values: list[bytes] = []
    parts: list[Any] = []
    size = 0
    for some, records in blocks:
        values += some
        parts.append(records)
        size += sum(map(len, some)) + len(some) * (VALUE_COST + 2 * records.itemsize)
        if size >= limit:
            yield values, numpy.concatenate(parts)
            values, parts, size = [], [], 0
    if values:
        yield values, numpy.concatenate(parts)


def _read_run(path: str, count: int, kind: Any, buffer: int) -> Iterator[tuple[bytes, bytes]]:
    import numpy

    size = numpy.dtype(kind).itemsize
    with open(path, "rb", buffering=min(buffer, 1 << 20)) as file:
        read = file.read
        for _ in range(count):
            yield read(int.from_bytes(read(_HEAD), "little")), read(size)


def _together(pairs: Iterable[tuple[bytes, bytes]], kind: Any) -> Iterator[Records]:
    """Packed records, some thousand at a time, as arrays."""
    import numpy

    held: list[bytes] = []
    for _, record in pairs:
        held.append(record)
        if len(held) == BLOCK:
            yield numpy.frombuffer(b"".join(held), dtype=kind)
            held = []
    if held:
        yield numpy.frombuffer(b"".join(held), dtype=kind)
