"""The samples of a mix by position: which set each is of, and which sample of which of the set's epochs.

What it is: :class:`MixSource`, a source of positions like any other, so that a mix is resumed, shared among ranks and
workers and mixed again like a single set. How: :class:`~wdscli.loader.order.schedule.Schedule` says which set gives
position p and how many it gave before; every set is an endless line of its own epochs, and each epoch of the mix takes
the next stretch of it (all epochs of a set are of one length). So a larger set goes on where the last epoch left it,
and a shorter one begins its next epoch, in that epoch's order, when it is used up. It must not know how the samples of
a set are had, nor stages."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from wdscli.errors import UsageError
from wdscli.loader.order.schedule import Schedule, Stop
from wdscli.loader.read.failures import Failed, Policy, Replacing, as_it_is, instead
from wdscli.loader.read.source import EpochReader, PositionSource
from wdscli.loader.stages.flow import DROPPED
from wdscli.loader.stages.per_sample import Label, named

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    I64: TypeAlias = NDArray[numpy.int64]

Per = Literal["sample", "batch"]
TOLD = 400
"""Bytes of what a state says of the sets; above, it has a digest of them."""


class Tagged(NamedTuple):
    """A sample, or a batch, and the number of the set it is of."""

    set: int
    item: Any


class MixSource:
    """Sources as one. ``run`` positions at a time are of one set. ``seed`` None takes turns. ``label`` is the field
    that says the name of a sample's set, None for none. ``policies`` say for each set what becomes of samples that
    cannot be read; where they raise, or say nothing, whoever reads the mix decides."""

    def __init__(
        self,
        sources: Sequence[PositionSource],
        quotas: Sequence[int],
        *,
        stop: Stop = "first",
        seed: int | None = 0,
        per: Per = "sample",
        names: Sequence[str] = (),
        label: str | None = None,
        policies: Sequence[Policy] = (),
    ) -> None:
        self.sources = tuple(sources)
        self.policies = tuple(policies)
        self.names, self.label = tuple(names), label
        self.seed = seed or 0
        self.run = 1
        self._quotas = tuple(quotas)
        self._stop: Stop = stop
        self._how: dict[str, Any] = {"stop": stop, "seed": seed, "per": per}
        self._schedules: dict[int, Schedule] = {}

    @property
    def is_shuffled(self) -> bool:
        """Whether no set needs to be shuffled any more."""
        return all(getattr(source, "is_shuffled", False) for source in self.sources)

    def identity(self) -> dict[str, Any]:
        sets = [[quota, source.identity()] for quota, source in zip(self._quotas, self.sources)]
        return {"mix": told(sets), **self._how}

    def in_runs(self, run: int) -> None:
        """Take ``run`` positions of a set at a time, here and in the mixes that are mixed here."""
        if self._how["per"] == "batch":
            self.run = run
            for source in self.sources:
                if isinstance(source, MixSource):
                    source.in_runs(run)

    def schedule(self) -> Schedule:
        """What every epoch takes of each set, in runs."""
        known = self._schedules.get(self.run)
        if known is None:
            up = 0 if self._stop == "first" else self.run - 1
            lengths = [(source.length(0) + up) // self.run for source in self.sources]
            if self._stop != "all" and 0 in lengths:
                which = lengths.index(0)
                name = self.names[which] if which < len(self.names) else which
                raise UsageError(f"set {name} of the mix has no samples", hint="leave it out")
            known = Schedule(self._quotas, lengths, stop=self._stop, seed=self._how["seed"])
            self._schedules = {self.run: known}
        return known

    def length(self, epoch: int) -> int:
        return self.schedule().length * self.run

    def reader(self, epoch: int) -> EpochReader:
        return _MixReader(self, self._stop == "all", epoch)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_schedules": {}}


class _MixReader:
    def __init__(self, source: MixSource, apart: bool, epoch: int) -> None:
        self._source = source
        self._schedule = source.schedule()
        self._run = source.run
        self._apart = apart
        """Whether no run has samples of two epochs of a set: the last is short instead."""
        self._epoch = epoch
        self._lengths = [one.length(0) for one in source.sources]
        self._readers: list[OrderedDict[int, EpochReader]] = [OrderedDict() for _ in source.sources]

    def read(self, positions: I64) -> list[Any]:
        import numpy

        runs, within = numpy.divmod(positions, self._run)
        sets, places = self._schedule.locate(runs)
        places = places * self._run + within
        found: list[Any] = [DROPPED] * len(positions)
        for number in numpy.unique(sets).tolist():
            rows = numpy.flatnonzero(sets == number)
            for row, item in zip(rows.tolist(), self._of_set(number, places[rows])):
                found[row] = self._tagged(number, item)
        return found

    def _tagged(self, number: int, item: Any) -> Any:
        """A sample with its set, said in it too where that is wanted; anything else as it is."""
        if item is DROPPED or type(item) is Failed:
            return item
        tagged = Tagged(number, item)
        if self._source.label is not None:
            label_sample(self._source.names, self._source.label, tagged)
        return tagged

    def instead(self, position: int, step: int) -> Any:
        """A sample of the same epoch of the same set."""
        import numpy

        run, within = divmod(position, self._run)
        sets, places = self._schedule.locate(numpy.array([run], dtype=numpy.int64))
        number = int(sets[0])
        epochs, at = self._in_epochs(number, places * self._run + within)
        reader = self._reader(number, int(epochs[0]))
        return self._tagged(number, instead(reader, int(at[0]), step, self._lengths[number]))

    def _of_set(self, number: int, places: I64) -> list[Any]:
        """Samples of one set, by their numbers in this epoch of the mix."""
        import numpy

        found: list[Any] = [DROPPED] * len(places)
        epochs, at = self._in_epochs(number, places)
        inside = at < self._lengths[number]
        for epoch in numpy.unique(epochs[inside]).tolist():
            rows = numpy.flatnonzero(inside & (epochs == epoch))
            for row, item in zip(rows.tolist(), self._of_epoch(number, epoch, at[rows])):
                found[row] = item
        return found

    def _in_epochs(self, number: int, places: I64) -> tuple[I64, I64]:
        """(epoch of the set, position in it)."""
        import numpy

        if self._apart:
            return numpy.full_like(places, self._epoch), places
        length = self._lengths[number]
        first, skipped = divmod(self._epoch * self._schedule.taken[number] * self._run, length)
        epochs, at = numpy.divmod(places + skipped, length)
        return epochs + first, at

    def _of_epoch(self, number: int, epoch: int, positions: I64) -> list[Any]:
        """Samples of one set, where something is done already about those that cannot be read."""
        reader = self._reader(number, epoch)
        items: list[Any] = reader.read(positions)
        if number < len(self._source.policies):
            policy = self._source.policies[number]
            for row, item in enumerate(items):
                if type(item) is Failed and not policy.raises:
                    other = partial(instead, reader)
                    made = Replacing(policy, as_it_is, other, self._lengths[number]).made
                    items[row] = next(iter(made(int(positions[row]), item)), DROPPED)
        return items

    def _reader(self, number: int, epoch: int) -> EpochReader:
        readers = self._readers[number]
        if epoch not in readers:
            readers[epoch] = self._source.sources[number].reader(epoch)
            if len(readers) > 2:
                readers.popitem(last=False)[1].close()
        readers.move_to_end(epoch)
        return readers[epoch]

    def close(self) -> None:
        for readers in self._readers:
            for reader in readers.values():
                reader.close()
            readers.clear()


def told(sets: list[Any]) -> list[Any]:
    """What a state tells of the sets of a mix: all of it when that is little, else their number and a digest."""
    from json import dumps

    text = dumps(sets, sort_keys=True)
    if len(text) <= TOLD:
        return sets
    from xxhash import xxh3_128_hexdigest

    return [len(sets), f"xxh3_128:{xxh3_128_hexdigest(text.encode())}"]


def label_sample(names: Sequence[str], label: str, tagged: Tagged) -> None:
    """Say in the sample which set it is of: ``outer/inner`` where both mixes say it in the same field."""
    sample = tagged.item
    while isinstance(sample, Tagged):
        sample = sample.item
    name = names[tagged.set]
    if label in sample and not isinstance(sample[label], Label):
        raise UsageError(
            f'label="{label}": {named(sample)} has a field of this name', hint="give the label another name"
        )
    sample[label] = Label(f"{name}/{sample[label]}" if label in sample else name)
