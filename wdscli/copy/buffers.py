"""Bytes in a buffer, on their way from a shard to another.

What it is: :func:`fill`, which reads them, :func:`packed`, which says what the samples in a buffer are, and
:func:`clear_padding`. Some old tars fill a member's last block with whatever lay in their own buffer. A run of members
whose headers are canonical is copied as it stands, so these bytes are set to zero on the way, which costs no more than
looking at them. It must not know where bytes go, nor which samples are wanted.
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
    """Read what fits from byte ``offset`` of a source on; returns how many bytes there were. Raises InputError."""
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
    """Zero the padding of members in ``view``, whose first byte is byte ``base`` of what ``offsets`` count in.

    Begins with member ``first``; returns the first member whose padding may go on behind the view.

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
    """Usual samples in a buffer: what they are once :meth:`settle` has run, and where the headers of their members
    begin (``heads``), and all of them end, until then. ``names`` are the keys, one by one."""

    names: list[bytes]
    arrays: SampleArrays
    heads: I64
    end: int
    form: Form

    def settle(self, view: memoryview) -> memoryview:
        """Make all members canonical where they are, padding included; returns what they fill now."""
        assert core.CORE is not None
        form = self.form
        return view[: core.CORE.settle(view[: self.end], form.mtime_field, form.long_names == "gnu")]


def packed(view: memoryview, begins: I64 | None, form: Form) -> Packed | None:
    """The samples that begin at the bytes ``begins`` of ``view``, the first at 0, and fill it; without ``begins`` those
    of its first bytes that are known to be whole. None when they are not the usual ones, or where there is no compiled
    core: then it takes the exact path to know them."""
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
