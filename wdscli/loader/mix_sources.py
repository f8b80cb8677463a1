"""This module decides which set each sample of a mix comes from, and which sample of this set it is.

:class:`Rules` describe a mix. :class:`MixSource` is a source like any other, so a mix can resume, can be divided among
ranks and workers, and can be part of another mix. If a set can only be streamed, the mix is a :class:`MixStream`, a
stream like :class:`~wdscli.loader.streams.ShardStream`.

By position: :class:`~wdscli.loader.order.schedule.Schedule` chooses the set for position p, and counts the earlier
samples of this set. Each set is an endless sequence of its own epochs, which all have the same length. Each epoch of
the mix takes the next part of this sequence. So a larger set continues where the last epoch of the mix stopped reading
it. When a smaller set ends, it begins its next epoch, in the order of that epoch. With weights that change, the epoch
has no end. With an amount for each set, every epoch of the mix has this amount of each set, taken from new
epochs of the set.

As a stream: each worker mixes the samples that it reads of each set. The sets come in the blocks of the schedule, so
the shares are exact in every worker. The samples of a set come in the order in which the set gives them to this worker.
The number of a set's samples is unknown until the set ends, so a phase ends when the schedule takes a set that has no
samples left. A worker skips a set that has no samples for it. Every epoch of the mix begins an epoch of each set.

This module knows neither how samples are read nor what stages do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import chain, islice
from json import dumps
from typing import Any, Literal, NamedTuple

from xxhash import xxh3_128_hexdigest

from wdscli.arrays import I64, numpy
from wdscli.errors import UsageError
from wdscli.loader.checks import want_word
from wdscli.loader.dataset import PositionDataset
from wdscli.loader.order.order import ENDLESS, gathered, groups
from wdscli.loader.order.schedule import STOPS, Changing, Pattern, Schedule, Stop, quotas_of
from wdscli.loader.order.source import EpochReader, Fact, Passes, PositionSource
from wdscli.loader.place.cuts import Epochs
from wdscli.loader.place.ranks import Batches, Share, Tail
from wdscli.loader.place.state import Place
from wdscli.loader.read.failures import FailedSample, Policy, Replacing, as_it_is
from wdscli.loader.stages.flow import DROPPED, Pipeline
from wdscli.loader.stages.per_sample import Label, named
from wdscli.loader.streams import Stream, in_passes, pass_numbers
from wdscli.shown import shown

Per = Literal["sample", "batch"]
SETS_BYTES = 400
"""The largest size of the sets' identity in a state. If the identity is larger, a state has only a digest of it."""
NAMED = 4
"""The largest number of sets that repr() names."""
END: Any = object()


class SampleOfSet(NamedTuple):
    """A sample or a batch, with the number of its set in the mix."""

    set: int
    value: Any


