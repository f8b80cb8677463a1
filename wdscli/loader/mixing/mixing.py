"""Several sets as one, by weight: ``mix``, and webdataset's ``RandomMix`` and ``RoundRobin``.

What it is: :class:`Mixed`, the dataset over a :class:`~wdscli.loader.mixing.mixsource.MixSource`. How: samples carry
the number of their set to the stages, where those of the set itself come first; what is called on the mix comes behind
them. It must not know which sample comes when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from wdscli.errors import UsageError
from wdscli.loader.dataset import PositionDataset
from wdscli.loader.mixing.mixsource import MixSource, Per, Tagged
from wdscli.loader.order.schedule import Stop, Weight, check_stop, quotas_of
from wdscli.loader.place.ranks import Share
from wdscli.loader.place.share import Tail
from wdscli.loader.read.source import PositionSource
from wdscli.loader.stages.flow import DROPPED, Batch, Pipeline, Spread
from wdscli.loader.stages.fluent import Fluent, PerSample
from wdscli.loader.stats import Counts

USAGE = "mix({address: weight, ...}) or mix({name: (dataset, weight), ...})"

Part: TypeAlias = "PositionDataset | str | list[str]"


class _Stages:
    """The stages of each set, for tagged samples and batches."""

    def __init__(self, pipelines: Sequence[Pipeline]) -> None:
        self.pipelines = tuple(pipelines)


class _OfSample(_Stages):
    """The stages of a sample, those of its own set."""

    def __init__(self, pipelines: Sequence[Pipeline], keep: bool) -> None:
        super().__init__(pipelines)
        self._keep = keep
        """Whether the number of the set is still wanted."""

    def __call__(self, tagged: Tagged) -> Any:
        number, item = tagged
        for function in self.pipelines[number].before:
            item = function(item)
            if item is DROPPED:
                return DROPPED
        return Tagged(number, item) if self._keep else item


class _Unmade(_Stages):
    """What stands for making a batch in :class:`_Collated`, which does that itself."""

    def __call__(self, items: list[Any]) -> list[Any]:
        return items


class _Collated(Batch):
    """The batch stage of the set that all samples of a batch are of; ``collate`` knows the stages of all."""

    def made(self, items: list[Tagged], given: int) -> list[Any]:
        if not items:
            return []
        assert isinstance(self.collate, _Unmade)
        number = items[0].set
        if any(one.set != number for one in items):
            raise UsageError("a batch of several sets", hint="no slice() between two mixes per batch")
        batch = self.collate.pipelines[number].batch
        assert batch is not None
        return [Tagged(number, one) for one in batch.made([item for _, item in items], given)]


class _OfBatch(_Stages):
    """The stages behind the batch stage."""

    def __call__(self, tagged: Tagged) -> list[Any]:
        return self.pipelines[tagged.set].behind([tagged.item])


class _OneOfBatch(_OfBatch):
    """The same where no set makes several things of a batch."""

    def __call__(self, tagged: Tagged) -> Any:
        found = super().__call__(tagged)
        return found[0] if found else DROPPED


class Mixed(PositionDataset):
    """The dataset that :func:`mix` makes: samples of several datasets, each with its own stages done."""

    def __init__(
        self,
        parts: Sequence[PositionDataset],
        weights: Sequence[Weight],
        *,
        stop: Stop = "first",
        seed: int | None = 0,
        per: Per = "sample",
        names: Sequence[str] = (),
        label: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        tail: Tail | None = None,
    ) -> None:
        if per not in ("sample", "batch"):
            raise UsageError(f'no such per: "{per}"', hint='"sample" or "batch"')
        check_stop(stop)
        _check_label(label)
        how: dict[str, Any] = {"stop": stop, "seed": seed, "names": names, "label": label}
        source: Any
        if any(part.is_stream for part in parts):
            source = _stream(parts, quotas_of(weights), per, tail, how)
        else:
            sources, policies = [part._line(Share()) for part in parts], [part._policy for part in parts]
            source = MixSource(sources, quotas_of(weights), per=per, policies=policies, **how)
        self._mix = source
        super().__init__(source, rank=rank, world_size=world_size, tail=tail)
        self._parts_replace = any(part.replaces for part in parts)
        self._parts_counts = [count for part in parts for count in _all_counts(part)]
        pipelines = [part.pipeline for part in parts]
        self.pipeline = _by_sample(pipelines) if per == "sample" else _by_batch(pipelines)

    def _line(self, share: Share) -> PositionSource:
        if self.pipeline.batch is not None and not self.is_stream:
            self._mix.in_runs(self.pipeline.batch.size * share.world)
        return super()._line(share)

    @property
    def replaces(self) -> bool:
        """Whether samples may be taken in the place of others, by the sets themselves."""
        return super().replaces or self._parts_replace

    def mcached(self) -> Any:
        """Refused: raises UsageError."""
        raise UsageError("mcached() behind a mix", hint="call it on the datasets that are mixed")

    def take_counts(self) -> list[tuple[str, str, int]]:
        """What was counted as left out, by the sets' own stages too, which is not counted any more."""
        counts = self._gathered()
        for one in (self._counts, *self._parts_counts):
            one.clear()
        return counts.rows()

    def stats(self) -> dict[str, Any]:
        """What was left out so far, by shard and reason, in this process, by the sets' own stages too."""
        return {**super().stats(), "dropped": self._gathered().by_shard()}

    def _gathered(self) -> Counts:
        counts = Counts()
        for one in (self._counts, *self._parts_counts):
            counts.merge(one.rows())
        return counts


