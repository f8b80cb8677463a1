"""webdataset's writers, of samples that are dicts: one archive, or shard after shard.

What it is: :class:`ShardWriter`, with webdataset's arguments and defaults, and
:class:`~wdscli.loader.write.writing_tar.TarWriter`, one of which it opens for each shard.

Differences of both from webdataset: archives have no clock and no owner in them, so the same samples give the same
bytes; a shard has its name only when it is whole, and an exception inside the ``with`` block leaves no half of one;
what is there is not replaced without ``force=True``; a set gets a manifest, and each shard an index; names that would
not read back, and keys that come twice, are errors; ``maxsize`` counts the bytes of the shard and is never exceeded;
nothing is printed. It must not know how shards are read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import IO, Any

from wdscli.errors import UsageError
from wdscli.loader.write.writing_ends import packing
from wdscli.loader.write.writing_tar import (
    Encoded,
    Encoding,
    SampleEncoder,
    TarWriter,
    form_of,
    says_how_to_replace,
    tell_ignored,
)
from wdscli.model import ShardInfo
from wdscli.shards.manifest import Manifest
from wdscli.shards.writing import OutputSet, ShardSettings, after_hook
from wdscli.tar import END_OF_ARCHIVE

__all__ = ["ShardWriter", "TarWriter"]

HEADERS = 4096
"""Bytes that a member's headers and padding may take of a name that is not extraordinary."""


class ShardWriter:
    """Shards named by ``pattern`` (``out-%06d.tar``), each of at most ``maxcount`` samples and ``maxsize`` bytes; a
    sample that is larger gets a shard of its own.

    ``post(name)`` is called for each shard when it is whole: it may upload it and take it away. ``start_shard`` is the
    number of the first one; with another number than 0 these shards are part of a larger set, and its manifest is left
    to ``wds index``. ``opener(name)`` gives the file object for a shard, which is closed after it; there is then no
    index and no manifest, as there is none for compressed shards. ``options`` are :class:`TarWriter`'s. ``verbose`` is
    taken, and nothing is printed.

    Use it as a context manager: the manifest comes last, and only on success.

    >>> folder = getfixture("tmp_path")
    >>> with ShardWriter(f"{folder}/train-%06d.tar", maxcount=2, post=lambda name: print(name[-16:])) as writer:
    ...     for number in range(3):
    ...         writer.write({"__key__": f"n{number}", "cls": number})
    train-000000.tar
    train-000001.tar
    >>> writer.manifest.samples
    3
    """

    manifest: Manifest
    """The finished set; there once the writer is closed, where a manifest is written."""

    def __init__(
        self,
        pattern: str | os.PathLike[str],
        maxcount: int | None = 100000,
        maxsize: float | None = 3e9,
        post: Callable[[str], object] | None = None,
        start_shard: int = 0,
        verbose: int = 1,
        opener: Callable[[str], IO[bytes]] | None = None,
        *,
        encoder: Encoding = True,
        keep_meta: bool = False,
        mtime: float | None = None,
        compress: bool | str | None = None,
        **options: Any,
    ) -> None:
        tell_ignored(**{name: options.pop(name, None) for name in ("user", "group", "mode", "format")})
        self.pattern = os.fspath(pattern)
        self.maxcount, self.maxsize = _limit("maxcount", maxcount), _limit("maxsize", maxsize)
        self.post = post
        self.opener = opener
        self.shard = start_shard
        """The number of the next shard."""
        self.total = self.count = self.size = 0
        """Samples so far; samples, and bytes of payloads, of the shard that is open."""
        self.fname: str | None = None
        self._writer: TarWriter | None = None
        self._stream: IO[bytes] | None = None
        self._encoder = SampleEncoder(encoder, keep_meta)
        self._form = form_of(mtime)
        self._options = {**options, "mtime": mtime, "compress": compress}
        self._done: list[ShardInfo] = []
        self._whole = start_shard == 0
        self._closed = False
        self._output = self._begin(compress)

    def _begin(self, compress: bool | str | None) -> OutputSet | None:
        """The set to write; None for shards that have no place for a manifest beside them."""
        if self.opener is not None or packing(self.pattern, compress):
            return None
        chosen = {"with_index" if name == "index" else name: value for name, value in self._options.items()}
        del chosen["mtime"], chosen["compress"]
        try:
            output = OutputSet(self.pattern, ShardSettings(form=self._form, **chosen))
        except TypeError:
            raise UsageError(f"no such option: {', '.join(chosen)}", hint="those of TarWriter") from None
        if self._whole:
            with says_how_to_replace():
                output.claim()
        return output

    def write(self, obj: Mapping[str, Any]) -> None:
        """One sample. Raises UsageError and DataError as :meth:`TarWriter.write` does; the writer can go on."""
        if self._closed:
            raise UsageError(f"{self.pattern} is closed: nothing more can be written")
        sample = self._encoder.encoded(obj)
        if self._writer is None or self._is_full(self._writer, sample):
            self.next_stream()
        assert self._writer is not None
        self.size += self._writer.put(sample)
        self.count += 1
        self.total += 1

    def _is_full(self, writer: TarWriter, sample: Encoded) -> bool:
        if writer.has(sample.key):
            return False  # put() says what is wrong with it
        if self.maxcount is not None and self.count >= self.maxcount:
            return True
        if self.maxsize is None or not self.count:
            return False
        end = writer.position + len(END_OF_ARCHIVE)
        if end + sample.size_bytes + HEADERS * len(sample.members) <= self.maxsize:
            return False
        return end + sample.length(self._form) > self.maxsize

    def next_stream(self) -> None:
        """End the shard that is open, and begin the next."""
        self.finish()
        self.fname = self._address(self.shard)
        target: Any = self.fname
        if self.opener is not None:
            target = self._stream = self.opener(self.fname)
        ticket = None if self._output is None else self._output.settings.ticket
        self._writer = TarWriter(target, encoder=False, ticket=ticket, **self._options)
        self.shard += 1
        self.count = self.size = 0

    def _address(self, number: int) -> str:
        if self._output is not None:
            return self._output.address(number)
        try:
            return self.pattern % number
        except TypeError:
            raise UsageError(f"{self.pattern} has no %06d for the shard's number") from None

    def finish(self) -> None:
        """End the shard that is open, if there is one, and hand it to ``post``."""
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        with writer:
            if self._output is not None:
                self._output.check_claim(self.fname or "")
        info = writer.info
        self._close_stream()
        if self.post is not None:
            self.post(self.fname or "")
        if info is not None:
            self._done.append(info if self.post is None else after_hook(info, self.fname or ""))

    def _close_stream(self) -> None:
        if self._stream is not None:
            stream, self._stream = self._stream, None
            stream.close()

    def close(self) -> None:
        """End the last shard and write the manifest. A second call does nothing."""
        if self._closed:
            return
        single = self._output is not None and self._output.pattern.single
        if single and not self.total and self._writer is None:
            self.next_stream()
        self.finish()
        self._closed = True
        if self._output is not None and self._whole:
            limits = {"max_count": self.maxcount, "max_size": self.maxsize}
            try:
                self.manifest = self._output.finish(self._done, operation="write", options=limits)
            finally:
                self._output.release()

    def discard(self) -> None:
        """Drop the shard that is open; those that are whole stay, without a manifest."""
        self._closed = True
        if self._writer is not None:
            self._writer.discard()
            self._writer = None
        self._close_stream()
        if self._output is not None:
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


def _limit(name: str, value: float | None) -> int | None:
    if value is None or value == float("inf"):
        return None
    if value < 1:
        raise UsageError(f"{name} must be at least 1, not {value}")
    return int(value)
