"""A set of shards as a dataset: what ``WebDataset(...)`` takes, and what it is made of.

What it is: :class:`WebDataset`. It takes every argument of webdataset's; one
without a meaning here is an error with a hint if it requests something, and is never ignored in silence. It must not
know how the samples of an epoch are ordered, read or shared."""

# Stages that change the type of items are declared here, because those of the base classes cannot be.
# mypy: disable-error-code="assignment, overload-overlap, override"

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast, overload

from wdscli.errors import UsageError
from wdscli.loader.checks import ShardList, Urls, want_word, wanted_fields
from wdscli.loader.dataset import PositionDataset
from wdscli.loader.order.order import ORDERS, Shuffle
from wdscli.loader.order.source import PositionSource
from wdscli.loader.place.ranks import EXACT, Split, Tail, name_of, split_by_node, split_by_worker
from wdscli.loader.read.failures import Handler, OnError, reraise_exception
from wdscli.loader.read.reading import PREFETCH, IndexedSource
from wdscli.loader.read.selected import Access, Wanted, open_catalog
from wdscli.loader.stages.flow import Item, RawSample, Sample
from wdscli.loader.stages.fluent import Epochs
from wdscli.loader.stages.per_sample import Files
from wdscli.loader.streams import ShardStream, check_stream

if TYPE_CHECKING:
    from wdscli.loader.stages.flow import Unknown, giving
    from wdscli.plan.join.join import JoinKind

    New = TypeVar("New")
    _SAMPLES = cast("WebDataset[Sample]", None)
    _TUPLES = cast("WebDataset[tuple[Any, ...]]", None)
    _ANYTHING = cast("WebDataset[Any]", None)

Self = TypeVar("Self", bound="WebDataset")
Splitter: TypeAlias = Callable[..., Any]


