"""A set of shards as a dataset: what ``WebDataset(...)`` takes, and what it is made of.

What it is: :class:`WebDataset`. It must not know how the samples of an epoch are ordered, read or shared.
"""

from __future__ import annotations

from collections.abc import Sequence

from wdscli.loader.catalog import Catalog
from wdscli.loader.dataset import PositionDataset
from wdscli.loader.order import Shuffle
from wdscli.loader.share import Tail
from wdscli.loader.source import IndexedSource


class WebDataset(PositionDataset):
    """The samples of a set of shards, in the order of an epoch.

    ``urls`` are shards as everywhere in wdscli: paths, folders, globs, braces, manifests, URLs, one or a list.
    ``shuffle`` is ``"window"`` (shards permuted, samples permuted among ``window`` shards), ``"full"`` or ``"none"``;
    ``shardshuffle``, webdataset's name, chooses between the first and the last. ``where``, ``keys`` and ``keys_from``
    keep the samples that wdscli's options of these names select, as if the set had no others (see
    :mod:`wdscli.loader.filters`).

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
        urls: str | Sequence[str],
        *,
        shuffle: Shuffle | None = None,
        shardshuffle: bool | int | None = None,
        window: int = 64,
        seed: int = 0,
        fields: Sequence[str] | None = None,
        where: str | None = None,
        keys: str | Sequence[str] | None = None,
        keys_from: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        tail: Tail | None = None,
    ) -> None:
        chosen: Shuffle = shuffle or ("window" if shardshuffle else "none")
        catalog = Catalog(urls)
        if where is not None or keys is not None or keys_from is not None:
            from wdscli.loader.filters import filtered

            catalog = filtered(catalog, where=where, keys=keys, keys_from=keys_from)
        source = IndexedSource(catalog, seed=seed, shuffle=chosen, window=window, fields=fields)
        super().__init__(source, rank=rank, world_size=world_size, tail=tail)
