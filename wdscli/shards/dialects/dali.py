"""NVIDIA DALI's index of a shard, version 1.2: ``fn.readers.webdataset(index_paths=...)``.

Format: tools/wds2idx.py of NVIDIA/DALI, which writes it, and dali/operators/reader/loader/webdataset_loader.cc, which
reads it. Lines of text. The first is ``v1.2`` and the number of samples; then a line a sample: for each member its
field, the byte of its payload, the payload's bytes and its name, all separated by single blanks. A name or a field with
white space cannot be said, and DALI would read something else: refused. The file lies beside the shard under the
shard's name up to its first dot, with ``.idx``, where wds2idx puts it by default.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from wdscli.errors import DataError
from wdscli.model import to_text
from wdscli.samples import SampleBatch
from wdscli.shards.dialects import SetPlace, ShardPlace, SideFile
from wdscli.shards.index import Index
from wdscli.storage import base_name, sibling

_AT_ONCE = 4096


class Dialect:
    """A ``.idx`` for each shard."""

    def __init__(self, place: SetPlace) -> None:
        pass

    def add(self, shard: ShardPlace, index: Index) -> Iterable[SideFile]:
        if not index.samples:
            raise DataError(
                "a shard without samples has no DALI index",
                shard=shard.address,
                hint="DALI stops at an empty shard: leave it out of the set",
            )
        name = base_name(shard.address)
        # A dot that begins the name is part of it, as in wds2idx.
        dot = name.find(".", 1)
        stem = name if dot < 0 else name[:dot]
        return [SideFile(sibling(shard.address, stem + ".idx"), _lines(shard, index))]

    def finish(self) -> Iterable[SideFile]:
        return ()


def _lines(shard: ShardPlace, index: Index) -> Iterator[bytes]:
    yield b"v1.2 %d\n" % index.samples
    for first in range(0, index.samples, _AT_ONCE):
        batch = index.batch(first, first + _AT_ONCE)
        yield b"".join([_line(shard, batch, row) for row in range(len(batch.keys))])


def _line(shard: ShardPlace, batch: SampleBatch, row: int) -> bytes:
    parts = []
    for at in range(batch.firsts[row], batch.firsts[row + 1]):
        field = batch.fields[at]
        name = batch.keys[row] + b"." + field
        if name.split() != [name]:
            raise DataError(
                "a name with white space has no place in a DALI index",
                code="unsafe-name",
                shard=shard.address,
                offset=batch.starts[at],
                member=to_text(name),
                hint="give the samples new keys: wds cat --rekey '{shard}-{index:09d}' SHARDS -o all.tar",
            )
        parts.append(b"%b %d %d %b" % (field, batch.offsets[at], batch.sizes[at], name))
    return b" ".join(parts) + b"\n"
