"""One shard to read: the library's face.

What it is: :class:`ShardReader`, which opens an address and gives samples, keys or members as records. How: it only
joins ``wdscli.storage`` and ``wdscli.samples``; all work is done there. It must not know of sets or commands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType

from wdscli.model import Member, Sample, to_text
from wdscli.samples import iter_batches, iter_samples
from wdscli.storage import Source, open_source
from wdscli.tar import members


class ShardReader:
    """Reads one shard: a path, a URL, ``-`` or ``pipe:CMD``, compressed or not.

    Iterate it for samples. A file can be iterated again and again; a stream once. ``fields`` limits which payloads are
    read at all. Close it, or use it as a context manager. Raises InputError when it cannot be read, DataError when its
    bytes are wrong.

    >>> from wdscli.shards import ShardWriter
    >>> folder = getfixture("tmp_path")
    >>> with ShardWriter(str(folder / "a.tar")) as writer:
    ...     writer.write("cat1", {"jpg": b"...", "cls": b"0"})
    ...     writer.write("dog1", {"jpg": b"....", "cls": b"1"})
    >>> with ShardReader(str(folder / "a.tar"), fields=["cls"]) as shard:
    ...     [(sample.key, sample["cls"]) for sample in shard]
    [('cat1', b'0'), ('dog1', b'1')]
    """

    def __init__(self, address: str, *, fields: Iterable[str] | None = None) -> None:
        self.address = address
        self._fields = None if fields is None else frozenset(fields)
        self._source: Source = open_source(address)

    def __iter__(self) -> Iterator[Sample]:
        """The samples, in the shard's order."""
        return iter_samples(self._source, fields=self._fields)

    def keys(self) -> Iterator[str]:
        """The samples' keys; payloads are not read."""
        for batch in iter_batches(self._source):
            yield from map(to_text, batch.keys)

    def members(self) -> Iterator[Member]:
        """Every member of the archive, also those that belong to no sample; payloads are not read."""
        return members(self._source)

    def close(self) -> None:
        self._source.close()

    def __enter__(self) -> ShardReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
