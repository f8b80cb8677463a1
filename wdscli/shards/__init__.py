"""Shard sets: reading one, writing one, index and manifest.

What is used most, from one place; each name is loaded when it is first asked for, because some cost an import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wdscli.shards.find import find_index
    from wdscli.shards.index import Index
    from wdscli.shards.inputs import ShardSet, open_set, read_manifest
    from wdscli.shards.manifest import Manifest
    from wdscli.shards.output import OutputSet, ShardSettings
    from wdscli.shards.reader import ShardReader
    from wdscli.shards.shardfile import ShardFile
    from wdscli.shards.writer import ShardWriter

_HOMES = {
    "Index": "index",
    "Manifest": "manifest",
    "OutputSet": "output",
    "ShardFile": "shardfile",
    "ShardReader": "reader",
    "ShardSet": "inputs",
    "ShardSettings": "output",
    "ShardWriter": "writer",
    "find_index": "find",
    "open_set": "inputs",
    "read_manifest": "inputs",
}

__all__ = [
    "Index",
    "Manifest",
    "OutputSet",
    "ShardFile",
    "ShardReader",
    "ShardSet",
    "ShardSettings",
    "ShardWriter",
    "find_index",
    "open_set",
    "read_manifest",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"wdscli.shards.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
