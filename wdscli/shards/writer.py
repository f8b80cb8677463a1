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
from wdscli.shards.shardfile import ShardFile
from wdscli.tar import CANONICAL, END_OF_ARCHIVE, Form, build_header, padded


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
        self._output.begin()

    def write(self, sample: Sample | str, fields: Mapping[str, bytes] | None = None) -> None:
        """One sample: ``write(sample)``, or ``write(key, {field: payload})``. Fields are written in the order given.

        Raises UsageError for names that are unsafe or would not read back, DataError for the key of the sample before.
        """
        if isinstance(sample, Sample):
            text, fields = sample.key, sample.fields
        else:
            text = sample
        if not fields:
            raise UsageError(f'sample "{text}" has no fields')
        key = to_bytes(text)
        members: list[tuple[bytes, bytes | bytearray | memoryview]] = [
            (to_bytes(f), data) for f, data in fields.items()
        ]
        for field, _ in members:
            check_name(key, field)
        if key in self._keys:
            raise DataError(
                f'key "{text}" a second time', code="duplicate-key", shard=self._output.pattern.text
            )
        self._roll(key, members)
        assert self._shard is not None
        self._shard.write(key, members)
        self._keys.add(key)

    def _roll(self, key: bytes, members: list[tuple[bytes, bytes | bytearray | memoryview]]) -> None:
        """Make room for one more sample: the same shard, or the next one."""
        shard = self._shard
        if shard is not None and shard.samples and self._is_full(shard, key, members):
            self._end_shard()
        if self._shard is None:
            self._shard = self._output.settings.open(self._output.address(len(self._done)))

    def _is_full(
        self, shard: ShardFile, key: bytes, members: list[tuple[bytes, bytes | bytearray | memoryview]]
    ) -> bool:
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
            self._done.append(shard.commit())
            self._keys.clear()

    def close(self) -> Manifest:
        """Commit the last shard, then write the manifest."""
        if "manifest" not in self.__dict__:
            self._end_shard()
            options = {"max_count": self._max_count, "max_size": self._max_size}
            self.manifest = self._output.finish(self._done, operation="write", options=options)
        return self.manifest

    def discard(self) -> None:
        """Drop the shard that is being written; those that are whole stay, without a manifest."""
        if self._shard is not None:
            self._shard.discard()
            self._shard = None

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()
