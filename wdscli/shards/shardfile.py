"""One shard while it is written: bytes to a sink, with checksum, index and totals on the way.

What it is: what stands between the samples and the storage. It takes samples by payload (:meth:`ShardFile.write`), or
runs of canonical members as they stand (:meth:`ShardFile.write_run`), and gives a :class:`~wdscli.model.ShardInfo`.
How: all bytes pass through one method that hashes and writes them while they are in the processor's cache.
The shard has its final name only after :meth:`ShardFile.commit`; its index has its own right after.

It must not know of sets, cuts or commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import TracebackType

from wdscli.errors import DataError, OutputError
from wdscli.model import ShardInfo, to_text
from wdscli.samples import SampleBatch, new_batch
from wdscli.shards.checksum import Digest, new_digest, written
from wdscli.shards.claims import Ticket
from wdscli.shards.index import FOLDER, SUFFIX, IndexBuilder, Packed
from wdscli.storage import Sink, base_name, is_local, is_stream, open_sink, remove, sibling
from wdscli.storage.addresses import local_path
from wdscli.storage.opening import is_device
from wdscli.tar import CANONICAL, FOREIGN, Form, TarWriter, padding
from wdscli.tar.template import header_maker

Payload = bytes | bytearray | memoryview
Kept = tuple[bytes, bytes, int, Iterable[bytes]]
Witness = Callable[[str, ShardInfo, str], None]
"""Called with a shard's address, its facts and its index's XXH3-64 ("" without one) when it is whole and has not got
its name yet."""
_JOINED = 1 << 15
"""A sample of fewer bytes goes on as one piece."""


def goes_nowhere(address: str) -> bool:
    """Whether ``address`` is a stream or a device: nothing can lie beside it."""
    return is_stream(address) or (is_local(address) and is_device(local_path(address)))


def index_address(address: str) -> str:
    """Where the index of a shard lies: ``.wds/<name>.wdx`` in the shard's folder."""
    return sibling(address, f"{FOLDER}/{base_name(address)}{SUFFIX}")


class _Through:
    """A sink that hashes what passes."""

    def __init__(self, sink: Sink, digest: Digest | None) -> None:
        self._sink = sink
        self.digest = digest

    def write(self, data: Payload, /) -> None:
        if self.digest is not None:
            self.digest.update(data)
        self._sink.write(data)


