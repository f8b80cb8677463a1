"""A set to write, sample by sample: the library's face.

What it is: :class:`ShardWriter`, which rolls from shard to shard and leaves shards, indexes and a manifest. How: one
:class:`~wdscli.shards.shardfile.ShardFile` at a time; before a sample is written its exact length in tar bytes decides
whether it still fits. It must not know where samples come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

from wdscli.errors import DataError, UsageError
from wdscli.model import Sample, ShardInfo, to_bytes
from wdscli.samples import check_name
from wdscli.shards.manifest import Manifest
from wdscli.shards.output import OutputSet, ShardSettings
from wdscli.shards.shardfile import Payload, ShardFile
from wdscli.tar import CANONICAL, END_OF_ARCHIVE, Form, build_header, padded

_MAX_KNOWN = 1024


class ShardWriter:
    """Writes samples to ``pattern`` (``out-%06d.tar``, one file, ``-``, ``pipe:CMD``, any address that can be written).

    A new shard begins when the next sample would make the shard hold more than ``max_count`` samples or more than
    ``max_size`` bytes (headers, padding and end of archive included); a sample that is larger on its own gets a shard
    of its own. Use it as a context manager: shards get their names one by one when they are whole, the manifest comes
    last and only on success, and an exception leaves no half-written shard.

    >>> folder = getfixture("tmp_path")
    >>> with ShardWriter(str(folder / "train-%06d.tar"), max_count=2) as writer:
    ...     for number in range(3):
    ...         writer.write(f"n{number}", {"cls": b"%d" % number})
    >>> writer.manifest.samples, [shard.name for shard in writer.manifest.shards]
    (3, ['train-000000.tar', 'train-000001.tar'])
    """

    manifest: Manifest
    """The finished set; there once the writer is closed."""

    def __init__(
        self,
        pattern: str,
        *,
        max_count: int | None = None,
        max_size: int | None = None,
        form: Form = CANONICAL,
        checksum: str = "xxh3_128",
        with_index: bool = True,
        force: bool = False,
        fsync: bool = False,
    ) -> None:
        for limit, name in ((max_count, "max_count"), (max_size, "max_size")):
            if limit is not None and limit < 1:
                raise UsageError(f"{name} must be at least 1, not {limit}")
        self._output = OutputSet(pattern, ShardSettings(form, checksum, with_index, force, fsync))
        self._max_count = max_count
        self._max_size = max_size
        self._form = form
        self._shard: ShardFile | None = None
        self._done: list[ShardInfo] = []
        self._keys: set[bytes] = set()
        self._fields: dict[str, bytes] = {}
        self._closed = False
        self._output.claim()

    def write(
        self, sample: Sample | str, fields: Mapping[str, bytes | bytearray | memoryview] | None = None
    ) -> None:
        """One sample: ``write(sample)``, or ``write(key, {field: payload})``. Fields are written in the order given;
        payloads are bytes and may be changed once this returns.

        Raises UsageError for names that are unsafe or would not read back and for payloads that are no bytes, DataError
        for a key that is in the shard of the sample before. The sample is then not written, and the writer can go on.
        """
        if isinstance(sample, Sample):
            text, fields = sample.key, sample.fields
        else:
            text = sample
        if not fields:
            raise UsageError(f'sample "{text}" has no fields')
        key = to_bytes(text)
        members = self._members(text, key, fields)
        if key in self._keys:
            raise DataError(
                f'key "{text}" a second time', code="duplicate-key", shard=self._output.pattern.text
            )
        self._room_for(key, members).write(key, members)
        self._keys.add(key)

    def _members(
        self, text: str, key: bytes, fields: Mapping[str, bytes | bytearray | memoryview]
    ) -> list[tuple[bytes, Payload]]:
        """Names and payloads of a sample, checked. A field that was good with one key is good with every key that is
        good with some field; but whether ``__a.b__`` is one of those names that readers pass over, both decide."""
        known = self._fields
        members: list[tuple[bytes, Payload]] = []
        for field, data in fields.items():
            raw = known.get(field)
            if raw is None or not members or key.startswith(b"__"):
                raw = to_bytes(field)
                check_name(key, raw)
                if len(known) < _MAX_KNOWN:
                    known[field] = raw
            members.append((raw, data if type(data) is bytes else _payload(text, field, data)))
        return members

    def _room_for(self, key: bytes, members: list[tuple[bytes, Payload]]) -> ShardFile:
        """The shard for one more sample: the one that is open, or the next."""
        if self._closed:
            raise UsageError(f"{self._output.pattern.text} is closed: nothing more can be written")
        if self._shard is not None and self._is_full(self._shard, key, members):
            self._end_shard()
        if self._shard is None:
            self._shard = self._output.settings.open(self._output.address(len(self._done)))
        return self._shard

    def _is_full(self, shard: ShardFile, key: bytes, members: list[tuple[bytes, Payload]]) -> bool:
        if self._max_count is not None and shard.samples >= self._max_count:
            return True
        if self._max_size is None:
            return False
        length = sum(
            len(build_header(key + b"." + field, len(data), self._form)) + padded(len(data))
            for field, data in members
        )
        return shard.position + length + len(END_OF_ARCHIVE) > self._max_size

    def _end_shard(self) -> None:
        if self._shard is not None:
            shard, self._shard = self._shard, None
            with shard:
                self._output.check_claim(shard.address)
                self._done.append(shard.commit())
            self._keys.clear()

    def close(self) -> Manifest:
        """Commit the last shard, then write the manifest. A second call does nothing.

        One file that got no sample is written as an empty archive; a pattern then names no shard at all.
        """
        if not self._closed:
            if self._output.pattern.single and not self._done and self._shard is None:
                self._shard = self._output.settings.open(self._output.address(0))
            self._end_shard()
            self._closed = True
            options = {"max_count": self._max_count, "max_size": self._max_size}
            try:
                self.manifest = self._output.finish(self._done, operation="write", options=options)
            finally:
                self._output.release()
        if "manifest" not in self.__dict__:
            raise UsageError(f"{self._output.pattern.text} was discarded: it has no manifest")
        return self.manifest

    def discard(self) -> None:
        """Drop the shard that is being written; those that are whole stay, without a manifest."""
        self._closed = True
        if self._shard is not None:
            self._shard.discard()
            self._shard = None
        self._output.release()

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


def _payload(key: str, field: str, data: object) -> bytes:
    """``data`` as bytes of our own: what may change is copied, because small payloads are gathered."""
    if isinstance(data, bytes):
        return data
    if isinstance(data, (bytearray, memoryview)):
        return bytes(data)
    raise UsageError(
        f'field "{field}" of sample "{key}" is {type(data).__name__}, not bytes',
        hint="encode it first: text.encode(), json.dumps(value).encode(), ...",
    )
