"""The plain JSON document of webdataset's ``wids``, as its ``widsindex create`` writes it.

Format: wids_specs.py and wids_index.py of the wids package. ``__kind__`` is ``wids-shard-index-v1``, ``wids_version``
1, ``shardlist`` a list of ``url`` (from the document's folder), ``nsamples`` and ``filesize``. Our own manifest is such
a document too, with more in it; this one is for programs that want nothing more. ``md5sum``, which nothing checks, is
left out: it would cost a read of every payload.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from wdscli.shards.dialects import SetPlace, ShardPlace, SideFile
from wdscli.shards.index import Index


class Dialect:
    """``<prefix>-wids.json`` in the set's folder."""

    def __init__(self, place: SetPlace) -> None:
        self._place = place
        self._shards: list[dict[str, Any]] = []

    def add(self, shard: ShardPlace, index: Index) -> Iterable[SideFile]:
        self._shards.append({"url": shard.name, "nsamples": index.samples, "filesize": index.size})
        return ()

    def finish(self) -> Iterable[SideFile]:
        import json

        document = {
            "__kind__": "wids-shard-index-v1",
            "wids_version": 1,
            "name": self._place.prefix,
            "shardlist": self._shards,
        }
        name = f"{self._place.prefix}-wids.json" if self._place.prefix else "wids.json"
        return [SideFile(self._place.folder + name, [json.dumps(document, indent=2).encode() + b"\n"])]
