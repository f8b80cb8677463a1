"""This module has :class:`WebDataset`, a shard set as a dataset, and checks its arguments.

WebDataset accepts every argument of webdataset's class. If an argument would change the result in webdataset but has no
meaning here, it is an error with a hint; it is never ignored. This module does not know how samples are ordered, read
or divided."""

# Methods that change the type of items are declared here, because the base classes cannot declare their types.
# mypy: disable-error-code="assignment, override"

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast

from wdscli.errors import UsageError
from wdscli.loader.checks import ShardList, Urls, want_word, wanted_fields
from wdscli.loader.dataset import PositionDataset
from wdscli.loader.order.order import ORDERS, Shuffle
from wdscli.loader.order.source import PositionSource
from wdscli.loader.place.cuts import Epochs
from wdscli.loader.place.ranks import (
    EXACT,
    Split,
    Tail,
    name_of,
    rank_in_mesh,
    split_by_node,
    split_by_worker,
)
from wdscli.loader.read.catalog import Access
from wdscli.loader.read.failures import Handler, OnError, reraise_exception
from wdscli.loader.read.reading import PREFETCH, IndexedSource
from wdscli.loader.read.renamed import RenamedCatalog, Renaming, RuledNames, renamed
from wdscli.loader.read.selected import Criteria, open_catalog
from wdscli.loader.stages.flow import Item, RawSample, Sample
from wdscli.loader.stages.per_sample import MemberFilter
from wdscli.loader.streams import ShardStream, check_stream

if TYPE_CHECKING:
    from wdscli.loader.stages.flow import giving
    from wdscli.plan.join import JoinKind

    New = TypeVar("New")
    _SAMPLES = cast("WebDataset[Sample]", None)
    _TUPLES = cast("WebDataset[tuple[Any, ...]]", None)
    _ANYTHING = cast("WebDataset[Any]", None)

Self = TypeVar("Self", bound="WebDataset")
Splitter: TypeAlias = Callable[..., Any]


