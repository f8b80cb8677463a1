"""webshart's metadata of a shard: random access by name.

Format: README of bghira/webshart, "Creating New Indexed Datasets", and what its ``extract-metadata`` writes. A JSON
file named after the tar: ``path`` and ``filesize`` of the tar, ``files`` a map from a member's name to ``offset`` (byte
of its payload) and ``length`` (payload bytes). What webshart finds by looking into payloads (width, height, captions)
is left to ``webshart extract-metadata``. JSON has no names that are not UTF-8: refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from wdscli.shards.dialects import SetPlace, ShardPlace, SideFile, utf8_name
from wdscli.shards.index import Index
from wdscli.storage import base_name, sibling

_AT_ONCE = 4096
_NOT_UTF8 = "a name that is not UTF-8 has no place in JSON"


class Dialect:
    """``<shard name without .tar>.json`` beside each shard."""

    def __init__(self, place: SetPlace) -> None:
        pass

    def add(self, shard: ShardPlace, index: Index) -> Iterable[SideFile]:
        stem = base_name(shard.address).removesuffix(".tar")
        return [SideFile(sibling(shard.address, stem + ".json"), _document(shard, index))]

    def finish(self) -> Iterable[SideFile]:
        return ()


def _document(shard: ShardPlace, index: Index) -> Iterator[bytes]:
    import json

    path = json.dumps(base_name(shard.address))
    yield f'{{\n  "path": {path},\n  "filesize": {index.size},\n  "files": {{'.encode()
    between = "\n"
    for first in range(0, index.samples, _AT_ONCE):
        batch = index.batch(first, first + _AT_ONCE)
        lines = []
        for row, key in enumerate(batch.keys):
            for at in range(batch.firsts[row], batch.firsts[row + 1]):
                name = utf8_name(shard, key + b"." + batch.fields[at], batch.starts[at], _NOT_UTF8)
                lines.append(
                    f'{between}    {json.dumps(name)}: {{"offset": {batch.offsets[at]}, "length": {batch.sizes[at]}}}'
                )
                between = ",\n"
        yield "".join(lines).encode()
    yield b"\n  }\n}\n"