def _stream(
    parts: Sequence[PositionDataset], quotas: Sequence[int], per: Per, tail: Tail | None, how: dict[str, Any]
) -> Any:
    """A mix of which some sets can only be streamed."""
    from wdscli.loader.mixing.mixstream import MixStream

    if per == "batch" or tail in ("drop", "pad"):
        what = 'per="batch"' if per == "batch" else f'tail="{tail}"'
        raise UsageError(f"{what} of sets of which some can only be streamed", hint="leave it out")
    return MixStream(parts, quotas, **how)


def _check_label(label: object) -> None:
    if label is not None and (not isinstance(label, str) or label in ("", "__key__", "__url__")):
        raise UsageError(f"label={label!r}: a label is a field of its own", hint='label="set"')


def _all_counts(part: PositionDataset) -> list[Counts]:
    return [part._counts, *(part._parts_counts if isinstance(part, Mixed) else ())]


def _by_sample(pipelines: Sequence[Pipeline]) -> Pipeline:
    for pipeline in pipelines:
        _want_no_generator(pipeline)
        if pipeline.batch is not None:
            raise UsageError(
                "batches are not mixed sample by sample",
                hint='call batched() on the mix, or mix(..., per="batch")',
            )
    return Pipeline(before=(_OfSample(pipelines, keep=False),))


def _by_batch(pipelines: Sequence[Pipeline]) -> Pipeline:
    batches = []
    for pipeline in pipelines:
        _want_no_generator(pipeline)
        if pipeline.batch is None:
            raise UsageError('mix(per="batch") wants datasets of batches', hint="call batched() on each")
        batches.append(pipeline.batch)
    sizes = {batch.size for batch in batches}
    if len(sizes) > 1:
        raise UsageError(
            f'mix(per="batch") of batches of {" and ".join(map(str, sorted(sizes)))} samples',
            hint="give all sets the same batch size",
        )
    several = any(pipeline.spreads for pipeline in pipelines)
    last = Spread(_OfBatch(pipelines)) if several else _OneOfBatch(pipelines)
    return Pipeline(
        before=(_OfSample(pipelines, keep=True),),
        batch=_Collated(sizes.pop(), _Unmade(pipelines), partial=all(batch.partial for batch in batches)),
        after=(last,),
    )


def _want_no_generator(pipeline: Pipeline) -> None:
    if pipeline.generators:
        raise UsageError(
            "a dataset with a generator in compose(), or a slice() behind select(), cannot be mixed exactly",
            hint="use it on the mix instead",
        )


