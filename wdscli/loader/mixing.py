"""This module mixes several sets by weight, with :func:`mix`.

:class:`Mixed` is the dataset of a :class:`~wdscli.loader.mix_sources.MixSource`. Each sample carries the number of its
set. The stages of its set run first, and then the stages of the mix. This module does not know the order of samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias, TypeVar

from wdscli.errors import UsageError
from wdscli.loader.by_class import by_class
from wdscli.loader.checks import want_whole
from wdscli.loader.dataset import PositionDataset
from wdscli.loader.indexed import IndexedDataset
from wdscli.loader.mix_sources import (
    InterleavedSource,
    MixedSet,
    MixSource,
    MixStream,
    Per,
    Rules,
    SampleOfSet,
)
from wdscli.loader.order.schedule import Stop, Weight, exact, quotas_of, shares_of
from wdscli.loader.order.source import PositionSource, seen_as
from wdscli.loader.place.cuts import Epochs, EpochSlice
from wdscli.loader.place.mixed import MixedPlans
from wdscli.loader.place.ranks import Share, Tail
from wdscli.loader.read.failures import SkipCounts
from wdscli.loader.stages.flow import DROPPED, BatchStage, Item, Pipeline, Spread
from wdscli.loader.stages.fluent import Fluent
from wdscli.loader.torch_loader import WebLoader
from wdscli.loader.webdataset import WebDataset
from wdscli.shown import shown

Self = TypeVar("Self", bound="Mixed[Any]")
USAGE = "mix({address: weight, ...}) or mix({name: (dataset, weight), ...})"
NAMED_USAGE = 'mix({"a": dataset, "b": dataset}, repeat={"a": 2}), or weights=[(0, {"a": 1, "b": 0}), ...]'

Part: TypeAlias = "PositionDataset | str | list[str]"


@dataclass(frozen=True)
class _OfSample:
    """A stage that runs the stages of the sample's own set. With ``keep``, the result keeps the number of the set,
    which :class:`_OwnBatchStage` needs."""

    pipelines: tuple[Pipeline, ...]
    keep: bool
    __name__ = "each set's own stages"

    def __call__(self, tagged: SampleOfSet) -> Any:
        number, sample = tagged
        for function in self.pipelines[number].before:
            sample = function(sample)
            if sample is DROPPED:
                return DROPPED
        return SampleOfSet(number, sample) if self.keep else sample


class _OwnBatchStage(BatchStage):
    """A batch stage for batches with samples of only one set. For each batch, the stage runs the batch stage of the
    batch's own set, which ``collate`` returns for the set's number."""

    def made(self, items: list[SampleOfSet], sample_count: int) -> list[Any]:
        if not items:
            return []
        number = items[0].set
        batch: BatchStage = self.collate(number)
        return [
            SampleOfSet(number, result)
            for result in batch.made([sample for _, sample in items], sample_count)
        ]


@dataclass(frozen=True)
class _OfBatch:
    """A stage of batches that runs the stages after the batch stage in the pipeline of the batch's own set.
    ``is_single`` is true if no set makes several items from one batch."""

    pipelines: tuple[Pipeline, ...]
    is_single: bool
    __name__ = "each set's own stages of batches"

    def __call__(self, tagged: SampleOfSet) -> Any:
        batches = self.pipelines[tagged.set].after_batch([tagged.value])
        return batches if not self.is_single else batches[0] if batches else DROPPED


class Mixed(WebDataset[Item]):
    """The dataset that :func:`mix` returns, with the samples of several datasets, after the stages of their own
    datasets."""

    def __init__(
        self,
        parts: Sequence[PositionDataset],
        rules: Rules,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        tail: Tail | None = None,
    ) -> None:
        rules.check()
        self.rules = rules
        self._parts = tuple(parts)
        rank, world_size = _ranks(parts, rank, world_size)
        pipelines = tuple(part.pipeline for part in parts)
        if rules.per == "sample":
            self.pipeline = _by_sample(pipelines)
            tail = tail or _agreed("tail", {part._tail for part in parts} - {None})
        else:
            self.pipeline = _by_batch(pipelines, rules)
        self._tail = tail
        together = self._batch_size = _agreed("batch_size", {part._batch_size for part in parts} - {None})
        source: Any = MixStream(parts, rules) if self._streams() else self._mixed(Share())
        PositionDataset.__init__(
            self, source, rank=rank, world_size=world_size, tail=tail, batch_size=together
        )
        self._split = _agreed("nodesplitter", {part._split for part in parts})

    def _streams(self) -> bool:
        """Return whether one of the sets can only be streamed. Raises UsageError for a stream if the rules of the mix
        need random access."""
        if not any(part.is_stream for part in self._parts):
            return False
        if self.rules.amounts or self.rules.points:
            raise UsageError(
                "repeat=, choose= and weights= need sets with random access, not streams", hint="leave it out"
            )
        if self.rules.per == "batch" or self._tail in ("even", "drop", "pad"):
            what = 'per="batch"' if self.rules.per == "batch" else f'tail="{self._tail}"'
            raise UsageError(
                f"{what} needs sets with random access; some of these sets can only be streamed",
                hint="leave it out",
            )
        return True

    def _sets(self) -> list[PositionDataset]:
        """Return the sets. A set without a tail of its own gets the tail of the mix."""
        tail = self._tail
        return [part if part._tail or not tail else part._with(_tail=tail) for part in self._parts]

    def _mixed(self, share: Share) -> MixSource:
        """Return the sets as one source, for the numbers of ranks and workers in ``share``."""
        alone = share._replace(rank=0, worker=0)
        sets = [MixedSet(part._viewed_source(alone), part._policy, part.tail) for part in self._sets()]
        size = self._together if self.pipeline.batch is None else self.pipeline.batch.size
        if isinstance(self._plans, MixedPlans):
            return InterleavedSource(sets, self.rules)
        if self.rules.per == "sample" or self.pipeline.batch is None:
            return MixSource(sets, self.rules, step=size * share.world)
        return MixSource(sets, self.rules, size, share.world)

    def _base(self, share: Share) -> PositionSource:
        if self.is_stream:
            return self.source
        has_size = self._batch_size is not None or self.pipeline.batch is not None
        has_steps = has_size if self._plans is None else isinstance(self._plans, MixedPlans)
        if self.rules.points and not has_steps:
            raise UsageError(
                "mix(weights=) counts global batches, so all batches must have the same known size",
                hint='mix(...).batched(n), batch_size=n for a DataLoader, or per="batch" for sets of packs',
            )
        mixed = self._mixed(share)
        for cut in self._cuts:
            if isinstance(cut, Epochs) and cut.samples and (cut.items or 0) % mixed.run:
                raise UsageError(
                    f"with_epoch(samples={cut.items}) is not a multiple of the global batch of {mixed.run}",
                    hint="with_epoch(batches=n)",
                )
        return self._apart(seen_as(self.source, mixed))

    def __len__(self) -> int:
        """Return the length like any dataset. Also raises TypeError if some batches have no samples for some ranks."""
        if self._length is None and not self.is_stream and self._mixed(self._share()).has_gaps:
            raise TypeError(
                'with tail="uneven", ranks have different lengths; call with_length(n) to set one length'
            )
        return super().__len__()

    @property
    def tail(self) -> Tail:
        """How an epoch treats an incomplete last global batch: "uneven" if some ranks may lack a batch of a set."""
        uneven = self.rules.per == "batch" and any(part.tail == "uneven" for part in self._sets())
        return "uneven" if uneven else super().tail

    def _of_workers(self: Self, workers: int) -> Self:
        if not self._by_worker:
            return self
        parts = tuple(part._of_workers(workers) for part in self._parts)
        return super()._of_workers(workers)._with(_parts=parts)

    @property
    def _by_worker(self) -> bool:
        """Whether an epoch is longer with more workers."""
        return super()._by_worker or any(part._by_worker for part in self._parts)

    def _refuse_after_slice(self, stage: str) -> None:
        super()._refuse_after_slice(stage)
        if self.rules.points and not self.source.is_shuffled:
            raise UsageError(
                f"{stage}() cannot follow a mix whose weights change", hint=f"call {stage}() on the sets"
            )
        is_shuffled = stage == "shuffle" and self.source.is_shuffled
        if self.rules.per == "batch" and not is_shuffled:
            raise UsageError(
                f"{stage}() cannot follow a mix of whole batches",
                hint=f"call {stage}() on the sets, before batched()",
            )

    @property
    def _replaces(self) -> bool:
        """Whether the mix or one of its sets may replace a sample by a substitute."""
        return super()._replaces or any(part._replaces for part in self._parts)

    @property
    def _skips(self) -> bool:
        """Whether all sets leave out samples that cannot be used."""
        return all(part._skips for part in self._parts)

    def mcached(self) -> Any:
        """Raises UsageError."""
        raise UsageError("mcached() cannot follow mix()", hint="call it on the datasets that are mixed")

    @property
    def _all_counts(self) -> list[SkipCounts]:
        """The counters of skipped samples, including the counters of the sets' own stages."""
        return [*super()._all_counts, *(count for part in self._parts for count in part._all_counts)]


