"""What training code imports: sets of shards as iterable and as indexed datasets, with nothing else running.

Loads neither torch nor numpy; each name is loaded when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module

# Type checkers know the name; typing itself takes longer to load than all the rest of this.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from wdscli.codecs.encode import numpy_dumps, torch_dumps
    from wdscli.loader.collate import default_collation
    from wdscli.loader.compat import (
        DataPipeline,
        DecodingError,
        FluidInterface,
        FluidWrapper,
        MockDataset,
        PipelineStage,
        ResampledShards,
        SimpleShardList,
        getfirst,
        pipelinefilter,
        pytorch_weights_only,
        repeatedly,
        torch_loads,
        transform_with,
        with_epoch,
        with_length,
    )
    from wdscli.loader.decoding import (
        Continue,
        Decoder,
        gzfilter,
        handle_extension,
        imagehandler,
        torch_audio,
        torch_video,
    )
    from wdscli.loader.handlers import (
        ignore_and_continue,
        ignore_and_stop,
        reraise_exception,
        warn_and_continue,
        warn_and_stop,
    )
    from wdscli.loader.indexed import IndexedDataset
    from wdscli.loader.mixing import RandomMix, RoundRobin, mix
    from wdscli.loader.packing import Packed, packed
    from wdscli.loader.samplers import ShardSampler
    from wdscli.loader.splitters import non_empty, single_node_only, split_by_node, split_by_worker
    from wdscli.loader.torch_loader import WebLoader
    from wdscli.loader.webdataset import Dataset, WebDataset
    from wdscli.loader.writing import ShardWriter, TarWriter

_HOMES = {
    "Continue": "decoding",
    "DataPipeline": "compat",
    "Dataset": "webdataset",
    "Decoder": "decoding",
    "DecodingError": "compat",
    "FluidInterface": "compat",
    "FluidWrapper": "compat",
    "IndexedDataset": "indexed",
    "MockDataset": "compat",
    "Packed": "packing",
    "PipelineStage": "compat",
    "RandomMix": "mixing",
    "ResampledShards": "compat",
    "RoundRobin": "mixing",
    "ShardSampler": "samplers",
    "ShardWriter": "writing",
    "SimpleShardList": "compat",
    "TarWriter": "writing",
    "WebDataset": "webdataset",
    "WebLoader": "torch_loader",
    "default_collation": "collate",
    "getfirst": "compat",
    "gzfilter": "decoding",
    "handle_extension": "decoding",
    "ignore_and_continue": "handlers",
    "ignore_and_stop": "handlers",
    "imagehandler": "decoding",
    "mix": "mixing",
    "non_empty": "splitters",
    "numpy_dumps": "codecs.encode",
    "packed": "packing",
    "pipelinefilter": "compat",
    "pytorch_weights_only": "compat",
    "repeatedly": "compat",
    "reraise_exception": "handlers",
    "single_node_only": "splitters",
    "split_by_node": "splitters",
    "split_by_worker": "splitters",
    "torch_audio": "decoding",
    "torch_dumps": "codecs.encode",
    "torch_loads": "compat",
    "torch_video": "decoding",
    "transform_with": "compat",
    "warn_and_continue": "handlers",
    "warn_and_stop": "handlers",
    "with_epoch": "compat",
    "with_length": "compat",
}

__all__ = [
    "Continue",
    "DataPipeline",
    "Dataset",
    "Decoder",
    "DecodingError",
    "FluidInterface",
    "FluidWrapper",
    "IndexedDataset",
    "MockDataset",
    "Packed",
    "PipelineStage",
    "RandomMix",
    "ResampledShards",
    "RoundRobin",
    "ShardSampler",
    "ShardWriter",
    "SimpleShardList",
    "TarWriter",
    "WebDataset",
    "WebLoader",
    "default_collation",
    "getfirst",
    "gzfilter",
    "handle_extension",
    "ignore_and_continue",
    "ignore_and_stop",
    "imagehandler",
    "mix",
    "non_empty",
    "numpy_dumps",
    "packed",
    "pipelinefilter",
    "pytorch_weights_only",
    "repeatedly",
    "reraise_exception",
    "single_node_only",
    "split_by_node",
    "split_by_worker",
    "torch_audio",
    "torch_dumps",
    "torch_loads",
    "torch_video",
    "transform_with",
    "warn_and_continue",
    "warn_and_stop",
    "with_epoch",
    "with_length",
]

# webdataset's stages as functions. Not in __all__: some are named as builtins are.
_CURRIED = [
    "Cached",
    "LMDBCached",
    "LRUCleanup",
    "MultiShardSample",
    "associate",
    "batched",
    "decode",
    "detshuffle",
    "extract_keys",
    "gopen",
    "gopen_schemes",
    "info",
    "listed",
    "log_keys",
    "map",
    "map_dict",
    "map_tuple",
    "pipe_cleaner",
    "rename",
    "rename_keys",
    "resampled",
    "rsample",
    "select",
    "shardspec",
    "shuffle",
    "slice",
    "tarfile_samples",
    "tarfile_to_samples",
    "to_tuple",
    "unbatched",
    "unlisted",
    "xdecode",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        home = _HOMES[name]
        return getattr(import_module(f"wdscli.{home}" if "." in home else f"wdscli.loader.{home}"), name)
    if name in _CURRIED:
        return getattr(import_module("wdscli.loader.curried"), name)
    more = ""
    if name in (
        "autodecode",
        "cache",
        "extradatasets",
        "pytorch",
        "shardlists",
        "tariterators",
        "utils",
        "writer",
    ):
        more = ": the names of webdataset's modules are in wdscli.loader itself, see wdscli-webdataset(7)"
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{more}")
