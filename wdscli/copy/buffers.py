"""The zeros behind payloads, made sure of.

Some old tars fill a member's last block with whatever lay in their buffer. A run of members whose headers are canonical
is copied as it stands, so these bytes are set to zero on the way, which costs no more than looking at them.
"""

from __future__ import annotations

from collections.abc import Sequence

_ZEROS = [bytes(size) for size in range(512)]


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