def _ranks(
    parts: Sequence[PositionDataset], rank: int | None, world: int | None
) -> tuple[int | None, int | None]:
    """Return the rank and world size that the arguments of :func:`mix` or its sets have. Raises UsageError if the
    values differ."""
    ranks = {(part._rank, part._world) for part in parts}
    if rank is not None:
        ranks = {(rank, world), *ranks} - {(None, None)}
    if len(ranks) > 1:
        raise UsageError(
            "the sets of a mix belong to different ranks: "
            + ", ".join(f"rank={number} of {total}" for number, total in sorted(ranks, key=str)),
            hint="give rank= and world_size= only to mix(), not to the sets",
        )
    return ranks.pop()


def _agreed(argument: str, values: set[Any]) -> Any:
    """Return the one value in ``values``, or None if there is no value. Raises UsageError, which names the argument, if
    the sets of a mix have several values."""
    if len(values) > 1:
        raise UsageError(
            f"the sets of a mix differ in {argument}=: {', '.join(sorted(map(str, values)))}",
            hint="give all of them the same value",
        )
    return next(iter(values), None)


def _by_sample(pipelines: tuple[Pipeline, ...]) -> Pipeline:
    for pipeline in pipelines:
        if pipeline.batch is not None:
            raise UsageError(
                "batches cannot be mixed sample by sample",
                hint='call batched() on the mix, or mix(..., per="batch")',
            )
    return Pipeline(before=(_OfSample(pipelines, keep=False),))


