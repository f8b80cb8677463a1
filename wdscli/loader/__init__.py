"""What training code imports: sets of shards as iterable and as indexed datasets, with nothing else running.

Loads neither torch nor numpy; each name is loaded when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wdscli.loader.indexed import IndexedDataset
    from wdscli.loader.samplers import ShardSampler
    from wdscli.loader.webdataset import WebDataset

_HOMES = {
    "IndexedDataset": "indexed",
    "ShardSampler": "samplers",
    "WebDataset": "webdataset",
}

__all__ = [
    "IndexedDataset",
    "ShardSampler",
    "WebDataset",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"wdscli.loader.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
