"""The inputs of one task while it reads them, and the ranges that it reads.

What it is: :class:`Inputs`, which opens what is wanted and keeps a few dozen open; :func:`is_cold`, by which a reader
knows that it should ask ahead; :func:`totals_of` and :func:`edges_of`, which say where samples come to lie and which of
them adjoin. It must not know what is read for what.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from wdscli.plan.ranges import Globals
from wdscli.plan.scratch import Input
from wdscli.plan.table import PlanTable
from wdscli.storage import Source

if TYPE_CHECKING:
    from wdscli.plan.table import I64, U64

OPEN_SOURCES = 64


class Inputs:
    """The open inputs of one task, at most :data:`OPEN_SOURCES` at a time. ``open_other`` opens what has a number that
    none of ``inputs`` has. With ``later`` somebody else confirms local files."""

    def __init__(
        self,
        inputs: dict[int, Input],
        open_other: Callable[[int], Source] | None = None,
        *,
        later: bool = False,
    ) -> None:
        self._inputs = inputs
        self._later = later
        self._open_other = open_other
        self._open: dict[int, Source] = {}
        self.descriptors: dict[int, int] = {}
        """Those that are open and plain local files."""
        self._globals: dict[int, Globals] = {}

    def __getitem__(self, number: int) -> Source:
        source = self._open.get(number)
        if source is None:
            if len(self._open) >= OPEN_SOURCES:
                first = next(iter(self._open))
                self.descriptors.pop(first, None)
                with self._open.pop(first) as done:
                    self._confirm(first, done)
            if self._open_other is not None and number not in self._inputs:
                source = self._open[number] = self._open_other(number)
            else:
                source = self._open[number] = self._inputs[number].open()
            if source.fd is not None:
                self.descriptors[number] = source.fd
        return source

    def globals_before(self, number: int, start: int) -> dict[bytes, bytes]:
        """The records of pax global headers that hold at a byte of an input."""
        found = self._globals.get(number)
        if found is None:
            found = self._globals[number] = Globals(self[number])
        return found.before(start)

    def __enter__(self) -> Inputs:
        return self

    def confirm(self) -> None:
        """To be called when all is read: raise InputError for an input that was changed meanwhile."""
        for number, source in self._open.items():
            self._confirm(number, source)

    def _confirm(self, number: int, source: Source) -> None:
        # What a first pass has written is ours, and given back to the system while it is read. Its second pass looks at
        # headers, which tell better what is different in a local file.
        if number in self._inputs and not (self._later and source.fd is not None):
            source.confirm()

    def __exit__(self, *_: object) -> None:
        for source in self._open.values():
            source.close()


def is_cold(descriptor: int, offset: int) -> bool:
    """Whether a byte of a file would have to come from the device, as far as the system tells without waiting."""
    if not (hasattr(os, "RWF_NOWAIT") and hasattr(os, "posix_fadvise")):
        return False
    try:
        return os.preadv(descriptor, (bytearray(1),), offset, os.RWF_NOWAIT) == 0
    except BlockingIOError:
        return True
    except OSError:
        return False


def totals_of(samples: PlanTable) -> I64:
    """How many bytes lie before each sample and behind the last, when they lie side by side."""
    import numpy

    totals: I64 = numpy.zeros(samples.total + 1, dtype=numpy.int64)
    numpy.cumsum(samples.lengths, out=totals[1:], dtype=numpy.int64)
    return totals


def edges_of(files: I64, begins: U64, lengths: U64) -> list[int]:
    """The rows, from 1 on, that do not begin where the one before ends."""
    import numpy

    apart = (files[1:] != files[:-1]) | (begins[1:] != begins[:-1] + lengths[:-1])
    found: list[int] = (numpy.flatnonzero(apart) + 1).tolist()
    return found
