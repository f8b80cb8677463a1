"""This module is the public writer, which writes a set sample by sample.

:class:`SampleWriter` starts new shards as needed, and :class:`ShardWriter` writes shards, indexes and a manifest.
:mod:`~wdscli.shards.webdataset_writers` has other subclasses. One :class:`~wdscli.shards.writing.ShardFile` is open at
a time. The exact length of a sample in tar bytes decides whether it fits in the open shard. A writer that is not closed
warns when it is collected, and at the end of the process. This module does not know where samples come from.
"""

from __future__ import annotations

import atexit
import os
import re
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from wdscli.errors import DataError, UsageError
from wdscli.model import Sample, ShardInfo
from wdscli.samples import check_name
from wdscli.selection.values import value_names
from wdscli.shards.manifest import Manifest
from wdscli.shards.writing import OutputSet, Payload, ShardFile, ShardSettings
from wdscli.shown import shown
from wdscli.storage.opening import GONE, current_versions
from wdscli.tar import CANONICAL, END_OF_ARCHIVE, Form, build_header, padded
from wdscli.text import to_bytes
from wdscli.units import plural

_MAX_KNOWN, _MAX_KNOWN_BYTES = 1024, 1024
_PLAIN_KEY = re.compile("[A-Za-z0-9][A-Za-z0-9_-]{,99}(?:/[A-Za-z0-9_-]{1,100}){,9}")
"""Matches keys that form a valid member name with every valid field."""
_MEMBER_BYTES = 4096
"""The most bytes of headers and padding of a member, unless its name is extraordinarily long."""
Writer = TypeVar("Writer", bound="SampleWriter")


@cache
def _open_writers() -> weakref.WeakSet[SampleWriter]:
    """Return the set of the writers that are not closed. At the end of the process, they warn."""
    writers: weakref.WeakSet[SampleWriter] = weakref.WeakSet()
    atexit.register(_warn_of_open, writers)
    return writers


def _warn_of_open(writers: weakref.WeakSet[SampleWriter]) -> None:
    for writer in list(writers):
        writer.warn_if_open()


class SampleWriter:
    """Writes samples to shards, one after the other. It checks names, refuses a repeated key in a shard, and keeps each
    shard within the limits. ``output`` is the set of the shards, or None. ``name`` is used in errors.

    Subclasses define how shards are opened, and may define how they end.
    """

    manifest: Manifest
    """The manifest. It exists after the writer is closed."""
    _process = 0
    """The process that opened the writer. Only this process may warn, not its forks."""
    _shard: ShardFile | None = None

    def __init__(
        self,
        name: str,
        form: Form,
        output: OutputSet | None = None,
        *,
        max_count: int | None = None,
        max_size: int | None = None,
    ) -> None:
        self._name, self._form, self._output = name, form, output
        self._max_count, self._max_size = max_count, max_size
        self._done: list[ShardInfo] = []
        self._keys: set[bytes] = set()
        self._fields: dict[str, bytes] = {}
        self._closed = False
        if output is not None:
            output.claim(options={"operation": "write"})
        self._process = os.getpid()
        _open_writers().add(self)

    def _open_shard(self) -> ShardFile:
        """Open the next shard."""
        raise NotImplementedError

    def _put(self, text: str, fields: Mapping[str, bytes | bytearray | memoryview]) -> None:
        """Write one sample with the key ``text``. Raises UsageError, DataError for a repeated key."""
        if not fields:
            raise UsageError(f'sample "{text}" has no fields')
        key = to_bytes(text)
        members = self._members(text, key, fields)
        if key in self._keys:
            raise DataError(f'repeated key "{text}"', code="duplicate-key", shard=self._name)
        self._room_for(key, members).write(key, members)
        self._keys.add(key)

    def _members(
        self, text: str, key: bytes, fields: Mapping[str, bytes | bytearray | memoryview]
    ) -> list[tuple[bytes, Payload]]:
        """Check and return the fields and payloads of a sample. A field that is valid with one key is valid with every
        valid key. There is one exception: a name of the form ``__a.b__``, which readers skip, depends on both key and
        field."""
        checked_fields, must_check = self._fields, _PLAIN_KEY.fullmatch(text) is None
        members: list[tuple[bytes, Payload]] = []
        for field, data in fields.items():
            raw = checked_fields.get(field)
            if raw is None or must_check:
                raw = to_bytes(field)
                check_name(key, raw)
                must_check = key.startswith(b"__")
                if len(checked_fields) < _MAX_KNOWN and len(raw) < _MAX_KNOWN_BYTES:
                    checked_fields[field] = raw
            members.append((raw, data if type(data) is bytes else _payload(text, field, data)))
        return members

    def _room_for(self, key: bytes, members: list[tuple[bytes, Payload]]) -> ShardFile:
        """Return the shard for one more sample: the open shard, or the next."""
        if self._closed:
            raise UsageError(f"{self._name} is closed and cannot be written")
        if self._shard is not None and self._is_full(self._shard, key, members):
            self._end_shard()
        if self._shard is None:
            self._shard = self._open_shard()
        return self._shard

    def _is_full(self, shard: ShardFile, key: bytes, members: list[tuple[bytes, Payload]]) -> bool:
        if self._max_count is not None and shard.samples >= self._max_count:
            return True
        if self._max_size is None:
            return False
        room = self._max_size - shard.position - len(END_OF_ARCHIVE)
        if sum([len(data) for _, data in members]) + _MEMBER_BYTES * len(members) <= room:
            return False
        length = sum(
            len(build_header(key + b"." + field, len(data), self._form)) + padded(len(data))
            for field, data in members
        )
        return length > room and shard.samples > 0

    def _end_shard(self) -> None:
        if self._shard is not None:
            shard, self._shard = self._shard, None
            with shard:
                if self._output is not None:
                    self._output.check_claim(shard.address)
                self._done.append(shard.commit())
            self._keys.clear()

    def _finish(self) -> None:
        """Commit the last shard, then write the manifest. A second call does nothing."""
        if self._closed:
            return
        output = self._output
        if output is not None and output.pattern.single and not self._done and self._shard is None:
            self._shard = self._open_shard()
        self._end_shard()
        self._closed = True
        if output is not None:
            options = {"max_count": self._max_count, "max_size": self._max_size}
            try:
                self.manifest = output.finish(self._done, operation="write", options=options)
            finally:
                output.release()

    def close(self) -> Any:
        """Finish writing."""
        self._finish()

    def discard(self) -> None:
        """Remove the unfinished shard. Finished shards stay, without a manifest."""
        self._closed = True
        if self._shard is not None:
            self._shard.discard()
            self._shard = None
        if self._output is not None:
            self._output.release()

    def warn_if_open(self) -> None:
        """Warn about the open shard and the missing manifest of a writer that nothing closed. A second call does
        nothing."""
        if self._process != os.getpid() or self._closed:
            return
        self._process, shard = 0, self._shard
        losses = []
        if shard is not None and not shard.is_ended and shard.samples:
            losses.append(f"{shown(shard.address)} with {plural(shard.samples, 'sample')} is not complete")
        if self._done and self._output is not None:
            shards = plural(len(self._done), "finished shard")
            losses.append(f"{shown(self._output.pattern.text)} has {shards} without a manifest")
        if losses:
            warnings.warn(
                f"a {type(self).__name__} was not closed: {', and '.join(losses)}; "
                "use the writer in a with block, or call its close()",
                stacklevel=2,
            )

    def __del__(self) -> None:
        self.warn_if_open()

    def __enter__(self: Writer) -> Writer:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


