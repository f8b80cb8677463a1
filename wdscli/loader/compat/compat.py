"""webdataset's datasets, by their module's name there: ``webdataset.compat``."""

from wdscli.loader.compat.extradatasets import FluidWrapper as FluidWrapper
from wdscli.loader.compat.shardlists import non_empty as check_empty
from wdscli.loader.stages.fluent import Fluent as FluidInterface
from wdscli.loader.torch_loader import WebLoader as WebLoader
from wdscli.loader.webdataset import WebDataset as WebDataset

__all__ = ["FluidInterface", "FluidWrapper", "WebDataset", "WebLoader", "check_empty"]
