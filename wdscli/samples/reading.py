"""Samples with their payloads, as records, for those who want one at a time.

How: one pass over windows that hold the payloads. Where there is a compiled core (``core.py``), that cuts the samples
of a window out of its buffer, many at a time, and leaves to :meth:`_Reading._add` what it does not know: members of no
sample, fields that were not met before or come twice, payloads of streams that go on behind the buffer. Samples and
errors are the same. It must not know where bytes come from, nor what a shard set is.
"""

from __future__ import annotations

from collections.abc import Iterator

from wdscli.model import Sample, to_bytes, to_text
from wdscli.samples.grouping import Grouper, duplicate_field
from wdscli.samples.keys import split_name
from wdscli.tar import KIND_MASK, ByteSource, Window, core, scan

_KNOWN_FIELDS = 1 << 12
HEAP_BLOCK_BYTES = 31 << 20
_heap_is_kept = False


def iter_samples(source: ByteSource, *, fields: frozenset[str] | None = None) -> Iterator[Sample]:
    """The samples of one archive with their payloads, as records. ``fields`` limits which payloads are read; samples
    that have none of them are passed over.

    Raises DataError for a damaged archive, for links, devices and sparse members and for a field that comes twice.
    """
    keep_heap()
    reading = _Reading(source.name, fields)
    for window in scan(source, payloads=True):
        yield from reading.add(window)
    yield from reading.rest()


class _Reading:
    """The samples that were read and not given out yet; the last of them may go on in the next window."""

    def __init__(self, shard: str, fields: frozenset[str] | None) -> None:
        self._shard = shard
        self._fields = fields
        self._samples: list[Sample] = []
        self._prefix = b""
        """The key of the last sample, and a dot."""
        self._texts: dict[bytes, str | None] = {}
        """Fields that were met: their names, None for those that are not wanted."""
        self._grouper = Grouper(shard)

    def add(self, window: Window) -> Iterator[Sample]:
        """Take the members of one window, and give out the samples that are whole then. Raises DataError."""
        row, count = 0, len(window.columns.names)
        while row < count:
            end = self._cut(window, row)
            if end == row:
                self._add(window, row)
                end += 1
            row = end
            if len(self._samples) > 1:
                yield from self._wanted(self._samples[:-1])
                del self._samples[:-1]

    def rest(self) -> list[Sample]:
        """Give out the last sample."""
        return self._wanted(self._samples)

    def _cut(self, window: Window, row: int) -> int:
        """Take usual members from ``row`` on. Returns the row of the next."""
        if core.CORE is None:
            return row
        source = window.source
        descriptor: int | None = getattr(source, "fd", None)
        end: int = core.CORE.cut(
            window.buffer,
            window.base,
            window.columns,
            row,
            -1 if descriptor is None else descriptor,
            source.size or 0,
            self._prefix,
            self._texts,
            Sample,
            self._shard,
            self._samples,
        )
        if end > row:
            self._prefix = to_bytes(self._samples[-1].key) + b"."
        return end

    def _add(self, window: Window, row: int) -> None:
        """One member, whatever it is: the exact path."""
        names, starts, _, sizes, flags = window.columns
        name, kind = names[row], flags[row] & KIND_MASK
        parts = None if kind else split_name(name)
        if parts is None:
            self._grouper.ignore(name, kind, starts[row], sizes[row])
            return
        key, field = parts
        if self._prefix != key + b".":
            index = self._samples[-1].index + 1 if self._samples else 0
            self._samples.append(Sample(to_text(key), {}, self._shard, index))
            self._prefix = key + b"."
        text = self._text(field)
        if text is None:
            return
        payloads = self._samples[-1].fields
        if text in payloads:
            raise duplicate_field(self._shard, starts[row], name)
        payloads[text] = window.payload(row)

    def _text(self, field: bytes) -> str | None:
        """The name of a field, None when it is not wanted."""
        if field in self._texts:
            return self._texts[field]
        text = to_text(field)
        wanted = text if self._fields is None or text in self._fields else None
        if len(self._texts) < _KNOWN_FIELDS:
            self._texts[field] = wanted
        return wanted

    def _wanted(self, samples: list[Sample]) -> list[Sample]:
        return samples if self._fields is None else [sample for sample in samples if sample.fields]


def keep_heap() -> None:
    """Let freed payloads' memory stay with this process, for the next ones. Once is enough; a fork inherits it.

    glibc gives the free end of its heap back to the kernel whenever that exceeds 128 KiB, so that a picture is paid for
    by page faults again and again, which costs more than the reading itself (measured: payloads of 100 KB one after the
    other, 100 microseconds each and 20 after; 64 at a time, 40 and 13). It raises that limit by itself when a large
    block that it mapped is freed; one block of nearly 32 MiB, the most that counts, is therefore allocated and freed,
    and never touched. Up to 64 MiB of free memory then stay with the process. Other C libraries take no notice."""
    global _heap_is_kept
    if not _heap_is_kept:
        _heap_is_kept = True
        bytes(HEAP_BLOCK_BYTES)
