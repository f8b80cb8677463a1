"""Training code imports this package, which offers shard sets as iterable datasets and as tables.

Importing this package loads neither torch nor numpy. Each name is loaded when it is first used.

Each noun of this table has one meaning in the whole loader. The module in parentheses defines the noun.

    set         shards that are read as one sequence of samples
    catalog     the shards of a set: the counts of their samples, and the offsets of samples (``read.catalog``)
    sample      a dict with the key, the address and the fields
    stream      shards that can only be read from beginning to end (``streams``)
    position    the number of a sample in an epoch, from 0
    order       the sample at each position of an epoch; it depends only on the seed and the epoch (``order.order``)
    order block adjacent samples of a shard, about 4 MB, which ``shuffle="blocks"`` keeps together (``order.order``)
    source      the samples of an epoch by position: a set, a view of another source, or a mix (``order.source``)
    view        a source made from another source: a part of it, or another order (``order.source``)
    table       an ``IndexedDataset``: samples by number or key. An ordinal is a sample's number in the set, even if
                the table shows only a part of the set (``indexed``)
    batch       the samples of one rank at neighbouring positions; a global batch has the samples of all ranks
    share       the rank and worker of a process, and the numbers of ranks and workers (``place.ranks``)
    cut         a slice, or another length of epochs (``place.cuts``)
    pass        one epoch of a set, if an epoch of the dataset joins several (``order.source.Passes``)
    place       the point before a batch of an epoch; a state is a place as plain values (``place.state``)
    iteration   the progress through the items of one epoch; the iteration state of a dataset has the place of the
                latest iteration and the start of the next one (``place.iteration``)
    board       the epoch numbers that a process shares with its workers (``place.iteration``)
    rows        some samples of one shard, compared with its index and returned as dictionaries (``read.rows``)
    fetcher     reads samples by shard and number, for one thread; a pool lends fetchers to threads (``read.fetch``)
    read        the samples of a batch after reading; a block has batches that are read together (``read.reading``)
    failed      the placeholder of a sample that cannot be read; the policy decides about it (``read.failures``)
    spare       a reader for the substitutes of failed samples (``order.source``)
    filter      chooses the samples of a set; a filtered catalog counts only these (``read.selected``)
    handler     a function that gets an exception of a stage; a guard calls it and counts samples (``read.failures``)
    stage       a function of a sample, one that makes batches, one of a batch, or a generator (``stages``)
    pipeline    the stages of a dataset, in order (``stages.flow``)
    unit        the result of the pipeline for one batch; an iteration yields the items of its units
    counts      the numbers of skipped samples by shard and reason (``read.failures``)
    mix         several sets combined by rules; a tagged sample has the number of its set (``mixing``)
    engine      the code that iterates: the exact engine by position (``dataset``), or plain generators (``compat``)
"""

from __future__ import annotations

from importlib import import_module

# A constant instead of ``typing.TYPE_CHECKING``: to import typing takes longer than the rest of this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from wdscli.loader.compat.names import *  # noqa: F403
    from wdscli.loader.names import *  # noqa: F403

_MODULES = """
autodecode cache compat extradatasets filters handlers pipeline pytorch shardlists tariterators utils writer
"""
"""Modules of webdataset that are in the folder ``compat``, and are also attributes of this package."""
_NAMES = ("wdscli.loader.names", "wdscli.loader.compat.names")
"""The modules with the names of this package: the loader's own names, and webdataset's names, for code written for
webdataset."""


if not TYPE_CHECKING:  # with __getattr__, a type checker would accept any name

    def __getattr__(name: str) -> Any:
        if name in _MODULES.split():
            return import_module(f"wdscli.loader.{'' if name == 'compat' else 'compat.'}{name}")
        if name == "__all__":
            return _names()
        if name.startswith("_"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        for module in _NAMES:
            found = vars(import_module(module))
            if name in found:
                return found[name]
        return import_module("wdscli.loader.compat").lacking(__name__, name, _names())


def __dir__() -> list[str]:
    return [*_names(), *(name for name in _MODULES.split() if name != "compat")]


def _names() -> list[str]:
    """Return all names of this package except the modules, sorted."""
    found = {name for module in _NAMES for name in vars(import_module(module))}
    return sorted(name for name in found if not name.startswith("_"))
