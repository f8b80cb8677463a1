"""Several sets as one, by weight: ``mix``.

What it is: :class:`Mixed`, the dataset over a :class:`~wdscli.loader.mixing.sources.MixSource`. How: samples carry
the number of their set to the stages, where those of the set itself come first; what is called on the mix comes behind
them. It must not know which sample comes when."""

# mypy: disable-error-code="overload-overlap"

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, overload

from wdscli.errors import UsageError
from wdscli.loader.dataset import PositionDataset
from wdscli.loader.indexed import IndexedDataset
from wdscli.loader.mixing.sources import MixedSet, MixSource, MixStream, Per, Rules, Tagged
from wdscli.loader.order.schedule import Stop, Weight, quotas_of
from wdscli.loader.order.source import PositionSource
from wdscli.loader.order.views import seen_as
from wdscli.loader.place.ranks import Share
from wdscli.loader.place.share import Tail
from wdscli.loader.sample_types import Item, RawSample
from wdscli.loader.stages.flow import DROPPED, BatchStage, Pipeline, Spread
from wdscli.loader.stages.fluent import Fluent
from wdscli.loader.stats import Counts
from wdscli.loader.torch_loader import WebLoader
from wdscli.loader.webdataset import WebDataset

New = TypeVar("New")
Self = TypeVar("Self", bound="Mixed[Any]")
USAGE = "mix({address: weight, ...}) or mix({name: (dataset, weight), ...})"

Part: TypeAlias = "PositionDataset | str | list[str]"


@dataclass(frozen=True)
class _OfSample:
    """The stages of a sample, those of its own set. ``keep`` says whether the number of the set is still wanted."""

    pipelines: tuple[Pipeline, ...]
    keep: bool
    __name__ = "each set's own stages"

    def __call__(self, tagged: Tagged) -> Any:
        number, item = tagged
        for function in self.pipelines[number].before:
            item = function(item)
            if item is DROPPED:
                return DROPPED
        return Tagged(number, item) if self.keep else item


class _OwnBatchStage(BatchStage):
    """The batch stage of the set that all samples of a batch are of, which ``collate`` gives for its number."""

    def made(self, items: list[Tagged], given: int) -> list[Any]:
        if not items:
            return []
        number = items[0].set
        batch: BatchStage = self.collate(number)
        return [Tagged(number, one) for one in batch.made([item for _, item in items], given)]


@dataclass(frozen=True)
class _OfBatch:
    """The stages behind the batch stage. ``one`` where no set makes several things of a batch."""

    pipelines: tuple[Pipeline, ...]
    one: bool
    __name__ = "each set's own stages of batches"

    def __call__(self, tagged: Tagged) -> Any:
        found = self.pipelines[tagged.set].behind([tagged.item])
        return found if not self.one else found[0] if found else DROPPED