class WebDataset(PositionDataset[Item]):
    """A dataset that yields the samples in a set of shards, in the order of an epoch.

    SYNOPSIS
        data = WebDataset("set/train-{000000..000099}.tar", shuffle="window", seed=1)
        data = data.decode("pil").to_tuple("jpg", "cls").batched(64)
        loader = WebLoader(data, num_workers=4)

    DESCRIPTION
        A sample is a dict of ``__key__``, ``__url__`` and its fields, whose payloads are bytes until :meth:`decode`.
        Each stage method returns a new dataset. The order of an epoch depends only on the set, the seed and the epoch.
        After a finished iteration, the next iteration is the next epoch. :meth:`state_dict` returns the exact place.

    WHAT IS READ
        urls             an address or a list of addresses: paths, folders, globs, braces, manifests, URLs
        join             "left", "inner" or "outer": each url is a set, and samples with the same key are joined,
                         like by ``wds merge --join``, but nothing is written
        fields           the fields to read; by default all
        where, keys, keys_from
                         conditions for the samples to keep, like the command options of these names; for the
                         dataset, other samples do not exist. With ("list.txt", "json.url"), a file lists values
        sample           a random subset of these samples, a number or a share: 1000, "10%"; with a seed: ("10%", 7)
        select_files, rename_files
                         functions of a member's name, as in webdataset. If the new names make other samples, the
                         loader reads the indexes of all shards when it opens the set
        key_rule         where a key ends: "first-dot", "last-dot" or a regular expression with two groups, as in
                         ``wds create --key-rule``. Dots in keys become ``_``. It acts like ``rename_files``
        values           a table with a column ``key`` (CSV, TSV, JSON Lines or Parquet). It has the numbers for
                         :meth:`packed` and ``batched(bucket=)``, if the indexes of the set do not have them
        trust_addresses  with True, downloaded manifests and lists may name any address except commands; by default
                         only files in and below their own folder, and URLs on their own host
        pipes            with False, ``pipe:`` addresses are refused

    ORDER
        shuffle          "window" permutes the shards, and then the samples of each group of ``window`` shards;
                         "blocks" does the same with blocks of about 4 MB, for object stores; "shards" permutes only
                         the shards; "full" permutes all samples; "none" keeps the order of the set
        window, seed     the number of shards or blocks whose samples are mixed together, and the seed of the order.
                         ``seed=None``, the default, means 0: every run has the same orders
        shardshuffle     webdataset's argument: True or a number means ``shuffle="shards"``
        resampled, mode, repeat
                         an endless epoch, which :meth:`with_epoch` limits; ``resampled`` also sets ``shuffle="shards"``

    RANKS AND WORKERS
        rank, world_size
                         the rank of this process and the number of ranks; by default from the launcher or
                         torch.distributed
        mesh             the dimensions of a DeviceMesh of torch that divide the data, such as ``device_mesh["dp"]``,
                         instead of ``rank`` and ``world_size``. Ranks along other dimensions get the same batches
        nodesplitter     "exact" divides each batch among the ranks; None gives every rank all samples; with
                         single_node_only, webdataset's default, several ranks are an error. Your own function gets
                         the shards as ``{"url": ...}``, and yields the shards of this rank. Then shards are read from
                         beginning to end in this order, and the dataset has no state
        workersplitter   how workers of a DataLoader divide the samples, with the same values as ``nodesplitter``
        tail             what to do with the end of an epoch if it cannot be divided evenly among the ranks; see
                         :data:`~wdscli.loader.place.ranks.Tail`
        batch_size       the batch size of a DataLoader, if you do not call :meth:`batched`. With the same number,
                         ``DataLoader(data, batch_size=64)`` makes the same batches for any number of workers;
                         otherwise the batches depend on the number of workers

    ERRORS
        on_error         what to do with a sample that cannot be read: "raise", "skip" (its batch is smaller) or
                         "substitute" (another sample replaces it); :meth:`stats` counts such samples
        handler          webdataset's argument: a function that gets the exception and decides, for "raise"
        empty_check      with True, the iteration of a set without samples is an error

    SPEED
        prefetch         the number of bytes that each process may read ahead; 0 turns reading ahead off
        threads          the number of threads in each process for functions of samples, such as ``decode``
        cache_dir, cache_size
                         a folder for copies of remote shards, and its limit in bytes (-1: the free space of the
                         disc); see :mod:`wdscli.storage.cache`

    ARGUMENTS OF WEBDATASET WITHOUT EFFECT
        detshuffle, url_to_name, verbose
                         ignored; every order is deterministic

    STREAMS
        If one shard can only be streamed (``pipe:``, ``-``, most compressed shards, a web server without ranges, a
        named pipe), all shards are streamed. Then whole shards are divided among ranks and workers, :meth:`shuffle`
        uses a buffer, and a state is valid only for the same numbers of ranks and workers.

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
        batched = giving(PositionDataset.batched, _ANYTHING)
        unbatched = giving(PositionDataset.unbatched, _ANYTHING)
        map_dict = giving(PositionDataset.map_dict, _SAMPLES)
        xdecode = giving(PositionDataset.xdecode, _SAMPLES)

        def map(
            self, f: Callable[[Item], New | None], handler: Handler = reraise_exception
        ) -> WebDataset[New]: ...

        def listed(self, batchsize: int, partial: bool = True) -> WebDataset[list[Item]]: ...

        def unlisted(self: WebDataset[list[New]]) -> WebDataset[New]: ...

    _renaming: Renaming | None = None
    _shards: tuple[IndexedSource, Shuffle, Sequence[str] | None] | None = None
    """The set, its order and its fields, or None. A generator as the next stage reads whole shards if this value is
    set."""

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
        keys_from: str | tuple[str, str] | None = None,
        sample: str | int | float | tuple[str | int | float, int] | None = None,
        values: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: Any = None,
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
        key_rule: str = "first-dot",
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
        if mesh is not None:
            if (rank, world_size) != (None, None):
                raise UsageError(
                    "WebDataset(mesh=, rank=, world_size=)", hint="leave out rank= and world_size="
                )
            rank, world_size = rank_in_mesh(mesh)
        if key_rule != "first-dot":
            if rename_files is not None:
                raise UsageError("WebDataset(key_rule=, rename_files=)", hint="leave out one of them")
            rename_files = RuledNames(key_rule)
        order = _order(shuffle, shardshuffle, resampled)
        split, splitters = _sharing(nodesplitter, workersplitter, resampled, repeat)
        wanted = Criteria(where, keys, keys_from, sample)
        _check_sharing(split, splitters, wanted, rank)
        catalog = open_catalog(
            urls,
            wanted,
            Access(trust_addresses, pipes, cache_dir, cache_size, join, values),
            on_error=on_error,
            salvage=on_error != "raise" or handler is not reraise_exception,
            spelled=select_files is not None or rename_files is not None,
        )
        renaming = None if rename_files is None else Renaming(rename_files, select_files, handler)
        if renaming is not None and catalog.is_indexed and not splitters:
            catalog = renamed(catalog, renaming)
        losses = catalog.losses if catalog.is_indexed else {}  # a stream counts losses when it reads them
        fields = wanted_fields(fields, catalog.fields)
        source: PositionSource
        if catalog.is_indexed and not splitters:
            source = IndexedSource(catalog, seed=seed or 0, shuffle=order, window=window, fields=fields)
        else:
            check_stream(catalog, order, tail, on_error)
            source = ShardStream(catalog, seed or 0, order, fields, splitters, renaming)
        # A generator written for webdataset may join neighbouring samples, because in webdataset it gets whole shards.
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
        self._cuts = (Epochs(None, None),) if resampled or repeat else ()
        self._renaming = renaming
        is_grouped = isinstance(catalog, RenamedCatalog) or (renaming is not None and source.is_stream)
        if catalog.spelled and not is_grouped:
            files = MemberFilter(select_files, rename_files)
            self.pipeline = self._guarded("select_files", files, handler).pipeline

    def _for_generator(self: Self) -> Self:
        """Return a dataset that reads whole shards from beginning to end, and divides shards among ranks and workers,
        like webdataset. If an argument or stage of this dataset does not allow that, return the dataset itself."""
        if self._shards is None or self.source is not self._shards[0]:
            return self
        if self.pipeline.batch is not None or self.pipeline.generators:
            return self
        source, shuffle, fields = self._shards
        stream = ShardStream(source.catalog, source.seed, shuffle, fields, renaming=self._renaming)
        stream.facts = f"{len(stream.addresses):,} shards, from front to back"
        new = self._with(source=stream)
        if self._renaming is not None:  # the stream renames before it groups
            before = (stage for stage in self.pipeline.before if not isinstance(stage, MemberFilter))
            new.pipeline = self.pipeline._replace(before=tuple(before))
        return new


def _check_sharing(split: Split, splitters: Sequence[Splitter], wanted: Criteria, rank: int | None) -> None:
    """Raise UsageError for arguments that cannot be combined with these splitters."""
    if splitters and not (wanted.is_all and rank is None):
        raise UsageError(
            "where=, keys=, keys_from=, sample= and rank= do not work with your own splitter",
            hint="leave the splitter out",
        )
    if rank is not None and not split.by_node:
        raise UsageError(
            "WebDataset(nodesplitter=None, rank=...)",
            hint="leave out one of them: nodesplitter=None gives all samples to every rank",
        )


def _order(shuffle: Shuffle | None, shardshuffle: Any, resampled: bool) -> Shuffle:
    """Return the order of an epoch. Raises UsageError for an unknown order, and if two arguments contradict each
    other."""
    hint = 'shuffle="window" suits most sets; .shuffle(1000) mixes in a buffer'
    if shuffle:
        want_word("shuffle", shuffle, ORDERS, hint)
    if shuffle == "none" and shardshuffle:
        raise UsageError(
            'WebDataset(shuffle="none", shardshuffle=...) contradict each other', hint="give one of them"
        )
    return shuffle or ("shards" if shardshuffle or resampled else "none")


def _sharing(nodes: Any, workers: Any, resampled: bool, repeat: bool) -> tuple[Split, tuple[Splitter, ...]]:
    """Return how ranks and workers divide the samples: by position, or with the user's splitters. The samples of an
    endless epoch are divided even if one splitter is None, because webdataset draws different shards in each worker. If
    both splitters of a resampled set are None, every worker reads the whole set in its own order. Raises UsageError for
    a splitter that is not a function."""
    chosen = split_by_node if nodes == "exact" else nodes, split_by_worker if workers is True else workers
    for argument, splitter in zip(("nodesplitter", "workersplitter"), chosen):
        if splitter and not callable(splitter):
            raise UsageError(
                f"WebDataset({argument}={splitter!r}): {argument}= must be a function",
                hint="wds.split_by_node, ...",
            )
    if any(splitter and not name_of(splitter) for splitter in chosen):
        return EXACT, tuple(splitter for splitter in chosen if splitter)
    alone = name_of(nodes) == "single_node_only"
    if resampled and nodes is None and not workers:
        return Split(by_node=False, by_worker=False, apart=True), ()
    if resampled or repeat:
        return EXACT._replace(alone=alone), ()
    return Split(by_node=nodes is not None, by_worker=bool(workers), alone=alone), ()