def _by_batch(pipelines: tuple[Pipeline, ...], rules: Rules) -> Pipeline:
    batches = []
    for pipeline in pipelines:
        if pipeline.batch is None:
            raise UsageError('mix(per="batch") needs datasets of batches', hint="call batched() on each")
        batches.append(pipeline.batch)
    plans = None
    if _has_own_sizes(batches):
        points = rules.points or [(0, rules.quotas)]
        plans = MixedPlans([batch.plans or batch.size for batch in batches], points)
    several = any(pipeline.spreads for pipeline in pipelines)
    last = _OfBatch(pipelines, is_single=not several)
    partial = all(batch.partial for batch in batches)
    return Pipeline(
        before=(_OfSample(pipelines, keep=True),),
        batch=_OwnBatchStage(batches[0].size, batches.__getitem__, partial, plans),
        after=(Spread(last) if several else last,),
    )


def _has_own_sizes(batches: Sequence[BatchStage | None]) -> bool:
    """Return whether batches have several sizes, as packs have."""
    return len({batch and batch.size for batch in batches}) > 1 or any(
        batch is not None and batch.plans is not None for batch in batches
    )


def _without_end(parts: Sequence[PositionDataset], rules: Rules, stop: Stop | None) -> Rules:
    """Return the rules for a mix of batches of several sizes. Raises UsageError for rules that need an end."""
    if stop not in (None, "repeat") or rules.amounts:
        raise UsageError(
            "a mix of packs or of batches of several sizes has no end: its sets repeat",
            hint="leave out stop=, repeat= and choose=; with_epoch(batches=n) sets an end",
        )
    for name, part in zip(rules.names, parts):
        if isinstance(part._plans, MixedPlans):
            raise UsageError(
                f"set {name} is a mix of packs or of batches of several sizes", hint="mix its sets directly"
            )
        cut = part._cuts and part._plans is not None
        if cut and any(isinstance(each, EpochSlice) or each.counts_batches for each in part._cuts):
            raise UsageError(
                f"set {name} of the mix has a slice() or with_epoch() of its batches",
                hint="call slice() before the batches are made, and with_epoch() on the mix",
            )
    return rules._replace(stop="repeat")