class Mixed(WebDataset[Item]):
    """The dataset that :func:`mix` makes: samples of several datasets, each with its own stages done."""

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
        if any(map(_is_plain, parts)):
            _refuse({"rank": rank, "world_size": world_size, "tail": tail})
            self._parts: tuple[PositionDataset, ...] = ()
            self._mixed_plainly(parts)
            return
        self._parts = tuple(parts)
        rank, world_size = _ranks(parts, rank, world_size)
        pipelines = tuple(part.pipeline for part in parts)
        if rules.per == "sample":
            self.pipeline = _by_sample(pipelines)
            tail = tail or _agreed("tail", {part._tail for part in parts} - {None})
        else:
            self.pipeline = _by_batch(pipelines)
        self._tail = tail
        together = _agreed("batch_size", {part._batch_size for part in parts} - {None})
        source: Any = MixStream(parts, rules) if self._streams() else self._mixed(Share())
        PositionDataset.__init__(
            self, source, rank=rank, world_size=world_size, tail=tail, batch_size=together
        )
        self._split = _agreed("nodesplitter", {part._split for part in parts})

    def _mixed_plainly(self, parts: Sequence[Any]) -> None:
        """Of what can only be iterated nothing is known: each of ``parts`` is, and what they give is given."""
        PositionDataset.__init__(self, MixStream(parts, self.rules, is_plain=True))
        self.pipeline = Pipeline(before=(_OfSample((Pipeline(),) * len(parts), keep=False),))

    def _streams(self) -> bool:
        """Whether some set can only be streamed. Raises UsageError for what is impossible then."""
        if not any(part.is_stream for part in self._parts):
            return False
        if self.rules.per == "batch" or self._tail in ("even", "drop", "pad"):
            what = 'per="batch"' if self.rules.per == "batch" else f'tail="{self._tail}"'
            raise UsageError(f"{what} of sets of which some can only be streamed", hint="leave it out")
        return True

    def _sets(self) -> list[PositionDataset]:
        """The sets, with the tail of the mix where they have none of their own."""
        tail = self._tail
        return [part if part._tail or not tail else part._with(_tail=tail) for part in self._parts]

    def _mixed(self, share: Share) -> MixSource:
        """The sets as one for so many ranks and workers."""
        alone = share._replace(rank=0, worker=0)
        sets = [MixedSet(part._line(alone), part._policy, part.tail) for part in self._sets()]
        if self.rules.per == "sample" or self.pipeline.batch is None:
            return MixSource(sets, self.rules)
        return MixSource(sets, self.rules, self.pipeline.batch.size, share.world)

    def _base(self, share: Share) -> PositionSource:
        if self.is_stream:
            return self.source
        mixed = self._mixed(share)
        if self._span is not None and self._span.samples and (self._span.items or 0) % mixed.run:
            raise UsageError(
                f"with_epoch(samples={self._span.items}) cuts a global batch of {mixed.run} of one set",
                hint="with_epoch(batches=n)",
            )
        return self._apart(seen_as(self.source, mixed))

    def __len__(self) -> int:
        """As of any dataset. Raises TypeError also where some ranks have nothing of some batches."""
        if self._length is None and not self.is_stream and self._mixed(self._share()).has_gaps:
            raise TypeError('ranks have different lengths with tail="uneven"; with_length(n) would say one')
        return super().__len__()

    @property
    def tail(self) -> Tail:
        """How the last global batch ends; of whole batches, whether any of the sets' may be missing on some ranks."""
        uneven = self.rules.per == "batch" and any(part.tail == "uneven" for part in self._sets())
        return "uneven" if uneven else super().tail

    def _of_workers(self: Self, workers: int) -> Self:
        """The same where it is known how many workers each rank has."""
        parts = tuple(part._of_workers(workers) for part in self._parts)
        return super()._of_workers(workers)._with(_parts=parts)

    @property
    def _by_worker(self) -> bool:
        """Whether an epoch is longer with more workers."""
        return super()._by_worker or any(part._by_worker for part in self._parts)

    def _behind_no_slice(self, stage: str) -> None:
        super()._behind_no_slice(stage)
        is_shuffled = stage == "shuffle" and self.source.is_shuffled
        if self.rules.per == "batch" and not is_shuffled:
            raise UsageError(
                f"{stage}() of a mix of whole batches", hint=f"call {stage}() on the sets, before batched()"
            )

    @property
    def _replaces(self) -> bool:
        """Whether samples may be taken in the place of others, by the sets themselves."""
        return super()._replaces or any(part._replaces for part in self._parts)

    def mcached(self) -> Any:
        """Refused: raises UsageError."""
        raise UsageError("mcached() behind a mix", hint="call it on the datasets that are mixed")

    @property
    def _all_counts(self) -> list[Counts]:
        """Where it is counted what is left out, by the sets' own stages too."""
        return [*super()._all_counts, *(count for part in self._parts for count in part._all_counts)]


def _is_plain(part: Any) -> bool:
    """Whether a set can only be iterated."""
    return not isinstance(part, PositionDataset) or part._has_own_iter or bool(part.pipeline.generators)


def _refuse(given: dict[str, Any]) -> None:
    for name, value in given.items():
        if value is not None:
            raise UsageError(
                f"mix({name}=) of plain iterables or generators, which share nothing by themselves",
                hint="split by ranks in the sets, with wds.split_by_node",
            )


def _ranks(
    parts: Sequence[PositionDataset], rank: int | None, world: int | None
) -> tuple[int | None, int | None]:
    """The rank and the ranks of a mix: what it is told, or what its sets were told. Raises UsageError where these are
    not the same."""
    told = {(part._rank, part._world) for part in parts}
    if rank is not None:
        told = {(rank, world), *told} - {(None, None)}
    if len(told) > 1:
        raise UsageError(
            "the sets of a mix are for different ranks: "
            + ", ".join(f"rank={one} of {ranks}" for one, ranks in sorted(told, key=str)),
            hint="mix(..., rank=, world_size=), and nothing of it in the sets",
        )
    return told.pop()


def _agreed(argument: str, said: set[Any]) -> Any:
    """What the sets of a mix agree on, None for nothing said. Raises UsageError where they do not agree."""
    if len(said) > 1:
        raise UsageError(
            f"the sets of a mix differ in {argument}=: {', '.join(sorted(map(str, said)))}",
            hint="give all of them the same",
        )
    return next(iter(said), None)


def _by_sample(pipelines: tuple[Pipeline, ...]) -> Pipeline:
    for pipeline in pipelines:
        if pipeline.batch is not None:
            raise UsageError(
                "batches are not mixed sample by sample",
                hint='call batched() on the mix, or mix(..., per="batch")',
            )
    return Pipeline(before=(_OfSample(pipelines, keep=False),))


def _by_batch(pipelines: tuple[Pipeline, ...]) -> Pipeline:
    batches = []
    for pipeline in pipelines:
        if pipeline.batch is None:
            raise UsageError('mix(per="batch") needs datasets of batches', hint="call batched() on each")
        batches.append(pipeline.batch)
    sizes = {batch.size for batch in batches}
    if len(sizes) > 1:
        raise UsageError(
            f'mix(per="batch") of batches of {" and ".join(map(str, sorted(sizes)))} samples',
            hint="give all sets the same batch size",
        )
    several = any(pipeline.spreads for pipeline in pipelines)
    last = _OfBatch(pipelines, one=not several)
    return Pipeline(
        before=(_OfSample(pipelines, keep=True),),
        batch=_OwnBatchStage(
            sizes.pop(), batches.__getitem__, partial=all(batch.partial for batch in batches)
        ),
        after=(Spread(last) if several else last,),
    )


