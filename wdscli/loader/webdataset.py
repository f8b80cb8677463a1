"""A set of shards as a dataset: what ``WebDataset(...)`` takes, and what it is made of.

What it is: :class:`WebDataset`, and :class:`Dataset`, which is its old name. Takes every argument that webdataset's
takes; one that means nothing here is refused with a hint when it asks for something, and never passed over in silence.
It must not know how the samples of an epoch are ordered, read or shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from wdscli.errors import UsageError
from wdscli.loader.checks import Urls, addresses_of, wanted_fields
from wdscli.loader.dataset import PositionDataset
from wdscli.loader.order.order import Shuffle
from wdscli.loader.place.share import Tail
from wdscli.loader.place.splitters import check_splitter, single_node_only, split_by_worker
from wdscli.loader.read.catalog import Catalog
from wdscli.loader.read.failures import Failed, OnError
from wdscli.loader.read.reading import PREFETCH
from wdscli.loader.read.source import IndexedSource, PositionSource
from wdscli.loader.stages.fluent import Epochs
from wdscli.loader.stages.handlers import Handler, StopEpoch, reraise_exception
from wdscli.loader.stages.per_sample import Files
from wdscli.storage.addresses import check_pipe

Self = TypeVar("Self", bound="WebDataset")
Splitter: TypeAlias = Callable[..., Any]


class WebDataset(PositionDataset):
    """The samples of a set of shards, in the order of an epoch.

    ``urls`` are shards as everywhere in wdscli: paths, folders, globs, braces, manifests, URLs, one or a list.
    ``shuffle`` is ``"window"`` (shards permuted, samples permuted among ``window`` shards), ``"full"`` or ``"none"``;
    ``shardshuffle``, webdataset's name, chooses between the first and the last. ``where``, ``keys`` and ``keys_from``
    keep the samples that wdscli's options of these names select, as if the set had no others (see
    :mod:`wdscli.loader.read.selected`). ``resampled`` and ``repeat`` give an epoch without end, which ``with_epoch``
    cuts. ``on_error`` says what becomes of a sample that cannot be read: ``"raise"``, ``"skip"`` (its batch is smaller)
    or ``"substitute"`` (another one is given in its place, see :mod:`wdscli.loader.read.failures`); :meth:`stats`
    counts them. ``handler``, webdataset's name, decides instead of ``"raise"``. ``prefetch`` is how many bytes each
    process may read ahead (0 for none), where reading ahead pays; ``threads`` run the functions of samples, such as
    ``decode``, in each process. ``batch_size`` is for who does without :meth:`batched`: as in ``DataLoader(data,
    batch_size=64)``, whose batches are then the same for any number of workers; else every sample comes once, in
    batches that depend on it. ``select_files`` and ``rename_files`` are functions of members' names. ``empty_check``
    makes a set without samples an error when it is iterated. Manifests, and lists that are fetched, may name what lies
    beside and below them and on their own host; with ``trust_addresses`` anything but commands. ``pipes=False`` refuses
    ``pipe:`` everywhere.

    When some shard can only be streamed (``pipe:``, ``-``, compressed, a web server without ranges, a named pipe), all
    are, see :mod:`wdscli.loader.streams`: ranks and workers share shards, ``shuffle`` is a buffer, and a state is of as
    many ranks and workers only.

    Ranks and workers share each batch exactly, whatever the splitters are. ``detshuffle``, ``cache_size``,
    ``url_to_name`` and ``verbose`` have nothing to say here.

    >>> from wdscli.shards import ShardWriter
    >>> folder = getfixture("tmp_path")
    >>> with ShardWriter(f"{folder}/in-%06d.tar", max_count=2) as writer:
    ...     for number in range(5):
    ...         writer.write(f"n{number}", {"cls": b"%d" % number})
    >>> data = WebDataset(f"{folder}/in-manifest.json").map(lambda sample: int(sample["cls"])).listed(2)
    >>> list(data)
    [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self,
        urls: Urls,
        *,
        shuffle: Shuffle | None = None,
        shardshuffle: bool | int | None = None,
        window: int = 64,
        seed: int | None = None,
        fields: str | Sequence[str] | None = None,
        where: str | None = None,
        keys: str | Sequence[str] | None = None,
        keys_from: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        tail: Tail | None = None,
        batch_size: int = 1,
        on_error: OnError = "raise",
        handler: Handler = reraise_exception,
        prefetch: str | int = PREFETCH,
        threads: int = 1,
        mode: str | None = None,
        resampled: bool = False,
        repeat: bool = False,
        detshuffle: bool = False,
        nodesplitter: Splitter | None = single_node_only,
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
            raise UsageError(f'WebDataset(mode="{mode}") is not there', hint='mode="resampled", or none')
        resampled = resampled or mode == "resampled"
        if cache_dir is not None:
            raise UsageError(
                "WebDataset(cache_dir=) is not there",
                hint="leave it out: only the ranges that are needed are read; or copy the shards with `wds cat`",
            )
        check_splitter("nodesplitter", nodesplitter)
        check_splitter("workersplitter", workersplitter)
        check_pipe(keys_from or "", pipes=pipes)
        catalog = Catalog(
            addresses_of(urls),
            salvage=on_error != "raise" or handler is not reraise_exception,
            trust_addresses=trust_addresses,
            pipes=pipes,
        )
        catalog.spelled = select_files is not None or rename_files is not None
        if where is not None or keys is not None or keys_from is not None:
            from wdscli.loader.read.selected import filtered

            catalog = filtered(catalog, where=where, keys=keys, keys_from=keys_from, on_error=on_error)
        losses = catalog.losses if catalog.is_indexed else {}  # a stream counts what it comes to
        fields = wanted_fields(fields, catalog.fields)
        if shuffle == "none" and shardshuffle:
            raise UsageError(
                'WebDataset(shuffle="none", shardshuffle=...) cannot both be', hint="give one of them"
            )
        chosen: Shuffle = shuffle or ("window" if shardshuffle or resampled else "none")
        source: PositionSource
        if catalog.is_indexed:
            source = IndexedSource(catalog, seed=seed or 0, shuffle=chosen, window=window, fields=fields)
        else:
            from wdscli.loader.streams import opened_stream

            source = opened_stream(catalog, seed or 0, chosen, fields, tail=tail, on_error=on_error)
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
        for address, error in sorted(losses.items()):
            with suppress(StopEpoch):  # webdataset, too, goes on with the next shard
                self._policy.leave_out(Failed(error, address))
        for address, number in catalog.undecodable.items():
            self._counts.add(address, "where: undecodable", number)
        self._empty_check = empty_check
        self._span = Epochs(None, None) if resampled or repeat else None
        if catalog.spelled:
            files = Files(select_files, rename_files)
            self.pipeline = self._guarded("select_files", files, handler).pipeline

    def close(self) -> None:
        """Nothing is left open between iterations; here for code that closes."""

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Dataset(WebDataset):
    """:class:`WebDataset` with the arguments that it had when it was named so: ``length`` (as with_length), ``epochs``
    (as repeat), ``shuffle`` of shards as a bool, ``suffixes`` (as fields)."""

    def __init__(
        self,
        urls: Urls,
        *,
        length: int | None = None,
        epochs: int = 1,
        shuffle: bool | Shuffle = False,
        suffixes: Iterable[str] | None = None,
        opener: Any = None,
        prepare_for_worker: bool = True,
        **more: Any,
    ) -> None:
        if opener is not None or not prepare_for_worker:
            raise UsageError("Dataset(opener=, prepare_for_worker=) are not there", hint="leave them out")
        if suffixes is not None:
            more["fields"] = suffixes
        if isinstance(shuffle, str):
            more["shuffle"] = shuffle
        else:
            more.setdefault("shardshuffle", shuffle)
        super().__init__(urls, **more)
        self._length = length
        if epochs != 1:
            self._span = Epochs(epochs, None)

    def pipe(self: Self, stage: Any) -> Self:
        """The old name of :meth:`compose`."""
        return self.compose(stage)