class ShardFile:
    """Writes one shard to ``address``. Call :meth:`commit` at the end; as a context manager it leaves nothing behind
    when the block is left before that.

    ``with_index`` writes the ``.wdx`` beside it (never for ``-``, ``pipe:`` and devices; ``witness`` is not called
    there either). ``ticket`` names the folder that must still be the same. With ``sink`` the bytes go there, and
    ``address`` is but a name. Raises OutputError, OutputExistsError.

    >>> folder = getfixture("tmp_path")
    >>> with ShardFile(str(folder / "a.tar")) as shard:
    ...     shard.write(b"cat1", [(b"cls", b"0"), (b"jpg", b"...")])
    ...     info = shard.commit()
    >>> info.samples, info.size_bytes, sorted(path.name for path in folder.iterdir())
    (1, 3072, ['.wds', 'a.tar'])
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
        witness: Witness | None = None,
        ticket: Ticket | None = None,
        sink: Sink | None = None,
    ) -> None:
        self.address = address
        self._ticket = ticket
        self._check_folder()
        self.form = form
        self._checksum = checksum
        self._force = force
        self._fsync = fsync
        self._witness = witness
        self._has_place = sink is None and not goes_nowhere(address)
        self._with_index = with_index and self._has_place
        digest = new_digest(checksum)
        self._sink = sink or open_sink(address, force=force, fsync=fsync)
        self._through = _Through(self._sink, digest)
        self._tar = TarWriter(self._through, form)
        self._header = header_maker(form)
        self.index = IndexBuilder()
        self.ignored: dict[str, int] = {}

    @property
    def position(self) -> int:
        """Bytes of the shard so far, without the end of archive."""
        return self._tar.position

    @property
    def samples(self) -> int:
        return self.index.samples

    def write(self, key: bytes, fields: Sequence[tuple[bytes, Payload]]) -> None:
        """One sample. ``key`` and field names have been checked by the caller (:func:`~wdscli.samples.check_name`)."""
        tar, make = self._tar, self._header
        prefix = key + b"."
        start = position = tar.position
        names, offsets, sizes = [], [], []
        parts: list[Payload] = []
        for field, payload in fields:
            size = len(payload)
            header = make(prefix + field, size)
            position += len(header)
            names.append(field)
            offsets.append(position)
            sizes.append(size)
            position += size + 511 & -512
            parts += header, payload, padding(size)
        if position - start < _JOINED:
            tar.raw(b"".join(parts))
        else:
            for part in parts:
                tar.raw(part)
        self.index.add_sample(key, start, names, offsets, sizes)

    def write_run(self, data: Payload, batch: SampleBatch) -> None:
        """Whole canonical samples as they stand; ``batch`` describes them with the places they have in this shard."""
        self._tar.raw(data)
        self.index.add_batch(batch)

    def write_packed(self, data: Payload, packed: Packed) -> None:
        """:meth:`write_run` of samples as arrays, whose places count from the first byte of ``data``."""
        shift = self._tar.position
        self._tar.raw(data)
        self.index.add_packed(packed, shift)

    def write_pieces(self, key: bytes, fields: Sequence[tuple[bytes, int, Iterable[Payload]]]) -> None:
        """One sample whose payloads come in pieces: (field, bytes, pieces). Raises DataError when a payload has another
        length than was said."""
        tar, start = self._tar, self._tar.position
        names, offsets, sizes = [], [], []
        for field, size, pieces in fields:
            tar.begin(key + b"." + field, size)
            offset = tar.position
            for piece in pieces:
                tar.raw(piece)
            if tar.position != offset + size:
                raise DataError(
                    f"{tar.position - offset} payload bytes where {size} were announced",
                    code="changed",
                    member=to_text(key + b"." + field),
                )
            tar.raw(padding(size))
            names.append(field)
            offsets.append(offset)
            sizes.append(size)
        self.index.add_sample(key, start, names, offsets, sizes)

    def write_kept(self, key: bytes, members: Iterable[Kept]) -> None:
        """One sample with headers of its own: (field, header blocks, payload bytes, pieces of the payload)."""
        tar, start = self._tar, self._tar.position
        batch = new_batch()
        for field, header, size, pieces in members:
            batch.starts.append(tar.position)
            tar.raw(header)
            batch.offsets.append(tar.position)
            for piece in pieces:
                tar.raw(piece)
            tar.raw(padding(size))
            batch.fields.append(field)
            batch.sizes.append(size)
        if not batch.fields:
            raise DataError("a sample without members", code="changed", member=to_text(key), offset=start)
        batch.keys.append(key)
        batch.firsts.append(len(batch.fields))
        batch.marks.append(FOREIGN)
        self.index.add_batch(batch)

    def write_blocks(self, data: Payload) -> None:
        """Part of samples that are announced by :meth:`announce` once they are through."""
        self._tar.raw(data)

    def announce(self, batch: SampleBatch) -> None:
        """Samples whose bytes went out by :meth:`write_blocks`."""
        self.index.add_batch(batch)

    def flush(self) -> None:
        """Nothing that was handed in is referred to any longer after this; needed before a buffer is used again."""
        self._tar.flush()

    def _check_folder(self) -> None:
        """Nothing is written into a folder that has come in the place of the one that the run began with."""
        if self._ticket is not None:
            self._ticket.check(self.address)

    def commit(self) -> ShardInfo:
        """End the archive, give the shard its name, then the index its own."""
        try:
            return self._commit()
        except OutputError:
            self._check_folder()  # which says better why there is no such file
            raise

    def _commit(self) -> ShardInfo:
        self._tar.close()
        self._check_folder()
        size = self._tar.position
        info = self._info(size)
        if not self._with_index:
            self._take_name(info, "")
            return replace(info, version=self._sink.version)
        # The index of a shard that was deleted by hand may be there; the shard itself is checked.
        with open_sink(index_address(self.address), force=True, fsync=self._fsync) as sink:
            self._take_name(info, self._write_index(sink, size))
        return replace(info, version=self._sink.version)

    def _take_name(self, info: ShardInfo, index_seal: str) -> None:
        """Give the shard its name, once the witness knows of it."""
        if self._witness is not None and self._has_place:
            self._witness(self.address, info, index_seal)
        if self._force and self._has_place:
            # The index of the shard that is replaced: it would be noticed as stale, but nobody should have to.
            remove(index_address(self.address))
        self._sink.commit()

    def _write_index(self, sink: Sink, size: int) -> str:
        """Write the index piece by piece, which is large where samples are small; returns the XXH3-64 of its bytes."""
        from xxhash import xxh3_64

        seal = xxh3_64()
        for piece in self.index.pieces(
            shard=base_name(self.address), size=size, form=self.form, ignored=self.ignored
        ):
            seal.update(piece)
            sink.write(piece)
        return seal.hexdigest()

    def _info(self, size: int) -> ShardInfo:
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

    def discard(self) -> None:
        """Leave nothing behind; a no-op after :meth:`commit`."""
        self._sink.discard()

    def __enter__(self) -> ShardFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()
