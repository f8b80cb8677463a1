"""This module finds usual samples in a buffer with the compiled core, without a Python object per member.

:func:`packed` parses the samples of one buffer into arrays. :func:`walk_packed` reads a source buffer by buffer, and
ends at the first unusual sample. :meth:`PackedSamples.settle` makes the samples canonical in place. The callers leave
unusual samples to the exact path.

This module does not know why samples are read, or what is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from wdscli.arrays import I64, SampleArrays, numpy
from wdscli.storage import Source
from wdscli.tar import Form, core


class PackedSamples(NamedTuple):
    """Usual samples in a buffer. ``arrays`` has their places after :meth:`settle`. ``heads`` has the beginnings of the
    members' headers before :meth:`settle`, and ``end`` the end of all samples before it. ``foreign`` is the number of
    members that are not canonical, or have a padding other than zeros."""

    arrays: SampleArrays
    heads: I64
    end: int
    foreign: int
    form: Form

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
    key_lengths, counts, starts, lengths, heads, codes, offsets, sizes = [
        numpy.frombuffer(column, dtype=numpy.int64) for column in columns
    ]
    arrays = SampleArrays(keys, key_lengths, starts, lengths, counts, fields, codes, offsets, sizes)
    return PackedSamples(arrays, heads, end, foreign, form)


def walk_packed(source: Source, buffer: memoryview, form: Form) -> Iterator[tuple[int, PackedSamples]]:
    """Yield the usual samples at the beginning of a seekable source, a buffer at a time, and the byte where they begin.
    They are at the start of ``buffer``, and end before the first unusual sample and before the last sample. Raises the
    errors of reading."""
    offset = held = 0
    while True:
        held += source.fill(offset + held, buffer[held:])
        usual = packed(buffer[:held], None, form)
        if usual is None:
            return
        yield offset, usual
        left_over = buffer[usual.end : held]
        offset, held = offset + usual.end, len(left_over)
        buffer[:held] = left_over
