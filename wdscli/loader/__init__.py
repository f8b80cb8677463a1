"""What training code imports: sets of shards as iterable and as indexed datasets, with nothing else running.

Loads neither torch nor numpy; each name is loaded when it is first asked for.

The nouns, each one thing in the whole loader, and where it is:

    set         shards that are read as one
    catalog     the shards of a set as the loader knows them: counts, and where samples lie (``read``)
    sample      a dict of key, address and fields; before the stages, and after those that take a sample
    stream      shards that can only be read from front to back (``streams``)
    position    where a sample stands in an epoch, from 0
    order       which sample stands at each position of an epoch, by seed and epoch alone (``order``)
    source      gives the samples at positions of an epoch: a set, a view of another source, a mix (``read.source``)
    view        a part of a source or another order of it, again a source (``order.views``)
    table       an ``IndexedDataset``: samples by number or key, with no order of its own; an ordinal is a sample's
                number in the set, whatever the table shows of it (``indexed``)
    batch       the samples of a rank that stand at one stretch of positions; a global batch is those of all ranks
    share       which rank of how many a process is, and which worker of how many (``place.ranks``)
    place       before which batch of which epoch; a state is a place as plain values, for a checkpoint (``place``)
    standing    where iterations of a dataset begin, and the place of the latest (``place``)
    rows        some samples of one shard: read, compared with its index, as dictionaries (``read.rows``)
    fetcher     reads samples by shard and place, for one thread; a pool lends them to many (``read.fetch``)
    read        the samples of a batch as they were read; a block, batches that are read at once (``read.reading``)
    failed      stands where a sample cannot be read; the policy says what becomes of it (``read.failures``)
    spare       a reader for what is given in the place of a failed sample (``read.source``)
    filter      which samples a set keeps; a filtered catalog counts only these (``read.selected``)
    board       what a process and its workers tell each other of epochs (``place.standing``)
    stage       a function of a sample, what makes batches, a function of a batch, or a function over all (``stages``)
    pipeline    the stages of a dataset, in order (``stages.flow``)
    unit        what the pipeline makes of one batch; an iteration gives the items of its units, one by one
    handler     a function of an exception that a stage raised; a guard asks it, and counts (``stages.handlers``)
    counts      what was left out, by shard and reason (``stats``)
    mix         several sets as one, by rules; a tagged sample is one with the number of its set (``mixing``)
    engine      what iterates: the exact one, by position (``dataset``), or plain generators (``compat``)
"""

from __future__ import annotations

from importlib import import_module

