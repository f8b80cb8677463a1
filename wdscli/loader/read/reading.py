"""What an iteration reads, in blocks of batches, and ahead of itself where that pays.

What it is: :func:`read_blocks`. How: positions of an epoch are known before anything is read, so the samples of many
small batches are asked for at once, in blocks of about 16 MiB, enough for several threads to copy large samples of. A
block is read by one thread behind the iteration, :class:`Ahead`, when reads wait: for remote shards from the beginning,
for local ones once blocks were seen to wait for the disc longer than they took to read. What is in memory that the
iteration did not take yet is bounded by a budget of bytes. An exception comes out where its samples would have come. It
must not know what samples are, nor who takes them.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from wdscli.loader.read.meter import METER, Times

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    from wdscli.loader.place.share import Batches
    from wdscli.loader.read.source import EpochReader

    I64: TypeAlias = NDArray[numpy.int64]

BLOCK = 16 << 20
"""Bytes of payloads that are read at once, at least a batch."""
MOST = 1024
"""Samples that are read at once, at least a batch."""
FIRST = 64
"""Samples of the first block, whose size is not known."""
WAITS = 0.001
"""Seconds that a block must have waited to be called slow."""
PREFETCH = "256MB"
"""Bytes of payloads that a process may hold ahead of what was taken, unless told."""
SLOW = 2
"""Slow blocks in a row after which a thread reads ahead."""


class Read(NamedTuple):
    """The samples of batch ``number``, which lie at ``positions``."""

    number: int
    positions: I64
    samples: list[Any]


class Block(NamedTuple):
    """The batches ``numbers``, ``positions`` of all of them, and how many each has."""

    numbers: range
    positions: I64
    counts: list[int]


class Watch:
    """What this thread did since this was made."""

    def __init__(self) -> None:
        self._before = _usage()
        self._begin = time.perf_counter()

    @cached_property
    def seconds(self) -> float:
        """Until this was asked for the first time."""
        return time.perf_counter() - self._begin

    @property
    def has_waited(self) -> bool:
        """Whether it waited longer than it worked, and of its own will, as for a disc: not because other processes had
        the processor."""
        before, after = self._before, _usage()
        if before is None:
            return False
        worked = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        asleep, pushed = after.ru_nvcsw - before.ru_nvcsw, after.ru_nivcsw - before.ru_nivcsw
        return bool(self.seconds - worked > max(WAITS, worked) and asleep > pushed)


def _usage() -> Any:
    """What this thread has used; None where the system does not say it of threads."""
    import resource

    thread = getattr(resource, "RUSAGE_THREAD", None)
    return None if thread is None else resource.getrusage(thread)


class Agenda:
    """The blocks of some batches, one after the other; :attr:`samples` is how many the next one shall have."""

    def __init__(self, batches: Batches, numbers: range) -> None:
        self._batches = batches
        self._numbers = numbers
        self._at = 0
        self.samples = FIRST
        self._bytes = 0
        self._read = 0

    def next(self) -> Block | None:
        """The next block, None behind the last."""
        if self._at >= len(self._numbers):
            return None
        together = max(1, self.samples // self._batches.batch)
        numbers = self._numbers[self._at : self._at + together]
        self._at += together
        return Block(numbers, *self._batches.several(numbers))

    def learn(self, samples: int, size_bytes: int, most: int = BLOCK) -> None:
        """So many samples had so many bytes: the next block has about ``most`` bytes."""
        self._read += samples
        self._bytes += size_bytes
        wanted = most * self._read // max(1, self._bytes)
        # Not at once: the first samples need not be like the others.
        self.samples = max(1, min(MOST, wanted, 4 * self.samples))


def read_blocks(
    reader: EpochReader, agenda: Agenda, times: Times, budget: int
) -> Generator[tuple[Block, list[Any]], None, None]:
    """(block, its samples), in order. ``budget`` is bytes to read ahead, 0 to read nothing ahead. Whoever takes them
    closes this before ``reader``."""
    slow = SLOW if getattr(reader, "waits", False) else 0
    while not budget or slow < SLOW:
        block = agenda.next()
        if block is None:
            return
        watch, moved = Watch(), METER.bytes
        samples = reader.read(block.positions)
        times.reading += watch.seconds
        times.bytes += METER.bytes - moved
        times.samples += len(samples)
        agenda.learn(len(samples), METER.bytes - moved)
        slow = slow + 1 if watch.has_waited else 0
        yield block, samples
        del samples
    from wdscli.loader.read.ahead import Ahead

    with Ahead(reader, agenda, budget, times) as ahead:
        yield from ahead


def by_batch(blocks: Iterable[tuple[Block, list[Any]]]) -> Iterator[Read]:
    """The same, batch by batch."""
    for block, samples in blocks:
        if len(block.numbers) == 1:
            yield Read(block.numbers[0], block.positions, samples)
            continue
        rest = iter(samples)
        del samples
        first = 0
        for number, count in zip(block.numbers, block.counts):
            yield Read(number, block.positions[first : first + count], list(islice(rest, count)))
            first += count
