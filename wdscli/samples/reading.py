"""Samples with their payloads, as records, for those who want one at a time.

How: one pass over windows that hold the payloads; a name whose field is known needs no further look at the key rule.
It must not know where bytes come from, nor what a shard set is.
"""

from __future__ import annotations

from collections.abc import Iterator

from wdscli.model import Sample, to_text
from wdscli.samples.grouping import Grouper, duplicate_field
from wdscli.samples.keys import split_name
from wdscli.tar import KIND_MASK, ByteSource, Window, scan

_KNOWN_FIELDS = 1 << 12


def iter_samples(source: ByteSource, *, fields: frozenset[str] | None = None) -> Iterator[Sample]:
    """The samples of one archive with their payloads, as records. ``fields`` limits which payloads are read; samples
    that have none of them are passed over.

    Raises DataError for a damaged archive, for links, devices and sparse members and for a field that comes twice.
    """
    reading = _Reading(source.name, fields)
    for window in scan(source, payloads=True):
        yield from reading.window(window)
    if reading.payloads:
        yield Sample(to_text(reading.key), reading.payloads, source.name, reading.index)


class _Reading:
    """The sample that is being read, between windows.

    ``texts`` holds the names of fields that are known to be good (no slash, not empty), decoded, or None for those that
    are not wanted. A name whose part after the first dot is among them needs no further look at the key rule.
    """

    def __init__(self, shard: str, fields: frozenset[str] | None) -> None:
        self.shard = shard
        self.fields = fields
        self.index = -1
        self.key = b""
        self.payloads: dict[str, bytes] = {}
        self.texts: dict[bytes, str | None] = {}
        self._prefix = b"\0"
        self._grouper = Grouper(shard)

    def window(self, window: Window) -> Iterator[Sample]:
        """The samples that end in this window."""
        buffer, base = window.buffer, window.base
        names, starts, offsets, sizes, flags = window.columns
        end, shard, texts = base + len(buffer), self.shard, self.texts
        prefix, payloads = self._prefix, self.payloads
        length = len(prefix)
        regular = not any(flags) or not any(flag & KIND_MASK for flag in flags)
        row = -1
        for name, offset, size in zip(names, offsets, sizes, strict=True):
            row += 1
            try:
                if name.startswith(prefix) and regular:
                    field = texts[name[length:]]
                else:
                    key, _, raw = name.partition(b".")
                    field = texts[raw]
                    if not regular or key[-1] == 47 or key[0] == 95:
                        raise KeyError
                    if payloads:
                        yield Sample(self.key.decode("utf-8", "surrogateescape"), payloads, shard, self.index)
                        payloads = {}
                    self.index += 1
                    self.key = key
                    prefix = key + b"."
                    length = len(prefix)
            except (KeyError, IndexError):
                parts = split_name(name) if not flags[row] & KIND_MASK else None
                if parts is None:
                    self._grouper.ignore(name, flags[row] & KIND_MASK, starts[row], size)
                    continue
                field = self._learn(parts[1])
                if parts[0] != self.key or self.index < 0:
                    if payloads:
                        yield Sample(to_text(self.key), payloads, shard, self.index)
                        payloads = {}
                    self.index += 1
                    self.key = parts[0]
                    prefix = self.key + b"."
                    length = len(prefix)
            if field is None:
                continue
            if field in payloads:
                raise duplicate_field(shard, starts[row], name)
            stop = offset + size
            payloads[field] = buffer[offset - base : stop - base] if stop <= end else window.payload(row)
        self._prefix, self.payloads = prefix, payloads

    def _learn(self, raw: bytes) -> str | None:
        """Decode a field's name once; None when it is not wanted."""
        text = to_text(raw)
        wanted = text if self.fields is None or text in self.fields else None
        if len(self.texts) < _KNOWN_FIELDS:
            self.texts[raw] = wanted
        return wanted
