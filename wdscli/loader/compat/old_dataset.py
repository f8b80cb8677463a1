"""``wds.Dataset``, the old name of WebDataset, with the arguments that it had.

What it is: :class:`Dataset`. It must not know shards.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from wdscli.errors import UsageError
from wdscli.loader.checks import Urls
from wdscli.loader.order.order import Shuffle
from wdscli.loader.sample_types import Item, RawSample
from wdscli.loader.stages.fluent import Epochs
from wdscli.loader.webdataset import WebDataset


class Dataset(WebDataset[Item]):
    """:class:`WebDataset` with its arguments under the old name: ``length`` (with_length), ``epochs`` (repeat),
    ``shuffle`` of shards as a bool, ``suffixes`` (fields)."""

    def __init__(
        self: Dataset[RawSample | Any],
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
            raise UsageError("Dataset(opener=, prepare_for_worker=) are not supported", hint="leave them out")
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

    def pipe(self, stage: Any) -> Any:
        """The old name of :meth:`compose`."""
        return self.compose(stage)
