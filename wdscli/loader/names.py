"""This module imports all names of ``wdscli.loader`` from the modules that define them. The names that only webdataset
has are in :mod:`wdscli.loader.compat.names`.

``wdscli.loader`` imports this module when one of these names is first used. This module loads neither torch nor numpy.
"""

from wdscli.codecs.handlers import Continue as Continue
from wdscli.codecs.handlers import handle_extension as handle_extension
from wdscli.codecs.images import imagehandler as imagehandler
from wdscli.codecs.media import torch_audio as torch_audio
from wdscli.codecs.media import torch_video as torch_video
from wdscli.codecs.values import numpy_dumps as numpy_dumps
from wdscli.codecs.values import torch_dumps as torch_dumps
from wdscli.loader.indexed import IndexedDataset as IndexedDataset
from wdscli.loader.mixing import mix as mix
from wdscli.loader.place.ranks import non_empty as non_empty
from wdscli.loader.place.ranks import single_node_only as single_node_only
from wdscli.loader.place.ranks import split_by_node as split_by_node
from wdscli.loader.place.ranks import split_by_worker as split_by_worker
from wdscli.loader.read.failures import ignore_and_continue as ignore_and_continue
from wdscli.loader.read.failures import ignore_and_stop as ignore_and_stop
from wdscli.loader.read.failures import reraise_exception as reraise_exception
from wdscli.loader.read.failures import warn_and_continue as warn_and_continue
from wdscli.loader.read.failures import warn_and_stop as warn_and_stop
from wdscli.loader.samplers import ShardSampler as ShardSampler
from wdscli.loader.stages.flow import RawSample as RawSample
from wdscli.loader.stages.flow import Sample as Sample
from wdscli.loader.stages.per_batch import default_collation as default_collation
from wdscli.loader.stages.per_batch import default_convert as default_convert
from wdscli.loader.stages.per_batch import packed as packed
from wdscli.loader.stages.per_sample import Decoder as Decoder
from wdscli.loader.stages.per_sample import gzfilter as gzfilter
from wdscli.loader.stages.shared_memory import Packed as Packed
from wdscli.loader.torch_loader import WebLoader as WebLoader
from wdscli.loader.webdataset import WebDataset as WebDataset
from wdscli.shards.webdataset_writers import ShardWriter as ShardWriter
from wdscli.shards.webdataset_writers import TarWriter as TarWriter