class ShardWriter(SampleWriter):
    """Writes samples to ``pattern`` (``out-%06d.tar``, one file, ``-``, ``pipe:CMD``, any writable address).

    A shard has at most ``max_count`` samples and at most ``max_size`` bytes, headers, padding and end of archive
    included. A new shard begins when the next sample would exceed these limits. A sample larger than ``max_size`` gets
    its own shard. Use this object as a context manager. Each shard gets its name when it is complete. The manifest is
    written last, and only without an error. An exception leaves no partial shard. ``values`` are numbers of each sample
    that the indexes store, in the form of ``wds index --values``: ``"json.tokens,len(txt)"``.

    >>> folder = getfixture("tmp_path")
    >>> with ShardWriter(str(folder / "train-%06d.tar"), max_count=2) as writer:
    ...     for number in range(3):
    ...         writer.write(f"n{number}", {"cls": b"%d" % number})
    >>> writer.manifest.samples, [shard.name for shard in writer.manifest.shards]
    (3, ['train-000000.tar', 'train-000001.tar'])
    """

    _output: OutputSet

    def __init__(
        self,
        pattern: str,
        *,
        max_count: int | None = None,
        max_size: int | None = None,
        form: Form = CANONICAL,
        checksum: str = "xxh3_128",
        with_index: bool = True,
        values: str | Sequence[str] | None = None,
        force: bool = False,
        fsync: bool = False,
    ) -> None:
        for limit, name in ((max_count, "max_count"), (max_size, "max_size")):
            if limit is not None and limit < 1:
                raise UsageError(f"{name} must be at least 1, not {limit}")
        names = value_names(values)
        settings = ShardSettings(form, checksum, with_index, force, fsync, values=names)
        output = OutputSet(pattern, settings)
        super().__init__(output.pattern.text, form, output, max_count=max_count, max_size=max_size)

    def write(
        self, sample: Sample | str, fields: Mapping[str, bytes | bytearray | memoryview] | None = None
    ) -> None:
        """Write one sample: ``write(sample)``, or ``write(key, {field: payload})``. Fields are written in the given
        order. Payloads are bytes, and may be changed after the call.

        Raises UsageError for names that are unsafe or that readers would parse differently, and for payloads that are
        not bytes. Raises DataError for a key that the shard already has. After these errors, the sample is not written,
        and the writer can continue.
        """
        if isinstance(sample, Sample):
            self._put(sample.key, sample.fields)
        else:
            self._put(sample, fields or {})

    def _open_shard(self) -> ShardFile:
        return self._output.settings.open(self._output.address(len(self._done)))

    def close(self) -> Manifest:
        """Commit the last shard, then write the manifest. A second call does nothing.

        Without samples, a single file is written as an empty archive, and a pattern writes no shard.
        """
        self._finish()
        if "manifest" not in self.__dict__:
            raise UsageError(f"{self._name} was discarded: it has no manifest")
        return self.manifest


def _payload(key: str, field: str, data: object) -> bytes:
    """Return ``data`` as immutable bytes. Buffers are copied, because small payloads are written later."""
    if isinstance(data, bytes):
        return data
    if isinstance(data, (bytearray, memoryview)):
        return bytes(data)
    raise UsageError(
        f'field "{field}" of sample "{key}" is {type(data).__name__}, not bytes',
        hint="encode it first: text.encode(), json.dumps(value).encode(), ...",
    )


def after_hook(shard: ShardInfo, address: str) -> ShardInfo:
    """Return the shard's facts after a user's command or function, which may have changed or removed the shard."""
    version = next(iter(current_versions([address])))
    return replace(shard, version="" if version == GONE else version)
