"""webdataset's names for who reads which shards, which have nothing left to do.

What it is: functions that leave what they get as it is. Ranks and workers share the samples of every batch exactly
(see :mod:`wdscli.loader.place.share`), so shards are never split among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from wdscli.errors import UsageError

NAMES = ("single_node_only", "split_by_node", "split_by_worker", "non_empty")


class Splitter:
    """A stage that leaves all to the loader's own split."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, src: Iterable[Any], group: Any = None) -> Iterator[Any]:
        return iter(src)

    def added_to(self, dataset: Any) -> Any:
        """The dataset, as it is."""
        return dataset

    def __repr__(self) -> str:
        return f"wdscli.loader.{self.__name__}"

    def __reduce__(self) -> str:
        return self.__name__


single_node_only = Splitter("single_node_only")
split_by_node = Splitter("split_by_node")
split_by_worker = Splitter("split_by_worker")
non_empty = Splitter("non_empty")


def check_splitter(argument: str, splitter: Any) -> None:
    """Raise UsageError for a function of the user's own, which nothing would call."""
    if not splitter or splitter is True or getattr(splitter, "__name__", "") in NAMES:
        return
    raise UsageError(
        f"WebDataset({argument}={getattr(splitter, '__name__', splitter)}): shards are not split",
        hint="every rank and worker gets its samples of each batch; rank= and world_size= say who this is",
    )
