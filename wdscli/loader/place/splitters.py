"""Who shares shards or samples: webdataset's splitters, and what a dataset is told by them.

What it is: :class:`Split`, which of a dataset's ranks and workers share its samples, and webdataset's functions. How: a
dataset that is read by position shares each batch exactly (see :mod:`wdscli.loader.place.share`), so a splitter there
says only whether there is anything to share: what is not split, all have whole. Over anything else, such as shards or
the samples of a generator, a splitter takes every n-th, as webdataset's does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from wdscli.errors import DataError, UsageError
from wdscli.loader.place.ranks import Share, find_worker, rank_in

NAMES = ("single_node_only", "split_by_node", "split_by_worker", "non_empty")


class Split(NamedTuple):
    """Whether ranks share the samples, and workers; ``alone`` when several ranks are an error. Those who do not share
    have the same order, or, ``apart``, each an order of its own."""

    by_node: bool = True
    by_worker: bool = True
    alone: bool = False
    apart: bool = False

    def share(self, share: Share) -> Share:
        """What is to be made of ``share``. Raises UsageError for one of several ranks where only one may be."""
        if self.alone and share.world > 1:
            raise several_nodes(share.world)
        if not self.by_node:
            share = share._replace(rank=0, world=1)
        return share if self.by_worker else share._replace(worker=0, workers=1)

    def order(self, share: Share) -> tuple[int, int]:
        """Which of how many orders the process has whose ``share`` it is."""
        if not self.apart:
            return 0, 1
        rank, ranks = (0, 1) if self.by_node else share[:2]
        worker, workers = (0, 1) if self.by_worker else share[2:]
        return rank * workers + worker, ranks * workers

    def also(self, name: str) -> Split:
        """The same behind the splitter of this name."""
        if name == "single_node_only":
            return self._replace(alone=not self.by_node)
        return self._replace(
            by_node=self.by_node or name == "split_by_node",
            by_worker=self.by_worker or name == "split_by_worker",
        )


EXACT = Split()
"""Every sample goes to one worker of one rank: what a dataset does that is told nothing."""


def several_nodes(world: int) -> UsageError:
    return UsageError(
        f"single_node_only, and these are {world} ranks",
        hint="nodesplitter=wds.split_by_node shares the samples among them, nodesplitter=None gives all to each",
    )


class Splitter:
    """One of webdataset's functions."""

    def __init__(self, split: Callable[[Iterable[Any], Any], Iterator[Any]]) -> None:
        self.__name__, self.__doc__ = split.__name__, split.__doc__
        self._split = split

    def __call__(self, src: Iterable[Any], group: Any = None) -> Iterator[Any]:
        return self._split(src, group)

    def added_to(self, dataset: Any) -> Any:
        """The dataset behind this: one that is read by position is told, others are gone through."""
        told = getattr(dataset, "_splitting", None)
        return dataset._through(self) if told is None else told(self.__name__)

    def __repr__(self) -> str:
        return f"wdscli.loader.{self.__name__}"

    def __reduce__(self) -> str:
        return self.__name__


@Splitter
def single_node_only(src: Iterable[Any], group: Any) -> Iterator[Any]:
    """All of ``src``, where there is one rank."""
    _, world = rank_in(group)
    if world > 1:
        raise several_nodes(world)
    yield from src


@Splitter
def split_by_node(src: Iterable[Any], group: Any) -> Iterator[Any]:
    """Those of ``src`` that this rank has."""
    rank, world = rank_in(group)
    yield from islice(src, rank, None, world)


@Splitter
def split_by_worker(src: Iterable[Any], group: Any) -> Iterator[Any]:
    """Those of ``src`` that this worker has."""
    worker, workers = find_worker()
    yield from islice(src, worker, None, workers)


@Splitter
def non_empty(src: Iterable[Any], group: Any) -> Iterator[Any]:
    """All of ``src``. Raises DataError where nothing comes."""
    empty = True
    for item in src:
        empty = False
        yield item
    if empty:
        raise DataError("nothing came to non_empty", hint="are there fewer shards than workers?")


def name_of(splitter: Any) -> str | None:
    """Which of these ``splitter`` is, or of webdataset's own; None for a function of the user's."""
    if isinstance(splitter, Splitter):
        return splitter.__name__
    name = getattr(splitter, "__name__", "")
    if name in NAMES and str(getattr(splitter, "__module__", "")).startswith("webdataset"):
        return str(name)
    return None