def amount_of(source: PositionSource, amount: Fraction | int, name: str) -> PositionSource:
    """Return a source that has this amount of ``source`` in each epoch: a number of samples, or a fraction times the
    whole set. It has whole passes, then a random part of one more pass, which is drawn for each epoch. Raises
    UsageError for an endless source, and for an empty source that should give samples."""
    length = source.length(0)
    total = amount if isinstance(amount, int) else round(amount * length)
    if length >= ENDLESS or (total and not length):
        what = "no end" if length else "no samples"
        raise UsageError(f"set {name} of the mix has {what}: choose= and repeat= need a finite set")
    if total == length:
        return source
    passes = max(1, -(-total // length))
    shared = [passes, length]
    if total == passes * length:
        return Passes(source, passes, None, shared)
    base = source.base()
    if isinstance(base, MixSource) and base.run > 1:
        raise UsageError(
            f"set {name} is a mix of whole batches: choose= and repeat= would divide these batches",
            hint="give choose= and repeat= to the inner mix",
        )
    return Passes(source, passes, total, shared, is_drawn=True)


class Rules(NamedTuple):
    """How sets are mixed. ``quotas`` has the number of samples of each set in a block. ``stop`` says when an epoch
    ends. With ``seed`` None, the sets take turns. ``label`` is the field that gets the name of a sample's set, or None.
    If ``amounts`` are given (see :func:`amount_of`), the quotas are computed from them. ``points`` are pairs (step,
    shares of the sets), for weights that change with the step."""

    quotas: Sequence[int]
    stop: Stop = "first"
    seed: int | None = 0
    per: Per = "sample"
    names: Sequence[str] = ()
    label: str | None = None
    amounts: Sequence[Fraction | int] = ()
    points: Sequence[tuple[int, Sequence[int]]] = ()

    @property
    def facts(self) -> str:
        """A description of the mix, for repr()."""
        sets = ", ".join(f"{shown(name)}: {quota}" for quota, name in zip(self.quotas[:NAMED], self.names))
        ellipsis = ", ..." if len(self.quotas) > NAMED else ""
        if self.points:
            ellipsis += f"; weights change up to step {self.points[-1][0]:,}"
        return f"several sets ({sets}{ellipsis}), per={self.per!r}, stop={self.stop!r}, seed={self.seed!r}"

    def check(self) -> None:
        """Raise UsageError for impossible rules."""
        want_word("per", self.per, ("sample", "batch"))
        want_word("stop", self.stop, STOPS)
        label: object = self.label
        if label is not None and (not isinstance(label, str) or label in ("", "__key__", "__url__")):
            raise UsageError(f"label={label!r} cannot be the name of a new field", hint='label="set"')

    def tagged(self, number: int, value: Any) -> SampleOfSet:
        """Return ``item`` with the number of its set. With ``label``, also write the set's name into that field. If an
        inner mix has already written this field, the name is ``outer/inner``."""
        sample, label = value, self.label
        if label is not None:
            while isinstance(sample, SampleOfSet):
                sample = sample.value
            if not isinstance(sample, dict):
                raise UsageError(
                    f'label="{label}" needs samples that are dicts, and set {self.names[number]} has '
                    f"{type(sample).__name__}",
                    hint="leave label= out, or use dicts",
                )
            if label in sample and not isinstance(sample[label], Label):
                raise UsageError(
                    f'label="{label}": {named(sample)} has a field of this name',
                    hint="give the label another name",
                )
            name = self.names[number]
            sample[label] = Label(f"{name}/{sample[label]}" if label in sample else name)
        return SampleOfSet(number, value)

    def identity(self, sets: Sequence[Any]) -> dict[str, Any]:
        """Return the identity of a mix of ``sets``: the identities of all sets, or, if these are too large, the number
        of sets and a digest."""
        mixed_sets: list[Any] = [[quota, set_identity] for quota, set_identity in zip(self.quotas, sets)]
        text = dumps(mixed_sets, sort_keys=True)
        if len(text) > SETS_BYTES:
            mixed_sets = [len(mixed_sets), f"xxh3_128:{xxh3_128_hexdigest(text.encode())}"]
        steps = {"schedule": [[step, *shares] for step, shares in self.points]} if self.points else {}
        return {"mix": mixed_sets, "stop": self.stop, "seed": self.seed, **steps}


class MixedSet(NamedTuple):
    """A set of a mix. ``source`` has its samples. ``policy`` decides about unreadable samples; if it raises errors, the
    policy of the mix decides. ``tail`` says how the set's last global batch ends."""

    source: PositionSource
    policy: Policy
    tail: Tail

    def identity(self, rules: Rules) -> dict[str, Any]:
        """Return the set's identity, and the other facts of the set that the order of the mix depends on."""
        set_facts = self.source.identity()
        source = self.source
        if isinstance(source, Passes) and not source.is_drawn and source.positions is not None:
            set_facts = {**set_facts, "length": source.positions}
        if (rules.per, rules.stop, self.tail) == ("batch", "all", "drop"):
            set_facts = {**set_facts, "tail": "drop"}
        return set_facts


_scheduled = lru_cache(maxsize=32)(Schedule)
_changing = lru_cache(maxsize=32)(Changing)


class MixSource(PositionSource):
    """Several sets as one source. A run is ``batch`` samples for each of ``world`` ranks, and all samples of a run come
    from one set. If weights change with the step, a step has ``step`` runs."""

    def __init__(
        self, sets: Sequence[MixedSet], rules: Rules, batch: int = 1, world: int = 1, step: int = 1
    ) -> None:
        self.is_shuffled = all(mixed_set.source.is_shuffled for mixed_set in sets)
        if rules.amounts:
            named = zip(sets, rules.amounts, rules.names)
            sets = [
                mixed_set._replace(source=amount_of(mixed_set.source, amount, name))
                for mixed_set, amount, name in named
            ]
            rules = rules._replace(
                quotas=quotas_of([max(1, mixed_set.source.length(0)) for mixed_set in sets])
            )
        self.sets, self.rules = tuple(sets), rules
        self.has_same_samples = rules.stop == "all" and all(
            mixed_set.source.has_same_samples for mixed_set in sets
        )
        self.seed, self.facts = rules.seed or 0, rules.facts
        self.run, self._step = batch * world, step
        self._batch, self._share = batch, Share(world=world)

    def identity(self) -> dict[str, Any]:
        return {
            **self.rules.identity([mixed_set.identity(self.rules) for mixed_set in self.sets]),
            "per": self.rules.per,
        }

    def prepare(self, fact: Fact) -> None:
        for name, mixed_set in zip(self.rules.names, self.sets):
            mixed_set.source.prepare(fact.of_set(name))

    def batches(self) -> list[Batches]:
        """Return the batches in an epoch of each set, where a batch is a run. With ``stop="all"`` a set ends; otherwise
        its next epoch follows."""
        tails: dict[Stop, Tail] = {"first": "drop", "repeat": "pad"}
        return [
            Batches(source.length(0), self._batch, self._share, tails.get(self.rules.stop, tail))
            for source, _, tail in self.sets
        ]

    @property
    def has_gaps(self) -> bool:
        """Whether some runs have no samples for some ranks."""
        if any(0 < set_batches.end % self.run < self._share.world for set_batches in self.batches()):
            return True
        sources = [mixed_set.source.base() for mixed_set in self.sets]
        return any(isinstance(source, MixSource) and source.has_gaps for source in sources)

    def schedule(self) -> Schedule | Changing:
        """Return the schedule, which says from which set each run of an epoch comes. Every epoch has the same
        schedule."""
        rules, batches = self.rules, self.batches()
        for name, set_batches in zip(rules.names, batches):
            if rules.stop != "all" and not set_batches.total:
                few = f"{set_batches.length} samples, fewer than a global batch of {self.run}"
                raise UsageError(
                    f"set {name} of the mix has {few if set_batches.length else 'no samples'}",
                    hint="leave it out",
                )
        if rules.points:
            return _changing(tuple(rules.points), self._step, rules.seed)
        lengths = tuple(set_batches.total for set_batches in batches)
        return _scheduled(tuple(rules.quotas), lengths, stop=rules.stop, seed=rules.seed)

    def length(self, epoch: int) -> int:
        return min(ENDLESS, self.schedule().length * self.run)

    def reader(self, epoch: int) -> EpochReader:
        return _MixReader(self, epoch)


class _Interleaved:
    """The positions of ``sets`` sets without end: position ``p * sets + i`` has sample p of set i."""

    length, taken = ENDLESS, None

    def __init__(self, sets: int) -> None:
        self._sets = sets

    def locate(self, positions: I64) -> tuple[I64, I64]:
        """Return two arrays for the positions: the set, and the number of the set's sample."""
        places, sets = numpy.divmod(positions, self._sets)
        return sets, places


class InterleavedSource(MixSource):
    """Several sets as one source, in which :class:`~wdscli.loader.place.mixed.MixedPlan` chooses positions."""

    def schedule(self) -> Any:
        super().schedule()
        return _Interleaved(len(self.sets))


class _MixReader(EpochReader):
    """Reads an epoch of a mix: of each set one epoch, or the next part of its passes without end."""

    def __init__(self, source: MixSource, epoch: int) -> None:
        self._rules, self._policies = source.rules, [mixed_set.policy for mixed_set in source.sets]
        self._schedule, self._run = source.schedule(), source.run
        self._lengths = [set_batches.length for set_batches in source.batches()]
        # With stop="all" no run has samples of two epochs of a set: the set's tail decides how its last run ends.
        self._apart = source.rules.stop == "all"
        self._ends = [set_batches.end if self._apart else ENDLESS for set_batches in source.batches()]
        set_sources = [mixed_set.source for mixed_set in source.sets]
        if not self._apart:
            # The passes of each set have no end, and an epoch of the mix takes the next runs of them.
            taken: Sequence[int | None] = self._schedule.taken or [None] * len(set_sources)
            set_sources = [
                Passes(set_source, None, runs and runs * self._run, [])
                for set_source, runs in zip(set_sources, taken)
            ]
        self._readers = [set_source.reader(epoch) for set_source in set_sources]
        self.waits = any(reader.waits for reader in self._readers)
        self.jumps = any(reader.jumps for reader in self._readers)
        self.sample_bytes = max((reader.sample_bytes for reader in self._readers), default=0.0)

    @property
    def wants_more(self) -> bool:
        return any(reader.wants_more for reader in self._readers)

    def expect(self, positions: I64) -> None:
        sets, places = self._located(positions)
        for number, rows in groups(sets):
            self._readers[number].expect(self._wrapped(number, places[rows]))

    def read(self, positions: I64) -> list[Any]:
        sets, places = self._located(positions)
        return gathered(sets, lambda number, rows: self._of_set(number, places[rows]))

    def about(self, positions: I64, fact: Fact) -> Any:
        sets, places = self._located(positions)

        def of_set(number: int, rows: I64) -> Any:
            about = fact.of_set(self._rules.names[number])
            return self._readers[number].about(self._wrapped(number, places[rows]), about)

        return gathered(sets, of_set)

    def _located(self, positions: I64) -> tuple[I64, I64]:
        """Return two arrays: the set at each position, and the number of the set's sample in this epoch of the mix."""
        runs, within = numpy.divmod(positions, self._run)
        sets, places = self._schedule.locate(runs)
        return sets, places * self._run + within

    def _tagged(self, number: int, sample: Any) -> Any:
        """Return a sample with the number of its set. DROPPED and Failed are returned unchanged."""
        is_sample = sample is not DROPPED and type(sample) is not FailedSample
        return self._rules.tagged(number, sample) if is_sample else sample

    def instead(self, position: int, step: int, length: int) -> Any:
        """Return a substitute from the same epoch of the same set."""
        [number], [place] = self._located(numpy.array([position], dtype=numpy.int64))
        place = self._wrapped(int(number), place)
        substitute = self._readers[number].instead(int(place), step, self._lengths[number])
        return self._tagged(int(number), substitute)

    def _wrapped(self, number: int, places: I64) -> I64:
        """Return ``places`` in a set. If sets end, places after a set's end are wrapped around to its first places."""
        return places % self._lengths[number] if self._apart else places

    def _of_set(self, number: int, places: I64) -> list[Any]:
        """Return samples of one set. The set's policy decides about unreadable samples."""
        tagged: list[Any] = [DROPPED] * len(places)
        rows = (places < self._ends[number]).nonzero()[0]
        places = self._wrapped(number, places)
        policy = self._policies[number]
        samples: list[Any] = self._readers[number].read(places[rows])
        for row, sample in zip(rows.tolist(), samples):
            if type(sample) is FailedSample and not policy.raises:
                instead = self._readers[number].instead
                replacing = Replacing(policy, as_it_is, instead, self._lengths[number])
                sample = next(iter(replacing.made(int(places[row]), sample)), DROPPED)
            tagged[row] = self._tagged(number, sample)
        return tagged

    def close(self) -> None:
        for reader in self._readers:
            reader.close()


class MixStream(Stream):
    """Several datasets as one stream."""

    def __init__(self, parts: Sequence[PositionDataset], rules: Rules) -> None:
        self.facts = f"{rules.facts}, as a stream"
        self._parts = tuple(map(_Part, parts))
        self.rules = rules
        super().__init__(rules.seed or 0, all(part.is_shuffled for part in self._parts))

    def identity(self) -> dict[str, Any]:
        return {
            **self.rules.identity([part.identity() for part in self._parts]),
            "stream": list(self._buffer),
        }

    def flow(self, epoch: int, passes: int | None, share: Share, policy: Policy) -> Iterator[SampleOfSet]:
        """Yield the items of worker ``share`` in ``passes`` epochs. With ``passes`` None, the items never end. Each set
        has its own policy."""

        def of_pass(pass_number: int) -> Iterator[SampleOfSet]:
            samples = self._of_pass(pass_number, share)
            return self.buffered(samples, pass_number, share.worker, share.rank)

        return in_passes(epoch, passes, of_pass)

    def _of_pass(self, pass_number: int, share: Share) -> Iterator[SampleOfSet]:
        sets_passes = [_PassesOfSet(part, pass_number, share) for part in self._parts]
        sets = [number for number, set_passes in enumerate(sets_passes) if not set_passes.is_empty]
        phase = 0
        while sets:
            pattern = Pattern(self.rules.quotas, sets, self.rules.seed, phase)
            ended = yield from self._of_phase(pattern, sets, sets_passes)
            if ended is None or self.rules.stop == "first":
                return
            sets = pattern.remaining(ended)
            phase += 1

    def _of_phase(self, pattern: Pattern, sets: list[int], sets_passes: list[_PassesOfSet]) -> Any:
        """Yield the samples of a phase. Return the set that ended the phase, or None if all sets have ended."""
        ended: set[int] = set()
        for which in pattern.labels():
            sample = next(sets_passes[sets[which]].items, END)
            if sample is END and self.rules.stop != "repeat":
                return which
            if sample is END:
                ended.add(which)
                if len(ended) == len(sets):
                    return None
                sample = sets_passes[sets[which]].again()
            if sample is not DROPPED:
                yield self.rules.tagged(sets[which], sample)
        return None


class _Part:
    """A set of shards from which the mix reads samples itself."""

    def __init__(self, dataset: PositionDataset) -> None:
        self._dataset, self._streams = dataset, dataset.is_stream
        self._source: Any = dataset.source if dataset.is_stream else dataset._viewed_source(Share())
        self.is_shuffled = bool(self._source.is_shuffled)
        self._span = dataset._span or Epochs(1, None)
        self._policy = dataset._policy

    def identity(self) -> list[Any]:
        return [self._source.identity(), *self._span.identity()]

    def samples(self, pass_number: int, share: Share) -> Iterator[Any]:
        """Return the samples of worker ``share`` in an epoch."""
        if not self._streams:
            # The mix runs the stages of the set, and no rank repeats a sample.
            bare = self._dataset._with(pipeline=Pipeline(), _tail="uneven", _batch_size=None)
            return chain.from_iterable(
                samples for _, samples in bare._singles(Place(pass_number, share.worker), share)
            )
        flow: Iterator[Any] = self._source.flow(pass_number, self._span.passes, share, self._policy)
        return islice(flow, self._span.of_worker(share))


class _PassesOfSet:
    """One worker's passes through a set, without end. ``items`` yields the rest of the current pass."""

    def __init__(self, part: _Part, first_pass: int, share: Share) -> None:
        self._passes = (part.samples(number, share) for number in pass_numbers(first_pass, None))
        items = next(self._passes)
        first = next(items, END)
        self.is_empty = first is END
        self.items: Iterator[Any] = chain([first], items)

    def again(self) -> Any:
        """Begin the next pass, and return its first sample."""
        self.items = next(self._passes)
        return next(self.items, DROPPED)