def mix(
    datasets: Mapping[Any, Any] | Sequence[Any],
    *,
    stop: Stop = "first",
    seed: int = 0,
    per: Per = "sample",
    label: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    tail: Tail | None = None,
    **how: Any,
) -> Mixed:
    """Samples of several sets by weight, in the same order for any ranks and workers, resumed like a single set.

    ``datasets`` is ``{address: weight}``, ``{dataset: weight}``, ``{name: (address or dataset, weight)}``, or a list of
    ``(address or dataset, weight)``, or of addresses and datasets of equal weight. Addresses become
    ``WebDataset(address, seed=seed, **how)``. A dataset's own stages are done on its own samples.

    Weights are exact: when they are 7 and 3, every ten samples have seven of the one and three of the other, in an
    order of ``seed``. ``stop`` says when an epoch ends: ``"first"``, where a set should give a sample and has none
    left; ``"all"``, when all are used up, the rest sharing the turns of those that are; ``"repeat"``, when every set
    was gone through at least once, the shorter ones again and again, each time in the order of their next epoch. With
    ``"first"`` and ``"repeat"`` the next epoch goes on in each set where this one left it.

    ``per="batch"`` mixes whole batches of datasets with equal batch sizes: a global batch is all of one set. ``label``
    names a field in which every sample says the name of its set.

    When some set can only be streamed, each worker mixes what it has of each: the shares are exact there, a state is of
    as many ranks and workers only, and every epoch begins each set's own.

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
    names, parts, weights = _named(datasets)
    quotas_of(weights)  # before a set is opened: who forgot a weight hears of that
    if how and not any(isinstance(part, (str, list)) for part in parts):
        raise UsageError(f"mix({min(how)}=) is for addresses", hint="say it to the datasets that are mixed")
    return Mixed(
        [_opened(part, seed, how) for part in parts],
        weights,
        stop=stop,
        seed=seed,
        per=per,
        names=names,
        label=label,
        rank=rank,
        world_size=world_size,
        tail=tail,
    )


def RandomMix(
    datasets: Sequence[Any], probs: Sequence[Weight] | None = None, longest: bool = False, *, seed: int = 0
) -> Mixed:
    """webdataset's name: samples of datasets by probability, until one is used up, or with ``longest`` until all are.
    As :func:`mix`: the shares are exact, not drawn."""
    weights = [1] * len(datasets) if probs is None else list(probs)
    if len(weights) != len(datasets):
        raise UsageError(f"{len(weights)} probabilities for {len(datasets)} datasets")
    return mix(list(zip(datasets, weights)), stop="all" if longest else "first", seed=seed)


def RoundRobin(datasets: Sequence[Any], longest: bool = False) -> Mixed:
    """webdataset's name: a sample of each dataset in turn, until one is used up, or with ``longest`` until all are."""
    names, parts, weights = _named(list(datasets))
    stop: Stop = "all" if longest else "first"
    return Mixed([_opened(part, 0, {}) for part in parts], weights, stop=stop, seed=None, names=names)


def _named(datasets: Mapping[Any, Any] | Sequence[Any]) -> tuple[list[str], list[Part], list[Weight]]:
    """Names, datasets and weights."""
    if isinstance(datasets, Mapping):
        rows = [(name, *_pair(value, name)) for name, value in datasets.items()]
    elif isinstance(datasets, (str, Fluent)) or not isinstance(datasets, Iterable):
        raise UsageError(f"mix() wants several sets, not {_shown(datasets)}", hint=USAGE)
    else:
        rows = [(one[0], *_pair(one, None)) if isinstance(one, tuple) else (one, one, 1) for one in datasets]
    if not rows:
        raise UsageError("a mix of no sets", hint=USAGE)
    names = [str(name) if isinstance(name, str) else str(at) for at, (name, _, _) in enumerate(rows)]
    return names, [part for _, part, _ in rows], [weight for _, _, weight in rows]


def _pair(value: Any, name: Any) -> tuple[Any, Any]:
    """A set and its weight."""
    if isinstance(value, tuple) and len(value) == 2:
        return value
    if isinstance(value, (tuple, list, Fluent)):
        raise UsageError(f"no weight{'' if name is None else f' for {name!r}'}: {_shown(value)}", hint=USAGE)
    return name, value


def _shown(value: Any) -> str:
    if isinstance(value, (str, int, tuple, list)):
        return repr(value)
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def _opened(part: Any, seed: int, how: dict[str, Any]) -> PositionDataset:
    if isinstance(part, PositionDataset):
        return part
    if isinstance(part, (str, list)):
        from wdscli.loader.webdataset import WebDataset

        return WebDataset(part, seed=seed, **how)
    hint = "an address, a list of addresses, or a WebDataset"
    if isinstance(part, Fluent):
        hint = "mix the datasets, and put the loader around the mix"
    elif isinstance(part, PerSample):
        hint = "a table has no order of its own: mix a WebDataset of its shards"
    raise UsageError(f"{_shown(part)} cannot be mixed", hint=hint)