def mix(
    datasets: Any,
    *,
    by: str | None = None,
    stop: Stop | None = None,
    repeat: Mapping[str, Weight] | None = None,
    choose: Mapping[str, int] | int | None = None,
    weights: Sequence[tuple[int, Mapping[str, Weight]]] | Mapping[Any, Weight] | None = None,
    seed: int | None = 0,
    per: Per = "sample",
    label: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    tail: Tail | None = None,
    **how: Any,
) -> WebDataset[Any]:
    """Mix samples of several sets by weight. The order is the same for any numbers of ranks and workers, and a mix
    resumes like a single set.

    ``datasets`` is a dict ``{address: weight}``, ``{dataset: weight}`` or ``{name: (address or dataset, weight)}``.
    ``datasets`` may also be a list of pairs ``(address or dataset, weight)``, or a list of addresses and datasets,
    which then have equal weights. Addresses become ``WebDataset(address, seed=seed, **how)``. The stages of a dataset
    run only on the samples of that dataset. An :class:`~wdscli.loader.indexed.IndexedDataset`, or a view of it, keeps
    its order unless ``mix(...).shuffle()`` changes the order.

    Weights are exact: with 7 and 3, every ten samples have seven samples of the first set and three samples of the
    second set. ``seed`` decides the order of these ten. With ``seed=None``, the sets take turns.

    Three arguments can replace the weights in ``datasets``. Then ``datasets`` is ``{name: address or dataset}``, or a
    list of addresses and datasets, with the names ``"0"``, ``"1"``, ... With ``repeat={name: 1.5}`` an epoch has all
    samples of the set once, and a random half of them a second time. With ``choose={name: 40}`` an epoch has 40 random
    samples of the set. Each epoch draws new samples. An epoch has all samples of the other sets once. ``weights=[(0,
    {"a": 1, "b": 0}), (10_000, {"a": 1, "b": 1})]`` gives the weights of all sets at some steps; between two such steps
    the shares change linearly. A step is a global batch, counted from the first epoch on. With ``weights`` sets repeat
    and the epoch has no end; ``with_epoch`` sets an end.

    ``mix(data, by="cls")`` balances the classes of one set: an address, or a dataset without batches. Every class has
    an equal share, or the share in ``weights={"cat": 2, "dog": 1}``. An epoch has as many samples as the set, or
    ``choose=10`` of each class. ``by`` may be any expression, such as ``"json.label"``. The result is a dataset as
    before, with its stages. With ``stop="first"``, an epoch ends before the first class repeats a sample, with
    ``"repeat"`` when all classes have been read.

    ``stop`` says when an epoch ends. With ``"first"``, the epoch ends when the next sample would come from a set that
    has no samples left. With ``"all"``, the epoch ends when all sets have ended; when a set ends, the other sets get
    its share. With ``"repeat"``, the epoch ends when every set was read at least once; until then, shorter sets repeat,
    each time in the order of their next epoch. With ``"first"`` and ``"repeat"``, the next epoch continues each set
    where this epoch ended.

    ``per="batch"`` mixes whole batches: all samples of a global batch come from one set. The sets may have packs, or
    batches of several sizes. Then the shares are shares of length, sets repeat, and the epoch has no end. With
    ``per="batch"``, ``tail`` decides about the last global batch of each set that has no ``tail`` of its own.
    ``label`` names a new field, which gets the name of the sample's set.

    If a set can only be streamed, each worker mixes the samples that it reads of each set, with exact shares. A state
    is then valid only for the same numbers of ranks and workers, and every epoch of the mix begins an epoch of each
    set.

    Generators, plain pipelines, other iterables, and datasets with a generator in ``compose`` have no exact places, and
    are an error; ``wds.RandomMix`` and ``wds.RoundRobin`` mix them.

    >>> from wdscli.shards import ShardWriter
    >>> folder = getfixture("tmp_path")
    >>> for name, count in ("a", 7), ("b", 9):
    ...     with ShardWriter(f"{folder}/{name}-%06d.tar") as writer:
    ...         for number in range(count):
    ...             writer.write(f"{name}{number}", {"cls": b"0"})
    >>> data = mix({f"{folder}/a-manifest.json": 0.7, f"{folder}/b-manifest.json": 0.3})
    >>> [sample["__key__"] for sample in data]
    ['a0', 'a1', 'a2', 'a3', 'b0', 'b1', 'a4', 'b2', 'a5', 'a6', 'b3']
    """
    if by is not None:
        _want_none({"repeat": repeat, "label": label, "per": None if per == "sample" else per})
        if isinstance(datasets, (str, list)):
            datasets = WebDataset(datasets, seed=seed, rank=rank, world_size=world_size, tail=tail, **how)
        else:
            _want_none({"rank": rank, "world_size": world_size, "tail": tail, **how})
        balanced: WebDataset[Any] = by_class(datasets, by, weights, choose, stop, seed)
        return balanced
    if isinstance(choose, int):
        raise UsageError(f"choose={choose} needs by=", hint=NAMED_USAGE)
    # The names are read before a set is opened, so that a missing weight is reported first.
    if repeat is None and choose is None and weights is None:
        names, parts, shares = _named(datasets)
        rules = Rules(quotas_of(shares), "first" if stop is None else stop, seed, per, names, label)
    else:
        names, parts, _ = _named(datasets, has_weights=False)
        amounts = _amounts(names, repeat or {}, choose or {}) if weights is None else ()
        points = () if weights is None else _points(names, weights)
        end: Stop = "repeat" if points else "all"
        if stop not in (None, end) or (points and (repeat or choose)):
            raise UsageError(
                f'repeat= and choose= cannot be combined with weights=, and stop= must be "{end}"',
                hint="give one of them",
            )
        rules = Rules((1,) * len(names), end, seed, per, names, label, amounts, points)
    if how and not any(isinstance(part, (str, list)) for part in parts):
        raise UsageError(
            f"mix({min(how)}=) needs addresses of shards, not datasets",
            hint=f"give {min(how)}= to the datasets that are mixed",
        )
    opened = [_opened(part, seed, how) for part in parts]
    if per == "batch" and _has_own_sizes([part.pipeline.batch for part in opened]):
        rules = _without_end(opened, rules, stop)
    return Mixed(opened, rules, rank=rank, world_size=world_size, tail=tail)


