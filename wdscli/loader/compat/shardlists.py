"""webdataset's lists of shards, which yield ``{"url": ...}``, and the splitters.

What it is: :class:`SimpleShardList`, :class:`ResampledShards` and :class:`MultiShardSample`, which begin a
``DataPipeline``; the splitters. How: a pipeline that the exact engine supports takes their addresses and does the rest
by position; any other pipeline iterates them, and splitters split the items. It must not know samples.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import islice
from random import Random
from typing import Any

from wdscli.errors import InputError, UsageError
from wdscli.loader.checks import Urls, addresses_of
from wdscli.loader.compat.extradatasets import redrawn
from wdscli.loader.compat.filters import FilterFunction
from wdscli.loader.compat.gone import add_hints
from wdscli.loader.compat.utils import make_seed, pytorch_worker_seed
from wdscli.loader.place.ranks import TorchIterable
from wdscli.loader.place.ranks import non_empty as non_empty
from wdscli.loader.place.ranks import single_node_only as single_node_only
from wdscli.loader.place.ranks import split_by_node as split_by_node
from wdscli.loader.place.ranks import split_by_worker as split_by_worker
from wdscli.storage.patterns import BRACES, expand_braces

__all__ = [
    "MultiShardSample",
    "ResampledShards",
    "SimpleShardList",
    "expand_source",
    "expand_urls",
    "non_empty",
    "resampled",
    "shardspec",
    "single_node_only",
    "split_by_node",
    "split_by_worker",
]


def expand_urls(urls: str) -> list[str]:
    """Return the addresses of a text with ``::``, ``${NAME}`` and braces. No file is searched."""
    parts = addresses_of(urls.split("::"))
    return [
        url for part in parts for url in (expand_braces(part, UsageError) if BRACES.search(part) else [part])
    ]


def expand_source(source: Urls, max_urls: int = 10**9) -> list[str]:
    """Return the addresses of a text or a list, at most ``max_urls``."""
    if isinstance(source, (str, os.PathLike)):
        return expand_urls(os.fspath(source))
    return addresses_of(islice(source, max_urls))


class _Shards(TorchIterable):
    """Yields ``{"url": ...}``; torch's DataLoader takes it for an IterableDataset."""

    urls: list[str]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.urls)} shards)"


class SimpleShardList(_Shards):
    """The shards that ``urls`` name, a text with braces or a list; shuffled if there is a ``seed``, True for 0. At the
    start of a pipeline of shards ``urls`` may be anything that ``WebDataset`` accepts."""

    def __init__(self, urls: Urls, seed: int | bool | None = None) -> None:
        self.given: Any = urls if isinstance(urls, (str, os.PathLike)) else list(urls)
        self.urls = expand_source(self.given)
        self.seed = 0 if seed is True else seed

    def __len__(self) -> int:
        return len(self.urls)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        urls = list(self.urls)
        if self.seed is not None:
            Random(self.seed).shuffle(urls)
        return ({"url": url} for url in urls)


class ResampledShards(_Shards):
    """Shards drawn at random, ``nshards`` of them or endless. In a pipeline that the exact engine runs, without
    ``nshards``, every sample comes once before any comes again."""

    def __init__(
        self,
        urls: Urls,
        nshards: int | None = None,
        seed: int = 0,
        worker_seed: Callable[[], int] | None = None,
        deterministic: bool = False,
        max_urls: int = 10**6,
        empty_check: bool = True,
    ) -> None:
        self.given: Any = urls if isinstance(urls, (str, os.PathLike)) else list(urls)
        self.urls = expand_source(self.given, max_urls)
        if empty_check and not self.urls:
            raise InputError("ResampledShards() without shards", hint="empty_check=False makes that no error")
        self.nshards, self.seed, self.deterministic = nshards, seed, deterministic
        self.worker_seed = worker_seed or pytorch_worker_seed
        self.epoch = -1

    @property
    def is_exact(self) -> bool:
        """Whether an endless order can replace the draws."""
        return self.nshards is None and self.worker_seed is pytorch_worker_seed

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.epoch += 1
        seed = make_seed(self.worker_seed(), self.epoch, self.seed) if self.deterministic else None
        return ({"url": url} for url in redrawn(self.urls, self.nshards, Random(seed)))


def resampled(n: int | None = None) -> FilterFunction:
    """A stage that draws ``n`` of its items, each from all of them; endless for None."""
    return FilterFunction(redrawn, n)


class MultiShardSample(_Shards):
    """Shards of several sets in one order, by a specification: a dict with ``datasets``, ``prefix`` and ``buckets``.
    Each dataset has ``shards``, and maybe ``resample`` or ``choose``."""

    def __init__(self, fname: dict[str, Any] | str) -> None:
        if not isinstance(fname, dict):
            said = f"MultiShardSample({fname!r}): a specification is a dict"
            raise UsageError(said, hint="MultiShardSample(yaml.safe_load(open(path)))")
        _want_names(fname, "prefix datasets buckets")
        self.sources = [_source(fname, one) for one in fname["datasets"]]
        self.urls = [url for urls, _, _ in self.sources for url in urls]
        self.rng = Random(0)  # ranks that split the shards must draw the same ones

    def set_epoch(self, seed: int) -> None:
        """The seed of the next epoch, for all ranks the same."""
        self.rng = Random(seed)

    def get_shards_for_epoch(self) -> list[str]:
        """The shards of one epoch."""
        found: list[str] = []
        for urls, resample, choose in self.sources:
            if resample > 0:
                found += self.rng.choices(urls, k=resample)
            else:
                found += self.rng.sample(urls, choose) if choose > 0 else urls
        self.rng.shuffle(found)
        return found

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return ({"url": url} for url in self.get_shards_for_epoch())


def _want_names(spec: dict[str, Any], names: str) -> None:
    unknown = set(spec) - set(names.split())
    if unknown:
        raise UsageError(f"a specification has no {', '.join(sorted(unknown))}", hint=names)


def _source(spec: dict[str, Any], one: dict[str, Any]) -> tuple[list[str], int, int]:
    """Return the addresses of a set, the number of draws, and the number of chosen shards; 0 for all."""
    _want_names(one, "buckets name shards resample choose")
    buckets = one.get("buckets", spec.get("buckets")) or [""]
    buckets = [buckets] if isinstance(buckets, str) else buckets
    if len(buckets) > 1:
        raise UsageError("a set of several buckets in a specification", hint="one set for each")
    shards = [one["shards"]] if isinstance(one["shards"], str) else one["shards"]
    parts = [_variables(part) for part in (spec.get("prefix", ""), buckets[0])]
    names = [name for shard in shards for name in expand_braces(_variables(shard), UsageError)]
    urls = [parts[0] + os.path.join(parts[1], name) for name in names]
    resample, choose = int(one.get("resample", 0)), int(one.get("choose", 0))
    if (resample > 0 and choose > 0) or choose > len(urls):
        raise UsageError(
            f"a specification cannot choose {choose} or resample {resample} of {len(urls)} shards"
        )
    return urls, max(0, resample), max(0, choose)


def _variables(text: str) -> str:
    return os.path.expanduser(os.path.expandvars(text))


def shardspec(spec: str) -> _Shards:
    """:class:`SimpleShardList` of addresses; a ``.yaml`` file is refused with a hint."""
    return MultiShardSample(spec) if spec.endswith(".yaml") else SimpleShardList(spec)


add_hints(__name__)
