"""Where samples come to lie when they are spilled, by their places in the output order.

What it is: :class:`Places`, in memory, and :class:`StoredPlaces`, for plans whose rows are on disc too; and
:func:`by_input`, such a plan's samples in the order in which the inputs hold them. It must not know what a place means.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from wdscli.ops.external import Stored, sort_records
from wdscli.ops.large import StoredSamples
from wdscli.ops.rows import Samples, row_type
from wdscli.ops.spilled import ELSEWHERE

if TYPE_CHECKING:
    from wdscli.ops.rows import I64, U64


class Places:
    """A number for each sample; ELSEWHERE for those that none is given for."""

    def __init__(self, total: int) -> None:
        import numpy

        self._places: U64 = numpy.full(total, ELSEWHERE, dtype=numpy.uint64)

    def put(self, positions: I64, places: U64) -> None:
        """Numbers of some samples."""
        self._places[positions] = places

    def settle(self) -> None:
        """All that will be put has been put; only now :meth:`get` may be called."""

    def get(self, first: int, end: int) -> U64:
        """The numbers of samples ``first`` to ``end``."""
        return self._places[first:end]


class StoredPlaces:
    """The same for as many samples as a disc holds: what is put is written down, and sorted in the end."""

    def __init__(self, samples: StoredSamples) -> None:
        import numpy

        self._samples = samples
        self._kind = numpy.dtype([("at", "<u8"), ("place", "<u8")])
        self._path = samples.new_path("places")
        self._written = 0
        self._sorted: Stored | None = None

    def put(self, positions: I64, places: U64) -> None:
        import numpy

        records: Any = numpy.empty(len(positions), dtype=self._kind)
        records["at"], records["place"] = positions, places
        with open(self._path, "ab") as file:
            records.tofile(file)
        self._written += len(records)

    def settle(self) -> None:
        stored = Stored(self._path, self._kind, self._written)
        self._sorted = sort_records(
            stored.blocks() if self._written else (),
            self._kind,
            _at,
            self._samples.new_path,
            self._samples.limit,
        )

    def get(self, first: int, end: int) -> U64:
        import numpy

        assert self._sorted is not None
        found: U64 = numpy.full(end - first, ELSEWHERE, dtype=numpy.uint64)
        # Those that were never put are missing among the records: there are at most as many as places before it.
        low, high = self._search(first), self._search(end)
        records = self._sorted.read(low, high)
        found[(records["at"] - numpy.uint64(first)).astype(numpy.int64)] = records["place"]
        return found

    def _search(self, position: int) -> int:
        """The first record whose position is not less."""
        assert self._sorted is not None
        low, high = 0, self._sorted.total
        while low < high:
            middle = (low + high) // 2
            if int(self._sorted.read(middle, middle + 1)["at"][0]) < position:
                low = middle + 1
            else:
                high = middle
        return low


def _at(records: Any) -> Any:
    return records["at"]


def by_input(samples: StoredSamples, size: int) -> Iterator[tuple[I64, Samples]]:
    """All samples in the order of the inputs, each with its place in the order of ``samples``, ``size`` at a time."""
    import numpy

    kind = numpy.dtype([("row", row_type()), ("at", "<u8")])
    ordered = sort_records(_numbered(samples, kind), kind, _place_in_input, samples.new_path, samples.limit)
    for some in ordered.blocks(size):
        yield some["at"].astype(numpy.int64), Samples(some["row"].copy())
    if ordered.total:
        os.unlink(ordered.path)


def _numbered(samples: Samples, kind: Any) -> Iterator[Any]:
    import numpy

    at = 0
    for part in samples.parts():
        records: Any = numpy.empty(part.total, dtype=kind)
        records["row"], records["at"] = part.rows, numpy.arange(at, at + part.total)
        at += part.total
        yield records


def _place_in_input(records: Any) -> Any:
    import numpy

    rows = records["row"]
    return rows["shard"].astype(numpy.uint64) << numpy.uint64(32) | rows["place"]
