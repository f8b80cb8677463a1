"""Whether ranks and workers share shards or samples: webdataset's splitters, and their meaning for a dataset.

What it is: :class:`Split`, and webdataset's functions. How: a dataset that is read by position shares each batch
exactly (see :mod:`wdscli.loader.place.share`), so a splitter there only switches sharing on: without it every rank or
worker has all samples. Over anything else, such as shards or the samples of a generator, a splitter takes every n-th
item, as webdataset's does. It must not know how samples are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from wdscli.errors import DataError, UsageError
from wdscli.loader.place.ranks import Share, find_worker, rank_in

NAMES = ("single_node_only", "split_by_node", "split_by_worker", "non_empty")


class Split(NamedTuple):
    """Whether ranks share the samples, and whether workers do; with ``alone`` several ranks are an error. Processes
    that do not share have the same order, or with ``apart`` each an order of its own."""

    by_node: bool = True
    by_worker: bool = True
    alone: bool = False
    apart: bool = False

    def share(self, share: Share) -> Share:
        """Return the share of a process. Raises UsageError for several ranks with ``alone``."""
        if self.alone and share.world > 1:
            raise several_nodes(share.world)
        if not self.by_node:
            share = share._replace(rank=0, world=1)
        return share if self.by_worker else share._replace(worker=0, workers=1)

    def order(self, share: Share) -> tuple[int, int]:
        """Return the number of the process's order, and the number of orders."""
        if not self.apart:
            return 0, 1
        rank, ranks = (0, 1) if self.by_node else share[:2]
        worker, workers = (0, 1) if self.by_worker else share[2:]
        return rank * workers + worker, ranks * workers

    def also(self, name: str) -> Split:
        """Add the splitter of this name."""
        if name == "single_node_only":
            return self._replace(alone=not self.by_node)
        return self._replace(
            by_node=self.by_node or name == "split_by_node",
            by_worker=self.by_worker or name == "split_by_worker",
        )


EXACT = Split()
"""Every sample goes to one worker of one rank: the default."""


def several_nodes(world: int) -> UsageError:
    return UsageError(
        f"single_node_only with {world} ranks",
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
        """Return ``dataset`` with this splitter."""
        return dataset._splitting(self)

    def __repr__(self) -> str:
        return f"wdscli.loader.{self.__name__}"

    def __reduce__(self) -> str:
        return self.__name__


@Splitter
def single_node_only(src: Iterable[Any], group: Any) -> Iterator[Any]:
    """All of ``src``. Raises UsageError for several ranks."""
    _, world = rank_in(group)
    if world > 1:
        raise several_nodes(world)
    yield from src


@Splitter
def split_by_node(src: Iterable[Any], group: Any) -> Iterator[Any]:
    """The items of ``src`` for this rank."""
    rank, world = rank_in(group)
    yield from islice(src, rank, None, world)


@Splitter
def split_by_worker(src: Iterable[Any], group: Any) -> Iterator[Any]:
    """The items of ``src`` for this worker."""
    worker, workers = find_worker()
    yield from islice(src, worker, None, workers)


@Splitter
def non_empty(src: Iterable[Any], group: Any) -> Iterator[Any]:
    """All of ``src``. Raises DataError if it is empty."""
    empty = True
    for item in src:
        empty = False
        yield item
    if empty:
        raise DataError("non_empty: no items", hint="are there fewer shards than workers?")


def name_of(splitter: Any) -> str | None:
    """Return the name of one of these splitters, or of webdataset's own; None for a user's function."""
    if isinstance(splitter, Splitter):
        return splitter.__name__
    name = getattr(splitter, "__name__", "")
    if name in NAMES and str(getattr(splitter, "__module__", "")).startswith("webdataset"):
        return str(name)
    return None
