"""Base classes of sources, which have samples at the positions of an epoch, and of their readers.

What it is: a :class:`PositionSource` has a length for each epoch and gives the samples at any positions of it, the same
ones in every process. An :class:`EpochReader` reads one epoch of it. How: the attributes that an engine looks at have
defaults here, so a source states only what is particular to it. It must not know ranks, workers, batches or stages.
"""

from __future__ import annotations

from typing import Any

from wdscli.arrays import I64, numpy
from wdscli.threads import ForkLock


class EpochReader:
    """One epoch of a source, for one thread; closed by the caller."""

    waits = False
    """Whether a read waits for a remote store, so that reading ahead pays."""
    jumps = False
    """Whether neighbouring positions lie in different shards, so that reading many at once pays."""

    def read(self, positions: I64) -> list[Any]:
        """Return the samples at these positions, in order, with Failed for one that cannot be read."""
        raise NotImplementedError

    def expect(self, positions: I64) -> None:
        """Note the positions of the read after the next one."""

    def instead(self, position: int, step: int, length: int) -> Any:
        """Return the sample ``step`` positions further on in an epoch of ``length``, or Failed."""
        [sample] = self.read(numpy.array([(position + step) % length], dtype=numpy.int64))
        return sample

    def close(self) -> None:
        """Close all files."""


class PositionSource:
    """Picklable, and small when pickled."""

    seed = 0
    """Of its order, and of what stages of the dataset draw."""
    is_shuffled = False
    is_stream = False
    """Whether samples can only be read from front to back."""
    is_appended = False
    """Whether it is what a user appended to an empty pipeline: no stage has a method of its own there."""
    facts = ""
    """A description for repr() of a dataset."""

    def identity(self) -> dict[str, Any]:
        """Return what a state must share with this source to fit it: plain values, a few hundred bytes."""
        raise NotImplementedError

    def length(self, epoch: int) -> int:
        """Return the number of positions in an epoch."""
        raise NotImplementedError

    def reader(self, epoch: int) -> EpochReader:
        """Return a reader of the epoch's samples."""
        raise NotImplementedError

    def base(self) -> PositionSource:
        """Return the source without views, orders and spans."""
        return self

    def begun_by(self, stage: Any) -> PositionSource | None:
        """Return the source that ``stage`` begins, if this is the empty source of an empty pipeline."""
        return None


class Derived(PositionSource):
    """A source that takes its samples from another one, ``source``."""

    def __init__(self, source: PositionSource) -> None:
        self.source, self.facts = source, source.facts

    def identity(self) -> dict[str, Any]:
        return self.source.identity()

    def length(self, epoch: int) -> int:
        return self.source.length(epoch)

    def base(self) -> PositionSource:
        return self.source.base()


class Spare:
    """A second reader of an epoch, opened when a substitute is first needed: another thread may hold the first one. For
    several threads."""

    def __init__(self, source: PositionSource, epoch: int) -> None:
        self._source, self._epoch = source, epoch
        self._reader: EpochReader | None = None
        self._lock = ForkLock()

    def instead(self, position: int, step: int, length: int) -> Any:
        """See :meth:`EpochReader.instead`."""
        with self._lock:
            self._reader = self._reader or self._source.reader(self._epoch)
            return self._reader.instead(position, step, length)

    def close(self) -> None:
        """Close all files."""
        if self._reader is not None:
            self._reader.close()