def _want_none(arguments: Mapping[str, Any]) -> None:
    """Raise UsageError for an argument that has no meaning with ``by``."""
    named = [name for name, value in arguments.items() if value is not None]
    if named:
        raise UsageError(
            f"mix(by=, {named[0]}=) cannot be combined",
            hint=f"leave it out, or give {named[0]}= to the dataset",
        )


def _named(datasets: Any, has_weights: bool = True) -> tuple[list[str], list[Part], list[Weight]]:
    """Return the names, the datasets and the weights in ``datasets``. Without ``has_weights``, all weights are 1."""
    if isinstance(datasets, (str, Fluent)) or not isinstance(datasets, Iterable):
        raise UsageError(f"mix() needs several sets, not {_shown(datasets)}", hint=USAGE)
    is_mapping = isinstance(datasets, Mapping)
    items = [*datasets.items()] if isinstance(datasets, Mapping) else [(part, part) for part in datasets]
    if not items:
        raise UsageError("a mix needs at least one set", hint=USAGE)
    if is_mapping and not has_weights and not all(isinstance(name, str) for name in datasets):
        raise UsageError("each set of this mix needs a name", hint=NAMED_USAGE)
    rows = [(name, value, 1) for name, value in items]
    if has_weights and is_mapping:
        rows = [(name, *_pair(value, name)) for name, value in items]
    elif has_weights:
        rows = [
            (part[0], *_pair(part, None)) if isinstance(part, tuple) else (part, part, 1) for part, _ in items
        ]
    names = [name if isinstance(name, str) else str(number) for number, (name, _, _) in enumerate(rows)]
    weighted = next((name for name, row in zip(names, rows) if isinstance(row[1], tuple)), None)
    if weighted is not None and not has_weights:
        raise UsageError(f"set {weighted} of the mix has a weight", hint=NAMED_USAGE)
    return names, [part for _, part, _ in rows], [weight for _, _, weight in rows]


