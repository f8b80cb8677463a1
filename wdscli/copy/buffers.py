"""Bytes in a buffer, on their way from one shard to another.

What it is: :func:`fill`, which reads them; :func:`packed`, which recognizes the samples in a buffer; and
:func:`clear_padding`. How: some old tars fill a member's last block with leftovers of their own buffer. A run of
members with canonical headers is copied unchanged, so its padding is set to zero on the way, which costs no more than a
check. It must not know where bytes go, nor which samples are wanted.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from wdscli.arrays import I64, numpy
from wdscli.errors import InputError
from wdscli.shards.index import SampleArrays
from wdscli.storage import Source
from wdscli.storage.local import reason
from wdscli.tar import Form, core

REMOTE_READ_BYTES = 8 << 20
_ZEROS = [bytes(size) for size in range(512)]


def fill(view: memoryview, source: Source, offset: int) -> int:
    """Read from byte ``offset`` of a source until ``view`` is full or the source ends; returns the number of bytes.
    Raises InputError."""
    done = 0
    while done < len(view):
        if source.fd is not None:
            try:
                count = os.preadv(source.fd, [view[done:]], offset + done)
            except OSError as error:
                raise InputError(f"cannot read {source.name}: {reason(error)}") from error
        else:
            count = source.read_into(offset + done, view[done : done + REMOTE_READ_BYTES])
        if not count:
            break
        done += count
    return done


def clear_padding(
    view: memoryview, base: int, offsets: Sequence[int], sizes: Sequence[int], first: int = 0
) -> int:
    """Zero the padding of members in ``view``, whose first byte has the offset ``base`` in the sense of ``offsets``.

    It begins with member ``first`` and returns the first member whose padding may continue after the view.

    >>> block = bytearray(b"x" * 1024)
    >>> clear_padding(memoryview(block), 0, [0], [513]), block.count(0)
    (1, 511)
    """
    end = len(view)
    for at in range(first, len(offsets)):
        size = sizes[at]
        begin = offsets[at] + size - base
        if begin >= end:
            return at
        pad = -size & 511
        if pad:
            stop = begin + pad
            begin = max(begin, 0)
            if stop > end:
                view[begin:end] = _ZEROS[end - begin]
                return at
            view[begin:stop] = _ZEROS[stop - begin]
    return len(offsets)


class Packed(NamedTuple):
    """Usual samples in a buffer: their arrays after :meth:`settle` has run, the first bytes of their members' headers
    before that (``heads``), and the end of all before that. ``names`` are the keys."""

    names: list[bytes]
    arrays: SampleArrays
    heads: I64
    end: int
    form: Form

    def settle(self, view: memoryview) -> memoryview:
        """Make all members canonical in place, padding included; returns the bytes that they fill now."""
        assert core.CORE is not None
        form = self.form
        return view[: core.CORE.settle(view[: self.end], form.mtime_field, form.long_names == "gnu")]


def packed(view: memoryview, begins: I64 | None, form: Form) -> Packed | None:
    """The samples that begin at the bytes ``begins`` of ``view``, the first at 0, and fill it; without ``begins`` the
    samples at its start that are known to be whole. None if they are unusual, or without the compiled core."""
    found = None
    if core.CORE is not None:
        found = core.CORE.pack(view, begins, form.mtime_field, form.long_names == "gnu")
    if found is None:
        return None
    keys, fields, *columns, end = found
    counts, starts, lengths, heads, codes, offsets, sizes = [
        numpy.frombuffer(column, dtype=numpy.int64) for column in columns
    ]
    widths = numpy.fromiter(map(len, keys), dtype=numpy.int64, count=len(keys))
    arrays = SampleArrays(b"".join(keys), widths, starts, lengths, counts, fields, codes, offsets, sizes)
    return Packed(keys, arrays, heads, end, form)
