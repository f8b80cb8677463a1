"""What training code imports: sets of shards as iterable and as indexed datasets.

Loads neither torch nor numpy; each name is loaded on its first use.

The nouns, each one thing in the whole loader, and the module that has it:

    set         shards that are read as one
    catalog     the shards of a set as the loader knows them: counts, and where samples lie (``read.catalog``)
    sample      a dict of key, address and fields; before the stages, and after those that take a sample
    stream      shards that can only be read from front to back (``streams``)
    position    the number of a sample in an epoch, from 0
    order       which sample each position of an epoch has, by seed and epoch alone (``order.order``)
    source      has the samples at positions of an epoch: a set, a view of another source, a mix (``order.source``)
    view        a part of a source or another order of it, again a source (``order.source``)
    table       an ``IndexedDataset``: samples by number or key, with no order of its own; an ordinal is a sample's
                number in the set, whatever the table shows of it (``indexed``)
    batch       the samples of a rank at one stretch of positions; a global batch has those of all ranks
    share       the rank and the worker that a process is, and the number of both (``place.ranks``)
    place       before a batch of an epoch; a state is a place as plain values, for a checkpoint (``place.state``)
    iteration   follows the items of one epoch; the iteration state of a dataset has the place of the latest one and
                the start of the next (``place.iteration``)
    board       the epochs that a process and its workers share with each other (``place.iteration``)
    rows        some samples of one shard: read, compared with its index, as dictionaries (``read.rows``)
    fetcher     reads samples by shard and place, for one thread; a pool lends fetchers to threads (``read.fetch``)
    read        the samples of a batch as they were read; a block has batches that are read at once (``read.reading``)
    failed      the placeholder of a sample that cannot be read; the policy decides about it (``read.failures``)
    spare       a reader for the substitutes of failed samples (``order.source``)
    filter      which samples a set keeps; a filtered catalog counts only these (``read.selected``)
    handler     a function of an exception that a stage raised; a guard calls it, and counts (``read.failures``)
    stage       a function of a sample, what makes batches, a function of a batch, or a function over all (``stages``)
    pipeline    the stages of a dataset, in order (``stages.flow``)
    unit        what the pipeline makes of one batch; an iteration yields the items of its units
    counts      skipped samples by shard and reason (``read.failures``)
    mix         several sets as one, by rules; a tagged sample has the number of its set (``mixing``)
    engine      what iterates: the exact one, by position (``dataset``), or plain generators (``compat``)
"""

from __future__ import annotations

from importlib import import_module

# Type checkers know the names; typing itself takes longer to load than all the rest of this.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from wdscli.loader.compat.names import *  # noqa: F403
    from wdscli.loader.names import *  # noqa: F403

_MODULES = """
autodecode cache compat extradatasets filters handlers pipeline pytorch shardlists tariterators utils writer
"""
"""webdataset's modules in the folder ``compat``, which are attributes here too."""
_NAMES = ("wdscli.loader.names", "wdscli.loader.compat.names")
"""The modules that have the names: our own, and webdataset's, which only code written for it needs."""


if not TYPE_CHECKING:  # a type checker would accept any name

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
    """All but the modules, sorted."""
    found = {name for module in _NAMES for name in vars(import_module(module))}
    return sorted(name for name in found if not name.startswith("_"))