@overload
def mix(
    datasets: Mapping[str, Weight]
    | Mapping[str, tuple[str, Weight]]
    | Sequence[tuple[str, Weight]]
    | Sequence[str],
    **how: Any,
) -> Mixed[RawSample | Any]: ...
@overload
def mix(datasets: Mapping[PositionDataset[New], Weight], **how: Any) -> Mixed[New]: ...
@overload
def mix(
    datasets: Mapping[str, tuple[Iterable[New], Weight]] | Sequence[tuple[Iterable[New], Weight]], **how: Any
) -> Mixed[New]: ...
@overload
def mix(datasets: Sequence[Iterable[New]], **how: Any) -> Mixed[New]: ...
@overload
def mix(datasets: Sequence[Callable[[], Iterable[New]]], **how: Any) -> Mixed[New]: ...
@overload
def mix(datasets: Mapping[Any, Any], **how: Any) -> Mixed[Any]: ...
def mix(
    datasets: Mapping[Any, Any] | Sequence[Any],
    *,
    stop: Stop = "first",
    seed: int | None = 0,
    per: Per = "sample",
    label: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    tail: Tail | None = None,
    **how: Any,
) -> Mixed[Any]:
    """Samples of several sets by weight, in the same order for any ranks and workers, resumed like a single set.

    ``datasets`` is ``{address: weight}``, ``{dataset: weight}``, ``{name: (address or dataset, weight)}``, or a list of
    ``(address or dataset, weight)``, or of addresses and datasets of equal weight. Addresses become
    ``WebDataset(address, seed=seed, **how)``. A dataset's own stages are done on its own samples. An
    :class:`~wdscli.loader.indexed.IndexedDataset`, or a view of one, gives its samples in its order, which
    ``mix(...).shuffle()`` changes.

    Weights are exact: when they are 7 and 3, every ten samples have seven of the one and three of the other, in an
    order of ``seed``; without one (None) they take turns. ``stop`` says when an epoch ends: ``"first"``, where a set
    should give a sample and has none left; ``"all"``, when all are used up, the rest sharing the turns of those that
    are; ``"repeat"``, when every set was gone through at least once, the shorter ones again and again, each time in the
    order of their next epoch. With ``"first"`` and ``"repeat"`` the next epoch goes on in each set where this one left
    it.

    ``per="batch"`` mixes whole batches of datasets with equal batch sizes: a global batch is all of one set. ``tail``
    then holds for the last global batch of each set that has no ``tail`` of its own. ``label`` names a field in which
    every sample says the name of its set.

    When some set can only be streamed, each worker mixes what it has of each: the shares are exact there, a state is of
    as many ranks and workers only, and every epoch begins each set's own. So it is with generators, functions that give
    them, plain pipelines, other iterables, and datasets with a generator in ``compose``; there is no state then, and
    each shares its samples among ranks and workers itself, or does not.

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
    # Before a set is opened: who forgot a weight hears of that.
    rules = Rules(quotas_of(weights), stop, seed, per, names, label)
    if how and not any(isinstance(part, (str, list)) for part in parts):
        raise UsageError(f"mix({min(how)}=) is for addresses", hint="say it to the datasets that are mixed")
    opened = [_opened(part, seed, how) for part in parts]
    return Mixed(opened, rules, rank=rank, world_size=world_size, tail=tail)


def _named(datasets: Mapping[Any, Any] | Sequence[Any]) -> tuple[list[str], list[Part], list[Weight]]:
    """Names, datasets and weights."""
    if isinstance(datasets, Mapping):
        rows = [(name, *_pair(value, name)) for name, value in datasets.items()]
    elif isinstance(datasets, (str, Fluent)) or not isinstance(datasets, Iterable):
        raise UsageError(f"mix() needs several sets, not {_shown(datasets)}", hint=USAGE)
    else:
        rows = [(one[0], *_pair(one, None)) if isinstance(one, tuple) else (one, one, 1) for one in datasets]
    if not rows:
        raise UsageError("a mix without sets", hint=USAGE)
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


def _opened(part: Any, seed: int | None, how: dict[str, Any]) -> Any:
    if isinstance(part, PositionDataset):
        return part
    if isinstance(part, (str, list)):
        return WebDataset(part, seed=seed, **how)
    if isinstance(part, IndexedDataset):
        return part.in_order()
    is_iterable = isinstance(part, Iterable) and not isinstance(part, Mapping)
    if not isinstance(part, WebLoader) and (callable(part) or is_iterable):
        return part
    hint = "an address, a list of addresses, a WebDataset, or another iterable"
    if isinstance(part, Fluent):
        hint = "mix the datasets, and put the loader around the mix"
    raise UsageError(f"{_shown(part)} cannot be mixed", hint=hint)
