"""Where the loader's writers put a shard that is no plain file of its own: a file object, or something compressed.

What it is: :class:`PackedSink`, a sink like any other, of which a shard has no index, and :func:`packing`, which says
whether and how to compress. Compressed streams have no clock and no name in them: the same samples give the same bytes.
It must not know what is written.
"""

from __future__ import annotations

from typing import Any

from wdscli.errors import OutputError, UsageError
from wdscli.storage import Sink
from wdscli.storage.blocks import kind_of_name, packer_for

Data = bytes | bytearray | memoryview
KINDS = {"gz": "gzip", "bz2": "bzip2", "xz": "xz", "zst": "zstd", "lz4": "lz4"}


def packing(address: str | None, compress: bool | str | None) -> str | None:
    """The compression, or None: as ``compress`` says, and when that is None as the address ends. What goes to a command
    is not compressed unless asked for: ``pipe:gzip > x.tar.gz`` does it itself."""
    if compress is None:
        return None if address is None else kind_of_name(address)
    if compress is False and address is not None and kind_of_name(address):
        raise UsageError(
            f"cannot write {address} plain: compressed shards have such names",
            hint="leave compress=False out",
        )
    if isinstance(compress, bool):
        return "gzip" if compress else None
    if compress not in KINDS:
        raise UsageError(f'no such compression: "{compress}"', hint=", ".join(KINDS))
    return KINDS[compress]


class PackedSink(Sink):
    """Compresses, where ``kind`` is not None, on the way to another sink, or to a file object, which stays open. After
    :meth:`discard` a file object holds an archive without an end, which readers notice."""

    def __init__(self, name: str, target: Any, kind: str | None) -> None:
        super().__init__(name)
        self._target = target
        self._packer = None if kind is None else packer_for(kind, self._pass)

    def _put(self, data: Data) -> None:
        if self._packer is None:
            self._pass(data)
        else:
            self._packer.write(data)

    def _pass(self, data: Data) -> None:
        """All of ``data``: a file object without a buffer may take less at a time."""
        rest = memoryview(data)
        while len(rest):
            taken = self._target.write(rest)
            if taken is None:  # what has a write() and no answer took all
                return
            if not 0 < taken <= len(rest):
                raise OutputError(f"a file object took {taken} of {len(rest)} bytes")
            rest = rest[taken:]

    def _commit(self) -> None:
        if self._packer is not None:
            self._packer.finish()
        if isinstance(self._target, Sink):
            self._target.commit()
        elif hasattr(self._target, "flush"):
            self._target.flush()

    def _discard(self) -> None:
        if isinstance(self._target, Sink):
            self._target.discard()