class WebDataset(PositionDataset[Item]):
    """The samples of a set of shards, in the order of an epoch.

    SYNOPSIS
        data = WebDataset("set/train-{000000..000099}.tar", shuffle="window", seed=1)
        data = data.decode("pil").to_tuple("jpg", "cls").batched(64)
        loader = WebLoader(data, num_workers=4)

    DESCRIPTION
        A sample is a dict of ``__key__``, ``__url__`` and its fields, whose payloads are bytes until :meth:`decode`.
        Each stage method returns a new dataset. The order of an epoch is a function of the set, the seed and the
        epoch; after a finished iteration the next one is the next epoch. :meth:`state_dict` returns the exact place.

    WHAT IS READ
        urls             shards as everywhere in wdscli: paths, folders, globs, braces, manifests, URLs, one or a list
        join             "left", "inner" or "outer": the urls are sets, and a sample has the fields that all sets have
                         of its key, as with ``wds merge --join`` into a view. Nothing is written
        fields           the fields to read, all by default
        where, keys, keys_from
                         the samples to keep, as by wdscli's options of these names, as if the set had no others
        sample           a random subset of these, a number or a part: 1000, "10%"; with a seed: ("10%", 7)
        select_files, rename_files
                         functions of members' names
        trust_addresses  downloaded manifests and lists may name any address except commands; else only addresses
                         next to and below them and on their own host
        pipes            False refuses ``pipe:`` everywhere

    ORDER
        shuffle          "window" (shards permuted, samples permuted among ``window`` shards), "shards" (shards
                         permuted, samples in order within each), "full" or "none"
        window, seed     the shards that are mixed at a time, and the seed of the order
        shardshuffle     webdataset's name: True or a number for "shards"
        resampled, mode, repeat
                         an endless epoch, which :meth:`with_epoch` cuts; ``resampled`` is "shards" too

    RANKS AND WORKERS
        rank, world_size
                         the rank of this process; by default from the launcher and torch.distributed
        nodesplitter     "exact" shares each batch exactly; None gives every rank all samples; single_node_only,
                         webdataset's default, makes several ranks an error. A function of your own gets the shards,
                         ``{"url": ...}``, and yields those of this rank: shards are then read from front to back in
                         this order, and there is no state
        workersplitter   the same for workers of a DataLoader
        tail             the end of an epoch that the ranks cannot share evenly: see
                         :data:`~wdscli.loader.place.ranks.Tail`
        batch_size       without :meth:`batched`, the batch size of the DataLoader: ``DataLoader(data, batch_size=64)``
                         then makes the same batches for any number of workers; else every sample comes once, in
                         batches that depend on the workers

    ERRORS
        on_error         for a sample that cannot be read: "raise", "skip" (its batch is smaller) or "substitute"
                         (another one replaces it); :meth:`stats` counts them
        handler          webdataset's name: a function of the exception, which decides instead of "raise"
        empty_check      a set without samples is an error when it is iterated

    SPEED
        prefetch         bytes that each process may read ahead where that pays, 0 for none
        threads          threads in each process for the functions of samples, such as ``decode``
        cache_dir, cache_size
                         a folder for whole remote shards, and its size in bytes (-1: as much as the disc has), see
                         :mod:`wdscli.storage.cache`

    OF WEBDATASET, WITHOUT A MEANING HERE
        detshuffle, url_to_name, verbose
                         are ignored; every order is deterministic

    STREAMS
        If some shard can only be streamed (``pipe:``, ``-``, most compressed ones, a web server without ranges, a named
        pipe), all are: ranks and workers share shards, ``shuffle`` is a buffer, and a state is valid for the same
        number of ranks and workers only.

    SEE ALSO
        wdscli-loader(7), wdscli-webdataset(7)

    >>> from wdscli.shards import ShardWriter
    >>> folder = getfixture("tmp_path")
    >>> with ShardWriter(f"{folder}/in-%06d.tar", max_count=2) as writer:
    ...     for number in range(5):
    ...         writer.write(f"n{number}", {"cls": b"%d" % number})
    >>> data = WebDataset(f"{folder}/in-manifest.json").map(lambda sample: int(sample["cls"])).listed(2)
    >>> list(data)
    [[0, 1], [2, 3], [4]]
    """

    if TYPE_CHECKING:
        decode = giving(PositionDataset.decode, _SAMPLES)
        associate = giving(PositionDataset.associate, _SAMPLES)
        map_tuple = giving(PositionDataset.map_tuple, _TUPLES)
        to_tuple = giving(PositionDataset.to_tuple, _TUPLES)
        extract_keys = giving(PositionDataset.extract_keys, _TUPLES)
        compose = giving(PositionDataset.compose, _ANYTHING)
        map_dict = giving(PositionDataset.map_dict, _SAMPLES)
        xdecode = giving(PositionDataset.xdecode, _SAMPLES)

        def map(
            self, f: Callable[[Item], New | None], handler: Handler = reraise_exception
        ) -> WebDataset[New]: ...

        def listed(self, batchsize: int, partial: bool = True) -> WebDataset[list[Item]]: ...

        def unlisted(self: WebDataset[list[New]]) -> WebDataset[New]: ...

        @overload
        def batched(
            self: WebDataset[Unknown], batchsize: int = 20, *, partial: bool = True
        ) -> WebDataset[Any]: ...
        @overload
        def batched(
            self: WebDataset[dict[str, Any]], batchsize: int = 20, *, partial: bool = True
        ) -> WebDataset[Sample]: ...
        @overload
        def batched(
            self: WebDataset[tuple[Any, ...]], batchsize: int = 20, *, partial: bool = True
        ) -> WebDataset[tuple[Any, ...]]: ...
        @overload
        def batched(
            self, batchsize: int = 20, collation_fn: None = ..., partial: bool = True
        ) -> WebDataset[list[Item]]: ...
        @overload
        def batched(
            self,
            batchsize: int = 20,
            collation_fn: Callable[[list[Item]], New] = ...,
            partial: bool = True,
        ) -> WebDataset[New]: ...
        def batched(self, *args: Any, **more: Any) -> Any: ...

        @overload
        def unbatched(self: WebDataset[Unknown]) -> WebDataset[Any]: ...
        @overload
        def unbatched(self: WebDataset[dict[str, Any]]) -> WebDataset[Sample]: ...
        @overload
        def unbatched(self) -> WebDataset[tuple[Any, ...]]: ...
        def unbatched(self) -> Any: ...

    _shards: tuple[IndexedSource, Shuffle, Sequence[str] | None] | None = None
    """The set that a generator reads as whole shards, with order and fields; None if it gets samples by position."""

    def __init__(
        self: WebDataset[RawSample | Any],
        urls: Urls,
        *,
        join: JoinKind | None = None,
        shuffle: Shuffle | None = None,
        shardshuffle: bool | int | None = None,
        window: int = 64,
        seed: int | None = None,
        fields: str | Sequence[str] | None = None,
        where: str | None = None,
        keys: str | Sequence[str] | None = None,
        keys_from: str | None = None,
        sample: str | int | float | tuple[str | int | float, int] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        tail: Tail | None = None,
        batch_size: int | None = None,
        on_error: OnError = "raise",
        handler: Handler = reraise_exception,
        prefetch: str | int = PREFETCH,
        threads: int = 1,
        mode: str | None = None,
        resampled: bool = False,
        repeat: bool = False,
        detshuffle: bool = False,
        nodesplitter: Splitter | Literal["exact"] | None = "exact",
        workersplitter: Splitter | bool | None = split_by_worker,
        select_files: Callable[[str], bool] | None = None,
        rename_files: Callable[[str], str] | None = None,
        empty_check: bool = True,
        trust_addresses: bool = False,
        pipes: bool = True,
        cache_dir: str | None = None,
        cache_size: int = -1,
        url_to_name: Callable[[str], str] | None = None,
        verbose: bool = False,
    ) -> None:
        if mode not in (None, "resampled"):
            raise UsageError(
                f'WebDataset(mode="{mode}") is not supported', hint='use mode="resampled", or leave mode out'
            )
        resampled = resampled or mode == "resampled"
        if isinstance(urls, ShardList) and urls.is_exact:
            urls, resampled = urls.given, True
        order = _order(shuffle, shardshuffle, resampled)
        split, splitters = _sharing(nodesplitter, workersplitter, resampled, repeat)
        wanted = Wanted(where, keys, keys_from, sample)
        _check_sharing(split, splitters, wanted, rank)
        catalog = open_catalog(
            urls,
            wanted,
            Access(trust_addresses, pipes, cache_dir, cache_size, join),
            on_error=on_error,
            salvage=on_error != "raise" or handler is not reraise_exception,
            spelled=select_files is not None or rename_files is not None,
        )
        losses = catalog.losses if catalog.is_indexed else {}  # a stream counts those that it meets
        fields = wanted_fields(fields, catalog.fields)
        source: PositionSource
        if catalog.is_indexed and not splitters:
            source = IndexedSource(catalog, seed=seed or 0, shuffle=order, window=window, fields=fields)
        else:
            check_stream(catalog, order, tail, on_error)
            source = ShardStream(catalog, seed or 0, order, fields, splitters)
        # A generator in webdataset's code may join neighbours: it gets whole shards there.
        ours = (shuffle, tail, rank, where, keys, keys_from)
        is_theirs = ours == (None,) * len(ours) and on_error != "substitute" and not losses
        if is_theirs and isinstance(source, IndexedSource):
            self._shards = (source, order, fields)
        super().__init__(
            source,
            rank=rank,
            world_size=world_size,
            tail=tail,
            batch_size=batch_size,
            on_error=on_error,
            handler=handler,
            prefetch=prefetch,
            threads=threads,
        )
        self._policy.count_opened(losses, catalog.undecodable)
        self._split, self._empty_check = split, empty_check
        self._span = Epochs(None, None) if resampled or repeat else None
        if catalog.spelled:
            files = Files(select_files, rename_files)
            self.pipeline = self._guarded("select_files", files, handler).pipeline

    def _for_generator(self: Self) -> Self:
        """As whole shards from front to back, dealt to ranks and workers as in webdataset, if no argument or stage of
        our own contradicts that."""
        if self._shards is None or self.source is not self._shards[0]:
            return self
        if self.pipeline.batch is not None or self.pipeline.generators:
            return self
        source, shuffle, fields = self._shards
        stream = ShardStream(source.catalog, source.seed, shuffle, fields)
        stream.facts = f"{len(stream.addresses):,} shards, from front to back"
        return self._with(source=stream)


