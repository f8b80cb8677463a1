"""A mix of sets of which some can only be streamed: each worker mixes what it has of each set.

What it is: :class:`MixStream`, a stream like :class:`~wdscli.loader.streams.ShardStream`. How: the sets stand in blocks
as in :mod:`wdscli.loader.order.schedule`, so that the shares are exact in what every worker gives, and a set's samples
come in the order in which the set deals them to that worker. How many there are nobody knows before they end: a phase
ends where a set should give one and has none. A set that has nothing for a worker is left out there. Every epoch begins
each set's own. It must not know what stages do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, count, islice
from typing import TYPE_CHECKING, Any, TypeAlias

from wdscli.errors import UsageError
from wdscli.loader.dataset import PositionDataset
from wdscli.loader.mixing.mixsource import Tagged, label_sample, told
from wdscli.loader.order.order import key
from wdscli.loader.order.schedule import MIX, Pattern, Stop
from wdscli.loader.order.span import ENDLESS
from wdscli.loader.place.ranks import Share
from wdscli.loader.read.failures import Failed, Policy
from wdscli.loader.read.source import EpochReader
from wdscli.loader.stages.flow import DROPPED
from wdscli.loader.stages.fluent import Epochs
from wdscli.loader.stages.handlers import StopEpoch
from wdscli.loader.streams import BUFFERED, PASS, Trail, buffered

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    I64: TypeAlias = NDArray[numpy.int64]

TOGETHER = 256
"""Samples of an indexed set that are read at once."""
END = object()


class MixStream:
    """Datasets as one stream. The arguments are those of :class:`~wdscli.loader.mixing.mixsource.MixSource`."""

    is_stream = True

    def __init__(
        self,
        parts: Sequence[PositionDataset],
        quotas: Sequence[int],
        *,
        stop: Stop,
        seed: int | None,
        names: Sequence[str],
        label: str | None,
        buffer: tuple[int, int] = (0, 0),
    ) -> None:
        self._parts = tuple(map(_Part, parts))
        self._quotas, self._stop, self._turn = tuple(quotas), stop, seed
        self.seed = seed or 0
        self.names, self.label = tuple(names), label
        self._buffer = buffer
        self.is_shuffled = buffer[0] > 1 or all(part.is_shuffled for part in self._parts)

    def identity(self) -> dict[str, Any]:
        sets = [[quota, part.identity()] for quota, part in zip(self._quotas, self._parts)]
        return {"mix": told(sets), "stop": self._stop, "seed": self._turn, "stream": list(self._buffer)}

    def length(self, epoch: int) -> int:
        """Nobody knows."""
        return ENDLESS

    def reader(self, epoch: int) -> EpochReader:
        """Refused: raises UsageError."""
        raise UsageError("a mix of sets that can only be streamed has no positions")

    def shuffled(self, size: int, initial: int, seed: int) -> MixStream:
        """The same through a buffer."""
        new = object.__new__(MixStream)
        new.__dict__.update(self.__dict__, _buffer=(size, min(initial, size)), is_shuffled=True, seed=seed)
        return new

    def trail(self, known: Sequence[int] | None, wanted: list[int]) -> Trail:
        """To go on is to begin again."""
        return Trail()

    def flow(
        self, epoch: int, passes: int | None, share: Share, policy: Policy, trail: Trail
    ) -> Iterator[Tagged]:
        """What worker ``share`` has of ``passes`` epochs, endless for None. Each set has its own policy."""
        size, initial = self._buffer
        for number in count() if passes is None else range(passes):
            turn = epoch + number * PASS if passes is None else epoch * passes + number
            items = self._of_turn(turn, share)
            if size > 1:
                items = buffered(
                    items, size, initial, key(self.seed, BUFFERED, turn, share.worker, share.rank)
                )
            empty = True
            for item in items:
                empty = False
                yield item
            if empty:
                return

    def _of_turn(self, turn: int, share: Share) -> Iterator[Tagged]:
        walks = [_Walk(part, turn, share) for part in self._parts]
        sets = [number for number, walk in enumerate(walks) if not walk.is_empty]
        phase = 0
        while sets:
            ended = yield from self._of_phase(phase, sets, walks)
            if ended is None or self._stop == "first":
                return
            sets = (
                sets[ended + 1 :] + sets[:ended] if self._turn is None else sets[:ended] + sets[ended + 1 :]
            )
            phase += 1

    def _of_phase(self, phase: int, sets: list[int], walks: list[_Walk]) -> Any:
        """The samples of a phase; gives which of the sets ended it, None for the end of all."""
        ended: set[int] = set()
        for which in self._labels(phase, sets):
            item = walks[sets[which]].take()
            if item is END and self._stop != "repeat":
                return which
            if item is END:
                ended.add(which)
                if len(ended) == len(sets):
                    return None
                item = walks[sets[which]].again()
            if item is not DROPPED:
                tagged = Tagged(sets[which], item)
                if self.label is not None:
                    label_sample(self.names, self.label, tagged)
                yield tagged
        return None

    def _labels(self, phase: int, sets: list[int]) -> Iterator[int]:
        """Which of the sets is next, without end."""
        import numpy

        of_phase = None if self._turn is None else key(self._turn, MIX, phase)
        pattern = Pattern(sets, [self._quotas[number] for number in sets], of_phase)
        for block in count():
            yield from pattern.rows(numpy.array([block], dtype=numpy.int64))[0][0].tolist()


class _Part:
    """One of the sets."""

    def __init__(self, dataset: PositionDataset) -> None:
        self._streams = dataset.is_stream
        self._source: Any = dataset.source if dataset.is_stream else dataset._line(Share())
        self._passes, self._items = dataset._span or Epochs(1, None)
        self._policy = dataset._policy
        self.is_shuffled = bool(getattr(self._source, "is_shuffled", False))

    def identity(self) -> list[Any]:
        return [self._source.identity(), self._passes, self._items]

    def samples(self, turn: int, share: Share) -> Iterator[Any]:
        """What worker ``share`` has of an epoch."""
        if not self._streams:
            return self._by_position(turn, share)
        flow: Iterator[Any] = self._source.flow(turn, self._passes, share, self._policy, Trail())
        if self._items is not None:
            flow = islice(flow, len(range(share.worker, self._items, share.workers)))
        return flow

    def _by_position(self, turn: int, share: Share) -> Iterator[Any]:
        import numpy

        slot, slots = share.worker * share.world + share.rank, share.world * share.workers
        reader, length = self._source.reader(turn), self._source.length(turn)
        try:
            for first in range(slot, length, slots * TOGETHER):
                end = min(length, first + slots * TOGETHER)
                for item in reader.read(numpy.arange(first, end, slots, dtype=numpy.int64)):
                    if type(item) is Failed:
                        self._policy.leave_out(item)
                    else:
                        yield item
        except StopEpoch:
            return
        finally:
            reader.close()


class _Walk:
    """A set as one worker goes through it, as often as it is asked to."""

    def __init__(self, part: _Part, turn: int, share: Share) -> None:
        self._part, self._turn, self._share = part, turn, share
        self._items = part.samples(turn, share)
        first = next(self._items, END)
        self.is_empty = first is END
        self._items = chain([first], self._items)

    def take(self) -> Any:
        """The next sample, or END."""
        return next(self._items, END)

    def again(self) -> Any:
        """The first sample of the next time through."""
        self._turn += PASS
        self._items = self._part.samples(self._turn, self._share)
        return next(self._items, DROPPED)
