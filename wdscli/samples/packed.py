"""This module finds usual samples in a buffer with the compiled core, without a Python object per member.

:func:`packed` parses the samples of one buffer into arrays. :func:`walk_packed` reads a source buffer by buffer, and
ends at the first unusual sample. :func:`walk_small` does so only if this is faster than reading headers.
:meth:`PackedSamples.settle` makes the samples canonical in place. The callers leave unusual samples to the exact path.

This module does not know why samples are read, or what is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from wdscli.arrays import I64, Mask, SampleArrays, numpy
from wdscli.tar import ByteSource, Form, core
from wdscli.tar.reader import LARGE_STRIDE_BYTES, is_dense

SMALL_SHARD_BYTES = 1 << 24
"""For smaller shards, loading numpy would take longer than reading sample by sample."""
BUFFER_BYTES = 1 << 22


class FileSource(ByteSource, Protocol):
    """A source that fills buffers. ``fd`` is the descriptor of a local file, or None."""

    @property
    def fd(self) -> int | None: ...

    def fill(self, offset: int, view: memoryview, /) -> int: ...


class PackedSamples(NamedTuple):
    """Usual samples in a buffer. ``arrays`` has their places after :meth:`settle`. ``heads`` has the beginnings of the
    members' headers before :meth:`settle`, and ``end`` the end of all samples before it. ``foreign`` is the number of
    members that are not canonical, or have a padding other than zeros. ``foreign_headers`` counts, for each sample, the
    members whose headers are not canonical."""

    arrays: SampleArrays
    heads: I64
    foreign_headers: I64
    end: int
    foreign: int
    form: Form

    def stored(self) -> SampleArrays:
        """Return the samples with their places before :meth:`settle`."""
        arrays = self.arrays
        if not self.foreign:
            return arrays
        starts = self.heads[arrays.counts.cumsum() - arrays.counts]
        offsets = numpy.append(self.heads[1:], self.end) - (arrays.sizes + 511 & -512)
        return arrays._replace(starts=starts, lengths=numpy.diff(starts, append=self.end), offsets=offsets)

    def is_foreign(self) -> Mask:
        """Return, for each sample, whether it has members whose headers are not canonical."""
        foreign: Mask = self.foreign_headers > 0
        return foreign

    def settle(self, view: memoryview) -> memoryview:
        """Make all members canonical in place, padding included. Return the part of the buffer that they fill now."""
        assert core.CORE is not None
        if not self.foreign:
            return view[: self.end]
        form = self.form
        return view[: core.CORE.settle(view[: self.end], form.mtime_field, form.long_names == "gnu")]


def packed(view: memoryview, begins: I64 | None, form: Form) -> PackedSamples | None:
    """Find samples in ``view`` by the compiled core. ``begins`` has the first bytes of the samples, which fill
    ``view``; the first is 0. Without ``begins``, find the complete samples at the start of ``view``. Return None if a
    sample is unusual, or without the core."""
    packing = None
    if core.CORE is not None:
        packing = core.CORE.pack(view, begins, form.mtime_field, form.long_names == "gnu")
    if packing is None:
        return None
    fields, keys, *columns, end, foreign = packing
    key_lengths, counts, starts, lengths, foreign_headers, heads, codes, offsets, sizes = [
        numpy.frombuffer(column, dtype=numpy.int64) for column in columns
    ]
    arrays = SampleArrays(keys, key_lengths, starts, lengths, counts, fields, codes, offsets, sizes)
    return PackedSamples(arrays, heads, foreign_headers, end, foreign, form)


def walk_packed(
    source: FileSource, spare: Callable[[], memoryview], form: Form
) -> Iterator[tuple[int, memoryview, PackedSamples]]:
    """Yield the usual samples at the beginning of a seekable source, a buffer at a time: the byte where they begin, the
    buffer, and the samples at its start. They end before the first unusual sample and before the last sample. After
    each buffer, ``spare`` returns the next one: the same, or another of equal size. Raises the errors of reading."""
    offset = held = 0
    buffer = spare()
    while True:
        held += source.fill(offset + held, buffer[held:])
        usual = packed(buffer[:held], None, form)
        if usual is None:
            return
        yield offset, buffer, usual
        left_over, buffer = buffer[usual.end : held], spare()
        offset, held = offset + usual.end, len(left_over)
        buffer[:held] = left_over


def walk_small(source: FileSource, form: Form) -> Iterator[tuple[int, PackedSamples]]:
    """Yield the small usual samples at the beginning of a local shard like :func:`walk_packed`. Yield nothing without
    the core, if the shard is small, or if its payloads are large."""
    if (
        core.CORE is None
        or source.fd is None
        or (source.size or 0) < SMALL_SHARD_BYTES
        or not is_dense(source)
    ):
        return
    buffer = memoryview(bytearray(BUFFER_BYTES))
    for offset, _, usual in walk_packed(source, lambda: buffer, form):
        if usual.end > LARGE_STRIDE_BYTES * len(usual.arrays.sizes):
            return
        yield offset, usual
