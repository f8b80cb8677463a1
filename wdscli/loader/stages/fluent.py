"""This module has the stage methods of a dataset, with webdataset's names and arguments.

:class:`PerSample` has the stages of single samples, also for tables. :class:`Fluent` has all stages of an iterable
dataset. Each method returns a new dataset. Most methods add a function of a sample to the pipeline. The methods that
choose positions (``slice``, ``rsample``, ``shuffle``, ``repeat``, ``with_epoch``) change the source or the epoch by
arithmetic. So no sample is read unnecessarily, and every state stays exact. An epoch is replayed to resume only if a
generator was added by ``compose``. This module does not know how samples are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, wraps
from itertools import chain, islice
from sys import maxsize
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar, cast

from wdscli.codecs.handlers import MAX_DECODED_BYTES
from wdscli.errors import UsageError, nearest
from wdscli.loader.checks import want_whole
from wdscli.loader.order.batches import BATCH_SAMPLES, WINDOW, Rule, rule_of_batches, rule_of_packs
from wdscli.loader.order.source import (
    DerivedSource,
    PositionSource,
    RandomShare,
    ShuffledPositions,
    Slice,
    SourceView,
    ValueFact,
)
from wdscli.loader.place.cuts import Cut, Epochs, EpochSlice
from wdscli.loader.place.planned import Plans
from wdscli.loader.place.ranks import Share, Splitter
from wdscli.loader.read.failures import Guard, Handler, reraise_exception
from wdscli.loader.read.reading import IndexedSource
from wdscli.loader.stages import per_sample
from wdscli.loader.stages.flow import BatchStage, Item, Pipeline, Stage
from wdscli.loader.stages.generators import (
    Buffer,
    OfEpoch,
    OwnMethod,
    Regroup,
    StageWithRun,
    Thin,
    UserShuffle,
)
from wdscli.loader.stages.per_batch import concatenated, default_collation, unbatched, unlisted
from wdscli.loader.stages.per_sample import XDECODERS, alternatives, want_callable

if TYPE_CHECKING:
    from wdscli.loader.read.failures import Policy, SkipCounts

Function = Callable[[Any], Any]


Method = TypeVar("Method", bound=Callable[..., Any])


def in_place(method: Method) -> Method:
    """Decorate a method that returns a new dataset, so that it changes the dataset itself and returns it, as in
    webdataset. Code may ignore the result."""

    @wraps(method)
    def changed(self: Any, *args: Any, **kw: Any) -> Any:
        self.__dict__.update(method(self, *args, **kw).__dict__)
        return self

    return cast(Method, changed)


Self = TypeVar("Self", bound="PerSample")
Whole = TypeVar("Whole", bound="Fluent")


class PerSample(Generic[Item]):
    """The stage methods for functions of a sample. Each method returns a new dataset; the old dataset does not
    change."""

    pipeline = Pipeline()
    _counts: SkipCounts
    _policy: Policy | None = None

    def stats(self) -> dict[str, Any]:
        """Return the numbers of samples that this process has skipped so far, by shard and reason."""
        return {"dropped": self._counts.by_shard()}

    def _with(self: Self, **changes: Any) -> Self:
        """Return a copy with some attributes changed."""
        new = self.__new__(type(self))
        new.__dict__.update(self.__dict__)
        new.__dict__.update(changes)
        return new

    def _then(self: Self, function: Function) -> Self:
        return self._with(pipeline=self.pipeline.then(function))

    def _guarded(self: Self, name: str, function: Function, handler: Handler = reraise_exception) -> Self:
        stage = function if isinstance(function, Stage) else Stage(function)
        stage.guard = Guard(name, handler, self._counts)
        return self._then(stage)

    def map(self: Self, f: Function, handler: Handler = reraise_exception) -> Self:
        """Apply ``f`` to each sample, or after :meth:`batched` to each batch. If ``f`` returns None, the item is
        dropped and counted. If ``f`` returns a dict, the dict gets the sample's key. ``handler`` decides about
        exceptions."""
        want_callable(f, "map()")
        return self._guarded("map", per_sample.Map(f), handler)

    def map_dict(self: Self, /, handler: Handler = reraise_exception, **functions: Function) -> Self:
        """Apply a function to each named field: ``map_dict(jpg=resize, cls=int)``. Samples are copied, not changed."""
        if not functions:
            raise TypeError("map_dict() needs at least one field")
        for name, function in functions.items():
            want_callable(function, f"map_dict({name}=)")
        return self._guarded("map_dict", partial(per_sample.map_dict, functions), handler)

    def map_tuple(self: Self, *functions: Function | None, handler: Handler = reraise_exception) -> Self:
        """Apply each function to the value at the same place of a tuple; None keeps a value unchanged."""
        for place, function in enumerate(functions):
            if function is not None:
                want_callable(function, f"map_tuple, value {place}")
        return self._guarded("map_tuple", partial(per_sample.map_tuple, functions), handler)

    def to_tuple(
        self: Self,
        *fields: str | Sequence[str],
        handler: Handler = reraise_exception,
        missing_is_error: bool = True,
        none_is_error: bool | None = None,
    ) -> Self:
        """Make a tuple of fields. ``"jpg;png"`` means the first field that exists. A single string may name several
        fields, separated by blanks."""
        stage = per_sample.ToTuple(fields, missing_is_error, none_is_error)
        return self._guarded("to_tuple", stage, handler)

    def rename(
        self: Self, /, handler: Handler = reraise_exception, keep: bool = True, **names: str | Sequence[str]
    ) -> Self:
        """Rename fields: ``new="old"``, or ``new="jpg;png"`` for the first field that exists. With ``keep``, other
        fields are kept."""
        olds = {new: alternatives(old) for new, old in names.items()}
        replaced = frozenset(chain.from_iterable(olds.values())) if keep else None
        return self._guarded("rename", partial(per_sample.rename, olds, replaced), handler)

    def rename_keys(
        self: Self,
        /,
        *renamings: tuple[str, str],
        keep_unselected: bool = False,
        must_match: bool = True,
        duplicate_is_error: bool = True,
        **more: str,
    ) -> Self:
        """Rename fields by pairs ``(new name, pattern)`` or by ``new="*.pattern"``. If several patterns match a field,
        the last one counts."""
        pairs = [(pattern, name) for name, pattern in (*renamings, *more.items())][::-1]
        stage = partial(per_sample.rename_keys, pairs, keep_unselected, must_match, duplicate_is_error)
        return self._guarded("rename_keys", stage)

    def extract_keys(
        self: Self,
        *patterns: str | Sequence[str],
        duplicate_is_error: bool = True,
        ignore_missing: bool = False,
    ) -> Self:
        """Make a tuple of the fields that match patterns such as ``"*.jpg;*.png"``."""
        wanted = [alternatives(pattern) for pattern in patterns]
        stage = partial(per_sample.extract_keys, wanted, duplicate_is_error, ignore_missing)
        return self._guarded("extract_keys", stage)

    def decode(
        self: Self,
        *args: Any,
        pre: Any = None,
        post: Any = None,
        only: Any = None,
        partial: bool = False,
        handler: Handler | None = None,
        max_decoded: int = MAX_DECODED_BYTES,
        size: int | tuple[int, int] | None = None,
        crop: int | tuple[int, int] | None = None,
    ) -> Self:
        """Decode payloads by field name, for example with ``decode("pil")`` or ``decode("torchrgb")``. Your own
        handlers are functions of (name, payload). ``only`` names the fields to decode. Pickles are loaded only with
        ``"pickle"``. Without ``handler``, the dataset's ``on_error`` decides about a sample that cannot be decoded. A
        value of more than ``max_decoded`` bytes is an error. ``decode("rgb8", size=(224, 224))`` resizes all pictures
        to this height and width. ``size=256, crop=224`` resizes the shorter side to 256 and keeps the middle of 224 x
        224, like torchvision's ``Resize`` and ``CenterCrop``. JPEGs are decoded directly to about this size.
        ``"stored"`` gives the values in the file, such as uint16, float32 or palette indexes."""
        decoder = per_sample.Decoder(list(args), pre, post, only, partial, max_decoded, size, crop)
        if handler is None:
            handler = reraise_exception if self._policy is None else self._policy.undecodable
        return self._guarded("decode", decoder, handler)

    def xdecode(
        self: Self,
        /,
        *decoders: tuple[str, Function],
        must_decode: bool = True,
        defaults: Iterable[tuple[str, Function]] = XDECODERS,
        **more: Function,
    ) -> Self:
        """Decode payloads by pairs ``(pattern, function of a stream)`` or by ``ext=function``. No default decoder loads
        a pickle."""
        pairs = [*defaults, *decoders, *((f"*.{name}", function) for name, function in more.items())]
        return self._guarded("xdecode", partial(per_sample.xdecode, pairs[::-1], must_decode))


if not TYPE_CHECKING:  # with __getattr__, a type checker would accept any name

    def _lacking(self: PerSample, name: str) -> NoReturn:
        """Raise the error of a missing attribute, with the most similar names of public attributes."""
        similar = [] if name.startswith("_") else nearest(name, (one for one in dir(self) if one[0] != "_"))
        meant = f"; did you mean {' or '.join(similar)}?" if similar else ""
        raise AttributeError(f"a {type(self).__name__} has no attribute {name}{meant}", name=name, obj=self)

    PerSample.__getattr__ = _lacking


class Fluent(PerSample[Item]):
    """All stage methods of an iterable dataset."""

    source = PositionSource()
    _cuts: tuple[Cut, ...] = ()
    """The slices and the lengths of epochs, in order. A slice of a dataset that has none of these is a view of the
    source instead."""
    _length: int | None = None

    @property
    def _span(self) -> Epochs | None:
        """The length of an epoch, or None if the last cut is a slice or there is no cut."""
        last = self._cuts[-1] if self._cuts else None
        return last if isinstance(last, Epochs) else None

    def _with_span(self: Whole, span: Epochs | None) -> Whole:
        """Return a copy with another length of an epoch."""
        cuts = self._cuts if self._span is None else self._cuts[:-1]
        return self._with(_cuts=cuts if span is None else (*cuts, span))

    @property
    def _replaces(self) -> bool:
        """Whether a sample may be replaced by a substitute."""
        return self._policy is not None and self._policy.on_error == "substitute"

    @property
    def _skips(self) -> bool:
        """Whether samples that cannot be used are left out."""
        return self._policy is not None and self._policy.on_error == "skip"

    def select(self: Whole, predicate: Callable[[Any], bool], handler: Handler = reraise_exception) -> Whole:
        """Keep only samples for which ``predicate`` is true, and count the dropped samples. Batches become smaller,
        because no sample moves to another batch. So every resumed run has the same batches."""
        want_callable(predicate, "select()")
        return self._guarded("select", per_sample.Select(predicate), handler)

    def associate(self: Self, associator: Any) -> Self:
        """Add fields to each sample. ``associator`` maps a key to a dict of fields; it is a mapping or a function."""
        return self._guarded("associate", partial(per_sample.associate, associator))

    def info(
        self: Self,
        fmt: str | None = None,
        n: int = 3,
        every: int = -1,
        width: int = 50,
        stream: Any = None,
        name: str = "",
    ) -> Self:
        """Print the first ``n`` samples of this process, and then each ``every``-th sample, to ``stream`` (by default
        stderr)."""
        return self._then(per_sample.Info(fmt, n, every, width, stream, name))

    def log_keys(self: Whole, logfile: str | None = None) -> Whole:
        """Append a line for each sample to ``logfile``: its number in this process, the worker, the rank, the key."""
        return self._then(per_sample.LogKeys(logfile)) if logfile else self

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "iterator" in vars(cls) and "__iter__" not in vars(cls):
            cls.__iter__ = _by_iterator  # type: ignore[attr-defined]

    def close(self) -> None:
        """Do nothing, because no file is open between iterations. Programs for webdataset may call this method."""

    def __enter__(self: Whole) -> Whole:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        return 0

    @property
    def repetitions(self) -> int:
        """The number of the source's epochs that an epoch joins, or ``sys.maxsize`` if it has no end."""
        span = self._span or Epochs(1, None)
        return maxsize if span.passes is None else span.passes

    @property
    def nsamples(self) -> int:
        """The number of items after which :meth:`with_epoch` cuts an epoch, or -1 for no cut."""
        items = self._span and self._span.items
        return -1 if items is None else items

    def iterator(self) -> Iterator[Any]:
        """Yield the items of all repetitions; :meth:`with_epoch` does not limit their number. A subclass may call this
        method in its own ``__iter__``. If a subclass defines ``iterator``, iterations call that method, as in
        webdataset."""
        one: Any = self
        return chain.from_iterable(one.iterator1() for _ in range(self.repetitions))

    def mcached(self: Whole) -> Whole:
        """Keep samples in the worker's memory after the stages so far have run. Later epochs use the kept samples."""
        if self.pipeline.batch is not None or self.pipeline.generators:
            raise UsageError(
                "mcached() keeps samples, not batches", hint="call mcached() before batched() and compose()"
            )
        kept = per_sample.MapOnce(self.pipeline.before)
        return self._with(pipeline=self.pipeline._replace(before=(kept,)))

    def lmdb_cached(self, *args: Any, **kw: Any) -> Any:
        """Raises UsageError."""
        raise UsageError("lmdb_cached() is not supported", hint="mcached() keeps decoded samples in memory")

    def batched(
        self: Whole,
        batchsize: int = BATCH_SAMPLES,
        collation_fn: Function | None = default_collation,
        partial: bool = True,
        *,
        bucket: str | Mapping[str, str] | Sequence[str] | None = None,
        buckets: Sequence[Any] | Mapping[Any, int] = (),
        same_bucket: bool | int = False,
        budget: float | None = None,
        length: str | Mapping[str, str] | None = None,
        max_samples: int | None = None,
        balance: bool | int = False,
        also: Mapping[str, float] | None = None,
        window: int = WINDOW,
    ) -> Whole:
        """Make batches of ``batchsize`` samples for each rank. ``collation_fn`` makes a batch from a list of samples;
        with None, the batch is the list. Without ``partial``, an incomplete batch at the end is dropped.

        The loader can also plan batches by a value of each sample; see wdscli-loader(7). With ``bucket="json.width /
        json.height", buckets=[0.8, 1.25]``, the values of all samples in a batch are between the same two edges.
        ``buckets={(0, 256): 128, (256, 512): 64}`` also sets the batch size of each bucket. A list of two expressions
        needs edges for both. With ``same_bucket=True`` all ranks have the same bucket in each step, with
        ``same_bucket=8`` the batches are also the same for 1, 2, 4 and 8 ranks. With ``budget=16384,
        length="json.tokens", max_samples=256`` the number of samples times the largest length is at most the budget;
        ``balance=True`` gives the ranks about equal lengths in each step; ``also={"json.images": 18}`` limits other
        sums. ``window`` is the number of samples that are planned together."""
        batchsize = want_whole("batched: batchsize", batchsize, 1)
        groups = (bucket, buckets, same_bucket), (budget, length, max_samples, balance, also)
        rule = rule_of_batches(batchsize, partial, window, *groups)
        if rule is not None:
            return self._planned(rule, collation_fn or list)
        if self.pipeline.generators or self.pipeline.spreads:
            return self._through(Regroup(batchsize, collation_fn, partial))
        if self.pipeline.batch is not None:
            raise UsageError(
                "batches cannot be batched again", hint="call unbatched() first, or call batched() only once"
            )
        return self._with_batches(BatchStage(batchsize, collation_fn or list, partial))

    def packed(
        self: Whole,
        size: int,
        length: str | Mapping[str, str],
        collation_fn: Function | None = None,
        *,
        truncate: bool = False,
        drop: bool = False,
        max_samples: int | None = None,
        order: Literal["free", "kept"] = "free",
        balance: bool | int = False,
        also: Mapping[str, float] | None = None,
        window: int = WINDOW,
    ) -> Whole:
        """Make packs of samples. The lengths of the samples in a pack, such as ``"json.tokens"``, add up to at most
        ``size``. A pack has the joined arrays of its samples, ``position_ids``, and ``cu_seqlens``, an array of 0 and
        the end of each sample. ``collation_fn`` can make another value from the list of samples. A sample longer than
        ``size`` is an error, unless ``truncate`` shortens it or ``drop`` leaves it out. ``also={"json.images": 18}``
        limits the sums of other numbers. With ``order="kept"``, packs have neighbours, in the order of the epoch. With
        ``balance=True``, the sums of the squared lengths are about equal for the ranks in each step."""
        limits = truncate, drop, max_samples, also
        rule = rule_of_packs(Rule("packed", length, size, window=window), limits, order, balance)
        return self._planned(rule, collation_fn or partial(concatenated, size, truncate))

    def _planned(self: Whole, rule: Rule, collate: Function) -> Whole:
        """Return the same dataset with batches that are planned by a rule."""
        if self.is_stream or self.pipeline.generators or self.pipeline.batch is not None:
            why = "another batched()" if self.pipeline.batch is not None else "a stream or a generator"
            hint = "it needs shards with random access, and must come before compose() and unbatched()"
            raise UsageError(f"{rule.name} cannot follow {why}", hint=hint)
        if self._replaces:
            raise UsageError(
                f'{rule.name} does not work with on_error="substitute": a substitute may have another length',
                hint='use on_error="skip"; the batch then becomes smaller',
            )
        planned = self._with_batches(BatchStage(1, collate, plans=Plans(rule, self._skips)))
        for expression in rule.expressions:
            planned._prepare(ValueFact(expression))
        return planned

    def _with_batches(self: Whole, stage: BatchStage) -> Whole:
        return self._with(pipeline=self.pipeline._replace(batch=stage))

    def _prepare(self, values: ValueFact) -> None:
        """Find the values of all samples before workers start, so that each worker need not find them. Raises
        UsageError, DataError."""
        raise UsageError(
            f"a {type(self).__name__} cannot make batches by values", hint="call batched() on its dataset"
        )

    def listed(self: Whole, batchsize: int, partial: bool = True) -> Whole:
        """Make batches; each batch is a list of samples."""
        return self.batched(batchsize, collation_fn=None, partial=partial)

    def unbatched(self: Whole) -> Whole:
        """Split batches into samples. A batch is a tuple or a dict of columns."""
        return self._with(pipeline=self.pipeline.spread(unbatched))

    def unlisted(self: Whole) -> Whole:
        """Split batches that are lists into samples."""
        return self._with(pipeline=self.pipeline.spread(unlisted))

    def shuffle(
        self: Whole,
        size: int = 1000,
        *,
        initial: int = 100,
        seed: int | None = None,
        rng: Any = None,
        handler: Any = None,
    ) -> Whole:
        """Shuffle the samples as with ``WebDataset(shuffle="window")``, without a buffer. If samples are already
        shuffled, or ``size`` is 0, the method does nothing. If the previous stage is a generator, samples are shuffled
        in a buffer of ``size`` samples. With ``rng``, each worker has a buffer, which begins to yield when it has
        ``initial`` samples, as in webdataset. The dataset then has no state, because the random state cannot be
        repeated. ``handler`` has no effect."""
        hint = 'webdataset\'s buffer, or WebDataset(shuffle="window")'
        if want_whole("shuffle: size", size, hint=hint) < 1:
            return self
        if rng is not None or self.pipeline.generators:
            return self._through(self._buffer(size, initial, seed, rng))
        self._refuse_after_slice("shuffle")
        stream: Any = self.source
        if self.is_stream:
            return self._with(source=stream.shuffled(size, initial, self._seed if seed is None else seed))
        # A later generator must get the shuffled samples, not whole shards in order.
        mixed = _shuffled(self.source, self._seed if seed is None else seed)
        return self._with(source=mixed, _shards=None)

    def _buffer(self, size: int, initial: int, seed: int | None, rng: Any) -> Any:
        """Return the generator stage that shuffles items in a buffer."""
        if rng is not None:
            return UserShuffle(size, initial, rng)
        return Buffer(size, self._seed if seed is None else seed)

    @property
    def _seed(self) -> int:
        return self.source.seed

    def rsample(self: Whole, p: float = 0.5) -> Whole:
        """Choose a random part of the samples, and a different part in each epoch. Of n samples in shards, exactly
        ``round(p * n)`` are chosen before they are read. In a stream or after a generator, each sample is kept with
        probability ``p``."""
        if not 0 <= p <= 1:
            raise UsageError(f"rsample({p}): give a number from 0 to 1")
        if self.pipeline.generators or self.is_stream:
            return self._through(self._thinning(p))
        self._refuse_after_slice("rsample")
        return self if p == 1 else self._with(source=SourceView(self.source, RandomShare(p, self._seed)))

    def _thinning(self, p: float) -> Any:
        """Return the generator stage that keeps each item with probability ``p``."""
        return Thin(p, self._seed)

    @property
    def is_stream(self) -> bool:
        """Whether the samples can only be read from beginning to end."""
        return self.source.is_stream

    def _refuse_after_slice(self, stage: str) -> None:
        if any(isinstance(cut, EpochSlice) for cut in self._cuts):
            raise UsageError(
                f"{stage}() cannot follow a slice() of batches", hint=f"put {stage}() before batched()"
            )

    def slice(self: Whole, *args: int | None) -> Whole:
        """Keep a slice of what an epoch yields: ``slice(stop)`` or ``slice(start, stop[, step])``. After
        :meth:`batched`, the slice counts the batches of each rank, otherwise the samples of all ranks. An epoch without
        end gets one by ``slice(n)``; as in webdataset, ``repeat(2)`` joins two slices. After ``select`` and generators,
        the slice counts the items of each worker."""
        args = tuple(one if one is None else want_whole("slice", one) for one in args)
        if not 1 <= len(args) <= 3 or (len(args) == 3 and args[2] is not None and args[2] < 1):
            raise UsageError(
                f"slice{args}", hint="slice(stop) or slice(start, stop[, step]) with a step of at least 1"
            )
        span = self._span
        if span is not None and span.joins_slices and not (self.pipeline.generators or self.is_stream):
            return self._with_span(None).slice(*args)._with_span(span)
        start, stop, step = (None, args[0], None) if len(args) == 1 else (*args, None)[:3]
        chosen = Slice(start, stop, step)
        chooses = any(isinstance(one, per_sample.Select) for one in self.pipeline.before)
        if self.pipeline.generators or chooses or self.is_stream:
            if min(start or 0, stop or 0) < 0:
                raise UsageError(
                    f"slice{args} counts from the end, which is unknown for streams, and after select() or generators",
                    hint="slice the set before select() or any generator stage, or use non-negative indices",
                )
            return self._through(chosen)
        if self.pipeline.batch is None:
            return self._sliced(chosen)
        return self._with(
            _cuts=(*self._cuts, EpochSlice(chosen, "items" if self.pipeline.spreads else "batches"))
        )

    def _sliced(self: Whole, chosen: Slice) -> Whole:
        """Return a slice of the samples of a dataset without a batch stage. If it is a view of the source, later
        stages can shuffle the slice."""
        span = self._span
        if not self._cuts or (len(self._cuts) == 1 and span is not None and span.items is None):
            source = self.source if span is None else span.of_source(self.source, Share(), 1)
            return self._with(source=SourceView(source, chosen), _cuts=())
        cuts = [cut._replace(samples=True) if isinstance(cut, Epochs) else cut for cut in self._cuts]
        return self._with(_cuts=(*cuts, EpochSlice(chosen, "samples")))

    @in_place
    def with_epoch(
        self: Whole,
        nsamples: int = -1,
        nbatches: int = -1,
        *,
        samples: int | None = None,
        batches: int | None = None,
    ) -> Whole:
        """Set the length of an epoch. A number counts the items of each worker, as in webdataset; items are batches
        after :meth:`batched`. So with four workers, a DataLoader yields four times as many items. ``samples`` counts
        the samples of all ranks and workers together, and ``batches`` counts the batches of all workers of each rank. A
        WebLoader always counts all workers together. The next epoch continues with the next item, so every sample comes
        once before a sample comes again. As in webdataset, this method changes the dataset itself and returns it, like
        :meth:`repeat` and :meth:`with_length`."""
        items = max(
            want_whole("with_epoch: nsamples", nsamples), want_whole("with_epoch: nbatches", nbatches)
        )
        span = Epochs(None, items if items > 0 else None)
        if (items > 0) + (samples is not None) + (batches is not None) > 1:
            raise UsageError("with_epoch() needs one length", hint="give samples=, batches= or a number")
        if samples is not None:
            span = Epochs(None, want_whole("with_epoch: samples", samples, 1), "all", samples=True)
        if batches is not None:
            span = Epochs(None, want_whole("with_epoch: batches", batches, 1), "rank")
        return self._in_epochs(span)

    @in_place
    def repeat(self: Whole, nepochs: int = -1, nbatches: int = -1) -> Whole:
        """Join ``nepochs`` epochs, each in its own order, to one long epoch, cut after ``nbatches`` items. Without a
        number, the long epoch is endless. This method changes the dataset itself."""
        nepochs, nbatches = want_whole("repeat: nepochs", nepochs), want_whole("repeat: nbatches", nbatches)
        span = Epochs(nepochs if nepochs > 0 else None, nbatches if nbatches > 0 else None)
        return self._in_epochs(span, begins_anew=True)

    def _in_epochs(self: Whole, span: Epochs, begins_anew: bool = False) -> Whole:
        """Return the dataset with epochs of the length ``span``. ``begins_anew`` is true for :meth:`repeat`."""
        return self._with_span(span)

    @in_place
    def with_length(self: Whole, n: int, silent: bool = True) -> Whole:
        """Make ``len()`` return ``n``. This method changes the dataset itself."""
        return self._with(_length=want_whole("with_length: n", n, 0))

    def compose(self: Whole, *args: Any) -> Whole:
        """Add stages. A stage is a generator function of an iterator, an object with ``run``, or a stage such as
        ``wds.map(...)``, which does the same as the method :meth:`map`. A generator runs over the items of one worker.
        After a generator, a state is exact only for the same numbers of ranks and workers, and resuming replays the
        epoch."""
        new = self
        for stage in args:
            if isinstance(stage, OwnMethod) and not new.source.is_appended:
                new = stage.added_to(new)
            else:
                new = new._for_generator()._through(stage)
        return new

    def _splitting(self: Whole, splitter: Splitter) -> Whole:
        """Return the dataset with one of webdataset's splitters added."""
        return self._through(splitter)

    def _for_generator(self: Whole) -> Whole:
        """Return the dataset prepared for a user's generator as the next stage."""
        return self

    def append(self, f: Any) -> None:
        """Add a stage to this dataset itself, as in webdataset; :meth:`compose` returns a new dataset instead. A
        subclass may make an empty pipeline by ``super(wds.WebDataset, self).__init__()``; then the first appended stage
        is the source."""
        source = self.source.begun_by(f)
        new = self._with(source=source) if source else self.compose(f)
        self.__dict__.update(new.__dict__)

    def _through(self: Whole, stage: Any) -> Whole:
        if isinstance(stage, StageWithRun) and not isinstance(stage, OfEpoch):
            stage = stage.run
        if not callable(stage) and not isinstance(stage, OfEpoch):
            raise UsageError(f"{stage!r} is no stage", hint="a function of an iterator")
        return self._with(pipeline=self.pipeline.through(stage))


def _by_iterator(self: Any) -> Iterator[Any]:
    return islice(self.iterator(), None if self.nsamples < 0 else self.nsamples)


def _shuffled(source: PositionSource, seed: int) -> PositionSource:
    """Return ``source`` in a shuffled order. If ``source`` is already shuffled, return it unchanged."""
    inner = source
    while isinstance(inner, DerivedSource):
        if isinstance(inner, SourceView) and isinstance(inner.view, ShuffledPositions):
            return source
        inner = inner.source
    if inner.is_shuffled:
        return source
    if source is inner and isinstance(inner, IndexedSource):
        return inner.shuffled(seed)
    return SourceView(source, ShuffledPositions(seed))