def _amounts(
    names: Sequence[str], repeat: Mapping[str, Weight], choose: Mapping[str, int]
) -> tuple[Fraction | int, ...]:
    _check_names("repeat=", repeat, names, every=False)
    _check_names("choose=", choose, names, every=False)
    both = sorted({*repeat} & {*choose})
    if both:
        raise UsageError(f"repeat= and choose= both name the set {both[0]}", hint="give one of them")
    return tuple(
        want_whole(f"choose: {name}", choose[name], 1)
        if name in choose
        else exact(repeat.get(name, 1), "repeat=")
        for name in names
    )


def _points(names: Sequence[str], weights: Any) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Return pairs (step, shares of all sets) from the argument ``weights``. Raises UsageError."""
    points: list[tuple[int, tuple[int, ...]]] = []
    for point in weights if isinstance(weights, (list, tuple)) else [weights]:
        if not (isinstance(point, tuple) and len(point) == 2 and isinstance(point[1], Mapping)):
            raise UsageError(f"weights={weights!r} is not a list of steps and weights", hint=NAMED_USAGE)
        step = want_whole("weights: step", point[0], 0)
        if points and step <= points[-1][0]:
            raise UsageError(
                f"weights: step {step} is listed after step {points[-1][0]}", hint="the steps must increase"
            )
        _check_names(f"weights of step {step}", point[1], names, every=True)
        points.append((step, shares_of([point[1][name] for name in names])))
    if not points:
        raise UsageError("weights= is empty", hint=NAMED_USAGE)
    unused = [name for number, name in enumerate(names) if not any(shares[number] for _, shares in points)]
    if unused:
        raise UsageError(f"set {unused[0]} of the mix has the weight 0 at all steps", hint="leave it out")
    return tuple(points)


def _check_names(what: str, values: Mapping[str, Any], names: Sequence[str], *, every: bool) -> None:
    """Raise UsageError for unknown names, and with ``every`` also for missing names."""
    odd = sorted({*values} - {*names}, key=str) or (sorted({*names} - {*values}) if every else [])
    if odd:
        verb = "has no set" if odd[0] in names else "names a set that the mix does not have:"
        raise UsageError(f"{what} {verb} {odd[0]}", hint=f"the sets are {', '.join(map(shown, names))}")


def _pair(value: Any, name: Any) -> tuple[Any, Any]:
    """Return a set and its weight from the pair ``value``."""
    if isinstance(value, tuple) and len(value) == 2:
        return value
    if isinstance(value, (tuple, list, Fluent)):
        raise UsageError(
            f"a set of the mix{'' if name is None else f', {name!r},'} has no weight: {_shown(value)}",
            hint=USAGE,
        )
    return name, value


def _shown(value: Any) -> str:
    if isinstance(value, (str, int, tuple, list)):
        return repr(value)
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def _opened(part: Any, seed: int | None, how: dict[str, Any]) -> Any:
    if isinstance(part, (str, list)):
        return WebDataset(part, seed=seed, **how)
    if isinstance(part, IndexedDataset):
        return part.in_order()
    is_dataset = isinstance(part, PositionDataset)
    if is_dataset and not part._has_own_iter and not part.pipeline.generators:
        return part
    hint = "mix() takes addresses and datasets of shards"
    if isinstance(part, WebLoader):
        hint = "mix the datasets, and put the loader around the mix"
    elif isinstance(part, Iterable) or callable(part):
        hint += "; wds.RandomMix([...], probs) mixes other iterables and datasets with generators"
    what = _shown(part)
    if is_dataset:
        what += " with its own __iter__" if part._has_own_iter else " with a generator in compose()"
    raise UsageError(f"{what} cannot be mixed", hint=hint)
