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
    from wdscli.loader.compat.names import (
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
    from wdscli.loader.indexed import IndexedDataset
    from wdscli.loader.mixing.mixing import RandomMix, RoundRobin, mix
    from wdscli.loader.place.splitters import non_empty, single_node_only, split_by_node, split_by_worker
    from wdscli.loader.samplers import ShardSampler
    from wdscli.loader.stages.collate import default_collation
    from wdscli.loader.stages.decoding import (
        Continue,
        Decoder,
        gzfilter,
        handle_extension,
        imagehandler,
        torch_audio,
        torch_video,
    )
    from wdscli.loader.stages.packing import Packed, packed
    from wdscli.loader.stages.policy import (
        ignore_and_continue,
        ignore_and_stop,
        reraise_exception,
        warn_and_continue,
        warn_and_stop,
    )
    from wdscli.loader.torch_loader import WebLoader
    from wdscli.loader.webdataset import Dataset, WebDataset
    from wdscli.loader.write.writing import ShardWriter, TarWriter

_HOMES = {
    "Continue": "loader.stages.decoding",
    "DataPipeline": "loader.compat.names",
    "Dataset": "loader.webdataset",
    "Decoder": "loader.stages.decoding",
    "DecodingError": "loader.compat.names",
    "FluidInterface": "loader.compat.names",
    "FluidWrapper": "loader.compat.names",
    "IndexedDataset": "loader.indexed",
    "MockDataset": "loader.compat.names",
    "Packed": "loader.stages.packing",
    "PipelineStage": "loader.compat.names",
    "RandomMix": "loader.mixing.mixing",
    "ResampledShards": "loader.compat.names",
    "RoundRobin": "loader.mixing.mixing",
    "ShardSampler": "loader.samplers",
    "ShardWriter": "loader.write.writing",
    "SimpleShardList": "loader.compat.names",
    "TarWriter": "loader.write.writing",
    "WebDataset": "loader.webdataset",
    "WebLoader": "loader.torch_loader",
    "default_collation": "loader.stages.collate",
    "getfirst": "loader.compat.names",
    "gzfilter": "loader.stages.decoding",
    "handle_extension": "loader.stages.decoding",
    "ignore_and_continue": "loader.stages.policy",
    "ignore_and_stop": "loader.stages.policy",
    "imagehandler": "loader.stages.decoding",
    "mix": "loader.mixing.mixing",
    "non_empty": "loader.place.splitters",
    "numpy_dumps": "codecs.encode",
    "packed": "loader.stages.packing",
    "pipelinefilter": "loader.compat.names",
    "pytorch_weights_only": "loader.compat.names",
    "repeatedly": "loader.compat.names",
    "reraise_exception": "loader.stages.policy",
    "single_node_only": "loader.place.splitters",
    "split_by_node": "loader.place.splitters",
    "split_by_worker": "loader.place.splitters",
    "torch_audio": "loader.stages.decoding",
    "torch_dumps": "codecs.encode",
    "torch_loads": "loader.compat.names",
    "torch_video": "loader.stages.decoding",
    "transform_with": "loader.compat.names",
    "warn_and_continue": "loader.stages.policy",
    "warn_and_stop": "loader.stages.policy",
    "with_epoch": "loader.compat.names",
    "with_length": "loader.compat.names",
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
        return getattr(import_module(f"wdscli.{home}"), name)
    if name in _CURRIED:
        return getattr(import_module("wdscli.loader.stages.curried"), name)
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
