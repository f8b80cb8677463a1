"""This package reads and writes shard sets, with their indexes and manifests.

A public name of this package is loaded at its first use, because some imports are slow. The package tells storage how
to open the shards of views.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from wdscli.storage.opening import VIEWS

if TYPE_CHECKING:
    from wdscli.shards.index import Index as Index
    from wdscli.shards.inputs import ShardSet as ShardSet
    from wdscli.shards.inputs import open_set as open_set
    from wdscli.shards.inputs import read_manifest as read_manifest
    from wdscli.shards.manifest import Manifest as Manifest
    from wdscli.shards.proof import find_index as find_index
    from wdscli.shards.reading import ShardReader as ShardReader
    from wdscli.shards.reading import values_of as values_of
    from wdscli.shards.writer import ShardWriter as ShardWriter
    from wdscli.shards.writing import OutputSet as OutputSet
    from wdscli.shards.writing import ShardFile as ShardFile
    from wdscli.shards.writing import ShardSettings as ShardSettings

_MODULES = {
    "index": "Index",
    "inputs": "ShardSet open_set read_manifest",
    "manifest": "Manifest",
    "proof": "find_index",
    "reading": "ShardReader values_of",
    "writer": "ShardWriter",
    "writing": "OutputSet ShardFile ShardSettings",
}


VIEWS.append(lambda: import_module("wdscli.shards.view_shards"))
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"wdscli.shards.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
