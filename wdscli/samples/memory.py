"""Memory that payloads leave behind them.

What it is: :func:`keep_heap`, which who reads many payloads calls before the first. It must not know what they are.
"""

from __future__ import annotations

HEAP_BLOCK_BYTES = 31 << 20

_heap_is_kept = False


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
