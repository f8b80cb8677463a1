"""This module imports webdataset's names for ``wdscli.loader`` from the modules that define them.

``wdscli.loader`` imports this module for a name that it does not define itself. This module loads neither torch nor
numpy.
"""

from wdscli.loader.compat.filters import Cached as Cached
from wdscli.loader.compat.filters import Dataset as Dataset
from wdscli.loader.compat.filters import FluidInterface as FluidInterface
from wdscli.loader.compat.filters import FluidWrapper as FluidWrapper
from wdscli.loader.compat.filters import MockDataset as MockDataset
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
from wdscli.loader.compat.filters import repeatedly as repeatedly
from wdscli.loader.compat.filters import rsample as rsample
from wdscli.loader.compat.filters import select as select
from wdscli.loader.compat.filters import shuffle as shuffle
from wdscli.loader.compat.filters import slice as slice
from wdscli.loader.compat.filters import to_tuple as to_tuple
from wdscli.loader.compat.filters import transform_with as transform_with
from wdscli.loader.compat.filters import unbatched as unbatched
from wdscli.loader.compat.filters import unlisted as unlisted
from wdscli.loader.compat.filters import with_epoch as with_epoch
from wdscli.loader.compat.filters import with_length as with_length
from wdscli.loader.compat.filters import xdecode as xdecode
from wdscli.loader.compat.gopen import gopen as gopen
from wdscli.loader.compat.gopen import gopen_schemes as gopen_schemes
from wdscli.loader.compat.pipeline import DataPipeline as DataPipeline
from wdscli.loader.compat.pipeline import RandomMix as RandomMix
from wdscli.loader.compat.pipeline import RoundRobin as RoundRobin
from wdscli.loader.compat.tariterators import MultiShardSample as MultiShardSample
from wdscli.loader.compat.tariterators import ResampledShards as ResampledShards
from wdscli.loader.compat.tariterators import SimpleShardList as SimpleShardList
from wdscli.loader.compat.tariterators import resampled as resampled
from wdscli.loader.compat.tariterators import shardspec as shardspec
from wdscli.loader.compat.tariterators import tarfile_samples as tarfile_samples
from wdscli.loader.compat.tariterators import tarfile_to_samples as tarfile_to_samples
from wdscli.loader.compat.utils import DecodingError as DecodingError
from wdscli.loader.compat.utils import pytorch_weights_only as pytorch_weights_only
from wdscli.loader.compat.utils import torch_loads as torch_loads
