"""One shard while it is written: bytes to a sink, with checksum, index and totals on the way.

What it is: what stands between the samples and the storage. It takes samples by payload (:meth:`ShardFile.write`), or
runs of canonical members as they stand (:meth:`ShardFile.write_run`), and gives a :class:`~wdscli.model.ShardInfo`.
How: all bytes pass through one method that hashes and writes them while they are in the processor's cache.
The shard has its final name only after :meth:`ShardFile.commit`; its index is written right after.

It must not know of sets, cuts or commands.
"""

from __future__ import annotations

from types import TracebackType

from wdscli.model import ShardInfo
from wdscli.samples import SampleBatch
from wdscli.shards.checksum import new_digest, written
from wdscli.shards.index import FOLDER, SUFFIX, IndexBuilder
from wdscli.storage import Sink, base_name, open_sink, sibling
from wdscli.tar import CANONICAL, Form, TarWriter

Payload = bytes | bytearray | memoryview


def index_address(address: str) -> str:
    """Where the index of a shard lies: ``.wds/<name>.wdx`` in the shard's folder."""
    return sibling(address, f"{FOLDER}/{base_name(address)}{SUFFIX}")


class _Through:
    """A sink that hashes what passes."""

    def __init__(self, sink: Sink, algorithm: str) -> None:
        self._sink = sink
        self.digest = new_digest(algorithm)

    def write(self, data: Payload, /) -> None:
        if self.digest is not None:
            self.digest.update(data)
        self._sink.write(data)


class ShardFile:
    """Writes one shard to ``address``. Use it as a context manager: it commits on success and leaves nothing otherwise.

    ``with_index`` writes the ``.wdx`` beside it (never for ``-`` and ``pipe:``). Raises OutputError, OutputExistsError.
    """

    def __init__(
        self,
        address: str,
        *,
        form: Form = CANONICAL,
        checksum: str = "xxh3_128",
        with_index: bool = True,
        force: bool = False,
        fsync: bool = False,
    ) -> None:
        self.address = address
        self.form = form
        self._checksum = checksum
        self._force = force
        self._fsync = fsync
        is_stream = address == "-" or address.startswith("pipe:")
        self._with_index = with_index and not is_stream
        self._sink = open_sink(address, force=force, fsync=fsync)
        self._through = _Through(self._sink, checksum)
        self._tar = TarWriter(self._through, form)
        self.index = IndexBuilder()
        self.ignored: dict[str, int] = {}

    @property
    def position(self) -> int:
        """Bytes of the shard so far, without the end of archive."""
        return self._tar.position

    @property
    def samples(self) -> int:
        return self.index.samples

    def write(self, key: bytes, fields: list[tuple[bytes, Payload]]) -> None:
        """One sample. ``key`` and field names have been checked by the caller (:func:`~wdscli.samples.check_name`)."""
        tar = self._tar
        start = tar.position
        members = []
        for field, payload in fields:
            tar.add(key + b"." + field, payload)
            size = len(payload)
            members.append((field, tar.position - (size + 511 & -512), size))
        self.index.add_sample(key, start, members, tar.position)

    def write_run(self, data: Payload, batch: SampleBatch) -> None:
        """Whole canonical samples as they stand; ``batch`` describes them with the places they have in this shard."""
        self._tar.raw(data)
        self.index.add_batch(batch)

    def write_blocks(self, data: Payload) -> None:
        """Part of a sample that is announced by :meth:`announce` once it is through."""
        self._tar.raw(data)

    def announce(self, batch: SampleBatch) -> None:
        """Samples whose bytes went out by :meth:`write_blocks`."""
        self.index.add_batch(batch)

    def flush(self) -> None:
        """Nothing that was handed in is referred to any longer after this; needed before a buffer is used again."""
        self._tar.flush()

    def commit(self) -> ShardInfo:
        """End the archive, give the shard its name, then write its index."""
        self._tar.close()
        size = self._tar.position
        self._sink.commit()
        if self._with_index:
            self._write_index(size)
        return ShardInfo(
            name=base_name(self.address),
            samples=self.index.samples,
            members=self.index.members,
            size_bytes=size,
            headers=self.index.digest(),
            checksum=written(self._checksum, self._through.digest),
            fields=self.index.totals(),
            index=self._with_index,
        )

    def _write_index(self, size: int) -> None:
        data = self.index.to_bytes(
            shard=base_name(self.address), size=size, form=self.form, ignored=self.ignored
        )
        # A stale index of an older shard of this name may be there; the shard itself was checked.
        with open_sink(index_address(self.address), force=True, fsync=self._fsync) as sink:
            sink.write(data)

    def discard(self) -> None:
        """Leave nothing behind."""
        self._sink.discard()

    def __enter__(self) -> ShardFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.discard()
