"""Memory of payloads, kept for the next ones.

What it is: :func:`keep`. How: glibc gives the free end of its heap back to the kernel whenever that exceeds 128 KiB, so
that a batch of pictures is paid for by page faults again and again, which costs more than the reading itself (measured:
100 KB payloads, 64 at a time, 25 thousand a second and 80 thousand after). It raises that limit by itself when a large
block that it mapped is freed; one block of nearly 32 MiB, the most that counts, is therefore allocated and freed, and
never touched. Up to 64 MiB of free memory then stay with the process. Other C libraries take no notice.
"""

from __future__ import annotations

BLOCK = 31 << 20
_kept = False


def keep() -> None:
    """Let freed payloads' memory stay with this process. Once is enough; a fork inherits it."""
    global _kept
    if not _kept:
        _kept = True
        bytes(BLOCK)
