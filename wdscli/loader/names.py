"""All names of ``wdscli.loader``: its own, and webdataset's, each from the module that has it.

``wdscli.loader`` loads this when one of them is first asked for; ``__all__`` is what it has. Neither torch nor numpy is
loaded here.
"""

from wdscli.codecs.decode_images import imagehandler as imagehandler
from wdscli.codecs.decode_media import torch_audio as torch_audio
from wdscli.codecs.decode_media import torch_video as torch_video
from wdscli.codecs.encode import numpy_dumps as numpy_dumps
from wdscli.codecs.encode import torch_dumps as torch_dumps
from wdscli.codecs.parts import Continue as Continue
from wdscli.codecs.parts import handle_extension as handle_extension
from wdscli.loader.compat.autodecode import DecodingError as DecodingError
from wdscli.loader.compat.autodecode import pytorch_weights_only as pytorch_weights_only
from wdscli.loader.compat.autodecode import torch_loads as torch_loads
from wdscli.loader.compat.cache import LRUCleanup as LRUCleanup
from wdscli.loader.compat.cache import pipe_cleaner as pipe_cleaner
from wdscli.loader.compat.compat import FluidInterface as FluidInterface
from wdscli.loader.compat.extradatasets import FluidWrapper as FluidWrapper
from wdscli.loader.compat.extradatasets import MockDataset as MockDataset
from wdscli.loader.compat.extradatasets import repeatedly as repeatedly
from wdscli.loader.compat.extradatasets import with_epoch as with_epoch
from wdscli.loader.compat.extradatasets import with_length as with_length
from wdscli.loader.compat.filters import Cached as Cached
from wdscli.loader.compat.filters import LMDBCached as LMDBCached
from wdscli.loader.compat.filters import PipelineStage as PipelineStage
from wdscli.loader.compat.filters import associate as associate
from wdscli.loader.compat.filters import batched as batched
from wdscli.loader.compat.filters import decode as decode
from wdscli.loader.compat.filters import detshuffle as detshuffle
from wdscli.loader.compat.filters import extract_keys as extract_keys
from wdscli.loader.compat.filters import getfirst as getfirst
from wdscli.loader.compat.filters import info as info
from wdscli.loader.compat.filters import listed as listed
from wdscli.loader.compat.filters import log_keys as log_keys
from wdscli.loader.compat.filters import map as map
from wdscli.loader.compat.filters import map_dict as map_dict
from wdscli.loader.compat.filters import map_tuple as map_tuple
from wdscli.loader.compat.filters import pipelinefilter as pipelinefilter
from wdscli.loader.compat.filters import rename as rename
from wdscli.loader.compat.filters import rename_keys as rename_keys
from wdscli.loader.compat.filters import rsample as rsample
from wdscli.loader.compat.filters import select as select
from wdscli.loader.compat.filters import shuffle as shuffle
from wdscli.loader.compat.filters import slice as slice
from wdscli.loader.compat.filters import to_tuple as to_tuple
from wdscli.loader.compat.filters import transform_with as transform_with
from wdscli.loader.compat.filters import unbatched as unbatched
from wdscli.loader.compat.filters import unlisted as unlisted
from wdscli.loader.compat.filters import xdecode as xdecode
from wdscli.loader.compat.gopen import gopen as gopen
from wdscli.loader.compat.gopen import gopen_schemes as gopen_schemes
from wdscli.loader.compat.mix import RandomMix as RandomMix
from wdscli.loader.compat.mix import RoundRobin as RoundRobin
from wdscli.loader.compat.pipeline import DataPipeline as DataPipeline
from wdscli.loader.compat.shardlists import MultiShardSample as MultiShardSample
from wdscli.loader.compat.shardlists import ResampledShards as ResampledShards
from wdscli.loader.compat.shardlists import SimpleShardList as SimpleShardList
from wdscli.loader.compat.shardlists import resampled as resampled
from wdscli.loader.compat.shardlists import shardspec as shardspec
from wdscli.loader.compat.tariterators import tarfile_samples as tarfile_samples
from wdscli.loader.compat.tariterators import tarfile_to_samples as tarfile_to_samples
from wdscli.loader.indexed import IndexedDataset as IndexedDataset
from wdscli.loader.mixing.mixing import mix as mix
from wdscli.loader.place.splitters import non_empty as non_empty
from wdscli.loader.place.splitters import single_node_only as single_node_only
from wdscli.loader.place.splitters import split_by_node as split_by_node
from wdscli.loader.place.splitters import split_by_worker as split_by_worker
from wdscli.loader.sample_types import RawSample as RawSample
from wdscli.loader.sample_types import Sample as Sample
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

__all__ = [
    "Cached",
    "Continue",
    "DataPipeline",
    "Dataset",
    "Decoder",
    "DecodingError",
    "FluidInterface",
    "FluidWrapper",
    "IndexedDataset",
    "LMDBCached",
    "LRUCleanup",
    "MockDataset",
    "MultiShardSample",
    "Packed",
    "PipelineStage",
    "RandomMix",
    "RawSample",
    "ResampledShards",
    "RoundRobin",
    "Sample",
    "ShardSampler",
    "ShardWriter",
    "SimpleShardList",
    "TarWriter",
    "WebDataset",
    "WebLoader",
    "associate",
    "batched",
    "decode",
    "default_collation",
    "detshuffle",
    "extract_keys",
    "getfirst",
    "gopen",
    "gopen_schemes",
    "gzfilter",
    "handle_extension",
    "ignore_and_continue",
    "ignore_and_stop",
    "imagehandler",
    "info",
    "listed",
    "log_keys",
    "map",
    "map_dict",
    "map_tuple",
    "mix",
    "non_empty",
    "numpy_dumps",
    "packed",
    "pipe_cleaner",
    "pipelinefilter",
    "pytorch_weights_only",
    "rename",
    "rename_keys",
    "repeatedly",
    "reraise_exception",
    "resampled",
    "rsample",
    "select",
    "shardspec",
    "shuffle",
    "single_node_only",
    "slice",
    "split_by_node",
    "split_by_worker",
    "tarfile_samples",
    "tarfile_to_samples",
    "to_tuple",
    "torch_audio",
    "torch_dumps",
    "torch_loads",
    "torch_video",
    "transform_with",
    "unbatched",
    "unlisted",
    "warn_and_continue",
    "warn_and_stop",
    "with_epoch",
    "with_length",
    "xdecode",
]