def _check_sharing(split: Split, splitters: Sequence[Splitter], wanted: Wanted, rank: int | None) -> None:
    """Raise UsageError for arguments that have no meaning with these splitters."""
    if splitters and not (wanted.is_all and rank is None):
        raise UsageError(
            "where=, keys=, keys_from=, sample= and rank= do not work with your own splitter",
            hint="leave the splitter out",
        )
    if rank is not None and not split.by_node:
        raise UsageError(
            "WebDataset(nodesplitter=None, rank=...)",
            hint="give one of them: None gives all samples to every rank",
        )


def _order(shuffle: Shuffle | None, shardshuffle: Any, resampled: bool) -> Shuffle:
    """The order of an epoch. Raises UsageError for an unknown one, and for two that contradict each other."""
    if shuffle:
        want_word("shuffle", shuffle, ORDERS)
    if shuffle == "none" and shardshuffle:
        raise UsageError(
            'WebDataset(shuffle="none", shardshuffle=...) contradict each other', hint="give one of them"
        )
    return shuffle or ("shards" if shardshuffle or resampled else "none")


def _sharing(nodes: Any, workers: Any, resampled: bool, repeat: bool) -> tuple[Split, tuple[Splitter, ...]]:
    """How ranks and workers share the samples: by position, or by splitters of the user's own, if any. An endless epoch
    is shared even if one of the splitters is None, because webdataset draws other shards in every worker. A resampled
    set without both is whole in every worker, each with an order of its own. Raises UsageError for a splitter that is
    no function."""
    chosen = split_by_node if nodes == "exact" else nodes, split_by_worker if workers is True else workers
    for argument, splitter in zip(("nodesplitter", "workersplitter"), chosen):
        if splitter and not callable(splitter):
            raise UsageError(
                f"WebDataset({argument}={splitter!r}) is no function", hint="wds.split_by_node, ..."
            )
    if any(splitter and not name_of(splitter) for splitter in chosen):
        return EXACT, tuple(splitter for splitter in chosen if splitter)
    alone = name_of(nodes) == "single_node_only"
    if resampled and nodes is None and not workers:
        return Split(by_node=False, by_worker=False, apart=True), ()
    if resampled or repeat:
        return EXACT._replace(alone=alone), ()
    return Split(by_node=nodes is not None, by_worker=bool(workers), alone=alone), ()
