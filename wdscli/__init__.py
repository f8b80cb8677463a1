"""wdscli: make, look at, check, reorder and load WebDataset shard sets."""

__version__ = "0.2.0"