# Type checkers know the name; typing itself takes longer to load than all the rest of this.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from wdscli.codecs.decode_images import imagehandler as imagehandler
    from wdscli.codecs.decode_media import torch_audio as torch_audio
    from wdscli.codecs.decode_media import torch_video as torch_video
    from wdscli.codecs.encode import numpy_dumps as numpy_dumps
    from wdscli.codecs.encode import torch_dumps as torch_dumps
    from wdscli.codecs.parts import Continue as Continue
    from wdscli.codecs.parts import handle_extension as handle_extension
    from wdscli.loader.compat.names import DataPipeline as DataPipeline
    from wdscli.loader.compat.names import DecodingError as DecodingError
    from wdscli.loader.compat.names import FluidInterface as FluidInterface
    from wdscli.loader.compat.names import FluidWrapper as FluidWrapper
    from wdscli.loader.compat.names import MockDataset as MockDataset
    from wdscli.loader.compat.names import PipelineStage as PipelineStage
    from wdscli.loader.compat.names import ResampledShards as ResampledShards
    from wdscli.loader.compat.names import SimpleShardList as SimpleShardList
    from wdscli.loader.compat.names import getfirst as getfirst
    from wdscli.loader.compat.names import pipelinefilter as pipelinefilter
    from wdscli.loader.compat.names import pytorch_weights_only as pytorch_weights_only
    from wdscli.loader.compat.names import repeatedly as repeatedly
    from wdscli.loader.compat.names import torch_loads as torch_loads
    from wdscli.loader.compat.names import transform_with as transform_with
    from wdscli.loader.compat.names import with_epoch as with_epoch
    from wdscli.loader.compat.names import with_length as with_length
    from wdscli.loader.indexed import IndexedDataset as IndexedDataset
    from wdscli.loader.mixing.mixing import RandomMix as RandomMix
    from wdscli.loader.mixing.mixing import RoundRobin as RoundRobin
    from wdscli.loader.mixing.mixing import mix as mix
    from wdscli.loader.place.splitters import non_empty as non_empty
    from wdscli.loader.place.splitters import single_node_only as single_node_only
    from wdscli.loader.place.splitters import split_by_node as split_by_node
    from wdscli.loader.place.splitters import split_by_worker as split_by_worker
    from wdscli.loader.samplers import ShardSampler as ShardSampler
    from wdscli.loader.stages.decoding import Decoder as Decoder
    from wdscli.loader.stages.decoding import gzfilter as gzfilter
    from wdscli.loader.stages.handlers import ignore_and_continue as ignore_and_continue
    from wdscli.loader.stages.handlers import ignore_and_stop as ignore_and_stop
    from wdscli.loader.stages.handlers import reraise_exception as reraise_exception
    from wdscli.loader.stages.handlers import warn_and_continue as warn_and_continue
    from wdscli.loader.stages.handlers import warn_and_stop as warn_and_stop
    from wdscli.loader.stages.per_batch import Packed as Packed
    from wdscli.loader.stages.per_batch import default_collation as default_collation
    from wdscli.loader.stages.per_batch import packed as packed
    from wdscli.loader.torch_loader import WebLoader as WebLoader
    from wdscli.loader.webdataset import Dataset as Dataset
    from wdscli.loader.webdataset import WebDataset as WebDataset
    from wdscli.loader.write.writing import ShardWriter as ShardWriter
    from wdscli.loader.write.writing import TarWriter as TarWriter

_NAMES = {
    "codecs.decode_images": "imagehandler",
    "codecs.decode_media": "torch_audio torch_video",
    "codecs.encode": "numpy_dumps torch_dumps",
    "codecs.parts": "Continue handle_extension",
    "loader.compat.names": (
        "DataPipeline DecodingError FluidInterface FluidWrapper MockDataset PipelineStage ResampledShards "
        "SimpleShardList getfirst pipelinefilter pytorch_weights_only repeatedly torch_loads "
        "transform_with with_epoch with_length"
    ),
    "loader.indexed": "IndexedDataset",
    "loader.mixing.mixing": "RandomMix RoundRobin mix",
    "loader.place.splitters": "non_empty single_node_only split_by_node split_by_worker",
    "loader.samplers": "ShardSampler",
    "loader.stages.decoding": "Decoder gzfilter",
    "loader.stages.handlers": (
        "ignore_and_continue ignore_and_stop reraise_exception warn_and_continue warn_and_stop"
    ),
    "loader.stages.per_batch": "Packed default_collation packed",
    "loader.torch_loader": "WebLoader",
    "loader.webdataset": "Dataset WebDataset",
    "loader.write.writing": "ShardWriter TarWriter",
}
"""Public names by the module that has them."""
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOMES)

_STAGES = (
    "Cached LMDBCached LRUCleanup MultiShardSample associate batched decode detshuffle extract_keys gopen "
    "gopen_schemes info listed log_keys map map_dict map_tuple pipe_cleaner rename rename_keys resampled "
    "rsample select shardspec shuffle slice tarfile_samples tarfile_to_samples to_tuple unbatched unlisted "
    "xdecode"
)
"""webdataset's stages as functions. Not in __all__: some are named as builtins are."""
_MODULES = "autodecode cache extradatasets pytorch shardlists tariterators utils writer"
"""webdataset's, of which there are none here."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"wdscli.{_HOMES[name]}"), name)
    if name in _STAGES.split():
        return import_module("wdscli.loader.compat.names").stage(name)
    more = ""
    if name in _MODULES.split():
        more = ": the names of webdataset's modules are in wdscli.loader itself, see wdscli-webdataset(7)"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{more}")
